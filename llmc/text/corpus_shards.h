// The writer of a corpus: tokens -> the shards DIR/train_000000.bin... and DIR/val_000000.bin...
#pragma once
#include "llmc/data/shards.h"
#include "llmc/text/corpus_split.h"

typedef struct {
    int64_t tokens, bytes; // bytes: of the file
    uint64_t xxh3;         // of the file
} CorpusShard;

static inline int corpus_token_bytes(const Tokenizer *t) {
    return tokenizer_vocab(t) > 65536 ? 4 : 2;
}

// The shards of one side: those that are complete, and the tokens of the one that follows them.
typedef struct {
    CorpusShard *shards; // malloced
    int64_t count, capacity, open_tokens;
    ShardWriter *open; // NULL: the next token opens it
} CorpusShards;

typedef struct {
    const char *directory; // exists
    const Tokenizer *tokenizer;
    int64_t shard_tokens; // in a full shard
    CorpusShards side[CORPUS_SIDES];
} CorpusWriter;

bool corpus_writer_append(CorpusWriter *w, CorpusSide side, const void *tokens, int64_t n,
                          Error *err);
bool corpus_writer_finish(CorpusWriter *w, Error *err); // completes the open shards; then only free
void corpus_writer_free(CorpusWriter *w); // open shards stay as they are; all zero then
// DIRECTORY/train_000012.bin, malloced
char *corpus_shard_path(const char *directory, CorpusSide side, int64_t number);
