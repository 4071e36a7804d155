// See optimizer_file.h. Written and read in pieces, so that host memory stays small whatever the
// model.
#include "llmc/store/optimizer_file.h"

#include "llmc/base/arithmetic.h"
#include "llmc/base/path.h"
#include "llmc/model/model_state.h"
#include "llmc/store/weights_form.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { PIECE_BYTES = WEIGHTS_PIECE_FLOATS * sizeof(float) };

static const char metadata_optimizer[] = "optimizer";

static void *allocate_piece(void) {
    void *piece = malloc(PIECE_BYTES);
    REQUIRE_MEMORY(piece, "a piece of a checkpoint");
    return piece;
}

// The file entry of an optimizer-state tensor; rank 0 means it is not stored. Rows that pad the
// vocabulary are left out if the tensor has a row for each of the parameter's; blocks of 8-bit
// states cross rows, and are stored unchanged.
static SafetensorsEntry state_entry(const Model *model, int index, StateSlot slot) {
    const Parameter *p = &model_parameters(model)[index];
    UpdateTensor update = model_tensors(model)[index];
    const Tensor t = *state_slot_tensor(&update, slot);
    const bool by_row =
        t.rank == p->rank && t.rank > 0 && t.shape[0] == p->rows && t.dtype != DTYPE_U8;
    SafetensorsEntry e = {.dtype = t.dtype};
    if (state_slot_prefix(slot)) e.rank = t.rank;
    for (int i = 0; i < e.rank; i++) e.shape[i] = t.shape[i];
    if (e.rank > 0 && by_row) e.shape[0] = p->file_rows;
    if (e.rank > 0) snprintf(e.name, sizeof e.name, "%s%s", state_slot_prefix(slot), p->name);
    return e;
}

// ----------------------------------------------------------------------------------------- writing

bool optimizer_file_write(const char *path, const Model *model, FileFacts *facts, Error *err) {
    const char *const metadata[] = {metadata_optimizer,
                                    optimizer_name(model_options(model)->optimizer),
                                    SAFETENSORS_PRODUCER, NULL};
    const int tensors = model_num_tensors(model);
    SafetensorsEntry *entries = calloc((size_t)(NUM_STATE_SLOTS * tensors), sizeof *entries);
    REQUIRE_MEMORY(entries != NULL, "the tensors of a checkpoint");

    int count = 0;
    for (int slot = 0; slot < NUM_STATE_SLOTS; slot++)
        for (int i = 0; i < tensors; i++) {
            entries[count] = state_entry(model, i, (StateSlot)slot);
            count += entries[count].rank > 0;
        }

    SafetensorsWriter *w = safetensors_writer_open(path, entries, count, metadata, err);
    free(entries);
    if (!w) return false;

    bool ok = true;
    void *piece = allocate_piece();
    for (int slot = 0; slot < NUM_STATE_SLOTS; slot++)
        for (int i = 0; ok && i < tensors; i++) {
            const SafetensorsEntry e = state_entry(model, i, (StateSlot)slot);
            int64_t bytes = e.rank > 0 ? (int64_t)dtype_size(e.dtype) : 0;
            for (int d = 0; d < e.rank; d++) bytes *= e.shape[d];
            for (int64_t done = 0, n; ok && done < bytes; done += n) {
                n = min_i64(bytes - done, PIECE_BYTES);
                ok = (model_read_state(model, i, (StateSlot)slot, done, n, piece) ||
                      error_set(err, "the state of another process cannot be read")) &&
                     safetensors_writer_append(w, piece, (size_t)n, err);
            }
        }

    free(piece);
    if (ok) return safetensors_writer_commit(w, &facts->bytes, &facts->checksum, err);
    safetensors_writer_abandon(w);
    return false;
}

// ----------------------------------------------------------------------------------------- reading

static bool load_slot(Model *model, SafetensorsFile *f, int i, StateSlot slot, void *piece,
                      Error *err) {
    const SafetensorsEntry expected = state_entry(model, i, slot);
    if (expected.rank == 0) return true;

    const SafetensorsEntry *e = safetensors_find(f, expected.name);
    if (!e) return error_set(err, "tensor %s is missing", expected.name);

    if (e->dtype != expected.dtype || e->rank != expected.rank ||
        memcmp(e->shape, expected.shape, sizeof e->shape) != 0)
        return error_set(err, "tensor %s is not the %s tensor that the model's shape asks for",
                         expected.name, dtype_name(expected.dtype));

    if (slot == SLOT_COMPENSATION) {
        // Splits the value in model.safetensors, which is weight + compensation, again into the
        // pair: if compensation is half a step, the weight could be either neighbour. So the weight
        // becomes the value less compensation, which is exact, because the value was rounded to
        // fp32 by far less than half a step of the weight.
        const Parameter *p = &model_parameters(model)[i];
        const int64_t row_bytes = p->cols * (int64_t)dtype_size(e->dtype);
        for (int64_t row = 0, n; row < p->file_rows; row += n) {
            n = min_i64(weights_piece_rows(p), p->file_rows - row);
            if (!safetensors_read_bytes(f, e, row * row_bytes, n * row_bytes, piece, err))
                return false;
            model_set_compensation(model, i, row, n, piece);
        }
        return true;
    }

    for (int64_t done = 0, n; done < e->bytes; done += n) {
        n = min_i64(e->bytes - done, PIECE_BYTES);
        if (!safetensors_read_bytes(f, e, done, n, piece, err)) return false;
        model_write_state(model, i, slot, done, n, piece);
    }
    return true;
}

bool optimizer_file_load(Model *model, const char *checkpoint, Error *err) {
    char *path = path_join(checkpoint, OPTIMIZER_FILE_NAME);
    SafetensorsFile *f = safetensors_open(path, err);
    const char *stated = f ? safetensors_metadata(f, metadata_optimizer) : NULL;
    OptimizerKind found;

    bool ok = f != NULL;
    if (ok && (!stated || !optimizer_parse(&found, stated, NULL)))
        ok = error_set(err, "its metadata names no optimizer that this version knows");
    if (ok) ok = optimizer_file_check(found, model_options(model)->optimizer, err);

    void *piece = allocate_piece();
    for (int slot = 0; slot < NUM_STATE_SLOTS; slot++)
        for (int i = 0; ok && i < model_num_tensors(model); i++)
            ok = load_slot(model, f, i, (StateSlot)slot, piece, err);
    free(piece);
    if (f && !ok) error_prefix(err, "%s", path);
    safetensors_close(f);
    free(path);
    return ok;
}

bool optimizer_file_check(OptimizerKind saved, OptimizerKind wanted, Error *err) {
    if (saved != wanted)
        return error_set(
            err,
            "has the state of --optimizer %s, but this run uses %s; give --optimizer %s, or "
            "-y weights to start with a new state",
            optimizer_name(saved), optimizer_name(wanted), optimizer_name(saved));
    return true;
}
