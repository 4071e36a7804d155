// See weights_file.h.
#include "llmc/store/weights_file.h"

#include "llmc/base/arithmetic.h"
#include "llmc/base/path_reason.h"
#include "llmc/model/model_state.h"
#include "llmc/store/huggingface.h"
#include "llmc/store/llmc_bin.h"
#include "llmc/store/weights_form.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

struct WeightsFile {
    char *path;
    ModelConfig config;
    int64_t eot;            // the end-of-text token that the model states, -1: none
    HuggingFace *directory; // one of the two is set
    LlmcBin *bin;
};

WeightsFile *weights_file_open(const char *path, Error *err) {
    struct stat st;
    if (stat(path, &st) != 0) {
        error_set(err, "%s: cannot open the model: %s", path, path_reason(path, errno).text);
        const char *slash = strchr(path, '/');
        if (slash && slash > path && slash[1] && !strchr(slash + 1, '/') && !strchr("./~", *path))
            error_set(err,
                      "%s; a model of huggingface.co is given as the directory that hf download "
                      "makes of it: -e DIR",
                      err->text);
        return NULL;
    }

    WeightsFile *f = calloc(1, sizeof *f);
    REQUIRE_MEMORY(f && (f->path = strdup(path)), "the weights");
    f->eot = -1;
    if (S_ISDIR(st.st_mode))
        f->directory = huggingface_open(path, &f->config, &f->eot, err);
    else
        f->bin = llmc_bin_open(path, &f->config, err);
    if (f->directory || f->bin) return f;
    weights_file_close(f);
    return NULL;
}

void weights_file_close(WeightsFile *f) {
    if (!f) return;
    huggingface_close(f->directory);
    llmc_bin_close(f->bin);
    free(f->path);
    free(f);
}

const ModelConfig *weights_file_config(const WeightsFile *f) { return &f->config; }

int64_t weights_file_eot(const WeightsFile *f) { return f->eot; }

bool weights_file_check_rest(WeightsFile *f, Error *err) {
    if (!f->directory) return true;
    return huggingface_check_rest(f->directory, err);
}

static bool read_file_rows(WeightsFile *f, const Parameter *p, int64_t first, int64_t rows,
                           float *out, Error *err) {
    if (f->directory) return huggingface_read(f->directory, p, first, rows, out, err);
    return llmc_bin_read(f->bin, p, first, rows, out, err);
}

// Without a branch, so that the loop becomes vectors: reading 124M takes as long as without it,
// 0.22 s of one core.
static bool are_finite(const float *values, int64_t n) {
    uint32_t bits, found = 0;
    for (int64_t i = 0; i < n; i++) {
        memcpy(&bits, &values[i], sizeof bits);
        found |= (bits & 0x7F800000u) == 0x7F800000u;
    }
    return !found;
}

// Names the first value that is not finite of n, and its place in the file's matrix.
static bool refuse_not_finite(const WeightsFile *f, const Parameter *p, int64_t first_row,
                              const float *values, Error *err) {
    int64_t i = 0;
    while (isfinite(values[i])) i++;
    int64_t row = first_row + i / p->cols, col = i % p->cols;
    char place[64];
    snprintf(place, sizeof place, "[%lld, %lld]", (long long)row, (long long)col);
    if (f->directory && p->transposed)
        snprintf(place, sizeof place, "[%lld, %lld]", (long long)col, (long long)row);
    if (p->rank == 1) snprintf(place, sizeof place, "[%lld]", (long long)row);
    return error_set(err,
                     "%s: tensor %s has a value that is not finite, %g at %s: the model diverged, "
                     "or overflowed when "
                     "it was saved as fp16; save it in fp32 or bf16, or take an earlier one",
                     f->path, p->name, (double)values[i], place);
}

bool weights_file_read(WeightsFile *f, const Parameter *p, int64_t first_row, int64_t rows,
                       float *out, Error *err) {
    REQUIRE(first_row >= 0 && rows >= 0 && first_row + rows <= p->rows,
            "rows [%lld, %lld) of %s, which has %lld", (long long)first_row,
            (long long)(first_row + rows), p->name, (long long)p->rows);
    // rows of padding follow
    const int64_t in_file = min_i64(max_i64(p->file_rows - first_row, 0), rows);
    memset(out + in_file * p->cols, 0, (size_t)((rows - in_file) * p->cols) * sizeof *out);
    if (in_file == 0) return true;
    return read_file_rows(f, p, first_row, in_file, out, err) &&
           (are_finite(out, in_file * p->cols) || refuse_not_finite(f, p, first_row, out, err));
}

bool weights_file_load(Model *model, const char *path, Error *err) {
    WeightsFile *f = weights_file_open(path, err);
    if (!f) return false;
    float *chunk = malloc(WEIGHTS_PIECE_FLOATS * sizeof *chunk);
    REQUIRE_MEMORY(chunk, "a piece of the weights");

    const ModelConfig *found = &f->config, *expected = &model_options(model)->config;
    char a[MODEL_DESCRIPTOR], b[MODEL_DESCRIPTOR];
    bool ok = true;
    if (model_size(found, DIM_FF) != model_size(expected, DIM_FF) && found->C == expected->C &&
        model_same_block(found, expected))
        ok = error_set(err, "%s: a model of d_ff = %lld, expected %lld", path,
                       (long long)model_size(found, DIM_FF),
                       (long long)model_size(expected, DIM_FF));
    else if (found->L != expected->L || found->C != expected->C || found->NH != expected->NH ||
             found->V != expected->V || found->max_T != expected->max_T ||
             found->d_ff != expected->d_ff || !model_same_block(found, expected))
        ok = error_set(err, "%s: a model of %s, expected %s", path,
                       model_config_descriptor(found, a), model_config_descriptor(expected, b));
    if (ok) ok = weights_file_check_rest(f, err);

    for (int i = 0; ok && i < model_num_tensors(model); i++) {
        const Parameter *p = &model_parameters(model)[i];
        for (int64_t row = 0; ok && row < p->rows; row += weights_piece_rows(p)) {
            int64_t n = min_i64(weights_piece_rows(p), p->rows - row);
            ok = weights_file_read(f, p, row, n, chunk, err);
            if (ok) model_set_weight(model, i, row, n, chunk);
        }
    }

    free(chunk);
    weights_file_close(f);
    return ok;
}

// ------------------------------------------------------------------------------------------ origin

struct WeightsOrigin {
    Model *model;
    WeightsFile *file; // NULL: initial weights
    uint64_t seed;
};

static bool read_origin(void *context, int index, int64_t first_row, int64_t rows, float *out,
                        Error *err) {
    const WeightsOrigin *o = context;
    const Parameter *p = &model_parameters(o->model)[index];
    if (o->file) return weights_file_read(o->file, p, first_row, rows, out, err);
    parameter_init_values(out, &model_options(o->model)->config, p, index, o->seed,
                          first_row * p->cols, rows * p->cols);
    return true;
}

WeightsOrigin *weights_origin_begin(Model *model, const char *path, uint64_t seed, Error *err) {
    WeightsFile *file = path ? weights_file_open(path, err) : NULL;
    if (path && !file) return NULL;
    WeightsOrigin *o = malloc(sizeof *o);
    REQUIRE_MEMORY(o, "the origin of the weights");
    *o = (WeightsOrigin){.model = model, .file = file, .seed = seed};
    model_set_weight_reader(model, read_origin, o);
    return o;
}

void weights_origin_end(WeightsOrigin *o) {
    if (!o) return;
    model_set_weight_reader(o->model, NULL, NULL);
    weights_file_close(o->file);
    free(o);
}
