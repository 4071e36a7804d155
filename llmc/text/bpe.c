// Byte-level BPE: bytes and their spelling, pieces, merges, and the encoder that joins them. See tokenizer.h.
//
// The bytes that are not printable, in order: 0..32, 127..160, 173.
//
// The encoder finds added tokens by their spelling, cuts the text between them into pieces and merges the bytes of
// each, unless its cache has the result. Owns one thread's cache.
#include "llmc/base/utf8.h"
#include "llmc/text/tokenizer_internal.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

enum { FIRST_RANGE = 0x100, SECOND_RANGE = FIRST_RANGE + 33, SOFT_HYPHEN = SECOND_RANGE + 34 };

uint32_t alphabet_character(unsigned char byte) {
    if (byte <= 32) return FIRST_RANGE + byte;
    if (byte >= 127 && byte <= 160) return SECOND_RANGE + (uint32_t)(byte - 127);
    return byte == 173 ? SOFT_HYPHEN : byte;
}

// -1: the character spells no byte.
static int byte_of(uint32_t c) {
    if (c < FIRST_RANGE) return alphabet_character((unsigned char)c) == c ? (int)c : -1;
    if (c < SECOND_RANGE) return (int)(c - FIRST_RANGE);
    if (c < SOFT_HYPHEN) return (int)(c - SECOND_RANGE + 127);
    return c == SOFT_HYPHEN ? 173 : -1;
}

bool alphabet_decode(const char *text, size_t n, char *out, size_t *bytes) {
    *bytes = 0;
    for (size_t at = 0; at < n;) {
        uint32_t c;
        int length = utf8_decode((const unsigned char *)text + at, (int64_t)(n - at), &c);
        int byte = length > 0 ? byte_of(c) : -1;
        if (byte < 0) return false;
        out[(*bytes)++] = (char)byte;
        at += (size_t)length;
    }
    return true;
}

size_t alphabet_encode(const char *bytes, size_t n, char *out) {
    size_t used = 0;
    for (size_t i = 0; i < n; i++) used += (size_t)utf8_encode(alphabet_character((unsigned char)bytes[i]), out + used);
    return used;
}

// ------------------------------------------------------------------------------------------------------------- merging

// Up to this length a scan for the lowest rank is faster than a heap. Measured on random letters: 12% faster at 48
// bytes, equal at 64 to 128, 25% slower at 192.
enum { SHORT_PIECE = 64 };
#define NO_RANK UINT32_MAX

// ----------------------------------------------------------------------------------------------------------- the table

static void insert(MergeTable *t, MergeRule rule) {
    uint64_t mask = (uint64_t)t->capacity - 1, i = pair_slot(rule.pair, t->shift);
    while (t->slots[i].pair != MERGE_NO_PAIR) i = (i + 1) & mask;
    t->slots[i] = rule;
    t->count++;
}

static bool grow(MergeTable *t, Error *err) {
    MergeTable grown = {.capacity = t->capacity ? 2 * t->capacity : 1024};
    grown.shift = 64 - __builtin_ctzll((unsigned long long)grown.capacity);
    size_t bytes = (size_t)grown.capacity * sizeof *grown.slots;
    grown.slots = malloc(bytes);
    if (!grown.slots) return error_set(err, "out of memory for %lld merges", (long long)grown.capacity / 2);
    memset(grown.slots, 0xFF, bytes); // MERGE_NO_PAIR everywhere
    for (int64_t i = 0; i < t->capacity; i++)
        if (t->slots[i].pair != MERGE_NO_PAIR) insert(&grown, t->slots[i]);
    merge_table_free(t);
    *t = grown;
    return true;
}

bool merge_table_add(MergeTable *t, MergeRule rule, const MergeRule **known, Error *err) {
    *known = merge_table_find(t, (int32_t)(rule.pair >> 32), (int32_t)rule.pair);
    if (*known) return false;
    if (2 * (t->count + 1) > t->capacity && !grow(t, err)) return false;
    insert(t, rule);
    return true;
}

void merge_table_free(MergeTable *t) {
    free(t->slots);
    *t = (MergeTable){0};
}

// -------------------------------------------------------------------------------------------------------- short pieces

typedef struct {
    uint32_t rank;
    int32_t merged;
} Candidate;

static inline Candidate candidate(const MergeTable *t, int32_t left, int32_t right, uint32_t below) {
    const MergeRule *rule = merge_table_find(t, left, right);
    if (!rule || rule->rank >= below) return (Candidate){NO_RANK, -1};
    return (Candidate){rule->rank, rule->merged};
}

// pairs[i]: the merge of tokens[i] and tokens[i + 1].
static int64_t merge_short(const MergeTable *t, int32_t *tokens, int64_t n, uint32_t below, int64_t least) {
    Candidate pairs[SHORT_PIECE];
    for (int64_t i = 0; i + 1 < n; i++) pairs[i] = candidate(t, tokens[i], tokens[i + 1], below);
    while (n > least) {
        int64_t best = 0;
        for (int64_t i = 1; i + 1 < n; i++)
            if (pairs[i].rank < pairs[best].rank) best = i;
        if (pairs[best].rank == NO_RANK) break;
        tokens[best] = pairs[best].merged;
        n--;
        for (int64_t i = best + 1; i < n; i++) tokens[i] = tokens[i + 1], pairs[i - 1] = pairs[i];
        if (best > 0) pairs[best - 1] = candidate(t, tokens[best - 1], tokens[best], below);
        if (best + 1 < n) pairs[best] = candidate(t, tokens[best], tokens[best + 1], below);
    }
    return n;
}

// --------------------------------------------------------------------------------------------------------- long pieces

// A long piece is a chain of tokens. The token at place i lives as long as pairs with it can be merged.
typedef struct {
    uint32_t previous, next; // places; n: none
    Candidate pair;          // with the next one
} Link;

// The pairs by rank, then place: rank << 32 | place. An entry is stale when its place has another rank by now.
typedef struct {
    uint64_t *entries;
    int64_t count, capacity;
} Heap;

static void sift_down(Heap *h, int64_t i) {
    uint64_t entry = h->entries[i];
    for (int64_t child; (child = 2 * i + 1) < h->count; i = child) {
        if (child + 1 < h->count && h->entries[child + 1] < h->entries[child]) child++;
        if (entry <= h->entries[child]) break;
        h->entries[i] = h->entries[child];
    }
    h->entries[i] = entry;
}

static void heap_push(Heap *h, uint64_t entry) {
    if (h->count == h->capacity) {
        h->capacity += h->capacity / 2 + SHORT_PIECE;
        h->entries = realloc(h->entries, (size_t)h->capacity * sizeof *h->entries);
        REQUIRE_MEMORY(h->entries, "a piece of text with %lld pairs", (long long)h->capacity);
    }
    int64_t i = h->count++;
    for (; i > 0 && entry < h->entries[(i - 1) / 2]; i = (i - 1) / 2) h->entries[i] = h->entries[(i - 1) / 2];
    h->entries[i] = entry;
}

static uint64_t heap_pop(Heap *h) {
    uint64_t top = h->entries[0];
    h->entries[0] = h->entries[--h->count];
    if (h->count > 0) sift_down(h, 0);
    return top;
}

static uint64_t entry_of(const Link *links, uint32_t place) { return (uint64_t)links[place].pair.rank << 32 | place; }

// Updates the pair that begins at place.
static void renew(const MergeTable *t, const int32_t *tokens, Link *links, Heap *heap, uint32_t place, uint32_t n,
                  uint32_t below) {
    uint32_t next = links[place].next;
    links[place].pair = next < n ? candidate(t, tokens[place], tokens[next], below) : (Candidate){NO_RANK, -1};
    if (links[place].pair.rank != NO_RANK) heap_push(heap, entry_of(links, place));
}

static void merge_chain(const MergeTable *t, int32_t *tokens, Link *links, Heap *heap, uint32_t n, uint32_t below,
                        int64_t least) {
    for (int64_t left = n; heap->count > 0 && left > least;) {
        uint64_t entry = heap_pop(heap);
        uint32_t place = (uint32_t)entry, dead = links[place].next;
        if (links[place].pair.rank != entry >> 32) continue;
        tokens[place] = links[place].pair.merged, left--;
        links[place].next = links[dead].next;
        if (links[dead].next < n) links[links[dead].next].previous = place;
        links[dead].pair.rank = NO_RANK;
        if (place > 0) renew(t, tokens, links, heap, links[place].previous, n, below);
        renew(t, tokens, links, heap, place, n, below);
    }
}

static int64_t merge_long(const MergeTable *t, int32_t *tokens, uint32_t n, uint32_t below, int64_t least) {
    Link *links = malloc(n * sizeof *links);
    Heap heap = {.entries = malloc(n * sizeof *heap.entries), .capacity = n};
    REQUIRE_MEMORY(links && heap.entries, "a piece of text of %u bytes", n);
    for (uint32_t i = 0; i < n; i++) {
        links[i] = (Link){.previous = i - 1, .next = i + 1, .pair = {NO_RANK, -1}};
        if (i + 1 < n) links[i].pair = candidate(t, tokens[i], tokens[i + 1], below);
        if (links[i].pair.rank != NO_RANK) heap.entries[heap.count++] = entry_of(links, i);
    }
    for (int64_t i = heap.count / 2 - 1; i >= 0; i--) sift_down(&heap, i);
    merge_chain(t, tokens, links, &heap, n, below, least);
    int64_t left = 0;
    for (uint32_t i = 0; i < n; i = links[i].next) tokens[left++] = tokens[i];
    free(links);
    free(heap.entries);
    return left;
}

int64_t merge_tokens(const MergeTable *t, int32_t *tokens, int64_t n, uint32_t below, int64_t least) {
    REQUIRE(n < UINT32_MAX, "a piece of %lld bytes", (long long)n);
    return n <= SHORT_PIECE ? merge_short(t, tokens, n, below, least)
                            : merge_long(t, tokens, (uint32_t)n, below, least);
}

// -------------------------------------------------------------------------------------------------------------- pieces

// ---------------------------------------------------------------------------------------------- kinds of characters

typedef struct {
    uint32_t first, last;
} CodeRange;

// Letters and numbers of Unicode 15, 15.1 and 16. Debian 12's PCRE2 (10.42) ends at Unicode 14; with these, every
// PCRE2 since 10.40 gives the same tokens.
static const CodeRange newer_letters[] = {
    {0x1C89, 0x1C8A},   {0xA7CB, 0xA7CD},   {0xA7DA, 0xA7DC},   {0x105C0, 0x105F3}, {0x10D4A, 0x10D65},
    {0x10D6F, 0x10D85}, {0x10EC2, 0x10EC4}, {0x1123F, 0x11240}, {0x11380, 0x11389}, {0x1138B, 0x1138B},
    {0x1138E, 0x1138E}, {0x11390, 0x113B5}, {0x113B7, 0x113B7}, {0x113D1, 0x113D1}, {0x113D3, 0x113D3},
    {0x11BC0, 0x11BE0}, {0x11F02, 0x11F02}, {0x11F04, 0x11F10}, {0x11F12, 0x11F33}, {0x1342F, 0x1342F},
    {0x13441, 0x13446}, {0x13460, 0x143FA}, {0x16100, 0x1611D}, {0x16D40, 0x16D6C}, {0x18CFF, 0x18CFF},
    {0x1B132, 0x1B132}, {0x1B155, 0x1B155}, {0x1DF25, 0x1DF2A}, {0x1E030, 0x1E06D}, {0x1E4D0, 0x1E4EB},
    {0x1E5D0, 0x1E5ED}, {0x1E5F0, 0x1E5F0}, {0x2B739, 0x2B739}, {0x2EBF0, 0x2EE5D}, {0x31350, 0x323AF},
};
static const CodeRange newer_numbers[] = {
    {0x10D40, 0x10D49}, {0x116D0, 0x116E3}, {0x11BF0, 0x11BF9}, {0x11F50, 0x11F59}, {0x16130, 0x16139},
    {0x16D70, 0x16D79}, {0x1CCF0, 0x1CCF9}, {0x1D2C0, 0x1D2D3}, {0x1E4F0, 0x1E4F9}, {0x1E5F1, 0x1E5FA},
};
// Unicode's White_Space, the \s of the other two libraries; PCRE2's \s also has U+180E.
static const CodeRange spaces[] = {
    {0x09, 0x0D},     {0x20, 0x20},     {0x85, 0x85},     {0xA0, 0xA0},     {0x1680, 0x1680},
    {0x2000, 0x200A}, {0x2028, 0x2029}, {0x202F, 0x202F}, {0x205F, 0x205F}, {0x3000, 0x3000},
};
#define COUNT(array) (sizeof(array) / sizeof(array)[0])

static void mark_ranges(uint8_t *table, const CodeRange *ranges, size_t count, CharKind kind) {
    for (size_t i = 0; i < count; i++) memset(table + ranges[i].first, (int)kind, ranges[i].last - ranges[i].first + 1);
}

// Has PCRE2 find the runs of letters and of numbers in a text of all characters, in order.
static bool mark_properties(uint8_t *table, pcre2_code *code, const char *all, size_t n) {
    pcre2_match_data *match = pcre2_match_data_create(3, NULL);
    if (!match) return false;
    const size_t *range = pcre2_get_ovector_pointer(match);
    int found = 0;
    for (size_t at = 0; at < n; at = range[1]) {
        found = pcre2_match(code, (PCRE2_SPTR)all, n, at, PCRE2_NO_UTF_CHECK, match, NULL);
        if (found < 0) break;
        CharKind kind = found == 2 ? CHAR_LETTER : CHAR_NUMBER; // 1 + the number of the last group that matched
        for (size_t i = range[0]; i < range[1];) {
            uint32_t c = 0;
            i += (size_t)utf8_decode((const unsigned char *)all + i, (int64_t)(range[1] - i), &c);
            table[c] = (uint8_t)kind;
        }
    }
    pcre2_match_data_free(match);
    return found >= 0 || found == PCRE2_ERROR_NOMATCH;
}

static bool fill_table(uint8_t *table, Error *err) {
    int error;
    size_t where, n = 0;
    pcre2_code *code = pcre2_compile((PCRE2_SPTR) "(\\p{L}+)|(\\p{N}+)", PCRE2_ZERO_TERMINATED, PCRE2_UTF | PCRE2_UCP,
                                     &error, &where, NULL);
    if (!code && error == PCRE2_ERROR_HEAP_FAILED) return error_set(err, "out of memory for PCRE2");
    if (!code) return error_set(err, "PCRE2 was built without Unicode properties (error %d)", error);
    pcre2_jit_compile(code, PCRE2_JIT_COMPLETE); // without JIT it is only slower
    char *all = malloc((size_t)4 * CHAR_TABLE_SIZE);
    for (uint32_t c = 0; all && c < CHAR_TABLE_SIZE; c++)
        if (c < 0xD800 || c >= 0xE000) n += (size_t)utf8_encode(c, all + n);
    bool ok = all && mark_properties(table, code, all, n);
    free(all);
    pcre2_code_free(code);
    return ok || error_set(err, "PCRE2 could not tell letters from numbers: out of memory");
}

uint8_t *pieces_char_table(Error *err) {
    uint8_t *table = calloc(CHAR_TABLE_SIZE, 1);
    if (!table) return error_set(err, "out of memory for the table of characters"), NULL;
    if (!fill_table(table, err)) {
        free(table);
        return NULL;
    }
    mark_ranges(table, newer_letters, COUNT(newer_letters), CHAR_LETTER);
    mark_ranges(table, newer_numbers, COUNT(newer_numbers), CHAR_NUMBER);
    mark_ranges(table, spaces, COUNT(spaces), CHAR_SPACE);
    return table;
}

// ------------------------------------------------------------------------------------------------------- the pattern

// The kind of the character at p and its length.
static inline CharKind kind_at(const uint8_t *table, const unsigned char *p, const unsigned char *end, int *length) {
    *length = 1;
    if (*p < 0x80) return (CharKind)table[*p];
    uint32_t c;
    int bytes = utf8_decode(p, end - p, &c);
    if (bytes == 0) return CHAR_OTHER;
    *length = bytes;
    return c < CHAR_TABLE_SIZE ? (CharKind)table[c] : CHAR_OTHER;
}

// The end of the run of characters of one kind that begins at p; *last: the length of its last character.
static inline const unsigned char *run_end(const uint8_t *table, const unsigned char *p, const unsigned char *end,
                                           CharKind kind, int *last) {
    int length = 0;
    *last = 0;
    while (p < end && kind_at(table, p, end, &length) == kind) p += length, *last = length;
    return p;
}

// The length of 's 't 'm 'd 're 've 'll at p, 0 if there is none. *p is an apostrophe.
static int contraction(const unsigned char *p, const unsigned char *end) {
    if (end - p < 2) return 0;
    unsigned char a = p[1], b = end - p > 2 ? p[2] : 0;
    if (a == 's' || a == 't' || a == 'm' || a == 'd') return 2;
    return (b == 'e' && (a == 'r' || a == 'v')) || (a == 'l' && b == 'l') ? 3 : 0;
}

int64_t pieces_next(const uint8_t *table, const char *text, int64_t n) {
    const unsigned char *begin = (const unsigned char *)text, *end = begin + n, *p = begin;
    int length;
    if (*p == '\'' && (length = contraction(p, end)) > 0) return length;
    CharKind kind = kind_at(table, p, end, &length);
    if (*p == ' ' && n > 1) { // the " ?" of three alternatives
        int next_length;
        CharKind next = kind_at(table, p + 1, end, &next_length);
        if (next != CHAR_SPACE) p += 1, length = next_length, kind = next;
    }
    int last;
    const unsigned char *stop = run_end(table, p, end, kind, &last);
    // \s+(?!\S): the last space before a word goes to the word, unless it is the only one.
    if (kind == CHAR_SPACE && stop < end && stop - last > begin) stop -= last;
    return stop - begin;
}

// The kind of the character that ends before p, and its length; begin < p.
static CharKind kind_before(const uint8_t *table, const unsigned char *begin, const unsigned char *p, int *length) {
    for (int back = 2; back <= 4 && p - back >= begin; back++) {
        CharKind kind = kind_at(table, p - back, p, length);
        if (*length == back) return kind;
    }
    return kind_at(table, p - 1, p, length);
}

// Is the character at p complete, whatever follows the text?
static bool is_whole(const unsigned char *p, const unsigned char *end) {
    return p < end && (*p < 0x80 || end - p >= 4);
}

bool pieces_always_cut(const uint8_t *table, const char *text, int64_t n, int64_t m) {
    const unsigned char *begin = (const unsigned char *)text, *p = begin + m, *end = begin + n;
    if ((*p & 0xC0) == 0x80 || !is_whole(p, end)) return false; // inside a character, or it may continue
    int length, back, ignored;
    CharKind before = kind_before(table, begin, p, &back), after = kind_at(table, p, end, &length);
    // The pattern never mixes kinds, except that ' ' belongs to the word after it, and that an apostrophe may begin a
    // contraction with the letters after it.
    if (before != CHAR_SPACE) return before != after && !(p[-1] == '\'' && after == CHAR_LETTER);
    // The last of several spaces before a word is a piece by itself, or goes with the word. So is a single space.
    if (after == CHAR_SPACE)
        return is_whole(p + length, end) && kind_at(table, p + length, end, &ignored) != CHAR_SPACE;
    return p[-1] != ' ' && p - back > begin && kind_before(table, begin, p - back, &ignored) != CHAR_SPACE;
}

// ------------------------------------------------------------------------------------------------------------- encoder

struct Encoder {
    const Tokenizer *t;
    CacheEntry *cache;
};

Encoder *encoder_create(const Tokenizer *t, Error *err) {
    Encoder *e = calloc(1, sizeof *e);
    if (e) e->cache = aligned_alloc(sizeof *e->cache, CACHE_ENTRIES * sizeof *e->cache);
    if (!e || !e->cache) {
        error_set(err, "%s: out of memory for an encoder", t->name);
        encoder_free(e);
        return NULL;
    }
    memset(e->cache, 0, CACHE_ENTRIES * sizeof *e->cache);
    e->t = t;
    return e;
}

void encoder_free(Encoder *e) {
    if (!e) return;
    free(e->cache);
    free(e);
}

// -------------------------------------------------------------------------------------------------------------- pieces

static int64_t merge_piece(const Tokenizer *t, const char *piece, int64_t n, int32_t *out) {
    int32_t whole = t->whole_pieces ? vocabulary_find(t, piece, (size_t)n) : -1;
    if (whole >= 0) return out[0] = whole, 1;
    for (int64_t i = 0; i < n; i++) out[i] = t->byte_tokens[(unsigned char)piece[i]];
    return merge_tokens(&t->merges, out, n, UINT32_MAX, 1);
}

// readable: how many bytes follow piece in the text.
static inline int64_t encode_piece(Encoder *e, const char *piece, int64_t n, int64_t readable, int32_t *out) {
    if (n > CACHE_PIECE_BYTES) return merge_piece(e->t, piece, n, out);
    PieceKey key = piece_key(piece, n, readable);
    CacheEntry *set = cache_find_set(e->cache, &key);
    for (int way = 0; way < 2; way++) {
        if (!piece_key_is(&set[way].key, &key)) continue;
        for (int i = 0; i < set[way].count; i++) out[i] = set[way].tokens[i];
        return set[way].count;
    }
    int64_t count = merge_piece(e->t, piece, n, out);
    if (count > CACHE_PIECE_TOKENS) return count;
    set[1] = set[0];
    set[0] = (CacheEntry){.key = key, .count = (int32_t)count};
    memcpy(set[0].tokens, out, (size_t)count * sizeof *out);
    return count;
}

static int64_t encode_plain(Encoder *e, const char *text, int64_t n, int32_t *out) {
    const Tokenizer *t = e->t;
    int64_t count = 0;
    if (t->merges.count == 0 && !t->whole_pieces) { // bytes
        for (int64_t i = 0; i < n; i++) out[i] = t->byte_tokens[(unsigned char)text[i]];
        return n;
    }
    for (int64_t at = 0; at < n;) {
        int64_t length = pieces_next(t->char_table, text + at, n - at);
        count += encode_piece(e, text + at, length, n - at, out + count);
        at += length;
    }
    return count;
}

// -------------------------------------------------------------------------------------------------------- added tokens

// The order in which added tokens are searched: first those with "normalized": false, then the others. There is no
// normalizer, but where two overlap, this order is Hugging Face's.
typedef enum { NOT_NORMALIZED, NORMALIZED, NUM_PASSES } Pass;

// The longest token at the first place in text where one begins, or -1.
static int32_t find_added(const Tokenizer *t, Pass pass, bool special, const char *text, int64_t n, int64_t *at) {
    for (*at = 0; *at < n; ++*at) {
        unsigned char first = (unsigned char)text[*at];
        for (int32_t i = t->added_begin[first]; i < t->added_begin[first + 1]; i++) {
            const Token *k = &t->tokens[t->added_tokens[i]];
            if (k->normalized != (pass == NORMALIZED) || (k->special && !special) || k->length > n - *at) continue;
            if (memcmp(t->bytes + k->offset, text + *at, k->length) == 0) return t->added_tokens[i];
        }
    }
    return -1;
}

static int64_t encode_pass(Encoder *e, Pass pass, bool special, const char *text, int64_t n, int32_t *out) {
    if (pass == NUM_PASSES) return encode_plain(e, text, n, out);
    int64_t count = 0, at;
    for (int32_t token; (token = find_added(e->t, pass, special, text, n, &at)) >= 0;) {
        count += encode_pass(e, pass + 1, special, text, at, out + count);
        out[count++] = token;
        at += e->t->tokens[token].length;
        text += at, n -= at;
    }
    return count + encode_pass(e, pass + 1, special, text, n, out + count);
}

int64_t encoder_encode(Encoder *e, const char *text, int64_t n, int32_t *out) {
    if (e->t->all_added_special) return encode_plain(e, text, n, out);
    return encode_pass(e, NOT_NORMALIZED, false, text, n, out);
}

int64_t encoder_encode_special(Encoder *e, const char *text, int64_t n, int32_t *out) {
    return encode_pass(e, NOT_NORMALIZED, true, text, n, out);
}

// ---------------------------------------------------------------------------------------------------------------- cuts

// Might the spelling of a non-special added token lie across m, as far as the n bytes show?
static bool added_across(const Tokenizer *t, const char *text, int64_t n, int64_t m) {
    for (int32_t i = 0; i < t->added_begin[256]; i++) {
        const Token *k = &t->tokens[t->added_tokens[i]];
        for (int64_t before = 1; !k->special && before < k->length && before <= m; before++) {
            int64_t seen = k->length < n - m + before ? k->length : n - m + before;
            if (memcmp(t->bytes + k->offset, text + m - before, (size_t)seen) == 0) return true;
        }
    }
    return false;
}

// Is m the beginning of a line after "\r\n"? Before a word these are two pieces, at the end of a text they are one. The
// tokens are the same, unless the vocabulary has a token "\r\n".
static bool follows_windows_line(const Tokenizer *t, const char *text, int64_t n, int64_t m) {
    return m > 2 && text[m - 2] == '\r' && text[m - 1] == '\n' && pieces_always_cut(t->char_table, text, n, m - 2) &&
           pieces_always_cut(t->char_table, text, n, m - 1) && vocabulary_find(t, "\r\n", 2) < 0;
}

bool tokenizer_may_cut(const Tokenizer *t, const char *text, int64_t n, int64_t m) {
    return ((t->merges.count == 0 && !t->whole_pieces) || pieces_always_cut(t->char_table, text, n, m) ||
            follows_windows_line(t, text, n, m)) &&
           (t->all_added_special || !added_across(t, text, n, m));
}

int64_t tokenizer_safe_cut(const Tokenizer *t, const char *text, int64_t n) {
    if (t->merges.count == 0 && !t->whole_pieces && t->all_added_special) return n;
    int64_t m = n - 1;
    while (m > 0 && !tokenizer_may_cut(t, text, n, m)) m--;
    return m > 0 ? m : 0;
}
