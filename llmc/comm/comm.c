// The processes of a run, see comm.h: their machines, and agreement between them, over one of two
// channels.
#include "llmc/comm/comm.h"

#include "llmc/base/arithmetic.h"
#include "llmc/base/clock.h"
#include "llmc/base/limits.h"
#include "llmc/comm/channel_tcp.h"
#include "llmc/comm/mpi_library.h"
#include "llmc/comm/watch.h"

#include <errno.h>
#include <math.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <xxhash.h>

enum { HOST_BYTES = 64 };
static const double EXPLAIN_SECONDS = 2; // in which the watch finds the reason of a failure

static struct {
    Place place;
    const Channel *channel; // NULL: alone
    int hosts, cores;
    char (*names)[HOST_BYTES]; // of the machines of all processes
    bool failed_together;
    bool is_lost; // a call failed: no other can succeed
} comm = {.place = {.launcher = "", .size = 1, .local_size = 1}, .hosts = 1};

int comm_rank(void) { return comm.place.rank; }
int comm_size(void) { return comm.place.size; }
int comm_local_rank(void) { return comm.place.local_rank; }
int comm_local_size(void) { return comm.place.local_size; }
int comm_cores(void) { return comm.cores; }
int comm_hosts(void) { return comm.hosts; }
const char *comm_host(int rank) { return comm.names[rank]; }
const char *comm_launcher(void) { return comm.place.launcher; }

// ------------------------------------------------------------------------------------------- start

bool comm_start(const CommOptions *options, Error *err) {
    Place place;
    if (!place_find(&place, options, mpi_channel_open != NULL, err)) return false;
    if (place.size == 1) return true;
    if (place.mpi)
        comm.channel = mpi_channel_open(&place, err);
    else
        comm.channel = channel_tcp_open(&place, err);
    if (!comm.channel)
        return error_prefix(err, "%s, process %d of %d", place.launcher, place.rank, place.size);

    // The first message of all: the machines, which say who is beside whom, and the cores, to which
    // mpirun may have bound each process, or not.
    typedef struct {
        char host[HOST_BYTES];
        cpu_set_t cores;
    } Introduction;
    Introduction mine, *all = malloc((size_t)place.size * sizeof *all);
    comm.names = calloc((size_t)place.size, sizeof *comm.names);
    REQUIRE_MEMORY(all && comm.names, "the names of machines");
    memset(&mine, 0, sizeof mine);
    gethostname(mine.host, sizeof mine.host - 1);
    if (sched_getaffinity(0, sizeof mine.cores, &mine.cores) != 0) CPU_SET(0, &mine.cores);
    bool ok = comm.channel->exchange(EXCHANGE_GATHER, &mine, all, sizeof mine, err);
    int local_rank = 0, local_size = 0, sharing = 0;
    comm.hosts = 0;
    for (int i = 0; ok && i < place.size; i++) {
        int first = 0; // of its machine
        memcpy(comm.names[i], all[i].host, HOST_BYTES - 1);
        while (strcmp(comm.names[first], comm.names[i]) != 0) first++;
        comm.hosts += first == i;
        sharing += memcmp(&all[i], &mine, sizeof mine) == 0;
        if (strcmp(comm.names[i], mine.host) != 0) continue;
        local_size++;
        local_rank += i < place.rank;
    }
    free(all);
    if (place.local_rank < 0) place.local_rank = local_rank;
    if (place.local_size < 0) place.local_size = local_size;
    if (sharing > 0) comm.cores = (int)max_i64(limits_processors() / sharing, 1);
    comm.place = place;
    if (!ok) return false;

    int *sockets = NULL;
    double timeout = COMM_TIMEOUT;
    if (!place.mpi) sockets = channel_tcp_watch_sockets();
    if (options->timeout > 0) timeout = options->timeout;
    const WatchOptions watch = {place.rank, place.size, (const char(*)[HOST_BYTES])comm.names,
                                sockets, timeout};
    ok = watch_start(&watch, err);
    free(sockets);
    return ok;
}

void comm_end(void) {
    const bool lost = watch_has_failed(NULL);
    const int code = lost ? EXIT_RUN_FAILED : EXIT_OK;
    // Under the watch: MPI waits for all, and would wait for a process that was lost.
    if (comm.channel) comm.channel->close(code);
    watch_stop(lost);
    free(comm.names);
    comm.channel = NULL;
    comm.names = NULL;
    comm.is_lost = false;
    comm.place = (Place){.launcher = "", .size = 1, .local_size = 1};
    comm.hosts = 1;
}

void comm_abort(int exit_code) {
    if (!comm.channel) return;
    // mpirun ends the others when a process exits without MPI_Finalize. MPI_Abort of several
    // processes at once could block it.
    if (comm.place.mpi && watch_has_failed(NULL)) {
        fflush(NULL);
        _exit(exit_code);
    }
    comm.channel->close(exit_code);
    comm.channel = NULL;
    watch_stop(true);
}

bool comm_is_lost(void) { return comm.is_lost || watch_has_failed(NULL); }

bool comm_lost(Error *err) {
    const double deadline = now_seconds() + EXPLAIN_SECONDS;
    comm.is_lost = true;
    while (comm.channel && !watch_has_failed(err) && now_seconds() < deadline)
        nanosleep(&(struct timespec){.tv_nsec = 10 * 1000 * 1000}, NULL);
    return false;
}

// ---------------------------------------------------------------------------------------- messages

bool comm_gather(const void *mine, void *all, size_t bytes, Error *err) {
    watch_collective("messages of all");
    if (!comm.channel) {
        memcpy(all, mine, bytes);
        return true;
    }
    if (!comm.channel->exchange(EXCHANGE_GATHER, mine, all, bytes, err)) return comm_lost(err);
    return true;
}

bool comm_broadcast(void *data, size_t bytes, Error *err) {
    watch_collective("message of process 0");
    if (comm.channel && !comm.channel->exchange(EXCHANGE_BROADCAST, NULL, data, bytes, err))
        return comm_lost(err);
    return true;
}

void *comm_gather_new(const void *mine, size_t bytes, Error *err) {
    void *all = malloc((size_t)comm.place.size * bytes);
    REQUIRE_MEMORY(all, "a message of each process");
    if (comm_gather(mine, all, bytes, err)) return all;
    free(all);
    return NULL;
}

bool comm_barrier(Error *err) {
    void *all = comm_gather_new(&(char){0}, 1, err);
    free(all);
    return all != NULL;
}

// --------------------------------------------------------------------------------------- agreement

bool comm_failed_together(void) { return comm.failed_together; }

bool comm_all_ok(bool ok, Error *err) {
    if (!comm.channel) return ok;
    char *flags = comm_gather_new(&(char){(char)ok}, 1, err);
    if (!flags) return false;
    int failed = 0;
    while (failed < comm.place.size && flags[failed]) failed++;
    free(flags);
    if (failed == comm.place.size) return true;

    Error mine = {""};
    if (!ok) mine = *err;
    Error *texts = comm_gather_new(&mine, sizeof mine, err);
    if (!texts) return false;
    comm.failed_together = true;
    texts[failed].text[sizeof texts->text - 1] = '\0';
    if (failed == 0)
        error_set(err, "%s", texts[0].text);
    else
        error_set(err, "process %d on %s: %s", failed, comm.names[failed], texts[failed].text);
    free(texts);
    return false;
}

enum { SHOWN_BYTES = 200 }; // of a value, in messages

bool comm_agree(const CommFact *facts, int count, Error *err) {
    if (!comm.channel) return true;
    const int n = count;
    uint64_t *mine = calloc((size_t)n, sizeof *mine);
    REQUIRE_MEMORY(mine, "the checksums of %d facts", n);
    for (int i = 0; i < n; i++)
        mine[i] =
            XXH3_64bits_withSeed(facts[i].value, strlen(facts[i].value), strlen(facts[i].name));
    uint64_t *all = comm_gather_new(mine, (size_t)n * sizeof *mine, err);
    free(mine);
    if (!all) return false;
    int fact = 0, other = 0; // the first that differs from process 0's, and of which process
    while (fact < n && all[other * n + fact] == all[fact]) {
        other = (other + 1) % comm.place.size;
        fact += other == 0;
    }
    free(all);
    if (fact == n) return true;

    char value[SHOWN_BYTES] = "", (*values)[SHOWN_BYTES];
    strncpy(value, facts[fact].value, sizeof value - 1);
    values = comm_gather_new(value, sizeof value, err);
    if (!values) return false;
    comm.failed_together = true;
    values[0][SHOWN_BYTES - 1] = values[other][SHOWN_BYTES - 1] = '\0';
    const char *theirs = values[other], *ours = values[0];
    if (!*theirs) theirs = "\"\"";
    if (!*ours) ours = "\"\"";
    error_set(
        err, "process %d on %s has %s %s, process 0 on %s has %s: all processes must have the same",
        other, comm.names[other], facts[fact].name, theirs, comm.names[0], ours);
    free(values);
    return false;
}
