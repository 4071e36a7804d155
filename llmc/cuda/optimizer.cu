// The end of the step: gradient norm, the decision, AdamW.
//
// Norm and update run over all tensors in one launch each: a table on the device names the tensors, each is cut into
// parts of equal size, and every block finds the part that carries its number. So the hundred small tensors of a model
// cost nothing apart, and the largest is spread over all multiprocessors. The tables are built when an array of tensors
// is met for the first time, and kept: the only memory this file owns.
//
// Bytes a parameter, in bf16 with fp32 gradient: norm 4, update 30 (gradient 4; m, v and master read and written 24;
// weight written 2), both the minimum.
#include "llmc/base/rng.h"
#include "llmc/cuda/kernel.cuh"
#include "llmc/cuda/vector.cuh"
#include <stdlib.h>

enum { BLOCK_THREADS = 256 };

// -------------------------------------------------------------------------------------------------------------- tables

// The caller's array of tensors: elements of `stride` bytes, the first `used` of which count, the rest being padding.
typedef struct {
    const void *elements;
    int n;
    size_t stride, used;
} Array;

typedef struct {
    char *key; // a copy of the array, as it was when the table was built
    int n;
    char *device;       // entries, one a tensor, then the number of the first part of each, and of the end
    size_t entry_bytes; // of all entries
    int parts;
} Table;

static Table norm_table, update_table;

static bool table_is_current(const Table *t, Array array) {
    if (!t->device || t->n != array.n) return false;
    for (size_t at = 0; at < (size_t)array.n * array.stride; at += array.stride)
        if (memcmp(t->key + at, (const char *)array.elements + at, array.used) != 0) return false;
    return true;
}

static void table_free(Table *t) {
    if (!t->device) return;
    CUDA_CHECK(cudaStreamSynchronize(cuda_compute_stream())); // the last kernel that reads it
    device_free(t->device);
    free(t->key);
    memset(t, 0, sizeof *t);
}

// Replaces *t. entries: one of `size` bytes a tensor. first[i]: number of the first part of tensor i; first[n]: of all.
static void table_build(Table *t, const char *op, Array array, const void *entries, size_t size, const int32_t *first) {
    REQUIRE(!cuda_backend.capturing, "%s: new tensors under capture", op);
    const size_t n = (size_t)array.n, first_bytes = (n + 1) * sizeof *first;
    table_free(t);
    t->key = (char *)malloc(n * array.stride);
    REQUIRE(t->key != NULL, "%s: out of memory", op);
    memcpy(t->key, array.elements, n * array.stride);
    t->n = array.n, t->entry_bytes = n * size, t->parts = first[n];
    Error err;
    t->device = (char *)device_alloc(t->entry_bytes + first_bytes, &err);
    REQUIRE(t->device != NULL, "%s: %s", op, err.text);
    const cudaStream_t stream = cuda_compute_stream();
    CUDA_CHECK(cudaMemcpyAsync(t->device, entries, t->entry_bytes, cudaMemcpyHostToDevice, stream));
    CUDA_CHECK(cudaMemcpyAsync(t->device + t->entry_bytes, first, first_bytes, cudaMemcpyHostToDevice, stream));
    CUDA_CHECK(cudaStreamSynchronize(stream)); // the sources belong to the caller
}

static const int32_t *table_first(const Table *t) { return (const int32_t *)(t->device + t->entry_bytes); }

void cuda_optimizer_shutdown(void) {
    table_free(&norm_table);
    table_free(&update_table);
}

// The tensor that part blockIdx.x belongs to: first[i] <= blockIdx.x < first[i + 1]. Each thread looks at a few.
static __device__ int tensor_of_block(const int32_t *first, int n) {
    SHARED(int, found, [1]);
    const int part = (int)blockIdx.x;
    for (int i = (int)threadIdx.x; i < n; i += (int)blockDim.x) {
        const int begin = first[i], end = first[i + 1];
        if (begin <= part && part < end) found[0] = i;
    }
    __syncthreads();
    return found[0];
}

// ---------------------------------------------------------------------------------------------------------------- norm

// Elements of a part: 64 KB of fp32, longer where a tensor would have more than MAX_PARTS of them, for which the
// workspace has slots. 124M parameters are 4,500 parts.
enum { NORM_PART = 16384, MAX_PARTS = 1024 };

typedef struct {
    const void *data;
    int64_t numel;
    int64_t part; // elements of a part, a multiple of NORM_PART
    bool packed;  // 16-byte aligned
} NormEntry;

int64_t cuda_optimizer_workspace(OpsShape shape) { return shape.num_tensors * MAX_PARTS * (int64_t)sizeof(float); }

// Block b sums the squares of part b into partials[b], fp32. Thread: every 256th pack of the part, in order. Reads the
// gradients once.
template <class G>
static __global__ void __launch_bounds__(BLOCK_THREADS)
    norm_parts_kernel(float *partials, const NormEntry *entries, const int32_t *first, int n) {
    constexpr int N = Pack<G>::N;
    const int tensor = tensor_of_block(first, n);
    const NormEntry e = entries[tensor];
    const int64_t begin = (blockIdx.x - first[tensor]) * e.part, end = min(e.numel, begin + e.part);
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
    if (threadIdx.x == 0) partials[blockIdx.x] = sum;
}

// Block i, one warp: sumsq[i] = the sum of the partials of tensor i, in fp64, in an order that depends on their number
// alone.
static __global__ void norm_tensors_kernel(float *sumsq, const float *partials, const int32_t *first) {
    double sum = 0.0;
    for (int i = first[blockIdx.x] + (int)threadIdx.x; i < first[blockIdx.x + 1]; i += WARP) sum += (double)partials[i];
    for (int offset = WARP / 2; offset > 0; offset /= 2) sum += __shfl_xor_sync(ALL_LANES, sum, offset);
    if (threadIdx.x == 0) sumsq[blockIdx.x] = (float)sum;
}

static void norm_table_build(const char *op, Array array) {
    const Tensor *grads = (const Tensor *)array.elements;
    const int n = array.n;
    NormEntry *entries = (NormEntry *)calloc((size_t)n, sizeof *entries);
    int32_t *first = (int32_t *)calloc((size_t)n + 1, sizeof *first);
    REQUIRE(entries && first, "%s: out of memory", op);
    for (int i = 0; i < n; i++) {
        const int64_t numel = tensor_numel(grads[i]);
        cuda_check_float(op, grads[i]);
        tensor_check(op, grads[i], grads[0].dtype, numel);
        entries[i].data = grads[i].data;
        entries[i].numel = numel;
        entries[i].part = round_up(ceil_div(numel, MAX_PARTS), NORM_PART);
        entries[i].packed = (uintptr_t)grads[i].data % 16 == 0;
        first[i + 1] = first[i] + (int32_t)ceil_div(numel, entries[i].part);
    }
    table_build(&norm_table, op, array, entries, sizeof *entries, first);
    free(entries);
    free(first);
}

void gradient_sumsq(Tensor sumsq, const Tensor *grads, int n) {
    const char *op = "gradient_sumsq";
    tensor_check(op, sumsq, DTYPE_FP32, n);
    const Array array = {grads, n, sizeof *grads, sizeof *grads};
    if (!table_is_current(&norm_table, array)) norm_table_build(op, array);
    const Table *t = &norm_table;
    const NormEntry *entries = (const NormEntry *)t->device;
    const int32_t *first = table_first(t);
    const unsigned parts = (unsigned)t->parts;
    float *partials = (float *)cuda_scratch(op, t->parts * (int64_t)sizeof(float));
    const cudaStream_t stream = cuda_compute_stream();
    DISPATCH(grads[0].dtype, G, {
        LAUNCH(norm_parts_kernel<G>, parts, BLOCK_THREADS, 0, stream)(partials, entries, first, n);
    });
    LAUNCH(norm_tensors_kernel, (unsigned)n, WARP, 0, stream)((float *)sumsq.data, partials, first);
}

// ------------------------------------------------------------------------------------------------------------ decision

// One block: all threads bring state, norms and losses into shared memory, one thread decides, all write back. The
// losses are added in index order by that thread, a tile at a time. Dynamic shared memory: num_tensors floats.
static __global__ void __launch_bounds__(BLOCK_THREADS)
    step_control_kernel(StepControl *control, const float *sumsq, int num_tensors, const float *losses,
                        int num_sequences, int64_t num_tokens, StepLimits limits) {
    SHARED(StepControl, state, [1]);
    SHARED(float, tile, [BLOCK_THREADS]);
    DYN_SHARED(float, norms);
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

// --------------------------------------------------------------------------------------------------------------- AdamW

// A thread updates 4 neighbours at a time: 16 bytes of each fp32 array and 8 of a 16-bit one, so that the accesses of a
// warp are dense in both. (8 neighbours would leave gaps between the fp32 accesses of one instruction.)
enum { NEIGHBOURS = 4 };
// Elements of a block: 4 rounds hide the search for the tensor. 124M parameters are 30,000 blocks of 123 KB.
enum { UPDATE_PART = 4 * NEIGHBOURS * BLOCK_THREADS };

typedef struct {
    void *weight;
    float *master; // NULL: the weight itself is updated
    const void *grad;
    float *m, *v;
    int64_t numel;
    float weight_decay;
    bool packed; // all arrays 16-byte aligned
} UpdateEntry;

// The constants of one step, as the inner loop takes them.
typedef struct {
    float learning_rate, eps;
    float beta1, beta2, one_minus_beta1, one_minus_beta2;
    float m_correction, v_correction; // 1 / (1 - beta^step)
    uint64_t seed, step;
} AdamWStep;

static AdamWStep adamw_step(AdamWParams p) {
    const double beta1 = p.beta1, beta2 = p.beta2, step = (double)p.step;
    AdamWStep s;
    s.learning_rate = p.learning_rate, s.eps = p.eps;
    s.beta1 = p.beta1, s.one_minus_beta1 = (float)(1.0 - beta1);
    s.beta2 = p.beta2, s.one_minus_beta2 = (float)(1.0 - beta2);
    s.m_correction = (float)(1.0 / (1.0 - pow(beta1, step)));
    s.v_correction = (float)(1.0 / (1.0 - pow(beta2, step)));
    s.seed = p.seed, s.step = (uint64_t)p.step;
    return s;
}

// x rounded down or up to a neighbour, up when random / 2^16 is at least what is missing to it in steps of the type:
// the mean of many roundings is x. random has 16 bits. Infinity and NaN stay what they are.
template <class T> static __device__ __forceinline__ T round_stochastically(float x, uint32_t random);
template <> __device__ __forceinline__ float round_stochastically<float>(float x, uint32_t) { return x; }
template <> __device__ __forceinline__ bf16 round_stochastically<bf16>(float x, uint32_t random) {
    if (!isfinite(x)) return __float2bfloat16_rn(x);
    return __float2bfloat16_rn(__uint_as_float((__float_as_uint(x) + random) & 0xFFFF0000u)); // exact
}
// 13 bits are cut off a normal number; below 2^-14 the steps are 2^-24 and more bits go. Beyond the largest: infinity.
template <> __device__ __forceinline__ fp16 round_stochastically<fp16>(float x, uint32_t random) {
    const float size = fabsf(x);
    if (!(size < 65536.0f)) return __float2half_rn(x);
    float rounded;
    if (size < 0x1p-14f)
        rounded = (float)(((uint32_t)(size * 0x1p40f) + random) >> 16) * 0x1p-24f;
    else
        rounded = __uint_as_float((__float_as_uint(size) + (random >> 3)) & 0xFFFFE000u);
    return __float2half_rn(copysignf(rounded, x)); // exact
}

// N elements from e on, a multiple of N.
template <class E, class G, bool MASTER, int N>
static __device__ __forceinline__ void update(const UpdateEntry &t, const AdamWStep &s, float grad_factor,
                                              uint64_t stream, int64_t e) {
    float g[N], m[N], v[N], w[N];
    const Vector<G, N> grad = load_vector<G, N, true>((const G *)t.grad + e);
    const Vector<float, N> m_before = load_vector<float, N, true>(t.m + e);
    const Vector<float, N> v_before = load_vector<float, N, true>(t.v + e);
    if (MASTER)
        to_floats(w, load_vector<float, N, true>(t.master + e));
    else
        to_floats(w, load_vector<E, N, true>((const E *)t.weight + e));
    to_floats(g, grad), to_floats(m, m_before), to_floats(v, v_before);
    for (int k = 0; k < N; k++) {
        g[k] *= grad_factor;
        m[k] = fmaf(s.beta1, m[k], s.one_minus_beta1 * g[k]);
        v[k] = fmaf(s.beta2, v[k], s.one_minus_beta2 * (g[k] * g[k]));
        const float direction = m[k] * s.m_correction / (sqrtf(v[k] * s.v_correction) + s.eps);
        w[k] = fmaf(-s.learning_rate, fmaf(t.weight_decay, w[k], direction), w[k]);
    }
    store_vector<float, N, true>(t.m + e, from_floats<float, N>(m));
    store_vector<float, N, true>(t.v + e, from_floats<float, N>(v));
    Vector<E, N> weight;
    if (MASTER || sizeof(E) == 4) {
        if (MASTER) store_vector<float, N, true>(t.master + e, from_floats<float, N>(w));
        weight = from_floats<E, N>(w);
    } else {
        const Philox random = philox(s.seed, stream, (s.step << 40) + (uint64_t)e / 8);
        const uint32_t low = e & 4 ? random.v[2] : random.v[0], high = e & 4 ? random.v[3] : random.v[1];
        const uint64_t four = (uint64_t)high << 32 | low; // half-words of the elements e / 4 * 4 .. + 3
        for (int k = 0; k < N; k++)
            weight.v[k] = round_stochastically<E>(w[k], (uint32_t)(four >> ((e + k) % 4 * 16)) & 0xFFFFu);
    }
    store_vector((E *)t.weight + e, weight);
}

// Block b updates part b; nothing when the step is skipped. Thread: every 256th group of NEIGHBOURS, in order.
template <class E, class G, bool MASTER>
static __global__ void __launch_bounds__(BLOCK_THREADS, 4)
    adamw_kernel(const UpdateEntry *entries, const int32_t *first, int n, AdamWStep s, const StepControl *control) {
    if (control->skip != SKIP_NONE) return;
    const float grad_factor = control->grad_factor;
    const int tensor = tensor_of_block(first, n);
    const UpdateEntry t = entries[tensor];
    const uint64_t stream = STREAM_ROUNDING + (uint64_t)tensor;
    const int64_t begin = (int64_t)(blockIdx.x - first[tensor]) * UPDATE_PART;
    const int64_t end = min(t.numel, begin + UPDATE_PART);
    const int64_t whole = t.packed ? begin + (end - begin) / NEIGHBOURS * NEIGHBOURS : begin;
    for (int64_t e = begin + threadIdx.x * NEIGHBOURS; e < whole; e += BLOCK_THREADS * NEIGHBOURS)
        update<E, G, MASTER, NEIGHBOURS>(t, s, grad_factor, stream, e);
    for (int64_t e = whole + threadIdx.x; e < end; e += BLOCK_THREADS)
        update<E, G, MASTER, 1>(t, s, grad_factor, stream, e);
}

// All tensors have the dtypes of the first, and all have a master or none.
static void adamw_check(const char *op, const AdamWTensor *t, const AdamWTensor *first) {
    const int64_t numel = tensor_numel(t->weight);
    cuda_check_float(op, t->weight);
    tensor_check(op, t->weight, first->weight.dtype, numel);
    cuda_check_weight_gradient(op, t->grad, t->weight.dtype, numel);
    tensor_check(op, t->grad, first->grad.dtype, numel);
    tensor_check(op, t->m, DTYPE_FP32, numel);
    tensor_check(op, t->v, DTYPE_FP32, numel);
    if (first->master.data)
        tensor_check(op, t->master, DTYPE_FP32, numel);
    else
        REQUIRE(!t->master.data, "%s: %s has a master, the tensors before it have none", op, t->weight.name);
}

static bool all_aligned(const AdamWTensor *t) {
    return ((uintptr_t)t->weight.data | (uintptr_t)t->master.data | (uintptr_t)t->grad.data | (uintptr_t)t->m.data |
            (uintptr_t)t->v.data) %
               16 ==
           0;
}

static void update_table_build(const char *op, Array array) {
    const AdamWTensor *tensors = (const AdamWTensor *)array.elements;
    const int n = array.n;
    UpdateEntry *entries = (UpdateEntry *)calloc((size_t)n, sizeof *entries);
    int32_t *first = (int32_t *)calloc((size_t)n + 1, sizeof *first);
    REQUIRE(entries && first, "%s: out of memory", op);
    for (int i = 0; i < n; i++) {
        const AdamWTensor *t = &tensors[i];
        adamw_check(op, t, tensors);
        UpdateEntry *e = &entries[i];
        e->weight = t->weight.data, e->master = (float *)t->master.data, e->grad = t->grad.data;
        e->m = (float *)t->m.data, e->v = (float *)t->v.data;
        e->numel = tensor_numel(t->weight), e->weight_decay = t->weight_decay;
        e->packed = all_aligned(t);
        first[i + 1] = first[i] + (int32_t)ceil_div(e->numel, UPDATE_PART);
    }
    table_build(&update_table, op, array, entries, sizeof *entries, first);
    free(entries);
    free(first);
}

template <class E, class G> static void launch_update(int n, bool master, const AdamWStep &step, Tensor control) {
    const Table *t = &update_table;
    const UpdateEntry *entries = (const UpdateEntry *)t->device;
    const StepControl *decided = (const StepControl *)control.data;
    const unsigned parts = (unsigned)t->parts;
    const cudaStream_t stream = cuda_compute_stream();
    if (master) {
        LAUNCH((adamw_kernel<E, G, true>), parts, BLOCK_THREADS, 0, stream)(entries, table_first(t), n, step, decided);
    } else {
        LAUNCH((adamw_kernel<E, G, false>), parts, BLOCK_THREADS, 0, stream)(entries, table_first(t), n, step, decided);
    }
}

void adamw_update(const AdamWTensor *tensors, int n, AdamWParams params, Tensor control) {
    const char *op = "adamw_update";
    tensor_check(op, control, DTYPE_U8, (int64_t)sizeof(StepControl));
    REQUIRE(params.step >= 1, "adamw_update: step %lld, the first is 1", (long long)params.step);
    const Array array = {tensors, n, sizeof *tensors, offsetof(AdamWTensor, weight_decay) + sizeof(float)};
    if (!table_is_current(&update_table, array)) update_table_build(op, array);
    const AdamWStep step = adamw_step(params);
    const bool master = tensors[0].master.data != NULL;
    DISPATCH(tensors[0].weight.dtype, E, {
        if (tensors[0].grad.dtype == DTYPE_FP32)
            launch_update<E, float>(n, master, step, control);
        else
            launch_update<E, E>(n, master, step, control);
    });
}
