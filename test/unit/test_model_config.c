// Model descriptors: what they stand for, and what is refused.
#include "llmc/model/parameters.h"
#include "llmc/model/recompute.h"
#include "test/test.h"

#include <math.h>

static ModelConfig parsed(const char *descriptor) {
    ModelConfig c;
    Error err;
    if (!model_config_parse(&c, descriptor, &err)) fail_msg("%s: %s", descriptor, err.text);
    return c;
}

TEST(presets_have_the_published_parameter_counts) {
    const struct {
        const char *name;
        double millions; // of REFERENCE: padded vocabulary of 50,304
    } sizes[] = {{"d12", 124.475904}, {"d24", 354.87}, {"d36", 774.09}, {"d48", 1557.69}};
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        ModelConfig c = parsed(sizes[i].name);
        assert_int_equal(c.V, 0);
        model_config_set_vocab(&c, GPT2_VOCAB);
        assert_int_equal(c.Vp, 50304);
        assert_true(fabs((double)parameter_total(&c) / 1e6 - sizes[i].millions) < 0.006); // given to two decimals
    }
}

TEST(a_free_shape_takes_every_part_and_pads_the_vocabulary) {
    ModelConfig c = parsed("L=6,C=384,NH=3,V=257,T=96");
    assert_int_equal(c.L, 6);
    assert_int_equal(c.C, 384);
    assert_int_equal(c.NH, 3);
    assert_int_equal(c.V, 257);
    assert_int_equal(c.Vp, 384);
    assert_int_equal(c.max_T, 96);
}

TEST(a_preset_may_be_changed_part_by_part) {
    ModelConfig c = parsed("d24,V=1000,T=2048");
    assert_int_equal(c.L, 24);
    assert_int_equal(c.NH, 16);
    assert_int_equal(c.max_T, 2048);
    assert_int_equal(c.Vp, 1024);
    c = parsed("gpt3:c1536");
    assert_int_equal(c.max_T, 2048);
    assert_int_equal(c.NH, 16);
}

TEST(heads_default_to_64_channels_each) {
    assert_int_equal(parsed("L=2,C=256").NH, 4);
    assert_int_equal(parsed("L=2,C=100").NH, 1);
}

TEST(wrong_descriptors_are_refused_with_a_message) {
    const char *wrong[] = {"",        "d13",        "gpt2",          "L=0",
                           "L=",      "L=x",        "L=2,",          "C=64,NH=5",
                           "L=-1",    "L=2,Q=3",    "V=99999999999", "C=99999999999999999999",
                           "d12,d24", "L=1e3",      "T=2000000",     "L= 3",
                           "L=1,L=2", "d12,T=8,T=8"};
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        ModelConfig c;
        Error err = {""};
        if (model_config_parse(&c, wrong[i], &err)) fail_msg("'%s' was taken", wrong[i]);
        assert_true(strlen(err.text) > 10);
    }
}

TEST(paths_are_no_descriptors) {
    assert_true(model_config_is_descriptor("d12"));
    assert_true(model_config_is_descriptor("d12,V=5"));
    assert_true(model_config_is_descriptor("L=3"));
    assert_true(model_config_is_descriptor("gpt3:c768"));
    assert_false(model_config_is_descriptor("out/step_00000010"));
    assert_false(model_config_is_descriptor("gpt2_124M.bin"));
    assert_false(model_config_is_descriptor("gpt2"));
    assert_false(model_config_is_descriptor("./L=3"));
}

TEST(flops_are_those_of_the_stated_formulas) {
    ModelConfig c = parsed("d12");
    model_config_set_vocab(&c, GPT2_VOCAB);
    // The figures of the published formulas at 124M, T = 1024, in MFLOP a token, given to one decimal.
    assert_true(fabs(flops_per_token_exact(&c, 1024) / 1e6 - 798.0) < 0.1);
    assert_true(fabs(flops_per_token_llmc(&c, 1024) / 1e6 - 803.5) < 0.1);
    const Recompute none = recompute_all(0), two = recompute_all(recompute_level_set(2)),
                    all = recompute_all(AGAIN_BLOCK);
    const double attention = 6.0 * 12 * 768 * 1025;
    assert_true(fabs(flops_per_token_hardware(&c, 1024, &none) - flops_per_token_exact(&c, 1024) - attention / 6) <
                1.0);
    assert_true(flops_per_token_hardware(&c, 1024, &two) == flops_per_token_hardware(&c, 1024, &none));
    assert_true(flops_per_token_hardware(&c, 1024, &all) > flops_per_token_hardware(&c, 1024, &two));
}
