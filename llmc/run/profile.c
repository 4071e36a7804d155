// The observer of the ops and the events that it records. See profile.h.
// Owns the events; does not decide what is shown (profile_table.c).
#include "llmc/run/profile.h"

#include "llmc/base/atomic_file.h"
#include <stdlib.h>
#include <string.h>

// Kernels are loaded, plans made and graphs captured in the first steps; clocks and caches settle in the others.
enum { WARMUP_STEPS = 5 };

typedef struct {
    OpCost cost;
    DeviceEvent *start, *stop;
} Call;

// The ops call the observer's functions without a context, so their data must be static.
static struct {
    int64_t n;    // of --profile
    int64_t step; // steps begun
    Call *calls;
    int64_t num_calls, capacity;
    DeviceEvent **boundaries; // 2 n + 1: where the steps after the warm-up begin, and where the last ends
    bool failed;              // memory or events ran out: err tells
    Error err;
} profile;

// ----------------------------------------------------------------------------------------------------------- recording

static bool make_room(void) {
    if (profile.num_calls < profile.capacity) return true;
    const int64_t capacity = profile.capacity ? 2 * profile.capacity : 1024;
    Call *calls = realloc(profile.calls, (size_t)capacity * sizeof *calls);
    if (!calls) return error_set(&profile.err, "--profile: out of memory");
    profile.calls = calls, profile.capacity = capacity;
    return true;
}

static bool begin_op(OpCost cost) {
    if (profile.failed) return true;
    Call call = {.cost = cost};
    profile.failed = !make_room() || !(call.start = device_event_create(&profile.err));
    if (profile.failed) return true;
    call.stop = device_event_create(&profile.err);
    profile.failed = !call.stop;
    profile.calls[profile.num_calls++] = call;
    device_event_record(call.start, STREAM_COMPUTE);
    return true;
}

static void end_op(void) {
    if (!profile.failed) device_event_record(profile.calls[profile.num_calls - 1].stop, STREAM_COMPUTE);
}

static const OpObserver observer = {begin_op, end_op};

// --------------------------------------------------------------------------------------------------------------- steps

int64_t profile_total_steps(int64_t n) { return WARMUP_STEPS + 2 * n; }

void profile_start(int64_t n) {
    profile.n = n;
    profile.boundaries = calloc((size_t)(2 * n + 1), sizeof *profile.boundaries);
    profile.failed = !profile.boundaries && !error_set(&profile.err, "--profile: out of memory");
}

bool profile_next_step(void) {
    const int64_t measured = profile.step - WARMUP_STEPS;
    if (measured >= 0 && !profile.failed) {
        DeviceEvent *boundary = device_event_create(&profile.err);
        profile.failed = !boundary;
        profile.boundaries[measured] = boundary;
        if (boundary) device_event_record(boundary, STREAM_COMPUTE);
    }
    ops_observe(measured >= profile.n && measured < 2 * profile.n ? &observer : NULL);
    return !profile.failed && profile.step++ < profile_total_steps(profile.n);
}

// -------------------------------------------------------------------------------------------------------------- report

static void free_all(void) {
    for (int64_t i = 0; i < profile.num_calls; i++) {
        if (profile.calls[i].start) device_event_destroy(profile.calls[i].start);
        if (profile.calls[i].stop) device_event_destroy(profile.calls[i].stop);
    }
    for (int64_t i = 0; profile.boundaries && i < 2 * profile.n + 1; i++)
        if (profile.boundaries[i]) device_event_destroy(profile.boundaries[i]);
    free(profile.calls);
    free(profile.boundaries);
    memset(&profile, 0, sizeof profile);
}

static bool write_files(const char *directory, const Profile *result, RunLog *log, Error *err) {
    if (!directory) return true;
    char *json = path_join(directory, "profile.json"), *trace = path_join(directory, "profile_trace.json");
    const bool ok = profile_write_json(json, result, err) && profile_write_trace(trace, result, err);
    if (ok) runlog_text(log, "written     %s, %s (chrome://tracing, ui.perfetto.dev)", json, trace);
    free(json), free(trace);
    return ok;
}

// Reads the events into the three arrays, prints and writes.
static bool show(TimedOp *ops, double *plain_start, double *step_start, RunLog *log, const char *directory, DType dtype,
                 DeviceSpeed speed, Error *err) {
    const int64_t n = profile.n;
    DeviceEvent *const *plain = profile.boundaries, *const *timed = profile.boundaries + n;
    for (int64_t i = 0; i <= n; i++) {
        plain_start[i] = device_event_seconds(plain[0], plain[i]);
        step_start[i] = device_event_seconds(timed[0], timed[i]);
    }
    for (int64_t i = 0; i < profile.num_calls; i++) {
        const Call *call = &profile.calls[i];
        ops[i].cost = call->cost;
        ops[i].start = device_event_seconds(timed[0], call->start);
        ops[i].seconds = device_event_seconds(call->start, call->stop);
    }
    const Profile result = {ops, profile.num_calls, n, step_start, plain_start, dtype, speed};
    return profile_print(log, &result, err) && write_files(directory, &result, log, err);
}

bool profile_report(RunLog *log, const char *directory, DType dtype, DeviceSpeed speed, Error *err) {
    device_sync();
    TimedOp *ops = malloc((size_t)(profile.num_calls + 1) * sizeof *ops);
    double *plain_start = malloc((size_t)(profile.n + 1) * sizeof(double));
    double *step_start = malloc((size_t)(profile.n + 1) * sizeof(double));
    bool ok = false;
    if (profile.failed)
        error_set(err, "%s", profile.err.text);
    else if (!ops || !plain_start || !step_start)
        error_set(err, "--profile: out of memory");
    else
        ok = show(ops, plain_start, step_start, log, directory, dtype, speed, err);
    free(ops);
    free(plain_start);
    free(step_start);
    free_all();
    return ok;
}
