// The kernels around matrix products: bias gradients, which are sums over rows in a fixed order, on
// the way through the activation's derivative where that is a kernel; accumulation of gradients in
// the compute dtype; a bias where cuBLASLt has no epilogue for it; sums of our own to compare a
// product with. The partition of a sum depends on its shape alone, so the bits do not depend on the
// GPU. Also checks whether the kernels of this program run on this GPU at all.
#include "llmc/base/random.h"
#include "llmc/cuda/gemm.h"
#include "llmc/cuda/intrinsics.cuh"
#include <math.h>

// Memory-bound, no cooperation between threads: any block of a few warps will do.
enum { THREADS = 256 };

// ----------------------------------------------------------------------------------- bias gradient
// dout (N,OC) is cut into stripes of columns and parts of rows, a block each, which
// writes a row of sums. The block of a stripe that finishes last adds the parts of every column in
// order, and adds to, or overwrites, the gradient.

// 8 warps per block, 8 loads of 16 bytes per lane in flight: 32 KB per block; 1024 blocks are 6 to
// 25 per multiprocessor. A part has at least 64 rows, one load each.
enum {
    PART_WARPS = 8,
    IN_FLIGHT = 8,
    MIN_PART_ROWS = BIAS_MIN_PART_ROWS,
    TARGET_BLOCKS = BIAS_TARGET_BLOCKS
};
static_assert(MIN_PART_ROWS == PART_WARPS * IN_FLIGHT, "one load each");

enum { MAX_STRIPES = 4096 }; // of a launch: 1M columns in packs, 128K one by one
static __device__ unsigned tickets[MAX_STRIPES]; // zero when a kernel begins and when it ends

template <class F> constexpr bool HAS_ACTIVATION = true;
template <> constexpr bool HAS_ACTIVATION<void> = false;

// dbias (OC) = or += the sums of the columns of dout (N,OC); unless F is void, of dpre = dout *
// F'(pre), which it writes, too; dpre may be dout. partials (parts, OC) fp32: of the rows [p, p +
// 1) * part_rows, part p. Block (stripe, part): a lane owns WIDTH adjacent columns of the stripe, a
// warp every 8th row of the part. Each warp sums its rows in registers, then thread t adds the 8
// sums of the columns t, t + 256, ... in the order of the warps. The last block of a stripe adds
// its parts, 0.1 MB at most: thread t the same columns. Bytes: N * OC elements (with F 3 N * OC), +
// 4 * parts * OC (0.3% at N = 65536) twice.
template <class T, int WIDTH, class F>
static __global__ void __launch_bounds__(PART_WARPS *WARP, HAS_ACTIVATION<F> ? 3 : 4)
    bias_backward_kernel(void *dbias, DType dtype, bool add, float *partials, T *dpre,
                         const T *dout, const T *pre, int N, int64_t OC, int part_rows) {
    wait_for_the_grid_before();
    constexpr int LOADS = HAS_ACTIVATION<F> ? IN_FLIGHT / 2 : IN_FLIGHT; // of each tensor
    __shared__ float sums[PART_WARPS][WARP * WIDTH];
    const int lane = (int)threadIdx.x % WARP, warp = (int)threadIdx.x / WARP;
    const int64_t stripe = (int64_t)blockIdx.x * WARP * WIDTH, column = stripe + lane * WIDTH;
    const int part = (int)(gridDim.y - 1 - blockIdx.y); // as block_from_last
    const int begin = part * part_rows, end = min(N, begin + part_rows);
    float sum[WIDTH] = {};
    for (int row = begin + warp; row < end; row += PART_WARPS * LOADS) {
        Vector<T, WIDTH> d[LOADS], x[LOADS]; // 0 outside the part and beyond the columns
        const auto is_inside = [=](int j) { return row + j * PART_WARPS < end && column < OC; };
        const auto place = [=](int j) { return (row + j * PART_WARPS) * OC + column; };
        for (int j = 0; j < LOADS; j++) {
            d[j] = load_or_zero<T, WIDTH>(dout + place(j), is_inside(j));
            if (HAS_ACTIVATION<F>)
                x[j] = load_or_zero<T, WIDTH, true>(pre + place(j), is_inside(j));
        }
        for (int j = 0; j < LOADS; j++) {
            if constexpr (HAS_ACTIVATION<F>) {
                float gradient[WIDTH], v[WIDTH];
                to_floats(gradient, d[j]);
                to_floats(v, x[j]);
                for (int k = 0; k < WIDTH; k++) gradient[k] *= F::derivative(v[k]);
                d[j] = from_floats<T>(gradient);
                if (is_inside(j)) store_vector(dpre + place(j), d[j]);
            }
            add_to(sum, d[j]);
        }
    }
    for (int k = 0; k < WIDTH; k++) sums[warp][lane * WIDTH + k] = sum[k];
    __syncthreads();
    for (int c = (int)threadIdx.x; c < WARP * WIDTH && stripe + c < OC; c += PART_WARPS * WARP) {
        float total = 0.0f;
        for (int w = 0; w < PART_WARPS; w++) total += sums[w][c];
        partials[part * OC + stripe + c] = total;
    }
    if (!finishes_last(&tickets[blockIdx.x], (int)gridDim.y)) return;
    for (int c = (int)threadIdx.x; c < WARP * WIDTH && stripe + c < OC; c += PART_WARPS * WARP) {
        float total[1];
        add_rows<1>(total, partials + stripe + c, (int)gridDim.y, OC);
        put_gradient_of(dtype, dbias, stripe + c, total[0], add);
    }
}

template <class F>
static void bias_backward_of(Tensor dpre, Gradient dbias, Tensor dout, Tensor pre) {
    const int64_t OC = tensor_numel(dbias.to), N = tensor_numel(dout) / OC;
    const bool packs = pack_aligned(dout.data, OC, dout.dtype) &&
                       (!HAS_ACTIVATION<F> || (pack_aligned(dpre.data, OC, dout.dtype) &&
                                               pack_aligned(pre.data, OC, dout.dtype)));
    float *partials = (float *)cuda_scratch("bias_backward", cuda_size_bias_gradient(N, OC));
    DISPATCH_PACKS(dout.dtype, packs, T, WIDTH, {
        const int64_t stripes = ceil_div(OC, WARP * WIDTH),
                      wanted = max_i64(1, TARGET_BLOCKS / stripes);
        const int64_t part_rows = ceil_div(N, min_i64(wanted, ceil_div(N, MIN_PART_ROWS)));
        const int64_t parts = ceil_div(N, part_rows); // none is empty
        REQUIRE(stripes <= MAX_STRIPES, "bias_backward: %lld columns", (long long)OC);
        LAUNCH((bias_backward_kernel<T, WIDTH, F>), dim3((unsigned)stripes, (unsigned)parts),
               PART_WARPS * WARP, 0, cuda_compute_stream())
        (dbias.to.data, dbias.to.dtype, dbias.add, partials, (T *)dpre.data, (const T *)dout.data,
         (const T *)pre.data, (int)N, OC, (int)part_rows);
    });
}

void backend_bias_backward(Gradient dbias, Tensor dout) {
    bias_backward_of<void>(tensor_none(), dbias, dout, tensor_none());
}

void cuda_gelu_bias_backward(Tensor dpre, Gradient dbias, Tensor dout, Tensor pre) {
    bias_backward_of<Gelu>(dpre, dbias, dout, pre);
}

void cuda_relu2_bias_backward(Tensor dpre, Gradient dbias, Tensor dout, Tensor pre) {
    bias_backward_of<Relu2>(dpre, dbias, dout, pre);
}

// ---------------------------------------------------------------------------- gradients of 16 bits
// Gradients accumulated in the compute dtype: a micro-step is added to the sum
// so far with stochastic rounding. Rounding to nearest would lose each addend below half a step of
// the sum, and after 64 micro-steps in bf16 much of the gradient.
//
// The only value that changes between micro-steps, the counter of the random bits, is on the
// device, so a recorded micro-step draws new bits at each replay. Bytes per element: 4 + 2 (+ 2
// accumulating) into 16 bits.

enum { NEIGHBOURS = 8 }; // one draw of random bits serves 8 elements

// N elements from e on, a multiple of N.
template <class D, bool ACCUMULATE, int N>
static __device__ __forceinline__ void add_elements(D *dst, const float *src, uint64_t seed,
                                                    uint64_t stream, uint64_t counter, int64_t e) {
    float sum[N];
    to_floats(sum, load_vector<float, N, true>(src + e));
    if (ACCUMULATE) add_to(sum, load_vector<D, N>(dst + e));
    store_vector(dst + e, round_vector<D, N>(sum, seed, stream, counter, (uint64_t)e));
}

// 8 elements per thread; the elements after the last eight, or all of an unaligned tensor, one per
// thread. items counts both.
template <class D, bool ACCUMULATE>
static __global__ void __launch_bounds__(THREADS)
    gradient_add_kernel(D *dst, const float *src, uint64_t seed, uint64_t stream,
                        const StepControl *control, int64_t eights, int64_t items) {
    wait_for_the_grid_before();
    const uint64_t counter = (uint64_t)control->micro_steps << 32;
    const int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x;
    if (i < eights)
        add_elements<D, ACCUMULATE, NEIGHBOURS>(dst, src, seed, stream, counter, i * NEIGHBOURS);
    else if (i < items)
        add_elements<D, ACCUMULATE, 1>(dst, src, seed, stream, counter,
                                       eights * NEIGHBOURS + (i - eights));
}

void backend_gradient_add(Gradient dst, Tensor src, uint64_t seed, int stream, Tensor control) {
    const uint64_t number = STREAM_GRADIENT + (uint64_t)stream;
    const int64_t n = tensor_numel(dst.to);
    int64_t eights = 0;
    if (((uintptr_t)dst.to.data | (uintptr_t)src.data) % 16 == 0) eights = n / NEIGHBOURS;
    const int64_t items = eights + n - eights * NEIGHBOURS;
    DISPATCH(dst.to.dtype, D, {
        auto *gradient_add_of = gradient_add_kernel<D, false>;
        if (dst.add) gradient_add_of = gradient_add_kernel<D, true>;
        LAUNCH(gradient_add_of, (unsigned)ceil_div(items, THREADS), THREADS, 0,
               cuda_compute_stream())
        ((D *)dst.to.data, (const float *)src.data, seed, number, (const StepControl *)control.data,
         eights, items);
    });
}

static __global__ void micro_step_kernel(StepControl *control, uint32_t count) {
    wait_for_the_grid_before();
    control->micro_steps += count;
}

void backend_micro_step_count(Tensor control, int64_t count) {
    LAUNCH(micro_step_kernel, 1, 1, 0, cuda_compute_stream())
    ((StepControl *)control.data, (uint32_t)count);
}

// ------------------------------------------------------------------------ additions to the library
// Neither kernel runs in a usual step: cuBLASLt adds biases in its
// epilogue, and sums are compared only when an algorithm was chosen.

// out (N,OC), bias (OC). Thread i owns the pack that begins at element WIDTH * i: reads 16 bytes of
// each, writes 16. WIDTH 1 is for rows that are not a multiple of 16 bytes.
template <class T, int WIDTH>
static __global__ void add_bias_kernel(T *out, const T *bias, int64_t packs, int64_t OC) {
    wait_for_the_grid_before();
    const int64_t i = block_from_last() * THREADS + threadIdx.x;
    if (i >= packs) return;
    T *const o = out + i * WIDTH;
    const T *const b = bias + i * WIDTH % OC;
    float sum[WIDTH];
    to_floats(sum, load_vector<T, WIDTH>(o));
    add_to(sum, load_vector<T, WIDTH>(b));
    store_vector(o, from_floats<T>(sum));
}

void cuda_add_bias(Tensor out, Tensor bias) {
    const int64_t OC = tensor_numel(bias);
    DISPATCH_PACKS(out.dtype,
                   pack_aligned(out.data, OC, out.dtype) && (uintptr_t)bias.data % 16 == 0, T,
                   WIDTH, {
                       const int64_t packs = tensor_numel(out) / WIDTH;
                       LAUNCH((add_bias_kernel<T, WIDTH>), (unsigned)ceil_div(packs, THREADS),
                              THREADS, 0, cuda_compute_stream())
                       ((T *)out.data, (const T *)bias.data, packs, OC);
                   });
}

static __device__ float element_of(DType dtype, const void *x, int64_t i) {
    if (dtype == DTYPE_FP32) return ((const float *)x)[i];
    if (dtype == DTYPE_FP16) return to_float(((const fp16 *)x)[i]);
    if (dtype == DTYPE_BF16) return to_float(((const bf16 *)x)[i]);
    return fp8_decode(((const uint8_t *)x)[i], dtype);
}

// Block (x, y), one warp: one element. Lane t adds the products t, t + 32, ... of its sum.
static __global__ void __launch_bounds__(WARP) gemm_slice_kernel(GemmElement *values, Gemm g) {
    wait_for_the_grid_before();
    const int64_t i = (g.m - 1) * blockIdx.x / (GEMM_SLICE - 1),
                  j = (g.n - 1) * blockIdx.y / (GEMM_SLICE - 1);

    float scale = g.alpha;
    if (g.scale_a) scale *= *g.scale_a * *g.scale_b;
    float sum = 0.0f, squares = 0.0f;

    for (int64_t p = threadIdx.x; p < g.k; p += WARP) {
        const float a = element_of(g.in_a, g.a, g.transpose_a ? i * g.k + p : p * g.m + i);
        const float product =
            scale * a * element_of(g.in_b, g.b, g.transpose_b ? p * g.n + j : j * g.k + p);
        sum += product;
        squares += product * product;
    }

    sum = warp_sum(sum);
    squares = warp_sum(squares);
    if (threadIdx.x > 0) return;

    const int64_t at = j * g.m + i;
    if (g.c) sum += g.beta * element_of(g.out, g.c, at);
    if (g.bias) sum += element_of(g.out, g.bias, i);

    GemmElement e = {sum, element_of(g.out, g.d, at), 0.0f, 0.0f, sqrtf(squares)};
    if (g.epilogue == GEMM_DGELU) e.expected = sum * gelu_derivative(element_of(g.out, g.aux, at));
    if (g.epilogue == GEMM_GELU_AUX_BIAS) {
        e.expected = gelu(sum);
        e.expected_aux = sum;
        e.got_aux = element_of(g.out, g.aux, at);
    }
    values[blockIdx.y * GEMM_SLICE + blockIdx.x] = e;
}

void cuda_gemm_slice(GemmElement *values, const Gemm *g) {
    LAUNCH(gemm_slice_kernel, dim3(GEMM_SLICE, GEMM_SLICE), WARP, 0, cuda_compute_stream())
    (values, *g);
}

// ------------------------------------------------------------------------- the program and the GPU

// The attributes of any kernel show whether this program contains machine code, or PTX that the
// driver can compile, for the current GPU. All .cu files are built for the same architectures.
bool cuda_kernels_fit(int *arch, const char **reason) {
    cudaFuncAttributes attributes;
    const cudaError_t status = cudaFuncGetAttributes(&attributes, (const void *)micro_step_kernel);
    (void)cudaGetLastError();
    *reason = cudaGetErrorString(status);
    *arch = attributes.ptxVersion;
    return status == cudaSuccess;
}
