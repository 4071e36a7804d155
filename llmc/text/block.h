// A block of text on its way from the reader through an encoder to the writer.
#pragma once
#include "llmc/text/inputs.h"

enum {
    BLOCK_BYTES = 256 * 1024,          // of text in a block, when no line is longer
    LINE_MAX_BYTES = 32 * 1024 * 1024, // a longer line of a .jsonl file is refused
    KEPT_BYTES = 4 * BLOCK_BYTES,      // larger buffers are freed when their block is done
    MARKER_MAX_BYTES = 16,             // of a spelling of end-of-text
};

typedef struct {
    CorpusFormat format; // lines, documents that are divided by a marker, or a piece of a text document
    char path[PATH_MAX]; // of the file, for messages
    char *text;          // n bytes and a newline; owned, as all that follows
    int64_t n, capacity;
    int64_t first_line;            // lines: the number of the first one, from 1
    bool begins;                   // text: the document or its last part begins here; divided: the file begins here
    char before[MARKER_MAX_BYTES]; // text: the last bytes of the document before this piece
    int before_n;
    bool is_document; // counts as a document; its last part does not
    bool is_short;    // all of a short document: its hash decides on the side
    CorpusSide side;  // otherwise
    // Filled by the reader (what it skipped, damage) and by the encoder.
    CorpusCounts counts;
    void *tokens[CORPUS_SIDES];
    int64_t num_tokens[CORPUS_SIDES], token_capacity[CORPUS_SIDES];
    int64_t bytes_read; // up to its end, of all files, packed as they are: for the progress
    bool is_encoded;
    int status; // EXIT_BAD_INPUT, EXIT_RUN_FAILED: the reader or the encoder cannot continue; error says why
    Error error;
} CorpusBlock;
void corpus_block_reset(CorpusBlock *b); // empty; frees buffers that a long line made large
