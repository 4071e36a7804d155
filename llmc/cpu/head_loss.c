// The LM head with its loss, in chunks of as many rows as the caller's logits buffer holds. Only
// the logits of one chunk exist at a time, and its dlogits overwrite them.
#include "llmc/base/arithmetic.h"
#include "llmc/base/error.h"
#include "llmc/cpu/cpu.h"
#include "llmc/cpu/matmul.h"
#include "llmc/cpu/simd.h"
#include "llmc/tensor.h"

#include <omp.h>

// ----------------------------------------------------------------------------------- cross-entropy

// One row in cache at a time, three passes: maximum, exponentials and their sum, gradient. While it
// computes the exponentials it fetches the next row (prefetching past the end of memory has no
// effect), because the maximum would wait for every element.

static ALWAYS_INLINE float row_maximum(const void *row, int64_t vocab, DType E) {
    V lowest = vsplat(-INFINITY), m0 = lowest, m1 = lowest; // two chains hide the latency of max
    int64_t i = 0;
    for (; i + 2 * LANES <= vocab; i += 2 * LANES) {
        m0 = vmax(vload(row, i, E), m0);
        m1 = vmax(vload(row, i + LANES, E), m1);
    }
    for (; i < vocab; i += LANES) {
        int k = lanes(vocab - i);
        m0 = vmax(vfirst(k, vload_first(k, row, i, E), lowest), m0);
    }
    return vmax_lane(vmax(m0, m1));
}

// x <= 0. With narrow vectors the time of a row is that of its exponentials, and the shorter form
// is exact enough: the error of a term grows with its distance from the largest, which is 1.
static ALWAYS_INLINE V row_exp(V x) { return LANES < 16 ? vexp_nonpositive(x) : vexp(x); }

// Returns sum exp(row - max) and writes the terms to exps, which may be NULL (a constant where this
// is inlined).
static ALWAYS_INLINE float row_exps(float *exps, const void *row, int64_t vocab, int64_t Vp,
                                    float max, DType E) {
    const int64_t size = E == DTYPE_BF16 ? 2 : 4, cache_line = 64;
    const char *next_row = (const char *)row + Vp * size;

    V shift = vsplat(max), s0 = vzero(), s1 = vzero();
    int64_t i = 0;
    for (; i + 2 * LANES <= vocab; i += 2 * LANES) {
        for (int64_t byte = 0; byte < 2 * LANES * size; byte += cache_line)
            __builtin_prefetch(next_row + i * size + byte);
        V e0 = row_exp(vload(row, i, E) - shift), e1 = row_exp(vload(row, i + LANES, E) - shift);
        s0 += e0;
        s1 += e1;
        if (exps) {
            vstore_f32(exps + i, e0);
            vstore_f32(exps + i + LANES, e1);
        }
    }

    for (; i < vocab; i += LANES) {
        int k = lanes(vocab - i);
        V e = vfirst(k, row_exp(vload_first(k, row, i, E) - shift), vzero());
        s0 += e;
        if (exps) vstore_first_f32(k, exps + i, e);
    }

    return vsum(s0 + s1);
}

// Returns the loss of one row and, with exps, overwrites it with its gradient.
static ALWAYS_INLINE float row_cross_entropy(void *row, float *exps, int32_t target, int64_t vocab,
                                             int64_t Vp, float scale, DType E) {
    float max = row_maximum(row, vocab, E);
    float sum = row_exps(exps, row, vocab, Vp, max, E);
    float logit;
    if (E == DTYPE_BF16)
        logit = bf16_to_float(((const uint16_t *)row)[target]);
    else
        logit = ((const float *)row)[target];
    // log(sum) is small where the target is the maximum, so the two large terms are subtracted
    // first.
    float loss = logf(sum) + (max - logit);
    if (!exps) return loss;
    exps[target] -= sum; // softmax - onehot, times sum
    V factor = vsplat(scale / sum);
    int64_t i = 0;
    for (; i + LANES <= vocab; i += LANES) vstore(row, i, vload_f32(exps + i) * factor, E);
    for (; i < Vp; i += LANES) {
        V d = vload_first_f32(lanes(vocab - i), exps + (i < vocab ? i : 0)) * factor;
        vstore_first(lanes(Vp - i), row, i, d, E);
    }
    return loss;
}

// losses (R) fp32 = log sum_{v<vocab} exp(logits[r,v]) - logits[r,targets[r]], in nats. logits
// (R,Vp) fp32 or bf16. With exps, one row of round_up(Vp, LANES) for each thread, also logits[r] =
// scale * (softmax(logits[r]) - onehot(targets[r])) in place, 0 from vocab on.
static void head_cross_entropy(float *losses, Tensor logits, const int32_t *targets, int64_t vocab,
                               float scale, float *exps) {
    const int64_t rows = tensor_rows(logits), Vp = tensor_cols(logits);
#pragma omp parallel for schedule(static)
    for (int64_t r = 0; r < rows; r++) {
        void *row = (char *)logits.data + (size_t)(r * Vp) * dtype_size(logits.dtype);
        REQUIRE(targets[r] >= 0 && targets[r] < vocab,
                "cross entropy: target %d in row %lld, vocabulary %lld", targets[r], (long long)r,
                (long long)vocab);
        WITH_DTYPE(E, logits.dtype, {
            if (exps) {
                float *mine = exps + omp_get_thread_num() * round_up(Vp, LANES);
                losses[r] = row_cross_entropy(row, mine, targets[r], vocab, Vp, scale, E);
            } else {
                losses[r] = row_cross_entropy(row, NULL, targets[r], vocab, Vp, scale, E);
            }
        });
    }
}

// ------------------------------------------------------------------------------------------ chunks

// din sums over the vocabulary in pieces of max this size, 50304 / 16: one call over all of it runs
// at 731..754 GFLOP/s, calls of this size at 870..930. With AMX a quarter of it takes 6% less time
// than a sixteenth.
enum { VOCAB_CHUNK = BF16_TILES ? 12576 : 3144 };

// Bytes of the workspace: *sums, the offset of (HEAD_CHUNK_ROWS, C), din before it is rounded,
// unused for fp32; and *exps, of the rows of head_cross_entropy.
static int64_t head_layout(int64_t *sums, int64_t *exps, int64_t N, int64_t C, int64_t Vp,
                           DType dtype) {
    int64_t end = 0, rows = min_i64(N, HEAD_CHUNK_ROWS);
    if (dtype == DTYPE_FP32) rows = 0;
    *sums = cpu_part(&end, rows * C * (int64_t)sizeof(float));
    *exps = cpu_part(&end, round_up(Vp, LANES) * cpu_threads() * (int64_t)sizeof(float));
    return end;
}

int64_t cpu_head_workspace(OpsShape shape) {
    int64_t sums, exps;
    return head_layout(&sums, &exps, shape.B * shape.T, shape.C, shape.Vp, shape.dtype);
}

// logits (R,Vp) = in (R,C) @ wte^T.
static void logits_forward(Tensor logits, Tensor in, Tensor wte) {
    int64_t R = tensor_rows(in), C = tensor_cols(in), Vp = tensor_rows(wte);
    gemm(R, Vp, C, matrix_of(logits, Vp), matrix_of(in, C), matrix_transposed(matrix_of(wte, C)),
         NULL, false);
}

void backend_head_loss_forward(Tensor losses, Tensor logits, Tensor in, Tensor wte, Tensor targets,
                               int64_t vocab) {
    int64_t N = tensor_rows(in), R = tensor_rows(logits);
    cpu_scratch("head_loss_forward", 0);
    for (int64_t first = 0; first < N; first += R) {
        int64_t count = min_i64(N - first, R);
        Tensor chunk = tensor_slice_rows(logits, 0, count);
        logits_forward(chunk, tensor_slice_rows(in, first, count), wte);
        head_cross_entropy((float *)losses.data + first, chunk,
                           (const int32_t *)targets.data + first, vocab, 0.0f, NULL);
    }
}

void backend_head_loss_backward(Tensor losses, Tensor din, Gradient dwte, Tensor logits, Tensor in,
                                Tensor wte, Tensor targets, int64_t vocab, LossScale loss_scale) {
    float scale = loss_scale.factor;
    if (loss_scale.control.data)
        scale *= ((const StepControl *)loss_scale.control.data)->loss_scale;
    const int64_t N = tensor_rows(in), R = tensor_rows(logits), C = tensor_cols(in),
                  Vp = tensor_rows(wte);
    int64_t sums, exps;
    char *scratch =
        cpu_scratch("head_loss_backward", head_layout(&sums, &exps, N, C, Vp, in.dtype));
    const int64_t piece = round_up(ceil_div(Vp, ceil_div(Vp, VOCAB_CHUNK)), 8);
    for (int64_t first = 0; first < N; first += R) {
        int64_t count = min_i64(N - first, R);
        Tensor chunk = tensor_slice_rows(logits, 0, count),
               in_rows = tensor_slice_rows(in, first, count);
        logits_forward(chunk, in_rows, wte);
        head_cross_entropy((float *)losses.data + first, chunk,
                           (const int32_t *)targets.data + first, vocab, scale,
                           (float *)(scratch + exps));
        // din (R,C) = dlogits (R,Vp) @ wte: summed over equal pieces of the vocabulary in fp32,
        // then rounded.
        for (int64_t row = 0, rows; row < count; row += rows) {
            rows = min_i64(count - row, HEAD_CHUNK_ROWS);
            const Tensor out = tensor_slice_rows(din, first + row, rows);
            Tensor sum = out;
            if (out.dtype != DTYPE_FP32)
                sum = tensor_make(scratch + sums, DTYPE_FP32, "din sums", rows, C, 0, 0);
            for (int64_t v = 0; v < Vp; v += piece)
                gemm(rows, C, min_i64(Vp - v, piece), matrix_of(sum, C),
                     matrix_at(matrix_of(chunk, Vp), row, v), matrix_at(matrix_of(wte, C), v, 0),
                     NULL, v > 0);
            if (sum.data != out.data) backend_tensor_cast(out, sum);
        }
        // dwte (Vp,C) = or += dlogits (R,Vp)^T @ in (R,C).
        gemm(Vp, C, count, matrix_of(dwte.to, C), matrix_transposed(matrix_of(chunk, Vp)),
             matrix_of(in_rows, C), NULL, dwte.add || first > 0);
    }
}
