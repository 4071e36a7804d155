// What a run says: the log is opened, lines go to stdout and main.log. See runlog.h for the forms; the events with
// numbers are made in runlog_events.c.
// Owns stdout and main.log while the run lasts. Every line for the reader leaves in one flush together with the bar
// that is cleared above and drawn again below it, so that nothing flickers.
#include "llmc/base/atomic_file.h"
#include "llmc/run/progress.h"
#include "llmc/run/runlog_internal.h"

#include <cjson/cJSON.h>
#include <errno.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

static const char WHITESPACE[] = " \t\r\n";

// ---------------------------------------------------------------------------------------------------------- opening

// Is this whole line about a step beyond `step`? Lines that are no JSON are not ours to judge: they stay. What is of
// `step` itself is remembered.
static bool line_is_beyond(RunLog *log, const char *line, size_t length, int64_t step) {
    cJSON *object = cJSON_ParseWithLength(line, length);
    const cJSON *n = cJSON_GetObjectItemCaseSensitive(object, "step");
    const bool known = cJSON_IsNumber(n), beyond = known && n->valuedouble > (double)step;
    if (!known || n->valuedouble != (double)step || !cJSON_AddItemToArray(log->begun, object)) cJSON_Delete(object);
    return beyond;
}

// Bytes of the log that a run which goes on after `step` keeps; 0 if there is no log yet.
static bool bytes_to_keep(RunLog *log, const char *path, int64_t step, off_t *keep, Error *err) {
    *keep = 0;
    FILE *f = fopen(path, "re");
    if (!f) return errno == ENOENT || error_set(err, "%s: cannot be read: %s", path, strerror(errno));
    char *line = NULL;
    size_t room = 0;
    ssize_t length;
    while ((length = getline(&line, &room, f)) > 0) {
        if (line[length - 1] != '\n' || line_is_beyond(log, line, (size_t)length, step)) break;
        *keep += length;
    }
    bool ok = !ferror(f) || error_set(err, "%s: cannot be read: %s", path, strerror(errno));
    free(line);
    fclose(f);
    return ok;
}

// Gives the log of an earlier run the first free name of main.log.1, main.log.2, ..., and opens a new one.
static bool move_aside(RunLog *log, const char *path, Error *err) {
    char *aside = path_unused(path);
    const bool ok = rename(path, aside) == 0 || error_set(err, "%s: cannot be renamed: %s", path, strerror(errno));
    if (ok) fprintf(stderr, "%s is of an earlier run: it is %s now\n", path, aside);
    free(aside);
    if (!ok) return false;
    append_file_close(&log->file);
    return append_file_open(&log->file, path, true, err);
}

static bool open_file(RunLog *log, const char *directory, bool append, int64_t first_step, Error *err) {
    off_t keep = 0;
    log->begun = cJSON_CreateArray();
    if (!directory_make(directory, err)) return false;
    char *path = path_join(directory, "main.log");
    bool ok = append_file_open(&log->file, path, false, err) &&
              (file_size(log->file.fd) == 0 || bytes_to_keep(log, path, append ? first_step : -1, &keep, err));
    if (ok && !append && keep < file_size(log->file.fd)) ok = move_aside(log, path, err); // it tells of steps
    ok = ok && append_file_cut(&log->file, append ? keep : 0, err);
    log->sample_step = first_step;
    log->sample_index = runlog_count(log, "sample", NULL);
    free(path);
    if (ok) log->directory = strdup(directory);
    REQUIRE_MEMORY(!ok || log->directory, "a path");
    return ok &&
           (stat(directory, &log->place) == 0 || error_set(err, "%s: cannot be read: %s", directory, strerror(errno)));
}

bool runlog_is_there(const RunLog *log, Error *err) {
    struct stat now;
    if (!log->directory) return true;
    if (stat(log->directory, &now) != 0 ? errno != ENOENT && errno != ENOTDIR
                                        : now.st_ino == log->place.st_ino && now.st_dev == log->place.st_dev)
        return true;
    return error_set(err, "-o %s: the directory was removed or renamed while this run wrote into it", log->directory);
}

int64_t runlog_count(const RunLog *log, const char *event, const char *name) {
    int64_t count = 0;
    const cJSON *item;
    cJSON_ArrayForEach(item, log->begun) {
        const char *kind = cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(item, "event"));
        const char *file = cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(item, "name"));
        count += kind && strcmp(kind, event) == 0 && (!name || (file && strcmp(file, name) == 0));
    }
    return count;
}

// Events are a copy for the eye: without them the run goes on. An evaluation has a directory of its own: TensorBoard
// takes a step that is not beyond the last one for a restart, and would drop the curves that stand there.
static void open_tensorboard(RunLog *log, const char *directory, bool append, int64_t first_step) {
    Error err;
    const bool evaluation = append && first_step == INT64_MAX;
    char *path = evaluation ? path_join(directory, "evaluation") : strdup(directory);
    if (path && directory_make(path, &err)) log->tensorboard = tensorboard_open(path, append ? first_step : -1, &err);
    if (path && !log->tensorboard) fprintf(stderr, "%s; the run goes on without TensorBoard\n", err.text);
    free(path);
}

// In a notebook stdout looks like a terminal, but what is drawn over stays in the file.
static bool on_terminal(void) { return isatty(STDOUT_FILENO) == 1 && !getenv("JPY_PARENT_PID"); }

RunLog *runlog_open(const char *directory, bool append, int64_t first_step, int progress, bool tensorboard,
                    Error *err) {
    RunLog *log = calloc(1, sizeof *log);
    if (!log) {
        error_set(err, "out of memory");
        return NULL;
    }
    log->file.fd = -1;
    log->sample_step = -1;
    log->progress = progress < 0 ? on_terminal() : progress > 0;
    log->utf8 = terminal_is_utf8();
    if (!directory || !*directory) return log;
    if (!open_file(log, directory, append, first_step, err)) {
        error_prefix(err, "-o");
        runlog_close(log);
        return NULL;
    }
    if (tensorboard) open_tensorboard(log, directory, append, first_step);
    return log;
}

// ------------------------------------------------------------------------------------------------------------ stdout

static const char CLEAR_LINE[] = "\r\x1b[K"; // to the first column, erase to the end of the line

void runlog_clear_bar(RunLog *log) {
    if (*log->bar) fputs(CLEAR_LINE, stdout);
}

void runlog_print(RunLog *log, const char *text, size_t length) {
    runlog_clear_bar(log);
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
    runlog_print(log, text, (size_t)length);
    free(text);
}

bool runlog_stream(void *context, const char *bytes, int64_t n) {
    RunLog *log = context;
    runlog_clear_bar(log);
    log->bar[0] = '\0'; // the next step draws it again
    format_visible_stream(stdout, bytes, (size_t)n);
    fflush(stdout);
    return !ferror(stdout);
}

void runlog_close(RunLog *log) {
    if (!log) return;
    runlog_clear_bar(log);
    fflush(stdout);
    append_file_close(&log->file);
    tensorboard_close(log->tensorboard);
    cJSON_Delete(log->begun);
    free(log->directory);
    free(log);
}

// ------------------------------------------------------------------------------------------------------------- files

static void complain_once(RunLog *log, bool *complained, const Error *err, const char *what) {
    if (*complained) return;
    *complained = true;
    runlog_clear_bar(log);
    fflush(stdout);
    fprintf(stderr, "%s; the run goes on, %s\n", err->text, what);
}

void runlog_end_record(RunLog *log) {
    Error err;
    if (!tensorboard_end(log->tensorboard, &err))
        complain_once(log, &log->tensorboard_failed, &err, "TensorBoard misses values");
}

void runlog_write(RunLog *log, const char *event, const char *inner, size_t length) {
    if (log->file.fd < 0) return;
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    char *line = NULL;
    size_t bytes = 0;
    FILE *f = text_open(&line, &bytes);
    fprintf(f, "{\"event\":\"%s\",\"time\":%lld.%03ld", event, (long long)now.tv_sec, now.tv_nsec / 1000000);
    if (length > 0) fputc(',', f);
    for (size_t i = 0; i < length; i++)
        fputc(inner[i] == '\n' || inner[i] == '\r' ? ' ' : inner[i], f); // only ever layout
    fputs("}\n", f);
    Error err;
    fclose(f);
    if (!append_file_write(&log->file, line, bytes, &err))
        complain_once(log, &log->file_failed, &err, "this log misses lines");
    free(line);
}

// An event of somebody else, for TensorBoard.
static void show_event(RunLog *log, const char *event, const char *inner, size_t length) {
    char *text = NULL;
    if (!log->tensorboard || asprintf(&text, "{%.*s}", (int)length, inner) < 0) return;
    cJSON *object = cJSON_Parse(text);
    free(text);
    const cJSON *step = cJSON_GetObjectItemCaseSensitive(object, "step"), *item;
    // Groups are in the order of the alphabet: "end" would stand above "train".
    const char *group = strcmp(event, "end") == 0 ? "whole_run" : event;
    tensorboard_begin(log->tensorboard, cJSON_IsNumber(step) ? (int64_t)step->valuedouble : 0);
    if (cJSON_IsNumber(step)) {
        cJSON_ArrayForEach(item, object) {
            char tag[128];
            snprintf(tag, sizeof tag, "%s/%s", group, item->string);
            if (cJSON_IsNumber(item) && item != step) tensorboard_scalar(log->tensorboard, tag, item->valuedouble);
        }
    } else if (object && (text = cJSON_Print(object)) != NULL) {
        tensorboard_text(log->tensorboard, event, text, (int64_t)strlen(text));
        free(text);
    }
    cJSON_Delete(object);
    runlog_end_record(log);
}

void runlog_event(RunLog *log, const char *event, const char *json) {
    const char *inner = json ? json + strspn(json, WHITESPACE) : "";
    const char *end = inner + strlen(inner);
    if (*inner == '{') { // a whole object: what is between its braces
        const char *brace = strrchr(inner, '}');
        if (brace) end = brace;
        inner++;
        inner += strspn(inner, WHITESPACE);
    }
    const size_t length = inner < end ? (size_t)(end - inner) : 0;
    runlog_write(log, event, inner, length);
    if (length > 0) show_event(log, event, inner, length);
}
