// The shape of a GPT-2 style model, and the descriptors that name one on the command line.
#pragma once
#include "llmc/base/error.h"
#include <stdint.h>

typedef struct {
    int64_t max_T; // longest context: rows of the position embedding
    int64_t V;     // vocabulary; 0 in a descriptor that leaves it to the data
    int64_t Vp;    // V padded up to a multiple of 128: rows of the token embedding and of the logits
    int64_t L;     // blocks
    int64_t NH;    // heads
    int64_t C;     // channels
} ModelConfig;

enum { VOCAB_PADDING = 128, GPT2_VOCAB = 50257 };

// Fills config from a descriptor; false and a message that lists the forms when it is none.
//   d6 d12 d24 d36 d48 d60     GPT-2 (124M is d12): max_T 1024, V 0
//   gpt3:c768 ...              GPT-3's table by channels (384 768 1024 1536 2048 2560 4096 5120 12288): max_T 2048
//   L=6,C=384,NH=6,V=257,T=256 free shape; each part optional (defaults: d12's; V 0); NH defaults to C/64.
//                              A preset may stand first: d12,V=50257,T=512
bool model_config_parse(ModelConfig *config, const char *descriptor, Error *err);

// Whether a -e value looks like a descriptor at all (no '/', no file of that name is looked at).
bool model_config_is_descriptor(const char *text);

// Sets V and Vp. V >= 1.
void model_config_set_vocab(ModelConfig *config, int64_t V);

// Checks ranges and divisibility (1 <= L, C a multiple of NH, ...) of a shape that came from outside.
bool model_config_check(const ModelConfig *config, Error *err);
