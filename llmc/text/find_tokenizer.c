// See find_tokenizer.h. Every message names both sides of a mismatch, what they have, and what to do.
#include "llmc/text/find_tokenizer.h"

#include "llmc/base/atomic_file.h"
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

static const char LLMC_TOKENIZER[] = "gpt2_tokenizer.bin";
enum {
    GPT2_TOKENS = 50257,
    MODEL_PADDING = 128, // models of others may have up to this many tokens more than their tokenizer
};

// Who asks, and what it has to agree with.
typedef struct {
    const char *weights, *shards; // "" if none
    int64_t vocab, V;
    bool given; // by --tokenizer
} Question;

// ------------------------------------------------------------------------------------------------------ where to look

static bool is_directory(const char *path) {
    struct stat st;
    return stat(path, &st) == 0 && S_ISDIR(st.st_mode);
}

// The directory that a path or the first match of a pattern is, or is in; malloced; NULL: it could not be found out.
static char *directory_of(const char *pattern, Error *err) {
    char **names;
    int count;
    if (!files_match(pattern, &names, &count, err)) return NULL;
    char *path = strdup(count > 0 ? names[0] : pattern);
    REQUIRE_MEMORY(path != NULL, "a path");
    directory_list_free(names, count);
    if (is_directory(path)) return path;
    char *slash = strrchr(path, '/');
    if (!slash) {
        free(path);
        path = strdup(".");
        REQUIRE_MEMORY(path != NULL, "a path");
    } else {
        slash[slash == path] = '\0';
    }
    return path;
}

// *found: the tokenizer beside a path or pattern, malloced; NULL: there is none.
static bool tokenizer_beside(const char *pattern, char **found, Error *err) {
    static const char *const names[] = {"tokenizer.json", "vocab.json", "encoder.json"};
    *found = NULL;
    if (!*pattern) return true;
    char *directory = directory_of(pattern, err);
    if (!directory) return false;
    for (size_t i = 0; !*found && i < sizeof names / sizeof names[0]; i++) {
        char *path = path_join(directory, names[i]);
        if (file_exists(path))
            *found = path;
        else
            free(path);
    }
    free(directory);
    return true;
}

// ------------------------------------------------------------------------------------------------- does it fit to them

// What can be done when the data has other tokens than the tokenizer at path.
static bool wrong_data(const Question *q, const char *path, const char *what, Error *err) {
    return error_set(err,
                     "%s: tokens mean something else to this tokenizer than to %s: make the shards with it "
                     "(data/prepare --tokenizer %s), or name the tokenizer of the shards with --tokenizer%s",
                     path, what, path, *q->weights ? " and train new weights" : "");
}

static bool check_against_shards(const Question *q, const char *path, const Tokenizer *t, Error *err) {
    char *theirs;
    bool ok = tokenizer_beside(q->shards, &theirs, err);
    if (theirs && strcmp(theirs, path) != 0) {
        Tokenizer *other = tokenizer_open(theirs, err);
        ok = other != NULL;
        if (other && tokenizer_fingerprint(other) != tokenizer_fingerprint(t)) ok = wrong_data(q, path, theirs, err);
        tokenizer_free(other);
    }
    free(theirs);
    return ok;
}

static bool check_tokenizer(const Question *q, const char *path, const Tokenizer *t, Error *err) {
    const int64_t tokens = tokenizer_vocab(t);
    if (tokens > q->V)
        return error_set(err,
                         "%s has %lld tokens, the model has a vocabulary of %lld: it is not the model's tokenizer; "
                         "name that one with --tokenizer",
                         path, (long long)tokens, (long long)q->V);
    if (q->vocab > 0 && q->vocab != tokens)
        return error_set(err,
                         "%s has %lld tokens, the shards %s were made with %lld: make them with this tokenizer "
                         "(data/prepare --tokenizer %s), or name theirs with --tokenizer",
                         path, (long long)tokens, q->shards, (long long)q->vocab, path);
    return check_against_shards(q, path, t, err);
}

// Weights of others come without a tokenizer, and the shards say that they were made with one of another size. A
// difference within the padding is none, and our own checkpoints may have any vocabulary that was asked for.
static bool check_untold(const Question *q, Error *err) {
    if (!*q->weights || q->vocab == 0 || (q->V >= q->vocab && q->V - q->vocab <= MODEL_PADDING)) return true;
    char *directory = directory_of(q->weights, err);
    if (!directory) return false;
    char *manifest = path_join(directory, "trainer.json");
    const bool ours = file_exists(manifest);
    free(manifest);
    free(directory);
    return ours || error_set(err,
                             "%s has a vocabulary of %lld, the shards %s were made with %lld tokens: make them with "
                             "the model's tokenizer (data/prepare --tokenizer PATH)",
                             q->weights, (long long)q->V, q->shards, (long long)q->vocab);
}

// ------------------------------------------------------------------------------------------------------------- finding

// Opens the tokenizer at path, or the built-in one of that name, if it agrees with the question.
static bool take(Tokenizer **tokenizer, const Question *q, const char *path, Error *err) {
    Tokenizer *t = strcmp(path, "bytes") == 0 ? tokenizer_bytes(err) : tokenizer_open(path, err);
    if (!t && !q->given) error_prefix(err, "the tokenizer (--tokenizer none goes on without one)");
    if (!t) return false;
    if (check_tokenizer(q, path, t, err)) {
        *tokenizer = t;
        return true;
    }
    tokenizer_free(t);
    return false;
}

// What nobody says, but the size of the vocabulary suggests.
static bool take_usual(Tokenizer **tokenizer, const Question *q, Error *err) {
    const bool agrees = q->vocab == 0 || q->vocab == q->V;
    if (q->V == BYTE_VOCAB && agrees) return (*tokenizer = tokenizer_bytes(err)) != NULL;
    if (q->V == GPT2_TOKENS && agrees && file_exists(LLMC_TOKENIZER)) return take(tokenizer, q, LLMC_TOKENIZER, err);
    return true;
}

bool tokenizer_find(Tokenizer **tokenizer, const char *given, const char *weights, const char *shards, int64_t vocab,
                    int64_t V, Error *err) {
    const Question q = {.weights = weights ? weights : "",
                        .shards = shards ? shards : "",
                        .vocab = vocab,
                        .V = V,
                        .given = given && *given};
    *tokenizer = NULL;
    if (given && strcmp(given, "none") == 0) return true;
    if (given && *given) return take(tokenizer, &q, given, err) || error_prefix(err, "--tokenizer");
    char *found;
    if (!tokenizer_beside(q.weights, &found, err)) return false;
    if (!found && (!check_untold(&q, err) || !tokenizer_beside(q.shards, &found, err))) return false;
    const bool ok = found ? take(tokenizer, &q, found, err) : take_usual(tokenizer, &q, err);
    free(found);
    return ok;
}
