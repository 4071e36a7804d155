// See corpus_output.h. The lock is flock(2) on the directory itself: it goes with the process, however that ends. Files
// are moved by rename, one by one in the order of the header; one that is not there any more was moved before.
#include "llmc/text/corpus_output.h"

#include "llmc/base/atomic_file.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <unistd.h>

bool corpus_output_claim(CorpusOutput *o, const char *directory, Error *err) {
    *o = (CorpusOutput){.directory = directory, .staging = path_join(directory, ".tmp-prepare"), .lock = -1};
    o->existing = directory_existing(directory);
    o->journal = path_join(o->staging, "journal.json");
    o->spool = path_join(o->staging, "stdin");
    if (!directory_make(directory, err)) return false;
    int lock = open(directory, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (lock < 0) return error_set(err, "%s: cannot open the directory: %s", directory, strerror(errno));
    if (flock(lock, LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK) { // other errors: no locks on this file system
        close(lock);
        return error_set(err, "%s: another data/prepare is writing there", directory);
    }
    o->lock = lock;
    return directory_make(o->staging, err);
}

void corpus_output_release(CorpusOutput *o) {
    if (o->lock >= 0) close(o->lock);
    free(o->staging), free(o->journal), free(o->spool);
}

bool corpus_output_discard(const CorpusOutput *o, Error *err) {
    return !file_exists(o->staging) || directory_remove(o->staging, err);
}

bool corpus_output_clear(const CorpusOutput *o, Error *err) {
    return corpus_output_discard(o, err) && directory_make(o->staging, err);
}

static int is_shard(const struct dirent *entry) { return is_corpus_shard(entry->d_name); }
static int is_train_shard(const struct dirent *entry) { return is_shard(entry) && entry->d_name[0] == 't'; }
static int is_val_shard(const struct dirent *entry) { return is_shard(entry) && entry->d_name[0] == 'v'; }

bool corpus_output_refuse_old(const CorpusOutput *o, Error *err) {
    struct dirent **old;
    int n = scandir(o->directory, &old, is_shard, alphasort);
    if (n < 0) return error_set(err, "%s: cannot list the directory: %s", o->directory, strerror(errno));
    if (n > 0) {
        error_set(err, "%s: has %d shard%s of an earlier run (%s...); --force replaces them", o->directory, n,
                  n == 1 ? "" : "s", old[0]->d_name);
    }
    for (int i = 0; i < n; i++) free(old[i]);
    free(old);
    return n == 0;
}

static bool move_file(const char *from, const char *to, const char *name, Error *err) {
    char *source = path_join(from, name), *target = path_join(to, name);
    bool ok = rename(source, target) == 0 || errno == ENOENT || // it was moved before an interruption
              error_set(err, "%s: cannot move into place: %s", source, strerror(errno));
    free(source), free(target);
    return ok;
}

static bool remove_file(const char *directory, const char *name, Error *err) {
    char *path = path_join(directory, name);
    bool ok = unlink(path) == 0 || errno == ENOENT || error_set(err, "%s: cannot remove: %s", path, strerror(errno));
    free(path);
    return ok;
}

// Moves the files of `from` that the filter takes into `to`, by name; to NULL: removes them.
static bool each_file(const char *from, const char *to, int (*filter)(const struct dirent *), Error *err) {
    struct dirent **list;
    int n = scandir(from, &list, filter, alphasort);
    if (n < 0) return error_set(err, "%s: cannot list the directory: %s", from, strerror(errno));
    bool ok = true;
    for (int i = 0; i < n; i++) {
        if (ok) ok = to ? move_file(from, to, list[i]->d_name, err) : remove_file(from, list[i]->d_name, err);
        free(list[i]);
    }
    free(list);
    return ok;
}

bool corpus_output_remove_old(const CorpusOutput *o, Error *err) {
    return remove_file(o->directory, "manifest.json", err) && each_file(o->directory, NULL, is_val_shard, err) &&
           each_file(o->directory, NULL, is_train_shard, err);
}

bool corpus_output_move_new(const CorpusOutput *o, Error *err) {
    bool ok = each_file(o->staging, o->directory, is_train_shard, err) &&
              move_file(o->staging, o->directory, "tokenizer.json", err) &&
              each_file(o->staging, o->directory, is_val_shard, err) &&
              move_file(o->staging, o->directory, "manifest.json", err);
    if (!ok) return false;
    fsync(o->lock);
    return corpus_output_discard(o, err);
}
