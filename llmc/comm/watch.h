// The watch: a thread in each process of a run that ends it when a process is lost.
//
//   - Another process has ended: its connection to process 0 closes. Process 0 names it and tells
//     the others; if process 0 is the one, the first of the others on each machine names it. Over
//     MPI there are no connections: mpirun names the process and ends the others.
//   - This process has made no progress for PRETRAIN_COMM_TIMEOUT seconds: it waits for a
//     process that hangs or is stopped, or hangs itself. It says so, and in which collective.
//
// Then every wait of llmc/comm and of the devices fails, and the main thread ends the process. If
// it cannot, because it waits in a library or for a GPU, the thread ends the process.
#pragma once
#include "llmc/base/error.h"

#include <stdint.h>

typedef struct {
    int rank, size;
    const char (*hosts)[64]; // of all processes; stays with the caller
    const int *sockets;      // by rank, -1: none; NULL: no connections. The watch closes them
    double seconds;          // without progress until the run ends
} WatchOptions;

// Starts the thread.
bool watch_start(const WatchOptions *options, Error *err);
// Ends the thread. Tells the others that this process ends as it should, unless `lost`. Without
// watch_start it does nothing.
void watch_stop(bool lost);

// The main thread calls watch_progress at least once a micro-step, and watch_collective when it
// enters a collective, whose name (a literal) messages and the profile show. Both work without a
// watch.
void watch_progress(void);
void watch_collective(const char *name);
const char *watch_collective_name(void); // of the last one
void watch_step(int64_t step);           // the number of steps done

// True with a message, which has been printed already, when a process was lost. For any thread.
bool watch_has_failed(Error *err);

// Names another connection of the processes (NCCL); NULL: there is none any more. Without it a
// process whose exchange has failed would wait for messages of others, which wait for its part of
// the exchange.
void watch_device(bool (*has_failed)(Error *err));
bool watch_is_lost(Error *err); // a process, or the exchange of the devices
