// attention_forward and attention_backward against the specification.
#include "test/ops/op_cases.h"

TestFixture test_all = {op_group_setup, op_group_teardown};

// B T C NH NKV: one token; one head; head sizes 5, 7, 8, 12, 16, 32, 40, 64, 128; T beyond one
// block and not a multiple. Then what a GPU kernel cuts differently: head sizes from 48 to 128 that
// do or do not fill its tiles, 256, which fills several; T one below, at and one above tiles of 64
// and 128; three blocks of 128; more heads than run at once.
static const HeadsShape cases[] = {
    {1, 1, 16, 1, 1},    {2, 7, 24, 3, 3},   {1, 65, 40, 1, 1},   {2, 130, 64, 2, 2},
    {1, 200, 48, 4, 4},  {3, 33, 21, 3, 3},  {1, 5, 5, 1, 1},     {1, 130, 64, 1, 1},
    {1, 70, 128, 1, 1},  {2, 64, 64, 4, 4},  {1, 129, 192, 3, 3}, {1, 63, 96, 2, 2},
    {1, 64, 144, 2, 2},  {2, 65, 80, 1, 1},  {1, 127, 96, 1, 1},  {1, 128, 104, 1, 1},
    {1, 129, 120, 1, 1}, {1, 128, 64, 1, 1}, {1, 257, 128, 2, 2}, {1, 300, 64, 1, 1},
    {2, 140, 56, 7, 7},  {1, 66, 256, 1, 1}, {1, 129, 14, 2, 2},
};
enum { NUM_CASES = sizeof cases / sizeof *cases };

OP_TEST(attention_forward_matches) {
    for (int i = 0; i < NUM_CASES; i++) attention_forward_case(&cases[i], dtype, 1.0, 1.0);
}

// Scores of size 5^2 * sqrt(HS) / sqrt(HS) = 25, up to 100: exp overflows in fp32 without the
// running maximum. A relative error of 2^-24 in a score of 100 is 6e-6 in its exponential, so the
// fp32 tolerance is doubled.
OP_TEST(large_scores_do_not_overflow) {
    attention_forward_case(&cases[3], dtype, 5.0, 2.0);
    attention_forward_case(&cases[8], dtype, 5.0, 2.0);
}

// Bias gradients in both dtypes, overwritten and added to.
OP_TEST(attention_backward_matches) {
    for (int i = 0; i < NUM_CASES; i++)
        attention_backward_case(&cases[i], dtype, i % 4 < 2 ? DTYPE_FP32 : dtype, i % 2 == 0);
}

// The same with fewer heads of k and v: 2, 3 and 8 heads of q for each, one for all; one token; T
// of several blocks of keys and no multiple of anything; more heads of k and v than threads; head
// sizes of 64 and 128, and of one that no tensor core takes.
static const HeadsShape grouped[] = {
    {1, 1, 16, 2, 1},   {2, 7, 24, 4, 2},   {1, 65, 40, 8, 1},
    {2, 130, 96, 6, 2}, {1, 200, 64, 4, 2}, {2, 129, 256, 4, 2},
    {3, 33, 60, 12, 4}, {1, 70, 256, 2, 1}, {1, 257, 256, 4, 2},
};
enum { NUM_GROUPED = sizeof grouped / sizeof *grouped };

OP_TEST(attention_with_shared_keys_and_values_matches) {
    for (int i = 0; i < NUM_GROUPED; i++) {
        attention_forward_case(&grouped[i], dtype, 1.0, 1.0);
        attention_backward_case(&grouped[i], dtype, DTYPE_FP32, i % 2 == 0);
    }
}

// Twice the same inputs, into memory that held something else.
OP_TEST(attention_gives_the_same_bits_again) {
    const HeadsShape *c = &(const HeadsShape){2, 150, 192, 3, 3};
    attention_begin(c, dtype, "attention");
    OpTensor qkv = op_input(dtype, "qkv", DIMS(c->B, c->T, 3 * c->C), 1.0);
    OpTensor dout = op_input(dtype, "dout", DIMS(c->B, c->T, c->C), 1.0);
    OpTensor out[2], lse[2], dqkv[2];

    for (int i = 0; i < 2; i++) {
        out[i] = op_output(dtype, i ? "the second out" : "out", DIMS(c->B, c->T, c->C));
        lse[i] = op_output(DTYPE_FP32, i ? "the second lse" : "lse", DIMS(c->B, c->NH, c->T));
        dqkv[i] = op_output(dtype, i ? "the second dqkv" : "dqkv", DIMS(c->B, c->T, 3 * c->C));
        attention_forward(out[i].t, lse[i].t, qkv.t, heads_of((int)c->NH, (int)c->NH));
        attention_backward(dqkv[i].t, dout.t, out[i].t, lse[i].t, qkv.t,
                           heads_of((int)c->NH, (int)c->NH), NULL);
    }

    op_check_same_bits(out[0], out[1]);
    op_check_same_bits(lse[0], lse[1]);
    op_check_same_bits(dqkv[0], dqkv[1]);
    op_end();
}
