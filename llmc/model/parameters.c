// Model shapes, and the parameter table with everything derived from it: the list of tensors of a given model, their
// order, their initial values. See parameters.h.
#include "llmc/model/parameters.h"

#include "llmc/base/arithmetic.h"
#include <ctype.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

// --------------------------------------------------------------------------------------------------------------- shape

// GPT-2's and GPT-3's published shapes with llm.c's names for them, and llm.c's own: d6, d60 and gpt3:c384.
static const struct {
    const char *name;
    int64_t L, C, NH, max_T;
} presets[] = {
    {"d6", 6, 384, 6, 1024},
    {"d12", 12, 768, 12, 1024},  // GPT-2 small, 124M
    {"d24", 24, 1024, 16, 1024}, // medium, 350M
    {"d36", 36, 1280, 20, 1024}, // large, 774M
    {"d48", 48, 1600, 25, 1024}, // XL, 1558M
    {"d60", 60, 1920, 30, 1024},
    {"gpt3:c384", 6, 384, 6, 2048},
    {"gpt3:c768", 12, 768, 12, 2048},
    {"gpt3:c1024", 24, 1024, 16, 2048},
    {"gpt3:c1536", 24, 1536, 16, 2048},
    {"gpt3:c2048", 24, 2048, 16, 2048},
    {"gpt3:c2560", 32, 2560, 32, 2048},
    {"gpt3:c4096", 32, 4096, 32, 2048},
    {"gpt3:c5120", 40, 5120, 40, 2048},
    {"gpt3:c12288", 96, 12288, 96, 2048},
};
enum { NUM_PRESETS = sizeof presets / sizeof presets[0] };

// The blocks that can be named before a preset or a shape, each as the class of transformers has it.
static const struct {
    const char *name, *class;
    ModelConfig block;
} families[] = {
    {"gpt2", "GPT2LMHeadModel", {0}},
    {"starcoder2", "Starcoder2ForCausalLM", {.rope_base = 10000}},
    {"llama",
     "LlamaForCausalLM",
     {.rope_base = 10000,
      .norm = NORM_RMS,
      .activation = ACTIVATION_SWIGLU,
      .no_bias = true,
      .untied = true,
      .eps = 1e-6f}},
    {"qwen3",
     "Qwen3ForCausalLM",
     {.rope_base = 10000,
      .norm = NORM_RMS,
      .activation = ACTIVATION_SWIGLU,
      .qk_norm = true,
      .no_bias = true,
      .eps = 1e-6f}},
    {"arcee",
     "ArceeForCausalLM",
     {.rope_base = 10000, .norm = NORM_RMS, .activation = ACTIVATION_RELU2, .no_bias = true, .untied = true}},
};
enum { NUM_FAMILIES = sizeof families / sizeof families[0] };

static const char forms[] = "expected d6 d12 d24 d36 d48 d60, gpt3:c768 (384 .. 12288), a shape such as "
                            "L=6,C=384,NH=6,V=257,T=256, any of these after starcoder2:, llama:, qwen3: or arcee:, "
                            "a directory with config.json, or an llm.c .bin file";

int64_t model_kv_heads(const ModelConfig *config) { return config->NKV ? config->NKV : config->NH; }
int64_t model_head_size(const ModelConfig *config) { return config->HS ? config->HS : config->C / config->NH; }
float model_eps(const ModelConfig *config) { return config->eps > 0.0f ? config->eps : 1e-5f; }

static bool same_block(const ModelConfig *a, const ModelConfig *b) {
    return (a->rope_base > 0) == (b->rope_base > 0) && a->norm == b->norm && a->activation == b->activation &&
           a->qk_norm == b->qk_norm && a->no_bias == b->no_bias;
}

static int family_of(const ModelConfig *config) {
    for (int i = 0; i < NUM_FAMILIES; i++)
        if (same_block(config, &families[i].block)) return i;
    return -1;
}

const char *model_family(const ModelConfig *config) {
    const int family = family_of(config);
    return family < 0 ? NULL : families[family].name;
}

const char *model_class(const ModelConfig *config) {
    const int family = family_of(config);
    return family < 0 || (family == 0 && !model_is_gpt2(config)) ? NULL : families[family].class;
}

bool model_family_block(const char *name, ModelConfig *config) {
    for (int i = 0; i < NUM_FAMILIES; i++) {
        if (strcmp(families[i].name, name) != 0) continue;
        *config = families[i].block;
        return true;
    }
    return false;
}

bool model_same_block(const ModelConfig *a, const ModelConfig *b) {
    return same_block(a, b) && a->rope_base == b->rope_base && a->untied == b->untied &&
           model_kv_heads(a) == model_kv_heads(b) && model_head_size(a) == model_head_size(b) &&
           model_eps(a) == model_eps(b);
}

bool model_is_gpt2(const ModelConfig *config) {
    return same_block(config, &families[0].block) && !config->untied && model_eps(config) == 1e-5f &&
           model_kv_heads(config) == config->NH && model_head_size(config) * config->NH == config->C;
}

void model_config_set_vocab(ModelConfig *config, int64_t V) {
    config->V = V;
    config->Vp = round_up(V, VOCAB_PADDING);
}

int64_t model_default_d_ff(const ModelConfig *config) {
    return config->activation == ACTIVATION_SWIGLU ? round_up(ceil_div(8 * config->C, 3), 128) : 4 * config->C;
}

void model_config_set_d_ff(ModelConfig *config, int64_t d_ff) {
    config->d_ff = d_ff == model_default_d_ff(config) ? 0 : d_ff;
}

static bool apply_preset(ModelConfig *config, const char *name) {
    for (int i = 0; i < NUM_PRESETS; i++) {
        if (strcmp(presets[i].name, name) != 0) continue;
        config->L = presets[i].L;
        config->C = presets[i].C;
        config->NH = presets[i].NH;
        config->max_T = presets[i].max_T;
        return true;
    }
    return false;
}

// The family before the ':' of *text, which is advanced past it. NULL: none is named.
static const ModelConfig *take_family(const char **text) {
    for (int i = 0; i < NUM_FAMILIES; i++) {
        const size_t length = strlen(families[i].name);
        if (strncmp(*text, families[i].name, length) != 0 || (*text)[length] != ':') continue;
        *text += length + 1;
        return &families[i].block;
    }
    return NULL;
}

// The parts of a descriptor that are switches.
typedef struct {
    int64_t bias, tied, qk_norm;
} Switches;

// Stores "KEY=NUMBER" in the field it names, which must not have been given before (a bit each).
static bool apply_field(ModelConfig *config, Switches *switches, const char *part, unsigned *given, Error *err) {
    const char *equals = strchr(part, '=');
    if (!equals) return error_set(err, "'%.200s' is not a model: %s", part, forms);
    size_t key_length = (size_t)(equals - part);
    const struct {
        const char *key;
        int64_t *field, low, high;
    } fields[] = {{"L", &config->L, 1, INT64_MAX},      {"C", &config->C, 1, INT64_MAX},
                  {"NH", &config->NH, 1, INT64_MAX},    {"V", &config->V, 1, INT64_MAX},
                  {"T", &config->max_T, 1, INT64_MAX},  {"NKV", &config->NKV, 1, INT64_MAX},
                  {"HS", &config->HS, 1, INT64_MAX},    {"base", &config->rope_base, 0, INT64_MAX},
                  {"bias", &switches->bias, 0, 1},      {"tied", &switches->tied, 0, 1},
                  {"qk_norm", &switches->qk_norm, 0, 1}};
    for (size_t i = 0; i < sizeof fields / sizeof fields[0]; i++) {
        if (strlen(fields[i].key) != key_length || strncmp(fields[i].key, part, key_length) != 0) continue;
        char *end;
        errno = 0;
        long long value = strtoll(equals + 1, &end, 10);
        if (!isdigit((unsigned char)equals[1]) || *end || errno || value < fields[i].low || value > fields[i].high)
            return fields[i].high == 1
                       ? error_set(err, "'%s': expected 0 or 1 after %s=", part, fields[i].key)
                       : error_set(err, "'%s': expected a whole number of at least %lld after %s=", part,
                                   (long long)fields[i].low, fields[i].key);
        if (*given >> i & 1) return error_set(err, "'%s': %s is given twice; leave one out", part, fields[i].key);
        *given |= 1U << i;
        *fields[i].field = value;
        return true;
    }
    return error_set(err, "'%s': the parts of a shape are L, C, NH, V and T, and NKV, HS, base, bias, tied and qk_norm",
                     part);
}

bool model_config_parse(ModelConfig *config, const char *descriptor, Error *err) {
    if (!*descriptor) return error_set(err, "the model is empty: %s", forms);
    const char *shape = descriptor;
    const ModelConfig *block = take_family(&shape);
    *config = block ? *block : (ModelConfig){0};
    Switches switches = {.bias = !config->no_bias, .tied = !config->untied, .qk_norm = config->qk_norm};
    apply_preset(config, "d12");
    config->NH = 0; // unless set by a preset or the shape: C / 64
    char *copy = strdup(shape);
    REQUIRE_MEMORY(copy, "a model description");
    bool ok = true, first = true;
    unsigned given = 0;
    char *rest = copy;
    for (char *part; ok && (part = strsep(&rest, ",")) != NULL; first = false)
        ok = (first && apply_preset(config, part)) || apply_field(config, &switches, part, &given, err);
    free(copy);
    if (!ok) return false;
    config->no_bias = !switches.bias;
    config->untied = !switches.tied;
    config->qk_norm = switches.qk_norm;
    if (config->NH == 0) config->NH = config->C % 64 == 0 ? config->C / 64 : 1;
    if (config->NKV == config->NH) config->NKV = 0;
    if (config->HS * config->NH == config->C) config->HS = 0;
    if (config->V > 0) model_config_set_vocab(config, config->V);
    return model_config_check(config, err);
}

bool model_config_is_descriptor(const char *text) {
    char first[32];
    if (take_family(&text)) return !strchr(text, '/');
    size_t length = strcspn(text, ",");
    if (strchr(text, '/') || length >= sizeof first) return false;
    memcpy(first, text, length);
    first[length] = '\0';
    ModelConfig config;
    return strchr(first, '=') != NULL || apply_preset(&config, first);
}

enum { MAX_C = 65536, D_FF_MULTIPLE = 8 };

// The heads of q, and of keys and values; and what RoPE needs.
static bool check_heads(const ModelConfig *config, Error *err) {
    const long long NH = (long long)config->NH, HS = (long long)model_head_size(config);
    int64_t above = config->NKV + 1, below = config->NKV - 1;
    if (config->HS == 0 && config->C % config->NH != 0)
        return error_set(err, "the channels (C = %lld) must be a multiple of the heads (NH = %lld)",
                         (long long)config->C, NH);
    if (NH * HS > MAX_C)
        return error_set(err, "the heads together (NH = %lld of HS = %lld): found %lld channels, allowed 1 .. %d", NH,
                         HS, NH * HS, MAX_C);
    if (config->NKV > config->NH)
        return error_set(err, "the heads of keys and values (NKV = %lld) are more than the heads (NH = %lld)",
                         (long long)config->NKV, NH);
    if (config->NKV > 0 && config->NH % config->NKV != 0) {
        while (config->NH % above != 0) above++;
        while (config->NH % below != 0) below--;
        return error_set(err,
                         "the heads of keys and values (NKV = %lld) must divide the heads (NH = %lld); nearest: %lld "
                         "or %lld",
                         (long long)config->NKV, NH, (long long)below, (long long)above);
    }
    if (config->rope_base == 0 && config->qk_norm)
        return error_set(err, "qk_norm=1 needs RoPE, and base=0 is learned positions; use base=10000");
    if (config->rope_base > 0 && HS % 2 != 0)
        return error_set(err, "RoPE rotates pairs of channels, and a head has %lld; use HS=%lld or HS=%lld", HS,
                         HS > 1 ? HS - 1 : 2, HS + 1);
    return true;
}

bool model_config_check(const ModelConfig *config, Error *err) {
    const struct {
        const char *name;
        int64_t value, low, high;
    } ranges[] = {
        {"the number of blocks (L)", config->L, 1, 1024},  {"the channels (C)", config->C, 1, MAX_C},
        {"the heads (NH)", config->NH, 1, 1024},           {"the context (T)", config->max_T, 1, 1 << 20},
        {"the vocabulary (V)", config->V, 0, 1 << 24},     {"the head size (HS)", config->HS, 0, MAX_C},
        {"RoPE's base", config->rope_base, 0, 1000000000},
    };
    for (size_t i = 0; i < sizeof ranges / sizeof ranges[0]; i++)
        if (ranges[i].value < ranges[i].low || ranges[i].value > ranges[i].high)
            return error_set(err, "%s: found %lld, allowed %lld .. %lld", ranges[i].name, (long long)ranges[i].value,
                             (long long)ranges[i].low, (long long)ranges[i].high);
    if (!check_heads(config, err)) return false;
    // Rows of 16 bytes in every dtype but fp8; and no weight is larger than those of the widest model with 4 C.
    if (config->d_ff != 0 && (config->d_ff < D_FF_MULTIPLE || config->d_ff > 4 * MAX_C))
        return error_set(err, "the hidden units of the MLP (d_ff): found %lld, allowed %d .. %d",
                         (long long)config->d_ff, D_FF_MULTIPLE, 4 * MAX_C);
    if (config->d_ff % D_FF_MULTIPLE != 0) {
        const int64_t below = config->d_ff / D_FF_MULTIPLE * D_FF_MULTIPLE;
        return error_set(err,
                         "the hidden units of the MLP (d_ff = %lld) must be a multiple of %d, or %s%lld; nearest: "
                         "%lld or %lld",
                         (long long)config->d_ff, D_FF_MULTIPLE,
                         config->activation == ACTIVATION_SWIGLU ? "" : "4 C = ", (long long)model_default_d_ff(config),
                         (long long)below, (long long)(below + D_FF_MULTIPLE));
    }
    return true;
}

const char *model_config_text(const ModelConfig *c, int64_t T, char *buf, size_t size) {
    char block[40] = "", NKV[48] = "", HS[32] = "", d_ff[40] = "";
    const char *family = model_family(c);
    if (!model_is_gpt2(c)) snprintf(block, sizeof block, " of %s", family ? family : "no class");
    if (c->NKV) snprintf(NKV, sizeof NKV, ", %lld of keys and values", (long long)c->NKV);
    if (c->HS) snprintf(HS, sizeof HS, " of %lld channels", (long long)c->HS);
    if (c->d_ff) snprintf(d_ff, sizeof d_ff, ", d_ff %lld", (long long)c->d_ff);
    snprintf(buf, size, "%lld blocks%s, %lld channels, %lld heads%s%s%s%s, context %lld, vocabulary %lld",
             (long long)c->L, block, (long long)c->C, (long long)c->NH, HS, NKV, d_ff,
             c->untied ? ", a head of its own" : "", (long long)T, (long long)c->V);
    return buf;
}

// ------------------------------------------------------------------------------------------------------ the parameters

enum { MODEL, BLOCK };
#define X(NAME, field, where, presence, group, initial, rows, cols, gpt2_name, class_name)                             \
    {#field, where == BLOCK, GROUP_##group, INIT_##initial, presence, rows, cols, "transformer." gpt2_name, class_name},
const ParameterSpec parameter_specs[NUM_PARAMETER_SPECS] = {PARAMETERS(X)};
#undef X

int64_t model_size(const ModelConfig *config, Dimension dimension) {
    const int64_t HS = model_head_size(config), d_ff = config->d_ff ? config->d_ff : model_default_d_ff(config);
    const int64_t sizes[] = {[DIM_1] = 1,
                             [DIM_C] = config->C,
                             [DIM_HS] = HS,
                             [DIM_ATT] = config->NH * HS,
                             [DIM_QKV] = (config->NH + 2 * model_kv_heads(config)) * HS,
                             [DIM_FF] = d_ff,
                             [DIM_FC] = config->activation == ACTIVATION_SWIGLU ? 2 * d_ff : d_ff,
                             [DIM_VP] = config->Vp,
                             [DIM_MAX_T] = config->max_T};
    return sizes[dimension];
}

bool model_has(const ModelConfig *config, Presence presence) {
    const bool has[] = {[IN_ALL] = true,
                        [IN_LEARNED] = config->rope_base == 0,
                        [IN_LAYERNORM] = config->norm == NORM_LAYER,
                        [IN_BIASED] = !config->no_bias,
                        [IN_QK_NORM] = config->qk_norm,
                        [IN_SWIGLU] = config->activation == ACTIVATION_SWIGLU,
                        [IN_UNTIED] = config->untied};
    return has[presence];
}

// The tensors that a model has of a row of the table.
static int tensors_of(const ModelConfig *config, int spec) {
    if (!model_has(config, parameter_specs[spec].presence)) return 0;
    return parameter_specs[spec].per_block ? (int)config->L : 1;
}

// Of the rows before this one.
static int tensors_before(const ModelConfig *config, int spec) {
    int count = 0;
    for (int s = 0; s < spec; s++) count += tensors_of(config, s);
    return count;
}

int parameter_count(const ModelConfig *config) { return tensors_before(config, NUM_PARAMETER_SPECS); }

int parameter_index(const ModelConfig *config, int spec, int block) {
    if (tensors_of(config, spec) == 0) return -1;
    return tensors_before(config, spec) + (parameter_specs[spec].per_block ? block : 0);
}

// Fills in what is stacked in p by rows.
static void set_parts(Parameter *p, const ModelConfig *config) {
    const int64_t att = model_size(config, DIM_ATT), d_ff = model_size(config, DIM_FF);
    p->num_parts = 1;
    p->parts[0] = p->rows;
    if (p->spec->rows == DIM_QKV) {
        p->num_parts = 3;
        p->parts[0] = att;
        p->parts[1] = p->parts[2] = (p->rows - att) / 2;
    } else if (p->spec->rows == DIM_FC && p->rows > d_ff) {
        p->num_parts = 2;
        p->parts[0] = p->parts[1] = d_ff;
    }
}

// The name in files with %d for the block.
static void name_pattern(const ParameterSpec *spec, bool is_gpt2, ActivationKind activation, char pattern[64]) {
    static const char *const fc[] = {"c_fc", "gate_up_proj", "up_proj"}, *const fcproj[] = {"c_proj", "down_proj",
                                                                                            "down_proj"};
    const char *name = is_gpt2 ? spec->gpt2_name : spec->class_name;
    const int length = (int)strcspn(name, "*");
    if (name[length])
        snprintf(pattern, 64, "%.*s%s%s", length, name, (spec->rows == DIM_FC ? fc : fcproj)[activation],
                 name + length + 1);
    else
        snprintf(pattern, 64, "%s", name);
}

void parameter_part_name(const Parameter *p, int part, char name[64]) {
    static const struct {
        const char *whole, *parts[3];
    } fused[] = {{"qkv_proj", {"q_proj", "k_proj", "v_proj"}}, {"gate_up_proj", {"gate_proj", "up_proj"}}};
    snprintf(name, 64, "%s", p->name);
    for (size_t i = 0; p->file_parts > 1 && i < sizeof fused / sizeof fused[0]; i++) {
        const char *at = strstr(p->name, fused[i].whole);
        if (at)
            snprintf(name, 64, "%.*s%s%s", (int)(at - p->name), p->name, fused[i].parts[part],
                     at + strlen(fused[i].whole));
    }
}

Parameter *parameter_table(const ModelConfig *config) {
    Parameter *table = calloc((size_t)parameter_count(config), sizeof *table);
    REQUIRE_MEMORY(table, "the parameter table");
    Parameter *p = table;
    const bool is_gpt2 = model_is_gpt2(config);
    for (int s = 0; s < NUM_PARAMETER_SPECS; s++) {
        const ParameterSpec *spec = &parameter_specs[s];
        for (int block = 0; block < tensors_of(config, s); block++, p++) {
            p->spec = spec;
            p->block = spec->per_block ? block : -1;
            p->rank = spec->cols == DIM_1 ? 1 : 2;
            p->rows = model_size(config, spec->rows);
            p->cols = model_size(config, spec->cols);
            p->file_rows = spec->rows == DIM_VP ? config->V : p->rows;
            set_parts(p, config);
            p->transposed = is_gpt2 && spec->group == GROUP_MATRIX;
            p->file_parts = is_gpt2 ? 1 : p->num_parts;
            char pattern[64];
            name_pattern(spec, is_gpt2, config->activation, pattern);
            const size_t length = strcspn(pattern, "%"); // the one conversion in these names is %d
            if (pattern[length])
                snprintf(p->name, sizeof p->name, "%.*s%d%s", (int)length, pattern, block, pattern + length + 2);
            else
                snprintf(p->name, sizeof p->name, "%s", pattern);
        }
    }
    return table;
}

int64_t parameter_numel(const Parameter *p) { return p->rows * p->cols; }

Tensor parameter_tensor(const Parameter *p, void *data, DType dtype) {
    return tensor_make(data, dtype, p->name, p->rows, p->rank == 2 ? p->cols : 0, 0, 0);
}

int64_t parameter_total(const ModelConfig *config) {
    int64_t total = 0;
    for (int s = 0; s < NUM_PARAMETER_SPECS; s++) {
        const ParameterSpec *spec = &parameter_specs[s];
        total += model_size(config, spec->rows) * model_size(config, spec->cols) * tensors_of(config, s);
    }
    return total;
}

// Element i takes word i % 4 of block i / 4 of the generator; words (0, 1) and (2, 3) make two normals each.
enum { QUADS = 64 }; // blocks of the generator at a time, in loops that become vector code

static void normal_values(float out[4 * QUADS], float std, uint64_t seed, uint64_t stream, uint64_t quad) {
    uint32_t words[4][QUADS];
    for (uint64_t q = 0; q < QUADS; q++) {
        const Philox bits = philox(seed, stream, quad + q);
        words[0][q] = bits.v[0];
        words[1][q] = bits.v[1];
        words[2][q] = bits.v[2];
        words[3][q] = bits.v[3];
    }
    for (int q = 0; q < QUADS; q++) {
        float x[4];
        philox_normal2(words[0][q], words[1][q], x);
        philox_normal2(words[2][q], words[3][q], x + 2);
        for (int i = 0; i < 4; i++) out[4 * q + i] = std * x[i];
    }
}

static void fill_normal(float *out, float std, uint64_t seed, uint64_t stream, int64_t first, int64_t n) {
    enum { VALUES = 4 * QUADS };
#pragma omp parallel for schedule(static)
    for (int64_t block = first / VALUES; block <= (first + n - 1) / VALUES; block++) {
        float values[VALUES];
        const int64_t start = block * VALUES;
        const int64_t begin = max_i64(first, start), end = min_i64(first + n, start + VALUES);
        normal_values(values, std, seed, stream, (uint64_t)(start / 4));
        memcpy(out + (begin - first), values + (begin - start), (size_t)(end - begin) * sizeof *out);
    }
}

void parameter_init_values(float *out, const ModelConfig *config, const Parameter *p, int index, uint64_t seed,
                           int64_t first, int64_t n) {
    InitKind kind = p->spec->init;
    if (n <= 0) return;
    if (kind == INIT_ZERO || kind == INIT_ONE) {
        for (int64_t i = 0; i < n; i++) out[i] = kind == INIT_ONE ? 1.0f : 0.0f;
        return;
    }
    float std = kind == INIT_NORMAL ? 0.02f : 0.02f / sqrtf(2.0f * (float)config->L);
    fill_normal(out, std, seed, ((uint64_t)STREAM_INIT << 32) + (uint64_t)index, first, n);
    int64_t file_numel = p->file_rows * p->cols; // rows that pad the vocabulary stay 0
    for (int64_t i = file_numel > first ? file_numel : first; i < first + n; i++) out[i - first] = 0.0f;
}

static bool matches(const char *name, const char *pattern) {
    const char *block = strstr(pattern, "%d");
    if (!block) return strcmp(name, pattern) == 0;
    const size_t before = (size_t)(block - pattern);
    if (strncmp(name, pattern, before) != 0) return false;
    return strcmp(name + before + strspn(name + before, "0123456789"), block + strlen("%d")) == 0;
}

const char *parameter_label(const char *name) {
    char pattern[64];
    for (int s = 0; s < NUM_PARAMETER_SPECS; s++) {
        if (matches(name, parameter_specs[s].gpt2_name)) return parameter_specs[s].name;
        for (int activation = ACTIVATION_GELU; activation <= ACTIVATION_RELU2; activation++) {
            name_pattern(&parameter_specs[s], false, (ActivationKind)activation, pattern);
            if (matches(name, pattern)) return parameter_specs[s].name;
        }
    }
    return name;
}
