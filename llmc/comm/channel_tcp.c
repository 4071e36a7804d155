// Messages between the processes of a run over TCP: one connection from each process to process 0. It connects the
// processes that MPI did not start, and carries small messages of the hosts: at most some MB.
//
// Start: process 0 listens until all others have come. Each of the others sends a Hello, which
// process 0 answers at once by FRAME_ACCEPTED, or by FRAME_ERROR with the reason. When all are there, all get
// FRAME_WELCOME with the names of the hosts. Until a Hello is accepted, whatever connects may be hostile or lost (a
// port scanner, a process of another run), and is neither waited for nor believed. They meet a second time, with
// another run id, for the connections of watch.c; then process 0 closes its port.
//
// Then every call is a Frame from each process to process 0, with data if it is a gather, and one Frame with the result
// back to each. Process 0 compares the calls. If they differ, or a process has ended, it sends FRAME_ERROR to all, and
// the channel remains failed: every later call returns the same message.
#include "llmc/base/arithmetic.h"
#include "llmc/comm/channel.h"
#include "llmc/comm/watch.h"

#include <ctype.h>
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
    PROTOCOL = 1,
    START_SECONDS = 60, // for all processes to come; COMM_START_SECONDS in the environment: another limit
    HELLO_SECONDS = 5,  // from the connection to its Hello, which is sent at once
    INTERRUPT_MS = 100, // until a wait notices that a process was lost
    TELL_SECONDS = 5,   // to send a message of failure to the others
    MOST_VISITORS = 64, // connections without a Hello; further ones wait in the queue of the port
    HOST_ROOM = 256,
    NAMED_MISSING = 8, // ranks in the message; of more only the number
    // Until a machine that has lost its power or its network counts as ended.
    KEEPALIVE_IDLE = 30,
    KEEPALIVE_INTERVAL = 10,
    KEEPALIVE_COUNT = 6,
};

#define HELLO_MAGIC "LLMCHELO"
#define FRAME_MAGIC 0x314D434Cu // "LCM1"

typedef struct {
    char magic[8];
    uint32_t protocol, size, rank;
    char run_id[64], host[HOST_ROOM];
} Hello;
_Static_assert(sizeof(Hello) == 8 + 3 * 4 + 64 + HOST_ROOM, "Hello is sent as it is");

typedef enum { FRAME_ACCEPTED = 1, FRAME_WELCOME, FRAME_ERROR, FRAME_GATHER, FRAME_BROADCAST } FrameKind;

typedef struct {
    uint32_t magic, kind;
    uint64_t call, bytes; // bytes: of the call. The data of FRAME_BROADCAST goes from process 0 only
} Frame;
_Static_assert(sizeof(Frame) == 24, "Frame is sent as it is");

typedef char HostName[HOST_ROOM];

static struct {
    int rank, size;
    int *sockets; // process 0: of each rank, -1 for its own; the others: sockets[0]
    int listener; // of process 0; -1: closed
    bool carries_messages;
    HostName *hosts;
    uint64_t call; // number of the current one, on every process
    bool failed;
    Error failure;
    // Of each rank, for process 0
    Frame *frames;
    size_t *done; // bytes of frame and data that have come, or gone
    struct pollfd *polls;
    int *ranks; // of polls
} net;

// ----------------------------------------------------------------------------------------------------- bytes and polls

typedef enum { MORE, DONE, LOST } Progress; // LOST: the connection is closed or broken

// As many of the remaining bytes as there are.
static Progress pull(int fd, void *data, size_t bytes, size_t *done) {
    while (*done < bytes) {
        const ssize_t n = recv(fd, (char *)data + *done, bytes - *done, MSG_DONTWAIT);
        if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return MORE;
        if (n == 0 || (n < 0 && errno != EINTR)) return LOST;
        if (n > 0) *done += (size_t)n;
    }
    return DONE;
}

// As many of the remaining bytes of frame and data as the socket takes. `done` counts both.
static Progress push(int fd, const Frame *frame, const void *data, size_t bytes, size_t *done) {
    while (*done < sizeof *frame + bytes) {
        struct iovec parts[2] = {{(void *)frame, sizeof *frame}, {(void *)data, bytes}};
        const int first = *done < sizeof *frame ? 0 : 1;
        const size_t skipped = first == 0 ? *done : *done - sizeof *frame;
        parts[first].iov_base = (char *)parts[first].iov_base + skipped;
        parts[first].iov_len -= skipped;
        const struct msghdr message = {.msg_iov = parts + first, .msg_iovlen = bytes > 0 ? 2 - (size_t)first : 1};
        const ssize_t n = sendmsg(fd, &message, MSG_DONTWAIT | MSG_NOSIGNAL);
        if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return MORE;
        if (n < 0 && errno != EINTR) return LOST;
        if (n > 0) *done += (size_t)n;
    }
    return DONE;
}

static bool (*device_has_failed)(Error *err);
void comm_watch_device(bool (*has_failed)(Error *err)) { device_has_failed = has_failed; }

// Whether there is no use in waiting for others.
static bool is_lost(Error *err) { return watch_has_failed(err) || (device_has_failed && device_has_failed(err)); }

// poll until `deadline` in now_seconds(), or without end for INFINITY. False when time is over, or nothing will come.
static bool wait_until(struct pollfd *polls, int count, double deadline) {
    for (;;) {
        const double left = deadline - now_seconds();
        const int timeout = left <= 0 ? 0 : left > 1e-3 * INTERRUPT_MS ? INTERRUPT_MS : (int)ceil(left * 1000);
        const int ready = poll(polls, (nfds_t)count, timeout);
        if (ready > 0) return true;
        if (ready < 0 && errno != EINTR) REQUIRE(errno == ENOMEM, "poll: %s", strerror(errno));
        Error lost;
        if (now_seconds() >= deadline || is_lost(&lost)) return false;
    }
}

static bool wait_for(int fd, short events, double deadline) {
    return wait_until(&(struct pollfd){.fd = fd, .events = events}, 1, deadline);
}

static void set_up_socket(int fd) {
    const int on = 1, idle = KEEPALIVE_IDLE, interval = KEEPALIVE_INTERVAL, count = KEEPALIVE_COUNT;
    const unsigned unanswered = (KEEPALIVE_IDLE + KEEPALIVE_INTERVAL * KEEPALIVE_COUNT) * 1000; // ms, for sent data
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof on);
    setsockopt(fd, IPPROTO_TCP, TCP_KEEPIDLE, &idle, sizeof idle);
    setsockopt(fd, IPPROTO_TCP, TCP_KEEPINTVL, &interval, sizeof interval);
    setsockopt(fd, IPPROTO_TCP, TCP_KEEPCNT, &count, sizeof count);
    setsockopt(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, &unanswered, sizeof unanswered);
}

// Text from the network becomes one printable line.
static void clean(char *text, size_t room) {
    text[room - 1] = '\0';
    for (; *text; text++)
        if (!isprint((unsigned char)*text)) *text = '?';
}

// ------------------------------------------------------------------------------------------------------------ failures

// The channel fails, on process 0 for all: the others have the message in their sockets when this returns, unless they
// do not read.
static bool fail_all(Error *err, const Error *failure) {
    if (net.failed) return error_set(err, "%s", net.failure.text);
    net.failed = true, net.failure = *failure;
    const Frame frame = {FRAME_MAGIC, FRAME_ERROR, net.call, strlen(failure->text)};
    const double deadline = now_seconds() + TELL_SECONDS;
    for (int r = 1; net.rank == 0 && r < net.size; r++) {
        size_t done = 0;
        while (net.sockets[r] >= 0 && push(net.sockets[r], &frame, failure->text, frame.bytes, &done) == MORE)
            if (!wait_for(net.sockets[r], POLLOUT, deadline)) break;
    }
    return error_set(err, "%s", net.failure.text);
}

static bool fail_ended(int rank, Error *err) {
    Error failure;
    error_set(&failure, "process %d (%s) has ended", rank, net.hosts[rank]);
    if (net.rank == 0) close(net.sockets[rank]), net.sockets[rank] = -1;
    return fail_all(err, &failure);
}

// A wait without end has ended: why.
static bool fail_lost(Error *err) {
    Error failure = {""};
    is_lost(&failure);
    return fail_all(err, &failure);
}

static const char *name_call(const Frame *f, char buf[96]) {
    const char *kind = f->kind == FRAME_GATHER ? "gather" : f->kind == FRAME_BROADCAST ? "broadcast" : "unknown";
    snprintf(buf, 96, "%s of %llu bytes, call %llu", kind, (unsigned long long)f->bytes, (unsigned long long)f->call);
    return buf;
}

static bool fail_different(int rank, const Frame *theirs, const Frame *ours, Error *err) {
    Error failure;
    char a[96], b[96];
    error_set(&failure, "the processes make different calls: process 0 (%s) %s; process %d (%s) %s", net.hosts[0],
              name_call(ours, a), rank, net.hosts[rank], name_call(theirs, b));
    return fail_all(err, &failure);
}

// ---------------------------------------------------------------------------------------------- the calls of process 0

// The ranks whose data is not complete, into net.polls.
static int poll_unfinished(size_t complete, short events) {
    int count = 0;
    for (int r = 1; r < net.size; r++)
        if (net.sockets[r] >= 0 && net.done[r] < complete)
            net.polls[count] = (struct pollfd){net.sockets[r], events, 0}, net.ranks[count++] = r;
    return count;
}

// The frames of all, which must be as `ours`, and with all != NULL the data of each, at all + rank * bytes. From all at
// once: one that has ended is noticed although another is late.
static bool receive_from_all(const Frame *ours, char *all, Error *err) {
    const size_t bytes = all ? ours->bytes : 0, complete = sizeof(Frame) + bytes;
    memset(net.done, 0, (size_t)net.size * sizeof *net.done);
    for (int count; (count = poll_unfinished(complete, POLLIN)) > 0;) {
        if (!wait_until(net.polls, count, INFINITY)) return fail_lost(err);
        for (int i = 0; i < count; i++) {
            if (!net.polls[i].revents) continue;
            const int r = net.ranks[i];
            size_t *done = &net.done[r];
            if (*done < sizeof(Frame)) {
                const Progress progress = pull(net.sockets[r], &net.frames[r], sizeof(Frame), done);
                if (progress == LOST) return fail_ended(r, err);
                if (progress == MORE) continue;
                if (memcmp(&net.frames[r], ours, sizeof *ours) != 0)
                    return fail_different(r, &net.frames[r], ours, err);
            }
            size_t received = *done - sizeof(Frame);
            const Progress progress = pull(net.sockets[r], all + (size_t)r * bytes, bytes, &received);
            *done = sizeof(Frame) + received;
            if (progress == LOST) return fail_ended(r, err);
        }
    }
    return true;
}

// To all at once: one that reads slowly does not keep the others waiting. Those that are left get everything even if
// one has ended, and then the message: a frame cannot be cut short.
static bool send_to_all(const Frame *frame, const void *data, size_t bytes, Error *err) {
    int ended = 0;
    memset(net.done, 0, (size_t)net.size * sizeof *net.done);
    for (int count; (count = poll_unfinished(sizeof *frame + bytes, POLLOUT)) > 0;) {
        if (!wait_until(net.polls, count, INFINITY)) return fail_lost(err);
        for (int i = 0; i < count; i++) {
            const int r = net.ranks[i];
            if (!net.polls[i].revents || push(net.sockets[r], frame, data, bytes, &net.done[r]) != LOST) continue;
            close(net.sockets[r]), net.sockets[r] = -1;
            ended = r;
        }
    }
    if (ended == 0) return true;
    Error failure;
    error_set(&failure, "process %d (%s) has ended", ended, net.hosts[ended]);
    return fail_all(err, &failure);
}

// --------------------------------------------------------------------------------------------- the calls of the others

// Takes the answer of process 0, whose frame must be as `expected` but for the bytes, into data.
static bool receive_answer(const Frame *expected, void *data, size_t bytes, double deadline, Error *err) {
    const int fd = net.sockets[0];
    Frame frame = {0};
    Error failure = {""};
    void *target = &frame;
    size_t wanted = sizeof frame, done = 0;
    for (bool has_frame = false;;) {
        const Progress progress = pull(fd, target, wanted, &done);
        if (progress == LOST) return fail_ended(0, err);
        if (progress == MORE) {
            if (wait_for(fd, POLLIN, deadline)) continue;
            if (!is_lost(&failure)) error_set(&failure, "process 0 (%s) does not answer", net.hosts[0]);
            return fail_all(err, &failure);
        }
        if (has_frame) break;
        has_frame = true, done = 0;
        if (frame.magic == FRAME_MAGIC && frame.kind == FRAME_ERROR && frame.bytes < sizeof failure.text) {
            target = failure.text, wanted = frame.bytes;
        } else if (frame.magic == FRAME_MAGIC && frame.kind == expected->kind && frame.call == expected->call &&
                   frame.bytes == bytes) {
            target = data, wanted = bytes;
        } else {
            char a[96], b[96];
            error_set(&failure, "process 0 (%s) answers %s to %s", net.hosts[0], name_call(&frame, a),
                      name_call(expected, b));
            return fail_all(err, &failure);
        }
    }
    if (frame.kind != FRAME_ERROR) return true;
    clean(failure.text, sizeof failure.text);
    return fail_all(err, &failure);
}

// Process 0 answers when it has everything. If it answers before, that is a message of failure, and it reads no more.
static bool ask(const Frame *frame, const void *mine, size_t mine_bytes, void *all, size_t all_bytes, Error *err) {
    const int fd = net.sockets[0];
    size_t done = 0;
    for (;;) {
        struct pollfd p = {fd, POLLIN | POLLOUT, 0};
        if (!wait_until(&p, 1, INFINITY)) return fail_lost(err);
        if (p.revents & ~POLLOUT || push(fd, frame, mine, mine_bytes, &done) != MORE) break;
    }
    return receive_answer(frame, all, all_bytes, INFINITY, err);
}

// ------------------------------------------------------------------------------------------------------------- Channel

static bool begin_call(FrameKind kind, size_t bytes, Frame *frame, Error *err) {
    if (net.failed) return error_set(err, "%s", net.failure.text);
    *frame = (Frame){FRAME_MAGIC, kind, ++net.call, bytes};
    return true;
}

static bool tcp_gather(const void *mine, void *all, size_t bytes, Error *err) {
    Frame frame = {0};
    if (!begin_call(FRAME_GATHER, bytes, &frame, err)) return false;
    REQUIRE(bytes <= SIZE_MAX / (size_t)net.size, "gather of %zu bytes", bytes);
    const size_t total = bytes * (size_t)net.size;
    if (net.rank > 0) return ask(&frame, mine, bytes, all, total, err);
    char none;
    char *const to = bytes > 0 ? all : &none;
    if (bytes > 0) memmove(to, mine, bytes);
    if (!receive_from_all(&frame, to, err)) return false;
    frame.bytes = total;
    return send_to_all(&frame, to, total, err);
}

static bool tcp_broadcast(void *data, size_t bytes, Error *err) {
    Frame frame = {0};
    if (!begin_call(FRAME_BROADCAST, bytes, &frame, err)) return false;
    if (net.rank > 0) return ask(&frame, NULL, 0, data, bytes, err);
    return receive_from_all(&frame, NULL, err) && send_to_all(&frame, data, bytes, err);
}

static void tcp_abort(int exit_code) {
    (void)exit_code; // the others end with their own, when they see that this one is gone
    for (int r = 0; net.sockets && r < (net.rank == 0 ? net.size : 1); r++)
        if (net.sockets[r] >= 0) shutdown(net.sockets[r], SHUT_RDWR);
}

static void tcp_close(void) {
    for (int r = 0; net.sockets && r < net.size; r++)
        if (net.sockets[r] >= 0) close(net.sockets[r]);
    if (net.sockets && net.listener >= 0) close(net.listener);
    free(net.sockets), free(net.hosts), free(net.frames), free(net.done), free(net.polls), free(net.ranks);
    memset(&net, 0, sizeof net);
}

static const Channel CHANNEL = {"TCP", tcp_gather, tcp_broadcast, tcp_abort, tcp_close};

// --------------------------------------------------------------------------------------------------- start of process
// 0

// A socket for IPv6 takes IPv4 connections, too; for IPv4 alone where the machine has no IPv6. Other machines cannot
// reach it if all processes are on this one. -1 with a message.
static int listen_at(const Place *place, Error *err) {
    const bool local = strncmp(place->host, "127.", 4) == 0 || strcmp(place->host, "::1") == 0 ||
                       strcmp(place->host, "localhost") == 0;
    const struct addrinfo hints = {.ai_flags = AI_PASSIVE | AI_NUMERICSERV, .ai_socktype = SOCK_STREAM};
    struct addrinfo *found = NULL;
    char port[16];
    snprintf(port, sizeof port, "%d", place->port);
    const int failed = getaddrinfo(local ? place->host : NULL, port, &hints, &found);
    if (failed) return error_set(err, "port %d: %s", place->port, gai_strerror(failed)), -1;
    int fd = -1, error = 0;
    for (int pass = 0; pass < 2 && fd < 0; pass++)
        for (const struct addrinfo *a = found; a && fd < 0; a = a->ai_next) {
            if ((a->ai_family == AF_INET6) != (pass == 0)) continue;
            fd = socket(a->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
            const int on = 1, off = 0;
            if (fd >= 0) {
                setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
                if (a->ai_family == AF_INET6) setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof off);
                if (bind(fd, a->ai_addr, a->ai_addrlen) == 0 && listen(fd, SOMAXCONN) == 0) break;
            }
            // That IPv6 is missing says nothing of the port.
            if (error != EADDRINUSE) error = errno;
            if (fd >= 0) close(fd);
            fd = -1;
        }
    freeaddrinfo(found);
    if (fd >= 0) return fd;
    return error_set(err, "process 0 cannot listen on port %d: %s; choose another by MASTER_PORT or -ps HOST:PORT",
                     place->port, strerror(error)),
           -1;
}

// The socket that comm_launch left to this process; -1 if there is none.
static int inherited_listener(const Place *place) {
    const char *text = getenv(COMM_LISTENER);
    if (!text) return -1;
    const int fd = atoi(text);
    unsetenv(COMM_LISTENER);
    int listens = 0;
    socklen_t length = sizeof listens;
    struct sockaddr_in address = {0};
    if (fd <= STDERR_FILENO || getsockopt(fd, SOL_SOCKET, SO_ACCEPTCONN, &listens, &length) != 0 || !listens) return -1;
    length = sizeof address;
    if (getsockname(fd, (struct sockaddr *)&address, &length) != 0 || ntohs(address.sin_port) != place->port) return -1;
    fcntl(fd, F_SETFD, FD_CLOEXEC);
    fcntl(fd, F_SETFL, O_NONBLOCK);
    return fd;
}

typedef struct {
    int fd;
    double deadline;
    size_t got; // bytes of hello
    Hello hello;
} Visitor;

typedef struct {
    const Place *place;
    double seconds; // that it waits
    int arrived;    // processes, this one included
    int count;
    Visitor visitors[MOST_VISITORS];
    Error refusal; // the last one
} Rendezvous;

// The socket is new: its buffer takes a short answer at once.
static void answer(int fd, FrameKind kind, const char *text) {
    const Frame frame = {FRAME_MAGIC, kind, 0, strlen(text)};
    push(fd, &frame, text, frame.bytes, &(size_t){0});
}

// False: a process of another run or another build, or one too many.
static bool may_join(const Rendezvous *m, const Hello *h, Error *why) {
    const Place *place = m->place;
    if (h->protocol != PROTOCOL)
        return error_set(why,
                         "it speaks version %u of the protocol, process 0 version %d: another build of the program",
                         h->protocol, PROTOCOL);
    if (strcmp(h->run_id, place->run_id) != 0)
        return error_set(why, "it belongs to run '%s', process 0 to run '%s'", h->run_id, place->run_id);
    if (h->size != (uint32_t)net.size) return error_set(why, "it counts %u processes, process 0 %d", h->size, net.size);
    if (h->rank >= h->size) return error_set(why, "its rank is not below the %u processes", h->size);
    if (h->rank == 0 || net.sockets[h->rank] >= 0)
        return error_set(why, "rank %u is taken by a process on %s", h->rank, net.hosts[h->rank]);
    return true;
}

// A visitor with a whole Hello. Returns whether its connection stays open.
static bool receive_visitor(Rendezvous *m, Visitor *v) {
    Hello *h = &v->hello;
    h->run_id[sizeof h->run_id - 1] = '\0';
    clean(h->host, sizeof h->host);
    Error why;
    if (may_join(m, h, &why)) {
        net.sockets[h->rank] = v->fd;
        memcpy(net.hosts[h->rank], h->host, sizeof h->host);
        m->arrived++;
        answer(v->fd, FRAME_ACCEPTED, "");
        return true;
    }
    error_set(&m->refusal, "process %u on %s was refused: %s", h->rank, h->host, why.text);
    clean(m->refusal.text, sizeof m->refusal.text);
    answer(v->fd, FRAME_ERROR, m->refusal.text);
    return false;
}

// Reads what has come from visitor i, and forgets it when it has joined, is none of ours, or has not said what it is.
static void hear_visitor(Rendezvous *m, int i, bool is_ready) {
    Visitor *v = &m->visitors[i];
    const Progress progress = is_ready ? pull(v->fd, &v->hello, sizeof v->hello, &v->got) : MORE;
    const size_t magic = v->got < sizeof v->hello.magic ? v->got : sizeof v->hello.magic;
    const bool is_ours = memcmp(v->hello.magic, HELLO_MAGIC, magic) == 0;
    if (is_ours && progress == MORE && now_seconds() < v->deadline) return;
    if (!is_ours || progress != DONE || !receive_visitor(m, v)) close(v->fd);
    *v = m->visitors[--m->count];
}

static bool fail_missing(const Rendezvous *m, Error *err) {
    char names[NAMED_MISSING * 16];
    size_t n = 0;
    int missing = net.size - m->arrived, named = 0;
    for (int r = 1; r < net.size && named < NAMED_MISSING; r++) {
        if (net.sockets[r] >= 0) continue;
        const char *separator = named == 0 ? "" : named == missing - 1 ? " and " : ", ";
        n += (size_t)snprintf(names + n, sizeof names - n, "%s%d", separator, r);
        named++;
    }
    char more[32] = "";
    if (named < missing) snprintf(more, sizeof more, " and %d more", missing - named);
    Error failure;
    error_set(&failure, "process%s %s%s of %d did not come within %g s%s%s", missing > 1 ? "es" : "", names, more,
              net.size, m->seconds, m->refusal.text[0] ? "; " : "", m->refusal.text);
    return fail_all(err, &failure);
}

static bool meet(Rendezvous *m, int listener, Error *err) {
    const double deadline = now_seconds() + m->seconds;
    while (m->arrived < net.size) {
        int count = 0;
        double next = deadline;
        net.polls[count++] = (struct pollfd){m->count < MOST_VISITORS ? listener : -1, POLLIN, 0};
        for (int i = 0; i < m->count; i++) {
            net.polls[count++] = (struct pollfd){m->visitors[i].fd, POLLIN, 0};
            next = fmin(next, m->visitors[i].deadline);
        }
        const int first_rank = count;
        for (int r = 1; r < net.size; r++)
            if (net.sockets[r] >= 0) net.ranks[count - first_rank] = r, net.polls[count++].fd = net.sockets[r];
        for (int i = first_rank; i < count; i++) net.polls[i].events = POLLIN, net.polls[i].revents = 0;

        const bool is_ready = wait_until(net.polls, count, next);
        if (now_seconds() >= deadline) return fail_missing(m, err);
        // One that has been accepted says nothing before it is welcomed.
        for (int i = first_rank; i < count; i++)
            if (is_ready && net.polls[i].revents) return fail_ended(net.ranks[i - first_rank], err);
        for (int i = m->count - 1; i >= 0; i--) hear_visitor(m, i, is_ready && net.polls[1 + i].revents);
        if (!is_ready || !net.polls[0].revents) continue;
        const int fd = accept4(listener, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
        if (fd >= 0) {
            set_up_socket(fd);
            m->visitors[m->count++] = (Visitor){.fd = fd, .deadline = now_seconds() + HELLO_SECONDS};
        } else if (errno == EMFILE || errno == ENFILE || errno == ENOMEM || errno == ENOBUFS) {
            Error failure;
            error_set(&failure, "process 0 (%s) cannot take connection %d of %d: %s", net.hosts[0], m->arrived,
                      net.size - 1, strerror(errno));
            return fail_all(err, &failure);
        }
    }
    return true;
}

static bool start_process_0(const Place *place, double seconds, Error *err) {
    if (net.listener < 0) net.listener = inherited_listener(place);
    if (net.listener < 0 && (net.listener = listen_at(place, err)) < 0) return false;
    Rendezvous *m = calloc(1, sizeof *m);
    REQUIRE_MEMORY(m, "the connections that come in");
    m->place = place, m->seconds = seconds, m->arrived = 1;
    const bool met = meet(m, net.listener, err);
    for (int i = 0; i < m->count; i++) close(m->visitors[i].fd);
    free(m);
    if (!met) return false;
    const size_t bytes = (size_t)net.size * sizeof(HostName);
    return send_to_all(&(Frame){FRAME_MAGIC, FRAME_WELCOME, 0, bytes}, net.hosts, bytes, err);
}

// ------------------------------------------------------------------------------------------------- start of the others

enum { CONNECT_SECONDS = 10, SHORTEST_PAUSE_MS = 50, LONGEST_PAUSE_MS = 500 };

// One try at each address of a host; -1 with the reason.
static int connect_host(const char *host, int number, double deadline, Error *reason) {
    const struct addrinfo hints = {.ai_flags = AI_NUMERICSERV, .ai_socktype = SOCK_STREAM};
    struct addrinfo *found = NULL;
    char port[16];
    snprintf(port, sizeof port, "%d", number);
    const int failed = getaddrinfo(host, port, &hints, &found);
    if (failed) return error_set(reason, "%s", gai_strerror(failed)), -1;
    int connected = -1;
    for (const struct addrinfo *a = found; a && connected < 0; a = a->ai_next) {
        const int fd = socket(a->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
        int error = 0;
        socklen_t length = sizeof error;
        if (fd < 0 || connect(fd, a->ai_addr, a->ai_addrlen) != 0) error = errno;
        if (error == EINPROGRESS) {
            // An address that swallows packets must not use up the time of the next one.
            if (!wait_for(fd, POLLOUT, fmin(deadline, now_seconds() + CONNECT_SECONDS)))
                error = ETIMEDOUT;
            else
                getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &length);
        }
        if (error == 0) {
            connected = fd;
        } else {
            error_set(reason, "%s", strerror(error));
            if (fd >= 0) close(fd);
        }
    }
    freeaddrinfo(found);
    return connected;
}

// The machine of process 0 may have several addresses, separated by commas.
static int connect_once(const Place *place, double deadline, Error *reason) {
    char hosts[sizeof place->host], *rest = NULL;
    int fd = -1;
    memcpy(hosts, place->host, sizeof hosts);
    for (char *host = strtok_r(hosts, ",", &rest); host && fd < 0; host = strtok_r(NULL, ",", &rest))
        fd = connect_host(host, place->port, deadline, reason);
    return fd;
}

static Progress pull_until(int fd, void *data, size_t bytes, double deadline) {
    size_t done = 0;
    Progress progress;
    while ((progress = pull(fd, data, bytes, &done)) == MORE && wait_for(fd, POLLIN, deadline)) {}
    return progress;
}

typedef enum { ACCEPTED, REFUSED, NOT_NOW } Admission;

// Says who this process is. *text: why it was refused, or should try again.
static Admission introduce(int fd, const Hello *hello, double deadline, Error *text) {
    Frame frame;
    const bool sent = send(fd, hello, sizeof *hello, MSG_NOSIGNAL) == (ssize_t)sizeof *hello;
    const Progress progress = sent ? pull_until(fd, &frame, sizeof frame, deadline) : LOST;
    if (progress == LOST) return error_set(text, "it closed the connection"), NOT_NOW;
    if (progress == MORE) return error_set(text, "it took the connection, but said nothing"), NOT_NOW;
    if (frame.magic == FRAME_MAGIC && frame.kind == FRAME_ACCEPTED && frame.bytes == 0) return ACCEPTED;
    if (frame.magic != FRAME_MAGIC || frame.kind != FRAME_ERROR || frame.bytes >= sizeof text->text)
        return error_set(text, "another program listens there"), NOT_NOW;
    memset(text, 0, sizeof *text);
    if (pull_until(fd, text->text, frame.bytes, deadline) != DONE)
        return error_set(text, "it closed the connection"), NOT_NOW;
    clean(text->text, sizeof text->text);
    return REFUSED;
}

// Process 0 says that all have come, and where they are.
static bool receive_welcome(double deadline, Error *err) {
    const size_t bytes = (size_t)net.size * sizeof(HostName);
    HostName *hosts = malloc(bytes); // not net.hosts: a message about a welcome that is cut off names process 0
    REQUIRE_MEMORY(hosts, "the names of %d hosts", net.size);
    const Frame expected = {FRAME_MAGIC, FRAME_WELCOME, 0, bytes};
    const bool welcome = receive_answer(&expected, hosts, bytes, deadline, err);
    for (int r = 0; welcome && r < net.size; r++) clean(hosts[r], sizeof(HostName));
    if (welcome) memcpy(net.hosts, hosts, bytes);
    free(hosts);
    return welcome;
}

static bool start_other(const Place *place, double seconds, Error *err) {
    Hello hello = {.magic = HELLO_MAGIC, .protocol = PROTOCOL, .size = (uint32_t)net.size, .rank = (uint32_t)net.rank};
    snprintf(hello.run_id, sizeof hello.run_id, "%s", place->run_id);
    memcpy(hello.host, net.hosts[net.rank], sizeof hello.host);
    const double deadline = now_seconds() + seconds;
    for (int pause = SHORTEST_PAUSE_MS;; pause = pause * 2 < LONGEST_PAUSE_MS ? pause * 2 : LONGEST_PAUSE_MS) {
        Error reason = {""};
        const int fd = connect_once(place, deadline, &reason);
        if (fd >= 0) {
            set_up_socket(fd);
            const Admission admission = introduce(fd, &hello, deadline, &reason);
            net.sockets[0] = fd;
            if (admission == ACCEPTED) break;
            close(fd), net.sockets[0] = -1;
            if (admission == REFUSED) return error_set(err, "%s", reason.text);
        }
        if (now_seconds() + 1e-3 * pause >= deadline)
            return error_set(err, "process 0 at %s:%d did not answer within %g s: %s", place->host, place->port,
                             seconds, reason.text);
        nanosleep(&(struct timespec){.tv_nsec = pause * 1000000L}, NULL);
    }
    // From here process 0 waits for the others, at most as long as it waits for all.
    return receive_welcome(now_seconds() + seconds + TELL_SECONDS, err);
}

// ---------------------------------------------------------------------------------------------------------------- open

static bool read_limit(double *seconds, Error *err) {
    const char *text = getenv("COMM_START_SECONDS");
    *seconds = START_SECONDS;
    if (!text || !*text) return true;
    char *end;
    *seconds = strtod(text, &end);
    return (*end == '\0' && *seconds > 0 && *seconds <= 86400) ||
           error_set(err, "COMM_START_SECONDS is '%.40s'; expected seconds, at most a day", text);
}

static void allocate(const Place *place) {
    const size_t size = (size_t)place->size;
    net.rank = place->rank, net.size = place->size, net.listener = -1;
    net.sockets = malloc(size * sizeof *net.sockets);
    net.hosts = calloc(size, sizeof *net.hosts);
    net.frames = calloc(size, sizeof *net.frames);
    net.done = calloc(size, sizeof *net.done);
    net.polls = calloc(size + 1 + MOST_VISITORS, sizeof *net.polls);
    net.ranks = calloc(size, sizeof *net.ranks);
    REQUIRE_MEMORY(net.sockets && net.hosts && net.frames && net.done && net.polls && net.ranks,
                   "the connections of %zu processes", size);
    for (size_t r = 0; r < size; r++) net.sockets[r] = -1;
    snprintf(net.hosts[0], sizeof(HostName), "%s", place->host); // until process 0 tells its name
    if (gethostname(net.hosts[net.rank], sizeof(HostName)) != 0)
        snprintf(net.hosts[net.rank], sizeof(HostName), "unknown");
    clean(net.hosts[net.rank], sizeof(HostName));
}

static bool meet_all(const Place *place, double seconds, Error *err) {
    if (net.size == 1) return true;
    return net.rank == 0 ? start_process_0(place, seconds, err) : start_other(place, seconds, err);
}

const Channel *channel_tcp_open(Place *place, Error *err) {
    REQUIRE(!net.sockets, "channel_tcp_open: it is open");
    REQUIRE(place->size >= 1 && place->rank >= 0 && place->rank < place->size, "channel_tcp_open: rank %d of %d",
            place->rank, place->size);
    double seconds;
    if (!read_limit(&seconds, err)) return NULL;
    allocate(place);
    if (!meet_all(place, seconds, err)) {
        tcp_close();
        return NULL;
    }
    int before = 0, here = 0;
    for (int r = 0; r < net.size; r++) {
        const bool same = strcmp(net.hosts[r], net.hosts[net.rank]) == 0;
        here += same, before += same && r < net.rank;
    }
    if (place->local_rank < 0) place->local_rank = before;
    if (place->local_size < 0) place->local_size = here;
    net.carries_messages = true;
    return &CHANNEL;
}

int *channel_tcp_meet_again(const Place *place, double limit, Error *err) {
    double seconds;
    if (!read_limit(&seconds, err)) return NULL;
    if (!net.sockets) allocate(place);
    int *const messages = net.sockets, *sockets = malloc((size_t)net.size * sizeof *sockets);
    REQUIRE_MEMORY(sockets, "the second connections of %d processes", net.size);
    for (int r = 0; r < net.size; r++) sockets[r] = -1;
    net.sockets = sockets;
    const bool met = meet_all(place, fmin(seconds, limit), err);
    net.sockets = messages;
    if (net.listener >= 0) close(net.listener), net.listener = -1;
    if (!net.carries_messages) tcp_close();
    if (met) return sockets;
    for (int r = 0; r < place->size; r++)
        if (sockets[r] >= 0) close(sockets[r]);
    free(sockets);
    return NULL;
}
