// The command line of the programs of data/: options, progress display, report of skipped input.
// See tool.h.
#include "data/tool.h"

#include "llmc/base/arguments.h"
#include "llmc/base/arithmetic.h"
#include "llmc/base/clock.h"
#include "llmc/base/file.h"
#include "llmc/base/format.h"
#include "llmc/base/limits.h"
#include "llmc/base/typed_path.h"

#include <errno.h>
#include <getopt.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

// ----------------------------------------------------------------------------------------- options

QuotedPath tool_path(const char *program) {
    char name[64];
    snprintf(name, sizeof name, "data/%s", program);
    return path_of_tool(name);
}

bool tool_read_number(const char *name, const char *text, int64_t min, int64_t max, int64_t *out,
                      Error *err) {
    char *end;
    errno = 0;
    long long n = strtoll(text, &end, 10);
    const char *suffixes = "KMG", *suffix = NULL;
    if (*end && max < INT64_MAX) suffix = strchr(suffixes, *end);
    int64_t unit = 1;
    for (const char *s = suffixes; suffix && s <= suffix; s++) unit *= 1000;
    if (end != text && errno == 0 && end[suffix != NULL] == '\0' && n >= 0 && n <= max / unit &&
        n * unit >= min) {
        *out = n * unit;
        return true;
    }
    if (max == INT64_MAX)
        return error_set(err, "--%s %s: expected a number of at least %" PRId64, name, text, min);
    return error_set(err, "--%s %s: expected a number from %" PRId64 " to %" PRId64, name, text,
                     min, max);
}

static bool refuse_word(const char *program, const ToolOption *table, const char *word,
                        Error *err) {
    const Argument a = argument_split(word);
    NearestName nearest = argument_nearest(a.name, a.length);
    char help[512];
    if (word[1] != '-' && file_exists(word))
        return error_set(err, "unknown option %s; the file of this name is %s", word,
                         path_quoted(word).text);
    for (const ToolOption *o = table; o->name && word[1] == '-'; o++)
        argument_nearest_try(&nearest, "--", o->name);
    snprintf(help, sizeof help, "%s --help", tool_path(program).text);
    return argument_unknown(argument_shown(word, strlen(word)).text, &nearest, help, err);
}

// Tells whether a word is -x or --name of the table: it is not the value of the option before it.
static bool is_option(const ToolOption *table, const char *word) {
    for (const ToolOption *o = table; o->name; o++)
        if (word[0] == '-' && ((word[1] == '-' && strcmp(word + 2, o->name) == 0) ||
                               (o->letter && word[1] == o->letter && !word[2])))
            return true;
    return false;
}

bool tool_read_options(const char *program, const ToolOption *table, int argc, char **argv,
                       Error *err) {
    enum {
        MAX_ROWS = 16,
        FIRST_ROW = 256
    }; // FIRST_ROW: what getopt returns for the first row's long name
    struct option names[MAX_ROWS + 1] = {{0}};
    static char *paths[MAX_ROWS]; // last until the program ends
    const char *given[MAX_ROWS] = {NULL};
    char letters[2 * MAX_ROWS + 2] = ":"; // ':': tells a missing value from an unknown option
    for (int i = 0; table[i].name; i++) {
        REQUIRE(i < MAX_ROWS, "data/%s has more than %d options", program, MAX_ROWS);
        names[i] =
            (struct option){.name = table[i].name, .has_arg = !table[i].flag, .val = FIRST_ROW + i};
        if (!table[i].letter) continue;
        const size_t n = strlen(letters);
        snprintf(letters + n, sizeof letters - n, "%c%s", table[i].letter,
                 !table[i].flag ? ":" : "");
    }
    for (int i = 1; i < argc; i++)
        if (strcmp(argv[i], "--version") == 0) {
            program_print_version();
            exit(EXIT_OK);
        }

    opterr = 0;
    for (int found; (found = getopt_long_only(argc, argv, letters, names, NULL)) != -1;) {
        const char *word = argv[optind - 1];
        int row = 0, wanted = found;
        if (found == ':' || found == '?') wanted = optopt;
        while (names[row].name && wanted != names[row].val &&
               (!wanted || wanted != table[row].letter))
            row++;
        const ToolOption *o = &table[row];
        if (!o->name) return refuse_word(program, table, word, err);
        if (found == '?')
            return error_set(err, "%s: takes no value; %s --help lists the options", word,
                             tool_path(program).text);
        if (found != ':' && !o->flag && optarg == word && is_option(table, word)) {
            word = argv[optind - 2];
            found = ':';
        }
        if (found == ':')
            return error_set(err, "%s needs a value; %s --help lists the options", word,
                             tool_path(program).text);

        if (o->flag) *o->flag = true;
        if (o->letter == 'h') return true;
        if (o->flag) continue;
        if (given[row] && strcmp(given[row], optarg) != 0)
            fprintf(stderr, "%s: --%s was given twice; the last counts, %s, not %s\n", program,
                    o->name, argument_shown(optarg, strlen(optarg)).text,
                    argument_shown(given[row], strlen(given[row])).text);
        given[row] = optarg;
        if (o->text) *o->text = optarg;
        if (o->is_path) {
            free(paths[row]);
            *o->text = paths[row] = path_from_home(optarg);
        }
        if (o->number && !tool_read_number(o->name, optarg, o->min, o->max, o->number, err))
            return false;
    }
    return true;
}

// ----------------------------------------------------------------------------------------- corpora

enum { MAX_FIELD_BYTES = 255 };

CorpusTool corpus_tool(const char *program, const char *tool, const char *tool_options) {
    return (CorpusTool){.program = program,
                        .corpus = {.field = "text", .tool = tool, .tool_options = tool_options},
                        .threads = min_i64(limits_processors(), MAX_TOOL_THREADS)};
}

bool corpus_tool_take_inputs(CorpusTool *tool, char **inputs, int count, Error *err) {
    CorpusOptions *o = &tool->corpus;
    const bool txt = tool->format && strcmp(tool->format, "txt") == 0;
    if (tool->format && !txt && strcmp(tool->format, "jsonl") != 0)
        return error_set(err, "--format %s: expected txt or jsonl", tool->format);
    if (strlen(o->field) > MAX_FIELD_BYTES)
        return error_set(err, "--field: a name has at most %d bytes", MAX_FIELD_BYTES);
    if (o->split_at && (!*o->split_at || strlen(o->split_at) > MAX_FIELD_BYTES))
        return error_set(err, "--split-at: expected a text of 1 to %d bytes", MAX_FIELD_BYTES);

    o->inputs.format = FORMAT_BY_CONTENT;
    if (tool->format) o->inputs.format = FORMAT_LINES;
    if (txt) o->inputs.format = FORMAT_TEXT;
    o->inputs.arguments = inputs;
    o->inputs.count = count;
    o->threads = (int)tool->threads;

    if (count == 0)
        return error_set(err, "no FILE or DIR to read; %s --help shows the usage",
                         tool_path(tool->program).text);
    int times = 0;
    for (int i = 0; i < count; i++) times += strcmp(inputs[i], "-") == 0;
    if (times > 1) return error_set(err, "- means standard input and can be given only once");
    if (times > 0 && !tool->format)
        return error_set(err,
                         "-: standard input has no file name; give --format jsonl or --format txt");
    return true;
}

// ---------------------------------------------------------------------------------------- progress

CorpusDisplay corpus_display(const char *program) {
    const double now = now_seconds();
    return (CorpusDisplay){.program = program,
                           .start = now,
                           .last_shown = now,
                           .is_terminal = terminal_redraws(STDERR_FILENO)};
}

// A terminal shows a bar that is drawn ten times a second; another output gets a line every ten
// seconds.
void corpus_display_progress(void *display, const CorpusProgress *p) {
    CorpusDisplay *d = display;
    double now = now_seconds(), interval = 10;
    if (d->is_terminal) interval = 0.1;
    if (p->stage != d->stage) { // its rate is its own
        d->stage = p->stage;
        d->start = now;
    }
    if (now - d->last_shown < interval) return;
    d->last_shown = now;
    d->is_drawn = true;

    // "337 MiB, 160.6M tokens, 33.7 MiB/s, eta 18s"
    char right[160], line[512], bytes[32], tokens[32], rate_text[32], eta[32];
    double rate = 0, left = -1, fraction = 0;
    if (now > d->start) rate = (double)p->bytes_read / (now - d->start);
    if (p->total_bytes >= p->bytes_read && rate > 0)
        left = (double)(p->total_bytes - p->bytes_read) / rate;
    if (p->total_bytes > 0) fraction = (double)p->bytes_read / (double)p->total_bytes;
    format_bytes((double)p->bytes_read, bytes, sizeof bytes);
    format_bytes(rate, rate_text, sizeof rate_text);
    format_duration(left, eta, sizeof eta);
    format_count((double)p->tokens, tokens, sizeof tokens);

    if (p->stage == STAGE_MERGE) {
        fraction = (double)p->tokens / (double)p->vocab;
        snprintf(right, sizeof right, "merging, %" PRId64 " of %" PRId64 " tokens", p->tokens,
                 p->vocab);
    } else if (p->stage == STAGE_COUNT) {
        snprintf(right, sizeof right, "counting words, %s, %s/s, eta %s", bytes, rate_text, eta);
    } else {
        snprintf(right, sizeof right, "%s, %s tokens, %s/s, eta %s", bytes, tokens, rate_text, eta);
    }

    if (d->is_terminal)
        fprintf(stderr, "\r%s\033[K",
                progress_render(fraction, d->program, right, terminal_width(), terminal_is_utf8(),
                                line, sizeof line));
    else
        fprintf(stderr, "%s: %.1f%% | %s\n", d->program, 100 * fraction, right);
}

void corpus_display_clear(const CorpusDisplay *d) {
    if (d->is_terminal && d->is_drawn) fprintf(stderr, "\r\033[K");
}

// ----------------------------------------------------------------------------------------- summary

static void print_kinds(const char *verb, const KindCounts *k) {
    for (int i = 0; i < k->num; i++)
        printf("  %s %" PRId64 " x %s, the first: %s\n", verb, k->kinds[i].count, k->kinds[i].kind,
               k->kinds[i].first);
}

void corpus_tool_print_skipped(const CorpusCounts *c) {
    print_kinds("skipped", &c->left_out);
    print_kinds("skipped", &c->bad);
    print_kinds("note:", &c->notes);
}
