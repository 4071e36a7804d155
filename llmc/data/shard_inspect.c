// See shard_inspect.h.
#include "llmc/data/shard_inspect.h"

#include "llmc/base/atomic_file.h"
#include "llmc/text/find_tokenizer.h"

#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

enum { BLOCK_BYTES = 1 << 20, GPT2_TOKENS = 50257 };

// n tokens of token_bytes each to n of 4 bytes, in place.
static void widen(uint32_t *tokens, int token_bytes, int64_t n) {
    if (token_bytes == 4) return;
    for (int64_t i = n - 1; i >= 0; i--) { // from the end on: what is not yet read is not overwritten
        uint16_t token;
        memcpy(&token, (const char *)tokens + 2 * i, sizeof token);
        tokens[i] = token;
    }
}

bool shard_read(const Shard *shard, int64_t first, int64_t n, uint32_t *out, Error *err) {
    REQUIRE(first >= 0 && n >= 0 && first <= shard->num_tokens - n, "shard_read: %lld tokens at %lld of %lld",
            (long long)n, (long long)first, (long long)shard->num_tokens);
    const int64_t offset = SHARD_HEADER_BYTES + first * shard->token_bytes;
    if (!file_read_at(shard->fd, shard->path, offset, out, (size_t)(n * shard->token_bytes), err)) return false;
    widen(out, shard->token_bytes, n);
    return true;
}

// What one block of tokens adds; the loops have no exits, so that they are vectors.
static void scan_block(const uint32_t *tokens, int64_t n, int64_t at, int64_t vocab, int64_t eot, ShardScan *scan) {
    uint32_t largest = 0;
    int64_t documents = 0;
    for (int64_t i = 0; i < n; i++) {
        largest = tokens[i] > largest ? tokens[i] : largest;
        documents += tokens[i] == eot;
    }
    scan->documents += documents;
    if (largest > scan->largest) scan->largest = largest;
    if (vocab == 0 || largest < vocab || scan->first_bad >= 0) return;
    int64_t i = 0;
    while (tokens[i] < vocab) i++;
    scan->first_bad = at + i, scan->bad_value = tokens[i];
}

static bool scan_tokens(const Shard *shard, int64_t vocab, int64_t eot, uint32_t *block, XXH3_state_t *hash,
                        ShardScan *scan, Error *err) {
    int32_t header[SHARD_HEADER_INTS];
    if (!file_read_at(shard->fd, shard->path, 0, header, sizeof header, err)) return false;
    XXH3_64bits_update(hash, header, sizeof header);
    scan->version = header[SHARD_FIELD_VERSION];
    const int64_t most = BLOCK_BYTES / (int64_t)sizeof *block;
    for (int64_t at = 0; at < shard->num_tokens; at += most) {
        const int64_t n = shard->num_tokens - at < most ? shard->num_tokens - at : most;
        const size_t bytes = (size_t)(n * shard->token_bytes);
        if (!file_read_at(shard->fd, shard->path, SHARD_HEADER_BYTES + at * shard->token_bytes, block, bytes, err))
            return false;
        XXH3_64bits_update(hash, block, bytes);
        widen(block, shard->token_bytes, n);
        scan_block(block, n, at, vocab, eot, scan);
    }
    return true;
}

bool shard_scan(const Shard *shard, int64_t vocab, int64_t eot, ShardScan *scan, Error *err) {
    *scan = (ShardScan){.first_bad = -1, .bytes = SHARD_HEADER_BYTES + shard->num_tokens * shard->token_bytes};
    uint32_t *block = malloc(BLOCK_BYTES);
    XXH3_state_t *hash = XXH3_createState();
    bool ok = block && hash;
    if (ok) {
        XXH3_64bits_reset(hash);
        ok = scan_tokens(shard, vocab, eot, block, hash, scan, err);
        scan->xxh3 = XXH3_64bits_digest(hash);
    } else {
        error_set(err, "%s: cannot be scanned: out of memory", shard->path);
    }
    XXH3_freeState(hash);
    free(block);
    return ok;
}

Tokenizer *shard_tokenizer(const char *given, const char *pattern, const ShardSet *set, Error *err) {
    Tokenizer *t = NULL;
    if (*given && set->vocab == 0) return tokenizer_open(given, err);
    const int64_t V = *given ? INT32_MAX : set->vocab > 0 ? set->vocab : GPT2_TOKENS; // no model limits what is given
    if (!tokenizer_find(&t, given, NULL, pattern, set->vocab, V, err)) return NULL;
    if (!t)
        error_set(err,
                  "%s: no tokenizer stands beside the shards; name one with --tokenizer, such as data/gpt2-tokenizer "
                  "(data/get.py gpt2-tokenizer)",
                  pattern);
    return t;
}
