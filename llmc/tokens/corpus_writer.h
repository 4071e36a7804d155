// Documents -> the shards of a corpus: DIR/train_000000.bin... and DIR/val_000000.bin...
// Owns the open shards and the rule that divides text into training and validation. Never reads a file.
//
// Every document begins with end-of-text. Where its text goes depends on the document alone, so that a corpus that
// grows moves none of its older documents from one side to the other:
//   up to CORPUS_BLOCK bytes: to validation as a whole if the hash of its bytes falls below val_fraction (equal
//   documents stay together); longer: the last part, a share of val_fraction, goes to validation, cut where a line ends
#pragma once
#include "llmc/base/error.h"
#include "llmc/tokens/tokenizer.h"

#ifdef __cplusplus
extern "C" {
#endif

enum { CORPUS_BLOCK = 64 * 1024 };

typedef struct {
    const char *directory; // exists; both strings and the tokenizer must outlive the writer
    const Tokenizer *tokenizer;
    double val_fraction;  // above 0, below 1
    int64_t shard_tokens; // tokens in a full shard
    bool cut_all;         // cut short documents too: for corpora of few, short documents
} CorpusOptions;

typedef struct {
    int64_t documents, bytes;
    int64_t train_tokens, val_tokens;
    int64_t train_shards, val_shards;
} CorpusTotals;

typedef struct CorpusWriter CorpusWriter;
CorpusWriter *corpus_writer_create(const CorpusOptions *options, Error *err);
// Begins a document of `size` bytes. text: its first n bytes, all of them if there are at most CORPUS_BLOCK.
bool corpus_writer_begin_document(CorpusWriter *w, const char *text, int64_t n, int64_t size, Error *err);
// The document's text, from its first byte on, in pieces of at most CORPUS_BLOCK bytes.
bool corpus_writer_add_text(CorpusWriter *w, const char *text, int64_t n, Error *err);
// Completes the last shards and frees w in any case. totals may be NULL.
bool corpus_writer_commit(CorpusWriter *w, CorpusTotals *totals, Error *err);
void corpus_writer_abandon(CorpusWriter *w); // full shards stay; frees w; NULL is fine

#ifdef __cplusplus
}
#endif
