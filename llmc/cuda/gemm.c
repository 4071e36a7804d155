// See gemm.h. A plan is found by the properties that distinguish products. Making one: descriptors; the
// algorithm of the file of choices, if there is one and the library still takes it; else the fastest of the library's
// candidates, or where no time is worth spending the first. The first half wraps the library, whose handle it owns:
// descriptors, the search, the launch. The second half measures, checks and stores the choice.
#include "llmc/cuda/gemm.h"

#include "llmc/base/choices_file.h"
#include "llmc/cuda/tuning.h"
#include <cublasLt.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

// The properties that distinguish products. Every byte is defined (gemm_key clears it first): compared as bytes.
typedef struct {
    int64_t m, n, k;
    uint64_t workspace_bytes;
    int32_t transpose_a, transpose_b, in_a, in_b, out, epilogue, fast_sums;
    int32_t exchange_units; // of the backend
    // Of each address: the largest power of two, at most 256, that divides it; C: 0 if it is none or D.
    int16_t align_a, align_b, align_c, align_d, align_bias, align_aux;
} GemmKey;

// The library's descriptors of one product.
typedef struct {
    cublasLtMatmulDesc_t desc;
    cublasLtMatrixLayout_t a, b, d;
} GemmDescriptors;

// "TN m 768 n 65536 k 3072, bf16 to bf16, bias"
typedef struct {
    char text[160];
} GemmText;

// ---------------------------------------------------------------------------------------------------- key and messages

static int16_t alignment_of(const void *p) {
    const uintptr_t bits = (uintptr_t)p | 256;
    return (int16_t)(bits & (~bits + 1));
}

static GemmKey gemm_key(const Gemm *g) {
    GemmKey key;
    memset(&key, 0, sizeof key);
    key.m = g->m;
    key.n = g->n;
    key.k = g->k;
    key.workspace_bytes = g->workspace_bytes;
    key.transpose_a = g->transpose_a;
    key.transpose_b = g->transpose_b;
    key.in_a = (int32_t)g->in_a;
    key.in_b = (int32_t)g->in_b;
    key.out = (int32_t)g->out;
    key.epilogue = (int32_t)g->epilogue;
    key.fast_sums = g->fast_sums;
    key.exchange_units = cuda_backend.exchange_units;
    key.align_a = alignment_of(g->a);
    key.align_b = alignment_of(g->b);
    key.align_d = alignment_of(g->d);
    if (g->c && g->c != g->d) key.align_c = alignment_of(g->c);
    if (g->bias) key.align_bias = alignment_of(g->bias);
    if (g->aux) key.align_aux = alignment_of(g->aux);
    return key;
}

static const char *const epilogue_names[] = {"plain", "bias", "gelu+aux+bias", "dgelu"};

static GemmText gemm_describe(const GemmKey *key) {
    GemmText d;
    const char *a = dtype_name((DType)key->in_a), *b = dtype_name((DType)key->in_b);
    const bool same = key->in_a == key->in_b;
    snprintf(d.text, sizeof d.text, "%c%c m %lld n %lld k %lld, %s%s%s to %s, %s%s", key->transpose_a ? 'T' : 'N',
             key->transpose_b ? 'T' : 'N', (long long)key->m, (long long)key->n, (long long)key->k, a,
             same ? "" : " x ", same ? "" : b, dtype_name((DType)key->out), epilogue_names[key->epilogue],
             key->align_c ? ", C added" : "");
    return d;
}

static cublasComputeType_t compute_type(const GemmKey *key) {
    const bool tf32 = key->in_a == DTYPE_FP32 && cuda_backend.options.tf32 && cuda_backend.compute_capability >= 80;
    return tf32 ? CUBLAS_COMPUTE_32F_FAST_TF32 : CUBLAS_COMPUTE_32F;
}

// --------------------------------------------------------------------------------------------------------- descriptors

#define LT_CHECK(key, call)                                                                                            \
    do {                                                                                                               \
        const cublasStatus_t lt_status_ = (call);                                                                      \
        REQUIRE_MEMORY(lt_status_ != CUBLAS_STATUS_ALLOC_FAILED, "matmul %s" GPU_IS_FULL, gemm_describe(key).text);    \
        REQUIRE(lt_status_ == CUBLAS_STATUS_SUCCESS, "matmul %s: %s: %s", gemm_describe(key).text, #call,              \
                cublasLtGetStatusName(lt_status_));                                                                    \
    } while (0)

static cublasLtHandle_t library; // created by the first search or launch

static cublasLtHandle_t library_handle(const GemmKey *key) {
    if (!library) LT_CHECK(key, cublasLtCreate(&library));
    return library;
}

static cudaDataType cuda_type(int32_t dtype) {
    static const cudaDataType all[DTYPE_COUNT] = {
        [DTYPE_FP32] = CUDA_R_32F,     [DTYPE_FP16] = CUDA_R_16F,     [DTYPE_BF16] = CUDA_R_16BF,
        [DTYPE_E4M3] = CUDA_R_8F_E4M3, [DTYPE_E5M2] = CUDA_R_8F_E5M2,
    };
    return all[dtype];
}

static void set_operation(const GemmDescriptors *p, const GemmKey *key, cublasLtMatmulDescAttributes_t attribute,
                          const void *value, size_t size) {
    LT_CHECK(key, cublasLtMatmulDescSetAttribute(p->desc, attribute, value, size));
}

// The addresses of bias, aux and scales change from layer to layer. The search needs them too, for their alignment.
static cublasStatus_t set_pointers(const GemmDescriptors *p, const Gemm *g) {
    const struct {
        cublasLtMatmulDescAttributes_t attribute;
        const void *pointer;
    } all[] = {
        {CUBLASLT_MATMUL_DESC_BIAS_POINTER, g->bias},
        {CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, g->aux},
        {CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, g->scale_a},
        {CUBLASLT_MATMUL_DESC_B_SCALE_POINTER, g->scale_b},
    };
    cublasStatus_t status = CUBLAS_STATUS_SUCCESS;
    for (size_t i = 0; i < sizeof all / sizeof *all && status == CUBLAS_STATUS_SUCCESS; i++)
        if (all[i].pointer)
            status = cublasLtMatmulDescSetAttribute(p->desc, all[i].attribute, &all[i].pointer, sizeof(void *));
    return status;
}

static void make_layout(const GemmKey *key, cublasLtMatrixLayout_t *layout, int32_t dtype, int64_t rows, int64_t cols) {
    LT_CHECK(key, cublasLtMatrixLayoutCreate(layout, cuda_type(dtype), (uint64_t)rows, (uint64_t)cols, rows));
}

static void gemm_make_descriptors(GemmDescriptors *p, const GemmKey *key, const Gemm *g) {
    static const cublasLtEpilogue_t epilogues[] = {CUBLASLT_EPILOGUE_DEFAULT, CUBLASLT_EPILOGUE_BIAS,
                                                   CUBLASLT_EPILOGUE_GELU_AUX_BIAS, CUBLASLT_EPILOGUE_DGELU};
    const int32_t transa = key->transpose_a ? CUBLAS_OP_T : CUBLAS_OP_N;
    const int32_t transb = key->transpose_b ? CUBLAS_OP_T : CUBLAS_OP_N;
    const int32_t type = (int32_t)cuda_type(key->out);
    const uint32_t epilogue = epilogues[key->epilogue];
    const int8_t fast_sums = (int8_t)key->fast_sums;
    LT_CHECK(key, cublasLtMatmulDescCreate(&p->desc, compute_type(key), CUDA_R_32F));
    set_operation(p, key, CUBLASLT_MATMUL_DESC_TRANSA, &transa, sizeof transa);
    set_operation(p, key, CUBLASLT_MATMUL_DESC_TRANSB, &transb, sizeof transb);
    set_operation(p, key, CUBLASLT_MATMUL_DESC_EPILOGUE, &epilogue, sizeof epilogue);
    if (fast_sums) set_operation(p, key, CUBLASLT_MATMUL_DESC_FAST_ACCUM, &fast_sums, sizeof fast_sums);
    if (key->align_bias) set_operation(p, key, CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, &type, sizeof type);
    // aux has the type of D when none is set; fp32 must not be set.
    if (key->align_aux) set_operation(p, key, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, &key->m, sizeof key->m);
    LT_CHECK(key, set_pointers(p, g));
    // Layouts describe memory, before op.
    make_layout(key, &p->a, key->in_a, key->transpose_a ? key->k : key->m, key->transpose_a ? key->m : key->k);
    make_layout(key, &p->b, key->in_b, key->transpose_b ? key->n : key->k, key->transpose_b ? key->k : key->n);
    make_layout(key, &p->d, key->out, key->m, key->n);
}

// ---------------------------------------------------------------------------------------------------------- candidates

// The library sorts its candidates by expected time.
enum { GEMM_MAX_CANDIDATES = CHOICE_MAX_WAYS };

// A property of 32 bits.
static int32_t algorithm_property(const GemmKey *key, const cublasLtMatmulAlgo_t *algorithm,
                                  cublasLtMatmulAlgoConfigAttributes_t attribute) {
    int32_t value = 0;
    size_t written;
    LT_CHECK(key, cublasLtMatmulAlgoConfigGetAttribute(algorithm, attribute, &value, sizeof value, &written));
    return value;
}

// Whether bits repeat by the documented attributes: k in one piece, or in parts that are added in fp32 and in a fixed
// order.
static bool gemm_repeats(const GemmKey *key, const cublasLtMatmulAlgo_t *algorithm) {
    const int32_t splits = algorithm_property(key, algorithm, CUBLASLT_ALGO_CONFIG_SPLITK_NUM);
    const int32_t scheme = algorithm_property(key, algorithm, CUBLASLT_ALGO_CONFIG_REDUCTION_SCHEME);
    return scheme == CUBLASLT_REDUCTION_SCHEME_NONE ? splits <= 1 : scheme == CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE;
}

static void set_preference(const GemmKey *key, cublasLtMatmulPreference_t preference,
                           cublasLtMatmulPreferenceAttributes_t attribute, const void *value, size_t size) {
    LT_CHECK(key, cublasLtMatmulPreferenceSetAttribute(preference, attribute, value, size));
}

// Candidates whose bits repeat, in the library's order; returns how many.
static int gemm_search(const GemmDescriptors *p, const GemmKey *key,
                       cublasLtMatmulAlgo_t candidates[GEMM_MAX_CANDIDATES]) {
    const uint32_t mask = CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE;
    const uint32_t align_a = (uint32_t)key->align_a, align_b = (uint32_t)key->align_b, align_d = (uint32_t)key->align_d;
    const uint32_t align_c = key->align_c ? (uint32_t)key->align_c : align_d;
    cublasLtMatmulPreference_t preference;
    LT_CHECK(key, cublasLtMatmulPreferenceCreate(&preference));
    set_preference(key, preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &key->workspace_bytes,
                   sizeof key->workspace_bytes);
    set_preference(key, preference, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, &mask, sizeof mask);
    set_preference(key, preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, &align_a, sizeof align_a);
    set_preference(key, preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, &align_b, sizeof align_b);
    set_preference(key, preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, &align_c, sizeof align_c);
    set_preference(key, preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, &align_d, sizeof align_d);
    cublasLtMatmulHeuristicResult_t results[GEMM_MAX_CANDIDATES];
    int found = 0, count = 0;
    const cublasStatus_t status = cublasLtMatmulAlgoGetHeuristic(library_handle(key), p->desc, p->a, p->b, p->d, p->d,
                                                                 preference, GEMM_MAX_CANDIDATES, results, &found);
    LT_CHECK(key, cublasLtMatmulPreferenceDestroy(preference));
    // The library reports a missing algorithm by no results or by a status; for an epilogue also by INVALID_VALUE.
    if (status != CUBLAS_STATUS_NOT_SUPPORTED && (status != CUBLAS_STATUS_INVALID_VALUE || key->epilogue == GEMM_PLAIN))
        REQUIRE(status == CUBLAS_STATUS_SUCCESS, "matmul %s: the search for algorithms: %s", gemm_describe(key).text,
                cublasLtGetStatusName(status));
    for (int i = 0; status == CUBLAS_STATUS_SUCCESS && i < found; i++)
        if (results[i].state == CUBLAS_STATUS_SUCCESS && results[i].workspaceSize <= key->workspace_bytes &&
            gemm_repeats(key, &results[i].algo))
            candidates[count++] = results[i].algo;
    return count;
}

// Whether the library takes an algorithm that was found elsewhere.
static bool gemm_takes(const GemmDescriptors *p, const GemmKey *key, const cublasLtMatmulAlgo_t *algorithm) {
    cublasLtMatmulHeuristicResult_t result;
    return cublasLtMatmulAlgoCheck(library_handle(key), p->desc, p->a, p->b, p->d, p->d, algorithm, &result) ==
               CUBLAS_STATUS_SUCCESS &&
           result.workspaceSize <= key->workspace_bytes && gemm_repeats(key, algorithm);
}

static cublasStatus_t gemm_launch(const GemmDescriptors *p, const Gemm *g, const cublasLtMatmulAlgo_t *algorithm) {
    const float alpha = 1.0f, beta = g->c ? 1.0f : 0.0f;
    const void *c = g->c ? g->c : g->d;
    const cublasStatus_t status = set_pointers(p, g);
    if (status != CUBLAS_STATUS_SUCCESS) return status;
    return cublasLtMatmul(library, p->desc, &alpha, g->a, p->a, g->b, p->b, &beta, c, p->d, g->d, p->d, algorithm,
                          g->workspace, g->workspace_bytes, cuda_compute_stream());
}

// --------------------------------------------------------------------------------------------------------------- plans

struct GemmPlan {
    GemmPlan *next; // the one made before
    GemmKey key;
    GemmDescriptors descriptors;
    bool usable; // there is an algorithm
    cublasLtMatmulAlgo_t algorithm;
    int32_t fewer_units; // multiprocessors for it while an exchange is in flight; 0: all
};

static struct {
    GemmPlan *newest; // a list: a model has some 25 products, and graphs replay them without asking
    GemmCounts counts;
} state;

GemmCounts gemm_counts(void) { return state.counts; }

// 0: all.
static void set_units(const GemmPlan *p, int32_t units) {
    set_operation(&p->descriptors, &p->key, CUBLASLT_MATMUL_DESC_SM_COUNT_TARGET, &units, sizeof units);
}

void gemm_run(const GemmPlan *p, const Gemm *g) {
    const bool fewer = cuda_backend.requests > 0 && p->fewer_units > 0;
    if (fewer) set_units(p, p->fewer_units);
    LT_CHECK(&p->key, gemm_launch(&p->descriptors, g, &p->algorithm));
    if (fewer) set_units(p, 0);
}

// -------------------------------------------------------------------------------------------------------------- choice

// The candidates of one plan while they are tried.
typedef struct {
    const GemmPlan *plan;
    Gemm gemm; // as it will be called, but stored, not added, to memory where nothing is lost; D NULL: there is none
    cublasLtMatmulAlgo_t algorithms[GEMM_MAX_CANDIDATES];
    bool one_was_wrong; // stderr named it: the algorithm that replaces it is to be named too
} GemmTrial;

// False where the library refuses what it offered. Short memory is no reason to choose, and so the bits of a run do not
// depend on it: it ends the program.
static bool run_candidate(void *context, int i) {
    const GemmTrial *t = context;
    const cublasStatus_t status = gemm_launch(&t->plan->descriptors, &t->gemm, &t->algorithms[i]);
    if (status == CUBLAS_STATUS_ALLOC_FAILED) LT_CHECK(&t->plan->key, status);
    return status == CUBLAS_STATUS_SUCCESS;
}

static size_t result_bytes(const Gemm *g) { return (size_t)(g->m * g->n) * dtype_size(g->out); }

// The key of the file of choices: whatever the choice depends on.
static void algorithm_key(char text[CHOICES_KEY_MAX], const GemmKey *key) {
    const char *arithmetic = compute_type(key) == CUBLAS_COMPUTE_32F ? "fp32 sums" : "tf32";
    if (key->fast_sums) arithmetic = "fast sums";
    snprintf(text, CHOICES_KEY_MAX, "%s, cuBLASLt %zu, %s, %s, align %d %d %d %d %d %d, workspace %llu",
             tuning_machine(), cublasLtGetVersion(), gemm_describe(key).text, arithmetic, key->align_a, key->align_b,
             key->align_c, key->align_d, key->align_bias, key->align_aux, (unsigned long long)key->workspace_bytes);
}

// The square of a difference from the reference, beyond the step of the smallest numbers of fp16. What the reference
// overflows in may be anything.
static double squared_error(float got, float expected, DType dtype) {
    const float largest = dtype == DTYPE_FP16 ? 65504.0f : INFINITY;
    const float step = dtype == DTYPE_FP16 ? 0x1p-24f : 0.0f;
    if (!(fabsf(expected) < largest)) return 0.0;
    const double error = fabs((double)got - expected);
    return error <= step ? 0.0 : error * error;
}

// "algorithm 66 (tile 20, stages 36, 3 parts of k)"
static GemmText algorithm_name(const GemmKey *key, const cublasLtMatmulAlgo_t *algorithm) {
    GemmText name;
    snprintf(name.text, sizeof name.text, "algorithm %d (tile %d, stages %d, %d parts of k)",
             algorithm_property(key, algorithm, CUBLASLT_ALGO_CONFIG_ID),
             algorithm_property(key, algorithm, CUBLASLT_ALGO_CONFIG_TILE_ID),
             algorithm_property(key, algorithm, CUBLASLT_ALGO_CONFIG_STAGES_ID),
             algorithm_property(key, algorithm, CUBLASLT_ALGO_CONFIG_SPLITK_NUM));
    return name;
}

typedef struct {
    GemmElement values[GEMM_SLICE * GEMM_SLICE];
} GemmSlice;

// Runs candidate i on D and aux that hold no numbers; false: it does not run.
static bool run_slice(GemmTrial *t, int i, GemmSlice *slice) {
    const Gemm *g = &t->gemm;
    GemmElement *on_device = g->workspace; // the product no longer needs it
    REQUIRE(g->workspace_bytes >= sizeof *slice, "%s: a workspace of %zu bytes", g->op, g->workspace_bytes);
    CUDA_CHECK(cudaMemsetAsync(g->d, 0xFF, result_bytes(g), cuda_compute_stream())); // NaN
    if (g->epilogue == GEMM_GELU_AUX_BIAS)
        CUDA_CHECK(cudaMemsetAsync(g->aux, 0xFF, result_bytes(g), cuda_compute_stream()));
    if (!run_candidate(t, i)) return false;
    cuda_gemm_slice(on_device, g);
    CUDA_CHECK(cudaMemcpyAsync(slice, on_device, sizeof *slice, cudaMemcpyDeviceToHost, cuda_compute_stream()));
    CUDA_CHECK(cudaStreamSynchronize(cuda_compute_stream()));
    return true;
}

// Whether candidate i runs and computes the product: on a slice of D and aux its relative difference from our own fp32
// sums is that of roundings. D is rounded by 2^-8 at most in bf16, in fp16 by 2^-11, and inputs of tf32 products by as
// much; sums of 65,536 products where tensor cores cut off err by 1e-3; those of fp8 products may keep 14 bits: 2 %,
// see fp8_matmul. Wrong results differ by tens of per cent.
static bool candidate_is_right(void *context, int i) {
    GemmTrial *t = context;
    const Gemm *g = &t->gemm;
    double limit = g->out == DTYPE_BF16 ? 2e-2 : 5e-3;
    if (dtype_size(g->in_a) == 1) limit = 5e-2;
    GemmSlice slice;
    double errors = 0.0, squares = 0.0;
    if (!g->d) return true; // nothing can be tried: what the library or the file says
    if (!run_slice(t, i, &slice)) return false;
    for (int e = 0; e < GEMM_SLICE * GEMM_SLICE; e++) {
        const GemmElement *v = &slice.values[e];
        const double size = fmax(fabs((double)v->expected), v->spread);
        errors += squared_error(v->got, v->expected, g->out) + squared_error(v->got_aux, v->expected_aux, g->out);
        if (isfinite(size)) squares += size * size;
    }
    const bool right = sqrt(errors) <= limit * sqrt(squares);
    const GemmText product = gemm_describe(&t->plan->key), name = algorithm_name(&t->plan->key, &t->algorithms[i]);
    if (!right)
        fprintf(stderr, "matmul %s: %s of cuBLASLt %zu differs by %.2g and is not used\n", product.text, name.text,
                cublasLtGetVersion(), sqrt(errors / squares));
    else if (t->one_was_wrong)
        fprintf(stderr, "matmul %s: %s is used\n", product.text, name.text);
    t->one_was_wrong = !right;
    return right;
}

// The multiprocessors for the plan's algorithm while an exchange is in flight: those that it leaves, if the library
// takes that algorithm so and a slice has the same bits. The choice is not made anew: several GPUs have the bits of
// one.
static int32_t units_beside_exchange(const GemmPlan *p, GemmTrial *t) {
    const int32_t fewer = cuda_backend.num_sms - cuda_backend.exchange_units;
    GemmSlice of_all, of_fewer;
    if (cuda_backend.exchange_units == 0 || !t->gemm.d || !run_slice(t, 0, &of_all)) return 0;
    set_units(p, fewer);
    const bool same = gemm_takes(&p->descriptors, &p->key, &t->algorithms[0]) && run_slice(t, 0, &of_fewer) &&
                      memcmp(&of_all, &of_fewer, sizeof of_all) == 0;
    set_units(p, 0);
    return same ? fewer : 0;
}

// The algorithm that the file holds, or the chosen one, or, without memory to try any, the library's favourite.
static bool choose_algorithm(GemmPlan *p, const Gemm *g) {
    GemmTrial t = {.plan = p, .gemm = *g};
    char key[CHOICES_KEY_MAX];
    void *block = NULL;
    // Trials store where the real product adds in place, which is not part of the choice.
    if (g->c == g->d) {
        t.gemm.c = NULL;
        t.gemm.d = cuda_memory_like(g->d, result_bytes(g), &block);
    }
    algorithm_key(key, &p->key);
    bool found = choices_file_get(key, &t.algorithms[0], sizeof t.algorithms[0]) &&
                 gemm_takes(&p->descriptors, &p->key, &t.algorithms[0]) && candidate_is_right(&t, 0);
    if (!found) {
        const int count = gemm_search(&p->descriptors, &p->key, t.algorithms);
        const bool timed = t.gemm.d && g->timed && !cuda_backend.options.no_tuning && count > 1;
        const int best = cuda_choose(count, timed, run_candidate, candidate_is_right, &t);
        found = best >= 0;
        if (found) t.algorithms[0] = t.algorithms[best];
        if (timed) state.counts.timed += count;
        if (found && timed) choices_file_put(key, &t.algorithms[0], sizeof t.algorithms[0]);
    }
    if (found) p->fewer_units = units_beside_exchange(p, &t);
    CUDA_CHECK(cudaFree(block));
    p->algorithm = t.algorithms[0];
    return found;
}

GemmPlan *gemm_plan(const Gemm *g) {
    const GemmKey key = gemm_key(g);
    for (GemmPlan *known = state.newest; known; known = known->next)
        if (memcmp(&known->key, &key, sizeof key) == 0) return known->usable ? known : NULL;
    REQUIRE(!cuda_backend.capturing, "%s: matmul %s is first seen while a graph is captured", g->op,
            gemm_describe(&key).text);
    GemmPlan *p = calloc(1, sizeof *p);
    REQUIRE_MEMORY(p != NULL, "a matmul plan");
    p->next = state.newest;
    p->key = key;
    state.newest = p;
    state.counts.plans++;
    // A rule of cublasLt.h that the library may not enforce itself: aux at 16 bytes, and m, its leading dimension, a
    // multiple of 8.
    if (key.align_aux != 0 && (key.align_aux < 16 || key.m % 8 != 0)) return NULL;
    gemm_make_descriptors(&p->descriptors, &key, g);
    p->usable = choose_algorithm(p, g);
    return p->usable ? p : NULL;
}

void gemm_shutdown(void) {
    while (state.newest) {
        GemmPlan *plan = state.newest;
        const GemmDescriptors *p = &plan->descriptors;
        state.newest = plan->next;
        if (p->desc) LT_CHECK(&plan->key, cublasLtMatmulDescDestroy(p->desc));
        if (p->a) LT_CHECK(&plan->key, cublasLtMatrixLayoutDestroy(p->a));
        if (p->b) LT_CHECK(&plan->key, cublasLtMatrixLayoutDestroy(p->b));
        if (p->d) LT_CHECK(&plan->key, cublasLtMatrixLayoutDestroy(p->d));
        free(plan);
    }
    if (library) REQUIRE(cublasLtDestroy(library) == CUBLAS_STATUS_SUCCESS, "cublasLtDestroy failed");
    library = NULL;
    memset(&state, 0, sizeof state);
    choices_file_close();
}
