// The MPI library: the channel over it, between processes that mpirun or srun --mpi started, and
// what the exchange of the CPU's devices needs of it (llmc/cpu/collectives_mpi.c). mpi.h is that of
// the build (the Makefile sets HAVE_MPI where mpicc is).
#pragma once
#include "llmc/comm/channel.h"
#include "llmc/comm/place.h"

#ifdef HAVE_MPI
#include <mpi.h>

#define MPI_FUNCTIONS(X)                                                                           \
    X(MPI_Init_thread)                                                                             \
    X(MPI_Finalize)                                                                                \
    X(MPI_Abort)                                                                                   \
    X(MPI_Error_string)                                                                            \
    X(MPI_Get_library_version)                                                                     \
    X(MPI_Comm_set_errhandler)                                                                     \
    X(MPI_Comm_size)                                                                               \
    X(MPI_Comm_rank)                                                                               \
    X(MPI_Ibcast)                                                                                  \
    X(MPI_Iallgather)                                                                              \
    X(MPI_Ialltoallv)                                                                              \
    X(MPI_Iallgatherv)                                                                             \
    X(MPI_Test)

typedef struct {
#define X(name) __typeof__(name) *name;
    MPI_FUNCTIONS(X)
#undef X
    MPI_Comm world; // MPI_COMM_WORLD, MPI_BYTE, MPI_INT, MPI_DATATYPE_NULL: variables of the
                    // library in Open MPI
    MPI_Datatype byte, integer, no_type;
    char name[64]; // "Open MPI v4.1.4"; "": MPI does not connect the processes
    int rank, size;
} MpiLibrary;
extern MpiLibrary mpi;

// True if a call returned success; else a message.
bool mpi_check(const char *call, int status, Error *err);
// MPI_Wait for the request of a call that returned `status`. It ends when the run has failed, too.
bool mpi_await(const char *call, int status, MPI_Request *request, Error *err);
#endif

// Loads the library, calls MPI_Init and fills in the rank. NULL with a message. NULL itself in a
// program that was built without MPI.
extern const Channel *(*const mpi_channel_open)(Place *place, Error *err);
bool mpi_missing(Error *err); // false with a message: the program was built without MPI
