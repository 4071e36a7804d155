// Files of ours in directories of the user's. A file is written over one of the same name only if
// that one is ours too. The content of a file decides, not its name: every kind of file has a mark,
// bytes that are always near its beginning and that other programs do not write. A file without the
// mark is renamed to an unused name, and a line on stderr says so. A symbolic link is renamed or
// replaced itself; the file it points to is never written.
#pragma once
#include "llmc/base/atomic_file.h"

enum { OWN_FILE_MARK_BYTES = 1 << 16 }; // the mark is within these first bytes of the file

// The mark of headers that are 256 integers, of which the format uses the first few: in the last
// three.
#define OWN_FILE_HEADER_MARK "pretrain.cu"
enum { OWN_FILE_HEADER_INTS = 256 };
void own_file_mark_header(int32_t header[OWN_FILE_HEADER_INTS]);

// Whether the plain file has the mark, or nothing but zeros there: what a loss of power leaves.
// False with errno 0: it is not ours; with another errno: it cannot be read.
bool own_file_is(const char *path, const char *mark);
// A file at the path is moved aside unless it is ours. So is a dangling link; a directory, a pipe
// or a device stays.
bool own_file_make_way(const char *path, const char *mark, Error *err);
// Moves a file or directory aside: renames it to path_unused(path), never over another, and says
// `why`. unread: the errno with which the look at its content failed; then it stays, and false. 0:
// it was read.
bool own_file_move_aside(const char *path, const char *why, int unread, Error *err);
// file_write_atomic
bool own_file_write(const char *path, const char *mark, const void *data, size_t bytes, Error *err);
// atomic_file_commit
bool own_file_commit(AtomicFile *f, const char *path, const char *mark, Error *err);

// A kind of file that a directory of ours has; mark "": any file of the name.
typedef struct {
    const char *name, *mark;
} OwnFileKind;
// Whether all that is in the directory are files of these kinds, by name and mark, complete or
// being written (NAME.tmp-PID, which may have lost its first block), or files that NFS keeps
// because they are still open. by_name: without a look at the marks. False with the first other
// name in the message, and errno as of own_file_is.
bool own_directory_is(const char *directory, const OwnFileKind *kinds, int count, bool by_name,
                      Error *err);
