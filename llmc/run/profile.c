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
    bool failed;              // no event was left: err has the reason
    Error err;
} profile;

// ----------------------------------------------------------------------------------------------------------- recording

// Returns the array with capacity for one more item.
static void *grown(void *items, int64_t count, int64_t *capacity, size_t size) {
    if (count < *capacity) return items;
    *capacity = *capacity ? 2 * *capacity : 1024;
    items = realloc(items, (size_t)*capacity * size);
    REQUIRE_MEMORY(items, "the calls of a profile");
    return items;
}

// A new event, recorded on the stream; NULL: none is left.
static DeviceEvent *record_event(Stream stream) {
    DeviceEvent *event = device_event_create(&profile.err);
    if (event) device_event_record(event, stream);
    profile.failed |= !event;
    return event;
}

static bool begin_op(OpCost cost) {
    if (profile.failed) return true;
    profile.calls = grown(profile.calls, profile.num_calls, &profile.capacity, sizeof *profile.calls);
    profile.calls[profile.num_calls++] = (Call){.cost = cost, .start = record_event(STREAM_COMPUTE)};
    return true;
}

static void end_op(void) {
    if (!profile.failed) profile.calls[profile.num_calls - 1].stop = record_event(STREAM_COMPUTE);
}

static const OpObserver observer = {begin_op, end_op};

// request -1: a wait. An end without a beginning belongs to a request from before the first profiled step.
static void record_span(int request, Stream stream, bool begins) {
    if (profile.failed) return;
    int64_t i = profile.num_spans - 1;
    while (!begins && i >= 0 && (profile.spans[i].request != request || profile.spans[i].stop)) i--;
    if (i < 0 || begins) {
        i = profile.num_spans++;
        profile.spans = grown(profile.spans, i, &profile.spans_capacity, sizeof *profile.spans);
        profile.spans[i] = (Span){.name = watch_collective_name(), .request = request};
    }
    DeviceEvent *event = record_event(stream);
    if (begins)
        profile.spans[i].start = event;
    else
        profile.spans[i].stop = event;
}

static void observe_request(int request, bool begins) { record_span(request, STREAM_COMM, begins); }
static void observe_wait(bool begins) { record_span(-1, STREAM_COMPUTE, begins); }

static const CommObserver comm_observer = {observe_request, observe_wait};

// --------------------------------------------------------------------------------------------------------------- steps

int64_t profile_total_steps(int64_t n) { return WARMUP_STEPS + 2 * n; }

void profile_start(int64_t n) {
    profile.n = n;
    profile.boundaries = calloc((size_t)(2 * n + 1), sizeof *profile.boundaries);
    REQUIRE_MEMORY(profile.boundaries, "the steps of a profile");
}

bool profile_next_step(void) {
    const int64_t measured = profile.step - WARMUP_STEPS;
    if (measured >= 0 && !profile.failed) profile.boundaries[measured] = record_event(STREAM_COMPUTE);
    const bool observed = measured >= profile.n && measured < 2 * profile.n;
    ops_observe(observed ? &observer : NULL);
    device_comm_observe(observed ? &comm_observer : NULL);
    return !profile.failed && profile.step++ < profile_total_steps(profile.n);
}

// -------------------------------------------------------------------------------------------------------------- report

static void destroy_event(DeviceEvent *event) {
    if (event) device_event_destroy(event);
}

static void free_recordings(void) {
    for (int64_t i = 0; i < profile.num_calls; i++) {
        destroy_event(profile.calls[i].start);
        destroy_event(profile.calls[i].stop);
    }
    for (int64_t i = 0; i < 2 * profile.n + 1; i++) destroy_event(profile.boundaries[i]);
    for (int64_t i = 0; i < profile.num_spans; i++) {
        destroy_event(profile.spans[i].start);
        destroy_event(profile.spans[i].stop);
    }
    free(profile.calls);
    free(profile.spans);
    free(profile.boundaries);
    memset(&profile, 0, sizeof profile);
}

// Seconds from the first profiled step to the event, within the profiled steps.
static double seconds_to(DeviceEvent *event, double otherwise) {
    DeviceEvent *const *timed = profile.boundaries + profile.n;
    if (!event) return otherwise;
    return fmin(fmax(device_event_seconds(timed[0], event), 0), device_event_seconds(timed[0], timed[profile.n]));
}

// Reads the events into the arrays of the result.
static void read_events(Profile *result) {
    const int64_t n = profile.n;
    DeviceEvent *const *plain = profile.boundaries, *const *timed = profile.boundaries + n;
    for (int64_t i = 0; i <= n; i++) {
        result->plain_start[i] = device_event_seconds(plain[0], plain[i]);
        result->step_start[i] = device_event_seconds(timed[0], timed[i]);
    }
    for (int64_t i = 0; i < profile.num_calls; i++) {
        const Call *call = &profile.calls[i];
        result->ops[i] = (TimedOp){.cost = call->cost,
                                   .start = device_event_seconds(timed[0], call->start),
                                   .seconds = device_event_seconds(call->start, call->stop)};
    }
    for (int64_t i = 0; i < profile.num_spans; i++) {
        const Span *s = &profile.spans[i];
        const double start = seconds_to(s->start, 0), stop = seconds_to(s->stop, result->step_start[n]);
        const TimedSpan span = {s->name, start, stop - start};
        if (s->request < 0)
            result->waits[result->num_waits++] = span;
        else
            result->requests[result->num_requests++] = span;
    }
}

bool profile_report(RunLog *log, const char *directory, DType dtype, DeviceSpeed speed, Error *err) {
    if (profile.failed) {
        error_set(err, "%s", profile.err.text);
        free_recordings();
        return false;
    }
    device_sync();
    const size_t spans = (size_t)profile.num_spans + 1, boundaries = (size_t)profile.n + 1;
    Profile result = {.ops = malloc((size_t)(profile.num_calls + 1) * sizeof *result.ops),
                      .num_ops = profile.num_calls,
                      .requests = malloc(spans * sizeof *result.requests),
                      .waits = malloc(spans * sizeof *result.waits),
                      .num_steps = profile.n,
                      .step_start = malloc(boundaries * sizeof *result.step_start),
                      .plain_start = malloc(boundaries * sizeof *result.plain_start),
                      .dtype = dtype,
                      .speed = speed};
    REQUIRE_MEMORY(result.ops && result.requests && result.waits && result.step_start && result.plain_start,
                   "the times of a profile");
    read_events(&result);
    free_recordings();
    profile_print(log, &result);
    bool ok = true;
    if (directory) {
        char *json = path_join(directory, "profile.json"), *trace = path_join(directory, "profile_trace.json");
        ok = profile_write_json(json, &result, err) && profile_write_trace(trace, &result, err);
        if (ok) runlog_text(log, "written     %s, %s (chrome://tracing, ui.perfetto.dev)", json, trace);
        free(json);
        free(trace);
    }
    free(result.ops);
    free(result.requests);
    free(result.waits);
    free(result.step_start);
    free(result.plain_start);
    return ok;
}
