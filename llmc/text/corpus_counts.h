// Counts of a corpus: documents, bytes and tokens of either side, bad input, and skipped files by
// kind, each with its first example. Counts of blocks are added in the order of reading.
#pragma once
#include "llmc/text/corpus_split.h"
#include "llmc/text/json_line.h"

// A count for each kind, in the order in which the kinds were met. All zero: empty.
typedef struct {
    char *kind;    // "Parquet"
    int64_t count; // > 0
    char *first; // the first example and the next step: "a.parquet; data/read_parquet.py a.parquet
                 // | ..."
} KindCount;
typedef struct {
    KindCount *kinds;
    int num;
} KindCounts;
// Adds to the count of a kind; keeps the message if the kind is new.
void kind_counts_add(KindCounts *k, const char *kind, int64_t count, const char *format, ...)
    __attribute__((format(printf, 4, 5)));
void kind_counts_move(KindCounts *to, KindCounts *from);        // from is empty then
int64_t kind_counts_get(const KindCounts *k, const char *kind); // 0: none of this kind
void kind_counts_clear(KindCounts *k);

// The kinds of bad input: those of JsonLine, a line that is too long, damage inside a compressed
// file.
enum { BAD_TOO_LONG = JSON_LINE_BAD_KINDS, BAD_FILE, BAD_KINDS };
extern const struct BadKind {
    // "not_json" in the manifest, "not valid JSON" for people and in KindCounts
    const char *name, *phrase;
} bad_kinds[BAD_KINDS];

typedef struct {
    int64_t documents;
    struct {
        int64_t documents, bytes, tokens; // a document that is cut counts on both sides
    } side[CORPUS_SIDES];
    KindCounts left_out; // files, and empty documents in lines
    KindCounts notes;    // input that is read, but may not be intended
    KindCounts bad;      // lines, and compressed files
} CorpusCounts;
void corpus_counts_clear(CorpusCounts *c);
void corpus_counts_add(CorpusCounts *sum, CorpusCounts *more); // moves the reports of *more to *sum
// Tells whether a side has less than a quarter of its share: chance does that when there are few
// documents.
bool corpus_is_lopsided(const CorpusCounts *c, double val_fraction);
