// The processes of a run: how many there are, which one this is, and small messages between their
// hosts. Each process has one device; what the devices exchange is in llmc/device.h. Without a
// launcher there is one process, and every call here returns at once.
//
// The processes are started by mpirun, by torchrun, by srun, by --gpus N, or one by one with
// llm.c's -pn and -pr. Messages go through MPI where it started them, else over one TCP connection
// from each process to process 0.
//
// All processes make the same calls in the same order, with the same sizes; TCP reports a
// difference. After a failed call none of the others can succeed.
//
// A thread in each process ends the run when a process is lost (llmc/comm/watch.h): then one line
// on stderr names it, and every call fails.
#pragma once
#include "llmc/base/error.h"
#include "llmc/comm/place.h"

#include <stddef.h>
#include <stdint.h>

enum { COMM_TIMEOUT = 600 }; // seconds, where CommOptions has none

// Finds the other processes and waits until all have come, at most a minute. False with a message
// that names the missing ones, or what is wrong with the environment.
bool comm_start(const CommOptions *options, Error *err);
void comm_end(void); // after the last call; without comm_start it does nothing

int comm_rank(void);       // 0 .. comm_size() - 1
int comm_size(void);       // 1: alone
int comm_local_rank(void); // among the processes of this machine
int comm_local_size(void); // of them
// CPU cores for this process: its affinity mask divided by the local processes that share it. 0:
// all of them.
int comm_cores(void);
int comm_hosts(void);            // machines
const char *comm_host(int rank); // the name of its machine; not alone
const char *comm_launcher(void); // "mpirun", "torchrun", "srun", "--gpus", "-pn"; "" alone

// all (size, bytes) = mine (bytes) of every process, in the order of ranks, on every process.
bool comm_gather(const void *mine, void *all, size_t bytes, Error *err);
// The same, malloced; NULL after a failure.
void *comm_gather_new(const void *mine, size_t bytes, Error *err);
// data (bytes) of process 0 to all.
bool comm_broadcast(void *data, size_t bytes, Error *err);
bool comm_barrier(Error *err);

// Ends a step that may have failed on some process only. False on all processes if `ok` is false on
// one; then *err has the message of the first that failed, with its rank and host.
bool comm_all_ok(bool ok, Error *err);

// Whether the run failed in comm_all_ok or comm_agree, so that all processes know and process 0
// alone reports it.
bool comm_failed_together(void);

// A fact that all processes must share, such as {"--learning-rate", "0.0006"}.
typedef struct {
    const char *name, *value;
} CommFact;
// False on all processes if one of the facts differs from process 0's: the message names process,
// host, fact and both values.
bool comm_agree(const CommFact *facts, int count, Error *err);

// After a failure of a collective. If a lost process is the reason, its message replaces *err; that
// may take two seconds to find out. Returns false.
bool comm_lost(Error *err);
bool comm_is_lost(void); // a collective or a message has failed

// Ends the other processes as far as this one can: after a failure that they have not seen. Does
// not return where MPI connects them.
void comm_abort(int exit_code);
