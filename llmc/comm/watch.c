// The thread that notices a lost process, see watch.h.
#include "llmc/comm/watch.h"

#include "llmc/base/clock.h"
#include "llmc/base/limits.h"

#include <errno.h>
#include <math.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

enum { ROUND_MS = 100, MESSAGE_BYTES = 256 };
// Time for the main thread to end by itself: it closes the log, frees the GPU and leaves NCCL.
static const double GRACE_SECONDS = 5;

// The only message between watches: why the run has failed; "": the sender ends as it should.
typedef struct {
    char text[MESSAGE_BYTES];
} WatchMessage;

static struct {
    _Atomic uint64_t progress, collectives; // counts
    _Atomic int64_t step;
    _Atomic(const char *) collective;
} reached = {.collective = "none"}; // by the main thread

static struct {
    WatchOptions options;
    struct pollfd *polls; // of each rank
    pthread_t thread;
    bool is_running, speaks; // speaks: prints that process 0 has ended
    atomic_bool stops, has_failed;
    Error failure; // constant once has_failed
} watch;

void watch_progress(void) { reached.progress++; }
void watch_step(int64_t step) { reached.step = step; }

void watch_collective(const char *name) {
    reached.collective = name;
    reached.collectives++;
    reached.progress++;
}

const char *watch_collective_name(void) { return reached.collective; }

bool watch_has_failed(Error *err) {
    if (!atomic_load_explicit(&watch.has_failed, memory_order_acquire)) return false;
    if (err) *err = watch.failure;
    return true;
}

static bool (*watch_device_failed)(Error *err);
void watch_device(bool (*has_failed)(Error *err)) { watch_device_failed = has_failed; }
bool watch_is_lost(Error *err) {
    if (watch_has_failed(err)) return true;
    if (!watch_device_failed) return false;
    return watch_device_failed(err);
}

static void watch_tell_all(const char *text) {
    WatchMessage message = {""};
    snprintf(message.text, sizeof message.text, "%s", text);
    // A new connection takes it at once: at most two messages go over each.
    for (int r = 0; r < watch.options.size; r++)
        if (watch.polls[r].fd >= 0)
            (void)!send(watch.polls[r].fd, &message, sizeof message, MSG_DONTWAIT | MSG_NOSIGNAL);
}

static void watch_fail(const char *text, bool prints) {
    error_set(&watch.failure, "%s", text);
    if (prints) fprintf(stderr, "%s: %s\n", program_invocation_name, watch.failure.text);
    atomic_store_explicit(&watch.has_failed, true, memory_order_release);
    watch_tell_all(watch.failure.text);
}

// "process 3 (node2) has ended (step 17, collective 92: sum of gradients)"
static void watch_fail_process(int rank, const char *what, bool prints) {
    char text[sizeof(Error)];
    snprintf(text, sizeof text, "process %d (%s) %s (step %lld, collective %llu: %s)", rank,
             watch.options.hosts[rank], what, (long long)reached.step,
             (unsigned long long)reached.collectives, reached.collective);
    watch_fail(text, prints);
}

static void watch_close(int rank) {
    if (watch.polls[rank].fd >= 0) close(watch.polls[rank].fd);
    watch.polls[rank].fd = -1;
}

// Takes the message of a process, or that it has ended. A message is the first thing on its
// connection and shorter than a segment, so it comes as a whole.
static void watch_hear(int rank) {
    WatchMessage message;
    const ssize_t n = recv(watch.polls[rank].fd, &message, sizeof message, MSG_DONTWAIT);
    if (n < 0 && (errno == EINTR || errno == EAGAIN)) return;
    watch_close(rank);
    message.text[sizeof message.text - 1] = '\0';
    if (n != (ssize_t)sizeof message)
        watch_fail_process(rank, "has ended", watch.options.rank == 0 || watch.speaks);
    else if (*message.text)
        watch_fail(message.text, false); // the sender has printed it
}

static void *watch_run(void *unused) {
    (void)unused;
    char what[64];
    double then = now_seconds(), waited = 0, failed = 0; // seconds

    snprintf(what, sizeof what, "has made no progress for %g s", watch.options.seconds);
    for (uint64_t progress = reached.progress; !watch.stops;) {
        const nfds_t count = watch.has_failed ? 0 : (nfds_t)watch.options.size;
        poll(watch.polls, count, ROUND_MS);

        // Time in which this process was stopped, or the machine slept, does not count.
        const double now = now_seconds(), passed = fmin(now - then, 2e-3 * ROUND_MS);
        then = now;
        for (int r = 0; r < watch.options.size && !watch.has_failed; r++)
            if (watch.polls[r].fd >= 0 && watch.polls[r].revents) watch_hear(r);

        waited += passed;
        if (reached.progress != progress) waited = 0;
        progress = reached.progress;
        if (!watch.has_failed && waited > watch.options.seconds)
            watch_fail_process(watch.options.rank, what, true);

        // Nothing half-written is left: checkpoints are renamed when they are complete.
        if (watch.has_failed && (failed += passed) > GRACE_SECONDS) _exit(EXIT_RUN_FAILED);
    }
    return NULL;
}

bool watch_start(const WatchOptions *options, Error *err) {
    const int size = options->size;
    REQUIRE(!watch.is_running, "watch_start: it runs");
    memset(&watch, 0, sizeof watch);

    watch.options = *options;
    watch.polls = calloc((size_t)size, sizeof *watch.polls);
    REQUIRE_MEMORY(watch.polls, "the watch");

    for (int r = 0; r < size; r++) {
        watch.polls[r] = (struct pollfd){-1, POLLIN, 0};
        if (options->sockets) watch.polls[r].fd = options->sockets[r];
    }

    int first = 1; // of the others on this machine
    while (first < options->rank &&
           strcmp(options->hosts[first], options->hosts[options->rank]) != 0)
        first++;
    watch.speaks = first == options->rank;

    sigset_t all, before; // the main thread handles signals
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    const int status = pthread_create(&watch.thread, NULL, watch_run, NULL);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    watch.is_running = status == 0;

    if (status != 0)
        return limits_thread_failed("the thread that watches this process", status, err);
    return true;
}

void watch_stop(bool lost) {
    if (!watch.is_running) return;
    watch.stops = true;
    pthread_join(watch.thread, NULL);
    watch.is_running = false;
    if (!lost && !watch.has_failed) watch_tell_all("");
    for (int r = 0; r < watch.options.size; r++) watch_close(r);
    free(watch.polls);
}
