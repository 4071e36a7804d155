// One product and the library: descriptors, the search for algorithms, the launch. Everything that calls cuBLASLt for
// gemm_plan.c, which alone includes this; what is chosen, measured and remembered is decided there. Owns the handle.
#pragma once
#include "llmc/cuda/gemm_plan.h"
#include "llmc/cuda/timing.h"
#include <cublasLt.h>

// What distinguishes products. Every byte is defined (gemm_key clears it first): compared and hashed as bytes.
typedef struct {
    int64_t m, n, k;
    uint64_t workspace_bytes;
    int32_t transpose_a, transpose_b, in_a, in_b, out, epilogue, fast_sums;
    int32_t align_a, align_b, align_d, align_bias,
        align_aux; // bytes, the largest power of two, at most 256, that divides
} GemmKey;

GemmKey gemm_key(const Gemm *g);

// What the library knows of one product.
typedef struct {
    cublasLtMatmulDesc_t desc;
    cublasLtMatrixLayout_t a, b, d;
} GemmDescriptors;

// "TN m 768 n 65536 k 3072, bf16 to bf16, bias"
typedef struct {
    char text[160];
} GemmText;
GemmText gemm_describe(const GemmKey *key);

// How it is computed: "fp32 sums", "tf32", "fast sums".
const char *gemm_arithmetic(const GemmKey *key);

void gemm_make_descriptors(GemmDescriptors *p, const GemmKey *key, const Gemm *g);
void gemm_free_descriptors(GemmDescriptors *p, const GemmKey *key);

// The library sorts its candidates by expected time; the best is rarely further down than 16.
enum { GEMM_MAX_CANDIDATES = TIMING_MAX_CHOICES };

// Candidates that add what they split in fp32 and in a fixed order, in the library's order; returns how many.
int gemm_search(const GemmDescriptors *p, const GemmKey *key, cublasLtMatmulAlgo_t candidates[GEMM_MAX_CANDIDATES]);
// In how many parts k is split; 0 when the parts would not be added in fp32 and in a fixed order.
int gemm_splits(const GemmKey *key, const cublasLtMatmulAlgo_t *algorithm);
// "tile 23, stages 36, split 1": the library's numbers of its enums (cublasLt.h), and the parts of k.
GemmText gemm_describe_algorithm(const cublasLtMatmulAlgo_t *algorithm);
// Whether the library takes an algorithm that was found elsewhere.
bool gemm_takes(const GemmDescriptors *p, const GemmKey *key, const cublasLtMatmulAlgo_t *algorithm);

cublasStatus_t gemm_launch(const GemmDescriptors *p, const Gemm *g, const cublasLtMatmulAlgo_t *algorithm);

void gemm_library_shutdown(void);

#define LT_CHECK(key, call)                                                                                            \
    do {                                                                                                               \
        const cublasStatus_t lt_status_ = (call);                                                                      \
        REQUIRE(lt_status_ == CUBLAS_STATUS_SUCCESS, "matmul %s: %s: %s", gemm_describe(key).text, #call,              \
                cublasLtGetStatusName(lt_status_));                                                                    \
    } while (0)
