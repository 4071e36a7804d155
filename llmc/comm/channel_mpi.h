// Messages by MPI between processes that mpirun or srun --mpi started.
#pragma once
#include "llmc/comm/channel.h"
#include "llmc/comm/place.h"

// Fills in the rank. NULL with a message. NULL itself in a program that was built without MPI.
extern const Channel *(*const channel_mpi_open)(Place *place, Error *err);
