// --plan sizes: tiles and waves by hand, the shapes of the prediction's matmuls, and what is
// advised.
#include "llmc/base/format.h"
#include "llmc/plan/advise.h"
#include "llmc/plan/tiling.h"
#include "test/fixture.h"
#include "test/unit/device_fixture.h"
#include "test/unit/plan_case.h"

TestFixture test_all = {start_device, stop_device};
static Error err;

// --------------------------------------------------------------------------------- tiles and waves

// The tile with the least time wins: waves x size of a tile / its rate. An A100 has 108
// multiprocessors, an H100 132.
static const struct {
    const char *gpu;
    MatmulShape shape;
    int rows, cols, splits;
    int64_t tiles, waves, last; // the tiles of the last wave
    double share;
} by_hand[] = {
    // 1. qkv of 124M, 65536 rows, forward: 256 x 18 = 4608 tiles.
    //    4608 = 42 x 108 + 72: 43 waves, 4608 / 4644.  4608 = 34 x 132 + 120: 35 waves, 4608 / 4620
    {"A100 80GB", {65536, 2304, 768, false}, 256, 128, 1, 4608, 43, 72, 4608.0 / 4644},
    {"H100 SXM", {65536, 2304, 768, false}, 256, 128, 1, 4608, 35, 120, 4608.0 / 4620},
    // 2. attproj of 124M, forward: 256 x 6 = 1536 tiles. 128 x 128 has 3072, which fill 29 waves of
    //    108 to 98%, and 24 of 132 to 97%, but at 0.95 of the rate that is less.
    //    1536 = 14 x 108 + 24: 15 waves, 1536 / 1620.  1536 = 11 x 132 + 84: 12 waves, 1536 / 1584.
    {"A100 80GB", {65536, 768, 768, false}, 256, 128, 1, 1536, 15, 24, 1536.0 / 1620},
    {"H100 SXM", {65536, 768, 768, false}, 256, 128, 1, 1536, 12, 84, 1536.0 / 1584},
    // 3. its weight gradient: 3 x 6 = 18 tiles, K = 65536 in parts.
    //    6 parts are 108 tiles, one full wave.   7 parts are 126 of 132; 8 would be 144, two waves.
    {"A100 80GB", {768, 768, 65536, true}, 256, 128, 6, 18, 1, 108, 1},
    {"H100 SXM", {768, 768, 65536, true}, 256, 128, 7, 18, 1, 126, 126.0 / 132},
    // 4. attproj for 1024 rows: K = 768 is too short for parts of 512. One wave whatever the tile,
    //    so the smallest that stays below it: 8 x 12 = 96 of 128 x 64 at 0.8 (256 x 128: 24,
    //    128 x 128: 48; 64 x 64: 192, two waves at 0.6).
    {"A100 80GB", {1024, 768, 768, false}, 128, 64, 1, 96, 1, 96, 0.8 * 96 / 108},
    {"H100 SXM", {1024, 768, 768, false}, 128, 64, 1, 96, 1, 96, 0.8 * 96 / 132},
    // 5. C = 1600 for 4096 rows: 12.5 tiles of 128 columns are 13, so 16 x 13 = 208 tiles,
    //    1600 / 1664 of them filled.
    //    208 = 108 + 100: 2 waves, 208 / 216.      3 parts: 624 = 4 x 132 + 96: 5 waves, 624 / 660;
    //                                              without: 208 of 2 x 132, 79%.
    {"A100 80GB", {4096, 1600, 1600, false}, 256, 128, 1, 208, 2, 100, 1600.0 / 1664 * 208 / 216},
    {"H100 SXM", {4096, 1600, 1600, false}, 256, 128, 3, 208, 5, 96, 1600.0 / 1664 * 624 / 660},
};

TEST(tiles_and_waves_of_five_shapes_are_those_counted_by_hand) {
    for (size_t i = 0; i < sizeof by_hand / sizeof *by_hand; i++) {
        const GpuSpec *gpu = gpu_named(by_hand[i].gpu);
        const Tiling t = tiling_best(gpu, DTYPE_BF16, &by_hand[i].shape);
        if (t.rows != by_hand[i].rows || t.cols != by_hand[i].cols ||
            t.splits != by_hand[i].splits || t.tiles != by_hand[i].tiles ||
            t.waves != by_hand[i].waves)
            fail_msg("row %zu: %lld tiles of %dx%d in %d parts, %lld waves", i, (long long)t.tiles,
                     t.rows, t.cols, t.splits, (long long)t.waves);
        assert_near("the last wave", t.last_wave, (double)by_hand[i].last / gpu->num_sms, 1e-12);
        assert_near("the share", t.share, by_hand[i].share, 1e-12);
        assert_true(t.load_share == 1);
    }
}

// The dimension that counts tokens is a number of rows: only the others are contiguous.
TEST(alignment_is_that_of_contiguous_rows) {
    const int64_t sizes[] = {50257, 50258, 50260, 50264, 50272, 50304, 768};
    const int alignments[] = {1, 2, 4, 8, 32, 64, 64};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
        assert_int_equal(tiling_alignment(sizes[i]), alignments[i]);

    const GpuSpec *gpu = gpu_named("A100 80GB");
    const double odd_tokens =
                     tiling_best(gpu, DTYPE_BF16, &(MatmulShape){4001, 768, 768, false}).load_share,
                 odd_sum =
                     tiling_best(gpu, DTYPE_BF16, &(MatmulShape){768, 768, 4001, true}).load_share;
    assert_true(odd_tokens == 1 && odd_sum == 1);

    double before = 0;
    for (int64_t K = 64 + 1; K <= 128; K = K < 66   ? 66
                                           : K < 68 ? 68
                                           : K < 72 ? 72
                                           : K < 80 ? 80
                                                    : K + 48) {
        const double share =
            tiling_best(gpu, DTYPE_BF16, &(MatmulShape){4096, 768, K, false}).load_share;
        assert_true(share > before); // the more, the better
        before = share;
    }
    assert_true(before == 1);

    // 32 elements of 4 bytes are as long as 64 of 2.
    assert_true(tiling_best(gpu, DTYPE_FP32, &(MatmulShape){4096, 800, 800, false}).load_share ==
                1);
    assert_true(tiling_best(gpu, DTYPE_BF16, &(MatmulShape){4096, 800, 800, false}).load_share < 1);
}

TEST(the_shapes_of_a_prediction_have_its_flop) {
    const GpuSpec *gpu = gpu_named("H100 SXM");
    const PredictOptions options = {.gelu_fusion = -1};
    const ModelOptions model = model_of("d12", 64, 1024);
    Prediction p;

    plan_predict(&p, gpu, &model, 64 * 1024, &options, false);

    int matmuls = 0;
    for (int i = 0; i < p.count; i++)
        for (int k = 0; k < p.ops[i].num_parts; k++) {
            const PredictedPart *part = &p.ops[i].parts[k];
            const MatmulShape *m = &part->shape;
            if (m->M == 0) continue;
            const bool head = strcmp(p.ops[i].tensor, "wte") == 0;
            const double tokens = m->sums_tokens ? (double)m->K : (double)m->M, all = 64 * 1024.0;
            assert_near(p.ops[i].op,
                        2.0 * (double)m->M * (double)m->N * (double)m->K * p.ops[i].calls * all /
                            tokens,
                        part->amount, 1e-12);
            assert_true(head || tokens == all);
            matmuls++;
        }

    assert_int_equal(matmuls, 3 * 4 + 3);
}

// ------------------------------------------------------------------------------------------ advice

static char *advice(const ModelOptions *model, const char *gpus, bool d_ff) {
    char *text = NULL;
    size_t size = 0;
    FILE *out = open_memstream(&text, &size);
    assert_non_null(out);
    const PlanRequest request = {
        .model = *model, .recompute = "0", .gpus = gpus, .gelu_fusion = -1, .comm_overlap = true};
    if (!advise_print(out, &request, d_ff, &err)) fail_msg("%s", err.text);
    fclose(out);
    return text;
}

static void assert_says(const char *text, const char *words) {
    if (!strstr(text, words)) fail_msg("'%s' is not in: %s", words, text);
}

TEST(channels_that_fill_no_cache_line_are_advised_against) {
    const ModelOptions model = model_of("L=12,C=1000,NH=10", 32, 1024);
    AUTO_FREE char *text = advice(&model, "h100", false);
    assert_says(text, "1. C 1000 -> 1024 with NH 8: -e L=12,C=1024,NH=8,V=50257,T=1024\n");
    assert_says(text, "parameters 195.5M -> 203.7M (+4.2%)");
    assert_says(text, "head size 100: no fast attention kernel takes it");
}

TEST(a_d_ff_nearby_is_among_the_changes_and_its_flag_is_named) {
    ModelOptions model = model_of("L=12,C=1024,NH=8,V=50304", 32, 1024);
    model_config_set_d_ff(&model.config, 4000);
    AUTO_FREE char *text = advice(&model, "h100", false);
    assert_says(text, "1. d_ff 4000 -> 4160: --d-ff 4160\n");
    assert_says(text, "parameters 201.4M -> 205.3M (+2.0%)");

    AUTO_FREE char *sizes = advice(&model, "h100", true);
    const char *found = strstr(sizes, "near 4 C: take ");
    char flag[64];
    assert_non_null(found);

    snprintf(flag, sizeof flag, "take %ld (--d-ff %ld), ", atol(found + strlen("near 4 C: take ")),
             atol(found + strlen("near 4 C: take ")));
    assert_says(sizes, flag);
}

TEST(at_the_sizes_whose_rates_are_assumed_advice_and_plan_predict_the_same) {
    const ModelOptions model = model_of("d12", 64, 1024);
    const char *const gpus[] = {"h200", "a100"};
    for (int i = 0; i < 2; i++) {
        AUTO_FREE char *text = advice(&model, gpus[i], false);

        Prediction p;
        GpuChoice gpu;
        char rate[32], words[64];

        assert_true(gpu_find(&gpu, gpus[i], strlen(gpus[i]), &err));
        plan_predict(&p, &gpu.spec, &model, 64 * 1024, &(PredictOptions){.gelu_fusion = -1}, false);
        snprintf(words, sizeof words, "predicted %s tokens/s",
                 format_count(64 * 1024 / p.step.likely, rate, sizeof rate));
        assert_says(text, words);
    }
}

TEST(no_advice_where_nothing_nearby_gains_and_limits_where_no_rates_are_assumed) {
    // 16 x 8 tiles a wave of 128
    const ModelOptions model = model_of("L=12,C=1024,NH=8,V=50304", 32, 1024);
    AUTO_FREE char *text = advice(&model, "rtx4090", false);
    assert_says(text, "at most ");
    assert_says(
        text,
        "no C, NH, d_ff, V or B nearby would gain half a per cent: these sizes suit this GPU");
}

TEST(a_d_ff_of_4_c_that_is_odd_is_replaced_by_a_multiple_of_64) {
    const ModelOptions model = model_of("L=12,C=1000,NH=10", 16, 1024);
    AUTO_FREE char *text = advice(&model, "h100", true);
    assert_says(text, "advise         4000    100.0%        32 ");
    const char *found = strstr(text, "near 4 C: take ");
    assert_non_null(found);
    const long d_ff = atol(found + strlen("near 4 C: take "));
    assert_true(d_ff % 64 == 0 && labs(d_ff - 4000) < 320);
}

TEST(what_cannot_be_advised_is_one_clear_line) {
    const ModelOptions model = model_of("d12", 4, 1024);
    FILE *out = fopen("/dev/null", "w");
    ModelOptions eight = model, only_forward = model;
    eight.fp8 = true, only_forward.train = false;

    PlanRequest request = {.model = model, .recompute = "0", .gpus = "24G"}, other;
    assert_error(advise_print(out, &request, false, &err),
                 "--gpu 24G: its multiprocessors and peak are not known");

    request.gpus = "this";
    assert_error(advise_print(out, &request, false, &err),
                 "--gpu this: this program computes on the CPU");

    request.gpus = "";
    assert_error(advise_print(out, &request, false, &err), "name a GPU, such as --gpu h100");

    other = request;
    other.gpus = "h100";
    other.model = eight;
    assert_error(advise_print(out, &other, false, &err), "no rates are assumed for --fp8");
    other.model = only_forward;
    assert_error(advise_print(out, &other, false, &err), "no rates are assumed for -x 0");

    other.gpus = "t4";
    other.model = model;
    other.model.B = 60000;
    assert_error(advise_print(out, &other, false, &err), "T4: not enough memory");

    fclose(out);
}
