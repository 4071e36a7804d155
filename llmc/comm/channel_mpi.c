// Messages by MPI, for processes that mpirun or srun --mpi started: see channel.h. The CPU's devices use the same MPI
// (llmc/cpu/collectives.c). Built where mpicc is found (the Makefile sets HAVE_MPI).
#include "llmc/comm/channel.h"

#ifdef HAVE_MPI
#include <limits.h>
#include <mpi.h>

static bool failed(const char *call, int status, Error *err) {
    char text[MPI_MAX_ERROR_STRING] = "";
    int length = 0;
    MPI_Error_string(status, text, &length);
    return error_set(err, "%s: %s", call, text);
}

static bool mpi_gather(const void *mine, void *all, size_t bytes, Error *err) {
    REQUIRE(bytes <= INT_MAX, "a message of %zu bytes", bytes);
    const int status = MPI_Allgather(mine, (int)bytes, MPI_BYTE, all, (int)bytes, MPI_BYTE, MPI_COMM_WORLD);
    return status == MPI_SUCCESS || failed("MPI_Allgather", status, err);
}

static bool mpi_broadcast(void *data, size_t bytes, Error *err) {
    REQUIRE(bytes <= INT_MAX, "a message of %zu bytes", bytes);
    const int status = MPI_Bcast(data, (int)bytes, MPI_BYTE, 0, MPI_COMM_WORLD);
    return status == MPI_SUCCESS || failed("MPI_Bcast", status, err);
}

static void mpi_abort(int exit_code) { MPI_Abort(MPI_COMM_WORLD, exit_code); }
static void mpi_close(void) { MPI_Finalize(); }

bool channel_mpi_is_built(void) { return true; }

const Channel *channel_mpi_open(Place *place, Error *err) {
    static const Channel channel = {"MPI", mpi_gather, mpi_broadcast, mpi_abort, mpi_close};
    int provided, size = 0;
    int status = MPI_Init_thread(NULL, NULL, MPI_THREAD_FUNNELED, &provided); // other threads never call it
    if (status != MPI_SUCCESS) return failed("MPI_Init_thread", status, err), NULL;
    MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    if (size != place->size)
        return error_set(err, "MPI has %d processes, %s says %d; was the program built with another MPI?", size,
                         place->launcher, place->size),
               NULL;
    MPI_Comm_rank(MPI_COMM_WORLD, &place->rank);
    MPI_Comm machine;
    status = MPI_Comm_split_type(MPI_COMM_WORLD, MPI_COMM_TYPE_SHARED, place->rank, MPI_INFO_NULL, &machine);
    if (status != MPI_SUCCESS) return failed("MPI_Comm_split_type", status, err), NULL;
    MPI_Comm_rank(machine, &place->local_rank);
    MPI_Comm_size(machine, &place->local_size);
    MPI_Comm_free(&machine);
    return &channel;
}

#else

bool channel_mpi_is_built(void) { return false; }

const Channel *channel_mpi_open(Place *place, Error *err) {
    (void)place;
    return error_set(err, "built without MPI; install libopenmpi-dev and build again"), NULL;
}

#endif
