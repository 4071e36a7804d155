// The output directory of a corpus. Everything is made in DIR/.tmp-prepare and moved into DIR when all of it is whole,
// so that no half corpus is there under final names. The lock is flock(2) on the directory itself: it goes with the
// process, however that ends.
//
// The journal is a small JSON file next to the unfinished shards, written after what it counts is on the disk: a later
// run of the same job reads it and resumes there. The numbers of the state are listed once, by name, for both
// directions. Of the request the parts are compared one by one, so that a refusal can say what has changed. A journal
// that does not hold together is refused, and the run starts over.
//
// The manifest states what the shards were made from, and no times: the same run gives the same file. doc/data.md lists
// its fields. Counts are exact up to 2^53, checksums are hexadecimal digits in strings.
#include "llmc/text/corpus_internal.h"

#include "llmc/base/atomic_file.h"
#include "llmc/base/json.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <unistd.h>

// ---------------------------------------------------------------------------------------------------- output directory

bool corpus_output_claim(CorpusOutput *o, const char *directory, Error *err) {
    *o = (CorpusOutput){.directory = directory, .staging = path_join(directory, ".tmp-prepare"), .lock = -1};
    o->existing = directory_existing(directory);
    o->journal = path_join(o->staging, "journal.json");
    o->spool = path_join(o->staging, "stdin");
    if (!directory_make(directory, err)) return false;
    int lock = open(directory, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (lock < 0) return error_set(err, "%s: cannot open the directory: %s", directory, strerror(errno));
    if (flock(lock, LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK) { // other errors: no locks on this file system
        close(lock);
        return error_set(err, "%s: another data/prepare is writing there", directory);
    }
    o->lock = lock;
    return directory_make(o->staging, err);
}

void corpus_output_release(CorpusOutput *o) {
    if (o->lock >= 0) close(o->lock);
    free(o->staging), free(o->journal), free(o->spool);
}

bool corpus_output_discard(const CorpusOutput *o, Error *err) {
    return !file_exists(o->staging) || directory_remove(o->staging, err);
}

bool corpus_output_clear(const CorpusOutput *o, Error *err) {
    return corpus_output_discard(o, err) && directory_make(o->staging, err);
}

static int is_shard(const struct dirent *entry) { return is_corpus_shard(entry->d_name); }
static int is_train_shard(const struct dirent *entry) { return is_shard(entry) && entry->d_name[0] == 't'; }
static int is_val_shard(const struct dirent *entry) { return is_shard(entry) && entry->d_name[0] == 'v'; }

bool corpus_output_refuse_old(const CorpusOutput *o, Error *err) {
    struct dirent **old;
    int n = scandir(o->directory, &old, is_shard, alphasort);
    if (n < 0) return error_set(err, "%s: cannot list the directory: %s", o->directory, strerror(errno));
    if (n > 0) {
        error_set(err, "%s: has %d shard%s of an earlier run (%s...); --force replaces them", o->directory, n,
                  n == 1 ? "" : "s", old[0]->d_name);
    }
    for (int i = 0; i < n; i++) free(old[i]);
    free(old);
    return n == 0;
}

static bool move_file(const char *from, const char *to, const char *name, Error *err) {
    char *source = path_join(from, name), *target = path_join(to, name);
    bool ok = rename(source, target) == 0 || errno == ENOENT || // it was moved before an interruption
              error_set(err, "%s: cannot move into place: %s", source, strerror(errno));
    free(source), free(target);
    return ok;
}

static bool remove_file(const char *directory, const char *name, Error *err) {
    char *path = path_join(directory, name);
    bool ok = unlink(path) == 0 || errno == ENOENT || error_set(err, "%s: cannot remove: %s", path, strerror(errno));
    free(path);
    return ok;
}

// Moves the files of `from` that the filter takes into `to`, by name; to NULL: removes them.
static bool each_file(const char *from, const char *to, int (*filter)(const struct dirent *), Error *err) {
    struct dirent **list;
    int n = scandir(from, &list, filter, alphasort);
    if (n < 0) return error_set(err, "%s: cannot list the directory: %s", from, strerror(errno));
    bool ok = true;
    for (int i = 0; i < n; i++) {
        if (ok) ok = to ? move_file(from, to, list[i]->d_name, err) : remove_file(from, list[i]->d_name, err);
        free(list[i]);
    }
    free(list);
    return ok;
}

bool corpus_output_remove_old(const CorpusOutput *o, Error *err) {
    return remove_file(o->directory, "manifest.json", err) && each_file(o->directory, NULL, is_val_shard, err) &&
           each_file(o->directory, NULL, is_train_shard, err);
}

bool corpus_output_move_new(const CorpusOutput *o, Error *err) {
    bool ok = each_file(o->staging, o->directory, is_train_shard, err) &&
              move_file(o->staging, o->directory, "tokenizer.json", err) &&
              each_file(o->staging, o->directory, is_val_shard, err) &&
              move_file(o->staging, o->directory, "manifest.json", err);
    if (!ok) return false;
    fsync(o->lock);
    return corpus_output_discard(o, err);
}

// ------------------------------------------------------------------------------------------------------------- journal

enum { JOURNAL_FORMAT = 1, MAX_JOURNAL_BYTES = 64 << 20 };

static const char *const phase_names[CORPUS_PHASES] = {"encode", "replace", "move"};

// 64 bits do not fit into a JSON number: hexadecimal digits in a string.
static void add_hex(cJSON *object, const char *key, uint64_t value) {
    char text[20];
    snprintf(text, sizeof text, "%016" PRIx64, value);
    cJSON_AddStringToObject(object, key, text);
}

static void add_int(cJSON *object, const char *key, int64_t value) {
    cJSON_AddNumberToObject(object, key, (double)value);
}

// ------------------------------------------------------------------------------------------------------------- request

cJSON *corpus_tokenizer_json(const Tokenizer *t) {
    cJSON *tokenizer = cJSON_CreateObject();
    cJSON_AddStringToObject(tokenizer, "name", tokenizer_name(t));
    add_hex(tokenizer, "fingerprint", tokenizer_fingerprint(t));
    add_int(tokenizer, "vocab", tokenizer_vocab(t));
    add_int(tokenizer, "eot", tokenizer_eot(t));
    return tokenizer;
}

cJSON *corpus_request_json(const CorpusRequest *r) {
    static const char *const formats[] = {
        [FORMAT_BY_NAME] = "by name", [FORMAT_TEXT] = "txt", [FORMAT_LINES] = "jsonl"};
    cJSON *request = cJSON_CreateObject();
    cJSON *tokenizer = cJSON_AddObjectToObject(request, "tokenizer"); // by what it does: its path may change
    if (r->tokenizer) add_hex(tokenizer, "fingerprint", tokenizer_fingerprint(r->tokenizer));
    if (!r->tokenizer) add_int(tokenizer, "train", r->vocab);
    cJSON *options = cJSON_AddObjectToObject(request, "options");
    cJSON_AddNumberToObject(options, "val_fraction", r->val_fraction);
    add_int(options, "shard_tokens", r->shard_tokens);
    cJSON_AddStringToObject(options, "field", r->field);
    cJSON_AddStringToObject(options, "format", formats[r->inputs->format]);
    cJSON *inputs = cJSON_AddArrayToObject(request, "inputs");
    for (int i = 0; i < r->inputs->count; i++) {
        cJSON *input = cJSON_CreateObject();
        cJSON_AddStringToObject(input, "path", r->inputs->arguments[i]);
        add_int(input, "files", r->summaries[i].files);
        add_int(input, "bytes", r->summaries[i].bytes);
        add_hex(input, "fingerprint", r->summaries[i].fingerprint);
        cJSON_AddItemToArray(inputs, input);
    }
    return request;
}

static bool same_inputs(const cJSON *now, const cJSON *then, Error *why) {
    const cJSON *a, *b = then ? then->child : NULL;
    cJSON_ArrayForEach(a, now) {
        const char *path = cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(a, "path"));
        if (!b || !cJSON_Compare(cJSON_GetObjectItemCaseSensitive(a, "path"),
                                 cJSON_GetObjectItemCaseSensitive(b, "path"), true))
            return error_set(why, "the inputs are others");
        if (!cJSON_Compare(a, b, true)) return error_set(why, "%s has changed", path);
        b = b->next;
    }
    return !b || error_set(why, "the inputs are others");
}

static bool same_request(const cJSON *now, const cJSON *then, Error *why) {
    static const char *const parts[][2] = {{"tokenizer", "the tokenizer is another one"},
                                           {"options", "the options are others"}};
    for (int i = 0; i < 2; i++) {
        if (!cJSON_Compare(cJSON_GetObjectItemCaseSensitive(now, parts[i][0]),
                           cJSON_GetObjectItemCaseSensitive(then, parts[i][0]), true))
            return error_set(why, "%s", parts[i][1]);
    }
    return same_inputs(cJSON_GetObjectItemCaseSensitive(now, "inputs"),
                       cJSON_GetObjectItemCaseSensitive(then, "inputs"), why);
}

// -------------------------------------------------------------------------------------------------------------- fields

// Every number of the journal by its name, once for both directions.
typedef struct {
    const char *name;
    int64_t *value;
} Number;

enum { MAX_NUMBERS = 32 };

static int list_numbers(CorpusJournal *j, Number out[MAX_NUMBERS]) {
    CorpusPosition *at = &j->position;
    CorpusCounts *c = &j->counts;
    CorpusCount *train = &c->side[CORPUS_TRAIN], *val = &c->side[CORPUS_VAL];
    const Number numbers[] = {
        {"file", &at->file},
        {"offset", &at->offset},
        {"line", &at->line},
        {"size", &at->size},
        {"cut", &at->cut},
        {"bytes_read", &at->bytes_read},
        {"documents", &c->documents},
        {"binary", &c->binary},
        {"empty", &c->empty},
        {"unreadable", &c->unreadable},
        {"train_documents", &train->documents},
        {"train_bytes", &train->bytes},
        {"train_tokens", &train->tokens},
        {"val_documents", &val->documents},
        {"val_bytes", &val->bytes},
        {"val_tokens", &val->tokens},
        {"train_open_tokens", &j->shards[CORPUS_TRAIN].open_tokens},
        {"val_open_tokens", &j->shards[CORPUS_VAL].open_tokens},
    };
    memcpy(out, numbers, sizeof numbers);
    return (int)(sizeof numbers / sizeof numbers[0]);
}

static void add_bad(cJSON *root, const BadReport *bad) {
    cJSON *list = cJSON_AddObjectToObject(root, "bad");
    cJSON_AddStringToObject(list, "earliest", bad_kind_names[bad->earliest]);
    for (int k = 0; k < BAD_KINDS; k++) {
        if (bad->count[k] == 0) continue;
        cJSON *kind = cJSON_AddObjectToObject(list, bad_kind_names[k]);
        add_int(kind, "count", bad->count[k]);
        cJSON_AddStringToObject(kind, "first", bad->first[k] ? bad->first[k] : "");
    }
}

static void add_shards(cJSON *root, CorpusSide side, const CorpusShards *shards) {
    cJSON *list = cJSON_AddArrayToObject(root, corpus_side_names[side]);
    for (int64_t i = 0; i < shards->num_shards; i++) {
        cJSON *shard = cJSON_CreateObject();
        add_int(shard, "tokens", shards->shards[i].tokens);
        add_int(shard, "bytes", shards->shards[i].bytes);
        add_hex(shard, "xxh3", shards->shards[i].xxh3);
        cJSON_AddItemToArray(list, shard);
    }
}

bool corpus_journal_save(const char *path, const cJSON *request, const CorpusJournal *j, Error *err) {
    CorpusJournal copy = *j; // for its numbers only
    Number numbers[MAX_NUMBERS];
    int count = list_numbers(&copy, numbers);
    cJSON *root = cJSON_CreateObject();
    add_int(root, "format", JOURNAL_FORMAT);
    cJSON_AddStringToObject(root, "phase", phase_names[j->phase]);
    cJSON_AddBoolToObject(root, "cut_all", j->cut_all);
    for (int i = 0; i < count; i++) add_int(root, numbers[i].name, *numbers[i].value);
    add_bad(root, &j->counts.bad);
    for (CorpusSide side = 0; side < CORPUS_SIDES; side++) add_shards(root, side, &j->shards[side]);
    cJSON_AddItemToObject(root, "request", cJSON_Duplicate(request, true));
    char *text = cJSON_Print(root);
    cJSON_Delete(root);
    bool ok = text ? file_write_atomic(path, text, strlen(text), err) : error_set(err, "%s: out of memory", path);
    cJSON_free(text);
    return ok;
}

// ---------------------------------------------------------------------------------------------------------------- load

static bool get_hex(const cJSON *object, const char *key, uint64_t *value, Error *err) {
    const char *text;
    char *end;
    if (!json_get_string(object, key, &text, err)) return false;
    *value = strtoull(text, &end, 16);
    return (strlen(text) == 16 && *end == '\0') || error_set(err, "\"%s\" is no checksum", key);
}

static bool load_shards(const cJSON *root, CorpusSide side, CorpusShards *shards, Error *err) {
    const cJSON *list = cJSON_GetObjectItemCaseSensitive(root, corpus_side_names[side]), *item;
    if (!cJSON_IsArray(list)) return error_set(err, "\"%s\" is no array", corpus_side_names[side]);
    shards->shards = calloc((size_t)cJSON_GetArraySize(list) + 1, sizeof *shards->shards);
    if (!shards->shards) return error_set(err, "out of memory");
    cJSON_ArrayForEach(item, list) {
        CorpusShard *s = &shards->shards[shards->num_shards++];
        if (!cJSON_IsObject(item))
            return error_set(err, "\"%s\" has something else than shards", corpus_side_names[side]);
        if (!json_get_int(item, "tokens", 1, JSON_MAX_INT, &s->tokens, err) ||
            !json_get_int(item, "bytes", 1, JSON_MAX_INT, &s->bytes, err) || !get_hex(item, "xxh3", &s->xxh3, err))
            return false;
    }
    return true;
}

static bool load_bad(const cJSON *root, BadReport *bad, Error *err) {
    const cJSON *list, *kind;
    const char *first, *earliest;
    if (!json_get_object(root, "bad", &list, err) || !json_get_string(list, "earliest", &earliest, err)) return false;
    for (BadKind k = 0; k < BAD_KINDS; k++) {
        if (strcmp(earliest, bad_kind_names[k]) == 0) bad->earliest = k;
        if (!(kind = cJSON_GetObjectItemCaseSensitive(list, bad_kind_names[k])) || !cJSON_IsObject(kind)) continue;
        if (!json_get_int(kind, "count", 1, JSON_MAX_INT, &bad->count[k], err) ||
            !json_get_string(kind, "first", &first, err))
            return false;
        bad->first[k] = strdup(first);
    }
    return true;
}

// Do the tokens of the shards add up to what was counted?
static bool check_sums(const CorpusJournal *j, Error *err) {
    for (CorpusSide side = 0; side < CORPUS_SIDES; side++) {
        int64_t tokens = j->shards[side].open_tokens;
        for (int64_t i = 0; i < j->shards[side].num_shards; i++) tokens += j->shards[side].shards[i].tokens;
        if (tokens != j->counts.side[side].tokens)
            return error_set(err, "its shards have %" PRId64 " tokens, %" PRId64 " were counted", tokens,
                             j->counts.side[side].tokens);
    }
    return true;
}

static bool load_fields(const cJSON *root, CorpusJournal *j, Error *err) {
    int64_t format;
    const char *phase;
    Number numbers[MAX_NUMBERS];
    int count = list_numbers(j, numbers);
    if (!json_get_int(root, "format", JOURNAL_FORMAT, JOURNAL_FORMAT, &format, err) ||
        !json_get_string(root, "phase", &phase, err))
        return false;
    for (j->phase = 0; j->phase < CORPUS_PHASES && strcmp(phase, phase_names[j->phase]) != 0;) j->phase++;
    if (j->phase == CORPUS_PHASES) return error_set(err, "\"phase\" is unknown");
    j->cut_all = cJSON_IsTrue(cJSON_GetObjectItemCaseSensitive(root, "cut_all"));
    for (int i = 0; i < count; i++)
        if (!json_get_int(root, numbers[i].name, 0, JSON_MAX_INT, numbers[i].value, err)) return false;
    return load_bad(root, &j->counts.bad, err) && load_shards(root, CORPUS_TRAIN, &j->shards[CORPUS_TRAIN], err) &&
           load_shards(root, CORPUS_VAL, &j->shards[CORPUS_VAL], err) && check_sums(j, err);
}

bool corpus_journal_load(const char *path, const cJSON *request, CorpusJournal *j, Error *why) {
    *j = (CorpusJournal){0};
    cJSON *root = json_parse_file(path, MAX_JOURNAL_BYTES, why);
    if (!root) return false;
    Error damage;
    bool ok = load_fields(root, j, &damage) || error_set(why, "%s: %s", path, damage.text);
    if (ok) ok = same_request(request, cJSON_GetObjectItemCaseSensitive(root, "request"), why);
    cJSON_Delete(root);
    if (!ok) corpus_journal_clear(j);
    return ok;
}

void corpus_journal_clear(CorpusJournal *j) {
    bad_report_clear(&j->counts.bad);
    for (CorpusSide side = 0; side < CORPUS_SIDES; side++) free(j->shards[side].shards);
    *j = (CorpusJournal){0};
}

// ------------------------------------------------------------------------------------------------------------ manifest

enum { MANIFEST_FORMAT = 1 };

static void add_count(cJSON *object, const char *key, int64_t value) {
    cJSON_AddNumberToObject(object, key, (double)value);
}

static void add_shard(cJSON *list, CorpusSide side, int64_t number, const CorpusShard *shard) {
    char text[40];
    cJSON *item = cJSON_CreateObject();
    cJSON_AddStringToObject(item, "file", corpus_shard_name(side, number, text, sizeof text));
    add_count(item, "tokens", shard->tokens);
    add_count(item, "bytes", shard->bytes);
    snprintf(text, sizeof text, "%016" PRIx64, shard->xxh3);
    cJSON_AddStringToObject(item, "xxh3", text);
    cJSON_AddItemToArray(list, item);
}

static void add_side(cJSON *root, const CorpusJournal *j, CorpusSide side) {
    const CorpusCount *count = &j->counts.side[side];
    cJSON *object = cJSON_AddObjectToObject(root, corpus_side_names[side]);
    add_count(object, "documents", count->documents);
    add_count(object, "bytes", count->bytes);
    add_count(object, "tokens", count->tokens);
    cJSON *shards = cJSON_AddArrayToObject(object, "shards");
    for (int64_t i = 0; i < j->shards[side].num_shards; i++) add_shard(shards, side, i, &j->shards[side].shards[i]);
}

static void add_skipped(cJSON *root, const CorpusCounts *counts) {
    cJSON *skipped = cJSON_AddObjectToObject(root, "skipped");
    add_count(skipped, "binary", counts->binary);
    add_count(skipped, "empty", counts->empty);
    add_count(skipped, "unreadable", counts->unreadable);
    for (int k = 0; k < BAD_KINDS; k++) add_count(skipped, bad_kind_names[k], counts->bad.count[k]);
}

bool corpus_manifest_write(const char *path, const CorpusRequest *request, const CorpusJournal *j, Error *err) {
    cJSON *root = cJSON_CreateObject(), *asked = corpus_request_json(request), *input;
    add_count(root, "format", MANIFEST_FORMAT);
    cJSON_AddItemToObject(root, "tokenizer", corpus_tokenizer_json(request->tokenizer));
    cJSON *options = cJSON_DetachItemFromObject(asked, "options"),
          *inputs = cJSON_DetachItemFromObject(asked, "inputs");
    cJSON_AddBoolToObject(options, "cut_all", j->cut_all);
    cJSON_AddItemToObject(root, "options", options);
    cJSON_ArrayForEach(input, inputs) cJSON_DeleteItemFromObject(input, "fingerprint"); // has times in it
    cJSON_AddItemToObject(root, "inputs", inputs);
    add_count(root, "documents", j->counts.documents);
    for (CorpusSide side = 0; side < CORPUS_SIDES; side++) add_side(root, j, side);
    add_skipped(root, &j->counts);
    cJSON_Delete(asked);
    char *text = cJSON_Print(root);
    cJSON_Delete(root);
    bool ok = text ? file_write_atomic(path, text, strlen(text), err) : error_set(err, "%s: out of memory", path);
    cJSON_free(text);
    return ok;
}
