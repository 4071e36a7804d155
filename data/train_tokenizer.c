// data/train_tokenizer: text -> a vocabulary (`data/train_tokenizer --help`). This file is the
// tool; the work is done by llmc/text/corpus.h, which reads what data/prepare reads. Never leaves
// half a file.
#include "data/tool.h"
#include "llmc/base/clock.h"
#include "llmc/base/format.h"
#include "llmc/base/limits.h"
#include "llmc/base/own_file.h"
#include "llmc/base/path.h"
#include "llmc/base/path_reason.h"
#include "llmc/text/bpe_trainer.h"
#include "llmc/text/corpus.h"
#include "llmc/text/directory_role.h"
#include "llmc/text/tokenizer_json.h"

#include <errno.h>
#include <getopt.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static const char HELP[] =
    "usage: data/train_tokenizer --vocab-size N -o tokenizer.json [options] FILE|DIR|-...\n"
    "\n"
    "Makes a byte-level BPE vocabulary, like GPT-2's, of your own text: the 256 bytes, N - 257 "
    "merges and "
    "<|endoftext|>,\n"
    "in a Hugging Face tokenizer.json. To train on the same text: data/prepare --tokenizer train:N "
    "does both, and "
    "keeps\n"
    "the validation text out of the vocabulary.\n"
    "\n"
    "  -o, --output FILE        the tokenizer.json\n"
    "      --vocab-size N       total tokens, 257 to 1048576; a multiple of 128 wastes no row of "
    "the model's table\n"
    "      --pattern NAME       what cuts the text into words: gpt2 (default), starcoder, llama3, "
    "qwen2 or "
    "o200k\n" CORPUS_TOOL_HELP "\n"
    "Inputs are read as by data/prepare: directories, gzip and zstd, - for standard input. The "
    "result does "
    "not\n"
    "depend on the order of the inputs. A pair of tokens must occur twice to be merged.\n";

typedef struct {
    CorpusTool tool;
    const char *output, *pattern;
} TrainOptions;

static bool read_options(TrainOptions *o, int argc, char **argv, Error *err) {
    *o = (TrainOptions){
        .tool = corpus_tool("train_tokenizer", "data/train_tokenizer", "--vocab-size N -o FILE"),
        .output = "",
        .pattern = "gpt2"};
    int64_t *vocab = &o->tool.corpus.vocab;
    const ToolOption table[] = {
        {"output", 'o', .text = &o->output, .is_path = true},
        {"vocab-size", .number = vocab, .min = MIN_TRAINED_VOCAB, .max = MAX_TRAINED_VOCAB},
        {"pattern", .text = &o->pattern},
        CORPUS_TOOL_OPTIONS(&o->tool),
        {0}};

    if (!tool_read_options("train_tokenizer", table, argc, argv, err)) return false;
    if (o->tool.help) return true;
    if (!*o->output) return error_set(err, "-o FILE is missing: the tokenizer.json to write");
    if (*vocab == 0) return error_set(err, "--vocab-size N is missing: total tokens, such as 8192");
    if (!pattern_named(o->pattern, &o->tool.corpus.pattern, err))
        return error_prefix(err, "--pattern");
    for (int i = optind; i < argc; i++)
        if (path_is_same(argv[i], o->output))
            return error_set(err, "-o %s: this is an input; name another file for the tokenizer",
                             o->output);
    return corpus_tool_take_inputs(&o->tool, argv + optind, argc - optind, err);
}

int main(int argc, char **argv) {
    TrainOptions options, *o = &options;
    CorpusOptions *corpus = &options.tool.corpus;
    CorpusCounts counts = {0};
    Tokenizer *t = NULL;
    Error err;
    limits_start();
    bool ok = read_options(o, argc, argv, &err);
    if (ok && options.tool.help) {
        fputs(HELP, stdout);
        return EXIT_OK;
    }

    char *directory = path_parent(o->output);
    struct stat st;
    if (ok && stat(o->output, &st) == 0 && S_ISDIR(st.st_mode))
        ok = error_set(&err, "%s: cannot be written: it is a directory", o->output);
    if (ok && !directory_check_role(o->output, &err)) ok = error_prefix(&err, "-o %s", o->output);
    if (ok && access(directory, W_OK | X_OK) != 0)
        ok = error_set(&err, "%s: cannot be written: %s", o->output,
                       path_reason(o->output, errno).text);

    CorpusDisplay display = corpus_display("train_tokenizer");
    const double start = now_seconds();
    corpus->vocab_option = "--vocab-size ";
    corpus->vocab_option_end = "";
    corpus->on_progress = corpus_display_progress;
    corpus->user = &display;
    int status = ok ? corpus_vocabulary(corpus, directory, &counts, &t, &err) : EXIT_BAD_INPUT;
    corpus_display_clear(&display);
    if (status == EXIT_OK && !tokenizer_write(t, o->output, &err)) status = EXIT_RUN_FAILED;

    if (status == EXIT_OK) {
        char size[32], duration[32];
        const int64_t bytes = counts.side[CORPUS_TRAIN].bytes;
        format_print(stdout,
                     "%s: %" PRId64 " tokens (<|endoftext|> is %d) from %" PRId64
                     " document%s, %" PRId64 " bytes (%s) in %s\n",
                     o->output, tokenizer_vocab(t), (int)tokenizer_eot(t), counts.documents,
                     format_plural(counts.documents), bytes,
                     format_bytes((double)bytes, size, sizeof size),
                     format_duration(now_seconds() - start, duration, sizeof duration));
        corpus_tool_print_skipped(&counts);
    }

    tokenizer_free(t);
    corpus_counts_clear(&counts);
    free(directory);
    if (status != EXIT_OK) fprintf(stderr, "train_tokenizer: %s\n", err.text);
    return status;
}
