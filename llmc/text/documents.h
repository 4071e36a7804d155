// The inputs as blocks: long documents in pieces cut where the tokenizer allows it, lines of JSON by the hundred. Reads
// ahead of the encoders on one thread, and never holds more than a block.
#pragma once
#include "llmc/text/block.h"
#include "llmc/text/corpus_options.h"

typedef struct DocumentReader DocumentReader;
// cuts: decides where a document may be cut. cut_all: every document is cut, however short.
DocumentReader *document_reader_open(const CorpusOptions *options, const Tokenizer *cuts, bool cut_all, Error *err);
// Reads the next block. False: there are no more. A block that failed is the last one. The counts of a block include
// the input skipped before it (binary files, lines that are too long, text after damage); the last block may have
// nothing else. A file that grows meanwhile is read up to the size it had.
bool document_reader_next(DocumentReader *r, CorpusBlock *block);
void document_reader_close(DocumentReader *r); // NULL is fine
