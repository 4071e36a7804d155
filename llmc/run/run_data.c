// See run_data.h.
#include "llmc/run/run_data.h"

#include "llmc/base/arithmetic.h"
#include "llmc/base/directory.h"
#include "llmc/base/files_match.h"
#include "llmc/base/format.h"
#include "llmc/base/typed_path.h"
#include "llmc/run/advice.h"
#include "llmc/store/trainer_json.h"

#include <fnmatch.h>
#include <stdlib.h>
#include <string.h>

static bool same_facts(const DataFacts *a, const DataFacts *b) {
    return a->tokens == b->tokens && a->fingerprint == b->fingerprint;
}

// Older checkpoints do not know the contents.
static bool same_contents(const DataFacts *a, const DataFacts *b) {
    return same_facts(a, b) && (a->contents == b->contents || a->contents == 0 || b->contents == 0);
}

// Compares data of the run with those of its checkpoint. A difference is no error: a corpus may
// grow.
static void compare_data(const char *what, DataFacts now, DataFacts *then) {
    if (then->tokens > 0 && !same_facts(then, &now))
        advice_print("%s: the shards have changed: the checkpoint has %lld tokens (checksum "
                     "%016llx), these have %lld "
                     "(%016llx); the run continues with them",
                     what, (long long)then->tokens, (unsigned long long)then->fingerprint,
                     (long long)now.tokens, (unsigned long long)now.fingerprint);
    else if (then->tokens > 0 && !same_contents(then, &now))
        advice_print("%s: the shards have changed, or were copied or written again, since the "
                     "checkpoint: %lld tokens "
                     "as before, but not the same contents or times; the run continues with them",
                     what, (long long)now.tokens);
    *then = now;
}

// ---------------------------------------------------------------------------- resumes of a mixture

// Advances the sources of the checkpoint to its position, where other weights begin.
static void advance_sources(TrainerState *state) {
    Mixture then = {.start = state->mixture_start};
    int64_t drawn[MIXTURE_MAX];
    for (; then.count < state->source_count && state->sources[then.count].weight > 0;
         then.count++) {
        then.weights[then.count] = state->sources[then.count].weight;
        then.drawn[then.count] = state->sources[then.count].drawn;
        then.total += then.weights[then.count];
    }
    mixture_count(&then, state->position, drawn);
    for (int i = 0; i < then.count; i++) state->sources[i].drawn = drawn[i];
    state->mixture_start = state->position;
}

// Finds for each source of the mixture, now[i], that of the checkpoint which it continues: from[i],
// -1 if it is new. All are looked for by their shards before any is by its name, so that corpora
// which exchange places or names keep their counts, and those with the same contents before those
// with the same samples.
static void find_sources(const TrainerState *state, const Mixture *m, const SourceState *now,
                         int *from) {
    bool *taken = calloc((size_t)state->source_count + 1, sizeof *taken);
    REQUIRE_MEMORY(taken, "the sources");
    for (int i = 0; i < m->count; i++) from[i] = -1;
    for (int by = 0; by < 3; by++)
        for (int i = 0; i < m->count; i++)
            for (int k = 0; from[i] < 0 && k < state->source_count; k++) {
                const SourceState *then = &state->sources[k];
                const bool matches[] = {same_contents(&then->facts, &now[i].facts),
                                        same_facts(&then->facts, &now[i].facts),
                                        strcmp(then->pattern, m->patterns[i]) == 0};
                if (taken[k] || !matches[by]) continue;
                taken[k] = true;
                from[i] = k;
            }
    free(taken);
}

// Where each source of the mixture continues: the weights hold from the beginning of the run, or,
// if this resume has changed them, from here on, and every source goes on after the windows that
// were drawn from it before. state then has the sources of this run, and those that it has left
// out, which may return.
static void continue_sources(RunData *data, TrainerState *state) {
    Mixture *m = &data->train.mixture;
    SourceState *now = calloc((size_t)(m->count + state->source_count), sizeof *now);
    REQUIRE_MEMORY(now, "the sources");
    int from[MIXTURE_MAX] = {0}, count = m->count, before = 0;
    double total = 0;
    bool same = true;

    for (; before < state->source_count && state->sources[before].weight > 0; before++)
        total += (double)state->sources[before].weight;
    for (int i = 0; i < m->count; i++) {
        const ShardSet *set = &data->train.sets[i];
        now[i] = (SourceState){.weight = m->weights[i],
                               .facts = {set->num_tokens, set->fingerprint, set->contents}};
    }
    find_sources(state, m, now, from);

    for (int i = 0; i < m->count; i++) {
        same &= from[i] == i && state->sources[i].weight == m->weights[i];
        if (from[i] < 0) continue;
        compare_data(m->names[i], now[i].facts, &state->sources[from[i]].facts);
        state->sources[from[i]].facts.tokens = 0; // taken
    }
    same &= before == m->count;

    const bool changed = !same && state->source_count > 0;
    size_t bytes;
    FILE *f = text_open(&data->changes, &bytes);
    if (changed) advance_sources(state);
    for (int i = 0; i < m->count; i++) {
        const SourceState unknown = {0}, *then = &unknown;
        if (from[i] >= 0) then = &state->sources[from[i]];
        now[i].pattern = strdup(m->patterns[i]);
        REQUIRE_MEMORY(now[i].pattern, "a pattern");
        now[i].drawn = m->drawn[i] = then->drawn;
        if (changed) fprintf(f, "%s: share %.4g%%", m->names[i], 100 * mixture_share(m, i));
        if (changed && from[i] >= 0)
            fprintf(f, " (was %.4g%%), continues after %lld windows\n",
                    100 * (double)then->weight / total, (long long)then->drawn);
        else if (changed)
            fprintf(f, ", new\n");
    }

    for (int i = 0; i < state->source_count; i++) {
        SourceState *then = &state->sources[i];
        if (then->facts.tokens == 0) continue; // taken
        if (then->weight > 0)
            fprintf(f, "%s: left out after %lld windows\n", then->pattern, (long long)then->drawn);
        now[count] = *then;
        now[count++].weight = 0;
        then->pattern = NULL; // moved
    }

    fclose(f);
    m->start = state->mixture_start;
    trainer_state_free_sources(state);
    state->sources = now;
    state->source_count = count;
}

// The training data, against those of the checkpoint. A run on one corpus states no sources.
static void continue_train(RunData *data, TrainerState *state) {
    const bool mixes = data->train.mixture.count > 1;
    // it has read one corpus: a source from now on
    if (state->source_count == 0 && mixes && state->train.tokens > 0) {
        cJSON *options = cJSON_Parse(state->options_json);
        const char *pattern =
            cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(options, "train-data"));
        state->sources = calloc(1, sizeof *state->sources);
        REQUIRE_MEMORY(state->sources, "the sources");
        state->sources[0] = (SourceState){
            .pattern = strdup(pattern ? pattern : ""), .weight = 1, .facts = state->train};
        REQUIRE_MEMORY(state->sources[0].pattern, "a pattern");
        state->source_count = 1;
        state->mixture_start = 0;
        cJSON_Delete(options);
    }

    const DataFacts now = {data->train.num_tokens, data->train.fingerprint, data->train.contents};
    if (state->source_count == 0 && !mixes)
        compare_data("-i", now, &state->train);
    else
        continue_sources(data, state);
    state->train = now;
}

// -------------------------------------------------------------------------------------- validation

// The pattern of the validation shards next to those of a pattern of -i, malloced; NULL: no train
// in their names.
static char *pattern_beside(const void *context, const char *train) {
    const RunData *data = context;
    char *pattern = shards_validation_pattern(train);
    for (int i = 0; i < data->train.mixture.count; i++) {
        const ShardSet *set = &data->train.sets[i];
        const bool is_it = strcmp(data->train.mixture.patterns[i], train) == 0;
        for (int k = 0; is_it && !pattern && k < set->count; k++)
            pattern = shards_validation_pattern(set->shards[k].path);
    }
    return pattern;
}

// Opens the validation shards next to the training data, if there are any: of a mixture, next to
// each source.
static bool open_beside(RunData *data, const Options *o, int64_t T, Error *err) {
    Mixture m;
    data->val_pattern = mixture_map(o->train_data, pattern_beside, data);
    if (!data->val_pattern)
        return error_set(
            err,
            "no train in the name %s for which there could be a val; -j GLOB names validation data",
            path_quoted(o->train_data).text);

    bool ok = mixture_parse(&m, data->val_pattern, err);
    for (int i = 0; ok && i < m.count; i++) {
        char **names;
        int count = 0;
        if (!(ok = files_match(m.patterns[i], &names, &count, err))) break;
        directory_list_free(names, count);
        if (count == 0)
            ok = error_set(err, "no %s beside the training data; -j GLOB names validation data",
                           path_quoted(m.patterns[i]).text);
    }

    mixture_free(&m);
    if (!ok) return false;
    return sources_open(&data->val, data->val_pattern, T, err);
}

// Without -j and without validation data a new run trains, and its header shows that. An evaluation
// needs them, and so does a run that has validated. then: the validation data of its checkpoint.
static bool open_validation(RunData *data, const Options *o, int64_t T, const DataFacts *then,
                            Error *err) {
    Error why;
    if (o->val_every == 0 || o->interactive) {
        strcpy(data->no_validation, "-v 0");
        if (o->interactive) strcpy(data->no_validation, "--interactive");
        return true;
    }

    if (*o->val_data) {
        options_set_string(&data->val_pattern, o->val_data);
        data->has_val = sources_open(&data->val, o->val_data, T, err);
        if (data->has_val) return true;
        advice_add_directories(o, "val-data", err);
        if (o->max_steps == 0 && !options_given(o, "val-data"))
            error_set(err, "%s; or skip validation with -v 0", err->text);
        return error_prefix(err, "-j");
    }

    data->has_val = open_beside(data, o, T, &why);
    if (!data->has_val) snprintf(data->no_validation, sizeof data->no_validation, "%s", why.text);
    if (!data->has_val && o->max_steps != 0 && then->tokens > 0)
        return error_set(
            err,
            "-j: the run was validated on %lld tokens; %s, and -v 0 trains on without validation",
            (long long)then->tokens, why.text);
    if (!data->has_val && o->max_steps == 0)
        return error_set(err, "-j: %s, and -v 0 skips validation", why.text);
    return true;
}

// A validation on text that is trained on shows nothing, unless both are the same files on purpose.
// Without validation, -i that matches validation data by their names gets a warning.
static bool check_apart(RunData *data, const Options *o, int64_t T, Error *err) {
    ShardsInBoth both = {0};
    if (data->has_val) both = sources_in_both(&data->train, &data->val);
    data->val_is_train = both.count > 0 && both.count == data->train.num_shards &&
                         both.count == data->val.num_shards;
    if (data->val_is_train) return true;

    if (both.count == 0) {
        Sources named = {.eot = -1};
        char *pattern = mixture_map(o->train_data, pattern_beside, data);
        if (pattern && sources_open(&named, pattern, T, NULL)) {
            both = sources_in_both(&data->train, &named);
            if (both.count > 0)
                advice_print(
                    "-i: also matches validation data, which is trained on: %d file%s, such as %s",
                    both.count, format_plural(both.count), both.first);
            sources_close(&named);
        }
        free(pattern);
        return true;
    }

    char *train = NULL;
    QuotedPath example = {""};
    if (both.other) train = path_numbered(both.other);
    if (train && fnmatch(train, both.first, FNM_PATHNAME) != 0) example = path_quoted(train);
    const bool is_copy = strcmp(both.first, both.twin) != 0;
    error_set(err,
              "-i %s: would train on validation data (%s): %d file%s, such as %s%s%s; name the "
              "training data "
              "alone%s%s, or skip validation with -v 0",
              path_quoted(o->train_data).text, path_quoted(data->val_pattern).text, both.count,
              format_plural(both.count), both.first, is_copy ? ", the same data as " : "",
              is_copy ? both.twin : "", *example.text ? ", such as -i " : "", example.text);
    free(train);
    return false;
}

// Reads one window of each source now, so that tokens of another vocabulary show before anything is
// started.
static bool read_first_windows(const Sources *s, int64_t V, Error *err) {
    void *window = malloc((size_t)(s->T + 1) * 4);
    REQUIRE_MEMORY(window, "a window of tokens");
    bool ok = true;
    for (int i = 0; ok && i < s->mixture.count; i++)
        ok = shards_read_window(&s->sets[i], 0, V, window, err);
    free(window);
    return ok;
}

bool run_data_open(RunData *data, const Options *o, int64_t T, ModelConfig *config,
                   TrainerState *state, Error *err) {
    data->has_train = o->max_steps != 0;
    const bool needs_train = data->has_train || options_given(o, "train-data");
    Error ignored, *why = &ignored;
    if (needs_train) why = err;
    if ((data->has_train || config->V == 0) && !sources_open(&data->train, o->train_data, T, why) &&
        needs_train) {
        advice_add_directories(o, "train-data", err);
        return error_prefix(err, "-i");
    }

    if (!open_validation(data, o, T, &state->val, err) ||
        (data->has_train && !check_apart(data, o, T, err)))
        return false;

    const Sources none = {.eot = -1}, *stated = &none;
    if (data->has_val) stated = &data->val;
    if (data->train.num_shards > 0) stated = &data->train;
    const int64_t vocab = stated->vocab;
    if (config->V == 0) model_config_set_vocab(config, positive_or(vocab, GPT2_VOCAB));
    if (vocab > 0 && vocab > config->V)
        return error_set(err,
                         "%s has tokens of a vocabulary of %lld, but the model has %lld; make the "
                         "shards with the "
                         "model's tokenizer (%s --tokenizer PATH -o DIR FILE...)",
                         stated->sets[0].shards[0].path, (long long)vocab, (long long)config->V,
                         path_of_tool("data/prepare").text);
    if (data->train.num_shards > 0 && data->has_val && data->val.vocab > 0 && vocab > 0 &&
        data->val.vocab != vocab) {
        QuotedPath name = {"-j"};
        if (!*o->val_data) name = path_quoted(data->val_pattern);
        return error_set(err,
                         "-i and %s were made with different vocabularies: %lld and %lld tokens",
                         name.text, (long long)vocab, (long long)data->val.vocab);
    }

    if (stated->eot >= 0) state->eot = stated->eot;
    if (data->has_train) continue_train(data, state);
    const DataFacts val = {data->val.num_tokens, data->val.fingerprint, data->val.contents};
    if (data->has_val) compare_data("-j", val, &state->val);

    if (data->has_train && !read_first_windows(&data->train, config->V, err)) return false;
    if (data->has_val && !read_first_windows(&data->val, config->V, err)) return false;
    return true;
}

void run_data_close(RunData *data) {
    sources_close(&data->train);
    sources_close(&data->val);
    free(data->val_pattern);
    free(data->changes);
}
