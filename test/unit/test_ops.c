// The front door of the ops (llmc/ops.c): every tensor of every op is checked, for being there, for
// its dtype and for its size, before the backend sees it. Calls are observed and not run: no tensor
// has data behind its address.
#include "llmc/ops.h"
#include "test/fixture.h"
#include "test/op_cost.h"

static char somewhere[2];

// No two of them are equal, so that one taken for another is noticed.
enum {
    B = 2,
    T = 4,
    NH = 3,
    HS = 5,
    C = NH * HS,
    OC = 7,
    Vp = 11,
    V = 9,
    MAX_T = 6,
    R = 3,
    N = B * T,
    W = 512
};
enum { QH = 6, KVH = 3, QHS = 4, PACKED = (QH + 2 * KVH) * QHS }; // heads that share k and v

#define TENSOR(name, dtype, ...)                                                                   \
    { somewhere, dtype, DIMS(__VA_ARGS__), {__VA_ARGS__}, name }
#define DIMS(...)            (int)(sizeof(int64_t[]){__VA_ARGS__} / sizeof(int64_t))
#define BF16(name, ...)      TENSOR(name, DTYPE_BF16, __VA_ARGS__)
#define FP32(name, ...)      TENSOR(name, DTYPE_FP32, __VA_ARGS__)
#define I32(name, ...)       TENSOR(name, DTYPE_I32, __VA_ARGS__)
#define BYTES_OF(name, type) TENSOR(name, DTYPE_U8, sizeof(type))

// --------------------------------------------------------------------------------------- the calls

static UpdateParams params;

// weight, master or compensation, gradient, then what the rule keeps.
static UpdateTensor updated(UpdateRule rule, const Tensor *t) {
    UpdateTensor u = {.weight = t[0], .master = t[1], .grad = t[2], .rule = rule};
    if (rule == RULE_ADAFACTOR)
        u.row = t[3], u.col = t[4], u.rms = t[5];
    else
        u.m = t[3], u.m_scale = t[4], u.v = t[5], u.v_scale = t[6];
    return u;
}

static UpdateTensor with_compensation(const Tensor *t) {
    return (UpdateTensor){
        .weight = t[0], .compensation = t[1], .grad = t[2], .rule = RULE_SGD, .m = t[3]};
}

#define LIST(u, count) (&(UpdateList){.tensors = u, .n = count})
#define CALL(name, ...)                                                                            \
    static void call_##name(const Tensor *t) { __VA_ARGS__; }
CALL(batch_unpack, batch_unpack(t[0], t[1], t[2]))
CALL(embedding_forward, embedding_forward(t[0], t[1], t[2], t[3]))
CALL(embedding_backward,
     embedding_backward(gradient_to(t[0], true), gradient_to(t[1], false), t[2], t[3]))
CALL(layernorm_forward, layernorm_forward(t[0], t[1], t[2], t[3], t[4], t[5], 1e-5f))
CALL(layernorm_backward, layernorm_backward(gradient_to(t[0], false), gradient_to(t[1], false),
                                            gradient_to(t[2], false), gradient_to(t[3], false),
                                            t[4], t[5], t[6], t[7], t[8]))
CALL(rmsnorm_forward, rmsnorm_forward(t[0], t[1], t[2], t[3], 1e-6f))
CALL(rmsnorm_backward, rmsnorm_backward(gradient_to(t[0], false), gradient_to(t[1], false),
                                        gradient_to(t[2], false), t[3], t[4], t[5], t[6]))
CALL(swiglu_forward, swiglu_forward(t[0], t[1]))
CALL(swiglu_backward, swiglu_backward(t[0], gradient_to(t[1], false), t[2], t[3]))
CALL(relu2_forward, relu2_forward(t[0], t[1]))
CALL(relu2_backward, relu2_backward(t[0], gradient_to(t[1], false), t[2], t[3]))
CALL(rope_table, rope_table(t[0], 10000.0f))
CALL(qk_norm_rope_forward,
     qk_norm_rope_forward(t[0], t[1], t[2], t[3], t[4], t[5], heads_of(QH, KVH), 1e-6f, t[6]))
CALL(rope_forward, Tensor no = tensor_none();
     qk_norm_rope_forward(t[0], no, t[1], no, no, t[2], heads_of(QH, KVH), 0, no))
CALL(qk_norm_rope_backward,
     qk_norm_rope_backward(t[0], gradient_to(t[1], false), gradient_to(t[2], false), t[3], t[4],
                           t[5], t[6], t[7], heads_of(QH, KVH)))
CALL(shared_forward, attention_forward(t[0], t[1], t[2], heads_of(QH, KVH)))
CALL(matmul_forward, matmul_forward(t[0], t[1], t[2], t[3]))
CALL(matmul_residual_forward, matmul_residual_forward(t[0], t[1], t[2], t[3], t[4]))
CALL(matmul_gelu_forward, matmul_gelu_forward(t[0], t[1], t[2], t[3], t[4]))
CALL(gelu_forward, gelu_forward(t[0], t[1]))
CALL(matmul_backward_input, matmul_backward_input(t[0], t[1], t[2]))
CALL(matmul_gelu_backward_input, Gradient dbias = gradient_to(t[4], false);
     matmul_gelu_backward_input(t[0], t[1], t[2], t[3], &dbias))
CALL(matmul_backward_weight,
     matmul_backward_weight(gradient_to(t[0], false), gradient_to(t[1], false), t[2], t[3]))
CALL(attention_forward, attention_forward(t[0], t[1], t[2], heads_of(NH, NH)))
CALL(attention_backward, Gradient dbias = gradient_to(t[5], false);
     attention_backward(t[0], t[1], t[2], t[3], t[4], heads_of(NH, NH), &dbias))
CALL(kv_cache_store, kv_cache_store(t[0], t[1], 0))
CALL(attention_decode, attention_decode(t[0], t[1], t[2], t[3]))
CALL(head_loss_forward, head_loss_forward(t[0], t[1], t[2], t[3], t[4], V))
CALL(head_loss_backward, head_loss_backward(t[0], t[1], gradient_to(t[2], false), t[3], t[4], t[5],
                                            t[6], V, loss_scale_make(1.0f, t[7])))
CALL(sequence_losses, sequence_losses(t[0], t[1], false))
CALL(gradient_sumsq, const UpdateTensor u[] = {{.grad = t[1]}, {.grad = t[2]}};
     gradient_sumsq(t[0], LIST(u, 2)))
CALL(step_control_update, step_control_update(t[0], t[1], t[2], 1, (StepLimits){0}))
CALL(adamw, const UpdateTensor u = updated(RULE_ADAMW, t);
     optimizer_update(LIST(&u, 1), 0, 1, params, t[7]))
CALL(lion, const UpdateTensor u = updated(RULE_LION, t);
     optimizer_update(LIST(&u, 1), 0, 1, params, t[5]))
CALL(kahan, const UpdateTensor u = with_compensation(t);
     optimizer_update(LIST(&u, 1), 0, 1, params, t[4]))
CALL(adafactor, const UpdateTensor u = updated(RULE_ADAFACTOR, t);
     optimizer_update(LIST(&u, 1), 0, 1, params, t[6]))
CALL(adafactor_statistics, const UpdateTensor u = updated(RULE_ADAFACTOR, t);
     adafactor_statistics(LIST(&u, 1), t[6]))
CALL(momentum_update, const UpdateTensor u = updated(RULE_DIRECTION, t);
     momentum_update(LIST(&u, 1), params, t[5]))
CALL(gradient_add, gradient_add(gradient_to(t[0], false), t[1], 0, 0, t[2]))
CALL(micro_step_count, micro_step_count(t[0], 1))
CALL(fp8_quantize, fp8_quantize(t[0], t[1], t[2], t[3], FP8_CURRENT))
CALL(fp8_matmul, Tensor added = t[1]; if (added.data) added.data = somewhere + 1;
     fp8_matmul(t[0], added, t[2], t[3], t[4], t[5], t[6]))
CALL(gelu_backward, gelu_backward(t[0], gradient_to(t[1], false), t[2], t[3]))
CALL(bias_backward, bias_backward(gradient_to(t[0], false), t[1]))
CALL(tensor_statistics, tensor_statistics(t[0], t[1], DTYPE_BF16))
CALL(tensor_fill, tensor_fill(t[0], 0.0f))
CALL(tensor_cast, tensor_cast(t[0], t[1]))
CALL(tensor_axpby, tensor_axpby(t[0], 1.0f, t[1], 1.0f, t[2]))
CALL(matmul_stack, matmul_stack(t[0], STACK_ABT, 1.0f, t[1], t[2], 1.0f, t[3]))
CALL(stack_gather, stack_gather(t[0], t + 1, t[3]))
CALL(stack_scatter, const float factors[2] = {1.0f, 2.0f}; stack_scatter(t + 1, t[0], factors))

// A call as it should be. Letters of the tensors that may be absent, and of those that may have one
// row more.
typedef struct {
    const char *op;
    void (*call)(const Tensor *t);
    const char *optional, *any_rows;
    Tensor t[10]; // at most 9, and an end
} Case;

#define ACT(name)  BF16(name, B, T, C)
#define STAT(name) FP32(name, N)
#define CONTROL    BYTES_OF("control", StepControl)
#define SLOT       BYTES_OF("slot", Fp8Slot)
static const Case cases[] = {
    {"batch_unpack",
     call_batch_unpack,
     "",
     "",
     {I32("a", B, T), I32("b", B, T), I32("c", B, T + 1)}},
    {"embedding_forward",
     call_embedding_forward,
     "d",
     "cd",
     {ACT("a"), I32("b", B, T), BF16("c", Vp, C), BF16("d", MAX_T, C)}},
    {"embedding_backward",
     call_embedding_backward,
     "b",
     "ab",
     {FP32("a", Vp, C), FP32("b", MAX_T, C), ACT("c"), I32("d", B, T)}},
    {"layernorm_forward",
     call_layernorm_forward,
     "",
     "",
     {ACT("a"), STAT("b"), STAT("c"), ACT("d"), BF16("e", C), BF16("f", C)}},
    {"layernorm_backward",
     call_layernorm_backward,
     "d",
     "",
     {ACT("a"), FP32("b", C), BF16("c", C), FP32("d", C), ACT("e"), ACT("f"), STAT("g"), STAT("h"),
      BF16("i", C)}},
    {"rmsnorm_forward",
     call_rmsnorm_forward,
     "",
     "",
     {ACT("a"), STAT("b"), ACT("c"), BF16("d", C)}},
    {"rmsnorm_backward",
     call_rmsnorm_backward,
     "c",
     "",
     {ACT("a"), FP32("b", C), BF16("c", C), ACT("d"), ACT("e"), STAT("f"), BF16("g", C)}},
    {"swiglu_forward", call_swiglu_forward, "", "", {ACT("a"), BF16("b", N, 2 * C)}},
    {"swiglu_backward",
     call_swiglu_backward,
     "b",
     "",
     {BF16("a", N, 2 * C), FP32("b", 2 * C), ACT("c"), BF16("d", N, 2 * C)}},
    {"relu2_forward", call_relu2_forward, "", "", {ACT("a"), ACT("b")}},
    {"relu2_backward", call_relu2_backward, "b", "", {ACT("a"), FP32("b", C), ACT("c"), ACT("d")}},
    {"rope_table", call_rope_table, "", "a", {FP32("a", MAX_T, 2, QHS / 2)}},
    {"qk_norm_rope_forward",
     call_qk_norm_rope_forward,
     "g",
     "f",
     {BF16("a", B, T, PACKED), FP32("b", N, QH + KVH), BF16("c", B, T, PACKED), BF16("d", QHS),
      BF16("e", QHS), FP32("f", MAX_T, 2, QHS / 2), I32("g", 1)}},
    {"qk_norm_rope_forward",
     call_rope_forward,
     "",
     "c",
     {BF16("a", B, T, PACKED), BF16("b", B, T, PACKED), FP32("c", MAX_T, 2, QHS / 2)}},
    {"qk_norm_rope_backward",
     call_qk_norm_rope_backward,
     "",
     "h",
     {BF16("a", B, T, PACKED), FP32("b", QHS), BF16("c", QHS), BF16("d", B, T, PACKED),
      FP32("e", N, QH + KVH), BF16("f", QHS), BF16("g", QHS), FP32("h", MAX_T, 2, QHS / 2)}},
    {"attention_forward",
     call_shared_forward,
     "",
     "",
     {BF16("a", N, QH *QHS), FP32("b", B, QH, T), BF16("c", B, T, PACKED)}},
    {"kv_cache_store",
     call_kv_cache_store,
     "",
     "b",
     {BF16("a", B, 2 * KVH, MAX_T, QHS), BF16("b", B, T, PACKED)}},
    {"attention_decode",
     call_attention_decode,
     "",
     "",
     {BF16("a", B, QH *QHS), BF16("b", B, 2 * KVH, MAX_T, QHS), BF16("c", B, PACKED), I32("d", 1)}},
    {"matmul_forward",
     call_matmul_forward,
     "d",
     "",
     {BF16("a", N, OC), ACT("b"), BF16("c", OC, C), BF16("d", OC)}},
    {"matmul_residual_forward",
     call_matmul_residual_forward,
     "e",
     "",
     {BF16("a", N, OC), BF16("b", N, OC), ACT("c"), BF16("d", OC, C), BF16("e", OC)}},
    {"matmul_gelu_forward",
     call_matmul_gelu_forward,
     "",
     "",
     {BF16("a", N, OC), BF16("b", N, OC), ACT("c"), BF16("d", OC, C), BF16("e", OC)}},
    {"gelu_forward", call_gelu_forward, "", "", {ACT("a"), ACT("b")}},
    {"matmul_backward_input",
     call_matmul_backward_input,
     "",
     "",
     {ACT("a"), BF16("b", N, OC), BF16("c", OC, C)}},
    {"matmul_gelu_backward_input",
     call_matmul_gelu_backward_input,
     "e",
     "",
     {ACT("a"), BF16("b", N, OC), BF16("c", OC, C), ACT("d"), FP32("e", C)}},
    {"matmul_backward_weight",
     call_matmul_backward_weight,
     "b",
     "",
     {FP32("a", OC, C), BF16("b", OC), BF16("c", N, OC), ACT("d")}},
    {"attention_forward",
     call_attention_forward,
     "",
     "",
     {ACT("a"), FP32("b", B, NH, T), BF16("c", B, T, 3 * C)}},
    {"attention_backward",
     call_attention_backward,
     "f",
     "",
     {BF16("a", B, T, 3 * C), ACT("b"), ACT("c"), FP32("d", B, NH, T), BF16("e", B, T, 3 * C),
      FP32("f", 3 * C)}},
    {"kv_cache_store",
     call_kv_cache_store,
     "",
     "b",
     {BF16("a", B, 2 * NH, MAX_T, HS), BF16("b", B, T, 3 * C)}},
    {"attention_decode",
     call_attention_decode,
     "",
     "",
     {BF16("a", B, C), BF16("b", B, 2 * NH, MAX_T, HS), BF16("c", B, 3 * C), I32("d", 1)}},
    {"head_loss_forward",
     call_head_loss_forward,
     "",
     "b",
     {STAT("a"), BF16("b", R, Vp), ACT("c"), BF16("d", Vp, C), I32("e", N)}},
    {"head_loss_backward",
     call_head_loss_backward,
     "h",
     "d",
     {STAT("a"), ACT("b"), FP32("c", Vp, C), BF16("d", R, Vp), ACT("e"), BF16("f", Vp, C),
      I32("g", N), CONTROL}},
    {"sequence_losses", call_sequence_losses, "", "", {FP32("a", 3), FP32("b", 3, 5)}},
    {"gradient_sumsq", call_gradient_sumsq, "", "bc", {FP32("a", 2), FP32("b", W), BF16("c", W)}},
    {"step_control_update",
     call_step_control_update,
     "",
     "bc",
     {CONTROL, FP32("b", 5), FP32("c", 3)}},
    {"optimizer_update",
     call_adamw,
     "b",
     "",
     {BF16("a", W), FP32("b", W), FP32("c", W), TENSOR("d", DTYPE_U8, W), FP32("e", 2),
      TENSOR("f", DTYPE_U8, W), FP32("g", 2), CONTROL}},
    {"optimizer_update",
     call_lion,
     "b",
     "",
     {BF16("a", W), FP32("b", W), BF16("c", W), TENSOR("d", DTYPE_U8, W), FP32("e", 2), CONTROL}},
    {"optimizer_update",
     call_kahan,
     "b",
     "",
     {BF16("a", W), BF16("b", W), FP32("c", W), BF16("d", W), CONTROL}},
    {"optimizer_update",
     call_adafactor,
     "b",
     "de",
     {BF16("a", 32, 16), FP32("b", 32, 16), FP32("c", 32, 16), FP32("d", 32), FP32("e", 16),
      FP32("f", 1), CONTROL}},
    {"adafactor_statistics",
     call_adafactor_statistics,
     "b",
     "",
     {BF16("a", 32, 16), FP32("b", 32, 16), FP32("c", 32, 16), FP32("d", 32), FP32("e", 16),
      FP32("f", 1), CONTROL}},
    {"momentum_update",
     call_momentum_update,
     "b",
     "",
     {BF16("a", W), FP32("b", W), FP32("c", W), TENSOR("d", DTYPE_U8, W), FP32("e", 2), CONTROL}},
    {"gradient_add", call_gradient_add, "", "", {BF16("a", W), FP32("b", W), CONTROL}},
    {"micro_step_count", call_micro_step_count, "", "", {CONTROL}},
    {"fp8_quantize",
     call_fp8_quantize,
     "ab",
     "",
     {TENSOR("a", DTYPE_E4M3, 32, 48), TENSOR("b", DTYPE_E4M3, 48, 32), BF16("c", 32, 48), SLOT}},
    {"fp8_matmul",
     call_fp8_matmul,
     "bg",
     "",
     {BF16("a", 32, 16), BF16("b", 32, 16), TENSOR("c", DTYPE_E4M3, 32, 48), SLOT,
      TENSOR("e", DTYPE_E5M2, 16, 48), SLOT, BF16("g", 16)}},
    {"gelu_backward", call_gelu_backward, "b", "", {ACT("a"), FP32("b", C), ACT("c"), ACT("d")}},
    {"bias_backward", call_bias_backward, "", "b", {FP32("a", OC), BF16("b", N, OC)}},
    {"tensor_statistics",
     call_tensor_statistics,
     "",
     "b",
     {BYTES_OF("a", TensorStats), BF16("b", W)}},
    {"tensor_fill", call_tensor_fill, "", "a", {BF16("a", W)}},
    {"tensor_cast", call_tensor_cast, "", "", {BF16("a", W), FP32("b", W)}},
    {"tensor_axpby", call_tensor_axpby, "", "", {BF16("a", W), BF16("b", W), BF16("c", W)}},
    {"matmul_stack",
     call_matmul_stack,
     "d",
     "",
     {BF16("a", 2, 8, 4), BF16("b", 2, 8, 16), BF16("c", 2, 4, 16), BF16("d", 2, 8, 4)}},
    {"stack_gather",
     call_stack_gather,
     "",
     "",
     {BF16("a", 2, W), FP32("b", W), FP32("c", W), FP32("d", 2)}},
    {"stack_scatter", call_stack_scatter, "", "", {BF16("a", 2, W), FP32("b", W), FP32("c", W)}},
};
enum { NUM_CASES = sizeof cases / sizeof *cases };

// ------------------------------------------------------------------------------------------- tests

TEST(a_call_with_good_arguments_is_shown_once_under_its_name) {
    for (int i = 0; i < NUM_CASES; i++) {
        const OpCost cost = COST_OF(cases[i].call(cases[i].t));
        assert_string_equal(cost.op, cases[i].op);
        assert_true(cost.bytes > 0);
    }
}

static int observed(void *context) {
    const Case *c = context;
    cost_begin();
    c->call(c->t);
    return 0;
}

// The program stops and names the op, unless the op takes it.
static void assert_refused(const Case *c, int tensor, const char *wrong, bool taken) {
    char said[1024];
    const int status = status_of_child(observed, (void *)c, said, sizeof said);
    if (taken ? status == 0 : WIFSIGNALED(status) && strstr(said, c->op)) return;
    fail_msg("%s, tensor %c, %s: status %d, %s", c->op, 'a' + tensor, wrong, status, said);
}

TEST(every_tensor_of_every_op_is_checked) {
    for (int i = 0; i < NUM_CASES; i++)
        for (int k = 0; cases[i].t[k].name; k++) {
            Case c = cases[i];
            c.t[k].data = NULL;
            assert_refused(&c, k, "absent", strchr(c.optional, 'a' + k) != NULL);

            c = cases[i];
            c.t[k].dtype = c.t[k].dtype == DTYPE_I32 ? DTYPE_U8 : DTYPE_I32;
            if (strcmp(c.op, "batch_unpack") != 0) assert_refused(&c, k, "of another dtype", false);

            c = cases[i];
            c.t[k].shape[0]++;
            assert_refused(&c, k, "one longer", strchr(c.any_rows, 'a' + k) != NULL);
        }
}

CALL(fp16, gelu_forward(t[0], t[0]))
CALL(fp16_row, layernorm_forward(t[0], t[1], t[1], t[0], t[0], t[0], 1e-5f))
CALL(two_thirds, layernorm_forward(t[0], t[1], t[2], t[3], t[4], t[5], 1e-5f))
CALL(flat_cache, kv_cache_store(t[0], t[1], 0))
CALL(no_rows, head_loss_forward(t[0], t[1], t[2], t[3], t[4], V))
CALL(long_gradient,
     embedding_backward(gradient_to(t[0], true), gradient_to(t[1], false), t[2], t[3]))
CALL(odd_heads, attention_forward(t[0], t[1], t[2], heads_of(NH + 1, NH + 1)))
CALL(flat_qkv, attention_forward(t[0], t[1], t[2], heads_of(NH, NH)))
CALL(unshared, attention_forward(t[0], t[1], t[2], heads_of(QH, KVH + 1)))
CALL(odd_head, rope_table(t[0], 1.0f))
CALL(other_heads,
     qk_norm_rope_forward(t[0], t[0], t[0], t[1], t[1], t[2], heads_of(QH, KVH), 0, tensor_none()))
CALL(one_weight, qk_norm_rope_forward(t[0], t[0], t[0], t[1], tensor_none(), t[2],
                                      heads_of(QH, KVH), 0, tensor_none()))
CALL(short_table, Tensor no = tensor_none();
     qk_norm_rope_forward(t[0], no, t[0], no, no, t[1], heads_of(QH, KVH), 0, no))
CALL(late_store, kv_cache_store(t[0], t[1], MAX_T - T + 1))
CALL(early_store, kv_cache_store(t[0], t[1], -1))
CALL(large_vocabulary, head_loss_forward(t[0], t[1], t[2], t[3], t[4], Vp + 1))
CALL(long_context, embedding_forward(t[0], t[1], t[2], t[3]))
CALL(two_of_one, const UpdateTensor u = with_compensation(t);
     optimizer_update(LIST(&u, 1), 0, 2, params, t[4]))
CALL(odd_offset, UpdateTensor u = with_compensation(t); u.offset = 1;
     optimizer_update(LIST(&u, 1), 0, 1, params, t[4]))
CALL(both_copies, UpdateTensor u = with_compensation(t); u.master = t[2];
     optimizer_update(LIST(&u, 1), 0, 1, params, t[4]))
CALL(no_rule, UpdateTensor u = with_compensation(t); u.rule = RULE_COUNT;
     optimizer_update(LIST(&u, 1), 0, 1, params, t[4]))
CALL(two_dtypes, UpdateTensor u[] = {with_compensation(t), with_compensation(t)};
     u[1].weight.dtype = DTYPE_FP32; optimizer_update(LIST(u, 2), 0, 2, params, t[4]))
CALL(slice, UpdateTensor u = updated(RULE_ADAFACTOR, t); u.offset = STATE_BLOCK;
     adafactor_statistics(LIST(&u, 1), t[6]))
CALL(padding, UpdateTensor u = updated(RULE_ADAFACTOR, t); u.padding = W;
     adafactor_statistics(LIST(&u, 1), t[6]))
CALL(odd_rows, fp8_quantize(t[0], tensor_none(), t[1], t[2], FP8_KEEP))
CALL(nothing, fp8_quantize(tensor_none(), tensor_none(), t[0], t[1], FP8_KEEP))
CALL(master_of_fp32, const UpdateTensor u = updated(RULE_LION, t);
     optimizer_update(LIST(&u, 1), 0, 1, params, t[5]))
CALL(no_bias, fp8_matmul(t[0], tensor_none(), t[1], t[2], t[3], t[2], tensor_none()))
CALL(two_gradients, fp8_matmul(t[0], tensor_none(), t[1], t[2], t[1], t[2], tensor_none()))
CALL(bias_twice, fp8_matmul(t[0], t[0], t[1], t[2], t[3], t[2], t[4]))

TEST(what_no_tensor_alone_shows_is_checked_as_well) {
    static const struct {
        const char *words;
        Case c;
    } wrong[] = {
        {"no compute dtype", {"gelu_forward", call_fp16, "", "", {TENSOR("x", DTYPE_FP16, W)}}},
        {"no compute dtype",
         {"layernorm_forward", call_fp16_row, "", "", {TENSOR("x", DTYPE_FP16, C), FP32("y", 1)}}},
        {"d is (2, 4, 16) bf16, expected 120 elements",
         {"layernorm_forward",
          call_two_thirds,
          "",
          "",
          {ACT("a"), STAT("b"), STAT("c"), BF16("d", B, T, C + 1), BF16("e", C), BF16("f", C)}}},
        {"is not (B,2NKV,maxT,HS)",
         {"kv_cache_store",
          call_flat_cache,
          "",
          "",
          {BF16("a", B, 7, MAX_T, HS), BF16("b", B, T, 3 * C)}}},
        {"logits are not (R, 11)",
         {"head_loss_forward",
          call_no_rows,
          "",
          "",
          {STAT("a"), BF16("b", 0, Vp), ACT("c"), BF16("d", Vp, C), I32("e", N)}}},
        {"T = 4, b has 3 rows",
         {"embedding_backward",
          call_long_gradient,
          "",
          "",
          {FP32("a", Vp, C), FP32("b", 3, C), ACT("c"), I32("d", B, T)}}},
        {"not (4 + 2 * 4) * HS",
         {"attention_forward",
          call_odd_heads,
          "",
          "",
          {ACT("a"), FP32("b", B, NH, T), BF16("c", B, T, 3 * C)}}},
        {"expected (B,T,columns)",
         {"attention_forward",
          call_flat_qkv,
          "",
          "",
          {ACT("a"), FP32("b", B, NH, T), BF16("c", N, 3 * C)}}},
        {"6 heads share k and v of 4 heads",
         {"attention_forward",
          call_unshared,
          "",
          "",
          {ACT("a"), FP32("b", B, NH, T), BF16("c", B, T, PACKED)}}},
        {"is not (maxT,2,HS/2)", {"rope_table", call_odd_head, "", "", {FP32("a", MAX_T, 3, 2)}}},
        {"heads of 4, table for heads of 6",
         {"qk_norm_rope_forward",
          call_other_heads,
          "",
          "",
          {BF16("a", B, T, PACKED), BF16("b", QHS), FP32("c", MAX_T, 2, 3)}}},
        {"one weight of two",
         {"qk_norm_rope_forward",
          call_one_weight,
          "",
          "",
          {BF16("a", B, T, PACKED), BF16("b", QHS), FP32("c", MAX_T, 2, QHS / 2)}}},
        {"T = 4, b has 3 rows",
         {"qk_norm_rope_forward",
          call_short_table,
          "",
          "",
          {BF16("a", B, T, PACKED), FP32("b", T - 1, 2, QHS / 2)}}},
        {"positions 3 to 7 in a cache of 6",
         {"kv_cache_store",
          call_late_store,
          "",
          "",
          {BF16("a", B, 2 * NH, MAX_T, HS), BF16("b", B, T, 3 * C)}}},
        {"positions -1 to 3",
         {"kv_cache_store",
          call_early_store,
          "",
          "",
          {BF16("a", B, 2 * NH, MAX_T, HS), BF16("b", B, T, 3 * C)}}},
        {"vocabulary 12 of 11",
         {"head_loss_forward",
          call_large_vocabulary,
          "",
          "",
          {STAT("a"), BF16("b", R, Vp), ACT("c"), BF16("d", Vp, C), I32("e", N)}}},
        {"T = 4, d has 3 rows",
         {"embedding_forward",
          call_long_context,
          "",
          "",
          {ACT("a"), I32("b", B, T), BF16("c", Vp, C), BF16("d", 3, C)}}},
#define UPDATED {BF16("a", W), BF16("b", W), FP32("c", W), BF16("d", W), CONTROL}
        {"tensors 0 .. 2 of 1", {"optimizer_update", call_two_of_one, "", "", UPDATED}},
        {"begins at element 1", {"optimizer_update", call_odd_offset, "", "", UPDATED}},
        {"has a master and a compensation",
         {"optimizer_update", call_both_copies, "", "", UPDATED}},
        {"has rule", {"optimizer_update", call_no_rule, "", "", UPDATED}},
        {"expected dtype bf16", {"optimizer_update", call_two_dtypes, "", "", UPDATED}},
        {"is fp32 and has a master or a compensation",
         {"optimizer_update",
          call_master_of_fp32,
          "",
          "",
          {FP32("a", W), FP32("b", W), FP32("c", W), FP32("d", W), FP32("e", 2), CONTROL}}},
#define FACTORED                                                                                   \
    {BF16("a", 32, 16),                                                                            \
     FP32("b", 32, 16),                                                                            \
     FP32("c", 32, 16),                                                                            \
     FP32("d", 32),                                                                                \
     FP32("e", 16),                                                                                \
     FP32("f", 1),                                                                                 \
     CONTROL}
        {"of a, a matrix of 32 x 16", {"adafactor_statistics", call_slice, "", "", FACTORED}},
        {"512 elements of a are padding", {"adafactor_statistics", call_padding, "", "", FACTORED}},
        {"is bf16, not fp8",
         {"fp8_quantize", call_odd_rows, "", "", {BF16("a", 32, 48), BF16("b", 32, 48), SLOT}}},
        {"is 32 x 40, not in multiples of 16",
         {"fp8_quantize",
          call_odd_rows,
          "",
          "",
          {TENSOR("a", DTYPE_E4M3, 32, 40), BF16("b", 32, 40), SLOT}}},
        {"no output", {"fp8_quantize", call_nothing, "", "", {BF16("a", 32, 48), SLOT}}},
        {"is absent or not of a floating dtype",
         {"fp8_matmul",
          call_no_bias,
          "",
          "",
          {I32("a", 32, 16), TENSOR("b", DTYPE_E4M3, 32, 48), SLOT,
           TENSOR("d", DTYPE_E5M2, 16, 48)}}},
        {"expected 768 elements",
         {"fp8_matmul",
          call_no_bias,
          "",
          "",
          {BF16("a", 32, 16), TENSOR("b", DTYPE_E4M3, 32, 48), SLOT,
           TENSOR("d", DTYPE_E5M2, 16, 64)}}},
        {"are both e5m2",
         {"fp8_matmul",
          call_two_gradients,
          "",
          "",
          {BF16("a", 32, 32), TENSOR("b", DTYPE_E5M2, 32, 48), SLOT}}},
        {"a bias is added once",
         {"fp8_matmul",
          call_bias_twice,
          "",
          "",
          {BF16("a", 32, 16), TENSOR("b", DTYPE_E4M3, 32, 48), SLOT,
           TENSOR("d", DTYPE_E5M2, 16, 48), BF16("e", 16)}}},
    };

    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        char said[1024];
        const int status = status_of_child(observed, (void *)&wrong[i].c, said, sizeof said);
        if (!WIFSIGNALED(status) || !strstr(said, wrong[i].c.op) || !strstr(said, wrong[i].words))
            fail_msg("expected \"%s\": status %d, %s", wrong[i].words, status, said);
    }
}
