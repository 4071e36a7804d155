// The simulator tells sanitizers about its stacks, its memory and the order of things. Every
// function is empty in a build without the sanitizer that it serves. ThreadSanitizer: block.cpp and
// its like are compiled without instrumentation (they are the synchronisation), so the build says
// SIM_TSAN. The other two sanitizers instrument the simulator as well.
#pragma once
#include <stddef.h>
#include <stdint.h>
#include <string.h>

// For arithmetic on arrays of our own: nothing for ASan and UBSan to see, and much time.
#define NOTHING_TO_SEE __attribute__((no_sanitize("address", "undefined")))

#ifdef __has_feature
#if __has_feature(address_sanitizer)
#define SIM_ASAN
#endif
#if __has_feature(memory_sanitizer)
#define SIM_MSAN
#endif
#endif
#ifdef __SANITIZE_ADDRESS__
#define SIM_ASAN
#endif

#ifdef SIM_ASAN
#include <sanitizer/common_interface_defs.h>
#endif
#ifdef SIM_MSAN
#include <sanitizer/msan_interface.h>
#endif
#ifdef SIM_TSAN
extern "C" {
void *__tsan_get_current_fiber();
void *__tsan_create_fiber(unsigned flags);
void __tsan_switch_to_fiber(void *fiber, unsigned flags);
void __tsan_read_range(void *address, unsigned long bytes);
void __tsan_write_range(void *address, unsigned long bytes);
void __tsan_acquire(void *address);
void __tsan_release(void *address);
void __tsan_java_init(unsigned long begin, unsigned long size);
void __tsan_java_alloc(unsigned long p, unsigned long size);
void __tsan_java_free(unsigned long p, unsigned long size);
}
#endif

namespace sim {
// --------------------------------------------------------------------------------- MemorySanitizer

inline void msan_uninitialised(void *p, size_t bytes) {
    (void)p, (void)bytes;
#ifdef SIM_MSAN
    __msan_allocated_memory(p, bytes);
#endif
}
inline void msan_initialised(const void *p, size_t bytes) {
    (void)p, (void)bytes;
#ifdef SIM_MSAN
    __msan_unpoison(p, bytes);
#endif
}

// --------------------------------------------------------------------------------- ThreadSanitizer

inline void *tsan_current_fiber() {
#ifdef SIM_TSAN
    return __tsan_get_current_fiber();
#else
    return nullptr;
#endif
}
inline void *tsan_new_fiber() {
#ifdef SIM_TSAN
    return __tsan_create_fiber(0);
#else
    return nullptr;
#endif
}
// Without the order that TSan would otherwise see between the fibers.
inline void tsan_switch(void *fiber) {
    (void)fiber;
#ifdef SIM_TSAN
    __tsan_switch_to_fiber(fiber, 1);
#endif
}
inline void tsan_acquire(char *sync) {
    (void)sync;
#ifdef SIM_TSAN
    __tsan_acquire(sync);
#endif
}
inline void tsan_release(char *sync) {
    (void)sync;
#ifdef SIM_TSAN
    __tsan_release(sync);
#endif
}
// A library or a copy reads or writes these bytes: an access of the stream that it runs in.
inline void tsan_reads(const void *p, size_t bytes) {
    (void)p, (void)bytes;
#ifdef SIM_TSAN
    __tsan_read_range(const_cast<void *>(p), bytes);
#endif
}
inline void tsan_writes(void *p, size_t bytes) {
    (void)p, (void)bytes;
#ifdef SIM_TSAN
    __tsan_write_range(p, bytes);
#endif
}
// Memory that from now on belongs to another CUDA thread or block: TSan forgets its past. The calls
// for the heap of a Java machine are the ones that do this.
inline void tsan_heap(void *p, size_t bytes) {
    (void)p, (void)bytes;
#ifdef SIM_TSAN
    __tsan_java_init((unsigned long)p, bytes);
#endif
}
inline void tsan_forget(void *p, size_t bytes) {
    (void)p, (void)bytes;
#ifdef SIM_TSAN
    __tsan_java_free((unsigned long)p, (bytes + 7) & ~7ul);
    __tsan_java_alloc((unsigned long)p, (bytes + 7) & ~7ul);
#endif
}

// memset and memcpy that ThreadSanitizer does not see by itself: fresh memory is nobody's access,
// and copies say whose they are.
inline void quiet_fill(void *p, int value, size_t bytes) {
#ifdef SIM_TSAN
    for (size_t i = 0; i < bytes; i++) ((volatile char *)p)[i] = (char)value;
#else
    memset(p, value, bytes);
#endif
}
inline void quiet_copy(void *dst, const void *src, size_t bytes) {
#ifdef SIM_TSAN
    for (size_t i = 0; i < bytes; i++) ((volatile char *)dst)[i] = ((const char *)src)[i];
#else
    memcpy(dst, src, bytes);
#endif
}
} // namespace sim
