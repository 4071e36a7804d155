// See atomic_file.h. Writes go through a buffer of 1 MiB, which is also the unit of the checksum,
// so that the disk limits the speed of a checkpoint.
#include "llmc/base/atomic_file.h"

#include "llmc/base/directory.h"
#include "llmc/base/file.h"
#include "llmc/base/path.h"
#include "llmc/base/path_reason.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>

enum { BUFFER_BYTES = 1 << 20 };

struct AtomicFile {
    char *path;      // the final name
    char *temporary; // the name while it is written
    int fd;
    int lock; // another descriptor of the open file, which keeps it locked until it has its name;
              // -1: none
    XXH3_state_t *hash;
    char *buffer;
    size_t used;   // bytes in the buffer
    int64_t bytes; // written so far, without the buffer
    bool failed;
    Error error; // the first failure
};

static void atomic_file_free(AtomicFile *f) {
    if (f->fd >= 0) close(f->fd);
    if (f->lock >= 0) close(f->lock);
    XXH3_freeState(f->hash);
    free(f->buffer);
    free(f->path);
    free(f->temporary);
    free(f);
}

// Opens a new file, path.tmp-PID; with a higher number if a process of another machine has that
// name. It is locked as long as it has it: one without a lock was left by a process that was
// killed, and atomic_file_clean may remove it, even before it is locked here.
static bool open_temporary(AtomicFile *f) {
    enum { MAX_PID = 1 << 22, MAX_NAMES = 100 };
    struct stat st;
    for (long name = 0; name < MAX_NAMES; name++) {
        free(f->temporary);
        REQUIRE_MEMORY(asprintf(&f->temporary, "%s.tmp-%ld", f->path, getpid() + name * MAX_PID) >=
                           0,
                       "a path");
        f->fd = open(f->temporary, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0644);
        if (f->fd < 0 && errno == EEXIST) continue;
        if (f->fd < 0) return false;
        flock(f->fd, LOCK_EX); // without locks on this file system nothing is removed
        if (fstat(f->fd, &st) != 0 || st.st_nlink > 0) {
            f->lock = fcntl(f->fd, F_DUPFD_CLOEXEC, 0);
            return true;
        }
        close(f->fd);
        f->fd = -1;
    }

    errno = EEXIST;
    return false;
}

AtomicFile *atomic_file_create(const char *path, Error *err) {
    AtomicFile *f = calloc(1, sizeof *f);
    REQUIRE_MEMORY(f != NULL, "a file buffer");
    f->path = strdup(path);
    f->hash = XXH3_createState();
    f->buffer = malloc(BUFFER_BYTES);
    REQUIRE_MEMORY(f->path && f->hash && f->buffer, "a file buffer");
    XXH3_64bits_reset(f->hash);

    struct stat old; // a device or a pipe must not be replaced
    const bool special = stat(path, &old) == 0 && !S_ISREG(old.st_mode) && !S_ISDIR(old.st_mode);
    f->fd = f->lock = -1;
    if (!special) atomic_file_clean(path);
    if (special || !open_temporary(f)) {
        if (special)
            error_set(err, "%s: cannot create: it exists and is not a plain file", path);
        else
            error_set(err, "%s: cannot create: %s", path, path_reason(path, errno).text);
        atomic_file_free(f);
        return NULL;
    }
    return f;
}

static bool atomic_file_fail(AtomicFile *f, const char *what, int reason) {
    f->failed = true;
    return error_set(&f->error, "%s: cannot %s: %s", f->path, what,
                     path_reason(f->path, reason).text);
}

static bool write_through(AtomicFile *f, const char *data, size_t bytes) {
    XXH3_64bits_update(f->hash, data, bytes);
    f->failed = !file_write_all(f->fd, f->path, data, bytes, &f->error);
    f->bytes += (int64_t)bytes;
    return !f->failed;
}

bool atomic_file_write(AtomicFile *f, const void *data, size_t bytes, Error *err) {
    if (!f->failed && f->used + bytes >= BUFFER_BYTES) {
        write_through(f, f->buffer, f->used);
        f->used = 0;
    }
    if (!f->failed && bytes >= BUFFER_BYTES) {
        write_through(f, data, bytes);
    } else if (!f->failed && bytes > 0) {
        memcpy(f->buffer + f->used, data, bytes);
        f->used += bytes;
    }
    if (f->failed) return error_set(err, "%s", f->error.text);
    return true;
}

bool atomic_file_commit(AtomicFile *f, int64_t *bytes, uint64_t *checksum, Error *err) {
    const int fd = f->fd;
    bool ok = !f->failed && write_through(f, f->buffer, f->used);
    if (ok && fsync(fd) != 0) ok = atomic_file_fail(f, "flush to disk", errno);
    if (ok) {
        f->fd = -1;
        if (close(fd) != 0)
            // here network file systems report a full disk
            ok = atomic_file_fail(f, "close", errno);
    }
    if (ok && rename(f->temporary, f->path) != 0)
        ok = atomic_file_fail(f, "rename into place", errno);

    if (!ok || !directory_sync_parent(f->path, &f->error)) {
        error_set(err, "%s", f->error.text);
        atomic_file_abandon(f);
        return false;
    }

    if (bytes) *bytes = f->bytes;
    if (checksum) *checksum = XXH3_64bits_digest(f->hash);
    atomic_file_free(f);
    return true;
}

// Removes a temporary file that no process writes.
static void remove_stale(const char *path) {
    struct stat opened, named;
    // NFS locks what is open for writing
    const int fd = open(path, O_WRONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
    if (fd < 0) return;
    // Its process may have renamed it in between.
    if (flock(fd, LOCK_EX | LOCK_NB) == 0 && fstat(fd, &opened) == 0 && lstat(path, &named) == 0 &&
        opened.st_ino == named.st_ino && opened.st_dev == named.st_dev && S_ISREG(named.st_mode))
        unlink(path);
    close(fd);
}

void atomic_file_clean(const char *path) {
    char **names, *parent = path_parent(path), *prefix = NULL;
    int count;
    REQUIRE_MEMORY(asprintf(&prefix, "%s.tmp-", path_name(path)) >= 0, "a path");
    if (directory_list(parent, &names, &count, NULL)) {
        for (int i = 0; i < count; i++) {
            char *left = path_join(parent, names[i]);
            const char *pid = names[i] + strlen(prefix); // if it begins with the prefix
            if (strncmp(names[i], prefix, strlen(prefix)) == 0 &&
                pid[strspn(pid, "0123456789")] == '\0')
                remove_stale(left);
            free(left);
        }
        directory_list_free(names, count);
    }
    free(prefix);
    free(parent);
}

void atomic_file_abandon(AtomicFile *f) {
    if (!f) return;
    unlink(f->temporary);
    atomic_file_free(f);
}

bool file_write_atomic(const char *path, const void *data, size_t bytes, Error *err) {
    AtomicFile *f = atomic_file_create(path, err);
    if (!f) return false;
    atomic_file_write(f, data, bytes, err); // commit reports a failure
    return atomic_file_commit(f, NULL, NULL, err);
}
