// The kernels around matrix products: sums over rows in a fixed order, for bias gradients and the last stage of
// LayerNorm's gradients; accumulation of gradients in the compute dtype; a bias where cuBLASLt has no epilogue for it;
// a bitwise comparison of two results. The partition of a sum depends on its shape alone, so the bits do not depend on
// the GPU. Also checks whether the kernels of this program run on this GPU at all.
#include "llmc/cuda/intrinsics.cuh"

// Memory-bound, no cooperation between threads: any block of a few warps will do.
enum { THREADS = 256 };

// ------------------------------------------------------------------------------------------------------- bias gradient
// In two stages. Stage 1 cuts dout (N,OC) into stripes of columns and parts of rows, one block each, and writes one row
// of sums per part. Stage 2 adds the parts of every column in order, and adds to, or overwrites, the gradient.

// 8 warps per block, 8 loads of 16 bytes per lane in flight: 32 KB per block; 1024 blocks are 6 to 25 per
// multiprocessor. A part has at least 64 rows, one load each.
enum { PART_WARPS = 8, IN_FLIGHT = 8, MIN_PART_ROWS = BIAS_MIN_PART_ROWS, TARGET_BLOCKS = BIAS_TARGET_BLOCKS };
static_assert(MIN_PART_ROWS == PART_WARPS * IN_FLIGHT, "one load each");

static int64_t part_count(int64_t N, int64_t stripes) {
    const int64_t most = ceil_div(N, MIN_PART_ROWS), wanted = stripes < TARGET_BLOCKS ? TARGET_BLOCKS / stripes : 1;
    return wanted < most ? wanted : most;
}

// partials (parts, OC) fp32 = sums over the rows of each part of dout (N,OC); part p has the rows [p, p + 1) *
// part_rows. Block (stripe, part): a lane owns WIDTH adjacent columns of the stripe, a warp every 8th row of the part.
// Each warp sums its rows in registers, then thread t adds the 8 sums of the columns t, t + 256, ... in the order of
// the warps. Bytes: N * OC elements, + 4 * parts * OC (0.3% at N = 65536).
template <class T, int WIDTH>
static __global__ void __launch_bounds__(PART_WARPS *WARP, 4)
    part_sums_kernel(float *partials, const T *dout, int N, int64_t OC, int part_rows) {
    wait_for_the_grid_before();
    __shared__ float sums[PART_WARPS][WARP * WIDTH];
    const int lane = (int)threadIdx.x % WARP, warp = (int)threadIdx.x / WARP;
    const int64_t stripe = (int64_t)blockIdx.x * WARP * WIDTH, column = stripe + lane * WIDTH;
    const int begin = (int)blockIdx.y * part_rows, end = min(N, begin + part_rows);
    float sum[WIDTH] = {};
    for (int row = begin + warp; row < end; row += PART_WARPS * IN_FLIGHT) {
        const T *p = dout + row * OC + column;
        Vector<T, WIDTH> x[IN_FLIGHT]; // 0 outside the part and beyond the columns
        for (int j = 0; j < IN_FLIGHT; j++)
            x[j] = load_or_zero<T, WIDTH>(p + j * PART_WARPS * OC, row + j * PART_WARPS < end && column < OC);
        for (int j = 0; j < IN_FLIGHT; j++) add_to(sum, x[j]);
    }
    for (int k = 0; k < WIDTH; k++) sums[warp][lane * WIDTH + k] = sum[k];
    __syncthreads();
    for (int c = (int)threadIdx.x; c < WARP * WIDTH && stripe + c < OC; c += PART_WARPS * WARP) {
        float total = 0.0f;
        for (int w = 0; w < PART_WARPS; w++) total += sums[w][c];
        partials[blockIdx.y * OC + stripe + c] = total;
    }
}

template <class T, int WIDTH> static int64_t sum_parts(float *partials, Tensor dout, int64_t N, int64_t OC) {
    const int64_t stripes = ceil_div(OC, WARP * WIDTH), part_rows = ceil_div(N, part_count(N, stripes));
    const int64_t parts = ceil_div(N, part_rows); // none is empty
    LAUNCH((part_sums_kernel<T, WIDTH>), dim3((unsigned)stripes, (unsigned)parts), PART_WARPS * WARP, 0,
           cuda_compute_stream())
    (partials, (const T *)dout.data, (int)N, OC, (int)part_rows);
    return parts;
}

template <class T> static int64_t sum_parts_of(float *partials, Tensor dout, int64_t N, int64_t OC) {
    return pack_aligned(dout.data, OC, dout.dtype) ? sum_parts<T, PACK<T>>(partials, dout, N, OC)
                                                   : sum_parts<T, 1>(partials, dout, N, OC);
}

void backend_bias_backward(Tensor dbias, Tensor dout, bool accumulate) {
    const int64_t OC = tensor_numel(dbias), N = tensor_numel(dout) / OC;
    float *partials = (float *)cuda_scratch("bias_backward", cuda_size_bias_gradient(N, OC));
    int64_t parts = 0;
    DISPATCH(dout.dtype, T, parts = sum_parts_of<T>(partials, dout, N, OC));
    cuda_sum_partials(dbias, tensor_none(), partials, parts, accumulate);
}

// 16 warps share the parts of 32 columns, so that even few columns keep enough loads in flight.
enum { SUM_WARPS = 16 };

template <class G> static __device__ void put_gradient(G *gradient, float value, bool accumulate) {
    *gradient = from_float<G>(accumulate ? to_float(*gradient) + value : value);
}

static __device__ void put_gradient_of(DType dtype, void *gradient, int64_t i, float value, bool accumulate) {
    if (dtype == DTYPE_FP32) put_gradient((float *)gradient + i, value, accumulate);
    if (dtype == DTYPE_FP16) put_gradient((fp16 *)gradient + i, value, accumulate);
    if (dtype == DTYPE_BF16) put_gradient((bf16 *)gradient + i, value, accumulate);
}

// Columns [0, n1) of partials (parts,n1+n2) fp32 into first, the others into second. A block has 32 columns, a lane one
// of them; warp w adds the parts w, w + 16, ... in order, warp 0 the 16 sums in order. Bytes: 4 * parts * (n1 + n2), in
// the L2 cache, where stage 1 left them.
static __global__ void __launch_bounds__(SUM_WARPS *WARP)
    sum_partials_kernel(void *first, DType first_dtype, int64_t n1, void *second, DType second_dtype, int64_t n2,
                        const float *partials, int64_t parts, bool accumulate) {
    wait_for_the_grid_before();
    __shared__ float sums[SUM_WARPS][WARP];
    const int lane = (int)threadIdx.x % WARP, warp = (int)threadIdx.x / WARP;
    const int64_t column = (int64_t)blockIdx.x * WARP + lane, columns = n1 + n2;
    float sum = 0.0f;
    for (int64_t part = warp; part < parts; part += SUM_WARPS * IN_FLIGHT) {
        float x[IN_FLIGHT];
        for (int j = 0; j < IN_FLIGHT; j++) {
            const bool is_inside = part + j * SUM_WARPS < parts && column < columns;
            x[j] = is_inside ? partials[(part + j * SUM_WARPS) * columns + column] : 0.0f;
        }
        for (int j = 0; j < IN_FLIGHT; j++) sum += x[j];
    }
    sums[warp][lane] = sum;
    __syncthreads();
    if (warp > 0 || column >= columns) return;
    float total = 0.0f;
    for (int w = 0; w < SUM_WARPS; w++) total += sums[w][lane];
    if (column < n1)
        put_gradient_of(first_dtype, first, column, total, accumulate);
    else
        put_gradient_of(second_dtype, second, column - n1, total, accumulate);
}

void cuda_sum_partials(Tensor first, Tensor second, const float *partials, int64_t parts, bool accumulate) {
    const int64_t n1 = tensor_numel(first), n2 = second.data ? tensor_numel(second) : 0;
    LAUNCH(sum_partials_kernel, (unsigned)ceil_div(n1 + n2, WARP), SUM_WARPS * WARP, 0, cuda_compute_stream())
    (first.data, first.dtype, n1, second.data, second.dtype, n2, partials, parts, accumulate);
}

// ------------------------------------------------------------------------------------------------ gradients of 16 bits
// Gradients accumulated in the compute dtype: a micro-step is added to the sum so far with stochastic rounding.
// Rounding to nearest would lose each addend below half a step of the sum, and after 64 micro-steps in bf16 much of the
// gradient.
//
// The only value that changes between micro-steps, the counter of the random bits, is on the device, so a recorded
// micro-step draws new bits at each replay. Bytes per element: 4 + 2 (+ 2 accumulating) into 16 bits.

enum { NEIGHBOURS = 8 }; // one draw of random bits serves 8 elements

// N elements from e on, a multiple of N.
template <class D, bool ACCUMULATE, int N>
static __device__ __forceinline__ void add_elements(D *dst, const float *src, uint64_t seed, uint64_t stream,
                                                    uint64_t counter, int64_t e) {
    float sum[N];
    to_floats(sum, load_vector<float, N, true>(src + e));
    if (ACCUMULATE) add_to(sum, load_vector<D, N>(dst + e));
    store_vector(dst + e, round_vector<D, N>(sum, seed, stream, counter, (uint64_t)e));
}

// 8 elements per thread; the elements after the last eight, or all of an unaligned tensor, one per thread. items counts
// both.
template <class D, bool ACCUMULATE>
static __global__ void __launch_bounds__(THREADS)
    gradient_add_kernel(D *dst, const float *src, uint64_t seed, uint64_t stream, const StepControl *control,
                        int64_t eights, int64_t items) {
    wait_for_the_grid_before();
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

void backend_gradient_add(Tensor dst, Tensor src, bool accumulate, uint64_t seed, int stream, Tensor control) {
    const uint64_t number = STREAM_GRADIENT + (uint64_t)stream;
    DISPATCH(dst.dtype, D, {
        if (accumulate)
            launch_gradient_add<D, true>(dst, src, seed, number, control);
        else
            launch_gradient_add<D, false>(dst, src, seed, number, control);
    });
}

static __global__ void micro_step_kernel(StepControl *control, uint32_t count) {
    wait_for_the_grid_before();
     control->micro_steps += count; }

void backend_micro_step_count(Tensor control, int64_t count) {
    LAUNCH(micro_step_kernel, 1, 1, 0, cuda_compute_stream())((StepControl *)control.data, (uint32_t)count);
}

// -------------------------------------------------------------------------------------------------- beside the library
// Neither kernel runs in a usual step: cuBLASLt adds biases in its epilogue, and bits are compared only when algorithms
// are chosen.

// out (N,OC), bias (OC). Thread i owns the pack that begins at element WIDTH * i: reads 16 bytes of each, writes 16.
// WIDTH 1 is for rows that are not a multiple of 16 bytes.
template <class T, int WIDTH> static __global__ void add_bias_kernel(T *out, const T *bias, int64_t packs, int64_t OC) {
    wait_for_the_grid_before();
    const int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x;
    if (i >= packs) return;
    T *const o = out + i * WIDTH;
    const T *const b = bias + i * WIDTH % OC;
    float sum[WIDTH];
    to_floats(sum, load_vector<T, WIDTH>(o));
    add_to(sum, load_vector<T, WIDTH>(b));
    store_vector(o, from_floats<T>(sum));
}

template <class T, int WIDTH> static void launch_add_bias(Tensor out, Tensor bias) {
    const int64_t packs = tensor_numel(out) / WIDTH;
    LAUNCH((add_bias_kernel<T, WIDTH>), (unsigned)ceil_div(packs, THREADS), THREADS, 0, cuda_compute_stream())
    ((T *)out.data, (const T *)bias.data, packs, tensor_numel(bias));
}

void cuda_add_bias(Tensor out, Tensor bias) {
    const bool aligned = pack_aligned(out.data, tensor_numel(bias), out.dtype) && (uintptr_t)bias.data % 16 == 0;
    DISPATCH(out.dtype, T, if (aligned) launch_add_bias<T, PACK<T>>(out, bias); else launch_add_bias<T, 1>(out, bias));
}

// Thread i compares words i, i + threads of the grid, ... of a and b (words of 2 bytes, the smallest element).
static __global__ void compare_kernel(unsigned *differ, const uint16_t *a, const uint16_t *b, int64_t words) {
    wait_for_the_grid_before();
    bool same = true;
    for (int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x; i < words; i += (int64_t)gridDim.x * THREADS)
        same = same && a[i] == b[i];
    if (!same) atomicOr(differ, 1u);
}

bool cuda_same_bits(const void *a, const void *b, size_t bytes) {
    unsigned *differ = NULL, answer = 1;
    if (cudaMalloc((void **)&differ, sizeof *differ) != cudaSuccess) {
        (void)cudaGetLastError();
        return false;
    }
    CUDA_CHECK(cudaMemsetAsync(differ, 0, sizeof *differ, cuda_compute_stream()));
    // Eight blocks of 256 threads fill a multiprocessor.
    const int64_t words = (int64_t)(bytes / 2), blocks = ceil_div(words, THREADS),
                  full = 8 * (int64_t)cuda_backend.num_sms;
    LAUNCH(compare_kernel, (unsigned)(blocks < full ? blocks : full), THREADS, 0, cuda_compute_stream())
    (differ, (const uint16_t *)a, (const uint16_t *)b, words);
    CUDA_CHECK(cudaStreamSynchronize(cuda_compute_stream()));
    CUDA_CHECK(cudaMemcpy(&answer, differ, sizeof answer, cudaMemcpyDeviceToHost));
    CUDA_CHECK(cudaFree(differ));
    return answer == 0;
}

// --------------------------------------------------------------------------------------------- the program and the GPU

// The attributes of any kernel show whether this program contains machine code, or PTX that the driver can compile, for
// the current GPU. All .cu files are built for the same architectures.
bool cuda_kernels_fit(int *arch, const char **reason) {
    cudaFuncAttributes attributes;
    const cudaError_t status = cudaFuncGetAttributes(&attributes, (const void *)micro_step_kernel);
    (void)cudaGetLastError();
    *reason = cudaGetErrorString(status);
    *arch = attributes.ptxVersion;
    return status == cudaSuccess;
}
