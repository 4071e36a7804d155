// Names of files: a directory and a name make a path, a path has a parent. Every path returned is
// malloced.
#pragma once
#include <stdbool.h>

char *path_join(const char *directory, const char *name); // "directory/name", malloced
// The directory part, malloced: "a/b" -> "a", "b" -> ".", "/b" -> "/", "a/b/" -> "a".
char *path_parent(const char *path);
const char *path_name(const char *path); // the part after the last slash
char *path_unused(const char *path);     // path.1, or path with the first unused number; malloced
// the same existing file or directory, by whatever name or link
bool path_is_same(const char *a, const char *b);
