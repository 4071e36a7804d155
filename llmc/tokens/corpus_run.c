// See corpus_run.h. The order of events: look at the inputs, claim the directory, go on with an unfinished run or
// begin, convert (twice if it must be), describe, remove what is old, move what is new. From the first journal on, an
// interruption at any place is made good by the next run.
#include "llmc/tokens/corpus_run.h"

#include "llmc/base/atomic_file.h"
#include "llmc/base/clock.h"
#include "llmc/tokens/corpus_manifest.h"
#include "llmc/tokens/corpus_output.h"
#include "llmc/tokens/corpus_pipeline.h"
#include "llmc/tokens/corpus_spool.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static const int64_t STDIN_SPOOL_BYTES = 64 << 20; // lines: a corpus up to there can be cut in a second pass

typedef struct {
    const CorpusRunOptions *options;
    CorpusOutput output;
    InputSummary *summaries;
    CorpusRequest request;
    cJSON *request_json;
    CorpusJob job;
    CorpusWriter *writer;
    CorpusJournal state; // its shards are the writer's while there is one
    CorpusProgress progress;
    bool has_stdin;
    double last_saved;
} Run;

static void notice(const Run *r, const char *format, ...) __attribute__((format(printf, 2, 3)));
static void notice(const Run *r, const char *format, ...) {
    char text[1200];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    r->options->on_notice(r->options->user, text);
}

// --------------------------------------------------------------------------------------------------------------- state

static void borrow_shards(Run *r) {
    for (CorpusSide side = 0; side < CORPUS_SIDES; side++)
        r->state.shards[side] = *corpus_writer_shards(r->writer, side);
}

static void forget_state(Run *r) {
    if (r->writer) memset(r->state.shards, 0, sizeof r->state.shards);
    corpus_journal_clear(&r->state);
    r->progress.start_bytes = 0;
}

static bool save_journal(Run *r, CorpusPhase phase, Error *err) {
    r->state.phase = phase;
    return r->has_stdin || corpus_journal_save(r->output.journal, r->request_json, &r->state, err);
}

static bool on_written(void *user, const CorpusPosition *at, const CorpusCounts *counts, Error *err) {
    Run *r = user;
    r->progress.bytes_read = at->bytes_read;
    r->progress.tokens = counts->side[CORPUS_TRAIN].tokens + counts->side[CORPUS_VAL].tokens;
    r->options->on_progress(r->options->user, &r->progress);
    if (r->has_stdin || now_seconds() - r->last_saved < r->options->journal_seconds) return true;
    borrow_shards(r);
    bool ok = corpus_writer_sync(r->writer, err) && save_journal(r, PHASE_ENCODE, err);
    r->last_saved = now_seconds();
    return ok;
}

// What a killed run of the same request left, into r->state; otherwise that is as new.
static void load_journal(Run *r) {
    Error why;
    if (!file_exists(r->output.journal)) return;
    bool ok = !r->has_stdin || error_set(&why, "standard input cannot be read again");
    if (ok) ok = corpus_journal_load(r->output.journal, r->request_json, &r->state, &why);
    if (ok && !r->options->skip_bad && bad_report_total(&r->state.counts.bad) > 0) {
        forget_state(r);
        ok = error_set(&why, "it had skipped bad input, and --skip-bad is not given now");
    }
    if (!ok) notice(r, "cannot go on with the unfinished run in %s: %s; starting over", r->output.directory, why.text);
}

// The writer at the place where r->state is.
static bool open_writer(Run *r, Error *err) {
    const CorpusWriterOptions options = {.directory = r->output.staging,
                                         .token_bytes = corpus_token_bytes(r->options->tokenizer),
                                         .vocab = tokenizer_vocab(r->options->tokenizer),
                                         .eot = tokenizer_eot(r->options->tokenizer),
                                         .shard_tokens = r->options->shard_tokens};
    r->writer = corpus_writer_open(&options, r->state.shards, err);
    if (!r->writer) return false;
    for (CorpusSide side = 0; side < CORPUS_SIDES; side++) free(r->state.shards[side].shards);
    borrow_shards(r);
    return true;
}

static bool begin_or_go_on(Run *r, Error *err) {
    Error why;
    bool goes_on = r->state.position.bytes_read > 0;
    if (goes_on && open_writer(r, &why)) {
        r->progress.start_bytes = r->state.position.bytes_read;
        notice(r, "going on with an unfinished run, behind %" PRId64 " of %" PRId64 " bytes (%.1f%%)",
               r->progress.start_bytes, r->progress.total_bytes,
               100.0 * (double)r->progress.start_bytes / (double)r->progress.total_bytes);
        return true;
    }
    if (goes_on) notice(r, "cannot go on with the unfinished run: %s; starting over", why.text);
    forget_state(r);
    return corpus_output_clear(&r->output, err) && open_writer(r, err);
}

// ---------------------------------------------------------------------------------------------------------- conversion

static bool spool_stdin(Run *r, Error *err) {
    if (!r->has_stdin) return true;
    InputStdin *in = &r->job.inputs.standard_input;
    int64_t bytes, limit = r->options->format == FORMAT_LINES ? STDIN_SPOOL_BYTES : INT64_MAX;
    if (!corpus_spool_stdin(r->output.spool, limit, in, &bytes, err)) return false;
    r->progress.total_bytes = in->then_fd < 0 ? r->progress.total_bytes + bytes : 0; // 0: nobody knows
    return true;
}

// Has a side less than a quarter of its share? Only chance can do that, with few documents to draw from.
static bool is_lopsided(const Run *r) {
    double train = (double)r->state.counts.side[CORPUS_TRAIN].tokens;
    double val = (double)r->state.counts.side[CORPUS_VAL].tokens, f = r->options->val_fraction;
    return !corpus_is_one_sided(f) && (val < (train + val) * f / 4 || train < (train + val) * (1 - f) / 4);
}

static int convert_once(Run *r, Error *err) {
    r->job.cut_all = r->state.cut_all;
    return corpus_convert(&r->job, r->writer, &r->state.position, &r->state.counts, err);
}

static int convert(Run *r, Error *err) {
    int status = convert_once(r, err);
    bool can_repeat = r->job.inputs.standard_input.then_fd < 0;
    if (status == EXIT_OK && !r->state.cut_all && can_repeat && r->state.counts.documents > 0 && is_lopsided(r)) {
        forget_state(r);
        r->state.cut_all = true;
        corpus_writer_free(r->writer);
        status = open_writer(r, err) ? convert_once(r, err) : EXIT_RUN_FAILED;
    }
    if (status == EXIT_OK && !corpus_writer_finish(r->writer, err)) status = EXIT_RUN_FAILED;
    if (r->writer) borrow_shards(r);
    return status;
}

static bool has_both_sides(const Run *r, Error *err) {
    const CorpusCounts *c = &r->state.counts;
    const CorpusCount *train = &c->side[CORPUS_TRAIN], *val = &c->side[CORPUS_VAL];
    int64_t bad = bad_report_total(&c->bad);
    if (c->documents == 0 && bad > 0)
        return error_set(err, "no text to read: %" PRId64 " bad lines or files, the first: %s", bad,
                         c->bad.first[c->bad.earliest]);
    if (c->documents == 0)
        return error_set(err, "no text to read: %" PRId64 " binary, %" PRId64 " empty, %" PRId64 " unreadable files",
                         c->binary, c->empty, c->unreadable);
    if (!corpus_is_one_sided(r->options->val_fraction) && (train->tokens == 0 || val->tokens == 0))
        return error_set(err, "%" PRId64 " bytes of text cannot be divided into training and validation; give more",
                         train->bytes + val->bytes);
    return true;
}

// ----------------------------------------------------------------------------------------------------- the final names

static bool write_descriptions(const Run *r, Error *err) {
    size_t bytes;
    char *json = tokenizer_to_json(r->options->tokenizer, &bytes, err);
    char *tokenizer = path_join(r->output.staging, "tokenizer.json");
    char *manifest = path_join(r->output.staging, "manifest.json");
    bool ok = json && file_write_atomic(tokenizer, json, bytes, err) &&
              corpus_manifest_write(manifest, &r->request, &r->state, err);
    free(json), free(tokenizer), free(manifest);
    return ok;
}

// From where the state is: everything lies in .tmp-prepare, what is old is gone, or some of it has been moved.
static bool publish(Run *r, Error *err) {
    if (r->state.phase == PHASE_ENCODE && (!write_descriptions(r, err) || !save_journal(r, PHASE_REPLACE, err)))
        return false;
    if (r->state.phase == PHASE_REPLACE &&
        (!corpus_output_remove_old(&r->output, err) || !save_journal(r, PHASE_MOVE, err)))
        return false;
    return corpus_output_move_new(&r->output, err);
}

// ----------------------------------------------------------------------------------------------------------------- run

static bool set_up(Run *r, Error *err) {
    const CorpusRunOptions *o = r->options;
    r->job = (CorpusJob){.inputs = {.arguments = o->arguments,
                                    .count = o->num_arguments,
                                    .format = o->format,
                                    .output = o->output,
                                    .standard_input.then_fd = -1},
                         .tokenizer = o->tokenizer,
                         .field = o->field,
                         .val_fraction = o->val_fraction,
                         .skip_bad = o->skip_bad,
                         .threads = o->threads,
                         .on_written = on_written,
                         .user = r};
    for (int i = 0; i < o->num_arguments; i++) r->has_stdin |= strcmp(o->arguments[i], "-") == 0;
    r->summaries = calloc((size_t)o->num_arguments, sizeof *r->summaries);
    if (!r->summaries) return error_set(err, "out of memory");
    if (!inputs_summarize(&r->job.inputs, r->summaries, err)) return false;
    for (int i = 0; i < o->num_arguments; i++) r->progress.total_bytes += r->summaries[i].bytes;
    r->request = (CorpusRequest){.inputs = &r->job.inputs,
                                 .summaries = r->summaries,
                                 .tokenizer = o->tokenizer,
                                 .field = o->field,
                                 .val_fraction = o->val_fraction,
                                 .shard_tokens = o->shard_tokens};
    r->request_json = corpus_request_json(&r->request);
    return true;
}

static int run_claimed(Run *r, Error *err) {
    load_journal(r);
    if (r->state.phase == PHASE_ENCODE) {
        if (!r->options->force && !corpus_output_refuse_old(&r->output, err)) return EXIT_BAD_INPUT;
        if (!begin_or_go_on(r, err) || !spool_stdin(r, err)) return EXIT_RUN_FAILED;
        r->last_saved = now_seconds();
        int status = convert(r, err);
        if (status != EXIT_OK) return status;
        if (!has_both_sides(r, err)) return EXIT_BAD_INPUT;
    }
    return publish(r, err) ? EXIT_OK : EXIT_RUN_FAILED;
}

static void take_result(Run *r, CorpusResult *result) {
    *result = (CorpusResult){.counts = r->state.counts, .cut_all = r->state.cut_all};
    for (CorpusSide side = 0; side < CORPUS_SIDES; side++) result->num_shards[side] = r->state.shards[side].num_shards;
    r->state.counts = (CorpusCounts){0};
}

// A failed run that has a journal keeps its work for the next one; what cannot be continued goes.
static void tidy_up(Run *r, int status, Error *err) {
    if (r->output.lock < 0 || status == EXIT_OK) return;
    Error cause = *err;
    if (!file_exists(r->output.journal))
        corpus_output_discard(&r->output, NULL);
    else if (r->state.position.bytes_read > 0)
        error_set(err, "%s; what is done is kept, the same command goes on from there", cause.text);
    directory_unmake(r->output.directory, r->output.existing); // unless something is kept in it
}

int corpus_run(const CorpusRunOptions *options, CorpusResult *result, Error *err) {
    Run r = {.options = options, .output.lock = -1};
    *result = (CorpusResult){0};
    int status = EXIT_BAD_INPUT;
    if (set_up(&r, err) && corpus_output_claim(&r.output, options->output, err)) status = run_claimed(&r, err);
    corpus_writer_free(r.writer); // before the directory may go: closes its shards
    tidy_up(&r, status, err);
    if (status == EXIT_OK) take_result(&r, result);
    forget_state(&r);
    corpus_output_release(&r.output);
    cJSON_Delete(r.request_json);
    free(r.summaries);
    return status;
}

void corpus_result_free(CorpusResult *result) { bad_report_clear(&result->counts.bad); }
