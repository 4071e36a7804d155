// See gemm.h. A plan is found by the properties that distinguish products. Making one: descriptors;
// the algorithm of the file of choices, if there is one and the library still takes it; else the
// fastest of the library's candidates, or where no time is worth spending the first. The first half
// wraps the library, whose handle it owns: descriptors, the search, the launch. The second half
// measures, checks and stores the choice.
#include "llmc/cuda/gemm.h"

#include "llmc/base/choices_file.h"
#include "llmc/base/format.h"
#include "llmc/cuda/tuning.h"
#include <cublasLt.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

// The largest power of two, at most 256, that divides each address; 0: there is none. C counts also
// where it is D.
typedef struct {
    int a, b, c, d, bias, aux;
} GemmAlignments;

typedef struct GemmPlan {
    struct GemmPlan *next; // the one made before
    Gemm gemm; // of the first call. While candidates are tried: stored where it adds in place
    GemmAlignments align;
    int exchange_units; // of the backend
    cublasLtMatmulDesc_t desc;
    cublasLtMatrixLayout_t a, b, d;
    bool usable; // there is an algorithm
    cublasLtMatmulAlgo_t algorithm;
    int32_t fewer_units; // multiprocessors for it while an exchange is in flight; 0: all
} GemmPlan;

static cublasLtHandle_t library; // created for the first plan

static struct {
    GemmPlan *newest; // a list: a model has some 25 products, and graphs replay them without asking
    GemmCounts counts;
} state;

GemmCounts gemm_counts(void) { return state.counts; }

// ------------------------------------------------------------------------------ plans and messages

static int alignment_of(const void *p, int64_t stride) {
    const uintptr_t bits = (uintptr_t)p | (uintptr_t)stride | 256;
    if (p) return (int)(bits & (~bits + 1));
    return 0;
}

// Whether the plan is that of g, whose addresses have these alignments.
static bool is_plan_of(const GemmPlan *p, const Gemm *g, const GemmAlignments *align) {
    const Gemm *h = &p->gemm;
    return h->m == g->m && h->n == g->n && h->k == g->k && h->stack == g->stack &&
           h->transpose_a == g->transpose_a && h->transpose_b == g->transpose_b &&
           h->in_a == g->in_a && h->in_b == g->in_b && h->out == g->out &&
           h->epilogue == g->epilogue && h->fast_sums == g->fast_sums &&
           h->workspace_bytes == g->workspace_bytes &&
           p->exchange_units == cuda_backend.exchange_units &&
           memcmp(&p->align, align, sizeof *align) == 0;
}

static const char *const epilogue_names[] = {"plain", "bias", "gelu+aux+bias", "dgelu"};

// "TN m 768 n 65536 k 3072, bf16 to bf16, bias"; valid until the next call.
static const char *gemm_describe(const Gemm *g) {
    static char text[160];
    const bool mixed = g->in_a != g->in_b;
    char stack[32] = "";
    if (g->stack > 0) snprintf(stack, sizeof stack, "%lld times ", (long long)g->stack);
    snprintf(text, sizeof text, "%s%c%c m %lld n %lld k %lld, %s%s%s to %s, %s%s", stack,
             "NT"[g->transpose_a], "NT"[g->transpose_b], (long long)g -> m, (long long)g -> n,
             (long long)g -> k, dtype_name(g->in_a), mixed ? " x " : "",
             mixed ? dtype_name(g->in_b) : "", dtype_name(g->out), epilogue_names[g->epilogue],
             g->c && g->c != g->d ? ", C added" : "");
    return text;
}

static cublasComputeType_t compute_type(const Gemm *g) {
    const bool tf32 =
        g->in_a == DTYPE_FP32 && cuda_backend.options.tf32 && cuda_backend.compute_capability >= 80;
    if (tf32) return CUBLAS_COMPUTE_32F_FAST_TF32;
    return CUBLAS_COMPUTE_32F;
}

// ------------------------------------------------------------------------------------- descriptors

#define LT_CHECK(g, call)                                                                          \
    do {                                                                                           \
        const cublasStatus_t lt_status_ = (call);                                                  \
        REQUIRE_MEMORY(lt_status_ != CUBLAS_STATUS_ALLOC_FAILED, "matmul %s" GPU_IS_FULL,          \
                       gemm_describe(g));                                                          \
        REQUIRE(lt_status_ == CUBLAS_STATUS_SUCCESS, "matmul %s: %s: %s", gemm_describe(g), #call, \
                cublasLtGetStatusName(lt_status_));                                                \
    } while (0)

static cudaDataType cuda_type(DType dtype) {
    static const cudaDataType all[DTYPE_COUNT] = {
        [DTYPE_FP32] = CUDA_R_32F,     [DTYPE_FP16] = CUDA_R_16F,     [DTYPE_BF16] = CUDA_R_16BF,
        [DTYPE_E4M3] = CUDA_R_8F_E4M3, [DTYPE_E5M2] = CUDA_R_8F_E5M2,
    };
    return all[dtype];
}

static void set_operation(const GemmPlan *p, cublasLtMatmulDescAttributes_t attribute,
                          const void *value, size_t size) {
    LT_CHECK(&p->gemm, cublasLtMatmulDescSetAttribute(p->desc, attribute, value, size));
}

// The addresses of bias, aux and scales change from layer to layer. The search needs them too, for
// their alignment.
static void set_pointers(const GemmPlan *p, const Gemm *g) {
    if (g->bias) set_operation(p, CUBLASLT_MATMUL_DESC_BIAS_POINTER, &g->bias, sizeof g->bias);
    if (g->aux) set_operation(p, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, &g->aux, sizeof g->aux);
    if (g->scale_a)
        set_operation(p, CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, &g->scale_a, sizeof g->scale_a);
    if (g->scale_b)
        set_operation(p, CUBLASLT_MATMUL_DESC_B_SCALE_POINTER, &g->scale_b, sizeof g->scale_b);
}

// A matrix that is (rows, cols) after op: the layout describes memory, before op.
static cublasLtMatrixLayout_t make_layout(const Gemm *g, DType dtype, int64_t rows, int64_t cols,
                                          bool transpose) {
    cublasLtMatrixLayout_t layout;
    const int32_t count = (int32_t)g->stack;
    const int64_t stride = rows * cols;
    if (transpose) {
        rows = cols;
        cols = stride / rows;
    }
    LT_CHECK(g, cublasLtMatrixLayoutCreate(&layout, cuda_type(dtype), (uint64_t)rows,
                                           (uint64_t)cols, rows));
    if (count == 0) return layout;
    LT_CHECK(g, cublasLtMatrixLayoutSetAttribute(layout, CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, &count,
                                                 sizeof count));
    LT_CHECK(g, cublasLtMatrixLayoutSetAttribute(
                    layout, CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET, &stride, sizeof stride));
    return layout;
}

static void make_descriptors(GemmPlan *p) {
    static const cublasLtEpilogue_t epilogues[] = {
        CUBLASLT_EPILOGUE_DEFAULT, CUBLASLT_EPILOGUE_BIAS, CUBLASLT_EPILOGUE_GELU_AUX_BIAS,
        CUBLASLT_EPILOGUE_DGELU};
    const Gemm *g = &p->gemm;
    static const int32_t operations[] = {CUBLAS_OP_N, CUBLAS_OP_T};
    const int32_t transa = operations[g->transpose_a], transb = operations[g->transpose_b];
    const int32_t type = (int32_t)cuda_type(g->out);
    const uint32_t epilogue = epilogues[g->epilogue];
    const int8_t fast_sums = g->fast_sums;

    LT_CHECK(g, cublasLtMatmulDescCreate(&p->desc, compute_type(g), CUDA_R_32F));
    set_operation(p, CUBLASLT_MATMUL_DESC_TRANSA, &transa, sizeof transa);
    set_operation(p, CUBLASLT_MATMUL_DESC_TRANSB, &transb, sizeof transb);
    set_operation(p, CUBLASLT_MATMUL_DESC_EPILOGUE, &epilogue, sizeof epilogue);
    if (fast_sums) set_operation(p, CUBLASLT_MATMUL_DESC_FAST_ACCUM, &fast_sums, sizeof fast_sums);
    if (g->bias) set_operation(p, CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, &type, sizeof type);
    // aux has the type of D when none is set; fp32 must not be set.
    if (g->aux) set_operation(p, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, &g->m, sizeof g->m);
    set_pointers(p, g);

    p->a = make_layout(g, g->in_a, g->m, g->k, g->transpose_a);
    p->b = make_layout(g, g->in_b, g->k, g->n, g->transpose_b);
    p->d = make_layout(g, g->out, g->m, g->n, false);
}

// -------------------------------------------------------------------------------------- candidates

// The library sorts its candidates by expected time.
enum { GEMM_MAX_CANDIDATES = CHOICE_MAX_WAYS };

// A property of 32 bits.
static int32_t algorithm_property(const Gemm *g, const cublasLtMatmulAlgo_t *algorithm,
                                  cublasLtMatmulAlgoConfigAttributes_t attribute) {
    int32_t value = 0;
    size_t written;
    LT_CHECK(g, cublasLtMatmulAlgoConfigGetAttribute(algorithm, attribute, &value, sizeof value,
                                                     &written));
    return value;
}

// Whether bits repeat by the documented attributes: k in one piece, or in parts that are added in
// fp32 and in a fixed order.
static bool gemm_repeats(const Gemm *g, const cublasLtMatmulAlgo_t *algorithm) {
    const int32_t splits = algorithm_property(g, algorithm, CUBLASLT_ALGO_CONFIG_SPLITK_NUM);
    const int32_t scheme = algorithm_property(g, algorithm, CUBLASLT_ALGO_CONFIG_REDUCTION_SCHEME);
    if (scheme == CUBLASLT_REDUCTION_SCHEME_NONE) return splits <= 1;
    return scheme == CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE;
}

static void set_preference(const Gemm *g, cublasLtMatmulPreference_t preference,
                           cublasLtMatmulPreferenceAttributes_t attribute, const void *value,
                           size_t size) {
    LT_CHECK(g, cublasLtMatmulPreferenceSetAttribute(preference, attribute, value, size));
}

// Candidates whose bits repeat, in the library's order; returns how many.
static int gemm_search(const GemmPlan *p, cublasLtMatmulAlgo_t candidates[GEMM_MAX_CANDIDATES]) {
    const Gemm *g = &p->gemm;
    const uint32_t mask = CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE;
    const uint32_t align_a = (uint32_t)p->align.a, align_b = (uint32_t)p->align.b,
                   align_d = (uint32_t)p->align.d;
    const uint32_t align_c = p->align.c ? (uint32_t)p->align.c : align_d;
    const uint64_t workspace = g->workspace_bytes;

    cublasLtMatmulPreference_t preference;
    LT_CHECK(g, cublasLtMatmulPreferenceCreate(&preference));
    set_preference(g, preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &workspace,
                   sizeof workspace);
    set_preference(g, preference, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, &mask, sizeof mask);
    set_preference(g, preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, &align_a,
                   sizeof align_a);
    set_preference(g, preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, &align_b,
                   sizeof align_b);
    set_preference(g, preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, &align_c,
                   sizeof align_c);
    set_preference(g, preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, &align_d,
                   sizeof align_d);

    cublasLtMatmulHeuristicResult_t results[GEMM_MAX_CANDIDATES];
    int found = 0, count = 0;
    const cublasStatus_t status = cublasLtMatmulAlgoGetHeuristic(
        library, p->desc, p->a, p->b, p->d, p->d, preference, GEMM_MAX_CANDIDATES, results, &found);
    LT_CHECK(g, cublasLtMatmulPreferenceDestroy(preference));

    // The library reports a missing algorithm by no results or by a status; for an epilogue also by
    // INVALID_VALUE.
    if (status != CUBLAS_STATUS_NOT_SUPPORTED &&
        (status != CUBLAS_STATUS_INVALID_VALUE || g->epilogue == GEMM_PLAIN))
        REQUIRE(status == CUBLAS_STATUS_SUCCESS, "matmul %s: the search for algorithms: %s",
                gemm_describe(g), cublasLtGetStatusName(status));

    for (int i = 0; status == CUBLAS_STATUS_SUCCESS && i < found; i++)
        if (results[i].state == CUBLAS_STATUS_SUCCESS && results[i].workspaceSize <= workspace &&
            gemm_repeats(g, &results[i].algo))
            candidates[count++] = results[i].algo;
    return count;
}

// Whether the library takes an algorithm that was found elsewhere.
static bool gemm_takes(const GemmPlan *p, const cublasLtMatmulAlgo_t *algorithm) {
    cublasLtMatmulHeuristicResult_t result;
    return cublasLtMatmulAlgoCheck(library, p->desc, p->a, p->b, p->d, p->d, algorithm, &result) ==
               CUBLAS_STATUS_SUCCESS &&
           result.workspaceSize <= p->gemm.workspace_bytes && gemm_repeats(&p->gemm, algorithm);
}

static cublasStatus_t gemm_launch(const GemmPlan *p, const Gemm *g,
                                  const cublasLtMatmulAlgo_t *algorithm) {
    float beta = 0.0f;
    const void *c = g->d;
    if (g->c) {
        beta = g->beta;
        c = g->c;
    }
    set_pointers(p, g);
    return cublasLtMatmul(library, p->desc, &g->alpha, g->a, p->a, g->b, p->b, &beta, c, p->d, g->d,
                          p->d, algorithm, g->workspace, g->workspace_bytes, cuda_compute_stream());
}

// 0: all.
static void set_units(const GemmPlan *p, int32_t units) {
    set_operation(p, CUBLASLT_MATMUL_DESC_SM_COUNT_TARGET, &units, sizeof units);
}

// ------------------------------------------------------------------------------------------ choice

// The candidates of one plan while they are tried on plan->gemm, whose D is NULL if there is no
// memory to try them.
typedef struct {
    const GemmPlan *plan;
    cublasLtMatmulAlgo_t algorithms[GEMM_MAX_CANDIDATES];
    bool one_was_wrong; // stderr named it: the algorithm that replaces it is to be named too
} GemmTrial;

// False where the library refuses what it offered. Short memory is no reason to choose, and so the
// bits of a run do not depend on it: it ends the program.
static bool run_candidate(void *context, int i) {
    const GemmTrial *t = context;
    const Gemm *g = &t->plan->gemm;
    const cublasStatus_t status = gemm_launch(t->plan, g, &t->algorithms[i]);
    if (status == CUBLAS_STATUS_ALLOC_FAILED) LT_CHECK(g, status);
    return status == CUBLAS_STATUS_SUCCESS;
}

static size_t result_bytes(const Gemm *g) {
    return (size_t)(g->m * g->n * positive_or(g->stack, 1)) * dtype_size(g->out);
}

// The square of a difference from the reference, beyond the step of the smallest numbers of fp16.
// Where the reference overflows, any value is right.
static double squared_error(float got, float expected, DType dtype) {
    float largest = INFINITY, step = 0.0f;
    if (dtype == DTYPE_FP16) {
        largest = 65504.0f;
        step = 0x1p-24f;
    }
    if (!(fabsf(expected) < largest)) return 0.0;
    const double error = fabs((double)got - expected);
    if (error <= step) return 0.0;
    return error * error;
}

typedef struct {
    GemmElement values[GEMM_SLICE * GEMM_SLICE];
} GemmSlice;

// Runs candidate i on D and aux that hold no numbers; false: it does not run.
static bool run_slice(GemmTrial *t, int i, GemmSlice *slice) {
    const Gemm *g = &t->plan->gemm;
    GemmElement *on_device = g->workspace; // the product no longer needs it
    REQUIRE(g->workspace_bytes >= sizeof *slice, "%s: a workspace of %zu bytes", g->op,
            g->workspace_bytes);
    CUDA_CHECK(cudaMemsetAsync(g->d, 0xFF, result_bytes(g), cuda_compute_stream())); // NaN
    if (g->epilogue == GEMM_GELU_AUX_BIAS)
        CUDA_CHECK(cudaMemsetAsync(g->aux, 0xFF, result_bytes(g), cuda_compute_stream()));
    if (!run_candidate(t, i)) return false;
    cuda_gemm_slice(on_device, g);
    CUDA_CHECK(cudaMemcpyAsync(slice, on_device, sizeof *slice, cudaMemcpyDeviceToHost,
                               cuda_compute_stream()));
    CUDA_CHECK(cudaStreamSynchronize(cuda_compute_stream()));
    return true;
}

// Whether candidate i runs and computes the product: on a slice of D and aux its relative
// difference from our own fp32 sums is that of roundings. D is rounded by 2^-8 at most in bf16, in
// fp16 by 2^-11, and inputs of tf32 products by as much; sums of 65,536 products where tensor cores
// cut off err by 1e-3; those of fp8 products may keep 14 bits: 2 %, see fp8_matmul. Wrong results
// differ by tens of per cent.
static bool candidate_is_right(void *context, int i) {
    GemmTrial *t = context;
    const Gemm *g = &t->plan->gemm;
    double limit = 5e-3;
    if (g->out == DTYPE_BF16) limit = 2e-2;
    if (dtype_size(g->in_a) == 1) limit = 5e-2;

    GemmSlice slice;
    double errors = 0.0, squares = 0.0;
    if (!g->d) return true; // nothing can be tried: what the library or the file says
    if (!run_slice(t, i, &slice)) return false;

    for (int e = 0; e < GEMM_SLICE * GEMM_SLICE; e++) {
        const GemmElement *v = &slice.values[e];
        const double size = fmax(fabs((double)v->expected), v->spread);
        errors += squared_error(v->got, v->expected, g->out) +
                  squared_error(v->got_aux, v->expected_aux, g->out);
        if (isfinite(size)) squares += size * size;
    }

    const bool right = sqrt(errors) <= limit * sqrt(squares);
    const cublasLtMatmulAlgo_t *algorithm = &t->algorithms[i];
    char name[96];
    snprintf(name, sizeof name, "algorithm %d (tile %d, stages %d, %d parts of k)",
             algorithm_property(g, algorithm, CUBLASLT_ALGO_CONFIG_ID),
             algorithm_property(g, algorithm, CUBLASLT_ALGO_CONFIG_TILE_ID),
             algorithm_property(g, algorithm, CUBLASLT_ALGO_CONFIG_STAGES_ID),
             algorithm_property(g, algorithm, CUBLASLT_ALGO_CONFIG_SPLITK_NUM));

    if (!right)
        fprintf(stderr, "matmul %s: %s of cuBLASLt %zu differs by %.2g and is not used\n",
                gemm_describe(g), name, cublasLtGetVersion(), sqrt(errors / squares));
    else if (t->one_was_wrong)
        fprintf(stderr, "matmul %s: %s is used\n", gemm_describe(g), name);
    t->one_was_wrong = !right;
    return right;
}

// The multiprocessors for the plan's algorithm while an exchange is in flight: those that it
// leaves, if the library takes that algorithm so and a slice has the same bits. The choice is not
// made anew: several GPUs have the bits of one.
static int32_t units_beside_exchange(const GemmPlan *p, GemmTrial *t) {
    const int32_t fewer = cuda_backend.num_sms - cuda_backend.exchange_units;
    GemmSlice of_all, of_fewer;
    if (cuda_backend.exchange_units == 0 || !p->gemm.d || !run_slice(t, 0, &of_all)) return 0;
    set_units(p, fewer);
    const bool same =
        gemm_takes(p, &t->algorithms[0]) && run_slice(t, 0, &of_fewer) &&
        memcmp(&of_all, &of_fewer, sizeof of_all) == 0; // NOLINT: bits, those of NaN too
    set_units(p, 0);
    if (same) return fewer;
    return 0;
}

// The algorithm that the file holds, or the chosen one, or, without memory to try any, the
// library's favourite.
static bool choose_algorithm(GemmPlan *p) {
    GemmTrial t = {.plan = p};
    Gemm *g = &p->gemm;
    const GemmAlignments *align = &p->align;
    void *block = NULL;

    // Trials store where the real product adds in place, which is not part of the choice.
    if (g->c == g->d) {
        g->c = NULL;
        g->d = cuda_memory_like(g->d, result_bytes(g), &block);
    }

    char key[CHOICES_KEY_MAX]; // whatever the choice depends on
    const char *arithmetic = "tf32";
    if (compute_type(g) == CUBLAS_COMPUTE_32F) arithmetic = "fp32 sums";
    if (g->fast_sums) arithmetic = "fast sums";
    snprintf(key, sizeof key, "%s, cuBLASLt %zu, %s, %s, align %d %d %d %d %d %d, workspace %zu",
             tuning_machine(), cublasLtGetVersion(), gemm_describe(g), arithmetic, align->a,
             align->b, align->c, align->d, align->bias, align->aux, g->workspace_bytes);

    bool found = choices_file_get(key, &t.algorithms[0], sizeof t.algorithms[0]) &&
                 gemm_takes(p, &t.algorithms[0]) && candidate_is_right(&t, 0);

    if (!found) {
        const int count = gemm_search(p, t.algorithms);
        const bool timed = g->d && g->timed && !cuda_backend.options.no_tuning && count > 1;
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

static const GemmPlan *find_plan(const Gemm *g) {
    const int64_t stacked = g->stack > 0; // bytes from one product to the next
    const int64_t step_a = stacked * g->m * g->k * (int64_t)dtype_size(g->in_a);
    const int64_t step_b = stacked * g->k * g->n * (int64_t)dtype_size(g->in_b);
    const int64_t step_d = stacked * g->m * g->n * (int64_t)dtype_size(g->out);
    GemmAlignments align = {alignment_of(g->a, step_a), alignment_of(g->b, step_b),
                            alignment_of(g->c, step_d), alignment_of(g->d, step_d),
                            alignment_of(g->bias, 0),   alignment_of(g->aux, 0)};
    if (g->c == g->d) align.c = 0;

    // A rule of cublasLt.h that the library may not enforce itself: aux at 16 bytes, and m, its
    // leading dimension, a multiple of 8.
    if (g->aux && (align.aux < 16 || g->m % 8 != 0)) return NULL;

    for (const GemmPlan *known = state.newest; known; known = known->next) {
        if (!is_plan_of(known, g, &align)) continue;
        if (known->usable) return known;
        return NULL;
    }

    REQUIRE(!cuda_backend.capturing, "%s: matmul %s is first seen while a graph is captured", g->op,
            gemm_describe(g));
    if (!library) LT_CHECK(g, cublasLtCreate(&library));

    GemmPlan *p = calloc(1, sizeof *p);
    REQUIRE_MEMORY(p != NULL, "a matmul plan");
    *p = (GemmPlan){.next = state.newest,
                    .gemm = *g,
                    .align = align,
                    .exchange_units = cuda_backend.exchange_units};
    state.newest = p;
    state.counts.plans++;

    make_descriptors(p);
    p->usable = choose_algorithm(p);
    if (p->usable) return p;
    return NULL;
}

bool gemm_run(const Gemm *g) {
    const GemmPlan *p = find_plan(g);
    if (!p) return false;
    const bool fewer = cuda_backend.requests > 0 && p->fewer_units > 0;
    if (fewer) set_units(p, p->fewer_units);
    LT_CHECK(g, gemm_launch(p, g, &p->algorithm));
    if (fewer) set_units(p, 0);
    return true;
}

void gemm_shutdown(void) {
    while (state.newest) {
        GemmPlan *p = state.newest;
        state.newest = p->next;
        LT_CHECK(&p->gemm, cublasLtMatmulDescDestroy(p->desc));
        LT_CHECK(&p->gemm, cublasLtMatrixLayoutDestroy(p->a));
        LT_CHECK(&p->gemm, cublasLtMatrixLayoutDestroy(p->b));
        LT_CHECK(&p->gemm, cublasLtMatrixLayoutDestroy(p->d));
        free(p);
    }
    if (library)
        REQUIRE(cublasLtDestroy(library) == CUBLAS_STATUS_SUCCESS, "cublasLtDestroy failed");
    library = NULL;
    memset(&state, 0, sizeof state);
    choices_file_close();
}
