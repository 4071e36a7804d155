// HOST_DEVICE marks a function of a shared header that kernels call as well as the host: nvcc compiles it for both, a C
// compiler sees nothing.
#pragma once

#ifdef __CUDACC__
#define HOST_DEVICE __host__ __device__
#else
#define HOST_DEVICE
#endif
