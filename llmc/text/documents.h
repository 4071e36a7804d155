// The inputs as blocks: long documents in pieces cut where the tokenizer allows it, lines of JSON by the hundred. Reads
// ahead of the encoders on one thread, and never holds more than a block.
#pragma once
#include "llmc/text/block.h"
#include "llmc/text/corpus_options.h"

typedef struct DocumentReader DocumentReader;
// cuts: says where a document may be cut. cut_all: every document is cut, however short.
DocumentReader *document_reader_open(const CorpusOptions *options, const Tokenizer *cuts, bool cut_all, Error *err);
// The next block. False: there are no more. A block that failed is the last one. What a block counts includes
// what was skipped before it (binary files, lines that are too long, what comes after damage); the last one may
// contain nothing else. A file that grows meanwhile is read up to the size it had.
bool document_reader_next(DocumentReader *r, CorpusBlock *block);
void document_reader_close(DocumentReader *r); // NULL is fine
