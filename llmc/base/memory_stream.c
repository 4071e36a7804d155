// A stream of fopencookie: stdio keeps the error flag, and the write that failed sets it.
#include "llmc/base/memory_stream.h"

#include <stdlib.h>
#include <string.h>
#include <sys/types.h>

typedef struct {
    char **text;
    size_t *bytes, room;
} Cookie;

static ssize_t append(void *cookie, const char *data, size_t n) {
    Cookie *c = cookie;
    if (n >= c->room - *c->bytes) { // with the '\0'
        const size_t room = 2 * (*c->bytes + n + 1);
        char *grown = realloc(*c->text, room);
        if (!grown) return 0; // what a write function says of an error
        *c->text = grown, c->room = room;
    }
    memcpy(*c->text + *c->bytes, data, n);
    *c->bytes += n;
    (*c->text)[*c->bytes] = '\0';
    return (ssize_t)n;
}

static int finish(void *cookie) {
    free(cookie);
    return 0;
}

FILE *memory_stream_open(char **text, size_t *bytes) {
    Cookie *c = malloc(sizeof *c);
    *text = calloc(1, 1), *bytes = 0;
    FILE *stream = c && *text ? fopencookie(c, "w", (cookie_io_functions_t){.write = append, .close = finish}) : NULL;
    if (stream) {
        *c = (Cookie){.text = text, .bytes = bytes, .room = 1};
        return stream;
    }
    free(c), free(*text);
    *text = NULL;
    return NULL;
}

bool memory_stream_close(FILE *stream) {
    if (!stream) return false;
    const bool whole = fflush(stream) == 0 && !ferror(stream);
    return fclose(stream) == 0 && whole;
}
