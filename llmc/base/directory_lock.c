// See directory_lock.h.
#include "llmc/base/directory_lock.h"

#include "llmc/base/directory.h"
#include "llmc/base/path.h"
#include "llmc/base/path_reason.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

bool file_lock(int fd) {
    const struct timespec pause = {0, 50 * 1000 * 1000};
    for (int i = 0; i < 20; i++) {
        if (flock(fd, LOCK_EX | LOCK_NB) == 0 || (errno != EWOULDBLOCK && errno != EINTR))
            return true;
        nanosleep(&pause, NULL);
    }
    return false;
}

// The beginning of what directory_hold writes, as far as it goes: a loss of power may leave less,
// or zeros.
static bool is_own_lock(int fd) {
    static const char word[] = "process ";
    char head[sizeof word - 1] = "";
    const ssize_t n = pread(fd, head, sizeof head, 0);
    bool is_own = n >= 0;
    for (ssize_t i = 0; i < n; i++) is_own = is_own && (head[i] == word[i] || head[i] == '\0');
    return is_own;
}

// Whether a process writes the log of the directory: it holds a lock, too, which stays where .lock
// was removed.
static bool log_is_held(const char *directory) {
    char *path = path_join(directory, "main.log");
    const int fd = open(path, O_RDWR | O_NOFOLLOW | O_CLOEXEC);
    const bool is_held = fd >= 0 && !file_lock(fd);
    if (fd >= 0) close(fd);
    free(path);
    return is_held;
}

bool directory_hold(const char *directory, int *fd, Error *err) {
    char holder[160] = "", host[65] = "";
    struct stat found;
    char *path = path_join(directory, ".lock");
    *fd = open(path, O_RDWR | O_CREAT | O_NOFOLLOW | O_CLOEXEC, 0666);
    bool ok =
        *fd >= 0 || error_set(err, "%s: cannot be opened: %s", path, path_reason(path, errno).text);

    if (ok && !file_lock(*fd)) {
        if (!is_own_lock(*fd) || pread(*fd, holder, sizeof holder - 1, 0) < 1)
            snprintf(holder, sizeof holder, "another process");
        holder[strcspn(holder, "\n")] = '\0';
        ok = error_set(err, "in use by %s; wait until it ends, or name another directory", holder);
    } else if (ok && fstat(*fd, &found) == 0 && found.st_nlink == 0) {
        ok = error_set(err, "was just removed by a process that ended; start again");
    } else if (ok && !is_own_lock(*fd)) {
        ok = error_set(
            err, "%s was not written by this program; move it away, or name another directory",
            path);
    } else if (ok && log_is_held(directory)) {
        ok = error_set(err, "in use by another process, whose .lock was removed; wait until it "
                            "ends, or name another "
                            "directory");
    } else if (ok) {
        gethostname(host, sizeof host - 1);
        const int n = snprintf(holder, sizeof holder, "process %ld on %s\n", (long)getpid(), host);
        // For the message only: if the disk is full, the message names no process.
        if (ftruncate(*fd, 0) != 0 || pwrite(*fd, holder, (size_t)n, 0) != n) errno = 0;
    }

    if (!ok && *fd >= 0) {
        close(*fd);
        *fd = -1;
    }
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
