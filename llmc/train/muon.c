// Muon's directions, see muon.h: the matrices of the list in stacks of one shape, as products of
// ops.h.
#include "llmc/train/muon.h"

#include "llmc/base/arithmetic.h"
#include "llmc/base/error.h"
#include "llmc/device.h"

#include <math.h>
#include <stdlib.h>

static const float MUON_A = 3.4445f, MUON_B = -4.7750f, MUON_C = 2.0315f;

struct Muon {
    UpdateList *all; // the caller's
    DType dtype;     // compute dtype of the iteration
    MuonScratch layout;
    char *scratch;
    // (layout.matrices), those of one shape together, of each matrix (rows, cols), stacked ones
    // apart, the gradient, and its rate as a share of that of the whole tensor (optimizer_rate):
    // heads of keys and values that are few may have a smaller one
    UpdateTensor *matrices;
    UpdateList list;    // of the matrices
    DeviceGraph *graph; // the recording of the products: hundreds of launches
};

// By shape, else as they are in the model.
static int muon_compare_shapes(const void *a, const void *b) {
    const UpdateTensor *x = a, *y = b;
    const int64_t rows = tensor_rows(x->grad) - tensor_rows(y->grad),
                  cols = tensor_cols(x->grad) - tensor_cols(y->grad);
    if (rows != 0) return (rows > 0) - (rows < 0);
    if (cols != 0) return (cols > 0) - (cols < 0);
    return x->stream - y->stream;
}

Muon *muon_create(UpdateList *all, const Parameter *parameters, int num_parameters,
                  Tensor scratch) {
    Error err;
    const UpdateTensor *tensors = all->tensors;
    Muon *m = calloc(1, sizeof *m);
    REQUIRE_MEMORY(m, "Muon's matrices");
    m->all = all;
    m->dtype = tensors[0].weight.dtype;
    m->layout = optimizer_muon_scratch(parameters, num_parameters, m->dtype);
    m->scratch = scratch.data;
    REQUIRE((int64_t)tensor_bytes(scratch) >= m->layout.bytes,
            "Muon's scratch has %zu bytes, %lld are needed", tensor_bytes(scratch),
            (long long)m->layout.bytes);
    m->matrices = calloc((size_t)m->layout.matrices, sizeof *m->matrices);
    REQUIRE_MEMORY(m->matrices, "Muon's matrices");
    int n = 0;
    for (int i = 0; i < all->n; i++) {
        const Parameter *p = &parameters[tensors[i].stream];
        int64_t row = 0;
        for (int k = 0; tensors[i].rule == RULE_DIRECTION && k < p->num_parts;
             row += p->parts[k++]) {
            const float size = (float)max_i64(p->parts[k], p->cols),
                        first = (float)max_i64(p->parts[0], p->cols);
            m->matrices[n].rate = sqrtf(size / first);
            m->matrices[n].stream = n;
            m->matrices[n++].grad = tensor_slice_rows(tensors[i].grad, row, p->parts[k]);
        }
    }
    REQUIRE(n <= m->layout.matrices, "%d matrices where the table has %d", n, m->layout.matrices);
    m->layout.matrices = n; // of this process
    qsort(m->matrices, (size_t)n, sizeof *m->matrices, muon_compare_shapes);
    m->list = update_list(m->matrices, n);
    m->graph = device_graph_create(&err);
    REQUIRE_MEMORY(m->graph, "the recording of Muon's products");
    return m;
}

void muon_destroy(Muon *m) {
    if (!m) return;
    device_graph_destroy(m->graph);
    update_list_free(&m->list);
    free(m->matrices);
    free(m);
}

// Replaces n matrices of one shape by nearly the closest orthogonal ones: MUON_STEPS times X
// becomes a X + (b A + c A A) X with A = X X^T. If X is tall, A is X^T X, which is smaller, and X
// (b A + c A A) is the same matrix. gram and square are symmetric, so no product needs a transposed
// operand. Sums with b A and a X are part of the products.
static void orthogonalize(const Muon *m, const UpdateTensor *matrices, int n, Tensor sumsq) {
    const int64_t rows = tensor_rows(matrices[0].grad), cols = tensor_cols(matrices[0].grad);
    const int64_t side = min_i64(rows, cols);
    const bool is_tall = rows > cols;
    Tensor x = tensor_make(m->scratch + m->layout.x, m->dtype, "muon_x", n, rows, cols, 0);
    Tensor next = tensor_make(m->scratch + m->layout.next, m->dtype, "muon_x", n, rows, cols, 0);
    const Tensor gram =
        tensor_make(m->scratch + m->layout.gram, m->dtype, "muon_gram", n, side, side, 0);
    const Tensor square =
        tensor_make(m->scratch + m->layout.square, m->dtype, "muon_square", n, side, side, 0);

    Tensor gradients[STACK_MAX];
    float rates[STACK_MAX];
    const StackForm gram_form = is_tall ? STACK_ATB : STACK_ABT;
    for (int i = 0; i < n; i++) {
        gradients[i] = matrices[i].grad;
        rates[i] = matrices[i].rate;
    }

    stack_gather(x, gradients, sumsq);
    for (int step = 0; step < MUON_STEPS; step++) {
        matmul_stack(gram, gram_form, 1.0f, x, x, 0.0f, tensor_none());
        matmul_stack(square, STACK_ABT, MUON_C, gram, gram, MUON_B, gram); // b A + c A A
        if (is_tall)
            matmul_stack(next, STACK_ABT, 1.0f, x, square, MUON_A, x);
        else
            matmul_stack(next, STACK_AB, 1.0f, square, x, MUON_A, x);
        const Tensor swapped = x;
        x = next;
        next = swapped;
    }

    stack_scatter(gradients, x, rates);
}

void muon_directions(Muon *m, UpdateParams params, Tensor control) {
    const int n = m->layout.matrices;
    const Tensor sumsq =
        tensor_make(m->scratch + m->layout.sumsq, DTYPE_FP32, "muon_sumsq", n, 0, 0, 0);
    momentum_update(m->all, params, control);
    if (n == 0) return;

    const bool observed = ops_are_observed(); // what is observed is not part of a recording
    if (!observed && device_graph_replay(m->graph)) return;
    if (!observed) device_graph_begin(m->graph);
    gradient_sumsq(sumsq, &m->list);

    for (int first = 0, next; first < n; first = next) {
        const int64_t rows = tensor_rows(m->matrices[first].grad),
                      cols = tensor_cols(m->matrices[first].grad);
        const int end = (int)min_i64(n, first + optimizer_muon_stack(rows, cols, m->dtype));
        next = first + 1;
        while (next < end && tensor_rows(m->matrices[next].grad) == rows &&
               tensor_cols(m->matrices[next].grad) == cols)
            next++;
        orthogonalize(m, &m->matrices[first], next - first,
                      tensor_slice_elements(sumsq, first, next - first));
    }
    if (!observed) device_graph_end(m->graph);
}
