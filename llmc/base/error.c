// See error.h.
#include "llmc/base/error.h"
#undef error_set // clang-tidy sees the result of calls

#include "llmc/base/arithmetic.h"
#include "llmc/base/utf8.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

bool error_set(Error *err, const char *format, ...) {
    if (!err) return false;
    char text[sizeof err->text]; // the arguments may point into err->text itself
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    utf8_make_visible(text, err->text, sizeof err->text);
    return false;
}

bool error_prefix(Error *err, const char *format, ...) {
    if (!err) return false;
    char text[sizeof err->text];
    va_list args;
    va_start(args, format);
    int n = vsnprintf(text, sizeof text, format, args);
    va_end(args);
    size_t used = (size_t)max_i64(n, 0);
    if (used >= sizeof text) used = sizeof text - 1;
    snprintf(text + used, sizeof text - used, ": %s", err->text);
    utf8_make_visible(text, err->text, sizeof err->text);
    return false;
}

void bug_report(const char *file, int line, const char *format, ...) {
    fflush(stdout);
    fprintf(stderr, "bug: %s:%d: ", file, line);
    va_list args;
    va_start(args, format);
    vfprintf(stderr, format, args);
    va_end(args);
    fputc('\n', stderr);
    abort();
}

// Ends by _exit: under exit() the destructors of libraries would allocate memory again.
void out_of_memory(const char *what, ...) {
    Error text;
    va_list args;
    va_start(args, what);
    vsnprintf(text.text, sizeof text.text, what, args);
    va_end(args);
    error_set(&text, "%s: out of memory for %s", program_invocation_name, text.text);
    fflush(stdout);
    fprintf(stderr, "%s\n", text.text);
    _exit(EXIT_RUN_FAILED);
}

typedef struct {
    char **text;
    size_t *bytes, capacity;
} Text;

static ssize_t text_write(void *cookie, const char *data, size_t n) {
    Text *t = cookie;
    if (*t->bytes + n >= t->capacity) {
        t->capacity = 2 * (*t->bytes + n) + 1;
        *t->text = realloc(*t->text, t->capacity);
        REQUIRE_MEMORY(*t->text, "a text of %zu bytes", t->capacity);
    }
    memcpy(*t->text + *t->bytes, data, n);
    *t->bytes += n;
    (*t->text)[*t->bytes] = '\0';
    return (ssize_t)n;
}

static int text_close(void *cookie) {
    free(cookie);
    return 0;
}

FILE *text_open(char **text, size_t *bytes) {
    Text *t = malloc(sizeof *t);
    *text = calloc(1, 1);
    REQUIRE_MEMORY(t && *text, "a text");
    *t = (Text){text, bytes, 1};
    *bytes = 0;
    FILE *stream =
        fopencookie(t, "w", (cookie_io_functions_t){.write = text_write, .close = text_close});
    REQUIRE_MEMORY(stream, "a text");
    return stream;
}
