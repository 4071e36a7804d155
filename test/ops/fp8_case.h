// Operands of fp8 ops: codes beside those that the specification expects, and slots, for the tests
// of quantisation and of products. What codes the specification writes, and, of an operand, what
// was uploaded, stands where other tensors have their values.
#pragma once
#include "test/ops/op_test.h"
#include "test/reference/fp8.h"
#include <stdlib.h>

// For tensors of up to N rows of K elements.
static inline OpsShape fp8_shape(int64_t N, int64_t K, DType dtype) {
    return (OpsShape){
        .B = 1, .T = N, .C = K, .NH = 1, .Vp = 128, .num_tensors = 1, .fp8 = true, .dtype = dtype};
}

static inline uint8_t *codes(OpTensor x) { return (uint8_t *)x.v; }

static inline OpTensor codes_output(DType format, const char *name, int64_t rows, int64_t cols) {
    return op_output(format, name, DIMS(rows, cols));
}

static inline void check_codes(OpTensor x) {
    const int64_t n = tensor_numel(x.t);
    uint8_t *got = malloc((size_t)n);
    op_read(got, x.t);
    int64_t i = 0;
    while (i < n && got[i] == codes(x)[i]) i++;
    const int code = i < n ? got[i] : 0;
    free(got);
    if (i < n)
        op_fail("%s: element %d is 0x%02X, expected 0x%02X", x.t.name, (int)i, code, codes(x)[i]);
}

static inline OpTensor slot_tensor(const char *name, const Fp8Slot *init, int n) {
    OpTensor x = op_output(DTYPE_U8, name, DIMS(n * (int64_t)sizeof *init));
    op_write(x.t, init);
    return x;
}

// Codes of random values, and the slot that belongs to them.
static inline OpTensor operand(DType format, const char *name, int64_t rows, int64_t cols,
                               double size, Fp8Slot *slot) {
    OpTensor values = op_input(DTYPE_FP32, name, DIMS(rows, cols), size),
             x = codes_output(format, name, rows, cols);
    *slot = (Fp8Slot){0};
    ref_fp8_quantize(codes(x), NULL, values.v, slot, rows, cols, format, FP8_CURRENT);
    op_write(x.t, x.v);
    return x;
}
