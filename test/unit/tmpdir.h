// A temporary directory for one test: made with mkdtemp under $TMPDIR (or the system's place), removed with all that is
// in it. Every test program includes this for itself.
#pragma once
#include <ftw.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

typedef struct {
    char path[PATH_MAX / 2];
} TmpDir;

static inline TmpDir tmpdir_make(void) {
    TmpDir dir;
    const char *base = getenv("TMPDIR");
    snprintf(dir.path, sizeof dir.path, "%s/llmc-test-XXXXXX", base && *base ? base : P_tmpdir);
    if (!mkdtemp(dir.path)) perror(dir.path), abort();
    return dir;
}

static inline int tmpdir_unlink(const char *path, const struct stat *st, int type, struct FTW *walk) {
    (void)st, (void)type, (void)walk;
    return remove(path);
}

static inline void tmpdir_remove(const TmpDir *dir) { nftw(dir->path, tmpdir_unlink, 16, FTW_DEPTH | FTW_PHYS); }

// The path of a file in it, in one of a few static buffers: good until eight calls later.
static inline const char *tmpdir_file(const TmpDir *dir, const char *name) {
    static char paths[8][PATH_MAX];
    static unsigned next;
    char *path = paths[next++ % 8];
    snprintf(path, PATH_MAX, "%s/%s", dir->path, name);
    return path;
}
