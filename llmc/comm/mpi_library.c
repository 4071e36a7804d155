// Loads the MPI library when it has started several processes, so that a program that runs alone
// neither needs nor loads it; and the channel over it.
#include "llmc/comm/mpi_library.h"

#include "llmc/comm/watch.h"

#ifdef HAVE_MPI
#include <dlfcn.h>
#include <limits.h>
#include <sched.h>
#include <string.h>

MpiLibrary mpi;

#ifdef OPEN_MPI // its constants are addresses of variables of the library
#define MPI_VARIABLES(X)                                                                           \
    X(ompi_mpi_comm_world)                                                                         \
    X(ompi_mpi_errors_return) X(ompi_mpi_byte) X(ompi_mpi_int) X(ompi_mpi_datatype_null)
static const char *const mpi_files[] = {"libmpi.so.40", "libmpi.so"};
#else
#define MPI_VARIABLES(X)
static const char *const mpi_files[] = {"libmpi.so.12", "libmpich.so.12", "libmpi.so"};
#endif

static struct {
#define X(name) char *name;
    MPI_VARIABLES(X)
#undef X
} mpi_variables;

static const struct {
    const char *name;
    void *pointer;
} mpi_symbols[] = {
#define X(symbol) {#symbol, &mpi.symbol},
    MPI_FUNCTIONS(X)
#undef X
#define X(symbol) {#symbol, &mpi_variables.symbol},
        MPI_VARIABLES(X)
#undef X
};

// From here on the names of the variables mean the loaded ones.
#define ompi_mpi_comm_world    (*mpi_variables.ompi_mpi_comm_world)
#define ompi_mpi_errors_return (*mpi_variables.ompi_mpi_errors_return)
#define ompi_mpi_byte          (*mpi_variables.ompi_mpi_byte)
#define ompi_mpi_int           (*mpi_variables.ompi_mpi_int)
#define ompi_mpi_datatype_null (*mpi_variables.ompi_mpi_datatype_null)

bool mpi_check(const char *call, int status, Error *err) {
    if (status == MPI_SUCCESS) return true;
    char text[MPI_MAX_ERROR_STRING] = "";
    int length = 0;
    mpi.MPI_Error_string(status, text, &length);
    return error_set(err, "%s: %s", call, text);
}

bool mpi_await(const char *call, int status, MPI_Request *request, Error *err) {
    for (int done = 0;;) {
        if (status == MPI_SUCCESS) status = mpi.MPI_Test(request, &done, MPI_STATUS_IGNORE);
        if (status != MPI_SUCCESS) return mpi_check(call, status, err);
        if (done) return true;
        if (watch_has_failed(err)) return false;
        sched_yield(); // the other processes may need this core
    }
}

static bool mpi_exchange(ExchangeKind kind, const void *mine, void *all, size_t bytes, Error *err) {
    const int n = (int)bytes;
    MPI_Request request;
    REQUIRE(bytes <= INT_MAX, "a message of %zu bytes", bytes);
    if (kind == EXCHANGE_GATHER) {
        const int status =
            mpi.MPI_Iallgather(mine, n, mpi.byte, all, n, mpi.byte, mpi.world, &request);
        return mpi_await("MPI_Iallgather", status, &request, err);
    }
    const int status = mpi.MPI_Ibcast(all, n, mpi.byte, 0, mpi.world, &request);
    return mpi_await("MPI_Ibcast", status, &request, err);
}

static void mpi_close(int exit_code) {
    if (exit_code) mpi.MPI_Abort(mpi.world, exit_code);
    mpi.MPI_Finalize();
    *mpi.name = '\0';
}

static const Channel *mpi_connect(Place *place, Error *err) {
    static const Channel CHANNEL = {"MPI", mpi_exchange, mpi_close};
    void *library = NULL;
    int provided, length = 0;
    char text[MPI_MAX_LIBRARY_VERSION_STRING];

    for (size_t i = 0; !library && i < sizeof mpi_files / sizeof *mpi_files; i++)
        // global: MPI's plugins use its symbols
        library = dlopen(mpi_files[i], RTLD_NOW | RTLD_GLOBAL);
    if (!library) {
        error_set(err, "MPI is not installed here: %s", dlerror());
        return NULL;
    }

    for (size_t i = 0; i < sizeof mpi_symbols / sizeof *mpi_symbols; i++) {
        void *address = dlsym(library, mpi_symbols[i].name);
        if (!address) {
            error_set(err,
                      "the MPI library has no %s; build again with the MPI that starts the program",
                      mpi_symbols[i].name);
            return NULL;
        }
        memcpy(mpi_symbols[i].pointer, &address, sizeof address);
    }

    // Only the main thread calls MPI.
    const int status = mpi.MPI_Init_thread(NULL, NULL, MPI_THREAD_FUNNELED, &provided);
    if (!mpi_check("MPI_Init_thread", status, err)) return NULL;
    mpi.MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
    mpi.MPI_Get_library_version(text, &length);
    text[strcspn(text, ",\n")] = '\0'; // "Open MPI v4.1.4, package: ..."
    snprintf(mpi.name, sizeof mpi.name, "%s", text);

    mpi.world = MPI_COMM_WORLD;
    mpi.byte = MPI_BYTE;
    mpi.integer = MPI_INT;
    mpi.no_type = MPI_DATATYPE_NULL;
    mpi.MPI_Comm_size(mpi.world, &mpi.size);
    mpi.MPI_Comm_rank(mpi.world, &mpi.rank);
    place->rank = mpi.rank;

    if (mpi.size == place->size) return &CHANNEL;
    error_set(err, "%s knows %d processes, %s says %d; was another MPI used to start them?",
              mpi.name, mpi.size, place->launcher, place->size);
    return NULL;
}

const Channel *(*const mpi_channel_open)(Place *place, Error *err) = mpi_connect;

#else

const Channel *(*const mpi_channel_open)(Place *place, Error *err) = NULL;

#endif

bool mpi_missing(Error *err) {
    return error_set(
        err,
        "built without MPI, which several processes on the CPU need; install libopenmpi-dev and "
        "openmpi-bin, run make again, and start with mpirun -n N ./train_gpt2");
}
