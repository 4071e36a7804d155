// See checkpoint.h: when a checkpoint is valid, which one is the newest, which ones are removed.
#include "llmc/store/checkpoint.h"

#include "llmc/base/atomic_file.h"
#include "llmc/base/directory.h"
#include "llmc/base/file.h"
#include "llmc/base/format.h"
#include "llmc/base/own_file.h"
#include "llmc/base/path.h"
#include "llmc/base/path_reason.h"
#include "llmc/store/optimizer_file.h"
#include "llmc/store/trainer_json.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static const char manifest_name[] = "trainer.json";
static const char temporary_prefix[] = ".tmp-step_";
static const char probe_prefix[] = ".tmp-probe"; // of directory_check_writable

// "DIR/step_00001000", or the temporary name under which it is written or removed; malloced.
static char *step_path(const char *dir, int64_t step, bool temporary) {
    char name[64];
    snprintf(name, sizeof name, "%s%08lld", temporary ? temporary_prefix : "step_",
             (long long)step);
    return path_join(dir, name);
}

// ------------------------------------------------------------------------------------------ saving

// False if a directory of ours contains foreign files, which must not be removed or hidden. One
// file of ours vouches for the others: files of earlier versions have no marks, and a file that a
// loss of power cut off may have lost its own.
static bool holds_only_ours(const char *directory, Error *err) {
    static const OwnFileKind more[] = {{OPTIMIZER_FILE_NAME, SAFETENSORS_MARK},
                                       {manifest_name, "\"best_val_loss\": "}};
    bool vouched = huggingface_vouches(directory);
    for (int i = 0; i < 2 && !vouched; i++) {
        char *path = path_join(directory, more[i].name);
        vouched = own_file_is(path, more[i].mark);
        free(path);
    }
    if (!huggingface_is_own(directory, more, 2, vouched, err))
        return error_prefix(err, "%s is kept", directory);
    return true;
}

// Removes a directory with a temporary name, left by a write or a removal that has ended. If it
// contains foreign files, it is instead renamed to a visible unused name, such as step_00000001.1.
static void discard(const char *dir, const char *name) {
    char *path = path_join(dir, name), *step = path_join(dir, name + strlen(".tmp-"));
    if (holds_only_ours(path, NULL)) {
        // leftovers that cannot be removed are tried again at the next save
        directory_remove(path, NULL);
    } else if (errno == 0) { // it was read
        char *seen = path_unused(step);
        if (directory_move(path, seen, NULL))
            format_print(
                stderr,
                "a directory with files that this program did not write was renamed to %s\n", seen);
        free(seen);
    }
    free(step);
    free(path);
}

static bool verify(const char *directory, int64_t step, bool checksums, Error *err);

void checkpoint_clean(const char *dir) {
    char **names;
    int count;
    if (!directory_list(dir, &names, &count, NULL)) return;

    for (int i = 0; i < count; i++) {
        char *path = path_join(dir, names[i]);
        if (strncmp(names[i], probe_prefix, strlen(probe_prefix)) == 0) unlink(path);
        if (strncmp(names[i], temporary_prefix, strlen(temporary_prefix)) == 0) {
            // A directory left by a process that was killed. A complete checkpoint gets its name,
            // if that is free. A directory whose files were moved one by one (directory_merge) gets
            // them back: a save moves the manifest out last, a removal moves it in first. The
            // others are discarded.
            const int64_t step = strtoll(names[i] + strlen(temporary_prefix), NULL, 10);
            char *final = step_path(dir, step, false), *manifest = path_join(path, manifest_name);
            if (!file_exists(final)) {
                if (verify(path, step, true, NULL))
                    directory_commit(path, final, manifest_name, NULL);
            } else if (file_exists(manifest) && !verify(final, step, false, NULL) &&
                       holds_only_ours(final, NULL)) {
                directory_merge(path, final, manifest_name, false);
            }
            if (file_exists(path)) discard(dir, names[i]);
            free(manifest);
            free(final);
        }
        free(path);
    }

    directory_list_free(names, count);
}

bool checkpoint_save(const char *dir, const Model *model, const TrainerState *state, Error *err) {
    REQUIRE(model_options(model)->train, "a model without optimizer state has no checkpoint");
    const HuggingFaceModel weights = {.model = model,
                                      .dtype = DTYPE_FP32,
                                      .eot = state->eot,
                                      .tokenizer = state->tokenizer,
                                      .extras = state->extras};
    FileFacts facts[CHECKPOINT_FILES];

    if (!directory_make(dir, err)) return false;
    checkpoint_clean(dir);
    char *temporary = step_path(dir, state->step, true),
         *final = step_path(dir, state->step, false);
    char *optimizer = path_join(temporary, OPTIMIZER_FILE_NAME),
         *manifest = path_join(temporary, manifest_name);

    bool made = mkdir(temporary, 0755) == 0;
    bool ok = made || error_set(err, "%s: cannot make the directory: %s", temporary,
                                path_reason(temporary, errno).text);
    if (ok) ok = huggingface_write(temporary, &weights, facts, err);
    if (ok) ok = optimizer_file_write(optimizer, model, &facts[CHECKPOINT_OPTIMIZER], err);
    if (ok) ok = trainer_json_write(manifest, state, model_options(model), facts, err);
    if (ok) ok = verify(temporary, state->step, true, err);
    if (ok) ok = directory_commit(temporary, final, manifest_name, err);

    // Removes the previous directory of that name, or the files written before a failure, which err
    // already describes.
    if (made && file_exists(temporary)) discard(dir, strrchr(temporary, '/') + 1);
    free(manifest);
    free(optimizer);
    free(temporary);
    free(final);
    return ok;
}

// ----------------------------------------------------------------------------------------- finding

static const char step_prefix[] = "step_", done_prefix[] = "DONE_";

// The step of a name that begins with this prefix, if it is written as we write it.
static bool parse_step(const char *name, const char *prefix, int64_t *step) {
    const size_t n = strlen(prefix);
    char canonical[64];
    if (strncmp(name, prefix, n) != 0 || strlen(name) > n + 18) return false;
    *step = strtoll(name + n, NULL, 10);
    snprintf(canonical, sizeof canonical, "%s%08lld", prefix, (long long)*step);
    return *step >= 0 && strcmp(name, canonical) == 0;
}

static int newest_first(const void *a, const void *b) {
    int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
    if (x > y) return -1;
    return x < y;
}

// The steps of all step_* directories of dir, newest first, malloced. A directory that does not
// exist has none.
static bool list_steps(const char *dir, int64_t **steps, int *count, Error *err) {
    *steps = NULL;
    *count = 0;
    char **names;
    int found;
    if (access(dir, F_OK) != 0 && errno == ENOENT) return true;
    if (!directory_list(dir, &names, &found, err)) return false;
    *steps = malloc((size_t)(found + 1) * sizeof **steps);
    REQUIRE_MEMORY(*steps, "the list of checkpoints");
    for (int i = 0; i < found; i++) {
        int64_t step;
        if (parse_step(names[i], step_prefix, &step)) (*steps)[(*count)++] = step;
    }
    directory_list_free(names, found);
    qsort(*steps, (size_t)*count, sizeof **steps, newest_first);
    return true;
}

// Whether the manifest of a step directory parses and its files have the sizes (and checksums) that
// it states.
static bool verify(const char *directory, int64_t step, bool checksums, Error *err) {
    TrainerState state;
    FileFacts facts[CHECKPOINT_FILES];
    char *manifest = path_join(directory, manifest_name);
    bool ok = trainer_json_read(manifest, &state, facts, err);
    if (ok && state.step != step)
        ok = error_set(err, "%s: written at step %lld, not at this directory's step", manifest,
                       (long long)state.step);

    for (int i = 0; ok && i < CHECKPOINT_FILES; i++) {
        if (facts[i].bytes < 0) continue;
        char *path = path_join(directory, checkpoint_file_name(i));
        struct stat st;
        FileFacts found = facts[i];
        ok = stat(path, &st) == 0 || error_set(err, "%s: %s", path, path_reason(path, errno).text);
        if (ok && (int64_t)st.st_size != facts[i].bytes)
            ok = error_set(err, "%s: %lld bytes, expected %lld", path, (long long)st.st_size,
                           (long long)facts[i].bytes);
        if (ok && checksums) ok = file_checksum(path, &found.bytes, &found.checksum, err);
        if (ok && found.checksum != facts[i].checksum)
            ok = error_set(err, "%s: checksum %016llx, expected %016llx", path,
                           (unsigned long long)found.checksum,
                           (unsigned long long)facts[i].checksum);
        free(path);
    }

    trainer_state_free(&state);
    free(manifest);
    return ok;
}

double checkpoint_newest_bytes(const char *dir) {
    int64_t *steps;
    int count;
    double bytes = 0;
    if (!list_steps(dir, &steps, &count, NULL)) return 0;
    char *newest = count > 0 ? step_path(dir, steps[0], false) : NULL;
    for (int i = 0; newest && i < CHECKPOINT_FILES; i++) {
        char *path = path_join(newest, checkpoint_file_name(i));
        struct stat st;
        if (stat(path, &st) == 0) bytes += (double)st.st_size;
        free(path);
    }
    free(newest);
    free(steps);
    return bytes;
}

bool checkpoint_find_latest(const char *dir, char **path, char **skipped, Error *err) {
    // With these errors a file may be whole: they tell nothing about its content.
    static const int unreadable[] = {EIO,    ESTALE, EINTR,  EAGAIN, ETIMEDOUT,
                                     EACCES, EPERM,  EMFILE, ENFILE, ENOMEM};

    *path = *skipped = NULL;
    error_set(err, "%s", "");
    int64_t *steps;
    int count;
    if (!list_steps(dir, &steps, &count, err)) return false;

    size_t length = 0;
    FILE *lines = text_open(skipped, &length);
    int unread = 0;
    for (int i = 0; i < count; i++) {
        Error reason;
        char *candidate = step_path(dir, steps[i], false);
        errno = 0;
        if (verify(candidate, steps[i], true, &reason)) {
            *path = candidate;
            break;
        }
        const int error = errno;
        for (size_t k = 0; k < sizeof unreadable / sizeof *unreadable; k++)
            if (error == unreadable[k]) unread = error;
        fprintf(lines, "%s%s", i > 0 ? "\n" : "", reason.text);
        free(candidate);
    }

    free(steps);
    fclose(lines);
    if (length == 0) {
        free(*skipped);
        *skipped = NULL;
    }

    if (!*path && unread)
        error_set(err, "%s: its checkpoints cannot be read now: %s", dir, strerror(unread));
    return *path != NULL;
}

bool checkpoint_exists(const char *dir, bool *exists, Error *err) {
    int64_t *steps;
    int count;
    *exists = false;
    if (!list_steps(dir, &steps, &count, err)) return false;
    for (int i = 0; i < count && !*exists; i++) {
        char *directory = step_path(dir, steps[i], false),
             *manifest = path_join(directory, manifest_name);
        *exists = file_exists(manifest);
        free(manifest);
        free(directory);
    }
    free(steps);
    return true;
}

bool checkpoint_load_state(const char *path, TrainerState *state, Error *err) {
    FileFacts facts[CHECKPOINT_FILES];
    char *manifest = path_join(path, manifest_name);
    bool ok = trainer_json_read(manifest, state, facts, err);
    free(manifest);
    return ok;
}

bool checkpoint_set_best_loss(const char *path, const Model *model, double best_val_loss,
                              Error *err) {
    FileFacts facts[CHECKPOINT_FILES];
    TrainerState state;
    char *manifest = path_join(path, manifest_name);
    const bool is_read = trainer_json_read(manifest, &state, facts, err);
    bool ok = is_read;
    if (is_read && state.best_val_loss != best_val_loss) {
        ModelOptions options = *model_options(model);
        options.optimizer = state.optimizer; // -y weights: of the checkpoint, not of this run
        state.best_val_loss = best_val_loss;
        atomic_file_clean(manifest);
        ok = trainer_json_write(manifest, &state, &options, facts, err);
    }
    if (is_read) trainer_state_free(&state);
    free(manifest);
    return ok;
}

// ---------------------------------------------------------------------------------------- rotation

bool checkpoint_rotate(const char *dir, int keep, int64_t major, int64_t last, Error *err) {
    int64_t *steps;
    int count, whole = 0;
    bool ok = true;
    if (keep <= 0) return true;
    checkpoint_clean(dir);
    if (!list_steps(dir, &steps, &count, err)) return false;

    for (int i = 0; i < count; i++) {
        char *path = step_path(dir, steps[i], false);
        // Others are not checkpoints: they do not count, and stay for the user to see.
        const bool counts = steps[i] <= last && verify(path, steps[i], false, NULL);
        if (counts && ++whole > keep && !(major > 0 && steps[i] % major == 0)) {
            // Moves the directory to a temporary name first, durably, so that a kill or a loss of
            // power leaves a name that the next start removes, and not half a checkpoint.
            char *temporary = step_path(dir, steps[i], true);
            Error *first = ok ? err : NULL; // failure: it is reported
            bool removed = holds_only_ours(path, first);
            if (removed && !directory_move(path, temporary, manifest_name))
                removed =
                    error_set(first, "%s: cannot remove: %s", path, path_reason(path, errno).text);
            ok &= removed && directory_sync(dir, first) && directory_remove(temporary, first);
            free(temporary);
        }
        free(path);
    }

    free(steps);
    return ok;
}

// ----------------------------------------------------------------------------------------- the end

bool checkpoint_mark_done(const char *dir, int64_t step, Error *err) {
    char name[64];
    snprintf(name, sizeof name, "%s%08lld", done_prefix, (long long)step);
    char *path = path_join(dir, name);
    const int fd = open(path, O_WRONLY | O_CREAT | O_NOFOLLOW | O_CLOEXEC, 0644);
    const bool ok = fd >= 0 || error_set(err, "%s: cannot create: %s", path, strerror(errno));
    if (fd >= 0) close(fd);
    free(path);
    if (!ok) return false;
    return directory_sync(dir, err);
}

void checkpoint_unmark_done(const char *dir) {
    char **names;
    int count;
    int64_t step;
    if (!directory_list(dir, &names, &count, NULL)) return;
    for (int i = 0; i < count; i++) {
        char *path = path_join(dir, names[i]);
        struct stat st;
        if (parse_step(names[i], done_prefix, &step) && lstat(path, &st) == 0 &&
            S_ISREG(st.st_mode) && st.st_size == 0)
            unlink(path);
        free(path);
    }
    directory_list_free(names, count);
}
