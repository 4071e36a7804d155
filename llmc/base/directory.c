// See directory.h.
#include "llmc/base/directory.h"

#include "llmc/base/file.h"
#include "llmc/base/path.h"
#include "llmc/base/path_reason.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

// Some network file systems have no fsync for directories, and a directory that may be written may
// be unreadable; on those nothing more can be done.
bool directory_sync(const char *path, Error *err) {
    int fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0 && errno == EACCES) return true;
    if (fd < 0)
        return error_set(err, "%s: cannot open the directory: %s", path,
                         path_reason(path, errno).text);
    bool ok = fsync(fd) == 0 || errno == EINVAL || errno == ENOTSUP;
    if (!ok) error_set(err, "%s: cannot flush the directory to disk: %s", path, strerror(errno));
    close(fd);
    return ok;
}

bool directory_sync_parent(const char *path, Error *err) {
    char *parent = path_parent(path);
    bool ok = directory_sync(parent, err);
    free(parent);
    return ok;
}

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
        const bool made = mkdir(prefix, 0755) == 0;
        int failure = errno;
        if (failure == EEXIST) failure = ENOENT; // a link that leads nowhere
        // what is saved in it is lost with its name
        if (made)
            ok = directory_sync_parent(prefix, err);
        else if (reason == 0 && !file_exists(prefix))
            reason = failure;
        *p = end;
        if (end == '\0') break;
    }

    free(prefix);
    if (!ok) return false;

    struct stat st;
    if (reason == 0 && stat(path, &st) == 0 && !S_ISDIR(st.st_mode)) reason = ENOTDIR;
    if (reason != 0)
        return error_set(err, "%s: cannot make the directory: %s", path,
                         path_reason(path, reason).text);
    return true;
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
        // Some file systems have no unnamed files; on one that has, this finds the reason.
        char *probe = path_join(path, ".tmp-probe");
        ok = write_probe(
                 probe, open(probe, O_WRONLY | O_CREAT | O_TRUNC | O_NOFOLLOW | O_CLOEXEC, 0600)) ||
             error_set(err, "%s is not writable: %s", path, path_reason(probe, errno).text);
        free(probe);
    }
    directory_unmake(path, existing);
    return ok;
}

static int by_bytes(const void *a, const void *b) {
    return strcmp(*(char *const *)a, *(char *const *)b);
}

void directory_sort_names(char **names, int count) {
    if (count > 0) qsort(names, (size_t)count, sizeof *names, by_bytes); // names of none are NULL
}

bool directory_list(const char *path, char ***names, int *count, Error *err) {
    *names = NULL;
    *count = 0;

    DIR *dir = opendir(path);
    if (!dir)
        return error_set(err, "%s: cannot open the directory: %s", path,
                         path_reason(path, errno).text);
    errno = 0; // readdir reports only by errno whether it failed or reached the end
    for (struct dirent *entry; (entry = readdir(dir)); errno = 0) {
        if (strcmp(entry->d_name, ".") == 0 || strcmp(entry->d_name, "..") == 0) continue;
        char **grown = realloc(*names, (size_t)(*count + 1) * sizeof **names),
             *name = strdup(entry->d_name);
        REQUIRE_MEMORY(grown && name, "the names in a directory");
        *names = grown;
        (*names)[(*count)++] = name;
    }

    const int reason = errno;
    closedir(dir);
    directory_sort_names(*names, *count);

    if (reason == 0) return true;
    directory_list_free(*names, *count);
    *names = NULL;
    *count = 0;
    error_set(err, "%s: cannot read the directory: %s", path, strerror(reason));
    errno = reason;
    return false;
}

void directory_list_free(char **names, int count) {
    for (int i = 0; i < count; i++) free(names[i]);
    free(names);
}

static bool is_link(const char *path) {
    struct stat st;
    return lstat(path, &st) == 0 && S_ISLNK(st.st_mode);
}

bool directory_remove(const char *path, Error *err) {
    char **names;
    int count;
    if (is_link(path))
        return unlink(path) == 0 ||
               error_set(err, "%s: cannot remove: %s", path, path_reason(path, errno).text);

    if (!directory_list(path, &names, &count, err)) return false;
    bool ok = true;
    for (int i = 0; ok && i < count; i++) {
        char *entry = path_join(path, names[i]);
        if (unlink(entry) != 0)
            ok = error_set(err, "%s: cannot remove: %s", entry, path_reason(entry, errno).text);
        free(entry);
    }

    directory_list_free(names, count);
    if (ok && rmdir(path) != 0)
        ok = error_set(err, "%s: cannot remove the directory: %s", path,
                       path_reason(path, errno).text);
    return ok;
}

bool directory_merge(const char *from, const char *to, const char *key, bool key_first) {
    char **names;
    int count;
    bool ok =
        (mkdir(to, 0755) == 0 || errno == EEXIST) && directory_list(from, &names, &count, NULL);
    if (!ok) return false;

    for (int pass = 0; pass < 2; pass++) {
        for (int i = 0; ok && i < count; i++) {
            const bool is_key = key && strcmp(names[i], key) == 0;
            if ((is_key == key_first) != (pass == 0)) continue;
            char *source = path_join(from, names[i]), *target = path_join(to, names[i]);
            ok = directory_move(source, target, NULL);
            free(source);
            free(target);
        }
        if (ok) ok = directory_sync(to, NULL);
        if (ok) ok = directory_sync(from, NULL);
    }

    const int reason = errno;
    directory_list_free(names, count);
    errno = reason;
    return ok && rmdir(from) == 0;
}

bool directory_move(const char *from, const char *to, const char *key) {
    return rename(from, to) == 0 || (errno == EXDEV && directory_merge(from, to, key, true));
}

bool directory_commit(const char *from, const char *to, const char *key, Error *err) {
    if (!directory_sync(from, err)) return false;
    bool ok = rename(from, to) == 0;
    if (!ok && (errno == ENOTEMPTY || errno == EEXIST || (errno == ENOTDIR && is_link(to)))) {
        ok = renameat2(AT_FDCWD, from, AT_FDCWD, to, RENAME_EXCHANGE) == 0;
        if (!ok && (errno == EINVAL || errno == ENOSYS || errno == ENOTSUP || errno == EXDEV)) {
            if (is_link(to))
                ok = unlink(to) == 0 && rename(from, to) == 0;
            else
                ok = directory_merge(from, to, key, false);
        }
    }
    if (ok) return directory_sync_parent(to, err);
    return error_set(err, "%s: cannot rename into place: %s", to, path_reason(to, errno).text);
}
