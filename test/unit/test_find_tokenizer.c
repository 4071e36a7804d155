// A run takes the tokenizer that belongs to its weights and its data, and none that belongs to
// others.

#include "llmc/base/directory.h"
#include "test/unit/store_fixture.h"
#include "test/unit/tokenizer_fixture.h"

static char home[PATH_MAX]; // where the tests were started

// A tokenizer.json of the 256 bytes, `pairs` tokens of two letters each that begin with `letter`,
// and end-of-text.
static int64_t write_tokenizer(const char *name, char letter, int pairs) {
    const char *ranks = tmp_file("ranks");
    FILE *f = toy_create(ranks);

    for (int i = 0; i < 256; i++) write_rank(f, &(char){(char)i}, 1, i);
    for (int i = 0; i < pairs; i++) write_rank(f, (char[]){letter, (char)('a' + i)}, 2, 256 + i);
    toy_close(f);

    Tokenizer *t = tokenizer_open(ranks, &err);
    assert_ok(t && tokenizer_write(t, tmp_file(name), &err));

    const int64_t vocab = tokenizer_vocab(t);
    tokenizer_free(t);
    unlink(ranks);
    assert_int_equal(vocab, 257 + pairs);
    return vocab;
}

static int make_places(void **state) {
    setup(state);
    assert_true(directory_make(tmp_file("model"), &err));
    assert_true(directory_make(tmp_file("data"), &err));
    write_bytes(tmp_file("data/train_000000.bin"), "", 0);
    return 0;
}
TestFixture test_each = {make_places, tmp_teardown};

#define MODEL  tmp_file("model")
#define SHARDS tmp_file("data/train_*.bin")

// The tokenizer that is found must be the one at `name` ("": bytes, NULL: none).
static void assert_found(const char *name, const char *given, const char *weights,
                         const char *shards, int64_t vocab, int64_t V) {
    Tokenizer *t = NULL;
    if (!tokenizer_find(&t, given, weights, shards, vocab, V, &err)) fail_msg("%s", err.text);
    if (!name) {
        assert_null(t);
        return;
    }
    if (!t) fail_msg("no tokenizer was found, expected %s", name);
    if (*name && !strstr(tokenizer_name(t), name))
        fail_msg("%s, expected %s", tokenizer_name(t), name);
    if (!*name) assert_string_equal(tokenizer_name(t), "bytes");
    tokenizer_free(t);
}

#define REFUSED(given, weights, shards, vocab, V, ...)                                             \
    do {                                                                                           \
        static const char *const words[] = {__VA_ARGS__};                                          \
        Tokenizer *refused;                                                                        \
        err.text[0] = '\0';                                                                        \
        assert_false(tokenizer_find(&refused, given, weights, shards, vocab, V, &err));            \
        assert_null(refused);                                                                      \
        for (size_t w = 0; w < sizeof words / sizeof words[0]; w++) assert_message(words[w]);      \
    } while (0)

TEST(the_given_one_comes_first_then_that_of_the_weights_then_that_of_the_shards) {
    const int64_t vocab = write_tokenizer("data/tokenizer.json", 'x', 3);
    assert_found("data/tokenizer.json", "", MODEL, SHARDS, vocab, vocab);
    assert_found("data/tokenizer.json", NULL, NULL, SHARDS, 0, 1000);
    write_tokenizer("model/tokenizer.json", 'x', 3);
    assert_found("model/tokenizer.json", "", MODEL, SHARDS, vocab, vocab);
    write_tokenizer("mine.json", 'x', 3);
    assert_found("mine.json", tmp_file("mine.json"), MODEL, SHARDS, vocab, vocab);
    assert_found("model/tokenizer.json", tmp_file("model"), MODEL, SHARDS, vocab, vocab);
}

TEST(weights_may_be_a_file_beside_their_tokenizer) {
    const int64_t vocab = write_tokenizer("model/tokenizer.json", 'x', 3);
    write_bytes(tmp_file("model/model.bin"), "", 0);
    assert_found("model/tokenizer.json", "", tmp_file("model/model.bin"), SHARDS, 0, vocab);
    assert_int_equal(chdir(tmp_file("model")), 0);
    assert_found("tokenizer.json", "", "model.bin", SHARDS, 0, vocab);
    assert_int_equal(chdir(home), 0);
}

TEST(a_pattern_of_directories_leads_to_the_first_of_them) {
    const int64_t vocab = write_tokenizer("data/tokenizer.json", 'x', 3);
    assert_found("data/tokenizer.json", "", "", tmp_file("d*a/train_*.bin"), vocab, vocab);
    assert_found(NULL, "", "", tmp_file("none/train_*.bin"), 300, 300);
}

TEST(vocabularies_that_speak_for_themselves_need_no_file) {
    assert_found("", "", MODEL, SHARDS, 257, 257);
    assert_found("", "", NULL, NULL, 0, 257);
    assert_found(NULL, "", NULL, SHARDS, 200, 257); // the data say that they are not bytes
    assert_found(NULL, "", NULL, SHARDS, 0, 258);
    assert_found(NULL, "", NULL, SHARDS, 0, 50257);
}

// llm.c's file, in the working directory.
TEST(gpt2_tokenizer_bin_is_taken_for_gpt2s_vocabulary_only) {
    assert_int_equal(chdir(tmp.path), 0);
    write_bytes("gpt2_tokenizer.bin", "no tokenizer", 12);
    assert_found(NULL, "", MODEL, SHARDS, 0, 50304);
    assert_found("", "", MODEL, SHARDS, 0, 257);
    assert_found(NULL, "", NULL, SHARDS, 257, 50257); // these data are no GPT-2 tokens
    REFUSED("", MODEL, SHARDS, 0, 50257, "gpt2_tokenizer.bin");
    assert_found(NULL, "none", MODEL, SHARDS, 0, 50257);
    assert_int_equal(chdir(home), 0);
}

TEST(bytes_is_the_name_of_the_built_in_one) {
    assert_found("", "bytes", MODEL, SHARDS, 257, 257);
    assert_found("", "bytes", MODEL, SHARDS, 0, 384);
    REFUSED("bytes", MODEL, SHARDS, 0, 256, "--tokenizer: bytes has 257 tokens",
            "a vocabulary of 256");
    REFUSED("bytes", MODEL, SHARDS, 300, 300, "bytes has 257 tokens", "were made with 300");
}

TEST(none_looks_for_none) {
    write_bytes(tmp_file("model/tokenizer.json"), "{\"model\": {\"type\": \"Unigram\"}}", 30);
    REFUSED("", MODEL, SHARDS, 0, 300, "model/tokenizer.json", "--tokenizer none");
    assert_found(NULL, "none", MODEL, SHARDS, 0, 300);
}

TEST(what_is_given_must_open_and_fit) {
    REFUSED(tmp_file("nowhere"), MODEL, SHARDS, 0, 300, "--tokenizer: ", "nowhere", "No such file");
    write_bytes(tmp_file("text"), "this is no tokenizer\n", 21);
    REFUSED(tmp_file("text"), MODEL, SHARDS, 0, 300, "--tokenizer: ", "text");
    const int64_t vocab = write_tokenizer("mine.json", 'x', 3);
    REFUSED(tmp_file("mine.json"), MODEL, SHARDS, 300, 300,
            "--tokenizer: ", "mine.json has 260 tokens", "data/train_*.bin were made with 300");
    assert_found("mine.json", tmp_file("mine.json"), MODEL, SHARDS, vocab, 300);
}

TEST(a_tokenizer_with_more_tokens_than_the_model_is_refused_with_both_numbers) {
    write_tokenizer("model/tokenizer.json", 'x', 3);
    REFUSED("", MODEL, SHARDS, 0, 259, "model/tokenizer.json has 260 tokens", "a vocabulary of 259",
            "--tokenizer");
    assert_found("model/tokenizer.json", "", MODEL, SHARDS, 0, 384); // fewer: models pad theirs
}

TEST(data_of_another_size_than_the_models_tokenizer_are_refused_with_both_numbers) {
    write_tokenizer("model/tokenizer.json", 'x', 3);
    REFUSED("", MODEL, SHARDS, 257, 260, "model/tokenizer.json has 260 tokens",
            "data/train_*.bin were made with 257", "data/prepare --tokenizer ",
            "model/tokenizer.json -o DIR FILE...)");
}

TEST(data_of_another_tokenizer_of_the_same_size_are_refused_with_both_files) {
    const int64_t vocab = write_tokenizer("model/tokenizer.json", 'x', 3);
    write_tokenizer("data/tokenizer.json", 'y', 3);
    REFUSED("", MODEL, SHARDS, vocab, vocab, "model/tokenizer.json: ", "data/tokenizer.json",
            "data/prepare --tokenizer ");
    REFUSED(tmp_file("model/tokenizer.json"), NULL, SHARDS, 0, vocab, "data/tokenizer.json");
    write_bytes(tmp_file("data/tokenizer.json"), "{", 1); // what is there must open
    REFUSED("", MODEL, SHARDS, vocab, vocab, "data/tokenizer.json");
}

TEST(weights_of_others_without_a_tokenizer_must_have_the_size_of_the_data) {
    REFUSED("", MODEL, SHARDS, 257, 50257, "model has a vocabulary of 50257",
            "data/train_*.bin were made with 257 tokens", "data/prepare --tokenizer");
    assert_found(NULL, "", MODEL, SHARDS, 50257, 50304); // padded, as many models are
    assert_found(NULL, "", MODEL, SHARDS, 0, 50257);     // llm.c's shards do not say
    assert_found(NULL, "", NULL, SHARDS, 257, 50257);    // new weights may have any vocabulary
    write_bytes(tmp_file("model/trainer.json"), "{}", 2);
    assert_found(NULL, "", MODEL, SHARDS, 257, 50257); // and so may the checkpoints of their runs
}

int main(void) {
    if (!getcwd(home, sizeof home)) return 1;
    return test_run();
}
