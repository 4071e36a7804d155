// A kernel that is never launched: asking for its attributes shows whether this program holds machine code, or PTX that
// the driver can compile, for the current GPU. All .cu files are built for the same architectures.
#include "llmc/cuda/kernel.cuh"

static __global__ void probe_kernel(int *out) { *out = 1; }

bool cuda_kernels_fit(const char **reason) {
    cudaFuncAttributes attributes;
    const cudaError_t status = cudaFuncGetAttributes(&attributes, (const void *)probe_kernel);
    (void)cudaGetLastError();
    *reason = cudaGetErrorString(status);
    return status == cudaSuccess;
}
