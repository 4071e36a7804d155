// Tokenizers as the rest of the project uses them: bytes, and one small vocabulary of known merges
// in every form.

#include "llmc/base/random.h"
#include "llmc/text/tokenizer.h"
#include "test/test.h"
#include "test/unit/tokenizer_fixture.h"
#include <math.h>

static Tokenizer *built_in, *toy; // bytes, and the small vocabulary from its tokenizer.json

static int64_t encode(const Tokenizer *t, const char *text, int64_t n, int32_t *out) {
    Encoder *e = encoder_create(t);
    assert_non_null(e);
    int64_t count = encoder_encode(e, text, n, out);
    encoder_free(e);
    return count;
}

TEST(every_byte_becomes_its_own_token_and_comes_back) {
    char text[256];
    int32_t tokens[256];
    for (int i = 0; i < 256; i++) text[i] = (char)i;
    assert_int_equal(encode(built_in, text, 256, tokens), 256);
    for (int i = 0; i < 256; i++) {
        size_t length;
        const char *bytes = tokenizer_decode(built_in, tokens[i], &length);
        assert_int_equal(tokens[i], i);
        assert_int_equal(length, 1);
        assert_int_equal(bytes[0], text[i]);
    }
}

TEST(the_vocabulary_is_the_bytes_and_end_of_text) {
    assert_int_equal(tokenizer_vocab(built_in), 257);
    assert_int_equal(tokenizer_eot(built_in), 256);
}

TEST(an_empty_text_has_no_tokens) {
    int32_t untouched = -7;
    assert_int_equal(encode(built_in, "", 0, &untouched), 0);
    assert_int_equal(untouched, -7);
}

TEST(unknown_tokens_have_no_bytes) {
    const int32_t tokens[] = {257, 50256, INT32_MAX, -1, INT32_MIN};
    for (size_t i = 0; i < sizeof tokens / sizeof *tokens; i++) {
        size_t length = 99;
        assert_non_null(tokenizer_decode(built_in, tokens[i], &length));
        assert_int_equal(length, 0);
    }
}

TEST(the_spelling_of_end_of_text_is_a_token_in_prompts_only) {
    Encoder *e = encoder_create(built_in);
    int32_t tokens[64];
    const char text[] = "a<|endoftext|>b";
    assert_int_equal(encoder_encode(e, text, 15, tokens), 15);
    assert_int_equal(encoder_encode_special(e, text, 15, tokens), 3);
    assert_int_equal(tokens[1], 256);
    encoder_free(e);
}

TEST(bytes_may_be_cut_anywhere) {
    assert_int_equal(tokenizer_safe_cut(built_in, "ab c", 4), 4);
    assert_int_equal(tokenizer_safe_cut(built_in, "", 0), 0);
}

// ---------------------------------------------------------------------------- the small vocabulary

static int set_up(void **state) {
    tmp_setup(state);

    static const char *const directories[] = {"json", "vocab", "openai"};
    for (size_t i = 0; i < 3; i++)
        if (mkdir(tmp_file(directories[i]), 0700) != 0) return -1;

    toy_write_json(tmp_file("json/tokenizer.json"), false);
    toy_write_json(tmp_file("pairs.json"), true);
    toy_write_vocab_json(tmp_file("vocab/vocab.json"));
    toy_write_merges(tmp_file("vocab/merges.txt"));
    toy_write_vocab_json(tmp_file("openai/encoder.json"));
    toy_write_merges(tmp_file("openai/vocab.bpe"));
    toy_write_ranks(tmp_file("ranks.tiktoken"));
    toy_write_llmc(tmp_file("gpt2_tokenizer.bin"), 2);

    built_in = tokenizer_bytes(NULL), toy = tokenizer_open(tmp_file("json"), NULL);
    return built_in && toy ? 0 : -1;
}

static int tear_down(void **state) {
    tokenizer_free(built_in), tokenizer_free(toy);
    return tmp_teardown(state);
}
TestFixture test_all = {set_up, tear_down};

static const char *const forms[] = {"json",
                                    "json/tokenizer.json",
                                    "pairs.json",
                                    "vocab",
                                    "openai",
                                    "vocab/vocab.json",
                                    "openai/encoder.json",
                                    "ranks.tiktoken",
                                    "gpt2_tokenizer.bin"};
enum { NUM_FORMS = sizeof forms / sizeof forms[0] };

static Tokenizer *open_form(const char *name) {
    Error err;
    Tokenizer *t = tokenizer_open(tmp_file(name), &err);
    if (!t) fail_msg("%s", err.text);
    return t;
}

static void assert_tokens(const Tokenizer *t, const char *text, int count,
                          const int32_t *expected) {
    int32_t tokens[256];
    assert_int_equal(encode(t, text, (int64_t)strlen(text), tokens), count);
    assert_memory_equal(tokens, expected, (size_t)count * sizeof *tokens);
}

TEST(every_form_of_a_vocabulary_gives_the_same_tokens) {
    for (int i = 0; i < NUM_FORMS; i++) {
        Tokenizer *t = open_form(forms[i]);
        assert_int_equal(tokenizer_vocab(t), TOY_VOCAB);
        assert_int_equal(tokenizer_eot(t), TOY_EOT);
        assert_true(tokenizer_is_special(t, TOY_EOT));
        assert_false(tokenizer_is_special(t, TOY_EOT - 1));
        assert_non_null(strstr(tokenizer_name(t), "byte-level BPE of "));

        assert_tokens(t, "hello world", 2, (int32_t[]){259, 264});
        assert_tokens(t, "hellor", 2, (int32_t[]){259, 'r'}); // "or" is merged after "hello"
        assert_tokens(t, "aaaaaaa", 3, (int32_t[]){266, 265, 'a'});
        // the pattern parts the last one from them
        assert_tokens(t, "\n\nx", 3, (int32_t[]){'\n', '\n', 'x'});
        assert_tokens(t, "\n\n", 1, (int32_t[]){267});
        tokenizer_free(t);
    }
}

TEST(every_form_of_a_vocabulary_has_the_same_fingerprint_and_export) {
    size_t length, other_length;
    char *text = tokenizer_to_json(toy, &length);
    assert_non_null(text);
    assert_int_equal(strlen(text), length);

    for (int i = 1; i < NUM_FORMS; i++) {
        Tokenizer *t = open_form(forms[i]);
        assert_true(tokenizer_fingerprint(t) == tokenizer_fingerprint(toy));
        char *other = tokenizer_to_json(t, &other_length);
        assert_string_equal(other, text);
        free(other);
        tokenizer_free(t);
    }

    free(text);
    assert_true(tokenizer_fingerprint(toy) != tokenizer_fingerprint(built_in));
}

TEST(an_export_is_the_same_tokenizer_again) {
    Tokenizer *originals[] = {tokenizer_bytes(NULL), open_form("ranks.tiktoken")};
    for (int i = 0; i < 2; i++) {
        size_t length;
        char *text = tokenizer_to_json(originals[i], &length), *again;
        const char *path = tmp_file("again.json");
        write_bytes(path, text, length);

        Tokenizer *t = open_form("again.json");
        assert_true(tokenizer_fingerprint(t) == tokenizer_fingerprint(originals[i]));
        assert_string_equal(again = tokenizer_to_json(t, &length), text);

        free(text);
        free(again);
        tokenizer_free(t);
        tokenizer_free(originals[i]);
    }
}

// Merging "abcd" makes a bc d and ends there, so that only the whole piece is token 259, although
// ab and cd are tokens. A checkpoint holds this tokenizer as a tokenizer.json, which must open
// again.
static Tokenizer *open_ranks(const char *const more[], int count) {
    FILE *f = toy_create(tmp_file("whole.tiktoken"));
    for (int i = 0; i < 256 + count; i++) {
        const char byte[2] = {(char)i, '\0'};
        write_rank(f, i < 256 ? byte : more[i - 256], i < 256 ? 1 : strlen(more[i - 256]), i);
    }
    toy_close(f);
    return open_form("whole.tiktoken");
}

TEST(an_export_has_tokens_that_no_merge_makes) {
    static const char *const more[] = {"bc", "ab", "cd", "abcd"};
    Tokenizer *t = open_ranks(more, 4);
    size_t length;

    char *text = tokenizer_to_json(t, &length);
    write_bytes(tmp_file("whole.json"), text, length);
    Tokenizer *again = open_form("whole.json");
    int32_t tokens[8];

    assert_int_equal(encode(again, "abcd", 4, tokens), 1);
    assert_int_equal(tokens[0], 259);
    assert_int_equal(encode(again, "abcde", 5, tokens), 4); // a bc d e
    assert_true(tokenizer_fingerprint(t) == tokenizer_fingerprint(again));

    free(text);
    tokenizer_free(t), tokenizer_free(again);
}

// Ranks in any order, such that a token may be made of later ones: "hell", 257, of "he" and "ll",
// 258.
TEST(an_export_gives_the_tokens_of_ranks_that_no_training_made) {
    enum { MORE = 14, LENGTH = 40 };
    for (uint64_t round = 0; round < 400; round++) {
        char words[MORE][8];
        const char *more[MORE];
        for (int i = 0; i < MORE; i++) { // another word for as long as it is there already
            bool known = true;
            for (uint32_t attempt = 0; known; attempt++) {
                const Philox r = philox(5, round, (uint64_t)i << 32 | attempt);
                const int length = 2 + (int)(r.v[0] % 4);
                for (int k = 0; k < length; k++) words[i][k] = "abc"[r.v[1] / (1u << 4 * k) % 3];
                words[i][length] = '\0', known = false;
                for (int k = 0; k < i; k++) known |= strcmp(words[k], words[i]) == 0;
            }
            more[i] = words[i];
        }

        Tokenizer *t = open_ranks(more, MORE);
        size_t length;
        char *json = tokenizer_to_json(t, &length);
        Tokenizer *again = tokenizer_read_json("again", json, length, NULL);
        assert_non_null(again);

        char text[LENGTH];
        int32_t tokens[LENGTH], same[LENGTH];
        for (uint64_t k = 0; k < LENGTH; k++) text[k] = "abc"[philox(6, round, k).v[0] % 3];
        const int64_t n = encode(t, text, LENGTH, tokens);
        assert_int_equal(encode(again, text, LENGTH, same), n);
        assert_memory_equal(tokens, same, (size_t)n * sizeof *tokens);

        free(json);
        tokenizer_free(t), tokenizer_free(again);
    }
}

TEST(llmcs_first_version_means_gpt2s_end_of_text) {
    Error err;
    const char *path = tmp_file("version1.bin");
    toy_write_llmc(path, 1);
    assert_null(tokenizer_open(path, &err)); // the toy has not as many tokens
    assert_non_null(strstr(err.text, "end-of-text is 50256, expected a number below 269"));
}

// Texts of the toy's letters, of other bytes, and of white space.
static int64_t toy_text(uint64_t round, char *text, int64_t most) {
    static const char letters[] = "hello world aaaa \n\n  '\xff\xc3\xa9";
    int64_t n = (int64_t)(philox(11, round, 0).v[0] % (uint64_t)most);
    for (int64_t i = 0; i < n; i++) {
        Philox r = philox(11, round, (uint64_t)i + 1);
        text[i] = r.v[0] % 16 ? letters[r.v[1] % (sizeof letters - 1)] : (char)r.v[2];
    }
    return n;
}

TEST(what_is_decoded_is_what_was_encoded) {
    Encoder *e = encoder_create(toy);
    for (uint64_t round = 0; round < 3000; round++) {
        char text[300], back[300];
        int32_t tokens[300];
        int64_t n = toy_text(round, text, 300), count = encoder_encode(e, text, n, tokens);
        size_t length, used = 0;

        for (int64_t i = 0; i < count; i++) {
            const char *bytes = tokenizer_decode(toy, tokens[i], &length);
            memcpy(back + used, bytes, length);
            used += length;
        }

        assert_int_equal(used, n);
        assert_memory_equal(back, text, used);
    }
    encoder_free(e);
}

TEST(an_encoder_that_has_seen_much_gives_the_tokens_of_a_new_one) {
    Encoder *old = encoder_create(toy);
    for (uint64_t round = 0; round < 200; round++) {
        char text[3000];
        int32_t tokens[3000], expected[3000];
        int64_t n = toy_text(round, text, 3000), count = encode(toy, text, n, expected);
        assert_int_equal(encoder_encode(old, text, n, tokens), count);
        assert_memory_equal(tokens, expected, (size_t)count * sizeof *tokens);
    }
    encoder_free(old);
}

// Around the lengths that the cache takes, at the end of the text and before more of it, seen first
// and again.
TEST(a_piece_of_any_length_is_encoded_alike_wherever_it_stands) {
    for (int64_t n = 1; n <= 70; n++) {
        Encoder *e = encoder_create(toy);
        char text[300];
        int32_t alone[300], again[300], pair[300];

        for (int64_t i = 0; i < n; i++) text[i] = "hellwor"[i % 7];
        int64_t count = encoder_encode(e, text, n, alone), bytes = 0;
        assert_int_equal(encoder_encode(e, text, n, again), count);

        text[n] = '!';
        memset(text + n + 1, 'x', 40);
        assert_true(encoder_encode(e, text, n + 41, pair) > count);

        assert_memory_equal(alone, again, (size_t)count * sizeof *alone);
        assert_memory_equal(alone, pair, (size_t)count * sizeof *alone);
        for (int64_t i = 0; i < count; i++) {
            size_t length;
            tokenizer_decode(toy, alone[i], &length);
            bytes += (int64_t)length;
        }

        assert_int_equal(bytes, n);
        encoder_free(e);
    }
}

TEST(a_text_cut_where_it_is_safe_gives_the_tokens_of_the_whole) {
    Encoder *e = encoder_create(toy);
    int cuts = 0;

    for (uint64_t round = 0; round < 3000; round++) {
        char text[200];
        int32_t whole[200], parts[200];
        int64_t all = toy_text(round, text, 200),
                n = all > 0 ? (int64_t)(round % (uint64_t)all) : 0;

        int64_t cut = tokenizer_safe_cut(toy, text, n), count = encoder_encode(e, text, cut, parts);
        assert_in_range(cut, 0, n);
        count += encoder_encode(e, text + cut, all - cut, parts + count);
        assert_int_equal(encoder_encode(e, text, all, whole), count);
        assert_memory_equal(whole, parts, (size_t)count * sizeof *parts);
        cuts += cut > 0;
    }

    assert_true(cuts > 2000);
    encoder_free(e);
}

TEST(a_long_word_has_no_safe_cut) {
    assert_int_equal(tokenizer_safe_cut(toy, "hellohellohello", 15), 0);
    assert_int_equal(tokenizer_safe_cut(toy, "          ", 10), 0);
    assert_int_equal(tokenizer_safe_cut(toy, "hello hello", 11), 5);
    assert_int_equal(tokenizer_safe_cut(toy, "", 0), 0);
}

TEST(megabytes_without_an_end_of_piece_are_merged_in_little_time) {
    enum { LENGTH = 4 << 20 };
    char *text = malloc(LENGTH);
    int32_t *tokens = malloc(LENGTH * sizeof *tokens);
    assert_true(text && tokens);

    memset(text, 'a', LENGTH);
    // quadratic time would be hours
    assert_int_equal(encode(toy, text, LENGTH, tokens), LENGTH / 4);

    memset(text, ' ', LENGTH);
    assert_int_equal(encode(toy, text, LENGTH, tokens), LENGTH);

    memset(text, '\n', LENGTH);
    assert_int_equal(encode(toy, text, LENGTH, tokens), LENGTH / 2);

    free(text);
    free(tokens);
}
