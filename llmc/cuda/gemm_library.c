// See gemm_library.h.
#include "llmc/cuda/gemm_library.h"

#include <stdio.h>
#include <string.h>

static cublasLtHandle_t library; // created by the first search or launch

static cublasLtHandle_t handle(const GemmKey *key) {
    if (!library) LT_CHECK(key, cublasLtCreate(&library));
    return library;
}

void gemm_library_shutdown(void) {
    if (library) REQUIRE(cublasLtDestroy(library) == CUBLAS_STATUS_SUCCESS, "cublasLtDestroy failed");
    library = NULL;
}

// ---------------------------------------------------------------------------------------------------- key and messages

static int32_t alignment_of(const void *p) {
    const uintptr_t bits = (uintptr_t)p | 256;
    return (int32_t)(bits & (~bits + 1));
}

GemmKey gemm_key(const Gemm *g) {
    GemmKey key;
    memset(&key, 0, sizeof key);
    key.m = g->m, key.n = g->n, key.k = g->k;
    key.workspace_bytes = g->workspace_bytes;
    key.transpose_a = g->transpose_a, key.transpose_b = g->transpose_b;
    key.in_a = (int32_t)g->in_a, key.in_b = (int32_t)g->in_b, key.out = (int32_t)g->out;
    key.epilogue = (int32_t)g->epilogue;
    key.fast_sums = g->fast_sums;
    key.align_a = alignment_of(g->a), key.align_b = alignment_of(g->b), key.align_d = alignment_of(g->d);
    if (g->bias) key.align_bias = alignment_of(g->bias);
    if (g->aux) key.align_aux = alignment_of(g->aux);
    return key;
}

static const char *const epilogue_names[] = {"plain", "bias", "gelu+aux+bias", "dgelu", "bgradb"};

GemmText gemm_describe(const GemmKey *key) {
    GemmText d;
    const char *a = dtype_name((DType)key->in_a), *b = dtype_name((DType)key->in_b);
    const bool same = key->in_a == key->in_b;
    snprintf(d.text, sizeof d.text, "%c%c m %lld n %lld k %lld, %s%s%s to %s, %s", key->transpose_a ? 'T' : 'N',
             key->transpose_b ? 'T' : 'N', (long long)key->m, (long long)key->n, (long long)key->k, a,
             same ? "" : " x ", same ? "" : b, dtype_name((DType)key->out), epilogue_names[key->epilogue]);
    return d;
}

static cublasComputeType_t compute_type(const GemmKey *key) {
    const bool tf32 = key->in_a == DTYPE_FP32 && cuda_backend.options.tf32 && cuda_backend.compute_capability >= 80;
    return tf32 ? CUBLAS_COMPUTE_32F_FAST_TF32 : CUBLAS_COMPUTE_32F;
}

const char *gemm_arithmetic(const GemmKey *key) {
    return key->fast_sums ? "fast sums" : compute_type(key) == CUBLAS_COMPUTE_32F ? "fp32 sums" : "tf32";
}

// --------------------------------------------------------------------------------------------------------- descriptors

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

// Where bias, aux and scales lie changes from layer to layer. The search wants to see them too: it reads their
// alignment.
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

void gemm_make_descriptors(GemmDescriptors *p, const GemmKey *key, const Gemm *g) {
    LT_CHECK(key, cublasLtMatmulDescCreate(&p->desc, compute_type(key), CUDA_R_32F));
    set_operations(p, key);
    LT_CHECK(key, set_pointers(p, g));
    // Layouts are what lies in memory, before op.
    make_layout(key, &p->a, key->in_a, key->transpose_a ? key->k : key->m, key->transpose_a ? key->m : key->k);
    make_layout(key, &p->b, key->in_b, key->transpose_b ? key->n : key->k, key->transpose_b ? key->k : key->n);
    make_layout(key, &p->d, key->out, key->m, key->n);
}

void gemm_free_descriptors(GemmDescriptors *p, const GemmKey *key) {
    if (p->desc) LT_CHECK(key, cublasLtMatmulDescDestroy(p->desc));
    if (p->a) LT_CHECK(key, cublasLtMatrixLayoutDestroy(p->a));
    if (p->b) LT_CHECK(key, cublasLtMatrixLayoutDestroy(p->b));
    if (p->d) LT_CHECK(key, cublasLtMatrixLayoutDestroy(p->d));
}

// ---------------------------------------------------------------------------------------------------------- candidates

int gemm_splits(const GemmKey *key, const cublasLtMatmulAlgo_t *algorithm) {
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

GemmText gemm_describe_algorithm(const cublasLtMatmulAlgo_t *algorithm) {
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
    LT_CHECK(key, cublasLtMatmulPreferenceCreate(&preference));
    set_preference(key, preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &key->workspace_bytes,
                   sizeof key->workspace_bytes);
    set_preference(key, preference, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, &mask, sizeof mask);
    set_preference(key, preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, &align_a, sizeof align_a);
    set_preference(key, preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, &align_b, sizeof align_b);
    set_preference(key, preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, &align_d, sizeof align_d);
    set_preference(key, preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, &align_d, sizeof align_d);
    return preference;
}

int gemm_search(const GemmDescriptors *p, const GemmKey *key, cublasLtMatmulAlgo_t candidates[GEMM_MAX_CANDIDATES]) {
    cublasLtMatmulHeuristicResult_t results[GEMM_MAX_CANDIDATES];
    const cublasLtMatmulPreference_t preference = make_preference(key);
    int found = 0, count = 0;
    const cublasStatus_t status = cublasLtMatmulAlgoGetHeuristic(handle(key), p->desc, p->a, p->b, p->d, p->d,
                                                                 preference, GEMM_MAX_CANDIDATES, results, &found);
    LT_CHECK(key, cublasLtMatmulPreferenceDestroy(preference));
    // What the library does not have, it says by no results or by a status; for an epilogue also by INVALID_VALUE.
    if (status != CUBLAS_STATUS_NOT_SUPPORTED && (status != CUBLAS_STATUS_INVALID_VALUE || key->epilogue == GEMM_PLAIN))
        REQUIRE(status == CUBLAS_STATUS_SUCCESS, "matmul %s: the search for algorithms: %s", gemm_describe(key).text,
                cublasLtGetStatusName(status));
    for (int i = 0; status == CUBLAS_STATUS_SUCCESS && i < found; i++)
        if (results[i].state == CUBLAS_STATUS_SUCCESS && results[i].workspaceSize <= key->workspace_bytes &&
            gemm_splits(key, &results[i].algo) > 0)
            candidates[count++] = results[i].algo;
    return count;
}

bool gemm_takes(const GemmDescriptors *p, const GemmKey *key, const cublasLtMatmulAlgo_t *algorithm) {
    cublasLtMatmulHeuristicResult_t result;
    return cublasLtMatmulAlgoCheck(handle(key), p->desc, p->a, p->b, p->d, p->d, algorithm, &result) ==
               CUBLAS_STATUS_SUCCESS &&
           result.workspaceSize <= key->workspace_bytes && gemm_splits(key, algorithm) > 0;
}

cublasStatus_t gemm_launch(const GemmDescriptors *p, const Gemm *g, const cublasLtMatmulAlgo_t *algorithm) {
    const float alpha = 1.0f, beta = g->accumulate ? 1.0f : 0.0f;
    const cublasStatus_t status = set_pointers(p, g);
    if (status != CUBLAS_STATUS_SUCCESS) return status;
    return cublasLtMatmul(library, p->desc, &alpha, g->a, p->a, g->b, p->b, &beta, g->d, p->d, g->d, p->d, algorithm,
                          g->workspace, g->workspace_bytes, cuda_compute_stream());
}
