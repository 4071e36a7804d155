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

static const char forms[] = "expected d6 d12 d24 d36 d48 d60, gpt3:c768 (384 .. 12288), a shape such as "
                            "L=6,C=384,NH=6,V=257,T=256, a directory with config.json, or an llm.c .bin file";

void model_config_set_vocab(ModelConfig *config, int64_t V) {
    config->V = V;
    config->Vp = round_up(V, VOCAB_PADDING);
}

void model_config_set_d_ff(ModelConfig *config, int64_t d_ff) { config->d_ff = d_ff == 4 * config->C ? 0 : d_ff; }

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

// Stores "KEY=NUMBER" in the field it names, which must not have been given before (a bit each).
static bool apply_field(ModelConfig *config, const char *part, unsigned *given, Error *err) {
    const char *equals = strchr(part, '=');
    if (!equals) return error_set(err, "'%.200s' is not a model: %s", part, forms);
    size_t key_length = (size_t)(equals - part);
    const struct {
        const char *key;
        int64_t *field;
    } fields[] = {{"L", &config->L}, {"C", &config->C}, {"NH", &config->NH}, {"V", &config->V}, {"T", &config->max_T}};
    for (size_t i = 0; i < sizeof fields / sizeof fields[0]; i++) {
        if (strlen(fields[i].key) != key_length || strncmp(fields[i].key, part, key_length) != 0) continue;
        char *end;
        errno = 0;
        long long value = strtoll(equals + 1, &end, 10);
        if (!isdigit((unsigned char)equals[1]) || *end || errno || value < 1)
            return error_set(err, "'%s': expected a whole number of at least 1 after %s=", part, fields[i].key);
        if (*given >> i & 1) return error_set(err, "'%s': %s is given twice; leave one out", part, fields[i].key);
        *given |= 1U << i;
        *fields[i].field = value;
        return true;
    }
    return error_set(err, "'%s': the parts of a shape are L, C, NH, V and T", part);
}

bool model_config_parse(ModelConfig *config, const char *descriptor, Error *err) {
    *config = (ModelConfig){0};
    apply_preset(config, "d12");
    config->NH = 0; // unless set by a preset or the shape: C / 64
    if (!*descriptor) return error_set(err, "the model is empty: %s", forms);
    char *copy = strdup(descriptor);
    REQUIRE_MEMORY(copy, "a model description");
    bool ok = true, first = true;
    unsigned given = 0;
    char *rest = copy;
    for (char *part; ok && (part = strsep(&rest, ",")) != NULL; first = false)
        ok = (first && apply_preset(config, part)) || apply_field(config, part, &given, err);
    free(copy);
    if (!ok) return false;
    if (config->NH == 0) config->NH = config->C % 64 == 0 ? config->C / 64 : 1;
    if (config->V > 0) model_config_set_vocab(config, config->V);
    return model_config_check(config, err);
}

bool model_config_is_descriptor(const char *text) {
    char first[32];
    size_t length = strcspn(text, ",");
    if (strchr(text, '/') || length >= sizeof first) return false;
    memcpy(first, text, length);
    first[length] = '\0';
    ModelConfig config;
    return strchr(first, '=') != NULL || apply_preset(&config, first);
}

enum { MAX_C = 65536, D_FF_MULTIPLE = 8 };

bool model_config_check(const ModelConfig *config, Error *err) {
    const struct {
        const char *name;
        int64_t value, low, high;
    } ranges[] = {
        {"the number of blocks (L)", config->L, 1, 1024}, {"the channels (C)", config->C, 1, MAX_C},
        {"the heads (NH)", config->NH, 1, 1024},          {"the context (T)", config->max_T, 1, 1 << 20},
        {"the vocabulary (V)", config->V, 0, 1 << 24},
    };
    for (size_t i = 0; i < sizeof ranges / sizeof ranges[0]; i++)
        if (ranges[i].value < ranges[i].low || ranges[i].value > ranges[i].high)
            return error_set(err, "%s: found %lld, allowed %lld .. %lld", ranges[i].name, (long long)ranges[i].value,
                             (long long)ranges[i].low, (long long)ranges[i].high);
    if (config->C % config->NH != 0)
        return error_set(err, "the channels (C = %lld) must be a multiple of the heads (NH = %lld)",
                         (long long)config->C, (long long)config->NH);
    // Rows of 16 bytes in every dtype but fp8; and no weight is larger than those of the widest model with 4 C.
    if (config->d_ff != 0 && (config->d_ff < D_FF_MULTIPLE || config->d_ff > 4 * MAX_C))
        return error_set(err, "the hidden units of the MLP (d_ff): found %lld, allowed %d .. %d",
                         (long long)config->d_ff, D_FF_MULTIPLE, 4 * MAX_C);
    if (config->d_ff % D_FF_MULTIPLE != 0) {
        const int64_t below = config->d_ff / D_FF_MULTIPLE * D_FF_MULTIPLE;
        return error_set(err,
                         "the hidden units of the MLP (d_ff = %lld) must be a multiple of %d, or 4 C = %lld; nearest: "
                         "%lld or %lld",
                         (long long)config->d_ff, D_FF_MULTIPLE, (long long)(4 * config->C), (long long)below,
                         (long long)(below + D_FF_MULTIPLE));
    }
    return true;
}

const char *model_config_text(const ModelConfig *c, int64_t T, char *buf, size_t size) {
    char d_ff[40] = "";
    if (c->d_ff) snprintf(d_ff, sizeof d_ff, ", d_ff %lld", (long long)c->d_ff);
    snprintf(buf, size, "%lld blocks, %lld channels, %lld heads%s, context %lld, vocabulary %lld", (long long)c->L,
             (long long)c->C, (long long)c->NH, d_ff, (long long)T, (long long)c->V);
    return buf;
}

// ------------------------------------------------------------------------------------------------------ the parameters

enum { MODEL, BLOCK };
#define X(NAME, field, where, group, initial, rows, cols, stacked, hf_name)                                            \
    {#field,                                                                                                           \
     where == BLOCK,                                                                                                   \
     GROUP_##group,                                                                                                    \
     INIT_##initial,                                                                                                   \
     rows,                                                                                                             \
     cols,                                                                                                             \
     stacked,                                                                                                          \
     "transformer." hf_name,                                                                                           \
     GROUP_##group == GROUP_MATRIX},
const ParameterSpec parameter_specs[NUM_PARAMETER_SPECS] = {PARAMETERS(X)};
#undef X

int64_t model_size(const ModelConfig *config, Dimension dimension) {
    const int64_t C = config->C;
    const int64_t sizes[] = {[DIM_1] = 1,           [DIM_C] = C,
                             [DIM_3C] = 3 * C,      [DIM_FF] = config->d_ff ? config->d_ff : 4 * C,
                             [DIM_VP] = config->Vp, [DIM_MAX_T] = config->max_T};
    return sizes[dimension];
}

// The tensors that a model has of a row of the table.
static int tensors_of(const ModelConfig *config, int spec) {
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
    return tensors_before(config, spec) + (parameter_specs[spec].per_block ? block : 0);
}

Parameter *parameter_table(const ModelConfig *config) {
    Parameter *table = calloc((size_t)parameter_count(config), sizeof *table);
    REQUIRE_MEMORY(table, "the parameter table");
    Parameter *p = table;
    for (int s = 0; s < NUM_PARAMETER_SPECS; s++) {
        const ParameterSpec *spec = &parameter_specs[s];
        for (int block = 0; block < tensors_of(config, s); block++, p++) {
            p->spec = spec;
            p->block = spec->per_block ? block : -1;
            p->rank = spec->cols == DIM_1 ? 1 : 2;
            p->rows = model_size(config, spec->rows);
            p->cols = model_size(config, spec->cols);
            p->file_rows = spec->rows == DIM_VP ? config->V : p->rows;
            size_t length = strcspn(spec->hf_name, "%"); // the one conversion in these names is %d
            if (spec->hf_name[length])
                snprintf(p->name, sizeof p->name, "%.*s%d%s", (int)length, spec->hf_name, block,
                         spec->hf_name + length + 2);
            else
                snprintf(p->name, sizeof p->name, "%s", spec->hf_name);
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

const char *parameter_label(const char *name) {
    for (int s = 0; s < NUM_PARAMETER_SPECS; s++) {
        const char *pattern = parameter_specs[s].hf_name, *block = strstr(pattern, "%d");
        if (!block && strcmp(name, pattern) == 0) return parameter_specs[s].name;
        const size_t before = block ? (size_t)(block - pattern) : 0;
        if (!block || strncmp(name, pattern, before) != 0) continue;
        const char *after = name + before + strspn(name + before, "0123456789");
        if (strcmp(after, block + strlen("%d")) == 0) return parameter_specs[s].name;
    }
    return name;
}
