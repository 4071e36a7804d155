// The profile's arithmetic: FLOPs and bytes of ops, their sum over a step against recompute.h, and
// the table made of timed ops.
#include "llmc/base/file.h"
#include "llmc/log/profile_table.h"
#include "llmc/model/parameters.h"
#include "test/fixture.h"
#include "test/op_cost.h"

#include <math.h>

TestFixture test_each = {tmp_setup, tmp_teardown};

static void assert_near(double x, double expected, double tolerance) {
    if (!(fabs(x - expected) <= tolerance)) fail_msg("%.17g, not %.17g", x, expected);
}

static char somewhere[1]; // costs never look at data, only whether there are any

static Tensor tensor(const char *name, DType dtype, int64_t d0, int64_t d1, int64_t d2) {
    return tensor_make(somewhere, dtype, name, d0, d1, d2, 0);
}

// ------------------------------------------------------------------------------------------- FLOPs

// The ops of a step that compute FLOPs, as gpt2.c calls them.
static double step_flops(const ModelConfig *c, int64_t B, int64_t T, bool recompute_blocks,
                         double *attention) {
    const int64_t C = c->C, N = B * T;
    const DType t = DTYPE_BF16;
    Tensor none = tensor_none();
    Tensor x = tensor("x", t, B, T, C), x3 = tensor("x3", t, B, T, 3 * C),
           x4 = tensor("x4", t, B, T, 4 * C);
    Tensor qkvw = tensor("qkvw", t, 3 * C, C, 0), projw = tensor("projw", t, C, C, 0);
    Tensor fcw = tensor("fcw", t, 4 * C, C, 0), fcprojw = tensor("fcprojw", t, C, 4 * C, 0);
    Tensor lse = tensor("lse", DTYPE_FP32, B, c->NH, T), wte = tensor("wte", t, c->Vp, C, 0);
    const int NH = (int)c->NH;
    Tensor fcb = tensor("fcb", t, 4 * C, 0, 0);
    const double forward =
        COST_OF(matmul_forward(x3, x, qkvw, none), attention_forward(x, lse, x3, heads_of(NH, NH)),
                matmul_forward(x, x, projw, none), matmul_gelu_forward(x4, x4, x, fcw, fcb))
            .flops;
    const double last = COST_OF(matmul_forward(x, x4, fcprojw, none)).flops;
    *attention = COST_OF(attention_backward(x3, x, x, lse, x3, heads_of(NH, NH), NULL)).flops;
    const double backward =
        *attention +
        COST_OF(matmul_backward_weight(gradient_to(fcprojw, false), gradient_none(), x, x4),
                matmul_gelu_backward_input(x4, x, fcprojw, x4, NULL),
                matmul_backward_weight(gradient_to(fcw, false), gradient_none(), x4, x),
                matmul_backward_input(x, x4, fcw),
                matmul_backward_weight(gradient_to(projw, false), gradient_none(), x, x),
                matmul_backward_input(x, x, projw),
                matmul_backward_weight(gradient_to(qkvw, false), gradient_none(), x3, x),
                matmul_backward_input(x, x3, qkvw))
            .flops;
    Tensor losses = tensor("losses", DTYPE_FP32, N, 0, 0),
           targets = tensor("targets", DTYPE_I32, N, 0, 0);
    Tensor logits = tensor("logits", t, 1, c->Vp, 0);
    const double head = COST_OF(head_loss_backward(losses, x, gradient_to(wte, false), logits, x,
                                                   wte, targets, c->V, loss_scale_make(1.0f, none)))
                            .flops;
    *attention *= (double)c->L;
    return (double)c->L * (forward + last + backward + (recompute_blocks ? forward : 0.0)) + head;
}

TEST(the_flops_of_a_step_are_those_of_the_formulas) {
    const char *const models[] = {"d12", "d48", "L=3,C=20,NH=4,V=131,T=64"};
    for (int i = 0; i < 3; i++) {
        ModelConfig c;
        Error err;
        assert_true(model_config_parse(&c, models[i], &err));
        if (c.V == 0) model_config_set_vocab(&c, GPT2_VOCAB);

        const int64_t B = 3, T = c.max_T / 2;
        const double N = (double)(B * T);
        double attention_backward;

        const double all = step_flops(&c, B, T, false, &attention_backward);
        const double again = step_flops(&c, B, T, true, &attention_backward);
        const Recompute none = recompute_all(0), every = recompute_all(RECOMPUTE_BLOCK);

        // One of the five matmuls of attention's backward pass computes scores again: exact counts
        // four.
        assert_near((all - attention_backward / 5) / N / flops_per_token_exact(&c, T), 1.0, 1e-12);
        assert_near(all / N / flops_per_token_hardware(&c, T, &none), 1.0, 1e-12);
        assert_near(again / N / flops_per_token_hardware(&c, T, &every), 1.0, 1e-12);
    }
}

// ------------------------------------------------------------------------------------------- bytes

TEST(a_matmul_moves_every_tensor_once_and_what_it_adds_to_twice) {
    Tensor out = tensor("out", DTYPE_BF16, 2, 5, 7), in = tensor("in", DTYPE_BF16, 2, 5, 3);
    Tensor w = tensor("w", DTYPE_BF16, 7, 3, 0), b = tensor("b", DTYPE_BF16, 7, 0, 0);
    Tensor dw = tensor("dw", DTYPE_FP32, 7, 3, 0), db = tensor("db", DTYPE_FP32, 7, 0, 0);

    assert_near(COST_OF(matmul_forward(out, in, w, b)).bytes, 2 * (70 + 30 + 21 + 7), 0);
    assert_near(COST_OF(matmul_forward(out, in, w, tensor_none())).bytes, 2 * (70 + 30 + 21), 0);
    assert_near(
        COST_OF(matmul_backward_weight(gradient_to(dw, false), gradient_to(db, false), out, in))
            .bytes,
        2 * (70 + 30) + 4 * 28, 0);
    assert_near(
        COST_OF(matmul_backward_weight(gradient_to(dw, true), gradient_to(db, true), out, in))
            .bytes,
        2 * (70 + 30) + 8 * 28, 0);
}

TEST(adamw_reads_and_writes_the_state_it_keeps) {
    UpdateTensor with = {.weight = tensor("w", DTYPE_BF16, 10, 10, 0),
                         .master = tensor("w", DTYPE_FP32, 10, 10, 0),
                         .grad = tensor("g", DTYPE_FP32, 10, 10, 0),
                         .m = tensor("m", DTYPE_FP32, 10, 10, 0),
                         .v = tensor("v", DTYPE_FP32, 10, 10, 0)};
    UpdateTensor without = with;
    without.master = tensor_none();

    UpdateTensor both[] = {with, without};

    // The update reads and writes master, m and v, reads the gradient and writes the bf16 weight:
    // 4 * 7 + 2 bytes an element.
    assert_near(op_cost_optimizer_update(both, 1).bytes, 3000, 0);
    // The update reads and writes m, v and the weight, and reads the gradient: 4 * 5 + 2 * 2.
    assert_near(op_cost_optimizer_update(both + 1, 1).bytes, 2400, 0);
    assert_near(op_cost_optimizer_update(both, 2).bytes, 5400, 0);
}

// The tensor has 512 elements as a matrix of 32 x 16, with bf16 weights and fp32 gradients.
static UpdateTensor updated_matrix(UpdateRule rule) {
    return (UpdateTensor){.weight = tensor("w", DTYPE_BF16, 32, 16, 0),
                          .grad = tensor("g", DTYPE_FP32, 32, 16, 0),
                          .rule = rule};
}

static double update_bytes(const UpdateTensor *t) { return op_cost_optimizer_update(t, 1).bytes; }

TEST(small_states_cost_what_they_keep) {
    enum { N = 512, WEIGHT = 2 * 2 * N, GRAD = 4 * N };
    UpdateTensor t = updated_matrix(RULE_ADAMW);
    t.m = tensor("m", DTYPE_U8, 32, 16, 0), t.v = tensor("v", DTYPE_U8, 32, 16, 0);
    t.m_scale = tensor("m_scale", DTYPE_FP32, 2, 0, 0),
    t.v_scale = tensor("v_scale", DTYPE_FP32, 2, 0, 0);
    // codes, and two scales a moment
    assert_near(update_bytes(&t), WEIGHT + GRAD + 2 * 2 * N + 2 * 2 * 8, 0);

    t = updated_matrix(RULE_ADAMW);
    t.m = tensor("m", DTYPE_BF16, 32, 16, 0), t.v = t.m,
    t.compensation = tensor("compensation", DTYPE_BF16, 32, 16, 0);
    assert_near(update_bytes(&t), WEIGHT + GRAD + 2 * 2 * 3 * N, 0);

    t = updated_matrix(RULE_LION);
    t.m = tensor("m", DTYPE_FP32, 32, 16, 0);
    assert_near(update_bytes(&t), WEIGHT + GRAD + 2 * 4 * N, 0);
}

TEST(the_passes_of_a_rule_count_what_each_of_them_touches) {
    enum { N = 512, WEIGHT = 2 * 2 * N, GRAD = 4 * N, SUMS = 4 * (32 + 16) };
    UpdateTensor both[2] = {updated_matrix(RULE_DIRECTION), updated_matrix(RULE_ADAFACTOR)};
    both[0].m = tensor("m", DTYPE_FP32, 32, 16, 0);
    both[1].row = tensor("row", DTYPE_FP32, 32, 0, 0),
    both[1].col = tensor("col", DTYPE_FP32, 16, 0, 0);
    both[1].rms = tensor("rms", DTYPE_FP32, 1, 0, 0);
    assert_near(update_bytes(&both[0]), WEIGHT + GRAD, 0); // the momentum is not looked at again
    assert_near(op_cost_momentum_update(both, 2).bytes, 2 * GRAD + 2 * 4 * N, 0);
    assert_near(update_bytes(&both[1]), WEIGHT + GRAD + SUMS + 4, 0);
    assert_near(op_cost_adafactor_statistics(both, 2).bytes, 2 * GRAD + 2 * SUMS + 4, 0);
}

TEST(an_embedding_row_is_read_once_at_most) {
    Tensor wte = tensor("wte", DTYPE_FP32, 100, 8, 0), wpe = tensor("wpe", DTYPE_FP32, 64, 8, 0);
    Tensor few = tensor("tokens", DTYPE_I32, 2, 16, 0),
           many = tensor("tokens", DTYPE_I32, 8, 16, 0);
    Tensor out = tensor("out", DTYPE_FP32, 2, 16, 8), more = tensor("out", DTYPE_FP32, 8, 16, 8);
    assert_near(COST_OF(embedding_forward(out, few, wte, wpe)).bytes,
                4 * (32 + 32 * 8 + 16 * 8 + 32 * 8), 0);
    assert_near(COST_OF(embedding_forward(more, many, wte, wpe)).bytes,
                4 * (128 + 100 * 8 + 16 * 8 + 128 * 8), 0);
}

// ------------------------------------------------------------------------------------------- table

TEST(a_label_names_the_op_the_weight_without_its_block_and_the_shape) {
    char label[128];
    Tensor in = tensor("ln1", DTYPE_BF16, 64, 1024, 768),
           out = tensor("qkv", DTYPE_BF16, 64, 1024, 2304);
    Tensor w = tensor("transformer.h.11.attn.c_attn.weight", DTYPE_BF16, 2304, 768, 0);

    OpCost cost = COST_OF(matmul_forward(out, in, w, tensor_none()));
    assert_string_equal(op_label(&cost, label, sizeof label), "matmul_forward qkvw 65536x768x2304");

    cost = COST_OF(gelu_forward(out, out));
    assert_string_equal(op_label(&cost, label, sizeof label), "gelu_forward qkv 64x1024x2304");

    w.name = "transformer.wte.weight";
    cost = COST_OF(matmul_forward(out, in, w, tensor_none()));
    assert_string_equal(op_label(&cost, label, sizeof label), "matmul_forward wte 65536x768x2304");

    assert_string_equal(op_label(&cost, label, 10), "matmul_fo");
}

// Two steps: a matmul in two blocks, and a fill, with time between them.
static Profile example(TimedOp ops[6]) {
    static double step_start[] = {0.0, 1.0, 2.0}, plain_start[] = {0.0, 0.9, 1.8};

    Tensor x = tensor("x", DTYPE_FP32, 4, 8, 0),
           block0 = tensor("transformer.h.0.mlp.c_fc.weight", DTYPE_FP32, 8, 8, 0);
    Tensor block1 = block0;
    block1.name = "transformer.h.1.mlp.c_fc.weight";

    for (int step = 0; step < 2; step++) {
        TimedOp *op = ops + 3 * (ptrdiff_t)step;
        op[0] =
            (TimedOp){.cost = COST_OF(tensor_fill(x, 0.0f)), .start = step + 0.0, .seconds = 0.1};
        op[1] = (TimedOp){.cost = COST_OF(matmul_forward(x, x, block0, tensor_none())),
                          .start = step + 0.2,
                          .seconds = 0.3};
        op[2] = (TimedOp){.cost = COST_OF(matmul_forward(x, x, block1, tensor_none())),
                          .start = step + 0.5,
                          .seconds = 0.4};
    }

    return (Profile){.ops = ops,
                     .num_ops = 6,
                     .num_steps = 2,
                     .step_start = step_start,
                     .plain_start = plain_start,
                     .dtype = DTYPE_FP32,
                     .speed = {.matmul_flops = 5120, .copy_bandwidth = 1280}};
}

// The same with two requests that overlap, one apart, and waits for two of them between the ops.
static Profile example_of_several(TimedOp ops[6]) {
    static TimedSpan spans[] = {{"sum", 0, 0.3, 0.5, NULL, NULL},
                                {"sum", 1, 0.6, 0.3, NULL, NULL},
                                {"sum", PROFILE_WAIT, 0.9, 0.06, NULL, NULL},
                                {"weights", 2, 1.5, 0.1, NULL, NULL},
                                {"weights", PROFILE_WAIT, 1.95, 0.04, NULL, NULL}};
    Profile profile = example(ops);
    profile.spans = spans;
    profile.num_spans = sizeof spans / sizeof *spans;
    return profile;
}

TEST(rows_sum_the_calls_of_all_blocks_and_come_slowest_first) {
    TimedOp ops[6];
    const Profile profile = example(ops);
    int count;
    ProfileRow *rows = profile_rows(&profile, &count);

    assert_int_equal(count, 2);
    assert_string_equal(rows[0].label, "matmul_forward fcw 4x8x8");
    assert_int_equal(rows[0].calls, 4);
    assert_near(rows[0].seconds, 1.4, 1e-12);
    assert_near(rows[0].flops, 4 * 512, 0);
    // 512 bytes take longer than 512 FLOP
    assert_near(rows[0].floor_seconds, 4 * 512.0 / 1280, 1e-12);

    assert_string_equal(rows[1].label, "tensor_fill x 4x8");
    assert_near(rows[1].seconds, 0.2, 1e-12);

    free(rows);
}

static cJSON *read_json(const char *path) {
    Error err;
    char *text = file_read_all(path, 1 << 20, NULL, &err);
    assert_non_null(text);
    cJSON *json = cJSON_Parse(text);
    free(text);
    assert_non_null(json);
    return json;
}

TEST(the_rows_and_the_time_between_ops_add_up_to_the_step) {
    TimedOp ops[6];
    const Profile profile = example(ops);
    Error err;

    assert_true(profile_write_json(tmp_file("profile.json"), &profile, &err));
    cJSON *json = read_json(tmp_file("profile.json")), *row;

    double sum = json_number(json, "between_ops_ms");
    cJSON_ArrayForEach(row, cJSON_GetObjectItemCaseSensitive(json, "ops")) sum +=
        json_number(row, "ms");

    assert_near(json_number(json, "step_ms"), 1000, 1e-6);
    assert_near(sum, 1000, 1e-6);
    assert_near(json_number(json, "between_ops_ms"), 200, 1e-6);
    assert_near(json_number(json, "median_plain_step_ms"), 900, 1e-6);
    assert_near(json_number(json, "flops"), 1024, 0);

    cJSON_Delete(json);
}

TEST(the_exchange_counts_requests_at_the_same_time_once_and_waits_are_not_between_ops) {
    TimedOp ops[6];
    const Profile profile = example_of_several(ops);
    Error err;
    assert_near(profile_exchange_seconds(&profile), 0.7, 1e-12);
    assert_near(profile_exposed(&profile).seconds, 0.1, 1e-12);
    assert_true(profile_write_json(tmp_file("profile.json"), &profile, &err));
    cJSON *json = read_json(tmp_file("profile.json"));
    assert_near(json_number(json, "exchange_ms"), 350, 1e-6);
    assert_near(json_number(json, "exposed_exchange_ms"), 50, 1e-6);
    assert_near(json_number(json, "between_ops_ms"), 150, 1e-6);
    cJSON_Delete(json);
}

TEST(the_trace_has_each_request_by_its_begin_and_end) {
    TimedOp ops[6];
    const Profile profile = example_of_several(ops);
    Error err;
    assert_true(profile_write_trace(tmp_file("trace.json"), &profile, &err));

    cJSON *json = read_json(tmp_file("trace.json")), *event;
    int begun = 0, ended = 0, waits = 0;
    cJSON_ArrayForEach(event, cJSON_GetObjectItemCaseSensitive(json, "traceEvents")) {
        const char *kind = cJSON_GetObjectItemCaseSensitive(event, "ph")->valuestring;
        const char *name = cJSON_GetObjectItemCaseSensitive(event, "name")->valuestring;
        if (strcmp(kind, "b") == 0 || strcmp(kind, "e") == 0) {
            const TimedSpan *request = &profile.spans[(int)json_number(event, "id")];
            const bool begins = kind[0] == 'b';
            assert_string_equal(name, request->name);
            assert_near(json_number(event, "ts"),
                        1e6 * (request->start + (begins ? 0 : request->seconds)), 1e-3);
            *(begins ? &begun : &ended) += 1;
        } else if (strcmp(name, "exchange, not hidden") == 0) {
            const TimedSpan *wait = &profile.spans[waits++ == 0 ? 2 : 4];
            assert_near(json_number(event, "ts"), 1e6 * wait->start, 1e-3);
            assert_near(json_number(event, "dur"), 1e6 * wait->seconds, 1e-3);
        }
    }

    assert_int_equal(begun, 3);
    assert_int_equal(ended, 3);
    assert_int_equal(waits, 2);
    cJSON_Delete(json);
}

TEST(the_trace_holds_every_call_with_its_time) {
    TimedOp ops[6];
    const Profile profile = example(ops);
    Error err;

    assert_true(profile_write_trace(tmp_file("trace.json"), &profile, &err));
    cJSON *json = read_json(tmp_file("trace.json")), *event;
    int calls = 0, steps = 0;
    cJSON_ArrayForEach(event, cJSON_GetObjectItemCaseSensitive(json, "traceEvents")) {
        if (strcmp(cJSON_GetObjectItemCaseSensitive(event, "ph")->valuestring, "X") != 0) continue;
        if (json_number(event, "tid") == 1) {
            assert_near(json_number(event, "ts"), 1e6 * steps++, 1e-3);
        } else {
            assert_near(json_number(event, "ts"), 1e6 * ops[calls].start, 1e-3);
            assert_near(json_number(event, "dur"), 1e6 * ops[calls++].seconds, 1e-3);
        }
    }

    assert_int_equal(calls, 6);
    assert_int_equal(steps, 2);
    cJSON_Delete(json);
}
