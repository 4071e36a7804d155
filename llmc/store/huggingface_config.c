// config.json, see huggingface_config.h.
#include "llmc/store/huggingface_config.h"

#include "llmc/base/format.h"
#include "llmc/base/json.h"

#include <math.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

// ------------------------------------------------------------------------ the fields of each class

// The "model_type"s, a bit each in the tables below. The last is for blocks that no class of
// transformers has; its config.json describes the block.
static const char *const model_types[] = {"gpt2",  "starcoder2", "llama",      "qwen2",
                                          "qwen3", "arcee",      "pretrain_cu"};
enum { NUM_TYPES = sizeof model_types / sizeof model_types[0] };
enum {
    GPT2 = 1,
    STARCODER2 = 2,
    LLAMA = 4,
    QWEN2 = 8,
    QWEN3 = 16,
    ARCEE = 32,
    OWN = 64,
    EVERY_TYPE = 127
};

// Fields that are absent or null, or have the one value that our blocks compute with. From
// partial_rotary_factor on, fields of other classes, in case a model of one of those is given the
// name of one of these.
static const struct {
    const char *key;
    int types;
    const char *only;
} fixed_fields[] = {
    {"tie_word_embeddings", GPT2, "true"},
    {"scale_attn_weights", GPT2, "true"},
    {"scale_attn_by_inverse_layer_idx", GPT2, "false"},
    {"add_cross_attention", EVERY_TYPE, "false"},
    {"is_encoder_decoder", EVERY_TYPE, "false"},
    {"use_sliding_window", EVERY_TYPE, "false"},
    {"partial_rotary_factor", EVERY_TYPE, "1"},
    {"embedding_multiplier", EVERY_TYPE, "1"},
    {"residual_multiplier", EVERY_TYPE, "1"},
    {"attention_multiplier", EVERY_TYPE, "null"},
    {"logits_scaling", EVERY_TYPE, "1"},
    {"attn_logit_softcapping", EVERY_TYPE, "null"},
    {"final_logit_softcapping", EVERY_TYPE, "null"},
};
enum { NUM_FIXED_FIELDS = sizeof fixed_fields / sizeof fixed_fields[0] };

// Sizes, under GPT-2's name and under the name that transformers has for all models.
typedef struct {
    const char *gpt2_key, *key;
    size_t offset;
    int optional; // the types that may leave it out: their default follows from the other sizes
} SizeField;
static const SizeField size_fields[] = {
    {"n_positions", "max_position_embeddings", offsetof(ModelConfig, max_T), 0},
    {"vocab_size", "vocab_size", offsetof(ModelConfig, V), 0},
    {"n_layer", "num_hidden_layers", offsetof(ModelConfig, L), 0},
    {"n_head", "num_attention_heads", offsetof(ModelConfig, NH), 0},
    {"n_embd", "hidden_size", offsetof(ModelConfig, C), 0},
    {"n_inner", "intermediate_size", offsetof(ModelConfig, d_ff), GPT2},
    {NULL, "num_key_value_heads", offsetof(ModelConfig, NKV), LLAMA | ARCEE | OWN},
    {NULL, "head_dim", offsetof(ModelConfig, HS), EVERY_TYPE - QWEN3},
};
enum { NUM_SIZE_FIELDS = sizeof size_fields / sizeof size_fields[0] };

// Switches for the biases of linear layers, and what they are where the field is absent.
static const struct {
    const char *key;
    int types, biases;
    bool by_default;
} bias_fields[] = {
    {"use_bias", STARCODER2 | OWN, BIAS_EVERY, true},
    {"attention_bias", LLAMA | QWEN3 | ARCEE | OWN, BIAS_QKV | BIAS_PROJ, false},
    {"mlp_bias", LLAMA | ARCEE | OWN, BIAS_MLP, false},
    {"qkv_bias", OWN, BIAS_QKV, false},
};
enum { NUM_BIAS_FIELDS = sizeof bias_fields / sizeof bias_fields[0] };

static const char *const hidden_acts[] = {"gelu_pytorch_tanh", "silu", "relu2"};
// other names of the same formulas
static const char *const same_acts[] = {"gelu_new", "swish", "relu2"};
static const char *const eps_keys[] = {"norm_epsilon", "rms_norm_eps"};
static const char *const norm_names[] = {"layernorm", "rmsnorm"};

static int type_of(const char *name) {
    for (int i = 0; i < NUM_TYPES; i++)
        if (strcmp(model_types[i], name) == 0) return 1 << i;
    return 0;
}

// ----------------------------------------------------------------------------------------- reading

// Absent, or one of two texts.
static bool check_string(const cJSON *root, const char *key, const char *expected, const char *also,
                         Error *err) {
    const cJSON *item;
    char found[64];
    if (!json_find(root, key, &item, err)) return false;
    const char *text = cJSON_IsString(item) ? item->valuestring : "";
    if (!item || strcmp(text, expected) == 0 || strcmp(text, also) == 0) return true;
    return error_set(err, "\"%s\" is %s, expected \"%s\"", key,
                     json_describe(item, found, sizeof found), expected);
}

// Other classes have other heads. GPT2Model, say, is GPT2LMHeadModel without its head.
static bool check_class(const cJSON *root, const char *class, Error *err) {
    const cJSON *item, *name;
    char found[64], without_head[40];
    _Static_assert(sizeof "ForCausalLM" == sizeof "LMHeadModel",
                   "one of them ends the name of a class");
    snprintf(without_head, sizeof without_head, "%.*sModel",
             (int)(strlen(class) - strlen("ForCausalLM")), class);

    if (!json_find(root, "quantization_config", &item, err)) return false;
    if (item && !cJSON_IsNull(item))
        return error_set(
            err, "it has a \"quantization_config\"; save the model again without quantization");

    if (!json_find(root, "architectures", &item, err)) return false;
    cJSON_ArrayForEach(name, item) {
        const char *text = cJSON_IsString(name) ? name->valuestring : "";
        if (strcmp(text, class) == 0 || strcmp(text, without_head) == 0) return true;
    }
    if (!item || cJSON_IsNull(item) || (cJSON_IsArray(item) && !item->child)) return true;
    if (cJSON_IsArray(item)) item = item->child;
    return error_set(err, "\"architectures\" is %s, expected [\"%s\"]",
                     json_describe(item, found, sizeof found), class);
}

static bool check_fixed(const cJSON *root, int type, Error *err) {
    const cJSON *item;
    char found[64];
    for (int i = 0; i < NUM_FIXED_FIELDS; i++) {
        const char *key = fixed_fields[i].key, *only = fixed_fields[i].only;
        if (!(fixed_fields[i].types & type)) continue;
        if (!json_find(root, key, &item, err)) return false;
        if (item && !cJSON_IsNull(item) &&
            strcmp(json_describe(item, found, sizeof found), only) != 0)
            return error_set(err, "\"%s\" is %s, only %s is supported", key, found, only);
    }
    return true;
}

static bool parse_size(const cJSON *root, int type, const SizeField *field, ModelConfig *config,
                       Error *err) {
    const cJSON *item, *gpt2_item = NULL;
    const bool has_two_names =
        type == GPT2 && field->gpt2_key && strcmp(field->gpt2_key, field->key) != 0;
    int64_t *size = (int64_t *)((char *)config + field->offset), same;

    if (type == GPT2 && !field->gpt2_key) return true;
    if (!json_find(root, field->key, &item, err) ||
        (has_two_names && !json_find(root, field->gpt2_key, &gpt2_item, err)))
        return false;
    const cJSON *stated = gpt2_item ? gpt2_item : item;
    if (field->optional & type && (!stated || cJSON_IsNull(stated))) return true;

    const char *key = field->key;
    if (has_two_names && (gpt2_item || !item)) key = field->gpt2_key;
    if (!json_get_int(root, key, 1, INT32_MAX, size, err)) return false;
    if (gpt2_item && item && !(json_int_value(item, 1, INT32_MAX, &same) && same == *size))
        return error_set(err, "\"%s\" and \"%s\" are the same size but differ", key, field->key);
    return true;
}

static bool parse_flag(const cJSON *root, const char *key, bool *value, Error *err) {
    const cJSON *item;
    char found[64];
    if (!json_find(root, key, &item, err)) return false;
    if (!item || cJSON_IsNull(item)) return true;
    *value = cJSON_IsTrue(item);
    if (!cJSON_IsBool(item))
        return error_set(err, "\"%s\" is %s, expected true or false", key,
                         json_describe(item, found, sizeof found));
    return true;
}

// "rope_parameters" of transformers 5, or "rope_scaling" of earlier versions. *base stays where it
// states none.
static bool parse_rope_object(const cJSON *root, const char *key, double *base, Error *err) {
    static const char *const known[] = {"rope_type", "type", "rope_theta", "partial_rotary_factor",
                                        NULL};
    const cJSON *object, *item;
    char found[64];
    if (!json_find(root, key, &object, err)) return false;
    if (!object || cJSON_IsNull(object)) return true;
    if (!cJSON_IsObject(object))
        return error_set(err, "\"%s\" is %s, expected an object", key,
                         json_describe(object, found, sizeof found));
    if (!(check_string(object, "rope_type", "default", "default", err) &&
          check_string(object, "type", "default", "default", err) &&
          check_fixed(object, EVERY_TYPE, err) && json_check_keys(object, known, err) &&
          json_find(object, "rope_theta", &item, err) &&
          (!item || json_get_double(object, "rope_theta", base, err))))
        return error_prefix(err, "\"%s\" (only RoPE without scaling is supported)", key);
    return true;
}

// RoPE's base. A base that is off by a factor of 1 + e turns no angle at position T by more than T
// e / (2.7 ln base): for 1e-6, no more than fp32 rounds an angle of T. (starcoder2-3b states
// 999999.4420358813.)
static bool parse_rope(const cJSON *root, int type, ModelConfig *config, Error *err) {
    const cJSON *item;
    double base = (double)config->rope_base;
    if (!json_find(root, "rope_theta", &item, err) ||
        (item && !cJSON_IsNull(item) && !json_get_double(root, "rope_theta", &base, err)) ||
        !parse_rope_object(root, "rope_scaling", &base, err) ||
        !parse_rope_object(root, "rope_parameters", &base, err))
        return false;
    double least = 1.0;
    if (type == OWN) least = 0.0; // 0: learned positions, which the classes have not
    if (!(base >= least && base <= 1e9 && fabs(base - round(base)) <= 1e-6 * base))
        return error_set(err, "\"rope_theta\" is %g, only whole numbers up to 1e9 are supported",
                         base);
    config->rope_base = (int64_t)round(base);
    return true;
}

// A window counts where it is shorter than the context.
static bool check_windows(const cJSON *root, int type, const ModelConfig *config, Error *err) {
    const cJSON *item, *layer;
    int64_t window;
    char found[64];
    if (!json_find(root, "layer_types", &item, err)) return false;
    cJSON_ArrayForEach(layer, item) {
        if (!cJSON_IsString(layer) || strcmp(layer->valuestring, "full_attention") != 0)
            return error_set(err, "\"layer_types\" has %s, only \"full_attention\" is supported",
                             json_describe(layer, found, sizeof found));
    }

    if (!json_find(root, "sliding_window", &item, err)) return false;
    // theirs: "use_sliding_window"
    if (!item || cJSON_IsNull(item) || type & (QWEN2 | QWEN3)) return true;
    if (!json_get_int(root, "sliding_window", 1, INT32_MAX, &window, err)) return false;
    if (window < config->max_T)
        return error_set(
            err,
            "\"sliding_window\" is %lld, shorter than the context of %lld, which is not supported; "
            "set "
            "\"max_position_embeddings\" to %lld as well: up to there the window changes nothing",
            (long long)window, (long long)config->max_T, (long long)window);
    return true;
}

static bool parse_eps(const cJSON *root, int type, ModelConfig *config, Error *err) {
    const char *key = type != GPT2 ? eps_keys[config->norm] : "layer_norm_epsilon";
    const cJSON *item;
    double eps;
    if (!json_find(root, key, &item, err)) return false;
    if (!item) return true; // the class's
    if (!json_get_double(root, key, &eps, err)) return false;
    const bool is_default = fabs(eps - 1e-5) < 1e-9;
    if (type == GPT2 && !is_default)
        return error_set(err, "\"%s\" is %g, only 1e-05 is supported", key, eps);
    if (!(eps >= 1e-12 && eps <= 0.1))
        return error_set(err, "\"%s\" is %g, expected 1e-12 to 0.1", key, eps);
    config->eps = 0.0f;
    if (!is_default) config->eps = (float)eps;
    return true;
}

// One of the names; *index stays if it is absent.
static bool parse_name(const cJSON *root, const char *key, const char *const *names, int count,
                       int *index, Error *err) {
    const cJSON *item;
    char found[64];
    if (!json_find(root, key, &item, err)) return false;
    for (int i = 0; cJSON_IsString(item) && i < count; i++)
        if (strcmp(item->valuestring, names[i]) == 0) {
            *index = i;
            return true;
        }
    if (item)
        return error_set(err, "\"%s\" is %s, which is not supported", key,
                         json_describe(item, found, sizeof found));
    return true;
}

bool huggingface_parse_config(const cJSON *root, ModelConfig *config, Error *err) {
    const char *name;
    *config = (ModelConfig){0};
    if (!json_get_string(root, "model_type", &name, err)) return false;
    const int type = type_of(name);
    if (!type)
        return error_set(err,
                         "\"model_type\" is \"%.40s\", expected \"gpt2\", starcoder2, llama, "
                         "qwen2, qwen3 or arcee",
                         name);
    const char *class = model_family_block(name, config), *activation_key = "hidden_act";
    if (type == GPT2) activation_key = "activation_function";
    if (type == OWN) {
        int norm = NORM_LAYER, activation = ACTIVATION_GELU;
        if (!parse_name(root, "norm", norm_names, 2, &norm, err) ||
            !parse_name(root, "hidden_act", hidden_acts, 3, &activation, err) ||
            !parse_flag(root, "qk_norm", &config->qk_norm, err))
            return false;
        config->norm = (NormKind)norm;
        config->activation = (ActivationKind)activation;
        if ((norm == NORM_LAYER) != (activation == ACTIVATION_GELU))
            return error_set(
                err,
                "\"norm\" is \"%s\" and \"hidden_act\" \"%s\", which no descriptor gives a block",
                norm_names[norm], hidden_acts[activation]);
    } else if (!check_class(root, class, err) ||
               !check_string(root, activation_key, hidden_acts[config->activation],
                             same_acts[config->activation], err)) {
        return false;
    }
    if (!check_fixed(root, type, err)) return false;
    for (int i = 0; i < NUM_SIZE_FIELDS; i++)
        if (!parse_size(root, type, &size_fields[i], config, err)) return false;
    bool tied = (type & (GPT2 | STARCODER2)) != 0; // the classes' default
    if (!parse_eps(root, type, config, err) || !parse_flag(root, "tie_word_embeddings", &tied, err))
        return false;
    if (!parse_flag(root, "embed_norm", &config->embed_norm, err)) return false;
    if (config->embed_norm && tied)
        return error_set(err, "\"embed_norm\" and \"tie_word_embeddings\" are both true, but with "
                              "a norm after it the "
                              "embedding is stored beside the head; one of them must be false");
    config->untied = !tied && !config->embed_norm;

    int biases = 0;
    if (type == GPT2) biases = BIAS_EVERY;
    if (type == QWEN2) biases = BIAS_QKV; // it has no switch
    for (int i = 0; i < NUM_BIAS_FIELDS; i++) {
        bool is_on = bias_fields[i].by_default;
        if (!(bias_fields[i].types & type)) continue;
        if (!parse_flag(root, bias_fields[i].key, &is_on, err)) return false;
        if (is_on) biases |= bias_fields[i].biases;
    }
    config->no_bias = BIAS_EVERY & ~biases;
    if (type != GPT2 &&
        (!parse_rope(root, type, config, err) || !check_windows(root, type, config, err)))
        return false;
    if (config->NKV == config->NH) config->NKV = 0;
    if (config->HS * config->NH == config->C) config->HS = 0;
    model_config_set_d_ff(config, config->d_ff);
    model_config_set_vocab(config, config->V);
    return model_config_check(config, err);
}

// ----------------------------------------------------------------------------------------- writing

// The numbers of a config.json that may be null, as they are written.
typedef struct {
    char inner[32], begin[32], eot[32];
} NullableTexts;

static void print_gpt2_config(FILE *out, const ModelConfig *config, const NullableTexts *texts) {
    const long long T = (long long)config->max_T, V = (long long)config->V,
                    C = (long long)config->C;
    const long long L = (long long)config->L, NH = (long long)config->NH;

    fputs("{\n  \"architectures\": [\"GPT2LMHeadModel\"],\n  \"model_type\": \"gpt2\",\n", out);
    fputs("  \"activation_function\": \"gelu_new\",\n", out);
    fprintf(out, "  \"n_positions\": %lld,\n  \"n_ctx\": %lld,\n  \"vocab_size\": %lld,\n", T, T,
            V);
    fprintf(out, "  \"n_layer\": %lld,\n  \"n_head\": %lld,\n  \"n_embd\": %lld,\n", L, NH, C);
    fprintf(out, "  \"n_inner\": %s,\n  \"layer_norm_epsilon\": 1e-05,\n", texts->inner);
    fputs("  \"initializer_range\": 0.02,\n", out);
    fputs("  \"attn_pdrop\": 0.0,\n  \"embd_pdrop\": 0.0,\n  \"resid_pdrop\": 0.0,\n", out);
    fprintf(out, "  \"tie_word_embeddings\": true,\n  \"bos_token_id\": %s,\n", texts->begin);
    fprintf(out, "  \"eos_token_id\": %s,\n", texts->eot);
}

static void print_rotary_config(FILE *out, const ModelConfig *config, const NullableTexts *texts) {
    static const char *const truth[] = {"false", "true"};
    const long long T = (long long)config->max_T, V = (long long)config->V,
                    C = (long long)config->C;
    const long long L = (long long)config->L, NH = (long long)config->NH,
                    base = (long long)config->rope_base;
    const char *class = model_class(config);
    const char *name = class ? model_family(config) : model_types[NUM_TYPES - 1];
    const char *flags[NUM_BIAS_FIELDS];
    for (int i = 0; i < NUM_BIAS_FIELDS; i++)
        flags[i] = truth[(bias_fields[i].types & type_of(name)) &&
                         !(config->no_bias & bias_fields[i].biases)];
    fprintf(out, "{\n  \"architectures\": [\"%s\"],\n  \"model_type\": \"%s\",\n",
            class ? class : "none", name);

    if (!class) {
        fprintf(out, "  \"norm\": \"%s\",\n", norm_names[config->norm]);
        fprintf(out, "  \"qk_norm\": %s,\n  \"%s\": %s,\n", truth[config->qk_norm],
                bias_fields[3].key, flags[3]);
    }

    fprintf(out, "  \"hidden_act\": \"%s\",\n  \"hidden_size\": %lld,\n",
            hidden_acts[config->activation], C);
    fprintf(out, "  \"intermediate_size\": %lld,\n", (long long)model_size(config, DIM_FF));
    fprintf(out, "  \"num_hidden_layers\": %lld,\n  \"num_attention_heads\": %lld,\n", L, NH);
    fprintf(out, "  \"num_key_value_heads\": %lld,\n", (long long)model_kv_heads(config));
    fprintf(out, "  \"head_dim\": %lld,\n", (long long)model_head_size(config));
    fprintf(out, "  \"max_position_embeddings\": %lld,\n  \"vocab_size\": %lld,\n", T, V);
    fprintf(out, "  \"rope_theta\": %lld,\n", base);
    fprintf(out, "  \"rope_parameters\": {\"rope_type\": \"default\", \"rope_theta\": %lld},\n",
            base);
    fprintf(out, "  \"%s\": %.6g,\n", eps_keys[config->norm], (double)model_eps(config));
    for (int i = 0; i < 3; i++) fprintf(out, "  \"%s\": %s,\n", bias_fields[i].key, flags[i]);
    fputs("  \"sliding_window\": null,\n  \"attention_dropout\": 0.0,\n", out);
    fputs("  \"residual_dropout\": 0.0,\n  \"embedding_dropout\": 0.0,\n", out);
    fprintf(out, "  \"initializer_range\": 0.02,\n  \"tie_word_embeddings\": %s,\n",
            truth[!config->untied && !config->embed_norm]);
    if (config->embed_norm) fputs("  \"embed_norm\": true,\n", out);
    fprintf(out, "  \"bos_token_id\": %s,\n  \"eos_token_id\": %s,\n  \"pad_token_id\": null,\n",
            texts->begin, texts->eot);
}

char *huggingface_config_json(const ModelConfig *config, DType dtype, int64_t begin, int64_t eot) {
    static const char *const torch_dtypes[DTYPE_COUNT] = {
        [DTYPE_FP32] = "float32", [DTYPE_BF16] = "bfloat16", [DTYPE_FP16] = "float16"};
    NullableTexts texts = {"null", "null", "null"};
    if (config->d_ff) snprintf(texts.inner, sizeof texts.inner, "%lld", (long long)config->d_ff);
    if (begin >= 0) snprintf(texts.begin, sizeof texts.begin, "%lld", (long long)begin);
    if (eot >= 0) snprintf(texts.eot, sizeof texts.eot, "%lld", (long long)eot);

    char *text = NULL;
    size_t bytes;
    FILE *out = text_open(&text, &bytes);
    if (model_is_gpt2(config))
        print_gpt2_config(out, config, &texts);
    else
        print_rotary_config(out, config, &texts);
    fprintf(out, "  \"torch_dtype\": \"%s\"\n}\n", torch_dtypes[dtype]);
    fclose(out);
    return text;
}
