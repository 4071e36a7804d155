// --profile N: the time of a step, op by op.
//
// The run takes a few steps to warm up, then N unmodified steps, then N steps with a device event before and after
// every op and without graphs, then it ends. The table that follows shows the time of each op and its floor: the min
// FLOPs and bytes (OpCost of ops.h) at the rates measured on this device. Time outside all ops has its own row, so that
// the rows add up to the step; the N unmodified steps show the cost of the events. With several processes one more row
// is the time in which the compute stream waited for the exchange: the part of it that computation does not hide.
//
// Ops and exchange are observed (ops_observe, device_comm_observe); profile_table.c measures nothing and uses no
// device.
#pragma once
#include "llmc/device.h"
#include "llmc/ops.h"
#include "llmc/run/runlog.h"

int64_t profile_total_steps(int64_t n); // of the run that --profile n makes

// Use:
//   profile_start(n); while (profile_next_step()) train_step(); profile_report(...);
// next_step ends the step that was taken and says whether another one is due.
void profile_start(int64_t n);
bool profile_next_step(void);
// Waits for the device, prints the table; in directory (NULL: nowhere) writes profile.json and profile_trace.json.
bool profile_report(RunLog *log, const char *directory, DType dtype, DeviceSpeed speed, Error *err);

// ------------------------------------------------------------------------------------------------------------- labels

// The tensor of the call without its block: weights by their short names of parameters.h ("qkvw").
const char *op_tensor(const OpCost *cost);
// "matmul_forward qkvw 65536x768x2304" into buf; returns buf.
const char *op_label(const OpCost *cost, char *buf, int size);

// ----------------------------------------------------------------------------------------------------------- the table

// One call of an op. start: seconds after the first profiled step began.
typedef struct {
    OpCost cost;
    double start, seconds;
} TimedOp;

// A request between processes, or a wait of the compute stream for one, with the name of its collective.
typedef struct {
    const char *name; // "sum of gradients"
    double start, seconds;
} TimedSpan;

typedef struct {
    const TimedOp *ops; // in the order of the calls
    int64_t num_ops;
    const TimedSpan *requests, *waits; // by their starts; none of one process
    int64_t num_requests, num_waits;
    int64_t num_steps;         // profiled
    const double *step_start;  // num_steps + 1: start of each step; the last is the end
    const double *plain_start; // the same for as many steps right before, with nothing timed inside
    DType dtype;
    DeviceSpeed speed; // the rates that floors are derived from
} Profile;

// Calls of one op with one tensor (blocks apart) and shape, summed over the steps.
typedef struct {
    char label[128]; // "matmul_forward qkvw 65536x768x2304"
    const OpCost *cost;
    int64_t calls;
    double seconds, flops, bytes, floor_seconds;
} ProfileRow;

// The rows, slowest first, malloced; *count of them. NULL: out of memory.
ProfileRow *profile_rows(const Profile *profile, int *count);
// Seconds in which at least one request was under way, and those of the waits.
double profile_exchange_seconds(const Profile *profile);
double profile_exposed_seconds(const Profile *profile);
// The longer of the time to compute the FLOPs and the time to move the bytes.
double profile_floor_seconds(const OpCost *cost, DeviceSpeed speed);

bool profile_print(RunLog *log, const Profile *profile, Error *err);
bool profile_write_json(const char *path, const Profile *profile, Error *err);
bool profile_write_trace(const char *path, const Profile *profile, Error *err);
