// The output of a run: stdout, main.log and the events with numbers. See runlog.h for the formats.
// Owns stdout and main.log while the run lasts. Every line for the reader leaves in one flush
// together with the bar that is cleared above and drawn again below it, so that nothing flickers.
// An event is a line for the reader, a JSON line of main.log and a record for TensorBoard; the
// latter two are filled by the same calls, so that they cannot disagree.
#include "llmc/log/runlog.h"

#include "llmc/base/clock.h"
#include "llmc/base/directory.h"
#include "llmc/base/format.h"
#include "llmc/base/path.h"
#include "llmc/base/path_reason.h"
#include "llmc/base/utf8.h"
#include "llmc/log/main_log.h"
#include "llmc/log/tensorboard.h"
#include "llmc/model/model_numerics.h"

#include <cjson/cJSON.h>
#include <errno.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

// Calls that can fail without ending the run.
typedef enum { WRITES_LINE, SYNCS, DROPS_EVALUATIONS, WRITES_CURVES, LOG_CALLS } LogCall;

struct RunLog {
    AppendFile file;          // main.log
    char *directory;          // NULL: none
    struct stat place;        // identifies the directory that was opened
    int64_t lost_lines;       // since the last line that was written
    bool failed[LOG_CALLS];   // reported already, and not done since
    TensorBoard *tensorboard; // NULL: not open
    char *curves;             // its directory; NULL: none
    int64_t curves_kept;      // the step up to which events of an earlier start hold
    double curves_time;       // now_seconds of the last attempt to open it
    bool progress, utf8;
    char bar[1024];                    // "" until the first step
    double bar_time;                   // now_seconds of its text
    int64_t sample_step, sample_index; // of the last text sample
};

static const char CLEAR_LINE[] = "\r\x1b[K"; // to the first column, erase to the end of the line

static void runlog_clear_bar(RunLog *log) {
    if (*log->bar) fputs(CLEAR_LINE, stdout);
}

// ----------------------------------------------------------------------------------- failing calls

// Reports a failed call, once until it is done again.
static void complain(RunLog *log, LogCall call, const Error *err) {
    static const char *const consequences[LOG_CALLS] = {
        [WRITES_LINE] = "this log will miss lines",
        [SYNCS] = "this log may miss lines after a loss of power",
        [DROPS_EVALUATIONS] = "this log may have evaluations twice",
        [WRITES_CURVES] = "TensorBoard will miss values",
    };
    if (log->failed[call]) return;
    log->failed[call] = true;
    runlog_clear_bar(log);
    fflush(stdout);
    fprintf(stderr, "%s; the run continues, but %s\n", err->text, consequences[call]);
}

// Opens the events if they are not open, at most once a second.
static void open_curves(RunLog *log) {
    Error why;
    if (log->tensorboard || !log->curves || now_seconds() - log->curves_time < 1) return;
    log->curves_time = now_seconds();
    if (directory_make(log->curves, &why))
        log->tensorboard = tensorboard_open(log->curves, log->curves_kept, &why);
    if (!log->tensorboard) complain(log, WRITES_CURVES, &why);
}

// ----------------------------------------------------------------------------------------- opening

bool runlog_is_there(const RunLog *log, Error *err) {
    struct stat now;
    if (!log->directory) return true;
    const bool found = stat(log->directory, &now) == 0;
    const bool unknown = !found && errno != ENOENT && errno != ENOTDIR;
    if (unknown || (found && now.st_ino == log->place.st_ino && now.st_dev == log->place.st_dev))
        return true;
    return error_set(err,
                     "-o %s: the directory was removed or renamed while this run wrote into it",
                     log->directory);
}

RunLog *runlog_open(const char *directory, bool append, int64_t first_step, int progress,
                    Error *err) {
    RunLog *log = calloc(1, sizeof *log);
    REQUIRE_MEMORY(log, "the log");
    log->file.fd = -1;
    log->sample_step = -1;
    log->progress = progress > 0 || (progress < 0 && terminal_redraws(STDOUT_FILENO));
    log->utf8 = terminal_is_utf8();
    if (!directory || !*directory) return log;

    log->directory = strdup(directory);
    REQUIRE_MEMORY(log->directory, "a path");
    char *path = path_join(directory, "main.log");
    bool ok =
        directory_make(directory, err) && main_log_open(&log->file, path, append, first_step, err);
    free(path);
    if (ok && stat(directory, &log->place) != 0)
        ok =
            error_set(err, "%s: cannot be read: %s", directory, path_reason(directory, errno).text);
    if (!ok) {
        error_prefix(err, "-o");
        runlog_close(log);
        return NULL;
    }

    // Events are for display only: without them the run continues. An evaluation has its own
    // directory, because TensorBoard takes a step that is not beyond the last one for a restart and
    // would drop the existing curves.
    const bool only_evaluates = append && first_step == INT64_MAX;
    log->curves_kept = -1;
    if (append) log->curves_kept = first_step;
    log->curves = strdup(directory);
    REQUIRE_MEMORY(log->curves, "a path");
    if (only_evaluates) {
        free(log->curves);
        log->curves = path_join(directory, "evaluation");
    }
    open_curves(log);
    return log;
}

// ------------------------------------------------------------------------------------------ stdout

// A line on stdout, above the bar, of which every character is visible. name: in its first 12
// columns; NULL: no such column.
static void runlog_print(RunLog *log, const char *name, const char *text, size_t length) {
    runlog_clear_bar(log);
    if (name) printf("%-12s", name);
    fwrite(text, 1, length, stdout);
    fputc('\n', stdout);
    fputs(log->bar, stdout);
    fflush(stdout);
}

void runlog_field(RunLog *log, const char *name, const char *format, ...) {
    va_list args;
    char *text = NULL;
    va_start(args, format);
    const int length = vasprintf(&text, format, args);
    va_end(args);
    const size_t size = (size_t)length * (UTF8_VISIBLE - 1) + 1;
    char *line = length >= 0 ? malloc(size) : NULL;
    if (line) { // else out of memory for a line of text: the run matters more
        utf8_make_visible(text, line, size);
        runlog_print(log, name, line, strlen(line));
    }
    free(line);
    if (length >= 0) free(text);
}

bool runlog_stream(void *context, const char *bytes, int64_t n) {
    RunLog *log = context;
    runlog_clear_bar(log);
    log->bar[0] = '\0'; // the next step draws it again
    format_visible(stdout, bytes, (size_t)n, NULL);
    fflush(stdout);
    return !ferror(stdout);
}

void runlog_close(RunLog *log) {
    if (!log) return;
    runlog_clear_bar(log);
    fflush(stdout);
    append_file_close(&log->file);
    tensorboard_close(log->tensorboard);
    free(log->curves);
    free(log->directory);
    free(log);
}

// ------------------------------------------------------------------------------------------- files

// Ends the record that tensorboard_begin started.
static void runlog_end_record(RunLog *log) {
    Error err;
    const bool ok = tensorboard_end(log->tensorboard, &err);
    if (!ok) complain(log, WRITES_CURVES, &err);
    if (ok && log->tensorboard) log->failed[WRITES_CURVES] = false;
}

void runlog_sync(RunLog *log) {
    Error err;
    if (log->file.fd < 0) return;
    bool ok = append_file_sync(&log->file, &err);
    if (ok) ok = directory_sync(log->directory, &err);
    if (!ok) complain(log, SYNCS, &err);
    log->failed[SYNCS] = !ok;
}

void runlog_drop_evaluations(RunLog *log, int64_t step) {
    Error err;
    if (log->file.fd >= 0 && !main_log_drop_evaluations(&log->file, step, &err))
        complain(log, DROPS_EVALUATIONS, &err);
}

// A line of main.log, and nothing else: {"event":EVENT,"time":...,INNER}.
static void runlog_write(RunLog *log, const char *event, const char *inner, size_t length) {
    if (!log->file.path) return;
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);

    char *line = NULL;
    size_t bytes = 0;
    FILE *f = text_open(&line, &bytes);
    fprintf(f, "{\"event\":\"%s\",\"time\":%lld.%03ld", event, (long long)now.tv_sec,
            now.tv_nsec / 1000000);
    if (length > 0) fputc(',', f);
    for (size_t i = 0; i < length; i++)
        fputc(inner[i] == '\n' || inner[i] == '\r' ? ' ' : inner[i], f); // only ever layout
    fputs("}\n", f);

    Error err;
    fclose(f);
    const bool ok = append_file_write(&log->file, line, bytes, &err);
    free(line);
    if (!ok) {
        complain(log, WRITES_LINE, &err);
        log->lost_lines++;
    } else if (log->failed[WRITES_LINE]) {
        log->failed[WRITES_LINE] = false;
        runlog_field(log, "log", "%s is written again; lines missing: %lld", log->file.path,
                     (long long)log->lost_lines);
        log->lost_lines = 0;
    }
}

void runlog_event(RunLog *log, const char *event, const char *format, ...) {
    va_list args;
    char *fields = NULL;
    va_start(args, format);
    const int length = vasprintf(&fields, format, args);
    va_end(args);
    REQUIRE_MEMORY(length >= 0, "the log");
    runlog_write(log, event, fields, (size_t)length);
    open_curves(log);

    char *text = NULL;
    if (length > 0 && log->tensorboard && asprintf(&text, "{%s}", fields) >= 0) {
        cJSON *object = cJSON_Parse(text);
        free(text);
        const cJSON *step = cJSON_GetObjectItemCaseSensitive(object, "step"), *item;
        // Groups are in alphabetical order: "end" would come before "train".
        const char *group = strcmp(event, "end") == 0 ? "whole_run" : event;
        const int64_t at = cJSON_IsNumber(step) ? (int64_t)step->valuedouble : 0;

        tensorboard_begin(log->tensorboard, at);
        if (cJSON_IsNumber(step)) {
            cJSON_ArrayForEach(item, object) {
                char tag[128];
                snprintf(tag, sizeof tag, "%s/%s", group, item->string);
                if (cJSON_IsNumber(item) && item != step)
                    tensorboard_scalar(log->tensorboard, tag, item->valuedouble);
            }
        } else if (object && (text = cJSON_Print(object)) != NULL) {
            tensorboard_text(log->tensorboard, event, text, (int64_t)strlen(text));
            free(text);
        }
        cJSON_Delete(object);
        runlog_end_record(log);
    }
    free(fields);
}

// ------------------------------------------------------------------------------------------ events

// An event on its way into both files.
typedef struct {
    RunLog *log;
    const char *event; // its name in main.log
    char group[128];   // the first part of its tags in TensorBoard
    FILE *json;
    char *text;
    size_t bytes;
} Entry;

static void entry_begin(Entry *e, RunLog *log, const char *event, const char *group, int64_t step) {
    *e = (Entry){.log = log, .event = event};
    snprintf(e->group, sizeof e->group, "%s", group);
    e->json = text_open(&e->text, &e->bytes);
    fprintf(e->json, "\"step\":%lld", (long long)step);
    open_curves(log);
    tensorboard_begin(log->tensorboard, step);
}

static void entry_end(Entry *e) {
    fclose(e->json);
    runlog_write(e->log, e->event, e->text, e->bytes);
    free(e->text);
    runlog_end_record(e->log);
}

static void entry_text(Entry *e, const char *key, const char *text, size_t bytes) {
    fprintf(e->json, ",\"%s\":", key);
    format_json_string(e->json, text, bytes);
}

static void entry_string(Entry *e, const char *key, const char *text) {
    entry_text(e, key, text, strlen(text));
}

// The significant digits of the types of numbers.
enum { FLOAT_DIGITS = 9, DOUBLE_DIGITS = 17, MEASURED_DIGITS = 6 };

// "key":x and the scalar GROUP/name, which is what a reader of the JSON gets. In JSON inf and nan
// are null.
static void entry_named(Entry *e, const char *key, const char *name, double x, int digits) {
    char text[32] = "null", tag[1024]; // a name may be a path
    if (isfinite(x)) {
        snprintf(text, sizeof text, "%.*g", digits, x);
        x = strtod(text, NULL);
    }
    fprintf(e->json, ",\"%s\":%s", key, text);
    snprintf(tag, sizeof tag, "%s/%s", e->group, name);
    tensorboard_scalar(e->log->tensorboard, tag, x);
}

static void entry_number(Entry *e, const char *key, double x, int digits) {
    entry_named(e, key, key, x, digits);
}

// 0 is how these say that they are not known: null, and nothing to draw.
static void entry_if_known(Entry *e, const char *key, double x, int digits) {
    if (x > 0.0)
        entry_number(e, key, x, digits);
    else
        fprintf(e->json, ",\"%s\":null", key);
}

// ------------------------------------------------------------------------------------------- steps

// " | SKIPPED: why" and what became of the loss scale, or nothing.
static void put_decision(FILE *f, const StepReport *r) {
    const StepControl *c = &r->control;
    const bool scale_known = r->last_loss_scale > 0.0f,
               scale_fell = scale_known && c->loss_scale < r->last_loss_scale;
    if (c->skip == SKIP_LOSS_OUTLIER)
        fprintf(f, " | SKIPPED: loss outlier z %.1f", (double)c->loss_z);
    else if (c->skip == SKIP_NORM_OUTLIER)
        fprintf(f, " | SKIPPED: gradient norm outlier z %.1f", (double)c->norm_z);
    else if (c->skip == SKIP_NONFINITE && scale_fell && isfinite(c->loss))
        fprintf(f, " | skipped: overflow, normal in fp16");
    else if (c->skip == SKIP_NONFINITE && c->bad_tensor >= 0)
        fprintf(f, " | SKIPPED: gradient of %s is not finite",
                r->bad_tensor ? r->bad_tensor : "a tensor");
    else if (c->skip == SKIP_NONFINITE && isfinite(c->loss))
        fprintf(f, " | SKIPPED: gradient norm is not finite");
    else if (c->skip == SKIP_NONFINITE)
        fprintf(f, " | SKIPPED: loss is not finite");

    if (scale_known && c->loss_scale != r->last_loss_scale)
        fprintf(f, " | loss scale now %g", (double)c->loss_scale);
}

// How often the bar's text is made anew. The eye does not follow more.
static const double BAR_SECONDS = 0.1;

void runlog_step(RunLog *log, const StepReport *r) {
    static const char *const skips[] = {[SKIP_NONFINITE] = "nonfinite",
                                        [SKIP_LOSS_OUTLIER] = "loss_outlier",
                                        [SKIP_NORM_OUTLIER] = "norm_outlier"};
    const StepControl *c = &r->control;
    char loss[32], norm[32], ms[32], rate[32], eta[32], total[32];
    format_fixed((double)c->loss, 6, 4, loss, sizeof loss);
    format_fixed((double)c->norm, 6, 4, norm, sizeof norm);
    format_fixed(1e3 * r->seconds, 5, 3, ms, sizeof ms);
    format_count(r->tokens / r->seconds, rate, sizeof rate);
    format_duration(r->eta_seconds, eta, sizeof eta);
    int width = snprintf(total, sizeof total, "%lld", (long long)r->total);

    char *line = NULL;
    size_t bytes = 0;
    FILE *f = text_open(&line, &bytes);
    fprintf(f, "step %*lld/%s | loss %s | norm %s | lr %.2e | %s ms | %6s tok/s", width,
            (long long)r->step, total, loss, norm, r->lr, ms, rate);
    if (r->mfu > 0.0) fprintf(f, " | mfu %4.1f%% hfu %4.1f%%", 100.0 * r->mfu, 100.0 * r->hfu);
    fprintf(f, " | eta %s", eta);
    put_decision(f, r);
    fclose(f);
    const double now = now_seconds();
    const bool fresh = *log->bar && r->step < r->total && now - log->bar_time < BAR_SECONDS;
    if (log->progress && !fresh) {
        char left[64], right[128];
        snprintf(left, sizeof left, "step %lld/%s", (long long)r->step, total);
        snprintf(right, sizeof right, "loss %s | %s tok/s | eta %s", loss, rate, eta);
        const double fraction = r->total > 0 ? (double)r->step / (double)r->total : 0.0;
        progress_render(fraction, left, right, terminal_width(), log->utf8, log->bar,
                        sizeof log->bar);
        log->bar_time = now;
    }
    runlog_print(log, NULL, line, bytes);
    free(line);

    Entry e;
    entry_begin(&e, log, "step", "train", r->step);
    entry_number(&e, "loss", (double)c->loss, FLOAT_DIGITS);
    entry_number(&e, "norm", (double)c->norm, FLOAT_DIGITS);
    entry_number(&e, "lr", r->lr, DOUBLE_DIGITS);
    entry_number(&e, "ms", 1e3 * r->seconds, MEASURED_DIGITS);
    entry_number(&e, "tokens_per_second", r->tokens / r->seconds, MEASURED_DIGITS);
    entry_if_known(&e, "mfu", r->mfu, MEASURED_DIGITS);
    entry_if_known(&e, "hfu", r->hfu, MEASURED_DIGITS);
    if (c->loss_z != 0.0f || c->norm_z != 0.0f) {
        entry_number(&e, "loss_z", (double)c->loss_z, MEASURED_DIGITS);
        entry_number(&e, "norm_z", (double)c->norm_z, MEASURED_DIGITS);
    }
    if (c->loss_scale != 1.0f) entry_number(&e, "loss_scale", (double)c->loss_scale, FLOAT_DIGITS);
    if (c->skipped > 0) entry_number(&e, "skipped", c->skipped, DOUBLE_DIGITS);
    if (c->skip != SKIP_NONE) entry_string(&e, "skip", skips[c->skip]);
    if (c->skip == SKIP_NONFINITE && c->bad_tensor >= 0 && r->bad_tensor)
        entry_string(&e, "bad_tensor", r->bad_tensor);
    entry_end(&e);
}

// -------------------------------------------------------------------------------------- evaluation

static const char *bits_text(const ValidationScore *s, char text[48]) {
    *text = '\0';
    if (s->bits_per_byte > 0.0) snprintf(text, 48, "%.4f bits/byte | ", s->bits_per_byte);
    return text;
}

void runlog_validation(RunLog *log, int64_t step, const ValidationScore *s, const Mixture *mixture,
                       const ValidationScore *each, double seconds) {
    char bits[48], count[32], duration[32];
    const double perplexity = exp(s->loss);
    const int sources = mixture->count > 1 ? mixture->count : 0;
    runlog_text(log, "validation at step %lld | loss %.4f | perplexity %.2f | %s%s tokens in %s",
                (long long)step, s->loss, perplexity, bits_text(s, bits),
                format_count((double)s->tokens, count, sizeof count),
                format_duration(seconds, duration, sizeof duration));
    for (int i = 0; i < sources; i++)
        runlog_text(log, "%s at step %lld | loss %.4f | perplexity %.2f | %sshare %.4g%%",
                    mixture->names[i], (long long)step, each[i].loss, exp(each[i].loss),
                    bits_text(&each[i], bits), 100 * mixture_share(mixture, i));

    Entry e;
    entry_begin(&e, log, "validation", "val", step);
    entry_number(&e, "loss", s->loss, DOUBLE_DIGITS);
    entry_named(&e, "ppl", "perplexity", perplexity, DOUBLE_DIGITS);
    if (s->bits_per_byte > 0.0) entry_number(&e, "bits_per_byte", s->bits_per_byte, DOUBLE_DIGITS);
    entry_number(&e, "tokens", (double)s->tokens, DOUBLE_DIGITS);

    if (sources > 0) fputs(",\"sources\":[", e.json);
    for (int i = 0; i < sources; i++) { // an object of the list each, and scalars named after it
        const char *name = mixture->names[i];
        char tag[1000];
        fprintf(e.json, "%s{\"name\":", i > 0 ? "," : "");
        format_json_string(e.json, name, strlen(name));
        fprintf(e.json, ",\"share\":%.6g,\"tokens\":%lld", mixture_share(mixture, i),
                (long long)each[i].tokens);
        snprintf(tag, sizeof tag, "loss/%s", name);
        entry_named(&e, "loss", tag, each[i].loss, DOUBLE_DIGITS);
        snprintf(tag, sizeof tag, "bits_per_byte/%s", name);
        if (each[i].bits_per_byte > 0.0)
            entry_named(&e, "bits_per_byte", tag, each[i].bits_per_byte, DOUBLE_DIGITS);
        fputc('}', e.json);
    }
    if (sources > 0) fputc(']', e.json);

    entry_number(&e, "seconds", seconds, MEASURED_DIGITS);
    entry_end(&e);
}

void runlog_choices(RunLog *log, int64_t step, const char *name, const ChoiceScore *s,
                    double seconds) {
    const double all = s->examples > 0 ? (double)s->examples : 1.0; // of none, none is right
    const double accuracy = (double)s->correct / all,
                 normalised = (double)s->correct_normalised / all;
    runlog_text(log, "%s at step %lld | accuracy %.2f%% (normalised), %.2f%% | %lld/%lld | %.1f s",
                name, (long long)step, 100.0 * normalised, 100.0 * accuracy,
                (long long)s->correct_normalised, (long long)s->examples, seconds);

    char group[128];
    Entry e;
    snprintf(group, sizeof group, "choices/%s", name);
    entry_begin(&e, log, "choices", group, step);
    entry_string(&e, "name", name);
    entry_number(&e, "examples", (double)s->examples, DOUBLE_DIGITS);
    entry_number(&e, "correct", (double)s->correct, DOUBLE_DIGITS);
    entry_number(&e, "correct_normalised", (double)s->correct_normalised, DOUBLE_DIGITS);
    entry_number(&e, "accuracy", accuracy, DOUBLE_DIGITS);
    entry_number(&e, "accuracy_normalised", normalised, DOUBLE_DIGITS);
    entry_number(&e, "seconds", seconds, MEASURED_DIGITS);
    entry_end(&e);
}

// ------------------------------------------------------------------------------- sensors and texts

void runlog_sensors(RunLog *log, int64_t step, const DeviceSensors *s) {
    runlog_text(log, "gpu at step %lld | %.0f MHz, memory %.0f MHz | %.0f W | %.0f C%s%s",
                (long long)step, s->sm_clock_mhz, s->memory_clock_mhz, s->power_watts,
                s->temperature_c, *s->throttle ? " | throttled by: " : "", s->throttle);
    Entry e;
    entry_begin(&e, log, "gpu", "gpu", step);
    entry_if_known(&e, "sm_clock_mhz", s->sm_clock_mhz, MEASURED_DIGITS);
    entry_if_known(&e, "memory_clock_mhz", s->memory_clock_mhz, MEASURED_DIGITS);
    entry_if_known(&e, "power_watts", s->power_watts, MEASURED_DIGITS);
    entry_if_known(&e, "energy_joules", s->energy_joules, DOUBLE_DIGITS);
    entry_if_known(&e, "temperature_c", s->temperature_c, MEASURED_DIGITS);
    entry_string(&e, "throttle", s->throttle);
    entry_end(&e);
}

void runlog_sample(RunLog *log, int64_t step, const char *text, int64_t bytes, bool shown,
                   bool cut) {
    if (log->sample_step != step) log->sample_index = 0;
    log->sample_index++;
    log->sample_step = step;

    if (!shown) {
        char *out = NULL;
        size_t length = 0;
        FILE *f = text_open(&out, &length);
        fputs("sample ", f);
        if (log->sample_index > 1) fprintf(f, "%lld ", (long long)log->sample_index);
        fprintf(f, "at step %lld:\n", (long long)step);
        format_visible(f, text, (size_t)bytes, "    ");
        fclose(f);
        runlog_print(log, NULL, out, length);
        free(out);
    }

    Entry e;
    char tag[32];
    entry_begin(&e, log, "sample", "", step);
    fprintf(e.json, ",\"index\":%lld", (long long)log->sample_index);
    entry_text(&e, "text", text, (size_t)bytes);
    if (cut) fputs(",\"cut\":true", e.json);
    // A tag of its own for each: of one tag TensorBoard keeps one value a step.
    snprintf(tag, sizeof tag, "sample/%lld", (long long)log->sample_index);
    tensorboard_text(log->tensorboard, tag, text, bytes);
    entry_end(&e);
}

// ---------------------------------------------------------------------------------------- numerics

static double share(const NumericsRow *row, double elements) {
    if (row->stats.count > 0.0) return elements / row->stats.count;
    return 0.0;
}
static double underflow(const NumericsRow *row) { return share(row, row->stats.underflow); }
static double overflow(const NumericsRow *row) { return share(row, row->stats.overflow); }

// The row for which `of` is largest, or smallest, among those where it is above 0; NULL: it is 0
// everywhere.
static const NumericsRow *extreme(const NumericsRow *rows, int count,
                                  double (*of)(const NumericsRow *), bool largest) {
    const NumericsRow *found = NULL;
    for (int i = 0; i < count; i++) {
        if (!(of(&rows[i]) > 0.0)) continue;
        if (!found || (of(&rows[i]) > of(found)) == largest) found = &rows[i];
    }
    return found;
}

// The length of "wte" in "wte.update".
static int kind_length(const NumericsRow *row) { return (int)strcspn(row->name, "."); }

void runlog_numerics(RunLog *log, int64_t step, const NumericsRow *rows, int count) {
    const struct {
        const char *name;
        double (*of)(const NumericsRow *);
    } shares[] = {{"underflow", underflow}, {"overflow", overflow}};
    if (count == 0) return;
    char *text;
    size_t bytes;
    FILE *f = text_open(&text, &bytes);
    for (size_t i = 0; i < sizeof shares / sizeof *shares; i++) {
        const NumericsRow *worst = extreme(rows, count, shares[i].of, true);
        if (worst)
            fprintf(f, " | %s up to %.3g%% (%s)", shares[i].name, 100.0 * shares[i].of(worst),
                    worst->name);
        else
            fprintf(f, " | no %s", shares[i].name);
    }
    const NumericsRow *least = extreme(rows, count, model_numerics_ratio, false);
    const NumericsRow *most = extreme(rows, count, model_numerics_ratio, true);
    if (least && most)
        fprintf(f, " | update/weight %.1e (%.*s) to %.1e (%.*s)", model_numerics_ratio(least),
                kind_length(least), least->name, model_numerics_ratio(most), kind_length(most),
                most->name);
    fclose(f);
    runlog_text(log, "numerics at step %lld%s", (long long)step, text);
    free(text);

    Entry e;
    entry_begin(&e, log, "numerics", "numerics", step);
    for (const NumericsRow *row = rows; row < rows + count; row++) { // a class, under its name
        const struct {
            const char *name;
            double value;
        } fields[] = {{"amax", (double)row->stats.amax},
                      {"rms", sqrt(share(row, row->stats.sumsq))},
                      {"zero", share(row, row->stats.zero)},
                      {"underflow", underflow(row)},
                      {"overflow", overflow(row)}};
        char key[80];
        for (size_t i = 0; i < sizeof fields / sizeof *fields; i++) {
            snprintf(key, sizeof key, "%s/%s", row->name, fields[i].name);
            entry_number(&e, key, fields[i].value, FLOAT_DIGITS);
        }
        if (!(model_numerics_ratio(row) > 0.0)) continue;
        snprintf(key, sizeof key, "update_ratio/%.*s", kind_length(row), row->name);
        entry_number(&e, key, model_numerics_ratio(row), FLOAT_DIGITS);
    }
    entry_end(&e);
}
