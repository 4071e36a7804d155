// fp8 on a CPU, which has no instructions for it: numbers are rounded to fp8 and packed as a GPU
// does, and products are bf16 products of the same numbers. That is exact: a power of two times an
// fp8 number is a bf16 number (Fp8Slot), so operands are widened to their true values and the
// product needs no scaling. Owns nothing: operands are widened into the workspace.
#include "llmc/base/arithmetic.h"
#include "llmc/cpu/cpu.h"
#include "llmc/cpu/matmul.h"
#include "llmc/cpu/tile_matmul.h"

#include <string.h>

// Runs the statement with the constant F = DTYPE_E4M3 or DTYPE_E5M2, according to format.
#define WITH_FORMAT(F, format, ...)                                                                \
    do {                                                                                           \
        if ((format) == DTYPE_E4M3) {                                                              \
            const DType F = DTYPE_E4M3;                                                            \
            __VA_ARGS__;                                                                           \
        } else {                                                                                   \
            const DType F = DTYPE_E5M2;                                                            \
            __VA_ARGS__;                                                                           \
        }                                                                                          \
    } while (0)

// ------------------------------------------------------------------------------------- the numbers

static ALWAYS_INLINE uint32_t power_of_two_bits(int exponent) {
    return (uint32_t)(127 + exponent) << 23;
}

// fp8_encode of each lane.
static ALWAYS_INLINE VU fp8_encode_lanes(V x, DType F) {
    const uint32_t m = (uint32_t)fp8_layout(F).mantissa, bias = (uint32_t)fp8_layout(F).bias,
                   dropped = 23 - m;
    const VU largest = (VU)vsplat(fp8_largest(F));
    const VU magnitude = (VU)x & 0x7FFFFFFFu;
    const VU not_finite = vless_bits(vsplat_bits(0x7F7FFFFFu), magnitude);
    const VU in_range = vless_bits(magnitude, largest),
             size = (magnitude & in_range) | (largest & ~in_range);
    const VU normal = ((size + ((1u << (dropped - 1)) - 1u) + (size >> dropped & 1u)) >> dropped) -
                      ((127u - bias) << m);
    // Added to a number whose last bit is that of the smallest subnormal, the sum is rounded to a
    // multiple of it.
    const uint32_t ruler = power_of_two_bits((int)(24 - bias - m));
    const VU subnormal = (VU)((V)size + (V)vsplat_bits(ruler)) - ruler;
    const VU below = vless_bits(size, vsplat_bits(power_of_two_bits(1 - (int)bias)));
    const VU code = (subnormal & below) | (normal & ~below) | ((VU)x >> 24 & 0x80u);
    return (not_finite & 0x7Fu) | (code & ~not_finite);
}

// fp8_decode of each lane.
static ALWAYS_INLINE V fp8_decode_lanes(VU code, DType F) {
    const uint32_t m = (uint32_t)fp8_layout(F).mantissa, bias = (uint32_t)fp8_layout(F).bias;
    const VU bits = code & 0x7Fu;
    // A subnormal is built as a normal number of the lowest exponent; then the value of the hidden
    // bit is subtracted.
    const VU subnormal = vless_bits(bits, vsplat_bits(1u << m));
    const VU size = (bits << (23 - m)) + ((127u - bias) << 23) + (subnormal & (1u << 23));
    const V value = (V)size - (V)(subnormal & power_of_two_bits(1 - (int)bias));
    const VU special = vless_bits(vsplat_bits((uint32_t)fp8_layout(F).largest), bits);
    const VU special_bits = special & (F == DTYPE_E4M3 ? 0x7FC00000u : 0x7F800000u);
    return (V)((VU)value | special_bits | (code & 0x80u) << 24);
}

// ------------------------------------------------------------------------------------ quantisation

// Compared as bits: magnitudes order as the numbers do, and NaN is greater than inf.
static float fp8_amax(Tensor in) {
    const int64_t n = tensor_numel(in);
    const void *x = in.data;
    uint32_t bits = 0;
#pragma omp parallel for schedule(static) reduction(max : bits)
    for (int64_t begin = 0; begin < n; begin += TASK_ELEMENTS) {
        VU largest = {0};
        WITH_DTYPE(E, in.dtype, {
            EACH_LANES(i, k, task_end(begin, n) - begin, {
                const VU size = (VU)vload_first(k, x, begin + i, E) & 0x7FFFFFFFu;
                const VU less = vless_bits(largest, size);
                largest = (size & less) | (largest & ~less);
            });
        });
        for (int i = 0; i < LANES; i++)
            if (largest[i] > bits) bits = largest[i];
    }
    float amax;
    memcpy(&amax, &bits, sizeof amax);
    return amax;
}

typedef struct {
    uint8_t *q, *transposed; // NULL: not wanted
    const void *in;
    int64_t N, K;
    float scale;
} Quantisation;

// Rows [row, row + LANES), all columns.
static ALWAYS_INLINE void fp8_quantize_rows(const Quantisation *a, int64_t row, DType E, DType F) {
    for (int64_t k = 0; k < a->K; k += LANES) {
        VU block[LANES];
        for (int i = 0; i < LANES; i++)
            block[i] = fp8_encode_lanes(vload(a->in, (row + i) * a->K + k, E) * a->scale, F);
        for (int i = 0; a->q && i < LANES; i++)
            vstore_first_u8(LANES, a->q + (row + i) * a->K + k, (VI)block[i]);
        if (!a->transposed) continue;
        transpose_square(block);
        for (int i = 0; i < LANES; i++)
            vstore_first_u8(LANES, a->transposed + (k + i) * a->N + row, (VI)block[i]);
    }
}

// A task is 64 rows, a cache line of each row of the transposed tensor; the line of a column of
// tiles is still in the cache when the next rows write to it.
void backend_fp8_quantize(Tensor q, Tensor transposed, Tensor in, Tensor slot, Fp8Scaling scaling) {
    enum { TASK_ROWS = 64 };
    const DType format = q.data ? q.dtype : transposed.dtype;
    Fp8Slot *s = slot.data;
    const int64_t K = tensor_cols(in), N = tensor_rows(in);
    if (scaling != FP8_KEEP) fp8_slot_record(s, fp8_amax(in), format);
    const Quantisation a = {q.data, transposed.data, in.data, N, K, s->scale};
#pragma omp parallel for schedule(static)
    for (int64_t row = 0; row < N; row += TASK_ROWS)
        for (int64_t r = row; r < N && r < row + TASK_ROWS; r += LANES)
            WITH_DTYPE(E, in.dtype, WITH_FORMAT(F, format, fp8_quantize_rows(&a, r, E, F)));
}

// ---------------------------------------------------------------------------------------- products

// Rows [first, first + rows) of t with their true values, as an operand of dtype E at `out`.
static Matrix fp8_widen(void *out, DType dtype, Tensor t, const Fp8Slot *slot, int64_t first,
                        int64_t rows) {
    const int64_t K = tensor_cols(t), n = rows * K;
    const uint8_t *codes = (const uint8_t *)t.data + first * K;
    const float inverse = slot->inverse;
#pragma omp parallel for schedule(static)
    for (int64_t begin = 0; begin < n; begin += TASK_ELEMENTS)
        WITH_DTYPE(
            E, dtype, WITH_FORMAT(F, t.dtype, {
                for (int64_t i = begin; i < task_end(begin, n); i += LANES)
                    vstore(out, i,
                           fp8_decode_lanes((VU)vload_first_u8(LANES, codes + i), F) * inverse, E);
            }));
    return (Matrix){out, dtype, K, 1};
}

// The product is cut into blocks so that the widened operands stay small: max rows of a and of b at
// a time. gemm does not split blocks of this size.
enum { ROWS_A = 1024, ROWS_B = 1536 };

static int64_t fp8_operand_bytes(int64_t rows, int64_t K, DType dtype) {
    return round_up(rows * K * (int64_t)dtype_size(dtype), 64);
}

int64_t cpu_fp8_workspace(OpsShape shape) {
    if (!shape.fp8) return 0;
    const int64_t tokens = shape.B * shape.T, widest = ops_widest(shape),
                  longest = max_i64(tokens, widest);
    return fp8_operand_bytes(min_i64(longest, ROWS_A), longest, shape.dtype) +
           fp8_operand_bytes(min_i64(widest, ROWS_B), longest, shape.dtype);
}

void backend_fp8_matmul(Tensor out, Tensor added, Tensor a, Tensor a_slot, Tensor b, Tensor b_slot,
                        Tensor bias) {
    const int64_t M = tensor_rows(a), K = tensor_cols(a), N = tensor_rows(b);
    const Fp8Slot *sa = a_slot.data, *sb = b_slot.data;

    const int64_t rows_a = min_i64(M, ROWS_A), rows_b = min_i64(N, ROWS_B);
    const DType E = bias.data ? bias.dtype : DTYPE_BF16; // gemm takes a bias of the operands' dtype
    const int64_t bytes_a = fp8_operand_bytes(rows_a, K, E);
    char *wide_a = cpu_scratch("fp8_matmul", bytes_a + fp8_operand_bytes(rows_b, K, E)),
         *wide_b = wide_a + bytes_a;

    const Matrix dst = matrix_of(out, N);
    if (added.data && added.data != out.data) backend_tensor_cast(out, added);

    for (int64_t i = 0; i < M; i += rows_a) {
        const int64_t m = min_i64(M - i, rows_a);
        const Matrix left = fp8_widen(wide_a, E, a, sa, i, m);
        for (int64_t j = 0; j < N; j += rows_b) {
            const int64_t n = min_i64(N - j, rows_b);
            const Matrix right = matrix_transposed(fp8_widen(wide_b, E, b, sb, j, n));
            char *bias_part = bias.data ? (char *)bias.data + j * (int64_t)dtype_size(E) : NULL;
            gemm(m, n, K, matrix_at(dst, i, j), left, right, bias_part, added.data != NULL);
        }
    }
}
