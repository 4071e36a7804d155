// cuDNN's attention without a GPU: the graphs of llmc/cuda/cudnn_graph.c and the choice of
// cudnn_plan.c, for GPUs that are described by a text.
//
// The libraries decide what is proven. With libcudnn, and with the stand-in for libcuda that lies
// beside this program: cuDNN recognises each graph, has a fused engine for it on the architecture,
// compiles its kernel, and the plan is finished. With a driver's library that this stand-in does
// not satisfy (another version of cuDNN): all of that but the kernel's loading, which is the last
// step. Without libcudnn: nothing, and every test says so and is skipped. Nowhere: that the kernels
// compute what they should, and how fast; that takes a GPU.
//
// CUDNN_GRAPHS=all compiles a kernel of each kind for every architecture and head size, 80 s of
// processor time; otherwise one of each kind is compiled and the rest goes up to the choice of the
// engine, which is where a graph is recognised.

#include "llmc/cuda/cudnn_graph.h"
#include "test/fixture.h"

#ifndef HAVE_CUDNN

TEST(everything_needs_the_headers_of_cudnn) {
    print_message("built without the headers of cuDNN 9.8 or newer: its graphs are not tested\n");
    skip();
}

#else
#include "test/sim/cudnn_faults.h"
#include <dlfcn.h>
#include <libgen.h>
#include <time.h>

// cuDNN and NVRTC leave memory behind, and their code is gone when leaks are reported, so that they
// cannot be told from ours. That ours does not leak is shown with the simulator's cuDNN
// (test_cudnn_attention).
const char *__asan_default_options(void);
const char *__asan_default_options(void) { return "detect_leaks=0"; }

// ----------------------------------------------------------------------------------------- devices

// Support depends on these properties. The rest is filled in with what most of these GPUs have.
typedef struct {
    const char *name;
    int compute_capability, units, shared_per_block, blocks_per_unit, threads_per_unit;
} DeviceText;

static const DeviceText tesla_t4 = {"Tesla T4", 75, 40, 65536, 16, 1024};
static const DeviceText devices[] = {
    {"NVIDIA A100-SXM4-80GB", 80, 108, 166912, 32, 2048},
    {"NVIDIA GeForce RTX 4090", 89, 128, 101376, 24, 1536},
    {"NVIDIA H200", 90, 132, 232448, 32, 2048},
    {"NVIDIA B200", 100, 148, 232448, 32, 2048},
    {"NVIDIA GeForce RTX 5090", 120, 170, 101376, 24, 1536},
};
enum { NUM_DEVICES = sizeof devices / sizeof *devices, A100 = 0, H200 = 2, B200 = 3 };

static cudnnBackendDescriptor_t describe(const DeviceText *d) {
    char json[1024];
    Error err;
    snprintf(
        json, sizeof json,
        "{\"maxGridSize\": [2147483647, 65535, 65535], \"maxBlockSize\": [1024, 1024, 64], "
        "\"regsPerBlock\": 65536, \"multiProcessorCount\": %d, \"warpSize\": 32, "
        "\"maxSharedMemoryPerBlock\": 49152, \"maxSharedMemoryPerBlockOptin\": %d, "
        "\"reservedSharedMemoryPerBlock\": 1024, \"maxRegistersPerSM\": 65536, \"maxCtasPerSM\": "
        "%d, "
        "\"maxThreadsPerBlock\": 1024, \"maxThreadsPerSM\": %d, \"pciDeviceId\": 0, "
        "\"isTccDriver\": 0, "
        "\"supportCoopLaunch\": 1, \"totalGlobalMem\": 85024112640, \"smClockRateKHz\": 1980000, "
        "\"memClockRateKHz\": 2619000, \"l2CacheSize\": 52428800, \"cudaDeviceId\": 0, "
        "\"deviceVer\": %d, "
        "\"driverVer\": 13000, \"deviceName\": \"%s\"}",
        d->units, d->shared_per_block, d->blocks_per_unit, d->threads_per_unit,
        d->compute_capability * 10, d->name);

    cudnnBackendDescriptor_t device = cudnn_device_of_text(json, &err);
    if (!device) fail_msg("%s: %s", d->name, err.text);
    return device;
}

// ----------------------------------------------------------------------------------- the libraries

static const int64_t NO_LIMIT = (int64_t)1 << 50;

// cuDNN opens libcuda.so.1 by that name; a library of that name which is already there is the one
// it gets.
static bool load_fake_driver(Error *err) {
    char program[PATH_MAX], path[PATH_MAX + 64];
    const ssize_t length = readlink("/proc/self/exe", program, sizeof program - 1);
    if (length <= 0) return error_set(err, "/proc/self/exe cannot be read");
    program[length] = '\0';
    snprintf(path, sizeof path, "%s/fake_libcuda/libcuda.so.1", dirname(program));
    return dlopen(path, RTLD_NOW | RTLD_GLOBAL) || error_set(err, "%s", dlerror());
}

static void need_cudnn(void) {
    Error err;
    if (cudnn_library_open(&err)) return;
    print_message("SKIPPED, cuDNN's graphs are not tested here: %s\n", err.text);
    skip();
}

// A finished plan, or one that lacks nothing but a driver that takes the kernel.
static bool compiles(CudnnPlan *plan, Error *err) {
    if (cudnn_plan_compile(plan, err)) return true;
    if (!strstr(err->text, "cuLibraryLoadData") && !strstr(err->text, "libcuda")) return false;
    print_message("accepted up to the driver: %s\n", err->text);
    return true;
}

static double seconds(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static int open_library(void *file) {
    Error err;
    setenv("CUDNN_LIBRARY", file, 1);
    if (cudnn_library_open(&err)) snprintf(err.text, sizeof err.text, "opened");
    fputs(err.text, stderr);
    return 0;
}

// Loading the library says this when CUDNN_LIBRARY is set to file. A process of its own asks.
static void expect_refusal(char *file, const char *expected) {
    char said[sizeof(Error)];
    status_of_child(open_library, file, said, sizeof said);
    if (!strstr(said, expected))
        fail_msg("CUDNN_LIBRARY=%s: \"%s\", expected \"%s\"", file, said, expected);
}

TEST(a_library_that_is_no_cudnn_is_named_and_not_used) {
    expect_refusal("/nowhere/libcudnn.so.9", "cuDNN not found: /nowhere/libcudnn.so.9");
    expect_refusal("libm.so.6", "libm.so.6 has no function cudnnGetVersion");
}

// -------------------------------------------------------------------------------- what is accepted

// Whether the kernels of the whole matrix are to be compiled.
static bool compiles_all(void) {
    const char *graphs = getenv("CUDNN_GRAPHS");
    return graphs && strcmp(graphs, "all") == 0;
}

// The graph of this kind has an engine; with compile, its kernel compiles too.
static void expect_accepted(const DeviceText *d, CudnnGraphKind kind, AttentionShape s,
                            bool compile) {
    char what[256];
    Error err = {"?"};
    snprintf(what, sizeof what, "%s: %s B=%d T=%d NH=%d NKV=%d HS=%d %s", d->name, kind_names[kind],
             (int)s.B, (int)s.T, (int)s.NH, (int)s.NKV, (int)s.HS, dtype_name(s.dtype));
    cudnnBackendDescriptor_t device = describe(d);
    CudnnGraph *graph = cudnn_graph_create(kind, s, &err);
    CudnnPlan *plan = graph ? cudnn_plan_create(graph, device, NULL, true, NO_LIMIT, &err) : NULL;
    if (!plan && !strstr(err.text, "libcuda")) fail_msg("%s: %s", what, err.text);
    if (plan && compile && !compiles(plan, &err)) fail_msg("%s: %s", what, err.text);
    cudnn_plan_destroy(plan);
    cudnn_graph_destroy(graph);
    cudnn_destroy(device);
}

TEST(graphs_are_recognised_on_every_architecture_type_head_size_and_odd_context) {
    need_cudnn();
    const bool compile = compiles_all();
    for (int d = 0; d < NUM_DEVICES; d++)
        for (int kind = CUDNN_FORWARD; kind <= CUDNN_BACKWARD_COLLECTED; kind++)
            for (int64_t HS = 64; HS <= 128; HS += 64) {
                const AttentionShape even = {4, 1024, 12, 12, HS, DTYPE_BF16},
                                     half = {4, 1024, 12, 12, HS, DTYPE_FP16};
                const AttentionShape odd = {2, 77, 3, 3, HS, DTYPE_BF16},
                                     shared = {4, 1024, 12, 4, HS, DTYPE_BF16};

                const bool variants = compile && HS == 64 && (d == A100 || d == H200);
                expect_accepted(&devices[d], (CudnnGraphKind)kind, even, compile);
                expect_accepted(&devices[d], (CudnnGraphKind)kind, half, variants);
                expect_accepted(&devices[d], (CudnnGraphKind)kind, odd, variants);
                expect_accepted(&devices[d], (CudnnGraphKind)kind, shared, variants);
            }
}

TEST(small_shapes_and_other_head_sizes_are_recognised) {
    need_cudnn();
    static const AttentionShape shapes[] = {
        {1, 1, 1, 1, 64, DTYPE_BF16},  {1, 1000, 25, 25, 64, DTYPE_FP16},
        {3, 33, 2, 2, 8, DTYPE_BF16},  {2, 130, 2, 2, 16, DTYPE_BF16},
        {2, 96, 5, 5, 80, DTYPE_BF16}, {1, 2048, 2, 2, 96, DTYPE_FP16},
    };
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++)
        for (int d = 0; d < NUM_DEVICES; d++) {
            expect_accepted(&devices[d], CUDNN_FORWARD, shapes[i], false);
            expect_accepted(&devices[d], CUDNN_BACKWARD, shapes[i], false);
        }
}

// The two tests below ask cuDNN for these: GPT-2 124M at B=64, and the same with three heads of q
// for each of k and v.
static AttentionShape shape_of_a_run(int shared) {
    return (AttentionShape){64, 1024, 12, shared ? 4 : 12, 64, DTYPE_BF16};
}
static OpsShape ops_shape_of(AttentionShape s) {
    return (OpsShape){
        .B = s.B, .T = s.T, .NH = s.NH, .NKV = s.NKV, .C = s.NH * s.HS, .dtype = s.dtype};
}

// The plan of one pass, with the engine and the workspace that were chosen. The kernel is compiled
// where all are, and for GPT-2.
static CudnnPass *plan_of_a_run(const DeviceText *d, cudnnBackendDescriptor_t device,
                                AttentionPass pass, AttentionShape shape, AttentionWay way) {
    Error err = {"?"};
    const double start = seconds();
    CudnnPass *p =
        cudnn_pass_create(pass, shape, device, d->compute_capability, way, NO_LIMIT, &err);
    if (!p) fail_msg("%s: %s", d->name, err.text);
    if (!p) return NULL; // fail_msg jumps; the analyzer is not told
    const double chosen = seconds();
    print_message("%-24s %-8s NKV %2lld, workspace %10lld bytes, chosen in %.3f s", d->name,
                  kind_names[p->kind], (long long)shape.NKV, (long long)p->workspace.bytes,
                  chosen - start);
    if (shape.NKV == shape.NH || compiles_all()) {
        if (!compiles(p->plan, &err)) fail_msg("%s: %s", d->name, err.text);
        print_message(", engine %lld compiled in %.3f s", (long long)p->plan->compiled_engine,
                      seconds() - chosen);
    }
    print_message("\n");
    return p;
}

// The table of cudnn_plan.c says which engine serves, and in how much workspace: an engine made for
// the architecture on sm_90 and sm_100, the one for sm_80 elsewhere. It takes no more workspace
// than the planner counts.
TEST(a_run_gets_plans_that_repeat_on_every_architecture) {
    need_cudnn();
    for (int d = 0; d < NUM_DEVICES; d++)
        for (int i = 0; i < 2 * ATTENTION_PASSES; i++) {
            const AttentionPass pass = (AttentionPass)(i / 2);
            const AttentionShape shape = shape_of_a_run(i % 2);

            cudnnBackendDescriptor_t device = describe(&devices[d]);
            CudnnPass *p = plan_of_a_run(&devices[d], device, pass, shape, BY_CUDNN_STORED);
            if (!p) return;

            assert_true(p->kind == (pass ? CUDNN_BACKWARD : CUDNN_FORWARD));
            assert_true(cudnn_graph_has(p->graph, CUDNN_DSUM) == (pass == ATTENTION_BACKWARD));
            assert_false(cudnn_graph_has(p->graph, CUDNN_DQ_SUMS));
            OpsShape ops = ops_shape_of(shape);
            ops.forward_only = pass == ATTENTION_FORWARD;
            assert_in_range(p->workspace.bytes, 0,
                            cuda_size_cudnn(ops, devices[d].compute_capability, NO_LIMIT));

            cudnn_pass_destroy(p);
            cudnn_destroy(device);
        }
}

// --attention fast: no squares of T in the workspace, sums of dQ instead, and no more of them than
// the planner counts.
TEST(the_form_that_need_not_repeat_is_made_where_it_is_asked_for) {
    need_cudnn();
    for (int d = 0; d < NUM_DEVICES; d++)
        for (int shared = 0; shared < 2; shared++) {
            const AttentionShape shape = shape_of_a_run(shared);
            cudnnBackendDescriptor_t device = describe(&devices[d]);
            CudnnPass *p =
                plan_of_a_run(&devices[d], device, ATTENTION_BACKWARD, shape, BY_CUDNN_UNORDERED);
            if (!p) return;

            assert_true(p->kind == CUDNN_BACKWARD_COLLECTED);
            assert_true(cudnn_graph_has(p->graph, CUDNN_DQ_SUMS));
            assert_in_range(
                p->workspace.bytes, 0,
                cuda_size_cudnn_fast(ops_shape_of(shape), devices[d].compute_capability));

            cudnn_pass_destroy(p);
            cudnn_destroy(device);
        }
}

TEST(a_plan_keeps_to_the_workspace_it_is_allowed) {
    need_cudnn();
    const AttentionShape shape = {64, 1024, 12, 12, 64, DTYPE_BF16};
    Error err = {""};
    cudnnBackendDescriptor_t device = describe(&devices[H200]);
    CudnnPass *p =
        cudnn_pass_create(ATTENTION_BACKWARD, shape, device, 90, BY_CUDNN_STORED, 1 << 30, &err);
    if (p && p->kind == CUDNN_BACKWARD) fail_msg("1 GB were enough");
    if (!p && !strstr(err.text, "bytes of workspace")) fail_msg("%s", err.text);
    cudnn_pass_destroy(p);
    cudnn_destroy(device);
}

// --------------------------------------------------------------------------------- what is refused

static int plan_with(void *context) {
    const Fault *fault = context;
    // cmocka's handlers would go on
    static const int signals[] = {SIGSEGV, SIGFPE, SIGBUS, SIGILL, SIGABRT};
    for (size_t i = 0; i < sizeof signals / sizeof *signals; i++) signal(signals[i], SIG_DFL);

    const AttentionShape shape = {2, 256, 3, 3, 64, DTYPE_BF16};
    Error err = {""};
    cudnnBackendDescriptor_t device = describe(&devices[H200]);

    plant(*fault);
    CudnnGraph *graph = cudnn_graph_create(fault->kind, shape, &err);
    CudnnPlan *plan = graph ? cudnn_plan_create(graph, device, NULL, true, NO_LIMIT, &err) : NULL;
    const bool ok = plan && compiles(plan, &err);

    fputs(err.text, stderr);
    return ok ? 0 : 1;
}

// Whether cuDNN makes a plan of the graph with the fault; if not, why. In a process of its own,
// because cuDNN 9.19 divides by zero or reads through NULL on some graphs that make no sense.
static bool accepted(Fault fault, Error *why) {
    const int status = status_of_child(plan_with, &fault, why->text, sizeof why->text);
    if (WIFSIGNALED(status)) error_set(why, "signal %d inside cuDNN", WTERMSIG(status));
    return WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

// cuDNN looks only as closely as it must to tell attention from other graphs: 9.19 accepts a mask
// without its column index, and dQ without the reshape of K. That such graphs would compute
// something else is seen in the simulator, by test_cudnn_attention. Here: most operations are
// missed, and without a fault none is.
TEST(a_graph_that_lacks_an_operation_is_refused) {
    need_cudnn();
    for (int kind = CUDNN_FORWARD; kind <= CUDNN_BACKWARD_COLLECTED; kind++) {
        Fault fault = {.kind = (CudnnGraphKind)kind};
        Error why;
        int refused = 0;
        if (!accepted(fault, &why)) fail_msg("%s: %s", kind_names[kind], why.text);

        for (fault.leave_out = 1; fault.leave_out <= num_operations[kind]; fault.leave_out++)
            if (!accepted(fault, &why))
                refused++;
            else
                print_message("%s is accepted without operation %d\n", kind_names[kind],
                              fault.leave_out);

        if (refused < num_operations[kind] - 4)
            fail_msg("%s: only %d operations are missed", kind_names[kind], refused);
    }
}

TEST(a_wrong_stride_or_operation_is_refused) {
    need_cudnn();
    enum { T = 256, C = 3 * 64, HS = 64 }; // as in accepted
    const Fault faults[] = {
        {.what = "K not transposed", .tensor = CUDNN_K, .strides = {T * 3 * C, HS, 3 * C, 1}},
        {.what = "V transposed", .tensor = CUDNN_V, .strides = {T * 3 * C, HS, 1, 3 * C}},
        {.what = "V not transposed",
         CUDNN_BACKWARD,
         .tensor = CUDNN_V,
         .strides = {T * 3 * C, HS, 3 * C, 1}},
        {.what = "O transposed", .tensor = CUDNN_OUT, .strides = {T * C, HS, 1, C}},
        {.what = "exp / sum as a product", .from = CUDNN_POINTWISE_DIV, .to = CUDNN_POINTWISE_MUL},
        {.what = "S + maximum", .from = CUDNN_POINTWISE_SUB, .to = CUDNN_POINTWISE_ADD},
        {.what = "|S - maximum| for exp", .from = CUDNN_POINTWISE_EXP, .to = CUDNN_POINTWISE_ABS},
        {.what = "log for exp",
         CUDNN_BACKWARD,
         .from = CUDNN_POINTWISE_EXP,
         .to = CUDNN_POINTWISE_LOG},
    };

    for (size_t i = 0; i < sizeof faults / sizeof *faults; i++) {
        Error why;
        if (accepted(faults[i], &why)) fail_msg("%s was accepted", faults[i].what);
        assert_true(why.text[0]);
    }
}

// cudnn_pass_create refuses before it asks, and cuDNN itself refuses when it is asked all the same.
TEST(turing_has_no_engine) {
    need_cudnn();
    const AttentionShape shape = {2, 256, 3, 3, 64, DTYPE_FP16};
    Error err = {""};

    cudnnBackendDescriptor_t device = describe(&tesla_t4);
    CudnnGraph *graph = cudnn_graph_create(CUDNN_FORWARD, shape, &err);
    assert_non_null(graph);

    assert_null(cudnn_plan_create(graph, device, NULL, true, NO_LIMIT, &err));
    assert_null(
        cudnn_pass_create(ATTENTION_FORWARD, shape, device, 75, BY_CUDNN_STORED, NO_LIMIT, &err));
    assert_string_equal(err.text,
                        "cuDNN has no fused attention for sm_75, only for sm_80 and newer");

    cudnn_graph_destroy(graph);
    cudnn_destroy(device);
}

int main(void) {
    Error err;
    if (!load_fake_driver(&err)) print_message("no stand-in for libcuda: %s\n", err.text);
    return test_run();
}
#endif
