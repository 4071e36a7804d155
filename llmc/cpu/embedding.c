// Tokens in and out of the model: the batch as the loader read it, token and position embeddings,
// their gradients.
//
// The gradient of a token's row sums over the positions of the token. These positions are chained
// in the workspace (a list per token, in order of position), so that every row is read and written
// once, sums are fp32 and in a fixed order, and no two threads write to one element: the channels,
// not the tokens, are split among threads.
#include "llmc/base/arithmetic.h"
#include "llmc/base/error.h"
#include "llmc/cpu/cpu.h"
#include "llmc/cpu/simd.h"

// ------------------------------------------------------------------------------------------- batch

void backend_batch_unpack(Tensor inputs, Tensor targets, Tensor windows) {
    const int64_t B = tensor_rows(windows), T = tensor_cols(windows) - 1;
    int32_t *input = inputs.data, *target = targets.data;
    const int32_t *wide = windows.data;
    const uint16_t *narrow = windows.data;
    for (int64_t b = 0; b < B; b++)
        for (int64_t t = 0; t <= T; t++) {
            int32_t token;
            if (windows.dtype == DTYPE_I32)
                token = wide[b * (T + 1) + t];
            else
                token = narrow[b * (T + 1) + t];
            if (t < T) input[b * T + t] = token;
            if (t > 0) target[b * T + t - 1] = token;
        }
}

// ----------------------------------------------------------------------------------------- forward

// A token outside the table would read or write memory outside it.
static void check_tokens(const char *op, const int32_t *tokens, int64_t N, int64_t Vp) {
    int32_t low = 0, high = 0;
    for (int64_t n = 0; n < N; n++) {
        if (tokens[n] < low) low = tokens[n];
        if (tokens[n] > high) high = tokens[n];
    }
    REQUIRE(low >= 0 && high < Vp, "%s: tokens from %d to %d, expected 0 to %lld", op, low, high,
            (long long)Vp - 1);
}

void backend_embedding_forward(Tensor out, Tensor tokens, Tensor wte, Tensor wpe) {
    const int64_t N = tensor_numel(tokens), T = tensor_cols(tokens), C = tensor_cols(wte);
    const int32_t *token = tokens.data;
    const void *of_token = wte.data, *of_position = wpe.data;
    void *to = out.data;
    check_tokens("embedding_forward", token, N, tensor_rows(wte));
#pragma omp parallel for schedule(static)
    for (int64_t n = 0; n < N; n++)
        WITH_DTYPE(E, wte.dtype, {
            EACH_LANES(i, k, C, {
                V sum = vload_first(k, of_token, token[n] * C + i, E);
                if (of_position) sum += vload_first(k, of_position, n % T * C + i, E);
                vstore_first(k, to, n * C + i, sum, E);
            });
        });
}

// ----------------------------------------------------------------------------------- with its norm

// rows (N,C) = the norms of the tokens' rows of wte; backward: it holds the gradient of these, and
// becomes that of the rows.
static void norm_of_embeddings(const char *op, Tensor rows, Tensor tokens, Tensor wte, float eps,
                               bool backward) {
    const int64_t N = tensor_numel(tokens), C = tensor_cols(wte);
    const int32_t *token = tokens.data;
    const void *table = wte.data;
    void *to = rows.data;

    check_tokens(op, token, N, tensor_rows(wte));
#pragma omp parallel for schedule(static)
    for (int64_t n = 0; n < N; n++)
        WITH_DTYPE(E, wte.dtype, {
            const int64_t e = token[n] * C;
            V squares = vzero(), products = vzero();
            EACH_LANES(i, k, C, {
                const V x = vload_first(k, table, e + i, E);
                squares = vfma(x, x, squares);
            });

            const V rstd = 1.0f / vsqrt(vsplat(vsum(squares) / (float)C + eps));
            EACH_LANES(i, k, backward ? C : 0, {
                products = vfma(vload_first(k, to, n * C + i, E), vload_first(k, table, e + i, E),
                                products);
            });
            const V along = vsplat(vsum(products) / (float)C) * rstd * rstd; // of e in the gradient

            EACH_LANES(i, k, C, {
                V x = vload_first(k, table, e + i, E);
                if (backward) x = vload_first(k, to, n * C + i, E) - x * along;
                vstore_first(k, to, n * C + i, x * rstd, E);
            });
        });
}

void backend_embedding_norm_forward(Tensor out, Tensor tokens, Tensor wte, float eps) {
    norm_of_embeddings("embedding_norm_forward", out, tokens, wte, eps, false);
}

void backend_embedding_norm_backward(Tensor dout, Tensor tokens, Tensor wte, float eps) {
    norm_of_embeddings("embedding_norm_backward", dout, tokens, wte, eps, true);
}

// ---------------------------------------------------------------------------------------- backward

// Channels of one task: two cache lines of bf16 in each row.
enum { STRIP = 64 };

typedef struct {
    int32_t *first; // (Vp) the first position of a token. Only entries of tokens that occur are
                    // ever written or read
    int32_t *next;  // (N) the next position of the token at this one, -1 at its last
} Places;

int64_t cpu_embedding_workspace(OpsShape shape) {
    return (shape.Vp + shape.B * shape.T) * (int64_t)sizeof(int32_t);
}

// Channels c .. c + STRIP - 1 of each token's row += the sum over its positions.
static ALWAYS_INLINE void tokens_strip(void *dwte, const void *dout, Places p,
                                       const int32_t *tokens, int64_t N, int64_t c, int64_t C,
                                       DType E, DType G) {
    for (int64_t first = 0; first < N; first++) {
        if (p.first[tokens[first]] != first) continue;
        EACH_LANES(i, k, min_i64(C - c, STRIP), {
            const int64_t at = tokens[first] * C + c + i;
            V sum = vzero();
            for (int64_t n = first; n >= 0; n = p.next[n])
                sum += vload_first(k, dout, n * C + c + i, E);
            sum += vload_first(k, dwte, at, G);
            vstore_first(k, dwte, at, sum, G);
        });
    }
}

void backend_embedding_backward(Gradient wte_gradient, Gradient wpe_gradient, Tensor dout,
                                Tensor tokens) {
    const Tensor dwte = wte_gradient.to, dwpe = wpe_gradient.to;
    const char *op = "embedding_backward";
    const int64_t N = tensor_numel(tokens), T = tensor_cols(tokens), C = tensor_cols(dout);
    const int32_t *token = tokens.data;
    const void *from = dout.data;
    void *to = dwpe.data;

    check_tokens(op, token, N, tensor_rows(dwte));
    int32_t *workspace = cpu_scratch(op, (tensor_rows(dwte) + N) * (int64_t)sizeof(int32_t));
    const Places places = {.first = workspace + N, .next = workspace};
    for (int64_t n = 0; n < N; n++) places.first[token[n]] = -1;
    for (int64_t n = N - 1; n >= 0; n--) {
        places.next[n] = places.first[token[n]];
        places.first[token[n]] = (int32_t)n;
    }

    if (!wte_gradient.add) backend_tensor_fill(dwte, 0.0f);
    // Row t of dwpe = or += the sum over the B sequences; 0 or unchanged where t >= T.
    const int64_t written = dwpe.data && wpe_gradient.add ? T : tensor_rows(dwpe);
#pragma omp parallel
    {
#pragma omp for schedule(static) nowait
        for (int64_t c = 0; c < C; c += STRIP)
            WITH_DTYPES(E, dout.dtype, G, dwte.dtype,
                        tokens_strip(dwte.data, dout.data, places, token, N, c, C, E, G));
#pragma omp for schedule(static)
        for (int64_t t = 0; t < written; t++)
            WITH_DTYPES(E, dout.dtype, G, dwpe.dtype, {
                EACH_LANES(i, k, C, {
                    V sum = vzero();
                    for (int64_t n = t; t < T && n < N; n += T)
                        sum += vload_first(k, from, n * C + i, E);
                    if (wpe_gradient.add) sum += vload_first(k, to, t * C + i, G);
                    vstore_first(k, to, t * C + i, sum, G);
                });
            });
    }
}
