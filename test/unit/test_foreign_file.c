// Every kind of file in the table is named by its first bytes, or by its name alone, and nothing
// else is.

#include "llmc/base/foreign_file.h"
#include "test/test.h"

static Error err;

static const char *kind_of(const char *path, const void *head, size_t n) {
    const ForeignFile *f = foreign_file_find(path, head, n);
    return f ? f->kind : NULL;
}

// The beginning of a file, zeros after it.
static const char *kind_of_word(uint32_t word) {
    uint32_t head[FOREIGN_FILE_HEAD / 4] = {word, 1};
    return kind_of("x.bin", head, sizeof head);
}

#define FILE_IS(path, head, kind)   assert_string_equal(kind_of(path, head, sizeof(head) - 1), kind)
#define FILE_IS_UNKNOWN(path, head) assert_null(foreign_file_find(path, head, sizeof(head) - 1))

TEST(what_a_download_leaves_instead_of_the_file_is_named) {
    FILE_IS("x", "", "an empty file");
    FILE_IS("x", "version https://git-lfs.github.com/spec/v1\noid sha256:", "a Git LFS pointer");
    FILE_IS("x", "/annex/objects/SHA256E-s1--a\n", "a git-annex pointer");
    FILE_IS("x", "<!DOCTYPE html>\n<title>Not found</title>", "a web page (HTML)");
    FILE_IS("x", "\n\n  <html lang=\"en\">", "a web page (HTML)");
    FILE_IS("x", "\xEF\xBB\xBF<HTML>", "a web page (HTML)");
    FILE_IS("x", "<?xml version=\"1.0\"?>\n<Error><Code>AccessDenied</Code>",
            "an error message of a web server");
    FILE_IS("x", "{\"error\":\"Repository not found\"}", "an error message of a web server");
    FILE_IS("x", "Entry not found", "an error message of a web server");

    char zeros[FOREIGN_FILE_HEAD] = {0};
    assert_string_equal(kind_of("x", zeros, sizeof zeros), "a file that begins with zeros");
}

TEST(llm_c_files_are_named_by_their_first_word) {
    assert_string_equal(kind_of_word(20240520), "a token shard");
    assert_string_equal(kind_of_word(20240801), "a token shard of llm.c for Llama 3");
    assert_string_equal(kind_of_word(20240522), "an evaluation set");
    assert_string_equal(kind_of_word(20240326), "an llm.c model");
    assert_string_equal(kind_of_word(20240803), "an llm.c file for Llama 3");
    assert_string_equal(kind_of_word(20240328), "an llm.c tokenizer");
    assert_string_equal(kind_of_word(20240327), "llm.c's debug state");
    assert_string_equal(kind_of_word(20240527), "llm.c's optimizer state");
    assert_null(kind_of_word(20240521));
}

TEST(weights_are_named) {
    FILE_IS("x", "\x10\0\0\0\0\0\0\0{\"a\":{}}", "a safetensors file (weights)");
    FILE_IS("x", "PK\3\4\0\0\x08\x08\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\x10\0\0\0archive/data.pkl",
            "a PyTorch checkpoint");
    FILE_IS("dir.d/ckpt.PT", "PK\3\4 model/version", "a PyTorch checkpoint");
    FILE_IS("x", "\x80\2\x8A\nl\xFC\x9C\x46\xF9 j\xA8P\x19.\x80\2M", "a PyTorch checkpoint");
    FILE_IS("x", "\x80\4\x95\x0b\0\0\0\0\0\0\0}", "a Python pickle");
    FILE_IS("x", "\x80\2}q\0.", "a Python pickle");

    FILE_IS("x", "GGUF\3\0\0\0", "GGUF weights");
    FILE_IS("x", "tjgg\1\0\0\0", "ggml weights");
    FILE_IS("x", "\x89HDF\r\n\x1A\n\0", "an HDF5 file");
    FILE_IS("model.ckpt.data-00000-of-00001", "\1\2\3\4\5", "a TensorFlow checkpoint");
    FILE_IS("model.ckpt.index", "\0\0\1\2\3", "a TensorFlow checkpoint");
    FILE_IS("flax_model.msgpack", "\x81\xabtransformer", "Flax weights");
    FILE_IS("decoder_model.onnx", "\x08\7\x12\7pytorch", "an ONNX model");
}

TEST(tokenizers_tokens_and_tables_are_named) {
    FILE_IS("x", "\n\x0e\n\5<unk>\x15\0\0\0\0\x18\2\n\x0c\n\3<s>\x15", "a SentencePiece model");
    FILE_IS("x", "#version: 0.2\nh e\n", "the merges of a vocabulary");

    FILE_IS("x", "\x93NUMPY\1\0v\0{'descr': '<u2'", "a NumPy array (.npy)");
    FILE_IS("x.npz", "PK\3\4\x2d\0\0\0\0\0\0\0!\0arr_0.npy", "NumPy arrays (.npz)");
    FILE_IS("x", "MMIDIDX\0\0\1\0\0\0\0\0\0\0\x08", "an index of Megatron's tokens");
    FILE_IS("x", "PAR1\x15\4\x15", "Parquet");
    FILE_IS("x", "ARROW1\0\0\xff\xff", "Arrow (Feather)");
    FILE_IS("x.arrow", "\xff\xff\xff\xff\x88\1\0\0", "an Arrow stream");

    FILE_IS("x", "SQLite format 3\0\x10\0", "an SQLite database");
    FILE_IS("x", "\0\0\0\0\0\0\0\0\0\0\x08\0\0\0\0\0\xDE\xC0\xEF\xBE\1", "an LMDB database");
    FILE_IS("shard.00000.mds", "\2\0\0\0\x10\0\0\0", "a shard of MosaicML's streaming (MDS)");
    FILE_IS("a.tfrecord-00000-of-00001", "\x10\0\0\0\0\0\0\0\1\2", "TFRecord");
}

TEST(archives_are_named) {
    char tar[FOREIGN_FILE_HEAD] = "shard/000.txt";
    memcpy(tar + 257, "ustar\00000", 8);
    assert_string_equal(kind_of("x", tar, sizeof tar), "a tar archive");

    FILE_IS("x", "PK\3\4\x14\0", "a zip archive");
    FILE_IS("x", "PK\5\6\0\0", "an empty zip archive");
    FILE_IS("x", "7z\xBC\xAF\x27\x1C\0\4", "a 7z archive");
    FILE_IS("x", "Rar!\x1A\7\1\0", "a RAR archive");

    FILE_IS("x", "\x1F\x8B\x08\0", "compressed by gzip");
    FILE_IS("x", "\x28\xB5\x2F\xFD\4", "compressed by zstd");
    FILE_IS("x", "BZh91AY&SY\1\2", "compressed by bzip2");
    FILE_IS("x",
            "\xFD"
            "7zXZ\0\0\4",
            "compressed by xz");
    FILE_IS("x", "\4\"M\x18\x64", "compressed by lz4");
}

TEST(documents_and_other_encodings_are_named) {
    FILE_IS("x", "%PDF-1.7\n", "a PDF document");
    FILE_IS("x", "\x89PNG\r\n\x1A\n\0", "a picture (PNG)");
    FILE_IS("x", "\xFF\xD8\xFF\xE0\0\x10JFIF", "a picture (JPEG)");
    FILE_IS("x", "RIFF\x24\0\0\0WAVEfmt ", "a picture, sound or video (RIFF)");
    FILE_IS("x",
            "\x7F"
            "ELF\2\1\1",
            "a program or library (ELF)");
    FILE_IS("x", "\xFF\xFEh\0i\0", "UTF-16 text");
    FILE_IS("x", "\xFE\xFF\0h\0i", "UTF-16 text");
    FILE_IS("x", "\xFF\xFE\0\0h\0\0\0", "UTF-32 text");
    FILE_IS("x", "\xEF\xBB\xBFonce", "text with a UTF-8 byte order mark");
}

TEST(plain_text_and_raw_tokens_are_not_of_a_known_kind) {
    FILE_IS_UNKNOWN("x.txt", "Once upon a time");
    FILE_IS_UNKNOWN("x.txt", "BZh is a name");
    FILE_IS_UNKNOWN("x.jsonl", "{\"text\": \"a\"}\n");
    FILE_IS_UNKNOWN("onnx/data.idx/x", "Once upon a time");
    FILE_IS_UNKNOWN("train.bin", "\x12\x27\x0b\0\x34\1\x0d\0");
    FILE_IS_UNKNOWN("x", "\n\5\n\7\n"); // lines that are no protobuf
}

TEST(the_message_has_the_file_the_kind_and_the_next_step) {
    static const char pointer[] = "version https://git-lfs.github.com/spec/v1\n";
    assert_false(foreign_file_check("a token shard", "a/f.bin", pointer, sizeof pointer - 1, &err));
    assert_string_equal(
        err.text, "a/f.bin: not a token shard but a Git LFS pointer: fetch the file itself with "
                  "'git lfs pull'");
    assert_false(foreign_file_check_text("JSON", "a/f.json", pointer, sizeof pointer - 1, &err));
    assert_string_equal(
        err.text,
        "a/f.json: not JSON but a Git LFS pointer: fetch the file itself with 'git lfs pull'");
}

TEST(text_is_named_where_a_binary_file_is_expected_only) {
    static const struct {
        const char *head, *kind;
    } cases[] = {{"Once upon a time", "but text: "},
                 {" {\"a\": 1}", "but JSON: "},
                 {"IQ== 0\nIg== 1\n", "but the ranks of a tiktoken vocabulary: "}};

    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        assert_false(
            foreign_file_check("a token shard", "x", cases[i].head, strlen(cases[i].head), &err));
        assert_non_null(strstr(err.text, cases[i].kind));
        assert_true(foreign_file_check_text("a token shard", "x", cases[i].head,
                                            strlen(cases[i].head), &err));
    }

    char cut[FOREIGN_FILE_HEAD]; // the last character is cut off by the end of the head
    memset(cut, 'a', sizeof cut);
    cut[sizeof cut - 1] = '\xC3';
    assert_false(foreign_file_check("a token shard", "x", cut, sizeof cut, &err));
    assert_true(foreign_file_check("a token shard", "x", "\x12\x27\x0b\0\x34\1", 6, &err));
}
