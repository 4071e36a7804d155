// The end of the step before the update: gradient norm and the decision. Bound by memory: the norm reads the gradients
// once.
#include "llmc/cpu/cpu.h"
#include "llmc/cpu/cpu_ops.h"
#include "llmc/cpu/optimizer_adafactor.h"
#include "llmc/cpu/optimizer_parts.h"
#include "llmc/cpu/simd.h"

int64_t cpu_optimizer_workspace(OpsShape shape) {
    return parts_workspace((int)shape.num_tensors, adafactor_scratch_bytes(shape.factored));
}

// ---------------------------------------------------------------------------------------------------------------- norm

// fp32 sums are kept as short as this, then added in fp64.
enum { RUN = 4096 };

static ALWAYS_INLINE double run_sumsq(const void *grad, int64_t begin, int64_t end, DType G) {
    V even = vzero(), odd = vzero(); // two chains: one would wait for the latency of its fma
    int64_t whole = begin;
    for (; whole + 2 * LANES <= end; whole += 2 * LANES) {
        V x = vload(grad, whole, G), y = vload(grad, whole + LANES, G);
        even = vfma(x, x, even);
        odd = vfma(y, y, odd);
    }
    EACH_LANES(i, k, end - whole, {
        V x = vload_first(k, grad, whole + i, G);
        even = vfma(x, x, even);
    });
    return vsum(even + odd);
}

static ALWAYS_INLINE double part_sumsq(const void *grad, Part part, DType G) {
    double sum = 0.0;
    for (int64_t i = part.begin; i < part.end; i += RUN)
        sum += run_sumsq(grad, i, part.end - i < RUN ? part.end : i + RUN, G);
    return sum;
}

void gradient_sumsq(Tensor sumsq, const Tensor *grads, int n) {
    const char *op = "gradient_sumsq";
    tensor_check(op, sumsq, DTYPE_FP32, n);
    Parts parts = parts_begin(op, n, 0);
    for (int i = 0; i < n; i++) {
        cpu_check_float(op, grads[i]);
        parts_add(parts, i, tensor_numel(grads[i]));
    }
#pragma omp parallel for schedule(dynamic) if (parts_count(parts) > 1)
    for (int64_t number = 0; number < parts_count(parts); number++) {
        Part part = parts_get(parts, number);
        Tensor grad = grads[part.tensor];
        WITH_DTYPE(G, grad.dtype, parts.sums[number] = part_sumsq(grad.data, part, G));
    }
    float *out = sumsq.data;
    for (int i = 0; i < n; i++) out[i] = (float)parts_sum(parts, i);
}

// ------------------------------------------------------------------------------------------------------------ decision

void step_control_update(Tensor control, Tensor sumsq, Tensor losses, int64_t num_tokens, StepLimits limits) {
    const char *op = "step_control_update";
    const int num_tensors = (int)tensor_numel(sumsq);
    tensor_check(op, control, DTYPE_U8, (int64_t)sizeof(StepControl));
    tensor_check(op, sumsq, DTYPE_FP32, num_tensors);
    tensor_check(op, losses, DTYPE_FP32, tensor_numel(losses));
    const float *loss = losses.data;
    double loss_sum = 0.0;
    for (int64_t b = 0; b < tensor_numel(losses); b++) loss_sum += loss[b];
    step_control_decide(control.data, sumsq.data, num_tensors, loss_sum, num_tokens, limits);
}
