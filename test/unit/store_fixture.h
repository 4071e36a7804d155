// What the tests of llmc/store share: an empty directory and a cleared error for each test, and looks at what a call
// left. Included once by a test program.
#pragma once
#include "llmc/base/error.h"
#include "llmc/model/parameters.h"
#include "test/fixture.h"

static Error err;

static inline int setup(void **state) {
    err.text[0] = '\0';
    return tmp_setup(state);
}

// Makes a trainer.json one of format 1, as it was before the file had a checksum of itself: what is changed in it then
// is read.
static inline void unseal(const char *path) {
    size_t n;
    char *text = (char *)read_bytes(path, &n);
    text[n] = '\0';
    char *format = strstr(text, "\"format\": 2"), *seal = strstr(text, "\n  },\n  \"xxh3\": ");
    assert_non_null(format);
    assert_non_null(seal);
    format[strlen("\"format\": ")] = '1';
    memcpy(seal, "\n  }\n}\n", sizeof "\n  }\n}\n");
    write_bytes(path, text, strlen(text));
    free(text);
}

// An llm.c model by the description of its format, without our writer: the numbers' bits, by tensor and element;
// padding in the rows beyond the vocabulary.
static inline void write_llmc(const char *path, const ModelConfig *c, DType dtype, uint32_t padding,
                              uint32_t (*bits)(DType, int tensor, int64_t element)) {
    const int32_t header[256] = {20240326,          dtype == DTYPE_FP32 ? 3 : 5,
                                 (int32_t)c->max_T, (int32_t)c->V,
                                 (int32_t)c->L,     (int32_t)c->NH,
                                 (int32_t)c->C,     (int32_t)c->Vp};
    Parameter *table = parameter_table(c);
    FILE *f = fopen(path, "wb");
    fwrite(header, sizeof header, 1, f);
    for (int i = 0; i < parameter_count(c); i++)
        for (int64_t e = 0; e < parameter_numel(&table[i]); e++) {
            const bool in_file = e < table[i].file_rows * table[i].cols;
            const uint32_t number = in_file ? bits(dtype, i, e) : padding; // little-endian
            fwrite(&number, dtype_size(dtype), 1, f);
        }
    fclose(f);
    free(table);
}
