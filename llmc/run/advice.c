// See advice.h.
#include "llmc/run/advice.h"

#include "llmc/base/format.h"
#include "llmc/base/typed_path.h"
#include "llmc/comm/comm.h"

#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

void advice_print(const char *format, ...) {
    if (comm_rank() > 0) return;
    va_list args;
    va_start(args, format);
    format_vprint(stderr, format, args);
    va_end(args);
    fputc('\n', stderr);
}

void advice_print_lines(const char *text) {
    for (size_t n; *text; text += n + (text[n] == '\n')) {
        n = strcspn(text, "\n");
        advice_print("%.*s", (int)n, text);
    }
}

bool advice_add_directories(const Options *o, const char *long_name, Error *err) {
    if (!o->begun_in || options_given(o, long_name)) return false;
    char *here = path_working_directory();
    error_set(err, "%s (relative to %s, where the run was begun, and to %s)", err->text,
              o->begun_in, here);
    free(here);
    return false;
}
