// data/prepare: text -> token shards for training and validation (`data/prepare --help`). This file is the tool: its
// options and what it says (llmc/run/data_tools.h: what it shares with data/train_tokenizer). The work is done by
// llmc/text/corpus.h. Never changes an input and never mixes shards of two runs.
#include "llmc/base/arithmetic.h"
#include "llmc/base/atomic_file.h"
#include "llmc/base/format.h"
#include "llmc/run/data_tools.h"
#include "llmc/text/bpe_trainer.h"
#include "llmc/text/corpus.h"

#include <getopt.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const int64_t MIN_SHARD_TOKENS = 1024, DEFAULT_SHARD_TOKENS = 100000000, MAX_SHARD_TOKENS = 1000000000000;
static const double DEFAULT_VAL_FRACTION = 0.1, NOT_GIVEN = -1;

static const char HELP[] =
    "usage: data/prepare -o DIR [options] FILE|DIR|-...\n"
    "\n"
    "Turns text into the token shards DIR/train_000000.bin... and DIR/val_000000.bin..., with DIR/manifest.json (what\n"
    "they were made of) and DIR/tokenizer.json. Every document begins with the end-of-text token.\n"
    "\n"
    "  -o, --output DIR         where the shards go; made if needed\n"
    "      --tokenizer PATH     tokenizer.json, a directory that has one (or vocab.json and merges.txt), a tiktoken "
    "rank\n"
    "                           file; bytes: 256 of them and end-of-text (default); train:N: a new one of N tokens,\n"
    "                           257 to 1048576, made from the text that goes to training\n"
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
    "  -h, --help               this text\n"
    "\n"
    "Names on .gz and .zst are unpacked. Directories are read recursively, in the order of names; in them, hidden "
    "names\n"
    "and symbolic links are left out. - is standard input (with --format, packed or not). Texts that are empty or "
    "have\n"
    "a NUL byte in their first 64 KiB (binary files) are skipped and counted.\n"
    "\n"
    "When the same command is given again, a run that was killed continues after the last shard that was complete; "
    "the\n"
    "result is the same.\n"
    "\n"
    "Which part is for validation depends on a document alone, so that adding files moves none of the others:\n"
    "a document of up to 64 KiB goes to validation as a whole if the hash of its bytes falls below F (equal documents\n"
    "stay together); a longer one gives its last part, a share of F, cut at a line. If this leaves training or\n"
    "validation less than a quarter of its share (a few short documents), every document is cut instead.\n";

// ------------------------------------------------------------------------------------------------------------- options

typedef struct {
    CorpusToolOptions tool;
    const char *tokenizer, *split;
    bool help;
} PrepareOptions;

static bool parse_fraction(const char *text, double *out, Error *err) {
    char *end;
    *out = strtod(text, &end);
    if (end != text && *end == '\0' && *out >= 0 && *out < 1) return true;
    return error_set(err, "--val-fraction %s: expected a number below 1, or 0 for none", text);
}

static bool take_tokenizer(PrepareOptions *o, const char *text, Error *err) {
    const char *number = strncmp(text, "train:", 6) == 0 ? text + 6 : NULL;
    int64_t *vocab = &o->tool.corpus.vocab;
    o->tokenizer = text, *vocab = 0;
    return !number || corpus_tool_parse_int("train:", number, MIN_TRAINED_VOCAB, MAX_TRAINED_VOCAB, vocab, NULL) ||
           error_set(err, "--tokenizer %s: expected train:N with N from %d (bytes and end-of-text) to %d", text,
                     MIN_TRAINED_VOCAB, MAX_TRAINED_VOCAB);
}

static bool choose_sides(PrepareOptions *o, Error *err) {
    double *fraction = &o->tool.corpus.val_fraction;
    const bool given = *fraction != NOT_GIVEN, val = o->split && strcmp(o->split, "val") == 0;
    if (o->split && !val && strcmp(o->split, "train") != 0)
        return error_set(err, "--split %s: expected train or val", o->split);
    if (o->split && given) return error_set(err, "--split takes all of the text, --val-fraction a share: give one");
    if (!given) *fraction = val ? 1 : o->split ? 0 : DEFAULT_VAL_FRACTION;
    return true;
}

enum { TOKENIZER = 256, VAL_FRACTION, SPLIT, SHARD_TOKENS, FORCE };

static bool take_option(PrepareOptions *o, int option, Error *err) {
    CorpusOptions *corpus = &o->tool.corpus;
    switch (option) {
    case 'o':
        return corpus->inputs.output = optarg, true;
    case 'h':
        return o->help = true;
    case TOKENIZER:
        return take_tokenizer(o, optarg, err);
    case VAL_FRACTION:
        return parse_fraction(optarg, &corpus->val_fraction, err);
    case SPLIT:
        return o->split = optarg, true;
    case SHARD_TOKENS:
        return corpus_tool_parse_int("--shard-tokens", optarg, MIN_SHARD_TOKENS, MAX_SHARD_TOKENS,
                                     &corpus->shard_tokens, err);
    case FORCE:
        return corpus->force = true;
    default:
        return corpus_tool_take(&o->tool, option, optarg, err);
    }
}

static bool parse_options(PrepareOptions *o, int argc, char **argv, Error *err) {
    static const struct option table[] = {
        {"output", required_argument, NULL, 'o'},
        {"tokenizer", required_argument, NULL, TOKENIZER},
        {"val-fraction", required_argument, NULL, VAL_FRACTION},
        {"split", required_argument, NULL, SPLIT},
        {"shard-tokens", required_argument, NULL, SHARD_TOKENS},
        {"force", no_argument, NULL, FORCE},
        {"help", no_argument, NULL, 'h'},
        CORPUS_TOOL_OPTIONS,
        {0},
    };
    *o = (PrepareOptions){.tool = corpus_tool_defaults("prepare"), .tokenizer = "bytes"};
    CorpusOptions *corpus = &o->tool.corpus;
    corpus->val_fraction = NOT_GIVEN, corpus->shard_tokens = DEFAULT_SHARD_TOKENS;
    opterr = 0;
    for (int c; (c = getopt_long(argc, argv, ":o:h", table, NULL)) != -1;) {
        if (c == ':' || c == '?') return corpus_tool_refuse(&o->tool, c, argv[optind - 1], err);
        if (!take_option(o, c, err)) return false;
        if (o->help) return true;
    }
    if (!corpus->inputs.output || !*corpus->inputs.output)
        return error_set(err, "-o DIR is missing: where the shards go");
    return corpus_tool_take_inputs(&o->tool, argv + optind, argc - optind, err) && choose_sides(o, err);
}

// ------------------------------------------------------------------------------------------------------------- summary

static void print_side(const char *output, const CorpusResult *result, CorpusSide side) {
    const int64_t all = result->counts.side[CORPUS_TRAIN].tokens + result->counts.side[CORPUS_VAL].tokens,
                  tokens = result->counts.side[side].tokens, shards = result->num_shards[side];
    printf("  %-5s %13" PRId64 " tokens (%4.1f%%) in %" PRId64 " shard%s: %s/%s_*.bin\n", corpus_side_names[side],
           tokens, 100.0 * (double)tokens / (double)all, shards, shards == 1 ? "" : "s", output,
           corpus_side_names[side]);
}

static void print_summary(const char *output, const CorpusResult *result, double seconds) {
    const CorpusCounts *c = &result->counts;
    int64_t bytes = c->side[CORPUS_TRAIN].bytes + c->side[CORPUS_VAL].bytes;
    char size[32], duration[32];
    printf("prepare: %" PRId64 " document%s, %" PRId64 " bytes (%s) in %s\n", c->documents,
           c->documents == 1 ? "" : "s", bytes, format_bytes((double)bytes, size, sizeof size),
           format_duration(seconds, duration, sizeof duration));
    corpus_tool_print_skipped(c);
    if (result->cut_all)
        printf("  few, short documents: each was cut into a part for training and one for validation\n");
    for (CorpusSide side = 0; side < CORPUS_SIDES; side++)
        if (result->num_shards[side] > 0) print_side(output, result, side);
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

static int prepare(CorpusOptions *corpus, Error *err) {
    CorpusDisplay display = corpus_display("prepare");
    CorpusResult result;
    const double start = now_seconds();
    corpus->vocab_option = "--tokenizer train:";
    corpus->on_progress = corpus_display_progress, corpus->on_notice = corpus_display_notice, corpus->user = &display;
    const int status = corpus_run(corpus, &result, err);
    corpus_display_clear(&display);
    if (status == EXIT_OK) print_summary(corpus->inputs.output, &result, now_seconds() - start);
    bad_report_clear(&result.counts.bad);
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
        CorpusOptions *corpus = &options.tool.corpus;
        Tokenizer *tokenizer = corpus->vocab ? NULL : open_tokenizer(options.tokenizer, &err);
        corpus->tokenizer = tokenizer;
        if (tokenizer || corpus->vocab) status = prepare(corpus, &err);
        tokenizer_free(tokenizer);
    }
    if (status != EXIT_OK) fprintf(stderr, "prepare: %s\n", err.text);
    return status;
}
