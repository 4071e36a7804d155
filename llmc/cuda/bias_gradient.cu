// Sums over rows in a fixed order, in two stages: bias gradients, and the second stage for others (bias_gradient.h).
//
// Stage 1 cuts dout (N,OC) into stripes of columns and parts of rows, one block each, and writes one row of sums a
// part. Stage 2 adds the parts of every column in order, and adds to, or overwrites, the gradient. How a sum is cut
// depends on its shape alone, so the bits do not depend on the GPU.
#include "llmc/cuda/bias_gradient.h"
#include "llmc/cuda/elements.cuh"

// ---------------------------------------------------------------------------------------------- stage 1: parts of rows

// 8 warps a block, 8 loads of 16 bytes a lane in flight: 32 KB a block; 1024 blocks are 6 to 25 on every
// multiprocessor. A part is at least 64 rows, one load each.
enum { PART_WARPS = 8, IN_FLIGHT = 8, MIN_PART_ROWS = BIAS_MIN_PART_ROWS, TARGET_BLOCKS = BIAS_TARGET_BLOCKS };
static_assert(MIN_PART_ROWS == PART_WARPS * IN_FLIGHT, "one load each");

static int64_t part_count(int64_t N, int64_t stripes) {
    const int64_t most = ceil_div(N, MIN_PART_ROWS), wanted = stripes < TARGET_BLOCKS ? TARGET_BLOCKS / stripes : 1;
    return wanted < most ? wanted : most;
}

// WIDTH columns of a row: a pack of 16 bytes, or one element, which then is bits.x as a float.
template <class T, int WIDTH> static __device__ __forceinline__ int4 load_columns(const T *p) {
    return WIDTH > 1 ? load_bits(p) : make_int4(__float_as_int(to_float(*p)), 0, 0, 0);
}
template <class T, int WIDTH> static __device__ __forceinline__ void columns_to_floats(float *v, int4 bits) {
    if constexpr (WIDTH > 1)
        bits_to_floats<T>(v, bits);
    else
        v[0] = __int_as_float(bits.x);
}

// partials (parts, OC) fp32 = sums over the rows of each part of dout (N,OC); part p has the rows [p, p + 1) *
// part_rows. Block (stripe, part): a lane owns WIDTH adjacent columns of the stripe, a warp every 8th row of the part.
// Each warp sums its rows in registers, then thread t adds the 8 sums of the columns t, t + 256, ... in the order of
// the warps. Bytes: N * OC elements, + 4 * parts * OC (0.3% at N = 65536).
template <class T, int WIDTH>
static __global__ void __launch_bounds__(PART_WARPS *WARP, 4)
    part_sums_kernel(float *partials, const T *dout, int N, int64_t OC, int part_rows) {
    __shared__ float sums[PART_WARPS][WARP * WIDTH];
    const int lane = (int)threadIdx.x % WARP, warp = (int)threadIdx.x / WARP;
    const int64_t stripe = (int64_t)blockIdx.x * WARP * WIDTH, column = stripe + lane * WIDTH;
    const int begin = (int)blockIdx.y * part_rows, end = min(N, begin + part_rows);
    float sum[WIDTH] = {}, x[WIDTH];
    for (int row = begin + warp; row < end; row += PART_WARPS * IN_FLIGHT) {
        const T *p = dout + row * OC + column;
        int4 bits[IN_FLIGHT]; // outside of the part and beyond the columns: 0
        for (int j = 0; j < IN_FLIGHT; j++) {
            bits[j] = make_int4(0, 0, 0, 0);
            if (row + j * PART_WARPS < end && column < OC) bits[j] = load_columns<T, WIDTH>(p + j * PART_WARPS * OC);
        }
        for (int j = 0; j < IN_FLIGHT; j++) {
            columns_to_floats<T, WIDTH>(x, bits[j]);
            for (int k = 0; k < WIDTH; k++) sum[k] += x[k];
        }
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
    return pack_aligned(dout.data, OC, dout.dtype) ? sum_parts<T, Pack<T>::N>(partials, dout, N, OC)
                                                   : sum_parts<T, 1>(partials, dout, N, OC);
}

void bias_backward(Tensor dbias, Tensor dout, bool accumulate) {
    const char *op = "bias_backward";
    const int64_t OC = tensor_numel(dbias), N = tensor_numel(dout) / OC;
    cuda_check_float(op, dout);
    tensor_check(op, dout, dout.dtype, N * OC);
    check_weight_gradient(op, dbias, dout.dtype, OC);
    float *partials = (float *)cuda_scratch(op, cuda_size_bias_gradient(N, OC));
    int64_t parts = 0;
    DISPATCH(dout.dtype, T, parts = sum_parts_of<T>(partials, dout, N, OC));
    cuda_sum_partials(dbias, tensor_none(), partials, parts, accumulate);
}

// --------------------------------------------------------------------------------------- stage 2: the sum of the parts

// 16 warps share the parts of 32 columns: few columns then still keep enough loads in flight.
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
