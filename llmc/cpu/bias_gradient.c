// Bias gradients: sums over the rows of a batch, for matmul.c and for fp8, whose products know nothing of biases.
// Memory-bound: every element is read once, in the order in which it lies in memory.
// Owns nothing; writes dbias alone.
#include "llmc/cpu/cpu.h"
#include "llmc/cpu/cpu_ops.h"
#include "llmc/cpu/simd.h"

// Columns of one task: two cache lines of bf16 in each row.
enum { STRIP = 4 * LANES };
// Rows are summed in blocks of this size and the blocks in order: rounding errors stay small for long columns, and
// the bits do not depend on the number of threads.
enum { ROW_BLOCK = 256 };

// dbias[0..cols) = or += the column sums of dout (rows, stride), cols <= STRIP.
static ALWAYS_INLINE void strip_sums(void *dbias, const void *dout, int64_t first_col, int64_t cols, int64_t rows,
                                     int64_t stride, bool accumulate, DType E, DType G) {
    int used[STRIP / LANES];
    V total[STRIP / LANES] = {0};
    for (int s = 0; s < STRIP / LANES; s++) used[s] = lanes(cols - s * LANES);
    for (int64_t block = 0; block < rows; block += ROW_BLOCK) {
        int64_t end = rows - block < ROW_BLOCK ? rows : block + ROW_BLOCK;
        V sum[STRIP / LANES] = {0};
        for (int64_t r = block; r < end; r++)
            for (int s = 0; s < STRIP / LANES; s++)
                sum[s] += vload_first(used[s], dout, r * stride + first_col + s * LANES, E);
        for (int s = 0; s < STRIP / LANES; s++) total[s] += sum[s];
    }
    for (int s = 0; s < STRIP / LANES; s++) {
        int64_t j = first_col + s * LANES;
        if (accumulate) total[s] += vload_first(used[s], dbias, j, G);
        vstore_first(used[s], dbias, j, total[s], G);
    }
}

void bias_backward(Tensor dbias, Tensor dout, bool accumulate) {
    cpu_check_float("bias_backward", dout);
    check_weight_gradient("bias_backward", dbias, dout.dtype, tensor_cols(dout));
    int64_t OC = tensor_cols(dout), rows = tensor_rows(dout);
#pragma omp parallel for schedule(static)
    for (int64_t j = 0; j < OC; j += STRIP) {
        int64_t cols = OC - j < STRIP ? OC - j : STRIP;
        WITH_DTYPE(E, dout.dtype,
                   WITH_DTYPE(G, dbias.dtype, strip_sums(dbias.data, dout.data, j, cols, rows, OC, accumulate, E, G)));
    }
}
