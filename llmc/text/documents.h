// The inputs as blocks: long documents in pieces cut where the tokenizer allows it, lines of JSON
// by the hundred. Reads ahead of the encoders on one thread, and never holds more than a block.
#pragma once
#include "llmc/text/corpus_options.h"

// A block of text on its way from the reader through an encoder to the writer. All zero: empty.
enum {
    BLOCK_BYTES = 256 * 1024,          // of text in a block, when no line is longer
    LINE_MAX_BYTES = 32 * 1024 * 1024, // a longer line of a .jsonl file is refused
};

typedef struct {
    // lines, documents that are divided by a marker, or a piece of a text document
    CorpusFormat format;
    char path[PATH_MAX]; // of the file, for messages
    char *text;          // n bytes and a newline; owned, as all that follows
    int64_t n, capacity;
    int64_t first_line; // lines: the number of the first one, from 1
    bool begins; // text: the document or its last part begins here; divided: the file begins here
    bool is_document; // counts as a document; its last part does not
    bool is_short;    // all of a short document: its hash decides on the side
    CorpusSide side;  // otherwise
    // Filled by the reader (what it skipped, damage) and by the encoder.
    CorpusCounts counts;
    void *tokens[CORPUS_SIDES];
    int64_t num_tokens[CORPUS_SIDES], token_capacity[CORPUS_SIDES];
    int64_t bytes_read; // up to its end, of all files, packed as they are: for the progress
    bool is_encoded;
    int status; // EXIT_BAD_INPUT, EXIT_RUN_FAILED: the reader or the encoder cannot continue; error
                // says why
    Error error;
} CorpusBlock;
void corpus_block_clear(CorpusBlock *b); // frees what it has; empty then

typedef struct DocumentReader DocumentReader;
// cuts: decides where a document may be cut. cut_all: every document is cut, however short.
DocumentReader *document_reader_open(const CorpusOptions *options, const Tokenizer *cuts,
                                     bool cut_all);
// Reads the next block. False: there are no more. A block that failed is the last one. The counts
// of a block include the input skipped before it (binary files, lines that are too long, text after
// damage); the last block may have nothing else. A file that grows meanwhile is read up to the size
// it had.
bool document_reader_next(DocumentReader *r, CorpusBlock *block);
void document_reader_close(DocumentReader *r); // NULL is fine
