// Every op of a training step in 2,000 random shapes against the specification. Shapes are drawn
// where kernels change their path: at multiples of vectors, warps, tiles and blocks, one below and
// one above them, at 1 and at primes. Cases go through the dtypes of the device in turn. The same
// TEST_SEED draws the same shapes and values; RANDOM_SHAPES=n: about n of them instead,
// RANDOM_SHAPES=0 none.
#include "test/ops/block_cases.h"

#include "llmc/base/arithmetic.h"
#include "llmc/base/random.h"
#include "test/ops/optimizer_case.h"

// ------------------------------------------------------------------------------------------- draws

static struct { uint64_t stream, count; } draws; // of this case

// Uniform in [0, n). One draw an expression: C leaves open which argument or member comes first.
static int64_t draw(int64_t n) {
    const Philox bits = philox(op_seed(), draws.stream, draws.count++);
    return (int64_t)(bits.v[0] % (uint64_t)n);
}
static bool flip(void) { return draw(2); }

// From 1 to `most`: a few; around a multiple of a vector, warp, tile or block; a prime; any.
static int64_t extent(int64_t most) {
    static const int64_t steps[] = {4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048};
    static const int64_t primes[] = {11,  13,  17,  31,  37,  61,   67,   97,  127,
                                     131, 251, 257, 509, 521, 1021, 1031, 2053};
    int64_t x = most + 1;
    while (x > most) {
        switch (draw(4)) {
        case 0:
            x = 1 + draw(9);
            break;
        case 1:
            x = steps[draw(sizeof steps / sizeof *steps)];
            x *= 1 + draw(4);
            x += draw(3) - 1;
            break;
        case 2:
            x = primes[draw(sizeof primes / sizeof *primes)];
            break;
        default:
            x = 1 + draw(most);
        }
    }
    return x;
}

// Half of them whole packs of 16 bytes in every dtype: only such rows take the kernels that load
// vectors.
static int64_t columns(int64_t most) {
    const int64_t x = extent(most);
    return flip() ? round_up(x, 8) : x;
}

// Multiplications, or elements where nothing is multiplied, of one case: a few cases are larger.
static int64_t budget(void) { return draw(8) ? 100000 : 500000; }

static DType gradient_dtype(DType dtype) { return flip() ? dtype : DTYPE_FP32; }

// V, or the next multiple of what trainers pad to.
static int64_t padded(int64_t V) {
    static const int64_t multiples[] = {1, 8, 64, 128};
    return round_up(V, multiples[draw(4)]);
}

// --------------------------------------------------------------------------------------------- ops

static EmbeddingShape embedding_shape(void) {
    const int64_t most = budget();
    EmbeddingShape s;
    do {
        s.B = extent(9), s.T = extent(300), s.C = columns(2100), s.V = extent(2000),
        s.Vp = padded(s.V);
        s.maxT = s.T + (flip() ? 0 : draw(9));
    } while ((s.B * s.T + s.Vp + s.maxT) * s.C > most);
    return s;
}
static void embedding_forward_random(DType dtype) {
    const EmbeddingShape s = embedding_shape();
    embedding_forward_case(&s, dtype);
}
static void embedding_backward_random(DType dtype) {
    const EmbeddingShape s = embedding_shape();
    const DType grad = gradient_dtype(dtype);
    embedding_backward_case(&s, dtype, grad, true, flip());
}
static void embedding_norm_random(DType dtype) {
    const EmbeddingShape s = embedding_shape();
    embedding_norm_case(&s, dtype, 0.02, flip());
}

static RowsShape rows_shape(void) {
    const int64_t most = budget();
    RowsShape s;
    do s.N = extent(1100), s.C = columns(4200);
    while (s.N * s.C > most);
    return s;
}
static void layernorm_forward_random(DType dtype) {
    const RowsShape s = rows_shape();
    layernorm_forward_case(&s, dtype);
}
static void layernorm_backward_random(DType dtype) {
    const RowsShape s = rows_shape();
    const DType grad = gradient_dtype(dtype);
    const int flags = (int)draw(16);
    layernorm_backward_case(&s, dtype, grad, flags);
}

static MatmulShape matmul_shape(void) {
    const int64_t most = budget();
    MatmulShape s;
    do s.N = extent(600), s.IC = columns(1100), s.OC = columns(600);
    while (s.N * s.IC * s.OC > most);
    return s;
}
static void matmul_forward_random(DType dtype) {
    const MatmulShape s = matmul_shape();
    matmul_forward_case(&s, dtype, flip());
}
static void matmul_residual_forward_random(DType dtype) {
    const MatmulShape s = matmul_shape();
    matmul_residual_case(&s, dtype);
}
static void matmul_gelu_forward_random(DType dtype) {
    const MatmulShape s = matmul_shape();
    matmul_gelu_forward_case(&s, dtype, flip());
}
static void matmul_backward_input_random(DType dtype) {
    const MatmulShape s = matmul_shape();
    matmul_backward_input_case(&s, dtype);
}
static void matmul_gelu_backward_input_random(DType dtype) {
    const MatmulShape s = matmul_shape();
    matmul_gelu_backward_input_case(&s, dtype);
}
static void matmul_backward_weight_random(DType dtype) {
    const MatmulShape s = matmul_shape();
    const DType grad = gradient_dtype(dtype);
    const int64_t flags = draw(4);
    matmul_backward_weight_case(&s, dtype, grad, flags & 1, flags & 2);
}

// At least 256 values in each tensor: what is left of few differences of probabilities has no
// typical size.
static HeadsShape heads_shape(void) {
    const int64_t most = 2 * budget(); // scores above the diagonal are not computed
    HeadsShape s;
    int64_t HS;
    do {
        HS = columns(192), s.B = extent(3), s.T = extent(80), s.NH = extent(5), s.C = s.NH * HS;
        if (s.B * s.T * s.C < 256) s.B = ceil_div(256, s.T * s.C);
    } while (s.B * s.NH * s.T * s.T * HS > most);
    s.NKV = s.NH;
    return s;
}
static void attention_forward_random(DType dtype) {
    const HeadsShape s = heads_shape();
    attention_forward_case(&s, dtype, 1.0, 1.0);
}
static void attention_backward_random(DType dtype) {
    const HeadsShape s = heads_shape();
    const DType grad = gradient_dtype(dtype);
    attention_backward_case(&s, dtype, grad, draw(2) == 1);
}

// ------------------------------------------------------------------------------ blocks after GPT-2

static void rmsnorm_forward_random(DType dtype) {
    const RowsShape s = rows_shape();
    rmsnorm_forward_case(&s, dtype);
}
static void rmsnorm_backward_random(DType dtype) {
    const RowsShape s = rows_shape();
    const DType grad = gradient_dtype(dtype);
    rmsnorm_backward_case(&s, dtype, grad, (int)draw(16));
}

static QkShape qk_shape(void) {
    const int64_t most = budget();
    QkShape s;
    do {
        s.HS = 2 * extent(140), s.B = extent(3), s.T = extent(120), s.NKV = extent(4);
        s.NH = s.NKV * (1 + draw(4));
        s.maxT = s.T + draw(9);
    } while (s.B * s.T * qk_columns(&s) > most);
    return s;
}
static void qk_norm_rope_forward_random(DType dtype) {
    const QkShape s = qk_shape();
    const int64_t first = draw(s.maxT - s.T + 1), flags = draw(4);
    qk_norm_rope_forward_case(&s, dtype, flags & 1, first, -1, flags & 2);
}
static void qk_norm_rope_backward_random(DType dtype) {
    const QkShape s = qk_shape();
    const DType grad = gradient_dtype(dtype);
    const int64_t flags = draw(4);
    qk_norm_rope_backward_case(&s, dtype, grad, flags & 1, flags & 2);
}

static void swiglu_random(DType dtype) {
    const RowsShape s = rows_shape();
    const DType grad = gradient_dtype(dtype);
    swiglu_forward_case(&s, dtype);
    swiglu_backward_case(&s, dtype, grad, (int)draw(8));
}
static void relu2_random(DType dtype) {
    const RowsShape s = rows_shape();
    const DType grad = gradient_dtype(dtype);
    relu2_forward_case(&s, dtype);
    relu2_backward_case(&s, dtype, grad, (int)draw(8));
}

static void shared_keys_random(DType dtype) {
    HeadsShape s = heads_shape();
    const DType grad = gradient_dtype(dtype);
    const int64_t group = 1 + draw(4); // heads of q for each head of k and v
    s.NH *= group;
    s.C *= group;
    attention_forward_case(&s, dtype, 1.0, 1.0);
    attention_backward_case(&s, dtype, grad, draw(2) == 1);
}

static HeadLossShape head_loss_shape(void) {
    const int64_t most = budget();
    HeadLossShape s;
    do {
        s.N = extent(200), s.C = columns(300), s.V = extent(2100), s.Vp = padded(s.V),
        s.R = extent(s.N + 5);
    } while (s.N * s.C * s.Vp > most);
    return s;
}
static void head_loss_forward_random(DType dtype) {
    const HeadLossShape s = head_loss_shape();
    head_loss_forward_case(&s, dtype, 1.0);
}
static void head_loss_backward_random(DType dtype) {
    const HeadLossShape s = head_loss_shape();
    const DType grad = gradient_dtype(dtype);
    const int64_t flags = draw(4);
    head_loss_backward_case(&s, dtype, grad, flags & 1, flags & 2 ? 16.0f : 1.0f);
}

static void gelu_forward_random(DType dtype) {
    const int64_t n = extent(10000);
    gelu_case(dtype, n, draw(9));
}
static void tensor_fill_random(DType dtype) {
    const int64_t n = extent(20000);
    fill_case(dtype, n, 0.1f, draw(9));
}
static void tensor_cast_random(DType dtype) {
    const DType other = op_dtypes[draw(3)], from = flip() ? dtype : other;
    const int64_t n = extent(20000);
    cast_case(from == dtype ? other : dtype, from, n, draw(9));
}
static void gradient_add_random(DType dtype) {
    const int64_t n = extent(10000), stream = draw(100);
    gradient_add_case(dtype, n, (int)stream, (uint32_t)draw(1 << 30));
}

static void gradient_sumsq_random(DType dtype) {
    static const int64_t most[4] = {20000, 3000, 300, 30};
    int64_t sizes[4];
    for (int i = 0; i < 4; i++) sizes[i] = extent(most[i]);
    sumsq_case(dtype, sizes, 1 + (int)draw(4));
}

static void tensor_statistics_random(DType dtype) {
    const int64_t n = extent(20000), skipped = draw(9);
    op_begin(elements_shape(dtype), "tensor_statistics %s of %d elements from %d",
             dtype_name(dtype), (int)n, (int)skipped);
    const OpTensor x = without_first(op_input(dtype, "x", DIMS(n + skipped), 0.02), skipped);
    stats_compare(x.t, x.v, op_dtypes[draw(3)]);
    op_end();
}

// AdamW of up to three tensors with every kind of state.
static void optimizer_update_random(DType dtype) {
    static const DType states[] = {DTYPE_FP32, DTYPE_BF16, DTYPE_U8};
    enum { MOST = 3 };
    UpdateCase p[MOST];
    UpdateTensor tensors[MOST];

    const int n = 1 + (int)draw(MOST);
    UpdateSpec spec = {.rule = RULE_ADAMW, .dtype = dtype, .grad = gradient_dtype(dtype)};
    spec.state = states[draw(3)];
    spec.keep = dtype == DTYPE_FP32 ? WEIGHT_ALONE : (Keep)draw(NUM_KEEPS);
    int64_t sizes[MOST] = {0};
    for (int i = 0; i < n; i++) sizes[i] = extent(i ? 1000 : 10000);

    op_begin(optimizer_shape(dtype, n, 0),
             "adamw %s, state %s, %s, gradient %s, %d + %d + %d elements", dtype_name(dtype),
             dtype_name(spec.state), keep_name(spec.keep), dtype_name(spec.grad), (int)sizes[0],
             (int)sizes[1], (int)sizes[2]);

    for (int i = 0; i < n; i++) {
        spec.rows = sizes[i], spec.weight_decay = flip() ? 0.1f : 0.0f, spec.rate = 0.5f + (float)i,
        spec.stream = 3 * i, spec.group = i % UPDATE_GROUPS;
        p[i] = parameter_make(spec);
        tensors[i] = p[i].update;
    }

    update_once(tensors, n, update_params, control_with(0.25f, SKIP_NONE));
    for (int i = 0; i < n; i++) parameter_expect_update(&p[i], update_params, 0.25f);
    op_end();
}

// ------------------------------------------------------------------------------------------- table

typedef struct {
    const char *op;
    void (*run_case)(DType dtype);
    int cases;
} RandomOp;

static const RandomOp ops[] = {
    {"embedding_forward", embedding_forward_random, 100},
    {"embedding_backward", embedding_backward_random, 120},
    {"layernorm_forward", layernorm_forward_random, 120},
    {"layernorm_backward", layernorm_backward_random, 160},
    {"matmul_forward", matmul_forward_random, 180},
    {"matmul_residual_forward", matmul_residual_forward_random, 120},
    {"matmul_gelu_forward", matmul_gelu_forward_random, 120},
    {"matmul_backward_input", matmul_backward_input_random, 120},
    {"matmul_gelu_backward_input", matmul_gelu_backward_input_random, 100},
    {"matmul_backward_weight", matmul_backward_weight_random, 160},
    {"gelu_forward", gelu_forward_random, 50},
    {"attention_forward", attention_forward_random, 120},
    {"attention_backward", attention_backward_random, 120},
    {"head_loss_forward", head_loss_forward_random, 50},
    {"head_loss_backward", head_loss_backward_random, 110},
    {"tensor_cast", tensor_cast_random, 40},
    {"tensor_fill", tensor_fill_random, 20},
    {"gradient_add", gradient_add_random, 40},
    {"gradient_sumsq", gradient_sumsq_random, 30},
    {"tensor_statistics", tensor_statistics_random, 30},
    {"optimizer_update", optimizer_update_random, 90},
    {"rmsnorm_forward", rmsnorm_forward_random, 60},
    {"rmsnorm_backward", rmsnorm_backward_random, 80},
    {"qk_norm_rope_forward", qk_norm_rope_forward_random, 80},
    {"qk_norm_rope_backward", qk_norm_rope_backward_random, 80},
    {"swiglu_forward, swiglu_backward", swiglu_random, 60},
    {"relu2_forward, relu2_backward", relu2_random, 40},
    {"attention of shared keys and values", shared_keys_random, 80},
    {"embedding_norm", embedding_norm_random, 60},
};
enum {
    NUM_OPS = sizeof ops / sizeof *ops,
    TOTAL = 2000
}; // TOTAL: of the ops of GPT-2, the first ones

static void matches_in_random_shapes(void **state) {
    const RandomOp *op = *state;
    const char *asked = getenv("RANDOM_SHAPES");
    const int64_t cases = op->cases * (asked ? strtoll(asked, NULL, 10) : TOTAL) / TOTAL;
    DType supported[3];
    int num_dtypes = 0;
    for (int i = 0; i < 3; i++)
        if (device_facts()->supports[op_dtypes[i]]) supported[num_dtypes++] = op_dtypes[i];

    for (int64_t i = 0; i < cases; i++) {
        // The streams are from 2^40 on, which no tensor has: one a case, so that a case draws the
        // same shape whatever ran before.
        draws.stream = (uint64_t)(op - ops + 1) << 40 | (uint64_t)i, draws.count = 0;
        op->run_case(supported[i % num_dtypes]);
    }
}

TestFixture test_all = {op_group_setup, op_group_teardown};

int main(void) {
    for (int i = 0; i < NUM_OPS; i++)
        test_add(i, (struct CMUnitTest){ops[i].op, matches_in_random_shapes, NULL, op_teardown,
                                        (void *)&ops[i]});
    return test_run();
}
