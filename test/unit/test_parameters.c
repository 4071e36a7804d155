// Models by their descriptors: what these stand for, and what is refused; the parameter table:
// order, names, initial values.
#include "llmc/base/random.h"
#include "llmc/model/parameters.h"
#include "llmc/model/recompute.h"
#include "test/test.h"
#include "test/unit/device_fixture.h"
#include "test/unit/tiny_model.h"

#include <math.h>

TestFixture test_each = {.teardown = models_destroy}, test_all = {start_device, stop_device};

static ModelConfig parsed(const char *descriptor) {
    ModelConfig c;
    Error err;
    if (!model_config_parse(&c, descriptor, &err)) fail_msg("%s: %s", descriptor, err.text);
    return c;
}

// ------------------------------------------------------------------------------------- descriptors

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
        // given to two decimals
        assert_true(fabs((double)parameter_total(&c) / 1e6 - sizes[i].millions) < 0.006);
    }
}

// GPT-2's sizes, Radford et al., 2019, and llm.c's two; GPT-3's, Brown et al., 2020, table 2.1, as
// llm.c has them.
TEST(every_preset_has_its_published_shape) {
    static const struct {
        const char *name;
        int64_t L, C, NH, max_T;
    } presets[] = {
        {"d6", 6, 384, 6, 1024},
        {"d12", 12, 768, 12, 1024},
        {"d24", 24, 1024, 16, 1024},
        {"d36", 36, 1280, 20, 1024},
        {"d48", 48, 1600, 25, 1024},
        {"d60", 60, 1920, 30, 1024},
        {"gpt3:c384", 6, 384, 6, 2048},
        {"gpt3:c768", 12, 768, 12, 2048},
        {"gpt3:c1024", 24, 1024, 16, 2048},
        {"gpt3:c1536", 24, 1536, 16, 2048},
        {"gpt3:c2048", 24, 2048, 16, 2048},
        {"gpt3:c2560", 32, 2560, 32, 2048},
        {"gpt3:c4096", 32, 4096, 32, 2048},
        {"gpt3:c5120", 40, 5120, 40, 2048},
        {"gpt3:c12288", 96, 12288, 96, 2048},
    };

    for (size_t i = 0; i < sizeof presets / sizeof presets[0]; i++) {
        const ModelConfig c = parsed(presets[i].name);
        if (c.L != presets[i].L || c.C != presets[i].C || c.NH != presets[i].NH ||
            c.max_T != presets[i].max_T)
            fail_msg("%s: L=%d C=%d NH=%d T=%d", presets[i].name, (int)c.L, (int)c.C, (int)c.NH,
                     (int)c.max_T);
    }
}

TEST(a_descriptor_is_a_preset_or_a_free_shape_and_any_part_may_be_given) {
    static const struct {
        const char *descriptor;
        int64_t L, C, NH, V, Vp, max_T;
    } cases[] = {
        {"L=6,C=384,NH=3,V=257,T=96", 6, 384, 3, 257, 384, 96},
        {"d24,V=1000,T=2048", 24, 1024, 16, 1000, 1024, 2048},
        {"gpt3:c1536,V=10", 24, 1536, 16, 10, 128, 2048},
        {"L=2,C=256,V=10", 2, 256, 4, 10, 128, 1024},
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

TEST(a_family_names_the_block_and_its_parts_may_be_given) {
    static const struct {
        const char *descriptor, *family, *class;
        int64_t NKV, HS, d_ff, base;
        bool untied;
    } cases[] = {
        {"d12", "gpt2", "GPT2LMHeadModel", 12, 64, 3072, 0, false},
        {"gpt2:d12", "gpt2", "GPT2LMHeadModel", 12, 64, 3072, 0, false},
        {"starcoder2:d12", "starcoder2", "Starcoder2ForCausalLM", 12, 64, 3072, 10000, false},
        {"llama:d12", "llama", "LlamaForCausalLM", 12, 64, 2048, 10000, true},
        {"qwen3:d12", "qwen3", "Qwen3ForCausalLM", 12, 64, 2048, 10000, false},
        {"arcee:d12", "arcee", "ArceeForCausalLM", 12, 64, 3072, 10000, true},
        {"qwen3:d12,NKV=3,tied=0,NH=6,base=100000", "qwen3", "Qwen3ForCausalLM", 3, 128, 2048,
         100000, true},
        {"qwen3:gpt3:c768,HS=96", "qwen3", "Qwen3ForCausalLM", 12, 96, 2048, 10000, false},
        {"qwen3:L=2,C=128", "qwen3", "Qwen3ForCausalLM", 2, 64, 384, 10000,
         false}, // 341.3 hidden units, rounded up
        {"starcoder2:d12,embed_norm=1", "starcoder2", "Starcoder2ForCausalLM", 12, 64, 3072, 10000,
         false},
        {"llama:d12,qk_norm=1,tied=1", "qwen3", "Qwen3ForCausalLM", 12, 64, 2048, 10000, false},
        {"starcoder2:d12,base=0", "gpt2", "GPT2LMHeadModel", 12, 64, 3072, 0, false},
        {"d12,NKV=4", "gpt2", NULL, 4, 64, 3072, 0, false},
        {"qwen3:d12,bias=1", NULL, NULL, 12, 64, 2048, 10000, false},
    };

    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        const ModelConfig c = parsed(cases[i].descriptor);
        const char *family = model_family(&c), *class = model_class(&c);
        assert_string_equal(family ? family : "none", cases[i].family ? cases[i].family : "none");
        assert_string_equal(class ? class : "none", cases[i].class ? cases[i].class : "none");
        assert_int_equal(model_kv_heads(&c), cases[i].NKV);
        assert_int_equal(model_head_size(&c), cases[i].HS);
        assert_int_equal(model_size(&c, DIM_FF), cases[i].d_ff);
        assert_int_equal(c.rope_base, cases[i].base);
        assert_int_equal(c.untied, cases[i].untied);
    }
}

TEST(a_descriptor_made_from_a_model_names_it) {
    static const char *const descriptors[] = {
        "L=12,C=768,NH=12,V=50257,T=1024",
        "L=2,C=64,NH=2,V=257,T=32,NKV=1",
        "starcoder2:L=12,C=768,NH=12,V=50257,T=1024,NKV=4",
        "qwen3:L=12,C=768,NH=6,V=50257,T=1024,NKV=2,HS=64,base=100000,tied=0",
        "llama:L=12,C=768,NH=12,V=50257,T=1024,tied=1",
        "arcee:L=12,C=768,NH=12,V=50257,T=1024,bias=1",
        "starcoder2:L=12,C=768,NH=12,V=50257,T=1024,bias=0,qk_norm=1",
        "qwen3:L=12,C=768,NH=12,V=50257,T=1024,embed_norm=1",
    };

    for (size_t i = 0; i < sizeof descriptors / sizeof descriptors[0]; i++) {
        char text[MODEL_DESCRIPTOR];
        const ModelConfig c = parsed(descriptors[i]);
        const ModelConfig again = parsed(model_config_descriptor(&c, text));
        assert_true(model_same_block(&c, &again) && c.C == again.C && c.L == again.L &&
                    c.V == again.V);
        if (!strstr(descriptors[i], "bias=0")) assert_string_equal(text, descriptors[i]);
    }
}

// Each model has tensors besides GPT-2's, and lacks some of them.
TEST(the_tensors_of_a_model_follow_from_its_block) {
    ModelConfig c = parsed("qwen3:L=2,C=64,NH=4,NKV=2,HS=24,V=7,tied=0,T=8");
    AUTO_FREE Parameter *table = parameter_table(&c);
    // wte, lnfw, headw; norms, q and k norms, 4 matrices
    assert_int_equal(parameter_count(&c), 3 + 8 * 2);

    assert_int_equal(parameter_index(&c, PARAM_WPE, 0), -1);
    assert_int_equal(parameter_index(&c, PARAM_QKVB, 0), -1);
    assert_int_equal(parameter_index(&c, PARAM_LNFB, 0), -1);

    const Parameter *qkvw = &table[parameter_index(&c, PARAM_QKVW, 1)],
                    *fcw = &table[parameter_index(&c, PARAM_FCW, 0)];
    assert_int_equal(qkvw->rows, (4 + 2 * 2) * 24);
    assert_int_equal(qkvw->num_parts, 3);
    assert_int_equal(qkvw->parts[0], 4 * 24);
    assert_int_equal(qkvw->parts[2], 2 * 24);
    assert_int_equal(fcw->rows, 2 * 256);
    assert_int_equal(fcw->parts[1], 256);
    assert_int_equal(table[parameter_index(&c, PARAM_ATTPROJW, 0)].cols, 4 * 24);
    assert_int_equal(table[parameter_index(&c, PARAM_KNORMW, 0)].rows, 24);

    char name[64];
    parameter_part_name(qkvw, 1, name);
    assert_string_equal(name, "model.layers.1.self_attn.k_proj.weight");
    parameter_part_name(fcw, 0, name);
    assert_string_equal(name, "model.layers.0.mlp.gate_proj.weight");
    assert_string_equal(parameter_label(fcw->name), "fcw");
    assert_string_equal(table[parameter_index(&c, PARAM_HEADW, 0)].name, "lm_head.weight");

    c = parsed("starcoder2:L=2,C=64,NH=4,V=7,T=8");
    assert_int_equal(parameter_count(&c), 3 + 12 * 2); // GPT-2's without wpe
}

// Numerics, plans and summaries name tensors by them.
TEST(every_parameter_of_every_family_has_the_label_of_its_kind) {
    static const char *const families[] = {
        "L=11,C=64,NH=2,V=10",  "starcoder2:L=11,C=64,V=10", "llama:L=11,C=64,V=10,bias=1",
        "qwen2:L=11,C=64,V=10", "qwen3:L=11,C=64,V=10",      "arcee:L=11,C=64,V=10,bias=1"};

    for (size_t m = 0; m < sizeof families / sizeof families[0]; m++) {
        const ModelConfig c = parsed(families[m]);
        Parameter *table = parameter_table(&c);
        for (int i = 0; i < parameter_count(&c); i++)
            if (strcmp(parameter_label(table[i].name), table[i].spec->name) != 0)
                fail_msg("%s: %s is called %s", families[m], table[i].name,
                         parameter_label(table[i].name));
        free(table);
    }
}

TEST(paths_are_no_descriptors) {
    static const char *const descriptors[] = {"d12", "d12,V=5", "L=3", "gpt3:c768", "qwen3:d12"};
    static const char *const paths[] = {"out/step_00000010", "gpt2_124M.bin", "gpt2", "./L=3",
                                        "qwen3:out/step_1"};
    for (int i = 0; i < 5; i++) {
        assert_true(model_config_is_descriptor(descriptors[i]));
        assert_false(model_config_is_descriptor(paths[i]));
    }
}

TEST(flops_are_those_of_the_stated_formulas) {
    ModelConfig c = parsed("d12");
    model_config_set_vocab(&c, GPT2_VOCAB);

    // The figures of the published formulas at 124M, T = 1024, in MFLOP a token, given to one
    // decimal.
    assert_true(fabs(flops_per_token_exact(&c, 1024) / 1e6 - 798.0) < 0.1);
    assert_true(fabs(flops_per_token_llmc(&c, 1024) / 1e6 - 803.5) < 0.1);

    const Recompute none = recompute_all(0), two = recompute_all(recompute_level_set(2)),
                    all = recompute_all(RECOMPUTE_BLOCK);
    const double attention = 6.0 * 12 * 768 * 1025;
    assert_true(fabs(flops_per_token_hardware(&c, 1024, &none) - flops_per_token_exact(&c, 1024) -
                     attention / 6) < 1.0);
    assert_true(flops_per_token_hardware(&c, 1024, &two) ==
                flops_per_token_hardware(&c, 1024, &none));
    assert_true(flops_per_token_hardware(&c, 1024, &all) >
                flops_per_token_hardware(&c, 1024, &two));
}

// -------------------------------------------------------------------------------------- parameters

TEST(every_tensor_has_its_own_name_and_its_index) {
    ModelConfig c = parsed("L=3,C=8,NH=2,V=7,T=5");
    const int n = parameter_count(&c);
    assert_int_equal(n, 4 + 12 * 3);
    AUTO_FREE Parameter *table = parameter_table(&c);

    int64_t total = 0;
    for (int i = 0; i < n; i++) {
        total += parameter_numel(&table[i]);
        const int spec = (int)(table[i].spec - parameter_specs);
        assert_int_equal(parameter_index(&c, spec, table[i].block), i);
        for (int j = 0; j < i; j++) assert_string_not_equal(table[i].name, table[j].name);
    }

    assert_int_equal(total, parameter_total(&c));
    assert_string_equal(table[parameter_index(&c, PARAM_QKVW, 2)].name,
                        "transformer.h.2.attn.c_attn.weight");
    assert_string_equal(table[parameter_index(&c, PARAM_LNFB, 0)].name, "transformer.ln_f.bias");

    const Parameter *wte = &table[parameter_index(&c, PARAM_WTE, 0)];
    assert_int_equal(wte->rows, 128);
    assert_int_equal(wte->file_rows, 7);
}

TEST(initial_values_do_not_depend_on_how_they_are_asked_for) {
    ModelConfig c = parsed("L=2,C=12,NH=3,V=50,T=9");
    AUTO_FREE Parameter *table = parameter_table(&c);
    const int index = parameter_index(&c, PARAM_FCPROJW, 1);
    const int64_t n = parameter_numel(&table[index]);

    AUTO_FREE float *whole = malloc((size_t)n * sizeof *whole);
    float piece[17];
    parameter_init_values(whole, &c, &table[index], index, 1337, 0, n);

    for (int64_t first = 0; first < n; first += 17) {
        const int64_t count = n - first < 17 ? n - first : 17;
        parameter_init_values(piece, &c, &table[index], index, 1337, first, count);
        assert_memory_equal(piece, whole + first, (size_t)count * sizeof *piece);
    }
}

// Element i by its definition, alone.
static float initial_value(int index, uint64_t seed, int64_t i) {
    const Philox bits =
        philox(seed, ((uint64_t)STREAM_INIT << 32) + (uint64_t)index, (uint64_t)i / 4);
    float x[2];
    philox_normal2(bits.v[i % 4 / 2 * 2], bits.v[i % 4 / 2 * 2 + 1], x);
    return 0.02f * x[i % 2];
}

// Sizes and beginnings around those of the loops that become vector code.
TEST(initial_values_made_in_vectors_are_those_made_one_by_one) {
    const int64_t sizes[] = {1, 2, 3, 63, 64, 65, 255, 256, 257, 511, 1000, 4097};
    ModelConfig c = parsed("L=1,C=64,NH=1,V=50,T=9");
    AUTO_FREE Parameter *table = parameter_table(&c);
    const int index = parameter_index(&c, PARAM_QKVW, 0);
    float x[4097];

    for (size_t s = 0; s < sizeof sizes / sizeof *sizes; s++)
        for (int64_t first = 0; first < 600; first += 1 + first / 4) {
            parameter_init_values(x, &c, &table[index], index, 1337, first, sizes[s]);
            for (int64_t i = 0; i < sizes[s]; i++)
                if (x[i] != initial_value(index, 1337, first + i))
                    fail_msg("element %lld of %lld from %lld", (long long)i, (long long)sizes[s],
                             (long long)first);
        }
}

// A model of 59,136 embeddings, which several threads round, in tensors whose sizes are no
// multiples of anything; one of a vocabulary whose padding stays 0.
TEST(the_weights_of_a_model_are_its_initial_values_rounded) {
    const DType dtypes[] = {DTYPE_FP32, DTYPE_BF16};
    for (int d = 0; d < 4; d++) {
        const DType dtype = dtypes[d % 2];
        ModelOptions options = {
            .config = parsed("L=1,C=66,NH=3,V=777,T=33"), .dtype = dtype, .B = 1, .T = 33};
        options.train = options.master = d >= 2;
        Model *model = model_of(options);
        model_init_weights(model, 5);
        check_initial_weights(model, 5);
    }
}

// The bits of some, from the same operations of numpy in float32: they depend on no library,
// processor or compiler.
TEST(initial_values_are_the_same_everywhere) {
    static const struct {
        uint32_t a, b;
        float x, y;
    } expected[] = {
        {0x00000000u, 0x00000000u, 0x1.78c56ep+2f, 0x0.0p+0f},
        {0xFFFFFFFFu, 0xFFFFFFFFu, -0x0.0p+0f, 0x0.0p+0f},
        {0x80000000u, 0x40000000u, -0x0.0p+0f, 0x1.2d6abep+0f},
        {0x12345678u, 0x9ABCDEF0u, -0x1.d25e78p+0f, -0x1.6726f8p+0f},
        {0xB504F300u, 0x1FFFFFFFu, 0x1.2d6ac4p-1f, 0x1.2d6ab6p-1f},
        {0xB504F400u, 0x20000000u, 0x1.2d6abep-1f, 0x1.2d6abap-1f},
        {0xDEADBEEFu, 0x6FEDCBA9u, -0x1.f340e2p-2f, 0x1.9fa37ap-3f},
        {0x00000100u, 0xE0000000u, 0x1.01d57ep+2f, -0x1.01d580p+2f},
        {0xFFFFFE00u, 0xA0000001u, -0x1.6a09e8p-12f, -0x1.6a09e4p-12f},
    };

    for (size_t i = 0; i < sizeof expected / sizeof *expected; i++) {
        float x[2];
        philox_normal2(expected[i].a, expected[i].b, x);
        if (x[0] != expected[i].x || x[1] != expected[i].y)
            fail_msg("%zu: %a %a", i, (double)x[0], (double)x[1]);
    }
}

// Every 61st word, and both ends. A result has the errors of radius and sine, and one of their
// product, 2^-24 of it.
TEST(normals_are_those_of_box_and_muller) {
    for (uint64_t word = 0; word < 1ull << 32; word += 61 << 8) {
        const uint32_t a = (uint32_t)word, b = (uint32_t)(word * 2654435761u);
        const double u = (double)(((float)(a >> 8) + 0.5f) * 0x1p-24f),
                     phi = 2 * 3.14159265358979324 * (b >> 8) / 0x1p24;
        const double r = sqrt(-2 * log(u)), tolerance = r * (1.01 * 0x1p-23 + 1e-7 + 0x1p-24);
        float x[2];
        philox_normal2(a, b, x);
        if (fabs((double)x[0] - r * cos(phi)) > tolerance ||
            fabs((double)x[1] - r * sin(phi)) > tolerance)
            fail_msg("%08x %08x: %a %a", a, b, (double)x[0], (double)x[1]);
    }
}

TEST(initial_values_have_gpt2s_deviation_and_padding_is_zero) {
    ModelConfig c = parsed("L=8,C=256,NH=4,V=300,T=64");
    AUTO_FREE Parameter *table = parameter_table(&c);
    const int specs[] = {PARAM_WTE, PARAM_QKVW, PARAM_ATTPROJW};
    const double expected[] = {0.02, 0.02, 0.02 / 4.0}; // sqrt(2 * 8) = 4

    for (int s = 0; s < 3; s++) {
        const int index = parameter_index(&c, specs[s], 0);
        const int64_t n = parameter_numel(&table[index]),
                      used = table[index].file_rows * table[index].cols;

        AUTO_FREE float *x = malloc((size_t)n * sizeof *x);
        parameter_init_values(x, &c, &table[index], index, 7, 0, n);
        double sum = 0, sumsq = 0;
        for (int64_t i = 0; i < used; i++) sum += x[i], sumsq += (double)x[i] * x[i];
        const double sd = sqrt(sumsq / (double)used);

        // Five standard errors: of a mean sd / sqrt(n), of a deviation sd / sqrt(2 n).
        assert_true(fabs(sum / (double)used) < 5 * expected[s] / sqrt((double)used));
        assert_true(fabs(sd - expected[s]) < 5 * expected[s] / sqrt(2.0 * (double)used));

        for (int64_t i = used; i < n; i++) assert_true(x[i] == 0.0f);
    }
}

TEST(with_a_norm_after_the_embedding_projections_into_the_residual_stream_begin_at_zero) {
    ModelConfig c = parsed("qwen3:L=2,C=64,V=300,T=64,embed_norm=1");
    AUTO_FREE Parameter *table = parameter_table(&c);
    for (int i = 0; i < parameter_count(&c); i++) {
        const bool is_projection = table[i].spec->init == INIT_NORMAL_RESIDUAL;
        float x[64];
        parameter_init_values(x, &c, &table[i], i, 7, 0, 32);
        if (table[i].rank == 2 && (x[0] == 0.0f) != is_projection)
            fail_msg("%s begins with %g", table[i].name, (double)x[0]);
        assert_true(!is_projection || table[i].spec == &parameter_specs[PARAM_ATTPROJW] ||
                    table[i].spec == &parameter_specs[PARAM_FCPROJW]);
    }
}

TEST(tensors_and_seeds_get_different_values) {
    ModelConfig c = parsed("L=2,C=16,NH=1,V=20,T=8");
    AUTO_FREE Parameter *table = parameter_table(&c);
    float a[64], b[64];
    const int first = parameter_index(&c, PARAM_QKVW, 0),
              second = parameter_index(&c, PARAM_QKVW, 1);
    parameter_init_values(a, &c, &table[first], first, 1, 0, 64);
    parameter_init_values(b, &c, &table[second], second, 1, 0, 64);
    assert_memory_not_equal(a, b, sizeof a);
    parameter_init_values(b, &c, &table[first], first, 2, 0, 64);
    assert_memory_not_equal(a, b, sizeof a);
}
