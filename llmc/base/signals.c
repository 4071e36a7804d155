// See signals.h. The handler only sets flags and writes one fixed line (async-signal-safe calls);
// the loop checks signals_pending between micro-steps. System calls that a signal interrupts are
// restarted, so neither file writes nor reads see EINTR because of us.
#include "llmc/base/signals.h"

#include "llmc/base/output.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdbool.h>

// A handler can only communicate through static variables: the first two.
static volatile sig_atomic_t pending = 0;
static volatile sig_atomic_t interrupted = 0;
static int agreed = -1; // by several processes; -1: there is one

// Signals that ask a run to stop. SIGXCPU: the limit of processor time (ulimit -t) is near.
static const struct {
    int number;
    const char *name, *line;
} caught[] = {{SIGINT, "SIGINT", "\nSIGINT: stopping; Ctrl-C again ends at once, without saving\n"},
              {SIGTERM, "SIGTERM", "\nSIGTERM: stopping\n"},
              {SIGUSR1, "SIGUSR1", "\nSIGUSR1: stopping\n"},
              {SIGUSR2, "SIGUSR2", "\nSIGUSR2: stopping\n"},
              {SIGXCPU, "SIGXCPU", "\nSIGXCPU: stopping\n"},
              {SIGHUP, "SIGHUP", "\nSIGHUP: stopping\n"}};

static void on_signal(int signal_number) {
    const int saved_errno = errno;
    const bool again = signal_number == SIGINT && interrupted;
    const bool is_news = !pending || (signal_number == SIGINT && !interrupted);
    // These come first: as soon as the line is written, another thread may receive the next signal.
    if (signal_number == SIGINT) interrupted = 1;
    if (!pending) pending = signal_number;
    output_hurry(); // the save does not wait for whoever reads our lines
    if (again) {
        // The default action, so that the exit status tells the shell that SIGINT ended the
        // program. The signal is blocked while its handler runs and takes effect on return.
        signal(SIGINT, SIG_DFL);
        raise(SIGINT);
    } else if (is_news) {
        for (size_t i = 0; i < sizeof caught / sizeof *caught; i++)
            if (caught[i].number == signal_number) output_report(caught[i].line);
    }
    errno = saved_errno;
}

static sigset_t all_caught(void) {
    sigset_t set;
    sigemptyset(&set);
    for (size_t i = 0; i < sizeof caught / sizeof *caught; i++) sigaddset(&set, caught[i].number);
    return set;
}

void signals_block(void) {
    const sigset_t set = all_caught();
    pthread_sigmask(SIG_BLOCK, &set, NULL);
}

void signals_install(void) {
    static _Alignas(16) char stack[128 << 10]; // the registers of AMX take 11 KB of it
    pending = interrupted = 0;
    agreed = -1;
    sigaltstack(&(stack_t){.ss_sp = stack, .ss_size = sizeof stack}, NULL);
    // The handler is one critical section: none of them interrupts it.
    const struct sigaction action = {
        .sa_handler = on_signal, .sa_mask = all_caught(), .sa_flags = SA_RESTART | SA_ONSTACK};
    for (size_t i = 0; i < sizeof caught / sizeof *caught; i++) {
        struct sigaction before; // under nohup we start with SIGHUP ignored, and it stays so
        const bool ignored =
            sigaction(caught[i].number, NULL, &before) == 0 && before.sa_handler == SIG_IGN;
        if (caught[i].number != SIGHUP || !ignored) sigaction(caught[i].number, &action, NULL);
    }

    struct sigaction ignore = {.sa_handler = SIG_IGN};
    sigemptyset(&ignore.sa_mask);
    sigaction(SIGPIPE, &ignore, NULL);
}

int signals_pending(void) {
    if (agreed >= 0) return agreed;
    return pending;
}
int signals_received(void) { return pending; }

void signals_agree(int signal_number) {
    agreed = signal_number;
    if (signal_number != 0) output_hurry();
}

const char *signals_name(int signal_number) {
    for (size_t i = 0; i < sizeof caught / sizeof *caught; i++)
        if (caught[i].number == signal_number) return caught[i].name;
    return "no signal";
}
