// The private header of the CPU backend: its one handle, its vector code, the workspace, and the
// helpers that the ops share. Outside llmc/cpu only tests include it.
//
// How an op runs here: the one thread that called device_init calls the ops. Each op opens its own
// OpenMP parallel regions over cpu_threads() workers (oneDNN uses the same pool), and is done when
// it returns. Ops run one at a time, so every op may use the whole workspace, from its start. An
// op's scratch does not outlive the call.
#pragma once
#include "llmc/base/arithmetic.h"
#include "llmc/base/error.h"
#include "llmc/cpu/onednn.h"
#include "llmc/device.h"
#include "llmc/ops.h"

#include <stddef.h>

// The vector code: all files of llmc/cpu but those in CPU_ONCE of the Makefile. It is compiled once
// for each set of instructions (CPU_CODES in the Makefile), and the names of each copy but that of
// its table are local to it. So these files call each other directly, and everything else calls
// them through the table that device_init chooses (code.c).
typedef struct {
    BackendOps ops;
    int64_t (*workspace_bytes)(OpsShape shape);
    // gemm of matmul.h
    void (*gemm)(int64_t M, int64_t N, int64_t K, Matrix dst, Matrix a, Matrix b, void *bias,
                 bool accumulate);
} CpuCode;

// *wanted: the code that the environment names; auto without one. *chosen: that, or the best of
// those that the processor has. An error names what it has.
bool cpu_choose_code(CpuCodeChoice *wanted, const char *environment, const bool has[CPU_CODES],
                     const char *processor, CpuCodeChoice *chosen, Error *err);

// Finds this process's code by that rule, before the backend is ready.
bool cpu_find_code(CpuCodeChoice *wanted, const char *processor, Error *err);

// The only state of the backend.
typedef struct {
    bool ready; // device_init succeeded
    int threads;
    CpuCodeChoice code_choice; // never auto
    const CpuCode *code;
    const char *code_name;
    DeviceFacts facts;
    Onednn *onednn;
    char *workspace; // the caller's memory, given by ops_set_workspace
    int64_t workspace_bytes;
    // by the op that runs, from the start; the remainder is for multiplications
    int64_t workspace_used;
    size_t resident_at_init; // what device_memory_peak subtracts
    size_t peak;             // the largest value it has returned so far
} CpuBackend;
extern CpuBackend cpu_backend;

// Workers of every parallel region, the same for the whole run.
int cpu_threads(void);

// The vector code of this process.
const CpuCode *cpu_code(void);

// The first `bytes` bytes of the workspace, 64-byte aligned, contents undefined. They belong to the
// op until the next op asks. Ops that multiply ask even for 0 bytes (NULL), because gemm takes its
// scratch from the remainder. Stops the program, naming op, when the workspace is smaller, because
// then ops_workspace_bytes and the op disagree.
void *cpu_scratch(const char *op, int64_t bytes);

// THE list of ops that take scratch memory, by file. cpu_FAMILY_workspace: the bytes that its calls
// up to these shapes take, which may depend on cpu_threads(). Ops that multiply give the remainder
// to gemm, so it has a part of its own, and so have the operands that fp8 widens.
#define CPU_FAMILIES(X)       X(attention) X(norm) X(qk_norm) X(embedding) X(optimizer) X(head)
#define CPU_WORKSPACE(family) int64_t cpu_##family##_workspace(OpsShape shape);
CPU_FAMILIES(CPU_WORKSPACE)
CPU_WORKSPACE(gemm)
CPU_WORKSPACE(fp8)

// Rows of logits at a time: with fewer the gradient of wte is read and written too often (572
// GFLOP/s at 256 rows), with more only memory is lost (103 MB at GPT-2's vocabulary in bf16). Also
// the number of rows of din whose fp32 sums are kept.
enum { HEAD_CHUNK_ROWS = 1024 };

// A part of a workspace layout: returns the offset of the part and moves *end past it, to a
// multiple of 64. The same function then both counts (cpu_x_workspace) and lays out.
static inline int64_t cpu_part(int64_t *end, int64_t bytes) {
    int64_t offset = *end;
    *end += (bytes + 63) / 64 * 64;
    return offset;
}

// -------------------------------------------------------------------------------- element-wise ops

// Elements of one task of an element-wise op: 16 to 64 KiB, long enough to hide the cost of a task,
// and a multiple of the vector length, so that only the last task of a tensor has a tail.
enum { TASK_ELEMENTS = 8192 };

static inline int64_t task_end(int64_t begin, int64_t n) {
    return min_i64(begin + TASK_ELEMENTS, n);
}

// The statements for element i = 0, LANES, .. below n with k lanes in use, in parallel; E: the
// constant dtype_ (simd.h).
#define EACH_ELEMENT(E, dtype_, i, k, n, ...)                                                      \
    _Pragma("omp parallel for schedule(static)") for (int64_t begin_ = 0; begin_ < (n);            \
                                                      begin_ += TASK_ELEMENTS)                     \
        WITH_DTYPE(E, dtype_, EACH_LANES(in_task_, k, task_end(begin_, n) - begin_, {              \
                       const int64_t i = begin_ + in_task_;                                        \
                       __VA_ARGS__;                                                                \
                   }))
