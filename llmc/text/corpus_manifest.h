// manifest.json of a corpus: what the shards were made from, but no times: the same run gives the
// same file. doc/data.md lists its fields. Counts are exact up to 2^53, checksums are hexadecimal
// digits in strings.
#pragma once
#include "llmc/text/corpus_options.h"
#include "llmc/text/corpus_shards.h"

#include <cjson/cJSON.h>

typedef struct {
    const CorpusOptions *options;
    const InputSummary *inputs;                   // one for each argument
    const KindCounts *walk_left_out, *walk_notes; // of the walk over the inputs
    const Tokenizer *tokenizer;
    bool cut_all;
    const CorpusCounts *counts;
    const CorpusWriter *writer; // finished
} CorpusManifest;
bool corpus_manifest_write(const CorpusManifest *m, const char *path, Error *err);
#define CORPUS_MANIFEST_MARK "\"fingerprint\":\t\"" // own_file.h; near the beginning

// One shard of a manifest: an entry of "shards".
bool corpus_manifest_read_shard(const cJSON *entry, CorpusShard *shard, Error *err);
