// fp8: quantisation bit by bit, products, scales from step to step, against the specification
// (test/reference/fp8.h). The numbers themselves are tested in test/unit/test_number.c, the model
// that is made of these ops in test_fp8_model.c.
#include "dev/sim/sim_control.h"
#include "llmc/base/random.h"
#include "test/ops/fp8_case.h"
#include <math.h>

TestFixture test_all = {op_group_setup, op_group_teardown};

// Multiples of 16, mostly none of 64; more than one block in each direction.
static const struct Size {
    int64_t N, K;
} sizes[] = {{16, 16}, {48, 80}, {176, 336}, {64, 128}, {272, 208}};
enum { NUM_SIZES = sizeof sizes / sizeof *sizes };
static const DType formats[] = {DTYPE_E4M3, DTYPE_E5M2};

static void need_fp8(void) {
    if (device_facts()->supports[DTYPE_E4M3]) return;
    print_message("the device has no fp8\n");
    skip();
}

static void begin(int64_t N, int64_t K, DType dtype, const char *what, DType format) {
    op_begin(fp8_shape(N, K, dtype), "%s %s N=%d K=%d", what, dtype_name(format), (int)N, (int)K);
}

// -------------------------------------------------------------------------------- values and slots

static bool same_float(float a, float b) { return a == b || (isnan(a) && isnan(b)); }

static void check_slots(OpTensor x, const Fp8Slot *want, int n) {
    Fp8Slot got[8];
    op_read(got, x.t);
    for (int i = 0; i < n; i++)
        if (!same_float(got[i].scale, want[i].scale) ||
            !same_float(got[i].inverse, want[i].inverse) || !same_float(got[i].amax, want[i].amax))
            op_fail("%s %d: scale %g amax %g, expected scale %g amax %g", x.t.name, i,
                    (double)got[i].scale, (double)got[i].amax, (double)want[i].scale,
                    (double)want[i].amax);
}

// Values of every size: N(0,1) times 2^-24 .. 1, so that many become subnormal numbers of the
// format and some zeros.
static OpTensor spread_input(DType dtype, int64_t N, int64_t K, double size) {
    OpTensor x = op_input(dtype, "in", DIMS(N, K), 1.0);
    for (int64_t i = 0; i < N * K; i++) {
        const int shift = (int)(philox(op_seed(), 77, (uint64_t)i).v[0] % 25);
        x.v[i] *= size * ldexp(1.0, i % 3 ? 0 : -shift);
    }
    op_upload(&x);
    return x;
}

static Fp8Slot slot_of(double amax, DType format) {
    Fp8Slot s;
    fp8_slot_record(&s, (float)amax, format);
    return s;
}

// ------------------------------------------------------------------------------------ quantisation

// outputs: 1 q, 2 transposed, 3 both.
static void quantize_case(DType dtype, DType format, struct Size s, double size, Fp8Slot slot,
                          Fp8Scaling scaling, int outputs) {
    static const char *const names[] = {"current scaling", "the scale that is there"};
    begin(s.N, s.K, dtype, names[scaling], format);
    OpTensor in = spread_input(dtype, s.N, s.K, size), slots = slot_tensor("slot", &slot, 1);
    OpTensor q = codes_output(format, "q", s.N, s.K),
             transposed = codes_output(format, "transposed", s.K, s.N);
    fp8_quantize(outputs & 1 ? q.t : tensor_none(), outputs & 2 ? transposed.t : tensor_none(),
                 in.t, slots.t, scaling);
    ref_fp8_quantize(codes(q), codes(transposed), in.v, &slot, s.N, s.K, format, scaling);
    if (outputs & 1) check_codes(q);
    if (outputs & 2) check_codes(transposed);
    check_slots(slots, &slot, 1);
    op_end();
}

OP_TEST(a_tensor_is_quantised_by_its_own_amax_bit_for_bit) {
    need_fp8();
    const Fp8Slot none = {0};
    for (int f = 0; f < 2; f++)
        for (int i = 0; i < NUM_SIZES; i++)
            for (int outputs = 1; outputs <= 3; outputs++)
                quantize_case(dtype, formats[f], sizes[i], i == 1 ? 3e-4 : 1.0, none, FP8_CURRENT,
                              outputs);
}

// All numbers of 16 bits; of fp32, where rounding turns: the middle between two neighbours of the
// format and the numbers beside it, then bits of every kind.
static void hard_bits(void *bits, int64_t n, DType dtype, DType format) {
    for (int64_t i = 0; i < n; i++) {
        if (dtype != DTYPE_FP32) {
            ((uint16_t *)bits)[i] = (uint16_t)i;
            continue;
        }

        const uint8_t code = (uint8_t)(i / 3 % 0x7A + (i / 3 / 0x7A % 2) * 0x80);
        const float here = (float)ref_fp8_value(code, format),
                    next = (float)ref_fp8_value(code + 1, format);
        const float middle = 0.5f * (here + next),
                    beside = nextafterf(middle, i % 3 == 0 ? here : next);
        const uint32_t any = (uint32_t)i * 2654435761u;
        float x = i % 3 == 1 ? middle : beside;

        if (i >= n / 2) memcpy(&x, &any, sizeof x);
        ((float *)bits)[i] = x;
    }
}

OP_TEST(every_number_is_rounded_to_the_nearest_even_and_saturates) {
    need_fp8();
    enum { N = 256 };
    Fp8Slot one = {.scale = 1.0f, .inverse = 1.0f};
    for (int f = 0; f < 2; f++) {
        begin(N, N, dtype, "hard numbers", formats[f]);
        OpTensor in = op_output(dtype, "in", DIMS(N, N)), slots = slot_tensor("slot", &one, 1);
        OpTensor q = codes_output(formats[f], "q", N, N),
                 transposed = codes_output(formats[f], "transposed", N, N);

        hard_bits(in.v, N * N, dtype, formats[f]);
        op_write(in.t, in.v);

        fp8_quantize(q.t, transposed.t, in.t, slots.t, FP8_KEEP);
        ref_fp8_quantize(codes(q), codes(transposed), op_download(in), &one, N, N, formats[f],
                         FP8_KEEP);

        check_codes(q);
        check_codes(transposed);
        op_end();
    }
}

OP_TEST(kept_scales_give_the_same_values_once_more) {
    need_fp8();
    for (int f = 0; f < 2; f++) {
        quantize_case(dtype, formats[f], sizes[2], 1.0, slot_of(1.5, formats[f]), FP8_KEEP, 2);
    }
}

OP_TEST(zeros_are_quantised_with_scale_1) {
    need_fp8();
    const Fp8Slot none = {0};
    for (int f = 0; f < 2; f++) {
        quantize_case(dtype, formats[f], sizes[1], 0.0, none, FP8_CURRENT, 3);
        quantize_case(dtype, formats[f], sizes[1], 0.0, slot_of(3.0, formats[f]), FP8_CURRENT, 3);
    }
}

// Magnitudes at the ends of what the scale can do: 2^-100 is beyond it, and so is 2^100. (fp16 has
// neither.)
OP_TEST(very_small_and_very_large_tensors_keep_a_finite_scale) {
    need_fp8();
    const Fp8Slot none = {0};
    if (dtype == DTYPE_FP16) {
        print_message("fp16 has no numbers so small and so large\n");
        skip();
    }
    for (int f = 0; f < 2; f++) {
        quantize_case(dtype, formats[f], sizes[1], 0x1p-100, none, FP8_CURRENT, 3);
        quantize_case(dtype, formats[f], sizes[1], 0x1p100, none, FP8_CURRENT, 3);
    }
}

// The finite check of the step must find them: they come out of the product as NaN, in the row that
// has them.
OP_TEST(inf_and_nan_come_out_of_a_product_as_nan) {
    need_fp8();
    enum { N = 48, K = 80, OC = 32 };
    const double bad[] = {INFINITY, -INFINITY, NAN};

    for (int i = 0; i < 6; i++) {
        const DType format = formats[i % 2];
        Fp8Slot slot = {0};
        begin(N, K, dtype, "inf or nan", format);
        OpTensor in = op_input(dtype, "in", DIMS(N, K), 1.0), slots = slot_tensor("slot", &slot, 1);
        OpTensor q = codes_output(format, "q", N, K),
                 out = op_output(DTYPE_FP32, "out", DIMS(N, OC));
        OpTensor b = codes_output(DTYPE_E4M3, "b", OC, K);
        in.v[17 * K + 5] = bad[i / 2];
        op_upload(&in);

        fp8_quantize(q.t, tensor_none(), in.t, slots.t, FP8_CURRENT);
        ref_fp8_quantize(codes(q), NULL, in.v, &slot, N, K, format, FP8_CURRENT);
        check_codes(q);
        check_slots(slots, &slot, 1);

        memset(codes(b), 0x38, OC * K); // 1.0
        op_write(b.t, b.v);
        fp8_matmul(out.t, tensor_none(), q.t, slots.t, b.t, slots.t, tensor_none());

        const double *got = op_download(out);
        for (int64_t j = 0; j < N * OC; j++)
            if (isnan(got[j]) != (j / OC == 17))
                op_fail("element %d of the product is %g", (int)j, got[j]);
        op_end();
    }
}

// ---------------------------------------------------------------------------------------- products

// Products of two fp8 numbers are exact in fp32, and so is the power of two by which the sum is
// scaled: what is wrong is the summation in fp32 and the rounding of the result, as in every other
// matmul, so the tolerance is that of its output. Tensor cores cut fp8 products to about 14 bits
// below the largest of a sum (DeepSeek-AI, "DeepSeek-V3 Technical Report", 2024, section 3.3.2): on
// a GPU it is never under that of fp16, which has 11.
static DType precision_of(DType out) {
    const bool exact = strcmp(device_facts()->backend, "cpu") == 0 ||
                       (sim_set_schedule && !getenv("SIM_NUMERICS"));
    return !exact && out == DTYPE_FP32 ? DTYPE_FP16 : out;
}

enum { STORED, ACCUMULATED, ONTO_ANOTHER }; // where a product goes
struct Product {
    DType a, b, out;
    bool with_bias;
    int onto;
};

static void matmul_case(DType dtype, struct Product p, int64_t M, int64_t N, int64_t K) {
    const int64_t widest = N > K ? N : K;
    begin(M > widest ? M : widest, widest, dtype, p.onto ? "product that is added" : "product",
          p.a);

    Fp8Slot a_slot, b_slot;
    OpTensor a = operand(p.a, "a", M, K, 3e-3, &a_slot),
             b = operand(p.b, "b", N, K, 40.0 / sqrt((double)K), &b_slot);
    OpTensor a_slots = slot_tensor("a_slot", &a_slot, 1),
             b_slots = slot_tensor("b_slot", &b_slot, 1);
    OpTensor bias = op_input(dtype, "bias", DIMS(N), 0.1),
             out = op_inout(p.out, "out", DIMS(M, N), 0.1);
    OpTensor residual = op_input(p.out, "residual", DIMS(M, N), 0.1);
    const OpTensor *added = p.onto == ACCUMULATED    ? &out
                            : p.onto == ONTO_ANOTHER ? &residual
                                                     : NULL;

    if (p.onto != ACCUMULATED) op_poison(out);
    fp8_matmul(out.t, added ? added->t : tensor_none(), a.t, a_slots.t, b.t, b_slots.t,
               p.with_bias ? bias.t : tensor_none());
    const RefFp8 left = {codes(a), p.a, &a_slot}, right = {codes(b), p.b, &b_slot};
    ref_fp8_matmul(out.v, added ? added->v : NULL, left, right, p.with_bias ? bias.v : NULL, M, N,
                   K);

    op_check(out, precision_of(p.out));
    check_codes(a), check_codes(b);
    check_slots(a_slots, &a_slot, 1), check_slots(b_slots, &b_slot, 1);
    op_end();
}

OP_TEST(products_of_fp8_tensors_match) {
    need_fp8();
    static const int64_t shapes[][3] = {
        {16, 16, 16}, {48, 80, 112}, {176, 48, 208}, {272, 144, 96}, {64, 192, 64}};
    const struct Product products[] = {{DTYPE_E4M3, DTYPE_E4M3, dtype, true, STORED},
                                       {DTYPE_E4M3, DTYPE_E4M3, dtype, true, ONTO_ANOTHER},
                                       {DTYPE_E4M3, DTYPE_E4M3, dtype, false, STORED},
                                       {DTYPE_E5M2, DTYPE_E4M3, dtype, false, STORED},
                                       {DTYPE_E5M2, DTYPE_E4M3, DTYPE_FP32, false, STORED},
                                       {DTYPE_E5M2, DTYPE_E4M3, DTYPE_FP32, false, ACCUMULATED},
                                       {DTYPE_E5M2, DTYPE_E4M3, dtype, false, ACCUMULATED},
                                       {DTYPE_E4M3, DTYPE_E5M2, dtype, false, STORED}};

    for (size_t s = 0; s < sizeof shapes / sizeof *shapes; s++)
        for (size_t p = 0; p < sizeof products / sizeof *products; p++)
            matmul_case(dtype, products[p], shapes[s][0], shapes[s][1], shapes[s][2]);
}

// 256 codes as a (16,16), times a matrix of ones on the diagonal: the values themselves, without
// any error.
OP_TEST_BF16(every_code_means_its_number) {
    need_fp8();
    enum { N = 16 };
    const Fp8Slot half = {.scale = 0.5f, .inverse = 2.0f},
                  eight = {.scale = 8.0f, .inverse = 0.125f};

    for (int f = 0; f < 2; f++) {
        begin(N, N, DTYPE_FP32, "all codes", formats[f]);
        OpTensor a = codes_output(formats[f], "a", N, N),
                 identity = codes_output(DTYPE_E4M3, "identity", N, N);
        OpTensor a_slot = slot_tensor("a_slot", &half, 1),
                 b_slot = slot_tensor("b_slot", &eight, 1);
        OpTensor out = op_output(DTYPE_FP32, "out", DIMS(N, N));

        for (int i = 0; i < N * N; i++) {
            const bool finite = isfinite(ref_fp8_value((uint8_t)i, formats[f]));
            codes(a)[i] = finite ? (uint8_t)i : 0; // 0 * NaN would be seen in the whole row
            codes(identity)[i] = i / N == i % N ? 0x38 : 0;
        }
        op_write(a.t, a.v), op_write(identity.t, identity.v);

        fp8_matmul(out.t, tensor_none(), a.t, a_slot.t, identity.t, b_slot.t, tensor_none());
        const double *got = op_download(out);
        for (int i = 0; i < N * N; i++) {
            const double want = ref_fp8_value(codes(a)[i], formats[f]) / 4.0;
            if (got[i] != want) op_fail("code 0x%02X gives %g, expected %g", i, got[i], want);
        }
        op_end();
    }
}

// More than a block of rows, of columns and of depth of any backend.
OP_TEST(a_large_product_matches_and_has_the_same_bits_twice) {
    need_fp8();
    enum { M = 1104, N = 1616, K = 16 };
    Fp8Slot a_slot, b_slot;
    begin(N, N, dtype, "a large product", DTYPE_E4M3);

    OpTensor a = operand(DTYPE_E4M3, "a", M, K, 1.0, &a_slot),
             b = operand(DTYPE_E4M3, "b", N, K, 1.0, &b_slot);
    OpTensor a_slots = slot_tensor("a_slot", &a_slot, 1),
             b_slots = slot_tensor("b_slot", &b_slot, 1);
    OpTensor bias = op_input(dtype, "bias", DIMS(N), 1.0),
             out = op_output(dtype, "out", DIMS(M, N));
    OpTensor again = op_output(dtype, "again", DIMS(M, N));
    OpTensor residual = op_input(dtype, "residual", DIMS(M, N), 1.0);

    fp8_matmul(out.t, residual.t, a.t, a_slots.t, b.t, b_slots.t, bias.t);
    fp8_matmul(again.t, residual.t, a.t, a_slots.t, b.t, b_slots.t, bias.t);
    ref_fp8_matmul(out.v, residual.v, (RefFp8){codes(a), DTYPE_E4M3, &a_slot},
                   (RefFp8){codes(b), DTYPE_E4M3, &b_slot}, bias.v, M, N, K);

    op_check(out, precision_of(dtype));
    op_check_same_bits(out, again);
    op_end();
}

// ---------------------------------------------------------------------- what a product does not do

// Rows by columns: with a bias gradient the columns are summed, which cuts them into packs and rows
// into parts.
static void gelu_backward_case(DType dtype, DType grad, int64_t N, int64_t OC, bool with_bias,
                               bool accumulate) {
    begin(N, OC, dtype, with_bias ? "gelu_backward with dbias" : "gelu_backward", DTYPE_E5M2);
    OpTensor dout = op_inout(dtype, "dout", DIMS(N, OC), 1.0),
             pre = op_input(dtype, "pre", DIMS(N, OC), 2.0);
    OpTensor dpre = op_output(dtype, "dpre", DIMS(N, OC)),
             without = op_output(dtype, "dpre without", DIMS(N, OC));
    OpTensor dbias = op_inout(grad, "dbias", DIMS(OC), 3.0),
             same = op_inout(grad, "dbias in place", DIMS(OC), 0.0);
    if (!accumulate) op_poison(dbias);
    gelu_backward(without.t, gradient_none(), dout.t, pre.t);
    gelu_backward(dpre.t, with_bias ? gradient_to(dbias.t, accumulate) : gradient_none(), dout.t,
                  pre.t);
    gelu_backward(dout.t, with_bias ? gradient_to(same.t, false) : gradient_none(), dout.t, pre.t);
    ref_gelu_backward(dpre.v, dout.v, pre.v, N * OC);
    op_check(dpre, dtype);
    op_check_same_bits(dpre, dout);
    op_check_same_bits(dpre, without);
    if (with_bias) {
        ref_bias_backward(dbias.v, op_download(dpre), N, OC, accumulate);
        op_check_terms(dbias, grad, DTYPE_FP32, sqrt((double)N));
    }
    op_end();
}

OP_TEST(gelu_backward_matches_also_in_place) {
    static const int64_t shapes[][2] = {{16, 1},    {70000, 1}, {1, 7},    {33, 100},
                                        {300, 272}, {65, 768},  {1100, 16}};
    for (int i = 0; i < 7; i++)
        for (int flags = 0; flags < 4; flags++) {
            if (i < 2 && flags) continue;
            gelu_backward_case(dtype, flags & 1 ? dtype : DTYPE_FP32, shapes[i][0], shapes[i][1],
                               i >= 2, flags & 2);
        }
}

static void bias_case(DType dtype, DType grad, struct Size s, bool accumulate) {
    begin(s.N, s.K, dtype, "bias_backward", DTYPE_E5M2);
    OpTensor dout = op_input(dtype, "dout", DIMS(s.N, s.K), 1.0),
             dbias = op_inout(grad, "dbias", DIMS(s.K), 3.0);
    if (!accumulate) op_poison(dbias);
    bias_backward(gradient_to(dbias.t, accumulate), dout.t);
    ref_bias_backward(dbias.v, dout.v, s.N, s.K, accumulate);
    op_check(dbias, grad);
    op_end();
}

OP_TEST(bias_backward_matches) {
    const struct Size odd[] = {{1, 7}, {33, 100}, {300, 272}};
    for (int i = 0; i < 3; i++) {
        for (int accumulate = 0; accumulate < 2; accumulate++) {
            bias_case(dtype, DTYPE_FP32, odd[i], accumulate);
            bias_case(dtype, dtype, odd[i], accumulate);
        }
    }
}
