// What the files corpus_*.c share with each other and with their tests: the reader of documents, the division into
// training and validation, the encoders, the writer of shards, the pipeline that joins them, the journal, the manifest
// and the output directory.
#pragma once
#include "llmc/text/bpe_trainer.h"
#include "llmc/text/corpus.h"
#include "llmc/text/tokenizer.h"

#include <cjson/cJSON.h>

// --------------------------------------------------------------------------------------- documents (documents.c)

// The inputs as blocks of text: long documents in pieces cut where the tokenizer allows it, lines of JSON by the
// hundred. Owns the walk over the inputs and the open file. Reads ahead of the encoders on one thread; never encodes,
// and never holds more than a block.

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

// ---------------------------------------------------------------------------------------- encoders (corpus_pipeline.c)

// A block of text -> its tokens for training and for validation, or, before there is a vocabulary, the counts of the
// words that are for training. Owns an Encoder and working memory: one for each thread. Parses the lines of JSON,
// decides on which side each document goes, and counts. Blocks come in any order: nothing is remembered from one to the
// next.

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

// -------------------------------------------------------------------------------------------- shards (corpus_writer.c)

// Tokens -> the shards of a corpus: DIR/train_000000.bin... and DIR/val_000000.bin... Owns the open shard of each side.
// What was synced can be taken up again by another writer after the process died. Never reads a text.

typedef struct {
    const char *directory; // exists; must outlive the writer
    int token_bytes;       // 2 or 4
    int64_t vocab, eot;
    int64_t shard_tokens; // tokens in a full shard
} CorpusWriterOptions;

typedef struct {
    int64_t tokens, bytes; // bytes: of the file
    uint64_t xxh3;         // of the file
} CorpusShard;

// A sequence of shards: the complete ones, and how many tokens the open one has. 0: none is open.
typedef struct {
    CorpusShard *shards; // owned by the writer
    int64_t num_shards, open_tokens;
} CorpusShards;

typedef struct CorpusWriter CorpusWriter;
// synced: where a synced writer was, as corpus_writer_shards said then; goes on there. NULL: begins anew. Of what lies
// in the directory, shards that came later are removed and the open ones are cut to their length.
CorpusWriter *corpus_writer_open(const CorpusWriterOptions *options, const CorpusShards synced[CORPUS_SIDES],
                                 Error *err);
bool corpus_writer_append(CorpusWriter *w, CorpusSide side, const void *tokens, int64_t n, Error *err);
bool corpus_writer_sync(CorpusWriter *w, Error *err);   // all that was appended is on the disk
bool corpus_writer_finish(CorpusWriter *w, Error *err); // completes the open shards; then only shards and free
const CorpusShards *corpus_writer_shards(const CorpusWriter *w, CorpusSide side);
void corpus_writer_free(CorpusWriter *w); // open shards stay as they are, to be continued; NULL is fine

// "train_000012.bin", in a buffer of at least 40 bytes.
const char *corpus_shard_name(CorpusSide side, int64_t number, char *buf, size_t size);

// ---------------------------------------------------------------------------------------- pipeline (corpus_pipeline.c)

// The way of a corpus from files to shards: one thread reads and unpacks ahead, several encode, the caller's writes.
// Blocks are written in the order in which they were read, so the shards do not depend on the number of threads.
// Owns the threads and the blocks between them; memory is bounded by them, whatever the size of the inputs.

typedef struct {
    InputOptions inputs;
    const Tokenizer *tokenizer, *cuts; // as in CorpusEncoderOptions
    WordCounts *words;                 // likewise; then there is no writer
    const char *field;                 // of the objects in lines
    double val_fraction;
    bool cut_all;
    bool skip_bad; // count bad input and go on
    int threads;   // that encode
    // Called after each block that was written or counted, with all that is so far; false ends the run with its error.
    bool (*on_written)(void *user, const CorpusPosition *position, const CorpusCounts *counts, Error *err);
    void *user;
} CorpusJob;

// From *position on; position and counts are kept up to date. Returns EXIT_OK, EXIT_BAD_INPUT (input that cannot be
// read or is bad) or EXIT_RUN_FAILED.
int corpus_convert(const CorpusJob *job, CorpusWriter *writer, CorpusPosition *position, CorpusCounts *counts,
                   Error *err);

// ------------------------------------------------------------------------------------------ journal (corpus_journal.c)

// How far data/prepare came: a small JSON file beside the unfinished shards, written after what it counts is on the
// disk. A later run of the same job reads it and goes on there. Owns the form of the file, and the comparison of jobs;
// the file is hostile as any other: one that does not hold together is refused, and the run starts over.

typedef enum {
    PHASE_ENCODE,  // up to position
    PHASE_REPLACE, // all is encoded; shards of an earlier run are being removed
    PHASE_MOVE,    // shards are being moved to their final place
    CORPUS_PHASES
} CorpusPhase;

typedef struct {
    CorpusPhase phase;
    bool cut_all;
    CorpusPosition position;
    CorpusCounts counts;
    CorpusShards shards[CORPUS_SIDES];
} CorpusJournal;

// What was asked for, as far as the shards depend on it, with the state of the inputs. The caller frees it.
typedef struct {
    const InputOptions *inputs;
    const InputSummary *summaries; // one for each argument
    const Tokenizer *tokenizer;    // NULL: to be trained, of `vocab` tokens
    int64_t vocab;
    const char *field;
    double val_fraction;
    int64_t shard_tokens;
} CorpusRequest;
cJSON *corpus_request_json(const CorpusRequest *request);
cJSON *corpus_tokenizer_json(const Tokenizer *t);

// Shards and counts in j are only read.
bool corpus_journal_save(const char *path, const cJSON *request, const CorpusJournal *j, Error *err);
// False: there is nothing to go on with, and why: another request, changed inputs, a file that does not hold together.
bool corpus_journal_load(const char *path, const cJSON *request, CorpusJournal *j, Error *why);
void corpus_journal_clear(CorpusJournal *j); // frees what load put into it

// ----------------------------------------------------------------------------------------- manifest (corpus_journal.c)

// manifest.json beside the shards: what they were made from, with which tokenizer and options, and what they hold.
// The same run gives the same file: it states no times.

// Writes path. j: the finished run.
bool corpus_manifest_write(const char *path, const CorpusRequest *request, const CorpusJournal *j, Error *err);

// --------------------------------------------------------------------------------- output directory (corpus_journal.c)

// The output directory of data/prepare. Everything is made in DIR/.tmp-prepare and moved into DIR when all of it is
// whole, so that no half corpus stands there under final names. Owns DIR while it is claimed (a lock): one run at a
// time.

typedef struct {
    const char *directory; // must outlive it
    char *staging;         // DIR/.tmp-prepare
    char *journal;         // DIR/.tmp-prepare/journal.json
    char *spool;           // DIR/.tmp-prepare/stdin
    size_t existing;       // bytes of its name that were a directory before
    int lock;              // descriptor of DIR, -1 while it is not ours
} CorpusOutput;

// Makes DIR if needed and locks it; false if another run has it or nothing can be written there.
bool corpus_output_claim(CorpusOutput *o, const char *directory, Error *err);
void corpus_output_release(CorpusOutput *o); // also after a failed claim
// Refuses a directory that has shards.
bool corpus_output_refuse_old(const CorpusOutput *o, Error *err);
bool corpus_output_clear(const CorpusOutput *o, Error *err);   // an empty .tmp-prepare
bool corpus_output_discard(const CorpusOutput *o, Error *err); // none

// The two steps to the final names, in this order, each of which may be done again after an interruption: what an
// earlier run left goes, validation first; the new files come, training first and the manifest last. Should the machine
// stop in between, no complete-looking corpus of two halves stands there.
bool corpus_output_remove_old(const CorpusOutput *o, Error *err);
bool corpus_output_move_new(const CorpusOutput *o, Error *err);
