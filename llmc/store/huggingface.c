// Hugging Face directories, see huggingface.h. The reader accepts the output of GPT2LMHeadModel: tensor names with and
// without "transformer.", the tied lm_head.weight and the causal mask buffers (neither is read), F32, F16 and BF16. The
// index of several files is as untrusted as any outside file: it may name only files of its own directory. Each file is
// written atomically and checksummed on the way; the caller commits the directory as a whole.
#include "llmc/store/huggingface.h"

#include "llmc/base/atomic_file.h"
#include "llmc/base/json.h"
#include "llmc/store/safetensors.h"
#include "llmc/store/weights_file.h"

#include <cjson/cJSON.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

// ------------------------------------------------------------------------------------ one or several safetensors files

enum {
    MAX_INDEX_BYTES = 16 << 20,
    MAX_FILES = 1000, // all stay open; the largest published models have fewer
};

typedef struct {
    const char *name; // of a tensor, in the parsed index
    int file;         // the file that the index states
} Place;

struct WeightShards {
    char *list; // path of the one file or of the index
    char **paths;
    SafetensorsFile **files;
    int *first; // tensors in the files before this one; files + 1 entries
    int num_files;
    cJSON *index; // the following fields belong to the index; NULL without one
    Place *places;
    int num_places;
};

// ----------------------------------------------------------------------------------------------------------- the index

static int compare_place(const void *a, const void *b) {
    return strcmp(((const Place *)a)->name, ((const Place *)b)->name);
}

static const Place *find_place(const WeightShards *s, const char *name) {
    const Place key = {.name = name};
    return bsearch(&key, s->places, (size_t)s->num_places, sizeof *s->places, compare_place);
}

static bool is_printable(const char *text, size_t less_than) {
    for (const char *p = text; *p; p++)
        if ((unsigned char)*p < 0x20 || *p == 0x7f) return false;
    return *text && strlen(text) < less_than;
}

// One member of "weight_map". It may only name a file in this directory, with no path in it.
static bool check_member(const cJSON *item, Error *err) {
    char found[64];
    if (!is_printable(item->string, sizeof((SafetensorsEntry *)0)->name))
        return error_set(err, "\"weight_map\" has an invalid tensor name");
    const char *file = cJSON_IsString(item) ? item->valuestring : "";
    const size_t n = strlen(file), suffix = strlen(".safetensors");
    if (n > suffix && strcmp(file + n - suffix, ".safetensors") == 0 && !strchr(file, '/') && is_printable(file, 256))
        return true;
    return error_set(err,
                     "\"weight_map\" puts tensor %s into %s, expected the name of a .safetensors file in the same "
                     "directory",
                     item->string, json_describe(item, found, sizeof found));
}

// The number of the file with this name, which is added if it is new.
static int file_number(WeightShards *s, const char *directory, const char *name, Error *err) {
    for (int i = 0; i < s->num_files; i++)
        if (strcmp(strrchr(s->paths[i], '/') + 1, name) == 0) return i;
    if (s->num_files == MAX_FILES) {
        error_set(err, "\"weight_map\" names more than %d files", MAX_FILES);
        return -1;
    }
    s->paths[s->num_files] = path_join(directory, name);
    return s->num_files++;
}

static bool parse_index(WeightShards *s, const char *directory, Error *err) {
    const cJSON *map;
    if (!json_get_object(s->index, "weight_map", &map, err)) return false;
    const int count = cJSON_GetArraySize(map);
    s->places = calloc((size_t)count + 1, sizeof *s->places);
    if (!s->places) return error_set(err, "no memory for its %d tensors", count);
    for (const cJSON *item = map->child; item; item = item->next) {
        if (!check_member(item, err)) return false;
        const int file = file_number(s, directory, item->valuestring, err);
        if (file < 0) return false;
        s->places[s->num_places++] = (Place){.name = item->string, .file = file};
    }
    qsort(s->places, (size_t)count, sizeof *s->places, compare_place);
    for (int i = 1; i < count; i++)
        if (strcmp(s->places[i - 1].name, s->places[i].name) == 0)
            return error_set(err, "\"weight_map\" lists tensor %s twice", s->places[i].name);
    return count > 0 || error_set(err, "\"weight_map\" is empty");
}

// Each tensor is in the file that the index states.
static bool check_places(const WeightShards *s, Error *err) {
    for (int i = 0; i < s->num_places; i++) {
        const Place *p = &s->places[i];
        if (safetensors_find(s->files[p->file], p->name)) continue;
        const int elsewhere = weight_shards_find(s, p->name);
        if (elsewhere >= 0)
            return error_set(err,
                             "%s: tensor %s is in %s, but the index puts it in this file; download the "
                             "directory again",
                             s->paths[p->file], p->name, weight_shards_path(s, elsewhere));
        return error_set(err, "%s: tensor %s is missing, but the index puts it here; download the directory again",
                         s->paths[p->file], p->name);
    }
    return true;
}

// No file has a tensor that the index does not put there.
static bool check_strangers(const WeightShards *s, Error *err) {
    for (int i = 0; i < weight_shards_count(s); i++) {
        const SafetensorsEntry *e = weight_shards_entry(s, i);
        const Place *p = find_place(s, e->name);
        if (!p) return error_set(err, "%s: tensor %s is not in the index", weight_shards_path(s, i), e->name);
        if (s->paths[p->file] != weight_shards_path(s, i))
            return error_set(err, "%s: has tensor %s, but the index puts it in %s", weight_shards_path(s, i), e->name,
                             s->paths[p->file]);
    }
    return true;
}

// ------------------------------------------------------------------------------------------------------ open and close

// There are no readable weights; the advice depends on the files that exist.
static bool explain_missing(const char *directory, Error *err) {
    char *pickle = path_join(directory, "pytorch_model.bin");
    char *pickles = path_join(directory, "pytorch_model.bin.index.json");
    const bool old = file_exists(pickle) || file_exists(pickles);
    free(pickle);
    free(pickles);
    return error_set(err, "%s: no model.safetensors next to its config.json%s", directory,
                     old ? "; save pytorch_model.bin again with save_pretrained(..., safe_serialization=True)" : "");
}

static bool open_files(WeightShards *s, Error *err) {
    s->first = calloc((size_t)s->num_files + 1, sizeof *s->first);
    REQUIRE_MEMORY(s->first != NULL, "the files of a model");
    for (int i = 0; i < s->num_files; i++) {
        if (s->index && !file_exists(s->paths[i]))
            return error_set(err, "%s: this file is missing; the weights are in %d files, listed in %s", s->paths[i],
                             s->num_files, s->list);
        s->files[i] = safetensors_open(s->paths[i], err);
        if (!s->files[i]) return false;
        s->first[i + 1] = s->first[i] + safetensors_count(s->files[i]);
    }
    return true;
}

static bool open_index(WeightShards *s, const char *directory, Error *err) {
    s->index = json_parse_file(s->list, MAX_INDEX_BYTES, err);
    return s->index && (parse_index(s, directory, err) || error_prefix(err, "%s", s->list)) && open_files(s, err) &&
           check_places(s, err) && check_strangers(s, err);
}

WeightShards *weight_shards_open(const char *directory, Error *err) {
    WeightShards *s = calloc(1, sizeof *s);
    REQUIRE_MEMORY(s != NULL, "the files of a model");
    s->paths = calloc(MAX_FILES, sizeof *s->paths);
    s->files = calloc(MAX_FILES, sizeof(SafetensorsFile *));
    REQUIRE_MEMORY(s->paths && s->files, "the files of a model");
    s->list = path_join(directory, "model.safetensors");
    bool ok;
    if (file_exists(s->list)) {
        s->paths[s->num_files++] = path_join(directory, "model.safetensors");
        ok = open_files(s, err);
    } else {
        free(s->list);
        s->list = path_join(directory, "model.safetensors.index.json");
        ok = file_exists(s->list) ? open_index(s, directory, err) : explain_missing(directory, err);
    }
    if (ok) return s;
    weight_shards_close(s);
    return NULL;
}

void weight_shards_close(WeightShards *s) {
    if (!s) return;
    for (int i = 0; i < s->num_files; i++) {
        if (s->files[i]) safetensors_close(s->files[i]);
        free(s->paths[i]);
    }
    cJSON_Delete(s->index);
    free(s->places);
    free(s->first);
    free(s->files);
    free(s->paths);
    free(s->list);
    free(s);
}

// ------------------------------------------------------------------------------------------------------------- tensors

static int file_of(const WeightShards *s, int i) {
    int file = 0;
    while (i >= s->first[file + 1]) file++;
    return file;
}

int weight_shards_count(const WeightShards *s) { return s->first[s->num_files]; }

const SafetensorsEntry *weight_shards_entry(const WeightShards *s, int i) {
    const int file = file_of(s, i);
    return safetensors_entry(s->files[file], i - s->first[file]);
}

int weight_shards_find(const WeightShards *s, const char *name) {
    for (int file = 0; file < s->num_files; file++) {
        const SafetensorsEntry *e = safetensors_find(s->files[file], name);
        if (e) return s->first[file] + (int)(e - safetensors_entry(s->files[file], 0));
    }
    return -1;
}

const char *weight_shards_path(const WeightShards *s, int i) { return s->paths[file_of(s, i)]; }

const char *weight_shards_list(const WeightShards *s) { return s->list; }

bool weight_shards_read_fp32(WeightShards *s, int i, int64_t first, int64_t n, float *out, Error *err) {
    return safetensors_read_fp32(s->files[file_of(s, i)], weight_shards_entry(s, i), first, n, out, err);
}

// ------------------------------------------------------------------------------------------------------------- reading

enum { MAX_CONFIG_BYTES = 1 << 20 };

struct HuggingFace {
    WeightShards *shards;
    ModelConfig config;
    int64_t eot; // from config.json, -1: it states none
    int *places; // in shards, of each tensor of the parameter table
    // Hugging Face's (in, out) matrices are transposed as a whole, and the last one is kept for reading its next rows.
    float *matrix;
    size_t matrix_numel; // its capacity
    int matrix_index;    // the tensor in it, -1: none
};

// ------------------------------------------------------------------------------------------------------- config.json

// An optional field that could change the computation: absent or null is fine, otherwise it must match our computation.
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

static bool check_variant(const cJSON *root, Error *err) {
    const cJSON *item;
    double eps;
    if (!json_find(root, "activation_function", &item, err)) return false;
    // Two names of one formula, which is also the default when none is given.
    if (item && !check_string(root, "activation_function", "gelu_new", "gelu_pytorch_tanh", err)) return false;
    if (!check_flag(root, "tie_word_embeddings", true, err) || !check_flag(root, "scale_attn_weights", true, err) ||
        !check_flag(root, "scale_attn_by_inverse_layer_idx", false, err) ||
        !check_flag(root, "add_cross_attention", false, err))
        return false;
    if (!json_find(root, "layer_norm_epsilon", &item, err)) return false;
    if (!item) return true; // transformers then uses 1e-5
    if (!json_get_double(root, "layer_norm_epsilon", &eps, err)) return false;
    if (fabs(eps - 1e-5) < 1e-9) return true;
    return error_set(err, "\"layer_norm_epsilon\" is %g, only 1e-05 is supported", eps);
}

// transformers reads an absent n_inner and null as 4 n_embd.
static bool parse_inner(const cJSON *root, ModelConfig *config, Error *err) {
    const cJSON *item;
    int64_t inner;
    if (!json_find(root, "n_inner", &item, err)) return false;
    if (!item || cJSON_IsNull(item)) return true;
    if (!json_get_int(root, "n_inner", 1, INT32_MAX, &inner, err)) return false;
    model_config_set_d_ff(config, inner);
    return true;
}

static bool parse_config(const cJSON *root, ModelConfig *config, Error *err) {
    *config = (ModelConfig){0};
    int64_t V;
    bool ok = check_string(root, "model_type", "gpt2", "gpt2", err) &&
              json_get_int(root, "n_positions", 1, INT32_MAX, &config->max_T, err) &&
              json_get_int(root, "vocab_size", 1, INT32_MAX, &V, err) &&
              json_get_int(root, "n_layer", 1, INT32_MAX, &config->L, err) &&
              json_get_int(root, "n_head", 1, INT32_MAX, &config->NH, err) &&
              json_get_int(root, "n_embd", 1, INT32_MAX, &config->C, err) && check_variant(root, err) &&
              parse_inner(root, config, err);
    if (ok) model_config_set_vocab(config, V);
    return ok && model_config_check(config, err);
}

// The end-of-text token, or the first of several.
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
                        "%s: has no config.json: neither a Hugging Face GPT-2 directory nor a checkpoint (those are "
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

// Whether an entry that is not a parameter is one of those that are allowed in addition.
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

// Loads a whole (in, out) matrix of the file into f->matrix, as (out, in).
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
        return error_set(err, "no memory to transpose tensor %s", p->name);
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

// ------------------------------------------------------------------------------------------------------------- writing

const char *const huggingface_file_names[HF_FILES] = {
    [HF_WEIGHTS] = "model.safetensors",
    [HF_CONFIG] = "config.json",
    [HF_TOKENIZER] = "tokenizer.json",
    [HF_TOKENIZER_CONFIG] = "tokenizer_config.json",
};

// ------------------------------------------------------------------------------------------------------------- weights

static SafetensorsEntry describe(const Parameter *p, DType dtype) {
    SafetensorsEntry e = {.dtype = dtype, .rank = p->rank, .shape = {p->file_rows, p->rank == 2 ? p->cols : 0}};
    if (p->spec->transposed) e.shape[0] = p->cols, e.shape[1] = p->file_rows;
    snprintf(e.name, sizeof e.name, "%s", p->name);
    return e;
}

static bool append(void *writer, const void *data, size_t bytes, Error *err) {
    return safetensors_writer_append(writer, data, bytes, err);
}

static bool write_weights(const char *path, const HuggingFaceModel *m, FileFacts *facts, Error *err) {
    static const char *const metadata[] = {"format", "pt", NULL}; // transformers refuses files without it
    const Parameter *table = gpt2_parameters(m->model);
    const int count = gpt2_num_tensors(m->model);
    SafetensorsEntry *entries = calloc((size_t)count, sizeof *entries);
    REQUIRE_MEMORY(entries != NULL, "the files of a model");
    for (int i = 0; i < count; i++) entries[i] = describe(&table[i], m->dtype);
    SafetensorsWriter *w = safetensors_writer_open(path, entries, count, metadata, err);
    free(entries);
    bool ok = w != NULL;
    for (int i = 0; ok && i < count; i++) {
        const StateForm form = {m->dtype, table[i].spec->transposed};
        ok = state_write(m->model, i, form, append, w, err);
    }
    if (ok) return safetensors_writer_commit(w, &facts->bytes, &facts->checksum, err);
    safetensors_writer_abandon(w);
    return false;
}

// ----------------------------------------------------------------------------------------------------- the small files

static bool write_text(const char *path, const char *text, size_t bytes, FileFacts *facts, Error *err) {
    AtomicFile *f = atomic_file_create(path, err);
    if (!f) return false;
    atomic_file_write(f, text, bytes, err); // commit reports a failure
    return atomic_file_commit(f, &facts->bytes, &facts->checksum, err);
}

char *huggingface_config_json(const ModelConfig *config, DType dtype, int64_t eot) {
    const char *torch_dtype = dtype == DTYPE_BF16 ? "bfloat16" : dtype == DTYPE_FP16 ? "float16" : "float32";
    char token[32] = "null", inner[32] = "null", *text = NULL;
    if (config->d_ff) snprintf(inner, sizeof inner, "%lld", (long long)config->d_ff);
    if (eot >= 0) snprintf(token, sizeof token, "%lld", (long long)eot);
    int length =
        asprintf(&text,
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
                 "  \"n_inner\": %s,\n"
                 "  \"layer_norm_epsilon\": 1e-05,\n"
                 "  \"initializer_range\": 0.02,\n"
                 "  \"attn_pdrop\": 0.0,\n"
                 "  \"embd_pdrop\": 0.0,\n"
                 "  \"resid_pdrop\": 0.0,\n"
                 "  \"tie_word_embeddings\": true,\n"
                 "  \"bos_token_id\": %s,\n"
                 "  \"eos_token_id\": %s,\n"
                 "  \"torch_dtype\": \"%s\"\n"
                 "}\n",
                 (long long)config->max_T, (long long)config->max_T, (long long)config->V, (long long)config->L,
                 (long long)config->NH, (long long)config->C, inner, token, token, torch_dtype);
    REQUIRE_MEMORY(length >= 0, "the files of a model");
    return text;
}

static bool write_config(const char *path, const HuggingFaceModel *m, FileFacts *facts, Error *err) {
    char *text = huggingface_config_json(&gpt2_options(m->model)->config, m->dtype, m->eot);
    const bool ok = write_text(path, text, strlen(text), facts, err);
    free(text);
    return ok;
}

static bool write_tokenizer(const char *path, const Tokenizer *t, FileFacts *facts, Error *err) {
    size_t bytes;
    char *text = tokenizer_to_json(t, &bytes, err);
    if (!text) return error_prefix(err, "%s", path);
    const bool ok = write_text(path, text, bytes, facts, err);
    free(text);
    return ok;
}

// The settings that transformers needs in addition to tokenizer.json. The general class takes everything from that
// file; without the last line, decode would remove spaces from the text ("a ." -> "a.").
static bool write_tokenizer_config(const char *path, const HuggingFaceModel *m, FileFacts *facts, Error *err) {
    cJSON *root = cJSON_CreateObject();
    const int32_t eot = tokenizer_eot(m->tokenizer);
    size_t length = 0;
    const char *spelling = eot >= 0 ? tokenizer_decode(m->tokenizer, eot, &length) : "";
    char *token = strndup(spelling, length);
    bool made = root && token && cJSON_AddStringToObject(root, "tokenizer_class", "PreTrainedTokenizerFast") &&
                cJSON_AddNumberToObject(root, "model_max_length", (double)gpt2_options(m->model)->config.max_T);
    if (made && eot >= 0)
        made = cJSON_AddStringToObject(root, "bos_token", token) && cJSON_AddStringToObject(root, "eos_token", token);
    made = made && cJSON_AddFalseToObject(root, "clean_up_tokenization_spaces");
    char *text = made ? cJSON_Print(root) : NULL;
    REQUIRE_MEMORY(text != NULL, "the files of a model");
    const bool ok = write_text(path, text, strlen(text), facts, err);
    free(text);
    free(token);
    cJSON_Delete(root);
    return ok;
}

bool huggingface_write(const char *directory, const HuggingFaceModel *m, FileFacts facts[HF_FILES], Error *err) {
    bool ok = true;
    for (int file = 0; ok && file < HF_FILES; file++) {
        facts[file] = (FileFacts){.bytes = -1};
        const bool of_tokenizer = file == HF_TOKENIZER || file == HF_TOKENIZER_CONFIG;
        if (of_tokenizer && !m->tokenizer) continue;
        char *path = path_join(directory, huggingface_file_names[file]);
        ok = file == HF_WEIGHTS     ? write_weights(path, m, &facts[file], err)
             : file == HF_CONFIG    ? write_config(path, m, &facts[file], err)
             : file == HF_TOKENIZER ? write_tokenizer(path, m->tokenizer, &facts[file], err)
                                    : write_tokenizer_config(path, m, &facts[file], err);
        free(path);
    }
    return ok;
}
