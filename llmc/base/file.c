// See file.h. Files are read by pread, never mapped: a file that shrinks while it is read gives a
// message, no SIGBUS.
#include "llmc/base/file.h"

#include "llmc/base/arithmetic.h"
#include "llmc/base/limits.h"
#include "llmc/base/path_reason.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>

int64_t file_size(int fd) {
    struct stat st;
    if (fstat(fd, &st) == 0 && S_ISREG(st.st_mode)) return (int64_t)st.st_size;
    return -1;
}

bool file_exists(const char *path) {
    struct stat st;
    return stat(path, &st) == 0 || errno == EIO || errno == ESTALE || errno == EINTR ||
           errno == ETIMEDOUT;
}

// O_NONBLOCK keeps a pipe without a writer from blocking the program; it has no effect on plain
// files.
int file_open(const char *path, int64_t *size, Error *err) {
    const int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    int reason = errno;
    struct stat st;
    const bool found = (fd >= 0 && fstat(fd, &st) == 0) || (fd < 0 && stat(path, &st) == 0);
    if (fd >= 0 && !found) reason = errno;
    if (found && !S_ISREG(st.st_mode))
        error_set(err, "%s: not a plain file but %s", path, path_kind(st.st_mode));
    else if (fd < 0 || !found)
        error_set(err, "%.600s: cannot open: %s", path, path_reason(path, reason).text); // not cut
    else {
        *size = (int64_t)st.st_size;
        return fd;
    }
    if (fd >= 0) close(fd);
    return -1;
}

bool file_write_all(int fd, const char *path, const void *data, size_t bytes, Error *err) {
    for (size_t done = 0; done < bytes;) {
        const ssize_t n = write(fd, (const char *)data + done, bytes - done);
        if (n < 0 && errno == EINTR) continue;
        if (n == 0) errno = EIO;
        if (n <= 0) return error_set(err, "%s: cannot write: %s", path, limits_reason(errno));
        done += (size_t)n;
    }
    return true;
}

bool file_read_at(int fd, const char *path, int64_t offset, void *out, size_t n, Error *err) {
    size_t done = 0;
    while (done < n) {
        ssize_t got = pread(fd, (char *)out + done, n - done, offset + (int64_t)done);
        if (got < 0 && errno == EINTR) continue;
        if (got < 0) return error_set(err, "%s: cannot read: %s", path, strerror(errno));
        if (got == 0)
            return error_set(err,
                             "%s: the file ends at byte %lld, expected %zu bytes at offset %lld",
                             path, (long long)offset + (long long)done, n, (long long)offset);
        done += (size_t)got;
    }
    return true;
}

char *file_read_all(const char *path, size_t max_bytes, size_t *bytes, Error *err) {
    int64_t size;
    int fd = file_open(path, &size, err);
    if (fd < 0) return NULL;
    char *text = NULL;
    if ((uint64_t)size > max_bytes)
        error_set(err, "%s: %lld bytes, expected at most %zu", path, (long long)size, max_bytes);
    else if (!(text = malloc((size_t)size + 1)))
        error_set(err, "%s: no memory for its %lld bytes", path, (long long)size);
    if (text && !file_read_at(fd, path, 0, text, (size_t)size, err)) {
        free(text);
        text = NULL;
    }
    close(fd);
    if (!text) return NULL;
    text[size] = '\0';
    if (bytes) *bytes = (size_t)size;
    return text;
}

enum { CHECKSUM_PIECE = 1 << 20 };

bool file_checksum(const char *path, int64_t *bytes, uint64_t *checksum, Error *err) {
    int64_t size;
    int fd = file_open(path, &size, err);
    if (fd < 0) return false;
    XXH3_state_t *hash = XXH3_createState();
    char *buffer = malloc(min_size((size_t)size + 1, CHECKSUM_PIECE));
    REQUIRE_MEMORY(hash && buffer, "a file buffer");
    XXH3_64bits_reset(hash);

    bool ok = true;
    for (int64_t at = 0; ok && at < size; at += CHECKSUM_PIECE) {
        size_t n = (size_t)min_i64(size - at, CHECKSUM_PIECE);
        ok = file_read_at(fd, path, at, buffer, n, err);
        if (ok) XXH3_64bits_update(hash, buffer, n);
    }

    *bytes = size;
    *checksum = XXH3_64bits_digest(hash);
    XXH3_freeState(hash);
    free(buffer);
    close(fd);
    return ok;
}
