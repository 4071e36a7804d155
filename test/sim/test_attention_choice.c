// Who computes attention: own kernels or cuDNN, as asked, as measured, as remembered, as far as
// cuDNN can. With the simulator's cuDNN (dev/sim/cudnn_sim.h).
#include "test/fixture.h"
#include "test/sim/apart.h"
#include "test/sim/attention_case.h"

#include "dev/sim/cudnn_sim.h"
#include "llmc/base/choices_file.h"
#include "llmc/cuda/attention.h"

static void run_once(const char *what) {
    Case c = begin(small, what);
    forward(&c);
    backward(&c);
    specify(&c);
    check(&c);
    op_end();
}

APART_TEST(the_faster_one_is_taken_and_remembered, "1", "90") {
    start(ATTENTION_AUTO);
    run_once("measured");
    expect_text(cuda_attention_description(), "cuDNN 9.19.0");
    const long measured = sim_cudnn_counts.run;
    assert_true(measured > 2 * 3);
    device_shutdown();

    setenv("SIM_CUDNN", "1,slow", 1); // a new measurement would come out otherwise
    choices_file_close();
    start(ATTENTION_AUTO);
    run_once("remembered");
    expect_text(cuda_attention_description(), "cuDNN 9.19.0");
    assert_int_equal(sim_cudnn_counts.run, measured + 2);
    device_shutdown();
}

APART_TEST(own_kernels_that_are_faster_are_taken_and_remembered, "1,slow", "90") {
    static const char reason[] = "own kernels (faster forward than cuDNN 9.19.0)";
    start(ATTENTION_AUTO);
    run_once("measured");
    expect_text(cuda_attention_description(), reason);
    const long measured = sim_cudnn_counts.run, compiled = sim_cudnn_counts.compiled;
    device_shutdown();

    setenv("SIM_CUDNN", "1", 1);
    choices_file_close();
    start(ATTENTION_AUTO);
    run_once("remembered");
    expect_text(cuda_attention_description(), reason);
    assert_int_equal(sim_cudnn_counts.run, measured);
    assert_int_equal(sim_cudnn_counts.compiled, compiled);
    device_shutdown();
}

// cuDNN 9.25 on Hopper has two backward passes whose bits repeat. Each of the three can win; the
// next run takes the same from the file, and a resume without the file from the checkpoint,
// whatever would win then.
APART_TEST(the_fastest_of_three_backward_passes_is_taken_remembered_and_restored, "92500", "90") {
    static const struct {
        const char *cudnn, *later, *taken;
    } cases[] = {
        {"92500", "92500,stored:slow,ordered:idle", "cuDNN 9.25.0"},
        {"92500,stored:slow", "92500,stored:idle",
         "forward cuDNN 9.25.0, backward cuDNN 9.25.0 with dQ in order"},
        {"92500,stored:slow,ordered:slow", "92500,stored:idle,ordered:idle",
         "forward cuDNN 9.25.0, backward own kernels (faster backward than cuDNN 9.25.0)"},
    };

    char cache[PATH_MAX];
    snprintf(cache, sizeof cache, "%s", getenv("PRETRAIN_CACHE"));
    for (int i = 0; i < 3; i++) {
        char *chosen = NULL;
        unlink(cache);
        for (int run = 0; run < 3; run++) {
            setenv("PRETRAIN_CACHE", run == 2 ? "off" : cache, 1);
            setenv("SIM_CUDNN", run == 0 ? cases[i].cudnn : cases[i].later, 1);
            choices_file_close();

            start(ATTENTION_AUTO);
            if (run == 2) assert_true(device_restore_tuning(chosen));
            const long before = sim_cudnn_counts.run;
            run_once(cases[i].cudnn);
            expect_text(cuda_attention_description(), cases[i].taken);
            if (run > 0) assert_int_equal(sim_cudnn_counts.run - before, i == 2 ? 1 : 2);

            free(chosen);
            chosen = device_tuning();
            device_shutdown();
        }
        free(chosen);
    }
}

// A vice of one of them leaves the others in the contest.
APART_TEST(the_other_backward_pass_of_cudnn_is_taken_where_one_is_of_no_use, "92500", "90") {
    static const char *const vices[] = {"wrong", "idle", "unrepeatable", "uncompilable"};
    setenv("PRETRAIN_CACHE", "off", 1);
    for (int i = 0; i < 8; i++) {
        char settings[64];
        snprintf(settings, sizeof settings, "92500,stored:%s%s",
                 i < 4 ? "" : "unrepeatable,ordered:", vices[i % 4]);

        setenv("SIM_CUDNN", settings, 1);
        choices_file_close();
        start(ATTENTION_AUTO);
        run_once(settings);

        const bool is_own =
            strstr(cuda_attention_description(), "backward own kernels (cuDNN") != NULL;
        const bool in_order =
            strstr(cuda_attention_description(), "backward cuDNN 9.25.0 with dQ in order") != NULL;

        if (i < 4 ? !in_order : !is_own) op_fail("%s: %s", settings, cuda_attention_description());
        device_shutdown();
    }
}

// A file of the time when cuDNN had one backward pass in the contest says 0 or 1. 1 is the pass
// that keeps dS; where that does not fit, and for a number that no version has written, the choice
// is made anew.
APART_TEST(older_choices_are_taken_where_they_mean_something_and_made_anew_elsewhere, "92500",
           "90") {
    static const struct {
        uint8_t stored;
        int64_t memory; // 0: enough
        const char *backward;
    } cases[] = {
        {0, 0, "backward own kernels (faster backward than cuDNN 9.25.0)"},
        {1, 0, "cuDNN 9.25.0"},
        {1, 48000, "backward cuDNN 9.25.0 with dQ in order"},
        {3, 0, "cuDNN 9.25.0"},
    };
    const AttentionShape s = {1, 64, 1, 1, 8, DTYPE_BF16};
    start(ATTENTION_AUTO);
    Case c = begin(s, "the keys");
    forward(&c), backward(&c);
    char *lines = device_tuning(), key[CHOICES_KEY_MAX] = "";
    for (char *line = strtok(lines, "\n"); line; line = strtok(NULL, "\n"))
        if (strstr(line, "attention backward"))
            snprintf(key, sizeof key, "%.*s", (int)strcspn(line, "\t"), line);
    assert_true(key[0]);
    free(lines);
    op_end();
    device_shutdown();
    for (int i = 0; i < 4; i++) {
        choices_file_put(key, &cases[i].stored, 1);
        choices_file_close();
        start(ATTENTION_AUTO);
        if (cases[i].memory) cuda_backend.facts.memory_free = (size_t)cases[i].memory;
        const long before = sim_cudnn_counts.run;
        c = begin(s, "an older choice");
        forward(&c), backward(&c);
        specify(&c);
        check(&c);
        if (!strstr(cuda_attention_description(), cases[i].backward))
            op_fail("case %d: %s", i, cuda_attention_description());
        const long ran = sim_cudnn_counts.run - before;
        if (i < 2 ? ran > 2 : ran <= 4) op_fail("case %d: %ld runs of cuDNN", i, ran);
        op_end();
        device_shutdown();
    }
}

// Each candidate ran, and more than once: dbias has one sum more, or none.
APART_TEST(own_kernels_make_the_bias_gradient_and_cudnn_leaves_it, "1", "90") {
    static const char *const simulated[] = {"1", "1,slow", "1", "1"};
    static const AttentionChoice choices[] = {ATTENTION_AUTO, ATTENTION_AUTO, ATTENTION_OWN,
                                              ATTENTION_CUDNN};
    setenv("PRETRAIN_CACHE", "off", 1);
    for (int i = 0; i < 4; i++) {
        setenv("SIM_CUDNN", simulated[i], 1);
        choices_file_close();
        start(choices[i]);

        Case c = begin(small, "the bias gradient");
        forward(&c);
        backward(&c);
        specify(&c);
        check(&c);

        const bool is_own = i == 1 || i == 2;
        if (!c.left.to.data != is_own) op_fail("dbias was %s", is_own ? "left" : "made");
        op_end();
        device_shutdown();
    }
}

APART_TEST(a_kernel_whose_bits_change_is_not_taken, "1,unrepeatable", "90") {
    start(ATTENTION_AUTO);
    run_once("unrepeatable");
    expect_text(cuda_attention_description(),
                "own kernels (cuDNN 9.19.0 gives different bits forward each time)");
    device_shutdown();
}

static void expect_start(const char *got, const char *expected) {
    if (strncmp(got, expected, strlen(expected)) != 0)
        op_fail("\"%s\", expected \"%s...", got, expected);
}

APART_TEST(a_kernel_that_computes_something_else_is_not_taken_and_not_remembered, "1,wrong", "90") {
    static const char reason[] = "own kernels (cuDNN 9.19.0 differs forward by 0.";
    start(ATTENTION_AUTO);
    run_once("wrong");
    expect_start(cuda_attention_description(), reason);
    device_shutdown();
    start(ATTENTION_AUTO);
    run_once("wrong again");
    expect_start(cuda_attention_description(), reason);
    device_shutdown();

    static const char backward_reason[] =
        "forward cuDNN 9.19.0, backward own kernels (cuDNN 9.19.0 differs backward by ";
    setenv("SIM_CUDNN", "1", 1);
    start(ATTENTION_AUTO);
    Case c = begin(small, "wrong backward");
    forward(&c);
    setenv("SIM_CUDNN", "1,wrong", 1);
    backward(&c);
    specify(&c);
    check(&c);
    expect_start(cuda_attention_description(), backward_reason);
    op_end();
    device_shutdown();
}

// Memory that holds right results already is no proof.
APART_TEST(a_kernel_that_writes_nothing_is_not_taken, "1,idle", "90") {
    start(ATTENTION_AUTO);
    run_once("idle");
    expect_start(cuda_attention_description(), "own kernels (cuDNN 9.19.0 differs forward by inf");
    device_shutdown();
}

static int start_with(void *choice) {
    start(*(const AttentionChoice *)choice);
    run_once("wrong");
    return 0;
}

static void expect_end(AttentionChoice choice, const char *why) {
    char text[2048];
    const int status = status_of_child(start_with, &choice, text, sizeof text);
    if (!WIFSIGNALED(status) || !strstr(text, why)) op_fail("status %d: %s", status, text);
}

APART_TEST(a_kernel_that_was_asked_for_and_computes_something_else_ends_the_program, "1,wrong",
           "90") {
    expect_end(ATTENTION_CUDNN, "--attention cudnn: cuDNN 9.19.0 differs forward by 0.");
    expect_end(ATTENTION_FAST, "--attention fast: cuDNN 9.19.0 differs forward by 0.");
}

// The first graph of the backward pass needs too much memory, which is no reason any more when the
// second is slower.
APART_TEST(the_reason_is_that_of_the_kernel_that_was_measured, "92500,slow", "90") {
    start(ATTENTION_AUTO);
    cuda_backend.facts.memory_free = 48000; // an eighth is less than 64 * 64 * 2 bytes
    Case c = begin((AttentionShape){1, 64, 1, 1, 8, DTYPE_BF16}, "little memory");
    backward(&c);
    expect_text(cuda_attention_description(),
                "forward cuDNN 9.25.0 or own kernels, to be measured, backward own "
                "kernels (faster backward than cuDNN 9.25.0)");
    op_end();
    device_shutdown();
}

APART_TEST(what_does_not_compile_is_not_taken_and_tried_again_in_the_next_run, "1,uncompilable",
           "90") {
    start(ATTENTION_AUTO);
    run_once("uncompilable");
    assert_int_equal(
        strncmp(cuda_attention_description(), "own kernels (cuDNN kernel for attention: ", 41), 0);
    device_shutdown();
    setenv("SIM_CUDNN", "1", 1);
    start(ATTENTION_AUTO);
    run_once("compiles now");
    expect_text(cuda_attention_description(), "cuDNN 9.19.0");
    device_shutdown();
}

APART_TEST(before_the_first_step_the_choice_is_open, "1", "90") {
    start(ATTENTION_AUTO);
    expect_text(cuda_attention_description(), "");
    Case c = begin(small, "described");
    expect_text(cuda_attention_description(), "cuDNN 9.19.0 or own kernels, to be measured");
    forward(&c);
    expect_text(cuda_attention_description(),
                "forward cuDNN 9.19.0, backward cuDNN 9.19.0 or own kernels, to be measured");
    op_end();
    device_shutdown();
}

APART_TEST(shapes_without_a_plan_take_own_kernels, "1", "90") {
    start(ATTENTION_CUDNN);
    Case planned = begin(small, "planned"), other = planned;
    forward(&planned);
    assert_int_equal(sim_cudnn_counts.launched, 2); // once to compare
    other.shape.T = small.T / 2;                    // the first half of the context
    other.qkv.t.shape[1] = other.out.t.shape[1] = other.lse.t.shape[2] = other.shape.T;
    forward(&other);
    assert_int_equal(sim_cudnn_counts.launched, 2);
    op_end();
    device_shutdown();
}

APART_TEST(types_and_head_sizes_that_cudnn_lacks_take_own_kernels, "1", "90") {
    static const struct {
        AttentionShape shape;
        const char *expected;
    } cases[] = {
        {{1, 16, 1, 1, 64, DTYPE_FP32}, "own kernels (cuDNN has no fused attention for fp32)"},
        {{1, 16, 1, 1, 12, DTYPE_BF16},
         "own kernels (cuDNN has no fused attention for head size 12)"},
    };

    start(ATTENTION_CUDNN);
    for (int i = 0; i < 2; i++) {
        Case c = begin(cases[i].shape, "not for cuDNN");
        forward(&c);
        backward(&c);
        specify(&c);
        check(&c);
        expect_text(cuda_attention_description(), cases[i].expected);
        op_end();
    }

    assert_int_equal(sim_cudnn_counts.run, 0);
    device_shutdown();
}

APART_TEST(a_graph_without_an_engine_takes_own_kernels, "1,engineless", "90") {
    start(ATTENTION_AUTO);
    run_once("engineless");
    assert_int_equal(strncmp(cuda_attention_description(), "own kernels (cuDNN has no engine", 32),
                     0);
    device_shutdown();
}

APART_TEST(with_attention_own_cudnn_is_not_asked, "1", "90") {
    start(ATTENTION_OWN);
    run_once("own");
    expect_text(cuda_attention_description(), "own kernels");
    assert_int_equal(sim_cudnn_counts.launched + sim_cudnn_counts.handles, 0);
    device_shutdown();
}

// Where a pass's bits differ from run to run, or cuDNN says that they may, auto takes the own
// kernels and fast does not.
APART_TEST(attention_fast_takes_a_backward_pass_whose_bits_change, "1,unrepeatable", "90") {
    static const char expected[] =
        "forward cuDNN 9.19.0, backward cuDNN 9.19.0 without repeatable bits";

    start(ATTENTION_FAST);
    Case c = begin(small, "described");
    expect_text(cuda_attention_description(), expected);

    forward(&c);
    backward(&c);
    specify(&c);
    check(&c);

    expect_text(cuda_attention_description(), expected);
    op_end();
    assert_int_equal(sim_cudnn_counts.launched, 2 * 2); // nothing is timed
    device_shutdown();
}

APART_TEST(engines_that_say_so_themselves_are_for_attention_fast_alone, "1,noted", "90") {
    start(ATTENTION_CUDNN);
    run_once("noted");
    expect_text(cuda_attention_description(),
                "own kernels (no cuDNN engine for this attention is deterministic)");
    device_shutdown();
    start(ATTENTION_FAST);
    run_once("noted, fast");
    expect_text(cuda_attention_description(),
                "forward own kernels, backward cuDNN 9.19.0 without repeatable bits (no "
                "cuDNN engine for this attention is deterministic)");
    device_shutdown();
}

APART_TEST(no_other_choice_collects_dq, "1", "90") {
    static const AttentionChoice others[] = {ATTENTION_AUTO, ATTENTION_CUDNN};
    const OpsShape shape = {.B = 8, .T = 1024, .C = 64, .NH = 1, .Vp = 128, .dtype = DTYPE_BF16};
    const int64_t squares = shape.B * shape.NH * shape.T * shape.T * 2;
    for (int i = 0; i < 2; i++) {
        start(others[i]);
        assert_true(ops_workspace_bytes(shape) >= squares);
        device_shutdown();
    }
    start(ATTENTION_FAST);
    assert_true(ops_workspace_bytes(shape) < squares);
    device_shutdown();
}

static void expect_refused(const char *expected) {
    Error err = {""};
    start(ATTENTION_AUTO);
    assert_true(cuda_attention_check(&(DeviceOptions){.attention = ATTENTION_AUTO}, &err));
    assert_false(cuda_attention_check(&(DeviceOptions){.attention = ATTENTION_CUDNN}, &err));
    expect_text(err.text, expected);
    run_once("without cuDNN");
    device_shutdown();
}

APART_TEST(attention_cudnn_is_refused_where_there_is_none, NULL, "90") {
    expect_refused("--attention cudnn: cuDNN not found: the simulator has one when SIM_CUDNN is "
                   "set; use --attention "
                   "own, or auto to use cuDNN where available");
}

APART_TEST(attention_fast_is_refused_where_there_is_none, NULL, "90") {
    Error err = {""};
    start(ATTENTION_AUTO);
    assert_false(cuda_attention_check(&(DeviceOptions){.attention = ATTENTION_FAST}, &err));
    assert_int_equal(strncmp(err.text, "--attention fast: cuDNN not found: ", 35), 0);
    device_shutdown();
}

APART_TEST(attention_cudnn_is_refused_on_turing, "1", "75") {
    Error err = {""};
    start(ATTENTION_AUTO);
    assert_false(cuda_attention_check(&(DeviceOptions){.attention = ATTENTION_CUDNN}, &err));
    expect_text(
        err.text,
        "--attention cudnn: cuDNN has no fused attention for sm_75, only for sm_80 and newer; use "
        "--attention own, or auto to use cuDNN where available");
    device_shutdown();
}

// The backward pass keeps 300 * 300 * 2 bytes here.
APART_TEST(a_workspace_beyond_an_eighth_of_the_memory_is_not_taken, "1", "90") {
    start(ATTENTION_AUTO);
    cuda_backend.facts.memory_free = 1 << 20;
    Case c = begin((AttentionShape){1, 300, 1, 1, 64, DTYPE_BF16}, "little memory");
    (void)c;
    const char *text = cuda_attention_description();
    if (!strstr(text,
                "backward own kernels (cuDNN's attention needs 180000 bytes of workspace, 12"))
        op_fail("%s", text);
    op_end();
    device_shutdown();
}

APART_TEST(evaluation_plans_the_forward_pass_alone, "1", "90") {
    start(ATTENTION_AUTO);
    OpsShape shape = {
        .B = 8, .T = 1024, .C = 64, .NH = 1, .Vp = 128, .dtype = DTYPE_BF16, .forward_only = true};
    assert_true(ops_workspace_bytes(shape) < 2 << 20);
    expect_text(cuda_attention_description(), "cuDNN 9.19.0 or own kernels, to be measured");
    shape.forward_only = false; // a model of the same shape that trains
    assert_true(ops_workspace_bytes(shape) >= shape.B * shape.NH * shape.T * shape.T * 2);
    device_shutdown();
}
