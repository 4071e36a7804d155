// See gpu_sizes.h. No CUDA here: this file is compiled into every build.
#include "llmc/model/gpu_sizes.h"

#include "llmc/base/arithmetic.h"

// ------------------------------------------------------------------------------------------ matmul

// It serves split-K. Products with few tiles are split, the weight gradients of small models: 8
// parts of the largest one in fp32 are enough. At C = 768 a part of fc's gradient takes 9.4 MB: 32
// MiB stop at 3 parts, where 132 multiprocessors and tiles of 128 x 192 want 4 or more.
enum {
    HOPPER_LIBRARY_BYTES = 128 << 20,
    MAX_LIBRARY_BYTES = 32 << 20,
    MIN_LIBRARY_BYTES = 1 << 20,
    MAX_SPLITS = 8
};

int64_t cuda_size_matmul(OpsShape shape, int compute_capability) {
    const bool many_splits =
        !shape.forward_only && (compute_capability >= 90 || compute_capability == 0);
    const int64_t largest_weight = ops_widest(shape) * shape.C;
    const int64_t wanted = round_up(MAX_SPLITS * largest_weight * (int64_t)sizeof(float), 256);
    const int64_t most = many_splits ? HOPPER_LIBRARY_BYTES : MAX_LIBRARY_BYTES;
    return min_i64(max_i64(wanted, MIN_LIBRARY_BYTES), most);
}

// parts * OC is at most BIAS_TARGET_BLOCKS stripes of 8 columns a lane, or one part of OC; and at
// most the parts N allows.
int64_t cuda_size_bias_gradient(int64_t N, int64_t OC) {
    const int64_t most = ceil_div(N, BIAS_MIN_PART_ROWS) * OC,
                  stripes = BIAS_TARGET_BLOCKS * 32 * 8;
    return min_i64(most, max_i64(stripes, OC)) * (int64_t)sizeof(float);
}

// ---------------------------------------------------------------------------- layernorm, embedding

// For each of 128 multiprocessors a block of 8 warps, each with a row; above 768 columns blocks
// that have a row each, as many as find registers: 8 columns a thread, 120 registers.
int64_t cuda_layernorm_blocks(int64_t N, int64_t C) {
    const int64_t of_rows = ceil_div(N, LAYERNORM_MIN_BLOCK_ROWS);
    if (C <= 768 || C > 2048) return min_i64(of_rows, 128);
    if (C <= 1280) return min_i64(of_rows, LAYERNORM_MAX_BLOCKS);
    return min_i64(of_rows, 256);
}

int64_t cuda_size_layernorm(int64_t N, int64_t C) {
    return cuda_layernorm_blocks(N, C) * LAYERNORM_SUMS * C * (int64_t)sizeof(float);
}

// Three blocks for each of 128 multiprocessors.
int64_t cuda_qk_norm_blocks(int64_t N) {
    return min_i64(ceil_div(N, LAYERNORM_MIN_BLOCK_ROWS), LAYERNORM_MAX_BLOCKS);
}

int64_t cuda_size_qk_norm(int64_t N, int64_t HS) {
    return cuda_qk_norm_blocks(N) * 2 * HS * (int64_t)sizeof(float);
}

CudaEmbeddingLayout cuda_size_embedding(int64_t positions, int64_t C) {
    CudaEmbeddingLayout l = {0, 0, 0};
    l.order = cuda_part(&l.end, positions * (int64_t)sizeof(int32_t));
    l.partials = cuda_part(&l.end, ceil_div(positions, EMBEDDING_TILE) * EMBEDDING_PARTIALS * C *
                                       (int64_t)sizeof(float));
    return l;
}

// --------------------------------------------------------------------------------------- attention

CudaFlashLayout cuda_size_flash(int64_t B, int64_t NH, int64_t NKV, int64_t T, int64_t HS) {
    const int64_t blocks = B * (NH + 2 * NKV) * ceil_div(T, FLASH_MIN_ROWS),
                  size = (int64_t)sizeof(float);
    CudaFlashLayout l = {0, 0};
    cuda_part(&l.end, B * NH * T * size);
    l.sums = cuda_part(&l.end, HS <= 128 ? blocks * round_up(HS, 32) * size : 0);
    return l;
}

int64_t cuda_size_decode(int64_t sequences, int64_t NH, int64_t HS, int64_t maxT) {
    return sequences * NH * ceil_div(maxT, DECODE_KEYS) * (HS + DECODE_EXTRA_FLOATS) *
           (int64_t)sizeof(float);
}

// The forms of cudnn_plan.c: sums of rows, and on GPUs but Blackwell's a square for each head;
// Hopper may collect dQ in fp32 instead. 1024: what cuDNN's plans were seen to add.
static bool has_cudnn(OpsShape shape, int compute_capability) {
    return compute_capability >= 80 && dtype_size(shape.dtype) == 2 &&
           ops_head_size(shape) % 8 == 0;
}

// Where heads of k and v are shared, dK and dV of each head of q in 16 bits, on Blackwell twice.
static int64_t shared_gradients(OpsShape shape) {
    if (ops_kv_heads(shape) < shape.NH)
        return 4 * shape.B * shape.NH * shape.T * ops_head_size(shape);
    return 0;
}

int64_t cuda_size_cudnn(OpsShape shape, int compute_capability, int64_t limit) {
    const int64_t HS = ops_head_size(shape), heads = shape.B * shape.NH,
                  rows = heads * shape.T * (int64_t)sizeof(float);
    const int64_t shared = shared_gradients(shape), sums = rows + 1024;
    const int64_t squares = sums + shared + heads * shape.T * shape.T * 2,
                  collected = sums + shared + rows * HS;
    if (!has_cudnn(shape, compute_capability)) return 0;
    if (shape.forward_only) return sums;
    if (compute_capability >= 100 && compute_capability <= 103) return sums + 2 * shared;

    const int64_t stored = squares <= limit ? squares : 0;
    if (compute_capability == 90 && collected <= limit) return max_i64(stored, collected);
    return stored;
}

int64_t cuda_size_cudnn_fast(OpsShape shape, int compute_capability) {
    const int64_t rows = shape.B * shape.NH * shape.T * (int64_t)sizeof(float),
                  HS = ops_head_size(shape);
    // of dQ in fp32
    const int64_t copies = compute_capability < 90 || compute_capability >= 120 ? 2 : 1;

    if (!has_cudnn(shape, compute_capability)) return 0;
    if (shape.forward_only) return rows + 1024;
    return rows + 1024 + copies * rows * HS + shared_gradients(shape);
}

// That workspace is 1.6 GB at B=64, T=1024, NH=12. Beyond an eighth of the memory, it is worth more
// as a larger micro-batch.
int64_t cuda_size_cudnn_limit(int64_t free_bytes) { return free_bytes / 8; }

// ------------------------------------------------------------------------------------- the LM head

// The tile of the library's large 16-bit matmuls.
enum { TILE_ROWS = 128, TILE_COLS = 256 };

// Share of the multiprocessors that din (rows,C) = dlogits @ wte keeps busy: few tiles, each with a
// sum over the whole vocabulary, so that a last wave which is almost empty costs much. The other
// two matmuls have thousands of tiles.
static double busy_share(int64_t rows, int64_t C, int64_t num_sms) {
    const int64_t tiles = ceil_div(rows, TILE_ROWS) * ceil_div(C, TILE_COLS);
    return (double)tiles / (double)(ceil_div(tiles, num_sms) * num_sms);
}

// Equal chunks of at most max_bytes. Every chunk after the first reads and writes dwte once more,
// 309 MB of fp32 for 124M, and ends three products with their last waves. At most 3.4 GB, since a
// matmul operand should stay below 2^31 elements of 2 bytes. GPUs with less memory use it better.
// The limits between them are far from any GPU's memory, of which a driver reports a few per cent
// more or less than the datasheet does: the plan of another machine makes the same chunks. Up to
// twice the smallest number of chunks is tried, but more are taken only where they keep the
// multiprocessors busier by a twentieth. 124M parameters, 65,536 rows, bf16: on an H200 2 chunks of
// 32,768 rows, busy 97 %; on a T4 13 of 5,120, busy 100 % (7: 94 %).
int64_t cuda_size_head_chunk_rows(OpsShape shape, int num_sms, int64_t memory) {
    const int64_t N = shape.B * shape.T, row_bytes = shape.Vp * (int64_t)dtype_size(shape.dtype);
    const int64_t GB = 1000 * 1000 * 1000;
    int64_t max_bytes = 1 << 30;
    if (memory >= 60 * GB) max_bytes = (int64_t)2 << 30;
    if (memory >= 120 * GB) max_bytes = 34 * GB / 10;

    const int64_t limit = max_i64(max_bytes / row_bytes / TILE_ROWS * TILE_ROWS, TILE_ROWS);
    const int64_t fewest = ceil_div(N, limit);
    int64_t best = min_i64(N, round_up(ceil_div(N, fewest), TILE_ROWS));
    if (num_sms <= 1) return best;

    for (int64_t chunks = fewest + 1; chunks <= 2 * fewest; chunks++) {
        const int64_t rows = min_i64(N, round_up(ceil_div(N, chunks), TILE_ROWS));
        if (busy_share(rows, shape.C, num_sms) > busy_share(best, shape.C, num_sms) + 0.05)
            best = rows;
    }
    return best;
}

// -------------------------------------------------------------------------------------- of all ops

// Adafactor: partial sums of a tensor, as for the norm, and its mean row; and of each matrix of
// more than ADAFACTOR_TILE_ROWS rows a sum for each column of a tile, fewer than twice rows /
// ADAFACTOR_TILE_ROWS tiles high.
int64_t cuda_size_optimizer(OpsShape shape) {
    const int64_t parts = shape.num_tensors * NORM_MAX_PARTS;
    int64_t adafactor = 0;
    if (shape.factored > 0)
        adafactor = shape.num_tensors + 2 * shape.factored / ADAFACTOR_TILE_ROWS;
    return (parts + adafactor) * (int64_t)sizeof(float);
}

int64_t cuda_size_workspace(OpsShape shape, int compute_capability, int64_t cudnn) {
    const int64_t N = shape.B * shape.T;
    const int64_t needs[] = {
        cuda_size_matmul(shape, compute_capability),
        cuda_size_decode(shape.sequences, shape.NH, ops_head_size(shape), shape.T),
        STATISTICS_MAX_PARTS * (int64_t)sizeof(TensorStats),
        // of backward passes and the update
        cuda_size_bias_gradient(N, ops_widest(shape)), // after the product, in the same place
        cuda_size_layernorm(N, shape.C),
        cuda_size_qk_norm(N, ops_head_size(shape)),
        cuda_size_embedding(N, shape.C).end,
        cuda_size_flash(shape.B, shape.NH, ops_kv_heads(shape), shape.T, ops_head_size(shape)).end,
        cuda_size_optimizer(shape),
    };
    const size_t count = shape.forward_only ? 3 : sizeof needs / sizeof *needs;

    int64_t largest = cudnn;
    for (size_t i = 0; i < count; i++) largest = max_i64(largest, needs[i]);
    return round_up(largest, 256);
}
