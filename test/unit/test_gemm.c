// gemm on the CPU: whatever piece, primitive or fallback serves a call, the numbers are right and
// the bits repeat. Matrices hold small integers: products and sums are exact in fp32, and in bf16
// where they stay below 256, so that results are compared for equality.
#include "llmc/cpu/cpu.h"
#include "llmc/cpu/matmul.h"
#include "test/test.h"
#include "test/unit/device_fixture.h"

TestFixture test_all = {start_device, stop_device};

static void put(Tensor t, int64_t i, float x) {
    convert_elements((char *)t.data + (size_t)i * dtype_size(t.dtype), t.dtype, &x, DTYPE_FP32, 1);
}

static float get(Tensor t, int64_t i) {
    float x;
    convert_elements(&x, DTYPE_FP32, (char *)t.data + (size_t)i * dtype_size(t.dtype), t.dtype, 1);
    return x;
}

// (rows, cols), one element in `sparsity` is 1 or -1, the others 0: with these the sums below stay
// under 256.
static Tensor integers(DType dtype, int64_t rows, int64_t cols, int sparsity) {
    Tensor t = tensor_make(NULL, dtype, "integers", rows, cols, 0, 0);
    t.data = malloc(tensor_bytes(t));
    assert_non_null(t.data);
    uint32_t hash = 12345u + (uint32_t)cols;
    for (int64_t i = 0; i < rows * cols; i++) {
        hash = hash * 1664525u + 1013904223u;
        put(t, i, (hash >> 16) % (uint32_t)sparsity ? 0.0f : hash & 0x80000000u ? -1.0f : 1.0f);
    }
    return t;
}

// dst (M,N) += a (K,M)^T @ b (K,N), as for weight gradients, against plain loops.
static void check_transposed_sum(DType dtype, DType result, int64_t M, int64_t N, int64_t K) {
    int sparsity = K > 64 ? 4 : 2;
    Tensor a = integers(dtype, K, M, sparsity), b = integers(dtype, K, N, sparsity),
           dst = integers(result, M, N, 2);
    float *expected = malloc((size_t)(M * N) * sizeof(float));
    assert_non_null(expected);

    for (int64_t i = 0; i < M * N; i++) expected[i] = get(dst, i);
    for (int64_t k = 0; k < K; k++)
        for (int64_t i = 0; i < M; i++) {
            float x = get(a, k * M + i);
            if (x == 0.0f) continue;
            for (int64_t j = 0; j < N; j++) expected[i * N + j] += x * get(b, k * N + j);
        }

    cpu_code()->gemm(M, N, K, matrix_of(dst, N), matrix_transposed(matrix_of(a, M)),
                     matrix_of(b, N), NULL, true);
    for (int64_t i = 0; i < M * N; i++)
        if (get(dst, i) != expected[i])
            fail_msg("(%d, %d): %g, expected %g", (int)(i / N), (int)(i % N), (double)get(dst, i),
                     (double)expected[i]);

    free(a.data), free(b.data), free(dst.data), free(expected);
}

TEST(calls_that_are_split_join_without_seams) {
    check_transposed_sum(DTYPE_FP32, DTYPE_FP32, 801, 5, 513);  // M in two pieces
    check_transposed_sum(DTYPE_BF16, DTYPE_FP32, 3, 1601, 520); // N in three
    check_transposed_sum(DTYPE_BF16, DTYPE_BF16, 40, 30, 512);
}

// dst = a (M,K) @ b (K,N), as for input gradients.
TEST(a_deep_product_is_the_sum_of_its_pieces) {
    enum { M = 512, N = 24, K = 1601 };
    Tensor a = integers(DTYPE_FP32, M, K, 4), b = integers(DTYPE_FP32, K, N, 4);
    float *dst = malloc(M * N * sizeof *dst), *expected = calloc(M * N, sizeof *expected);
    assert_true(dst && expected);
    for (int64_t i = 0; i < M; i++)
        for (int64_t k = 0; k < K; k++)
            for (int64_t j = 0; j < N; j++)
                expected[i * N + j] += get(a, i * K + k) * get(b, k * N + j);

    for (int64_t i = 0; i < M * N; i++) dst[i] = NAN; // nothing of it is read
    cpu_code()->gemm(M, N, K, (Matrix){dst, DTYPE_FP32, N, 1}, matrix_of(a, K), matrix_of(b, N),
                     NULL, false);
    assert_memory_equal(dst, expected, M * N * sizeof *dst);

    free(a.data), free(b.data), free(dst), free(expected);
}

TEST(more_shapes_than_the_cache_holds_are_still_right) {
    for (int pass = 0; pass < 2; pass++) // the second pass meets shapes that were thrown out
        for (int64_t n = 1; n <= 150; n++) check_transposed_sum(DTYPE_FP32, DTYPE_FP32, 2, n, 3);
}

TEST(repeated_calls_give_the_same_bits) {
    enum { M = 530, N = 190, K = 700 };
    Tensor a = integers(DTYPE_BF16, M, K, 2), b = integers(DTYPE_BF16, K, N, 2);
    // sums must round
    for (int64_t i = 0; i < M * K; i++) put(a, i, get(a, i) * 0.37f + 0.011f * (float)(i % 13));

    float *first = calloc(M * N, sizeof(float)), *again = calloc(M * N, sizeof(float));
    assert_true(first && again);

    for (int run = 0; run < 5; run++) {
        Matrix dst = {run ? again : first, DTYPE_FP32, N, 1};
        cpu_code()->gemm(M, N, K, dst, matrix_of(a, K), matrix_of(b, N), NULL, false);
        if (run) assert_memory_equal(first, again, M * N * sizeof(float));
    }

    free(a.data), free(b.data), free(first), free(again);
}

// ops.h promises the same bits for a bias gradient whatever the number of threads: rows are summed
// in fixed blocks.
TEST(bias_gradients_do_not_depend_on_the_number_of_threads) {
    enum { N = 777, OC = 203, IC = 1 };
    Tensor dout = integers(DTYPE_FP32, N, OC, 2), in = integers(DTYPE_FP32, N, IC, 2);

    for (int64_t i = 0; i < N * OC; i++)
        put(dout, i, get(dout, i) * 0.37f + 0.011f * (float)(i % 13));
    float dweight[OC * IC], dbias[2][OC];

    for (int threads = 1; threads <= 2; threads++) {
        Error err;
        device_shutdown();
        assert_true(device_init(&(DeviceOptions){.threads = threads}, &err));
        matmul_backward_weight(
            gradient_to(tensor_make(dweight, DTYPE_FP32, "dweight", OC, IC, 0, 0), false),
            gradient_to(tensor_make(dbias[threads - 1], DTYPE_FP32, "dbias", OC, 0, 0, 0), false),
            dout, in);
    }

    assert_memory_equal(dbias[0], dbias[1], sizeof dbias[0]);
    free(dout.data), free(in.data);
}
