// See tuning.h, and device_tuning and device_restore_tuning of device.h on top of it.
//
// Every choice, of matmuls (gemm.c) and of attention (attention.c), guarantees:
//   Bits      Only ways whose documented attributes make bits repeat take part: of cuBLASLt k in
//             one piece, or split into fp32 parts that are added in a fixed order. cuDNN's winner
//             must write the same bits twice.
//   Results   The first result of the winner is compared with our own: a slice of a product with
//             fp32 sums, attention with our kernels. If it differs, the next one is taken, and
//             stderr names both.
//   Memory    Trials write to copies wherever a result would be added to, and leave FREE_BYTES on
//             the GPU.
//   Fairness  All are timed by events on the GPU, in turn, each on a busy stream and with cold
//             caches. Each is charged for the kernels that it leaves to be run.
//   Time      At most LIMIT_MS for a choice. Only the shapes of a training step are worth it:
//             other products (prompts, decoding, short batches, evaluation only) and all of them
//             with PRETRAIN_TUNE=0 take the library's favourite.
//   Exchange  Beside an exchange a product has the algorithm that it has without one, on fewer
//             multiprocessors if its bits stay: so N GPUs have the bits of one.
//   Repeats   A choice is made once, at the first use of a shape, never under capture. It is kept
//             in the file of choices for the next run, and in the checkpoint for a resume.
#include "llmc/cuda/tuning.h"

#include "llmc/base/choices_file.h"
#include "llmc/cuda/backend.h"
#include "llmc/cuda/cudnn_library.h"
#include <cublasLt.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

// ------------------------------------------------------------------------------------------- times

// A median wants three rounds; beyond ROUNDS_MS for all ways together (some twenty shapes make a
// model) more only polish it. BUSY_BYTES: 15 us of an H200, in which the host enqueues a product.
enum { MIN_ROUNDS = 3, MAX_ROUNDS = 11, BUSY_BYTES = 64 << 20 };
static const double ROUNDS_MS = 50.0, LIMIT_MS = 2000.0, DROP_FACTOR = 1.5;

typedef struct {
    bool (*run)(void *context, int way);
    void *context;
    cudaEvent_t start, stop;
    double spent; // ms
} Stopwatch;

// The ms of a way; INFINITY: it cannot be done. The fill keeps the GPU busy until the host has
// enqueued the work: on an idle stream the time of the launch would count.
static double time_run(Stopwatch *w, int way) {
    const cudaStream_t stream = cuda_compute_stream();
    const size_t bytes = (size_t)min_i64(cuda_backend.workspace_bytes, BUSY_BYTES);
    if (bytes > 0) CUDA_CHECK(cudaMemsetAsync(cuda_backend.workspace, 0, bytes, stream));
    CUDA_CHECK(cudaEventRecord(w->start, stream));
    const bool ran = w->run(w->context, way);
    CUDA_CHECK(cudaEventRecord(w->stop, stream));
    CUDA_CHECK(cudaStreamSynchronize(stream));
    float ms;
    CUDA_CHECK(cudaEventElapsedTime(&ms, w->start, w->stop));
    w->spent += (double)ms;
    if (ran) return (double)ms;
    return INFINITY;
}

// The fastest of the ways that are not out; -1: none runs. Each runs once, and again if that was
// slow: the first run of a kernel may load its code. What is slow then is dropped; the others run
// round after round.
static int fastest_way(Stopwatch *w, int count, const bool *out) {
    double first[CHOICE_MAX_WAYS], ms[CHOICE_MAX_WAYS][MAX_ROUNDS], least = INFINITY, best = 0.0;

    int rounds = 0, fastest = -1;
    CUDA_CHECK(cudaEventCreate(&w->start));
    CUDA_CHECK(cudaEventCreate(&w->stop));

    for (int i = 0; i < count; i++) {
        first[i] = INFINITY;
        if (!out[i] && w->spent < LIMIT_MS) first[i] = time_run(w, i);
        if (first[i] < INFINITY && (least == INFINITY || first[i] > DROP_FACTOR * least))
            first[i] = time_run(w, i);
        least = fmin(least, first[i]);
    }

    for (int i = 0; i < count; i++)
        if (first[i] > DROP_FACTOR * least) first[i] = INFINITY;
    for (const double before = w->spent; rounds < MAX_ROUNDS && w->spent < LIMIT_MS; rounds++) {
        if (rounds >= MIN_ROUNDS && w->spent - before >= ROUNDS_MS) break;
        for (int i = 0; i < count; i++)
            if (first[i] < INFINITY) ms[i][rounds] = time_run(w, i);
    }

    CUDA_CHECK(cudaEventDestroy(w->start));
    CUDA_CHECK(cudaEventDestroy(w->stop));

    for (int i = 0; i < count; i++) {
        double time = first[i];
        if (time < INFINITY && rounds > 0) time = median_of(ms[i], rounds);
        // Events have a resolution of 0.5 us, and short kernels vary by about 1 %.
        const double worth_changing = best < 0.2 ? 0.98 * best : 0.995 * best;
        if (time < INFINITY && (fastest < 0 || time < worth_changing)) {
            fastest = i;
            best = time;
        }
    }
    return fastest;
}

int cuda_choose(int count, bool timed, bool (*run)(void *context, int way),
                bool (*is_right)(void *context, int way), void *context) {
    bool out[CHOICE_MAX_WAYS] = {false};
    REQUIRE(count <= CHOICE_MAX_WAYS, "a choice of %d ways, at most %d", count, CHOICE_MAX_WAYS);
    for (int tried = 0; tried < count; tried++) {
        int way = tried;
        if (timed) way = fastest_way(&(Stopwatch){.run = run, .context = context}, count, out);
        if (way < 0 || is_right(context, way)) return way;
        out[way] = true;
    }
    return -1;
}

// ------------------------------------------------------------------------------- memory for trials

// For the code of kernels that are loaded later, and for what libraries allocate.
static const size_t FREE_BYTES = (size_t)256 << 20;

void *cuda_memory_like(const void *p, size_t bytes, void **block) {
    *block = NULL;
    if (device_memory_free() < bytes + FREE_BYTES ||
        cudaMalloc(block, bytes + 256) != cudaSuccess) {
        (void)cudaGetLastError(); // it does not fit: no error, the measurement is left out
        *block = NULL;
        return NULL;
    }
    CUDA_CHECK(cudaMemsetAsync(*block, 0, bytes + 256, cuda_compute_stream()));
    return (char *)*block + (uintptr_t)p % 256;
}

// -------------------------------------------------------------------------------- keys of the file

// Names the GPU and its driver, on which a measured choice depends besides its own shape and its
// library.
const char *tuning_machine(void) {
    static char text[256];
    int driver = 0;
    CUDA_CHECK(cudaDriverGetVersion(&driver));
    snprintf(text, sizeof text, "%s, cc %d, %d SMs, driver %d", cuda_backend.facts.name,
             cuda_backend.compute_capability, cuda_backend.num_sms, driver);
    return text;
}

char *device_tuning(void) { return choices_file_used(); }

// Keys begin with the machine, then the library and its version, which cuDNN tells only once it is
// open. With
// --attention own its choices are of no use, and may be of any version.
bool device_restore_tuning(const char *lines) {
    char cublas_key[CHOICES_KEY_MAX], cudnn_key[CHOICES_KEY_MAX];
    const bool ignores_cudnn = cuda_backend.options.attention == ATTENTION_OWN;
    bool fits = true;
    Error ignored;
    if (!ignores_cudnn && strstr(lines, ", cuDNN ")) (void)cudnn_library_open(&ignored);
    snprintf(cublas_key, sizeof cublas_key, "%s, cuBLASLt %zu,", tuning_machine(),
             cublasLtGetVersion());
    snprintf(cudnn_key, sizeof cudnn_key, "%s, cuDNN %d,", tuning_machine(),
             cudnn_library_version());
    if (ignores_cudnn) snprintf(cudnn_key, sizeof cudnn_key, "%s, cuDNN ", tuning_machine());
    for (const char *line = lines; *line && fits;
         line += strcspn(line, "\n"), line += *line == '\n')
        fits = strncmp(line, cublas_key, strlen(cublas_key)) == 0 ||
               strncmp(line, cudnn_key, strlen(cudnn_key)) == 0;
    if (fits) choices_file_restore(lines);
    return fits;
}
