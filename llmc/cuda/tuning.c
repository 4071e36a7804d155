// See tuning.h, and device_tuning and device_restore_tuning of device.h on top of it. Times are taken by events around
// each run, on the GPU, so that what the host does in between does not count.
#include "llmc/cuda/tuning.h"

#include "llmc/base/choices_file.h"
#include "llmc/cuda/cudnn_library.h"
#include "llmc/cuda/graph_overlap.h"
#include <cublasLt.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

// --------------------------------------------------------------------------------------------------------------- times

// A median wants three; beyond 50 ms for all choices of one shape together (some twenty shapes make a model) more
// rounds only polish it. A choice 1.3 times slower than the best after two rounds does not win any more.
enum { MIN_ROUNDS = 3, MAX_ROUNDS = 11, GIVE_UP_ROUND = 2 };
static const float BUDGET_MS = 50.0f, GIVE_UP_FACTOR = 1.3f;

typedef struct {
    cudaEvent_t start, stop;
    float ms[MAX_ROUNDS];
    int rounds;
    bool alive;
} TimedChoice;

static int ascending(const void *a, const void *b) {
    const float x = *(const float *)a, y = *(const float *)b;
    return (x > y) - (x < y);
}

static float median(TimedChoice *c) {
    qsort(c->ms, (size_t)c->rounds, sizeof c->ms[0], ascending);
    return c->ms[c->rounds / 2];
}

// One run of each; returns the time of the round. The first round loads kernels and is not counted.
static float run_round(TimedChoice *choices, int count, bool (*work)(void *, int), void *context, bool counts) {
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
        TimedChoice *c = &choices[i];
        if (!c->alive) continue;
        float ms = 0.0f;
        CUDA_CHECK(cudaEventElapsedTime(&ms, c->start, c->stop));
        if (counts) c->ms[c->rounds++] = ms;
        total += ms;
    }
    return total;
}

static float shortest(const TimedChoice *c) {
    float ms = c->ms[0];
    for (int i = 1; i < c->rounds; i++) ms = c->ms[i] < ms ? c->ms[i] : ms;
    return ms;
}

int cuda_fastest(int count, bool (*work)(void *context, int i), void *context) {
    TimedChoice choices[TIMING_MAX_CHOICES] = {0};
    REQUIRE(!cuda_backend.capturing, "a choice is measured while a graph is captured: no eager run came first");
    REQUIRE(count <= TIMING_MAX_CHOICES, "%d choices to measure, at most %d", count, TIMING_MAX_CHOICES);
    graph_overlap_join(); // nothing else may take the GPU's time
    for (int i = 0; i < count; i++) {
        CUDA_CHECK(cudaEventCreate(&choices[i].start));
        CUDA_CHECK(cudaEventCreate(&choices[i].stop));
        choices[i].alive = true;
    }
    float spent = run_round(choices, count, work, context, false);
    for (int round = 0; round < MAX_ROUNDS && (round < MIN_ROUNDS || spent < BUDGET_MS); round++) {
        if (round == GIVE_UP_ROUND) {
            float least = INFINITY;
            for (int i = 0; i < count; i++)
                if (choices[i].alive) least = fminf(least, shortest(&choices[i]));
            for (int i = 0; i < count; i++)
                if (choices[i].alive && shortest(&choices[i]) > GIVE_UP_FACTOR * least) choices[i].alive = false;
        }
        spent += run_round(choices, count, work, context, true);
    }
    int fastest = -1;
    float best = 0.0f;
    for (int i = 0; i < count; i++) {
        const bool ran = choices[i].alive && choices[i].rounds > 0;
        const float time = ran ? median(&choices[i]) : 0.0f;
        // Events have a resolution of 0.5 us, and short kernels vary by about 1 %.
        const float worth_changing = best < 0.2f ? 0.98f * best : 0.995f * best;
        if (ran && (fastest < 0 || time < worth_changing)) {
            fastest = i;
            best = time;
        }
        CUDA_CHECK(cudaEventDestroy(choices[i].start));
        CUDA_CHECK(cudaEventDestroy(choices[i].stop));
    }
    return fastest;
}

// ------------------------------------------------------------------------------------------------ memory for trials

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

char *device_tuning(void) { return choices_file_used(); }

// Keys begin with the machine, then the library and its version.
bool device_restore_tuning(const char *lines) {
    char cublas_key[CHOICES_KEY_MAX], cudnn_key[CHOICES_KEY_MAX];
    bool fits = true;
    snprintf(cublas_key, sizeof cublas_key, "%s, cuBLASLt %zu,", tuning_machine(), cublasLtGetVersion());
    snprintf(cudnn_key, sizeof cudnn_key, "%s, cuDNN %d,", tuning_machine(), cudnn_library_version());
    for (const char *line = lines; *line && fits; line += strcspn(line, "\n"), line += *line == '\n')
        fits = strncmp(line, cublas_key, strlen(cublas_key)) == 0 || strncmp(line, cudnn_key, strlen(cudnn_key)) == 0;
    if (fits) choices_file_restore(lines);
    return fits;
}
