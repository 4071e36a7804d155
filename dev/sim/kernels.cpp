// The kernels of the program: what nvcc's host code registers and launches, in terms of translated
// PTX, and what the runtime knows of a kernel. Which code of a fat binary a GPU takes is decided as
// the driver does it: machine code of its own generation, else PTX of the newest architecture that
// is not newer than the GPU.
#include "dev/sim/block.h"
#include "dev/sim/ptx.h"
#include "dev/sim/runtime.h"
#include "dev/sim/sanitizers.h"
#include "dev/sim/sim_control.h"

#include <algorithm>
#include <cxxabi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <vector>

namespace sim {
// ---------------------------------------------------------------------------------------- registry

struct Binary { // a fat binary: the code of one .cu file for several GPUs
    std::vector<int> machine_code, ptx;
};
struct Stub { // the host function that stands for a kernel
    const void *function;
    const char *name; // mangled
    Kernel *kernel;   // null: the binary holds nothing for this GPU
    int ptx_version, binary_version;
    bool loaded = false;
    uint64_t threads = 0;      // of the largest block launched
    size_t dynamic_shared = 0; // the most of a launch
};
// Vectors, searched by hand: maps and strings of the standard library are partly compiled into it,
// where MemorySanitizer does not see what they write.
struct Registry {
    std::vector<Module *> modules;
    std::vector<Stub> stubs; // by address of the function
};
static Registry &registry() {
    static Registry *r = new Registry;
    return *r;
}
static Kernel *kernel_named(const char *name, int arch) {
    for (const Module *m : registry().modules)
        for (int i = 0; m->arch == arch && i < m->kernel_count; i++)
            if (strcmp(m->kernels[i].name, name) == 0) return &m->kernels[i];
    return nullptr;
}
static std::vector<Stub>::iterator place_of(const void *function) {
    return std::lower_bound(registry().stubs.begin(), registry().stubs.end(), function,
                            [](const Stub &s, const void *f) { return s.function < f; });
}

// SIM_KERNELS=FILE: at exit a line for every kernel that ran is added to the file: module,
// architecture, name, launches, threads of the largest block, the most dynamic shared memory.
static void write_kernels() {
    FILE *f = fopen(setting("SIM_KERNELS"), "a");
    if (!f) return;
    for (const Stub &s : registry().stubs)
        if (s.kernel && s.kernel->launches)
            fprintf(f, "%s %d %s %lu %lu %zu\n", s.kernel->module, s.kernel->arch, s.name,
                    s.kernel->launches, s.threads, s.dynamic_shared);
    fclose(f);
}
static void add_module(Module *m) {
    if (setting("SIM_KERNELS") && registry().modules.empty()) atexit(write_kernels);
    for (int i = 0; i < m->kernel_count; i++) {
        Kernel *k = &m->kernels[i];
        if (kernel_named(k->name, m->arch)) fatal("two kernels have the name %s", k->name);
        k->arch = m->arch;
        k->module = m->name;
    }
    registry().modules.push_back(m);
    for (int i = 0; i < m->variable_count; i++)
        add_device_variable(m->variables[i].address, m->variables[i].bytes);
}

const char *readable_name(Kernel *k) {
    if (k->readable) return k->readable;
    int status;
    size_t bytes = 0;
    char *name = abi::__cxa_demangle(k->name, nullptr, &bytes, &status);
    if (!name) return k->readable = strdup(k->name);
    msan_initialised(name, bytes); // written by libstdc++, which is not instrumented

    // "void scale<float, 4>(float*)" -> "scale<float, 4>"
    const char *begin = strncmp(name, "void ", 5) == 0 ? name + 5 : name, *end = begin;
    for (int depth = 0; *end && (*end != '(' || depth > 0); end++)
        depth += (*end == '<') - (*end == '>');

    k->readable = strndup(begin, (size_t)(end - begin));
    free(name);
    return k->readable;
}

// Prints the reason and returns the error, as a refused launch does.
static cudaError_t refuse(const Stub &stub, cudaError_t error, const char *reason) {
    const char *name = stub.kernel ? readable_name(stub.kernel) : stub.name;
    note_refused_launch(name);
    return set_error(error, "launch of %s: %s", name, reason);
}

// ------------------------------------------------------------------------------------ fat binaries

// These are the structures that nvcc puts into a program. The wrapper is described in the toolkit's
// fatbinary_section.h; the container itself is not documented: 16 bytes, then entries of a header
// (kind, its own size, the size of what follows, architecture) and the code.
enum : uint32_t { WRAPPER_MAGIC = 0x466243b1, CONTAINER_MAGIC = 0xba55ed50 };
struct Wrapper {
    uint32_t magic, version;
    const char *container;
};
struct ContainerHeader {
    uint32_t magic;
    uint16_t version, header_bytes;
    uint64_t bytes;
};
struct EntryHeader {
    uint16_t kind, version; // kind 1: PTX, 2: machine code
    uint32_t header_bytes;
    uint64_t bytes;
    uint32_t unused[3], architecture;
};
static Binary *read_binary(const void *p) {
    const Wrapper *w = (const Wrapper *)p;
    ContainerHeader c;
    if (w->magic != WRAPPER_MAGIC ||
        (memcpy(&c, w->container, sizeof c), c.magic != CONTAINER_MAGIC))
        fatal("a fat binary in a format that is not known: was it made by another nvcc?");

    Binary *binary = new Binary;
    const char *at = w->container + c.header_bytes, *end = at + c.bytes;
    while (at < end) {
        EntryHeader e;
        memcpy(&e, at, sizeof e);
        (e.kind == 1 ? binary->ptx : binary->machine_code).push_back((int)e.architecture);
        at += e.header_bytes + e.bytes;
    }
    return binary;
}

// The largest of the architectures that are not newer than the GPU; 0 for none.
static int newest(const std::vector<int> &architectures, bool same_generation) {
    const int gpu = device_model().compute_capability;
    int best = 0;
    for (int a : architectures)
        if (a <= gpu && a > best && (!same_generation || a / 10 == gpu / 10)) best = a;
    return best;
}
static Stub find_kernel(const Binary &binary, const char *name, const void *function) {
    const int code = newest(binary.machine_code, true), ptx = newest(binary.ptx, false),
              arch = code ? code : ptx;
    Kernel *kernel = arch ? kernel_named(name, arch) : nullptr;
    // whose text is translated (SIM_PTX in sim.mk)
    if (!kernel && arch > 90) kernel = kernel_named(name, 90);
    if (arch && !kernel)
        fatal("no translated PTX of sm_%d of the kernel %s in this program", arch, name);
    return {function, name, kernel, ptx ? ptx : arch,
            code ? code : device_model().compute_capability};
}

static Stub *stub_of(const void *function) {
    const auto at = place_of(function);
    return at == registry().stubs.end() || at->function != function ? nullptr : &*at;
}

// The driver loads the code of a kernel when it is first used; that may take memory and wait for
// the device.
static cudaError_t load(Stub *stub) {
    if (stub->loaded) return cudaSuccess;
    char call[200];
    snprintf(call, sizeof call, "loading the kernel %s", readable_name(stub->kernel));
    if (cudaError_t error = capture_forbids(call)) return error;
    if (!take_memory("SIM_KERNEL_KB", 10))
        return refuse(*stub, cudaErrorMemoryAllocation, "no memory for its code");
    stub->loaded = true;
    return cudaSuccess;
}

// ---------------------------------------------------------------------------------------- launches

enum {
    WITHOUT_ASKING = 48 << 10
}; // shared memory of a block, static and dynamic, unless its kernel is allowed more
static int max_dynamic(const Kernel *k) {
    return k->max_dynamic ? k->max_dynamic : (int)WITHOUT_ASKING - (int)k->static_shared;
}

static uint64_t early_launches;

// early: with programmatic stream serialisation, so before the end of the grid before it. Here all
// grids run one after the other: a kernel that could see memory before it waits is refused instead.
static cudaError_t launch(const void *function, dim3 grid, dim3 block, void **arguments,
                          size_t shared, cudaStream_t stream, bool early = false) {
    expect_refusal_seen("the next launch");
    Stub *stub = stub_of(function);
    if (!stub)
        return set_error(cudaErrorInvalidDeviceFunction, "launch of a function that is no kernel");
    Kernel *k = stub->kernel;
    if (!k)
        return refuse(*stub, cudaErrorNoKernelImageForDevice,
                      "the program holds no code for this GPU");
    char reason[200];
    const uint64_t threads = (uint64_t)block.x * block.y * block.z;
    if (threads == 0 || threads > MAX_THREADS || block.z > 64 || grid.x == 0 || grid.y == 0 ||
        grid.z == 0 || grid.x > 2147483647u || grid.y > 65535 || grid.z > 65535) {
        snprintf(reason, sizeof reason, "<<<(%u,%u,%u), (%u,%u,%u)>>> is no grid that a GPU has",
                 grid.x, grid.y, grid.z, block.x, block.y, block.z);
        return refuse(*stub, cudaErrorInvalidConfiguration, reason);
    }
    if (threads > k->max_threads) {
        snprintf(reason, sizeof reason, "%lu threads, __launch_bounds__ says %u", threads,
                 k->max_threads);
        return refuse(*stub, cudaErrorInvalidValue, reason);
    }
    if ((int64_t)shared > max_dynamic(k)) {
        snprintf(reason, sizeof reason,
                 "%u static + %zu dynamic bytes of shared memory, the dynamic ones may be %d",
                 k->static_shared, shared, max_dynamic(k));
        return refuse(*stub, cudaErrorInvalidValue, reason);
    }
    if (early && device_model().compute_capability < 90)
        return refuse(*stub, cudaErrorNotSupported,
                      "programmatic stream serialisation needs sm_90");
    if (early && stream_is_captured(stream) &&
        (driver_version() < 12030 || setting_is("SIM_EARLY", "refused")))
        return refuse(*stub, cudaErrorNotSupported,
                      "this driver records no programmatic stream serialisation");
    if (early && !k->waits)
        fatal("race: %s may start before the grid before it has ended, and does not begin with "
              "griddepcontrol.wait",
              readable_name(k));
    if (cudaError_t error = load(stub)) return error;
    early_launches += early;
    k->launches++;
    stub->threads = std::max(stub->threads, threads);
    stub->dynamic_shared = std::max(stub->dynamic_shared, shared);
    Launch now = {k, grid, block, shared, stream, nullptr};
    std::vector<char> params(k->param_bytes + 1);
    // from code that is not instrumented
    msan_initialised(arguments, k->param_count * sizeof *arguments);
    for (uint32_t i = 0; i < k->param_count; i++)
        quiet_copy(&params[k->params[i].at], arguments[i], k->params[i].bytes);
    msan_initialised(params.data(), params.size());
    now.params = params.data();
    submit(now);
    return cudaPeekAtLastError();
}
} // namespace sim

ptx::Register::Register(Module *m) { sim::add_module(m); }

using namespace sim;

extern "C" {
const void *sim_kernel(const char *name) {
    for (const Stub &stub : registry().stubs)
        if (stub.kernel && strcmp(stub.name, name) == 0) return stub.function;
    // A kernel of PTX alone, without host code, stands for itself.
    for (int arch = device_model().compute_capability; arch > 0; arch--)
        if (Kernel *k = kernel_named(name, arch)) {
            registry().stubs.insert(place_of(k), {k, k->name, k, arch, arch});
            return k;
        }
    return nullptr;
}

// --------------------------------------------------------------------- what nvcc's host code calls

struct CallConfiguration {
    dim3 grid, block;
    size_t shared;
    void *stream;
};
static CallConfiguration pushed[8];
static int pushes;

void **__cudaRegisterFatBinary(void *wrapper) { return (void **)read_binary(wrapper); }
void __cudaRegisterFatBinaryEnd(void **) {}
void __cudaUnregisterFatBinary(void **) {}
char __cudaInitModule(void **) { return 0; }
void __cudaRegisterFunction(void **binary, const char *stub, char *, const char *name, int, uint3 *,
                            uint3 *, dim3 *, dim3 *, int *) {
    registry().stubs.insert(place_of(stub), find_kernel(*(Binary *)binary, name, stub));
}
// Modules bring their variables themselves; the host's copies by symbol are not simulated (and not
// linked).
void __cudaRegisterVar(void **, char *, char *, const char *, int, size_t, int, int) {}
unsigned __cudaPushCallConfiguration(dim3 grid, dim3 block, size_t shared, cudaStream_t stream) {
    if (pushes == 8) return 1;
    pushed[pushes++] = {grid, block, shared, stream};
    return 0;
}
cudaError_t __cudaPopCallConfiguration(dim3 *grid, dim3 *block, size_t *shared, void *stream) {
    if (!pushes) return set_error(cudaErrorMissingConfiguration);
    const CallConfiguration c = pushed[--pushes];
    *grid = c.grid, *block = c.block, *shared = c.shared, *(void **)stream = c.stream;
    return cudaSuccess;
}
cudaError_t __cudaGetKernel(cudaKernel_t *kernel, const void *stub) {
    *kernel = (cudaKernel_t)stub;
    return cudaSuccess;
}
cudaError_t __cudaLaunchKernel(cudaKernel_t kernel, dim3 grid, dim3 block, void **arguments,
                               size_t shared, cudaStream_t stream) {
    return launch((const void *)kernel, grid, block, arguments, shared, stream);
}
cudaError_t cudaLaunchKernel(const void *stub, dim3 grid, dim3 block, void **arguments,
                             size_t shared, cudaStream_t stream) {
    return launch(stub, grid, block, arguments, shared, stream);
}

uint64_t sim_early_launches(void) { return early_launches; }

cudaError_t cudaLaunchKernelExC(const cudaLaunchConfig_t *c, const void *stub, void **arguments) {
    bool early = false;
    msan_initialised(c, sizeof *c); // as the parameters
    msan_initialised(c->attrs, c->numAttrs * sizeof *c->attrs);
    for (unsigned i = 0; i < c->numAttrs; i++) {
        if (c->attrs[i].id != cudaLaunchAttributeProgrammaticStreamSerialization)
            fatal("attribute %d of a launch is not simulated", (int)c->attrs[i].id);
        early = c->attrs[i].val.programmaticStreamSerializationAllowed != 0;
    }
    return launch(stub, c->gridDim, c->blockDim, arguments, c->dynamicSmemBytes, c->stream, early);
}

// ------------------------------------------------------------------------------- facts of a kernel

cudaError_t cudaFuncSetAttribute(const void *function, cudaFuncAttribute which, int value) {
    Stub *stub = stub_of(function);
    if (!stub) return set_error(cudaErrorInvalidDeviceFunction);
    if (!stub->kernel) return set_error(cudaErrorNoKernelImageForDevice);
    if (cudaError_t error = load(stub)) return error;
    if (which != cudaFuncAttributeMaxDynamicSharedMemorySize) return cudaSuccess;

    if (value < 0 || value + (int)stub->kernel->static_shared > device_model().shared_per_block)
        return set_error(cudaErrorInvalidValue,
                         "%s: %d bytes of dynamic shared memory asked for beside %u static ones, a "
                         "block may have %d",
                         readable_name(stub->kernel), value, stub->kernel->static_shared,
                         device_model().shared_per_block);

    stub->kernel->max_dynamic = value;
    return cudaSuccess;
}
// Registers are not simulated.
cudaError_t cudaFuncGetAttributes(cudaFuncAttributes *a, const void *function) {
    memset((void *)a, 0, sizeof *a);
    Stub *stub = stub_of(function);
    if (!stub) return set_error(cudaErrorInvalidDeviceFunction);
    const Kernel *k = stub->kernel;
    if (!k) return set_error(cudaErrorNoKernelImageForDevice);
    if (cudaError_t error = load(stub)) return error;

    a->sharedSizeBytes = k->static_shared;
    a->maxThreadsPerBlock = (int)k->max_threads;
    a->maxDynamicSharedSizeBytes = max_dynamic(k);
    a->ptxVersion = stub->ptx_version;
    a->binaryVersion = stub->binary_version;
    return cudaSuccess;
}
cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessor(int *blocks, const void *function,
                                                          int threads, size_t shared) {
    const Stub *stub = stub_of(function);
    if (!stub || !stub->kernel || threads < 1)
        return set_error(cudaErrorInvalidValue, "occupancy of %d threads of an unknown kernel",
                         threads);
    const DeviceModel &m = device_model();
    const int by_threads = m.threads_per_unit / ((threads + 31) / 32 * 32);
    const int bytes = (int)(stub->kernel->static_shared + shared) + m.reserved_shared;
    const int by_shared = bytes > 0 ? m.shared_per_unit / bytes : by_threads;
    *blocks = by_threads < by_shared ? by_threads : by_shared;
    if (*blocks > m.blocks_per_unit) *blocks = m.blocks_per_unit;
    if ((int64_t)shared > max_dynamic(stub->kernel) || threads > (int)stub->kernel->max_threads)
        *blocks = 0;
    return cudaSuccess;
}
}
