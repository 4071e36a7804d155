// The files of a corpus. The walk is fts(3)'s, which sorts one directory at a time. Every regular file and every entry
// that cannot be read takes one number, so that a place in the inputs is the same in every walk over the same files.
// Standard input that has to be read twice is copied into a file as it comes, packed or not. The file is unlinked
// before anything is in it, so nothing stays behind whatever happens.
#include "llmc/base/atomic_file.h"
#include "llmc/text/corpus.h"

#include <errno.h>
#include <fcntl.h>
#include <fnmatch.h>
#include <fts.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>

struct InputWalk {
    const InputOptions *options;
    int argument; // the current one, -1 before the first
    FTS *fts;     // of the current argument; NULL between arguments
    int64_t next_index;
    bool has_output; // the output directory exists: output and its device and inode
    struct stat output;
    struct timespec changed; // the last file's
};

bool is_corpus_shard(const char *name) {
    return fnmatch("@(train|val)_[0-9][0-9][0-9][0-9][0-9][0-9].bin", name, FNM_EXTMATCH) == 0;
}

static int by_name(const FTSENT **a, const FTSENT **b) { return strcmp((*a)->fts_name, (*b)->fts_name); }

InputWalk *inputs_open(const InputOptions *options, Error *err) {
    InputWalk *w = calloc(1, sizeof *w);
    if (!w) return error_set(err, "list of inputs: out of memory"), NULL;
    w->options = options;
    w->argument = -1;
    w->has_output = options->output && stat(options->output, &w->output) == 0;
    return w;
}

void inputs_close(InputWalk *w) {
    if (w && w->fts) fts_close(w->fts);
    free(w);
}

// A file that data/prepare made in its output directory.
static bool is_our_own(const InputWalk *w, const FTSENT *e) {
    return w->has_output && e->fts_level > FTS_ROOTLEVEL && e->fts_parent->fts_dev == w->output.st_dev &&
           e->fts_parent->fts_ino == w->output.st_ino &&
           (is_corpus_shard(e->fts_name) || fnmatch("@(manifest|tokenizer).json", e->fts_name, FNM_EXTMATCH) == 0);
}

// st NULL: the file cannot be read.
static int give(InputWalk *w, InputFile *file, const char *path, const struct stat *st, bool is_argument, Error *err) {
    if (strlen(path) >= sizeof file->path) return error_set(err, "%.200s...: the path is too long", path), -1;
    CorpusFormat format = w->options->format;
    if (format == FORMAT_BY_NAME) {
        const bool is_lines = fnmatch("*.@(jsonl|ndjson)?(.gz|.zst)", path, FNM_CASEFOLD | FNM_EXTMATCH) == 0;
        format = is_lines ? FORMAT_LINES : FORMAT_TEXT;
    }
    *file = (InputFile){.index = w->next_index++,
                        .is_argument = is_argument,
                        .is_unreadable = !st,
                        .format = format,
                        .packing = packing_of_name(path)};
    memcpy(file->path, path, strlen(path) + 1);
    if (st) file->size = (int64_t)st->st_size, w->changed = st->st_mtim;
    return 1;
}

bool input_may_be_skipped(int reason) {
    return reason == EACCES || reason == EPERM || reason == ENOENT || reason == ELOOP;
}

// fts takes a directory that fails while it is read for its end; errno still tells.
static bool is_read_failure(int reason) {
    return reason == EIO || reason == ESTALE || reason == EUCLEAN || reason == EBADMSG || reason == ETIMEDOUT ||
           reason == EREMOTEIO;
}

// One entry of the walk: 1: a file; 0: nothing to read; -1: it must be readable and is not.
static int visit(InputWalk *w, FTSENT *e, InputFile *file, Error *err) {
    const bool is_argument = e->fts_level == FTS_ROOTLEVEL;
    if (!is_argument && e->fts_name[0] == '.') {
        if (e->fts_info == FTS_D) fts_set(w->fts, e, FTS_SKIP);
        return 0;
    }
    switch (e->fts_info) {
    case FTS_F:
        return is_our_own(w, e) ? 0 : give(w, file, e->fts_path, e->fts_statp, is_argument, err);
    case FTS_DNR:
    case FTS_ERR:
    case FTS_NS:
    case FTS_SLNONE:
        if (!is_argument && input_may_be_skipped(e->fts_errno)) return give(w, file, e->fts_path, NULL, false, err);
        return error_set(err, "%s: cannot read: %s", e->fts_path, strerror(e->fts_errno)), -1;
    case FTS_DEFAULT:
        if (!is_argument) return 0;
        return error_set(err, "%s: is neither a file nor a directory", e->fts_path), -1;
    default:
        return 0;
    }
}

static int give_stdin(InputWalk *w, InputFile *file, Error *err) {
    struct stat st;
    if (!w->options->has_stdin) return 0;
    if (fstat(w->options->stdin_fd, &st) != 0) return error_set(err, "standard input: %s", strerror(errno)), -1;
    give(w, file, "standard input", &st, true, err);
    file->is_stdin = true, file->packing = w->options->stdin_packing;
    return 1;
}

int inputs_next(InputWalk *w, InputFile *file, Error *err) {
    for (;;) {
        int found = 0;
        FTSENT *entry = NULL;
        errno = 0;
        if (w->fts && (entry = fts_read(w->fts)) && !is_read_failure(errno)) {
            found = visit(w, entry, file, err);
        } else if (errno != 0) {
            return error_set(err, "%s: cannot read: %s", w->options->arguments[w->argument], strerror(errno)), -1;
        } else {
            if (w->fts) fts_close(w->fts);
            w->fts = NULL;
            if (++w->argument >= w->options->count) return 0;
            char *const roots[] = {w->options->arguments[w->argument], NULL};
            if (strcmp(roots[0], "-") == 0)
                found = give_stdin(w, file, err);
            else if (!(w->fts = fts_open(roots, FTS_PHYSICAL | FTS_COMFOLLOW | FTS_NOCHDIR, by_name)))
                return error_set(err, "%s: cannot read: %s", roots[0], strerror(errno)), -1;
        }
        if (found != 0) return found;
    }
}

int input_open(const InputOptions *options, const InputFile *file) {
    char path[32];
    snprintf(path, sizeof path, "/proc/self/fd/%d", options->stdin_fd);
    return open(file->is_stdin ? path : file->path, O_RDONLY | O_CLOEXEC);
}

InputSummary *inputs_summarize(const InputOptions *options, int64_t *total_bytes, Error *err) {
    InputSummary *summaries = calloc((size_t)options->count, sizeof *summaries);
    InputWalk *w = inputs_open(options, err);
    InputFile file;
    int found = summaries && w ? 1 : (error_set(err, "list of inputs: out of memory"), -1);
    *total_bytes = 0;
    while (found > 0 && (found = inputs_next(w, &file, err)) > 0) {
        InputSummary *s = &summaries[w->argument];
        // Chained: the hash so far seeds the next file's hash.
        const int64_t facts[4] = {file.size, w->changed.tv_sec, w->changed.tv_nsec, 0};
        s->fingerprint = XXH3_64bits_withSeed(file.path, strlen(file.path), s->fingerprint);
        s->fingerprint = XXH3_64bits_withSeed(facts, file.is_unreadable ? 0 : sizeof facts, s->fingerprint);
        s->files += !file.is_unreadable;
        s->bytes += file.size, *total_bytes += file.size;
    }
    inputs_close(w);
    if (found < 0) free(summaries), summaries = NULL;
    return summaries;
}

// ------------------------------------------------------------------------------------------------------ standard input

static bool copy_stdin(int to, int64_t limit, char *chunk, size_t size, int64_t *bytes, Error *err) {
    for (ssize_t got = 1; got > 0 && *bytes < limit; *bytes += got) {
        do got = read(STDIN_FILENO, chunk, size);
        while (got < 0 && errno == EINTR);
        if (got < 0) return error_set(err, "standard input: cannot read: %s", strerror(errno));
        if (!file_write_all(to, "standard input", chunk, (size_t)got, err)) return false;
    }
    return true;
}

bool inputs_spool_stdin(InputOptions *o, const char *directory, int64_t limit, int64_t *bytes, Error *err) {
    enum { CHUNK = 1 << 20 };
    char *path = path_join(directory, ".tmp-stdin-XXXXXX"), *chunk = malloc(CHUNK);
    unsigned char magic[4];
    int fd = mkostemp(path, O_CLOEXEC);
    bool ok = (fd >= 0 && chunk) || error_set(err, "%s: cannot write: %s", path, strerror(errno));
    *bytes = 0;
    if (fd >= 0) unlink(path);
    ok = ok && copy_stdin(fd, limit, chunk, CHUNK, bytes, err);
    free(path), free(chunk);
    if (!ok) return fd >= 0 ? close(fd), false : false;
    const ssize_t n = pread(fd, magic, sizeof magic, 0);
    o->has_stdin = true, o->stdin_fd = fd, o->stdin_goes_on = *bytes >= limit;
    o->stdin_packing = packing_of_bytes(magic, n > 0 ? (size_t)n : 0);
    return true;
}
