// Loading a library when it is first needed (cuDNN, NCCL), and its functions into a table of
// pointers. The program neither links with it nor needs it otherwise. A library that was opened
// stays open until the process ends: such libraries have threads, or load others by themselves.
#pragma once
#include "llmc/base/error.h"

// The file $variable, if that is set, else `usual` where the dynamic linker looks. *file: which.
// NULL: dlerror says why.
void *library_find(const char *variable, const char *usual, const char **file);

typedef struct {
    const char *name;
    void *pointer; // where the address of the function goes
} LibraryFunction;

// False, with a message that names the first function that is missing.
bool library_functions(void *handle, const char *file, const LibraryFunction *functions, int count,
                       Error *err);

// The answer of the first call, kept for later ones.
typedef struct {
    bool tried, usable;
    Error why; // that it is not usable
} LibraryState;
bool library_open_once(LibraryState *state, bool (*load)(Error *err), Error *err);

// Makes one line of a library's message, in place.
void library_message_one_line(char *text);
