// See offload.h. Part p of the buffer takes the chunks p, p + OFFLOAD_PARTS, ...; what orders their way through it:
//   copy in (STREAM_COPY)   after the copy back of the chunk that had the part before
//   update  (STREAM_COMPUTE)  after the copy in
//   copy back (STREAM_COPY_BACK)  after the update
// A step's first copies in follow the copies back of the step before, for the same reason. A skipped step copies back
// what it copied in.
#include "llmc/train/offload.h"

#include "llmc/base/checked.h"
#include <stdlib.h>

typedef struct {
    char *host, *device;
    int64_t bytes;
} Copy;

typedef struct {
    int first, count;       // slices
    int first_copy, copies; // each of them one way and then the other
} Chunk;

typedef struct {
    DeviceEvent *in, *updated, *back;
} Part;

struct Offload {
    char *buffer;
    int64_t part_bytes;
    Part parts[OFFLOAD_PARTS];
    int num_slices, num_copies, num_chunks;
    UpdateTensor *slices;
    Copy *copies;
    Chunk *chunks;
};

// -------------------------------------------------------------------------------------------------------------- slices

// An array with room for one element more than it has; it grows by doubling.
static void *with_room(void *array, int count, size_t size) {
    if ((count & (count - 1)) != 0) return array; // 0, 1, 2, 4, ...: full
    array = realloc(array, (size_t)(count ? 2 * count : 1) * size);
    REQUIRE_MEMORY(array, "the slices of the optimizer state");
    return array;
}

static bool is_scale(int slot) { return slot == SLOT_M_SCALE || slot == SLOT_V_SCALE; }

// Bytes of a slot that belong to n elements of its parameter.
static int64_t slot_bytes(Tensor t, int slot, int64_t n) {
    return (is_scale(slot) ? ceil_div(n, STATE_BLOCK) : n) * (int64_t)dtype_size(t.dtype);
}

static int64_t slice_bytes(UpdateTensor t, int64_t n) {
    int64_t bytes = 0;
    for (int slot = 0; slot < NUM_STATE_SLOTS; slot++) {
        const Tensor s = *state_slot_tensor(&t, (StateSlot)slot);
        if (s.data) bytes += round_up(slot_bytes(s, slot, n), PLAN_ALIGNMENT);
    }
    return bytes;
}

// The most elements of `left` that fit into `room` bytes: all of them, or whole blocks.
static int64_t elements_that_fit(const UpdateTensor *t, int64_t left, int64_t room) {
    if (slice_bytes(*t, left) <= room) return left;
    int64_t low = 0, high = left / STATE_BLOCK; // blocks
    while (low < high) {
        const int64_t middle = (low + high + 1) / 2;
        if (slice_bytes(*t, middle * STATE_BLOCK) <= room)
            low = middle;
        else
            high = middle - 1;
    }
    return low * STATE_BLOCK;
}

// One copy more, or the last one longer, where both ends follow on from it.
static void add_copy(Offload *o, Chunk *chunk, Copy copy) {
    Copy *last = chunk->copies > 0 ? &o->copies[o->num_copies - 1] : NULL;
    if (last && last->host + last->bytes == copy.host && last->device + last->bytes == copy.device) {
        last->bytes += copy.bytes;
        return;
    }
    o->copies = with_room(o->copies, o->num_copies, sizeof copy);
    o->copies[o->num_copies++] = copy;
    chunk->copies++;
}

// Elements [first, first + n) of t: its state from `used` on in the part at `part`. Returns the bytes it takes there.
static int64_t add_slice(Offload *o, Chunk *chunk, const UpdateTensor *t, int64_t first, int64_t n, char *part,
                         int64_t used) {
    const int64_t begin = used, numel = tensor_numel(t->weight);
    UpdateTensor slice = *t, whole = *t;
    slice.weight = tensor_slice_elements(t->weight, first, n), slice.grad = tensor_slice_elements(t->grad, first, n);
    slice.offset = first;
    for (int slot = 0; slot < NUM_STATE_SLOTS; slot++) {
        const Tensor s = *state_slot_tensor(&whole, (StateSlot)slot);
        if (!s.data) continue;
        const int64_t bytes = slot_bytes(s, slot, n), size = (int64_t)dtype_size(s.dtype);
        Tensor *there = state_slot_tensor(&slice, (StateSlot)slot);
        *there = tensor_make(part + used, s.dtype, s.name, bytes / size, 0, 0, 0);
        // Behind a whole slot stands padding in both places: copied along, neighbours become one copy.
        const int64_t copied = n == numel ? round_up(bytes, PLAN_ALIGNMENT) : bytes;
        add_copy(o, chunk, (Copy){(char *)s.data + slot_bytes(s, slot, first), part + used, copied});
        used += round_up(bytes, PLAN_ALIGNMENT);
    }
    o->slices = with_room(o->slices, o->num_slices, sizeof slice);
    o->slices[o->num_slices++] = slice;
    chunk->count++;
    return used - begin;
}

static Chunk *add_chunk(Offload *o) {
    o->chunks = with_room(o->chunks, o->num_chunks, sizeof *o->chunks);
    o->chunks[o->num_chunks] = (Chunk){.first = o->num_slices, .first_copy = o->num_copies};
    return &o->chunks[o->num_chunks++];
}

static char *part_of(const Offload *o, int chunk) { return o->buffer + chunk % OFFLOAD_PARTS * o->part_bytes; }

static void cut(Offload *o, const UpdateTensor *tensors, int count) {
    Chunk *chunk = add_chunk(o);
    int64_t used = 0;
    for (int i = 0; i < count; i++) {
        const int64_t numel = tensor_numel(tensors[i].weight);
        for (int64_t first = 0, n; first < numel; first += n) {
            n = elements_that_fit(&tensors[i], numel - first, o->part_bytes - used);
            if (n > 0) {
                used += add_slice(o, chunk, &tensors[i], first, n, part_of(o, o->num_chunks - 1), used);
            } else {
                REQUIRE(used > 0, "the offload buffer holds not even %d elements", STATE_BLOCK);
                chunk = add_chunk(o), used = 0;
            }
        }
    }
}

// -------------------------------------------------------------------------------------------------------------- object

Offload *offload_create(const Gpt2 *model, const UpdateTensor *tensors, Error *err) {
    Offload *o = calloc(1, sizeof *o);
    REQUIRE_MEMORY(o, "the slices of the optimizer state");
    int64_t bytes;
    o->buffer = gpt2_offload_buffer(model, &bytes);
    REQUIRE(o->buffer, "offload_create of a model whose state is on the device");
    o->part_bytes = bytes / OFFLOAD_PARTS / PLAN_ALIGNMENT * PLAN_ALIGNMENT;
    for (int p = 0; p < OFFLOAD_PARTS; p++) {
        Part *part = &o->parts[p];
        if ((part->in = device_event_create(err)) && (part->updated = device_event_create(err)) &&
            (part->back = device_event_create(err)))
            continue;
        offload_destroy(o);
        return NULL;
    }
    cut(o, tensors, gpt2_num_tensors(model));
    return o;
}

void offload_destroy(Offload *o) {
    if (!o) return;
    for (int p = 0; p < OFFLOAD_PARTS; p++) {
        if (o->parts[p].in) device_event_destroy(o->parts[p].in);
        if (o->parts[p].updated) device_event_destroy(o->parts[p].updated);
        if (o->parts[p].back) device_event_destroy(o->parts[p].back);
    }
    free(o->slices);
    free(o->copies);
    free(o->chunks);
    free(o);
}

const UpdateTensor *offload_slices(const Offload *o, int *count) {
    *count = o->num_slices;
    return o->slices;
}

int offload_chunks(const Offload *o) { return o->num_chunks; }

// -------------------------------------------------------------------------------------------------------------- a step

static void copy_in(Offload *o, int c) {
    const Part *part = &o->parts[c % OFFLOAD_PARTS];
    const Chunk *chunk = &o->chunks[c];
    device_stream_wait(STREAM_COPY, part->back);
    for (int i = chunk->first_copy; i < chunk->first_copy + chunk->copies; i++)
        device_copy_to_device(o->copies[i].device, o->copies[i].host, (size_t)o->copies[i].bytes, STREAM_COPY);
    device_event_record(part->in, STREAM_COPY);
}

void offload_begin(Offload *o) {
    for (int c = 0; c < OFFLOAD_PARTS && c < o->num_chunks; c++) copy_in(o, c);
}

void offload_take(Offload *o, int c, int *first, int *count) {
    device_stream_wait(STREAM_COMPUTE, o->parts[c % OFFLOAD_PARTS].in);
    *first = o->chunks[c].first, *count = o->chunks[c].count;
}

void offload_return(Offload *o, int c) {
    const Part *part = &o->parts[c % OFFLOAD_PARTS];
    const Chunk *chunk = &o->chunks[c];
    device_event_record(part->updated, STREAM_COMPUTE);
    device_stream_wait(STREAM_COPY_BACK, part->updated);
    for (int i = chunk->first_copy; i < chunk->first_copy + chunk->copies; i++)
        device_copy_to_host(o->copies[i].host, o->copies[i].device, (size_t)o->copies[i].bytes, STREAM_COPY_BACK);
    device_event_record(part->back, STREAM_COPY_BACK);
    if (c + OFFLOAD_PARTS < o->num_chunks) copy_in(o, c + OFFLOAD_PARTS);
}
