// data/prepare: text -> token shards for training and validation (`data/prepare --help`). This file
// is the tool: its options and what it says (data/tool.h: what it shares with
// data/train_tokenizer). The work is done by llmc/text/corpus.h. Never changes an input and never
// mixes shards of two runs.
#include "data/tool.h"
#include "llmc/base/clock.h"
#include "llmc/base/format.h"
#include "llmc/base/limits.h"
#include "llmc/base/typed_path.h"
#include "llmc/text/bpe_trainer.h"
#include "llmc/text/corpus.h"
#include "llmc/text/corpus_shards.h"
#include "llmc/text/tokenizer_open.h"

#include <getopt.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char HELP[] =
    "usage: data/prepare -o DIR [options] FILE|DIR|-...\n"
    "\n"
    "Turns text into the token shards DIR/train_000000.bin... and DIR/val_000000.bin..., with "
    "DIR/manifest.json (what\n"
    "they were made of) and DIR/tokenizer.json. Every document begins with the end-of-text token.\n"
    "\n"
    "  -o, --output DIR         directory for the shards; made if needed\n"
    "      --tokenizer PATH     tokenizer.json, a directory that has one (or vocab.json and "
    "merges.txt), a tiktoken "
    "rank\n"
    "                           file; bytes: 256 bytes and end-of-text (default); train:N: a new "
    "one of N tokens,\n"
    "                           257 to 1048576, made from the training text, which GPT-2's pattern "
    "cuts into words;\n"
    "                           train:N:PATTERN: the pattern of starcoder, llama3, qwen2 or o200k "
    "does\n"
    "      --val-fraction F     share of the text kept for validation, below 1 (default 0.1); 0: "
    "none\n"
    "      --split train|val    put all of the text there, for a corpus already divided into two "
    "directories\n"
    "      --shard-tokens N     tokens in a shard, at least 1024, with K, M or G (default 100M)\n"
    "      --force              replace the shards of an earlier run in DIR\n" CORPUS_TOOL_HELP "\n"
    "gzip and zstd are unpacked. Directories are read recursively, in the order of names, without "
    "hidden names; "
    "symbolic\n"
    "links are followed, and each file is read once. - is standard input (with --format, packed or "
    "not). What is no "
    "text\n"
    "is skipped in directories, counted and named with the next step: Parquet, archives, JSON that "
    "is not JSON Lines, "
    "UTF-16,\n"
    "and other files that are empty or have a NUL byte in their first 64 KiB. As a FILE, such a "
    "kind ends the run.\n"
    "\n"
    "A run that is interrupted leaves no corpus; the same command starts over.\n"
    "\n"
    "The validation part depends only on the document itself, so adding files moves none of the "
    "others:\n"
    "a document of up to 64 KiB goes to validation as a whole if the hash of its bytes falls below "
    "F (equal documents\n"
    "stay together); a longer one gives its last part, a share of F, cut at a line. If this leaves "
    "training or\n"
    "validation less than a quarter of its share (a few short documents), every document is cut "
    "instead.\n";

// ----------------------------------------------------------------------------------------- options

typedef struct {
    CorpusTool tool;
    const char *tokenizer, *val_fraction, *split;
} PrepareOptions;

static bool read_options(PrepareOptions *o, int argc, char **argv, Error *err) {
    *o = (PrepareOptions){.tool = corpus_tool("prepare", "data/prepare", "-o DIR"),
                          .tokenizer = "bytes"};
    CorpusOptions *corpus = &o->tool.corpus;
    const ToolOption table[] = {
        {"output", 'o', .text = &corpus->inputs.output, .is_path = true},
        {"tokenizer", .text = &o->tokenizer, .is_path = true},
        {"val-fraction", .text = &o->val_fraction},
        {"split", .text = &o->split},
        {"shard-tokens", .number = &corpus->shard_tokens, .min = 1024, .max = 1000000000000},
        {"force", .flag = &corpus->force},
        CORPUS_TOOL_OPTIONS(&o->tool),
        {0}};
    corpus->shard_tokens = 100000000;

    if (!tool_read_options("prepare", table, argc, argv, err)) return false;
    if (o->tool.help) return true;
    if (!corpus->inputs.output || !*corpus->inputs.output)
        return error_set(err, "-o DIR is missing: the directory for the shards");

    if (strncmp(o->tokenizer, "train:", 6) == 0) {
        char number[32];
        const size_t length = strcspn(o->tokenizer + 6, ":");
        snprintf(number, sizeof number, "%.*s", (int)length, o->tokenizer + 6);
        if (length >= sizeof number || !tool_read_number("", number, MIN_TRAINED_VOCAB,
                                                         MAX_TRAINED_VOCAB, &corpus->vocab, NULL))
            return error_set(
                err,
                "--tokenizer %s: expected train:N with N from %d (bytes and end-of-text) to %d",
                o->tokenizer, MIN_TRAINED_VOCAB, MAX_TRAINED_VOCAB);
        corpus->vocab_option_end = o->tokenizer + 6 + length;
        if (*corpus->vocab_option_end &&
            !pattern_named(corpus->vocab_option_end + 1, &corpus->pattern, err))
            return error_prefix(err, "--tokenizer %s", o->tokenizer);
    }
    if (!corpus_tool_take_inputs(&o->tool, argv + optind, argc - optind, err)) return false;

    const char *given = o->val_fraction;
    const bool val = o->split && strcmp(o->split, "val") == 0;
    double *fraction = &corpus->val_fraction;
    char *end = NULL;
    *fraction = 0.1;
    if (o->split) *fraction = val;
    if (given) *fraction = strtod(given, &end);
    if (given && (end == given || *end || !(*fraction >= 0 && *fraction < 1)))
        return error_set(err, "--val-fraction %s: expected a number below 1, or 0 for none", given);
    if (o->split && !val && strcmp(o->split, "train") != 0)
        return error_set(err, "--split %s: expected train or val", o->split);
    if (o->split && given)
        return error_set(err, "--split and --val-fraction exclude each other; give one");
    return true;
}

// ----------------------------------------------------------------------------------------- summary

static void print_summary(const CorpusOptions *o, const CorpusResult *result, double seconds) {
    const double val_fraction = o->val_fraction;
    const char *output = o->inputs.output;
    const CorpusCounts *c = &result->counts;
    const int64_t bytes = c->side[CORPUS_TRAIN].bytes + c->side[CORPUS_VAL].bytes,
                  all = c->side[CORPUS_TRAIN].tokens + c->side[CORPUS_VAL].tokens;
    char size[32], duration[32];
    printf("prepare: %" PRId64 " document%s, %" PRId64 " bytes (%s) in %s\n", c->documents,
           format_plural(c->documents), bytes, format_bytes((double)bytes, size, sizeof size),
           format_duration(seconds, duration, sizeof duration));
    corpus_tool_print_skipped(c);

    if (o->tokenizer && tokenizer_expects_nfc(o->tokenizer))
        printf("  note: the tokenizer normalizes texts to NFC, which is not done here: give them "
               "in NFC\n");
    if (result->cut_all)
        printf("  few, short documents: each was cut into a training and a validation part\n");
    else if (c->documents == 1 && !corpus_is_one_sided(val_fraction))
        printf("  one document: its last part is for validation\n");
    if (corpus_is_lopsided(c, val_fraction))
        printf("  note: validation was to have %g%% of the tokens; the documents are too few, or "
               "too long, for that\n",
               100 * val_fraction);

    for (CorpusSide side = 0; side < CORPUS_SIDES; side++) {
        const int64_t tokens = c->side[side].tokens, shards = result->num_shards[side];
        char *first = corpus_shard_path(output, side, 0), *pattern = path_numbered(first);
        if (shards > 0)
            format_print(stdout,
                         "  %-5s %13" PRId64 " tokens (%4.1f%%) in %" PRId64 " shard%s: %s\n",
                         corpus_side_names[side], tokens, 100.0 * (double)tokens / (double)all,
                         shards, format_plural(shards), path_quoted(pattern).text);
        free(pattern);
        free(first);
    }
}

// -------------------------------------------------------------------------------------------- main

int main(int argc, char **argv) {
    PrepareOptions options;
    CorpusOptions *corpus = &options.tool.corpus;
    Tokenizer *tokenizer = NULL;
    Error err;
    limits_start();
    bool ok = read_options(&options, argc, argv, &err);
    if (ok && options.tool.help) {
        fputs(HELP, stdout);
        return EXIT_OK;
    }

    if (ok && !corpus->vocab) {
        tokenizer = tokenizer_named(options.tokenizer, &err);
        ok = tokenizer != NULL;
        if (ok && tokenizer_eot(tokenizer) < 0)
            ok = error_set(&err,
                           "%s: has no end-of-text token (such as <|endoftext|>), which every "
                           "document begins with",
                           options.tokenizer);
    }

    int status = EXIT_BAD_INPUT;
    if (ok) {
        CorpusDisplay display = corpus_display("prepare");
        CorpusResult result;
        const double start = now_seconds();
        corpus->tokenizer = tokenizer;
        corpus->vocab_option = "--tokenizer train:";
        corpus->on_progress = corpus_display_progress;
        corpus->user = &display;
        status = corpus_run(corpus, &result, &err);
        corpus_display_clear(&display);
        if (status == EXIT_OK) print_summary(corpus, &result, now_seconds() - start);
        corpus_counts_clear(&result.counts);
    }

    tokenizer_free(tokenizer);
    if (status != EXIT_OK) fprintf(stderr, "prepare: %s\n", err.text);
    return status;
}
