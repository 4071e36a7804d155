// What the CPU's devices exchange over MPI (llmc/cpu/collectives.c): see the collectives of llmc/device.h, whose rules
// hold here.
#pragma once
#include "llmc/base/error.h"

#include <stddef.h>

bool mpi_is_connected(Error *err); // false: MPI did not start this process, or the program was built without it
const char *mpi_name(void);        // "Open MPI v4.1.4"
bool mpi_start_all_to_all(void *recv, const void *send, size_t bytes, int request, Error *err);
bool mpi_start_all_gather(void *data, size_t bytes, int request, Error *err);
bool mpi_wait(int request, Error *err);
