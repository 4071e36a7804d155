// Recomputation: which activations the backward pass recomputes instead of keeping them, block by
// block, for less memory and more time. Gradients are the same bits whatever is chosen, because an
// op on the same inputs gives the same bits. Chen et al., "Training Deep Nets with Sublinear Memory
// Cost", 2016.
//
// It also has the FLOPs of a training step, with the formulas stated, because numbers from
// different formulas cannot be compared.
#pragma once
#include "llmc/base/error.h"
#include "llmc/model/parameters.h"

#include <stddef.h>
#include <stdint.h>

// The ops of a block that can run again; a set of them for each block. An op that needs the result
// of another op in the set finds it there, so no op runs twice.
enum {
    RECOMPUTE_GELU = 1, // gelu, or another activation       d_ff elements a token less, no matmul
    RECOMPUTE_LAYERNORM =
        2, // ln1, ln2 and their statistics, qkr   2 C, with QK-norm (NH + 2 NKV) HS more, no matmul
    RECOMPUTE_FC =
        4, // pre, with it gelu                 2 d_ff (d_ff beyond gelu), 2 C d_ff FLOPs a token
    RECOMPUTE_QKV = 8,        // qkv                               3 C, 6 C^2
    RECOMPUTE_ATTENTION = 16, // att, lse                          C, 2 C (T + 1)
    RECOMPUTE_ATTPROJ = 32,   // residual2                         C, 2 C^2
    RECOMPUTE_BLOCK = 63      // all of them: only residual1 is kept; 8 C^2 + 2 C d_ff + 2 C (T + 1)
};

enum { MAX_BLOCKS = 1024 };
typedef struct {
    uint8_t blocks[MAX_BLOCKS]; // set of RECOMPUTE_... of each block
} Recompute;

// The argument of -r is one of
//   0 1 2 3           all blocks: nothing; gelu; gelu+layernorm; block
//   gelu+qkv ...      all blocks: ops joined by +: gelu, layernorm, fc, qkv, attention, attproj,
//                     block
//   3/2, qkv+fc/3     every second block (the first, the third, ...), every third; the others
//                     keep everything
//   3x4,0             the first 4 blocks; the others
// The caller handles auto. False and a message if the text is none of these, or for more blocks
// than L.
bool recompute_parse(Recompute *r, const char *text, int64_t L, Error *err);
Recompute recompute_all(int set);   // this set in every block
int recompute_level_set(int level); // the set of -r 0 .. 3

// The shortest text that parses to r, for L blocks: "0", "3", "3/2", "3x4,0", "gelu+qkv"; "mixed"
// if there is none. Into buf; returns buf. RECOMPUTE_TEXT bytes are enough; a truncated text ends
// in "...", which does not parse.
enum { RECOMPUTE_TEXT = 96 };
const char *recompute_text(const Recompute *r, int64_t L, char *buf, size_t size);

// Whether some block recomputes GELU from a kept pre-activation, with gelu_forward. Such a block
// cannot repeat the bits of a GELU computed in the epilogue of a matmul, before its input was
// rounded (-ge).
bool recompute_gelu_alone(const Recompute *r, int64_t L);

// Matmul and attention FLOPs a token that are recomputed, for context T, all blocks together.
double recompute_flops_per_token(const Recompute *r, const ModelConfig *config, int64_t T);
// Elements of the compute dtype a token that the other recomputed ops read and write, for the
// planner: gelu 2 d_ff (none with the matmul before it, as part of which it counts), a layernorm 2
// C.
double recompute_elements_per_token(const Recompute *r, const ModelConfig *config);

// --------------------------------------------------------------------------------- FLOPs of a step

// Per token of context T, forward + backward:
//   llm.c's, what mfu prints:    6 N + 6 L C T
//   exact (causal half):         72 L C^2 + 6 Vp C + 6 L C (T + 1); with d_ff other than 4 C its
//                                first term, of the linear layers of the blocks, is
//                                24 L C^2 + 12 L C d_ff
double flops_per_token_llmc(const ModelConfig *config, int64_t T);
double flops_per_token_linear(const ModelConfig *config); // the first term
double flops_per_token_exact(const ModelConfig *config, int64_t T);
// The FLOPs that the machine computes, for hfu: exact + attention / 6 (the backward pass recomputes
// QK^T) + recomputation (recompute_flops_per_token).
double flops_per_token_hardware(const ModelConfig *config, int64_t T, const Recompute *recompute);
