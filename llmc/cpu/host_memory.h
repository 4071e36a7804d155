// Memory according to the operating system: how much there is, how much this process may still
// take, and how much it has taken. Linux: /proc, control groups (version 1 and 2) and limits of
// this process (ulimit -v, -d), so that a container's limit counts as the machine's size. Allocates
// no memory itself.
#pragma once
#include "llmc/base/error.h"
#include <stddef.h>

typedef struct {
    size_t total;     // bytes: RAM, or the control group's limit where that is less
    size_t available; // bytes that can be taken now without swapping or being killed; the page
                      // cache counts as free
} HostMemory;

// root: "" for this machine; tests give a directory with proc/ and sys/ in it.
bool host_memory_read(const char *root, HostMemory *memory, Error *err);

// Bytes of L3 that the processors of this process reach, each cache once; 0: unknown. sysconf adds
// up what a package could have: 384 MB for two cores of a virtual machine that have 32 MB.
size_t host_cache_bytes(const char *root);

// Bytes by a key of /proc/self/status: "VmRSS:", the RAM that this process holds now, "VmHWM:", its
// peak so far. 0 where unknown.
size_t host_memory_status(const char *key);
