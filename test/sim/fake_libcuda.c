// A stand-in for the driver's library, for test_cudnn_graphs: the functions that cuDNN looks up in
// libcuda.so.1 before it makes plans. Those that a plan needs succeed without doing anything:
// loading a compiled kernel and naming it. All others answer CUDA_ERROR_STUB_LIBRARY, as the
// toolkit's own stub does. Nothing can be run with it. cuDNN 9.19's list; a version that looks up
// more says so, and the test then accepts a plan up to that point.

enum { CUDA_SUCCESS = 0, CUDA_ERROR_STUB_LIBRARY = 34 };

static int something; // handles that are only compared with NULL point here

int cuLibraryLoadData(void **library, const void *code);
int cuLibraryLoadData(void **library, const void *code) {
    (void)code;
    *library = &something;
    return CUDA_SUCCESS;
}

int cuLibraryGetKernel(void **kernel, void *library, const char *name);
int cuLibraryGetKernel(void **kernel, void *library, const char *name) {
    (void)library, (void)name;
    *kernel = &something;
    return CUDA_SUCCESS;
}

#define ANSWER(name, answer)                                                                       \
    int name(void);                                                                                \
    int name(void) { return answer; }

ANSWER(cuLibraryUnload, CUDA_SUCCESS)
ANSWER(cuKernelSetAttribute, CUDA_SUCCESS)
ANSWER(cuFuncSetAttribute, CUDA_SUCCESS)

ANSWER(cuCtxGetCurrent, CUDA_ERROR_STUB_LIBRARY)
ANSWER(cuCtxGetLimit, CUDA_ERROR_STUB_LIBRARY)
ANSWER(cuCtxPopCurrent, CUDA_ERROR_STUB_LIBRARY)
ANSWER(cuCtxPushCurrent, CUDA_ERROR_STUB_LIBRARY)
ANSWER(cuDeviceGet, CUDA_ERROR_STUB_LIBRARY)
ANSWER(cuDeviceGetCount, CUDA_ERROR_STUB_LIBRARY)
ANSWER(cuDriverGetVersion, CUDA_ERROR_STUB_LIBRARY)
ANSWER(cuGetErrorName, CUDA_ERROR_STUB_LIBRARY)
ANSWER(cuGetErrorString, CUDA_ERROR_STUB_LIBRARY)
ANSWER(cuKernelGetAttribute, CUDA_ERROR_STUB_LIBRARY)
ANSWER(cuLaunchCooperativeKernel, CUDA_ERROR_STUB_LIBRARY)
ANSWER(cuLaunchKernel, CUDA_ERROR_STUB_LIBRARY)
ANSWER(cuLaunchKernelEx, CUDA_ERROR_STUB_LIBRARY)
ANSWER(cuLibraryLoadFromFile, CUDA_ERROR_STUB_LIBRARY)
ANSWER(cuLinkAddData, CUDA_ERROR_STUB_LIBRARY)
ANSWER(cuLinkComplete, CUDA_ERROR_STUB_LIBRARY)
ANSWER(cuLinkCreate, CUDA_ERROR_STUB_LIBRARY)
ANSWER(cuLinkDestroy, CUDA_ERROR_STUB_LIBRARY)
ANSWER(cuOccupancyMaxPotentialClusterSize, CUDA_ERROR_STUB_LIBRARY)
ANSWER(cuStreamGetCtx, CUDA_ERROR_STUB_LIBRARY)
