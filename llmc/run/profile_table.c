// The measurements op by op, as a table for the reader, as JSON (profile.json) and as a trace (profile_trace.json, for
// chrome://tracing or ui.perfetto.dev). Rows are sums over the profiled steps; the mean, one step, is shown. See
// profile.h.
#include "llmc/run/profile.h"

#include "llmc/base/own_file.h"
#include "llmc/model/parameters.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

// -------------------------------------------------------------------------------------------------------------- labels

// "transformer.h.11.attn.c_attn.weight" -> "qkvw"; names that are no weight's stay.
const char *op_tensor(const OpCost *cost) {
    const char *name = cost->shape.tensor;
    for (int s = 0; s < NUM_PARAMETER_SPECS; s++) {
        const char *pattern = parameter_specs[s].hf_name, *block = strstr(pattern, "%d");
        if (!block && strcmp(name, pattern) == 0) return parameter_specs[s].name;
        const size_t before = block ? (size_t)(block - pattern) : 0;
        if (!block || strncmp(name, pattern, before) != 0) continue;
        const char *after = name + before + strspn(name + before, "0123456789");
        if (strcmp(after, block + strlen("%d")) == 0) return parameter_specs[s].name;
    }
    return name;
}

const char *op_label(const OpCost *cost, char *buf, int size) {
    int n = snprintf(buf, (size_t)size, "%s %s ", cost->op, op_tensor(cost));
    for (int i = 0; i < cost->shape.rank && n < size; i++)
        n += snprintf(buf + n, (size_t)(size - n), i ? "x%lld" : "%lld", (long long)cost->shape.shape[i]);
    return buf;
}

// ---------------------------------------------------------------------------------------------------------------- rows

double profile_floor_seconds(const OpCost *cost, DeviceSpeed speed) {
    if (speed.matmul_flops <= 0) return 0; // it was not measured
    return fmax(cost->flops / speed.matmul_flops, cost->bytes / speed.copy_bandwidth);
}

static int slowest_first(const void *a, const void *b) {
    const ProfileRow *x = a, *y = b;
    if (x->seconds != y->seconds) return x->seconds < y->seconds ? 1 : -1;
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
            capacity = capacity ? 2 * capacity : 64;
            ProfileRow *more = realloc(rows, (size_t)capacity * sizeof *rows);
            if (!more) {
                free(rows);
                return NULL;
            }
            rows = more;
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
    if (rows) qsort(rows, (size_t)n, sizeof *rows, slowest_first);
    *count = n;
    return rows ? rows : calloc(1, sizeof *rows);
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
static double total_seconds(const Profile *profile) { return profile->step_start[profile->num_steps]; }

// Requests are sorted by their starts.
double profile_exchange_seconds(const Profile *profile) {
    double sum = 0, end = 0;
    for (int64_t i = 0; i < profile->num_requests; i++) {
        const TimedSpan *r = &profile->requests[i];
        sum += fmax(r->start + r->seconds - fmax(r->start, end), 0);
        end = fmax(end, r->start + r->seconds);
    }
    return sum;
}

double profile_exposed_seconds(const Profile *profile) {
    double sum = 0;
    for (int64_t i = 0; i < profile->num_waits; i++) sum += profile->waits[i].seconds;
    return sum;
}

// Median length of n steps; -1: out of memory.
static double median_seconds(const double *start, int64_t n) {
    double *seconds = malloc((size_t)n * sizeof *seconds);
    if (!seconds) return -1.0;
    for (int64_t i = 0; i < n; i++) seconds[i] = start[i + 1] - start[i];
    const double middle = median_of(seconds, n);
    free(seconds);
    return middle;
}

// --------------------------------------------------------------------------------------------------------------- table

enum { LABEL_WIDTH = 52 };

// A number of calls that may differ from step to step (accumulation does not; a short last micro-batch has its own
// shape): the mean, whole where it is whole.
static void print_row(RunLog *log, const ProfileRow *row, const Profile *profile) {
    char calls[32] = "", flops[32] = "", bytes[32], limits[96] = "";
    const double n = (double)profile->num_steps;
    if (row->calls > 0) snprintf(calls, sizeof calls, "%.4g", (double)row->calls / n);
    if (row->flops > 0) format_count(row->flops / n, flops, sizeof flops);
    if (row->bytes > 0)
        snprintf(limits, sizeof limits, " %9s %9s %9.3f %7.1f%%", flops,
                 format_bytes(row->bytes / n, bytes, sizeof bytes), 1e3 * row->floor_seconds / n,
                 100.0 * row->floor_seconds / row->seconds);
    runlog_text(log, "%-*s %6s %9.3f %5.1f%%%s", LABEL_WIDTH, row->label, calls, 1e3 * row->seconds / n,
                100.0 * row->seconds / total_seconds(profile), limits);
}

bool profile_print(RunLog *log, const Profile *profile, Error *err) {
    int count;
    ProfileRow *rows = profile_rows(profile, &count);
    const double timed = median_seconds(profile->step_start, profile->num_steps);
    const double plain = median_seconds(profile->plain_start, profile->num_steps);
    if (!rows || timed < 0 || plain < 0) {
        free(rows);
        return error_set(err, "--profile: out of memory");
    }
    runlog_text(log,
                "profile     mean of %lld steps; floor: the longer of FLOP at %.4g TFLOP/s (%s) and bytes at %.4g GB/s",
                (long long)profile->num_steps, profile->speed.matmul_flops / 1e12, dtype_name(profile->dtype),
                profile->speed.copy_bandwidth / 1e9);
    runlog_text(log, "%-*s %6s %9s %6s %9s %9s %9s %8s", LABEL_WIDTH, "op", "calls", "ms", "share", "FLOP", "bytes",
                "floor ms", "of floor");
    for (int r = 0; r < count; r++) print_row(log, &rows[r], profile);
    ProfileRow ops = sum_rows(rows, count), between = {.label = "between ops"}, step = ops;
    ProfileRow exposed = {.label = "exchange, not hidden", .calls = profile->num_waits};
    exposed.seconds = profile_exposed_seconds(profile);
    between.seconds = total_seconds(profile) - ops.seconds - exposed.seconds;
    step.seconds = total_seconds(profile);
    snprintf(step.label, sizeof step.label, "step");
    print_row(log, &ops, profile);
    if (exposed.calls > 0) print_row(log, &exposed, profile);
    print_row(log, &between, profile);
    print_row(log, &step, profile);
    const double exchange = profile_exchange_seconds(profile), n = (double)profile->num_steps;
    if (profile->num_requests > 0)
        runlog_text(log, "exchange    under way for %.3f ms of a step, %.3f ms of them not hidden by computation",
                    1e3 * exchange / n, 1e3 * exposed.seconds / n);
    runlog_text(log,
                "profile     median step %.3f ms with every op timed, %.3f ms in the %lld before, untimed: %+.1f%%",
                1e3 * timed, 1e3 * plain, (long long)profile->num_steps, 100.0 * (timed / plain - 1.0));
    free(rows);
    return true;
}

// --------------------------------------------------------------------------------------------------------------- files

// Writes the text that f has gathered to path; closes and frees.
static bool commit_text(FILE *f, char **text, size_t *bytes, const char *path, const char *mark, Error *err) {
    fclose(f);
    const bool written = own_file_write(path, mark, *text, *bytes, err);
    free(*text);
    return written;
}

static void put_shape(FILE *f, const OpCost *cost) {
    fprintf(f, "\"tensor\":\"%s\",\"shape\":[", op_tensor(cost));
    for (int i = 0; i < cost->shape.rank; i++) fprintf(f, i ? ",%lld" : "%lld", (long long)cost->shape.shape[i]);
    fputc(']', f);
}

bool profile_write_json(const char *path, const Profile *profile, Error *err) {
    int count;
    char *text = NULL;
    size_t bytes = 0;
    ProfileRow *rows = profile_rows(profile, &count);
    REQUIRE_MEMORY(rows, "the rows of a profile");
    FILE *f = text_open(&text, &bytes);
    const double n = (double)profile->num_steps, exposed = profile_exposed_seconds(profile);
    const ProfileRow ops = sum_rows(rows, count);
    fprintf(f, "{\"steps\":%lld,\"dtype\":\"%s\",\"matmul_flops\":%.9g,\"copy_bandwidth\":%.9g,\n",
            (long long)profile->num_steps, dtype_name(profile->dtype), profile->speed.matmul_flops,
            profile->speed.copy_bandwidth);
    fprintf(f, "\"median_step_ms\":%.9g,\"median_plain_step_ms\":%.9g,\n",
            1e3 * median_seconds(profile->step_start, profile->num_steps),
            1e3 * median_seconds(profile->plain_start, profile->num_steps));
    fprintf(f, "\"step_ms\":%.9g,\"ops_ms\":%.9g,\"between_ops_ms\":%.9g,\"floor_ms\":%.9g,\n",
            1e3 * total_seconds(profile) / n, 1e3 * ops.seconds / n,
            1e3 * (total_seconds(profile) - ops.seconds - exposed) / n, 1e3 * ops.floor_seconds / n);
    fprintf(f, "\"exchange_ms\":%.9g,\"exposed_exchange_ms\":%.9g,\n", 1e3 * profile_exchange_seconds(profile) / n,
            1e3 * exposed / n);
    fprintf(f, "\"flops\":%.17g,\"bytes\":%.17g,\n\"ops\":[", ops.flops / n, ops.bytes / n);
    for (int r = 0; r < count; r++) {
        const ProfileRow *row = &rows[r];
        fprintf(f, "%s\n{\"op\":\"%s\",\"label\":\"%s\",", r ? "," : "", row->cost->op, row->label);
        put_shape(f, row->cost);
        fprintf(f, ",\"calls\":%.9g,\"ms\":%.9g,\"share\":%.6g,\"flops\":%.17g,\"bytes\":%.17g,\"floor_ms\":%.9g}",
                (double)row->calls / n, 1e3 * row->seconds / n, row->seconds / total_seconds(profile), row->flops / n,
                row->bytes / n, 1e3 * row->floor_seconds / n);
    }
    fputs("\n]}\n", f);
    free(rows);
    return commit_text(f, &text, &bytes, path, ",\"matmul_flops\":", err);
}

// Trace Event Format: complete events ("X"), times in microseconds. One track for steps, one for ops. Requests may
// overlap, so each is an asynchronous event ("b", "e").
enum { TRACK_STEPS = 1, TRACK_OPS = 2 };

static void put_track(FILE *f, int track, const char *name) {
    fprintf(f, "{\"ph\":\"M\",\"pid\":1,\"tid\":%d,\"name\":\"thread_name\",\"args\":{\"name\":\"%s\"}},\n", track,
            name);
}

static void put_event(FILE *f, int track, const char *name, double start, double seconds) {
    fprintf(f, "{\"ph\":\"X\",\"pid\":1,\"tid\":%d,\"name\":\"%s\",\"ts\":%.3f,\"dur\":%.3f", track, name, 1e6 * start,
            1e6 * seconds);
}

bool profile_write_trace(const char *path, const Profile *profile, Error *err) {
    char *text = NULL, label[128];
    size_t bytes = 0;
    FILE *f = text_open(&text, &bytes);
    fputs("{\"displayTimeUnit\":\"ms\",\"traceEvents\":[\n", f);
    put_track(f, TRACK_STEPS, "steps");
    put_track(f, TRACK_OPS, "compute stream");
    for (int64_t i = 0; i < profile->num_ops; i++) {
        const TimedOp *op = &profile->ops[i];
        put_event(f, TRACK_OPS, op_label(&op->cost, label, sizeof label), op->start, op->seconds);
        fputs(",\"args\":{", f);
        put_shape(f, &op->cost);
        fprintf(f, ",\"gflop\":%.6g,\"mb\":%.6g,\"floor_us\":%.3f}},\n", op->cost.flops / 1e9, op->cost.bytes / 1e6,
                1e6 * profile_floor_seconds(&op->cost, profile->speed));
    }
    for (int64_t i = 0; i < profile->num_waits; i++) {
        const TimedSpan *w = &profile->waits[i];
        put_event(f, TRACK_OPS, "exchange, not hidden", w->start, w->seconds);
        fprintf(f, ",\"args\":{\"of\":\"%s\"}},\n", w->name);
    }
    for (int64_t i = 0; i < profile->num_requests; i++) {
        const TimedSpan *r = &profile->requests[i];
        const double end = r->start + r->seconds;
        for (int e = 0; e < 2; e++)
            fprintf(f, "{\"ph\":\"%s\",\"pid\":1,\"cat\":\"exchange\",\"id\":%lld,\"name\":\"%s\",\"ts\":%.3f},\n",
                    e ? "e" : "b", (long long)i, r->name, 1e6 * (e ? end : r->start));
    }
    for (int64_t i = 0; i < profile->num_steps; i++) {
        snprintf(label, sizeof label, "step %lld", (long long)i + 1);
        put_event(f, TRACK_STEPS, label, profile->step_start[i], profile->step_start[i + 1] - profile->step_start[i]);
        fputs(i + 1 < profile->num_steps ? "},\n" : "}\n", f);
    }
    fputs("]}\n", f);
    return commit_text(f, &text, &bytes, path, "\"args\":{\"name\":\"steps\"}},\n", err);
}
