// The end of the step, before the update: the tables by which one launch runs over all tensors
// (optimizer.cuh), the gradient norm, and the decision. The update itself is in optimizer.cu and
// optimizer_adafactor.cu. The norm reads 4 bytes per parameter with fp32 gradients, the minimum.
#include "llmc/cuda/optimizer.cuh"

#include <stdlib.h>
#include <string.h>

enum { BLOCK_THREADS = 256 };

// ------------------------------------------------------------------------------------------ tables

// A tensor adds at most so many entries to a table.
enum { ENTRIES_OF_A_TENSOR = 4 };

typedef struct {
    int variant, tensor;
    int32_t parts;
} DraftRow;

struct TableDraft {
    const char *op;
    size_t entry_bytes;
    int count;
    char *entries;
    DraftRow *rows;
};

struct UpdateTables {
    UpdateTable kinds[TABLE_KINDS];
};

static void *checked(const char *op, void *memory) {
    REQUIRE_MEMORY(memory != NULL, "the tables of %s", op);
    return memory;
}

void update_list_free(UpdateList *list) {
    if (!list->tables) return;
    CUDA_CHECK(cudaStreamSynchronize(cuda_compute_stream())); // the last kernel that reads them
    for (UpdateTable &t : list->tables->kinds) {
        device_free(t.entries);
        free(t.tensor);
    }
    free(list->tables);
    list->tables = NULL;
}

void table_add(TableDraft *d, int variant, int tensor, const void *entry, int64_t parts) {
    REQUIRE(parts <= INT32_MAX, "%s: tensor %d has %lld parts", d->op, tensor, (long long)parts);
    memcpy(d->entries + (size_t)d->count * d->entry_bytes, entry, d->entry_bytes);
    d->rows[d->count++] = DraftRow{variant, tensor, (int32_t)parts};
}

static void make_table(UpdateTable *t, const char *op, const UpdateList *list, size_t entry_bytes,
                       TableDescribe *describe) {
    REQUIRE(!cuda_backend.capturing, "%s: new tensors under capture", op);
    TableDraft d = {};
    d.op = op;
    d.entry_bytes = entry_bytes;
    const size_t most = ENTRIES_OF_A_TENSOR * (size_t)list->n + 1;
    d.entries = (char *)checked(op, malloc(most * entry_bytes));
    d.rows = (DraftRow *)checked(op, malloc(most * sizeof *d.rows));
    describe(&d, list->tensors, list->n);
    const size_t bytes = (size_t)d.count * entry_bytes,
                 first_bytes = ((size_t)d.count + 1) * sizeof(int32_t);
    // the entries of the draft, group by group
    char *sorted = (char *)checked(op, malloc(bytes + 1));
    t->tensor = (int *)checked(op, malloc((2 * (size_t)d.count + 1) * sizeof(int)));
    t->parts = t->tensor + d.count;
    int at = 0, after = -1;
    int64_t parts = 0;
    while (at < d.count) {
        int variant = INT32_MAX; // the smallest that has no group yet
        for (int i = 0; i < d.count; i++)
            if (d.rows[i].variant > after && d.rows[i].variant < variant)
                variant = d.rows[i].variant;
        after = variant;
        REQUIRE(t->num_groups < TABLE_MAX_GROUPS, "%s: more than %d kinds of tensors", op,
                TABLE_MAX_GROUPS);
        TableGroup *group = &t->groups[t->num_groups++];
        group->variant = variant;
        group->begin = at;
        for (int i = 0; i < d.count; i++) {
            if (d.rows[i].variant != variant) continue;
            memcpy(sorted + (size_t)at * entry_bytes, d.entries + (size_t)i * entry_bytes,
                   entry_bytes);
            t->tensor[at] = d.rows[i].tensor;
            t->parts[at++] = (int32_t)parts;
            parts += d.rows[i].parts;
            REQUIRE(parts <= INT32_MAX, "%s: %lld parts", op, (long long)parts);
        }
        group->end = at;
    }
    t->parts[at] = (int32_t)parts;
    Error err;
    char *device = (char *)device_alloc(bytes + first_bytes, &err);
    REQUIRE_MEMORY(device != NULL, "the tables of %s: %s", op, err.text);
    t->entry_bytes = entry_bytes;
    t->entries = device;
    t->first = (int32_t *)(void *)(device + bytes);
    const cudaStream_t stream = cuda_compute_stream();
    CUDA_CHECK(cudaMemcpyAsync(device, sorted, bytes, cudaMemcpyHostToDevice, stream));
    CUDA_CHECK(
        cudaMemcpyAsync(device + bytes, t->parts, first_bytes, cudaMemcpyHostToDevice, stream));
    CUDA_CHECK(cudaStreamSynchronize(stream)); // `sorted` is freed
    free(sorted);
    free(d.entries);
    free(d.rows);
}

const UpdateTable *update_table(const char *op, UpdateList *list, TableKind kind,
                                size_t entry_bytes, TableDescribe *describe) {
    if (!list->tables) list->tables = (UpdateTables *)checked(op, calloc(1, sizeof *list->tables));
    UpdateTable *t = &list->tables->kinds[kind];
    if (!t->entries) make_table(t, op, list, entry_bytes, describe);
    return t;
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
    if (!group) return TableRun{};
    const int begin = entry_of(t, group, first), end = entry_of(t, group, first + count);
    return TableRun{t->entries + (size_t)begin * t->entry_bytes, t->first + begin, end - begin,
                    (unsigned)(t->parts[end] - t->parts[begin])};
}

// -------------------------------------------------------------------------------------------- norm

// Elements of a part: 64 KB of fp32, longer where a tensor would have more than NORM_MAX_PARTS of
// them. 124M parameters are 4,500 parts.
enum { NORM_PART = 16384 };

typedef struct {
    const void *data;
    int64_t numel;
    int64_t part;   // elements of a part, a multiple of NORM_PART
    int32_t tensor; // where its sum goes
    bool packed;    // 16-byte aligned
} NormEntry;

// Sums the squares of part b of the run into partials[b], fp32, b numbered through all runs of the
// table. Thread: every 256th pack of the part, in order. Reads the gradients once.
template <class G>
static __global__ void __launch_bounds__(BLOCK_THREADS)
    norm_parts_kernel(float *partials, const NormEntry *entries, const int32_t *first, int n) {
    wait_for_the_grid_before();
    constexpr int N = PACK<G>;
    const int entry = entry_of_block(first, n);
    const NormEntry e = entries[entry];
    const int64_t begin = part_of_block(first, entry) * e.part, end = min(e.numel, begin + e.part);
    const G *data = (const G *)e.data;
    const int64_t whole = e.packed ? begin + (end - begin) / N * N : begin; // where the packs end
    float sum = 0.0f;
    for (int64_t i = begin + threadIdx.x * N; i < whole; i += BLOCK_THREADS * N) {
        const Vector<G, N> x = load_vector<G, N>(data + i);
        for (int k = 0; k < N; k++) sum = fmaf(to_float(x.v[k]), to_float(x.v[k]), sum);
    }
    for (int64_t i = whole + threadIdx.x; i < end; i += BLOCK_THREADS) {
        const float x = to_float(data[i]);
        sum = fmaf(x, x, sum);
    }
    sum = block_sum(sum);
    if (threadIdx.x == 0) partials[first[0] + (int)blockIdx.x] = sum;
}

// Block i, one warp: the sum of the partials of entry i goes to its tensor.
static __global__ void norm_tensors_kernel(float *sumsq, const float *partials,
                                           const NormEntry *entries, const int32_t *first) {
    wait_for_the_grid_before();
    const double sum = sum_of_parts(partials, first[blockIdx.x], first[blockIdx.x + 1]);
    if (threadIdx.x == 0) sumsq[entries[blockIdx.x].tensor] = (float)sum;
}

// fp32 and 16-bit gradients are separate groups: the dtype is the variant.
static void describe_norm(TableDraft *draft, const UpdateTensor *tensors, int n) {
    for (int i = 0; i < n; i++) {
        const Tensor grad = tensors[i].grad;
        const int64_t numel = tensor_numel(grad);
        NormEntry e = {};
        e.data = grad.data;
        e.numel = numel;
        e.tensor = i;
        e.part = round_up(ceil_div(numel, NORM_MAX_PARTS), NORM_PART);
        e.packed = (uintptr_t)grad.data % 16 == 0;
        table_add(draft, grad.dtype, i, &e, ceil_div(numel, e.part));
    }
}

void backend_gradient_sumsq(Tensor sumsq, UpdateList *list) {
    const UpdateTable *t =
        update_table("gradient_sumsq", list, TABLE_NORM, sizeof(NormEntry), describe_norm);
    const int n = list->n;
    float *partials = (float *)cuda_scratch("gradient_sumsq", t->parts[n] * (int64_t)sizeof(float));
    const cudaStream_t stream = cuda_compute_stream();
    for (int i = 0; i < t->num_groups; i++) {
        const TableRun run = table_run(t, &t->groups[i], 0, n);
        DISPATCH((DType)t->groups[i].variant, G, {
            LAUNCH(norm_parts_kernel<G>, run.parts, BLOCK_THREADS, 0, stream)
            (partials, (const NormEntry *)run.entries, run.first, run.n);
        });
    }
    LAUNCH(norm_tensors_kernel, (unsigned)n, WARP, 0, stream)
    ((float *)sumsq.data, partials, (const NormEntry *)t->entries, t->first);
}

// ---------------------------------------------------------------------------------------- decision

// One block: all threads load state, norms and losses into shared memory, one thread decides, all
// write back. The losses are added in index order by that thread, a tile at a time. Dynamic shared
// memory: num_tensors floats.
static __global__ void __launch_bounds__(BLOCK_THREADS)
    step_control_kernel(StepControl *control, const float *sumsq, int num_tensors,
                        const float *losses, int num_sequences, int64_t num_tokens,
                        StepLimits limits) {
    wait_for_the_grid_before();
    __shared__ StepControl state[1];
    __shared__ float tile[BLOCK_THREADS];
    float *norms = reinterpret_cast<float *>(dynamic_shared_memory);
    enum { WORDS = sizeof(StepControl) / sizeof(uint32_t) };
    uint32_t *words = (uint32_t *)state, *device_words = (uint32_t *)control;
    for (int i = (int)threadIdx.x; i < WORDS; i += BLOCK_THREADS) words[i] = device_words[i];
    for (int i = (int)threadIdx.x; i < num_tensors; i += BLOCK_THREADS) norms[i] = sumsq[i];
    double loss_sum = 0.0;
    for (int begin = 0; begin < num_sequences; begin += BLOCK_THREADS) {
        const int count = min((int)BLOCK_THREADS, num_sequences - begin);
        if ((int)threadIdx.x < count) tile[threadIdx.x] = losses[begin + (int)threadIdx.x];
        __syncthreads();
        if (threadIdx.x == 0)
            for (int i = 0; i < count; i++) loss_sum += (double)tile[i];
        __syncthreads();
    }
    if (threadIdx.x == 0)
        step_control_decide(state, norms, num_tensors, loss_sum, num_tokens, limits);
    __syncthreads();
    for (int i = (int)threadIdx.x; i < WORDS; i += BLOCK_THREADS) device_words[i] = words[i];
}

void backend_step_control_update(Tensor control, Tensor sumsq, Tensor losses, int64_t num_tokens,
                                 StepLimits limits) {
    const int64_t num_tensors = tensor_numel(sumsq), num_sequences = tensor_numel(losses);
    // 32 KB of shared memory.
    REQUIRE(num_tensors <= 8192 && num_sequences >= 1,
            "step_control_update: %lld tensors, %lld sequences", (long long)num_tensors,
            (long long)num_sequences);
    LAUNCH(step_control_kernel, 1, BLOCK_THREADS, (size_t)num_tensors * sizeof(float),
           cuda_compute_stream())
    ((StepControl *)control.data, (const float *)sumsq.data, (int)num_tensors,
     (const float *)losses.data, (int)num_sequences, num_tokens, limits);
}
