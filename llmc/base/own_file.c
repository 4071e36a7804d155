// The user's files in the places of ours, see own_file.h.
#include "llmc/base/own_file.h"

#include "llmc/base/arithmetic.h"
#include "llmc/base/atomic_file.h"
#include "llmc/base/directory.h"
#include "llmc/base/file.h"
#include "llmc/base/format.h"
#include "llmc/base/path.h"
#include "llmc/base/path_reason.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

void own_file_mark_header(int32_t header[OWN_FILE_HEADER_INTS]) {
    const char mark[] = OWN_FILE_HEADER_MARK;
    _Static_assert(sizeof mark == 3 * sizeof *header, "the mark is three integers");
    memcpy(header + OWN_FILE_HEADER_INTS - 3, mark, sizeof mark);
}

// Whether the plain file has the mark, or zeros in its first `zeros` bytes (or all of it, where it
// is shorter).
static bool has_mark_or_zeros(const char *path, const char *mark, size_t zeros) {
    char *head = malloc(OWN_FILE_MARK_BYTES);
    REQUIRE_MEMORY(head, "the beginning of a file");

    // a pipe of this name must not hold us up
    const int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    int64_t size = -1;
    int unread = 0; // a directory or a pipe is not ours, nor is a dangling link
    if (fd < 0 && errno != ENOENT) unread = errno;
    errno = 0;
    if (fd >= 0) size = file_size(fd);
    if (fd >= 0 && size < 0) unread = errno;
    const size_t n = (size_t)max_i64(0, min_i64(size, OWN_FILE_MARK_BYTES));
    const bool is_read = size >= 0 && file_read_at(fd, path, 0, head, n, NULL);
    if (size >= 0 && !is_read) unread = errno;
    if (fd >= 0) close(fd);

    bool is_zero = true;
    for (size_t i = 0; is_read && is_zero && i < n && i < zeros; i++) is_zero = head[i] == '\0';
    const bool is_ours = is_read && (is_zero || memmem(head, n, mark, strlen(mark)));
    free(head);
    errno = unread;
    return is_ours;
}

bool own_file_is(const char *path, const char *mark) {
    return has_mark_or_zeros(path, mark, OWN_FILE_MARK_BYTES);
}

bool own_file_move_aside(const char *path, const char *why, int unread, Error *err) {
    char *aside = NULL;
    bool ok;
    if (unread != 0)
        return error_set(err, "%s: cannot be read: %s", path, path_reason(path, unread).text);

    do {
        free(aside);
        aside = path_unused(path);
        ok = renameat2(AT_FDCWD, path, AT_FDCWD, aside, RENAME_NOREPLACE) == 0;
        // Without RENAME_NOREPLACE, or in the lower layer of an overlay: the name was unused a
        // moment ago.
        if (!ok && (errno == EINVAL || errno == ENOSYS || errno == ENOTSUP || errno == EXDEV))
            ok = directory_move(path, aside, NULL);
    } while (!ok && errno == EEXIST); // another process took that name

    if (ok)
        format_print(stderr, "%s %s; it was renamed to %s\n", path, why, aside);
    else
        error_set(err, "%s %s, and cannot be renamed: %s", path, why,
                  path_reason(path, errno).text);
    free(aside);
    return ok;
}

bool own_file_make_way(const char *path, const char *mark, Error *err) {
    struct stat st;
    // Anything else is absent, or is left for the caller's own call to refuse.
    const bool exists = stat(path, &st) == 0;
    if (exists && !S_ISREG(st.st_mode)) return true;
    if (!exists && lstat(path, &st) != 0) return true;
    if (!own_file_is(path, mark))
        return own_file_move_aside(path, "was not written by this program", errno, err);
    return true;
}

bool own_file_commit(AtomicFile *f, const char *path, const char *mark, Error *err) {
    if (own_file_make_way(path, mark, err)) return atomic_file_commit(f, NULL, NULL, err);
    atomic_file_abandon(f);
    return false;
}

bool own_file_write(const char *path, const char *mark, const void *data, size_t bytes,
                    Error *err) {
    AtomicFile *f = atomic_file_create(path, err);
    if (!f) return false;
    atomic_file_write(f, data, bytes, err); // commit reports a failure
    return own_file_commit(f, path, mark, err);
}

// The block that a file system writes or loses whole.
enum { DISK_BLOCK_BYTES = 4096 };

static bool is_of_kind(const char *name, const OwnFileKind *kind) {
    const size_t n = strlen(kind->name), prefix = strlen(".tmp-");
    if (strncmp(name, kind->name, n) != 0) return false;
    if (name[n] == '\0') return true;
    const char *pid = name + n + prefix;
    return strncmp(name + n, ".tmp-", prefix) == 0 && *pid != '\0' &&
           pid[strspn(pid, "0123456789")] == '\0';
}

bool own_directory_is(const char *directory, const OwnFileKind *kinds, int count, bool by_name,
                      Error *err) {
    char **names;
    int found, unread = 0;
    bool ok = directory_list(directory, &names, &found, err);
    if (!ok) unread = (int)positive_or(errno, EIO);

    for (int i = 0; ok && i < found; i++) {
        char *path = path_join(directory, names[i]);
        ok = strncmp(names[i], ".nfs", 4) == 0;
        for (int k = 0; !ok && k < count; k++) {
            if (is_of_kind(names[i], &kinds[k])) {
                // A loss of power may keep any blocks of a file that was being written.
                size_t zeros = DISK_BLOCK_BYTES;
                if (strcmp(names[i], kinds[k].name) == 0) zeros = OWN_FILE_MARK_BYTES;
                ok = by_name || has_mark_or_zeros(path, kinds[k].mark, zeros);
                unread = 0;
                if (!ok) unread = errno;
            }
        }
        if (!ok) error_set(err, "%.100s in it was not written by this program", names[i]);
        free(path);
    }

    directory_list_free(names, found);
    errno = unread;
    return ok;
}
