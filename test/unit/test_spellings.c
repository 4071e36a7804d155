// The automaton of added tokens against the definition of what it finds, on short texts of few
// letters.
#include "llmc/base/arithmetic.h"
#include "llmc/text/spellings.h"
#include "test/test.h"

enum { LIST = 12, TEXT = 60 };

typedef struct {
    char bytes[LIST][8];
    Spelling list[LIST];
    int64_t n;
} Words;

static uint32_t draw(uint64_t *state, uint32_t below) {
    *state = *state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(*state >> 33) % below;
}

static void make_words(Words *w, uint64_t *seed) {
    w->n = 1 + draw(seed, LIST);
    for (int32_t i = 0; i < w->n; i++) {
        const int32_t length = 1 + (int32_t)draw(seed, 7);
        for (int32_t k = 0; k < length; k++) w->bytes[i][k] = (char)('a' + draw(seed, 2));
        w->list[i] = (Spelling){w->bytes[i], length, 100 + i};
    }
}

// The list's entry that is at `at`, the longest: its index, -1: none.
static int32_t longest_at(const Words *w, const char *text, int64_t n, int64_t at) {
    int32_t best = -1;
    for (int32_t i = 0; i < w->n; i++) {
        const int32_t length = w->list[i].length;
        if (length > n - at || memcmp(text + at, w->bytes[i], (size_t)length) != 0) continue;
        if (best < 0 || length > w->list[best].length) best = i;
    }
    return best;
}

static bool is_crossed(const Words *w, const char *text, int64_t n, int64_t m) {
    for (int32_t i = 0; i < w->n; i++)
        for (int64_t at = max_i64(0, m - w->list[i].length + 1); at < m; at++) {
            const int64_t seen = min_i64(w->list[i].length, n - at);
            if (memcmp(text + at, w->bytes[i], (size_t)seen) == 0) return true;
        }
    return false;
}

TEST(the_first_and_longest_spelling_is_found_and_the_places_that_one_crosses) {
    uint64_t seed = 1;
    for (int round = 0; round < 20000; round++) {
        Words w;
        char text[TEXT];
        make_words(&w, &seed);
        const int64_t n = 1 + draw(&seed, TEXT - 1);
        for (int64_t i = 0; i < n; i++)
            text[i] = (char)('a' + draw(&seed, 2) + draw(&seed, 20) / 19);
        Spellings *s = spellings_new(w.list, w.n);

        int64_t at, first = 0;
        while (first < n && longest_at(&w, text, n, first) < 0) first++;
        const int32_t found = spellings_find(s, text, n, &at);
        assert_int_equal(at, first);
        if (first == n) assert_int_equal(found, -1);
        if (first < n) assert_int_equal(found, 100 + longest_at(&w, text, n, first));

        bool crossed[TEXT] = {false};
        const int64_t low = draw(&seed, (uint32_t)n),
                      high = low + 1 + draw(&seed, (uint32_t)(n - low));
        spellings_mark_crossed(s, text, n, low, high, crossed);
        for (int64_t m = low; m < high; m++)
            if (crossed[m - low] != is_crossed(&w, text, n, m))
                fail_msg("round %d: place %d of %d", round, (int)m, (int)n);
        spellings_free(s);
    }
}

TEST(without_spellings_nothing_is_found) {
    int64_t at;
    assert_null(spellings_new(NULL, 0));
    assert_int_equal(spellings_find(NULL, "ab", 2, &at), -1);
}
