// See spellings.h. Owns the nodes and the hash table of their children.
#include "llmc/text/spellings.h"

#include "llmc/base/arithmetic.h"
#include "llmc/base/memory.h"

#include <stdlib.h>
#include <string.h>

// A beginning of some spelling; node 0 is the empty one.
typedef struct {
    int32_t parent;
    int32_t depth; // its bytes
    int32_t fail;  // the longest other beginning that it ends with
    int32_t found; // the longest spelling that it ends with; -1: none
    uint8_t byte;  // its last
} Node;

struct Spellings {
    Node *nodes;
    int64_t count, capacity;
    int32_t *slots; // hash table of (parent, byte) -> node, at most half full; -1: free
    int64_t num_slots;
    int32_t *lengths, *tokens; // of each spelling
    bool begins[256];          // some spelling begins with this byte
};

// ------------------------------------------------------------------------------------------- nodes

static uint64_t slot_of(const Spellings *s, int32_t parent, uint8_t byte) {
    const uint64_t key = (uint64_t)parent << 8 | byte;
    return (key * 0x9E3779B97F4A7C15u >> 32) & (uint64_t)(s->num_slots - 1);
}

// The child of a node, -1 if it has none for this byte.
static int32_t child_of(const Spellings *s, int32_t node, uint8_t byte) {
    for (uint64_t i = slot_of(s, node, byte); s->slots[i] >= 0;
         i = (i + 1) & (uint64_t)(s->num_slots - 1)) {
        const Node *child = &s->nodes[s->slots[i]];
        if (child->parent == node && child->byte == byte) return s->slots[i];
    }
    return -1;
}

// The longest beginning that the text ends with after one more byte.
static int32_t next_state(const Spellings *s, int32_t state, uint8_t byte) {
    for (;;) {
        const int32_t child = child_of(s, state, byte);
        if (child >= 0) return child;
        if (state == 0) return 0;
        state = s->nodes[state].fail;
    }
}

static void index_node(Spellings *s, int32_t node) {
    uint64_t i = slot_of(s, s->nodes[node].parent, s->nodes[node].byte);
    while (s->slots[i] >= 0) i = (i + 1) & (uint64_t)(s->num_slots - 1);
    s->slots[i] = node;
}

static int32_t add_child(Spellings *s, int32_t parent, uint8_t byte) {
    Node node = {.parent = parent, .byte = byte, .depth = s->nodes[parent].depth + 1};
    if (parent != 0) node.fail = next_state(s, s->nodes[parent].fail, byte);
    node.found = s->nodes[node.fail].found;
    s->nodes = memory_grow(s->nodes, &s->capacity, s->count + 1, sizeof *s->nodes);
    s->nodes[s->count] = node;
    const int32_t number = (int32_t)s->count++;
    if (2 * s->count > s->num_slots) {
        s->num_slots *= 2;
        free(s->slots);
        s->slots = memory_new(s->num_slots, sizeof *s->slots);
        memset(s->slots, 0xFF, (size_t)s->num_slots * sizeof *s->slots);
        for (int32_t i = 1; i < number; i++) index_node(s, i);
    }
    index_node(s, number);
    return number;
}

Spellings *spellings_new(const Spelling *list, int64_t n) {
    enum { FIRST_SLOTS = 64 };
    if (n == 0) return NULL;
    Spellings *s = memory_zeroed(1, sizeof *s);
    s->num_slots = FIRST_SLOTS;
    s->slots = memory_new(s->num_slots, sizeof *s->slots);
    memset(s->slots, 0xFF, (size_t)s->num_slots * sizeof *s->slots);
    s->nodes = memory_grow(NULL, &s->capacity, 1, sizeof *s->nodes);
    s->nodes[s->count++] = (Node){.found = -1};
    s->lengths = memory_new(n, sizeof *s->lengths);
    s->tokens = memory_new(n, sizeof *s->tokens);

    // All first bytes, then all second ones: the node that a new one fails to is shorter, and is
    // there already.
    int32_t *states = memory_zeroed(n, sizeof *states); // of each spelling, as far as it is read
    int32_t *unread = memory_new(n, sizeof *unread);    // the spellings that are longer than depth
    for (int64_t i = 0; i < n; i++) {
        s->lengths[i] = list[i].length;
        s->tokens[i] = list[i].token;
        s->begins[(uint8_t)list[i].bytes[0]] = true;
        unread[i] = (int32_t)i;
    }
    for (int32_t depth = 0; n > 0; depth++) {
        int64_t left = 0;
        for (int64_t k = 0; k < n; k++) {
            const int32_t i = unread[k];
            const uint8_t byte = (uint8_t)list[i].bytes[depth];
            int32_t child = child_of(s, states[i], byte);
            if (child < 0) child = add_child(s, states[i], byte);
            states[i] = child;
            Node *node = &s->nodes[states[i]];
            const bool is_whole = list[i].length == depth + 1;
            if (is_whole && (node->found < 0 || s->lengths[node->found] < depth + 1))
                node->found = i;
            if (!is_whole) unread[left++] = i;
        }
        n = left;
    }
    free(states);
    free(unread);
    return s;
}

void spellings_free(Spellings *s) {
    if (!s) return;
    free(s->nodes);
    free(s->slots);
    free(s->lengths);
    free(s->tokens);
    free(s);
}

// ---------------------------------------------------------------------------------------- searches

int32_t spellings_find(const Spellings *s, const char *text, int64_t n, int64_t *at) {
    int32_t state = 0, best = -1;
    *at = n;
    if (!s) return -1;
    for (int64_t end = 1; end <= n; end++) {
        const uint8_t byte = (uint8_t)text[end - 1];
        if (state == 0 && !s->begins[byte]) continue;
        state = next_state(s, state, byte);
        const Node *node = &s->nodes[state];
        if (best >= 0 && end - node->depth > *at) break; // what begins at or before *at has ended
        if (node->found < 0) continue;
        const int64_t begin = end - s->lengths[node->found];
        if (begin > *at) continue;
        best = node->found;
        *at = begin;
    }
    if (best < 0) return -1;
    return s->tokens[best];
}

void spellings_mark_crossed(const Spellings *s, const char *text, int64_t n, int64_t low,
                            int64_t high, bool *crossed) {
    // of the longest spelling that ends at low + 1 + i
    int64_t begins[SPELLINGS_WINDOW + SPELLING_MAX_BYTES];
    const int64_t end = min_i64(n, high + SPELLING_MAX_BYTES - 1);
    int32_t state = 0;
    for (int64_t i = max_i64(0, low - SPELLING_MAX_BYTES); i < end; i++) {
        state = next_state(s, state, (uint8_t)text[i]);
        if (i < low) continue;
        const int32_t found = s->nodes[state].found;
        begins[i - low] = i + 1;
        if (found >= 0) begins[i - low] -= s->lengths[found];
    }
    int64_t first = end; // place where a spelling begins that ends after m
    if (end == n) first = n - s->nodes[state].depth;
    for (int64_t m = end - 1; m >= low; m--) {
        first = min_i64(first, begins[m - low]);
        if (m < high) crossed[m - low] |= first < m;
    }
}
