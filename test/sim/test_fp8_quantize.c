// The quantisation kernels of llmc/cuda/fp8_quantize.cu where test/ops/test_fp8.c does not look:
// tiles that end anywhere, tensors that begin anywhere, the same bits in any order of blocks and
// threads, what one call leaves for the next. And the numbers of llmc/number.h against NVIDIA's own
// conversions (cuda_fp8.h), which stand for the instructions of a GPU.
#include "test/ops/fp8_case.h"

#include "dev/sim/sim_control.h"
#include "llmc/base/random.h"
#include <cuda_fp8.h>
#include <math.h>

TestFixture test_all = {op_group_setup, op_group_teardown};

static const DType formats[] = {DTYPE_E4M3, DTYPE_E5M2};
static const __nv_fp8_interpretation_t kinds[] = {__NV_E4M3, __NV_E5M2};

static float float_of(uint32_t bits) {
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

// ----------------------------------------------------------------------------------------- numbers

// NVIDIA's conversion saturates inf, ours makes it NaN.
static void check_encode(float x, int f) {
    const uint8_t want =
        isinf(x) ? 0x7F : (uint8_t)__nv_cvt_float_to_fp8(x, __NV_SATFINITE, kinds[f]);
    const uint8_t got = fp8_encode(x, formats[f]);
    if (got != want)
        op_fail("%a to %s: 0x%02X, expected 0x%02X", (double)x, dtype_name(formats[f]), got, want);
}

TEST(codes_are_those_of_nvidias_conversion) {
    for (int f = 0; f < 2; f++) {
        for (uint32_t i = 0; i < 1 << 16; i++) check_encode(float_of(i << 16), f); // every bf16
        for (uint32_t i = 0; i < 1 << 20; i++)
            check_encode(float_of(philox(op_seed(), 5, i).v[0]), f);
    }
}

TEST(values_are_those_of_nvidias_conversion) {
    for (int f = 0; f < 2; f++)
        for (int code = 0; code < 256; code++) {
            const __half_raw half = __nv_cvt_fp8_to_halfraw((__nv_fp8_storage_t)code, kinds[f]);
            const float want = fp16_to_float(half.x), got = fp8_decode((uint8_t)code, formats[f]);
            if (isnan(want) ? !isnan(got) : got != want || signbit(got) != signbit(want))
                op_fail("0x%02X of %s: %g, expected %g", code, dtype_name(formats[f]), (double)got,
                        (double)want);
        }
}

// ------------------------------------------------------------------------------------------- tiles

static void tile_case(DType dtype, int64_t N, int64_t K) {
    const DType format = formats[(N + K) / FP8_MULTIPLE % 2];
    op_begin(fp8_shape(N, K, dtype), "%d x %d", (int)N, (int)K);

    OpTensor in = op_input(dtype, "in", DIMS(N, K), 1.0);
    OpTensor q = codes_output(format, "q", N, K), t = codes_output(format, "transposed", K, N);
    Fp8Slot slot = {0}, got;
    OpTensor slots = slot_tensor("slot", &slot, 1);

    ref_fp8_quantize(codes(q), codes(t), in.v, &slot, N, K, format, FP8_CURRENT);
    fp8_quantize(q.t, t.t, in.t, slots.t, FP8_CURRENT);

    check_codes(q);
    check_codes(t);
    op_read(&got, slots.t);
    if (got.amax != slot.amax || got.scale != slot.scale)
        op_fail("amax %g scale %g", got.amax, got.scale);
    op_end();
}

// A tile has 128 rows and 64 columns, pieces of 16; the last case is more than two tiles in each
// direction.
OP_TEST(tiles_end_at_any_multiple_of_16) {
    static const int64_t sizes[][2] = {{16, 16},  {32, 48},   {128, 64}, {112, 80},
                                       {144, 80}, {112, 272}, {272, 144}};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
        tile_case(dtype, sizes[i][0], sizes[i][1]);
}

// -------------------------------------------------------------------------------- orders and calls

// Digest of all that one quantisation writes, and its amax.
static uint64_t bits_of(const OpTensor *in, float *amax) {
    const int64_t N = in->t.shape[0], K = in->t.shape[1];
    OpTensor q = codes_output(DTYPE_E5M2, "q", N, K),
             transposed = codes_output(DTYPE_E5M2, "transposed", K, N);
    Fp8Slot slot = {0};
    OpTensor slots = slot_tensor("slot", &slot, 1);
    fp8_quantize(q.t, transposed.t, in->t, slots.t, FP8_CURRENT);
    op_read(&slot, slots.t);
    *amax = slot.amax;
    return op_digest(op_digest(op_digest(0, q), transposed), slots);
}

OP_TEST(any_order_of_blocks_and_threads_gives_the_same_bits) {
    enum { N = 400, K = 208 };
    op_begin(fp8_shape(N, K, dtype), "orders");
    const OpTensor in = op_input(dtype, "in", DIMS(N, K), 1.0);
    uint64_t first = 0;
    float amax = 0;

    for (int order = 0; order < 5; order++) {
        sim_set_schedule(order == 0   ? SIM_FORWARD
                         : order == 1 ? SIM_REVERSE
                                      : SIM_RANDOM,
                         (uint64_t)order);
        const uint64_t bits = bits_of(&in, &amax);
        if (order == 0) first = bits;
        if (bits != first) op_fail("order %d: other bits", order);
    }

    sim_set_schedule(SIM_ANY_ORDER, 0);
    double largest = 0.0;
    for (int64_t i = 0; i < N * K; i++) largest = fmax(largest, fabs(in.v[i]));
    assert_true(amax == (float)largest);
    op_end();
}

// The maximum is collected in a place that all calls share.
OP_TEST(a_small_tensor_after_a_large_one_has_its_own_amax) {
    const double magnitudes[] = {100.0, 1.0, NAN, 1.0};
    op_begin(fp8_shape(64, 64, dtype), "large, small");
    for (int i = 0; i < 4; i++) {
        float amax;

        OpTensor in = op_inout(dtype, "in", DIMS(64, 64), 0.01);
        in.v[1234] = -magnitudes[i];
        op_upload(&in);

        bits_of(&in, &amax);
        if (isnan(magnitudes[i]) ? !isnan(amax) : amax != (float)magnitudes[i])
            op_fail("amax %g, expected %g", (double)amax, magnitudes[i]);
    }
    op_end();
}
