// Adafactor (adafactor_statistics, then optimizer_update) and Muon's momentum (momentum_update)
// against the specification, over matrices of odd shapes, vectors, and arrays in which other rules
// stand between.
#include "test/ops/optimizer_case.h"

TestFixture test_all = {op_group_setup, op_group_teardown};

enum { MAX_PARAMETERS = 7 };

// A row, a column, fewer than a vector, beyond one part in both directions, GPT-2's 3C x C; then
// vectors.
static const int64_t shapes[MAX_PARAMETERS][2] = {{1, 4099}, {4099, 1}, {5, 7}, {4099, 3},
                                                  {192, 64}, {257, 0},  {1, 0}};

static void update_tensors(const UpdateCase *p, int n, UpdateTensor *tensors) {
    for (int i = 0; i < n; i++) tensors[i] = p[i].update;
}

static int64_t factored_elements(const UpdateCase *p, int n) {
    int64_t elements = 0;
    for (int i = 0; i < n; i++) elements += p[i].spec.rule == RULE_ADAFACTOR ? p[i].n : 0;
    return elements;
}

static void expect_statistics(UpdateCase *p, float grad_factor) {
    const RefUpdate reference = parameter_reference(p);
    ref_adafactor_statistics(&reference, (double)grad_factor);
    if (p->row.t.data) op_check(p->row, DTYPE_FP32), op_check(p->col, DTYPE_FP32);
    if (p->v.t.data) op_check(p->v, DTYPE_FP32);
    op_check(p->rms, DTYPE_FP32);
    parameter_read(p);
}

// The first step (where the running means begin: b = 0) and the ones after it.
static void adafactor_steps(UpdateCase *p, int n, float grad_factor, int steps) {
    UpdateTensor tensors[MAX_PARAMETERS];
    update_tensors(p, n, tensors);
    UpdateList list = update_list(tensors, n);
    Tensor control = control_with(grad_factor, SKIP_NONE);

    for (int step = 0; step < steps; step++) {
        for (int i = 0; i < n; i++) new_gradients(&p[i], step), p[i].updates = step + 1;
        control_set(control, step + 1, update_params, grad_factor);
        adafactor_statistics(&list, control);
        for (int i = 0; i < n; i++) expect_statistics(&p[i], grad_factor);
        optimizer_update(&list, 0, n, update_params, control);
        for (int i = 0; i < n; i++) parameter_expect_update(&p[i], update_params, grad_factor);
    }
    update_list_free(&list);
}

static UpdateSpec adafactor_spec(DType dtype, DType grad, Keep keep, int64_t rows, int64_t cols) {
    return (UpdateSpec){.rule = RULE_ADAFACTOR,
                        .dtype = dtype,
                        .grad = grad,
                        .keep = keep,
                        .rows = rows,
                        .cols = cols,
                        .weight_decay = 0.1f,
                        .rate = 0.5f};
}

OP_TEST(adafactor_matches_in_all_shapes) {
    for (int keep = 0; keep < (dtype == DTYPE_FP32 ? 1 : NUM_KEEPS); keep++)
        for (int same = 0; same < (dtype == DTYPE_FP32 ? 1 : 2); same++)
            for (int half = 0; half < 2; half++) {
                const int first = half ? 4 : 0, n = half ? MAX_PARAMETERS - 4 : 4;
                int64_t factored = 0;
                for (int i = 0; i < n; i++)
                    factored +=
                        shapes[first + i][0] * (shapes[first + i][1] ? shapes[first + i][1] : 1);
                op_begin(optimizer_shape(dtype, n, factored), "adafactor, %s, gradient %s",
                         keep_name((Keep)keep), dtype_name(same ? dtype : DTYPE_FP32));

                UpdateCase p[MAX_PARAMETERS];
                for (int i = 0; i < n; i++) {
                    p[i] =
                        parameter_make(adafactor_spec(dtype, same ? dtype : DTYPE_FP32, (Keep)keep,
                                                      shapes[first + i][0], shapes[first + i][1]));
                    p[i].spec.stream = p[i].update.stream = i;
                }

                assert_int_equal(factored_elements(p, n), factored);
                adafactor_steps(p, n, 0.25f, 3);
                op_end();
            }
}

OP_TEST(adafactor_of_a_large_matrix_matches) {
    enum { ROWS = 1030 };
    for (int i = 0; i < 3;
         i++) { // rows that begin anywhere, rows of whole vectors in two tiles, and these as slices
        const int cols = i == 0 ? 97 : 200;
        op_begin_tensors_at(i == 2 ? 8 : 0);
        op_begin(optimizer_shape(dtype, 1, ROWS * cols), "adafactor of %dx%d", ROWS, cols);
        UpdateCase p = parameter_make(adafactor_spec(dtype, DTYPE_FP32, WEIGHT_ALONE, ROWS, cols));
        adafactor_steps(&p, 1, 1.0f, 2);
        op_end();
    }
}

// The padding of the vocabulary has no gradient, and changes nothing: u, rms and with them the
// update are those of the matrix without it.
OP_TEST(padding_does_not_count) {
    enum { USED = 257, ROWS = 384, COLS = 20 };
    op_begin(optimizer_shape(dtype, 1, ROWS * COLS), "adafactor of %d rows, %d of them padding",
             ROWS, ROWS - USED);
    UpdateCase p = parameter_make(adafactor_spec(dtype, DTYPE_FP32, WEIGHT_ALONE, ROWS, COLS));
    p.update.padding = (ROWS - USED) * COLS;
    memset(p.grad.v + USED * COLS, 0, (ROWS - USED) * COLS * sizeof *p.grad.v);
    op_upload(&p.grad);

    Tensor control = control_with(1.0f, SKIP_NONE);
    control_set(control, 1, update_params, 1.0f); // row and col are of this gradient alone
    p.updates = 1;

    double row[USED], col[COLS], rms;
    RefUpdate used = parameter_reference(&p);
    used.n = USED * COLS, used.padding = 0, used.row = row, used.col = col, used.rms = &rms;
    memset(row, 0, sizeof row), memset(col, 0, sizeof col);
    ref_adafactor_statistics(&used, 1.0);

    UpdateList list = update_list(&p.update, 1);
    adafactor_statistics(&list, control);
    update_list_free(&list);
    expect_statistics(&p, 1.0f);
    op_expect("rms against that of the rows alone", fabs(p.rms.v[0] / rms - 1.0),
              op_limit(DTYPE_FP32, 1));
    op_end();
}

// The update is u / rms where rms is above 1: as long as the statistics lag behind gradients that
// grew.
OP_TEST(an_update_beyond_one_is_scaled_back_to_it) {
    op_begin(optimizer_shape(dtype, 1, 64 * 64), "gradients that grow a hundredfold");
    UpdateCase p = parameter_make(adafactor_spec(dtype, DTYPE_FP32, WEIGHT_ALONE, 64, 64));
    Tensor control = control_with(1.0f, SKIP_NONE);
    UpdateList list = update_list(&p.update, 1);

    p.updates = 1;
    control_set(control, 1, update_params, 1.0f);
    adafactor_statistics(&list, control);
    expect_statistics(&p, 1.0f);

    for (int64_t i = 0; i < p.n; i++) p.grad.v[i] *= 100.0;
    op_upload(&p.grad);
    p.updates = 100;
    control_set(control, 100, update_params, 1.0f);
    adafactor_statistics(&list, control);
    expect_statistics(&p, 1.0f);
    assert_true(p.rms.v[0] > 3.0); // 100 / sqrt(b + (1-b) 100^2) with 1 - b = 100^-0.8

    optimizer_update(&list, 0, 1, update_params, control);
    update_list_free(&list);
    parameter_expect_update(&p, update_params, 1.0f);
    op_end();
}

// Rows and columns without any gradient: only the 1e-30 keeps 0 / 0 away, in a place where a
// product of a row and a column is far below the range of fp32.
OP_TEST(rows_and_columns_of_zeros_do_not_move) {
    enum { ROWS = 40, COLS = 50 };
    op_begin(optimizer_shape(dtype, 1, ROWS * COLS), "adafactor with zero gradients");
    UpdateCase p = parameter_make(adafactor_spec(dtype, DTYPE_FP32, WEIGHT_ALONE, ROWS, COLS));
    p.update.weight_decay = 0.0f, p.spec.weight_decay = 0.0f;

    for (int64_t i = 0; i < p.n; i++)
        if (i / COLS % 3 == 0 || i % COLS % 5 == 0) p.grad.v[i] = 0.0;
    op_upload(&p.grad);

    double before[ROWS * COLS];
    memcpy(before, p.weight.v, sizeof before);
    adafactor_steps(&p, 1, 1.0f, 1);

    for (int64_t i = 0; i < p.n; i++) assert_true(isfinite(p.weight.v[i]));
    for (int64_t i = 0; i < p.n; i++)
        if (p.grad.v[i] == 0.0) assert_true(p.weight.v[i] == before[i]);
    op_end();
}

// -------------------------------------------------------------------------------------------- Muon

// m = momentum m + g, then grad = g + momentum m. Two sums, one after the other: grad has twice the
// slack of a moment, and of the size of the terms, |m| + |g|, because these may cancel. A tensor of
// one element once had a grad of 5.9e-6, left by terms of 0.084; the 1.1e-9 that momentum m was
// wrong by, a sixth of an ulp, were 1.9e-4 of it.
static void expect_momentum(UpdateCase *p, float grad_factor) {
    double *size = calloc((size_t)p->n, sizeof *size);
    for (int64_t i = 0; i < p->n; i++)
        size[i] = 2.0 * (fabs(p->m_values[i]) + fabs(p->grad.v[i] * (double)grad_factor));
    expect_moments(p, ref_momentum_update, update_params, grad_factor);
    expect_within(p->grad, p->grad.v, size, 0.5);
    free(size);
}

static void momentum_case(DType dtype, DType grad, DType state) {
    enum { N = 4 };
    static const int64_t sizes[N] = {1, 7, 257, 4099};
    op_begin(optimizer_shape(dtype, N, 0), "momentum_update, state %s, gradient %s",
             dtype_name(state), dtype_name(grad));

    UpdateCase p[N];
    UpdateTensor tensors[N];
    for (int i = 0; i < N; i++)
        p[i] = parameter_make((UpdateSpec){.rule = RULE_DIRECTION,
                                           .dtype = dtype,
                                           .grad = grad,
                                           .state = state,
                                           .rows = sizes[i],
                                           .rate = 1.0f,
                                           .stream = i});

    update_tensors(p, N, tensors);
    UpdateList list = update_list(tensors, N);
    momentum_update(&list, update_params, control_with(0.25f, SKIP_NONE));
    update_list_free(&list);

    for (int i = 0; i < N; i++) expect_momentum(&p[i], 0.25f);
    op_end();
}

OP_TEST(momentum_update_matches_with_every_state) {
    static const DType states[] = {DTYPE_FP32, DTYPE_BF16, DTYPE_U8};
    for (int i = 0; i < 3; i++) {
        momentum_case(dtype, DTYPE_FP32, states[i]);
        if (dtype != DTYPE_FP32) momentum_case(dtype, dtype, states[i]);
    }
}

// ------------------------------------------------------------------------------------- other rules

// Both ops go through the whole array and touch what is theirs.
OP_TEST(statistics_and_momentum_leave_tensors_of_other_rules) {
    static const UpdateRule rules[] = {RULE_ADAMW, RULE_ADAFACTOR, RULE_DIRECTION, RULE_ADAFACTOR,
                                       RULE_SGD};
    enum { N = 5 };
    op_begin(optimizer_shape(dtype, N, 64 * 33 + 64), "mixed rules");
    UpdateCase p[N];
    UpdateTensor tensors[N];
    for (int i = 0; i < N; i++)
        p[i] = parameter_make((UpdateSpec){.rule = rules[i],
                                           .dtype = dtype,
                                           .grad = DTYPE_FP32,
                                           .rows = 64,
                                           .cols = i == 1 ? 33 : 0,
                                           .rate = 1.0f,
                                           .stream = i});

    update_tensors(p, N, tensors);
    UpdateList list = update_list(tensors, N);
    Tensor control = control_with(0.5f, SKIP_NONE);

    uint64_t before[N], between[N];
    for (int i = 0; i < N; i++) before[i] = parameter_digest(&p[i], 0);
    adafactor_statistics(&list, control);
    for (int i = 0; i < N; i++) between[i] = parameter_digest(&p[i], 0);
    for (int i = 0; i < N; i++)
        assert_true((before[i] == between[i]) == (rules[i] != RULE_ADAFACTOR));

    momentum_update(&list, update_params, control);
    update_list_free(&list);
    for (int i = 0; i < N; i++)
        assert_true((parameter_digest(&p[i], 0) == between[i]) == (rules[i] != RULE_DIRECTION));

    for (int i = 0; i < N; i++)
        if (rules[i] == RULE_ADAFACTOR) expect_statistics(&p[i], 0.5f);
    op_end();
}
