// The measurements of --profile op by op: a table for the reader, JSON (profile.json), and a trace
// (profile_trace.json, for chrome://tracing or ui.perfetto.dev). Rows are sums over the profiled
// steps; the mean, one step, is shown.
#pragma once
#include "llmc/log/runlog.h"
#include "llmc/ops.h"
#include "llmc/speed.h"

// "matmul_forward qkvw 65536x768x2304" into buf; returns buf.
const char *op_label(const OpCost *cost, char *buf, int size);

// One call of an op. start: seconds after the first profiled step began.
typedef struct {
    OpCost cost;
    double start, seconds;
    DeviceEvent *begin, *end; // profile.c's, from which they are read
} TimedOp;

// A request between processes, or a wait of the compute stream for one, with the name of its
// collective.
enum { PROFILE_WAIT = -1 };
typedef struct {
    const char *name; // "sum of gradients"
    int request;      // its number; PROFILE_WAIT: a wait
    double start, seconds;
    DeviceEvent *begin, *end; // NULL: before the first profiled step, after the last
} TimedSpan;

typedef struct {
    TimedOp *ops; // in the order of the calls
    int64_t num_ops;
    TimedSpan *spans; // by their starts; none of one process
    int64_t num_spans;
    int64_t num_steps;   // profiled
    double *step_start;  // num_steps + 1: start of each step; the last is the end
    double *plain_start; // the same for as many steps right before, with nothing timed inside
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

// The rows, slowest first, malloced; *count of them.
ProfileRow *profile_rows(const Profile *profile, int *count);
// Seconds in which at least one request was under way.
double profile_exchange_seconds(const Profile *profile);
// The waits as a row of the table.
ProfileRow profile_exposed(const Profile *profile);

void profile_print(RunLog *log, const Profile *profile);
bool profile_write_json(const char *path, const Profile *profile, Error *err);
bool profile_write_trace(const char *path, const Profile *profile, Error *err);
