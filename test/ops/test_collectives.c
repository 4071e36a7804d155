// The contract of llmc/comm/comm.h and of the collectives in llmc/device.h, whatever implements
// them: one process alone, MPI, TCP, NCCL. Run alone it is one process; test/e2e/test_processes.py
// starts it as several.

#include "llmc/comm/comm.h"
#include "llmc/device.h"
#include "test/fixture.h"
#include "test/test.h"

static Error err;

static int start_all(void **state) {
    (void)state;
    const CommOptions none = {0};
    if (!comm_start(&none, &err)) fail_msg("%s", err.text);
    // Each process takes one of the cores of the machine, so that many do not disturb each other.
    const DeviceOptions device = {.threads = 1, .number = comm_local_rank()};
    if (!device_init(&device, &err)) fail_msg("%s", err.text);
    return 0;
}

static int stop_all(void **state) {
    (void)state;
    device_shutdown();
    comm_end();
    return 0;
}

TestFixture test_all = {start_all, stop_all};

// Every test goes this many rounds, as a wrong order of messages may pass once.
enum { ROUNDS = 20 };

// ------------------------------------------------------------------------------------------- hosts

TEST(ranks_are_counted) {
    assert_in_range(comm_rank(), 0, comm_size() - 1);
    assert_in_range(comm_local_rank(), 0, comm_local_size() - 1);
    assert_in_range(comm_local_size(), 1, comm_size());
    assert_in_range(comm_hosts(), 1, comm_size());
    assert_true((comm_size() == 1) == (*comm_launcher() == '\0'));
}

TEST(gather_has_the_bytes_of_all_in_the_order_of_ranks) {
    const size_t sizes[] = {1, 4, 1000, 1 << 20};
    for (int round = 0; round < ROUNDS; round++) {
        const size_t n = sizes[round % 4];
        unsigned char *mine = malloc(n), *all = malloc(n * (size_t)comm_size());
        for (size_t i = 0; i < n; i++)
            mine[i] = (unsigned char)((size_t)comm_rank() * 37 + i * 11 + (size_t)round);

        assert_ok(comm_gather(mine, all, n, &err));
        for (int p = 0; p < comm_size(); p++)
            for (size_t i = 0; i < n; i++)
                if (all[(size_t)p * n + i] !=
                    (unsigned char)((size_t)p * 37 + i * 11 + (size_t)round))
                    fail_msg("byte %zu of process %d", i, p);

        free(mine), free(all);
    }
}

TEST(broadcast_has_the_bytes_of_process_0) {
    for (int round = 0; round < ROUNDS; round++) {
        int64_t values[100];
        for (int i = 0; i < 100; i++) values[i] = comm_rank() * 1000 + i + round;
        assert_ok(comm_broadcast(values, sizeof values, &err));
        for (int i = 0; i < 100; i++) assert_int_equal(values[i], i + round);
    }
}

TEST(a_failure_of_one_is_that_of_all_and_names_it) {
    assert_ok(comm_barrier(&err));
    assert_true(comm_all_ok(true, &err));

    const int failing = comm_size() - 1;
    error_set(&err, "the disk of %d is full", comm_rank());
    assert_false(comm_all_ok(comm_rank() != failing, &err));
    char expected[64];
    snprintf(expected, sizeof expected, "the disk of %d is full", failing);
    assert_non_null(strstr(err.text, expected));

    if (failing == 0) return;
    snprintf(expected, sizeof expected, "process %d on ", failing);
    assert_ptr_equal(strstr(err.text, expected), err.text);
    assert_true(comm_failed_together());
}

TEST(what_differs_is_named_with_both_values) {
    char rank[16], place[32];
    snprintf(rank, sizeof rank, "%d", comm_rank() / 2);
    const CommFact same[] = {{"--color", "blue"}, {"--shape", ""}};
    assert_ok(comm_agree(same, 2, &err));

    const CommFact other[] = {{"--color", "blue"}, {"--half-rank", rank}};
    if (comm_size() <= 2) {
        assert_ok(comm_agree(other, 2, &err));
        return;
    }

    assert_false(comm_agree(other, 2, &err));
    snprintf(place, sizeof place, "process 2 on ");
    assert_ptr_equal(strstr(err.text, place), err.text);
    assert_non_null(strstr(err.text, "has --half-rank 1, process 0 on "));
    assert_non_null(strstr(err.text, "has 0: "));
}

// ----------------------------------------------------------------------------------------- devices

enum { MOST = 16, SLICE = 1021 * 4 }; // bytes: a multiple of 4, and of nothing else

// Word i of what process `from` sends to process `to` in a round.
static int32_t word(int from, int to, int i, int round) {
    return ((from * 100 + to) * 4096 + i) * 50 + round;
}

typedef struct {
    int32_t *host;        // (size, SLICE)
    char *send, *recv[2]; // on the device
    Range slices[MOST];
} Buffers;

static Buffers make_buffers(void) {
    const size_t bytes = (size_t)comm_size() * SLICE;
    Buffers b = {host_alloc(bytes, &err),
                 device_alloc(bytes, &err),
                 {device_alloc(bytes, &err), device_alloc(bytes, &err)},
                 {{0, 0}}};
    assert_true(b.host && b.send && b.recv[0] && b.recv[1] && comm_size() <= MOST);
    for (int r = 0; r < comm_size(); r++) b.slices[r] = (Range){r * SLICE, (r + 1) * SLICE};
    return b;
}

static void free_buffers(Buffers b) {
    host_free(b.host);
    device_free(b.send), device_free(b.recv[0]), device_free(b.recv[1]);
}

static void upload(const Buffers *b, void *to, int round) {
    for (int p = 0; p < comm_size(); p++)
        for (int i = 0; i < SLICE / 4; i++)
            b->host[p * (SLICE / 4) + i] = word(comm_rank(), p, i, round);
    copy_h2d(to, b->host, (size_t)comm_size() * SLICE, STREAM_COMPUTE);
    device_sync();
}

// Slice p must be what process p sent to `to`.
static void check(const Buffers *b, const void *at, int to, int round) {
    copy_d2h(b->host, at, (size_t)comm_size() * SLICE, STREAM_COMPUTE);
    device_sync();
    for (int p = 0; p < comm_size(); p++)
        for (int i = 0; i < SLICE / 4; i++)
            if (b->host[p * (SLICE / 4) + i] != word(p, to < 0 ? p : to, i, round))
                fail_msg("process %d, round %d: word %d of the slice of process %d", comm_rank(),
                         round, i, p);
}

// Connects the devices once; on the CPU without MPI it says how to start.
static void connect(void) {
    static bool connected;
    char id[DEVICE_COMM_ID_BYTES] = {0};
    if (connected) return;

    const bool ok = comm_rank() > 0 || device_comm_id(id, &err);
    if (!ok && comm_size() == 1) {
        if (strcmp(device_facts()->backend, "cpu") == 0)
            assert_non_null(strstr(err.text, "mpirun"));
        printf("alone there is nothing to exchange: %s\n", err.text);
        skip();
    }

    assert_ok(comm_all_ok(ok, &err));
    assert_ok(comm_broadcast(id, sizeof id, &err));
    assert_ok(device_comm_start(id, comm_rank(), comm_size(), 60, &err));
    assert_true(*device_comm_library() != '\0');
    connected = true;
}

TEST(all_to_all_moves_each_slice_to_its_process) {
    connect();
    const Buffers b = make_buffers();
    for (int round = 0; round < ROUNDS; round++) {
        upload(&b, b.send, round);
        assert_ok(device_all_to_all(b.recv[0], b.send, b.slices, 0, &err));
        assert_ok(device_comm_wait(0, &err));
        check(&b, b.recv[0], comm_rank(), round);
    }
    free_buffers(b);
}

TEST(all_gather_completes_the_slices_in_place) {
    connect();
    const Buffers b = make_buffers();
    for (int round = 0; round < ROUNDS; round++) {
        upload(&b, b.send, round); // its own slice counts
        assert_ok(device_all_gather(b.send, b.slices, 1, &err));
        assert_ok(device_comm_wait(1, &err));
        check(&b, b.send, -1, round);
    }
    free_buffers(b);
}

TEST(two_requests_are_in_flight_at_once) {
    connect();
    const Buffers b = make_buffers();
    for (int round = 0; round < ROUNDS; round++) {
        upload(&b, b.send, round);
        upload(&b, b.recv[1], round);

        assert_ok(device_all_to_all(b.recv[0], b.send, b.slices, 0, &err));
        assert_ok(device_all_gather(b.recv[1], b.slices, 1, &err));
        assert_ok(device_comm_wait(1, &err));
        check(&b, b.recv[1], -1, round);
        assert_ok(device_comm_wait(0, &err));
        check(&b, b.recv[0], comm_rank(), round);
    }
    free_buffers(b);
}

// Parts of any size, in any order, with gaps; that of process 1 is empty, and every fourth round
// all are.
static void irregular_parts(Range *parts, int round) {
    int64_t end = 4 * (round % 3);
    for (int i = 0; i < comm_size(); i++) {
        const int r = (i + round) % comm_size();
        const int64_t words = r == 1 || round % 4 == 3 ? 0 : 1 + (r * 37 + round * 11) % 300;
        parts[r] = words > 0 ? (Range){end, end + 4 * words} : (Range){0, 0};
        end += 4 * words + 8;
    }
}

// The buffer with a word for each place, by process and round.
static void upload_places(const Buffers *b, void *to, int round) {
    for (int i = 0; i < comm_size() * (SLICE / 4); i++) b->host[i] = word(comm_rank(), 0, i, round);
    copy_h2d(to, b->host, (size_t)comm_size() * SLICE, STREAM_COMPUTE);
    device_sync();
}

static void download(const Buffers *b, const void *from) {
    copy_d2h(b->host, from, (size_t)comm_size() * SLICE, STREAM_COMPUTE);
    device_sync();
}

TEST(parts_may_have_any_size_and_place) {
    connect();
    Buffers b = make_buffers();
    for (int round = 0; round < ROUNDS; round++) {
        irregular_parts(b.slices, round);
        upload_places(&b, b.send, round);
        upload_places(&b, b.recv[1], round);

        assert_ok(device_all_to_all(b.recv[0], b.send, b.slices, 0, &err));
        assert_ok(device_all_gather(b.recv[1], b.slices, 1, &err));
        device_comm_progress();
        assert_ok(device_comm_wait(0, &err));
        assert_ok(device_comm_wait(1, &err));

        download(&b, b.recv[0]);
        const Range own = b.slices[comm_rank()];
        const int64_t n = range_size(own) / 4;
        for (int p = 0; p < comm_size(); p++)
            for (int64_t i = 0; i < n; i++)
                assert_int_equal(b.host[p * n + i], word(p, 0, (int)(own.begin / 4 + i), round));

        download(&b, b.recv[1]);
        for (int i = 0; i < comm_size() * (SLICE / 4); i++) {
            int from = comm_rank(); // outside the parts nothing changes
            for (int p = 0; p < comm_size(); p++)
                if (4 * i >= b.slices[p].begin && 4 * i < b.slices[p].end) from = p;
            assert_int_equal(b.host[i], word(from, 0, i, round));
        }
    }
    free_buffers(b);
}

TEST(many_requests_are_completed_in_any_order) {
    enum { MANY = 10 };
    connect();
    Buffers b[MANY];
    for (int i = 0; i < MANY; i++) b[i] = make_buffers();

    for (int round = 0; round < 3; round++) {
        for (int i = 0; i < MANY; i++) {
            upload(&b[i], b[i].send, i);
            assert_ok(i % 2
                          ? device_all_gather(b[i].send, b[i].slices, 100 * i, &err)
                          : device_all_to_all(b[i].recv[0], b[i].send, b[i].slices, 100 * i, &err));
            device_comm_progress();
        }

        for (int k = 0; k < MANY; k++) {
            const int i = (k * 7 + round) % MANY;
            assert_ok(device_comm_wait(100 * i, &err));
            check(&b[i], i % 2 ? b[i].send : b[i].recv[0], i % 2 ? -1 : comm_rank(), i);
        }
    }
    for (int i = 0; i < MANY; i++) free_buffers(b[i]);
}
