// THE OPTION TABLE: one row an option. Parsing, checks, --help, the nearest name of a typo and the JSON in checkpoints
// and logs are all read from it: to add an option, add a field to Options and a row here. Private to llmc/run.
#pragma once
#include "llmc/run/options.h"
#include <stddef.h>
#include <stdio.h>

typedef enum { OPTION_INT, OPTION_INT64, OPTION_DOUBLE, OPTION_STRING } OptionType;

typedef struct {
    const char *group;      // heading in --help; rows of a group stand together
    const char *long_name;  // "batch-size"
    const char *short_name; // llm.c's name "b"; NULL: none
    OptionType type;        // of the field in Options, derived from it
    size_t offset;          // of that field
    const char *fallback;   // the default, as it would be typed
    double min, max;        // allowed numbers, both included. Integers up to 2^53, so that JSON and double hold them
    const char *metavar;    // what stands for the value in --help. "[0|1]": may be left out and is 1 then;
                            // "a|b|c": a string that must be one of these; "[a|b]": may be left out and is
                            // the first then; "auto|X": a number, or auto, which is kept as min: what
                            // may be typed begins one above it
    const char *help;       // for min == max also the reason in the message that refuses other values
} OptionRow;

const OptionRow *option_table(int *count);
// The row with exactly this long or short name (`length` bytes, no dashes), or NULL.
const OptionRow *option_find(const char *name, size_t length);
// The option whose name is nearest to a mistyped one (no dashes), as "--batch-size" or "-nk" into buf; false: none has
// half of its letters.
bool option_nearest(const char *typo, char *buf, int size);

bool option_is_flag(const OptionRow *row); // the value may be left out
// The value of a flag that is left out: 1, or the first word of its list, which goes into buf.
const char *option_flag_value(const OptionRow *row, char *buf, int size);
bool option_may_be_auto(const OptionRow *row);
double option_least(const OptionRow *row);   // the least number that may be typed
bool option_is_choice(const OptionRow *row); // a string out of a list

// The field of the row: an int, int64_t, double or char *.
const void *option_field(const OptionRow *row, const Options *options);
double option_number(const OptionRow *row, const Options *options);      // not for OPTION_STRING
const char *option_string(const OptionRow *row, const Options *options); // OPTION_STRING only
// The value as it would be typed, malloced; NULL without memory.
char *option_text(const OptionRow *row, const Options *options);

// Sets the field from text, as if it had been typed after name.
bool option_set(const OptionRow *row, Options *options, const char *name, const char *value, Error *err);

void option_print_help(FILE *out, const char *program);
