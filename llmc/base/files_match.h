// The files that a pattern of names matches.
#pragma once
#include "llmc/base/error.h"

// The files that match a glob(7) pattern, in byte order, whatever the locale. If a file has the
// pattern itself as its name, the result is that file. No match is not an error; an existing
// directory that cannot be read is, and a pattern of more than 8192 bytes. Free with
// directory_list_free.
bool files_match(const char *pattern, char ***names, int *count, Error *err);
