// The words of a command line, for the trainer's options (options.h) and those of the programs of
// data/ (data/tool.h): takes a word apart, and says which one is wrong: the word as it was typed,
// with the option that is nearest to it.
#pragma once
#include "llmc/base/error.h"

#include <stddef.h>

// Text from outside as shown in a one-line message: cut short, no control characters.
typedef struct {
    char text[64];
} ShownArgument;
ShownArgument argument_shown(const char *text, size_t length);

// One word taken apart: -name, --name, -name=value.
typedef struct {
    const char *name; // without dashes, not terminated
    size_t length;
    const char *value; // after '=', else NULL
} Argument;
Argument argument_split(const char *word);

// The option whose name is nearest to a mistyped one (without dashes): try all names, then see
// text, such as
// "--batch-size" or "-nk". Empty: none has half of the letters.
typedef struct {
    char typo[33], text[64];
    int distance;
} NearestName;
NearestName argument_nearest(const char *typo, size_t length);
// name: NULL is fine
void argument_nearest_try(NearestName *nearest, const char *dashes, const char *name);

// The same for the names that other trainers have for an option of ours.
void argument_nearest_foreign(NearestName *nearest);

// Always false. command: the command that lists the options, "--help" or "data/prepare --help".
bool argument_unknown(const char *word, const NearestName *nearest, const char *command,
                      Error *err);

// Prints the text of --version. There are no releases: the commit of the checkout counts, and the
// compiler may matter.
void program_print_version(void);
