// See corpus_vocabulary.h. The words are counted a second time if the first division left a side with too little: who
// encodes the corpus later must not decide again, with other numbers.
#include "llmc/text/corpus_vocabulary.h"

#include <inttypes.h>

typedef struct {
    const VocabularyOptions *options;
    CorpusProgress progress;
} Report;

static bool on_counted(void *user, const CorpusPosition *at, const CorpusCounts *counts, Error *err) {
    (void)err;
    Report *r = user;
    r->progress.bytes_read = at->bytes_read;
    r->progress.tokens = counts->side[CORPUS_TRAIN].tokens + counts->side[CORPUS_VAL].tokens;
    r->options->on_progress(r->options->user, &r->progress);
    return true;
}

static void on_merged(void *user, int64_t tokens) {
    Report *r = user;
    r->progress.stage = STAGE_MERGE;
    r->progress.tokens = tokens;
    r->options->on_progress(r->options->user, &r->progress);
}

static int count_words(Report *r, const Tokenizer *cuts, WordCounts **words, CorpusVocabulary *v, Error *err) {
    const VocabularyOptions *o = r->options;
    word_counts_free(*words);
    bad_report_clear(&v->counts.bad);
    v->counts = (CorpusCounts){0};
    if (!(*words = word_counts_create(err))) return EXIT_RUN_FAILED;
    const CorpusJob job = {.inputs = o->inputs,
                           .tokenizer = cuts,
                           .cuts = cuts,
                           .words = *words,
                           .field = o->field,
                           .val_fraction = o->val_fraction,
                           .cut_all = v->cut_all,
                           .skip_bad = o->skip_bad,
                           .threads = o->threads,
                           .on_written = on_counted,
                           .user = r};
    CorpusPosition position = {0};
    return corpus_convert(&job, NULL, &position, &v->counts, err);
}

static int count_and_merge(Report *r, const Tokenizer *cuts, WordCounts **words, CorpusVocabulary *v, Error *err) {
    const VocabularyOptions *o = r->options;
    int status = count_words(r, cuts, words, v, err);
    if (status == EXIT_OK && v->counts.documents > 0 && corpus_is_lopsided(&v->counts, o->val_fraction)) {
        v->cut_all = true;
        status = count_words(r, cuts, words, v, err);
    }
    if (status != EXIT_OK) return status;
    if (!corpus_check_sides(&v->counts, o->val_fraction, err)) return EXIT_BAD_INPUT;
    const int64_t distinct = word_counts_words(*words), bytes = v->counts.side[CORPUS_TRAIN].bytes;
    v->tokenizer = bpe_train(*words, o->vocab, on_merged, r, err);
    if (!v->tokenizer) return EXIT_RUN_FAILED;
    const int64_t tokens = tokenizer_vocab(v->tokenizer);
    if (tokens == o->vocab) return EXIT_OK;
    error_set(err,
              "the text for training (%" PRId64 " bytes, %" PRId64 " distinct words) gives only %" PRId64
              " tokens, as no other pair occurs twice: take more text, or %s%" PRId64,
              bytes, distinct, tokens, o->option, tokens);
    return EXIT_BAD_INPUT;
}

int corpus_vocabulary(const VocabularyOptions *options, CorpusVocabulary *v, Error *err) {
    Report r = {.options = options,
                .progress = {.stage = STAGE_COUNT, .total_bytes = options->total_bytes, .vocab = options->vocab}};
    WordCounts *words = NULL;
    *v = (CorpusVocabulary){0};
    Tokenizer *cuts = tokenizer_for_cuts(err);
    int status = cuts ? count_and_merge(&r, cuts, &words, v, err) : EXIT_RUN_FAILED;
    word_counts_free(words);
    tokenizer_free(cuts);
    if (status == EXIT_OK) return status;
    tokenizer_free(v->tokenizer);
    v->tokenizer = NULL;
    return status;
}
