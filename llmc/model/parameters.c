// The parameter table and everything derived from it: the list of tensors of a given model, their
// order, their initial values. See parameters.h.
#include "llmc/model/parameters.h"

#include "llmc/base/arithmetic.h"
#include "llmc/base/random.h"
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MODEL, BLOCK };
#define X(NAME, field, where, presence, group, initial, rows, cols, gpt2_name, class_name)         \
    {#field, where == BLOCK,           GROUP_##group, INIT_##initial, presence, rows,              \
     cols,   "transformer." gpt2_name, class_name},
const ParameterSpec parameter_specs[NUM_PARAMETER_SPECS] = {PARAMETERS(X)};
#undef X

// The tensors that a model has of a row of the table.
static int tensors_of(const ModelConfig *config, int spec) {
    if (!model_has(config, parameter_specs[spec].presence)) return 0;
    if (parameter_specs[spec].per_block) return (int)config->L;
    return 1;
}

// Counts the tensors of the rows before this one.
static int tensors_before(const ModelConfig *config, int spec) {
    int count = 0;
    for (int s = 0; s < spec; s++) count += tensors_of(config, s);
    return count;
}

int parameter_count(const ModelConfig *config) {
    return tensors_before(config, NUM_PARAMETER_SPECS);
}

int parameter_index(const ModelConfig *config, int spec, int block) {
    if (tensors_of(config, spec) == 0) return -1;
    if (!parameter_specs[spec].per_block) block = 0;
    return tensors_before(config, spec) + block;
}

// The name in files with %d for the block.
static void name_pattern(const ParameterSpec *spec, bool is_gpt2, ActivationKind activation,
                         char pattern[64]) {
    static const char *const fc[] = {"c_fc", "gate_up_proj", "up_proj"}, *const fcproj[] = {
                                                                             "c_proj", "down_proj",
                                                                             "down_proj"};
    const char *name = is_gpt2 ? spec->gpt2_name : spec->class_name;
    const int length = (int)strcspn(name, "*");
    if (name[length])
        snprintf(pattern, 64, "%.*s%s%s", length, name,
                 (spec->rows == DIM_FC ? fc : fcproj)[activation], name + length + 1);
    else
        snprintf(pattern, 64, "%s", name);
}

void parameter_part_name(const Parameter *p, int part, char name[64]) {
    static const struct {
        const char *whole, *parts[3];
    } fused[] = {{"qkv_proj", {"q_proj", "k_proj", "v_proj"}},
                 {"gate_up_proj", {"gate_proj", "up_proj"}}};

    snprintf(name, 64, "%s", p->name);
    if (p->is_normed) snprintf(name, 64, "%s", parameter_specs[PARAM_HEADW].class_name);
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
    const int64_t att = model_size(config, DIM_ATT), d_ff = model_size(config, DIM_FF);

    for (int s = 0; s < NUM_PARAMETER_SPECS; s++) {
        const ParameterSpec *spec = &parameter_specs[s];
        for (int block = 0; block < tensors_of(config, s); block++, p++) {
            p->spec = spec;
            p->block = -1;
            if (spec->per_block) p->block = block;
            p->rank = 1 + (spec->cols != DIM_1);
            p->rows = model_size(config, spec->rows);
            p->cols = model_size(config, spec->cols);
            p->file_rows = p->rows;
            if (spec->rows == DIM_VP) p->file_rows = config->V;

            // The parts that it stacks by rows.
            p->num_parts = 1;
            p->parts[0] = p->rows;
            if (spec->rows == DIM_QKV) {
                p->num_parts = 3;
                p->parts[0] = att;
                p->parts[1] = p->parts[2] = (p->rows - att) / 2;
            } else if (spec->rows == DIM_FC && p->rows > d_ff) {
                p->num_parts = 2;
                p->parts[0] = p->parts[1] = d_ff;
            }

            p->is_normed = s == PARAM_WTE && config->embed_norm;
            p->transposed = is_gpt2 && spec->group == GROUP_MATRIX;
            p->file_parts = p->num_parts;
            if (is_gpt2) p->file_parts = 1;

            char pattern[64];
            name_pattern(spec, is_gpt2, config->activation, pattern);
            const size_t length = strcspn(pattern, "%"); // the one conversion in these names is %d
            if (pattern[length])
                snprintf(p->name, sizeof p->name, "%.*s%d%s", (int)length, pattern, block,
                         pattern + length + 2);
            else
                snprintf(p->name, sizeof p->name, "%s", pattern);
        }
    }
    return table;
}

int64_t parameter_numel(const Parameter *p) { return p->rows * p->cols; }

Tensor parameter_tensor(const Parameter *p, void *data, DType dtype) {
    if (p->rank == 1) return tensor_make(data, dtype, p->name, p->rows, 0, 0, 0);
    return tensor_make(data, dtype, p->name, p->rows, p->cols, 0, 0);
}

int64_t parameter_total(const ModelConfig *config) {
    int64_t total = 0;
    for (int s = 0; s < NUM_PARAMETER_SPECS; s++) {
        const ParameterSpec *spec = &parameter_specs[s];
        total +=
            model_size(config, spec->rows) * model_size(config, spec->cols) * tensors_of(config, s);
    }
    return total;
}

void parameter_init_values(float *out, const ModelConfig *config, const Parameter *p, int index,
                           uint64_t seed, int64_t first, int64_t n) {
    // Element i takes word i % 4 of block i / 4 of the generator; words (0, 1) and (2, 3) make two
    // normals each.
    enum {
        QUADS = 64,
        VALUES = 4 * QUADS
    }; // blocks of the generator at a time, in loops that become vector code
    InitKind kind = p->spec->init;
    if (kind == INIT_NORMAL_RESIDUAL && config->embed_norm) kind = INIT_ZERO;
    if (n <= 0) return;

    if (kind == INIT_ZERO || kind == INIT_ONE) {
        for (int64_t i = 0; i < n; i++) out[i] = (float)(kind == INIT_ONE);
        return;
    }

    float std = 0.02f;
    if (kind != INIT_NORMAL) std /= sqrtf(2.0f * (float)config->L);
    const uint64_t stream = ((uint64_t)STREAM_INIT << 32) + (uint64_t)index;

#pragma omp parallel for schedule(static)
    for (int64_t block = first / VALUES; block <= (first + n - 1) / VALUES; block++) {
        const int64_t start = block * VALUES;
        const int64_t begin = max_i64(first, start), end = min_i64(first + n, start + VALUES);
        uint32_t words[4][QUADS];
        float values[VALUES];
        for (int q = 0; q < QUADS; q++) {
            const Philox bits = philox(seed, stream, (uint64_t)(start / 4 + q));
            for (int i = 0; i < 4; i++) words[i][q] = bits.v[i];
        }

        for (int q = 0; q < QUADS; q++) {
            float x[4];
            philox_normal2(words[0][q], words[1][q], x);
            philox_normal2(words[2][q], words[3][q], x + 2);
            for (int i = 0; i < 4; i++) values[4 * q + i] = std * x[i];
        }
        memcpy(out + (begin - first), values + (begin - start),
               (size_t)(end - begin) * sizeof *out);
    }

    int64_t file_numel = p->file_rows * p->cols; // rows that pad the vocabulary stay 0
    for (int64_t i = max_i64(file_numel, first); i < first + n; i++) out[i - first] = 0.0f;
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
