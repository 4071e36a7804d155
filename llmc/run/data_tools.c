// What the programs of data/ share. See data_tools.h.
#include "llmc/run/data_tools.h"

#include "llmc/base/atomic_file.h"
#include "llmc/base/checked.h"
#include "llmc/base/json.h"
#include "llmc/data/dataloader.h"
#include "llmc/run/format.h"
#include "llmc/store/checkpoint.h"
#include "llmc/text/tokenizer.h"

#include <errno.h>
#include <inttypes.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <xxhash.h>

// ------------------------------------------------------------------------------------------------------------- corpora

enum { MAX_THREADS = 1024, MAX_FIELD_BYTES = 255 };

// ------------------------------------------------------------------------------------------------------------- options

static int cores(void) {
    cpu_set_t set;
    int count = sched_getaffinity(0, sizeof set, &set) == 0 ? CPU_COUNT(&set) : (int)sysconf(_SC_NPROCESSORS_ONLN);
    return count < 1 ? 1 : count > MAX_THREADS ? MAX_THREADS : count;
}

CorpusToolOptions corpus_tool_defaults(const char *program) {
    return (CorpusToolOptions){.program = program, .corpus = {.field = "text", .threads = cores()}};
}

bool corpus_tool_parse_int(const char *name, const char *text, int64_t min, int64_t max, int64_t *out, Error *err) {
    char *end;
    errno = 0;
    long long n = strtoll(text, &end, 10);
    const char *suffixes = "KMG", *suffix = *end ? strchr(suffixes, *end) : NULL;
    int64_t unit = 1;
    for (const char *s = suffixes; suffix && s <= suffix; s++) unit *= 1000;
    bool is_number = end != text && errno == 0 && end[suffix ? 1 : 0] == '\0';
    if (is_number && n > 0 && n <= max / unit && n * unit >= min) {
        *out = n * unit;
        return true;
    }
    return error_set(err, "%s %s: expected a number from %" PRId64 " to %" PRId64, name, text, min, max);
}

static bool parse_format(const char *text, CorpusFormat *out, Error *err) {
    *out = strcmp(text, "txt") == 0 ? FORMAT_TEXT : FORMAT_LINES;
    return *out == FORMAT_TEXT || strcmp(text, "jsonl") == 0 ||
           error_set(err, "--format %s: expected txt or jsonl", text);
}

bool corpus_tool_take(CorpusToolOptions *o, int option, const char *value, Error *err) {
    int64_t threads = 0;
    switch (option) {
    case CORPUS_TOOL_FORMAT:
        return parse_format(value, &o->corpus.inputs.format, err);
    case CORPUS_TOOL_FIELD:
        o->corpus.field = value;
        return strlen(value) <= MAX_FIELD_BYTES ||
               error_set(err, "--field: a name has at most %d bytes", MAX_FIELD_BYTES);
    case CORPUS_TOOL_THREADS:
        if (!corpus_tool_parse_int("--threads", value, 1, MAX_THREADS, &threads, err)) return false;
        o->corpus.threads = (int)threads;
        return true;
    default:
        return o->corpus.skip_bad = true;
    }
}

bool corpus_tool_take_inputs(CorpusToolOptions *o, char **inputs, int count, Error *err) {
    o->corpus.inputs.arguments = inputs, o->corpus.inputs.count = count;
    if (count == 0) return error_set(err, "no FILE or DIR to read; data/%s --help shows the usage", o->program);
    int times = 0;
    for (int i = 0; i < count; i++) times += strcmp(inputs[i], "-") == 0;
    if (times > 1) return error_set(err, "- stands for standard input and can be given once");
    if (times > 0 && o->corpus.inputs.format == FORMAT_BY_NAME)
        return error_set(err, "-: standard input has no name; say --format jsonl or --format txt");
    return true;
}

bool corpus_tool_refuse(const CorpusToolOptions *o, int c, const char *argument, Error *err) {
    return c == ':' ? error_set(err, "%s needs a value; data/%s --help lists the options", argument, o->program)
                    : error_set(err, "unknown option %s; data/%s --help lists them", argument, o->program);
}

// ------------------------------------------------------------------------------------------------------------ progress

CorpusDisplay corpus_display(const char *program) {
    const double now = now_seconds();
    return (CorpusDisplay){.program = program, .start = now, .last_shown = now, .is_terminal = isatty(STDERR_FILENO)};
}

// "337 MiB, 160.6M tokens, 33.7 MiB/s, eta 18s"; returns the fraction done.
static double describe(const CorpusDisplay *d, const CorpusProgress *p, double now, char *out, int size) {
    char bytes[32], tokens[32], rate_text[32], eta[32];
    if (p->stage == STAGE_MERGE) {
        snprintf(out, (size_t)size, "merging, %" PRId64 " of %" PRId64 " tokens", p->tokens, p->vocab);
        return (double)p->tokens / (double)p->vocab;
    }
    double rate = now > d->start ? (double)(p->bytes_read - p->start_bytes) / (now - d->start) : 0;
    double left = p->total_bytes >= p->bytes_read && rate > 0 ? (double)(p->total_bytes - p->bytes_read) / rate : -1;
    format_bytes((double)p->bytes_read, bytes, sizeof bytes);
    format_bytes(rate, rate_text, sizeof rate_text);
    format_duration(left, eta, sizeof eta);
    if (p->stage == STAGE_COUNT)
        snprintf(out, (size_t)size, "counting words, %s, %s/s, eta %s", bytes, rate_text, eta);
    else
        snprintf(out, (size_t)size, "%s, %s tokens, %s/s, eta %s", bytes,
                 format_count((double)p->tokens, tokens, sizeof tokens), rate_text, eta);
    return p->total_bytes > 0 ? (double)p->bytes_read / (double)p->total_bytes : 0;
}

// On a terminal a bar that is drawn ten times a second, elsewhere a line every ten seconds.
void corpus_display_progress(void *display, const CorpusProgress *p) {
    CorpusDisplay *d = display;
    double now = now_seconds(), interval = d->is_terminal ? 0.1 : 10;
    if (p->stage != d->stage) d->stage = p->stage, d->start = now; // its rate is its own
    if (now - d->last_shown < interval) return;
    d->last_shown = now, d->is_drawn = true;
    char right[160], line[512];
    double fraction = describe(d, p, now, right, sizeof right);
    if (d->is_terminal)
        fprintf(stderr, "\r%s\033[K",
                progress_render(fraction, d->program, right, terminal_width(), terminal_is_utf8(), line, sizeof line));
    else
        fprintf(stderr, "%s: %.1f%% | %s\n", d->program, 100 * fraction, right);
}

void corpus_display_clear(const CorpusDisplay *d) {
    if (d->is_terminal && d->is_drawn) fprintf(stderr, "\r\033[K");
}

void corpus_display_notice(void *display, const char *text) {
    const CorpusDisplay *d = display;
    corpus_display_clear(d);
    fprintf(stderr, "%s: %s\n", d->program, text);
}

// ------------------------------------------------------------------------------------------------------------- summary

void corpus_tool_print_skipped(const CorpusCounts *c) {
    if (c->binary + c->empty + c->unreadable > 0) {
        printf("  skipped %" PRId64 " binary, %" PRId64 " empty, %" PRId64 " unreadable files\n", c->binary, c->empty,
               c->unreadable);
    }
    for (int k = 0; k < BAD_KINDS; k++) {
        if (c->bad.count[k] == 0) continue;
        printf("  skipped %" PRId64 " x %s, the first: %s\n", c->bad.count[k], bad_kind_phrases[k], c->bad.first[k]);
    }
}

// ----------------------------------------------------------------------------------------------------------- one shard

enum { SCAN_BYTES = 1 << 20, GPT2_TOKENS = 50257 };

// n tokens of token_bytes each to n of 4 bytes, in place.
static void widen(uint32_t *tokens, int token_bytes, int64_t n) {
    if (token_bytes == 4) return;
    for (int64_t i = n - 1; i >= 0; i--) { // from the end on: what is not yet read is not overwritten
        uint16_t token;
        memcpy(&token, (const char *)tokens + 2 * i, sizeof token);
        tokens[i] = token;
    }
}

bool shard_read(const Shard *shard, int64_t first, int64_t n, uint32_t *out, Error *err) {
    REQUIRE(first >= 0 && n >= 0 && first <= shard->num_tokens - n, "shard_read: %lld tokens at %lld of %lld",
            (long long)n, (long long)first, (long long)shard->num_tokens);
    const int64_t offset = SHARD_HEADER_BYTES + first * shard->token_bytes;
    if (!file_read_at(shard->fd, shard->path, offset, out, (size_t)(n * shard->token_bytes), err)) return false;
    widen(out, shard->token_bytes, n);
    return true;
}

// What one block of tokens adds; the loops have no exits, so that they are vectors.
static void scan_block(const uint32_t *tokens, int64_t n, int64_t at, int64_t vocab, int64_t eot, ShardScan *scan) {
    uint32_t largest = 0;
    int64_t documents = 0;
    for (int64_t i = 0; i < n; i++) {
        largest = tokens[i] > largest ? tokens[i] : largest;
        documents += tokens[i] == eot;
    }
    scan->documents += documents;
    if (largest > scan->largest) scan->largest = largest;
    if (vocab == 0 || largest < vocab || scan->first_bad >= 0) return;
    int64_t i = 0;
    while (tokens[i] < vocab) i++;
    scan->first_bad = at + i, scan->bad_value = tokens[i];
}

static bool scan_tokens(const Shard *shard, int64_t vocab, int64_t eot, uint32_t *block, XXH3_state_t *hash,
                        ShardScan *scan, Error *err) {
    int32_t header[SHARD_HEADER_INTS];
    if (!file_read_at(shard->fd, shard->path, 0, header, sizeof header, err)) return false;
    XXH3_64bits_update(hash, header, sizeof header);
    scan->version = header[SHARD_FIELD_VERSION];
    const int64_t most = SCAN_BYTES / (int64_t)sizeof *block;
    for (int64_t at = 0; at < shard->num_tokens; at += most) {
        const int64_t n = shard->num_tokens - at < most ? shard->num_tokens - at : most;
        const size_t bytes = (size_t)(n * shard->token_bytes);
        if (!file_read_at(shard->fd, shard->path, SHARD_HEADER_BYTES + at * shard->token_bytes, block, bytes, err))
            return false;
        XXH3_64bits_update(hash, block, bytes);
        widen(block, shard->token_bytes, n);
        scan_block(block, n, at, vocab, eot, scan);
    }
    return true;
}

bool shard_scan(const Shard *shard, int64_t vocab, int64_t eot, ShardScan *scan, Error *err) {
    *scan = (ShardScan){.first_bad = -1, .bytes = SHARD_HEADER_BYTES + shard->num_tokens * shard->token_bytes};
    uint32_t *block = malloc(SCAN_BYTES);
    XXH3_state_t *hash = XXH3_createState();
    bool ok = block && hash;
    if (ok) {
        XXH3_64bits_reset(hash);
        ok = scan_tokens(shard, vocab, eot, block, hash, scan, err);
        scan->xxh3 = XXH3_64bits_digest(hash);
    } else {
        error_set(err, "%s: cannot be scanned: out of memory", shard->path);
    }
    XXH3_freeState(hash);
    free(block);
    return ok;
}

Tokenizer *shard_tokenizer(const char *given, const char *pattern, const ShardSet *set, Error *err) {
    Tokenizer *t = NULL;
    if (*given && set->vocab == 0) return tokenizer_open(given, err);
    const int64_t V = *given ? INT32_MAX : set->vocab > 0 ? set->vocab : GPT2_TOKENS; // no model limits what is given
    if (!tokenizer_find(&t, given, NULL, pattern, set->vocab, V, err)) return NULL;
    if (!t)
        error_set(err,
                  "%s: no tokenizer stands beside the shards; name one with --tokenizer, such as data/gpt2-tokenizer "
                  "(data/get.py gpt2-tokenizer)",
                  pattern);
    return t;
}

// ----------------------------------------------------------------------------------------------- the windows of a step

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
