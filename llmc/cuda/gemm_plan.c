// See gemm_plan.h. A plan is found by hashing what distinguishes products. Making one: descriptors; the algorithm of
// the tuning file if there is one and the library still takes it; else the library's candidates, checked for repeatable
// bits and timed.
#include "llmc/cuda/gemm_plan.h"

#include "llmc/cuda/gemm_library.h"
#include "llmc/cuda/matmul_kernels.h"
#include "llmc/cuda/tuning_cache.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef enum { UNKNOWN, FASTER, SLOWER } Verdict;

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
    snprintf(text, TUNING_KEY_MAX, "%s, cuBLASLt %zu, %s, %s, align %d %d %d %d %d, workspace %llu, %s",
             tuning_machine(), cublasLtGetVersion(), gemm_describe(key).text, gemm_arithmetic(key), key->align_a,
             key->align_b, key->align_d, key->align_bias, key->align_aux, (unsigned long long)key->workspace_bytes,
             what);
}

// Rules of cublasLt.h that the library may not enforce itself: aux at 16 bytes with a leading dimension that is a
// multiple of 8.
static bool epilogue_is_allowed(const GemmKey *key) {
    return key->align_aux == 0 || (key->align_aux >= 16 && key->m % 8 == 0);
}

void gemm_run(const GemmPlan *p, const Gemm *g) { LT_CHECK(&p->key, gemm_launch(&p->descriptors, g, &p->algorithm)); }

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
    cublasLtMatmulAlgo_t algorithms[GEMM_MAX_CANDIDATES];
    int count;
} Trial;

static bool run_candidate(void *context, int i) {
    const Trial *t = context;
    return gemm_launch(&t->plan->descriptors, &t->gemm, &t->algorithms[i]) == CUBLAS_STATUS_SUCCESS;
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
        const bool splits = gemm_splits(&t->plan->key, &t->algorithms[i]) > 1;
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
    t.count = gemm_search(&p->descriptors, &p->key, t.algorithms);
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
        while (best < t.count && gemm_splits(&p->key, &t.algorithms[best]) > 1) best++;
    }
    CUDA_CHECK(cudaFree(block));
    if (best < 0 || best >= t.count) return false;
    p->algorithm = t.algorithms[best];
    return true;
}

// The algorithm that the tuning file holds, if the library takes it for this product.
static bool load_algorithm(GemmPlan *p, const char *text) {
    cublasLtMatmulAlgo_t algorithm;
    if (!tuning_cache_get(text, &algorithm, sizeof algorithm)) return false;
    if (!gemm_takes(&p->descriptors, &p->key, &algorithm)) return false;
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
static uint64_t hash(const GemmKey *key) {
    uint64_t h = 0xcbf29ce484222325u;
    for (size_t i = 0; i < sizeof *key; i++) h = (h ^ ((const unsigned char *)key)[i]) * 0x100000001b3u;
    return h ^ h >> 32;
}

// The place of the plan of this key, or where it belongs.
static GemmPlan **place(GemmPlan **table, int64_t size, const GemmKey *key) {
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

static GemmPlan *make_plan(const Gemm *g, const GemmKey *key) {
    char text[TUNING_KEY_MAX];
    bool measured = false;
    REQUIRE(!cuda_backend.capturing, "%s: matmul %s is met for the first time while a graph is captured", g->op,
            gemm_describe(key).text);
    GemmPlan *p = calloc(1, sizeof *p);
    REQUIRE(p != NULL, "out of memory for a matmul plan");
    p->key = *key;
    state.counts.plans++;
    if (!epilogue_is_allowed(key)) return p;
    gemm_make_descriptors(&p->descriptors, key, g);
    tuning_key(text, key, "algorithm");
    p->usable = load_algorithm(p, text) || choose_algorithm(p, g, &measured);
    if (measured) tuning_cache_put(text, &p->algorithm, sizeof p->algorithm);
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
    gemm_library_shutdown();
    memset(&state, 0, sizeof state);
    tuning_cache_close();
}
