// See huggingface.h: reading. Accepts what GPT2LMHeadModel saves: tensor names with and without "transformer.", the
// tied lm_head.weight and the causal mask buffers beside the weights (neither is read), F32, F16 and BF16.
#include "llmc/store/huggingface.h"

#include "llmc/base/atomic_file.h"
#include "llmc/base/json.h"
#include "llmc/store/transpose.h"
#include "llmc/store/weight_shards.h"
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_CONFIG_BYTES = 1 << 20 };

struct HuggingFace {
    WeightShards *shards;
    ModelConfig config;
    int64_t eot; // of config.json, -1: it states none
    int *places; // in shards, of each tensor of the parameter table
    // Hugging Face's (in, out) matrices are turned as a whole, and the last one is kept for the next rows of it.
    float *matrix;
    size_t matrix_numel; // what it has room for
    int matrix_index;    // which tensor it holds, -1: none
};

// ------------------------------------------------------------------------------------------------------- config.json

// An optional field that would change the computation: absent or null is fine, else it must say what we compute.
static bool check_flag(const cJSON *root, const char *key, bool expected, Error *err) {
    const cJSON *item;
    char found[64];
    if (!json_find(root, key, &item, err)) return false;
    if (!item || cJSON_IsNull(item) || (cJSON_IsBool(item) && cJSON_IsTrue(item) == expected)) return true;
    return error_set(err, "\"%s\" is %s, only %s is supported", key, json_describe(item, found, sizeof found),
                     expected ? "true" : "false");
}

static bool check_string(const cJSON *root, const char *key, const char *expected, const char *also, Error *err) {
    const cJSON *item;
    char found[64];
    if (!json_find(root, key, &item, err)) return false;
    if (cJSON_IsString(item) && (strcmp(item->valuestring, expected) == 0 || strcmp(item->valuestring, also) == 0))
        return true;
    return error_set(err, "\"%s\" is %s, expected \"%s\"", key, json_describe(item, found, sizeof found), expected);
}

static bool check_variant(const cJSON *root, int64_t C, Error *err) {
    const cJSON *item;
    double eps;
    int64_t inner;
    if (!json_find(root, "activation_function", &item, err)) return false;
    // Two names of one formula, which is also meant when none is given.
    if (item && !check_string(root, "activation_function", "gelu_new", "gelu_pytorch_tanh", err)) return false;
    if (!check_flag(root, "tie_word_embeddings", true, err) || !check_flag(root, "scale_attn_weights", true, err) ||
        !check_flag(root, "scale_attn_by_inverse_layer_idx", false, err) ||
        !check_flag(root, "add_cross_attention", false, err))
        return false;
    if (!json_find(root, "n_inner", &item, err)) return false;
    if (item && !cJSON_IsNull(item) && !json_get_int(root, "n_inner", 4 * C, 4 * C, &inner, err)) return false;
    if (!json_find(root, "layer_norm_epsilon", &item, err)) return false;
    if (!item) return true; // 1e-5 is what transformers takes then
    if (!json_get_double(root, "layer_norm_epsilon", &eps, err)) return false;
    if (fabs(eps - 1e-5) < 1e-9) return true;
    return error_set(err, "\"layer_norm_epsilon\" is %g, only 1e-05 is supported", eps);
}

static bool parse_config(const cJSON *root, ModelConfig *config, Error *err) {
    *config = (ModelConfig){0};
    int64_t V;
    bool ok = check_string(root, "model_type", "gpt2", "gpt2", err) &&
              json_get_int(root, "n_positions", 1, INT32_MAX, &config->max_T, err) &&
              json_get_int(root, "vocab_size", 1, INT32_MAX, &V, err) &&
              json_get_int(root, "n_layer", 1, INT32_MAX, &config->L, err) &&
              json_get_int(root, "n_head", 1, INT32_MAX, &config->NH, err) &&
              json_get_int(root, "n_embd", 1, INT32_MAX, &config->C, err) && check_variant(root, config->C, err);
    if (ok) model_config_set_vocab(config, V);
    return ok && model_config_check(config, err);
}

// What ends a text: one token, or the first of several.
static int64_t parse_eot(const cJSON *root, int64_t V) {
    const cJSON *item;
    int64_t eot;
    if (!json_find(root, "eos_token_id", &item, NULL)) return -1;
    if (cJSON_IsArray(item)) item = item->child;
    return json_int_value(item, 0, V - 1, &eot) ? eot : -1;
}

static bool read_config(const char *directory, ModelConfig *config, int64_t *eot, Error *err) {
    char *path = path_join(directory, "config.json");
    bool ok = file_exists(path) ||
              error_set(err,
                        "%s: no config.json in it: not a Hugging Face GPT-2 directory and not a checkpoint (those are "
                        "the step_* directories of a run)",
                        directory);
    cJSON *root = ok ? json_parse_file(path, MAX_CONFIG_BYTES, err) : NULL;
    if (root) ok = parse_config(root, config, err) || error_prefix(err, "%s", path);
    if (root && ok) *eot = parse_eot(root, config->V);
    cJSON_Delete(root);
    free(path);
    return ok && root;
}

// -------------------------------------------------------------------------------------------------- the tensors' table

static const char prefix[] = "transformer.";

static const char *without_prefix(const char *name) {
    return strncmp(name, prefix, strlen(prefix)) == 0 ? name + strlen(prefix) : name;
}

static int find_tensor(const WeightShards *shards, const char *name) {
    const int place = weight_shards_find(shards, name);
    return place >= 0 ? place : weight_shards_find(shards, without_prefix(name));
}

static bool check_shape(const SafetensorsEntry *e, int rank, int64_t rows, int64_t cols, Error *err) {
    if (e->dtype == DTYPE_COUNT)
        return error_set(err, "tensor %s is %s, only F32, F16 and BF16 are read: save the model in one of these types",
                         e->name, e->stored);
    if (e->rank == rank && e->shape[0] == rows && (rank == 1 || e->shape[1] == cols)) return true;
    Tensor found = {.dtype = e->dtype, .rank = e->rank}, expected = {.dtype = e->dtype, .rank = rank};
    memcpy(found.shape, e->shape, sizeof found.shape);
    expected.shape[0] = rows, expected.shape[1] = cols;
    char a[96], b[96];
    return error_set(err, "tensor %s is %s, expected %s", e->name, tensor_describe(found, a, sizeof a),
                     tensor_describe(expected, b, sizeof b));
}

static bool has_suffix(const char *name, const char *suffix) {
    size_t n = strlen(name), m = strlen(suffix);
    return n >= m && strcmp(name + n - m, suffix) == 0;
}

// Whether an entry that is no parameter is one of those that may stand beside them.
static bool check_extra(const SafetensorsEntry *e, const ModelConfig *config, Error *err) {
    if (strcmp(e->name, "lm_head.weight") == 0) return check_shape(e, 2, config->V, config->C, err); // tied to wte
    if (has_suffix(e->name, ".attn.bias") || has_suffix(e->name, ".attn.masked_bias")) return true;  // causal masks
    return error_set(err, "tensor %s is not part of a GPT-2 of %lld blocks", e->name, (long long)config->L);
}

static bool match_tensor(HuggingFace *f, const Parameter *p, int *place, Error *err) {
    *place = find_tensor(f->shards, p->name);
    if (*place < 0) return error_set(err, "%s: tensor %s is missing", weight_shards_list(f->shards), p->name);
    const bool swap = p->spec->transposed;
    return check_shape(weight_shards_entry(f->shards, *place), p->rank, swap ? p->cols : p->file_rows,
                       swap ? p->file_rows : p->cols, err) ||
           error_prefix(err, "%s", weight_shards_path(f->shards, *place));
}

static bool match_tensors(HuggingFace *f, const Parameter *table, bool *used, Error *err) {
    int count = parameter_count(&f->config);
    for (int i = 0; i < count; i++) {
        if (!match_tensor(f, &table[i], &f->places[i], err)) return false;
        used[f->places[i]] = true;
    }
    for (int i = 0; i < weight_shards_count(f->shards); i++)
        if (!used[i] && !check_extra(weight_shards_entry(f->shards, i), &f->config, err))
            return error_prefix(err, "%s", weight_shards_path(f->shards, i));
    return true;
}

static bool open_tensors(HuggingFace *f, const char *directory, Error *err) {
    f->shards = weight_shards_open(directory, err);
    if (!f->shards) return false;
    Parameter *table = parameter_table(&f->config);
    f->places = calloc((size_t)parameter_count(&f->config), sizeof *f->places);
    bool *used = calloc((size_t)weight_shards_count(f->shards) + 1, sizeof *used);
    REQUIRE_MEMORY(f->places && used, "the files of a model");
    bool ok = match_tensors(f, table, used, err);
    free(used);
    free(table);
    return ok;
}

// ------------------------------------------------------------------------------------------------------ open and read

HuggingFace *huggingface_open(const char *directory, ModelConfig *config, Error *err) {
    HuggingFace *f = calloc(1, sizeof *f);
    REQUIRE_MEMORY(f != NULL, "the files of a model");
    f->matrix_index = -1;
    if (read_config(directory, &f->config, &f->eot, err) && open_tensors(f, directory, err)) {
        *config = f->config;
        return f;
    }
    huggingface_close(f);
    return NULL;
}

void huggingface_close(HuggingFace *f) {
    if (!f) return;
    weight_shards_close(f->shards);
    free(f->places);
    free(f->matrix);
    free(f);
}

int64_t huggingface_eot(const HuggingFace *f) { return f->eot; }

// The whole of an (in, out) matrix of the file into f->matrix, as (out, in).
static bool load_transposed(HuggingFace *f, const Parameter *p, int index, Error *err) {
    int64_t in = p->cols, out = p->rows;
    size_t numel = (size_t)(in * out);
    f->matrix_index = -1;
    if (numel > f->matrix_numel) {
        free(f->matrix);
        f->matrix = malloc(numel * sizeof *f->matrix);
        f->matrix_numel = f->matrix ? numel : 0;
    }
    float *strip = malloc((size_t)(TRANSPOSE_STRIP * out) * sizeof *strip);
    if (!f->matrix || !strip) {
        free(strip);
        return error_set(err, "no memory to turn tensor %s", p->name);
    }
    bool ok = true;
    for (int64_t i = 0; ok && i < in; i += TRANSPOSE_STRIP) {
        int64_t n = in - i < TRANSPOSE_STRIP ? in - i : TRANSPOSE_STRIP;
        ok = weight_shards_read_fp32(f->shards, f->places[index], i * out, n * out, strip, err);
        if (ok) transpose(f->matrix + i, in, strip, out, n, out);
    }
    free(strip);
    if (ok) f->matrix_index = index;
    return ok;
}

bool huggingface_read(HuggingFace *f, const Parameter *p, int64_t first_row, int64_t rows, float *out, Error *err) {
    int index = parameter_index(&f->config, (int)(p->spec - parameter_specs), p->block);
    if (!p->spec->transposed)
        return weight_shards_read_fp32(f->shards, f->places[index], first_row * p->cols, rows * p->cols, out, err);
    if (f->matrix_index != index && !load_transposed(f, p, index, err)) return false;
    memcpy(out, f->matrix + first_row * p->cols, (size_t)(rows * p->cols) * sizeof *out);
    return true;
}
