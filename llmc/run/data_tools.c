// What the programs that read a corpus share. See data_tools.h.
#include "llmc/run/data_tools.h"

#include "llmc/base/arithmetic.h"
#include "llmc/base/format.h"

#include <errno.h>
#include <inttypes.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

// ------------------------------------------------------------------------------------------------------------- corpora

enum { MAX_THREADS = 1024, MAX_FIELD_BYTES = 255 };

// ------------------------------------------------------------------------------------------------------------- options

static int cores(void) {
    cpu_set_t set;
    int count = sched_getaffinity(0, sizeof set, &set) == 0 ? CPU_COUNT(&set) : (int)sysconf(_SC_NPROCESSORS_ONLN);
    return count < 1 ? 1 : count > MAX_THREADS ? MAX_THREADS : count;
}

CorpusToolOptions corpus_tool_defaults(const char *program) {
    return (CorpusToolOptions){.program = program, .corpus = {.field = "text", .threads = cores()}};
}

bool corpus_tool_parse_int(const char *name, const char *text, int64_t min, int64_t max, int64_t *out, Error *err) {
    char *end;
    errno = 0;
    long long n = strtoll(text, &end, 10);
    const char *suffixes = "KMG", *suffix = *end ? strchr(suffixes, *end) : NULL;
    int64_t unit = 1;
    for (const char *s = suffixes; suffix && s <= suffix; s++) unit *= 1000;
    bool is_number = end != text && errno == 0 && end[suffix ? 1 : 0] == '\0';
    if (is_number && n > 0 && n <= max / unit && n * unit >= min) {
        *out = n * unit;
        return true;
    }
    return error_set(err, "%s %s: expected a number from %" PRId64 " to %" PRId64, name, text, min, max);
}

static bool parse_format(const char *text, CorpusFormat *out, Error *err) {
    *out = strcmp(text, "txt") == 0 ? FORMAT_TEXT : FORMAT_LINES;
    return *out == FORMAT_TEXT || strcmp(text, "jsonl") == 0 ||
           error_set(err, "--format %s: expected txt or jsonl", text);
}

bool corpus_tool_take(CorpusToolOptions *o, int option, const char *value, Error *err) {
    int64_t threads = 0;
    switch (option) {
    case CORPUS_TOOL_FORMAT:
        return parse_format(value, &o->corpus.inputs.format, err);
    case CORPUS_TOOL_FIELD:
        o->corpus.field = value;
        return strlen(value) <= MAX_FIELD_BYTES ||
               error_set(err, "--field: a name has at most %d bytes", MAX_FIELD_BYTES);
    case CORPUS_TOOL_THREADS:
        if (!corpus_tool_parse_int("--threads", value, 1, MAX_THREADS, &threads, err)) return false;
        o->corpus.threads = (int)threads;
        return true;
    default:
        return o->corpus.skip_bad = true;
    }
}

bool corpus_tool_take_inputs(CorpusToolOptions *o, char **inputs, int count, Error *err) {
    o->corpus.inputs.arguments = inputs, o->corpus.inputs.count = count;
    if (count == 0) return error_set(err, "no FILE or DIR to read; data/%s --help shows the usage", o->program);
    int times = 0;
    for (int i = 0; i < count; i++) times += strcmp(inputs[i], "-") == 0;
    if (times > 1) return error_set(err, "- stands for standard input and can be given once");
    if (times > 0 && o->corpus.inputs.format == FORMAT_BY_NAME)
        return error_set(err, "-: standard input has no name; say --format jsonl or --format txt");
    return true;
}

bool corpus_tool_refuse(const CorpusToolOptions *o, int c, const char *argument, Error *err) {
    return c == ':' ? error_set(err, "%s needs a value; data/%s --help lists the options", argument, o->program)
                    : error_set(err, "unknown option %s; data/%s --help lists them", argument, o->program);
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
    fprintf(stderr, "%s: %s\n", d->program, text);
}

// ------------------------------------------------------------------------------------------------------------- summary

void corpus_tool_print_skipped(const CorpusCounts *c) {
    if (c->binary + c->empty + c->unreadable > 0) {
        printf("  skipped %" PRId64 " binary, %" PRId64 " empty, %" PRId64 " unreadable files\n", c->binary, c->empty,
               c->unreadable);
    }
    for (int k = 0; k < BAD_KINDS; k++) {
        if (c->bad.count[k] == 0) continue;
        printf("  skipped %" PRId64 " x %s, the first: %s\n", c->bad.count[k], bad_kind_phrases[k], c->bad.first[k]);
    }
}
