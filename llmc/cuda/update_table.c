// The tables of update_table.h: a small cache. The key is what an array holds, not where it stands, so a table can
// never name memory that the caller did not. A full cache gives up the table that was used longest ago.
#include "llmc/cuda/update_table.h"

#include <stdlib.h>
#include <string.h>

struct TableDraft {
    const char *op;
    size_t entry_bytes;
    int count, capacity;
    char *entries;
    int *variant, *tensor;
    int32_t *parts;
};

typedef struct {
    UpdateTable table;
    TableDescribe *describe;
    char *key; // a copy of the array
    int n;
    size_t stride;
    uint64_t used; // number of the last look-up that found it
    void *host;    // tensor and parts of the table
} CachedTable;

// A run has three or four arrays: gradients, tensors, slices of them.
enum { MAX_TABLES = 64 };
static CachedTable cache[MAX_TABLES];
static uint64_t look_ups;

static void *checked(const char *op, void *memory) {
    REQUIRE_MEMORY(memory != NULL, "the tables of %s", op);
    return memory;
}

static void forget(CachedTable *c) {
    if (!c->key) return;
    CUDA_CHECK(cudaStreamSynchronize(cuda_compute_stream())); // the last kernel that reads it
    device_free(c->table.entries);
    free(c->key), free(c->host);
    memset(c, 0, sizeof *c);
}

void cuda_optimizer_shutdown(void) {
    for (int i = 0; i < MAX_TABLES; i++) forget(&cache[i]);
}

// --------------------------------------------------------------------------------------------------------------- build

void table_add(TableDraft *d, int variant, int tensor, const void *entry, int64_t parts) {
    if (d->count == d->capacity) {
        d->capacity = d->capacity ? 2 * d->capacity : 64;
        const size_t n = (size_t)d->capacity;
        d->entries = checked(d->op, realloc(d->entries, n * d->entry_bytes));
        d->variant = checked(d->op, realloc(d->variant, n * sizeof *d->variant));
        d->tensor = checked(d->op, realloc(d->tensor, n * sizeof *d->tensor));
        d->parts = checked(d->op, realloc(d->parts, n * sizeof *d->parts));
    }
    REQUIRE(parts <= INT32_MAX, "%s: tensor %d has %lld parts", d->op, tensor, (long long)parts);
    memcpy(d->entries + (size_t)d->count * d->entry_bytes, entry, d->entry_bytes);
    d->variant[d->count] = variant, d->tensor[d->count] = tensor, d->parts[d->count] = (int32_t)parts;
    d->count++;
}

static void draft_free(TableDraft *d) { free(d->entries), free(d->variant), free(d->tensor), free(d->parts); }

// The smallest variant above `after`; -1 when there is none.
static int next_variant(const TableDraft *d, int after) {
    int next = -1;
    for (int i = 0; i < d->count; i++)
        if (d->variant[i] > after && (next < 0 || d->variant[i] < next)) next = d->variant[i];
    return next;
}

// The entries of the draft, group by group: into sorted (entries), and into the table what the host keeps.
static void group_entries(CachedTable *c, const TableDraft *d, char *sorted) {
    UpdateTable *t = &c->table;
    const size_t count = (size_t)d->count;
    c->host = checked(d->op, malloc((2 * count + 1) * sizeof(int32_t)));
    int *tensor = c->host;
    int32_t *first = (int32_t *)c->host + count;
    int at = 0;
    int64_t parts = 0;
    for (int variant = -1; (variant = next_variant(d, variant)) >= 0;) {
        REQUIRE(t->num_groups < TABLE_MAX_GROUPS, "%s: more than %d kinds of tensors", d->op, TABLE_MAX_GROUPS);
        TableGroup *group = &t->groups[t->num_groups++];
        group->variant = variant, group->begin = at;
        for (int i = 0; i < d->count; i++) {
            if (d->variant[i] != variant) continue;
            memcpy(sorted + (size_t)at * d->entry_bytes, d->entries + (size_t)i * d->entry_bytes, d->entry_bytes);
            tensor[at] = d->tensor[i], first[at++] = (int32_t)parts;
            parts += d->parts[i];
            REQUIRE(parts <= INT32_MAX, "%s: %lld parts", d->op, (long long)parts);
        }
        group->end = at;
    }
    first[at] = (int32_t)parts;
    t->tensor = tensor, t->parts = first;
}

static void build(CachedTable *c, TensorArray array, size_t entry_bytes, TableDescribe *describe) {
    REQUIRE(!cuda_backend.capturing, "%s: new tensors under capture", array.op);
    const size_t key_bytes = (size_t)array.n * array.stride;
    TableDraft draft = {.op = array.op, .entry_bytes = entry_bytes};
    describe(&draft, array);
    c->describe = describe, c->n = array.n, c->stride = array.stride;
    c->key = checked(array.op, malloc(key_bytes + 1));
    memcpy(c->key, array.elements, key_bytes);
    const size_t bytes = (size_t)draft.count * entry_bytes, first_bytes = ((size_t)draft.count + 1) * sizeof(int32_t);
    char *sorted = checked(array.op, malloc(bytes + 1));
    group_entries(c, &draft, sorted);
    Error err;
    char *device = device_alloc(bytes + first_bytes, &err);
    REQUIRE_MEMORY(device != NULL, "the tables of %s: %s", array.op, err.text);
    c->table.entry_bytes = entry_bytes;
    c->table.entries = device, c->table.first = (int32_t *)(void *)(device + bytes);
    const cudaStream_t stream = cuda_compute_stream();
    CUDA_CHECK(cudaMemcpyAsync(device, sorted, bytes, cudaMemcpyHostToDevice, stream));
    CUDA_CHECK(cudaMemcpyAsync(device + bytes, c->table.parts, first_bytes, cudaMemcpyHostToDevice, stream));
    CUDA_CHECK(cudaStreamSynchronize(stream)); // `sorted` is freed
    free(sorted);
    draft_free(&draft);
}

// ------------------------------------------------------------------------------------------------------------- look up

const UpdateTable *update_table(TensorArray array, size_t entry_bytes, TableDescribe *describe) {
    CachedTable *oldest = &cache[0];
    const size_t key_bytes = (size_t)array.n * array.stride;
    for (int i = 0; i < MAX_TABLES; i++) {
        CachedTable *c = &cache[i];
        if (c->used < oldest->used) oldest = c;
        if (!c->key || c->describe != describe || c->n != array.n || c->stride != array.stride) continue;
        if (memcmp(c->key, array.elements, key_bytes) != 0) continue;
        c->used = ++look_ups;
        return &c->table;
    }
    forget(oldest);
    build(oldest, array, entry_bytes, describe);
    oldest->used = ++look_ups;
    return &oldest->table;
}

// The first entry of the group whose tensor is not before `tensor`.
static int entry_of(const UpdateTable *t, const TableGroup *group, int tensor) {
    int low = group->begin, high = group->end;
    while (low < high) {
        const int middle = low + (high - low) / 2;
        if (t->tensor[middle] < tensor)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

const TableGroup *table_group(const UpdateTable *t, int variant) {
    for (int i = 0; i < t->num_groups; i++)
        if (t->groups[i].variant == variant) return &t->groups[i];
    return NULL;
}

TableRun table_run(const UpdateTable *t, const TableGroup *group, int first, int count) {
    if (!group) return (TableRun){.n = 0};
    const int begin = entry_of(t, group, first), end = entry_of(t, group, first + count);
    return (TableRun){.entries = t->entries + (size_t)begin * t->entry_bytes,
                      .first = t->first + begin,
                      .n = end - begin,
                      .parts = (unsigned)(t->parts[end] - t->parts[begin])};
}
