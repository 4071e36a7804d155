// Token shards: opening and checking the files of a glob pattern, reading windows, writing shards.
// This file owns the descriptors of a ShardSet and the file of a ShardWriter. The tokens are
// written after space for the header, and commit writes the header, so that no reader takes an
// incomplete file for a shard. It never trusts a number it has read, keeps no tokens in memory, and
// knows nothing of batches or their order.
#include "llmc/data/shards.h"

#include "llmc/base/arithmetic.h"
#include "llmc/base/directory.h"
#include "llmc/base/file.h"
#include "llmc/base/files_match.h"
#include "llmc/base/foreign_file.h"
#include "llmc/base/format.h"
#include "llmc/base/memory.h"
#include "llmc/base/path.h"
#include "llmc/base/path_reason.h"
#include "llmc/base/typed_path.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>

// The first ones are the header and some tokens: corpora are cut into shards of equal length, whose
// headers are the same. More of every file would make a start on a network file system slow.
enum { SAMPLE_BYTES = 4 * SHARD_HEADER_BYTES, SAMPLES = 3 };

// ---------------------------------------------------------------------------------------- checking

// Reads up to n bytes or the end of the file; returns the number read, -1 on error (errno).
static int64_t pread_all(int fd, void *out, int64_t n, int64_t offset) {
    int64_t done = 0;
    while (done < n) {
        ssize_t got = pread(fd, (char *)out + done, (size_t)(n - done), (off_t)(offset + done));
        if (got < 0 && errno == EINTR) continue;
        if (got < 0) return -1;
        if (got == 0) break;
        done += got;
    }
    return done;
}

// Checks the first `bytes` bytes of a file: its header, complete if they are SHARD_HEADER_BYTES or
// more.
static bool parse_header(const char *path, const int32_t *h, int64_t bytes, int64_t file_bytes,
                         Shard *shard, Error *err) {
    const bool is_shard = bytes >= (int64_t)sizeof *h && h[SHARD_FIELD_MAGIC] == SHARD_MAGIC;
    if (!is_shard && !foreign_file_check("a token shard", path, h, (size_t)bytes, err))
        return false;
    if (bytes < SHARD_HEADER_BYTES)
        return error_set(err,
                         "%s: not a token shard: header: the file has %" PRId64
                         " bytes, expected at least %d",
                         path, bytes, SHARD_HEADER_BYTES);
    if (!is_shard)
        return error_set(
            err,
            "%s: not a token shard: magic number (header field 0) is %d, expected %d; raw tokens "
            "without a header, such as nanoGPT's train.bin, are not read: make shards of their "
            "text with data/prepare",
            path, h[SHARD_FIELD_MAGIC], SHARD_MAGIC);
    const int version = h[SHARD_FIELD_VERSION];
    int field = SHARD_FIELD_COUNT_V1;
    if (version == 1) {
        shard->token_bytes = 2;
        shard->num_tokens = h[field];
    } else if (version == 2) {
        field = SHARD_FIELD_COUNT_V2;
        shard->token_bytes = h[SHARD_FIELD_TOKEN_BYTES_V2];
        memcpy(&shard->num_tokens, &h[field], sizeof shard->num_tokens);
    } else {
        return error_set(err, "%s: shard version (header field 1) is %d, expected 1 or 2", path,
                         version);
    }
    if (shard->token_bytes != 2 && shard->token_bytes != 4)
        return error_set(err, "%s: bytes per token (header field 2) is %d, expected 2 or 4", path,
                         shard->token_bytes);
    int64_t needed; // must be the bytes of the file
    if (shard->num_tokens < 0 || !checked_mul(shard->num_tokens, shard->token_bytes, &needed) ||
        !checked_add(needed, SHARD_HEADER_BYTES, &needed))
        return error_set(
            err,
            "%s: token count (header field %d) is %" PRId64 ", but the file has space for %" PRId64,
            path, field, shard->num_tokens, (file_bytes - SHARD_HEADER_BYTES) / shard->token_bytes);
    const char *difference = "something was appended to it";
    if (file_bytes < needed) difference = "it is truncated";
    if (needed != file_bytes)
        return error_set(err,
                         "%s: the file has %" PRId64
                         " bytes, but its token count (header field %d), %" PRId64
                         ", needs %" PRId64 "; %s: copy or make it again",
                         path, file_bytes, field, shard->num_tokens, needed, difference);
    int64_t most = shard->token_bytes == 2 ? 65536 : INT32_MAX;
    shard->vocab = h[SHARD_FIELD_VOCAB];
    shard->eot = (int64_t)h[SHARD_FIELD_EOT] - 1;
    if (shard->vocab < 0 || shard->vocab > most)
        return error_set(err,
                         "%s: vocabulary (header field 3) is %" PRId64
                         ", expected 0 (not stated) to %" PRId64,
                         path, shard->vocab, most);
    if (shard->vocab > 0) most = shard->vocab;
    if (shard->eot < -1 || shard->eot >= most)
        return error_set(err,
                         "%s: end-of-text token + 1 (header field 6) is %" PRId64
                         ", expected 0 (not stated) to the vocabulary size, %" PRId64,
                         path, shard->eot + 1, most);
    return true;
}

// Opens the file at path and reads its header. The shard owns fd and path even when this fails.
static bool open_shard(Shard *shard, const char *path, Error *err) {
    struct stat st;
    int64_t size;
    shard->fd = -1;
    REQUIRE_MEMORY((shard->path = strdup(path)), "a path");

    if (stat(path, &st) == 0 && S_ISDIR(st.st_mode)) {
        char *escaped = path_escaped(path), *pattern = path_join(escaped, "train_*.bin");
        error_set(
            err,
            "%s: is a directory, expected its shards, such as %s; make some with: %s -o %s FILE...",
            path, path_quoted(pattern).text, path_of_tool("data/prepare").text,
            path_quoted(path).text);
        free(escaped);
        free(pattern);
        return false;
    }

    shard->fd = file_open(path, &size, err);
    if (shard->fd < 0) return false;
    shard->bytes = size;
    if (fstat(shard->fd, &st) == 0) {
        shard->device = st.st_dev;
        shard->inode = st.st_ino;
        shard->written = (int64_t)st.st_mtim.tv_sec * 1000000000 + st.st_mtim.tv_nsec;
    }

    int32_t h[SAMPLE_BYTES / sizeof(int32_t)];
    for (int i = 0; i < SAMPLES; i++) {
        const int64_t got =
            pread_all(shard->fd, h, sizeof h, max_i64(size - SAMPLE_BYTES, 0) * i / (SAMPLES - 1));
        if (got < 0) return error_set(err, "%s: cannot read the shard: %s", path, strerror(errno));
        if (i == 0 && !parse_header(path, h, got, size, shard, err)) return false;
        shard->samples = XXH3_64bits_withSeed(h, (size_t)got, shard->samples);
    }
    return true;
}

// Mixes into *contents what the whole shard is known by; *left: the bytes of the set that may still
// be read for it.
static bool add_contents(const Shard *shard, int64_t *left, uint64_t *contents, Error *err) {
    enum { BLOCK = 1 << 20 };
    if (shard->bytes > *left) {
        *contents = XXH3_64bits_withSeed(&shard->written, sizeof shard->written, *contents);
        return true;
    }

    char *block = memory_new(BLOCK, 1);
    int64_t got = 0;
    for (int64_t at = 0; at < shard->bytes; at += got) {
        got = pread_all(shard->fd, block, min_i64(BLOCK, shard->bytes - at), at);
        if (got <= 0) break;
        *contents = XXH3_64bits_withSeed(block, (size_t)got, *contents);
    }

    free(block);
    *left -= shard->bytes;
    if (got > 0) return true;
    const char *reason = "the file has become shorter since it was opened";
    if (got < 0) reason = strerror(errno);
    return error_set(err, "%s: cannot read the shard: %s", shard->path, reason);
}

// ----------------------------------------------------------------------------------------- opening

bool shards_agree(const char *what, int64_t value, int64_t unstated, const char *path,
                  int64_t *common, const char **common_file, Error *err) {
    if (value == unstated) return true;
    if (*common_file && *common != value)
        return error_set(err,
                         "%s: %s is %" PRId64 ", but %s states %" PRId64
                         "; shards of one run must come from one tokenizer",
                         path, what, value, *common_file, *common);
    *common = value;
    if (!*common_file) *common_file = path;
    return true;
}

static bool open_paths(ShardSet *set, char **paths, int count, Error *err) {
    enum { OTHERS = 128 }; // descriptors for libraries, logs, checkpoints
    set->shards = memory_zeroed(count, sizeof *set->shards);

    // 1024 descriptors are a common soft limit, and a corpus may have more shards than that. If
    // even the hard limit is too low, open() reports it.
    struct rlimit limit;
    const rlim_t wanted = (rlim_t)count + OTHERS;
    if (getrlimit(RLIMIT_NOFILE, &limit) == 0 && limit.rlim_cur < wanted) {
        limit.rlim_cur = wanted;
        if (limit.rlim_cur > limit.rlim_max) limit.rlim_cur = limit.rlim_max;
        setrlimit(RLIMIT_NOFILE, &limit);
    }

    const char *files[3] = {NULL}; // those that state a fact first
    int64_t token_bytes = 0, left = SHARDS_WHOLE_BYTES;
    for (int i = 0; i < count; i++) {
        Shard *shard = &set->shards[set->count++];
        if (!open_shard(shard, paths[i], err) || !add_contents(shard, &left, &set->contents, err) ||
            !shards_agree("bytes per token", shard->token_bytes, 0, shard->path, &token_bytes,
                          &files[0], err) ||
            !shards_agree("vocabulary", shard->vocab, 0, shard->path, &set->vocab, &files[1],
                          err) ||
            !shards_agree("end-of-text token", shard->eot, -1, shard->path, &set->eot, &files[2],
                          err))
            return false;
        set->token_bytes = (int)token_bytes;
        set->fingerprint =
            XXH3_64bits_withSeed(&shard->samples, sizeof shard->samples, set->fingerprint);
        shard->first_window = set->num_windows;
        shard->num_windows = max_i64(shard->num_tokens - 1, 0) / set->T;
        set->num_windows += shard->num_windows; // at most num_tokens, which is checked
        if (!checked_add(set->num_tokens, shard->num_tokens, &set->num_tokens))
            return error_set(err, "%s: the token counts up to this file do not fit in 64 bits",
                             paths[i]);
    }

    if (set->num_windows > 0) return true;
    const Shard *longest = &set->shards[0];
    for (int i = 1; i < set->count; i++)
        if (set->shards[i].num_tokens > longest->num_tokens) longest = &set->shards[i];
    return error_set(err,
                     "%s: has %" PRId64 " tokens%s, but T = %" PRId64 " needs at least %" PRId64
                     "; use a shorter T or more text",
                     longest->path, longest->num_tokens,
                     set->count > 1 ? ", the most of any shard" : "", set->T, set->T + 1);
}

bool shards_open(ShardSet *set, const char *pattern, int64_t T, Error *err) {
    REQUIRE(T >= 1, "shards_open: T = %" PRId64, T);
    *set = (ShardSet){.T = T, .eot = -1};
    char **paths;
    int count;
    if (!files_match(pattern, &paths, &count, err)) return false;

    if (count == 0) { // names shards beside those of the pattern, or how to make some
        char *parent = path_parent(pattern), *beside = path_join(parent, "*.bin"), **names = NULL;
        int others = 0;
        if (files_match(beside, &names, &others, NULL) && others > 0) {
            char *other = path_numbered(names[0]);
            error_set(err, "no token shards match %s; there are %s", path_quoted(pattern).text,
                      path_quoted(other).text);
            free(other);
        } else {
            error_set(err,
                      "no token shards match %s%s; make some from text with: %s -o DIR FILE...",
                      path_quoted(pattern).text, path_pattern_reason(pattern).text,
                      path_of_tool("data/prepare").text);
        }
        directory_list_free(names, others);
        free(beside);
        free(parent);
    }

    bool ok = count > 0;
    if (ok) ok = open_paths(set, paths, count, err);
    directory_list_free(paths, count);
    if (!ok) shards_close(set);
    return ok;
}

void shards_close(ShardSet *set) {
    for (int i = 0; i < set->count; i++) {
        if (set->shards[i].fd >= 0) close(set->shards[i].fd);
        free(set->shards[i].path);
    }
    free(set->shards);
    *set = (ShardSet){.eot = -1};
}

// ------------------------------------------------------------------------- training and validation

char *shards_validation_pattern(const char *pattern) {
    static const char train[] = "train";
    char *escaped, *result = NULL, *at = NULL;

    if (file_exists(pattern))
        // a file by its name, which is no pattern even if it looks like one
        escaped = path_escaped(pattern);
    else
        escaped = strdup(pattern);
    REQUIRE_MEMORY(escaped, "a pattern");

    char *last_part = strrchr(escaped, '/');
    if (!last_part) last_part = escaped;
    for (char *p = last_part; (p = strstr(p, train)); p++) at = p;
    if (at) {
        const char *rest = at + strlen(train), *dot = strrchr(rest, '.');
        const bool numbered = *rest && rest != dot; // "_*.bin", "_00000[1-5].bin"
        const int separator = numbered && strchr("_-.", *rest);
        REQUIRE_MEMORY(asprintf(&result, "%.*sval%.*s%s%s", (int)(at - escaped), escaped, separator,
                                rest, numbered ? "*" : "", dot ? dot : "") >= 0,
                       "a pattern");
    }
    free(escaped);
    return result;
}

static bool is_same_shard(const Shard *x, const Shard *y) {
    if (x->inode == y->inode && x->device == y->device) return true;
    return x->bytes == y->bytes && x->samples == y->samples;
}

ShardsInBoth shards_in_both(const ShardSet *a, const ShardSet *b) {
    ShardsInBoth both = {0};
    for (int i = 0; i < a->count; i++) {
        const Shard *x = &a->shards[i];
        int k = 0;
        while (k < b->count && !is_same_shard(x, &b->shards[k])) k++;
        if (k == b->count) {
            if (!both.other) both.other = x->path;
            continue;
        }
        if (both.count++ > 0) continue;
        both.first = x->path;
        both.twin = b->shards[k].path;
    }
    return both;
}

// ----------------------------------------------------------------------------------------- windows

static const Shard *shard_of_window(const ShardSet *set, int64_t w) {
    REQUIRE(w >= 0 && w < set->num_windows, "window %" PRId64 " of %" PRId64, w, set->num_windows);
    // the last shard with first_window <= w, which is never empty
    int low = 0, high = set->count - 1;
    while (low < high) {
        int middle = low + (high - low + 1) / 2;
        if (set->shards[middle].first_window <= w)
            low = middle;
        else
            high = middle - 1;
    }
    return &set->shards[low];
}

// The largest token, in loops without an exit so that the compiler turns them into vector maxima.
// The check costs a small fraction of the copy from the page cache.
static uint32_t largest_token(const void *tokens, int token_bytes, int64_t n) {
    if (token_bytes == 2) {
        const uint16_t *t = tokens;
        uint16_t most = 0;
        for (int64_t i = 0; i < n; i++)
            if (t[i] > most) most = t[i];
        return most;
    }
    const uint32_t *t = tokens;
    uint32_t most = 0;
    for (int64_t i = 0; i < n; i++)
        if (t[i] > most) most = t[i];
    return most;
}

static uint32_t token_at(const void *tokens, int token_bytes, int64_t i) {
    if (token_bytes == 2) return ((const uint16_t *)tokens)[i];
    return ((const uint32_t *)tokens)[i];
}

bool shards_read_window(const ShardSet *set, int64_t w, int64_t vocab, void *out, Error *err) {
    const Shard *shard = shard_of_window(set, w);
    int64_t n = set->T + 1, first = (w - shard->first_window) * set->T;
    int64_t bytes = n * set->token_bytes;
    int64_t got = pread_all(shard->fd, out, bytes, SHARD_HEADER_BYTES + first * set->token_bytes);
    const char *reason = "the file has become shorter since it was opened";
    if (got < 0) reason = strerror(errno);
    if (got != bytes)
        return error_set(err, "%s: cannot read %" PRId64 " tokens at token %" PRId64 ": %s",
                         shard->path, n, first, reason);
    if (largest_token(out, set->token_bytes, n) < vocab) return true;
    int64_t i = 0;
    while (token_at(out, set->token_bytes, i) < vocab) i++;
    return error_set(err,
                     "%s: token %" PRId64 " is %" PRIu32
                     ", expected below the vocabulary size %" PRId64
                     "; the shard comes from another tokenizer or is damaged",
                     shard->path, first + i, token_at(out, set->token_bytes, i), vocab);
}

void shards_locate(const ShardSet *set, int64_t w, const char **path, int64_t *token_offset) {
    const Shard *shard = shard_of_window(set, w);
    *path = shard->path;
    *token_offset = (w - shard->first_window) * set->T;
}

// ----------------------------------------------------------------------------------------- writing

struct ShardWriter {
    char *path;
    FILE *file;
    int token_bytes;
    int64_t num_tokens, vocab, eot;
};

static bool write_failed(const ShardWriter *w, Error *err) {
    if (errno == 0) errno = EIO;
    return error_set(err, "%s: cannot write the shard: %s", w->path,
                     path_reason(w->path, errno).text);
}

ShardWriter *shard_writer_open(const char *path, int token_bytes, int64_t vocab, int64_t eot,
                               Error *err) {
    REQUIRE(token_bytes == 2 || token_bytes == 4, "shard writer: %d bytes per token", token_bytes);
    REQUIRE(vocab >= 0 && vocab <= (token_bytes == 2 ? 65536 : INT32_MAX) && eot >= -1 &&
                eot < INT32_MAX,
            "shard writer: vocabulary %lld, end-of-text %lld", (long long)vocab, (long long)eot);

    // all zeros is not a shard, in case the file is found half written
    const char header[SHARD_HEADER_BYTES] = {0};
    ShardWriter *w = memory_zeroed(1, sizeof *w);
    REQUIRE_MEMORY((w->path = strdup(path)), "a path");
    w->token_bytes = token_bytes;
    w->vocab = vocab;
    w->eot = eot;

    errno = 0;
    const int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_NOFOLLOW | O_CLOEXEC, 0666);
    if (fd >= 0) w->file = fdopen(fd, "wb");
    if (w->file && fwrite(header, sizeof header, 1, w->file) == 1) return w;
    write_failed(w, err);
    shard_writer_leave(w);
    return NULL;
}

bool shard_writer_append(ShardWriter *w, const void *tokens, int64_t n, Error *err) {
    if (n == 0) return true;
    if (fwrite(tokens, (size_t)w->token_bytes, (size_t)n, w->file) != (size_t)n)
        return write_failed(w, err);
    w->num_tokens += n;
    return true;
}

bool shard_writer_commit(ShardWriter *w, Error *err) {
    int32_t h[SHARD_HEADER_INTS] = {0};
    h[SHARD_FIELD_MAGIC] = SHARD_MAGIC;
    h[SHARD_FIELD_VOCAB] = (int32_t)w->vocab;
    h[SHARD_FIELD_EOT] = (int32_t)(w->eot + 1);
    if (w->token_bytes == 2 && w->num_tokens <= INT32_MAX) {
        h[SHARD_FIELD_VERSION] = 1;
        h[SHARD_FIELD_COUNT_V1] = (int32_t)w->num_tokens;
    } else {
        h[SHARD_FIELD_VERSION] = 2;
        h[SHARD_FIELD_TOKEN_BYTES_V2] = w->token_bytes;
        memcpy(&h[SHARD_FIELD_COUNT_V2], &w->num_tokens, sizeof w->num_tokens);
    }

    errno = 0;
    bool ok = !ferror(w->file) && fseeko(w->file, 0, SEEK_SET) == 0 &&
              fwrite(h, sizeof h, 1, w->file) == 1 && fflush(w->file) == 0 &&
              fsync(fileno(w->file)) == 0;
    if (!ok) write_failed(w, err);
    if (fclose(w->file) != 0 && ok) ok = write_failed(w, err);
    w->file = NULL;
    shard_writer_leave(w);
    return ok;
}

void shard_writer_leave(ShardWriter *w) {
    if (!w) return;
    if (w->file) fclose(w->file);
    free(w->path);
    free(w);
}
