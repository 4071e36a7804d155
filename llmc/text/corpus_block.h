// What the stages of data/prepare hand on: a block of text on its way from the reader through an encoder to the writer,
// and what is counted on that way. Memory and sums only: nothing here reads, encodes or writes.
#pragma once
#include "llmc/text/corpus_inputs.h"
#include "llmc/text/corpus_split.h"

enum {
    BLOCK_BYTES = 256 * 1024,          // of text in a block, when no line is longer
    LINE_MAX_BYTES = 32 * 1024 * 1024, // a longer line of a .jsonl file is refused
    KEPT_BYTES = 4 * BLOCK_BYTES,      // larger buffers are given back when their block is done
};

// ----------------------------------------------------------------------------------------------------------- bad input

typedef enum {
    BAD_JSON,
    BAD_UTF8,
    BAD_SURROGATE,
    BAD_NO_FIELD,
    BAD_NO_STRING,
    BAD_TOO_LONG, // these are lines
    BAD_FILE,     // damage inside a compressed file
    BAD_KINDS
} BadKind;

extern const char *const bad_kind_names[BAD_KINDS];   // for the manifest: "not_json", ...
extern const char *const bad_kind_phrases[BAD_KINDS]; // for people: "not valid JSON", ...

typedef struct {
    int64_t count[BAD_KINDS];
    char *first[BAD_KINDS]; // "file: line 3: what is wrong", owned; NULL while count is 0
    BadKind earliest;       // whose first was reported before all others
} BadReport;

void bad_report_add(BadReport *r, BadKind kind, const char *message);
void bad_report_merge(BadReport *r, const BadReport *later);
int64_t bad_report_total(const BadReport *r);
void bad_report_clear(BadReport *r);

// -------------------------------------------------------------------------------------------------------------- counts

typedef struct {
    int64_t documents, bytes, tokens; // a document that is cut counts on both sides
} CorpusCount;

typedef struct {
    int64_t documents;
    CorpusCount side[CORPUS_SIDES];
    int64_t binary, empty, unreadable; // skipped: files, and empty documents in lines
    BadReport bad;
} CorpusCounts;

void corpus_counts_add(CorpusCounts *sum, const CorpusCounts *more);
// Has a side less than a quarter of its share? Only chance can do that, with few documents to draw from.
bool corpus_is_lopsided(const CorpusCounts *c, double val_fraction);
// Is there text at all, and on both sides?
bool corpus_check_sides(const CorpusCounts *c, double val_fraction, Error *err);

// A place in the inputs: what stands before it has been handed out.
typedef struct {
    int64_t file;       // number of it in the walk
    int64_t offset;     // in its unpacked bytes
    int64_t line;       // lines before offset
    int64_t size;       // of the text document that goes on at offset; 0: none does
    int64_t cut;        // where its last part, for validation, begins; 0: not decided yet
    int64_t bytes_read; // of all files, packed as they are: for the progress
} CorpusPosition;

typedef enum { STAGE_ENCODE, STAGE_COUNT, STAGE_MERGE } CorpusStage; // the last two: training a vocabulary

typedef struct {
    CorpusStage stage;
    int64_t bytes_read, total_bytes; // of the input files as they are; total 0: not known
    int64_t start_bytes;             // where this run began: behind 0 when it goes on with another one's work
    int64_t tokens, vocab;           // merging: of the vocabulary so far and in the end
} CorpusProgress;

// -------------------------------------------------------------------------------------------------------------- blocks

typedef enum { BLOCK_TEXT, BLOCK_LINES } BlockKind;

typedef struct {
    BlockKind kind;
    char path[PATH_MAX]; // of the file, for messages
    char *text;          // n bytes and a newline; owned, as all that follows
    int64_t n, capacity;
    int64_t first_line; // lines: the number of the first one, from 1
    // Text: a piece of a document.
    bool begins;      // the document or its last part begins here
    bool is_document; // counts as a document; its last part does not
    bool is_short;    // all of a short document: its hash decides on the side
    CorpusSide side;  // otherwise
    // Filled by the reader (what it skipped, damage) and by the encoder.
    CorpusCounts counts;
    void *tokens[CORPUS_SIDES];
    int64_t num_tokens[CORPUS_SIDES], token_room[CORPUS_SIDES];
    // After this block.
    CorpusPosition after;
    bool failed;         // the reader or the encoder cannot go on; error says why
    bool is_input_error; // because of what the user gave it
    Error error;
} CorpusBlock;

bool corpus_block_init(CorpusBlock *b); // false: out of memory
void corpus_block_free(CorpusBlock *b);
bool corpus_block_reserve(CorpusBlock *b, int64_t bytes); // room for so many bytes of text; false: out of memory
// Empty, ready to be filled again. Buffers that a long line made large are given back.
void corpus_block_reset(CorpusBlock *b);
