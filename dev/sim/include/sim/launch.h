// What a kernel file sees instead of nvcc: threadIdx and its like, LAUNCH, SHARED, DYN_SHARED, and through the headers
// below the functions of a kernel. Everything here ends in a call of the simulator's core (dev/sim/*.cpp).
#pragma once
#include "sim/atomics.h"
#include "sim/math.h"
#include "sim/warp.h"
#include <cstddef>
#include <cstdint>

#undef __launch_bounds__
#define __launch_bounds__(...)
#undef __cluster_dims__
#define __cluster_dims__(...)
#undef __shared__ // a plain shared variable would be shared by all blocks
#define __shared__ declare_shared_memory_with_SHARED_or_DYN_SHARED

// Per OS thread, because blocks run on several.
extern __thread uint3 threadIdx, blockIdx;
extern __thread dim3 blockDim, gridDim;
constexpr int warpSize = 32;

namespace sim {
[[noreturn]] void fatal(const char *format, ...) __attribute__((format(printf, 1, 2)));

// ------------------------------------------------------------------------------------------------------ shared memory

// One SHARED declaration: its address in the block that runs, fresh for every block.
struct SharedSlot {
    uint64_t epoch; // the block that `address` belongs to
    void *address;
    void *get(size_t bytes, size_t alignment, const char *name);
};
void *dynamic_shared();

// ------------------------------------------------------------------------------------------------------------- launch

struct LaunchConfig {
    const char *kernel, *file;
    int line;
    dim3 grid, block;
    size_t shared_bytes;
    cudaStream_t stream;
};

// A kernel with its arguments: call(closure) runs one thread of it; clone and destroy serve launches that run later.
struct Closure {
    void (*call)(void *);
    void *closure;
    void *(*clone)(void *);
    void (*destroy)(void *);
};
void submit(const LaunchConfig &config, const Closure &closure);

// Pointers must point to memory of the device.
void check_pointer(const void *p, const char *kernel, int index);
template <class T> inline void check_argument(T *p, const char *kernel, int index) {
    check_pointer((const void *)p, kernel, index);
}
template <class T> inline void check_argument(const T &, const char *, int) {}

template <class F> struct Launcher {
    LaunchConfig config;
    F kernel;
    template <class... A> void operator()(A... arguments) const {
        int index = 0;
        (void)index;
        (check_argument(arguments, config.kernel, index++), ...);
        auto body = [f = kernel, arguments...] { f(arguments...); };
        using Body = decltype(body);
        submit(config, {[](void *p) { (*static_cast<Body *>(p))(); }, &body,
                        [](void *p) -> void * { return new Body(*static_cast<Body *>(p)); },
                        [](void *p) { delete static_cast<Body *>(p); }});
    }
};
template <class F>
inline Launcher<F> make_launcher(const char *name, const char *file, int line, F kernel, dim3 grid, dim3 block,
                                 size_t shared_bytes = 0, cudaStream_t stream = nullptr) {
    return {{name, file, line, grid, block, shared_bytes, stream}, kernel};
}
} // namespace sim

// LAUNCH(kernel, grid, block, shared_bytes, stream)(arguments...); a kernel name with commas in it goes in parentheses.
#define LAUNCH(kernel, ...)                                                                                            \
    (::sim::make_launcher(                                                                                             \
        #kernel, __FILE__, __LINE__, [=](auto... sim_arguments) { kernel(sim_arguments...); }, __VA_ARGS__))
// SHARED(float, tile, [32][33]): fresh for every block, filled with NaN, between red zones, counted against the limit.
#define SHARED(T, name, dims)                                                                                          \
    typedef T name##_shared_type dims;                                                                                 \
    static __thread ::sim::SharedSlot name##_slot;                                                                     \
    name##_shared_type &name = *static_cast<name##_shared_type *>(                                                     \
        name##_slot.get(sizeof(name##_shared_type), alignof(name##_shared_type), #name))
#define DYN_SHARED(T, name) T *name = static_cast<T *>(::sim::dynamic_shared())

// The toolkit has these templates only under nvcc.
template <class... P> inline cudaError_t cudaFuncSetAttribute(void (*f)(P...), cudaFuncAttribute attribute, int value) {
    return cudaFuncSetAttribute((const void *)f, attribute, value);
}
template <class... P> inline cudaError_t cudaFuncGetAttributes(cudaFuncAttributes *attributes, void (*f)(P...)) {
    return cudaFuncGetAttributes(attributes, (const void *)f);
}
template <class... P>
inline cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessor(int *blocks, void (*f)(P...), int block_size,
                                                                 size_t shared_bytes) {
    return cudaOccupancyMaxActiveBlocksPerMultiprocessor(blocks, (const void *)f, block_size, shared_bytes);
}

// ----------------------------------------------------------------------------------------------------- other functions

inline void __nanosleep(unsigned) {}
inline long long clock64() { return 0; }
#define __trap() ::sim::fatal("__trap()")

// Loads and stores with a hint for the caches. Accesses of 16 bytes go through the type, so UBSan checks alignment.
#define SIM_LOAD(name)                                                                                                 \
    template <class T> inline T name(const T *p) { return *p; }
#define SIM_STORE(name)                                                                                                \
    template <class T> inline void name(T *p, T v) { *p = v; }
SIM_LOAD(__ldg)
SIM_LOAD(__ldcs)
SIM_LOAD(__ldcg)
SIM_LOAD(__ldca)
SIM_LOAD(__ldlu)
SIM_LOAD(__ldcv)
SIM_STORE(__stcs)
SIM_STORE(__stcg)
SIM_STORE(__stwb)
SIM_STORE(__stwt)
#undef SIM_LOAD
#undef SIM_STORE
