// llmc/dynamic8.h sixteen lanes at a time: the same operations in the same order, so the same codes and numbers. Its
// loops over the decades become counts, its arrays lookups in a register.
#pragma once
#include "llmc/cpu/simd.h"
#include "llmc/dynamic8.h"

// One of the two maps: signed (first_cells 1) or unsigned (first_cells 2). Lane d of a V belongs to decade d.
typedef struct {
    int first_cells;
    float border[DYNAMIC8_DECADES + 1];
    V begin, slope, last_cell; // encoding
    V width, half_cell;        // decoding
} Dynamic8;

static inline Dynamic8 dynamic8_map(int first_cells) {
    Dynamic8 map = {.first_cells = first_cells};
    for (int d = 0; d <= DYNAMIC8_DECADES; d++) map.border[d] = dynamic8_border(d, first_cells);
    for (int d = 0; d < DYNAMIC8_DECADES; d++) {
        const float cells = (float)(first_cells << d), width = dynamic8_decade_width(d);
        map.begin[d] = dynamic8_decade_begin(d), map.slope[d] = cells / width, map.last_cell[d] = cells - 1.0f;
        map.width[d] = width, map.half_cell[d] = 0.5f / cells;
    }
    return map;
}

// The number of each magnitude code: 0 and 1, or (cell / cells + half a cell + 1/9) of the width of its decade. With q
// = code + first_cells - 1 = cells + cell, and cells a power of two, the bits of q as a float are the decade and cell /
// cells.
static ALWAYS_INLINE V dynamic8_magnitudes(const Dynamic8 *map, VI code) {
    const VI q = code + (map->first_cells - 1);
    const VU bits = (VU) __builtin_convertvector(q, V);
    const VU decade = (bits >> 23) - (127u + (uint32_t)(map->first_cells - 1)); // first_cells 2: one binade higher
    const V fraction = (V)((bits & 0x7FFFFFu) | 0x3F800000u) - 1.0f;
    const V number = (fraction + vlookup(map->half_cell, decade) + 1.0f / 9.0f) * vlookup(map->width, decade);
    const V p = __builtin_convertvector(code, V);
    const V or_one = vwhere_greater(p, vsplat((float)(127 * map->first_cells) + 0.5f), vsplat(1.0f), number);
    return vwhere_greater(p, vzero(), or_one, vzero());
}

// The codes of magnitudes in [0, 1]; what is nearer to 0 than to the first number becomes below_first.
static ALWAYS_INLINE VI dynamic8_codes(const Dynamic8 *map, V x, VI below_first) {
    VI decade = {0};
    for (int d = 1; d < DYNAMIC8_DECADES; d++) decade = vcount_greater(decade, x, vsplat(map->border[d]));
    const V cell = (x - vlookup(map->begin, (VU)decade)) * vlookup(map->slope, (VU)decade);
    const V last = vlookup(map->last_cell, (VU)decade); // cells - 1
    VI code = __builtin_convertvector(vmin(cell, last), VI) + __builtin_convertvector(last, VI);
    code += 2 - map->first_cells;
    const VI one = (VI)vsplat_bits((uint32_t)(127 * map->first_cells + 1));
    code = (VI)vwhere_greater(x, vsplat(map->border[DYNAMIC8_DECADES]), (V)one, (V)code);
    return (VI)vwhere_greater(x, vsplat(map->border[0]), (V)code, (V)below_first);
}

static ALWAYS_INLINE V dynamic8_decode_lanes(const Dynamic8 *map, VI code, bool is_signed) {
    if (!is_signed) return dynamic8_magnitudes(map, code);
    const VI p = code - DYNAMIC8_ZERO_SIGNED, sign = p >> 31; // all ones where p is negative
    return (V)((VU)dynamic8_magnitudes(map, (p ^ sign) - sign) | ((VU)sign & 0x80000000u));
}

static ALWAYS_INLINE VI dynamic8_encode_lanes(const Dynamic8 *map, V x, bool is_signed) {
    const VI zero = {0};
    if (is_signed) {
        const VI negative = (VI)x >> 31; // all ones
        VI p = dynamic8_codes(map, (V)((VU)x & 0x7FFFFFFFu), zero);
        p -= (p >> 7) & negative; // -1 has no code: 128 becomes 127
        return DYNAMIC8_ZERO_SIGNED + ((p ^ negative) - negative);
    }
    return dynamic8_codes(map, x, vcount_greater(zero, x, vzero())); // what is above 0 never becomes 0
}
