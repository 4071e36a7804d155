// Training a vocabulary: the merges against the plainest form of the algorithm, which counts all
// pairs anew for each; the counts of words against the pattern itself, whatever the number of
// threads. test/e2e/test_train_tokenizer.py holds both against Hugging Face.

#include "llmc/base/random.h"
#include "llmc/text/bpe_trainer.h"
#include "llmc/text/pieces.h"
#include "llmc/text/vocabulary.h"
#include "test/test.h"

#include <math.h>
#include <pthread.h>

static Tokenizer *cuts;

static int make_cuts(void **state) {
    (void)state;
    return (cuts = tokenizer_for_cuts(PATTERN_GPT2, NULL)) ? 0 : -1;
}

static int free_cuts(void **state) {
    (void)state;
    tokenizer_free(cuts);
    return 0;
}
TestFixture test_all = {make_cuts, free_cuts};

static void ignore_progress(void *user, int64_t tokens) { (void)user, (void)tokens; }

static WordCounts *count_text(const char *text, int64_t n) {
    WordCounts *words = word_counts_create();
    WordCounter *counter = word_counter_create(words);
    word_counter_add(counter, cuts, text, n);
    word_counter_finish(counter);
    word_counter_free(counter);
    return words;
}

static Tokenizer *train_text(const char *text, int64_t n, int64_t vocab) {
    WordCounts *words = count_text(text, n);
    Error err = {""};
    Tokenizer *t = bpe_train(words, PATTERN_GPT2, vocab, ignore_progress, NULL, &err);
    if (!t) fail_msg("%s", err.text);
    word_counts_free(words);
    return t;
}

static void assert_token(const Tokenizer *t, int32_t token, const char *expected) {
    size_t n;
    const char *bytes = tokenizer_decode(t, token, &n);
    assert_int_equal(n, strlen(expected));
    assert_memory_equal(bytes, expected, n);
}

// ------------------------------------------------------------------------------------ known merges

TEST(the_bytes_are_in_the_order_of_their_characters_and_end_of_text_is_last) {
    static const char text[] = "aa aa";
    Tokenizer *t = train_text(text, sizeof text - 1, 258);
    assert_int_equal(tokenizer_vocab(t), 258);
    assert_int_equal(tokenizer_eot(t), 257);
    assert_token(t, 0, "!");
    assert_token(t, 93, "~");
    assert_token(t, 220, " ");
    assert_token(t, 256, "aa");
    assert_token(t, 257, "<|endoftext|>");
    tokenizer_free(t);
}

TEST(equal_counts_are_merged_in_the_order_of_their_tokens) {
    static const char text[] = "zy\nzy\nab\nab\nba\nba";
    Tokenizer *t = train_text(text, sizeof text - 1, 260);
    assert_token(t, 256, "ab");
    assert_token(t, 257, "ba");
    assert_token(t, 258, "zy");
    tokenizer_free(t);
}

TEST(a_pair_that_occurs_once_is_not_merged) {
    static const char text[] = "ab\nab\ncd";
    Tokenizer *t = train_text(text, sizeof text - 1, 1000);
    assert_int_equal(tokenizer_vocab(t), 258); // only "ab"
    t = (tokenizer_free(t), train_text("", 0, 1000));
    assert_int_equal(tokenizer_vocab(t), 257);
    tokenizer_free(t);
}

TEST(a_run_of_one_letter_is_merged_from_its_left_end) {
    // aa aa a: then "aa a" and "aa aa" count as much, and "a" comes first
    static const char text[] = "aaaaa\naaaaa";
    Tokenizer *t = train_text(text, sizeof text - 1, 1000);
    assert_token(t, 256, "aa");
    assert_token(t, 257, "aaa");
    assert_token(t, 258, "aaaaa");
    assert_int_equal(tokenizer_vocab(t), 260);
    tokenizer_free(t);
}

TEST(a_token_has_fewer_than_128_bytes) {
    char text[2 * 993]; // 15 times 64 letters, and 32 more
    memset(text, 'a', sizeof text);
    text[992] = '\n';
    text[sizeof text - 1] = '\n';
    Tokenizer *t = train_text(text, sizeof text, 1000);

    size_t n, longest = 0;
    for (int32_t i = 0; i + 1 < tokenizer_vocab(t); i++) {
        tokenizer_decode(t, i, &n);
        if (n > longest) longest = n;
    }

    assert_int_equal(longest, 96); // 64 and 32; 64 and 64 would be 128
    tokenizer_free(t);
}

// -------------------------------------------------------------------------- the plainest algorithm

enum { MAX_WORDS = 512, MAX_WORD = 64, MAX_TEXT = 8192 };

typedef struct {
    int32_t tokens[MAX_WORD];
    int n;
} Word;

static int split_text(const char *text, int64_t n, Word *words) {
    int count = 0;
    for (int64_t i = 0; i < n; count++) {
        words[count].n = 0;
        for (; text[i] != '\n'; i++)
            words[count].tokens[words[count].n++] = cuts->byte_tokens[(unsigned char)text[i]];
        i++;
    }
    return count;
}

// The most frequent pair of neighbours, the smallest of equals, of those that may become a token.
static int64_t best_pair(const Word *words, int count, const Tokenizer *t, uint64_t *best) {
    static int64_t counts[512][512];
    memset(counts, 0, sizeof counts);

    for (int w = 0; w < count; w++)
        for (int i = 0; i + 1 < words[w].n; i++)
            counts[words[w].tokens[i]][words[w].tokens[i + 1]]++;

    int64_t most = 0;
    for (int32_t a = 0; a < 512; a++)
        for (int32_t b = 0; b < 512; b++) {
            size_t m = 0, n = 0;
            if (counts[a][b] <= most) continue;
            tokenizer_decode(t, a, &m), tokenizer_decode(t, b, &n);
            if (m + n < 128) most = counts[a][b], *best = merge_pair(a, b);
        }
    return most;
}

static void merge_everywhere(Word *words, int count, uint64_t pair, int32_t merged) {
    for (int w = 0; w < count; w++) {
        Word *word = &words[w];
        int out = 0;
        for (int i = 0; i < word->n; out++) {
            bool is_pair =
                i + 1 < word->n && merge_pair(word->tokens[i], word->tokens[i + 1]) == pair;
            word->tokens[out] = is_pair ? merged : word->tokens[i];
            i += is_pair ? 2 : 1;
        }
        word->n = out;
    }
}

// Words of few letters, one on a line, so that the pattern cuts where the lines end.
static int64_t random_text(uint64_t round, char *text) {
    static const char *const alphabets[] = {"ab", "a", "aab", "abcdefgh", "abc"};
    const Philox shape = philox(11, round, 0);
    const char *alphabet = alphabets[shape.v[0] % 5];
    const uint32_t words = 1 + shape.v[1] % 100, longest = 1 + shape.v[2] % 40;
    int64_t n = 0;

    for (uint32_t w = 0; w < words; w++) {
        const uint32_t length = 1 + philox(12, round, w).v[0] % longest;
        for (uint32_t i = 0; i < length; i++)
            text[n++] = alphabet[philox(13, round, w << 8 | i).v[0] % (uint32_t)strlen(alphabet)];
        text[n++] = '\n';
    }
    return n;
}

TEST(the_merges_are_those_of_counting_all_pairs_anew) {
    static Word words[MAX_WORDS];
    static char text[MAX_TEXT];

    for (uint64_t round = 0; round < 200; round++) {
        const int64_t n = random_text(round, text), vocab = 257 + philox(14, round, 0).v[0] % 100;
        Tokenizer *t = train_text(text, n, vocab);
        const int count = split_text(text, n, words);

        int32_t merged = 256;
        for (;; merged++) {
            uint64_t pair = 0;
            if (merged == vocab - 1 || best_pair(words, count, t, &pair) < 2) break;
            const MergeRule *rule =
                merge_table_find(&t->merges, (int32_t)(pair >> 32), (int32_t)pair);
            if (!rule || rule->merged != merged)
                fail_msg("round %d: token %d is another one", (int)round, merged);
            merge_everywhere(words, count, pair, merged);
        }

        assert_int_equal(tokenizer_vocab(t), merged + 1);
        assert_int_equal(t->merges.count, merged - 256);
        tokenizer_free(t);
    }
}

// ---------------------------------------------------------------------------------- counting words

typedef struct {
    WordCounts *words;
    const char *text;
    int64_t n;
    int part, parts;
} CountJob;

static void *count_lines(void *argument) {
    const CountJob *job = argument;
    WordCounter *counter = word_counter_create(job->words);
    const char *end = job->text + job->n;
    int number = 0;
    for (const char *line = job->text, *next; line < end; line = next, number++) {
        next = (const char *)memchr(line, '\n', (size_t)(end - line)) + 1;
        if (number % job->parts == job->part) word_counter_add(counter, cuts, line, next - line);
    }
    word_counter_finish(counter);
    word_counter_free(counter);
    return NULL;
}

typedef struct {
    int64_t words, total, number_sum; // sum over words of the number in it times its count
} Seen;

static void see(void *user, const char *word, uint32_t length, int64_t count) {
    Seen *seen = user;
    seen->words++;
    seen->total += count;
    char digits[16] = {0};
    if (word[0] == 'w') return;
    memcpy(digits, word + (word[0] == ' '), length - (word[0] == ' '));
    seen->number_sum += atoll(digits) * count;
}

// More distinct words than a thread's own table takes, and longer ones than it keeps.
TEST(words_are_counted_by_any_number_of_threads) {
    enum { WORDS = 100000, TIMES = 3, MAX_BYTES = 4 << 20 };
    char *text = malloc(MAX_BYTES);
    int64_t n = 0, expected = 0, bytes;

    for (int i = 0; i < WORDS * TIMES; i++) {
        n += snprintf(text + n, 64, " %d%s", 1000 + i % WORDS, i % 8 == 7 ? "\n" : "");
        expected += 1000 + i % WORDS;
    }
    for (int i = 0; i < 1000; i++)
        n += snprintf(text + n, 64, "%040d\n", 0), memset(text + n - 41, 'w', 40);

    for (int parts = 1; parts <= 8; parts *= 2) {
        WordCounts *words = word_counts_create();
        pthread_t threads[8];
        CountJob jobs[8];

        for (int i = 0; i < parts; i++) {
            jobs[i] = (CountJob){words, text, n, i, parts};
            assert_int_equal(pthread_create(&threads[i], NULL, count_lines, &jobs[i]), 0);
        }
        for (int i = 0; i < parts; i++) pthread_join(threads[i], NULL);

        Seen seen = {0};
        // the newlines are of one byte
        assert_int_equal(word_counts_size(words, &bytes), WORDS + 1);
        word_counts_drain(words, see, &seen);
        assert_int_equal(seen.words, WORDS + 1);
        assert_int_equal(seen.total, WORDS * TIMES + 1000);
        assert_int_equal(seen.number_sum, expected);
        assert_int_equal(word_counts_size(words, &bytes), 0);
        word_counts_free(words);
    }

    free(text);
}
