// --fp8: the linear layers of a block as products of fp8 tensors. Activations and weights are e4m3,
// gradients e5m2. A tensor is quantised where it is used, into memory that all layers share. The
// backward pass quantises `in` again instead of keeping it, with the scale of the forward pass, so
// to the same values.
#include "llmc/model/model_fp8.h"

#include "llmc/base/arithmetic.h"

// ------------------------------------------------------------------------------- the memory of fp8

static const int weight_of[NUM_LINEARS] = {PARAM_QKVW, PARAM_ATTPROJW, PARAM_FCW, PARAM_FCPROJW};

// The rows (OC) and columns (IC) of the weight of a layer.
static int64_t rows_of(const ModelConfig *c, LinearLayer layer) {
    return model_size(c, parameter_specs[weight_of[layer]].rows);
}
static int64_t cols_of(const ModelConfig *c, LinearLayer layer) {
    return model_size(c, parameter_specs[weight_of[layer]].cols);
}

// The elements of a block's weights before those of this layer; for NUM_LINEARS, of all layers.
static int64_t elements_before(const ModelConfig *c, LinearLayer layer) {
    int64_t n = 0;
    for (LinearLayer i = LINEAR_QKV; i < layer; i++) n += rows_of(c, i) * cols_of(c, i);
    return n;
}

// The order of the slots: by role, then by block, then by layer.
typedef enum { FP8_IN, FP8_DOUT, FP8_WEIGHT, NUM_FP8_ROLES } Fp8Role;

// Inference needs the weights only; the backward pass also multiplies by their transposes.
static int64_t weight_copies(const ModelOptions *o) { return o->train ? 2 : 1; }

void model_fp8_plan(MemoryPlan *plan, Layout *layout, const ModelOptions *o) {
    const ModelConfig *c = &o->config;
    int64_t in = 0, backward = 0; // elements a token, of the layer that needs the most
    for (LinearLayer i = LINEAR_QKV; i < NUM_LINEARS; i++) {
        in = max_i64(in, cols_of(c, i));
        // dout, dout transposed, `in` transposed
        backward = max_i64(backward, 2 * rows_of(c, i) + cols_of(c, i));
    }

    layout->fp8_weights = layout->fp8_slots = layout->fp8_forward = layout->fp8_backward = -1;
    if (!o->fp8) return;
    layout->fp8_weights =
        memory_plan_add_always(plan, MEM_WEIGHTS, "fp8_weights",
                               weight_copies(o) * c->L * elements_before(c, NUM_LINEARS));
    layout->fp8_slots =
        memory_plan_add_always(plan, MEM_WORKSPACE, "fp8_slots",
                               NUM_FP8_ROLES * c->L * NUM_LINEARS * (int64_t)sizeof(Fp8Slot));
    layout->fp8_forward = memory_plan_add(plan, MEM_ACTIVATIONS, "fp8_forward", o->B * o->T * in, 0,
                                          model_head_tick(c) + H_IN);
    if (!o->train) return;
    layout->fp8_backward =
        memory_plan_add(plan, MEM_ACTIVATIONS, "fp8_backward", o->B * o->T * backward,
                        model_backward_tick(c, (int)c->L - 1), model_end_tick(c) - 1);
}

static Tensor fp8_slot_of(const Model *model, int block, LinearLayer layer, Fp8Role role) {
    Fp8Slot *slots = model_at(model, model->layout.fp8_slots);
    slots += (role * model->options.config.L + block) * NUM_LINEARS + layer;
    return tensor_make(slots, DTYPE_U8, "fp8_slot", (int64_t)sizeof *slots, 0, 0, 0);
}

// The quantised weight (OC,IC), or transposed (IC,OC).
static Tensor quantised_weight(const Model *model, int block, LinearLayer layer, bool transposed) {
    const ModelConfig *c = &model->options.config;
    const int64_t OC = rows_of(c, layer), IC = cols_of(c, layer);
    const int64_t before = block * elements_before(c, NUM_LINEARS) + elements_before(c, layer);
    uint8_t *data = (uint8_t *)model_at(model, model->layout.fp8_weights) +
                    weight_copies(&model->options) * before;
    if (transposed)
        return tensor_make(data + OC * IC, DTYPE_E4M3, "fp8_weight_transposed", IC, OC, 0, 0);
    return tensor_make(data, DTYPE_E4M3, "fp8_weight", OC, IC, 0, 0);
}

void model_fp8_prepare(Model *model) {
    const ModelOptions *o = &model->options;
    if (!o->fp8 || !model->weights_are_new) return;
    model->weights_are_new = false;
    for (int block = 0; block < o->config.L; block++) {
        const Weights p = model_weights(model, block);
        for (int i = 0; i < NUM_LINEARS; i++) {
            const LinearLayer layer = (LinearLayer)i;
            Tensor transposed = tensor_none();
            if (o->train) transposed = quantised_weight(model, block, layer, true);
            fp8_quantize(quantised_weight(model, block, layer, false), transposed,
                         p.all[weight_of[layer]], fp8_slot_of(model, block, layer, FP8_WEIGHT),
                         FP8_CURRENT);
        }
    }
}

// ---------------------------------------------------------------------------------- fp8, one layer

// In the backward pass this repeats the forward pass, with the scale found there.
void model_fp8_forward(const Block *b, LinearLayer layer, Tensor out, Tensor residual, Tensor in,
                       Tensor bias) {
    const Model *model = b->model;
    int memory = model->layout.fp8_forward;
    Fp8Scaling scaling = FP8_CURRENT;
    if (b->pass == PASS_BACKWARD) {
        memory = model->layout.fp8_backward;
        scaling = FP8_KEEP;
    }
    void *scratch = model_at(model, memory);
    const Tensor q =
        tensor_make(scratch, DTYPE_E4M3, "fp8_in", tensor_rows(in), tensor_cols(in), 0, 0);
    const Tensor in_slot = fp8_slot_of(model, b->number, layer, FP8_IN);
    fp8_quantize(q, tensor_none(), in, in_slot, scaling);
    fp8_matmul(out, residual, q, in_slot, quantised_weight(model, b->number, layer, false),
               fp8_slot_of(model, b->number, layer, FP8_WEIGHT), bias);
}

// din may overlap `in`, of which the products read copies.
//   dweight (OC,IC) = dout^T (OC,N) @ in (N,IC);  din (N,IC) = dout (N,OC) @ weight (OC,IC)
// An fp8 matmul needs the summed dimension last in both operands, so dweight uses transposed ones.
void model_fp8_backward(const Block *b, LinearLayer layer, Tensor din, Gradient dweight,
                        Gradient dbias, Tensor dout, Tensor in) {
    const Model *model = b->model;
    const int64_t N = tensor_rows(in), IC = tensor_cols(in), OC = tensor_cols(dout);
    uint8_t *scratch = model_at(model, model->layout.fp8_backward);
    const Tensor q = tensor_make(scratch, DTYPE_E5M2, "fp8_dout", N, OC, 0, 0);
    const Tensor dout_transposed =
        tensor_make(scratch + N * OC, DTYPE_E5M2, "fp8_dout_transposed", OC, N, 0, 0);
    const Tensor in_transposed =
        tensor_make(scratch + 2 * N * OC, DTYPE_E4M3, "fp8_in_transposed", IC, N, 0, 0);
    const Tensor in_slot = fp8_slot_of(model, b->number, layer, FP8_IN);
    const Tensor dout_slot = fp8_slot_of(model, b->number, layer, FP8_DOUT);

    fp8_quantize(q, dout_transposed, dout, dout_slot, FP8_CURRENT);
    fp8_quantize(tensor_none(), in_transposed, in, in_slot, FP8_KEEP);
    fp8_matmul(din, tensor_none(), q, dout_slot, quantised_weight(model, b->number, layer, true),
               fp8_slot_of(model, b->number, layer, FP8_WEIGHT), tensor_none());
    const Tensor added = dweight.add ? dweight.to : tensor_none();
    fp8_matmul(dweight.to, added, dout_transposed, dout_slot, in_transposed, in_slot,
               tensor_none());
    if (dbias.to.data) bias_backward(dbias, dout);
}
