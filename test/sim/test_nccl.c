// The collectives of device.h over NCCL, by as many processes as asked for, on the simulator: bytes
// and their places, order with the compute stream, and what is said when something goes wrong. The
// library itself: test_nccl_library.c.
#include "dev/sim/cublaslt.h"
#include "dev/sim/sim_control.h"
#include "llmc/cuda/backend.h"
#include "llmc/cuda/nccl_library.h"
#include "llmc/ops.h"
#include "test/fixture.h"

enum { MOST_RANKS = 4, SLICE = 48, SLICE_BYTES = SLICE * (int)sizeof(int), ROUNDS = 3 };

#ifdef HAVE_NCCL

TestFixture test_each = {tmp_setup, tmp_teardown};

// ----------------------------------------------------------------------------------- the processes

static char id[DEVICE_COMM_ID_BYTES];
static int rank, size; // of a child process

// In a child process: ends it.
#define CHECK(condition, ...)                                                                      \
    do {                                                                                           \
        if (!(condition)) {                                                                        \
            fprintf(stderr, "line %d: %s: ", __LINE__, #condition);                                \
            fprintf(stderr, __VA_ARGS__);                                                          \
            _exit(1);                                                                              \
        }                                                                                          \
    } while (0)

typedef struct {
    int size;
    void (*body)(void);
    const char *settings;     // SIM_NCCL of all
    const char *one_settings; // SIM_NCCL of the last process; NULL: as the others
    const char *timeout;      // SIM_NCCL_TIMEOUT
    int missing;              // so many processes, from the last, are not started
    bool lazy;
    int expected;                // exit status of all, or -1: any
    bool stopped;                // by a bug: files stay
    char said[MOST_RANKS][4096]; // stderr
    int status[MOST_RANKS];
} Run;

static void set(const char *name, const char *value) {
    if (value)
        setenv(name, value, 1);
    else
        unsetenv(name);
}

static void start_child(const Run *run, int r) {
    const char *out = tmp_file("said"), *settings = run->settings;
    char path[PATH_MAX + 16], count[16];

    snprintf(path, sizeof path, "%s.%d", out, r);
    if (!freopen(path, "w", stderr)) abort();
    setvbuf(stderr, NULL, _IONBF, 0);
    if (r == run->size - 1 && run->one_settings) settings = run->one_settings;
    snprintf(count, sizeof count, "%d", MOST_RANKS);

    set("SIM_NCCL", settings), set("SIM_NCCL_TIMEOUT", run->timeout), set("SIM_GPUS", count);
    signal(SIGABRT, SIG_DFL); // cmocka's handler would report a failed test
    alarm(600);               // nothing here takes a fiftieth of it

    rank = r, size = run->size;
    sim_set_lazy_streams(run->lazy);
    Error err;
    CHECK(device_init(&(DeviceOptions){.number = rank}, &err), "%s", err.text);
    run->body();
    device_shutdown();
    _exit(0);
}

static void run_ranks(Run *run) {
    Error err;
    pid_t children[MOST_RANKS];
    char path[PATH_MAX + 16];

    mkdir(tmp_file("messages"), 0700);
    set("SIM_NCCL_DIR", tmp_file("messages")), set("SIM_NCCL", NULL);
    assert_ok(device_comm_id(id, &err));
    fflush(NULL);

    const int started = run->size - run->missing;
    for (int r = 0; r < started; r++)
        if ((children[r] = fork()) == 0) start_child(run, r);

    for (int r = 0; r < started; r++) {
        assert_true(children[r] > 0 && waitpid(children[r], &run->status[r], 0) == children[r]);
        snprintf(path, sizeof path, "%s.%d", tmp_file("said"), r);
        char *text = read_text(path);
        snprintf(run->said[r], sizeof run->said[r], "%s", text);
        free(text);
    }

    for (int r = 0; r < started && run->expected >= 0; r++)
        if (run->status[r] != run->expected << 8)
            fail_msg("rank %d: status %x: %s", r, (unsigned)run->status[r], run->said[r]);
    if (!run->stopped) assert_int_equal(entries_of(tmp_file("messages")), 0);
}

static void assert_said(const Run *run, int r, const char *words) {
    if (!strstr(run->said[r], words))
        fail_msg("rank %d does not say \"%s\": %s", r, words, run->said[r]);
}

// ---------------------------------------------------------------------------------- what they move

// Buffers of one process: (size, SLICE) each. `host` and `seen` are pinned.
static struct { int *host, *seen, *send, *recv, *all, *copy; } buffers;

static void start_comm(void) {
    Error err;
    const size_t bytes = (size_t)(MOST_RANKS * SLICE_BYTES);
    int **device[] = {&buffers.send, &buffers.recv, &buffers.all, &buffers.copy};
    CHECK(device_comm_start(id, rank, size, 60, &err), "%s", err.text);
    for (int i = 0; i < 4; i++) CHECK((*device[i] = device_alloc(bytes, &err)), "%s", err.text);
    CHECK((buffers.host = host_alloc(2 * bytes, &err)), "%s", err.text);
    CHECK((buffers.seen = host_alloc(2 * bytes, &err)), "%s", err.text);
}

// No two elements of a round are equal.
static int value(int round, int from, int to, int i) {
    return ((round * MOST_RANKS + from) * MOST_RANKS + to) * SLICE + i;
}

// Work of the compute stream, late where streams are lazy: slices for all others, and this
// process's slice for all.
static void fill(int round) {
    const size_t bytes = (size_t)(size * SLICE_BYTES);
    int *gathered = buffers.host + size * SLICE;
    memset(gathered, 0, bytes);
    for (int r = 0; r < size; r++)
        for (int i = 0; i < SLICE; i++) buffers.host[r * SLICE + i] = value(round, rank, r, i);
    for (int i = 0; i < SLICE; i++) gathered[rank * SLICE + i] = -1 - value(round, rank, rank, i);
    copy_h2d(buffers.copy, buffers.host, bytes, STREAM_COMPUTE);
    device_copy(buffers.send, buffers.copy, bytes);
    copy_h2d(buffers.all, gathered, bytes, STREAM_COMPUTE);
}

// The compute stream sees this after a wait: slices of all others, slices gathered.
static void see(const int *data) {
    const size_t bytes = (size_t)(size * SLICE_BYTES);
    memset(buffers.seen, 0x55, bytes);
    device_copy(buffers.copy, data, bytes);
    copy_d2h(buffers.seen, buffers.copy, bytes, STREAM_COMPUTE);
    DeviceEvent *arrived = device_event_create(NULL);
    device_event_record(arrived, STREAM_COMPUTE);
    device_event_wait(arrived); // not for the other request
    device_event_destroy(arrived);
}
static void check_received(int round) {
    see(buffers.recv);
    for (int i = 0; i < size * SLICE; i++)
        CHECK(buffers.seen[i] == value(round, i / SLICE, rank, i % SLICE), "round %d, %d: %d",
              round, i, buffers.seen[i]);
}
static void check_gathered(int round) {
    see(buffers.all);
    for (int i = 0; i < size * SLICE; i++) {
        const int from = i / SLICE;
        CHECK(buffers.seen[i] == -1 - value(round, from, from, i % SLICE), "round %d, %d: %d",
              round, i, buffers.seen[i]);
    }
}

// A slice of so many bytes for each process.
static const Range *slices(int64_t bytes) {
    static Range parts[MOST_RANKS];
    for (int r = 0; r < MOST_RANKS; r++) parts[r] = (Range){r * bytes, (r + 1) * bytes};
    return parts;
}

static void wait_for(int request) {
    Error err;
    CHECK(device_comm_wait(request, &err), "%s", err.text);
}
static void send_slices(int request) {
    Error err;
    CHECK(device_all_to_all(buffers.recv, buffers.send, slices(SLICE_BYTES), request, &err), "%s",
          err.text);
}
static void gather(int request) {
    Error err;
    CHECK(device_all_gather(buffers.all, slices(SLICE_BYTES), request, &err), "%s", err.text);
}

// Both requests in flight. What they have read and written is overwritten in the next round.
static void exchange(void) {
    Error err;
    start_comm();
    CHECK(strncmp(device_comm_library(), "NCCL 2.", 7) == 0, "%s", device_comm_library());
    DeviceEvent *moved = device_event_create(&err);

    for (int round = 0; round < ROUNDS; round++) {
        const int first = round % 2;
        sim_step_mark();
        fill(round);
        if (round == 1)
            gather(first), send_slices(1 - first);
        else
            send_slices(first), gather(1 - first);
        sim_step_unmark();

        device_event_record(moved, STREAM_COMM);
        // not for the compute stream, as far as the host is concerned
        if (round == 2) device_event_wait(moved);

        wait_for(first);
        if (round == 1)
            check_gathered(round);
        else
            check_received(round);
        wait_for(1 - first);
        check_received(round), check_gathered(round);
    }

    device_event_destroy(moved);
    CHECK(sim_step_violations() == 0, "the host waited");
}

static void exchange_with(const char *settings) {
    for (int n = 1; n <= MOST_RANKS; n++)
        for (int lazy = 0; lazy < 2; lazy++)
            run_ranks(&(Run){.size = n, .body = exchange, .settings = settings, .lazy = lazy});
}

TEST(every_slice_arrives_at_its_place) { exchange_with(NULL); }
TEST(messages_may_be_late) { exchange_with("delay:7"); }
TEST(calls_may_be_in_progress) { exchange_with("inprogress"); }
TEST(calls_may_be_in_progress_and_messages_late) { exchange_with("inprogress,delay:8"); }

// One request after the other, the second made while the first is in flight and waited for first.
static void crossed(void) {
    start_comm();
    for (int round = 0; round < ROUNDS; round++) {
        fill(round);
        gather(0), send_slices(1);
        wait_for(1);
        check_received(round);
        gather(1); // the same once more
        wait_for(0), wait_for(1);
        check_gathered(round);
    }
}
TEST(a_number_may_be_used_again_while_the_other_one_is_in_flight) {
    for (int lazy = 0; lazy < 2; lazy++)
        run_ranks(&(Run){.size = 3, .body = crossed, .lazy = lazy});
}

// -------------------------------------------------------------------- products beside the exchange

enum { N = 64, PASSES = 4 };
static const char *vice; // SIM_CUBLASLT_VICES
static bool before_hopper;

// A product before, during and after a request, alone and as part of a graph that is recorded and
// replayed.
static void multiply(void) {
    Error err;
    const OpsShape shape = {
        .B = 1, .T = N, .C = N, .NH = 1, .Vp = 128, .num_tensors = 1, .dtype = DTYPE_FP32};
    const size_t bytes = N * N * sizeof(float);
    float *host = host_alloc((PASSES + 2) * bytes, &err), *device = device_alloc(3 * bytes, &err);
    Tensor in = tensor_make(device, DTYPE_FP32, "in", N, N, 0, 0), out = in, weight = in;
    weight.data = device + N * N, out.data = device + 2 * N * N;

    // another order of sums shows
    for (int i = 0; i < 2 * N * N; i++) host[i] = 1.0f / (float)(3 + i % 61);
    copy_h2d(device, host, 2 * bytes, STREAM_COMPUTE);

    set("SIM_CUBLASLT_VICES", vice), set("SIM_CUBLASLT_ALGOS", "all"), set("PRETRAIN_CACHE", "off");
    if (before_hopper) cuda_backend.compute_capability = 80;
    sim_set_clock(0.0); // the library's favourite wins
    start_comm();
    const int64_t workspace = ops_workspace_bytes(shape);
    ops_set_workspace(device_alloc((size_t)workspace, &err), workspace);

    DeviceGraph *graph = device_graph_create(&err);
    for (int pass = 0; pass < PASSES; pass++) {
        if (pass > 0) send_slices(0);
        if (pass == 0 || !device_graph_replay(graph)) {
            if (pass > 0) device_graph_begin(graph);
            matmul_forward(out, in, weight, tensor_none());
            if (pass > 0) device_graph_end(graph);
        }
        if (pass > 0) wait_for(0);
        copy_d2h(host + pass * N * N, out.data, bytes, STREAM_COMPUTE);
    }

    matmul_forward(out, in, weight, tensor_none()); // has the GPU to itself again
    device_sync();
    for (int pass = 1; pass < PASSES; pass++)
        CHECK(memcmp(host, host + pass * N * N, bytes) == 0, "pass %d has other bits",
              pass); // NOLINT: bits

    const long crowded = *vice || before_hopper ? PASSES - 1 : 0;
    CHECK(sim_cublaslt_counts.beside == PASSES - 1 && sim_cublaslt_counts.crowded == crowded,
          "%ld beside the exchange, %ld crowded", sim_cublaslt_counts.beside,
          sim_cublaslt_counts.crowded);
    device_graph_destroy(graph);
}

// With the bits that they have alone: where the library refuses that or computes something else, on
// all multiprocessors.
TEST(products_leave_the_exchange_its_multiprocessors) {
    static const char *const vices[] = {"", "tiled:whole", "tiled:uneven", ""};
    set("SIM_SMS", "132");
    for (int i = 0; i < 4; i++) {
        vice = vices[i], before_hopper = i == 3;
        for (int lazy = 0; lazy < 2; lazy++)
            run_ranks(&(Run){.size = 2, .body = multiply, .lazy = lazy});
    }
    set("SIM_SMS", NULL);
}

static void print_device(void) {
    int current = -1;
    CUDA_CHECK(cudaGetDevice(&current));
    fprintf(stderr, "%s %d", device_facts()->id, current);
}
TEST(each_process_takes_the_gpu_of_its_number) {
    Run run = {.size = 2, .body = print_device};
    run_ranks(&run);
    assert_string_equal(run.said[0], "0000:00:00.0 0");
    assert_string_equal(run.said[1], "0000:01:00.0 1");
}

// --------------------------------------------------------------------------- processes that differ

static void differ_in_call(void) {
    start_comm();
    gather(0), wait_for(0);
    if (rank == 0)
        gather(1);
    else
        send_slices(1);
    device_sync();
}
static void differ_in_size(void) {
    Error err;
    start_comm();
    CHECK(device_all_gather(buffers.all, slices(rank == 0 ? 64 : 32), 0, &err), "%s", err.text);
    device_sync();
}

TEST(two_processes_that_differ_end_with_both_calls) {
    static const struct {
        void (*body)(void);
        const char *line;
    } cases[] = {
        {differ_in_call, "collective 2: rank 0 calls ncclAllGather of 192 x int8, rank 1 calls "
                         "ncclSend of 192 x int8 and "
                         "ncclRecv of 192 x int8\n"},
        {differ_in_size, "collective 1: rank 0 calls ncclAllGather of 64 x int8, rank 1 calls "
                         "ncclAllGather of 32 x int8\n"},
    };

    for (int i = 0; i < 2; i++)
        for (int lazy = 0; lazy < 2; lazy++) {
            Run run = {.size = 2, .body = cases[i].body, .lazy = lazy, .expected = -1};

            run_ranks(&run);
            for (int r = 0; r < 2; r++) {
                assert_true(WIFSIGNALED(run.status[r]));
                assert_said(&run, r, cases[i].line);
            }
        }
}

// ---------------------------------------------------------------------------------------- failures

static bool is_done(DeviceEvent *event, double seconds) {
    for (int i = 0; i < (int)(seconds * 1000); i++) {
        if (device_event_done(event)) return true;
        usleep(1000);
    }
    return device_event_done(event);
}

// Requests until one of them fails; the message goes to stderr. Then the process leaves as a
// program would.
static void request_until_failure(void) {
    Error err = {""};
    start_comm();
    DeviceEvent *event = device_event_create(&err);
    bool ok = true;

    for (int round = 0; ok && round < 1000; round++) {
        ok = device_all_gather(buffers.all, slices(SLICE_BYTES), 0, &err) &&
             device_comm_wait(0, &err);
        device_event_record(event, STREAM_COMPUTE);
        is_done(event, 0.05);
    }

    CHECK(!ok, "no request failed");
    fprintf(stderr, "%s\n", err.text);
    device_comm_abort();
    device_comm_abort(); // a second one is harmless

    CHECK(is_done(event, 10), "the device is still busy");
    CHECK(!device_all_gather(buffers.all, slices(SLICE_BYTES), 1, &err) &&
              strstr(err.text, "was aborted"),
          "%s", err.text);
    CHECK(!device_comm_wait(1, &err) && strstr(err.text, "was aborted"), "%s", err.text);

    device_event_destroy(event);
}

TEST(a_failure_is_reported_by_the_process_that_has_it_and_then_by_the_others) {
    for (int lazy = 0; lazy < 2; lazy++) {
        Run run = {.size = 3,
                   .body = request_until_failure,
                   .one_settings = "fail:2",
                   .timeout = "1",
                   .lazy = lazy};

        run_ranks(&run);
        assert_said(&run, 2,
                    "rank 2 of 3: NCCL: unhandled system error (SIM_NCCL: collective 2 fails)");
        if (!lazy) assert_said(&run, 2, "device_comm_wait: rank 2");

        for (int r = 0; r < 2; r++)
            assert_said(&run, r, "of 3: NCCL: remote process exited or there was a network error");
        assert_said(&run, 0, "(collective 2: nothing from rank 2 for 1 s)");
    }
}

static void never_ends(void) {
    Error err;
    start_comm();
    DeviceEvent *event = device_event_create(&err);
    gather(0), wait_for(0);
    send_slices(1), wait_for(1);
    device_event_record(event, STREAM_COMPUTE);
    CHECK(!is_done(event, 0.2), "it ended");
    device_comm_abort();
    CHECK(is_done(event, 10), "it did not end");
    device_event_destroy(event);
}
TEST(a_collective_that_never_ends_is_ended_by_an_abort) {
    for (int lazy = 0; lazy < 2; lazy++)
        run_ranks(&(Run){.size = 3, .body = never_ends, .one_settings = "silent:2", .lazy = lazy});
}

static void wait_for_ever(void) {
    start_comm();
    gather(0), wait_for(0);
    device_sync();
}
TEST(a_host_that_waits_for_a_collective_that_never_ends_is_stopped) {
    Run run = {.size = 1,
               .body = wait_for_ever,
               .settings = "silent:1",
               .timeout = "1",
               .expected = -1,
               .stopped = true};
    run_ranks(&run);
    assert_said(&run, 0, "the host waits for collective 1, which only ncclCommAbort ends");
}

static void leave_in_flight(void) {
    start_comm();
    gather(0);
}
TEST(a_shutdown_completes_what_is_in_flight) {
    for (int lazy = 0; lazy < 2; lazy++)
        run_ranks(&(Run){.size = 2, .body = leave_in_flight, .lazy = lazy});
}

static void killed(void) {
    if (rank == size - 1) {
        start_comm();
        raise(SIGKILL);
    }
    request_until_failure();
}
TEST(a_process_that_is_killed_is_missed_by_the_others) {
    Run run = {.size = 3, .body = killed, .timeout = "1", .expected = -1};
    run_ranks(&run);
    assert_true(WIFSIGNALED(run.status[2]) && WTERMSIG(run.status[2]) == SIGKILL);
    for (int r = 0; r < 2; r++) {
        assert_int_equal(run.status[r], 0);
        assert_said(&run, r, "remote process exited");
    }
}

// --------------------------------------------------------------------------------------- the start

static double start_seconds = 60;
static void fail_to_start(void) {
    Error err;
    CHECK(!device_comm_start(id, rank, size, start_seconds, &err), "it started");
    fprintf(stderr, "%s\n", err.text);
    CHECK(*device_comm_library() == '\0', "%s", device_comm_library());
    device_comm_abort();
}
TEST(a_process_that_does_not_come_is_reported) {
    Run run = {.size = 2, .body = fail_to_start, .missing = 1};
    start_seconds = 1;
    run_ranks(&run);
    start_seconds = 60;
    assert_said(&run, 0, "rank 0 of 2 waited 1 s for the others: not all processes came");
}
TEST(an_error_of_the_start_is_reported) {
    Run run = {
        .size = 2, .body = fail_to_start, .missing = 1, .timeout = "1", .settings = "inprogress"};
    run_ranks(&run);
    assert_said(&run, 0, "start of NCCL: rank 0 of 2: NCCL: remote process exited");
    assert_said(&run, 0, "(rank 1 has not come)");
}
TEST(no_library_is_reported) {
    Run run = {.size = 1, .body = fail_to_start, .settings = "none"};
    run_ranks(&run);
    assert_said(&run, 0, "NCCL not found");
}

// ------------------------------------------------------------------------------------------ misuse

static void not_started(void) {
    Error err;
    device_all_gather(NULL, slices(4), 0, &err);
}
static void started_twice(void) {
    Error err;
    start_comm();
    device_comm_start(id, rank, size, 60, &err);
}
static void high_request(void) {
    start_comm();
    gather(DEVICE_COMM_REQUESTS);
}
static void backward_part(void) {
    Error err;
    start_comm();
    device_all_gather(buffers.all, &(const Range){8, 4}, 0, &err);
}
static void request_in_flight(void) {
    start_comm();
    gather(1), send_slices(1);
}
static void wait_without_request(void) {
    start_comm();
    gather(0), wait_for(1);
}
static void wait_twice(void) {
    start_comm();
    gather(0), wait_for(0), wait_for(0);
}
static void odd_size(void) {
    Error err;
    start_comm();
    device_all_to_all(buffers.recv, buffers.send, slices(6), 0, &err);
}
static void in_a_recording(void) {
    Error err;
    start_comm();
    DeviceGraph *graph = device_graph_create(&err);
    for (int i = 0; i < 2; i++) {
        device_graph_replay(graph);
        device_graph_begin(graph);
        if (i == 1) gather(0);
        device_copy(buffers.send, buffers.recv, 4);
        device_graph_end(graph);
    }
}
static void host_memory(void) {
    Error err;
    start_comm();
    device_all_gather(buffers.host, slices(4), 0, &err);
}
static void overlapping(void) {
    Error err;
    start_comm();
    device_all_to_all(buffers.recv, buffers.recv, slices(4), 0, &err);
}

TEST(misuse_stops_the_program) {
    static const struct {
        void (*body)(void);
        const char *words;
    } cases[] = {
        {not_started, "device_all_gather before device_comm_start"},
        {started_twice, "device_comm_start: called twice"},
        {high_request, "device_all_gather: request 1024, there are 0 to 1023"},
        {backward_part, "device_all_gather: part 0 is bytes 8 to 4"},
        {request_in_flight, "device_all_to_all: request 1 is in flight"},
        {wait_without_request, "device_comm_wait: request 1 was not made"},
        {wait_twice, "device_comm_wait: request 0 was not made"},
        {odd_size, "device_all_to_all: part 0 is bytes 0 to 6"},
        {in_a_recording, "device_all_gather while recording a graph"},
        {host_memory, "ncclAllGather: a buffer is not within one allocation of the device"},
        {overlapping, "a process receives where it sends from"},
    };

    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        Run run = {.size = 1, .body = cases[i].body, .expected = -1, .stopped = true};
        run_ranks(&run);
        assert_true(WIFSIGNALED(run.status[0]));
        assert_said(&run, 0, cases[i].words);
    }
}

#else

TEST(without_the_header_the_message_says_what_to_install) {
    Error err;
    char id[DEVICE_COMM_ID_BYTES];
    assert_error(device_comm_id(id, &err), "built without NCCL");
    assert_error(device_comm_start(id, 0, 1, 60, &err), "built without NCCL");
}

#endif

// ---------------------------------------------------------------------------------- choosing a GPU

static int third_process(void *gpus) {
    Error err;
    setenv("SIM_GPUS", gpus, 1);
    const bool ok = device_init(&(DeviceOptions){.number = 2}, &err);
    fprintf(stderr, "%s", ok ? device_facts()->id : err.text);
    return ok ? 0 : 1;
}
TEST(a_process_without_a_gpu_is_refused_unless_it_sees_one_of_its_own) {
    char said[1024];
    assert_int_equal(status_of_child(third_process, "1", said, sizeof said), 0);
    assert_string_equal(said, "0000:00:00.0");
    assert_int_equal(status_of_child(third_process, "2", said, sizeof said), 1 << 8);
    assert_string_equal(
        said,
        "no GPU for process 3 of this machine: 2 are visible; start at most 2 processes on it");
    assert_int_equal(status_of_child(third_process, "3", said, sizeof said), 0);
    assert_string_equal(said, "0000:02:00.0");
}
