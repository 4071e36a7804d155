// The vector vocabulary of the CPU backend, lane by lane against scalar C: a program for each copy
// of the vector code.

#include "llmc/base/random.h"
#include "llmc/cpu/stochastic_rounding.h"
#include "test/test.h"

#include <math.h>
#include <sys/mman.h>
#include <unistd.h>

static float from_bits(uint32_t bits) {
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}
static uint32_t to_bits(float x) {
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    return bits;
}
static V random_lanes(uint64_t index) {
    V x;
    for (int i = 0; i < LANES; i++)
        x[i] = 2.0f * philox_uniform(philox(1, 2, index * LANES + (uint64_t)i).v[0]) - 1.0f;
    return x;
}

// --------------------------------------------------------------------------------------------- exp

TEST(exp_is_within_1e_7_of_the_exact_value) {
    // e^r = 1 + t with t = r + r^2 q(r). The polynomial is fitted to 3e-9. Rounding 1 + t costs
    // half an ulp: 2^-24 = 6e-8 of a result above 1, 2^-25 / 0.70 = 4.3e-8 of one below. t is off
    // by half an ulp of 0.41 itself, 2^-26 = 1.5e-8, and by as much again from r. Together 9.3e-8.
    double worst = 0.0;
    const float from = LANES == 16 ? -87.3f : -86.9f; // below -87 the other copies give 0
    for (int64_t n = 0; n < 5860000; n += LANES) {    // to 88.5 or more
        V lanes_x;
        for (int i = 0; i < LANES; i++) lanes_x[i] = fminf(from + 3e-5f * (float)(n + i), 88.7f);
        V y = vexp(lanes_x);
        for (int i = 0; i < LANES; i++) {
            double want = exp((double)lanes_x[i]);
            worst = fmax(worst, fabs((double)y[i] - want) / want);
        }
    }

    if (worst > 1e-7) fail_msg("relative error %.3g", worst);
    assert_true(vexp(vzero())[0] == 1.0f);
}

TEST(exp_saturates_to_zero_and_infinity_and_nan_stays_in_its_lane) {
    const float low[] = {-104.0f, -105.0f, -1e4f, -1e30f, -INFINITY};
    const float high[] = {88.73f, 89.0f, 90.0f, 1e4f, 1e30f, INFINITY};
    for (size_t i = 0; i < sizeof low / sizeof *low; i++)
        assert_true(vexp(vsplat(low[i]))[LANES - 1] == 0.0f);
    for (size_t i = 0; i < sizeof high / sizeof *high; i++)
        assert_true(vexp(vsplat(high[i]))[LANES - 1] == INFINITY);
    V x = vzero();
    x[3] = NAN;
    V y = vexp(x);
    for (int i = 0; i < LANES; i++) assert_true(i == 3 ? isnan(y[i]) : y[i] == 1.0f);
}

// ------------------------------------------------------------------------------------------- tails

TEST(each_lanes_visits_every_element_once) {
    for (int64_t n = 0; n <= 50; n++) {
        int64_t next = 0, tails = 0;
        EACH_LANES(i, k, n, {
            assert_int_equal(i, next);
            assert_true(k == lanes(n - i));
            next = i + k;
            tails += k < LANES;
        });

        assert_int_equal(next, n);
        assert_int_equal(tails, n % LANES != 0);
    }

    assert_int_equal(lanes(-3), 0);
}

TEST(partial_loads_and_stores_take_the_first_lanes_only) {
    const V x = random_lanes(0) + 2.0f; // never 0
    float whole[LANES];
    uint16_t whole_bf16[LANES];

    for (int i = 0; i < LANES; i++) whole[i] = x[i], whole_bf16[i] = float_to_bf16(x[i]);
    for (int n = 0; n <= LANES; n++) {
        float f[LANES] = {0};
        uint16_t h[LANES] = {0};

        vstore_first(n, f, 0, x, DTYPE_FP32);
        vstore_first(n, h, 0, x, DTYPE_BF16);
        const V y = vload_first(n, whole, 0, DTYPE_FP32),
                z = vload_first(n, whole_bf16, 0, DTYPE_BF16);
        const V chosen = vfirst(n, vsplat(1.0f), vsplat(2.0f));

        for (int i = 0; i < LANES; i++) {
            assert_true(f[i] == (i < n ? whole[i] : 0.0f) && y[i] == f[i]);
            assert_int_equal(h[i], i < n ? whole_bf16[i] : 0);
            assert_true(z[i] == bf16_to_float(h[i]) && chosen[i] == (i < n ? 1.0f : 2.0f));
        }
    }
}

TEST(tails_touch_nothing_behind_the_array) {
    // The array ends where a page without access begins: one byte too far is a fault.
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    char *pages = mmap(NULL, 2 * page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    assert_true(pages != MAP_FAILED);
    assert_int_equal(mprotect(pages + page, page, PROT_NONE), 0);
    for (int n = 1; n <= LANES; n++) {
        void *f = pages + page - (size_t)n * 4, *h = pages + page - (size_t)n * 2;
        vstore_first(n, f, 0, vload_first(n, f, 0, DTYPE_FP32) + 1.0f, DTYPE_FP32);
        vstore_first(n, h, 0, vload_first(n, h, 0, DTYPE_BF16) + 1.0f, DTYPE_BF16);
    }
    munmap(pages, 2 * page);
}

// -------------------------------------------------------------------------------------------- bf16

// Except that denormals become 0.
static uint16_t expected_bf16(float x) {
    return fabsf(x) < 0x1p-126f ? signbit(x) ? 0x8000 : 0 : float_to_bf16(x);
}

// Every bf16 pattern with lower halves around nothing, a tie and the next number: all signs,
// exponents, infinities, NaN.
TEST(rounding_to_bf16_is_that_of_the_scalar_code) {
    const uint32_t lower[] = {0x0000, 0x0001, 0x7FFF, 0x8000, 0x8001, 0xFFFF};
    for (uint32_t upper = 0; upper < 0x10000; upper += LANES)
        for (size_t l = 0; l < sizeof lower / sizeof *lower; l++) {
            VU bits = (vlane_numbers() + upper) << 16 | lower[l];
            uint16_t got[LANES];
            vstore_bf16(got, (V)bits);
            const VU portable = vround_bf16_bits((V)bits);
#ifdef __AVX512BF16__
            const VU pair = vpair_bf16((V)bits, (V)bits);
#endif

            for (int i = 0; i < LANES; i++) {
                uint16_t want = expected_bf16(from_bits(bits[i]));
                assert_int_equal(got[i], want);
                assert_int_equal(portable[i] >> 16, want);
#ifdef __AVX512BF16__
                assert_int_equal(pair[i], (uint32_t)want << 16 | want);
#endif
            }
        }
}

TEST(every_bf16_widens_exactly) {
    for (uint32_t first = 0; first < 0x10000; first += LANES) {
        uint16_t h[LANES];
        for (int i = 0; i < LANES; i++) h[i] = (uint16_t)(first + (uint32_t)i);
        VU got = (VU)vload(h, 0, DTYPE_BF16);
        for (int i = 0; i < LANES; i++) assert_int_equal(got[i], (uint32_t)h[i] << 16);
    }
}

#ifdef __AVX512BF16__
TEST(dot_products_of_pairs_add_both_products) {
    uint16_t even[LANES], odd[LANES];
    for (uint64_t trial = 0; trial < 100; trial++) {
        V x = random_lanes(4 * trial), y = random_lanes(4 * trial + 1);

        vstore_bf16(even, x);
        vstore_bf16(odd, y);

        VU a = vpair_bf16(x, y);
        VU b = vpair_bf16(random_lanes(4 * trial + 2), random_lanes(4 * trial + 3));
        V got = vdot_bf16(vsplat(0.5f), a, b);

        for (int i = 0; i < LANES; i++) {
            double want = 0.5 + (double)bf16_to_float(even[i]) * (double)from_bits(b[i] << 16) +
                          (double)bf16_to_float(odd[i]) * (double)from_bits(b[i] & 0xFFFF0000u);
            // Two sums below 2.5 in magnitude, each rounded once to 24 bits: 2 * 2^-23.
            assert_true(fabs(got[i] - want) <= 0x1p-22);
        }
    }
}

#endif

// ----------------------------------------------------------------------------- sums over the lanes

TEST(lanes_are_summed_as_a_tree_of_halves) {
    for (uint64_t trial = 0; trial < 100; trial++) {
        V x = random_lanes(trial) * random_lanes(trial + 1000);
        float tree[LANES];
        for (int i = 0; i < LANES; i++) tree[i] = x[i];

        for (int half = LANES / 2; half >= 1; half /= 2)
            for (int i = 0; i < half; i++) tree[i] += tree[i + half];
        // the very bits: a sum in another order differs
        assert_int_equal(to_bits(vsum(x)), to_bits(tree[0]));
    }

    V infinite = vzero();
    infinite[LANES / 2 - 1] = INFINITY;
    assert_true(vsum(infinite) == INFINITY);
    infinite[LANES / 2] = -INFINITY;
    assert_true(isnan(vsum(infinite)));
}

TEST(the_largest_lane_is_found_wherever_it_is) {
    for (int at = 0; at < LANES; at++) {
        V x = random_lanes(7) - 3.0f;
        x[at] = -1.5f;
        assert_true(vmax_lane(x) == -1.5f);
    }
    assert_true(vmax_lane(vsplat(-INFINITY)) == -INFINITY);
}

// ----------------------------------------------------------------------------- lane by lane, exact

TEST(max_and_min_take_the_second_argument_where_one_is_nan) {
    V a = random_lanes(1), b = random_lanes(2);
    a[0] = NAN;
    b[1] = NAN;
    V high = vmax(a, b), low = vmin(a, b);
    assert_true(high[0] == b[0] && low[0] == b[0]);
    assert_true(isnan(high[1]) && isnan(low[1]));
    for (int i = 2; i < LANES; i++)
        assert_true(high[i] == fmaxf(a[i], b[i]) && low[i] == fminf(a[i], b[i]));
}

TEST(arithmetic_is_rounded_as_the_scalar_one) {
    const V a = random_lanes(4), b = random_lanes(5), c = random_lanes(6), fma = vfma(a, b, c),
            root = vsqrt(a + 1.0f);

    for (int i = 0; i < LANES; i++) {
        assert_true(root[i] == sqrtf(a[i] + 1.0f));
        // A product and a sum below 2 in magnitude, each rounded at most once.
        assert_true(fabs((double)fma[i] - ((double)a[i] * (double)b[i] + (double)c[i])) <=
                    2 * 0x1p-24);
    }

    const float in[] = {0.5f, 1.5f, 2.5f, -0.5f, -1.5f, 3.49f, -149.51f},
                want[] = {0, 2, 2, 0, -2, 3, -150};
    for (size_t i = 0; i < sizeof in / sizeof *in; i++)
        assert_true(vround(vsplat(in[i]))[2] == want[i]); // ties to even
}

TEST(the_greater_lanes_are_chosen_and_counted) {
    V a = random_lanes(7), b = random_lanes(8), yes = random_lanes(9), no = random_lanes(10);
    a[0] = b[0], a[1] = NAN, b[2] = NAN, a[3] = -0.0f, b[3] = 0.0f;
    const V chosen = vwhere_greater(a, b, yes, no);
    const VI count = vcount_greater((VI)vlane_numbers(), a, b);
    for (int i = 0; i < LANES; i++) {
        assert_true(chosen[i] == (a[i] > b[i] ? yes[i] : no[i]));
        assert_int_equal(count[i], i + (a[i] > b[i]));
    }
}

TEST(lookups_take_an_entry_for_each_lane) {
    VTable table;
    for (int i = 0; i < 8; i++) table[i] = 3.0f * (float)i;
    const VU index = (vlane_numbers() * 7u + 3u) % 8u;
    const V got = vlookup(table, index);
    for (int i = 0; i < LANES; i++) assert_true(got[i] == 3.0f * (float)index[i]);
}

TEST(products_of_lower_words_keep_all_64_bits) {
    const uint32_t factors[] = {0, 1, 0xD2511F53u, 0xFFFFFFFFu};
    for (size_t f = 0; f < sizeof factors / sizeof *factors; f++) {
        VWide a;
        // upper words do not count
        for (int i = 0; i < LANES / 2; i++) a[i] = 0xABCDEF0100000000u + (uint32_t)i * 0x24924924u;
        const VWide got = vmul_low(a, factors[f]);
        for (int i = 0; i < LANES / 2; i++)
            assert_true(got[i] == (uint64_t)(uint32_t)a[i] * factors[f]);
    }
}

TEST(unpacked_lanes_alternate) {
    VWide a, b;
    for (int i = 0; i < LANES / 2; i++) a[i] = 100u + (uint64_t)i, b[i] = 200u + (uint64_t)i;
    const VWide low = vunpack_low(a, b), high = vunpack_high(a, b);
    for (int i = 0; i < LANES / 2; i += 2) {
        assert_true(low[i] == a[i] && low[i + 1] == b[i]);
        assert_true(high[i] == a[i + 1] && high[i + 1] == b[i + 1]);
    }
}

TEST(bytes_become_integers_and_back) {
    for (int first = 0; first < 256; first += LANES)
        for (int n = 0; n <= LANES; n++) {
            uint8_t bytes[LANES + 1], back[LANES + 1];
            for (int i = 0; i <= LANES; i++) bytes[i] = (uint8_t)(first + i), back[i] = 77;
            const VI x = vload_first_u8(n, bytes);
            vstore_first_u8(n, back, x + 0x12345600); // only the lowest byte is stored
            for (int i = 0; i < LANES; i++) assert_int_equal(x[i], i < n ? bytes[i] : 0);
            for (int i = 0; i <= LANES; i++) assert_int_equal(back[i], i < n ? bytes[i] : 77);
        }
}

TEST(words_are_loaded_and_stored_at_any_word_address) {
    uint32_t words[LANES + 3] = {0};
    vstore_bits(words + 1, vlane_numbers() + 1u);
    assert_int_equal(words[0], 0);
    assert_int_equal(words[LANES + 1], 0);
    VU x = vload_bits(words + 1);
    for (int i = 0; i < LANES; i++) assert_int_equal(x[i], i + 1);
}
