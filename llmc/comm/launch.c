// The launcher of --gpus, see launch.h. The processes find each other by torchrun's variables.
#include "llmc/comm/launch.h"

#include "llmc/base/clock.h"
#include "llmc/base/format.h"
#include "llmc/comm/place.h"
#include "llmc/comm/socket.h"

#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/random.h>
#include <sys/wait.h>
#include <unistd.h>

// Until the others get SIGTERM after one failed: a failure that all see at once ends them without
// it, and process 0 reports it.
static const double NOTICE_SECONDS = 2;

// From SIGTERM to SIGKILL, for the processes that are left after one failed. COMM_STOP_SECONDS in
// the environment: another limit.
enum { STOP_SECONDS = 30 };

typedef struct {
    pid_t *pids; // 0: has ended
    int count, running;
    int result; // so far
    double stop_seconds;
    double stop_after, kill_after; // when the others get SIGTERM, SIGKILL; 0: not yet, or no more
} Children;

static void launch_signal(const Children *c, int number) {
    for (int i = 0; i < c->count; i++)
        if (c->pids[i] > 0) kill(c->pids[i], number);
}

static void launch_set(const char *name, int value) {
    char text[16];
    snprintf(text, sizeof text, "%d", value);
    setenv(name, text, 1);
}

// The facts that all processes of a run share.
typedef struct {
    int count, port, listener; // the socket at which process 0 meets the others
    char run_id[33];
    pid_t parent;
    sigset_t mask; // of signals, before the launcher blocked some
} LaunchedRun;

// In the new process.
__attribute__((noreturn)) static void launch_become(int rank, const LaunchedRun *run, char **argv) {
    // The launcher may be ended by SIGKILL, which it cannot pass on.
    prctl(PR_SET_PDEATHSIG, SIGTERM);
    if (getppid() != run->parent) _exit(EXIT_RUN_FAILED);
    // A terminal sends Ctrl-C to its whole process group. There it would arrive twice, once passed
    // on by the launcher, and the second SIGINT ends a run without saving. A group of its own hears
    // of signals from the launcher alone. It cannot read from the terminal.
    setpgid(0, 0);
    const int null = open("/dev/null", O_RDONLY | O_CLOEXEC);
    if (null >= 0) dup2(null, STDIN_FILENO);

    launch_set("RANK", rank);
    launch_set("LOCAL_RANK", rank);
    launch_set("WORLD_SIZE", run->count);
    launch_set("LOCAL_WORLD_SIZE", run->count);
    setenv("MASTER_ADDR", "127.0.0.1", 1);
    launch_set("MASTER_PORT", run->port);
    setenv(COMM_RUN_ID, run->run_id, 1);
    setenv(COMM_LAUNCHER, "--gpus", 1);
    unsetenv("TORCHELASTIC_USE_AGENT_STORE");
    if (rank == 0) {
        fcntl(run->listener, F_SETFD, 0);
        launch_set(COMM_LISTENER, run->listener);
    }
    sigprocmask(SIG_SETMASK, &run->mask, NULL);
    execv("/proc/self/exe", argv);
    fprintf(stderr, "%s: cannot start itself: %s\n", argv[0], strerror(errno));
    _exit(EXIT_RUN_FAILED);
}

// Until all have ended. `waited` are blocked.
static void launch_await(Children *c, const sigset_t *waited, const char *program) {
    while (c->running > 0) {
        const double now = now_seconds();
        if (c->stop_after > 0 && now >= c->stop_after) {
            launch_signal(c, SIGTERM);
            c->stop_after = 0;
        }
        if (c->kill_after > 0 && now >= c->kill_after) launch_signal(c, SIGKILL);

        // A second at most: no signal tells that the time is over, and one SIGCHLD may stand for
        // several processes.
        const int number = sigtimedwait(waited, NULL, &(struct timespec){.tv_sec = 1});
        if (number == SIGTSTP) { // Ctrl-Z, then fg
            launch_signal(c, SIGSTOP);
            raise(SIGSTOP);
            launch_signal(c, SIGCONT);
        } else if (number > 0 && number != SIGCHLD) {
            launch_signal(c, number);
        }

        int status;
        for (pid_t pid; (pid = waitpid(-1, &status, WNOHANG)) > 0;) {
            int rank = 0;
            while (rank < c->count && c->pids[rank] != pid) rank++;
            if (rank == c->count) continue; // not one of ours: the program had a child before
            c->pids[rank] = 0;
            c->running--;

            const int code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
            // A run that stopped as it was asked to is no failure: the others are still saving.
            if (code == EXIT_INTERRUPTED && c->result == EXIT_OK) c->result = code;
            if (code == EXIT_OK || code == EXIT_INTERRUPTED || c->kill_after > 0) continue;
            c->result = code;
            c->stop_after = now_seconds() + NOTICE_SECONDS;
            c->kill_after = c->stop_after + c->stop_seconds;

            // all have found out together, and process 0 has said what
            if (code == EXIT_BAD_INPUT) continue;
            // It may have been ended by a signal, and its own message, if there is one, does not
            // name the process.
            char how[32];
            if (WIFEXITED(status))
                snprintf(how, sizeof how, "with exit code %d", code);
            else
                snprintf(how, sizeof how, "by SIG%s", sigabbrev_np(WTERMSIG(status)));
            fprintf(stderr, "%s: process %d ended %s%s\n", program, rank, how,
                    c->running > 0 ? "; ending the others" : "");
        }
    }
}

int launch_processes(int count, char **argv) {
    Children c = {.pids = calloc((size_t)count, sizeof *c.pids), .count = count};
    LaunchedRun run = {.count = count, .parent = getpid()};
    unsigned char random[sizeof run.run_id / 2];
    Error err = {""};
    REQUIRE_MEMORY(c.pids, "the list of %d processes", count);
    if (!place_read_seconds("COMM_STOP_SECONDS", STOP_SECONDS, &c.stop_seconds, &err)) {
        fprintf(stderr, "%s: %s\n", argv[0], err.text);
        return EXIT_BAD_INPUT;
    }
    run.listener = socket_listen("127.0.0.1", 0, &err);
    struct sockaddr_in address = {.sin_port = 0};
    getsockname(run.listener, (struct sockaddr *)&address, &(socklen_t){sizeof address});
    run.port = ntohs(address.sin_port);
    if (run.listener < 0 || getrandom(random, sizeof random, 0) != (ssize_t)sizeof random) {
        fprintf(stderr, "%s: --gpus %d: cannot listen on 127.0.0.1: %s\n", argv[0], count,
                err.text);
        return EXIT_RUN_FAILED;
    }
    for (size_t i = 0; i < sizeof random; i++) snprintf(run.run_id + 2 * i, 3, "%02x", random[i]);

    static const int WAITED[] = {SIGINT, SIGTERM, SIGUSR1, SIGTSTP, SIGCHLD, SIGHUP};
    sigset_t waited;
    sigemptyset(&waited);
    for (size_t i = 0; i < sizeof WAITED / sizeof WAITED[0]; i++) {
        // One that is ignored, as in a shell's background job, could not be waited for.
        // nohup: for the processes, too
        if (signal(WAITED[i], SIG_DFL) == SIG_IGN && WAITED[i] == SIGHUP)
            signal(SIGHUP, SIG_IGN);
        else
            sigaddset(&waited, WAITED[i]);
    }
    sigprocmask(SIG_BLOCK, &waited, &run.mask);

    fflush(NULL); // else each process would print it again
    for (int i = 0; i < count; i++) {
        const pid_t pid = fork();
        if (pid == 0) launch_become(i, &run, argv);
        if (pid < 0) {
            fprintf(stderr, "%s: --gpus %d: cannot start process %d: %s\n", argv[0], count, i,
                    strerror(errno));
            c.result = EXIT_RUN_FAILED;
            c.kill_after = now_seconds() + c.stop_seconds;
            launch_signal(&c, SIGTERM);
            break;
        }
        c.pids[i] = pid;
        c.running++;
    }
    close(run.listener); // process 0's now: when that ends, the others learn it
    launch_await(&c, &waited, argv[0]);
    free(c.pids);
    return c.result;
}
