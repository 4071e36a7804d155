// A CUDA thread on the CPU may ask for its place in the grid and for the meetings of threads in
// operations of a warp or a block. The header also says what a translated kernel is. block.cpp runs
// the threads.
#pragma once
#include <cuda_runtime.h>
#include <stdint.h>

// Per OS thread, because blocks run on several.
extern __thread uint3 threadIdx, blockIdx;
extern __thread dim3 blockDim, gridDim;

namespace sim {
[[noreturn]] void fatal(const char *format, ...) __attribute__((format(printf, 1, 2)));

// ----------------------------------------------------------------------------------------- kernels

struct Param {
    uint32_t at, bytes;
};
struct Kernel {
    const char *name; // mangled
    void (*run)(const char *params);
    uint32_t param_count;
    const Param *params;
    uint32_t param_bytes, static_shared, dynamic_at, max_threads;
    bool waits;      // begins with griddepcontrol.wait, before it can see memory
    int max_dynamic; // of a launch, when cudaFuncSetAttribute has raised it; 0: what static
                     // variables leave of 48 KB
    int arch;
    const char *module;
    char *readable; // name without parameters; made when somebody reads it
    uint64_t launches;
};
// A variable of a module in global memory.
struct Variable {
    const char *name;
    char *address;
    uint64_t bytes;
};
struct Module { // of one architecture
    const char *name;
    int arch;
    Kernel *kernels;
    int kernel_count;
    const Variable *variables;
    int variable_count;
};

// ---------------------------------------------------------------------------------------- meetings

// The last lane that arrives computes this for all: value and argument of the participating lanes
// -> result of each.
typedef void (*CompleteFn)(const uint64_t *value, const unsigned *argument, unsigned lanes,
                           uint64_t *result);

// The lanes of mask meet; the last one to arrive runs f; every lane returns its result.
// orders_memory: what a lane wrote before is visible to the others afterwards (true of
// bar.warp.sync, not of shuffles; only TSan can tell).
uint64_t warp_op(unsigned mask, uint64_t value, unsigned argument, CompleteFn f, int line,
                 const char *file, bool orders_memory = false);
enum BlockOp { BLOCK_SYNC, BLOCK_COUNT, BLOCK_AND, BLOCK_OR };
int block_op(int predicate, BlockOp op, int line, const char *file);
unsigned lane_id();
// Ends the program unless all 32 lanes take part in the operation.
void expect_whole_warp(unsigned lanes, const char *operation);
// Whether cp.async copies when it is issued (in the reverse schedule) and not when it is waited
// for.
bool copies_at_once();

// The unsigned integer of a size.
template <int BYTES> struct Bits;
template <> struct Bits<4> { typedef uint32_t type; };
template <> struct Bits<8> { typedef uint64_t type; };
} // namespace sim
