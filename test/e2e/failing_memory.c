// Preloaded, lets the FAIL_AT-th allocation of a process fail (with FAIL_ON=1 also all after it), and all of more than
// FAIL_ABOVE bytes. FAIL_COUNT names a file that gets the number of allocations when the process ends.
#define _GNU_SOURCE
#include <errno.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

void *__libc_malloc(size_t), *__libc_calloc(size_t, size_t), *__libc_realloc(void *, size_t);
void *__libc_memalign(size_t, size_t);

static atomic_long count;
static long fail_at, fail_above;
static bool fail_on;

__attribute__((constructor)) static void start(void) {
    const char *at = getenv("FAIL_AT"), *above = getenv("FAIL_ABOVE");
    fail_on = getenv("FAIL_ON") != NULL;
    fail_above = above ? atol(above) : 0;
    count = 0;
    fail_at = at ? atol(at) : 0;
}

__attribute__((destructor)) static void stop(void) {
    const char *path = getenv("FAIL_COUNT");
    char text[32];
    const long n = count;
    FILE *out = path ? fopen(path, "w") : NULL;
    if (!out) return;
    snprintf(text, sizeof text, "%ld\n", n);
    fputs(text, out);
    fclose(out);
}

static bool fails(size_t bytes) {
    const long n = atomic_fetch_add(&count, 1) + 1;
    const bool failed =
        (fail_at > 0 && (fail_on ? n >= fail_at : n == fail_at)) || (fail_above > 0 && bytes > (size_t)fail_above);
    if (failed) errno = ENOMEM;
    return failed;
}

void *malloc(size_t bytes) { return fails(bytes) ? NULL : __libc_malloc(bytes); }
void *calloc(size_t n, size_t bytes) { return fails(n * bytes) ? NULL : __libc_calloc(n, bytes); }
void *realloc(void *p, size_t bytes) { return bytes > 0 && fails(bytes) ? NULL : __libc_realloc(p, bytes); }
void *memalign(size_t alignment, size_t bytes) { return fails(bytes) ? NULL : __libc_memalign(alignment, bytes); }
void *aligned_alloc(size_t alignment, size_t bytes) { return memalign(alignment, bytes); }

int posix_memalign(void **p, size_t alignment, size_t bytes) {
    void *memory = memalign(alignment, bytes);
    if (memory) *p = memory;
    return memory ? 0 : ENOMEM;
}

void *mmap(void *at, size_t bytes, int protection, int flags, int fd, off_t offset) {
    if (fails(bytes)) return MAP_FAILED;
    return (void *)syscall(SYS_mmap, at, bytes, protection, flags, fd, offset);
}
