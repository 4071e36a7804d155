// Tokenizer files are hostile: each kind of damage and each kind of foreign file is refused with a line that names the
// file and the place; random damage never does more than that.

#include "llmc/text/tokenizer.h"
#include "test/fixture.h"
#include "test/test.h"
#include "test/unit/tokenizer_fixture.h"

TestFixture test_all = {tmp_setup, tmp_teardown};

// Opening path must fail with a message of one line that begins with the file's path and holds `message`.
static void assert_refused(const char *path, const char *named, const char *message) {
    Error err = {""};
    Tokenizer *t = tokenizer_open(path, &err);
    if (t) fail_msg("%s was opened, expected: %s", path, message);
    if (strncmp(err.text, named, strlen(named)) != 0) fail_msg("\"%s\" does not begin with %s", err.text, named);
    if (!strstr(err.text, message)) fail_msg("\"%s\" does not say \"%s\"", err.text, message);
    assert_null(strchr(err.text, '\n'));
}

typedef struct {
    const char *from, *to, *message;
} Change;

// A file as `write` makes it is refused after each of these changes.
static void assert_changes_refused(const char *name, void (*write)(const char *), const Change *changes, size_t n) {
    const char *path = tmp_file(name);
    for (size_t i = 0; i < n; i++) {
        write(path);
        replace_in_file(path, changes[i].from, changes[i].to);
        assert_refused(path, path, changes[i].message);
    }
}

static void write_json(const char *path) { toy_write_json(path, false); }

TEST(a_tokenizer_json_that_would_give_other_tokens_is_refused_by_field) {
    static const Change cases[] = {
        {"\"normalizer\": null", "\"normalizer\": {\"type\": \"NFKC\"}", "normalizer is an object, expected none"},
        {"\"type\": \"BPE\"", "\"type\": \"WordPiece\"", "model.type is \"WordPiece\", expected \"BPE\""},
        {"\"type\": \"BPE\"", "\"type\": 3", "model.type is 3, expected \"BPE\""},
        {"\"dropout\": null", "\"dropout\": 0.1", "model.dropout is 0.1"},
        {"\"dropout\": null", "\"dropout\": null, \"dropout\": 1", "\"dropout\" is stated twice"},
        {"_prefix\": \"\"", "_prefix\": \"##\"", "model.continuing_subword_prefix is \"##\", expected none"},
        {"_suffix\": \"\"", "_suffix\": \"</w>\"", "model.end_of_word_suffix is \"</w>\", expected none"},
        {"\"ByteLevel\"", "\"Whitespace\"", "pre_tokenizer.type is \"Whitespace\", expected \"ByteLevel\""},
        {"prefix_space\": false", "prefix_space\": true", "pre_tokenizer.add_prefix_space is true, expected false"},
        {"use_regex\": true", "use_regex\": false", "pre_tokenizer.use_regex is false, expected true"},
        {"\"pre_tokenizer\": {", "\"other\": {", "pre_tokenizer is missing, expected ByteLevel"},
        {"{\"type\": \"ByteLevel\", \"add_prefix_space\": false", "{\"type\": \"Sequence\", \"pretokenizers\": []",
         "pre_tokenizer: \"pretokenizers\" has 0 entries, expected 2"},
        {"{\"type\": \"ByteLevel\", \"add_prefix_space\": false",
         "{\"type\": \"Sequence\", \"pretokenizers\": [{\"type\": \"Split\", \"pattern\": {\"Regex\": \"\\\\d\"}}, {}]",
         "pre_tokenizer.pretokenizers[0].pattern.Regex is \"\\d\", expected GPT-2's"},
        {"\"lstrip\": false", "\"lstrip\": true", "added_tokens[0]: lstrip is true, expected none"},
        {"\"single_word\": false", "\"single_word\": true", "added_tokens[0]: single_word is true"},
        {"\"truncation\": null", "\"truncation\": {\"max_length\": 8}", "truncation is an object, expected none"},
        {"\"padding\": null", "\"padding\": {\"pad_id\": 0}", "padding is an object, expected none"},
        {"{\"type\": \"ByteLevel\", \"add_prefix_space\": false",
         "{\"type\": \"Sequence\", \"pretokenizers\": [{\"type\": \"Digits\"}, {}]",
         "pre_tokenizer.pretokenizers[0].individual_digits is missing, expected true"},
        {"{\"type\": \"ByteLevel\", \"add_prefix_space\": false",
         "{\"type\": \"Sequence\", \"pretokenizers\": [[1], {}]", "pretokenizers[0] is an array, expected an object"},
        {"\"post_processor\": null", "\"post_processor\": [1]", "post_processor is an array, expected an object"},
        {"\"post_processor\": null", "\"post_processor\": {\"type\": \"TemplateProcessing\"}",
         "post_processor: \"single\" is missing"},
        {"\"post_processor\": null", "\"post_processor\": {\"type\": \"TemplateProcessing\", \"single\": [1, 2]}",
         "post_processor.single: expected a special token and then the text"},
        {"\"post_processor\": null",
         "\"post_processor\": {\"type\": \"TemplateProcessing\", \"single\": [{\"SpecialToken\": {\"id\": \"a\"}}, "
         "{\"Sequence\": {}}]}",
         "post_processor.single[0]: \"a\" is not a special token"},
        {"\"post_processor\": null",
         "\"post_processor\": {\"type\": \"Sequence\", \"processors\": [{\"type\": \"BertProcessing\"}]}",
         "post_processor.processors.type is \"BertProcessing\""},
    };
    assert_changes_refused("tokenizer.json", write_json, cases, sizeof cases / sizeof *cases);
}

TEST(settings_next_to_a_tokenizer_that_would_give_other_tokens_are_refused_by_name) {
    static const struct {
        const char *file, *text, *message; // NULL: it is opened
    } cases[] = {
        {"tokenizer_config.json", "{\"add_prefix_space\": false, \"add_bos_token\": false, \"pad_token\": null}", NULL},
        {"tokenizer_config.json", "{\"eos_token\": {\"content\": \"<|endoftext|>\", \"lstrip\": false}}", NULL},
        {"tokenizer_config.json", "{\"add_prefix_space\": true}", "\"add_prefix_space\" is true, expected false"},
        {"tokenizer_config.json", "{\"add_bos_token\": true}", "\"add_bos_token\" is true"},
        {"tokenizer_config.json", "{\"do_lower_case\": true}", "\"do_lower_case\" is true"},
        {"tokenizer_config.json", "{\"pad_token\": \"<pad>\"}", "pad_token: \"<pad>\" is not in the vocabulary; save"},
        {"tokenizer_config.json", "{\"added_tokens_decoder\": {\"9999\": {\"content\": \"<x>\"}}}",
         "added_tokens_decoder: \"<x>\" has number 9999, but not in the vocabulary"},
        {"tokenizer_config.json", "{\"eos_token\": {\"content\": \"<|endoftext|>\", \"lstrip\": true}}",
         "eos_token: \"lstrip\" is true"},
        {"special_tokens_map.json", "{\"bos_token\": \"<|endoftext|>\"}", NULL},
        {"special_tokens_map.json", "{\"additional_special_tokens\": [\"<|user|>\"]}",
         "additional_special_tokens: \"<|user|>\" is not in the vocabulary"},
        {"added_tokens.json", "{\"<x>\": 9999}", "\"<x>\" has number 9999, but not in the vocabulary"},
        {"added_tokens.json", "version https://git-lfs.github.com/spec/v1\n", "not JSON but a Git LFS pointer"},
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

TEST(a_damaged_tokenizer_json_is_refused_by_place) {
    static const Change cases[] = {
        {"\"h e\"", "\"h zz\"", "model.merges[0]: \"zz\" is not a token of the vocabulary"},
        {"\"l l\"", "\"x y\"", "model.merges[1]: together they are \"xy\", which is not a token"},
        {"\"l l\"", "\"h e\"", "model.merges[1]: the same two were merged before, by number 0"},
        {"\"l l\"", "\"l l l\"", "model.merges[1]: \"l l l\", expected two tokens and a space"},
        {"\"l l\"", "\"\"", "model.merges[1]: \"\", expected two tokens"},
        {"\"l l\"", "[\"l\"]", "model.merges[1]: expected \"left right\" or"},
        {"\"l l\"", "[\"l\", \"l\", \"l\"]", "model.merges[1]: expected \"left right\" or"},
        {"\"l l\"", "{}", "model.merges[1]: expected \"left right\" or"},
        {"\"merges\": [", "\"merges\": 5, \"m\": [", "model.merges is 5, expected an array"},
        {"\"merges\": [", "\"m\": [", "model.merges is missing, expected an array"},
        {"\"vocab\": {", "\"v\": {", "model: \"vocab\" is missing, expected an object"},
        {"\"model\": {", "\"m\": {", "not a tokenizer but a JSON file without \"model\""},
        {"\"model\": {", "\"model\": [], \"m\": {", "\"model\" is an array, expected an object"},
        {"\"A\": 65", "\"A\": 66", "model.vocab: \"A\" and \"B\" both have number 66"},
        {"\"A\": 65", "\"B\": 65", "model.vocab: \"B\" is both token 65 and token 66"},
        {"\"A\": 65", "\"AA\": 65", "model.vocab: no token for the byte 0x41"},
        {",\n\"hell o\"", "", "model.vocab: no merge makes 1 of the 269 tokens, such as \"hello\" (token 259)"},
        {",\n\"hell o\",\n\"Ġ w\"", "", "no merge makes 2 of the 269 tokens"},
        {"\"A\": 65", "\"A\": 7000", "model.vocab: no token has number 65, expected each of 0 to 7000 once"},
        {"\"A\": 65", "\"A\": -1", "model.vocab: \"A\" is -1, expected a number from 0 to"},
        {"\"A\": 65", "\"A\": 1e300", "model.vocab: \"A\" is"},
        {"\"A\": 65", "\"A\": 65.5", "model.vocab: \"A\" is 65.5, expected a number from 0 to"},
        {"\"A\": 65", "\"A\": \"65\"", "model.vocab: \"A\" is \"65\", expected a number"},
        {"\"A\": 65", "\"A \": 65", "model.vocab: \"A \" (token 65) is not spelled in GPT-2's alphabet"},
        {"\"A\": 65", "\"\": 65", "model.vocab: token 65 is empty"},
        {"\"A\": 65", "\"A\\u0000\": 65", "it has a NUL character"},
        {"\"added_tokens\": [{", "\"added_tokens\": [4, {", "added_tokens[0]: not an object"},
        {"\"added_tokens\": [{", "\"added_tokens\": 4, \"a\": [{", "added_tokens is 4, expected an array"},
        {"\"id\": 268", "\"id\": 267", "added_tokens[0]: \"id\" is 267, but model.vocab has it as 268"},
        {"\"content\": \"<|endoftext|>\"", "\"content\": \"<|x|>\"", "both have number 268"},
        {"\"content\": \"<|endoftext|>\"", "\"content\": 9", "added_tokens[0]: \"content\" is 9, expected a string"},
        {"\"content\": \"<|endoftext|>\", \"single_word\": false", "\"id\": 2",
         "added_tokens[0]: \"id\" is stated twice"},
        {"]}}", "]}", "not valid JSON near byte"},
        {"]}}", "]}} x", "bytes after the JSON value"},
    };
    assert_changes_refused("tokenizer.json", write_json, cases, sizeof cases / sizeof *cases);
}

TEST(a_damaged_vocab_json_or_merges_txt_is_refused_by_file_and_line) {
    static const struct {
        bool in_merges;
        const char *from, *to, *message;
    } cases[] = {
        {true, "h e\n", "h\n", "line 2: \"h\", expected two tokens"},
        {true, "l l\n", "l  l\n", "line 3: \"l  l\", expected two tokens"},
        {true, "l l\n", "\n", "line 3: \"\", expected two tokens"},
        {true, "l l\n", "l \xff\n", "line 3: \"\\xff\" is not a token of the vocabulary"},
        {true, "hell o\n", "",
         "no merge makes 1 of the 269 tokens, such as \"hello\" (token 259): the merges are truncated"},
        {true, "hell o\n", "hello o\n", "line 5: together they are \"helloo\", which is not a token"},
        {false, "\"A\": 65", "\"A\": []", "\"A\" is an array, expected a number"},
        {false, "\"A\": 65", "\"[UNK] x\": 65", "\"[UNK] x\" (token 65) is not spelled in GPT-2's alphabet"},
    };
    const char *vocab = tmp_file("vocab.json"), *merges = tmp_file("merges.txt");
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        toy_write_vocab_json(vocab);
        toy_write_merges(merges);
        const char *changed = cases[i].in_merges ? merges : vocab;
        replace_in_file(changed, cases[i].from, cases[i].to);
        assert_refused(vocab, changed, cases[i].message);
    }
    toy_write_vocab_json(vocab);
    unlink(merges);
    assert_refused(vocab, vocab, "needs its merges");
}

TEST(a_damaged_rank_file_is_refused_by_line) {
    static const Change cases[] = {
        {"QQ== 65\n", "QQ== 66\n", "line 67: \"A\" and \"B\" both have number 66"},
        {"QQ== 65\n", "Qg== 65\n", "line 67: \"B\" is both token 65 and token 66"},
        {"QQ== 65\n", "QQ= 65\n", "line 66: \"QQ= 65\", expected base64, a space and a rank"},
        {"QQ== 65\n", "Q*== 65\n", "line 66: \"Q*== 65\", expected base64"},
        {"QQ== 65\n", "==== 65\n", "line 66: \"==== 65\", expected base64"},
        {"QQ== 65\n", "QQ== 65x\n", "line 66: \"QQ== 65x\", expected base64"},
        {"QQ== 65\n", "QQ==\n", "line 66: \"QQ==\", expected base64"},
        {"QQ== 65\n", "QQ== -5\n", "line 66: \"QQ== -5\", expected base64"},
        {"QQ== 65\n", "QQ== 999999999\n", "line 66: \"A\" has number 999999999, expected 0 to"},
        {"QQ== 65\n", "QQ== 99999999999999999999\n", "has number 9223372036854775807, expected 0 to"},
        {"QQ== 65\n", "", "no token has number 65"},
        {"QQ== 65\n", "QUE= 65\n", "no token for the byte 0x41"},
    };
    assert_changes_refused("ranks.tiktoken", toy_write_ranks, cases, sizeof cases / sizeof *cases);
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

TEST(a_damaged_llmc_file_is_refused_by_token) {
    static const struct {
        size_t at;
        uint32_t word;
        const char *message;
    } cases[] = {
        {4, 3, "header: llm.c tokenizer version 3, expected 1 or 2"},
        {8, 0, "header: 0 tokens, expected 257 to"},
        {8, 0xFFFFFFFF, "header: 4294967295 tokens, expected 257 to"},
        {8, TOY_VOCAB + 1, "token 269 of 270 at byte"},
        {8, TOY_VOCAB - 1, "header: end-of-text is 268, expected a number below 268"},
        {12, 260, "\"<|endoftext|>\" is both token 268 and token 260"},
        {12, 0xFFFFFFFF, "header: end-of-text is 4294967295, expected a number below 269"},
        {1024, 0x01010000, "byte 1024: token 0 is empty"},
        {1024 + 256 * 2, 0x656800FF, "byte 1536: "},
    };
    const char *path = tmp_file("gpt2_tokenizer.bin");
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        toy_write_llmc(path, 2);
        size_t n;
        unsigned char *data = read_bytes(path, &n);
        memcpy(data + cases[i].at, &cases[i].word, sizeof cases[i].word);
        write_bytes(path, data, n);
        free(data);
        if (cases[i].at < 1536) assert_refused(path, path, cases[i].message);
    }
}

TEST(a_file_of_another_kind_is_called_by_its_name) {
    static const struct {
        const char *content;
        size_t n;
        const char *message;
    } cases[] = {
        {"\x10\0\0\0\0\0\0\0{\"a\":{}}", 16, "not a tokenizer but a safetensors file"},
        {"#version: 0.2\nh e\n", 18, "not a tokenizer but the merges of a vocabulary: give the vocab.json"},
        {"\x1f\x8b\x08\0\0\0\0\0", 8, "compressed by gzip"},
        {"{\"model_type\": \"gpt2\"}", 22, "not a tokenizer but a model's config.json"},
        {"{\"tokenizer_class\": \"GPT2\"}", 27, "not a tokenizer but a tokenizer_config.json"},
        {"{\"metadata\": {}, \"weight_map\": {}}", 34, "not a tokenizer but the index of sharded weights"},
        {"{}", 2, "not a tokenizer but a JSON file without"},
        {"[1]", 3, "expected base64, a space and a rank"},
        {"Once upon a time", 16, "line 1: \"Once upon a time\", expected base64, a space and a rank"},
        {"", 0, "not a tokenizer but an empty file"},
        {"\n", 1, "empty, expected a tokenizer"},
        {"\n\x0e\n\5<unk>\x15\0\0\0\0\x18\2", 16, "not a tokenizer but a SentencePiece model: only byte-level BPE"},
        {"\xEF\xBB\xBF{\"model\": {}}", 16, "not a tokenizer but text with a UTF-8 byte order mark"},
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
    assert_refused(empty, empty, "no tokenizer in this directory, expected tokenizer.json, or vocab.json");
    assert_refused(nothing, nothing, "cannot open: No such file");
    assert_refused("/dev/null", "/dev/null", "not a plain file");
    const char *large = tmp_file("large");
    write_bytes(large, "{", 1);
    assert_int_equal(truncate(large, (off_t)3 << 30), 0);
    assert_refused(large, large, "3221225472 bytes, expected at most 134217728");
}
