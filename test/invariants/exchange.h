// The collectives of device.h between processes that fork made, in memory that they share: on the
// CPU, where the product has those of MPI, which wants mpirun. A request is as late as the contract
// allows: nothing is read from a sender and nothing arrives before the wait for it, so that a wait
// that is missing, or memory that is used too early, shows in the bits. Weak: where the program is
// linked with a backend for GPUs, that backend's own are taken.
#pragma once
#include "llmc/cpu/collectives_mpi.h"
#include "llmc/device.h"
#include "test/test.h"

#include <pthread.h>
#include <sys/mman.h>

enum {
    EXCHANGE_PROCESSES = 8,
    EXCHANGE_BYTES = 64 << 20
}; // of each process; untouched pages take no memory

static struct {
    pthread_barrier_t *all; // in the shared memory, of one run
    char *outgoing;         // (EXCHANGE_PROCESSES, EXCHANGE_BYTES)
    int rank, size;
    struct {
        void *recv; // NULL: data is gathered in place
        const void *send;
        Range parts[EXCHANGE_PROCESSES];
        bool in_flight;
    } requests[DEVICE_COMM_REQUESTS];
} exchange;

// Before the processes of a run are forked.
static void exchange_prepare(int size) {
    const size_t bytes = (size_t)EXCHANGE_PROCESSES * EXCHANGE_BYTES;
    if (!exchange.all) {
        exchange.all = mmap(NULL, sizeof *exchange.all, PROT_READ | PROT_WRITE,
                            MAP_SHARED | MAP_ANONYMOUS, -1, 0);
        exchange.outgoing = mmap(NULL, bytes, PROT_READ | PROT_WRITE,
                                 MAP_SHARED | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (exchange.all == MAP_FAILED || exchange.outgoing == MAP_FAILED) perror("mmap"), abort();
    }

    pthread_barrierattr_t shared;
    pthread_barrierattr_init(&shared);
    pthread_barrierattr_setpshared(&shared, PTHREAD_PROCESS_SHARED);
    // a run that was killed leaves one in use
    pthread_barrier_init(exchange.all, &shared, (unsigned)size);
    pthread_barrierattr_destroy(&shared);
}

#define WEAK __attribute__((weak))

WEAK bool device_comm_id(char id[DEVICE_COMM_ID_BYTES], Error *err) {
    (void)err;
    memset(id, 0, DEVICE_COMM_ID_BYTES);
    return true;
}

WEAK bool device_comm_start(const char id[DEVICE_COMM_ID_BYTES], int rank, int size, double seconds,
                            Error *err) {
    (void)id, (void)seconds;
    if (size > EXCHANGE_PROCESSES)
        return error_set(err, "%d processes, at most %d", size, EXCHANGE_PROCESSES);
    exchange.rank = rank, exchange.size = size;
    return true;
}

WEAK const char *device_comm_library(void) { return "shared memory"; }
WEAK void device_comm_progress(void) {}
WEAK void device_comm_observe(const CommObserver *observer) { (void)observer; }
WEAK bool device_comm_failed(Error *err) { return (void)err, false; }
WEAK void device_comm_abort(void) {}
WEAK void cpu_comm_shutdown(void) {}

static bool exchange_begin(void *recv, const void *send, const Range *parts, int request) {
    REQUIRE(request >= 0 && request < DEVICE_COMM_REQUESTS, "request %d", request);
    REQUIRE(!exchange.requests[request].in_flight, "request %d is in flight", request);
    for (int r = 0; r < exchange.size; r++)
        REQUIRE(parts[r].begin % 4 == 0 && parts[r].end % 4 == 0 && parts[r].end <= EXCHANGE_BYTES,
                "part %d", r);
    memcpy(exchange.requests[request].parts, parts, (size_t)exchange.size * sizeof *parts);
    exchange.requests[request].recv = recv;
    exchange.requests[request].send = send;
    return exchange.requests[request].in_flight = true;
}

WEAK bool device_all_to_all(void *recv, const void *send, const Range *parts, int request,
                            Error *err) {
    (void)err;
    return exchange_begin(recv, send, parts, request);
}

WEAK bool device_all_gather(void *data, const Range *parts, int request, Error *err) {
    (void)err;
    return exchange_begin(NULL, data, parts, request);
}

WEAK bool device_comm_wait(int request, Error *err) {
    (void)err;
    REQUIRE(request >= 0 && request < DEVICE_COMM_REQUESTS && exchange.requests[request].in_flight,
            "request %d is not in flight", request);
    exchange.requests[request].in_flight = false;

    const Range *parts = exchange.requests[request].parts, own = parts[exchange.rank];
    const bool gathers = exchange.requests[request].recv == NULL;
    const char *send = exchange.requests[request].send;
    char *mine = exchange.outgoing + (size_t)exchange.rank * EXCHANGE_BYTES,
         *recv = exchange.requests[request].recv;

    for (int r = 0; r < exchange.size; r++)
        if (!gathers || r == exchange.rank)
            memcpy(mine + parts[r].begin, send + parts[r].begin, (size_t)range_size(parts[r]));

    pthread_barrier_wait(exchange.all);
    for (int r = 0; r < exchange.size; r++) {
        const char *theirs = exchange.outgoing + (size_t)r * EXCHANGE_BYTES;
        if (!gathers)
            memcpy(recv + r * range_size(own), theirs + own.begin, (size_t)range_size(own));
        else if (r != exchange.rank)
            memcpy((char *)(uintptr_t)send + parts[r].begin, theirs + parts[r].begin,
                   (size_t)range_size(parts[r]));
    }

    pthread_barrier_wait(exchange.all); // all have read: the memory may be written again
    return true;
}

#undef WEAK
