// Collectives of device.h on the CPU: by the MPI that started the processes. Device memory is host memory, so a request
// is a non-blocking MPI call and waiting completes it. Without MPI there are no several processes on the CPU.
#include "llmc/device.h"

#ifdef HAVE_MPI
#include <limits.h>
#include <mpi.h>
#include <stdio.h>
#include <string.h>

static struct {
    int size;
    char library[64];
    MPI_Request requests[2];
    bool in_flight[2];
} comm;

static bool failed(const char *call, int status, Error *err) {
    char text[MPI_MAX_ERROR_STRING] = "";
    int length = 0;
    MPI_Error_string(status, text, &length);
    return error_set(err, "%s: %s", call, text);
}

bool device_comm_id(char id[DEVICE_COMM_ID_BYTES], Error *err) {
    int initialized = 0;
    memset(id, 0, DEVICE_COMM_ID_BYTES); // MPI knows its processes
    MPI_Initialized(&initialized);
    return initialized || error_set(err, "on the CPU several processes are started by mpirun: mpirun -n N ./train_gpt2 "
                                         "with the same options");
}

bool device_comm_start(const char id[DEVICE_COMM_ID_BYTES], int rank, int size, Error *err) {
    (void)id, (void)rank, (void)err;
    char text[MPI_MAX_LIBRARY_VERSION_STRING];
    int length = 0;
    MPI_Get_library_version(text, &length);
    text[strcspn(text, ",\n")] = '\0'; // "Open MPI v4.1.4, package: ..."
    snprintf(comm.library, sizeof comm.library, "%s", text);
    comm.size = size;
    return true;
}

const char *device_comm_library(void) { return comm.library; }

static MPI_Request *begin(size_t bytes, int request) {
    REQUIRE(comm.size > 0, "a collective before device_comm_start");
    REQUIRE(request == 0 || request == 1, "request %d", request);
    REQUIRE(!comm.in_flight[request], "request %d is in flight", request);
    REQUIRE(bytes % 4 == 0 && bytes <= INT_MAX, "slices of %zu bytes", bytes);
    comm.in_flight[request] = true;
    return &comm.requests[request];
}

bool device_all_to_all(void *recv, const void *send, size_t bytes, int request, Error *err) {
    MPI_Request *r = begin(bytes, request);
    const int n = (int)bytes, status = MPI_Ialltoall(send, n, MPI_BYTE, recv, n, MPI_BYTE, MPI_COMM_WORLD, r);
    return status == MPI_SUCCESS || failed("MPI_Ialltoall", status, err);
}

bool device_all_gather(void *data, size_t bytes, int request, Error *err) {
    MPI_Request *r = begin(bytes, request);
    const int n = (int)bytes;
    const int status = MPI_Iallgather(MPI_IN_PLACE, 0, MPI_DATATYPE_NULL, data, n, MPI_BYTE, MPI_COMM_WORLD, r);
    return status == MPI_SUCCESS || failed("MPI_Iallgather", status, err);
}

bool device_comm_wait(int request, Error *err) {
    REQUIRE((request == 0 || request == 1) && comm.in_flight[request], "request %d is not in flight", request);
    comm.in_flight[request] = false;
    const int status = MPI_Wait(&comm.requests[request], MPI_STATUS_IGNORE);
    return status == MPI_SUCCESS || failed("MPI_Wait", status, err);
}

void device_comm_abort(void) { comm.in_flight[0] = comm.in_flight[1] = false; } // comm_abort ends the processes

#else

bool device_comm_id(char id[DEVICE_COMM_ID_BYTES], Error *err) {
    (void)id;
    return error_set(err, "built without MPI, which several processes on the CPU need; install libopenmpi-dev and "
                          "openmpi-bin, build again, and start with mpirun -n N ./train_gpt2");
}
bool device_comm_start(const char id[DEVICE_COMM_ID_BYTES], int rank, int size, Error *err) {
    (void)rank, (void)size;
    char none[DEVICE_COMM_ID_BYTES];
    (void)id;
    return device_comm_id(none, err);
}
const char *device_comm_library(void) { return ""; }
bool device_all_to_all(void *recv, const void *send, size_t bytes, int request, Error *err) {
    (void)recv, (void)send, (void)bytes, (void)request;
    return error_set(err, "no MPI");
}
bool device_all_gather(void *data, size_t bytes, int request, Error *err) {
    return device_all_to_all(data, data, bytes, request, err);
}
bool device_comm_wait(int request, Error *err) { return device_all_to_all(NULL, NULL, 0, request, err); }
void device_comm_abort(void) {}

#endif
