// See profile.h. The observer of the ops and the events that it records.
#include "llmc/run/profile.h"

#include "llmc/base/path.h"
#include "llmc/comm/watch.h"
#include "llmc/run/profile_table.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>

// Kernels are loaded, plans made and graphs captured in the first steps; clocks and caches settle in the others.
enum { WARMUP_STEPS = 5 };

typedef struct {
    OpCost cost;
    DeviceEvent *start, *stop;
} Call;

// Of the exchange. No start: it had begun before the first profiled step. No stop: it ended after the last one.
typedef struct {
    const char *name;
    int request; // -1: a wait
    DeviceEvent *start, *stop;
} Span;

// The ops call the observer's functions without a context, so their data must be static.
static struct {
    int64_t n;    // of --profile
    int64_t step; // steps begun
    Call *calls;
    int64_t num_calls, capacity;
    Span *spans;
    int64_t num_spans, spans_capacity;
    DeviceEvent **boundaries; // 2 n + 1: where the steps after the warm-up begin, and where the last ends
    bool failed;              // memory or events ran out: err tells
    Error err;
} profile;

// ----------------------------------------------------------------------------------------------------------- recording

// Makes room for one more item.
static bool make_room(void *items, int64_t count, int64_t *capacity, size_t size) {
    void **array = items;
    if (count < *capacity) return true;
    const int64_t more = *capacity ? 2 * *capacity : 1024;
    void *moved = realloc(*array, (size_t)more * size);
    if (!moved) return error_set(&profile.err, "--profile: out of memory");
    *array = moved, *capacity = more;
    return true;
}

// A new event, recorded on the stream; NULL: none is left.
static DeviceEvent *mark(Stream stream) {
    DeviceEvent *event = device_event_create(&profile.err);
    if (event) device_event_record(event, stream);
    profile.failed |= !event;
    return event;
}

static bool begin_op(OpCost cost) {
    if (profile.failed) return true;
    profile.failed = !make_room(&profile.calls, profile.num_calls, &profile.capacity, sizeof *profile.calls);
    if (!profile.failed) profile.calls[profile.num_calls++] = (Call){.cost = cost, .start = mark(STREAM_COMPUTE)};
    return true;
}

static void end_op(void) {
    if (!profile.failed) profile.calls[profile.num_calls - 1].stop = mark(STREAM_COMPUTE);
}

static const OpObserver observer = {begin_op, end_op};

static void span(int request, Stream stream, bool begins) {
    if (profile.failed) return;
    int64_t i = profile.num_spans - 1;
    while (!begins && i >= 0 && (profile.spans[i].request != request || profile.spans[i].stop)) i--;
    if (i < 0 || begins) {
        i = profile.num_spans;
        profile.failed = !make_room(&profile.spans, i, &profile.spans_capacity, sizeof *profile.spans);
        if (profile.failed) return;
        profile.spans[profile.num_spans++] = (Span){.name = watch_collective_name(), .request = request};
    }
    *(begins ? &profile.spans[i].start : &profile.spans[i].stop) = mark(stream);
}

static void observe_request(int request, bool begins) { span(request, STREAM_COMM, begins); }
static void observe_wait(bool begins) { span(-1, STREAM_COMPUTE, begins); }

static const CommObserver comm_observer = {observe_request, observe_wait};

// --------------------------------------------------------------------------------------------------------------- steps

int64_t profile_total_steps(int64_t n) { return WARMUP_STEPS + 2 * n; }

void profile_start(int64_t n) {
    profile.n = n;
    profile.boundaries = calloc((size_t)(2 * n + 1), sizeof *profile.boundaries);
    profile.failed = !profile.boundaries && !error_set(&profile.err, "--profile: out of memory");
}

bool profile_next_step(void) {
    const int64_t measured = profile.step - WARMUP_STEPS;
    if (measured >= 0 && !profile.failed) profile.boundaries[measured] = mark(STREAM_COMPUTE);
    const bool observed = measured >= profile.n && measured < 2 * profile.n;
    ops_observe(observed ? &observer : NULL);
    device_comm_observe(observed ? &comm_observer : NULL);
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
    for (int64_t i = 0; i < profile.num_spans; i++) {
        if (profile.spans[i].start) device_event_destroy(profile.spans[i].start);
        if (profile.spans[i].stop) device_event_destroy(profile.spans[i].stop);
    }
    free(profile.calls);
    free(profile.spans);
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

// The arrays of a Profile.
typedef struct {
    TimedOp *ops;
    TimedSpan *requests, *waits;
    double *plain_start, *step_start;
} Times;

// Seconds from the first profiled step to the event, within the profiled steps.
static double seconds_to(DeviceEvent *event, double otherwise) {
    DeviceEvent *const *timed = profile.boundaries + profile.n;
    if (!event) return otherwise;
    return fmin(fmax(device_event_seconds(timed[0], event), 0), device_event_seconds(timed[0], timed[profile.n]));
}

// Reads the events into the arrays, prints and writes.
static bool show(Times t, RunLog *log, const char *directory, DType dtype, DeviceSpeed speed, Error *err) {
    const int64_t n = profile.n;
    DeviceEvent *const *plain = profile.boundaries, *const *timed = profile.boundaries + n;
    for (int64_t i = 0; i <= n; i++) {
        t.plain_start[i] = device_event_seconds(plain[0], plain[i]);
        t.step_start[i] = device_event_seconds(timed[0], timed[i]);
    }
    for (int64_t i = 0; i < profile.num_calls; i++) {
        const Call *call = &profile.calls[i];
        t.ops[i].cost = call->cost;
        t.ops[i].start = device_event_seconds(timed[0], call->start);
        t.ops[i].seconds = device_event_seconds(call->start, call->stop);
    }
    Profile result = {.ops = t.ops,
                      .num_ops = profile.num_calls,
                      .num_steps = n,
                      .requests = t.requests,
                      .waits = t.waits,
                      .step_start = t.step_start,
                      .plain_start = t.plain_start,
                      .dtype = dtype,
                      .speed = speed};
    for (int64_t i = 0; i < profile.num_spans; i++) {
        const Span *s = &profile.spans[i];
        const double start = seconds_to(s->start, 0), stop = seconds_to(s->stop, t.step_start[n]);
        const TimedSpan span = {s->name, start, stop - start};
        if (s->request < 0)
            t.waits[result.num_waits++] = span;
        else
            t.requests[result.num_requests++] = span;
    }
    return profile_print(log, &result, err) && write_files(directory, &result, log, err);
}

bool profile_report(RunLog *log, const char *directory, DType dtype, DeviceSpeed speed, Error *err) {
    device_sync();
    const size_t spans = (size_t)profile.num_spans + 1, boundaries = (size_t)profile.n + 1;
    Times t = {.ops = malloc((size_t)(profile.num_calls + 1) * sizeof *t.ops)};
    t.requests = malloc(spans * sizeof *t.requests), t.waits = malloc(spans * sizeof *t.waits);
    t.plain_start = malloc(boundaries * sizeof *t.plain_start);
    t.step_start = malloc(boundaries * sizeof *t.step_start);
    bool ok = false;
    if (profile.failed)
        error_set(err, "%s", profile.err.text);
    else if (!t.ops || !t.requests || !t.waits || !t.plain_start || !t.step_start)
        error_set(err, "--profile: out of memory");
    else
        ok = show(t, log, directory, dtype, speed, err);
    free(t.ops);
    free(t.requests), free(t.waits);
    free(t.plain_start), free(t.step_start);
    free_all();
    return ok;
}
