// Messages by MPI, for processes that mpirun or srun --mpi started (channel.h), and what the CPU's devices exchange.
// mpi.h is that of the build (the Makefile sets HAVE_MPI where mpicc is). The library itself is loaded when it has
// started several processes, so that a program that runs alone neither needs nor loads it.
#include "llmc/base/arithmetic.h"
#include "llmc/comm/channel.h"
#include "llmc/comm/watch.h"
#include "llmc/device.h"

#ifdef HAVE_MPI
#include <dlfcn.h>
#include <limits.h>
#include <math.h>
#include <mpi.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

// ------------------------------------------------------------------------------------------------------- the library

#define FUNCTIONS(X)                                                                                                   \
    X(MPI_Init_thread)                                                                                                 \
    X(MPI_Finalize)                                                                                                    \
    X(MPI_Abort)                                                                                                       \
    X(MPI_Error_string)                                                                                                \
    X(MPI_Get_library_version)                                                                                         \
    X(MPI_Comm_set_errhandler)                                                                                         \
    X(MPI_Comm_size)                                                                                                   \
    X(MPI_Comm_rank)                                                                                                   \
    X(MPI_Ibcast)                                                                                                      \
    X(MPI_Iallgather)                                                                                                  \
    X(MPI_Ialltoallv)                                                                                                  \
    X(MPI_Iallgatherv)                                                                                                 \
    X(MPI_Test)

#ifdef OPEN_MPI // its constants are addresses of variables of the library
#define VARIABLES(X)                                                                                                   \
    X(ompi_mpi_comm_world)                                                                                             \
    X(ompi_mpi_errors_return) X(ompi_mpi_byte) X(ompi_mpi_int) X(ompi_mpi_datatype_null)
static const char *const files[] = {"libmpi.so.40", "libmpi.so"};
#else
#define VARIABLES(X)
static const char *const files[] = {"libmpi.so.12", "libmpich.so.12", "libmpi.so"};
#endif

static struct {
#define X(name) __typeof__(name) *name;
    FUNCTIONS(X)
#undef X
#define X(name) char *name;
    VARIABLES(X)
#undef X
    char name[64];
    int rank, size;
    struct {
        MPI_Request request;
        bool in_flight, done;
        int *counts; // (4, size): counts and places of what is sent and received, in words of 4 bytes
    } requests[DEVICE_COMM_REQUESTS];
    int most; // requests that have been used are below
    bool connected;
} mpi;

static bool load_symbol(void *library, const char *name, void *pointer, Error *err) {
    void *address = dlsym(library, name);
    memcpy(pointer, &address, sizeof address);
    return address ||
           error_set(err, "the MPI library has no %s; build again with the MPI that starts the program", name);
}

static bool load(Error *err) {
    void *library = NULL; // global: MPI's plugins use its symbols
    for (size_t i = 0; !library && i < sizeof files / sizeof *files; i++)
        library = dlopen(files[i], RTLD_NOW | RTLD_GLOBAL);
    if (!library) return error_set(err, "MPI is not installed here: %s", dlerror());
#define X(symbol)                                                                                                      \
    if (!load_symbol(library, #symbol, &mpi.symbol, err)) return false;
    FUNCTIONS(X)
    VARIABLES(X)
#undef X
    return true;
}
// From here on the names of the variables mean the loaded ones.
#define ompi_mpi_comm_world    (*mpi.ompi_mpi_comm_world)
#define ompi_mpi_errors_return (*mpi.ompi_mpi_errors_return)
#define ompi_mpi_byte          (*mpi.ompi_mpi_byte)
#define ompi_mpi_int           (*mpi.ompi_mpi_int)
#define ompi_mpi_datatype_null (*mpi.ompi_mpi_datatype_null)

static bool failed(const char *call, int status, Error *err) {
    char text[MPI_MAX_ERROR_STRING] = "";
    int length = 0;
    mpi.MPI_Error_string(status, text, &length);
    return error_set(err, "%s: %s", call, text);
}
static bool check(const char *call, int status, Error *err) {
    return status == MPI_SUCCESS || failed(call, status, err);
}

// -------------------------------------------------------------------------------------------------------- the channel

// MPI_Wait, which would wait for a lost process without end.
static bool wait_for(const char *call, int status, MPI_Request *request, Error *err) {
    for (int done = 0;;) {
        if (status == MPI_SUCCESS) status = mpi.MPI_Test(request, &done, MPI_STATUS_IGNORE);
        if (status != MPI_SUCCESS) return failed(call, status, err);
        if (done) return true;
        if (watch_has_failed(err)) return false;
        sched_yield(); // the other processes may need this core
    }
}

static bool gather(const void *mine, void *all, size_t bytes, Error *err) {
    const int n = (int)bytes;
    MPI_Request request;
    REQUIRE(bytes <= INT_MAX, "a message of %zu bytes", bytes);
    const int status = mpi.MPI_Iallgather(mine, n, MPI_BYTE, all, n, MPI_BYTE, MPI_COMM_WORLD, &request);
    return wait_for("MPI_Iallgather", status, &request, err);
}

static bool broadcast(void *data, size_t bytes, Error *err) {
    MPI_Request request;
    REQUIRE(bytes <= INT_MAX, "a message of %zu bytes", bytes);
    const int status = mpi.MPI_Ibcast(data, (int)bytes, MPI_BYTE, 0, MPI_COMM_WORLD, &request);
    return wait_for("MPI_Ibcast", status, &request, err);
}

static void abort_all(int exit_code) { mpi.MPI_Abort(MPI_COMM_WORLD, exit_code); }

static void close_channel(void) {
    mpi.MPI_Finalize();
    for (int i = 0; i < mpi.most; i++) free(mpi.requests[i].counts);
    mpi.most = 0, mpi.connected = false;
}

bool channel_mpi_is_built(void) { return true; }

static bool connect(Place *place, Error *err) {
    int provided, size = 0, length = 0;
    char text[MPI_MAX_LIBRARY_VERSION_STRING];
    // Only the main thread calls MPI.
    if (!check("MPI_Init_thread", mpi.MPI_Init_thread(NULL, NULL, MPI_THREAD_FUNNELED, &provided), err)) return false;
    mpi.connected = true;
    mpi.MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
    mpi.MPI_Get_library_version(text, &length);
    text[strcspn(text, ",\n")] = '\0'; // "Open MPI v4.1.4, package: ..."
    snprintf(mpi.name, sizeof mpi.name, "%s", text);
    mpi.MPI_Comm_size(MPI_COMM_WORLD, &size);
    mpi.MPI_Comm_rank(MPI_COMM_WORLD, &place->rank);
    mpi.rank = place->rank, mpi.size = size;
    return size == place->size ||
           error_set(err, "%s knows %d processes, %s says %d; was another MPI used to start them?", mpi.name, size,
                     place->launcher, place->size);
}

const Channel *channel_mpi_open(Place *place, Error *err) {
    static const Channel channel = {"MPI", gather, broadcast, abort_all, close_channel};
    return load(err) && connect(place, err) ? &channel : NULL;
}

// ------------------------------------------------------------------------------------------------- the CPU's devices

bool mpi_is_connected(Error *err) {
    return mpi.connected ||
           error_set(err, "on the CPU several processes are started by mpirun: mpirun -n N ./train_gpt2 OPTIONS");
}

const char *mpi_name(void) { return mpi.name; }

// Counts of parts in words; MPI reads them until the request is done.
static int *begin(const Range *parts, int request) {
    REQUIRE(mpi.connected, "a collective before device_comm_start");
    REQUIRE(request >= 0 && request < DEVICE_COMM_REQUESTS, "request %d", request);
    REQUIRE(!mpi.requests[request].in_flight, "request %d is in flight", request);
    int *counts = mpi.requests[request].counts;
    if (!counts) counts = mpi.requests[request].counts = calloc((size_t)mpi.size * 4, sizeof *counts);
    REQUIRE_MEMORY(counts, "the parts of a request");
    for (int r = 0; r < mpi.size; r++) {
        const int64_t begin = parts[r].begin, bytes = range_size(parts[r]);
        REQUIRE(begin >= 0 && bytes >= 0 && begin % 4 == 0 && bytes % 4 == 0 && (begin + bytes) / 4 <= INT_MAX,
                "part %d is bytes %lld to %lld", r, (long long)begin, (long long)parts[r].end);
        counts[r] = (int)(bytes / 4), counts[mpi.size + r] = (int)(begin / 4);
    }
    mpi.requests[request].in_flight = true, mpi.requests[request].done = false;
    if (mpi.most <= request) mpi.most = request + 1;
    return counts;
}

bool mpi_start_all_to_all(void *recv, const void *send, const Range *parts, int request, Error *err) {
    int *counts = begin(parts, request), *places = counts + mpi.size;
    int *mine = places + mpi.size, *mine_places = mine + mpi.size;
    REQUIRE((int64_t)counts[mpi.rank] * mpi.size <= INT_MAX, "a part of %d words", counts[mpi.rank]);
    for (int r = 0; r < mpi.size; r++) mine[r] = counts[mpi.rank], mine_places[r] = r * counts[mpi.rank];
    return check("MPI_Ialltoallv",
                 mpi.MPI_Ialltoallv(send, counts, places, MPI_INT, recv, mine, mine_places, MPI_INT, MPI_COMM_WORLD,
                                    &mpi.requests[request].request),
                 err);
}

bool mpi_start_all_gather(void *data, const Range *parts, int request, Error *err) {
    int *counts = begin(parts, request);
    return check("MPI_Iallgatherv",
                 mpi.MPI_Iallgatherv(MPI_IN_PLACE, 0, MPI_DATATYPE_NULL, data, counts, counts + mpi.size, MPI_INT,
                                     MPI_COMM_WORLD, &mpi.requests[request].request),
                 err);
}

// A failure shows when the request is waited for.
void mpi_progress(void (*ended)(int request)) {
    for (int i = 0; i < mpi.most; i++) {
        int done = 0;
        if (!mpi.requests[i].in_flight || mpi.requests[i].done) continue;
        if (mpi.MPI_Test(&mpi.requests[i].request, &done, MPI_STATUS_IGNORE) != MPI_SUCCESS) return;
        mpi.requests[i].done = done != 0;
        if (done) ended(i);
    }
}

bool mpi_wait(int request, void (*ended)(int request), Error *err) {
    REQUIRE(request >= 0 && request < DEVICE_COMM_REQUESTS && mpi.requests[request].in_flight,
            "request %d is not in flight", request);
    mpi.requests[request].in_flight = false;
    if (mpi.requests[request].done) return true;
    if (!wait_for("MPI_Test", MPI_SUCCESS, &mpi.requests[request].request, err)) return false;
    ended(request);
    return true;
}

#else

static bool missing(Error *err) {
    return error_set(err, "built without MPI, which several processes on the CPU need; install libopenmpi-dev and "
                          "openmpi-bin, run make again, and start with mpirun -n N ./train_gpt2");
}

bool channel_mpi_is_built(void) { return false; }
const Channel *channel_mpi_open(Place *place, Error *err) {
    (void)place;
    return missing(err), NULL;
}

bool mpi_is_connected(Error *err) { return missing(err); }
const char *mpi_name(void) { return ""; }
bool mpi_start_all_to_all(void *recv, const void *send, const Range *parts, int request, Error *err) {
    (void)recv, (void)send, (void)parts, (void)request;
    return missing(err);
}
bool mpi_start_all_gather(void *data, const Range *parts, int request, Error *err) {
    return mpi_start_all_to_all(data, data, parts, request, err);
}
void mpi_progress(void (*ended)(int request)) { (void)ended; }
bool mpi_wait(int request, void (*ended)(int request), Error *err) {
    (void)ended;
    return mpi_start_all_to_all(NULL, NULL, NULL, request, err);
}

#endif
