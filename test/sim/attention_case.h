// One case of attention for tests of the CUDA backend in the simulator: both passes of ops.h, their
// tensors, and what the specification says of them.
#pragma once
#include "dev/sim/sim_control.h"
#include "llmc/cuda/attention.h"
#include "llmc/device.h"
#include "test/ops/op_test.h"
#include <string.h>

static const AttentionShape small = {
    .B = 1, .T = 16, .NH = 1, .NKV = 1, .HS = 64, .dtype = DTYPE_BF16};

// On the clock of sim_set_clock cuDNN is the faster one, unless SIM_CUDNN asks for a slow one.
static inline void start(AttentionChoice attention) {
    Error err;
    sim_set_clock(0.0);
    if (!device_init(&(DeviceOptions){.attention = attention}, &err)) op_fail("%s", err.text);
}

// A case of both passes: inputs, what stands on the device, and in .v what the specification says
// of them.
typedef struct {
    AttentionShape shape;
    OpTensor qkv, dout, out, lse, dqkv, dbias;
    Gradient left; // dbias, where the backward pass leaves it
} Case;

static inline Case begin(AttentionShape s, const char *what) {
    const int64_t C = s.NH * s.HS, columns = C + 2 * s.NKV * s.HS;
    const OpsShape shape = {.B = s.B,
                            .T = s.T,
                            .C = C,
                            .NH = s.NH,
                            .NKV = s.NKV,
                            .Vp = 128,
                            .num_tensors = 1,
                            .dtype = s.dtype};

    op_begin(shape, "%s: B=%d T=%d NH=%d NKV=%d HS=%d %s", what, (int)s.B, (int)s.T, (int)s.NH,
             (int)s.NKV, (int)s.HS, dtype_name(s.dtype));

    Case c = {.shape = s};
    c.qkv = op_input(s.dtype, "qkv", DIMS(s.B, s.T, columns), 1.0);
    c.dout = op_input(s.dtype, "dout", DIMS(s.B, s.T, C), 1.0);
    c.out = op_output(s.dtype, "out", DIMS(s.B, s.T, C));
    c.lse = op_output(DTYPE_FP32, "lse", DIMS(s.B, s.NH, s.T));
    c.dqkv = op_output(s.dtype, "dqkv", DIMS(s.B, s.T, columns));
    c.dbias = op_inout(DTYPE_FP32, "dbias", DIMS(columns), 1.0);
    c.left = gradient_to(c.dbias.t, true);
    return c;
}

static inline void specify(Case *c) {
    const AttentionShape s = c->shape;
    ref_attention_forward(c->out.v, c->lse.v, c->qkv.v, s.B, s.T, s.NH, s.NKV, s.HS);
    ref_attention_backward(c->dqkv.v, c->dout.v, c->out.v, c->lse.v, c->qkv.v, s.B, s.T, s.NH,
                           s.NKV, s.HS);
}

static inline void check(Case *c) {
    op_check(c->out, c->shape.dtype);
    op_check_logarithms(c->lse, c->shape.dtype, 1.0);
    op_check(c->dqkv, c->shape.dtype);
    op_check_terms(c->dbias, DTYPE_FP32, DTYPE_FP32, sqrt((double)(c->shape.B * c->shape.T)));
}

static inline void forward(Case *c) {
    attention_forward(c->out.t, c->lse.t, c->qkv.t, heads_of((int)c->shape.NH, (int)c->shape.NKV));
}
static inline void backward(Case *c) {
    const int64_t n = tensor_numel(c->dqkv.t), columns = tensor_numel(c->dbias.t);
    attention_backward(c->dqkv.t, c->dout.t, c->out.t, c->lse.t, c->qkv.t,
                       heads_of((int)c->shape.NH, (int)c->shape.NKV), &c->left);
    if (c->left.to.data) return; // perhaps while a graph is recorded
    const double *rounded = op_download(c->dqkv);
    for (int64_t i = 0; i < n; i++) c->dbias.v[i % columns] += rounded[i];
}

static inline void expect_text(const char *got, const char *expected) {
    if (strcmp(got, expected) != 0) op_fail("\"%s\", expected \"%s\"", got, expected);
}
