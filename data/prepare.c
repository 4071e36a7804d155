// data/prepare: text -> token shards for training and validation (`data/prepare --help`). This file is the tool: its
// options, its progress and what it says. The work is done by llmc/tokens/corpus_run.h: inputs -> reader -> encoders ->
// writer (corpus_pipeline.h), a journal to go on with (corpus_journal.h), the way to the final names (corpus_output.h).
// Never changes an input and never mixes shards of two runs.
#include "llmc/base/atomic_file.h"
#include "llmc/base/clock.h"
#include "llmc/run/format.h"
#include "llmc/run/progress.h"
#include "llmc/tokens/corpus_run.h"

#include <errno.h>
#include <getopt.h>
#include <inttypes.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

static const int64_t MIN_SHARD_TOKENS = 1024, DEFAULT_SHARD_TOKENS = 100000000, MAX_SHARD_TOKENS = 1000000000000;
static const double DEFAULT_VAL_FRACTION = 0.1, NOT_GIVEN = -1, DEFAULT_JOURNAL_SECONDS = 5;
enum { MAX_THREADS = 1024, MAX_FIELD_BYTES = 255 };

static const char HELP[] =
    "usage: data/prepare -o DIR [options] FILE|DIR|-...\n"
    "\n"
    "Turns text into the token shards DIR/train_000000.bin... and DIR/val_000000.bin..., with DIR/manifest.json (what\n"
    "they were made of) and DIR/tokenizer.json. Every document begins with the end-of-text token.\n"
    "\n"
    "  -o, --output DIR         where the shards go; made if needed\n"
    "      --tokenizer PATH     tokenizer.json, a directory that has one (or vocab.json and merges.txt), a tiktoken "
    "rank\n"
    "                           file; or bytes: 256 of them and end-of-text (default)\n"
    "      --format FORMAT      of all inputs: txt, a file is a document; jsonl, a line is one. Default: jsonl for "
    "names\n"
    "                           on .jsonl and .ndjson, txt for all others\n"
    "      --field NAME         which field of the JSON objects holds the text (default text)\n"
    "      --val-fraction F     share of the text that is kept for validation, below 1 (default 0.1); 0: none\n"
    "      --split train|val    all of the text goes there: for a corpus that is divided already, a directory each\n"
    "      --shard-tokens N     tokens in a shard, at least 1024; K, M, G are understood (default 100M)\n"
    "      --threads N          that encode (default: all cores); the result does not depend on it\n"
    "      --skip-bad           count and skip lines that are bad, and compressed files from their damage on\n"
    "      --force              replace the shards of an earlier run in DIR\n"
    "      --journal-seconds S  how often a run makes durable how far it is (default 5)\n"
    "  -h, --help               this text\n"
    "\n"
    "Names on .gz and .zst are unpacked. Directories are read recursively, in the order of names; in them, hidden "
    "names\n"
    "and symbolic links are left out. - is standard input (with --format, packed or not). Texts that are empty or "
    "have\n"
    "a NUL byte in their first 64 KiB (binary files) are skipped and counted.\n"
    "\n"
    "A run that was killed goes on where it was when the same command is given again; the result is the same.\n"
    "\n"
    "Which part is for validation depends on a document alone, so that adding files moves none of the others:\n"
    "a document of up to 64 KiB goes to validation as a whole if the hash of its bytes falls below F (equal documents\n"
    "stay together); a longer one gives its last part, a share of F, cut at a line. If this leaves training or\n"
    "validation less than a quarter of its share (a few short documents), every document is cut instead.\n";

// ------------------------------------------------------------------------------------------------------------- options

typedef struct {
    const char *output, *tokenizer, *field, *split;
    CorpusFormat format;
    double val_fraction, journal_seconds;
    int64_t shard_tokens, threads;
    bool force, skip_bad, help;
    char **inputs;
    int num_inputs;
} PrepareOptions;

static bool parse_fraction(const char *text, double *out, Error *err) {
    char *end;
    *out = strtod(text, &end);
    if (end != text && *end == '\0' && *out >= 0 && *out < 1) return true;
    return error_set(err, "--val-fraction %s: expected a number below 1, or 0 for none", text);
}

static bool parse_seconds(const char *text, double *out, Error *err) {
    char *end;
    *out = strtod(text, &end);
    if (end != text && *end == '\0' && *out >= 0 && *out <= 86400) return true;
    return error_set(err, "--journal-seconds %s: expected seconds, from 0 to 86400", text);
}

static bool parse_int(const char *name, const char *text, int64_t min, int64_t max, int64_t *out, Error *err) {
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

static bool choose_sides(PrepareOptions *o, Error *err) {
    const bool given = o->val_fraction != NOT_GIVEN, val = o->split && strcmp(o->split, "val") == 0;
    if (o->split && !val && strcmp(o->split, "train") != 0)
        return error_set(err, "--split %s: expected train or val", o->split);
    if (o->split && given) return error_set(err, "--split takes all of the text, --val-fraction a share: give one");
    if (!given) o->val_fraction = val ? 1 : o->split ? 0 : DEFAULT_VAL_FRACTION;
    return true;
}

static bool check_options(PrepareOptions *o, Error *err) {
    if (!*o->output) return error_set(err, "-o DIR is missing: where the shards go");
    if (o->num_inputs == 0) return error_set(err, "no FILE or DIR to read; data/prepare --help shows the usage");
    if (strlen(o->field) > MAX_FIELD_BYTES)
        return error_set(err, "--field: a name has at most %d bytes", MAX_FIELD_BYTES);
    int times = 0;
    for (int i = 0; i < o->num_inputs; i++) times += strcmp(o->inputs[i], "-") == 0;
    if (times > 1) return error_set(err, "- stands for standard input and can be given once");
    if (times == 1 && o->format == FORMAT_BY_NAME)
        return error_set(err, "-: standard input has no name; say --format jsonl or --format txt");
    return choose_sides(o, err);
}

enum { TOKENIZER = 256, FORMAT, FIELD, VAL_FRACTION, SPLIT, SHARD_TOKENS, THREADS, SKIP_BAD, FORCE, JOURNAL_SECONDS };

static bool take_option(PrepareOptions *o, int option, Error *err) {
    switch (option) {
    case 'o':
        return o->output = optarg, true;
    case 'h':
        return o->help = true;
    case TOKENIZER:
        return o->tokenizer = optarg, true;
    case FORMAT:
        return parse_format(optarg, &o->format, err);
    case FIELD:
        return o->field = optarg, true;
    case VAL_FRACTION:
        return parse_fraction(optarg, &o->val_fraction, err);
    case SPLIT:
        return o->split = optarg, true;
    case SHARD_TOKENS:
        return parse_int("--shard-tokens", optarg, MIN_SHARD_TOKENS, MAX_SHARD_TOKENS, &o->shard_tokens, err);
    case THREADS:
        return parse_int("--threads", optarg, 1, MAX_THREADS, &o->threads, err);
    case SKIP_BAD:
        return o->skip_bad = true;
    case FORCE:
        return o->force = true;
    default:
        return parse_seconds(optarg, &o->journal_seconds, err);
    }
}

static int64_t cores(void) {
    cpu_set_t set;
    int count = sched_getaffinity(0, sizeof set, &set) == 0 ? CPU_COUNT(&set) : (int)sysconf(_SC_NPROCESSORS_ONLN);
    return count < 1 ? 1 : count > MAX_THREADS ? MAX_THREADS : count;
}

static bool parse_options(PrepareOptions *o, int argc, char **argv, Error *err) {
    static const struct option table[] = {
        {"output", required_argument, NULL, 'o'},
        {"tokenizer", required_argument, NULL, TOKENIZER},
        {"format", required_argument, NULL, FORMAT},
        {"field", required_argument, NULL, FIELD},
        {"val-fraction", required_argument, NULL, VAL_FRACTION},
        {"split", required_argument, NULL, SPLIT},
        {"shard-tokens", required_argument, NULL, SHARD_TOKENS},
        {"threads", required_argument, NULL, THREADS},
        {"skip-bad", no_argument, NULL, SKIP_BAD},
        {"force", no_argument, NULL, FORCE},
        {"journal-seconds", required_argument, NULL, JOURNAL_SECONDS},
        {"help", no_argument, NULL, 'h'},
        {0},
    };
    *o = (PrepareOptions){.output = "",
                          .tokenizer = "bytes",
                          .field = "text",
                          .val_fraction = NOT_GIVEN,
                          .shard_tokens = DEFAULT_SHARD_TOKENS,
                          .threads = cores(),
                          .journal_seconds = DEFAULT_JOURNAL_SECONDS};
    opterr = 0;
    for (int c; (c = getopt_long(argc, argv, ":o:h", table, NULL)) != -1;) {
        if (c == ':')
            return error_set(err, "%s needs a value; data/prepare --help lists the options", argv[optind - 1]);
        if (c == '?') return error_set(err, "unknown option %s; data/prepare --help lists them", argv[optind - 1]);
        if (!take_option(o, c, err)) return false;
        if (o->help) return true;
    }
    o->inputs = argv + optind, o->num_inputs = argc - optind;
    return check_options(o, err);
}

// ------------------------------------------------------------------------------------------------------------ progress

typedef struct {
    double start, last_shown;
    bool is_terminal;
} Display;

// On a terminal a bar that is drawn ten times a second, elsewhere a line every ten seconds.
static void show_progress(void *user, const CorpusProgress *p) {
    Display *d = user;
    double now = now_seconds(), interval = d->is_terminal ? 0.1 : 10;
    if (now - d->last_shown < interval) return;
    d->last_shown = now;
    double rate = (double)(p->bytes_read - p->start_bytes) / (now - d->start);
    double left = p->total_bytes >= p->bytes_read && rate > 0 ? (double)(p->total_bytes - p->bytes_read) / rate : -1;
    double fraction = p->total_bytes > 0 ? (double)p->bytes_read / (double)p->total_bytes : 0;
    char bytes[32], tokens[32], speed[32], eta[32], right[160], line[512];
    snprintf(right, sizeof right, "%s, %s tokens, %s/s, eta %s",
             format_bytes((double)p->bytes_read, bytes, sizeof bytes),
             format_count((double)p->tokens, tokens, sizeof tokens), format_bytes(rate, speed, sizeof speed),
             format_duration(left, eta, sizeof eta));
    if (d->is_terminal)
        fprintf(stderr, "\r%s\033[K",
                progress_render(fraction, "prepare", right, terminal_width(), terminal_is_utf8(), line, sizeof line));
    else
        fprintf(stderr, "prepare: %.1f%% | %s\n", 100 * fraction, right);
}

static void clear_progress(const Display *d) {
    if (d->is_terminal && d->last_shown > d->start) fprintf(stderr, "\r\033[K");
}

static void show_notice(void *user, const char *text) {
    clear_progress(user);
    fprintf(stderr, "prepare: %s\n", text);
}

// ------------------------------------------------------------------------------------------------------------- summary

static void print_side(const PrepareOptions *o, const CorpusResult *result, CorpusSide side) {
    const CorpusCount *count = result->counts.side;
    int64_t all = count[CORPUS_TRAIN].tokens + count[CORPUS_VAL].tokens, shards = result->num_shards[side];
    printf("  %-5s %13" PRId64 " tokens (%4.1f%%) in %" PRId64 " shard%s: %s/%s_*.bin\n", corpus_side_names[side],
           count[side].tokens, 100.0 * (double)count[side].tokens / (double)all, shards, shards == 1 ? "" : "s",
           o->output, corpus_side_names[side]);
}

static void print_skipped(const CorpusCounts *c) {
    if (c->binary + c->empty + c->unreadable > 0) {
        printf("  skipped %" PRId64 " binary, %" PRId64 " empty, %" PRId64 " unreadable files\n", c->binary, c->empty,
               c->unreadable);
    }
    for (int k = 0; k < BAD_KINDS; k++) {
        if (c->bad.count[k] == 0) continue;
        printf("  skipped %" PRId64 " x %s, the first: %s\n", c->bad.count[k], bad_kind_phrases[k], c->bad.first[k]);
    }
}

static void print_summary(const PrepareOptions *o, const CorpusResult *result, double seconds) {
    const CorpusCounts *c = &result->counts;
    int64_t bytes = c->side[CORPUS_TRAIN].bytes + c->side[CORPUS_VAL].bytes;
    char size[32], duration[32];
    printf("prepare: %" PRId64 " document%s, %" PRId64 " bytes (%s) in %s\n", c->documents,
           c->documents == 1 ? "" : "s", bytes, format_bytes((double)bytes, size, sizeof size),
           format_duration(seconds, duration, sizeof duration));
    print_skipped(c);
    if (result->cut_all)
        printf("  few, short documents: each was cut into a part for training and one for validation\n");
    for (CorpusSide side = 0; side < CORPUS_SIDES; side++)
        if (result->num_shards[side] > 0) print_side(o, result, side);
}

// ---------------------------------------------------------------------------------------------------------------- main

static Tokenizer *open_tokenizer(const char *path, Error *err) {
    if (strcmp(path, "bytes") == 0) return tokenizer_bytes(err);
    Tokenizer *t = tokenizer_open(path, err);
    if (!t || tokenizer_eot(t) >= 0) return t;
    error_set(err, "%s: has no <|endoftext|> token, with which every document begins", path);
    tokenizer_free(t);
    return NULL;
}

static int prepare(const PrepareOptions *o, const Tokenizer *tokenizer, Error *err) {
    Display display = {.start = now_seconds(), .is_terminal = isatty(STDERR_FILENO)};
    display.last_shown = display.start;
    const CorpusRunOptions options = {.output = o->output,
                                      .arguments = o->inputs,
                                      .num_arguments = o->num_inputs,
                                      .format = o->format,
                                      .tokenizer = tokenizer,
                                      .field = o->field,
                                      .val_fraction = o->val_fraction,
                                      .journal_seconds = o->journal_seconds,
                                      .shard_tokens = o->shard_tokens,
                                      .threads = (int)o->threads,
                                      .skip_bad = o->skip_bad,
                                      .force = o->force,
                                      .on_progress = show_progress,
                                      .on_notice = show_notice,
                                      .user = &display};
    CorpusResult result;
    int status = corpus_run(&options, &result, err);
    clear_progress(&display);
    if (status == EXIT_OK) print_summary(o, &result, now_seconds() - display.start);
    corpus_result_free(&result);
    return status;
}

int main(int argc, char **argv) {
    PrepareOptions options;
    Error err;
    int status = EXIT_BAD_INPUT;
    standard_files_open();
    if (parse_options(&options, argc, argv, &err)) {
        if (options.help) {
            fputs(HELP, stdout);
            return EXIT_OK;
        }
        Tokenizer *tokenizer = open_tokenizer(options.tokenizer, &err);
        if (tokenizer) status = prepare(&options, tokenizer, &err);
        tokenizer_free(tokenizer);
    }
    if (status != EXIT_OK) fprintf(stderr, "prepare: %s\n", err.text);
    return status;
}
