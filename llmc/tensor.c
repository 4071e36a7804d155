// The element types, views and host-side element conversions of tensor.h.
#include "llmc/tensor.h"

#include "llmc/base/arithmetic.h"
#include "llmc/base/error.h"
#include "llmc/base/format.h"
#include <math.h>
#include <stdio.h>
#include <string.h>

static const struct {
    size_t size;
    const char *name;
} dtypes[DTYPE_COUNT] = {
    [DTYPE_FP32] = {4, "fp32"}, [DTYPE_FP16] = {2, "fp16"}, [DTYPE_BF16] = {2, "bf16"},
    [DTYPE_I32] = {4, "i32"},   [DTYPE_U16] = {2, "u16"},   [DTYPE_U8] = {1, "u8"},
    [DTYPE_E4M3] = {1, "e4m3"}, [DTYPE_E5M2] = {1, "e5m2"},
};

size_t dtype_size(DType dtype) { return dtypes[dtype].size; }
const char *dtype_name(DType dtype) { return dtypes[dtype].name; }

Tensor tensor_make(void *data, DType dtype, const char *name, int64_t d0, int64_t d1, int64_t d2,
                   int64_t d3) {
    Tensor t = {.data = data, .dtype = dtype, .name = name, .shape = {d0, d1, d2, d3}};
    while (t.rank < TENSOR_MAX_RANK && t.shape[t.rank] != 0) t.rank++;
    return t;
}

Tensor tensor_none(void) { return (Tensor){.name = "none"}; }

int64_t tensor_numel(Tensor t) {
    int64_t n = 1;
    for (int i = 0; i < t.rank; i++) n *= t.shape[i];
    if (t.rank == 0) return 0;
    return n;
}

size_t tensor_bytes(Tensor t) { return (size_t)tensor_numel(t) * dtype_size(t.dtype); }

int64_t tensor_cols(Tensor t) {
    if (t.rank == 0) return 0;
    return t.shape[t.rank - 1];
}

int64_t tensor_rows(Tensor t) {
    if (t.rank == 0) return 0;
    return tensor_numel(t) / tensor_cols(t);
}

Tensor tensor_slice_rows(Tensor t, int64_t first, int64_t count) {
    REQUIRE(first >= 0 && count >= 0 && first + count <= tensor_rows(t),
            "rows [%lld, %lld) of %s, which has %lld", (long long)first, (long long)(first + count),
            t.name, (long long)tensor_rows(t));
    int64_t cols = tensor_cols(t);
    char *data = (char *)t.data + (size_t)(first * cols) * dtype_size(t.dtype);
    return tensor_make(data, t.dtype, t.name, count, cols, 0, 0);
}

Tensor tensor_slice_elements(Tensor t, int64_t first, int64_t count) {
    if (!t.data) return t;
    REQUIRE(first >= 0 && count >= 0 && first + count <= tensor_numel(t),
            "elements [%lld, %lld) of %s, which has %lld", (long long)first,
            (long long)(first + count), t.name, (long long)tensor_numel(t));
    return tensor_make((char *)t.data + (size_t)first * dtype_size(t.dtype), t.dtype, t.name, count,
                       0, 0, 0);
}

Tensor tensor_matrix(Tensor t, int64_t i) {
    const int64_t rows = t.shape[1], cols = t.shape[2];
    char *data = (char *)t.data;
    if (data) data += (size_t)(i * rows * cols) * dtype_size(t.dtype);
    return tensor_make(data, t.dtype, t.name, rows, cols, 0, 0);
}

Tensor tensor_slice_first(Tensor t, int64_t n) {
    REQUIRE(t.rank >= 1 && n >= 1 && n <= t.shape[0], "the first %lld of %s, which has %lld",
            (long long)n, t.name, (long long)t.shape[0]);
    t.shape[0] = n;
    return t;
}

void tensor_check(const char *op, Tensor t, DType dtype, int64_t numel) {
    char text[96];
    REQUIRE(t.data != NULL, "%s: tensor %s is absent", op, t.name ? t.name : "?");
    REQUIRE(t.dtype == dtype, "%s: %s is %s, expected dtype %s", op, t.name,
            tensor_describe(t, text, sizeof text), dtype_name(dtype));
    REQUIRE(tensor_numel(t) == numel, "%s: %s is %s, expected %lld elements", op, t.name,
            tensor_describe(t, text, sizeof text), (long long)numel);
}

const char *tensor_describe(Tensor t, char *buf, size_t size) {
    size_t n = (size_t)snprintf(buf, size, "(");
    for (int i = 0; i < t.rank && n < size; i++)
        n +=
            (size_t)snprintf(buf + n, size - n, "%s%lld", i > 0 ? ", " : "", (long long)t.shape[i]);
    if (n < size) snprintf(buf + n, size - n, ") %s", dtype_name(t.dtype));
    return buf;
}

float bf16_to_float(uint16_t bits) {
    uint32_t u = (uint32_t)bits << 16;
    float x;
    memcpy(&x, &u, sizeof x);
    return x;
}

uint16_t float_to_bf16(float x) {
    uint32_t u;
    memcpy(&u, &x, sizeof u);
    // quiet NaN: rounding could make it inf
    if ((u & 0x7FFFFFFFu) > 0x7F800000u) return (uint16_t)(u >> 16 | 0x40u);
    return (uint16_t)((u + 0x7FFFu + (u >> 16 & 1u)) >> 16);
}

// fp16 without _Float16, which gcc 11 and clang 14 do not have on x86. NaN keeps the upper bits of
// its payload and becomes quiet, as in the processors' own conversions.
float fp16_to_float(uint16_t bits) {
    const uint32_t sign = (uint32_t)(bits & 0x8000u) << 16, magnitude = bits & 0x7FFFu;
    // the exponent's bias is 15, that of fp32 127
    uint32_t u = sign | ((magnitude << 13) + (112u << 23));
    if (magnitude > 0x7C00u) u = sign | 0x7FC00000u | magnitude << 13;
    if (magnitude == 0x7C00u) u = sign | 0x7F800000u;
    float x = (float)magnitude * 0x1p-24f; // below 2^-14: a multiple of 2^-24
    if (magnitude >= 0x0400u) memcpy(&x, &u, sizeof x);
    if (magnitude < 0x0400u && sign) return -x;
    return x;
}

uint16_t float_to_fp16(float x) {
    uint32_t u;
    memcpy(&u, &x, sizeof u);
    const uint32_t sign = u >> 16 & 0x8000u, magnitude = u & 0x7FFFFFFFu;
    if (magnitude > 0x7F800000u) return (uint16_t)(sign | 0x7E00u | (magnitude >> 13 & 0x3FFu));
    if (magnitude >= 0x47800000u) return (uint16_t)(sign | 0x7C00u); // from 2^16 on
    // Below 2^-14 the last bit is 2^-24: adding 1/2, whose last bit that is as well, rounds.
    uint32_t rounded = (magnitude + 0xFFFu + (magnitude >> 13 & 1u) - (112u << 23)) >> 13;
    if (magnitude < 0x38800000u) {
        const float sum = fabsf(x) + 0.5f;
        memcpy(&rounded, &sum, sizeof rounded);
        rounded -= 0x3F000000u;
    }
    return (uint16_t)(sign | rounded);
}

// Converts elements [begin, end).
static void convert_range(void *dst, DType to, const void *src, DType from, int64_t begin,
                          int64_t end) {
    for (int64_t i = begin; i < end; i++) {
        float x;
        if (from == DTYPE_FP32)
            x = ((const float *)src)[i];
        else if (from == DTYPE_BF16)
            x = bf16_to_float(((const uint16_t *)src)[i]);
        else
            x = fp16_to_float(((const uint16_t *)src)[i]);
        if (to == DTYPE_FP32)
            ((float *)dst)[i] = x;
        else if (to == DTYPE_BF16)
            ((uint16_t *)dst)[i] = float_to_bf16(x);
        else
            ((uint16_t *)dst)[i] = float_to_fp16(x);
    }
}

void convert_elements(void *dst, DType to, const void *src, DType from, int64_t n) {
    REQUIRE(to <= DTYPE_BF16 && from <= DTYPE_BF16, "convert_elements: %s to %s", dtype_name(from),
            dtype_name(to));
    enum { PIECE = 1 << 14 };
    if (to == from) {
        memcpy(dst, src, (size_t)n * dtype_size(to));
    } else if (n <=
               2 * PIECE) { // no region for these: libgomp allocates a team for one thread, too
        convert_range(dst, to, src, from, 0, n);
    } else {
#pragma omp parallel for schedule(static)
        for (int64_t begin = 0; begin < n; begin += PIECE)
            convert_range(dst, to, src, from, begin, min_i64(begin + PIECE, n));
    }
}
