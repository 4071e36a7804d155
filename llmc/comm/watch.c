// Who is alive, see watch.h.
#include "llmc/comm/watch.h"

#include "llmc/base/arithmetic.h"
#include "llmc/base/limits.h"
#include <ctype.h>
#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#define BEAT_MAGIC 0x3154424Cu // "LBT1"

enum {
    NAMED = 8, // ranks in a message; of more only the number
    SLOWEST_BEAT_MS = 1000,
};
static const double START_SECONDS = 60; // the limit before the first step, at most
// For the main thread to end by itself: it closes the log, frees the GPU and leaves MPI or NCCL.
static const double GRACE_SECONDS = 5;
static const double EXPLAIN_SECONDS = 2;

typedef enum { BEAT = 1, LOST, LEAVING } BeatKind; // LOST: text is the message

typedef struct {
    uint32_t magic, kind;
    uint64_t progress, collective; // counts
    int64_t step;                  // -1: before the first one
    char text[224];                // BEAT: the name of the collective
} Beat;
_Static_assert(sizeof(Beat) == 256, "a Beat is sent as it is");

typedef struct {
    int fd; // -1: none
    bool has_left;
    double heard; // when the last beat came, by watch.clock
    Beat last;    // the last whole one
    Beat in, out;
    size_t received, sent; // bytes of in and out; sent: sizeof(Beat) when nothing is left to send
} Peer;

// What the main thread has done so far.
static struct {
    _Atomic uint64_t progress, collective;
    _Atomic int64_t step;
    _Atomic(const char *) name;
} mine = {.step = -1};

static struct {
    WatchOptions options;
    bool is_running;
    bool speaks; // prints if process 0 is lost: the first of the others on its machine
    Peer *peers; // by rank; those without a connection have fd -1
    struct pollfd *polls;
    int wake; // an eventfd
    pthread_t thread;
    // Seconds in which this process ran. If it was stopped, or the machine slept, it does not blame the others for the
    // time: one round of the thread counts two seconds at most.
    double clock;
    double progressed; // when a process last made progress; for process 0
    uint64_t total;    // progress of all, then
    atomic_bool stops, leaves_silently, has_failed;
    Error failure; // constant once has_failed
} watch;

bool watch_is_running(void) { return watch.is_running; }
void watch_progress(void) { mine.progress++; }
void watch_step(int64_t step) { mine.step = step; }
void watch_collective(const char *name) {
    mine.name = name;
    mine.collective++;
    mine.progress++;
}
const char *watch_collective_name(void) { return mine.name ? mine.name : ""; }

bool watch_has_failed(Error *err) {
    if (!atomic_load_explicit(&watch.has_failed, memory_order_acquire)) return false;
    if (err) *err = watch.failure;
    return true;
}

void watch_explain(Error *err) {
    const double deadline = now_seconds() + EXPLAIN_SECONDS;
    while (watch.is_running && !watch_has_failed(err) && now_seconds() < deadline)
        nanosleep(&(struct timespec){.tv_nsec = 10 * 1000 * 1000}, NULL);
}

// ----------------------------------------------------------------------------------------------------------- messages

static double limit(void) {
    const double seconds = watch.options.seconds;
    return mine.step < 0 && seconds > START_SECONDS ? START_SECONDS : seconds;
}

// "(step 17, collective 170: sum of gradients)"
static const char *place_of(const Beat *b, char buf[320]) {
    char step[32] = "start", collective[288] = "";
    if (b->step >= 0) snprintf(step, sizeof step, "step %lld", (long long)b->step);
    if (b->collective > 0)
        snprintf(collective, sizeof collective, ", collective %llu: %s", (unsigned long long)b->collective, b->text);
    snprintf(buf, 320, "(%s%s)", step, collective);
    return buf;
}

static Beat my_beat(BeatKind kind) {
    Beat b = {.magic = BEAT_MAGIC, .kind = kind, .collective = mine.collective, .step = mine.step};
    b.progress = mine.progress;
    const char *name = mine.name;
    snprintf(b.text, sizeof b.text, "%s", name ? name : "");
    return b;
}

// One that is not yet gone is completed first; then this one is left out: the next will follow.
static void send_beat(Peer *p, const Beat *beat) {
    if (p->fd < 0) return;
    if (p->sent == sizeof p->out) p->out = *beat, p->sent = 0;
    while (p->sent < sizeof p->out) {
        const ssize_t n = send(p->fd, (char *)&p->out + p->sent, sizeof p->out - p->sent, MSG_DONTWAIT | MSG_NOSIGNAL);
        if (n < 0 && errno != EINTR) return; // full, or closed: reading will tell
        if (n > 0) p->sent += (size_t)n;
    }
}

static void send_to_all(const Beat *beat) {
    for (int r = 0; r < watch.options.size; r++) send_beat(&watch.peers[r], beat);
}

// A process is lost, or all hang; the message has the place of this process. Process 0 prints it and tells the others.
// If it is process 0, each machine prints it; a process 0 that was stopped reads it when it continues, and is quiet.
static void fail(const char *text, bool prints) {
    error_set(&watch.failure, "%s", text);
    if (prints) fprintf(stderr, "%s: %s\n", program_invocation_name, text);
    atomic_store_explicit(&watch.has_failed, true, memory_order_release);
    Beat lost = my_beat(LOST);
    snprintf(lost.text, sizeof lost.text, "%s", text);
    send_to_all(&lost);
}

static void fail_process(int rank, const char *what) {
    char place[320], text[sizeof(Error)];
    const Beat now = my_beat(BEAT);
    snprintf(text, sizeof text, "process %d (%s) %s %s", rank, watch.options.hosts[rank], what, place_of(&now, place));
    fail(text, watch.options.rank == 0 || watch.speaks);
}

// ------------------------------------------------------------------------------------------------------------- judging

// All are alive, but none gets any further. Those that have not reached the collective of the others are named.
static void fail_hanging(void) {
    const int size = watch.options.size;
    const Beat *first = &watch.peers[0].last;
    char names[NAMED * 80] = "", place[320], text[sizeof(Error)];
    int behind = 0;
    size_t n = 0;
    for (int r = 1; r < size; r++)
        if (watch.peers[r].last.collective > first->collective) first = &watch.peers[r].last;
    for (int r = 0; r < size; r++) {
        if (watch.peers[r].has_left || watch.peers[r].last.collective == first->collective) continue;
        if (behind++ < NAMED)
            n += (size_t)snprintf(names + n, sizeof names - n, "%s%d (%s)", n > 0 ? ", " : "", r,
                                  watch.options.hosts[r]);
        if (n >= sizeof names) n = sizeof names - 1;
    }
    snprintf(text, sizeof text, "no progress for %g s %s, %s%s%s", watch.options.seconds, place_of(first, place),
             behind == 0 ? "although all processes have reached it" : "not reached by process ", names,
             behind > NAMED ? " and others" : "");
    fail(text, true);
}

static void judge(double interval) {
    const int size = watch.options.size, rank = watch.options.rank;
    uint64_t total = mine.progress;
    bool others = false, late = false;
    // Of process 0 that is silent, those that print it learn first: the first that ends may end all, by its launcher.
    const double slack = rank == 0 || watch.speaks ? 0 : 3 * interval;
    char what[64];
    for (int r = 0; r < size; r++) {
        const Peer *p = &watch.peers[r];
        if (p->fd < 0) continue;
        if (watch.clock - p->heard > limit() + slack) {
            snprintf(what, sizeof what, "has not answered for %g s", limit());
            fail_process(r, what);
            return;
        }
        others = true;
        late |= watch.clock - p->heard > 3 * interval;
        total += p->last.progress;
    }
    if (total != watch.total || !others || late) watch.total = total, watch.progressed = watch.clock;
    // Later than the limit for a heartbeat: a process that is stopped is named as such.
    if (rank > 0 || watch.clock - watch.progressed <= watch.options.seconds + 3 * interval) return;
    watch.peers[0].last = my_beat(BEAT);
    fail_hanging();
}

// ------------------------------------------------------------------------------------------------------------- reading

static void take_beat(int rank) {
    Peer *p = &watch.peers[rank];
    p->received = 0;
    p->heard = watch.clock;
    p->in.text[sizeof p->in.text - 1] = '\0';
    for (char *c = p->in.text; *c; c++)
        if (!isprint((unsigned char)*c)) *c = '?';
    if (p->in.magic != BEAT_MAGIC) {
        fail_process(rank, "sends what is no heartbeat");
    } else if (p->in.kind == LOST && !*p->in.text) {
        fail_process(rank, "reports a failure without a word");
    } else if (p->in.kind == LOST) {
        fail(p->in.text, false);
    } else if (p->in.kind == LEAVING) {
        p->has_left = true;
        close(p->fd), p->fd = -1;
    } else {
        p->last = p->in;
    }
}

// Everything that has come: after a pause, the heartbeats sent in the meantime count.
static void hear(int rank) {
    Peer *p = &watch.peers[rank];
    while (p->fd >= 0 && !watch.has_failed) {
        const ssize_t n = recv(p->fd, (char *)&p->in + p->received, sizeof p->in - p->received, MSG_DONTWAIT);
        if (n < 0 && errno == EINTR) continue;
        if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return;
        if (n > 0) {
            p->received += (size_t)n;
            if (p->received == sizeof p->in) take_beat(rank);
            continue;
        }
        const int error = n < 0 ? errno : 0;
        char what[128] = "has ended";
        if (error != 0 && error != ECONNRESET && error != EPIPE)
            snprintf(what, sizeof what, "cannot be reached: %s", strerror(error));
        close(p->fd), p->fd = -1;
        fail_process(rank, what);
    }
}

// ---------------------------------------------------------------------------------------------------------- the thread

static void *run(void *unused) {
    (void)unused;
    const int size = watch.options.size;
    const double interval = fmin(1e-3 * SLOWEST_BEAT_MS, watch.options.seconds / 10);
    double then = now_seconds(), next = then, over = INFINITY;
    while (!watch.stops) {
        watch.polls[size] = (struct pollfd){watch.wake, POLLIN, 0};
        for (int r = 0; r < size; r++)
            watch.polls[r] = (struct pollfd){watch.has_failed ? -1 : watch.peers[r].fd, POLLIN, 0};
        const double left = fmax(0, next - now_seconds());
        poll(watch.polls, (nfds_t)size + 1, (int)ceil(1e3 * left));
        const double now = now_seconds();
        watch.clock += fmin(now - then, 2);
        then = now;
        for (int r = 0; r < size && !watch.has_failed; r++)
            if (watch.peers[r].fd >= 0) hear(r);
        if (watch.has_failed && isinf(over)) over = watch.clock + GRACE_SECONDS;
        // The main thread waits for a GPU, or in a library, which nothing can interrupt. What it has written is whole:
        // checkpoints are renamed when they are complete.
        if (watch.clock >= over) _exit(EXIT_RUN_FAILED);
        if (now < next) continue;
        next = now + interval;
        if (watch.has_failed) continue;
        judge(interval);
        if (!watch.has_failed) send_to_all(&(Beat[]){my_beat(BEAT)}[0]);
    }
    if (!watch.has_failed && !watch.leaves_silently) send_to_all(&(Beat[]){my_beat(LEAVING)}[0]);
    return NULL;
}

// The main thread handles signals.
static int start_thread(void) {
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    const int status = pthread_create(&watch.thread, NULL, run, NULL);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return status;
}

static void release(void) {
    for (int r = 0; r < watch.options.size; r++)
        if (watch.peers[r].fd >= 0) close(watch.peers[r].fd);
    if (watch.wake >= 0) close(watch.wake);
    free(watch.peers), free(watch.polls);
    watch.peers = NULL, watch.polls = NULL;
}

bool watch_start(const WatchOptions *options, int *sockets, Error *err) {
    REQUIRE(!watch.is_running, "watch_start: it runs");
    const size_t size = (size_t)options->size;
    memset(&watch, 0, sizeof watch);
    watch.options = *options;
    watch.peers = calloc(size, sizeof *watch.peers);
    watch.polls = calloc(size + 1, sizeof *watch.polls);
    REQUIRE_MEMORY(watch.peers && watch.polls, "the watch of %zu processes", size);
    for (size_t r = 0; r < size; r++) {
        watch.peers[r].fd = sockets[r], watch.peers[r].sent = sizeof(Beat);
        watch.peers[r].last.step = -1;
    }
    free(sockets);
    int first = 1;
    while (first < options->rank && strcmp(options->hosts[first], options->hosts[options->rank]) != 0) first++;
    watch.speaks = first == options->rank;
    watch.wake = eventfd(0, EFD_CLOEXEC);
    const int status = watch.wake < 0 ? errno : start_thread();
    watch.is_running = status == 0;
    if (watch.is_running) return true;
    release();
    return limits_thread_failed("the thread that watches the other processes", status, err);
}

void watch_stop(bool lost) {
    if (!watch.is_running) return;
    watch.leaves_silently = lost;
    watch.stops = true;
    const uint64_t one = 1;
    REQUIRE(write(watch.wake, &one, sizeof one) == (ssize_t)sizeof one, "eventfd: %s", strerror(errno));
    pthread_join(watch.thread, NULL);
    watch.is_running = false;
    release();
}
