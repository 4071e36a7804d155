// See cublaslt_problem.h: the rules of cublasLt.h, checked where the library leaves things
// undefined.
#include "dev/sim/cublaslt_problem.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

namespace sim::lt {

cublasStatus_t fail(cublasStatus_t status, const char *format, ...) {
    va_list args;
    va_start(args, format);
    fprintf(stderr, "sim: cublasLt: ");
    vfprintf(stderr, format, args);
    fprintf(stderr, "\n");
    va_end(args);
    return status;
}

// ------------------------------------------------------------------------------------------ checks

static bool has_bias(uint32_t e) {
    return e == CUBLASLT_EPILOGUE_BIAS || e == CUBLASLT_EPILOGUE_GELU_AUX_BIAS;
}
static bool has_aux(uint32_t e) {
    return e == CUBLASLT_EPILOGUE_DGELU || e == CUBLASLT_EPILOGUE_GELU_AUX_BIAS;
}

static cublasStatus_t check_layouts(const Problem &p) {
    const Layout *all[] = {p.a, p.b, p.c, p.d};
    for (int i = 0; i < 4; i++) {
        const Layout &x = *all[i];
        if (width(x.type) == 0)
            return fail(CUBLAS_STATUS_NOT_SUPPORTED, "type %d of %c", x.type, "ABCD"[i]);
        if (x.ld < x.rows)
            return INVALID("%c: leading dimension %ld < %ld rows", "ABCD"[i], x.ld, x.rows);
        if (x.count < 1 || x.count != p.d->count)
            return INVALID("%c: a batch of %d, D has %d", "ABCD"[i], x.count, p.d->count);
        if (x.count > 1 && x.stride < x.cols * x.ld)
            return INVALID("%c: matrices of a batch overlap", "ABCD"[i]);
    }

    const int64_t kb = p.op->transb == CUBLAS_OP_N ? p.b->rows : p.b->cols;
    if (p.k != kb || p.d->rows != p.m || p.d->cols != p.n)
        return INVALID("shapes do not fit: op(A) %ld x %ld, op(B) %ld x %ld, D %ld x %ld", p.m, p.k,
                       kb, p.n, p.d->rows, p.d->cols);
    if (p.c->type != p.d->type || p.c->rows != p.d->rows || p.c->cols != p.d->cols ||
        p.c->ld != p.d->ld)
        return INVALID("C and D differ in layout");
    return CUBLAS_STATUS_SUCCESS;
}

// The function checks what cuBLASLt's documentation asks of fp8 ("Narrow Precision Data Types
// Usage", and the table of types of cublasLtMatmul). A GPU of sm_100 takes other forms than TN as
// well; here none does.
static cublasStatus_t check_fp8(const Problem &p) {
    const int capability = device_model().compute_capability;
    const Layout *all[] = {p.a, p.b, p.c, p.d};

    if (capability < 89) return fail(CUBLAS_STATUS_NOT_SUPPORTED, "fp8 on sm_%d", capability);
    if (!is_fp8(p.a->type) || !is_fp8(p.b->type) || is_fp8(p.d->type) ||
        (p.a->type == CUDA_R_8F_E5M2 && p.b->type == CUDA_R_8F_E5M2))
        return fail(CUBLAS_STATUS_NOT_SUPPORTED, "types %d x %d -> %d", p.a->type, p.b->type,
                    p.d->type);

    if (p.op->transa != CUBLAS_OP_T || p.op->transb != CUBLAS_OP_N)
        return fail(CUBLAS_STATUS_NOT_SUPPORTED, "fp8 in another form than TN");
    if (p.m % 16 != 0 || p.n % 16 != 0 || p.k % 16 != 0)
        return fail(CUBLAS_STATUS_NOT_SUPPORTED, "fp8 of %ld x %ld x %ld, not in multiples of 16",
                    p.m, p.n, p.k);
    for (int i = 0; i < 4; i++)
        if (all[i]->ld * width(all[i]->type) % 16 != 0)
            return fail(CUBLAS_STATUS_NOT_SUPPORTED, "fp8 with a leading dimension of %ld of %c",
                        all[i]->ld, "ABCD"[i]);

    if (p.op->compute != CUBLAS_COMPUTE_32F || p.op->scale != CUDA_R_32F)
        return fail(CUBLAS_STATUS_NOT_SUPPORTED, "fp8 with compute type %d, scale type %d",
                    p.op->compute, p.op->scale);
    if (p.op->epilogue != CUBLASLT_EPILOGUE_DEFAULT && p.op->epilogue != CUBLASLT_EPILOGUE_BIAS)
        return fail(CUBLAS_STATUS_NOT_SUPPORTED, "fp8 with epilogue %u is not simulated",
                    p.op->epilogue);
    if (p.op->epilogue == CUBLASLT_EPILOGUE_BIAS && p.d->type == CUDA_R_32F)
        return fail(CUBLAS_STATUS_NOT_SUPPORTED, "fp8 with a bias of fp32");
    return CUBLAS_STATUS_SUCCESS;
}

static cublasStatus_t check_types(const Problem &p) {
    if (is_fp8(p.a->type) || is_fp8(p.b->type) || is_fp8(p.d->type)) return check_fp8(p);

    if (p.op->scale_a || p.op->scale_b || p.op->fast_sums)
        return INVALID("scales or fast sums without fp8");
    if (p.a->type != p.b->type || (p.d->type != p.a->type && p.d->type != CUDA_R_32F))
        return fail(CUBLAS_STATUS_NOT_SUPPORTED, "types %d x %d -> %d", p.a->type, p.b->type,
                    p.d->type);

    const bool tf32 = p.op->compute == CUBLAS_COMPUTE_32F_FAST_TF32;
    if (p.op->scale != CUDA_R_32F || (!tf32 && p.op->compute != CUBLAS_COMPUTE_32F) ||
        (tf32 && (p.a->type != CUDA_R_32F || device_model().compute_capability < 80)))
        return fail(CUBLAS_STATUS_NOT_SUPPORTED, "compute type %d, scale type %d", p.op->compute,
                    p.op->scale);
    return CUBLAS_STATUS_SUCCESS;
}

static cublasStatus_t check_epilogue(const Problem &p) {
    const Operation &op = *p.op;
    const uint32_t e = op.epilogue;
    if (e != CUBLASLT_EPILOGUE_DEFAULT && !has_bias(e) && !has_aux(e))
        return fail(CUBLAS_STATUS_NOT_SUPPORTED, "epilogue %u is not simulated", e);

    if (has_bias(e)) {
        if (!op.bias) return INVALID("epilogue %u without a bias pointer", e);
        if (op.bias_type != -1 && op.bias_type != p.d->type)
            return fail(CUBLAS_STATUS_NOT_SUPPORTED, "bias of type %d with D of type %d",
                        op.bias_type, p.d->type);
    }

    if (has_aux(e)) {
        if (!is_aligned(op.aux, 16) || !op.aux) return INVALID("aux pointer %p", op.aux);
        if (op.aux_ld % 8 != 0 || op.aux_ld < p.m)
            return INVALID("aux leading dimension %ld", op.aux_ld);
        if (op.aux_type != -1 && op.aux_type != p.d->type)
            return fail(CUBLAS_STATUS_NOT_SUPPORTED, "aux of type %d with D of type %d",
                        op.aux_type, p.d->type);
    }
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t make_problem(Problem *p, cublasLtMatmulDesc_t op, cublasLtMatrixLayout_t a,
                            cublasLtMatrixLayout_t b, cublasLtMatrixLayout_t c,
                            cublasLtMatrixLayout_t d) {
    *p = {object<Operation>(op),
          object<Layout>(a),
          object<Layout>(b),
          object<Layout>(c),
          object<Layout>(d),
          0,
          0,
          0};
    p->m = p->op->transa == CUBLAS_OP_N ? p->a->rows : p->a->cols;
    p->k = p->op->transa == CUBLAS_OP_N ? p->a->cols : p->a->rows;
    p->n = p->op->transb == CUBLAS_OP_N ? p->b->cols : p->b->rows;
    cublasStatus_t status = check_layouts(*p);
    if (status == CUBLAS_STATUS_SUCCESS) status = check_types(*p);
    if (status == CUBLAS_STATUS_SUCCESS) status = check_epilogue(*p);
    return status;
}

// -------------------------------------------------------------------------------------- algorithms

int splits_of(SimAlgorithm which) {
    return which == SIM_ALGORITHM_TILED || which == SIM_ALGORITHM_SCALAR ? 1 : 3;
}

// Kernels of the library take a little workspace for counters even when k is not split.
uint64_t workspace_of(SimAlgorithm which, const Problem &p) {
    if (which == SIM_ALGORITHM_SCALAR) return 0;
    return 4096 +
           (splits_of(which) > 1 ? (uint64_t)(splits_of(which) * p.m * p.n) * sizeof(float) : 0);
}

bool fits(SimAlgorithm which, const Problem &p, const uint32_t alignment[4]) {
    const uint32_t e = p.op->epilogue;
    if (which == SIM_ALGORITHM_SCALAR)
        return !is_fp8(p.a->type) &&
               (e == CUBLASLT_EPILOGUE_DEFAULT || e == CUBLASLT_EPILOGUE_BIAS);
    const Layout *all[] = {p.a, p.b, p.c, p.d};
    for (int i = 0; i < 4; i++)
        if (alignment[i] % 16 != 0 || all[i]->ld * width(all[i]->type) % 16 != 0) return false;
    if (e != CUBLASLT_EPILOGUE_DEFAULT && !is_aligned(p.op->bias, 16)) return false;
    return splits_of(which) == 1 || p.k >= 32;
}

static const char *name_of(uint32_t epilogue) {
    return epilogue == CUBLASLT_EPILOGUE_GELU_AUX_BIAS ? "gelu"
           : epilogue == CUBLASLT_EPILOGUE_DGELU       ? "dgelu"
           : epilogue == CUBLASLT_EPILOGUE_BIAS        ? "bias"
                                                       : "default";
}

static bool is_listed(const char *list, const char *name) {
    for (const char *at = list; at && *at; at += *at == ',') {
        const size_t length = strcspn(at, ",");
        if (length == strlen(name) && strncmp(at, name, length) == 0) return true;
        at += length;
    }
    return false;
}

bool is_refused(uint32_t epilogue) {
    return is_listed(setting("SIM_CUBLASLT_REFUSE"), name_of(epilogue));
}

bool has_vice(SimAlgorithm which, uint32_t epilogue, const char *vice) {
    static const char *const algorithms[] = {"in_place", "tiled", "split", "scalar"};
    char of_algorithm[64], of_epilogue[64];
    snprintf(of_algorithm, sizeof of_algorithm, "%s:%s", algorithms[which], vice);
    snprintf(of_epilogue, sizeof of_epilogue, "%s:%s", name_of(epilogue), vice);
    const char *list = setting("SIM_CUBLASLT_VICES");
    return is_listed(list, of_algorithm) || is_listed(list, of_epilogue);
}

Algorithm unpack(const cublasLtMatmulAlgo_t *algo) {
    Algorithm x;
    memcpy(&x, algo, sizeof x);
    return x;
}

struct Workspace {
    const char *begin, *end;
};
static cublasStatus_t check_memory(const char *what, const void *p, int64_t elements, int32_t type,
                                   uint32_t alignment, Workspace w) {
    const char *begin = (const char *)p, *end = begin + elements * width(type);
    if (memory_kind(p, elements * width(type)) != DEVICE)
        return INVALID("%s: %p is not device memory for %ld elements", what, p, elements);
    if (!is_aligned(p, alignment))
        return INVALID("%s = %p is less aligned than at the search: %u", what, p, alignment);
    if (begin < w.end && w.begin < end) return INVALID("%s lies in the workspace", what);
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t check_operands(const Problem &p, const Algorithm &algorithm,
                              const void *const pointers[4], const void *workspace,
                              uint64_t workspace_bytes) {
    const Workspace w = {(const char *)workspace, (const char *)workspace + workspace_bytes};
    static const char *const names[] = {"A", "B", "C", "D"};
    const Layout *all[] = {p.a, p.b, p.c, p.d};
    const uint32_t e = p.op->epilogue, alignment = algorithm.which == SIM_ALGORITHM_SCALAR ? 2 : 16;
    cublasStatus_t status = CUBLAS_STATUS_SUCCESS;
    for (int i = 0; i < 4; i++)
        for (int32_t j = 0; j < all[i]->count && status == CUBLAS_STATUS_SUCCESS; j++) {
            const int64_t elements = (all[i]->cols - 1) * all[i]->ld + all[i]->rows;
            const char *matrix =
                (const char *)pointers[i] + j * all[i]->stride * width(all[i]->type);
            status =
                check_memory(names[i], matrix, elements, all[i]->type, algorithm.alignment[i], w);
        }
    const char *c = (const char *)pointers[2], *d = (const char *)pointers[3];
    const int64_t bytes = ((p.d->cols - 1) * p.d->ld + p.d->rows) * width(p.d->type);
    if (status == CUBLAS_STATUS_SUCCESS && c != d && c < d + bytes && d < c + bytes)
        return INVALID("C = %p is neither D = %p nor apart from it", pointers[2], pointers[3]);
    if (status == CUBLAS_STATUS_SUCCESS && has_bias(e))
        status = check_memory("bias", p.op->bias, p.m, p.d->type, alignment, w);
    const float *const scales[] = {p.op->scale_a, p.op->scale_b};
    for (int i = 0; i < 2 && status == CUBLAS_STATUS_SUCCESS; i++) {
        if (!scales[i]) continue;
        // Seen with cuBLASLt 13.1 on an H200: the search accepts any address, the product refuses
        // it without a reason.
        if (!is_aligned(scales[i], 16))
            return fail(CUBLAS_STATUS_NOT_SUPPORTED, "a scale at %p, no multiple of 16",
                        (const void *)scales[i]);
        status = check_memory(i ? "scale of B" : "scale of A", scales[i], 1, CUDA_R_32F, 16, w);
    }
    if (status == CUBLAS_STATUS_SUCCESS && has_aux(e))
        status =
            check_memory("aux", p.op->aux, (p.n - 1) * p.op->aux_ld + p.m, p.d->type, alignment, w);
    return status;
}

} // namespace sim::lt
