// Messages between the processes of a run over TCP: a star, in which each process has two
// connections to process 0, for messages and for the watch (watch.h). It connects the processes
// that MPI did not start, and carries small messages of the hosts: at most some MB.
//
// Start: process 0 listens until all others have come, at most COMM_START_SECONDS. A connection
// begins with a Hello. Process 0 accepts the right run, size and rank, and answers others with the
// reason. It reads from all connections at once and keeps a fixed number of silent ones, so that
// strangers delay nobody. The limit also holds for its first call: a process that has come and then
// hangs is named.
//
// Every call is a Frame from each process to process 0, with data if it is a gather, and one Frame
// with the result back to each. Process 0 compares the calls. If they differ, or a process has
// ended, it sends FRAME_ERROR to all, and the channel remains failed: every later call returns the
// same message.
#include "llmc/comm/channel_tcp.h"

#include "llmc/base/clock.h"
#include "llmc/base/format.h"
#include "llmc/comm/socket.h"
#include "llmc/comm/watch.h"

#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

enum {
    START_SECONDS =
        60, // for all processes to come; COMM_START_SECONDS in the environment: another limit
    TELL_SECONDS = 5,   // until the others have a message of failure
    INTERRUPT_MS = 100, // until a wait notices that a process was lost
    NAMED_MISSING = 8,  // ranks in the message
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
    unsigned long long call, bytes; // bytes: as the call was given them
} Frame;
_Static_assert(sizeof(Frame) == 24, "Frame is sent as it is");

static struct {
    int rank, size;
    int *sockets;    // (PURPOSES, size): process 0: of each rank; the others: of rank 0; -1: none
    uint64_t call;   // number of the current one, on every process
    double deadline; // of the start; INFINITY after the first call
    Error failure;   // "": none
} tcp;

// --------------------------------------------------------------------------------- bytes and waits

// STUCK: the deadline in now_seconds() has passed, or the run has failed. tcp_hear: REFUSED with a
// message, STRANGE: what came is no answer.
typedef enum { MOVED, ENDED, STUCK, REFUSED, STRANGE } Moved;

// Sends (POLLOUT) or receives (POLLIN) all bytes. Sending also ends when the other speaks before it
// has everything: then it has sent a message of failure, and reads no more.
static Moved tcp_move(int fd, short event, void *data, size_t bytes, double deadline) {
    for (size_t done = 0; done < bytes;) {
        char *at = (char *)data + done;
        ssize_t n;
        if (event == POLLIN)
            n = recv(fd, at, bytes - done, MSG_DONTWAIT);
        else
            n = send(fd, at, bytes - done, MSG_DONTWAIT | MSG_NOSIGNAL);
        if (n > 0) {
            done += (size_t)n;
            continue;
        }
        if (n == 0 || (errno != EAGAIN && errno != EINTR)) return ENDED;

        const double left = fmin(1e3 * (deadline - now_seconds()), INTERRUPT_MS);
        const int ready =
            poll(&(struct pollfd){fd, (short)(event | POLLIN), 0}, 1, (int)ceil(fmax(left, 0)));
        if (ready <= 0 && (now_seconds() >= deadline || watch_is_lost(NULL))) return STUCK;
        if (event == POLLOUT && recv(fd, &(char){0}, 1, MSG_PEEK | MSG_DONTWAIT) > 0) return MOVED;
    }
    return MOVED;
}

static Moved tcp_send(int fd, Frame frame, const void *data, size_t bytes, double deadline) {
    const Moved moved = tcp_move(fd, POLLOUT, &frame, sizeof frame, deadline);
    if (moved == MOVED) return tcp_move(fd, POLLOUT, (void *)data, bytes, deadline);
    return moved;
}

// Receives the answer of process 0, `bytes` after the expected frame, or a message of failure
// (REFUSED).
static Moved tcp_hear(int fd, const Frame *expected, void *data, size_t bytes, double deadline,
                      Error *told) {
    Frame frame = {0};
    char text[sizeof told->text] = "";
    Moved moved = tcp_move(fd, POLLIN, &frame, sizeof frame, deadline);
    if (moved != MOVED) return moved;
    if (memcmp(&frame, expected, sizeof frame) == 0)
        return tcp_move(fd, POLLIN, data, bytes, deadline);
    if (frame.magic != FRAME_MAGIC || frame.kind != FRAME_ERROR || frame.bytes >= sizeof text)
        return STRANGE;
    moved = tcp_move(fd, POLLIN, text, frame.bytes, deadline);
    error_set(told, "%s", text);
    if (moved == MOVED) return REFUSED;
    return moved;
}

// ---------------------------------------------------------------------------------------- failures

// The channel fails with this message, on process 0 for all.
static bool tcp_fail(Error *err) {
    if (!*tcp.failure.text) {
        tcp.failure = *err;
        const Frame frame = {FRAME_MAGIC, FRAME_ERROR, tcp.call, strlen(err->text)};
        const double deadline = now_seconds() + TELL_SECONDS;
        for (int r = 1; tcp.rank == 0 && r < tcp.size; r++)
            if (tcp.sockets[r] >= 0)
                tcp_send(tcp.sockets[r], frame, err->text, frame.bytes, deadline);
    }
    *err = tcp.failure;
    return false;
}

static bool tcp_fail_process(int rank, Moved moved, Error *err) {
    static const char *const WHAT[] = {
        [ENDED] = "has ended", [STUCK] = "does not answer", [STRANGE] = "sends no answer"};
    if (moved != REFUSED && (moved != STUCK || !watch_is_lost(err)))
        error_set(err, "process %d %s", rank, WHAT[moved]);
    return tcp_fail(err);
}

// --------------------------------------------------------------------------------------- exchanges

static bool tcp_exchange(ExchangeKind kind, const void *mine, void *all, size_t bytes, Error *err) {
    static const char *const KINDS[] = {"broadcast", "gather"};
    const bool gathers = kind == EXCHANGE_GATHER;
    size_t part = 0, total = bytes;
    Frame ours = {FRAME_MAGIC, FRAME_BROADCAST, ++tcp.call, bytes};
    if (gathers) {
        part = bytes;
        total = bytes * (size_t)tcp.size;
        ours.kind = FRAME_GATHER;
    }

    Moved moved = MOVED;
    REQUIRE(bytes <= SIZE_MAX / (size_t)tcp.size, "an exchange of %zu bytes", bytes);
    if (*tcp.failure.text) return error_set(err, "%s", tcp.failure.text);

    if (tcp.rank > 0) {
        moved = tcp_send(tcp.sockets[0], ours, mine, part, tcp.deadline);
        if (moved != STUCK) moved = tcp_hear(tcp.sockets[0], &ours, all, total, tcp.deadline, err);
        if (moved != MOVED) return tcp_fail_process(0, moved, err);
    } else if (part > 0) {
        memmove(all, mine, part);
    }

    for (int r = 1; tcp.rank == 0 && r < tcp.size; r++) {
        Frame theirs;
        moved = tcp_move(tcp.sockets[r], POLLIN, &theirs, sizeof theirs, tcp.deadline);
        if (moved == MOVED && memcmp(&theirs, &ours, sizeof ours) != 0) {
            error_set(err,
                      "the processes make different calls: process 0 %s of %llu bytes, call %llu; "
                      "process %d %s of "
                      "%llu bytes, call %llu",
                      KINDS[gathers], ours.bytes, ours.call, r, KINDS[theirs.kind == FRAME_GATHER],
                      theirs.bytes, theirs.call);
            return tcp_fail(err);
        }
        if (moved == MOVED && part > 0)
            moved = tcp_move(tcp.sockets[r], POLLIN, (char *)all + (size_t)r * part, part,
                             tcp.deadline);
        if (moved != MOVED) return tcp_fail_process(r, moved, err);
    }

    for (int r = 1; tcp.rank == 0 && r < tcp.size; r++) {
        moved = tcp_send(tcp.sockets[r], ours, all, total, tcp.deadline);
        if (moved != MOVED) return tcp_fail_process(r, moved, err);
    }

    tcp.deadline = INFINITY; // later calls are the watch's
    return true;
}

// The others see that this process is gone.
static void tcp_close(int exit_code) {
    (void)exit_code;
    for (int i = 0; tcp.sockets && i < PURPOSES * tcp.size; i++)
        if (tcp.sockets[i] >= 0) close(tcp.sockets[i]);
    free(tcp.sockets);
    memset(&tcp, 0, sizeof tcp);
}

// ------------------------------------------------------------------------------------------- start

// Answers a Hello. False: it is none of ours; *refusal says why. A stranger is not told the id of
// the run.
static bool tcp_admit(const Place *place, int fd, Hello h, Error *refusal) {
    Error why = {""};
    if (memcmp(h.magic, HELLO_MAGIC, sizeof h.magic) != 0) return false;
    h.run_id[sizeof h.run_id - 1] = h.host[sizeof h.host - 1] = '\0';
    const bool fits = h.size == (uint32_t)tcp.size && h.rank < h.size && h.purpose < PURPOSES;
    int *socket = fits ? &tcp.sockets[(int)h.purpose * tcp.size + (int)h.rank] : NULL;

    if (strcmp(h.run_id, place->run_id) != 0)
        error_set(&why, "its run is '%s', process 0's is another", h.run_id);
    else if (!fits)
        error_set(&why, "it counts %u processes, process 0 %d", h.size, tcp.size);
    else if (h.rank == 0 || *socket >= 0)
        error_set(&why, "its rank is taken");
    else
        *socket = fd;
    if (*why.text) error_set(refusal, "process %u on %s was refused: %s", h.rank, h.host, why.text);

    Frame answer = {FRAME_MAGIC, FRAME_ACCEPTED, 0, 0};
    if (*why.text) answer = (Frame){FRAME_MAGIC, FRAME_ERROR, 0, strlen(refusal->text)};
    tcp_send(fd, answer, refusal->text, answer.bytes, 0); // does not wait
    return !*why.text;
}

// Process 0: takes what connects until all have come, or the deadline has passed. Returns the
// number of connections that are missing. *note: the reason, if a connection shows one.
static int tcp_meet(const Place *place, int listener, Error *note) {
    enum {
        VISITORS = 64
    }; // without a Hello, which a process sends at once; one that was closed comes again
    Hello hellos[VISITORS];
    size_t got[VISITORS]; // bytes of them
    struct pollfd polls[VISITORS + 1];
    int missing = PURPOSES * (tcp.size - 1);
    const int on = 1;
    unsigned next = 0;

    for (int i = 0; i < VISITORS; i++) polls[i] = (struct pollfd){-1, POLLIN, 0};
    polls[VISITORS] = (struct pollfd){listener, POLLIN, 0};

    for (double left; missing > 0 && (left = tcp.deadline - now_seconds()) > 0;) {
        if (poll(polls, VISITORS + 1, (int)ceil(1e3 * left)) <= 0) continue;
        for (int i = 0; i < VISITORS; i++) {
            if (!polls[i].revents) continue;
            const ssize_t n = recv(polls[i].fd, (char *)&hellos[i] + got[i], sizeof(Hello) - got[i],
                                   MSG_DONTWAIT);
            if (n > 0 && (got[i] += (size_t)n) < sizeof(Hello)) continue;
            if (n > 0 && tcp_admit(place, polls[i].fd, hellos[i], note))
                missing--;
            else
                close(polls[i].fd);
            polls[i].fd = -1;
        }

        if (!polls[VISITORS].revents) continue;
        const unsigned i = next++ % VISITORS; // the oldest makes room
        if (polls[i].fd >= 0) close(polls[i].fd);
        polls[i].fd = accept4(listener, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
        got[i] = 0;
        if (polls[i].fd < 0)
            error_set(note, "a connection could not be taken: %s", strerror(errno));
        setsockopt(polls[i].fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    }

    for (int i = 0; i < VISITORS; i++) {
        char peer[64] = "";
        struct sockaddr_storage address = {.ss_family = AF_UNSPEC};
        socklen_t length = sizeof address;
        if (polls[i].fd < 0) continue;
        getpeername(polls[i].fd, (struct sockaddr *)&address, &length);
        getnameinfo((struct sockaddr *)&address, length, peer, sizeof peer, NULL, 0,
                    NI_NUMERICHOST);

        // on a socket for both
        const char *ipv4 = strncmp(peer, "::ffff:", 7) == 0 ? peer + 7 : peer;
        error_set(note, "a connection from %s says nothing", ipv4);
        close(polls[i].fd);
    }

    return missing;
}

static bool tcp_start_process_0(const Place *place, double seconds, Error *err) {
    const char *inherited = getenv(COMM_LISTENER);
    Error note = {""};
    char names[NAMED_MISSING * 16 + 8] = "";
    int listener = -1, n = 0, named = 0;
    if (inherited) listener = atoi(inherited);

    unsetenv(COMM_LISTENER);
    if (listener < 0 || fcntl(listener, F_SETFD, FD_CLOEXEC) != 0 ||
        fcntl(listener, F_SETFL, O_NONBLOCK) != 0)
        listener = socket_listen(place->host, place->port, &note);
    if (listener < 0)
        return error_set(err,
                         "process 0 cannot listen on port %d: %s; choose another by MASTER_PORT or "
                         "-ps HOST:PORT",
                         place->port, note.text);

    const int missing = tcp_meet(place, listener, &note);
    close(listener);
    if (missing == 0) return true;

    for (int r = 1; r < tcp.size && named <= NAMED_MISSING; r++) {
        if (tcp.sockets[FOR_WATCH * tcp.size + r] >= 0) continue; // the second connection
        if (named++ < NAMED_MISSING)
            n += snprintf(names + n, sizeof names - (size_t)n, " %d", r);
        else
            snprintf(names + n, sizeof names - (size_t)n, " ...");
    }

    error_set(err, "not all %d processes came within %g s; missing:%s%s%s", tcp.size, seconds,
              names, *note.text ? "; " : "", note.text);
    return tcp_fail(err);
}

static bool tcp_start_other(const Place *place, double seconds, Error *err) {
    static const Frame ACCEPTED = {FRAME_MAGIC, FRAME_ACCEPTED, 0, 0};
    Hello hello = {.magic = HELLO_MAGIC, .size = (uint32_t)tcp.size, .rank = (uint32_t)tcp.rank};
    snprintf(hello.run_id, sizeof hello.run_id, "%s", place->run_id);
    gethostname(hello.host, sizeof hello.host - 1);

    for (double pause = 0.05; hello.purpose < PURPOSES; pause = fmin(2 * pause, 0.5)) {
        Error reason = {""};
        Moved moved = ENDED;
        const int fd = socket_open(place->host, place->port,
                                   fmax(tcp.deadline - now_seconds(), 1e-3), &reason);
        if (fd >= 0) {
            moved = tcp_move(fd, POLLOUT, &hello, sizeof hello, tcp.deadline);
            if (moved == MOVED) moved = tcp_hear(fd, &ACCEPTED, NULL, 0, tcp.deadline, &reason);
            if (moved != MOVED) close(fd);
            if (moved == STRANGE) error_set(&reason, "another program listens there");
            if (moved == ENDED || moved == STUCK)
                error_set(&reason, "it took the connection, but did not answer");
        }

        if (moved == MOVED)
            tcp.sockets[(int)hello.purpose++ * tcp.size] = fd;
        else if (moved == REFUSED)
            return error_set(err, "%s", reason.text);
        else if (now_seconds() + pause >= tcp.deadline)
            return error_set(err, "process 0 at %s:%d did not answer within %g s: %s", place->host,
                             place->port, seconds, reason.text);
        else
            nanosleep(&(struct timespec){.tv_nsec = (long)(pause * 1e9)}, NULL);
    }

    // process 0 has as long for all, and says what failed
    tcp.deadline = now_seconds() + seconds + TELL_SECONDS;
    return true;
}

const Channel *channel_tcp_open(const Place *place, Error *err) {
    static const Channel CHANNEL = {"TCP", tcp_exchange, tcp_close};
    const size_t bytes = PURPOSES * (size_t)place->size * sizeof *tcp.sockets;
    double seconds;
    REQUIRE(!tcp.sockets, "channel_tcp_open: it is open");
    if (!place_read_seconds("COMM_START_SECONDS", START_SECONDS, &seconds, err)) return NULL;
    tcp.rank = place->rank;
    tcp.size = place->size;
    tcp.sockets = malloc(bytes);
    REQUIRE_MEMORY(tcp.sockets, "the connections of %d processes", tcp.size);
    memset(tcp.sockets, -1, bytes);
    tcp.deadline = now_seconds() + seconds;
    if (tcp.rank == 0 && tcp_start_process_0(place, seconds, err)) return &CHANNEL;
    if (tcp.rank > 0 && tcp_start_other(place, seconds, err)) return &CHANNEL;
    tcp_close(0);
    return NULL;
}

int *channel_tcp_watch_sockets(void) {
    const size_t bytes = (size_t)tcp.size * sizeof *tcp.sockets;
    int *sockets = malloc(bytes), *ours = tcp.sockets + FOR_WATCH * tcp.size;
    REQUIRE_MEMORY(sockets, "the connections of the watch");
    memcpy(sockets, ours, bytes);
    memset(ours, -1, bytes);
    return sockets;
}
