// The handle of the CPU backend and the workspace that all ops share.
// Owns no memory: the workspace belongs to the caller. Runs no vector code: see cpu_compiled_simd.
#include "llmc/cpu/cpu.h"

#include "llmc/base/checked.h"

// Data only: device_init reads it before any instruction of that kind has run.
#if defined(__AVX512BF16__)
const CpuSimd cpu_compiled_simd = CPU_SIMD_AVX512_BF16;
#elif defined(__AVX512F__)
const CpuSimd cpu_compiled_simd = CPU_SIMD_AVX512;
#else
const CpuSimd cpu_compiled_simd = CPU_SIMD_NONE;
#endif

CpuBackend cpu_backend;

int cpu_threads(void) {
    REQUIRE(cpu_backend.ready, "an op before device_init");
    return cpu_backend.threads;
}

int64_t ops_workspace_bytes(OpsShape shape) {
    const int64_t needs[] = {
        cpu_attention_workspace(shape), cpu_layernorm_workspace(shape), cpu_embedding_workspace(shape),
        cpu_optimizer_workspace(shape), cpu_head_workspace(shape),
    };
    int64_t largest = 0;
    for (size_t i = 0; i < sizeof needs / sizeof *needs; i++)
        if (needs[i] > largest) largest = needs[i];
    return round_up(largest, 64) + cpu_gemm_workspace(shape);
}

void ops_set_workspace(void *device_memory, int64_t bytes) {
    REQUIRE((uintptr_t)device_memory % 64 == 0, "the workspace is not 64-byte aligned");
    cpu_backend.workspace = device_memory;
    cpu_backend.workspace_bytes = bytes;
    cpu_backend.workspace_used = 0;
}

void *cpu_scratch(const char *op, int64_t bytes) {
    REQUIRE(bytes <= cpu_backend.workspace_bytes, "%s: needs %lld bytes of workspace, ops_set_workspace gave %lld", op,
            (long long)bytes, (long long)cpu_backend.workspace_bytes);
    cpu_backend.workspace_used = round_up(bytes, 64);
    return bytes > 0 ? cpu_backend.workspace : NULL;
}

void cpu_check_float(const char *op, Tensor t) {
    REQUIRE(t.dtype == DTYPE_FP32 || t.dtype == DTYPE_BF16, "%s: %s is %s, the CPU takes fp32 or bf16", op, t.name,
            dtype_name(t.dtype));
}
