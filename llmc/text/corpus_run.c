// See corpus_run.h. The order of events: look at the inputs, claim the directory, go on with an unfinished run or
// begin, convert (twice if it must be), describe, remove what is old, move what is new. From the first journal on, an
// interruption at any place is made good by the next run.
#include "llmc/text/corpus_run.h"

#include "llmc/base/atomic_file.h"
#include "llmc/base/clock.h"
#include "llmc/text/corpus_manifest.h"
#include "llmc/text/corpus_output.h"
#include "llmc/text/corpus_pipeline.h"
#include "llmc/text/corpus_spool.h"
#include "llmc/text/corpus_vocabulary.h"
#include "llmc/text/tokenizer_vocabulary.h"

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
    const Tokenizer *tokenizer; // NULL: not trained yet
    Tokenizer *trained, *cuts;  // NULL unless it is trained
    char *trained_path;         // of it in .tmp-prepare
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

// The pipeline and the manifest have the tokenizer from here on.
static void set_tokenizer(Run *r, const Tokenizer *t) {
    r->tokenizer = r->request.tokenizer = r->job.tokenizer = t;
    r->job.cuts = r->cuts ? r->cuts : t;
}

// The writer at the place where r->state is.
static bool open_writer(Run *r, Error *err) {
    const CorpusWriterOptions options = {.directory = r->output.staging,
                                         .token_bytes = corpus_token_bytes(r->tokenizer),
                                         .vocab = tokenizer_vocab(r->tokenizer),
                                         .eot = tokenizer_eot(r->tokenizer),
                                         .shard_tokens = r->options->shard_tokens};
    r->writer = corpus_writer_open(&options, r->state.shards, err);
    if (!r->writer) return false;
    for (CorpusSide side = 0; side < CORPUS_SIDES; side++) free(r->state.shards[side].shards);
    borrow_shards(r);
    return true;
}

// The tokenizer that the unfinished run trained.
static bool open_trained(Run *r, Error *err) {
    if (r->tokenizer) return true;
    size_t bytes;
    char *json = file_read_all(r->trained_path, MAX_TOKENIZER_BYTES, &bytes, err), name[32];
    if (!json) return false;
    snprintf(name, sizeof name, "train:%" PRId64, r->options->vocab);
    r->trained = tokenizer_read_json(name, json, bytes, err);
    free(json);
    if (r->trained) set_tokenizer(r, r->trained);
    return r->trained != NULL;
}

// Takes the unfinished run up where it was, if there is one.
static bool go_on(Run *r) {
    Error why;
    if (r->state.position.bytes_read == 0) return false;
    if (!open_trained(r, &why) || !open_writer(r, &why)) {
        notice(r, "cannot go on with the unfinished run: %s; starting over", why.text);
        return false;
    }
    r->progress.start_bytes = r->state.position.bytes_read;
    notice(r, "going on with an unfinished run, behind %" PRId64 " of %" PRId64 " bytes (%.1f%%)",
           r->progress.start_bytes, r->progress.total_bytes,
           100.0 * (double)r->progress.start_bytes / (double)r->progress.total_bytes);
    return true;
}

// ---------------------------------------------------------------------------------------------------------- conversion

static bool spool_stdin(Run *r, Error *err) {
    if (!r->has_stdin) return true;
    InputStdin *in = &r->job.inputs.standard_input;
    int64_t bytes, limit = INT64_MAX;
    if (r->options->format == FORMAT_LINES && r->tokenizer) limit = STDIN_SPOOL_BYTES;
    if (!corpus_spool_stdin(r->output.spool, limit, in, &bytes, err)) return false;
    r->progress.total_bytes = in->then_fd < 0 ? r->progress.total_bytes + bytes : 0; // 0: nobody knows
    return true;
}

// Trains the tokenizer, and decides how the corpus is divided.
static int train(Run *r, Error *err) {
    const CorpusRunOptions *o = r->options;
    const VocabularyOptions options = {.inputs = r->job.inputs,
                                       .field = o->field,
                                       .val_fraction = o->val_fraction,
                                       .skip_bad = o->skip_bad,
                                       .threads = o->threads,
                                       .vocab = o->vocab,
                                       .option = "--tokenizer train:",
                                       .total_bytes = r->progress.total_bytes,
                                       .on_progress = o->on_progress,
                                       .user = o->user};
    CorpusVocabulary v;
    int status = corpus_vocabulary(&options, &v, err);
    bad_report_clear(&v.counts.bad);
    r->trained = v.tokenizer;
    r->state.cut_all = v.cut_all;
    if (status != EXIT_OK) return status;
    set_tokenizer(r, r->trained);
    return tokenizer_write(r->trained, r->trained_path, err) ? EXIT_OK : EXIT_RUN_FAILED;
}

static int begin(Run *r, Error *err) {
    forget_state(r);
    tokenizer_free(r->trained);
    r->trained = NULL;
    set_tokenizer(r, r->options->tokenizer);
    if (!corpus_output_clear(&r->output, err) || !spool_stdin(r, err)) return EXIT_RUN_FAILED;
    int status = r->options->tokenizer ? EXIT_OK : train(r, err);
    return status == EXIT_OK && !open_writer(r, err) ? EXIT_RUN_FAILED : status;
}

static int convert_once(Run *r, Error *err) {
    r->job.cut_all = r->state.cut_all;
    return corpus_convert(&r->job, r->writer, &r->state.position, &r->state.counts, err);
}

static int convert(Run *r, Error *err) {
    int status = convert_once(r, err);
    bool can_repeat = !r->trained && r->job.inputs.standard_input.then_fd < 0;
    if (status == EXIT_OK && !r->state.cut_all && can_repeat && r->state.counts.documents > 0 &&
        corpus_is_lopsided(&r->state.counts, r->options->val_fraction)) {
        forget_state(r);
        r->state.cut_all = true;
        corpus_writer_free(r->writer);
        status = open_writer(r, err) ? convert_once(r, err) : EXIT_RUN_FAILED;
    }
    if (status == EXIT_OK && !corpus_writer_finish(r->writer, err)) status = EXIT_RUN_FAILED;
    if (r->writer) borrow_shards(r);
    return status;
}

// ----------------------------------------------------------------------------------------------------- the final names

static bool write_descriptions(const Run *r, Error *err) {
    char *tokenizer = path_join(r->output.staging, "tokenizer.json");
    char *manifest = path_join(r->output.staging, "manifest.json");
    bool ok =
        tokenizer_write(r->tokenizer, tokenizer, err) && corpus_manifest_write(manifest, &r->request, &r->state, err);
    free(tokenizer), free(manifest);
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
                                 .vocab = o->vocab,
                                 .field = o->field,
                                 .val_fraction = o->val_fraction,
                                 .shard_tokens = o->shard_tokens};
    set_tokenizer(r, o->tokenizer);
    r->request_json = corpus_request_json(&r->request);
    return o->tokenizer || (r->cuts = tokenizer_for_cuts(err)) != NULL;
}

static int run_claimed(Run *r, Error *err) {
    load_journal(r);
    if (r->state.phase == PHASE_ENCODE) {
        if (!r->options->force && !corpus_output_refuse_old(&r->output, err)) return EXIT_BAD_INPUT;
        int status = go_on(r) ? EXIT_OK : begin(r, err);
        r->last_saved = r->trained ? 0 : now_seconds(); // 0: what was trained is kept from the first block on
        if (status == EXIT_OK) status = convert(r, err);
        if (status != EXIT_OK) return status;
        if (!corpus_check_sides(&r->state.counts, r->options->val_fraction, err)) return EXIT_BAD_INPUT;
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
    if (set_up(&r, err) && corpus_output_claim(&r.output, options->output, err)) {
        r.trained_path = path_join(r.output.staging, "tokenizer.json");
        status = run_claimed(&r, err);
    }
    corpus_writer_free(r.writer); // before the directory may go: closes its shards
    tidy_up(&r, status, err);
    if (status == EXIT_OK) take_result(&r, result);
    forget_state(&r);
    corpus_output_release(&r.output);
    tokenizer_free(r.trained), tokenizer_free(r.cuts), free(r.trained_path);
    cJSON_Delete(r.request_json);
    free(r.summaries);
    return status;
}

void corpus_result_free(CorpusResult *result) { bad_report_clear(&result->counts.bad); }
