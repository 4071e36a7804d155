// Checkpoints, see checkpoint.h. First come the tensors: the optimizer's state is written, and weights (of any weights
// file) and that state are read into a model, in pieces, so that host memory stays small whatever the model;
// llmc/model/optimizer_state.c determines which tensors there are. Then come the directories: when a checkpoint is
// valid, which one is the newest, which ones are removed. trainer.json has a file of its own.
#include "llmc/store/checkpoint.h"

#include "llmc/base/arithmetic.h"
#include "llmc/base/directory.h"
#include "llmc/base/file.h"
#include "llmc/base/format.h"
#include "llmc/base/own_file.h"
#include "llmc/base/path.h"
#include "llmc/base/path_reason.h"
#include "llmc/model/model_state.h"
#include "llmc/store/safetensors.h"
#include "llmc/store/weights_file.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

// ------------------------------------------------------------------------------------------------------------- tensors

static float *allocate_floats(int64_t n) {
    float *values = malloc((size_t)n * sizeof *values);
    REQUIRE_MEMORY(values != NULL, "%lld floats of a checkpoint", (long long)n);
    return values;
}

// The file entry of an optimizer-state tensor; rank 0 means it is not stored. Rows that pad the vocabulary are left out
// if the tensor has a row for each of the parameter's; blocks of 8-bit states cross rows, and are stored unchanged.
static SafetensorsEntry describe(const Parameter *p, Tensor t, StateSlot slot) {
    const bool by_row = t.rank == p->rank && t.rank > 0 && t.shape[0] == p->rows && t.dtype != DTYPE_U8;
    SafetensorsEntry e = {.dtype = t.dtype, .rank = state_slot_prefix(slot) ? t.rank : 0};
    for (int i = 0; i < e.rank; i++) e.shape[i] = i == 0 && by_row ? p->file_rows : t.shape[i];
    if (e.rank > 0) snprintf(e.name, sizeof e.name, "%s%s", state_slot_prefix(slot), p->name);
    return e;
}

// The scales of fp8, all in one entry; rank 0 without --fp8.
static SafetensorsEntry describe_fp8(Tensor slots) {
    SafetensorsEntry e = {.name = "fp8.slots", .dtype = slots.dtype, .rank = slots.rank};
    if (slots.rank > 0) e.shape[0] = slots.shape[0];
    return e;
}

static Tensor slot_tensor(const Model *model, int index, int slot) {
    UpdateTensor t = model_tensors(model)[index];
    return *state_slot_tensor(&t, (StateSlot)slot);
}

static int64_t entry_bytes(const SafetensorsEntry *e) {
    int64_t n = (int64_t)dtype_size(e->dtype);
    for (int i = 0; i < e->rank; i++) n *= e->shape[i];
    return n;
}

enum { PIECE_BYTES = STATE_PIECE_FLOATS * sizeof(float) };

static void *allocate_piece(void) { return allocate_floats(STATE_PIECE_FLOATS); }

// ----------------------------------------------------------------------------------------------------------- writing

static bool append_state(SafetensorsWriter *w, const Model *model, int index, StateSlot slot, int64_t bytes,
                         void *piece, Error *err) {
    for (int64_t done = 0, n; done < bytes; done += n) {
        n = min_i64(bytes - done, PIECE_BYTES);
        if (!model_read_state(model, index, slot, done, n, piece))
            return error_set(err, "the state of another process cannot be read");
        if (!safetensors_writer_append(w, piece, (size_t)n, err)) return false;
    }
    return true;
}

static bool append_fp8(SafetensorsWriter *w, const Model *model, Error *err) {
    const Tensor slots = model_fp8_slots(model);
    if (slots.rank == 0) return true;
    void *bytes = malloc(tensor_bytes(slots));
    REQUIRE_MEMORY(bytes, "the scales of fp8");
    model_read_bytes(model, slots, 0, (int64_t)tensor_bytes(slots), bytes);
    const bool ok = safetensors_writer_append(w, bytes, tensor_bytes(slots), err);
    free(bytes);
    return ok;
}

// The entries of the file, in order; *n of them. Malloced.
static SafetensorsEntry *list_entries(const Model *model, int *n) {
    const int count = model_num_tensors(model);
    SafetensorsEntry *entries = calloc((size_t)(NUM_STATE_SLOTS * count + 1), sizeof *entries);
    REQUIRE_MEMORY(entries != NULL, "the tensors of a checkpoint");
    *n = 0;
    for (int slot = 0; slot < NUM_STATE_SLOTS; slot++)
        for (int i = 0; i < count; i++) {
            entries[*n] = describe(&model_parameters(model)[i], slot_tensor(model, i, slot), (StateSlot)slot);
            *n += entries[*n].rank > 0;
        }
    entries[*n] = describe_fp8(model_fp8_slots(model));
    *n += entries[*n].rank > 0;
    return entries;
}

static bool append_all(SafetensorsWriter *w, const Model *model, void *piece, Error *err) {
    bool ok = true;
    for (int slot = 0; slot < NUM_STATE_SLOTS; slot++)
        for (int i = 0; ok && i < model_num_tensors(model); i++) {
            const Tensor t = slot_tensor(model, i, slot);
            const SafetensorsEntry e = describe(&model_parameters(model)[i], t, (StateSlot)slot);
            if (e.rank > 0) ok = append_state(w, model, i, (StateSlot)slot, entry_bytes(&e), piece, err);
        }
    return ok && append_fp8(w, model, err);
}

static const char metadata_optimizer[] = "optimizer";

bool checkpoint_write_optimizer(const char *path, const Model *model, FileFacts *facts, Error *err) {
    const char *const metadata[] = {metadata_optimizer, optimizer_name(model_options(model)->optimizer),
                                    SAFETENSORS_PRODUCER, NULL};
    int n;
    SafetensorsEntry *entries = list_entries(model, &n);
    SafetensorsWriter *w = safetensors_writer_open(path, entries, n, metadata, err);
    free(entries);
    if (!w) return false;
    void *piece = allocate_piece();
    const bool ok = append_all(w, model, piece, err);
    free(piece);
    if (ok) return safetensors_writer_commit(w, &facts->bytes, &facts->checksum, err);
    safetensors_writer_abandon(w);
    return false;
}

// ----------------------------------------------------------------------------------------------------------- reading

static bool check_config(const ModelConfig *found, const ModelConfig *expected, const char *path, Error *err) {
    if (found->L == expected->L && found->C == expected->C && found->NH == expected->NH && found->V == expected->V &&
        found->max_T == expected->max_T && found->d_ff == expected->d_ff)
        return true;
    if (model_size(found, DIM_FF) != model_size(expected, DIM_FF) && found->C == expected->C)
        return error_set(err, "%s: a model of d_ff = %lld, expected %lld", path, (long long)model_size(found, DIM_FF),
                         (long long)model_size(expected, DIM_FF));
    return error_set(err,
                     "%s: a model of L=%lld,C=%lld,NH=%lld,V=%lld,T=%lld, expected L=%lld,C=%lld,NH=%lld,V=%lld,T=%lld",
                     path, (long long)found->L, (long long)found->C, (long long)found->NH, (long long)found->V,
                     (long long)found->max_T, (long long)expected->L, (long long)expected->C, (long long)expected->NH,
                     (long long)expected->V, (long long)expected->max_T);
}

bool checkpoint_load_weights(Model *model, const char *path, Error *err) {
    WeightsFile *f = weights_file_open(path, err);
    if (!f) return false;
    float *chunk = allocate_floats(STATE_PIECE_FLOATS);
    bool ok = check_config(weights_file_config(f), &model_options(model)->config, path, err) &&
              weights_file_check_rest(f, err);
    for (int i = 0; ok && i < model_num_tensors(model); i++) {
        const Parameter *p = &model_parameters(model)[i];
        for (int64_t row = 0; ok && row < p->rows; row += state_piece_rows(p)) {
            int64_t n = min_i64(state_piece_rows(p), p->rows - row);
            ok = weights_file_read(f, p, row, n, chunk, err);
            if (ok) model_set_weight(model, i, row, n, chunk);
        }
    }
    free(chunk);
    weights_file_close(f);
    return ok;
}

static const SafetensorsEntry *find_state(const SafetensorsFile *f, const SafetensorsEntry *expected, Error *err) {
    const SafetensorsEntry *e = safetensors_find(f, expected->name);
    if (!e)
        error_set(err, "tensor %s is missing", expected->name);
    else if (e->dtype == expected->dtype && e->rank == expected->rank &&
             memcmp(e->shape, expected->shape, sizeof e->shape) == 0)
        return e;
    else
        error_set(err, "tensor %s is not the %s tensor that the model's shape asks for", expected->name,
                  dtype_name(expected->dtype));
    return NULL;
}

static bool load_slot(Model *model, SafetensorsFile *f, const SafetensorsEntry *e, int i, StateSlot slot, void *piece,
                      Error *err) {
    for (int64_t done = 0, n; done < e->bytes; done += n) {
        n = min_i64(e->bytes - done, PIECE_BYTES);
        if (!safetensors_read_bytes(f, e, done, n, piece, err)) return false;
        model_write_state(model, i, slot, done, n, piece);
    }
    return true;
}

// Splits the value in model.safetensors, which is weight + compensation, again into the pair: if compensation is half a
// step, the weight could be either neighbour. So the weight becomes the value less compensation, which is exact,
// because the value was rounded to fp32 by far less than half a step of the weight.
static bool load_compensation(Model *model, SafetensorsFile *f, const SafetensorsEntry *e, int i, void *piece,
                              Error *err) {
    const Parameter *p = &model_parameters(model)[i];
    const int64_t row_bytes = p->cols * (int64_t)dtype_size(e->dtype);
    for (int64_t row = 0, n; row < p->file_rows; row += n) {
        n = min_i64(state_piece_rows(p), p->file_rows - row);
        if (!safetensors_read_bytes(f, e, row * row_bytes, n * row_bytes, piece, err)) return false;
        model_set_compensation(model, i, row, n, piece);
    }
    return true;
}

static bool load_state(Model *model, SafetensorsFile *f, int i, int slot, void *piece, Error *err) {
    const Tensor t = slot_tensor(model, i, slot);
    const SafetensorsEntry expected = describe(&model_parameters(model)[i], t, (StateSlot)slot);
    if (expected.rank == 0) return true;
    const SafetensorsEntry *e = find_state(f, &expected, err);
    if (!e) return false;
    return slot == SLOT_COMPENSATION ? load_compensation(model, f, e, i, piece, err)
                                     : load_slot(model, f, e, i, (StateSlot)slot, piece, err);
}

// A run that turns on fp8 at a checkpoint finds no scales there and starts with new ones.
static bool load_fp8(Model *model, SafetensorsFile *f, Error *err) {
    const Tensor slots = model_fp8_slots(model);
    const SafetensorsEntry expected = describe_fp8(slots);
    if (slots.rank == 0 || !safetensors_find(f, expected.name)) return true;
    const SafetensorsEntry *e = find_state(f, &expected, err);
    if (!e) return false;
    void *bytes = malloc((size_t)e->bytes);
    REQUIRE_MEMORY(bytes, "the scales of fp8");
    const bool ok = safetensors_read_bytes(f, e, 0, e->bytes, bytes, err);
    if (ok) model_write_bytes(model, slots, 0, e->bytes, bytes);
    free(bytes);
    return ok;
}

// Checkpoints that do not state an optimizer are older than the option and contain AdamW's state.
static bool check_optimizer(const Model *model, const SafetensorsFile *f, Error *err) {
    const char *stated = safetensors_metadata(f, metadata_optimizer);
    OptimizerKind found = OPTIMIZER_ADAMW;
    if (stated && !optimizer_parse(&found, stated, NULL))
        return error_set(err, "its metadata name an optimizer that this version does not know");
    return checkpoint_check_optimizer(found, model_options(model)->optimizer, err);
}

bool checkpoint_load_moments(Model *model, const char *path, Error *err) {
    char *name = path_join(path, checkpoint_file_name(CHECKPOINT_OPTIMIZER));
    SafetensorsFile *f = safetensors_open(name, err);
    void *piece = allocate_piece();
    bool ok = f && (check_optimizer(model, f, err) || error_prefix(err, "%s", name));
    for (int slot = 0; slot < NUM_STATE_SLOTS; slot++)
        for (int i = 0; ok && i < model_num_tensors(model); i++)
            ok = load_state(model, f, i, slot, piece, err) || error_prefix(err, "%s", name);
    ok = ok && (load_fp8(model, f, err) || error_prefix(err, "%s", name));
    free(piece);
    safetensors_close(f);
    free(name);
    return ok;
}

bool checkpoint_check_optimizer(OptimizerKind saved, OptimizerKind wanted, Error *err) {
    return saved == wanted ||
           error_set(err,
                     "has the state of --optimizer %s, but this run uses %s; give --optimizer %s, or "
                     "--reset-optimizer to start with a new state",
                     optimizer_name(saved), optimizer_name(wanted), optimizer_name(saved));
}

// --------------------------------------------------------------------------------------------------------- directories

const char *checkpoint_file_name(int file) {
    return file == CHECKPOINT_OPTIMIZER ? "optimizer.safetensors" : huggingface_files[file].name;
}

static const char manifest_name[] = "trainer.json";
static const char temporary_prefix[] = ".tmp-step_";
static const char probe_prefix[] = ".tmp-probe"; // of directory_check_writable

// "DIR/step_00001000", or the temporary name under which it is written or removed; malloced.
static char *step_path(const char *dir, int64_t step, bool temporary) {
    char name[64];
    snprintf(name, sizeof name, "%s%08lld", temporary ? temporary_prefix : "step_", (long long)step);
    return path_join(dir, name);
}

// ------------------------------------------------------------------------------------------------------------ saving

// False if a directory of ours contains foreign files, which must not be removed or hidden. One file of ours vouches
// for the others: those of earlier versions have no marks, and what a loss of power has cut off may have lost its own.
static bool holds_only_ours(const char *directory, Error *err) {
    OwnFileKind kinds[CHECKPOINT_FILES + 1] = {[CHECKPOINT_OPTIMIZER] = {"optimizer.safetensors", SAFETENSORS_MARK},
                                               [CHECKPOINT_FILES] = {manifest_name, "\"best_val_loss\": "}};
    memcpy(kinds, huggingface_files, sizeof huggingface_files);
    bool vouched = false;
    for (int i = 0; i <= CHECKPOINT_FILES && !vouched; i++) {
        char *path = path_join(directory, kinds[i].name);
        vouched = own_file_is(path, kinds[i].mark);
        free(path);
    }
    return own_directory_is(directory, kinds, CHECKPOINT_FILES + 1, vouched, err) ||
           error_prefix(err, "%s is kept", directory);
}

// Removes a directory with a temporary name, left by a write or a removal that has ended. If it contains foreign files,
// it is instead renamed to a visible unused name, such as step_00001000.1.
static void discard(const char *dir, const char *name) {
    char *path = path_join(dir, name), *step = path_join(dir, name + strlen(".tmp-"));
    if (holds_only_ours(path, NULL)) {
        directory_remove(path, NULL); // leftovers that cannot be removed are tried again at the next save
    } else {
        char *seen = path_unused(step);
        if (rename(path, seen) == 0)
            format_print(stderr, "a directory with files that this program did not write was renamed to %s\n", seen);
        free(seen);
    }
    free(step);
    free(path);
}

void checkpoint_clean(const char *dir) {
    char **names;
    int count;
    if (!directory_list(dir, &names, &count, NULL)) return;
    for (int i = 0; i < count; i++) {
        char *path = path_join(dir, names[i]);
        if (strncmp(names[i], temporary_prefix, strlen(temporary_prefix)) == 0) discard(dir, names[i]);
        if (strncmp(names[i], probe_prefix, strlen(probe_prefix)) == 0) unlink(path);
        free(path);
    }
    directory_list_free(names, count);
}

static bool write_parts(const char *directory, const Model *model, const TrainerState *state, Error *err) {
    const HuggingFaceModel weights = {
        .model = model, .dtype = DTYPE_FP32, .eot = state->eot, .tokenizer = state->tokenizer};
    FileFacts facts[CHECKPOINT_FILES];
    char *optimizer = path_join(directory, checkpoint_file_name(CHECKPOINT_OPTIMIZER));
    char *manifest = path_join(directory, manifest_name);
    bool ok = huggingface_write(directory, &weights, facts, err) &&
              checkpoint_write_optimizer(optimizer, model, &facts[CHECKPOINT_OPTIMIZER], err) &&
              trainer_json_write(manifest, state, model_options(model), facts, err);
    free(manifest);
    free(optimizer);
    return ok;
}

bool checkpoint_save(const char *dir, const Model *model, const TrainerState *state, Error *err) {
    REQUIRE(model_options(model)->train, "a model without optimizer state has no checkpoint");
    if (!directory_make(dir, err)) return false;
    checkpoint_clean(dir);
    char *temporary = step_path(dir, state->step, true), *final = step_path(dir, state->step, false);
    bool made = mkdir(temporary, 0755) == 0;
    bool ok =
        made || error_set(err, "%s: cannot make the directory: %s", temporary, path_reason(temporary, errno).text);
    ok = ok && write_parts(temporary, model, state, err) && directory_commit(temporary, final, err);
    // Removes the previous directory of that name, or the files written before a failure, which err already describes.
    if (made && file_exists(temporary)) discard(dir, strrchr(temporary, '/') + 1);
    free(temporary);
    free(final);
    return ok;
}

bool checkpoint_set_best_val_loss(const char *path, const Model *model, double best, Error *err) {
    TrainerState state;
    FileFacts facts[CHECKPOINT_FILES];
    ModelOptions options = *model_options(model);
    char *manifest = path_join(path, manifest_name);
    bool ok = trainer_json_read(manifest, &state, facts, err);
    options.optimizer = state.optimizer, state.best_val_loss = best;
    ok = ok && trainer_json_write(manifest, &state, &options, facts, err);
    trainer_state_free(&state);
    free(manifest);
    return ok;
}

// ----------------------------------------------------------------------------------------------------------- finding

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
    return x > y ? -1 : x < y;
}

// The steps of all step_* directories of dir, newest first, malloced. A directory that does not exist has none.
static bool list_steps(const char *dir, int64_t **steps, int *count, Error *err) {
    *steps = NULL, *count = 0;
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

static bool check_file(const char *directory, const char *name, FileFacts expected, bool checksum, Error *err) {
    char *path = path_join(directory, name);
    struct stat st;
    FileFacts found = expected;
    bool ok = stat(path, &st) == 0 || error_set(err, "%s: %s", path, path_reason(path, errno).text);
    if (ok && (int64_t)st.st_size != expected.bytes)
        ok = error_set(err, "%s: %lld bytes, expected %lld", path, (long long)st.st_size, (long long)expected.bytes);
    if (ok && checksum) ok = file_checksum(path, &found.bytes, &found.checksum, err);
    if (ok && found.checksum != expected.checksum)
        ok = error_set(err, "%s: checksum %016llx, expected %016llx", path, (unsigned long long)found.checksum,
                       (unsigned long long)expected.checksum);
    free(path);
    return ok;
}

// Whether the manifest of a step directory parses and its files have the sizes (and checksums) that it states.
static bool verify(const char *directory, int64_t step, bool checksums, Error *err) {
    TrainerState state;
    FileFacts facts[CHECKPOINT_FILES];
    char *manifest = path_join(directory, manifest_name);
    bool ok = trainer_json_read(manifest, &state, facts, err);
    if (ok && state.step != step)
        ok = error_set(err, "%s: written at step %lld, not at this directory's step", manifest, (long long)state.step);
    for (int i = 0; ok && i < CHECKPOINT_FILES; i++)
        if (facts[i].bytes >= 0) ok = check_file(directory, checkpoint_file_name(i), facts[i], checksums, err);
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
    *path = *skipped = NULL;
    error_set(err, "%s", "");
    int64_t *steps;
    int count;
    if (!list_steps(dir, &steps, &count, err)) return false;
    size_t length = 0;
    FILE *lines = text_open(skipped, &length);
    for (int i = 0; i < count; i++) {
        Error reason;
        char *candidate = step_path(dir, steps[i], false);
        if (verify(candidate, steps[i], true, &reason)) {
            *path = candidate;
            break;
        }
        fprintf(lines, "%s%s", i > 0 ? "\n" : "", reason.text);
        free(candidate);
    }
    free(steps);
    fclose(lines);
    if (length == 0) {
        free(*skipped);
        *skipped = NULL;
    }
    return *path != NULL;
}

bool checkpoint_exists(const char *dir, bool *exists, Error *err) {
    int64_t *steps;
    int count;
    *exists = false;
    if (!list_steps(dir, &steps, &count, err)) return false;
    for (int i = 0; i < count && !*exists; i++) {
        char *directory = step_path(dir, steps[i], false), *manifest = path_join(directory, manifest_name);
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

// ---------------------------------------------------------------------------------------------------------- rotation

// The time at which a checkpoint was written, in nanoseconds.
static int64_t written_at(const char *directory) {
    struct stat st;
    char *manifest = path_join(directory, manifest_name);
    bool ok = stat(manifest, &st) == 0;
    free(manifest);
    return ok ? (int64_t)st.st_mtim.tv_sec * 1000000000 + st.st_mtim.tv_nsec : 0;
}

// The directory is renamed first, and the new name made durable, so that a kill or a loss of power in between leaves a
// temporary directory, not half a checkpoint.
static bool remove_step(const char *dir, int64_t step, Error *err) {
    char *path = step_path(dir, step, false), *temporary = step_path(dir, step, true);
    bool ok = holds_only_ours(path, err);
    if (ok && rename(path, temporary) != 0)
        ok = error_set(err, "%s: cannot remove: %s", path, path_reason(path, errno).text);
    ok = ok && directory_sync(dir, err) && directory_remove(temporary, err);
    free(temporary);
    free(path);
    return ok;
}

bool checkpoint_rotate(const char *dir, int keep, int64_t major, Error *err) {
    if (keep <= 0) return true;
    int64_t *steps, last_written = -1, last_time = -1;
    int count, whole = 0;
    checkpoint_clean(dir);
    if (!list_steps(dir, &steps, &count, err)) return false;
    for (int i = 0; i < count; i++) { // directories that are not checkpoints do not count, and stay for the user to see
        char *path = step_path(dir, steps[i], false);
        int64_t time = written_at(path);
        if (verify(path, steps[i], false, NULL)) {
            if (time > last_time) last_time = time, last_written = steps[i];
            steps[whole++] = steps[i];
        }
        free(path);
    }
    bool ok = true;
    for (int i = keep; i < whole; i++) {
        // After a resume from an older checkpoint, the last one written does not have the highest step, and it may be
        // the only good one.
        if (steps[i] == last_written || (major > 0 && steps[i] % major == 0)) continue;
        if (!remove_step(dir, steps[i], ok ? err : NULL)) ok = false; // the first failure is reported
    }
    free(steps);
    return ok;
}

// ------------------------------------------------------------------------------------------------------------ the end

bool checkpoint_mark_done(const char *dir, int64_t step, Error *err) {
    char name[64];
    snprintf(name, sizeof name, "%s%08lld", done_prefix, (long long)step);
    char *path = path_join(dir, name);
    const int fd = open(path, O_WRONLY | O_CREAT | O_CLOEXEC, 0644);
    const bool ok = fd >= 0 || error_set(err, "%s: cannot create: %s", path, strerror(errno));
    if (fd >= 0) close(fd);
    free(path);
    return ok && directory_sync(dir, err);
}

void checkpoint_unmark_done(const char *dir) {
    char **names;
    int count;
    int64_t step;
    if (!directory_list(dir, &names, &count, NULL)) return;
    for (int i = 0; i < count; i++) {
        char *path = path_join(dir, names[i]);
        struct stat st;
        if (parse_step(names[i], done_prefix, &step) && lstat(path, &st) == 0 && S_ISREG(st.st_mode) && st.st_size == 0)
            unlink(path);
        free(path);
    }
    directory_list_free(names, count);
}
