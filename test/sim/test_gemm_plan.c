// Plans of matrix products against the simulated cuBLASLt: which algorithms are taken and which are
// not, what happens when the library has no fused epilogue, and what is remembered, for a run and
// for the next.
#include "test/ops/op_cases.h"

#include "dev/sim/cublaslt.h"
#include "dev/sim/sim_control.h"
#include "llmc/base/choices_file.h"
#include "llmc/cuda/gemm.h"
#include "llmc/cuda/tuning.h"
#include "llmc/device.h"
#include "llmc/speed.h"
#include "test/fixture.h"
#include <cuda_runtime_api.h>

// A device whose libraries behave as the variables say. On the clock of sim_set_clock all
// algorithms take the same time, so that the library's favourite wins, but for those with the vice
// "slow".
static void start_as(const char *algorithms, const char *refused, DeviceOptions options) {
    Error err;
    setenv("SIM_CUBLASLT_ALGOS", algorithms, 1);
    setenv("SIM_CUBLASLT_REFUSE", refused, 1);
    setenv("SIM_CUBLASLT_VICES", "", 1);
    sim_set_clock(0.0);
    device_shutdown();
    if (!device_init(&options, &err)) op_fail("%s", err.text);
    memset(&sim_cublaslt_counts, 0, sizeof sim_cublaslt_counts);
}

static void start(const char *algorithms, const char *refused, GeluFusion gelu_fusion) {
    start_as(algorithms, refused, (DeviceOptions){.gelu_fusion = gelu_fusion});
}

// A library with a vice, and an empty file of choices.
static void start_with(const char *vice, const char *algorithms, GeluFusion gelu_fusion) {
    unlink(tmp_file("tuning"));
    start(algorithms, "", gelu_fusion);
    setenv("SIM_CUBLASLT_VICES", vice, 1);
}

static int setup(void **state) {
    tmp_setup(state);
    setenv("PRETRAIN_CACHE", tmp_file("tuning"), 1);
    start("", "", GELU_FUSION_AUTO);
    return 0;
}

static int teardown(void **state) {
    op_teardown(state);
    return tmp_teardown(state);
}
TestFixture test_each = {setup, teardown}, test_all = {op_group_setup, op_group_teardown};

static int64_t runs(void) {
    int64_t total = 0;
    for (int i = 0; i < SIM_ALGORITHM_COUNT; i++) total += sim_cublaslt_counts.runs[i];
    return total;
}

// One MLP of a transformer block, forward and backward: every epilogue there is.
typedef struct {
    OpTensor in, w1, b1, pre, act, dout, dpre, dw1, db1;
} Layer;
enum { N = 48, IC = 64, OC = 128 };

static Layer layer_make(DType dtype, DType grad, const char *what) {
    Layer l;
    op_begin(
        (OpsShape){.B = 1, .T = N, .C = OC, .NH = 1, .Vp = 128, .num_tensors = 1, .dtype = dtype},
        "%s", what);

    l.in = op_input(dtype, "in", DIMS(N, IC), 1.0),
    l.w1 = op_input(dtype, "w1", DIMS(OC, IC), 0.125);
    l.b1 = op_input(dtype, "b1", DIMS(OC), 1.0);
    l.pre = op_output(dtype, "pre", DIMS(N, OC)), l.act = op_output(dtype, "act", DIMS(N, OC));
    l.dout = op_input(dtype, "dout", DIMS(N, IC), 1.0),
    l.dpre = op_output(dtype, "dpre", DIMS(N, OC));
    l.dw1 = op_inout(grad, "dw1", DIMS(OC, IC), 1.0), l.db1 = op_inout(grad, "db1", DIMS(OC), 1.0);
    return l;
}

// The layer that follows is w1 transposed in role: (IC,OC), with the same memory. The bias gradient
// is that of GELU's kernel, where it runs and may, or of the weight gradient.
static void layer_run_with(const Layer *l, bool gelu_may_sum, bool accumulate) {
    Tensor w2 = tensor_make(l->w1.t.data, l->w1.t.dtype, "w2", IC, OC, 0, 0);
    matmul_gelu_forward(l->act.t, l->pre.t, l->in.t, l->w1.t, l->b1.t);
    Gradient db1 = gradient_to(l->db1.t, accumulate);
    matmul_gelu_backward_input(l->dpre.t, l->dout.t, w2, l->pre.t, gelu_may_sum ? &db1 : NULL);
    matmul_backward_weight(gradient_to(l->dw1.t, accumulate), db1, l->dpre.t, l->in.t);
}
static void layer_run(const Layer *l, bool accumulate) { layer_run_with(l, true, accumulate); }

// Weight gradients are compared with those of the dpre that the device computed, to check one thing
// at a time.
static void layer_check(Layer *l, bool accumulate) {
    DType dtype = l->in.t.dtype, grad = l->dw1.t.dtype;
    ref_matmul_gelu_forward(l->act.v, l->pre.v, l->in.v, l->w1.v, l->b1.v, N, IC, OC, dtype);
    ref_matmul_gelu_backward_input(l->dpre.v, l->dout.v, l->w1.v, l->pre.v, N, OC, IC);
    ref_matmul_backward_weight(l->dw1.v, l->db1.v, op_download(l->dpre), l->in.v, N, IC, OC,
                               accumulate);
    op_check(l->pre, dtype), op_check(l->act, dtype), op_check(l->dpre, dtype);
    op_check(l->dw1, grad), op_check(l->db1, grad);
}

static uint64_t layer_digest(const Layer *l) {
    uint64_t digest = 0;
    const OpTensor outputs[] = {l->pre, l->act, l->dpre, l->dw1, l->db1};
    for (int i = 0; i < 5; i++) digest = op_digest(digest, outputs[i]);
    return digest;
}

static void check_all(DType dtype, const char *what) {
    for (int flags = 0; flags < 4; flags++) {
        bool accumulate = flags & 1;
        Layer l = layer_make(dtype, flags & 2 ? DTYPE_FP32 : dtype, what);
        layer_run(&l, accumulate);
        layer_check(&l, accumulate);
        op_end();
    }
}

OP_TEST_WITH(fused_epilogues_match, setup, teardown) {
    start("", "", GELU_FUSION_BOTH);
    check_all(dtype, "fused");
    assert_true(sim_cublaslt_counts.gelu > 0 && sim_cublaslt_counts.dgelu > 0);
    start("all", "", GELU_FUSION_BOTH);
    check_all(dtype, "fused, all algorithms");
}

OP_TEST_WITH(what_the_library_refuses_is_done_by_kernels, setup, teardown) {
    static const char *const refused[] = {"gelu", "dgelu", "gelu,dgelu,bias"};
    for (int i = 0; i < 3; i++) {
        unlink(tmp_file("tuning"));
        start("", refused[i], GELU_FUSION_BOTH);
        check_all(dtype, refused[i]);
        assert_true(i == 1 || sim_cublaslt_counts.gelu == 0);
        assert_true(i == 0 || sim_cublaslt_counts.dgelu == 0);
    }
}

// Rows that are a multiple of 16 bytes, and rows that are none.
OP_TEST_WITH(a_refused_bias_is_added_at_any_width, setup, teardown) {
    static const int64_t widths[] = {1, 63, 128, 128};
    start("", "bias", GELU_FUSION_AUTO);
    for (int i = 0; i < 4; i++) {
        const int64_t width = widths[i];
        op_begin_tensors_at(i == 3 ? 8 : 0);
        op_begin(
            (OpsShape){
                .B = 1, .T = N, .C = OC, .NH = 1, .Vp = 128, .num_tensors = 1, .dtype = dtype},
            "bias of %d", (int)width);

        OpTensor in = op_input(dtype, "in", DIMS(N, IC), 1.0),
                 weight = op_input(dtype, "weight", DIMS(width, IC), 0.125);
        OpTensor bias = op_input(dtype, "bias", DIMS(width), 1.0),
                 out = op_output(dtype, "out", DIMS(N, width));

        matmul_forward(out.t, in.t, weight.t, bias.t);
        ref_matmul_forward(out.v, in.v, weight.v, bias.v, N, IC, width);
        op_check(out, dtype);
        op_end();
    }

    assert_int_equal(sim_cublaslt_counts.bias, 0);
}

// The residual is an operand of the product, whatever else the library can do; candidates are tried
// on it as it is.
OP_TEST_WITH(a_residual_is_added_by_the_product, setup, teardown) {
    static const struct {
        const char *algorithms, *refused, *vice;
    } libraries[] = {{"", "", ""},
                     {"all", "", ""},
                     {"", "bias", ""},
                     {"all", "bias", ""},
                     {"", "", "bias:wrong"},
                     {"all", "", "bias:half"},
                     {"all", "", "tiled:wrong"},
                     {"", "", "bias:fails"}};
    static const MatmulShape shapes[] = {{48, 64, 128}, {48, 128, 64}, {13, 21, 63}, {1, 24, 40}};

    for (int i = 0; i < 8; i++) {
        start_with(libraries[i].vice, libraries[i].algorithms, GELU_FUSION_AUTO);
        setenv("SIM_CUBLASLT_REFUSE", libraries[i].refused, 1);
        for (int s = 0; s < 4; s++) matmul_residual_case(&shapes[s], dtype);
    }

    start("", "", GELU_FUSION_AUTO); // a residual that is less aligned than all else
    matmul_begin(&shapes[0], dtype, "residual at its second element");
    OpTensor in = op_input(dtype, "in", DIMS(48, 64), 1.0),
             weight = matmul_weight(dtype, &shapes[0], 64);
    OpTensor bias = op_input(dtype, "bias", DIMS(128), 1.0),
             out = op_output(dtype, "out", DIMS(48, 128));
    OpTensor residual = op_input(dtype, "residual", DIMS(48 * 128 + 1), 1.0);

    matmul_residual_forward(out.t, tensor_slice_elements(residual.t, 1, 48 * 128), in.t, weight.t,
                            bias.t);
    ref_matmul_residual_forward(out.v, residual.v + 1, in.v, weight.v, bias.v, 48, 64, 128);
    op_check(out, dtype);
    op_end();
}

// A plan that adds a residual is another one than that of the same product without it, and its next
// call is one launch.
TEST(a_product_with_a_residual_has_a_plan_of_its_own) {
    start("all", "", GELU_FUSION_AUTO);
    op_begin(
        (OpsShape){
            .B = 1, .T = N, .C = OC, .NH = 1, .Vp = 128, .num_tensors = 1, .dtype = DTYPE_BF16},
        "plans");

    OpTensor in = op_input(DTYPE_BF16, "in", DIMS(N, IC), 1.0),
             weight = op_input(DTYPE_BF16, "w", DIMS(OC, IC), 0.125);
    OpTensor bias = op_input(DTYPE_BF16, "bias", DIMS(OC), 1.0),
             out = op_output(DTYPE_BF16, "out", DIMS(N, OC));
    OpTensor residual = op_input(DTYPE_BF16, "residual", DIMS(N, OC), 1.0);

    matmul_forward(out.t, in.t, weight.t, bias.t);
    const int64_t plans = gemm_counts().plans;
    matmul_residual_forward(out.t, residual.t, in.t, weight.t, bias.t);
    assert_int_equal(gemm_counts().plans, 2 * plans);

    const int64_t before = runs();
    matmul_residual_forward(out.t, residual.t, in.t, weight.t, bias.t);
    assert_int_equal(runs(), before + 1);

    char *text = device_tuning();
    assert_non_null(strstr(text, ", bias, C added"));
    free(text);
    op_end();
}

OP_TEST_WITH(the_choice_by_measurement_matches, setup, teardown) {
    check_all(dtype, "measured");
    start("all", "", GELU_FUSION_AUTO);
    check_all(dtype, "measured, all algorithms");
}

TEST(fusion_is_done_where_it_was_asked_for) {
    start("", "", GELU_FUSION_NONE);
    check_all(DTYPE_BF16, "none");
    assert_true(sim_cublaslt_counts.gelu == 0 && sim_cublaslt_counts.dgelu == 0);
    start("", "", GELU_FUSION_FORWARD);
    check_all(DTYPE_BF16, "forward");
    assert_true(sim_cublaslt_counts.gelu > 0 && sim_cublaslt_counts.dgelu == 0);
}

// By default on Hopper and the Blackwell of data centres, unless it is recomputed; never by the
// number of rows.
TEST(gelu_is_in_the_epilogue_of_large_gpus_where_it_is_not_repeated) {
    static const int capabilities[] = {80, 90, 100, 120};
    for (int i = 0; i < 8; i++) {
        const bool again = i / 4 == 1, large = i % 4 == 1 || i % 4 == 2;
        start_with("", "", GELU_FUSION_AUTO);
        cuda_backend.compute_capability = capabilities[i % 4];
        for (int64_t rows = 1; rows <= N; rows *= N)
            matmul_gelu_forward_case(&(MatmulShape){rows, IC, OC}, DTYPE_BF16, again);
        assert_int_equal(sim_cublaslt_counts.gelu > 0, large && !again);
        cuda_backend.compute_capability = 90;
    }
}

// Whichever algorithm is wrong, the library's favourite or a later one, results are right.
OP_TEST_WITH(what_computes_something_else_is_not_taken, setup, teardown) {
    static const char *const vices[] = {"tiled:half",
                                        "split:half,tiled:slow,scalar:slow",
                                        "scalar:half,tiled:slow,split:slow",
                                        "tiled:wrong",
                                        "split:wrong,tiled:slow,scalar:slow",
                                        "bias:wrong",
                                        "scalar:wrong,tiled:slow,split:slow"};
    for (int i = 0; i < 7; i++) {
        start_with(vices[i], "all", GELU_FUSION_AUTO);
        check_all(dtype, vices[i]);
    }
}

OP_TEST_WITH(an_epilogue_that_computes_something_else_is_left_to_kernels, setup, teardown) {
    static const char *const vices[] = {"bias:wrong", "bias:half", "gelu:wrong", "dgelu:half"};
    for (int i = 0; i < 4; i++) {
        // without GELU there is a bias alone
        const GeluFusion fusion = i < 2 ? GELU_FUSION_NONE : GELU_FUSION_BOTH;
        start_with(vices[i], "", fusion);
        check_all(dtype, vices[i]);
        start("", "", fusion); // the next process
        setenv("SIM_CUBLASLT_VICES", vices[i], 1);
        check_all(dtype, vices[i]);
    }
}

// The heuristic offered it, the product does not take it.
TEST(what_fails_at_its_first_run_is_not_taken) {
    static const char *const vices[] = {"gelu:fails", "dgelu:fails", "bias:fails"};
    for (int i = 0; i < 3; i++) {
        // one candidate for each epilogue
        start_with(vices[i], "", i < 2 ? GELU_FUSION_BOTH : GELU_FUSION_NONE);
        check_all(DTYPE_BF16, vices[i]);
    }

    assert_int_equal(sim_cublaslt_counts.bias, 0);
    start_with("", "all", GELU_FUSION_BOTH);
    check_all(DTYPE_BF16, "good");

    start("all", "", GELU_FUSION_BOTH);
    setenv("SIM_CUBLASLT_VICES", "tiled:fails,split:fails", 1); // what stands in the file, too
    check_all(DTYPE_BF16, "failing");

    assert_true(sim_cublaslt_counts.runs[SIM_ALGORITHM_SCALAR] > 0);
    assert_int_equal(sim_cublaslt_counts.runs[SIM_ALGORITHM_TILED] +
                         sim_cublaslt_counts.runs[SIM_ALGORITHM_SPLIT],
                     0);
}

// Takes what memory there is left, in ever smaller blocks.
enum { MAX_BLOCKS = 64 };
static int take_memory(void *blocks[MAX_BLOCKS]) {
    int count = 0;
    for (size_t bytes = (size_t)1 << 40; bytes >= 256; bytes /= 2)
        while (count < MAX_BLOCKS && cudaMalloc(&blocks[count], bytes) == cudaSuccess) count++;
    (void)cudaGetLastError();
    return count;
}

TEST(a_choice_made_without_memory_is_made_once) {
    void *blocks[MAX_BLOCKS];
    start("", "", GELU_FUSION_AUTO);
    Layer l = layer_make(DTYPE_FP16, DTYPE_FP32, "no memory");
    const int count = take_memory(blocks);
    layer_run(&l, true);
    layer_check(&l, true);
    for (int i = 0; i < count; i++) assert_int_equal(cudaFree(blocks[i]), cudaSuccess);
    const int64_t before = runs();
    layer_run(&l, true);
    assert_int_equal(runs() - before, 3);
    op_end();
}

// The first one that the library offers adds in changing order, as its reduction scheme says.
TEST(algorithms_that_do_not_repeat_are_not_taken) {
    start("all", "", GELU_FUSION_NONE);
    Layer l = layer_make(DTYPE_FP32, DTYPE_FP32, "repeatable");
    layer_run(&l, false);
    uint64_t digest = layer_digest(&l);
    assert_int_equal(sim_cublaslt_counts.runs[SIM_ALGORITHM_IN_PLACE], 0);
    assert_true(sim_cublaslt_counts.runs[SIM_ALGORITHM_SPLIT] > 0);
    for (int i = 0; i < 5; i++) {
        layer_run(&l, false);
        if (layer_digest(&l) != digest) op_fail("run %d differs", i);
    }
    op_end();
}

// Three candidates take two runs each, at most 11 rounds, the check of the winner, and the product
// itself.
TEST(a_plan_takes_few_runs) {
    start("all", "", GELU_FUSION_AUTO);
    Layer l = layer_make(DTYPE_BF16, DTYPE_FP32, "runs");
    layer_run(&l, false);
    assert_true(runs() <= gemm_counts().plans * (3 * (2 + 11) + 2));
    op_end();
}

// Nobody waits for a contest that is not worth it: shapes that no training step has, a program that
// only evaluates, one that runs under tools. The library's favourite is checked once, and the
// choice is not the run's.
TEST(outside_training_the_favourite_is_taken) {
    for (int i = 0; i < 4; i++) {
        start_as("all", "", (DeviceOptions){.gelu_fusion = GELU_FUSION_BOTH, .no_tuning = i == 3});
        Layer l = layer_make(DTYPE_BF16, DTYPE_FP32, "favourite");

        const OpsShape step = {
            .B = 1, .T = N, .C = OC, .NH = 1, .Vp = 128, .num_tensors = 1, .dtype = DTYPE_BF16};
        OpsShape other = step;
        if (i == 0) other.T = N / 2;
        if (i == 1) other.C = OC - 8;
        if (i == 2) other.forward_only = true;
        cuda_matmul_note_shape(other);

        layer_run(&l, false);
        layer_check(&l, false);
        assert_int_equal(gemm_counts().timed, 0);
        assert_int_equal(runs(), 2 * gemm_counts().plans);

        char *text = device_tuning();
        assert_string_equal(text, "");
        free(text);
        op_end();
    }
}

// The measurement of the machine's speed has the rows of a step here, and no product of a model.
TEST(measuring_the_speed_is_no_choice_of_the_run) {
    Error err;
    DeviceSpeed speed;
    start("all", "", GELU_FUSION_AUTO);
    sim_set_clock(-1.0); // the measurement ends when a copy took long enough

    op_begin(
        (OpsShape){
            .B = 1, .T = 128, .C = 64, .NH = 1, .Vp = 512, .num_tensors = 1, .dtype = DTYPE_BF16},
        "speed");

    if (!speed_measure(DTYPE_BF16, 0, &speed, &err)) op_fail("%s", err.text);
    assert_true(gemm_counts().plans > 0);
    assert_int_equal(gemm_counts().timed, 0);

    char *text = device_tuning();
    assert_string_equal(text, "");
    free(text);
    op_end();
}

// Another process with the file of choices as it is.
static int run_another_layer(void *vice) {
    start("all", "", GELU_FUSION_NONE);
    setenv("SIM_CUBLASLT_VICES", vice, 1);
    Layer l = layer_make(DTYPE_BF16, DTYPE_FP32, "in a process of its own");
    layer_run(&l, false);
    layer_check(&l, false);
    op_end();
    return 0;
}

static int run_a_layer(void *vice) {
    unlink(tmp_file("tuning"));
    return run_another_layer(vice);
}

// stderr says of each product: the wrong algorithm, as often as it is tried, then the one that is
// used.
static void expect_replaced(int (*run)(void *vice), char *vice, int wrong, int used) {
    char text[16384], not_used_name[32], used_name[32];
    assert_int_equal(status_of_child(run, vice, text, sizeof text), 0);
    snprintf(not_used_name, sizeof not_used_name, ": algorithm %d (tile ", wrong);
    snprintf(used_name, sizeof used_name, ": algorithm %d (tile ", used);

    int products = 0;
    bool open = false;
    for (char *line = strtok(text, "\n"); line; line = strtok(NULL, "\n")) {
        const bool is_wrong = strstr(line, not_used_name) && strstr(line, " and is not used");
        const bool is_used = strstr(line, used_name) && strstr(line, ") is used");
        if (!is_wrong && !(is_used && open)) op_fail("%s: %s", vice, line);
        open = is_wrong;
        products += is_used;
    }

    if (open || products != 3) op_fail("%s: of 3 products %d were replaced", vice, products);
}
TEST(a_wrong_algorithm_and_the_one_that_replaces_it_are_named) {
    expect_replaced(run_a_layer, "tiled:wrong", SIM_ALGORITHM_TILED, SIM_ALGORITHM_SPLIT);
    expect_replaced(run_a_layer, "split:wrong,tiled:slow,scalar:slow", SIM_ALGORITHM_SPLIT,
                    SIM_ALGORITHM_TILED);
}

// In the contest that follows, the wrong one may win again, or lose.
TEST(a_wrong_algorithm_of_the_file_and_the_one_that_replaces_it_are_named) {
    static char *const vices[] = {"tiled:wrong", "tiled:wrong,tiled:slow"};
    for (int i = 0; i < 2; i++) {
        char text[4096];
        assert_int_equal(status_of_child(run_a_layer, "", text, sizeof text), 0);
        assert_string_equal(text, "");
        expect_replaced(run_another_layer, vices[i], SIM_ALGORITHM_TILED, SIM_ALGORITHM_SPLIT);
    }
}

// stderr names winners only, and what runs.
TEST(a_wrong_algorithm_that_does_not_win_is_not_named) {
    char text[4096];
    assert_int_equal(status_of_child(run_a_layer, "tiled:wrong,tiled:slow", text, sizeof text), 0);
    assert_string_equal(text, "");
    assert_int_equal(status_of_child(run_a_layer, "", text, sizeof text), 0);
    // what the file says
    assert_int_equal(status_of_child(run_another_layer, "tiled:fails", text, sizeof text), 0);
    assert_string_equal(text, "");
}

// Short memory is neither a bug nor a reason to choose.
TEST(without_memory_for_a_kernel_the_program_says_so) {
    char text[4096];
    const int status = status_of_child(run_a_layer, "tiled:full", text, sizeof text);
    if (!WIFEXITED(status) || WEXITSTATUS(status) != EXIT_RUN_FAILED ||
        !strstr(text, ": out of memory for matmul "))
        op_fail("status %d: %s", status, text);
}

static int allocate_too_much(void *unused) {
    void *p;
    (void)unused;
    CUDA_CHECK(cudaMalloc(&p, (size_t)1 << 40));
    return 0;
}
TEST(a_runtime_without_memory_is_no_bug) {
    char text[4096];
    const int status = status_of_child(allocate_too_much, NULL, text, sizeof text);
    if (!WIFEXITED(status) || WEXITSTATUS(status) != EXIT_RUN_FAILED ||
        !strstr(text, ": out of memory for cudaMalloc"))
        op_fail("status %d: %s", status, text);
}

TEST(the_second_use_searches_and_measures_nothing) {
    start("all", "", GELU_FUSION_AUTO);
    Layer l = layer_make(DTYPE_BF16, DTYPE_FP32, "second use");
    layer_run(&l, false);
    layer_run(&l, true);
    assert_true(gemm_counts().timed > 0);

    const GemmCounts before = gemm_counts();
    const long searches = sim_cublaslt_counts.searches;
    int64_t launched = runs();

    layer_run(&l, false);
    layer_run(&l, true);

    assert_int_equal(gemm_counts().plans, before.plans);
    assert_int_equal(gemm_counts().timed, before.timed);
    assert_int_equal(sim_cublaslt_counts.searches, searches);
    assert_int_equal(runs() - launched, 6);
    op_end();
}

// Another process is a device that starts anew. Whatever the first one chose, the second one
// repeats, bit by bit: a new contest would choose otherwise.
TEST(the_next_process_takes_the_choices_from_the_file) {
    uint64_t digests[3];
    for (int process = 0; process < 3; process++) {
        start("all", "", GELU_FUSION_AUTO);
        if (process == 0) setenv("SIM_CUBLASLT_VICES", "tiled:slow,scalar:slow", 1);
        op_random_restart();

        Layer l = layer_make(DTYPE_BF16, DTYPE_FP32, "next process");
        layer_run(&l, false);
        layer_run(&l, true);
        digests[process] = layer_digest(&l);

        if (process > 0) {
            assert_int_equal(gemm_counts().timed, 0);
            assert_int_equal(sim_cublaslt_counts.searches, 0);
            // each algorithm once before it is trusted
            assert_int_equal(runs(), 6 + gemm_counts().plans);
            if (digests[process] != digests[0]) op_fail("process %d gives other bits", process);
        }

        op_end();
    }
}

// A checkpoint keeps what its run chose: the same machine takes it, no other does.
TEST(the_choices_of_a_run_are_restored_on_its_machine_alone) {
    start("all", "", GELU_FUSION_AUTO);
    check_all(DTYPE_BF16, "first run");
    char *chosen = device_tuning();
    assert_true(chosen && *chosen);

    start_with("", "all", GELU_FUSION_AUTO);
    assert_true(device_restore_tuning(chosen));
    check_all(DTYPE_BF16, "restored");
    assert_int_equal(gemm_counts().timed, 0);

    start_with("", "all", GELU_FUSION_AUTO);
    char *sms = strstr(chosen, " SMs");
    sms[-1] = sms[-1] == '2' ? '3' : '2';
    assert_false(device_restore_tuning(chosen));
    check_all(DTYPE_BF16, "another machine");
    assert_true(gemm_counts().timed > 0);

    free(chosen);
}

TEST(damaged_choices_are_measured_again) {
    const char *path = tmp_file("tuning");
    start("all", "", GELU_FUSION_AUTO);
    check_all(DTYPE_FP32, "before");

    size_t size;
    free(read_bytes(path, &size));
    assert_int_equal(truncate(path, (off_t)size / 2), 0);
    start("all", "", GELU_FUSION_AUTO);
    check_all(DTYPE_FP32, "half of the file");

    write_text(path, "this is not\ta tuning\tfile\n");
    start("all", "", GELU_FUSION_AUTO);
    check_all(DTYPE_FP32, "another file");
    assert_true(gemm_counts().timed > 0);
}

// A well-formed entry that the library does not take: made by another version of it, say.
TEST(an_algorithm_that_the_library_does_not_take_is_replaced) {
    start("all", "", GELU_FUSION_NONE);
    check_all(DTYPE_FP32, "before");

    char line[2048], keys[32][CHOICES_KEY_MAX];
    FILE *f = fopen(tmp_file("tuning"), "r");
    assert_non_null(f);
    int spoiled = 0;
    unsigned char wrong[64];
    memset(wrong, 0xA5, sizeof wrong);

    while (spoiled < 32 && fgets(line, sizeof line, f)) {
        line[strcspn(line, "\t")] = 0;
        if (strstr(line, ", cuBLASLt ")) snprintf(keys[spoiled++], sizeof keys[0], "%s", line);
    }
    fclose(f);
    assert_true(spoiled > 0);

    for (int i = 0; i < spoiled; i++) choices_file_put(keys[i], wrong, sizeof wrong);
    start("all", "", GELU_FUSION_NONE);
    check_all(DTYPE_FP32, "spoiled");
    assert_true(sim_cublaslt_counts.checks > 0);
    assert_true(gemm_counts().timed > 0);
}

// One that the library takes, but that does not compute what it did.
TEST(an_algorithm_of_the_file_that_computes_something_else_is_replaced) {
    static const struct {
        const char *before, *after;
    } vices[] = {{"", "tiled:wrong"},
                 {"tiled:slow,scalar:slow", "split:half"},
                 {"tiled:slow,split:slow", "scalar:wrong"}};

    for (int i = 0; i < 3; i++) {
        start_with(vices[i].before, "all", GELU_FUSION_BOTH);
        check_all(DTYPE_BF16, "before");

        start("all", "", GELU_FUSION_BOTH);
        setenv("SIM_CUBLASLT_VICES", vices[i].after, 1);
        check_all(DTYPE_BF16, vices[i].after);
    }
}

TEST(products_can_be_captured_and_replayed) {
    Error err;
    start("all", "", GELU_FUSION_AUTO);
    Layer l = layer_make(DTYPE_BF16, DTYPE_FP32, "captured");
    layer_run(&l, false);
    layer_run(&l, true);
    uint64_t eager = layer_digest(&l);

    DeviceGraph *graph = device_graph_create(&err);
    assert_non_null(graph);

    int replays = 0;
    for (int i = 0; i < 4; i++) {
        op_poison(l.dw1), op_poison(l.db1), op_poison(l.act), op_poison(l.dpre);
        if (device_graph_replay(graph)) {
            replays++;
        } else {
            device_graph_begin(graph);
            layer_run(&l, false);
            layer_run(&l, true);
            device_graph_end(graph);
        }
        device_sync();
        if (layer_digest(&l) != eager) op_fail("pass %d differs from the eager one", i);
    }

    assert_true(replays > 0);
    device_graph_destroy(graph);
    op_end();
}

// An accumulating call that is the first of its shape measures on memory of its own: what stood
// there counts once. The bias gradient is that of the weight gradient's epilogue or kernel, then
// that of GELU's kernel.
TEST(a_first_use_that_accumulates_adds_once) {
    for (int gelu_may_sum = 0; gelu_may_sum <= 1; gelu_may_sum++) {
        start_with("", "all", GELU_FUSION_AUTO);
        Layer l = layer_make(DTYPE_FP16, DTYPE_FP32, "first use accumulates");
        layer_run_with(&l, gelu_may_sum, true);
        layer_check(&l, true);
        op_end();
    }
}

// The gradient of an 8 x 8 weight, summed over N rows whose every dout and in are the values of the
// row; the product of a row is their square.
static double sum_of_rows(DType dtype, int64_t rows, const double *value) {
    op_begin(
        (OpsShape){.B = 1, .T = rows, .C = 8, .NH = 1, .Vp = 128, .num_tensors = 1, .dtype = dtype},
        "order of sums");

    OpTensor dout = op_input(dtype, "dout", DIMS(rows, 8), 1.0),
             in = op_input(dtype, "in", DIMS(rows, 8), 1.0);
    OpTensor dw = op_output(DTYPE_FP32, "dw", DIMS(8, 8));
    for (int64_t i = 0; i < rows * 8; i++) dout.v[i] = fabs(value[i / 8]), in.v[i] = value[i / 8];
    op_upload(&dout), op_upload(&in);

    matmul_backward_weight(gradient_to(dw.t, false), gradient_none(), dout.t, in.t);
    const double sum = op_download(dw)[0];
    op_end();
    return sum;
}
// fp32 does not forgive another order of sums. The environment sets SIM_NUMERICS. 2^24 + 1 is 2^24
// in fp32, so 1 + 2^24 - 2^24 is 0 from the first number on and 1 from the last. 48 times 2^-28 is
// 3/2 units in the last place of 1, but no unit in the groups in which a tensor core adds them to
// it.
TEST(the_library_adds_as_its_hardware_does) {
    const bool hardware = getenv("SIM_NUMERICS") != NULL;
    start("", "", GELU_FUSION_AUTO);
    assert_true(sum_of_rows(DTYPE_FP32, 3, (const double[]){1.0, 4096.0, -4096.0}) ==
                (hardware ? 1.0 : 0.0));
    double few[64] = {[63] = 1.0};
    for (int i = 0; i < 48; i++) few[i] = 0x1p-14;
    assert_true(sum_of_rows(DTYPE_BF16, 64, few) == (hardware ? 1.0 : 1.0 + 0x1p-22));
}

// out (N,OC) = in (N,K) @ weight^T of normal numbers, with and without TF32. Returns |with -
// without| / |without|; *largest: of the differences, relative to the mean magnitude.
static double tf32_difference(int64_t K, double *largest) {
    double *values[2], sum = 0.0, difference = 0.0, mean = 0.0;
    for (int tf32 = 0; tf32 < 2; tf32++) {
        Error err;
        device_shutdown();
        if (!device_init(&(DeviceOptions){.tf32 = tf32}, &err)) op_fail("%s", err.text);
        op_random_restart();
        op_begin(
            (OpsShape){
                .B = 1, .T = N, .C = K, .NH = 1, .Vp = 128, .num_tensors = 1, .dtype = DTYPE_FP32},
            "TF32");

        OpTensor in = op_input(DTYPE_FP32, "in", DIMS(N, K), 1.0),
                 w = op_input(DTYPE_FP32, "w", DIMS(OC, K), 1.0);
        OpTensor out = op_output(DTYPE_FP32, "out", DIMS(N, OC));
        matmul_forward(out.t, in.t, w.t, tensor_none());
        values[tf32] = op_values(out.t);
        op_end();
    }

    *largest = 0.0;
    for (int i = 0; i < N * OC; i++) {
        const double exact = values[0][i], error = fabs(values[1][i] - exact);
        sum += exact * exact, difference += error * error, mean += fabs(exact) / (N * OC);
        *largest = fmax(*largest, error);
    }
    *largest /= mean;
    free(values[0]), free(values[1]);
    return sqrt(difference / sum);
}
// Rounding to the nearest of 2^10 mantissas errs by at most u = 2^-11 of a number, and by 0.425 u
// rms: evenly within half a step, whose share of the number is the rms of 1 / (sqrt(3) m) for
// mantissas m from 1 to 2. Both operands of a product are rounded, sqrt(2) 0.425 u = 0.60 u, and
// errors of K products grow as their sum does, with sqrt(K). Truncation errs by 1.20 u, one operand
// alone by 0.425 u, bf16 by 4.8 u. So are NVIDIA's own kernels: PyTorch's page "CUDA semantics"
// reports 0.1747 as the largest error of 10240 x 10240 sums of 10240 on a GA100, 5.8 times 0.60 u
// sqrt(K), and 0.0022 of the mean; of fewer sums the largest is less. Without hardware numbers
// nothing is rounded.
TEST(tf32_rounds_operands_to_10_bits_of_mantissa) {
    const double u = 0x1p-11;
    for (int64_t K = 64; K <= 1024; K *= 4) {
        double largest;
        const double error = tf32_difference(K, &largest);

        if (!getenv("SIM_NUMERICS")) {
            assert_true(error == 0.0);
            continue;
        }

        if (error < 0.5 * u || error > 0.7 * u)
            fail_msg("K = %d: %.3f u, expected 0.60", (int)K, error / u);
        assert_true(largest < 0.0022);
    }
}
