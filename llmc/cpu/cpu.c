// The handle of the CPU backend and the workspace that all ops share. It owns no memory: the workspace belongs to the
// caller.
#include "llmc/cpu/cpu.h"

#include "llmc/base/arithmetic.h"

CpuBackend cpu_backend;

int cpu_threads(void) {
    REQUIRE(cpu_backend.ready, "an op before device_init");
    return cpu_backend.threads;
}

const CpuCode *cpu_code(void) {
    REQUIRE(cpu_backend.ready, "an op before device_init");
    return cpu_backend.code;
}

const BackendOps *backend_ops(void) { return &cpu_code()->ops; }

void backend_order(const OpOperands *operands) { (void)operands; } // all work is done when its op returns

int64_t ops_workspace_bytes(OpsShape shape) { return cpu_code()->workspace_bytes(shape); }

int64_t ops_head_chunk_rows(OpsShape shape) { return min_i64(shape.B * shape.T, HEAD_CHUNK_ROWS); }

void update_list_free(UpdateList *list) { (void)list; } // each op makes its tables, in the workspace

void ops_set_workspace(void *device_memory, int64_t bytes) {
    REQUIRE((uintptr_t)device_memory % 64 == 0, "the workspace is not 64-byte aligned");
    cpu_backend.workspace = device_memory;
    cpu_backend.workspace_bytes = bytes;
    cpu_backend.workspace_used = 0;
    // Not that of an earlier workspace, which may be freed.
    if (cpu_backend.onednn) onednn_set_scratch(cpu_backend.onednn, device_memory, bytes);
}

bool ops_workspace_is_set(void) { return cpu_backend.workspace != NULL; }

void *cpu_scratch(const char *op, int64_t bytes) {
    REQUIRE(bytes <= cpu_backend.workspace_bytes, "%s: needs %lld bytes of workspace, ops_set_workspace gave %lld", op,
            (long long)bytes, (long long)cpu_backend.workspace_bytes);
    cpu_backend.workspace_used = round_up(bytes, 64);
    return bytes > 0 ? cpu_backend.workspace : NULL;
}

bool backend_computes(DType dtype) { return dtype == DTYPE_FP32 || dtype == DTYPE_BF16; }
