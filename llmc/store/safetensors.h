// safetensors files: 8-byte little-endian header length, JSON header (dtype, shape, data_offsets,
// "__metadata__"), raw data. Format: https://github.com/huggingface/safetensors. The reader treats
// the file as hostile: it checks header length against file size, JSON depth and types, shapes with
// checked multiplication, and offsets, which must be inside the data, in order, without overlap.
#pragma once
#include "llmc/base/error.h"
#include "llmc/tensor.h"

typedef struct {
    char name[128];
    // the dtype as spelled in the file: "F32", "I8", ...; static. Ignored by the writer
    const char *stored;
    DType dtype; // F32, F16, BF16, U8; other types are listed with dtype DTYPE_COUNT
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
// NULL: absent
const SafetensorsEntry *safetensors_find(const SafetensorsFile *f, const char *name);
// A value of the file's "__metadata__", which belongs to the file; NULL if there is no text of this
// name.
const char *safetensors_metadata(const SafetensorsFile *f, const char *key);
// Elements [first, first + n) of an entry, converted to fp32. Types other than F32, F16 and BF16
// are refused.
bool safetensors_read_fp32(SafetensorsFile *f, const SafetensorsEntry *e, int64_t first, int64_t n,
                           float *out, Error *err);
// Bytes [first, first + n) of an entry, unchanged.
bool safetensors_read_bytes(SafetensorsFile *f, const SafetensorsEntry *e, int64_t first, int64_t n,
                            void *out, Error *err);

#define SAFETENSORS_PRODUCER "producer", "pretrain.cu" // in the metadata of the files that we write
#define SAFETENSORS_MARK     "\"producer\":\"pretrain.cu\""

// Writing: declare everything, then append the data in the same order, in pieces of any size.
typedef struct SafetensorsWriter SafetensorsWriter;
// Uses names, dtypes, ranks and shapes of the entries, and fills in offset and bytes. metadata:
// pairs key, value, NULL-terminated; may be NULL.
SafetensorsWriter *safetensors_writer_open(const char *path, SafetensorsEntry *entries, int count,
                                           const char *const *metadata, Error *err);
bool safetensors_writer_append(SafetensorsWriter *w, const void *data, size_t bytes, Error *err);
// Checks that all declared bytes were appended; commits as atomic_file_commit does. Frees w in any
// case.
bool safetensors_writer_commit(SafetensorsWriter *w, int64_t *bytes, uint64_t *checksum,
                               Error *err);
void safetensors_writer_abandon(SafetensorsWriter *w);
