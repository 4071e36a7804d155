// Optimizer state in host memory, see offload.h. Part p of the device's buffer takes the chunks p,
// p + OFFLOAD_PARTS, ... Their way through it is ordered by
//
//   copy in (STREAM_COPY)          after the copy back of the chunk that had the part before
//   update (STREAM_COMPUTE)        after the copy in
//   copy back (STREAM_COPY_BACK)   after the update
//
// A step's first copies in follow the copies back of the previous step, for the same reason. A
// skipped step copies back what it copied in.
#include "llmc/train/offload.h"

#include "llmc/base/arithmetic.h"
#include "llmc/device.h"
#include "llmc/model/memory_plan.h"

#include <stdlib.h>

typedef struct {
    char *host, *device;
    int64_t bytes;
} StateCopy;

typedef struct {
    int first, count;       // slices
    int first_copy, copies; // each copy runs one way and then the other
} StateChunk;

typedef struct {
    DeviceEvent *in, *updated, *back;
} BufferPart;

struct Offload {
    char *buffer;
    int64_t part_bytes;
    BufferPart parts[OFFLOAD_PARTS];
    int num_slices, num_copies, num_chunks;
    UpdateTensor *slices;
    UpdateList list; // of the slices
    StateCopy *copies;
    StateChunk *chunks;
};

// ------------------------------------------------------------------------------------------ slices

// Makes capacity for one more element of the array, which grows by doubling.
static void *with_room(void *array, int count, size_t size) {
    if ((count & (count - 1)) != 0) return array; // 0, 1, 2, 4, ...: full
    array = realloc(array, max_size(2 * (size_t)count, 1) * size);
    REQUIRE_MEMORY(array, "the slices of the optimizer state");
    return array;
}

// The bytes of a slot for n elements of its parameter.
static int64_t slot_bytes(Tensor t, int slot, int64_t n) {
    if (slot == SLOT_M_SCALE || slot == SLOT_V_SCALE) n = ceil_div(n, STATE_BLOCK);
    return n * (int64_t)dtype_size(t.dtype);
}

static int64_t slice_bytes(UpdateTensor t, int64_t n) {
    int64_t bytes = 0;
    for (int slot = 0; slot < NUM_STATE_SLOTS; slot++) {
        const Tensor s = *state_slot_tensor(&t, (StateSlot)slot);
        if (s.data) bytes += round_up(slot_bytes(s, slot, n), PLAN_ALIGNMENT);
    }
    return bytes;
}

// The max number of the `left` elements that fit into `room` bytes: all of them, or whole blocks.
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

// Adds elements [first, first + n) of t as a slice, with its state at offset `used` of the part at
// `part`. Returns the bytes it takes there.
static int64_t add_slice(Offload *o, StateChunk *chunk, const UpdateTensor *t, int64_t first,
                         int64_t n, char *part, int64_t used) {
    const int64_t begin = used, numel = tensor_numel(t->weight);
    UpdateTensor slice = *t, whole = *t;
    slice.weight = tensor_slice_elements(t->weight, first, n);
    slice.grad = tensor_slice_elements(t->grad, first, n);
    slice.offset = t->offset + first;
    for (int slot = 0; slot < NUM_STATE_SLOTS; slot++) {
        const Tensor s = *state_slot_tensor(&whole, (StateSlot)slot);
        if (!s.data) continue;
        const int64_t bytes = slot_bytes(s, slot, n), size = (int64_t)dtype_size(s.dtype);
        Tensor *there = state_slot_tensor(&slice, (StateSlot)slot);
        *there = tensor_make(part + used, s.dtype, s.name, bytes / size, 0, 0, 0);
        // A whole slot is followed by padding in both places; with the padding copied too,
        // neighbours become one copy.
        const int64_t copied = n == numel ? round_up(bytes, PLAN_ALIGNMENT) : bytes;
        const StateCopy copy = {(char *)s.data + slot_bytes(s, slot, first), part + used, copied};
        StateCopy *last = chunk->copies > 0 ? &o->copies[o->num_copies - 1] : NULL;
        if (last && last->host + last->bytes == copy.host &&
            last->device + last->bytes == copy.device) {
            last->bytes += copied;
        } else {
            o->copies = with_room(o->copies, o->num_copies, sizeof copy);
            o->copies[o->num_copies++] = copy;
            chunk->copies++;
        }
        used += round_up(bytes, PLAN_ALIGNMENT);
    }
    o->slices = with_room(o->slices, o->num_slices, sizeof slice);
    o->slices[o->num_slices++] = slice;
    chunk->count++;
    return used - begin;
}

static StateChunk *add_chunk(Offload *o) {
    o->chunks = with_room(o->chunks, o->num_chunks, sizeof *o->chunks);
    o->chunks[o->num_chunks] = (StateChunk){.first = o->num_slices, .first_copy = o->num_copies};
    return &o->chunks[o->num_chunks++];
}

// ------------------------------------------------------------------------------------------ object

Offload *offload_create(const Model *model, const UpdateTensor *tensors, int count, Error *err) {
    Offload *o = calloc(1, sizeof *o);
    REQUIRE_MEMORY(o, "the slices of the optimizer state");
    int64_t bytes;

    o->buffer = model_offload_buffer(model, &bytes);
    REQUIRE(o->buffer, "offload_create of a model whose state is on the device");
    o->part_bytes = bytes / OFFLOAD_PARTS / PLAN_ALIGNMENT * PLAN_ALIGNMENT;

    for (int p = 0; p < OFFLOAD_PARTS; p++) {
        BufferPart *part = &o->parts[p];
        if ((part->in = device_event_create(err)) && (part->updated = device_event_create(err)) &&
            (part->back = device_event_create(err)))
            continue;
        offload_destroy(o);
        return NULL;
    }

    StateChunk *chunk = add_chunk(o);
    int64_t used = 0; // bytes of the chunk's part

    for (int i = 0; i < count; i++) {
        const int64_t numel = tensor_numel(tensors[i].weight);
        for (int64_t first = 0, n; first < numel; first += n) {
            n = elements_that_fit(&tensors[i], numel - first, o->part_bytes - used);
            if (n > 0) {
                char *part = o->buffer + (o->num_chunks - 1) % OFFLOAD_PARTS * o->part_bytes;
                used += add_slice(o, chunk, &tensors[i], first, n, part, used);
            } else {
                REQUIRE(used > 0, "the offload buffer holds fewer than %d elements", STATE_BLOCK);
                chunk = add_chunk(o);
                used = 0;
            }
        }
    }

    o->list = update_list(o->slices, o->num_slices);
    return o;
}

void offload_destroy(Offload *o) {
    if (!o) return;
    update_list_free(&o->list);
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

UpdateList *offload_slices(Offload *o) { return &o->list; }
int offload_chunks(const Offload *o) { return o->num_chunks; }

// ------------------------------------------------------------------------------------------ a step

static void copy_chunk_in(Offload *o, int c) {
    const BufferPart *part = &o->parts[c % OFFLOAD_PARTS];
    const StateChunk *chunk = &o->chunks[c];
    device_stream_wait(STREAM_COPY, part->back);
    for (int i = chunk->first_copy; i < chunk->first_copy + chunk->copies; i++)
        copy_h2d(o->copies[i].device, o->copies[i].host, (size_t)o->copies[i].bytes, STREAM_COPY);
    device_event_record(part->in, STREAM_COPY);
}

void offload_begin(Offload *o) {
    for (int c = 0; c < OFFLOAD_PARTS && c < o->num_chunks; c++) copy_chunk_in(o, c);
}

void offload_take(Offload *o, int c, int *first, int *count) {
    device_stream_wait(STREAM_COMPUTE, o->parts[c % OFFLOAD_PARTS].in);
    *first = o->chunks[c].first;
    *count = o->chunks[c].count;
}

void offload_return(Offload *o, int c) {
    const BufferPart *part = &o->parts[c % OFFLOAD_PARTS];
    const StateChunk *chunk = &o->chunks[c];
    device_event_record(part->updated, STREAM_COMPUTE);
    device_stream_wait(STREAM_COPY_BACK, part->updated);
    for (int i = chunk->first_copy; i < chunk->first_copy + chunk->copies; i++)
        copy_d2h(o->copies[i].host, o->copies[i].device, (size_t)o->copies[i].bytes,
                 STREAM_COPY_BACK);
    device_event_record(part->back, STREAM_COPY_BACK);
    if (c + OFFLOAD_PARTS < o->num_chunks) copy_chunk_in(o, c + OFFLOAD_PARTS);
}
