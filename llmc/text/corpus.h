// A corpus: what the tools of data/ call. Its files, its vocabulary, and the way to shards, manifest and tokenizer
// under their final names: what data/prepare does between its options and its summary. Prints nothing.
#pragma once
#include "llmc/base/error.h"
#include "llmc/text/documents.h"
#include "llmc/text/tokenizer.h"

#include <limits.h>
#include <stddef.h>
#include <stdint.h>

// -------------------------------------------------------------------------------------------------------------- inputs

// The files of a corpus, in a fixed order: the arguments as they are given, directories recursively by name. Walks
// anew each time and keeps no list, so that millions of files need no memory. Never opens a file.
// In directories hidden names and symbolic links are left out, and what data/prepare wrote into the output directory.

typedef enum { FORMAT_BY_NAME, FORMAT_TEXT, FORMAT_LINES } CorpusFormat; // .jsonl and .ndjson are lines

typedef struct {
    char path[PATH_MAX]; // to open it and for messages
    int64_t index;       // in the walk, from 0
    int64_t size;        // bytes of the file
    bool is_argument;    // stands on the command line: must be readable
    bool is_unreadable;  // in a directory; why is not kept
    CorpusFormat format; // text or lines
    Packing packing;
    int then_fd; // what follows the file in the same sequence of bytes (standard input); -1: nothing
} InputFile;

// Standard input is read into a file first, up to a limit; what is left of it is read from the descriptor.
typedef struct {
    const char *path; // of the spool; NULL: "-" is not among the arguments
    int then_fd;      // -1: the spool has all of it
    Packing packing;
} InputStdin;

typedef struct {
    char *const *arguments; // files, directories, "-" for standard input
    int count;
    CorpusFormat format; // of all files
    const char *output;  // the output directory
    InputStdin standard_input;
} InputOptions;

typedef struct InputWalk InputWalk;
InputWalk *inputs_open(const InputOptions *options, Error *err); // the options must outlive the walk
// The next file: 1; at the end 0; an argument that cannot be read: -1.
int inputs_next(InputWalk *w, InputFile *file, Error *err);
int inputs_argument(const InputWalk *w); // the argument that the last file came from
void inputs_close(InputWalk *w);         // NULL is fine

// What one argument stands for. A fingerprint covers names, sizes and times of change.
typedef struct {
    int64_t files, bytes;
    uint64_t fingerprint;
} InputSummary;
// summaries: one for each argument. Standard input that has not been read yet counts as nothing.
bool inputs_summarize(const InputOptions *options, InputSummary *summaries, Error *err);

// Is this the name of a file that data/prepare makes?
bool is_corpus_shard(const char *name); // train_000000.bin, val_000000.bin
bool is_corpus_file(const char *name);  // or manifest.json, tokenizer.json

// --------------------------------------------------------------------------------------------- training and validation

// Which part of a corpus is for training and which for validation. The rule; it keeps nothing.
// Where a document's text goes depends on the document alone, so that a corpus that grows moves none of its older
// documents from one side to the other:
//   up to SHORT_DOCUMENT bytes: to validation as a whole if the hash of its bytes falls below val_fraction (equal
//   documents stay together); longer: the last part, a share of val_fraction, goes to validation, cut where a line ends
// A corpus of few, short documents is cut everywhere (cut_all), because chance may leave one side without any.

typedef enum { CORPUS_TRAIN, CORPUS_VAL, CORPUS_SIDES } CorpusSide;
extern const char *const corpus_side_names[CORPUS_SIDES]; // "train", "val"

// Bytes. A cut is looked for in CUT_SEARCH bytes: the reader of a long document has as many before it at any place.
enum { SHORT_DOCUMENT = 64 * 1024, CUT_SEARCH = 64 * 1024 };

// Does all of the corpus go to one side?
static inline bool corpus_is_one_sided(double val_fraction) { return val_fraction <= 0 || val_fraction >= 1; }
// The side of a document that is not cut.
CorpusSide corpus_side(const char *text, int64_t n, double val_fraction);
// Where validation is to begin in a document of `size` bytes: at least one byte from either end; size if it has one, or
// if all of the corpus goes to one side (val_fraction 0 or 1).
int64_t corpus_cut_target(int64_t size, double val_fraction);
// Where it does begin, in text[1..n): the first start of a line at or behind `from` (0 < from < n) where the tokens are
// the same on both sides as in the whole; failing that such a place near `from`; failing that the end of a character.
int64_t corpus_cut(const Tokenizer *t, const char *text, int64_t n, int64_t from);
// The last place in text[1..n] where a UTF-8 character ends: for blocks in which the tokenizer has no safe place.
int64_t corpus_character_end(const char *text, int64_t n);

// --------------------------------------------------------------------------------- blocks of text, and what is counted

// What the stages of data/prepare hand on: a block of text on its way from the reader through an encoder to the writer,
// and what is counted on that way. Memory and sums only: nothing here reads, encodes or writes.

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

// --------------------------------------------------------------------------------------------- a vocabulary of its own

// A corpus -> a vocabulary of its own: the words of what is for training are counted by the pipeline, and merged.
// Nothing of the part for validation is counted. Writes no file.

typedef struct {
    InputOptions inputs; // standard input in its spool
    const char *field;
    double val_fraction; // 0: all is for training
    bool skip_bad;
    int threads;        // that count
    int64_t vocab;      // tokens in all
    const char *option; // with which the number of tokens was given, "--vocab-size ": for a message
    int64_t total_bytes;
    void (*on_progress)(void *user, const CorpusProgress *progress);
    void *user;
} VocabularyOptions;

typedef struct {
    Tokenizer *tokenizer; // the caller's
    CorpusCounts counts;  // in bytes as tokens; to be cleared
    bool cut_all;         // every document was cut: so it must be when the corpus is encoded
} CorpusVocabulary;

// Returns EXIT_OK, EXIT_BAD_INPUT (also for a text that gives fewer tokens) or EXIT_RUN_FAILED.
int corpus_vocabulary(const VocabularyOptions *options, CorpusVocabulary *vocabulary, Error *err);

// ------------------------------------------------------------------------------------------------------ standard input

// Standard input as a file: what is read twice (a text, whose length decides where it is cut; a corpus of few
// documents, which is cut in a second pass) must lie somewhere. Owns nothing but the file it writes.

// Copies standard input into the file `path`, up to its end or to `limit` bytes; what is behind the limit is left to be
// read from the descriptor that *in names. path must outlive it. *bytes: of the file.
bool corpus_spool_stdin(const char *path, int64_t limit, InputStdin *in, int64_t *bytes, Error *err);

// ------------------------------------------------------------------------------------------------------------- the run

// A corpus from its files to its shards, manifest and tokenizer under their final names: what data/prepare does between
// its options and its summary. Brings together the pipeline, the journal (a run that was killed is continued), the
// second pass over few, short documents, and the output directory. Prints nothing.

typedef struct {
    const char *output; // the directory
    char *const *arguments;
    int num_arguments;
    CorpusFormat format;
    const Tokenizer *tokenizer; // NULL: one of `vocab` tokens is trained on what goes to training
    int64_t vocab;
    const char *field;
    double val_fraction, journal_seconds;
    int64_t shard_tokens;
    int threads;
    bool skip_bad, force;
    void (*on_progress)(void *user, const CorpusProgress *progress); // after each block, and while merging
    void (*on_notice)(void *user, const char *text);                 // goes on with an unfinished run, starts over
    void *user;
} CorpusRunOptions;

typedef struct {
    CorpusCounts counts;
    int64_t num_shards[CORPUS_SIDES];
    bool cut_all;
} CorpusResult;

// Returns EXIT_OK, EXIT_BAD_INPUT or EXIT_RUN_FAILED. The result is complete with EXIT_OK; free it in any case.
int corpus_run(const CorpusRunOptions *options, CorpusResult *result, Error *err);
void corpus_result_free(CorpusResult *result);
