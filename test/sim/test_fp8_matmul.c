// fp8 products on the simulated cuBLASLt: what the library refuses, on which GPUs there are any,
// how sums and biases are asked for, what is planned, tuned and remembered, and that scales are
// read when a product runs. That the products are right is tested in test/ops/test_fp8.c. Each test
// is a process of its own: SIM_CC is read when it starts.
#include "test/fixture.h"
#include "test/sim/apart.h"

#include "dev/sim/cublaslt.h"
#include "llmc/cuda/backend.h"
#include "llmc/cuda/gemm.h"
#include "llmc/speed.h"
#include "test/ops/fp8_case.h"
#include <cublasLt.h>
#include <cuda_runtime_api.h>

static void start(const char *algorithms, const char *refused) {
    Error err;
    setenv("SIM_CUBLASLT_ALGOS", algorithms, 1);
    setenv("SIM_CUBLASLT_REFUSE", refused, 1);
    device_shutdown();
    if (!device_init(&(DeviceOptions){0}, &err)) op_fail("%s", err.text);
    memset(&sim_cublaslt_counts, 0, sizeof sim_cublaslt_counts);
}

// ------------------------------------------------------------------------------ the library itself

// One product as a caller of cuBLASLt sees it. Offsets in bytes move an operand away from its
// alignment.
typedef struct {
    const char *what;
    int64_t m, n, k;
    cudaDataType a, b, d;
    cublasOperation_t transa, transb;
    cublasComputeType_t compute;
    uint32_t epilogue;
    int a_offset, d_offset, c_offset;
    uint32_t b_alignment; // promised to the search
    bool host_scale;
} Direct;
static const Direct good = {"",
                            32,
                            48,
                            64,
                            CUDA_R_8F_E4M3,
                            CUDA_R_8F_E5M2,
                            CUDA_R_16BF,
                            CUBLAS_OP_T,
                            CUBLAS_OP_N,
                            CUBLAS_COMPUTE_32F,
                            CUBLASLT_EPILOGUE_DEFAULT,
                            0,
                            0,
                            0,
                            16,
                            false};

typedef struct {
    cublasLtMatmulDesc_t desc;
    cublasLtMatrixLayout_t a, b, d;
    char *memory; // A, B, D, bias and the scale, 64 KB each
} DirectObjects;
enum { PART = 64 << 10, PARTS = 6 };

static void set(const DirectObjects *o, cublasLtMatmulDescAttributes_t attribute, const void *value,
                size_t size) {
    assert_int_equal(cublasLtMatmulDescSetAttribute(o->desc, attribute, value, size),
                     CUBLAS_STATUS_SUCCESS);
}

static DirectObjects make(const Direct *p) {
    DirectObjects o;
    static const float one = 1.0f;
    const bool ta = p->transa == CUBLAS_OP_T, tb = p->transb == CUBLAS_OP_T;

    assert_int_equal(cudaMalloc((void **)&o.memory, PARTS * PART), cudaSuccess);
    assert_int_equal(cudaMemset(o.memory, 0, PARTS * PART), cudaSuccess);
    void *const bias = o.memory + 3 * PART, *const device_scale = o.memory + 4 * PART;
    assert_int_equal(cudaMemcpy(device_scale, &one, sizeof one, cudaMemcpyHostToDevice),
                     cudaSuccess);
    const void *const scale = p->host_scale ? (const void *)&one : device_scale;
    const int32_t transa = (int32_t)p->transa, transb = (int32_t)p->transb;

    assert_int_equal(cublasLtMatmulDescCreate(&o.desc, p->compute, CUDA_R_32F),
                     CUBLAS_STATUS_SUCCESS);
    set(&o, CUBLASLT_MATMUL_DESC_TRANSA, &transa, sizeof transa);
    set(&o, CUBLASLT_MATMUL_DESC_TRANSB, &transb, sizeof transb);
    set(&o, CUBLASLT_MATMUL_DESC_EPILOGUE, &p->epilogue, sizeof p->epilogue);
    set(&o, CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, &scale, sizeof scale);
    set(&o, CUBLASLT_MATMUL_DESC_B_SCALE_POINTER, &device_scale, sizeof device_scale);
    if (p->epilogue != CUBLASLT_EPILOGUE_DEFAULT)
        set(&o, CUBLASLT_MATMUL_DESC_BIAS_POINTER, &bias, sizeof bias);

    cublasLtMatrixLayoutCreate(&o.a, p->a, (uint64_t)(ta ? p->k : p->m),
                               (uint64_t)(ta ? p->m : p->k), ta ? p->k : p->m);
    cublasLtMatrixLayoutCreate(&o.b, p->b, (uint64_t)(tb ? p->n : p->k),
                               (uint64_t)(tb ? p->k : p->n), tb ? p->n : p->k);
    cublasLtMatrixLayoutCreate(&o.d, p->d, (uint64_t)p->m, (uint64_t)p->n, p->m);
    return o;
}

static cublasStatus_t search(cublasLtHandle_t handle, const DirectObjects *o, uint32_t b_alignment,
                             cublasLtMatmulAlgo_t *algorithm) {
    cublasLtMatmulPreference_t preference;
    cublasLtMatmulHeuristicResult_t result;
    const uint64_t workspace = PART;
    int found = 0;
    cublasLtMatmulPreferenceCreate(&preference);
    cublasLtMatmulPreferenceSetAttribute(preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES,
                                         &workspace, sizeof workspace);
    cublasLtMatmulPreferenceSetAttribute(preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES,
                                         &b_alignment, sizeof b_alignment);
    const cublasStatus_t status = cublasLtMatmulAlgoGetHeuristic(
        handle, o->desc, o->a, o->b, o->d, o->d, preference, 1, &result, &found);
    cublasLtMatmulPreferenceDestroy(preference);
    if (status == CUBLAS_STATUS_SUCCESS && found == 0) return CUBLAS_STATUS_NOT_SUPPORTED;
    *algorithm = result.algo;
    return status;
}

// Whether the library searches for, and then runs, this product.
static bool is_taken(const Direct *p) {
    cublasLtHandle_t handle;
    cublasLtMatmulAlgo_t algorithm;
    const float alpha = 1.0f, beta = 1.0f;

    assert_int_equal(cublasLtCreate(&handle), CUBLAS_STATUS_SUCCESS);
    const DirectObjects o = make(p);
    cublasStatus_t status = search(handle, &o, p->b_alignment, &algorithm);
    if (status == CUBLAS_STATUS_SUCCESS) {
        char *const a = o.memory + p->a_offset, *const d = o.memory + 2 * PART + p->d_offset;
        status = cublasLtMatmul(handle, o.desc, &alpha, a, o.a, o.memory + PART, o.b, &beta,
                                d + p->c_offset, o.d, d, o.d, &algorithm, o.memory + 5 * PART, PART,
                                NULL);
    }

    assert_int_equal(cudaDeviceSynchronize(), cudaSuccess);
    cublasLtMatmulDescDestroy(o.desc);
    cublasLtMatrixLayoutDestroy(o.a), cublasLtMatrixLayoutDestroy(o.b),
        cublasLtMatrixLayoutDestroy(o.d);
    cudaFree(o.memory);
    cublasLtDestroy(handle);
    return status == CUBLAS_STATUS_SUCCESS;
}

static void expect_taken(Direct p, const char *what) {
    if (!is_taken(&p)) op_fail("%s: refused", what);
}
static void expect_refused(Direct p, const char *what) {
    if (is_taken(&p)) op_fail("%s: taken", what);
}

// Each row is the good product but for one thing.
APART_TEST(what_cublaslt_refuses_in_fp8_is_refused, NULL, "90") {
    start("", "");
    expect_taken(good, "e4m3 x e5m2");
    Direct p = good;
#define CASE(expect, change) (p = good, change, expect(p, #change))
    CASE(expect_taken, p.b = CUDA_R_8F_E4M3);
    CASE(expect_taken, (p.a = CUDA_R_8F_E5M2, p.b = CUDA_R_8F_E4M3));
    CASE(expect_taken, p.d = CUDA_R_32F);
    CASE(expect_taken, p.epilogue = CUBLASLT_EPILOGUE_BIAS);

    CASE(expect_refused, p.a = CUDA_R_8F_E5M2);                   // both e5m2
    CASE(expect_refused, p.a = CUDA_R_16BF);                      // scales, and mixed with fp8
    CASE(expect_refused, (p.a = CUDA_R_16BF, p.b = CUDA_R_16BF)); // scales without fp8

    CASE(expect_refused, p.transa = CUBLAS_OP_N);
    CASE(expect_refused, p.transb = CUBLAS_OP_T);
    CASE(expect_refused, p.m = 24);
    CASE(expect_refused, p.n = 40);
    CASE(expect_refused, p.k = 72);

    CASE(expect_refused, p.a_offset = 8);
    CASE(expect_refused, p.d_offset = 8);
    CASE(expect_taken, p.c_offset = PART / 2);
    CASE(expect_refused, p.c_offset = 8);
    CASE(expect_refused, p.c_offset = 256); // partly over D
    CASE(expect_refused, p.b_alignment = 8);

    CASE(expect_refused, p.host_scale = true);
    CASE(expect_refused, p.compute = CUBLAS_COMPUTE_32F_FAST_TF32);
    CASE(expect_refused, p.epilogue = CUBLASLT_EPILOGUE_BGRADB);
    CASE(expect_refused, (p.epilogue = CUBLASLT_EPILOGUE_BIAS, p.d = CUDA_R_32F));
#undef CASE
}

// -------------------------------------------------------------------------------------- which GPUs

static void fp8_is_there(void) {
    start("", "");
    const DeviceFacts *f = device_facts();
    assert_true(f->supports[DTYPE_E4M3] && f->supports[DTYPE_E5M2]);
    assert_true(f->peak_flops[DTYPE_E4M3] == 2.0 * f->peak_flops[DTYPE_BF16] &&
                f->peak_flops[DTYPE_BF16] > 0.0);
    expect_taken(good, f->name);
}
APART_TEST(ada_has_fp8, NULL, "89") { fp8_is_there(); }
APART_TEST(hopper_has_fp8, NULL, "90") { fp8_is_there(); }
APART_TEST(blackwell_has_fp8, NULL, "100") { fp8_is_there(); }
APART_TEST(geforce_blackwell_has_fp8, NULL, "120") { fp8_is_there(); }

// One layer: its operands in all three roles, of 16-bit values.
typedef struct {
    Fp8Slot values[2];
    OpTensor a, b, a_slot, b_slot, bias, out;
} Product;
enum { M = 48, N = 64, K = 96 };

static Product product_make(DType a, DType b, DType out, const char *what) {
    Product p;
    const DType compute = out == DTYPE_FP32 ? DTYPE_BF16 : out;
    op_begin(fp8_shape(K, K, compute), "%s", what);
    p.a = operand(a, "a", M, K, 1.0, &p.values[0]), p.b = operand(b, "b", N, K, 1.0, &p.values[1]);
    p.a_slot = slot_tensor("a_slot", &p.values[0], 1),
    p.b_slot = slot_tensor("b_slot", &p.values[1], 1);
    p.bias = op_input(out, "bias", DIMS(N), 1.0), p.out = op_inout(out, "out", DIMS(M, N), 1.0);
    return p;
}

static void product_run(Product *p, bool with_bias, bool accumulate) {
    fp8_matmul(p->out.t, accumulate ? p->out.t : tensor_none(), p->a.t, p->a_slot.t, p->b.t,
               p->b_slot.t, with_bias ? p->bias.t : tensor_none());
}

static void product_check(Product *p, bool with_bias, bool accumulate) {
    const RefFp8 a = {codes(p->a), p->a.t.dtype, &p->values[0]};
    const RefFp8 b = {codes(p->b), p->b.t.dtype, &p->values[1]};
    ref_fp8_matmul(p->out.v, accumulate ? p->out.v : NULL, a, b, with_bias ? p->bias.v : NULL, M, N,
                   K);
    op_check(p->out, p->out.t.dtype);
}

static int run_product(void *p) {
    product_run(p, false, false);
    return 0;
}

// Runs the product in a process of its own and returns what it says on stderr; it must end by a
// signal or with an error.
static const char *last_words(Product *p) {
    static char text[2048];
    const int status = status_of_child(run_product, p, text, sizeof text);
    if (WIFEXITED(status) && WEXITSTATUS(status) == 0) op_fail("the product ran");
    return text;
}

static void an_older_gpu_has_no_fp8(void) {
    start("", "");
    assert_true(!device_facts()->supports[DTYPE_E4M3] && !device_facts()->supports[DTYPE_E5M2]);
    assert_true(device_facts()->peak_flops[DTYPE_E4M3] == 0.0);
    expect_refused(good, "the good product");
    Product p = product_make(DTYPE_E4M3, DTYPE_E4M3, DTYPE_FP16, "older GPU");
    const char *words = last_words(&p);
    if (!strstr(words, "has no fp8")) op_fail("said: %s", words);
    op_end();
}
APART_TEST(ampere_has_no_fp8, NULL, "80") { an_older_gpu_has_no_fp8(); }
APART_TEST(turing_has_no_fp8, NULL, "75") { an_older_gpu_has_no_fp8(); }

// The speed of fp32 is measured without TF32 too, which the library refuses here.
APART_TEST(turing_multiplies_fp32_without_tf32, NULL, "75") {
    Error err;
    DeviceSpeed speed;
    device_shutdown();
    if (!device_init(&(DeviceOptions){.tf32 = true}, &err)) op_fail("%s", err.text);
    if (!speed_measure(DTYPE_FP32, 0, &speed, &err)) op_fail("%s", err.text);
}

APART_TEST(operands_that_are_both_e5m2_or_not_of_multiples_of_16_stop_the_program, NULL, "90") {
    start("", "");
    Product p = product_make(DTYPE_E5M2, DTYPE_E5M2, DTYPE_BF16, "both e5m2");
    const char *words = last_words(&p);
    if (!strstr(words, "both e5m2")) op_fail("said: %s", words);
    op_end();

    p = product_make(DTYPE_E4M3, DTYPE_E4M3, DTYPE_BF16, "rows");
    p.a.t = tensor_slice_rows(p.a.t, 0, 40), p.out.t = tensor_slice_rows(p.out.t, 0, 40);
    words = last_words(&p);
    if (!strstr(words, "a is 40 x 96")) op_fail("said: %s", words);
    op_end();

    p = product_make(DTYPE_E4M3, DTYPE_E4M3, DTYPE_BF16, "alignment");
    p.b.t.data = (char *)p.b.t.data + 8;
    words = last_words(&p);
    if (!strstr(words, "b is not 16-byte aligned")) op_fail("said: %s", words);
    op_end();
}

// ---------------------------------------------------------------------- how products are asked for

APART_TEST(forward_products_may_sum_fast_and_gradients_may_not, NULL, "89") {
    static const struct {
        DType a, b, out;
    } products[] = {
        {DTYPE_E4M3, DTYPE_E4M3, DTYPE_BF16}, // forward
        {DTYPE_E5M2, DTYPE_E4M3, DTYPE_BF16}, // input gradient
        {DTYPE_E5M2, DTYPE_E4M3, DTYPE_FP32}, // weight gradient
        {DTYPE_E4M3, DTYPE_E5M2, DTYPE_BF16},
    };

    for (int i = 0; i < 4; i++) {
        start("", "");
        Product p = product_make(products[i].a, products[i].b, products[i].out, "sums");
        product_run(&p, false, false); // tries what it finds first

        memset(&sim_cublaslt_counts, 0, sizeof sim_cublaslt_counts);
        product_run(&p, false, false);
        product_check(&p, false, false);

        assert_int_equal(sim_cublaslt_counts.fp8, 1);
        assert_int_equal(sim_cublaslt_counts.fast_sums, i == 0);
        op_end();
    }
}

APART_TEST(biases_of_16_bits_are_in_the_epilogue_and_others_are_added_after_it, NULL, "90") {
    static const struct {
        DType out;
        const char *refused;
        int fused;
    } cases[] = {
        {DTYPE_BF16, "", 1}, {DTYPE_FP16, "", 1}, {DTYPE_FP32, "", 0}, {DTYPE_BF16, "bias", 0}};

    for (int i = 0; i < 4; i++) {
        start("", cases[i].refused);
        Product p = product_make(DTYPE_E4M3, DTYPE_E4M3, cases[i].out, "bias");
        product_run(&p, true, false); // tries what it finds first

        memset(&sim_cublaslt_counts, 0, sizeof sim_cublaslt_counts);
        product_run(&p, true, false);
        product_check(&p, true, false);

        assert_int_equal(sim_cublaslt_counts.fp8, 1);
        assert_int_equal(sim_cublaslt_counts.bias, cases[i].fused);
        op_end();
    }
}

// ------------------------------------------------------------------------------------------- plans

static int64_t runs(void) {
    int64_t total = 0;
    for (int i = 0; i < SIM_ALGORITHM_COUNT; i++) total += sim_cublaslt_counts.runs[i];
    return total;
}

// Another process is a device that starts anew. Formats and kind of sum tell plans apart.
APART_TEST(fp8_plans_are_timed_once_and_kept_for_the_next_process, NULL, "90") {
    uint64_t digests[2] = {0, 0};
    for (int process = 0; process < 2; process++) {
        start("all", "");
        op_random_restart();
        Product p = product_make(DTYPE_E4M3, DTYPE_E4M3, DTYPE_BF16, "next process");
        for (int twice = 0; twice < 2; twice++) {
            const GemmCounts before = gemm_counts();
            const long searches = sim_cublaslt_counts.searches;
            product_run(&p, true, false);

            if (process == 0 && twice == 0) {
                assert_true(gemm_counts().timed > before.timed &&
                            sim_cublaslt_counts.searches > searches);
            } else {
                assert_int_equal(gemm_counts().timed, before.timed);
                assert_int_equal(sim_cublaslt_counts.searches, searches);
            }
            assert_int_equal(gemm_counts().plans, 1);
        }

        product_check(&p, true, false);
        digests[process] = op_digest(0, p.out);
        if (process == 1) assert_int_equal(runs(), 1 + 2); // once before it is trusted
        op_end();

        p = product_make(DTYPE_E5M2, DTYPE_E4M3, DTYPE_BF16, "other formats");
        product_run(&p, false, false);
        product_check(&p, false, false);
        assert_int_equal(gemm_counts().plans, 2);
        op_end();
    }
    assert_true(digests[0] == digests[1]);
}

// A weight gradient: the first use of its shape adds, and measures on memory of its own.
APART_TEST(a_first_use_that_accumulates_adds_once_and_takes_what_repeats, NULL, "90") {
    start("all", "");

    Product p = product_make(DTYPE_E5M2, DTYPE_E4M3, DTYPE_FP32, "first use accumulates");
    product_run(&p, false, true);
    product_check(&p, false, true);
    product_run(&p, false, false);
    const uint64_t digest = op_digest(0, p.out);

    for (int i = 0; i < 3; i++) {
        product_run(&p, false, false);
        assert_true(op_digest(0, p.out) == digest);
    }

    assert_int_equal(sim_cublaslt_counts.runs[SIM_ALGORITHM_IN_PLACE], 0);
    op_end();
}

// The scale of a tensor changes from step to step; the recorded launch stays.
APART_TEST(a_replayed_product_reads_the_scales_of_its_time, NULL, "90") {
    Error err;
    start("", "");

    Product p = product_make(DTYPE_E4M3, DTYPE_E4M3, DTYPE_FP32, "replayed");
    DeviceGraph *graph = device_graph_create(&err);
    assert_non_null(graph);
    int replays = 0;

    for (int i = 0; i < 5; i++) {
        p.values[0].scale *= 2.0f, p.values[0].inverse *= 0.5f;
        op_write(p.a_slot.t, &p.values[0]);
        op_poison(p.out);
        if (device_graph_replay(graph)) {
            replays++;
        } else {
            device_graph_begin(graph);
            product_run(&p, false, false);
            device_graph_end(graph);
        }
        device_sync();
        product_check(&p, false, false);
    }

    assert_true(replays > 0);
    device_graph_destroy(graph);
    op_end();
}
