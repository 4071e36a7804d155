// See corpus_inputs.h. The walk is fts(3)'s, which sorts one directory at a time. Every regular file and every entry
// that cannot be read takes one number, so that a place in the inputs is the same in every walk over the same files.
#include "llmc/text/corpus_inputs.h"

#include <errno.h>
#include <fnmatch.h>
#include <fts.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/stat.h>
#include <xxhash.h>

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
