// The optimizer table: what each optimizer costs in bytes a parameter, what it keeps for which
// parameter, and what of it is taken, saved or refused.

#include "llmc/model/model.h"
#include "test/fixture.h"
#include "test/unit/device_fixture.h"

#include <math.h>

// GPT-2 124M: its matrices have sizes that are whole blocks of 8-bit states.
static const ModelConfig config = {
    .max_T = 1024, .V = 50257, .Vp = 50304, .L = 12, .NH = 12, .C = 768};
static Parameter *table;
static Error err;

static int setup(void **state) {
    table = parameter_table(&config);
    return start_device(state);
}

static int teardown(void **state) {
    free(table);
    return stop_device(state);
}
TestFixture test_all = {setup, teardown};

static Parameter *matrix(void) { return &table[parameter_index(&config, PARAM_FCW, 3)]; }

// Bytes an element of p in weight, gradient and all states.
static double bytes_a_parameter(OptimizerKind kind, bool master, DType compute, DType gradient,
                                const Parameter *p) {
    double bytes = (double)dtype_size(compute) + (double)dtype_size(gradient);
    for (int slot = 0; slot < NUM_STATE_SLOTS; slot++) {
        const Tensor t = optimizer_state(kind, master, compute, p, (StateSlot)slot);
        if (t.rank > 0) bytes += (double)tensor_bytes(t) / (double)parameter_numel(p);
    }
    return bytes;
}

TEST(a_parameter_of_a_matrix_costs_what_the_papers_say) {
    static const double SCALES = 2 * 4.0 / STATE_BLOCK; // of both 8-bit moments
    // row, col and rms of (4C, C)
    static const double FACTORS = 4.0 / 768 + 4.0 / (4 * 768) + 4.0 / (4 * 768 * 768);

    const struct {
        OptimizerKind kind;
        bool master;
        DType compute, gradient;
        double bytes;
    } cases[] = {
        {OPTIMIZER_ADAMW, true, DTYPE_BF16, DTYPE_FP32,
         18}, // weight 2, gradient 4, master 4, m 4, v 4
        {OPTIMIZER_ADAMW, true, DTYPE_BF16, DTYPE_BF16, 16},
        {OPTIMIZER_ADAMW, false, DTYPE_BF16, DTYPE_FP32, 14},
        {OPTIMIZER_ADAMW, true, DTYPE_FP32, DTYPE_FP32, 16}, // fp32 weights are their own master
        {OPTIMIZER_ADAMW_8BIT, true, DTYPE_BF16, DTYPE_FP32, 12 + SCALES},
        {OPTIMIZER_ADAMW_8BIT, false, DTYPE_BF16, DTYPE_BF16, 6 + SCALES},
        {OPTIMIZER_ADAMW_BF16, true, DTYPE_BF16, DTYPE_BF16,
         8}, // weight 2, gradient 2, m 2, v 2; -w 1 means nothing
        {OPTIMIZER_ADAMW_BF16, false, DTYPE_BF16, DTYPE_FP32, 10},
        {OPTIMIZER_ADAMW_KAHAN, false, DTYPE_BF16, DTYPE_BF16, 10}, // and what rounding took 2
        {OPTIMIZER_ADAMW_KAHAN, false, DTYPE_FP32, DTYPE_FP32,
         12}, // where it takes nothing: 4 + 4 + 2 + 2
        {OPTIMIZER_LION, true, DTYPE_BF16, DTYPE_FP32, 14},
        {OPTIMIZER_SGD, true, DTYPE_BF16, DTYPE_FP32, 14},
        {OPTIMIZER_MUON, true, DTYPE_BF16, DTYPE_FP32, 14},
        {OPTIMIZER_ADAFACTOR, true, DTYPE_BF16, DTYPE_FP32, 10 + FACTORS},
        {OPTIMIZER_ADAFACTOR, false, DTYPE_BF16, DTYPE_BF16, 4 + FACTORS},
    };

    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        const double bytes = bytes_a_parameter(cases[i].kind, cases[i].master, cases[i].compute,
                                               cases[i].gradient, matrix());
        if (fabs(bytes - cases[i].bytes) > 1e-9)
            fail_msg("case %zu, %s: %.6f bytes, expected %.6f", i, optimizer_name(cases[i].kind),
                     bytes, cases[i].bytes);
    }
}

TEST(names_are_read_and_written_the_same) {
    for (int kind = 0; kind < OPTIMIZER_COUNT; kind++) {
        OptimizerKind back;
        assert_true(optimizer_parse(&back, optimizer_name((OptimizerKind)kind), &err));
        assert_int_equal(back, kind);

        assert_true(optimizer_default_learning_rate((OptimizerKind)kind) > 0);
        assert_int_equal(optimizer_default_warmup((OptimizerKind)kind, 1000), 20);
        assert_int_equal(optimizer_default_warmup((OptimizerKind)kind, 100000),
                         kind == OPTIMIZER_MUON ? 40 : 700);
    }

    OptimizerKind unused;
    assert_error(
        optimizer_parse(&unused, "adam", &err),
        "adam: unknown optimizer; expected one of adamw, adamw8bit, adamw-bf16, adamw-kahan, lion, "
        "adafactor, sgd, muon");
}

// Every slot that a rule needs is there, and none that it does not know.
TEST(each_rule_gets_the_tensors_it_reads) {
    for (int kind = 0; kind < OPTIMIZER_COUNT; kind++)
        for (int i = 0; i < parameter_count(&config); i++) {
            const Parameter *p = &table[i];
            bool has[NUM_STATE_SLOTS];
            for (int slot = 0; slot < NUM_STATE_SLOTS; slot++)
                has[slot] =
                    optimizer_state((OptimizerKind)kind, true, DTYPE_BF16, p, (StateSlot)slot)
                        .rank > 0;

            const UpdateRule rule = optimizer_rule((OptimizerKind)kind, p);
            const bool factored = rule == RULE_ADAFACTOR && p->rank == 2;

            assert_int_equal(has[SLOT_M], rule != RULE_ADAFACTOR);
            assert_int_equal(has[SLOT_V],
                             rule == RULE_ADAMW || (rule == RULE_ADAFACTOR && !factored));
            assert_int_equal(has[SLOT_ROW], factored);
            assert_int_equal(has[SLOT_COL], factored);
            assert_int_equal(has[SLOT_RMS], rule == RULE_ADAFACTOR);
            assert_int_equal(has[SLOT_MASTER], optimizer_has_master((OptimizerKind)kind));
            assert_int_equal(has[SLOT_COMPENSATION], kind == OPTIMIZER_ADAMW_KAHAN);
        }
}

TEST(muon_takes_the_matrices_of_the_blocks_and_adamw_the_rest) {
    for (int i = 0; i < parameter_count(&config); i++) {
        const Parameter *p = &table[i];
        const bool in_block = p->block >= 0 && p->rank == 2;
        assert_int_equal(optimizer_rule(OPTIMIZER_MUON, p), in_block ? RULE_DIRECTION : RULE_ADAMW);
        if (!in_block) assert_true(optimizer_rate(OPTIMIZER_MUON, p) == 1.0f);
    }
    // 0.2 sqrt(max(rows, cols)), the three matrices of qkvw each by itself.
    assert_true(optimizer_rate(OPTIMIZER_MUON, &table[parameter_index(&config, PARAM_QKVW, 0)]) ==
                0.2f * sqrtf(768.0f));
    assert_true(optimizer_rate(OPTIMIZER_MUON, &table[parameter_index(&config, PARAM_FCW, 0)]) ==
                0.2f * sqrtf(3072.0f));
    assert_true(
        optimizer_rate(OPTIMIZER_MUON, &table[parameter_index(&config, PARAM_FCPROJW, 0)]) ==
        0.2f * sqrtf(3072.0f));
}

TEST(vectors_keep_their_moments_in_fp32_beside_8_bit_ones) {
    const Parameter *bias = &table[parameter_index(&config, PARAM_QKVB, 0)],
                    *wte = &table[PARAM_WTE];

    assert_int_equal(optimizer_state(OPTIMIZER_ADAMW_8BIT, true, DTYPE_BF16, bias, SLOT_V).dtype,
                     DTYPE_FP32);
    assert_int_equal(
        optimizer_state(OPTIMIZER_ADAMW_8BIT, true, DTYPE_BF16, bias, SLOT_V_SCALE).rank, 0);
    assert_int_equal(optimizer_state(OPTIMIZER_ADAMW_8BIT, true, DTYPE_BF16, wte, SLOT_V).dtype,
                     DTYPE_U8);
    assert_int_equal(
        optimizer_state(OPTIMIZER_ADAMW_8BIT, true, DTYPE_BF16, wte, SLOT_V_SCALE).shape[0],
        50304 * 768 / STATE_BLOCK);

    // A last block that is not full has a scale, too.
    Parameter odd = *matrix();
    odd.rows = 3, odd.cols = 100;
    assert_int_equal(
        optimizer_state(OPTIMIZER_ADAMW_8BIT, true, DTYPE_BF16, &odd, SLOT_M_SCALE).shape[0], 2);
}

TEST(no_two_slots_share_a_name) {
    for (int a = 0; a < NUM_STATE_SLOTS; a++)
        for (int b = 0; b < a; b++) {
            const char *x = state_slot_prefix((StateSlot)a), *y = state_slot_prefix((StateSlot)b);
            assert_string_not_equal(state_slot_name((StateSlot)a), state_slot_name((StateSlot)b));
            if (x && y) assert_string_not_equal(x, y);
            UpdateTensor t;
            assert_ptr_not_equal(state_slot_tensor(&t, (StateSlot)a),
                                 state_slot_tensor(&t, (StateSlot)b));
        }
}

// ------------------------------------------------------------------------------------------ memory

TEST(muons_scratch_is_two_of_the_largest_stack_and_two_of_its_squares) {
    // of 12 matrices (3072,768), and of 48 (768,768)
    const int64_t n = 768, e = 2, fc = 12, qkv = 16;
    const MuonScratch s = optimizer_muon_scratch(table, parameter_count(&config), DTYPE_BF16);
    assert_int_equal(s.matrices, 12 * (3 + 1 + 1 + 1));
    assert_int_equal(s.next - s.x, fc * 4 * n * n * e);
    assert_int_equal(s.gram - s.next, fc * 4 * n * n * e);
    assert_int_equal(s.square - s.gram, qkv * n * n * e);
    assert_int_equal(s.sumsq - s.square, qkv * n * n * e);
    assert_true(s.bytes >= s.sumsq + 4 * s.matrices && s.bytes % 256 == 0);
    assert_int_equal(optimizer_scratch_bytes(OPTIMIZER_MUON, &config, DTYPE_BF16, false), s.bytes);
}

TEST(muon_stacks_small_matrices_and_takes_large_ones_alone) {
    assert_int_equal(optimizer_muon_stack(64, 64, DTYPE_BF16), 16);
    assert_int_equal(optimizer_muon_stack(3072, 768, DTYPE_BF16), 14);
    assert_int_equal(optimizer_muon_stack(3072, 768, DTYPE_FP32), 7);
    assert_int_equal(optimizer_muon_stack(20480, 5120, DTYPE_FP32), 1);
}

TEST(watching_needs_a_copy_of_the_largest_parameter) {
    const int64_t wte = 50304 * 768 * 4;
    assert_int_equal(optimizer_scratch_bytes(OPTIMIZER_ADAMW, &config, DTYPE_BF16, false), 0);
    assert_int_equal(optimizer_scratch_bytes(OPTIMIZER_ADAMW, &config, DTYPE_BF16, true), wte);
    // larger than Muon's
    assert_int_equal(optimizer_scratch_bytes(OPTIMIZER_MUON, &config, DTYPE_BF16, true), wte);
    const ModelConfig small_vocabulary = {
        .max_T = 64, .V = 10, .Vp = 128, .L = 1, .NH = 2, .C = 128};
    assert_int_equal(optimizer_scratch_bytes(OPTIMIZER_ADAMW, &small_vocabulary, DTYPE_BF16, true),
                     4 * 128 * 128 * 4);
}

TEST(the_offload_buffer_follows_the_state_within_bounds) {
    assert_int_equal(optimizer_offload_buffer(0), 3 * (16 << 10));
    assert_int_equal(optimizer_offload_buffer(8 << 20), 3 * (1 << 20));
    assert_int_equal(optimizer_offload_buffer((int64_t)20e9), 3 * (16 << 20));
    assert_int_equal(optimizer_offload_buffer(1234567) % 256, 0);
}

static ModelOptions small_options(OptimizerKind kind) {
    return (ModelOptions){.config = {.max_T = 32, .V = 257, .Vp = 384, .L = 2, .NH = 2, .C = 64},
                          .dtype = DTYPE_BF16,
                          .master = true,
                          .train = true,
                          .B = 2,
                          .T = 32,
                          .optimizer = kind};
}

// The plan has in host memory what is missing on the device, but for the buffer.
TEST(offload_moves_the_state_to_the_host) {
    ModelOptions options = small_options(OPTIMIZER_ADAMW);
    MemoryPlan *with = model_plan(&options);
    assert_int_equal(model_host_bytes(&options), 0);

    options.offload = true;
    MemoryPlan *without = model_plan(&options);
    const int64_t host = model_host_bytes(&options);

    const int64_t there =
        memory_plan_class_bytes(with, MEM_MASTER) + memory_plan_class_bytes(with, MEM_OPTIMIZER);

    // whose tensors are whole cache lines
    assert_int_equal(host, 12 * parameter_total(&options.config));
    assert_int_equal(there, host);
    assert_int_equal(memory_plan_class_bytes(without, MEM_MASTER), 0);
    assert_int_equal(memory_plan_class_bytes(without, MEM_OPTIMIZER),
                     optimizer_offload_buffer(host));

    memory_plan_destroy(with);
    memory_plan_destroy(without);
}

// ---------------------------------------------------------------------------------------- refusals

TEST(offload_is_refused_where_an_update_needs_whole_matrices) {
    for (int kind = 0; kind < OPTIMIZER_COUNT; kind++) {
        ModelOptions options = small_options((OptimizerKind)kind);
        assert_true(model_check_options(&options, &err));
        options.offload = true;

        const bool whole = kind == OPTIMIZER_MUON || kind == OPTIMIZER_ADAFACTOR;
        assert_int_equal(model_check_options(&options, &err), !whole);

        if (!whole) continue;
        assert_message("--offload optimizer: ");
        assert_message(optimizer_name((OptimizerKind)kind));
        options.train = false; // there is no state then
        assert_true(model_check_options(&options, &err));
    }
}

TEST(muon_in_fp16_needs_fp32_gradients) {
    ModelOptions options = small_options(OPTIMIZER_MUON);
    options.dtype = DTYPE_FP16;
    assert_true(model_check_options(&options, &err));
    options.gradients_in_dtype = true;
    assert_error(model_check_options(&options, &err), "--grad-dtype compute: muon");
}
