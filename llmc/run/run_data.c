// See run_data.h.
#include "llmc/run/run_data.h"

#include "llmc/base/directory.h"
#include "llmc/base/files_match.h"
#include "llmc/base/format.h"
#include "llmc/base/typed_path.h"
#include "llmc/run/advice.h"
#include "llmc/store/trainer_json.h"

#include <fnmatch.h>
#include <stdlib.h>
#include <string.h>

// Compares the data of the run with those of its checkpoint. A difference is no error: a corpus may grow.
static void compare_data(const char *option, const ShardSet *set, DataFacts *then) {
    const DataFacts now = {set->num_tokens, set->fingerprint};
    if (then->tokens > 0 && (then->tokens != now.tokens || then->fingerprint != now.fingerprint))
        advice_print("%s: the shards have changed: the checkpoint has %lld tokens (checksum %016llx), these have %lld "
                     "(%016llx); the run continues with them",
                     option, (long long)then->tokens, (unsigned long long)then->fingerprint, (long long)now.tokens,
                     (unsigned long long)now.fingerprint);
    *then = now;
}

// The pattern of the validation shards next to those of -i, malloced; NULL: no train in their names.
static char *name_beside(const RunData *data, const Options *o) {
    char *pattern = shards_validation_pattern(o->train_data);
    for (int i = 0; !pattern && i < data->train.count; i++)
        pattern = shards_validation_pattern(data->train.shards[i].path);
    return pattern;
}

// Opens the validation shards next to the training data, if there are any.
static bool open_beside(RunData *data, const Options *o, int64_t T, Error *err) {
    char **names;
    int count = 0;
    data->val_pattern = name_beside(data, o);
    if (!data->val_pattern)
        return error_set(err, "no train in the name %s for which there could be a val; -j GLOB names validation data",
                         path_quoted(o->train_data).text);
    if (!files_match(data->val_pattern, &names, &count, err)) return false;
    directory_list_free(names, count);
    if (count == 0)
        return error_set(err, "no %s beside the training data; -j GLOB names validation data",
                         path_quoted(data->val_pattern).text);
    return shards_open(&data->val, data->val_pattern, T, err);
}

// Without -j and without validation data a new run trains, and its header shows that. An evaluation needs them, and so
// does a run that has validated. then: the validation data of its checkpoint.
static bool open_validation(RunData *data, const Options *o, int64_t T, const DataFacts *then, Error *err) {
    Error why;
    if (o->val_every == 0 || o->interactive) {
        snprintf(data->no_validation, sizeof data->no_validation, o->interactive ? "--interactive" : "-v 0");
        return true;
    }
    if (*o->val_data) {
        options_set_string(&data->val_pattern, o->val_data);
        data->has_val = shards_open(&data->val, o->val_data, T, err);
        if (data->has_val) return true;
        advice_add_directories(o, "val-data", err);
        if (o->max_steps == 0 && !options_given(o, "val-data"))
            error_set(err, "%s; or skip validation with -v 0", err->text);
        return error_prefix(err, "-j");
    }
    data->has_val = open_beside(data, o, T, &why);
    if (!data->has_val) snprintf(data->no_validation, sizeof data->no_validation, "%s", why.text);
    if (!data->has_val && o->max_steps != 0 && then->tokens > 0)
        return error_set(err, "-j: the run was validated on %lld tokens; %s, and -v 0 trains on without validation",
                         (long long)then->tokens, why.text);
    return data->has_val || o->max_steps != 0 || error_set(err, "-j: %s, and -v 0 skips validation", why.text);
}

// Warns of -i that matches validation data, by their names, in a run without validation.
static void advise_of_names(const RunData *data, const Options *o, int64_t T) {
    const char *shared, *other;
    char *pattern = name_beside(data, o);
    ShardSet named = {.eot = -1};
    if (pattern && shards_open(&named, pattern, T, NULL)) {
        const int both = shards_in_both(&data->train, &named, &shared, &other);
        if (both > 0)
            advice_print("-i: also matches validation data, which is trained on: %d file%s, such as %s", both,
                         format_plural(both), shared);
        shards_close(&named);
    }
    free(pattern);
}

// A validation on text that is trained on shows nothing, unless both are the same files on purpose.
static bool check_apart(RunData *data, const Options *o, int64_t T, Error *err) {
    const char *shared, *other;
    const int both = data->has_val ? shards_in_both(&data->train, &data->val, &shared, &other) : 0;
    data->val_is_train = both > 0 && both == data->train.count && both == data->val.count;
    if (both == 0) advise_of_names(data, o, T);
    if (both == 0 || data->val_is_train) return true;
    char *train = other ? path_numbered(other) : NULL;
    const bool separates = train && fnmatch(train, shared, FNM_PATHNAME) != 0;
    error_set(err,
              "-i %s: would train on validation data (%s): %d file%s, such as %s; name the training data alone%s%s, "
              "or skip validation with -v 0",
              path_quoted(o->train_data).text, path_quoted(data->val_pattern).text, both, format_plural(both), shared,
              separates ? ", such as -i " : "", separates ? path_quoted(train).text : "");
    free(train);
    return false;
}

bool run_data_open(RunData *data, const Options *o, int64_t T, ModelConfig *config, TrainerState *state, Error *err) {
    data->has_train = o->max_steps != 0;
    const bool needs_train = data->has_train || options_given(o, "train-data");
    if ((data->has_train || config->V == 0) && !shards_open(&data->train, o->train_data, T, needs_train ? err : NULL) &&
        needs_train) {
        advice_add_directories(o, "train-data", err);
        return error_prefix(err, "-i");
    }
    if (!open_validation(data, o, T, &state->val, err) || (data->has_train && !check_apart(data, o, T, err)))
        return false;
    const ShardSet *stated = data->has_val ? &data->val : NULL;
    if (data->train.count > 0) stated = &data->train;
    const int64_t vocab = stated ? stated->vocab : 0;
    if (config->V == 0) model_config_set_vocab(config, vocab > 0 ? vocab : (int64_t)GPT2_VOCAB);
    if (stated && vocab > config->V)
        return error_set(err,
                         "%s has tokens of a vocabulary of %lld, but the model has %lld; make the shards with the "
                         "model's tokenizer (%s --tokenizer PATH -o DIR FILE...)",
                         stated->shards[0].path, (long long)vocab, (long long)config->V,
                         path_of_tool("data/prepare").text);
    if (data->train.count > 0 && data->has_val && data->val.vocab > 0 && vocab > 0 && data->val.vocab != vocab)
        return error_set(err, "-i and %s were made with different vocabularies: %lld and %lld tokens",
                         *o->val_data ? "-j" : path_quoted(data->val_pattern).text, (long long)vocab,
                         (long long)data->val.vocab);
    if (stated && stated->eot >= 0) state->eot = stated->eot;
    if (data->has_train) compare_data("-i", &data->train, &state->train);
    if (data->has_val) compare_data("-j", &data->val, &state->val);
    // One window of each is read now, so that tokens of another vocabulary show before anything is started.
    void *window = malloc((size_t)(T + 1) * 4);
    REQUIRE_MEMORY(window, "a window of tokens");
    const bool ok = (!data->has_train || shards_read_window(&data->train, 0, config->V, window, err)) &&
                    (!data->has_val || shards_read_window(&data->val, 0, config->V, window, err));
    free(window);
    return ok;
}

void run_data_close(RunData *data) {
    shards_close(&data->train);
    shards_close(&data->val);
    free(data->val_pattern);
}
