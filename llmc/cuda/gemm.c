// See backend.h. A plan is found by hashing the properties that distinguish products. Making one: descriptors; the
// algorithm of the tuning file if there is one and the library still takes it; else the library's candidates, compared
// with each other, checked for repeatable bits and timed. The first half wraps the library, whose handle it owns:
// descriptors, the search for algorithms, the launch. The second half measures, chooses and stores the choice.
#include "llmc/cuda/backend.h"

#include "llmc/cuda/tuning.h"
#include "llmc/ops.h"
#include <cublasLt.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

// The properties that distinguish products. Every byte is defined (gemm_key clears it first): compared and hashed as
// bytes.
typedef struct {
    int64_t m, n, k;
    uint64_t workspace_bytes;
    int32_t transpose_a, transpose_b, in_a, in_b, out, epilogue, fast_sums;
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
    key.m = g->m, key.n = g->n, key.k = g->k;
    key.workspace_bytes = g->workspace_bytes;
    key.transpose_a = g->transpose_a, key.transpose_b = g->transpose_b;
    key.in_a = (int32_t)g->in_a, key.in_b = (int32_t)g->in_b, key.out = (int32_t)g->out;
    key.epilogue = (int32_t)g->epilogue;
    key.fast_sums = g->fast_sums;
    key.align_a = alignment_of(g->a), key.align_b = alignment_of(g->b), key.align_d = alignment_of(g->d);
    if (g->c && g->c != g->d) key.align_c = alignment_of(g->c);
    if (g->bias) key.align_bias = alignment_of(g->bias);
    if (g->aux) key.align_aux = alignment_of(g->aux);
    return key;
}

static const char *const epilogue_names[] = {"plain", "bias", "gelu+aux+bias", "dgelu", "bgradb"};

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

// How it is computed: "fp32 sums", "tf32", "fast sums".
static const char *gemm_arithmetic(const GemmKey *key) {
    return key->fast_sums ? "fast sums" : compute_type(key) == CUBLAS_COMPUTE_32F ? "fp32 sums" : "tf32";
}

// --------------------------------------------------------------------------------------------------------- descriptors

#define LT_CHECK(key, call)                                                                                            \
    do {                                                                                                               \
        const cublasStatus_t lt_status_ = (call);                                                                      \
        REQUIRE(lt_status_ == CUBLAS_STATUS_SUCCESS, "matmul %s: %s: %s", gemm_describe(key).text, #call,              \
                cublasLtGetStatusName(lt_status_));                                                                    \
    } while (0)

static cublasLtHandle_t library; // created by the first search or launch

static cublasLtHandle_t handle(const GemmKey *key) {
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

static cublasLtEpilogue_t library_epilogue(int32_t epilogue) {
    static const cublasLtEpilogue_t all[] = {CUBLASLT_EPILOGUE_DEFAULT, CUBLASLT_EPILOGUE_BIAS,
                                             CUBLASLT_EPILOGUE_GELU_AUX_BIAS, CUBLASLT_EPILOGUE_DGELU,
                                             CUBLASLT_EPILOGUE_BGRADB};
    return all[epilogue];
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

static void set_operations(const GemmDescriptors *p, const GemmKey *key) {
    const int32_t transa = key->transpose_a ? CUBLAS_OP_T : CUBLAS_OP_N;
    const int32_t transb = key->transpose_b ? CUBLAS_OP_T : CUBLAS_OP_N;
    const int32_t type = (int32_t)cuda_type(key->out);
    const uint32_t epilogue = library_epilogue(key->epilogue);
    const int8_t fast_sums = (int8_t)key->fast_sums;
    set_operation(p, key, CUBLASLT_MATMUL_DESC_TRANSA, &transa, sizeof transa);
    set_operation(p, key, CUBLASLT_MATMUL_DESC_TRANSB, &transb, sizeof transb);
    set_operation(p, key, CUBLASLT_MATMUL_DESC_EPILOGUE, &epilogue, sizeof epilogue);
    if (fast_sums) set_operation(p, key, CUBLASLT_MATMUL_DESC_FAST_ACCUM, &fast_sums, sizeof fast_sums);
    if (key->align_bias) set_operation(p, key, CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, &type, sizeof type);
    // aux has the type of D when none is set; fp32 must not be set.
    if (key->align_aux) set_operation(p, key, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, &key->m, sizeof key->m);
}

static void make_layout(const GemmKey *key, cublasLtMatrixLayout_t *layout, int32_t dtype, int64_t rows, int64_t cols) {
    LT_CHECK(key, cublasLtMatrixLayoutCreate(layout, cuda_type(dtype), (uint64_t)rows, (uint64_t)cols, rows));
}

static void gemm_make_descriptors(GemmDescriptors *p, const GemmKey *key, const Gemm *g) {
    LT_CHECK(key, cublasLtMatmulDescCreate(&p->desc, compute_type(key), CUDA_R_32F));
    set_operations(p, key);
    LT_CHECK(key, set_pointers(p, g));
    // Layouts describe memory, before op.
    make_layout(key, &p->a, key->in_a, key->transpose_a ? key->k : key->m, key->transpose_a ? key->m : key->k);
    make_layout(key, &p->b, key->in_b, key->transpose_b ? key->n : key->k, key->transpose_b ? key->k : key->n);
    make_layout(key, &p->d, key->out, key->m, key->n);
}

static void gemm_free_descriptors(GemmDescriptors *p, const GemmKey *key) {
    if (p->desc) LT_CHECK(key, cublasLtMatmulDescDestroy(p->desc));
    if (p->a) LT_CHECK(key, cublasLtMatrixLayoutDestroy(p->a));
    if (p->b) LT_CHECK(key, cublasLtMatrixLayoutDestroy(p->b));
    if (p->d) LT_CHECK(key, cublasLtMatrixLayoutDestroy(p->d));
}

// ---------------------------------------------------------------------------------------------------------- candidates

// The library sorts its candidates by expected time.
enum { GEMM_MAX_CANDIDATES = TIMING_MAX_CHOICES };

// 1: k in one piece. 2: in parts, which are added in fp32 and in a fixed order. 0: neither.
static int gemm_splits(const GemmKey *key, const cublasLtMatmulAlgo_t *algorithm) {
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

// "tile 23, stages 36, split 1": the library's numbers of its enums (cublasLt.h), and the parts of k.
static GemmText gemm_describe_algorithm(const cublasLtMatmulAlgo_t *algorithm) {
    static const cublasLtMatmulAlgoConfigAttributes_t attributes[] = {
        CUBLASLT_ALGO_CONFIG_TILE_ID, CUBLASLT_ALGO_CONFIG_STAGES_ID, CUBLASLT_ALGO_CONFIG_SPLITK_NUM};
    uint32_t values[3] = {0}; // what an algorithm does not have stays 0, "undefined"
    size_t written;
    GemmText d;
    for (int i = 0; i < 3; i++)
        (void)cublasLtMatmulAlgoConfigGetAttribute(algorithm, attributes[i], &values[i], sizeof values[i], &written);
    snprintf(d.text, sizeof d.text, "tile %u, stages %u, split %u", values[0], values[1], values[2]);
    return d;
}

static void set_preference(const GemmKey *key, cublasLtMatmulPreference_t preference,
                           cublasLtMatmulPreferenceAttributes_t attribute, const void *value, size_t size) {
    LT_CHECK(key, cublasLtMatmulPreferenceSetAttribute(preference, attribute, value, size));
}

static cublasLtMatmulPreference_t make_preference(const GemmKey *key) {
    cublasLtMatmulPreference_t preference;
    const uint32_t mask = CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE;
    const uint32_t align_a = (uint32_t)key->align_a, align_b = (uint32_t)key->align_b, align_d = (uint32_t)key->align_d;
    const uint32_t align_c = key->align_c ? (uint32_t)key->align_c : align_d;
    LT_CHECK(key, cublasLtMatmulPreferenceCreate(&preference));
    set_preference(key, preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &key->workspace_bytes,
                   sizeof key->workspace_bytes);
    set_preference(key, preference, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, &mask, sizeof mask);
    set_preference(key, preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, &align_a, sizeof align_a);
    set_preference(key, preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, &align_b, sizeof align_b);
    set_preference(key, preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, &align_c, sizeof align_c);
    set_preference(key, preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, &align_d, sizeof align_d);
    return preference;
}

// Candidates that add what they split in fp32 and in a fixed order, in the library's order; returns how many.
static int gemm_search(const GemmDescriptors *p, const GemmKey *key,
                       cublasLtMatmulAlgo_t candidates[GEMM_MAX_CANDIDATES]) {
    cublasLtMatmulHeuristicResult_t results[GEMM_MAX_CANDIDATES];
    const cublasLtMatmulPreference_t preference = make_preference(key);
    int found = 0, count = 0;
    const cublasStatus_t status = cublasLtMatmulAlgoGetHeuristic(handle(key), p->desc, p->a, p->b, p->d, p->d,
                                                                 preference, GEMM_MAX_CANDIDATES, results, &found);
    LT_CHECK(key, cublasLtMatmulPreferenceDestroy(preference));
    // The library reports a missing algorithm by no results or by a status; for an epilogue also by INVALID_VALUE.
    if (status != CUBLAS_STATUS_NOT_SUPPORTED && (status != CUBLAS_STATUS_INVALID_VALUE || key->epilogue == GEMM_PLAIN))
        REQUIRE(status == CUBLAS_STATUS_SUCCESS, "matmul %s: the search for algorithms: %s", gemm_describe(key).text,
                cublasLtGetStatusName(status));
    for (int i = 0; status == CUBLAS_STATUS_SUCCESS && i < found; i++)
        if (results[i].state == CUBLAS_STATUS_SUCCESS && results[i].workspaceSize <= key->workspace_bytes &&
            gemm_splits(key, &results[i].algo) > 0)
            candidates[count++] = results[i].algo;
    return count;
}

// Whether the library takes an algorithm that was found elsewhere.
static bool gemm_takes(const GemmDescriptors *p, const GemmKey *key, const cublasLtMatmulAlgo_t *algorithm) {
    cublasLtMatmulHeuristicResult_t result;
    return cublasLtMatmulAlgoCheck(handle(key), p->desc, p->a, p->b, p->d, p->d, algorithm, &result) ==
               CUBLAS_STATUS_SUCCESS &&
           result.workspaceSize <= key->workspace_bytes && gemm_splits(key, algorithm) > 0;
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

typedef enum { UNKNOWN, FUSED, UNFUSED } Verdict;

struct GemmPlan {
    GemmKey key;
    GemmDescriptors descriptors;
    bool usable; // there is an algorithm
    cublasLtMatmulAlgo_t algorithm;
    Verdict verdict;
};

static struct {
    GemmPlan **table; // open addressing, a power of two, at most half full
    int64_t table_size;
    GemmCounts counts;
} state;

GemmCounts gemm_counts(void) { return state.counts; }

// The key of the tuning file.
static void tuning_key(char text[TUNING_KEY_MAX], const GemmKey *key, const char *what) {
    snprintf(text, TUNING_KEY_MAX, "%s, cuBLASLt %zu, %s, %s, align %d %d %d %d %d %d, workspace %llu, %s",
             tuning_machine(), cublasLtGetVersion(), gemm_describe(key).text, gemm_arithmetic(key), key->align_a,
             key->align_b, key->align_c, key->align_d, key->align_bias, key->align_aux,
             (unsigned long long)key->workspace_bytes, what);
}

void gemm_run(const GemmPlan *p, const Gemm *g) { LT_CHECK(&p->key, gemm_launch(&p->descriptors, g, &p->algorithm)); }

// --------------------------------------------------------------------------------------------------------- measurement

// The tolerance between correct algorithms, as ||D - D'|| / ||D||. Operands are the same, sums are in fp32 (of 65,536
// products: 1e-3 at worst, where tensor cores cut off), so it is the rounding of D: by 2^-8 at most in bf16, in fp16 by
// 2^-11, and inputs of tf32 products by as much. Sums of fp8 products may keep 14 bits: 2 %, see
// fp8_matmul. An unfused way rounds twice, once before a bias is added that may cancel a part. Wrong results differ by
// tens of per cent.
static const double UNFUSED_FACTOR = 3.0;
static double tolerance(const GemmKey *key) {
    return dtype_size((DType)key->in_a) == 1 ? 5e-2 : key->out == DTYPE_BF16 ? 2e-2 : 5e-3;
}

// A copy of a tensor's contents, or, where memory is short, of its end, where unwritten parts would be.
typedef struct {
    Tensor part, copy; // of the tensor; as large, without data when there is no memory at all
    void *block;
} Reference;

static Reference reference_make(Tensor t) {
    const int64_t numel = tensor_numel(t);
    Reference r = {t, t, NULL};
    r.copy.data = NULL;
    for (int64_t n = numel; t.data && n > 0 && !r.copy.data; n /= 4) {
        r.part = tensor_slice_elements(t, numel - n, n);
        r.copy = r.part;
        r.copy.data = cuda_memory_like(r.part.data, tensor_bytes(r.part), &r.block);
    }
    return r;
}

static void reference_take(const Reference *r) {
    CUDA_CHECK(cudaMemcpyAsync(r->copy.data, r->part.data, tensor_bytes(r->part), cudaMemcpyDeviceToDevice,
                               cuda_compute_stream()));
}

static void report(const GemmKey *key, const char *what, double difference) {
    fprintf(stderr, "matmul %s: %s of cuBLASLt %zu differs by %.2g and is not used\n", gemm_describe(key).text, what,
            cublasLtGetVersion(), difference);
}

// The candidates of one plan while they are tried.
typedef struct {
    const GemmPlan *plan;
    Gemm gemm; // as it will be called, but stored, not added, to memory where nothing is lost; its d is NULL if there
               // is none
    cublasLtMatmulAlgo_t algorithms[GEMM_MAX_CANDIDATES];
    int count;
} Trial;

static bool run_candidate(void *context, int i) {
    const Trial *t = context;
    return gemm_launch(&t->plan->descriptors, &t->gemm, &t->algorithms[i]) == CUBLAS_STATUS_SUCCESS;
}

static Tensor output(const Trial *t) {
    return tensor_make(t->gemm.d, t->gemm.out, "a matrix product", t->gemm.n, t->gemm.m, 0, 0);
}

// The candidate into D that held no numbers. False: it does not run.
static bool run_poisoned(Trial *t, int i) {
    cuda_poison(output(t));
    return run_candidate(t, i);
}

static void drop(Trial *t, int i) {
    t->count--;
    memmove(&t->algorithms[i], &t->algorithms[i + 1], (size_t)(t->count - i) * sizeof t->algorithms[0]);
}

// How many differ from the first candidate, and by what; differences[0]: the largest. If more than half differ, the
// first one is the wrong one.
static int count_differing(Trial *t, const Reference *r, double differences[GEMM_MAX_CANDIDATES]) {
    int differing = 0;
    differences[0] = INFINITY;
    if (!run_poisoned(t, 0)) return t->count;
    differences[0] = 0.0;
    reference_take(r);
    for (int i = 1; i < t->count; i++) {
        differences[i] = run_poisoned(t, i) ? cuda_difference(r->part, r->copy) : INFINITY;
        differences[0] = fmax(differences[0], differences[i]);
        differing += differences[i] > tolerance(&t->plan->key);
    }
    return differing;
}

// Drops candidates that do not run, although the library offered them, and those whose D differs from the others.
// Without memory to compare, only the library's favourite is kept.
static void keep_right(Trial *t) {
    double differences[GEMM_MAX_CANDIDATES];
    const double limit = tolerance(&t->plan->key);
    for (int i = t->count - 1; i >= 0; i--)
        if (!run_candidate(t, i)) drop(t, i);
    if (t->count < 2) return;
    Reference r = reference_make(output(t));
    if (!r.copy.data) t->count = 1;
    while (t->count > 1) {
        const int differing = count_differing(t, &r, differences);
        if (2 * differing <= t->count) {
            for (int i = t->count - 1; i > 0; i--) {
                if (differences[i] <= limit) continue;
                report(&t->plan->key, "an algorithm", differences[i]);
                drop(t, i);
            }
            break;
        }
        report(&t->plan->key, "the first algorithm", differences[0]);
        drop(t, 0);
    }
    CUDA_CHECK(cudaFree(r.block));
}

// Whether two runs give the same bits. copy: memory for one of them. The trial does not accumulate.
static bool candidate_repeats(Trial *t, int i, void *copy, size_t bytes) {
    if (!run_candidate(t, i)) return false;
    CUDA_CHECK(cudaMemcpyAsync(copy, t->gemm.d, bytes, cudaMemcpyDeviceToDevice, cuda_compute_stream()));
    return run_candidate(t, i) && cuda_same_bits(copy, t->gemm.d, bytes);
}

// Drops candidates that split k and do not repeat, or cannot be checked for lack of memory.
static void keep_repeatable(Trial *t) {
    const size_t bytes = (size_t)(t->gemm.m * t->gemm.n) * dtype_size(t->gemm.out);
    void *block = NULL, *copy = NULL;
    int kept = 0;
    for (int i = 0; i < t->count; i++) {
        const bool splits = gemm_splits(&t->plan->key, &t->algorithms[i]) > 1;
        if (splits && !block) copy = cuda_memory_like(t->gemm.d, bytes, &block);
        if (!splits || (copy && candidate_repeats(t, i, copy, bytes))) t->algorithms[kept++] = t->algorithms[i];
    }
    t->count = kept;
    CUDA_CHECK(cudaFree(block));
}

// The algorithm that the tuning file holds, if the library takes it for this product and it runs.
static bool load_algorithm(Trial *t, const char *text) {
    return tuning_cache_get(text, &t->algorithms[0], sizeof t->algorithms[0]) &&
           gemm_takes(&t->plan->descriptors, &t->plan->key, &t->algorithms[0]) &&
           (t->gemm.d ? run_candidate(t, 0) : t->plan->key.epilogue == GEMM_PLAIN);
}

// Without a place to try them, the library's favourite among those that need no trial; but none with an epilogue, for
// which there are kernels.
static int untried(const Trial *t) {
    int i = 0;
    if (t->plan->key.epilogue != GEMM_PLAIN) return -1;
    while (i < t->count && gemm_splits(&t->plan->key, &t->algorithms[i]) > 1) i++;
    return i < t->count ? i : -1;
}

static void note_algorithms(const Trial *t, int count, const float *ms, int taken) {
    GemmText ways[GEMM_MAX_CANDIDATES];
    const char *texts[GEMM_MAX_CANDIDATES];
    for (int i = 0; i < count; i++) {
        ways[i] = gemm_describe_algorithm(&t->algorithms[i]);
        texts[i] = ways[i].text;
    }
    cuda_note_choice(gemm_describe(&t->plan->key).text, count, texts, ms, taken);
}

// The fastest of those that are right and repeat, into p->algorithm. False: there is none.
static bool choose_algorithm(GemmPlan *p, const Gemm *g) {
    Trial t = {.plan = p, .gemm = *g};
    char text[TUNING_KEY_MAX];
    float ms[GEMM_MAX_CANDIDATES];
    bool timed = false;
    void *block = NULL;
    int best = 0;
    // Trials store where the real product adds in place, which is not part of the choice.
    if (g->c == g->d) {
        t.gemm.c = NULL;
        t.gemm.d = cuda_memory_like(g->d, tensor_bytes(output(&t)), &block);
    }
    tuning_key(text, &p->key, "algorithm");
    if (!load_algorithm(&t, text)) {
        t.count = gemm_search(&p->descriptors, &p->key, t.algorithms);
        if (t.gemm.d) {
            keep_right(&t);
            keep_repeatable(&t);
        }
        best = !t.gemm.d ? untried(&t) : t.count - 1;
        if (t.gemm.d && t.count > 1) {
            state.counts.timed += t.count;
            best = cuda_fastest(t.count, run_candidate, &t, ms);
            timed = true;
            if (best >= 0) tuning_cache_put(text, &t.algorithms[best], sizeof t.algorithms[best]);
        }
    }
    CUDA_CHECK(cudaFree(block));
    if (best < 0) return false;
    p->algorithm = t.algorithms[best];
    t.count = t.count ? t.count : 1; // that of the file
    note_algorithms(&t, t.count, timed ? ms : NULL, best);
    return true;
}

static void verdict_key(char text[TUNING_KEY_MAX], const GemmPlan *p, bool timed) {
    tuning_key(text, &p->key, timed ? "faster than unfused" : "as unfused");
}

static void note_verdict(const GemmPlan *p, const float *ms, int fused) {
    static const char *const ways[] = {"plain and a kernel after it", "in the epilogue"};
    char what[sizeof(GemmText) + 32];
    snprintf(what, sizeof what, "epilogue of %s", gemm_describe(&p->key).text);
    cuda_note_choice(what, 2, ways, ms, fused);
}

bool gemm_is_known(GemmPlan *p, bool timed) {
    char text[TUNING_KEY_MAX];
    uint8_t fused;
    if (p->verdict != UNKNOWN) return true;
    verdict_key(text, p, timed);
    if (!tuning_cache_get(text, &fused, sizeof fused) || fused > 1) return false;
    p->verdict = fused ? FUSED : UNFUSED;
    note_verdict(p, NULL, fused);
    return true;
}

// Runs both ways into outputs filled with NaN (zeros where work adds to them). *had_room: there was memory to compare.
static bool agrees(const GemmPlan *p, const GemmContest *c, bool *had_room) {
    Reference r[GEMM_MAX_OUTPUTS];
    double worst = 0.0;
    bool room = true;
    for (int i = 0; i < c->num_outputs; i++) room = room && c->outputs[i].data;
    if (room) c->work(c->context, 0); // makes its plans, which takes memory too
    for (int i = 0; i < c->num_outputs; i++) {
        r[i] = reference_make(c->outputs[i]);
        room = room && r[i].copy.data;
    }
    for (int fused = 0; room && fused < 2; fused++) {
        for (int i = 0; i < c->num_outputs; i++) {
            if (c->adds)
                backend_tensor_fill(c->outputs[i], 0.0f);
            else
                cuda_poison(c->outputs[i]);
        }
        c->work(c->context, fused);
        for (int i = 0; i < c->num_outputs; i++) {
            if (!fused) reference_take(&r[i]);
            if (fused) worst = fmax(worst, cuda_difference(r[i].part, r[i].copy));
        }
    }
    for (int i = 0; i < c->num_outputs; i++) CUDA_CHECK(cudaFree(r[i].block));
    const bool right = worst <= UNFUSED_FACTOR * tolerance(&p->key);
    if (!right) report(&p->key, "the epilogue", worst);
    *had_room = room;
    return right;
}

bool gemm_fuses(GemmPlan *p, const GemmContest *c) {
    if (gemm_is_known(p, c->timed)) return p->verdict == FUSED;
    p->verdict = UNFUSED;
    if (cuda_backend.capturing) return false;
    bool room;
    const bool right = agrees(p, c, &room);
    uint8_t fused = right && (room || !c->timed);
    if (right && room) { // otherwise not kept in the file: the next run looks again, and says so again
        char text[TUNING_KEY_MAX];
        float ms[2] = {-1.0f, -1.0f};
        fused = (!c->repeats || c->repeats(c->context)) && (!c->timed || cuda_fastest(2, c->work, c->context, ms) == 1);
        verdict_key(text, p, c->timed);
        tuning_cache_put(text, &fused, sizeof fused);
        note_verdict(p, ms, fused);
    }
    p->verdict = fused ? FUSED : UNFUSED;
    return fused;
}

// --------------------------------------------------------------------------------------------------------------- table

// FNV-1a over the bytes of the key.
static uint64_t hash(const GemmKey *key) {
    uint64_t h = 0xcbf29ce484222325u;
    for (size_t i = 0; i < sizeof *key; i++) h = (h ^ ((const unsigned char *)key)[i]) * 0x100000001b3u;
    return h ^ h >> 32;
}

// The slot of this key's plan, or the free slot where it belongs.
static GemmPlan **place(GemmPlan **table, int64_t size, const GemmKey *key) {
    uint64_t i = hash(key) & (uint64_t)(size - 1);
    while (table[i] && memcmp(&table[i]->key, key, sizeof *key) != 0) i = (i + 1) & (uint64_t)(size - 1);
    return &table[i];
}

static void grow_table(void) {
    const int64_t size = state.table_size ? 2 * state.table_size : 64;
    GemmPlan **table = calloc((size_t)size, sizeof *table);
    REQUIRE_MEMORY(table != NULL, "%lld matmul plans", (long long)size);
    for (int64_t i = 0; i < state.table_size; i++)
        if (state.table[i]) *place(table, size, &state.table[i]->key) = state.table[i];
    free(state.table);
    state.table = table;
    state.table_size = size;
}

static GemmPlan *make_plan(const Gemm *g, const GemmKey *key) {
    REQUIRE(!cuda_backend.capturing, "%s: matmul %s is first seen while a graph is captured", g->op,
            gemm_describe(key).text);
    GemmPlan *p = calloc(1, sizeof *p);
    REQUIRE_MEMORY(p != NULL, "a matmul plan");
    p->key = *key;
    state.counts.plans++;
    // A rule of cublasLt.h that the library may not enforce itself: aux at 16 bytes, and m, its leading dimension, a
    // multiple of 8.
    if (key->align_aux != 0 && (key->align_aux < 16 || key->m % 8 != 0)) return p;
    gemm_make_descriptors(&p->descriptors, key, g);
    p->usable = choose_algorithm(p, g);
    return p;
}

GemmPlan *gemm_plan(const Gemm *g) {
    const GemmKey key = gemm_key(g);
    if (2 * (state.counts.plans + 1) > state.table_size) grow_table();
    GemmPlan **found = place(state.table, state.table_size, &key);
    if (!*found) *found = make_plan(g, &key);
    return (*found)->usable ? *found : NULL;
}

void gemm_shutdown(void) {
    for (int64_t i = 0; i < state.table_size; i++) {
        if (!state.table[i]) continue;
        gemm_free_descriptors(&state.table[i]->descriptors, &state.table[i]->key);
        free(state.table[i]);
    }
    free(state.table);
    if (library) REQUIRE(cublasLtDestroy(library) == CUBLAS_STATUS_SUCCESS, "cublasLtDestroy failed");
    library = NULL;
    cuda_forget_choices();
    memset(&state, 0, sizeof state);
    tuning_cache_close();
}
