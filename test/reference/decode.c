// Specification of kv_cache_store and attention_decode: one head of one sequence at a time. See
// reference.h.
#include "test/reference/reference.h"
#include <math.h>

// The vector of HS values that stands at position t in the cache (B,2,NKV,maxT,HS): key (which 0)
// or value (1).
static int64_t cache_at(int64_t NKV, int64_t maxT, int64_t HS, int64_t b, int64_t which, int64_t h,
                        int64_t t) {
    return (((b * 2 + which) * NKV + h) * maxT + t) * HS;
}

void ref_kv_cache_store(double *cache, const double *qkv, int64_t B, int64_t n, int64_t NH,
                        int64_t NKV, int64_t HS, int64_t maxT, int64_t first) {
    for (int64_t b = 0; b < B; b++)
        for (int64_t t = 0; t < n; t++)
            for (int64_t which = 0; which < 2; which++)
                for (int64_t h = 0; h < NKV; h++)
                    for (int64_t d = 0; d < HS; d++)
                        cache[cache_at(NKV, maxT, HS, b, which, h, first + t) + d] =
                            qkv[((b * n + t) * (NH + 2 * NKV) + NH + which * NKV + h) * HS + d];
}

static double score(const double *q, const double *k, int64_t HS) {
    double sum = 0.0;
    for (int64_t d = 0; d < HS; d++) sum += q[d] * k[d];
    return sum / sqrt((double)HS);
}

void ref_attention_decode(double *out, double *cache, const double *qkv, int64_t B, int64_t NH,
                          int64_t NKV, int64_t HS, int64_t maxT, int64_t position) {
    ref_kv_cache_store(cache, qkv, B, 1, NH, NKV, HS, maxT, position);
    for (int64_t b = 0; b < B; b++) {
        for (int64_t h = 0; h < NH; h++) {
            const int64_t kv = h / (NH / NKV);
            const double *q = qkv + (b * (NH + 2 * NKV) + h) * HS,
                         *k = cache + cache_at(NKV, maxT, HS, b, 0, kv, 0);
            const double *v = cache + cache_at(NKV, maxT, HS, b, 1, kv, 0);
            double *o = out + (b * NH + h) * HS, max = -INFINITY, sum = 0.0;
            for (int64_t j = 0; j <= position; j++) max = fmax(max, score(q, k + j * HS, HS));
            for (int64_t j = 0; j <= position; j++) sum += exp(score(q, k + j * HS, HS) - max);
            for (int64_t d = 0; d < HS; d++) o[d] = 0.0;
            for (int64_t j = 0; j <= position; j++) {
                const double p = exp(score(q, k + j * HS, HS) - max) / sum;
                for (int64_t d = 0; d < HS; d++) o[d] += p * v[j * HS + d];
            }
        }
    }
}
