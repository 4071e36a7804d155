// batch_unpack, and the embedding with its norm and their gradients, against the specification.
#include "test/ops/op_cases.h"

TestFixture test_all = {op_group_setup, op_group_teardown};

// B T C V Vp maxT: one token; rows that are no multiple of 8 and a vocabulary of 7 (every token
// repeated); odd C; more rows than one block; rows longer than one block; the same token
// everywhere, 9,000 times; large vocabularies; odd C and so few tokens that their runs cross
// blocks.
static const EmbeddingShape cases[] = {
    {1, 1, 24, 7, 128, 1},      {3, 7, 40, 7, 128, 9},        {2, 65, 16, 200, 256, 128},
    {5, 3, 21, 61, 128, 3},     {1, 200, 48, 7, 128, 200},    {2, 65, 2080, 5, 128, 65},
    {9, 1000, 8, 1, 128, 1000}, {6, 300, 8, 1000, 1024, 300}, {2, 35, 8, 100000, 100096, 40},
    {3, 70, 37, 3, 128, 70},
};
enum { NUM_CASES = sizeof cases / sizeof *cases };

OP_TEST(embedding_forward_matches) {
    for (int i = 0; i < NUM_CASES; i++) embedding_forward_case(&cases[i], dtype);
}

OP_TEST(embedding_backward_matches) {
    for (int i = 0; i < NUM_CASES; i++) {
        for (int accumulate = 0; accumulate <= 1; accumulate++) {
            embedding_backward_case(&cases[i], dtype, DTYPE_FP32, true, accumulate);
            if (dtype != DTYPE_FP32)
                embedding_backward_case(&cases[i], dtype, dtype, true, accumulate);
        }
    }
}

// The embedding of a model with RoPE and a head of its own.
OP_TEST(embeddings_without_positions_or_a_tied_head_match) {
    for (int i = 0; i < 12; i++) {
        EmbeddingShape c = cases[i % 4];
        if (i % 3) c.maxT = 0;
        const bool tied = i % 2;
        if (!tied || i % 3) embedding_forward_case(&c, dtype);
        embedding_backward_case(&c, dtype, i < 6 ? DTYPE_FP32 : dtype, tied, i % 4 < 2);
    }
}

OP_TEST(the_norm_of_embeddings_and_its_gradient_match) {
    static const double scales[] = {1.0, 0.02, 2e-4}; // eps: 1e-7, 3e-4 and 2.5 of the squares
    for (int i = 0; i < NUM_CASES; i++)
        for (int backward = 0; backward <= 1; backward++)
            for (int k = 0; k < 3; k++)
                if (i == 0 || k == (i + backward) % 3)
                    embedding_norm_case(&cases[i], dtype, scales[k], backward);
}

OP_TEST(slices_of_tensors_match) {
    for (int i = 1; i < 4; i++) {
        for (int backward = 0; backward <= 1; backward++) {
            op_begin_tensors_at(8);
            embedding_norm_case(&cases[i], dtype, 0.02, backward);
        }
        op_begin_tensors_at(8);
        embedding_forward_case(&cases[i], dtype);
        op_begin_tensors_at(8);
        embedding_backward_case(&cases[i], dtype, i == 2 ? DTYPE_FP32 : dtype, true, i % 2);
    }
}

// Tokens cross as u16, or as i32 for vocabularies beyond 65,536; both are values up to the largest.
static void unpack_case(DType from) {
    enum { B = 3, T = 13 };
    op_begin((OpsShape){.B = B, .T = T, .C = 16, .NH = 1, .Vp = 128, .num_tensors = 1},
             "batch_unpack of %s", dtype_name(from));
    int32_t values[B * (T + 1)], inputs[B * T], targets[B * T], got[B * T];
    uint16_t narrow[B * (T + 1)];
    for (int i = 0; i < B * (T + 1); i++) {
        values[i] = i == 0 ? (from == DTYPE_U16 ? 65535 : 2000000000) : 997 * i;
        narrow[i] = (uint16_t)values[i];
    }

    OpTensor windows = op_output(from, "windows", DIMS(B, T + 1));
    OpTensor in = op_output(DTYPE_I32, "inputs", DIMS(B, T)),
             target = op_output(DTYPE_I32, "targets", DIMS(B, T));
    op_write(windows.t, from == DTYPE_U16 ? (const void *)narrow : (const void *)values);

    batch_unpack(in.t, target.t, windows.t);
    ref_batch_unpack(inputs, targets, values, B, T);
    op_read(got, in.t);
    assert_memory_equal(got, inputs, sizeof got);
    op_read(got, target.t);
    assert_memory_equal(got, targets, sizeof got);

    op_end();
}

TEST_WITH(batch_unpack_shifts_the_targets_by_one, NULL, op_teardown) {
    unpack_case(DTYPE_U16);
    unpack_case(DTYPE_I32);
}
