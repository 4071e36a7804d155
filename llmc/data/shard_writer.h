// Writing one token shard (the format is in shards.h), whole or not at all, and in sittings: what was synced before the
// process died can be taken up again by another one. Owns the unfinished file, PATH.tmp-PID.
#pragma once
#include "llmc/base/error.h"
#include <stdint.h>

// token_bytes 2 or 4. Version 1 of the format unless token_bytes is 4 or the count needs 64 bits. vocab 0 and eot -1:
// not stated.
typedef struct ShardWriter ShardWriter;
ShardWriter *shard_writer_open(const char *path, int token_bytes, int64_t vocab, int64_t eot, Error *err);
// Takes up a shard that another writer of the same arguments began: `found` is the file it left, unfinished or
// finished. Keeps its first num_tokens tokens; it becomes the file of this writer. Fails if it holds fewer.
ShardWriter *shard_writer_continue(const char *found, const char *path, int token_bytes, int64_t vocab, int64_t eot,
                                   int64_t num_tokens, Error *err);
bool shard_writer_append(ShardWriter *w, const void *tokens, int64_t n, Error *err);
bool shard_writer_sync(ShardWriter *w, Error *err);   // what was appended is on the disk
bool shard_writer_commit(ShardWriter *w, Error *err); // writes the header, fsync, rename; frees w in any case
void shard_writer_leave(ShardWriter *w);              // keeps the unfinished file; frees w; NULL is fine
void shard_writer_abandon(ShardWriter *w);            // removes the unfinished file; frees w; NULL is fine
