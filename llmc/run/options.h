// Command-line options: THE OPTION TABLE (options.def) states for each its names, type, range,
// default, group, help and whether a resume takes it over. The struct, parsing, checks, --help, the
// nearest name of a typo, the JSON in checkpoints and logs all come from that table: to add an
// option, add a row there. The struct is plain values; strings belong to the Options, are never
// NULL and live until options_free.
#pragma once
#include "llmc/base/error.h"
#include "llmc/comm/comm.h"
#include "llmc/device.h"
#include "llmc/model/optimizer_state.h"
#include "llmc/ops.h"
#include "llmc/train/schedule.h"

#include <cjson/cJSON.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

typedef enum { GRADIENTS_FP32, GRADIENTS_COMPUTE } GradientType;
typedef enum { OFFLOAD_NONE, OFFLOAD_OPTIMIZER } OffloadChoice;
typedef enum {
    RESUME_NONE,
    RESUME_ALL,
    RESUME_WEIGHTS
} ResumeKind; // weights: all but the optimizer's state
typedef enum { PLAN_NONE, PLAN_TEXT, PLAN_JSON, PLAN_SIZES, PLAN_D_FF } PlanForm; // none: it trains

typedef struct {
#define OPTION(group, long_name, short_name, type, field, ...) type field;
#include "llmc/run/options.def"
#undef OPTION
    uint64_t given[2];  // one bit per row of the table: given on the command line. Read with
                        // options_given
    uint64_t chosen[2]; // the same for numbers that auto stands for, of this command or of an
                        // earlier one
    char *repeated;     // "--batch-size 4, then 8", for each option that was given with two values;
                        // NULL: none
    // The command (options_command) whose -y weights began the optimizer's state of this run; NULL:
    // there was none.
    char *state_command;
    // Where relative paths of OPTION_OF_INPUT begin in the JSON of the options: the working
    // directory in which the run was begun, or this one if that is no longer there.
    char *directory;
    char *begun_in;       // the working directory of the earlier run, NULL if it is this one
    bool knows_directory; // that of the earlier run is known
} Options;

typedef enum { OPTIONS_RUN, OPTIONS_HELP_SHOWN, OPTIONS_ERROR } OptionsResult;

// Fills *options with defaults, then with argv. Help is written to stdout. Errors name the option,
// the value, what is allowed and, for an unknown option, the nearest one. options_free must be
// called (and is safe) whatever the result.
OptionsResult options_parse(Options *options, int argc, char **argv, Error *err);
void options_free(Options *options);

// The options for device_init.
DeviceOptions options_device(const Options *options);

// The value of a variable of the environment that few runs need, for measurements and tests, and
// not worth an option: a whole number, or the default of VARIABLES (options.c) if it is unset or
// empty. options_parse refuses values that mean nothing. All processes of a run must have the same.
//   PRETRAIN_PROGRESS       1, 0: the progress bar wherever stdout goes, or nowhere
//   PRETRAIN_COMM_OVERLAP   0: wait for each exchange between processes at once
//   PRETRAIN_COMM_TIMEOUT   seconds without progress of a process after which the run ends, 600
//                           (llmc/comm/watch.h)
//   PRETRAIN_EARLY_LAUNCH   0: no kernel is set up before the one before it has ended (sm_90 and
//                           later)
//   PRETRAIN_GRAPHS         0: kernels of a micro-step are launched one by one, not by a recorded
//                           CUDA graph
//   PRETRAIN_NUMA           0: processes are not bound to processors (placement.h)
//   PRETRAIN_TUNE           0: matmul algorithms and attention are those that the libraries prefer,
//                           not measured
int options_environment(const char *name);

// Does a run measure the speed of its device (llmc/speed.h) at the start? PRETRAIN_SPEED=off saves
// these 0.3 s, which are longer than many a run of the tests. Without a datasheet mfu is then
// unknown. --profile needs the rates and always measures. A value that is neither on nor off is an
// error.
bool options_measures_speed(const Options *options, bool *measures, Error *err);

// Was this option given on the command line (by its long name)?
bool options_given(const Options *options, const char *long_name);
// Notes that the number of this option was chosen for auto: a checkpoint remembers it.
void options_mark_chosen(Options *options, const char *long_name);
bool options_chosen(const Options *options, const char *long_name);
// The options given on the command line that say what is trained, in the order of the table: the
// same text for a command that is started again, elsewhere or watched differently. Malloced.
char *options_command(const Options *options);

// -d: must be a multiple of T (the last micro-step may hold fewer than B sequences); names the
// nearest that are. For the trainer, which knows T when -t left it to the model.
bool options_check_total_batch(int64_t total_batch, int64_t T, Error *err);

// All options but those of OPTION_OF_PROCESS as one JSON object, malloced; keys are the long names.
// The same bytes in any working directory; for later readers, with_directory adds the directory in
// which the run began.
char *options_to_json(const Options *options, bool with_directory);
// Takes that directory from the JSON of an earlier start of the run, before its options are
// adopted.
void options_adopt_directory(Options *options, const cJSON *then);
// For resume: takes from that JSON the value of every option that was not given on the command
// line, so that -o and -y alone resume the run with its original options. Options that only say
// where the run is written or how it is watched
// (-o, -y) are not taken, nor is what an option of this command replaces, such as an earlier
// --tokens by -x. A relative path of an input is looked for where the run was begun, then here.
// only_data: -i and -j alone, for an evaluation of the run's weights.
bool options_adopt_json(Options *options, const char *json, bool only_data, Error *err);
// The state_command in that JSON, malloced; NULL: there is none.
char *options_state_command(const char *json);
// The key of options.json for the step that the command began at (run_resume.c).
#define OPTIONS_START "start"
// A malloced line for every option whose value differs from that JSON (for resume), such as
// "--batch-size 8 (was 4)", NULL if none does; of JSON that options_adopt_json has taken. -y and
// --max-minutes are not compared.
char *options_diff_json(const Options *options, const char *json);
// Gives up what this command gave for an option: its value in that JSON, if it has one, is in force
// again.
bool options_take_back(Options *options, const char *json, const char *long_name, Error *err);
// Whether the value of this option differs from that JSON's, if it has one.
bool options_differ(const Options *options, const char *json, const char *long_name);
// Sets a string of Options to a copy of text.
void options_set_string(char **field, const char *text);

// ------------------------------------------------------------------------------- rows of the table

typedef enum { OPTION_INT, OPTION_INT64, OPTION_DOUBLE, OPTION_STRING, OPTION_WORD } OptionType;

// The ways in which a resume treats an option.
typedef enum {
    OPTION_OF_RUN,   // takes it over from the checkpoint unless it is given again, and reports a
                     // difference
    OPTION_OF_SIZE,  // the same; auto, given again, is the number that was chosen for it at first
    OPTION_OF_INPUT, // as OPTION_OF_RUN; a path or pattern, relative to the directory in which the
                     // run was begun
    OPTION_OF_PLACE, // where the run is stored: only reports a difference
    OPTION_OF_PROCESS, // how this process is started, limited and watched: nothing
} OptionScope;

typedef struct {
    const char *group;      // heading in --help; rows of a group are adjacent
    const char *long_name;  // "batch-size"
    const char *short_name; // llm.c's name "b"; NULL: none
    OptionType type;        // of the field in Options, derived from it
    size_t offset;          // of that field
    const char *fallback;   // the default, as typed
    double min, max; // allowed numbers, both included. Integers up to 2^53, so that JSON and double
                     // hold them
    const char *metavar; // the placeholder of the value in --help. "[0|1]": may be left out and is
                         // 1 then; "a|b|c" of a word: one of these; "[a|b]": may be left out and is
                         // the first then; "auto|X": a number, or auto, which is kept as min: what
                         // may be typed begins one above it
    const char *help;    // for min == max also the reason in the message that refuses other values
    OptionScope scope;
    // of the words, in order; NULL: 0, 1, 2, ... A fallback that is not a word is 0
    const unsigned *values;
} OptionRow;

extern const OptionRow option_table[]; // ends with a nameless row

// The row with exactly this long or short name (`length` bytes, no dashes), or NULL.
const OptionRow *option_find(const char *name, size_t length);

bool option_is_flag(const OptionRow *row); // the value may be left out
double option_least(const OptionRow *row); // the min number that may be typed

// The value as in the JSON, without the quotes of strings and words. A number that is auto is still
// a number here.
enum { OPTION_VALUE = 40 };
const char *option_value(const OptionRow *row, const Options *options, char buf[OPTION_VALUE]);
// The same as it is typed: auto is a word.
const char *option_typed_value(const OptionRow *row, const Options *options,
                               char buf[OPTION_VALUE]);

void option_print_help(FILE *out);
