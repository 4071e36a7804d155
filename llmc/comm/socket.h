// TCP sockets by the name of a host. None of them blocks.
#pragma once
#include "llmc/base/error.h"

// Listens; port 0: at a free one. Where `host` is this machine's loopback, other machines cannot
// reach it; otherwise it listens at all addresses. -1 with the reason.
int socket_listen(const char *host, int port, Error *reason);
// Is connected to an address of `host`; connect_seconds 0: listens there. -1 with the reason.
int socket_open(const char *host, int port, double connect_seconds, Error *reason);
