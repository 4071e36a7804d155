// The option table, --help, parsing and checking of the command line, options as JSON for
// checkpoints and logs, and the differences between the options of a resumed run and those of its
// checkpoint.
//
// The matcher is written here, forty lines, and accepts what getopt_long_only accepts of llm.c's
// command lines: -b 4, -b=4, --batch-size 4, --batch-size=4, with one dash or two. getopt itself is
// unsuitable: it takes any unambiguous beginning of a name (--b is batch-size today and an error
// once --beta3 exists), cannot leave out the value of `-y` and yet take the one of `-y 1`, and
// prints messages of its own.
#include "llmc/run/options.h"

#include "llmc/base/arguments.h"
#include "llmc/base/file.h"
#include "llmc/base/format.h"
#include "llmc/base/typed_path.h"
#include "llmc/comm/place.h"
#include "llmc/data/mixture.h"
#include "llmc/model/parameters.h"

#include <cjson/cJSON.h>
#include <ctype.h>
#include <errno.h>
#include <limits.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

// --------------------------------------------------------------------------------------- the table

static const char DATA[] = "Data";
static const char MODEL[] = "Model";
static const char BATCH[] = "Batch and length";
static const char UPDATE[] = "Optimisation";
static const char EVALUATION[] = "Evaluation and samples";
static const char OUTPUT[] = "Output";
static const char MACHINE[] = "Machine";
static const char PROCESSES[] = "Several processes";

// The largest integer that JSON readers keep exactly, and a step count nobody reaches: enough, and
// never an overflow.
#define MAX_EXACT 9007199254740991.0
#define MAX_STEPS 1e12
// The doubles beta must stay below 1, or the moments never move.
#define BELOW_ONE 0.999999

// The values of words whose enum has another order, or does not begin with the first word.
static const unsigned DTYPES[] = {DTYPE_COUNT, DTYPE_BF16, DTYPE_FP16, DTYPE_FP32};
static const unsigned RESUMES[] = {RESUME_ALL, RESUME_NONE, RESUME_WEIGHTS};
static const unsigned PLAN_FORMS[] = {PLAN_TEXT, PLAN_JSON, PLAN_SIZES, PLAN_D_FF};

// To the compiler, enums are unsigned.
#define TYPE_OF(value)                                                                             \
    _Generic(value, int : OPTION_INT, int64_t : OPTION_INT64, double : OPTION_DOUBLE,              \
             char * : OPTION_STRING, unsigned : OPTION_WORD)
#define OPTION(group, long_name, short_name, type, field, ...)                                     \
    {group,      long_name, short_name, TYPE_OF((type){0}), .offset = offsetof(Options, field),    \
     __VA_ARGS__},
const OptionRow option_table[] = {
#include "llmc/run/options.def"
    {0},
};
#undef OPTION
_Static_assert(sizeof option_table / sizeof *option_table <= 129,
               "Options.given has one bit a row");

// ------------------------------------------------------------------------------------------ --help

enum { HELP_COLUMN = 36, PAGE_WIDTH = 110 };

// Upper limits from here on only guard against typing errors. Messages still name them.
static const double NO_CONCERN = 1e6;

// Prints words from column HELP_COLUMN on, in lines of at most PAGE_WIDTH columns.
static void print_wrapped(FILE *out, const char *text) {
    int column = HELP_COLUMN;
    while (*text) {
        int word = (int)strcspn(text, " ");
        if (column > HELP_COLUMN && column + 1 + word > PAGE_WIDTH) {
            fprintf(out, "\n%*s", HELP_COLUMN, "");
            column = HELP_COLUMN;
        }
        column += fprintf(out, "%s%.*s", column > HELP_COLUMN ? " " : "", word, text);
        text += word;
        text += strspn(text, " ");
    }
    fputc('\n', out);
}

void option_print_help(FILE *out) {
    const char *program = program_invocation_short_name;
    fprintf(
        out,
        "Pretrains GPT-2 models.\n"
        "\n"
        "usage: %s [options]\n"
        "  values: -b 4, -b=4, --batch-size 4 or --batch-size=4; [default; min..max]\n"
        "\n"
        "Examples\n"
        "  %s -e d12 -b 4 -t 1024 -d 524288 -x 5000 -o runs/124M     train, save to runs/124M\n"
        "  %s -e d12 -b 4 -t 1024 -d 524288 -x 5000 -o runs/124M -y  resume where it stopped\n"
        "  %s -e runs/124M/step_00005000 -x 0 -v 1 -m 0              evaluate and sample only\n",
        program, program, program, program);

    for (const OptionRow *row = option_table; row->long_name; row++) {
        if (row == option_table || row->group != row[-1].group) fprintf(out, "\n%s\n", row->group);
        char names[128], shown[16] = "", values[128] = "", text[512];

        // "[4; 1..65536]": default and range. Choices and flags already show theirs next to the
        // name.
        const bool has_range =
            row->type < OPTION_STRING && !option_is_flag(row) && row->min < row->max;
        if (*row->fallback && !has_range)
            snprintf(values, sizeof values, " [%s]", row->fallback);
        else if (*row->fallback && row->max >= NO_CONCERN)
            snprintf(values, sizeof values, " [%s; %g..]", row->fallback, option_least(row));
        else if (*row->fallback)
            snprintf(values, sizeof values, " [%s; %.15g..%.15g]", row->fallback, option_least(row),
                     row->max);

        if (row->short_name) snprintf(shown, sizeof shown, "-%s, ", row->short_name);
        snprintf(names, sizeof names, "  %s--%s %s", shown, row->long_name, row->metavar);
        snprintf(text, sizeof text, "%s%s", row->help, values);
        fprintf(out, "%-*s", HELP_COLUMN, names);
        if (strlen(names) >= HELP_COLUMN) fprintf(out, "\n%*s", HELP_COLUMN, "");
        print_wrapped(out, text);
    }

    fprintf(out, "\n%-*sthis page\n%-*sthe compiler of this program\n", HELP_COLUMN, "  --help",
            HELP_COLUMN, "  --version");
}

// ------------------------------------------------------------------------------------------ values

// `name` is the option as it was typed, for messages.

bool option_is_flag(const OptionRow *row) { return row->metavar[0] == '['; }

static bool may_be_auto(const OptionRow *row) { return strncmp(row->metavar, "auto|", 5) == 0; }
double option_least(const OptionRow *row) { return row->min + may_be_auto(row); }

static bool option_is_text(const OptionRow *row) {
    return row->type == OPTION_STRING || row->type == OPTION_WORD;
}
// Whether this number of the field stands for auto.
static bool option_is_auto(const OptionRow *row, double number) {
    return !option_is_text(row) && may_be_auto(row) && number == row->min;
}

static void *field_of(const OptionRow *row, Options *options) {
    return (char *)options + row->offset;
}

// Copies word number k of "a|b|c" or "[a|b]" into buf and its enum value into *value; false after
// the last word.
static bool read_word(const OptionRow *row, int k, char buf[OPTION_VALUE], unsigned *value) {
    const char *word = row->metavar + option_is_flag(row);
    for (int i = 0; i < k; i++) {
        word += strcspn(word, "|]");
        if (*word++ != '|') return false;
    }
    snprintf(buf, OPTION_VALUE, "%.*s", (int)strcspn(word, "|]"), word);
    *value = (unsigned)k;
    if (row->values) *value = row->values[k];
    return true;
}

static double number_of(const OptionRow *row, const Options *options) {
    const void *field = (const char *)options + row->offset;
    if (row->type == OPTION_INT) return (double)*(const int *)field;
    if (row->type == OPTION_INT64) return (double)*(const int64_t *)field;
    return *(const double *)field;
}

const char *option_value(const OptionRow *row, const Options *options, char buf[OPTION_VALUE]) {
    const void *field = (const char *)options + row->offset;
    unsigned value;
    if (row->type == OPTION_STRING) return *(char *const *)field;
    if (row->type != OPTION_WORD) return format_exact(number_of(row, options), buf, OPTION_VALUE);
    for (int k = 0; read_word(row, k, buf, &value); k++)
        if (value == *(const unsigned *)field) return buf;
    return "";
}

const char *option_typed_value(const OptionRow *row, const Options *options,
                               char buf[OPTION_VALUE]) {
    if (!option_is_text(row) && option_is_auto(row, number_of(row, options))) return "auto";
    return option_value(row, options, buf);
}

void options_set_string(char **field, const char *text) {
    char *copy = strdup(text);
    REQUIRE_MEMORY(copy, "an option");
    free(*field);
    *field = copy;
}

// A whole number is digits with an optional minus sign: no blanks, no hex, no 5e3. An overflow
// saturates, and is out of range: all limits are below 2^53, and a value that rounds to a double
// beyond that is still beyond them.
static bool option_read_number(const OptionRow *row, const char *name, const char *value,
                               double *number, Error *err) {
    const ShownArgument v = argument_shown(value, strlen(value));
    const double least = option_least(row);
    const char *expected = "a number (such as 0.1 or 6e-4)";
    char *end, min[40], max[40];
    double x = strtod(value, &end);
    bool is_number =
        !isspace((unsigned char)*value) && !strpbrk(value, "xX") && end != value && !*end;
    if (row->type != OPTION_DOUBLE) {
        const char *digits = value + (*value == '-');
        expected = "a whole number (decimal digits only, such as 5000)";
        x = (double)strtoll(value, &end, 10);
        is_number = *digits && !digits[strspn(digits, "0123456789")];
    }
    if (is_number && !isfinite(x)) expected = "a finite number";
    if (!is_number || !isfinite(x)) return error_set(err, "%s %s: not %s", name, v.text, expected);
    *number = x;
    if (x >= least && x <= row->max) return true;
    format_exact(least, min, sizeof min);
    format_exact(row->max, max, sizeof max);
    if (row->min == row->max)
        return error_set(err, "%s %s: must be %s (%s)", name, v.text, min, row->help);
    if (option_is_flag(row) && row->min == 0.0)
        return error_set(err, "%s %s: must be 0 or 1", name, v.text);
    if (x < least)
        return error_set(err, "%s %s: must be at least %s (%s .. %s)", name, v.text, min, min, max);
    return error_set(err, "%s %s: must be at most %s (%s .. %s)", name, v.text, max, min, max);
}

// Sets the field from text, as if it had been typed after name.
static bool set_value(const OptionRow *row, Options *options, const char *name, const char *value,
                      Error *err) {
    void *field = field_of(row, options);
    if (row->type == OPTION_STRING) {
        options_set_string(field, value);
        return true;
    }
    if (row->type == OPTION_WORD) {
        char list[128] = "", word[OPTION_VALUE];
        for (int k = 0; read_word(row, k, word, field); k++) {
            if (strcmp(word, value) == 0) return true;
            const size_t used = strlen(list);
            snprintf(list + used, sizeof list - used, "%s%s", used ? ", " : "", word);
        }
        *(unsigned *)field = 0;
        if (strcmp(value, row->fallback) != 0)
            return error_set(err, "%s %s: must be one of %s", name,
                             argument_shown(value, strlen(value)).text, list);
        return true;
    }
    if (!*value) return error_set(err, "%s: the value is empty", name);
    double x = row->min;
    const bool is_auto = may_be_auto(row) && strcmp(value, "auto") == 0;
    if (!is_auto && !option_read_number(row, name, value, &x, err)) return false;
    if (row->type == OPTION_INT)
        *(int *)field = (int)x;
    else if (row->type == OPTION_INT64)
        *(int64_t *)field = (int64_t)x;
    else
        *(double *)field = x;
    return true;
}

// ------------------------------------------------------------------------------------------- names

const OptionRow *option_find(const char *name, size_t length) {
    for (const OptionRow *row = option_table; row->long_name; row++)
        if (text_is(name, length, row->long_name) || text_is(name, length, row->short_name))
            return row;
    return NULL;
}

// The option whose name is nearest to a mistyped one (no dashes).
static NearestName nearest_option(const char *typo, size_t length) {
    NearestName nearest = argument_nearest(typo, length);
    for (const OptionRow *row = option_table; row->long_name; row++) {
        argument_nearest_try(&nearest, "--", row->long_name);
        argument_nearest_try(&nearest, "-", row->short_name);
    }
    argument_nearest_foreign(&nearest);
    return nearest;
}

// ---------------------------------------------------------------------------------------- matching

static bool names_an_option(const char *text) {
    if (text[0] != '-') return false;
    Argument a = argument_split(text);
    return option_find(a.name, a.length) != NULL;
}

// argv[i], which belongs to no option. The shell makes several words of a pattern without quotes,
// and this may be the second of them.
static bool stray_word(char **argv, int i, Error *err) {
    const ShownArgument word = argument_shown(argv[i], strlen(argv[i]));
    const bool is_second = i > 2 && names_an_option(argv[i - 2]);
    const char *dot = strrchr(argv[i], '.'), *option = "-i", *example = "data/shards/train_*.bin";
    if (!dot || strcmp(dot, ".bin") != 0)
        return error_set(err, "%s: belongs to no option; --help lists them", word.text);
    char *pattern = path_numbered(argv[i - is_second]);
    if (is_second) option = argv[i - 2];
    if (strchr(pattern, '*')) example = pattern;
    error_set(err, "%s: belongs to no option; a pattern must be quoted: %s %s", word.text, option,
              path_quoted(example).text);
    free(pattern);
    return false;
}

static bool option_is_path(const OptionRow *row) {
    return row->offset == offsetof(Options, model) || strstr(row->metavar, "PATH") ||
           strstr(row->metavar, "GLOB") || strstr(row->metavar, "DIR");
}

// Paths of -i and -j may be those of a mixture, one for each corpus: map(directory, path) is taken
// of each.
static char *map_paths(const OptionRow *row, const char *value, MixtureMap *map,
                       const char *directory) {
    if (row->group == DATA && strcmp(row->metavar, "GLOB") == 0)
        return mixture_map(value, map, directory);
    return map(directory, value);
}
static char *map_from_home(const void *unused, const char *path) {
    (void)unused;
    return path_from_home(path);
}

// Reads argv[*i] and, if it belongs to it, argv[*i + 1]; advances *i.
static bool parse_argument(Options *options, char **argv, int *i, Error *err) {
    const char *text = argv[(*i)++];
    if (text[0] != '-') return stray_word(argv, *i - 1, err);
    Argument a = argument_split(text);
    ShownArgument typed = argument_shown(text, (size_t)(a.name + a.length - text));
    // llm.c's; processes do not meet through files here
    if (a.length == 2 && memcmp(a.name, "pf", 2) == 0) {
        *i += !a.value && argv[*i] != NULL;
        return true;
    }
    const OptionRow *row = option_find(a.name, a.length);
    if (!row) {
        const NearestName nearest = nearest_option(a.name, a.length);
        return argument_unknown(typed.text, &nearest, "--help", err);
    }

    const char *next = argv[*i];   // argv ends with NULL
    char word[OPTION_VALUE] = "1"; // of a flag that is left out
    unsigned ignored;
    if (a.value) {
        // -name=value: all there
    } else if (option_is_flag(row)) {
        // The next argument is the value unless it looks like an option; -1 does not.
        const bool is_value = next && (next[0] != '-' || isdigit((unsigned char)next[1]));
        if (!is_value && row->type == OPTION_WORD) read_word(row, 0, word, &ignored);
        a.value = word;
        if (is_value) a.value = argv[(*i)++];
    } else if (!next || names_an_option(next)) {
        return error_set(err, "%s: a value is missing (%s)", typed.text, row->help);
    } else {
        a.value = argv[(*i)++];
    }
    const ptrdiff_t index = row - option_table;
    const uint64_t bit = (uint64_t)1 << index % 64;
    char buf[OPTION_VALUE], *before = strdup(option_typed_value(row, options, buf));
    REQUIRE_MEMORY(before, "an option");
    char *from_home = NULL;
    if (row->type == OPTION_STRING && option_is_path(row) && strchr(a.value, '~'))
        a.value = from_home = map_paths(row, a.value, map_from_home, NULL);
    const bool ok = set_value(row, options, typed.text, a.value, err);
    free(from_home);
    const char *now = option_typed_value(row, options, buf), *so_far = options->repeated;
    // given twice, with two values
    if (ok && (options->given[index / 64] & bit) && strcmp(before, now) != 0) {
        char *list;
        REQUIRE_MEMORY(asprintf(&list, "%s%s--%s %.40s, then %.40s", so_far ? so_far : "",
                                so_far ? "; " : "", row->long_name, before, now) >= 0,
                       "an option");
        free(options->repeated);
        options->repeated = list;
    }
    options->given[index / 64] |= bit;
    free(before);
    return ok;
}

// -------------------------------------------------------------------------- the whole command line

static ptrdiff_t index_of(const char *name, size_t length) {
    const OptionRow *row = option_find(name, length);
    REQUIRE(row, "there is no option %.*s", (int)length, name);
    return row - option_table;
}

static bool has_bit(const uint64_t bits[2], ptrdiff_t index) {
    return bits[index / 64] >> index % 64 & 1;
}
static void set_bit(uint64_t bits[2], ptrdiff_t index) {
    bits[index / 64] |= (uint64_t)1 << index % 64;
}

bool options_given(const Options *options, const char *long_name) {
    return has_bit(options->given, index_of(long_name, strlen(long_name)));
}

bool options_chosen(const Options *options, const char *long_name) {
    return has_bit(options->chosen, index_of(long_name, strlen(long_name)));
}

void options_mark_chosen(Options *options, const char *long_name) {
    set_bit(options->chosen, index_of(long_name, strlen(long_name)));
}

char *options_command(const Options *options) {
    char *text = NULL, buf[OPTION_VALUE];
    size_t bytes = 0;
    FILE *f = text_open(&text, &bytes);
    for (const OptionRow *row = option_table; row->long_name; row++) {
        const bool trains = row->group == DATA || row->group == MODEL || row->group == BATCH ||
                            row->group == UPDATE;
        if (!trains || row->scope == OPTION_OF_PROCESS ||
            !has_bit(options->given, row - option_table))
            continue;
        fprintf(f, "--%s %s ", row->long_name, option_typed_value(row, options, buf));
    }
    fclose(f);
    return text;
}

bool options_check_total_batch(int64_t total_batch, int64_t T, Error *err) {
    if (T > 0 && total_batch > 0 && total_batch % T == 0) return true;
    if (T <= 0 || total_batch <= 0)
        return error_set(err, "-d %lld: must be a multiple of T = %lld", (long long)total_batch,
                         (long long)T);
    int64_t below = total_batch / T * T, above = below + T;
    if (below == 0)
        return error_set(
            err, "-d %lld is less than one sequence of T = %lld tokens; the smallest is %lld",
            (long long)total_batch, (long long)T, (long long)T);
    return error_set(err, "-d %lld is not a multiple of T = %lld; nearest: %lld or %lld",
                     (long long)total_batch, (long long)T, (long long)below, (long long)above);
}

static const struct {
    const char *name;
    int fallback, min, max;
} VARIABLES[] = {
    {"PRETRAIN_PROGRESS", -1, 0, 1},
    {"PRETRAIN_COMM_OVERLAP", 1, 0, 1},
    {"PRETRAIN_COMM_TIMEOUT", COMM_TIMEOUT, 1, 1000000},
    {"PRETRAIN_EARLY_LAUNCH", 1, 0, 1},
    {"PRETRAIN_GRAPHS", 1, 0, 1},
    {"PRETRAIN_NUMA", 1, 0, 1},
    {"PRETRAIN_TUNE", 1, 0, 1},
};
enum { VARIABLE_COUNT = sizeof VARIABLES / sizeof *VARIABLES };

int options_environment(const char *name) {
    int i = 0;
    while (i < VARIABLE_COUNT && strcmp(VARIABLES[i].name, name) != 0) i++;
    REQUIRE(i < VARIABLE_COUNT, "there is no variable %s", name);
    const char *value = getenv(name);
    if (value && *value) return atoi(value);
    return VARIABLES[i].fallback;
}

static bool check_environment(Error *err) {
    for (int i = 0; i < VARIABLE_COUNT; i++) {
        const char *value = getenv(VARIABLES[i].name);
        if (!value || !*value) continue;
        char *end;
        const long long number = strtoll(value, &end, 10);
        const bool is_number = isdigit((unsigned char)*value) && !*end;
        if (is_number && number >= VARIABLES[i].min && number <= VARIABLES[i].max) continue;
        const ShownArgument shown = argument_shown(value, strlen(value));
        if (VARIABLES[i].max == 1)
            return error_set(err, "%s=%s: must be 0 or 1", VARIABLES[i].name, shown.text);
        return error_set(err, "%s=%s: must be a whole number from %d to %d", VARIABLES[i].name,
                         shown.text, VARIABLES[i].min, VARIABLES[i].max);
    }

    double seconds; // read where they are used; a run of one process does not
    return place_read_seconds("COMM_START_SECONDS", 1, &seconds, err) &&
           place_read_seconds("COMM_STOP_SECONDS", 1, &seconds, err);
}

bool options_measures_speed(const Options *options, bool *measures, Error *err) {
    const char *value = getenv("PRETRAIN_SPEED");
    const bool is_off = value && strcmp(value, "off") == 0;

    if (value && *value && !is_off && strcmp(value, "on") != 0)
        return error_set(err, "PRETRAIN_SPEED=%.40s: expected on or off", value);
    *measures = !is_off || options->profile > 0;
    return true;
}

DeviceOptions options_device(const Options *o) {
    int threads = o->threads;
    if (threads <= 0) threads = comm_cores();
    return (DeviceOptions){.threads = threads,
                           .number = comm_local_rank(),
                           .tf32 = o->tf32 != 0,
                           .attention = o->attention,
                           .no_tuning = !options_environment("PRETRAIN_TUNE"),
                           .no_early_launch = !options_environment("PRETRAIN_EARLY_LAUNCH"),
                           .no_graphs = !options_environment("PRETRAIN_GRAPHS"),
                           // the option begins with -1, auto
                           .gelu_fusion = (GeluFusion)(o->gelu_fusion + 1)};
}

OptionsResult options_parse(Options *options, int argc, char **argv, Error *err) {
    memset(options, 0, sizeof *options);
    options->directory = path_working_directory();
    for (const OptionRow *row = option_table; row->long_name; row++)
        if (!set_value(row, options, row->long_name, row->fallback, err)) return OPTIONS_ERROR;

    for (int i = 1; i < argc;) {
        if (strcmp(argv[i], "--help") == 0 || strcmp(argv[i], "-help") == 0) {
            option_print_help(stdout);
            fflush(stdout);
            return OPTIONS_HELP_SHOWN;
        }
        if (strcmp(argv[i], "--version") == 0 || strcmp(argv[i], "-version") == 0) {
            program_print_version();
            return OPTIONS_HELP_SHOWN;
        }
        if (!parse_argument(options, argv, &i, err)) return OPTIONS_ERROR;
    }
    if (!check_environment(err)) return OPTIONS_ERROR;
    return OPTIONS_RUN;
}

void options_free(Options *options) {
    for (const OptionRow *row = option_table; row->long_name; row++) {
        if (row->type != OPTION_STRING) continue;
        char **field = field_of(row, options);
        free(*field);
        *field = NULL;
    }
    free(options->repeated);
    free(options->state_command);
    free(options->directory);
    free(options->begun_in);
    options->repeated = options->state_command = options->directory = options->begun_in = NULL;
}

// -------------------------------------------------------------------------------------------- JSON

// Keys among the options that are not options: fields of Options, besides OPTIONS_START.
static const char DIRECTORY[] = "directory", CHOSEN[] = "chosen", STATE_COMMAND[] = "state-command";

static bool is_in_begun_directory(const Options *options) {
    return options->begun_in && strcmp(options->directory, options->begun_in) == 0;
}

// Whether the value is no path, although its option takes one.
static bool is_built_in(const OptionRow *row, const char *value) {
    if (row->offset == offsetof(Options, model)) return model_config_is_descriptor(value);
    if (row->offset == offsetof(Options, tokenizer) &&
        (strcmp(value, "bytes") == 0 || strcmp(value, "none") == 0))
        return true;
    const bool is_number =
        row->offset == offsetof(Options, choices) && (*value == '0' || *value == '1');
    return !*value || (is_number && (value[1] == ':' || value[1] == '\0'));
}

static char *map_in(const void *directory, const char *path) { return path_in(directory, path); }
static char *map_typed_in(const void *directory, const char *path) {
    return path_typed_in(directory, path);
}
static char *map_relative(const void *directory, const char *path) {
    const size_t n = strlen(directory);
    const bool is_inside = strncmp(path, directory, n) == 0 && path[n] == '/' && path[n + 1] != '/';
    if (is_inside) return strdup(path + n + 1);
    return strdup(path);
}

// A path as it is in the JSON of a run that was begun in another working directory: relative to
// that one again. Malloced.
static char *path_in_json(const OptionRow *row, const Options *options, const char *path) {
    const bool is_relative = row->scope == OPTION_OF_INPUT && is_in_begun_directory(options);
    char *value = is_relative ? map_paths(row, path, map_relative, options->directory) : NULL;
    if (value && is_built_in(row, value)) {
        free(value);
        value = NULL;
    }
    if (!value) value = strdup(path);
    REQUIRE_MEMORY(value, "a path");
    return value;
}

char *options_to_json(const Options *options, bool with_directory) {
    char *json = NULL, buf[OPTION_VALUE];
    size_t bytes = 0;
    FILE *f = text_open(&json, &bytes);
    fputc('{', f);
    if (with_directory) {
        fprintf(f, "\"%s\":", DIRECTORY);
        format_json_string(f, options->directory, strlen(options->directory));
        fputc(',', f);
    }

    for (const OptionRow *row = option_table; row->long_name; row++) {
        // so that it is the same for any number of processes
        if (row->scope == OPTION_OF_PROCESS) continue;
        char *value = path_in_json(row, options, option_value(row, options, buf));
        fprintf(f, "%s\"%s\":", row != option_table ? "," : "", row->long_name);
        if (option_is_text(row))
            format_json_string(f, value, strlen(value));
        else
            fputs(value, f); // not by cJSON, whose doubles may be off by the last bit
        free(value);
    }

    const char *before = "";
    fprintf(f, ",\"%s\":[", CHOSEN);
    for (const OptionRow *row = option_table; row->long_name; row++) {
        if (!has_bit(options->chosen, row - option_table)) continue;
        fprintf(f, "%s\"%s\"", before, row->long_name);
        before = ",";
    }
    fputc(']', f);

    if (options->state_command) {
        fprintf(f, ",\"%s\":", STATE_COMMAND);
        format_json_string(f, options->state_command, strlen(options->state_command));
    }
    fputc('}', f);
    fclose(f);
    return json;
}

// The value as it was typed then, except for "auto"; NULL if it is neither text nor number.
static const char *value_then(const cJSON *then, char buf[OPTION_VALUE]) {
    if (cJSON_IsNumber(then)) return format_exact(then->valuedouble, buf, OPTION_VALUE);
    return cJSON_GetStringValue(then);
}

// An option under an unknown name would silently be the default.
static bool check_names(const cJSON *then, Error *err) {
    for (const cJSON *item = then->child; item; item = item->next) {
        const char *name = item->string;
        const bool is_fact = strcmp(name, DIRECTORY) == 0 || strcmp(name, CHOSEN) == 0 ||
                             strcmp(name, STATE_COMMAND) == 0 || strcmp(name, OPTIONS_START) == 0;
        if (is_fact || option_find(name, strlen(name))) continue;
        const NearestName nearest = nearest_option(name, strlen(name));
        return error_set(err, "unknown option \"%.64s\"%s%s%s", name,
                         *nearest.text ? "; did you mean " : "", nearest.text,
                         *nearest.text ? "?" : "");
    }
    return true;
}

// Where the earlier run was begun. If that directory is no longer there, its paths are taken to be
// relative to this one: a run may be moved together with its data.
void options_adopt_directory(Options *options, const cJSON *then) {
    const char *there = cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(then, DIRECTORY));
    if (!there || *there != '/' || options->knows_directory) return;
    options->knows_directory = true;
    if (strcmp(there, options->directory) == 0) return;
    options_set_string(&options->begun_in, there);
    if (!file_exists(there)) return;

    for (const OptionRow *row = option_table; row->long_name;
         row++) { // given now: relative to this directory
        char **path = field_of(row, options), *absolute;
        if (row->scope != OPTION_OF_INPUT || !options_given(options, row->long_name) ||
            is_built_in(row, *path))
            continue;
        absolute = map_paths(row, *path, map_in, options->directory);
        free(*path);
        *path = absolute;
    }
    options_set_string(&options->directory, there);
}

// The numbers that were chosen for auto then, as bits. JSON of an earlier version has no list of
// them.
static bool read_chosen(const cJSON *then, uint64_t chosen[2], Error *err) {
    const cJSON *list = cJSON_GetObjectItemCaseSensitive(then, CHOSEN), *item;
    chosen[0] = chosen[1] = 0;
    if (list && !cJSON_IsArray(list)) return error_set(err, "\"%s\" is no list", CHOSEN);
    cJSON_ArrayForEach(item, list) {
        const char *name = cJSON_GetStringValue(item);
        const OptionRow *row = name ? option_find(name, strlen(name)) : NULL;
        if (!row) return error_set(err, "\"%s\" holds what is no option", CHOSEN);
        set_bit(chosen, row - option_table);
    }
    return true;
}

// OPTIONS THAT REPLACE OTHERS. An option that is given now takes back what it replaces of earlier
// commands: options that set the same thing, or numbers that were chosen together with its own.
typedef enum {
    REPLACES_ALWAYS,  // whatever its value is
    REPLACES_AUTO,    // if it is auto
    REPLACES_NUMBER,  // if it is not auto
    REPLACES_ABOVE_0, // if it is a number above 0
    REPLACES_ANOTHER, // if it differs from the earlier command's
} ReplacesWhen;

static const struct {
    const char *given;
    ReplacesWhen when;
    bool only_chosen;  // what was given then stays
    const char *names; // with blanks between them
} REPLACES[] = {
    {"max-steps", REPLACES_ALWAYS, false, "tokens ratio"},
    {"tokens", REPLACES_ABOVE_0, false, "max-steps ratio"},
    {"tokens", REPLACES_AUTO, false, "max-steps"}, // a --ratio is what its auto follows
    {"ratio", REPLACES_NUMBER, false, "max-steps tokens"},
    {"learning-rate", REPLACES_NUMBER, true,
     "lr-embedding lr-vectors"},                         // Muon's -l auto chooses them too
    {"weight-decay", REPLACES_NUMBER, true, "by-group"}, // Muon's -c auto chooses embedding.decay
    {"optimizer", REPLACES_ANOTHER, true,
     "learning-rate lr-embedding lr-vectors weight-decay by-group"},
};

static bool is_replacing(size_t i, const Options *options, const cJSON *then) {
    const OptionRow *row = option_find(REPLACES[i].given, strlen(REPLACES[i].given));
    char buf[OPTION_VALUE];
    if (!options_given(options, REPLACES[i].given)) return false;
    if (REPLACES[i].when == REPLACES_ALWAYS) return true;
    if (REPLACES[i].when == REPLACES_ANOTHER) {
        const char *before =
            cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(then, REPLACES[i].given));
        return before && strcmp(before, option_value(row, options, buf)) != 0;
    }
    const double number = number_of(row, options);
    const bool is_auto = option_is_auto(row, number);
    if (REPLACES[i].when == REPLACES_AUTO) return is_auto;
    if (REPLACES[i].when == REPLACES_ABOVE_0) return number > 0;
    return !is_auto;
}

// The options that those of this command replace, as bits.
static void find_replaced(const Options *options, const cJSON *then, const uint64_t chosen[2],
                          uint64_t replaced[2]) {
    replaced[0] = replaced[1] = 0;
    for (size_t i = 0; i < sizeof REPLACES / sizeof *REPLACES; i++) {
        if (!is_replacing(i, options, then)) continue;
        const char *name = REPLACES[i].names;
        for (size_t n; *name; name += n + (name[n] == ' ')) {
            n = strcspn(name, " ");
            const ptrdiff_t index = index_of(name, n);
            if (!REPLACES[i].only_chosen || has_bit(chosen, index)) set_bit(replaced, index);
        }
    }
}

static const char *state_command_of(const cJSON *then) {
    return cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(then, STATE_COMMAND));
}

char *options_state_command(const char *json) {
    cJSON *then = cJSON_Parse(json);
    char *command = NULL;
    if (state_command_of(then)) options_set_string(&command, state_command_of(then));
    cJSON_Delete(then);
    return command;
}

static bool adopt_value(Options *options, const OptionRow *row, const cJSON *value, Error *err) {
    char buf[OPTION_VALUE];
    const char *text = value_then(value, buf), *kind = "number";
    if (option_is_text(row)) kind = "text";
    if (!text || cJSON_IsString(value) != option_is_text(row))
        return error_set(err, "%s: no %s", row->long_name, kind);
    if (option_is_auto(row, value->valuedouble)) text = "auto";
    if (!set_value(row, options, row->long_name, text, err)) return false;

    char **path = field_of(row, options);
    if (row->scope == OPTION_OF_INPUT && is_in_begun_directory(options) &&
        !is_built_in(row, *path)) {
        char *found = map_paths(row, *path, map_typed_in, options->directory);
        free(*path);
        *path = found;
    }
    return true;
}

bool options_take_back(Options *options, const char *json, const char *long_name, Error *err) {
    cJSON *then = cJSON_Parse(json);
    const OptionRow *row = option_find(long_name, strlen(long_name));
    const cJSON *value = cJSON_GetObjectItemCaseSensitive(then, long_name);
    const bool ok = !value || adopt_value(options, row, value, err);
    cJSON_Delete(then);
    return ok;
}

bool options_adopt_json(Options *options, const char *json, bool only_data, Error *err) {
    cJSON *then = cJSON_Parse(json);
    uint64_t chosen[2], replaced[2];
    bool ok = (cJSON_IsObject(then) || error_set(err, "not a JSON object")) &&
              check_names(then, err) && read_chosen(then, chosen, err);
    if (ok) options_adopt_directory(options, then);
    if (ok) find_replaced(options, then, chosen, replaced);
    if (ok && !only_data && state_command_of(then))
        options_set_string(&options->state_command, state_command_of(then));
    for (const OptionRow *row = option_table; ok && row->long_name; row++) {
        const ptrdiff_t index = row - option_table;
        const cJSON *value = cJSON_GetObjectItemCaseSensitive(then, row->long_name);
        const bool is_taken =
            (row->scope != OPTION_OF_PLACE && row->scope != OPTION_OF_PROCESS) &&
            (!only_data || (row->group == DATA && strcmp(row->metavar, "GLOB") == 0));
        const bool may_be_chosen = has_bit(chosen, index) || !cJSON_HasObjectItem(then, CHOSEN);
        const bool stays_auto =
            row->scope == OPTION_OF_SIZE && number_of(row, options) == row->min && may_be_chosen;
        if (!value || !is_taken || has_bit(replaced, index)) continue;
        if (has_bit(options->given, index) && !stays_auto) continue;
        if (has_bit(chosen, index)) set_bit(options->chosen, index);

        ok = adopt_value(options, row, value, err);
    }
    cJSON_Delete(then);
    if (!ok) return error_prefix(err, "the options of the earlier run");
    return true;
}

// Is this path, of the directory `there`, the one that is named here?
static bool is_same_path(const OptionRow *row, const char *here, const char *there,
                         const char *path) {
    char *joined = map_paths(row, path, map_in, there), *a = realpath(here, NULL),
         *b = realpath(joined, NULL);
    const bool is_same = strcmp(here, joined) == 0 || (a && b && strcmp(a, b) == 0);
    free(joined);
    free(a);
    free(b);
    return is_same;
}

// A line about an option that differs from that JSON; nothing if it does not, or is not in it: a
// new option is no difference. Returns whether it differs.
static bool put_difference(FILE *f, const Options *options, const OptionRow *row,
                           const cJSON *then) {
    const cJSON *value = cJSON_GetObjectItemCaseSensitive(then, row->long_name);
    if (!value || row->scope == OPTION_OF_PROCESS) return false;
    char buf[OPTION_VALUE], buf_then[OPTION_VALUE];
    char *in_json = path_in_json(row, options, option_typed_value(row, options, buf));
    const char *now = in_json, *before = value_then(value, buf_then);
    if (cJSON_IsNumber(value) && option_is_auto(row, value->valuedouble)) before = "auto";
    const bool is_path = row->scope == OPTION_OF_INPUT || row->scope == OPTION_OF_PLACE;
    const bool comparable = cJSON_IsNumber(value) || option_is_text(row);
    bool same = comparable && before && strcmp(now, before) == 0;
    if (is_path && before)
        same |= is_same_path(row, now, options->begun_in ? options->begun_in : options->directory,
                             before);
    if (!*now) now = "\"\"";
    if (!same && f)
        format_print(f, "--%s %s (was %s)\n", row->long_name, now,
                     before ? before : "neither text nor number");
    free(in_json);
    return !same;
}

bool options_differ(const Options *options, const char *json, const char *long_name) {
    cJSON *then = cJSON_Parse(json);
    const bool differs =
        put_difference(NULL, options, option_find(long_name, strlen(long_name)), then);
    cJSON_Delete(then);
    return differs;
}

char *options_diff_json(const Options *options, const char *json) {
    cJSON *then = cJSON_Parse(json);
    char *lines = NULL;
    size_t bytes = 0;
    FILE *f = text_open(&lines, &bytes);
    for (const OptionRow *row = option_table; row->long_name; row++)
        (void)put_difference(f, options, row, then);
    fclose(f);
    cJSON_Delete(then);
    if (bytes > 0) return lines;
    free(lines);
    return NULL;
}
