// The command line of the programs of data/: options, progress display, report of skipped input. See tool.h.
#include "data/tool.h"

#include "llmc/base/arguments.h"
#include "llmc/base/arithmetic.h"
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

// ------------------------------------------------------------------------------------------------------------- options

QuotedPath tool_path(const char *program) {
    char name[64];
    snprintf(name, sizeof name, "data/%s", program);
    return path_of_tool(name);
}

bool tool_read_number(const char *name, const char *text, int64_t min, int64_t max, int64_t *out, Error *err) {
    char *end;
    errno = 0;
    long long n = strtoll(text, &end, 10);
    const char *suffixes = "KMG", *suffix = NULL;
    if (*end && max < INT64_MAX) suffix = strchr(suffixes, *end);
    int64_t unit = 1;
    for (const char *s = suffixes; suffix && s <= suffix; s++) unit *= 1000;
    if (end != text && errno == 0 && end[suffix != NULL] == '\0' && n >= 0 && n <= max / unit && n * unit >= min) {
        *out = n * unit;
        return true;
    }
    if (max == INT64_MAX) return error_set(err, "--%s %s: expected a number of at least %" PRId64, name, text, min);
    return error_set(err, "--%s %s: expected a number from %" PRId64 " to %" PRId64, name, text, min, max);
}

// A command line while it is read. Words that are not options move to the end, in their order.
typedef struct {
    const char *program;
    const ToolOption *table;
    int argc, at; // of the next word
    char **argv;
    const char *given[16];             // the value of each row; NULL: not given yet
    const ToolOption *help, *repeated; // given: -h; with two values, the last of which counts
    const char *before;                // the other value
} ToolWords;

static bool list_hint(const ToolWords *w, const char *what, const char *word, Error *err) {
    return error_set(err, "%s%s; %s --help lists the options", word, what, tool_path(w->program).text);
}

// The row with this long name; else the only one that begins with it. NULL: none, and *several: more than one.
static const ToolOption *find_row(const ToolWords *w, const char *name, size_t length, bool *several) {
    const ToolOption *found = NULL;
    *several = false;
    for (const ToolOption *o = w->table; o->name; o++) {
        if (strncmp(o->name, name, length) != 0) continue;
        if (!o->name[length]) {
            *several = false;
            return o;
        }
        *several |= found != NULL;
        found = o;
    }
    if (*several || length == 0) return NULL;
    return found;
}

static const ToolOption *find_letter(const ToolWords *w, char letter) {
    for (const ToolOption *o = w->table; o->name; o++)
        if (letter && o->letter == letter) return o;
    return NULL;
}

static bool unknown_word(const ToolWords *w, const char *word, Error *err) {
    const Argument a = argument_split(word);
    NearestName nearest = argument_nearest(a.name, a.length);
    char help[512];
    if (word[1] != '-' && file_exists(word))
        return error_set(err, "unknown option %s; the file of this name is %s", word, path_quoted(word).text);
    for (const ToolOption *o = w->table; o->name && word[1] == '-'; o++) argument_nearest_try(&nearest, "--", o->name);
    snprintf(help, sizeof help, "%s --help", tool_path(w->program).text);
    return argument_unknown(argument_shown(word, strlen(word)).text, &nearest, help, err);
}

// value: NULL of a flag.
static bool take_value(ToolWords *w, const ToolOption *o, const char *value, Error *err) {
    const ptrdiff_t row = o - w->table;
    if (o->flag) *o->flag = true;
    if (o->letter == 'h') w->help = o;
    if (!value) return true;
    if (w->given[row] && strcmp(w->given[row], value) != 0) {
        w->before = w->given[row];
        w->repeated = o;
    }
    w->given[row] = value;
    if (o->text) *o->text = value;
    return !o->number || tool_read_number(o->name, value, o->min, o->max, o->number, err);
}

// The value is `attached`, or the next word.
static bool read_value(ToolWords *w, const ToolOption *o, const char *typed, const char *attached, Error *err) {
    if (o->flag && attached) return list_hint(w, ": takes no value", typed, err);
    if (o->flag || attached) return take_value(w, o, attached, err);
    // An option of the table is not the value of the one before it.
    const char *next = "--";
    if (w->at < w->argc) next = w->argv[w->at];
    const Argument a = argument_split(next);
    bool is_option = w->at == w->argc, several;
    if (next[0] == '-' && next[1] == '-') is_option |= find_row(w, a.name, a.length, &several) != NULL;
    if (next[0] == '-' && next[1] && !next[2]) is_option |= find_letter(w, next[1]) != NULL;
    if (is_option) return list_hint(w, " needs a value", typed, err);
    w->at++;
    return take_value(w, o, next, err);
}

// -o value, -ovalue, -abc. Nothing is taken from a word with an unknown letter.
static bool read_letters(ToolWords *w, const char *word, Error *err) {
    const char *last = word + 1;
    const ToolOption *o;
    while ((o = find_letter(w, *last)) && o->flag && last[1]) last++;
    if (!o) return unknown_word(w, word, err);
    for (const char *c = word + 1; c <= last; c++) {
        const char typed[] = {'-', *c, '\0'};
        o = find_letter(w, *c);
        const char *attached = NULL;
        if (c[1]) attached = c + 1;
        if (!o->flag) return read_value(w, o, typed, attached, err);
        if (!take_value(w, o, NULL, err)) return false;
    }
    return true;
}

bool tool_read_options(const char *program, const ToolOption *table, int argc, char **argv, Error *err) {
    ToolWords w = {.program = program, .table = table, .argc = argc, .at = 1, .argv = argv};
    int rows = 0, operands = 0;
    while (table[rows].name) rows++;
    REQUIRE(rows <= (int)(sizeof w.given / sizeof *w.given), "data/%s has %d options", program, rows);
    bool ok = true, only_operands = false;
    char **others = calloc((size_t)argc + 1, sizeof *others);
    REQUIRE_MEMORY(others, "a command line");
    while (ok && w.at < argc && !w.help) {
        char *word = argv[w.at++];
        if (only_operands || word[0] != '-' || !word[1]) {
            others[operands++] = word;
        } else if (strcmp(word, "--") == 0) {
            only_operands = true;
        } else {
            const bool is_long = word[1] == '-'; // --name, --name=value; also -name, if all of the name is there
            const Argument a = argument_split(word);
            bool several;
            const ToolOption *o = find_row(&w, a.name, a.length, &several);
            if (is_long && several)
                ok = list_hint(&w, " is the beginning of several options", word, err);
            else if (o && (is_long || !o->name[a.length]))
                ok = read_value(&w, o, word, a.value, err);
            else if (is_long)
                ok = unknown_word(&w, word, err);
            else
                ok = read_letters(&w, word, err);
        }
    }
    // The words that were read are not needed any more.
    for (int i = 0; ok && !w.help && i < operands; i++) argv[argc - operands + i] = others[i];
    optind = argc - operands;
    if (ok && w.repeated) {
        const char *last = w.given[w.repeated - table];
        fprintf(stderr, "%s: --%s was given twice; the last counts, %s, not %s\n", program, w.repeated->name,
                argument_shown(last, strlen(last)).text, argument_shown(w.before, strlen(w.before)).text);
    }
    free(others);
    return ok;
}

// ------------------------------------------------------------------------------------------------------------- corpora

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
        return error_set(err, "no FILE or DIR to read; %s --help shows the usage", tool_path(tool->program).text);
    int times = 0;
    for (int i = 0; i < count; i++) times += strcmp(inputs[i], "-") == 0;
    if (times > 1) return error_set(err, "- means standard input and can be given only once");
    if (times > 0 && !tool->format)
        return error_set(err, "-: standard input has no file name; give --format jsonl or --format txt");
    return true;
}

// ------------------------------------------------------------------------------------------------------------ progress

CorpusDisplay corpus_display(const char *program) {
    const double now = now_seconds();
    return (CorpusDisplay){
        .program = program, .start = now, .last_shown = now, .is_terminal = terminal_redraws(STDERR_FILENO)};
}

// On a terminal a bar that is drawn ten times a second, elsewhere a line every ten seconds.
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
    if (p->total_bytes >= p->bytes_read && rate > 0) left = (double)(p->total_bytes - p->bytes_read) / rate;
    if (p->total_bytes > 0) fraction = (double)p->bytes_read / (double)p->total_bytes;
    format_bytes((double)p->bytes_read, bytes, sizeof bytes);
    format_bytes(rate, rate_text, sizeof rate_text);
    format_duration(left, eta, sizeof eta);
    format_count((double)p->tokens, tokens, sizeof tokens);
    if (p->stage == STAGE_MERGE) {
        fraction = (double)p->tokens / (double)p->vocab;
        snprintf(right, sizeof right, "merging, %" PRId64 " of %" PRId64 " tokens", p->tokens, p->vocab);
    } else if (p->stage == STAGE_COUNT) {
        snprintf(right, sizeof right, "counting words, %s, %s/s, eta %s", bytes, rate_text, eta);
    } else {
        snprintf(right, sizeof right, "%s, %s tokens, %s/s, eta %s", bytes, tokens, rate_text, eta);
    }
    if (d->is_terminal)
        fprintf(stderr, "\r%s\033[K",
                progress_render(fraction, d->program, right, terminal_width(), terminal_is_utf8(), line, sizeof line));
    else
        fprintf(stderr, "%s: %.1f%% | %s\n", d->program, 100 * fraction, right);
}

void corpus_display_clear(const CorpusDisplay *d) {
    if (d->is_terminal && d->is_drawn) fprintf(stderr, "\r\033[K");
}

// ------------------------------------------------------------------------------------------------------------- summary

static void print_kinds(const char *verb, const KindCounts *k) {
    for (int i = 0; i < k->num; i++)
        printf("  %s %" PRId64 " x %s, the first: %s\n", verb, k->kinds[i].count, k->kinds[i].kind, k->kinds[i].first);
}

void corpus_tool_print_skipped(const CorpusCounts *c) {
    print_kinds("skipped", &c->left_out);
    for (int k = 0; k < BAD_KINDS; k++) {
        if (c->bad.count[k] == 0) continue;
        format_print(stdout, "  skipped %" PRId64 " x %s, the first: %s\n", c->bad.count[k], bad_kinds[k].phrase,
                     c->bad.first[k]);
    }
    print_kinds("note:", &c->notes);
}
