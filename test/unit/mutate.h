// Deterministic damage to files, for the tests of readers: bytes flipped, overwritten, inserted,
// removed, cut off.
#pragma once
#include "llmc/base/random.h"
#include "test/fixture.h"
#include <math.h>

enum { MUTATE_MAX_GROWTH = FILE_ROOM }; // bytes a round may add

// Damages the n bytes at data (which has room for MUTATE_MAX_GROWTH more) and returns how many
// there are then. Round r does the same damage every time. Most of it falls into the first `header`
// bytes, where the structure of a file is.
static inline size_t mutate(unsigned char *data, size_t n, size_t header, uint64_t round) {
    static const char *const tokens[] = {
        "null", "-1", "{", "[", "\"", "9007199254740993",    "1e308", "0.5",
        "true", "}",  "]", ",", ":",  "18446744073709551615"};
    enum { NUM_TOKENS = sizeof tokens / sizeof tokens[0] };

    Philox count = philox(20240520, 1, round);
    for (uint32_t i = 0; i <= count.v[0] % 3 && n > 0; i++) {
        Philox r = philox(20240521, round, i);
        size_t span = r.v[0] % 8 != 0 && header < n ? header : n, at = r.v[1] % span;
        const char *token = tokens[r.v[2] % NUM_TOKENS];
        size_t length = strlen(token);

        switch (r.v[3] % 8) {
        case 0:
            n = at;
            break; // cut off
        case 1:
            data[at] ^= (unsigned char)(1u << r.v[2] % 8);
            break;
        case 2:
            data[at] = (unsigned char)r.v[2];
            break;
        case 3: // a byte removed
            memmove(data + at, data + at + 1, n - at - 1), n--;
            break;
        case 4: // a token inserted
            memmove(data + at + length, data + at, n - at), n += length;
            for (size_t k = 0; k < length; k++) data[at + k] = (unsigned char)token[k];
            break;
        case 5: // a token written over what is there
            for (size_t k = 0; k < length && at + k < n; k++)
                data[at + k] = (unsigned char)token[k];
            break;
        case 6: // eight bytes of a header replaced by an extreme number
            memset(data + at, r.v[2] % 2 ? 0xff : 0, n - at < 8 ? n - at : 8);
            break;
        default: // digits changed
            for (size_t k = at; k < n && k < at + 16; k++)
                if (data[k] >= '0' && data[k] <= '9')
                    data[k] = (unsigned char)('0' + (r.v[2] + k) % 10);
        }
    }
    return n;
}
