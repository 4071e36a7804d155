// How the processes of a run are started, and how each finds its place among them: the environments of torchrun, mpirun
// and srun, llm.c's flags, and --gpus N, which starts the processes itself. Nothing here opens a channel.
#include "llmc/base/arithmetic.h"
#include "llmc/comm/channel.h"

#include <arpa/inet.h>
#include <ctype.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/random.h>
#include <sys/wait.h>
#include <unistd.h>

enum {
    DEFAULT_PORT = 29400, // of -ps without a port
    MOST_PROCESSES = 65536,
    LAST_PORT = 65535,
    SLURM_PORTS = 20000,
    SLURM_PORT_COUNT = 10000, // below the ports that Linux gives to clients, 32768 and more
};

// The environment variable that marks the processes of --gpus, and differs from run to run.
#define COMM_RUN_ID "COMM_RUN_ID"

// --------------------------------------------------------------------------------------------- the place of a process

typedef enum { ABSENT, FOUND, WRONG } Search; // WRONG: there is a message

static const char *variable(const char *name) {
    const char *value = getenv(name);
    return value && *value ? value : NULL;
}

// A text from outside for a message: one line, not too long.
static const char *shown(const char *text, char buf[64]) {
    size_t n = 0;
    for (; text[n] && n < 63; n++) buf[n] = (char)(isprint((unsigned char)text[n]) ? text[n] : '?');
    buf[n] = '\0';
    return buf;
}

static bool parse_whole(const char *name, const char *text, int64_t min, int64_t max, int64_t *value, Error *err) {
    const size_t digits = strspn(text, "0123456789");
    *value = digits > 0 && text[digits] == '\0' ? strtoll(text, NULL, 10) : -1; // too large: INT64_MAX
    if (*value >= min && *value <= max) return true;
    char buf[64];
    return error_set(err, "%s is '%s'; expected a whole number from %lld to %lld", name, shown(text, buf),
                     (long long)min, (long long)max);
}

// The variable must be there.
static bool whole_variable(const char *name, int64_t min, int64_t max, int *value, Error *err) {
    const char *text = variable(name);
    if (!text) return error_set(err, "the environment variable %s is missing", name);
    int64_t number;
    if (!parse_whole(name, text, min, max, &number, err)) return false;
    *value = (int)number;
    return true;
}

// Size and rank, and of this machine where the launcher tells; the last two may be missing.
static bool place_read_ranks(Place *place, const char *size, const char *rank, const char *local_size,
                             const char *local_rank, Error *err) {
    if (!whole_variable(size, 1, MOST_PROCESSES, &place->size, err)) return false;
    if (!whole_variable(rank, 0, place->size - 1, &place->rank, err)) return false;
    if (local_size && variable(local_size) && !whole_variable(local_size, 1, place->size, &place->local_size, err))
        return false;
    const int local = place->local_size > 0 ? place->local_size : place->size;
    return !local_rank || !variable(local_rank) || whole_variable(local_rank, 0, local - 1, &place->local_rank, err);
}

static bool set_host(Place *place, const char *name, const char *host, size_t length, Error *err) {
    char buf[64];
    if (length == 0 || length >= sizeof place->host)
        return error_set(err, "%s is '%s'; expected the name or address of a machine", name, shown(host, buf));
    memcpy(place->host, host, length);
    place->host[length] = '\0';
    return true;
}

// HOST, HOST:PORT, [IPV6]:PORT, or an IPv6 address alone.
static bool parse_server(Place *place, const char *server, Error *err) {
    const char *colon = strrchr(server, ':'), *host = server;
    size_t length = strlen(server);
    if (server[0] == '[') {
        const char *end = strchr(++host, ']');
        char buf[64];
        if (!end || (end[1] != '\0' && end[1] != ':'))
            return error_set(err, "-ps is '%s'; expected [ADDRESS]:PORT", shown(server, buf));
        length = (size_t)(end - host);
        colon = end[1] ? end + 1 : NULL;
    } else if (colon && strchr(server, ':') == colon) {
        length = (size_t)(colon - server);
    } else {
        colon = NULL;
    }
    int64_t port = place->port;
    if (colon && !parse_whole("the port of -ps", colon + 1, 1, LAST_PORT, &port, err)) return false;
    place->port = (int)port;
    return set_host(place, "-ps", host, length, err);
}

static Search from_flags(Place *place, const CommOptions *options, Error *err) {
    const int size = options->size, rank = options->rank;
    if (size < 1 || size > MOST_PROCESSES) {
        error_set(err, "-pn is %d; expected 1 to %d", size, MOST_PROCESSES);
    } else if (rank < 0 || rank >= size) {
        error_set(err, "-pr is %d; expected 0 to %d, as -pn is %d", rank, size - 1, size);
    } else {
        place->launcher = "-pn";
        place->size = size;
        place->rank = rank;
        return FOUND;
    }
    return WRONG;
}

// https://docs.pytorch.org/docs/stable/elastic/run.html, "Environment Variables"
static Search from_torchrun(Place *place, Error *err) {
    static const char *const NAMES[] = {"MASTER_ADDR", "MASTER_PORT"};
    if (!variable("RANK") || !variable("WORLD_SIZE")) return ABSENT;
    const char *ours = variable(COMM_RUN_ID), *run_id = ours ? ours : variable("TORCHELASTIC_RUN_ID");
    place->launcher = ours ? "--gpus" : "torchrun";
    if (!place_read_ranks(place, "WORLD_SIZE", "RANK", "LOCAL_WORLD_SIZE", "LOCAL_RANK", err)) return WRONG;
    if (place->size == 1) return FOUND;
    for (int i = 0; i < 2; i++)
        if (!variable(NAMES[i])) {
            error_set(
                err, "WORLD_SIZE is %d, but %s is missing: torchrun sets RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT",
                place->size, NAMES[i]);
            return WRONG;
        }
    const char *host = variable("MASTER_ADDR"), *agent = variable("TORCHELASTIC_USE_AGENT_STORE");
    // The agent of torchrun listens on MASTER_PORT itself.
    const int shift = agent && strcmp(agent, "True") == 0;
    if (!whole_variable("MASTER_PORT", 1, LAST_PORT - shift, &place->port, err)) return WRONG;
    place->port += shift;
    if (!set_host(place, "MASTER_ADDR", host, strlen(host), err)) return WRONG;
    snprintf(place->run_id, sizeof place->run_id, "%s", run_id ? run_id : "");
    return FOUND;
}

// Open MPI; else MPICH and those built on it, whose launcher is called hydra. srun also sets PMI_SIZE. Under Slurm,
// hydra is started by srun: what srun does not set tells them apart.
static Search from_mpirun(Place *place, Error *err) {
    place->launcher = "mpirun";
    place->mpi = true;
    bool read;
    if (variable("OMPI_COMM_WORLD_SIZE") && variable("OMPI_COMM_WORLD_RANK")) {
        read = place_read_ranks(place, "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE",
                                "OMPI_COMM_WORLD_LOCAL_RANK", err);
    } else if (variable("PMI_SIZE") && variable("PMI_RANK") &&
               (variable("MPI_LOCALNRANKS") || !variable("SLURM_STEP_NUM_TASKS"))) {
        read = place_read_ranks(place, "PMI_SIZE", "PMI_RANK", "MPI_LOCALNRANKS", "MPI_LOCALRANKID", err);
    } else {
        return ABSENT;
    }
    return read ? FOUND : WRONG;
}

// The first name of a list such as "n[01-04,7],x": there n01. False if it is no such list.
static bool first_of_nodes(const char *list, char *host, size_t capacity) {
    size_t n = 0;
    bool wanted = true; // of the text in brackets: only what precedes its first '-' or ','
    bool in_brackets = false;
    for (; *list && (in_brackets || *list != ','); list++) {
        if (*list == '[' && !in_brackets) {
            in_brackets = true;
        } else if (*list == ']' && in_brackets) {
            in_brackets = false;
            wanted = true;
        } else if (in_brackets && (*list == '-' || *list == ',')) {
            wanted = false;
        } else if (!isalnum((unsigned char)*list) && !strchr("-._", *list)) {
            return false;
        } else if (wanted) {
            if (n + 1 >= capacity) return false;
            host[n++] = *list;
        }
    }
    host[n] = '\0';
    return n > 0 && !in_brackets;
}

// srun alone sets SLURM_STEP_NUM_TASKS; in the script of a batch job there is SLURM_NTASKS, but only one process.
// https://slurm.schedmd.com/srun.html, "OUTPUT ENVIRONMENT VARIABLES"
static Search from_srun(Place *place, Error *err) {
    if (!variable("SLURM_STEP_NUM_TASKS")) return ABSENT;
    place->launcher = "srun";
    if (!place_read_ranks(place, "SLURM_STEP_NUM_TASKS", "SLURM_PROCID", NULL, "SLURM_LOCALID", err)) return WRONG;
    if (place->size == 1) return FOUND;
    // srun --mpi=pmix, or pmi2
    place->mpi = channel_mpi_is_built() && (variable("PMIX_RANK") || variable("PMI_RANK"));
    static const char *const NAMES[] = {"SLURM_JOB_ID", "SLURM_STEP_ID"};
    int64_t numbers[2];
    for (int i = 0; i < 2; i++) {
        const char *text = variable(NAMES[i]);
        if (!text) {
            error_set(err, "the environment variable %s is missing", NAMES[i]);
            return WRONG;
        }
        if (!parse_whole(NAMES[i], text, 0, UINT32_MAX, &numbers[i], err)) return WRONG;
    }
    // Jobs that share a machine should not share a port.
    place->port = SLURM_PORTS + (int)((numbers[0] * 31 + numbers[1]) % SLURM_PORT_COUNT);
    snprintf(place->run_id, sizeof place->run_id, "%lld.%lld", (long long)numbers[0], (long long)numbers[1]);
    const char *nodes = variable("SLURM_STEP_NODELIST");
    if (nodes && first_of_nodes(nodes, place->host, sizeof place->host)) return FOUND;
    char buf[64];
    error_set(err, "SLURM_STEP_NODELIST is '%s'; expected names such as n1,n2 or n[01-04,7]",
              shown(nodes ? nodes : "", buf));
    return WRONG;
}

// The first launcher that started several processes. One may have started the other: srun starts a torchrun on each
// machine, so the innermost comes first. One that started this process alone does not count, nor do the variables that
// many containers and Slurm's interactive shells set: --gpus N works there.
static Search from_environment(Place *place, Error *err) {
    static Search (*const SOURCES[])(Place *, Error *) = {from_torchrun, from_mpirun, from_srun};
    for (size_t i = 0; i < sizeof SOURCES / sizeof SOURCES[0]; i++) {
        Place found = *place;
        const Search search = SOURCES[i](&found, err);
        if (search == WRONG) return WRONG;
        if (search == FOUND && found.size > 1) {
            *place = found;
            return FOUND;
        }
    }
    return ABSENT;
}

// What -pi and -ps say to the place that was found.
static bool choose_method(Place *place, const char *method, const char *server, Error *err) {
    const bool wants_mpi = strcmp(method, "mpi") == 0, wants_tcp = strcmp(method, "tcp") == 0;
    if (wants_mpi && (strcmp(place->launcher, "torchrun") == 0 || strcmp(place->launcher, "--gpus") == 0))
        return error_set(err, "-pi mpi: %s starts processes that connect over TCP; leave -pi out, or start by mpirun",
                         place->launcher);
    if (wants_mpi) place->mpi = true;
    if (wants_tcp) place->mpi = false;
    if (place->mpi && !channel_mpi_is_built())
        return error_set(err,
                         "%s: this program was built without MPI; install libopenmpi-dev and build again, or start by "
                         "--gpus N, torchrun or srun",
                         place->launcher);
    if (place->mpi) return true;
    if (*server && !parse_server(place, server, err)) return false;
    return place->host[0] ||
           error_set(err, "-pi tcp: where process 0 runs is not said; give -ps HOST or -ps HOST:PORT");
}

bool comm_find_place(Place *place, const CommOptions *options, Error *err) {
    *place = (Place){.launcher = "", .size = 1, .local_rank = -1, .local_size = -1, .port = DEFAULT_PORT};
    const char *method = options->method ? options->method : "", *server = options->server ? options->server : "";
    char buf[64];
    if (*method && strcmp(method, "mpi") != 0 && strcmp(method, "tcp") != 0)
        return error_set(err, "-pi %s is not supported; use -pi tcp with -ps HOST:PORT, or -pi mpi",
                         shown(method, buf));

    const bool has_server = *server && strcmp(method, "mpi") != 0;
    const bool by_flags = options->size > 1 || options->size < 0;
    Search search = by_flags && has_server ? from_flags(place, options, err) : from_environment(place, err);
    // -pi mpi: an MPI whose variables are not known here
    if (search == ABSENT && by_flags && *method) search = from_flags(place, options, err);
    if (search == WRONG) return false;
    if (search == ABSENT && by_flags)
        return error_set(err,
                         "-pn %d: no launcher has started these processes; start them by mpirun, torchrun, srun or "
                         "--gpus %d, or add -pi tcp -pr RANK -ps HOST:PORT",
                         options->size, options->size);
    if (by_flags && options->size != place->size)
        return error_set(err, "-pn is %d, but %s has started %d; leave -pn out", options->size, place->launcher,
                         place->size);
    if (search == FOUND && options->gpus > 0 && options->gpus != place->size)
        return error_set(err, "--gpus is %d, but %s has started %d; leave --gpus out", options->gpus, place->launcher,
                         place->size);
    if (place->size == 1) {
        *place = (Place){.launcher = "", .size = 1, .local_size = 1};
        return true;
    }
    if (!choose_method(place, method, server, err)) return false;

    const int per_node = options->per_node;
    if (per_node < 0) return error_set(err, "-pg is %d; expected the number of processes on each machine", per_node);
    if (per_node > 0 && place->local_rank < 0) {
        const int before = place->rank / per_node * per_node; // the last machine may have fewer
        place->local_rank = place->rank - before;
        place->local_size = (int)min_i64(per_node, place->size - before);
    }
    return true;
}

// -------------------------------------------------------------------------------------------------------------- --gpus

// Until the others get SIGTERM after one failed: a failure that all see at once ends them without it, and process 0
// reports it.
static const double NOTICE_SECONDS = 2;

// From SIGTERM to SIGKILL, for the processes that are left after one failed. COMM_STOP_SECONDS in the environment:
// another limit, in whole seconds.
enum { STOP_SECONDS = 30 };

typedef struct {
    pid_t *pids; // 0: has ended
    int count, running;
    int result; // so far
    double stop_seconds;
    double stop_after, kill_after; // when the others get SIGTERM, SIGKILL; 0: not yet, or no more
} Children;

static void signal_all(const Children *c, int number) {
    for (int i = 0; i < c->count; i++)
        if (c->pids[i] > 0) kill(c->pids[i], number);
}

// A socket that listens at a free port of 127.0.0.1; -1 with errno.
static int listen_anywhere(int *port) {
    const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t length = sizeof address;
    if (fd >= 0 && bind(fd, (struct sockaddr *)&address, length) == 0 && listen(fd, SOMAXCONN) == 0 &&
        getsockname(fd, (struct sockaddr *)&address, &length) == 0) {
        *port = ntohs(address.sin_port);
        return fd;
    }
    const int error = errno;
    if (fd >= 0) close(fd);
    errno = error;
    return -1;
}

static void set_number(const char *name, int value) {
    char text[16];
    snprintf(text, sizeof text, "%d", value);
    setenv(name, text, 1);
}

// In the new process; does not return.
__attribute__((noreturn)) static void become(int rank, int count, int listener, int port, const char *run_id,
                                             pid_t parent, const sigset_t *mask, char **argv) {
    // The launcher may be ended by SIGKILL, which it cannot pass on.
    prctl(PR_SET_PDEATHSIG, SIGTERM);
    if (getppid() != parent) _exit(EXIT_RUN_FAILED);
    // A terminal sends Ctrl-C to its whole process group. There it would arrive twice, once passed on by the launcher,
    // and the second SIGINT ends a run without saving. A group of its own hears of signals from the launcher alone. It
    // cannot read from the terminal.
    setpgid(0, 0);
    const int null = open("/dev/null", O_RDONLY | O_CLOEXEC);
    if (null >= 0) dup2(null, STDIN_FILENO);

    set_number("RANK", rank);
    set_number("LOCAL_RANK", rank);
    set_number("WORLD_SIZE", count);
    set_number("LOCAL_WORLD_SIZE", count);
    setenv("MASTER_ADDR", "127.0.0.1", 1);
    set_number("MASTER_PORT", port);
    setenv(COMM_RUN_ID, run_id, 1);
    unsetenv("TORCHELASTIC_USE_AGENT_STORE");
    if (rank == 0) {
        fcntl(listener, F_SETFD, 0);
        set_number(COMM_LISTENER, listener);
    }
    sigprocmask(SIG_SETMASK, mask, NULL);
    execv("/proc/self/exe", argv);
    fprintf(stderr, "%s: cannot start itself: %s\n", argv[0], strerror(errno));
    _exit(EXIT_RUN_FAILED);
}

// Takes note of the processes that have ended. The first that failed has its line: it may have been ended by a signal,
// and its own message, if there is one, does not name the process.
static void reap(Children *c, const char *program) {
    int status;
    for (pid_t pid; (pid = waitpid(-1, &status, WNOHANG)) > 0;) {
        int rank = 0;
        while (rank < c->count && c->pids[rank] != pid) rank++;
        if (rank == c->count) continue; // not one of ours: the program had a child before
        c->pids[rank] = 0;
        c->running--;
        const int code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
        if (code == EXIT_OK) continue;
        // A run that stopped as it was asked to is no failure: the others are still saving.
        if (code == EXIT_INTERRUPTED) {
            if (c->result == EXIT_OK) c->result = code;
            continue;
        }
        if (c->kill_after > 0) continue;
        c->result = code;
        c->stop_after = now_seconds() + NOTICE_SECONDS;
        c->kill_after = c->stop_after + c->stop_seconds;
        const char *rest = c->running > 0 ? "; ending the others" : "";
        if (code == EXIT_BAD_INPUT) continue; // all have found out together, and process 0 has said what
        if (WIFEXITED(status))
            fprintf(stderr, "%s: process %d ended with exit code %d%s\n", program, rank, code, rest);
        else
            fprintf(stderr, "%s: process %d ended by SIG%s%s\n", program, rank, sigabbrev_np(WTERMSIG(status)), rest);
    }
}

// Until all have ended. `waited` are blocked.
static void launch_await(Children *c, const sigset_t *waited, const char *program) {
    while (c->running > 0) {
        const double now = now_seconds();
        if (c->stop_after > 0 && now >= c->stop_after) {
            signal_all(c, SIGTERM);
            c->stop_after = 0;
        }
        if (c->kill_after > 0 && now >= c->kill_after) signal_all(c, SIGKILL);
        // A second at most: no signal tells that the time is over, and one SIGCHLD may stand for several processes.
        const struct timespec second = {.tv_sec = 1};
        const int number = sigtimedwait(waited, NULL, &second);
        if (number == SIGTSTP) { // Ctrl-Z, then fg
            signal_all(c, SIGSTOP);
            raise(SIGSTOP);
            signal_all(c, SIGCONT);
        } else if (number > 0 && number != SIGCHLD) {
            signal_all(c, number);
        }
        reap(c, program);
    }
}

int comm_launch(int count, char **argv) {
    REQUIRE(count >= 1 && count <= MOST_PROCESSES, "comm_launch: %d processes", count);
    int64_t stop_seconds = STOP_SECONDS;
    const char *limit = variable("COMM_STOP_SECONDS");
    Error wrong;
    if (limit && !parse_whole("COMM_STOP_SECONDS", limit, 1, 86400, &stop_seconds, &wrong)) {
        fprintf(stderr, "%s: %s\n", argv[0], wrong.text);
        return EXIT_BAD_INPUT;
    }
    static const int WAITED[] = {SIGINT, SIGTERM, SIGUSR1, SIGTSTP, SIGCHLD, SIGHUP};
    sigset_t waited, mask;
    struct sigaction was[sizeof WAITED / sizeof WAITED[0]];
    sigemptyset(&waited);
    for (size_t i = 0; i < sizeof WAITED / sizeof WAITED[0]; i++) {
        sigaction(WAITED[i], NULL, &was[i]);
        if (WAITED[i] == SIGHUP && was[i].sa_handler == SIG_IGN) continue; // nohup: for the processes, too
        signal(WAITED[i], SIG_DFL); // one that is ignored, as in a shell's background job, could not be waited for
        sigaddset(&waited, WAITED[i]);
    }
    sigprocmask(SIG_BLOCK, &waited, &mask);

    Children c = {.pids = calloc((size_t)count, sizeof *c.pids), .count = count, .stop_seconds = (double)stop_seconds};
    REQUIRE_MEMORY(c.pids, "the list of %d processes", count);
    unsigned char random[16];
    char run_id[2 * sizeof random + 1];
    int port = 0;
    const int listener = listen_anywhere(&port);
    if (listener < 0 || getrandom(random, sizeof random, 0) != (ssize_t)sizeof random) {
        fprintf(stderr, "%s: --gpus %d: cannot listen on 127.0.0.1: %s\n", argv[0], count, strerror(errno));
        c.result = EXIT_RUN_FAILED;
        count = 0;
    }
    for (size_t i = 0; i < sizeof random; i++) snprintf(run_id + 2 * i, 3, "%02x", random[i]);

    fflush(NULL); // else each process would print it again
    const pid_t parent = getpid();
    for (int i = 0; i < count; i++) {
        const pid_t pid = fork();
        if (pid == 0) become(i, count, listener, port, run_id, parent, &mask, argv);
        if (pid < 0) {
            fprintf(stderr, "%s: --gpus %d: cannot start process %d: %s\n", argv[0], count, i, strerror(errno));
            c.result = EXIT_RUN_FAILED;
            c.kill_after = now_seconds() + c.stop_seconds;
            signal_all(&c, SIGTERM);
            break;
        }
        c.pids[i] = pid;
        c.running++;
    }
    if (listener >= 0) close(listener); // process 0's now: when that ends, the others learn it
    launch_await(&c, &waited, argv[0]);

    free(c.pids);
    for (size_t i = 0; i < sizeof WAITED / sizeof WAITED[0]; i++) sigaction(WAITED[i], &was[i], NULL);
    sigprocmask(SIG_SETMASK, &mask, NULL);
    return c.result;
}
