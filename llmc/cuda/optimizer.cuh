// Shared by the kernels over all tensors of a step: the tables by which one launch runs over all of
// them, and how a block finds its tensor and its part. For the update: the entry of a tensor, the
// constants of a step, loading and storing gradient and weight in every form that an UpdateTensor
// may have (ops.h); the entry tells which.
#pragma once
#include "llmc/base/random.h"
#include "llmc/cuda/intrinsics.cuh"

// ------------------------------------------------------------------------------------------ tables
// Tables of tensors on the device, so that one launch runs over all tensors of a step: small
// tensors cost no launches of their own, and the largest is spread over all multiprocessors. Host
// side (optimizer_norm.cu).
//
// A table has zero or more entries (the arguments of a kernel) for each tensor of an UpdateList.
// Entries for one kernel form a group and are adjacent, in the order of their tensors; each is cut
// into parts, one per block. So the tensors [first, first + count) of a group are a run: contiguous
// parts, one launch. A list has at most one table of each kind, made at its first use and kept
// until update_list_free; they are the only memory that the optimizer's kernels own. A steady step
// neither waits nor allocates.

typedef enum { TABLE_NORM, TABLE_UPDATE, TABLE_MOMENTUM, TABLE_ADAFACTOR, TABLE_KINDS } TableKind;
enum { TABLE_MAX_GROUPS = 16 };

typedef struct {
    int variant; // kernel, in the numbering of the table's kind
    int begin, end;
} TableGroup;

typedef struct {
    size_t entry_bytes;
    char *entries;  // on the device; NULL: not made
    int32_t *first; // on the device: number of the first part of each entry, and of the end
    int *tensor;    // on the host: which tensor of the list an entry came from
    int32_t *parts; // on the host, after tensor: the same as first
    TableGroup groups[TABLE_MAX_GROUPS];
    int num_groups;
} UpdateTable;

// Adjacent entries of one group. Their parts are first[0] .. first[0] + parts - 1.
typedef struct {
    const void *entries;
    const int32_t *first; // (n + 1)
    int n;
    unsigned parts;
} TableRun;

typedef struct TableDraft TableDraft;
// Lists the entries of n tensors, in their order, at most four of each.
typedef void TableDescribe(TableDraft *draft, const UpdateTensor *tensors, int n);
void table_add(TableDraft *draft, int variant, int tensor, const void *entry, int64_t parts);

// The list's table of that kind. Making it waits for the device. op: for messages.
const UpdateTable *update_table(const char *op, UpdateList *list, TableKind kind,
                                size_t entry_bytes, TableDescribe *describe);

// The group of that variant; NULL if it has no tensors.
const TableGroup *table_group(const UpdateTable *table, int variant);
// The entries of tensors [first, first + count) in a group, which may be NULL; n = 0 when there are
// none.
TableRun table_run(const UpdateTable *table, const TableGroup *group, int first, int count);

// ----------------------------------------------------------------------------- the part of a block

// The entry that part first[0] + blockIdx.x belongs to: first[i] <= part < first[i + 1]. Each
// thread looks at a few. Contains a barrier.
static __device__ inline int entry_of_block(const int32_t *first, int n) {
    __shared__ int found[1];
    const int part = first[0] + (int)blockIdx.x;
    for (int i = (int)threadIdx.x; i < n; i += (int)blockDim.x) {
        const int begin = first[i], end = first[i + 1];
        if (begin <= part && part < end) found[0] = i;
    }
    __syncthreads();
    return found[0];
}

// The sum of partials[begin .. end) by one warp, in fp64, in every lane, in an order that depends
// on their number alone.
static __device__ inline double sum_of_parts(const float *partials, int begin, int end) {
    double sum = 0.0;
    for (int i = begin + (int)threadIdx.x; i < end; i += WARP) sum += (double)partials[i];
    for (int offset = WARP / 2; offset > 0; offset /= 2)
        sum += __shfl_xor_sync(ALL_LANES, sum, offset);
    return sum;
}

// The number of this block's part within its entry.
static __device__ inline int part_of_block(const int32_t *first, int entry) {
    return first[0] + (int)blockIdx.x - first[entry];
}

// ---------------------------------------------------------------------------------------- elements

typedef struct {
    void *weight;
    float *master;
    void *compensation, *grad;
    void *m, *v;
    float *m_scale, *v_scale;
    int64_t numel, offset; // offset: of a slice in its parameter, for random bits
    int32_t group, stream;
    float learning_rate, weight_decay; // learning_rate: in the table a multiple of that of the step
    bool grad_is_fp32;
    bool packed; // all arrays 16-byte aligned
} UpdateEntry;

UpdateEntry cuda_update_entry(const UpdateTensor *t);

// The constants of one step, as the inner loops take them.
struct UpdateStep {
    float learning_rate;
    float momentum;
    MomentRates moments[UPDATE_GROUPS];
    uint64_t seed; // of random bits
    // of the group of the tensor
    float beta1, beta2, one_minus_beta1, one_minus_beta2, eps;
    // of the decision, which the host does not know
    float m_correction, v_correction; // of the group
    uint64_t counter;                 // of random bits: updates * 2^40
};
static __device__ __forceinline__ UpdateStep step_of_decision(UpdateStep s,
                                                              const StepControl *control,
                                                              int group) {
    MomentRates of = s.moments[0];
#pragma unroll // without an index that is known only here, s stays in registers
    for (int i = 1; i < UPDATE_GROUPS; i++)
        if (i == group) of = s.moments[i];
    s.beta1 = of.beta1;
    s.one_minus_beta1 = (float)(1.0 - (double)of.beta1);
    s.beta2 = of.beta2;
    s.one_minus_beta2 = (float)(1.0 - (double)of.beta2);
    s.eps = of.eps;
    s.m_correction = control->m_correction[group];
    s.v_correction = control->v_correction[group];
    s.counter = (uint64_t)control->updates << 40;
    return s;
}

// The update of the tensors of RULE_ADAFACTOR among [first, first + count).
void cuda_adafactor_update(UpdateList *list, int first, int count, const UpdateStep *step,
                           Tensor control);

// The entry of a tensor in this step.
static __device__ __forceinline__ UpdateEntry entry_of_step(const UpdateEntry &in_table,
                                                            const UpdateStep &s) {
    UpdateEntry t = in_table;
    t.learning_rate *= s.learning_rate;
    return t;
}

// Elements e .. e + count - 1 of a tensor, count <= N of the function that takes them. dense: count
// is N, and all arrays are aligned for vectors of N.
struct Place {
    int64_t e;
    int count;
    bool dense;
};
// N elements from e on, fewer if only `left` remain.
template <int N>
static __device__ __forceinline__ Place place_at(int64_t e, int64_t left, bool packed) {
    const int count = (int)max((int64_t)0, min((int64_t)N, left));
    return {e, count, packed && count == N};
}

template <class T, int N>
static __device__ __forceinline__ Vector<T, N> load_place(const T *p, Place at) {
    if (at.dense) return load_vector<T, N, true>(p + at.e);
    Vector<T, N> x = {};
    for (int k = 0; k < N; k++)
        if (k < at.count) x.v[k] = p[at.e + k];
    return x;
}
template <class T, int N>
static __device__ __forceinline__ void store_place(T *p, Place at, const Vector<T, N> &x) {
    if (at.dense) return store_vector<T, N, true>(p + at.e, x);
    for (int k = 0; k < N; k++)
        if (k < at.count) p[at.e + k] = x.v[k];
}

// N elements of fp32 or of E: loads of both kinds can be in flight before the first is used.
template <class E, int N> struct EitherVector {
    Vector<float, N> wide = {};
    Vector<E, N> narrow = {};
};
template <class E, int N>
static __device__ __forceinline__ EitherVector<E, N> load_either(const void *p, Place at,
                                                                 bool is_fp32) {
    EitherVector<E, N> x;
    if (is_fp32)
        x.wide = load_place<float, N>((const float *)p, at);
    else
        x.narrow = load_place<E, N>((const E *)p, at);
    return x;
}
template <class E, int N>
static __device__ __forceinline__ void either_to_floats(float (&v)[N], const EitherVector<E, N> &x,
                                                        bool is_fp32) {
    if (is_fp32)
        to_floats(v, x.wide);
    else
        to_floats(v, x.narrow);
}

template <class E> static __device__ __forceinline__ bool grad_is_fp32(const UpdateEntry &t) {
    if constexpr (sizeof(E) == 4) return true;
    return t.grad_is_fp32;
}
// A weight in fp32 has neither.
template <class E> static __device__ __forceinline__ bool has_master(const UpdateEntry &t) {
    return sizeof(E) < 4 && t.master != NULL;
}
template <class E> static __device__ __forceinline__ bool has_compensation(const UpdateEntry &t) {
    return sizeof(E) < 4 && t.compensation != NULL;
}

// ------------------------------------------------------------------------------------------ weight

// The loaded form of a weight: the master, or the weight and its compensation.
template <class E, int N> struct WeightVector {
    EitherVector<E, N> w;
    Vector<E, N> compensation;
};
template <class E, int N>
static __device__ __forceinline__ WeightVector<E, N> load_weight(const UpdateEntry &t, Place at) {
    const bool master = has_master<E>(t);
    WeightVector<E, N> x = {};
    x.w =
        load_either<E, N>(master ? (const void *)t.master : t.weight, at, master || sizeof(E) == 4);
    if (has_compensation<E>(t)) x.compensation = load_place<E, N>((const E *)t.compensation, at);
    return x;
}
template <class E, int N>
static __device__ __forceinline__ void weight_to_floats(float (&w)[N], const WeightVector<E, N> &x,
                                                        const UpdateEntry &t) {
    either_to_floats(w, x.w, has_master<E>(t) || sizeof(E) == 4);
    if (has_compensation<E>(t)) add_to(w, x.compensation);
}

// The updated w into master and weight; into weight and compensation; or, with neither, into the
// weight alone, rounded stochastically.
template <class E, int N>
static __device__ __forceinline__ void store_weight(const UpdateEntry &t, const UpdateStep &s,
                                                    Place at, const float (&w)[N]) {
    Vector<E, N> weight;
    const bool nearest = sizeof(E) == 4 || has_master<E>(t) || has_compensation<E>(t);
    if (nearest)
        weight = from_floats<E, N>(w);
    else
        weight = round_vector<E, N>(w, s.seed, STREAM_ROUNDING + (uint64_t)t.stream, s.counter,
                                    (uint64_t)(t.offset + at.e));
    if (has_master<E>(t)) store_place<float, N>(t.master, at, from_floats<float, N>(w));
    if (has_compensation<E>(t)) {
        float compensation[N];
        for (int k = 0; k < N; k++) compensation[k] = w[k] - to_float(weight.v[k]);
        store_place<E, N>((E *)t.compensation, at, from_floats<E, N>(compensation));
    }
    store_place<E, N>((E *)t.weight, at, weight);
}

// The last line of every rule: w along the direction, with decoupled weight decay.
static __device__ __forceinline__ float descend(float w, float direction, float learning_rate,
                                                float weight_decay) {
    return fmaf(-learning_rate, fmaf(weight_decay, w, direction), w);
}
