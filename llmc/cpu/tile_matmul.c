// The register-blocked micro-kernel of tile_matmul and the packing of its operands.
// Independent of attention; touches only its operands.
#include "llmc/cpu/tile_matmul.h"

// ------------------------------------------------------------------------------------ micro-kernel

// A tile of TILE_ROWS x TILE_GROUPS vectors of sums stays in registers over the whole depth. With
// AVX-512 8 x 3 of the 32 registers run at the rate of the bare bf16 instruction on Zen 5, 520
// GFLOP/s per core; 32 words deep and 2 groups wide it is 98% of that, 1 wide 74%: 8 chains of sums
// do not cover the latency of a dot product. With 16 registers 4 x 3 sums, 3 vectors of the right
// operand and one broadcast word fill them.
enum { TILE_GROUPS = 3, TILE_ROWS = FEW_REGISTERS || PANEL_ROWS < 8 ? 4 : 8 };
_Static_assert(PANEL_ROWS % TILE_ROWS == 0, "a panel is whole tiles");

static ALWAYS_INLINE void tile_product(TileResult c, LeftOperand a, RightOperand b, int64_t depth,
                                       bool accumulate, int groups, DType E) {
    V sum[TILE_ROWS][TILE_GROUPS];
    for (int r = 0; r < TILE_ROWS; r++)
        for (int g = 0; g < groups; g++)
            sum[r][g] =
                accumulate ? vload_f32(c.data + r * c.row_stride + g * c.group_stride) : vzero();

    for (int64_t w = 0; w < depth; w++) {
        VU column[TILE_GROUPS];
#pragma GCC unroll 3
        for (int g = 0; g < groups; g++)
            column[g] = vload_bits(b.words + g * b.group_stride + w * LANES);
#pragma GCC unroll 8
        for (int r = 0; r < TILE_ROWS; r++) {
            const VU row = vsplat_bits(a.words[r * a.row_stride + w]);
#pragma GCC unroll 3
            for (int g = 0; g < groups; g++)
                sum[r][g] = E == DTYPE_BF16 ? vdot_bf16(sum[r][g], row, column[g])
                                            : vfma((V)row, (V)column[g], sum[r][g]);
        }
    }

    for (int r = 0; r < TILE_ROWS; r++)
        for (int g = 0; g < groups; g++)
            vstore_f32(c.data + r * c.row_stride + g * c.group_stride, sum[r][g]);
}

// All rows of `groups` groups of columns: the right operand's part stays in the L1 cache.
static ALWAYS_INLINE void tile_column(TileResult c, LeftOperand a, RightOperand b, int64_t rows,
                                      int64_t depth, bool accumulate, int groups, DType E) {
    for (int64_t r = 0; r < rows; r += TILE_ROWS) {
        if (accumulate)
            tile_product(result_from_row(c, r), left_from_row(a, r), b, depth, true, groups, E);
        else
            tile_product(result_from_row(c, r), left_from_row(a, r), b, depth, false, groups, E);
    }
}

// ------------------------------------------------------------------------------------ tiles of AMX

// The packed operands are tiles as they are: 16 rows of 16 words on the left, on the right 16 words
// of depth of a group of columns. One left tile meets three groups: four loads of 8 cycles for
// three products of 16. The depth ends with 16 or 8 words, for which there are two tiles of half
// the size.
#ifdef __AMX_BF16__
enum { TILE_WORDS = 16 };
// Tiles 0, 1 and 2 are the sums of three groups. The compiler takes the numbers of tiles as text.
#define LEFT       3
#define RIGHT      4
#define LEFT_HALF  5
#define RIGHT_HALF 6

void tile_matmul_begin(void) {
    static const struct {
        uint8_t palette, start_row, reserved[14];
        uint16_t row_bytes[16];
        uint8_t rows[16];
    } shape = {.palette = 1,
               .row_bytes = {64, 64, 64, 64, 64, 32, 64},
               .rows = {16, 16, 16, 16, 16, 16, 8}};
    _tile_loadconfig(&shape);
}

void tile_matmul_end(void) { _tile_release(); }

// X(g) for each of one to three groups. The number of a tile is part of the instruction, so g is a
// constant.
#define FOR_GROUPS(groups, X)                                                                      \
    X(0) if ((groups) > 1) { X(1) }                                                                \
    if ((groups) > 2) { X(2) }

static ALWAYS_INLINE void amx_product(TileResult c, LeftOperand a, RightOperand b, int64_t depth,
                                      bool accumulate, int groups) {
    const long c_row = c.row_stride * 4, a_row = a.row_stride * 4, b_row = LANES * 4;
    if (accumulate) {
#define LOAD(g) _tile_loadd(g, c.data + g * c.group_stride, c_row);
        FOR_GROUPS(groups, LOAD)
    } else {
#define ZERO(g) _tile_zero(g);
        FOR_GROUPS(groups, ZERO)
    }
    int64_t w = 0;
    for (; w + TILE_WORDS / 2 < depth; w += TILE_WORDS) {
        _tile_loadd(LEFT, a.words + w, a_row);
#define MULTIPLY(g)                                                                                \
    _tile_loadd(RIGHT, b.words + g * b.group_stride + w * LANES, b_row);                           \
    _tile_dpbf16ps(g, LEFT, RIGHT);
        FOR_GROUPS(groups, MULTIPLY)
    }
    if (w < depth) {
        _tile_loadd(LEFT_HALF, a.words + w, a_row);
#define MULTIPLY_HALF(g)                                                                           \
    _tile_loadd(RIGHT_HALF, b.words + g * b.group_stride + w * LANES, b_row);                      \
    _tile_dpbf16ps(g, LEFT_HALF, RIGHT_HALF);
        FOR_GROUPS(groups, MULTIPLY_HALF)
    }
#define STORE(g) _tile_stored(g, c.data + g * c.group_stride, c_row);
    FOR_GROUPS(groups, STORE)
}

static void amx_matmul(TileResult c, LeftOperand a, RightOperand b, int64_t rows, int64_t columns,
                       int64_t depth, bool accumulate) {
    for (int64_t column = 0; column < columns; column += 3 * LANES)
        for (int64_t r = 0; r < rows; r += PANEL_ROWS) {
            const TileResult to = result_from_row(result_from_column(c, column), r);
            const LeftOperand left = left_from_row(a, r);
            const RightOperand right = right_from_column(b, column);
            if (columns - column > 2 * LANES)
                amx_product(to, left, right, depth, accumulate, 3);
            else if (columns - column > LANES)
                amx_product(to, left, right, depth, accumulate, 2);
            else
                amx_product(to, left, right, depth, accumulate, 1);
        }
}
#else
void tile_matmul_begin(void) {}
void tile_matmul_end(void) {}
#endif

void tile_matmul(TileResult c, LeftOperand a, RightOperand b, int64_t rows, int64_t columns,
                 int64_t depth, bool accumulate, DType dtype) {
#ifdef __AMX_BF16__
    if (dtype == DTYPE_BF16) {
        amx_matmul(c, a, b, rows, columns, depth, accumulate);
        return;
    }
#endif
    WITH_DTYPE(E, packed_dtype(dtype), {
        for (int64_t column = 0; column < columns;) {
            int64_t groups = (columns - column) / LANES;
            TileResult c_column = result_from_column(c, column);
            RightOperand b_column = right_from_column(b, column);
            if (groups == 1) {
                tile_column(c_column, a, b_column, rows, depth, accumulate, 1, E);
                column += LANES;
            } else if (groups == 2 || groups == 4) { // 4 = 2 + 2: no group is left alone
                tile_column(c_column, a, b_column, rows, depth, accumulate, 2, E);
                column += 2 * LANES;
            } else {
                tile_column(c_column, a, b_column, rows, depth, accumulate, TILE_GROUPS, E);
                column += TILE_GROUPS * LANES;
            }
        }
    });
}

// ----------------------------------------------------------------------------------------- packing

// LANES words of one row, from word w on: the depth runs along the row.
static ALWAYS_INLINE VU words_along_row(MatrixView m, int64_t row, int64_t w, DType E) {
    const bool widened = packed_dtype(E) != E;
    const int64_t pair = E == DTYPE_BF16 && !widened ? 2 : 1, size = 4 / pair;
    const int64_t left = row < m.rows ? m.columns - w * pair : 0;
    if (left <= 0) return (VU){0};
    if (widened) return (VU)vload_first(lanes(left), m.data, row * m.stride + w, E);
    const char *p = (const char *)m.data + (row * m.stride + w * pair) * size;
    if (left >= LANES * pair) { // of its own: a variable that the partial copy could change would
                                // live in memory
        VU words;
        memcpy(&words, p, sizeof words);
        return words;
    }
    VU words = {0};
    memcpy(&words, p, (size_t)(left * size));
    return words;
}

static ALWAYS_INLINE VU bits_of_row(MatrixView m, int64_t row, int64_t column, DType E) {
    if (row >= m.rows) return (VU){0};
    return (VU)vload_first(lanes(m.columns - column), m.data, row * m.stride + column, E);
}

// Word w of LANES columns: the depth runs across the rows.
static ALWAYS_INLINE VU words_across_rows(MatrixView m, int64_t w, int64_t column, DType E) {
    if (packed_dtype(E) == DTYPE_FP32) return bits_of_row(m, w, column, E);
    return bits_of_row(m, 2 * w, column, E) >> 16 | bits_of_row(m, 2 * w + 1, column, E);
}

void pack_left(LeftOperand a, MatrixView m, int64_t first, int64_t count) {
    WITH_DTYPE(E, m.dtype, {
        for (int64_t r = 0; r < count; r++) {
            prefetch_row(m, first + r + count);
            for (int64_t w = 0; w < depth_words(m.columns, E); w += LANES)
                vstore_bits(a.words + r * a.row_stride + w, words_along_row(m, first + r, w, E));
        }
    });
}

void pack_right(RightOperand b, MatrixView m, int64_t first, int64_t count) {
    for (int64_t r = 0; r < count; r++) prefetch_row(m, first + count + r);
    WITH_DTYPE(E, m.dtype, {
        int64_t first_word = depth_words(first, E), end_word = depth_words(first + count, E);
        for (int64_t column = 0; column < m.columns; column += LANES) {
            uint32_t *group = right_from_column(b, column).words;
            for (int64_t w = first_word; w < end_word; w++, group += LANES)
                vstore_bits(group, words_across_rows(m, w, column, E));
        }
    });
}

void pack_left_transposed(LeftOperand a, MatrixView m, int64_t first, int64_t count) {
    WITH_DTYPE(E, m.dtype, {
        int64_t first_word = depth_words(first, E), num_words = depth_words(count, E);
        for (int64_t column = 0; column < m.columns; column += LANES)
            for (int64_t w = 0; w < num_words; w += LANES) {
                VU block[LANES];
                for (int i = 0; i < LANES; i++)
                    block[i] = words_across_rows(m, first_word + w + i, column, E);
                transpose_square(block);
                for (int i = 0; i < LANES; i++)
                    vstore_bits(a.words + (column + i) * a.row_stride + w, block[i]);
            }
    });
}

void pack_right_transposed(RightOperand b, MatrixView m, int64_t first, int64_t count) {
    WITH_DTYPE(E, m.dtype, {
        for (int64_t r = 0; r < count; r += LANES) {
            for (int i = 0; i < LANES; i++) prefetch_row(m, first + r + count + i);
            for (int64_t w = 0; w < depth_words(m.columns, E); w += LANES) {
                VU block[LANES];
                for (int i = 0; i < LANES; i++) block[i] = words_along_row(m, first + r + i, w, E);
                transpose_square(block);
                uint32_t *group = right_from_word(right_from_column(b, r), w).words;
                for (int i = 0; i < LANES; i++) vstore_bits(group + i * LANES, block[i]);
            }
        }
    });
}
