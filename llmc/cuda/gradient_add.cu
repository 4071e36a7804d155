// Gradients that are accumulated in the compute dtype: the sum so far takes what a micro-step adds, rounded
// stochastically. Rounding to nearest would lose each addend that is below half a step of the sum, and with it, after
// 64 micro-steps in bf16, much of the gradient.
//
// All that changes between micro-steps, the number that names the random bits, stands on the device: a recorded
// micro-step draws new ones each time it is replayed. Bytes an element: 4 + 2 (+ 2 accumulating) into 16 bits.
#include "llmc/cuda/rounding.cuh"

enum { THREADS = 256, NEIGHBOURS = 8 }; // one draw of random bits serves 8 elements

// N elements from e on, a multiple of N.
template <class D, bool ACCUMULATE, int N>
static __device__ __forceinline__ void add_elements(D *dst, const float *src, uint64_t seed, uint64_t stream,
                                                    uint64_t counter, int64_t e) {
    float sum[N];
    to_floats(sum, load_vector<float, N, true>(src + e));
    if (ACCUMULATE) add_to(sum, load_vector<D, N>(dst + e));
    store_vector(dst + e, round_vector<D, N>(sum, seed, stream, counter, (uint64_t)e));
}

// 8 elements a thread; the elements behind the last eight, or all of an unaligned tensor, one a thread: items counts
// both.
template <class D, bool ACCUMULATE>
static __global__ void __launch_bounds__(THREADS)
    gradient_add_kernel(D *dst, const float *src, uint64_t seed, uint64_t stream, const StepControl *control,
                        int64_t eights, int64_t items) {
    const uint64_t counter = (uint64_t)control->micro_steps << 32;
    const int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x;
    if (i < eights)
        add_elements<D, ACCUMULATE, NEIGHBOURS>(dst, src, seed, stream, counter, i * NEIGHBOURS);
    else if (i < items)
        add_elements<D, ACCUMULATE, 1>(dst, src, seed, stream, counter, eights * NEIGHBOURS + (i - eights));
}

template <class D, bool ACCUMULATE>
static void launch_gradient_add(Tensor dst, Tensor src, uint64_t seed, uint64_t stream, Tensor control) {
    const int64_t n = tensor_numel(dst);
    const bool aligned = ((uintptr_t)dst.data | (uintptr_t)src.data) % 16 == 0;
    const int64_t eights = aligned ? n / NEIGHBOURS : 0, items = eights + n - eights * NEIGHBOURS;
    LAUNCH((gradient_add_kernel<D, ACCUMULATE>), (unsigned)ceil_div(items, THREADS), THREADS, 0, cuda_compute_stream())
    ((D *)dst.data, (const float *)src.data, seed, stream, (const StepControl *)control.data, eights, items);
}

void gradient_add(Tensor dst, Tensor src, bool accumulate, uint64_t seed, int stream, Tensor control) {
    const char *op = "gradient_add";
    cuda_check_float(op, dst);
    tensor_check(op, src, DTYPE_FP32, tensor_numel(dst));
    tensor_check(op, control, DTYPE_U8, (int64_t)sizeof(StepControl));
    const uint64_t number = STREAM_GRADIENT + (uint64_t)stream;
    DISPATCH(dst.dtype, D, {
        if (accumulate)
            launch_gradient_add<D, true>(dst, src, seed, number, control);
        else
            launch_gradient_add<D, false>(dst, src, seed, number, control);
    });
}

static __global__ void micro_step_kernel(StepControl *control) { control->micro_steps++; }

void micro_step_count(Tensor control) {
    tensor_check("micro_step_count", control, DTYPE_U8, (int64_t)sizeof(StepControl));
    LAUNCH(micro_step_kernel, 1, 1, 0, cuda_compute_stream())((StepControl *)control.data);
}
