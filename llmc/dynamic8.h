// 8-bit numbers of optimizer states: dynamic quantisation. A code stands for a number in [-1, 1] (signed) or [0, 1]
// (unsigned); times the scale of its block, the largest magnitude there, it is the state. The step between neighbours
// grows with the magnitude: seven decades, each cut into twice as many cells as the one below, so that large values
// keep two digits and small ones are not lost. A number becomes the nearest one that has a code.
// Dettmers, Lewis, Shleifer, Zettlemoyer, "8-bit Optimizers via Block-wise Quantization", 2021 (its dynamic map).
// One text for all backends: plain fp32 operations in a stated order, in which no product is added to anything, so that
// fma or no fma makes no difference and the codes are the same everywhere.
#pragma once
#include "llmc/base/checked.h"
#include <stdint.h>

enum { DYNAMIC8_DECADES = 7, DYNAMIC8_ZERO_SIGNED = 127 };

// 10^(decade - 7): where a decade begins, 1e-7 .. 1e-1; it ends where the next one begins, the last at 1.
static HOST_DEVICE inline float dynamic8_decade_begin(int decade) {
    const float begins[DYNAMIC8_DECADES + 1] = {1e-7f, 1e-6f, 1e-5f, 1e-4f, 1e-3f, 1e-2f, 1e-1f, 1.0f};
    return begins[decade];
}
static HOST_DEVICE inline float dynamic8_decade_width(int decade) {
    return 0.9f * dynamic8_decade_begin(decade + 1); // 9 begin; without the error of begin
}

// The middle of cell `cell` of the `cells` equal ones of a decade: its number. A decade begins at 1/9 of its width.
static HOST_DEVICE inline float dynamic8_middle(int decade, int cell, int cells) {
    return (((float)cell + 0.5f) / (float)cells + 1.0f / 9.0f) * dynamic8_decade_width(decade);
}

// The magnitude of code p: 0 is 0; 1 .. 127 with cells = 2^decade in each decade (signed: first_cells = 1), or 1 .. 254
// with 2^(decade + 1) (unsigned: first_cells = 2); the code after the last one is 1.
static HOST_DEVICE inline float dynamic8_magnitude(int p, int first_cells) {
    int cells = first_cells, decade = 0, begin = 1;
    if (p == 0) return 0.0f;
    while (decade < DYNAMIC8_DECADES && p >= begin + cells) begin += cells, cells *= 2, decade++;
    return decade == DYNAMIC8_DECADES ? 1.0f : dynamic8_middle(decade, p - begin, cells);
}

// Half way between the first number of a decade and the number before it: above this begins what becomes one of the
// decade. Decade DYNAMIC8_DECADES: the code of 1.
static HOST_DEVICE inline float dynamic8_border(int decade, int first_cells) {
    const int cells = first_cells << decade;
    const float below = decade == 0 ? 0.0f : dynamic8_middle(decade - 1, cells / 2 - 1, cells / 2);
    return 0.5f * (below + (decade == DYNAMIC8_DECADES ? 1.0f : dynamic8_middle(decade, 0, cells)));
}

// The code of magnitude x in [0, 1]; NaN becomes 0.
static HOST_DEVICE inline int dynamic8_code(float x, int first_cells) {
    if (!(x > dynamic8_border(0, first_cells))) return 0;
    if (x > dynamic8_border(DYNAMIC8_DECADES, first_cells)) return 127 * first_cells + 1;
    int decade = 0;
    for (int d = 1; d < DYNAMIC8_DECADES; d++) decade += x > dynamic8_border(d, first_cells);
    const int cells = first_cells << decade;
    const int cell = (int)((x - dynamic8_decade_begin(decade)) * ((float)cells / dynamic8_decade_width(decade)));
    return cells - (first_cells - 1) + (cell < cells ? cell : cells - 1); // the last cell reaches up to the border
}

// Signed: codes 0 .. 255 in the order of their numbers, 127 is 0, 255 is 1; -1 has no code and becomes the largest
// magnitude below it.
static HOST_DEVICE inline float dynamic8_decode_signed(uint8_t code) {
    const int p = (int)code - DYNAMIC8_ZERO_SIGNED;
    return p < 0 ? -dynamic8_magnitude(-p, 1) : dynamic8_magnitude(p, 1);
}
static HOST_DEVICE inline uint8_t dynamic8_encode_signed(float x) {
    const int p = dynamic8_code(x < 0.0f ? -x : x, 1);
    return (uint8_t)(x < 0.0f ? DYNAMIC8_ZERO_SIGNED - (p > 127 ? 127 : p) : DYNAMIC8_ZERO_SIGNED + p);
}

// Unsigned, for second moments: code = magnitude code. What is above 0 never becomes 0: a second moment of 0 under a
// first moment that is not would make an update without bound.
static HOST_DEVICE inline float dynamic8_decode_unsigned(uint8_t code) { return dynamic8_magnitude((int)code, 2); }
static HOST_DEVICE inline uint8_t dynamic8_encode_unsigned(float x) {
    const int p = dynamic8_code(x, 2);
    return (uint8_t)(p == 0 && x > 0.0f ? 1 : p);
}
