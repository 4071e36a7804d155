// The tensors of a checkpoint: writes the optimizer's state, reads weights (of any weights file) and that state into a
// model, in pieces, so that host memory stays small whatever the model. Which tensors there are is the business of
// llmc/model/optimizer_state.c.
#include "llmc/base/atomic_file.h"
#include "llmc/base/checked.h"
#include "llmc/store/checkpoint_parts.h"
#include "llmc/store/safetensors.h"
#include "llmc/store/state_writer.h"
#include "llmc/store/weights_file.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static float *allocate_floats(int64_t n) {
    float *values = malloc((size_t)n * sizeof *values);
    REQUIRE_MEMORY(values != NULL, "%lld floats of a checkpoint", (long long)n);
    return values;
}

// How a tensor of the optimizer stands in the file; rank 0: not at all. Rows that pad the vocabulary are left out where
// the tensor has a row for each of the parameter's; blocks of 8-bit states go across rows, and stand there as they are.
static SafetensorsEntry describe(const Parameter *p, Tensor t, StateSlot slot) {
    const bool by_row = t.rank == p->rank && t.rank > 0 && t.shape[0] == p->rows && t.dtype != DTYPE_U8;
    SafetensorsEntry e = {.dtype = t.dtype, .rank = state_slot_prefix(slot) ? t.rank : 0};
    for (int i = 0; i < e.rank; i++) e.shape[i] = i == 0 && by_row ? p->file_rows : t.shape[i];
    if (e.rank > 0) snprintf(e.name, sizeof e.name, "%s%s", state_slot_prefix(slot), p->name);
    return e;
}

// The scales of fp8, all in one; rank 0 without --fp8.
static SafetensorsEntry describe_fp8(Tensor slots) {
    SafetensorsEntry e = {.name = "fp8.slots", .dtype = slots.dtype, .rank = slots.rank};
    if (slots.rank > 0) e.shape[0] = slots.shape[0];
    return e;
}

static Tensor slot_tensor(const Gpt2 *model, int index, int slot) {
    UpdateTensor t = gpt2_tensors(model)[index];
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

static bool append_tensor(SafetensorsWriter *w, const Gpt2 *model, Tensor t, int64_t bytes, void *piece, Error *err) {
    for (int64_t done = 0, n; done < bytes; done += n) {
        n = min_i64(bytes - done, PIECE_BYTES);
        gpt2_read_bytes(model, t, done, n, piece);
        if (!safetensors_writer_append(w, piece, (size_t)n, err)) return false;
    }
    return true;
}

// What the file is to hold, in its order; *n of them. Malloced.
static SafetensorsEntry *list_entries(const Gpt2 *model, int *n) {
    const int count = gpt2_num_tensors(model);
    SafetensorsEntry *entries = calloc((size_t)(NUM_STATE_SLOTS * count + 1), sizeof *entries);
    REQUIRE_MEMORY(entries != NULL, "the tensors of a checkpoint");
    *n = 0;
    for (int slot = 0; slot < NUM_STATE_SLOTS; slot++)
        for (int i = 0; i < count; i++) {
            entries[*n] = describe(&gpt2_parameters(model)[i], slot_tensor(model, i, slot), (StateSlot)slot);
            *n += entries[*n].rank > 0;
        }
    entries[*n] = describe_fp8(gpt2_fp8_slots(model));
    *n += entries[*n].rank > 0;
    return entries;
}

static bool append_all(SafetensorsWriter *w, const Gpt2 *model, void *piece, Error *err) {
    const Tensor fp8 = gpt2_fp8_slots(model);
    bool ok = true;
    for (int slot = 0; slot < NUM_STATE_SLOTS; slot++)
        for (int i = 0; ok && i < gpt2_num_tensors(model); i++) {
            const Tensor t = slot_tensor(model, i, slot);
            const SafetensorsEntry e = describe(&gpt2_parameters(model)[i], t, (StateSlot)slot);
            if (e.rank > 0) ok = append_tensor(w, model, t, entry_bytes(&e), piece, err);
        }
    return ok && (fp8.rank == 0 || append_tensor(w, model, fp8, (int64_t)tensor_bytes(fp8), piece, err));
}

static const char metadata_optimizer[] = "optimizer";

bool checkpoint_write_optimizer(const char *path, const Gpt2 *model, FileFacts *facts, Error *err) {
    const char *const metadata[] = {metadata_optimizer, optimizer_name(gpt2_options(model)->optimizer), NULL};
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
        found->max_T == expected->max_T)
        return true;
    return error_set(err,
                     "%s: a model of L=%lld,C=%lld,NH=%lld,V=%lld,T=%lld, expected L=%lld,C=%lld,NH=%lld,V=%lld,T=%lld",
                     path, (long long)found->L, (long long)found->C, (long long)found->NH, (long long)found->V,
                     (long long)found->max_T, (long long)expected->L, (long long)expected->C, (long long)expected->NH,
                     (long long)expected->V, (long long)expected->max_T);
}

bool checkpoint_load_weights(Gpt2 *model, const char *path, Error *err) {
    WeightsFile *f = weights_file_open(path, err);
    if (!f) return false;
    float *chunk = allocate_floats(STATE_PIECE_FLOATS);
    bool ok = check_config(weights_file_config(f), &gpt2_options(model)->config, path, err);
    for (int i = 0; ok && i < gpt2_num_tensors(model); i++) {
        const Parameter *p = &gpt2_parameters(model)[i];
        for (int64_t row = 0; ok && row < p->rows; row += state_piece_rows(p)) {
            int64_t n = min_i64(state_piece_rows(p), p->rows - row);
            ok = weights_file_read(f, p, row, n, chunk, err);
            if (ok) gpt2_set_weight(model, i, row, n, chunk);
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

static bool load_bytes(Gpt2 *model, SafetensorsFile *f, const SafetensorsEntry *e, Tensor t, void *piece, Error *err) {
    for (int64_t done = 0, n; done < e->bytes; done += n) {
        n = min_i64(e->bytes - done, PIECE_BYTES);
        if (!safetensors_read_bytes(f, e, done, n, piece, err)) return false;
        gpt2_write_bytes(model, t, done, n, piece);
    }
    return true;
}

// What rounding took from a weight decides how the pair stands for its value, which is all that model.safetensors
// holds: where lost is half a step, the weight may be either neighbour. So the weight becomes the value less what was
// lost, which is exact: the value was rounded to fp32, by far less than half a step of the weight.
static void set_lost(Gpt2 *model, int i, int64_t first_row, int64_t rows, const void *lost, float *values,
                     float *taken) {
    const UpdateTensor *t = &gpt2_tensors(model)[i];
    const int64_t cols = gpt2_parameters(model)[i].cols, first = first_row * cols, n = rows * cols;
    const int64_t size = (int64_t)dtype_size(t->lost.dtype);
    gpt2_get_weight(model, i, first_row, rows, values);
    convert_elements(taken, DTYPE_FP32, lost, t->lost.dtype, n);
    for (int64_t k = 0; k < n; k++) values[k] -= taken[k];
    convert_elements(taken, t->weight.dtype, values, DTYPE_FP32, n);
    gpt2_write_bytes(model, t->weight, first * size, n * size, taken);
    gpt2_write_bytes(model, t->lost, first * size, n * size, lost);
}

static bool load_lost(Gpt2 *model, SafetensorsFile *f, const SafetensorsEntry *e, int i, void *piece, Error *err) {
    const Parameter *p = &gpt2_parameters(model)[i];
    const int64_t row_bytes = p->cols * (int64_t)dtype_size(e->dtype);
    float *values = allocate_floats(STATE_PIECE_FLOATS), *taken = allocate_floats(STATE_PIECE_FLOATS);
    bool ok = true;
    for (int64_t row = 0, n; ok && row < p->file_rows; row += n) {
        n = min_i64(state_piece_rows(p), p->file_rows - row);
        ok = safetensors_read_bytes(f, e, row * row_bytes, n * row_bytes, piece, err);
        if (ok) set_lost(model, i, row, n, piece, values, taken);
    }
    gpt2_weights_changed(model);
    free(values);
    free(taken);
    return ok;
}

static bool load_state(Gpt2 *model, SafetensorsFile *f, int i, int slot, void *piece, Error *err) {
    const Tensor t = slot_tensor(model, i, slot);
    const SafetensorsEntry expected = describe(&gpt2_parameters(model)[i], t, (StateSlot)slot);
    if (expected.rank == 0) return true;
    const SafetensorsEntry *e = find_state(f, &expected, err);
    if (!e) return false;
    return slot == SLOT_LOST ? load_lost(model, f, e, i, piece, err) : load_bytes(model, f, e, t, piece, err);
}

// A run that takes up fp8 at a checkpoint finds no scales there: they begin anew.
static bool load_fp8(Gpt2 *model, SafetensorsFile *f, void *piece, Error *err) {
    const Tensor slots = gpt2_fp8_slots(model);
    const SafetensorsEntry expected = describe_fp8(slots);
    if (slots.rank == 0 || !safetensors_find(f, expected.name)) return true;
    const SafetensorsEntry *e = find_state(f, &expected, err);
    return e && load_bytes(model, f, e, slots, piece, err);
}

// Checkpoints that do not say are older than the choice: AdamW's.
static bool check_optimizer(const Gpt2 *model, const SafetensorsFile *f, Error *err) {
    const char *stated = safetensors_metadata(f, metadata_optimizer);
    OptimizerKind found = OPTIMIZER_ADAMW;
    if (stated && !optimizer_parse(&found, stated, NULL))
        return error_set(err, "the optimizer that its metadata name is none that this version knows");
    return checkpoint_check_optimizer(found, gpt2_options(model)->optimizer, err);
}

bool checkpoint_load_moments(Gpt2 *model, const char *path, Error *err) {
    char *name = path_join(path, checkpoint_file_name(CHECKPOINT_OPTIMIZER));
    SafetensorsFile *f = safetensors_open(name, err);
    void *piece = allocate_piece();
    bool ok = f && (check_optimizer(model, f, err) || error_prefix(err, "%s", name));
    for (int slot = 0; slot < NUM_STATE_SLOTS; slot++)
        for (int i = 0; ok && i < gpt2_num_tensors(model); i++)
            ok = load_state(model, f, i, slot, piece, err) || error_prefix(err, "%s", name);
    ok = ok && (load_fp8(model, f, piece, err) || error_prefix(err, "%s", name));
    free(piece);
    safetensors_close(f);
    free(name);
    return ok;
}

bool checkpoint_check_optimizer(OptimizerKind saved, OptimizerKind wanted, Error *err) {
    return saved == wanted ||
           error_set(err,
                     "the state of --optimizer %s, and this run is to go on with %s: give --optimizer %s, or "
                     "--reset-optimizer to begin with a new state",
                     optimizer_name(saved), optimizer_name(wanted), optimizer_name(saved));
}
