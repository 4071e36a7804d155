// The private header of the CPU backend: its one handle, the workspace, the operating system's memory figures, and the
// helpers that the files of llmc/cpu share. Outside llmc/cpu only tests include it.
//
// How an op runs here: the one thread that called device_init calls the ops. Each op opens its own OpenMP parallel
// regions over cpu_threads() workers (oneDNN uses the same pool), and is done when it returns. Ops run one at a time,
// so every op may use the whole workspace, from its start. An op's scratch does not outlive the call.
#pragma once
#include "llmc/base/arithmetic.h"
#include "llmc/base/error.h"
#include "llmc/cpu/matmul.h"
#include "llmc/device.h"
#include "llmc/ops.h"

#include <stddef.h>

// The vector code: all files of llmc/cpu but cpu.c, device.c, onednn.c and collectives_mpi.c. It is compiled once for
// each set of instructions (CPU_CODES in the Makefile), and the names of each copy but that of its table are local to
// it. So these files call each other directly, and everything else calls them through the table that device_init
// chooses (code.c).
typedef struct {
    BackendOps ops;
    int64_t (*workspace_bytes)(OpsShape shape);
    // gemm of gemm.h
    void (*gemm)(int64_t M, int64_t N, int64_t K, Matrix dst, Matrix a, Matrix b, void *bias, bool accumulate);
} CpuCode;

// *wanted: the code that the environment names; auto without one. *chosen: that, or the best of those that the
// processor has. An error names what it has.
bool cpu_choose_code(CpuCodeChoice *wanted, const char *environment, const bool has[CPU_CODES], const char *processor,
                     CpuCodeChoice *chosen, Error *err);

// The only state of the backend.
typedef struct {
    bool ready; // device_init succeeded
    int threads;
    CpuCodeChoice code_choice; // never auto
    const CpuCode *code;
    DeviceFacts facts;
    Onednn *onednn;
    char *workspace; // the caller's memory, given by ops_set_workspace
    int64_t workspace_bytes;
    int64_t workspace_used;  // by the op that runs, from the start; the remainder is for multiplications
    size_t resident_at_init; // what device_memory_peak subtracts
    size_t peak;             // the largest value it has returned so far
} CpuBackend;
extern CpuBackend cpu_backend;

// Workers of every parallel region, the same for the whole run.
int cpu_threads(void);

// The vector code of this process.
const CpuCode *cpu_code(void);

// The first `bytes` bytes of the workspace, 64-byte aligned, contents undefined. They belong to the op until the next
// op asks. Ops that multiply ask even for 0 bytes (NULL), because gemm takes its scratch from the remainder. Stops the
// program, naming op, when the workspace is smaller, because then ops_workspace_bytes and the op disagree.
void *cpu_scratch(const char *op, int64_t bytes);

// The workspace that each family of ops needs for calls up to the given shapes; code.c adds them up. May depend on
// cpu_threads().
int64_t cpu_attention_workspace(OpsShape shape);
int64_t cpu_layernorm_workspace(OpsShape shape);
int64_t cpu_embedding_workspace(OpsShape shape);
int64_t cpu_optimizer_workspace(OpsShape shape);
int64_t cpu_head_workspace(OpsShape shape);
int64_t cpu_gemm_workspace(OpsShape shape);

// Rows of logits at a time: with fewer the gradient of wte is read and written too often (572 GFLOP/s at 256 rows),
// with more only memory is lost (103 MB at GPT-2's vocabulary in bf16). Also the number of rows of din whose fp32 sums
// are kept.
enum { HEAD_CHUNK_ROWS = 1024 };

// A part of a workspace layout: returns the offset of the part and moves *end past it, to a multiple of 64. The same
// function then both counts (cpu_x_workspace) and lays out.
static inline int64_t cpu_part(int64_t *end, int64_t bytes) {
    int64_t offset = *end;
    *end += (bytes + 63) / 64 * 64;
    return offset;
}

// ---------------------------------------------------------------------------------------------------- element-wise ops

// Elements of one task of an element-wise op: 16 to 64 KiB, long enough to hide the cost of a task, and a multiple of
// the vector length, so that only the last task of a tensor has a tail.
enum { TASK_ELEMENTS = 8192 };

static inline int64_t task_end(int64_t begin, int64_t n) {
    return n - begin < TASK_ELEMENTS ? n : begin + TASK_ELEMENTS;
}

void cpu_comm_shutdown(void); // collectives_mpi.c: no request is in flight

// ------------------------------------------------------------------------------------ memory of the machine (device.c)

// Memory according to the operating system: how much there is, how much this process may still take, and how much it
// has taken. Linux: /proc, control groups (version 1 and 2) and limits of this process (ulimit -v, -d), so that a
// container's limit counts as the machine's size. Allocates no memory itself.

typedef struct {
    size_t total;     // bytes: RAM, or the control group's limit where that is less
    size_t available; // bytes that can be taken now without swapping or being killed; the page cache counts as free
} HostMemory;

// root: "" for this machine; tests give a directory with proc/ and sys/ in it.
bool host_memory_read(const char *root, HostMemory *memory, Error *err);

// Bytes of L3 that the processors of this process reach, each cache once; 0: unknown. sysconf adds up what a package
// could have: 384 MB for two cores of a virtual machine that have 32 MB.
size_t host_cache_bytes(const char *root);

// Bytes of RAM that this process holds now, and its peak so far (VmRSS, VmHWM); 0 where unknown.
size_t host_memory_resident(void);
size_t host_memory_resident_peak(void);
