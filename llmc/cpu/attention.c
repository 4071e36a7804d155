// Causal attention: its shape, the views of its heads and the workspace. The work is done in attention_forward.c,
// attention_backward.c and attention_decode.c.
#include "llmc/cpu/attention.h"

#include <math.h>

AttentionShape attention_shape(const char *op, Tensor qkv, int num_heads) {
    cpu_check_float(op, qkv);
    REQUIRE(qkv.rank == 3, "%s: %s has rank %d, expected (B,T,3C)", op, qkv.name, qkv.rank);
    REQUIRE(num_heads > 0 && qkv.shape[2] % (3 * num_heads) == 0, "%s: %s has %lld columns, not 3 * HS for %d heads",
            op, qkv.name, (long long)qkv.shape[2], num_heads);
    int64_t HS = qkv.shape[2] / (3 * num_heads);
    return (AttentionShape){.B = qkv.shape[0],
                            .T = qkv.shape[1],
                            .NH = num_heads,
                            .HS = HS,
                            .dtype = qkv.dtype,
                            .scale = 1.0f / sqrtf((float)HS)};
}

MatrixView attention_head(AttentionShape s, Tensor t, int64_t b, int64_t h, int part, int parts) {
    int64_t C = s.NH * s.HS, stride = parts * C;
    int64_t first = b * s.T * stride + part * C + h * s.HS;
    return (MatrixView){.data = (char *)t.data + (size_t)first * dtype_size(s.dtype),
                        .rows = s.T,
                        .columns = s.HS,
                        .stride = stride,
                        .dtype = s.dtype};
}

int64_t cpu_attention_workspace(OpsShape shape) {
    int64_t HS = shape.C / shape.NH;
    int64_t forward = attention_forward_scratch(shape.T, HS, shape.dtype);
    int64_t backward = attention_backward_scratch(shape.T, HS, shape.dtype);
    int64_t decode = shape.sequences > 0 ? attention_decode_scratch(shape.T) : 0;
    int64_t largest = forward > backward ? forward : backward;
    return cpu_threads() * (largest > decode ? largest : decode);
}
