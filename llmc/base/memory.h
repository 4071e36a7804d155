// Memory without which nothing could continue: where there is none, these end the program
// (out_of_memory in error.h).
#pragma once
#include <stddef.h>
#include <stdint.h>

void *memory_new(int64_t n, size_t size);    // n elements, not set; malloced
void *memory_zeroed(int64_t n, size_t size); // all zero
// Enlarges a malloced array of *capacity elements, NULL if 0, to at least `needed`: by half, so
// that appending costs constant time. New elements are not set. Returns the array at its new place.
void *memory_grow(void *array, int64_t *capacity, int64_t needed, size_t size);
