// See dry_run.h.
#include "llmc/plan/dry_run.h"

#include "llmc/base/error.h"
#include "llmc/train/optimizer.h"

#include <math.h>

// The ops call the observer without a context.
static struct {
    DryRunOp *see;
    void *context;
    double calls;
} dry_run;

static bool show_and_refuse(OpCost cost) {
    dry_run.see(dry_run.context, &cost, dry_run.calls);
    return false;
}

bool dry_run_step(const ModelOptions *options, double micro_steps, DryRunOp *see, void *context) {
    static const OpObserver observer = {show_and_refuse, NULL};
    const OptimizerOptions no_options = {0};
    const int token_bytes = options->config.V > 1 << 16 ? 4 : 2;
    const int64_t tokens = options->B * options->T;
    ModelOptions o = *options;
    Error err;
    Model *model = NULL;

    if (!device_facts()->supports[o.dtype]) o.dtype = DTYPE_BF16;
    if (!device_facts()->supports[o.dtype]) o.dtype = DTYPE_FP16;
    if (!o.offload) model = model_create_dry(&o);
    if (!model) return false;

    Optimizer *optimizer = optimizer_create(model, &no_options, &err);
    REQUIRE(optimizer, "%s", err.text); // only offload can fail
    dry_run.see = see;
    dry_run.context = context;
    ops_observe(&observer);

    for (int step = 0; step < 2; step++) { // the first micro-step, and all others
        dry_run.calls = micro_steps - 1;
        if (step == 0) dry_run.calls = fmin(1, micro_steps);
        if (dry_run.calls <= 0) continue;
        model_load_batch(model, NULL, o.B, o.T, token_bytes);
        model_forward_backward(model, tokens, step == 0);
    }

    dry_run.calls = 1;
    optimizer_norm(optimizer);
    optimizer_step(optimizer, 0, tokens, false);

    ops_observe(NULL);
    optimizer_destroy(optimizer);
    model_destroy(model);
    return true;
}
