// The tables of model_activations.h, the clock and the shapes of activations.
#include "llmc/model/model_activations.h"
#include "llmc/base/format.h"

#include <stdio.h>

#define X(name, ...) {#name, __VA_ARGS__},
const ActivationSpec model_block_activations[NUM_BLOCK_ACTS] = {BLOCK_ACTIVATIONS(X)};
const ModelActivationSpec model_activations[NUM_MODEL_ACTS] = {MODEL_ACTIVATIONS(X)};
#undef X

Tensor model_activation(const ModelOptions *o, ActivationShape shape, Presence presence,
                        const char *name, void *data, int64_t B, int64_t T) {
    static const Dimension widths[] = {
        [BTC] = DIM_C, [BTATT] = DIM_ATT, [BTQKV] = DIM_QKV, [BTFF] = DIM_FF, [BTFC] = DIM_FC};
    if (!model_has(&o->config, presence)) return tensor_none();
    switch (shape) {
    case BT:
        return tensor_make(data, DTYPE_FP32, name, B, T, 0, 0);
    case BHT:
        return tensor_make(data, DTYPE_FP32, name, B, o->config.NH, T, 0);
    case BTH:
        return tensor_make(data, DTYPE_FP32, name, B, T, o->config.NH + model_kv_heads(&o->config),
                           0);
    case BT_I32:
        return tensor_make(data, DTYPE_I32, name, B, T, 0, 0);
    case C_FP32:
        return tensor_make(data, DTYPE_FP32, name, o->config.C, 0, 0, 0);
    case LOGITS_CHUNK:
        return tensor_make(data, o->dtype, name, model_head_chunk_rows(o), o->config.Vp, 0, 0);
    default: // BTC .. BTFC
        return tensor_make(data, o->dtype, name, B, T, model_size(&o->config, widths[shape]), 0);
    }
}

// --------------------------------------------------------------------------------------- the clock

int model_head_tick(const ModelConfig *config) { return (int)config->L * FORWARD_TICKS; }
int model_backward_tick(const ModelConfig *config, int block) {
    return model_head_tick(config) + HEAD_TICKS + ((int)config->L - 1 - block) * BACKWARD_TICKS;
}
int model_end_tick(const ModelConfig *config) {
    return model_backward_tick(config, 0) + BACKWARD_TICKS;
}
int model_tick_of_head(const ModelConfig *config, int tick) {
    if (tick == H_BEGIN) return 0;
    if (tick == H_END) return model_end_tick(config);
    return model_head_tick(config) + tick;
}

const char *model_tick_name(const ModelConfig *config, int tick, char name[TICK_NAME]) {
    static const char *const forward[FORWARD_TICKS] = {"fcproj",  "ln1", "qkv", "attention",
                                                       "attproj", "ln2", "fc"};
    static const char *const head[HEAD_TICKS] = {"fcproj", "final layernorm", "logits and loss",
                                                 "final layernorm backward"};
    static const char *const backward[BACKWARD_TICKS] = {
        "recompute", "fcproj", "gelu", "fc", "ln2", "attproj", "attention", "qkv", "ln1"};
    const int L = (int)config->L, first = model_backward_tick(config, L - 1),
              end = model_end_tick(config);
    const int in_head = tick - model_head_tick(config),
              block = tick / FORWARD_TICKS - (tick % FORWARD_TICKS == F_IN);

    if (tick == 0)
        snprintf(name, TICK_NAME, "embedding");
    else if (in_head <= H_IN)
        snprintf(name, TICK_NAME, "block %d %s", block, forward[tick % FORWARD_TICKS]);
    else if (tick < first)
        snprintf(name, TICK_NAME, "%s", head[in_head]);
    else if (tick < end)
        snprintf(name, TICK_NAME, "block %d %s%s", L - 1 - (tick - first) / BACKWARD_TICKS,
                 backward[(tick - first) % BACKWARD_TICKS],
                 (tick - first) % BACKWARD_TICKS != B_RECOMPUTE ? " backward" : "");
    else if (tick == end)
        snprintf(name, TICK_NAME, "embedding backward");
    else
        snprintf(name, TICK_NAME, tick <= end + 1 + F_NEXT_LN1 ? "generation" : "update");
    return name;
}

// `tick` itself or, if another op of the set needs the tensor, the tick of that op: the order of
// the needs of block_backward in gpt2.c.
int model_recompute_tick(int set, int tick) {
    const int ln2 = set & RECOMPUTE_FC ? B_RECOMPUTE : B_FC;
    const int attention = set & RECOMPUTE_ATTPROJ ? ln2 : B_ATTPROJ;
    const int qkv = set & RECOMPUTE_ATTENTION ? attention : B_ATT;
    const int ln1 = set & RECOMPUTE_QKV ? qkv : B_QKV;

    switch (tick) {
    case B_FC:
        return ln2;
    case B_ATTPROJ:
        return attention;
    case B_ATT:
        return qkv;
    case B_QKV:
        return ln1;
    default:
        return tick;
    }
}
