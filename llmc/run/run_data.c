// See run_data.h.
#include "llmc/run/run_data.h"

#include "llmc/base/directory.h"
#include "llmc/base/files_match.h"
#include "llmc/base/typed_path.h"
#include "llmc/store/trainer_json.h"

#include <fnmatch.h>
#include <stdlib.h>
#include <string.h>

// Compares the data of the run with the data of its checkpoint. A difference is not an error: a corpus may grow.
static void compare_data(const char *option, const ShardSet *set, DataFacts *then) {
    const DataFacts now = {set->num_tokens, set->fingerprint};
    if (then->tokens > 0 && (then->tokens != now.tokens || then->fingerprint != now.fingerprint))
        run_advise("%s: the shards have changed: the checkpoint has %lld tokens (checksum %016llx), these have %lld "
                   "(%016llx); the run continues with them",
                   option, (long long)then->tokens, (unsigned long long)then->fingerprint, (long long)now.tokens,
                   (unsigned long long)now.fingerprint);
    *then = now;
}

bool run_path_error(const Options *o, const char *long_name, Error *err) {
    if (!o->begun_in || options_given(o, long_name)) return false;
    char *here = path_working_directory();
    error_set(err, "%s (relative to %s, where the run was begun, and to %s)", err->text, o->begun_in, here);
    free(here);
    return false;
}

// The pattern of the validation shards beside those of -i, malloced; NULL: their names say nothing of validation.
static char *name_beside(const RunSetup *s) {
    char *pattern = shards_validation_pattern(s->options.train_data);
    for (int i = 0; !pattern && i < s->train.count; i++) pattern = shards_validation_pattern(s->train.shards[i].path);
    return pattern;
}

// Those that no -j names: there may be none.
static bool open_beside(RunSetup *s, Error *err) {
    char **names;
    int count = 0;
    s->val_pattern = name_beside(s);
    if (!s->val_pattern)
        return error_set(err, "no train in the name %s for which there could be a val; -j GLOB names validation data",
                         path_quoted(s->options.train_data).text);
    if (!files_match(s->val_pattern, &names, &count, err)) return false;
    directory_list_free(names, count);
    if (count == 0)
        return error_set(err, "no %s beside the training data; -j GLOB names validation data",
                         path_quoted(s->val_pattern).text);
    return shards_open(&s->val, s->val_pattern, s->T, err);
}

// Without -j a run that has no validation data trains, and says so; an evaluation is for them.
static bool open_validation(RunSetup *s, Error *err) {
    const Options *o = &s->options;
    Error why;
    if (o->val_every == 0 || o->interactive) {
        snprintf(s->no_validation, sizeof s->no_validation, o->interactive ? "--interactive" : "-v 0");
        return true;
    }
    if (*o->val_data) {
        options_set_string(&s->val_pattern, o->val_data);
        s->has_val = shards_open(&s->val, o->val_data, s->T, err);
        if (s->has_val) return true;
        run_path_error(o, "val-data", err);
        if (o->max_steps == 0 && !options_given(o, "val-data"))
            error_set(err, "%s; or skip validation with -v 0", err->text);
        return error_prefix(err, "-j");
    }
    s->has_val = open_beside(s, &why);
    if (!s->has_val) snprintf(s->no_validation, sizeof s->no_validation, "%s", why.text);
    return s->has_val || o->max_steps != 0 || error_set(err, "-j: %s, and -v 0 skips validation", why.text);
}

// Training on validation data by their names, without a validation that shows it.
static void advise_of_names(const RunSetup *s) {
    const char *shared, *other;
    char *pattern = name_beside(s);
    ShardSet named = {.eot = -1};
    if (pattern && shards_open(&named, pattern, s->T, NULL)) {
        const int both = shards_in_both(&s->train, &named, &shared, &other);
        if (both > 0)
            run_advise("-i: also matches validation data, which is trained on: %d file%s, such as %s", both,
                       both == 1 ? "" : "s", shared);
        shards_close(&named);
    }
    free(pattern);
}

// Text that is trained on says nothing in a validation, unless that is the question.
static bool check_apart(RunSetup *s, Error *err) {
    const char *shared, *other;
    const int both = s->has_val ? shards_in_both(&s->train, &s->val, &shared, &other) : 0;
    s->val_is_train = both > 0 && both == s->train.count && both == s->val.count;
    if (both == 0) advise_of_names(s);
    if (both == 0 || s->val_is_train) return true;
    char *train = other ? path_numbered(other) : NULL;
    const bool separates = train && fnmatch(train, shared, FNM_PATHNAME) != 0;
    error_set(err,
              "-i %s: would train on validation data (%s): %d file%s, such as %s; name the training data alone%s%s, "
              "or skip validation with -v 0",
              path_quoted(s->options.train_data).text, path_quoted(s->val_pattern).text, both, both == 1 ? "" : "s",
              shared, separates ? ", such as -i " : "", separates ? path_quoted(train).text : "");
    free(train);
    return false;
}

// -i and -j, and with them the vocabulary: new weights that are not trained (-x 0) take that of the data, too.
bool run_data_open(RunSetup *s, Error *err) {
    const Options *o = &s->options;
    s->has_train = o->max_steps != 0;
    if ((s->has_train || s->config.V == 0) && !shards_open(&s->train, o->train_data, s->T, err) &&
        (s->has_train || options_given(o, "train-data")))
        return run_path_error(o, "train-data", err), error_prefix(err, "-i");
    if (!open_validation(s, err) || (s->has_train && !check_apart(s, err))) return false;
    const ShardSet *stated = s->train.count > 0 ? &s->train : s->has_val ? &s->val : NULL;
    const int64_t vocab = stated ? stated->vocab : 0;
    if (s->config.V == 0) model_config_set_vocab(&s->config, vocab > 0 ? vocab : (int64_t)GPT2_VOCAB);
    if (stated && vocab > s->config.V)
        return error_set(err,
                         "%s has tokens of a vocabulary of %lld, but the model has %lld; make the shards with the "
                         "model's tokenizer (%s --tokenizer PATH -o DIR FILE...)",
                         stated->shards[0].path, (long long)vocab, (long long)s->config.V,
                         path_of_tool("data/prepare").text);
    if (s->train.count > 0 && s->has_val && s->val.vocab > 0 && vocab > 0 && s->val.vocab != vocab)
        return error_set(err, "-i and %s were made with different vocabularies: %lld and %lld tokens",
                         *s->options.val_data ? "-j" : path_quoted(s->val_pattern).text, (long long)vocab,
                         (long long)s->val.vocab);
    if (stated && stated->eot >= 0) s->state.eot = stated->eot;
    if (s->has_train) compare_data("-i", &s->train, &s->state.train);
    if (s->has_val) compare_data("-j", &s->val, &s->state.val);
    // One window of each is read now, so that tokens of another vocabulary show before anything is started.
    void *window = malloc((size_t)(s->T + 1) * 4);
    REQUIRE_MEMORY(window, "a window of tokens");
    const bool ok = (!s->has_train || shards_read_window(&s->train, 0, s->config.V, window, err)) &&
                    (!s->has_val || shards_read_window(&s->val, 0, s->config.V, window, err));
    free(window);
    return ok;
}
