// Why a call on a path failed, with the part of the path that it is about: `a/b/c.bin: cannot open:
// No such file or directory: there is no 'a/b'`. It looks at the path after the failure, and only
// for the message.
#pragma once
#include <sys/types.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct {
    char text[768];
} PathReason;

// strerror(reason), then the first part of the path that is missing, is not a directory, may not be
// entered or written, is too long, or is a link that leads nowhere. For messages: "%s: cannot open:
// %s", path, path_reason(path, errno).text
PathReason path_reason(const char *path, int reason);

// Why a pattern of file names matches nothing, ": there is no 'a/b'", if it is because of a
// directory; else "".
PathReason path_pattern_reason(const char *pattern);

const char *path_kind(mode_t mode); // "a directory", "a pipe", ...

#ifdef __cplusplus
}
#endif
