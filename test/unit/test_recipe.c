// The dial against figures by hand: rows of GPT-3's table, and nanochat's d12.
#include "llmc/train/recipe.h"
#include "test/fixture.h"
#include "test/unit/plan_case.h"

static ModelConfig shape(const char *descriptor) { return model_of(descriptor, 1, 64).config; }

TEST(rows_of_gpt_3_come_out_exactly) {
    const struct {
        const char *descriptor;
        double batch, rate;
    } rows[] = {
        {"gpt3:c768", 524288, 6e-4},     {"d12", 524288, 6e-4},
        {"gpt3:c1024", 524288, 3e-4},    {"d24", 524288, 3e-4},
        {"gpt3:c1536", 524288, 2.5e-4},  {"gpt3:c2048", 1048576, 2e-4},
        {"gpt3:c2560", 1048576, 1.6e-4}, {"gpt3:c4096", 2097152, 1.2e-4},
        {"gpt3:c5120", 2097152, 1e-4},   {"gpt3:c12288", 3355443.2, 6e-5},
    };

    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        const ModelConfig c = shape(rows[i].descriptor);
        assert_true(recipe_batch(&c, OPTIMIZER_ADAMW, 0, 0) == rows[i].batch);
        assert_true(recipe_learning_rate(&c, OPTIMIZER_ADAMW, 524288) == rows[i].rate);
    }
}

TEST(between_the_rows_of_gpt_3_logarithms_are_straight) {
    // 36 blocks of 1280: 707.8M in blocks, between 679.5M (0.5M tokens, 2.5e-4) and 1208.0M (1M,
    // 2e-4): ln(707.8/679.5) / ln(1208/679.5) = 0.0709; 2.5e-4 * 0.8^0.0709 = 2.461e-4; 2^19.0709
    ModelConfig c = shape("d36");
    assert_near("blocks", recipe_block_parameters(&c), 12.0 * 36 * 1280 * 1280, 1e-12);
    assert_near("batch", recipe_batch(&c, OPTIMIZER_ADAMW, 0, 0), 524288 * 1.0504, 1e-4);
    assert_true(recipe_learning_rate(&c, OPTIMIZER_ADAMW, 524288) == 2.46e-4);

    // Half as many logarithms: 64 times fewer parameters in blocks, 6e-4 * 64^(1/6) = 1.2e-3; 2^19
    // * 64^-0.383.
    c = shape("L=3,C=192,NH=3");
    assert_near("blocks", recipe_block_parameters(&c), 12.0 * 12 * 768 * 768 / 64, 1e-12);
    assert_true(recipe_learning_rate(&c, OPTIMIZER_ADAMW, 524288) == 1.2e-3);
    // 524288 * 2^(-6 * 0.383)
    assert_near("batch", recipe_batch(&c, OPTIMIZER_ADAMW, 0, 0), 106611.2, 1e-5);

    // The ratio of the optimizers' rates is that of doc/optimizers.md at every size: 1.2e-4 where
    // AdamW has 6e-4.
    assert_true(recipe_learning_rate(&c, OPTIMIZER_LION, 524288) == 2.4e-4);
    c = shape("L=120,C=12288,NH=96"); // beyond the last row
    assert_true(recipe_learning_rate(&c, OPTIMIZER_ADAMW, 524288) == 6e-5);
}

TEST(muon_has_nanochats_rules) {
    // nanochat's d12: blocks 84.93M, head 32768 * 768 = 25.17M: 12 * 110.1M = 1.3212B tokens, 2^19
    // a step.
    ModelConfig c = shape("d12,V=32768");
    const double N = 84934656 + 25165824, D = 12 * N;

    assert_true(recipe_ratio(OPTIMIZER_MUON) == 12);
    assert_true(recipe_parameters(&c) == N);
    assert_true(recipe_batch(&c, OPTIMIZER_MUON, D, 12) == 524288);

    // 8 times the tokens: 2^19 * 8^0.383 = 2^20.149; an eighth: 2^17.851
    assert_near("8 D", recipe_batch(&c, OPTIMIZER_MUON, 8 * D, 12), 524288 * 2.21760, 1e-5);
    assert_near("D / 8", recipe_batch(&c, OPTIMIZER_MUON, D / 8, 12), 524288 / 2.21760, 1e-5);

    // 0.025 / (0.2 * 27.7128) = 0.004511; at 2^20 tokens sqrt(2) of that; at 2^14 the same
    assert_true(recipe_learning_rate(&c, OPTIMIZER_MUON, 524288) == 0.00451);
    assert_true(recipe_learning_rate(&c, OPTIMIZER_MUON, 1048576) == 0.00638);
    assert_true(recipe_learning_rate(&c, OPTIMIZER_MUON, 16384) == 0.00451);
    assert_true(recipe_embedding_rate(&c, 524288) == 0.008);
    assert_true(recipe_vector_rate(524288) == 0.015 && recipe_vector_rate(1048576) == 0.0212);

    // 2520 steps of 2^19: 3.5 / (0.00451 * 2520) = 0.308
    assert_true(recipe_weight_decay(OPTIMIZER_MUON, 0.00451, 2520) == 0.308);
    assert_true(recipe_weight_decay(OPTIMIZER_MUON, 0.00451, 40) == 1);
    assert_true(recipe_weight_decay(OPTIMIZER_ADAMW, 6e-4, 40) == 0.1);

    c = shape("L=6,C=256"); // of the ladder, where 1e-2 was better than 5e-3: 0.025 / (0.2 * 16) =
                            // 0.00781
    assert_true(recipe_learning_rate(&c, OPTIMIZER_MUON, 16384) == 0.00781);
    assert_true(recipe_embedding_rate(&c, 16384) == 0.0139); // 0.008 sqrt(3)

    c = shape("d48"); // 0.025 / 8 at 2^20: 0.003125 * 1.414
    assert_true(recipe_learning_rate(&c, OPTIMIZER_MUON, 1048576) == 0.00442);
}

// 124M has 50257 tokens and no row that pads them to 50304, no positions, no vectors.
TEST(adamw_counts_what_muon_counts_20_times) {
    const ModelConfig c = shape("d12");
    assert_true(recipe_ratio(OPTIMIZER_ADAMW) == 20);
    assert_true(recipe_parameters(&c) == 12.0 * 12 * 768 * 768 + 50257.0 * 768);
}

TEST(a_step_is_a_multiple_of_its_parts) {
    assert_int_equal(recipe_step_windows(0x1p19, 1024, 1, 64), 512);
    assert_int_equal(recipe_step_windows(6e5, 1024, 1, 0), 512);     // 2^19.19
    assert_int_equal(recipe_step_windows(0x1p19, 1024, 1, 12), 516); // 43 of 12: 42.67
    assert_int_equal(recipe_step_windows(0x1p19, 1024, 4, 12), 528); // 11 of 48: 10.67
    assert_int_equal(recipe_step_windows(0x1p19, 1000, 1, 0), 512);  // 524.3
    // 3 groups of 128: 170.7 is 2^7.4
    assert_int_equal(recipe_step_windows(0x1p19, 1024, 3, 0), 384);
    // at least one micro-batch of each
    assert_int_equal(recipe_step_windows(0x1p14, 1024, 8, 64), 512);
    assert_int_equal(recipe_step_windows(0x1p10, 1024, 8, 0), 8);
}

TEST(a_line_names_the_option_the_number_and_the_rule) {
    const ModelConfig c = shape("d12");
    char buf[RECIPE_TEXT];

    assert_string_equal(recipe_line(RECIPE_BATCH, 1048576, &c, OPTIMIZER_MUON, buf),
                        "-d 1048576: 2^19 (D / D_ref)^0.383, to a power of two (nanochat; "
                        "exponent: arXiv 2505.13738)");
    assert_string_equal(
        recipe_line(RECIPE_RATE, 6e-4, &c, OPTIMIZER_ADAMW, buf),
        "-l 0.0006: GPT-3's table 2.1; 6e-4 (N / 85M)^(-1/6) below 85M; N = 84.93M in blocks");
    assert_string_equal(recipe_line(RECIPE_TOKENS, 2470640640, &c, OPTIMIZER_ADAMW, buf),
                        "--tokens 2470640640: 20 for each of 123.5M matrices of blocks and head "
                        "(Hoffmann et al., 2022; --ratio "
                        "changes it)");
}
