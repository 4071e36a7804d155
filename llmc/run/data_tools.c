// Shared by the programs of data/. See data_tools.h.
#include "llmc/run/data_tools.h"

#include "llmc/base/arithmetic.h"
#include "llmc/base/format.h"

#include <errno.h>
#include <getopt.h>
#include <inttypes.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

// ------------------------------------------------------------------------------------------------------------- options

bool tool_read_number(const char *name, const char *text, int64_t min, int64_t max, int64_t *out, Error *err) {
    char *end;
    errno = 0;
    long long n = strtoll(text, &end, 10);
    const char *suffixes = "KMG", *suffix = *end && max < INT64_MAX ? strchr(suffixes, *end) : NULL;
    int64_t unit = 1;
    for (const char *s = suffixes; suffix && s <= suffix; s++) unit *= 1000;
    if (end != text && errno == 0 && end[suffix ? 1 : 0] == '\0' && n >= 0 && n <= max / unit && n * unit >= min)
        return *out = n * unit, true;
    if (max == INT64_MAX) return error_set(err, "--%s %s: expected a number of at least %" PRId64, name, text, min);
    return error_set(err, "--%s %s: expected a number from %" PRId64 " to %" PRId64, name, text, min, max);
}

bool tool_read_options(const char *program, const ToolOption *table, int argc, char **argv, Error *err) {
    enum { MOST = 16 };
    struct option options[MOST + 1] = {0};
    char letters[2 * MOST + 2] = ":";
    for (int i = 0, n = 1; table[i].name; i++) {
        REQUIRE(i < MOST, "data/%s has more than %d options", program, MOST);
        options[i] = (struct option){table[i].name, table[i].flag ? no_argument : required_argument, NULL, i};
        if (table[i].letter) letters[n++] = table[i].letter;
        if (table[i].letter && !table[i].flag) letters[n++] = ':';
    }
    opterr = 0;
    for (int c; (c = getopt_long(argc, argv, letters, options, NULL)) != -1;) {
        const char *given = argv[optind - 1];
        if (c == ':') return error_set(err, "%s needs a value; data/%s --help lists the options", given, program);
        if (c == '?') return error_set(err, "unknown option %s; data/%s --help lists them", given, program);
        int row = 0;
        while (c != row && c != table[row].letter) row++;
        const ToolOption *o = &table[row];
        if (o->flag) *o->flag = true;
        if (o->letter == 'h') break;
        if (o->text) *o->text = optarg;
        if (o->number && !tool_read_number(o->name, optarg, o->min, o->max, o->number, err)) return false;
    }
    return true;
}

// ------------------------------------------------------------------------------------------------------------- corpora

enum { MAX_FIELD_BYTES = 255 };

static int cores(void) {
    cpu_set_t set;
    int count = sched_getaffinity(0, sizeof set, &set) == 0 ? CPU_COUNT(&set) : (int)sysconf(_SC_NPROCESSORS_ONLN);
    return count < 1 ? 1 : count > MAX_TOOL_THREADS ? MAX_TOOL_THREADS : count;
}

CorpusTool corpus_tool(const char *program) {
    return (CorpusTool){.program = program, .corpus = {.field = "text"}, .threads = cores()};
}

bool corpus_tool_take_inputs(CorpusTool *tool, char **inputs, int count, Error *err) {
    CorpusOptions *o = &tool->corpus;
    const bool txt = tool->format && strcmp(tool->format, "txt") == 0;
    if (tool->format && !txt && strcmp(tool->format, "jsonl") != 0)
        return error_set(err, "--format %s: expected txt or jsonl", tool->format);
    if (strlen(o->field) > MAX_FIELD_BYTES)
        return error_set(err, "--field: a name has at most %d bytes", MAX_FIELD_BYTES);
    o->inputs.format = !tool->format ? FORMAT_BY_NAME : txt ? FORMAT_TEXT : FORMAT_LINES;
    o->inputs.arguments = inputs, o->inputs.count = count;
    o->threads = (int)tool->threads;
    if (count == 0) return error_set(err, "no FILE or DIR to read; data/%s --help shows the usage", tool->program);
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
    return (CorpusDisplay){.program = program, .start = now, .last_shown = now, .is_terminal = isatty(STDERR_FILENO)};
}

// "337 MiB, 160.6M tokens, 33.7 MiB/s, eta 18s"; returns the fraction done.
static double describe(const CorpusDisplay *d, const CorpusProgress *p, double now, char *out, int size) {
    char bytes[32], tokens[32], rate_text[32], eta[32];
    if (p->stage == STAGE_MERGE) {
        snprintf(out, (size_t)size, "merging, %" PRId64 " of %" PRId64 " tokens", p->tokens, p->vocab);
        return (double)p->tokens / (double)p->vocab;
    }
    double rate = now > d->start ? (double)(p->bytes_read - p->start_bytes) / (now - d->start) : 0;
    double left = p->total_bytes >= p->bytes_read && rate > 0 ? (double)(p->total_bytes - p->bytes_read) / rate : -1;
    format_bytes((double)p->bytes_read, bytes, sizeof bytes);
    format_bytes(rate, rate_text, sizeof rate_text);
    format_duration(left, eta, sizeof eta);
    if (p->stage == STAGE_COUNT)
        snprintf(out, (size_t)size, "counting words, %s, %s/s, eta %s", bytes, rate_text, eta);
    else
        snprintf(out, (size_t)size, "%s, %s tokens, %s/s, eta %s", bytes,
                 format_count((double)p->tokens, tokens, sizeof tokens), rate_text, eta);
    return p->total_bytes > 0 ? (double)p->bytes_read / (double)p->total_bytes : 0;
}

// On a terminal a bar that is drawn ten times a second, elsewhere a line every ten seconds.
void corpus_display_progress(void *display, const CorpusProgress *p) {
    CorpusDisplay *d = display;
    double now = now_seconds(), interval = d->is_terminal ? 0.1 : 10;
    if (p->stage != d->stage) d->stage = p->stage, d->start = now; // its rate is its own
    if (now - d->last_shown < interval) return;
    d->last_shown = now, d->is_drawn = true;
    char right[160], line[512];
    double fraction = describe(d, p, now, right, sizeof right);
    if (d->is_terminal)
        fprintf(stderr, "\r%s\033[K",
                progress_render(fraction, d->program, right, terminal_width(), terminal_is_utf8(), line, sizeof line));
    else
        fprintf(stderr, "%s: %.1f%% | %s\n", d->program, 100 * fraction, right);
}

void corpus_display_clear(const CorpusDisplay *d) {
    if (d->is_terminal && d->is_drawn) fprintf(stderr, "\r\033[K");
}

void corpus_display_notice(void *display, const char *text) {
    const CorpusDisplay *d = display;
    corpus_display_clear(d);
    format_print(stderr, "%s: %s\n", d->program, text);
}

// ------------------------------------------------------------------------------------------------------------- summary

void corpus_tool_print_skipped(const CorpusCounts *c) {
    if (c->binary + c->empty + c->unreadable > 0) {
        printf("  skipped %" PRId64 " binary, %" PRId64 " empty, %" PRId64 " unreadable files\n", c->binary, c->empty,
               c->unreadable);
    }
    for (int k = 0; k < BAD_KINDS; k++) {
        if (c->bad.count[k] == 0) continue;
        format_print(stdout, "  skipped %" PRId64 " x %s, the first: %s\n", c->bad.count[k], bad_kinds[k].phrase,
                     c->bad.first[k]);
    }
}
