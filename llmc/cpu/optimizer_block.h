// How optimizer.c sees a block of a parameter, max STATE_BLOCK elements: loaded from any dtype into
// fp32 lanes and stored from there, rounded as ops.h says. A rule then sees only fp32, and 8-bit
// states have a whole block at hand. Blocks are in the L1 cache; only the tensors' elements are
// read from memory and written back. Elements beyond the end of a block are 0 when loaded and are
// not stored.
#pragma once
#include "llmc/base/arithmetic.h"
#include "llmc/cpu/stochastic_rounding.h"
#include "llmc/number.h"
#include "llmc/ops.h"

// ------------------------------------------------------------------------------------ 8-bit states

// llmc/number.h a vector at a time: the same operations in the same order, so the same codes and
// numbers. Its loops over the decades become counts, its arrays lookups in a register.

// One of the two maps: signed (first_cells 1) or unsigned (first_cells 2). Entry d of a table
// belongs to decade d.
typedef struct {
    int first_cells;
    float border[DYNAMIC8_DECADES + 1];
    VTable begin, slope, last_cell; // encoding
    VTable width, half_cell;        // decoding
} Dynamic8;

static inline Dynamic8 dynamic8_map(int first_cells) {
    Dynamic8 map = {.first_cells = first_cells};
    for (int d = 0; d <= DYNAMIC8_DECADES; d++) map.border[d] = dynamic8_border(d, first_cells);
    for (int d = 0; d < DYNAMIC8_DECADES; d++) {
        const float cells = (float)(first_cells << d), width = dynamic8_decade_width(d);
        map.begin[d] = dynamic8_decade_begin(d);
        map.slope[d] = cells / width;
        map.last_cell[d] = cells - 1.0f;
        map.width[d] = width;
        map.half_cell[d] = 0.5f / cells;
    }
    return map;
}

// The number of each magnitude code: 0 and 1, or (cell / cells + half a cell + 1/9) of the width of
// its decade. With q = code + first_cells - 1 = cells + cell, and cells a power of two, the bits of
// q as a float are the decade and cell / cells.
static ALWAYS_INLINE V dynamic8_magnitudes(const Dynamic8 *map, VI code) {
    const VI q = code + (map->first_cells - 1);
    const VU bits = (VU) __builtin_convertvector(q, V);
    // first_cells 2: one binade higher
    const VU decade = (bits >> 23) - (127u + (uint32_t)(map->first_cells - 1));
    const V fraction = (V)((bits & 0x7FFFFFu) | 0x3F800000u) - 1.0f;
    const V number =
        (fraction + vlookup(map->half_cell, decade) + 1.0f / 9.0f) * vlookup(map->width, decade);
    const V p = __builtin_convertvector(code, V);
    const V or_one =
        vwhere_greater(p, vsplat((float)(127 * map->first_cells) + 0.5f), vsplat(1.0f), number);
    return vwhere_greater(p, vzero(), or_one, vzero());
}

// The codes of magnitudes in [0, 1]; a magnitude nearer to 0 than to the first number becomes
// below_first.
static ALWAYS_INLINE VI dynamic8_codes(const Dynamic8 *map, V x, VI below_first) {
    VI decade = {0};
    for (int d = 1; d < DYNAMIC8_DECADES; d++)
        decade = vcount_greater(decade, x, vsplat(map->border[d]));
    const V cell = (x - vlookup(map->begin, (VU)decade)) * vlookup(map->slope, (VU)decade);
    const V last = vlookup(map->last_cell, (VU)decade); // cells - 1
    VI code = __builtin_convertvector(vmin(cell, last), VI) + __builtin_convertvector(last, VI);
    code += 2 - map->first_cells;
    const VI one = (VI)vsplat_bits((uint32_t)(127 * map->first_cells + 1));
    code = (VI)vwhere_greater(x, vsplat(map->border[DYNAMIC8_DECADES]), (V)one, (V)code);
    return (VI)vwhere_greater(x, vsplat(map->border[0]), (V)code, (V)below_first);
}

static ALWAYS_INLINE VI dynamic8_encode_lanes(const Dynamic8 *map, V x, bool is_signed) {
    const VI zero = {0};
    if (is_signed) {
        const VI negative = (VI)x >> 31; // all ones
        VI p = dynamic8_codes(map, (V)((VU)x & 0x7FFFFFFFu), zero);
        p -= (p >> 7) & negative; // -1 has no code: 128 becomes 127
        return DYNAMIC8_ZERO_SIGNED + ((p ^ negative) - negative);
    }
    // a positive value never becomes 0
    return dynamic8_codes(map, x, vcount_greater(zero, x, vzero()));
}

// ------------------------------------------------------------------------------------------ blocks

enum { BLOCK_VECTORS = STATE_BLOCK / LANES };

typedef V Block[BLOCK_VECTORS];

// The position of a block.
typedef struct {
    int64_t begin; // its first element in the tensor
    int count;     // elements, 1 .. STATE_BLOCK
    int vectors;   // lanes in use / LANES
} Span;

static ALWAYS_INLINE Span span_at(int64_t begin, int64_t end) {
    const int count = (int)min_i64(end - begin, STATE_BLOCK);
    return (Span){begin, count, (count + LANES - 1) / LANES};
}

static ALWAYS_INLINE void block_load(V *x, Tensor t, Span at) {
    WITH_DTYPE(E, t.dtype,
               EACH_LANES(i, k, at.count, x[i / LANES] = vload_first(k, t.data, at.begin + i, E)));
}

static ALWAYS_INLINE void block_load_scaled(V *x, Tensor t, float factor, Span at) {
    block_load(x, t, at);
    for (int i = 0; i < at.vectors; i++) x[i] *= factor;
}

// ----------------------------------------------------------------------------- stochastic rounding

// The numbers that select a tensor's random bits.
typedef struct {
    uint64_t seed, stream, update;
    int64_t offset; // of the tensor in its parameter
} RandomBits;

// 16 bits for each element of a block.
typedef struct {
    uint32_t words[STATE_BLOCK / RANDOM_BLOCK][LANES][4];
} HalfWords;

static ALWAYS_INLINE void half_words_make(HalfWords *h, RandomBits r, Span at) {
    const uint64_t first = (r.update << 40) + (uint64_t)(r.offset + at.begin) / 8;
    for (int e = 0; e < at.count; e += RANDOM_BLOCK)
        vrounding_bits(h->words[e / RANDOM_BLOCK], r.seed, r.stream, first + (uint64_t)e / 8);
}

// Lanes i .. i + 15 of the block, rounded to bf16.
static ALWAYS_INLINE V round_lanes(HalfWords *h, int64_t i, V x) {
    return round_stochastically(x, vrounding_bits_at(h->words[i / RANDOM_BLOCK], i % RANDOM_BLOCK));
}

// ----------------------------------------------------------------------------------------- moments

// Runs the statements with the constant S, the dtype of the moments.
#define WITH_STATE(S, dtype_, ...)                                                                 \
    do {                                                                                           \
        if ((dtype_) == DTYPE_U8) {                                                                \
            const DType S = DTYPE_U8;                                                              \
            __VA_ARGS__;                                                                           \
        } else                                                                                     \
            WITH_DTYPE(S, dtype_, __VA_ARGS__);                                                    \
    } while (0)

// A block of a first moment (signed) or a second one while an update runs over it, in the dtype S.
// 8-bit states are stored when the whole block is known, because the largest magnitude is its
// scale.
typedef struct {
    void *data; // of the block
    float *scale;
    const Dynamic8 *map;
    bool is_signed;
    HalfWords random; // bf16
    Block next;       // 8 bits
} Moment;

static ALWAYS_INLINE void moment_open(Moment *m, Tensor t, Tensor scales, Span at,
                                      const Dynamic8 *map, bool is_signed, RandomBits random,
                                      DType S) {
    int64_t size = 4;
    if (S == DTYPE_BF16) size = 2;
    if (S == DTYPE_U8) size = 1;
    m->data = (char *)t.data + at.begin * size;
    if (S == DTYPE_U8) {
        // a block begins where a scale does
        m->scale = (float *)scales.data + at.begin / STATE_BLOCK;
        m->map = map;
        m->is_signed = is_signed;
    }
    if (S == DTYPE_BF16) half_words_make(&m->random, random, at);
}

// Lanes i .. i + k - 1 of the block.
static ALWAYS_INLINE V moment_load(const Moment *m, int64_t i, int k, DType S) {
    if (S != DTYPE_U8) return vload_first(k, m->data, i, S);
    const VI code = vload_first_u8(k, (const uint8_t *)m->data + i);
    if (!m->is_signed) return vfirst(k, dynamic8_magnitudes(m->map, code) * *m->scale, vzero());
    const VI p = code - DYNAMIC8_ZERO_SIGNED, sign = p >> 31; // all ones where p is negative
    const V x = (V)((VU)dynamic8_magnitudes(m->map, (p ^ sign) - sign) | ((VU)sign & 0x80000000u));
    return vfirst(k, x * *m->scale, vzero());
}
static ALWAYS_INLINE void moment_store(Moment *m, int64_t i, int k, V x, DType S) {
    if (S == DTYPE_U8) {
        m->next[i / LANES] = x;
        return;
    }
    if (S == DTYPE_BF16) x = round_lanes(&m->random, i, x);
    vstore_first(k, m->data, i, x, S);
}

static ALWAYS_INLINE void moment_close(Moment *m, Span at, DType S) {
    if (S != DTYPE_U8) return;
    V largest = vzero();
    for (int i = 0; i < at.vectors; i++) largest = vmax((V)((VU)m->next[i] & 0x7FFFFFFFu), largest);
    const float scale = vmax_lane(largest);
    const V divisor = scale > 0.0f ? vsplat(scale) : vsplat(1.0f);
    EACH_LANES(
        i, k, at.count,
        vstore_first_u8(k, (uint8_t *)m->data + i,
                        dynamic8_encode_lanes(m->map, m->next[i / LANES] / divisor, m->is_signed)));
    *m->scale = scale;
}
