// Looking into one shard: its tokens from anywhere, everything about it in one pass, and the tokenizer that turns them
// into text. For data/shard and data/whereis; the trainer reads windows (shards.h). Owns nothing of the shard.
#pragma once
#include "llmc/base/error.h"
#include "llmc/data/shards.h"
#include "llmc/text/tokenizer.h"

// n tokens from token `first` on; first + n is at most shard->num_tokens.
bool shard_read(const Shard *shard, int64_t first, int64_t n, uint32_t *out, Error *err);

typedef struct {
    int version;        // of the format
    int64_t bytes;      // of the file
    uint64_t xxh3;      // XXH3 of the whole file, 64 bits
    int64_t documents;  // tokens that are end-of-text
    uint32_t largest;   // token
    int64_t first_bad;  // the first token that is not below vocab, -1: none
    uint32_t bad_value; // which one it is
} ShardScan;

// Reads the whole file once, 1 MiB at a time. vocab 0: tokens are not checked. eot -1: documents stays 0.
bool shard_scan(const Shard *shard, int64_t vocab, int64_t eot, ShardScan *scan, Error *err);

// The tokenizer of an opened set: `given` (a path, "" if none), else what stands beside the files of pattern or is
// implied by their vocabulary (find_tokenizer.h); shards that state none are taken for GPT-2's, as the trainer does.
// NULL and an error where there is none.
Tokenizer *shard_tokenizer(const char *given, const char *pattern, const ShardSet *set, Error *err);
