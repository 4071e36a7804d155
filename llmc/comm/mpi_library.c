// Loads the MPI library when it has started several processes, so that a program that runs alone neither needs nor
// loads it.
#include "llmc/comm/mpi_library.h"

#include "llmc/comm/watch.h"

#ifdef HAVE_MPI
#include <dlfcn.h>
#include <sched.h>
#include <string.h>

MpiLibrary mpi;

#ifdef OPEN_MPI // its constants are addresses of variables of the library
#define MPI_VARIABLES(X)                                                                                               \
    X(ompi_mpi_comm_world) X(ompi_mpi_errors_return) X(ompi_mpi_byte) X(ompi_mpi_int) X(ompi_mpi_datatype_null)
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

bool mpi_open(Error *err) {
    void *library = NULL;
    int provided, length = 0;
    char text[MPI_MAX_LIBRARY_VERSION_STRING];
    for (size_t i = 0; !library && i < sizeof mpi_files / sizeof *mpi_files; i++)
        library = dlopen(mpi_files[i], RTLD_NOW | RTLD_GLOBAL); // global: MPI's plugins use its symbols
    if (!library) return error_set(err, "MPI is not installed here: %s", dlerror());
    for (size_t i = 0; i < sizeof mpi_symbols / sizeof *mpi_symbols; i++) {
        void *address = dlsym(library, mpi_symbols[i].name);
        if (!address)
            return error_set(err, "the MPI library has no %s; build again with the MPI that starts the program",
                             mpi_symbols[i].name);
        memcpy(mpi_symbols[i].pointer, &address, sizeof address);
    }
    // Only the main thread calls MPI.
    const int status = mpi.MPI_Init_thread(NULL, NULL, MPI_THREAD_FUNNELED, &provided);
    if (!mpi_check("MPI_Init_thread", status, err)) return false;
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
    return true;
}

#endif

bool mpi_missing(Error *err) {
    return error_set(err, "built without MPI, which several processes on the CPU need; install libopenmpi-dev and "
                          "openmpi-bin, run make again, and start with mpirun -n N ./train_gpt2");
}
