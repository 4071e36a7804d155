// See corpus_pipeline.h.
//
// A ring of blocks; three counters say how far each stage is:
//   written <= taken <= filled <= written + num_blocks
// The reader fills block number `filled`, any encoder takes number `taken`, the writer waits for
// number `written`. A block of lines is many documents, and the hash of each decides its side; a
// block of text is a piece of one document, for which the reader has decided. The tokens of the two
// sides are collected separately, in the width of the shards.
#include "llmc/text/corpus_pipeline.h"

#include "llmc/base/limits.h"
#include "llmc/base/memory.h"
#include "llmc/text/content.h"
#include "llmc/text/documents.h"
#include "llmc/text/encoder.h"

#include <inttypes.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

// ---------------------------------------------------------------------------------------- encoders

// One for each thread. Blocks come in any order, so no state is carried from one to the next.
typedef struct {
    const CorpusJob *job;
    int token_bytes;
    Encoder *encoder; // one of the two
    WordCounter *counter;
    int32_t tokens[BLOCK_BYTES];
} CorpusEncoder;

// Appends tokens to a side of the block, in the width of the shards.
static void put_tokens(const CorpusEncoder *e, CorpusBlock *b, CorpusSide side,
                       const int32_t *tokens, int64_t n) {
    b->counts.side[side].tokens += n;
    if (e->counter) return;
    const int64_t have = b->num_tokens[side];
    b->tokens[side] =
        memory_grow(b->tokens[side], &b->token_capacity[side], have + n, (size_t)e->token_bytes);
    if (e->token_bytes == 2) {
        uint16_t *out = (uint16_t *)b->tokens[side] + have;
        for (int64_t i = 0; i < n; i++) out[i] = (uint16_t)tokens[i];
    } else {
        memcpy((int32_t *)b->tokens[side] + have, tokens, (size_t)n * sizeof *tokens);
    }
    b->num_tokens[side] += n;
}

static void begin_part(const CorpusEncoder *e, CorpusBlock *b, CorpusSide side) {
    const Tokenizer *t = e->job->tokenizer;
    const int32_t tokens[] = {tokenizer_eot(t), tokenizer_begin(t)};
    b->counts.side[side].documents++;
    put_tokens(e, b, side, tokens, 1 + (tokens[1] != tokens[0]));
}

// Text of any length, in pieces that fit the working memory. A piece without a safe place to end is
// cut between two characters, as in the reader.
static void put_text(CorpusEncoder *e, CorpusBlock *b, CorpusSide side, const char *text,
                     int64_t n) {
    b->counts.side[side].bytes += n;
    while (n > 0) {
        int64_t piece = n;
        if (n > BLOCK_BYTES) {
            piece = tokenizer_safe_cut(e->job->tokenizer, text, BLOCK_BYTES);
            if (piece == 0) piece = corpus_character_end(text, BLOCK_BYTES);
        }
        if (e->counter && side == CORPUS_TRAIN)
            word_counter_add(e->counter, e->job->tokenizer, text, piece);
        int64_t tokens = piece;
        if (e->encoder) tokens = encoder_encode(e->encoder, text, piece, e->tokens);
        put_tokens(e, b, side, e->tokens, tokens);
        text += piece;
        n -= piece;
    }
}

static void put_document(CorpusEncoder *e, CorpusBlock *b, const char *text, int64_t n) {
    const double val_fraction = e->job->options->val_fraction;
    b->counts.documents++;
    corpus_note_markers(b->path, text, n, &b->counts.notes);
    int64_t cut = n;
    CorpusSide side = CORPUS_TRAIN;
    if ((n <= SHORT_DOCUMENT && !e->job->cut_all) || corpus_is_one_sided(val_fraction))
        side = corpus_side(text, n, val_fraction);
    else
        cut = corpus_cut_target(n, val_fraction);
    if (cut < n) cut = corpus_cut(e->job->cuts, text, n, cut);
    begin_part(e, b, side);
    put_text(e, b, side, text, cut);
    if (cut == n) return;
    begin_part(e, b, CORPUS_VAL);
    put_text(e, b, CORPUS_VAL, text + cut, n - cut);
}

// The documents of a text, one unless it is divided. The marker's line ends with it; what is blank
// is no document.
static void put_documents(CorpusEncoder *e, CorpusBlock *b, const char *text, int64_t n,
                          bool begins) {
    const char *mark = e->job->options->split_at, *const end = text + n;
    if (!mark) {
        put_document(e, b, text, n);
        return;
    }
    const size_t length = strlen(mark);
    while (text < end) {
        if (!begins && end - text > 1 && text[0] == '\r' && text[1] == '\n') text++;
        if (!begins && text[0] == '\n') text++;
        const char *next = memmem(text, (size_t)(end - text), mark, length);
        n = end - text;
        if (next) n = next - text;
        int64_t blank = 0;
        while (blank < n && text[blank] != '\0' && strchr(" \t\r\n\v\f", text[blank])) blank++;
        if (blank < n) put_document(e, b, text, n);
        text += n;
        if (next) text += length;
        begins = false;
    }
}

static void put_lines(CorpusEncoder *e, CorpusBlock *b) {
    char *line = b->text, *end = b->text + b->n;
    for (int64_t number = b->first_line; line < end; number++) {
        // the reader has put one after the last line
        char *newline = memchr(line, '\n', (size_t)(end + 1 - line));
        char *text;
        int64_t n;
        Error err;
        JsonLine status =
            json_line_text(line, newline - line, e->job->options->field, &text, &n, &err);
        line = newline + 1;
        if (status == JSON_LINE_OK && n > 0) {
            put_documents(e, b, text, n, true);
        } else if (status == JSON_LINE_OK) {
            kind_counts_add(&b->counts.left_out, "empty", 1, "%s: line %" PRId64, b->path, number);
        } else if (status != JSON_LINE_BLANK) {
            kind_counts_add(&b->counts.bad, bad_kinds[status].phrase, 1, "%s: line %" PRId64 ": %s",
                            b->path, number, err.text);
        }
    }
}

static void put_piece(CorpusEncoder *e, CorpusBlock *b) {
    corpus_note_bytes(e->job->options, b->path, b->text, b->n, &b->counts.notes);
    if (b->format == FORMAT_DIVIDED || b->is_short) {
        put_documents(e, b, b->text, b->n, b->begins);
        return;
    }
    corpus_note_markers(b->path, b->text, b->n, &b->counts.notes);
    b->counts.documents += b->is_document;
    if (b->begins) begin_part(e, b, b->side);
    put_text(e, b, b->side, b->text, b->n);
}

// ---------------------------------------------------------------------------------------- pipeline

// Text in the pipeline at once. Blocks of ordinary size do not reach the limit below a hundred
// threads; it stops the reader when many lines are long.
static const int64_t MAX_BYTES_UNDER_WAY = 64 * 1024 * 1024;

typedef struct Pipeline {
    const CorpusJob *job;
    DocumentReader *reader;
    CorpusEncoder *encoders; // one for each thread
    int next_encoder;
    CorpusBlock *blocks;
    int num_blocks;
    pthread_t *threads; // encoders, then the reader
    pthread_mutex_t lock;
    pthread_cond_t can_fill, can_encode, can_write;
    int64_t filled, taken, written;
    int64_t bytes_under_way;
    bool is_all_read, stop;
} Pipeline;

static void *reader_thread(void *argument) {
    Pipeline *p = argument;

    pthread_mutex_lock(&p->lock);
    while (!p->stop && !p->is_all_read) {
        while (!p->stop && p->filled - p->written == p->num_blocks)
            pthread_cond_wait(&p->can_fill, &p->lock);
        if (p->stop) break;

        CorpusBlock *b = &p->blocks[p->filled % p->num_blocks];
        pthread_mutex_unlock(&p->lock);
        bool has_more = document_reader_next(p->reader, b);
        pthread_mutex_lock(&p->lock);
        while (has_more && !p->stop && p->filled > p->written &&
               p->bytes_under_way + b->n > MAX_BYTES_UNDER_WAY)
            pthread_cond_wait(&p->can_fill, &p->lock);

        if (has_more) {
            p->bytes_under_way += b->n;
            p->filled++;
        }
        p->is_all_read = !has_more;
        pthread_cond_signal(&p->can_encode);
    }

    pthread_cond_broadcast(&p->can_encode);
    pthread_cond_signal(&p->can_write);
    pthread_mutex_unlock(&p->lock);
    return NULL;
}

static void *encoder_thread(void *argument) {
    Pipeline *p = argument;
    pthread_mutex_lock(&p->lock);
    CorpusEncoder *encoder = &p->encoders[p->next_encoder++];

    for (;;) {
        while (!p->stop && p->taken == p->filled && !p->is_all_read)
            pthread_cond_wait(&p->can_encode, &p->lock);
        if (p->stop || p->taken == p->filled) break;
        CorpusBlock *b = &p->blocks[p->taken++ % p->num_blocks];
        pthread_mutex_unlock(&p->lock);

        const bool has_text = b->status == EXIT_OK && b->n > 0;
        if (has_text && b->format == FORMAT_LINES)
            put_lines(encoder, b);
        else if (has_text)
            put_piece(encoder, b);
        pthread_mutex_lock(&p->lock);
        b->is_encoded = true;
        pthread_cond_signal(&p->can_write);
    }
    pthread_mutex_unlock(&p->lock);
    return NULL;
}

// Writes the blocks in the order of reading, each as soon as it is encoded.
static int write_blocks(Pipeline *p, CorpusCounts *counts, Error *err) {
    int status = EXIT_OK;

    pthread_mutex_lock(&p->lock);
    while (status == EXIT_OK) {
        CorpusBlock *b = &p->blocks[p->written % p->num_blocks];
        while (p->written == p->filled && !p->is_all_read)
            pthread_cond_wait(&p->can_write, &p->lock);
        if (p->written == p->filled) break;
        while (!b->is_encoded) pthread_cond_wait(&p->can_write, &p->lock);
        pthread_mutex_unlock(&p->lock);

        const int64_t n = b->n;
        const KindCounts *bad = &b->counts.bad;
        status = b->status;
        if (status != EXIT_OK) {
            *err = b->error;
        } else if (!p->job->options->skip_bad && bad->num > 0) {
            error_set(err, "%s; --skip-bad counts and skips bad input", bad->kinds[0].first);
            status = EXIT_BAD_INPUT;
        }

        for (CorpusSide side = 0; p->job->writer && status == EXIT_OK && side < CORPUS_SIDES;
             side++)
            if (!corpus_writer_append(p->job->writer, side, b->tokens[side], b->num_tokens[side],
                                      err))
                status = EXIT_RUN_FAILED;

        if (status == EXIT_OK) {
            corpus_counts_add(counts, &b->counts);
            CorpusProgress *progress = p->job->progress;
            progress->bytes_read = b->bytes_read;
            progress->tokens = counts->side[CORPUS_TRAIN].tokens + counts->side[CORPUS_VAL].tokens;
            p->job->options->on_progress(p->job->options->user, progress);
        }

        corpus_block_clear(b);
        pthread_mutex_lock(&p->lock);
        p->bytes_under_way -= n;
        p->written++;
        pthread_cond_signal(&p->can_fill);
    }

    pthread_mutex_unlock(&p->lock);
    return status;
}

int corpus_convert(const CorpusJob *job, CorpusCounts *counts, Error *err) {
    Pipeline p = {.job = job,
                  .lock = PTHREAD_MUTEX_INITIALIZER,
                  .can_fill = PTHREAD_COND_INITIALIZER,
                  .can_encode = PTHREAD_COND_INITIALIZER,
                  .can_write = PTHREAD_COND_INITIALIZER};
    const int threads = job->options->threads;
    int started = 0, status = EXIT_RUN_FAILED;

    p.num_blocks = 2 * threads + 4;
    p.blocks = memory_zeroed(p.num_blocks, sizeof *p.blocks);
    p.encoders = memory_zeroed(threads, sizeof *p.encoders);
    p.threads = memory_zeroed(threads + 1, sizeof *p.threads);
    p.reader = document_reader_open(job->options, job->cuts, job->cut_all);

    for (int i = 0; i < threads; i++) {
        CorpusEncoder *e = &p.encoders[i];
        e->job = job;
        e->token_bytes = corpus_token_bytes(job->tokenizer);
        if (job->words)
            e->counter = word_counter_create(job->words);
        else
            e->encoder = encoder_create(job->tokenizer);
    }

    bool ok = true;
    for (; ok && started <= threads; started += ok) {
        void *(*stage)(void *) = encoder_thread;
        if (started == threads) stage = reader_thread;
        const int failure = pthread_create(&p.threads[started], NULL, stage, &p);
        ok = failure == 0 || limits_thread_failed("a thread", failure, err);
    }

    if (ok) status = write_blocks(&p, counts, err);
    pthread_mutex_lock(&p.lock);
    p.stop = true;
    pthread_cond_broadcast(&p.can_encode);
    pthread_cond_signal(&p.can_fill);
    pthread_mutex_unlock(&p.lock);

    while (started > 0) pthread_join(p.threads[--started], NULL);
    document_reader_close(p.reader);
    for (int i = 0; i < threads; i++) {
        if (job->words && status == EXIT_OK) word_counter_finish(p.encoders[i].counter);
        encoder_free(p.encoders[i].encoder);
        word_counter_free(p.encoders[i].counter);
    }

    for (int i = 0; i < p.num_blocks; i++) corpus_block_clear(&p.blocks[i]);
    free(p.blocks);
    free(p.encoders);
    free(p.threads);
    return status;
}
