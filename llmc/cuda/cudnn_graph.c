// The two operation graphs of causal attention, forward and backward. See cudnn_graph.h.
//
// The first half is a small builder over cuDNN's descriptors: one function for each kind of
// operation, so that a graph reads as the list of its operations. The builder owns every descriptor
// it made; they are all destroyed with the graph.
#include "llmc/cuda/cudnn_graph.h"

#ifdef HAVE_CUDNN
#include <stdlib.h>
#include <string.h>

// 24 operations have at most two descriptors each, and 34 tensors connect them.
enum { MAX_DESCRIPTORS = 96, ALIGNMENT = 16 };

typedef cudnnBackendDescriptor_t Descriptor;

// ------------------------------------------------------------------------------ single descriptors

void cudnn_check(CudnnBuild *b, cudnnStatus_t status) {
    if (status == CUDNN_STATUS_SUCCESS) return;
    b->failed = true;
    cudnn_failed(b->err, b->what, status);
}

Descriptor cudnn_make(CudnnBuild *b, cudnnBackendDescriptorType_t type) {
    Descriptor d = NULL;
    if (!b->failed) cudnn_check(b, cudnn.cudnnBackendCreateDescriptor(type, &d));
    return d;
}

void cudnn_destroy(Descriptor d) {
    if (d) cudnn.cudnnBackendDestroyDescriptor(d);
}

void cudnn_set(CudnnBuild *b, Descriptor d, cudnnBackendAttributeName_t name,
               cudnnBackendAttributeType_t type, int64_t count, const void *values) {
    if (b->failed) return;
    cudnn_check(b, cudnn.cudnnBackendSetAttribute(d, name, type, count, values));
    if (b->failed) error_prefix(b->err, "attribute %d", (int)name);
}

void cudnn_refer(CudnnBuild *b, Descriptor d, cudnnBackendAttributeName_t name, Descriptor to) {
    cudnn_set(b, d, name, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &to);
}

void cudnn_finalize(CudnnBuild *b, Descriptor d) {
    if (!b->failed) cudnn_check(b, cudnn.cudnnBackendFinalize(d));
}

// ----------------------------------------------------------------------------------------- builder

struct CudnnGraph {
    Descriptor descriptors[MAX_DESCRIPTORS], operations[CUDNN_GRAPH_MAX_OPERATIONS], graph;
    int num_descriptors, num_operations;
    int64_t next_virtual; // identifier of the next tensor that exists only inside the kernel
    bool supplied[CUDNN_NUM_TENSORS];
    CudnnBuild build;
};

// A tensor of the graph: 4 dimensions and their strides, in elements.
typedef struct {
    int64_t d[4];
} Four;

typedef struct {
    Descriptor descriptor;
    Four dims, strides;
} GraphTensor;

static Descriptor graph_make(CudnnGraph *g, cudnnBackendDescriptorType_t type) {
    REQUIRE(g->num_descriptors < MAX_DESCRIPTORS, "cuDNN graph: more than %d descriptors",
            MAX_DESCRIPTORS);
    Descriptor d = cudnn_make(&g->build, type);
    if (d) g->descriptors[g->num_descriptors++] = d;
    return d;
}

static GraphTensor graph_tensor(CudnnGraph *g, int64_t id, cudnnDataType_t type, Four dims,
                                Four strides, const cudnnBackendAttributeName_t *flag) {
    static const int64_t alignment = ALIGNMENT;
    static const bool yes = true;
    CudnnBuild *b = &g->build;
    b->what = "cuDNN graph, tensor";
    Descriptor d = graph_make(g, CUDNN_BACKEND_TENSOR_DESCRIPTOR);
    cudnn_set(b, d, CUDNN_ATTR_TENSOR_DATA_TYPE, CUDNN_TYPE_DATA_TYPE, 1, &type);
    cudnn_set(b, d, CUDNN_ATTR_TENSOR_DIMENSIONS, CUDNN_TYPE_INT64, 4, dims.d);
    cudnn_set(b, d, CUDNN_ATTR_TENSOR_STRIDES, CUDNN_TYPE_INT64, 4, strides.d);
    cudnn_set(b, d, CUDNN_ATTR_TENSOR_UNIQUE_ID, CUDNN_TYPE_INT64, 1, &id);
    cudnn_set(b, d, CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT, CUDNN_TYPE_INT64, 1, &alignment);
    if (flag) cudnn_set(b, d, *flag, CUDNN_TYPE_BOOLEAN, 1, &yes);
    cudnn_finalize(b, d);
    return (GraphTensor){d, dims, strides};
}

// A tensor in memory that the caller supplies.
static GraphTensor supplied(CudnnGraph *g, CudnnTensor id, cudnnDataType_t type, Four dims,
                            Four strides) {
    g->supplied[id] = true;
    return graph_tensor(g, id, type, dims, strides, NULL);
}

// A number that the caller supplies from the host.
static GraphTensor constant(CudnnGraph *g, CudnnTensor id) {
    static const cudnnBackendAttributeName_t by_value = CUDNN_ATTR_TENSOR_IS_BY_VALUE;
    const Four one = {{1, 1, 1, 1}};
    g->supplied[id] = true;
    return graph_tensor(g, id, CUDNN_DATA_FLOAT, one, one, &by_value);
}

// A tensor between two operations, which never reaches memory.
static GraphTensor between(CudnnGraph *g, cudnnDataType_t type, Four dims, Four strides) {
    static const cudnnBackendAttributeName_t is_virtual = CUDNN_ATTR_TENSOR_IS_VIRTUAL;
    return graph_tensor(g, g->next_virtual++, type, dims, strides, &is_virtual);
}

static void add_operation(CudnnGraph *g, Descriptor operation) {
    cudnn_finalize(&g->build, operation);
    REQUIRE(g->num_operations < CUDNN_GRAPH_MAX_OPERATIONS, "cuDNN graph: more than %d operations",
            CUDNN_GRAPH_MAX_OPERATIONS);
    g->operations[g->num_operations++] = operation;
}

// y = mode(x), mode(x, b) or mode(x, b, condition); axis is that of GEN_INDEX.
typedef struct {
    cudnnPointwiseMode_t mode;
    cudnnDataType_t precision;
    const GraphTensor *b, *condition;
    int64_t axis;
} Pointwise;

static void pointwise(CudnnGraph *g, const char *what, Pointwise p, GraphTensor y, GraphTensor x) {
    CudnnBuild *b = &g->build;
    b->what = what;
    Descriptor kind = graph_make(g, CUDNN_BACKEND_POINTWISE_DESCRIPTOR);
    cudnn_set(b, kind, CUDNN_ATTR_POINTWISE_MODE, CUDNN_TYPE_POINTWISE_MODE, 1, &p.mode);
    cudnn_set(b, kind, CUDNN_ATTR_POINTWISE_MATH_PREC, CUDNN_TYPE_DATA_TYPE, 1, &p.precision);
    if (p.mode == CUDNN_POINTWISE_GEN_INDEX)
        cudnn_set(b, kind, CUDNN_ATTR_POINTWISE_AXIS, CUDNN_TYPE_INT64, 1, &p.axis);
    cudnn_finalize(b, kind);
    Descriptor d = graph_make(g, CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR);
    cudnn_refer(b, d, CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR, kind);
    cudnn_refer(b, d, CUDNN_ATTR_OPERATION_POINTWISE_XDESC, x.descriptor);
    if (p.b) cudnn_refer(b, d, CUDNN_ATTR_OPERATION_POINTWISE_BDESC, p.b->descriptor);
    if (p.condition)
        cudnn_refer(b, d, CUDNN_ATTR_OPERATION_POINTWISE_TDESC, p.condition->descriptor);
    cudnn_refer(b, d, CUDNN_ATTR_OPERATION_POINTWISE_YDESC, y.descriptor);
    add_operation(g, d);
}

static void unary(CudnnGraph *g, const char *what, cudnnPointwiseMode_t mode, GraphTensor y,
                  GraphTensor x) {
    pointwise(g, what, (Pointwise){.mode = mode, .precision = CUDNN_DATA_FLOAT}, y, x);
}

static void binary(CudnnGraph *g, const char *what, cudnnPointwiseMode_t mode, GraphTensor y,
                   GraphTensor x, GraphTensor b) {
    pointwise(g, what, (Pointwise){.mode = mode, .precision = CUDNN_DATA_FLOAT, .b = &b}, y, x);
}

static void graph_matmul(CudnnGraph *g, const char *what, GraphTensor c, GraphTensor a,
                         GraphTensor b) {
    static const cudnnDataType_t sums = CUDNN_DATA_FLOAT;
    g->build.what = what;
    Descriptor kind = graph_make(g, CUDNN_BACKEND_MATMUL_DESCRIPTOR);
    cudnn_set(&g->build, kind, CUDNN_ATTR_MATMUL_COMP_TYPE, CUDNN_TYPE_DATA_TYPE, 1, &sums);
    cudnn_finalize(&g->build, kind);
    Descriptor d = graph_make(g, CUDNN_BACKEND_OPERATION_MATMUL_DESCRIPTOR);
    cudnn_refer(&g->build, d, CUDNN_ATTR_OPERATION_MATMUL_DESC, kind);
    cudnn_refer(&g->build, d, CUDNN_ATTR_OPERATION_MATMUL_ADESC, a.descriptor);
    cudnn_refer(&g->build, d, CUDNN_ATTR_OPERATION_MATMUL_BDESC, b.descriptor);
    cudnn_refer(&g->build, d, CUDNN_ATTR_OPERATION_MATMUL_CDESC, c.descriptor);
    add_operation(g, d);
}

static void reduce(CudnnGraph *g, const char *what, cudnnReduceTensorOp_t mode, GraphTensor y,
                   GraphTensor x) {
    static const cudnnDataType_t sums = CUDNN_DATA_FLOAT;
    CudnnBuild *b = &g->build;
    b->what = what;
    Descriptor kind = graph_make(g, CUDNN_BACKEND_REDUCTION_DESCRIPTOR);
    cudnn_set(b, kind, CUDNN_ATTR_REDUCTION_COMP_TYPE, CUDNN_TYPE_DATA_TYPE, 1, &sums);
    cudnn_set(b, kind, CUDNN_ATTR_REDUCTION_OPERATOR, CUDNN_TYPE_REDUCTION_OPERATOR_TYPE, 1, &mode);
    cudnn_finalize(b, kind);
    Descriptor d = graph_make(g, CUDNN_BACKEND_OPERATION_REDUCTION_DESCRIPTOR);
    cudnn_refer(b, d, CUDNN_ATTR_OPERATION_REDUCTION_DESC, kind);
    cudnn_refer(b, d, CUDNN_ATTR_OPERATION_REDUCTION_XDESC, x.descriptor);
    cudnn_refer(b, d, CUDNN_ATTR_OPERATION_REDUCTION_YDESC, y.descriptor);
    add_operation(g, d);
}

static void reshape(CudnnGraph *g, const char *what, GraphTensor y, GraphTensor x) {
    g->build.what = what;
    Descriptor d = graph_make(g, CUDNN_BACKEND_OPERATION_RESHAPE_DESCRIPTOR);
    cudnn_refer(&g->build, d, CUDNN_ATTR_OPERATION_RESHAPE_XDESC, x.descriptor);
    cudnn_refer(&g->build, d, CUDNN_ATTR_OPERATION_RESHAPE_YDESC, y.descriptor);
    add_operation(g, d);
}

// -------------------------------------------------------------------------------------- the graphs

// The layouts of a shape. A transposed matrix is the same memory with dimensions and strides
// exchanged: of k and v, cuDNN wants to see the transposed one.
typedef struct {
    // of q, k, v, out, their gradients and of the probabilities between two matmuls
    cudnnDataType_t type;
    bool grouped;             // fewer heads of k and v than of q: a matmul repeats them
    Four rows;                // (B,NH,T,HS)
    Four kv_rows, kv_columns; // (B,NKV,T,HS) and (B,NKV,HS,T)
    // strides within (B,T,NH + 2 NKV,HS), (B,T,NH,HS), (B,NH,T,HS)
    Four in_qkv, in_qkv_transposed, in_out, in_heads;
    Four square, in_square, in_square_transposed; // (B,NH,T,T)
    Four per_row, in_rows;                        // (B,NH,T,1)
} Layouts;

static GraphTensor scores(CudnnGraph *g, const Layouts *l) {
    return between(g, CUDNN_DATA_FLOAT, l->square, l->in_square);
}
static GraphTensor row_numbers(CudnnGraph *g, const Layouts *l) {
    return between(g, CUDNN_DATA_FLOAT, l->per_row, l->in_rows);
}

// y[i,j] = x[i,j] for j <= i, else minus infinity. Four operations.
static GraphTensor causal_mask(CudnnGraph *g, const Layouts *l, GraphTensor x) {
    const GraphTensor row = between(g, CUDNN_DATA_INT32, l->square, l->in_square);
    const GraphTensor column = between(g, CUDNN_DATA_INT32, l->square, l->in_square);
    const GraphTensor keep = between(g, CUDNN_DATA_BOOLEAN, l->square, l->in_square);
    const GraphTensor minus_infinity = constant(g, CUDNN_MINUS_INFINITY), y = scores(g, l);
    const Pointwise index = {.mode = CUDNN_POINTWISE_GEN_INDEX, .precision = CUDNN_DATA_FLOAT};
    Pointwise along = index;
    along.axis = 2;
    pointwise(g, "mask: row index", along, row, x);
    along.axis = 3;
    pointwise(g, "mask: column index", along, column, x);
    const Pointwise compare = {
        .mode = CUDNN_POINTWISE_CMP_GE, .precision = CUDNN_DATA_BOOLEAN, .b = &column};
    pointwise(g, "mask: row >= column", compare, keep, row);
    const Pointwise select = {.mode = CUDNN_POINTWISE_BINARY_SELECT,
                              .precision = CUDNN_DATA_FLOAT,
                              .b = &minus_infinity,
                              .condition = &keep};
    pointwise(g, "mask: select", select, y, x);
    return y;
}

// S = mask(scale Q K^T);  M = rowmax(S);  L = rowsum(exp(S - M));  lse = M + log L;  O = (exp(S -
// M) / L) V. 14 operations. The quotient must have the type of V: an fp32 one has no engine.
static void forward_graph(CudnnGraph *g, const Layouts *l) {
    const GraphTensor q = supplied(g, CUDNN_Q, l->type, l->rows, l->in_qkv);
    const GraphTensor kt = supplied(g, CUDNN_K, l->type, l->kv_columns, l->in_qkv_transposed);
    const GraphTensor v = supplied(g, CUDNN_V, l->type, l->kv_rows, l->in_qkv);
    const GraphTensor out = supplied(g, CUDNN_OUT, l->type, l->rows, l->in_out);
    const GraphTensor lse = supplied(g, CUDNN_LSE, CUDNN_DATA_FLOAT, l->per_row, l->in_rows);
    const GraphTensor scale = constant(g, CUDNN_SCALE);

    const GraphTensor products = scores(g, l), scaled = scores(g, l);
    graph_matmul(g, "S = Q K^T", products, q, kt);
    binary(g, "S * scale", CUDNN_POINTWISE_MUL, scaled, products, scale);
    const GraphTensor s = causal_mask(g, l, scaled);

    const GraphTensor max = row_numbers(g, l), sum = row_numbers(g, l), log_sum = row_numbers(g, l);
    const GraphTensor shifted = scores(g, l), e = scores(g, l);
    reduce(g, "row maximum", CUDNN_REDUCE_TENSOR_MAX, max, s);
    binary(g, "S - maximum", CUDNN_POINTWISE_SUB, shifted, s, max);
    unary(g, "exp", CUDNN_POINTWISE_EXP, e, shifted);
    reduce(g, "row sum", CUDNN_REDUCE_TENSOR_ADD, sum, e);
    unary(g, "log of the sum", CUDNN_POINTWISE_LOG, log_sum, sum);
    binary(g, "lse = maximum + log", CUDNN_POINTWISE_ADD, lse, max, log_sum);

    const GraphTensor p = between(g, l->type, l->square, l->in_square);
    binary(g, "P = exp / sum", CUDNN_POINTWISE_DIV, p, e, sum);
    graph_matmul(g, "O = P V", out, p, v);
}

// y = x^T b, by way of a 16-bit transposed x. Where heads of k and v are shared, summed over the
// heads of q that read one, of a product in 16 bits for each of them.
static void transposed_matmul(CudnnGraph *g, const char *what, const Layouts *l, GraphTensor y,
                              GraphTensor x, GraphTensor b) {
    const GraphTensor xt = between(g, l->type, l->square, l->in_square_transposed);
    reshape(g, what, xt, x);
    if (!l->grouped) {
        graph_matmul(g, what, y, xt, b);
        return;
    }
    const GraphTensor of_each_head = between(g, l->type, l->rows, l->in_heads);
    graph_matmul(g, what, of_each_head, xt, b);
    reduce(g, what, CUDNN_REDUCE_TENSOR_ADD, y, of_each_head);
}

// D = rowsum(dO * O);  P = exp(mask(scale Q K^T - lse));  dV = P^T dO;  dS = P * (dO V^T - D) *
// scale;  dK = dS^T Q; dQ = dS K. 21 operations, one more with dQ collected, and two where heads of
// k and v are shared.
static void backward_graph(CudnnGraph *g, const Layouts *l, bool collected) {
    const GraphTensor q = supplied(g, CUDNN_Q, l->type, l->rows, l->in_qkv);
    const GraphTensor kt = supplied(g, CUDNN_K, l->type, l->kv_columns, l->in_qkv_transposed);
    const GraphTensor vt = supplied(g, CUDNN_V, l->type, l->kv_columns, l->in_qkv_transposed);
    const GraphTensor out = supplied(g, CUDNN_OUT, l->type, l->rows, l->in_out);
    const GraphTensor lse = supplied(g, CUDNN_LSE, CUDNN_DATA_FLOAT, l->per_row, l->in_rows);
    const GraphTensor dout = supplied(g, CUDNN_DOUT, l->type, l->rows, l->in_out);
    const GraphTensor dq = supplied(g, CUDNN_DQ, l->type, l->rows, l->in_qkv);
    const GraphTensor dk = supplied(g, CUDNN_DK, l->type, l->kv_rows, l->in_qkv);
    const GraphTensor dv = supplied(g, CUDNN_DV, l->type, l->kv_rows, l->in_qkv);
    const GraphTensor scale = constant(g, CUDNN_SCALE);

    // D is written to memory. The product by one takes the place of dropout's scale; without it
    // cuDNN still makes a plan, but one that keeps the product in a workspace of its own.
    const GraphTensor dsum = supplied(g, CUDNN_DSUM, CUDNN_DATA_FLOAT, l->per_row, l->in_rows);
    const GraphTensor product = between(g, CUDNN_DATA_FLOAT, l->rows, l->in_out),
                      sum = row_numbers(g, l);
    binary(g, "dO * O", CUDNN_POINTWISE_MUL, product, dout, out);
    reduce(g, "row sum of dO * O", CUDNN_REDUCE_TENSOR_ADD, sum, product);
    binary(g, "D = row sum * 1", CUDNN_POINTWISE_MUL, dsum, sum, constant(g, CUDNN_ONE));

    const GraphTensor products = scores(g, l), scaled = scores(g, l), shifted = scores(g, l),
                      p = scores(g, l);
    graph_matmul(g, "S = Q K^T", products, q, kt);
    binary(g, "S * scale", CUDNN_POINTWISE_MUL, scaled, products, scale);
    binary(g, "S - lse", CUDNN_POINTWISE_SUB, shifted, scaled, lse);
    unary(g, "P = exp", CUDNN_POINTWISE_EXP, p, causal_mask(g, l, shifted));
    transposed_matmul(g, "dV = P^T dO", l, dv, p, dout);

    const GraphTensor dp = scores(g, l), centred = scores(g, l), weighted = scores(g, l),
                      ds = scores(g, l);
    graph_matmul(g, "dP = dO V^T", dp, dout, vt);
    binary(g, "dP - D", CUDNN_POINTWISE_SUB, centred, dp, dsum);
    binary(g, "(dP - D) * P", CUDNN_POINTWISE_MUL, weighted, centred, p);
    binary(g, "dS = ... * scale", CUDNN_POINTWISE_MUL, ds, weighted, scale);
    transposed_matmul(g, "dK = dS^T Q", l, dk, ds, q);

    const GraphTensor k = between(g, CUDNN_DATA_FLOAT, l->kv_rows, l->in_qkv);
    reshape(g, "K of K^T", k, kt);
    if (!collected) {
        graph_matmul(g, "dQ = dS K", dq, ds, k);
        return;
    }
    const GraphTensor sums = supplied(g, CUDNN_DQ_SUMS, CUDNN_DATA_FLOAT, l->rows, l->in_heads);
    graph_matmul(g, "dQ sums = dS K", sums, ds, k);
    unary(g, "dQ = dQ sums", CUDNN_POINTWISE_IDENTITY, dq, sums);
}

// ---------------------------------------------------------------------------------------- lifetime

CudnnGraph *cudnn_graph_create(CudnnGraphKind kind, AttentionShape s, Error *err) {
    REQUIRE(s.dtype == DTYPE_BF16 || s.dtype == DTYPE_FP16, "cuDNN graph: %s", dtype_name(s.dtype));
    REQUIRE(s.HS * (int64_t)dtype_size(s.dtype) % ALIGNMENT == 0, "cuDNN graph: HS=%lld",
            (long long)s.HS);

    CudnnGraph *g = (CudnnGraph *)calloc(1, sizeof *g);
    if (!g) {
        error_set(err, "out of memory for a cuDNN graph");
        return NULL;
    }

    g->build.err = err;
    g->next_virtual = CUDNN_NUM_TENSORS;
    const int64_t B = s.B, T = s.T, NH = s.NH, NKV = s.NKV, HS = s.HS, C = NH * HS,
                  row = C + 2 * NKV * HS;
    Layouts layouts = {
        .type = CUDNN_DATA_HALF,
        .grouped = NKV != NH,
        .rows = {{B, NH, T, HS}},
        .kv_rows = {{B, NKV, T, HS}},
        .kv_columns = {{B, NKV, HS, T}},
        .in_qkv = {{T * row, HS, row, 1}},
        .in_qkv_transposed = {{T * row, HS, 1, row}},
        .in_out = {{T * C, HS, C, 1}},
        .in_heads = {{NH * T * HS, T * HS, HS, 1}},
        .square = {{B, NH, T, T}},
        .in_square = {{NH * T * T, T * T, T, 1}},
        .in_square_transposed = {{NH * T * T, T * T, 1, T}},
        .per_row = {{B, NH, T, 1}},
        .in_rows = {{NH * T, T, 1, 1}},
    };
    if (s.dtype == DTYPE_BF16) layouts.type = CUDNN_DATA_BFLOAT16;

    if (kind == CUDNN_FORWARD)
        forward_graph(g, &layouts);
    else
        backward_graph(g, &layouts, kind == CUDNN_BACKWARD_COLLECTED);

    g->build.what = "cuDNN graph";
    g->graph = graph_make(g, CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR);
    cudnn_set(&g->build, g->graph, CUDNN_ATTR_OPERATIONGRAPH_OPS, CUDNN_TYPE_BACKEND_DESCRIPTOR,
              g->num_operations, g->operations);
    cudnn_finalize(&g->build, g->graph);

    if (!g->build.failed) return g;
    cudnn_graph_destroy(g);
    return NULL;
}

// In reverse: descriptors that refer to others are destroyed first.
void cudnn_graph_destroy(CudnnGraph *g) {
    if (!g) return;
    for (int i = g->num_descriptors - 1; i >= 0; i--) cudnn_destroy(g->descriptors[i]);
    free(g);
}

Descriptor cudnn_graph_descriptor(const CudnnGraph *g) { return g->graph; }
bool cudnn_graph_has(const CudnnGraph *g, CudnnTensor tensor) { return g->supplied[tensor]; }

#endif
