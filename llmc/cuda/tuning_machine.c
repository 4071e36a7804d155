// What a measured choice depends on besides its own shape: the GPU and its driver. Part of tuning_cache.h; apart from
// tuning_cache.c, which needs no GPU.
#include "llmc/cuda/backend.h"
#include "llmc/cuda/tuning_cache.h"
#include <stdio.h>

const char *tuning_machine(void) {
    static char text[256];
    int driver = 0;
    CUDA_CHECK(cudaDriverGetVersion(&driver));
    snprintf(text, sizeof text, "%s, cc %d, %d SMs, driver %d", cuda_backend.facts.name,
             cuda_backend.compute_capability, cuda_backend.units, driver);
    return text;
}
