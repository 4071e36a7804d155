// Tensor, the operand type of every op: a view of memory with data, element type, shape and a name
// for error messages. It is row-major, contiguous and passed by value. A tensor owns no memory and
// frees none.
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef enum {
    DTYPE_FP32,
    DTYPE_FP16,
    DTYPE_BF16,
    DTYPE_I32,
    DTYPE_U16,
    DTYPE_U8,
    DTYPE_E4M3, // fp8 of matmul operands: 4 bits of exponent, largest 448, no infinity
                // (llmc/number.h)
    DTYPE_E5M2, // 5 bits of exponent, largest 57344
    DTYPE_COUNT
} DType;

enum { TENSOR_MAX_RANK = 4 };

typedef struct {
    void *data; // NULL: the optional tensor is absent
    DType dtype;
    int rank;
    int64_t shape[TENSOR_MAX_RANK];
    const char *name; // static or owned by the model; never freed here
} Tensor;

// Elements or bytes [begin, end).
typedef struct {
    int64_t begin, end;
} Range;
static inline int64_t range_size(Range r) { return r.end - r.begin; }

size_t dtype_size(DType dtype);      // bytes per element
const char *dtype_name(DType dtype); // "fp32", "bf16", ...

// A tensor of the given shape over data. Trailing dimensions of size 0 are left out: tensor_make(p,
// t, "x", B, T, C, 0).
Tensor tensor_make(void *data, DType dtype, const char *name, int64_t d0, int64_t d1, int64_t d2,
                   int64_t d3);
Tensor tensor_none(void); // the absent tensor

int64_t tensor_numel(Tensor t);
size_t tensor_bytes(Tensor t);
int64_t tensor_rows(Tensor t); // product of all dimensions but the last
int64_t tensor_cols(Tensor t); // the last dimension

// Rows [first, first + count) of t viewed as (rows, cols).
Tensor tensor_slice_rows(Tensor t, int64_t first, int64_t count);
// Elements [first, first + count) of t, flat. The absent tensor gives itself.
Tensor tensor_slice_elements(Tensor t, int64_t first, int64_t count);
// Matrix i (rows, cols) of a stack t (n,rows,cols).
Tensor tensor_matrix(Tensor t, int64_t i);
// The first n entries along dimension 0 (a micro-batch smaller than planned).
Tensor tensor_slice_first(Tensor t, int64_t n);

// Stops the program, naming op and tensor, unless t has this dtype and number of elements. For ops:
// bugs only.
void tensor_check(const char *op, Tensor t, DType dtype, int64_t numel);

// "(4, 1024, 768) bf16" into buf; returns buf.
const char *tensor_describe(Tensor t, char *buf, size_t size);

// Element conversion on the host, round to nearest even; NaN stays NaN. (bf16, fp16) <-> fp32.
float bf16_to_float(uint16_t bits);
uint16_t float_to_bf16(float x);
float fp16_to_float(uint16_t bits);
uint16_t float_to_fp16(float x);
// n elements at src of type from, into dst as type to; either may be fp32, fp16 or bf16.
void convert_elements(void *dst, DType to, const void *src, DType from, int64_t n);

#ifdef __cplusplus
}
#endif
