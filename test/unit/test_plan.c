// The planner's figures against independent ways to the same numbers: bytes from the costs of ops
// and by hand, memory from the plan itself. What it chooses is test_plan_fit's, the table of GPUs
// test_gpu_table's.
#include "llmc/model/parameters.h"
#include "llmc/plan/dry_run.h"
#include "llmc/plan/plan_fit.h"
#include "llmc/plan/plan_print.h"
#include "test/fixture.h"
#include "test/op_cost.h"
#include "test/unit/device_fixture.h"
#include "test/unit/plan_case.h"

static Error err;

TestFixture test_all = {start_device, stop_device};

// -------------------------------------------------------------------------------------- arithmetic

TEST(the_least_time_is_flops_over_peak_and_bytes_over_bandwidth) {
    const int64_t tokens = 512 * 1024;
    ModelOptions model = model_of("d12", 8, 1024);
    model.dtype = DTYPE_FP16;
    const StepLimit t4 = plan_step_limit(gpu_named("T4"), &model, tokens);
    assert_near("T4", t4.seconds,
                plan_step_flops(&model, tokens) / 65e12 + plan_step_bytes(&model, tokens) / 320e9,
                1e-12);
    model.dtype = DTYPE_BF16;
    assert_true(plan_step_limit(gpu_named("T4"), &model, tokens).seconds == 0); // it has no bf16
}

TEST(flops_are_the_exact_count) {
    ModelOptions model = model_of("d12", 64, 1024);

    // 798.0 MFLOP a token
    const double exact = 72.0 * 12 * 768 * 768 + 6.0 * 50304 * 768 + 6.0 * 12 * 768 * 1025;
    assert_near("a token", plan_step_flops(&model, 1), exact, 1e-12);
    assert_near("a step", plan_step_flops(&model, 524288), 524288 * exact, 1e-12);

    model.recompute = recompute_all(recompute_level_set(2));
    assert_near("-r 2", plan_step_flops(&model, 1), exact, 1e-12);
    model.recompute = recompute_all(RECOMPUTE_BLOCK);
    assert_near("-r 3", plan_step_flops(&model, 1),
                exact + 16.0 * 12 * 768 * 768 + 2.0 * 12 * 768 * 1025, 1e-12);

    model.config.d_ff = 1024; // 2048 less, each 6 a weight of two matmuls, and of fc twice more
    assert_near("d_ff", plan_step_flops(&model, 1),
                exact + 16.0 * 12 * 768 * 768 + 2.0 * 12 * 768 * 1025 - 14.0 * 12 * 768 * 2048,
                1e-12);
}

TEST(the_predicted_work_is_that_of_the_model_whatever_its_d_ff) {
    static Prediction p;
    ModelOptions model = model_of("d12", 64, 1024);
    const PredictOptions options = {0};
    for (int64_t d_ff = 0; d_ff <= 4096; d_ff += 1024) {
        model_config_set_d_ff(&model.config, d_ff);
        double flops = 0;
        plan_predict(&p, gpu_named("H200"), &model, 65536, &options, false);
        for (int i = 0; i < p.count; i++)
            if (strncmp(p.ops[i].op, "matmul", 6) == 0) flops += p.ops[i].flops;
        assert_near("matmuls", flops, 65536 * flops_per_token_linear(&model.config), 1e-12);
    }
}

// Families of blocks, by hand. A block of d12 in matrices of 768 rows or columns: qkv 2304, attproj
// 768; fc and fcproj 2 x 3072, or with a gate 3 x 2048. NKV = 4: qkv (12 + 2 x 4) 64 = 1280.
static const struct {
    const char *descriptor;
    int64_t others, width; // parameters outside the matrices of the blocks; rows of those, a block
    double moved; // of a token in a block: elements of RoPE, QK-norm and activation, both passes
    double kept; // of a token in a block: bytes from the forward pass to the backward pass, in bf16
} blocks_by_hand[] = {
    // 12 x (2 x 2 x 768 of the norms; biases 2304 + 768 + 3072 + 768) + 2 x 768, wte. RoPE on q and
    // k, in place: read
    // and written twice. Kept: 4 C, qkv 3 C, att C, pre and gelu 4 C each, 2 bytes; 4 statistics
    // and lse, 4 bytes.
    {"starcoder2:d12", 12 * (4 * 768 + 6912) + 2 * 768 + 50304 * 768, 9216, 4 * 2 * 768,
     2 * 16 * 768 + 4 * (4 + 12)},
    // Norms without bias, a head. SwiGLU: 4096 to 2048, and 4096 and 2048 to 4096. Kept: pre 4096,
    // product 2048.
    {"llama:d12", 12 * 2 * 768 + 768 + 2 * 50304 * 768, 9216, 4 * 2 * 768 + 3 * 4096 + 2 * 2048,
     2 * (8 * 768 + 6144) + 4 * (2 + 12)},
    // QK-norm copies the packed 2304: read and written; its backward pass reads q and k twice and
    // writes them once.
    // Kept: that copy, and a root mean square for each of 24 heads.
    {"qwen3:d12", 12 * (2 * 768 + 2 * 64) + 768 + 50304 * 768, 9216,
     2 * 2304 + 3 * 2 * 768 + 3 * 4096 + 2 * 2048, 2 * (11 * 768 + 6144) + 4 * (2 + 12 + 24)},
    {"qwen3:d12,NKV=4", 12 * (2 * 768 + 2 * 64) + 768 + 50304 * 768, 8192,
     2 * 1280 + 3 * 1024 + 3 * 4096 + 2 * 2048,
     2 * (5 * 768 + 2 * 1280 + 6144) + 4 * (2 + 12 + 16)},
    // ReLU^2: 3072 to 3072, and 2 x 3072 to 3072.
    {"arcee:d12", 12 * 2 * 768 + 768 + 2 * 50304 * 768, 9216, 4 * 2 * 768 + 5 * 3072,
     2 * (8 * 768 + 6144) + 4 * (2 + 12)},
};
enum { NUM_BLOCKS_BY_HAND = sizeof blocks_by_hand / sizeof blocks_by_hand[0] };

TEST(parameters_and_flops_of_families_are_those_counted_by_hand) {
    for (int i = 0; i < NUM_BLOCKS_BY_HAND; i++) {
        const ModelOptions model = model_of(blocks_by_hand[i].descriptor, 64, 1024);
        const int64_t matrices = 12 * 768 * blocks_by_hand[i].width;
        assert_int_equal(parameter_total(&model.config), blocks_by_hand[i].others + matrices);
        assert_near(blocks_by_hand[i].descriptor, plan_step_flops(&model, 1),
                    6.0 * (double)matrices + 6.0 * 50304 * 768 + 6.0 * 12 * 768 * 1025, 1e-12);
    }
}

TEST(bytes_of_families_are_those_counted_by_hand) {
    for (int i = 0; i < NUM_BLOCKS_BY_HAND; i++) {
        const ModelOptions model = model_of(blocks_by_hand[i].descriptor, 8, 1024);

        const double moved = plan_step_bytes(&model, 1) - plan_step_bytes(&model, 0);
        const double norms_and_ends = (12 * 12 + 8) * 768 + 2 * 50304;
        assert_near(blocks_by_hand[i].descriptor, moved,
                    2 * (norms_and_ends + 12 * blocks_by_hand[i].moved), 1e-9);

        ModelOptions deeper = model;
        deeper.config.L++;
        const double kept = (plan_memory(&deeper).classes[MEM_ACTIVATIONS] -
                             plan_memory(&model).classes[MEM_ACTIVATIONS]) /
                            (8 * 1024);
        assert_near(blocks_by_hand[i].descriptor, kept, blocks_by_hand[i].kept, 1e-6);
    }
}

// The dry run has the ops of the step itself, so its sums are found in another way than the
// formulas.
typedef struct {
    double flops, updates, calls, bytes; // bytes: of what is neither a product nor of the step
} DrySums;

static void add_dry(void *context, const OpCost *cost, double calls) {
    DrySums *sums = context;
    sums->flops += calls * cost->flops;
    sums->updates += strcmp(cost->op, "optimizer_update") == 0 ? calls : 0;
    sums->calls += calls;
    static const char *const others[] = {"rmsnorm", "layernorm", "qk_norm_rope", "gelu",
                                         "swiglu",  "relu2",     "embedding"};
    for (size_t i = 0; i < sizeof others / sizeof others[0]; i++)
        if (strncmp(cost->op, others[i], strlen(others[i])) == 0)
            sums->bytes += calls * cost->bytes;
}

TEST(flops_and_bytes_of_families_are_those_of_a_dry_run) {
    const int sets[] = {0, RECOMPUTE_GELU | RECOMPUTE_LAYERNORM, RECOMPUTE_FC | RECOMPUTE_QKV,
                        RECOMPUTE_BLOCK};

    for (int i = 0; i < 4 * NUM_BLOCKS_BY_HAND; i++) {
        ModelOptions model = model_of(blocks_by_hand[i / 4].descriptor, 64, 1024);
        DrySums sums = {0};
        model.recompute = recompute_all(sets[i % 4]);

        assert_true(dry_run_step(&model, 1, add_dry, &sums));
        assert_near("FLOP", sums.flops,
                    65536 * flops_per_token_hardware(&model.config, model.T, &model.recompute),
                    1e-12);

        // Statistics and parameters, and the rows of wte, as
        // bytes_of_activations_are_those_of_the_op_table says.
        assert_near("bytes",
                    plan_step_bytes(&model, 65536) - plan_step_bytes(&model, 0) -
                        2.0 * 50304 * 2 * 65536,
                    sums.bytes, 0.025);
    }
}

TEST(the_flops_of_a_dry_run_are_those_of_the_formula) {
    const int sets[] = {0, RECOMPUTE_GELU | RECOMPUTE_LAYERNORM, RECOMPUTE_BLOCK};

    for (int i = 0; i < 12; i++) {
        ModelOptions model = model_of("d12", 4, 256);
        DrySums sums = {0};
        model.recompute = recompute_all(sets[i % 3]);
        model.gradients_in_dtype = i & 1;
        model.optimizer = i < 6 ? OPTIMIZER_ADAMW : OPTIMIZER_MUON;
        if (i % 4 == 3) model.dtype = DTYPE_FP32;
        if (i == 5) model.dtype = DTYPE_FP16; // which the CPU has not: bf16 has the same ops

        assert_true(dry_run_step(&model, 2.5, add_dry, &sums));
        assert_near("FLOP", sums.flops,
                    2560 * flops_per_token_hardware(&model.config, model.T, &model.recompute) +
                        plan_step_flops(&model, 0),
                    1e-12);
        assert_true(sums.updates == 1);
    }
}

TEST(a_dry_run_takes_no_memory_and_leaves_no_observer) {
    ModelOptions model = model_of("d48", 512, 1024); // 1.2 TB
    DrySums sums = {0};
    assert_true(dry_run_step(&model, 1, add_dry, &sums) && sums.calls > 48 * 15);
    assert_false(ops_are_observed());
    model.offload = true;
    assert_false(dry_run_step(&model, 1, add_dry, &sums));
}

// Per block a matrix of 768 x 768 four times (three of them in qkvw) and of 768 x 3072 twice: 5 (4
// m^2 n + 2 m^3) each.
TEST(muon_adds_its_products_once_a_step) {
    ModelOptions model = model_of("d12", 64, 1024);
    const double adamw = plan_step_flops(&model, 524288), m = 768, n = 3072;
    model.optimizer = OPTIMIZER_MUON;
    const double products = 12 * 5 * (4 * 6 * m * m * m + 2 * (4 * m * m * n + 2 * m * m * m));
    assert_near("muon", plan_step_flops(&model, 524288) - adamw, products, 1e-6); // of a difference
    assert_near("muon", plan_step_flops(&model, 0), products, 1e-12);
}

TEST(fp8_takes_the_linear_layers_to_its_own_peak) {
    const int64_t tokens = 524288;
    ModelOptions model = model_of("d12", 64, 1024);
    assert_true(plan_step_fp8_flops(&model, tokens) == 0);

    const double bytes = plan_step_bytes(&model, tokens),
                 without = plan_step_limit(gpu_named("H200"), &model, tokens).seconds;
    model.fp8 = true;
    const double linear = 72.0 * 12 * 768 * 768;
    assert_near("a token", plan_step_fp8_flops(&model, 1), linear, 1e-12);

    // 7 C in and 9 C of gradients a block, read twice (amax, then values) and written twice, a byte
    // each.
    assert_near("bytes", plan_step_bytes(&model, tokens) - bytes,
                (double)tokens * 16 * 12 * 768 * (2 * 2 + 2), 1e-9);

    const StepLimit s = plan_step_limit(gpu_named("H200"), &model, tokens);
    assert_near("H200", s.seconds,
                (s.flops - s.fp8_flops) / 989.4e12 + s.fp8_flops / 1978.9e12 + s.bytes / 4800e9,
                1e-12);
    assert_true(s.seconds < without);

    model.recompute = recompute_all(RECOMPUTE_BLOCK); // its attention stays as it is
    assert_near("-r 3", plan_step_fp8_flops(&model, 1), linear + 16.0 * 12 * 768 * 768, 1e-12);
    // The A100 has no fp8.
    assert_true(plan_step_limit(gpu_named("A100 80GB"), &model, tokens).seconds == 0);
}

// Adds up what the ops of a micro-step that are neither matmul nor attention move, by their costs.
static double bytes_by_op_costs(const ModelOptions *o) {
    static char somewhere[1];
    const int64_t B = o->B, T = o->T, C = o->config.C;
    const Tensor act = tensor_make(somewhere, o->dtype, "act", B, T, C, 0);
    const Tensor stat = tensor_make(somewhere, DTYPE_FP32, "stat", B, T, 0, 0);
    const Tensor weight = tensor_make(somewhere, o->dtype, "w", C, 0, 0, 0);
    const Tensor grad = tensor_make(somewhere, DTYPE_FP32, "dw", C, 0, 0, 0);
    const Tensor tokens = tensor_make(somewhere, DTYPE_I32, "inputs", B, T, 0, 0);
    const Tensor wte = tensor_make(somewhere, o->dtype, "wte", o->config.Vp, C, 0, 0);
    const Tensor wpe = tensor_make(somewhere, o->dtype, "wpe", o->config.max_T, C, 0, 0);
    const Tensor dwte = tensor_make(somewhere, DTYPE_FP32, "dwte", o->config.Vp, C, 0, 0);
    const Tensor dwpe = tensor_make(somewhere, DTYPE_FP32, "dwpe", o->config.max_T, C, 0, 0);

    const double layernorms = 2.0 * (double)o->config.L; // whose input gradients are added
    const double ends =
        COST_OF(embedding_forward(act, tokens, wte, wpe),
                embedding_backward(gradient_to(dwte, true), gradient_to(dwpe, false), act, tokens),
                layernorm_forward(act, stat, stat, act, weight, weight, 1e-5f),
                layernorm_backward(gradient_to(act, false), gradient_to(grad, false),
                                   gradient_to(grad, false), gradient_to(grad, false), act, act,
                                   stat, stat, weight))
            .bytes;

    const double blocks =
        COST_OF(layernorm_forward(act, stat, stat, act, weight, weight, 1e-5f),
                layernorm_backward(gradient_to(act, true), gradient_to(grad, false),
                                   gradient_to(grad, false), gradient_to(grad, false), act, act,
                                   stat, stat, weight))
            .bytes;

    return ends + layernorms * blocks;
}

TEST(bytes_of_activations_are_those_of_the_op_table) {
    // The planner's formula leaves out statistics and parameters (0.3% at C = 768) and counts a row
    // of the embedding table for each token (1 of 152 C, against the rows that occur and their fp32
    // gradients): together below 2.5%.
    const ModelOptions model = model_of("d12", 64, 1024);
    const int64_t tokens = model.B * model.T;
    // The logits are scratch and not in the op table.
    const double logits = 2.0 * (double)model.config.Vp * 2 * (double)tokens;
    const double per_step = plan_step_bytes(&model, 0);
    assert_near("bytes", plan_step_bytes(&model, tokens) - per_step - logits,
                bytes_by_op_costs(&model), 0.025);
}

// Bytes a parameter that the norm (the gradient once) and the update read and write, by hand.
TEST(bytes_of_the_update_are_what_each_optimizer_keeps) {
    const struct {
        OptimizerKind kind;
        bool master, compute;
        double bytes;
    } cases[] = {
        {OPTIMIZER_ADAMW, true, false,
         4 + 4 + 2 * (4 + 8) + 2}, // gradient twice; master, moments; weight
        {OPTIMIZER_ADAMW, false, false, 4 + 4 + 2 * (2 + 8)}, // the weight itself
        {OPTIMIZER_ADAMW, true, true,
         2 + 2 + 2 * (4 + 8) + 2 + 8}, // and added in a micro-step: 4 read, 2 twice
        {OPTIMIZER_ADAMW_8BIT, false, false, 4 + 4 + 2 * (2 + 2 + 2 * 4.0 / 256)},
        {OPTIMIZER_ADAMW_BF16, false, false, 4 + 4 + 2 * (2 + 4)},
        {OPTIMIZER_ADAMW_KAHAN, false, false, 4 + 4 + 2 * (2 + 2 + 4)},
        {OPTIMIZER_LION, true, false, 4 + 4 + 2 * (4 + 4) + 2},
        {OPTIMIZER_SGD, true, false, 4 + 4 + 2 * (4 + 4) + 2},
        {OPTIMIZER_ADAFACTOR, true, false,
         4 + 4 + 2 * 4 + 2 + 2 * 4}, // statistics read the gradient twice more
    };

    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        ModelOptions model = model_of("d12", 1, 64);
        model.optimizer = cases[i].kind, model.master = cases[i].master,
        model.gradients_in_dtype = cases[i].compute;

        const int64_t one_micro_step = cases[i].compute ? 64 : 0;
        const double a_token = plan_step_bytes(
            &(ModelOptions){.config = model.config, .B = 1, .T = 64, .dtype = DTYPE_BF16}, 64);
        const double got = plan_step_bytes(&model, one_micro_step) - (one_micro_step ? a_token : 0);

        // Vectors, 0.1% of the parameters, are kept otherwise by some; rows, columns and scales are
        // as few.
        assert_near(optimizer_name(cases[i].kind), got / (double)parameter_total(&model.config),
                    cases[i].bytes, 0.005);
    }
}

TEST(fp32_keeps_no_master_and_moves_more) {
    ModelOptions model = model_of("d12", 1, 64);
    model.dtype = DTYPE_FP32, model.master = false;
    assert_near("fp32", plan_step_bytes(&model, 0),
                (4 + 4 + 2 * (4 + 8)) * (double)parameter_total(&model.config), 1e-12);
}

// --------------------------------------------------------------------------------------- what fits

static PlanRequest request_of(ModelOptions model, int64_t windows, int64_t steps) {
    return (PlanRequest){.model = model,
                         .step_windows = windows,
                         .recompute = "0",
                         .max_steps = steps,
                         .gpus = "",
                         .comm_overlap = true};
}

static DevicePlan device_plan(const PlanRequest *request, const char *name) {
    static DevicePlan plan; // it stays where it is
    GpuChoice gpu;
    assert_true(gpu_find(&gpu, name, strlen(name), &err));
    plan_device(&plan, request, &gpu);
    plan_alternatives(&plan, request);
    return plan;
}

TEST(no_batch_fits_where_one_sequence_does_not) {
    const ModelOptions model = model_of("d12", 4, 1024);
    const double one = total_at(&model, 1);
    assert_int_equal(plan_largest_batch(&model, one - 1, 512), 0);
    assert_int_equal(plan_largest_batch(&model, one, 1), 1);
    assert_int_equal(plan_largest_batch(&model, one, 512), 1);
    assert_int_equal(plan_largest_batch(&model, 1e18, 512), 512);
}

TEST(recomputing_fits_more_and_takes_longer) {
    PlanRequest request = request_of(model_of("d24", 4, 1024), 512, 0);
    const char *const levels[] = {"0", "1", "2", "3"};
    double seconds = 0;
    int64_t most = 0;
    for (int level = 0; level < 4; level++) {
        request.recompute = levels[level];
        const DevicePlan p = device_plan(&request, "RTX 4090");
        assert_true(p.batch > most && p.step.seconds > seconds);
        assert_int_equal(p.most[level], p.batch);
        most = p.batch, seconds = p.step.seconds;
    }
}

TEST(a_gpu_computes_in_what_it_has) {
    PlanRequest request = request_of(model_of("d12", 4, 1024), 512, 0);
    request.model.fp8 = true;
    assert_int_equal(device_plan(&request, "t4").model.dtype, DTYPE_FP16);
    assert_false(device_plan(&request, "t4").model.fp8);
    assert_true(device_plan(&request, "h100").model.fp8);
    const DevicePlan size = device_plan(&request, "24G");
    assert_true(size.step.seconds == 0 && size.fits && size.batch > 4); // memory alone is known
}

TEST(the_context_is_left_free) {
    PlanRequest request = request_of(model_of("d12", 8, 1024), 512, 0);
    GpuChoice gpu;
    DevicePlan p;

    assert_true(gpu_find(&gpu, "A100 40GB", 9, &err));
    plan_device(&p, &request, &gpu);

    gpu.spec.memory = p.memory.total / 0.94 + 1;
    plan_device(&p, &request, &gpu);
    assert_true(p.fits);

    gpu.spec.memory -= 2;
    plan_device(&p, &request, &gpu);
    assert_true(!p.fits && p.batch == 7);

    assert_true(plan_reserve(80e9) == 1e9);
    assert_true(plan_room(true) < (double)device_facts()->memory_free);
}

TEST(the_memory_is_that_of_the_plan_and_every_activation_has_a_kind) {
    const int sets[] = {0, RECOMPUTE_GELU | RECOMPUTE_LAYERNORM, RECOMPUTE_BLOCK};

    for (int i = 0; i < 12; i++) {
        ModelOptions model = model_of("d12", 2, 1024);
        model.recompute = recompute_all(sets[i % 3]);
        model.gradients_in_dtype = i & 1, model.sequences = i & 2 ? 300 : 1;
        model.optimizer = i < 6 ? OPTIMIZER_ADAMW : OPTIMIZER_MUON, model.numerics = i % 4 == 3;
        model.fp8 = i % 5 == 4;

        const PlannedMemory m = plan_memory(&model);
        double classes = 0, kinds = 0;
        for (int c = 0; c < MEM_CLASS_COUNT; c++) classes += m.classes[c];
        for (int k = 0; k < KIND_COUNT; k++) kinds += m.kinds[k];

        assert_true(m.total == total_at(&model, 2) && classes == m.total);
        assert_true(kinds == m.classes[MEM_ACTIVATIONS]);

        MemoryPlan *plan = model_plan(&model);
        for (int t = 0; t < memory_plan_count(plan); t++)
            if (memory_plan_tensor(plan, t).memory_class == MEM_ACTIVATIONS &&
                activation_kind(memory_plan_tensor(plan, t).name) == KIND_OTHER)
                fail_msg("%s is of no kind", memory_plan_tensor(plan, t).name);
        memory_plan_destroy(plan);
    }
}

// ------------------------------------------------------------------------------------ several GPUs

static ModelOptions shared_by(ModelOptions model, int processes, int groups) {
    model.processes = processes, model.groups = groups, model.group_count = groups / processes;
    return model;
}

// With 8 groups a unit is cut into 8 cells of whole multiples of 256 elements: a block of 7087872
// is padded to 7088128, and what is outside blocks, 39421440, to 39421952.
static const double D12_OUTSIDE = 39421952, D12_PADDED = 39421952 + 12 * 7088128.0;

static void assert_exchange(const ModelOptions *model, double gradients, double weights) {
    const PlannedExchange e = plan_step_exchange(model);
    assert_true(e.gradients == gradients);
    assert_true(e.weights == weights);
}

TEST(each_gpu_sends_its_gradients_twice_but_for_its_own_slice) {
    ModelOptions model = shared_by(model_of("d12", 8, 1024), 8, 8);
    assert_exchange(&model, 2 * 7 * (D12_PADDED * 4 / 8), 0);
    model.gradients_in_dtype = true;
    assert_exchange(&model, 2 * 7 * (D12_PADDED * 2 / 8), 0);
    model = shared_by(model_of("d12", 8, 1024), 2, 8); // four groups each are added before
    assert_exchange(&model, D12_PADDED * 4, 0);
    model = shared_by(model_of("d12", 8, 1024), 1, 8);
    assert_exchange(&model, 0, 0);
}

TEST(with_divided_state_the_gradients_go_once_and_the_weights_come_back) {
    ModelOptions model = shared_by(model_of("d12", 8, 1024), 8, 8);
    model.divided = true;
    assert_exchange(&model, 7 * (D12_PADDED * 4 / 8), 7 * (D12_PADDED * 2 / 8));
    const PlannedExchange e = plan_step_exchange(&model);
    assert_true(e.last_gradients == 7 * (D12_OUTSIDE * 4 / 8) &&
                e.first_weights == 7 * (D12_OUTSIDE * 2 / 8));
    // Whole matrices: of the 12 blocks no GPU has more than six of the largest (5 C^2 with attproj,
    // or 4 C^2) ...
    model.optimizer = OPTIMIZER_MUON;
    const PlannedExchange muon = plan_step_exchange(&model);
    assert_true(muon.gradients >= e.gradients && muon.gradients < 2 * e.gradients);
}

TEST(divided_state_takes_its_share_of_memory_and_gradients_that_one_micro_step_frees) {
    const ModelOptions alone = model_of("d12", 8, 1024);
    ModelOptions shared = shared_by(alone, 8, 8);

    const PlannedMemory whole = plan_memory(&shared);
    shared.divided = true;
    shared.group_windows = 16; // two micro-steps
    const PlannedMemory divided = plan_memory(&shared);

    assert_true(divided.classes[MEM_GRADIENTS] == 4 * D12_PADDED);
    for (int c = MEM_MASTER; c <= MEM_OPTIMIZER; c++)
        if (c == MEM_MASTER || c == MEM_OPTIMIZER)
            assert_near("an eighth", divided.classes[c] / whole.classes[c], 0.125,
                        0.002); // of uneven cells

    shared.group_windows = 8; // one
    const PlannedMemory freed = plan_memory(&shared);
    const double block = (D12_PADDED - D12_OUTSIDE) / 12;
    assert_true(freed.classes[MEM_GRADIENTS] == 4 * (D12_OUTSIDE + 2 * block + D12_PADDED / 8));

    shared.group_count = 2; // the sum of two groups needs all gradients, twice
    assert_true(plan_memory(&shared).classes[MEM_GRADIENTS] == 8 * D12_PADDED);
}

// The planner's largest batch is at most a group, and the one that frees the gradients where that
// fits.
TEST(one_micro_step_is_preferred_where_it_frees_the_gradients) {
    ModelOptions model = shared_by(model_of("d24", 1, 1024), 8, 8);
    model.divided = true, model.group_windows = 4;
    model.B = 4;
    const double freed = plan_memory(&model).total;
    model.B = 3;
    assert_true(plan_memory(&model).total > freed);
    assert_int_equal(plan_largest_batch(&model, freed, 4), 4);
}

TEST(a_step_of_several_gpus_is_the_largest_share_and_then_the_exchange) {
    PlanRequest request = request_of(shared_by(model_of("d12", 8, 1024), 8, 8), 512, 19560);
    const struct {
        const char *gpu;
        double rate;
    } cases[] = {{"H100 SXM", 450e9}, {"H100 PCIe", 63.015e9}};
    const double sent = 2 * 7 * D12_PADDED * 4 / 8, late = 2 * 7 * D12_OUTSIDE * 4 / 8;

    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const DevicePlan p = device_plan(&request, cases[i].gpu);
        assert_int_equal(p.share_tokens, 64 * 1024);
        assert_near("share", p.step.flops,
                    65536 * (72.0 * 12 * 768 * 768 + 6.0 * 50304 * 768 + 6.0 * 12 * 768 * 1025),
                    1e-12);

        // The exchange after the last block is exposed, and of the others what is longer than the
        // backward passes of one of 8 micro-steps.
        const double hidden = fmin((sent - late) / cases[i].rate, p.step.seconds / 8 * 2 / 3);

        assert_near("exchange", p.exchange_seconds, sent / cases[i].rate, 1e-12);
        assert_near("exposed", p.exposed_seconds, sent / cases[i].rate - hidden, 1e-12);
        assert_near("step", p.step_seconds, p.step.seconds + p.exposed_seconds, 1e-12);
        assert_near("efficiency", p.efficiency, p.step.seconds / p.step_seconds, 1e-12);
        assert_true(p.step_tokens == 524288);
        assert_near("run", p.run_seconds, 19560 * p.step_seconds, 1e-12);
    }

    request.model = shared_by(request.model, 3, 3);
    // of 512 windows 170, 171 and 171
    assert_int_equal(device_plan(&request, "H100 SXM").share_tokens, 171 * 1024);
}

TEST(several_gpus_need_an_exchange_buffer_and_several_groups_their_sums) {
    const ModelOptions model = model_of("d12", 8, 1024);
    PlannedMemory alone = plan_memory(&model), m;

    ModelOptions shared = shared_by(model, 8, 8);
    m = plan_memory(&shared);

    // Two buffers for the ranges of a block of all processes, which are as long as the block; 8
    // groups of 8 losses.
    const double block = (D12_PADDED - D12_OUTSIDE) / 12;
    assert_true(m.classes[MEM_WORKSPACE] >
                alone.classes[MEM_WORKSPACE] + 2 * 4 * block + 8 * 8 * 4);
    // norm parts
    assert_true(m.classes[MEM_WORKSPACE] < alone.classes[MEM_WORKSPACE] + 2 * 4 * block + 0x1p20);
    assert_true(m.classes[MEM_GRADIENTS] == 4 * D12_PADDED);

    shared = shared_by(model, 8, 32); // four groups each: two levels of sums
    m = plan_memory(&shared);
    // Cells of 32 x 256 elements: 7094272 a block, 39428096 outside.
    assert_true(m.classes[MEM_GRADIENTS] == 3 * 4 * (39428096 + 12 * 7094272.0));
}

TEST(a_micro_batch_is_at_most_a_group) {
    PlanRequest request = request_of(shared_by(model_of("d12", 0, 1024), 8, 16), 512, 0);
    request.recompute = "auto";
    const DevicePlan p = device_plan(&request, "H200");
    assert_true(p.fits && p.model.B == 32 && p.batch == 32 && p.auto_batch == 32);
    request.step_windows = 0, request.model.B = 4;
    assert_true(device_plan(&request, "H200").step_tokens == 4 * 16 * 1024);
}

// ---------------------------------------------------------------------------------------- printing

static char *printed(const PlanRequest *request, bool json) {
    char *text = NULL;
    size_t size = 0;
    FILE *out = open_memstream(&text, &size);
    assert_non_null(out);
    if (!plan_print(out, request, json, &err)) fail_msg("%s", err.text);
    fclose(out);
    return text;
}

static int count_of(const char *text, const char *what) {
    int n = 0;
    for (const char *at = text; (at = strstr(at, what)); at++) n++;
    return n;
}

TEST(every_line_says_that_it_is_computed) {
    char *const gpus[] = {"", "t4,H200,24G"};
    for (int g = 0; g < 2; g++) {
        PlanRequest request = request_of(model_of("d12", 64, 1024), 512, 19560);
        request.gpus = gpus[g];
        char *text = printed(&request, false), *rest = NULL;
        int lines = 0;

        for (char *line = strtok_r(text, "\n", &rest); line;
             line = strtok_r(NULL, "\n", &rest), lines++)
            if (strncmp(line, "limit ", 6) != 0 && strncmp(line, "plan ", 5) != 0 &&
                strncmp(line, "planned ", 8) != 0 && strncmp(line, "predicted ", 10) != 0)
                fail_msg("%s", line);

        assert_true(lines > 20);
        free(text);
    }
}

static void assert_first_line(PlanRequest request, char *gpus, const char *const *parts) {
    request.gpus = gpus;
    char *text = printed(&request, false);
    text[strcspn(text, "\n")] = '\0';
    for (; *parts; parts++)
        if (!strstr(text, *parts)) fail_msg("'%s' is not in: %s", *parts, text);
    free(text);
}

TEST(the_first_line_is_the_answer) {
    PlanRequest request = request_of(model_of("d12", 8, 1024), 8, 1000);
    assert_first_line(request, "h200",
                      (const char *[]){"plan        H200: it fits with -b 8 -r 0 and takes ",
                                       " of ", "; all steps take at least ",
                                       ", at half the datasheet speed", NULL});

    request.max_steps = 0;
    assert_first_line(
        request, "h200,t4",
        (const char *[]){"plan        H200: it fits", "; a step takes at least ", NULL});

    request.model.B = 60000;
    assert_first_line(request, "t4",
                      (const char *[]){"plan        T4: not enough memory: -b 60000 -r 0 needs ",
                                       "; it fits with -b ", NULL});

    request.model.B = 1;
    assert_first_line(
        request, "",
        (const char *[]){"plan        this machine: it fits with -b 1 -r 0 and takes ",
                         "; no datasheet for this device: time per step unknown", NULL});
}

TEST(without_a_known_length_no_time_of_all_steps_is_shown) {
    PlanRequest request = request_of(model_of("d12", 4, 1024), 4, 1000);
    char *with = printed(&request, false);
    request.max_steps = 0;
    char *without = printed(&request, false);

    assert_non_null(strstr(with, "1000 steps"));
    assert_null(strstr(without, " steps:"));
    // of a step and of all steps
    assert_int_equal(count_of(with, ">= "), 2 * count_of(without, ">= "));
    free(with), free(without);

    request.model.train = false;
    char *evaluation = printed(&request, false);
    assert_null(strstr(evaluation, "gradients "));
    assert_null(strstr(evaluation, "FLOP / dense peak"));
    free(evaluation);
}

TEST(a_token_budget_has_its_time) {
    PlanRequest request = request_of(model_of("d12", 8, 1024), 512, 0);
    request.gpus = "H200", request.tokens = 10e9;
    const DevicePlan p = device_plan(&request, "H200");
    assert_near("run", p.run_seconds, p.step.seconds * 19074, 1e-12); // 10e9 / 524288, rounded up
    char *text = printed(&request, false);
    assert_non_null(strstr(text, "19074 steps: 10.00B tokens"));
    free(text);
}

static void assert_has(const char *text, const char *const *parts) {
    for (; *parts; parts++)
        if (!strstr(text, *parts)) fail_msg("'%s' is not in: %s", *parts, text);
}

TEST(the_plan_of_several_gpus_names_their_number_and_what_connects_them) {
    PlanRequest request = request_of(shared_by(model_of("d12", 8, 1024), 8, 8), 512, 19560);
    request.gpus = "h100";

    char *text = printed(&request, false);
    assert_has(
        text,
        (const char *[]){
            "plan        8 x H100 SXM: it fits with -b 8 -r 0 and takes ", " each; all steps",
            "8 GPUs, 8 groups of sequences", "in a step, each GPU with 65536 tokens computes ",
            "each GPU sends 831 MiB and receives as much: 450 GB/s over NVLink, >= 0.00194 s",
            "computation hides at most ", "limit       8 x H100 SXM: a step >= ", NULL});
    free(text);

    request.gpus = "";
    text = printed(&request, false);
    assert_has(text, (const char *[]){"8 processes on this machine: ", "  efficiency\n", NULL});
    free(text);
}

TEST(the_json_has_the_figures_of_the_plan) {
    PlanRequest request = request_of(model_of("d12", 1, 1024), 512, 100);
    request.model.B = 0, request.recompute = "auto", request.gpus = "T4";
    const DevicePlan p = device_plan(&request, "T4");

    char *text = printed(&request, true);
    cJSON *plan = cJSON_Parse(text);
    assert_non_null(plan);

    const cJSON *devices = cJSON_GetObjectItemCaseSensitive(plan, "devices");
    assert_int_equal(cJSON_GetArraySize(devices), 1);
    const cJSON *t4 = cJSON_GetArrayItem(devices, 0),
                *memory = cJSON_GetObjectItemCaseSensitive(t4, "memory"),
                *limit = cJSON_GetObjectItemCaseSensitive(t4, "limit");

    assert_true(json_number(t4, "batch_size") == (double)p.model.B && p.model.B == p.auto_batch);
    assert_true(json_number(memory, "total") == p.memory.total &&
                json_number(memory, "room") == 15.04e9);
    assert_near("step", json_number(limit, "step_seconds"), p.step.seconds, 1e-14);
    assert_near("run", json_number(limit, "run_seconds"), 100 * p.step.seconds, 1e-14);

    cJSON_Delete(plan);
    free(text);
}
