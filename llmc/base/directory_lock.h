// Locks that end with their process, however it ends: on a file, and on a directory as a whole.
#pragma once
#include "llmc/base/error.h"

#include <stddef.h>

// Locks an open file for this process. False: after a second another process still held it. On file
// systems without locks it succeeds without one.
bool file_lock(int fd);

// Claims a directory for this process, by a lock on its file .lock, which names the process that
// holds it. If another process holds it: false after a second, with that process in the message.
// *fd stays open, and the directory held, until directory_release or until the process ends in any
// way.
bool directory_hold(const char *directory, int *fd, Error *err);
// If nothing but the lock was made in the directory, it is removed, with the parents made for it
// (directory_unmake).
void directory_release(const char *directory, int fd, size_t existing);
