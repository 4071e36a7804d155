// Tokens -> the shards of a corpus: DIR/train_000000.bin... and DIR/val_000000.bin... Owns the open shard of each side.
// What was synced can be taken up again by another writer after the process died. Never reads a text.
#pragma once
#include "llmc/text/corpus_split.h"

typedef struct {
    const char *directory; // exists; must outlive the writer
    int token_bytes;       // 2 or 4
    int64_t vocab, eot;
    int64_t shard_tokens; // tokens in a full shard
} CorpusWriterOptions;

typedef struct {
    int64_t tokens, bytes; // bytes: of the file
    uint64_t xxh3;         // of the file
} CorpusShard;

// A sequence of shards: the complete ones, and how many tokens the open one has. 0: none is open.
typedef struct {
    CorpusShard *shards; // owned by the writer
    int64_t num_shards, open_tokens;
} CorpusShards;

typedef struct CorpusWriter CorpusWriter;
// synced: where a synced writer was, as corpus_writer_shards said then; goes on there. NULL: begins anew. Of what lies
// in the directory, shards that came later are removed and the open ones are cut to their length.
CorpusWriter *corpus_writer_open(const CorpusWriterOptions *options, const CorpusShards synced[CORPUS_SIDES],
                                 Error *err);
bool corpus_writer_append(CorpusWriter *w, CorpusSide side, const void *tokens, int64_t n, Error *err);
bool corpus_writer_sync(CorpusWriter *w, Error *err);   // all that was appended is on the disk
bool corpus_writer_finish(CorpusWriter *w, Error *err); // completes the open shards; then only shards and free
const CorpusShards *corpus_writer_shards(const CorpusWriter *w, CorpusSide side);
void corpus_writer_free(CorpusWriter *w); // open shards stay as they are, to be continued; NULL is fine

// "train_000012.bin", in a buffer of at least 40 bytes.
const char *corpus_shard_name(CorpusSide side, int64_t number, char *buf, size_t size);
