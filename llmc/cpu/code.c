// The table of one copy of the vector code (cpu.h): all that is visible of it. The Makefile names the table.
#include "llmc/base/arithmetic.h"
#include "llmc/cpu/cpu.h"

// The largest of what the families of ops need, plus the scratch of multiplications.
static int64_t workspace_bytes(OpsShape shape) {
    const int64_t needs[] = {
        cpu_attention_workspace(shape), cpu_layernorm_workspace(shape), cpu_embedding_workspace(shape),
        cpu_optimizer_workspace(shape), cpu_head_workspace(shape),
    };
    int64_t largest = 0;
    for (size_t i = 0; i < sizeof needs / sizeof *needs; i++) largest = max_i64(largest, needs[i]);
    return round_up(largest, 64) + cpu_gemm_workspace(shape);
}

extern const CpuCode CPU_CODE;
const CpuCode CPU_CODE = {{BACKEND_OPS(BACKEND_ENTRY)}, workspace_bytes, gemm};
