// See bpe_trainer.h. Every distinct word is a row of tokens. Every pair of tokens has its count and
// a list of the words that had it when the pair was first made. A queue gives the pair with the
// largest count, the smaller one of equals. A pair whose count has dropped since it was queued is
// noticed when it is popped, and queued again. So a merge visits only the words of its own pair,
// and its changes are summed by neighbour before the table of pairs is updated. A token is only
// ever made by one merge: which merges happen inside a stretch of text that becomes a token depends
// only on that stretch.
#include "llmc/text/bpe_trainer.h"

#include "llmc/base/arithmetic.h"
#include "llmc/base/format.h"
#include "llmc/base/memory.h"
#include "llmc/text/alphabet.h"
#include "llmc/text/vocabulary.h"

#include <stdlib.h>
#include <string.h>

enum {
    MIN_COUNT = 2,
    LENGTH_BOUND = 128,  // tokens are shorter than this
    HEADER = 3,          // of a word: count (2), length
    PREFETCH = 8,        // words ahead
    REPORT_TOKENS = 256, // between two reports
};

// ------------------------------------------------------------------------------------------- pairs

typedef struct {
    uint64_t key; // pair + 1; 0: free
    int64_t count;
} PairCount;

// A hash table, at most three quarters full.
typedef struct {
    PairCount *slots;
    int64_t used, capacity;
    int shift; // 64 - log2(capacity)
} PairTable;

static PairCount *find_pair(const PairTable *t, uint64_t pair) {
    uint64_t mask = (uint64_t)t->capacity - 1, i = pair_slot(pair, t->shift);
    while (t->slots[i].key != 0 && t->slots[i].key != pair + 1) i = (i + 1) & mask;
    return &t->slots[i];
}

// Makes space for `more` pairs; slots keep their places until the next call.
static void reserve_pairs(PairTable *t, int64_t more) {
    int64_t capacity = positive_or(t->capacity, 1 << 12);
    while (4 * (t->used + more) > 3 * capacity) capacity *= 2;
    if (capacity == t->capacity) return;
    PairTable grown = {
        .capacity = capacity, .used = t->used, .shift = 64 - __builtin_ctzll((uint64_t)capacity)};
    grown.slots = memory_zeroed(capacity, sizeof *grown.slots);
    for (int64_t i = 0; i < t->capacity; i++)
        if (t->slots[i].key != 0) *find_pair(&grown, t->slots[i].key - 1) = t->slots[i];
    free(t->slots);
    *t = grown;
}

// Adds to the count of a pair, which is created if needed.
static PairCount *add_to_pair(PairTable *t, uint64_t pair, int64_t count) {
    PairCount *p = find_pair(t, pair);
    if (p->key == 0) {
        p->key = pair + 1;
        t->used++;
    }
    p->count += count;
    return p;
}

// ------------------------------------------------------------------------------------------- queue

typedef struct {
    int64_t count; // when it was queued
    uint64_t pair;
    union {
        uint32_t *words; // owned
        uint32_t word;   // the only one
    };
    uint32_t num_words;
} Candidate;

typedef struct {
    Candidate *heap;
    int64_t n, room;
} Queue;

static bool comes_before(const Candidate *a, const Candidate *b) {
    if (a->count != b->count) return a->count > b->count;
    return a->pair < b->pair;
}

static void queue_push(Queue *q, Candidate c) {
    q->heap = memory_grow(q->heap, &q->room, q->n + 1, sizeof *q->heap);
    int64_t at = q->n++;
    for (int64_t up; at > 0 && comes_before(&c, &q->heap[up = (at - 1) / 2]); at = up)
        q->heap[at] = q->heap[up];
    q->heap[at] = c;
}

// The queue is not empty.
static Candidate queue_pop(Queue *q) {
    const Candidate top = q->heap[0], last = q->heap[--q->n];
    int64_t at = 0;
    for (int64_t down; (down = 2 * at + 1) < q->n; at = down) {
        if (down + 1 < q->n && comes_before(&q->heap[down + 1], &q->heap[down])) down++;
        if (!comes_before(&q->heap[down], &last)) break;
        q->heap[at] = q->heap[down];
    }
    q->heap[at] = last;
    return top;
}

static Candidate candidate_of(uint64_t pair, int64_t count, uint32_t num_words, uint32_t *words,
                              uint32_t only_word) {
    Candidate c = {.count = count, .pair = pair, .num_words = num_words, .words = words};
    if (!words) c.word = only_word;
    return c;
}

static void free_candidate(const Candidate *c) {
    // NOLINT(clang-analyzer-unix.Malloc): it is not in the queue now
    if (c->num_words > 1) free(c->words);
}

// ----------------------------------------------------------------------------------------- trainer

// The effect of one merge on the pairs with one neighbour.
typedef struct {
    int64_t lost, won; // occurrences of the pair with the old token, and with the new one
    PairCount *pair;   // with the new one
    uint32_t num_words, last_word, next;
    uint32_t *words; // of the new pair
} Neighbour;

typedef struct {
    uint32_t neighbour, word;
} Event;

// One side of the merged pair: its neighbours there, and the words in which they got a new pair.
typedef struct {
    Neighbour *of;     // by token; all zero between merges
    uint32_t *touched; // tokens with a nonzero entry
    Event *events;
    int64_t num_touched, num_events, event_room;
} Side;

typedef struct {
    uint32_t *words; // of each word: count (two halves), length, tokens
    int64_t num_words, used, room;
    PairTable pairs;
    Queue queue;
    Side left, right;
    Tokenizer *tokenizer; // so far
} Trainer;

static int64_t word_count(const uint32_t *word) {
    return (int64_t)((uint64_t)word[1] << 32 | word[0]);
}

// ------------------------------------------------------------------------ words and pairs of bytes

static void take_word(void *user, const char *word, uint32_t length, int64_t count) {
    Trainer *t = user;
    uint32_t *out = t->words + t->used;
    out[0] = (uint32_t)count;
    out[1] = (uint32_t)((uint64_t)count >> 32);
    out[2] = length;
    for (uint32_t i = 0; i < length; i++)
        out[HEADER + i] = (uint32_t)t->tokenizer->byte_tokens[(unsigned char)word[i]];
    t->used += HEADER + length;
}

// Pairs of bytes: their counts, and the number of words that have them.
typedef struct {
    int64_t count;
    uint32_t num_words, last_word;
    uint32_t *words;
} BytePair;

static void queue_byte_pairs(Trainer *t) {
    BytePair *pairs = memory_zeroed(1 << 16, sizeof *pairs);
    reserve_pairs(&t->pairs, 1 << 16);

    for (int64_t at = 0; at < t->used; at += HEADER + t->words[at + 2]) { // counts
        const uint32_t *word = t->words + at, *tokens = word + HEADER;
        for (uint32_t i = 0; i + 1 < word[2]; i++) {
            BytePair *p = &pairs[tokens[i] << 8 | tokens[i + 1]];
            p->count += word_count(word);
            p->num_words += p->num_words == 0 || p->last_word != at;
            p->last_word = (uint32_t)at;
        }
    }

    for (uint32_t i = 0; i < 1 << 16; i++) {
        if (pairs[i].num_words < 2) continue;
        pairs[i].words = memory_new(pairs[i].num_words, sizeof(uint32_t));
        pairs[i].num_words = 0;
    }

    for (int64_t at = 0; at < t->used; at += HEADER + t->words[at + 2]) { // lists the words
        const uint32_t *word = t->words + at, *tokens = word + HEADER;
        for (uint32_t i = 0; i + 1 < word[2]; i++) {
            BytePair *p = &pairs[tokens[i] << 8 | tokens[i + 1]];
            if (!p->words || (p->num_words > 0 && p->last_word == at)) continue;
            p->words[p->num_words++] = p->last_word = (uint32_t)at;
        }
    }

    for (uint32_t i = 0; i < 1 << 16; i++) {
        const BytePair *p = &pairs[i];
        if (p->num_words == 0) continue;
        const uint64_t pair = merge_pair((int32_t)(i >> 8), (int32_t)(i & 255));
        add_to_pair(&t->pairs, pair, p->count);
        queue_push(&t->queue, candidate_of(pair, p->count, p->num_words, p->words, p->last_word));
    }

    free(pairs);
}

// ----------------------------------------------------------------------------------------- a merge

static Neighbour *touch_neighbour(Side *s, uint32_t token) {
    Neighbour *n = &s->of[token];
    if (n->lost == 0 && n->won == 0) s->touched[s->num_touched++] = token;
    return n;
}

// Notes that a pair of the new token with a neighbour occurs in a word.
static void count_won(Side *s, uint32_t token, uint32_t word, int64_t count) {
    Neighbour *n = touch_neighbour(s, token);
    n->won += count;
    if (n->num_words > 0 && n->last_word == word) return;
    n->num_words++;
    n->last_word = word;
    s->events = memory_grow(s->events, &s->event_room, s->num_events + 1, sizeof *s->events);
    s->events[s->num_events++] = (Event){token, word};
}

// Returns the first place of the pair a, b among n tokens, or n.
static uint32_t find_in_word(const uint32_t *tokens, uint32_t n, uint32_t a, uint32_t b) {
    enum { BLOCK = 16 };
    uint32_t i = 0;
    for (; i + BLOCK < n; i += BLOCK) { // for long words: without a branch inside
        uint32_t found = 0;
        for (uint32_t k = 0; k < BLOCK; k++)
            found |= (uint32_t)(tokens[i + k] == a) & (uint32_t)(tokens[i + k + 1] == b);
        if (found) break;
    }
    for (; i + 1 < n; i++)
        if (tokens[i] == a && tokens[i + 1] == b) return i;
    return n;
}

// Merges the pair in one word, from left to right.
static void merge_in_word(Trainer *t, uint32_t at, uint32_t a, uint32_t b, uint32_t merged) {
    uint32_t *word = t->words + at, *tokens = word + HEADER;
    const uint32_t n = word[2], first = find_in_word(tokens, n, a, b);
    if (first == n) return;

    const int64_t count = word_count(word);
    const Token *spelled = t->tokenizer->tokens;
    const uint32_t bound = LENGTH_BOUND - spelled[merged].length;
    uint32_t out = first;

    for (uint32_t i = first; i < n;) {
        if (i + 1 == n || tokens[i] != a || tokens[i + 1] != b) {
            tokens[out++] = tokens[i++];
            continue;
        }

        if (out > 0) {
            const uint32_t before = tokens[out - 1];
            touch_neighbour(&t->left, before)->lost += count;
            if (spelled[before].length < bound) count_won(&t->left, before, at, count);
        }
        if (i + 2 < n) {
            const uint32_t after = tokens[i + 2];
            touch_neighbour(&t->right, after)->lost += count;
            if (spelled[after].length < bound) count_won(&t->right, after, at, count);
        }
        tokens[out++] = merged;
        i += 2;
    }

    word[2] = out;
}

static uint64_t pair_at(bool is_left, uint32_t neighbour, uint32_t token) {
    if (is_left) return merge_pair((int32_t)neighbour, (int32_t)token);
    return merge_pair((int32_t)token, (int32_t)neighbour);
}

// Adds the counts of a side's new pairs before anything is subtracted from them: in "aaaa" both "aa
// a" and "aa aa" are new, and "aa a" is gone again.
static void add_won(Trainer *t, Side *s, bool is_left, uint32_t merged) {
    for (int64_t i = 0; i < s->num_touched; i++)
        if (s->of[s->touched[i]].won)
            __builtin_prefetch(&t->pairs.slots[pair_slot(pair_at(is_left, s->touched[i], merged),
                                                         t->pairs.shift)]);
    for (int64_t i = 0; i < s->num_touched; i++) {
        Neighbour *n = &s->of[s->touched[i]];
        if (n->won)
            n->pair = add_to_pair(&t->pairs, pair_at(is_left, s->touched[i], merged), n->won);
    }
}

// old: the token of the merged pair on this side.
static void subtract_lost(Trainer *t, Side *s, bool is_left, uint32_t old) {
    for (int64_t i = 0; i < s->num_touched; i++)
        __builtin_prefetch(
            &t->pairs.slots[pair_slot(pair_at(is_left, s->touched[i], old), t->pairs.shift)]);
    for (int64_t i = 0; i < s->num_touched; i++) {
        PairCount *pair = find_pair(&t->pairs, pair_at(is_left, s->touched[i], old));
        // otherwise it would be too long for a token
        if (pair->key != 0) pair->count -= s->of[s->touched[i]].lost;
    }
}

// Queues a side's new pairs, and clears the side.
static void queue_pairs(Trainer *t, Side *s, bool is_left, uint32_t merged) {
    for (int64_t i = 0; i < s->num_touched; i++) {
        Neighbour *n = &s->of[s->touched[i]];
        n->next = 0;
        if (n->num_words < 2 || n->pair->count < MIN_COUNT) continue;
        n->words = memory_new(n->num_words, sizeof *n->words);
    }
    for (int64_t i = 0; i < s->num_events; i++) {
        Neighbour *n = &s->of[s->events[i].neighbour];
        if (n->words) n->words[n->next++] = s->events[i].word;
    }
    for (int64_t i = 0; i < s->num_touched; i++) {
        Neighbour *n = &s->of[s->touched[i]];
        if (n->won && n->pair->count >= MIN_COUNT)
            queue_push(&t->queue,
                       candidate_of(pair_at(is_left, s->touched[i], merged), n->pair->count,
                                    n->num_words, n->words, n->last_word));
        *n = (Neighbour){0};
    }
    s->num_touched = s->num_events = 0;
}

// Adds the rule that merges two tokens, and the token of both.
static bool add_merge(Tokenizer *t, int32_t left, int32_t right, Error *err) {
    char both[2 * LENGTH_BOUND];
    const Token *a = &t->tokens[left], *b = &t->tokens[right];
    memcpy(both, t->bytes + a->offset, a->length);
    memcpy(both + a->length, t->bytes + b->offset, b->length);
    const int32_t merged = t->count;
    const MergeRule rule = {.pair = merge_pair(left, right),
                            .rank = (uint32_t)merged,
                            .merged = merged},
                    *known;
    return vocabulary_add(t, merged, both, (size_t)a->length + b->length, true, err) &&
           merge_table_add(&t->merges, rule, &known);
}

static bool merge_candidate(Trainer *t, const Candidate *c, Error *err) {
    const int32_t a = (int32_t)(c->pair >> 32), b = (int32_t)c->pair, merged = t->tokenizer->count;
    if (!add_merge(t->tokenizer, a, b, err)) return false;
    // NOLINTBEGIN(clang-analyzer-unix.Malloc): likewise
    const uint32_t *words = &c->word;
    if (c->num_words > 1) words = c->words;
    for (uint32_t i = 0; i < c->num_words; i++) {
        if (i + PREFETCH < c->num_words) __builtin_prefetch(t->words + words[i + PREFETCH]);
        merge_in_word(t, words[i], (uint32_t)a, (uint32_t)b, (uint32_t)merged);
    }
    // NOLINTEND(clang-analyzer-unix.Malloc)
    reserve_pairs(&t->pairs, t->left.num_touched + t->right.num_touched);
    add_won(t, &t->left, true, (uint32_t)merged);
    add_won(t, &t->right, false, (uint32_t)merged);
    subtract_lost(t, &t->left, true, (uint32_t)a);
    subtract_lost(t, &t->right, false, (uint32_t)b);
    queue_pairs(t, &t->left, true, (uint32_t)merged);
    queue_pairs(t, &t->right, false, (uint32_t)merged);
    return true;
}

// -------------------------------------------------------------------------------------- all merges

static bool find_merges(Trainer *t, WordCounts *words, int64_t tokens,
                        void (*on_progress)(void *user, int64_t tokens), void *user, Error *err) {
    int64_t bytes;
    const int64_t count = word_counts_size(words, &bytes), size = HEADER * count + bytes;
    if (size > UINT32_MAX)
        return error_set(err, "%lld distinct words of %lld bytes: too many to train on",
                         (long long)count, (long long)bytes);
    t->words = malloc((size_t)size * sizeof *t->words + 1);
    if (!t->words) return error_set(err, "out of memory for %lld words", (long long)count);
    word_counts_drain(words, take_word, t);

    Side *const sides[] = {&t->left, &t->right};
    for (int i = 0; i < 2; i++) {
        sides[i]->of = memory_zeroed(tokens, sizeof *sides[i]->of);
        sides[i]->touched = memory_new(tokens, sizeof *sides[i]->touched);
    }
    queue_byte_pairs(t);
    while (t->tokenizer->count < tokens && t->queue.n > 0) {
        Candidate c = queue_pop(&t->queue);
        const int64_t queued = c.count;
        c.count = find_pair(&t->pairs, c.pair)->count;
        if (c.count != queued && c.count >= MIN_COUNT) {
            queue_push(&t->queue, c);
            continue;
        }
        const bool ok = c.count < MIN_COUNT || merge_candidate(t, &c, err);
        free_candidate(&c);
        if (!ok) return false;
        if (t->tokenizer->count % REPORT_TOKENS == 0) on_progress(user, t->tokenizer->count);
    }
    return true;
}

static bool add_bytes(Tokenizer *t, Error *err) {
    int32_t number = 0;
    for (uint32_t c = 0; c < 0x200; c++) { // by character; none is larger
        for (int byte = 0; byte < 256; byte++)
            if (alphabet_character((unsigned char)byte) == c &&
                !vocabulary_add(t, number++, &(char){(char)byte}, 1, true, err))
                return false;
    }
    for (int byte = 0; byte < 256; byte++)
        t->byte_tokens[byte] = vocabulary_find(t, &(char){(char)byte}, 1);
    return true;
}

Tokenizer *bpe_train(WordCounts *words, Pattern pattern, int64_t vocab,
                     void (*on_progress)(void *user, int64_t tokens), void *user, Error *err) {
    REQUIRE(vocab >= MIN_TRAINED_VOCAB && vocab <= MAX_TRAINED_VOCAB, "a vocabulary of %lld",
            (long long)vocab);
    Trainer t = {.tokenizer = vocabulary_new("byte-level BPE of train:%lld%s%s", (long long)vocab,
                                             pattern ? ":" : "",
                                             pattern ? pattern_facts[pattern].name : "")};
    t.tokenizer->pattern = pattern;

    bool ok =
        add_bytes(t.tokenizer, err) && find_merges(&t, words, vocab - 1, on_progress, user, err) &&
        vocabulary_add_added(t.tokenizer, t.tokenizer->count, END_OF_TEXT, true, false, err) &&
        vocabulary_finish(t.tokenizer, err);

    for (int64_t i = 0; i < t.queue.n; i++) free_candidate(&t.queue.heap[i]);
    free(t.queue.heap);
    free(t.pairs.slots);
    free(t.words);
    Side *const sides[] = {&t.left, &t.right};
    for (int i = 0; i < 2; i++) {
        free(sides[i]->of);
        free(sides[i]->touched);
        free(sides[i]->events);
    }

    if (ok) return t.tokenizer;
    tokenizer_free(t.tokenizer);
    return NULL;
}

Tokenizer *tokenizer_for_cuts(Pattern pattern, Error *err) {
    Tokenizer *t = vocabulary_new("cuts");
    t->pattern = pattern;
    if (add_bytes(t, err) && add_merge(t, t->byte_tokens['\r'], t->byte_tokens['\n'], err) &&
        vocabulary_add_added(t, t->count, END_OF_TEXT, true, false, err) &&
        vocabulary_finish(t, err))
        return t;
    tokenizer_free(t);
    return NULL;
}
