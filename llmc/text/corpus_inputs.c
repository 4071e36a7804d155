// The files of a corpus. The walk sorts one directory at a time. (fts(3) is not used: it takes a directory that fails
// while it is read for a shorter one, and without memory it leaves names unsorted or crashes.) Every regular file and
// every entry that cannot be read takes one number, so that a place in the inputs is the same in every walk over the
// same files. Standard input that has to be read twice is copied into a file as it comes, packed or not. The file is
// unlinked before anything is in it, so nothing stays behind whatever happens.
#include "llmc/base/atomic_file.h"
#include "llmc/text/corpus.h"

#include <errno.h>
#include <fcntl.h>
#include <fnmatch.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>

// A directory that is being read.
typedef struct {
    char **names;
    int count, next;
    size_t length;  // of its path
    bool is_output; // what data/prepare made in it is left out
} Level;

struct InputWalk {
    const InputOptions *options;
    int argument;  // the current one, -1 before the first
    Level *levels; // the directories from the current argument to the current file
    int depth;
    char path[PATH_MAX]; // of the current file or directory
    int64_t next_index;
    bool has_output; // the output directory exists: output and its device and inode
    struct stat output;
    struct timespec changed; // the last file's
};

bool is_corpus_shard(const char *name) {
    return fnmatch("@(train|val)_[0-9][0-9][0-9][0-9][0-9][0-9].bin", name, FNM_EXTMATCH) == 0;
}

InputWalk *inputs_open(const InputOptions *options, Error *err) {
    InputWalk *w = calloc(1, sizeof *w);
    if (!w) return error_set(err, "list of inputs: out of memory"), NULL;
    w->options = options;
    w->argument = -1;
    w->has_output = options->output && stat(options->output, &w->output) == 0;
    return w;
}

static void leave(InputWalk *w) {
    const Level *level = &w->levels[--w->depth];
    directory_list_free(level->names, level->count);
}

void inputs_close(InputWalk *w) {
    if (!w) return;
    while (w->depth > 0) leave(w);
    free(w->levels);
    free(w);
}

// A file that data/prepare made in its output directory.
static bool is_our_own(const InputWalk *w) {
    const char *slash = strrchr(w->path, '/'), *name = slash ? slash + 1 : w->path;
    return w->depth > 0 && w->levels[w->depth - 1].is_output &&
           (is_corpus_shard(name) || fnmatch("@(manifest|tokenizer).json", name, FNM_EXTMATCH) == 0);
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

static int by_name(const void *a, const void *b) { return strcmp(*(char *const *)a, *(char *const *)b); }

// Enters the directory w->path: 0, or as visit.
static int enter(InputWalk *w, const struct stat *st, InputFile *file, Error *err) {
    char **names;
    int count;
    if (!directory_list(w->path, &names, &count, NULL)) {
        if (w->depth > 0 && input_may_be_skipped(errno)) return give(w, file, w->path, NULL, false, err);
        return error_set(err, "%s: cannot read: %s", w->path, strerror(errno)), -1;
    }
    if (count > 0) qsort(names, (size_t)count, sizeof *names, by_name); // names of none are NULL
    Level *levels = realloc(w->levels, (size_t)(w->depth + 1) * sizeof *levels);
    REQUIRE_MEMORY(levels, "the list of inputs");
    w->levels = levels;
    levels[w->depth++] =
        (Level){.names = names,
                .count = count,
                .length = strlen(w->path),
                .is_output = w->has_output && st->st_dev == w->output.st_dev && st->st_ino == w->output.st_ino};
    return 0;
}

// w->path: 1: a file; 0: nothing to read; -1: it must be readable and is not.
static int visit(InputWalk *w, InputFile *file, Error *err) {
    const bool is_argument = w->depth == 0;
    struct stat st;
    if ((is_argument ? stat : lstat)(w->path, &st) != 0) {
        if (!is_argument && input_may_be_skipped(errno)) return give(w, file, w->path, NULL, false, err);
        return error_set(err, "%s: cannot read: %s", w->path, strerror(errno)), -1;
    }
    if (S_ISREG(st.st_mode)) return is_our_own(w) ? 0 : give(w, file, w->path, &st, is_argument, err);
    if (S_ISDIR(st.st_mode)) return enter(w, &st, file, err);
    if (!is_argument) return 0;
    return error_set(err, "%s: is neither a file nor a directory", w->path), -1;
}

// Puts the next name of the directory that is read at the end of w->path; false: there is none.
static bool next_name(InputWalk *w, int *found, Error *err) {
    Level *level = &w->levels[w->depth - 1];
    while (level->next < level->count && level->names[level->next][0] == '.') level->next++;
    if (level->next == level->count) return false;
    const char *name = level->names[level->next++], *slash = w->path[level->length - 1] == '/' ? "" : "/";
    const size_t room = sizeof w->path - level->length;
    const int n = snprintf(w->path + level->length, room, "%s%s", slash, name);
    *found = (size_t)n < room ? 0 : (error_set(err, "%.200s...: the path is too long", w->path), -1);
    return true;
}

static int give_stdin(InputWalk *w, InputFile *file, Error *err) {
    struct stat st;
    if (!w->options->has_stdin) return 0;
    if (fstat(w->options->stdin_fd, &st) != 0) return error_set(err, "standard input: %s", strerror(errno)), -1;
    give(w, file, "standard input", &st, true, err);
    file->is_stdin = true, file->packing = w->options->stdin_packing;
    return 1;
}

static int next_argument(InputWalk *w, InputFile *file, Error *err) {
    const char *argument = w->options->arguments[w->argument];
    if (strcmp(argument, "-") == 0) return give_stdin(w, file, err);
    const int n = snprintf(w->path, sizeof w->path, "%s", argument);
    if ((size_t)n >= sizeof w->path) return error_set(err, "%.200s...: the path is too long", argument), -1;
    return visit(w, file, err);
}

int inputs_next(InputWalk *w, InputFile *file, Error *err) {
    for (;;) {
        int found = 0;
        if (w->depth == 0) {
            if (++w->argument >= w->options->count) return 0;
            found = next_argument(w, file, err);
        } else if (!next_name(w, &found, err)) {
            leave(w);
        } else if (found == 0) {
            found = visit(w, file, err);
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
    InputFile file = {0};
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
