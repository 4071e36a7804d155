// The end of the step: gradient norm and the decision; the update of the parameters, by any rule,
// with Adafactor's means and Muon's momentum, which come before it. Memory-bound: the norm reads
// the gradients once; in bf16 with fp32 gradients AdamW moves 30 bytes per parameter with master
// and fp32 moments, 18 with 8-bit moments, 16 with bf16 moments and Kahan's term.
//
// An array of tensors is cut into parts; tables and sums are in the workspace. An update is one
// parallel region over the parts of all tensors. A part is processed block by block
// (optimizer_block.h): gradient, moments and parameter are loaded into fp32 lanes, the rule
// computes, and the results are stored. Rule and dtypes are dispatched once per block.
#include "llmc/cpu/optimizer_block.h"

#include "llmc/base/arithmetic.h"
#include "llmc/base/random.h"
#include "llmc/cpu/cpu.h"
#include <math.h>

// ------------------------------------------------------------------------------------------- parts

// How work on an array of tensors is split: each tensor into max 128 parts, numbered consecutively
// over all tensors. The threads of one parallel loop take them as they become free. So the hundred
// small tensors of a model cost nothing extra, and the last thread does not wait long for the
// largest. The split depends only on sizes, and the results of parts are added in order, so the
// bits do not depend on the number of threads.

// A part ends at a multiple of STATE_BLOCK, which is also a multiple of the vector length.
enum { MAX_PARTS = 128, MIN_PART_ELEMENTS = 16384 };

// Tensor i has the parts first[i] .. first[i + 1] - 1; one without elements has none.
typedef struct {
    int n;
    int64_t *first; // (n + 1)
    int64_t *numel; // (n)
    double *sums;   // (n * MAX_PARTS) for the op: a number of each part
    char *scratch;  // for the op: the extra bytes it asked for
} Parts;

typedef struct {
    int tensor;
    int64_t begin, end; // elements
} Part;

static int64_t part_elements(int64_t numel) {
    return max_i64(round_up(ceil_div(numel, MAX_PARTS), STATE_BLOCK), MIN_PART_ELEMENTS);
}

// Lays out the workspace; returns its bytes. first[] is at the start.
static int64_t parts_layout(int n, int64_t scratch_bytes, int64_t *numel, int64_t *sums,
                            int64_t *scratch) {
    int64_t end = 0;
    cpu_part(&end, (n + 1) * (int64_t)sizeof(int64_t));
    *numel = cpu_part(&end, n * (int64_t)sizeof(int64_t));
    *sums = cpu_part(&end, n * (int64_t)MAX_PARTS * (int64_t)sizeof(double));
    *scratch = cpu_part(&end, scratch_bytes);
    return end;
}

// A matrix of one group of rows has its column sums in col itself. With two groups or more,
// rows >= 65, and rows / 64 + 1 sums per column are less than 1/32 of the matrix. numel: of all
// matrices.
static int64_t adafactor_scratch_bytes(int64_t numel) {
    return numel / 32 * (int64_t)sizeof(float);
}

int64_t cpu_optimizer_workspace(OpsShape shape) {
    int64_t numel, sums, scratch;
    const int64_t scratch_bytes = adafactor_scratch_bytes(shape.factored);
    return parts_layout((int)shape.num_tensors, scratch_bytes, &numel, &sums, &scratch);
}

// Takes the workspace for n tensors. Then call parts_add once for each, in order.
static Parts parts_begin(const char *op, int n, int64_t scratch_bytes) {
    int64_t numel, sums, scratch;
    char *workspace = cpu_scratch(op, parts_layout(n, scratch_bytes, &numel, &sums, &scratch));
    Parts p = {n, (int64_t *)(void *)workspace, (int64_t *)(void *)(workspace + numel),
               (double *)(void *)(workspace + sums), workspace + scratch};
    p.first[0] = 0;
    return p;
}

static void parts_add(Parts p, int tensor, int64_t numel) {
    p.numel[tensor] = numel;
    p.first[tensor + 1] = p.first[tensor] + ceil_div(numel, part_elements(numel));
}

static Part parts_get(Parts p, int64_t number) {
    int low = 0, high = p.n; // first[low] <= number < first[high]
    while (high - low > 1) {
        int middle = (low + high) / 2;
        if (p.first[middle] <= number)
            low = middle;
        else
            high = middle;
    }
    int64_t size = part_elements(p.numel[low]), begin = (number - p.first[low]) * size;
    return (Part){low, begin, min_i64(begin + size, p.numel[low])};
}

// The sum of p.sums over the parts of a tensor, in order.
static double parts_sum(Parts p, int tensor) {
    double sum = 0.0;
    for (int64_t number = p.first[tensor]; number < p.first[tensor + 1]; number++)
        sum += p.sums[number];
    return sum;
}

// -------------------------------------------------------------------------------------------- norm

// fp32 sums are kept as short as this, then added in fp64.
enum { RUN = 4096 };

static ALWAYS_INLINE double part_sumsq(const void *grad, Part part, DType G) {
    double sum = 0.0;
    for (int64_t begin = part.begin; begin < part.end; begin += RUN) {
        const int64_t end = min_i64(begin + RUN, part.end);
        V even = vzero(), odd = vzero(); // two chains: one would wait for the latency of its fma
        int64_t whole = begin;
        for (; whole + 2 * LANES <= end; whole += 2 * LANES) {
            V x = vload(grad, whole, G), y = vload(grad, whole + LANES, G);
            even = vfma(x, x, even);
            odd = vfma(y, y, odd);
        }
        EACH_LANES(i, k, end - whole, {
            V x = vload_first(k, grad, whole + i, G);
            even = vfma(x, x, even);
        });
        sum += vsum(even + odd);
    }
    return sum;
}

void backend_gradient_sumsq(Tensor sumsq, UpdateList *list) {
    const int n = list->n;
    Parts parts = parts_begin("gradient_sumsq", n, 0);
    for (int i = 0; i < n; i++) parts_add(parts, i, tensor_numel(list->tensors[i].grad));
#pragma omp parallel for schedule(dynamic) if (parts.first[parts.n] > 1)
    for (int64_t number = 0; number < parts.first[parts.n]; number++) {
        Part part = parts_get(parts, number);
        Tensor grad = list->tensors[part.tensor].grad;
        WITH_DTYPE(G, grad.dtype, parts.sums[number] = part_sumsq(grad.data, part, G));
    }
    float *out = sumsq.data;
    for (int i = 0; i < n; i++) out[i] = (float)parts_sum(parts, i);
}

// ---------------------------------------------------------------------------------------- decision

void backend_step_control_update(Tensor control, Tensor sumsq, Tensor losses, int64_t num_tokens,
                                 StepLimits limits) {
    const int num_tensors = (int)tensor_numel(sumsq);
    const float *loss = losses.data;
    double loss_sum = 0.0;
    for (int64_t b = 0; b < tensor_numel(losses); b++) loss_sum += loss[b];
    step_control_decide(control.data, sumsq.data, num_tensors, loss_sum, num_tokens, limits);
}

// ------------------------------------------------------------------------------------------ update

// The constants of one step, in the form the inner loops use.
typedef struct {
    float grad_factor, learning_rate, momentum;
    const MomentRates *moments;               // of each group
    const float *m_correction, *v_correction; // of each group: 1 / (1 - beta^step)
    uint64_t seed, update;                    // update: its number, for random bits
    Dynamic8 signed_map, unsigned_map;
} Step;

static Step step_begin(const UpdateParams *p, const StepControl *decided) {
    return (Step){.grad_factor = decided->grad_factor,
                  .learning_rate = p->learning_rate,
                  .momentum = p->momentum,
                  .moments = p->moments,
                  .m_correction = decided->m_correction,
                  .v_correction = decided->v_correction,
                  .seed = p->seed,
                  .update = (uint64_t)decided->updates,
                  .signed_map = dynamic8_map(1),
                  .unsigned_map = dynamic8_map(2)};
}

enum { OF_WEIGHT, OF_M, OF_V }; // the streams of random bits: k of ops.h

static RandomBits random_bits(const UpdateTensor *t, const Step *s, int k) {
    return (RandomBits){s->seed, STREAM_ROUNDING + (uint64_t)t->stream + ((uint64_t)k << 20),
                        s->update, t->offset};
}

static ALWAYS_INLINE void open_m(Moment *m, const UpdateTensor *t, const Step *s, Span at,
                                 DType S) {
    moment_open(m, t->m, t->m_scale, at, &s->signed_map, true, random_bits(t, s, OF_M), S);
}
static ALWAYS_INLINE V scaled_gradient(const UpdateTensor *t, const Step *s, int64_t e, int k,
                                       DType G) {
    return vload_first(k, t->grad.data, e, G) * s->grad_factor;
}

// ------------------------------------------------------------------------------------------- rules

static ALWAYS_INLINE float one_minus(float beta) { return (float)(1.0 - (double)beta); }

// Each updates its moments and leaves the direction of the update: the learning rate multiplies it
// and the decay. G and S, the dtypes of gradient and moments, are constants.

static ALWAYS_INLINE void adamw_direction(V *direction, const UpdateTensor *t, const Step *s,
                                          Span at, DType S, DType G) {
    const MomentRates of = s->moments[t->group];
    const float m_correction = s->m_correction[t->group], v_correction = s->v_correction[t->group];
    Moment first, second;
    open_m(&first, t, s, at, S);
    moment_open(&second, t->v, t->v_scale, at, &s->unsigned_map, false, random_bits(t, s, OF_V), S);
    EACH_LANES(i, k, at.count, {
        const V g = scaled_gradient(t, s, at.begin + i, k, G);
        const V m = vfma(vsplat(of.beta1), moment_load(&first, i, k, S), one_minus(of.beta1) * g);
        const V v =
            vfma(vsplat(of.beta2), moment_load(&second, i, k, S), one_minus(of.beta2) * (g * g));
        direction[i / LANES] = m * m_correction / (vsqrt(v * v_correction) + of.eps);
        moment_store(&first, i, k, m, S);
        moment_store(&second, i, k, v, S);
    });
    moment_close(&first, at, S);
    moment_close(&second, at, S);
}

static ALWAYS_INLINE void lion_direction(V *direction, const UpdateTensor *t, const Step *s,
                                         Span at, DType S, DType G) {
    const MomentRates of = s->moments[t->group];
    Moment first;
    open_m(&first, t, s, at, S);
    EACH_LANES(i, k, at.count, {
        const V g = scaled_gradient(t, s, at.begin + i, k, G);
        const V m = moment_load(&first, i, k, S);
        const V x = vfma(vsplat(of.beta1), m, one_minus(of.beta1) * g);
        const V negative = vwhere_greater(vzero(), x, vsplat(-1.0f), vzero());
        direction[i / LANES] = vwhere_greater(x, vzero(), vsplat(1.0f), negative);
        moment_store(&first, i, k, vfma(vsplat(of.beta2), m, one_minus(of.beta2) * g), S);
    });
    moment_close(&first, at, S);
}

static ALWAYS_INLINE void sgd_direction(V *direction, const UpdateTensor *t, const Step *s, Span at,
                                        DType S, DType G) {
    Moment first;
    open_m(&first, t, s, at, S);
    EACH_LANES(i, k, at.count, {
        const V g = scaled_gradient(t, s, at.begin + i, k, G);
        direction[i / LANES] = vfma(vsplat(s->momentum), moment_load(&first, i, k, S), g);
        moment_store(&first, i, k, direction[i / LANES], S);
    });
    moment_close(&first, at, S);
}

// The mean of the rows' second moments; 0 for a vector.
static double adafactor_mean_row(const UpdateTensor *t) {
    if (!t->row.data) return 0.0;
    const float *row = t->row.data;
    const int64_t rows = tensor_numel(t->row);
    double sum = 0.0;
    for (int64_t i = 0; i < rows; i++) sum += row[i];
    return sum / (double)rows;
}

// u = g / sqrt(row_i col_j / mean_row), for a vector g / sqrt(v). Separate factors, because the
// product of a row and a column may be below the range of fp32.
static void adafactor_direction(V *u, const V *g, const UpdateTensor *t, double mean_row, Span at) {
    Block by_row, second = {{0}};
    if (t->row.data) {
        const int64_t cols = tensor_numel(t->col), first = t->offset + at.begin;
        const float *row = t->row.data, *col = t->col.data;
        float *of_row = (float *)by_row, *of_col = (float *)second;
        int64_t i = first / cols, j = first % cols;
        for (int k = 0; k < at.count; i++, j = 0) {
            const int length = (int)min_i64(cols - j, at.count - k);
            const float factor = (float)sqrt(mean_row / (double)row[i]);
            memcpy(of_col + k, col + j, (size_t)length * sizeof *col);
            for (int end = k + length; k < end; k++) of_row[k] = factor;
        }
        for (int k = at.count; k % LANES; k++) {
            of_row[k] = 0.0f;
            of_col[k] = 1.0f;
        }
    } else {
        block_load(second, t->v, at);
        for (int k = at.count; k % LANES; k++) ((float *)second)[k] = 1.0f;
        for (int k = 0; k < at.vectors; k++) by_row[k] = vsplat(1.0f);
    }

    for (int k = 0; k < at.vectors; k++) u[k] = g[k] * by_row[k] / vsqrt(second[k]);
}

// The direction by the rule of the tensor. Only the three with moments are compiled for each dtype.
static void find_direction(V *direction, const UpdateTensor *t, const Step *s, double mean_row,
                           Span at) {
#define WITH_MOMENTS(f)                                                                            \
    WITH_STATE(S, t->m.dtype, WITH_DTYPE(G, t->grad.dtype, f(direction, t, s, at, S, G)))
    if (t->rule == RULE_ADAMW) {
        WITH_MOMENTS(adamw_direction);
    } else if (t->rule == RULE_LION) {
        WITH_MOMENTS(lion_direction);
    } else if (t->rule == RULE_SGD) {
        WITH_MOMENTS(sgd_direction);
    } else if (t->rule == RULE_ADAFACTOR) {
        Block g;
        const float rms = *(const float *)t->rms.data;
        block_load_scaled(g, t->grad, s->grad_factor, at);
        adafactor_direction(direction, g, t, mean_row, at);
        for (int i = 0; i < at.vectors && rms > 1.0f; i++) direction[i] /= rms; // clipped
    } else {
        block_load(direction, t->grad, at);
    }
#undef WITH_MOMENTS
}

// ----------------------------------------------------------------------------------------- weights

// w - lr (rate direction + decay w).
static ALWAYS_INLINE V descended(V w, V direction, const UpdateTensor *t, const Step *s) {
    return w - t->rate * s->learning_rate * vfma(vsplat(t->weight_decay / t->rate), w, direction);
}

static ALWAYS_INLINE void move_master(const V *direction, const UpdateTensor *t, const Step *s,
                                      Span at, DType E) {
    EACH_LANES(i, k, at.count, {
        const int64_t e = at.begin + i;
        const V w =
            descended(vload_first(k, t->master.data, e, DTYPE_FP32), direction[i / LANES], t, s);
        vstore_first(k, t->master.data, e, w, DTYPE_FP32);
        vstore_first(k, t->weight.data, e, w, E);
    });
}

// The part that the weight cannot hold is kept for the next step. Kahan, "Further remarks on
// reducing truncation errors", 1965.
static ALWAYS_INLINE void move_compensated(const V *direction, const UpdateTensor *t, const Step *s,
                                           Span at, DType E) {
    EACH_LANES(i, k, at.count, {
        const int64_t e = at.begin + i;
        const V before =
            vload_first(k, t->weight.data, e, E) + vload_first(k, t->compensation.data, e, E);
        const V w = descended(before, direction[i / LANES], t, s);
        vstore_first(k, t->weight.data, e, w, E);
        vstore_first(k, t->compensation.data, e, w - vload_first(k, t->weight.data, e, E), E);
    });
}

static ALWAYS_INLINE void move_weight(const V *direction, const UpdateTensor *t, const Step *s,
                                      Span at, DType E) {
    HalfWords random;
    if (E == DTYPE_BF16) half_words_make(&random, random_bits(t, s, OF_WEIGHT), at);
    EACH_LANES(i, k, at.count, {
        const int64_t e = at.begin + i;
        V w = descended(vload_first(k, t->weight.data, e, E), direction[i / LANES], t, s);
        if (E == DTYPE_BF16) w = round_lanes(&random, i, w);
        vstore_first(k, t->weight.data, e, w, E);
    });
}

void backend_optimizer_update(UpdateList *list, int first, int count, UpdateParams params,
                              Tensor control) {
    const Parts parts = parts_begin("optimizer_update", count, 0);
    const UpdateTensor *tensors = list->tensors + first;

    for (int i = 0; i < count; i++) parts_add(parts, i, tensor_numel(tensors[i].weight));
    const StepControl *decided = control.data;
    if (decided->skip != SKIP_NONE) return;

    const Step step = step_begin(&params, decided);
    double *mean_rows = parts.sums;
    for (int i = 0; i < count; i++) mean_rows[i] = adafactor_mean_row(&tensors[i]);
#pragma omp parallel for schedule(dynamic) if (parts.first[parts.n] > 1)
    for (int64_t number = 0; number < parts.first[parts.n]; number++) {
        const Part part = parts_get(parts, number);
        const UpdateTensor *t = &tensors[part.tensor];
        for (int64_t e = part.begin; e < part.end; e += STATE_BLOCK) {
            const Span at = span_at(e, part.end);
            Block direction;
            find_direction(direction, t, &step, mean_rows[part.tensor], at);
            if (t->master.data)
                WITH_DTYPE(E, t->weight.dtype, move_master(direction, t, &step, at, E));
            else if (t->compensation.data)
                WITH_DTYPE(E, t->weight.dtype, move_compensated(direction, t, &step, at, E));
            else
                WITH_DTYPE(E, t->weight.dtype, move_weight(direction, t, &step, at, E));
        }
    }
}

// --------------------------------------------------------------------------------- Muon's momentum

static ALWAYS_INLINE void momentum_block(const UpdateTensor *t, const Step *s, Span at, DType S,
                                         DType G) {
    Moment first;
    open_m(&first, t, s, at, S);
    EACH_LANES(i, k, at.count, {
        const V g = scaled_gradient(t, s, at.begin + i, k, G);
        const V m = vfma(vsplat(s->momentum), moment_load(&first, i, k, S), g);
        vstore_first(k, t->grad.data, at.begin + i, vfma(vsplat(s->momentum), m, g), G);
        moment_store(&first, i, k, m, S);
    });
    moment_close(&first, at, S);
}

void backend_momentum_update(UpdateList *list, UpdateParams params, Tensor control) {
    const UpdateTensor *tensors = list->tensors;
    const int n = list->n;
    const Parts parts = parts_begin("momentum_update", n, 0);
    for (int i = 0; i < n; i++) {
        int64_t numel = 0;
        if (tensors[i].rule == RULE_DIRECTION) numel = tensor_numel(tensors[i].weight);
        parts_add(parts, i, numel);
    }

    const StepControl *decided = control.data;
    if (decided->skip != SKIP_NONE) return;
    const Step step = step_begin(&params, decided);
#pragma omp parallel for schedule(dynamic) if (parts.first[parts.n] > 1)
    for (int64_t number = 0; number < parts.first[parts.n]; number++) {
        const Part part = parts_get(parts, number);
        const UpdateTensor *t = &tensors[part.tensor];
        for (int64_t e = part.begin; e < part.end; e += STATE_BLOCK)
            WITH_STATE(
                S, t->m.dtype,
                WITH_DTYPE(G, t->grad.dtype, momentum_block(t, &step, span_at(e, part.end), S, G)));
    }
}

// -------------------------------------------------------------------------- Adafactor's statistics

// Adafactor's second moments: for a matrix one number per row and one per column. Shazeer, Stern,
// "Adafactor: Adaptive Learning Rates with Sublinear Memory Cost", 2018.

//
// The statistics read the gradient twice: for the sums of squares and then, with rows and columns
// known, for the size of the update. A matrix is split into groups of rows, which the threads take
// as they become free. Each group sums its columns separately, and the groups are added in order.

static const float SMALLEST = 1e-30f; // added to the square of a gradient

// Rows of a group: enough that the column sums, one row per group, are small compared with the
// matrix.
enum { MAX_GROUPS = 128, MIN_GROUP_ROWS = 64 };

// The constants of one step.
typedef struct {
    float grad_factor, keep, take; // mean = keep mean + take g^2
} StatisticsStep;

// row[i] of the rows [begin, end), and their share of the columns' means added to sums: take / rows
// * sum of g2.
static ALWAYS_INLINE void add_moments(const UpdateTensor *t, StatisticsStep s, float *sums,
                                      int64_t begin, int64_t end, DType G) {
    const int64_t rows = tensor_numel(t->row), cols = tensor_numel(t->col);
    const float of_column = s.take / (float)rows;
    float *row = t->row.data;
    for (int64_t i = begin; i < end; i++) {
        double of_row = 0.0;
        for (int64_t j = 0; j < cols; j += RUN) {
            V sum = vzero();
            EACH_LANES(c, k, min_i64(cols - j, RUN), {
                const V g = vload_first(k, t->grad.data, i * cols + j + c, G) * s.grad_factor;
                const V g2 = vfirst(k, vfma(g, g, vsplat(SMALLEST)), vzero());
                sum += g2;
                vstore_first(k, sums, j + c,
                             vfma(vsplat(of_column), g2, vload_first(k, sums, j + c, DTYPE_FP32)),
                             DTYPE_FP32);
            });
            of_row += vsum(sum);
        }
        row[i] = (float)(s.keep * row[i] + s.take * of_row / (double)cols);
    }
}

static void matrix_moments(const UpdateTensor *t, StatisticsStep s, float *scratch) {
    const int64_t rows = tensor_numel(t->row), cols = tensor_numel(t->col);
    const int64_t size = max_i64(ceil_div(rows, MAX_GROUPS), MIN_GROUP_ROWS),
                  groups = ceil_div(rows, size);
    float *col = t->col.data;

    if (groups == 1)
        for (int64_t j = 0; j < cols; j++) col[j] *= s.keep;
#pragma omp parallel for schedule(dynamic) if (groups > 1)
    for (int64_t group = 0; group < groups; group++) {
        const int64_t begin = group * size, end = min_i64(begin + size, rows);
        float *sums = groups != 1 ? scratch + group * cols : col;
        if (groups > 1) memset(sums, 0, (size_t)cols * sizeof *sums);
        WITH_DTYPE(G, t->grad.dtype, add_moments(t, s, sums, begin, end, G));
    }

    if (groups == 1) return;
#pragma omp parallel for schedule(static)
    for (int64_t j = 0; j < cols; j++) {
        double sum = s.keep * col[j];
        for (int64_t group = 0; group < groups; group++) sum += scratch[group * cols + j];
        col[j] = (float)sum;
    }
}

static void vector_moments(const UpdateTensor *t, StatisticsStep s, Part part) {
    for (int64_t e = part.begin; e < part.end; e += STATE_BLOCK) {
        const Span at = span_at(e, part.end);
        Block g, v;
        block_load_scaled(g, t->grad, s.grad_factor, at);
        block_load(v, t->v, at);
        for (int i = 0; i < at.vectors; i++)
            v[i] = vfma(vsplat(s.keep), v[i], s.take * vfma(g[i], g[i], vsplat(SMALLEST)));
        EACH_LANES(i, k, at.count, vstore_first(k, t->v.data, e + i, v[i / LANES], DTYPE_FP32));
    }
}

// The sum of u^2.
static double part_size(const UpdateTensor *t, float grad_factor, double mean_row, Part part) {
    double sum = 0.0;
    for (int64_t e = part.begin; e < part.end; e += STATE_BLOCK) {
        const Span at = span_at(e, part.end);
        Block g, u;
        V squares = vzero();
        block_load_scaled(g, t->grad, grad_factor, at);
        adafactor_direction(u, g, t, mean_row, at);
        for (int i = 0; i < at.vectors; i++) squares = vfma(u[i], u[i], squares);
        sum += vsum(squares);
    }
    return sum;
}

void backend_adafactor_statistics(UpdateList *list, Tensor control) {
    const UpdateTensor *tensors = list->tensors;
    const int n = list->n;
    int64_t factored = 0;
    for (int i = 0; i < n; i++)
        if (tensors[i].rule == RULE_ADAFACTOR) factored += tensor_numel(tensors[i].weight);

    const Parts parts = parts_begin("adafactor_statistics", n, adafactor_scratch_bytes(factored));
    for (int i = 0; i < n; i++) {
        int64_t numel = 0;
        if (tensors[i].rule == RULE_ADAFACTOR) numel = tensor_numel(tensors[i].weight);
        parts_add(parts, i, numel);
    }

    const StepControl *decided = control.data;
    if (decided->skip != SKIP_NONE) return;
    const StatisticsStep step = {decided->grad_factor, decided->keep, decided->take};

    for (int i = 0; i < n;
         i++) { // tensor by tensor, because each needs its complete rows and columns
        const UpdateTensor *t = &tensors[i];
        if (t->rule != RULE_ADAFACTOR) continue;
        if (t->row.data) matrix_moments(t, step, (float *)(void *)parts.scratch);
        const double mean_row = adafactor_mean_row(t);
#pragma omp parallel for schedule(dynamic) if (parts.first[i + 1] - parts.first[i] > 1)
        for (int64_t number = parts.first[i]; number < parts.first[i + 1]; number++) {
            const Part part = parts_get(parts, number);
            if (!t->row.data) vector_moments(t, step, part);
            parts.sums[number] = part_size(t, step.grad_factor, mean_row, part);
        }
        *(float *)t->rms.data =
            (float)sqrt(parts_sum(parts, i) / (double)(tensor_numel(t->weight) - t->padding));
    }
}
