// See profile_table.h.
#include "llmc/log/profile_table.h"

#include "llmc/base/json.h"
#include "llmc/base/own_file.h"
#include "llmc/model/parameters.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

// ------------------------------------------------------------------------------------------ labels

const char *op_label(const OpCost *cost, char *buf, int size) {
    int n = snprintf(buf, (size_t)size, "%s %s ", cost->op, parameter_label(cost->shape.tensor));
    for (int i = 0; i < cost->shape.rank && n < size; i++)
        n += snprintf(buf + n, (size_t)(size - n), "%s%lld", i ? "x" : "",
                      (long long)cost->shape.shape[i]);
    return buf;
}

// -------------------------------------------------------------------------------------------- rows

// The longer of the time to compute the FLOPs and the time to move the bytes.
static double profile_floor_seconds(const OpCost *cost, DeviceSpeed speed) {
    if (speed.matmul_flops <= 0) return 0; // it was not measured
    return fmax(cost->flops / speed.matmul_flops, cost->bytes / speed.copy_bandwidth);
}

static int slowest_first(const void *a, const void *b) {
    const ProfileRow *x = a, *y = b;
    const int shorter = (x->seconds < y->seconds) - (x->seconds > y->seconds);
    if (shorter) return shorter;
    return strcmp(x->label, y->label);
}

ProfileRow *profile_rows(const Profile *profile, int *count) {
    ProfileRow *rows = NULL;
    int n = 0, capacity = 0;
    for (int64_t i = 0; i < profile->num_ops; i++) {
        const TimedOp *op = &profile->ops[i];
        char label[sizeof rows->label];
        op_label(&op->cost, label, sizeof label);

        int r = 0;
        while (r < n && strcmp(rows[r].label, label) != 0) r++;
        if (r == capacity) {
            capacity = (int)max_i64(2 * capacity, 64);
            rows = realloc(rows, (size_t)capacity * sizeof *rows);
            REQUIRE_MEMORY(rows, "the rows of a profile");
        }

        if (r == n) {
            memset(&rows[n], 0, sizeof rows[n]);
            memcpy(rows[n].label, label, sizeof label);
            rows[n++].cost = &op->cost;
        }

        rows[r].calls++;
        rows[r].seconds += op->seconds;
        rows[r].flops += op->cost.flops;
        rows[r].bytes += op->cost.bytes;
        rows[r].floor_seconds += profile_floor_seconds(&op->cost, profile->speed);
    }

    if (n > 0) qsort(rows, (size_t)n, sizeof *rows, slowest_first);
    *count = n;
    return rows;
}

static ProfileRow sum_rows(const ProfileRow *rows, int count) {
    ProfileRow sum = {.label = "all ops"};
    for (int r = 0; r < count; r++) {
        sum.calls += rows[r].calls;
        sum.seconds += rows[r].seconds;
        sum.flops += rows[r].flops;
        sum.bytes += rows[r].bytes;
        sum.floor_seconds += rows[r].floor_seconds;
    }
    return sum;
}

// Seconds of all profiled steps.
static double total_seconds(const Profile *profile) {
    return profile->step_start[profile->num_steps];
}

double profile_exchange_seconds(const Profile *profile) {
    double sum = 0, end = 0;
    for (int64_t i = 0; i < profile->num_spans; i++) {
        const TimedSpan *r = &profile->spans[i];
        if (r->request == PROFILE_WAIT) continue;
        sum += fmax(r->start + r->seconds - fmax(r->start, end), 0);
        end = fmax(end, r->start + r->seconds);
    }
    return sum;
}

ProfileRow profile_exposed(const Profile *profile) {
    ProfileRow row = {.label = "exchange, not hidden"};
    for (int64_t i = 0; i < profile->num_spans; i++) {
        if (profile->spans[i].request != PROFILE_WAIT) continue;
        row.calls++;
        row.seconds += profile->spans[i].seconds;
    }
    return row;
}

// Median length of n steps.
static double median_step_seconds(const double *start, int64_t n) {
    double *seconds = malloc((size_t)n * sizeof *seconds);
    REQUIRE_MEMORY(seconds, "the steps of a profile");
    for (int64_t i = 0; i < n; i++) seconds[i] = start[i + 1] - start[i];
    const double middle = median_of(seconds, n);
    free(seconds);
    return middle;
}

// ------------------------------------------------------------------------------------------- table

enum { LABEL_WIDTH = 52 };

// A number of calls that may differ from step to step (accumulation does not; a short last
// micro-batch has its own shape): the mean, whole where it is whole.
static void print_profile_row(RunLog *log, const ProfileRow *row, const Profile *profile) {
    char calls[32] = "", flops[32] = "", bytes[32], limits[96] = "";
    const double n = (double)profile->num_steps;
    if (row->calls > 0) snprintf(calls, sizeof calls, "%.4g", (double)row->calls / n);
    if (row->flops > 0) format_count(row->flops / n, flops, sizeof flops);
    if (row->bytes > 0)
        snprintf(limits, sizeof limits, " %9s %9s %9.3f %7.1f%%", flops,
                 format_bytes(row->bytes / n, bytes, sizeof bytes), 1e3 * row->floor_seconds / n,
                 100.0 * row->floor_seconds / row->seconds);
    runlog_text(log, "%-*s %6s %9.3f %5.1f%%%s", LABEL_WIDTH, row->label, calls,
                1e3 * row->seconds / n, 100.0 * row->seconds / total_seconds(profile), limits);
}

void profile_print(RunLog *log, const Profile *profile) {
    int count;
    ProfileRow *rows = profile_rows(profile, &count);
    const double timed = median_step_seconds(profile->step_start, profile->num_steps);
    const double plain = median_step_seconds(profile->plain_start, profile->num_steps);

    runlog_text(log,
                "profile     mean of %lld steps; floor: the longer of FLOP at %.4g TFLOP/s (%s) "
                "and bytes at %.4g GB/s",
                (long long)profile->num_steps, profile->speed.matmul_flops / 1e12,
                dtype_name(profile->dtype), profile->speed.copy_bandwidth / 1e9);
    runlog_text(log, "%-*s %6s %9s %6s %9s %9s %9s %8s", LABEL_WIDTH, "op", "calls", "ms", "share",
                "FLOP", "bytes", "floor ms", "of floor");
    for (int r = 0; r < count; r++) print_profile_row(log, &rows[r], profile);

    ProfileRow ops = sum_rows(rows, count), between = {.label = "between ops"}, step = ops;
    const ProfileRow exposed = profile_exposed(profile);
    between.seconds = total_seconds(profile) - ops.seconds - exposed.seconds;
    step.seconds = total_seconds(profile);
    snprintf(step.label, sizeof step.label, "step");

    print_profile_row(log, &ops, profile);
    if (exposed.calls > 0) print_profile_row(log, &exposed, profile);
    print_profile_row(log, &between, profile);
    print_profile_row(log, &step, profile);

    const double exchange = profile_exchange_seconds(profile), n = (double)profile->num_steps;
    if (exchange > 0)
        runlog_text(log,
                    "exchange    under way for %.3f ms of a step, %.3f ms of them not hidden by "
                    "computation",
                    1e3 * exchange / n, 1e3 * exposed.seconds / n);
    runlog_text(log,
                "profile     median step %.3f ms with every op timed, %.3f ms in the %lld before, "
                "untimed: %+.1f%%",
                1e3 * timed, 1e3 * plain, (long long)profile->num_steps,
                100.0 * (timed / plain - 1.0));

    free(rows);
}

// ------------------------------------------------------------------------------------------- files

static bool write_profile(cJSON *root, const char *path, const char *mark, Error *err) {
    char *text = cJSON_PrintUnformatted(root);
    REQUIRE_MEMORY(text, "the profile");
    const bool written = own_file_write(path, mark, text, strlen(text), err);
    free(text);
    cJSON_Delete(root);
    return written;
}

static void add_op_shape(cJSON *object, const OpCost *cost) {
    JSON_ADD(object, JSON_TEXT("tensor", parameter_label(cost->shape.tensor)));
    cJSON *shape = cJSON_AddArrayToObject(object, "shape");
    for (int i = 0; i < cost->shape.rank; i++)
        cJSON_AddItemToArray(shape, cJSON_CreateNumber((double)cost->shape.shape[i]));
}

bool profile_write_json(const char *path, const Profile *profile, Error *err) {
    int count;
    ProfileRow *rows = profile_rows(profile, &count);
    const double n = (double)profile->num_steps, exposed = profile_exposed(profile).seconds;
    const double step = total_seconds(profile);
    const ProfileRow sum = sum_rows(rows, count);

    cJSON *root = cJSON_CreateObject();
    JSON_ADD(root, JSON_NUMBER("steps", profile->num_steps),
             JSON_TEXT("dtype", dtype_name(profile->dtype)),
             JSON_NUMBER("matmul_flops", profile->speed.matmul_flops),
             JSON_NUMBER("copy_bandwidth", profile->speed.copy_bandwidth),
             JSON_NUMBER("median_step_ms",
                         1e3 * median_step_seconds(profile->step_start, profile->num_steps)),
             JSON_NUMBER("median_plain_step_ms",
                         1e3 * median_step_seconds(profile->plain_start, profile->num_steps)),
             JSON_NUMBER("step_ms", 1e3 * step / n), JSON_NUMBER("ops_ms", 1e3 * sum.seconds / n),
             JSON_NUMBER("between_ops_ms", 1e3 * (step - sum.seconds - exposed) / n),
             JSON_NUMBER("floor_ms", 1e3 * sum.floor_seconds / n),
             JSON_NUMBER("exchange_ms", 1e3 * profile_exchange_seconds(profile) / n),
             JSON_NUMBER("exposed_exchange_ms", 1e3 * exposed / n),
             JSON_NUMBER("flops", sum.flops / n), JSON_NUMBER("bytes", sum.bytes / n));
    cJSON *ops = cJSON_AddArrayToObject(root, "ops");

    for (int r = 0; r < count; r++) {
        const ProfileRow *row = &rows[r];
        cJSON *op = cJSON_CreateObject();
        JSON_ADD(op, JSON_TEXT("op", row->cost->op), JSON_TEXT("label", row->label));
        add_op_shape(op, row->cost);
        JSON_ADD(op, JSON_NUMBER("calls", (double)row->calls / n),
                 JSON_NUMBER("ms", 1e3 * row->seconds / n),
                 JSON_NUMBER("share", row->seconds / step), JSON_NUMBER("flops", row->flops / n),
                 JSON_NUMBER("bytes", row->bytes / n),
                 JSON_NUMBER("floor_ms", 1e3 * row->floor_seconds / n));
        cJSON_AddItemToArray(ops, op);
    }

    free(rows);
    return write_profile(root, path, ",\"matmul_flops\":", err);
}

// Trace Event Format: complete events ("X"), times in microseconds. One track for steps, one for
// ops. Requests may overlap, so each is an asynchronous event ("b", "e").
enum { TRACK_STEPS = 1, TRACK_OPS = 2 };

static cJSON *add_event(cJSON *events, const char *phase, int track, const char *name) {
    cJSON *event = cJSON_CreateObject();
    JSON_ADD(event, JSON_TEXT("ph", phase), JSON_NUMBER("pid", 1), JSON_NUMBER("tid", track),
             JSON_TEXT("name", name));
    cJSON_AddItemToArray(events, event);
    return event;
}

// Returns the event's arguments, which are empty.
static cJSON *add_trace_span(cJSON *events, int track, const char *name, double start,
                             double seconds) {
    cJSON *event = add_event(events, "X", track, name);
    JSON_ADD(event, JSON_NUMBER("ts", 1e6 * start), JSON_NUMBER("dur", 1e6 * seconds));
    return cJSON_AddObjectToObject(event, "args");
}

bool profile_write_trace(const char *path, const Profile *profile, Error *err) {
    char label[128];

    cJSON *root = cJSON_CreateObject();
    JSON_ADD(root, JSON_TEXT("displayTimeUnit", "ms"));
    cJSON *events = cJSON_AddArrayToObject(root, "traceEvents");
    JSON_ADD(cJSON_AddObjectToObject(add_event(events, "M", TRACK_STEPS, "thread_name"), "args"),
             JSON_TEXT("name", "steps"));
    JSON_ADD(cJSON_AddObjectToObject(add_event(events, "M", TRACK_OPS, "thread_name"), "args"),
             JSON_TEXT("name", "compute stream"));

    for (int64_t i = 0; i < profile->num_ops; i++) {
        const TimedOp *op = &profile->ops[i];
        cJSON *arguments = add_trace_span(
            events, TRACK_OPS, op_label(&op->cost, label, sizeof label), op->start, op->seconds);
        add_op_shape(arguments, &op->cost);
        JSON_ADD(arguments, JSON_NUMBER("gflop", op->cost.flops / 1e9),
                 JSON_NUMBER("mb", op->cost.bytes / 1e6),
                 JSON_NUMBER("floor_us", 1e6 * profile_floor_seconds(&op->cost, profile->speed)));
    }

    for (int64_t i = 0; i < profile->num_spans; i++) {
        const TimedSpan *s = &profile->spans[i];
        const struct {
            const char *phase;
            double at;
        } ends[] = {{"b", s->start}, {"e", s->start + s->seconds}};
        if (s->request == PROFILE_WAIT)
            JSON_ADD(
                add_trace_span(events, TRACK_OPS, "exchange, not hidden", s->start, s->seconds),
                JSON_TEXT("of", s->name));
        for (int e = 0; e < 2 && s->request != PROFILE_WAIT; e++)
            JSON_ADD(add_event(events, ends[e].phase, TRACK_OPS, s->name),
                     JSON_TEXT("cat", "exchange"), JSON_NUMBER("id", i),
                     JSON_NUMBER("ts", 1e6 * ends[e].at));
    }

    for (int64_t i = 0; i < profile->num_steps; i++) {
        const double start = profile->step_start[i], seconds = profile->step_start[i + 1] - start;
        snprintf(label, sizeof label, "step %lld", (long long)i + 1);
        add_trace_span(events, TRACK_STEPS, label, start, seconds);
    }

    return write_profile(root, path, "\"args\":{\"name\":\"steps\"}}", err);
}
