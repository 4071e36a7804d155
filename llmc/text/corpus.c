// Converts a corpus from its inputs to a vocabulary, and to shards under their final names. See
// corpus.h.
#include "llmc/text/corpus.h"

#include "llmc/base/format.h"
#include "llmc/text/bpe_trainer.h"
#include "llmc/text/corpus_manifest.h"
#include "llmc/text/corpus_output.h"
#include "llmc/text/corpus_pipeline.h"
#include "llmc/text/tokenizer_json.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef struct {
    CorpusOptions options;                // its inputs include standard input once that was read
    InputSummary *summaries;              // one for each argument
    KindCounts walk_left_out, walk_notes; // of the walk over the inputs
    bool has_stdin;
    Tokenizer *trained, *cuts; // NULL unless one is trained
    CorpusProgress progress;
    CorpusOutput output;
    CorpusJob job;
    CorpusCounts counts;
    CorpusWriter writer;
} Run;

static bool open_inputs(Run *r, Error *err) {
    for (int i = 0; i < r->options.inputs.count; i++)
        r->has_stdin |= strcmp(r->options.inputs.arguments[i], "-") == 0;
    r->summaries = inputs_summarize(&r->options.inputs, &r->progress.total_bytes, &r->walk_left_out,
                                    &r->walk_notes, err);
    if (r->summaries && !r->options.tokenizer)
        r->cuts = tokenizer_for_cuts(r->options.pattern, err);
    return r->summaries && (r->options.tokenizer || r->cuts);
}

// Keeps standard input for a second reading: text, and input that is counted first; of lines,
// enough to cut a corpus of few lines.
static bool take_stdin(Run *r, const char *directory, Error *err) {
    InputOptions *in = &r->options.inputs;
    int64_t bytes, limit = INT64_MAX;
    if (in->format == FORMAT_LINES && r->options.tokenizer) limit = 64 << 20;
    if (!r->has_stdin) return true;
    if (!inputs_spool_stdin(in, directory, limit, &bytes, err)) return false;
    r->progress.total_bytes += bytes;
    if (in->stdin_goes_on) r->progress.total_bytes = 0; // unknown
    return true;
}

static void close_run(Run *r) {
    corpus_writer_free(&r->writer);
    corpus_counts_clear(&r->counts);
    kind_counts_clear(&r->walk_left_out);
    kind_counts_clear(&r->walk_notes);
    if (r->options.inputs.has_stdin) close(r->options.inputs.stdin_fd);
    tokenizer_free(r->trained);
    tokenizer_free(r->cuts);
    free(r->summaries);
}

// ------------------------------------------------------------------------------------------ passes

// Encodes all documents or, with is_counting, counts their words into job.words. If training or
// validation has too little of a few, short documents, does it again with each of them cut; a count
// has decided this for the encoding.
static int run_passes(Run *r, bool is_counting, Error *err) {
    r->job.options = &r->options;
    r->job.progress = &r->progress;
    for (;;) {
        corpus_counts_clear(&r->counts);
        if (is_counting) {
            word_counts_free(r->job.words);
            r->job.words = word_counts_create();
        } else {
            corpus_writer_free(&r->writer);
            r->writer = (CorpusWriter){.directory = r->output.staging,
                                       .tokenizer = r->job.tokenizer,
                                       .shard_tokens = r->options.shard_tokens};
            r->job.writer = &r->writer;
        }

        const int status = corpus_convert(&r->job, &r->counts, err);
        if (status != EXIT_OK || r->job.cut_all || r->trained || r->options.inputs.stdin_goes_on ||
            !corpus_is_lopsided(&r->counts, r->options.val_fraction))
            return status;
        r->job.cut_all = true;
    }
}

// Adds the files that the walk skipped, and its notes, to the counts of the corpus.
static void add_walk(Run *r) {
    kind_counts_move(&r->counts.left_out, &r->walk_left_out);
    kind_counts_move(&r->counts.notes, &r->walk_notes);
}

// Fails if there is no text, or none on one of the sides.
static bool check_sides(Run *r, Error *err) {
    CorpusCounts *c = &r->counts;
    if (c->documents == 0) {
        KindCounts *k = &c->bad;
        add_walk(r);
        kind_counts_move(k, &c->left_out);
        error_set(err, "no text to read%s", k->num > 0 ? ": skipped" : "");
        for (int i = 0; i < k->num; i++)
            error_set(err, "%s%s %" PRId64 " x %s, the first: %s", err->text, i > 0 ? "," : "",
                      k->kinds[i].count, k->kinds[i].kind, k->kinds[i].first);
        return false;
    }
    if (!corpus_is_one_sided(r->options.val_fraction) &&
        (c->side[CORPUS_TRAIN].tokens == 0 || c->side[CORPUS_VAL].tokens == 0))
        return error_set(err,
                         "%" PRId64
                         " bytes of text cannot be divided into training and validation; give more",
                         c->side[CORPUS_TRAIN].bytes + c->side[CORPUS_VAL].bytes);
    return true;
}

// -------------------------------------------------------------------------------------- vocabulary

static void on_merged(void *user, int64_t tokens) {
    Run *r = user;
    r->progress.stage = STAGE_MERGE;
    r->progress.tokens = tokens;
    r->options.on_progress(r->options.user, &r->progress);
}

static int train(Run *r, Error *err) {
    const CorpusOptions *o = &r->options;
    r->job.tokenizer = r->job.cuts = r->cuts;
    r->progress.stage = STAGE_COUNT;
    r->progress.vocab = o->vocab;
    int status = run_passes(r, true, err);
    if (status == EXIT_OK && !check_sides(r, err)) status = EXIT_BAD_INPUT;

    int64_t bytes, distinct = 0;
    if (r->job.words) distinct = word_counts_size(r->job.words, &bytes);
    if (status == EXIT_OK &&
        !(r->trained = bpe_train(r->job.words, o->pattern, o->vocab, on_merged, r, err)))
        status = EXIT_RUN_FAILED;
    word_counts_free(r->job.words);
    r->job.words = NULL;

    if (status != EXIT_OK || tokenizer_vocab(r->trained) == o->vocab) return status;
    error_set(err,
              "the text for training (%" PRId64 " bytes, %" PRId64
              " distinct words) gives only %" PRId64
              " tokens, because no other pair occurs twice; use more text, or %s%" PRId64 "%s",
              r->counts.side[CORPUS_TRAIN].bytes, distinct, tokenizer_vocab(r->trained),
              o->vocab_option, tokenizer_vocab(r->trained), o->vocab_option_end);
    return EXIT_BAD_INPUT;
}

// --------------------------------------------------------------------------------------------- run

int corpus_run(const CorpusOptions *options, CorpusResult *result, Error *err) {
    Run r = {.options = *options};
    *result = (CorpusResult){0};

    if (!open_inputs(&r, err)) {
        close_run(&r);
        return EXIT_BAD_INPUT;
    }

    const bool is_claimed =
        corpus_output_claim(&r.output, options->inputs.output, options->force, err);
    int status = EXIT_BAD_INPUT;
    if (is_claimed) status = EXIT_OK;
    if (status == EXIT_OK && !take_stdin(&r, r.output.staging, err)) status = EXIT_RUN_FAILED;
    if (status == EXIT_OK && !options->tokenizer) status = train(&r, err);

    r.job.tokenizer = options->tokenizer;
    if (r.trained) r.job.tokenizer = r.trained;
    r.job.cuts = r.job.tokenizer;
    if (r.cuts) r.job.cuts = r.cuts;

    r.progress.stage = STAGE_ENCODE;
    if (status == EXIT_OK) status = run_passes(&r, false, err);
    if (status == EXIT_OK && !check_sides(&r, err)) status = EXIT_BAD_INPUT;

    const CorpusManifest manifest = {.options = &r.options,
                                     .inputs = r.summaries,
                                     .walk_left_out = &r.walk_left_out,
                                     .walk_notes = &r.walk_notes,
                                     .tokenizer = r.job.tokenizer,
                                     .cut_all = r.job.cut_all,
                                     .counts = &r.counts,
                                     .writer = &r.writer};

    if (status == EXIT_OK && (!corpus_writer_finish(&r.writer, err) ||
                              !tokenizer_write(r.job.tokenizer, r.output.tokenizer, err) ||
                              !corpus_manifest_write(&manifest, r.output.manifest, err) ||
                              !corpus_output_publish(&r.output, &r.writer, err)))
        status = EXIT_RUN_FAILED;

    if (status == EXIT_OK) {
        add_walk(&r);
        *result =
            (CorpusResult){r.counts,
                           {r.writer.side[CORPUS_TRAIN].count, r.writer.side[CORPUS_VAL].count},
                           r.job.cut_all};
        r.counts = (CorpusCounts){0};
    }

    close_run(&r);
    corpus_output_release(&r.output, status == EXIT_OK);
    return status;
}

int corpus_vocabulary(const CorpusOptions *options, const char *directory, CorpusCounts *counts,
                      Tokenizer **tokenizer, Error *err) {
    Run r = {.options = *options};
    *counts = (CorpusCounts){0};
    *tokenizer = NULL;
    int status = EXIT_BAD_INPUT;
    if (open_inputs(&r, err) && take_stdin(&r, directory, err)) status = train(&r, err);
    if (status == EXIT_OK) {
        add_walk(&r);
        *counts = r.counts;
        *tokenizer = r.trained;
        r.counts = (CorpusCounts){0};
        r.trained = NULL;
    }
    close_run(&r);
    return status;
}
