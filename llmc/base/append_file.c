// See append_file.h.
#include "llmc/base/append_file.h"

#include "llmc/base/arithmetic.h"
#include "llmc/base/atomic_file.h"
#include "llmc/base/directory_lock.h"
#include "llmc/base/file.h"
#include "llmc/base/path_reason.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

// Opens f->path; a failure leaves it closed.
static bool open_path(AppendFile *f, int more_flags, Error *err) {
    f->end = 0;
    f->is_torn = false;
    f->fd =
        open(f->path, O_WRONLY | O_CREAT | O_APPEND | O_NOFOLLOW | O_CLOEXEC | more_flags, 0666);
    if (f->fd < 0)
        return error_set(err, "%s: cannot be written: %s", f->path,
                         path_reason(f->path, errno).text);
    if (file_lock(f->fd)) return true;
    close(f->fd);
    f->fd = -1;
    return error_set(err, "%s: another process is writing it; is this run already active?",
                     f->path);
}

bool append_file_open(AppendFile *f, const char *path, bool new_only, Error *err) {
    f->path = strdup(path);
    REQUIRE_MEMORY(f->path, "a path");
    return open_path(f, new_only ? O_EXCL : 0, err);
}

bool append_file_cut(AppendFile *f, off_t bytes, Error *err) {
    if (ftruncate(f->fd, bytes) != 0)
        return error_set(err, "%s: cannot be truncated: %s", f->path, strerror(errno));
    f->end = bytes;
    f->is_torn = false;
    return true;
}

// Whether the name still belongs to the open file.
static bool is_in_place(const AppendFile *f) {
    struct stat here, there;
    return f->fd >= 0 && fstat(f->fd, &here) == 0 && stat(f->path, &there) == 0 &&
           here.st_dev == there.st_dev && here.st_ino == there.st_ino;
}

// Opens it again, after its last record.
static bool reopen(AppendFile *f, Error *err) {
    if (!open_path(f, 0, err)) return false;
    f->end = (off_t)max_i64(file_size(f->fd), 0);
    return true;
}

bool append_file_replace(AppendFile *f, const void *records, size_t bytes, Error *err) {
    const bool ok = file_write_atomic(f->path, records, bytes, err);
    if (!ok && is_in_place(f)) return false;
    close(f->fd);
    f->fd = -1;
    if (!reopen(f, err)) return false;
    return ok;
}

bool append_file_sync(AppendFile *f, Error *err) {
    return fsync(f->fd) == 0 || errno == EINVAL || // /dev/null and pipes
           error_set(err, "%s: cannot flush to disk: %s", f->path, strerror(errno));
}

bool append_file_write(AppendFile *f, const void *record, size_t bytes, Error *err) {
    if (f->fd < 0 && !reopen(f, err)) return false;
    if (f->is_torn && !append_file_cut(f, f->end, err)) return false;
    if (file_write_all(f->fd, f->path, record, bytes, err)) {
        f->end += (off_t)bytes;
        return true;
    }
    // A partial record would corrupt the next one. Pipes and devices keep what they have.
    f->is_torn = ftruncate(f->fd, f->end) != 0 && errno != EINVAL;
    if (f->is_torn) error_set(err, "%s: cannot be truncated: %s", f->path, strerror(errno));
    return false;
}

void append_file_close(AppendFile *f) {
    if (f->fd >= 0) close(f->fd);
    f->fd = -1;
    free(f->path);
    f->path = NULL;
}
