// What the tests of llmc/store share: an empty directory and a cleared error for each test, and looks at what a call
// left. Included once by a test program.
#pragma once
#include "llmc/base/error.h"
#include "test/unit/assert_error.h"
#include "test/unit/mutate.h"
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

// Makes a trainer.json one of format 1, as it was before the file had a checksum of itself: what is changed in it then
// is read.
static inline void unseal(const char *path) {
    size_t n;
    char *text = (char *)read_bytes(path, &n);
    text[n] = '\0';
    char *format = strstr(text, "\"format\": 2"), *seal = strstr(text, "\n  },\n  \"xxh3\": ");
    assert_non_null(format);
    assert_non_null(seal);
    format[strlen("\"format\": ")] = '1';
    memcpy(seal, "\n  }\n}\n", sizeof "\n  }\n}\n");
    write_bytes(path, text, strlen(text));
    free(text);
}
