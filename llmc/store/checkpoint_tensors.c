// The tensors of a checkpoint: writes the moments, reads weights (of any weights file) and moments into a model, in
// pieces of rows, so that host memory stays small whatever the model.
#include "llmc/base/atomic_file.h"
#include "llmc/store/checkpoint_parts.h"
#include "llmc/store/safetensors.h"
#include "llmc/store/state_writer.h"
#include "llmc/store/weights_file.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int64_t min_i64(int64_t a, int64_t b) { return a < b ? a : b; }

static float *allocate_floats(int64_t n) {
    float *values = malloc((size_t)n * sizeof *values);
    REQUIRE(values != NULL, "no memory for %lld floats of a checkpoint", (long long)n);
    return values;
}

static SafetensorsEntry describe(const Parameter *p, const char *prefix) {
    SafetensorsEntry e = {.dtype = DTYPE_FP32, .rank = p->rank, .shape = {p->file_rows, p->rank == 2 ? p->cols : 0}};
    snprintf(e.name, sizeof e.name, "%s%s", prefix, p->name);
    return e;
}

// ----------------------------------------------------------------------------------------------------------- writing

static bool append(void *writer, const void *data, size_t bytes, Error *err) {
    return safetensors_writer_append(writer, data, bytes, err);
}

// The moments and the names torch gives them.
static const struct {
    StateKind kind;
    const char *prefix;
} moments[] = {{STATE_M, "exp_avg."}, {STATE_V, "exp_avg_sq."}};
enum { NUM_MOMENTS = sizeof moments / sizeof moments[0] };

bool checkpoint_write_optimizer(const char *path, const Gpt2 *model, FileFacts *facts, Error *err) {
    const Parameter *table = gpt2_parameters(model);
    const int count = gpt2_num_tensors(model);
    SafetensorsEntry *entries = calloc((size_t)(NUM_MOMENTS * count), sizeof *entries);
    REQUIRE(entries != NULL, "out of memory");
    for (int k = 0; k < NUM_MOMENTS; k++)
        for (int i = 0; i < count; i++) entries[k * count + i] = describe(&table[i], moments[k].prefix);
    SafetensorsWriter *w = safetensors_writer_open(path, entries, NUM_MOMENTS * count, NULL, err);
    free(entries);
    bool ok = w != NULL;
    for (int k = 0; k < NUM_MOMENTS; k++)
        for (int i = 0; ok && i < count; i++)
            ok = state_write(model, i, (StateForm){moments[k].kind, DTYPE_FP32, false}, append, w, err);
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
            if (ok) gpt2_set_state(model, i, STATE_WEIGHT, row, n, chunk);
        }
    }
    free(chunk);
    weights_file_close(f);
    return ok;
}

// The entry of a moment, if it is what we would write.
static const SafetensorsEntry *find_moment(const SafetensorsFile *f, const SafetensorsEntry *expected, Error *err) {
    const SafetensorsEntry *e = safetensors_find(f, expected->name);
    if (!e)
        error_set(err, "tensor %s is missing", expected->name);
    else if (e->dtype == expected->dtype && e->rank == expected->rank &&
             memcmp(e->shape, expected->shape, sizeof e->shape) == 0)
        return e;
    else
        error_set(err, "tensor %s is not the fp32 tensor that the model's shape asks for", expected->name);
    return NULL;
}

static bool load_moment(Gpt2 *model, SafetensorsFile *f, int i, int k, float *chunk, Error *err) {
    const Parameter *p = &gpt2_parameters(model)[i];
    SafetensorsEntry expected = describe(p, moments[k].prefix);
    const SafetensorsEntry *e = find_moment(f, &expected, err);
    if (!e) return false;
    for (int64_t row = 0; row < p->file_rows; row += state_piece_rows(p)) {
        int64_t n = min_i64(state_piece_rows(p), p->file_rows - row);
        if (!safetensors_read_fp32(f, e, row * p->cols, n * p->cols, chunk, err)) return false;
        gpt2_set_state(model, i, moments[k].kind, row, n, chunk);
    }
    int64_t padding = p->rows - p->file_rows; // fewer than VOCAB_PADDING rows: they fit into a chunk
    memset(chunk, 0, (size_t)(padding * p->cols) * sizeof *chunk);
    if (padding > 0) gpt2_set_state(model, i, moments[k].kind, p->file_rows, padding, chunk);
    return true;
}

bool checkpoint_load_moments(Gpt2 *model, const char *path, Error *err) {
    char *name = path_join(path, checkpoint_file_name(CHECKPOINT_OPTIMIZER));
    SafetensorsFile *f = safetensors_open(name, err);
    bool ok = f != NULL;
    float *chunk = allocate_floats(STATE_PIECE_FLOATS);
    for (int k = 0; k < NUM_MOMENTS; k++)
        for (int i = 0; ok && i < gpt2_num_tensors(model); i++)
            ok = load_moment(model, f, i, k, chunk, err) || error_prefix(err, "%s", name);
    free(chunk);
    safetensors_close(f);
    free(name);
    return ok;
}
