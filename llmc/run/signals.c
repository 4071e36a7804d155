// Signals that ask a run to stop. The handler only sets flags and writes one fixed line (async-signal-safe calls);
// the loop looks at signals_pending between micro-steps. System calls that a signal interrupts are restarted, so
// neither file writes nor reads see EINTR because of us.
#include "llmc/run/signals.h"

#include <errno.h>
#include <signal.h>
#include <stdbool.h>
#include <string.h>
#include <unistd.h>

// A handler can only speak through static variables; these two are all of it.
static volatile sig_atomic_t pending = 0;
static volatile sig_atomic_t interrupted = 0;

static void say(const char *line) {
    ssize_t ignored = write(STDERR_FILENO, line, strlen(line));
    (void)ignored; // nothing can be done about a closed stderr here
}

static void on_signal(int signal_number) {
    const int saved_errno = errno;
    const bool again = signal_number == SIGINT && interrupted;
    const bool is_news = !pending || (signal_number == SIGINT && !interrupted);
    // First of all: as soon as the line is out, another thread may be given the next signal.
    if (signal_number == SIGINT) interrupted = 1;
    if (!pending) pending = signal_number;
    if (again) {
        // The default action, so that the exit status tells the shell that SIGINT ended us. The signal is blocked
        // while its handler runs and takes effect on return.
        signal(SIGINT, SIG_DFL);
        raise(SIGINT);
    } else if (is_news) {
        say(signal_number == SIGINT    ? "\nSIGINT: stopping; Ctrl-C again ends at once, without saving\n"
            : signal_number == SIGTERM ? "\nSIGTERM: stopping\n"
            : signal_number == SIGHUP  ? "\nSIGHUP: stopping\n"
                                       : "\nSIGUSR1: stopping\n");
    }
    errno = saved_errno;
}

void signals_install(void) {
    pending = interrupted = 0;
    struct sigaction action = {.sa_handler = on_signal, .sa_flags = SA_RESTART};
    sigemptyset(&action.sa_mask);
    // The handler is one critical section: none of the four interrupts it.
    sigaddset(&action.sa_mask, SIGINT);
    sigaddset(&action.sa_mask, SIGTERM);
    sigaddset(&action.sa_mask, SIGUSR1);
    sigaddset(&action.sa_mask, SIGHUP);
    sigaction(SIGINT, &action, NULL);
    sigaction(SIGTERM, &action, NULL);
    sigaction(SIGUSR1, &action, NULL);
    struct sigaction before; // nohup started us with SIGHUP ignored: so it stays
    if (sigaction(SIGHUP, NULL, &before) == 0 && before.sa_handler != SIG_IGN) sigaction(SIGHUP, &action, NULL);

    struct sigaction ignore = {.sa_handler = SIG_IGN};
    sigemptyset(&ignore.sa_mask);
    sigaction(SIGPIPE, &ignore, NULL);
}

int signals_pending(void) { return pending; }

const char *signals_name(int signal_number) {
    switch (signal_number) {
    case SIGINT:
        return "SIGINT";
    case SIGTERM:
        return "SIGTERM";
    case SIGUSR1:
        return "SIGUSR1";
    case SIGHUP:
        return "SIGHUP";
    default:
        return "no signal";
    }
}
