// The handle of the CUDA backend and the workspace that all ops share. Owns no memory: the workspace belongs to the
// caller.
#include "llmc/cuda/backend.h"

CudaBackend cuda_backend;

int64_t ops_workspace_bytes(OpsShape shape) {
    cuda_matmul_note_shape(shape);
    return round_up(max_i64(cuda_size_workspace(shape), cuda_cudnn_workspace(shape)), 256);
}

void ops_set_workspace(void *device_memory, int64_t bytes) {
    REQUIRE((uintptr_t)device_memory % 256 == 0, "the workspace is not 256-byte aligned");
    cuda_backend.workspace = (char *)device_memory;
    cuda_backend.workspace_bytes = bytes;
}

void *cuda_scratch(const char *op, int64_t bytes) {
    REQUIRE(bytes <= cuda_backend.workspace_bytes, "%s: needs %lld bytes of workspace, ops_set_workspace gave %lld", op,
            (long long)bytes, (long long)cuda_backend.workspace_bytes);
    return bytes > 0 ? cuda_backend.workspace : NULL;
}

void cuda_check_float(const char *op, Tensor t) {
    REQUIRE(t.dtype == DTYPE_FP32 || t.dtype == DTYPE_BF16 || t.dtype == DTYPE_FP16, "%s: %s is %s, not floating", op,
            t.name, dtype_name(t.dtype));
}
