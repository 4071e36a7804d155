// The end of the step: gradient norm, the decision, AdamW.
//
// Norm and update run over all tensors in one parallel region: each tensor is cut into at most 128 parts, which the
// threads take as they come free, so that the hundred small tensors of a model cost nothing apart and the last thread
// does not wait long for the largest. The cut depends on sizes alone, and parts are summed in order: the bits do not
// depend on the number of threads. Both passes are bound by memory: 4 and 30 bytes a parameter in bf16 with fp32
// gradient, master, m and v.
#include "llmc/base/checked.h"
#include "llmc/base/error.h"
#include "llmc/base/rng.h"
#include "llmc/cpu/cpu.h"
#include "llmc/cpu/cpu_ops.h"
#include "llmc/cpu/simd.h"

// --------------------------------------------------------------------------------------------------------------- parts

enum { MAX_PARTS = 128, MIN_PART_ELEMENTS = 16384 };

static int64_t part_elements(int64_t numel) {
    int64_t n = round_up(ceil_div(numel, MAX_PARTS), LANES);
    return n < MIN_PART_ELEMENTS ? MIN_PART_ELEMENTS : n;
}

// All parts of all tensors, numbered through: part p belongs to the last tensor whose first[] is <= p.
typedef struct {
    int64_t *first; // (n + 1) number of a tensor's first part; first[n] is how many there are
    double *sums;   // (first[n]) sums of squares by part
    int n;
} Parts;

typedef struct {
    int tensor;
    int64_t begin, end; // elements
} Part;

static Parts parts_in(char *workspace, int n, int64_t *bytes) {
    int64_t end = 0;
    int64_t first = cpu_part(&end, (n + 1) * (int64_t)sizeof(int64_t));
    int64_t sums = cpu_part(&end, n * MAX_PARTS * (int64_t)sizeof(double));
    *bytes = end;
    return workspace ? (Parts){(int64_t *)(workspace + first), (double *)(workspace + sums), n} : (Parts){0};
}

int64_t cpu_optimizer_workspace(OpsShape shape) {
    int64_t bytes;
    parts_in(NULL, (int)shape.num_tensors, &bytes);
    return bytes;
}

static Parts parts_begin(const char *op, int n) {
    int64_t bytes;
    parts_in(NULL, n, &bytes);
    Parts p = parts_in(cpu_scratch(op, bytes), n, &bytes);
    p.first[0] = 0;
    return p;
}

static void parts_add(Parts p, int tensor, int64_t numel) {
    p.first[tensor + 1] = p.first[tensor] + ceil_div(numel, part_elements(numel));
}

static Part part_get(Parts p, int64_t number, int64_t (*numel_of)(const void *tensors, int tensor),
                     const void *tensors) {
    int low = 0, high = p.n; // first[low] <= number < first[high]
    while (high - low > 1) {
        int middle = (low + high) / 2;
        if (p.first[middle] <= number)
            low = middle;
        else
            high = middle;
    }
    int64_t numel = numel_of(tensors, low), size = part_elements(numel), begin = (number - p.first[low]) * size;
    return (Part){low, begin, numel - begin < size ? numel : begin + size};
}
