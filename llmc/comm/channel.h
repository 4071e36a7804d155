// Private to llmc/comm: a way to pass messages between processes, and how it is found. One is open at a time.
#pragma once
#include "llmc/comm/comm.h"

// Where this process stands in its run, as launchers say it.
typedef struct {
    const char *launcher;       // see comm_launcher
    int rank, size;             // size 1: alone
    int local_rank, local_size; // -1: not said; comm_start compares host names
    bool mpi;                   // by MPI; else over TCP to:
    char host[256];             // process 0's machine
    int port;
    char run_id[64]; // differs from run to run, so that processes of another run on the same port are refused; or ""
} Place;

// launch.c. Reads options and environment; nothing is opened. False: they contradict each other, or lack something;
// the message says which variable.
bool comm_find_place(Place *place, const CommOptions *options, Error *err);
// In the environment of process 0 of --gpus: the number of the inherited socket that listens at MASTER_PORT. It is
// bound before the processes start, so that no other program can take the port.
#define COMM_LISTENER "COMM_LISTENER"

typedef struct {
    const char *name; // "MPI", "TCP"
    // As comm_gather and comm_broadcast.
    bool (*gather)(const void *mine, void *all, size_t bytes, Error *err);
    bool (*broadcast)(void *data, size_t bytes, Error *err);
    void (*abort)(int exit_code);
    void (*close)(void);
} Channel;

// NULL: a message says why. MPI fills in its rank.
const Channel *channel_tcp_open(Place *place, Error *err); // waits COMM_START_SECONDS of the environment (60)
const Channel *channel_mpi_open(Place *place, Error *err); // without MPI at build time: always NULL
bool channel_mpi_is_built(void);

// The connections of the watch, by rank, -1: none; they are the caller's from now on.
void channel_tcp_watch_sockets(int *sockets);
