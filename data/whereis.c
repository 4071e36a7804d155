// data/whereis: which text did step N of a run read? (`data/whereis --help`) The run's log states
// seed, batch and corpus of every start and resume; llmc/data/dataloader.h defines the window at
// each position of the stream. Changes nothing.
#include "data/tool.h"
#include "llmc/base/arithmetic.h"
#include "llmc/base/foreign_file.h"
#include "llmc/base/format.h"
#include "llmc/base/json.h"
#include "llmc/base/limits.h"
#include "llmc/base/path.h"
#include "llmc/base/path_reason.h"
#include "llmc/base/typed_path.h"
#include "llmc/data/dataloader.h"

#include <errno.h>
#include <getopt.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

static const char HELP[] =
    "usage: data/whereis RUN STEP [GLOB]\n"
    "\n"
    "Lists every window of tokens that step STEP (1, 2, ...) of the run in directory RUN reads, "
    "one a line: its\n"
    "micro-batch, position in the run's stream, epoch, window of the corpus, first token and byte "
    "in the file, the\n"
    "file. A window is T tokens and the target of the last one. GLOB: where the shards are now "
    "(default: where the "
    "run\n"
    "found them). data/shard show FILE --at TOKEN --count T shows the text.\n";

// A start of the trainer, as its "run" event records it.
typedef struct {
    // in the event: -i, and where relative paths begin; "": not stated
    const char *train_data, *directory;
    int64_t start_step, T, B, step_windows, num_windows, num_tokens, seed, overfit;
    Mixture mixture; // without patterns; count 0: a single corpus
} Start;

static bool read_start(const cJSON *event, Start *s, Error *err) {
    const cJSON *options, *model, *train, *sources, *source;
    int64_t tokens;
    if (!json_get_object(event, "options", &options, err)) return false;
    if (!json_get_object(event, "model", &model, err)) return false;
    if (!json_get_object(event, "train", &train, err)) return false;
    if (!json_get_int(model, "T", 1, INT32_MAX, &s->T, err)) return false;
    if (!json_get_int(event, "start_step", 0, JSON_MAX_INT, &s->start_step, err)) return false;
    if (!json_get_int(event, "tokens_per_step", s->T, JSON_MAX_INT, &tokens, err)) return false;
    if (!json_get_int(model, "B", 1, INT32_MAX, &s->B, err)) return false;
    if (!json_get_int(train, "windows", 1, JSON_MAX_INT, &s->num_windows, err)) return false;
    if (!json_get_int(train, "tokens", 1, JSON_MAX_INT, &s->num_tokens, err)) return false;
    if (!json_find(train, "sources", &sources, err)) return false;
    s->step_windows = tokens / s->T;

    // The shares of a mixture, and what was drawn from each source before they held.
    Mixture *m = &s->mixture;
    *m = (Mixture){0};
    const int count = cJSON_GetArraySize(sources);
    if (sources && !json_get_int(train, "start", 0, JSON_MAX_INT, &m->start, err)) return false;
    if (sources && (!cJSON_IsArray(sources) || count < 1 || count > MIXTURE_MAX))
        return error_set(err, "\"sources\" is no list of 1 to %d", MIXTURE_MAX);
    cJSON_ArrayForEach(source, sources) {
        const int i = m->count++;
        bool ok = json_get_int(source, "weight", 1, MIXTURE_WHOLE, &m->weights[i], err);
        if (ok) ok = json_get_int(source, "drawn", 0, JSON_MAX_INT, &m->drawn[i], err);
        if (!ok) return error_prefix(err, "source %d", i + 1);
        m->total += m->weights[i];
    }

    if (!json_get_string(options, "train-data", &s->train_data, err)) return false;
    if (!json_get_int(options, "overfit", 0, 1, &s->overfit, err)) return false;
    if (!json_get_int(options, "seed", 0, JSON_MAX_INT, &s->seed, err)) return false;
    const cJSON *directory = cJSON_GetObjectItemCaseSensitive(options, "directory");
    s->directory = "";
    if (cJSON_IsString(directory)) s->directory = directory->valuestring;
    return true;
}

// The events of all starts that trained, in the order of the log.
static bool read_log(const char *path, cJSON *events, Error *err) {
    static const char run[] = "{\"event\":\"run\",";
    FILE *file = fopen(path, "re");
    char *line = NULL;
    size_t size = 0;
    bool ok = true;
    // else: unfinished
    for (ssize_t n; ok && file && (n = getline(&line, &size, file)) > 0 && line[n - 1] == '\n';) {
        if (strncmp(line, run, sizeof run - 1) != 0) continue;
        cJSON *event = json_parse(line, (size_t)n, err);
        ok = event != NULL;
        if (cJSON_GetObjectItemCaseSensitive(event, "train"))
            cJSON_AddItemToArray(events, event);
        else
            cJSON_Delete(event); // -x 0 reads nothing
    }

    if (!file || ferror(file))
        ok = error_set(err, "cannot be read: %s", path_reason(path, errno).text);
    if (ok && !events->child) ok = error_set(err, "has no training run");
    if (!ok) error_prefix(err, "%s", path);
    if (!ok && file) foreign_file_check_open("a run's log", path, fileno(file), true, err);
    if (file) fclose(file);
    free(line);
    return ok;
}

// The start that a step belongs to, and the position in the stream where the step begins: each
// start counts up to the one after it, whose first step and all later ones were taken back if this
// one had them.
static bool find_step(const char *log, const cJSON *events, int64_t step, Start *found,
                      int64_t *position, Error *err) {
    Start s = {0};
    bool fits = step >= 1;
    int64_t end = step, windows;
    *position = 0;
    *found = s;
    for (int i = cJSON_GetArraySize(events) - 1; i >= 0; i--) {
        if (!read_start(cJSON_GetArrayItem(events, i), &s, err))
            return error_prefix(err, "%s", log);
        if (s.start_step >= end) continue;
        if (end == step) *found = s;
        fits &= checked_mul(end - s.start_step, s.step_windows, &windows) &&
                checked_add(*position, windows, position);
        end = s.start_step;
    }
    if (s.start_step > 0)
        return error_set(
            err, "%s: the log begins after step %" PRId64 "; what was read before is unknown", log,
            s.start_step);
    if (fits) *position -= found->step_windows;
    if (fits && *position < found->mixture.start)
        return error_set(err, "%s: the mixture starts at window %" PRId64 ", after step %" PRId64,
                         log, found->mixture.start, step);
    if (!fits)
        return error_set(err, "STEP %" PRId64 ": expected 1 or more, and less than this", step);
    return true;
}

static bool print_step(const Start *s, const char *step, int64_t position, const char *pattern,
                       Error *err) {
    Sources set;
    MixtureCursor cursor = {0};
    if (!sources_open(&set, pattern, s->T, err))
        return error_set(err, "%s; name them after the step", err->text);
    const int sources = set.mixture.count;
    Mixture m = {.count = 1, .weights = {1}, .total = 1};
    if (s->mixture.count > 0) m = s->mixture;

    // Other shards under the same names would silently give wrong answers.
    const bool same =
        m.count == sources && s->num_windows == set.num_windows && s->num_tokens == set.num_tokens;
    if (m.count != sources)
        error_set(err, "%s: %d corpora, the run mixed %d", pattern, sources, m.count);
    else if (!same)
        error_set(err,
                  "%s: %" PRId64 " tokens in %" PRId64 " windows of %" PRId64
                  ", the run found %" PRId64 " in %" PRId64 ": the corpus has changed",
                  pattern, set.num_tokens, set.num_windows, s->T, s->num_tokens, s->num_windows);
    else
        format_print(stdout,
                     "step %s: %" PRId64 " windows of %" PRId64 " tokens, %" PRId64
                     " at a time, from %" PRId64 " windows of %s, seed %" PRId64 "\n",
                     step, s->step_windows, s->T, s->B, set.num_windows, path_quoted(pattern).text,
                     s->seed);

    if (same)
        printf("%11s %10s %6s %10s %12s %12s  %s\n", "micro-batch", "position", "epoch", "window",
               "token", "byte", "file");
    for (int64_t i = 0; same && i < s->step_windows; i++) {
        const char *path;
        int64_t token, p = position + i;
        if (s->overfit) p = dataloader_repeated(&m, p, s->step_windows);
        const MixtureDraw draw = mixture_draw(&m, &cursor, p);
        const ShardSet *source = &set.sets[draw.source];
        const int64_t window = shuffle_window(draw.index, source->num_windows, (uint64_t)s->seed);
        shards_locate(source, window, &path, &token);
        format_print(stdout,
                     "%11" PRId64 " %10" PRId64 " %6" PRId64 " %10" PRId64 " %12" PRId64
                     " %12" PRId64 "  %s\n",
                     i / s->B + 1, p, draw.index / source->num_windows + 1, window, token,
                     SHARD_HEADER_BYTES + token * set.token_bytes, path_quoted(path).text);
    }

    sources_close(&set);
    return same;
}

static char *typed_in_run(const void *directory, const char *pattern) {
    return path_typed_in(directory, pattern);
}

int main(int argc, char **argv) {
    limits_start();
    Error err = {""};
    Start start;
    int64_t position, step = 0;
    bool help = false;
    const ToolOption table[] = {{"help", 'h', .flag = &help}, {0}};
    bool ok = tool_read_options("whereis", table, argc, argv, &err);
    if (ok && help) {
        fputs(HELP, stdout);
        return EXIT_OK;
    }

    char **words = argv + optind;
    if (ok && argc - optind != 2 && argc - optind != 3)
        ok = error_set(&err, "expected RUN and STEP; %s --help shows the usage",
                       tool_path("whereis").text);
    if (ok && !tool_read_number("", words[1], 1, INT64_MAX, &step, NULL))
        ok = error_set(&err, "STEP %s: expected a number of at least 1", words[1]);

    const char *run = ok ? words[0] : "";
    char *log = path_join(run, "main.log"), *pattern = NULL;
    cJSON *events = cJSON_CreateArray();
    if (ok) ok = read_log(log, events, &err);
    if (ok) ok = find_step(log, events, step, &start, &position, &err);
    if (ok && argc - optind == 3) pattern = strdup(words[2]);
    if (ok && !pattern) pattern = mixture_map(start.train_data, typed_in_run, start.directory);
    if (ok) ok = print_step(&start, words[1], position, pattern, &err);

    cJSON_Delete(events);
    free(log);
    free(pattern);
    if (!ok) {
        fflush(stdout);
        fprintf(stderr, "whereis: %s\n", err.text);
    }
    if (ok) return EXIT_OK;
    return EXIT_BAD_INPUT;
}
