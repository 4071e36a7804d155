// Writing one token shard: the tokens go into PATH.tmp-PID behind room for the header; commit writes the header, makes
// it durable and renames it. Owns the temporary file. Never leaves a file under the final name that is not whole.
#include "llmc/data/shard_writer.h"

#include "llmc/data/shards.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

struct ShardWriter {
    char *path, *temporary;
    FILE *file;
    int token_bytes;
    int64_t num_tokens, vocab, eot;
};

static bool write_failed(const ShardWriter *w, Error *err) {
    return error_set(err, "%s: cannot write the shard: %s", w->path, strerror(errno ? errno : EIO));
}

static ShardWriter *new_writer(const char *path, int token_bytes, int64_t vocab, int64_t eot, Error *err) {
    REQUIRE(token_bytes == 2 || token_bytes == 4, "shard writer: %d bytes per token", token_bytes);
    REQUIRE(vocab >= 0 && vocab <= (token_bytes == 2 ? 65536 : INT32_MAX) && eot >= -1 && eot < INT32_MAX,
            "shard writer: vocabulary %lld, end-of-text %lld", (long long)vocab, (long long)eot);
    ShardWriter *w = calloc(1, sizeof *w);
    if (!w || !(w->path = strdup(path)) || asprintf(&w->temporary, "%s.tmp-%d", path, (int)getpid()) < 0) {
        error_set(err, "%s: cannot write the shard: out of memory", path);
        if (w) free(w->path);
        free(w);
        return NULL;
    }
    w->token_bytes = token_bytes, w->vocab = vocab, w->eot = eot;
    return w;
}

ShardWriter *shard_writer_open(const char *path, int token_bytes, int64_t vocab, int64_t eot, Error *err) {
    ShardWriter *w = new_writer(path, token_bytes, vocab, eot, err);
    if (!w) return NULL;
    const char header[SHARD_HEADER_BYTES] = {0}; // all zero is no shard, should the file be found half written
    w->file = fopen(w->temporary, "wb");
    if (!w->file || fwrite(header, sizeof header, 1, w->file) != 1) {
        write_failed(w, err);
        shard_writer_abandon(w);
        return NULL;
    }
    return w;
}

ShardWriter *shard_writer_continue(const char *found, const char *path, int token_bytes, int64_t vocab, int64_t eot,
                                   int64_t num_tokens, Error *err) {
    ShardWriter *w = new_writer(path, token_bytes, vocab, eot, err);
    if (!w) return NULL;
    const off_t size = SHARD_HEADER_BYTES + (off_t)num_tokens * token_bytes;
    struct stat st;
    bool is_whole = stat(found, &st) == 0 && st.st_size >= size;
    errno = 0;
    if (!is_whole || rename(found, w->temporary) != 0 || !(w->file = fopen(w->temporary, "r+b")) ||
        ftruncate(fileno(w->file), size) != 0 || fseeko(w->file, size, SEEK_SET) != 0) {
        if (is_whole)
            write_failed(w, err);
        else
            error_set(err, "%s: holds fewer than the %lld tokens that were written", found, (long long)num_tokens);
        shard_writer_leave(w);
        return NULL;
    }
    w->num_tokens = num_tokens;
    return w;
}

bool shard_writer_append(ShardWriter *w, const void *tokens, int64_t n, Error *err) {
    if (n == 0) return true;
    if (fwrite(tokens, (size_t)w->token_bytes, (size_t)n, w->file) != (size_t)n) return write_failed(w, err);
    w->num_tokens += n;
    return true;
}

bool shard_writer_sync(ShardWriter *w, Error *err) {
    errno = 0;
    return (fflush(w->file) == 0 && fsync(fileno(w->file)) == 0) || write_failed(w, err);
}

static bool write_header(ShardWriter *w) {
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
    return fseeko(w->file, 0, SEEK_SET) == 0 && fwrite(h, sizeof h, 1, w->file) == 1;
}

// A rename is durable once its directory is. Some file systems cannot sync a directory: then there is nothing to do.
static void sync_directory_of(const char *path) {
    const char *slash = strrchr(path, '/');
    char *directory = !slash ? strdup(".") : slash == path ? strdup("/") : strndup(path, (size_t)(slash - path));
    int fd = directory ? open(directory, O_RDONLY | O_DIRECTORY | O_CLOEXEC) : -1;
    if (fd >= 0) fsync(fd), close(fd);
    free(directory);
}

bool shard_writer_commit(ShardWriter *w, Error *err) {
    errno = 0;
    bool ok = !ferror(w->file) && write_header(w) && fflush(w->file) == 0 && fsync(fileno(w->file)) == 0;
    int cause = errno;
    if (fclose(w->file) != 0 && ok) ok = false, cause = errno;
    w->file = NULL;
    if (ok && rename(w->temporary, w->path) != 0) ok = false, cause = errno;
    errno = cause;
    if (!ok) {
        write_failed(w, err);
        shard_writer_abandon(w);
        return false;
    }
    sync_directory_of(w->path);
    free(w->path), free(w->temporary), free(w);
    return true;
}

void shard_writer_leave(ShardWriter *w) {
    if (!w) return;
    if (w->file) fclose(w->file);
    free(w->path), free(w->temporary), free(w);
}

void shard_writer_abandon(ShardWriter *w) {
    if (!w) return;
    unlink(w->temporary);
    shard_writer_leave(w);
}
