// Plain, gzip and zstd files as bytes: whole, in many parts, cut at every byte, and with damage.

#include "llmc/base/random.h"
#include "llmc/text/byte_source.h"
#include "test/fixture.h"

#include <fcntl.h>
#include <math.h>
#include <sys/resource.h>
#include <zlib.h>
#include <zstd.h>

enum { TEXT_BYTES = 3000, PACKED_ROOM = 8192 };
static unsigned char text[TEXT_BYTES];

static int set_up(void **state) {
    tmp_setup(state);
    for (size_t i = 0; i < TEXT_BYTES; i++)
        text[i] = (unsigned char)("abcdefgh \n"[philox(1, 2, i).v[0] % 10]);
    return 0;
}

TestFixture test_each = {set_up, tmp_teardown};

static size_t pack_gzip(const unsigned char *from, size_t n, unsigned char *out) {
    z_stream z = {0};
    assert_int_equal(deflateInit2(&z, 6, Z_DEFLATED, 15 + 16, 8, Z_DEFAULT_STRATEGY), Z_OK);
    z.next_in = (unsigned char *)from, z.avail_in = (uInt)n, z.next_out = out,
    z.avail_out = PACKED_ROOM;
    assert_int_equal(deflate(&z, Z_FINISH), Z_STREAM_END);
    deflateEnd(&z);
    return PACKED_ROOM - z.avail_out;
}

// A frame with a checksum, so that every damage is seen.
static size_t pack_zstd(const unsigned char *from, size_t n, unsigned char *out) {
    ZSTD_CCtx *c = ZSTD_createCCtx();
    ZSTD_CCtx_setParameter(c, ZSTD_c_checksumFlag, 1);
    size_t packed = ZSTD_compress2(c, out, PACKED_ROOM, from, n);
    assert_false(ZSTD_isError(packed));
    ZSTD_freeCCtx(c);
    return packed;
}

// The text in so many members or frames, one of them empty; returns the packed size.
static size_t pack(Packing packing, int parts, unsigned char *out) {
    size_t done = 0, packed = 0;
    if (packing == PACKED_NOT) return memcpy(out, text, TEXT_BYTES), TEXT_BYTES;
    for (int i = 0; i < parts; i++) {
        size_t n = i + 1 < parts ? (TEXT_BYTES - done) / 2 * (i != 1) : TEXT_BYTES - done;
        packed += packing == PACKED_GZIP ? pack_gzip(text + done, n, out + packed)
                                         : pack_zstd(text + done, n, out + packed);
        done += n;
    }
    return packed;
}

static ByteSource *open_bytes(const void *bytes, size_t n, Packing packing) {
    write_bytes(tmp_file("file"), bytes, n);
    ByteSource *s = byte_source_open(open(tmp_file("file"), O_RDONLY), -1, packing);
    assert_non_null(s);
    return s;
}

// Reads to the end in pieces of `step`; returns the bytes read, which must be the text's; *failed:
// it ended in an error.
static int64_t read_through(ByteSource *s, int64_t step, bool *failed, Error *err) {
    unsigned char out[TEXT_BYTES + 64];
    int64_t got, done = 0;
    while ((got = byte_source_read(s, out, step, err)) > 0) {
        assert_true(done + got <= TEXT_BYTES);
        assert_memory_equal(out, text + done, (size_t)got);
        done += got;
    }
    *failed = got < 0;
    return done;
}

TEST(all_forms_give_the_same_bytes_in_pieces_of_any_size) {
    static const int64_t steps[] = {1, 7, 1000, TEXT_BYTES, TEXT_BYTES + 64};
    for (Packing packing = PACKED_NOT; packing <= PACKED_ZSTD; packing++) {
        for (int parts = 1; parts <= 4; parts++) {
            unsigned char packed[2 * PACKED_ROOM];
            const size_t n = pack(packing, parts, packed);

            for (size_t i = 0; i < sizeof steps / sizeof steps[0]; i++) {
                ByteSource *s = open_bytes(packed, n, packing);
                bool failed;
                Error err;
                assert_int_equal(read_through(s, steps[i], &failed, &err), TEXT_BYTES);
                assert_false(failed);
                assert_int_equal(byte_source_consumed(s), n);
                byte_source_close(s);
            }
        }
    }
}

TEST(a_file_cut_anywhere_is_damaged_behind_what_it_still_gives) {
    for (Packing packing = PACKED_GZIP; packing <= PACKED_ZSTD; packing++) {
        unsigned char packed[2 * PACKED_ROOM];
        size_t n = pack(packing, 1, packed);
        int64_t before = 0;

        for (size_t cut = 1; cut < n; cut++) {
            ByteSource *s = open_bytes(packed, cut, packing);
            bool failed;
            Error err;
            int64_t got = read_through(s, 100, &failed, &err);
            assert_true(failed && byte_source_is_damaged(s) && got >= before);
            assert_non_null(strstr(err.text, "damaged: truncated near byte"));
            assert_int_equal(byte_source_read(s, packed + n, 1, &err), -1); // and stays so
            byte_source_close(s);
            before = got;
        }
    }
}

TEST(a_file_without_bytes_is_empty_and_not_damaged) {
    for (Packing packing = PACKED_NOT; packing <= PACKED_ZSTD; packing++) {
        ByteSource *s = open_bytes("", 0, packing);
        bool failed;
        Error err;
        assert_int_equal(read_through(s, 10, &failed, &err), 0);
        assert_false(failed);
        byte_source_close(s);
    }
}

// Damage that the check sums see only at the end of a member lets other bytes pass before; it is
// seen, though.
TEST(flipped_bits_are_seen) {
    for (Packing packing = PACKED_GZIP; packing <= PACKED_ZSTD; packing++) {
        unsigned char packed[2 * PACKED_ROOM], out[4 * TEXT_BYTES];
        size_t n = pack(packing, 1, packed);

        // gzip does not check the time in its header
        const size_t first = packing == PACKED_GZIP ? 10 : 4;
        for (size_t at = first; at < n; at += 13) {
            packed[at] ^= 0x10;
            ByteSource *s = open_bytes(packed, n, packing);
            Error err;
            int64_t got, done = 0;
            while ((got = byte_source_read(s, out, sizeof out, &err)) > 0) done += got;
            // a field without meaning
            if (got == 0 && done == TEXT_BYTES) assert_memory_equal(out, text, TEXT_BYTES);
            if (got < 0) assert_true(byte_source_is_damaged(s));
            assert_true(got < 0 || done == TEXT_BYTES);
            byte_source_close(s);
            packed[at] ^= 0x10;
        }
    }
}

TEST(names_and_first_bytes_tell_the_packing) {
    assert_int_equal(packing_of_name("a/b.jsonl.gz"), PACKED_GZIP);
    assert_int_equal(packing_of_name("b.txt.ZST"), PACKED_ZSTD);
    assert_int_equal(packing_of_name("gz"), PACKED_NOT);
    unsigned char packed[PACKED_ROOM];
    for (Packing packing = PACKED_GZIP; packing <= PACKED_ZSTD; packing++)
        assert_int_equal(packing_of_bytes(packed, pack(packing, 1, packed)), packing);
    assert_int_equal(packing_of_bytes((const unsigned char *)"\x1f", 1), PACKED_NOT);
}

TEST(frames_of_zstd_before_1_0_are_damage) {
    unsigned char packed[PACKED_ROOM];
    const size_t n = pack(PACKED_ZSTD, 1, packed);
    for (packed[0] = 0x1E; packed[0] < 0x28; packed[0]++) {
        ByteSource *s = open_bytes(packed, n, PACKED_ZSTD);
        Error err;
        assert_int_equal(byte_source_read(s, text, TEXT_BYTES, &err), -1);
        assert_string_equal(err.text, "damaged: not zstd near byte 0 of the file");
        byte_source_close(s);
    }
}

TEST(a_second_descriptor_goes_on_where_the_first_ends) {
    write_bytes(tmp_file("head"), text, 1000);
    write_bytes(tmp_file("tail"), text + 1000, TEXT_BYTES - 1000);
    int tail = open(tmp_file("tail"), O_RDONLY);
    Error err;
    bool failed;
    ByteSource *s = byte_source_open(open(tmp_file("head"), O_RDONLY), tail, PACKED_NOT);
    assert_int_equal(read_through(s, 300, &failed, &err), TEXT_BYTES);
    byte_source_close(s);
    assert_int_equal(close(tail), 0); // it was the caller's
}

// A frame as `zstd --long` writes it for input of unknown length: its window is 2^log bytes, and it
// has one raw block.
static size_t pack_window(int log, unsigned char *out) {
    const unsigned char head[] = {
        0x28, 0xB5, 0x2F, 0xFD, 0, (unsigned char)((log - 10) << 3), 1, TEXT_BYTES >> 5 & 0xFF, 0};
    memcpy(out, head, sizeof head);
    out[6] |= (TEXT_BYTES & 31) << 3;
    memcpy(out + sizeof head, text, TEXT_BYTES);
    return sizeof head + TEXT_BYTES;
}

TEST(windows_of_zstd_up_to_2_GiB_are_read) {
    unsigned char packed[PACKED_ROOM];
    for (int log = 27; log <= 32; log++) {
        ByteSource *s = open_bytes(packed, pack_window(log, packed), PACKED_ZSTD);
        Error err;
        bool failed;
        assert_int_equal(read_through(s, 100, &failed, &err), log <= 31 ? TEXT_BYTES : 0);
        assert_true(failed == (log == 32) && byte_source_is_damaged(s) == failed);
        byte_source_close(s);
    }
}

TEST(a_window_without_memory_for_it_is_not_called_damage) {
#ifdef __SANITIZE_ADDRESS__
    skip(); // its memory is not to be limited
#endif

    unsigned char packed[PACKED_ROOM];
    ByteSource *s = open_bytes(packed, pack_window(31, packed), PACKED_ZSTD);
    struct rlimit before, limit;
    Error err;

    getrlimit(RLIMIT_AS, &before);
    limit = before, limit.rlim_cur = 1 << 30;
    setrlimit(RLIMIT_AS, &limit);

    const int64_t got = byte_source_read(s, packed, 10, &err);
    setrlimit(RLIMIT_AS, &before);

    assert_int_equal(got, -1);
    assert_false(byte_source_is_damaged(s));
    assert_non_null(strstr(err.text, "out of memory for the window of this zstd file"));
    byte_source_close(s);
}
