// See path_reason.h.
#include "llmc/base/path_reason.h"

#include "llmc/base/arithmetic.h"
#include "llmc/base/error.h"
#include "llmc/base/limits.h"

#include <errno.h>
#include <limits.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { SHOWN = 300 }; // bytes of a part of the path

const char *path_kind(mode_t mode) {
    if (S_ISREG(mode)) return "a file";
    if (S_ISDIR(mode)) return "a directory";
    if (S_ISFIFO(mode)) return "a pipe";
    if (S_ISSOCK(mode)) return "a socket";
    return "a device";
}

__attribute__((format(printf, 2, 3))) static bool append_part(PathReason *r, const char *format,
                                                              ...) {
    va_list args;
    const size_t n = strlen(r->text);
    va_start(args, format);
    vsnprintf(r->text + n, sizeof r->text - n, format, args);
    va_end(args);
    return true;
}

// Appends what is wrong with this part of the path, if it is; is_last: it is the whole path.
static bool explain_prefix(PathReason *r, const char *prefix, bool is_last) {
    struct stat link, st;
    if (lstat(prefix, &link) != 0)
        return errno == ENOENT && !is_last && append_part(r, ": there is no '%.*s'", SHOWN, prefix);
    if (stat(prefix, &st) != 0) {
        if (errno == ELOOP)
            return append_part(r, ": '%.*s' is a link that leads back to itself", SHOWN, prefix);
        if (errno != ENOENT) return false;
        char target[SHOWN + 1];
        const ssize_t n = readlink(prefix, target, sizeof target - 1);
        target[max_i64(n, 0)] = '\0';
        return append_part(r, ": '%.*s' is a link to '%s', which does not exist", SHOWN, prefix,
                           target);
    }

    if (is_last) return false;
    if (!S_ISDIR(st.st_mode))
        return append_part(r, ": '%.*s' is %s", SHOWN, prefix, path_kind(st.st_mode));
    return access(prefix, X_OK) != 0 &&
           append_part(r, ": '%.*s' may not be entered", SHOWN, prefix);
}

PathReason path_reason(const char *path, int reason) {
    PathReason r;
    snprintf(r.text, sizeof r.text, "%s", limits_reason(reason));

    if (reason == ENAMETOOLONG && strlen(path) >= PATH_MAX) {
        append_part(&r, ": the path has %zu bytes, expected less than %d", strlen(path), PATH_MAX);
    } else if (reason == ENAMETOOLONG) {
        const char *name = path;
        while (*name && strcspn(name, "/") <= NAME_MAX)
            name += strcspn(name, "/") + (name[strcspn(name, "/")] == '/');
        append_part(&r, ": the name '%.32s...' has %zu bytes, expected at most %d", name,
                    strcspn(name, "/"), NAME_MAX);
    }

    if (reason != ENOENT && reason != ENOTDIR && reason != EACCES && reason != ELOOP) return r;
    if (*path == '\0') append_part(&r, ": the path is empty");

    char *prefix = strdup(path);
    REQUIRE_MEMORY(prefix, "a path");
    bool found = *path == '\0';

    for (char *p = prefix + strspn(prefix, "/"); !found && *p;) {
        p += strcspn(p, "/");
        const size_t slashes = strspn(p, "/");
        const char end = *p;
        *p = '\0';
        found = explain_prefix(&r, prefix, end == '\0');
        *p = end;
        p += slashes;
    }

    if (!found && reason == ELOOP)
        append_part(&r, ": it is a link, and nothing is written through links");
    // Every part could be entered: it is the file itself, or the directory that should get it.
    if (!found && reason == EACCES && (access(prefix, F_OK) != 0 || access(prefix, R_OK) == 0)) {
        char *slash = strrchr(prefix, '/');
        const char *directory = slash ? prefix : ".";
        if (slash) slash[slash == prefix] = '\0';
        if (access(directory, W_OK) != 0)
            append_part(&r, ": '%.*s' may not be written", SHOWN, directory);
    }

    free(prefix);
    errno = reason; // callers may still ask for it
    return r;
}

PathReason path_pattern_reason(const char *pattern) {
    // only the directories before the first pattern have one name
    const size_t fixed = strcspn(pattern, "*?[");
    char *path = strndup(pattern, fixed + strcspn(pattern + fixed, "/"));
    REQUIRE_MEMORY(path, "a path");
    PathReason r = path_reason(path, ENOENT);
    free(path);
    const size_t n = strlen(strerror(ENOENT));
    memmove(r.text, r.text + n, strlen(r.text) - n + 1);
    return r;
}
