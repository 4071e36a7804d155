// See path.h.
#include "llmc/base/path.h"

#include "llmc/base/arithmetic.h"
#include "llmc/base/error.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

char *path_join(const char *directory, const char *name) {
    char *path = NULL;
    size_t n = strlen(directory);
    const char *slash = n > 0 && directory[n - 1] == '/' ? "" : "/";
    REQUIRE_MEMORY(asprintf(&path, "%s%s%s", directory, slash, name) >= 0, "a path");
    return path;
}

char *path_parent(const char *path) {
    size_t n = strlen(path);
    while (n > 1 && path[n - 1] == '/') n--;
    while (n > 0 && path[n - 1] != '/') n--;
    while (n > 1 && path[n - 1] == '/') n--;
    if (n == 0) path = ".";
    char *parent = strndup(path, max_size(n, 1));
    REQUIRE_MEMORY(parent != NULL, "a path");
    return parent;
}

const char *path_name(const char *path) {
    const char *slash = strrchr(path, '/');
    if (slash) return slash + 1;
    return path;
}

char *path_unused(const char *path) {
    char *unused = NULL;
    struct stat st;
    int i = 0;
    do {
        free(unused);
        REQUIRE_MEMORY(asprintf(&unused, "%s.%d", path, ++i) >= 0, "a path");
    } while (lstat(unused, &st) == 0);
    return unused;
}

bool path_is_same(const char *a, const char *b) {
    struct stat x, y;
    return stat(a, &x) == 0 && stat(b, &y) == 0 && x.st_dev == y.st_dev && x.st_ino == y.st_ino;
}
