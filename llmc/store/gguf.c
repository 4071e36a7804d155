// See gguf.h. A file is a header (keys, then the name, shape, type and place of each tensor) and
// the data, each tensor at a multiple of 32 bytes. All numbers are little-endian, as they are in
// memory (safetensors.c).
#include "llmc/store/gguf.h"

#include "llmc/base/arithmetic.h"
#include "llmc/base/format.h"
#include "llmc/base/json.h"
#include "llmc/base/own_file.h"
#include "llmc/model/model_state.h"
#include "llmc/number.h"
#include "llmc/store/weights_form.h"
#include "llmc/text/tokenizer_json.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    GGUF_VERSION = 3,
    ALIGNMENT = 32,
    MAX_NAME = 64,
    Q8_0_BLOCK = 32,
    Q8_0_BYTES = 34,
    KEYS_AT = 16
};

// The types of keys.
enum { KEY_U32 = 4, KEY_I32 = 5, KEY_F32 = 6, KEY_BOOL = 7, KEY_STRING = 8, KEY_ARRAY = 9 };

#define GGUF_MARK "Written by pretrain.cu" // own_file.h

// ----------------------------------------------------------------------------------------- tensors

// A tensor of the file: a weight of ours, or one of the matrices that are stacked in it.
typedef struct {
    char name[MAX_NAME];
    const Parameter *p;
    int index;           // of p
    int64_t first, rows; // of p
    // rows of a head, of which the two halves alternate in the file; 0: they are as ours
    int64_t head;
    bool normalized; // each row as weights_normalize_row makes it
    GgufType type;
    int64_t offset, bytes;
} GgufTensor;

static void name_tensor(const Parameter *p, int part, char name[MAX_NAME]) {
    static const char *const stems[NUM_PARAMETER_SPECS] = {
        [PARAM_WTE] = "token_embd",       [PARAM_WPE] = "position_embd",
        [PARAM_QKVW] = "attn_qkv",        [PARAM_QKVB] = "attn_qkv",
        [PARAM_FCW] = "ffn_up",           [PARAM_FCB] = "ffn_up",
        [PARAM_LN1W] = "attn_norm",       [PARAM_LN1B] = "attn_norm",
        [PARAM_QNORMW] = "attn_q_norm",   [PARAM_KNORMW] = "attn_k_norm",
        [PARAM_ATTPROJW] = "attn_output", [PARAM_ATTPROJB] = "attn_output",
        [PARAM_LN2W] = "ffn_norm",        [PARAM_LN2B] = "ffn_norm",
        [PARAM_FCPROJW] = "ffn_down",     [PARAM_FCPROJB] = "ffn_down",
        [PARAM_LNFW] = "output_norm",     [PARAM_LNFB] = "output_norm",
        [PARAM_HEADW] = "output"};
    static const char *const qkv[] = {"attn_q", "attn_k", "attn_v"}, *const gated[] = {"ffn_gate",
                                                                                       "ffn_up"};

    const bool in_parts = p->file_parts > 1;
    const char *stem = stems[p->spec - parameter_specs], *kind = "weight";
    if (p->is_normed && part == 0) stem = "output";
    if (p->spec->rows == DIM_QKV && in_parts) stem = qkv[part];
    if (p->spec->rows == DIM_FC && in_parts) stem = gated[part];
    REQUIRE(stem, "no name of llama.cpp for %s", p->name);
    if (p->rank == 1 && p->spec->init == INIT_ZERO) kind = "bias";

    char block[16] = "";
    if (p->block >= 0) snprintf(block, sizeof block, "blk.%d.", p->block);
    snprintf(name, MAX_NAME, "%s%s.%s", block, stem, kind);
}

static int64_t gguf_bytes(GgufType type, int64_t numel) {
    if (type == GGUF_Q8_0) return numel / Q8_0_BLOCK * Q8_0_BYTES;
    if (type == GGUF_F32) return numel * 4;
    return numel * 2;
}

// The tensors of the file, malloced.
static GgufTensor *list_tensors(const Model *model, GgufType type, int *count) {
    const ModelConfig *config = &model_options(model)->config;
    const char *family = model_family(config);
    // llama.cpp rotates neighbours of a head in these, where we and transformers rotate its halves.
    const bool alternates = strcmp(family, "llama") == 0 || strcmp(family, "arcee") == 0;

    GgufTensor *list = calloc((size_t)model_num_tensors(model) * 3 + 1, sizeof *list);
    REQUIRE_MEMORY(list, "the tensors of a GGUF file");
    int64_t offset = 0;
    *count = 0;

    for (int i = 0; i < model_num_tensors(model); i++) {
        const Parameter *p = &model_parameters(model)[i];
        const bool always_f32 = p->rank == 1 || p->spec == &parameter_specs[PARAM_WPE];
        int64_t first = 0;
        for (int part = 0; part < p->file_parts + p->is_normed; part++) {
            GgufTensor *t = &list[(*count)++];
            *t = (GgufTensor){.p = p, .index = i, .first = first, .offset = offset, .type = type};
            t->normalized = p->is_normed && part == 1; // the embedding; part 0 is the head
            name_tensor(p, part, t->name);
            if (type == GGUF_Q8_0 && p->cols % Q8_0_BLOCK != 0) t->type = GGUF_F16;
            if (always_f32) t->type = GGUF_F32;
            if (p->spec->rows == DIM_QKV && part < 2 && alternates)
                t->head = model_head_size(config);
            t->rows = weights_part_rows(p, part);
            t->bytes = gguf_bytes(t->type, t->rows * p->cols);
            if (!p->is_normed) first += t->rows;
            offset += round_up(t->bytes, ALIGNMENT);
        }
    }
    return list;
}

// ------------------------------------------------------------------------------------------ header

typedef struct {
    FILE *out;
    const char *family; // llama.cpp's architecture
    uint64_t keys;
} GgufHeader;

static void put_little(FILE *out, uint64_t value, size_t bytes) { fwrite(&value, bytes, 1, out); }

static void put_counted(FILE *out, const char *text) {
    put_little(out, strlen(text), 8);
    fputs(text, out);
}

// A key that begins with a dot is one of the architecture.
static void put_key(GgufHeader *h, const char *key, uint32_t type) {
    char name[MAX_NAME];
    snprintf(name, sizeof name, "%s%s", *key == '.' ? h->family : "", key);
    put_counted(h->out, name);
    put_little(h->out, type, 4);
    h->keys++;
}

static void put_u32(GgufHeader *h, const char *key, int64_t value) {
    put_key(h, key, KEY_U32);
    put_little(h->out, (uint64_t)value, 4);
}

static void put_f32(GgufHeader *h, const char *key, float value) {
    put_key(h, key, KEY_F32);
    fwrite(&value, sizeof value, 1, h->out);
}

static void put_text_key(GgufHeader *h, const char *key, const char *text) {
    put_key(h, key, KEY_STRING);
    put_counted(h->out, text);
}

static void put_array(GgufHeader *h, const char *key, uint32_t type, int64_t count) {
    put_key(h, key, KEY_ARRAY);
    put_little(h->out, type, 4);
    put_little(h->out, (uint64_t)count, 8);
}

// The tokenizer as its tokenizer.json spells it, which is GGUF's spelling too.
static void put_vocabulary(GgufHeader *h, const cJSON *root, const char *pre, int64_t V) {
    enum { NORMAL = 1, CONTROL = 3, USER_DEFINED = 4, UNUSED = 5 };
    const cJSON *model = cJSON_GetObjectItemCaseSensitive(root, "model"), *item;
    const cJSON *tokens = cJSON_GetObjectItemCaseSensitive(model, "vocab");
    const cJSON *merges = cJSON_GetObjectItemCaseSensitive(model, "merges");
    int32_t *types = calloc((size_t)V, sizeof *types);
    REQUIRE_MEMORY(types, "the types of tokens");
    int64_t count = 0;

    put_text_key(h, "tokenizer.ggml.model", "gpt2");
    put_text_key(h, "tokenizer.ggml.pre", pre);
    put_array(h, "tokenizer.ggml.tokens", KEY_STRING, V);
    cJSON_ArrayForEach(item, tokens) { // in the order of their numbers, of which none is left out
        put_counted(h->out, item->string);
        types[count++] = NORMAL;
    }
    for (; count < V; count++) {
        char padding[32];
        snprintf(padding, sizeof padding, "[PAD%lld]", (long long)count);
        put_counted(h->out, padding);
        types[count] = UNUSED;
    }

    cJSON_ArrayForEach(item, cJSON_GetObjectItemCaseSensitive(root, "added_tokens")) {
        int32_t *added = &types[cJSON_GetObjectItemCaseSensitive(item, "id")->valueint];
        *added = USER_DEFINED;
        if (cJSON_IsTrue(cJSON_GetObjectItemCaseSensitive(item, "special"))) *added = CONTROL;
    }
    put_array(h, "tokenizer.ggml.token_type", KEY_I32, V);
    fwrite(types, sizeof *types, (size_t)V, h->out);

    put_array(h, "tokenizer.ggml.merges", KEY_STRING, cJSON_GetArraySize(merges));
    cJSON_ArrayForEach(item, merges) put_counted(h->out, item->valuestring);
    free(types);
}

// llama.cpp's name for the pattern and for whether merges are ignored (a piece that is a token is
// not split): for a pattern it always does one or the other. Llama 3's has two names; NULL: it does
// not have the two together.
static const char *pre_tokenizer(const Tokenizer *tokenizer, const cJSON *root) {
    const char *pre = tokenizer_pre(tokenizer);
    const cJSON *model = cJSON_GetObjectItemCaseSensitive(root, "model");
    const bool ignores = cJSON_IsTrue(cJSON_GetObjectItemCaseSensitive(model, "ignore_merges"));
    const bool is_llama3 = pre && strcmp(pre, "llama-bpe") == 0;
    if (is_llama3 && !ignores) return "dbrx";
    if (ignores && !is_llama3) return NULL;
    return pre;
}

// The tokenizer's tokenizer.json. NULL: llama.cpp would make other tokens.
static cJSON *read_tokenizer(const Tokenizer *tokenizer, Error *err) {
    size_t bytes;
    char *text = tokenizer_to_json(tokenizer, &bytes);
    cJSON *root = json_parse(text, bytes, err);
    free(text);
    if (!root) return NULL;
    if (pre_tokenizer(tokenizer, root)) return root;
    error_set(err, "llama.cpp would split texts into other tokens than %s",
              tokenizer_name(tokenizer));
    cJSON_Delete(root);
    return NULL;
}

// The tokens with a meaning, and the chat template.
static void put_special(GgufHeader *h, const HuggingFaceModel *m) {
    static const char *const keys[GGUF_ENDS] = {"tokenizer.ggml.eos_token_id",
                                                "tokenizer.ggml.eot_token_id",
                                                "tokenizer.ggml.eom_token_id"};
    const int64_t begin = huggingface_begin(m);
    const int64_t padding =
        model_extras_padding(huggingface_extras(m), model_options(m->model)->config.V);
    int32_t ends[MAX_END_TOKENS];
    const int count = huggingface_ends(m, ends);
    if (begin >= 0) put_u32(h, "tokenizer.ggml.bos_token_id", begin);
    for (int i = 0; i < count && i < GGUF_ENDS; i++) put_u32(h, keys[i], ends[i]);
    if (padding >= 0) put_u32(h, "tokenizer.ggml.padding_token_id", padding);
    put_key(h, "tokenizer.ggml.add_bos_token", KEY_BOOL);
    put_little(h->out, m->tokenizer && m->tokenizer->begin >= 0, 1);
    char *template = model_extras_chat_template(huggingface_extras(m));
    if (template) put_text_key(h, "tokenizer.chat_template", template);
    free(template);
}

// The header, malloced, padded so that the data may follow. root: of the tokenizer.
static char *gguf_header(const HuggingFaceModel *m, GgufType type, const cJSON *root,
                         const GgufTensor *tensors, int count, size_t *bytes) {
    const ModelConfig *config = &model_options(m->model)->config;
    const Tokenizer *tokenizer = m->tokenizer;
    static const int64_t file_types[] = {
        [GGUF_F32] = 0, [GGUF_F16] = 1, [GGUF_Q8_0] = 7, [GGUF_BF16] = 32};
    const int64_t HS = model_head_size(config);
    const struct {
        const char *key;
        int64_t value;
    } sizes[] = {{".context_length", config->max_T},
                 {".embedding_length", config->C},
                 {".block_count", config->L},
                 {".feed_forward_length", model_size(config, DIM_FF)},
                 {".attention.head_count", config->NH},
                 {".attention.head_count_kv", model_kv_heads(config)},
                 {".attention.key_length", HS},
                 {".attention.value_length", HS},
                 {".vocab_size", config->V}};
    const char *eps = ".attention.layer_norm_epsilon";
    if (config->norm == NORM_RMS) eps = ".attention.layer_norm_rms_epsilon";
    char *text = NULL, name[MODEL_DESCRIPTOR];
    GgufHeader h = {.out = text_open(&text, bytes), .family = model_family(config)};
    fputs(GGUF_MAGIC, h.out);
    put_little(h.out, GGUF_VERSION, 4);
    put_little(h.out, (uint64_t)count, 8);
    put_little(h.out, 0, 8); // of keys, below
    put_text_key(&h, "general.architecture", h.family);
    put_text_key(&h, "general.type", "model");
    put_text_key(&h, "general.name", model_config_descriptor(config, name));
    put_text_key(&h, "general.description", GGUF_MARK);
    put_u32(&h, "general.file_type", file_types[type]);
    put_u32(&h, "general.quantization_version", 2);
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
        put_u32(&h, sizes[i].key, sizes[i].value);
    put_f32(&h, eps, model_eps(config));
    if (config->rope_base > 0) {
        put_f32(&h, ".rope.freq_base", (float)config->rope_base);
        put_u32(&h, ".rope.dimension_count", HS);
    }
    if (tokenizer)
        put_vocabulary(&h, root, pre_tokenizer(tokenizer, root), config->V);
    else
        put_text_key(&h, "tokenizer.ggml.model", "none");
    put_special(&h, m);
    for (const GgufTensor *t = tensors; t < tensors + count; t++) {
        put_counted(h.out, t->name);
        put_little(h.out, (uint64_t)t->p->rank, 4);
        if (t->p->rank == 2) put_little(h.out, (uint64_t)t->p->cols, 8);
        put_little(h.out, (uint64_t)t->rows, 8);
        put_little(h.out, (uint64_t)t->type, 4);
        put_little(h.out, (uint64_t)t->offset, 8);
    }
    fflush(h.out); // updates bytes
    for (size_t n = *bytes; n % ALIGNMENT != 0; n++) putc(0, h.out);
    fclose(h.out);
    memcpy(text + KEYS_AT, &h.keys, sizeof h.keys);
    return text;
}

// -------------------------------------------------------------------------------------------- data

// n values, a multiple of 32. The arithmetic is llama.cpp's: halves are rounded away from zero. A
// block with a value that is not finite has no scale.
static bool to_q8_0(char *out, const float *values, int64_t n, const char *name, Error *err) {
    enum { FP16_INFINITY = 0x7C00 };
    for (const float *x = values; x < values + n; x += Q8_0_BLOCK, out += Q8_0_BYTES) {
        // magnitude, as bits, which have the order of the numbers and become vector code
        uint32_t largest = 0;
        for (int i = 0; i < Q8_0_BLOCK; i++) {
            uint32_t bits;
            memcpy(&bits, &x[i], sizeof bits);
            bits &= FLOAT_MAGNITUDE;
            if (bits > largest) largest = bits;
        }

        float amax;
        memcpy(&amax, &largest, sizeof amax);
        const float d = amax / 127.0f;
        const uint16_t scale = float_to_fp16(d);
        const float inverse = scale > 0 ? 1.0f / d : 0.0f;
        if (scale >= FP16_INFINITY)
            return error_set(
                err,
                "tensor %s has the value %g, which q8_0 cannot represent; write the model in fp32",
                name, (double)amax);

        memcpy(out, &scale, sizeof scale);
        for (int i = 0; i < Q8_0_BLOCK; i++) {
            const float scaled = x[i] * inverse;
            const int whole = (int)scaled;
            const float rest = scaled - (float)whole;
            out[2 + i] = (char)(whole + (rest >= 0.5f) - (rest <= -0.5f));
        }
    }
    return true;
}

// values and converted: of WEIGHTS_PIECE_FLOATS elements.
static bool gguf_append(AtomicFile *file, const Model *model, const GgufTensor *t, float *values,
                        uint16_t *converted, Error *err) {
    static const char zeros[ALIGNMENT];
    const int64_t cols = t->p->cols, piece = weights_piece_rows(t->p);
    const DType dtype = t->type == GGUF_F16 ? DTYPE_FP16 : DTYPE_BF16;
    const void *data = t->type == GGUF_F32 ? (const void *)values : converted;
    bool ok = true;
    for (int64_t row = 0; ok && row < t->rows; row += piece) {
        const int64_t n = min_i64(piece, t->rows - row);
        const int64_t run = t->head ? 1 : n; // rows that are in the same order in our tensor
        for (int64_t r = row; ok && r < row + n; r += run) {
            int64_t ours = t->first + r;
            if (t->head) {
                const int64_t i = r % t->head;
                ours += i / 2 + (i % 2) * (t->head / 2) - i;
            }
            ok = model_get_weight(model, t->index, ours, run, values + (r - row) * cols, err);
        }
        for (int64_t r = 0; ok && t->normalized && r < n; r++)
            weights_normalize_row(values + r * cols, cols);
        if (ok && t->type == GGUF_Q8_0)
            ok = to_q8_0((char *)converted, values, n * cols, t->p->name, err);
        if (ok && (t->type == GGUF_F16 || t->type == GGUF_BF16))
            ok = weights_to_halves(converted, dtype, values, n * cols, t->p->name, err);
        if (ok) ok = atomic_file_write(file, data, (size_t)gguf_bytes(t->type, n * cols), err);
    }
    if (!ok) return false;
    return atomic_file_write(file, zeros, (size_t)(round_up(t->bytes, ALIGNMENT) - t->bytes), err);
}

bool gguf_check(const ModelConfig *config, const Tokenizer *tokenizer, Error *err) {
    const char *family = model_class(config) ? model_family(config) : "";
    ModelConfig own;
    // llama.cpp has the biases of a class's own models; for llama those of any layer.
    if (!model_family_block(family, &own) ||
        (strcmp(family, "llama") != 0 && config->no_bias != own.no_bias))
        return error_set(err, "llama.cpp has no such blocks; name a directory");
    cJSON *root = tokenizer ? read_tokenizer(tokenizer, err) : NULL;
    cJSON_Delete(root);
    return root || !tokenizer;
}

bool gguf_write(const char *path, const HuggingFaceModel *m, GgufType type, Error *err) {
    const Model *model = m->model;
    cJSON *root = m->tokenizer ? read_tokenizer(m->tokenizer, err) : NULL;
    AtomicFile *file = root || !m->tokenizer ? atomic_file_create(path, err) : NULL;
    if (file) {
        int count;
        size_t bytes;
        GgufTensor *tensors = list_tensors(model, type, &count);
        char *header = gguf_header(m, type, root, tensors, count, &bytes);
        float *values = malloc(WEIGHTS_PIECE_FLOATS * sizeof *values);
        uint16_t *converted = malloc(WEIGHTS_PIECE_FLOATS * sizeof *converted);
        REQUIRE_MEMORY(values && converted, "a piece of a tensor");

        bool ok = atomic_file_write(file, header, bytes, err);
        for (int i = 0; ok && i < count; i++)
            ok = gguf_append(file, model, &tensors[i], values, converted, err);

        free(tensors);
        free(header);
        free(values);
        free(converted);
        if (!ok) {
            atomic_file_abandon(file);
            file = NULL;
        }
    }
    cJSON_Delete(root);
    if (!file) return false;
    return own_file_commit(file, path, GGUF_MARK, err);
}
