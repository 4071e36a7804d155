// Scoring multiple-choice examples. See choices.h.
// Every completion is a sequence of its own, context and completion in one window; only the losses of the completion
// count. Sequences are sorted by length, so that a batch is little longer than what it holds, and the length is rounded
// up to one of a few, so that matmuls of few shapes are planned. Both depend on the sequence alone, not on the batch.
#include "llmc/train/choices.h"

#include "llmc/run/signals.h"
#include "llmc/train/choices_file.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>

typedef struct {
    int64_t example;
    int completion;
    int64_t tokens;       // that go into the model
    int64_t rounded;      // length of the batch that holds it
    int64_t cut;          // of the context, on the left
    int64_t first_scored; // position whose loss is that of the completion's first token
} Sequence;

typedef struct {
    Gpt2 *model;
    const ChoiceSet *set;
    Sequence *sequences;
    int64_t count;
    uint16_t *windows;   // (B, T+1), memory the device can copy from
    float *token_losses; // (B, T), the same
    double *losses;      // (examples, CHOICES_MOST): sums
    int64_t *tokens;     // (examples, CHOICES_MOST): of each completion
} Scoring;

// ---------------------------------------------------------------------------------------------------------- sequences

// 32, 48, 64, 96, 128, 192, ... T: at most a half is wasted, on average a fifth, and T = 1024 has 11 of them.
static int64_t round_length(int64_t n, int64_t T) {
    int64_t rounded = 32;
    while (rounded < n) rounded += (rounded & (rounded - 1)) == 0 ? rounded / 2 : rounded / 3;
    return rounded < T ? rounded : T;
}

// The model reads all tokens but the last and predicts all but the first: T + 1 fit.
static Sequence sequence_of(const ChoiceExample *e, int64_t example, int k, int64_t T) {
    const int64_t all = e->context_tokens + e->completion_tokens[k];
    Sequence s = {.example = example, .completion = k};
    s.cut = all > T + 1 ? all - (T + 1) : 0;
    s.tokens = all - s.cut - 1;
    s.rounded = round_length(s.tokens, T);
    s.first_scored = e->context_tokens - s.cut - 1;
    return s;
}

static int shortest_first(const void *a, const void *b) {
    const Sequence *x = a, *y = b;
    if (x->rounded != y->rounded) return x->rounded < y->rounded ? -1 : 1;
    if (x->example != y->example) return x->example < y->example ? -1 : 1;
    return x->completion - y->completion;
}

static void make_sequences(Scoring *s, int64_t examples, int64_t T, int64_t *examples_cut) {
    for (int64_t i = 0; i < examples; i++) {
        const ChoiceExample e = choices_example(s->set, i);
        bool cut = false;
        for (int k = 0; k < e.completions; k++) {
            s->sequences[s->count] = sequence_of(&e, i, k, T);
            cut = cut || s->sequences[s->count].cut > 0;
            s->tokens[i * CHOICES_MOST + k] = e.completion_tokens[k];
            s->count++;
        }
        *examples_cut += cut;
    }
    qsort(s->sequences, (size_t)s->count, sizeof *s->sequences, shortest_first);
}

// ------------------------------------------------------------------------------------------------------------- losses

// Context, completion, and zeros, which come later and so change nothing.
static void fill_window(const ChoiceSet *set, const Sequence *s, uint16_t *window) {
    const ChoiceExample e = choices_example(set, s->example);
    const int64_t context = e.context_tokens - s->cut, n = e.completion_tokens[s->completion];
    memcpy(window, e.context + s->cut, (size_t)context * sizeof *window);
    memcpy(window + context, e.completion[s->completion], (size_t)n * sizeof *window);
    memset(window + context + n, 0, (size_t)(s->rounded + 1 - context - n) * sizeof *window);
}

// Sequences [first, first + count), all of one rounded length. The batch always has B rows, the last sequence standing
// for those that are missing: another number of rows would be another shape.
static void score_batch(Scoring *s, int64_t first, int64_t count) {
    const int64_t B = gpt2_options(s->model)->B, T = s->sequences[first].rounded;
    for (int64_t b = 0; b < B; b++) {
        const int64_t i = first + (b < count ? b : count - 1);
        fill_window(s->set, &s->sequences[i], s->windows + b * (T + 1));
    }
    gpt2_load_short_batch(s->model, s->windows, B, T, sizeof *s->windows);
    gpt2_forward(s->model);
    device_copy_to_host(s->token_losses, gpt2_token_losses(s->model).data, (size_t)(B * T) * sizeof *s->token_losses,
                        STREAM_COMPUTE);
    device_sync();
    for (int64_t b = 0; b < count; b++) {
        const Sequence *q = &s->sequences[first + b];
        double sum = 0.0;
        for (int64_t t = q->first_scored; t < q->tokens; t++) sum += s->token_losses[b * T + t];
        s->losses[q->example * CHOICES_MOST + q->completion] = sum;
    }
}

// false: a signal came.
static bool score_all(Scoring *s) {
    const int64_t B = gpt2_options(s->model)->B;
    for (int64_t first = 0, count; first < s->count; first += count) {
        if (signals_pending()) return false;
        for (count = 1; count < B && first + count < s->count; count++)
            if (s->sequences[first + count].rounded != s->sequences[first].rounded) break;
        score_batch(s, first, count);
    }
    return true;
}

// ------------------------------------------------------------------------------------------------------------- answers

// The completion with the smallest loss, by sum or by mean; -1 where none is a number.
static int chosen(const double *losses, const int64_t *tokens, int completions, bool mean) {
    int best = -1;
    double smallest = INFINITY;
    for (int k = 0; k < completions; k++) {
        const double loss = mean ? losses[k] / (double)tokens[k] : losses[k];
        if (loss < smallest) best = k, smallest = loss;
    }
    return best;
}

static void count_correct(const Scoring *s, int64_t examples, ChoiceScore *score) {
    for (int64_t i = 0; i < examples; i++) {
        const ChoiceExample e = choices_example(s->set, i);
        const double *losses = s->losses + i * CHOICES_MOST;
        const int64_t *tokens = s->tokens + i * CHOICES_MOST;
        score->correct += chosen(losses, tokens, e.completions, false) == e.label;
        score->correct_normalised += chosen(losses, tokens, e.completions, true) == e.label;
    }
    score->examples = examples;
}

static bool example_fits(const ChoiceSet *set, int64_t i, int64_t T, Error *err) {
    const ChoiceExample e = choices_example(set, i);
    for (int k = 0; k < e.completions; k++)
        if (e.completion_tokens[k] > T)
            return error_set(err,
                             "%s: example %lld: completion %d has %lld tokens, but the context is %lld; use a "
                             "longer -t or other examples",
                             choices_name(set), (long long)i, k, (long long)e.completion_tokens[k], (long long)T);
    return true;
}

bool choices_fit(const ChoiceSets *sets, int64_t T, Error *err) {
    for (int s = 0; s < sets->count; s++)
        for (int64_t i = 0; i < choices_count(sets->sets[s]); i++)
            if (!example_fits(sets->sets[s], i, T, err)) return false;
    return true;
}

// --------------------------------------------------------------------------------------------------------- evaluation

static bool allocate(Scoring *s, int64_t examples, Error *err) {
    const Gpt2Options *o = gpt2_options(s->model);
    const size_t cells = (size_t)examples * CHOICES_MOST;
    s->sequences = malloc(cells * sizeof *s->sequences);
    if (!s->losses) s->losses = calloc(cells, sizeof *s->losses);
    if (!s->tokens) s->tokens = calloc(cells, sizeof *s->tokens);
    s->windows = host_alloc((size_t)(o->B * (o->T + 1)) * sizeof *s->windows, err);
    if (s->windows) s->token_losses = host_alloc((size_t)(o->B * o->T) * sizeof *s->token_losses, err);
    if (!s->token_losses) return false;
    return (s->sequences && s->losses && s->tokens) ||
           error_set(err, "%s: %lld examples: out of memory", choices_name(s->set), (long long)examples);
}

bool evaluate_choices_losses(Gpt2 *model, const ChoiceSet *set, int64_t examples, ChoiceScore *score, double *losses,
                             int64_t *tokens, Error *err) {
    Scoring s = {.model = model, .set = set, .losses = losses, .tokens = tokens};
    const int64_t T = gpt2_options(model)->T, all = choices_count(set);
    memset(score, 0, sizeof *score);
    if (examples <= 0 || examples > all) examples = all;
    for (int64_t i = 0; i < examples; i++)
        if (!example_fits(set, i, T, err)) return false;
    const bool ok = allocate(&s, examples, err);
    if (ok) {
        make_sequences(&s, examples, T, &score->cut);
        if (score_all(&s)) count_correct(&s, examples, score);
    }
    if (s.token_losses) host_free(s.token_losses);
    if (s.windows) host_free(s.windows);
    if (!tokens) free(s.tokens);
    if (!losses) free(s.losses);
    free(s.sequences);
    return ok;
}

bool evaluate_choices(Gpt2 *model, const ChoiceSet *set, int64_t examples, ChoiceScore *score, Error *err) {
    return evaluate_choices_losses(model, set, examples, score, NULL, NULL, err);
}
