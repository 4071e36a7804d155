// --profile N: the time of a step, op by op.
//
// The run takes a few steps to warm up, then N unmodified steps, then N steps with a device event
// before and after every op and without graphs, then it ends. The table that follows shows the time
// of each op and its floor: the min FLOPs and bytes (OpCost of ops.h) at the rates measured on this
// device. Time outside all ops has its own row, so that the rows add up to the step; the N
// unmodified steps show the cost of the events. With several processes one more row is the time in
// which the compute stream waited for the exchange: the part of it that computation does not hide.
//
// Ops and exchange are observed (ops_observe, device_comm_observe); profile_table.h measures
// nothing and uses no device.
#pragma once
#include "llmc/device.h"
#include "llmc/log/runlog.h"
#include "llmc/ops.h"
#include "llmc/speed.h"

int64_t profile_total_steps(int64_t n); // of the run that --profile n makes

// Use:
//   while (profile_next_step(n)) train_step(); profile_report(...);
// next_step ends the step before; true: another step is due.
bool profile_next_step(int64_t n);
// Waits for the device, prints the table; in directory (NULL: nowhere) writes profile.json and
// profile_trace.json.
bool profile_report(RunLog *log, const char *directory, DType dtype, DeviceSpeed speed, Error *err);
