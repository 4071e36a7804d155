// See corpus_shards.h. A shard is one ShardWriter. Its checksum is computed when it is complete,
// read back from the page cache, because the header, which states the count, is written last. Owns
// the open shard of each side.
#include "llmc/text/corpus_shards.h"

#include "llmc/base/arithmetic.h"
#include "llmc/base/file.h"
#include "llmc/base/memory.h"
#include "llmc/base/path.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

char *corpus_shard_path(const char *directory, CorpusSide side, int64_t number) {
    char name[40];
    snprintf(name, sizeof name, "%s_%06" PRId64 ".bin", corpus_side_names[side], number);
    return path_join(directory, name);
}

void corpus_writer_free(CorpusWriter *w) {
    for (CorpusSide side = 0; side < CORPUS_SIDES; side++) {
        shard_writer_leave(w->side[side].open);
        free(w->side[side].shards);
    }
    *w = (CorpusWriter){0};
}

static bool finish_shard(CorpusWriter *w, CorpusSide side, Error *err) {
    CorpusShards *s = &w->side[side];
    if (!s->open) return true;
    s->shards = memory_grow(s->shards, &s->capacity, s->count + 1, sizeof *s->shards);
    CorpusShard *shard = &s->shards[s->count];
    char *path = corpus_shard_path(w->directory, side, s->count);
    *shard = (CorpusShard){.tokens = s->open_tokens};
    // The checksum is taken from the page cache, where the shard still is.
    const bool ok =
        shard_writer_commit(s->open, err) && file_checksum(path, &shard->bytes, &shard->xxh3, err);
    s->open = NULL;
    if (ok) {
        s->count++;
        s->open_tokens = 0;
    }
    free(path);
    return ok;
}

bool corpus_writer_append(CorpusWriter *w, CorpusSide side, const void *tokens, int64_t n,
                          Error *err) {
    const Tokenizer *t = w->tokenizer;
    CorpusShards *s = &w->side[side];
    for (const char *from = tokens; n > 0;) {
        if (!s->open) {
            char *path = corpus_shard_path(w->directory, side, s->count);
            s->open = shard_writer_open(path, corpus_token_bytes(t), tokenizer_vocab(t),
                                        tokenizer_eot(t), err);
            free(path);
            if (!s->open) return false;
        }
        const int64_t left = w->shard_tokens - s->open_tokens, taken = min_i64(n, left);
        if (!shard_writer_append(s->open, from, taken, err)) return false;
        from += taken * corpus_token_bytes(t);
        n -= taken;
        s->open_tokens += taken;
        if (taken == left && !finish_shard(w, side, err)) return false;
    }
    return true;
}

bool corpus_writer_finish(CorpusWriter *w, Error *err) {
    if (!finish_shard(w, CORPUS_TRAIN, err)) return false;
    return finish_shard(w, CORPUS_VAL, err);
}
