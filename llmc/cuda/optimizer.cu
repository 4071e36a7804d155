// The end of the step, before the update: gradient norm and the decision.
//
// The norm runs over all tensors in one launch (update_table.h). Bytes a parameter with fp32 gradient: 4, the minimum.
// The rules of the update are in optimizer_update.cu and its neighbours.
#include "llmc/cuda/optimizer.h"
#include "llmc/cuda/update_parts.cuh"

enum { BLOCK_THREADS = 256 };

// ---------------------------------------------------------------------------------------------------------------- norm

// Elements of a part: 64 KB of fp32, longer where a tensor would have more than NORM_MAX_PARTS of them. 124M parameters
// are 4,500 parts.
enum { NORM_PART = 16384 };

typedef struct {
    const void *data;
    int64_t numel;
    int64_t part;   // elements of a part, a multiple of NORM_PART
    int32_t tensor; // where its sum goes
    bool packed;    // 16-byte aligned
} NormEntry;

// Sums the squares of part b of the run into partials[b], fp32, b numbered through all runs of the table. Thread: every
// 256th pack of the part, in order. Reads the gradients once.
template <class G>
static __global__ void __launch_bounds__(BLOCK_THREADS)
    norm_parts_kernel(float *partials, const NormEntry *entries, const int32_t *first, int n) {
    constexpr int N = Pack<G>::N;
    const int entry = entry_of_block(first, n);
    const NormEntry e = entries[entry];
    const int64_t begin = part_of_block(first, entry) * e.part, end = min(e.numel, begin + e.part);
    const G *data = (const G *)e.data;
    const int64_t whole = e.packed ? begin + (end - begin) / N * N : begin; // where the packs end
    float sum = 0.0f;
    for (int64_t i = begin + threadIdx.x * N; i < whole; i += BLOCK_THREADS * N) {
        const Pack<G> x = load_pack(data + i);
        for (int k = 0; k < N; k++) sum = fmaf(to_float(x.v[k]), to_float(x.v[k]), sum);
    }
    for (int64_t i = whole + threadIdx.x; i < end; i += BLOCK_THREADS) {
        const float x = to_float(data[i]);
        sum = fmaf(x, x, sum);
    }
    sum = block_sum(sum);
    if (threadIdx.x == 0) partials[first[0] + (int)blockIdx.x] = sum;
}

// Block i, one warp: the sum of the partials of entry i goes to its tensor.
static __global__ void norm_tensors_kernel(float *sumsq, const float *partials, const NormEntry *entries,
                                           const int32_t *first) {
    const double sum = sum_of_parts(partials, first[blockIdx.x], first[blockIdx.x + 1]);
    if (threadIdx.x == 0) sumsq[entries[blockIdx.x].tensor] = (float)sum;
}

// fp32 and 16-bit gradients are groups of their own: the dtype is the variant.
static void describe_norm(TableDraft *draft, TensorArray array) {
    const Tensor *grads = (const Tensor *)array.elements;
    for (int i = 0; i < array.n; i++) {
        const int64_t numel = tensor_numel(grads[i]);
        cuda_check_float(array.op, grads[i]);
        NormEntry e = {};
        e.data = grads[i].data, e.numel = numel, e.tensor = i;
        e.part = round_up(ceil_div(numel, NORM_MAX_PARTS), NORM_PART);
        e.packed = (uintptr_t)grads[i].data % 16 == 0;
        table_add(draft, grads[i].dtype, i, &e, ceil_div(numel, e.part));
    }
}

void gradient_sumsq(Tensor sumsq, const Tensor *grads, int n) {
    const TensorArray array = {"gradient_sumsq", grads, n, sizeof *grads};
    tensor_check(array.op, sumsq, DTYPE_FP32, n);
    const UpdateTable *t = update_table(array, sizeof(NormEntry), describe_norm);
    float *partials = (float *)cuda_scratch(array.op, t->parts[n] * (int64_t)sizeof(float));
    const cudaStream_t stream = cuda_compute_stream();
    for (int i = 0; i < t->num_groups; i++) {
        const TableRun run = table_run(t, &t->groups[i], 0, n);
        DISPATCH((DType)t->groups[i].variant, G, {
            LAUNCH(norm_parts_kernel<G>, run.parts, BLOCK_THREADS, 0, stream)
            (partials, (const NormEntry *)run.entries, run.first, run.n);
        });
    }
    LAUNCH(norm_tensors_kernel, (unsigned)n, WARP, 0, stream)
    ((float *)sumsq.data, partials, (const NormEntry *)t->entries, t->first);
}

// ------------------------------------------------------------------------------------------------------------ decision

// One block: all threads bring state, norms and losses into shared memory, one thread decides, all write back. The
// losses are added in index order by that thread, a tile at a time. Dynamic shared memory: num_tensors floats.
static __global__ void __launch_bounds__(BLOCK_THREADS)
    step_control_kernel(StepControl *control, const float *sumsq, int num_tensors, const float *losses,
                        int num_sequences, int64_t num_tokens, StepLimits limits) {
    __shared__ StepControl state[1];
    __shared__ float tile[BLOCK_THREADS];
    float *norms = reinterpret_cast<float *>(dynamic_shared_memory);
    enum { WORDS = sizeof(StepControl) / sizeof(uint32_t) };
    uint32_t *words = (uint32_t *)state, *device_words = (uint32_t *)control;
    for (int i = (int)threadIdx.x; i < WORDS; i += BLOCK_THREADS) words[i] = device_words[i];
    for (int i = (int)threadIdx.x; i < num_tensors; i += BLOCK_THREADS) norms[i] = sumsq[i];
    double loss_sum = 0.0;
    for (int begin = 0; begin < num_sequences; begin += BLOCK_THREADS) {
        const int count = min((int)BLOCK_THREADS, num_sequences - begin);
        if ((int)threadIdx.x < count) tile[threadIdx.x] = losses[begin + (int)threadIdx.x];
        __syncthreads();
        if (threadIdx.x == 0)
            for (int i = 0; i < count; i++) loss_sum += (double)tile[i];
        __syncthreads();
    }
    if (threadIdx.x == 0) step_control_decide(state, norms, num_tensors, loss_sum, num_tokens, limits);
    __syncthreads();
    for (int i = (int)threadIdx.x; i < WORDS; i += BLOCK_THREADS) device_words[i] = words[i];
}

void step_control_update(Tensor control, Tensor sumsq, Tensor losses, int64_t num_tokens, StepLimits limits) {
    const char *op = "step_control_update";
    const int64_t num_tensors = tensor_numel(sumsq), num_sequences = tensor_numel(losses);
    tensor_check(op, control, DTYPE_U8, (int64_t)sizeof(StepControl));
    tensor_check(op, sumsq, DTYPE_FP32, num_tensors);
    tensor_check(op, losses, DTYPE_FP32, num_sequences);
    REQUIRE(num_tensors <= 8192 && num_sequences >= 1, "%s: %lld tensors, %lld sequences", op, (long long)num_tensors,
            (long long)num_sequences); // 32 KB of shared memory
    LAUNCH(step_control_kernel, 1, BLOCK_THREADS, (size_t)num_tensors * sizeof(float), cuda_compute_stream())
    ((StepControl *)control.data, (const float *)sumsq.data, (int)num_tensors, (const float *)losses.data,
     (int)num_sequences, num_tokens, limits);
}
