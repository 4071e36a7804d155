// Messages over TCP: processes of one machine, in any order, with strangers and lost processes
// between them.
//
//     test_comm_tcp RANK SIZE HOST PORT
// is one process of a run, for test/tools/test_rendezvous.py
#include "llmc/comm/channel_tcp.h"
#include "test/fixture.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/time.h>

enum { MOST = 10, LARGE = 4 << 20 };

// A process leaves this to the test.
typedef struct {
    bool opened, ok;
    Error err;
    Place place;
} Result;

typedef bool (*Body)(const Channel *channel, const Place *place, Error *err);

static Result *results; // shared by all processes, by the order of starts
static pid_t pids[MOST];
static int started;
static Place run; // what the places of a test have in common

static int free_port(const char *host) {
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = inet_addr(host)};
    socklen_t length = sizeof address;
    const int fd = socket(AF_INET, SOCK_STREAM, 0);
    if (bind(fd, (struct sockaddr *)&address, length) ||
        getsockname(fd, (struct sockaddr *)&address, &length))
        perror(host), abort();
    close(fd);
    return ntohs(address.sin_port);
}

static int setup(void **state) {
    (void)state;
    signal(SIGPIPE, SIG_DFL); // one that is raised must end the process
    unsetenv("COMM_START_SECONDS"), unsetenv(COMM_LISTENER);

    results = mmap(NULL, MOST * sizeof *results, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS,
                   -1, 0);
    started = 0;
    run = (Place){.local_rank = -1, .local_size = -1, .run_id = "a run"};
    // An address of its own: no other program, and no other test, has the port.
    const int pid = getpid();
    snprintf(run.host, sizeof run.host, "127.%d.%d.%d", 1 + (pid >> 16) % 254, (pid >> 8) % 256,
             1 + pid % 254);
    run.port = free_port(run.host);
    return 0;
}

static int teardown(void **state) {
    (void)state;
    for (int i = 0; i < started; i++)
        if (pids[i] > 0) kill(pids[i], SIGKILL), waitpid(pids[i], NULL, 0);
    return munmap(results, MOST * sizeof *results);
}

TestFixture test_each = {setup, teardown};

// Starts a process of the run; returns its number in results.
static int start(int rank, int size, Body body) {
    const int i = started++;
    memset(&results[i], 0, sizeof results[i]);

    fflush(NULL);
    if ((pids[i] = fork()) == 0) {
        signal(SIGABRT, SIG_DFL);
        Result *r = &results[i];
        r->place = run;
        r->place.rank = rank, r->place.size = size;
        const Channel *channel = channel_tcp_open(&r->place, &r->err);
        r->opened = channel;
        r->ok = channel && body(channel, &r->place, &r->err);
        if (channel) channel->close(0);
        _exit(0);
    }

    assert_true(pids[i] > 0);
    return i;
}

// Waits for it. A process that crashed fails the test.
static const Result *result_of(int i) {
    int status;
    assert_int_equal(waitpid(pids[i], &status, 0), pids[i]);
    pids[i] = 0;
    if (!WIFEXITED(status) || WEXITSTATUS(status) != 0)
        fail_msg("process %d ended with status %d", i, status);
    return &results[i];
}

static void assert_succeeded(int i) {
    const Result *r = result_of(i);
    if (!r->ok) fail_msg("process %d: %s", i, r->err.text);
}

// Returns the message.
static const char *assert_failed(int i, const char *part) {
    const Result *r = result_of(i);
    if (r->ok || !strstr(r->err.text, part))
        fail_msg("process %d: '%s' does not say '%s'", i, r->ok ? "success" : r->err.text, part);
    return r->err.text;
}

static const char *here(void) {
    static char name[256];
    gethostname(name, sizeof name - 1);
    return name;
}

static bool gather(const Channel *channel, const void *mine, void *all, size_t bytes, Error *err) {
    return channel->exchange(EXCHANGE_GATHER, mine, all, bytes, err);
}

static bool broadcast(const Channel *channel, void *data, size_t bytes, Error *err) {
    return channel->exchange(EXCHANGE_BROADCAST, NULL, data, bytes, err);
}

static bool barrier(const Channel *channel, const Place *place, Error *err) {
    (void)place;
    return gather(channel, NULL, NULL, 0, err);
}

static int connect_to_run(void) {
    struct sockaddr_in address = {.sin_family = AF_INET,
                                  .sin_port = htons((uint16_t)run.port),
                                  .sin_addr.s_addr = inet_addr(run.host)};
    for (;;) { // until process 0 listens
        const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
        if (connect(fd, (struct sockaddr *)&address, sizeof address) == 0) return fd;
        close(fd);
        usleep(10000);
    }
}

static int listen_for_run(void) {
    struct sockaddr_in address = {.sin_family = AF_INET,
                                  .sin_port = htons((uint16_t)run.port),
                                  .sin_addr.s_addr = inet_addr(run.host)};
    const int fd = socket(AF_INET, SOCK_STREAM, 0), on = 1;
    setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    if (bind(fd, (struct sockaddr *)&address, sizeof address) || listen(fd, 100))
        perror("listen"), abort();
    return fd;
}

// ---------------------------------------------------------------------------------------- messages

static unsigned char pattern(int rank, int call, size_t i) {
    return (unsigned char)((size_t)rank * 31 + (size_t)call * 7 + i + (i >> 8));
}

static bool holds(const unsigned char *data, int rank, int call, size_t bytes) {
    for (size_t i = 0; i < bytes; i++)
        if (data[i] != pattern(rank, call, i)) return false;
    return true;
}

static bool exchange(const Channel *channel, const Place *place, size_t bytes, int call,
                     Error *err) {
    unsigned char *mine = malloc(bytes + 1), *all = malloc(bytes * (size_t)place->size + 1);
    for (size_t i = 0; i < bytes; i++) mine[i] = pattern(place->rank, call, i);
    bool ok = gather(channel, mine, all, bytes, err);
    for (int r = 0; ok && r < place->size; r++)
        if (!holds(all + (size_t)r * bytes, r, call, bytes))
            ok = error_set(err, "call %d: wrong data of process %d", call, r);
    ok = ok && broadcast(channel, mine, bytes, err);
    if (ok && !holds(mine, 0, call, bytes))
        ok = error_set(err, "call %d: wrong data of the broadcast", call);
    free(mine), free(all);
    return ok;
}

static bool exchange_all_sizes(const Channel *channel, const Place *place, Error *err) {
    static const size_t BYTES[] = {0, 1, 24, 65537, LARGE, 3};
    int call = 0;
    for (size_t i = 0; i < sizeof BYTES / sizeof BYTES[0]; i++)
        if (!exchange(channel, place, BYTES[i], call++, err)) return false;
    while (call < 300)
        if (!exchange(channel, place, (size_t)call % 50, call, err))
            return false;
        else
            call++;
    return true;
}

TEST(all_get_the_data_of_all) {
    static const int SIZES[] = {1, 2, 3, 8};
    for (int s = 0; s < 4; s++) {
        const int size = SIZES[s];
        run.port = free_port(run.host);
        started = 0;
        for (int r = 0; r < size; r++) start(r, size, exchange_all_sizes);
        for (int r = 0; r < size; r++) assert_succeeded(r);
    }
}

static bool exchange_out_of_step(const Channel *channel, const Place *place, Error *err) {
    for (int call = 0; call < 20; call++) {
        if ((call + place->rank) % 3 == 0) usleep(3000);
        if (!exchange(channel, place, 200000, call, err)) return false;
    }
    return true;
}

TEST(processes_may_be_late) {
    for (int r = 0; r < 4; r++) start(r, 4, exchange_out_of_step);
    for (int r = 0; r < 4; r++) assert_succeeded(r);
}

static void on_alarm(int number) { (void)number; }

static bool exchange_under_signals(const Channel *channel, const Place *place, Error *err) {
    // not SA_RESTART: calls end with EINTR
    const struct sigaction action = {.sa_handler = on_alarm};
    sigaction(SIGALRM, &action, NULL);
    const struct itimerval often = {{0, 500}, {0, 500}}, never = {{0, 0}, {0, 0}};
    setitimer(ITIMER_REAL, &often, NULL);
    bool ok = true;
    for (int call = 0; ok && call < 10; call++) ok = exchange(channel, place, LARGE, call, err);
    setitimer(ITIMER_REAL, &never, NULL);
    return ok;
}

TEST(signals_do_not_interrupt_calls) {
    for (int r = 0; r < 3; r++) start(r, 3, exchange_under_signals);
    for (int r = 0; r < 3; r++) assert_succeeded(r);
}

static bool take_watch_sockets(const Channel *channel, const Place *place, Error *err) {
    if (!barrier(channel, place, err)) return false;
    int *sockets = channel_tcp_watch_sockets();
    for (int r = 0; r < place->size; r++) {
        const bool expected = place->rank == 0 ? r > 0 : r == 0;
        if ((sockets[r] >= 0) != expected)
            return error_set(err, "socket of process %d: %d", r, sockets[r]);
        if (expected) close(sockets[r]);
    }
    free(sockets);
    return barrier(channel, place, err);
}

TEST(nothing_remains_open) {
    for (int r = 1; r < 3; r++) start(r, 3, take_watch_sockets);

    Place place = run;
    place.rank = 0, place.size = 3;
    Error err;

    const int before = entries_of("/proc/self/fd");
    const Channel *channel = channel_tcp_open(&place, &err);
    assert_ok(channel);
    // two connections each; the port is closed
    assert_int_equal(entries_of("/proc/self/fd"), before + 4);

    assert_ok(take_watch_sockets(channel, &place, &err));
    assert_int_equal(entries_of("/proc/self/fd"), before + 2);

    channel->close(0);
    assert_int_equal(entries_of("/proc/self/fd"), before);
    for (int i = 0; i < 2; i++) assert_succeeded(i);
}

// ------------------------------------------------------------------------------------------- start

TEST(processes_start_in_any_order) {
    static const int ORDERS[][3] = {{0, 1, 2}, {2, 1, 0}, {1, 0, 2}};
    for (int o = 0; o < 3; o++) {
        run.port = free_port(run.host);
        started = 0;
        for (int i = 0; i < 3; i++) {
            start(ORDERS[o][i], 3, barrier);
            usleep(120000); // the others try several times meanwhile
        }
        for (int i = 0; i < 3; i++) assert_succeeded(i);
    }
}

TEST(ipv6_is_an_address_like_another) {
    struct sockaddr_in6 loopback = {.sin6_family = AF_INET6, .sin6_addr = in6addr_loopback};
    const int fd = socket(AF_INET6, SOCK_STREAM, 0);
    const bool has_ipv6 = fd >= 0 && bind(fd, (struct sockaddr *)&loopback, sizeof loopback) == 0;
    if (fd >= 0) close(fd);
    if (!has_ipv6) {
        printf("this machine has no IPv6\n");
        skip();
    }
    snprintf(run.host, sizeof run.host, "::1");
    for (int r = 0; r < 2; r++) start(r, 2, barrier);
    for (int r = 0; r < 2; r++) assert_succeeded(r);
}

// Every address of the machine: where the host is a name, other machines come.
TEST(a_host_name_is_looked_up) {
    snprintf(run.host, sizeof run.host, "%s", "localhost");
    for (int r = 0; r < 2; r++) start(r, 2, barrier);
    for (int r = 0; r < 2; r++) assert_succeeded(r);
}

// Process 0 and 1 of 2 meet although another process was refused with this message.
static void refused(int rank, int size, const char *run_id, const char *message) {
    const Place right = run;
    const int first = start(0, 2, barrier);
    snprintf(run.run_id, sizeof run.run_id, "%s", run_id);
    const int wrong = start(rank, size, barrier);
    const char *said = assert_failed(wrong, message);
    assert_non_null(strstr(said, here()));
    // whoever has it is let in
    if (strcmp(run_id, right.run_id) != 0) assert_null(strstr(said, right.run_id));
    run = right;
    const int second = start(1, 2, barrier);
    assert_succeeded(first), assert_succeeded(second);
}

TEST(a_process_of_another_run_is_refused) {
    refused(1, 2, "b\x1B[2J", "its run is 'b\\x1B[2J', process 0's is another");
}

TEST(a_process_of_another_size_is_refused) {
    refused(1, 3, "a run", "it counts 3 processes, process 0 2");
}

TEST(a_rank_is_given_once) {
    int same[2];
    char message[600];
    const int zero = start(0, 3, barrier);
    for (int i = 0; i < 2; i++) same[i] = start(1, 3, barrier);

    siginfo_t info; // of the one that is refused: it comes as the second; the other waits
    assert_int_equal(waitid(P_ALL, 0, &info, WEXITED | WNOWAIT), 0);
    if (info.si_pid == pids[same[0]]) {
        same[0] = same[1];
        same[1] = same[0] - 1;
    }

    snprintf(message, sizeof message, "process 1 on %s was refused: its rank is taken", here());
    assert_failed(same[1], message);

    const int last = start(2, 3, barrier);
    assert_succeeded(zero), assert_succeeded(same[0]), assert_succeeded(last);
}

TEST(strangers_are_not_waited_for) {
    static const char *const SAID[] = {"", "GET / HTTP/1.1\r\nHost: here\r\n\r\n", "LLMCHEL2",
                                       "LLMC", "\xFF\xFF\xFF\xFF"};
    const int zero = start(0, 3, barrier);
    int held[24], count = 0;

    char hello[512]; // the right beginning, and then numbers that are too large and no ends of text
    memset(hello, 0xFF, sizeof hello);
    memcpy(hello, "LLMCHEL2", 8);

    for (int i = 0; i < 20; i++) { // some remain open, for a second each, some are closed
        const int fd = connect_to_run();
        const char *said = SAID[i % 5];
        assert_true(send(fd, said, strlen(said), MSG_NOSIGNAL) >= 0);
        if (i < 3)
            held[count++] = fd;
        else
            close(fd);
    }

    held[count] = connect_to_run();
    assert_true(send(held[count++], hello, sizeof hello, MSG_NOSIGNAL) > 0);
    memcpy(hello + 8, &(uint32_t[3]){3, 70000, 0}, 12); // the right size and run
    memset(hello + 20, 0, 64);
    snprintf(hello + 20, 64, "%s", run.run_id);
    held[count] = connect_to_run();
    assert_true(send(held[count++], hello, sizeof hello, MSG_NOSIGNAL) > 0);

    for (int r = 1; r < 3; r++) start(r, 3, barrier);
    assert_succeeded(zero), assert_succeeded(1), assert_succeeded(2);
    while (count > 0) close(held[--count]);
}

// The right Hello of a process of this run, on a connection of its own.
static int say_hello(uint32_t size, uint32_t rank, uint32_t purpose) {
    struct {
        char magic[8];
        uint32_t size, rank, purpose;
        char run_id[64], host[64];
    } hello = {"LLMCHEL2", size, rank, purpose, "", "node"};
    snprintf(hello.run_id, sizeof hello.run_id, "%s", run.run_id);
    const int fd = connect_to_run();
    assert_int_equal(send(fd, &hello, sizeof hello, MSG_NOSIGNAL), sizeof hello);
    return fd;
}

// Many more than process 0 keeps. Some have said the beginning of a Hello.
TEST(idle_connections_do_not_delay_the_start) {
    enum { IDLE = 200 };
    int held[IDLE];
    const int zero = start(0, 3, barrier), first = start(1, 3, barrier);
    for (int i = 0; i < IDLE; i++) {
        held[i] = connect_to_run();
        if (i % 2) assert_int_equal(send(held[i], "LLMCHEL2", 8, MSG_NOSIGNAL), 8);
    }
    setenv("COMM_START_SECONDS", "300", 1);
    const int last = start(2, 3, barrier);
    assert_succeeded(zero), assert_succeeded(first), assert_succeeded(last);
    for (int i = 0; i < IDLE; i++) close(held[i]);
}

TEST(a_connection_that_says_nothing_is_named) {
    setenv("COMM_START_SECONDS", "3", 1);
    const int zero = start(0, 2, barrier), silent = connect_to_run();
    assert_failed(zero, "not all 2 processes came within 3 s; missing: 1; a connection from "
                        "127.0.0.1 says nothing");
    close(silent);
}

// The limit of the start holds for it: were that longer, its connections would end first.
TEST(a_process_that_says_hello_and_then_nothing_is_named) {
    enum { LONGER = 300 }; // seconds
    setenv("COMM_START_SECONDS", "5", 1);
    const int zero = start(0, 3, barrier), last = start(2, 3, barrier);
    const int messages = say_hello(3, 1, 0), watch = say_hello(3, 1, 1);

    siginfo_t info = {.si_pid = 0};
    for (int i = 0; i < 100 * LONGER && info.si_pid == 0; i++) {
        assert_int_equal(waitid(P_PID, (id_t)pids[zero], &info, WEXITED | WNOWAIT | WNOHANG), 0);
        usleep(10000);
    }

    close(messages), close(watch);
    assert_failed(zero, "process 1 does not answer");
    assert_failed(last, "process 1 does not answer");
}

// Process 2 is in the queue of the socket that process 0 inherits, before that starts.
TEST(missing_processes_are_named) {
    const int listener = listen_for_run();
    const Place right = run;

    snprintf(run.run_id, sizeof run.run_id, "\x1B[2J");
    const int wrong = start(1, 4, barrier);
    run = right;
    const int other = start(2, 4, barrier);

    assert_int_equal(poll(&(struct pollfd){.fd = listener, .events = POLLIN}, 1, -1), 1);
    char number[16];
    snprintf(number, sizeof number, "%d", listener);
    setenv(COMM_LISTENER, number, 1);
    setenv("COMM_START_SECONDS", "5", 1);

    const int zero = start(0, 4, barrier);
    close(listener);

    assert_failed(wrong, "its run is '\\x1B[2J'");
    assert_failed(zero, "not all 4 processes came within 5 s; missing: 1 3; process 1 on ");
    assert_non_null(strstr(results[zero].err.text,
                           "was refused: its run is '\\x1B[2J', process 0's is another"));
    assert_failed(other, "not all 4 processes came within 5 s; missing: 1 3");
}

TEST(many_missing_processes_are_counted) {
    setenv("COMM_START_SECONDS", "0.1", 1);
    assert_failed(start(0, 100, barrier),
                  "not all 100 processes came within 0.1 s; missing: 1 2 3 4 5 6 7 8 ...");
}

TEST(without_process_0_the_others_give_up) {
    char message[600];
    setenv("COMM_START_SECONDS", "0.3", 1);
    snprintf(message, sizeof message,
             "process 0 at %s:%d did not answer within 0.3 s: Connection refused", run.host,
             run.port);
    assert_failed(start(1, 2, barrier), message);
}

TEST(a_limit_that_is_none_is_refused) {
    setenv("COMM_START_SECONDS", "soon", 1);
    assert_failed(start(1, 2, barrier), "COMM_START_SECONDS is 'soon'");
}

TEST(a_port_that_is_taken_is_named) {
    char message[600];
    const int listener = listen_for_run();
    snprintf(message, sizeof message, "process 0 cannot listen on port %d: Address already in use",
             run.port);
    assert_failed(start(0, 2, barrier), message);
    close(listener);
}

// Answers every connection with these bytes, until the test ends.
static void start_impostor(const void *bytes, size_t n) {
    const int listener = listen_for_run(), i = started++;
    if ((pids[i] = fork()) == 0) {
        for (char hello[512];;) {
            const int fd = accept(listener, NULL, NULL);
            if (recv(fd, hello, sizeof hello, 0) < 0 || send(fd, bytes, n, MSG_NOSIGNAL) < 0)
                _exit(1);
        }
    }
    close(listener);
}

enum { FRAME_MAGIC = 0x324D434C };

enum { MORE_THAN_A_MESSAGE = 1 << 16 }; // bytes; they follow the first words

typedef struct {
    uint32_t words[12];
    char more[MORE_THAN_A_MESSAGE];
} Said;

TEST(another_program_at_the_port_is_not_believed) {
    static const Said SAID[] = {
        {{0x20303232u, 0x74736F70u}, ""},                     // "220 post"
        {{FRAME_MAGIC, 77, 0, 0, 0, 0}, ""},                  // an unknown kind
        {{FRAME_MAGIC, 2, 0, 0, MORE_THAN_A_MESSAGE, 0}, ""}, // FRAME_ERROR with a long message
        {{FRAME_MAGIC, 2, 0, 0, 0, 0x10000000u}, ""},         // of 2^60 bytes
        {{FRAME_MAGIC, 1, 0, 0, 0xFFFFFFFFu, 0xFFu}, ""},     // FRAME_ACCEPTED with data
    };

    setenv("COMM_START_SECONDS", "0.3", 1);
    for (size_t i = 0; i < sizeof SAID / sizeof SAID[0]; i++) {
        run.port = free_port(run.host);
        start_impostor(&SAID[i], sizeof SAID[i]);
        assert_failed(start(1, 2, barrier), "did not answer within 0.3 s");
    }
}

TEST(an_answer_of_another_length_is_refused) {
    static const Said SAID[] = {
        // FRAME_ACCEPTED, then FRAME_GATHER of 2^40 bytes, or FRAME_ERROR with a long message
        {{FRAME_MAGIC, 1, 0, 0, 0, 0, FRAME_MAGIC, 3, 1, 0, 0, 0x100u}, ""},
        {{FRAME_MAGIC, 1, 0, 0, 0, 0, FRAME_MAGIC, 2, 0, 0, MORE_THAN_A_MESSAGE, 0}, ""},
    };
    for (size_t i = 0; i < sizeof SAID / sizeof SAID[0]; i++) {
        run.port = free_port(run.host);
        start_impostor(&SAID[i], sizeof SAID[i]);
        assert_failed(start(1, 2, barrier), "process 0 sends no answer");
    }
}

// ---------------------------------------------------------------------------------------- failures

static int lost; // the rank that ends

static bool end_after_some_calls(const Channel *channel, const Place *place, Error *err) {
    for (int call = 0; call < 3; call++)
        if (!exchange(channel, place, 1000, call, err)) return false;
    if (place->rank == lost) _exit(0);
    if (exchange(channel, place, LARGE, 3, err)) return error_set(err, "the call succeeded");
    Error again;
    const bool repeats = !barrier(channel, place, &again) && strcmp(again.text, err->text) == 0;
    return repeats ? false : error_set(err, "the next call says '%s'", again.text);
}

TEST(a_process_that_ended_is_named_to_all) {
    for (lost = 0; lost < 3; lost++) {
        char message[600];
        snprintf(message, sizeof message, "process %d has ended", lost);

        run.port = free_port(run.host);
        started = 0;
        for (int r = 0; r < 3; r++) start(r, 3, end_after_some_calls);

        for (int r = 0; r < 3; r++)
            if (r == lost)
                result_of(r);
            else
                assert_string_equal(assert_failed(r, message), message);
    }
}

static bool abort_and_stay(const Channel *channel, const Place *place, Error *err) {
    if (place->rank != lost) return barrier(channel, place, err);
    channel->close(1);
    error_set(err, "aborted");
    for (;;) pause(); // its connections are gone, not the process
}

TEST(abort_ends_the_calls_of_all) {
    for (lost = 0; lost < 2; lost++) {
        char message[600];
        snprintf(message, sizeof message, "process %d has ended", lost);
        run.port = free_port(run.host);
        started = 0;
        for (int r = 0; r < 3; r++) start(r, 3, abort_and_stay);
        assert_failed(1 - lost, message), assert_failed(2, message);
        assert_int_equal(waitpid(pids[lost], NULL, WNOHANG), 0); // no signal has ended it
        kill(pids[lost], SIGKILL), waitpid(pids[lost], NULL, 0);
    }
}

// The first barrier may pass: its first message may have been sent.
static bool two_barriers(const Channel *channel, const Place *place, Error *err) {
    return barrier(channel, place, err) && barrier(channel, place, err);
}

TEST(a_process_that_ends_before_all_have_come_is_named_then) {
    const int zero = start(0, 3, two_barriers), messages = say_hello(3, 1, 0),
              watch = say_hello(3, 1, 1);
    char accepted[24];
    assert_int_equal(recv(messages, accepted, sizeof accepted, MSG_WAITALL), sizeof accepted);
    assert_int_equal(recv(watch, accepted, sizeof accepted, MSG_WAITALL), sizeof accepted);
    close(messages), close(watch);
    const int last = start(2, 3, two_barriers);
    assert_failed(zero, "process 1 has ended");
    assert_failed(last, "process 1 has ended");
}

// of process 1; the others gather 8 bytes
static bool (*odd_call)(const Channel *channel, Error *err);

static bool call_differently(const Channel *channel, const Place *place, Error *err) {
    uint64_t mine = 1, all[3];
    if (place->rank == 1) return odd_call(channel, err);
    const bool ok = gather(channel, &mine, all, sizeof mine, err);
    // It must not take the end of process 0 to end the call of the other.
    while (place->rank == 0 && !results[1].err.text[0]) usleep(1000);
    return ok;
}

static bool gather_16(const Channel *channel, Error *err) {
    char mine[16] = {0}, all[3 * 16];
    return gather(channel, mine, all, sizeof mine, err);
}

static bool broadcast_8(const Channel *channel, Error *err) {
    char data[8] = {0};
    return broadcast(channel, data, sizeof data, err);
}

// More than sockets hold: process 0 does not read it.
static bool gather_much(const Channel *channel, Error *err) {
    const size_t bytes = 64 << 20;
    char *mine = calloc(1, bytes), *all = malloc(3 * bytes);
    const bool ok = gather(channel, mine, all, bytes, err);
    free(mine), free(all);
    return ok;
}

TEST(calls_that_differ_are_reported_to_all) {
    static const struct {
        bool (*call)(const Channel *, Error *);
        const char *name;
    } CASES[] = {{gather_16, "gather of 16 bytes"},
                 {broadcast_8, "broadcast of 8 bytes"},
                 {gather_much, "gather of 67108864 bytes"}};

    for (int i = 0; i < 3; i++) {
        char message[700];
        snprintf(message, sizeof message,
                 "the processes make different calls: process 0 gather of 8 bytes, call 1; process "
                 "1 %s, call 1",
                 CASES[i].name);

        odd_call = CASES[i].call;
        run.port = free_port(run.host);
        started = 0;
        for (int r = 0; r < 3; r++) start(r, 3, call_differently);
        for (int r = 0; r < 3; r++) assert_failed(r, message);
    }
}

// -------------------------------------------------------------------------------------------- main

// One process of a run; it prints what it has seen of the others.
static int be_a_process(char **arguments) {
    Place place = {
        .rank = atoi(arguments[0]), .size = atoi(arguments[1]), .local_rank = -1, .local_size = -1};
    snprintf(place.host, sizeof place.host, "%s", arguments[2]);
    place.port = atoi(arguments[3]);

    Error err = {""};
    const Channel *channel = channel_tcp_open(&place, &err);
    if (!channel || !exchange_all_sizes(channel, &place, &err)) {
        fprintf(stderr, "%s\n", err.text);
        return EXIT_RUN_FAILED;
    }

    printf("rank %d of %d\n", place.rank, place.size);
    channel->close(0);
    return 0;
}

int main(int argc, char **argv) { return argc == 5 ? be_a_process(argv + 1) : test_run(); }
