// The operations of ptx.h that are not inline: conversions, approximate instructions, warps,
// matrices, faults.
#include "dev/sim/ptx.h"
#include "dev/sim/block.h"
#include "dev/sim/runtime.h"
#include "dev/sim/sanitizers.h"

#include <stdlib.h>

namespace ptx {
// ------------------------------------------------------------------------------------------ floats

// Rounded down: exactly a*b + c = sum + error, with the product and the sum of doubles.
float fma_rm(float a, float b, float c) {
    const double product = (double)a * (double)b, sum = product + (double)c, other = sum - product;
    const double error = (product - (sum - other)) + ((double)c - other);
    if (sum == 0 && error == 0) // of zeros of one sign that sign, else -0
        return product == 0 && c == 0 && !__builtin_signbit(product) && !__builtin_signbit(c)
                   ? 0.0f
                   : -0.0f;
    const float f = (float)sum;
    if (!((double)f > sum || ((double)f == sum && error < 0))) return f; // also NaN and infinities
    if (f == 0) return f32_of(0x80000001);
    return f32_of(f > 0 ? bits(f) - 1 : bits(f) + 1);
}

// The value of an approximate instruction: exact, or, in the numbers of hardware, off by up to
// `error` and so many units in the last place, by how much says a hash of the argument.
static float inexact(double value, double error, double ulps, uint32_t argument) {
    const float f = (float)value;
    if (!sim::hardware_numbers() || f == 0 || !(fabs(value) < (double)INFINITY)) return f;
    error += ldexp(ulps, (ilogb(value) < -126 ? -126 : ilogb(value)) - 23);
    argument = (argument ^ argument >> 16) * 0x7feb352du;
    argument = (argument ^ argument >> 15) * 0x846ca68bu;
    const float moved =
        (float)(value + error * 0x1p-31 * (double)(int32_t)(argument ^ argument >> 16));
    const bool flushed = ftz(moved) == 0 && ftz(f) != 0,
               same_sign = (bits(moved) ^ bits(f)) >> 31 == 0;
    return fabs((double)moved - value) <= error && same_sign && !flushed ? moved : f;
}
// The bounds are those of the PTX ISA. ex2 of zeros is 1, of subnormal numbers too.
float ex2_approx(float v) { return inexact(exp2((double)v), 0, ftz(v) == 0 ? 0 : 2, bits(v)); }
float lg2_approx(float v) {
    const double value = log2((double)v), scale = v > 0.5f && v < 2.0f ? 1 : fabs(value);
    return inexact(value, 0x1.5p-23 * scale, 0, bits(v)); // 2^-22.6
}
float rsqrt_approx(float v) {
    const double value = 1.0 / sqrt((double)v);
    return inexact(value, 0x1.12p-23 * value, 0, bits(v)); // 2^-22.9
}
float tanh_approx(float v) {
    const double value = tanh((double)v);
    return inexact(value, 0x1p-11 * fabs(value), 0, bits(v));
}
// For |b| between 2^126 and 2^128 the result is 0, or NaN for an infinite a.
float divide_approx(float a, float b) {
    const float size = __builtin_fabsf(b);
    if (size > 0x1p126f && size < INFINITY)
        return a != a || __builtin_isinf(a) ? f32_of(CANONICAL_NAN)
                                            : f32_of((bits(a) ^ bits(b)) & 0x80000000u);
    const double q = (double)a / (double)b;
    return inexact(q, 0, 2, bits(a) + 0x9E3779B1u * bits(b));
}

float half_to_float(uint16_t h) {
    const uint32_t sign = (uint32_t)(h >> 15) << 31, exponent = h >> 10 & 31, fraction = h & 1023;
    if (exponent == 31) return f32_of(sign | 0x7f800000u | fraction << 13);
    if (exponent == 0) return __builtin_copysignf((float)fraction * 0x1p-24f, f32_of(sign));
    return f32_of(sign | (exponent + 112) << 23 | fraction << 13);
}

// |f| rounded to nearest even to a format of so many exponent and fraction bits, as its code
// without the sign; codes may come out larger than the format has.
static uint32_t narrow(float f, int exponent_bits, int fraction_bits) {
    const double size = fabs((double)f);
    const int bias = (1 << (exponent_bits - 1)) - 1;
    int e = size > 0 ? ilogb(size) : -bias;
    if (e < 1 - bias) e = 1 - bias;
    // In units of the last place at e, rounded to an integer. The code of e with fraction 0 counts
    // 2^fraction_bits units; a carry goes up into the exponent by itself.
    const double units = nearbyint(ldexp(size, fraction_bits - e));
    const double code = units + ldexp((double)(e + bias - 1), fraction_bits);
    return code > 0x7fffffff ? 0x7fffffff : (uint32_t)code;
}
uint16_t float_to_half(float f) {
    if (f != f) return 0x7fff;
    const uint32_t sign = bits(f) >> 31 << 15,
                   code = __builtin_isinf(f) ? 0x7c00 : narrow(f, 5, 10);
    return (uint16_t)(sign | (code > 0x7c00 ? 0x7c00 : code));
}
static uint8_t saturated(float f, uint32_t largest, int exponent_bits, int fraction_bits) {
    const uint32_t code = __builtin_isinf(f) ? largest : narrow(f, exponent_bits, fraction_bits);
    return (uint8_t)(bits(f) >> 31 << 7 | (code > largest ? largest : code));
}
uint8_t float_to_e4m3(float f) { return f != f ? 0x7f : saturated(f, 0x7e, 4, 3); }
uint8_t float_to_e5m2(float f) { return f != f ? 0x7f : saturated(f, 0x7b, 5, 2); }

// ------------------------------------------------------------------------------------------- warps

static void take_from(const uint64_t *value, const unsigned *source, unsigned lanes,
                      uint64_t *result) {
    for (unsigned left = lanes; left; left &= left - 1) {
        const int lane = __builtin_ctz(left);
        if (!(lanes >> source[lane] & 1))
            sim::fatal("shuffle: lane %d reads lane %u, which does not take part (lanes %08x)",
                       lane, source[lane], lanes);
        result[lane] = value[source[lane]];
    }
}
uint32_t shfl_meet(uint32_t mask, uint32_t value, uint32_t source, int line, const char *file) {
    return (uint32_t)sim::warp_op(mask, value, source, take_from, line, file);
}
uint32_t warp_meet(uint32_t value, Complete f, int line, const char *file) {
    return (uint32_t)sim::warp_op(~0u, value, 0, f, line, file);
}

static void gather_votes(const uint64_t *value, const unsigned *, unsigned lanes,
                         uint64_t *result) {
    uint64_t votes = 0;
    for (unsigned left = lanes; left; left &= left - 1)
        votes |= value[__builtin_ctz(left)] << __builtin_ctz(left);
    for (int lane = 0; lane < 32; lane++) result[lane] = votes;
}
uint32_t vote_ballot(bool p, uint32_t mask, int line, const char *file) {
    return (uint32_t)sim::warp_op(mask, p, 0, gather_votes, line, file);
}

static void gather_equal(const uint64_t *value, const unsigned *, unsigned lanes,
                         uint64_t *result) {
    for (int lane = 0; lane < 32; lane++) {
        result[lane] = 0;
        for (int other = 0; other < 32; other++)
            if (lanes >> other & 1 && value[lane] == value[other]) result[lane] |= 1u << other;
    }
}
uint32_t match_any(uint32_t value, uint32_t mask, int line, const char *file) {
    return (uint32_t)sim::warp_op(mask, value, 0, gather_equal, line, file);
}

static void nothing(const uint64_t *, const unsigned *, unsigned, uint64_t *) {}
void bar_warp(uint32_t mask, int line, const char *file) {
    sim::warp_op(mask, 0, 0, nothing, line, file, true);
}
void bar_sync(int line, const char *file) { sim::block_op(0, sim::BLOCK_SYNC, line, file); }
uint32_t bar_popc(bool p, int line, const char *file) {
    return (uint32_t)sim::block_op(p, sim::BLOCK_COUNT, line, file);
}
bool bar_and(bool p, int line, const char *file) {
    return sim::block_op(p, sim::BLOCK_AND, line, file);
}
bool bar_or(bool p, int line, const char *file) {
    return sim::block_op(p, sim::BLOCK_OR, line, file);
}

#ifdef SIM_TSAN
// By thread: the number of the block in which it had a fence, and no atomic operation since.
static __thread uint64_t fenced[sim::MAX_THREADS];
static uint64_t number_of_block() { return sim::running_block->counts.blocks + 1; }
void fence() {
    sim::tsan_acquire(&sim::running_block->tsan->published);
    fenced[sim::running_block->current] = number_of_block();
}
void publish() {
    uint64_t *mine = &fenced[sim::running_block->current];
    if (*mine == number_of_block()) sim::tsan_release(&sim::running_block->tsan->published);
    *mine = 0;
}
#else
void fence() { __atomic_thread_fence(__ATOMIC_SEQ_CST); }
#endif

// ---------------------------------------------------------------------------------------- matrices

// ldmatrix: lane 8 i + r has the address of row r of matrix i, 8 elements of 16 bits. Lane l gets
// of every matrix the elements 2 (l % 4) and the next of row l / 4; transposed, of column l / 4 the
// rows 2 (l % 4) and the next.
template <bool TRANS>
static void deal_matrices(const uint64_t *value, const unsigned *, unsigned lanes, uint64_t *) {
    sim::expect_whole_warp(lanes, "ldmatrix");
    uint16_t row[32][8];
    for (int lane = 0; lane < 32; lane++) memcpy(row[lane], (const void *)value[lane], 16);
    for (int lane = 0; lane < 32; lane++)
        for (int i = 0; i < 4; i++) {
            const uint16_t(*m)[8] = row + 8 * i;
            const int first = 2 * (lane % 4), other = lane / 4;
            ((uint32_t *)value[lane])[i] = TRANS ? pack2(m[first + 1][other], m[first][other])
                                                 : pack2(m[other][first + 1], m[other][first]);
        }
}
template <bool TRANS> void ldmatrix_x4(uint32_t *m, int line, const char *file) {
    sim::warp_op(~0u, (uint64_t)(uintptr_t)m, 0, deal_matrices<TRANS>, line, file);
}
template void ldmatrix_x4<false>(uint32_t *, int, const char *);
template void ldmatrix_x4<true>(uint32_t *, int, const char *);

// Tensor cores as they were measured (Fasi, Higham, Mikaitis, Pranesh 2021; Khattak, Mikaitis
// 2025): some exact products and the accumulator are aligned to the largest of them and cut off so
// many bits below its 24, then the sum is cut off to a float. Turing 4 products and no bit more, as
// Volta; Ampere and Ada 8 and 1, Hopper and later 16 and 2.
static int exponent_of(double v) { return (int)(bits(v) >> 52 & 2047) - 1023; }
static double power_of_two(int exponent) { return f64_of((uint64_t)(exponent + 1023) << 52); }
template <int K> static double truncating_sum(const float *a, const float *b, double c) {
    static const int gpu = sim::device_model().compute_capability;
    const int most = gpu < 80 ? 4 : gpu < 90 ? 8 : 16, more_bits = gpu < 80 ? 0 : gpu < 90 ? 1 : 2;
    const int count = most < K ? most : K;

    for (int first = 0; first < K; first += count) {
        double term[17], plain = c, largest = fabs(c);
        for (int k = 0; k < count; k++) {
            term[k] = (double)a[first + k] * (double)b[8 * (first + k)];
            largest = fmax(largest, fabs(term[k]));
            plain += term[k];
        }

        term[count] = c;
        c = plain;
        if (!(largest > 0 && fabs(plain) < (double)INFINITY)) continue; // zeros, infinities, NaN
        const int lowest = exponent_of(largest) - 23 - more_bits;
        int64_t sum = 0; // in units of 2^lowest
        for (int k = 0; k <= count; k++) sum += (int64_t)(term[k] * power_of_two(-lowest));
        c = f64_of(bits((double)sum * power_of_two(lowest)) & ~0ull << 29);
    }
    return c;
}

// c (16 x 8) += a (16 x K) b (K x 8), k after k.
typedef float Narrow __attribute__((vector_size(32)));
typedef double Wide __attribute__((vector_size(64)));
template <int K>
NOTHING_TO_SEE static void add_products(double (*c)[8], const float (*a)[K], const float (*b)[8]) {
    Narrow row;
    Wide wide[K], sum;
    for (int k = 0; k < K; k++) {
        memcpy(&row, b[k], sizeof row);
        wide[k] = __builtin_convertvector(row, Wide);
    }
    for (int i = 0; i < 16; i++) {
        memcpy(&sum, c[i], sizeof sum);
        for (int k = 0; k < K; k++) sum += (double)a[i][k] * wide[k];
        memcpy(c[i], &sum, sizeof sum);
    }
}

// mma.m16n8kK, K = 8 or 16, g = lane / 4, t = lane % 4: A (16 x K) register r holds row g + 8 (r %
// 2), columns 2 t + 8 (r / 2) and the next; B (K x 8) register r rows 2 t + 8 r and the next of
// column g; C and D (16 x 8) element i row g + 8 (i / 2), column 2 t + i % 2. The ISA leaves the
// order of the additions open: here in double, rounded once.
template <class T, int K>
NOTHING_TO_SEE static void multiply(const uint64_t *value, const unsigned *, unsigned lanes,
                                    uint64_t *) {
    sim::expect_whole_warp(lanes, "mma");
    alignas(64) float a[16][K], b[K][8];
    alignas(64) double c[16][8];
    for (int lane = 0; lane < 32; lane++) {
        const MmaFragments *m = (const MmaFragments *)value[lane];
        const int g = lane / 4, t = lane % 4;
        for (int r = 0; r < K / 4; r++)
            for (int h = 0; h < 2; h++)
                a[g + 8 * (r % 2)][2 * t + 8 * (r / 2) + h] =
                    T::number((uint16_t)(m->a[r] >> 16 * h));
        for (int r = 0; r < K / 8; r++)
            for (int h = 0; h < 2; h++)
                b[2 * t + 8 * r + h][g] = T::number((uint16_t)(m->b[r] >> 16 * h));
        for (int i = 0; i < 4; i++) c[g + 8 * (i / 2)][2 * t + i % 2] = (double)m->c[i];
    }
    if (sim::hardware_numbers()) {
        for (int i = 0; i < 16; i++)
            for (int j = 0; j < 8; j++) c[i][j] = truncating_sum<K>(a[i], &b[0][j], c[i][j]);
    } else {
        add_products<K>(c, a, b);
    }
    for (int lane = 0; lane < 32; lane++) {
        MmaFragments *m = (MmaFragments *)value[lane];
        for (int i = 0; i < 4; i++)
            m->c[i] = (float)c[lane / 4 + 8 * (i / 2)][2 * (lane % 4) + i % 2];
    }
}
template <class T, int K> void mma_m16n8(MmaFragments &m, int line, const char *file) {
    sim::warp_op(~0u, (uint64_t)(uintptr_t)&m, 0, multiply<T, K>, line, file);
}
template void mma_m16n8<Half, 8>(MmaFragments &, int, const char *);
template void mma_m16n8<Half, 16>(MmaFragments &, int, const char *);
template void mma_m16n8<BFloat, 16>(MmaFragments &, int, const char *);

// ------------------------------------------------------------------------------------------ faults

__thread char *shared_bytes;
__thread uint32_t shared_end;
__thread Range found[64];

static const char *reason(uint64_t address, uint32_t size) {
    return address % size ? "misaligned" : "out of bounds";
}
void shared_fault(uint32_t a, uint32_t size, int line, const char *file) {
    sim::fatal("%s: %u bytes of shared memory at %u, which has %u, at %s:%d", reason(a, size), size,
               a - SHARED_BASE, shared_end - SHARED_BASE, file, line);
}
void window_fault(uint64_t a, uint32_t size, int line, const char *file) {
    sim::fatal("%s: %u bytes of local memory or of parameters at 0x%lx, at %s:%d", reason(a, size),
               size, a, file, line);
}
char *global_lookup(uint64_t a, uint32_t size, int number, int line, const char *file) {
    if (a % size == 0 &&
        sim::find_device_memory(a, size, &found[number].begin, &found[number].bytes))
        return (char *)(uintptr_t)a;
    sim::fatal("%s: %u bytes at 0x%lx, at %s:%d",
               a % size ? "misaligned" : "outside of the device's memory", size, a, file, line);
}
void division_by_zero(int line, const char *file) {
    sim::fatal("integer division by zero at %s:%d", file, line);
}
void trap(int line, const char *file) { sim::fatal("trap at %s:%d", file, line); }
} // namespace ptx
