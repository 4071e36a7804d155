// The processes of a run, see comm.h: who they are (launch.c), and agreement between them, over one of two channels.
#include "llmc/comm/comm.h"

#include "llmc/comm/channel.h"
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <xxhash.h>

enum { HOST_BYTES = 64 };

static struct {
    Place place;
    const Channel *channel; // NULL: alone
    int hosts, cores;
    char (*names)[HOST_BYTES]; // of the machines of all processes
    bool failed_together;
} comm = {.place = {.launcher = "", .size = 1, .local_size = 1}, .hosts = 1};

int comm_rank(void) { return comm.place.rank; }
int comm_size(void) { return comm.place.size; }
int comm_local_rank(void) { return comm.place.local_rank; }
int comm_local_size(void) { return comm.place.local_size; }
int comm_cores(void) { return comm.cores; }
int comm_hosts(void) { return comm.hosts; }
const char *comm_launcher(void) { return comm.place.launcher; }

// -------------------------------------------------------------------------------------------------------------- start

static bool collect_names(Error *err) {
    char mine[HOST_BYTES] = "";
    gethostname(mine, sizeof mine - 1);
    comm.names = calloc((size_t)comm.place.size, sizeof *comm.names);
    REQUIRE_MEMORY(comm.names, "the names of machines");
    if (!comm.channel->gather(mine, comm.names, sizeof mine, err)) return false;
    comm.hosts = 0;
    for (int i = 0; i < comm.place.size; i++) {
        int k = 0;
        while (strcmp(comm.names[k], comm.names[i]) != 0) k++;
        comm.hosts += k == i; // the first of its machine
    }
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
    if (sharing > 0) comm.cores = CPU_COUNT(&mine.cores) / sharing;
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
    return collect_names(err) && share_cores(err);
}

void comm_end(void) {
    if (!comm.channel) return;
    comm.channel->close();
    free(comm.names);
    comm.channel = NULL, comm.names = NULL;
    comm.place = (Place){.launcher = "", .size = 1, .local_size = 1}, comm.hosts = 1;
}

void comm_abort(int exit_code) {
    if (comm.channel) comm.channel->abort(exit_code);
}

// ----------------------------------------------------------------------------------------------------------- messages

bool comm_gather(const void *mine, void *all, size_t bytes, Error *err) {
    if (comm.channel) return comm.channel->gather(mine, all, bytes, err);
    memcpy(all, mine, bytes);
    return true;
}

bool comm_broadcast(void *data, size_t bytes, Error *err) {
    return !comm.channel || comm.channel->broadcast(data, bytes, err);
}

bool comm_barrier(Error *err) {
    char nothing = 0, *all = malloc((size_t)comm.place.size);
    REQUIRE_MEMORY(all, "a barrier");
    const bool ok = comm_gather(&nothing, all, 1, err);
    free(all);
    return ok;
}

// Gathers `bytes` of each process; malloced, NULL after a failure.
static void *gathered(const void *mine, size_t bytes, Error *err) {
    void *all = malloc((size_t)comm.place.size * bytes);
    REQUIRE_MEMORY(all, "a message of each process");
    if (comm_gather(mine, all, bytes, err)) return all;
    free(all);
    return NULL;
}

// ---------------------------------------------------------------------------------------------------------- agreement

bool comm_failed_together(void) { return comm.failed_together; }

bool comm_all_ok(bool ok, Error *err) {
    if (!comm.channel) return ok;
    char *flags = gathered(&(char){(char)ok}, 1, err);
    if (!flags) return false;
    int failed = 0;
    while (failed < comm.place.size && flags[failed]) failed++;
    free(flags);
    if (failed == comm.place.size) return true;
    Error mine = {""};
    if (!ok) mine = *err;
    Error *texts = gathered(&mine, sizeof mine, err);
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

// The first process whose fact differs from process 0's; 0: none, -1: an error.
static int first_other(const CommFact *fact, char shown[2][SHOWN_BYTES], Error *err) {
    const uint64_t mine = XXH3_64bits_withSeed(fact->value, strlen(fact->value), strlen(fact->name));
    uint64_t *all = gathered(&mine, sizeof mine, err);
    if (!all) return -1;
    int other = 0;
    for (int i = comm.place.size - 1; i > 0; i--)
        if (all[i] != all[0]) other = i;
    free(all);
    if (other == 0) return 0;
    char value[SHOWN_BYTES] = "", (*values)[SHOWN_BYTES];
    strncpy(value, fact->value, sizeof value - 1);
    values = gathered(value, sizeof value, err);
    if (!values) return -1;
    memcpy(shown[0], values[0], SHOWN_BYTES);
    memcpy(shown[1], values[other], SHOWN_BYTES);
    shown[0][SHOWN_BYTES - 1] = shown[1][SHOWN_BYTES - 1] = '\0';
    free(values);
    return other;
}

bool comm_agree(const CommFact *facts, int count, Error *err) {
    if (!comm.channel) return true;
    for (int i = 0; i < count; i++) {
        char shown[2][SHOWN_BYTES];
        const int other = first_other(&facts[i], shown, err);
        if (other < 0) return false;
        comm.failed_together = other > 0;
        if (other > 0)
            return error_set(err,
                             "process %d on %s has %s %s, process 0 on %s has %s: all processes must have the same",
                             other, comm.names[other], facts[i].name, *shown[1] ? shown[1] : "\"\"", comm.names[0],
                             *shown[0] ? shown[0] : "\"\"");
    }
    return true;
}
