// The processes of a run, see comm.h: who they are (launch.c), and agreement between them, over one of two channels.
#include "llmc/comm/comm.h"

#include "llmc/base/arithmetic.h"
#include "llmc/base/limits.h"
#include "llmc/comm/channel.h"
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

// -------------------------------------------------------------------------------------------------------------- start

static bool collect_names(Error *err) {
    char mine[HOST_BYTES] = "";
    gethostname(mine, sizeof mine - 1);
    comm.names = calloc((size_t)comm.place.size, sizeof *comm.names);
    REQUIRE_MEMORY(comm.names, "the names of machines");
    if (!comm.channel->gather(mine, comm.names, sizeof mine, err)) return false;
    const char *here = comm.names[comm.place.rank];
    int local_rank = 0, local_size = 0;
    comm.hosts = 0;
    for (int i = 0; i < comm.place.size; i++) {
        int k = 0;
        while (strcmp(comm.names[k], comm.names[i]) != 0) k++;
        comm.hosts += k == i; // the first of its machine
        if (strcmp(comm.names[i], here) != 0) continue;
        local_size++;
        local_rank += i < comm.place.rank;
    }
    if (comm.place.local_rank < 0) comm.place.local_rank = local_rank;
    if (comm.place.local_size < 0) comm.place.local_size = local_size;
    return true;
}

// mpirun may have bound each process to cores of its own, or not.
static bool share_cores(Error *err) {
    typedef struct {
        char host[HOST_BYTES];
        cpu_set_t cores;
    } Cores;
    Cores mine, *all = malloc((size_t)comm.place.size * sizeof *all);
    REQUIRE_MEMORY(all, "the cores of all processes");
    memset(&mine, 0, sizeof mine);
    memcpy(mine.host, comm.names[comm.place.rank], HOST_BYTES);
    int sharing = 0;
    if (sched_getaffinity(0, sizeof mine.cores, &mine.cores) != 0) CPU_SET(0, &mine.cores);
    const bool ok = comm.channel->gather(&mine, all, sizeof mine, err);
    for (int i = 0; ok && i < comm.place.size; i++) sharing += memcmp(&all[i], &mine, sizeof mine) == 0;
    if (sharing > 0) comm.cores = limits_processors() / sharing;
    if (ok && comm.cores == 0) comm.cores = 1;
    free(all);
    return ok;
}

bool comm_start(const CommOptions *options, Error *err) {
    Place place = {.launcher = "", .size = 1, .local_rank = -1, .local_size = -1};
    if (!comm_find_place(&place, options, err)) return false;
    if (place.size == 1) return true;
    comm.channel = place.mpi ? channel_mpi_open(&place, err) : channel_tcp_open(&place, err);
    if (!comm.channel) return error_prefix(err, "%s, process %d of %d", place.launcher, place.rank, place.size);
    comm.place = place;
    if (!collect_names(err)) return false;
    int *sockets = NULL; // of the watch
    if (!place.mpi) {
        sockets = malloc((size_t)place.size * sizeof *sockets);
        REQUIRE_MEMORY(sockets, "the connections of the watch");
        channel_tcp_watch_sockets(sockets);
    }
    const double timeout = options->timeout > 0 ? options->timeout : COMM_TIMEOUT;
    const WatchOptions watch = {place.rank, place.size, (const char(*)[HOST_BYTES])comm.names, sockets, timeout};
    const bool ok = watch_start(&watch, err);
    free(sockets);
    return ok && share_cores(err);
}

void comm_end(void) {
    if (!comm.channel) return;
    const bool lost = watch_has_failed(NULL);
    if (lost) comm.channel->abort(EXIT_RUN_FAILED); // MPI would wait for the process that was lost
    comm.channel->close();                          // under the watch: MPI waits for all
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
    // mpirun ends the others when a process exits without MPI_Finalize. MPI_Abort of several processes at once could
    // block it.
    if (comm.place.mpi && watch_has_failed(NULL)) {
        fflush(NULL);
        _exit(exit_code);
    }
    comm.channel->abort(exit_code);
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

// ----------------------------------------------------------------------------------------------------------- messages

bool comm_gather(const void *mine, void *all, size_t bytes, Error *err) {
    watch_collective("messages of all");
    if (comm.channel) return comm.channel->gather(mine, all, bytes, err) || comm_lost(err);
    memcpy(all, mine, bytes);
    return true;
}

bool comm_broadcast(void *data, size_t bytes, Error *err) {
    watch_collective("message of process 0");
    return !comm.channel || comm.channel->broadcast(data, bytes, err) || comm_lost(err);
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

// ---------------------------------------------------------------------------------------------------------- agreement

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

// The processes whose values of this fact differ are 0 and `other`: a message that names both. Returns false.
static bool comm_fact_differs(const CommFact *fact, int other, Error *err) {
    char mine[SHOWN_BYTES] = "", (*values)[SHOWN_BYTES];
    strncpy(mine, fact->value, sizeof mine - 1);
    values = comm_gather_new(mine, sizeof mine, err);
    if (!values) return false;
    comm.failed_together = true;
    values[0][SHOWN_BYTES - 1] = values[other][SHOWN_BYTES - 1] = '\0';
    error_set(err, "process %d on %s has %s %s, process 0 on %s has %s: all processes must have the same", other,
              comm.names[other], fact->name, *values[other] ? values[other] : "\"\"", comm.names[0],
              *values[0] ? values[0] : "\"\"");
    free(values);
    return false;
}

bool comm_agree(const CommFact *facts, int count, Error *err) {
    if (!comm.channel) return true;
    const size_t n = (size_t)count;
    uint64_t *mine = calloc(n, sizeof *mine);
    REQUIRE_MEMORY(mine, "the checksums of %d facts", count);
    for (size_t i = 0; i < n; i++)
        mine[i] = XXH3_64bits_withSeed(facts[i].value, strlen(facts[i].value), strlen(facts[i].name));
    uint64_t *all = comm_gather_new(mine, n * sizeof *mine, err);
    free(mine);
    if (!all) return false;
    bool ok = true;
    for (size_t i = 0; ok && i < n; i++)
        for (size_t p = 1; ok && p < (size_t)comm.place.size; p++)
            if (all[p * n + i] != all[i]) ok = comm_fact_differs(&facts[i], (int)p, err);
    free(all);
    return ok;
}
