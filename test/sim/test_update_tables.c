// The tables of the optimizer's kernels (llmc/cuda/optimizer_norm.cu) under the simulator's mark:
// after its first use a step over several lists of tensors and ranges of them neither waits nor
// allocates; the tables end with their list; and a range is one launch for each rule and format of
// states in it.
#include "dev/sim/sim_control.h"
#include "llmc/base/arithmetic.h"
#include "llmc/cuda/backend.h"
#include "test/test.h"
#include "test/unit/device_fixture.h"

// One parameter of every kind that a step can hold. N: not a multiple of anything, and more than
// one part.
enum { ROWS = 53, COLS = 100, N = ROWS * COLS, NUM_TENSORS = 8, SLICE = 2048, NUM_SLICES = 3 };
// Adafactor's sums, and the partial sums of the norm.
enum { WORKSPACE = 1 << 20, ARENA = 4 << 20 };

static struct {
    char *arena, *workspace;
    int64_t used;
    float *host; // pinned
    Tensor control, sumsq;
    UpdateTensor tensors[NUM_TENSORS], slices[NUM_SLICES];
    // all tensors; Muon's alone, as it takes the norm of its matrices; slices
    UpdateList whole, direction, sliced;
} step;

static const UpdateParams params = {
    .learning_rate = 0.1f, .moments = {{0.9f, 0.95f, 1e-3f}}, .momentum = 0.9f, .seed = 42};

// A tensor of the arena, with this byte in all its places.
static Tensor made(DType dtype, const char *name, int64_t rows, int64_t cols, int byte) {
    Tensor t = tensor_make(step.arena + step.used, dtype, name, rows, cols, 0, 0);
    step.used += round_up((int64_t)tensor_bytes(t), 256);
    assert_true(step.used <= ARENA);
    memset(step.host, byte, tensor_bytes(t));
    copy_h2d(t.data, step.host, tensor_bytes(t), STREAM_COMPUTE);
    device_sync();
    return t;
}

static UpdateTensor parameter(UpdateRule rule, DType states) {
    UpdateTensor t = {.rule = rule, .rate = 1.0f, .weight_decay = 0.1f};
    const int64_t blocks = ceil_div(N, STATE_BLOCK);

    t.weight = made(DTYPE_BF16, "weight", ROWS, COLS, 0x3C),
    t.grad = made(DTYPE_FP32, "grad", ROWS, COLS, 0x3D);
    if (rule == RULE_ADAFACTOR) {
        t.row = made(DTYPE_FP32, "row", ROWS, 0, 0x3D),
        t.col = made(DTYPE_FP32, "col", COLS, 0, 0x3D);
        t.rms = made(DTYPE_FP32, "rms", 1, 0, 0);
        return t;
    }

    t.m = made(states, "m", ROWS, COLS, 0x3B);
    if (rule == RULE_ADAMW) t.v = made(states, "v", ROWS, COLS, 0x3B);
    if (states == DTYPE_U8) {
        t.m_scale = made(DTYPE_FP32, "m_scale", blocks, 0, 0x3D);
        if (rule == RULE_ADAMW) t.v_scale = made(DTYPE_FP32, "v_scale", blocks, 0, 0x3D);
    }
    return t;
}

// AdamW's first tensor in slices, as offload cuts it.
static void make_slices(void) {
    for (int i = 0; i < NUM_SLICES; i++) {
        const int64_t begin = (int64_t)i * SLICE, count = N - begin < SLICE ? N - begin : SLICE;
        UpdateTensor t = step.tensors[0];
        Tensor *const all[] = {&t.weight, &t.grad, &t.m, &t.v};
        for (int k = 0; k < 4; k++) *all[k] = tensor_slice_elements(*all[k], begin, count);
        t.offset = begin;
        step.slices[i] = t;
    }
}

static int set_up(void **state) {
    static const struct {
        UpdateRule rule;
        DType states;
    } kinds[NUM_TENSORS] = {{RULE_ADAMW, DTYPE_FP32},     {RULE_ADAMW, DTYPE_U8},
                            {RULE_DIRECTION, DTYPE_FP32}, {RULE_ADAFACTOR, DTYPE_FP32},
                            {RULE_ADAMW, DTYPE_FP32},     {RULE_LION, DTYPE_FP32},
                            {RULE_SGD, DTYPE_BF16},       {RULE_ADAFACTOR, DTYPE_FP32}};

    Error err;
    if (start_device(state) != 0) return -1;
    step.arena = device_alloc(ARENA, &err), step.workspace = device_alloc(WORKSPACE, &err);
    step.host = host_alloc(ARENA, &err), step.used = 0;
    assert_true(step.arena && step.workspace && step.host);
    ops_set_workspace(step.workspace, WORKSPACE);

    step.sumsq = made(DTYPE_FP32, "sumsq", NUM_TENSORS, 0, 0);
    step.control = made(DTYPE_U8, "control", sizeof(StepControl), 0, 0);
    const StepControl control = step_control_initial(1.0f);
    memcpy(step.host, &control, sizeof control);
    copy_h2d(step.control.data, step.host, sizeof control, STREAM_COMPUTE);
    device_sync();

    for (int i = 0; i < NUM_TENSORS; i++) {
        step.tensors[i] = parameter(kinds[i].rule, kinds[i].states);
        step.tensors[i].stream = i;
    }

    make_slices();
    step.whole = update_list(step.tensors, NUM_TENSORS),
    step.direction = update_list(&step.tensors[2], 1);
    step.sliced = update_list(step.slices, NUM_SLICES);
    return 0;
}

static void free_lists(void) {
    update_list_free(&step.whole), update_list_free(&step.direction),
        update_list_free(&step.sliced);
}

static int tear_down(void **state) {
    sim_step_unmark();
    sim_set_lazy_streams(false);
    device_sync();
    ops_set_workspace(NULL, 0);
    free_lists();
    device_free(step.arena), device_free(step.workspace), host_free(step.host);
    return stop_device(state);
}
TestFixture test_each = {set_up, tear_down};

// The end of a step as trainers make it: norms of all tensors and of Muon's alone, the statistics,
// the update in ranges; then the slices of another list, one range after the other.
static void whole_step(void) {
    gradient_sumsq(step.sumsq, &step.whole);
    gradient_sumsq(tensor_slice_first(step.sumsq, 1), &step.direction);
    adafactor_statistics(&step.whole, step.control);
    momentum_update(&step.whole, params, step.control);
    optimizer_update(&step.whole, 0, 3, params, step.control);
    optimizer_update(&step.whole, 3, NUM_TENSORS - 3, params, step.control);
    for (int i = 0; i < NUM_SLICES; i++) optimizer_update(&step.sliced, i, 1, params, step.control);
}

// --------------------------------------------------------------------------------------- the tests

TEST(a_step_over_several_lists_neither_waits_nor_allocates) {
    sim_set_lazy_streams(true);
    whole_step(); // the tables are made
    const int before = sim_step_violations();
    const size_t allocated = cuda_backend.allocated;
    sim_step_mark();
    for (int i = 0; i < 3; i++) whole_step();
    sim_step_unmark();
    assert_int_equal(sim_step_violations(), before);
    assert_true(cuda_backend.allocated == allocated);
    device_sync(); // what was handed over runs without an error
}

// The check above can fail: a table that is made inside a step is seen, by its copies and by its
// wait.
TEST(a_new_list_is_seen_in_a_step) {
    whole_step();
    const int before = sim_step_violations();
    UpdateList list = update_list(step.tensors, NUM_TENSORS);
    sim_step_mark();
    optimizer_update(&list, 0, NUM_TENSORS, params, step.control);
    sim_step_unmark();
    assert_true(sim_step_violations() > before);
    update_list_free(&list);
}

TEST(the_tables_are_freed_with_their_lists) {
    const size_t before = cuda_backend.allocated;
    whole_step();
    assert_true(cuda_backend.allocated > before);
    free_lists();
    assert_true(cuda_backend.allocated == before);
    whole_step(); // and come back
}

// ---------------------------------------------------------------------------------------- launches

// How many launches the update of a range is: recorded, as the second pass of a graph.
static int launches(int first, int count) {
    Error err;
    DeviceGraph *graph = device_graph_create(&err);
    for (int pass = 0; pass < 2; pass++) {
        assert_false(device_graph_replay(graph));
        device_graph_begin(graph);
        optimizer_update(&step.whole, first, count, params, step.control);
        device_graph_end(graph);
    }
    const int nodes = (int)cuda_graph_nodes(graph);
    device_graph_destroy(graph);
    return nodes;
}

TEST(a_range_is_one_launch_for_each_rule_and_format_in_it) {
    // Two AdamW tensors in fp32 are one; Adafactor makes the means of its rows first.
    assert_int_equal(launches(0, NUM_TENSORS), 5 + 2);
    assert_int_equal(launches(0, 1), 1);
    assert_int_equal(launches(1, 1), 1);
    assert_int_equal(launches(2, 4), 3 + 2); // direction, AdamW, Lion; Adafactor
    assert_int_equal(launches(7, 1), 2);
    assert_int_equal(launches(4, 0), 0);
}
