// See corpus_encoder.h. A block of lines is many documents, each decided by its own hash; a block of text is a piece of
// one, for which the reader has decided. The tokens of both sides are collected apart, in the width of the shards.
#include "llmc/text/corpus_encoder.h"

#include "llmc/text/json_line.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

struct CorpusEncoder {
    CorpusEncoderOptions options;
    int token_bytes;
    Encoder *encoder; // one of the two
    WordCounter *counter;
    int32_t tokens[BLOCK_BYTES];
};

int corpus_token_bytes(const Tokenizer *t) { return tokenizer_vocab(t) > 65536 ? 4 : 2; }

CorpusEncoder *corpus_encoder_create(const CorpusEncoderOptions *options, Error *err) {
    REQUIRE(strlen(options->field) < 256 && tokenizer_eot(options->tokenizer) >= 0, "corpus encoder: options");
    CorpusEncoder *e = malloc(sizeof *e);
    if (!e) {
        error_set(err, "corpus encoder: out of memory");
        return NULL;
    }
    e->options = *options;
    e->token_bytes = corpus_token_bytes(options->tokenizer);
    e->encoder = options->words ? NULL : encoder_create(options->tokenizer, err);
    e->counter = options->words ? word_counter_create(options->words, err) : NULL;
    if (e->encoder || e->counter) return e;
    free(e);
    return NULL;
}

void corpus_encoder_free(CorpusEncoder *e) {
    if (!e) return;
    encoder_free(e->encoder);
    word_counter_free(e->counter);
    free(e);
}

// Appends tokens to a side of the block, in the width of the shards.
static bool put_tokens(const CorpusEncoder *e, CorpusBlock *b, CorpusSide side, const int32_t *tokens, int64_t n) {
    b->counts.side[side].tokens += n;
    if (e->counter) return true;
    int64_t have = b->num_tokens[side];
    if (have + n > b->token_room[side]) {
        int64_t room = 2 * (have + n);
        void *grown = realloc(b->tokens[side], (size_t)(room * e->token_bytes));
        if (!grown) return error_set(&b->error, "%s: out of memory for tokens", b->path);
        b->tokens[side] = grown, b->token_room[side] = room;
    }
    if (e->token_bytes == 2) {
        uint16_t *out = (uint16_t *)b->tokens[side] + have;
        for (int64_t i = 0; i < n; i++) out[i] = (uint16_t)tokens[i];
    } else {
        memcpy((int32_t *)b->tokens[side] + have, tokens, (size_t)n * sizeof *tokens);
    }
    b->num_tokens[side] += n;
    return true;
}

static bool begin_part(const CorpusEncoder *e, CorpusBlock *b, CorpusSide side) {
    const int32_t eot = tokenizer_eot(e->options.tokenizer);
    b->counts.side[side].documents++;
    return put_tokens(e, b, side, &eot, 1);
}

// Text of any length, in pieces that the working memory takes. Where a piece has no safe place to end, it ends between
// two characters, as the pieces of the reader do.
static bool put_text(CorpusEncoder *e, CorpusBlock *b, CorpusSide side, const char *text, int64_t n) {
    b->counts.side[side].bytes += n;
    while (n > 0) {
        int64_t piece = n;
        if (n > BLOCK_BYTES) {
            piece = tokenizer_safe_cut(e->options.tokenizer, text, BLOCK_BYTES);
            if (piece == 0) piece = corpus_character_end(text, BLOCK_BYTES);
        }
        if (e->counter && side == CORPUS_TRAIN &&
            !word_counter_add(e->counter, e->options.tokenizer, text, piece, &b->error))
            return false;
        const int64_t tokens = e->counter ? piece : encoder_encode(e->encoder, text, piece, e->tokens);
        if (!put_tokens(e, b, side, e->tokens, tokens)) return false;
        text += piece, n -= piece;
    }
    return true;
}

// ----------------------------------------------------------------------------------------------------- whole documents

static bool put_document(CorpusEncoder *e, CorpusBlock *b, const char *text, int64_t n) {
    const CorpusEncoderOptions *o = &e->options;
    b->counts.documents++;
    if ((n <= SHORT_DOCUMENT && !o->cut_all) || corpus_is_one_sided(o->val_fraction)) {
        CorpusSide side = corpus_side(text, n, o->val_fraction);
        return begin_part(e, b, side) && put_text(e, b, side, text, n);
    }
    int64_t cut = corpus_cut_target(n, o->val_fraction);
    if (cut < n) cut = corpus_cut(o->cuts, text, n, cut);
    if (!begin_part(e, b, CORPUS_TRAIN) || !put_text(e, b, CORPUS_TRAIN, text, cut)) return false;
    return cut == n || (begin_part(e, b, CORPUS_VAL) && put_text(e, b, CORPUS_VAL, text + cut, n - cut));
}

static void report_line(CorpusBlock *b, JsonLine wrong, int64_t number, Error *err) {
    static const BadKind kinds[] = {[JSON_LINE_NOT_JSON] = BAD_JSON,
                                    [JSON_LINE_NOT_UTF8] = BAD_UTF8,
                                    [JSON_LINE_SURROGATE] = BAD_SURROGATE,
                                    [JSON_LINE_NO_FIELD] = BAD_NO_FIELD,
                                    [JSON_LINE_NO_STRING] = BAD_NO_STRING};
    error_prefix(err, "%s: line %" PRId64, b->path, number);
    bad_report_add(&b->counts.bad, kinds[wrong], err->text);
}

static bool put_lines(CorpusEncoder *e, CorpusBlock *b) {
    char *line = b->text, *end = b->text + b->n;
    for (int64_t number = b->first_line; line < end; number++) {
        char *newline = memchr(line, '\n', (size_t)(end + 1 - line)); // the reader has put one behind the last line
        char *text;
        int64_t n;
        Error err;
        JsonLine status = json_line_text(line, newline - line, e->options.field, &text, &n, &err);
        line = newline + 1;
        if (status == JSON_LINE_OK && n > 0) {
            if (!put_document(e, b, text, n)) return false;
        } else if (status == JSON_LINE_OK) {
            b->counts.empty++;
        } else if (status != JSON_LINE_BLANK) {
            report_line(b, status, number, &err);
        }
    }
    return true;
}

// ---------------------------------------------------------------------------------------------------------- interface

static bool put_piece(CorpusEncoder *e, CorpusBlock *b) {
    if (b->is_short) return put_document(e, b, b->text, b->n);
    b->counts.documents += b->is_document;
    return (!b->begins || begin_part(e, b, b->side)) && put_text(e, b, b->side, b->text, b->n);
}

bool corpus_encoder_finish(CorpusEncoder *e, Error *err) { return !e->counter || word_counter_finish(e->counter, err); }

void corpus_encoder_run(CorpusEncoder *e, CorpusBlock *b) {
    if (b->failed || b->n == 0) return;
    b->failed = !(b->kind == BLOCK_LINES ? put_lines(e, b) : put_piece(e, b));
}
