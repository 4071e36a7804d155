// safetensors files, see safetensors.h. Data is read with pread, never mapped: a file that shrinks
// while it is read gives a message, not a SIGBUS.
#include "llmc/store/safetensors.h"

#include "llmc/base/arithmetic.h"
#include "llmc/base/atomic_file.h"
#include "llmc/base/file.h"
#include "llmc/base/foreign_file.h"
#include "llmc/base/format.h"
#include "llmc/base/json.h"
#include "llmc/comm/watch.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#if __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "safetensors files are little-endian, and are read and written here as they are in memory"
#endif

enum {
    PREFIX_BYTES = 8,
    // The format allows 100 MB; a parsed header takes up to 40 times its bytes, and GPT-2 XL's is
    // 60 KB.
    MAX_HEADER_BYTES = 16 << 20,
    CONVERT_ELEMENTS = 1 << 14, // elements converted at a time: 32 KB of the stack
};

struct SafetensorsFile {
    char *path;
    int fd;
    SafetensorsEntry *entries; // in the order of their data
    const SafetensorsEntry **by_name;
    int count;
    cJSON *metadata; // NULL: none
};

// The element types of the format. For types that no reader of ours needs, only the size is known.
static const struct {
    const char *name;
    int64_t size;
    DType dtype;
} file_dtypes[] = {
    {"F32", 4, DTYPE_FP32},   {"F16", 2, DTYPE_FP16},      {"BF16", 2, DTYPE_BF16},
    {"F64", 8, DTYPE_COUNT},  {"I64", 8, DTYPE_COUNT},     {"U64", 8, DTYPE_COUNT},
    {"I32", 4, DTYPE_COUNT},  {"U32", 4, DTYPE_COUNT},     {"I16", 2, DTYPE_COUNT},
    {"U16", 2, DTYPE_COUNT},  {"I8", 1, DTYPE_COUNT},      {"U8", 1, DTYPE_U8},
    {"BOOL", 1, DTYPE_COUNT}, {"F8_E4M3", 1, DTYPE_COUNT}, {"F8_E5M2", 1, DTYPE_COUNT},
};
enum { NUM_FILE_DTYPES = sizeof file_dtypes / sizeof file_dtypes[0] };

// ----------------------------------------------------------------------------------------- reading

// Sets dtype, rank and shape, *size to the bytes of an element, and *numel to the number of
// elements.
static bool parse_type(const cJSON *item, SafetensorsEntry *e, int64_t *size, int64_t *numel,
                       Error *err) {
    const cJSON *shape;
    const char *name;
    char found[64];

    if (!json_get_string(item, "dtype", &name, err)) return false;
    int type = 0;
    while (type < NUM_FILE_DTYPES && strcmp(name, file_dtypes[type].name) != 0) type++;
    if (type == NUM_FILE_DTYPES)
        return error_set(
            err, "its dtype %s is unknown (F32, F16 and BF16 are read)",
            json_describe(cJSON_GetObjectItemCaseSensitive(item, "dtype"), found, sizeof found));

    e->dtype = file_dtypes[type].dtype;
    e->stored = file_dtypes[type].name;
    *size = file_dtypes[type].size;

    if (!json_find(item, "shape", &shape, err)) return false;
    if (!cJSON_IsArray(shape)) return error_set(err, "its \"shape\" is missing or not an array");
    *numel = 1;

    for (const cJSON *d = shape->child; d; d = d->next) {
        if (e->rank == TENSOR_MAX_RANK)
            return error_set(err, "it has more than %d dimensions: not a tensor of a GPT-2",
                             TENSOR_MAX_RANK);
        if (!json_int_value(d, 0, JSON_MAX_INT, &e->shape[e->rank]))
            return error_set(err, "a dimension is %s, expected a whole number",
                             json_describe(d, found, sizeof found));
        if (!checked_mul(*numel, e->shape[e->rank++], numel))
            return error_set(err, "the product of its dimensions overflows");
    }

    return true;
}

// One member of the header. Offsets are still relative to the data here; data_bytes is the size of
// the data in the file.
static bool parse_tensor_entry(const cJSON *item, SafetensorsEntry *e, int64_t data_bytes,
                               Error *err) {
    const char *name = item->string;
    for (const char *p = name; *p; p++)
        if ((unsigned char)*p < 0x20 || *p == 0x7f)
            return error_set(err, "a tensor name has control characters");
    if (strlen(name) >= sizeof e->name)
        return error_set(err, "the tensor name %.32s... has %zu bytes, expected less than %zu",
                         name, strlen(name), sizeof e->name);
    snprintf(e->name, sizeof e->name, "%s", name);

    const cJSON *offsets;
    int64_t numel = 0, size = 0, end = 0;
    bool ok = cJSON_IsObject(item) || error_set(err, "its description is not an object");
    if (ok) ok = parse_type(item, e, &size, &numel, err);
    if (ok) ok = json_get_array(item, "data_offsets", 2, &offsets, err);
    if (ok && !checked_mul(numel, size, &e->bytes)) ok = error_set(err, "its size overflows");
    if (ok && !(json_int_value(offsets->child, 0, data_bytes, &e->offset) &&
                json_int_value(offsets->child->next, e->offset, data_bytes, &end)))
        ok = error_set(err, "its \"data_offsets\" are outside the %lld bytes of data in the file",
                       (long long)data_bytes);
    if (ok && end - e->offset != e->bytes)
        ok = error_set(err, "its \"data_offsets\" span %lld bytes, expected %lld for its shape",
                       (long long)(end - e->offset), (long long)e->bytes);

    if (!ok) return error_prefix(err, "tensor %s", e->name);
    return true;
}

static int compare_offset(const void *a, const void *b) {
    const SafetensorsEntry *x = a, *y = b;
    if (x->offset != y->offset) return (x->offset > y->offset) - (x->offset < y->offset);
    return (x->bytes > y->bytes) - (x->bytes < y->bytes); // empty tensors first
}

static int compare_name(const void *a, const void *b) {
    return strcmp((*(const SafetensorsEntry *const *)a)->name,
                  (*(const SafetensorsEntry *const *)b)->name);
}

static int compare_key(const void *key, const void *b) {
    return strcmp(key, (*(const SafetensorsEntry *const *)b)->name);
}

static bool parse_entries(SafetensorsFile *f, const cJSON *root, int64_t data_start,
                          int64_t data_bytes, Error *err) {

    size_t members = 0;
    for (const cJSON *item = root->child; item; item = item->next) members++;
    f->entries =
        calloc(members + 1,
               sizeof *f->entries); // + 1: an empty file must not look like a failed allocation
    f->by_name = calloc(members + 1, sizeof(SafetensorsEntry *));
    if (!f->entries || !f->by_name) return error_set(err, "no memory for its %zu tensors", members);

    for (const cJSON *item = root->child; item; item = item->next) {
        if (strcmp(item->string, "__metadata__") == 0) continue;
        if (!parse_tensor_entry(item, &f->entries[f->count], data_bytes, err)) return false;
        f->count++;
    }

    // Every byte of the data belongs to exactly one tensor: no gap, no overlap, nothing after the
    // last.
    qsort(f->entries, (size_t)f->count, sizeof *f->entries, compare_offset);
    int64_t end = 0;
    for (int i = 0; i < f->count; i++) {
        if (f->entries[i].offset != end)
            return error_set(
                err,
                "the data of tensor %s begins at %lld, expected %lld, the end of the tensor before",
                f->entries[i].name, (long long)f->entries[i].offset, (long long)end);
        end += f->entries[i].bytes;
    }

    if (end != data_bytes)
        return error_set(err, "the file has %lld bytes of data, expected %lld",
                         (long long)data_bytes, (long long)end);

    for (int i = 0; i < f->count; i++) f->by_name[i] = &f->entries[i];
    qsort(f->by_name, (size_t)f->count, sizeof(SafetensorsEntry *), compare_name);
    for (int i = 1; i < f->count; i++)
        if (strcmp(f->by_name[i - 1]->name, f->by_name[i]->name) == 0)
            return error_set(err, "tensor %s is described twice", f->by_name[i]->name);

    for (int i = 0; i < f->count; i++) f->entries[i].offset += data_start;
    return true;
}

static bool read_safetensors_header(SafetensorsFile *f, int64_t size, Error *err) {
    uint64_t length = 0;
    if (size < PREFIX_BYTES)
        return foreign_file_check_open("safetensors", f->path, f->fd, false, err) &&
               error_set(err, "%s: %lld bytes, too short for a safetensors file", f->path,
                         (long long)size);

    char brace = '{'; // where the header begins, unless there is none
    if (!file_read_at(f->fd, f->path, 0, &length, sizeof length, err) ||
        (size > PREFIX_BYTES && !file_read_at(f->fd, f->path, PREFIX_BYTES, &brace, 1, err)) ||
        (brace != '{' && !foreign_file_check_open("safetensors", f->path, f->fd, false, err)))
        return false;

    if (length > MAX_HEADER_BYTES || (int64_t)length > size - PREFIX_BYTES)
        return error_set(err,
                         "%s: its first 8 bytes state a header of %llu bytes, expected at most "
                         "%lld: not safetensors",
                         f->path, (unsigned long long)length,
                         (long long)min_i64(size - PREFIX_BYTES, MAX_HEADER_BYTES));

    char *text = malloc(length + 1);
    if (!text) return error_set(err, "%s: no memory for its header", f->path);
    bool ok = file_read_at(f->fd, f->path, PREFIX_BYTES, text, length, err);
    cJSON *root = ok ? json_parse(text, length, err) : NULL;
    free(text);

    int64_t data_start = PREFIX_BYTES + (int64_t)length;
    if (ok) {
        ok = root != NULL;
        if (ok) ok = parse_entries(f, root, data_start, size - data_start, err);
        if (!ok) error_prefix(err, "%s", f->path);
    }
    if (ok) f->metadata = cJSON_DetachItemFromObjectCaseSensitive(root, "__metadata__");

    cJSON_Delete(root);
    return ok;
}

SafetensorsFile *safetensors_open(const char *path, Error *err) {
    SafetensorsFile *f = calloc(1, sizeof *f);
    REQUIRE_MEMORY(f && (f->path = strdup(path)), "a safetensors file");
    int64_t size;
    f->fd = file_open(path, &size, err);
    if (f->fd >= 0 && read_safetensors_header(f, size, err)) return f;
    safetensors_close(f);
    return NULL;
}

void safetensors_close(SafetensorsFile *f) {
    if (!f) return;
    if (f->fd >= 0) close(f->fd);
    cJSON_Delete(f->metadata);
    free(f->entries);
    free(f->by_name);
    free(f->path);
    free(f);
}

int safetensors_count(const SafetensorsFile *f) { return f->count; }

const SafetensorsEntry *safetensors_entry(const SafetensorsFile *f, int i) {
    REQUIRE(i >= 0 && i < f->count, "safetensors entry %d of %d", i, f->count);
    return &f->entries[i];
}

const SafetensorsEntry *safetensors_find(const SafetensorsFile *f, const char *name) {
    const SafetensorsEntry **found =
        bsearch(name, f->by_name, (size_t)f->count, sizeof(SafetensorsEntry *), compare_key);
    if (found) return *found;
    return NULL;
}

const char *safetensors_metadata(const SafetensorsFile *f, const char *key) {
    const char *value;
    if (cJSON_IsObject(f->metadata) && json_get_string(f->metadata, key, &value, NULL))
        return value;
    return NULL;
}

bool safetensors_read_fp32(SafetensorsFile *f, const SafetensorsEntry *e, int64_t first, int64_t n,
                           float *out, Error *err) {
    if (e->dtype != DTYPE_FP32 && e->dtype != DTYPE_FP16 && e->dtype != DTYPE_BF16)
        return error_set(err, "%s: tensor %s is %s, only F32, F16 and BF16 are read", f->path,
                         e->name, e->stored);

    int64_t size = (int64_t)dtype_size(e->dtype);
    REQUIRE(first >= 0 && n >= 0 && n <= e->bytes / size && first <= e->bytes / size - n,
            "elements [%lld, %lld) of tensor %s, which has %lld", (long long)first,
            (long long)(first + n), e->name, (long long)(e->bytes / size));
    int64_t offset = e->offset + first * size;
    if (e->dtype == DTYPE_FP32)
        return file_read_at(f->fd, f->path, offset, out, (size_t)(n * size), err);

    uint16_t raw[CONVERT_ELEMENTS];
    for (int64_t i = 0; i < n; i += CONVERT_ELEMENTS) {
        int64_t m = min_i64(n - i, CONVERT_ELEMENTS);
        if (!file_read_at(f->fd, f->path, offset + i * size, raw, (size_t)(m * size), err))
            return false;
        convert_elements(out + i, DTYPE_FP32, raw, e->dtype, m);
    }
    return true;
}

bool safetensors_read_bytes(SafetensorsFile *f, const SafetensorsEntry *e, int64_t first, int64_t n,
                            void *out, Error *err) {
    REQUIRE(first >= 0 && n >= 0 && n <= e->bytes && first <= e->bytes - n,
            "bytes [%lld, %lld) of tensor %s, which has %lld", (long long)first,
            (long long)(first + n), e->name, (long long)e->bytes);
    return file_read_at(f->fd, f->path, e->offset + first, out, (size_t)n, err);
}

// ----------------------------------------------------------------------------------------- writing

struct SafetensorsWriter {
    AtomicFile *file;
    int64_t declared, appended; // bytes of data
};

// Sets the sizes and offsets of the entries, still relative to the data. Returns the header text,
// malloced, padded with spaces so that the data starts at a multiple of 8. Names and metadata are
// ours: no character needs an escape.
static char *make_header(SafetensorsEntry *entries, int count, const char *const *metadata,
                         uint64_t *length) {
    char *text = NULL;
    size_t size = 0;

    FILE *out = text_open(&text, &size);
    const char *comma = "";
    fputc('{', out);
    if (metadata) {
        fputs("\"__metadata__\":{", out);
        for (; *metadata; metadata += 2) {
            fprintf(out, "%s\"%s\":\"%s\"", comma, metadata[0], metadata[1]);
            comma = ",";
        }
        fputc('}', out);
        comma = ",";
    }

    long long offset = 0;
    for (int i = 0; i < count; i++) {
        SafetensorsEntry *e = &entries[i];
        e->offset = offset;
        e->bytes = (int64_t)dtype_size(e->dtype);

        int type = 0;
        while (type < NUM_FILE_DTYPES && file_dtypes[type].dtype != e->dtype) type++;
        REQUIRE(type < NUM_FILE_DTYPES,
                "our safetensors files hold fp32, fp16, bf16 and u8, not %s", dtype_name(e->dtype));
        fprintf(out, "%s\"%s\":{\"dtype\":\"%s\",\"shape\":[", comma, e->name,
                file_dtypes[type].name);

        for (int d = 0; d < e->rank; d++) {
            fprintf(out, "%s%lld", d > 0 ? "," : "", (long long)e->shape[d]);
            e->bytes *= e->shape[d];
        }
        fprintf(out, "],\"data_offsets\":[%lld,%lld]}", offset, offset + e->bytes);
        offset += e->bytes;
        comma = ",";
    }

    fputc('}', out);
    fflush(out); // updates size
    for (size_t n = size; n % 8 != 0; n++) fputc(' ', out);
    fclose(out);
    *length = size;
    return text;
}

SafetensorsWriter *safetensors_writer_open(const char *path, SafetensorsEntry *entries, int count,
                                           const char *const *metadata, Error *err) {
    AtomicFile *file = atomic_file_create(path, err);
    if (!file) return NULL;
    SafetensorsWriter *w = calloc(1, sizeof *w);
    REQUIRE_MEMORY(w, "a safetensors file");
    w->file = file;

    uint64_t length;
    char *header = make_header(entries, count, metadata, &length);
    for (int i = 0; i < count; i++) {
        w->declared += entries[i].bytes;
        entries[i].offset += PREFIX_BYTES + (int64_t)length;
    }

    bool ok = atomic_file_write(file, &length, sizeof length, err) &&
              atomic_file_write(file, header, length, err);
    free(header);
    if (ok) return w;
    safetensors_writer_abandon(w);
    return NULL;
}

bool safetensors_writer_append(SafetensorsWriter *w, const void *data, size_t bytes, Error *err) {
    watch_progress(); // the other processes wait while process 0 writes
    w->appended += (int64_t)bytes;
    return atomic_file_write(w->file, data, bytes, err);
}

bool safetensors_writer_commit(SafetensorsWriter *w, int64_t *bytes, uint64_t *checksum,
                               Error *err) {
    REQUIRE(w->appended == w->declared, "%lld bytes of data written, %lld declared",
            (long long)w->appended, (long long)w->declared);
    const bool ok = atomic_file_commit(w->file, bytes, checksum, err);
    free(w);
    return ok;
}

void safetensors_writer_abandon(SafetensorsWriter *w) {
    if (!w) return;
    atomic_file_abandon(w->file);
    free(w);
}
