// The cut of an array of tensors into parts. Owns nothing: tables and sums lie in the workspace.
#include "llmc/cpu/optimizer_parts.h"

#include "llmc/base/checked.h"
#include "llmc/cpu/cpu.h"

static int64_t part_elements(int64_t numel) {
    int64_t n = round_up(ceil_div(numel, MAX_PARTS), STATE_BLOCK);
    return n < MIN_PART_ELEMENTS ? MIN_PART_ELEMENTS : n;
}

// Where everything lies in the workspace; returns the bytes it takes. first[] lies at the start.
static int64_t parts_layout(int n, int64_t scratch_bytes, int64_t *numel, int64_t *sums, int64_t *scratch) {
    int64_t end = 0;
    cpu_part(&end, (n + 1) * (int64_t)sizeof(int64_t));
    *numel = cpu_part(&end, n * (int64_t)sizeof(int64_t));
    *sums = cpu_part(&end, n * (int64_t)MAX_PARTS * (int64_t)sizeof(double));
    *scratch = cpu_part(&end, scratch_bytes);
    return end;
}

int64_t parts_workspace(int n, int64_t scratch_bytes) {
    int64_t numel, sums, scratch;
    return parts_layout(n, scratch_bytes, &numel, &sums, &scratch);
}

Parts parts_begin(const char *op, int n, int64_t scratch_bytes) {
    int64_t numel, sums, scratch;
    char *workspace = cpu_scratch(op, parts_layout(n, scratch_bytes, &numel, &sums, &scratch));
    Parts p = {n, (int64_t *)(void *)workspace, (int64_t *)(void *)(workspace + numel),
               (double *)(void *)(workspace + sums), workspace + scratch};
    p.first[0] = 0;
    return p;
}

void parts_add(Parts p, int tensor, int64_t numel) {
    p.numel[tensor] = numel;
    p.first[tensor + 1] = p.first[tensor] + ceil_div(numel, part_elements(numel));
}

Part parts_get(Parts p, int64_t number) {
    int low = 0, high = p.n; // first[low] <= number < first[high]
    while (high - low > 1) {
        int middle = (low + high) / 2;
        if (p.first[middle] <= number)
            low = middle;
        else
            high = middle;
    }
    int64_t size = part_elements(p.numel[low]), begin = (number - p.first[low]) * size;
    return (Part){low, begin, p.numel[low] - begin < size ? p.numel[low] : begin + size};
}

double parts_sum(Parts p, int tensor) {
    double sum = 0.0;
    for (int64_t number = p.first[tensor]; number < p.first[tensor + 1]; number++) sum += p.sums[number];
    return sum;
}
