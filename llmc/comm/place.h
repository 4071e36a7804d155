// Who a process is in its run: how many processes there are, which one this is, and how they meet.
// A launcher's environment says so, or llm.c's options.
#pragma once
#include "llmc/base/error.h"

// From the command line; all zeros: the environment decides.
typedef struct {
    int size, rank, per_node; // -pn, -pr, -pg; size 0: not given
    const char *method;       // -pi: "mpi", "tcp", or "": as the launcher does
    const char *server;       // -ps: address of process 0 for TCP, "HOST" or "HOST:PORT"
    int gpus;       // --gpus: processes to start on this machine, or the number that a launcher has
                    // started
    double timeout; // seconds without progress, 0: COMM_TIMEOUT
} CommOptions;

typedef struct {
    const char *launcher;       // see comm_launcher
    int rank, size;             // size 1: alone
    int local_rank, local_size; // on this machine; -1: unknown
    bool mpi;                   // by MPI; else over TCP to:
    char host[256];             // process 0's machine
    int port;
    char run_id[64]; // of the run: a process without it is refused; "": none
} Place;

// Reads options and environment; opens nothing. has_mpi: the program was built with MPI. False if
// they contradict each other, or something is missing; the message names the variable or option.
bool place_find(Place *place, const CommOptions *options, bool has_mpi, Error *err);

// A limit in seconds from the environment, or the default. False with a message if it is none.
bool place_read_seconds(const char *name, double normal, double *seconds, Error *err);

// In the environment of the processes of a run:
#define COMM_RUN_ID   "COMM_RUN_ID"   // Place.run_id. --gpus makes one; elsewhere the user may
#define COMM_LAUNCHER "COMM_LAUNCHER" // "--gpus": that has set torchrun's variables
// Process 0 of --gpus: the number of the inherited socket that listens at MASTER_PORT. It is bound
// before the processes start, so that no other program can take the port.
#define COMM_LISTENER "COMM_LISTENER"
