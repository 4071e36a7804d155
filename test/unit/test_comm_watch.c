// Processes that end, are stopped, or hang: how the others find out (llmc/comm/watch.h), over TCP
// on this machine.
#include "llmc/comm/comm.h"
#include "llmc/comm/watch.h"
#include "test/fixture.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <time.h>

enum { MOST = 4 };
// LIMIT: in tests that wait for it, as long as a busy machine may keep a thread waiting. In the
// others no process may exceed it by chance.
static const double LIMIT = 4, LONG_LIMIT = 300;

// A process leaves this to the test.
typedef struct {
    _Atomic int started; // comm_start has returned
    bool ok, is_lost;
    Error err;
} Result;

typedef bool (*Body)(Error *err);

static Result *results; // shared by all processes, by rank
static pid_t pids[MOST];
static int statuses[MOST], started;
static char server[64];
static double limit;

static int free_port(void) {
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t length = sizeof address;
    const int fd = socket(AF_INET, SOCK_STREAM, 0);
    if (bind(fd, (struct sockaddr *)&address, length) ||
        getsockname(fd, (struct sockaddr *)&address, &length))
        perror("bind"), abort();
    close(fd);
    return ntohs(address.sin_port);
}

static int setup(void **state) {
    unsetenv("COMM_START_SECONDS"), unsetenv("RANK"), unsetenv("WORLD_SIZE");
    results = mmap(NULL, MOST * sizeof *results, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS,
                   -1, 0);
    started = 0, limit = LONG_LIMIT;
    snprintf(server, sizeof server, "127.0.0.1:%d", free_port());
    return tmp_setup(state);
}

static int teardown(void **state) {
    for (int i = 0; i < started; i++)
        if (pids[i] > 0) kill(pids[i], SIGKILL), waitpid(pids[i], NULL, 0);
    munmap(results, MOST * sizeof *results);
    return tmp_teardown(state);
}

TestFixture test_each = {setup, teardown};

static const char *said_by(int rank) {
    static char name[32], text[4096];
    snprintf(name, sizeof name, "stderr.%d", rank);
    FILE *f = fopen(tmp_file(name), "r");
    const size_t n = f ? fread(text, 1, sizeof text - 1, f) : 0;
    text[n] = '\0';
    if (f) fclose(f);
    return text;
}

// A process of the run, whose main thread runs `body` and then ends as the trainer does.
static void be(int rank, int size, Body body) {
    Result *r = &results[rank];
    char name[32];
    snprintf(name, sizeof name, "stderr.%d", rank);
    if (!freopen(tmp_file(name), "w", stderr)) abort();
    setvbuf(stderr, NULL, _IONBF, 0);

    const CommOptions options = {
        .size = size, .rank = rank, .method = "tcp", .server = server, .timeout = limit};
    watch_step(7);

    r->ok = comm_start(&options, &r->err);
    r->started = 1;
    r->ok = r->ok && body(&r->err);

    r->is_lost = watch_has_failed(&r->err);
    if (!r->ok && !comm_failed_together()) comm_abort(EXIT_RUN_FAILED);
    comm_end();
    _exit(r->ok ? EXIT_OK : EXIT_RUN_FAILED);
}

static void pause_ms(int ms) {
    nanosleep(&(struct timespec){ms / 1000, ms % 1000 * 1000000L}, NULL);
}

// Starts one process for each body, and returns when all are connected.
static void start(int size, const Body bodies[]) {
    fflush(NULL);
    for (int r = 0; r < size; r++, started++)
        if ((pids[r] = fork()) == 0) be(r, size, bodies[r]);
    for (int r = 0; r < size; r++)
        while (!results[r].started) pause_ms(10);
    for (int r = 0; r < size; r++)
        if (*results[r].err.text) fail_msg("process %d: %s", r, results[r].err.text);
}

static void wait_for_end(int rank) {
    assert_int_equal(waitpid(pids[rank], &statuses[rank], 0), pids[rank]);
    pids[rank] = 0;
}

static void assert_exit(int rank, int code) {
    wait_for_end(rank);
    if (!WIFEXITED(statuses[rank]) || WEXITSTATUS(statuses[rank]) != code)
        fail_msg("process %d: status %d, '%s'", rank, statuses[rank], said_by(rank));
}

// Everything that the process said is one line with these words; "": nothing.
static void assert_said(int rank, const char *words) {
    const char *said = said_by(rank), *end = strchr(said, '\n');
    if (*words ? !strstr(said, words) || !end || end[1] != '\0' : *said != '\0')
        fail_msg("process %d said '%s', not '%s'", rank, said, words);
}

static const char *named(int rank, const char *rest) {
    static char text[512];
    char host[64] = "";
    gethostname(host, sizeof host - 1);
    snprintf(text, sizeof text, ": process %d (%s) %s", rank, host, rest);
    return text;
}

// ------------------------------------------------------------------------------- what processes do

// The main thread computes, and never asks the others anything.
static bool compute(Error *err) {
    while (!watch_has_failed(err)) {
        watch_progress();
        pause_ms(10);
    }
    return false;
}
static bool wait_in_call(Error *err) { return comm_barrier(err); }
static bool hang(Error *err) {
    (void)err;
    while (getpid()) pause();
    return false;
}
static bool collect(Error *err) {
    watch_collective("sum of numbers");
    while (!watch_has_failed(err)) pause_ms(10);
    return false;
}
static bool pass(Error *err) {
    (void)err;
    return true;
}

// ----------------------------------------------------------------------------------- one has ended

TEST(a_process_that_ended_is_named_although_nobody_sends_a_message) {
    start(3, (Body[]){compute, compute, compute});
    kill(pids[1], SIGKILL);
    assert_exit(0, EXIT_RUN_FAILED), assert_exit(2, EXIT_RUN_FAILED);
    assert_true(results[0].is_lost && results[2].is_lost);
    assert_said(0, named(1, "has ended (step"));
    assert_said(2, "");
    assert_non_null(strstr(results[2].err.text, named(1, "has ended (step") + 2));
}

TEST(the_others_name_process_0_once_on_each_machine) {
    start(3, (Body[]){compute, compute, wait_in_call});
    kill(pids[0], SIGKILL);
    assert_exit(1, EXIT_RUN_FAILED), assert_exit(2, EXIT_RUN_FAILED);
    assert_said(1, named(0, "has ended (step"));
    assert_said(2, "");
}

TEST(a_wait_for_the_others_ends) {
    start(3, (Body[]){wait_in_call, wait_in_call, hang});
    kill(pids[2], SIGKILL);
    assert_exit(0, EXIT_RUN_FAILED), assert_exit(1, EXIT_RUN_FAILED);
    assert_said(0, named(2, "has ended (step"));
    assert_said(1, "");
}

TEST(a_process_that_fails_alone_is_named) {
    start(2, (Body[]){wait_in_call, compute});
    kill(pids[1], SIGTERM);
    assert_exit(0, EXIT_RUN_FAILED);
    assert_said(0, named(1, "has ended (step"));
}

static bool fail_soon(Error *err) {
    pause_ms(100);
    return error_set(err, "the disk is full");
}

TEST(comm_abort_tells_the_others) {
    start(2, (Body[]){compute, fail_soon});
    assert_exit(1, EXIT_RUN_FAILED), assert_exit(0, EXIT_RUN_FAILED);
    assert_said(0, named(1, "has ended (step"));
    assert_said(1, "");
    assert_string_equal(results[1].err.text, "the disk is full");
}

TEST(a_main_thread_that_cannot_end_is_ended) {
    start(2, (Body[]){hang, hang});
    kill(pids[1], SIGKILL);
    assert_exit(0, EXIT_RUN_FAILED);
    assert_said(0, named(1, "has ended (step"));
}

// ----------------------------------------------------------------------------------- one is silent

// Each line that the process said is of itself, with these words.
static void assert_waited(int rank, const char *words) {
    char text[64];
    snprintf(text, sizeof text, "has made no progress for %g s (step 7, collective ", LIMIT);
    assert_said(rank, named(rank, text)), assert_said(rank, words);
}

// The processes that wait for it say so, each for itself, or learn it from the first.
TEST(a_process_that_is_stopped_is_not_waited_for_longer_than_the_limit) {
    limit = LIMIT;
    start(3, (Body[]){wait_in_call, compute, compute});
    kill(pids[1], SIGSTOP);
    assert_exit(0, EXIT_RUN_FAILED), assert_exit(2, EXIT_RUN_FAILED);
    assert_waited(0, ": messages of all)");
    assert_said(2, "");
    assert_string_equal(results[2].err.text, results[0].err.text);
    kill(pids[1], SIGCONT); // it learns that the run has failed, and keeps it to itself
    assert_exit(1, EXIT_RUN_FAILED);
    assert_said(1, "");
}

TEST(process_0_that_is_stopped_is_not_waited_for_longer_than_the_limit) {
    limit = LIMIT;
    start(2, (Body[]){compute, wait_in_call});
    kill(pids[0], SIGSTOP);
    assert_exit(1, EXIT_RUN_FAILED);
    assert_waited(1, ": messages of all)");
    kill(pids[0], SIGCONT);
    assert_exit(0, EXIT_RUN_FAILED);
    assert_said(0, "");
}

static bool compute_and_meet(Error *err) {
    for (int i = 0; i < 20; i++) watch_progress(), pause_ms(100);
    return comm_barrier(err);
}

TEST(a_process_that_is_stopped_for_a_short_time_is_waited_for) {
    start(3, (Body[]){compute_and_meet, compute_and_meet, compute_and_meet});
    for (int r = 0; r < 3; r++) kill(pids[r], SIGSTOP), pause_ms(400), kill(pids[r], SIGCONT);
    for (int r = 0; r < 3; r++) assert_exit(r, EXIT_OK), assert_said(r, "");
}

TEST(a_run_that_was_stopped_as_a_whole_resumes) {
    limit = LIMIT;
    start(3, (Body[]){compute_and_meet, compute_and_meet, compute_and_meet});
    for (int r = 0; r < 3; r++) kill(pids[r], SIGSTOP);
    pause_ms((int)(1500 * LIMIT));
    for (int r = 0; r < 3; r++) kill(pids[r], SIGCONT);
    for (int r = 0; r < 3; r++) assert_exit(r, EXIT_OK), assert_said(r, "");
}

// --------------------------------------------------------------------------------- nobody proceeds

TEST(a_process_that_hangs_says_in_which_collective) {
    limit = LIMIT;
    start(3, (Body[]){compute, collect, compute});
    for (int r = 0; r < 3; r++) assert_exit(r, EXIT_RUN_FAILED);
    assert_waited(1, ": sum of numbers)");
    assert_said(0, ""), assert_said(2, "");
    assert_string_equal(results[0].err.text, results[2].err.text);
    assert_non_null(strstr(results[0].err.text, ": sum of numbers)"));
}

// ----------------------------------------------------------------------------------------- the end

static bool late(Error *err) {
    (void)err;
    pause_ms(500);
    return true;
}

TEST(processes_may_end_in_any_order) {
    start(3, (Body[]){pass, late, pass});
    for (int r = 0; r < 3; r++) assert_exit(r, EXIT_OK), assert_said(r, "");
    setup(&(void *){NULL});
    start(3, (Body[]){late, pass, pass});
    for (int r = 0; r < 3; r++) assert_exit(r, EXIT_OK), assert_said(r, "");
}

static int count_entries(const char *path) {
    DIR *d = opendir(path);
    int n = 0;
    while (readdir(d)) n++;
    closedir(d);
    return n;
}

TEST(one_process_alone_has_no_thread_and_no_socket) {
    const int threads = count_entries("/proc/self/task"), files = count_entries("/proc/self/fd");
    Error err;
    assert_true(comm_start(&(CommOptions){.timeout = LIMIT}, &err));
    assert_true(comm_barrier(&err));
    assert_int_equal(count_entries("/proc/self/task"), threads);
    assert_int_equal(count_entries("/proc/self/fd"), files);
    assert_false(watch_has_failed(&err));
    comm_end();
}
