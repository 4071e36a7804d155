// The toolkit's cuda_fp16.h, and what it declares only under nvcc.
#pragma once
#include <cuda_runtime.h>
// before what completes it
#include_next <cuda_fp16.h>
// after its types
#include "sim/half.h"

#define SIM_HALF               __half
#define SIM_HALF2              __half2
#define SIM_HALF_TO_FLOAT(a)   __half2float(a)
#define SIM_HALF_FROM_FLOAT(x) __float2half_rn(x)
SIM_HALF_FUNCTIONS
SIM_HALF_UNARY(tanh, tanhf(x))
#undef SIM_HALF
#undef SIM_HALF2
#undef SIM_HALF_TO_FLOAT
#undef SIM_HALF_FROM_FLOAT
