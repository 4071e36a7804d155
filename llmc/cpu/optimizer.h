// What the optimizer*.c files share: how work on an array of tensors is cut, and Adafactor's direction.
#pragma once
#include "llmc/ops.h"

// How work on an array of tensors is cut: each tensor into at most 128 parts, numbered through over all tensors, which
// the threads of one parallel loop take as they come free. So the hundred small tensors of a model cost nothing apart,
// and the last thread does not wait long for the largest. The cut depends on sizes alone, and what parts compute is
// added in their order: the bits do not depend on the number of threads. Shared by the files llmc/cpu/optimizer*.c.

// A part ends at a multiple of STATE_BLOCK, which is one of the vector length, too.
enum { MAX_PARTS = 128, MIN_PART_ELEMENTS = 16384 };

// Tensor i has the parts first[i] .. first[i + 1] - 1; one without elements has none.
typedef struct {
    int n;
    int64_t *first; // (n + 1)
    int64_t *numel; // (n)
    double *sums;   // (n * MAX_PARTS) for the op: a number of each part
    char *scratch;  // for the op: what it asked for beyond
} Parts;

typedef struct {
    int tensor;
    int64_t begin, end; // elements
} Part;

int64_t parts_workspace(int n, int64_t scratch_bytes);

// Takes the workspace for n tensors. parts_add then once for each, in order.
Parts parts_begin(const char *op, int n, int64_t scratch_bytes);
void parts_add(Parts p, int tensor, int64_t numel);
static inline int64_t parts_count(Parts p) { return p.first[p.n]; }
Part parts_get(Parts p, int64_t number);

// The sum of p.sums over the parts of a tensor, in order.
double parts_sum(Parts p, int tensor);
