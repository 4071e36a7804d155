// See output.h. Both are streams of the C library (fopencookie) whose one function writes what the
// reader takes at once, and waits in steps in which it sees a signal that came to another thread.
#include "llmc/base/output.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <math.h>
#include <poll.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

// HURRY_MS: what a reader that is merely slow may take for the last lines of a run that a signal
// ends.
enum { WAIT_MS = 100, HURRY_MS = 1000 };

typedef struct {
    int fd;
    bool is_socket;
    bool is_stuck; // its reader was waited for in vain
} Output;

// Signal handlers reach static variables only.
static Output outputs[] = {{.fd = STDOUT_FILENO}, {.fd = STDERR_FILENO}};
static volatile sig_atomic_t in_hurry = 0;
static double limit_ms = INFINITY;

// Works like write(2), but fails with EAGAIN where that would wait.
static ssize_t write_now(const Output *o, const char *data, size_t n) {
    struct pollfd place = {.fd = o->fd, .events = POLLOUT};
    if (n > PIPE_BUF) n = PIPE_BUF; // what a pipe takes as a whole
    if (poll(&place, 1, 0) == 0) errno = EAGAIN;
    if (place.revents == 0) return -1;
    if (o->is_socket) return send(o->fd, data, n, MSG_DONTWAIT);
    return write(o->fd, data, n);
}

static ssize_t output_write(void *cookie, const char *data, size_t n) {
    static const char left_out[] = "\n(output that found no reader was left out here)\n";
    Output *o = cookie;
    double waited_ms = 0;
    if (o->is_stuck && write_now(o, left_out, sizeof left_out - 1) <= 0) return (ssize_t)n;
    o->is_stuck = false;

    for (size_t done = 0; done < n;) {
        const ssize_t taken = write_now(o, data + done, n - done);
        if (taken > 0) done += (size_t)taken;
        // an error of the stream
        if (taken == 0 || (taken < 0 && errno != EAGAIN && errno != EINTR)) return 0;
        if (taken > 0) continue;

        double limit = limit_ms;
        if (in_hurry) limit = fmin(HURRY_MS, limit);
        o->is_stuck = waited_ms >= limit;
        if (o->is_stuck) break;
        if (poll(&(struct pollfd){.fd = o->fd, .events = POLLOUT}, 1, WAIT_MS) <= 0)
            waited_ms += WAIT_MS;
    }
    return (ssize_t)n;
}

void output_start(void) {
    const cookie_io_functions_t functions = {.write = output_write};
    for (int i = 0; i < 2; i++) {

        // A second description of the same pipe or terminal, whose O_NONBLOCK is ours alone; else
        // the first. A file would be written from its beginning, and a socket cannot be opened.
        Output *o = &outputs[i];
        struct stat st;
        char path[40];
        int own = -1;
        if (fstat(o->fd, &st) == 0) {
            snprintf(path, sizeof path, "/proc/self/fd/%d", o->fd);
            if (S_ISFIFO(st.st_mode) || isatty(o->fd))
                own = open(path, O_WRONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC);
            o->is_socket = S_ISSOCK(st.st_mode);
            if (own >= 0) o->fd = own;
        }

        FILE *stream = fopencookie(&outputs[i], "w", functions);
        if (!stream) continue; // out of memory: the stream of the C library does
        if (i == 1) setvbuf(stream, NULL, _IONBF, 0);
        if (i == 0 && isatty(STDOUT_FILENO)) setvbuf(stream, NULL, _IOLBF, BUFSIZ);
        if (i == 1) stderr = stream;
        if (i == 0) stdout = stream;
    }
}

void output_limit_wait(double seconds) { limit_ms = 1e3 * seconds; }

void output_hurry(void) { in_hurry = 1; }

void output_report(const char *text) {
    // a closed stderr cannot be helped here
    const ssize_t ignored = write_now(&outputs[1], text, strlen(text));
    (void)ignored;
}
