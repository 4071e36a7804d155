// Any bytes for the optimizer's state of a checkpoint: read or refused with a word about the file, never worse.
#pragma once
#include "llmc/store/checkpoint.h"
#include "test/unit/mutate.h"
#include "test/unit/store_fixture.h"

// Loads a checkpoint again and again, each time with other damage, which stays.
static inline void load_damaged_moments(Gpt2 *model, const char *checkpoint, uint64_t rounds) {
    char directory[PATH_MAX], path[PATH_MAX + 32];
    snprintf(directory, sizeof directory, "%s", checkpoint);
    snprintf(path, sizeof path, "%s/optimizer.safetensors", directory);
    size_t n;
    unsigned char *good = read_bytes(path, &n);
    for (uint64_t round = 0; round < rounds; round++) {
        write_damaged(path, good, n, 4000, round);
        err.text[0] = '\0';
        if (!checkpoint_load_moments(model, directory, &err)) assert_message("optimizer.safetensors: ");
    }
    free(good);
}
