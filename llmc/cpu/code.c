// The table of one copy of the vector code (cpu.h): all that is visible of it. The Makefile names
// the table.
#include "llmc/base/arithmetic.h"
#include "llmc/cpu/cpu.h"
#include "llmc/cpu/matmul.h"

static int64_t workspace_bytes(OpsShape shape) {
    int64_t largest = 0;
#define X(family) largest = max_i64(largest, cpu_##family##_workspace(shape));
    CPU_FAMILIES(X)
#undef X
    return round_up(largest, 64) + cpu_gemm_workspace(shape) + cpu_fp8_workspace(shape);
}

extern const CpuCode CPU_CODE;
const CpuCode CPU_CODE = {{BACKEND_OPS(BACKEND_ENTRY)}, workspace_bytes, gemm};
