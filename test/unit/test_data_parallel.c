// The tree in which the gradients of a step's groups are added, and the shares of processes. What
// processes exchange is tested with processes: test/invariants, test/e2e/test_processes.py.

#include "llmc/base/random.h"
#include "llmc/data/dataloader.h"
#include "llmc/model/model_state.h"
#include "llmc/train/data_parallel.h"
#include "test/fixture.h"
#include "test/test.h"
#include "test/unit/device_fixture.h"
#include "test/unit/tiny_model.h"

static Error err;

TestFixture test_each = {.teardown = models_destroy}, test_all = {start_device, stop_device};

enum { B = 4, T = 16, MOST = 13 };

static Model *model_of_groups(int groups, DType dtype) {
    ModelOptions options = {.config = {.max_T = T, .L = 1, .NH = 2, .C = 64},
                            .dtype = dtype,
                            .train = true,
                            .B = B,
                            .T = T,
                            .gradients_in_dtype = dtype != DTYPE_FP32,
                            .groups = groups,
                            .group_count = groups};
    model_config_set_vocab(&options.config, 100);
    return model_of(options);
}

// Element e of the gradient of a group: values whose sum depends on the order, by several units in
// the last place.
static float gradient(int group, int64_t e) {
    const Philox bits = philox(5, (uint64_t)group, (uint64_t)e);
    float normal[2];
    philox_normal2(bits.v[0], bits.v[1], normal);
    return normal[0] * ldexpf(1.0f, group % 5 * 3);
}

static float rounded(float x, DType dtype) {
    return dtype == DTYPE_FP32 ? x : bf16_to_float(float_to_bf16(x));
}

// The sum of groups [first, first + n): of the largest power of two below n, and of the others.
static float tree(int first, int n, int64_t e, DType dtype) {
    if (n == 1) return rounded(gradient(first, e), dtype);
    int left = 1;
    while (2 * left < n) left *= 2;
    return rounded(tree(first, left, e, dtype) + tree(first + left, n - left, e, dtype), dtype);
}

static void check_tree(int groups, DType dtype) {
    enum { N = 1000 };
    Model *model = model_of_groups(groups, dtype);
    const Tensor all = model_unit_gradients(model, 0); // of a block
    StepShare share;
    float in[N], sums[N], losses[MOST * B];
    uint16_t narrow[N];
    assert_ok(step_share_make(&share, groups * 3, B, groups, 0, 1, &err));

    DataParallel *shared = data_parallel_create(&share, model, true, &err);
    data_parallel_begin(shared);

    for (int g = 0; g < groups; g++) {
        for (int64_t e = 0; e < N; e++) in[e] = gradient(g, e);
        convert_elements(narrow, dtype == DTYPE_FP32 ? DTYPE_BF16 : dtype, in, DTYPE_FP32, N);
        model_write_bytes(model, all, 0, N * (int64_t)dtype_size(dtype),
                          dtype == DTYPE_FP32 ? (void *)in : narrow);
        for (int b = 0; b < B; b++) losses[b] = (float)(g * B + b);
        model_write_bytes(model, model_sequence_losses(model), 0, B * (int64_t)sizeof(float),
                          losses);
        data_parallel_end_group(shared, g);
    }

    assert_ok(data_parallel_end(shared, &err));
    data_parallel_destroy(shared);

    model_read_bytes(model, all, 0, N * (int64_t)dtype_size(dtype),
                     dtype == DTYPE_FP32 ? (void *)sums : narrow);
    if (dtype != DTYPE_FP32) convert_elements(sums, DTYPE_FP32, narrow, dtype, N);
    for (int64_t e = 0; e < N; e++) {
        const float want = tree(0, groups, e, dtype);
        assert_memory_equal(&sums[e], &want, sizeof want);
    }

    assert_int_equal(tensor_numel(model_step_losses(model)), groups * B);
    model_read_bytes(model, model_step_losses(model), 0, groups * B * (int64_t)sizeof(float),
                     losses);
    for (int i = 0; i < groups * B; i++) assert_true(losses[i] == (float)i);
}

TEST(gradients_are_added_neighbours_first_whatever_their_number) {
    for (int groups = 1; groups <= MOST; groups++) check_tree(groups, DTYPE_FP32);
}

TEST(each_sum_of_bf16_gradients_is_rounded_to_bf16) {
    for (int groups = 1; groups <= MOST; groups += 3) check_tree(groups, DTYPE_BF16);
}

TEST(sums_take_the_memory_of_a_binary_counter) {
    const MemoryPlan *plan = model_memory(model_of_groups(1, DTYPE_FP32));
    const int64_t one = memory_plan_total(plan),
                  gradients = memory_plan_class_bytes(plan, MEM_GRADIENTS);
    const struct { int groups, sums; } cases[] = {{2, 1}, {3, 2}, {4, 2}, {5, 3}, {8, 3}, {9, 4}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const int64_t more =
            memory_plan_total(model_memory(model_of_groups(cases[i].groups, DTYPE_FP32))) - one;
        // and the losses of the groups, a few bytes
        assert_int_equal(more / gradients, cases[i].sums);
    }
}

// Micro-steps are numbered as in a process that computes all groups: see data_parallel.c.
TEST(each_group_draws_its_own_random_bits_whoever_computes_it) {
    enum { GROUPS = 8, WINDOWS = 19, MICRO_BATCH = 2, STRIDE = 2 }; // groups of 2 or 3 sequences
    ModelOptions options = *model_options(model_of_groups(GROUPS, DTYPE_BF16));

    for (int processes = 1; processes <= GROUPS; processes *= 2)
        for (int rank = 0; rank < processes; rank++) {
            StepShare share;
            assert_ok(step_share_make(&share, WINDOWS, MICRO_BATCH, GROUPS, rank, processes, &err));

            options.group_count = share.count;
            Model *model = model_of(options);
            DataParallel *shared = data_parallel_create(&share, model, true, &err);
            data_parallel_begin(shared);

            for (int g = 0; g < share.count; g++) {
                assert_int_equal(model_get_control(model).micro_steps, (share.first + g) * STRIDE);
                micro_step_count(model_control(model),
                                 ceil_div(step_share_windows(&share, g), MICRO_BATCH));
                data_parallel_end_group(shared, g);
            }

            // the exchange needs the others
            if (processes == 1) assert_ok(data_parallel_end(shared, &err));
            data_parallel_destroy(shared);
            if (processes > 1) continue;
            assert_int_equal(model_get_control(model).micro_steps, GROUPS * STRIDE);
        }
}

TEST(shares_are_consecutive_and_hold_every_sequence_once) {
    for (int64_t windows = 8; windows < 40; windows += 3)
        for (int processes = 1; processes <= 8; processes *= 2) {
            int64_t sum = 0;
            int next = 0;

            for (int rank = 0; rank < processes; rank++) {
                StepShare share;
                assert_ok(step_share_make(&share, windows, 4, 8, rank, processes, &err));
                assert_int_equal(share.first, next);
                next += share.count;
                for (int g = 0; g < share.count; g++) {
                    assert_in_range(step_share_windows(&share, g), windows / 8, windows / 8 + 1);
                    sum += step_share_windows(&share, g);
                }
            }

            assert_int_equal(sum, windows);
        }
}

TEST(only_powers_of_two_of_groups_fall_to_a_process) {
    StepShare share;
    const struct {
        int groups, processes;
        const char *possible; // NULL: this is
    } cases[] = {{1, 1, NULL},       {6, 1, NULL},          {6, 3, NULL},
                 {6, 6, NULL},       {8, 4, NULL},          {12, 3, NULL},
                 {6, 2, "1, 3, 6."}, {8, 3, "1, 2, 4, 8."}, {12, 2, "1, 3, 6, 12."},
                 {4, 8, "1, 2, 4."}};

    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const bool ok =
            step_share_make(&share, 100, 4, cases[i].groups, 0, cases[i].processes, &err);
        assert_int_equal(ok, cases[i].possible == NULL);
        if (cases[i].possible) assert_non_null(strstr(err.text, cases[i].possible));
    }

    assert_false(step_share_make(&share, 7, 4, 8, 0, 1, &err));
    assert_non_null(strstr(err.text, "7 sequences"));
}
