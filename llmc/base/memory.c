// See memory.h.
#include "llmc/base/memory.h"

#include "llmc/base/arithmetic.h"
#include "llmc/base/error.h"

#include <stdlib.h>

void *memory_new(int64_t n, size_t size) {
    size_t bytes;
    void *memory = NULL;
    if (!__builtin_mul_overflow((size_t)max_i64(n, 1), size, &bytes)) memory = malloc(bytes);
    REQUIRE_MEMORY(memory, "%lld x %zu bytes", (long long)n, size);
    return memory;
}

void *memory_zeroed(int64_t n, size_t size) {
    void *memory = calloc((size_t)max_i64(n, 1), size);
    REQUIRE_MEMORY(memory, "%lld x %zu bytes", (long long)n, size);
    return memory;
}

void *memory_grow(void *array, int64_t *capacity, int64_t needed, size_t size) {
    if (needed <= *capacity) return array;
    const int64_t grown = max_i64(needed, *capacity + *capacity / 2 + 16);
    array = realloc(array, (size_t)grown * size);
    REQUIRE_MEMORY(array, "%lld x %zu bytes", (long long)grown, size);
    *capacity = grown;
    return array;
}
