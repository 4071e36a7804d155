// See corpus_block.h. Blocks are used again and again: what a block of ordinary size needs is kept, what a long line
// made large is given back. Sums are plain; of bad input the first of each kind is kept in words.
#include "llmc/text/corpus_block.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

const char *const bad_kind_names[BAD_KINDS] = {"not_json",  "not_utf8", "half_surrogate", "no_field",
                                               "no_string", "too_long", "damaged_file"};
const char *const bad_kind_phrases[BAD_KINDS] = {
    "not valid JSON",        "not UTF-8",     "half a surrogate pair",  "without the field",
    "field is not a string", "line too long", "compressed file damaged"};

void bad_report_add(BadReport *r, BadKind kind, const char *message) {
    if (bad_report_total(r) == 0) r->earliest = kind;
    if (r->count[kind]++ == 0) r->first[kind] = strdup(message);
}

void bad_report_merge(BadReport *r, const BadReport *later) {
    if (bad_report_total(r) == 0) r->earliest = later->earliest;
    for (int k = 0; k < BAD_KINDS; k++) {
        if (r->count[k] == 0 && later->first[k]) r->first[k] = strdup(later->first[k]);
        r->count[k] += later->count[k];
    }
}

int64_t bad_report_total(const BadReport *r) {
    int64_t total = 0;
    for (int k = 0; k < BAD_KINDS; k++) total += r->count[k];
    return total;
}

void bad_report_clear(BadReport *r) {
    for (int k = 0; k < BAD_KINDS; k++) free(r->first[k]);
    *r = (BadReport){0};
}

void corpus_counts_add(CorpusCounts *sum, const CorpusCounts *more) {
    sum->documents += more->documents;
    for (int side = 0; side < CORPUS_SIDES; side++) {
        sum->side[side].documents += more->side[side].documents;
        sum->side[side].bytes += more->side[side].bytes;
        sum->side[side].tokens += more->side[side].tokens;
    }
    sum->binary += more->binary, sum->empty += more->empty, sum->unreadable += more->unreadable;
    bad_report_merge(&sum->bad, &more->bad);
}

bool corpus_is_lopsided(const CorpusCounts *c, double val_fraction) {
    double train = (double)c->side[CORPUS_TRAIN].tokens, val = (double)c->side[CORPUS_VAL].tokens, f = val_fraction;
    return !corpus_is_one_sided(f) && (val < (train + val) * f / 4 || train < (train + val) * (1 - f) / 4);
}

bool corpus_check_sides(const CorpusCounts *c, double val_fraction, Error *err) {
    const CorpusCount *train = &c->side[CORPUS_TRAIN], *val = &c->side[CORPUS_VAL];
    int64_t bad = bad_report_total(&c->bad);
    if (c->documents == 0 && bad > 0)
        return error_set(err, "no text to read: %" PRId64 " bad lines or files, the first: %s", bad,
                         c->bad.first[c->bad.earliest]);
    if (c->documents == 0)
        return error_set(err, "no text to read: %" PRId64 " binary, %" PRId64 " empty, %" PRId64 " unreadable files",
                         c->binary, c->empty, c->unreadable);
    if (!corpus_is_one_sided(val_fraction) && (train->tokens == 0 || val->tokens == 0))
        return error_set(err, "%" PRId64 " bytes of text cannot be divided into training and validation; give more",
                         train->bytes + val->bytes);
    return true;
}

bool corpus_block_reserve(CorpusBlock *b, int64_t bytes) {
    if (bytes < b->capacity) return true;
    char *text = realloc(b->text, (size_t)bytes + 1); // for the newline behind the text
    if (!text) return false;
    b->text = text;
    b->capacity = bytes + 1;
    return true;
}

bool corpus_block_init(CorpusBlock *b) {
    memset(b, 0, sizeof *b);
    return corpus_block_reserve(b, BLOCK_BYTES);
}

void corpus_block_free(CorpusBlock *b) {
    for (int side = 0; side < CORPUS_SIDES; side++) free(b->tokens[side]);
    bad_report_clear(&b->counts.bad);
    free(b->text);
}

void corpus_block_reset(CorpusBlock *b) {
    for (int side = 0; side < CORPUS_SIDES; side++) {
        b->num_tokens[side] = 0;
        if (b->token_room[side] <= KEPT_BYTES) continue;
        free(b->tokens[side]);
        b->tokens[side] = NULL, b->token_room[side] = 0;
    }
    if (b->capacity > KEPT_BYTES) {
        free(b->text);
        b->text = NULL, b->capacity = 0; // the next user reserves what it needs
    }
    bad_report_clear(&b->counts.bad);
    b->counts = (CorpusCounts){0};
    b->n = 0;
    b->begins = b->is_document = b->is_short = b->failed = b->is_input_error = false;
}
