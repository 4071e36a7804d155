// See corpus_manifest.h.
#include "llmc/text/corpus_manifest.h"

#include "llmc/base/atomic_file.h"
#include "llmc/base/json.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

enum { MANIFEST_FORMAT = 1 };

static void add_hex(cJSON *object, const char *key, uint64_t value) {
    char text[20];
    snprintf(text, sizeof text, "%016" PRIx64, value);
    cJSON_AddStringToObject(object, key, text);
}

static void add_count(cJSON *object, const char *key, int64_t value) {
    cJSON_AddNumberToObject(object, key, (double)value);
}

static void add_kinds(cJSON *object, const KindCounts *k) {
    for (int i = 0; i < k->num; i++)
        if (!cJSON_HasObjectItem(object, k->kinds[i].kind))
            add_count(object, k->kinds[i].kind, k->kinds[i].count);
}

static void add_tokenizer(cJSON *root, const Tokenizer *t) {
    cJSON *tokenizer = cJSON_AddObjectToObject(root, "tokenizer");
    cJSON_AddItemToObject(tokenizer, "name", json_text(tokenizer_name(t)));
    add_hex(tokenizer, "fingerprint", tokenizer_fingerprint(t));
    add_count(tokenizer, "vocab", tokenizer_vocab(t));
    add_count(tokenizer, "eot", tokenizer_eot(t));
}

static void add_options(cJSON *root, const CorpusManifest *m) {
    static const char *const formats[] = {
        [FORMAT_BY_CONTENT] = "by content", [FORMAT_TEXT] = "txt", [FORMAT_LINES] = "jsonl"};
    const CorpusOptions *o = m->options;
    cJSON *options = cJSON_AddObjectToObject(root, "options");
    cJSON_AddNumberToObject(options, "val_fraction", o->val_fraction);
    add_count(options, "shard_tokens", o->shard_tokens);
    cJSON_AddItemToObject(options, "field", json_text(o->field));
    cJSON_AddStringToObject(options, "format", formats[o->inputs.format]);
    if (o->split_at) cJSON_AddItemToObject(options, "split_at", json_text(o->split_at));
    cJSON_AddBoolToObject(options, "cut_all", m->cut_all);
}

static void add_inputs(cJSON *root, const CorpusManifest *m) {
    const CorpusOptions *o = m->options;
    cJSON *inputs = cJSON_AddArrayToObject(root, "inputs");
    for (int i = 0; i < o->inputs.count; i++) {
        cJSON *input = cJSON_CreateObject();
        cJSON_AddItemToObject(input, "path", json_text(o->inputs.arguments[i]));
        add_count(input, "files", m->inputs[i].files);
        add_count(input, "bytes", m->inputs[i].bytes);
        cJSON_AddItemToArray(inputs, input);
    }
}

static void add_sides(cJSON *root, const CorpusManifest *m) {
    for (CorpusSide side = 0; side < CORPUS_SIDES; side++) {
        cJSON *object = cJSON_AddObjectToObject(root, corpus_side_names[side]);
        add_count(object, "documents", m->counts->side[side].documents);
        add_count(object, "bytes", m->counts->side[side].bytes);
        add_count(object, "tokens", m->counts->side[side].tokens);
        cJSON *shards = cJSON_AddArrayToObject(object, "shards");
        for (int64_t i = 0; i < m->writer->side[side].count; i++) {
            const CorpusShard *shard = &m->writer->side[side].shards[i];
            char *name = corpus_shard_path("", side, i);
            cJSON *item = cJSON_CreateObject();
            cJSON_AddStringToObject(item, "file", name + 1);
            add_count(item, "tokens", shard->tokens);
            add_count(item, "bytes", shard->bytes);
            add_hex(item, "xxh3", shard->xxh3);
            cJSON_AddItemToArray(shards, item);
            free(name);
        }
    }
}

static void add_left_out(cJSON *root, const CorpusManifest *m) {
    static const char *const always[] = {"binary", "empty", "unreadable"};
    cJSON *skipped = cJSON_AddObjectToObject(root, "skipped");
    for (int k = 0; k < 3; k++)
        add_count(skipped, always[k], kind_counts_get(&m->counts->left_out, always[k]));
    for (int k = 0; k < BAD_KINDS; k++)
        add_count(skipped, bad_kinds[k].name,
                  kind_counts_get(&m->counts->bad, bad_kinds[k].phrase));
    add_kinds(skipped, &m->counts->left_out);
    add_kinds(skipped, m->walk_left_out);

    cJSON *notes = cJSON_AddObjectToObject(root, "notes");
    add_kinds(notes, m->walk_notes);
    add_kinds(notes, &m->counts->notes);
}

bool corpus_manifest_write(const CorpusManifest *m, const char *path, Error *err) {
    cJSON *root = cJSON_CreateObject();
    add_count(root, "format", MANIFEST_FORMAT);
    add_tokenizer(root, m->tokenizer);
    add_options(root, m);
    add_inputs(root, m);
    add_count(root, "documents", m->counts->documents);
    add_sides(root, m);
    add_left_out(root, m);

    char *text = cJSON_Print(root);
    bool ok = text || error_set(err, "%s: out of memory", path);
    if (ok) ok = file_write_atomic(path, text, strlen(text), err);
    cJSON_free(text);
    cJSON_Delete(root);
    return ok;
}

bool corpus_manifest_read_shard(const cJSON *entry, CorpusShard *shard, Error *err) {
    const char *xxh3;
    if (!cJSON_IsObject(entry)) return error_set(err, "an entry of \"shards\" is not an object");
    if (!json_get_int(entry, "tokens", 0, JSON_MAX_INT, &shard->tokens, err) ||
        !json_get_int(entry, "bytes", 0, JSON_MAX_INT, &shard->bytes, err) ||
        !json_get_string(entry, "xxh3", &xxh3, err))
        return false;
    shard->xxh3 = strtoull(xxh3, NULL, 16);
    const bool is_hex = strlen(xxh3) == 16 && strspn(xxh3, "0123456789abcdefABCDEF") == 16;
    if (!is_hex) return error_set(err, "\"xxh3\" is \"%.40s\", expected 16 digits", xxh3);
    return true;
}
