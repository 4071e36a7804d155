// Memory of the device and pinned memory of the host, and copies between them. Owns the table of
// allocations, by which every access of a kernel and every copy is checked. Fresh memory holds
// 0xFF: NaN in every floating type.
#include "dev/sim/runtime.h"
#include "dev/sim/sanitizers.h"
#include "dev/sim/sim_control.h"

#include <algorithm>
#include <malloc.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <vector>

namespace sim {
struct Allocation {
    char *begin;
    size_t bytes;
    MemoryKind kind;
};

// By address. Never freed: programs free memory while they exit.
static std::vector<Allocation> &allocations() {
    static auto *table = new std::vector<Allocation>;
    return *table;
}
static size_t device_bytes;                            // allocated now, in pieces of 512
static size_t taken_bytes;                             // by libraries and the driver
static auto &forbidden = *new std::vector<Allocation>; // parts of allocations: sim_forbid

static size_t device_room(size_t bytes) { return (bytes + 511) / 512 * 512; }
static size_t free_bytes() {
    return device_model().memory_bytes - device_model().context_bytes - device_bytes - taken_bytes;
}
bool take_memory(const char *setting, int shift) {
    const size_t bytes = (size_t)setting_number(setting, 0) << shift;
    if (bytes > free_bytes()) return false;
    taken_bytes += bytes;
    return true;
}

static bool is_below(const Allocation &a, const char *address) { return a.begin < address; }
static std::vector<Allocation>::iterator first_behind(const void *p) {
    return std::upper_bound(
        allocations().begin(), allocations().end(), (const char *)p,
        [](const char *address, const Allocation &a) { return address < a.begin; });
}
static Allocation *find(const void *p, size_t bytes) {
    auto it = first_behind(p);
    if (it == allocations().begin()) return nullptr;
    --it;
    if ((const char *)p + bytes > it->begin + it->bytes) return nullptr;
    for (const Allocation &gap : forbidden)
        if ((const char *)p < gap.begin + gap.bytes && gap.begin < (const char *)p + bytes)
            return nullptr;
    return &*it;
}
MemoryKind memory_kind(const void *p, size_t bytes) {
    const Allocation *a = find(p, bytes);
    return a ? a->kind : PAGEABLE;
}

uint64_t memory_changes;

bool find_device_memory(uint64_t address, uint64_t size, uint64_t *begin, uint64_t *bytes) {
    const Allocation *a = find((const void *)(uintptr_t)address, size);
    if (!a) return false;

    // from the gap before it to the one behind it
    const char *low = a->begin, *high = a->begin + a->bytes;
    for (const Allocation &gap : forbidden)
        if ((uint64_t)(uintptr_t)gap.begin > address)
            high = std::min<const char *>(high, gap.begin);
        else
            low = std::max<const char *>(low, gap.begin + gap.bytes);

    *begin = (uint64_t)(uintptr_t)low;
    *bytes = (uint64_t)(high - low);
    return true;
}
void add_device_variable(char *address, uint64_t bytes) {
    allocations().insert(first_behind(address), {address, bytes, DEVICE});
}

// -------------------------------------------------------------------------------- protected memory

// SIM_PROTECT=1: device memory lies in a region of its own that is open only while an operation
// runs. Addresses are never used twice: what was freed stays closed.
static struct {
    char *begin;
    size_t used;
    int open;
} region;
enum : size_t { REGION_BYTES = (size_t)64 << 30, LARGE_PAGE = 2 << 20 };

static bool is_protected() {
    static const bool on = setting("SIM_PROTECT") != nullptr;
    return on;
}

static void on_fault(int number, siginfo_t *info, void *) {
    const char *address = (const char *)info->si_addr;
    if (region.begin && address >= region.begin && address < region.begin + REGION_BYTES)
        fprintf(stderr, "sim: ERROR: host code touches device memory at %p\n", info->si_addr);
    signal(number, SIG_DFL); // returns and faults again: a debugger or a core file shows the place
}

// Large ones have large pages, which open and close 500 times as fast. Behind each there is a
// closed page.
static size_t region_page(size_t bytes) { return bytes < LARGE_PAGE ? 4096 : (size_t)LARGE_PAGE; }
static size_t region_room(size_t bytes) {
    const size_t page = region_page(bytes);
    return (bytes + page - 1) / page * page;
}

static void *region_take(size_t bytes) {
    if (!region.begin) {
        void *p = mmap(nullptr, REGION_BYTES, PROT_NONE,
                       MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (p == MAP_FAILED) fatal("no address space for protected memory");
        region.begin = (char *)(((uintptr_t)p + LARGE_PAGE - 1) / LARGE_PAGE * LARGE_PAGE);
    }

    const size_t page = region_page(bytes);
    region.used = (region.used + page - 1) / page * page;
    void *p = region.begin + region.used;
    if (page == LARGE_PAGE) madvise(p, region_room(bytes), MADV_HUGEPAGE);
    region.used += region_room(bytes) + 4096;
    if (region.used > REGION_BYTES - LARGE_PAGE) fatal("the region of protected memory is used up");
    return p;
}

static void region_set(int protection) {
    auto a = std::lower_bound(allocations().begin(), allocations().end(), region.begin, is_below);
    for (; a != allocations().end() && a->begin < region.begin + region.used; ++a)
        mprotect(a->begin, region_room(a->bytes), protection);
}

void memory_open() {
    if (region.begin && region.open++ == 0) region_set(PROT_READ | PROT_WRITE);
}
void memory_close() {
    if (!region.begin || --region.open > 0) return;
    region_set(PROT_NONE);
    struct sigaction action = {}; // again and again: test frameworks take the signal over
    action.sa_sigaction = on_fault;
    action.sa_flags = SA_SIGINFO;
    sigaction(SIGSEGV, &action, nullptr);
}

// ------------------------------------------------------------------------------- allocate and free

// glibc would give large blocks back to the system and take them anew, zeroed page by page, in
// every test case.
__attribute__((constructor)) static void keep_freed_memory() {
    mallopt(M_MMAP_MAX, 0);
    mallopt(M_TRIM_THRESHOLD, 1 << 30);
}

static cudaError_t allocate(const char *call, void **p, size_t bytes, MemoryKind kind) {
    if (cudaError_t error = capture_forbids(call)) return error;
    step_forbids(call, "allocates memory");
    if (!p) return set_error(cudaErrorInvalidValue);
    *p = nullptr;
    if (bytes == 0) return cudaSuccess;

    static const int failing = setting_number("SIM_FAIL_ALLOC", 0);
    static int number;
    if (++number == failing)
        return set_error(cudaErrorMemoryAllocation, "allocation %d, %s of %zu bytes, fails", number,
                         call, bytes);
    if (kind == DEVICE && (bytes > free_bytes() || device_room(bytes) > free_bytes()))
        return set_error(cudaErrorMemoryAllocation);

    void *fresh = nullptr;
    const bool in_region = kind == DEVICE && is_protected();
    if (in_region) {
        fresh = region_take(bytes);
        mprotect(fresh, region_room(bytes), PROT_READ | PROT_WRITE);
    } else if (posix_memalign(&fresh, 256, bytes)) {
        return set_error(cudaErrorMemoryAllocation);
    }

    quiet_fill(fresh, 0xff, bytes);
    if (in_region && !region.open) mprotect(fresh, region_room(bytes), PROT_NONE);
    msan_uninitialised(fresh, bytes);
    allocations().insert(first_behind(fresh), {(char *)fresh, bytes, kind});
    memory_changes++;
    if (kind == DEVICE) device_bytes += device_room(bytes);

    *p = fresh;
    return cudaSuccess;
}

static cudaError_t release(const char *call, void *p, MemoryKind kind) {
    if (!p) return cudaSuccess;
    if (cudaError_t error = capture_forbids(call)) return error;
    step_forbids(call, "frees memory, which waits for the device");
    streams_drain_all();

    Allocation *a = find(p, 0);
    if (!a || a->begin != p || a->kind != kind)
        return set_error(cudaErrorInvalidValue, "%s: %p was not allocated this way", call, p);

    if (kind == DEVICE) device_bytes -= device_room(a->bytes);
    sim_allow(a->begin, a->bytes);
    if (kind == DEVICE && is_protected())
        mmap(p, region_room(a->bytes), PROT_NONE,
             MAP_FIXED | MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    else
        free(p);
    allocations().erase(allocations().begin() + (a - allocations().data()));
    memory_changes++;
    return cudaSuccess;
}

// ------------------------------------------------------------------------------------------ copies

// Whether source and destination are what the direction says.
static bool direction_fits(cudaMemcpyKind direction, MemoryKind dst, MemoryKind src) {
    switch (direction) {
    case cudaMemcpyHostToDevice:
        return dst == DEVICE && src != DEVICE;
    case cudaMemcpyDeviceToHost:
        return dst != DEVICE && src == DEVICE;
    case cudaMemcpyDeviceToDevice:
        return dst == DEVICE && src == DEVICE;
    case cudaMemcpyHostToHost:
        return dst != DEVICE && src != DEVICE;
    default:
        return true; // cudaMemcpyDefault
    }
}
static cudaError_t check_copy(const char *call, void *dst, const void *src, size_t bytes,
                              cudaMemcpyKind direction) {
    if (direction_fits(direction, memory_kind(dst, bytes), memory_kind(src, bytes)))
        return cudaSuccess;
    return set_error(cudaErrorInvalidValue, "%s: direction or range does not fit the pointers",
                     call);
}

// Code that is not instrumented may have written what comes from the host: it counts as
// initialised.
static void copy_bytes(void *dst, const void *src, size_t bytes, bool from_host) {
    tsan_reads(src, bytes), tsan_writes(dst, bytes);
    quiet_copy(dst, src, bytes);
    if (from_host) msan_initialised(dst, bytes);
}

// Synchronous. As in CUDA it runs in the legacy stream: it does not wait for non-blocking streams.
static cudaError_t copy_now(const char *call, void *dst, const void *src, size_t bytes,
                            cudaMemcpyKind direction) {
    if (cudaError_t error = capture_forbids(call)) return error;
    step_forbids(call, "waits for the device");
    if (bytes == 0) return cudaSuccess;
    if (cudaError_t error = check_copy(call, dst, src, bytes, direction)) return error;
    if (cudaError_t error = cudaStreamSynchronize(nullptr)) return error;
    memory_open();
    copy_bytes(dst, src, bytes, memory_kind(src, bytes) != DEVICE);
    memory_close();
    return cudaSuccess;
}

static cudaError_t copy_async(void *dst, const void *src, size_t bytes, cudaMemcpyKind direction,
                              cudaStream_t stream) {
    if (bytes == 0) return cudaSuccess;
    if (cudaError_t error = check_copy("cudaMemcpyAsync", dst, src, bytes, direction)) return error;
    const bool from_host = memory_kind(src, bytes) != DEVICE;
    const bool staged = memory_kind(src, bytes) == PAGEABLE,
               blocks = memory_kind(dst, bytes) == PAGEABLE;
    if (staged || blocks) {
        if (stream_is_captured(stream))
            return capture_forbids("cudaMemcpyAsync with pageable memory");
        step_forbids("cudaMemcpyAsync", "copies pageable memory");
    }
    if (staged) { // the source is read during the call
        void *copy = malloc(bytes);
        if (!copy) return set_error(cudaErrorMemoryAllocation);
        tsan_reads(src, bytes);
        quiet_copy(copy, src, bytes);
        if (cudaError_t error = stream_enqueue(stream, "staged copy", [=] {
                copy_bytes(dst, copy, bytes, true);
                free(copy);
            }))
            return error;
    } else if (cudaError_t error = stream_enqueue(
                   stream, "copy", [=] { copy_bytes(dst, src, bytes, from_host); })) {
        return error;
    }
    return blocks ? cudaStreamSynchronize(stream) : cudaSuccess;
}

static cudaError_t set_async(const char *call, void *dst, int value, size_t bytes,
                             cudaStream_t stream) {
    if (bytes == 0) return cudaSuccess;
    if (memory_kind(dst, bytes) == PAGEABLE)
        return set_error(cudaErrorInvalidValue, "%s: range is not the device's", call);
    return stream_enqueue(stream, "memset", [=] {
        tsan_writes(dst, bytes);
        quiet_fill(dst, value, bytes);
    });
}
} // namespace sim

using namespace sim;

extern "C" {
void sim_forbid(void *begin, uint64_t bytes) {
    const Allocation *a = find(begin, bytes);
    if (!a) fatal("sim_forbid: these bytes are in no allocation, or forbidden already");
    forbidden.push_back({(char *)begin, bytes, a->kind});
    memory_changes++;
}
void sim_allow(void *begin, uint64_t bytes) {
    const char *low = (const char *)begin, *high = low + bytes;
    forbidden.erase(
        std::remove_if(forbidden.begin(), forbidden.end(),
                       [=](const Allocation &f) { return f.begin >= low && f.begin < high; }),
        forbidden.end());
    memory_changes++;
}

cudaError_t cudaMalloc(void **p, size_t bytes) { return allocate("cudaMalloc", p, bytes, DEVICE); }
cudaError_t cudaHostAlloc(void **p, size_t bytes, unsigned) {
    return allocate("cudaHostAlloc", p, bytes, PINNED);
}
cudaError_t cudaFree(void *p) { return release("cudaFree", p, DEVICE); }
cudaError_t cudaFreeHost(void *p) { return release("cudaFreeHost", p, PINNED); }

cudaError_t cudaMemGetInfo(size_t *available, size_t *total) {
    *total = device_model().memory_bytes;
    *available = free_bytes();
    return sticky_error();
}

cudaError_t cudaMemcpy(void *dst, const void *src, size_t bytes, cudaMemcpyKind direction) {
    return copy_now("cudaMemcpy", dst, src, bytes, direction);
}
cudaError_t cudaMemcpyAsync(void *dst, const void *src, size_t bytes, cudaMemcpyKind direction,
                            cudaStream_t stream) {
    return copy_async(dst, src, bytes, direction, stream);
}
cudaError_t cudaMemset(void *dst, int value, size_t bytes) {
    return set_async("cudaMemset", dst, value, bytes, nullptr);
}
cudaError_t cudaMemsetAsync(void *dst, int value, size_t bytes, cudaStream_t stream) {
    return set_async("cudaMemsetAsync", dst, value, bytes, stream);
}
}
