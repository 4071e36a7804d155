// The vocabulary: building one and looking tokens up; the properties of a Tokenizer, and which reader opens a file; the
// tokenizer of given weights and shards. Data and weights with different tokenizers are refused, because such a run
// would train on tokens with a different meaning: every message names both sides of the mismatch, what they have, and
// what to do. See tokenizer.h.
#include "llmc/text/tokenizer.h"

#include "llmc/base/directory.h"
#include "llmc/base/file.h"
#include "llmc/base/files_match.h"
#include "llmc/base/foreign_file.h"
#include "llmc/base/path.h"
#include "llmc/base/typed_path.h"
#include "llmc/text/tokenizer_internal.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>

// ---------------------------------------------------------------------------------------------------------- vocabulary

enum { SHOWN = 80 }; // bytes of a spelling in a message

const char *vocabulary_show(const char *bytes, size_t length, char *buf, size_t size) {
    size_t used = 0;
    for (size_t i = 0; i < length && used + 5 < size; i++) {
        unsigned char c = (unsigned char)bytes[i];
        used += (size_t)snprintf(buf + used, size - used, c >= 0x20 && c < 0x7F ? "%c" : "\\x%02x", c);
    }
    buf[used] = '\0';
    return buf;
}

Tokenizer *vocabulary_new(const char *name, Error *err) {
    Tokenizer *t = calloc(1, sizeof *t);
    if (t) t->name = strdup(name), t->eot = -1;
    if (t && t->name) return t;
    tokenizer_free(t);
    error_set(err, "out of memory for a tokenizer");
    return NULL;
}

void tokenizer_free(Tokenizer *t) {
    if (!t) return;
    merge_table_free(&t->merges);
    free(t->name);
    free(t->tokens);
    free(t->bytes);
    free(t->by_bytes);
    free(t->added_tokens);
    free(t->char_table);
    free(t);
}

// ---------------------------------------------------------------------------------------------------- bytes -> token

static uint64_t slot_of(const Tokenizer *t, const char *bytes, size_t length) {
    return XXH3_64bits(bytes, length) & (uint64_t)(t->by_bytes_capacity - 1);
}

int32_t vocabulary_find(const Tokenizer *t, const char *bytes, size_t length) {
    if (t->by_bytes_capacity == 0 || length > MAX_TOKEN_BYTES) return -1;
    for (uint64_t i = slot_of(t, bytes, length);; i = (i + 1) & (uint64_t)(t->by_bytes_capacity - 1)) {
        int32_t token = t->by_bytes[i];
        if (token < 0) return -1;
        const Token *known = &t->tokens[token];
        if (known->length == length && memcmp(t->bytes + known->offset, bytes, length) == 0) return token;
    }
}

static void index_token(Tokenizer *t, int32_t token) {
    const Token *k = &t->tokens[token];
    uint64_t i = slot_of(t, t->bytes + k->offset, k->length);
    while (t->by_bytes[i] >= 0) i = (i + 1) & (uint64_t)(t->by_bytes_capacity - 1);
    t->by_bytes[i] = token;
}

static bool index_grow(Tokenizer *t, Error *err) {
    int64_t capacity = t->by_bytes_capacity ? 2 * t->by_bytes_capacity : 1024;
    int32_t *grown = realloc(t->by_bytes, (size_t)capacity * sizeof *grown);
    if (!grown) return error_set(err, "out of memory for %lld tokens", (long long)capacity / 2);
    memset(grown, 0xFF, (size_t)capacity * sizeof *grown);
    t->by_bytes = grown, t->by_bytes_capacity = capacity;
    for (int32_t i = 0; i < t->count; i++)
        if (t->tokens[i].ordinary) index_token(t, i);
    return true;
}

// ------------------------------------------------------------------------------------------------------------- tokens

static bool room_for(Tokenizer *t, int64_t number, size_t length, Error *err) {
    if (number >= t->token_capacity) {
        int64_t capacity = number < 512 ? 1024 : 2 * number;
        // Pages of zeros that are not touched cost nothing: a file may name a far number.
        Token *grown = calloc((size_t)capacity, sizeof *grown);
        if (!grown) return error_set(err, "out of memory for token %lld", (long long)number);
        if (t->count > 0) memcpy(grown, t->tokens, (size_t)t->count * sizeof *grown);
        free(t->tokens);
        t->tokens = grown, t->token_capacity = (int32_t)capacity;
    }
    if (t->byte_count + length > t->byte_capacity) {
        size_t capacity = 2 * t->byte_capacity + length + 4096;
        char *grown = realloc(t->bytes, capacity);
        if (!grown) return error_set(err, "out of memory for the spelling of token %lld", (long long)number);
        t->bytes = grown, t->byte_capacity = capacity;
    }
    return true;
}

static bool check_new(const Tokenizer *t, int64_t number, const char *bytes, size_t length, bool ordinary, Error *err) {
    int32_t same = ordinary ? vocabulary_find(t, bytes, length) : -1;
    bool taken = number >= 0 && number < t->count && t->tokens[number].known;
    if (number >= 0 && number < MAX_TOKENS && length > 0 && length <= MAX_TOKEN_BYTES && !taken && same < 0)
        return true;
    char shown[SHOWN], other[SHOWN];
    vocabulary_show(bytes, length, shown, sizeof shown);
    if (number < 0 || number >= MAX_TOKENS)
        return error_set(err, "\"%s\" has number %lld, expected 0 to %d", shown, (long long)number, MAX_TOKENS - 1);
    if (length == 0) return error_set(err, "token %lld is empty", (long long)number);
    if (length > MAX_TOKEN_BYTES)
        return error_set(err, "token %lld (\"%.20s...\") has %zu bytes, expected at most %d", (long long)number, shown,
                         length, MAX_TOKEN_BYTES);
    if (same >= 0) return error_set(err, "\"%s\" is both token %d and token %lld", shown, same, (long long)number);
    const Token *k = &t->tokens[number];
    return error_set(err, "\"%s\" and \"%s\" both have number %lld",
                     vocabulary_show(t->bytes + k->offset, k->length, other, sizeof other), shown, (long long)number);
}

bool vocabulary_add(Tokenizer *t, int64_t number, const char *bytes, size_t length, bool ordinary, Error *err) {
    if (!check_new(t, number, bytes, length, ordinary, err) || !room_for(t, number, length, err)) return false;
    if (ordinary && 2 * (t->ordinary_count + 1) > t->by_bytes_capacity && !index_grow(t, err)) return false;
    memcpy(t->bytes + t->byte_count, bytes, length);
    t->tokens[number] =
        (Token){.offset = t->byte_count, .length = (uint32_t)length, .known = true, .ordinary = ordinary};
    t->byte_count += length;
    if (number >= t->count) t->count = (int32_t)number + 1;
    if (!ordinary) return true;
    t->ordinary_count++;
    index_token(t, (int32_t)number);
    return true;
}

bool vocabulary_add_added(Tokenizer *t, int64_t number, const char *text, bool special, bool normalized, Error *err) {
    size_t length = strlen(text);
    bool known = number >= 0 && number < t->count && t->tokens[number].known;
    if (known) {
        const Token *k = &t->tokens[number];
        if (k->length != length || memcmp(t->bytes + k->offset, text, length) != 0 || k->added)
            return check_new(t, number, text, length, false, err); // names the two that have this number
    } else if (!vocabulary_add(t, number, text, length, false, err)) {
        return false;
    }
    Token *token = &t->tokens[number];
    token->added = true, token->special = special, token->normalized = normalized;
    if (strcmp(text, END_OF_TEXT) == 0) t->eot = (int32_t)number;
    return true;
}

// ------------------------------------------------------------------------------------------------------------- merges

bool vocabulary_merge(Tokenizer *t, int32_t left, int32_t right, uint32_t rank, Error *err) {
    const Token *a = &t->tokens[left], *b = &t->tokens[right];
    char both[2 * MAX_TOKEN_BYTES], shown[SHOWN];
    memcpy(both, t->bytes + a->offset, a->length);
    memcpy(both + a->length, t->bytes + b->offset, b->length);
    size_t length = (size_t)a->length + b->length;
    int32_t merged = vocabulary_find(t, both, length);
    if (merged < 0)
        return error_set(err, "together they are \"%s\", which is not a token",
                         vocabulary_show(both, length, shown, sizeof shown));
    const MergeRule *known;
    MergeRule rule = {.pair = merge_pair(left, right), .rank = rank, .merged = merged};
    if (merge_table_add(&t->merges, rule, &known, err)) return true;
    return known && error_set(err, "the same two were merged before, by number %u", known->rank);
}

bool vocabulary_merge_by_rank(Tokenizer *t, Error *err) {
    t->whole_pieces = t->by_rank = true;
    for (int32_t token = 0; token < t->count; token++) {
        const Token *k = &t->tokens[token];
        const char *bytes = t->bytes + k->offset;
        for (uint32_t cut = 1; k->ordinary && cut < k->length; cut++) {
            int32_t left = vocabulary_find(t, bytes, cut);
            int32_t right = left < 0 ? -1 : vocabulary_find(t, bytes + cut, k->length - cut);
            if (right >= 0 && !vocabulary_merge(t, left, right, (uint32_t)token, err)) return false;
        }
    }
    return true;
}

// ----------------------------------------------------------------------------------------------------------- the whole

static bool check_complete(Tokenizer *t, Error *err) {
    for (int32_t i = 0; i < t->count; i++)
        if (!t->tokens[i].known)
            return error_set(err, "no token has number %d, expected each of 0 to %d once", i, t->count - 1);
    for (int byte = 0; byte < 256; byte++) {
        t->byte_tokens[byte] = vocabulary_find(t, &(char){(char)byte}, 1);
        if (t->byte_tokens[byte] < 0)
            return error_set(err, "no token for the byte 0x%02x: not a byte-level vocabulary, which has all 256",
                             (unsigned)byte);
    }
    return true;
}

// Special tokens that a vocab.json does not mark: <s>, [PAD].
static bool looks_special(const char *bytes, size_t length) {
    const char last = bytes[length - 1];
    return (bytes[0] == '<' && last == '>') || (bytes[0] == '[' && last == ']');
}

// Would one more merge make this token? Those of the tokens before it, rules of rank < below, leave two parts of it.
static bool lacks_merge(const Tokenizer *t, const Token *k, uint32_t below) {
    int32_t parts[MAX_TOKEN_BYTES];
    for (uint32_t i = 0; i < k->length; i++) parts[i] = t->byte_tokens[(unsigned char)t->bytes[k->offset + i]];
    return merge_tokens(&t->merges, parts, k->length, below, 1) == 2;
}

bool vocabulary_check_merges(const Tokenizer *t, Error *err) {
    uint32_t *rank = malloc(((size_t)t->count + 1) * sizeof *rank); // of the first merge that makes a token
    if (!rank) return error_set(err, "out of memory for %d tokens", t->count);
    for (int32_t i = 0; i <= t->count; i++) rank[i] = UINT32_MAX;
    for (int64_t i = 0; i < t->merges.capacity; i++) {
        const MergeRule *m = &t->merges.slots[i];
        if (m->pair != MERGE_NO_PAIR && m->rank < rank[m->merged]) rank[m->merged] = m->rank;
    }
    int32_t missing = 0, first = -1;
    uint32_t below = UINT32_MAX; // the first rank of a merge that makes a later token
    for (int32_t i = t->count - 1; i >= 0; i--) {
        const Token *k = &t->tokens[i];
        const bool made = rank[i] < UINT32_MAX;
        if (rank[i] < below) below = rank[i];
        if (made || !k->ordinary || k->added || k->length == 1 || looks_special(t->bytes + k->offset, k->length))
            continue;
        if (t->whole_pieces && !lacks_merge(t, k, below)) continue; // only a whole piece becomes it
        missing++, first = i;
    }
    free(rank);
    if (missing == 0) return true;
    char shown[SHOWN];
    const Token *k = &t->tokens[first];
    return error_set(
        err,
        "no merge makes %d of the %d tokens, such as \"%s\" (token %d): the merges are truncated, or belong "
        "to another vocabulary",
        missing, t->count, vocabulary_show(t->bytes + k->offset, k->length, shown, sizeof shown), first);
}

// The order of added_tokens: of two that begin at the same place of a text, the longer one is found first.
static int compare_added(const void *a, const void *b, void *tokenizer) {
    const Tokenizer *t = tokenizer;
    const Token *x = &t->tokens[*(const int32_t *)a], *y = &t->tokens[*(const int32_t *)b];
    int first = (unsigned char)t->bytes[x->offset] - (unsigned char)t->bytes[y->offset];
    if (first != 0) return first;
    if (x->length != y->length) return x->length > y->length ? -1 : 1;
    return *(const int32_t *)a - *(const int32_t *)b;
}

static bool sort_added(Tokenizer *t, Error *err) {
    t->added_tokens = malloc(((size_t)t->count + 1) * sizeof *t->added_tokens);
    if (!t->added_tokens) return error_set(err, "out of memory for the added tokens");
    size_t n = 0;
    t->all_added_special = true;
    for (int32_t i = 0; i < t->count; i++) {
        if (!t->tokens[i].added) continue;
        t->added_tokens[n++] = i;
        t->all_added_special &= t->tokens[i].special;
    }
    qsort_r(t->added_tokens, n, sizeof *t->added_tokens, compare_added, t);
    for (size_t i = 0; i < n; i++)
        t->added_begin[(unsigned char)t->bytes[t->tokens[t->added_tokens[i]].offset] + 1] = (int32_t)i + 1;
    for (int byte = 1; byte <= 256; byte++) // bytes without an added token: an empty range
        if (t->added_begin[byte] < t->added_begin[byte - 1]) t->added_begin[byte] = t->added_begin[byte - 1];
    return true;
}

bool vocabulary_finish(Tokenizer *t, Error *err) {
    int32_t eot = vocabulary_find(t, END_OF_TEXT, strlen(END_OF_TEXT));
    if (t->eot < 0 && eot >= 0) { // a vocab.json does not mark special tokens
        t->tokens[eot].added = t->tokens[eot].special = true;
        t->eot = eot;
    }
    if (!check_complete(t, err) || !sort_added(t, err)) return false;
    t->char_table = pieces_char_table(err);
    return t->char_table != NULL;
}

// ----------------------------------------------------------------------------------------------------------- tokenizer

enum { LLMC_MAGIC = 20240328 };

Tokenizer *tokenizer_bytes(Error *err) {
    Tokenizer *t = vocabulary_new("bytes", err);
    bool ok = t != NULL;
    for (int i = 0; ok && i < BYTE_EOT; i++) ok = vocabulary_add(t, i, &(char){(char)i}, 1, true, err);
    if (ok && vocabulary_add_added(t, BYTE_EOT, END_OF_TEXT, true, false, err) && vocabulary_finish(t, err)) return t;
    tokenizer_free(t);
    return NULL;
}

int64_t tokenizer_vocab(const Tokenizer *t) { return t->count; }
int32_t tokenizer_eot(const Tokenizer *t) { return t->eot; }
const char *tokenizer_name(const Tokenizer *t) { return t->name; }
bool tokenizer_is_special(const Tokenizer *t, int32_t token) {
    return token >= 0 && token < t->count && t->tokens[token].special;
}

const char *tokenizer_decode(const Tokenizer *t, int32_t token, size_t *length) {
    bool known = token >= 0 && token < t->count;
    *length = known ? t->tokens[token].length : 0;
    return known ? t->bytes + t->tokens[token].offset : "";
}

uint64_t tokenizer_fingerprint(const Tokenizer *t) {
    XXH3_state_t *hash = XXH3_createState();
    REQUIRE_MEMORY(hash, "a hash");
    XXH3_64bits_reset(hash);
    for (int32_t i = 0; i < t->count; i++) {
        size_t length;
        const char *bytes = tokenizer_decode(t, i, &length);
        uint32_t head[2] = {(uint32_t)i, (uint32_t)length};
        XXH3_64bits_update(hash, head, sizeof head);
        XXH3_64bits_update(hash, bytes, length);
    }
    uint64_t fingerprint = XXH3_64bits_digest(hash);
    XXH3_freeState(hash);
    return fingerprint;
}

// ---------------------------------------------------------------------------------------------------------- opening

// Names the kind of file before any complaint about its size: weights are large.
static bool check_head(const char *path, Error *err) {
    int64_t size;
    const int fd = file_open(path, &size, err);
    if (fd < 0) return false;
    uint32_t magic = 0;
    const bool is_llmc =
        size >= (int64_t)sizeof magic && file_read_at(fd, path, 0, &magic, sizeof magic, NULL) && magic == LLMC_MAGIC;
    const bool ok = is_llmc || foreign_file_check_open("a tokenizer", path, fd, true, err);
    close(fd);
    return ok;
}

static Tokenizer *open_file(const char *path, Error *err) {
    size_t n;
    char *text = check_head(path, err) ? file_read_all(path, MAX_TOKENIZER_BYTES, &n, err) : NULL;
    if (!text) return NULL;
    uint32_t magic = 0;
    if (n >= sizeof magic) memcpy(&magic, text, sizeof magic);
    const bool is_object = text[strspn(text, " \t\r\n")] == '{';
    Tokenizer *t = magic == LLMC_MAGIC ? tokenizer_read_llmc(path, text, n, err)
                   : is_object         ? tokenizer_read_json(path, text, n, err)
                                       : tokenizer_read_ranks(path, text, n, err);
    free(text);
    if (!t || !is_object || tokenizer_check_settings(t, path, err)) return t;
    tokenizer_free(t);
    return NULL;
}

static bool is_directory(const char *path) {
    struct stat st;
    return stat(path, &st) == 0 && S_ISDIR(st.st_mode);
}

// The file in a directory that is a tokenizer, malloced; NULL: there is none.
static char *file_in(const char *directory) {
    static const char *const names[] = {"tokenizer.json", "vocab.json", "encoder.json"};
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        char *path = path_join(directory, names[i]);
        if (file_exists(path)) return path;
        free(path);
    }
    return NULL;
}

Tokenizer *tokenizer_open(const char *path, Error *err) {
    if (!is_directory(path)) return open_file(path, err);
    char *file = file_in(path);
    Tokenizer *t = file ? open_file(file, err) : NULL;
    if (!file)
        error_set(err,
                  "%s: no tokenizer in this directory, expected tokenizer.json, or vocab.json and merges.txt, or "
                  "encoder.json and vocab.bpe",
                  path);
    free(file);
    return t;
}

Tokenizer *tokenizer_named(const char *name, Error *err) {
    return strcmp(name, "bytes") == 0 ? tokenizer_bytes(err) : tokenizer_open(name, err);
}

// ------------------------------------------------------------------------------- finding the one of weights and shards

static const char LLMC_TOKENIZER[] = "gpt2_tokenizer.bin";
enum {
    GPT2_TOKENS = 50257,
    MODEL_PADDING = 128, // foreign models may have up to this many tokens more than their tokenizer
};

// What the tokenizer must agree with.
typedef struct {
    const char *weights, *shards; // "" if none
    int64_t vocab, V;
    bool given; // by --tokenizer
} Question;

// ------------------------------------------------------------------------------------------------------ where to look

// The directory of a path or of a pattern's first match, or that path itself; malloced; NULL: it could not be read.
static char *directory_of(const char *pattern, Error *err) {
    char **names;
    int count;
    if (!files_match(pattern, &names, &count, err)) return NULL;
    const char *path = count > 0 ? names[0] : pattern;
    char *directory = is_directory(path) ? strdup(path) : path_parent(path);
    REQUIRE_MEMORY(directory, "a path");
    directory_list_free(names, count);
    return directory;
}

// *found: the tokenizer next to a path or pattern, malloced; NULL: there is none.
static bool tokenizer_next_to(const char *pattern, char **found, Error *err) {
    char *directory = *pattern ? directory_of(pattern, err) : NULL;
    *found = directory ? file_in(directory) : NULL;
    const bool ok = directory || !*pattern;
    free(directory);
    return ok;
}

// ------------------------------------------------------------------------------------------------- does it fit to them

// The error when the data has other tokens than the tokenizer at path.
static bool wrong_data(const Question *q, const char *path, const char *what, Error *err) {
    return error_set(err,
                     "%s: its tokens differ from the tokens of %s; make the shards with it "
                     "(%s --tokenizer %s -o DIR FILE...), or name the tokenizer of the shards with --tokenizer%s",
                     path, what, path_of_tool("data/prepare").text, path_quoted(path).text,
                     *q->weights ? " and train new weights" : "");
}

static bool check_against_shards(const Question *q, const char *path, const Tokenizer *t, Error *err) {
    char *theirs;
    bool ok = tokenizer_next_to(q->shards, &theirs, err);
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
                         "%s has %lld tokens, but the model has a vocabulary of %lld; name the model's tokenizer "
                         "with --tokenizer",
                         path, (long long)tokens, (long long)q->V);
    if (q->vocab > 0 && q->vocab != tokens)
        return error_set(err,
                         "%s has %lld tokens, but the shards %s were made with %lld; make them with this tokenizer "
                         "(%s --tokenizer %s -o DIR FILE...), or name theirs with --tokenizer",
                         path, (long long)tokens, q->shards, (long long)q->vocab, path_of_tool("data/prepare").text,
                         path_quoted(path).text);
    return check_against_shards(q, path, t, err);
}

// Foreign weights come without a tokenizer, and the shards state a vocabulary of another size. A difference within the
// padding is accepted, and our own checkpoints may have any vocabulary that was asked for.
static bool check_untold(const Question *q, Error *err) {
    if (!*q->weights || q->vocab == 0 || (q->V >= q->vocab && q->V - q->vocab <= MODEL_PADDING)) return true;
    char *directory = directory_of(q->weights, err);
    if (!directory) return false;
    char *manifest = path_join(directory, "trainer.json");
    const bool ours = file_exists(manifest);
    free(manifest);
    free(directory);
    return ours ||
           error_set(err,
                     "%s has a vocabulary of %lld, but the shards %s were made with %lld tokens; make them with "
                     "the model's tokenizer (%s --tokenizer PATH -o DIR FILE...)",
                     q->weights, (long long)q->V, q->shards, (long long)q->vocab, path_of_tool("data/prepare").text);
}

// ------------------------------------------------------------------------------------------------------------- finding

// Opens the tokenizer at path, or the built-in one of that name, if it agrees with the weights and shards.
static bool take(Tokenizer **tokenizer, const Question *q, const char *path, Error *err) {
    Tokenizer *t = tokenizer_named(path, err);
    if (!t && !q->given) error_prefix(err, "the tokenizer (--tokenizer none runs without one)");
    if (!t) return false;
    if (check_tokenizer(q, path, t, err)) {
        *tokenizer = t;
        return true;
    }
    tokenizer_free(t);
    return false;
}

// The tokenizer that the size of the vocabulary suggests when nothing names one.
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
    if (!tokenizer_next_to(q.weights, &found, err)) return false;
    if (!found && (!check_untold(&q, err) || !tokenizer_next_to(q.shards, &found, err))) return false;
    const bool ok = found ? take(tokenizer, &q, found, err) : take_usual(tokenizer, &q, err);
    free(found);
    return ok;
}
