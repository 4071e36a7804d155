// A corpus: its files, and their conversion to a vocabulary of its own and to shards, manifest and tokenizer under
// their final names. This is everything data/prepare and data/train_tokenizer do between their options and their
// summary.
//   inputs (corpus_inputs.c) -> documents in blocks (documents.c) -> tokens (corpus_pipeline.c) -> shards
//   (corpus_shards.c); corpus_content.c judges what is found on the way
// corpus_run.c combines them. Nothing here prints.
#pragma once
#include "llmc/data/shards.h"
#include "llmc/text/bpe_trainer.h"
#include "llmc/text/documents.h"
#include "llmc/text/tokenizer.h"

#include <cjson/cJSON.h>
#include <limits.h>

// ------------------------------------------------------------------------------------------------------ counts by kind

// How often each of some kinds was found, in the order of their first ones. All zero: none.
typedef struct {
    char *kind;    // "Parquet"
    int64_t count; // > 0
    char *first;   // which the first one was, and the next step: "a.parquet; data/read_parquet.py a.parquet | ..."
} KindCount;
typedef struct {
    KindCount *kinds;
    int num;
} KindCounts;
// Adds to the count of a kind; the message is taken if these are its first.
void kind_counts_add(KindCounts *k, const char *kind, int64_t count, const char *format, ...)
    __attribute__((format(printf, 4, 5)));
void kind_counts_move(KindCounts *to, KindCounts *from); // from is empty then
int64_t kind_counts_of(const KindCounts *k, const char *kind);
void kind_counts_clear(KindCounts *k);

// -------------------------------------------------------------------------------------------------------------- inputs

// The files of a corpus, in a fixed order: the arguments in the given order, directories recursively by name. Walks
// again each time and keeps no list, so that millions of files need no memory. Never opens a file.
// Each file is read once. Symbolic links are followed, under the link's name; one that leads into a directory that is
// given anyway is left out, and so are, once it was given, a file's other names. In directories hidden names are left
// out, and what data/prepare wrote into the output directory.

typedef enum {
    FORMAT_BY_CONTENT, // of an input: .jsonl and .ndjson are lines, and others that begins with an object of JSON
    FORMAT_TEXT,       // a file is a document
    FORMAT_LINES,      // a line is one, in JSON
    FORMAT_DIVIDED,    // text with a marker between two documents (CorpusOptions.split_at)
} CorpusFormat;

typedef struct {
    char *const *arguments; // files, directories, "-" for standard input
    int count;
    CorpusFormat format; // of all files
    const char *output;  // the output directory; NULL: there is none
    // Standard input, after inputs_spool_stdin has read it.
    bool has_stdin;
    int stdin_fd;       // of a file without a name
    bool stdin_goes_on; // more is to be read from the descriptor itself
    Packing stdin_packing;
} InputOptions;

typedef struct {
    char path[PATH_MAX]; // to open it and for messages
    int64_t size;        // bytes of the file
    bool is_argument;    // must be readable
    int unreadable;      // in a directory: why, an errno
    bool is_stdin;
    CorpusFormat format; // as it is asked for, or lines by its name
    Packing packing;
} InputFile;

typedef struct InputWalk InputWalk;
InputWalk *inputs_open(const InputOptions *options, Error *err); // the options must outlive the walk
// The next file: 1; at the end 0; an argument that cannot be read: -1.
int inputs_next(InputWalk *w, InputFile *file, Error *err);
void inputs_close(InputWalk *w);                                    // NULL is fine
int input_open(const InputOptions *options, const InputFile *file); // open(2)
// Is this errno about the file, which is then left out and counted unless it is an argument? Other reasons, such as a
// disk that fails or too many open files, end the run.
bool input_may_be_skipped(int reason);

// The files of one argument.
typedef struct {
    int64_t files, bytes;
} InputSummary;
// One for each argument, malloced. Standard input that has not been read yet counts as nothing. *left_out, *notes: what
// the walk passes over, and the links that it follows.
InputSummary *inputs_summarize(const InputOptions *options, int64_t *total_bytes, KindCounts *left_out,
                               KindCounts *notes, Error *err);

// Copies standard input, up to its end or to `limit` bytes, into a file without a name in `directory`: what is read
// twice (a text, whose length decides where it is cut; a corpus of few documents) must be somewhere. *bytes: of it.
bool inputs_spool_stdin(InputOptions *options, const char *directory, int64_t limit, int64_t *bytes, Error *err);

bool is_corpus_shard(const char *name); // train_000000.bin, val_000000.bin

// --------------------------------------------------------------------------------------------- training and validation

// The side of a document's text depends only on the document, so a growing corpus moves none of its older documents
// from one side to the other:
//   up to SHORT_DOCUMENT bytes: to validation as a whole if the hash of its bytes falls below val_fraction (equal
//   documents stay together); longer: the last part, a share of val_fraction, goes to validation, cut where a line ends
// A corpus of few, short documents is cut everywhere (cut_all), because chance may leave one side without any.

typedef enum { CORPUS_TRAIN, CORPUS_VAL, CORPUS_SIDES } CorpusSide;
extern const char *const corpus_side_names[CORPUS_SIDES]; // "train", "val"

// Bytes. A cut is looked for in CUT_SEARCH bytes: the reader of a long document has as many before it at any place.
enum { SHORT_DOCUMENT = 64 * 1024, CUT_SEARCH = 64 * 1024 };

// Does all of the corpus go to one side?
static inline bool corpus_is_one_sided(double val_fraction) { return val_fraction <= 0 || val_fraction >= 1; }
CorpusSide corpus_side(const char *text, int64_t n, double val_fraction); // of a document that is not cut
// Where validation is to begin in a document of `size` bytes: at least one byte from either end; size if it has one, or
// if all of the corpus goes to one side.
int64_t corpus_cut_target(int64_t size, double val_fraction);
// Where it does begin, in text[1..n): the first start of a line at or after `from` (0 < from < n) where the tokens are
// the same on both sides as in the whole; failing that such a place near `from`; failing that the end of a character.
int64_t corpus_cut(const Tokenizer *t, const char *text, int64_t n, int64_t from);
// The last place in text[1..n] where a UTF-8 character ends: for blocks in which the tokenizer has no safe place.
int64_t corpus_character_end(const char *text, int64_t n);

// ----------------------------------------------------------------------------------------- bad input, counts, progress

// The kinds of bad input: what JsonLine says of a line, a line that is too long, damage inside a compressed file.
enum { BAD_TOO_LONG = JSON_LINE_BAD_KINDS, BAD_FILE, BAD_KINDS };
extern const struct BadKind {
    const char *name, *phrase; // "not_json" in the manifest, "not valid JSON" for people
} bad_kinds[BAD_KINDS];

typedef struct {
    int64_t count[BAD_KINDS];
    char *first[BAD_KINDS]; // "file: line 3: what is wrong", owned; NULL while count is 0
    int64_t total;
    int earliest; // the kind whose first was reported before all others
} BadReport;
void bad_report_add(BadReport *r, int kind, const char *message);

typedef struct {
    int64_t documents;
    struct {
        int64_t documents, bytes, tokens; // a document that is cut counts on both sides
    } side[CORPUS_SIDES];
    KindCounts left_out; // files, and empty documents in lines
    KindCounts notes;    // what is read, but may not be meant
    BadReport bad;
} CorpusCounts;
void corpus_counts_clear(CorpusCounts *c);
// Has a side less than a quarter of its share? Only chance can do that, with few documents to draw from.
bool corpus_is_lopsided(const CorpusCounts *c, double val_fraction);
// Is there any text, and on both sides?
bool corpus_check_sides(const CorpusCounts *c, double val_fraction, Error *err);

typedef enum { STAGE_ENCODE, STAGE_COUNT, STAGE_MERGE } CorpusStage; // the last two: training a vocabulary
typedef struct {
    CorpusStage stage;
    int64_t bytes_read, total_bytes; // of the input files as they are; total 0: not known
    int64_t tokens, vocab;           // merging: of the vocabulary so far and at the end
} CorpusProgress;

// -------------------------------------------------------------------------------------------------- what is asked for

typedef struct {
    InputOptions inputs;
    const char *field;          // of the objects in lines, at most 255 bytes
    const char *split_at;       // documents end at this text, at most 255 bytes; NULL: not
    double val_fraction;        // 0: all is for training, 1: for validation
    bool skip_bad;              // count bad input and continue
    int threads;                // that encode or count
    const Tokenizer *tokenizer; // NULL: one of `vocab` tokens is trained on what goes to training
    int64_t vocab;
    const char *vocab_option;        // with which the number of tokens was given, "--vocab-size ": for a message
    const char *tool, *tool_options; // for advice: "data/prepare", "-o DIR"
    int64_t shard_tokens;
    bool force;                                                      // replace the shards of an earlier run
    void (*on_progress)(void *user, const CorpusProgress *progress); // after each block, and while merging
    void *user;
} CorpusOptions;

// All of data/prepare. Returns EXIT_OK, EXIT_BAD_INPUT or EXIT_RUN_FAILED. The result is complete with EXIT_OK.
typedef struct {
    CorpusCounts counts; // the caller clears them, in any case
    int64_t num_shards[CORPUS_SIDES];
    bool cut_all; // every document was cut
} CorpusResult;
int corpus_run(const CorpusOptions *options, CorpusResult *result, Error *err);

// A vocabulary of the corpus: the pipeline counts the words of the training part, which are then merged; the validation
// part is not counted. The only file it writes is one without a name in `directory`, for standard input. The same exit
// codes; EXIT_BAD_INPUT also for too little text. With EXIT_OK counts, in bytes as tokens, and the tokenizer are the
// caller's.
int corpus_vocabulary(const CorpusOptions *options, const char *directory, CorpusCounts *counts, Tokenizer **tokenizer,
                      Error *err);

// -------------------------------------------------------------------------------------------------------------- blocks

// A block of text on its way from the reader through an encoder to the writer.

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
bool corpus_block_reserve(CorpusBlock *b, int64_t bytes); // space for so many bytes of text; false: out of memory
void corpus_block_reset(CorpusBlock *b);                  // empty; frees buffers that a long line made large

// ------------------------------------------------------------------------------------------ content (corpus_content.c)

// What the first bytes of a file, unpacked and without a byte order mark, make of it: n of them and one that may be
// written, is_all if there are no more. NULL: it is read as *format. Else its kind, and in *advice the next step ("" if
// there is none): such a file is not read. What is read but may not be meant goes to *notes.
const char *corpus_content(const CorpusOptions *o, const InputFile *file, char *text, int64_t n, bool is_all,
                           CorpusFormat *format, KindCounts *notes, Error *advice);

// Notes each spelling of end-of-text in the text that begins before text[begin] and ends after text[end].
void corpus_note_markers(const char *path, const char *text, int64_t n, int64_t begin, int64_t end, KindCounts *notes);
void corpus_note_bytes(const CorpusOptions *o, const char *path, const char *text, int64_t n, KindCounts *notes);

// ------------------------------------------------------------------------------------------- shards (corpus_shards.c)

// Tokens -> the shards of a corpus: DIR/train_000000.bin... and DIR/val_000000.bin...

typedef struct {
    int64_t tokens, bytes; // bytes: of the file
    uint64_t xxh3;         // of the file
} CorpusShard;
bool corpus_shard_read(const cJSON *entry, int64_t max_tokens, CorpusShard *shard, Error *err); // of a manifest

static inline int corpus_token_bytes(const Tokenizer *t) { return tokenizer_vocab(t) > 65536 ? 4 : 2; }

// The shards of one side: those that are complete, and the tokens of the one that follows them.
typedef struct {
    CorpusShard *shards; // malloced
    int64_t count, open_tokens;
    ShardWriter *open; // NULL: the next token opens it
} CorpusShards;

typedef struct {
    const char *directory; // exists
    const Tokenizer *tokenizer;
    int64_t shard_tokens; // in a full shard
    CorpusShards side[CORPUS_SIDES];
} CorpusWriter;

bool corpus_writer_append(CorpusWriter *w, CorpusSide side, const void *tokens, int64_t n, Error *err);
bool corpus_writer_finish(CorpusWriter *w, Error *err); // completes the open shards; then only free
void corpus_writer_free(CorpusWriter *w);               // open shards stay as they are; all zero then
char *corpus_shard_path(const char *directory, CorpusSide side, int64_t number); // DIRECTORY/train_000012.bin, malloced

// ---------------------------------------------------------------------------------------- pipeline (corpus_pipeline.c)

typedef struct {
    const CorpusOptions *options;
    const Tokenizer *tokenizer; // encodes
    const Tokenizer *cuts;      // says where a document may be cut: the same one, except while a vocabulary is trained
    WordCounts *words;          // NULL: encodes; else counts the words for training here, and each byte as a token
    CorpusWriter *writer;       // NULL with words
    bool cut_all;
    void (*on_block)(void *user, int64_t bytes_read); // after each block that was written or counted
    void *user;
} CorpusJob;

// Adds to the counts, which are up to date at each on_block. Returns EXIT_OK, EXIT_BAD_INPUT (input that cannot be read
// or is bad) or EXIT_RUN_FAILED.
int corpus_convert(const CorpusJob *job, CorpusCounts *counts, Error *err);

// The reader (documents.c): the inputs as blocks, long documents in pieces cut where the tokenizer allows it, lines of
// JSON by the hundred. Reads ahead of the encoders on one thread, and never holds more than a block.
typedef struct DocumentReader DocumentReader;
DocumentReader *document_reader_open(const CorpusJob *job, Error *err);
// The next block. False: there are no more. A block that failed is the last one. What a block counts includes
// what was skipped before it (binary files, lines that are too long, what comes after damage); the last one may
// contain nothing else. A file that grows meanwhile is read up to the size it had.
bool document_reader_next(DocumentReader *r, CorpusBlock *block);
void document_reader_close(DocumentReader *r); // NULL is fine
