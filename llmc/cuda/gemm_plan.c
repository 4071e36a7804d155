// See gemm_plan.h. A plan is found by hashing what distinguishes products. Making one: descriptors; the algorithm of
// the tuning file if there is one and the library still takes it; else the library's candidates, vetoed, checked for
// repeatable bits and timed.
#include "llmc/cuda/gemm_plan.h"

#include "llmc/cuda/matmul_kernels.h"
#include "llmc/cuda/timing.h"
#include "llmc/cuda/tuning_cache.h"
#include <cublasLt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

// What distinguishes products. Every byte is defined (make_key clears it first): compared and hashed as bytes.
typedef struct {
    int64_t m, n, k;
    uint64_t workspace_bytes;
    int32_t transpose_a, transpose_b, in, out, epilogue;
    int32_t align_a, align_b, align_d, align_bias, align_aux; // bytes, see alignment_of
} Key;

typedef enum { UNKNOWN, FASTER, SLOWER } Verdict;

struct GemmPlan {
    Key key;
    cublasLtMatmulDesc_t desc;
    cublasLtMatrixLayout_t layout_a, layout_b, layout_d;
    bool usable; // there is an algorithm
    cublasLtMatmulAlgo_t algorithm;
    Verdict verdict;
};

// The library sorts its candidates by expected time; the best is rarely further down than 16.
enum { MAX_CANDIDATES = TIMING_MAX_CHOICES };

static struct {
    cublasLtHandle_t handle;
    GemmPlan **table; // open addressing, a power of two, at most half full
    int64_t table_size;
    GemmCounts counts;
} state;

GemmCounts gemm_counts(void) { return state.counts; }

// ------------------------------------------------------------------------------------------------------------ messages

static const char *const epilogue_names[] = {"plain", "bias", "gelu+aux+bias", "dgelu", "bgradb"};

typedef struct {
    char text[160];
} Description;

// "TN m 768 n 65536 k 3072, bf16 to bf16, bias"
static Description describe(const Key *key) {
    Description d;
    snprintf(d.text, sizeof d.text, "%c%c m %lld n %lld k %lld, %s to %s, %s", key->transpose_a ? 'T' : 'N',
             key->transpose_b ? 'T' : 'N', (long long)key->m, (long long)key->n, (long long)key->k,
             dtype_name((DType)key->in), dtype_name((DType)key->out), epilogue_names[key->epilogue]);
    return d;
}

#define LT_CHECK(key, call)                                                                                            \
    do {                                                                                                               \
        const cublasStatus_t lt_status_ = (call);                                                                      \
        REQUIRE(lt_status_ == CUBLAS_STATUS_SUCCESS, "matmul %s: %s: %s", describe(key).text, #call,                   \
                cublasLtGetStatusName(lt_status_));                                                                    \
    } while (0)

// ----------------------------------------------------------------------------------------------------------------- key

// The largest power of two, at most 256, that divides the address: what the library asks for.
static int32_t alignment_of(const void *p) {
    const uintptr_t bits = (uintptr_t)p | 256;
    return (int32_t)(bits & (~bits + 1));
}

static Key make_key(const Gemm *g) {
    Key key;
    memset(&key, 0, sizeof key);
    key.m = g->m, key.n = g->n, key.k = g->k;
    key.workspace_bytes = g->workspace_bytes;
    key.transpose_a = g->transpose_a, key.transpose_b = g->transpose_b;
    key.in = (int32_t)g->in, key.out = (int32_t)g->out;
    key.epilogue = (int32_t)g->epilogue;
    key.align_a = alignment_of(g->a), key.align_b = alignment_of(g->b), key.align_d = alignment_of(g->d);
    if (g->bias) key.align_bias = alignment_of(g->bias);
    if (g->aux) key.align_aux = alignment_of(g->aux);
    return key;
}

static cublasComputeType_t compute_type(const Key *key) {
    const bool tf32 = key->in == DTYPE_FP32 && cuda_backend.options.tf32 && cuda_backend.compute_capability >= 80;
    return tf32 ? CUBLAS_COMPUTE_32F_FAST_TF32 : CUBLAS_COMPUTE_32F;
}

// The key of the tuning file.
static void tuning_key(char text[TUNING_KEY_MAX], const Key *key, const char *what) {
    snprintf(text, TUNING_KEY_MAX, "%s, cuBLASLt %zu, %s, %s, align %d %d %d %d %d, workspace %llu, %s",
             tuning_machine(), cublasLtGetVersion(), describe(key).text,
             compute_type(key) == CUBLAS_COMPUTE_32F ? "fp32 sums" : "tf32", key->align_a, key->align_b, key->align_d,
             key->align_bias, key->align_aux, (unsigned long long)key->workspace_bytes, what);
}

// --------------------------------------------------------------------------------------------------------- descriptors

static cudaDataType cuda_type(int32_t dtype) {
    return dtype == DTYPE_FP32 ? CUDA_R_32F : dtype == DTYPE_FP16 ? CUDA_R_16F : CUDA_R_16BF;
}

static cublasLtEpilogue_t library_epilogue(int32_t epilogue) {
    static const cublasLtEpilogue_t all[] = {CUBLASLT_EPILOGUE_DEFAULT, CUBLASLT_EPILOGUE_BIAS,
                                             CUBLASLT_EPILOGUE_GELU_AUX_BIAS, CUBLASLT_EPILOGUE_DGELU,
                                             CUBLASLT_EPILOGUE_BGRADB};
    return all[epilogue];
}

static void set_operation(const GemmPlan *p, cublasLtMatmulDescAttributes_t attribute, const void *value, size_t size) {
    LT_CHECK(&p->key, cublasLtMatmulDescSetAttribute(p->desc, attribute, value, size));
}

// Where bias and aux lie changes from layer to layer. The search wants to see them too: it reads their alignment.
static void set_pointers(const GemmPlan *p, const Gemm *g) {
    if (g->bias) set_operation(p, CUBLASLT_MATMUL_DESC_BIAS_POINTER, &g->bias, sizeof g->bias);
    if (g->aux) set_operation(p, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, &g->aux, sizeof g->aux);
}

static void make_descriptors(GemmPlan *p, const Gemm *g) {
    const Key *key = &p->key;
    LT_CHECK(key, cublasLtMatmulDescCreate(&p->desc, compute_type(key), CUDA_R_32F));
    const int32_t transa = key->transpose_a ? CUBLAS_OP_T : CUBLAS_OP_N;
    const int32_t transb = key->transpose_b ? CUBLAS_OP_T : CUBLAS_OP_N;
    const uint32_t epilogue = library_epilogue(key->epilogue);
    set_operation(p, CUBLASLT_MATMUL_DESC_TRANSA, &transa, sizeof transa);
    set_operation(p, CUBLASLT_MATMUL_DESC_TRANSB, &transb, sizeof transb);
    set_operation(p, CUBLASLT_MATMUL_DESC_EPILOGUE, &epilogue, sizeof epilogue);
    const int32_t type = (int32_t)cuda_type(key->out);
    if (g->bias) set_operation(p, CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, &type, sizeof type);
    if (g->aux) {
        set_operation(p, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, &key->m, sizeof key->m);
        set_operation(p, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_DATA_TYPE, &type, sizeof type);
    }
    set_pointers(p, g);
    // Layouts are what lies in memory, before op.
    const int64_t a_rows = key->transpose_a ? key->k : key->m, a_cols = key->transpose_a ? key->m : key->k;
    const int64_t b_rows = key->transpose_b ? key->n : key->k, b_cols = key->transpose_b ? key->k : key->n;
    const cudaDataType in = cuda_type(key->in), out = cuda_type(key->out);
    LT_CHECK(key, cublasLtMatrixLayoutCreate(&p->layout_a, in, (uint64_t)a_rows, (uint64_t)a_cols, a_rows));
    LT_CHECK(key, cublasLtMatrixLayoutCreate(&p->layout_b, in, (uint64_t)b_rows, (uint64_t)b_cols, b_rows));
    LT_CHECK(key, cublasLtMatrixLayoutCreate(&p->layout_d, out, (uint64_t)key->m, (uint64_t)key->n, key->m));
}

static void set_preference(const Key *key, cublasLtMatmulPreference_t preference,
                           cublasLtMatmulPreferenceAttributes_t attribute, const void *value, size_t size) {
    LT_CHECK(key, cublasLtMatmulPreferenceSetAttribute(preference, attribute, value, size));
}

// ---------------------------------------------------------------------------------------------------------- candidates

// Rules of cublasLt.h that the library may not enforce itself: aux at 16 bytes with a leading dimension that is a
// multiple of 8.
static bool epilogue_is_allowed(const Key *key) {
    return key->align_aux == 0 || (key->align_aux >= 16 && key->m % 8 == 0);
}

// In how many parts k is split; 0 when the parts would not be added in fp32 and in a fixed order.
static int splits_of(const Key *key, const cublasLtMatmulAlgo_t *algorithm) {
    int32_t splits = 1;
    uint32_t scheme = 0;
    size_t written;
    LT_CHECK(key, cublasLtMatmulAlgoConfigGetAttribute(algorithm, CUBLASLT_ALGO_CONFIG_SPLITK_NUM, &splits,
                                                       sizeof splits, &written));
    LT_CHECK(key, cublasLtMatmulAlgoConfigGetAttribute(algorithm, CUBLASLT_ALGO_CONFIG_REDUCTION_SCHEME, &scheme,
                                                       sizeof scheme, &written));
    if (scheme == CUBLASLT_REDUCTION_SCHEME_NONE) return splits == 0 || splits == 1 ? 1 : 0;
    return scheme == CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE ? 2 : 0;
}

// Asks the library; returns how many candidates there are.
static int search(const GemmPlan *p, cublasLtMatmulAlgo_t candidates[MAX_CANDIDATES]) {
    const Key *key = &p->key;
    cublasLtMatmulPreference_t preference;
    const uint32_t mask = CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE;
    const uint32_t align_a = (uint32_t)key->align_a, align_b = (uint32_t)key->align_b, align_d = (uint32_t)key->align_d;
    LT_CHECK(key, cublasLtMatmulPreferenceCreate(&preference));
    set_preference(key, preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &key->workspace_bytes,
                   sizeof key->workspace_bytes);
    set_preference(key, preference, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, &mask, sizeof mask);
    set_preference(key, preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, &align_a, sizeof align_a);
    set_preference(key, preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, &align_b, sizeof align_b);
    set_preference(key, preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, &align_d, sizeof align_d);
    set_preference(key, preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, &align_d, sizeof align_d);
    cublasLtMatmulHeuristicResult_t results[MAX_CANDIDATES];
    int found = 0, count = 0;
    const cublasStatus_t status =
        cublasLtMatmulAlgoGetHeuristic(state.handle, p->desc, p->layout_a, p->layout_b, p->layout_d, p->layout_d,
                                       preference, MAX_CANDIDATES, results, &found);
    LT_CHECK(key, cublasLtMatmulPreferenceDestroy(preference));
    // What the library does not have, it says by no results or by a status; for an epilogue also by INVALID_VALUE.
    if (status != CUBLAS_STATUS_NOT_SUPPORTED && (status != CUBLAS_STATUS_INVALID_VALUE || key->epilogue == GEMM_PLAIN))
        REQUIRE(status == CUBLAS_STATUS_SUCCESS, "matmul %s: the search for algorithms: %s", describe(key).text,
                cublasLtGetStatusName(status));
    for (int i = 0; status == CUBLAS_STATUS_SUCCESS && i < found; i++)
        if (results[i].state == CUBLAS_STATUS_SUCCESS && results[i].workspaceSize <= key->workspace_bytes &&
            splits_of(key, &results[i].algo) > 0)
            candidates[count++] = results[i].algo;
    return count;
}

static cublasStatus_t launch(const GemmPlan *p, const Gemm *g, const cublasLtMatmulAlgo_t *algorithm) {
    const float alpha = 1.0f, beta = g->accumulate ? 1.0f : 0.0f;
    set_pointers(p, g);
    return cublasLtMatmul(state.handle, p->desc, &alpha, g->a, p->layout_a, g->b, p->layout_b, &beta, g->d, p->layout_d,
                          g->d, p->layout_d, algorithm, g->workspace, g->workspace_bytes, cuda_compute_stream());
}

void gemm_run(const GemmPlan *p, const Gemm *g) { LT_CHECK(&p->key, launch(p, g, &p->algorithm)); }

// --------------------------------------------------------------------------------------------------------- measurement

void *gemm_memory_like(const void *p, size_t bytes, void **block) {
    *block = NULL;
    if (cudaMalloc(block, bytes + 256) != cudaSuccess) {
        (void)cudaGetLastError(); // it does not fit: no error, the measurement is left out
        *block = NULL;
        return NULL;
    }
    CUDA_CHECK(cudaMemsetAsync(*block, 0, bytes + 256, cuda_compute_stream()));
    return (char *)*block + (uintptr_t)p % 256;
}

// The candidates of one plan while they are tried.
typedef struct {
    const GemmPlan *plan;
    Gemm gemm; // as it will be called, but D where nothing is lost
    cublasLtMatmulAlgo_t algorithms[MAX_CANDIDATES];
    int count;
} Trial;

static bool run_candidate(void *context, int i) {
    const Trial *t = context;
    return launch(t->plan, &t->gemm, &t->algorithms[i]) == CUBLAS_STATUS_SUCCESS;
}

// Whether two runs give the same bits. copy: memory for one of them. The trial does not accumulate.
static bool candidate_repeats(Trial *t, int i, void *copy, size_t bytes) {
    if (!run_candidate(t, i)) return false;
    CUDA_CHECK(cudaMemcpyAsync(copy, t->gemm.d, bytes, cudaMemcpyDeviceToDevice, cuda_compute_stream()));
    return run_candidate(t, i) && cuda_same_bits(copy, t->gemm.d, bytes);
}

// Throws out what splits k and does not repeat, or cannot be checked for want of memory.
static void keep_repeatable(Trial *t) {
    const size_t bytes = (size_t)(t->gemm.m * t->gemm.n) * dtype_size(t->gemm.out);
    void *block = NULL, *copy = NULL;
    int kept = 0;
    for (int i = 0; i < t->count; i++) {
        const bool splits = splits_of(&t->plan->key, &t->algorithms[i]) > 1;
        if (splits && !block) copy = gemm_memory_like(t->gemm.d, bytes, &block);
        if (!splits || (copy && candidate_repeats(t, i, copy, bytes))) t->algorithms[kept++] = t->algorithms[i];
    }
    t->count = kept;
    CUDA_CHECK(cudaFree(block));
}

// The fastest repeatable candidate into p->algorithm. False: there is none. *measured: it was chosen by time.
static bool choose_algorithm(GemmPlan *p, const Gemm *g, bool *measured) {
    Trial t = {.plan = p, .gemm = *g};
    void *block = NULL;
    *measured = false;
    t.count = search(p, t.algorithms);
    if (t.count == 0) return false;
    // beta is no part of the choice: what is measured stores, where the real product adds in place.
    t.gemm.accumulate = false;
    const size_t bytes = (size_t)(g->m * g->n) * dtype_size(g->out);
    if (g->accumulate) t.gemm.d = gemm_memory_like(g->d, bytes, &block);
    int best = 0;
    if (t.gemm.d) {
        keep_repeatable(&t);
        if (t.count > 1) {
            state.counts.timed += t.count;
            best = cuda_fastest(t.count, run_candidate, &t);
            *measured = true;
        }
    } else { // no room to try: the library's favourite among those that need no trial
        while (best < t.count && splits_of(&p->key, &t.algorithms[best]) > 1) best++;
    }
    CUDA_CHECK(cudaFree(block));
    if (best < 0 || best >= t.count) return false;
    p->algorithm = t.algorithms[best];
    return true;
}

// The algorithm that the tuning file holds, if the library takes it for this product.
static bool load_algorithm(GemmPlan *p, const char *text) {
    cublasLtMatmulHeuristicResult_t result;
    cublasLtMatmulAlgo_t algorithm;
    if (!tuning_cache_get(text, &algorithm, sizeof algorithm)) return false;
    if (cublasLtMatmulAlgoCheck(state.handle, p->desc, p->layout_a, p->layout_b, p->layout_d, p->layout_d, &algorithm,
                                &result) != CUBLAS_STATUS_SUCCESS ||
        result.workspaceSize > p->key.workspace_bytes || splits_of(&p->key, &algorithm) == 0)
        return false;
    p->algorithm = algorithm;
    return true;
}

static const char *const faster_key = "faster than unfused";

bool gemm_is_known(GemmPlan *p) {
    char text[TUNING_KEY_MAX];
    uint8_t faster;
    if (p->verdict != UNKNOWN) return true;
    tuning_key(text, &p->key, faster_key);
    if (!tuning_cache_get(text, &faster, sizeof faster) || faster > 1) return false;
    p->verdict = faster ? FASTER : SLOWER;
    return true;
}

bool gemm_is_faster(GemmPlan *p, bool (*work)(void *context, int fused), void *context,
                    bool (*acceptable)(void *context)) {
    if (!gemm_is_known(p)) {
        char text[TUNING_KEY_MAX];
        const uint8_t faster = (!acceptable || acceptable(context)) && cuda_fastest(2, work, context) == 1;
        tuning_key(text, &p->key, faster_key);
        tuning_cache_put(text, &faster, sizeof faster);
        p->verdict = faster ? FASTER : SLOWER;
    }
    return p->verdict == FASTER;
}

// --------------------------------------------------------------------------------------------------------------- table

// FNV-1a over the bytes of the key.
static uint64_t hash(const Key *key) {
    uint64_t h = 0xcbf29ce484222325u;
    for (size_t i = 0; i < sizeof *key; i++) h = (h ^ ((const unsigned char *)key)[i]) * 0x100000001b3u;
    return h ^ h >> 32;
}

// The place of the plan of this key, or where it belongs.
static GemmPlan **place(GemmPlan **table, int64_t size, const Key *key) {
    uint64_t i = hash(key) & (uint64_t)(size - 1);
    while (table[i] && memcmp(&table[i]->key, key, sizeof *key) != 0) i = (i + 1) & (uint64_t)(size - 1);
    return &table[i];
}

static void grow_table(void) {
    const int64_t size = state.table_size ? 2 * state.table_size : 64;
    GemmPlan **table = calloc((size_t)size, sizeof *table);
    REQUIRE(table != NULL, "out of memory for %lld matmul plans", (long long)size);
    for (int64_t i = 0; i < state.table_size; i++)
        if (state.table[i]) *place(table, size, &state.table[i]->key) = state.table[i];
    free(state.table);
    state.table = table;
    state.table_size = size;
}

static GemmPlan *make_plan(const Gemm *g, const Key *key) {
    char text[TUNING_KEY_MAX];
    bool measured = false;
    REQUIRE(!cuda_backend.capturing, "%s: matmul %s is met for the first time while a graph is captured", g->op,
            describe(key).text);
    if (!state.handle) LT_CHECK(key, cublasLtCreate(&state.handle));
    GemmPlan *p = calloc(1, sizeof *p);
    REQUIRE(p != NULL, "out of memory for a matmul plan");
    p->key = *key;
    state.counts.plans++;
    if (!epilogue_is_allowed(key)) return p;
    make_descriptors(p, g);
    tuning_key(text, key, "algorithm");
    p->usable = load_algorithm(p, text) || choose_algorithm(p, g, &measured);
    if (measured) tuning_cache_put(text, &p->algorithm, sizeof p->algorithm);
    return p;
}

GemmPlan *gemm_plan(const Gemm *g) {
    const Key key = make_key(g);
    if (2 * (state.counts.plans + 1) > state.table_size) grow_table();
    GemmPlan **found = place(state.table, state.table_size, &key);
    if (!*found) *found = make_plan(g, &key);
    return (*found)->usable ? *found : NULL;
}

static void free_plan(GemmPlan *p) {
    if (p->desc) LT_CHECK(&p->key, cublasLtMatmulDescDestroy(p->desc));
    if (p->layout_a) LT_CHECK(&p->key, cublasLtMatrixLayoutDestroy(p->layout_a));
    if (p->layout_b) LT_CHECK(&p->key, cublasLtMatrixLayoutDestroy(p->layout_b));
    if (p->layout_d) LT_CHECK(&p->key, cublasLtMatrixLayoutDestroy(p->layout_d));
    free(p);
}

void gemm_shutdown(void) {
    for (int64_t i = 0; i < state.table_size; i++)
        if (state.table[i]) free_plan(state.table[i]);
    free(state.table);
    if (state.handle) REQUIRE(cublasLtDestroy(state.handle) == CUBLAS_STATUS_SUCCESS, "cublasLtDestroy failed");
    memset(&state, 0, sizeof state);
    tuning_cache_close();
}
