// Collectives of device.h on the CPU: by the MPI that started the processes. Device memory is host memory, so a request
// is a non-blocking call of MPI, and waiting for it completes it.
#include "llmc/comm/mpi.h"
#include "llmc/device.h"

#include <string.h>

bool device_comm_id(char id[DEVICE_COMM_ID_BYTES], Error *err) {
    memset(id, 0, DEVICE_COMM_ID_BYTES); // MPI knows its processes
    return mpi_is_connected(err);
}

bool device_comm_start(const char id[DEVICE_COMM_ID_BYTES], int rank, int size, Error *err) {
    (void)id, (void)rank, (void)size;
    return mpi_is_connected(err);
}

const char *device_comm_library(void) { return mpi_name(); }

bool device_all_to_all(void *recv, const void *send, size_t bytes, int request, Error *err) {
    return mpi_start_all_to_all(recv, send, bytes, request, err);
}

bool device_all_gather(void *data, size_t bytes, int request, Error *err) {
    return mpi_start_all_gather(data, bytes, request, err);
}

bool device_comm_wait(int request, Error *err) { return mpi_wait(request, err); }

void device_comm_abort(void) {} // comm_abort ends the processes
