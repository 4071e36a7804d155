// What a corpus was found to hold: documents, bytes and tokens of either side, bad input, and what was left out, by its
// kind with the first example. Counts of blocks are added up in the order of reading.
#pragma once
#include "llmc/text/corpus_split.h"
#include "llmc/text/json_line.h"

// --------------------------------------------------------------------------------------------------------------- kinds

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

// ----------------------------------------------------------------------------------------------------------- bad input

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
void corpus_counts_add(CorpusCounts *sum, CorpusCounts *more); // moves the reports of *more to *sum
// Has a side less than a quarter of its share? Only chance can do that, with few documents to draw from.
bool corpus_is_lopsided(const CorpusCounts *c, double val_fraction);
// Is there any text, and on both sides?
bool corpus_check_sides(const CorpusCounts *c, double val_fraction, Error *err);
