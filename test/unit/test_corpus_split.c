// The rule that divides a corpus: the shares, and cuts where a line ends and where the tokens stay
// what they were.

#include "llmc/text/corpus_split.h"
#include "test/test.h"
#include "test/unit/tokenizer_fixture.h"

static Tokenizer *bytes, *toy; // the toy has a token for two newlines

static int set_up(void **state) {
    tmp_setup(state);
    toy_write_json(tmp_file("tokenizer.json"), false);
    bytes = tokenizer_bytes(NULL), toy = tokenizer_open(tmp.path, NULL);
    return bytes && toy ? 0 : -1;
}

static int tear_down(void **state) {
    tokenizer_free(bytes), tokenizer_free(toy);
    return tmp_teardown(state);
}
TestFixture test_all = {set_up, tear_down};

TEST(short_documents_are_drawn_with_the_stated_share) {
    enum { N = 4000 };
    int drawn = 0;
    for (int i = 0; i < N; i++) {
        char text[64];
        int n = snprintf(text, sizeof text, "document %d.", i);
        drawn += corpus_side(text, n, 0.1) == CORPUS_VAL;
        // One side of a share is inside that side of every larger share.
        if (corpus_side(text, n, 0.1) == CORPUS_VAL)
            assert_int_equal(corpus_side(text, n, 0.2), CORPUS_VAL);
    }

    // binomial: mean 400, standard deviation 19; six of them
    assert_in_range(drawn, 400 - 114, 400 + 114);
}

TEST(the_target_leaves_both_sides_a_byte) {
    assert_int_equal(corpus_cut_target(1000, 0.1), 900);
    assert_int_equal(corpus_cut_target(2, 1e-9), 1);
    assert_int_equal(corpus_cut_target(2, 0.999999), 1);
    assert_int_equal(corpus_cut_target(1, 0.5), 1); // a single byte is for training
}

TEST(a_cut_is_the_first_start_of_a_line_from_the_target_on) {
    const char *text = "one\ntwo\nthree\nfour";
    const int64_t n = (int64_t)strlen(text);
    for (int64_t from = 1; from <= 14; from++)
        assert_int_equal(corpus_cut(bytes, text, n, from), from <= 4 ? 4 : from <= 8 ? 8 : 14);
    assert_int_equal(corpus_cut(bytes, text, n, 15), 15); // no line ends behind it
    // the last newline would leave validation nothing
    assert_int_equal(corpus_cut(bytes, "ab\n", 3, 1), 1);
}

TEST(a_cut_without_lines_is_between_characters) {
    static const char euro[3] = {'\xE2', '\x82', '\xAC'};
    char text[300];
    for (size_t i = 0; i < 100; i++) memcpy(text + 3 * i, euro, sizeof euro);
    for (int64_t from = 1; from < 297; from++)
        assert_int_equal(corpus_cut(bytes, text, 300, from), (from + 2) / 3 * 3);
}

TEST(a_cut_changes_no_token_and_is_in_no_word) {
    const struct {
        const char *text;
        int64_t from, cut;
    } cases[] = {
        {"hello\nworld hello", 2, 6}, // a line that ends in one newline
        {"hello\n\nworld hello", 2,
         6}, // before the empty line: behind it two newlines would be one token
        {"hello\n\n\nworld hello", 2, 7},  //
        {"hello\n world\nhello", 2, 6},    // an indent of one space goes with the word
        {"hello\n  world\nhello", 2, 14},  // of the others, but the last, with the newline
        {"hello\r\nworld\r\nhello", 2, 7}, // "\r\n" is no token
        {"hello world hello", 7, 5},       // no line: the place before
        {"world hello", 2, 5},             // there is none: the one behind
        {"world's hello", 2, 5},           //
        {"hello", 2, 2},                   // one long word
    };

    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const int64_t cut =
            corpus_cut(toy, cases[i].text, (int64_t)strlen(cases[i].text), cases[i].from);
        if (cut != cases[i].cut) fail_msg("\"%s\": cut at %d", cases[i].text, (int)cut);
    }

    static char newlines[CUT_SEARCH]; // one look at each, not at all before it
    memset(newlines, '\n', sizeof newlines);
    newlines[CUT_SEARCH - 1] = 'a';
    assert_int_equal(corpus_cut(toy, newlines, CUT_SEARCH, 2), CUT_SEARCH - 2);
}

TEST(a_block_ends_between_characters) {
    const char *text = "ab\u00e9\u20ac\U0001F600z";
    static const int64_t ends[] = {1, 2, 2, 4, 4, 4, 7, 7, 7, 7, 11, 12};
    for (int64_t n = 1; n <= 12; n++) assert_int_equal(corpus_character_end(text, n), ends[n - 1]);
    // no characters: anywhere
    assert_int_equal(corpus_character_end("\x80\x80\x80\x80\x80\x80", 6), 6);
}
