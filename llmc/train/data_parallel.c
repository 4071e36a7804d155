// See data_parallel.h. Within a process the tree is a binary counter: digit i of the number of groups computed so far
// says whether the sum of 2^i groups waits in gpt2_gradient_sum(i). A new group is added to digit 0, 1, ... as a carry.
#include "llmc/train/data_parallel.h"

#include "llmc/base/arithmetic.h"
#include "llmc/comm/comm.h"
#include "llmc/data/dataloader.h"

#include <stdio.h>

// --------------------------------------------------------------------------------------------------------- the share

static bool is_possible(int groups, int processes) {
    const int each = groups / processes;
    return groups % processes == 0 && (processes == 1 || (each & (each - 1)) == 0);
}

bool step_share_make(StepShare *s, int64_t step_windows, int64_t B, int groups, int rank, int processes, Error *err) {
    *s = (StepShare){.step_windows = step_windows, .B = B, .groups = groups};
    if (step_windows < groups)
        return error_set(err, "-d: a step of %lld sequences cannot be cut into %d groups (--reduce-groups)",
                         (long long)step_windows, groups);
    if (!is_possible(groups, processes)) {
        char numbers[256] = "";
        size_t used = 0;
        for (int n = 1; n <= groups && used < sizeof numbers - 16; n++)
            if (is_possible(groups, n))
                used += (size_t)snprintf(numbers + used, sizeof numbers - used, "%s%d", used ? ", " : "", n);
        return error_set(err,
                         "--reduce-groups %d: cannot be shared by %d processes; possible numbers of processes: %s. "
                         "Another --reduce-groups gives other bits",
                         groups, processes, numbers);
    }
    s->count = groups / processes, s->first = rank * s->count;
    return true;
}

static int64_t windows_of(const StepShare *s, int64_t group) {
    return dataloader_group_begin(s->step_windows, s->groups, group + 1) -
           dataloader_group_begin(s->step_windows, s->groups, group);
}

int64_t step_share_windows(const StepShare *s, int number) { return windows_of(s, s->first + number); }

// ------------------------------------------------------------------------------------------------- within a process

// The numbers of micro-steps, which choose random bits, are those of a process that computes all groups, each with as
// many micro-steps as the largest one.
static int64_t micro_steps_of_any(const StepShare *s) { return ceil_div(ceil_div(s->step_windows, s->groups), s->B); }

static void count_micro_steps(const StepShare *s, const Gpt2 *model, int64_t count) {
    if (s->groups > 1 && count > 0 && gpt2_all_gradients(model).dtype != DTYPE_FP32)
        micro_step_count(gpt2_control(model), count);
}

void data_parallel_begin(const StepShare *s, const Gpt2 *model) {
    count_micro_steps(s, model, s->first * micro_steps_of_any(s));
}

// sum = sum + other, rounded to nearest.
static void add(Tensor sum, Tensor other) { tensor_axpby(sum, 1.0f, other, 1.0f, sum); }

void data_parallel_end_group(const StepShare *s, const Gpt2 *model, int number) {
    const Tensor gradients = gpt2_all_gradients(model);
    const bool last = number + 1 == s->count;
    count_micro_steps(s, model, micro_steps_of_any(s) - ceil_div(step_share_windows(s, number), s->B));
    if (s->groups > 1)
        tensor_cast(tensor_slice_rows(gpt2_step_losses(model), s->first + number, 1), gpt2_sequence_losses(model));
    int level = 0;
    for (; number >> level & 1 || (last && number >> level > 0); level++)
        if (number >> level & 1) add(gradients, gpt2_gradient_sum(model, level));
    if (!last) tensor_cast(gpt2_gradient_sum(model, level), gradients);
}

// ------------------------------------------------------------------------------------------------ between processes

// Elements [begin, begin + processes * slice) of the gradients: exchanged at once.
typedef struct {
    int64_t begin, slice;
} Piece;

static Piece piece_at(const Gpt2 *model, int64_t begin) {
    const Tensor gradients = gpt2_all_gradients(model);
    const int64_t processes = gpt2_options(model)->processes, size = (int64_t)dtype_size(gradients.dtype);
    const int64_t fits = (int64_t)tensor_bytes(gpt2_exchange_buffer(model, 0)) / size / processes;
    const int64_t left = (tensor_numel(gradients) - begin) / processes;
    return (Piece){begin, min_i64(left, fits / GRADIENT_SLICE * GRADIENT_SLICE)};
}

static Tensor slice_of(Tensor all, Piece p, int process) {
    return tensor_slice_elements(all, p.begin + process * p.slice, p.slice);
}

// Adds the slices in the first one, in the order of the tree.
static void add_slices(Tensor received, Piece p, int processes) {
    for (int width = 1; width < processes; width *= 2)
        for (int i = 0; i + width < processes; i += 2 * width)
            add(slice_of(received, p, i), slice_of(received, p, i + width));
}

// Sends piece by piece: while one piece is added and its sum returns to all, the next one is on its way. Piece k uses
// request and buffer k mod 2, first for its slices, then for the sums.
static bool exchange(const StepShare *s, const Gpt2 *model, Error *err) {
    const Tensor gradients = gpt2_all_gradients(model);
    const int64_t size = (int64_t)dtype_size(gradients.dtype);
    const int processes = gpt2_options(model)->processes, rank = s->first / s->count;
    Piece p = piece_at(model, 0);
    if (!device_all_to_all(gpt2_exchange_buffer(model, 0).data, gradients.data, (size_t)(p.slice * size), 0, err))
        return false;
    for (int k = 0;; k++) {
        const Piece next = piece_at(model, p.begin + processes * p.slice);
        comm_progress();
        if (!device_comm_wait(k % 2, err)) return false;
        if (k > 0 && !device_comm_wait((k + 1) % 2, err)) return false; // the sums of the previous piece
        if (next.slice > 0 &&
            !device_all_to_all(gpt2_exchange_buffer(model, (k + 1) % 2).data, slice_of(gradients, next, 0).data,
                               (size_t)(next.slice * size), (k + 1) % 2, err))
            return false;
        Tensor received = gpt2_exchange_buffer(model, k % 2);
        received = tensor_make(received.data, gradients.dtype, "exchange", processes * p.slice, 0, 0, 0);
        add_slices(received, (Piece){0, p.slice}, processes);
        tensor_cast(slice_of(gradients, p, rank), tensor_slice_elements(received, 0, p.slice));
        if (!device_all_gather(slice_of(gradients, p, 0).data, (size_t)(p.slice * size), k % 2, err)) return false;
        if (next.slice == 0) return device_comm_wait(k % 2, err);
        p = next;
    }
}

bool data_parallel_end(const StepShare *s, const Gpt2 *model, Error *err) {
    const Tensor losses = gpt2_step_losses(model);
    count_micro_steps(s, model, (s->groups - s->first - s->count) * micro_steps_of_any(s));
    if (s->count == s->groups) return true;
    comm_collective("sum of gradients");
    if (!exchange(s, model, err)) return comm_lost(err);
    comm_collective("losses of all");
    return (device_all_gather(losses.data, tensor_bytes(losses) / (size_t)(s->groups / s->count), 0, err) &&
            device_comm_wait(0, err)) ||
           comm_lost(err);
}
