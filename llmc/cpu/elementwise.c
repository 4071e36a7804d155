// The small ops: fill, cast, and the sums of losses by sequence.
#include "llmc/base/error.h"
#include "llmc/cpu/cpu.h"
#include "llmc/cpu/cpu_ops.h"
#include "llmc/cpu/simd.h"

static bool is_float(Tensor t) {
    return t.data && (t.dtype == DTYPE_FP32 || t.dtype == DTYPE_FP16 || t.dtype == DTYPE_BF16);
}

void tensor_fill(Tensor t, float value) {
    REQUIRE(is_float(t), "tensor_fill: %s is absent or not of a floating dtype", t.name);
    const int64_t n = tensor_numel(t);
    if (t.dtype == DTYPE_FP32) {
        float *x = t.data;
#pragma omp parallel for schedule(static)
        for (int64_t i = 0; i < n; i++) x[i] = value;
    } else {
        const uint16_t bits = t.dtype == DTYPE_BF16 ? float_to_bf16(value) : float_to_fp16(value);
        uint16_t *x = t.data;
#pragma omp parallel for schedule(static)
        for (int64_t i = 0; i < n; i++) x[i] = bits;
    }
}

static ALWAYS_INLINE void cast_span(void *dst, const void *src, int64_t begin, int64_t end, DType to, DType from) {
    EACH_LANES(i, k, end - begin, vstore_first(k, dst, begin + i, vload_first(k, src, begin + i, from), to));
}

// fp16 is no compute dtype here, but weights and gradients may come and go as fp16.
static void cast_span_slow(Tensor dst, Tensor src, int64_t begin, int64_t end) {
    char *to = (char *)dst.data + (size_t)begin * dtype_size(dst.dtype);
    const char *from = (const char *)src.data + (size_t)begin * dtype_size(src.dtype);
    convert_elements(to, dst.dtype, from, src.dtype, end - begin);
}

void tensor_cast(Tensor dst, Tensor src) {
    REQUIRE(is_float(dst) && is_float(src), "tensor_cast: %s or %s is absent or not of a floating dtype", dst.name,
            src.name);
    const int64_t n = tensor_numel(src);
    tensor_check("tensor_cast", dst, dst.dtype, n);
    const bool vector = dst.dtype != src.dtype && dst.dtype != DTYPE_FP16 && src.dtype != DTYPE_FP16;
#pragma omp parallel for schedule(static)
    for (int64_t i = 0; i < n; i += TASK_ELEMENTS) {
        if (vector)
            WITH_DTYPE(E, dst.dtype, WITH_DTYPE(S, src.dtype, cast_span(dst.data, src.data, i, task_end(i, n), E, S)));
        else
            cast_span_slow(dst, src, i, task_end(i, n));
    }
}

void sequence_losses(Tensor sums, Tensor losses, bool accumulate) {
    const int64_t B = tensor_numel(sums), n = tensor_numel(losses), T = n / B;
    tensor_check("sequence_losses", sums, DTYPE_FP32, B);
    tensor_check("sequence_losses", losses, DTYPE_FP32, B * T);
    float *sum = sums.data;
    const float *loss = losses.data;
    for (int64_t b = 0; b < B; b++) {
        double total = accumulate ? sum[b] : 0.0;
        for (int64_t t = 0; t < T; t++) total += loss[b * T + t];
        sum[b] = (float)total;
    }
}
