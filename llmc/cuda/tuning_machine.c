// What a measured choice depends on besides its own shape, the GPU and its driver; and the choices of a run, which its
// checkpoints keep. Part of tuning_cache.h; apart from tuning_cache.c, which needs no GPU.
#include "llmc/cuda/backend.h"
#include "llmc/cuda/cudnn_attention.h"
#include "llmc/cuda/tuning_cache.h"
#include <cublasLt.h>
#include <stdio.h>
#include <string.h>

const char *tuning_machine(void) {
    static char text[256];
    int driver = 0;
    CUDA_CHECK(cudaDriverGetVersion(&driver));
    snprintf(text, sizeof text, "%s, cc %d, %d SMs, driver %d", cuda_backend.facts.name,
             cuda_backend.compute_capability, cuda_backend.units, driver);
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
