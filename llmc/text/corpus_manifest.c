// See corpus_manifest.h. doc/data.md lists the fields. Written by cJSON: counts are exact up to 2^53, checksums are
// hexadecimal digits in strings.
#include "llmc/text/corpus_manifest.h"

#include "llmc/base/atomic_file.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

enum { MANIFEST_FORMAT = 1 };

static void add_int(cJSON *object, const char *key, int64_t value) {
    cJSON_AddNumberToObject(object, key, (double)value);
}

static void add_shard(cJSON *list, CorpusSide side, int64_t number, const CorpusShard *shard) {
    char text[40];
    cJSON *item = cJSON_CreateObject();
    cJSON_AddStringToObject(item, "file", corpus_shard_name(side, number, text, sizeof text));
    add_int(item, "tokens", shard->tokens);
    add_int(item, "bytes", shard->bytes);
    snprintf(text, sizeof text, "%016" PRIx64, shard->xxh3);
    cJSON_AddStringToObject(item, "xxh3", text);
    cJSON_AddItemToArray(list, item);
}

static void add_side(cJSON *root, const CorpusJournal *j, CorpusSide side) {
    const CorpusCount *count = &j->counts.side[side];
    cJSON *object = cJSON_AddObjectToObject(root, corpus_side_names[side]);
    add_int(object, "documents", count->documents);
    add_int(object, "bytes", count->bytes);
    add_int(object, "tokens", count->tokens);
    cJSON *shards = cJSON_AddArrayToObject(object, "shards");
    for (int64_t i = 0; i < j->shards[side].num_shards; i++) add_shard(shards, side, i, &j->shards[side].shards[i]);
}

static void add_skipped(cJSON *root, const CorpusCounts *counts) {
    cJSON *skipped = cJSON_AddObjectToObject(root, "skipped");
    add_int(skipped, "binary", counts->binary);
    add_int(skipped, "empty", counts->empty);
    add_int(skipped, "unreadable", counts->unreadable);
    for (int k = 0; k < BAD_KINDS; k++) add_int(skipped, bad_kind_names[k], counts->bad.count[k]);
}

bool corpus_manifest_write(const char *path, const CorpusRequest *request, const CorpusJournal *j, Error *err) {
    cJSON *root = cJSON_CreateObject(), *asked = corpus_request_json(request), *input;
    add_int(root, "format", MANIFEST_FORMAT);
    cJSON_AddItemToObject(root, "tokenizer", corpus_tokenizer_json(request->tokenizer));
    cJSON *options = cJSON_DetachItemFromObject(asked, "options"),
          *inputs = cJSON_DetachItemFromObject(asked, "inputs");
    cJSON_AddBoolToObject(options, "cut_all", j->cut_all);
    cJSON_AddItemToObject(root, "options", options);
    cJSON_ArrayForEach(input, inputs) cJSON_DeleteItemFromObject(input, "fingerprint"); // has times in it
    cJSON_AddItemToObject(root, "inputs", inputs);
    add_int(root, "documents", j->counts.documents);
    for (CorpusSide side = 0; side < CORPUS_SIDES; side++) add_side(root, j, side);
    add_skipped(root, &j->counts);
    cJSON_Delete(asked);
    char *text = cJSON_Print(root);
    cJSON_Delete(root);
    bool ok = text ? file_write_atomic(path, text, strlen(text), err) : error_set(err, "%s: out of memory", path);
    cJSON_free(text);
    return ok;
}
