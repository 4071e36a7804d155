// The collectives of device.h on GPUs: NCCL moves bytes between the devices of the processes. Owns
// the communicator and the events that order it with the compute stream. It never asks NCCL to add:
// the order of its sums depends on topology and message size.
//
// The communicator does not block: a call may return ncclInProgress while a thread of NCCL does the
// work. NCCL documents this as the only kind that can be aborted safely. Until
// ncclCommGetAsyncError says that a call is done, nothing may rely on it, and no other call may be
// made; in particular its kernel may not be in the stream yet. So every call is followed by
// settle().
#include "llmc/cuda/nccl_library.h"

#include "llmc/base/arithmetic.h"
#include "llmc/base/clock.h"
#include "llmc/base/format.h"
#include "llmc/comm/watch.h"
#include "llmc/cuda/backend.h"
#include "llmc/cuda/library_loader.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#ifdef HAVE_NCCL

_Static_assert(sizeof(ncclUniqueId) == DEVICE_COMM_ID_BYTES, "NCCL's id has another size");

static const double LEAVE_SECONDS = 60.0;

// From Hopper on cuBLASLt's products are persistent: one block on each multiprocessor, the tiles
// dealt out beforehand. Where NCCL's blocks hold some of them, the last blocks of a product start
// when the others end, and it takes up to twice as long. So NCCL has at most this share of them, 16
// of an H200, and products leave it free (gemm.c).
enum { EXCHANGE_SHARE = 8, FIRST_PERSISTENT = 90 };

static struct {
    bool started;
    ncclComm_t handle; // NULL once aborted
    int rank, size;
    char library[48];
    cudaEvent_t queued; // what the compute stream had to do when a request was made
    cudaEvent_t done[DEVICE_COMM_REQUESTS]; // the request; made when its number is first used
    bool in_flight[DEVICE_COMM_REQUESTS];
    Range *to, *from; // (size): scratch of a request
} comm;

// ------------------------------------------------------------------------------- calls in progress

// The final status of a call that returned `status`; ncclInProgress after this number of seconds,
// or when a process was lost. Sleeps 20 us, then longer: a request takes NCCL some 50 us, a start
// seconds.
static ncclResult_t settle(ncclResult_t status, double seconds) {
    const double deadline = now_seconds() + seconds;
    struct timespec pause = {0, 20 * 1000};
    while (status == ncclInProgress && now_seconds() < deadline && !watch_has_failed(NULL)) {
        nanosleep(&pause, NULL);
        if (pause.tv_nsec < 1000 * 1000) pause.tv_nsec *= 2;
        const ncclResult_t asked = nccl.ncclCommGetAsyncError(comm.handle, &status);
        if (asked != ncclSuccess) return asked;
    }
    return status;
}

// "what: rank 1 of 4: NCCL: its name of the status (what it says of its last error)"; returns
// false.
static bool nccl_failed(Error *err, const char *what, ncclResult_t status) {
    const char *said = nccl.ncclGetLastError(comm.handle);
    char last[400];
    snprintf(last, sizeof last, "%s", said ? said : "");
    library_message_one_line(last);
    const char *name = nccl.ncclGetErrorString(status);
    if (status == ncclInProgress) name = "not done in time, another process is missing or hangs";
    if (*last)
        return error_set(err, "%s: rank %d of %d: NCCL: %s (%s)", what, comm.rank, comm.size, name,
                         last);
    return error_set(err, "%s: rank %d of %d: NCCL: %s", what, comm.rank, comm.size, name);
}

// The result of what is queued, as far as it is known; ncclInProgress: a call has not ended.
static ncclResult_t async_status(void) {
    ncclResult_t status = ncclSuccess;
    const ncclResult_t asked = nccl.ncclCommGetAsyncError(comm.handle, &status);
    if (asked != ncclSuccess) return asked;
    return status;
}

// --------------------------------------------------------------------------------- start and leave

bool device_comm_id(char id[DEVICE_COMM_ID_BYTES], Error *err) {
    ncclUniqueId unique;
    if (!nccl_library_open(err)) return false;
    const ncclResult_t status = nccl.ncclGetUniqueId(&unique);
    if (status != ncclSuccess)
        return error_set(err, "NCCL makes no id: %s", nccl.ncclGetErrorString(status));
    memcpy(id, &unique, sizeof unique);
    return true;
}

bool device_comm_start(const char id[DEVICE_COMM_ID_BYTES], int rank, int size, double seconds,
                       Error *err) {
    REQUIRE(cuda_backend.ready, "device_comm_start before device_init");
    REQUIRE(!comm.started, "device_comm_start: called twice");
    REQUIRE(rank >= 0 && rank < size, "device_comm_start: rank %d of %d", rank, size);
    if (!nccl_library_open(err)) return false;
    comm.rank = rank;
    comm.size = size;

    ncclUniqueId unique;
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    config.blocking = 0;
    int units = 0;
    if (size > 1 && cuda_backend.compute_capability >= FIRST_PERSISTENT)
        config.maxCTAs = units = (int)max_i64(1, cuda_backend.num_sms / EXCHANGE_SHARE);
    memcpy(&unique, id, sizeof unique);
    CUDA_CHECK(cudaSetDevice(cuda_backend.device)); // NCCL takes the device that is current

    const ncclResult_t status =
        settle(nccl.ncclCommInitRankConfig(&comm.handle, size, unique, rank, &config), seconds);
    if (status == ncclInProgress)
        error_set(
            err,
            "start of NCCL: rank %d of %d waited %.0f s for the others: not all processes came",
            rank, size, seconds);
    else if (status != ncclSuccess)
        nccl_failed(err, "start of NCCL", status);
    if (status != ncclSuccess) {
        device_comm_abort();
        return false;
    }

    CUDA_CHECK(cudaEventCreateWithFlags(&comm.queued, cudaEventDisableTiming));
    snprintf(comm.library, sizeof comm.library, "NCCL %s", nccl_library_version_text());
    comm.to = calloc((size_t)size, sizeof *comm.to);
    comm.from = calloc((size_t)size, sizeof *comm.from);
    REQUIRE_MEMORY(comm.to && comm.from, "the parts of a request");

    cuda_backend.exchange_units = units;
    comm.started = true;
    return true;
}

const char *device_comm_library(void) { return comm.library; }

void device_comm_abort(void) {
    if (!comm.handle) return;
    // whatever it answers, there is nothing else that ends it
    (void)nccl.ncclCommAbort(comm.handle);
    comm.handle = NULL;
}

void cuda_comm_shutdown(void) {
    if (!comm.started) return;
    // Completes what is queued and parts from the others, unless that fails or takes too long.
    if (comm.handle && async_status() == ncclSuccess &&
        settle(nccl.ncclCommFinalize(comm.handle), LEAVE_SECONDS) == ncclSuccess)
        (void)nccl.ncclCommDestroy(comm.handle);
    else
        device_comm_abort();
    CUDA_CHECK(cudaEventDestroy(comm.queued));
    for (int i = 0; i < DEVICE_COMM_REQUESTS; i++)
        if (comm.done[i]) CUDA_CHECK(cudaEventDestroy(comm.done[i]));
    free(comm.to);
    free(comm.from);
    memset(&comm, 0, sizeof comm);
}

// ---------------------------------------------------------------------------------------- requests
// A request on the host: the event `queued` makes STREAM_COMM wait for the compute stream,
// NCCL's kernel follows on STREAM_COMM, and the event done[request] after it is what
// device_comm_wait makes the compute stream wait for.

static cudaStream_t comm_stream(void) { return cuda_backend.streams[STREAM_COMM]; }

static bool usable(const char *what, int request, Error *err) {
    REQUIRE(comm.started, "%s before device_comm_start", what);
    REQUIRE(request >= 0 && request < DEVICE_COMM_REQUESTS, "%s: request %d, there are 0 to %d",
            what, request, DEVICE_COMM_REQUESTS - 1);
    if (watch_has_failed(err)) return false;
    if (!comm.handle)
        return error_set(err, "%s: rank %d of %d: the communicator was aborted", what, comm.rank,
                         comm.size);
    return true;
}

static const CommObserver *observer;

static bool begin_request(const char *what, const Range *parts, int request, Error *err) {
    if (!usable(what, request, err)) return false;
    for (int r = 0; r < comm.size; r++)
        REQUIRE(parts[r].begin >= 0 && parts[r].begin <= parts[r].end && parts[r].begin % 4 == 0 &&
                    parts[r].end % 4 == 0,
                "%s: part %d is bytes %lld to %lld", what, r, (long long)parts[r].begin,
                (long long)parts[r].end);
    REQUIRE(!comm.in_flight[request], "%s: request %d is in flight, device_comm_wait comes first",
            what, request);
    // NCCL may allocate and connect in a thread of its own, and the wait may come after the end of
    // the recording.
    REQUIRE(!cuda_backend.capturing, "%s while recording a graph", what);
    CUDA_CHECK(cudaEventRecord(comm.queued, cuda_compute_stream()));
    CUDA_CHECK(cudaStreamWaitEvent(comm_stream(), comm.queued, 0));
    if (observer) observer->request(request, true);
    return true;
}

static bool end_request(const char *what, ncclResult_t status, int request, Error *err) {
    // The first request connects the processes, and waits for the slowest, which may still compute.
    status = settle(status, INFINITY);
    if (status != ncclSuccess) return nccl_failed(err, what, status);
    if (!comm.done[request])
        CUDA_CHECK(cudaEventCreateWithFlags(&comm.done[request], cudaEventDisableTiming));
    CUDA_CHECK(cudaEventRecord(comm.done[request], comm_stream()));
    if (observer) observer->request(request, false);
    comm.in_flight[request] = true;
    cuda_backend.requests++;
    return true;
}

static bool accepted(ncclResult_t status) {
    return status == ncclSuccess || status == ncclInProgress;
}

// In a group: comm.to[r] of send goes to process r, and comm.from[r] of recv comes from it.
static bool exchange(const char *what, void *recv, const void *send, int request, Error *err) {
    ncclResult_t status = nccl.ncclGroupStart();
    for (int r = 0; r < comm.size && accepted(status); r++) {
        const size_t sent = (size_t)range_size(comm.to[r]),
                     received = (size_t)range_size(comm.from[r]);
        const char *outgoing = (const char *)send + comm.to[r].begin;
        char *incoming = (char *)recv + comm.from[r].begin;
        if (sent > 0)
            status = nccl.ncclSend(outgoing, sent, ncclInt8, r, comm.handle, comm_stream());
        if (received > 0 && accepted(status))
            status = nccl.ncclRecv(incoming, received, ncclInt8, r, comm.handle, comm_stream());
    }
    const ncclResult_t ended = nccl.ncclGroupEnd();
    if (accepted(status)) status = ended;
    return end_request(what, status, request, err);
}

bool device_all_to_all(void *recv, const void *send, const Range *parts, int request, Error *err) {
    if (!begin_request("device_all_to_all", parts, request, err)) return false;
    const int64_t n = range_size(parts[comm.rank]);
    for (int r = 0; r < comm.size; r++) {
        comm.to[r] = parts[r];
        comm.from[r] = (Range){r * n, (r + 1) * n};
    }
    return exchange("device_all_to_all", recv, send, request, err);
}

// NCCL's all-gather sends each byte once between machines; it takes equal parts, one after the
// other. Other parts go from process to process.
bool device_all_gather(void *data, const Range *parts, int request, Error *err) {
    if (!begin_request("device_all_gather", parts, request, err)) return false;
    const Range own = parts[comm.rank];
    const int64_t n = range_size(own);
    bool regular = true;
    for (int r = 0; r < comm.size; r++)
        regular &= parts[r].begin == r * n && parts[r].end == (r + 1) * n;
    if (regular)
        return end_request("device_all_gather",
                           nccl.ncclAllGather((const char *)data + own.begin, data, (size_t)n,
                                              ncclInt8, comm.handle, comm_stream()),
                           request, err);
    for (int r = 0; r < comm.size; r++) {
        comm.to[r] = own;
        comm.from[r] = parts[r];
    }
    comm.to[comm.rank] = comm.from[comm.rank] = (Range){0, 0};
    return exchange("device_all_gather", data, data, request, err);
}

void device_comm_progress(void) {}
void device_comm_observe(const CommObserver *o) { observer = o; }

bool device_comm_failed(Error *err) {
    const ncclResult_t status = comm.handle ? async_status() : ncclSuccess;
    if (accepted(status)) return false;
    (void)nccl_failed(err, "exchange", status);
    return true;
}

bool device_comm_wait(int request, Error *err) {
    if (!usable("device_comm_wait", request, err)) return false;
    REQUIRE(comm.in_flight[request], "device_comm_wait: request %d was not made", request);
    const ncclResult_t status = async_status();
    if (status != ncclSuccess) return nccl_failed(err, "device_comm_wait", status);
    if (observer) observer->wait(true);
    CUDA_CHECK(cudaStreamWaitEvent(cuda_compute_stream(), comm.done[request], 0));
    if (observer) observer->wait(false);
    comm.in_flight[request] = false;
    cuda_backend.requests--;
    return true;
}

#else
#pragma GCC diagnostic ignored "-Wunused-parameter"

bool device_comm_id(char id[DEVICE_COMM_ID_BYTES], Error *err) { return nccl_library_open(err); }
bool device_comm_start(const char id[DEVICE_COMM_ID_BYTES], int rank, int size, double seconds,
                       Error *err) {
    return nccl_library_open(err);
}
const char *device_comm_library(void) { return ""; }
void device_comm_abort(void) {}
void cuda_comm_shutdown(void) {}

bool device_all_to_all(void *recv, const void *send, const Range *parts, int request, Error *err) {
    REQUIRE(false, "device_all_to_all before device_comm_start");
}
bool device_all_gather(void *data, const Range *parts, int request, Error *err) {
    REQUIRE(false, "device_all_gather before device_comm_start");
}
void device_comm_progress(void) {}
void device_comm_observe(const CommObserver *o) {}
bool device_comm_failed(Error *err) { return false; }
bool device_comm_wait(int request, Error *err) {
    REQUIRE(false, "device_comm_wait before device_comm_start");
}

#endif
