// See library_loader.h.
#include "llmc/cuda/library_loader.h"

#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>

void *library_find(const char *variable, const char *usual, const char **file) {
    const char *chosen = getenv(variable);
    *file = usual;
    if (chosen && *chosen) *file = chosen;
    return dlopen(*file, RTLD_NOW | RTLD_LOCAL);
}

bool library_functions(void *handle, const char *file, const LibraryFunction *functions, int count,
                       Error *err) {
    for (int i = 0; i < count; i++) {
        void *address = dlsym(handle, functions[i].name);
        if (!address) return error_set(err, "%s has no function %s", file, functions[i].name);
        // into a pointer to a function, as POSIX has it
        memcpy(functions[i].pointer, &address, sizeof address);
    }
    return true;
}

void library_message_one_line(char *text) {
    size_t end = strlen(text);
    while (end > 0 && text[end - 1] == '\n') text[--end] = '\0';
    for (char *c = text; *c; c++)
        if (*c == '\n') *c = ' ';
}

bool library_open_once(LibraryState *state, bool (*load)(Error *err), Error *err) {
    if (!state->tried) {
        state->usable = load(&state->why);
        state->tried = true;
    }
    if (!state->usable) return error_set(err, "%s", state->why.text);
    return true;
}
