// Gradients of a micro-step, in fp32, into gradients that are accumulated in the compute dtype: the sum is rounded
// stochastically, because to the nearest a small gradient would never change a large sum. Bound by memory: 6 bytes an
// element for the first micro-step, 8 for the others.
#include "llmc/base/rng.h"
#include "llmc/cpu/cpu.h"
#include "llmc/cpu/cpu_ops.h"
#include "llmc/cpu/rounding.h"

// Elements [begin, end) of dst, which has dtype D; begin is a multiple of RANDOM_BLOCK. index: the counter of element
// 0.
static ALWAYS_INLINE void add_span(void *dst, const float *src, int64_t begin, int64_t end, bool accumulate,
                                   uint64_t seed, uint64_t stream, uint64_t index, DType D) {
    uint32_t words[LANES][4];
    for (int64_t e = begin; e < end; e += RANDOM_BLOCK) {
        const int64_t n = end - e < RANDOM_BLOCK ? end - e : RANDOM_BLOCK;
        if (D != DTYPE_FP32) rounding_bits(words, seed, stream, index + (uint64_t)e / 8);
        EACH_LANES(i, k, n, {
            V x = vload_first(k, src, e + i, DTYPE_FP32);
            if (accumulate) x += vload_first(k, dst, e + i, D);
            if (D != DTYPE_FP32) x = round_stochastically(x, rounding_bits_at(words, i));
            vstore_first(k, dst, e + i, x, D);
        });
    }
}

void gradient_add(Tensor dst, Tensor src, bool accumulate, uint64_t seed, int stream, Tensor control) {
    const char *op = "gradient_add";
    const int64_t n = tensor_numel(dst);
    cpu_check_float(op, dst);
    tensor_check(op, src, DTYPE_FP32, n);
    tensor_check(op, control, DTYPE_U8, (int64_t)sizeof(StepControl));
    const uint64_t index = (uint64_t)((const StepControl *)control.data)->micro_steps << 32;
    const uint64_t name = (uint64_t)STREAM_GRADIENT + (uint64_t)stream;
#pragma omp parallel for schedule(static)
    for (int64_t i = 0; i < n; i += TASK_ELEMENTS)
        WITH_DTYPE(D, dst.dtype, add_span(dst.data, src.data, i, task_end(i, n), accumulate, seed, name, index, D));
}

void micro_step_count(Tensor control) {
    tensor_check("micro_step_count", control, DTYPE_U8, (int64_t)sizeof(StepControl));
    ((StepControl *)control.data)->micro_steps++;
}
