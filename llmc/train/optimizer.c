// The end of a step, see optimizer.h. optimizer_step, last in this file, has the path from gradients to an update in
// the order in which it runs; ops.h has the formulas of the rules. Before it come the parts that only some runs need:
// Muon's directions, and optimizer state in host memory. Part p of the offload buffer takes the chunks p, p +
// OFFLOAD_PARTS, ... Their way through it is ordered by
//
//   copy in (STREAM_COPY)   after the copy back of the chunk that had the part before
//   update  (STREAM_COMPUTE)  after the copy in
//   copy back (STREAM_COPY_BACK)  after the update
//
// A step's first copies in follow the copies back of the previous step, for the same reason. A skipped step copies back
// what it copied in.
#include "llmc/train/optimizer.h"

#include "llmc/base/arithmetic.h"
#include "llmc/model/model.h"
#include "llmc/model/model_numerics.h"
#include "llmc/model/model_state.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

// ------------------------------------------------------------------------------------------------------- learning rate

// Share of all steps in which wsd decays: Haegele et al. find little gain beyond 20%.
static const double WSD_DECAY_SHARE = 0.2;

const char *schedule_name(ScheduleKind kind) {
    static const char *const names[] = {
        [SCHEDULE_COSINE] = "cosine",
        [SCHEDULE_LINEAR] = "linear",
        [SCHEDULE_CONSTANT] = "constant",
        [SCHEDULE_WSD] = "wsd",
    };
    return names[kind];
}

// The share of (max - final) left at p in (0, 1): 1 at the start of the decay, 0 at its end.
static double remaining(ScheduleKind kind, double p) {
    switch (kind) {
    case SCHEDULE_COSINE:
        return 0.5 * (1.0 + cos(M_PI * p));
    case SCHEDULE_LINEAR:
        return 1.0 - p;
    case SCHEDULE_WSD:
        return 1.0 - sqrt(p);
    case SCHEDULE_CONSTANT:
        break;
    }
    return 1.0;
}

double schedule_lr(const Schedule *s, int64_t step) {
    int64_t last = s->total > 0 ? s->total - 1 : 0;
    if (step > last) step = last;
    if (step < 0) step = 0;

    if (step < s->warmup) return s->max_lr * ((double)(step + 1) / (double)s->warmup);
    if (s->kind == SCHEDULE_CONSTANT) return s->max_lr;
    if (step == last) return s->max_lr * s->final_fraction;

    int64_t decay_start = s->warmup;
    if (s->kind == SCHEDULE_WSD) {
        int64_t stable_end = last - llround(WSD_DECAY_SHARE * (double)s->total);
        if (stable_end > decay_start) decay_start = stable_end;
    }
    if (step <= decay_start) return s->max_lr;
    double p = (double)(step - decay_start) / (double)(last - decay_start);
    return s->max_lr * (s->final_fraction + (1.0 - s->final_fraction) * remaining(s->kind, p));
}

// ---------------------------------------------------------------------------------------------------------------- Muon

static const float MUON_A = 3.4445f, MUON_B = -4.7750f, MUON_C = 2.0315f;

struct Muon {
    UpdateList *all; // the caller's
    DType dtype;     // compute dtype of the iteration
    MuonScratch layout;
    char *scratch;
    UpdateTensor *matrices; // (layout.matrices) the gradients alone, each (rows, cols); stacked ones are separate
    UpdateList list;        // of the matrices
};

Muon *muon_create(UpdateList *all, const Parameter *parameters, int num_parameters, Tensor scratch) {
    const UpdateTensor *tensors = all->tensors;
    Muon *m = calloc(1, sizeof *m);
    REQUIRE_MEMORY(m, "Muon's matrices");
    m->all = all, m->dtype = tensors[0].weight.dtype;
    m->layout = optimizer_muon_scratch(parameters, num_parameters, m->dtype);
    m->scratch = scratch.data;
    REQUIRE((int64_t)tensor_bytes(scratch) >= m->layout.bytes, "Muon's scratch has %zu bytes, %lld are needed",
            tensor_bytes(scratch), (long long)m->layout.bytes);
    m->matrices = calloc((size_t)m->layout.matrices, sizeof *m->matrices);
    REQUIRE_MEMORY(m->matrices, "Muon's matrices");
    int n = 0;
    for (int i = 0; i < all->n; i++) {
        const Parameter *p = &parameters[tensors[i].stream];
        const int64_t rows = p->rows / p->spec->stacked;
        for (int k = 0; tensors[i].rule == RULE_DIRECTION && k < p->spec->stacked; k++)
            m->matrices[n++].grad = tensor_slice_rows(tensors[i].grad, k * rows, rows);
    }
    REQUIRE(n <= m->layout.matrices, "%d matrices where the table has %d", n, m->layout.matrices);
    m->layout.matrices = n; // of this process
    m->list = update_list(m->matrices, n);
    return m;
}

void muon_destroy(Muon *m) {
    if (!m) return;
    update_list_free(&m->list);
    free(m->matrices);
    free(m);
}

// One step for a matrix that is wider than tall, (rows, cols). gram and square are symmetric, so the products below
// need no transposed operand.
static void step_wide(Tensor x, Tensor product, Tensor gram, Tensor square) {
    matmul_forward(gram, x, x, tensor_none());          // X X^T
    matmul_forward(square, gram, gram, tensor_none());  // A A
    tensor_axpby(square, MUON_B, gram, MUON_C, square); // b A + c A A
    matmul_backward_input(product, square, x);          // (b A + c A A) X
    tensor_axpby(x, MUON_A, x, 1.0f, product);
}

// The same from the other side: X (b A + c A A) with A = X^T X is the same matrix, and A is the smaller one.
static void step_tall(Tensor x, Tensor product, Tensor gram, Tensor square) {
    matmul_backward_weight(gram, tensor_none(), x, x, false); // X^T X
    matmul_forward(square, gram, gram, tensor_none());
    tensor_axpby(square, MUON_B, gram, MUON_C, square);
    matmul_forward(product, x, square, tensor_none());
    tensor_axpby(x, MUON_A, x, 1.0f, product);
}

static void orthogonalize(const Muon *m, Tensor matrix, Tensor sumsq) {
    const int64_t rows = tensor_rows(matrix), cols = tensor_cols(matrix), side = rows < cols ? rows : cols;
    const Tensor x = tensor_make(m->scratch + m->layout.x, m->dtype, "muon_x", rows, cols, 0, 0);
    const Tensor product = tensor_make(m->scratch + m->layout.product, m->dtype, "muon_product", rows, cols, 0, 0);
    const Tensor gram = tensor_make(m->scratch + m->layout.gram, m->dtype, "muon_gram", side, side, 0, 0);
    const Tensor square = tensor_make(m->scratch + m->layout.square, m->dtype, "muon_square", side, side, 0, 0);
    tensor_normalize(x, matrix, sumsq);
    for (int i = 0; i < MUON_STEPS; i++) (rows > cols ? step_tall : step_wide)(x, product, gram, square);
    tensor_cast(matrix, x);
}

void muon_directions(Muon *m, UpdateParams params, Tensor control) {
    const int n = m->layout.matrices;
    const Tensor sumsq = tensor_make(m->scratch + m->layout.sumsq, DTYPE_FP32, "muon_sumsq", n, 0, 0, 0);
    momentum_update(m->all, params, control);
    if (n == 0) return;
    gradient_sumsq(sumsq, &m->list);
    for (int i = 0; i < n; i++) orthogonalize(m, m->matrices[i].grad, tensor_slice_elements(sumsq, i, 1));
}

// ------------------------------------------------------------------------------------------------- --offload optimizer

typedef struct {
    char *host, *device;
    int64_t bytes;
} Copy;

typedef struct {
    int first, count;       // slices
    int first_copy, copies; // each copy runs one way and then the other
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
    UpdateList list; // of the slices
    Copy *copies;
    Chunk *chunks;
};

// -------------------------------------------------------------------------------------------------------------- slices

// Makes capacity for one more element of the array, which grows by doubling.
static void *with_room(void *array, int count, size_t size) {
    if ((count & (count - 1)) != 0) return array; // 0, 1, 2, 4, ...: full
    array = realloc(array, (size_t)(count ? 2 * count : 1) * size);
    REQUIRE_MEMORY(array, "the slices of the optimizer state");
    return array;
}

static bool is_scale(int slot) { return slot == SLOT_M_SCALE || slot == SLOT_V_SCALE; }

// The bytes of a slot for n elements of its parameter.
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

// Adds a copy, or extends the last one if both ends continue it.
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

// Adds elements [first, first + n) of t as a slice, with its state at offset `used` of the part at `part`. Returns the
// bytes it takes there.
static int64_t add_slice(Offload *o, Chunk *chunk, const UpdateTensor *t, int64_t first, int64_t n, char *part,
                         int64_t used) {
    const int64_t begin = used, numel = tensor_numel(t->weight);
    UpdateTensor slice = *t, whole = *t;
    slice.weight = tensor_slice_elements(t->weight, first, n), slice.grad = tensor_slice_elements(t->grad, first, n);
    slice.offset = t->offset + first;
    for (int slot = 0; slot < NUM_STATE_SLOTS; slot++) {
        const Tensor s = *state_slot_tensor(&whole, (StateSlot)slot);
        if (!s.data) continue;
        const int64_t bytes = slot_bytes(s, slot, n), size = (int64_t)dtype_size(s.dtype);
        Tensor *there = state_slot_tensor(&slice, (StateSlot)slot);
        *there = tensor_make(part + used, s.dtype, s.name, bytes / size, 0, 0, 0);
        // A whole slot is followed by padding in both places; with the padding copied too, neighbours become one copy.
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
                REQUIRE(used > 0, "the offload buffer holds fewer than %d elements", STATE_BLOCK);
                chunk = add_chunk(o), used = 0;
            }
        }
    }
}

// -------------------------------------------------------------------------------------------------------------- object

Offload *offload_create(const Model *model, const UpdateTensor *tensors, int count, Error *err) {
    Offload *o = calloc(1, sizeof *o);
    REQUIRE_MEMORY(o, "the slices of the optimizer state");
    int64_t bytes;
    o->buffer = model_offload_buffer(model, &bytes);
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
    cut(o, tensors, count);
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

// -------------------------------------------------------------------------------------------------------------- a step

static void copy_in(Offload *o, int c) {
    const Part *part = &o->parts[c % OFFLOAD_PARTS];
    const Chunk *chunk = &o->chunks[c];
    device_stream_wait(STREAM_COPY, part->back);
    for (int i = chunk->first_copy; i < chunk->first_copy + chunk->copies; i++)
        copy_h2d(o->copies[i].device, o->copies[i].host, (size_t)o->copies[i].bytes, STREAM_COPY);
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
        copy_d2h(o->copies[i].host, o->copies[i].device, (size_t)o->copies[i].bytes, STREAM_COPY_BACK);
    device_event_record(part->back, STREAM_COPY_BACK);
    if (c + OFFLOAD_PARTS < o->num_chunks) copy_in(o, c + OFFLOAD_PARTS);
}

// ------------------------------------------------------------------------------------------------------- the optimizer

struct Optimizer {
    Model *model;
    OptimizerOptions options;
    UpdateTensor *tensors; // of this process, with the run's weight decay
    UpdateList list;       // of them
    UpdateTensor *parts;   // of the gradient norm
    UpdateList norm;       // of them
    Muon *muon;            // NULL: another optimizer
    Offload *offload;      // NULL: the state is on the device
};

float optimizer_first_loss_scale(DType dtype) { return dtype == DTYPE_FP16 ? 65536.0f : 1.0f; }
int32_t optimizer_scale_growth_interval(DType dtype) { return dtype == DTYPE_FP16 ? 2000 : 0; }

// The gradient of a part of the norm. If it belongs to another process: a single 0, the one at the end of the row.
static Tensor norm_part(const Model *model, const NormPart *part) {
    int count;
    const UpdateTensor *own = model_own_tensors(model, &count);
    for (int i = 0; i < count; i++) {
        const int64_t first = part->elements.begin - own[i].offset, n = range_size(part->elements);
        if (own[i].stream == part->parameter && first >= 0 && first + n <= tensor_numel(own[i].grad))
            return n == tensor_numel(own[i].grad) ? own[i].grad : tensor_slice_elements(own[i].grad, first, n);
    }
    void *zero = tensor_slice_elements(model_norm(model), model_partition(model)->num_norm_parts, 1).data;
    return tensor_make(zero, model_unit_gradients(model, 0).dtype, "zero", 1, 0, 0, 0);
}

static void list_norm_parts(Optimizer *o) {
    const Partition *p = model_partition(o->model);
    o->parts = calloc((size_t)p->num_norm_parts, sizeof *o->parts);
    REQUIRE_MEMORY(o->parts, "the parts of the gradient norm");
    for (int i = 0; i < p->num_norm_parts; i++) o->parts[i].grad = norm_part(o->model, &p->norm_parts[i]);
    o->norm = update_list(o->parts, p->num_norm_parts);
}

Optimizer *optimizer_create(Model *model, const OptimizerOptions *options, Error *err) {
    const ModelOptions *of = model_options(model);
    Optimizer *o = calloc(1, sizeof *o);
    int count;
    const UpdateTensor *own = model_own_tensors(model, &count);
    REQUIRE_MEMORY(o && (o->tensors = malloc((size_t)(count + 1) * sizeof *o->tensors)), "the optimizer's tensors");
    o->model = model, o->options = *options, o->list = update_list(o->tensors, count);
    o->options.limits.beta1 = options->beta1, o->options.limits.beta2 = options->beta2;
    list_norm_parts(o);
    memcpy(o->tensors, own, (size_t)count * sizeof *o->tensors);
    for (int i = 0; i < count; i++) o->tensors[i].weight_decay *= options->weight_decay;
    if (of->optimizer == OPTIMIZER_MUON)
        o->muon =
            muon_create(&o->list, model_parameters(model), model_num_tensors(model), model_optimizer_scratch(model));
    if (of->offload && !(o->offload = offload_create(model, o->tensors, count, err))) {
        optimizer_destroy(o);
        return NULL;
    }
    return o;
}

void optimizer_destroy(Optimizer *o) {
    if (!o) return;
    muon_destroy(o->muon);
    offload_destroy(o->offload);
    update_list_free(&o->list);
    update_list_free(&o->norm);
    free(o->tensors);
    free(o->parts);
    free(o);
}

// ---------------------------------------------------------------------------------------------------------- the update

typedef struct {
    Model *model;
    UpdateList *list; // whole parameters, or under offload slices of them
    UpdateParams params;
    bool watched;
} Update;

static void update_range(const Update *u, int first, int count) {
    const Tensor control = model_control(u->model);
    if (!u->watched) {
        optimizer_update(u->list, first, count, u->params, control);
        return;
    }
    for (int i = first; i < first + count; i++) {
        const UpdateTensor *t = &u->list->tensors[i];
        const Range own = model_own_elements(u->model, t->stream);
        if (t->offset == own.begin) model_numerics_update_begin(u->model, t->stream);
        optimizer_update(u->list, i, 1, u->params, control);
        if (t->offset + tensor_numel(t->weight) == own.end) model_numerics_update_end(u->model, t->stream);
    }
}

static void update(Optimizer *o, UpdateParams params, bool watched) {
    UpdateList *list = o->offload ? offload_slices(o->offload) : &o->list;
    const Update u = {.model = o->model, .list = list, .params = params, .watched = watched};
    if (!o->offload) {
        update_range(&u, 0, list->n);
        return;
    }
    for (int c = 0; c < offload_chunks(o->offload); c++) {
        int first, count;
        offload_take(o->offload, c, &first, &count);
        update_range(&u, first, count);
        offload_return(o->offload, c);
    }
}

// Of this process, where the state is divided.
static Tensor norm_row(const Model *model, int row) {
    const Tensor norm = tensor_slice_rows(model_norm(model), row, 1);
    return tensor_slice_elements(norm, 0, model_partition(model)->num_norm_parts);
}

void optimizer_norm(Optimizer *o) {
    const ModelOptions *of = model_options(o->model);
    if (o->offload) offload_begin(o->offload); // runs during the backward pass, which is still active
    gradient_sumsq(norm_row(o->model, of->divided && of->processes > 1 ? of->rank : 0), &o->norm);
}

void optimizer_step(Optimizer *o, double learning_rate, int64_t tokens_in_step, bool watched) {
    const Tensor control = model_control(o->model);
    const UpdateParams params = {.learning_rate = (float)learning_rate,
                                 .beta1 = o->options.beta1,
                                 .beta2 = o->options.beta2,
                                 .eps = o->options.eps,
                                 .momentum = o->options.momentum,
                                 .seed = o->options.seed};
    step_control_update(control, norm_row(o->model, 0), model_step_losses(o->model), tokens_in_step, o->options.limits);
    if (watched) model_numerics_gradients(o->model);
    if (o->list.n > 0) {
        if (model_options(o->model)->optimizer == OPTIMIZER_ADAFACTOR) adafactor_statistics(&o->list, control);
        if (o->muon) muon_directions(o->muon, params, control);
        update(o, params, watched);
    }
    model_weights_changed(o->model);
}
