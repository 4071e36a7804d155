// The simulated cuBLASLt tells tests this, and they can ask this of it. C and C++.
//   SIM_CUBLASLT_REFUSE=gelu,dgelu,bias       no algorithm for these epilogues
//   SIM_CUBLASLT_ALGOS=all                     offers all of SimAlgorithm that fit a problem, not
//                                              only the first: then callers time them, and what
//                                              they choose may differ from run to run
//   SIM_CUBLASLT_VICES=tiled:half,dgelu:fails  what an algorithm or an epilogue of the list above
//                                              does to a product:
//     half    writes the first half of the columns of D only
//     wrong   D is half as large again
//     fails   was offered, but cublasLtMatmul returns CUBLAS_STATUS_NOT_SUPPORTED
//     full    no memory is left to load its code: CUBLAS_STATUS_ALLOC_FAILED
//     slow    takes longer than the others, by the clock of sim_set_clock alone
//     whole   is not for fewer multiprocessors than all (CUBLASLT_MATMUL_DESC_SM_COUNT_TARGET)
//     uneven  gives other bits with fewer
//   SIM_CUBLASLT_CROWDED=refused              ends the program where `crowded` below would count
// Read at every search, the vices at every product.
#pragma once

#ifdef __cplusplus
extern "C" {
#endif

// In the order in which a search offers them. Only SCALAR takes every alignment, and only DEFAULT
// and BIAS epilogues.
typedef enum {
    SIM_ALGORITHM_IN_PLACE, // split in k with a reduction in the output: offered even where the
                            // caller excludes it
    SIM_ALGORITHM_TILED,    // 16-byte accesses, k in one piece
    SIM_ALGORITHM_SPLIT,    // three parts of k, added in order
    SIM_ALGORITHM_SCALAR,   // the same bits as TILED
    SIM_ALGORITHM_COUNT
} SimAlgorithm;

typedef struct {
    long searches, checks;          // cublasLtMatmulAlgoGetHeuristic, cublasLtMatmulAlgoCheck
    long runs[SIM_ALGORITHM_COUNT]; // multiplications that were launched, by algorithm
    long gelu, dgelu, bias;         // those of them with such an epilogue
    long fp8, fast_sums; // those of fp8 operands; those of them whose sums may lose bits (they do
                         // not here)
    // `beside` counts the products that run while a collective does, replays counted, on sm_90 and
    // later, where they take every multiprocessor that they may. `crowded` counts those of them
    // that do not leave NCCL the ones that it takes, so that their last blocks wait.
    long beside, crowded;
} SimCublasLtCounts;
extern SimCublasLtCounts sim_cublaslt_counts;

#ifdef __cplusplus
}
#endif
