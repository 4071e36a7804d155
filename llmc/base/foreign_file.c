// See foreign_file.h. The rows are tried in order: first bytes that no other kind has, then weaker
// marks, then names.
#include "llmc/base/foreign_file.h"

#include "llmc/base/path.h"
#include "llmc/base/utf8.h"

#include <ctype.h>
#include <fnmatch.h>
#include <stdint.h>
#include <string.h>
#include <strings.h>
#include <unistd.h>

typedef struct {
    ForeignFile file;
    // All of these that are set must agree.
    const char *bytes; // at offset `at`
    size_t length, at;
    uint32_t word; // the first one of llm.c's files
    bool (*looks)(const char *head, size_t n);
    const char *const *words; // one of which is first, in any case, after white space and a byte
                              // order mark; NULL ends
    const char *inside;       // anywhere in the head
    const char *name;         // a pattern for the last part of the path, in any case
} Kind;

static bool is_zeros(const char *head, size_t n) {
    size_t zeros = 0;
    while (zeros < n && head[zeros] == 0) zeros++;
    return n >= 64 && zeros == n;
}

// Begins with one of these words, in any case, after white space and a byte order mark.
static bool begins_with_one(const char *head, size_t n, const char *const *words) {
    size_t at = n >= 3 && memcmp(head, "\xEF\xBB\xBF", 3) == 0 ? 3 : 0;
    while (at < n && isspace((unsigned char)head[at])) at++;
    for (; *words; words++)
        if (n - at >= strlen(*words) && strncasecmp(head + at, *words, strlen(*words)) == 0)
            return true;
    return false;
}

static const char *const web_page[] = {"<!doctype html", "<html", "<head", NULL},
                         *const xml[] = {"<?xml", NULL}, *const json_begin[] = {"{", "[", NULL};
// Servers send these with status 403, 404 and 429; the last ones are Hugging Face's.
static const char *const server_error[] = {"<Error>",
                                           "{\"error\":",
                                           "{\"message\":",
                                           "{\"detail\":",
                                           "404: Not Found",
                                           "404 page not found",
                                           "Entry not found",
                                           "Repository not found",
                                           "Invalid username or password",
                                           "Access to model",
                                           NULL};

// The header's length in 8 bytes, then the header.
static bool is_safetensors(const char *head, size_t n) {
    return n > 9 && head[8] == '{' && !head[6] && !head[7];
}

// A ModelProto: a piece (field 1), which begins with its text (field 1) and its score (field 2, a
// float).
static bool is_sentencepiece(const char *head, size_t n) {
    const size_t score = n > 4 ? 4 + (size_t)(unsigned char)head[3] : n;
    return score < n && head[0] == '\n' && head[2] == '\n' && head[score] == 0x15;
}

// Protocols 2 to 5; from 4 on a frame follows.
static bool is_pickle(const char *head, size_t n) {
    return n > 2 && head[0] == '\x80' &&
           (head[1] == 2 || head[1] == 3 || ((head[1] & ~1) == 4 && head[2] == '\x95'));
}

static bool has_riff_form(const char *head, size_t n) {
    return n >= 12 && (!memcmp(head + 8, "WEBP", 4) || !memcmp(head + 8, "WAVE", 4) ||
                       !memcmp(head + 8, "AVI ", 4));
}

// "IQ== 0": base64, a space and a number.
static bool is_ranks(const char *head, size_t n) {
    size_t at = 0;
    while (at < n && (isalnum((unsigned char)head[at]) || (head[at] && strchr("+/=", head[at]))))
        at++;
    if (at < 4 || at % 4 != 0 || at + 1 >= n || head[at] != ' ') return false;
    while (++at < n && isdigit((unsigned char)head[at]))
        ;
    return at < n && (head[at] == '\n' || head[at] == '\r') && isdigit((unsigned char)head[at - 1]);
}

// UTF-8 without control characters; the last character may be cut off.
static bool looks_like_text(const char *head, size_t n) {
    size_t at = 0;
    while (at < n) {
        const size_t length = (size_t)utf8_length(head + at, n - at);
        const unsigned char c = (unsigned char)head[at];
        if (length == 0) return n == FOREIGN_FILE_HEAD && n - at < 4 && at > 0;
        if (c < 0x20 && c != '\t' && c != '\n' && c != '\r' && c != '\f') return false;
        at += length;
    }
    return n > 0;
}

// One text for each next step that several kinds have.
#define FETCH   "fetch the file again"
#define LOGIN   "fetch the file again; it may need a login or another address"
#define UNPACK  "unpack it first"
#define EXTRACT "extract its text as UTF-8 first"
#define WEIGHTS                                                                                    \
    "load it in Python and save it with save_pretrained(DIR, safe_serialization=True), then give " \
    "DIR"
#define HF_MODEL "give the Hugging Face directory of the model"
#define TOKENS   "make shards of its text with data/prepare"
#define UTF8     "convert it to UTF-8 without a byte order mark"

#define BEGINS(text)     .bytes = (text), .length = sizeof(text) - 1
#define AT(offset, text) .at = (offset), BEGINS(text)

static const Kind kinds[] = {
    // The download brought something else.
    {{"a Git LFS pointer", "fetch the file itself with 'git lfs pull'", false},
     BEGINS("version https://git-lfs.github.com/spec/")},
    {{"a git-annex pointer", "fetch the file itself with 'git annex get'", false},
     BEGINS("/annex/objects/")},
    {{"an error message of a web server", LOGIN, true}, .words = server_error},
    {{"an error message of a web server", LOGIN, true}, .words = xml, .inside = "<Error>"},
    {{"a web page (HTML)", "fetch the file itself; it may need a login or another address", true},
     .words = web_page},

    // llm.c's files and ours.
    {{"a token shard", "-i and -j read it", false}, .word = 20240520},
    {{"a token shard of llm.c for Llama 3", TOKENS, false}, .word = 20240801},
    {{"an evaluation set", "--choices reads it", false}, .word = 20240522},
    {{"an llm.c model", "-e reads it", false}, .word = 20240326},
    {{"an llm.c file for Llama 3", "only GPT-2 is read", false}, .word = 20240803},
    {{"an llm.c tokenizer", "--tokenizer reads it", false}, .word = 20240328},
    {{"llm.c's debug state", "its model is the .bin without _debug_state in its name", false},
     .word = 20240327},
    {{"llm.c's optimizer state", "its model is the model_*.bin next to it", false},
     .word = 20240527},

    // Weights and what is saved with them.
    {{"a safetensors file (weights)", "give -e the directory that holds it and its config.json",
      false},
     .looks = is_safetensors},
    {{"a PyTorch checkpoint", WEIGHTS, false}, BEGINS("PK\3\4"), .inside = "/data.pkl"},
    {{"a PyTorch checkpoint", WEIGHTS, false}, BEGINS("PK\3\4"), .name = "*.@(pt|pth|ckpt|bin)"},
    {{"a PyTorch checkpoint", WEIGHTS, false}, BEGINS("\x80\2\x8A\nl\xFC\x9C\x46\xF9 j\xA8P\x19")},
    {{"a Python pickle", "pickles are never read, because loading one runs its code", false},
     .looks = is_pickle},
    {{"GGUF weights", HF_MODEL, false}, BEGINS("GGUF")},
    {{"ggml weights", HF_MODEL, false}, BEGINS("lmgg")},
    {{"ggml weights", HF_MODEL, false}, BEGINS("tjgg")},
    {{"ggml weights", HF_MODEL, false}, BEGINS("fmgg")},
    {{"an HDF5 file", HF_MODEL ", or " EXTRACT, false}, BEGINS("\x89HDF\r\n\x1A\n")},
    {{"a SentencePiece model", "only byte-level BPE, such as GPT-2's, is read", false},
     .looks = is_sentencepiece},
    {{"the merges of a vocabulary",
      "give the vocab.json (or encoder.json) next to it, or their directory", true},
     BEGINS("#version")},

    // Tokens, arrays, tables.
    {{"a NumPy array (.npy)", TOKENS, false}, BEGINS("\x93NUMPY")},
    {{"NumPy arrays (.npz)", TOKENS, false}, BEGINS("PK\3\4"), .name = "*.npz"},
    {{"an index of Megatron's tokens", TOKENS, false}, BEGINS("MMIDIDX\0")},
    {{"an index of fairseq's tokens", TOKENS, false}, BEGINS("TNTIDX\0")},
    {{"Parquet", "data/read_parquet.py makes JSON lines of it", false}, BEGINS("PAR1")},
    {{"encrypted Parquet", EXTRACT, false}, BEGINS("PARE")},
    {{"Arrow (Feather)", EXTRACT, false}, BEGINS("ARROW1")},
    {{"Arrow (Feather)", EXTRACT, false}, BEGINS("FEA1")},
    {{"an Arrow stream", EXTRACT, false}, BEGINS("\xFF\xFF\xFF\xFF"), .name = "*.arrow"},
    {{"Avro", EXTRACT, false}, BEGINS("Obj\1")},
    {{"ORC", EXTRACT, false}, BEGINS("ORC\n")},
    {{"an SQLite database", EXTRACT, false}, BEGINS("SQLite format 3\0")},
    {{"an LMDB database", EXTRACT, false}, AT(16, "\xDE\xC0\xEF\xBE")},

    // Archives.
    {{"a zip archive", UNPACK, false}, BEGINS("PK\3\4")},
    {{"an empty zip archive", FETCH, false}, BEGINS("PK\5\6")},
    {{"a tar archive", UNPACK, false}, AT(257, "ustar")},
    {{"a 7z archive", UNPACK, false}, BEGINS("7z\xBC\xAF\x27\x1C")},
    {{"a RAR archive", UNPACK, false}, BEGINS("Rar!\x1A\7")},
    {{"compressed by gzip", UNPACK, false}, BEGINS("\x1F\x8B")},
    {{"compressed by zstd", UNPACK, false}, BEGINS("\x28\xB5\x2F\xFD")},
    {{"compressed by bzip2", UNPACK, false}, BEGINS("BZh"), .inside = "1AY&SY"},
    {{"compressed by xz", UNPACK, false},
     BEGINS("\xFD"
            "7zXZ\0")},
    {{"compressed by lz4", UNPACK, false}, BEGINS("\4\"M\x18")},
    {{"compressed by Snappy", UNPACK, false}, BEGINS("\xFF\6\0\0sNaPpY")},
    {{"compressed by compress (.Z)", UNPACK, false}, BEGINS("\x1F\x9D")},

    // Documents, pictures, programs.
    {{"a PDF document", EXTRACT, false}, BEGINS("%PDF-")},
    {{"an Office document", EXTRACT, false}, BEGINS("\xD0\xCF\x11\xE0\xA1\xB1\x1A\xE1")},
    {{"a picture (PNG)", EXTRACT, false}, BEGINS("\x89PNG\r\n\x1A\n")},
    {{"a picture (JPEG)", EXTRACT, false}, BEGINS("\xFF\xD8\xFF")},
    {{"a picture (GIF)", EXTRACT, false}, BEGINS("GIF8")},
    {{"a picture (TIFF)", EXTRACT, false}, BEGINS("II*\0")},
    {{"a picture, sound or video (RIFF)", EXTRACT, false}, BEGINS("RIFF"), .looks = has_riff_form},
    {{"a program or library (ELF)", "name a file of data", false},
     BEGINS("\x7F"
            "ELF")},

    // Text in other encodings. The mark of UTF-16 begins that of UTF-32.
    {{"UTF-32 text", UTF8, false}, BEGINS("\xFF\xFE\0\0")},
    {{"UTF-32 text", UTF8, false}, BEGINS("\0\0\xFE\xFF")},
    {{"UTF-16 text", UTF8, false}, BEGINS("\xFF\xFE")},
    {{"UTF-16 text", UTF8, false}, BEGINS("\xFE\xFF")},
    {{"text with a UTF-8 byte order mark", UTF8, true}, BEGINS("\xEF\xBB\xBF")},

    // Kinds that only their names tell.
    {{"a TensorFlow checkpoint", HF_MODEL, false},
     .name = "*.@(data-+([0-9])-of-+([0-9])|ckpt*.index|ckpt*.meta)"},
    {{"Flax weights", HF_MODEL, false}, .name = "*.msgpack"},
    {{"an ONNX model", HF_MODEL, false}, .name = "*.onnx"},
    {{"a shard of MosaicML's streaming (MDS)", EXTRACT, false}, .name = "*.mds"},
    {{"TFRecord", EXTRACT, false}, .name = "*.tfrecord*"},
    {{"compressed by Brotli", UNPACK, false}, .name = "*.br"},
    {{"a file that begins with zeros", "a copy or a download of it did not complete; " FETCH,
      false},
     .looks = is_zeros},
};

// Files of no kind above that can be read as text.
static const ForeignFile
    empty = {"an empty file", "fetch or make it again", false},
    ranks = {"the ranks of a tiktoken vocabulary", "--tokenizer reads it", true},
    json = {"JSON",
            "-e takes the directory of a model, and data/prepare makes token shards of JSON lines",
            true},
    text = {"text", "data/prepare makes token shards of text", true};

const ForeignFile *foreign_file_find(const char *path, const void *head, size_t bytes) {
    const char *name = path_name(path), *first = head;
    uint32_t word = 0;
    if (bytes == 0) return &empty;
    if (bytes >= sizeof word) memcpy(&word, head, sizeof word);
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++) {
        const Kind *k = &kinds[i];
        if (k->bytes &&
            (bytes < k->at + k->length || memcmp(first + k->at, k->bytes, k->length) != 0))
            continue;
        if (k->word && word != k->word) continue;
        if (k->looks && !k->looks(first, bytes)) continue;
        if (k->words && !begins_with_one(first, bytes, k->words)) continue;
        if (k->inside && !memmem(first, bytes, k->inside, strlen(k->inside))) continue;
        if (k->name && fnmatch(k->name, name, FNM_EXTMATCH | FNM_CASEFOLD) != 0) continue;
        return &k->file;
    }
    return NULL;
}

static bool refuse_kind(const ForeignFile *f, const char *expected, const char *path, Error *err) {
    if (f) return error_set(err, "%s: not %s but %s: %s", path, expected, f->kind, f->advice);
    return true;
}

bool foreign_file_check_text(const char *expected, const char *path, const void *head, size_t bytes,
                             Error *err) {
    return refuse_kind(foreign_file_find(path, head, bytes), expected, path, err);
}

bool foreign_file_check(const char *expected, const char *path, const void *head, size_t bytes,
                        Error *err) {
    const ForeignFile *f = foreign_file_find(path, head, bytes);
    if (!f && is_ranks(head, bytes)) f = &ranks;
    if (!f && looks_like_text(head, bytes)) {
        f = &text;
        if (begins_with_one(head, bytes, json_begin)) f = &json;
    }
    return refuse_kind(f, expected, path, err);
}

bool foreign_file_check_open(const char *expected, const char *path, int fd, bool reads_text,
                             Error *err) {
    char head[FOREIGN_FILE_HEAD];
    const ssize_t n = pread(fd, head, sizeof head, 0);
    if (n < 0) return true;
    if (reads_text) return foreign_file_check_text(expected, path, head, (size_t)n, err);
    return foreign_file_check(expected, path, head, (size_t)n, err);
}
