// What the two halves of causal attention share: the matrices of one head inside the packed tensors, and the shape.
// Private to attention.c, attention_forward.c and attention_backward.c.
#pragma once
#include "llmc/cpu/cpu.h"
#include "llmc/cpu/tile_matmul.h"

typedef struct {
    int64_t B, T, NH, HS;
    DType dtype;
    float scale; // of the scores: 1 / sqrt(HS)
} AttentionShape;

// Checks that qkv (B,T,3C) splits into num_heads heads of a type that ops accept.
AttentionShape attention_shape(const char *op, Tensor qkv, int num_heads);

// The (T,HS) matrix of head h of sequence b in t: (B,T,C) with parts = 1, or part 0, 1, 2 (q, k, v) of (B,T,3C).
MatrixView attention_head(AttentionShape s, Tensor t, int64_t b, int64_t h, int part, int parts);

// Lays out scratch memory: the next `bytes` bytes of base, aligned to 64; *end counts. With base NULL it only counts.
static inline void *scratch_take(char *base, int64_t *end, int64_t bytes) {
    int64_t offset = cpu_part(end, bytes);
    return base ? base + offset : NULL;
}

// Bytes of workspace that one thread needs.
int64_t attention_forward_scratch(int64_t T, int64_t HS, DType dtype);
int64_t attention_backward_scratch(int64_t T, int64_t HS, DType dtype);
