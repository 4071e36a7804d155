// device.h of the CUDA backend, on the simulator: memory, copies, events, the three states of a
// graph, and what must stop the program while a graph is recorded. Streams run lazily, as late as
// the API allows, so that a wait that is missing shows.
#include "dev/sim/sim_control.h"
#include "llmc/cuda/backend.h"
#include "llmc/device.h"
#include "llmc/ops.h"
#include "llmc/speed.h"
#include "test/fixture.h"
#include "test/unit/device_fixture.h"

enum { COUNT = 1000 };
enum { BYTES = COUNT * (int)sizeof(int) };

// Three buffers on the device and one on the host, and the work that the graph tests record: there
// -> between -> here.
static struct { int *host, *there, *between, *here; } buffers;

static int set_up(void **state) {
    Error err;
    if (start_device(state) != 0) return -1;
    buffers.host = host_alloc(BYTES, &err);
    buffers.there = device_alloc(BYTES, &err);
    buffers.between = device_alloc(BYTES, &err);
    buffers.here = device_alloc(BYTES, &err);
    sim_set_lazy_streams(true);
    return buffers.host && buffers.there && buffers.between && buffers.here ? 0 : -1;
}

static int tear_down(void **state) {
    host_free(buffers.host);
    device_free(buffers.there), device_free(buffers.between), device_free(buffers.here);
    return stop_device(state);
}
TestFixture test_all = {set_up, tear_down};

static void send(int value, Stream stream) {
    device_sync(); // the host buffer is free
    for (int i = 0; i < COUNT; i++) buffers.host[i] = value + i;
    copy_h2d(buffers.there, buffers.host, BYTES, stream);
}

static void work(void) {
    device_copy(buffers.between, buffers.there, BYTES);
    device_copy(buffers.here, buffers.between, BYTES);
}

static void assert_arrived(int value) {
    device_sync(); // a copy may still have to read the host buffer
    memset(buffers.host, 0xff, BYTES);
    copy_d2h(buffers.host, buffers.here, BYTES, STREAM_COMPUTE);
    device_sync();
    for (int i = 0; i < COUNT; i++) assert_int_equal(buffers.host[i], value + i);
}

// A launch reports what is pending: an error that was an answer must not be.
static void launch(void) {
    tensor_fill(tensor_make(buffers.between, DTYPE_FP32, "between", COUNT, 0, 0, 0), 1.0f);
}

// --------------------------------------------------------------------------------- life and memory

TEST(the_facts_name_the_gpu) {
    const DeviceFacts *f = device_facts();
    assert_string_equal(f->backend, "cuda");
    assert_true(*f->name && f->units > 0);
    assert_non_null(strstr(f->libraries, "CUDA "));
    assert_non_null(strstr(f->libraries, "cuBLASLt "));
    assert_true(f->memory_free > 0 && f->memory_free <= f->memory_total);
    assert_true(f->supports[DTYPE_FP32] && f->supports[DTYPE_FP16] &&
                f->supports[f->default_dtype]);
    assert_true(f->peak_flops[f->default_dtype] > 1e12 && f->peak_bandwidth > 1e11);
}

TEST(the_device_starts_again_after_a_shutdown) {
    assert_int_equal(tear_down(state), 0);
    device_shutdown(); // a second one is harmless
    assert_int_equal(set_up(state), 0);
    send(1, STREAM_COMPUTE), work(), assert_arrived(1);
}

TEST(allocated_memory_is_zeroed_and_aligned) {
    const size_t sizes[] = {1, 4097, (1 << 20) + 3};
    Error error;
    DeviceEvent *copied = device_event_create(&error);
    for (int round = 0; round < 2; round++) // the second round may get memory that was written
        for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
            Error err;
            unsigned char *p = device_alloc(sizes[i], &err), *host = host_alloc(sizes[i], &err);

            assert_true(p && host);
            assert_int_equal((uintptr_t)p % 256, 0);
            assert_int_equal((uintptr_t)host % 64, 0);
            memset(host, 0xAB, sizes[i]);

            // The copy stream did not see the zeroing: it is done when device_alloc returns.
            copy_d2h(host, p, sizes[i], STREAM_COPY);
            device_event_record(copied, STREAM_COPY);
            device_event_wait(copied);
            for (size_t j = 0; j < sizes[i]; j++) assert_int_equal(host[j], 0);

            memset(host, 0xAB, sizes[i]);
            copy_h2d(p, host, sizes[i], STREAM_COPY);
            device_sync();
            device_free(p), host_free(host);
        }
    device_event_destroy(copied);
    device_free(NULL), host_free(NULL);
}

#ifdef __SANITIZE_ADDRESS__
// The requests that are refused here are larger than AddressSanitizer takes for meant.
const char *__asan_default_options(void);
const char *__asan_default_options(void) { return "allocator_may_return_null=1"; }
#endif

TEST(what_does_not_fit_is_refused_naming_the_bytes) {
    Error err;
    assert_null(device_alloc((size_t)1 << 55, &err));
    assert_non_null(strstr(err.text, "36028797018963968 bytes"));
    assert_non_null(strstr(err.text, "free of"));
    launch();
    assert_null(host_alloc((size_t)1 << 55, &err));
    assert_non_null(strstr(err.text, "pinned"));
    launch();
    send(2, STREAM_COMPUTE), work(), assert_arrived(2); // nothing of it stays behind as an error
}

TEST(the_peak_counts_what_is_held_at_once) {
    Error err;
    const size_t before = device_memory_peak();
    void *a = device_alloc(before + 1000, &err), *b = device_alloc(500, &err);
    const size_t during = device_memory_peak();
    assert_true(during >= before + 1500);
    device_free(a), device_free(b);
    void *c = device_alloc(1000, &err);
    assert_int_equal(device_memory_peak(), during);
    device_free(c);
}

// ------------------------------------------------------------------------------- copies and events

TEST(a_stream_waits_for_the_copy_of_the_other) {
    Error err;
    DeviceEvent *copied = device_event_create(&err);
    for (int round = 0; round < 3; round++) {
        send(10 * round, STREAM_COPY);
        device_event_record(copied, STREAM_COPY);
        device_stream_wait(STREAM_COMPUTE, copied);
        work();
        assert_arrived(10 * round);
    }
    device_event_destroy(copied);
}

TEST(an_event_is_done_when_its_work_is) {
    Error err;
    DeviceEvent *start = device_event_create(&err), *stop = device_event_create(&err);
    device_event_record(start, STREAM_COMPUTE);
    send(3, STREAM_COMPUTE), work();
    device_event_record(stop, STREAM_COMPUTE);
    device_event_done(stop); // whatever the answer, it leaves no error for the next call
    launch();
    device_event_wait(stop);
    assert_true(device_event_done(stop) && device_event_done(start));
    assert_true(device_event_seconds(start, stop) >= 0.0);
    device_event_destroy(start), device_event_destroy(stop);
}

// ------------------------------------------------------------------------------------------ graphs

// One pass, as callers write it. Returns whether it was a replay.
static bool pass(DeviceGraph *graph) {
    if (device_graph_replay(graph)) return true;
    device_graph_begin(graph), work(), device_graph_end(graph);
    return false;
}

TEST(the_first_pass_runs_the_second_records_the_others_replay) {
    Error err;
    DeviceGraph *graph = device_graph_create(&err);
    for (int i = 0; i < 5; i++) {
        send(100 * i, STREAM_COMPUTE);
        assert_int_equal(pass(graph), i >= 2);
        assert_int_equal(cuda_graph_nodes(graph), i >= 1 ? 2 : 0);
        assert_arrived(100 * i); // a replay reads what is there now
    }
    device_graph_destroy(graph);
}

TEST(other_work_starts_over) {
    Error err;
    DeviceGraph *graph = device_graph_create(&err);
    for (int i = 0; i < 3; i++) pass(graph);
    for (int round = 0; round < 2; round++) { // from a recording, and from a pass that only ran
        send(7, STREAM_COMPUTE);
        // not asked for a replay: run, not recorded
        device_graph_begin(graph), work(), device_graph_end(graph);
        assert_int_equal(cuda_graph_nodes(graph), 0);
        assert_arrived(7);
    }

    assert_false(pass(graph));
    assert_int_equal(cuda_graph_nodes(graph), 2);
    assert_true(pass(graph));
    device_graph_destroy(graph);
}

TEST(a_recording_may_be_dropped_while_it_runs) {
    Error err;
    DeviceGraph *graph = device_graph_create(&err);
    pass(graph), pass(graph);
    send(8, STREAM_COMPUTE);
    assert_true(pass(graph));
    device_graph_destroy(graph);
    assert_arrived(8);
}

TEST(capturing_is_told_to_the_ops) {
    Error err;
    DeviceGraph *graph = device_graph_create(&err);
    for (int i = 0; i < 2; i++) {
        assert_false(device_graph_replay(graph));
        device_graph_begin(graph);
        assert_int_equal(cuda_backend.capturing, i == 1);
        work();
        device_graph_end(graph);
        assert_false(cuda_backend.capturing);
    }
    device_graph_destroy(graph);
}

// ----------------------------------------------------------------- what stops the program, and how

static int run(void *broken) {
    (*(void (**)(void))broken)();
    return 0;
}

// Runs `broken` in a child process; it must abort, with these words on stderr.
static void assert_stops(void (*broken)(void), const char *words, const char *more_words) {
    char text[8192];
    const int status = status_of_child(run, &broken, text, sizeof text);
    if (!WIFSIGNALED(status) || !strstr(text, words) || !strstr(text, more_words))
        fail_msg("status %d, stderr: %s", status, text);
}

static DeviceGraph *graph_about_to_record(void) {
    Error err;
    DeviceGraph *graph = device_graph_create(&err);
    pass(graph);
    device_graph_replay(graph);
    device_graph_begin(graph);
    return graph;
}

static void record_a_sync(void) {
    graph_about_to_record();
    device_sync();
}
static void record_an_allocation(void) {
    Error err;
    graph_about_to_record();
    device_alloc(BYTES, &err);
}
static void record_what_breaks_silently(void) {
    DeviceGraph *graph = graph_about_to_record();
    void *p;
    (void)cudaMalloc(&p, BYTES); // by a library, say, that keeps the error to itself
    device_graph_end(graph);
}
static void record_inside_a_recording(void) {
    graph_about_to_record();
    graph_about_to_record();
}
static void free_what_is_not_ours(void) { device_free(buffers.host); }

static void launch_after_an_error(void) {
    (void)cudaSetDevice(99); // by a library, say
    launch();
}

TEST(a_launch_with_an_error_pending_stops_and_is_named) {
    assert_stops(launch_after_an_error, "launch of fill_kernel", "invalid device");
}

TEST(the_exchange_has_the_highest_priority) {
    int lowest, highest;
    assert_int_equal(cudaDeviceGetStreamPriorityRange(&lowest, &highest), cudaSuccess);
    for (int i = 0; i < STREAM_COUNT; i++) {
        int priority;
        assert_int_equal(cudaStreamGetPriority(cuda_backend.streams[i], &priority), cudaSuccess);
        assert_int_equal(priority, i == STREAM_COMM ? highest : lowest);
    }
}

TEST(errors_while_recording_name_the_call) {
    assert_stops(record_a_sync, "cudaDeviceSynchronize()", "while recording a graph");
    assert_stops(record_an_allocation, "device_alloc", "while recording a graph");
    assert_stops(record_what_breaks_silently, "cudaStreamEndCapture", "while recording a graph");
    assert_stops(record_inside_a_recording, "", "device_graph_begin inside another recording");
    assert_stops(free_what_is_not_ours, "", "device_alloc did not return");
}

// ------------------------------------------------------------------------------- speed and sensors

TEST(the_measured_speed_is_positive_and_leaves_no_peak) {
    const DType dtypes[] = {DTYPE_FP32, DTYPE_FP16, DTYPE_BF16};
    const size_t before = device_memory_peak();
    for (int i = 0; i < 3; i++) {
        Error err;
        DeviceSpeed speed;
        if (!device_facts()->supports[dtypes[i]]) {
            assert_false(speed_measure(dtypes[i], 0, &speed, &err));
            assert_non_null(strstr(err.text, dtype_name(dtypes[i])));
            continue;
        }
        assert_true(speed_measure(dtypes[i], 0, &speed, &err));
        assert_true(speed.matmul_flops > 0.0 && speed.copy_bandwidth > 0.0);
        assert_int_equal(device_memory_peak(), before);
    }
}

TEST(sensors_that_are_not_there_read_as_nothing) {
    DeviceSensors sensors = {.power_watts = 1.0};
    if (device_sensors(&sensors)) skip(); // a machine with NVIDIA's library
    assert_true(sensors.power_watts == 0.0);
    assert_false(device_sensors(&sensors)); // looked for once
}
