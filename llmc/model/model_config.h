// The shape of a model and the description of its block; the descriptors that name them on the
// command line, and the families of blocks that Hugging Face's transformers has classes for.
// parameters.h has the weights of such a model. This module is arithmetic and text; it opens no
// file.
#pragma once
#include "llmc/base/error.h"
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef enum { NORM_LAYER, NORM_RMS } NormKind;
typedef enum { ACTIVATION_GELU, ACTIVATION_SWIGLU, ACTIVATION_RELU2 } ActivationKind;

enum {
    BIAS_QKV = 1,
    BIAS_PROJ = 2,
    BIAS_MLP = 4,
    BIAS_EVERY = 7
}; // of the linear layers of a block

typedef struct {
    int64_t max_T; // longest context: rows of the position embedding
    int64_t V;     // vocabulary; 0 in a descriptor that leaves it to the data
    int64_t Vp; // V rounded up to a multiple of 128: rows of the token embedding and of the logits
    int64_t L;  // blocks
    int64_t NH; // heads
    int64_t C;  // channels
    int64_t d_ff; // hidden units of the MLP; 0: 4 C, or 8/3 C rounded up to a multiple of 128 for
                  // SwiGLU, which are never stored as a number
    // The block: all zero is GPT-2's.
    int64_t NKV;       // heads of keys and values; 0: NH
    int64_t HS;        // head size; 0: C / NH
    int64_t rope_base; // of the angles of RoPE; 0: learned positions
    NormKind norm;
    ActivationKind activation;
    bool qk_norm;    // RMSNorm of each head of q and k, before RoPE
    int no_bias;     // the linear layers without one, BIAS_QKV and others
    bool untied;     // the head has a weight of its own
    bool embed_norm; // RMSNorm without a weight after the embedding, whose matrix is the head too;
                     // and the weights of linear layers that add to the residual stream begin at 0
    float eps;       // of the norms; 0: 1e-5
} ModelConfig;

enum { VOCAB_PADDING = 128, GPT2_VOCAB = 50257 };
#define EMBED_NORM_EPS 1e-7f // small beside the squares of initial weights, 4e-4

// Fills config from a descriptor; false and a message that lists the forms if it is not one.
//   d6 d12 d24 d36 d48 d60     GPT-2's sizes (124M is d12), and llm.c's d6 and d60: max_T 1024, V 0
//   gpt3:c768 ...              GPT-3's table by channels (384 768 1024 1536 2048 2560 4096 5120
//                              12288): max_T 2048
//   L=6,C=384,NH=6,V=257,T=256 free shape; each part optional (defaults: d12's; V 0); NH defaults
//                              to C/64, or to 1 if C is not a multiple of 64.
//                              A preset may come first: d12,V=50257,T=512
//   qwen3:d12 ...              a family of blocks before any of these: starcoder2, llama, qwen2,
//                              qwen3, arcee. Parts of the block: NKV, HS, base (of RoPE; 0:
//                              learned positions), qk_norm, tied and embed_norm (0 or 1), bias
//                              (0: none, 1: all, 2: of q, k and v, 3: of attention, 4: of the
//                              MLP)
bool model_config_parse(ModelConfig *config, const char *descriptor, Error *err);

// Whether a -e value looks like a descriptor (it has no '/'; the file system is not consulted).
bool model_config_is_descriptor(const char *text);

// Sets V and Vp. V >= 1.
void model_config_set_vocab(ModelConfig *config, int64_t V);

// Sets d_ff after C and activation, 0: to the default. model_config_check says whether it is
// allowed.
void model_config_set_d_ff(ModelConfig *config, int64_t d_ff);
int64_t model_default_d_ff(const ModelConfig *config);

int64_t model_kv_heads(const ModelConfig *config);  // NKV
int64_t model_head_size(const ModelConfig *config); // HS
float model_eps(const ModelConfig *config);
bool model_is_gpt2(const ModelConfig *config); // its block
// the sizes of its heads and the norms' eps included
bool model_same_block(const ModelConfig *a, const ModelConfig *b);
// The family that has this block, heads and tied head aside: "gpt2", "qwen3", ...; NULL if none
// has. And the class of transformers that loads the model, "Qwen3ForCausalLM"; NULL if none does.
const char *model_family(const ModelConfig *config);
const char *model_class(const ModelConfig *config);
// Whether transformers refuses the shape: LlamaForCausalLM and ArceeForCausalLM want C to be a
// multiple of NH, whatever head_dim is. llama.cpp takes it.
bool model_class_refuses(const ModelConfig *config);
// The family of this name as a configuration without a shape. Returns its class; NULL if there is
// no such family.
const char *model_family_block(const char *name, ModelConfig *config);

// Checks ranges and divisibility (1 <= L, C a multiple of NH, d_ff a multiple of 8, ...) of a shape
// that came from outside.
bool model_config_check(const ModelConfig *config, Error *err);

// "12 blocks, 768 channels, 12 heads, context 1024, vocabulary 50257" into buf; returns buf. T: the
// context to name.
enum { MODEL_TEXT = 256, MODEL_DESCRIPTOR = 192 };
const char *model_config_text(const ModelConfig *config, int64_t T, char *buf, size_t size);
// The descriptor of this model but for d_ff: "L=12,C=768,NH=12,V=50257,T=1024",
// "qwen3:L=12,...,NKV=4". Returns buf.
const char *model_config_descriptor(const ModelConfig *config, char buf[MODEL_DESCRIPTOR]);

// A size that follows from the shape of the model: 1, C, HS, NH HS, (NH + 2 NKV) HS, d_ff, d_ff or
// with SwiGLU's gate 2 d_ff, Vp, max_T.
typedef enum {
    DIM_1,
    DIM_C,
    DIM_HS,
    DIM_ATT,
    DIM_QKV,
    DIM_FF,
    DIM_FC,
    DIM_VP,
    DIM_MAX_T
} Dimension;
int64_t model_size(const ModelConfig *config, Dimension dimension);

// The models that have a tensor.
typedef enum {
    IN_ALL,
    IN_LEARNED,   // positions
    IN_LAYERNORM, // not RMSNorm
    IN_QKV_BIAS,
    IN_PROJ_BIAS,
    IN_MLP_BIAS,
    IN_QK_NORM,
    IN_SWIGLU,
    IN_UNTIED, // head
} Presence;
bool model_has(const ModelConfig *config, Presence presence);
