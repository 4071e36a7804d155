// The same inputs give the same bits: from call to call, and in any order of execution. Orders are
// numbers of CPU threads or, where the CUDA simulator is linked, schedules: the order in which it
// runs the blocks of a grid and the threads of a block. With CPU threads the plain matmuls are
// exempt, as is the LM head, which is built on them: oneDNN cuts a product differently for another
// number of threads. So device_tuning names that number (test_device.c).
#include "test/ops/optimizer_case.h"

#include "test/ops/block_cases.h"

#include "dev/sim/sim_control.h"
#include "llmc/device.h"

TestFixture test_all = {op_group_setup, op_group_teardown};

enum { B = 3, T = 70, C = 72, NH = 3, N = B * T, V = 200, Vp = 256 };

// For updates: a small tensor beside one of several parts, of as many rows as make Adafactor cut it
// in groups.
enum { UPDATED = 2, UPDATED_COLS = 67 };
static const int64_t updated_rows[UPDATED] = {1, 1045};

static bool is_cpu(void) { return strcmp(device_facts()->backend, "cpu") == 0; }

static void begin(DType dtype, const char *what) {
    OpsShape shape = {.B = B,
                      .T = T,
                      .C = C,
                      .NH = NH,
                      .Vp = Vp,
                      .num_tensors = 2,
                      .sequences = B,
                      .factored = UPDATED_COLS * 2000,
                      .dtype = dtype};
    op_begin(shape, "bits of %s", what);
}

static uint64_t embedding_bits(DType dtype) {
    OpTensor tokens = op_tokens("tokens", DIMS(B, T), V),
             dout = op_input(dtype, "dout", DIMS(B, T, C), 1.0);
    OpTensor wte = op_input(dtype, "wte", DIMS(Vp, C), 1.0),
             wpe = op_input(dtype, "wpe", DIMS(T, C), 1.0);
    OpTensor dwte = op_inout(dtype, "dwte", DIMS(Vp, C), 1.0),
             dwpe = op_inout(dtype, "dwpe", DIMS(T, C), 1.0);
    OpTensor out = op_output(dtype, "out", DIMS(B, T, C));
    embedding_forward(out.t, tokens.t, wte.t, wpe.t);
    embedding_backward(gradient_to(dwte.t, true), gradient_to(dwpe.t, true), dout.t, tokens.t);
    return op_digest(op_digest(op_digest(0, out), dwte), dwpe);
}

static uint64_t embedding_norm_bits(DType dtype) {
    OpTensor tokens = op_tokens("tokens", DIMS(B, T), V),
             wte = op_input(dtype, "wte", DIMS(Vp, C), 0.02);
    OpTensor out = op_output(dtype, "out", DIMS(B, T, C)),
             dout = op_inout(dtype, "dout", DIMS(B, T, C), 1.0);
    embedding_norm_forward(out.t, tokens.t, wte.t, 1e-7f);
    embedding_norm_backward(dout.t, tokens.t, wte.t, 1e-7f);
    return op_digest(op_digest(0, out), dout);
}

static uint64_t layernorm_bits(DType dtype) {
    OpTensor in = op_input(dtype, "in", DIMS(N, C), 1.0),
             dout = op_input(dtype, "dout", DIMS(N, C), 1.0);
    OpTensor weight = op_input(dtype, "weight", DIMS(C), 1.0),
             bias = op_input(dtype, "bias", DIMS(C), 1.0);
    OpTensor out = op_output(dtype, "out", DIMS(N, C));
    OpTensor mean = op_output(DTYPE_FP32, "mean", DIMS(N)),
             rstd = op_output(DTYPE_FP32, "rstd", DIMS(N));
    OpTensor din = op_inout(dtype, "din", DIMS(N, C), 1.0),
             dbias = op_output(DTYPE_FP32, "dbias", DIMS(C));
    OpTensor dweight = op_output(DTYPE_FP32, "dweight", DIMS(C)),
             din_sum = op_output(DTYPE_FP32, "din_sum", DIMS(C));

    layernorm_forward(out.t, mean.t, rstd.t, in.t, weight.t, bias.t, 1e-5f);
    layernorm_backward(gradient_to(din.t, true), gradient_to(dweight.t, false),
                       gradient_to(dbias.t, false), gradient_to(din_sum.t, false), dout.t, in.t,
                       mean.t, rstd.t, weight.t);

    uint64_t forward = op_digest(op_digest(op_digest(0, out), mean), rstd);
    return op_digest(op_digest(op_digest(op_digest(forward, din), dweight), dbias), din_sum);
}

static uint64_t attention_bits(DType dtype) {
    OpTensor qkv = op_input(dtype, "qkv", DIMS(B, T, 3 * C), 1.0),
             dout = op_input(dtype, "dout", DIMS(B, T, C), 1.0);
    OpTensor out = op_output(dtype, "out", DIMS(B, T, C)),
             lse = op_output(DTYPE_FP32, "lse", DIMS(B, NH, T));
    OpTensor dqkv = op_output(dtype, "dqkv", DIMS(B, T, 3 * C)),
             dbias = op_inout(dtype, "dbias", DIMS(3 * C), 1.0);
    Gradient left = gradient_to(dbias.t, true);
    attention_forward(out.t, lse.t, qkv.t, heads_of(NH, NH));
    attention_backward(dqkv.t, dout.t, out.t, lse.t, qkv.t, heads_of(NH, NH), &left);
    return op_digest(op_digest(op_digest(op_digest(0, out), lse), dqkv), dbias);
}

// Two chunks of keys, so that blocks of one head add their parts; the second token reads what the
// first one stored.
static uint64_t decoding_bits(DType dtype) {
    OpTensor prompt = op_input(dtype, "prompt", DIMS(B, T - 2, 3 * C), 1.0);
    OpTensor qkv = op_input(dtype, "qkv", DIMS(B, 3 * C), 1.0),
             position = op_tokens("position", DIMS(1), 1);
    OpTensor cache = op_output(dtype, "cache", DIMS(B, 2 * NH, T, C / NH)),
             out = op_output(dtype, "out", DIMS(B, C));

    uint64_t digest = 0;
    kv_cache_store(cache.t, prompt.t, 0);
    for (int t = T - 2; t < T; t++) {
        position.tokens[0] = t;
        op_upload(&position);
        attention_decode(out.t, cache.t, qkv.t, position.t);
        digest = op_digest(digest, out);
    }
    return op_digest(digest, cache);
}

// The bits are of blocks after GPT-2; there are none where they cannot run.
static uint64_t blocks_bits(DType dtype) {
    enum { NKV = 2, QH = 4, HS = 18, COLUMNS = (QH + 2 * NKV) * HS };
    if (!is_cpu()) return 0;
    OpTensor in = op_input(dtype, "in", DIMS(N, C), 1.0),
             dout = op_input(dtype, "dout", DIMS(N, C), 1.0);
    OpTensor weight = op_input(dtype, "weight", DIMS(C), 1.0),
             out = op_output(dtype, "out", DIMS(N, C));
    OpTensor rstd = op_output(DTYPE_FP32, "rstd", DIMS(N)),
             din = op_inout(dtype, "din", DIMS(N, C), 1.0);
    OpTensor dweight = op_output(DTYPE_FP32, "dweight", DIMS(C)),
             din_sum = op_output(DTYPE_FP32, "din_sum", DIMS(C));
    rmsnorm_forward(out.t, rstd.t, in.t, weight.t, 1e-6f);
    rmsnorm_backward(gradient_to(din.t, true), gradient_to(dweight.t, false),
                     gradient_to(din_sum.t, false), dout.t, in.t, rstd.t, weight.t);
    uint64_t digest = op_digest(op_digest(op_digest(op_digest(0, out), din), dweight), din_sum);

    const QkShape c = {B, T, QH, NKV, HS, T};
    const QkWeights w = qk_weights(&c, dtype, true);
    OpTensor table = qk_table(&c, 10000.0f), qkv = op_input(dtype, "qkv", DIMS(B, T, COLUMNS), 1.0);
    OpTensor rotated = op_output(dtype, "rotated", DIMS(B, T, COLUMNS)),
             dqkv = op_output(dtype, "dqkv", DIMS(B, T, COLUMNS));
    OpTensor rstds = op_output(DTYPE_FP32, "rstd", DIMS(N, QH + NKV)),
             att = op_output(dtype, "att", DIMS(B, T, QH * HS));
    OpTensor lse = op_output(DTYPE_FP32, "lse", DIMS(B, QH, T)),
             datt = op_input(dtype, "datt", DIMS(B, T, QH * HS), 1.0);
    OpTensor dq = op_output(DTYPE_FP32, "dq", DIMS(HS)), dk = op_output(DTYPE_FP32, "dk", DIMS(HS));
    qk_norm_rope_forward(rotated.t, rstds.t, qkv.t, w.q.t, w.k.t, table.t, heads_of(QH, NKV), 1e-6f,
                         tensor_none());
    attention_forward(att.t, lse.t, rotated.t, heads_of(QH, NKV));
    attention_backward(dqkv.t, datt.t, att.t, lse.t, rotated.t, heads_of(QH, NKV), NULL);
    qk_norm_rope_backward(dqkv.t, gradient_to(dq.t, false), gradient_to(dk.t, false), qkv.t,
                          rstds.t, w.q.t, w.k.t, table.t, heads_of(QH, NKV));
    digest =
        op_digest(op_digest(op_digest(op_digest(op_digest(digest, rotated), att), dqkv), dq), dk);

    OpTensor narrow = op_output(dtype, "narrow", DIMS(N, C / 2)),
             wide = op_output(dtype, "wide", DIMS(N, C));
    OpTensor dbias = op_output(DTYPE_FP32, "dbias", DIMS(C)),
             squares = op_output(dtype, "squares", DIMS(N, C));
    swiglu_forward(narrow.t, in.t);
    swiglu_backward(wide.t, gradient_to(dbias.t, false), narrow.t, in.t);
    relu2_forward(squares.t, in.t);
    digest = op_digest(op_digest(op_digest(op_digest(digest, narrow), wide), dbias), squares);
    relu2_backward(squares.t, gradient_to(dbias.t, false), dout.t, in.t);
    return op_digest(op_digest(digest, squares), dbias);
}

// The digest of an update by this rule, with moments in dtype `kept`, and of what comes before it.
static uint64_t update_bits(DType dtype, UpdateRule rule, DType kept) {
    UpdateCase p[UPDATED];
    UpdateTensor tensors[UPDATED];
    for (int i = 0; i < UPDATED; i++) {
        p[i] = parameter_make((UpdateSpec){.rule = rule,
                                           .dtype = dtype,
                                           .grad = dtype,
                                           .state = kept,
                                           .rows = updated_rows[i],
                                           .cols = UPDATED_COLS,
                                           .weight_decay = 0.1f,
                                           .rate = 1.0f,
                                           .stream = i});
        tensors[i] = p[i].update;
    }

    const Tensor control = control_with(1.0f, SKIP_NONE);
    UpdateList list = update_list(tensors, UPDATED);
    adafactor_statistics(&list, control);
    momentum_update(&list, update_params, control);
    optimizer_update(&list, 0, UPDATED, update_params, control);
    update_list_free(&list);

    uint64_t digest = 0;
    for (int i = 0; i < UPDATED; i++) digest = parameter_digest(&p[i], digest);
    return digest;
}

static uint64_t adamw_bits(DType dtype) { return update_bits(dtype, RULE_ADAMW, DTYPE_FP32); }
static uint64_t adamw_bf16_bits(DType dtype) { return update_bits(dtype, RULE_ADAMW, DTYPE_BF16); }
static uint64_t adamw_8bit_bits(DType dtype) { return update_bits(dtype, RULE_ADAMW, DTYPE_U8); }
static uint64_t lion_bits(DType dtype) { return update_bits(dtype, RULE_LION, DTYPE_FP32); }
static uint64_t sgd_bits(DType dtype) { return update_bits(dtype, RULE_SGD, DTYPE_FP32); }
static uint64_t adafactor_bits(DType dtype) {
    return update_bits(dtype, RULE_ADAFACTOR, DTYPE_FP32);
}
static uint64_t muon_bits(DType dtype) { return update_bits(dtype, RULE_DIRECTION, DTYPE_FP32); }

static uint64_t norm_bits(DType dtype) {
    OpTensor small = op_input(dtype, "grad", DIMS(77), 1.0),
             large = op_input(dtype, "grad", DIMS(70001), 1.0);
    OpTensor sumsq = op_output(DTYPE_FP32, "sumsq", DIMS(2));
    const UpdateTensor tensors[2] = {{.grad = small.t}, {.grad = large.t}};
    UpdateList list = update_list(tensors, 2);
    gradient_sumsq(sumsq.t, &list);
    update_list_free(&list);
    return op_digest(0, sumsq);
}

static uint64_t small_bits(DType dtype) {
    OpTensor losses = op_input(DTYPE_FP32, "losses", DIMS(B, T), 1.0),
             sums = op_output(DTYPE_FP32, "sums", DIMS(B));
    OpTensor pre = op_input(dtype, "pre", DIMS(N, C), 1.0),
             gelu = op_output(dtype, "gelu", DIMS(N, C));
    OpTensor cast = op_output(DTYPE_FP32, "cast", DIMS(N, C)),
             sum = op_output(dtype, "sum", DIMS(N, C));
    OpTensor sumsq = op_input(DTYPE_FP32, "sumsq", DIMS(1), 0.0),
             unit = op_output(dtype, "unit", DIMS(1, N, C));

    sequence_losses(sums.t, losses.t, false);
    gelu_forward(gelu.t, pre.t);
    tensor_cast(cast.t, gelu.t);
    tensor_axpby(sum.t, 0.3f, pre.t, -1.7f, gelu.t);
    stack_gather(unit.t, &cast.t, sumsq.t);

    return op_digest(op_digest(op_digest(op_digest(op_digest(0, sums), gelu), cast), sum), unit);
}

static uint64_t matmul_bits(DType dtype) {
    OpTensor in = op_input(dtype, "in", DIMS(N, C), 1.0),
             weight = op_input(dtype, "weight", DIMS(4 * C, C), 0.1);
    OpTensor bias = op_input(dtype, "bias", DIMS(4 * C), 1.0),
             dout = op_input(dtype, "dout", DIMS(N, 4 * C), 1.0);
    OpTensor pre = op_output(dtype, "pre", DIMS(N, 4 * C)),
             out = op_output(dtype, "out", DIMS(N, 4 * C));
    OpTensor din = op_output(dtype, "din", DIMS(N, C)),
             dweight = op_output(DTYPE_FP32, "dweight", DIMS(4 * C, C));
    OpTensor dbias = op_output(DTYPE_FP32, "dbias", DIMS(4 * C)),
             dpre = op_output(dtype, "dpre", DIMS(N, C));

    matmul_gelu_forward(out.t, pre.t, in.t, weight.t, bias.t);
    matmul_backward_input(din.t, dout.t, weight.t);
    matmul_gelu_backward_input(dpre.t, dout.t, weight.t, in.t, NULL);
    matmul_backward_weight(gradient_to(dweight.t, false), gradient_to(dbias.t, false), dout.t,
                           in.t);

    uint64_t forward = op_digest(op_digest(0, out), pre);
    return op_digest(op_digest(op_digest(op_digest(forward, din), dpre), dweight), dbias);
}

static uint64_t head_bits(DType dtype) {
    OpTensor in = op_input(dtype, "in", DIMS(N, C), 1.0),
             wte = op_input(dtype, "wte", DIMS(Vp, C), 0.2);
    OpTensor targets = op_tokens("targets", DIMS(N), V),
             logits = op_output(dtype, "logits", DIMS(64, Vp));
    OpTensor losses = op_output(DTYPE_FP32, "losses", DIMS(N)),
             din = op_output(dtype, "din", DIMS(N, C));
    OpTensor dwte = op_output(DTYPE_FP32, "dwte", DIMS(Vp, C));
    head_loss_backward(losses.t, din.t, gradient_to(dwte.t, false), logits.t, in.t, wte.t,
                       targets.t, V, loss_scale_make(0.01f, tensor_none()));
    return op_digest(op_digest(op_digest(0, losses), din), dwte);
}

static const struct {
    const char *name;
    uint64_t (*bits)(DType dtype); // digest of everything the ops of a family wrote
    bool our_own;                  // on the CPU
} families[] = {
    {"embedding", embedding_bits, true},
    {"embedding_norm", embedding_norm_bits, true},
    {"layernorm", layernorm_bits, true},
    {"attention", attention_bits, true},
    {"decoding", decoding_bits, true},
    {"blocks after GPT-2", blocks_bits, true},
    {"gradient norm", norm_bits, true},
    {"small ops", small_bits, true},
    {"adamw", adamw_bits, true},
    {"adamw, bf16 states", adamw_bf16_bits, true},
    {"adamw, 8-bit states", adamw_8bit_bits, true},
    {"lion", lion_bits, true},
    {"sgd", sgd_bits, true},
    {"adafactor", adafactor_bits, true},
    {"muon's momentum", muon_bits, true},
    {"matmul", matmul_bits, false},
    {"head and loss", head_bits, false},
};
enum { NUM_FAMILIES = sizeof families / sizeof *families };

static uint64_t run(int family, DType dtype) {
    op_random_restart();
    begin(dtype, families[family].name);
    uint64_t digest = families[family].bits(dtype);
    op_end();
    return digest;
}

OP_TEST(every_op_gives_the_same_bits_twice) {
    for (int i = 0; i < NUM_FAMILIES; i++) {
        uint64_t first = run(i, dtype);
        if (run(i, dtype) != first) op_fail("%s: other bits on the second call", families[i].name);
    }
}

// The orders of this backend; 0 where there is nothing to vary.
static const struct {
    SimOrder schedule;
    uint64_t seed;
} schedules[] = {
    {SIM_FORWARD, 0}, {SIM_REVERSE, 0}, {SIM_RANDOM, 1}, {SIM_RANDOM, 2}, {SIM_RANDOM, 3}};
static const int thread_counts[] = {1, 2, 3, 5, 8};
enum {
    NUM_SCHEDULES = sizeof schedules / sizeof *schedules,
    NUM_THREAD_COUNTS = sizeof thread_counts / sizeof(int)
};

static int num_orders(void) {
    return is_cpu() ? NUM_THREAD_COUNTS : sim_set_schedule ? NUM_SCHEDULES : 0;
}

static void execute_in_order(int i) {
    if (is_cpu())
        op_restart_device((DeviceOptions){.threads = thread_counts[i]});
    else if (sim_set_schedule)
        sim_set_schedule(schedules[i].schedule, schedules[i].seed);
}
static void execute_in_usual_order(void) {
    if (is_cpu())
        op_restart_device((DeviceOptions){0});
    else if (sim_set_schedule)
        sim_set_schedule(SIM_ANY_ORDER, 0);
}

OP_TEST(ops_give_the_same_bits_in_any_order_of_execution) {
    if (num_orders() == 0) {
        print_message("a GPU runs threads in its own order\n");
        skip();
    }

    enum { MAX_ORDERS = 5 };
    uint64_t bits[MAX_ORDERS][NUM_FAMILIES] = {{0}};
    const bool all = !is_cpu();
    const int orders = num_orders();
    assert_true(orders <= MAX_ORDERS);

    for (int order = 0; order < orders; order++) {
        execute_in_order(order);
        for (int i = 0; i < NUM_FAMILIES; i++)
            if (all || families[i].our_own) bits[order][i] = run(i, dtype);
    }

    execute_in_usual_order();
    for (int order = 1; order < orders; order++)
        for (int i = 0; i < NUM_FAMILIES; i++)
            if ((all || families[i].our_own) && bits[order][i] != bits[0][i])
                op_fail("%s: other bits in execution order %d than in order 0", families[i].name,
                        order);
}
