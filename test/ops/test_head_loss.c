// head_loss_forward, head_loss_backward and sequence_losses against the specification.
#include "test/ops/op_cases.h"

TestFixture test_all = {op_group_setup, op_group_teardown};

// N C V Vp R: one row; R that does not divide N; more rows in a chunk than there are; V = Vp; odd
// C; a vocabulary of 7.
static const HeadLossShape cases[] = {
    {1, 24, 7, 128, 1},    {13, 40, 61, 128, 5}, {33, 64, 200, 256, 33},  {21, 21, 7, 128, 4},
    {10, 48, 128, 128, 3}, {5, 16, 61, 128, 8},  {130, 32, 300, 384, 65},
};
enum { NUM_CASES = sizeof cases / sizeof *cases };

OP_TEST(head_loss_forward_matches) {
    for (int i = 0; i < NUM_CASES; i++) head_loss_forward_case(&cases[i], dtype, 1.0);
}

// Logits of size 60, up to 200 and more: exp overflows in fp32 without the maximum taken out.
OP_TEST(large_logits_do_not_overflow) {
    head_loss_forward_case(&cases[1], dtype, 60.0);
    head_loss_forward_case(&cases[6], dtype, 60.0);
}

OP_TEST(head_loss_backward_matches) {
    for (int i = 0; i < NUM_CASES; i++) {
        for (int flags = 0; flags < 4; flags++) {
            float loss_scale = flags & 2 ? 16.0f : 1.0f;
            head_loss_backward_case(&cases[i], dtype, DTYPE_FP32, flags & 1, loss_scale);
            if (dtype != DTYPE_FP32)
                head_loss_backward_case(&cases[i], dtype, dtype, flags & 1, loss_scale);
        }
    }
}

// Vocabularies of real models, which backends may treat in ways of their own, and one without
// padding.
static const HeadLossShape large[] = {
    {2, 16, 5000, 5120, 2}, {3, 8, 50257, 50304, 2}, {2, 8, 70000, 70016, 2}, {5, 16, 61, 61, 8}};
enum { NUM_LARGE = sizeof large / sizeof *large };

OP_TEST(head_loss_of_large_vocabularies_matches) {
    for (int i = 0; i < NUM_LARGE; i++) {
        head_loss_forward_case(&large[i], dtype, 1.0);
        head_loss_backward_case(&large[i], dtype, DTYPE_FP32, false, 16.0f);
    }
}

static void same_losses(const HeadLossShape *c, DType dtype) {
    HeadLoss h = head_loss_begin(c, dtype, 1.0, "losses of both passes");
    OpTensor din = op_output(dtype, "din", DIMS(c->N, c->C)),
             dwte = op_output(dtype, "dwte", DIMS(c->Vp, c->C));
    OpTensor losses = op_output(DTYPE_FP32, "losses of backward", DIMS(c->N));
    head_loss_forward(h.losses.t, h.logits.t, h.in.t, h.wte.t, h.targets.t, c->V);
    head_loss_backward(losses.t, din.t, gradient_to(dwte.t, false), h.logits.t, h.in.t, h.wte.t,
                       h.targets.t, c->V, loss_scale_make(1.0f, tensor_none()));
    op_check_same_bits(h.losses, losses);
    op_end();
}

OP_TEST(head_loss_forward_and_backward_give_the_same_losses) {
    same_losses(&cases[1], dtype);
    for (int i = 0; i < NUM_LARGE; i++) same_losses(&large[i], dtype);
}

OP_TEST(slices_of_tensors_match) {
    for (int i = 1; i < 4; i++) {
        op_begin_tensors_at(8);
        head_loss_forward_case(&cases[i], dtype, 1.0);
        op_begin_tensors_at(8);
        head_loss_backward_case(&cases[i], dtype, DTYPE_FP32, i % 2, 16.0f);
    }
}

TEST_WITH(sequence_losses_matches, NULL, op_teardown) {
    static const int64_t shapes[][2] = {{1, 1}, {3, 7}, {2, 200}, {5, 1030}};
    for (int i = 0; i < 8; i++) {
        int64_t B = shapes[i / 2][0], T = shapes[i / 2][1];
        bool accumulate = i % 2;
        op_begin((OpsShape){.B = B, .T = T, .C = 16, .NH = 1, .Vp = 128, .num_tensors = 1},
                 "sequence_losses B=%d T=%d accumulate=%d", (int)B, (int)T, accumulate);

        OpTensor losses = op_input(DTYPE_FP32, "losses", DIMS(B, T), 1.0);
        // losses are not negative
        for (int64_t j = 0; j < B * T; j++) losses.v[j] = fabs(losses.v[j]);
        op_upload(&losses);
        OpTensor sums = op_inout(DTYPE_FP32, "sums", DIMS(B), 1.0);
        if (!accumulate) op_poison(sums);

        sequence_losses(sums.t, losses.t, accumulate);
        ref_sequence_losses(sums.v, losses.v, B, T, accumulate);
        op_check(sums, DTYPE_FP32);
        op_end();
    }
}
