// Atomic files and growing files, see atomic_file.h. Writes go through a buffer of 1 MiB, which is also the unit of the
// checksum, so that the disk limits the speed of a checkpoint. A growing file is never seeked and never buffered.
#include "llmc/base/atomic_file.h"

#include "llmc/base/limits.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <glob.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>
#include <xxhash.h>

enum { BUFFER_BYTES = 1 << 20 };

struct AtomicFile {
    char *path;      // the final name
    char *temporary; // the name while it is written
    int fd;
    XXH3_state_t *hash;
    char *buffer;
    size_t used;   // bytes in the buffer
    int64_t bytes; // written so far, without the buffer
    bool failed;
    Error error; // the first failure
};

char *path_join(const char *directory, const char *name) {
    char *path = NULL;
    size_t n = strlen(directory);
    int length = asprintf(&path, n > 0 && directory[n - 1] == '/' ? "%s%s" : "%s/%s", directory, name);
    REQUIRE_MEMORY(length >= 0, "a path");
    return path;
}

char *path_parent(const char *path) {
    size_t n = strlen(path);
    while (n > 1 && path[n - 1] == '/') n--;
    while (n > 0 && path[n - 1] != '/') n--;
    while (n > 1 && path[n - 1] == '/') n--;
    char *parent = n == 0 ? strdup(".") : strndup(path, n);
    REQUIRE_MEMORY(parent != NULL, "a path");
    return parent;
}

// Some network file systems have no fsync for directories, and a directory that may be written may be unreadable; on
// those nothing more can be done.
bool directory_sync(const char *path, Error *err) {
    int fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0)
        return errno == EACCES ||
               error_set(err, "%s: cannot open the directory: %s", path, path_reason(path, errno).text);
    bool ok = fsync(fd) == 0 || errno == EINVAL || errno == ENOTSUP;
    if (!ok) error_set(err, "%s: cannot flush the directory to disk: %s", path, strerror(errno));
    close(fd);
    return ok;
}

static bool sync_parent(const char *path, Error *err) {
    char *parent = path_parent(path);
    bool ok = directory_sync(parent, err);
    free(parent);
    return ok;
}

// ----------------------------------------------------------------------------------------------------------- writing

static void atomic_file_free(AtomicFile *f) {
    if (f->fd >= 0) close(f->fd);
    XXH3_freeState(f->hash);
    free(f->buffer);
    free(f->path);
    free(f->temporary);
    free(f);
}

AtomicFile *atomic_file_create(const char *path, Error *err) {
    AtomicFile *f = calloc(1, sizeof *f);
    REQUIRE_MEMORY(f != NULL, "a file buffer");
    f->path = strdup(path);
    f->hash = XXH3_createState();
    f->buffer = malloc(BUFFER_BYTES);
    bool named = asprintf(&f->temporary, "%s.tmp-%ld", path, (long)getpid()) >= 0;
    REQUIRE_MEMORY(named && f->path && f->hash && f->buffer, "a file buffer");
    XXH3_64bits_reset(f->hash);
    struct stat old; // a device or a pipe must not be replaced
    const bool special = stat(path, &old) == 0 && !S_ISREG(old.st_mode) && !S_ISDIR(old.st_mode);
    f->fd = special ? -1 : open(f->temporary, O_WRONLY | O_CREAT | O_TRUNC | O_NOFOLLOW | O_CLOEXEC, 0644);
    if (f->fd < 0) {
        error_set(err, "%s: cannot create: %s", path,
                  special ? "it exists and is not a plain file" : path_reason(path, errno).text);
        atomic_file_free(f);
        return NULL;
    }
    return f;
}

static bool fail(AtomicFile *f, const char *what, int reason) {
    f->failed = true;
    return error_set(&f->error, "%s: cannot %s: %s", f->path, what, path_reason(f->path, reason).text);
}

static bool write_through(AtomicFile *f, const char *data, size_t bytes) {
    XXH3_64bits_update(f->hash, data, bytes);
    f->failed = !file_write_all(f->fd, f->path, data, bytes, &f->error);
    f->bytes += (int64_t)bytes;
    return !f->failed;
}

static bool write_buffered(AtomicFile *f, const char *data, size_t bytes) {
    if (f->used + bytes >= BUFFER_BYTES) {
        size_t used = f->used;
        f->used = 0;
        if (!write_through(f, f->buffer, used)) return false;
        if (bytes >= BUFFER_BYTES) return write_through(f, data, bytes);
    }
    memcpy(f->buffer + f->used, data, bytes);
    f->used += bytes;
    return true;
}

bool atomic_file_write(AtomicFile *f, const void *data, size_t bytes, Error *err) {
    if (bytes == 0 && !f->failed) return true;
    if (!f->failed && write_buffered(f, data, bytes)) return true;
    return error_set(err, "%s", f->error.text);
}

static bool flush_and_rename(AtomicFile *f) {
    if (f->failed || !write_through(f, f->buffer, f->used)) return false;
    if (fsync(f->fd) != 0) return fail(f, "flush to disk", errno);
    int fd = f->fd;
    f->fd = -1;
    if (close(fd) != 0) return fail(f, "close", errno); // here network file systems report a full disk
    if (rename(f->temporary, f->path) != 0) return fail(f, "rename into place", errno);
    if (!sync_parent(f->path, &f->error)) f->failed = true;
    return !f->failed;
}

bool atomic_file_commit(AtomicFile *f, int64_t *bytes, uint64_t *checksum, Error *err) {
    if (!flush_and_rename(f)) {
        error_set(err, "%s", f->error.text);
        atomic_file_abandon(f);
        return false;
    }
    if (bytes) *bytes = f->bytes;
    if (checksum) *checksum = XXH3_64bits_digest(f->hash);
    atomic_file_free(f);
    return true;
}

void atomic_file_clean(const char *path) {
    char **names, *parent = path_parent(path), *prefix = NULL;
    int count;
    const char *slash = strrchr(path, '/');
    REQUIRE_MEMORY(asprintf(&prefix, "%s.tmp-", slash ? slash + 1 : path) >= 0, "a path");
    if (directory_list(parent, &names, &count, NULL)) {
        for (int i = 0; i < count; i++) {
            char *left = path_join(parent, names[i]);
            const char *pid = names[i] + strlen(prefix); // if it begins with the prefix
            if (strncmp(names[i], prefix, strlen(prefix)) == 0 && pid[strspn(pid, "0123456789")] == '\0') unlink(left);
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

// ----------------------------------------------------------------------------------------------------------- reading

void standard_files_open(void) {
    int fd;
    do fd = open("/dev/null", O_RDWR); // the lowest free number
    while (fd >= 0 && fd <= STDERR_FILENO);
    if (fd >= 0) close(fd);
}

int64_t file_size(int fd) {
    struct stat st;
    return fstat(fd, &st) == 0 && S_ISREG(st.st_mode) ? (int64_t)st.st_size : -1;
}

bool file_write_all(int fd, const char *path, const void *data, size_t bytes, Error *err) {
    for (size_t done = 0; done < bytes;) {
        const ssize_t n = write(fd, (const char *)data + done, bytes - done);
        if (n < 0 && errno == EINTR) continue;
        if (n <= 0) return error_set(err, "%s: cannot write: %s", path, limits_reason(n < 0 ? errno : EIO));
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
            return error_set(err, "%s: the file ends at byte %lld, expected %zu bytes at offset %lld", path,
                             (long long)offset + (long long)done, n, (long long)offset);
        done += (size_t)got;
    }
    return true;
}

// O_NONBLOCK keeps a pipe without a writer from blocking the program; it has no effect on plain files.
int file_open(const char *path, int64_t *size, Error *err) {
    const int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK), reason = errno;
    struct stat st;
    const bool found = (fd >= 0 ? fstat(fd, &st) : stat(path, &st)) == 0;
    if (found && !S_ISREG(st.st_mode))
        error_set(err, "%s: not a plain file but %s", path, path_kind(st.st_mode));
    else if (fd < 0 || !found)
        error_set(err, "%.600s: cannot open: %s", path, path_reason(path, fd < 0 ? reason : errno).text); // not cut
    else
        return *size = (int64_t)st.st_size, fd;
    if (fd >= 0) close(fd);
    return -1;
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

bool file_checksum(const char *path, int64_t *bytes, uint64_t *checksum, Error *err) {
    int64_t size;
    int fd = file_open(path, &size, err);
    if (fd < 0) return false;
    XXH3_state_t *hash = XXH3_createState();
    char *buffer = malloc(size < BUFFER_BYTES ? (size_t)size + 1 : BUFFER_BYTES);
    REQUIRE_MEMORY(hash && buffer, "a file buffer");
    XXH3_64bits_reset(hash);
    bool ok = true;
    for (int64_t at = 0; ok && at < size; at += BUFFER_BYTES) {
        size_t n = size - at < BUFFER_BYTES ? (size_t)(size - at) : (size_t)BUFFER_BYTES;
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

bool file_exists(const char *path) {
    struct stat st;
    return stat(path, &st) == 0;
}

// ------------------------------------------------------------------------------------------------------- directories

bool directory_make(const char *path, Error *err) {
    if (*path == '\0') return error_set(err, "the directory name is empty");
    char *prefix = strdup(path);
    REQUIRE_MEMORY(prefix != NULL, "a path");
    int reason = 0; // of the first call that failed and was needed: later ones fail because of it
    bool ok = true;
    for (char *p = prefix + 1; ok; p++) {
        if (*p != '/' && *p != '\0') continue;
        char end = *p;
        *p = '\0';
        // mkdir may fail on a usable parent (a read-only "/home" gives EROFS, not EEXIST).
        const int failure = mkdir(prefix, 0755) == 0 ? 0 : errno;
        if (failure == 0)
            ok = sync_parent(prefix, err); // what is saved in it is lost with its name
        else if (reason == 0 && !file_exists(prefix))
            reason = failure == EEXIST ? ENOENT : failure; // EEXIST: a link that leads nowhere
        *p = end;
        if (end == '\0') break;
    }
    free(prefix);
    if (!ok) return false;
    struct stat st;
    if (reason == 0 && stat(path, &st) == 0 && !S_ISDIR(st.st_mode)) reason = ENOTDIR;
    return reason == 0 || error_set(err, "%s: cannot make the directory: %s", path, path_reason(path, reason).text);
}

size_t directory_existing(const char *path) {
    char *prefix = strdup(path);
    REQUIRE_MEMORY(prefix, "a path");
    size_t n = strlen(path);
    for (; n > 0; n--) {
        if (path[n] != '/' && path[n] != '\0') continue;
        prefix[n] = '\0';
        if (file_exists(prefix)) break;
    }
    free(prefix);
    return n;
}

char *path_unused(const char *path) {
    char *unused = NULL;
    int i = 0;
    do {
        free(unused);
        REQUIRE_MEMORY(asprintf(&unused, "%s.%d", path, ++i) >= 0, "a path");
    } while (file_exists(unused));
    return unused;
}

void directory_unmake(const char *path, size_t existing) {
    char *prefix = strdup(path);
    REQUIRE_MEMORY(prefix, "a path");
    for (size_t n = strlen(path); n > existing; n--) {
        if (path[n] != '/' && path[n] != '\0') continue;
        prefix[n] = '\0';
        rmdir(prefix);
    }
    free(prefix);
}

static bool write_probe(const char *path, int fd) {
    const bool written = fd >= 0 && write(fd, "?", 1) == 1;
    const int reason = errno;
    if (fd >= 0) close(fd);
    if (fd >= 0 && path) unlink(path);
    errno = reason;
    return written;
}

bool directory_check_writable(const char *path, Error *err) {
    const size_t existing = directory_existing(path);
    bool ok = directory_make(path, err);
    // An unnamed file leaves nothing if the process is killed, and no other process can remove it.
    if (ok && !write_probe(NULL, open(path, O_TMPFILE | O_WRONLY | O_CLOEXEC, 0600))) {
        // Not every file system supports unnamed files; on one that does, this finds the reason.
        char *probe = path_join(path, ".tmp-probe");
        ok = write_probe(probe, open(probe, O_WRONLY | O_CREAT | O_TRUNC | O_NOFOLLOW | O_CLOEXEC, 0600)) ||
             error_set(err, "%s is not writable: %s", path, path_reason(probe, errno).text);
        free(probe);
    }
    directory_unmake(path, existing);
    return ok;
}

bool directory_list(const char *path, char ***names, int *count, Error *err) {
    *names = NULL, *count = 0;
    DIR *dir = opendir(path);
    if (!dir) return error_set(err, "%s: cannot open the directory: %s", path, path_reason(path, errno).text);
    errno = 0; // readdir reports only by errno whether it failed or reached the end
    for (struct dirent *entry; (entry = readdir(dir)); errno = 0) {
        if (strcmp(entry->d_name, ".") == 0 || strcmp(entry->d_name, "..") == 0) continue;
        char **grown = realloc(*names, (size_t)(*count + 1) * sizeof **names), *name = strdup(entry->d_name);
        REQUIRE_MEMORY(grown && name, "the names in a directory");
        *names = grown, (*names)[(*count)++] = name;
    }
    const int reason = errno;
    closedir(dir);
    if (reason == 0) return true;
    directory_list_free(*names, *count);
    *names = NULL, *count = 0;
    error_set(err, "%s: cannot read the directory: %s", path, strerror(reason));
    errno = reason;
    return false;
}

void directory_list_free(char **names, int count) {
    for (int i = 0; i < count; i++) free(names[i]);
    free(names);
}

static int by_bytes(const void *a, const void *b) { return strcmp(*(char *const *)a, *(char *const *)b); }

// The directory that glob could not read; its error callback has no other way to report it.
static _Thread_local Error unread;
static int on_unread(const char *directory, int reason) {
    if (reason == ENOENT || reason == ENOTDIR) return 0;
    error_set(&unread, "%s: cannot read the directory: %s", directory, path_reason(directory, reason).text);
    return 1;
}

// glob takes a directory that fails while it is read for its end.
static void *open_for_glob(const char *path) { return opendir(path); }
static void close_for_glob(void *directory) { closedir(directory); }
static struct dirent *read_for_glob(void *directory) {
    errno = 0;
    struct dirent *entry = readdir(directory);
    if (!entry && errno != 0) error_set(&unread, "cannot read the directory: %s", strerror(errno));
    return entry;
}

bool files_match(const char *pattern, char ***names, int *count, Error *err) {
    glob_t found = {.gl_pathc = 1,
                    .gl_pathv = &(char *){(char *)pattern},
                    .gl_opendir = open_for_glob,
                    .gl_readdir = read_for_glob,
                    .gl_closedir = close_for_glob,
                    .gl_stat = stat,
                    .gl_lstat = lstat};
    const bool name = file_exists(pattern);
    unread.text[0] = '\0';
    const int status = name ? 0 : glob(pattern, GLOB_NOSORT | GLOB_ALTDIRFUNC, on_unread, &found);
    *names = NULL, *count = 0;
    if (*unread.text && status != GLOB_ABORTED) {
        if (status == 0) globfree(&found);
        return error_set(err, "%s: %s", pattern, unread.text);
    }
    if (status == GLOB_NOMATCH) return true;
    if (status == GLOB_ABORTED) return error_set(err, "%s", unread.text);
    if (status != 0 || found.gl_pathc > INT32_MAX) return error_set(err, "%s: out of memory", pattern);
    *names = malloc(found.gl_pathc * sizeof **names);
    REQUIRE_MEMORY(*names, "the names of files");
    for (; *count < (int)found.gl_pathc; ++*count) {
        (*names)[*count] = strdup(found.gl_pathv[*count]);
        REQUIRE_MEMORY((*names)[*count], "the names of files");
    }
    qsort(*names, found.gl_pathc, sizeof **names, by_bytes);
    if (!name) globfree(&found);
    return true;
}

bool directory_remove(const char *path, Error *err) {
    char **names;
    int count;
    if (!directory_list(path, &names, &count, err)) return false;
    bool ok = true;
    for (int i = 0; ok && i < count; i++) {
        char *entry = path_join(path, names[i]);
        if (unlink(entry) != 0) ok = error_set(err, "%s: cannot remove: %s", entry, path_reason(entry, errno).text);
        free(entry);
    }
    directory_list_free(names, count);
    if (ok && rmdir(path) != 0)
        ok = error_set(err, "%s: cannot remove the directory: %s", path, path_reason(path, errno).text);
    return ok;
}

// For file systems without RENAME_EXCHANGE: the old directory is first moved to a temporary name. A kill between the
// renames leaves no directory at `to`, only the complete one at `from`.
static bool exchange_in_three_steps(const char *from, const char *to) {
    char *aside = NULL;
    REQUIRE_MEMORY(asprintf(&aside, "%s.old", from) >= 0, "a path");
    bool ok = rename(to, aside) == 0;
    if (ok && rename(from, to) != 0) {
        const int reason = errno;
        rename(aside, to);
        errno = reason, ok = false;
    }
    if (ok) rename(aside, from); // otherwise it stays there: that name is temporary too
    free(aside);
    return ok;
}

bool directory_commit(const char *from, const char *to, Error *err) {
    if (!directory_sync(from, err)) return false;
    bool ok = rename(from, to) == 0;
    if (!ok && (errno == ENOTEMPTY || errno == EEXIST)) {
        ok = renameat2(AT_FDCWD, from, AT_FDCWD, to, RENAME_EXCHANGE) == 0;
        if (!ok && (errno == EINVAL || errno == ENOSYS || errno == ENOTSUP)) ok = exchange_in_three_steps(from, to);
    }
    return ok ? sync_parent(to, err)
              : error_set(err, "%s: cannot rename into place: %s", to, path_reason(to, errno).text);
}

// ----------------------------------------------------------------------------------------------------- files that grow

// A lock that ends with its process, however the process ends. On file systems without locks it succeeds without one.
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
    if (!f->path || f->fd < 0) return error_set(err, "%s: cannot be written: %s", path, path_reason(path, errno).text);
    return lock_file(f->fd) || error_set(err, "%s: another process is writing it; is this run already active?", path);
}

// The beginning of what directory_hold writes, as far as it goes: a loss of power may leave less, or zeros.
static bool is_own_lock(int fd) {
    static const char word[] = "process ";
    char head[sizeof word - 1] = "";
    const ssize_t n = pread(fd, head, sizeof head, 0);
    bool is_own = n >= 0;
    for (ssize_t i = 0; i < n; i++) is_own = is_own && (head[i] == word[i] || head[i] == '\0');
    return is_own;
}

bool directory_hold(const char *directory, int *fd, Error *err) {
    char holder[160] = "", host[65] = "";
    struct stat found;
    char *path = path_join(directory, ".lock");
    *fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0666);
    bool ok = *fd >= 0 || error_set(err, "%s: cannot be opened: %s", path, path_reason(path, errno).text);
    if (ok && !lock_file(*fd)) {
        if (pread(*fd, holder, sizeof holder - 1, 0) < 1) snprintf(holder, sizeof holder, "another process");
        holder[strcspn(holder, "\n")] = '\0';
        ok = error_set(err, "in use by %s; wait until it ends, or name another directory", holder);
    } else if (ok && fstat(*fd, &found) == 0 && found.st_nlink == 0) {
        ok = error_set(err, "was just removed by a process that ended; start again");
    } else if (ok && !is_own_lock(*fd)) {
        ok = error_set(err, "%s was not written by this program; move it away, or name another directory", path);
    } else if (ok) {
        gethostname(host, sizeof host - 1);
        const int n = snprintf(holder, sizeof holder, "process %ld on %s\n", (long)getpid(), host);
        // For the message only: if the disk is full, the message names no process.
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
    return ftruncate(f->fd, bytes) == 0 || error_set(err, "%s: cannot be truncated: %s", f->path, strerror(errno));
}

bool append_file_sync(AppendFile *f, Error *err) {
    return fsync(f->fd) == 0 || errno == EINVAL || // /dev/null and pipes
           error_set(err, "%s: cannot flush to disk: %s", f->path, strerror(errno));
}

bool append_file_write(AppendFile *f, const void *record, size_t bytes, Error *err) {
    const char *rest = record, *end = rest + bytes;
    int error = 0;
    while (rest < end && !error) { // once, except for signals and full disks: the second try gives the reason
        const ssize_t n = write(f->fd, rest, (size_t)(end - rest));
        if (n > 0) rest += n;
        if (n == 0) error = ENOSPC;
        if (n < 0 && errno != EINTR) error = errno;
    }
    if (!error) {
        f->end += (off_t)bytes;
        return true;
    }
    // A partial record would corrupt the next one.
    if (rest > (const char *)record && ftruncate(f->fd, f->end) != 0) error = errno;
    return error_set(err, "%s: cannot be written: %s", f->path, limits_reason(error));
}

void append_file_close(AppendFile *f) {
    if (f->fd >= 0) close(f->fd);
    f->fd = -1;
    free(f->path);
    f->path = NULL;
}
