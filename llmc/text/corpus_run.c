// Converts a corpus from its inputs to a vocabulary, and to shards under their final names. See corpus.h.
//
// Everything is made in DIR/.tmp-prepare, manifest.json last, and moved into DIR when it is complete. A run that ends
// before leaves the directory, and the next one starts over: it removes the directory, and what had been moved already.
// The lock is flock(2) on DIR itself, which is released when the process ends.
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

enum { MANIFEST_FORMAT = 1 };

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
    CorpusJob job;
    CorpusCounts counts;
    CorpusWriter writer;
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
    if (!r->has_stdin) return true;
    if (!inputs_spool_stdin(in, directory, limit, &bytes, err)) return false;
    r->progress.total_bytes = in->stdin_goes_on ? 0 : r->progress.total_bytes + bytes; // 0: unknown
    return true;
}

static void close_run(Run *r) {
    corpus_writer_free(&r->writer);
    corpus_counts_clear(&r->counts);
    kind_counts_clear(&r->walk_left_out);
    kind_counts_clear(&r->walk_notes);
    if (r->lock >= 0) close(r->lock);
    if (r->options.inputs.has_stdin) close(r->options.inputs.stdin_fd);
    tokenizer_free(r->trained), tokenizer_free(r->cuts);
    free(r->summaries), free(r->staging), free(r->manifest_path), free(r->tokenizer_path);
}

// -------------------------------------------------------------------------------------------------------------- passes

static void on_block(void *user, int64_t bytes_read) {
    Run *r = user;
    r->progress.bytes_read = bytes_read;
    r->progress.tokens = r->counts.side[CORPUS_TRAIN].tokens + r->counts.side[CORPUS_VAL].tokens;
    r->options.on_progress(r->options.user, &r->progress);
}

// Encodes all documents or, with is_counting, counts their words into job.words. If training or validation has too
// little of a few, short documents, does it again with each of them cut; a count has decided this for the encoding.
static int run_passes(Run *r, bool is_counting, Error *err) {
    r->job.options = &r->options, r->job.on_block = on_block, r->job.user = r;
    for (;;) {
        corpus_counts_clear(&r->counts);
        if (is_counting) {
            word_counts_free(r->job.words);
            r->job.words = word_counts_create(err);
            if (!r->job.words) return EXIT_RUN_FAILED;
        } else {
            corpus_writer_free(&r->writer);
            r->writer = (CorpusWriter){
                .directory = r->staging, .tokenizer = r->job.tokenizer, .shard_tokens = r->options.shard_tokens};
            r->job.writer = &r->writer;
        }
        const int status = corpus_convert(&r->job, &r->counts, err);
        if (status != EXIT_OK || r->job.cut_all || r->trained || r->options.inputs.stdin_goes_on ||
            !corpus_is_lopsided(&r->counts, r->options.val_fraction))
            return status;
        r->job.cut_all = true;
    }
}

// What the walk found belongs to the counts of the corpus.
static void add_walk(Run *r) {
    kind_counts_move(&r->counts.left_out, &r->walk_left_out);
    kind_counts_move(&r->counts.notes, &r->walk_notes);
}

static bool check_sides(Run *r, Error *err) {
    if (r->counts.documents == 0) add_walk(r); // for the message
    return corpus_check_sides(&r->counts, r->options.val_fraction, err);
}

// ---------------------------------------------------------------------------------------------------------- vocabulary

static void on_merged(void *user, int64_t tokens) {
    Run *r = user;
    r->progress.stage = STAGE_MERGE;
    r->progress.tokens = tokens;
    r->options.on_progress(r->options.user, &r->progress);
}

static int train(Run *r, Error *err) {
    const CorpusOptions *o = &r->options;
    r->job.tokenizer = r->job.cuts = r->cuts;
    r->progress.stage = STAGE_COUNT, r->progress.vocab = o->vocab;
    int status = run_passes(r, true, err);
    if (status == EXIT_OK && !check_sides(r, err)) status = EXIT_BAD_INPUT;
    const int64_t distinct = r->job.words ? word_counts_words(r->job.words) : 0;
    if (status == EXIT_OK && !(r->trained = bpe_train(r->job.words, o->vocab, on_merged, r, err)))
        status = EXIT_RUN_FAILED;
    word_counts_free(r->job.words);
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

static bool write_manifest(const Run *r, Error *err) {
    cJSON *root = describe(r);
    char *text = cJSON_Print(root);
    const bool ok = text ? file_write_atomic(r->manifest_path, text, strlen(text), err)
                         : error_set(err, "%s: out of memory", r->manifest_path);
    cJSON_free(text);
    cJSON_Delete(root);
    return ok;
}

// --------------------------------------------------------------------------------------------------------- output
// files

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

static bool remove_shard(const char *path, Error *err) {
    struct stat st;
    if (lstat(path, &st) == 0 && !S_ISDIR(st.st_mode) && !is_own_shard(path))
        return own_file_move_aside(path, "is not a shard of this program", errno, err);
    return unlink(path) == 0 || error_set(err, "%s: cannot remove: %s", path, path_reason(path, errno).text);
}

// Removes the shards in the output directory, last name first, or refuses them.
static bool clear_shards(const Run *r, bool refuse, Error *err) {
    struct dirent **old;
    const int n = scandir(r->output, &old, is_shard, alphasort);
    if (n < 0)
        return error_set(err, "%s: cannot list the directory: %s", r->output, path_reason(r->output, errno).text);
    bool ok = n == 0 || !refuse ||
              error_set(err, "%s: has %d shard%s of an earlier run (%s...); --force replaces them", r->output, n,
                        n == 1 ? "" : "s", old[0]->d_name);
    for (int i = n; i-- > 0; free(old[i])) {
        char *path = path_join(r->output, old[i]->d_name);
        if (ok && !refuse) ok = remove_shard(path, err);
        free(path);
    }
    free(old);
    return ok;
}

// Makes the output directory if needed, locks it, and removes what an interrupted run left in it. False if another run
// holds the lock, it is not writable, or it has a corpus that is not to be replaced.
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
    char *manifest = path_join(r->output, "manifest.json");
    const bool was_moving = file_exists(r->manifest_path) && !file_exists(manifest);
    free(manifest);
    bool ok = true;
    if (was_moving)
        ok = clear_shards(r, false, err) && directory_sync(r->output, err);
    else if (!r->options.force)
        ok = clear_shards(r, true, err);
    return ok && (!file_exists(r->staging) || directory_remove(r->staging, err)) && directory_make(r->staging, err);
}

static bool move(char *from, char *to, Error *err) {
    const bool ok =
        rename(from, to) == 0 || error_set(err, "%s: cannot move into place: %s", from, path_reason(to, errno).text);
    free(from), free(to);
    return ok;
}

static bool move_side(const Run *r, CorpusSide side, Error *err) {
    for (int64_t i = 0; i < r->writer.side[side].count; i++)
        if (!move(corpus_shard_path(r->staging, side, i), corpus_shard_path(r->output, side, i), err)) return false;
    return true;
}

// Removes the files of an earlier corpus, manifest first and training shards last, then moves in the new ones, training
// shards first and manifest last. A mixture of the two has no manifest: also after a loss of power, because each
// manifest goes or comes in a step of its own.
static bool publish(const Run *r, Error *err) {
    char *manifest = path_join(r->output, "manifest.json"), *tokenizer = path_join(r->output, "tokenizer.json");
    const bool ok = own_file_make_way(manifest, MANIFEST_MARK, err) &&
                    (unlink(manifest) == 0 || errno == ENOENT ||
                     error_set(err, "%s: cannot remove: %s", manifest, path_reason(manifest, errno).text)) &&
                    own_file_make_way(tokenizer, TOKENIZER_MARK, err) && directory_sync(r->output, err) &&
                    clear_shards(r, false, err) && move_side(r, CORPUS_TRAIN, err) &&
                    move(strdup(r->tokenizer_path), strdup(tokenizer), err) && move_side(r, CORPUS_VAL, err) &&
                    directory_sync(r->output, err) && move(strdup(r->manifest_path), strdup(manifest), err) &&
                    directory_sync(r->output, err) && directory_remove(r->staging, err);
    free(tokenizer);
    free(manifest);
    return ok;
}

// ----------------------------------------------------------------------------------------------------------------- run

static int convert(Run *r, Error *err) {
    r->job.tokenizer = r->trained ? r->trained : r->options.tokenizer;
    r->job.cuts = r->cuts ? r->cuts : r->job.tokenizer;
    r->progress.stage = STAGE_ENCODE;
    const int status = run_passes(r, false, err);
    if (status != EXIT_OK) return status;
    if (!check_sides(r, err)) return EXIT_BAD_INPUT;
    const bool ok = corpus_writer_finish(&r->writer, err) &&
                    tokenizer_write(r->job.tokenizer, r->tokenizer_path, err) && write_manifest(r, err) &&
                    publish(r, err);
    return ok ? EXIT_OK : EXIT_RUN_FAILED;
}

int corpus_run(const CorpusOptions *options, CorpusResult *result, Error *err) {
    Run r = {.options = *options, .output = options->inputs.output, .lock = -1};
    *result = (CorpusResult){0};
    r.staging = path_join(r.output, ".tmp-prepare");
    r.manifest_path = path_join(r.staging, "manifest.json"), r.tokenizer_path = path_join(r.staging, "tokenizer.json");
    int status = open_inputs(&r, err) && claim(&r, err) ? EXIT_OK : EXIT_BAD_INPUT;
    if (status == EXIT_OK && !take_stdin(&r, r.staging, err)) status = EXIT_RUN_FAILED;
    if (status == EXIT_OK && !options->tokenizer) status = train(&r, err);
    if (status == EXIT_OK) status = convert(&r, err);
    if (status == EXIT_OK) {
        add_walk(&r);
        *result = (CorpusResult){
            r.counts, {r.writer.side[CORPUS_TRAIN].count, r.writer.side[CORPUS_VAL].count}, r.job.cut_all};
        r.counts = (CorpusCounts){0};
    } else if (r.lock >= 0) {
        // The manifest there tells the next run that shards were moved.
        if (!file_exists(r.manifest_path)) directory_remove(r.staging, NULL);
        directory_unmake(r.output, r.existing);
    }
    close_run(&r);
    return status;
}

int corpus_vocabulary(const CorpusOptions *options, const char *directory, CorpusCounts *counts, Tokenizer **tokenizer,
                      Error *err) {
    Run r = {.options = *options, .lock = -1};
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
