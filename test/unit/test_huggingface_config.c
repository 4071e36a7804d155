// config.json of others' models: configurations that compute what our blocks compute, as their
// publishers and transformers write them, and what is refused, by the name of the field.

#include "llmc/base/json.h"
#include "llmc/store/huggingface_config.h"
#include "test/fixture.h"

#define TINY                                                                                       \
    "\"vocab_size\": 300, \"hidden_size\": 64, \"intermediate_size\": 96, \"num_hidden_layers\": " \
    "2, "                                                                                          \
    "\"num_attention_heads\": 4, \"max_position_embeddings\": 128"
#define LLAMA "\"architectures\": [\"LlamaForCausalLM\"], \"model_type\": \"llama\", "
#define QWEN2                                                                                      \
    "\"architectures\": [\"Qwen2ForCausalLM\"], \"model_type\": \"qwen2\", "                       \
    "\"num_key_value_heads\": 2, "
#define QWEN3                                                                                      \
    "\"architectures\": [\"Qwen3ForCausalLM\"], \"model_type\": \"qwen3\", "                       \
    "\"num_key_value_heads\": 2, "                                                                 \
    "\"head_dim\": 32, "
#define ARCEE "\"architectures\": [\"ArceeForCausalLM\"], \"model_type\": \"arcee\", "
#define STARCODER2                                                                                 \
    "\"architectures\": [\"Starcoder2ForCausalLM\"], \"model_type\": \"starcoder2\", "             \
    "\"num_key_value_heads\": 2, "

static bool parse(const char *fields, ModelConfig *config, Error *err) {
    char text[2048];
    snprintf(text, sizeof text, "{%s}", fields);
    cJSON *root = json_parse(text, strlen(text), err);
    const bool ok = root && huggingface_parse_config(root, config, err);
    cJSON_Delete(root);
    return ok;
}

TEST(configurations_of_others_are_read) {
    static const struct {
        const char *fields, *class, *descriptor;
        int64_t d_ff;
        double eps;
    } cases[] = {
        // These are as published.
        {"\"architectures\": [\"LlamaForCausalLM\"], \"attention_bias\": false, "
         "\"attention_dropout\": 0.0, "
         "\"bos_token_id\": 0, \"hidden_act\": \"silu\", \"hidden_size\": 576, "
         "\"intermediate_size\": 1536, "
         "\"is_llama_config\": true, \"max_position_embeddings\": 2048, \"mlp_bias\": false, "
         "\"model_type\": "
         "\"llama\", \"num_attention_heads\": 9, \"num_hidden_layers\": 30, "
         "\"num_key_value_heads\": 3, "
         "\"pretraining_tp\": 1, \"rms_norm_eps\": 1e-05, \"rope_interleaved\": false, "
         "\"rope_scaling\": null, "
         "\"rope_theta\": 10000.0, \"tie_word_embeddings\": true, \"torch_dtype\": \"bfloat16\", "
         "\"use_cache\": true, "
         "\"vocab_size\": 49152",
         "LlamaForCausalLM", "llama:L=30,C=576,NH=9,V=49152,T=2048,NKV=3,tied=1", 1536,
         1e-5}, // SmolLM-135M
        {LLAMA
         "\"hidden_size\": 4096, \"intermediate_size\": 11008, \"max_position_embeddings\": 4096, "
         "\"num_attention_heads\": 32, \"num_hidden_layers\": 32, \"num_key_value_heads\": 32, "
         "\"pretraining_tp\": 1, \"rms_norm_eps\": 1e-05, \"rope_scaling\": null, "
         "\"tie_word_embeddings\": "
         "false, \"torch_dtype\": \"float16\", \"vocab_size\": 32000",
         "LlamaForCausalLM", "llama:L=32,C=4096,NH=32,V=32000,T=4096", 11008, 1e-5}, // Llama-2-7b
        {LLAMA
         "\"hidden_size\": 4096, \"intermediate_size\": 14336, \"max_position_embeddings\": 8192, "
         "\"num_attention_heads\": 32, \"num_hidden_layers\": 32, \"num_key_value_heads\": 8, "
         "\"rms_norm_eps\": "
         "1e-05, \"rope_theta\": 500000.0, \"vocab_size\": 128256, \"eos_token_id\": 128001",
         "LlamaForCausalLM", "llama:L=32,C=4096,NH=32,V=128256,T=8192,NKV=8,base=500000", 14336,
         1e-5}, // Llama 3 8B
        {"\"architectures\": [\"Qwen2ForCausalLM\"], \"hidden_size\": 896, \"intermediate_size\": "
         "4864, "
         "\"max_position_embeddings\": 32768, \"max_window_layers\": 24, \"model_type\": "
         "\"qwen2\", "
         "\"num_attention_heads\": 14, \"num_hidden_layers\": 24, \"num_key_value_heads\": 2, "
         "\"rms_norm_eps\": "
         "1e-06, \"rope_theta\": 1000000.0, \"sliding_window\": 32768, \"tie_word_embeddings\": "
         "true, "
         "\"use_mrope\": false, \"use_sliding_window\": false, \"vocab_size\": 151936",
         "Qwen2ForCausalLM", "qwen2:L=24,C=896,NH=14,V=151936,T=32768,NKV=2,base=1000000", 4864,
         1e-6}, // Qwen2.5-0.5B
        {"\"architectures\": [\"Qwen3ForCausalLM\"], \"attention_bias\": false, \"head_dim\": 128, "
         "\"hidden_size\": "
         "1024, \"intermediate_size\": 3072, \"max_position_embeddings\": 40960, "
         "\"max_window_layers\": 28, "
         "\"model_type\": \"qwen3\", \"num_attention_heads\": 16, \"num_hidden_layers\": 28, "
         "\"num_key_value_heads\": 8, \"rms_norm_eps\": 1e-06, \"rope_scaling\": null, "
         "\"rope_theta\": 1000000, "
         "\"sliding_window\": null, \"tie_word_embeddings\": true, \"use_sliding_window\": false, "
         "\"vocab_size\": "
         "151936",
         "Qwen3ForCausalLM", "qwen3:L=28,C=1024,NH=16,V=151936,T=40960,NKV=8,HS=128,base=1000000",
         3072, 1e-6}, // Qwen3-0.6B
        {"\"architectures\": [\"Starcoder2ForCausalLM\"], \"hidden_act\": \"gelu_pytorch_tanh\", "
         "\"hidden_size\": "
         "3072, \"intermediate_size\": 12288, \"layer_norm_epsilon\": 1e-05, "
         "\"max_position_embeddings\": 4096, "
         "\"mlp_type\": \"default\", \"model_type\": \"starcoder2\", \"norm_epsilon\": 1e-05, "
         "\"norm_type\": "
         "\"layer_norm\", \"num_attention_heads\": 24, \"num_hidden_layers\": 30, "
         "\"num_key_value_heads\": 2, "
         "\"residual_dropout\": 0.1, \"attention_dropout\": 0.1, \"rope_theta\": "
         "999999.4420358813, "
         "\"sliding_window\": 4096, \"use_bias\": true, \"vocab_size\": 49152",
         "Starcoder2ForCausalLM", "starcoder2:L=30,C=3072,NH=24,V=49152,T=4096,NKV=2,base=999999",
         12288, 1e-5}, // starcoder2-3b with the context of its window
        {"\"architectures\": [\"ArceeForCausalLM\"], \"hidden_act\": \"relu2\", \"hidden_size\": "
         "2560, "
         "\"head_dim\": 128, \"intermediate_size\": 18432, \"max_position_embeddings\": 4096, "
         "\"model_type\": "
         "\"arcee\", \"num_attention_heads\": 20, \"num_hidden_layers\": 36, "
         "\"num_key_value_heads\": 4, "
         "\"rms_norm_eps\": 1e-05, \"rope_theta\": 10000.0, \"vocab_size\": 128004",
         "ArceeForCausalLM", "arcee:L=36,C=2560,NH=20,V=128004,T=4096,NKV=4", 18432,
         1e-5}, // AFM-4.5B before YaRN
        // Fields that transformers 5 writes otherwise than 4.
        {LLAMA TINY ", \"dtype\": \"bfloat16\", \"rope_parameters\": {\"rope_type\": \"default\", "
                    "\"rope_theta\": 500}",
         "LlamaForCausalLM", "llama:L=2,C=64,NH=4,V=300,T=128,base=500", 96, 1e-6},
        {LLAMA TINY ", \"rope_theta\": 700.0, \"rope_parameters\": {\"rope_type\": \"default\"}, "
                    "\"rope_scaling\": {"
                    "\"type\": \"default\"}",
         "LlamaForCausalLM", "llama:L=2,C=64,NH=4,V=300,T=128,base=700", 96, 1e-6},
        {QWEN3 TINY
         ", \"layer_types\": [\"full_attention\", \"full_attention\"], \"rope_parameters\": {"
         "\"rope_theta\": 1e6, \"rope_type\": \"default\", \"partial_rotary_factor\": 1.0}",
         "Qwen3ForCausalLM", "qwen3:L=2,C=64,NH=4,V=300,T=128,NKV=2,HS=32,base=1000000,tied=0", 96,
         1e-6},
        // Biases, which each class switches in its way.
        {LLAMA TINY ", \"attention_bias\": true", "LlamaForCausalLM",
         "llama:L=2,C=64,NH=4,V=300,T=128,bias=3", 96, 1e-6},
        {LLAMA TINY ", \"mlp_bias\": true", "LlamaForCausalLM",
         "llama:L=2,C=64,NH=4,V=300,T=128,bias=4", 96, 1e-6},
        {ARCEE TINY ", \"mlp_bias\": true, \"attention_bias\": true", "ArceeForCausalLM",
         "arcee:L=2,C=64,NH=4,V=300,T=128,bias=1", 96, 1e-5},
        {QWEN3 TINY ", \"attention_bias\": true, \"mlp_bias\": true", // which it has not
         "Qwen3ForCausalLM", "qwen3:L=2,C=64,NH=4,V=300,T=128,NKV=2,HS=32,bias=3,tied=0", 96, 1e-6},
        {QWEN2 TINY ", \"attention_bias\": false", "Qwen2ForCausalLM",
         "qwen2:L=2,C=64,NH=4,V=300,T=128,NKV=2,tied=0", 96, 1e-6},
        {STARCODER2 TINY
         ", \"use_bias\": false, \"hidden_act\": \"gelu_new\", \"sliding_window\": null",
         "Starcoder2ForCausalLM", "starcoder2:L=2,C=64,NH=4,V=300,T=128,NKV=2,bias=0", 96, 1e-5},
        {STARCODER2 TINY
         ", \"tie_word_embeddings\": false, \"sliding_window\": 128, \"norm_epsilon\": 1e-6",
         "Starcoder2ForCausalLM", "starcoder2:L=2,C=64,NH=4,V=300,T=128,NKV=2,tied=0", 96, 1e-6},
        // These fields may be null, absent, or of no effect.
        {LLAMA TINY ", \"head_dim\": null, \"num_key_value_heads\": null, \"rope_parameters\": "
                    "null, \"rope_theta\": "
                    "null, \"partial_rotary_factor\": 1.0, \"hidden_act\": \"swish\", "
                    "\"quantization_config\": null",
         "LlamaForCausalLM", "llama:L=2,C=64,NH=4,V=300,T=128", 96, 1e-6},
        {LLAMA TINY ", \"head_dim\": 8, \"num_key_value_heads\": 1, \"attention_dropout\": 0.5, "
                    "\"rms_norm_eps\": 1e-7",
         "LlamaForCausalLM", "llama:L=2,C=64,NH=4,V=300,T=128,NKV=1,HS=8", 96, 1e-7},
        {"\"model_type\": \"llama\", \"architectures\": [\"LlamaModel\"], \"tie_word_embeddings\": "
         "true, " TINY,
         "LlamaForCausalLM", "llama:L=2,C=64,NH=4,V=300,T=128,tied=1", 96, 1e-6},
        {"\"model_type\": \"qwen2\", \"num_key_value_heads\": 4, \"head_dim\": 16, " TINY,
         "Qwen2ForCausalLM", "qwen2:L=2,C=64,NH=4,V=300,T=128,tied=0", 96, 1e-6},
    };

    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        ModelConfig c, again;
        Error err = {""};
        char text[MODEL_DESCRIPTOR];
        if (!parse(cases[i].fields, &c, &err)) fail_msg("%s: %s", cases[i].descriptor, err.text);
        assert_string_equal(model_config_descriptor(&c, text), cases[i].descriptor);
        assert_string_equal(model_class(&c), cases[i].class);
        assert_int_equal(model_size(&c, DIM_FF), cases[i].d_ff);
        assert_float_equal(model_eps(&c), (float)cases[i].eps, 1e-12f);

        // The configuration that we write is the same.
        AUTO_FREE char *written = huggingface_config_json(&c, DTYPE_BF16, 7, 9);
        cJSON *root = json_parse(written, strlen(written), &err);
        assert_true(root && huggingface_parse_config(root, &again, &err));
        assert_int_equal(cJSON_GetObjectItem(root, "bos_token_id")->valueint, 7);
        assert_int_equal(cJSON_GetObjectItem(root, "eos_token_id")->valueint, 9);
        cJSON_Delete(root);
        assert_memory_equal(&again, &c, sizeof c);
    }
}

TEST(configurations_that_compute_something_else_are_refused_by_field) {
    static const struct {
        const char *fields, *messages[2];
    } cases[] = {
        {LLAMA TINY ", \"rope_scaling\": {\"factor\": 8.0, \"rope_type\": \"llama3\"}",
         {"\"rope_scaling\" (only RoPE without scaling is supported)",
          "\"rope_type\" is \"llama3\""}},
        {LLAMA TINY ", \"rope_scaling\": {\"factor\": 2.0, \"type\": \"linear\"}",
         {"\"rope_scaling\"", "\"type\" is \"linear\""}},
        {QWEN3 TINY
         ", \"rope_parameters\": {\"rope_type\": \"yarn\", \"factor\": 4.0, \"rope_theta\": 1e6}",
         {"\"rope_parameters\"", "\"rope_type\" is \"yarn\", expected \"default\""}},
        {LLAMA TINY ", \"rope_parameters\": {\"full_attention\": {\"rope_theta\": 1e6}}",
         {"\"rope_parameters\"", "\"full_attention\" is not a field"}},
        {LLAMA TINY ", \"rope_parameters\": {\"rope_theta\": 1e4, \"partial_rotary_factor\": 0.5}",
         {"\"rope_parameters\"", "\"partial_rotary_factor\" is 0.5, only 1 is supported"}},
        {LLAMA TINY ", \"partial_rotary_factor\": 0.25",
         {"\"partial_rotary_factor\" is 0.25", "only 1"}},
        {LLAMA TINY ", \"rope_scaling\": 2", {"\"rope_scaling\" is 2, expected an object", ""}},
        {LLAMA TINY ", \"rope_theta\": 0.5", {"\"rope_theta\" is 0.5", ""}},
        {LLAMA TINY ", \"rope_theta\": 10000.5",
         {"\"rope_theta\" is 10000.5, only whole numbers", ""}},
        {LLAMA TINY ", \"rope_theta\": 1e12", {"\"rope_theta\" is 1e+12", "up to 1e9"}},
        {STARCODER2 TINY ", \"sliding_window\": 64",
         {"\"sliding_window\" is 64, shorter than the context of 128",
          "\"max_position_embeddings\" to 64"}},
        {QWEN2 TINY ", \"use_sliding_window\": true",
         {"\"use_sliding_window\" is true, only false", ""}},
        {QWEN3 TINY ", \"layer_types\": [\"full_attention\", \"sliding_attention\"]",
         {"\"layer_types\" has \"sliding_attention\"", "only \"full_attention\""}},
        {LLAMA TINY ", \"hidden_act\": \"gelu\"",
         {"\"hidden_act\" is \"gelu\", expected \"silu\"", ""}},
        {ARCEE TINY ", \"hidden_act\": \"silu\"",
         {"\"hidden_act\" is \"silu\", expected \"relu2\"", ""}},
        {STARCODER2 TINY ", \"hidden_act\": \"gelu\"",
         {"\"hidden_act\" is \"gelu\"", "\"gelu_pytorch_tanh\""}},
        {LLAMA TINY ", \"quantization_config\": {\"quant_method\": \"gptq\"}",
         {"it has a \"quantization_config\"", "without quantization"}},
        {LLAMA TINY ", \"logits_scaling\": 8.0",
         {"\"logits_scaling\" is 8, only 1 is supported", ""}},
        {LLAMA TINY ", \"final_logit_softcapping\": 30.0",
         {"\"final_logit_softcapping\" is 30", "only null"}},
        {LLAMA TINY ", \"embedding_multiplier\": 12", {"\"embedding_multiplier\" is 12", ""}},
        {LLAMA TINY ", \"attention_bias\": 1",
         {"\"attention_bias\" is 1, expected true or false", ""}},
        {LLAMA TINY ", \"num_key_value_heads\": 3", {"NKV = 3", "nearest: 2 or 4"}},
        {LLAMA TINY ", \"head_dim\": 15", {"a head has 15", ""}},
        {LLAMA TINY ", \"rms_norm_eps\": 1.0",
         {"\"rms_norm_eps\" is 1, expected 1e-12 to 0.1", ""}},
        {LLAMA TINY ", \"hidden_size\": 64", {"\"hidden_size\" is stated twice", ""}},
        {"\"model_type\": \"llama\", \"architectures\": "
         "[\"LlamaForSequenceClassification\"], " TINY,
         {"\"architectures\" is \"LlamaForSequenceClassification\"", "[\"LlamaForCausalLM\"]"}},
        {"\"model_type\": \"qwen3\", \"num_key_value_heads\": 2, " TINY,
         {"\"head_dim\" is missing", ""}},
        {"\"model_type\": \"starcoder2\", " TINY, {"\"num_key_value_heads\" is missing", ""}},
        {"\"model_type\": \"mistral\", " TINY,
         {"\"model_type\" is \"mistral\", expected ", "llama"}},
        {"\"model_type\": \"pretrain_cu\", \"norm\": \"rmsnorm\", " TINY,
         {"\"norm\" is \"rmsnorm\" and \"hidden_act\" \"gelu_pytorch_tanh\"", ""}},
        {"\"model_type\": \"pretrain_cu\", \"use_bias\": false, \"mlp_bias\": true, \"qkv_bias\": "
         "true, " TINY,
         {"biases of these linear layers alone are not supported", ""}},
    };

    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        ModelConfig c;
        Error err = {""};
        if (parse(cases[i].fields, &c, &err)) fail_msg("%s: was taken", cases[i].messages[0]);
        for (int k = 0; k < 2; k++)
            if (!strstr(err.text, cases[i].messages[k]))
                fail_msg("'%s' is not in '%s'", cases[i].messages[k], err.text);
    }
}
