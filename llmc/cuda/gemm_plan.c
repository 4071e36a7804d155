// See gemm_plan.h. A plan is found by hashing what distinguishes products. Making one: descriptors; the algorithm of
// the tuning file if there is one and the library still takes it; else the library's candidates, compared with
// each other, checked for repeatable bits and timed.
#include "llmc/cuda/gemm_plan.h"

#include "llmc/cuda/gemm_library.h"
#include "llmc/cuda/matmul_kernels.h"
#include "llmc/cuda/tuning_cache.h"
#include "llmc/ops.h"
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

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
    if (cuda_backend.capturing) return NULL;
    if (cudaMalloc(block, bytes + 256) != cudaSuccess) {
        (void)cudaGetLastError(); // it does not fit: no error, the measurement is left out
        *block = NULL;
        return NULL;
    }
    CUDA_CHECK(cudaMemsetAsync(*block, 0, bytes + 256, cuda_compute_stream()));
    return (char *)*block + (uintptr_t)p % 256;
}

// What right algorithms may differ by, as ||D - D'|| / ||D||. Operands are the same, sums are in fp32 (of 65,536
// products: 1e-3 at worst, where tensor cores cut off), so it is the rounding of D: by 2^-8 at most in bf16, in fp16 by
// 2^-11, and by as much is rounded what enters tf32 products. Sums of fp8 products may keep 14 bits: 2 %, see
// fp8_matmul.c. An unfused way rounds twice, once before a bias is added that may cancel a part. What is wrong is wrong
// by tens of per cent.
static const double UNFUSED_FACTOR = 3.0;
static double tolerance(const GemmKey *key) {
    return dtype_size((DType)key->in_a) == 1 ? 5e-2 : key->out == DTYPE_BF16 ? 2e-2 : 5e-3;
}

// A copy of what a tensor holds, or, where memory is short, of what its end holds: what is left unwritten is there.
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
        r.copy.data = gemm_memory_like(r.part.data, tensor_bytes(r.part), &r.block);
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
    Gemm gemm; // as it will be called, but stored, not added, to D where nothing is lost; NULL: there is no such place
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

// How many differ from the first candidate, and by what; differences[0]: at most. More than half of all: it is the
// first.
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

// Throws out what does not run, although the library offered it, and what gives another D than the rest. Without memory
// to compare, only the library's favourite is kept.
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
    // beta is no part of the choice: what is tried stores, where the real product adds in place.
    t.gemm.accumulate = false;
    if (g->accumulate) t.gemm.d = gemm_memory_like(g->d, tensor_bytes(output(&t)), &block);
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

// The key of the tuning file for the verdict on an epilogue.
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

// Both ways into outputs that hold no numbers; zeros where work adds to them. *had_room: there was memory to compare.
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
                tensor_fill(c->outputs[i], 0.0f);
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

// The place of the plan of this key, or where it belongs.
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
    REQUIRE(!cuda_backend.capturing, "%s: matmul %s is met for the first time while a graph is captured", g->op,
            gemm_describe(key).text);
    GemmPlan *p = calloc(1, sizeof *p);
    REQUIRE_MEMORY(p != NULL, "a matmul plan");
    p->key = *key;
    state.counts.plans++;
    if (!epilogue_is_allowed(key)) return p;
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
    gemm_library_shutdown();
    cuda_forget_choices();
    memset(&state, 0, sizeof state);
    tuning_cache_close();
}
