// Directories: made with their parents, listed, removed, made durable, moved into place as a whole.
#pragma once
#include "llmc/base/error.h"

#include <stddef.h>

// with parents, all of them durable; existing is fine
bool directory_make(const char *path, Error *err);
// makes new, removed and renamed names in it durable
bool directory_sync(const char *path, Error *err);
// the same for the directory that path is in
bool directory_sync_parent(const char *path, Error *err);
// tests that it can be made and written; leaves nothing
bool directory_check_writable(const char *path, Error *err);
size_t directory_existing(const char *path); // length of the longest prefix of path that exists
// removes directories made beyond that, if empty
void directory_unmake(const char *path, size_t existing);
// The names in a directory except . and .., sorted by their bytes, malloced. False, and nothing to
// free, if it cannot be read to its end: why is also in errno.
bool directory_list(const char *path, char ***names, int *count, Error *err);
void directory_list_free(char **names, int count);
void directory_sort_names(char **names, int count);
// A directory of plain files. Of a link to a directory only the link.
bool directory_remove(const char *path, Error *err);
// fsync from, rename, fsync the parent. A directory at `to` is replaced: the two are exchanged, and
// the old one is then at `from`, for the caller to remove. Where that cannot be done in one step
// (NFS, FUSE, the lower layer of an overlay), directory_merge(from, to, key, false).
bool directory_commit(const char *from, const char *to, const char *key, Error *err);
// rename(2), or where that is EXDEV, for a directory in the lower layer of an overlay without
// redirect_dir (Docker's default), directory_merge(from, to, key, true). False: why is in errno.
bool directory_move(const char *from, const char *to, const char *key);
// Moves the entries of `from` into `to`, one after the other, each over an entry of the same name.
// The file `key` is moved before all others, or after them, and durably so: after a kill it tells
// which of the two directories is complete. NULL: no order. False: why is in errno.
bool directory_merge(const char *from, const char *to, const char *key, bool key_first);
