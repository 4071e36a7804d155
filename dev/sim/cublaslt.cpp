// cuBLASLt on the CPU, declared by the toolkit's own header: descriptors, search, checks and
// cublasLtMatmul, for the calls a trainer makes. Strict where the library is undefined: whatever
// cublasLt.h asks for is checked here, and what is wrong is named on stderr. The arithmetic is in
// gemm.cpp. What tests may ask for and look at: cublaslt.h.
//
// The rules it enforces: sizes of attributes; layouts that fit the operation; types that go
// together; one layout for C and D, which are the same memory or apart; bias and aux of D's type,
// aux with a leading dimension that is a multiple of 8 and at 16 bytes; pointers as aligned as the
// search was promised, with all of the operand behind them; a workspace as large as the algorithm
// needs, which no operand lies in; no search under capture; for fp8 what check_fp8 of
// cublaslt_problem.cpp lists.
#include "dev/sim/cublaslt_problem.h"
#include "dev/sim/gemm.h"
#include "dev/sim/sanitizers.h"
#include <string.h>

SimCublasLtCounts sim_cublaslt_counts;

using namespace sim::lt;

namespace {

template <class T, class P> cublasStatus_t destroy(P opaque) {
    T *x = object<T>(opaque);
    x->kind = Kind(0);
    delete x;
    return CUBLAS_STATUS_SUCCESS;
}
template <class T> cublasStatus_t set(T *to, const void *from, size_t size, const char *what) {
    if (size != sizeof(T))
        return INVALID("%s: %zu bytes, the attribute has %zu", what, size, sizeof(T));
    memcpy(to, from, size);
    return CUBLAS_STATUS_SUCCESS;
}

// ---------------------------------------------------------------------------------- multiplication

struct Job {
    sim::Gemm gemm;
    void *workspace;
    size_t workspace_bytes; // what the algorithm needs
    bool slow;
    int32_t units;    // multiprocessors; 0: all
    int32_t count;    // products of a batch
    int64_t steps[4]; // bytes between the matrices of A, B, C, D
};

// Columns of an operand, told to ThreadSanitizer; written: D and what goes with it.
void see(const sim::GemmMatrix &x, int64_t rows, int64_t columns, bool written) {
    for (int64_t j = 0; j < columns; j++) {
        char *column = static_cast<char *>(x.data) + j * x.ld * sim::width(x.type);
        if (written)
            sim::tsan_writes(column, rows * sim::width(x.type));
        else
            sim::tsan_reads(column, rows * sim::width(x.type));
    }
}
void see_operands(const sim::Gemm &g) {
    see(g.a, g.a.transposed ? g.k : g.m, g.a.transposed ? g.m : g.k, false);
    see(g.b, g.b.transposed ? g.n : g.k, g.b.transposed ? g.k : g.n, false);
    if (g.beta != 0.0f) see(g.c, g.m, g.n, false);
    if (g.epilogue == CUBLASLT_EPILOGUE_BIAS || g.epilogue == CUBLASLT_EPILOGUE_GELU_AUX_BIAS)
        see(g.bias, g.m, 1, false);
    if (g.aux.data) see(g.aux, g.m, g.n, g.epilogue == CUBLASLT_EPILOGUE_GELU_AUX_BIAS);
    see(g.d, g.m, g.n, true);
}

void run(void *argument) {
    const Job &job = *static_cast<Job *>(argument);
    if (job.workspace_bytes > 0) memset(job.workspace, 0xff, job.workspace_bytes);
    for (int32_t i = 0; i < job.count; i++) {
        sim::Gemm gemm = job.gemm;
        sim::GemmMatrix *const all[] = {&gemm.a, &gemm.b, &gemm.c, &gemm.d};
        for (int j = 0; j < 4; j++)
            all[j]->data = static_cast<char *>(all[j]->data) + i * job.steps[j];
        see_operands(gemm);
        sim::gemm_run(gemm);
    }
    sim::clock_advance(sim::LIBRARY_MS + (job.slow ? sim::SLOW_MS : 0.0));
}

void launched(void *argument, cudaStream_t stream) {
    const Job &job = *static_cast<Job *>(argument);
    const int taken = sim::multiprocessors_taken(stream), all = sim::device_model().num_sms;
    if (taken == 0 || sim::device_model().compute_capability < 90) return;
    sim_cublaslt_counts.beside++;
    if (job.units > 0 && job.units + taken <= all) return;
    sim_cublaslt_counts.crowded++;
    if (sim::setting_is("SIM_CUBLASLT_CROWDED", "refused"))
        sim::fatal("cublasLtMatmul on %d of %d multiprocessors beside a collective that takes %d",
                   job.units ? job.units : all, all, taken);
}

} // namespace

// --------------------------------------------------------------------------------------------- API

extern "C" {

size_t cublasLtGetVersion(void) { return CUBLAS_VERSION; }
const char *cublasLtGetStatusName(cublasStatus_t status) {
    return status == CUBLAS_STATUS_SUCCESS         ? "CUBLAS_STATUS_SUCCESS"
           : status == CUBLAS_STATUS_INVALID_VALUE ? "CUBLAS_STATUS_INVALID_VALUE"
           : status == CUBLAS_STATUS_NOT_SUPPORTED ? "CUBLAS_STATUS_NOT_SUPPORTED"
           : status == CUBLAS_STATUS_ALLOC_FAILED  ? "CUBLAS_STATUS_ALLOC_FAILED"
                                                   : "another cublasStatus_t";
}
cublasStatus_t cublasLtCreate(cublasLtHandle_t *handle) {
    *handle = reinterpret_cast<cublasLtHandle_t>(new Handle);
    return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtDestroy(cublasLtHandle_t handle) { return destroy<Handle>(handle); }

cublasStatus_t cublasLtMatmulDescCreate(cublasLtMatmulDesc_t *desc, cublasComputeType_t compute,
                                        cudaDataType_t scale) {
    Operation *op = new Operation;
    op->compute = compute;
    op->scale = scale;
    *desc = reinterpret_cast<cublasLtMatmulDesc_t>(op);
    return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulDescDestroy(cublasLtMatmulDesc_t desc) {
    return destroy<Operation>(desc);
}
cublasStatus_t cublasLtMatmulDescSetAttribute(cublasLtMatmulDesc_t desc,
                                              cublasLtMatmulDescAttributes_t attribute,
                                              const void *value, size_t size) {
    Operation *op = object<Operation>(desc);
    switch (attribute) {
    case CUBLASLT_MATMUL_DESC_TRANSA:
        return set(&op->transa, value, size, "TRANSA");
    case CUBLASLT_MATMUL_DESC_TRANSB:
        return set(&op->transb, value, size, "TRANSB");
    case CUBLASLT_MATMUL_DESC_EPILOGUE:
        return set(&op->epilogue, value, size, "EPILOGUE");
    case CUBLASLT_MATMUL_DESC_BIAS_POINTER:
        return set(&op->bias, value, size, "BIAS_POINTER");
    case CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE:
        return set(&op->bias_type, value, size, "BIAS_DATA_TYPE");
    case CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER:
        return set(&op->aux, value, size, "AUX_POINTER");
    case CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD:
        return set(&op->aux_ld, value, size, "AUX_LD");
    case CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_DATA_TYPE:
        return set(&op->aux_type, value, size, "AUX_DATA_TYPE");
    case CUBLASLT_MATMUL_DESC_A_SCALE_POINTER:
        return set(&op->scale_a, value, size, "A_SCALE_POINTER");
    case CUBLASLT_MATMUL_DESC_B_SCALE_POINTER:
        return set(&op->scale_b, value, size, "B_SCALE_POINTER");
    case CUBLASLT_MATMUL_DESC_FAST_ACCUM:
        return set(&op->fast_sums, value, size, "FAST_ACCUM");
    case CUBLASLT_MATMUL_DESC_SM_COUNT_TARGET:
        return set(&op->units, value, size, "SM_COUNT_TARGET");
    default:
        return fail(CUBLAS_STATUS_NOT_SUPPORTED, "attribute %d of an operation", attribute);
    }
}

cublasStatus_t cublasLtMatrixLayoutCreate(cublasLtMatrixLayout_t *layout, cudaDataType type,
                                          uint64_t rows, uint64_t cols, int64_t ld) {
    *layout = reinterpret_cast<cublasLtMatrixLayout_t>(
        new Layout{LAYOUT, type, (int64_t)rows, (int64_t)cols, ld});
    return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatrixLayoutSetAttribute(cublasLtMatrixLayout_t layout,
                                                cublasLtMatrixLayoutAttribute_t attribute,
                                                const void *value, size_t size) {
    Layout *x = object<Layout>(layout);
    switch (attribute) {
    case CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT:
        return set(&x->count, value, size, "BATCH_COUNT");
    case CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET:
        return set(&x->stride, value, size, "STRIDED_BATCH_OFFSET");
    default:
        return fail(CUBLAS_STATUS_NOT_SUPPORTED, "attribute %d of a layout", attribute);
    }
}
cublasStatus_t cublasLtMatrixLayoutDestroy(cublasLtMatrixLayout_t layout) {
    return destroy<Layout>(layout);
}

cublasStatus_t cublasLtMatmulPreferenceCreate(cublasLtMatmulPreference_t *preference) {
    *preference = reinterpret_cast<cublasLtMatmulPreference_t>(new Preference);
    return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulPreferenceDestroy(cublasLtMatmulPreference_t p) {
    return destroy<Preference>(p);
}
cublasStatus_t cublasLtMatmulPreferenceSetAttribute(cublasLtMatmulPreference_t preference,
                                                    cublasLtMatmulPreferenceAttributes_t attribute,
                                                    const void *value, size_t size) {
    Preference *p = object<Preference>(preference);
    switch (attribute) {
    case CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES:
        return set(&p->workspace, value, size, "MAX_WORKSPACE_BYTES");
    case CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK:
        return set(&p->reduction_mask, value, size, "REDUCTION_SCHEME_MASK");
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES:
        return set(&p->alignment[0], value, size, "MIN_ALIGNMENT_A");
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES:
        return set(&p->alignment[1], value, size, "MIN_ALIGNMENT_B");
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES:
        return set(&p->alignment[2], value, size, "MIN_ALIGNMENT_C");
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES:
        return set(&p->alignment[3], value, size, "MIN_ALIGNMENT_D");
    default:
        return fail(CUBLAS_STATUS_NOT_SUPPORTED, "attribute %d of a preference", attribute);
    }
}

// The library has two ways to say that there is nothing: a status, and success with no results.
// Both come up here.
cublasStatus_t cublasLtMatmulAlgoGetHeuristic(cublasLtHandle_t handle, cublasLtMatmulDesc_t op,
                                              cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b,
                                              cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d,
                                              cublasLtMatmulPreference_t preference, int requested,
                                              cublasLtMatmulHeuristicResult_t *results,
                                              int *found) {
    object<Handle>(handle);
    const Preference &p = *object<Preference>(preference);
    Problem problem;
    *found = 0;
    sim_cublaslt_counts.searches++;
    // so CUDA 13.3
    if (sim::capture_forbids("cublasLtMatmulAlgoGetHeuristic")) return CUBLAS_STATUS_INTERNAL_ERROR;
    if (requested <= 0) return INVALID("%d results requested", requested);
    const cublasStatus_t status = make_problem(&problem, op, a, b, c, d);
    if (status != CUBLAS_STATUS_SUCCESS) return status;
    const uint32_t epilogue = problem.op->epilogue;
    if (is_refused(epilogue))
        return epilogue == CUBLASLT_EPILOGUE_BIAS ? CUBLAS_STATUS_SUCCESS
                                                  : CUBLAS_STATUS_NOT_SUPPORTED;
    const char *algorithms = sim::setting("SIM_CUBLASLT_ALGOS");
    const bool all = algorithms && strcmp(algorithms, "all") == 0;
    static const SimAlgorithm orders[2][SIM_ALGORITHM_COUNT] = {
        {SIM_ALGORITHM_IN_PLACE, SIM_ALGORITHM_TILED, SIM_ALGORITHM_SPLIT, SIM_ALGORITHM_SCALAR},
        {SIM_ALGORITHM_SPLIT, SIM_ALGORITHM_SCALAR, SIM_ALGORITHM_TILED, SIM_ALGORITHM_IN_PLACE}};
    const bool fewer = problem.op->units > 0; // then the favourite is another one
    for (int i = 0; i < SIM_ALGORITHM_COUNT && *found < requested; i++) {
        const SimAlgorithm which = orders[fewer][i];
        Algorithm algorithm = {
            ALGORITHM, which, {p.alignment[0], p.alignment[1], p.alignment[2], p.alignment[3]}};
        const bool is_allowed = splits_of(which) == 1 || which == SIM_ALGORITHM_IN_PLACE ||
                                (p.reduction_mask & CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE);
        if (!is_allowed || !fits(which, problem, p.alignment) ||
            workspace_of(which, problem) > p.workspace)
            continue;
        if (!all && ((splits_of(which) > 1 && !fewer) || *found > 0)) continue;
        cublasLtMatmulHeuristicResult_t *result = &results[(*found)++];
        memset((void *)result, 0, sizeof *result);
        memcpy(&result->algo, &algorithm, sizeof algorithm);
        result->workspaceSize = workspace_of(which, problem);
        result->state = CUBLAS_STATUS_SUCCESS;
    }
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulAlgoCheck(cublasLtHandle_t handle, cublasLtMatmulDesc_t op,
                                       cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b,
                                       cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d,
                                       const cublasLtMatmulAlgo_t *algo,
                                       cublasLtMatmulHeuristicResult_t *result) {
    object<Handle>(handle);
    Problem problem;
    sim_cublaslt_counts.checks++;
    const cublasStatus_t status = make_problem(&problem, op, a, b, c, d);
    if (status != CUBLAS_STATUS_SUCCESS) return status;
    const Algorithm algorithm = unpack(algo);
    if (algorithm.kind != ALGORITHM || (unsigned)algorithm.which >= SIM_ALGORITHM_COUNT)
        return CUBLAS_STATUS_INVALID_VALUE;
    if (!fits(algorithm.which, problem, algorithm.alignment) ||
        (problem.op->units > 0 && has_vice(algorithm.which, problem.op->epilogue, "whole")))
        return CUBLAS_STATUS_NOT_SUPPORTED;
    result->workspaceSize = workspace_of(algorithm.which, problem);
    result->state = CUBLAS_STATUS_SUCCESS;
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulAlgoConfigGetAttribute(const cublasLtMatmulAlgo_t *algo,
                                                    cublasLtMatmulAlgoConfigAttributes_t attribute,
                                                    void *value, size_t size, size_t *written) {
    const Algorithm algorithm = unpack(algo);
    const int32_t splits = splits_of(algorithm.which);
    const uint32_t scheme = splits == 1 ? CUBLASLT_REDUCTION_SCHEME_NONE
                            : algorithm.which == SIM_ALGORITHM_IN_PLACE
                                ? CUBLASLT_REDUCTION_SCHEME_INPLACE
                                : CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE;
    const int32_t id = algorithm.which;
    const uint32_t tile =
                       algorithm.which == SIM_ALGORITHM_SCALAR ? 0 : CUBLASLT_MATMUL_TILE_128x128,
                   stages = 0;
    const void *values[CUBLASLT_ALGO_CONFIG_STAGES_ID + 1] = {};
    values[CUBLASLT_ALGO_CONFIG_ID] = &id;
    values[CUBLASLT_ALGO_CONFIG_TILE_ID] = &tile;
    values[CUBLASLT_ALGO_CONFIG_SPLITK_NUM] = &splits;
    values[CUBLASLT_ALGO_CONFIG_REDUCTION_SCHEME] = &scheme;
    values[CUBLASLT_ALGO_CONFIG_STAGES_ID] = &stages;
    if (attribute > CUBLASLT_ALGO_CONFIG_STAGES_ID || !values[attribute])
        return fail(CUBLAS_STATUS_NOT_SUPPORTED, "attribute %d of an algorithm", attribute);
    if (size != 4) return INVALID("attribute %d of an algorithm: %zu bytes", attribute, size);
    memcpy(value, values[attribute], size);
    if (written) *written = size;
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmul(cublasLtHandle_t handle, cublasLtMatmulDesc_t op, const void *alpha,
                              const void *a, cublasLtMatrixLayout_t layout_a, const void *b,
                              cublasLtMatrixLayout_t layout_b, const void *beta, const void *c,
                              cublasLtMatrixLayout_t layout_c, void *d,
                              cublasLtMatrixLayout_t layout_d, const cublasLtMatmulAlgo_t *algo,
                              void *workspace, size_t workspace_bytes, cudaStream_t stream) {
    object<Handle>(handle);
    Problem p;
    cublasStatus_t status = make_problem(&p, op, layout_a, layout_b, layout_c, layout_d);
    if (status != CUBLAS_STATUS_SUCCESS) return status;
    if (!algo) return INVALID("no algorithm: the library would search at every call");
    const Algorithm algorithm = unpack(algo);
    if (algorithm.kind != ALGORITHM || !fits(algorithm.which, p, algorithm.alignment))
        return INVALID("the algorithm is not one for this problem");
    const uint64_t needed = workspace_of(algorithm.which, p);
    if (workspace_bytes < needed || (needed > 0 && (!workspace || !is_aligned(workspace, 256))))
        return INVALID("workspace %p of %zu bytes, the algorithm needs %lu", workspace,
                       workspace_bytes, needed);
    const void *const pointers[4] = {a, b, c, d};
    status = check_operands(p, algorithm, pointers, workspace, workspace_bytes);
    if (status != CUBLAS_STATUS_SUCCESS) return status;
    const cublasLtEpilogue_t epilogue = (cublasLtEpilogue_t)p.op->epilogue;
    const bool split = splits_of(algorithm.which) > 1;
    // Documented for cublasLtMatmul, not for the search: fp32 is the type of aux only where none is
    // set.
    if (p.op->aux_type == CUDA_R_32F) return INVALID("aux type set to fp32");
    if (has_vice(algorithm.which, epilogue, "fails")) return CUBLAS_STATUS_NOT_SUPPORTED;
    if (has_vice(algorithm.which, epilogue, "full")) return CUBLAS_STATUS_ALLOC_FAILED;
    if (has_vice(algorithm.which, epilogue, "half")) p.n = (p.n + 1) / 2;
    float factor = has_vice(algorithm.which, epilogue, "wrong") ? 1.5f : 1.0f;
    if (p.op->units > 0 && has_vice(algorithm.which, epilogue, "whole"))
        return INVALID("the algorithm is not one for %d multiprocessors", p.op->units);
    if (p.op->units > 0 && has_vice(algorithm.which, epilogue, "uneven")) factor *= 1.001f;
    if (sim_cublaslt_counts.runs[algorithm.which] == 0 && !sim::take_memory("SIM_CUBLASLT_KB", 10))
        return CUBLAS_STATUS_ALLOC_FAILED; // the code of its kernel
    Job *job = new Job;
    job->gemm = {p.m,
                 p.n,
                 p.k,
                 {const_cast<void *>(a), p.a->type, p.a->ld, p.op->transa != CUBLAS_OP_N},
                 {const_cast<void *>(b), p.b->type, p.b->ld, p.op->transb != CUBLAS_OP_N},
                 {const_cast<void *>(c), p.c->type, p.c->ld, false},
                 {d, p.d->type, p.d->ld, false},
                 factor * *static_cast<const float *>(alpha),
                 *static_cast<const float *>(beta),
                 epilogue,
                 {p.op->bias, p.d->type, 0, false},
                 {p.op->aux, p.d->type, p.op->aux_ld, false},
                 splits_of(algorithm.which),
                 split ? reinterpret_cast<float *>(static_cast<char *>(workspace) + 4096) : nullptr,
                 p.op->scale_a,
                 p.op->scale_b,
                 p.op->fast_sums != 0,
                 p.op->compute == CUBLAS_COMPUTE_32F_FAST_TF32};
    job->workspace = workspace;
    job->workspace_bytes = needed;
    job->slow = has_vice(algorithm.which, epilogue, "slow");
    job->units = p.op->units;
    job->count = p.d->count;
    const Layout *const layouts[] = {p.a, p.b, p.c, p.d};
    for (int i = 0; i < 4; i++) job->steps[i] = layouts[i]->stride * sim::width(layouts[i]->type);
    sim_cublaslt_counts.runs[algorithm.which]++;
    sim_cublaslt_counts.gelu += epilogue == CUBLASLT_EPILOGUE_GELU_AUX_BIAS;
    sim_cublaslt_counts.dgelu += epilogue == CUBLASLT_EPILOGUE_DGELU;
    sim_cublaslt_counts.bias += epilogue == CUBLASLT_EPILOGUE_BIAS;
    sim_cublaslt_counts.fp8 += sim::is_fp8(p.a->type);
    sim_cublaslt_counts.fast_sums += p.op->fast_sums != 0;
    const sim::Operation operation = {
        "cublasLtMatmul", run,     job, [](void *argument) { delete static_cast<Job *>(argument); },
        nullptr,          launched};
    return sim::stream_enqueue(stream, operation) == cudaSuccess ? CUBLAS_STATUS_SUCCESS
                                                                 : CUBLAS_STATUS_EXECUTION_FAILED;
}

} // extern "C"
