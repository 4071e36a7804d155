// Token shards: files of tokens, read as windows, and written so that an incomplete file is not a
// shard. There are two formats, both little-endian, with 1024 bytes of header and then tokens:
//
//   version 1 (llm.c's): 256 int32: [0] 20240520, [1] 1, [2] token count; then uint16
//   version 2 (ours):    256 int32: [0] 20240520, [1] 2, [2] bytes per token (2 or 4), [4..5]
//                        int64 token count; then uint16 or uint32
//
// In both, [3] is the size of the vocabulary, 0 when not stated (llm.c leaves 0), and [6] its
// end-of-text token + 1 (0: not stated). Files may exceed 2 GiB. Every file is treated as
// hostile: magic, version, and counts against the file size are checked. Files are read with
// pread, never mapped: a file truncated during training gives an error message, not a SIGBUS, and
// 1 KiB to 4 KiB windows cost 0.6 us each from the page cache (dev/bench/bench_loader.c).
#pragma once
#include "llmc/base/error.h"

#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

enum { SHARD_MAGIC = 20240520, SHARD_HEADER_INTS = 256, SHARD_HEADER_BYTES = 1024 };

// Indices in the header, in int32.
enum {
    SHARD_FIELD_MAGIC = 0,
    SHARD_FIELD_VERSION = 1,
    SHARD_FIELD_COUNT_V1 = 2,
    SHARD_FIELD_TOKEN_BYTES_V2 = 2,
    SHARD_FIELD_VOCAB = 3,
    SHARD_FIELD_COUNT_V2 = 4,
    SHARD_FIELD_EOT = 6,
};

typedef struct {
    char *path;
    int fd;
    dev_t device; // with inode, the file whatever its name
    ino_t inode;
    int64_t bytes, written; // its size, and the time of its last change, in nanoseconds
    int token_bytes;        // 2 or 4
    int64_t num_tokens;
    int64_t vocab, eot; // 0, -1: not stated
    uint64_t samples;   // XXH3 of its first, middle and last 4 KiB
    // number of windows in the shards before this one (for the T of shards_open)
    int64_t first_window;
    int64_t num_windows; // (num_tokens - 1) / T
} Shard;

// All shards of a glob pattern, sorted by name, as one sequence of windows: window w has T + 1
// tokens, starts T tokens after window w-1, and never crosses a file.
typedef struct {
    Shard *shards;
    int count;
    int64_t T;
    int64_t num_windows;
    int64_t num_tokens;
    // stated by the files, 0 if none does; files that contradict each other are refused
    int64_t vocab;
    int64_t eot;          // end-of-text token stated by the files, -1 if none does
    int token_bytes;      // 2 or 4, the same in all files
    uint64_t fingerprint; // hash of the first, middle and last 4 KiB of all files, in order: it
                          // differs for other data
    uint64_t contents; // and for a change of the same files, wherever it is: hash of all bytes of
                       // the first files, SHARDS_WHOLE_BYTES together, and of the times at which
                       // the others were written
} ShardSet;

// Reading and hashing 64 MiB takes 45 ms from the page cache (EPYC, Zen 3, busy; 4 of them the
// hash), which is less than 1% of reading a corpus from 6.4 GB on. All of a large one is not read
// at a start: a hundred files of FineWeb, 20 GB, would take minutes on a network file system, where
// asking for a file's time costs nothing.
enum { SHARDS_WHOLE_BYTES = 64 << 20 };

// Opens and checks every file that matches pattern, a glob(7) pattern or the name of one file; T
// >= 1. All files stay open; the process's soft limit of descriptors is raised if there are more
// files than it allows. False, with the file and the field in the message, for no match, a foreign
// or truncated file, or no file with T + 1 tokens.
bool shards_open(ShardSet *set, const char *pattern, int64_t T, Error *err);
void shards_close(ShardSet *set); // also after a failed shards_open
// Takes a fact on which all files of a run must agree into *common, unless its value says that the
// file does not state it. *common_file: the first file that states it, NULL before. False, with
// both files in the message: they differ.
bool shards_agree(const char *what, int64_t value, int64_t unstated, const char *path,
                  int64_t *common, const char **common_file, Error *err);

// The pattern of the validation shards that belong to the training shards of a pattern or name,
// malloced: in the last part of the path val for train, and any number. a/fineweb_train_*.bin,
// a/fineweb_train_000001.bin -> a/fineweb_val_*.bin; NULL: there is no train.
char *shards_validation_pattern(const char *pattern);
// Counts the shards of `a` that are also shards of `b`, whatever their names: as files, or as
// copies, of the same size and the same first, middle and last 4 KiB. *first, *twin: the names in
// `a` and in `b` of the first; *other: of the first of `a` that is not in `b`; NULL if there is
// none.
typedef struct {
    int count;
    const char *first, *twin, *other;
} ShardsInBoth;
ShardsInBoth shards_in_both(const ShardSet *a, const ShardSet *b);

// Reads the T + 1 tokens of window w, token_bytes each, into out. Tokens >= vocab (the model's) are
// refused with file and offset in tokens. Any number of threads may read from one set.
bool shards_read_window(const ShardSet *set, int64_t w, int64_t vocab, void *out, Error *err);

// File and first token of window w, to report what a step read.
void shards_locate(const ShardSet *set, int64_t w, const char **path, int64_t *token_offset);

// ----------------------------------------------------------------------------------------- writing

// token_bytes 2 or 4. Version 1 of the format unless token_bytes is 4 or the count needs 64 bits.
// vocab 0 and eot -1: not stated. Until it is committed the file is not a shard.
typedef struct ShardWriter ShardWriter;
ShardWriter *shard_writer_open(const char *path, int token_bytes, int64_t vocab, int64_t eot,
                               Error *err);
bool shard_writer_append(ShardWriter *w, const void *tokens, int64_t n, Error *err);
// writes the header, fsync; frees w in any case
bool shard_writer_commit(ShardWriter *w, Error *err);
void shard_writer_leave(ShardWriter *w); // leaves the file unfinished; frees w; NULL is fine
