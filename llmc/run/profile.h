// --profile N: where the time of a step goes, op by op.
//
// The run takes a few steps to warm up, then N steps as they are, then N steps with a device event before and after
// every op and without graphs, then it ends. The table that follows (profile_table.h) puts beside the time of each op
// its floor: what it must compute and move at least, at the rates measured on this device. Time in no op stands in a
// row of its own, so that the rows add up to the step; the N steps before tell what the events cost.
//
// Neither the ops nor the model know of it: the linker puts the wrappers of profile.c before the ops of ops.h (--wrap,
// PROFILE_OPS in the Makefile). When nothing is profiled a wrapper costs one comparison, and inside a graph nothing.
#pragma once
#include "llmc/run/profile_table.h"

int64_t profile_total_steps(int64_t n); // of the run that --profile n makes

// Use:
//   profile_start(n); while (profile_next_step()) train_step(); profile_report(...);
// next_step ends the step that was taken and says whether another one is due.
void profile_start(int64_t n);
bool profile_next_step(void);
// Waits for the device, prints the table; in directory (NULL: nowhere) writes profile.json and profile_trace.json.
bool profile_report(RunLog *log, const char *directory, DType dtype, DeviceSpeed speed, Error *err);
