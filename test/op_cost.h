// COST_OF(matmul_forward(out, in, weight, bias), gelu_forward(...)).flops: the cost of calls
// together, whose arguments are checked and which are not run. Tensors need an address, which
// nobody looks at.
#pragma once
#include "llmc/ops.h"

static OpCost observed_cost;

static bool observe_cost(OpCost cost) {
    cost.flops += observed_cost.flops, cost.bytes += observed_cost.bytes;
    observed_cost = cost;
    return false;
}

static void cost_begin(void) {
    static const OpObserver observer = {observe_cost, NULL};
    observed_cost = (OpCost){0};
    ops_observe(&observer);
}

static OpCost cost_end(void) {
    ops_observe(NULL);
    return observed_cost;
}

#define COST_OF(...) (cost_begin(), __VA_ARGS__, cost_end())
