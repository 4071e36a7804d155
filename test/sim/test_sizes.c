// The plan that any build makes for a GPU is the one that the CUDA build makes there: what the
// backend asks for, with its own attention, is what gpu_sizes.h says.
#include "llmc/cuda/attention.h"
#include "llmc/cuda/cudnn_graph.h"
#include "llmc/model/gpu_sizes.h"
#include "llmc/plan/plan_fit.h"
#include "llmc/plan/plan_memory.h"
#include "test/test.h"

#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include "test/unit/plan_case.h"

static void start(AttentionChoice attention) {
    Error err;
    const DeviceOptions options = {.attention = attention};
    if (!device_init(&options, &err)) fail_msg("%s", err.text);
}

static ModelOptions variant_of(const char *descriptor, int64_t B, int variant) {
    Error err;
    ModelOptions o = {.dtype = DTYPE_BF16,
                      .master = true,
                      .train = true,
                      .B = B,
                      .T = 1024,
                      .sequences = variant};

    assert_true(model_config_parse(&o.config, descriptor, &err));
    if (o.config.V == 0) model_config_set_vocab(&o.config, GPT2_VOCAB);
    if (o.config.max_T < o.T) o.T = o.config.max_T;

    o.recompute = recompute_all(variant % 3 == 2 ? RECOMPUTE_BLOCK : 0);
    o.gradients_in_dtype = variant % 2;
    o.train = variant % 5 != 4;
    o.optimizer = variant % 4 == 3 ? OPTIMIZER_ADAFACTOR : OPTIMIZER_ADAMW;
    return o;
}

typedef struct {
    const char *units, *megabytes; // as a driver reports them
    double memory;                 // of the datasheet
} Gpu;

static bool plans_agree(const Gpu *g) {
    static const char *const models[] = {"d6", "d12", "d24", "d48", "L=2,C=64,NH=2,V=257,T=32"};
    start(ATTENTION_OWN);

    const GpuSpec gpu = {.memory = g->memory,
                         .num_sms = device_facts()->units,
                         .compute_capability = cuda_backend.compute_capability};
    const PlannedSizes sizes = plan_sizes(&gpu, ATTENTION_OWN);
    bool agree = device_facts()->units == atoi(g->units);

    for (int m = 0; m < 5; m++)
        for (int64_t B = 1; B <= 96; B = 2 * B + 1) {
            ModelOptions model = variant_of(models[m], B, (int)(B + m) % 9);
            const double backend = plan_total(&model);
            model.sizes = &sizes;
            const double formulas = plan_total(&model);
            if (formulas != backend)
                print_message(
                    "%s -b %lld on %s multiprocessors, %s MiB: %.0f, by the backend %.0f\n",
                    models[m], (long long)B, g->units, g->megabytes, formulas, backend);
            agree = agree && formulas == backend;
        }
    return agree;
}

// The simulator is one GPU for the life of a process: this program is started again for each.
TEST(a_plan_by_the_formulas_is_the_plan_of_the_backend) {
    static const Gpu gpus[] = {{"40", "15360", 16e9},
                               {"108", "40960", 40e9},
                               {"132", "81559", 80e9},
                               {"132", "143771", 141e9}};

    if (getenv("TEST_SIZES_OF")) {
        assert_true(plans_agree(&gpus[atoi(getenv("TEST_SIZES_OF"))]));
        return;
    }

    for (int i = 0; i < 4; i++) {
        fflush(stdout);
        const pid_t child = fork();
        assert_true(child >= 0);
        if (child == 0) {
            setenv("TEST_SIZES_OF", (const char *[]){"0", "1", "2", "3"}[i], 1);
            setenv("SIM_SMS", gpus[i].units, 1);
            setenv("SIM_MEMORY_MB", gpus[i].megabytes, 1);
            setenv("TEST_FILTER", "a_plan_by_the_formulas*", 1);
            unsetenv("CMOCKA_MESSAGE_OUTPUT"), unsetenv("CMOCKA_XML_FILE");
            execl("/proc/self/exe", "test_sizes", (char *)NULL);
            _exit(127);
        }

        int status = 0;
        assert_int_equal(waitpid(child, &status, 0), child);
        assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    }
}

static int64_t chunk_rows(int64_t B, DType dtype, int num_sms, double memory) {
    const OpsShape shape = {.B = B, .T = 1024, .C = 768, .NH = 12, .Vp = 50304, .dtype = dtype};
    return cuda_size_head_chunk_rows(shape, num_sms, (int64_t)memory);
}

TEST(the_head_has_the_fewest_chunks_that_the_memory_allows) {
    assert_int_equal(chunk_rows(64, DTYPE_BF16, 132, 141e9), 32768); // 3.3 GB
    assert_int_equal(chunk_rows(32, DTYPE_BF16, 132, 141e9), 32768);
    assert_int_equal(chunk_rows(64, DTYPE_FP32, 132, 141e9), 16384);
    assert_int_equal(chunk_rows(64, DTYPE_BF16, 132, 80e9), 16384); // 2 GiB at most
    assert_int_equal(chunk_rows(64, DTYPE_BF16, 1, 40e9), 9472);    // 1 GiB at most
    // 7 would leave more multiprocessors idle
    assert_int_equal(chunk_rows(64, DTYPE_FP16, 40, 16e9), 5120);
    for (int64_t B = 1; B < 4096; B *= 2)
        assert_true(chunk_rows(B, DTYPE_BF16, 148, 180e9) * 50304 < (int64_t)1 << 31);
}

// A driver reports the datasheet's figure within some per cent: MiB of T4, L40S, A100 and H100
// 80GB, RTX PRO 6000, H200, B200.
TEST(the_chunks_of_a_datasheet_are_those_of_the_gpu) {
    static const double memory[][2] = {{16e9, 15360},  {48e9, 46068}, {80e9, 81920},
                                       {80e9, 81559},  {96e9, 97887}, {141e9, 143771},
                                       {180e9, 183359}};
    for (size_t i = 0; i < sizeof memory / sizeof *memory; i++)
        assert_int_equal(chunk_rows(64, DTYPE_BF16, 1, memory[i][0]),
                         chunk_rows(64, DTYPE_BF16, 1, memory[i][1] * 0x1p20));
}

// 8 parts of the largest weight gradient: 72 MiB at C = 768.
TEST(the_library_gets_128_MiB_from_hopper_on) {
    static const struct {
        int64_t C;
        int compute_capability;
        bool forward_only;
        int64_t bytes;
    } cases[] = {{768, 75, false, 32 << 20},  {768, 89, false, 32 << 20},
                 {768, 90, false, 72 << 20},  {1600, 90, false, 128 << 20},
                 {1600, 120, true, 32 << 20}, {1600, 0, false, 128 << 20},
                 {64, 90, false, 1 << 20}};

    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const OpsShape shape = {
            .B = 1, .T = 64, .C = cases[i].C, .NH = 1, .forward_only = cases[i].forward_only};
        assert_int_equal(cuda_size_matmul(shape, cases[i].compute_capability), cases[i].bytes);
    }
}

// The emulated cuDNN asks for what NVIDIA's does: see test_cudnn_graphs for theirs.
static void expect_upper_bound(AttentionChoice attention) {
    setenv("SIM_CUDNN", "1", 1);
    start(attention);

    const GpuSpec gpu = {.memory = (double)device_facts()->memory_free,
                         .num_sms = device_facts()->units,
                         .compute_capability = cuda_backend.compute_capability};
    const PlannedSizes sizes = plan_sizes(&gpu, attention);

    for (int64_t B = 1; B <= 64; B *= 4) {
        ModelOptions model = variant_of("d12", B, 1);
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
TEST(with_cudnn_the_formulas_are_an_upper_bound) {
    expect_upper_bound(ATTENTION_AUTO);
    expect_upper_bound(ATTENTION_FAST);
}

static int64_t workspace_of(ModelOptions *model, bool train) {
    model->train = train;
    MemoryPlan *plan = model_plan(model);
    int64_t bytes = -1;
    for (int i = 0; i < memory_plan_count(plan); i++)
        if (strcmp(memory_plan_tensor(plan, i).name, "workspace") == 0)
            bytes = memory_plan_tensor(plan, i).bytes;
    memory_plan_destroy(plan);
    return bytes;
}

TEST(evaluation_takes_no_workspace_of_backward_passes) {
    const GpuSpec gpu = {.memory = 80e9, .num_sms = 132, .compute_capability = 90};
    const PlannedSizes sizes = plan_sizes(&gpu, ATTENTION_AUTO);
    ModelOptions model = variant_of("d12", 64, 0);
    model.sizes = &sizes;
    // cuDNN's
    assert_true(workspace_of(&model, true) > model.B * model.config.NH * model.T * model.T * 2);
    assert_true(workspace_of(&model, false) < 40 << 20);

    start(ATTENTION_OWN);
    // a matmul of few channels needs less than attention
    model = variant_of("L=2,C=64,NH=8,V=257,T=1024", 64, 0);
    assert_true(workspace_of(&model, true) > workspace_of(&model, false));
    device_shutdown();
}

TEST(the_choice_is_checked_with_the_backend) {
    start(ATTENTION_AUTO);
    ModelOptions model = variant_of("d12", 1, 1);
    Error err;
    const double room = 12e9;
    assert_true(plan_fit(&model, true, "auto", room, 512, &err));
    assert_null(model.sizes);
    assert_true(plan_total(&model) <= room);
    device_shutdown();
}

TEST(a_gpu_that_takes_host_memory_when_it_is_full_keeps_a_tenth_free) {
    start(ATTENTION_OWN);
    const double total = (double)device_facts()->memory_total,
                 available = (double)device_memory_free();
    cuda_backend.facts.memory_spills = false;
    assert_true(plan_room(true) == available - plan_reserve(total));
    cuda_backend.facts.memory_spills = true;
    assert_true(plan_room(true) == available - 0.1 * total);
    device_shutdown();
}
