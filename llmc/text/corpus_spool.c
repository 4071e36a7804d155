// See corpus_spool.h. Bytes are copied as they come, packed or not; the first four tell which. Memory: one chunk.
#include "llmc/text/corpus_spool.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { CHUNK = 1 << 20 };

static ssize_t read_some(int fd, void *out, size_t n) {
    ssize_t got;
    do got = read(fd, out, n);
    while (got < 0 && errno == EINTR);
    return got;
}

static bool write_all(int fd, const char *data, ssize_t n) {
    for (ssize_t done = 0; done < n;) {
        ssize_t put = write(fd, data + done, (size_t)(n - done));
        if (put < 0 && errno != EINTR) return false;
        if (put > 0) done += put;
    }
    return true;
}

static bool copy(int to, const char *path, int64_t limit, char *chunk, InputStdin *in, int64_t *bytes, Error *err) {
    unsigned char magic[4];
    int64_t done = 0;
    while (done < limit) {
        ssize_t got = read_some(STDIN_FILENO, chunk, CHUNK);
        if (got < 0) return error_set(err, "standard input: cannot read: %s", strerror(errno));
        if (got == 0) break;
        for (int64_t i = done; i < 4 && i - done < got; i++) magic[i] = (unsigned char)chunk[i - done];
        if (!write_all(to, chunk, got)) return error_set(err, "%s: cannot write: %s", path, strerror(errno));
        done += got;
    }
    *bytes = done;
    in->path = path;
    in->then_fd = done < limit ? -1 : STDIN_FILENO;
    in->packing = packing_of_bytes(magic, done < 4 ? (size_t)done : 4);
    return true;
}

bool corpus_spool_stdin(const char *path, int64_t limit, InputStdin *in, int64_t *bytes, Error *err) {
    int to = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
    if (to < 0) return error_set(err, "%s: cannot write: %s", path, strerror(errno));
    char *chunk = malloc(CHUNK);
    bool ok = chunk ? copy(to, path, limit, chunk, in, bytes, err) : error_set(err, "standard input: out of memory");
    free(chunk);
    if (close(to) != 0 && ok) ok = error_set(err, "%s: cannot write: %s", path, strerror(errno));
    return ok;
}
