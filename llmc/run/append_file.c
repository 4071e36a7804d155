// A file that grows by whole records. See append_file.h.
// Owns the one place where the length of such a file is decided; never seeks, never buffers.
#include "llmc/run/append_file.h"

#include "llmc/base/atomic_file.h"
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

// A lock that ends with its process, however that ends. File systems that know none are taken as they are.
static bool lock_file(int fd) {
    const struct timespec pause = {0, 50 * 1000 * 1000};
    for (int i = 0; i < 20; i++) {
        if (flock(fd, LOCK_EX | LOCK_NB) == 0 || (errno != EWOULDBLOCK && errno != EINTR)) return true;
        nanosleep(&pause, NULL);
    }
    return false;
}

bool append_file_open(AppendFile *f, const char *path, bool new_only, Error *err) {
    f->end = 0;
    f->path = strdup(path);
    f->fd = open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC | (new_only ? O_EXCL : 0), 0666);
    if (!f->path || f->fd < 0) return error_set(err, "%s: cannot be written: %s", path, strerror(errno));
    return lock_file(f->fd) || error_set(err, "%s: another process is writing it: is this run going on already?", path);
}

bool directory_hold(const char *directory, int *fd, Error *err) {
    char holder[160] = "", host[65] = "";
    struct stat found;
    char *path = path_join(directory, ".lock");
    *fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0666);
    bool ok = *fd >= 0 || error_set(err, "%s: cannot be opened: %s", path, strerror(errno));
    if (ok && !lock_file(*fd)) {
        if (pread(*fd, holder, sizeof holder - 1, 0) < 1) snprintf(holder, sizeof holder, "another process");
        holder[strcspn(holder, "\n")] = '\0';
        ok = error_set(err, "%s is running there: wait for its end, or name another directory", holder);
    } else if (ok && fstat(*fd, &found) == 0 && found.st_nlink == 0) {
        ok = error_set(err, "was removed by a process that ended just now: start again");
    } else if (ok) {
        gethostname(host, sizeof host - 1);
        const int n = snprintf(holder, sizeof holder, "process %ld on %s\n", (long)getpid(), host);
        // For the message only: where the disk is full it is another one.
        if (ftruncate(*fd, 0) != 0 || pwrite(*fd, holder, (size_t)n, 0) != n) errno = 0;
    }
    if (!ok && *fd >= 0) close(*fd), *fd = -1;
    free(path);
    return ok;
}

void directory_release(const char *directory, int fd, size_t existing) {
    char **names, *path = path_join(directory, ".lock");
    int count;
    if (existing < strlen(directory) && directory_list(directory, &names, &count, NULL)) {
        if (count == 1 && unlink(path) == 0) directory_unmake(directory, existing);
        directory_list_free(names, count);
    }
    free(path);
    close(fd);
}

bool append_file_cut(AppendFile *f, off_t bytes, Error *err) {
    f->end = bytes;
    return ftruncate(f->fd, bytes) == 0 || error_set(err, "%s: cannot be cut: %s", f->path, strerror(errno));
}

bool append_file_write(AppendFile *f, const void *record, size_t bytes, Error *err) {
    const char *rest = record, *end = rest + bytes;
    int error = 0;
    while (rest < end && !error) { // once, but for signals and full disks: those say why at the second try
        const ssize_t n = write(f->fd, rest, (size_t)(end - rest));
        if (n > 0) rest += n;
        if (n == 0) error = ENOSPC;
        if (n < 0 && errno != EINTR) error = errno;
    }
    if (!error) {
        f->end += (off_t)bytes;
        return true;
    }
    // A part of a record would spoil the next one.
    if (rest > (const char *)record && ftruncate(f->fd, f->end) != 0) error = errno;
    return error_set(err, "%s: cannot be written: %s", f->path, strerror(error));
}

void append_file_close(AppendFile *f) {
    if (f->fd >= 0) close(f->fd);
    f->fd = -1;
    free(f->path);
    f->path = NULL;
}
