// optimizer_update against the specification: every rule with every kind of state, beside a master,
// a Kahan term or the weight alone, gradients of both dtypes, several steps in a row, in arrays of
// unequal tensors; and what may not matter: ranges, slices, alignment, a skipped step. Adafactor
// has a file of its own, rounding another one.
#include "test/ops/optimizer_case.h"

TestFixture test_all = {op_group_setup, op_group_teardown};

enum { MAX_PARAMETERS = 7 };

// One element; less than a vector; around a block of 8-bit states; no multiple of anything; beyond
// one part of a tensor.
static const int64_t sizes[MAX_PARAMETERS] = {1, 7, 255, 256, 257, 4099, 70001};

// Tensors [first, end) of `sizes`, each with its own decay, rate, group and random bits.
static void make_parameters(UpdateCase *p, UpdateSpec spec, int first, int end) {
    const float decay[MAX_PARAMETERS] = {0.1f, 0.0f, 0.1f, 0.0f, 0.5f, 0.1f, 0.1f};
    const float rate[MAX_PARAMETERS] = {1.0f, 1.0f, 0.5f, 1.0f, 2.0f, 0.75f, 1.0f};
    for (int i = first; i < end; i++) {
        spec.rows = sizes[i], spec.weight_decay = decay[i], spec.rate = rate[i],
        spec.stream = 3 * i;
        spec.group = i % UPDATE_GROUPS;
        p[i - first] = parameter_make(spec);
    }
}

static void set_gradients(UpdateCase *p, int n, int step, float grad_factor) {
    for (int i = 0; i < n; i++) {
        new_gradients(&p[i], step);
        if (p[i].spec.rule == RULE_LION) keep_signs_clear(&p[i], grad_factor);
    }
}

static void update_array(const UpdateCase *p, int n, int first, int count, UpdateParams params,
                         Tensor control) {
    UpdateTensor tensors[MAX_PARAMETERS];
    for (int i = 0; i < n; i++) tensors[i] = p[i].update;
    UpdateList list = update_list(tensors, n);
    optimizer_update(&list, first, count, params, control);
    update_list_free(&list);
}

static void update_case(UpdateSpec spec, int first, int end, int steps) {
    const float grad_factor = 0.25f;
    const int n = end - first;
    op_begin(optimizer_shape(spec.dtype, n, 0), "%s, state %s, %s, gradient %s, tensors %d .. %d",
             rule_name(spec.rule), dtype_name(spec.state), keep_name(spec.keep),
             dtype_name(spec.grad), first, end - 1);

    UpdateCase p[MAX_PARAMETERS];
    make_parameters(p, spec, first, end);
    Tensor control = control_with(grad_factor, SKIP_NONE);

    for (int step = 0; step < steps; step++) {
        set_gradients(p, n, step, grad_factor);
        control_set(control, UPDATES + step, update_params, grad_factor);
        update_array(p, n, 0, n, update_params, control);
        for (int i = 0; i < n; i++) {
            p[i].updates = UPDATES + step;
            parameter_expect_update(&p[i], update_params, grad_factor);
        }
    }
    op_end();
}

static const struct {
    UpdateRule rule;
    DType state;
} rules[] = {
    {RULE_ADAMW, DTYPE_FP32},     {RULE_ADAMW, DTYPE_BF16}, {RULE_ADAMW, DTYPE_U8},
    {RULE_LION, DTYPE_FP32},      {RULE_LION, DTYPE_BF16},  {RULE_LION, DTYPE_U8},
    {RULE_SGD, DTYPE_FP32},       {RULE_SGD, DTYPE_BF16},   {RULE_SGD, DTYPE_U8},
    {RULE_DIRECTION, DTYPE_FP32},
};
enum { NUM_RULES = sizeof rules / sizeof *rules };

// Everything that the dtype of weights allows: beside fp32 there is no master, nothing is lost.
OP_TEST(every_rule_matches_with_every_state_weight_and_gradient) {
    for (int i = 0; i < NUM_RULES; i++)
        for (int keep = 0; keep < (dtype == DTYPE_FP32 ? 1 : NUM_KEEPS); keep++)
            for (int same = 0; same < (dtype == DTYPE_FP32 ? 1 : 2); same++) {
                const UpdateSpec spec = {.rule = rules[i].rule,
                                         .dtype = dtype,
                                         .grad = same ? dtype : DTYPE_FP32,
                                         .state = rules[i].state,
                                         .keep = (Keep)keep};
                update_case(spec, 0, 4, 2);
                update_case(spec, 4, 6, 2);
            }
}

OP_TEST(large_tensors_match) {
    for (int i = 0; i < NUM_RULES; i++) {
        const Keep keep = dtype == DTYPE_FP32 ? WEIGHT_ALONE : (Keep)(i % NUM_KEEPS);
        update_case((UpdateSpec){.rule = rules[i].rule,
                                 .dtype = dtype,
                                 .grad = i % 2 ? dtype : DTYPE_FP32,
                                 .state = rules[i].state,
                                 .keep = keep},
                    5, 7, 1);
    }
}

OP_TEST(slices_of_tensors_match) {
    for (int i = 0; i < NUM_RULES; i++) {
        const Keep keep = dtype == DTYPE_FP32 ? WEIGHT_ALONE : (Keep)(i % NUM_KEEPS);
        op_begin_tensors_at(8);
        update_case((UpdateSpec){.rule = rules[i].rule,
                                 .dtype = dtype,
                                 .grad = i % 2 ? dtype : DTYPE_FP32,
                                 .state = rules[i].state,
                                 .keep = keep},
                    4, 6, 1);
    }
}

OP_TEST(five_steps_in_a_row_match) {
    for (int i = 0; i < 3; i++)
        update_case(
            (UpdateSpec){
                .rule = RULE_ADAMW, .dtype = dtype, .grad = DTYPE_FP32, .state = rules[i].state},
            3, 5, 5);
}

// --------------------------------------------------------------------------------- unequal tensors

// Muon's array: matrices by their direction, all else by AdamW. Adafactor's and that of 8-bit
// states: vectors keep fp32.
OP_TEST(tensors_of_unequal_rules_and_states_stand_in_one_array) {
    static const struct {
        UpdateRule rule;
        DType state;
    } mixed[MAX_PARAMETERS] = {{RULE_ADAMW, DTYPE_U8},       {RULE_DIRECTION, DTYPE_FP32},
                               {RULE_ADAMW, DTYPE_FP32},     {RULE_SGD, DTYPE_FP32},
                               {RULE_DIRECTION, DTYPE_FP32}, {RULE_ADAMW, DTYPE_U8},
                               {RULE_LION, DTYPE_FP32}};

    const float grad_factor = 0.5f;
    op_begin(optimizer_shape(dtype, MAX_PARAMETERS, 0), "mixed rules");
    UpdateCase p[MAX_PARAMETERS];
    for (int i = 0; i < MAX_PARAMETERS; i++)
        p[i] = parameter_make(
            (UpdateSpec){.rule = mixed[i].rule,
                         .dtype = dtype,
                         .grad = DTYPE_FP32,
                         .state = mixed[i].state,
                         .keep = dtype == DTYPE_FP32 ? WEIGHT_ALONE : WEIGHT_AND_MASTER,
                         .rows = sizes[(i + 3) % MAX_PARAMETERS],
                         .weight_decay = 0.1f,
                         .rate = 1.0f + (float)i,
                         .stream = i});

    set_gradients(p, MAX_PARAMETERS, 0, grad_factor);
    update_array(p, MAX_PARAMETERS, 0, MAX_PARAMETERS, update_params,
                 control_with(grad_factor, SKIP_NONE));

    for (int i = 0; i < MAX_PARAMETERS; i++)
        parameter_expect_update(&p[i], update_params, grad_factor);
    op_end();
}

// More tensors than a block has threads, which begin at any element of one buffer.
enum { NUM_SMALL = 300 };
static int64_t small_size(int i) { return 1 + 13 * (i % 7) + (i == 200 ? 5000 : 0); }

OP_TEST(many_small_unaligned_tensors_match) {
    int64_t n = 0;
    for (int i = 0; i < NUM_SMALL; i++) n += small_size(i);
    for (int s = 0; s < 2;
         s++) { // 8-bit states have blocks, and scales, of their own: see the next test
        const UpdateSpec spec = {.rule = RULE_ADAMW,
                                 .dtype = dtype,
                                 .grad = DTYPE_FP32,
                                 .state = s ? DTYPE_BF16 : DTYPE_FP32,
                                 .keep = dtype == DTYPE_FP32 ? WEIGHT_ALONE : WEIGHT_AND_MASTER,
                                 .rows = n,
                                 .weight_decay = 0.1f,
                                 .rate = 1.0f};
        op_begin(optimizer_shape(dtype, NUM_SMALL, 0), "many small tensors, state %s",
                 dtype_name(spec.state));

        UpdateCase p = parameter_make(spec);
        UpdateTensor tensors[NUM_SMALL];
        for (int64_t i = 0, begin = 0; i < NUM_SMALL; begin += small_size((int)i++)) {
            tensors[i] = update_slice(p.update, begin, small_size((int)i));
            tensors[i].offset = 0, tensors[i].stream = (int)i; // parameters, not slices of one
        }

        update_once(tensors, NUM_SMALL, update_params, control_with(0.25f, SKIP_NONE));
        parameter_expect_update(&p, update_params, 0.25f);
        op_end();
    }
}

// The same block of states again and again, shifted by one element in memory: no alignment is
// needed.
OP_TEST(unaligned_8bit_states_match) {
    enum { N = 1000 };
    const UpdateSpec spec = {.rule = RULE_ADAMW,
                             .dtype = dtype,
                             .grad = DTYPE_FP32,
                             .state = DTYPE_U8,
                             .rows = N,
                             .rate = 1.0f};
    op_begin(optimizer_shape(dtype, 1, 0), "8-bit states from the second element");

    UpdateCase p = parameter_make(spec), shifted = p;
    OpTensor *all[] = {&shifted.weight, &shifted.grad, &shifted.m, &shifted.v};
    for (int i = 0; i < 4; i++) all[i]->t = tensor_slice_elements(all[i]->t, 1, N - 1);
    shifted.update = update_slice(p.update, 1, N - 1);
    shifted.update.m_scale = p.m_scale.t, shifted.update.v_scale = p.v_scale.t,
    shifted.update.offset = 0;

    shifted.n = N - 1, shifted.w = shifted.weight.v = p.weight.v + 1, shifted.grad.v = p.grad.v + 1;
    shifted.m_values++, shifted.v_values++;
    download8(shifted.m_values, shifted.m, shifted.m_scale, true); // the blocks have moved
    download8(shifted.v_values, shifted.v, shifted.v_scale, false);

    update_once(&shifted.update, 1, update_params, control_with(0.25f, SKIP_NONE));
    parameter_expect_update(&shifted, update_params, 0.25f);
    op_end();
}

// ----------------------------------------------------------------------------------- the same bits

// The rules and states that the tests of bits go through: all that is rounded at random, and all
// that has blocks.
static const UpdateSpec bit_cases[] = {
    {.rule = RULE_ADAMW, .state = DTYPE_FP32}, {.rule = RULE_ADAMW, .state = DTYPE_BF16},
    {.rule = RULE_ADAMW, .state = DTYPE_U8},   {.rule = RULE_LION, .state = DTYPE_BF16},
    {.rule = RULE_SGD, .state = DTYPE_U8},     {.rule = RULE_DIRECTION, .state = DTYPE_FP32},
    {.rule = RULE_ADAFACTOR, .cols = 241},     {.rule = RULE_ADAFACTOR},
};
enum { NUM_BIT_CASES = sizeof bit_cases / sizeof *bit_cases };

static UpdateSpec bit_case(int i, DType dtype, int64_t rows) {
    UpdateSpec spec = bit_cases[i];
    spec.dtype = dtype, spec.grad = dtype, spec.weight_decay = 0.1f, spec.rate = 1.0f,
    spec.stream = 5;
    spec.rows = spec.cols ? ceil_div(rows, spec.cols) : rows;
    return spec;
}

// rms becomes what adafactor_statistics leaves.
static void set_rms(UpdateCase *p) {
    if (!p->rms.t.data) return;
    p->rms.v[0] = 2.5;
    op_upload(&p->rms);
}

static uint64_t bits_of_ranges(DType dtype, int spec, int cut_a, int cut_b) {
    op_random_restart();
    op_begin(optimizer_shape(dtype, 4, 0), "tensors in ranges, case %d", spec);

    UpdateCase p[4];
    for (int i = 0; i < 4; i++) {
        p[i] = parameter_make(bit_case(spec, dtype, sizes[2 + i]));
        set_rms(&p[i]);
    }

    Tensor control = control_with(0.25f, SKIP_NONE);
    update_array(p, 4, 0, cut_a, update_params, control);
    update_array(p, 4, cut_a, cut_b - cut_a, update_params, control);
    update_array(p, 4, cut_b, 4 - cut_b, update_params, control);

    uint64_t digest = 0;
    for (int i = 0; i < 4; i++) digest = parameter_digest(&p[i], digest);
    op_end();
    return digest;
}

OP_TEST(ranges_of_an_array_give_the_bits_of_one_call) {
    for (int i = 0; i < NUM_BIT_CASES; i++) {
        const uint64_t whole = bits_of_ranges(dtype, i, 4, 4);
        if (bits_of_ranges(dtype, i, 1, 3) != whole || bits_of_ranges(dtype, i, 0, 2) != whole)
            op_fail("case %d: other bits in ranges", i);
    }
}

// A range updates no tensor outside it.
OP_TEST(a_range_leaves_the_other_tensors) {
    op_begin(optimizer_shape(dtype, 3, 0), "a range");
    UpdateCase p[3];
    make_parameters(
        p, (UpdateSpec){.rule = RULE_ADAMW, .dtype = dtype, .grad = dtype, .state = DTYPE_FP32}, 1,
        4);
    uint64_t before[3];
    for (int i = 0; i < 3; i++) before[i] = parameter_digest(&p[i], 0);
    update_array(p, 3, 1, 1, update_params, control_with(0.25f, SKIP_NONE));
    for (int i = 0; i < 3; i++) assert_true((parameter_digest(&p[i], 0) == before[i]) == (i != 1));
    op_end();
}

static uint64_t bits_of_slices(DType dtype, int spec, int64_t slice) {
    op_random_restart();
    op_begin(optimizer_shape(dtype, 1, 0), "slices of %d, case %d", (int)slice, spec);
    UpdateCase p = parameter_make(bit_case(spec, dtype, 4099));
    set_rms(&p);
    Tensor control = control_with(0.25f, SKIP_NONE);

    for (int64_t begin = 0; begin < p.n; begin += slice) {
        const int64_t count = p.n - begin < slice ? p.n - begin : slice;
        const UpdateTensor t = slice < p.n ? update_slice(p.update, begin, count) : p.update;
        update_once(&t, 1, update_params, control);
    }

    const uint64_t digest = parameter_digest(&p, 0);
    op_end();
    return digest;
}

OP_TEST(slices_of_a_parameter_give_the_bits_of_the_whole) {
    for (int i = 0; i < NUM_BIT_CASES; i++) {
        const uint64_t whole = bits_of_slices(dtype, i, 1 << 20);
        for (int64_t blocks = 1; blocks <= 9; blocks += 4)
            if (bits_of_slices(dtype, i, blocks * STATE_BLOCK) != whole)
                op_fail("case %d: other bits in slices of %d blocks", i, (int)blocks);
    }
}

OP_TEST(a_skipped_step_leaves_every_byte) {
    for (int i = 0; i < NUM_BIT_CASES; i++)
        for (int keep = 0; keep < (dtype == DTYPE_FP32 ? 1 : NUM_KEEPS); keep++) {
            const int64_t n = bit_cases[i].cols ? 600 * bit_cases[i].cols : 4099; // a tall matrix
            op_begin(optimizer_shape(dtype, 1, n), "a skipped step, case %d", i);
            UpdateSpec spec = bit_case(i, dtype, n);
            spec.keep = (Keep)keep;

            UpdateCase p = parameter_make(spec);
            p.grad.v[17] = (double)NAN;
            op_upload(&p.grad);
            set_rms(&p); // of NaN, NaN would be left
            Tensor control = control_with(1.0f, SKIP_NONFINITE);

            const uint64_t before = parameter_digest(&p, 0);
            UpdateList list = update_list(&p.update, 1);
            adafactor_statistics(&list, control);
            momentum_update(&list, update_params, control);
            optimizer_update(&list, 0, 1, update_params, control);
            update_list_free(&list);

            assert_true(parameter_digest(&p, 0) == before);
            op_end();
        }
}
