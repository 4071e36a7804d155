// PLAN_APART=1: the simulated trainer with every tensor of the arena in memory of its own, between
// gaps that nothing may touch; activations and workspace are NaN before each pass. A run has the
// same bits as without, unless a kernel writes past its tensor, two tensors that share memory are
// alive at once, or something is read before it is written. The functions take the places of those
// of their names (the linker's --wrap).
#include "dev/sim/sim_control.h"
#include "llmc/base/arithmetic.h"
#include "llmc/cuda/backend.h"
#include "llmc/model/model_object.h"
#include <stdlib.h>
#include <string.h>

enum { GAP = 4096 };

int64_t __real_memory_plan_offset(const MemoryPlan *plan, int handle);
int64_t __wrap_memory_plan_offset(const MemoryPlan *plan, int handle);
int64_t __real_memory_plan_total(const MemoryPlan *plan);
int64_t __wrap_memory_plan_total(const MemoryPlan *plan);
Model *__real_model_create(const ModelOptions *options, Error *err);
Model *__wrap_model_create(const ModelOptions *options, Error *err);
void __real_model_forward_backward(Model *model, int64_t tokens_in_step, bool first);
void __wrap_model_forward_backward(Model *model, int64_t tokens_in_step, bool first);
void __real_model_forward(Model *model);
void __wrap_model_forward(Model *model);

static bool apart(void) { return getenv("PLAN_APART") != NULL; }

static int64_t end_of(const MemoryPlan *plan, int count) {
    int64_t bytes = 0;
    for (int i = 0; i < count; i++) bytes += memory_plan_tensor(plan, i).bytes + GAP;
    return bytes;
}

int64_t __wrap_memory_plan_offset(const MemoryPlan *plan, int handle) {
    return apart() ? end_of(plan, handle) : __real_memory_plan_offset(plan, handle);
}
int64_t __wrap_memory_plan_total(const MemoryPlan *plan) {
    return apart() ? end_of(plan, memory_plan_count(plan)) : __real_memory_plan_total(plan);
}

// Weights and gradients are one piece of memory each: what their alignment leaves free belongs to
// nobody, either.
static void forbid_padding(Tensor t) {
    const size_t used = tensor_bytes(t);
    const size_t all = (size_t)round_up(tensor_numel(t), PLAN_ALIGNMENT) * dtype_size(t.dtype);
    if (all > used) sim_forbid((char *)t.data + used, all - used);
}

Model *__wrap_model_create(const ModelOptions *options, Error *err) {
    Model *model = __real_model_create(options, err);
    if (!model || !apart()) return model;
    for (int i = 0; i < memory_plan_count(model->plan); i++)
        sim_forbid((char *)model_at(model, i) + memory_plan_tensor(model->plan, i).bytes, GAP);
    for (int i = 0; i < model->num_tensors; i++) {
        forbid_padding(model->tensors[i].weight);
        if (model->tensors[i].grad.rank) forbid_padding(model->tensors[i].grad);
    }
    return model;
}

// The inputs and the targets stay: the loaded batch was unpacked to them.
static void poison(const Model *model) {
    if (!apart()) return;
    for (int i = 0; i < memory_plan_count(model->plan); i++) {
        const PlannedTensor t = memory_plan_tensor(model->plan, i);
        const bool passing = t.first_use != PLAN_ALWAYS;
        if (strcmp(t.name, "inputs") == 0 || strcmp(t.name, "targets") == 0) continue;
        if (passing || i == model->layout.workspace)
            CUDA_CHECK(
                cudaMemsetAsync(model_at(model, i), 0xff, (size_t)t.bytes, cuda_compute_stream()));
    }
}

void __wrap_model_forward_backward(Model *model, int64_t tokens_in_step, bool first) {
    poison(model);
    __real_model_forward_backward(model, tokens_in_step, first);
}
void __wrap_model_forward(Model *model) {
    poison(model);
    __real_model_forward(model);
}
