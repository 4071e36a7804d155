// How processes find their place, from made-up environments and flags, and --gpus: this program
// starts itself.
#include "llmc/comm/channel_tcp.h"
#include "llmc/comm/launch.h"
#include "llmc/comm/place.h"
#include "test/fixture.h"

#include <errno.h>

static Error err;

extern char **environ;

// Removes what the machine's own launchers and earlier cases have set.
static void forget_launchers(void) {
    static const char *const BEGINNINGS[] = {
        "RANK=", "WORLD_SIZE=", "LOCAL_", "MASTER_", "TORCHELASTIC_", "OMPI_COMM_WORLD_",
        "PMI",   "MPI_",        "SLURM_", "COMM_"};

    for (bool found = true; found;) {
        found = false;
        for (char **e = environ; *e && !found; e++)
            for (size_t i = 0; i < sizeof BEGINNINGS / sizeof BEGINNINGS[0] && !found; i++)
                if (strncmp(*e, BEGINNINGS[i], strlen(BEGINNINGS[i])) == 0) {
                    char name[256];
                    snprintf(name, sizeof name, "%.*s", (int)strcspn(*e, "="), *e);
                    found = unsetenv(name) == 0; // moves the others
                }
    }
}

static int setup(void **state) {
    forget_launchers();
    return tmp_setup(state);
}

TestFixture test_each = {setup, tmp_teardown};

// -------------------------------------------------------------------------- the place of a process

typedef struct {
    const char *environment; // NAME=VALUE, separated by spaces
    CommOptions options;
    Place place;         // expected
    const char *message; // expected instead
    bool has_mpi;
} Case;

static void set_environment(const char *text) {
    forget_launchers();
    char *copy = strdup(text), *rest = copy;
    for (char *item; (item = strsep(&rest, " "));) {
        char *value = strchr(item, '=');
        if (!value) continue;
        *value++ = '\0';
        setenv(item, value, 1);
    }
    free(copy);
}

static void check_cases(const Case *cases, size_t count) {
    for (size_t i = 0; i < count; i++) {
        const Case *c = &cases[i];
        const Place *e = &c->place;
        Place p;

        set_environment(c->environment);
        err.text[0] = '\0';
        const bool ok = place_find(&p, &c->options, c->has_mpi, &err);

        if (c->message) {
            if (ok || !strstr(err.text, c->message))
                fail_msg("%s: '%s' does not say '%s'", c->environment, ok ? "success" : err.text,
                         c->message);
            continue;
        }
        if (!ok) fail_msg("%s: %s", c->environment, err.text);

        char want[512], got[512];
        const Place *const places[] = {e, &p};
        char *const texts[] = {want, got};
        for (int k = 0; k < 2; k++) {
            const Place *q = places[k];
            snprintf(texts[k], sizeof want,
                     "%s rank %d of %d, local %d of %d, %s %.99s %d, run '%s'", q->launcher,
                     q->rank, q->size, q->local_rank, q->local_size, q->mpi ? "MPI" : "TCP",
                     q->mpi ? "" : q->host, q->mpi ? 0 : q->port, q->run_id);
        }
        if (strcmp(want, got) != 0) fail_msg("%s:\n%s\nexpected:\n%s", c->environment, got, want);
    }
}

#define CHECK(...)                                                                                 \
    const Case cases[] = {__VA_ARGS__};                                                            \
    check_cases(cases, sizeof cases / sizeof cases[0])

#define ALONE ((Place){"", 0, 1, 0, 1, false, "", 0, ""})

#define TORCHRUN "RANK=2 WORLD_SIZE=4 MASTER_ADDR=n1 MASTER_PORT=29500 "
#define OPEN_MPI "OMPI_COMM_WORLD_SIZE=4 OMPI_COMM_WORLD_RANK=3 "
#define SLURM    "SLURM_JOB_ID=1000 SLURM_STEP_ID=2 SLURM_PROCID=1 SLURM_STEP_NUM_TASKS=4 "

// clang-format off
TEST(without_a_launcher_a_process_is_alone) {
    CHECK(
        {"", {0}, ALONE, NULL, false},
        {"", {.size = 1, .method = "mpi", .server = ""}, ALONE, NULL, false}, // llm.c's defaults
        {"", {.gpus = 4}, ALONE, NULL, false},                                // main starts them
        {"RANK= WORLD_SIZE=", {0}, ALONE, NULL, false},
        {"WORLD_SIZE=4", {0}, ALONE, NULL, false},
        {"RANK=0 WORLD_SIZE=1", {0}, ALONE, NULL, false},
        {"SLURM_NTASKS=4 SLURM_PROCID=0 SLURM_JOB_ID=7", {0}, ALONE, NULL, false}, // the script of a batch job
        {"SLURM_STEP_NUM_TASKS=1 SLURM_PROCID=0", {0}, ALONE, NULL, false},
        {"SLURM_STEP_NUM_TASKS=1 SLURM_PROCID=0", {.gpus = 4}, ALONE, NULL, false},
        {"RANK=0 WORLD_SIZE=1 MASTER_ADDR=n1 MASTER_PORT=1", {.gpus = 4}, ALONE, NULL, false},
        {"OMPI_COMM_WORLD_SIZE=1 OMPI_COMM_WORLD_RANK=0", {0}, ALONE, NULL, false});
}

TEST(flags_say_the_place) {
    CHECK(
        {"", {.size = 4, .rank = 2, .method = "tcp", .server = "n1"}, {"-pn", 2, 4, -1, -1, false, "n1", 29400, ""}, NULL, false},
        {"", {.size = 4, .rank = 2, .method = "", .server = "n1:77"}, {"-pn", 2, 4, -1, -1, false, "n1", 77, ""}, NULL, false},
        {"", {.size = 4, .rank = 2, .server = "[fe80::1]:77"}, {"-pn", 2, 4, -1, -1, false, "fe80::1", 77, ""}, NULL, false},
        {"", {.size = 4, .rank = 2, .server = "fe80::1"}, {"-pn", 2, 4, -1, -1, false, "fe80::1", 29400, ""}, NULL, false},
        {"COMM_RUN_ID=abc", {.size = 4, .rank = 2, .server = "n1"}, {"-pn", 2, 4, -1, -1, false, "n1", 29400, "abc"}, NULL, false},
        // the last machine of 8 + 2
        {"", {.size = 10, .rank = 9, .per_node = 8, .method = "tcp", .server = "n1"}, {"-pn", 9, 10, 1, 2, false, "n1", 29400, ""}, NULL, false},
        {"", {.size = 10, .rank = 7, .per_node = 8, .method = "tcp", .server = "n1"}, {"-pn", 7, 10, 7, 8, false, "n1", 29400, ""}, NULL, false},
        // before the environment
        {TORCHRUN, {.size = 3, .rank = 1, .method = "tcp", .server = "h"}, {"-pn", 1, 3, -1, -1, false, "h", 29400, ""}, NULL, false},
        // an MPI whose variables are unknown
        {"", {.size = 4, .rank = 2, .method = "mpi"}, {"-pn", 2, 4, -1, -1, true, "", 0, ""}, NULL, true});
}

TEST(flags_that_are_wrong_are_named) {
    CHECK(
        {"", {.method = "fs"}, ALONE, "-pi fs is not supported; use -pi tcp with -ps HOST:PORT, or -pi mpi", false},
        {"", {.method = "\x1B[2J"}, ALONE, "-pi \\x1B[2J is not supported", false},
        {"", {.size = 4, .rank = 4, .method = "tcp", .server = "n1"}, ALONE, "-pr is 4; expected 0 to 3, as -pn is 4", false},
        {"", {.size = 4, .method = "tcp"}, ALONE, "give -ps HOST or -ps HOST:PORT", false},
        {"", {.size = 4, .server = ":77"}, ALONE, "-ps is ':77'; expected the name or address", false},
        {"", {.size = 4, .server = "n1:0"}, ALONE, "the port of -ps is '0'; expected a whole number from 1 to 65535", false},
        {"", {.size = 4, .server = "n1:"}, ALONE, "the port of -ps is ''", false},
        {"", {.size = 4, .server = "[::1"}, ALONE, "-ps is '[::1'", false},
        {"", {.size = 4}, ALONE, "-pn 4: no launcher has started these processes", false},
        {"", {.size = 4, .method = "mpi"}, ALONE, "this program was built without MPI", false},
        {TORCHRUN, {.size = 8}, ALONE, "-pn is 8, but torchrun has started 4", false},
        {TORCHRUN, {.method = "mpi"}, ALONE, "torchrun: this program was built without MPI", false});
}

TEST(torchrun_says_the_place) {
    CHECK(
        {TORCHRUN, {0}, {"torchrun", 2, 4, -1, -1, false, "n1", 29500, ""}, NULL, false},
        // as torchrun of torch 2.15 sets them
        {TORCHRUN "LOCAL_RANK=0 LOCAL_WORLD_SIZE=2 TORCHELASTIC_RUN_ID=none TORCHELASTIC_USE_AGENT_STORE=True", {0}, {"torchrun", 2, 4, 0, 2, false, "n1", 29501, "none"}, NULL, false},
        {TORCHRUN "TORCHELASTIC_USE_AGENT_STORE=False", {0}, {"torchrun", 2, 4, -1, -1, false, "n1", 29500, ""}, NULL, false},
        {TORCHRUN, {.gpus = 4, .size = 4, .method = "tcp"}, {"torchrun", 2, 4, -1, -1, false, "n1", 29500, ""}, NULL, false},
        {TORCHRUN, {.per_node = 2}, {"torchrun", 2, 4, 0, 2, false, "n1", 29500, ""}, NULL, false},
        {TORCHRUN, {.server = "n2:99"}, {"torchrun", 2, 4, -1, -1, false, "n2", 99, ""}, NULL, false},
        {TORCHRUN "COMM_RUN_ID=abc TORCHELASTIC_RUN_ID=none", {0}, {"torchrun", 2, 4, -1, -1, false, "n1", 29500, "abc"}, NULL, false},
        {TORCHRUN "COMM_LAUNCHER=--gpus COMM_RUN_ID=abc", {0}, {"--gpus", 2, 4, -1, -1, false, "n1", 29500, "abc"}, NULL, false},
        // started by srun, once on each machine; a variable that a container has set does not hide mpirun
        {TORCHRUN SLURM, {0}, {"torchrun", 2, 4, -1, -1, false, "n1", 29500, ""}, NULL, true},
        {"RANK=0 WORLD_SIZE=1 " OPEN_MPI, {0}, {"mpirun", 3, 4, -1, -1, true, "", 0, ""}, NULL, true});
}

TEST(wrong_variables_of_torchrun_are_named) {
    CHECK(
        {"RANK=0 WORLD_SIZE=2", {0}, ALONE, "torchrun: the environment variable MASTER_ADDR is missing", false},
        {"RANK=0 WORLD_SIZE=2 MASTER_ADDR=n1", {0}, ALONE, "torchrun: the environment variable MASTER_PORT is missing", false},
        {"RANK=2 WORLD_SIZE=2", {0}, ALONE, "RANK is '2'; expected a whole number from 0 to 1", false},
        {"RANK=-1 WORLD_SIZE=2", {0}, ALONE, "RANK is '-1'", false},
        {"RANK=0x1 WORLD_SIZE=2", {0}, ALONE, "RANK is '0x1'", false},
        {"RANK=0 WORLD_SIZE=0", {0}, ALONE, "WORLD_SIZE is '0'; expected a whole number from 1 to 65536", false},
        {"RANK=0 WORLD_SIZE=65537", {0}, ALONE, "WORLD_SIZE is '65537'", false},
        {"RANK=0 WORLD_SIZE=18446744073709551618", {0}, ALONE, "WORLD_SIZE is '18446744073709551618'", false},
        {"RANK=0 WORLD_SIZE=2\n", {0}, ALONE, "WORLD_SIZE is '2\\x0A'", false},
        {"RANK=0 WORLD_SIZE=2e0", {0}, ALONE, "WORLD_SIZE is '2e0'", false},
        {TORCHRUN "LOCAL_RANK=2 LOCAL_WORLD_SIZE=2", {0}, ALONE, "LOCAL_RANK is '2'; expected a whole number from 0 to 1", false},
        {TORCHRUN "LOCAL_WORLD_SIZE=5", {0}, ALONE, "LOCAL_WORLD_SIZE is '5'", false},
        {TORCHRUN "MASTER_PORT=65536", {0}, ALONE, "MASTER_PORT is '65536'; expected a whole number from 1 to 65535", false},
        {TORCHRUN "MASTER_PORT=65535 TORCHELASTIC_USE_AGENT_STORE=True", {0}, ALONE, "MASTER_PORT is '65535'; expected a whole number from 1 to 65534", false},
        {TORCHRUN, {.gpus = 8}, ALONE, "--gpus is 8, but torchrun has started 4", false},
        {TORCHRUN, {.gpus = 1}, ALONE, "--gpus is 1, but torchrun has started 4", false});
}

TEST(a_host_name_that_is_too_long_is_refused) {
    char text[1000];
    snprintf(text, sizeof text, "RANK=0 WORLD_SIZE=2 MASTER_PORT=1 MASTER_ADDR=%0256d", 0);
    CHECK({text, {0}, ALONE, "MASTER_ADDR is '000", false});
    snprintf(text, sizeof text, TORCHRUN "TORCHELASTIC_RUN_ID=%0500d", 7); // cut, in all processes alike
    const Case cut[] = {{text, {0}, {"torchrun", 2, 4, -1, -1, false, "n1", 29500, "000000000000000000000000000000000000000000000000000000000000000"}, NULL, false}};
    check_cases(cut, 1);
}

TEST(mpirun_says_the_place) {
    CHECK(
        {OPEN_MPI "OMPI_COMM_WORLD_LOCAL_RANK=1 OMPI_COMM_WORLD_LOCAL_SIZE=2", {0}, {"mpirun", 3, 4, 1, 2, true, "", 0, ""}, NULL, true},
        {"PMI_SIZE=4 PMI_RANK=3 MPI_LOCALRANKID=1 MPI_LOCALNRANKS=2", {0}, {"mpirun", 3, 4, 1, 2, true, "", 0, ""}, NULL, true},
        // MPICH starts its helpers by srun, one on each machine
        {"PMI_SIZE=4 PMI_RANK=3 MPI_LOCALRANKID=1 MPI_LOCALNRANKS=2 SLURM_STEP_NUM_TASKS=2", {0}, {"mpirun", 3, 4, 1, 2, true, "", 0, ""}, NULL, true},
        {OPEN_MPI, {.method = "tcp", .server = "n1"}, {"mpirun", 3, 4, -1, -1, false, "n1", 29400, ""}, NULL, false},
        {OPEN_MPI, {.size = 4, .method = "mpi"}, {"mpirun", 3, 4, -1, -1, true, "", 0, ""}, NULL, true},
        {OPEN_MPI, {0}, ALONE, "mpirun: this program was built without MPI; install libopenmpi-dev and openmpi-bin and run make again; on GPUs --gpus N, torchrun and srun do without it", false},
        {OPEN_MPI, {.method = "tcp"}, ALONE, "give -ps HOST", true},
        {"OMPI_COMM_WORLD_SIZE=4 OMPI_COMM_WORLD_RANK=x", {0}, ALONE, "OMPI_COMM_WORLD_RANK is 'x'", true},
        {OPEN_MPI, {.gpus = 2}, ALONE, "--gpus is 2, but mpirun has started 4", true});
}

TEST(srun_says_the_place) {
    CHECK(
        {SLURM "SLURM_STEP_NODELIST=n1", {0}, {"srun", 1, 4, -1, -1, false, "n1", 21002, "1000.2"}, NULL, false},
        {SLURM "SLURM_STEP_NODELIST=n1 SLURM_LOCALID=1", {.method = "tcp"}, {"srun", 1, 4, 1, -1, false, "n1", 21002, "1000.2"}, NULL, true},
        {SLURM "SLURM_STEP_NODELIST=n1 PMIX_RANK=1", {0}, {"srun", 1, 4, -1, -1, true, "", 0, "1000.2"}, NULL, true},
        {SLURM "SLURM_STEP_NODELIST=n1 PMI_RANK=1 PMI_SIZE=4", {0}, {"srun", 1, 4, -1, -1, true, "", 0, "1000.2"}, NULL, true},
        {SLURM "SLURM_STEP_NODELIST=n1 PMIX_RANK=1", {0}, {"srun", 1, 4, -1, -1, false, "n1", 21002, "1000.2"}, NULL, false},
        {SLURM "SLURM_STEP_NODELIST=n1 PMIX_RANK=1", {.method = "tcp"}, {"srun", 1, 4, -1, -1, false, "n1", 21002, "1000.2"}, NULL, true},
        {SLURM "SLURM_STEP_NODELIST=n1", {.server = "10.0.0.1:7"}, {"srun", 1, 4, -1, -1, false, "10.0.0.1", 7, "1000.2"}, NULL, false},
        {SLURM "SLURM_STEP_NODELIST=n1 SLURM_JOB_ID=4294967295", {0}, {"srun", 1, 4, -1, -1, false, "n1", 20000 + 6147, "4294967295.2"}, NULL, false},
        {SLURM "SLURM_STEP_NODELIST=n1 COMM_RUN_ID=abc", {0}, {"srun", 1, 4, -1, -1, false, "n1", 21002, "abc"}, NULL, false},
        {SLURM, {0}, ALONE, "SLURM_STEP_NODELIST is ''", false},
        {"SLURM_STEP_NUM_TASKS=4 SLURM_PROCID=1 SLURM_STEP_ID=0", {0}, ALONE, "the environment variable SLURM_JOB_ID is missing", false},
        {SLURM "SLURM_JOB_ID=7_1", {0}, ALONE, "SLURM_JOB_ID is '7_1'", false});
}
// clang-format on

TEST(process_0_is_on_the_first_node_of_the_list) {
    static const char *const LISTS[][2] = {
        {"n1", "n1"},
        {"n[01-04,7]", "n01"},
        {"a-[2,5]-b", "a-2-b"},
        {"x1,x2", "x1"},
        {"r[1-2]n[3,9]", "r1n3"},
        {"n[7],n[1-3]", "n7"},
        {"gpu-a.b_c,x", "gpu-a.b_c"},
    };

    for (size_t i = 0; i < sizeof LISTS / sizeof LISTS[0]; i++) {
        char text[300];
        snprintf(text, sizeof text, SLURM "SLURM_STEP_NODELIST=%s", LISTS[i][0]);
        set_environment(text);
        Place place;
        assert_ok(place_find(&place, &(CommOptions){0}, false, &err));
        assert_string_equal(place.host, LISTS[i][1]);
    }
}

TEST(lists_of_nodes_that_are_none_are_refused) {
    char endless[700];
    memset(endless, 'n', sizeof endless - 1);
    endless[sizeof endless - 1] = '\0';

    const char *const LISTS[] = {",",    "n[1-2",   "n]",  "n[[1]]", "n1;reboot",
                                 "$(x)", "n[1-2]]", ",n1", endless};

    for (size_t i = 0; i < sizeof LISTS / sizeof LISTS[0]; i++) {
        char text[1000];
        snprintf(text, sizeof text, SLURM "SLURM_STEP_NODELIST=%s", LISTS[i]);
        set_environment(text);
        Place place;
        assert_error(place_find(&place, &(CommOptions){0}, false, &err),
                     "SLURM_STEP_NODELIST is '");
    }
}

// ------------------------------------------------------------------------------------------ --gpus

// This program as a process of --gpus: `test_launch DIRECTORY WORD...`, a word for each process.
static const char *directory;

static const char *note_path(const char *what, int rank) {
    static char path[PATH_MAX];
    snprintf(path, sizeof path, "%s/%s%d", directory, what, rank);
    return path;
}

static bool exists(const char *what, int rank) { return access(note_path(what, rank), F_OK) == 0; }

static void wait_for_note(const char *what, int rank) {
    while (!exists(what, rank)) usleep(1000);
}

static volatile sig_atomic_t heard, times;

static void on_signal(int number) { heard = number, times++; }

static void listen_to_signals(void) {
    for (int s = 1; s < 32; s++)
        if (s == SIGINT || s == SIGTERM || s == SIGHUP || s == SIGUSR1) signal(s, on_signal);
}

// The process finds its place by the same path as the trainer, and sends a message to the others.
static int meet_others(void) {
    Place place;
    const bool found = place_find(&place, &(CommOptions){.gpus = 3}, false, &err);
    const Channel *channel = found ? channel_tcp_open(&place, &err) : NULL;
    int ranks[3] = {-1, -1, -1}, local = place.local_rank;
    const bool ok = channel &&
                    channel->exchange(EXCHANGE_GATHER, &local, ranks, sizeof local, &err) &&
                    !getenv(COMM_LISTENER) && strcmp(place.launcher, "--gpus") == 0 &&
                    strlen(place.run_id) == 32 && place.local_size == 3;
    if (channel) channel->close(0);
    if (!ok) fprintf(stderr, "rank %d: %s\n", place.rank, err.text);
    return ok && ranks[0] == 0 && ranks[1] == 1 && ranks[2] == 2 ? 0 : 1;
}

static int be_a_process(char **words) {
    const char *number = getenv("RANK");
    const int rank = number ? atoi(number) : 0;
    const char *word = words[rank];

    if (strcmp(word, "meet") == 0) return meet_others();
    if (strcmp(word, "kill") == 0) raise(SIGKILL);
    if (strcmp(word, "wait") == 0)
        for (;;) pause();

    if (strcmp(word, "ignore") == 0) {
        signal(SIGTERM, SIG_IGN);
        write_text(note_path("ready", rank), "");
        for (;;) pause();
    }

    if (strcmp(word, "after") == 0) { // after process 0 is ready
        wait_for_note("ready", 0);
        return 9;
    }

    if (strcmp(word, "hear") == 0) {
        listen_to_signals();
        write_text(note_path("ready", rank), "");
        while (!heard) usleep(1000);
        usleep(50000); // for a second one, if there is
        char text[32];
        snprintf(text, sizeof text, "%d %d", (int)heard, (int)times);
        write_text(note_path("part", rank), text);
        char to[PATH_MAX];
        snprintf(to, sizeof to, "%s", note_path("heard", rank));
        rename(note_path("part", rank), to);
        return EXIT_INTERRUPTED;
    }

    return atoi(word);
}

enum { MOST_WORDS = 4 };

typedef struct {
    const char *words[MOST_WORDS];
    int result;
    const char *said;
} Launch;

static int launch(void *context) {
    const Launch *l = context;
    char *argv[MOST_WORDS + 3] = {(char *)"test_launch", tmp.path};
    int count = 0;
    for (; count < MOST_WORDS && l->words[count]; count++)
        argv[2 + count] = (char *)l->words[count];
    return launch_processes(count, argv);
}

static void check_launches(const Launch *launches, size_t count) {
    for (size_t i = 0; i < count; i++) {
        const Launch *l = &launches[i];
        char said[1024];
        const int status = status_of_child(launch, (void *)l, said, sizeof said);
        if (!WIFEXITED(status) || WEXITSTATUS(status) != l->result || strcmp(said, l->said) != 0)
            fail_msg("%s %s: status %x, expected %d; '%s', expected '%s'", l->words[0], l->words[1],
                     (unsigned)status, l->result, said, l->said);
    }
}

TEST(processes_of_gpus_meet) { check_launches(&(Launch){{"meet", "meet", "meet"}, 0, ""}, 1); }

TEST(the_first_failure_ends_the_others) {
    static const Launch LAUNCHES[] = {
        {{"0"}, 0, ""},
        {{"0", "0", "0"}, 0, ""},
        {{"5"}, 5, "test_launch: process 0 ended with exit code 5\n"},
        {{"wait", "3", "wait"},
         3,
         "test_launch: process 1 ended with exit code 3; ending the others\n"},
        {{"wait", "kill"},
         128 + SIGKILL,
         "test_launch: process 1 ended by SIGKILL; ending the others\n"},
    };

    check_launches(LAUNCHES, sizeof LAUNCHES / sizeof LAUNCHES[0]);
}

TEST(an_interrupted_run_is_no_failure) {
    static const Launch LAUNCHES[] = {
        {{"75", "75"}, EXIT_INTERRUPTED, ""},
        {{"75", "0"}, EXIT_INTERRUPTED, ""},
    };
    check_launches(LAUNCHES, sizeof LAUNCHES / sizeof LAUNCHES[0]);
}

TEST(a_process_that_ignores_sigterm_is_killed) {
    setenv("COMM_STOP_SECONDS", "1", 1);
    check_launches(&(Launch){{"ignore", "after"},
                             9,
                             "test_launch: process 1 ended with exit code 9; ending the others\n"},
                   1);
    setenv("COMM_STOP_SECONDS", "1s", 1);
    check_launches(
        &(Launch){{"0", "0"},
                  EXIT_BAD_INPUT,
                  "test_launch: COMM_STOP_SECONDS is '1s'; expected seconds, at most a day\n"},
        1);
}

// The process has its own group, as a shell starts it.
static pid_t start_hearing(void) {
    static const Launch HEAR = {{"hear", "hear"}, 0, ""};
    fflush(NULL);
    const pid_t launcher = fork();
    if (launcher == 0) {
        setpgid(0, 0);
        signal(SIGABRT, SIG_DFL);
        _exit(launch((void *)&HEAR));
    }
    setpgid(launcher, launcher);
    for (int r = 0; r < 2; r++) wait_for_note("ready", r);
    return launcher;
}

static void check_heard(int number) {
    for (int r = 0; r < 2; r++) {
        char expected[32];
        wait_for_note("heard", r);
        snprintf(expected, sizeof expected, "%d 1", number);
        char *text = read_text(note_path("heard", r));
        assert_string_equal(text, expected);
        free(text);
        unlink(note_path("heard", r)), unlink(note_path("ready", r));
    }
}

// The signal goes to the whole group, as a terminal sends it: each process hears it once all the
// same.
TEST(signals_are_passed_on_once) {
    static const int NUMBERS[] = {SIGINT, SIGTERM, SIGUSR1, SIGHUP};
    signal(SIGHUP, SIG_DFL); // may have been ignored
    for (int i = 0; i < 4; i++) {
        const pid_t launcher = start_hearing();
        kill(-launcher, NUMBERS[i]);
        check_heard(NUMBERS[i]);
        int status;
        assert_int_equal(waitpid(launcher, &status, 0), launcher);
        assert_true(WIFEXITED(status));
        assert_int_equal(WEXITSTATUS(status), EXIT_INTERRUPTED);
    }
}

TEST(processes_end_with_their_launcher) {
    const pid_t launcher = start_hearing();
    kill(launcher, SIGKILL);
    waitpid(launcher, NULL, 0);
    check_heard(SIGTERM);
}

// -------------------------------------------------------------------------------------------- main

int main(int argc, char **argv) {
    directory = argc > 2 ? argv[1] : tmp.path;
    return argc > 2 ? be_a_process(argv + 2) : test_run();
}
