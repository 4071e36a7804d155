// See profile.h. The observer of the ops and the events that it records.
#include "llmc/log/profile.h"

#include "llmc/base/path.h"
#include "llmc/comm/watch.h"
#include "llmc/log/profile_table.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>

// Kernels are loaded, plans made and graphs captured in the first steps; clocks and caches settle
// in the others.
enum { WARMUP_STEPS = 5 };

// The ops call the observer's functions without a context, so their data must be static.
static struct {
    int64_t n;      // of --profile
    int64_t step;   // steps begun
    Profile result; // what was recorded; its times are read at the end
    int64_t ops_capacity, spans_capacity;
    // 2 n + 1: where the steps after the warm-up begin, and where the last ends
    DeviceEvent **boundaries;
    bool failed; // no event was left: err has the reason
    Error err;
} profile;

// --------------------------------------------------------------------------------------- recording

// Returns the array with capacity for one more item.
static void *grown(void *items, int64_t count, int64_t *capacity, size_t size) {
    if (count < *capacity) return items;
    *capacity = max_i64(2 * *capacity, 1024);
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
    Profile *p = &profile.result;
    if (profile.failed) return true;
    p->ops = grown(p->ops, p->num_ops, &profile.ops_capacity, sizeof *p->ops);
    p->ops[p->num_ops++] = (TimedOp){.cost = cost, .begin = record_event(STREAM_COMPUTE)};
    return true;
}

static void end_op(void) {
    if (!profile.failed)
        profile.result.ops[profile.result.num_ops - 1].end = record_event(STREAM_COMPUTE);
}

static const OpObserver observer = {begin_op, end_op};

// An end without a beginning belongs to a request from before the first profiled step.
static void record_span(int request, Stream stream, bool begins) {
    Profile *p = &profile.result;
    if (profile.failed) return;
    int64_t i = p->num_spans - 1;
    while (!begins && i >= 0 && (p->spans[i].request != request || p->spans[i].end)) i--;
    if (i < 0 || begins) {
        i = p->num_spans++;
        p->spans = grown(p->spans, i, &profile.spans_capacity, sizeof *p->spans);
        p->spans[i] = (TimedSpan){.name = watch_collective_name(), .request = request};
    }
    DeviceEvent *event = record_event(stream);
    if (begins)
        p->spans[i].begin = event;
    else
        p->spans[i].end = event;
}

static void observe_request(int request, bool begins) { record_span(request, STREAM_COMM, begins); }
static void observe_wait(bool begins) { record_span(PROFILE_WAIT, STREAM_COMPUTE, begins); }

static const CommObserver comm_observer = {observe_request, observe_wait};

// ------------------------------------------------------------------------------------------- steps

int64_t profile_total_steps(int64_t n) { return WARMUP_STEPS + 2 * n; }

bool profile_next_step(int64_t n) {
    if (!profile.boundaries) {
        profile.n = n;
        profile.boundaries = calloc((size_t)(2 * n + 1), sizeof *profile.boundaries);
        REQUIRE_MEMORY(profile.boundaries, "the steps of a profile");
    }

    const int64_t measured = profile.step - WARMUP_STEPS;
    if (measured >= 0 && !profile.failed)
        profile.boundaries[measured] = record_event(STREAM_COMPUTE);

    const OpObserver *of_ops = NULL;
    const CommObserver *of_requests = NULL;
    if (measured >= profile.n && measured < 2 * profile.n) {
        of_ops = &observer;
        of_requests = &comm_observer;
    }
    ops_observe(of_ops);
    device_comm_observe(of_requests);
    return !profile.failed && profile.step++ < profile_total_steps(profile.n);
}

// ------------------------------------------------------------------------------------------ report

static void destroy_event(DeviceEvent *event) {
    if (event) device_event_destroy(event);
}

static void profile_free(void) {
    Profile *p = &profile.result;
    for (int64_t i = 0; i < p->num_ops; i++) {
        destroy_event(p->ops[i].begin);
        destroy_event(p->ops[i].end);
    }
    for (int64_t i = 0; i < 2 * profile.n + 1; i++) destroy_event(profile.boundaries[i]);
    for (int64_t i = 0; i < p->num_spans; i++) {
        destroy_event(p->spans[i].begin);
        destroy_event(p->spans[i].end);
    }

    free(p->ops);
    free(p->spans);
    free(p->step_start);
    free(p->plain_start);
    free(profile.boundaries);
    memset(&profile, 0, sizeof profile);
}

// Seconds from the first profiled step to the event, within the profiled steps.
static double seconds_to(DeviceEvent *event, double otherwise) {
    DeviceEvent *const *timed = profile.boundaries + profile.n;
    if (!event) return otherwise;
    return fmin(fmax(device_event_seconds(timed[0], event), 0),
                device_event_seconds(timed[0], timed[profile.n]));
}

bool profile_report(RunLog *log, const char *directory, DType dtype, DeviceSpeed speed,
                    Error *err) {
    Profile *p = &profile.result;
    const int64_t n = profile.n;
    DeviceEvent *const *plain = profile.boundaries, *const *timed = profile.boundaries + n;

    bool ok = !profile.failed || error_set(err, "%s", profile.err.text);
    if (ok) {
        device_sync();
        p->num_steps = n;
        p->dtype = dtype;
        p->speed = speed;

        p->step_start = malloc((size_t)(n + 1) * sizeof *p->step_start);
        p->plain_start = malloc((size_t)(n + 1) * sizeof *p->plain_start);
        REQUIRE_MEMORY(p->step_start && p->plain_start, "the times of a profile");
        for (int64_t i = 0; i <= n; i++) {
            p->plain_start[i] = device_event_seconds(plain[0], plain[i]);
            p->step_start[i] = device_event_seconds(timed[0], timed[i]);
        }

        for (int64_t i = 0; i < p->num_ops; i++) {
            p->ops[i].start = device_event_seconds(timed[0], p->ops[i].begin);
            p->ops[i].seconds = device_event_seconds(p->ops[i].begin, p->ops[i].end);
        }
        for (int64_t i = 0; i < p->num_spans; i++) {
            p->spans[i].start = seconds_to(p->spans[i].begin, 0);
            p->spans[i].seconds = seconds_to(p->spans[i].end, p->step_start[n]) - p->spans[i].start;
        }
        profile_print(log, p);
    }
    if (ok && directory) {
        char *json = path_join(directory, "profile.json"),
             *trace = path_join(directory, "profile_trace.json");
        ok = profile_write_json(json, p, err);
        if (ok) ok = profile_write_trace(trace, p, err);
        if (ok)
            runlog_text(log, "written     %s, %s (chrome://tracing, ui.perfetto.dev)", json, trace);
        free(json);
        free(trace);
    }
    profile_free();
    return ok;
}
