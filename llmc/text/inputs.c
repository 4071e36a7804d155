// See inputs.h. The walk sorts one directory at a time. (fts(3) is not used: it takes a directory
// that fails while it is read for a shorter one, and without memory it leaves names unsorted or
// crashes.) What was met is remembered by its device and inode, 16 bytes in a table at most half
// full. Standard input that has to be read twice is copied into a file as it comes, packed or not.
// The file is unlinked before anything is in it, so nothing stays behind whatever happens.
#include "llmc/text/inputs.h"
#include "llmc/base/arithmetic.h"
#include "llmc/base/directory.h"
#include "llmc/base/file.h"
#include "llmc/base/format.h"
#include "llmc/base/memory.h"
#include "llmc/base/path.h"
#include "llmc/base/path_reason.h"

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
    int64_t max_depth;
    char path[PATH_MAX]; // of the current file or directory
    bool has_output;     // the output directory exists: output and its device and inode
    struct stat output;
    XXH128_hash_t *seen; // a hash table of what was met
    size_t num_seen, num_slots;
    KindCounts left_out, notes;
};

bool is_corpus_shard(const char *name) {
    return fnmatch("@(train|val)_[0-9][0-9][0-9][0-9][0-9][0-9].bin", name, FNM_EXTMATCH) == 0;
}

InputWalk *inputs_open(const InputOptions *options) {
    InputWalk *w = memory_zeroed(1, sizeof *w);
    w->options = options;
    w->argument = -1;
    w->has_output = options->output && stat(options->output, &w->output) == 0;
    return w;
}

static void leave_directory(InputWalk *w) {
    const Level *level = &w->levels[--w->depth];
    directory_list_free(level->names, level->count);
}

void inputs_close(InputWalk *w) {
    if (!w) return;
    while (w->depth > 0) leave_directory(w);
    kind_counts_clear(&w->left_out);
    kind_counts_clear(&w->notes);
    free(w->seen);
    free(w->levels);
    free(w);
}

// st NULL: the file cannot be read, for the reason in errno.
static int give_file(InputWalk *w, InputFile *file, const char *path, const struct stat *st,
                     bool is_argument) {
    CorpusFormat format = w->options->format;
    if (format == FORMAT_BY_CONTENT &&
        fnmatch("*.@(jsonl|ndjson)?(.gz|.zst)", path, FNM_CASEFOLD | FNM_EXTMATCH) == 0)
        format = FORMAT_LINES;
    const int reason = errno;
    *file =
        (InputFile){.is_argument = is_argument, .format = format, .packing = packing_of_name(path)};
    memcpy(file->path, path, strlen(path) + 1); // at most sizeof w->path, the same
    if (st)
        file->size = (int64_t)st->st_size;
    else
        file->unreadable = reason;
    return 1;
}

bool input_may_be_skipped(int reason) {
    return reason == EACCES || reason == EPERM || reason == ENOENT || reason == ELOOP;
}

// Gives w->path, which cannot be read for the reason in errno, to be counted, or fails.
static int give_unreadable(InputWalk *w, InputFile *file, Error *err) {
    if (w->depth > 0 && input_may_be_skipped(errno))
        return give_file(w, file, w->path, NULL, false);
    error_set(err, "%s: cannot read: %s", w->path, path_reason(w->path, errno).text);
    return -1;
}

// Adds a key to the table of files met. False: it is there already.
static bool put_seen(InputWalk *w, XXH128_hash_t key) {
    if (2 * w->num_seen >= w->num_slots) {
        XXH128_hash_t *old = w->seen;
        const size_t slots = w->num_slots;
        w->num_slots = max_size(2 * slots, 1024);
        w->num_seen = 0;
        w->seen = memory_zeroed((int64_t)w->num_slots, sizeof *w->seen);
        for (size_t i = 0; i < slots; i++)
            if ((old[i].low64 | old[i].high64) != 0) put_seen(w, old[i]);
        free(old);
    }
    size_t at = (size_t)key.low64 & (w->num_slots - 1);
    while ((w->seen[at].low64 | w->seen[at].high64) != 0 && !XXH128_isEqual(w->seen[at], key))
        at = (at + 1) & (w->num_slots - 1);
    const bool is_new = !XXH128_isEqual(w->seen[at], key);
    w->seen[at] = key;
    w->num_seen += is_new;
    return is_new;
}

// Tells whether this file or directory was met before. Size and time are a part of its identity,
// because some file systems over a network give inodes twice.
static bool is_repeated(InputWalk *w, const struct stat *st) {
    int64_t facts[5] = {(int64_t)st->st_dev, (int64_t)st->st_ino};
    if (!S_ISDIR(st->st_mode)) {
        facts[2] = (int64_t)st->st_size;
        facts[3] = (int64_t)st->st_mtim.tv_sec;
        facts[4] = (int64_t)st->st_mtim.tv_nsec;
    }
    return !put_seen(w, XXH3_128bits(facts, sizeof facts));
}

static int pass_over(InputWalk *w, const char *kind) {
    kind_counts_add(&w->left_out, kind, 1, "%s", w->path);
    return 0;
}

// w->path: 1: a file; 0: nothing to read; -1: it must be readable and is not.
static int visit_path(InputWalk *w, InputFile *file, Error *err) {
    const bool is_argument = w->depth == 0;
    struct stat st;
    int failed = is_argument ? 0 : lstat(w->path, &st);
    const bool is_link = !is_argument && failed == 0 && S_ISLNK(st.st_mode);
    if (is_argument || is_link) failed = stat(w->path, &st);
    if (failed != 0) {
        if (is_link && (errno == ENOENT || errno == ENOTDIR || errno == ELOOP))
            return pass_over(w, "link that leads nowhere");
        return give_unreadable(w, file, err);
    }
    const bool is_file = S_ISREG(st.st_mode);
    if (!is_file && !S_ISDIR(st.st_mode)) {
        if (!is_argument) return pass_over(w, "neither a file nor a directory");
        error_set(err, "%s: is neither a file nor a directory", w->path);
        return -1;
    }
    if (is_file && !is_argument && w->levels[w->depth - 1].is_output) { // data/prepare made it
        const char *name = strrchr(w->path, '/') + 1;
        if (is_corpus_shard(name) || fnmatch("@(manifest|tokenizer).json", name, FNM_EXTMATCH) == 0)
            return 0;
    }
    if (is_repeated(w, &st)) return pass_over(w, "read already by another name");
    if (is_link) kind_counts_add(&w->notes, "symbolic link that was followed", 1, "%s", w->path);
    if (is_file) return give_file(w, file, w->path, &st, is_argument);

    char **names; // enters the directory
    int count;
    if (!directory_list(w->path, &names, &count, NULL)) return give_unreadable(w, file, err);
    w->levels = memory_grow(w->levels, &w->max_depth, w->depth + 1, sizeof *w->levels);
    w->levels[w->depth++] = (Level){.names = names,
                                    .count = count,
                                    .length = strlen(w->path),
                                    .is_output = w->has_output && st.st_dev == w->output.st_dev &&
                                                 st.st_ino == w->output.st_ino};
    return 0;
}

// Puts the next name of the directory that is read at the end of w->path. *found: 0, or -1; false:
// there is none.
static bool next_name(InputWalk *w, int *found, Error *err) {
    Level *level = &w->levels[w->depth - 1];
    while (*found == 0 && level->next < level->count) {
        const char *name = level->names[level->next++],
                   *slash = w->path[level->length - 1] != '/' ? "/" : "";
        const size_t room = sizeof w->path - level->length;
        const int n = snprintf(w->path + level->length, room, "%s%s", slash, name);
        if ((size_t)n >= room && !error_set(err, "%.200s...: the path is too long", w->path))
            *found = -1;
        if (name[0] != '.' || *found != 0) return true;
        if (!level->is_output || strncmp(name, ".tmp-", 5) != 0) pass_over(w, "hidden");
    }
    return false;
}

int inputs_next(InputWalk *w, InputFile *file, Error *err) {
    for (;;) {
        int found = 0;
        if (w->depth > 0) {
            if (!next_name(w, &found, err)) {
                leave_directory(w);
                continue;
            }
            if (found == 0) found = visit_path(w, file, err);
        } else {
            if (++w->argument >= w->options->count) return 0;
            const char *argument = w->options->arguments[w->argument];
            const bool is_stdin = strcmp(argument, "-") == 0;
            struct stat st;

            if (is_stdin && !w->options->has_stdin) continue;
            if (is_stdin && fstat(w->options->stdin_fd, &st) != 0) {
                error_set(err, "standard input: %s", strerror(errno));
                return -1;
            }
            if (is_stdin) {
                give_file(w, file, "standard input", &st, true);
                file->is_stdin = true;
                file->packing = w->options->stdin_packing;
                return 1;
            }

            const int n = snprintf(w->path, sizeof w->path, "%s", argument);
            if ((size_t)n >= sizeof w->path) {
                error_set(err, "%.200s...: the path is too long", argument);
                return -1;
            }
            found = visit_path(w, file, err);
        }
        if (found != 0) return found;
    }
}

int input_open(const InputOptions *options, const InputFile *file) {
    char of_stdin[32];
    const char *path = file->path;
    if (file->is_stdin) {
        snprintf(of_stdin, sizeof of_stdin, "/proc/self/fd/%d", options->stdin_fd);
        path = of_stdin;
    }
    return open(path, O_RDONLY | O_CLOEXEC);
}

InputSummary *inputs_summarize(const InputOptions *options, int64_t *total_bytes,
                               KindCounts *left_out, KindCounts *notes, Error *err) {
    InputSummary *summaries = memory_zeroed(options->count, sizeof *summaries);
    InputWalk *w = inputs_open(options);
    InputFile file = {0};
    int found = 1;
    *total_bytes = 0;
    while (found > 0 && (found = inputs_next(w, &file, err)) > 0) {
        InputSummary *s = &summaries[w->argument];
        s->files += !file.unreadable;
        s->bytes += file.size;
        *total_bytes += file.size;
    }
    kind_counts_move(left_out, &w->left_out);
    kind_counts_move(notes, &w->notes);
    inputs_close(w);
    if (found == 0) return summaries;
    free(summaries);
    return NULL;
}

// ---------------------------------------------------------------------------------- standard input

bool inputs_spool_stdin(InputOptions *o, const char *directory, int64_t limit, int64_t *bytes,
                        Error *err) {
    enum { CHUNK = 1 << 20 };
    char *path = path_join(directory, ".tmp-stdin-XXXXXX"), *chunk = malloc(CHUNK);
    unsigned char magic[4];
    int fd = mkostemp(path, O_CLOEXEC);
    bool ok = (fd >= 0 && chunk) ||
              error_set(err, "%s: cannot write: %s", path, path_reason(path, errno).text);

    *bytes = 0;
    if (fd >= 0) {
        unlink(path);
        o->has_stdin = true; // the caller closes it
        o->stdin_fd = fd;
    }

    for (ssize_t got = 1; ok && got > 0 && *bytes < limit; *bytes += got) {
        do got = read(STDIN_FILENO, chunk, CHUNK);
        while (got < 0 && errno == EINTR);
        if (got < 0) {
            ok = error_set(err, "standard input: cannot read: %s", strerror(errno));
            break;
        }
        ok = file_write_all(fd, "standard input", chunk, (size_t)got, err);
    }

    free(path);
    free(chunk);
    if (!ok) return false;

    o->stdin_goes_on = *bytes >= limit;
    const ssize_t n = pread(fd, magic, sizeof magic, 0);
    if (n < 0) return error_set(err, "standard input: cannot be read now: %s", strerror(errno));
    o->stdin_packing = packing_of_bytes(magic, (size_t)n);
    return true;
}
