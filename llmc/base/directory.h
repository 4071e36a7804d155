// Directories: made with their parents, listed, removed, made durable, moved into place as a whole.
#pragma once
#include "llmc/base/error.h"

#include <stddef.h>

bool directory_make(const char *path, Error *err);           // with parents, all of them durable; existing is fine
bool directory_sync(const char *path, Error *err);           // makes new, removed and renamed names in it durable
bool directory_sync_parent(const char *path, Error *err);    // the same for the directory that path is in
bool directory_check_writable(const char *path, Error *err); // tests that it can be made and written; leaves nothing
size_t directory_existing(const char *path);                 // length of the longest prefix of path that exists
void directory_unmake(const char *path, size_t existing);    // removes directories made beyond that, if empty
// The names in a directory except . and .., malloced. False, and nothing to free, if it cannot be read to its end: why
// is also in errno.
bool directory_list(const char *path, char ***names, int *count, Error *err);
void directory_list_free(char **names, int count);
bool directory_remove(const char *path, Error *err); // a directory of plain files
// fsync from, rename, fsync the parent. An existing directory at `to` is replaced: the two are exchanged, in one step
// if the file system supports that. The old one is then at `from`, for the caller to remove.
bool directory_commit(const char *from, const char *to, Error *err);
