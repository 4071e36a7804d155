// The toolkit's cuda_bf16.h, and what it declares only under nvcc.
#pragma once
#include <cuda_runtime.h>
// before what completes it
#include_next <cuda_bf16.h>
// after its types
#include "sim/half.h"

#define SIM_HALF               __nv_bfloat16
#define SIM_HALF2              __nv_bfloat162
#define SIM_HALF_TO_FLOAT(a)   __bfloat162float(a)
#define SIM_HALF_FROM_FLOAT(x) __float2bfloat16_rn(x)
SIM_HALF_FUNCTIONS
SIM_HALF_UNARY(tanh, tanhf(x))
#undef SIM_HALF
#undef SIM_HALF2
#undef SIM_HALF_TO_FLOAT
#undef SIM_HALF_FROM_FLOAT
