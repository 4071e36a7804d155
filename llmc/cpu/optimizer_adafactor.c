// Adafactor's second moments: for a matrix one number per row and one per column. Shazeer, Stern, "Adafactor: Adaptive
// Learning Rates with Sublinear Memory Cost", 2018.
//
// The statistics read the gradient twice: for the sums of squares and then, with rows and columns known, for the size
// of the update. A matrix is split into groups of rows, which the threads take as they become free. Each group sums its
// columns separately, and the groups are added in order.
#include "llmc/cpu/optimizer_block.h"

#include "llmc/base/arithmetic.h"
#include "llmc/base/error.h"
#include "llmc/cpu/cpu.h"

static const float SMALLEST = 1e-30f; // added to the square of a gradient

// Rows of a group: enough that the column sums, one row per group, are small compared with the matrix.
enum { MAX_GROUPS = 128, MIN_GROUP_ROWS = 64 };

// For a matrix of one group the sums are col itself. With two groups or more, rows >= 65, and rows / 64 + 1 sums per
// column are less than 1/32 of the matrix.
int64_t adafactor_scratch_bytes(int64_t factored) { return factored / 32 * (int64_t)sizeof(float); }

double adafactor_mean_row(const UpdateTensor *t) {
    if (!t->row.data) return 0.0;
    const float *row = t->row.data;
    const int64_t rows = tensor_numel(t->row);
    double sum = 0.0;
    for (int64_t i = 0; i < rows; i++) sum += row[i];
    return sum / (double)rows;
}

// Separate factors, because the product of a row and a column may be below the range of fp32.
void adafactor_direction(V *u, const V *g, const UpdateTensor *t, double mean_row, Span at) {
    Block by_row, second = {{0}};
    if (t->row.data) {
        const int64_t cols = tensor_numel(t->col), first = t->offset + at.begin;
        const float *row = t->row.data, *col = t->col.data;
        float *of_row = (float *)by_row, *of_col = (float *)second;
        int64_t i = first / cols, j = first % cols;
        for (int k = 0; k < at.count; i++, j = 0) {
            const int length = cols - j < at.count - k ? (int)(cols - j) : at.count - k;
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

// ---------------------------------------------------------------------------------------------------------- statistics

// The constants of one step.
typedef struct {
    float grad_factor, keep, take; // mean = keep mean + take g^2
} StatisticsStep;

// row[i] of the rows [begin, end), and their share of the columns' means added to sums: take / rows * sum of g2.
static ALWAYS_INLINE void add_moments(const UpdateTensor *t, StatisticsStep s, float *sums, int64_t begin, int64_t end,
                                      DType G) {
    enum { RUN = 4096 }; // fp32 sums are kept as short as this, then added in fp64
    const int64_t rows = tensor_numel(t->row), cols = tensor_numel(t->col);
    const float of_column = s.take / (float)rows;
    float *row = t->row.data;
    for (int64_t i = begin; i < end; i++) {
        double of_row = 0.0;
        for (int64_t j = 0; j < cols; j += RUN) {
            V sum = vzero();
            EACH_LANES(c, k, (cols - j < RUN ? cols - j : RUN), {
                const V g = vload_first(k, t->grad.data, i * cols + j + c, G) * s.grad_factor;
                const V g2 = vfirst(k, vfma(g, g, vsplat(SMALLEST)), vzero());
                sum += g2;
                vstore_first(k, sums, j + c, vfma(vsplat(of_column), g2, vload_first(k, sums, j + c, DTYPE_FP32)),
                             DTYPE_FP32);
            });
            of_row += vsum(sum);
        }
        row[i] = (float)(s.keep * row[i] + s.take * of_row / (double)cols);
    }
}

static void matrix_moments(const UpdateTensor *t, StatisticsStep s, float *scratch) {
    const int64_t rows = tensor_numel(t->row), cols = tensor_numel(t->col);
    const int64_t size = max_i64(ceil_div(rows, MAX_GROUPS), MIN_GROUP_ROWS), groups = ceil_div(rows, size);
    float *col = t->col.data;
    if (groups == 1)
        for (int64_t j = 0; j < cols; j++) col[j] *= s.keep;
#pragma omp parallel for schedule(dynamic) if (groups > 1)
    for (int64_t group = 0; group < groups; group++) {
        const int64_t begin = group * size, end = rows - begin < size ? rows : begin + size;
        float *sums = groups == 1 ? col : scratch + group * cols;
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
        block_store(t->v, v, at);
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
    for (int i = 0; i < n; i++)
        parts_add(parts, i, tensors[i].rule == RULE_ADAFACTOR ? tensor_numel(tensors[i].weight) : 0);
    const StepControl *decided = control.data;
    if (decided->skip != SKIP_NONE) return;
    const StatisticsStep step = {decided->grad_factor, decided->keep, decided->take};
    for (int i = 0; i < n; i++) { // tensor by tensor, because each needs its complete rows and columns
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
        *(float *)t->rms.data = (float)sqrt(parts_sum(parts, i) / (double)(tensor_numel(t->weight) - t->padding));
    }
}
