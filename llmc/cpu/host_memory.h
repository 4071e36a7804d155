// What the operating system says about memory: how much there is, how much this process may still take, how much it has
// taken. Linux: /proc and control groups (version 1 and 2), so that a container's limit counts as the machine's size.
// Takes no memory itself.
#pragma once
#include "llmc/base/error.h"
#include <stddef.h>

typedef struct {
    size_t total;     // bytes: RAM, or the control group's limit where that is less
    size_t available; // bytes that can be taken now without swapping or being killed; the page cache counts as free
} HostMemory;

// root: "" for this machine; tests give a directory with proc/ and sys/ in it.
bool host_memory_read(const char *root, HostMemory *memory, Error *err);

// Bytes of RAM that this process holds now, and held at most so far (VmRSS, VmHWM); 0 where that is not known.
size_t host_memory_resident(void);
size_t host_memory_resident_peak(void);
// Lets the peak start again from what is held now; without effect where the kernel does not offer it.
void host_memory_reset_peak(void);
