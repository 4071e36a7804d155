// The update of the parameters: optimizer_update and momentum_update. AdamW as it runs by default
// comes first, a short kernel of its own. Then the kernel for every other rule and format: AdamW
// with other weights, gradients or moments, Lion, SGD, a given direction, Muon's momentum; the
// same for moments in 8 bits; and the host side. Adafactor is in optimizer_adafactor.cu; the
// gradient norm and the decision, which come before, are in optimizer_norm.cu.
//
// One launch for each rule and format of states among the tensors. Each byte is moved once. Bytes
// a parameter, with bf16 weights, fp32 master and gradient (2 less where the gradient is bf16):
//   AdamW, fp32 states      30    gradient 4; m, v and master read and written 24; weight written 2
//     without master        24    the weight is read and written, 4, instead of master and
//                                 weight, 10
//   AdamW, bf16 states      16    without master; gradient 4, m and v 8, weight 4
//     with compensation    20
//   Lion, SGD               22
//   direction               14    gradient 4, master 8, weight 2; momentum_update before it 16
//   AdamW, 8-bit states     18    gradient 4; codes of m and v read and written 4, scales 1/16;
//                                 master 8, weight 2
//   Lion, SGD, 8-bit states 16
#include "llmc/base/random.h"
#include "llmc/cuda/optimizer.cuh"
#include "llmc/number.h"
#include <math.h>

enum { BLOCK_THREADS = 256 };
// Elements of a block: 4 rounds or 2 hide the search for the tensor. 124M parameters are 30,000
// blocks of 123 KB.
enum { UPDATE_PART = 16 * BLOCK_THREADS };

// ------------------------------------------------------------------------------ AdamW, the default

// One element. Loshchilov, Hutter, "Decoupled Weight Decay Regularization", 2017.
static __device__ __forceinline__ void adamw(float &w, float &m, float &v, float g,
                                             const UpdateStep &s, float learning_rate,
                                             float weight_decay) {
    m = fmaf(s.beta1, m, s.one_minus_beta1 * g);
    v = fmaf(s.beta2, v, s.one_minus_beta2 * (g * g));
    const float direction = m * s.m_correction / (sqrtf(v * s.v_correction) + s.eps);
    // w - lr * (direction + weight_decay * w)
    w = fmaf(-learning_rate, fmaf(weight_decay, w, direction), w);
}

// Gradient and moments in fp32, and w in fp32: the master, whose value rounded to E is the
// weight; for E = float the weight itself. Nothing is written when the step is skipped.
//   layout  every array of a tensor is flat, (numel); a part is UPDATE_PART of them, fewer at the
//           end of the tensor
//   block   a part; n entries share the grid, first[i] is the first part of entry i (TableRun)
//   thread  every 256th group of 4 neighbours, 16 bytes of each fp32 array, by streaming accesses
//           (the third argument)
//   bytes   30 a parameter: gradient 4; m, v and w read and written 24; weight written 2. fp32: 28
template <class E>
static __global__ void __launch_bounds__(BLOCK_THREADS, 4)
    adamw_kernel(const UpdateEntry *entries, const int32_t *first, int n, UpdateStep s,
                 const StepControl *control) {
    wait_for_the_grid_before();
    if (control->skip != SKIP_NONE) return;
    const float grad_factor = control->grad_factor; // undoes the loss scale, clips
    const int entry = entry_of_block(first, n);
    const UpdateEntry t = entry_of_step(entries[entry], s);
    s = step_of_decision(s, control, t.group);
    const float *grad = (const float *)t.grad;
    float *m = (float *)t.m, *v = (float *)t.v, *w = sizeof(E) == 4 ? (float *)t.weight : t.master;
    E *weight = (E *)t.weight;
    const int64_t begin = (int64_t)part_of_block(first, entry) * UPDATE_PART,
                  end = min(t.numel, begin + UPDATE_PART);
    const int64_t fours = t.packed ? begin + (end - begin) / 4 * 4 : begin; // where they end
#pragma unroll 1 // copies of the loop would take registers, and with them warps, from the loads of
                 // others
    for (int64_t e = begin + threadIdx.x * 4; e < fours; e += BLOCK_THREADS * 4) {
        Vector<float, 4> m4 = load_vector<float, 4, true>(m + e),
                         v4 = load_vector<float, 4, true>(v + e);
        const Vector<float, 4> g4 = load_vector<float, 4, true>(grad + e);
        Vector<float, 4> w4 = load_vector<float, 4, true>(w + e);
        for (int k = 0; k < 4; k++)
            adamw(w4.v[k], m4.v[k], v4.v[k], g4.v[k] * grad_factor, s, t.learning_rate,
                  t.weight_decay);
        store_vector<float, 4, true>(w + e, w4);
        if (sizeof(E) < 4) store_vector<E, 4, true>(weight + e, from_floats<E, 4>(w4.v));
        store_vector<float, 4, true>(m + e, m4);
        store_vector<float, 4, true>(v + e, v4);
    }
#pragma unroll 1 // the last three elements, or all of a tensor that is not aligned
    for (int64_t e = fours + threadIdx.x; e < end; e += BLOCK_THREADS) {
        adamw(w[e], m[e], v[e], grad[e] * grad_factor, s, t.learning_rate, t.weight_decay);
        if (sizeof(E) < 4) weight[e] = from_float<E>(w[e]);
    }
}

// ------------------------------------------------------------------------------------------- rules

// Pseudo-rules: adamw_kernel; momentum_update, which writes the gradient instead of the weight.
enum { RULE_ADAMW_DEFAULT = RULE_COUNT, RULE_MOMENTUM };

template <int RULE> struct RuleUses { // of the moments
    static constexpr bool m = RULE != RULE_DIRECTION, v = RULE == RULE_ADAMW;
    static constexpr bool weight = RULE != RULE_MOMENTUM;
};

// The formulas of ops.h for one element. g: the gradient times grad_factor; w: what the update
// reads and writes; for RULE_MOMENTUM what goes into the gradient.
template <int RULE>
static __device__ __forceinline__ void apply_rule(float &w, float &m, float &v, float g,
                                                  const UpdateStep &s, float learning_rate,
                                                  float weight_decay) {
    if constexpr (RULE == RULE_ADAMW) adamw(w, m, v, g, s, learning_rate, weight_decay);
    if constexpr (RULE == RULE_LION) {
        const float c = fmaf(s.beta1, m, s.one_minus_beta1 * g);
        m = fmaf(s.beta2, m, s.one_minus_beta2 * g);
        float sign = 0.0f;
        if (c < 0.0f) sign = -1.0f;
        if (c > 0.0f) sign = 1.0f;
        w = descend(w, sign, learning_rate, weight_decay);
    }
    if constexpr (RULE == RULE_SGD || RULE == RULE_MOMENTUM) m = fmaf(s.momentum, m, g);
    if constexpr (RULE == RULE_SGD) w = descend(w, m, learning_rate, weight_decay);
    if constexpr (RULE == RULE_MOMENTUM) w = fmaf(s.momentum, m, g);
    if constexpr (RULE == RULE_DIRECTION) w = descend(w, g, learning_rate, weight_decay);
}

// The elements of a place: gradient and weight loaded, the rule applied to them and to m and v, the
// weight stored (the gradient for RULE_MOMENTUM).
template <class E, int RULE, int N>
static __device__ __forceinline__ void update_place(const UpdateEntry &t, const UpdateStep &s,
                                                    float grad_factor, Place at, float (&m)[N],
                                                    float (&v)[N]) {
    float g[N], w[N] = {};
    const bool fp32 = grad_is_fp32<E>(t);
    const EitherVector<E, N> grad = load_either<E, N>(t.grad, at, fp32);
    if constexpr (RuleUses<RULE>::weight) weight_to_floats<E, N>(w, load_weight<E, N>(t, at), t);
    either_to_floats(g, grad, fp32);
    for (int k = 0; k < N; k++)
        apply_rule<RULE>(w[k], m[k], v[k], RULE == RULE_DIRECTION ? g[k] : g[k] * grad_factor, s,
                         t.learning_rate, t.weight_decay);
    if constexpr (RuleUses<RULE>::weight)
        store_weight<E, N>(t, s, at, w);
    else if (fp32)
        store_place<float, N>((float *)t.grad, at, from_floats<float, N>(w));
    else
        store_place<E, N>((E *)t.grad, at, from_floats<E, N>(w));
}

// ----------------------------------------------------------------- kernel, states in fp32 and bf16

// A thread updates N neighbours at a time. With states in fp32 N is 4: 16 bytes of each fp32 array
// and 8 of a 16-bit one, so that the accesses of a warp are dense in both. (8 would leave gaps
// between the fp32 accesses of one instruction.) With states in bf16 most arrays have 16 bits, and
// N is 8: one draw of random bits serves 8 elements.
template <class S> struct Neighbours { static constexpr int N = sizeof(S) == 4 ? 4 : 8; };

// The random streams of the moments are offset from the weight's: + k * 2^20.
enum { STREAM_STATE = 1 << 20 };

template <class S, int N>
static __device__ __forceinline__ void store_states(void *p, const UpdateEntry &t,
                                                    const UpdateStep &s, int k, Place at,
                                                    const float (&x)[N]) {
    const uint64_t stream = STREAM_ROUNDING + (uint64_t)t.stream + (uint64_t)k * STREAM_STATE;
    store_place<S, N>(
        (S *)p, at, round_vector<S, N>(x, s.seed, stream, s.counter, (uint64_t)(t.offset + at.e)));
}

// N elements from e on, a multiple of N.
template <class E, int RULE, class S, int N>
static __device__ __forceinline__ void update_elements(const UpdateEntry &t, const UpdateStep &s,
                                                       float grad_factor, int64_t e) {
    typedef RuleUses<RULE> Uses;
    const Place at = {e, N, true};
    float m[N] = {}, v[N] = {};
    if constexpr (Uses::m) to_floats(m, load_place<S, N>((const S *)t.m, at));
    if constexpr (Uses::v) to_floats(v, load_place<S, N>((const S *)t.v, at));
    update_place<E, RULE, N>(t, s, grad_factor, at, m, v);
    if constexpr (Uses::m) store_states<S, N>(t.m, t, s, 1, at, m);
    if constexpr (Uses::v) store_states<S, N>(t.v, t, s, 2, at, v);
}

// Blocks on a multiprocessor at a time, which limit the registers of a thread. fp32 weights with
// states in bf16: 8 elements of 4 bytes from each tensor do not fit into the 64 registers of four
// blocks.
template <class E, class S> constexpr int BLOCKS_AT_A_TIME = sizeof(E) > sizeof(S) ? 3 : 4;

// Block b updates part b of the run; nothing when the step is skipped. Thread: every 256th group of
// N, in order.
template <class E, int RULE, class S>
static __global__ void __launch_bounds__(BLOCK_THREADS, (BLOCKS_AT_A_TIME<E, S>))
    update_kernel(const UpdateEntry *entries, const int32_t *first, int n, UpdateStep s,
                  const StepControl *control) {
    wait_for_the_grid_before();
    constexpr int N = Neighbours<S>::N;
    if (control->skip != SKIP_NONE) return;
    const float grad_factor = control->grad_factor;
    const int entry = entry_of_block(first, n);
    const UpdateEntry t = entry_of_step(entries[entry], s);
    s = step_of_decision(s, control, t.group);
    const int64_t begin = (int64_t)part_of_block(first, entry) * UPDATE_PART;
    const int64_t end = min(t.numel, begin + UPDATE_PART);
    const int64_t whole = t.packed ? begin + (end - begin) / N * N : begin;
#pragma unroll 1 // as in adamw_kernel
    for (int64_t e = begin + threadIdx.x * N; e < whole; e += BLOCK_THREADS * N)
        update_elements<E, RULE, S, N>(t, s, grad_factor, e);
#pragma unroll 1
    for (int64_t e = whole + threadIdx.x; e < end; e += BLOCK_THREADS)
        update_elements<E, RULE, S, 1>(t, s, grad_factor, e);
}

// ------------------------------------------------------------------------ kernel, states in 8 bits
// Codes of llmc/number.h, a scale for each block of 256 elements. Numbers
// and codes are the header's, to the bit. Dettmers, Lewis, Shleifer, Zettlemoyer, "8-bit Optimizers
// via Block-wise Quantization", 2021.
//
// A warp owns a block of states from its load to its store: the new largest magnitudes go through
// shuffles, the new moments stay in registers.

enum {
    BLOCK_WARPS = BLOCK_THREADS / WARP,
    NEIGHBOURS = 4, // 4 bytes of codes, 16 of fp32, so that the accesses of a warp are dense
    ROUND = WARP * NEIGHBOURS,    // elements of a warp at a time
    ROUNDS = STATE_BLOCK / ROUND, // until it has a block of states
    PART_BLOCKS =
        8 *
        BLOCK_WARPS, // blocks of states of a block of threads: they hide the making of the table
    MINE = ROUNDS * NEIGHBOURS, // elements of a thread in a block of states
};

// Tables that a block of threads computes once: by arithmetic, decoding would take longer than the
// remainder of the update, and encoding half as long again.
struct Codes {
    float m[256], v[256];          // what they stand for: signed, unsigned
    float begin[DYNAMIC8_DECADES]; // of a decade
    // in one, on the scale of magnitudes
    float m_cells[DYNAMIC8_DECADES], v_cells[DYNAMIC8_DECADES];
};

// dynamic8_code with the quotients of the table: the same operations, the same bits.
template <int FIRST_CELLS>
static __device__ __forceinline__ int code_of(float x, const Codes &codes) {
    int decade = 0;
    for (int d = 1; d < DYNAMIC8_DECADES; d++) decade += x > dynamic8_border(d, FIRST_CELLS);
    const int cells = FIRST_CELLS << decade;
    const float in_one = FIRST_CELLS == 1 ? codes.m_cells[decade] : codes.v_cells[decade];
    const int cell = (int)__fmul_rn(__fsub_rn(x, codes.begin[decade]), in_one);
    const int code = cells - (FIRST_CELLS - 1) + min(cell, cells - 1);
    if (x > dynamic8_border(DYNAMIC8_DECADES, FIRST_CELLS)) return 127 * FIRST_CELLS + 1;
    return x > dynamic8_border(0, FIRST_CELLS) ? code : 0;
}

// The elements that a round gives a lane, fewer where the tensor ends.
static __device__ __forceinline__ Place place_of_round(const UpdateEntry &t, int64_t block,
                                                       int round) {
    const int64_t e = block * STATE_BLOCK + round * ROUND + (int)threadIdx.x % WARP * NEIGHBOURS;
    return place_at<NEIGHBOURS>(e, t.numel - e, t.packed);
}

static __device__ __forceinline__ void decode_states(float (&x)[NEIGHBOURS], const void *codes,
                                                     Place at, const float *numbers, float scale) {
    const Vector<uint8_t, NEIGHBOURS> c =
        load_place<uint8_t, NEIGHBOURS>((const uint8_t *)codes, at);
    for (int k = 0; k < NEIGHBOURS; k++)
        x[k] = k < at.count ? __fmul_rn(numbers[c.v[k]], scale) : 0.0f;
}

// x (MINE): the lane's new states of a block. Their largest magnitude in the block is the scale.
template <bool SIGNED>
static __device__ __forceinline__ void encode_block(void *out, float *scales, const UpdateEntry &t,
                                                    int64_t block, const float (&x)[MINE],
                                                    const Codes &codes) {
    float scale = 0.0f;
    for (int k = 0; k < MINE; k++) scale = fmaxf(scale, fabsf(x[k]));
    scale = warp_max(scale);
    __syncwarp(); // all lanes have read the scale that goes
    if (threadIdx.x % WARP == 0) scales[block] = scale;
    for (int round = 0; round < ROUNDS; round++) {
        Vector<uint8_t, NEIGHBOURS> c;
        for (int k = 0; k < NEIGHBOURS; k++) {
            const float value = scale > 0.0f ? __fdiv_rn(x[round * NEIGHBOURS + k], scale) : 0.0f;
            if constexpr (SIGNED) { // as dynamic8_encode_signed
                const int p = code_of<1>(fabsf(value), codes);
                c.v[k] = (uint8_t)(value < 0.0f ? DYNAMIC8_ZERO_SIGNED - min(p, 127)
                                                : DYNAMIC8_ZERO_SIGNED + p);
            } else { // as dynamic8_encode_unsigned
                const int p = code_of<2>(value, codes);
                c.v[k] = (uint8_t)(p == 0 && value > 0.0f ? 1 : p);
            }
        }
        store_place<uint8_t, NEIGHBOURS>((uint8_t *)out, place_of_round(t, block, round), c);
    }
}

// Block b updates part b of the run; nothing when the step is skipped. Warp: every 8th block of
// states, in order.
template <class E, int RULE>
static __global__ void __launch_bounds__(BLOCK_THREADS, 3)
    update_8bit_kernel(const UpdateEntry *entries, const int32_t *first, int n, UpdateStep s,
                       const StepControl *control) {
    wait_for_the_grid_before();
    __shared__ Codes codes[1];
    if (control->skip != SKIP_NONE) return;
    const float grad_factor = control->grad_factor;
    const int i = (int)threadIdx.x;
    codes->m[i] = dynamic8_decode_signed((uint8_t)i);
    codes->v[i] = dynamic8_decode_unsigned((uint8_t)i);
    if (i < DYNAMIC8_DECADES) {
        // an array that a thread keeps in memory: once a block of threads
        codes->begin[i] = dynamic8_decade_begin(i);
        codes->m_cells[i] = __fdiv_rn((float)(1 << i), dynamic8_decade_width(i));
        codes->v_cells[i] = __fdiv_rn((float)(2 << i), dynamic8_decade_width(i));
    }
    const int entry = entry_of_block(first, n); // its barrier also covers the table
    const UpdateEntry t = entry_of_step(entries[entry], s);
    s = step_of_decision(s, control, t.group);
    const int64_t begin = (int64_t)part_of_block(first, entry) * PART_BLOCKS;
    const int64_t end = min((t.numel + STATE_BLOCK - 1) / STATE_BLOCK, begin + PART_BLOCKS);
    for (int64_t block = begin + threadIdx.x / WARP; block < end; block += BLOCK_WARPS) {
        typedef RuleUses<RULE> Uses;
        float all_m[MINE], all_v[MINE];
        const float m_scale = t.m_scale[block], v_scale = Uses::v ? t.v_scale[block] : 0.0f;
        for (int round = 0; round < ROUNDS; round++) {
            const Place at = place_of_round(t, block, round);
            float m[NEIGHBOURS], v[NEIGHBOURS] = {};
            decode_states(m, t.m, at, codes->m, m_scale);
            if constexpr (Uses::v) decode_states(v, t.v, at, codes->v, v_scale);
            update_place<E, RULE, NEIGHBOURS>(t, s, grad_factor, at, m, v);
            for (int k = 0; k < NEIGHBOURS; k++) {
                all_m[round * NEIGHBOURS + k] = m[k];
                all_v[round * NEIGHBOURS + k] = v[k];
            }
        }
        encode_block<true>(t.m, t.m_scale, t, block, all_m, codes[0]);
        if constexpr (Uses::v) encode_block<false>(t.v, t.v_scale, t, block, all_v, codes[0]);
    }
}

// ------------------------------------------------------------------------------------------- table

// The format of a tensor's moments.
typedef enum { STATES_FP32, STATES_BF16, STATES_8BIT, STATES_COUNT } StateFormat;

static StateFormat states_of(const UpdateTensor *t) {
    if (t->m.dtype == DTYPE_FP32) return STATES_FP32;
    if (t->m.dtype == DTYPE_BF16) return STATES_BF16;
    return STATES_8BIT;
}

UpdateEntry cuda_update_entry(const UpdateTensor *t) {
    UpdateEntry e = {};
    e.weight = t->weight.data;
    e.master = (float *)t->master.data;
    e.compensation = t->compensation.data;
    e.grad = t->grad.data;
    e.m = t->m.data;
    e.v = t->v.data;
    e.m_scale = (float *)t->m_scale.data;
    e.v_scale = (float *)t->v_scale.data;
    e.numel = tensor_numel(t->weight);
    e.offset = t->offset;
    e.group = t->group;
    e.stream = t->stream;
    e.learning_rate = t->rate;
    e.weight_decay = t->weight_decay / t->rate; // rate multiplies the direction alone
    e.grad_is_fp32 = t->grad.dtype == DTYPE_FP32;

    const Tensor all[] = {t->weight, t->master, t->compensation, t->grad, t->m, t->v};
    e.packed = true;
    for (const Tensor &x : all) e.packed = e.packed && (uintptr_t)x.data % 16 == 0;
    return e;
}

// rule: or a pseudo-rule. The variant, which kernel an entry wants, is both numbers in one.
static void add_tensor(TableDraft *draft, int tensor, const UpdateTensor *t, int rule,
                       StateFormat states) {
    const UpdateEntry e = cuda_update_entry(t);
    const int64_t part = states == STATES_8BIT ? (int64_t)PART_BLOCKS * STATE_BLOCK : UPDATE_PART;
    table_add(draft, rule * STATES_COUNT + states, tensor, &e, ceil_div(e.numel, part));
}

// Adafactor's tensors have a table of their own.
static void describe_update(TableDraft *draft, const UpdateTensor *tensors, int n) {
    for (int i = 0; i < n; i++) {
        const UpdateTensor *t = &tensors[i];
        if (t->rule == RULE_ADAFACTOR) continue;
        int rule = t->rule;
        StateFormat states = states_of(t);
        if (rule == RULE_DIRECTION) states = STATES_FP32; // it has none
        if (rule == RULE_ADAMW && states == STATES_FP32 && t->grad.dtype == DTYPE_FP32 &&
            (t->master.data || t->weight.dtype == DTYPE_FP32))
            rule = RULE_ADAMW_DEFAULT;
        add_tensor(draft, i, t, rule, states);
    }
}

static void describe_momentum(TableDraft *draft, const UpdateTensor *tensors, int n) {
    for (int i = 0; i < n; i++) {
        if (tensors[i].rule != RULE_DIRECTION) continue;
        add_tensor(draft, i, &tensors[i], RULE_MOMENTUM, states_of(&tensors[i]));
    }
}

// ------------------------------------------------------------------------------------------ launch

typedef void UpdateKernel(const UpdateEntry *entries, const int32_t *first, int n, UpdateStep s,
                          const StepControl *control);

template <class E, int RULE> static UpdateKernel *kernel_for_states(StateFormat states) {
    if (states == STATES_8BIT) return update_8bit_kernel<E, RULE>;
    if (states == STATES_BF16) return update_kernel<E, RULE, bf16>;
    // its tensors are those of RULE_ADAMW_DEFAULT
    if constexpr (RULE == RULE_ADAMW && sizeof(E) == 4)
        return adamw_kernel<E>;
    else
        return update_kernel<E, RULE, float>;
}

template <class E> static UpdateKernel *kernel_of(int rule, StateFormat states) {
    switch (rule) {
    case RULE_ADAMW_DEFAULT:
        return adamw_kernel<E>;
    case RULE_ADAMW:
        return kernel_for_states<E, RULE_ADAMW>(states);
    case RULE_LION:
        return kernel_for_states<E, RULE_LION>(states);
    case RULE_SGD:
        return kernel_for_states<E, RULE_SGD>(states);
    case RULE_MOMENTUM:
        return kernel_for_states<E, RULE_MOMENTUM>(states);
    default:
        return update_kernel<E, RULE_DIRECTION, float>;
    }
}

static void launch_groups(const UpdateTable *table, DType compute, int first, int count,
                          const UpdateStep &step, Tensor control) {
    for (int i = 0; i < table->num_groups; i++) {
        const TableRun run = table_run(table, &table->groups[i], first, count);
        if (run.n == 0) continue;
        const int rule = table->groups[i].variant / STATES_COUNT;
        const StateFormat states = (StateFormat)(table->groups[i].variant % STATES_COUNT);
        UpdateKernel *update = NULL;
        DISPATCH(compute, E, update = kernel_of<E>(rule, states));
        LAUNCH(update, run.parts, BLOCK_THREADS, 0, cuda_compute_stream())
        ((const UpdateEntry *)run.entries, run.first, run.n, step,
         (const StepControl *)control.data);
    }
}

static UpdateStep update_step(UpdateParams p) {
    UpdateStep s = {};
    s.learning_rate = p.learning_rate;
    for (int i = 0; i < UPDATE_GROUPS; i++) s.moments[i] = p.moments[i];
    s.momentum = p.momentum;
    s.seed = p.seed;
    return s;
}

void backend_optimizer_update(UpdateList *list, int first, int count, UpdateParams params,
                              Tensor control) {
    const UpdateStep step = update_step(params);
    if (count == 0) return;
    const UpdateTable *table =
        update_table("optimizer_update", list, TABLE_UPDATE, sizeof(UpdateEntry), describe_update);
    launch_groups(table, list->tensors[0].weight.dtype, first, count, step, control);
    cuda_adafactor_update(list, first, count, &step, control);
}

void backend_momentum_update(UpdateList *list, UpdateParams params, Tensor control) {
    if (list->n == 0) return;
    const UpdateTable *table = update_table("momentum_update", list, TABLE_MOMENTUM,
                                            sizeof(UpdateEntry), describe_momentum);
    launch_groups(table, list->tensors[0].weight.dtype, 0, list->n, update_step(params), control);
}
