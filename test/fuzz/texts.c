// The readers of llmc/text that fuzz.c feeds: tokenizers, and what a corpus is read from. The table
// in readers.c has their rows. Seeds of tokenizers are written by the tests' own writers
// (tokenizer_fixture.h).
#include "test/fuzz/fuzz.h"

#include "llmc/base/json.h"
#include "llmc/text/documents.h"
#include "llmc/text/encoder.h"
#include "llmc/text/pieces.h"
#include "llmc/text/tokenizer_json.h"
#include "test/unit/tokenizer_fixture.h"

#include <fcntl.h>
#include <zlib.h>
#include <zstd.h>

Tokenizer *fuzz_toy;

// -------------------------------------------------------------------------------------- tokenizers

#ifdef LIBFUZZER
// The table of characters is the same for every tokenizer, and takes longer than all the rest of
// it: computed once. (LDFLAGS of the Makefile put this in its place.)
uint8_t *__real_char_kinds_table(Error *why);
uint8_t *__wrap_char_kinds_table(Error *why);
uint8_t *__wrap_char_kinds_table(Error *why) {
    static uint8_t *table;
    if (!table) table = __real_char_kinds_table(why);
    uint8_t *copy = malloc(CHAR_TABLE_SIZE);
    REQUIRE_MEMORY(table && copy, "the table of characters");
    return memcpy(copy, table, CHAR_TABLE_SIZE);
}
#endif

static void encode_and_decode(const Tokenizer *t, const Tokenizer *again) {
    static const char text[] =
        "hello world, aaaa\n\nworld's <|endoftext|> 123 \xc3\xa9\xff\0x   low";
    enum { N = sizeof text - 1 };
    int32_t tokens[N], same[N];

    Encoder *e = encoder_create(t), *f = encoder_create(again);
    REQUIRE(e && f, "%s", fuzz_error.text);
    const int64_t n = encoder_encode(e, text, N, tokens), m = encoder_encode(f, text, N, same);
    REQUIRE(n == m && memcmp(tokens, same, (size_t)n * sizeof *tokens) == 0,
            "accepted: a tokenizer that gives other tokens when written and read again");

    size_t at = 0;
    for (int64_t i = 0; i < n; i++) {
        size_t length;
        REQUIRE(tokens[i] >= 0 && tokens[i] < tokenizer_vocab(t), "token %d", tokens[i]);
        const char *bytes = tokenizer_decode(t, tokens[i], &length);
        REQUIRE(length > 0 && length <= N - at && memcmp(text + at, bytes, length) == 0,
                "accepted: a tokenizer whose tokens of a text are another text");
        at += length;
    }

    REQUIRE(at == N, "accepted: a tokenizer that loses bytes");
    (void)encoder_encode_special(e, text, N, tokens);
    (void)tokenizer_safe_cut(t, text, N);
    encoder_free(e), encoder_free(f);
}

static bool tokenizer_reads(const char *path) {
    Tokenizer *t = tokenizer_open(path, &fuzz_error);
    if (!t) return false;

    size_t bytes;
    char *json = tokenizer_to_json(t, &bytes);
    Tokenizer *again = tokenizer_read_json("again", json, bytes, &fuzz_error);
    REQUIRE(again, "accepted, but not when written as a tokenizer.json: %s", fuzz_error.text);
    REQUIRE(tokenizer_fingerprint(t) == tokenizer_fingerprint(again) &&
                tokenizer_eot(t) == tokenizer_eot(again) &&
                tokenizer_begin(t) == tokenizer_begin(again),
            "accepted, but another one when written as a tokenizer.json");

    encode_and_decode(t, again);
    free(json);
    tokenizer_free(again), tokenizer_free(t);
    return true;
}

void fuzz_tokenizer_json_seed(int i) {
    toy_write_json(fuzz_path("t/tokenizer.json"), i == 1);
    if (i < 2) return;
    fuzz_toy->pattern = (Pattern[]){PATTERN_GPT2, PATTERN_LLAMA3, PATTERN_STARCODER}[i - 2];
    fuzz_toy->begin = i == 3 ? TOY_EOT : -1; // with a template
    REQUIRE(tokenizer_write(fuzz_toy, fuzz_path("t/tokenizer.json"), &fuzz_error),
            "a seed cannot be written: %s", fuzz_error.text);
    fuzz_toy->pattern = PATTERN_GPT2;
    fuzz_toy->begin = -1;
}
void fuzz_vocab_seed(int i) {
    (void)i;
    toy_write_vocab_json(fuzz_path("v/vocab.json"));
    toy_write_merges(fuzz_path("v/merges.txt"));
}
void fuzz_ranks_seed(int i) {
    (void)i;
    toy_write_ranks(fuzz_path("toy.tiktoken"));
}
void fuzz_llmc_tokenizer_seed(int i) {
    (void)i;
    toy_write_llmc(fuzz_path("gpt2_tokenizer.bin"), 2);
}
bool fuzz_tokenizer_json_read(const FuzzInput *in) {
    return (void)in, tokenizer_reads(fuzz_path("t"));
}
bool fuzz_vocab_read(const FuzzInput *in) { return (void)in, tokenizer_reads(fuzz_path("v")); }
bool fuzz_ranks_read(const FuzzInput *in) {
    return (void)in, tokenizer_reads(fuzz_path("toy.tiktoken"));
}
bool fuzz_llmc_tokenizer_read(const FuzzInput *in) {
    return (void)in, tokenizer_reads(fuzz_path("gpt2_tokenizer.bin"));
}

// A text under every pattern: its pieces are all of it, and stay the same to the left of a certain
// cut, where one ends.
void fuzz_pieces_seed(int i) {
    write_text(fuzz_path("text"),
               i ? "don't DON'T  12345\r\n\n  x = \xe6\x97\xa5\xe6\x9c\xac\xcc\x81"
                   "Ab'\xc5\xbf //\n/"
                 : "\xc3\xa9 \xff\t1\xe1\xa0\x8e\xf3\xa0\x84\x80'll\xc2\x85");
}

bool fuzz_pieces_read(const FuzzInput *in) {
    const int64_t n = (int64_t)in->pieces[0].n;
    char *text = malloc((size_t)n + 1); // its end is the end of the memory
    memcpy(text, in->pieces[0].bytes, (size_t)n);
    text = realloc(text, n ? (size_t)n : 1);

    for (Pattern pattern = 0; pattern < NUM_PATTERNS; pattern++) {
        int64_t cut = in->variant, ends_there = cut == 0;
        const bool is_cut =
            cut > 0 && cut < n && pieces_always_cut(fuzz_toy->char_table, pattern, text, n, cut);
        for (int64_t at = 0, length; at < n; at += length) {
            length = pieces_next(fuzz_toy->char_table, pattern, text + at, n - at);
            REQUIRE(length > 0 && length <= n - at, "a piece of %lld bytes", (long long)length);
            ends_there |= at + length == cut;
            REQUIRE(!is_cut || at >= cut ||
                        length == pieces_next(fuzz_toy->char_table, pattern, text + at, cut - at),
                    "other pieces before a certain cut");
        }
        REQUIRE(!is_cut || ends_there, "a certain cut inside a piece");
    }

    free(text);
    return true;
}

// ----------------------------------------------------------------------------------------- corpora

void fuzz_json_line_seed(int i) {
    static const char *const lines[] = {
        "{\"text\": \"a \\u00e9\\n\\ud83d\\ude00 \\\"b\\\"\", \"n\": [1, -2.5e3, {\"x\": null}]}",
        "{\"id\": 17, \"meta\": {\"a\": [true, false, NaN]}, \"te\\u0078t\": \"\"}"};
    write_text(fuzz_path("line.json"), lines[i]);
}

// The strict scanner and cJSON, which is lax, agree on the text where both have one.
bool fuzz_json_line_read(const FuzzInput *in) {
    const Piece *p = &in->pieces[0];
    char *line = malloc(p->n + 1), *text;
    int64_t length = 0;
    memcpy(line, p->bytes, p->n), line[p->n] = '\n';

    const bool ok =
        json_line_text(line, (int64_t)p->n, "text", &text, &length, &fuzz_error) == JSON_LINE_OK;
    cJSON *root = ok ? json_parse((const char *)p->bytes, p->n, NULL) : NULL;
    const char *expected = NULL;
    for (const cJSON *item = root ? root->child : NULL; item; item = item->next)
        if (strcmp(item->string, "text") == 0)
            expected = cJSON_GetStringValue(item); // the last one counts

    REQUIRE(!ok || (text >= line && text + length <= line + p->n), "a text outside its line");
    // cJSON ends a key or a text at \u0000, and resolves no number of more than 63 bytes.
    if (ok && root && !memmem(p->bytes, p->n, "\\u0000", 6) && !memchr(p->bytes, '\0', p->n))
        REQUIRE(expected && strlen(expected) == (size_t)length &&
                    memcmp(expected, text, (size_t)length) == 0,
                "another text than cJSON's");

    cJSON_Delete(root);
    free(line);
    return ok;
}

static size_t pack_gzip(const void *from, size_t n, unsigned char *out, size_t room) {
    z_stream z = {0};
    deflateInit2(&z, 6, Z_DEFLATED, 15 + 16, 8, Z_DEFAULT_STRATEGY);
    z.next_in = (unsigned char *)from, z.avail_in = (uInt)n, z.next_out = out,
    z.avail_out = (uInt)room;
    deflate(&z, Z_FINISH);
    deflateEnd(&z);
    return room - z.avail_out;
}

static const char some_lines[] =
    "{\"text\": \"hello world\"}\n\n{\"text\": \"aaaa \\u0041\"}\nnot json\n{\"text\": 3}\n";

void fuzz_packed_seed(int i) {
    unsigned char out[1024];
    size_t n = sizeof some_lines - 1;
    memcpy(out, some_lines, n);
    if (i == 1) {
        n = pack_gzip(some_lines, 40, out, 500);
        n += pack_gzip(some_lines + 40, sizeof some_lines - 1 - 40, out + n, 500);
    }
    if (i == 2) n = ZSTD_compress(out, sizeof out, some_lines, sizeof some_lines - 1, 1);
    write_bytes(fuzz_path("packed"), out, n);
}

#ifdef LIBFUZZER
// A new window takes longer than all the rest: one state of zstd serves all inputs, like new each
// time, and windows end at the library's own limit, 128 MiB. (LDFLAGS of the Makefile put these in
// the library's place.)
static ZSTD_DStream *zstd;
static bool zstd_is_used;
ZSTD_DStream *__real_ZSTD_createDStream(void);
ZSTD_DStream *__wrap_ZSTD_createDStream(void);
size_t __wrap_ZSTD_freeDStream(ZSTD_DStream *s);
size_t __wrap_ZSTD_DCtx_setParameter(ZSTD_DCtx *s, ZSTD_dParameter parameter, int value);
size_t __wrap_ZSTD_DCtx_setParameter(ZSTD_DCtx *s, ZSTD_dParameter parameter, int value) {
    return (void)s, (void)parameter, (void)value, (size_t)0;
}
ZSTD_DStream *__wrap_ZSTD_createDStream(void) {
    REQUIRE(!zstd_is_used, "two at a time");
    if (!zstd) zstd = __real_ZSTD_createDStream();
    ZSTD_DCtx_reset(zstd, ZSTD_reset_session_and_parameters);
    zstd_is_used = true;
    return zstd;
}
size_t __wrap_ZSTD_freeDStream(ZSTD_DStream *s) {
    REQUIRE(!s || zstd_is_used, "freed twice");
    if (s) zstd_is_used = false;
    return 0;
}
#endif

// Whatever it unpacks to, in pieces. At most 4 MiB of it.
bool fuzz_packed_read(const FuzzInput *in) {
    enum { MOST = 4 << 20, PIECE = 5000 };
    const Packing packing =
        in->pieces[0].n > 4 ? packing_of_bytes(in->pieces[0].bytes, in->pieces[0].n) : PACKED_NOT;
    static unsigned char piece[PIECE];
    int64_t total = 0, got;
    if (in->pieces[0].absent) return false;

    ByteSource *s = byte_source_open(open(fuzz_path("packed"), O_RDONLY | O_CLOEXEC), -1, packing);
    REQUIRE(s, "%s", fuzz_error.text);
    while ((got = byte_source_read(s, piece, PIECE, &fuzz_error)) > 0 && total < MOST) total += got;
    REQUIRE(got >= 0 || byte_source_is_damaged(s), "not read, but not damaged either: %s",
            fuzz_error.text);

    byte_source_close(s);
    const bool ok = got == 0;
    return ok;
}

// 2: an empty directory.
void fuzz_documents_seed(int i) {
    unsigned char out[1024];
    static const char text[] = "hello world\n\nhell or aaaa\nworld\n";
    if (i == 2) return;
    write_bytes(fuzz_path("docs/a.jsonl"), some_lines, sizeof some_lines - 1);
    write_bytes(fuzz_path("docs/b.txt"), text, sizeof text - 1);
    write_bytes(fuzz_path("docs/c.jsonl.gz"), out,
                pack_gzip(some_lines, sizeof some_lines - 1, out, sizeof out));
}

static void ignore_progress(void *user, const CorpusProgress *progress) {
    (void)user, (void)progress;
}

// The documents are read as data/prepare reads them: the blocks are text of the files.
bool fuzz_documents_read(const FuzzInput *in) {
    char directory[PATH_MAX];
    snprintf(directory, sizeof directory, "%s", fuzz_path("docs"));
    char *const arguments[] = {directory};
    const CorpusOptions options = {.inputs = {.arguments = arguments, .count = 1},
                                   .field = "text",
                                   .split_at = in->variant / 4 % 2 ? "ll" : NULL,
                                   .tool = "",
                                   .tool_options = "",
                                   .val_fraction = 0.2,
                                   .skip_bad = in->variant % 2 == 0,
                                   .threads = 1,
                                   .tokenizer = fuzz_toy,
                                   .shard_tokens = 1000,
                                   .on_progress = ignore_progress};

    DocumentReader *r = document_reader_open(&options, fuzz_toy, in->variant / 2 % 2);
    CorpusBlock block = {0};
    int64_t bytes = 0, bytes_read = 0;
    int status = EXIT_OK;

    while (status == EXIT_OK && bytes < 4 << 20 && document_reader_next(r, &block)) {
        REQUIRE(block.n == 0 || (block.n > 0 && block.n < block.capacity), "a block of %lld bytes",
                (long long)block.n);
        bytes += block.n, status = block.status;
        REQUIRE(block.bytes_read >= bytes_read, "the reader goes back");
        bytes_read = block.bytes_read;
        corpus_block_clear(&block);
    }

    corpus_block_clear(&block);
    document_reader_close(r);
    return status == EXIT_OK;
}
