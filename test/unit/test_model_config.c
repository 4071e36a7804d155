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

TEST(a_descriptor_is_a_preset_or_a_free_shape_and_any_part_may_be_given) {
    static const struct {
        const char *descriptor;
        int64_t L, C, NH, V, Vp, max_T;
    } cases[] = {
        {"L=6,C=384,NH=3,V=257,T=96", 6, 384, 3, 257, 384, 96}, {"d24,V=1000,T=2048", 24, 1024, 16, 1000, 1024, 2048},
        {"gpt3:c1536,V=10", 24, 1536, 16, 10, 128, 2048},       {"L=2,C=256,V=10", 2, 256, 4, 10, 128, 1024},
        {"L=2,C=100,V=10", 2, 100, 1, 10, 128, 1024}, // heads of 64 channels, or one
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        const ModelConfig c = parsed(cases[i].descriptor);
        assert_int_equal(c.L, cases[i].L);
        assert_int_equal(c.C, cases[i].C);
        assert_int_equal(c.NH, cases[i].NH);
        assert_int_equal(c.V, cases[i].V);
        assert_int_equal(c.Vp, cases[i].Vp);
        assert_int_equal(c.max_T, cases[i].max_T);
    }
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
    static const char *const descriptors[] = {"d12", "d12,V=5", "L=3", "gpt3:c768"};
    static const char *const paths[] = {"out/step_00000010", "gpt2_124M.bin", "gpt2", "./L=3"};
    for (int i = 0; i < 4; i++) {
        assert_true(model_config_is_descriptor(descriptors[i]));
        assert_false(model_config_is_descriptor(paths[i]));
    }
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
