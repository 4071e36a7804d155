// The simulator's streams, events and graphs: what CUDA allows works, what it forbids fails with
// CUDA's error, and the promise of a step ("no host synchronisation") is watched. Runs with work at
// once and with work as late as allowed.

#include "dev/sim/sim_control.h"
#include "test/test.h"
#include <cuda_runtime_api.h>
#include <stdbool.h>

enum { BYTES = 256 };

// Every test has two streams that do not wait for the legacy one, events, device and pinned memory.
static struct {
    cudaStream_t a, b;
    cudaEvent_t event, other;
    char *device, *device2, *pinned;
} x;

#define OK(call)           assert_int_equal(call, cudaSuccess)
#define FAILS(error, call) assert_int_equal(call, error)

static int set_up(void **state) {
    (void)state;
    OK(cudaStreamCreateWithFlags(&x.a, cudaStreamNonBlocking));
    OK(cudaStreamCreateWithFlags(&x.b, cudaStreamNonBlocking));
    OK(cudaEventCreateWithFlags(&x.event, cudaEventDisableTiming));
    OK(cudaEventCreateWithFlags(&x.other, cudaEventDisableTiming));
    OK(cudaMalloc((void **)&x.device, BYTES));
    OK(cudaMalloc((void **)&x.device2, BYTES));
    OK(cudaHostAlloc((void **)&x.pinned, BYTES, cudaHostAllocDefault));
    memset(x.pinned, 0, BYTES);
    return 0;
}
static int tear_down(void **state) {
    (void)state;
    sim_step_unmark();
    cudaGraph_t left = NULL; // a test that failed may have left a capture open
    (void)cudaStreamEndCapture(x.a, &left);

    OK(cudaDeviceSynchronize());
    (void)cudaGetLastError();
    OK(cudaFree(x.device));
    OK(cudaFree(x.device2));
    OK(cudaFreeHost(x.pinned));
    OK(cudaEventDestroy(x.event));
    OK(cudaEventDestroy(x.other));
    OK(cudaStreamDestroy(x.a));
    OK(cudaStreamDestroy(x.b));
    return 0;
}
TestFixture test_each = {set_up, tear_down};

static void begin(void) { OK(cudaStreamBeginCapture(x.a, cudaStreamCaptureModeThreadLocal)); }
static cudaGraphExec_t end(size_t nodes) {
    cudaGraph_t graph;
    cudaGraphExec_t exec;
    size_t count = 0;
    OK(cudaStreamEndCapture(x.a, &graph));
    OK(cudaGraphGetNodes(graph, NULL, &count));
    assert_int_equal(count, nodes);
    OK(cudaGraphInstantiate(&exec, graph, 0));
    OK(cudaGraphDestroy(graph));
    return exec;
}
static void set(char *p, int value, cudaStream_t stream) {
    OK(cudaMemsetAsync(p, value, BYTES, stream));
}
static void copy_out(const char *p, cudaStream_t stream) {
    OK(cudaMemcpyAsync(x.pinned, p, BYTES, cudaMemcpyDeviceToHost, stream));
}
static void order(cudaStream_t first, cudaEvent_t event, cudaStream_t second) {
    OK(cudaEventRecord(event, first));
    OK(cudaStreamWaitEvent(second, event, 0));
}

// ----------------------------------------------------------------------------------------- streams

TEST(an_event_orders_two_streams) {
    set(x.device, 1, x.a);
    order(x.a, x.event, x.b);
    copy_out(x.device, x.b);
    OK(cudaStreamSynchronize(x.b));
    assert_int_equal(x.pinned[7], 1);
}

TEST(polling_an_event_comes_to_an_end) {
    set(x.device, 2, x.a);
    copy_out(x.device, x.a);
    OK(cudaEventRecord(x.event, x.a));
    int asked = 0;
    while (cudaEventQuery(x.event) == cudaErrorNotReady) asked++;
    assert_true(asked <= 3);
    assert_int_equal(x.pinned[7], 2);
}

TEST(pageable_copies_stage_their_source) {
    char pageable[BYTES];
    memset(pageable, 3, BYTES);
    OK(cudaMemcpyAsync(x.device, pageable, BYTES, cudaMemcpyHostToDevice, x.a));
    memset(pageable, 4, BYTES);
    copy_out(x.device, x.a);
    OK(cudaStreamSynchronize(x.a));
    assert_int_equal(x.pinned[7], 3);
}

TEST(a_synchronous_copy_waits_for_blocking_streams) {
    cudaStream_t blocking;
    char got = 0;
    OK(cudaStreamCreateWithFlags(&blocking, cudaStreamDefault));
    set(x.device, 6, blocking);
    OK(cudaMemcpy(&got, x.device, 1, cudaMemcpyDeviceToHost));
    assert_int_equal(got, 6);
    OK(cudaStreamDestroy(blocking));
}

TEST(copies_of_the_wrong_direction_fail) {
    FAILS(cudaErrorInvalidValue, cudaMemcpy(x.device, x.device2, BYTES, cudaMemcpyHostToDevice));
    FAILS(cudaErrorInvalidValue,
          cudaMemcpy(x.device, x.device2, BYTES + 1, cudaMemcpyDeviceToDevice));
    FAILS(cudaErrorInvalidValue, cudaMemsetAsync(x.device + 1, 0, BYTES, x.a));
}

// ------------------------------------------------------------------------------------------ graphs

TEST(a_capture_records_and_a_launch_replays) {
    set(x.device, 5, x.a);
    OK(cudaStreamSynchronize(x.a));

    begin();
    set(x.device, 6, x.a);
    copy_out(x.device, x.a);
    cudaGraphExec_t exec = end(2);

    OK(cudaStreamSynchronize(x.a));
    assert_int_equal(x.pinned[7], 0); // nothing has run

    OK(cudaGraphLaunch(exec, x.a));
    OK(cudaGraphLaunch(exec, x.a));
    OK(cudaGraphExecDestroy(exec)); // allowed before the launches have run
    OK(cudaStreamSynchronize(x.a));
    assert_int_equal(x.pinned[7], 6);
}

TEST(a_replay_reads_what_stands_in_memory_then) {
    begin();
    OK(cudaMemcpyAsync(x.device, x.pinned, BYTES, cudaMemcpyHostToDevice, x.a));
    cudaGraphExec_t exec = end(1);

    for (int value = 1; value <= 2; value++) {
        memset(x.pinned, value, BYTES);
        OK(cudaGraphLaunch(exec, x.a));
        OK(cudaStreamSynchronize(x.a));
        char got = 0;
        OK(cudaMemcpy(&got, x.device, 1, cudaMemcpyDeviceToHost));
        assert_int_equal(got, value);
    }

    OK(cudaGraphExecDestroy(exec));
}

TEST(a_side_stream_forks_and_joins) {
    begin();
    set(x.device, 1, x.a);
    order(x.a, x.event, x.b); // b takes part from here
    set(x.device2, 2, x.b);
    order(x.b, x.other, x.a);
    OK(cudaMemcpyAsync(x.device, x.device2, BYTES, cudaMemcpyDeviceToDevice, x.a));
    copy_out(x.device, x.a);
    cudaGraphExec_t exec = end(4);

    OK(cudaGraphLaunch(exec, x.a));
    OK(cudaStreamSynchronize(x.a));
    assert_int_equal(x.pinned[7], 2);
    OK(cudaGraphExecDestroy(exec));

    set(x.device2, 3, x.b); // b is an ordinary stream again
    OK(cudaStreamSynchronize(x.b));
}

// The replay runs the later one of two nodes without an order between them first.
TEST(a_missing_event_inside_a_graph_shows) {
    OK(cudaMemset(x.device2, 9, BYTES));
    OK(cudaDeviceSynchronize());

    begin();
    order(x.a, x.event, x.b);
    set(x.device2, 2, x.b);
    copy_out(x.device2, x.a); // races with the set
    order(x.b, x.other, x.a);
    cudaGraphExec_t exec = end(2);

    OK(cudaGraphLaunch(exec, x.a));
    OK(cudaStreamSynchronize(x.a));
    assert_int_equal(x.pinned[7], 9);
    OK(cudaGraphExecDestroy(exec));
}

TEST(an_external_event_is_recorded_at_every_replay) {
    begin();
    copy_out(x.device, x.a);
    OK(cudaEventRecordWithFlags(x.event, x.a, cudaEventRecordExternal));
    cudaGraphExec_t exec = end(2);
    set(x.device, 4, x.a);
    OK(cudaGraphLaunch(exec, x.a));
    OK(cudaEventSynchronize(x.event));
    assert_int_equal(x.pinned[7], 4);
    OK(cudaGraphExecDestroy(exec));
}

// Each of these, in a capture: its own error, then that of a capture that has become invalid.
static void break_capture(cudaError_t error, cudaError_t status) {
    assert_int_equal(status, error);
    enum cudaStreamCaptureStatus capture;
    OK(cudaStreamIsCapturing(x.a, &capture));
    assert_int_equal(capture, cudaStreamCaptureStatusInvalidated);
    FAILS(cudaErrorStreamCaptureInvalidated, cudaMemsetAsync(x.device, 0, BYTES, x.a));
    cudaGraph_t graph;
    FAILS(cudaErrorStreamCaptureInvalidated, cudaStreamEndCapture(x.a, &graph));
    assert_null(graph);
    OK(cudaStreamIsCapturing(x.a, &capture));
    assert_int_equal(capture, cudaStreamCaptureStatusNone);
}

TEST(what_a_capture_forbids_fails_and_invalidates_it) {
    char pageable[BYTES] = {0};
    void *p = NULL;

    begin();
    break_capture(cudaErrorStreamCaptureUnsupported, cudaMalloc(&p, 1));
    begin();
    break_capture(cudaErrorStreamCaptureUnsupported, cudaHostAlloc(&p, 1, 0));
    begin();
    break_capture(cudaErrorStreamCaptureUnsupported, cudaFree(x.device));

    begin();
    break_capture(cudaErrorStreamCaptureUnsupported, cudaDeviceSynchronize());
    begin();
    break_capture(cudaErrorStreamCaptureUnsupported, cudaStreamSynchronize(x.a));
    begin();
    break_capture(cudaErrorStreamCaptureUnsupported, cudaStreamQuery(x.a));

    begin();
    break_capture(cudaErrorStreamCaptureUnsupported,
                  cudaMemcpy(pageable, x.device, 1, cudaMemcpyDeviceToHost));
    begin();
    break_capture(cudaErrorStreamCaptureUnsupported,
                  cudaMemcpyAsync(x.device, pageable, BYTES, cudaMemcpyHostToDevice, x.a));

    begin();
    break_capture(cudaErrorStreamCaptureImplicit, cudaMemsetAsync(x.device, 0, BYTES, NULL));

    begin();
    OK(cudaEventRecord(x.event, x.a));
    break_capture(cudaErrorCapturedEvent, cudaEventQuery(x.event));
    begin();
    OK(cudaEventRecord(x.event, x.a));
    break_capture(cudaErrorCapturedEvent, cudaEventSynchronize(x.event));

    OK(cudaEventRecord(x.event, x.b)); // outside
    begin();
    break_capture(cudaErrorStreamCaptureIsolation, cudaStreamWaitEvent(x.a, x.event, 0));
}

TEST(other_streams_may_go_on_during_a_capture) {
    begin();
    set(x.device, 7, x.b);
    OK(cudaStreamSynchronize(x.b));
    set(x.device, 8, x.a);
    OK(cudaGraphExecDestroy(end(1)));
}

TEST(unjoined_work_cannot_end_a_capture) {
    cudaGraph_t graph;
    begin();
    order(x.a, x.event, x.b);
    set(x.device2, 1, x.b);
    FAILS(cudaErrorStreamCaptureUnjoined, cudaStreamEndCapture(x.a, &graph));
}

// --------------------------------------------------------------------------- the promise of a step

TEST(waiting_for_the_last_step_is_no_violation) {
    const int before = sim_step_violations();
    copy_out(x.device, x.a);
    OK(cudaEventRecord(x.event, x.a));
    sim_step_mark();
    set(x.device, 1, x.a);
    OK(cudaEventSynchronize(x.event));
    (void)cudaEventQuery(x.other);
    assert_int_equal(sim_step_violations(), before);
}

TEST(waiting_allocating_and_pageable_copies_in_a_step_are_counted) {
    char pageable[BYTES] = {0};
    void *p = NULL;
    int expected = sim_step_violations();

    sim_step_mark();
    set(x.device, 1, x.a);
    OK(cudaEventRecord(x.event, x.a));
    OK(cudaEventSynchronize(x.event));
    assert_int_equal(sim_step_violations(), ++expected);

    OK(cudaStreamSynchronize(x.a));
    assert_int_equal(sim_step_violations(), ++expected);
    OK(cudaDeviceSynchronize());
    assert_int_equal(sim_step_violations(), ++expected);

    OK(cudaMalloc(&p, 8));
    assert_int_equal(sim_step_violations(), ++expected);
    OK(cudaFree(p));
    assert_int_equal(sim_step_violations(), ++expected);
    OK(cudaMemcpy(pageable, x.device, BYTES, cudaMemcpyDeviceToHost));
    assert_int_equal(sim_step_violations(), ++expected);
    OK(cudaMemcpyAsync(x.device, pageable, BYTES, cudaMemcpyHostToDevice, x.a));
    assert_int_equal(sim_step_violations(), ++expected);

    sim_step_unmark();
    OK(cudaDeviceSynchronize());
    assert_int_equal(sim_step_violations(), expected);
}

// ------------------------------------------------------------------------------------------ device

TEST(the_device_is_the_one_asked_for) {
    int major = 0, minor = 0, units = 0, blocks = 0;
    OK(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, 0));
    OK(cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, 0));
    OK(cudaDeviceGetAttribute(&units, cudaDevAttrMultiProcessorCount, 0));

    const char *asked = getenv("SIM_CC");
    assert_int_equal(10 * major + minor, asked ? atoi(asked) : 90);
    assert_true(units > 0);

    const void *kernel = sim_kernel("_Z17micro_step_kernelP11StepControlj");
    OK(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, kernel, 256, 0));
    assert_in_range(blocks, 4, 8);
    OK(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, kernel, 256, 1 << 20));
    assert_int_equal(blocks, 0);
    FAILS(cudaErrorInvalidValue,
          cudaOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, NULL, 256, 0));
}

TEST(memory_ends) {
    size_t available = 0, total = 0;
    OK(cudaMemGetInfo(&available, &total));
    // the context, and two allocations
    assert_int_equal(total - available, ((size_t)477 << 20) + (size_t)2 * 512);
    void *p = NULL;
    FAILS(cudaErrorMemoryAllocation, cudaMalloc(&p, available + 1));
    assert_null(p);
    FAILS(cudaErrorMemoryAllocation, cudaGetLastError());
    OK(cudaGetLastError());
}

int main(void) {
    sim_set_lazy_streams(false);
    const int failed = test_run();
    sim_set_lazy_streams(true);
    return failed + test_run();
}
