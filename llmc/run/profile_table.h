// What was measured op by op, as a table for the reader, as JSON (profile.json) and as a trace (profile_trace.json, for
// chrome://tracing or ui.perfetto.dev). Pure: it measures nothing and knows no device.
#pragma once
#include "llmc/device.h"
#include "llmc/run/op_costs.h"
#include "llmc/run/runlog.h"

// One call of an op. start: seconds after the first profiled step began.
typedef struct {
    OpCost cost;
    double start, seconds;
} TimedOp;

typedef struct {
    const TimedOp *ops; // in the order of the calls
    int64_t num_ops;
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
// The longer of the time to compute the FLOPs and the time to move the bytes.
double profile_floor_seconds(const OpCost *cost, DeviceSpeed speed);

bool profile_print(RunLog *log, const Profile *profile, Error *err);
bool profile_write_json(const char *path, const Profile *profile, Error *err);
bool profile_write_trace(const char *path, const Profile *profile, Error *err);
