// A way to pass messages between processes: over TCP (channel_tcp.h) or MPI (mpi_library.h). One is
// open at a time.
#pragma once
#include "llmc/base/error.h"

#include <stddef.h>

typedef enum { EXCHANGE_GATHER, EXCHANGE_BROADCAST } ExchangeKind;

typedef struct {
    const char *name; // "MPI", "TCP"
    // In a gather `all` receives `bytes` of every process, in the order of ranks; in a broadcast
    // `all` (bytes) is process 0's before and everybody's afterwards, and `mine` is not used.
    bool (*exchange)(ExchangeKind kind, const void *mine, void *all, size_t bytes, Error *err);
    // 0: all have ended as they should. Otherwise the exchanges of the others fail; does not return
    // where MPI connects.
    void (*close)(int exit_code);
} Channel;
