// Converts a corpus from its inputs to a vocabulary, and to shards under their final names. See corpus.h.
//
// Everything is made in DIR/.tmp-prepare and moved into DIR when it is complete. After each complete shard,
// manifest.json there records the progress of the run in an object "resume", which the final manifest does not have. It
// is written after the data that it counts is on the disk, so a later run of the same request resumes there. A manifest
// that is inconsistent, or from another request, is refused, and the run starts over. The lock is flock(2) on DIR
// itself, which is released when the process ends.
//
// The manifest states what the shards were made from, but no times: the same run gives the same file. doc/data.md lists
// its fields. Counts are exact up to 2^53, checksums are hexadecimal digits in strings.
#include "llmc/base/atomic_file.h"
#include "llmc/base/directory.h"
#include "llmc/base/file.h"
#include "llmc/base/json.h"
#include "llmc/base/own_file.h"
#include "llmc/base/path.h"
#include "llmc/base/path_reason.h"
#include "llmc/data/shards.h"
#include "llmc/text/corpus.h"
#include "llmc/text/tokenizer_internal.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>

enum { REQUEST_PARTS = 3, NUMBERS = 13 + BAD_KINDS, MAX_MANIFEST_BYTES = 64 << 20, MANIFEST_FORMAT = 1 };

typedef struct {
    CorpusOptions options;                // its inputs include standard input once that was read
    InputSummary *summaries;              // one for each argument
    KindCounts walk_left_out, walk_notes; // of the walk over the inputs
    bool has_stdin;
    Tokenizer *trained, *cuts; // NULL unless one is trained
    CorpusProgress progress;
    const char *output;
    char *staging, *manifest_path, *tokenizer_path; // output/.tmp-prepare, and files in it
    size_t existing;                                // length of the part of output that existed before
    int lock;                                       // descriptor of the locked directory; -1: not locked
    uint64_t request[REQUEST_PARTS];                // hashes of tokenizer, options, inputs
    CorpusJob job;
    // The progress that the manifest in .tmp-prepare records; job.cut_all is part of it.
    CorpusPosition position;
    CorpusCounts counts;
    CorpusWriter writer;
    bool is_done; // all shards are complete
    bool is_saved;
    int64_t saved_shards;
    cJSON *manifest; // of a finished run
} Run;

static bool open_inputs(Run *r, Error *err) {
    for (int i = 0; i < r->options.inputs.count; i++) r->has_stdin |= strcmp(r->options.inputs.arguments[i], "-") == 0;
    r->summaries =
        inputs_summarize(&r->options.inputs, &r->progress.total_bytes, &r->walk_left_out, &r->walk_notes, err);
    if (r->summaries && !r->options.tokenizer) r->cuts = tokenizer_for_cuts(err);
    return r->summaries && (r->options.tokenizer || r->cuts);
}

// Text, and input that is counted first, is read twice. Of lines, enough is kept to cut a corpus of few lines.
static bool take_stdin(Run *r, const char *directory, Error *err) {
    InputOptions *in = &r->options.inputs;
    int64_t bytes, limit = in->format == FORMAT_LINES && r->options.tokenizer ? 64 << 20 : INT64_MAX;
    if (!r->has_stdin || in->has_stdin) return true;
    if (!inputs_spool_stdin(in, directory, limit, &bytes, err)) return false;
    r->progress.total_bytes = in->stdin_goes_on ? 0 : r->progress.total_bytes + bytes; // 0: unknown
    return true;
}

static bool on_written(void *user, Error *err);

static void forget(Run *r) {
    corpus_writer_free(&r->writer);
    r->job = (CorpusJob){.options = &r->options, .on_written = on_written, .user = r};
    corpus_counts_clear(&r->counts);
    r->position = (CorpusPosition){0};
    cJSON_Delete(r->manifest), r->manifest = NULL;
    r->is_done = r->is_saved = false;
    r->progress.start_bytes = r->saved_shards = 0;
}

static void close_run(Run *r) {
    forget(r);
    kind_counts_clear(&r->walk_left_out), kind_counts_clear(&r->walk_notes);
    if (r->lock >= 0) close(r->lock);
    if (r->options.inputs.has_stdin) close(r->options.inputs.stdin_fd);
    tokenizer_free(r->trained), tokenizer_free(r->cuts);
    free(r->summaries), free(r->staging), free(r->manifest_path), free(r->tokenizer_path);
}

// ---------------------------------------------------------------------------------------------------------- vocabulary

static void on_merged(void *user, int64_t tokens) {
    Run *r = user;
    r->progress.stage = STAGE_MERGE;
    r->progress.tokens = tokens;
    r->options.on_progress(r->options.user, &r->progress);
}

// What the walk found is not a part of the state of a run: the next one walks again.
static void add_walk(Run *r) {
    kind_counts_move(&r->counts.left_out, &r->walk_left_out);
    kind_counts_move(&r->counts.notes, &r->walk_notes);
}

static bool check_sides(Run *r, Error *err) {
    if (r->counts.documents == 0) add_walk(r); // for the message
    return corpus_check_sides(&r->counts, r->options.val_fraction, err);
}

static int train(Run *r, Error *err) {
    const CorpusOptions *o = &r->options;
    WordCounts *words = NULL;
    int status = EXIT_OK;
    tokenizer_free(r->trained), r->trained = NULL;
    r->progress.stage = STAGE_COUNT, r->progress.vocab = o->vocab;
    // Encoding the corpus later must not decide again, from different numbers.
    for (bool cut_all = false, again = true; again; cut_all = true) {
        word_counts_free(words);
        words = word_counts_create(err);
        forget(r);
        r->job.tokenizer = r->job.cuts = r->cuts;
        r->job.words = words, r->job.cut_all = cut_all;
        status = words ? corpus_convert(&r->job, &r->position, &r->counts, err) : EXIT_RUN_FAILED;
        again = status == EXIT_OK && !cut_all && corpus_is_lopsided(&r->counts, o->val_fraction);
    }
    if (status == EXIT_OK && !check_sides(r, err)) status = EXIT_BAD_INPUT;
    const int64_t distinct = words ? word_counts_words(words) : 0;
    if (status == EXIT_OK && !(r->trained = bpe_train(words, o->vocab, on_merged, r, err))) status = EXIT_RUN_FAILED;
    word_counts_free(words);
    r->job.words = NULL;
    if (status != EXIT_OK || tokenizer_vocab(r->trained) == o->vocab) return status;
    error_set(err,
              "the text for training (%" PRId64 " bytes, %" PRId64 " distinct words) gives only %" PRId64
              " tokens, because no other pair occurs twice; use more text, or %s%" PRId64,
              r->counts.side[CORPUS_TRAIN].bytes, distinct, tokenizer_vocab(r->trained), o->vocab_option,
              tokenizer_vocab(r->trained));
    return EXIT_BAD_INPUT;
}

// ------------------------------------------------------------------------------------------------------------ manifest

static void add_hex(cJSON *object, const char *key, uint64_t value) {
    char text[20];
    snprintf(text, sizeof text, "%016" PRIx64, value);
    cJSON_AddStringToObject(object, key, text);
}

static void add_int(cJSON *object, const char *key, int64_t value) {
    cJSON_AddNumberToObject(object, key, (double)value);
}

static void add_side(cJSON *root, const Run *r, CorpusSide side) {
    cJSON *object = cJSON_AddObjectToObject(root, corpus_side_names[side]);
    add_int(object, "documents", r->counts.side[side].documents);
    add_int(object, "bytes", r->counts.side[side].bytes);
    add_int(object, "tokens", r->counts.side[side].tokens);
    cJSON *shards = cJSON_AddArrayToObject(object, "shards");
    for (int64_t i = 0; i < r->writer.side[side].count; i++) {
        const CorpusShard *shard = &r->writer.side[side].shards[i];
        char *path = corpus_shard_path("", side, i);
        cJSON *item = cJSON_CreateObject();
        cJSON_AddStringToObject(item, "file", path + 1);
        add_int(item, "tokens", shard->tokens);
        add_int(item, "bytes", shard->bytes);
        add_hex(item, "xxh3", shard->xxh3);
        cJSON_AddItemToArray(shards, item);
        free(path);
    }
}

static void add_kinds(cJSON *object, const KindCounts *k) {
    for (int i = 0; i < k->num; i++)
        if (!cJSON_HasObjectItem(object, k->kinds[i].kind)) add_int(object, k->kinds[i].kind, k->kinds[i].count);
}

static cJSON *describe(const Run *r) {
    static const char *const formats[] = {
        [FORMAT_BY_CONTENT] = "by content", [FORMAT_TEXT] = "txt", [FORMAT_LINES] = "jsonl"};
    static const char *const always[] = {"binary", "empty", "unreadable"};
    const CorpusOptions *o = &r->options;
    const Tokenizer *t = r->job.tokenizer;
    cJSON *root = cJSON_CreateObject();
    add_int(root, "format", MANIFEST_FORMAT);
    cJSON *tokenizer = cJSON_AddObjectToObject(root, "tokenizer");
    cJSON_AddItemToObject(tokenizer, "name", json_text(tokenizer_name(t)));
    add_hex(tokenizer, "fingerprint", tokenizer_fingerprint(t));
    add_int(tokenizer, "vocab", tokenizer_vocab(t));
    add_int(tokenizer, "eot", tokenizer_eot(t));
    cJSON *options = cJSON_AddObjectToObject(root, "options");
    cJSON_AddNumberToObject(options, "val_fraction", o->val_fraction);
    add_int(options, "shard_tokens", o->shard_tokens);
    cJSON_AddItemToObject(options, "field", json_text(o->field));
    cJSON_AddStringToObject(options, "format", formats[o->inputs.format]);
    if (o->split_at) cJSON_AddItemToObject(options, "split_at", json_text(o->split_at));
    cJSON_AddBoolToObject(options, "cut_all", r->job.cut_all);
    cJSON *inputs = cJSON_AddArrayToObject(root, "inputs");
    for (int i = 0; i < o->inputs.count; i++) {
        cJSON *input = cJSON_CreateObject();
        cJSON_AddItemToObject(input, "path", json_text(o->inputs.arguments[i]));
        add_int(input, "files", r->summaries[i].files);
        add_int(input, "bytes", r->summaries[i].bytes);
        cJSON_AddItemToArray(inputs, input);
    }
    add_int(root, "documents", r->counts.documents);
    for (CorpusSide side = 0; side < CORPUS_SIDES; side++) add_side(root, r, side);
    cJSON *skipped = cJSON_AddObjectToObject(root, "skipped");
    for (int k = 0; k < 3; k++) add_int(skipped, always[k], kind_counts_of(&r->counts.left_out, always[k]));
    for (int k = 0; k < BAD_KINDS; k++) add_int(skipped, bad_kinds[k].name, r->counts.bad.count[k]);
    add_kinds(skipped, &r->counts.left_out);
    add_kinds(skipped, &r->walk_left_out);
    cJSON *notes = cJSON_AddObjectToObject(root, "notes");
    add_kinds(notes, &r->walk_notes), add_kinds(notes, &r->counts.notes);
    return root;
}

static const char MANIFEST_MARK[] = "\"fingerprint\":\t\""; // near the beginning of what describe() makes

static bool write_json(const char *path, const cJSON *root, Error *err) {
    char *text = cJSON_Print(root);
    const bool ok = text ? file_write_atomic(path, text, strlen(text), err) : error_set(err, "%s: out of memory", path);
    cJSON_free(text);
    return ok;
}

// -------------------------------------------------------------------------------------------------------------- resume

static const char *const request_parts[REQUEST_PARTS] = {"tokenizer", "options", "inputs"};

// Everything that the shards depend on. The tokenizer is identified by its tokens, because its path may change.
static void hash_request(Run *r) {
    const CorpusOptions *o = &r->options;
    const int64_t numbers[] = {o->shard_tokens, o->inputs.format};
    uint64_t h = XXH3_64bits_withSeed(&o->val_fraction, sizeof o->val_fraction, XXH3_64bits(numbers, sizeof numbers));
    r->request[0] = o->tokenizer ? tokenizer_fingerprint(o->tokenizer) : (uint64_t)o->vocab;
    h = XXH3_64bits_withSeed(o->field, strlen(o->field), h);
    r->request[1] = o->split_at ? XXH3_64bits_withSeed(o->split_at, strlen(o->split_at), h) : h;
    for (int i = 0; i < o->inputs.count; i++) {
        h = XXH3_64bits_withSeed(o->inputs.arguments[i], strlen(o->inputs.arguments[i]), r->request[2]);
        r->request[2] = XXH3_64bits_withSeed(&r->summaries[i], sizeof r->summaries[i], h);
    }
}

// Every number of the state, for saving and loading.
static void list_numbers(Run *r, int64_t *out[NUMBERS]) {
    CorpusPosition *at = &r->position;
    CorpusCounts *c = &r->counts;
    int64_t *const numbers[] = {&at->file,
                                &at->offset,
                                &at->line,
                                &at->size,
                                &at->cut,
                                &at->bytes_read,
                                &c->documents,
                                &c->side[0].bytes,
                                &c->side[0].tokens,
                                &c->side[0].documents,
                                &c->side[1].bytes,
                                &c->side[1].tokens,
                                &c->side[1].documents};
    memcpy(out, numbers, sizeof numbers);
    for (int k = 0; k < BAD_KINDS; k++) out[NUMBERS - BAD_KINDS + k] = &c->bad.count[k];
}

static uint64_t hash_kinds(const KindCounts *k, uint64_t h) {
    for (int i = 0; i < k->num; i++) {
        h = XXH3_64bits_withSeed(&k->kinds[i].count, sizeof k->kinds[i].count, h);
        h = XXH3_64bits_withSeed(k->kinds[i].kind, strlen(k->kinds[i].kind), h);
    }
    return h;
}

static void save_kinds(cJSON *resume, const char *name, const KindCounts *k) {
    cJSON *list = cJSON_AddArrayToObject(resume, name);
    for (int i = 0; i < k->num; i++) {
        cJSON *item = cJSON_CreateObject();
        cJSON_AddStringToObject(item, "kind", k->kinds[i].kind);
        add_int(item, "count", k->kinds[i].count);
        cJSON_AddItemToObject(item, "first", json_text(k->kinds[i].first));
        cJSON_AddItemToArray(list, item);
    }
}

static bool load_kinds(const cJSON *resume, const char *name, KindCounts *k, Error *err) {
    const cJSON *list, *item;
    const char *kind, *first;
    int64_t count;
    if (!json_find(resume, name, &list, err)) return false;
    cJSON_ArrayForEach(item, list) {
        if (!json_get_string(item, "kind", &kind, err) || !json_get_string(item, "first", &first, err) ||
            !json_get_int(item, "count", 1, JSON_MAX_INT, &count, err))
            return false;
        kind_counts_add(k, kind, count, "%s", first);
    }
    return true;
}

static uint64_t hash_state(Run *r) {
    uint64_t h = 2 * (uint64_t)r->is_done + r->job.cut_all;
    int64_t *numbers[NUMBERS];
    list_numbers(r, numbers);
    for (int i = 0; i < NUMBERS; i++) h = XXH3_64bits_withSeed(numbers[i], sizeof *numbers[i], h);
    for (CorpusSide side = 0; side < CORPUS_SIDES; side++)
        h = XXH3_64bits_withSeed(r->writer.side[side].shards, (size_t)r->writer.side[side].count * sizeof(CorpusShard),
                                 h);
    return hash_kinds(&r->counts.notes, hash_kinds(&r->counts.left_out, h));
}

// Nothing is saved for standard input, which cannot be read again.
static bool save(Run *r, Error *err) {
    int64_t *numbers[NUMBERS];
    if (r->has_stdin) return true;
    list_numbers(r, numbers);
    cJSON *root = describe(r), *resume = cJSON_AddObjectToObject(root, "resume");
    for (int i = 0; i < REQUEST_PARTS; i++) add_hex(resume, request_parts[i], r->request[i]);
    add_hex(resume, "state", hash_state(r));
    cJSON_AddBoolToObject(resume, "cut_all", r->job.cut_all);
    cJSON_AddBoolToObject(resume, "is_done", r->is_done);
    cJSON *list = cJSON_AddArrayToObject(resume, "numbers"), *first = cJSON_AddObjectToObject(resume, "first");
    for (int i = 0; i < NUMBERS; i++) cJSON_AddItemToArray(list, cJSON_CreateNumber((double)*numbers[i]));
    for (int k = 0; k < BAD_KINDS; k++)
        if (r->counts.bad.first[k]) cJSON_AddItemToObject(first, bad_kinds[k].name, json_text(r->counts.bad.first[k]));
    save_kinds(resume, "left_out", &r->counts.left_out);
    save_kinds(resume, "notes", &r->counts.notes);
    r->saved_shards = r->writer.side[CORPUS_TRAIN].count + r->writer.side[CORPUS_VAL].count;
    r->is_saved = write_json(r->manifest_path, root, err);
    cJSON_Delete(root);
    return r->is_saved;
}

static bool load_shards(Run *r, const cJSON *root, CorpusSide side, Error *err) {
    CorpusShards *s = &r->writer.side[side];
    const cJSON *object, *list, *item;
    if (!json_get_object(root, corpus_side_names[side], &object, err) || !json_find(object, "shards", &list, err))
        return false;
    s->shards = calloc((size_t)cJSON_GetArraySize(list) + 1, sizeof *s->shards);
    if (!s->shards) return error_set(err, "out of memory");
    s->open_tokens = r->counts.side[side].tokens;
    cJSON_ArrayForEach(item, list) {
        CorpusShard *shard = &s->shards[s->count++];
        if (!corpus_shard_read(item, r->options.shard_tokens, shard, err)) return false;
        s->open_tokens -= shard->tokens;
    }
    return (s->open_tokens >= 0 && s->open_tokens < (r->is_done ? 1 : r->options.shard_tokens)) ||
           error_set(err, "its shards do not have the tokens that were counted");
}

static bool load_state(Run *r, const cJSON *root, Error *err) {
    const cJSON *resume, *list, *first;
    const char *text;
    int64_t *numbers[NUMBERS];
    list_numbers(r, numbers);
    if (!json_get_object(root, "resume", &resume, err)) return false;
    for (int i = 0; i < REQUEST_PARTS; i++) {
        if (!json_get_string(resume, request_parts[i], &text, err)) return false;
        if (strtoull(text, NULL, 16) != r->request[i]) return error_set(err, "the %s changed", request_parts[i]);
    }
    if (!json_get_array(resume, "numbers", NUMBERS, &list, err) || !json_get_object(resume, "first", &first, err))
        return false;
    for (int i = 0; i < NUMBERS; i++)
        if (!json_int_value(cJSON_GetArrayItem(list, i), 0, JSON_MAX_INT, numbers[i]))
            return error_set(err, "\"numbers\" has an invalid entry");
    for (int k = 0; k < BAD_KINDS; k++) {
        text = cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(first, bad_kinds[k].name));
        if (r->counts.bad.count[k] > 0) r->counts.bad.first[k] = strdup(text ? text : "");
        r->counts.bad.total += r->counts.bad.count[k];
    }
    r->is_done = cJSON_IsTrue(cJSON_GetObjectItemCaseSensitive(resume, "is_done"));
    r->job.cut_all = cJSON_IsTrue(cJSON_GetObjectItemCaseSensitive(resume, "cut_all"));
    if (!r->options.skip_bad && r->counts.bad.total > 0)
        return error_set(err, "it skipped bad input, but --skip-bad is not given now");
    if (!load_kinds(resume, "left_out", &r->counts.left_out, err) ||
        !load_kinds(resume, "notes", &r->counts.notes, err) || !load_shards(r, root, CORPUS_TRAIN, err) ||
        !load_shards(r, root, CORPUS_VAL, err) || !json_get_string(resume, "state", &text, err))
        return false;
    return strtoull(text, NULL, 16) == hash_state(r) || error_set(err, "it is inconsistent");
}

// The tokenizer that the unfinished run trained.
static bool open_trained(Run *r, Error *err) {
    size_t bytes;
    char name[32], *json = file_read_all(r->tokenizer_path, MAX_TOKENIZER_BYTES, &bytes, err);
    if (!json) return false;
    snprintf(name, sizeof name, "train:%" PRId64, r->options.vocab);
    r->trained = tokenizer_read_json(name, json, bytes, err);
    free(json);
    return r->trained != NULL;
}

static bool open_writer(Run *r, Error *err) {
    const Tokenizer *t = r->job.tokenizer = r->trained ? r->trained : r->options.tokenizer;
    r->job.cuts = r->cuts ? r->cuts : t;
    r->progress.stage = STAGE_ENCODE;
    r->job.writer = &r->writer;
    r->writer.directory = r->staging, r->writer.tokenizer = t, r->writer.shard_tokens = r->options.shard_tokens;
    return corpus_writer_continue(&r->writer, err);
}

// Resumes a killed run of the same request. False: there is none, or a notice said why it cannot be resumed.
static bool resume(Run *r) {
    Error why, said;
    if (!file_exists(r->manifest_path)) return false;
    if (r->has_stdin) error_set(&why, "standard input cannot be read again");
    cJSON *root = r->has_stdin ? NULL : json_parse_file(r->manifest_path, MAX_MANIFEST_BYTES, &why);
    r->is_saved = root && load_state(r, root, &why) &&
                  (r->is_done || ((r->options.tokenizer || open_trained(r, &why)) && open_writer(r, &why)));
    cJSON_DeleteItemFromObject(root, "resume");
    r->manifest = root;
    const int64_t done = r->progress.start_bytes = r->position.bytes_read, all = r->progress.total_bytes;
    if (r->is_saved)
        error_set(&said, "resuming an unfinished run after %" PRId64 " of %" PRId64 " bytes (%.1f%%)", done, all,
                  100.0 * (double)done / (double)all);
    else
        error_set(&said, "cannot resume the unfinished run in %s: %s; starting over", r->output, why.text);
    if (!r->is_saved || !r->is_done) r->options.on_notice(r->options.user, said.text);
    if (!r->is_saved) forget(r);
    return r->is_saved;
}

// ----------------------------------------------------------------------------------------------------- the final names

// Makes the output directory if needed and locks it; false if another run holds the lock or it is not writable.
static bool claim(Run *r, Error *err) {
    r->existing = directory_existing(r->output);
    if (!directory_make(r->output, err)) return false;
    r->lock = open(r->output, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (r->lock < 0)
        return error_set(err, "%s: cannot open the directory: %s", r->output, path_reason(r->output, errno).text);
    if (flock(r->lock, LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK) { // other errors: no locks on this file system
        close(r->lock), r->lock = -1;
        return error_set(err, "%s: another data/prepare is writing there", r->output);
    }
    return directory_make(r->staging, err);
}

static int is_shard(const struct dirent *entry) { return is_corpus_shard(entry->d_name); }

// A shard that states its vocabulary, as ours do. False and errno as of own_file_is.
static bool is_own_shard(const char *path) {
    int32_t header[SHARD_FIELD_VOCAB + 1] = {0};
    const int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    const bool is_read = fd >= 0 && pread(fd, header, sizeof header, 0) >= 0;
    const int unread = is_read ? 0 : errno;
    if (fd >= 0) close(fd);
    errno = unread;
    return header[0] == SHARD_MAGIC && header[SHARD_FIELD_VOCAB] > 0;
}

static bool remove_old(const char *path, Error *err) {
    struct stat st;
    if (lstat(path, &st) == 0 && !S_ISDIR(st.st_mode) && !is_own_shard(path))
        return own_file_move_aside(path, "is not a shard of this program", errno, err);
    return unlink(path) == 0 || error_set(err, "%s: cannot remove: %s", path, path_reason(path, errno).text);
}

// Refuses the shards in the output directory, or removes them, last name first, except those that this run has moved.
static bool clear_old(Run *r, bool refuse, Error *err) {
    struct dirent **old;
    const int n = scandir(r->output, &old, is_shard, alphasort);
    if (n < 0)
        return error_set(err, "%s: cannot list the directory: %s", r->output, path_reason(r->output, errno).text);
    bool ok = n == 0 || !refuse ||
              error_set(err, "%s: has %d shard%s of an earlier run (%s...); --force replaces them", r->output, n,
                        n == 1 ? "" : "s", old[0]->d_name);
    for (int i = n; i-- > 0; free(old[i])) {
        const char *name = old[i]->d_name;
        const CorpusShards *ours = &r->writer.side[name[0] == 't' ? CORPUS_TRAIN : CORPUS_VAL];
        char *path = path_join(r->output, name), *staged = path_join(r->staging, name);
        if (ok && !refuse && (file_exists(staged) || strtoll(strchr(name, '_') + 1, NULL, 10) >= ours->count))
            ok = remove_old(path, err);
        free(path), free(staged);
    }
    free(old);
    return ok;
}

static bool move(char *from, char *to, Error *err) {
    const bool ok = rename(from, to) == 0 || (errno == ENOENT && file_exists(to)) || // it was moved before a kill
                    error_set(err, "%s: cannot move into place: %s", from, path_reason(to, errno).text);
    free(from), free(to);
    return ok;
}

static bool move_side(const Run *r, CorpusSide side, Error *err) {
    for (int64_t i = 0; i < r->writer.side[side].count; i++)
        if (!move(corpus_shard_path(r->staging, side, i), corpus_shard_path(r->output, side, i), err)) return false;
    return true;
}

// Removes the files of an earlier run, manifest first and training shards last, then moves in the new ones, training
// shards first and manifest last. Each step may be repeated after a kill, and a mixture of the two never looks
// complete: also after a loss of power, because each manifest goes or comes in a step of its own.
static bool publish(Run *r, Error *err) {
    char *manifest = path_join(r->output, "manifest.json"), *tokenizer = path_join(r->output, "tokenizer.json");
    bool ok = own_file_make_way(manifest, MANIFEST_MARK, err) &&
              (unlink(manifest) == 0 || errno == ENOENT ||
               error_set(err, "%s: cannot remove: %s", manifest, path_reason(manifest, errno).text));
    atomic_file_clean(manifest);
    ok = ok && own_file_make_way(tokenizer, TOKENIZER_MARK, err) && directory_sync(r->output, err) &&
         clear_old(r, false, err) && move_side(r, CORPUS_TRAIN, err) &&
         move(strdup(r->tokenizer_path), strdup(tokenizer), err) && move_side(r, CORPUS_VAL, err) &&
         directory_sync(r->output, err) && write_json(manifest, r->manifest, err) && directory_remove(r->staging, err);
    free(tokenizer);
    free(manifest);
    return ok;
}

// ----------------------------------------------------------------------------------------------------------------- run

static bool on_written(void *user, Error *err) {
    Run *r = user;
    r->progress.bytes_read = r->position.bytes_read;
    r->progress.tokens = r->counts.side[CORPUS_TRAIN].tokens + r->counts.side[CORPUS_VAL].tokens;
    r->options.on_progress(r->options.user, &r->progress);
    if (r->job.words || r->saved_shards == r->writer.side[CORPUS_TRAIN].count + r->writer.side[CORPUS_VAL].count)
        return true;
    return corpus_writer_sync(&r->writer, err) && save(r, err);
}

static int begin(Run *r, bool cut_all, Error *err) {
    if (!directory_remove(r->staging, err) || !directory_make(r->staging, err) || !take_stdin(r, r->staging, err))
        return EXIT_RUN_FAILED;
    const int status = r->options.tokenizer ? EXIT_OK : train(r, err);
    if (status != EXIT_OK) return status;
    if (r->trained) cut_all = r->job.cut_all; // as when it was counted
    forget(r);
    r->job.cut_all = cut_all;
    const bool ok =
        open_writer(r, err) && (!r->trained || (tokenizer_write(r->trained, r->tokenizer_path, err) && save(r, err)));
    return ok ? EXIT_OK : EXIT_RUN_FAILED;
}

static int convert(Run *r, Error *err) {
    int status = corpus_convert(&r->job, &r->position, &r->counts, err);
    if (status == EXIT_OK && !r->job.cut_all && !r->trained && !r->options.inputs.stdin_goes_on &&
        corpus_is_lopsided(&r->counts, r->options.val_fraction)) {
        status = begin(r, true, err);
        if (status == EXIT_OK) status = corpus_convert(&r->job, &r->position, &r->counts, err);
    }
    if (status != EXIT_OK) return status;
    if (!check_sides(r, err)) {
        unlink(r->manifest_path), r->is_saved = false; // going on from there would end in the same way
        return EXIT_BAD_INPUT;
    }
    r->is_done = corpus_writer_finish(&r->writer, err) && tokenizer_write(r->job.tokenizer, r->tokenizer_path, err);
    cJSON_Delete(r->manifest);
    r->manifest = describe(r);
    return r->is_done && save(r, err) ? EXIT_OK : EXIT_RUN_FAILED;
}

static int run_claimed(Run *r, Error *err) {
    const bool resumed = resume(r);
    if (!r->is_done) {
        if (!r->options.force && !clear_old(r, true, err)) return EXIT_BAD_INPUT;
        int status = resumed ? EXIT_OK : begin(r, false, err);
        if (status == EXIT_OK) status = convert(r, err);
        if (status != EXIT_OK) return status;
    }
    return publish(r, err) ? EXIT_OK : EXIT_RUN_FAILED;
}

int corpus_run(const CorpusOptions *options, CorpusResult *result, Error *err) {
    Run r = {.options = *options, .output = options->inputs.output, .lock = -1};
    int status = EXIT_BAD_INPUT;
    *result = (CorpusResult){0};
    r.staging = path_join(r.output, ".tmp-prepare");
    r.manifest_path = path_join(r.staging, "manifest.json"), r.tokenizer_path = path_join(r.staging, "tokenizer.json");
    forget(&r);
    if (open_inputs(&r, err)) {
        hash_request(&r);
        if (claim(&r, err)) status = run_claimed(&r, err);
    }
    if (status == EXIT_OK) {
        add_walk(&r);
        *result = (CorpusResult){
            r.counts, {r.writer.side[CORPUS_TRAIN].count, r.writer.side[CORPUS_VAL].count}, r.job.cut_all};
        r.counts = (CorpusCounts){0};
    } else if (r.lock >= 0) { // removes what cannot be resumed
        const Error cause = *err;
        if (r.is_saved) error_set(err, "%s; finished shards are kept, and the same command resumes there", cause.text);
        forget(&r);
        if (!file_exists(r.manifest_path)) directory_remove(r.staging, NULL);
        directory_unmake(r.output, r.existing); // unless something is kept in it
    }
    close_run(&r);
    return status;
}

int corpus_vocabulary(const CorpusOptions *options, const char *directory, CorpusCounts *counts, Tokenizer **tokenizer,
                      Error *err) {
    Run r = {.options = *options, .lock = -1};
    forget(&r);
    *counts = (CorpusCounts){0}, *tokenizer = NULL;
    const int status = open_inputs(&r, err) && take_stdin(&r, directory, err) ? train(&r, err) : EXIT_BAD_INPUT;
    if (status == EXIT_OK) {
        add_walk(&r);
        *counts = r.counts, *tokenizer = r.trained;
        r.counts = (CorpusCounts){0}, r.trained = NULL;
    }
    close_run(&r);
    return status;
}
