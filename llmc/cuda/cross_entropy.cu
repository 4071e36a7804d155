// The LM head with its loss, in chunks of as many rows as the caller's logits buffer holds. Only
// one chunk of logits exists at a time, and dlogits overwrite it. One kernel per chunk, with one
// matmul in the forward pass and three in the backward pass; no scratch except matmul's.
//
// The kernel is softmax cross-entropy: one block a row of logits, which is read once and, in the
// backward pass, written once. The forward pass runs the same kernel up to the loss, so that both
// passes give the same bits. All arithmetic is fp32. Where a row stays on the chip, its
// exponentials take the place of the logits once they are summed, so that each is computed once.
#include "llmc/cuda/intrinsics.cuh"

// ----------------------------------------------------------------------------------------- one row
// A row of GPT-2's vocabulary in 16 bits is 100,608 bytes. It stays on the chip between the
// maximum, the sum of exponentials and the gradient, in one of three ways:
//   registers   13 packs of 16 bytes for each of 512 threads: one block a multiprocessor, on
//               every GPU. Short rows, of 1 or 4 packs a thread: several blocks
//   shared      where two such rows fit into a multiprocessor (sm_90, sm_100): one block loads
//               while the other computes
//   looping     any other row (GPT-2's in fp32, longer ones, or no multiple of 16 bytes): maximum
//               and sum in one pass with rescaling, and a second read, mostly from the L2 cache

enum { ROW_THREADS = 512 }; // at most; 128 registers each fill a multiprocessor

typedef struct {
    float *losses;
    const int32_t *targets;
    const StepControl *control; // NULL: loss_scale is 1
    float scale;
    int V, Vp;
    bool backward;
} CrossEntropy;

static __device__ float gradient_scale(const CrossEntropy &p) {
    return p.control ? p.scale * p.control->loss_scale : p.scale;
}

// x = logits [i * N, (i + 1) * N) of a row: -infinity, which exp turns into 0, from column V on.
template <class T, int N>
static __device__ __forceinline__ void mask_padding(Vector<T, N> &x, int i, int V) {
    if ((i + 1) * N <= V) return;
    for (int k = 0; k < N; k++)
        if (i * N + k >= V) x.v[k] = from_float<T>(-INFINITY);
}
template <class T, int N>
static __device__ __forceinline__ Vector<T, N> load_logits(const T *row, int i, int V) {
    Vector<T, N> x = load_vector<T, N>(row + i * N);
    mask_padding(x, i, V);
    return x;
}

template <class T, int N>
static __device__ __forceinline__ float vector_max(const Vector<T, N> &x, float highest) {
    float v[N];
    to_floats(v, x);
    for (int k = 0; k < N; k++) highest = fmaxf(highest, v[k]);
    return highest;
}

// exp(x - highest) = 2^(x log2(e) - shift), shift = highest log2(e): one multiply-add and one
// instruction for 2^.
static __device__ __forceinline__ float exp_shifted(float x, float shift) {
    return exp2_approx(fmaf(x, LOG2_E, -shift));
}

// An exponential in the place of a logit: 2^15 e^(x - highest) in fp16, whatever the 16-bit type of
// the logits. It is at most 2^15, and down to 2^-29 of the largest one it loses at most 2^-12 of
// its value: an eighth of what bf16 loses when the gradient is stored, as much as fp16 loses.
// Smaller ones become denormal, those below 2^-40 are 0. fp32 keeps them as they are.
template <class T> struct Kept {
    typedef fp16 Type;
    static constexpr float LOG2_SCALE = 15.0f, INVERSE = 0x1p-15f;
};
template <> struct Kept<float> {
    typedef float Type;
    static constexpr float LOG2_SCALE = 0.0f, INVERSE = 1.0f;
};

// The shift of exponentials times 2^LOG2_SCALE. Explicitly one rounding, so that the target's
// exponential has the bits that it has in the sum: the only token of a vocabulary gets a gradient
// of 0.
template <class T> static __device__ __forceinline__ float kept_shift(float highest) {
    return fmaf(highest, LOG2_E, -Kept<T>::LOG2_SCALE);
}

// The sum of the exponentials of x times 2^LOG2_SCALE, with kept_shift; rounded after they are
// added, they replace x.
template <class T, int N>
static __device__ __forceinline__ float exp_sum_kept(Vector<T, N> &x, float shift) {
    float v[N], sum = 0.0f;
    to_floats(v, x);
    for (int k = 0; k < N; k++) {
        v[k] = exp_shifted(v[k], shift);
        sum += v[k];
    }
    const Vector<typename Kept<T>::Type, N> kept = from_floats<typename Kept<T>::Type>(v);
    memcpy((void *)x.v, (const void *)kept.v, sizeof x.v);
    return sum;
}

// The values of a row that follow from its maximum and sum.
typedef struct {
    // factor = gradient_scale / sum: fp16 gradients are scaled before they are rounded
    float shift, sum, factor;
    float target_logit, inverse; // exp_shifted * inverse = exp(x - highest)
} RowSums;

// log(sum) is small where the target is the maximum, so the two large terms are subtracted first.
static __device__ __forceinline__ RowSums row_finish(float *loss, float highest, float shift,
                                                     float sum, float inverse, float target_logit,
                                                     float scale) {
    if (threadIdx.x == 0) *loss = logf(sum) + (highest - target_logit);
    return RowSums{shift, sum, scale / sum, target_logit, inverse};
}

// The gradients of the logits whose exponentials exp_sum_kept left.
template <class T, int N>
static __device__ __forceinline__ void store_kept_gradient(T *row, int i, const Vector<T, N> &x,
                                                           float factor) {
    Vector<typename Kept<T>::Type, N> kept;
    float v[N];
    memcpy((void *)kept.v, (const void *)x.v, sizeof x.v);
    to_floats(v, kept);
    for (int k = 0; k < N; k++) v[k] *= factor;
    store_vector(row + i * N, from_floats<T, N>(v));
}

// The thread that stored the vector of the target stores the target's own gradient over it.
template <class T, int N>
static __device__ __forceinline__ void store_target(T *row, int target, const RowSums &s) {
    if (target / N % (int)blockDim.x == (int)threadIdx.x)
        row[target] =
            from_float<T>((exp_shifted(s.target_logit, s.shift) * s.inverse - s.sum) * s.factor);
}

// -------------------------------------------------------------------------------- row in registers

// Thread t owns packs t, t + blockDim.x, ...: PACKS of them, the last possibly after the end of the
// row. Launch: a block a row, Vp / N packs <= PACKS * blockDim.x, blockDim.x <= ROW_THREADS.
template <class T, int PACKS>
static __global__ void __launch_bounds__(ROW_THREADS) registers_kernel(T *logits, CrossEntropy p) {
    wait_for_the_grid_before();
    constexpr int N = PACK<T>;
    const int64_t r = block_from_last();
    const int packs = p.Vp / N, target = p.targets[r];
    T *row = logits + r * p.Vp;
    // the row is overwritten after barriers
    const float target_logit = to_float(row[target]), scale = gradient_scale(p);

    Vector<T, N> x[PACKS];
    UNROLL (j, PACKS) {
        const int i = j * (int)blockDim.x + (int)threadIdx.x;
        // After the end of the row: the last pack again, fully masked.
        x[j] = load_logits<T, N>(row, min(i, packs - 1), i < packs ? p.V : 0);
    }

    float highest = -INFINITY, sum = 0.0f;
    UNROLL (j, PACKS) highest = vector_max(x[j], highest);
    highest = block_max(highest);
    const float shift = kept_shift<T>(highest);
    UNROLL (j, PACKS) sum += exp_sum_kept(x[j], shift);
    sum = block_sum(sum) * Kept<T>::INVERSE;
    const RowSums s =
        row_finish(p.losses + r, highest, shift, sum, Kept<T>::INVERSE, target_logit, scale);
    if (!p.backward) return;

    UNROLL (j, PACKS) {
        const int i = j * (int)blockDim.x + (int)threadIdx.x;
        if (i < packs) store_kept_gradient(row, i, x[j], s.factor * Kept<T>::INVERSE);
    }
    store_target<T, N>(row, target, s);
}

// ---------------------------------------------------------------------------- row in shared memory

// Packs that a thread loads at a time: the 13 of GPT-2's row in two rounds.
enum { IN_FLIGHT = 7 };

// Does the same, but thread t keeps its packs in shared memory, which no other thread reads, so
// they need no barrier. Launch: a block of ROW_THREADS a row, Vp elements of dynamic shared memory.
// 64 registers let two blocks run.
template <class T>
static __global__ void __launch_bounds__(ROW_THREADS, 2)
    shared_memory_kernel(T *logits, CrossEntropy p) {
    wait_for_the_grid_before();
    constexpr int N = PACK<T>;
    typedef Vector<T, N> Row;
    Row *x = reinterpret_cast<Row *>(dynamic_shared_memory);
    const int64_t r = block_from_last();
    const int packs = p.Vp / N, target = p.targets[r];
    T *row = logits + r * p.Vp;
    const float target_logit = to_float(row[target]), scale = gradient_scale(p);

    float highest = -INFINITY, sum = 0.0f;
    for (int first = (int)threadIdx.x; first < packs; first += IN_FLIGHT * ROW_THREADS) {
        Row loaded[IN_FLIGHT];
        for (int j = 0; j < IN_FLIGHT; j++)
            loaded[j] = load_vector<T, N>(row + min(first + j * ROW_THREADS, packs - 1) * N);
        for (int j = 0; j < IN_FLIGHT; j++) {
            const int i = first + j * ROW_THREADS;
            if (i >= packs) break;
            mask_padding(loaded[j], i, p.V);
            highest = vector_max(loaded[j], highest);
            store_vector((T *)(x + i), loaded[j]);
        }
    }

    highest = block_max(highest);
    const float shift = kept_shift<T>(highest);
    for (int i = (int)threadIdx.x; i < packs; i += ROW_THREADS) {
        Row kept = load_vector<T, N>((const T *)(x + i));
        sum += exp_sum_kept(kept, shift);
        store_vector((T *)(x + i), kept);
    }
    sum = block_sum(sum) * Kept<T>::INVERSE;
    const RowSums s =
        row_finish(p.losses + r, highest, shift, sum, Kept<T>::INVERSE, target_logit, scale);
    if (!p.backward) return;

    for (int i = (int)threadIdx.x; i < packs; i += ROW_THREADS)
        store_kept_gradient(row, i, load_vector<T, N>((const T *)(x + i)),
                            s.factor * Kept<T>::INVERSE);
    store_target<T, N>(row, target, s);
}

// ----------------------------------------------------------------------------------------- looping

// Any row, N elements at a time. Maximum and sum together: the sum is rescaled when the maximum
// grows. Launch: a block of ROW_THREADS a row.
template <class T, int N>
static __global__ void __launch_bounds__(ROW_THREADS) looping_kernel(T *logits, CrossEntropy p) {
    wait_for_the_grid_before();
    const int64_t r = block_from_last();
    const int vectors = p.Vp / N, used = (p.V + N - 1) / N, target = p.targets[r];
    T *row = logits + r * p.Vp;
    const float target_logit = to_float(row[target]), scale = gradient_scale(p);

    float highest = -INFINITY, sum = 0.0f, v[N];
    for (int i = (int)threadIdx.x; i < used; i += ROW_THREADS) {
        const Vector<T, N> x = load_logits<T, N>(row, i, p.V);
        const float higher = vector_max(x, highest);
        float of_vector = 0.0f;
        to_floats(v, x);
        for (int k = 0; k < N; k++) of_vector += exp_shifted(v[k], higher * LOG2_E);
        sum = sum * exp2_approx((highest - higher) * LOG2_E) + of_vector;
        highest = higher;
    }

    const float block_highest = block_max(highest);
    const float rescale = exp2_approx((highest - block_highest) * LOG2_E);
    sum = block_sum((int)threadIdx.x < used ? sum * rescale : 0.0f);
    const RowSums s = row_finish(p.losses + r, block_highest, block_highest * LOG2_E, sum, 1.0f,
                                 target_logit, scale);
    if (!p.backward) return;

    for (int i = (int)threadIdx.x; i < vectors; i += ROW_THREADS) {
        to_floats(v, load_logits<T, N>(row, i, p.V));
        for (int k = 0; k < N; k++) v[k] = exp_shifted(v[k], s.shift) * s.factor;
        store_vector(row + i * N, from_floats<T, N>(v));
    }
    store_target<T, N>(row, target, s);
}

// ------------------------------------------------------------------------------------------ launch

template <class T, int PACKS>
static void launch_registers(T *logits, int rows, const CrossEntropy &p) {
    const int64_t threads = round_up(ceil_div(p.Vp / PACK<T>, PACKS), WARP);
    LAUNCH((registers_kernel<T, PACKS>), rows, (unsigned)threads, 0, cuda_compute_stream())
    (logits, p);
}

template <class T> static void launch(Tensor tensor, const CrossEntropy &p) {
    enum { SHORT = 1, MIDDLE = 4, LONG = 13 }; // packs a thread; 13: 50,304 columns in 16 bits
    T *logits = (T *)tensor.data;
    const int rows = (int)tensor_rows(tensor);
    const int64_t row_bytes = p.Vp * (int64_t)sizeof(T), packs = p.Vp / PACK<T>;
    // Besides the row, a block takes 1 KB for the system and some for reductions; a multiprocessor
    // has 1 KB more than a block may ask for.
    enum { RESERVED = 2048, SYSTEM = 1024 };
    const bool two_rows_fit = 2 * (row_bytes + RESERVED) <= cuda_backend.shared_per_block + SYSTEM;
    const cudaStream_t stream = cuda_compute_stream();

    if (!pack_aligned(logits, p.Vp, tensor.dtype))
        LAUNCH((looping_kernel<T, 1>), rows, ROW_THREADS, 0, stream)(logits, p);
    else if (packs <= SHORT * ROW_THREADS)
        launch_registers<T, SHORT>(logits, rows, p);
    else if (packs <= MIDDLE * ROW_THREADS)
        launch_registers<T, MIDDLE>(logits, rows, p);
    else if (two_rows_fit)
        LAUNCH(shared_memory_kernel<T>, rows, ROW_THREADS, (size_t)row_bytes, stream)(logits, p);
    else if (packs <= LONG * ROW_THREADS)
        launch_registers<T, LONG>(logits, rows, p);
    else
        LAUNCH((looping_kernel<T, PACK<T>>), rows, ROW_THREADS, 0, stream)(logits, p);
}

void cross_entropy(float *losses, Tensor logits, const int32_t *targets, int64_t V, bool backward,
                   float scale, Tensor control) {
    const StepControl *decided = (const StepControl *)control.data;
    const CrossEntropy p = {losses,  targets, decided, scale, (int)V, (int)tensor_cols(logits),
                            backward};
    REQUIRE(tensor_rows(logits) < (int64_t)1 << 31 && tensor_cols(logits) < (int64_t)1 << 30,
            "cross entropy: %lld rows of %lld logits", (long long)tensor_rows(logits),
            (long long)tensor_cols(logits));
    DISPATCH(logits.dtype, T, launch<T>(logits, p));
}

// ---------------------------------------------------------------------------------------- the head

int64_t ops_head_chunk_rows(OpsShape shape) {
    return cuda_size_head_chunk_rows(shape, cuda_backend.num_sms,
                                     (int64_t)cuda_backend.facts.memory_total);
}

// din absent: forward.
static void head_loss(Tensor losses, Tensor din, Gradient dwte, Tensor logits, Tensor in,
                      Tensor wte, Tensor targets, int64_t V, LossScale scale) {
    const int64_t N = tensor_rows(in), R = tensor_rows(logits);
    for (int64_t first = 0; first < N; first += R) {
        const int64_t count = min_i64(N - first, R);
        const Tensor chunk = tensor_slice_rows(logits, 0, count),
                     in_rows = tensor_slice_rows(in, first, count);
        backend_matmul_forward(chunk, in_rows, wte, tensor_none()); // (R,Vp)
        cross_entropy((float *)losses.data + first, chunk, (const int32_t *)targets.data + first, V,
                      din.data != NULL, scale.factor, scale.control); // (R,Vp), dlogits over logits
        if (!din.data) continue;
        backend_matmul_backward_input(tensor_slice_rows(din, first, count), chunk, wte); // (R,C)
        backend_matmul_backward_weight(dwte, gradient_none(), chunk, in_rows);           // (Vp,C)
        dwte.add = true; // the next chunk
    }
}

void backend_head_loss_forward(Tensor losses, Tensor logits, Tensor in, Tensor wte, Tensor targets,
                               int64_t V) {
    const Tensor none = tensor_none();
    head_loss(losses, none, gradient_none(), logits, in, wte, targets, V,
              loss_scale_make(1.0f, none));
}

void backend_head_loss_backward(Tensor losses, Tensor din, Gradient dwte, Tensor logits, Tensor in,
                                Tensor wte, Tensor targets, int64_t V, LossScale scale) {
    head_loss(losses, din, dwte, logits, in, wte, targets, V, scale);
}
