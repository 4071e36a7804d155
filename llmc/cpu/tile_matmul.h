// Products of matrices small enough for the caches, on operands that were packed for it: the inner loop of attention.
//
//      result (rows x columns)  =  or +=  left (rows x depth) @ right (depth x columns),      sums in fp32
//
// Packed operands are made of 32-bit words: one fp32, or two bf16 that are neighbours along the depth, which is what
// one lane of a bf16 dot product takes. So the same loop serves both types; bf16 is half as deep. Columns come in
// groups of 16, one vector wide, and a group lies together, so that the loop reads the right operand as a stream:
//
//      left:   words [row][depth]                           each word is broadcast to 16 lanes
//      right:  words [group of 16 columns][depth][16]       each 16 words are one vector
//
// Packing pads: what lies beyond the rows or columns of the source is 0 and adds nothing to a product.
// Owns no memory, starts no threads. Large products belong to onednn.h.
#pragma once
#include "llmc/base/checked.h"
#include "llmc/cpu/simd.h"

enum { PANEL_ROWS = 8 }; // left operands and results have a multiple of this many rows

// n elements of depth in words.
static inline int64_t depth_words(int64_t n, DType dtype) { return dtype == DTYPE_BF16 ? (n + 1) / 2 : n; }

typedef struct {
    uint32_t *words; // word w of row r: words[r * row_stride + w]
    int64_t row_stride;
} LeftOperand;

typedef struct {
    uint32_t *words; // word w of column c: words[c / 16 * group_stride + w * 16 + c % 16]
    int64_t group_stride;
} RightOperand;

typedef struct {
    float *data; // row r, column c: data[r * row_stride + c / 16 * group_stride + c % 16]
    int64_t row_stride, group_stride;
} TileResult;

static inline LeftOperand left_from_row(LeftOperand a, int64_t row) {
    return (LeftOperand){a.words + row * a.row_stride, a.row_stride};
}
static inline RightOperand right_from_column(RightOperand b, int64_t column) { // a multiple of 16
    return (RightOperand){b.words + column / LANES * b.group_stride, b.group_stride};
}
static inline RightOperand right_from_word(RightOperand b, int64_t word) {
    return (RightOperand){b.words + word * LANES, b.group_stride};
}

// columns is a multiple of 16, rows of PANEL_ROWS; depth counts words; dtype is what the words hold (fp32 or bf16).
void tile_matmul(TileResult c, LeftOperand a, RightOperand b, int64_t rows, int64_t columns, int64_t depth,
                 bool accumulate, DType dtype);

// ------------------------------------------------------------------------------------------------------------ packing

// A matrix inside a larger row-major array, such as the queries of one head.
typedef struct {
    void *data; // element (row, column) at index row * stride + column
    int64_t rows, columns, stride;
    DType dtype; // fp32 or bf16
} MatrixView;

// The four ways in which rows [first, first + count) of m become an operand. count may reach beyond m.rows.
//                                            rows      columns    depth       count is a multiple of
void pack_left(LeftOperand a, MatrixView m, int64_t first, int64_t count);
//                                            rows      -          columns     1
void pack_left_transposed(LeftOperand a, MatrixView m, int64_t first, int64_t count);
//                                            columns   -          rows        32; writes a multiple of 16 rows of a
void pack_right(RightOperand b, MatrixView m, int64_t first, int64_t count);
//                                            -         columns    rows        2
void pack_right_transposed(RightOperand b, MatrixView m, int64_t first, int64_t count);
//                                            -         rows       columns     16

// 16 x 16 words: x[i][j] and x[j][i] change places.
void transpose_16x16(VU x[LANES]);
