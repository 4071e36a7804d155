// See corpus_output.h. The lock is flock(2) on DIR itself, which is released when the process ends.
#include "llmc/text/corpus_output.h"

#include "llmc/base/directory.h"
#include "llmc/base/file.h"
#include "llmc/base/format.h"
#include "llmc/base/own_file.h"
#include "llmc/base/path.h"
#include "llmc/base/path_reason.h"
#include "llmc/text/corpus_manifest.h"
#include "llmc/text/directory_role.h"
#include "llmc/text/inputs.h"
#include "llmc/text/tokenizer_json.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

static int is_shard(const struct dirent *entry) { return is_corpus_shard(entry->d_name); }

// Removes the shards in the output directory, last name first, or refuses them.
static bool clear_shards(const CorpusOutput *o, bool refuse, Error *err) {
    struct dirent **old;
    const int n = scandir(o->path, &old, is_shard, alphasort);
    if (n < 0)
        return error_set(err, "%s: cannot list the directory: %s", o->path,
                         path_reason(o->path, errno).text);
    bool ok = n == 0 || !refuse ||
              error_set(err, "%s: has %d shard%s of an earlier run (%s...); --force replaces them",
                        o->path, n, format_plural(n), old[0]->d_name);

    for (int i = n; i-- > 0; free(old[i])) {
        if (!ok || refuse) continue;
        // Removes a shard that states its vocabulary, as ours do, and moves any other file aside.
        char *path = path_join(o->path, old[i]->d_name);
        struct stat st;
        int32_t header[SHARD_FIELD_VOCAB + 1] = {0};
        bool is_foreign = false;
        int unread = 0;
        if (lstat(path, &st) == 0 && !S_ISDIR(st.st_mode)) {
            const int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
            if (fd < 0 || pread(fd, header, sizeof header, 0) < 0) unread = errno;
            if (fd >= 0) close(fd);
            is_foreign = header[0] != SHARD_MAGIC || header[SHARD_FIELD_VOCAB] <= 0;
        }

        if (is_foreign)
            ok = own_file_move_aside(path, "is not a shard of this program", unread, err);
        else
            ok = unlink(path) == 0 ||
                 error_set(err, "%s: cannot remove: %s", path, path_reason(path, errno).text);
        free(path);
    }

    free(old);
    return ok;
}

// Tells whether there is a file, or fails: one that cannot be looked at now is neither there nor
// missing.
static bool look_for(const char *path, bool *is_there, Error *err) {
    struct stat st;
    *is_there = lstat(path, &st) == 0;
    if (!*is_there && errno != ENOENT)
        return error_set(err, "%s: cannot be read now: %s", path, path_reason(path, errno).text);
    return true;
}

// Removes tokenizer.json if it was moved there, or is that of the corpus which was being replaced.
// False: it is still there.
static bool remove_tokenizer(const CorpusOutput *o) {
    if (file_exists(o->tokenizer) && !file_exists(o->replaced)) return true; // it is of others
    char *tokenizer = path_join(o->path, "tokenizer.json");
    const bool ok = unlink(tokenizer) == 0 || errno == ENOENT;
    free(tokenizer);
    return ok;
}

bool corpus_output_claim(CorpusOutput *o, const char *path, bool force, Error *err) {
    char *staging = path_join(path, ".tmp-prepare");
    *o = (CorpusOutput){.path = path,
                        .staging = staging,
                        .manifest = path_join(staging, "manifest.json"),
                        .tokenizer = path_join(staging, "tokenizer.json"),
                        .replaced = path_join(staging, "replaced.json"),
                        .existing = directory_existing(path),
                        .lock = -1};

    char *model = directory_model_file(o->path);
    if (model)
        error_set(
            err,
            "%s: a model is there (%s), whose files a corpus would replace; name another directory",
            o->path, model);
    free(model);
    if (model || !directory_make(o->path, err)) return false;

    o->lock = open(o->path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (o->lock < 0)
        return error_set(err, "%s: cannot open the directory: %s", o->path,
                         path_reason(o->path, errno).text);
    // other errors: no locks on this file system
    if (flock(o->lock, LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK) {
        close(o->lock);
        o->lock = -1;
        return error_set(err, "%s: another data/prepare is writing there", o->path);
    }

    // A run that was killed while it moved files has left a manifest in staging only.
    char *manifest = path_join(o->path, "manifest.json");
    bool is_published, is_complete, ok = look_for(manifest, &is_published, err);
    if (ok) ok = look_for(o->manifest, &is_complete, err);
    free(manifest);
    o->is_moving = !ok || (is_complete && !is_published);
    if (ok && o->is_moving) {
        (void)remove_tokenizer(o);
        ok = clear_shards(o, false, err);
        if (ok) ok = directory_sync(o->path, err);
        o->is_moving = !ok;
    } else if (ok && !force) {
        ok = clear_shards(o, true, err);
    }

    if (ok && file_exists(o->staging)) ok = directory_remove(o->staging, err);
    if (!ok) return false;
    return directory_make(o->staging, err);
}

static bool move_file(char *from, char *to, Error *err) {
    const bool ok = rename(from, to) == 0 || error_set(err, "%s: cannot move into place: %s", from,
                                                       path_reason(to, errno).text);
    free(from);
    free(to);
    return ok;
}

static bool move_side(const CorpusOutput *o, const CorpusWriter *writer, CorpusSide side,
                      Error *err) {
    for (int64_t i = 0; i < writer->side[side].count; i++)
        if (!move_file(corpus_shard_path(o->staging, side, i), corpus_shard_path(o->path, side, i),
                       err))
            return false;
    return true;
}

// Tells whether two files have the same bytes.
static bool is_same_file(const char *a, const char *b) {
    int64_t bytes[2];
    uint64_t checksums[2];
    return file_checksum(a, &bytes[0], &checksums[0], NULL) &&
           file_checksum(b, &bytes[1], &checksums[1], NULL) && bytes[0] == bytes[1] &&
           checksums[0] == checksums[1];
}

// Makes way for the tokenizer: that of an earlier corpus of ours is replaced; one that is there by
// itself, whoever made it, is moved aside, unless it is the same.
static bool make_way_for_tokenizer(const CorpusOutput *o, const char *manifest,
                                   const char *tokenizer, Error *err) {
    struct stat st;
    if (own_file_is(manifest, CORPUS_MANIFEST_MARK))
        return own_file_make_way(tokenizer, TOKENIZER_MARK, err);
    if (stat(tokenizer, &st) != 0 || !S_ISREG(st.st_mode))
        return own_file_make_way(tokenizer, TOKENIZER_MARK, err);
    if (!is_same_file(tokenizer, o->tokenizer))
        return own_file_move_aside(tokenizer, "is another tokenizer, and of no corpus here", 0,
                                   err);
    return true;
}

// Moves the manifest of an earlier corpus to staging, where it tells that tokenizer.json may be
// removed.
static bool set_manifest_aside(const CorpusOutput *o, const char *manifest, Error *err) {
    struct stat st;
    const bool is_file = lstat(manifest, &st) == 0 && S_ISREG(st.st_mode);
    const int status = is_file ? rename(manifest, o->replaced) : unlink(manifest);
    if (status == 0 || errno == ENOENT) return true;
    return error_set(err, "%s: cannot remove: %s", manifest, path_reason(manifest, errno).text);
}

// Removes the files of an earlier corpus, manifest first and training shards last, then moves in
// the new ones, training shards first and manifest last. A mixture of the two has no manifest: also
// after a loss of power, because each manifest goes or comes in a step of its own.
bool corpus_output_publish(CorpusOutput *o, const CorpusWriter *writer, Error *err) {
    char *manifest = path_join(o->path, "manifest.json"),
         *tokenizer = path_join(o->path, "tokenizer.json");
    o->is_moving = make_way_for_tokenizer(o, manifest, tokenizer, err) &&
                   own_file_make_way(manifest, CORPUS_MANIFEST_MARK, err) &&
                   set_manifest_aside(o, manifest, err) && directory_sync(o->path, err) &&
                   clear_shards(o, false, err);

    const bool is_moved = o->is_moving && move_side(o, writer, CORPUS_TRAIN, err) &&
                          move_file(strdup(o->tokenizer), strdup(tokenizer), err) &&
                          move_side(o, writer, CORPUS_VAL, err) && directory_sync(o->path, err) &&
                          move_file(strdup(o->manifest), strdup(manifest), err);

    free(tokenizer);
    free(manifest);

    // Takes back what was moved. If that fails too, the next claim does it: the manifest in staging
    // says so.
    if (!is_moved) {
        const bool is_removed = remove_tokenizer(o);
        if (o->is_moving) o->is_moving = !(clear_shards(o, false, NULL) && is_removed);
        return false;
    }
    unlink(o->replaced);
    o->is_moving = false;
    return directory_sync(o->path, err);
}

void corpus_output_release(CorpusOutput *o, bool is_published) {
    if (o->lock >= 0 && !o->is_moving) directory_remove(o->staging, NULL);
    if (o->lock >= 0 && !is_published) directory_unmake(o->path, o->existing);
    if (o->lock >= 0) close(o->lock);
    free(o->staging);
    free(o->manifest);
    free(o->tokenizer);
    free(o->replaced);
}
