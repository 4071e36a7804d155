// The way of a corpus from files to shards: one thread reads and unpacks ahead, several encode, the caller's writes.
// Blocks are written in the order in which they were read, so the shards do not depend on the number of threads.
//
// A ring of blocks; three counters say how far each stage is:
//   written <= taken <= filled <= written + num_blocks
// The reader fills block number `filled`, any encoder takes number `taken`, the writer waits for number `written`.
// Blocks are used again and again: what a block of ordinary size needs is kept, what a long line made large is given
// back. A block of lines is many documents, each decided by its own hash; a block of text is a piece of one, for which
// the reader has decided. The tokens of both sides are collected apart, in the width of the shards.
#include "llmc/text/corpus_internal.h"

#include "llmc/text/corpus.h"
#include "llmc/text/documents.h"

#include <inttypes.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

// -------------------------------------------------------------------------------------------------------------- blocks

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

// ------------------------------------------------------------------------------------------------------------ encoders

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

// ------------------------------------------------------------------------------------------------------------ pipeline

// Text that is under way at once. Blocks of ordinary size never reach it up to a hundred threads; it holds back the
// reader when many lines are long.
static const int64_t MAX_BYTES_UNDER_WAY = 64 * 1024 * 1024;

typedef struct Pipeline {
    const CorpusJob *job;
    DocumentReader *reader;
    CorpusEncoder **encoders; // one for each thread
    int next_encoder;
    CorpusBlock *blocks;
    bool *encoded; // of each block
    int num_blocks, num_threads;
    pthread_t *threads; // encoders, then the reader
    pthread_mutex_t lock;
    pthread_cond_t can_fill, can_encode, can_write;
    int64_t filled, taken, written;
    int64_t bytes_under_way;
    bool is_all_read, stop;
} Pipeline;

// ------------------------------------------------------------------------------------------------------------- threads

static void *reader_thread(void *argument) {
    Pipeline *p = argument;
    pthread_mutex_lock(&p->lock);
    while (!p->stop && !p->is_all_read) {
        while (!p->stop && p->filled - p->written == p->num_blocks) pthread_cond_wait(&p->can_fill, &p->lock);
        if (p->stop) break;
        CorpusBlock *b = &p->blocks[p->filled % p->num_blocks];
        pthread_mutex_unlock(&p->lock);
        bool has_more = document_reader_next(p->reader, b);
        pthread_mutex_lock(&p->lock);
        while (has_more && !p->stop && p->filled > p->written && p->bytes_under_way + b->n > MAX_BYTES_UNDER_WAY)
            pthread_cond_wait(&p->can_fill, &p->lock);
        if (has_more) {
            p->encoded[p->filled % p->num_blocks] = false;
            p->bytes_under_way += b->n;
            p->filled++;
            pthread_cond_signal(&p->can_encode);
        } else {
            p->is_all_read = true;
        }
    }
    pthread_cond_broadcast(&p->can_encode);
    pthread_cond_signal(&p->can_write);
    pthread_mutex_unlock(&p->lock);
    return NULL;
}

static void *encoder_thread(void *argument) {
    Pipeline *p = argument;
    pthread_mutex_lock(&p->lock);
    CorpusEncoder *encoder = p->encoders[p->next_encoder++];
    for (;;) {
        while (!p->stop && p->taken == p->filled && !p->is_all_read) pthread_cond_wait(&p->can_encode, &p->lock);
        if (p->stop || p->taken == p->filled) break;
        int64_t i = p->taken++ % p->num_blocks;
        pthread_mutex_unlock(&p->lock);
        corpus_encoder_run(encoder, &p->blocks[i]);
        pthread_mutex_lock(&p->lock);
        p->encoded[i] = true;
        pthread_cond_signal(&p->can_write);
    }
    pthread_mutex_unlock(&p->lock);
    return NULL;
}

static void stop_threads(Pipeline *p) {
    pthread_mutex_lock(&p->lock);
    p->stop = true;
    pthread_cond_broadcast(&p->can_encode);
    pthread_cond_broadcast(&p->can_fill);
    pthread_mutex_unlock(&p->lock);
    for (int i = 0; i < p->num_threads; i++) pthread_join(p->threads[i], NULL);
    p->num_threads = 0;
}

static bool start_thread(Pipeline *p, void *(*run)(void *), Error *err) {
    int failure = pthread_create(&p->threads[p->num_threads], NULL, run, p);
    if (failure != 0) return error_set(err, "cannot start a thread: %s", strerror(failure));
    p->num_threads++;
    return true;
}

// ------------------------------------------------------------------------------------------------------------- writing

// The next block in the order of reading, encoded; NULL: there are no more.
static CorpusBlock *wait_for_block(Pipeline *p) {
    pthread_mutex_lock(&p->lock);
    int64_t i = p->written % p->num_blocks;
    while (p->written == p->filled ? !p->is_all_read : !p->encoded[i]) pthread_cond_wait(&p->can_write, &p->lock);
    CorpusBlock *b = p->written == p->filled ? NULL : &p->blocks[i];
    pthread_mutex_unlock(&p->lock);
    return b;
}

static void give_back(Pipeline *p, CorpusBlock *b) {
    int64_t n = b->n;
    corpus_block_reset(b);
    pthread_mutex_lock(&p->lock);
    p->bytes_under_way -= n;
    p->written++;
    pthread_cond_signal(&p->can_fill);
    pthread_mutex_unlock(&p->lock);
}

static int write_block(const CorpusJob *job, CorpusWriter *writer, const CorpusBlock *b, Error *err) {
    if (b->failed) {
        *err = b->error;
        return b->is_input_error ? EXIT_BAD_INPUT : EXIT_RUN_FAILED;
    }
    if (!job->skip_bad && bad_report_total(&b->counts.bad) > 0) {
        error_set(err, "%s; --skip-bad counts and skips what is bad", b->counts.bad.first[b->counts.bad.earliest]);
        return EXIT_BAD_INPUT;
    }
    for (CorpusSide side = 0; writer && side < CORPUS_SIDES; side++)
        if (!corpus_writer_append(writer, side, b->tokens[side], b->num_tokens[side], err)) return EXIT_RUN_FAILED;
    return EXIT_OK;
}

static int write_blocks(Pipeline *p, CorpusWriter *writer, CorpusPosition *position, CorpusCounts *counts, Error *err) {
    for (CorpusBlock *b; (b = wait_for_block(p)); give_back(p, b)) {
        int status = write_block(p->job, writer, b, err);
        if (status != EXIT_OK) return status;
        corpus_counts_add(counts, &b->counts);
        *position = b->after;
        if (!p->job->on_written(p->job->user, position, counts, err)) return EXIT_RUN_FAILED;
    }
    return EXIT_OK;
}

// ---------------------------------------------------------------------------------------------------------- interface

static bool set_up(Pipeline *p, const CorpusPosition *from, Error *err) {
    const CorpusJob *job = p->job;
    p->num_blocks = 2 * job->threads + 4;
    p->blocks = calloc((size_t)p->num_blocks, sizeof *p->blocks);
    p->encoded = calloc((size_t)p->num_blocks, sizeof *p->encoded);
    p->encoders = calloc((size_t)job->threads, sizeof(CorpusEncoder *));
    p->threads = calloc((size_t)job->threads + 1, sizeof *p->threads);
    bool ok = p->blocks && p->encoded && p->encoders && p->threads;
    for (int i = 0; ok && i < p->num_blocks; i++) ok = corpus_block_init(&p->blocks[i]);
    if (!ok) return error_set(err, "out of memory for %d threads", job->threads);

    const CorpusEncoderOptions encoder_options = {.tokenizer = job->tokenizer,
                                                  .cuts = job->cuts,
                                                  .words = job->words,
                                                  .field = job->field,
                                                  .val_fraction = job->val_fraction,
                                                  .cut_all = job->cut_all};
    for (int i = 0; i < job->threads; i++)
        if (!(p->encoders[i] = corpus_encoder_create(&encoder_options, err))) return false;
    const ReaderOptions reader_options = {
        .inputs = &job->inputs, .tokenizer = job->cuts, .val_fraction = job->val_fraction, .cut_all = job->cut_all};
    return (p->reader = document_reader_open(&reader_options, from, err)) != NULL;
}

static void tear_down(Pipeline *p) {
    document_reader_close(p->reader);
    for (int i = 0; p->encoders && i < p->job->threads; i++) corpus_encoder_free(p->encoders[i]);
    for (int i = 0; p->blocks && i < p->num_blocks; i++) corpus_block_free(&p->blocks[i]);
    free(p->blocks), free(p->encoded), free(p->encoders), free(p->threads);
}

int corpus_convert(const CorpusJob *job, CorpusWriter *writer, CorpusPosition *position, CorpusCounts *counts,
                   Error *err) {
    Pipeline p = {.job = job,
                  .lock = PTHREAD_MUTEX_INITIALIZER,
                  .can_fill = PTHREAD_COND_INITIALIZER,
                  .can_encode = PTHREAD_COND_INITIALIZER,
                  .can_write = PTHREAD_COND_INITIALIZER};
    int status = EXIT_RUN_FAILED;
    bool ok = set_up(&p, position, err);
    for (int i = 0; ok && i < job->threads; i++) ok = start_thread(&p, encoder_thread, err);
    if (ok && start_thread(&p, reader_thread, err)) status = write_blocks(&p, writer, position, counts, err);
    stop_threads(&p);
    for (int i = 0; status == EXIT_OK && i < job->threads; i++)
        if (!corpus_encoder_finish(p.encoders[i], err)) status = EXIT_RUN_FAILED;
    tear_down(&p);
    return status;
}
