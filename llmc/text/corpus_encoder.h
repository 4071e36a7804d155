// A block of text -> its tokens for training and for validation, or, before there is a vocabulary, the counts of the
// words that are for training. Owns an Encoder and working memory: one for each thread. Parses the lines of JSON,
// decides on which side each document goes, and counts. Blocks come in any order: nothing is remembered from one to the
// next.
#pragma once
#include "llmc/text/bpe_trainer.h"
#include "llmc/text/corpus_block.h"

typedef struct {
    const Tokenizer *tokenizer; // must outlive the encoder, as do the next two
    const Tokenizer *cuts;      // which says where a document may be cut
    WordCounts *words;          // NULL: encodes; else counts the words for training here, and each byte as a token
    const char *field;          // of the objects in lines, at most 255 bytes
    double val_fraction;
    bool cut_all;
} CorpusEncoderOptions;

typedef struct CorpusEncoder CorpusEncoder;
CorpusEncoder *corpus_encoder_create(const CorpusEncoderOptions *options, Error *err);
// Fills tokens, num_tokens and counts of the block; its text is overwritten. Tokens have corpus_token_bytes each.
void corpus_encoder_run(CorpusEncoder *e, CorpusBlock *block);
bool corpus_encoder_finish(CorpusEncoder *e, Error *err); // all that was counted is in options.words
void corpus_encoder_free(CorpusEncoder *e);               // NULL is fine

int corpus_token_bytes(const Tokenizer *t); // 2 up to a vocabulary of 65536, then 4
