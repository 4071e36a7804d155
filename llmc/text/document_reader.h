// The inputs as blocks of text: long documents in pieces cut where the tokenizer allows it, lines of JSON by the
// hundred. Owns the walk over the inputs and the open file. Reads ahead of the encoders on one thread; never encodes,
// and never holds more than a block.
#pragma once
#include "llmc/text/corpus_block.h"

typedef struct {
    const InputOptions *inputs;
    const Tokenizer *tokenizer; // for the places where it may be cut
    double val_fraction;
    bool cut_all; // cut short documents too
} ReaderOptions;

typedef struct DocumentReader DocumentReader;
// Begins at a place that an earlier reader of the same inputs and options reported; {0}: at the beginning.
DocumentReader *document_reader_open(const ReaderOptions *options, const CorpusPosition *from, Error *err);
// The next block. False: there are no more. A block with `failed` set is the last one. What a block counts includes
// what was skipped before it (binary files, lines that are too long, what stands behind damage); the last one may be
// empty but for that. A file that grows meanwhile is read up to the size it had.
bool document_reader_next(DocumentReader *r, CorpusBlock *block);
void document_reader_close(DocumentReader *r); // NULL is fine
