// See gemm.h. A is widened to fp32 once, in panels of 8 rows; then, for each block of columns, B is
// widened, tiles of 8 x 4 sums stay in registers over all of k, and the epilogue runs over each
// finished tile. 40 GFLOP/s on one core of an AMD EPYC of 2024; a second thread costs small
// matrices more than it gives large ones.
#include "dev/sim/gemm.h"
#include "dev/sim/runtime.h"
#include "dev/sim/sanitizers.h"
#include <algorithm>
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp8.h>
#include <math.h>
#include <string.h>
#include <vector>

namespace sim {

enum { ROWS = 8, COLUMNS = 4, BLOCK_COLUMNS = 32 };

static float as_float(uint32_t bits) {
    float x;
    memcpy(&x, &bits, 4);
    return x;
}

// Widening is written out, so that the compiler turns it into vector code.
static float widen_bf16(uint16_t bits) { return as_float((uint32_t)bits << 16); }
static float widen_fp16(uint16_t bits) {
    const uint32_t sign = (bits & 0x8000u) << 16, magnitude = (bits & 0x7fffu) << 13;
    const float x = as_float(magnitude) * 0x1p112f; // also right for subnormal numbers
    uint32_t result;
    memcpy(&result, &x, 4);
    return as_float(sign | (magnitude >= 0x7c00u << 13 ? magnitude | 0x7f800000u : result));
}

// The value of each code, from the toolkit's own conversion: not from the project's, which it so
// checks.
struct Fp8Values {
    float of[256];
    explicit Fp8Values(__nv_fp8_interpretation_t kind) {
        for (int code = 0; code < 256; code++)
            of[code] =
                __half2float(__half(__nv_cvt_fp8_to_halfraw((__nv_fp8_storage_t)code, kind)));
    }
};
static const Fp8Values e4m3(__NV_E4M3), e5m2(__NV_E5M2);

static float load(const GemmMatrix &x, int64_t i) {
    if (x.type == CUDA_R_32F) return ((const float *)x.data)[i];
    const uint16_t bits = ((const uint16_t *)x.data)[i];
    return x.type == CUDA_R_16BF ? widen_bf16(bits) : widen_fp16(bits);
}

static void store(const GemmMatrix &x, int64_t i, float value) {
    if (x.type == CUDA_R_32F)
        ((float *)x.data)[i] = value;
    else if (x.type == CUDA_R_16BF)
        ((__nv_bfloat16 *)x.data)[i] = __float2bfloat16_rn(value);
    else
        ((__half *)x.data)[i] = __float2half_rn(value);
}

// to[j * step] = element `first + j` of x, for j < count.
static void widen(float *to, int64_t step, const GemmMatrix &x, int64_t first, int64_t count) {
    const uint16_t *half = (const uint16_t *)x.data + first;
    const uint8_t *codes = (const uint8_t *)x.data + first;
    const float *values = x.type == CUDA_R_8F_E4M3 ? e4m3.of : e5m2.of;
    if (is_fp8(x.type))
        for (int64_t j = 0; j < count; j++) to[j * step] = values[codes[j]];
    else if (x.type == CUDA_R_32F)
        for (int64_t j = 0; j < count; j++) to[j * step] = ((const float *)x.data)[first + j];
    else if (x.type == CUDA_R_16BF)
        for (int64_t j = 0; j < count; j++) to[j * step] = widen_bf16(half[j]);
    else
        for (int64_t j = 0; j < count; j++) to[j * step] = widen_fp16(half[j]);
}

// To TF32: 8 bits of exponent, 10 of mantissa. To nearest, ties away from 0, as cvt.rna.tf32.f32 of
// the PTX ISA rounds, the only conversion from Ampere on. Infinities and NaN stay.
static void round_to_tf32(float *x, int64_t n) {
    for (int64_t i = 0; i < n; i++) {
        uint32_t bits;
        memcpy(&bits, &x[i], 4);
        const bool finite = (bits & 0x7f800000u) != 0x7f800000u;
        x[i] = as_float(finite ? (bits + 0x1000u) & ~0x1fffu : bits);
    }
}

// `count` (at most `size`) lines of length k, from line `first`, as panel[k][size]; the missing
// ones are 0. along_k: the elements of a line stand together in memory; else those of one k.
static void pack(float *panel, int size, const GemmMatrix &x, bool along_k, int64_t first,
                 int64_t count, int64_t k, bool tf32) {
    if (count < size) std::fill(panel, panel + k * size, 0.0f);
    if (along_k)
        for (int64_t i = 0; i < count; i++) widen(panel + i, size, x, (first + i) * x.ld, k);
    else
        for (int64_t p = 0; p < k; p++) widen(panel + p * size, 1, x, first + p * x.ld, count);
    if (tf32 && hardware_numbers()) round_to_tf32(panel, k * size);
}

// The 8 x 4 sums over k of one panel of A and one of B. The panels are our own.
typedef float Vector __attribute__((vector_size(16)));
NOTHING_TO_SEE static void tile(float sums[COLUMNS][ROWS], const float *a, const float *b,
                                int64_t k) {
    Vector sum[COLUMNS][2] = {};
    for (int64_t p = 0; p < k; p++, a += ROWS, b += COLUMNS) {
        Vector low, high;
        memcpy(&low, a, 16);
        memcpy(&high, a + 4, 16);
        for (int j = 0; j < COLUMNS; j++) {
            sum[j][0] += low * b[j];
            sum[j][1] += high * b[j];
        }
    }
    memcpy(sums, sum, sizeof sum);
}

typedef double Wide __attribute__((vector_size(32)));
typedef uint64_t WideBits __attribute__((vector_size(32)));
// The same as a GPU might add them: from the last k to the first, fp32 numbers one by one, others
// in groups of a tensor core's instruction, whose sum is cut off to a float (TF32 half as many as
// of 16 bits: Fasi et al., "Numerical behavior of NVIDIA tensor cores", 2021). A group of fp8
// numbers is cut off to 14 bits before Blackwell; where they are not fast, sums of 128 products are
// added up in fp32.
NOTHING_TO_SEE static void add_groups(Wide sums[COLUMNS][2], const float *a, const float *b,
                                      int64_t from, int64_t to, int64_t count, int kept) {
    const uint64_t mask = ~(uint64_t)0 << (53 - kept);
    Wide sum[COLUMNS][2];
    memcpy(sum, sums, sizeof sum);
    for (int64_t end = to; end > from; end -= count) {
        for (int64_t p = std::max(from, end - count); p < end; p++) {
            Vector left[2];
            memcpy(left, a + p * ROWS, sizeof left);
            for (int j = 0; j < COLUMNS; j++)
                for (int i = 0; i < 2; i++)
                    sum[j][i] +=
                        __builtin_convertvector(left[i], Wide) * (double)b[p * COLUMNS + j];
        }
        for (int j = 0; j < COLUMNS; j++)
            for (int i = 0; i < 2; i++)
                sum[j][i] =
                    kept
                        ? (Wide)((WideBits)sum[j][i] & mask)
                        : __builtin_convertvector(__builtin_convertvector(sum[j][i], Vector), Wide);
    }
    memcpy(sums, sum, sizeof sum);
}
static void hardware_tile(const Gemm &g, float sums[COLUMNS][ROWS], const float *a, const float *b,
                          int64_t k) {
    static const int gpu = device_model().compute_capability;
    const bool fp8 = is_fp8(g.a.type), fp32 = g.a.type == CUDA_R_32F && !g.tf32;
    const int64_t of_16_bits = gpu < 80 ? 4 : gpu < 90 ? 8 : 16;
    const int64_t count = fp32 ? 1 : fp8 ? 32 : g.tf32 ? of_16_bits / 2 : of_16_bits;
    const int64_t promoted = fp8 && !g.fast_sums ? 128 : k;
    for (int i = 0; i < COLUMNS * ROWS; i++) sums[i / ROWS][i % ROWS] = 0;
    for (int64_t end = k; end > 0; end -= promoted) {
        Wide part[COLUMNS][2] = {};
        add_groups(part, a, b, std::max<int64_t>(0, end - promoted), end, count,
                   fp32               ? 0
                   : fp8 && gpu < 100 ? 14
                                      : 24);
        for (int i = 0; i < COLUMNS * ROWS; i++)
            sums[i / ROWS][i % ROWS] += (float)part[i / ROWS][i % ROWS / 4][i % 4];
    }
}

static float gelu(float x) {
    return 0.5f * x * (1.0f + tanhf(0.7978845608f * (x + 0.044715f * x * x * x)));
}
static float gelu_derivative(float x) {
    const float t = tanhf(0.7978845608f * (x + 0.044715f * x * x * x));
    const float inner = 0.7978845608f * (1.0f + 3.0f * 0.044715f * x * x);
    return 0.5f * (1.0f + t) + (1.0f - t * t > 0.0f ? 0.5f * x * (1.0f - t * t) * inner : 0.0f);
}

// Element (i, j) of D from its sum; scale: that of A times that of B.
static void finish(const Gemm &g, float scale, int64_t i, int64_t j, float sum) {
    float z = g.alpha * scale * sum;
    if (g.beta != 0.0f) z += g.beta * load(g.c, i + j * g.c.ld);
    if (g.epilogue == CUBLASLT_EPILOGUE_BIAS || g.epilogue == CUBLASLT_EPILOGUE_GELU_AUX_BIAS)
        z += load(g.bias, i);
    if (g.epilogue == CUBLASLT_EPILOGUE_GELU_AUX_BIAS) {
        store(g.aux, i + j * g.aux.ld, z);
        z = gelu(z);
    }
    if (g.epilogue == CUBLASLT_EPILOGUE_DGELU) z *= gelu_derivative(load(g.aux, i + j * g.aux.ld));
    store(g.d, i + j * g.d.ld, z);
}

// Where part s of k begins.
static int64_t part_begin(const Gemm &g, int s) { return g.k * s / g.splits; }

// Columns [first, first + count) of D. panels: all of A.
static void block_of_columns(const Gemm &g, const float *panels, int64_t first, int64_t count) {
    const int64_t groups = (count + COLUMNS - 1) / COLUMNS;
    const float scale = (g.scale_a ? *g.scale_a : 1.0f) * (g.scale_b ? *g.scale_b : 1.0f);
    std::vector<float> b(groups * COLUMNS * g.k);
    for (int64_t group = 0; group < groups; group++)
        pack(&b[group * COLUMNS * g.k], COLUMNS, g.b, !g.b.transposed, first + group * COLUMNS,
             std::min<int64_t>(COLUMNS, count - group * COLUMNS), g.k, g.tf32);

    for (int64_t i = 0; i < g.m; i += ROWS)
        for (int64_t j = 0; j < count; j += COLUMNS) {
            const int64_t rows = std::min<int64_t>(ROWS, g.m - i),
                          columns = std::min<int64_t>(COLUMNS, count - j);
            float sums[COLUMNS][ROWS];

            for (int s = 0; s < g.splits; s++) {
                const int64_t begin = part_begin(g, s);
                const float *left = panels + i * g.k + begin * ROWS,
                            *right = &b[j * g.k + begin * COLUMNS];
                const int64_t k = part_begin(g, s + 1) - begin;
                if (hardware_numbers())
                    hardware_tile(g, sums, left, right, k);
                else
                    tile(sums, left, right, k);
                for (int64_t column = 0; column < columns && g.splits > 1; column++)
                    memcpy(g.partials + (s * g.n + first + j + column) * g.m + i, sums[column],
                           rows * sizeof(float));
            }

            for (int64_t column = 0; column < columns; column++)
                for (int64_t row = 0; row < rows; row++) {
                    float sum = sums[column][row];
                    if (g.splits > 1) sum = 0.0f;
                    for (int s = 0; s < g.splits && g.splits > 1; s++)
                        sum += g.partials[(s * g.n + first + j + column) * g.m + i + row];
                    finish(g, scale, i + row, first + j + column, sum);
                }
        }
}

void gemm_run(const Gemm &g) {
    const int64_t panels = (g.m + ROWS - 1) / ROWS;
    std::vector<float> a(panels * ROWS * g.k);
    for (int64_t i = 0; i < panels; i++)
        pack(&a[i * ROWS * g.k], ROWS, g.a, g.a.transposed, i * ROWS,
             std::min<int64_t>(ROWS, g.m - i * ROWS), g.k, g.tf32);
    for (int64_t j = 0; j < g.n; j += BLOCK_COLUMNS)
        block_of_columns(g, a.data(), j, std::min<int64_t>(BLOCK_COLUMNS, g.n - j));
}

} // namespace sim
