// What the tests of llmc/store share: an empty directory and a cleared error for each test, and looks at what a call
// left. Included once by a test program.
#pragma once
#include "llmc/base/error.h"
#include "test/fixture.h"

static Error err;

static inline int setup(void **state) {
    err.text[0] = '\0';
    return tmp_setup(state);
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
