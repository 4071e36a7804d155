// Products of matrices small enough for the caches, on packed operands: the inner loop of
// attention.
//
//      result (rows x columns) = or += left (rows x depth) @ right (depth x columns), sums in fp32
//
// Packed operands are made of 32-bit words: one fp32, or two bf16 adjacent along the depth, which
// one lane of a bf16 dot product takes. So one loop serves both types; bf16 is half as deep.
// Without the instruction bf16 is packed as fp32. Columns come in groups of LANES, one vector
// wide, and a group is contiguous, so that the loop reads the right operand as a stream:
//
//      left:    words  [row][depth]                           a word is broadcast to all lanes
//      right:   words  [group of columns][depth][LANES]       LANES words are one vector
//      result:  floats [row][column], or by groups like the right operand
//
// Owns no memory, starts no threads. Large products belong to matmul.h.
#pragma once
#include "llmc/cpu/simd.h"

// Left operands and results have a multiple of this many rows. Not more than LANES: attention's
// panel of rows has its diagonal in one group of columns.
enum { VECTOR_ROWS = LANES < 8 ? LANES : 8 };
enum { PANEL_ROWS = BF16_TILES ? 16 : VECTOR_ROWS };

// The numbers in the words of operands of this dtype.
static inline DType packed_dtype(DType dtype) { return BF16_PAIRS ? dtype : DTYPE_FP32; }

// n elements of depth in words.
static inline int64_t depth_words(int64_t n, DType dtype) {
    if (packed_dtype(dtype) == DTYPE_BF16) return (n + 1) / 2;
    return n;
}

typedef struct {
    uint32_t *words; // word w of row r: words[r * row_stride + w]
    int64_t row_stride;
} LeftOperand;

typedef struct {
    uint32_t *words; // word w of column c: words[c / LANES * group_stride + w * LANES + c % LANES]
    int64_t group_stride;
} RightOperand;

typedef struct {
    float *data; // row r, column c: data[r * row_stride + c / LANES * group_stride + c % LANES]
    int64_t row_stride, group_stride;
} TileResult;

// dtype: the type of the words, fp32 or bf16. rows: a multiple of PANEL_ROWS; columns: of LANES;
// depth counts words. Of bf16 the words up to the next multiple of 8 are read too, and must be 0 in
// an operand whose depth ends before: packing makes them so.
void tile_matmul(TileResult c, LeftOperand a, RightOperand b, int64_t rows, int64_t columns,
                 int64_t depth, bool accumulate, DType dtype);

// Around the products of a task, in the thread that computes them: the tile registers of AMX have a
// shape to be set, and a thread that keeps them pays for it at each switch. Elsewhere they do
// nothing.
void tile_matmul_begin(void);
void tile_matmul_end(void);

// The part that begins at the given row, column (a multiple of LANES) or word.
static inline LeftOperand left_from_row(LeftOperand a, int64_t row) {
    return (LeftOperand){a.words + row * a.row_stride, a.row_stride};
}
static inline RightOperand right_from_column(RightOperand b, int64_t column) {
    return (RightOperand){b.words + column / LANES * b.group_stride, b.group_stride};
}
static inline RightOperand right_from_word(RightOperand b, int64_t word) {
    return (RightOperand){b.words + word * LANES, b.group_stride};
}
static inline TileResult result_from_row(TileResult c, int64_t row) {
    return (TileResult){c.data + row * c.row_stride, c.row_stride, c.group_stride};
}
static inline TileResult result_from_column(TileResult c, int64_t column) {
    return (TileResult){c.data + column / LANES * c.group_stride, c.row_stride, c.group_stride};
}

// ----------------------------------------------------------------------------------------- packing

// A matrix inside a larger row-major array, such as the queries of one head.
typedef struct {
    void *data; // element (row, column) at index row * stride + column
    int64_t rows, columns, stride;
    DType dtype; // fp32 or bf16
} MatrixView;

// Packs rows [first, first + count) of m at the beginning of the given operand:
//
//                              an operand for      its depth are m's     count is a multiple of
//      pack_left               m @ ..              columns               1
//      pack_left_transposed    m^T @ ..            rows                  2 LANES
//      pack_right              .. @ m              rows                  2
//      pack_right_transposed   .. @ m^T            columns               LANES
//
// Elements beyond the rows or columns of m are packed as 0 and add nothing to a product. Whole
// vectors are written, so row_stride (left) and group_stride / LANES (right, transposed) need space
// for a multiple of LANES words, left transposed for a multiple of LANES rows.
void pack_left(LeftOperand a, MatrixView m, int64_t first, int64_t count);
void pack_left_transposed(LeftOperand a, MatrixView m, int64_t first, int64_t count);
void pack_right(RightOperand b, MatrixView m, int64_t first, int64_t count);
void pack_right_transposed(RightOperand b, MatrixView m, int64_t first, int64_t count);

// Prefetches a row; does nothing beyond the last. The rows of one head are as far apart as the rows
// of all heads together, and no hardware prefetcher follows them from page to page. So packing
// prefetches the `count` rows after its own: the next call packs them, and until then there is work
// to hide their latency.
static ALWAYS_INLINE void prefetch_row(MatrixView m, int64_t row) {
    const int64_t size = m.dtype == DTYPE_BF16 ? 2 : 4, cache_line = 64;
    if (row >= m.rows) return;
    const char *p = (const char *)m.data + row * m.stride * size;
    for (int64_t i = 0; i < m.columns * size; i += cache_line) __builtin_prefetch(p + i);
}

// --------------------------------------------------------------------------------------- transpose

// One step: in every 2h x 2h block the two off-diagonal h x h blocks are swapped. The steps h =
// LANES / 2, .. 2, 1 transpose. The lists pick from rows i (0..LANES - 1) and i + h (LANES..2 LANES
// - 1).
#if __has_builtin(__builtin_shufflevector)
#define vpick(a, b, ...) __builtin_shufflevector(a, b, __VA_ARGS__)
#else // gcc 11
#define vpick(a, b, ...) __builtin_shuffle(a, b, (VU){__VA_ARGS__})
#endif
#define TRANSPOSE_STEP(x, h, UPPER, LOWER)                                                         \
    for (int i = 0; i < LANES; i++)                                                                \
        if ((i & (h)) == 0) {                                                                      \
            VU upper = vpick(x[i], x[i + (h)], UPPER);                                             \
            x[i + (h)] = vpick(x[i], x[i + (h)], LOWER);                                           \
            x[i] = upper;                                                                          \
        }
#if defined(__AVX512F__)
#define UPPER_8 0, 1, 2, 3, 4, 5, 6, 7, 16, 17, 18, 19, 20, 21, 22, 23
#define LOWER_8 8, 9, 10, 11, 12, 13, 14, 15, 24, 25, 26, 27, 28, 29, 30, 31
#define UPPER_4 0, 1, 2, 3, 16, 17, 18, 19, 8, 9, 10, 11, 24, 25, 26, 27
#define LOWER_4 4, 5, 6, 7, 20, 21, 22, 23, 12, 13, 14, 15, 28, 29, 30, 31
#define UPPER_2 0, 1, 16, 17, 4, 5, 20, 21, 8, 9, 24, 25, 12, 13, 28, 29
#define LOWER_2 2, 3, 18, 19, 6, 7, 22, 23, 10, 11, 26, 27, 14, 15, 30, 31
#define UPPER_1 0, 16, 2, 18, 4, 20, 6, 22, 8, 24, 10, 26, 12, 28, 14, 30
#define LOWER_1 1, 17, 3, 19, 5, 21, 7, 23, 9, 25, 11, 27, 13, 29, 15, 31
#elif defined(__AVX2__)
#define UPPER_4 0, 1, 2, 3, 8, 9, 10, 11
#define LOWER_4 4, 5, 6, 7, 12, 13, 14, 15
#define UPPER_2 0, 1, 8, 9, 4, 5, 12, 13
#define LOWER_2 2, 3, 10, 11, 6, 7, 14, 15
#define UPPER_1 0, 8, 2, 10, 4, 12, 6, 14
#define LOWER_1 1, 9, 3, 11, 5, 13, 7, 15
#else
#define UPPER_2 0, 1, 4, 5
#define LOWER_2 2, 3, 6, 7
#define UPPER_1 0, 4, 2, 6
#define LOWER_1 1, 5, 3, 7
#endif

// LANES x LANES words: swaps x[i][j] and x[j][i].
static ALWAYS_INLINE void transpose_square(VU x[LANES]) {
#ifdef UPPER_8
    TRANSPOSE_STEP(x, 8, UPPER_8, LOWER_8)
#endif
#ifdef UPPER_4
    TRANSPOSE_STEP(x, 4, UPPER_4, LOWER_4)
#endif
    TRANSPOSE_STEP(x, 2, UPPER_2, LOWER_2)
    TRANSPOSE_STEP(x, 1, UPPER_1, LOWER_1)
}
