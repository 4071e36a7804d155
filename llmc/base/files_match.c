// See files_match.h.
#include "llmc/base/files_match.h"

#include "llmc/base/directory.h"
#include "llmc/base/file.h"
#include "llmc/base/path_reason.h"

#include <dirent.h>
#include <errno.h>
#include <glob.h>
#include <limits.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

enum { MAX_PATTERN = 2 * PATH_MAX }; // each byte of a path may be escaped

// The directory that glob could not read; its error callback has no other way to report it.
static _Thread_local Error unread;

static int on_unread(const char *directory, int reason) {
    if (reason == ENOENT || reason == ENOTDIR) return 0;
    error_set(&unread, "%s: cannot read the directory: %s", directory,
              path_reason(directory, reason).text);
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

    // glob recurses for each directory of the pattern, which may be longer than any stack.
    const size_t length = strlen(pattern);
    if (length > MAX_PATTERN)
        return error_set(err, "a pattern of %zu bytes is longer than any path: at most %d", length,
                         (int)MAX_PATTERN);

    const bool name = file_exists(pattern);
    unread.text[0] = '\0';
    const int status = name ? 0 : glob(pattern, GLOB_NOSORT | GLOB_ALTDIRFUNC, on_unread, &found);

    *names = NULL;
    *count = 0;
    if (*unread.text && status != GLOB_ABORTED) {
        if (status == 0) globfree(&found);
        return error_set(err, "%s: %s", pattern, unread.text);
    }

    if (status == GLOB_NOMATCH) return true;
    if (status == GLOB_ABORTED) return error_set(err, "%s", unread.text);
    if (status != 0 || found.gl_pathc > INT32_MAX)
        return error_set(err, "%s: out of memory", pattern);

    *names = malloc(found.gl_pathc * sizeof **names);
    REQUIRE_MEMORY(*names, "the names of files");
    for (; *count < (int)found.gl_pathc; ++*count) {
        (*names)[*count] = strdup(found.gl_pathv[*count]);
        REQUIRE_MEMORY((*names)[*count], "the names of files");
    }

    directory_sort_names(*names, *count);
    if (!name) globfree(&found);
    return true;
}
