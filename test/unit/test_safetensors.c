// safetensors files: what is written is what is read, and no bytes at all make the reader do
// anything but say no.

#include "llmc/base/file.h"
#include "llmc/store/safetensors.h"
#include "test/fixture.h"
#include "test/unit/store_fixture.h"

#include <math.h>

TestFixture test_each = {setup, tmp_teardown};

static const float matrix[6] = {1.0f, -2.5f, 0.0f, 3.0e-5f, 65504.0f, -0.0f};
static const uint16_t bf16_vector[4] = {0x3F80, 0xC020, 0x7F80, 0x0001}; // 1, -2.5, inf, 2^-133
static const uint16_t fp16_vector[3] = {0x3C00, 0xC100, 0x0001};         // 1, -2.5, 2^-24
static const uint8_t codes[5] = {0, 127, 128, 200, 255};

// A (2, 3) fp32 matrix, a bf16, an fp16 and a u8 vector: 43 bytes.
static void write_example(const char *path) {
    static const char *const metadata[] = {"format", "pt", "optimizer", "adamw8bit", NULL};
    SafetensorsEntry entries[] = {
        {.name = "a.weight", .dtype = DTYPE_FP32, .rank = 2, .shape = {2, 3}},
        {.name = "b", .dtype = DTYPE_BF16, .rank = 1, .shape = {4}},
        {.name = "c", .dtype = DTYPE_FP16, .rank = 1, .shape = {3}},
        {.name = "codes", .dtype = DTYPE_U8, .rank = 1, .shape = {5}},
    };

    SafetensorsWriter *w = safetensors_writer_open(path, entries, 4, metadata, &err);
    assert_non_null(w);
    // Pieces need not end where tensors do.
    assert_true(safetensors_writer_append(w, matrix, 10, &err));
    assert_true(safetensors_writer_append(w, (const char *)matrix + 10, sizeof matrix - 10, &err));
    assert_true(safetensors_writer_append(w, bf16_vector, sizeof bf16_vector, &err));
    assert_true(safetensors_writer_append(w, fp16_vector, sizeof fp16_vector, &err));
    assert_true(safetensors_writer_append(w, codes, sizeof codes, &err));

    assert_true(safetensors_writer_commit(w, NULL, NULL, &err));
}

TEST(what_was_written_is_read) {
    const char *path = tmp_file("x");
    write_example(path);
    SafetensorsFile *f = safetensors_open(path, &err);
    assert_non_null(f);
    assert_int_equal(safetensors_count(f), 4);

    const SafetensorsEntry *a = safetensors_find(f, "a.weight"), *b = safetensors_find(f, "b");
    assert_null(safetensors_find(f, "d"));
    assert_int_equal(safetensors_entry(f, 0)->offset % 8, 0);
    assert_int_equal(a->rank, 2);
    assert_int_equal(a->shape[0], 2);
    assert_int_equal(a->shape[1], 3);
    assert_int_equal(b->dtype, DTYPE_BF16);

    float out[6];
    assert_true(safetensors_read_fp32(f, a, 0, 6, out, &err));
    assert_memory_equal(out, matrix, sizeof matrix);
    assert_true(safetensors_read_fp32(f, a, 4, 1, out, &err));
    assert_true(out[0] == 65504.0f);
    assert_true(safetensors_read_fp32(f, b, 1, 3, out, &err));
    assert_true(out[0] == -2.5f && isinf(out[1]) && out[2] == ldexpf(1.0f, -133));
    assert_true(safetensors_read_fp32(f, safetensors_find(f, "c"), 0, 3, out, &err));
    assert_true(out[0] == 1.0f && out[1] == -2.5f && out[2] == ldexpf(1.0f, -24));

    assert_string_equal(safetensors_metadata(f, "optimizer"), "adamw8bit");
    assert_null(safetensors_metadata(f, "other"));

    // Bytes come back as they are, inf and a denormal too.
    uint8_t bytes[8];
    const SafetensorsEntry *e = safetensors_find(f, "codes");
    assert_int_equal(e->dtype, DTYPE_U8);
    assert_true(safetensors_read_bytes(f, e, 0, 5, bytes, &err));
    assert_memory_equal(bytes, codes, 5);
    assert_true(safetensors_read_bytes(f, e, 3, 2, bytes, &err));
    assert_memory_equal(bytes, codes + 3, 2);
    assert_true(safetensors_read_bytes(f, b, 0, 8, bytes, &err));
    assert_memory_equal(bytes, bf16_vector, 8);

    assert_error(safetensors_read_fp32(f, e, 0, 5, out, &err),
                 "tensor codes is U8, only F32, F16 and BF16 are read");
    safetensors_close(f);
}

// A file with this header and n zero bytes of data.
static const char *write_header(const char *header, size_t n) {
    const char *path = tmp_file("x");
    uint64_t length = strlen(header);
    AUTO_FREE char *bytes = calloc(1, 8 + length + n + 1);
    memcpy(bytes, &length, 8);
    memcpy(bytes + 8, header, length + 1);
    write_bytes(path, bytes, 8 + length + n);
    return path;
}

#define REFUSED(header, data_bytes, message)                                                       \
    assert_error(safetensors_open(write_header(header, data_bytes), &err), message)

TEST(a_header_longer_than_the_file_is_refused) {
    const char *path = tmp_file("x");
    for (int bit = 5; bit < 64; bit++) {
        uint64_t words[2] = {(uint64_t)1 << bit, 0};
        write_bytes(path, words, sizeof words);
        assert_error(safetensors_open(path, &err), "state a header of");
    }

    write_bytes(path, "\x10\0\0\0", 4);
    assert_error(safetensors_open(path, &err), "too short");

    const uint64_t length = 20 << 20; // no more than the file has, but more than any header
    write_bytes(path, &length, sizeof length);
    assert_int_equal(truncate(path, 40 << 20), 0);
    assert_error(safetensors_open(path, &err),
                 "state a header of 20971520 bytes, expected at most 16777216");

    assert_error(safetensors_open(tmp.path, &err), "not a plain file but a directory");
}

TEST(headers_that_are_not_one_object_are_refused) {
    REFUSED("", 0, "not valid JSON");
    REFUSED("[]", 0, "not an object");
    REFUSED("{\"a\":", 0, "not valid JSON");
    REFUSED("{} x", 0, "bytes after the JSON value");
    char deep[4001];
    memset(deep, '[', 4000), deep[4000] = '\0';
    REFUSED(deep, 0, "not valid JSON");
}

TEST(offsets_that_leave_gaps_or_overlap_are_refused) {
#define ONE(name, offsets)                                                                         \
    "\"" name "\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":" offsets "}"
    REFUSED("{" ONE("a", "[0,8]") "," ONE("b", "[4,12]") "}", 12, "begins at 4, expected 8");
    REFUSED("{" ONE("a", "[0,8]") "," ONE("b", "[12,20]") "}", 20, "begins at 12, expected 8");
    REFUSED("{" ONE("a", "[4,12]") "}", 12, "begins at 4, expected 0");
    REFUSED("{" ONE("a", "[0,8]") "}", 12, "12 bytes of data, expected 8");
    REFUSED("{" ONE("a", "[0,8]") "}", 4, "are outside the 4 bytes");
    REFUSED("{" ONE("a", "[8,0]") "}", 8, "are outside the");
    REFUSED("{" ONE("a", "[-8,0]") "}", 8, "are outside the");
    REFUSED("{" ONE("a", "[0,4]") "}", 4, "span 4 bytes, expected 8");
    REFUSED("{" ONE("a", "[0,8,8]") "}", 8, "3 entries, expected 2");
    REFUSED("{" ONE("a", "[0,8]") "," ONE("a", "[8,16]") "}", 16, "described twice");
}

TEST(data_in_another_order_than_the_header_is_read) {
    SafetensorsFile *f =
        safetensors_open(write_header("{" ONE("b", "[8,16]") "," ONE("a", "[0,8]") "}", 16), &err);
    assert_ok(f);
    assert_string_equal(safetensors_entry(f, 0)->name, "a");
    safetensors_close(f);

    // Empty tensors come before the one that begins at the same byte.
    f = safetensors_open(
        write_header("{" ONE("b", "[0,8]") ",\"e\":{\"dtype\":\"F32\",\"shape\":[0],"
                                           "\"data_offsets\":[0,0]},"
                                           "\"d\":{\"dtype\":\"F32\",\"shape\":[0],"
                                           "\"data_offsets\":[0,0]}}",
                     8),
        &err);
    assert_ok(f);
    assert_string_equal(safetensors_entry(f, 2)->name, "b");
    safetensors_close(f);
}

TEST(shapes_and_types_out_of_range_are_refused) {
#define SHAPED(shape, rest)                                                                        \
    "{\"a\":{\"dtype\":\"F32\",\"shape\":" shape rest ",\"data_offsets\":[0,0]}}"
    REFUSED(SHAPED("[4294967296,4294967296]", ""), 0, "overflows");
    REFUSED(SHAPED("[1073741824,4294967296]", ""), 0, "overflows");
    REFUSED(SHAPED("[-1]", ""), 0, "is -1, expected a whole number");
    REFUSED(SHAPED("[1.5]", ""), 0, "is 1.5, expected a whole number");
    REFUSED(SHAPED("[1,1,1,1,1]", ""), 0, "more than 4 dimensions");
    REFUSED(SHAPED("7", ""), 0, "not an array");
    REFUSED(SHAPED("[0]", ",\"shape\":[0]"), 0, "stated twice");

    REFUSED("{\"a\":{\"dtype\":\"F31\",\"shape\":[0],\"data_offsets\":[0,0]}}", 0,
            "dtype \"F31\" is unknown");
    REFUSED("{\"a\":{\"dtype\":7,\"shape\":[0],\"data_offsets\":[0,0]}}", 0,
            "\"dtype\" is 7, expected a string");
    REFUSED("{\"a\":7}", 0, "not an object");
    REFUSED("{\"a\\u001b[2J\":{}}", 0, "control characters");

    char name[400], long_one[] = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef";
    snprintf(name, sizeof name,
             "{\"%s%s\":{\"dtype\":\"F32\",\"shape\":[0],\"data_offsets\":[0,0]}}", long_one,
             long_one);
    REFUSED(name, 0, "has 128 bytes, expected less than 128");
}

TEST(other_dtypes_are_listed_but_not_read) {
    const char *header = "{\"__metadata__\":{\"format\":\"pt\"},"
                         "\"mask\":{\"dtype\":\"BOOL\",\"shape\":[1,1,2,2],\"data_offsets\":[0,4]},"
                         "\"scalar\":{\"dtype\":\"F32\",\"shape\":[],\"data_offsets\":[4,8]}}";
    SafetensorsFile *f = safetensors_open(write_header(header, 8), &err);
    assert_non_null(f);
    float out[4];
    assert_int_equal(safetensors_find(f, "mask")->dtype, DTYPE_COUNT);
    assert_error(safetensors_read_fp32(f, safetensors_find(f, "mask"), 0, 4, out, &err),
                 "tensor mask is BOOL, only F32, F16 and BF16 are read");
    assert_true(safetensors_read_fp32(f, safetensors_find(f, "scalar"), 0, 1, out, &err));
    safetensors_close(f);
}

// The metadata may be anything: only a text in an object is a value.
TEST(metadata_of_any_form_is_survived) {
    static const char *const headers[] = {
        "{}", "{\"__metadata__\":7}", "{\"__metadata__\":[1,\"optimizer\"]}",
        "{\"__metadata__\":{\"optimizer\":7}}",
        "{\"__metadata__\":{\"optimizer\":\"a\",\"optimizer\":\"b\"}}"};
    for (int i = 0; i < 5; i++) {
        SafetensorsFile *f = safetensors_open(write_header(headers[i], 0), &err);
        assert_non_null(f);
        assert_null(safetensors_metadata(f, "optimizer"));
        safetensors_close(f);
    }
}

TEST(a_file_that_shrinks_after_opening_gives_a_message) {
    const char *path = tmp_file("x");
    write_example(path);
    SafetensorsFile *f = safetensors_open(path, &err);
    const SafetensorsEntry *a = safetensors_find(f, "a.weight");
    assert_int_equal(truncate(path, (off_t)a->offset + 8), 0);
    float out[6];
    assert_error(safetensors_read_fp32(f, a, 0, 6, out, &err), "the file ends at byte");
    safetensors_close(f);
}
