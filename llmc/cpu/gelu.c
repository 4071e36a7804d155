// GELU in its tanh form, forward and backward, element by element.
//
// 0.5 (1 + tanh(u)) is the logistic function of 2u, so one exp replaces tanh and nothing cancels for negative x:
//   gelu(x)  = x s,                          s  = 1 / (1 + exp(-2u)),   2u  = 2 sqrt(2/pi) (x + 0.044715 x^3)
//   gelu'(x) = s + x s (1 - s) (2u)',                                  (2u)' = 2 sqrt(2/pi) (1 + 3 * 0.044715 x^2)
// Both passes move memory: 2 and 3 elements each; the arithmetic hides behind it.
#include "llmc/cpu/cpu.h"
#include "llmc/cpu/cpu_ops.h"
#include "llmc/cpu/simd.h"

#define TWO_SQRT_2_OVER_PI 1.5957691216f
#define CUBIC              0.044715f

static ALWAYS_INLINE V gelu_gate(V x, V xx) {
    V minus_2u = x * vfma(xx, vsplat(-TWO_SQRT_2_OVER_PI * CUBIC), vsplat(-TWO_SQRT_2_OVER_PI));
    return 1.0f / (1.0f + vexp(minus_2u)); // exp = inf gives 0
}

static ALWAYS_INLINE void gelu_span(void *out, const void *pre, int64_t begin, int64_t end, DType E) {
    EACH_LANES(i, k, end - begin, {
        V x = vload_first(k, pre, begin + i, E);
        vstore_first(k, out, begin + i, x * gelu_gate(x, x * x), E);
    });
}

static ALWAYS_INLINE void gelu_backward_span(void *dpre, const void *dout, const void *pre, int64_t begin, int64_t end,
                                             DType E) {
    EACH_LANES(i, k, end - begin, {
        V x = vload_first(k, pre, begin + i, E);
        V s = gelu_gate(x, x * x);
        V slope = vfma(x * x, vsplat(3.0f * TWO_SQRT_2_OVER_PI * CUBIC), vsplat(TWO_SQRT_2_OVER_PI));
        V derivative = vfma(x * s * (1.0f - s), slope, s);
        vstore_first(k, dpre, begin + i, vload_first(k, dout, begin + i, E) * derivative, E);
    });
}

void gelu_forward(Tensor out, Tensor pre) {
    int64_t n = tensor_numel(pre);
    cpu_check_float("gelu_forward", pre);
    tensor_check("gelu_forward", out, pre.dtype, n);
#pragma omp parallel for schedule(static)
    for (int64_t i = 0; i < n; i += TASK_ELEMENTS)
        WITH_DTYPE(E, pre.dtype, gelu_span(out.data, pre.data, i, task_end(i, n), E));
}

void gelu_backward(Tensor dpre, Tensor dout, Tensor pre) {
    int64_t n = tensor_numel(pre);
    cpu_check_float("gelu_backward", pre);
    tensor_check("gelu_backward", dpre, pre.dtype, n);
    tensor_check("gelu_backward", dout, pre.dtype, n);
#pragma omp parallel for schedule(static)
    for (int64_t i = 0; i < n; i += TASK_ELEMENTS)
        WITH_DTYPE(E, pre.dtype, gelu_backward_span(dpre.data, dout.data, pre.data, i, task_end(i, n), E));
}
