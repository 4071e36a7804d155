// See ops_check.h.
#include "llmc/ops_check.h"

#include "llmc/base/checked.h"
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
