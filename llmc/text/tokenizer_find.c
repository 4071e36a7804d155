// See tokenizer_find.h. Data and weights with different tokenizers are refused, because such a run
// would train on tokens with a different meaning: every message names both sides of the mismatch,
// what they have, and what to do.
#include "llmc/text/tokenizer_find.h"

#include "llmc/base/directory.h"
#include "llmc/base/file.h"
#include "llmc/base/files_match.h"
#include "llmc/base/format.h"
#include "llmc/base/path.h"
#include "llmc/base/typed_path.h"
#include "llmc/text/tokenizer_open.h"

#include <stdlib.h>
#include <string.h>

static const char LLMC_TOKENIZER[] = "gpt2_tokenizer.bin";
enum {
    GPT2_TOKENS = 50257,
    MODEL_PADDING = 128, // foreign models may have up to this many tokens more than their tokenizer
};

// The weights and shards that the tokenizer must agree with.
typedef struct {
    const char *weights, *shards; // "" if none
    int64_t vocab, V;
    bool given; // by --tokenizer
} Question;

// ------------------------------------------------------------------------------------------ places

// The directory of a path or of a pattern's first match, or that path itself; malloced; NULL: it
// could not be read.
static char *directory_of(const char *pattern, Error *err) {
    char **names;
    int count;
    if (!files_match(pattern, &names, &count, err)) return NULL;
    const char *path = count > 0 ? names[0] : pattern;
    char *directory = NULL;
    if (tokenizer_is_directory(path))
        directory = strdup(path);
    else
        directory = path_parent(path);
    REQUIRE_MEMORY(directory, "a path");
    directory_list_free(names, count);
    return directory;
}

// Finds the tokenizer next to a path or pattern, malloced; NULL: there is none.
static bool tokenizer_next_to(const char *pattern, char **found, Error *err) {
    char *directory = *pattern ? directory_of(pattern, err) : NULL;
    *found = NULL;
    if (directory) *found = tokenizer_file_in(directory);
    const bool ok = directory || !*pattern;
    free(directory);
    return ok;
}

// --------------------------------------------------------------- agreement with weights and shards

// Refuses foreign weights without a tokenizer whose vocabulary is not that of the shards. A
// difference within the padding is accepted, and our own checkpoints may have any vocabulary.
static bool check_untold(const Question *q, Error *err) {
    if (!*q->weights || q->vocab == 0 || (q->V >= q->vocab && q->V - q->vocab <= MODEL_PADDING))
        return true;
    char *directory = directory_of(q->weights, err);
    if (!directory) return false;
    char *manifest = path_join(directory, "trainer.json");
    const bool ours = file_exists(manifest);
    free(manifest);
    free(directory);
    if (!ours)
        return error_set(err,
                         "%s has a vocabulary of %lld, but the shards %s were made with %lld "
                         "tokens; make them with "
                         "the model's tokenizer (%s --tokenizer PATH -o DIR FILE...)",
                         q->weights, (long long)q->V, q->shards, (long long)q->vocab,
                         path_of_tool("data/prepare").text);
    return true;
}

// Opens the tokenizer at path, or the built-in one of that name, if it agrees with the weights and
// shards.
static bool take_tokenizer(Tokenizer **tokenizer, const Question *q, const char *path, Error *err) {
    Tokenizer *t = tokenizer_named(path, err), *other = NULL;
    if (!t && !q->given) error_prefix(err, "the tokenizer (--tokenizer none runs without one)");
    if (!t) return false;

    const int64_t tokens = tokenizer_vocab(t);
    char *theirs = NULL;
    bool ok = true;

    if (tokens > q->V)
        ok = error_set(err,
                       "%s has %lld tokens, but the model has a vocabulary of %lld; name the "
                       "model's tokenizer "
                       "with --tokenizer",
                       path, (long long)tokens, (long long)q->V);
    else if (q->vocab > 0 && q->vocab != tokens)
        ok = error_set(err,
                       "%s has %lld tokens, but the shards %s were made with %lld; make them with "
                       "this tokenizer "
                       "(%s --tokenizer %s -o DIR FILE...), or name theirs with --tokenizer",
                       path, (long long)tokens, q->shards, (long long)q->vocab,
                       path_of_tool("data/prepare").text, path_quoted(path).text);

    if (ok) ok = tokenizer_next_to(q->shards, &theirs, err);
    if (theirs && strcmp(theirs, path) != 0) ok = (other = tokenizer_open(theirs, err)) != NULL;
    if (other && tokenizer_fingerprint(other) != tokenizer_fingerprint(t))
        ok = error_set(err,
                       "%s: its tokens differ from the tokens of %s; make the shards with it "
                       "(%s --tokenizer %s -o DIR FILE...), or name the tokenizer of the shards "
                       "with --tokenizer%s",
                       path, theirs, path_of_tool("data/prepare").text, path_quoted(path).text,
                       *q->weights ? " and train new weights" : "");

    free(theirs);
    tokenizer_free(other);

    if (ok)
        *tokenizer = t;
    else
        tokenizer_free(t);
    return ok;
}

// ------------------------------------------------------------------------------------------ search

bool tokenizer_find(Tokenizer **tokenizer, const char *given, const char *weights,
                    const char *shards, int64_t vocab, int64_t V, Error *err) {
    const Question q = {.weights = weights ? weights : "",
                        .shards = shards ? shards : "",
                        .vocab = vocab,
                        .V = V,
                        .given = given && *given};

    *tokenizer = NULL;
    if (given && strcmp(given, "none") == 0) return true;
    if (given && *given) {
        if (take_tokenizer(tokenizer, &q, given, err)) return true;
        return error_prefix(err, "--tokenizer");
    }

    char *found;
    if (!tokenizer_next_to(q.weights, &found, err)) return false;
    if (!found && (!check_untold(&q, err) || !tokenizer_next_to(q.shards, &found, err)))
        return false;
    if (found) {
        const bool ok = take_tokenizer(tokenizer, &q, found, err);
        free(found);
        return ok;
    }

    // Nothing names one: the size of the vocabulary suggests it.
    if (vocab > 0 && vocab != V) return true;
    if (V == BYTE_VOCAB) return (*tokenizer = tokenizer_bytes(err)) != NULL;
    return V != GPT2_TOKENS || !file_exists(LLMC_TOKENIZER) ||
           take_tokenizer(tokenizer, &q, LLMC_TOKENIZER, err);
}
