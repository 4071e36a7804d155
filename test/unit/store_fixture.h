// What the tests of llmc/store share: an empty directory and a cleared error for each test, and looks at what a call
// left. Included once by a test program, after cmocka.h.
#pragma once
#include "llmc/base/error.h"
#include "test/unit/assert_error.h"
#include "test/unit/tmpdir.h"

#include <dirent.h>
#include <string.h>

static TmpDir tmp;
static Error err;

static inline int setup(void **state) {
    (void)state;
    tmp = tmpdir_make();
    err.text[0] = '\0';
    return 0;
}

static inline int teardown(void **state) {
    (void)state;
    tmpdir_remove(&tmp);
    return 0;
}

// Files and directories in it, hidden ones too.
static inline int entries_of(const char *directory) {
    int n = 0;
    DIR *d = opendir(directory);
    assert_non_null(d);
    for (struct dirent *e; (e = readdir(d));) n += strcmp(e->d_name, ".") != 0 && strcmp(e->d_name, "..") != 0;
    closedir(d);
    return n;
}
