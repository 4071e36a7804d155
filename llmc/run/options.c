// Parsing and checking of the command line over the option table; options as JSON for checkpoints and logs, and what
// differs when a run goes on with others.
//
// The matcher is written here, forty lines, and accepts what getopt_long_only accepts of llm.c's command lines:
// -b 4, -b=4, --batch-size 4, --batch-size=4, with one dash or two. getopt itself would harm: it takes any unambiguous
// beginning of a name (--b is batch-size today and an error once --beta3 exists), cannot leave out the value of
// `-y` and yet take the one of `-y 1`, and prints messages of its own.
#include "llmc/run/options.h"

#include "llmc/base/format.h"
#include "llmc/model/optimizer_state.h"

#include <cjson/cJSON.h>
#include <ctype.h>
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

// Text from the command line as it may stand in a one-line message: cut short, no control characters.
typedef struct {
    char text[64];
} Shown;

static Shown shown(const char *text, size_t length) {
    Shown s;
    size_t n = length < sizeof s.text ? length : sizeof s.text - 4;
    for (size_t i = 0; i < n; i++) s.text[i] = iscntrl((unsigned char)text[i]) ? '?' : text[i];
    memcpy(s.text + n, "...", 4);
    if (n == length) s.text[n] = '\0';
    return s;
}

// ------------------------------------------------------------------------------------------------------------ values
// `name` is the option as it was typed, for messages.

static void set_string(const OptionRow *row, Options *options, const char *value) {
    char **field = (char **)((char *)options + row->offset);
    char *copy = strdup(value);
    REQUIRE_MEMORY(copy, "an option");
    free(*field);
    *field = copy;
}

static bool check_choice(const OptionRow *row, const char *name, const char *value, Error *err) {
    char list[128] = "";
    for (const char *p = row->metavar + (*row->metavar == '['); *p && *p != ']';) {
        size_t n = strcspn(p, "|]");
        if (strlen(value) == n && memcmp(p, value, n) == 0) return true;
        size_t used = strlen(list);
        snprintf(list + used, sizeof list - used, "%s%.*s", used ? ", " : "", (int)n, p);
        p += n + (p[n] == '|');
    }
    return error_set(err, "%s %s: must be one of %s", name, shown(value, strlen(value)).text, list);
}

static bool check_range(const OptionRow *row, const char *name, const char *value, double x, Error *err) {
    const double least = option_least(row);
    if (x >= least && x <= row->max) return true;
    Shown v = shown(value, strlen(value));
    char min[40], max[40];
    format_exact(least, min, sizeof min);
    format_exact(row->max, max, sizeof max);
    if (row->min == row->max) return error_set(err, "%s %s: must be %s (%s)", name, v.text, min, row->help);
    if (option_is_flag(row) && row->min == 0.0) return error_set(err, "%s %s: must be 0 or 1", name, v.text);
    bool low = x < least;
    return error_set(err, "%s %s: must be at %s %s (%s .. %s)", name, v.text, low ? "least" : "most", low ? min : max,
                     min, max);
}

static void set_number(const OptionRow *row, Options *options, double x) {
    void *field = (char *)options + row->offset;
    if (row->type == OPTION_INT)
        *(int *)field = (int)x;
    else if (row->type == OPTION_INT64)
        *(int64_t *)field = (int64_t)x;
    else
        *(double *)field = x;
}

// Digits with an optional minus, nothing else: no blanks, no hex, no 5e3. What overflows is out of every range.
static bool set_integer(const OptionRow *row, Options *options, const char *name, const char *value, Error *err) {
    const char *digits = value + (*value == '-');
    if (!*digits || digits[strspn(digits, "0123456789")]) {
        return error_set(err, "%s %s: not a whole number (decimal digits only, such as 5000)", name,
                         shown(value, strlen(value)).text);
    }
    int64_t n = strtoll(value, NULL, 10); // saturates
    // Compared as doubles: limits are below 2^53, and what rounds beyond that is still beyond them.
    if (!check_range(row, name, value, (double)n, err)) return false;
    set_number(row, options, (double)n);
    return true;
}

static bool set_double(const OptionRow *row, Options *options, const char *name, const char *value, Error *err) {
    char *end;
    double x = strtod(value, &end);
    bool number = !isspace((unsigned char)*value) && !strpbrk(value, "xX") && end != value && !*end;
    if (!number) {
        return error_set(err, "%s %s: not a number (such as 0.1 or 6e-4)", name, shown(value, strlen(value)).text);
    }
    if (!isfinite(x)) return error_set(err, "%s %s: not a finite number", name, shown(value, strlen(value)).text);
    if (!check_range(row, name, value, x, err)) return false;
    set_number(row, options, x);
    return true;
}

bool option_set(const OptionRow *row, Options *options, const char *name, const char *value, Error *err) {
    if (row->type == OPTION_STRING) {
        if (option_is_choice(row) && strcmp(value, row->fallback) != 0 && !check_choice(row, name, value, err))
            return false;
        set_string(row, options, value);
        return true;
    }
    if (!*value) return error_set(err, "%s: the value is empty", name);
    if (option_may_be_auto(row) && strcmp(value, "auto") == 0) {
        set_number(row, options, row->min);
        return true;
    }
    if (row->type == OPTION_DOUBLE) return set_double(row, options, name, value, err);
    return set_integer(row, options, name, value, err);
}

static bool set_defaults(Options *options, Error *err) {
    int count;
    const OptionRow *rows = option_table(&count);
    for (int i = 0; i < count; i++) {
        if (!option_set(&rows[i], options, rows[i].long_name, rows[i].fallback, err)) return false;
    }
    return true;
}

// ----------------------------------------------------------------------------------------------------------- matching

// One argument taken apart: -name, --name, -name=value.
typedef struct {
    const char *name; // without dashes, not terminated
    size_t length;
    const char *value; // after '=', else NULL
} Argument;

static Argument argument_split(const char *text) {
    Argument a = {.name = text + 1 + (text[1] == '-')};
    a.length = strcspn(a.name, "=");
    if (a.name[a.length] == '=') a.value = a.name + a.length + 1;
    return a;
}

static bool names_an_option(const char *text) {
    if (text[0] != '-') return false;
    Argument a = argument_split(text);
    return option_find(a.name, a.length) != NULL;
}

static bool unknown_option(Argument a, const char *typed, Error *err) {
    char nearest[64];
    if (!option_nearest(shown(a.name, a.length).text, nearest, sizeof nearest))
        return error_set(err, "unknown option %s; --help lists them", typed);
    return error_set(err, "unknown option %s; did you mean %s?", typed, nearest);
}

// Reads argv[*i] and, where it belongs to it, argv[*i + 1]; moves *i on.
static bool parse_argument(Options *options, char **argv, int *i, Error *err) {
    const char *text = argv[(*i)++];
    if (text[0] != '-') {
        return error_set(err, "%s: belongs to no option; patterns must be quoted: -i \"data/shards/train_*.bin\"",
                         shown(text, strlen(text)).text);
    }
    Argument a = argument_split(text);
    Shown typed = shown(text, (size_t)(a.name + a.length - text));
    const OptionRow *row = option_find(a.name, a.length);
    if (!row) return unknown_option(a, typed.text, err);

    const char *next = argv[*i]; // argv ends with NULL
    char word[32];
    if (a.value) {
        // -name=value: all there
    } else if (option_is_flag(row)) {
        // The next argument is the value unless it looks like an option; -1 does not.
        const bool is_value = next && (next[0] != '-' || isdigit((unsigned char)next[1]));
        a.value = is_value ? argv[(*i)++] : option_flag_value(row, word, (int)sizeof word);
    } else if (!next || names_an_option(next)) {
        return error_set(err, "%s: a value is missing (%s)", typed.text, row->help);
    } else {
        a.value = argv[(*i)++];
    }
    int count;
    const ptrdiff_t index = row - option_table(&count);
    options->given[index / 64] |= (uint64_t)1 << index % 64;
    return option_set(row, options, typed.text, a.value, err);
}

// --------------------------------------------------------------------------------------------- the whole command line

bool options_given(const Options *options, const char *long_name) {
    int count;
    const OptionRow *rows = option_table(&count), *row = option_find(long_name, strlen(long_name));
    REQUIRE(row, "options_given: there is no option %s", long_name);
    const ptrdiff_t index = row - rows;
    return options->given[index / 64] >> index % 64 & 1;
}

bool options_check_total_batch(int64_t total_batch, int64_t T, Error *err) {
    if (T > 0 && total_batch > 0 && total_batch % T == 0) return true;
    if (T <= 0 || total_batch <= 0) {
        return error_set(err, "-d %lld: must be a multiple of T = %lld", (long long)total_batch, (long long)T);
    }
    int64_t below = total_batch / T * T, above = below + T;
    if (below == 0) {
        return error_set(err, "-d %lld is less than one sequence of T = %lld tokens; the smallest is %lld",
                         (long long)total_batch, (long long)T, (long long)T);
    }
    return error_set(err, "-d %lld is not a multiple of T = %lld; nearest: %lld or %lld", (long long)total_batch,
                     (long long)T, (long long)below, (long long)above);
}

// Options that only make sense together.
static bool check_together(const Options *o, Error *err) {
    OptimizerKind optimizer;
    if (o->total_batch > 0 && o->T > 0 && !options_check_total_batch(o->total_batch, o->T, err)) return false;
    if (o->resume && !*o->output) return error_set(err, "-y: no run to go on with; name its directory with -o DIR");
    if (options_given(o, "checkpoint-every") && o->checkpoint_every > 0 && !*o->output) {
        return error_set(err, "-n %lld: no place for checkpoints; name a directory with -o DIR",
                         (long long)o->checkpoint_every);
    }
    if ((o->hellaswag || *o->choices) && o->val_every == 0 && o->max_steps != 0)
        return error_set(err, "%s: scored at every validation, and -v 0 makes none; give -v N, or leave out %s",
                         o->hellaswag ? "-h 1" : "--choices", o->hellaswag ? "-h (-h 0)" : "--choices");
    if ((*o->gpu || o->price > 0) && !*o->plan)
        return error_set(err, "%s: says what a plan is for; give --plan as well", *o->gpu ? "--gpu" : "--price");
    if (options_given(o, "fp8-scaling") && !o->fp8 && !o->resume) // -y: the run may have it
        return error_set(err, "--fp8-scaling: says how fp8 tensors are scaled; give --fp8 as well");
    if (o->tokens > 0 && options_given(o, "max-steps"))
        return error_set(err, "--tokens and -x both say how long the run is: give one of them");
    if (options_given(o, "master-weights") && o->master && optimizer_parse(&optimizer, o->optimizer, err) &&
        !optimizer_has_master(optimizer))
        return error_set(err, "-w 1: --optimizer %s keeps no master weights; leave out -w, or use adamw or adamw8bit",
                         o->optimizer);
    if (o->reset_optimizer && !o->resume)
        return error_set(err, "--reset-optimizer: a new run has a new optimizer; it is for going on with -y");
    if (o->interactive && o->max_steps != 0)
        return error_set(err, "--interactive answers prompts and does not train: give -x 0 as well");
    return true;
}

static bool asks_for_help(const char *text) { return strcmp(text, "--help") == 0 || strcmp(text, "-help") == 0; }

static const char *program_name(int argc, char **argv) {
    if (argc < 1) return "train_gpt2";
    const char *slash = strrchr(argv[0], '/');
    return slash ? slash + 1 : argv[0];
}

DeviceOptions options_device(const Options *o) {
    DeviceOptions device = {.threads = o->threads, .tf32 = o->tf32 != 0, .attention = ATTENTION_AUTO};
    if (strcmp(o->attention, "cudnn") == 0) device.attention = ATTENTION_CUDNN;
    if (strcmp(o->attention, "own") == 0) device.attention = ATTENTION_OWN;
    device.gelu_fusion = (GeluFusion)(o->gelu_fusion + 1); // both in the same order; the option begins with -1, auto
    return device;
}

OptionsResult options_parse(Options *options, int argc, char **argv, Error *err) {
    memset(options, 0, sizeof *options);
    if (!set_defaults(options, err)) return OPTIONS_ERROR;
    for (int i = 1; i < argc;) {
        if (asks_for_help(argv[i])) {
            option_print_help(stdout, program_name(argc, argv));
            fflush(stdout);
            return OPTIONS_HELP_SHOWN;
        }
        if (!parse_argument(options, argv, &i, err)) return OPTIONS_ERROR;
    }
    return check_together(options, err) ? OPTIONS_RUN : OPTIONS_ERROR;
}

void options_free(Options *options) {
    int count;
    const OptionRow *rows = option_table(&count);
    for (int i = 0; i < count; i++) {
        if (rows[i].type != OPTION_STRING) continue;
        char **field = (char **)((char *)options + rows[i].offset);
        free(*field);
        *field = NULL;
    }
}

// ---------------------------------------------------------------------------------------------------------------- JSON

char *options_to_json(const Options *options) {
    char *json = NULL;
    size_t bytes = 0;
    FILE *f = text_open(&json, &bytes);
    int count;
    const OptionRow *rows = option_table(&count);
    for (int i = 0; i < count; i++) {
        fprintf(f, "%s\"%s\":", i == 0 ? "{" : ",", rows[i].long_name);
        if (rows[i].type == OPTION_STRING) {
            const char *text = option_string(&rows[i], options);
            format_json_string(f, text, strlen(text));
        } else { // written here and not by cJSON, whose doubles may be off by the last bit
            char number[40];
            fputs(format_exact(option_number(&rows[i], options), number, sizeof number), f);
        }
    }
    fputc('}', f);
    fclose(f);
    return json;
}

// They say how this process is started, limited and watched, not what the run computes.
static bool is_compared(const OptionRow *row) {
    const char *const others[] = {"resume", "progress", "max-minutes", "profile",        "plan",
                                  "gpu",    "price",    "interactive", "reset-optimizer"};
    for (size_t i = 0; i < sizeof others / sizeof others[0]; i++)
        if (strcmp(row->long_name, others[i]) == 0) return false;
    return true;
}

static bool adopt(const OptionRow *row, Options *options, const cJSON *then, Error *err) {
    char number[40];
    if (row->type == OPTION_STRING && cJSON_IsString(then))
        return option_set(row, options, row->long_name, then->valuestring, err);
    if (cJSON_IsNumber(then) && option_may_be_auto(row) && then->valuedouble == row->min)
        return option_set(row, options, row->long_name, "auto", err);
    // What is a text now was a number in older checkpoints: -r.
    if (cJSON_IsNumber(then) && (row->type != OPTION_STRING || strcmp(row->long_name, "recompute") == 0))
        return option_set(row, options, row->long_name, format_exact(then->valuedouble, number, sizeof number), err);
    return error_set(err, "%s: no %s", row->long_name, row->type == OPTION_STRING ? "text" : "number");
}

// An option under a name that nobody knows would be silently the default.
static bool check_names(const cJSON *then, Error *err) {
    char nearest[64];
    for (const cJSON *item = then->child; item; item = item->next) {
        if (option_find(item->string, strlen(item->string))) continue;
        const bool is_alike = option_nearest(item->string, nearest, sizeof nearest);
        return error_set(err, "there is no option \"%.64s\"%s%s%s", item->string, is_alike ? "; is it " : "",
                         is_alike ? nearest : "", is_alike ? "?" : "");
    }
    return true;
}

bool options_adopt_json(Options *options, const char *json, Error *err) {
    cJSON *then = cJSON_Parse(json);
    bool ok = (cJSON_IsObject(then) || error_set(err, "no JSON object")) && check_names(then, err);
    int count;
    const OptionRow *rows = option_table(&count);
    for (int i = 0; ok && i < count; i++) {
        const cJSON *value = cJSON_GetObjectItemCaseSensitive(then, rows[i].long_name);
        const bool is_output = strcmp(rows[i].long_name, "output") == 0;
        if (value && !is_output && is_compared(&rows[i]) && !options_given(options, rows[i].long_name))
            ok = adopt(&rows[i], options, value, err);
    }
    cJSON_Delete(then);
    return ok || error_prefix(err, "the options of the earlier run");
}

static bool differs(const OptionRow *row, const Options *options, const cJSON *then) {
    char number[40];
    if (row->type == OPTION_STRING && cJSON_IsNumber(then))
        return strcmp(format_exact(then->valuedouble, number, sizeof number), option_string(row, options)) != 0;
    if (row->type == OPTION_STRING) {
        return !cJSON_IsString(then) || strcmp(then->valuestring, option_string(row, options)) != 0;
    }
    return !cJSON_IsNumber(then) || then->valuedouble != option_number(row, options);
}

// "--batch-size 8 (was 4)\n"
static void print_difference(FILE *f, const OptionRow *row, const Options *options, const cJSON *then) {
    char *now = option_text(row, options);
    fprintf(f, "--%s %s (was ", row->long_name, now && *now ? now : "\"\"");
    free(now);
    char number[40];
    if (cJSON_IsString(then)) {
        format_visible(f, then->valuestring, strlen(then->valuestring), "");
    } else if (cJSON_IsNumber(then)) {
        fputs(format_exact(then->valuedouble, number, sizeof number), f);
    } else {
        fputs("no text or number", f);
    }
    fputs(")\n", f);
}

char *options_diff_json(const Options *options, const char *json) {
    cJSON *then = cJSON_Parse(json);
    if (!cJSON_IsObject(then)) {
        cJSON_Delete(then);
        return strdup("the options of the earlier run cannot be read: no JSON object\n");
    }
    char *lines = NULL;
    size_t bytes = 0;
    FILE *f = text_open(&lines, &bytes);
    int count;
    const OptionRow *rows = option_table(&count);
    for (int i = 0; i < count; i++) { // an option that did not exist then is no difference
        const cJSON *value = cJSON_GetObjectItemCaseSensitive(then, rows[i].long_name);
        if (value && is_compared(&rows[i]) && differs(&rows[i], options, value)) {
            print_difference(f, &rows[i], options, value);
        }
    }
    fclose(f);
    cJSON_Delete(then);
    if (bytes > 0) return lines;
    free(lines);
    return NULL;
}
