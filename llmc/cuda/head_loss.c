// The LM head with its loss, in chunks of rows, as many as the caller's logits buffer holds: logits of one chunk exist
// at a time, and its dlogits take their place. Three matmuls and one kernel a chunk; no scratch but that of matmul.
#include "llmc/cuda/backend.h"
#include "llmc/cuda/cross_entropy.h"

// More than a GiB of logits buys nothing, and a matmul operand should stay below 2^31 elements.
enum { MAX_CHUNK_BYTES = 1 << 30 };
// The tile of the library's large 16-bit matmuls.
enum { TILE_ROWS = 128, TILE_COLS = 256 };

static int64_t at_most(int64_t n, int64_t limit) { return n < limit ? n : limit; }

// Share of the multiprocessors that din (rows,C) = dlogits @ wte keeps busy: few tiles, each with a sum over the whole
// vocabulary, so that a last wave which is almost empty costs much. The other two matmuls have thousands of tiles.
static double busy_share(int64_t rows, int64_t C) {
    const int64_t units = cuda_backend.units > 0 ? cuda_backend.units : 1;
    const int64_t tiles = ceil_div(rows, TILE_ROWS) * ceil_div(C, TILE_COLS);
    return (double)tiles / (double)(ceil_div(tiles, units) * units);
}

// Equal chunks of at most MAX_CHUNK_BYTES. Up to twice the smallest number of chunks is tried: each costs one more
// pass over dwte, so that more chunks are taken only where they keep the multiprocessors busier by a twentieth.
// H200, 124M parameters, 65,536 rows, bf16: 12 chunks of 5,504 rows, busy 98 % (7 chunks: 84 %).
int64_t ops_head_chunk_rows(OpsShape shape) {
    const int64_t N = shape.B * shape.T, row_bytes = shape.Vp * (int64_t)dtype_size(shape.dtype);
    const int64_t fit = MAX_CHUNK_BYTES / row_bytes / TILE_ROWS * TILE_ROWS, limit = fit > TILE_ROWS ? fit : TILE_ROWS;
    const int64_t fewest = ceil_div(N, limit);
    int64_t best = at_most(N, round_up(ceil_div(N, fewest), TILE_ROWS));
    for (int64_t chunks = fewest + 1; chunks <= 2 * fewest; chunks++) {
        const int64_t rows = at_most(N, round_up(ceil_div(N, chunks), TILE_ROWS));
        if (busy_share(rows, shape.C) > busy_share(best, shape.C) + 0.05) best = rows;
    }
    return best;
}

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
        const int64_t count = at_most(N - first, R);
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
    cuda_check_weight_gradient(op, dwte, in.dtype, tensor_numel(wte));
    if (control.data) tensor_check(op, control, DTYPE_U8, (int64_t)sizeof(StepControl));
    const int64_t N = tensor_rows(in), R = tensor_rows(logits);
    for (int64_t first = 0; first < N; first += R) {
        const int64_t count = at_most(N - first, R);
        const Tensor chunk = tensor_slice_rows(logits, 0, count), in_rows = tensor_slice_rows(in, first, count);
        matmul_forward(chunk, in_rows, wte, tensor_none()); // (R,Vp)
        cross_entropy_backward((float *)losses.data + first, chunk, (const int32_t *)targets.data + first, V, scale,
                               control);                                         // (R,Vp), dlogits over logits
        matmul_backward_input(tensor_slice_rows(din, first, count), chunk, wte); // (R,C)
        matmul_backward_weight(dwte, tensor_none(), chunk, in_rows, accumulate || first > 0); // (Vp,C)
    }
}
