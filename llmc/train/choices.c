// Multiple choice, see choices.h. Owns the bytes of every file; an unchecked record is never handed
// out.
//
// Every completion is a sequence of its own, with context and completion in one window; only the
// losses of the completion count. Sequences are sorted by length, so that a batch is little longer
// than its sequences. The length is rounded up to one of a few, so that matmuls of few shapes are
// planned. Both depend only on the sequence, not on the batch.
#include "llmc/train/choices.h"

#include "llmc/base/arithmetic.h"
#include "llmc/base/directory.h"
#include "llmc/base/file.h"
#include "llmc/base/files_match.h"
#include "llmc/base/foreign_file.h"
#include "llmc/base/path_reason.h"
#include "llmc/base/signals.h"
#include "llmc/base/typed_path.h"
#include "llmc/comm/comm.h"
#include "llmc/comm/watch.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

// --------------------------------------------------------------------------------------- the files

enum { HEADER_BYTES = 4 * CHOICES_HEADER_INTS };
// Words of a record before the context's tokens, and the min words of a record: context and
// completions of one token.
enum {
    W_BEGIN,
    W_BYTES,
    W_INDEX,
    W_LABEL,
    W_COMPLETIONS,
    W_CONTEXT,
    RECORD_HEAD,
    MIN_RECORD = RECORD_HEAD + 5
};
// Far above any benchmark (HellaSwag has 4 MB), far below the memory of any machine.
enum { MAX_BYTES = 1 << 30 };

struct ChoiceSet {
    char *name;
    char *bytes;     // the file
    uint16_t *words; // after the header
    int64_t *starts; // (count) in words
    int64_t count;
};

const char *choices_name(const ChoiceSet *set) { return set->name; }
int64_t choices_count(const ChoiceSet *set) { return set->count; }

ChoiceExample choices_example(const ChoiceSet *set, int64_t i) {
    const uint16_t *w = set->words + set->starts[i];
    ChoiceExample e = {.label = w[W_LABEL], .completions = w[W_COMPLETIONS]};
    e.context_tokens = w[W_CONTEXT];
    e.context = w + RECORD_HEAD;
    w = e.context + e.context_tokens;
    for (int k = 0; k < e.completions; k++) {
        e.completion_tokens[k] = *w;
        e.completion[k] = w + 1;
        w += 1 + *w;
    }
    return e;
}

// ---------------------------------------------------------------------------------------- checking

// The beginning of a message: the file and the example.
typedef struct {
    const char *path;
    int64_t example;
    Error *err;
} ChoicePlace;

#define WRONG(place, format, ...)                                                                  \
    error_set((place)->err, "%s: example %lld: " format, (place)->path,                            \
              (long long)(place)->example, __VA_ARGS__)

// Checks one text of the record, a count and that many tokens, at *w; moves *w past it.
static bool check_record_tokens(const char *what, const uint16_t **w, const uint16_t *end,
                                int64_t V, const ChoicePlace *at) {
    const int64_t left = max_i64(end - *w - 1, 0);
    const int64_t n = *w < end ? **w : 0;
    if (*w >= end || n > left)
        return WRONG(at, "tokens of the %s: %lld, but the record has space for %lld", what,
                     (long long)n, (long long)left);
    if (n == 0) return WRONG(at, "tokens of the %s: 0, expected at least 1", what);
    for (int64_t i = 1; i <= n; i++)
        if ((*w)[i] >= V)
            return WRONG(at,
                         "token %d in the %s, but the model's vocabulary ends at %lld: the file "
                         "was made with another "
                         "tokenizer; make it again with the model's",
                         (*w)[i], what, (long long)V - 1);
    *w += 1 + n;
    return true;
}

// ----------------------------------------------------------------------------------------- opening

static bool check_records(ChoiceSet *set, const char *path, int64_t words, int64_t V, Error *err) {
    int64_t start = 0;
    for (int64_t i = 0; i < set->count; i++) {
        const ChoicePlace at = {path, i, err};
        const uint16_t *record = set->words + start;
        const int64_t left = words - start;
        if (left < MIN_RECORD)
            return WRONG(
                &at,
                "the file ends here with %lld bytes left: it is truncated; copy or make it again",
                (long long)left * 2);

        const int bytes = record[W_BYTES], completions = record[W_COMPLETIONS];
        if (record[W_BEGIN] != CHOICES_BEGIN)
            return WRONG(&at, "begins with %d, expected %d: the file is damaged", record[W_BEGIN],
                         CHOICES_BEGIN);
        if (bytes % 2 != 0 || bytes < MIN_RECORD * 2)
            return WRONG(&at, "bytes of the record: %d, expected an even number of at least %d",
                         bytes, MIN_RECORD * 2);
        if (bytes > left * 2)
            return WRONG(&at,
                         "bytes of the record: %d, but only %lld are left: the file is truncated; "
                         "copy or make it again",
                         bytes, (long long)left * 2);
        if (record[W_INDEX] != (i & 0xFFFF))
            return WRONG(&at, "index: %d, expected %lld", record[W_INDEX], (long long)(i & 0xFFFF));
        if (completions < CHOICES_MIN || completions > CHOICES_MAX)
            return WRONG(&at, "number of completions: %d, expected %d to %d", completions,
                         CHOICES_MIN, CHOICES_MAX);
        if (record[W_LABEL] >= completions)
            return WRONG(&at, "label: %d, expected less than the number of completions, %d",
                         record[W_LABEL], completions);

        const uint16_t *w = record + W_CONTEXT, *end = record + bytes / 2;
        if (!check_record_tokens("context", &w, end, V, &at)) return false;
        for (int k = 0; k < completions; k++) {
            char what[24];
            snprintf(what, sizeof what, "completion %d", k);
            if (!check_record_tokens(what, &w, end, V, &at)) return false;
        }
        if (w != end)
            return WRONG(&at, "bytes of the record: %d, but its tokens end %lld bytes earlier",
                         bytes, (long long)(end - w) * 2);

        set->starts[i] = start;
        start += bytes / 2;
    }

    if (start != words)
        return error_set(err, "%s: %lld bytes after the last of %lld examples (header field 2)",
                         path, (long long)(words - start) * 2, (long long)set->count);
    return true;
}

static bool read_choice_set(ChoiceSet *set, const char *path, int64_t V, Error *err) {
    int32_t header[HEADER_BYTES / 4] = {0};
    size_t bytes;
    const char *slash = strrchr(path, '/'), *name = path;
    if (slash) name = slash + 1;
    size_t length = strlen(name);
    if (length > 4 && strcmp(name + length - 4, ".bin") == 0) length -= 4;
    set->name = strndup(name, length);

    set->bytes = file_read_all(path, MAX_BYTES, &bytes, err);
    if (!set->bytes) return false;
    if (!set->name) return error_set(err, "%s: out of memory", path);

    memcpy(header, set->bytes, min_size(bytes, HEADER_BYTES));
    if (header[0] != CHOICES_MAGIC &&
        !foreign_file_check("a multiple-choice file", path, set->bytes,
                            min_size(bytes, FOREIGN_FILE_HEAD), err))
        return false;
    if (bytes < HEADER_BYTES || bytes % 2 != 0)
        return error_set(err,
                         "%s: not a multiple-choice file, or truncated: %zu bytes, expected an "
                         "even number of at least %d",
                         path, bytes, HEADER_BYTES);
    if (header[0] != CHOICES_MAGIC)
        return error_set(
            err, "%s: not a multiple-choice file: magic number (header field 0) is %d, expected %d",
            path, header[0], CHOICES_MAGIC);
    if (header[1] != CHOICES_VERSION)
        return error_set(err, "%s: version (header field 1) is %d, expected %d", path, header[1],
                         CHOICES_VERSION);

    const int64_t room = ((int64_t)bytes - HEADER_BYTES) / (MIN_RECORD * 2);
    if (header[2] < 1 || header[2] > room)
        return error_set(
            err,
            "%s: number of examples (header field 2) is %d, but the file has space for 1 to %lld",
            path, header[2], (long long)room);

    set->words = (uint16_t *)(void *)(set->bytes + HEADER_BYTES);
    set->count = header[2];
    set->starts = malloc((size_t)set->count * sizeof *set->starts);
    if (!set->starts) return error_set(err, "%s: out of memory", path);
    return check_records(set, path, ((int64_t)bytes - HEADER_BYTES) / 2, V, err);
}

bool choices_open(ChoiceSets *sets, const char *pattern, int64_t V, Error *err) {
    char **paths;
    int count;
    memset(sets, 0, sizeof *sets);
    if (!files_match(pattern, &paths, &count, err)) return false;
    bool ok = count > 0;
    if (!ok)
        error_set(err,
                  "no multiple-choice files match %s%s; %s makes them of your own questions, and "
                  "HellaSwag's comes with: %s hellaswag",
                  path_quoted(pattern).text, path_pattern_reason(pattern).text,
                  path_of_tool("data/choices").text, path_of_tool("data/get.py").text);
    if (ok && !(sets->sets = calloc((size_t)count, sizeof(ChoiceSet *))))
        ok = error_set(err, "%d multiple-choice files: out of memory", count);

    for (int i = 0; ok && i < count; i++) {
        ChoiceSet *set = sets->sets[sets->count++] = calloc(1, sizeof *set);
        REQUIRE_MEMORY(set, "a multiple-choice file");
        ok = read_choice_set(set, paths[i], V, err);
        for (int k = 0; ok && k < i; k++) { // the scores of each have a name of their own in logs
            char *name = set->name;
            if (strcmp(name, sets->sets[k]->name) != 0) continue;
            REQUIRE_MEMORY(asprintf(&set->name, "%s.%d", name, i + 1) >= 0, "a name");
            free(name);
        }
    }

    directory_list_free(paths, count);
    return ok;
}

void choices_close(ChoiceSets *sets) {
    for (int i = 0; i < sets->count; i++) {
        ChoiceSet *set = sets->sets[i];
        free(set->name);
        free(set->bytes);
        free(set->starts);
        free(set);
    }
    free(sets->sets);
    memset(sets, 0, sizeof *sets);
}

// -------------------------------------------------------------------------------------- the scores

typedef struct {
    int64_t example;
    int completion;
    int64_t tokens;       // tokens passed to the model
    int64_t rounded;      // length of the batch that contains it
    int64_t cut;          // tokens cut from the context, on the left
    int64_t first_scored; // position of the loss of the completion's first token
} Sequence;

typedef struct {
    Model *model;
    const ChoiceSet *set;
    Sequence *sequences;
    int64_t count;
    uint16_t *windows;   // (B, T+1), memory the device can copy from
    float *token_losses; // (B, T), the same
    double *losses;      // (examples, CHOICES_MAX): sums
    int64_t *tokens;     // (examples, CHOICES_MAX): of each completion
} Scoring;

static int shortest_first(const void *a, const void *b) {
    const Sequence *x = a, *y = b;
    if (x->rounded != y->rounded) return (x->rounded > y->rounded) - (x->rounded < y->rounded);
    if (x->example != y->example) return (x->example > y->example) - (x->example < y->example);
    return x->completion - y->completion;
}

static void make_sequences(Scoring *s, int64_t examples, int64_t T, int64_t *examples_cut) {
    for (int64_t i = 0; i < examples; i++) {
        const ChoiceExample e = choices_example(s->set, i);
        bool is_cut = false;
        for (int k = 0; k < e.completions; k++) {
            // The model reads all tokens but the last and predicts all but the first, so T + 1 fit.
            const int64_t all = e.context_tokens + e.completion_tokens[k],
                          cut = max_i64(all - (T + 1), 0);
            const int64_t tokens = all - cut - 1;

            // 32, 48, 64, 96, 128, 192, ... T: at most a half is wasted, on average a fifth.
            // T = 1024 has 11 lengths.
            int64_t rounded = 32;
            for (int part = 2; rounded < tokens; part = 5 - part) rounded += rounded / part;
            s->sequences[s->count++] = (Sequence){.example = i,
                                                  .completion = k,
                                                  .tokens = tokens,
                                                  .rounded = min_i64(rounded, T),
                                                  .cut = cut,
                                                  .first_scored = e.context_tokens - cut - 1};
            s->tokens[i * CHOICES_MAX + k] = e.completion_tokens[k];
            is_cut = is_cut || cut > 0;
        }
        *examples_cut += is_cut;
    }

    qsort(s->sequences, (size_t)s->count, sizeof *s->sequences, shortest_first);
}

// ------------------------------------------------------------------------------------------ losses

// Scores sequences [first, first + count), all of one rounded length. The batch always has B rows,
// filled up with copies of the last sequence, because another number of rows would be another
// shape.
static void score_batch(Scoring *s, int64_t first, int64_t count) {
    const int64_t B = model_options(s->model)->B, T = s->sequences[first].rounded;
    for (int64_t b = 0; b < B; b++) {
        const Sequence *q = &s->sequences[first + min_i64(b, count - 1)];
        const ChoiceExample e = choices_example(s->set, q->example);
        const int64_t context = e.context_tokens - q->cut, n = e.completion_tokens[q->completion];
        uint16_t *window = s->windows + b * (T + 1);
        memcpy(window, e.context + q->cut, (size_t)context * sizeof *window);
        memcpy(window + context, e.completion[q->completion], (size_t)n * sizeof *window);
        // without effect: they are last
        memset(window + context + n, 0, (size_t)(T + 1 - context - n) * sizeof *window);
    }

    model_load_batch(s->model, s->windows, B, T, sizeof *s->windows);
    model_forward(s->model);
    copy_d2h(s->token_losses, model_token_losses(s->model).data,
             (size_t)(B * T) * sizeof *s->token_losses, STREAM_COMPUTE);
    device_sync();

    for (int64_t b = 0; b < count; b++) {
        const Sequence *q = &s->sequences[first + b];
        double sum = 0.0;
        for (int64_t t = q->first_scored; t < q->tokens; t++) sum += s->token_losses[b * T + t];
        s->losses[q->example * CHOICES_MAX + q->completion] = sum;
    }
}

// Every sum was computed by one process; the others have 0 there.
static bool collect_losses(Scoring *s, int64_t examples, Error *err) {
    const size_t cells = (size_t)examples * CHOICES_MAX;
    if (comm_size() == 1) return true;
    double *all = comm_gather_new(s->losses, cells * sizeof *all, err);
    const bool ok = all != NULL;
    for (size_t i = 0; ok && i < cells; i++) {
        s->losses[i] = 0.0;
        for (int p = 0; p < comm_size(); p++) s->losses[i] += all[(size_t)p * cells + i];
    }
    free(all);
    return ok;
}

// ----------------------------------------------------------------------------------------- answers

// The completion with the smallest loss, by sum or by mean; -1 if none is a number.
static int chosen_completion(const double *losses, const int64_t *tokens, int completions,
                             bool mean) {
    int best = -1;
    double smallest = INFINITY;
    for (int k = 0; k < completions; k++) {
        double loss = losses[k];
        if (mean) loss /= (double)tokens[k];
        if (loss >= smallest || isnan(loss)) continue;
        best = k;
        smallest = loss;
    }
    return best;
}

bool choices_fit(const ChoiceSets *sets, int64_t T, Error *err) {
    for (int s = 0; s < sets->count; s++) {
        const ChoiceSet *set = sets->sets[s];
        for (int64_t i = 0; i < set->count; i++) {
            const ChoiceExample e = choices_example(set, i);
            for (int k = 0; k < e.completions; k++)
                if (e.completion_tokens[k] > T)
                    return error_set(err,
                                     "%s: example %lld: completion %d has %lld tokens, but the "
                                     "context is %lld; use a "
                                     "longer -t or other examples",
                                     set->name, (long long)i, k, (long long)e.completion_tokens[k],
                                     (long long)T);
        }
    }
    return true;
}

// -------------------------------------------------------------------------------------- evaluation

bool evaluate_choices(Model *model, const ChoiceSet *set, int64_t examples, ChoiceScore *score,
                      double *losses, int64_t *tokens, Error *err) {
    Scoring s = {.model = model, .set = set, .losses = losses, .tokens = tokens};
    const ModelOptions *o = model_options(model);
    const int64_t B = o->B, T = o->T, all = choices_count(set);
    memset(score, 0, sizeof *score);
    if (examples <= 0 || examples > all) examples = all;
    const size_t cells = (size_t)examples * CHOICES_MAX;
    s.sequences = malloc(cells * sizeof *s.sequences);
    if (!losses) s.losses = calloc(cells, sizeof *s.losses);
    if (!tokens) s.tokens = calloc(cells, sizeof *s.tokens);
    if (s.sequences && s.losses && s.tokens)
        s.windows = host_alloc((size_t)(B * (T + 1)) * sizeof *s.windows, err);
    else // a run saves what it has trained before it ends
        error_set(err, "%s: %lld examples: out of memory", choices_name(set), (long long)examples);
    if (s.windows) s.token_losses = host_alloc((size_t)(B * T) * sizeof *s.token_losses, err);
    bool ok = comm_all_ok(s.token_losses != NULL, err) && s.token_losses;
    if (ok) {
        make_sequences(&s, examples, T, &score->cut);
        bool whole = true; // false: a signal came
        int64_t batch = 0;
        for (int64_t first = 0, count; whole && first < s.count; first += count) {
            watch_progress();
            for (count = 1; count < B && first + count < s.count; count++)
                if (s.sequences[first + count].rounded != s.sequences[first].rounded) break;
            whole = !signals_pending();
            // they take turns
            if (whole && batch++ % comm_size() == comm_rank()) score_batch(&s, first, count);
        }
        ok = !whole || collect_losses(&s, examples, err);
        for (int64_t i = 0; ok && whole && i < examples; i++) {
            const ChoiceExample e = choices_example(set, i);
            const double *sums = s.losses + i * CHOICES_MAX;
            const int64_t *lengths = s.tokens + i * CHOICES_MAX;
            score->correct += chosen_completion(sums, lengths, e.completions, false) == e.label;
            score->correct_normalised +=
                chosen_completion(sums, lengths, e.completions, true) == e.label;
        }
        if (ok && whole) score->examples = examples;
    }
    if (s.token_losses) host_free(s.token_losses);
    if (s.windows) host_free(s.windows);
    if (!tokens) free(s.tokens);
    if (!losses) free(s.losses);
    free(s.sequences);
    return ok;
}
