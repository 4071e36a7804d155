// Reads plain, gzip and zstd files as one sequence of bytes. See byte_source.h. zlib and libzstd
// decompress; this file adds what they leave to the caller: consecutive members and frames,
// padding, and truncated files.
#include "llmc/text/byte_source.h"
#include "llmc/base/arithmetic.h"
#include "llmc/base/format.h"
#include "llmc/base/memory.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <unistd.h>
#include <zlib.h>
#include <zstd.h>
#include <zstd_errors.h>

enum { INPUT_BYTES = 256 * 1024 };

struct ByteSource {
    int fd, then_fd;
    Packing packing;
    int64_t consumed;
    bool damaged, failed;
    Error error;   // what the next read reports after a failure
    bool ended;    // the end of the file, not of the unpacked bytes
    bool in_frame; // between the first byte of a member or frame and its end
    bool had_member;
    z_stream zlib;
    ZSTD_DStream *zstd;
    unsigned char *input;
    size_t begin, end; // of the bytes in input not unpacked yet
};

Packing packing_of_name(const char *path) {
    const char *dot = strrchr(path, '.');
    if (dot && strcasecmp(dot, ".gz") == 0) return PACKED_GZIP;
    if (dot && strcasecmp(dot, ".zst") == 0) return PACKED_ZSTD;
    return PACKED_NOT;
}

Packing packing_of_bytes(const unsigned char *bytes, size_t n) {
    static const unsigned char gzip[] = {0x1f, 0x8b}, zstd[] = {0x28, 0xb5, 0x2f, 0xfd};
    if (n >= sizeof gzip && memcmp(bytes, gzip, sizeof gzip) == 0) return PACKED_GZIP;
    if (n >= sizeof zstd && memcmp(bytes, zstd, sizeof zstd) == 0) return PACKED_ZSTD;
    return PACKED_NOT;
}

ByteSource *byte_source_open(int fd, int then_fd, Packing packing) {
    ByteSource *s = memory_zeroed(1, sizeof *s);
    *s = (ByteSource){
        .fd = fd, .then_fd = then_fd, .packing = packing, .input = memory_new(INPUT_BYTES, 1)};
    // 16: gzip headers only
    if (packing == PACKED_GZIP) REQUIRE_MEMORY(inflateInit2(&s->zlib, 15 + 16) == Z_OK, "zlib");
    if (packing == PACKED_ZSTD) {
        // Reads every window that zstd makes, up to the 2 GiB of --long=31; by itself the library
        // stops at 128 MiB. The memory is touched only as far as there is text for it.
        const ZSTD_bounds window = ZSTD_dParam_getBounds(ZSTD_d_windowLogMax);
        s->zstd = ZSTD_createDStream();
        REQUIRE_MEMORY(s->zstd, "zstd");
        ZSTD_DCtx_setParameter(s->zstd, ZSTD_d_windowLogMax, window.upperBound);
    }
    return s;
}

void byte_source_close(ByteSource *s) {
    if (!s) return;
    if (s->packing == PACKED_GZIP) inflateEnd(&s->zlib);
    ZSTD_freeDStream(s->zstd);
    close(s->fd);
    free(s->input);
    free(s);
}

bool byte_source_is_damaged(const ByteSource *s) { return s->damaged; }
int64_t byte_source_consumed(const ByteSource *s) { return s->consumed; }

// Reads up to n bytes of the file itself; 0 at its end, -1 on error.
static int64_t read_packed(ByteSource *s, void *out, int64_t n) {
    for (;;) {
        ssize_t got = read(s->fd, out, (size_t)n);
        if (got < 0 && errno == EINTR) continue;
        if (got < 0) {
            s->failed = true;
            error_set(&s->error, "cannot read: %s", strerror(errno));
            return -1;
        }
        s->consumed += got;
        if (got > 0 || s->then_fd < 0) return got;
        close(s->fd);
        s->fd = dup(s->then_fd);
        s->then_fd = -1;
    }
}

static void source_damaged(ByteSource *s, const char *what) {
    s->failed = s->damaged = true;
    error_set(&s->error, "damaged: %s near byte %lld of the file", what,
              (long long)(s->consumed - (int64_t)(s->end - s->begin)));
}

static int64_t unpack_gzip(ByteSource *s, unsigned char *out, int64_t n) {
    if (!s->in_frame) {
        // gzip pads with zeros on tapes and block devices; anything else after the last member is
        // damage.
        size_t at = s->begin;
        while (s->had_member && at < s->end && s->input[at] == 0) at++;
        if (s->had_member && at == s->end) {
            s->begin = s->end;
            return 0;
        }
        inflateReset(&s->zlib);
        s->in_frame = s->had_member = true;
    }

    s->zlib.next_in = s->input + s->begin;
    s->zlib.avail_in = (uInt)(s->end - s->begin);
    s->zlib.next_out = out;
    s->zlib.avail_out = (uInt)n;
    int status = inflate(&s->zlib, Z_NO_FLUSH);
    s->begin = s->end - s->zlib.avail_in;

    if (status == Z_STREAM_END)
        s->in_frame = false;
    else if (status != Z_OK && status != Z_BUF_ERROR)
        source_damaged(s, s->zlib.msg ? s->zlib.msg : "not gzip");
    return n - (int64_t)s->zlib.avail_out;
}

// A frame begins with 0xFD2FB528, one to be skipped with 0x184D2A5.; the library also takes those
// of versions before 1.0, and what it makes of these depends on the size of the buffer.
static int64_t unpack_zstd(ByteSource *s, unsigned char *out, int64_t n) {
    if (!s->in_frame && s->begin < s->end && s->input[s->begin] != 0x28 &&
        s->input[s->begin] >> 4 != 5) {
        source_damaged(s, "not zstd");
        return 0;
    }

    ZSTD_inBuffer in = {s->input + s->begin, s->end - s->begin, 0};
    ZSTD_outBuffer to = {out, (size_t)n, 0};
    size_t status = ZSTD_decompressStream(s->zstd, &to, &in);
    s->begin += in.pos;
    s->in_frame = status != 0;

    if (ZSTD_getErrorCode(status) == ZSTD_error_memory_allocation) {
        s->failed = true;
        error_set(
            &s->error,
            "cannot read: out of memory for the window of this zstd file, which has up to 2 GiB "
            "(zstd --long); free memory and run again");
    } else if (ZSTD_isError(status)) {
        source_damaged(s, ZSTD_getErrorName(status));
    }
    return (int64_t)to.pos;
}

int64_t byte_source_read(ByteSource *s, void *out, int64_t n, Error *err) {
    int64_t done = 0;
    while (done < n && !s->failed) {
        unsigned char *to = (unsigned char *)out + done;
        const int64_t room = min_i64(n - done, INT32_MAX);
        int64_t got;

        if (s->packing == PACKED_NOT) {
            got = read_packed(s, to, room);
            if (got <= 0) break;
            done += got;
            continue;
        }

        if (s->begin == s->end && !s->ended) {
            const int64_t more = read_packed(s, s->input, INPUT_BYTES);
            if (more < 0) break;
            s->begin = 0;
            s->end = (size_t)more;
            s->ended = more == 0;
        }

        // At the end of the file, zstd may still hold bytes of a frame that it has read.
        const bool drained = s->begin == s->end && s->ended;
        if (drained && !s->in_frame) break;

        if (s->packing == PACKED_GZIP)
            got = unpack_gzip(s, to, room);
        else
            got = unpack_zstd(s, to, room);
        if (drained && got == 0 && s->in_frame && !s->failed) source_damaged(s, "truncated");
        done += got;
    }

    if (done > 0 || !s->failed) return done;
    error_set(err, "%s", s->error.text);
    return -1;
}
