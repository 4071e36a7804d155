// See data_parallel.h. Within a process the tree is a binary counter: digit i of the number of
// groups computed so far says whether the sum of 2^i groups waits in model_unit_sums(i). A new
// group is added to digit 0, 1, ... as a carry.
#include "llmc/train/data_parallel.h"

#include "llmc/base/arithmetic.h"
#include "llmc/base/format.h"
#include "llmc/comm/comm.h"
#include "llmc/comm/watch.h"
#include "llmc/data/dataloader.h"
#include "llmc/model/model_state.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

// --------------------------------------------------------------------------------------- the share

static bool can_share_groups(int groups, int processes) {
    const int each = groups / processes;
    return groups % processes == 0 && (processes == 1 || (each & (each - 1)) == 0);
}

bool step_share_make(StepShare *s, int64_t step_windows, int64_t B, int groups, int rank,
                     int processes, Error *err) {
    *s = (StepShare){.step_windows = step_windows,
                     .B = B,
                     .groups = groups,
                     .rank = rank,
                     .processes = processes};
    if (step_windows < groups)
        return error_set(
            err, "-d: a step of %lld sequences cannot be cut into %d groups (--reduce-groups)",
            (long long)step_windows, groups);
    if (!can_share_groups(groups, processes)) {
        char numbers[256] = "";
        size_t used = 0;
        for (int n = 1; n <= groups && used < sizeof numbers - 16; n++)
            if (can_share_groups(groups, n))
                used += (size_t)snprintf(numbers + used, sizeof numbers - used, "%s%d",
                                         used ? ", " : "", n);
        return error_set(err,
                         "--reduce-groups %d: cannot be shared by %d processes; possible numbers "
                         "of processes: %s. "
                         "Another --reduce-groups gives other bits",
                         groups, processes, numbers);
    }
    s->count = groups / processes;
    s->first = rank * s->count;
    return true;
}

int64_t step_share_windows(const StepShare *s, int number) {
    const int64_t group = s->first + number;
    return dataloader_group_begin(s->step_windows, s->groups, group + 1) -
           dataloader_group_begin(s->step_windows, s->groups, group);
}

// -------------------------------------------------------------------------------------- the object

// Elements [first, first + n) of the range of each process in a unit, as far as it has them:
// exchanged at once.
typedef struct {
    int unit;
    int64_t first, n;
} Piece;

enum { PIECES = 2 }; // in flight, each in its turn and with its half of the exchange buffer

// The first request of device.h of each kind: a piece, by turn; the sum of a piece, by turn; what
// is waited for at once; and the weights of a unit, by unit. The way of a piece in its turn:
//   after_backward       all_to_all PIECE: my range from all processes, into the half of the buffer
//   finish_piece         wait for PIECE; add in the order of the tree. Undivided: wait for the SUM
//                        that had this turn before, then all_gather SUM: my sums to all processes
//   data_parallel_end    wait for the last SUM of each turn
enum {
    REQUEST_PIECE,
    REQUEST_SUM = REQUEST_PIECE + PIECES,
    REQUEST_NOW = REQUEST_SUM + PIECES,
    REQUEST_WEIGHTS,
};

struct DataParallel {
    StepShare share;
    Model *model;
    const Partition *partition;
    bool overlap;
    UnitHooks hooks;
    bool last;            // the current micro-step is the last one of its step
    Piece pieces[PIECES]; // on their way: number `done` .. `started` - 1, in turns
    int64_t started, done;
    bool sums[PIECES]; // the sum of the piece that was in this turn is on its way to all
    bool *weights;     // (units): on their way
    Range *parts;      // (processes): scratch
    char *host;        // HOST_BYTES of host_alloc, for state that is read
    bool ok;           // no request has failed
    Error err;
};

enum { HOST_BYTES = 4 << 20 };

static bool divided(const DataParallel *d) {
    return d->share.processes > 1 && model_options(d->model)->divided;
}

static void before_forward(void *context, int unit);
static void after_backward(void *context, int unit);
static bool read_divided_state(void *context, int index, StateSlot slot, int64_t first, int64_t n,
                               void *out);

DataParallel *data_parallel_create(const StepShare *share, Model *model, bool overlap, Error *err) {
    DataParallel *d = calloc(1, sizeof *d);
    REQUIRE_MEMORY(d, "the exchange");
    d->share = *share;
    d->model = model;
    d->partition = model_partition(model);
    d->overlap = overlap;
    d->ok = true;
    d->hooks = (UnitHooks){before_forward, after_backward, d};
    d->weights = calloc((size_t)d->partition->num_units, sizeof *d->weights);
    d->parts = calloc((size_t)share->processes, sizeof *d->parts);
    REQUIRE_MEMORY(d->weights && d->parts, "the exchange");

    if (!divided(d)) return d;
    d->host = host_alloc(HOST_BYTES, err);
    if (!d->host) {
        data_parallel_destroy(d);
        return NULL;
    }
    model_set_reader(model, read_divided_state, d);
    return d;
}

void data_parallel_destroy(DataParallel *d) {
    if (!d) return;
    if (d->host) host_free(d->host);
    free(d->weights);
    free(d->parts);
    free(d);
}

// Keeps the first failure: later calls do nothing.
static void keep_outcome(DataParallel *d, bool ok) { d->ok = d->ok && ok; }

static bool exchange_outcome(DataParallel *d, Error *err) {
    if (d->ok) return true;
    *err = d->err;
    return comm_lost(err);
}

// -------------------------------------------------------------------------------- within a process

// The numbers of micro-steps, which choose random bits, are those of a process that computes all
// groups, each with as many micro-steps as the largest one.
static int64_t micro_steps_of_any(const StepShare *s) {
    return ceil_div(ceil_div(s->step_windows, s->groups), s->B);
}

static void count_micro_steps(const DataParallel *d, int64_t count) {
    if (d->share.groups > 1 && count > 0 && model_unit_gradients(d->model, 0).dtype != DTYPE_FP32)
        micro_step_count(model_control(d->model), count);
}

void data_parallel_begin(DataParallel *d) {
    count_micro_steps(d, d->share.first * micro_steps_of_any(&d->share));
}

void data_parallel_micro_step(DataParallel *d, bool last) {
    const UnitHooks *hooks = NULL;
    bool weights = false;
    for (int u = 0; u < d->partition->num_units; u++) weights |= d->weights[u];
    if (d->share.processes > 1 && (last || weights)) hooks = &d->hooks;
    d->last = last;
    model_set_hooks(d->model, hooks);
}

// sum = sum + other, rounded to nearest.
static void add_into(Tensor sum, Tensor other) { tensor_axpby(sum, 1.0f, other, 1.0f, sum); }

// Adds group `number` of the unit to the sums that wait for it; all of them in the last group.
static void add_group(const DataParallel *d, int unit, int number) {
    const Tensor gradients = model_unit_gradients(d->model, unit);
    const bool last = number + 1 == d->share.count;
    int level = 0;
    for (; number >> level & 1 || (last && number >> level > 0); level++)
        if (number >> level & 1) add_into(gradients, model_unit_sums(d->model, unit, level));
    if (!last) tensor_cast(model_unit_sums(d->model, unit, level), gradients);
}

void data_parallel_end_group(DataParallel *d, int number) {
    const StepShare *s = &d->share;
    // unit by unit, in after_backward
    const bool sent = d->share.processes > 1 && number + 1 == s->count;
    count_micro_steps(d, micro_steps_of_any(s) - ceil_div(step_share_windows(s, number), s->B));
    if (s->groups > 1)
        tensor_cast(tensor_slice_rows(model_step_losses(d->model), s->first + number, 1),
                    model_sequence_losses(d->model));
    for (int u = 0; s->count > 1 && !sent && u < d->partition->num_units; u++)
        add_group(d, u, number);
}

// ------------------------------------------------------------------------------- sums of gradients

// The elements of the unit's memory that process r has of a piece.
static Range piece_range(const DataParallel *d, Piece p, int r) {
    const Range own = partition_of_unit(d->partition, p.unit, r);
    const int64_t begin = min_i64(own.begin + p.first, own.end),
                  end = min_i64(begin + p.n, own.end);
    const int64_t unit = d->partition->begin[p.unit];
    return (Range){begin - unit, end - unit};
}

// The parts of all processes, in bytes.
static const Range *piece_ranges(const DataParallel *d, Piece p, DType dtype) {
    const int64_t size = (int64_t)dtype_size(dtype);
    for (int r = 0; r < d->share.processes; r++) {
        const Range part = piece_range(d, p, r);
        d->parts[r] = (Range){0, 0};
        if (range_size(part) > 0) d->parts[r] = (Range){part.begin * size, part.end * size};
    }
    return d->parts;
}

// Waits for the oldest piece, and adds what came in the order of the tree.
static void finish_piece(DataParallel *d) {
    const int turn = (int)(d->done++ % PIECES), processes = d->share.processes;
    const Piece p = d->pieces[turn];
    const Range own = piece_range(d, p, d->share.rank);
    const int64_t n = range_size(own);
    const Tensor gradients = model_unit_gradients(d->model, p.unit),
                 received = model_exchange_buffer(d->model, turn);

    if (!d->ok) return;
    keep_outcome(d, device_comm_wait(REQUEST_PIECE + turn, &d->err));

    if (n > 0) {
        for (int width = 1; width < processes; width *= 2)
            for (int i = 0; i + width < processes; i += 2 * width)
                add_into(tensor_slice_elements(received, i * n, n),
                         tensor_slice_elements(received, (i + width) * n, n));
        tensor_cast(tensor_slice_elements(model_own_gradients(d->model, p.unit), p.first, n),
                    tensor_slice_elements(received, 0, n));
    }

    if (divided(d) || !d->ok) return;
    if (d->sums[turn]) keep_outcome(d, device_comm_wait(REQUEST_SUM + turn, &d->err));
    d->sums[turn] = true;
    if (d->ok)
        keep_outcome(d, device_all_gather(gradients.data, piece_ranges(d, p, gradients.dtype),
                                          REQUEST_SUM + turn, &d->err));
}

static void finish_all(DataParallel *d) {
    while (d->done < d->started) finish_piece(d);
}

// A block has had the time of another block's backward pass when it is waited for; where gradients
// are freed, the pass goes on in its memory.
static void after_backward(void *context, int unit) {
    DataParallel *d = context;
    const int processes = d->share.processes;

    watch_progress();
    device_comm_progress();
    if (!d->last) return;

    watch_collective("sum of gradients");
    if (d->share.count > 1) add_group(d, unit, d->share.count - 1);
    finish_all(d);

    const int64_t fits = tensor_numel(model_exchange_buffer(d->model, 0)) / processes /
                         PLAN_ALIGNMENT * PLAN_ALIGNMENT;
    int64_t longest = 0;
    for (int r = 0; r < processes; r++)
        longest = max_i64(longest, range_size(partition_of_unit(d->partition, unit, r)));

    const Tensor gradients = model_unit_gradients(d->model, unit);
    for (int64_t first = 0; first < longest; first += fits) {
        if (d->started - d->done == PIECES) finish_piece(d);
        const int turn = (int)(d->started++ % PIECES);
        const Piece p = d->pieces[turn] = (Piece){unit, first, min_i64(fits, longest - first)};
        if (d->ok)
            keep_outcome(d, device_all_to_all(model_exchange_buffer(d->model, turn).data,
                                              gradients.data, piece_ranges(d, p, gradients.dtype),
                                              REQUEST_PIECE + turn, &d->err));
    }

    if (!d->overlap) finish_all(d);
}

bool data_parallel_end(DataParallel *d, Error *err) {
    const StepShare *s = &d->share;
    const Tensor losses = model_step_losses(d->model);
    count_micro_steps(d, (s->groups - s->first - s->count) * micro_steps_of_any(s));
    if (s->processes == 1) return true;

    model_set_hooks(d->model, NULL);
    finish_all(d);
    for (int turn = 0; turn < PIECES; turn++) {
        if (d->sums[turn] && d->ok) keep_outcome(d, device_comm_wait(REQUEST_SUM + turn, &d->err));
        d->sums[turn] = false;
    }

    watch_collective("losses of all");
    const int64_t bytes = (int64_t)tensor_bytes(losses) / s->processes;
    for (int r = 0; r < s->processes; r++) d->parts[r] = (Range){r * bytes, (r + 1) * bytes};
    if (d->ok) keep_outcome(d, device_all_gather(losses.data, d->parts, REQUEST_NOW, &d->err));
    if (d->ok) keep_outcome(d, device_comm_wait(REQUEST_NOW, &d->err));
    return exchange_outcome(d, err);
}

// Each process has the sums of squares of its parts, and 0 for the others. So the sum of the rows
// is exact.
bool data_parallel_share_norm(DataParallel *d, Error *err) {
    const Tensor norm = model_norm(d->model);
    const int64_t row = (int64_t)tensor_bytes(norm) / d->share.processes;
    if (!divided(d)) return true;
    watch_collective("gradient norm");
    for (int r = 0; r < d->share.processes; r++) d->parts[r] = (Range){r * row, (r + 1) * row};
    keep_outcome(d, device_all_gather(norm.data, d->parts, REQUEST_NOW, &d->err));
    if (d->ok) keep_outcome(d, device_comm_wait(REQUEST_NOW, &d->err));
    for (int r = 1; r < d->share.processes && d->ok; r++)
        add_into(tensor_slice_rows(norm, 0, 1), tensor_slice_rows(norm, r, 1));
    return exchange_outcome(d, err);
}

// ----------------------------------------------------------------------------------------- weights

static void await_unit(DataParallel *d, int unit) {
    if (!d->weights[unit]) return;
    d->weights[unit] = false;
    if (d->ok) keep_outcome(d, device_comm_wait(REQUEST_WEIGHTS + unit, &d->err));
}

// In the order in which the forward pass reads them.
bool data_parallel_share_weights(DataParallel *d, Error *err) {
    const int units = d->partition->num_units;
    if (!divided(d)) return true;
    watch_collective("new weights");
    for (int i = 0; i < units && d->ok; i++) {
        const int unit = (units - 1 + i) % units;
        const Tensor weights = model_unit_weights(d->model, unit);
        const Piece whole = {unit, 0, d->partition->begin[unit + 1] - d->partition->begin[unit]};
        keep_outcome(d, device_all_gather(weights.data, piece_ranges(d, whole, weights.dtype),
                                          REQUEST_WEIGHTS + unit, &d->err));
        d->weights[unit] = d->ok;
        if (!d->overlap) await_unit(d, unit);
    }
    model_weights_changed(d->model);
    return exchange_outcome(d, err);
}

static void before_forward(void *context, int unit) {
    DataParallel *d = context;
    watch_progress();
    device_comm_progress();
    await_unit(d, unit);
}

bool data_parallel_await_weights(DataParallel *d, Error *err) {
    if (!d) return true;
    for (int u = 0; u < d->partition->num_units; u++) await_unit(d, u);
    return exchange_outcome(d, err);
}

// ------------------------------------------------------------------------ state of other processes

// Bytes [first, first + n) of a slot of a parameter; index -1: there are no more.
typedef struct {
    int64_t index, slot, first, n;
} Request;

// Every process puts its part into the exchange buffer, and all receive all of it.
static bool collect_state(DataParallel *d, Request q, Error *err) {
    char *buffer = model_exchange_buffer(d->model, 0).data;
    int64_t end = 0;
    for (int r = 0; r < d->share.processes; r++) {
        const Range has = model_state_range(d->model, (int)q.index, (StateSlot)q.slot, r);
        const int64_t begin = max_i64(has.begin, q.first), stop = min_i64(has.end, q.first + q.n);
        d->parts[r] = (Range){0, 0};
        if (begin >= stop) continue;
        d->parts[r] = (Range){begin - q.first, round_up(stop - q.first, 4)};
        end = d->parts[r].end;
        if (r != d->share.rank) continue;
        model_read_state(d->model, (int)q.index, (StateSlot)q.slot, begin, stop - begin, d->host);
        copy_h2d(buffer + d->parts[r].begin, d->host, (size_t)range_size(d->parts[r]),
                 STREAM_COMPUTE);
    }

    REQUIRE(end >= q.n, "state that no process has");
    return device_all_gather(buffer, d->parts, REQUEST_NOW, err) &&
           device_comm_wait(REQUEST_NOW, err);
}

// On process 0, within data_parallel_write.
static bool read_divided_state(void *context, int index, StateSlot slot, int64_t first, int64_t n,
                               void *out) {
    DataParallel *d = context;
    const int64_t fits =
        min_i64(HOST_BYTES, (int64_t)tensor_bytes(model_exchange_buffer(d->model, 0)) / 4 * 4);
    for (int64_t done = 0, count; done < n && d->ok; done += count) {
        count = min_i64(fits, n - done);
        Request q = {index, (int64_t)slot, first + done, count};
        watch_progress();
        keep_outcome(d, comm_broadcast(&q, sizeof q, &d->err));
        if (d->ok) keep_outcome(d, collect_state(d, q, &d->err));
        if (!d->ok) return false;
        copy_d2h(d->host, model_exchange_buffer(d->model, 0).data, (size_t)count, STREAM_COMPUTE);
        device_sync();
        memcpy((char *)out + done, d->host, (size_t)count);
    }
    return d->ok;
}

bool data_parallel_write(DataParallel *d, bool (*write)(void *context, Error *err), void *context,
                         Error *err) {
    if (!data_parallel_await_weights(d, err)) return false;
    if (!d || !divided(d)) {
        if (comm_rank() > 0) return true;
        return write(context, err);
    }

    watch_collective("state of the optimizer");
    while (d->share.rank > 0) { // serves process 0, which reads
        Request q;
        if (!comm_broadcast(&q, sizeof q, err)) return comm_lost(err);
        if (q.index < 0) return true;
        if (!collect_state(d, q, err)) return comm_lost(err);
    }

    const bool ok = write(context, err);
    Request end = {.index = -1};
    if (!d->ok) return exchange_outcome(d, err);
    Error lost; // not over the message of write
    if (comm_broadcast(&end, sizeof end, &lost)) return ok;
    *err = lost;
    return comm_lost(err);
}
