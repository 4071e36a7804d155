// See tensorboard.h.
// From the inside out: a Summary holds Values (tag and number, or tag and text), an Event a Summary
// with its step and time, a TFRecord an Event between its length and checksums. Messages are built
// as bytes, with the few field numbers of event.proto and summary.proto that are used here; nothing
// is ever read back.
#include "llmc/log/tensorboard.h"

#include "llmc/base/append_file.h"
#include "llmc/base/arithmetic.h"
#include "llmc/base/directory.h"
#include "llmc/base/format.h"
#include "llmc/base/path.h"

#include <ctype.h>
#include <errno.h>
#include <float.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

// A growing byte buffer.
typedef struct {
    uint8_t *data;
    size_t size, capacity;
} Bytes;

struct TensorBoard {
    AppendFile file;
    int64_t first_step, step;
    bool started; // the records that a file begins with are written
    Bytes value, summary, event, record;
    uint32_t crc_table[256];
};

// -------------------------------------------------------------------------------- protocol buffers

enum { VARINT = 0, FIXED64 = 1, BYTES = 2, FIXED32 = 5 }; // how the value of a field is written

static void put_bytes(Bytes *b, const void *data, size_t n) {
    if (b->size + n > b->capacity) {
        b->capacity = 2 * (b->size + n);
        b->data = realloc(b->data, b->capacity);
        REQUIRE_MEMORY(b->data, "a record for TensorBoard");
    }
    if (n > 0) memcpy(b->data + b->size, data, n);
    b->size += n;
}

static void put_varint(Bytes *b, uint64_t x) { // seven bits a byte, the lowest first
    for (; x >= 0x80; x >>= 7) put_bytes(b, &(uint8_t){(uint8_t)(x | 0x80)}, 1);
    put_bytes(b, &(uint8_t){(uint8_t)x}, 1);
}

static void put_int(Bytes *b, uint32_t field, int64_t x) {
    put_varint(b, field << 3 | VARINT);
    put_varint(b, (uint64_t)x);
}

static void put_string(Bytes *b, uint32_t field, const void *text, size_t n) {
    put_varint(b, field << 3 | BYTES);
    put_varint(b, n);
    put_bytes(b, text, n);
}

static void put_message(Bytes *b, uint32_t field, const Bytes *message) {
    put_string(b, field, message->data, message->size);
}

// A double or a float. Little-endian, as this machine is: the project's files have no other order.
static void put_fixed(Bytes *b, uint32_t field, const void *x, size_t n) {
    const uint32_t kind = n == sizeof(double) ? FIXED64 : FIXED32;
    put_varint(b, field << 3 | kind);
    put_bytes(b, x, n);
}

// ------------------------------------------------------------------------------ records and events

// Appends the bytes and their CRC, rotated and moved (TFRecord's "masked" CRC), because a checksum
// of data that hold checksums would be weak.
static void put_checked(TensorBoard *tb, const void *data, size_t n) {
    const uint8_t *bytes = data;
    uint32_t crc = ~0u;
    for (size_t i = 0; i < n; i++) crc = tb->crc_table[(crc ^ bytes[i]) & 0xFF] ^ crc >> 8;
    crc = ~crc;
    crc = (crc >> 15 | crc << 17) + 0xA282EAD8u;
    put_bytes(&tb->record, data, n);
    put_bytes(&tb->record, &crc, sizeof crc);
}

// Appends the event to the record: u64 length, u32 crc of it, the event, u32 crc of that.
static void frame_event(TensorBoard *tb) {
    const uint64_t length = tb->event.size;
    put_checked(tb, &length, sizeof length);
    put_checked(tb, tb->event.data, tb->event.size);
}

// message Event { double wall_time = 1; int64 step = 2; string file_version = 3;
//                 Summary summary = 5; SessionLog session_log = 7; }
// message SessionLog { SessionStatus status = 1; /* START = 1 */ }
static void begin_event(TensorBoard *tb, int64_t step) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    tb->event.size = 0;
    const double seconds = (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
    put_fixed(&tb->event, 1, &seconds, sizeof seconds);
    put_int(&tb->event, 2, step);
}

void tensorboard_begin(TensorBoard *tb, int64_t step) {
    if (!tb) return;
    tb->step = step;
    tb->summary.size = 0;
}

// message Summary { repeated Value value = 1; }   message Value { string tag = 1; float
// simple_value = 2; ... }
void tensorboard_scalar(TensorBoard *tb, const char *tag, double value) {
    if (!tb) return;
    float rounded = (float)fmax(-(double)FLT_MAX, fmin((double)FLT_MAX, value));
    if (isnan(value)) rounded = NAN;
    if (fabs(value) > (double)FLT_MAX) rounded = copysignf(INFINITY, rounded);
    tb->value.size = 0;
    put_string(&tb->value, 1, tag, strlen(tag));
    put_fixed(&tb->value, 2, &rounded, sizeof rounded);
    put_message(&tb->summary, 1, &tb->value);
}

// message Value { string tag = 1; TensorProto tensor = 8; SummaryMetadata metadata = 9; }
// message TensorProto { DataType dtype = 1; /* DT_STRING = 7 */ repeated bytes string_val = 8; },
// of rank 0 message SummaryMetadata { PluginData plugin_data = 1; DataClass data_class = 4; /*
// TENSOR = 2 */ } message PluginData { string plugin_name = 1; }
void tensorboard_text(TensorBoard *tb, const char *tag, const char *text, int64_t bytes) {
    static const uint8_t METADATA[] = {1 << 3 | BYTES,  6, 1 << 3 | BYTES, 4, 't', 'e', 'x', 't',
                                       4 << 3 | VARINT, 2};
    if (!tb) return;
    // The Text tab reads Markdown: lines indented by four blanks are shown unchanged.
    char *shown = NULL;
    size_t length = 0;
    FILE *f = text_open(&shown, &length);
    format_visible(f, text, (size_t)bytes, "    ");
    fclose(f);

    Bytes tensor = {0};
    put_int(&tensor, 1, 7);
    put_string(&tensor, 8, shown, length);
    free(shown);
    tb->value.size = 0;
    put_string(&tb->value, 1, tag, strlen(tag));
    put_message(&tb->value, 8, &tensor);
    put_string(&tb->value, 9, METADATA, sizeof METADATA);
    put_message(&tb->summary, 1, &tb->value);
    free(tensor.data);
}

bool tensorboard_end(TensorBoard *tb, Error *err) {
    static const char VERSION[] = "brain.Event:2";
    static const uint8_t START[] = {1 << 3 | VARINT, 1};
    if (!tb || tb->summary.size == 0) return true;
    tb->record.size = 0;
    if (!tb->started) { // a file begins with the version, and the step from which on earlier files
                        // are void
        begin_event(tb, 0);
        put_string(&tb->event, 3, VERSION, sizeof VERSION - 1);
        frame_event(tb);
        begin_event(tb, min_i64(tb->first_step, INT64_MAX - 1) + 1);
        put_string(&tb->event, 7, START, sizeof START);
        frame_event(tb);
    }

    begin_event(tb, tb->step);
    put_message(&tb->event, 5, &tb->summary);
    frame_event(tb);
    if (!append_file_write(&tb->file, tb->record.data, tb->record.size, err)) return false;
    tb->started = true;
    return true;
}

// ---------------------------------------------------------------------------------------- the file

static const char PREFIX[] = "events.out.tfevents.";
// Names sort as numbers while they have ten digits; one with more is not ours.
static const long LAST_SECONDS = 9999999998;

TensorBoard *tensorboard_open(const char *directory, int64_t first_step, Error *err) {
    TensorBoard *tb = calloc(1, sizeof *tb);
    REQUIRE_MEMORY(tb, "TensorBoard");
    tb->first_step = first_step;

    // CRC-32C (Castagnoli): the polynomial 0x1EDC6F41, bits reversed.
    for (uint32_t i = 0; i < 256; i++) {
        tb->crc_table[i] = i;
        for (int bit = 0; bit < 8; bit++)
            tb->crc_table[i] = tb->crc_table[i] >> 1 ^ (tb->crc_table[i] & 1) * 0x82F63B78u;
    }

    char host[65], name[160];
    if (gethostname(host, sizeof host) != 0 || !*host) snprintf(host, sizeof host, "localhost");
    host[sizeof host - 1] = '\0';
    for (char *p = host; *p; p++)
        if (!isalnum((unsigned char)*p) && *p != '-')
            *p = '_'; // dots separate the parts of the file's name

    long seconds = (long)time(NULL); // or after the newest event file of the directory
    char **names;
    int count;
    if (directory_list(directory, &names, &count, NULL)) { // opening a file there reports a failure
        for (int i = 0; i < count; i++) {
            if (strncmp(names[i], PREFIX, sizeof PREFIX - 1) != 0) continue;
            const long other = strtol(names[i] + sizeof PREFIX - 1, NULL, 10);
            if (other >= seconds && other <= LAST_SECONDS) seconds = other + 1;
        }
        directory_list_free(names, count);
    }

    snprintf(name, sizeof name, "%s%010ld.%s.%ld.0", PREFIX, seconds, host, (long)getpid());
    char *path = path_join(directory, name);
    const bool ok = append_file_open(&tb->file, path, true, err);
    free(path);

    if (ok) return tb;
    tensorboard_close(tb);
    return NULL;
}

void tensorboard_close(TensorBoard *tb) {
    if (!tb) return;
    append_file_close(&tb->file);
    free(tb->value.data);
    free(tb->summary.data);
    free(tb->event.data);
    free(tb->record.data);
    free(tb);
}
