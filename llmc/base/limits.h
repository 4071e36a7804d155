// The limits that the system sets for this process: limits of resources (ulimit), processors,
// control groups. A program starts with limits_start; afterwards a limit that is reached is an
// error with a line, not a signal. Owns nothing.
#pragma once
#include "llmc/base/error.h"

#include <pthread.h>
#include <stddef.h>
#include <stdint.h>

// Every program calls this first. Opens /dev/null in place of standard files that are closed, so
// that no other file gets their numbers. Starts output.h. Ignores SIGXFSZ: a write beyond the limit
// of file sizes fails with EFBIG instead. Raises the limits of open files and of the stack as far
// as they may be raised, and gives threads, those of OpenMP included, stacks of their own size,
// whatever `ulimit -s` says. Ends the program with a line if the stack is too small even so.
void limits_start(void);

// strerror, and for a limit of this process its value and name: "File too large (limit of this
// process: 102400 bytes, ulimit -f)". The text is good until the next call on this thread.
const char *limits_reason(int error);

// " (limit of this process: 307200000 bytes, ulimit -v)" if its memory is limited, else "": for
// messages.
const char *limits_of_memory(void);

// "cannot start WHAT: why", with the limits that may be the reason; returns false.
bool limits_thread_failed(const char *what, int error, Error *err);
// Whether this process may have `count` more threads at once: starts and ends them. A library that
// starts them itself ends the program where it may not.
bool limits_check_threads(int count, Error *err);

// The quota of processor time that control groups give this process, in processors, such as 0.5;
// infinite: none. root:
// "" for this machine; tests give a directory with proc/ and sys/ in it.
double limits_quota(const char *root);
// Processors that this process may use: those of its affinity mask or, where that is less, the
// quota rounded up.
int limits_processors(void);

// ---------------------------------------------------------------------------------- control groups

// Calls `visit` for each control group whose limits hold for this process, its own and those above
// it, that has the controller ("cpu", "memory"): with the directory of the group's files and the
// version, 1 or 2, which names them. A container often sees its own group mounted as the root;
// deeper paths are then missing, and their files cannot be read.
typedef void GroupVisitor(void *context, const char *directory, int version);
void limits_visit_groups(const char *root, const char *controller, GroupVisitor *visit,
                         void *context);

// The number after `key` at the start of a line of a file; with an empty key, the number that the
// file begins with. false when the file, the line or the number ("max") is not there.
bool limits_read_number(const char *path, const char *key, uint64_t *value);
