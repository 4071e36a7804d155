// See main_log.h. A log is read line by line, and only lines that end in a newline count.
#include "llmc/log/main_log.h"

#include "llmc/base/atomic_file.h"
#include "llmc/base/file.h"
#include "llmc/base/format.h"
#include "llmc/base/own_file.h"
#include "llmc/base/path_reason.h"

#include <cjson/cJSON.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char LOG_MARK[] = "{\"event\":\"run\",\"time\":";

// The step of a line; -1: no step, or no JSON, which is not ours to judge.
static double step_of(const char *line, size_t length, bool *is_evaluation) {
    cJSON *object = cJSON_ParseWithLength(line, length);
    const cJSON *item = cJSON_GetObjectItemCaseSensitive(object, "step");
    const char *event = cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(object, "event"));
    const double step = cJSON_IsNumber(item) ? item->valuedouble : -1;
    *is_evaluation = event && (strcmp(event, "validation") == 0 || strcmp(event, "choices") == 0 ||
                               strcmp(event, "sample") == 0);
    cJSON_Delete(object);
    return step;
}

// Removes the evaluations of a step; or else damaged lines and those of later steps. *dropped:
// there was such a line. The log is cut before the first one; if it has others after it, a file
// without them takes its place at once. Lines without a step at the end belong to the later steps
// before them. may_cut false: only looks.
static bool drop_lines(AppendFile *f, double step, bool evaluations, bool may_cut, bool *dropped,
                       Error *err) {
    char *line = NULL, *kept = NULL;
    size_t capacity = 0, bytes = 0, length = 0, wanted = 0; // of what is kept
    off_t end = 0, keep = -1;
    FILE *in = fopen(f->path, "re");
    if (!in)
        return error_set(err, "%s: cannot be read: %s", f->path, path_reason(f->path, errno).text);
    FILE *out = text_open(&kept, &bytes);
    ssize_t n;
    while ((n = getline(&line, &capacity, in)) > 0 && line[n - 1] == '\n') {
        bool is_evaluation;
        const double of = step_of(line, (size_t)n, &is_evaluation);
        bool drops = of > step || memchr(line, '\0', (size_t)n);
        if (evaluations) drops = is_evaluation && of == step;
        if (drops && keep < 0) keep = end;
        if (!drops) {
            fwrite(line, 1, (size_t)n, out);
            length += (size_t)n;
            if (keep < 0 || of >= 0 || evaluations) wanted = length;
        }
        end += n;
    }
    // At its end, feof; getline that runs out of memory sets neither flag.
    bool ok =
        n > 0 || feof(in) || error_set(err, "%s: cannot be read: %s", f->path, strerror(errno));
    fclose(in);
    fclose(out);
    free(line);
    *dropped = keep >= 0;
    if (keep < 0) keep = end;
    if (ok && may_cut && wanted == (size_t)keep) ok = append_file_cut(f, keep, err);
    if (ok && may_cut && wanted > (size_t)keep) ok = append_file_replace(f, kept, wanted, err);
    free(kept);
    return ok;
}

bool main_log_open(AppendFile *f, const char *path, bool append, int64_t first_step, Error *err) {
    bool dropped;
    atomic_file_clean(path); // of drop_lines, killed
    if (!own_file_make_way(path, LOG_MARK, err) || !append_file_open(f, path, false, err))
        return false;
    if (append)
        return file_size(f->fd) == 0 ||
               drop_lines(f, (double)first_step, false, true, &dropped, err);
    if (file_size(f->fd) == 0) return true;
    if (!drop_lines(f, -1, false, false, &dropped, err)) return false;
    if (!dropped) return append_file_cut(f, 0, err);
    if (!own_file_move_aside(path, "belongs to an earlier run", 0, err)) return false;
    append_file_close(f);
    return append_file_open(f, path, true, err);
}

bool main_log_drop_evaluations(AppendFile *f, int64_t step, Error *err) {
    bool dropped;
    return drop_lines(f, (double)step, true, true, &dropped, err);
}
