// Weights and moments between a model and the safetensors files of a checkpoint, in chunks of rows, so that host
// memory stays small whatever the model; only a matrix that must be turned is held as a whole.
#include "llmc/store/atomic_file.h"
#include "llmc/store/checkpoint_parts.h"
#include "llmc/store/safetensors.h"
#include "llmc/store/transpose.h"
#include "llmc/store/weights_file.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

// 8 MiB: large against the cost of a call, small against any model. A row has at most 4 C = 262,144 floats, 1 MiB.
enum { CHUNK_FLOATS = 2 << 20 };

static int64_t rows_per_chunk(const Parameter *p) { return CHUNK_FLOATS / p->cols; }

static int64_t min_i64(int64_t a, int64_t b) { return a < b ? a : b; }

static float *allocate_floats(int64_t n) {
    float *values = malloc((size_t)n * sizeof *values);
    REQUIRE(values != NULL, "no memory for %lld floats of a checkpoint", (long long)n);
    return values;
}

static SafetensorsEntry describe(const Parameter *p, const char *prefix, bool transposed) {
    SafetensorsEntry e = {.dtype = DTYPE_FP32, .rank = p->rank, .shape = {p->file_rows, p->rank == 2 ? p->cols : 0}};
    if (transposed) e.shape[0] = p->cols, e.shape[1] = p->file_rows;
    snprintf(e.name, sizeof e.name, "%s%s", prefix, p->name);
    return e;
}

// ----------------------------------------------------------------------------------------------------------- writing

// Tensor i as it stands with us.
static bool append_rows(SafetensorsWriter *w, const Gpt2 *model, int i, StateKind kind, Error *err) {
    const Parameter *p = &gpt2_parameters(model)[i];
    float *chunk = allocate_floats(min_i64(CHUNK_FLOATS, p->file_rows * p->cols));
    bool ok = true;
    for (int64_t row = 0; ok && row < p->file_rows; row += rows_per_chunk(p)) {
        int64_t n = min_i64(rows_per_chunk(p), p->file_rows - row);
        gpt2_get_state(model, i, kind, row, n, chunk);
        ok = safetensors_writer_append(w, chunk, (size_t)(n * p->cols) * sizeof *chunk, err);
    }
    free(chunk);
    return ok;
}

// Weight i (out, in) as (in, out).
static bool append_transposed(SafetensorsWriter *w, const Gpt2 *model, int i, Error *err) {
    const Parameter *p = &gpt2_parameters(model)[i];
    const int64_t out = p->rows, in = p->cols;
    float *matrix = allocate_floats(out * in), *strip = allocate_floats(TRANSPOSE_STRIP * out);
    gpt2_get_state(model, i, STATE_WEIGHT, 0, out, matrix);
    bool ok = true;
    for (int64_t c = 0; ok && c < in; c += TRANSPOSE_STRIP) {
        int64_t n = min_i64(TRANSPOSE_STRIP, in - c);
        transpose(strip, out, matrix + c, in, out, n);
        ok = safetensors_writer_append(w, strip, (size_t)(n * out) * sizeof *strip, err);
    }
    free(matrix);
    free(strip);
    return ok;
}

static bool finish(SafetensorsWriter *w, bool ok, FileFacts *facts, Error *err) {
    if (ok) return safetensors_writer_commit(w, &facts->bytes, &facts->checksum, err);
    safetensors_writer_abandon(w);
    return false;
}

static SafetensorsEntry *allocate_entries(int count) {
    SafetensorsEntry *entries = calloc((size_t)count, sizeof *entries);
    REQUIRE(entries != NULL, "out of memory");
    return entries;
}

bool checkpoint_write_model(const char *path, const Gpt2 *model, FileFacts *facts, Error *err) {
    static const char *const metadata[] = {"format", "pt", NULL}; // transformers refuses files without it
    const Parameter *table = gpt2_parameters(model);
    int count = gpt2_num_tensors(model);
    SafetensorsEntry *entries = allocate_entries(count);
    for (int i = 0; i < count; i++) entries[i] = describe(&table[i], "", table[i].spec->transposed);
    SafetensorsWriter *w = safetensors_writer_open(path, entries, count, metadata, err);
    free(entries);
    bool ok = w != NULL;
    for (int i = 0; ok && i < count; i++)
        ok = table[i].spec->transposed ? append_transposed(w, model, i, err)
                                       : append_rows(w, model, i, STATE_WEIGHT, err);
    return finish(w, ok, facts, err);
}

// The moments and the names torch gives them.
static const struct {
    StateKind kind;
    const char *prefix;
} moments[] = {{STATE_M, "exp_avg."}, {STATE_V, "exp_avg_sq."}};
enum { NUM_MOMENTS = sizeof moments / sizeof moments[0] };

bool checkpoint_write_optimizer(const char *path, const Gpt2 *model, FileFacts *facts, Error *err) {
    const Parameter *table = gpt2_parameters(model);
    int count = gpt2_num_tensors(model);
    SafetensorsEntry *entries = allocate_entries(NUM_MOMENTS * count);
    for (int k = 0; k < NUM_MOMENTS; k++)
        for (int i = 0; i < count; i++) entries[k * count + i] = describe(&table[i], moments[k].prefix, false);
    SafetensorsWriter *w = safetensors_writer_open(path, entries, NUM_MOMENTS * count, NULL, err);
    free(entries);
    bool ok = w != NULL;
    for (int k = 0; k < NUM_MOMENTS; k++)
        for (int i = 0; ok && i < count; i++) ok = append_rows(w, model, i, moments[k].kind, err);
    return finish(w, ok, facts, err);
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
    float *chunk = allocate_floats(CHUNK_FLOATS);
    bool ok = check_config(weights_file_config(f), &gpt2_options(model)->config, path, err);
    for (int i = 0; ok && i < gpt2_num_tensors(model); i++) {
        const Parameter *p = &gpt2_parameters(model)[i];
        for (int64_t row = 0; ok && row < p->rows; row += rows_per_chunk(p)) {
            int64_t n = min_i64(rows_per_chunk(p), p->rows - row);
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
    SafetensorsEntry expected = describe(p, moments[k].prefix, false);
    const SafetensorsEntry *e = find_moment(f, &expected, err);
    if (!e) return false;
    for (int64_t row = 0; row < p->file_rows; row += rows_per_chunk(p)) {
        int64_t n = min_i64(rows_per_chunk(p), p->file_rows - row);
        if (!safetensors_read_fp32(f, e, row * p->cols, n * p->cols, chunk, err)) return false;
        gpt2_set_state(model, i, moments[k].kind, row, n, chunk);
    }
    int64_t padding = p->rows - p->file_rows; // fewer than VOCAB_PADDING rows: they fit into a chunk
    memset(chunk, 0, (size_t)(padding * p->cols) * sizeof *chunk);
    if (padding > 0) gpt2_set_state(model, i, moments[k].kind, p->file_rows, padding, chunk);
    return true;
}

bool checkpoint_load_moments(Gpt2 *model, const char *path, Error *err) {
    char *name = path_join(path, checkpoint_file_names[CHECKPOINT_OPTIMIZER]);
    SafetensorsFile *f = safetensors_open(name, err);
    bool ok = f != NULL;
    float *chunk = allocate_floats(CHUNK_FLOATS);
    for (int k = 0; k < NUM_MOMENTS; k++)
        for (int i = 0; ok && i < gpt2_num_tensors(model); i++)
            ok = load_moment(model, f, i, k, chunk, err) || error_prefix(err, "%s", name);
    free(chunk);
    safetensors_close(f);
    free(name);
    return ok;
}
