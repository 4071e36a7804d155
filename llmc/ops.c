// What every backend demands of the arguments of an op. See ops.h.
#include "llmc/ops.h"

#include "llmc/base/arithmetic.h"
#include "llmc/base/error.h"

void check_weight_gradient(const char *op, Tensor grad, DType compute, int64_t numel) {
    tensor_check(op, grad, grad.dtype == DTYPE_FP32 ? DTYPE_FP32 : compute, numel);
}

void check_update_tensor(const char *op, const UpdateTensor *t) {
    const int64_t numel = tensor_numel(t->weight);
    check_weight_gradient(op, t->grad, t->weight.dtype, numel);
    if (t->master.data) tensor_check(op, t->master, DTYPE_FP32, numel);
    if (t->lost.data) tensor_check(op, t->lost, t->weight.dtype, numel);
    REQUIRE(!(t->master.data && t->lost.data), "%s: %s has a master and what was lost", op, t->weight.name);
    REQUIRE(t->offset >= 0 && t->offset % STATE_BLOCK == 0, "%s: %s begins at element %lld, no multiple of %d", op,
            t->weight.name, (long long)t->offset, STATE_BLOCK);
}

void check_moments(const char *op, const UpdateTensor *t, bool has_v) {
    const int64_t numel = tensor_numel(t->weight), blocks = ceil_div(numel, STATE_BLOCK);
    const bool is_known = t->m.dtype == DTYPE_BF16 || t->m.dtype == DTYPE_U8;
    tensor_check(op, t->m, is_known ? t->m.dtype : DTYPE_FP32, numel);
    if (has_v) tensor_check(op, t->v, t->m.dtype, numel);
    if (t->m.dtype != DTYPE_U8) return;
    tensor_check(op, t->m_scale, DTYPE_FP32, blocks);
    if (has_v) tensor_check(op, t->v_scale, DTYPE_FP32, blocks);
}

void check_adafactor(const char *op, const UpdateTensor *t) {
    const int64_t numel = tensor_numel(t->weight);
    tensor_check(op, t->rms, DTYPE_FP32, 1);
    if (!t->row.data) {
        tensor_check(op, t->v, DTYPE_FP32, numel);
        return;
    }
    const int64_t rows = tensor_numel(t->row), cols = tensor_numel(t->col);
    tensor_check(op, t->row, DTYPE_FP32, rows);
    tensor_check(op, t->col, DTYPE_FP32, cols);
    REQUIRE(t->offset + numel <= rows * cols, "%s: elements %lld .. %lld of %s, a matrix of %lld x %lld", op,
            (long long)t->offset, (long long)(t->offset + numel), t->weight.name, (long long)rows, (long long)cols);
}

void check_is_whole(const char *op, const UpdateTensor *t) {
    const bool covers = !t->row.data || tensor_numel(t->weight) == tensor_numel(t->row) * tensor_numel(t->col);
    REQUIRE(t->offset == 0 && covers, "%s: %s is a slice", op, t->weight.name);
    REQUIRE(t->padding >= 0 && t->padding < tensor_numel(t->weight), "%s: %lld elements of %s are padding", op,
            (long long)t->padding, t->weight.name);
}

void check_update_step(const char *op, UpdateParams params, Tensor control) {
    tensor_check(op, control, DTYPE_U8, (int64_t)sizeof(StepControl));
    REQUIRE(params.step >= 1, "%s: step %lld, the first is 1", op, (long long)params.step);
}

static void check_fp8_format(const char *op, Tensor t) {
    REQUIRE(t.dtype == DTYPE_E4M3 || t.dtype == DTYPE_E5M2, "%s: %s is %s, not fp8", op, t.name, dtype_name(t.dtype));
}

void check_fp8_quantize(const char *op, Tensor q, Tensor transposed, Tensor in, Tensor slot) {
    REQUIRE(q.data || transposed.data, "%s: no output", op);
    const Tensor any = q.data ? q : transposed;
    check_fp8_format(op, any);
    if (q.data) tensor_check(op, q, any.dtype, tensor_numel(in));
    if (transposed.data) tensor_check(op, transposed, any.dtype, tensor_numel(in));
    tensor_check(op, slot, DTYPE_U8, sizeof(Fp8Slot));
}

static void check_fp8_operand(const char *op, Tensor t, Tensor slot) {
    enum { MULTIPLE = 16 };
    check_fp8_format(op, t);
    REQUIRE(tensor_rows(t) % MULTIPLE == 0 && tensor_cols(t) % MULTIPLE == 0,
            "%s: %s is %lld x %lld, not in multiples of %d", op, t.name, (long long)tensor_rows(t),
            (long long)tensor_cols(t), MULTIPLE);
    tensor_check(op, slot, DTYPE_U8, sizeof(Fp8Slot));
}

void check_fp8_matmul(const char *op, Tensor out, Tensor a, Tensor a_slot, Tensor b, Tensor b_slot, Tensor bias,
                      bool accumulate) {
    check_fp8_operand(op, a, a_slot);
    check_fp8_operand(op, b, b_slot);
    REQUIRE(a.dtype == DTYPE_E4M3 || b.dtype == DTYPE_E4M3, "%s: %s and %s are both e5m2", op, a.name, b.name);
    tensor_check(op, b, b.dtype, tensor_rows(b) * tensor_cols(a));
    tensor_check(op, out, out.dtype, tensor_rows(a) * tensor_rows(b));
    REQUIRE(!(bias.data && accumulate), "%s: a bias is added once", op);
}
