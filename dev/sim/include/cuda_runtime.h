// Found before the toolkit's header of this name, which it includes: NVIDIA's types and prototypes, our functions.
#pragma once
#if defined(__CUDACC__)
#error "the headers of the simulator must not be on nvcc's include path"
#endif
#include_next <cuda_runtime.h>
// after NVIDIA's types
#include "sim/launch.h"
