// The LM head with its loss, in chunks of rows, as many as the caller's logits buffer holds: logits of one chunk exist
// at a time, and its dlogits take their place. Three matmuls and one kernel a chunk; no scratch but that of matmul.
#include "llmc/cuda/backend.h"
#include "llmc/cuda/cross_entropy.h"

int64_t ops_head_chunk_rows(OpsShape shape) { return cuda_size_head_chunk_rows(shape, cuda_backend.units); }

static void check_shapes(const char *op, Tensor losses, Tensor logits, Tensor in, Tensor wte, Tensor targets,
                         int64_t V) {
    cuda_check_float(op, in);
    const int64_t N = tensor_rows(in), C = tensor_cols(in), Vp = tensor_rows(wte);
    tensor_check(op, wte, in.dtype, Vp * C);
    tensor_check(op, logits, in.dtype, tensor_rows(logits) * Vp);
    REQUIRE(tensor_rows(logits) >= 1 && tensor_cols(logits) == Vp, "%s: logits are not (R, %lld)", op, (long long)Vp);
    tensor_check(op, targets, DTYPE_I32, N);
    tensor_check(op, losses, DTYPE_FP32, N);
    REQUIRE(V >= 1 && V <= Vp, "%s: vocabulary %lld of %lld padded columns", op, (long long)V, (long long)Vp);
}

void head_loss_forward(Tensor losses, Tensor logits, Tensor in, Tensor wte, Tensor targets, int64_t V) {
    check_shapes("head_loss_forward", losses, logits, in, wte, targets, V);
    const int64_t N = tensor_rows(in), R = tensor_rows(logits);
    for (int64_t first = 0; first < N; first += R) {
        const int64_t count = min_i64(N - first, R);
        const Tensor chunk = tensor_slice_rows(logits, 0, count);
        matmul_forward(chunk, tensor_slice_rows(in, first, count), wte, tensor_none()); // (R,Vp)
        cross_entropy_forward((float *)losses.data + first, chunk, (const int32_t *)targets.data + first, V);
    }
}

void head_loss_backward(Tensor losses, Tensor din, Tensor dwte, Tensor logits, Tensor in, Tensor wte, Tensor targets,
                        int64_t V, float scale, Tensor control, bool accumulate) {
    const char *op = "head_loss_backward";
    check_shapes(op, losses, logits, in, wte, targets, V);
    tensor_check(op, din, in.dtype, tensor_numel(in));
    check_weight_gradient(op, dwte, in.dtype, tensor_numel(wte));
    if (control.data) tensor_check(op, control, DTYPE_U8, (int64_t)sizeof(StepControl));
    const int64_t N = tensor_rows(in), R = tensor_rows(logits);
    for (int64_t first = 0; first < N; first += R) {
        const int64_t count = min_i64(N - first, R);
        const Tensor chunk = tensor_slice_rows(logits, 0, count), in_rows = tensor_slice_rows(in, first, count);
        matmul_forward(chunk, in_rows, wte, tensor_none()); // (R,Vp)
        cross_entropy_backward((float *)losses.data + first, chunk, (const int32_t *)targets.data + first, V, scale,
                               control);                                         // (R,Vp), dlogits over logits
        matmul_backward_input(tensor_slice_rows(din, first, count), chunk, wte); // (R,C)
        matmul_backward_weight(dwte, tensor_none(), chunk, in_rows, accumulate || first > 0); // (Vp,C)
    }
}
