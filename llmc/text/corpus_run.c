// A corpus from its inputs to its shards under their final names. See corpus.h. The order of events: look at the
// inputs, claim the directory, resume an unfinished run or begin, convert (twice if it must be), describe, remove what
// is old, move what is new. From the first journal on, an interruption at any place is made good by the next run.
//
// Inputs: the walk is fts(3)'s, which sorts one directory at a time. Every regular file and every entry that cannot be
// read takes one number, so that a place in the inputs is the same in every walk over the same files.
// Standard input is copied into a file as it comes, packed or not, where it has to be read twice.
// A vocabulary of the corpus: the words are counted a second time if the first division left a side with too little:
// who encodes the corpus later must not decide again, with other numbers.
#include "llmc/text/corpus.h"

#include "llmc/base/atomic_file.h"
#include "llmc/base/checked.h"
#include "llmc/text/corpus_internal.h"
#include "llmc/text/tokenizer_internal.h"

#include <errno.h>
#include <fcntl.h>
#include <fnmatch.h>
#include <fts.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>
#include <xxhash.h>

// -------------------------------------------------------------------------------------------------------------- inputs

struct InputWalk {
    const InputOptions *options;
    int argument; // the current one, -1 before the first
    FTS *fts;     // of the current argument; NULL between arguments
    int64_t next_index;
    bool has_output; // the output directory exists: its place on the disk
    dev_t output_dev;
    ino_t output_ino;
    struct timespec changed; // the last file's
};

bool is_corpus_shard(const char *name) {
    return fnmatch("train_[0-9][0-9][0-9][0-9][0-9][0-9].bin", name, 0) == 0 ||
           fnmatch("val_[0-9][0-9][0-9][0-9][0-9][0-9].bin", name, 0) == 0;
}

bool is_corpus_file(const char *name) {
    return is_corpus_shard(name) || strcmp(name, "manifest.json") == 0 || strcmp(name, "tokenizer.json") == 0;
}

static CorpusFormat format_of_name(const char *path) {
    size_t n = strlen(path);
    if (packing_of_name(path) != PACKED_NOT) n = (size_t)(strrchr(path, '.') - path);
    static const char *const suffixes[] = {".jsonl", ".ndjson"};
    for (size_t i = 0; i < sizeof suffixes / sizeof suffixes[0]; i++) {
        size_t length = strlen(suffixes[i]);
        if (n >= length && strncasecmp(path + n - length, suffixes[i], length) == 0) return FORMAT_LINES;
    }
    return FORMAT_TEXT;
}

static int by_name(const FTSENT **a, const FTSENT **b) { return strcmp((*a)->fts_name, (*b)->fts_name); }

InputWalk *inputs_open(const InputOptions *options, Error *err) {
    InputWalk *w = calloc(1, sizeof *w);
    if (!w) {
        error_set(err, "list of inputs: out of memory");
        return NULL;
    }
    w->options = options;
    w->argument = -1;
    struct stat st;
    if (options->output && stat(options->output, &st) == 0)
        w->has_output = true, w->output_dev = st.st_dev, w->output_ino = st.st_ino;
    return w;
}

void inputs_close(InputWalk *w) {
    if (w && w->fts) fts_close(w->fts);
    free(w);
}

int inputs_argument(const InputWalk *w) { return w->argument; }

static bool is_our_own(const InputWalk *w, const FTSENT *e) {
    return w->has_output && e->fts_level > FTS_ROOTLEVEL && e->fts_parent->fts_dev == w->output_dev &&
           e->fts_parent->fts_ino == w->output_ino && is_corpus_file(e->fts_name);
}

static int give(InputWalk *w, InputFile *file, const char *path, Error *err) {
    if (strlen(path) >= sizeof file->path) return error_set(err, "%.200s...: the path is too long", path), -1;
    *file = (InputFile){.index = w->next_index++, .then_fd = -1};
    memcpy(file->path, path, strlen(path) + 1);
    CorpusFormat stated = w->options->format;
    file->format = stated == FORMAT_BY_NAME ? format_of_name(path) : stated;
    file->packing = packing_of_name(path);
    return 1;
}

// One entry of the walk: 1, it is a file; 0, it is nothing to read; -1, it must be readable and is not.
static int visit(InputWalk *w, FTSENT *e, InputFile *file, Error *err) {
    bool is_argument = e->fts_level == FTS_ROOTLEVEL;
    if (!is_argument && e->fts_name[0] == '.') {
        if (e->fts_info == FTS_D) fts_set(w->fts, e, FTS_SKIP);
        return 0;
    }
    switch (e->fts_info) {
    case FTS_F:
        if (is_our_own(w, e)) return 0;
        if (give(w, file, e->fts_path, err) < 0) return -1;
        file->size = (int64_t)e->fts_statp->st_size;
        file->is_argument = is_argument;
        w->changed = e->fts_statp->st_mtim;
        return 1;
    case FTS_DNR:
    case FTS_ERR:
    case FTS_NS:
    case FTS_SLNONE:
        if (is_argument) return error_set(err, "%s: cannot read: %s", e->fts_path, strerror(e->fts_errno)), -1;
        if (give(w, file, e->fts_path, err) < 0) return -1;
        file->is_unreadable = true;
        return 1;
    case FTS_DEFAULT:
        if (is_argument) return error_set(err, "%s: is neither a file nor a directory", e->fts_path), -1;
        return 0;
    default:
        return 0;
    }
}

static int give_stdin(InputWalk *w, InputFile *file, Error *err) {
    const InputStdin *in = &w->options->standard_input;
    struct stat st;
    if (!in->path) return 0;
    if (stat(in->path, &st) != 0) return error_set(err, "%s: cannot read: %s", in->path, strerror(errno)), -1;
    if (give(w, file, in->path, err) < 0) return -1;
    file->size = (int64_t)st.st_size;
    file->is_argument = true;
    file->packing = in->packing;
    file->then_fd = in->then_fd;
    return 1;
}

static int next_argument(InputWalk *w, InputFile *file, Error *err) {
    char *const roots[] = {w->options->arguments[++w->argument], NULL};
    if (strcmp(roots[0], "-") == 0) return give_stdin(w, file, err);
    w->fts = fts_open(roots, FTS_PHYSICAL | FTS_COMFOLLOW | FTS_NOCHDIR, by_name);
    return w->fts ? 0 : (error_set(err, "%s: cannot read: %s", roots[0], strerror(errno)), -1);
}

int inputs_next(InputWalk *w, InputFile *file, Error *err) {
    for (;;) {
        int found = 0;
        if (!w->fts) {
            if (w->argument + 1 >= w->options->count) return 0;
            found = next_argument(w, file, err);
        } else {
            errno = 0;
            FTSENT *entry = fts_read(w->fts);
            if (entry) {
                found = visit(w, entry, file, err);
            } else if (errno != 0) {
                found = -1;
                error_set(err, "%s: cannot read: %s", w->options->arguments[w->argument], strerror(errno));
            } else {
                fts_close(w->fts);
                w->fts = NULL;
            }
        }
        if (found != 0) return found;
    }
}

bool inputs_summarize(const InputOptions *options, InputSummary *summaries, Error *err) {
    memset(summaries, 0, (size_t)options->count * sizeof *summaries);
    InputWalk *w = inputs_open(options, err);
    InputFile *file = w ? malloc(sizeof *file) : NULL;
    int found = file ? 1 : (error_set(err, "list of inputs: out of memory"), -1);
    while (found > 0 && (found = inputs_next(w, file, err)) > 0) {
        InputSummary *s = &summaries[inputs_argument(w)];
        // Chained: the hash so far is the seed of the next file's.
        const int64_t facts[4] = {file->size, w->changed.tv_sec, w->changed.tv_nsec, file->is_unreadable};
        s->fingerprint = XXH3_64bits_withSeed(file->path, strlen(file->path), s->fingerprint);
        s->fingerprint = XXH3_64bits_withSeed(facts, file->is_unreadable ? 0 : sizeof facts, s->fingerprint);
        s->files += !file->is_unreadable;
        s->bytes += file->size;
    }
    free(file);
    inputs_close(w);
    return found == 0;
}

// ------------------------------------------------------------------------------------------------------ standard input

enum { CHUNK = 1 << 20 };

static ssize_t read_some(int fd, void *out, size_t n) {
    ssize_t got;
    do got = read(fd, out, n);
    while (got < 0 && errno == EINTR);
    return got;
}

static bool write_all(int fd, const char *data, ssize_t n) {
    for (ssize_t done = 0; done < n;) {
        ssize_t put = write(fd, data + done, (size_t)(n - done));
        if (put < 0 && errno != EINTR) return false;
        if (put > 0) done += put;
    }
    return true;
}

static bool copy(int to, const char *path, int64_t limit, char *chunk, InputStdin *in, int64_t *bytes, Error *err) {
    unsigned char magic[4];
    int64_t done = 0;
    while (done < limit) {
        ssize_t got = read_some(STDIN_FILENO, chunk, CHUNK);
        if (got < 0) return error_set(err, "standard input: cannot read: %s", strerror(errno));
        if (got == 0) break;
        for (int64_t i = done; i < 4 && i - done < got; i++) magic[i] = (unsigned char)chunk[i - done];
        if (!write_all(to, chunk, got)) return error_set(err, "%s: cannot write: %s", path, strerror(errno));
        done += got;
    }
    *bytes = done;
    in->path = path;
    in->then_fd = done < limit ? -1 : STDIN_FILENO;
    in->packing = packing_of_bytes(magic, done < 4 ? (size_t)done : 4);
    return true;
}

bool corpus_spool_stdin(const char *path, int64_t limit, InputStdin *in, int64_t *bytes, Error *err) {
    int to = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
    if (to < 0) return error_set(err, "%s: cannot write: %s", path, strerror(errno));
    char *chunk = malloc(CHUNK);
    bool ok = chunk ? copy(to, path, limit, chunk, in, bytes, err) : error_set(err, "standard input: out of memory");
    free(chunk);
    if (close(to) != 0 && ok) ok = error_set(err, "%s: cannot write: %s", path, strerror(errno));
    return ok;
}

// ---------------------------------------------------------------------------------------------------------- vocabulary

typedef struct {
    const VocabularyOptions *options;
    CorpusProgress progress;
} Report;

static bool on_counted(void *user, const CorpusPosition *at, const CorpusCounts *counts, Error *err) {
    (void)err;
    Report *r = user;
    r->progress.bytes_read = at->bytes_read;
    r->progress.tokens = counts->side[CORPUS_TRAIN].tokens + counts->side[CORPUS_VAL].tokens;
    r->options->on_progress(r->options->user, &r->progress);
    return true;
}

static void on_merged(void *user, int64_t tokens) {
    Report *r = user;
    r->progress.stage = STAGE_MERGE;
    r->progress.tokens = tokens;
    r->options->on_progress(r->options->user, &r->progress);
}

static int count_words(Report *r, const Tokenizer *cuts, WordCounts **words, CorpusVocabulary *v, Error *err) {
    const VocabularyOptions *o = r->options;
    word_counts_free(*words);
    bad_report_clear(&v->counts.bad);
    v->counts = (CorpusCounts){0};
    if (!(*words = word_counts_create(err))) return EXIT_RUN_FAILED;
    const CorpusJob job = {.inputs = o->inputs,
                           .tokenizer = cuts,
                           .cuts = cuts,
                           .words = *words,
                           .field = o->field,
                           .val_fraction = o->val_fraction,
                           .cut_all = v->cut_all,
                           .skip_bad = o->skip_bad,
                           .threads = o->threads,
                           .on_written = on_counted,
                           .user = r};
    CorpusPosition position = {0};
    return corpus_convert(&job, NULL, &position, &v->counts, err);
}

static int count_and_merge(Report *r, const Tokenizer *cuts, WordCounts **words, CorpusVocabulary *v, Error *err) {
    const VocabularyOptions *o = r->options;
    int status = count_words(r, cuts, words, v, err);
    if (status == EXIT_OK && v->counts.documents > 0 && corpus_is_lopsided(&v->counts, o->val_fraction)) {
        v->cut_all = true;
        status = count_words(r, cuts, words, v, err);
    }
    if (status != EXIT_OK) return status;
    if (!corpus_check_sides(&v->counts, o->val_fraction, err)) return EXIT_BAD_INPUT;
    const int64_t distinct = word_counts_words(*words), bytes = v->counts.side[CORPUS_TRAIN].bytes;
    v->tokenizer = bpe_train(*words, o->vocab, on_merged, r, err);
    if (!v->tokenizer) return EXIT_RUN_FAILED;
    const int64_t tokens = tokenizer_vocab(v->tokenizer);
    if (tokens == o->vocab) return EXIT_OK;
    error_set(err,
              "the text for training (%" PRId64 " bytes, %" PRId64 " distinct words) gives only %" PRId64
              " tokens, as no other pair occurs twice: take more text, or %s%" PRId64,
              bytes, distinct, tokens, o->option, tokens);
    return EXIT_BAD_INPUT;
}

int corpus_vocabulary(const VocabularyOptions *options, CorpusVocabulary *v, Error *err) {
    Report r = {.options = options,
                .progress = {.stage = STAGE_COUNT, .total_bytes = options->total_bytes, .vocab = options->vocab}};
    WordCounts *words = NULL;
    *v = (CorpusVocabulary){0};
    Tokenizer *cuts = tokenizer_for_cuts(err);
    int status = cuts ? count_and_merge(&r, cuts, &words, v, err) : EXIT_RUN_FAILED;
    word_counts_free(words);
    tokenizer_free(cuts);
    if (status == EXIT_OK) return status;
    tokenizer_free(v->tokenizer);
    v->tokenizer = NULL;
    return status;
}

// ------------------------------------------------------------------------------------------------------------- the run

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
