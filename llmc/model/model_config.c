// See model_config.h.
#include "llmc/model/model_config.h"

#include "llmc/base/arithmetic.h"
#include "llmc/base/format.h"
#include "llmc/base/typed_path.h"

#include <ctype.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

// GPT-2's and GPT-3's published shapes with llm.c's names for them, and llm.c's own: d6, d60 and
// gpt3:c384.
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

// The biases that each value of "bias=" leaves out.
static const int bias_choices[] = {BIAS_EVERY, 0, BIAS_PROJ | BIAS_MLP, BIAS_MLP,
                                   BIAS_QKV | BIAS_PROJ};
enum { NUM_BIAS_CHOICES = sizeof bias_choices / sizeof bias_choices[0] };

// The blocks that can be named before a preset or a shape, each as the class of transformers has
// it. biases: the values of "bias=" that the class has.
static const struct {
    const char *name, *class, *biases;
    ModelConfig block;
} families[] = {
    {"gpt2", "GPT2LMHeadModel", "1", {0}},
    {"starcoder2", "Starcoder2ForCausalLM", "01", {.rope_base = 10000}},
    {"llama",
     "LlamaForCausalLM",
     "0134",
     {.rope_base = 10000,
      .norm = NORM_RMS,
      .activation = ACTIVATION_SWIGLU,
      .no_bias = BIAS_EVERY,
      .untied = true,
      .eps = 1e-6f}},
    {"qwen2",
     "Qwen2ForCausalLM",
     "2",
     {.rope_base = 10000,
      .norm = NORM_RMS,
      .activation = ACTIVATION_SWIGLU,
      .no_bias = BIAS_PROJ | BIAS_MLP,
      .eps = 1e-6f}},
    {"qwen3",
     "Qwen3ForCausalLM",
     "03",
     {.rope_base = 10000,
      .norm = NORM_RMS,
      .activation = ACTIVATION_SWIGLU,
      .qk_norm = true,
      .no_bias = BIAS_EVERY,
      .eps = 1e-6f}},
    {"arcee",
     "ArceeForCausalLM",
     "0134",
     {.rope_base = 10000,
      .norm = NORM_RMS,
      .activation = ACTIVATION_RELU2,
      .no_bias = BIAS_EVERY,
      .untied = true}},
};
enum { NUM_FAMILIES = sizeof families / sizeof families[0] };

static const char forms[] =
    "expected d6 d12 d24 d36 d48 d60, gpt3:c768 (384 .. 12288), a shape such as "
    "L=6,C=384,NH=6,V=257,T=256, any of these after starcoder2:, llama:, qwen2:, qwen3: or "
    "arcee:, a directory with config.json, or an llm.c .bin file";

int64_t model_kv_heads(const ModelConfig *config) { return positive_or(config->NKV, config->NH); }
int64_t model_head_size(const ModelConfig *config) {
    if (config->HS) return config->HS;
    return config->C / config->NH;
}
float model_eps(const ModelConfig *config) { return config->eps > 0.0f ? config->eps : 1e-5f; }

// Biases aside.
static bool same_layers(const ModelConfig *a, const ModelConfig *b) {
    return (a->rope_base > 0) == (b->rope_base > 0) && a->norm == b->norm &&
           a->activation == b->activation && a->qk_norm == b->qk_norm;
}

// The value of "bias=" for these layers; NUM_BIAS_CHOICES if there is none.
static int bias_choice(int no_bias) {
    int choice = 0;
    while (choice < NUM_BIAS_CHOICES && bias_choices[choice] != no_bias) choice++;
    return choice;
}

static int family_of(const ModelConfig *config) {
    const int choice = bias_choice(config->no_bias);
    for (int i = 0; i < NUM_FAMILIES; i++)
        if (same_layers(config, &families[i].block) && strchr(families[i].biases, '0' + choice))
            return i;
    return -1;
}

const char *model_family(const ModelConfig *config) {
    const int family = family_of(config);
    if (family < 0) return NULL;
    return families[family].name;
}

const char *model_class(const ModelConfig *config) {
    const int family = family_of(config);
    if (family < 0 || (family == 0 && !model_is_gpt2(config))) return NULL;
    return families[family].class;
}

bool model_class_refuses(const ModelConfig *config) {
    const char *family = model_family(config);
    if (!family) return false;
    return (strcmp(family, "llama") == 0 || strcmp(family, "arcee") == 0) &&
           config->C % config->NH != 0;
}

const char *model_family_block(const char *name, ModelConfig *config) {
    for (int i = 0; i < NUM_FAMILIES; i++) {
        if (strcmp(families[i].name, name) != 0) continue;
        *config = families[i].block;
        return families[i].class;
    }
    return NULL;
}

bool model_same_block(const ModelConfig *a, const ModelConfig *b) {
    return same_layers(a, b) && a->no_bias == b->no_bias && a->rope_base == b->rope_base &&
           a->untied == b->untied && a->embed_norm == b->embed_norm &&
           model_kv_heads(a) == model_kv_heads(b) && model_head_size(a) == model_head_size(b) &&
           model_eps(a) == model_eps(b);
}

bool model_is_gpt2(const ModelConfig *config) {
    return family_of(config) == 0 && !config->untied && model_eps(config) == 1e-5f &&
           model_kv_heads(config) == config->NH &&
           model_head_size(config) * config->NH == config->C;
}

void model_config_set_vocab(ModelConfig *config, int64_t V) {
    config->V = V;
    config->Vp = round_up(V, VOCAB_PADDING);
}

int64_t model_default_d_ff(const ModelConfig *config) {
    if (config->activation == ACTIVATION_SWIGLU) return round_up(ceil_div(8 * config->C, 3), 128);
    return 4 * config->C;
}

void model_config_set_d_ff(ModelConfig *config, int64_t d_ff) {
    config->d_ff = d_ff;
    if (d_ff == model_default_d_ff(config)) config->d_ff = 0;
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
    int64_t bias, tied, qk_norm, embed_norm;
} Switches;

// A name that is no descriptor, with what people mean by it: the models of OpenAI that data/get.py
// fetches.
static bool refuse_name(const char *name, Error *err) {
    static const struct {
        const char *name, *fetched, *preset;
    } known[] = {{"gpt2", "gpt2", "d12"},
                 {"gpt-2", "gpt2", "d12"},
                 {"gpt2-small", "gpt2", "d12"},
                 {"124M", "gpt2", "d12"},
                 {"gpt2-medium", "gpt2-medium", "d24"},
                 {"350M", "gpt2-medium", "d24"},
                 {"gpt2-large", "gpt2-large", "d36"},
                 {"774M", "gpt2-large", "d36"},
                 {"gpt2-xl", "gpt2-xl", "d48"},
                 {"1558M", "gpt2-xl", "d48"}};

    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        if (strcasecmp(name, known[i].name) == 0)
            return error_set(err,
                             "'%s' is not a model here: -e %s begins one of its shape, and "
                             "OpenAI's weights come with: "
                             "%s %s, then -e data/%s",
                             name, known[i].preset, path_of_tool("data/get.py").text,
                             known[i].fetched, known[i].fetched);
    for (int i = 0; i < NUM_FAMILIES; i++)
        if (strcasecmp(name, families[i].name) == 0)
            return error_set(err,
                             "'%s' is a family: add a size, such as -e %s:d12, or a shape, "
                             "%s:L=6,C=384,NH=6,T=256",
                             name, families[i].name, families[i].name);
    return error_set(err, "'%.200s' is not a model: %s", name, forms);
}

// Stores "KEY=NUMBER" in the field it names, which must not have been given before (a bit each).
static bool apply_field(ModelConfig *config, Switches *switches, const char *part, unsigned *given,
                        Error *err) {
    const char *equals = strchr(part, '=');
    if (!equals) return refuse_name(part, err);
    size_t key_length = (size_t)(equals - part);
    const struct {
        const char *key;
        int64_t *field, low, high;
    } fields[] = {{"L", &config->L, 1, INT64_MAX},
                  {"C", &config->C, 1, INT64_MAX},
                  {"NH", &config->NH, 1, INT64_MAX},
                  {"V", &config->V, 1, INT64_MAX},
                  {"T", &config->max_T, 1, INT64_MAX},
                  {"NKV", &config->NKV, 1, INT64_MAX},
                  {"HS", &config->HS, 1, INT64_MAX},
                  {"base", &config->rope_base, 0, INT64_MAX},
                  {"bias", &switches->bias, 0, NUM_BIAS_CHOICES - 1},
                  {"tied", &switches->tied, 0, 1},
                  {"qk_norm", &switches->qk_norm, 0, 1},
                  {"embed_norm", &switches->embed_norm, 0, 1}};

    for (size_t i = 0; i < sizeof fields / sizeof fields[0]; i++) {
        if (strlen(fields[i].key) != key_length || strncmp(fields[i].key, part, key_length) != 0)
            continue;
        char *end;
        errno = 0;
        long long value = strtoll(equals + 1, &end, 10);
        const bool is_whole = isdigit((unsigned char)equals[1]) && !*end && !errno;
        if (!is_whole || value < fields[i].low || value > fields[i].high) {
            if (fields[i].high == INT64_MAX)
                return error_set(err,
                                 "'%s': expected a whole number of at least %lld after %s=", part,
                                 (long long)fields[i].low, fields[i].key);
            const char *to = "to";
            if (fields[i].high == 1) to = "or";
            return error_set(err, "'%s': expected 0 %s %lld after %s=", part, to,
                             (long long)fields[i].high, fields[i].key);
        }

        if (*given >> i & 1)
            return error_set(err, "'%s': %s is given twice; leave one out", part, fields[i].key);
        *given |= 1U << i;
        *fields[i].field = value;
        return true;
    }
    return error_set(err,
                     "'%s': the parts of a shape are L, C, NH, V and T, and NKV, HS, base, bias, "
                     "tied, qk_norm and "
                     "embed_norm",
                     part);
}

bool model_config_parse(ModelConfig *config, const char *descriptor, Error *err) {
    if (!*descriptor) return error_set(err, "the model is empty: %s", forms);
    const char *shape = descriptor;
    const ModelConfig *block = take_family(&shape);
    *config = (ModelConfig){0};
    if (block) *config = *block;
    Switches switches = {
        .bias = bias_choice(config->no_bias), .tied = !config->untied, .qk_norm = config->qk_norm};
    apply_preset(config, "d12");
    config->NH = 0; // unless set by a preset or the shape: C / 64

    char *copy = strdup(shape);
    REQUIRE_MEMORY(copy, "a model description");
    bool ok = true, first = true;
    unsigned given = 0;
    char *rest = copy;
    for (char *part; ok && (part = strsep(&rest, ",")) != NULL; first = false)
        ok = (first && apply_preset(config, part)) ||
             apply_field(config, &switches, part, &given, err);
    free(copy);
    if (!ok) return false;

    config->no_bias = bias_choices[switches.bias];
    config->untied = !switches.tied;
    config->qk_norm = switches.qk_norm;
    config->embed_norm = switches.embed_norm;

    if (config->NH == 0 && config->C % 64 == 0) config->NH = config->C / 64;
    if (config->NH == 0) config->NH = 1;
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
        return error_set(
            err,
            "the heads together (NH = %lld of HS = %lld): found %lld channels, allowed 1 .. %d", NH,
            HS, NH * HS, MAX_C);

    if (config->NKV > config->NH)
        return error_set(
            err, "the heads of keys and values (NKV = %lld) are more than the heads (NH = %lld)",
            (long long)config->NKV, NH);
    if (config->NKV > 0 && config->NH % config->NKV != 0) {
        while (config->NH % above != 0) above++;
        while (config->NH % below != 0) below--;
        return error_set(err,
                         "the heads of keys and values (NKV = %lld) must divide the heads (NH = "
                         "%lld); nearest: %lld "
                         "or %lld",
                         (long long)config->NKV, NH, (long long)below, (long long)above);
    }

    if (bias_choice(config->no_bias) == NUM_BIAS_CHOICES)
        return error_set(err, "biases of these linear layers alone are not supported: all, none, "
                              "those of q, k and v, "
                              "of attention, or of the MLP");

    if (config->rope_base == 0 && config->qk_norm)
        return error_set(err,
                         "qk_norm=1 needs RoPE, and base=0 is learned positions; use base=10000");
    if (config->rope_base == 0 && config->embed_norm)
        return error_set(
            err, "embed_norm=1 needs RoPE, and base=0 is learned positions; use base=10000");
    if (config->untied && config->embed_norm)
        return error_set(err, "embed_norm=1 needs the embedding as the head, and tied=0 is a head "
                              "of its own; use tied=1");
    if (config->rope_base > 0 && HS % 2 != 0)
        return error_set(
            err, "RoPE rotates pairs of channels, and a head has %lld; use HS=%lld or HS=%lld", HS,
            (long long)positive_or(HS - 1, 2), HS + 1);
    return true;
}

bool model_config_check(const ModelConfig *config, Error *err) {
    const struct {
        const char *name;
        int64_t value, low, high;
    } ranges[] = {
        {"the number of blocks (L)", config->L, 1, 1024},
        {"the channels (C)", config->C, 1, MAX_C},
        {"the heads (NH)", config->NH, 1, 1024},
        {"the context (T)", config->max_T, 1, 1 << 20},
        {"the vocabulary (V)", config->V, 0, 1 << 24},
        {"the head size (HS)", config->HS, 0, MAX_C},
        {"RoPE's base", config->rope_base, 0, 1000000000},
    };

    for (size_t i = 0; i < sizeof ranges / sizeof ranges[0]; i++)
        if (ranges[i].value < ranges[i].low || ranges[i].value > ranges[i].high)
            return error_set(err, "%s: found %lld, allowed %lld .. %lld", ranges[i].name,
                             (long long)ranges[i].value, (long long)ranges[i].low,
                             (long long)ranges[i].high);
    if (!check_heads(config, err)) return false;

    // Rows of 16 bytes in every dtype but fp8; and no weight is larger than those of the widest
    // model with 4 C.
    if (config->d_ff != 0 && (config->d_ff < D_FF_MULTIPLE || config->d_ff > 4 * MAX_C))
        return error_set(err, "the hidden units of the MLP (d_ff): found %lld, allowed %d .. %d",
                         (long long)config->d_ff, D_FF_MULTIPLE, 4 * MAX_C);
    if (config->d_ff % D_FF_MULTIPLE != 0) {
        const int64_t below = config->d_ff / D_FF_MULTIPLE * D_FF_MULTIPLE;
        return error_set(err,
                         "the hidden units of the MLP (d_ff = %lld) must be a multiple of %d, or "
                         "%s%lld; nearest: "
                         "%lld or %lld",
                         (long long)config->d_ff, D_FF_MULTIPLE,
                         config->activation != ACTIVATION_SWIGLU ? "4 C = " : "",
                         (long long)model_default_d_ff(config), (long long)below,
                         (long long)(below + D_FF_MULTIPLE));
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
    snprintf(buf, size,
             "%lld blocks%s, %lld channels, %lld heads%s%s%s%s%s, context %lld, vocabulary %lld",
             (long long)c->L, block, (long long)c->C, (long long)c->NH, HS, NKV, d_ff,
             c->untied ? ", a head of its own" : "",
             c->embed_norm ? ", a norm after the embedding" : "", (long long)T, (long long)c->V);
    return buf;
}

const char *model_config_descriptor(const ModelConfig *c, char buf[MODEL_DESCRIPTOR]) {
    int family = family_of(c);
    for (int i = 0; family < 0 && i < NUM_FAMILIES;
         i++) // the parts below make any block of its norm and activation
        if (families[i].block.norm == c->norm && families[i].block.activation == c->activation)
            family = i;
    REQUIRE(family >= 0, "a norm and an activation that no family has");

    const ModelConfig *block = &families[family].block;
    const struct {
        const char *key;
        int64_t value, of_family;
    } parts[] = {{"NKV", c->NKV, 0},
                 {"HS", c->HS, 0},
                 {"base", c->rope_base, block->rope_base},
                 {"bias", bias_choice(c->no_bias), bias_choice(block->no_bias)},
                 {"tied", !c->untied, !block->untied},
                 {"qk_norm", c->qk_norm, block->qk_norm},
                 {"embed_norm", c->embed_norm, 0}};

    int n =
        snprintf(buf, MODEL_DESCRIPTOR, "%s%sL=%lld,C=%lld,NH=%lld,V=%lld,T=%lld",
                 family > 0 ? families[family].name : "", family > 0 ? ":" : "", (long long)c->L,
                 (long long)c->C, (long long)c->NH, (long long)c->V, (long long)c->max_T);
    for (size_t i = 0; i < sizeof parts / sizeof parts[0]; i++)
        if (parts[i].value != parts[i].of_family)
            n += snprintf(buf + n, MODEL_DESCRIPTOR - (size_t)n, ",%s=%lld", parts[i].key,
                          (long long)parts[i].value);
    return buf;
}

int64_t model_size(const ModelConfig *config, Dimension dimension) {
    const int64_t HS = model_head_size(config),
                  d_ff = positive_or(config->d_ff, model_default_d_ff(config));
    const int64_t gates = config->activation == ACTIVATION_SWIGLU;
    const int64_t sizes[] = {[DIM_1] = 1,
                             [DIM_C] = config->C,
                             [DIM_HS] = HS,
                             [DIM_ATT] = config->NH * HS,
                             [DIM_QKV] = (config->NH + 2 * model_kv_heads(config)) * HS,
                             [DIM_FF] = d_ff,
                             [DIM_FC] = (1 + gates) * d_ff,
                             [DIM_VP] = config->Vp,
                             [DIM_MAX_T] = config->max_T};
    return sizes[dimension];
}

bool model_has(const ModelConfig *config, Presence presence) {
    const bool has[] = {[IN_ALL] = true,
                        [IN_LEARNED] = config->rope_base == 0,
                        [IN_LAYERNORM] = config->norm == NORM_LAYER,
                        [IN_QKV_BIAS] = !(config->no_bias & BIAS_QKV),
                        [IN_PROJ_BIAS] = !(config->no_bias & BIAS_PROJ),
                        [IN_MLP_BIAS] = !(config->no_bias & BIAS_MLP),
                        [IN_QK_NORM] = config->qk_norm,
                        [IN_SWIGLU] = config->activation == ACTIVATION_SWIGLU,
                        [IN_UNTIED] = config->untied};
    return has[presence];
}
