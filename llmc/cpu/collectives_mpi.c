// The collectives of device.h on the CPU. Device memory is host memory: a request is a non-blocking
// call of MPI, and waiting for it completes it.
#include "llmc/cpu/collectives_mpi.h"
#include "llmc/comm/mpi_library.h"
#include "llmc/device.h"

#include <limits.h>
#include <stdlib.h>
#include <string.h>

bool device_comm_failed(Error *err) { // the calls tell
    (void)err;
    return false;
}
void device_comm_abort(void) {} // comm_abort ends the processes

static const CommObserver *cpu_comm_observer;
void device_comm_observe(const CommObserver *observer) { cpu_comm_observer = observer; }

#ifdef HAVE_MPI

static struct {
    MPI_Request request;
    bool in_flight, done;
    int *counts; // (4, processes): counts and places of what is sent and received, in words of 4
                 // bytes
} mpi_requests[DEVICE_COMM_REQUESTS];
static int mpi_used; // requests that have been used are below

bool device_comm_id(char id[DEVICE_COMM_ID_BYTES], Error *err) {
    memset(id, 0, DEVICE_COMM_ID_BYTES); // MPI knows its processes
    if (!*mpi.name)
        return error_set(
            err,
            "on the CPU several processes are started by mpirun: mpirun -n N ./train_gpt2 OPTIONS");
    return true;
}

bool device_comm_start(const char id[DEVICE_COMM_ID_BYTES], int rank, int size, double seconds,
                       Error *err) {
    (void)id;
    (void)rank;
    (void)size;
    (void)seconds;
    char own[DEVICE_COMM_ID_BYTES];
    return device_comm_id(own, err);
}

const char *device_comm_library(void) { return mpi.name; }

void cpu_comm_shutdown(void) {
    for (int i = 0; i < mpi_used; i++) free(mpi_requests[i].counts);
    memset(mpi_requests, 0, sizeof mpi_requests);
    mpi_used = 0;
}

static void mpi_observe_wait(bool begins) {
    if (cpu_comm_observer) cpu_comm_observer->wait(begins);
}
static void mpi_observe_request(int request, bool begins) {
    if (cpu_comm_observer) cpu_comm_observer->request(request, begins);
}

// Returns the counts of parts in words, then their places. MPI reads them until the request is
// done.
static int *mpi_begin(const Range *parts, int request) {
    REQUIRE(*mpi.name, "a collective before device_comm_start");
    REQUIRE(request >= 0 && request < DEVICE_COMM_REQUESTS, "request %d", request);
    REQUIRE(!mpi_requests[request].in_flight, "request %d is in flight", request);

    int *counts = mpi_requests[request].counts;
    if (!counts)
        counts = mpi_requests[request].counts = calloc((size_t)mpi.size * 4, sizeof *counts);
    REQUIRE_MEMORY(counts, "the parts of a request");
    for (int r = 0; r < mpi.size; r++) {
        const int64_t begin = parts[r].begin, bytes = range_size(parts[r]);
        REQUIRE(begin >= 0 && bytes >= 0 && begin % 4 == 0 && bytes % 4 == 0 &&
                    (begin + bytes) / 4 <= INT_MAX,
                "part %d is bytes %lld to %lld", r, (long long)begin, (long long)parts[r].end);
        counts[r] = (int)(bytes / 4);
        counts[mpi.size + r] = (int)(begin / 4);
    }

    mpi_requests[request].in_flight = true;
    mpi_requests[request].done = false;
    if (mpi_used <= request) mpi_used = request + 1;
    mpi_observe_wait(true);
    mpi_observe_request(request, true);
    return counts;
}

bool device_all_to_all(void *recv, const void *send, const Range *parts, int request, Error *err) {
    int *counts = mpi_begin(parts, request), *places = counts + mpi.size;
    int *mine = places + mpi.size, *mine_places = mine + mpi.size;
    REQUIRE((int64_t)counts[mpi.rank] * mpi.size <= INT_MAX, "a part of %d words",
            counts[mpi.rank]);
    for (int r = 0; r < mpi.size; r++) {
        mine[r] = counts[mpi.rank];
        mine_places[r] = r * counts[mpi.rank];
    }
    const int status =
        mpi.MPI_Ialltoallv(send, counts, places, mpi.integer, recv, mine, mine_places, mpi.integer,
                           mpi.world, &mpi_requests[request].request);
    mpi_observe_wait(false);
    return mpi_check("MPI_Ialltoallv", status, err);
}

bool device_all_gather(void *data, const Range *parts, int request, Error *err) {
    int *counts = mpi_begin(parts, request);
    const int status =
        mpi.MPI_Iallgatherv(MPI_IN_PLACE, 0, mpi.no_type, data, counts, counts + mpi.size,
                            mpi.integer, mpi.world, &mpi_requests[request].request);
    mpi_observe_wait(false);
    return mpi_check("MPI_Iallgatherv", status, err);
}

// A failure shows when the request is waited for.
void device_comm_progress(void) {
    mpi_observe_wait(true);
    for (int i = 0; i < mpi_used; i++) {
        int done = 0;
        if (!mpi_requests[i].in_flight || mpi_requests[i].done) continue;
        if (mpi.MPI_Test(&mpi_requests[i].request, &done, MPI_STATUS_IGNORE) != MPI_SUCCESS) break;
        mpi_requests[i].done = done != 0;
        if (done) mpi_observe_request(i, false);
    }
    mpi_observe_wait(false);
}

bool device_comm_wait(int request, Error *err) {
    REQUIRE(request >= 0 && request < DEVICE_COMM_REQUESTS && mpi_requests[request].in_flight,
            "request %d is not in flight", request);
    mpi_observe_wait(true);
    mpi_requests[request].in_flight = false;
    bool ok = true;
    if (!mpi_requests[request].done) {
        ok = mpi_await("MPI_Test", MPI_SUCCESS, &mpi_requests[request].request, err);
        if (ok) mpi_observe_request(request, false);
    }
    mpi_observe_wait(false);
    return ok;
}

#else

#pragma GCC diagnostic ignored "-Wunused-parameter" // nobody can be reached: no argument matters

bool device_comm_id(char id[DEVICE_COMM_ID_BYTES], Error *err) {
    memset(id, 0, DEVICE_COMM_ID_BYTES);
    return mpi_missing(err);
}
bool device_comm_start(const char id[DEVICE_COMM_ID_BYTES], int rank, int size, double seconds,
                       Error *err) {
    return mpi_missing(err);
}
const char *device_comm_library(void) { return ""; }
void cpu_comm_shutdown(void) {}
bool device_all_to_all(void *recv, const void *send, const Range *parts, int request, Error *err) {
    return mpi_missing(err);
}
bool device_all_gather(void *data, const Range *parts, int request, Error *err) {
    return mpi_missing(err);
}
void device_comm_progress(void) {}
bool device_comm_wait(int request, Error *err) { return mpi_missing(err); }

#endif
