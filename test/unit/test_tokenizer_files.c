// Tokenizer files are hostile: each kind of damage and each kind of foreign file is refused with a
// line that names the file and the place; random damage never does more than that.

#include "llmc/text/tokenizer.h"
#include "test/fixture.h"
#include "test/test.h"
#include "test/unit/tokenizer_fixture.h"

TestFixture test_all = {tmp_setup, tmp_teardown};

// Opening path must fail with a message of one line that begins with the file's path and holds
// `message`.
static void assert_refused(const char *path, const char *named, const char *message) {
    Error err = {""};
    Tokenizer *t = tokenizer_open(path, &err);
    if (t) fail_msg("%s was opened, expected: %s", path, message);
    if (strncmp(err.text, named, strlen(named)) != 0)
        fail_msg("\"%s\" does not begin with %s", err.text, named);
    if (!strstr(err.text, message)) fail_msg("\"%s\" does not say \"%s\"", err.text, message);
    assert_null(strchr(err.text, '\n'));
}

static void write_json(const char *path) { toy_write_json(path, false); }

TEST(settings_next_to_a_tokenizer_that_would_give_other_tokens_are_refused_by_name) {
    static const struct {
        const char *file, *text, *message; // NULL: it is opened
    } cases[] = {
        {"tokenizer_config.json",
         "{\"add_prefix_space\": false, \"add_bos_token\": false, \"pad_token\": null}", NULL},
        {"tokenizer_config.json",
         "{\"eos_token\": {\"content\": \"<|endoftext|>\", \"lstrip\": false}}", NULL},
        {"tokenizer_config.json", "{\"add_prefix_space\": true}",
         "\"add_prefix_space\" is true, expected false"},
        {"tokenizer_config.json", "{\"add_bos_token\": true}", "\"add_bos_token\" is true"},
        {"tokenizer_config.json", "{\"do_lower_case\": true}", "\"do_lower_case\" is true"},
        {"tokenizer_config.json", "{\"pad_token\": \"<pad>\"}",
         "pad_token: \"<pad>\" is not in the vocabulary; save"},
        {"tokenizer_config.json", "{\"added_tokens_decoder\": {\"9999\": {\"content\": \"<x>\"}}}",
         "added_tokens_decoder: \"<x>\" has number 9999, but not in the vocabulary"},
        {"tokenizer_config.json",
         "{\"eos_token\": {\"content\": \"<|endoftext|>\", \"lstrip\": true}}",
         "eos_token: \"lstrip\" is true"},
        {"special_tokens_map.json", "{\"bos_token\": \"<|endoftext|>\"}", NULL},
        {"special_tokens_map.json", "{\"additional_special_tokens\": [\"<|user|>\"]}",
         "additional_special_tokens: \"<|user|>\" is not in the vocabulary"},
        {"added_tokens.json", "{\"<x>\": 9999}",
         "\"<x>\" has number 9999, but not in the vocabulary"},
        {"added_tokens.json", "version https://git-lfs.github.com/spec/v1\n",
         "not JSON but a Git LFS pointer"},
    };

    assert_int_equal(mkdir(tmp_file("hf"), 0700), 0);
    write_json(tmp_file("hf/tokenizer.json"));
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char name[64], path[512];
        snprintf(name, sizeof name, "hf/%s", cases[i].file);
        snprintf(path, sizeof path, "%s", tmp_file(name));
        write_bytes(path, cases[i].text, strlen(cases[i].text));

        if (cases[i].message) {
            assert_refused(tmp_file("hf"), path, cases[i].message);
        } else {
            Error err = {""};
            Tokenizer *t = tokenizer_open(tmp_file("hf"), &err);
            if (!t) fail_msg("%s: %s", cases[i].text, err.text);
            tokenizer_free(t);
        }
        unlink(path);
    }
}

TEST(a_vocab_json_needs_its_merges) {
    const char *vocab = tmp_file("vocab.json");
    toy_write_vocab_json(vocab);
    assert_refused(vocab, vocab, "needs its merges");
}

// The toy's ranks and others behind them, up to `count` numbers without the number `hole`.
static void write_many_ranks(const char *path, int count, int hole) {
    toy_write_ranks(path);
    FILE *f = fopen(path, "a");
    assert_non_null(f);
    for (int i = TOY_EOT; i < count; i++) {
        const char bytes[] = {(char)(i >> 16 | 0x40), (char)(i >> 8), (char)i};
        if (i != hole) write_rank(f, bytes, sizeof bytes, i);
    }
    toy_close(f);
}

TEST(rank_files_with_another_pattern_are_refused_by_name) {
    const char *path = tmp_file("other.tiktoken");
    write_many_ranks(path, 100256, -1);
    assert_refused(path, path, "100256 ranks: this is cl100k_base, whose pattern is not GPT-2's");
}

TEST(p50k_base_has_gpt2s_end_of_text_in_its_midst) {
    const char *path = tmp_file("p50k_base.tiktoken");
    Error err;
    write_many_ranks(path, 50281, 50256);
    Tokenizer *t = tokenizer_open(path, &err);
    if (!t) fail_msg("%s", err.text);
    assert_int_equal(tokenizer_eot(t), 50256);
    assert_int_equal(tokenizer_vocab(t), 50281);
    tokenizer_free(t);
    write_many_ranks(path, 50281, 50255); // any other hole is a line that is lost
    assert_refused(path, path, "no token has number 50255");
}

TEST(a_file_of_another_kind_is_called_by_its_name) {
    static const struct {
        const char *content;
        size_t n;
        const char *message;
    } cases[] = {
        {"\x10\0\0\0\0\0\0\0{\"a\":{}}", 16, "not a tokenizer but a safetensors file"},
        {"#version: 0.2\nh e\n", 18,
         "not a tokenizer but the merges of a vocabulary: give the vocab.json"},
        {"\x1f\x8b\x08\0\0\0\0\0", 8, "compressed by gzip"},
        {"{\"model_type\": \"gpt2\"}", 22, "not a tokenizer but a model's config.json"},
        {"{\"tokenizer_class\": \"GPT2\"}", 27, "not a tokenizer but a tokenizer_config.json"},
        {"{\"metadata\": {}, \"weight_map\": {}}", 34,
         "not a tokenizer but the index of sharded weights"},
        {"{}", 2, "not a tokenizer but a JSON file without"},
        {"[1]", 3, "expected base64, a space and a rank"},
        {"Once upon a time", 16,
         "line 1: \"Once upon a time\", expected base64, a space and a rank"},
        {"", 0, "not a tokenizer but an empty file"},
        {"\n", 1, "empty, expected a tokenizer"},
        {"\n\x0e\n\5<unk>\x15\0\0\0\0\x18\2", 16,
         "not a tokenizer but a SentencePiece model: only byte-level BPE"},
        {"\xEF\xBB\xBF{\"model\": {}}", 16,
         "not a tokenizer but text with a UTF-8 byte order mark"},
        {"\xc8\xd7\x34\x01", 4, "4 bytes, expected a header of 1024: truncated"},
    };

    const char *path = tmp_file("some.file");
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        write_bytes(path, cases[i].content, cases[i].n);
        assert_refused(path, path, cases[i].message);
    }
}

TEST(places_without_a_tokenizer_are_named) {
    const char *empty = tmp_file("empty"), *nothing = tmp_file("nothing");
    assert_int_equal(mkdir(empty, 0700), 0);
    assert_refused(empty, empty,
                   "no tokenizer in this directory, expected tokenizer.json, or vocab.json");
    assert_refused(nothing, nothing, "cannot open: No such file");
    assert_refused("/dev/null", "/dev/null", "not a plain file");
    const char *large = tmp_file("large");
    write_bytes(large, "{", 1);
    assert_int_equal(truncate(large, (off_t)3 << 30), 0);
    assert_refused(large, large, "3221225472 bytes, expected at most 134217728");
}
