// Sums and scalings of whole tensors, as Muon's orthogonalisation needs them (llmc/train/optimizer.c).
#include "llmc/cpu/cpu.h"
#include "llmc/cpu/cpu_ops.h"
#include "llmc/cpu/simd.h"

static ALWAYS_INLINE void axpby_span(void *out, float a, const void *x, float b, const void *y, int64_t begin,
                                     int64_t end, DType E) {
    EACH_LANES(i, k, end - begin, {
        const V product = b * vload_first(k, y, begin + i, E);
        vstore_first(k, out, begin + i, vfma(vsplat(a), vload_first(k, x, begin + i, E), product), E);
    });
}

void tensor_axpby(Tensor out, float a, Tensor x, float b, Tensor y) {
    const char *op = "tensor_axpby";
    const int64_t n = tensor_numel(out);
    cpu_check_float(op, out);
    tensor_check(op, x, out.dtype, n);
    tensor_check(op, y, out.dtype, n);
#pragma omp parallel for schedule(static)
    for (int64_t i = 0; i < n; i += TASK_ELEMENTS)
        WITH_DTYPE(E, out.dtype, axpby_span(out.data, a, x.data, b, y.data, i, task_end(i, n), E));
}

static ALWAYS_INLINE void scale_span(void *out, const void *in, float factor, int64_t begin, int64_t end, DType E,
                                     DType S) {
    EACH_LANES(i, k, end - begin, vstore_first(k, out, begin + i, vload_first(k, in, begin + i, S) * factor, E));
}

void tensor_normalize(Tensor out, Tensor in, Tensor sumsq) {
    const char *op = "tensor_normalize";
    const int64_t n = tensor_numel(out);
    cpu_check_float(op, out);
    tensor_check(op, in, in.dtype == DTYPE_FP32 ? DTYPE_FP32 : out.dtype, n);
    tensor_check(op, sumsq, DTYPE_FP32, 1);
    const float factor = (float)(1.0 / (sqrt((double)*(const float *)sumsq.data) + 1e-7));
#pragma omp parallel for schedule(static)
    for (int64_t i = 0; i < n; i += TASK_ELEMENTS)
        WITH_DTYPE(E, out.dtype,
                   WITH_DTYPE(S, in.dtype, scale_span(out.data, in.data, factor, i, task_end(i, n), E, S)));
}
