// See word_counts.h. Text repeats its words: most are found in the thread's table, which fits into the processor's
// cache. When it is three quarters full, its words move to the shared table, whose parts each have a lock.
#include "llmc/text/word_counts.h"

#include "llmc/text/piece_key.h"
#include "llmc/text/pieces.h"
#include "llmc/text/vocabulary.h"

#include <pthread.h>
#include <stdlib.h>
#include <xxhash.h>

enum {
    NUM_PARTS = 64,
    LOCAL_SLOTS = 1 << 15, // 1.3 MB
    LOCAL_FULL = LOCAL_SLOTS / 4 * 3,
};

typedef struct {
    int64_t count, offset; // offset: of its bytes
    uint32_t length, hash;
} Word;

typedef struct {
    pthread_mutex_t lock;
    Word *words;
    uint32_t *slots; // a word's number + 1; 0: free
    char *bytes;
    int64_t num_words, word_room, num_slots, num_bytes, byte_room;
} Part;

struct WordCounts {
    Part parts[NUM_PARTS];
};

typedef struct {
    PieceKey key; // all zero: free
    int64_t count;
} LocalWord;

struct WordCounter {
    WordCounts *shared;
    LocalWord *slots;
    int64_t used;
};

// ---------------------------------------------------------------------------------------------------- the shared table

WordCounts *word_counts_create(Error *err) {
    WordCounts *w = calloc(1, sizeof *w);
    if (!w) error_set(err, "out of memory for words");
    for (int i = 0; w && i < NUM_PARTS; i++) pthread_mutex_init(&w->parts[i].lock, NULL);
    return w;
}

static void clear_part(Part *p) {
    free(p->words);
    free(p->slots);
    free(p->bytes);
    p->words = NULL;
    p->slots = NULL;
    p->bytes = NULL;
    p->num_words = p->word_room = p->num_slots = p->num_bytes = p->byte_room = 0;
}

void word_counts_free(WordCounts *w) {
    if (!w) return;
    for (int i = 0; i < NUM_PARTS; i++) {
        clear_part(&w->parts[i]);
        pthread_mutex_destroy(&w->parts[i].lock);
    }
    free(w);
}

// Makes space for one more word of this length.
static bool reserve_word(Part *p, int64_t length) {
    if (4 * (p->num_words + 1) > 3 * p->num_slots) {
        const int64_t count = p->num_slots ? 2 * p->num_slots : 256;
        uint32_t *slots = calloc((size_t)count, sizeof *slots);
        if (!slots) return false;
        for (int64_t i = 0; i < p->num_words; i++) {
            int64_t at = p->words[i].hash & (count - 1);
            while (slots[at]) at = (at + 1) & (count - 1);
            slots[at] = (uint32_t)i + 1;
        }
        free(p->slots);
        p->slots = slots;
        p->num_slots = count;
    }
    if (p->num_words == p->word_room) {
        int64_t room = p->word_room + p->word_room / 2 + 64;
        Word *words = realloc(p->words, (size_t)room * sizeof *words);
        if (!words) return false;
        p->words = words;
        p->word_room = room;
    }
    if (p->num_bytes + length > p->byte_room) {
        int64_t room = p->byte_room + p->byte_room / 2 + length + 1024;
        char *bytes = realloc(p->bytes, (size_t)room);
        if (!bytes) return false;
        p->bytes = bytes;
        p->byte_room = room;
    }
    return p->num_words < UINT32_MAX;
}

static bool add_word(WordCounts *w, const char *word, uint32_t length, int64_t count, Error *err) {
    const uint64_t hash = XXH3_64bits(word, length);
    const uint32_t tag = (uint32_t)hash;
    Part *p = &w->parts[hash >> 58];
    pthread_mutex_lock(&p->lock);
    bool is_known = false;
    const bool ok =
        reserve_word(p, length) || error_set(err, "out of memory for %lld distinct words", (long long)p->num_words);
    int64_t at = tag & (p->num_slots - 1);
    for (; ok && p->slots[at] && !is_known; at = (at + 1) & (p->num_slots - 1)) {
        Word *known = &p->words[p->slots[at] - 1];
        is_known = known->hash == tag && known->length == length && !memcmp(p->bytes + known->offset, word, length);
        if (is_known) known->count += count;
    }
    if (ok && !is_known) {
        memcpy(p->bytes + p->num_bytes, word, length);
        p->words[p->num_words++] = (Word){.count = count, .offset = p->num_bytes, .length = length, .hash = tag};
        p->slots[at] = (uint32_t)p->num_words;
        p->num_bytes += length;
    }
    pthread_mutex_unlock(&p->lock);
    return ok;
}

int64_t word_counts_size(const WordCounts *w, int64_t *bytes) {
    int64_t words = 0;
    *bytes = 0;
    for (int i = 0; i < NUM_PARTS; i++) {
        words += w->parts[i].num_words;
        *bytes += w->parts[i].num_bytes;
    }
    return words;
}

void word_counts_drain(WordCounts *w, void (*visit)(void *user, const char *word, uint32_t length, int64_t count),
                       void *user) {
    for (int i = 0; i < NUM_PARTS; i++) {
        Part *p = &w->parts[i];
        for (int64_t k = 0; k < p->num_words; k++)
            visit(user, p->bytes + p->words[k].offset, p->words[k].length, p->words[k].count);
        clear_part(p);
    }
}

// ---------------------------------------------------------------------------------------------------- a thread's table

WordCounter *word_counter_create(WordCounts *w, Error *err) {
    WordCounter *c = malloc(sizeof *c);
    if (c) {
        c->shared = w;
        c->used = 0;
        c->slots = calloc(LOCAL_SLOTS, sizeof *c->slots);
    }
    if (c && c->slots) return c;
    word_counter_free(c);
    error_set(err, "out of memory for words");
    return NULL;
}

void word_counter_free(WordCounter *c) {
    if (!c) return;
    free(c->slots);
    free(c);
}

bool word_counter_finish(WordCounter *c, Error *err) {
    bool ok = true;
    for (uint32_t i = 0; ok && i < LOCAL_SLOTS; i++) {
        const LocalWord *word = &c->slots[i];
        const uint32_t length = (uint32_t)(word->key.words[3] >> 56);
        if (word->count > 0) ok = add_word(c->shared, (const char *)word->key.words, length, word->count, err);
    }
    memset(c->slots, 0, LOCAL_SLOTS * sizeof *c->slots);
    c->used = 0;
    return ok;
}

bool word_counter_add(WordCounter *c, const Tokenizer *t, const char *text, int64_t n, Error *err) {
    for (int64_t at = 0, length; at < n; at += length) {
        length = pieces_next(t->char_table, text + at, n - at);
        if (length == 1) continue; // no pair
        if (length > PIECE_KEY_BYTES) {
            if (!add_word(c->shared, text + at, (uint32_t)length, 1, err)) return false;
            continue;
        }
        const PieceKey key = piece_key(text + at, length, n - at);
        LocalWord *slot = &c->slots[piece_hash(&key) & (LOCAL_SLOTS - 1)];
        while (slot->count != 0 && !piece_key_is(&slot->key, &key))
            if (++slot == c->slots + LOCAL_SLOTS) slot = c->slots;
        if (slot->count++ != 0) continue;
        slot->key = key;
        if (++c->used == LOCAL_FULL && !word_counter_finish(c, err)) return false;
    }
    return true;
}
