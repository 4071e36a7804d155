// How a program of this project ends: errors, exit codes, and the signals that ask it to stop.
// Outside causes (files, options, memory) are reported: a function returns false and fills an Error, and only main
// decides to end. Broken contracts (a wrong shape handed to an op) are bugs: REQUIRE stops the program at once and says
// where. A few bytes that cannot be had end it too (REQUIRE_MEMORY), as nothing could be done without them: files are
// written beside their place and renamed, so what was saved before is whole. Nothing else in the project prints an
// error or calls exit.
#pragma once
#include <stdbool.h>
#include <stdio.h>

#ifdef __cplusplus
extern "C" {
#endif

// One line for the user: the thing, the value found, the value expected, the next step. No trailing newline.
typedef struct {
    char text[1024];
} Error;

// Exit codes of every program of the project.
enum {
    EXIT_OK = 0,
    EXIT_RUN_FAILED = 1,   // the machine or a file failed while running
    EXIT_BAD_INPUT = 2,    // options or input files are wrong: nothing was started
    EXIT_INTERRUPTED = 75, // a signal ended the run after a checkpoint was saved (EX_TEMPFAIL: run again to go on)
};

// Formats the message into *err (which may be NULL) and returns false, so that callers write
// `return error_set(err, "%s: ...", path)`.
bool error_set(Error *err, const char *format, ...) __attribute__((format(printf, 2, 3)));

// Puts "prefix: " before the message that is already there; returns false.
bool error_prefix(Error *err, const char *format, ...) __attribute__((format(printf, 2, 3)));

// Reports a bug on stderr and aborts.
__attribute__((noreturn)) void bug_report(const char *file, int line, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

#define REQUIRE(condition, ...)                                                                                        \
    do {                                                                                                               \
        if (!(condition)) bug_report(__FILE__, __LINE__, __VA_ARGS__);                                                 \
    } while (0)

// "PROGRAM: out of memory for WHAT" on stderr, and EXIT_RUN_FAILED. What is large is reported by an Error instead.
__attribute__((noreturn)) void out_of_memory(const char *what, ...) __attribute__((format(printf, 1, 2)));

// open_memstream for text that is saved, and which ends the program where that would leave out what it has no memory
// for: glibc's says so neither by ferror nor at fclose. Cannot be asked for its position.
FILE *text_open(char **text, size_t *bytes);

#define REQUIRE_MEMORY(condition, ...)                                                                                 \
    do {                                                                                                               \
        if (!(condition)) out_of_memory(__VA_ARGS__);                                                                  \
    } while (0)

// ------------------------------------------------------------------------------------------------------------- signals

// SIGINT, SIGTERM, SIGUSR1 and SIGHUP (unless it is ignored, as under nohup) ask the run to save its last whole step
// and exit with EXIT_INTERRUPTED; a second SIGINT ends the process at once, as it would have without us. The first one
// is answered with a line on stderr, so that nobody presses Ctrl-C again because saving takes long. SIGPIPE is ignored:
// a reader such as `| head` that goes away must not take the run with it.
void signals_install(void);
int signals_pending(void);                   // the signal that asked to stop, or 0
const char *signals_name(int signal_number); // "SIGTERM"

#ifdef __cplusplus
}
#endif
