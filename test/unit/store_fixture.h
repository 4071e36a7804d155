// The tests of llmc/store share an empty directory and a cleared error for each test, and looks at
// what a call left. A test program includes this once.
#pragma once
#include "llmc/base/error.h"
#include "llmc/model/parameters.h"
#include "test/fixture.h"

#include <xxhash.h>

static Error err;

static inline int setup(void **state) {
    err.text[0] = '\0';
    return tmp_setup(state);
}

// Ends a trainer.json, of which something was changed, with the right checksum: the change is then
// read.
static inline void seal_again(const char *path) {
    enum { SEAL = 33 };
    static const char begin[] = ",\n  \"xxh3\": \"";
    size_t n;
    char *text = (char *)read_bytes(path, &n), seal[SEAL + 1];

    if (n > SEAL && memcmp(text + n - SEAL, begin, sizeof begin - 1) == 0) {
        n -= SEAL;
    } else { // an object as cJSON prints it
        while (n > 0 && text[n - 1] == '\n') n--;
        if (n > 0 && text[n - 1] == '}') n--;
        while (n > 0 && text[n - 1] == '\n') n--;
    }

    snprintf(seal, sizeof seal, "%s%016llx\"\n}\n", begin,
             (unsigned long long)XXH3_64bits(text, n));

    char *sealed = malloc(n + SEAL);
    memcpy(sealed, text, n);
    memcpy(sealed + n, seal, SEAL);
    write_bytes(path, sealed, n + SEAL);

    free(sealed);
    free(text);
}

// An llm.c model by the description of its format, without our writer: the numbers' bits, by tensor
// and element; padding in the rows beyond the vocabulary.
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

// Field n of a JSON object, counted through all objects in it except those named skip; NULL: there
// are fewer.
static inline cJSON *nth_field(cJSON *object, int *n, const char *skip, cJSON **parent) {
    for (cJSON *item = object->child, *found; item; item = item->next) {
        *parent = object;
        if ((*n)-- == 0) return item;
        if (cJSON_IsObject(item) && strcmp(item->string, skip) != 0 &&
            (found = nth_field(item, n, skip, parent)))
            return found;
    }
    return NULL;
}

typedef enum { FIELD_TWICE, FIELD_ARRAY, FIELD_MISSING, FIELD_CHANGES } FieldChange;

// Writes the JSON file with each of its fields stated twice, as an array of nothing and left out,
// calls check after each, and restores the file.
static inline void change_every_field(const char *file, const char *skip,
                                      void (*check)(FieldChange, const char *)) {
    // file may be in a buffer of tmp_file
    AUTO_FREE char *path = strdup(file), *text = read_text(path);
    for (FieldChange change = 0; change < FIELD_CHANGES; change++)
        for (int n = 0, at = 0;; at = ++n) {
            cJSON *root = cJSON_Parse(text), *parent = NULL,
                  *item = nth_field(root, &at, skip, &parent);
            char name[80] = "";
            if (item) snprintf(name, sizeof name, "%s", item->string);
            if (item && change == FIELD_TWICE)
                cJSON_AddItemToObject(parent, name, cJSON_Duplicate(item, true));
            if (item && change == FIELD_ARRAY)
                cJSON_ReplaceItemInObjectCaseSensitive(parent, name, cJSON_CreateArray());
            if (item && change == FIELD_MISSING)
                cJSON_DeleteItemFromObjectCaseSensitive(parent, name);
            char *changed = cJSON_Print(root);
            cJSON_Delete(root);
            write_text(path, changed);
            cJSON_free(changed);
            if (!item) break;
            check(change, name);
        }
    write_text(path, text);
}
