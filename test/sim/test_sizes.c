// The plan that any build makes for a GPU is the one that the CUDA build makes there: what the backend asks for, with
// its own attention, is what sizes.h says.
#include "llmc/cuda/backend.h"
#include "llmc/cuda/cudnn_graph.h"
#include "llmc/run/planner.h"
#include "test/test.h"

// clang-format off
// clang-format on

#include "test/unit/planner_case.h"

static void start(const char *units, AttentionChoice attention) {
    Error err;
    setenv("SIM_SMS", units, 1);
    const DeviceOptions options = {.attention = attention};
    if (!device_init(&options, &err)) fail_msg("%s", err.text);
}

static Gpt2Options variant_of(const char *descriptor, int64_t B, int variant) {
    Error err;
    Gpt2Options o = {.dtype = DTYPE_BF16, .master = true, .train = true, .B = B, .T = 1024, .sequences = variant};
    assert_true(model_config_parse(&o.config, descriptor, &err));
    if (o.config.V == 0) model_config_set_vocab(&o.config, GPT2_VOCAB);
    if (o.config.max_T < o.T) o.T = o.config.max_T;
    o.recompute = recompute_all(variant % 3 == 2 ? RECOMPUTE_BLOCK : 0);
    o.gradients_in_dtype = variant % 2;
    o.train = variant % 5 != 4;
    o.optimizer = variant % 4 == 3 ? OPTIMIZER_ADAFACTOR : OPTIMIZER_ADAMW;
    return o;
}

TEST(a_plan_by_the_formulas_is_the_plan_of_the_backend) {
    static const char *const models[] = {"d6", "d12", "d24", "d48", "L=2,C=64,NH=2,V=257,T=32"};
    const char *const units[] = {"40", "108", "132"};
    for (int u = 0; u < 3; u++) {
        start(units[u], ATTENTION_OWN);
        const GpuSpec gpu = {.memory = 80e9, .num_sms = device_facts()->units};
        const PlannedSizes sizes = planner_sizes(&gpu, ATTENTION_OWN);
        for (int m = 0; m < 5; m++)
            for (int64_t B = 1; B <= 96; B = 2 * B + 1) {
                Gpt2Options model = variant_of(models[m], B, (int)(B + m) % 9);
                const double backend = plan_total(&model);
                model.sizes = &sizes;
                if (plan_total(&model) != backend)
                    fail_msg("%s -b %lld on %s multiprocessors: %.0f, by the backend %.0f", models[m], (long long)B,
                             units[u], plan_total(&model), backend);
            }
        device_shutdown();
    }
}

// The emulated cuDNN asks for what NVIDIA's does: see test_cudnn_graphs for theirs.
TEST(with_cudnn_the_formulas_are_an_upper_bound) {
    setenv("SIM_CUDNN", "1", 1);
    start("132", ATTENTION_AUTO);
    const GpuSpec gpu = {.memory = (double)device_facts()->memory_free,
                         .num_sms = device_facts()->units,
                         .compute_capability = cuda_backend.compute_capability};
    const PlannedSizes sizes = planner_sizes(&gpu, ATTENTION_AUTO);
    for (int64_t B = 1; B <= 64; B *= 4) {
        Gpt2Options model = variant_of("d12", B, 1);
        const double backend = plan_total(&model);
        const bool with_cudnn = strstr(cuda_attention_description(), "cuDNN") != NULL;
        model.sizes = &sizes;
        assert_true(plan_total(&model) >= backend);
#ifdef HAVE_CUDNN
        assert_true(with_cudnn);
#endif
        (void)with_cudnn;
    }
    device_shutdown();
    unsetenv("SIM_CUDNN");
}

static int64_t workspace_of(Gpt2Options *model, bool train) {
    model->train = train;
    MemoryPlan *plan = gpt2_plan(model);
    int64_t bytes = -1;
    for (int i = 0; i < memory_plan_count(plan); i++)
        if (strcmp(memory_plan_tensor(plan, i).name, "workspace") == 0) bytes = memory_plan_bytes(plan, i);
    memory_plan_destroy(plan);
    return bytes;
}

TEST(evaluation_takes_no_workspace_of_backward_passes) {
    const GpuSpec gpu = {.memory = 80e9, .num_sms = 132, .compute_capability = 90};
    const PlannedSizes sizes = planner_sizes(&gpu, ATTENTION_AUTO);
    Gpt2Options model = variant_of("d12", 64, 0);
    model.sizes = &sizes;
    assert_true(workspace_of(&model, true) > model.B * model.config.NH * model.T * model.T * 2); // cuDNN's
    assert_true(workspace_of(&model, false) < 40 << 20);

    start("132", ATTENTION_OWN);
    model = variant_of("L=2,C=64,NH=2,V=257,T=1024", 64, 0); // a matmul of few channels needs little
    assert_true(workspace_of(&model, true) > workspace_of(&model, false));
    device_shutdown();
}

TEST(the_choice_is_checked_with_the_backend) {
    start("132", ATTENTION_AUTO);
    Gpt2Options model = variant_of("d12", 1, 1);
    Error err;
    const double room = 12e9;
    assert_true(planner_fit(&model, true, "auto", room, 512, &err));
    assert_null(model.sizes);
    assert_true(plan_total(&model) <= room);
    device_shutdown();
}
