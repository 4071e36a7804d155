// See append_file.h.
#include "llmc/base/append_file.h"

#include "llmc/base/directory_lock.h"
#include "llmc/base/file.h"
#include "llmc/base/path_reason.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

bool append_file_open(AppendFile *f, const char *path, bool new_only, Error *err) {
    f->end = 0;
    f->path = strdup(path);
    int flags = O_WRONLY | O_CREAT | O_APPEND | O_NOFOLLOW | O_CLOEXEC;
    if (new_only) flags |= O_EXCL;
    f->fd = open(path, flags, 0666);
    if (!f->path || f->fd < 0) return error_set(err, "%s: cannot be written: %s", path, path_reason(path, errno).text);
    return file_lock(f->fd) || error_set(err, "%s: another process is writing it; is this run already active?", path);
}

bool append_file_cut(AppendFile *f, off_t bytes, Error *err) {
    f->end = bytes;
    return ftruncate(f->fd, bytes) == 0 || error_set(err, "%s: cannot be truncated: %s", f->path, strerror(errno));
}

bool append_file_sync(AppendFile *f, Error *err) {
    return fsync(f->fd) == 0 || errno == EINVAL || // /dev/null and pipes
           error_set(err, "%s: cannot flush to disk: %s", f->path, strerror(errno));
}

bool append_file_write(AppendFile *f, const void *record, size_t bytes, Error *err) {
    if (file_write_all(f->fd, f->path, record, bytes, err)) {
        f->end += (off_t)bytes;
        return true;
    }
    // A partial record would corrupt the next one. Pipes and devices keep what they have.
    if (ftruncate(f->fd, f->end) != 0 && errno != EINVAL)
        error_set(err, "%s: cannot be truncated: %s", f->path, strerror(errno));
    return false;
}

void append_file_close(AppendFile *f) {
    if (f->fd >= 0) close(f->fd);
    f->fd = -1;
    free(f->path);
    f->path = NULL;
}
