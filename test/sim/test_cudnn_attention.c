// Attention by cuDNN in the simulator, whose cuDNN interprets the graphs (dev/sim/cudnn_sim.cpp):
// what the graphs compute, against the specification, and that planted faults show; captured
// launches; and that every call that fails is reported and leaves nothing behind.
#include "test/sim/apart.h"
#include "test/sim/attention_case.h"

#include "dev/sim/cudnn_sim.h"
#include "llmc/cuda/cudnn_attention.h"
#include "llmc/cuda/cudnn_graph.h"
#ifndef HAVE_CUDNN

TEST(everything_needs_the_headers_of_cudnn) {
    print_message("built without the headers of cuDNN 9.8 or newer: its attention is not tested\n");
    skip();
}

#else
#include "test/sim/cudnn_faults.h"

// -------------------------------------------------------------------------------- what is computed

// B T NH NKV HS: one token, one head, contexts that are no multiple of a tile, real head sizes,
// shared heads.
static const AttentionShape shapes[] = {
    {2, 7, 3, 3, 8, DTYPE_BF16},   {1, 1, 1, 1, 16, DTYPE_FP16},    {2, 65, 2, 2, 64, DTYPE_BF16},
    {1, 33, 3, 3, 80, DTYPE_FP16}, {1, 130, 1, 1, 128, DTYPE_BF16}, {3, 40, 2, 2, 40, DTYPE_FP16},
    {2, 65, 6, 2, 64, DTYPE_BF16}, {1, 40, 4, 1, 128, DTYPE_FP16},
};
enum { NUM_SHAPES = sizeof shapes / sizeof *shapes };

// For tests that make cuDNN's passes themselves.
static void start_with_library(void) {
    Error why;
    start(ATTENTION_OWN);
    if (!cudnn_attention_open(&why)) op_fail("%s", why.text);
}

static void a_form_computes_attention(AttentionChoice form, const char *described) {
    start(form);
    for (int i = 0; i < NUM_SHAPES; i++) {
        Case c = begin(shapes[i], "both passes by cuDNN");
        forward(&c);
        backward(&c);

        specify(&c);
        op_check(c.out, shapes[i].dtype);
        op_check_logarithms(c.lse, shapes[i].dtype, 1.0);
        // at T = 1 dq and dk are zero but for rounding
        if (shapes[i].T > 1) op_check(c.dqkv, shapes[i].dtype);
        expect_text(cuda_attention_description(), described);
        op_end();
    }

    // the first time twice: see decide in attention.c
    assert_int_equal(sim_cudnn_counts.run, 2 * 2 * NUM_SHAPES);
    device_shutdown();
    assert_int_equal(sim_cudnn_counts.descriptors, 0);
    assert_int_equal(sim_cudnn_counts.handles, 0);
}

APART_TEST(the_graphs_compute_attention, "1", "90") {
    a_form_computes_attention(ATTENTION_CUDNN, "cuDNN 9.19.0");
}
APART_TEST(the_graphs_compute_attention_with_the_engine_of_blackwell, "1", "100") {
    a_form_computes_attention(ATTENTION_CUDNN, "cuDNN 9.19.0");
}
APART_TEST(so_does_the_form_of_attention_fast, "1", "90") {
    a_form_computes_attention(
        ATTENTION_FAST, "forward cuDNN 9.19.0, backward cuDNN 9.19.0 without repeatable bits");
}

// On an H200 with cuDNN 9.25, where the ordinary form's workspace is too large: dQ collected in the
// caller's array.
APART_TEST(the_graph_that_collects_dq_computes_attention, "92500", "90") {
    const AttentionShape s = {.B = 1, .T = 200, .NH = 2, .NKV = 2, .HS = 16, .dtype = DTYPE_BF16};
    Error why = {""};
    start_with_library();
    Case c = begin(s, "dQ collected");

    const int64_t squares = s.B * s.NH * s.T * s.T * 2;
    CudnnAttention *ordinary =
        cudnn_attention_create(ATTENTION_BACKWARD, s, BY_CUDNN_STORED, 2 * squares, &why);
    CudnnAttention *collecting =
        cudnn_attention_create(ATTENTION_BACKWARD, s, BY_CUDNN_ORDERED, squares, &why);
    if (!ordinary || !collecting) op_fail("%s", why.text);

    assert_true(cudnn_attention_workspace(ordinary) > squares);
    assert_true(cudnn_attention_workspace(collecting) <= squares);

    OpTensor workspace =
        op_output(DTYPE_U8, "workspace", DIMS(cudnn_attention_workspace(collecting)));
    forward(&c);
    if (!cudnn_attention_compile(collecting, &why) ||
        !cudnn_attention_run(collecting, c.out.t, c.lse.t, c.qkv.t, c.dqkv.t, c.dout.t,
                             workspace.t.data, &why))
        op_fail("%s", why.text);

    specify(&c);
    check(&c);

    cudnn_attention_destroy(ordinary), cudnn_attention_destroy(collecting);
    op_end();
    device_shutdown();
    assert_int_equal(sim_cudnn_counts.descriptors, 0);
}

// The second pass through a graph is captured, the third is a replay: same bits, no call that a
// step may not make.
APART_TEST(captured_launches_are_replayed, "1", "90") {
    Error err;
    start(ATTENTION_CUDNN);
    Case c = begin((AttentionShape){2, 40, 2, 2, 32, DTYPE_BF16}, "captured");

    DeviceGraph *graph = device_graph_create(&err);
    uint64_t bits[3];
    for (int i = 0; i < 3; i++) {
        op_poison(c.out), op_poison(c.lse), op_poison(c.dqkv);
        if (!device_graph_replay(graph)) {
            device_graph_begin(graph);
            forward(&c);
            backward(&c);
            device_graph_end(graph);
        }
        device_sync();
        bits[i] = op_digest(op_digest(op_digest(0, c.out), c.lse), c.dqkv);
    }

    specify(&c);
    check(&c);
    assert_true(bits[0] == bits[1] && bits[1] == bits[2]);
    assert_int_equal(sim_cudnn_counts.launched, 3 * 2); // the first time twice
    assert_int_equal(sim_cudnn_counts.run, 4 * 2);

    device_graph_destroy(graph);
    op_end();
    device_shutdown();
}

// ---------------------------------------------------------------------------------- planted faults

static double distance(OpTensor x) {
    double *got = op_values(x.t), error = op_relative_error(got, x.v, tensor_numel(x.t));
    free(got);
    return error;
}

// Runs the pass that the fault is in. Whether it was seen: refused, or in the numbers.
static bool is_seen(Case *c, Fault fault, OpTensor workspace) {
    const AttentionPass pass = fault.kind == CUDNN_FORWARD ? ATTENTION_FORWARD : ATTENTION_BACKWARD;
    const int64_t squares = c->shape.B * c->shape.NH * c->shape.T * c->shape.T * 2;
    Error why;
    double error = 0.0;

    plant(fault);
    CudnnAttention *a = cudnn_attention_create(
        pass, c->shape, fault.kind == CUDNN_BACKWARD_COLLECTED ? BY_CUDNN_ORDERED : BY_CUDNN_STORED,
        2 * squares, &why);
    bool runs = a && cudnn_attention_compile(a, &why);
    op_poison(workspace); // what the fault before left there may be right

    if (runs && pass == ATTENTION_FORWARD) {
        op_poison(c->out), op_poison(c->lse);
        runs = cudnn_attention_run(a, c->out.t, c->lse.t, c->qkv.t, tensor_none(), tensor_none(),
                                   workspace.t.data, &why);
        error = distance(c->out) + distance(c->lse);
    } else if (runs) {
        op_poison(c->dqkv);
        runs = cudnn_attention_run(a, c->out.t, c->lse.t, c->qkv.t, c->dqkv.t, c->dout.t,
                                   workspace.t.data, &why);
        error = distance(c->dqkv);
    }

    remove_fault();
    cudnn_attention_destroy(a);
    return !runs || !(error <= 2 * op_tolerance(c->shape.dtype)); // also when it is NaN
}

static void expect_seen(const Fault *faults, int n) {
    const AttentionShape s = {.B = 2, .T = 90, .NH = 3, .NKV = 3, .HS = 8, .dtype = DTYPE_BF16};
    start_with_library();
    Case c = begin(s, "planted faults");
    OpTensor workspace = op_output(DTYPE_U8, "workspace", DIMS(1 << 20));

    specify(&c);
    for (int i = 0; i < n; i++) {
        if (faults[i].kind != CUDNN_FORWARD) op_upload(&c.out), op_upload(&c.lse);
        if (!is_seen(&c, faults[i], workspace))
            op_fail("%s, operation %d left out, %s: not seen", kind_names[faults[i].kind],
                    faults[i].leave_out, faults[i].what ? faults[i].what : "");
    }

    op_end();
    device_shutdown();
}

static void expect_every_operation_counts(CudnnGraphKind kind) {
    Fault faults[CUDNN_GRAPH_MAX_OPERATIONS];
    for (int i = 0; i < num_operations[kind]; i++)
        faults[i] = (Fault){.kind = kind, .leave_out = i + 1};
    expect_seen(faults, num_operations[kind]);
}

APART_TEST(every_operation_of_the_forward_graph_counts, "1", "90") {
    expect_every_operation_counts(CUDNN_FORWARD);
}
APART_TEST(every_operation_of_the_backward_graph_counts, "1", "90") {
    expect_every_operation_counts(CUDNN_BACKWARD);
}
APART_TEST(every_operation_of_the_graph_that_collects_dq_counts, "92500", "90") {
    expect_every_operation_counts(CUDNN_BACKWARD_COLLECTED);
}

// All of these have a plan in cuDNN 9.19, most of them that of another computation.
APART_TEST(faults_that_cudnn_accepts_show_in_the_values, "1", "90") {
    enum { T = 90, NH = 3, HS = 8, C = NH * HS };
    const Fault faults[] = {
        {.what = "rows of K as in (B,T,C)", .tensor = CUDNN_K, .strides = {T * 3 * C, HS, 1, C}},
        {.what = "lse as (B,T,NH)", .tensor = CUDNN_LSE, .strides = {NH * T, 1, NH, 1}},
        {.what = "lse as (B,T,NH)",
         CUDNN_BACKWARD,
         .tensor = CUDNN_LSE,
         .strides = {NH * T, 1, NH, 1}},
        {.what = "dQ transposed",
         CUDNN_BACKWARD,
         .tensor = CUDNN_DQ,
         .strides = {T * 3 * C, HS, 1, 3 * C}},
        {.what = "mask row > column", .from = CUDNN_POINTWISE_CMP_GE, .to = CUDNN_POINTWISE_CMP_GT},
        {.what = "mask row < column", .from = CUDNN_POINTWISE_CMP_GE, .to = CUDNN_POINTWISE_CMP_LT},
        {.what = "mask row > column",
         CUDNN_BACKWARD,
         .from = CUDNN_POINTWISE_CMP_GE,
         .to = CUDNN_POINTWISE_CMP_GT},
        {.what = "dP + D, S + lse",
         CUDNN_BACKWARD,
         .from = CUDNN_POINTWISE_SUB,
         .to = CUDNN_POINTWISE_ADD},
    };
    expect_seen(faults, sizeof faults / sizeof *faults);
}

APART_TEST(without_a_fault_none_is_seen, "92500", "90") {
    const AttentionShape s = {.B = 2, .T = 90, .NH = 3, .NKV = 3, .HS = 8, .dtype = DTYPE_BF16};
    start_with_library();
    Case c = begin(s, "no fault");
    OpTensor workspace = op_output(DTYPE_U8, "workspace", DIMS(1 << 20));
    specify(&c);
    for (int kind = CUDNN_FORWARD; kind <= CUDNN_BACKWARD_COLLECTED; kind++) {
        op_upload(&c.out), op_upload(&c.lse);
        assert_false(is_seen(&c, (Fault){.kind = (CudnnGraphKind)kind}, workspace));
    }
    op_end();
    device_shutdown();
}
// ---------------------------------------------------------------------------------------- failures

// The real functions, and the number of the call that fails instead of being made.
static CudnnFunctions real;
static long call_number, failing_call;

static bool fails(void) { return ++call_number == failing_call; }
static cudnnStatus_t failing_create(cudnnHandle_t *handle) {
    return fails() ? CUDNN_STATUS_NOT_INITIALIZED : real.cudnnCreate(handle);
}
static cudnnStatus_t failing_set_stream(cudnnHandle_t handle, cudaStream_t stream) {
    return fails() ? CUDNN_STATUS_BAD_PARAM : real.cudnnSetStream(handle, stream);
}
static cudnnStatus_t failing_make(cudnnBackendDescriptorType_t type, cudnnBackendDescriptor_t *d) {
    return fails() ? CUDNN_STATUS_ALLOC_FAILED : real.cudnnBackendCreateDescriptor(type, d);
}
static cudnnStatus_t failing_set(cudnnBackendDescriptor_t d, cudnnBackendAttributeName_t name,
                                 cudnnBackendAttributeType_t type, int64_t count,
                                 const void *values) {
    return fails() ? CUDNN_STATUS_BAD_PARAM
                   : real.cudnnBackendSetAttribute(d, name, type, count, values);
}
static cudnnStatus_t failing_get(cudnnBackendDescriptor_t d, cudnnBackendAttributeName_t name,
                                 cudnnBackendAttributeType_t type, int64_t asked, int64_t *count,
                                 void *values) {
    return fails() ? CUDNN_STATUS_BAD_PARAM
                   : real.cudnnBackendGetAttribute(d, name, type, asked, count, values);
}
static cudnnStatus_t failing_finalize(cudnnBackendDescriptor_t d) {
    return fails() ? CUDNN_STATUS_NOT_SUPPORTED : real.cudnnBackendFinalize(d);
}
static cudnnStatus_t failing_execute(cudnnHandle_t handle, cudnnBackendDescriptor_t plan,
                                     cudnnBackendDescriptor_t pack) {
    return fails() ? CUDNN_STATUS_EXECUTION_FAILED : real.cudnnBackendExecute(handle, plan, pack);
}

// One pass from its creation to its launch. False, with the reason, when a call failed.
static bool create_and_run(AttentionPass pass, Case *c, void *workspace, Error *why) {
    CudnnAttention *a = cudnn_attention_create(pass, c->shape, BY_CUDNN_STORED, 1 << 20, why);
    bool ok = a && cudnn_attention_compile(a, why);
    if (ok && pass == ATTENTION_FORWARD)
        ok = cudnn_attention_run(a, c->out.t, c->lse.t, c->qkv.t, tensor_none(), tensor_none(),
                                 workspace, why);
    else if (ok)
        ok = cudnn_attention_run(a, c->out.t, c->lse.t, c->qkv.t, c->dqkv.t, c->dout.t, workspace,
                                 why);
    cudnn_attention_destroy(a);
    cudnn_attention_close();
    return ok;
}

APART_TEST(every_failing_call_is_reported_and_leaves_nothing_behind, "1", "90") {
    start_with_library();
    Case c = begin(small, "failing calls");
    OpTensor workspace = op_output(DTYPE_U8, "workspace", DIMS(1 << 20));
    forward(&c);

    real = cudnn;
    cudnn = (CudnnFunctions){real.cudnnGetVersion,
                             real.cudnnGetErrorString,
                             real.cudnnGetLastErrorString,
                             failing_create,
                             real.cudnnDestroy,
                             failing_set_stream,
                             failing_make,
                             real.cudnnBackendDestroyDescriptor,
                             failing_set,
                             failing_get,
                             failing_finalize,
                             failing_execute};

    for (int pass = 0; pass < ATTENTION_PASSES; pass++) {
        bool ok = false;
        long n = 0;
        while (!ok) {
            Error why = {""};
            call_number = 0, failing_call = ++n;
            ok = create_and_run((AttentionPass)pass, &c, workspace.t.data, &why);
            if (!ok && !why.text[0]) op_fail("call %ld failed without a message", n);
            if (sim_cudnn_counts.descriptors || sim_cudnn_counts.handles)
                op_fail("call %ld failed (%s): %ld descriptors and %ld handles are left", n,
                        why.text, sim_cudnn_counts.descriptors, sim_cudnn_counts.handles);
        }
        assert_true(n > 200); // it was the call behind the last one
    }

    cudnn = real;
    op_end();
    device_shutdown();
}
#endif
