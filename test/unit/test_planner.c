// The planner's figures against independent ways to the same numbers: peaks from clocks, bytes from the profile's table
// of ops, the largest batch from the plans around it.
#include "llmc/model/parameters.h"
#include "llmc/run/op_costs.h"
#include "llmc/run/planner.h"

// clang-format off
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>
// clang-format on

#include "test/unit/device_fixture.h"

static Gpt2Options model_of(const char *descriptor, int64_t B, int64_t T) {
    Error err;
    Gpt2Options o = {.dtype = DTYPE_BF16, .master = true, .train = true, .B = B, .T = T};
    assert_true(model_config_parse(&o.config, descriptor, &err));
    if (o.config.V == 0) model_config_set_vocab(&o.config, GPT2_VOCAB);
    return o;
}

static void assert_near(const char *what, double got, double expected, double tolerance) {
    if (!(fabs(got / expected - 1) <= tolerance)) fail_msg("%s: %.9g, expected %.9g", what, got, expected);
}

static const GpuSpec *gpu_named(const char *name) {
    int count;
    const GpuSpec *gpus = gpu_table(&count);
    for (int i = 0; i < count; i++)
        if (strcmp(gpus[i].name, name) == 0) return &gpus[i];
    fail_msg("no GPU %s", name);
    return NULL;
}

// ----------------------------------------------------------------------------------------------------------- the table

// Multiprocessors, the clock in MHz that the datasheet counts with, 16-bit FLOP a clock and multiprocessor with fp32
// accumulation; the memory's transfers in MHz x bits of the bus.
static const struct {
    const char *name;
    double units, mhz, flop, memory_mhz, bus;
} chips[] = {
    {"T4", 40, 1590, 1024, 10000, 256},         {"L4", 58, 2040, 1024, 12502, 192},
    {"A10", 72, 1695, 1024, 12502, 384},        {"RTX 3090", 82, 1695, 512, 19500, 384},
    {"RTX 4090", 128, 2520, 512, 21000, 384},   {"RTX 5090", 170, 2407, 512, 28000, 512},
    {"A100 40GB", 108, 1410, 2048, 2430, 5120}, {"L40S", 142, 2490, 1024, 18000, 384},
    {"A100 80GB", 108, 1410, 2048, 3186, 5120}, {"RTX PRO 6000", 188, 2617, 1024, 28000, 512},
    {"H100 PCIe", 114, 1620, 4096, 3186, 5120}, {"H100 SXM", 132, 1830, 4096, 5238, 5120},
    {"H200", 132, 1830, 4096, 6402, 6144},      {"B200", 148, 1856, 8192, 7992, 8192},
};

static void peaks_are_units_times_clock_times_operations(void **state) {
    (void)state;
    int count;
    gpu_table(&count);
    assert_int_equal(count, (int)(sizeof chips / sizeof chips[0]));
    for (int i = 0; i < count; i++) {
        const GpuSpec *gpu = gpu_named(chips[i].name);
        // Datasheets round, to two digits at worst.
        assert_near(gpu->name, gpu->peak_fp16, 1e6 * chips[i].units * chips[i].mhz * chips[i].flop, 0.02);
        assert_near(gpu->name, gpu->bandwidth, 1e6 * chips[i].memory_mhz * chips[i].bus / 8, 0.025);
        // The older generation of tensor cores has neither bf16 nor TF32; all others do both, TF32 at half the rate.
        const bool turing = strcmp(gpu->name, "T4") == 0;
        assert_true(gpu->peak_bf16 == (turing ? 0 : gpu->peak_fp16));
        assert_near(gpu->name, gpu->peak_32, turing ? 8.1e12 : gpu->peak_fp16 / 2, 0.015);
    }
}

static void a_gpu_without_bf16_computes_in_fp16(void **state) {
    (void)state;
    assert_int_equal(gpu_spec_dtype(gpu_named("T4"), DTYPE_BF16), DTYPE_FP16);
    assert_int_equal(gpu_spec_dtype(gpu_named("T4"), DTYPE_FP32), DTYPE_FP32);
    assert_int_equal(gpu_spec_dtype(gpu_named("A100 40GB"), DTYPE_BF16), DTYPE_BF16);
    assert_true(gpu_spec_peak(gpu_named("T4"), DTYPE_BF16) == 0);
    const Gpt2Options model = model_of("d12", 8, 1024);
    const GpuPlan p = planner_gpu(gpu_named("T4"), &model, 512);
    assert_int_equal(p.dtype, DTYPE_FP16);
    const double expected =
        planner_step_flops(&model, 512 * 1024) / 65e12 + planner_step_bytes(&model, 512 * 1024) / 320e9;
    assert_near("step", p.step_seconds, expected, 1e-12);
}

// ---------------------------------------------------------------------------------------------------------- arithmetic

static void flops_are_the_exact_count(void **state) {
    (void)state;
    Gpt2Options model = model_of("d12", 64, 1024);
    const double exact = 72.0 * 12 * 768 * 768 + 6.0 * 50304 * 768 + 6.0 * 12 * 768 * 1025; // 798.0 MFLOP a token
    assert_near("a token", planner_step_flops(&model, 1), exact, 1e-12);
    assert_near("a step", planner_step_flops(&model, 524288), 524288 * exact, 1e-12);
    model.recompute = 2;
    assert_near("-r 2", planner_step_flops(&model, 1), exact, 1e-12);
    model.recompute = 3;
    assert_near("-r 3", planner_step_flops(&model, 1), exact + 16.0 * 12 * 768 * 768 + 2.0 * 12 * 768 * 1025, 1e-12);
}

// What the ops of a micro-step that are neither matmul nor attention move, by the profile's table. The data are never
// looked at.
static double bytes_by_op_table(const Gpt2Options *o) {
    const int64_t B = o->B, T = o->T, C = o->config.C;
    const Tensor act = tensor_make(NULL, o->dtype, "act", B, T, C, 0);
    const Tensor stat = tensor_make(NULL, DTYPE_FP32, "stat", B, T, 0, 0);
    const Tensor weight = tensor_make(NULL, o->dtype, "w", C, 0, 0, 0);
    const Tensor grad = tensor_make(NULL, DTYPE_FP32, "dw", C, 0, 0, 0);
    const Tensor tokens = tensor_make(NULL, DTYPE_I32, "inputs", B, T, 0, 0);
    const Tensor wte = tensor_make(NULL, o->dtype, "wte", o->config.Vp, C, 0, 0);
    const Tensor wpe = tensor_make(NULL, o->dtype, "wpe", o->config.max_T, C, 0, 0);
    const Tensor dwte = tensor_make(NULL, DTYPE_FP32, "dwte", o->config.Vp, C, 0, 0);
    const Tensor dwpe = tensor_make(NULL, DTYPE_FP32, "dwpe", o->config.max_T, C, 0, 0);
    const double layernorms = 2.0 * (double)o->config.L; // with a residual addition
    return op_cost_embedding_forward(act, tokens, wte, wpe).bytes +
           op_cost_embedding_backward(dwte, dwpe, act, tokens, false).bytes +
           op_cost_layernorm_forward(act, stat, stat, act, weight, weight).bytes +
           layernorms * op_cost_residual_layernorm_forward(act, act, stat, stat, act, act, weight, weight).bytes +
           layernorms * op_cost_layernorm_backward(act, grad, grad, act, act, stat, stat, weight, true, false).bytes +
           op_cost_layernorm_backward(act, grad, grad, act, act, stat, stat, weight, false, false).bytes;
}

static void bytes_of_activations_are_those_of_the_op_table(void **state) {
    (void)state;
    // The planner's formula leaves out statistics and parameters (0.3% at C = 768) and counts a row of the embedding
    // table for each token (1 of 200 C, against the rows that occur and their fp32 gradients): together below 2%.
    const Gpt2Options model = model_of("d12", 64, 1024);
    const int64_t tokens = model.B * model.T;
    const double logits = 2.0 * (double)model.config.Vp * 2 * (double)tokens; // scratch: not in the op table
    const double per_step = planner_step_bytes(&model, 0);
    assert_near("bytes", planner_step_bytes(&model, tokens) - per_step - logits, bytes_by_op_table(&model), 0.02);
}

static double adamw_bytes_by_op_table(DType dtype, bool master) {
    const int64_t n = 1000;
    const AdamWTensor t = {.weight = tensor_make(NULL, dtype, "w", n, 0, 0, 0),
                           .master = master ? tensor_make(&(char){0}, DTYPE_FP32, "master", n, 0, 0, 0) : tensor_none(),
                           .grad = tensor_make(NULL, DTYPE_FP32, "g", n, 0, 0, 0),
                           .m = tensor_make(NULL, DTYPE_FP32, "m", n, 0, 0, 0),
                           .v = tensor_make(NULL, DTYPE_FP32, "v", n, 0, 0, 0)};
    const AdamWParams params = {0};
    const double norm = 4;
    return norm + op_cost_adamw_update(&t, 1, params, tensor_none()).bytes / (double)n;
}

static void bytes_of_the_optimizer_are_those_of_the_op_table(void **state) {
    (void)state;
    Gpt2Options model = model_of("d12", 1, 64);
    const double N = (double)parameter_total(&model.config);
    assert_near("master weights", planner_step_bytes(&model, 0), N * adamw_bytes_by_op_table(DTYPE_BF16, true), 1e-12);
    model.master = false;
    assert_near("-w 0", planner_step_bytes(&model, 0), N * adamw_bytes_by_op_table(DTYPE_BF16, false), 1e-12);
    model.dtype = DTYPE_FP32;
    assert_near("fp32", planner_step_bytes(&model, 0), N * adamw_bytes_by_op_table(DTYPE_FP32, false), 1e-12);
}

// -------------------------------------------------------------------------------------------------------- what fits

static double plan_total(Gpt2Options model, int64_t B) {
    model.B = B;
    MemoryPlan *plan = gpt2_plan(&model);
    const double bytes = (double)memory_plan_total(plan);
    memory_plan_destroy(plan);
    return bytes;
}

static void the_largest_batch_fits_and_one_more_does_not(void **state) {
    (void)state;
    static const char *const models[] = {"d12", "L=3,C=192,NH=3,V=257,T=96"};
    for (int m = 0; m < 2; m++) {
        Gpt2Options model = model_of(models[m], 1, m ? 96 : 1024);
        for (model.recompute = 0; model.recompute <= 3; model.recompute++) {
            const double one = plan_total(model, 1), many = plan_total(model, 500);
            for (int part = 0; part <= 8; part++) {
                const double room = one + (many - one) * part / 8;
                const int64_t B = planner_largest_batch(&model, room, 500);
                assert_in_range(B, 1, 500);
                assert_true(plan_total(model, B) <= room);
                assert_true(B == 500 || plan_total(model, B + 1) > room);
            }
        }
    }
}

static void no_batch_fits_where_one_sequence_does_not(void **state) {
    (void)state;
    const Gpt2Options model = model_of("d12", 4, 1024);
    const double one = plan_total(model, 1);
    assert_int_equal(planner_largest_batch(&model, one - 1, 512), 0);
    assert_int_equal(planner_largest_batch(&model, one, 1), 1);
    assert_int_equal(planner_largest_batch(&model, one, 512), 1);
    assert_int_equal(planner_largest_batch(&model, 1e18, 512), 512);
}

static void recomputing_fits_more_and_takes_longer(void **state) {
    (void)state;
    Gpt2Options model = model_of("d24", 4, 1024);
    GpuPlan before = planner_gpu(gpu_named("RTX 4090"), &model, 512);
    const double without = before.step_seconds;
    for (model.recompute = 1; model.recompute <= 3; model.recompute++) {
        const GpuPlan p = planner_gpu(gpu_named("RTX 4090"), &model, 512);
        assert_true(p.largest_batch > before.largest_batch && p.step_seconds > without);
        before = p;
    }
}

static void the_reserve_is_left_free(void **state) {
    (void)state;
    Gpt2Options model = model_of("d12", 1, 1024);
    GpuSpec gpu = *gpu_named("A100 40GB");
    gpu.memory = plan_total(model, 8) + planner_reserve();
    model.B = 8;
    assert_true(planner_gpu(&gpu, &model, 512).fits);
    assert_int_equal(planner_gpu(&gpu, &model, 512).largest_batch, 8);
    gpu.memory -= 1;
    assert_false(planner_gpu(&gpu, &model, 512).fits);
    assert_int_equal(planner_gpu(&gpu, &model, 512).largest_batch, 7);
}

// ---------------------------------------------------------------------------------------------------------- printing

static char *printed(const Gpt2Options *model, int64_t step_windows, int64_t steps) {
    char *text = NULL;
    size_t size = 0;
    FILE *out = open_memstream(&text, &size);
    assert_non_null(out);
    planner_print(out, model, step_windows, steps);
    fclose(out);
    return text;
}

static void every_line_says_that_it_is_computed(void **state) {
    (void)state;
    const Gpt2Options model = model_of("d12", 64, 1024);
    char *text = printed(&model, 512, 19560), *rest = NULL;
    int lines = 0, limits = 0, gpus;
    for (char *line = strtok_r(text, "\n", &rest); line; line = strtok_r(NULL, "\n", &rest)) {
        const bool limit = strncmp(line, "limit ", 6) == 0;
        if (!limit && strncmp(line, "plan ", 5) != 0 && strncmp(line, "planned ", 8) != 0) fail_msg("%s", line);
        lines++, limits += limit;
    }
    gpu_table(&gpus);
    assert_int_equal(limits, gpus + 4); // floors, a header, the GPUs
    assert_true(lines > limits + 8);
    free(text);
}

static void without_a_known_length_no_time_of_all_steps_is_shown(void **state) {
    (void)state;
    Gpt2Options model = model_of("d12", 4, 1024);
    char *with = printed(&model, 4, 1000), *without = printed(&model, 4, 0);
    assert_non_null(strstr(with, "1000 steps"));
    assert_null(strstr(without, "steps:"));
    assert_non_null(strstr(with, "at 50%"));
    int bounds_with = 0, bounds_without = 0; // of step and of all steps
    for (const char *at = with; (at = strstr(at, ">= ")); at++) bounds_with++;
    for (const char *at = without; (at = strstr(at, ">= ")); at++) bounds_without++;
    assert_int_equal(bounds_with, 2 * bounds_without);
    free(with), free(without);
    model.train = false;
    char *evaluation = printed(&model, 4, 0);
    assert_null(strstr(evaluation, "gradients"));
    assert_null(strstr(evaluation, "FLOP / dense peak"));
    free(evaluation);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(peaks_are_units_times_clock_times_operations),
        cmocka_unit_test(a_gpu_without_bf16_computes_in_fp16),
        cmocka_unit_test(flops_are_the_exact_count),
        cmocka_unit_test(bytes_of_activations_are_those_of_the_op_table),
        cmocka_unit_test(bytes_of_the_optimizer_are_those_of_the_op_table),
        cmocka_unit_test(the_largest_batch_fits_and_one_more_does_not),
        cmocka_unit_test(no_batch_fits_where_one_sequence_does_not),
        cmocka_unit_test(recomputing_fits_more_and_takes_longer),
        cmocka_unit_test(the_reserve_is_left_free),
        cmocka_unit_test(every_line_says_that_it_is_computed),
        cmocka_unit_test(without_a_known_length_no_time_of_all_steps_is_shown),
    };
    return cmocka_run_group_tests(tests, start_device, stop_device);
}
