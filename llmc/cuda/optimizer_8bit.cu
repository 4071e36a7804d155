// The rules with states in 8 bits: codes of llmc/number.h, a scale for each block of 256 elements. Numbers and codes
// are the header's, to the bit.
// Dettmers, Lewis, Shleifer, Zettlemoyer, "8-bit Optimizers via Block-wise Quantization", 2021.
//
// A warp owns a block of states from its load to its store: the new largest magnitudes go through shuffles, the new
// moments stay in registers. Bytes a parameter with bf16 weights, fp32 master and gradient (2 less with a bf16
// gradient): AdamW 18 (gradient 4; codes of m and v read and written 4, their scales 1/16; master 8, weight 2); Lion
// and SGD 16.
#include "llmc/cuda/optimizer_elements.cuh"
#include "llmc/number.h"

enum {
    BLOCK_THREADS = 256,
    BLOCK_WARPS = BLOCK_THREADS / WARP,
    NEIGHBOURS = 4,                // 4 bytes of codes, 16 of fp32, so that the accesses of a warp are dense
    ROUND = WARP * NEIGHBOURS,     // elements of a warp at a time
    ROUNDS = STATE_BLOCK / ROUND,  // until it has a block of states
    PART_BLOCKS = 8 * BLOCK_WARPS, // blocks of states of a block of threads: they hide the making of the table
    MINE = ROUNDS * NEIGHBOURS,    // elements of a thread in a block of states
};

int64_t cuda_part_8bit(void) { return (int64_t)PART_BLOCKS * STATE_BLOCK; }

// What a block of threads computes once: by arithmetic, decoding would take longer than all the rest of the update, and
// encoding half as long again.
struct Codes {
    float m[256], v[256];                                       // what they stand for: signed, unsigned
    float begin[DYNAMIC8_DECADES];                              // of a decade
    float m_cells[DYNAMIC8_DECADES], v_cells[DYNAMIC8_DECADES]; // in one, on the scale of magnitudes
};

static __device__ __forceinline__ void make_codes(Codes *codes) {
    const int i = (int)threadIdx.x;
    codes->m[i] = dynamic8_decode_signed((uint8_t)i);
    codes->v[i] = dynamic8_decode_unsigned((uint8_t)i);
    if (i >= DYNAMIC8_DECADES) return;
    codes->begin[i] = dynamic8_decade_begin(i); // an array that a thread keeps in memory: once a block of threads
    codes->m_cells[i] = __fdiv_rn((float)(1 << i), dynamic8_decade_width(i));
    codes->v_cells[i] = __fdiv_rn((float)(2 << i), dynamic8_decade_width(i));
}

// dynamic8_code with the quotients of the table: the same operations, the same bits.
template <int FIRST_CELLS> static __device__ __forceinline__ int code_of(float x, const Codes &codes) {
    int decade = 0;
    for (int d = 1; d < DYNAMIC8_DECADES; d++) decade += x > dynamic8_border(d, FIRST_CELLS);
    const int cells = FIRST_CELLS << decade;
    const float in_one = FIRST_CELLS == 1 ? codes.m_cells[decade] : codes.v_cells[decade];
    const int cell = (int)__fmul_rn(__fsub_rn(x, codes.begin[decade]), in_one);
    const int code = cells - (FIRST_CELLS - 1) + min(cell, cells - 1);
    if (x > dynamic8_border(DYNAMIC8_DECADES, FIRST_CELLS)) return 127 * FIRST_CELLS + 1;
    return x > dynamic8_border(0, FIRST_CELLS) ? code : 0;
}
static __device__ __forceinline__ uint8_t encode_signed(float x, const Codes &codes) {
    const int p = code_of<1>(fabsf(x), codes);
    return (uint8_t)(x < 0.0f ? DYNAMIC8_ZERO_SIGNED - min(p, 127) : DYNAMIC8_ZERO_SIGNED + p);
}
static __device__ __forceinline__ uint8_t encode_unsigned(float x, const Codes &codes) {
    const int p = code_of<2>(x, codes);
    return (uint8_t)(p == 0 && x > 0.0f ? 1 : p);
}

// The elements that a round gives a lane, fewer where the tensor ends.
static __device__ __forceinline__ Place place_of_round(const UpdateEntry &t, int64_t block, int round) {
    const int64_t e = block * STATE_BLOCK + round * ROUND + (int)threadIdx.x % WARP * NEIGHBOURS;
    return place_at<NEIGHBOURS>(e, t.numel - e, t.packed);
}

static __device__ __forceinline__ void decode(float (&x)[NEIGHBOURS], const void *codes, Place at, const float *numbers,
                                              float scale) {
    const Vector<uint8_t, NEIGHBOURS> c = load_place<uint8_t, NEIGHBOURS>((const uint8_t *)codes, at);
    for (int k = 0; k < NEIGHBOURS; k++) x[k] = k < at.count ? __fmul_rn(numbers[c.v[k]], scale) : 0.0f;
}

// x (MINE): the lane's new states of a block. Their largest magnitude in the block is the scale.
template <bool SIGNED>
static __device__ __forceinline__ void encode_block(void *out, float *scales, const UpdateEntry &t, int64_t block,
                                                    const float (&x)[MINE], const Codes &codes) {
    float scale = 0.0f;
    for (int k = 0; k < MINE; k++) scale = fmaxf(scale, fabsf(x[k]));
    scale = warp_max(scale);
    __syncwarp(); // all lanes have read the scale that goes
    if (threadIdx.x % WARP == 0) scales[block] = scale;
    for (int round = 0; round < ROUNDS; round++) {
        Vector<uint8_t, NEIGHBOURS> c;
        for (int k = 0; k < NEIGHBOURS; k++) {
            const float value = scale > 0.0f ? __fdiv_rn(x[round * NEIGHBOURS + k], scale) : 0.0f;
            c.v[k] = SIGNED ? encode_signed(value, codes) : encode_unsigned(value, codes);
        }
        store_place<uint8_t, NEIGHBOURS>((uint8_t *)out, place_of_round(t, block, round), c);
    }
}

// One block of states, by one warp.
template <class E, int RULE>
static __device__ __forceinline__ void update_block(const UpdateEntry &t, const UpdateStep &s, float grad_factor,
                                                    const Codes &codes, int64_t block) {
    typedef RuleUses<RULE> Uses;
    float all_m[MINE], all_v[MINE];
    const float m_scale = t.m_scale[block], v_scale = Uses::v ? t.v_scale[block] : 0.0f;
    for (int round = 0; round < ROUNDS; round++) {
        const Place at = place_of_round(t, block, round);
        float m[NEIGHBOURS], v[NEIGHBOURS] = {};
        decode(m, t.m, at, codes.m, m_scale);
        if constexpr (Uses::v) decode(v, t.v, at, codes.v, v_scale);
        update_place<E, Either, WEIGHT_ANY, RULE, NEIGHBOURS>(t, s, grad_factor, at, m, v);
        for (int k = 0; k < NEIGHBOURS; k++) all_m[round * NEIGHBOURS + k] = m[k], all_v[round * NEIGHBOURS + k] = v[k];
    }
    encode_block<true>(t.m, t.m_scale, t, block, all_m, codes);
    if constexpr (Uses::v) encode_block<false>(t.v, t.v_scale, t, block, all_v, codes);
}

// Block b updates part b of the run; nothing when the step is skipped. Warp: every 8th block of states, in order.
template <class E, int RULE>
static __global__ void __launch_bounds__(BLOCK_THREADS, 3)
    update_8bit_kernel(const UpdateEntry *entries, const int32_t *first, int n, UpdateStep s,
                       const StepControl *control) {
    __shared__ Codes codes[1];
    if (control->skip != SKIP_NONE) return;
    const float grad_factor = control->grad_factor;
    make_codes(codes);
    const int entry = entry_of_block(first, n); // its barrier also stands behind the table
    const UpdateEntry t = entry_of_step(entries[entry], s);
    const int64_t begin = (int64_t)part_of_block(first, entry) * PART_BLOCKS;
    const int64_t end = min((t.numel + STATE_BLOCK - 1) / STATE_BLOCK, begin + PART_BLOCKS);
    for (int64_t block = begin + threadIdx.x / WARP; block < end; block += BLOCK_WARPS)
        update_block<E, RULE>(t, s, grad_factor, codes[0], block);
}

template <class E, int RULE> static void launch(TableRun run, const UpdateStep &step, Tensor control) {
    LAUNCH((update_8bit_kernel<E, RULE>), run.parts, BLOCK_THREADS, 0, cuda_compute_stream())
    ((const UpdateEntry *)run.entries, run.first, run.n, step, (const StepControl *)control.data);
}

template <class E> static void launch_rule(int rule, TableRun run, const UpdateStep &step, Tensor control) {
    switch (rule) {
    case RULE_ADAMW:
        launch<E, RULE_ADAMW>(run, step, control);
        break;
    case RULE_LION:
        launch<E, RULE_LION>(run, step, control);
        break;
    case RULE_SGD:
        launch<E, RULE_SGD>(run, step, control);
        break;
    default:
        launch<E, RULE_MOMENTUM>(run, step, control);
        break;
    }
}

void cuda_launch_8bit(int rule, DType compute, TableRun run, const UpdateStep *step, Tensor control) {
    DISPATCH(compute, E, launch_rule<E>(rule, run, *step, control));
}
