// Hugging Face directories, see huggingface.h. The reader accepts what the classes of transformers
// write: tensor names with and without "transformer." or "model." and the prefixes of torch.compile
// and DDP, the tied lm_head.weight, also in place of wte (it is compared with that), the buffers of
// attention, which are not read, F32, F16 and BF16. Models with embed_norm hold the embedding as
// lm_head.weight, which the reader takes, and its normalised rows as model.embed_tokens.weight, so
// that their class computes the same. Each file is written atomically and checksummed on the way;
// the caller commits the directory as a whole.
#include "llmc/store/huggingface.h"

#include "llmc/base/arithmetic.h"
#include "llmc/base/atomic_file.h"
#include "llmc/base/file.h"
#include "llmc/base/format.h"
#include "llmc/base/json.h"
#include "llmc/base/path.h"
#include "llmc/model/model_state.h"
#include "llmc/store/huggingface_config.h"
#include "llmc/store/safetensors.h"
#include "llmc/store/weight_shards.h"
#include "llmc/store/weights_form.h"
#include "llmc/text/tokenizer_json.h"

#include <cjson/cJSON.h>
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

// ----------------------------------------------------------------------------------------- reading

enum { MAX_CONFIG_BYTES = 1 << 20 };

struct HuggingFace {
    WeightShards *shards;
    ModelConfig config;
    int (*places)[3]; // in shards, of each tensor of the parameter table, or of its parts
    // Hugging Face's (in, out) matrices are transposed as a whole, and the last one is kept for
    // reading its next rows.
    float *matrix;
    int matrix_index; // the tensor in it, -1: none
};

// ------------------------------------------------------------------------------ the tensors' table

// The name without "transformer." and the prefixes of torch.compile, DDP and other wrappers.
static const char *without_prefix(const char *name) {
    static const char *const prefixes[] = {"transformer.", "_orig_mod.", "module.", "model.", NULL};
    for (int i = 0; prefixes[i]; i++) {
        const size_t n = strlen(prefixes[i]);
        if (strncmp(name, prefixes[i], n) == 0) return without_prefix(name + n);
    }
    return name;
}

static int find_tensor(const WeightShards *shards, const char *name) {
    const int place = weight_shards_find(shards, name);
    for (int i = 0; place < 0 && i < weight_shards_count(shards); i++)
        if (strcmp(without_prefix(weight_shards_entry(shards, i)->name), without_prefix(name)) == 0)
            return i;
    return place;
}

static bool check_shape(const SafetensorsEntry *e, int rank, int64_t rows, int64_t cols,
                        Error *err) {
    if (e->dtype == DTYPE_COUNT)
        return error_set(err,
                         "tensor %s is %s, only F32, F16 and BF16 are read: save the model in one "
                         "of these types",
                         e->name, e->stored);
    if (e->rank == rank && e->shape[0] == rows && (rank == 1 || e->shape[1] == cols)) return true;

    Tensor found = {.dtype = e->dtype, .rank = e->rank},
           expected = {.dtype = e->dtype, .rank = rank};
    memcpy(found.shape, e->shape, sizeof found.shape);
    expected.shape[0] = rows;
    expected.shape[1] = cols;
    char a[96], b[96];
    const bool swapped = e->rank == 2 && rank == 2 && e->shape[0] == cols && e->shape[1] == rows;
    return error_set(err, "tensor %s is %s, expected %s%s", e->name,
                     tensor_describe(found, a, sizeof a), tensor_describe(expected, b, sizeof b),
                     swapped ? ": its matrices are (out, in), as nanoGPT's; transpose them" : "");
}

static const char head_name[] = "lm_head.weight";

// The buffers of attention that files of older transformers have, of one of the model's blocks:
// masks, and frequencies of RoPE, which follow from config.json. As in transformers, nobody reads
// them.
static bool is_buffer(const char *name, const ModelConfig *config) {
    int block, n = 0;
    name = without_prefix(name);
    const char *blocks = model_is_gpt2(config) ? "h.%9d.attn.%n" : "layers.%9d.self_attn.%n";
    if (sscanf(name, blocks, &block, &n) != 1 || n == 0 || block < 0 || block >= config->L)
        return false;
    if (model_is_gpt2(config))
        return strcmp(name + n, "bias") == 0 || strcmp(name + n, "masked_bias") == 0;
    return strcmp(name + n, "rotary_emb.inv_freq") == 0;
}

static bool is_norm_of_embedding(const SafetensorsEntry *e, const ModelConfig *config) {
    return config->embed_norm && strcmp(without_prefix(e->name),
                                        without_prefix(parameter_specs[PARAM_WTE].class_name)) == 0;
}

// Whether an entry that is no parameter is allowed in addition; huggingface_check_rest then
// compares its values.
static bool check_extra(const SafetensorsEntry *e, const ModelConfig *config, Error *err) {
    if (strcmp(without_prefix(e->name), head_name) == 0 || is_norm_of_embedding(e, config))
        return check_shape(e, 2, config->V, config->C, err);
    if (is_buffer(e->name, config)) return true;
    const char *what = model_is_gpt2(config) ? "GPT-2" : "model";
    error_set(err, "tensor %s is not part of a %s of %lld blocks with this config.json", e->name,
              what, (long long)config->L);
    if (strstr(e->name, "lora_") || strstr(e->name, ".base_layer."))
        return error_set(
            err,
            "%s; it is a LoRA adapter's: merge it into the model with merge_and_unload() and save "
            "that",
            err->text);
    const char *class = model_class(config);
    return error_set(err, "%s; save a %s without it", err->text, class ? class : "model");
}

// Finds a tensor of the table, or a part of it.
static bool open_tensor(HuggingFace *f, const Parameter *p, int part, int *place, Error *err) {
    int64_t rows = weights_part_rows(p, part), cols = p->cols;
    char name[64];
    parameter_part_name(p, part, name);
    *place = find_tensor(f->shards, name);

    // save_pretrained of a tied model keeps one of the two names.
    if (*place < 0 && p->spec == &parameter_specs[PARAM_WTE] && !f->config.untied)
        *place = find_tensor(f->shards, head_name);
    if (*place < 0) {
        error_set(err, "%s: tensor %s is missing", weight_shards_list(f->shards), name);
        return p->spec == &parameter_specs[PARAM_HEADW] &&
               error_set(err,
                         "%s; \"tie_word_embeddings\" is false in config.json; true makes the "
                         "embedding the head",
                         err->text);
    }

    if (p->transposed) { // in the file
        cols = rows;
        rows = p->cols;
    }
    if (!check_shape(weight_shards_entry(f->shards, *place), p->rank, rows, cols, err))
        return error_prefix(err, "%s", weight_shards_path(f->shards, *place));
    return true;
}

static bool open_tensors(HuggingFace *f, const char *directory, Error *err) {
    f->shards = weight_shards_open(directory, err);
    if (!f->shards) return false;
    Parameter *table = parameter_table(&f->config);
    f->places = calloc((size_t)parameter_count(&f->config), sizeof *f->places);
    bool *used = calloc((size_t)weight_shards_count(f->shards) + 1, sizeof *used);
    REQUIRE_MEMORY(f->places && used, "the files of a model");

    bool ok = true;
    for (int i = 0; ok && i < parameter_count(&f->config); i++) {
        for (int part = 0; ok && part < table[i].file_parts; part++) {
            ok = open_tensor(f, &table[i], part, &f->places[i][part], err);
            if (ok) used[f->places[i][part]] = true;
        }
    }

    for (int i = 0; ok && i < weight_shards_count(f->shards); i++)
        ok = used[i] || check_extra(weight_shards_entry(f->shards, i), &f->config, err) ||
             error_prefix(err, "%s", weight_shards_path(f->shards, i));
    free(used);
    free(table);
    return ok;
}

// ----------------------------------------------------------------------------------- open and read

HuggingFace *huggingface_open(const char *directory, ModelConfig *config, int64_t *eot,
                              Error *err) {
    HuggingFace *f = calloc(1, sizeof *f);
    REQUIRE_MEMORY(f != NULL, "the files of a model");
    f->matrix_index = -1;

    char *path = path_join(directory, "config.json");
    cJSON *root = NULL;
    if (file_exists(path)) {
        root = json_parse_file(path, MAX_CONFIG_BYTES, err);
    } else {
        error_set(err,
                  "%s: has no config.json: neither a Hugging Face model directory nor a checkpoint "
                  "(those are "
                  "the step_* directories of a run)",
                  directory);
        weight_shards_explain(directory, err);
    }
    bool ok =
        root && (huggingface_parse_config(root, &f->config, err) || error_prefix(err, "%s", path));

    const cJSON *token = NULL; // the end-of-text token, or the first of several
    if (!ok || !json_find(root, "eos_token_id", &token, NULL)) token = NULL;
    if (token && cJSON_IsArray(token)) token = token->child;
    if (!json_int_value(token, 0, f->config.V - 1, eot)) *eot = -1;
    cJSON_Delete(root);
    free(path);

    if (ok && open_tensors(f, directory, err)) {
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

// -------------------------------------------------------------------- contents besides the weights

// Compares a tensor with wte: the head of a tied model has the same values; with embed_norm the
// embedding of the file has the norms of its rows. Between these lie three roundings to the type of
// the file: of wte's values, of the norm that they add up to, and of the embedding's. Each is by at
// most 2^-8 (bf16), 2^-11 (fp16) or 2^-24 (fp32) of a value, and in fp16 below 2^-14 by as much as
// there. In fp32 two more, of another program's norm and product.
static bool check_beside_wte(HuggingFace *f, int place, bool is_norm, Error *err) {
    const int wte = f->places[parameter_index(&f->config, PARAM_WTE, 0)][0];
    const SafetensorsEntry *e = weight_shards_entry(f->shards, place),
                           *of_wte = weight_shards_entry(f->shards, wte);
    const DType types[] = {e->dtype, of_wte->dtype};
    const int64_t C = f->config.C, piece = WEIGHTS_PIECE_FLOATS / C;

    const char *differs = "differs from",
               *advice = "config.json has a tied head (\"tie_word_embeddings\" true, or the "
                         "class's default), and the file "
                         "a head of its own; if that is meant, set it to false",
               *family = model_family(&f->config);
    if (family && strcmp(family, "gpt2") == 0)
        advice = "the head is not tied, and in GPT-2's class only tied heads are supported";
    if (f->config.embed_norm)
        advice = "the head is not tied, and \"embed_norm\" in config.json needs a tied one";

    float unit = 0.0f, rstd = 0.0f;
    if (is_norm) {
        differs = "is not the norm of the rows of";
        advice = "the model was changed by another program. Without \"embed_norm\" in config.json "
                 "it is read as a model "
                 "with a head of its own";
        unit = 0x1p-21f;
    }
    for (int i = 0; is_norm && i < 2; i++) {
        if (types[i] == DTYPE_FP16) unit = fmaxf(unit, 0x1p-9f);
        if (types[i] == DTYPE_BF16) unit = fmaxf(unit, 0x1p-6f);
    }

    float *found = malloc((size_t)(2 * piece * C) * sizeof *found), *expected = found + piece * C;
    REQUIRE_MEMORY(found, "a piece of the embedding");
    bool ok = true;
    for (int64_t first = 0; ok && first < f->config.V; first += piece) {
        const int64_t rows = min_i64(f->config.V - first, piece);
        ok = weight_shards_read_fp32(f->shards, place, first * C, rows * C, found, err) &&
             weight_shards_read_fp32(f->shards, wte, first * C, rows * C, expected, err);
        for (int64_t r = 0; ok && r < rows; r++) {
            const float *x = found + r * C, *y = expected + r * C;
            int64_t c = 0;
            if (is_norm) rstd = weights_normalize_row(expected + r * C, C);
            while (c < C &&
                   (x[c] == y[c] ||
                    fabsf(x[c] - y[c]) <= unit * (fabsf(y[c]) + 0x1p-14f * fmaxf(rstd, 1.0f))))
                c++;
            if (c == C) continue;
            if (isnan(y[c])) break; // reading the weights names what is not finite
            ok =
                error_set(err, "%s: tensor %s %s %s, at [%lld, %lld] %g and %g: %s",
                          weight_shards_path(f->shards, place), e->name, differs, of_wte->name,
                          (long long)(first + r), (long long)c, (double)x[c], (double)y[c], advice);
        }
    }

    free(found);
    return ok;
}

bool huggingface_check_rest(HuggingFace *f, Error *err) {
    const int wte = f->places[parameter_index(&f->config, PARAM_WTE, 0)][0];
    bool ok = true;
    for (int i = 0; ok && i < weight_shards_count(f->shards); i++) {
        const SafetensorsEntry *e = weight_shards_entry(f->shards, i);
        if (i != wte && !f->config.untied && strcmp(without_prefix(e->name), head_name) == 0)
            ok = check_beside_wte(f, i, false, err);
        if (ok && is_norm_of_embedding(e, &f->config)) ok = check_beside_wte(f, i, true, err);
    }
    return ok;
}

// Loads a whole (in, out) matrix of the file into f->matrix, as (out, in).
static bool load_transposed(HuggingFace *f, const Parameter *p, int index, Error *err) {
    const int64_t in = p->cols, out = p->rows;
    f->matrix_index = -1;
    free(f->matrix);
    f->matrix = malloc((size_t)(in * out) * sizeof *f->matrix);
    float *strip = malloc((size_t)(TRANSPOSE_STRIP * out) * sizeof *strip);
    if (!f->matrix || !strip) {
        free(strip);
        return error_set(err, "no memory to transpose tensor %s", p->name);
    }

    bool ok = true;
    for (int64_t i = 0; ok && i < in; i += TRANSPOSE_STRIP) {
        int64_t n = min_i64(in - i, TRANSPOSE_STRIP);
        ok = weight_shards_read_fp32(f->shards, f->places[index][0], i * out, n * out, strip, err);
        if (ok) weights_transpose(f->matrix + i, in, strip, out, n, out);
    }
    free(strip);
    if (ok) f->matrix_index = index;
    return ok;
}

bool huggingface_read(HuggingFace *f, const Parameter *p, int64_t first_row, int64_t rows,
                      float *out, Error *err) {
    int index = parameter_index(&f->config, (int)(p->spec - parameter_specs), p->block);
    int64_t begin = 0; // row of the part
    for (int part = 0; !p->transposed && part < p->file_parts; part++) {
        const int64_t part_rows = weights_part_rows(p, part);
        const int64_t first = max_i64(first_row, begin),
                      end = min_i64(first_row + rows, begin + part_rows);
        if (first < end && !weight_shards_read_fp32(
                               f->shards, f->places[index][part], (first - begin) * p->cols,
                               (end - first) * p->cols, out + (first - first_row) * p->cols, err))
            return false;
        begin += part_rows;
    }

    if (!p->transposed) return true;
    if (f->matrix_index != index && !load_transposed(f, p, index, err)) return false;
    memcpy(out, f->matrix + first_row * p->cols, (size_t)(rows * p->cols) * sizeof *out);
    return true;
}

// ----------------------------------------------------------------------------------------- writing

static const OwnFileKind own_files[HF_TOKENIZER_CONFIG + 1] = {
    [HF_WEIGHTS] = {"model.safetensors", SAFETENSORS_MARK},
    [HF_CONFIG] = {"config.json", "\"architectures\": [\""}, // transformers breaks the line in it
    [HF_TOKENIZER] = {"tokenizer.json", TOKENIZER_MARK},
    [HF_TOKENIZER_CONFIG] = {"tokenizer_config.json", TOKENIZER_CONFIG_MARK},
};

const char *huggingface_file_name(int file) {
    if (file < HF_TOKENIZER_CONFIG) return own_files[file].name;
    return extra_file_names[file - HF_TOKENIZER_CONFIG];
}

// A file that was taken over has no mark of ours: the metadata of the weights has its name and
// checksum.
enum { EXTRA_ENTRY = 64 };
static const char *extra_entry(int extra, uint64_t checksum, char entry[EXTRA_ENTRY]) {
    snprintf(entry, EXTRA_ENTRY, "%s=%016llx;", extra_file_names[extra],
             (unsigned long long)checksum);
    return entry;
}

// False with *unread as own_file_is has errno.
static bool is_own_extra(const char *directory, int extra, bool by_name, int *unread, Error *err) {
    char *path = path_join(directory, extra_file_names[extra]), entry[EXTRA_ENTRY];
    char *weights = path_join(directory, own_files[HF_WEIGHTS].name);
    int64_t bytes;
    uint64_t checksum;
    bool is_own = !file_exists(path) || (by_name && extra == EXTRA_TOKENIZER_CONFIG);
    *unread = 0;

    if (!is_own && extra == EXTRA_TOKENIZER_CONFIG) {
        is_own = own_file_is(path, TOKENIZER_CONFIG_MARK);
        if (!is_own) *unread = errno;
    }
    if (!is_own && *unread == 0) {
        errno = 0;
        const bool is_read = file_checksum(path, &bytes, &checksum, NULL);
        if (!is_read) *unread = (int)positive_or(errno, EIO);
        is_own = is_read && own_file_is(weights, extra_entry(extra, checksum, entry));
        if (is_read && !is_own) *unread = errno;
    }

    free(weights);
    free(path);
    if (!is_own)
        error_set(err, "%s in it was not written by this program", extra_file_names[extra]);
    return is_own;
}

bool huggingface_vouches(const char *directory) {
    bool vouched = false;
    for (int i = 0; i <= HF_TOKENIZER_CONFIG && !vouched; i++) {
        char *path = path_join(directory, own_files[i].name);
        vouched = own_file_is(path, own_files[i].mark);
        free(path);
    }
    return vouched;
}

bool huggingface_is_own(const char *directory, const OwnFileKind *more, int count, bool by_name,
                        Error *err) {
    OwnFileKind kinds[HF_FILES + OWN_FILE_MORE];
    REQUIRE(count <= OWN_FILE_MORE, "%d more kinds of files", count);
    for (int i = 0; i < HF_TOKENIZER_CONFIG; i++) kinds[i] = own_files[i];
    for (int i = HF_TOKENIZER_CONFIG; i < HF_FILES; i++)
        kinds[i] = (OwnFileKind){huggingface_file_name(i), ""};
    for (int i = 0; i < count; i++) kinds[HF_FILES + i] = more[i];
    if (!own_directory_is(directory, kinds, HF_FILES + count, by_name, err)) return false;
    for (int i = 0; i < EXTRA_FILES; i++) {
        int unread;
        if (is_own_extra(directory, i, by_name, &unread, err)) continue;
        errno = unread;
        return false;
    }
    return true;
}

const ModelExtras *huggingface_extras(const HuggingFaceModel *m) {
    static const ModelExtras none;
    if (m->extras) return m->extras;
    return &none;
}

int huggingface_ends(const HuggingFaceModel *m, int32_t ends[MAX_END_TOKENS]) {
    ModelExtras all = *huggingface_extras(m); // only its ends
    model_extras_add_end(&all, m->eot);
    memcpy(ends, all.ends, sizeof all.ends);
    return all.num_ends;
}

int64_t huggingface_begin(const HuggingFaceModel *m) {
    const int64_t otherwise = m->tokenizer ? tokenizer_begin(m->tokenizer) : m->eot;
    return model_extras_begin(huggingface_extras(m), otherwise, model_options(m->model)->config.V);
}

// ----------------------------------------------------------------------------------------- weights

static bool huggingface_append(void *writer, const void *data, size_t bytes, Error *err) {
    return safetensors_writer_append(writer, data, bytes, err);
}

static bool write_weights(const char *path, const HuggingFaceModel *m, FileFacts *facts,
                          Error *err) {
    // transformers refuses files without the format
    const char *metadata[] = {"format", "pt", SAFETENSORS_PRODUCER, NULL, NULL, NULL};
    char beside[EXTRA_FILES * EXTRA_ENTRY] = "";
    for (int i = 0; i < EXTRA_FILES; i++) {
        const ModelExtras *extras = huggingface_extras(m);
        char entry[EXTRA_ENTRY];
        if (extras->files[i].text)
            strcat(
                beside,
                extra_entry(i, XXH3_64bits(extras->files[i].text, extras->files[i].bytes), entry));
    }
    if (*beside) metadata[4] = "beside";
    if (*beside) metadata[5] = beside;

    const Parameter *table = model_parameters(m->model);
    const int count = model_num_tensors(m->model);
    const ModelConfig *config = &model_options(m->model)->config;
    SafetensorsEntry *entries = calloc((size_t)count * 3 + 1, sizeof *entries);
    REQUIRE_MEMORY(entries != NULL, "the files of a model");

    int n = 0;
    for (int i = 0; i < count; i++) {
        const Parameter *p = &table[i];
        for (int part = 0; part < p->file_parts;
             part++, n++) { // the rows of a part follow those of the one before
            SafetensorsEntry *e = &entries[n];
            char name[64];
            parameter_part_name(p, part, name);
            *e = (SafetensorsEntry){.dtype = m->dtype, .rank = p->rank};
            e->shape[p->transposed] = weights_part_rows(p, part);
            if (p->rank == 2) e->shape[!p->transposed] = p->cols;
            snprintf(e->name, sizeof e->name, "%s", name);
        }
    }
    if (config->embed_norm) {
        entries[n] =
            (SafetensorsEntry){.dtype = m->dtype, .rank = 2, .shape = {config->V, config->C}};
        snprintf(entries[n++].name, sizeof entries->name, "%s",
                 parameter_specs[PARAM_WTE].class_name);
    }

    SafetensorsWriter *w = safetensors_writer_open(path, entries, n, metadata, err);
    free(entries);
    bool ok = w != NULL;
    for (int i = 0; ok && i < count; i++) {
        const WeightsForm form = {.dtype = m->dtype, .transposed = table[i].transposed};
        ok = weights_form_write(m->model, i, form, huggingface_append, w, err);
    }
    if (ok && config->embed_norm) {
        const WeightsForm norms = {.dtype = m->dtype, .normalized = true};
        ok = weights_form_write(m->model, parameter_index(config, PARAM_WTE, 0), norms,
                                huggingface_append, w, err);
    }

    if (ok) return safetensors_writer_commit(w, &facts->bytes, &facts->checksum, err);
    safetensors_writer_abandon(w);
    return false;
}

// --------------------------------------------------------------------------------- the small files

// The settings that transformers needs in addition to tokenizer.json. The general class takes
// everything from that file; without the last line, decode would remove spaces from the text ("a ."
// -> "a.").
static char *tokenizer_config_json(const HuggingFaceModel *m) {
    cJSON *root = cJSON_CreateObject();
    static const char *const keys[] = {"bos_token", "eos_token"};
    const int32_t tokens[] = {tokenizer_begin(m->tokenizer), tokenizer_eot(m->tokenizer)};
    bool made = root &&
                cJSON_AddStringToObject(root, "tokenizer_class", "PreTrainedTokenizerFast") &&
                cJSON_AddNumberToObject(root, "model_max_length",
                                        (double)model_options(m->model)->config.max_T);

    for (int i = 0; i < 2 && made && tokens[i] >= 0; i++) {
        size_t length;
        const char *spelling = tokenizer_decode(m->tokenizer, tokens[i], &length);
        char *token = strndup(spelling, length);
        made = token && cJSON_AddStringToObject(root, keys[i], token);
        free(token);
    }

    made = made && cJSON_AddFalseToObject(root, "clean_up_tokenization_spaces");
    char *text = made ? cJSON_Print(root) : NULL;
    REQUIRE_MEMORY(text != NULL, "the files of a model");
    cJSON_Delete(root);
    return text;
}

// The text of a file besides the weights, malloced; NULL: the model has none.
static char *small_file(const HuggingFaceModel *m, int file, size_t *bytes) {
    const ModelExtras *extras = huggingface_extras(m);
    const ModelConfig *config = &model_options(m->model)->config;
    const int extra = file - HF_TOKENIZER_CONFIG;
    char *text = NULL;
    const int64_t begin = m->tokenizer ? tokenizer_begin(m->tokenizer) : m->eot;

    if (file == HF_TOKENIZER && m->tokenizer) return tokenizer_to_json(m->tokenizer, bytes);
    if (extra >= 0 && extras->files[extra].text) {
        *bytes = extras->files[extra].bytes;
        text = malloc(*bytes + 1);
        REQUIRE_MEMORY(text, "the files of a model");
        memcpy(text, extras->files[extra].text, *bytes + 1);
        return text;
    }

    if (file == HF_CONFIG)
        text = model_extras_config(extras, huggingface_config_json(config, m->dtype, begin, m->eot),
                                   m->eot, m->tokenizer != NULL, config->V);
    if (file == HF_TOKENIZER_CONFIG && m->tokenizer) text = tokenizer_config_json(m);
    if (text) *bytes = strlen(text);
    return text;
}

bool huggingface_write(const char *directory, const HuggingFaceModel *m, FileFacts facts[HF_FILES],
                       Error *err) {
    bool ok = true;
    for (int file = 0; ok && file < HF_FILES; file++) {
        facts[file] = (FileFacts){.bytes = -1};
        char *path = path_join(directory, huggingface_file_name(file)), *text = NULL;
        size_t bytes = 0;
        if (file == HF_WEIGHTS)
            ok = write_weights(path, m, &facts[file], err);
        else
            text = small_file(m, file, &bytes);

        AtomicFile *f = text ? atomic_file_create(path, err) : NULL;
        if (f) atomic_file_write(f, text, bytes, err); // commit reports a failure
        if (text) ok = f != NULL;
        if (f) ok = atomic_file_commit(f, &facts[file].bytes, &facts[file].checksum, err);
        free(text);
        free(path);
    }
    return ok;
}
