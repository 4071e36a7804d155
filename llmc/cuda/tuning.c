// The part of tuning.h that needs the GPU: the times of several ways to do the same work, whether their results agree,
// and the choices of a run, which its log shows and its checkpoints keep. Times are taken by events around each run, on
// the GPU, so that what the host does in between does not count. Owns its events for the time of one call, and the text
// of the choices until the device goes.
#include "llmc/cuda/tuning.h"

#include "llmc/cuda/backend.h"
#include "llmc/ops.h"
#include <cublasLt.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

// --------------------------------------------------------------------------------------------------------------- times

// A median wants three; beyond 50 ms for all choices of one shape together (some twenty shapes make a model) more
// rounds only polish it. A choice 1.3 times slower than the best after two rounds does not win any more.
enum { MIN_ROUNDS = 3, MAX_ROUNDS = 11, GIVE_UP_ROUND = 2 };
static const float BUDGET_MS = 50.0f, GIVE_UP_FACTOR = 1.3f;

// Events have a resolution of 0.5 us, and short kernels vary by about 1 %.
static float worth_changing(float ms) { return ms < 0.2f ? 0.98f * ms : 0.995f * ms; }

typedef struct {
    cudaEvent_t start, stop;
    float ms[MAX_ROUNDS];
    int rounds;
    bool alive;
} Choice;

static int ascending(const void *a, const void *b) {
    const float x = *(const float *)a, y = *(const float *)b;
    return (x > y) - (x < y);
}

static float median(Choice *c) {
    qsort(c->ms, (size_t)c->rounds, sizeof c->ms[0], ascending);
    return c->ms[c->rounds / 2];
}

// One run of each; returns the time of the round. The first round loads kernels and is not counted.
static float run_round(Choice *choices, int count, bool (*work)(void *, int), void *context, bool counts) {
    const cudaStream_t stream = cuda_compute_stream();
    float total = 0.0f;
    for (int i = 0; i < count; i++) {
        if (!choices[i].alive) continue;
        CUDA_CHECK(cudaEventRecord(choices[i].start, stream));
        choices[i].alive = work(context, i);
        CUDA_CHECK(cudaEventRecord(choices[i].stop, stream));
    }
    CUDA_CHECK(cudaStreamSynchronize(stream));
    for (int i = 0; i < count; i++) {
        Choice *c = &choices[i];
        if (!c->alive) continue;
        float ms = 0.0f;
        CUDA_CHECK(cudaEventElapsedTime(&ms, c->start, c->stop));
        if (counts) c->ms[c->rounds++] = ms;
        total += ms;
    }
    return total;
}

static float shortest(const Choice *c) {
    float ms = c->ms[0];
    for (int i = 1; i < c->rounds; i++) ms = c->ms[i] < ms ? c->ms[i] : ms;
    return ms;
}

static void drop_the_slow(Choice *choices, int count) {
    float best = -1.0f;
    for (int i = 0; i < count; i++)
        if (choices[i].alive && (best < 0.0f || shortest(&choices[i]) < best)) best = shortest(&choices[i]);
    for (int i = 0; i < count; i++)
        if (choices[i].alive && shortest(&choices[i]) > GIVE_UP_FACTOR * best) choices[i].alive = false;
}

int cuda_fastest(int count, bool (*work)(void *context, int i), void *context, float *ms) {
    Choice choices[TIMING_MAX_CHOICES] = {0};
    REQUIRE(!cuda_backend.capturing, "a choice is measured while a graph is captured: no eager run came first");
    REQUIRE(count <= TIMING_MAX_CHOICES, "%d choices to measure, at most %d", count, TIMING_MAX_CHOICES);
    cuda_beside_join(); // nothing else may take the GPU's time
    for (int i = 0; i < count; i++) {
        CUDA_CHECK(cudaEventCreate(&choices[i].start));
        CUDA_CHECK(cudaEventCreate(&choices[i].stop));
        choices[i].alive = true;
    }
    float spent = run_round(choices, count, work, context, false);
    for (int round = 0; round < MAX_ROUNDS && (round < MIN_ROUNDS || spent < BUDGET_MS); round++) {
        if (round == GIVE_UP_ROUND) drop_the_slow(choices, count);
        spent += run_round(choices, count, work, context, true);
    }
    int fastest = -1;
    float best = 0.0f;
    for (int i = 0; i < count; i++) {
        const float time = choices[i].rounds > 0 ? median(&choices[i]) : -1.0f;
        if (ms) ms[i] = time;
        if (choices[i].alive && choices[i].rounds > 0 && (fastest < 0 || time < worth_changing(best)))
            fastest = i, best = time;
        CUDA_CHECK(cudaEventDestroy(choices[i].start));
        CUDA_CHECK(cudaEventDestroy(choices[i].stop));
    }
    return fastest;
}

// ------------------------------------------------------------------------------------------------------- same results

void *cuda_memory_like(const void *p, size_t bytes, void **block) {
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

void cuda_poison(Tensor t) { CUDA_CHECK(cudaMemsetAsync(t.data, 0xFF, tensor_bytes(t), cuda_compute_stream())); }

double cuda_difference(Tensor t, Tensor expected) {
    enum { GOT, EXPECTED, DIFFERENCE, COUNT };
    TensorStats stats[COUNT];
    void *device;
    if (cudaMalloc(&device, sizeof stats) != cudaSuccess) {
        (void)cudaGetLastError();
        return INFINITY;
    }
    CUDA_CHECK(cudaMemsetAsync(device, 0, sizeof stats, cuda_compute_stream()));
    for (int i = 0; i < COUNT; i++) {
        if (i == DIFFERENCE) backend_tensor_axpby(t, 1.0f, t, -1.0f, expected);
        const Tensor one =
            tensor_make((TensorStats *)device + i, DTYPE_U8, "statistics", (int64_t)sizeof *stats, 0, 0, 0);
        backend_tensor_statistics(one, i == EXPECTED ? expected : t, t.dtype);
    }
    CUDA_CHECK(cudaStreamSynchronize(cuda_compute_stream()));
    CUDA_CHECK(cudaMemcpy(stats, device, sizeof stats, cudaMemcpyDeviceToHost));
    CUDA_CHECK(cudaFree(device));
    if (stats[GOT].overflow != stats[EXPECTED].overflow || stats[DIFFERENCE].overflow > stats[EXPECTED].overflow)
        return INFINITY;
    return stats[DIFFERENCE].sumsq == 0.0 ? 0.0 : sqrt(stats[DIFFERENCE].sumsq / stats[EXPECTED].sumsq);
}

// ------------------------------------------------------------------------------------------------------------- the log

// JSON objects with commas between them. Some thirty choices make a model, at most 48 ways each; what comes when it is
// full, of shapes that a long run meets later, is not noted.
static char notes[1 << 17];

void cuda_note_choice(const char *what, int count, const char *const *ways, const float *ms, int taken) {
    char *line;
    size_t bytes, used = strlen(notes);
    FILE *f = text_open(&line, &bytes);
    fprintf(f, "%s{\"what\":\"%s\",\"taken\":%d,\"ways\":[", used ? "," : "", what, taken);
    for (int i = 0; i < count; i++) {
        fprintf(f, "%s[\"%s\",", i ? "," : "", ways[i]);
        fprintf(f, ms && ms[i] >= 0.0f ? "%.6g]" : "null]", ms ? (double)ms[i] : 0.0);
    }
    fputs("]}", f);
    fclose(f);
    if (used + bytes < sizeof notes) memcpy(notes + used, line, bytes + 1);
    free(line);
}

void cuda_forget_choices(void) { notes[0] = '\0'; }

char *device_choices(void) {
    char *copy = strdup(notes);
    REQUIRE_MEMORY(copy, "the choices of this device");
    return copy;
}

// ---------------------------------------------------------------------------------------------------- keys of the file

// What a measured choice depends on besides its own shape and its library: the GPU and its driver.
const char *tuning_machine(void) {
    static char text[256];
    int driver = 0;
    CUDA_CHECK(cudaDriverGetVersion(&driver));
    snprintf(text, sizeof text, "%s, cc %d, %d SMs, driver %d", cuda_backend.facts.name,
             cuda_backend.compute_capability, cuda_backend.num_sms, driver);
    return text;
}

char *device_tuning(void) { return tuning_cache_used(); }

// Keys begin with the machine, then the library and its version.
bool device_restore_tuning(const char *lines) {
    char cublas[TUNING_KEY_MAX], cudnn[TUNING_KEY_MAX];
    bool fits = true;
    snprintf(cublas, sizeof cublas, "%s, cuBLASLt %zu,", tuning_machine(), cublasLtGetVersion());
    snprintf(cudnn, sizeof cudnn, "%s, cuDNN %d,", tuning_machine(), cudnn_attention_version());
    for (const char *line = lines; *line && fits; line += strcspn(line, "\n"), line += *line == '\n')
        fits = strncmp(line, cublas, strlen(cublas)) == 0 || strncmp(line, cudnn, strlen(cudnn)) == 0;
    if (fits) tuning_cache_restore(lines);
    return fits;
}
