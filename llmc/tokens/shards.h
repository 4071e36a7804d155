// Token shards: files of tokens, read as windows. Two formats:
//   version 1 (llm.c's): 256 int32: [0] 20240520, [1] 1, [2] token count; then uint16, little-endian
//   version 2 (ours):    256 int32: [0] 20240520, [1] 2, [2] bytes per token (2 or 4), [4..5] int64 token count; then
//   tokens
// In both [3] is the vocabulary size the tokens come from, 0 when not stated (llm.c leaves 0), and [6] its end-of-text
// token + 1 (0: not stated). Files may pass 2 GiB. Every file is hostile: magic, version, counts against the file size.
#pragma once
#include "llmc/base/error.h"
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#ifdef __cplusplus
extern "C" {
#endif

enum { SHARD_MAGIC = 20240520, SHARD_HEADER_INTS = 256, SHARD_HEADER_BYTES = 1024 };

typedef struct {
    char *path;
    int fd;
    int token_bytes; // 2 or 4
    int64_t num_tokens;
    int64_t first_window; // number of windows in the shards before this one (for the T of shards_open)
    int64_t num_windows;  // (num_tokens - 1) / T
} Shard;

// All shards of a glob pattern, sorted by name, as one sequence of windows: window w holds T + 1 tokens, starts T after
// window w-1, and never crosses a file.
typedef struct {
    Shard *shards;
    int count;
    int64_t T;
    int64_t num_windows;
    int64_t num_tokens;
    int64_t vocab;   // stated by the files, 0 if none does; files that contradict each other are refused
    int64_t eot;     // end-of-text token stated by the files, -1 if none does
    int token_bytes; // 2 or 4, the same in all files
} ShardSet;

// Opens and checks every file that matches pattern. max_tokens > 0 limits nothing here; T >= 1.
// No match, a foreign or truncated file, no file with T + 1 tokens: false, with the file named.
bool shards_open(ShardSet *set, const char *pattern, int64_t T, Error *err);
void shards_close(ShardSet *set);

// Reads window w: T + 1 tokens of token_bytes each into out. Tokens >= vocab (the model's) are refused with file and
// offset in tokens.
bool shards_read_window(const ShardSet *set, int64_t w, int64_t vocab, void *out, Error *err);

// File and first token of window w: what a step read.
void shards_locate(const ShardSet *set, int64_t w, const char **path, int64_t *token_offset);

// Writing: atomically (a temporary name, then rename). Version 1 unless token_bytes is 4 or the count needs 64 bits.
typedef struct ShardWriter ShardWriter;
ShardWriter *shard_writer_open(const char *path, int token_bytes, int64_t vocab, int64_t eot, Error *err);
bool shard_writer_append(ShardWriter *w, const void *tokens, int64_t n, Error *err);
bool shard_writer_commit(ShardWriter *w, Error *err); // writes the header, fsync, rename; frees w in any case
void shard_writer_abandon(ShardWriter *w);            // removes the temporary file; frees w

#ifdef __cplusplus
}
#endif
