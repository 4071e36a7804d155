// The activations of blocks after GPT-2: SwiGLU and ReLU^2, forward and backward. Both passes of
// both are memory-bound.
#include "llmc/base/arithmetic.h"
#include "llmc/cpu/cpu.h"
#include "llmc/cpu/simd.h"

// ------------------------------------------------------------------------------------------ SwiGLU

// Below this a sigmoid is 0 or 1.6e-38, and so is silu but for its sign. NaN passes.
static ALWAYS_INLINE V gate_bounded(V gate) { return vmax(vsplat(-87.0f), gate); }

// 1 + exp(-gate), of which 1 / is the sigmoid, for a bounded gate. Relative error of silu: 2.2e-7,
// and below zero with 8 lanes 1.5e-8 |gate|, with 4 lanes (no fma) 8e-8 |gate|, where silu itself
// vanishes (test_blocks).
static ALWAYS_INLINE V gate_one_plus_exp(V gate) {
    if (LANES == 16) return 1.0f + vexp(-gate);
    return vone_plus_exp2(vmin(vsplat(87.0f), gate), vsplat(-1.44269504f));
}

// A task is a part of a row, of at most TASK_ELEMENTS columns.
static int64_t row_parts(int64_t F) { return ceil_div(F, TASK_ELEMENTS); }

void backend_swiglu_forward(Tensor out, Tensor gate_up) {
    const int64_t F = tensor_cols(gate_up) / 2, N = tensor_rows(gate_up), parts = row_parts(F);
    const void *in = gate_up.data;
    void *to = out.data;
#pragma omp parallel for schedule(static)
    for (int64_t task = 0; task < N * parts; task++)
        WITH_DTYPE(E, gate_up.dtype, {
            const int64_t row = task / parts, begin = task % parts * TASK_ELEMENTS;
            const int64_t gates = row * 2 * F + begin, ups = gates + F, outs = row * F + begin;
            EACH_LANES(i, k, task_end(begin, F) - begin, {
                const V gate = gate_bounded(vload_first(k, in, gates + i, E));
                vstore_first(k, to, outs + i,
                             gate / gate_one_plus_exp(gate) * vload_first(k, in, ups + i, E), E);
            });
        });
}

void backend_swiglu_backward(Tensor dgate_up, Gradient dbias, Tensor dout, Tensor gate_up) {
    const int64_t F = tensor_cols(gate_up) / 2, N = tensor_rows(gate_up), parts = row_parts(F);
    const void *in = gate_up.data, *grad = dout.data;
    void *to = dgate_up.data;
#pragma omp parallel for schedule(static)
    for (int64_t task = 0; task < N * parts; task++)
        WITH_DTYPE(E, gate_up.dtype, {
            const int64_t row = task / parts, begin = task % parts * TASK_ELEMENTS;
            const int64_t gates = row * 2 * F + begin, ups = gates + F, outs = row * F + begin;
            EACH_LANES(i, k, task_end(begin, F) - begin, {
                const V gate = gate_bounded(vload_first(k, in, gates + i, E)),
                        up = vload_first(k, in, ups + i, E);
                const V d = vload_first(k, grad, outs + i, E);
                const V s = 1.0f / gate_one_plus_exp(gate), silu = gate * s;
                vstore_first(k, to, gates + i, d * up * vfma(silu, 1.0f - s, s), E);
                vstore_first(k, to, ups + i, d * silu, E);
            });
        });
    if (dbias.to.data) backend_bias_backward(dbias, dgate_up);
}

// ------------------------------------------------------------------------------------------ ReLU^2

void backend_relu2_forward(Tensor out, Tensor pre) {
    const int64_t n = tensor_numel(pre);
    const void *in = pre.data;
    void *to = out.data;
    EACH_ELEMENT(E, pre.dtype, i, k, n, {
        const V x = vmax(vzero(), vload_first(k, in, i, E)); // NaN passes
        vstore_first(k, to, i, x * x, E);
    });
}

void backend_relu2_backward(Tensor dpre, Gradient dbias, Tensor dout, Tensor pre) {
    const int64_t n = tensor_numel(pre);
    const void *in = pre.data, *grad = dout.data;
    void *to = dpre.data;
    EACH_ELEMENT(E, pre.dtype, i, k, n, {
        const V x = vmax(vzero(), vload_first(k, in, i, E));
        vstore_first(k, to, i, vload_first(k, grad, i, E) * (x + x), E);
    });
    if (dbias.to.data) backend_bias_backward(dbias, dpre);
}
