// Messages between the processes of a run over TCP: a star, in which each process has two connections to process 0, for
// messages and for the watch (watch.h). It connects the processes that MPI did not start, and carries small messages of
// the hosts: at most some MB.
//
// Start: process 0 listens until all others have come, at most COMM_START_SECONDS. A connection begins with a Hello.
// Process 0 accepts the right run, size and rank, and answers others with the reason. It closes whatever has sent no
// Hello within a second (a port scanner).
//
// Every call is a Frame from each process to process 0, with data if it is a gather, and one Frame with the result back
// to each. Process 0 compares the calls. If they differ, or a process has ended, it sends FRAME_ERROR to all, and the
// channel remains failed: every later call returns the same message.
#include "llmc/base/arithmetic.h"
#include "llmc/comm/channel.h"
#include "llmc/comm/watch.h"

#include <errno.h>
#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

enum {
    START_SECONDS = 60,   // for all processes to come; COMM_START_SECONDS in the environment: another limit
    HELLO_SECONDS = 1,    // from the connection to its Hello, which is sent at once; a late process comes again
    CONNECT_SECONDS = 10, // an address that swallows packets must not use up the time of the next one
    TELL_SECONDS = 5,     // until the others have a message of failure
    INTERRUPT_MS = 100,   // until a wait notices that a process was lost
    NAMED_MISSING = 8,    // ranks in the message
};

typedef enum { FOR_MESSAGES, FOR_WATCH, PURPOSES } TcpPurpose;

#define HELLO_MAGIC "LLMCHEL2"
#define FRAME_MAGIC 0x324D434Cu // "LCM2"

typedef struct {
    char magic[8];
    uint32_t size, rank, purpose;
    char run_id[64], host[64];
} Hello;
_Static_assert(sizeof(Hello) == 148, "Hello is sent as it is");

typedef enum { FRAME_ACCEPTED = 1, FRAME_ERROR, FRAME_GATHER, FRAME_BROADCAST } FrameKind;

typedef struct {
    uint32_t magic, kind;
    uint64_t call, bytes; // bytes: of the call. The data of FRAME_BROADCAST goes from process 0 only
} Frame;
_Static_assert(sizeof(Frame) == 24, "Frame is sent as it is");

static struct {
    int rank, size;
    int *sockets;    // (PURPOSES, size): process 0: of each rank; the others: of rank 0; -1: none
    uint64_t call;   // number of the current one, on every process
    double deadline; // of the start; INFINITY after the first call
    Error failure;   // "": none
} tcp;

// ---------------------------------------------------------------------------------------------------- bytes and waits

typedef enum { MOVED, ENDED, STUCK } Moved; // STUCK: the deadline has passed, or the run has failed

static bool (*device_has_failed)(Error *err);
void comm_watch_device(bool (*has_failed)(Error *err)) { device_has_failed = has_failed; }

static bool tcp_is_lost(Error *err) { return watch_has_failed(err) || (device_has_failed && device_has_failed(err)); }

// Waits until the socket is ready. False when the deadline in now_seconds() has passed, or nothing will come.
static bool tcp_wait(int fd, short event, double deadline) {
    struct pollfd p = {fd, event, 0};
    do {
        const double left = fmin(1e3 * (deadline - now_seconds()), INTERRUPT_MS);
        if (poll(&p, 1, (int)ceil(fmax(left, 0))) > 0) return true;
    } while (now_seconds() < deadline && !tcp_is_lost(NULL));
    return false;
}

// Sends (POLLOUT) or receives (POLLIN) all bytes. Sending also ends when the other speaks before it has everything:
// then it has sent a message of failure, and reads no more.
static Moved tcp_move(int fd, short event, void *data, size_t bytes, double deadline) {
    for (size_t done = 0; done < bytes;) {
        char *at = (char *)data + done;
        const ssize_t n = event == POLLIN ? recv(fd, at, bytes - done, MSG_DONTWAIT)
                                          : send(fd, at, bytes - done, MSG_DONTWAIT | MSG_NOSIGNAL);
        if (n > 0) {
            done += (size_t)n;
            continue;
        }
        if (n == 0 || (errno != EAGAIN && errno != EINTR)) return ENDED;
        if (!tcp_wait(fd, (short)(event | POLLIN), deadline)) return STUCK;
        if (event == POLLOUT && recv(fd, &(char){0}, 1, MSG_PEEK | MSG_DONTWAIT) > 0) return MOVED;
    }
    return MOVED;
}

static Moved tcp_send(int fd, Frame frame, const void *data, size_t bytes, double deadline) {
    const Moved moved = tcp_move(fd, POLLOUT, &frame, sizeof frame, deadline);
    return moved == MOVED ? tcp_move(fd, POLLOUT, (void *)data, bytes, deadline) : moved;
}

// ------------------------------------------------------------------------------------------------------------ failures

// The channel fails, on process 0 for all.
static bool tcp_fail(const Error *failure, Error *err) {
    if (!*tcp.failure.text) {
        error_set(&tcp.failure, "%s", failure->text);
        const size_t bytes = strlen(tcp.failure.text);
        const double deadline = now_seconds() + TELL_SECONDS;
        for (int r = 1; tcp.rank == 0 && r < tcp.size; r++)
            if (tcp.sockets[r] >= 0)
                tcp_send(tcp.sockets[r], (Frame){FRAME_MAGIC, FRAME_ERROR, tcp.call, bytes}, tcp.failure.text, bytes,
                         deadline);
    }
    return error_set(err, "%s", tcp.failure.text);
}

static bool tcp_fail_process(int rank, Moved moved, Error *err) {
    Error failure;
    if (moved == ENDED || !tcp_is_lost(&failure))
        error_set(&failure, "process %d %s", rank, moved == ENDED ? "has ended" : "does not answer");
    return tcp_fail(&failure, err);
}

// --------------------------------------------------------------------------------------------------------------- calls

// Process 0: the frames of all, which must be as `ours`, and the data of each, at all + rank * bytes.
static bool tcp_collect(const Frame *ours, char *all, size_t bytes, Error *err) {
    for (int r = 1; r < tcp.size; r++) {
        Frame theirs;
        Moved moved = tcp_move(tcp.sockets[r], POLLIN, &theirs, sizeof theirs, tcp.deadline);
        if (moved == MOVED && memcmp(&theirs, ours, sizeof *ours) != 0) {
            static const char *const KINDS[] = {"broadcast", "gather"};
            Error failure;
            error_set(&failure,
                      "the processes make different calls: process 0 %s of %llu bytes, call %llu; process %d %s of "
                      "%llu bytes, call %llu",
                      KINDS[ours->kind == FRAME_GATHER], (unsigned long long)ours->bytes,
                      (unsigned long long)ours->call, r, KINDS[theirs.kind == FRAME_GATHER],
                      (unsigned long long)theirs.bytes, (unsigned long long)theirs.call);
            return tcp_fail(&failure, err);
        }
        if (moved == MOVED) moved = tcp_move(tcp.sockets[r], POLLIN, all + (size_t)r * bytes, bytes, tcp.deadline);
        if (moved != MOVED) return tcp_fail_process(r, moved, err);
    }
    return true;
}

// Process 0: the result to all.
static bool tcp_distribute(Frame frame, const void *data, Error *err) {
    for (int r = 1; r < tcp.size; r++) {
        const Moved moved = tcp_send(tcp.sockets[r], frame, data, frame.bytes, tcp.deadline);
        if (moved != MOVED) return tcp_fail_process(r, moved, err);
    }
    tcp.deadline = INFINITY;
    return true;
}

// The others: sends the call and receives the answer.
static bool tcp_ask(const Frame *frame, const void *mine, size_t mine_bytes, void *all, size_t bytes, Error *err) {
    const int fd = tcp.sockets[0];
    Frame answer = {0};
    Error failure = {""};
    Moved moved = tcp_send(fd, *frame, mine, mine_bytes, tcp.deadline);
    if (moved != STUCK) moved = tcp_move(fd, POLLIN, &answer, sizeof answer, tcp.deadline);
    if (moved != MOVED) return tcp_fail_process(0, moved, err);
    const bool failed = answer.kind == FRAME_ERROR && answer.bytes < sizeof failure.text;
    if (answer.magic != FRAME_MAGIC ||
        (!failed && (answer.kind != frame->kind || answer.call != frame->call || answer.bytes != bytes))) {
        error_set(&failure, "process 0 sends what is no answer");
        return tcp_fail(&failure, err);
    }
    moved = tcp_move(fd, POLLIN, failed ? failure.text : all, answer.bytes, tcp.deadline);
    if (moved != MOVED) return tcp_fail_process(0, moved, err);
    tcp.deadline = INFINITY;
    return !failed || tcp_fail(&failure, err);
}

static bool tcp_gather(const void *mine, void *all, size_t bytes, Error *err) {
    if (*tcp.failure.text) return error_set(err, "%s", tcp.failure.text);
    REQUIRE(bytes <= SIZE_MAX / (size_t)tcp.size, "gather of %zu bytes", bytes);
    Frame frame = {FRAME_MAGIC, FRAME_GATHER, ++tcp.call, bytes};
    const size_t total = bytes * (size_t)tcp.size;
    if (tcp.rank > 0) return tcp_ask(&frame, mine, bytes, all, total, err);
    if (bytes > 0) memmove(all, mine, bytes);
    char none;
    if (!tcp_collect(&frame, bytes > 0 ? all : &none, bytes, err)) return false;
    frame.bytes = total;
    return tcp_distribute(frame, all, err);
}

static bool tcp_broadcast(void *data, size_t bytes, Error *err) {
    if (*tcp.failure.text) return error_set(err, "%s", tcp.failure.text);
    const Frame frame = {FRAME_MAGIC, FRAME_BROADCAST, ++tcp.call, bytes};
    if (tcp.rank > 0) return tcp_ask(&frame, NULL, 0, data, bytes, err);
    return tcp_collect(&frame, data, 0, err) && tcp_distribute(frame, data, err);
}

// The others end with their own exit code when they see that this process is gone.
static void tcp_abort(int exit_code) {
    (void)exit_code;
    for (int r = 0; tcp.sockets && r < tcp.size; r++)
        if (tcp.sockets[r] >= 0) shutdown(tcp.sockets[r], SHUT_RDWR);
}

static void tcp_close(void) {
    for (int i = 0; tcp.sockets && i < PURPOSES * tcp.size; i++)
        if (tcp.sockets[i] >= 0) close(tcp.sockets[i]);
    free(tcp.sockets);
    memset(&tcp, 0, sizeof tcp);
}

// --------------------------------------------------------------------------------------------------------------- start

// A socket that listens at an address of `host`, or is connected to one; -1 with the reason.
static int tcp_open(const char *host, int port, bool listens, double deadline, Error *reason) {
    const struct addrinfo hints = {.ai_flags = AI_NUMERICSERV, .ai_socktype = SOCK_STREAM};
    const int on = 1, off = 0;
    struct addrinfo *found = NULL;
    char number[16];
    int fd = -1;
    snprintf(number, sizeof number, "%d", port);
    const int failed = getaddrinfo(host, number, &hints, &found);
    if (failed) {
        error_set(reason, "%s", gai_strerror(failed));
        return -1;
    }
    for (const struct addrinfo *a = found; a && fd < 0; a = a->ai_next) {
        fd = socket(a->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
        setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
        setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
        setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof off);
        int status = listens ? bind(fd, a->ai_addr, a->ai_addrlen) : connect(fd, a->ai_addr, a->ai_addrlen);
        if (status != 0 && errno == EINPROGRESS) { // the second call says what became of the first
            tcp_wait(fd, POLLOUT, fmin(deadline, now_seconds() + CONNECT_SECONDS));
            status = connect(fd, a->ai_addr, a->ai_addrlen);
        }
        if (status == 0 && listens) status = listen(fd, SOMAXCONN);
        if (status == 0) break;
        error_set(reason, "%s", strerror(errno));
        if (fd >= 0) close(fd);
        fd = -1;
    }
    freeaddrinfo(found);
    return fd;
}

// Other machines cannot reach it if all processes are on this one. -1 with a message.
static int tcp_listen(const Place *place, Error *err) {
    const char *inherited = getenv(COMM_LISTENER);
    int fd = inherited ? atoi(inherited) : -1;
    unsetenv(COMM_LISTENER);
    if (fd >= 0 && fcntl(fd, F_SETFD, FD_CLOEXEC) == 0 && fcntl(fd, F_SETFL, O_NONBLOCK) == 0) return fd;
    const bool local = strncmp(place->host, "127.", 4) == 0 || strcmp(place->host, "::1") == 0 ||
                       strcmp(place->host, "localhost") == 0;
    Error reason;
    fd = tcp_open(local ? place->host : "::", place->port, true, 0, &reason);      // takes IPv4 connections, too
    if (fd < 0 && !local) fd = tcp_open("0.0.0.0", place->port, true, 0, &reason); // without IPv6
    if (fd < 0)
        error_set(err, "process 0 cannot listen on port %d: %s; choose another by MASTER_PORT or -ps HOST:PORT",
                  place->port, reason.text);
    return fd;
}

// Reads the Hello of a connection, and answers it. False: it is none of ours, and *refusal says why if it has come.
static bool tcp_admit(const Place *place, int fd, double deadline, Error *refusal) {
    Hello h;
    Error why = {""};
    if (tcp_move(fd, POLLIN, &h, sizeof h, deadline) != MOVED) return false;
    if (memcmp(h.magic, HELLO_MAGIC, sizeof h.magic) != 0) return false;
    h.run_id[sizeof h.run_id - 1] = h.host[sizeof h.host - 1] = '\0';
    const bool fits = h.size == (uint32_t)tcp.size && h.rank < h.size && h.purpose < PURPOSES;
    int *socket = fits ? &tcp.sockets[(int)h.purpose * tcp.size + (int)h.rank] : NULL;
    if (strcmp(h.run_id, place->run_id) != 0)
        error_set(&why, "it belongs to run '%s', process 0 to run '%s'", h.run_id, place->run_id);
    else if (!fits)
        error_set(&why, "it counts %u processes, process 0 %d", h.size, tcp.size);
    else if (h.rank == 0 || *socket >= 0)
        error_set(&why, "its rank is taken");
    if (*why.text) {
        error_set(refusal, "process %u on %s was refused: %s", h.rank, h.host, why.text);
        const size_t bytes = strlen(refusal->text);
        tcp_send(fd, (Frame){FRAME_MAGIC, FRAME_ERROR, 0, bytes}, refusal->text, bytes, deadline);
        return false;
    }
    tcp_send(fd, (Frame){FRAME_MAGIC, FRAME_ACCEPTED, 0, 0}, NULL, 0, deadline);
    *socket = fd;
    return true;
}

static bool tcp_start_process_0(const Place *place, double seconds, Error *err) {
    const double deadline = now_seconds() + seconds;
    const int listener = tcp_listen(place, err), on = 1;
    Error refusal = {""}, failure;
    char names[NAMED_MISSING * 16] = "";
    int missing = PURPOSES * (tcp.size - 1), n = 0, named = 0;
    if (listener < 0) return false;
    while (missing > 0 && tcp_wait(listener, POLLIN, deadline)) {
        const int fd = accept4(listener, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
        if (fd < 0) {
            error_set(&refusal, "a connection could not be taken: %s", strerror(errno));
            continue;
        }
        setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
        if (tcp_admit(place, fd, fmin(deadline, now_seconds() + HELLO_SECONDS), &refusal))
            missing--;
        else
            close(fd);
    }
    close(listener);
    if (missing == 0) return true;
    for (int r = 1; r < tcp.size && named < NAMED_MISSING; r++) {
        if (tcp.sockets[tcp.size + r] >= 0) continue;
        n += snprintf(names + n, sizeof names - (size_t)n, " %d", r);
        named++;
    }
    error_set(&failure, "not all %d processes came within %g s; missing:%s%s%s%s", tcp.size, seconds, names,
              PURPOSES * named < missing ? " ..." : "", *refusal.text ? "; " : "", refusal.text);
    return tcp_fail(&failure, err);
}

// Says who this process is. False: *text says why process 0 did not take it; *refused: it never will.
static bool tcp_introduce(int fd, const Hello *hello, double deadline, bool *refused, Error *text) {
    Frame frame = {0};
    char said[sizeof text->text] = "";
    *refused = false;
    if (tcp_move(fd, POLLOUT, (void *)hello, sizeof *hello, deadline) != MOVED ||
        tcp_move(fd, POLLIN, &frame, sizeof frame, deadline) != MOVED)
        return error_set(text, "it took the connection, but did not answer");
    if (frame.magic != FRAME_MAGIC || frame.kind > FRAME_ERROR || frame.bytes >= sizeof said ||
        tcp_move(fd, POLLIN, said, frame.bytes, deadline) != MOVED)
        return error_set(text, "another program listens there");
    *refused = frame.kind == FRAME_ERROR;
    return !*refused || error_set(text, "%s", said);
}

static bool tcp_start_other(const Place *place, double seconds, Error *err) {
    Hello hello = {.magic = HELLO_MAGIC, .size = (uint32_t)tcp.size, .rank = (uint32_t)tcp.rank};
    snprintf(hello.run_id, sizeof hello.run_id, "%s", place->run_id);
    gethostname(hello.host, sizeof hello.host - 1);
    const double deadline = now_seconds() + seconds;
    for (double pause = 0.05; hello.purpose < PURPOSES; pause = fmin(2 * pause, 0.5)) {
        Error reason = {""};
        bool refused = false;
        const int fd = tcp_open(place->host, place->port, false, deadline, &reason);
        if (fd >= 0 && tcp_introduce(fd, &hello, deadline, &refused, &reason)) {
            tcp.sockets[(int)hello.purpose++ * tcp.size] = fd;
            continue;
        }
        if (fd >= 0) close(fd);
        if (refused) return error_set(err, "%s", reason.text);
        if (now_seconds() + pause >= deadline)
            return error_set(err, "process 0 at %s:%d did not answer within %g s: %s", place->host, place->port,
                             seconds, reason.text);
        nanosleep(&(struct timespec){.tv_nsec = (long)(pause * 1e9)}, NULL);
    }
    return true;
}

const Channel *channel_tcp_open(Place *place, Error *err) {
    static const Channel CHANNEL = {"TCP", tcp_gather, tcp_broadcast, tcp_abort, tcp_close};
    const size_t bytes = PURPOSES * (size_t)place->size * sizeof *tcp.sockets;
    const char *limit = getenv("COMM_START_SECONDS");
    char *end = "";
    const double seconds = limit && *limit ? strtod(limit, &end) : START_SECONDS;
    if (*end || !(seconds > 0 && seconds <= 86400)) {
        error_set(err, "COMM_START_SECONDS is '%.40s'; expected seconds, at most a day", limit);
        return NULL;
    }
    REQUIRE(!tcp.sockets, "channel_tcp_open: it is open");
    tcp.rank = place->rank;
    tcp.size = place->size;
    tcp.sockets = malloc(bytes);
    REQUIRE_MEMORY(tcp.sockets, "the connections of %d processes", tcp.size);
    memset(tcp.sockets, -1, bytes);
    // Process 0 has all when it returns. The others wait for the last one in their first call.
    tcp.deadline = now_seconds() + 2 * seconds + TELL_SECONDS;
    if (tcp.rank == 0 ? tcp_start_process_0(place, seconds, err) : tcp_start_other(place, seconds, err))
        return &CHANNEL;
    tcp_close();
    return NULL;
}

void channel_tcp_watch_sockets(int *sockets) {
    int *const ours = tcp.sockets + FOR_WATCH * tcp.size;
    memcpy(sockets, ours, (size_t)tcp.size * sizeof *sockets);
    for (int r = 0; r < tcp.size; r++) ours[r] = -1;
}
