// What a run says. See runlog.h for the forms.
// Owns stdout and main.log while the run lasts. Every line for the reader leaves in one flush together with the bar
// that is cleared above and drawn again below it, so that nothing flickers.
#include "llmc/run/runlog.h"

#include "llmc/run/progress.h"
#include "llmc/store/atomic_file.h"

#include <cjson/cJSON.h>
#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

// How often the bar's text is made anew. The eye does not follow more.
static const double BAR_SECONDS = 0.1;

static const char WHITESPACE[] = " \t\r\n";

struct RunLog {
    char *path;        // of main.log; NULL: no file
    int fd;            // of main.log, -1: no file
    off_t end;         // its length: where a line that could not be written whole is cut off
    bool write_failed; // reported already
    bool progress, utf8;
    char bar[1024];  // "" until the first step
    double bar_time; // now_seconds of its text
};

double now_seconds(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

// ---------------------------------------------------------------------------------------------------------- opening

// Is this whole line about a step beyond `step`? Lines that are no JSON are not ours to judge: they stay.
static bool line_is_beyond(const char *line, size_t length, int64_t step) {
    cJSON *object = cJSON_ParseWithLength(line, length);
    const cJSON *n = cJSON_GetObjectItemCaseSensitive(object, "step");
    bool beyond = cJSON_IsNumber(n) && n->valuedouble > (double)step;
    cJSON_Delete(object);
    return beyond;
}

// Bytes of the log that a run which goes on after `step` keeps; 0 if there is no log yet.
static bool bytes_to_keep(const char *path, int64_t step, off_t *keep, Error *err) {
    *keep = 0;
    FILE *f = fopen(path, "re");
    if (!f) return errno == ENOENT || error_set(err, "%s: cannot be read: %s", path, strerror(errno));
    char *line = NULL;
    size_t room = 0;
    ssize_t length;
    while ((length = getline(&line, &room, f)) > 0) {
        if (line[length - 1] != '\n' || line_is_beyond(line, (size_t)length, step)) break;
        *keep += length;
    }
    bool ok = !ferror(f) || error_set(err, "%s: cannot be read: %s", path, strerror(errno));
    free(line);
    fclose(f);
    return ok;
}

static bool open_file(RunLog *log, const char *directory, bool append, int64_t first_step, Error *err) {
    if (!directory_make(directory, err)) return false;
    log->path = path_join(directory, "main.log");
    if (append && !bytes_to_keep(log->path, first_step, &log->end, err)) return false;
    log->fd = open(log->path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666);
    if (log->fd < 0 || ftruncate(log->fd, log->end) != 0) {
        return error_set(err, "%s: cannot be written: %s; choose another directory with -o", log->path,
                         strerror(errno));
    }
    return true;
}

RunLog *runlog_open(const char *directory, bool append, int64_t first_step, int progress, Error *err) {
    RunLog *log = calloc(1, sizeof *log);
    if (!log) {
        error_set(err, "out of memory");
        return NULL;
    }
    log->fd = -1;
    log->progress = progress < 0 ? isatty(STDOUT_FILENO) == 1 : progress > 0;
    log->utf8 = terminal_is_utf8();
    if (directory && *directory && !open_file(log, directory, append, first_step, err)) {
        runlog_close(log);
        return NULL;
    }
    return log;
}

// ------------------------------------------------------------------------------------------------------------ stdout

static const char CLEAR_LINE[] = "\r\x1b[K"; // to the first column, erase to the end of the line

static void print_line(RunLog *log, const char *text, size_t length) {
    if (*log->bar) fputs(CLEAR_LINE, stdout);
    fwrite(text, 1, length, stdout);
    fputc('\n', stdout);
    fputs(log->bar, stdout);
    fflush(stdout);
}

void runlog_text(RunLog *log, const char *format, ...) {
    va_list args;
    va_start(args, format);
    char *text = NULL;
    int length = vasprintf(&text, format, args);
    va_end(args);
    if (length < 0) return; // out of memory for a line of text: the run matters more
    print_line(log, text, (size_t)length);
    free(text);
}

static void set_bar(RunLog *log, const StepReport *r, const char *loss, const char *rate, const char *eta) {
    double now = now_seconds();
    bool fresh = *log->bar && r->step < r->total && now - log->bar_time < BAR_SECONDS;
    if (!log->progress || fresh) return;
    char left[64], right[128];
    snprintf(left, sizeof left, "step %lld/%lld", (long long)r->step, (long long)r->total);
    snprintf(right, sizeof right, "loss %s | %s tok/s | eta %s", loss, rate, eta);
    double fraction = r->total > 0 ? (double)r->step / (double)r->total : 0.0;
    progress_render(fraction, left, right, terminal_width(), log->utf8, log->bar, sizeof log->bar);
    log->bar_time = now;
}

void runlog_close(RunLog *log) {
    if (!log) return;
    if (*log->bar) fputs(CLEAR_LINE, stdout);
    fflush(stdout);
    if (log->fd >= 0) close(log->fd);
    free(log->path);
    free(log);
}

// ---------------------------------------------------------------------------------------------------------- main.log

static void write_line(RunLog *log, const char *line, size_t length) {
    ssize_t n;
    do n = write(log->fd, line, length);
    while (n < 0 && errno == EINTR);
    if (n == (ssize_t)length) {
        log->end += n;
        return;
    }
    int error = n < 0 ? errno : ENOSPC;
    // A part of a line would spoil the next one.
    if (n > 0 && ftruncate(log->fd, log->end) != 0) error = errno;
    if (log->write_failed) return;
    log->write_failed = true;
    if (*log->bar) fputs(CLEAR_LINE, stdout);
    fflush(stdout);
    fprintf(stderr, "%s: cannot be written: %s; the run goes on, this log misses lines\n", log->path, strerror(error));
}

void runlog_event(RunLog *log, const char *event, const char *json) {
    if (log->fd < 0) return;
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    const char *inner = json ? json + strspn(json, WHITESPACE) : "";
    const char *end = inner + strlen(inner);
    if (*inner == '{') { // a whole object: what is between its braces
        const char *brace = strrchr(inner, '}');
        if (brace) end = brace;
        inner++;
        inner += strspn(inner, WHITESPACE);
    }

    char *line = NULL;
    size_t bytes = 0;
    FILE *f = open_memstream(&line, &bytes);
    if (!f) return;
    fprintf(f, "{\"event\":\"%s\",\"time\":%lld.%03ld", event, (long long)now.tv_sec, now.tv_nsec / 1000000);
    if (inner < end) fputc(',', f);
    for (; inner < end; inner++) fputc(*inner == '\n' || *inner == '\r' ? ' ' : *inner, f); // only ever layout
    fputs("}\n", f);
    if (fclose(f) == 0) write_line(log, line, bytes);
    free(line);
}

// ,"key":x  with as many digits as the type of x has; inf and nan become null.
enum { FLOAT_DIGITS = 9, DOUBLE_DIGITS = 17, MEASURED_DIGITS = 6 };
static void put_number(FILE *f, const char *key, double x, int digits) {
    if (isfinite(x)) {
        fprintf(f, ",\"%s\":%.*g", key, digits, x);
    } else {
        fprintf(f, ",\"%s\":null", key);
    }
}

// -------------------------------------------------------------------------------------------------------------- steps

static const char *skip_name(int32_t skip) {
    switch (skip) {
    case SKIP_NONFINITE:
        return "nonfinite";
    case SKIP_LOSS_OUTLIER:
        return "loss_outlier";
    case SKIP_NORM_OUTLIER:
        return "norm_outlier";
    default:
        return NULL;
    }
}

// " | SKIPPED: why" and what became of the loss scale, or nothing.
static void put_decision(FILE *f, const StepReport *r) {
    const StepControl *c = &r->control;
    const bool scale_known = r->last_loss_scale > 0.0f, scale_fell = scale_known && c->loss_scale < r->last_loss_scale;
    switch (c->skip) {
    case SKIP_LOSS_OUTLIER:
        fprintf(f, " | SKIPPED: loss outlier z %.1f", (double)c->loss_z);
        break;
    case SKIP_NORM_OUTLIER:
        fprintf(f, " | SKIPPED: gradient norm outlier z %.1f", (double)c->norm_z);
        break;
    case SKIP_NONFINITE:
        if (scale_fell && isfinite(c->loss)) {
            fprintf(f, " | skipped: overflow, normal in fp16");
        } else if (c->bad_tensor >= 0) {
            fprintf(f, " | SKIPPED: gradient of %s is not finite", r->bad_tensor ? r->bad_tensor : "a tensor");
        } else {
            fprintf(f, " | SKIPPED: %s is not finite", isfinite(c->loss) ? "gradient norm" : "loss");
        }
        break;
    default:
        break;
    }
    if (scale_known && c->loss_scale != r->last_loss_scale) fprintf(f, " | loss scale now %g", (double)c->loss_scale);
}

static char *step_json(const StepReport *r) {
    const StepControl *c = &r->control;
    char *json = NULL;
    size_t bytes = 0;
    FILE *f = open_memstream(&json, &bytes);
    if (!f) return NULL;
    double nan_if_unknown = (double)NAN;
    fprintf(f, "\"step\":%lld", (long long)r->step);
    put_number(f, "loss", (double)c->loss, FLOAT_DIGITS);
    put_number(f, "norm", (double)c->norm, FLOAT_DIGITS);
    put_number(f, "lr", r->lr, DOUBLE_DIGITS);
    put_number(f, "ms", 1e3 * r->seconds, MEASURED_DIGITS);
    put_number(f, "tokens_per_second", r->tokens / r->seconds, MEASURED_DIGITS);
    put_number(f, "mfu", r->mfu > 0.0 ? r->mfu : nan_if_unknown, MEASURED_DIGITS);
    put_number(f, "hfu", r->hfu > 0.0 ? r->hfu : nan_if_unknown, MEASURED_DIGITS);
    if (c->loss_z != 0.0f || c->norm_z != 0.0f) {
        put_number(f, "loss_z", (double)c->loss_z, MEASURED_DIGITS);
        put_number(f, "norm_z", (double)c->norm_z, MEASURED_DIGITS);
    }
    if (c->loss_scale != 1.0f) put_number(f, "loss_scale", (double)c->loss_scale, FLOAT_DIGITS);
    if (skip_name(c->skip)) fprintf(f, ",\"skip\":\"%s\"", skip_name(c->skip));
    if (c->skip == SKIP_NONFINITE && c->bad_tensor >= 0 && r->bad_tensor) {
        fputs(",\"bad_tensor\":", f);
        format_json_string(f, r->bad_tensor, strlen(r->bad_tensor));
    }
    fclose(f);
    return json;
}

void runlog_step(RunLog *log, const StepReport *r) {
    char loss[32], norm[32], ms[32], rate[32], eta[32], total[32];
    format_fixed((double)r->control.loss, 6, 4, loss, sizeof loss);
    format_fixed((double)r->control.norm, 6, 4, norm, sizeof norm);
    format_fixed(1e3 * r->seconds, 5, 3, ms, sizeof ms);
    format_count(r->tokens / r->seconds, rate, sizeof rate);
    format_duration(r->eta_seconds, eta, sizeof eta);
    int width = snprintf(total, sizeof total, "%lld", (long long)r->total);

    char *line = NULL;
    size_t bytes = 0;
    FILE *f = open_memstream(&line, &bytes);
    if (!f) return;
    fprintf(f, "step %*lld/%s | loss %s | norm %s | lr %.2e | %s ms | %6s tok/s", width, (long long)r->step, total,
            loss, norm, r->lr, ms, rate);
    if (r->mfu > 0.0) fprintf(f, " | mfu %4.1f%% hfu %4.1f%%", 100.0 * r->mfu, 100.0 * r->hfu);
    fprintf(f, " | eta %s", eta);
    put_decision(f, r);
    fclose(f);
    set_bar(log, r, loss, rate, eta);
    print_line(log, line, bytes);
    free(line);

    char *json = step_json(r);
    runlog_event(log, "step", json);
    free(json);
}

// ---------------------------------------------------------------------------------------------------- the other events

void runlog_validation(RunLog *log, int64_t step, double loss, double tokens, double seconds) {
    char count[32], duration[32];
    double perplexity = exp(loss);
    runlog_text(log, "validation at step %lld | loss %.4f | perplexity %.2f | %s tokens in %s", (long long)step, loss,
                perplexity, format_count(tokens, count, sizeof count),
                format_duration(seconds, duration, sizeof duration));

    char *json = NULL;
    size_t bytes = 0;
    FILE *f = open_memstream(&json, &bytes);
    if (!f) return;
    fprintf(f, "\"step\":%lld", (long long)step);
    put_number(f, "loss", loss, DOUBLE_DIGITS);
    put_number(f, "ppl", perplexity, DOUBLE_DIGITS);
    put_number(f, "tokens", tokens, DOUBLE_DIGITS);
    put_number(f, "seconds", seconds, MEASURED_DIGITS);
    fclose(f);
    runlog_event(log, "validation", json);
    free(json);
}

void runlog_sensors(RunLog *log, int64_t step, const DeviceSensors *s) {
    runlog_text(log, "gpu at step %lld | %.0f MHz, memory %.0f MHz | %.0f W | %.0f C%s%s", (long long)step,
                s->sm_clock_mhz, s->memory_clock_mhz, s->power_watts, s->temperature_c,
                *s->throttle ? " | held down by: " : "", s->throttle);
    char *json = NULL;
    size_t bytes = 0;
    FILE *f = open_memstream(&json, &bytes);
    if (!f) return;
    fprintf(f, "\"step\":%lld", (long long)step);
    put_number(f, "sm_clock_mhz", s->sm_clock_mhz, MEASURED_DIGITS);
    put_number(f, "memory_clock_mhz", s->memory_clock_mhz, MEASURED_DIGITS);
    put_number(f, "power_watts", s->power_watts, MEASURED_DIGITS);
    put_number(f, "energy_joules", s->energy_joules, DOUBLE_DIGITS);
    put_number(f, "temperature_c", s->temperature_c, MEASURED_DIGITS);
    fputs(",\"throttle\":", f);
    format_json_string(f, s->throttle, strlen(s->throttle));
    fclose(f);
    runlog_event(log, "gpu", json);
    free(json);
}

void runlog_sample(RunLog *log, int64_t step, const char *text, int64_t bytes) {
    char *out = NULL;
    size_t length = 0;
    FILE *f = open_memstream(&out, &length);
    if (!f) return;
    fprintf(f, "sample at step %lld:\n", (long long)step);
    format_visible(f, text, (size_t)bytes, "    ");
    fclose(f);
    print_line(log, out, length);
    free(out);

    f = open_memstream(&out, &length);
    if (!f) return;
    fprintf(f, "\"step\":%lld,\"text\":", (long long)step);
    format_json_string(f, text, (size_t)bytes);
    fclose(f);
    runlog_event(log, "sample", out);
    free(out);
}
