// The blocks that tests of whole models go through: GPT-2's, those of the families, and
// combinations that no family has.
#pragma once
#include "llmc/model/model_config.h"
#include "test/test.h"

// The descriptors are as -e takes them; gate: with SwiGLU, which no descriptor adds to a block with
// LayerNorm. Fewer heads of keys and values, and heads that together are narrower or wider than the
// model, are in families and outside.
static const struct {
    const char *descriptor;
    bool gate;
} every_block[] = {
    {"d12", false},
    {"starcoder2:d12,HS=2,NKV=1", false},
    {"llama:d12,HS=4,bias=3", false},
    {"qwen3:d12,HS=10,NKV=1", false},
    {"arcee:d12,HS=2", false},
    {"d12,NKV=1,tied=0,bias=0", false},
    {"d12,NKV=1,tied=0", true},
    {"d12,HS=10,base=50,qk_norm=1", false},
    {"qwen3:d12,HS=6,bias=1", false},
    {"llama:d12,base=0,bias=1", false},
    {"starcoder2:d12,HS=10,NKV=1,embed_norm=1", false},
    {"qwen3:d12,HS=10,embed_norm=1", false},
};
enum { NUM_BLOCKS = sizeof every_block / sizeof *every_block };

// With a vocabulary whose padding the caller may change, and an MLP of d_ff, 0: the default.
static inline ModelConfig block_of_shape(int i, int64_t L, int64_t C, int64_t NH, int64_t V,
                                         int64_t max_T, int64_t d_ff) {
    ModelConfig config;
    Error err;
    if (!model_config_parse(&config, every_block[i].descriptor, &err)) fail_msg("%s", err.text);
    if (every_block[i].gate) config.activation = ACTIVATION_SWIGLU;
    config.L = L, config.C = C, config.NH = NH, config.max_T = max_T, config.d_ff = d_ff;
    model_config_set_vocab(&config, V);
    if (!model_config_check(&config, &err)) fail_msg("%s", err.text);
    return config;
}
