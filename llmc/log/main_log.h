// main.log: lines of JSON, one event each. What a run keeps of a log that is there already when it
// begins or resumes.
#pragma once
#include "llmc/base/append_file.h"

// Opens the log at path. Two processes cannot write into one: the second gets an error. append:
// continues the log of a resumed run, without the lines of steps > first_step (those will be run
// again), damaged lines (with zeros: after a loss of power), and a last line that was not finished;
// first_step INT64_MAX keeps every step. append false: a new file; one that has steps, or is no log
// of ours, is renamed to main.log.1, or the first number that is free.
bool main_log_open(AppendFile *f, const char *path, bool append, int64_t first_step, Error *err);
// Removes validations, choices and samples of this step: a resumed run makes them again.
bool main_log_drop_evaluations(AppendFile *f, int64_t step, Error *err);
