// Errors and exit codes of the programs of this project.
//
// Outside causes (files, options, memory) are reported: a function returns false and fills an
// Error, and only main decides to end. Broken contracts (a wrong shape passed to an op) are bugs:
// REQUIRE stops the program at once and reports the place. A failed small allocation also ends it
// (REQUIRE_MEMORY), as nothing could continue without it; saved files stay complete, because they
// are written under temporary names and renamed. Nothing else in the project prints an error or
// calls exit.
#pragma once
#include <stdbool.h>
#include <stdio.h>

#ifdef __cplusplus
extern "C" {
#endif

// One line for the user: the thing, the value found, the value expected, the next step. No trailing
// newline. Always UTF-8 without control characters, whatever the names in it are and wherever it is
// cut.
typedef struct {
    char text[1024];
} Error;

// Exit codes of every program of the project.
enum {
    EXIT_OK = 0,
    EXIT_RUN_FAILED = 1,   // the machine or a file failed while running
    EXIT_BAD_INPUT = 2,    // options or input files are wrong: nothing was started
    EXIT_INTERRUPTED = 75, // a signal ended the run after a checkpoint was saved (EX_TEMPFAIL: run
                           // again to resume)
};

// Formats the message into *err (which may be NULL) and returns false, so that callers write
// `return error_set(err, "%s: ...", path)`.
bool error_set(Error *err, const char *format, ...) __attribute__((format(printf, 2, 3)));

#ifdef __clang_analyzer__ // it reads one file at a time
#define error_set(...) (error_set(__VA_ARGS__) && false)
#endif

// Puts "prefix: " before the existing message; returns false.
bool error_prefix(Error *err, const char *format, ...) __attribute__((format(printf, 2, 3)));

// Reports a bug on stderr and aborts.
__attribute__((noreturn)) void bug_report(const char *file, int line, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

#define REQUIRE(condition, ...)                                                                    \
    do {                                                                                           \
        if (!(condition)) bug_report(__FILE__, __LINE__, __VA_ARGS__);                             \
    } while (0)

// Prints "PROGRAM: out of memory for WHAT" on stderr and exits with EXIT_RUN_FAILED. Failures of
// large allocations are reported by an Error instead.
__attribute__((noreturn)) void out_of_memory(const char *what, ...)
    __attribute__((format(printf, 1, 2)));

// open_memstream for text that is saved. It ends the program when memory runs out, where glibc's
// drops text and reports it neither by ferror nor at fclose. ftell is not supported.
FILE *text_open(char **text, size_t *bytes);

#define REQUIRE_MEMORY(condition, ...)                                                             \
    do {                                                                                           \
        if (!(condition)) out_of_memory(__VA_ARGS__);                                              \
    } while (0)

#ifdef __cplusplus
}
#endif
