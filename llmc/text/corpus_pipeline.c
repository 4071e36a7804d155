// See corpus_pipeline.h. A ring of blocks; three counters say how far each stage is:
//   written <= taken <= filled <= written + num_blocks
// The reader fills block number `filled`, any encoder takes number `taken`, the writer waits for number `written`.
#include "llmc/text/corpus_pipeline.h"

#include "llmc/text/document_reader.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

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
