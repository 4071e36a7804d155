// See run_order.h. A resumed run cuts its log back to the step it goes on from (runlog.h), so that the events of a log
// tell one story: segment by segment, every step once. Positions follow by addition, because T and seed never change
// within a run, and a step reads step_windows windows whatever happens to its update.
#include "llmc/run/run_order.h"

#include "llmc/base/atomic_file.h"
#include "llmc/base/checked.h"
#include "llmc/base/json.h"
#include "llmc/data/dataloader.h"
#include "llmc/store/checkpoint.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_LINE_BYTES = 16 << 20 };

static char *copy_text(const char *text) {
    char *copy = strdup(text);
    REQUIRE_MEMORY(copy, "a name");
    return copy;
}

static void free_segment(RunSegment *s) { free(s->train_data), free(s->tokenizer); }

// Appends; what is at or after its first step is history that did not happen.
static void append(RunOrder *order, RunSegment segment) {
    while (order->count > 0 && order->segments[order->count - 1].start_step >= segment.start_step)
        free_segment(&order->segments[--order->count]);
    if (order->count == order->room) {
        order->room = order->room ? 2 * order->room : 8;
        order->segments = realloc(order->segments, (size_t)order->room * sizeof *order->segments);
        REQUIRE_MEMORY(order->segments, "the segments of a run");
    }
    order->segments[order->count++] = segment;
}

static bool advance(const RunSegment *s, int64_t steps, int64_t *position) {
    int64_t windows;
    return checked_mul(steps, s->step_windows, &windows) && checked_add(s->position, windows, position);
}

// -------------------------------------------------------------------------------------------------------- the options

// What both sources have: the options of the run. Strings are copied on success only.
static bool read_options(const cJSON *options, RunSegment *s, Error *err) {
    const char *train_data, *tokenizer = "";
    const cJSON *item;
    double seed;
    int64_t repeat;
    if (!json_get_string(options, "train-data", &train_data, err) ||
        !json_get_int(options, "overfit", 0, 1, &repeat, err) || !json_get_double(options, "seed", &seed, err) ||
        !json_find(options, "tokenizer", &item, err))
        return false;
    if (cJSON_IsString(item)) tokenizer = item->valuestring;
    if (!(seed >= 0 && seed < 0x1p63)) return error_set(err, "\"seed\" is %g, expected 0 to 2^63 - 1", seed);
    s->seed = (uint64_t)seed;
    s->repeat_first_step = repeat != 0;
    s->train_data = copy_text(train_data), s->tokenizer = copy_text(tokenizer);
    return true;
}

// ---------------------------------------------------------------------------------------------------------- the log

static bool checkpoint_position(const char *directory, int64_t step, int64_t *position, Error *err) {
    char name[40];
    snprintf(name, sizeof name, "step_%08lld", (long long)step);
    char *path = path_join(directory, name);
    TrainerState state = {0};
    const bool ok = checkpoint_load_state(path, &state, err);
    *position = state.position;
    trainer_state_free(&state);
    free(path);
    return ok || error_prefix(err, "the log begins after step %lld, and what was read until then is not known",
                              (long long)step);
}

// Where in the stream the segment begins: where the one before it ends.
static bool find_position(const RunOrder *order, const char *directory, RunSegment *s, Error *err) {
    if (s->start_step == 0) return true;
    const RunSegment *before = NULL;
    for (int i = 0; i < order->count && order->segments[i].start_step < s->start_step; i++)
        before = &order->segments[i];
    if (!before) return checkpoint_position(directory, s->start_step, &s->position, err);
    if (before->T != s->T || before->seed != s->seed)
        return error_set(err, "T or the seed changed at step %lld, which no resumed run can do",
                         (long long)s->start_step);
    return advance(before, s->start_step - before->start_step, &s->position) ||
           error_set(err, "step %lld: numbers too large", (long long)s->start_step);
}

// A "run" event. One without training data (-x 0) reads nothing.
static bool read_run_event(const cJSON *event, RunSegment *s, bool *trains, Error *err) {
    const cJSON *options, *model, *train;
    int64_t tokens;
    *trains = cJSON_GetObjectItemCaseSensitive(event, "train") != NULL;
    if (!*trains) return true;
    if (!json_get_object(event, "options", &options, err) || !json_get_object(event, "model", &model, err) ||
        !json_get_object(event, "train", &train, err) ||
        !json_get_int(event, "start_step", 0, JSON_MAX_INT, &s->start_step, err) ||
        !json_get_int(event, "tokens_per_step", 1, JSON_MAX_INT, &tokens, err) ||
        !json_get_int(model, "T", 1, INT32_MAX, &s->T, err) || !json_get_int(model, "B", 1, INT32_MAX, &s->B, err) ||
        !json_get_int(train, "windows", 1, JSON_MAX_INT, &s->num_windows, err) ||
        !json_get_int(train, "tokens", 1, JSON_MAX_INT, &s->num_tokens, err))
        return false;
    s->step_windows = tokens / s->T;
    if (tokens % s->T != 0)
        return error_set(err, "\"tokens_per_step\" is %lld, expected a multiple of T = %lld", (long long)tokens,
                         (long long)s->T);
    return read_options(options, s, err);
}

static bool add_run_event(RunOrder *order, const char *directory, const cJSON *event, Error *err) {
    RunSegment s = {0};
    bool trains;
    if (!read_run_event(event, &s, &trains, err)) return false;
    if (!trains) return true;
    if (find_position(order, directory, &s, err)) {
        append(order, s);
        order->last_step = s.start_step;
        return true;
    }
    free_segment(&s);
    return false;
}

static bool begins_with(const char *text, const char *beginning) {
    return strncmp(text, beginning, strlen(beginning)) == 0;
}

// One line. Only the events that matter here are parsed: a log has a line for every step.
static bool read_line(RunOrder *order, const char *directory, const char *line, size_t length, Error *err) {
    const bool is_run = begins_with(line, "{\"event\":\"run\",");
    if (!is_run && !begins_with(line, "{\"event\":\"step\",")) return true;
    if (length > MAX_LINE_BYTES) return error_set(err, "the line has %zu bytes", length);
    cJSON *event = json_parse(line, length, err);
    int64_t step;
    bool ok = event != NULL;
    if (ok && is_run) ok = add_run_event(order, directory, event, err);
    if (ok && !is_run) {
        ok = json_get_int(event, "step", 1, JSON_MAX_INT, &step, err);
        if (ok && step > order->last_step) order->last_step = step;
    }
    cJSON_Delete(event);
    return ok;
}

static bool read_log(RunOrder *order, const char *directory, const char *path, Error *err) {
    FILE *file = fopen(path, "re");
    if (!file) return error_set(err, "%s: cannot be read: %s", path, strerror(errno));
    char *line = NULL;
    size_t room = 0;
    ssize_t length;
    bool ok = true;
    for (int64_t number = 1; ok && (length = getline(&line, &room, file)) > 0; number++) {
        if (line[length - 1] != '\n') break; // being written, or cut off by a kill
        ok = read_line(order, directory, line, (size_t)length, err) ||
             error_prefix(err, "%s: line %lld", path, (long long)number);
    }
    if (ok && ferror(file)) ok = error_set(err, "%s: cannot be read: %s", path, strerror(errno));
    if (ok && order->count == 0) ok = error_set(err, "%s: no training run is recorded in it", path);
    free(line);
    fclose(file);
    return ok;
}

// ------------------------------------------------------------------------------------------------------ the checkpoint

// Without a log the run is taken for one segment, and the checkpoint must agree that it was one.
static bool read_state(RunOrder *order, const TrainerState *state, Error *err) {
    RunSegment s = {.T = state->T, .num_windows = -1, .num_tokens = -1};
    int64_t total_batch;
    cJSON *options = json_parse(state->options_json, strlen(state->options_json), err);
    bool ok = options && json_get_int(options, "total-batch", 0, JSON_MAX_INT, &total_batch, err) &&
              json_get_int(options, "batch-size", 1, INT32_MAX, &s.B, err) && read_options(options, &s, err);
    cJSON_Delete(options);
    if (!ok) return false;
    s.seed = state->seed;
    s.step_windows = total_batch > 0 ? total_batch / s.T : s.B;
    int64_t position;
    append(order, s);
    order->last_step = state->step;
    return (s.step_windows > 0 && advance(&s, state->step, &position) && position == state->position) ||
           error_set(err,
                     "after %lld steps %lld windows were read, not %lld a step: the batch changed on the way, and "
                     "only main.log says when",
                     (long long)state->step, (long long)state->position, (long long)s.step_windows);
}

static bool read_checkpoint(RunOrder *order, const char *directory, Error *err) {
    char *path = NULL, *skipped = NULL;
    TrainerState state = {0};
    err->text[0] = '\0';
    bool ok = checkpoint_find_latest(directory, &path, &skipped, err);
    if (!ok && !err->text[0]) error_set(err, "%s: has neither a main.log nor a checkpoint that is whole", directory);
    ok = ok && checkpoint_load_state(path, &state, err) &&
         (read_state(order, &state, err) || error_prefix(err, "%s/trainer.json", path));
    trainer_state_free(&state);
    free(path), free(skipped);
    return ok;
}

// ---------------------------------------------------------------------------------------------------------- questions

bool run_order_read(RunOrder *order, const char *directory, Error *err) {
    *order = (RunOrder){0};
    char *log = path_join(directory, "main.log");
    const bool ok = file_exists(log) ? read_log(order, directory, log, err) : read_checkpoint(order, directory, err);
    free(log);
    return ok;
}

void run_order_free(RunOrder *order) {
    for (int i = 0; i < order->count; i++) free_segment(&order->segments[i]);
    free(order->segments);
    *order = (RunOrder){0};
}

const RunSegment *run_order_find(const RunOrder *order, int64_t step, int64_t *position, Error *err) {
    const RunSegment *found = NULL;
    for (int i = 0; i < order->count && order->segments[i].start_step < step; i++) found = &order->segments[i];
    if (!found)
        error_set(err, "step %lld: expected %lld or more, where the log begins", (long long)step,
                  (long long)order->segments[0].start_step + 1);
    else if (!advance(found, step - found->start_step, position)) // of its last window
        error_set(err, "step %lld: expected a smaller number", (long long)step), found = NULL;
    if (found) *position -= found->step_windows;
    return found;
}

int64_t run_order_window(const RunSegment *s, int64_t position, int64_t num_windows) {
    return shuffle_window(s->repeat_first_step ? position % s->step_windows : position, num_windows, s->seed);
}
