// safetensors: 8-byte little-endian header length, JSON header (dtype, shape, data_offsets, "__metadata__"), raw data.
// Format: https://github.com/huggingface/safetensors. The reader treats the file as hostile: header length against file
// size, JSON depth and types, shapes with checked multiplication, offsets inside the data, in order, without overlap.
#pragma once
#include "llmc/base/error.h"
#include "llmc/tensor.h"

typedef struct {
    char name[128];
    const char *stored; // the dtype as the file spells it: "F32", "I8", ...; static. Ignored by the writer
    DType dtype;        // F32, F16, BF16, U8; others are listed, with dtype DTYPE_COUNT
    int rank;
    int64_t shape[TENSOR_MAX_RANK];
    int64_t offset; // from the start of the file
    int64_t bytes;
} SafetensorsEntry;

typedef struct SafetensorsFile SafetensorsFile;
SafetensorsFile *safetensors_open(const char *path, Error *err);
void safetensors_close(SafetensorsFile *f);
int safetensors_count(const SafetensorsFile *f);
const SafetensorsEntry *safetensors_entry(const SafetensorsFile *f, int i);
const SafetensorsEntry *safetensors_find(const SafetensorsFile *f, const char *name); // NULL: not there
// A value of the file's "__metadata__", which belongs to the file; NULL: it has none of this name that is a text.
const char *safetensors_metadata(const SafetensorsFile *f, const char *key);
// Elements [first, first + n) of an entry, converted to fp32. F32, F16 and BF16; others are refused.
bool safetensors_read_fp32(SafetensorsFile *f, const SafetensorsEntry *e, int64_t first, int64_t n, float *out,
                           Error *err);
// Bytes [first, first + n) of an entry, as they stand there.
bool safetensors_read_bytes(SafetensorsFile *f, const SafetensorsEntry *e, int64_t first, int64_t n, void *out,
                            Error *err);

// Writing: declare everything, then append the data in the same order, in pieces of any size.
typedef struct SafetensorsWriter SafetensorsWriter;
// names, dtypes, ranks and shapes of entries are used (offset and bytes are filled in). metadata: pairs key, value,
// NULL-terminated; may be NULL.
SafetensorsWriter *safetensors_writer_open(const char *path, SafetensorsEntry *entries, int count,
                                           const char *const *metadata, Error *err);
bool safetensors_writer_append(SafetensorsWriter *w, const void *data, size_t bytes, Error *err);
// Checks that all declared bytes came; commits as atomic_file_commit does. Frees w in any case.
bool safetensors_writer_commit(SafetensorsWriter *w, int64_t *bytes, uint64_t *checksum, Error *err);
void safetensors_writer_abandon(SafetensorsWriter *w);
