// config.json, see huggingface_config.h.
#include "llmc/store/huggingface_config.h"

#include "llmc/base/json.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

// --------------------------------------------------------------------------------------------------------------- GPT-2

// An optional field that could change the computation: absent or null is fine, otherwise it must match our computation.
static bool check_config_flag(const cJSON *root, const char *key, bool expected, Error *err) {
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

// Other classes have other heads. expected: "GPT2LMHeadModel"; also: the name of the class without a head.
static bool check_class(const cJSON *root, const char *expected, const char *also, Error *err) {
    const cJSON *item, *name;
    char found[64];
    if (!json_find(root, "quantization_config", &item, err)) return false;
    if (item && !cJSON_IsNull(item))
        return error_set(err, "it has a \"quantization_config\"; save the model again without quantization");
    if (!json_find(root, "architectures", &item, err)) return false;
    cJSON_ArrayForEach(name, item) {
        if (cJSON_IsString(name) && (strcmp(name->valuestring, expected) == 0 || strcmp(name->valuestring, also) == 0))
            return true;
    }
    if (!item || cJSON_IsNull(item) || (cJSON_IsArray(item) && !item->child)) return true;
    return error_set(err, "\"architectures\" is %s, expected [\"%s\"]",
                     json_describe(cJSON_IsArray(item) ? item->child : item, found, sizeof found), expected);
}

static bool check_variant(const cJSON *root, Error *err) {
    const cJSON *item;
    double eps;
    if (!json_find(root, "activation_function", &item, err)) return false;
    // Two names of one formula, which is also the default when none is given.
    if (item && !check_string(root, "activation_function", "gelu_new", "gelu_pytorch_tanh", err)) return false;
    if (!check_config_flag(root, "tie_word_embeddings", true, err) ||
        !check_config_flag(root, "scale_attn_weights", true, err) ||
        !check_config_flag(root, "scale_attn_by_inverse_layer_idx", false, err) ||
        !check_config_flag(root, "add_cross_attention", false, err) ||
        !check_config_flag(root, "is_encoder_decoder", false, err) ||
        !check_class(root, "GPT2LMHeadModel", "GPT2Model", err))
        return false;
    if (!json_find(root, "layer_norm_epsilon", &item, err)) return false;
    if (!item) return true; // transformers then uses 1e-5
    if (!json_get_double(root, "layer_norm_epsilon", &eps, err)) return false;
    if (fabs(eps - 1e-5) < 1e-9) return true;
    return error_set(err, "\"layer_norm_epsilon\" is %g, only 1e-05 is supported", eps);
}

// A size under GPT-2's name or under the name that transformers has for all models.
static bool parse_size(const cJSON *root, const char *key, const char *also, int64_t *size, Error *err) {
    const cJSON *own, *other;
    int64_t same;
    if (!json_find(root, key, &own, err) || !json_find(root, also, &other, err)) return false;
    if (!json_get_int(root, other && !own ? also : key, 1, INT32_MAX, size, err)) return false;
    return !own || !other || (json_int_value(other, 1, INT32_MAX, &same) && same == *size) ||
           error_set(err, "\"%s\" and \"%s\" are the same size but differ", key, also);
}

static bool parse_gpt2(const cJSON *root, ModelConfig *config, Error *err) {
    *config = (ModelConfig){0};
    int64_t V, inner;
    const cJSON *item;
    bool ok = parse_size(root, "n_positions", "max_position_embeddings", &config->max_T, err) &&
              json_get_int(root, "vocab_size", 1, INT32_MAX, &V, err) &&
              parse_size(root, "n_layer", "num_hidden_layers", &config->L, err) &&
              parse_size(root, "n_head", "num_attention_heads", &config->NH, err) &&
              parse_size(root, "n_embd", "hidden_size", &config->C, err) && check_variant(root, err) &&
              json_find(root, "n_inner", &item, err);
    if (ok && item && !cJSON_IsNull(item)) { // transformers reads an absent n_inner and null as 4 n_embd
        ok = json_get_int(root, "n_inner", 1, INT32_MAX, &inner, err);
        if (ok) model_config_set_d_ff(config, inner);
    }
    if (ok) model_config_set_vocab(config, V);
    return ok && model_config_check(config, err);
}

// ---------------------------------------------------------------------------------------------------------- other
// classes

// What the classes call things.
static const char *const hidden_acts[] = {"gelu_pytorch_tanh", "silu", "relu2"};
static const char *const eps_keys[] = {"norm_epsilon", "rms_norm_eps"};
static const char *const norm_names[] = {"layernorm", "rmsnorm"};
static const char own_type[] = "pretrain_cu"; // model_type where no class has the block

// An optional whole number; *value stays if it is absent or null.
static bool parse_optional(const cJSON *root, const char *key, int64_t *value, Error *err) {
    const cJSON *item;
    if (!json_find(root, key, &item, err)) return false;
    return !item || cJSON_IsNull(item) || json_get_int(root, key, 1, INT32_MAX, value, err);
}

static bool parse_flag(const cJSON *root, const char *key, bool *value, Error *err) {
    const cJSON *item;
    char found[64];
    if (!json_find(root, key, &item, err)) return false;
    if (!item || cJSON_IsNull(item)) return true;
    *value = cJSON_IsTrue(item);
    return cJSON_IsBool(item) ||
           error_set(err, "\"%s\" is %s, expected true or false", key, json_describe(item, found, sizeof found));
}

// One of the names; *index stays if it is absent.
static bool parse_name(const cJSON *root, const char *key, const char *const *names, int count, int *index,
                       Error *err) {
    const cJSON *item;
    char found[64];
    if (!json_find(root, key, &item, err)) return false;
    for (int i = 0; cJSON_IsString(item) && i < count; i++)
        if (strcmp(item->valuestring, names[i]) == 0) {
            *index = i;
            return true;
        }
    return !item ||
           error_set(err, "\"%s\" is %s, which is not supported", key, json_describe(item, found, sizeof found));
}

// RoPE's base: transformers 5 has an object for what was rope_theta and rope_scaling before. Absent: as the class has
// it.
static bool parse_rope(const cJSON *root, ModelConfig *config, Error *err) {
    const cJSON *parameters, *scaling, *item;
    double base = (double)config->rope_base;
    if (!json_find(root, "rope_parameters", &parameters, err) || !json_find(root, "rope_scaling", &scaling, err))
        return false;
    if (scaling && !cJSON_IsNull(scaling))
        return error_set(err, "\"rope_scaling\" is set; only RoPE without scaling is supported");
    const cJSON *from = cJSON_IsObject(parameters) ? parameters : root;
    if (cJSON_IsObject(parameters)) {
        if (!json_find(parameters, "rope_type", &item, err)) return false;
        if (item && !check_string(parameters, "rope_type", "default", "default", err)) return false;
        if (!json_find(parameters, "partial_rotary_factor", &item, err)) return false;
        if (item && !cJSON_IsNull(item) && !(cJSON_IsNumber(item) && item->valuedouble == 1.0))
            return error_set(err, "\"partial_rotary_factor\" is not 1, which is not supported");
    }
    if (!json_find(from, "rope_theta", &item, err)) return false;
    if (item && !json_get_double(from, "rope_theta", &base, err)) return false;
    const double least = config->rope_base > 0 ? 1.0 : 0.0; // 0: learned positions, which the classes have not
    if (!(base >= least && base <= 1e9) || base != floor(base))
        return error_set(err, "\"rope_theta\" is %g, only whole numbers up to 1e9 are supported", base);
    config->rope_base = (int64_t)base;
    return true;
}

// What no class of transformers has is written with a description of the block.
static bool parse_own_block(const cJSON *root, ModelConfig *config, Error *err) {
    int norm = NORM_LAYER, activation = ACTIVATION_GELU;
    bool bias = true;
    const bool ok = parse_name(root, "norm", norm_names, 2, &norm, err) &&
                    parse_name(root, "hidden_act", hidden_acts, 3, &activation, err) &&
                    parse_flag(root, "use_bias", &bias, err) && parse_flag(root, "qk_norm", &config->qk_norm, err);
    config->norm = (NormKind)norm;
    config->activation = (ActivationKind)activation;
    config->no_bias = !bias;
    return ok;
}

// Flags that other models of these classes have, and ours have not.
static bool check_class_variant(const cJSON *root, const ModelConfig *config, Error *err) {
    const cJSON *item;
    int activation = (int)config->activation;
    if (!check_config_flag(root, "attention_bias", false, err) || !check_config_flag(root, "mlp_bias", false, err) ||
        !check_config_flag(root, "use_sliding_window", false, err) ||
        !check_config_flag(root, "use_bias", !config->no_bias, err) ||
        !parse_name(root, "hidden_act", hidden_acts, 3, &activation, err))
        return false;
    if (activation != (int)config->activation)
        return error_set(err, "\"hidden_act\" is \"%s\", only \"%s\" is supported", hidden_acts[activation],
                         hidden_acts[config->activation]);
    if (config->norm == NORM_RMS || !json_find(root, "sliding_window", &item, err)) return config->norm == NORM_RMS;
    return !item || cJSON_IsNull(item) || error_set(err, "\"sliding_window\" is set, which is not supported");
}

static bool parse_class(const cJSON *root, const char *type, ModelConfig *config, Error *err) {
    int64_t V, inner;
    const cJSON *item;
    double eps;
    const bool own = strcmp(type, own_type) == 0;
    if (own ? !parse_own_block(root, config, err) : !check_class_variant(root, config, err)) return false;
    const char *eps_key = eps_keys[config->norm];
    if (!own && !check_class(root, model_class(config), model_class(config), err)) return false;
    // Defaults of the classes: tied, and sizes that say nothing about this model.
    const bool is_starcoder2 = strcmp(type, "starcoder2") == 0, is_qwen3 = strcmp(type, "qwen3") == 0;
    bool tied = is_starcoder2;
    if ((is_starcoder2 || is_qwen3) && !json_get_int(root, "num_key_value_heads", 1, INT32_MAX, &config->NKV, err))
        return false;
    if (is_qwen3 && !json_get_int(root, "head_dim", 1, INT32_MAX, &config->HS, err)) return false;
    bool ok = json_get_int(root, "max_position_embeddings", 1, INT32_MAX, &config->max_T, err) &&
              json_get_int(root, "vocab_size", 1, INT32_MAX, &V, err) &&
              json_get_int(root, "num_hidden_layers", 1, INT32_MAX, &config->L, err) &&
              json_get_int(root, "num_attention_heads", 1, INT32_MAX, &config->NH, err) &&
              json_get_int(root, "hidden_size", 1, INT32_MAX, &config->C, err) &&
              json_get_int(root, "intermediate_size", 1, INT32_MAX, &inner, err) &&
              parse_optional(root, "num_key_value_heads", &config->NKV, err) &&
              parse_optional(root, "head_dim", &config->HS, err) && parse_rope(root, config, err) &&
              parse_flag(root, "tie_word_embeddings", &tied, err) && json_find(root, eps_key, &item, err);
    if (!ok) return false;
    if (item && !json_get_double(root, eps_key, &eps, err)) return false;
    if (item) config->eps = (float)eps;
    if (item && !(eps >= 1e-12 && eps <= 0.1)) return error_set(err, "\"%s\" is %g", eps_key, eps);
    if (config->eps == 1e-5f) config->eps = 0.0f;
    config->untied = !tied;
    if (config->NKV == config->NH) config->NKV = 0;
    if (config->HS * config->NH == config->C) config->HS = 0;
    model_config_set_d_ff(config, inner);
    model_config_set_vocab(config, V);
    return model_config_check(config, err);
}

bool huggingface_parse_config(const cJSON *root, ModelConfig *config, Error *err) {
    const char *type;
    *config = (ModelConfig){0};
    if (!json_get_string(root, "model_type", &type, err)) return false;
    if (strcmp(type, "gpt2") == 0) return parse_gpt2(root, config, err);
    if (strcmp(type, own_type) != 0 && !model_family_block(type, config))
        return error_set(err, "\"model_type\" is \"%.40s\", expected \"gpt2\", starcoder2, llama, qwen3 or arcee",
                         type);
    return parse_class(root, type, config, err);
}

// ------------------------------------------------------------------------------------------------------------- writing

static char *gpt2_config_json(const ModelConfig *config, const char *dtype, int64_t eot) {
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
                 (long long)config->NH, (long long)config->C, inner, token, token, dtype);
    REQUIRE_MEMORY(length >= 0, "the files of a model");
    return text;
}

static char *class_config_json(const ModelConfig *config, const char *dtype, int64_t eot) {
    const char *class = model_class(config);
    char token[32] = "null", own[128] = "", *text = NULL;
    if (eot >= 0) snprintf(token, sizeof token, "%lld", (long long)eot);
    if (!class)
        snprintf(own, sizeof own, "  \"norm\": \"%s\",\n  \"qk_norm\": %s,\n", norm_names[config->norm],
                 config->qk_norm ? "true" : "false");
    const long long base = (long long)config->rope_base;
    const int length = asprintf(
        &text,
        "{\n"
        "  \"architectures\": [\"%s\"],\n"
        "  \"model_type\": \"%s\",\n"
        "%s"
        "  \"hidden_act\": \"%s\",\n"
        "  \"hidden_size\": %lld,\n"
        "  \"intermediate_size\": %lld,\n"
        "  \"num_hidden_layers\": %lld,\n"
        "  \"num_attention_heads\": %lld,\n"
        "  \"num_key_value_heads\": %lld,\n"
        "  \"head_dim\": %lld,\n"
        "  \"max_position_embeddings\": %lld,\n"
        "  \"vocab_size\": %lld,\n"
        "  \"rope_theta\": %lld,\n"
        "  \"rope_parameters\": {\"rope_type\": \"default\", \"rope_theta\": %lld},\n"
        "  \"%s\": %.6g,\n"
        "  \"use_bias\": %s,\n"
        "  \"attention_bias\": false,\n"
        "  \"mlp_bias\": false,\n"
        "  \"sliding_window\": null,\n"
        "  \"attention_dropout\": 0.0,\n"
        "  \"residual_dropout\": 0.0,\n"
        "  \"embedding_dropout\": 0.0,\n"
        "  \"initializer_range\": 0.02,\n"
        "  \"tie_word_embeddings\": %s,\n"
        "  \"bos_token_id\": %s,\n"
        "  \"eos_token_id\": %s,\n"
        "  \"pad_token_id\": null,\n"
        "  \"torch_dtype\": \"%s\"\n"
        "}\n",
        class ? class : "none", class ? model_family(config) : own_type, own, hidden_acts[config->activation],
        (long long)config->C, (long long)model_size(config, DIM_FF), (long long)config->L, (long long)config->NH,
        (long long)model_kv_heads(config), (long long)model_head_size(config), (long long)config->max_T,
        (long long)config->V, base, base, eps_keys[config->norm], (double)model_eps(config),
        config->no_bias ? "false" : "true", config->untied ? "false" : "true", token, token, dtype);
    REQUIRE_MEMORY(length >= 0, "the files of a model");
    return text;
}

char *huggingface_config_json(const ModelConfig *config, DType dtype, int64_t eot) {
    static const char *const torch_dtypes[DTYPE_COUNT] = {
        [DTYPE_FP32] = "float32", [DTYPE_BF16] = "bfloat16", [DTYPE_FP16] = "float16"};
    return (model_is_gpt2(config) ? gpt2_config_json : class_config_json)(config, torch_dtypes[dtype], eot);
}
