// Messages over TCP between processes that MPI did not start, see channel_tcp.c.
#pragma once
#include "llmc/comm/channel.h"
#include "llmc/comm/place.h"

// Returns when this process has met process 0, and process 0 all others, in at most
// COMM_START_SECONDS of the environment (60). NULL with a message that names the missing ones.
const Channel *channel_tcp_open(const Place *place, Error *err);

// The connections of the watch, by rank, -1: none. They and the memory are the caller's from now
// on.
int *channel_tcp_watch_sockets(void);
