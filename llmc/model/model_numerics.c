// --numerics-every: a TensorStats on the device for each class, counted by tensor_statistics as the
// tensors are computed. Nothing here changes a tensor of the model, and nothing runs or takes
// memory unless it was requested. Counting is not part of the recorded graphs.
#include "llmc/model/model_numerics.h"

#include "llmc/base/arithmetic.h"
#include "llmc/model/model_object.h"
#include "llmc/model/model_state.h"
#include <math.h>
#include <stdio.h>

// ----------------------------------------------------------------------------------------- classes

// The classes in the order of their rows: roles of the linear layers, then the kinds of parameters.
typedef enum { PART_WEIGHT, PART_GRADIENT, PART_UPDATE, NUM_PARTS } Part;
enum {
    FIRST_PARAMETER = NUM_LINEARS * NUM_ROLES,
    NUM_CLASSES = FIRST_PARAMETER + NUM_PARAMETER_SPECS * NUM_PARTS
};
_Static_assert((int)NUM_CLASSES == (int)NUMERICS_MAX_ROWS, "a row for each class");

// ---------------------------------------------------------------------------------------- counting

static Tensor all_stats(const Model *model, DType dtype) {
    const int64_t bytes = NUM_CLASSES * (int64_t)sizeof(TensorStats);
    return tensor_make(model_at(model, model->layout.stats), dtype, "numerics",
                       bytes / (int64_t)dtype_size(dtype), 0, 0, 0);
}

static void count_tensor(const Model *model, int class, Tensor t) {
    TensorStats *stats = (TensorStats *)model_at(model, model->layout.stats) + class;
    Tensor one = tensor_make(stats, DTYPE_U8, "numerics", (int64_t)sizeof *stats, 0, 0, 0);
    // The format is always the compute dtype: for fp32 gradients and updates the counts tell what
    // it would lose.
    tensor_statistics(one, t, model->options.dtype);
}

// Counts a parameter's weight, gradient or update from element `first` on, without the rows that
// pad the vocabulary, which are always 0.
static void count_parameter(const Model *model, int index, Part part, Tensor t, int64_t first) {
    const int64_t used =
        parameter_numel(&model->parameters[index]) - model->tensors[index].padding - first;
    const int spec = (int)(model->parameters[index].spec - parameter_specs);
    if (used > 0)
        count_tensor(model, FIRST_PARAMETER + spec * NUM_PARTS + (int)part,
                     tensor_slice_elements(t, 0, min_i64(used, tensor_numel(t))));
}

void model_observe(Model *model, bool on) {
    REQUIRE(!on || model->layout.stats >= 0,
            "model_observe of a model without ModelOptions.numerics");
    model->observing = on;
    model_use_workspace(model);
    if (on) tensor_fill(all_stats(model, DTYPE_FP32), 0.0f); // all bits 0, as doubles too
}

void model_observe_tensor(const Model *model, LinearLayer layer, Role role, Tensor t) {
    if (model->observing) count_tensor(model, (int)layer * NUM_ROLES + (int)role, t);
}

void model_numerics_gradients(Model *model) {
    for (int i = 0; i < model->num_tensors; i++)
        count_parameter(model, i, PART_WEIGHT, model->tensors[i].weight, 0);
    for (int i = 0; i < model->num_own; i++)
        count_parameter(model, model->own[i].stream, PART_GRADIENT, model->own[i].grad,
                        model->own[i].offset);
}

// ----------------------------------------------------------------------------------------- updates

// The tensor on which an update is measured, of this process: the master if it is on the device,
// else the weight.
static Tensor watched_tensor(const Model *model, int index, int64_t *first) {
    const UpdateTensor *t = model->own;
    while (t->stream != index) t++;
    *first = t->offset;
    if (t->master.data && !model->options.offload) return t->master;
    return t->weight;
}

// A copy of t in the optimizer's scratch memory, which an update does not use while it runs.
static Tensor copy_of(const Model *model, Tensor t) {
    const Tensor scratch = model_optimizer_scratch(model);
    REQUIRE(scratch.data && tensor_bytes(scratch) >= tensor_bytes(t), "no room for a copy of %s",
            t.name);
    t.data = scratch.data;
    return t;
}

void model_numerics_update_begin(Model *model, int index) {
    int64_t first;
    const Tensor t = watched_tensor(model, index, &first);
    tensor_cast(copy_of(model, t), t);
}

void model_numerics_update_end(Model *model, int index) {
    int64_t first;
    const Tensor after = watched_tensor(model, index, &first), copy = copy_of(model, after);
    tensor_axpby(copy, 1.0f, after, -1.0f, copy);
    count_parameter(model, index, PART_UPDATE, copy, first);
}

// ----------------------------------------------------------------------------------------- results

double model_numerics_ratio(const NumericsRow *row) {
    if (row->weight_sumsq > 0.0) return sqrt(row->stats.sumsq / row->weight_sumsq);
    return 0.0;
}

int model_numerics_read(Model *model, NumericsRow rows[NUMERICS_MAX_ROWS]) {
    static const char *const layers[NUM_LINEARS] = {"qkv", "attproj", "fc", "fcproj"};
    static const char *const roles[NUM_ROLES] = {"in", "out", "gradient"};
    static const char *const parts[NUM_PARTS] = {"weight", "gradient", "update"};
    TensorStats stats[NUM_CLASSES];
    const bool divided = model_is_divided(&model->options);

    int n = 0;
    if (model->layout.stats < 0) return 0;
    model_read_bytes(model, all_stats(model, DTYPE_U8), 0, (int64_t)sizeof stats, stats);

    for (int class = 0; class < NUM_CLASSES; class ++) {
        const int part = class >= FIRST_PARAMETER ? (class - FIRST_PARAMETER) % NUM_PARTS : -1;
        const bool of_process = part < 0 || (divided && part != PART_WEIGHT);
        // another process may have counts
        if (stats[class].count <= 0.0 && !(divided && of_process)) continue;
        if (part >= 0 &&
            parameter_index(&model->options.config, (class - FIRST_PARAMETER) / NUM_PARTS, 0) < 0)
            continue;

        NumericsRow *row = &rows[n++];
        if (part < 0)
            snprintf(row->name, sizeof row->name, "%s.%s", layers[class / NUM_ROLES],
                     roles[class % NUM_ROLES]);
        else
            snprintf(row->name, sizeof row->name, "%s.%s",
                     parameter_specs[(class - FIRST_PARAMETER) / NUM_PARTS].name, parts[part]);

        row->stats = stats[class];
        row->of_process = of_process;
        row->weight_sumsq = 0.0;
        if (part == PART_UPDATE) row->weight_sumsq = stats[class - PART_UPDATE + PART_WEIGHT].sumsq;
    }
    return n;
}
