// See huggingface.h. Accepts what GPT2LMHeadModel saves: tensor names with and without "transformer.", the tied
// lm_head.weight and the causal mask buffers beside the weights (neither is read), F32, F16 and BF16.
#include "llmc/store/huggingface.h"

#include "llmc/store/atomic_file.h"
#include "llmc/store/json.h"
#include "llmc/store/safetensors.h"
#include "llmc/store/transpose.h"
#include "llmc/store/weights_file.h"
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_CONFIG_BYTES = 1 << 20 };

struct HuggingFace {
    SafetensorsFile *file;
    ModelConfig config;
    const SafetensorsEntry **entries; // of each tensor of the parameter table
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
    if (!check_string(root, "activation_function", "gelu_new", "gelu_pytorch_tanh", err)) return false; // one formula
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

static bool read_config(const char *directory, ModelConfig *config, Error *err) {
    char *path = path_join(directory, "config.json");
    bool ok = file_exists(path) ||
              error_set(err,
                        "%s: no config.json in it: not a Hugging Face GPT-2 directory and not a checkpoint (those are "
                        "the step_* directories of a run)",
                        directory);
    cJSON *root = ok ? json_parse_file(path, MAX_CONFIG_BYTES, err) : NULL;
    if (root) ok = parse_config(root, config, err) || error_prefix(err, "%s", path);
    cJSON_Delete(root);
    free(path);
    return ok && root;
}

char *huggingface_config_json(const ModelConfig *config, int64_t eot) {
    char token[32] = "null", *text = NULL;
    if (eot >= 0) snprintf(token, sizeof token, "%lld", (long long)eot);
    int length = asprintf(&text,
                          "{\n"
                          "  \"architectures\": [\"GPT2LMHeadModel\"],\n"
                          "  \"model_type\": \"gpt2\",\n"
                          "  \"activation_function\": \"gelu_new\",\n"
                          "  \"n_positions\": %lld,\n"
                          "  \"n_ctx\": %lld,\n"
                          "  \"vocab_size\": %lld,\n"
                          "  \"n_layer\": %lld,\n"
                          "  \"n_head\": %lld,\n"
                          "  \"n_embd\": %lld,\n"
                          "  \"n_inner\": null,\n"
                          "  \"layer_norm_epsilon\": 1e-05,\n"
                          "  \"initializer_range\": 0.02,\n"
                          "  \"attn_pdrop\": 0.0,\n"
                          "  \"embd_pdrop\": 0.0,\n"
                          "  \"resid_pdrop\": 0.0,\n"
                          "  \"tie_word_embeddings\": true,\n"
                          "  \"bos_token_id\": %s,\n"
                          "  \"eos_token_id\": %s,\n"
                          "  \"torch_dtype\": \"float32\"\n"
                          "}\n",
                          (long long)config->max_T, (long long)config->max_T, (long long)config->V,
                          (long long)config->L, (long long)config->NH, (long long)config->C, token, token);
    REQUIRE(length >= 0, "out of memory");
    return text;
}

// -------------------------------------------------------------------------------------------------- the tensors' table

static const char prefix[] = "transformer.";

static const char *without_prefix(const char *name) {
    return strncmp(name, prefix, strlen(prefix)) == 0 ? name + strlen(prefix) : name;
}

static const SafetensorsEntry *find_tensor(const SafetensorsFile *file, const char *name) {
    const SafetensorsEntry *e = safetensors_find(file, name);
    return e ? e : safetensors_find(file, without_prefix(name));
}

static bool check_shape(const SafetensorsEntry *e, int rank, int64_t rows, int64_t cols, Error *err) {
    if (e->dtype == DTYPE_COUNT) return error_set(err, "tensor %s is neither F32 nor F16 nor BF16", e->name);
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

static bool match_tensors(HuggingFace *f, const Parameter *table, bool *used, Error *err) {
    int count = parameter_count(&f->config);
    for (int i = 0; i < count; i++) {
        const Parameter *p = &table[i];
        const SafetensorsEntry *e = f->entries[i] = find_tensor(f->file, p->name);
        if (!e) return error_set(err, "tensor %s is missing", p->name);
        bool swap = p->spec->transposed;
        if (!check_shape(e, p->rank, swap ? p->cols : p->file_rows, swap ? p->file_rows : p->cols, err)) return false;
        used[e - safetensors_entry(f->file, 0)] = true;
    }
    for (int i = 0; i < safetensors_count(f->file); i++)
        if (!used[i] && !check_extra(safetensors_entry(f->file, i), &f->config, err)) return false;
    return true;
}

static bool open_tensors(HuggingFace *f, const char *path, Error *err) {
    f->file = safetensors_open(path, err);
    if (!f->file) return false;
    Parameter *table = parameter_table(&f->config);
    f->entries = calloc((size_t)parameter_count(&f->config), sizeof(SafetensorsEntry *));
    bool *used = calloc((size_t)safetensors_count(f->file) + 1, sizeof *used);
    REQUIRE(f->entries && used, "out of memory");
    bool ok = match_tensors(f, table, used, err) || error_prefix(err, "%s", path);
    free(used);
    free(table);
    return ok;
}

// ------------------------------------------------------------------------------------------------------ open and read

// model.safetensors is not there: what to do depends on what is.
static bool explain_missing(const char *directory, Error *err) {
    char *shards = path_join(directory, "model.safetensors.index.json");
    char *pickle = path_join(directory, "pytorch_model.bin");
    error_set(err, "%s: no model.safetensors beside its config.json%s", directory,
              file_exists(shards) ? "; weights in several files are not read: save them again as one"
              : file_exists(pickle)
                  ? "; save pytorch_model.bin again with save_pretrained(..., safe_serialization=True)"
                  : "");
    free(shards);
    free(pickle);
    return false;
}

HuggingFace *huggingface_open(const char *directory, ModelConfig *config, Error *err) {
    HuggingFace *f = calloc(1, sizeof *f);
    REQUIRE(f != NULL, "out of memory");
    f->matrix_index = -1;
    char *path = path_join(directory, "model.safetensors");
    bool ok = read_config(directory, &f->config, err) && (file_exists(path) || explain_missing(directory, err)) &&
              open_tensors(f, path, err);
    free(path);
    if (ok) {
        *config = f->config;
        return f;
    }
    huggingface_close(f);
    return NULL;
}

void huggingface_close(HuggingFace *f) {
    if (!f) return;
    safetensors_close(f->file);
    free(f->entries);
    free(f->matrix);
    free(f);
}

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
        ok = safetensors_read_fp32(f->file, f->entries[index], i * out, n * out, strip, err);
        if (ok) transpose(f->matrix + i, in, strip, out, n, out);
    }
    free(strip);
    if (ok) f->matrix_index = index;
    return ok;
}

bool huggingface_read(HuggingFace *f, const Parameter *p, int64_t first_row, int64_t rows, float *out, Error *err) {
    int index = parameter_index(&f->config, (int)(p->spec - parameter_specs), p->block);
    if (!p->spec->transposed)
        return safetensors_read_fp32(f->file, f->entries[index], first_row * p->cols, rows * p->cols, out, err);
    if (f->matrix_index != index && !load_transposed(f, p, index, err)) return false;
    memcpy(out, f->matrix + first_row * p->cols, (size_t)(rows * p->cols) * sizeof *out);
    return true;
}
