// The interpreter of cuDNN graphs. See cudnn_program.h.
#include "llmc/cuda/cudnn_graph.h"

#ifdef HAVE_CUDNN
#include "dev/sim/cudnn_program.h"
#include "dev/sim/cudnn_sim.h"
#include "dev/sim/runtime.h"

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <math.h>
#include <string.h>

namespace sim {
namespace dnn {
namespace {
struct Machine {
    const Launch &l;
    std::vector<std::vector<float>> between;

    explicit Machine(const Launch &launch) : l(launch), between(launch.program->tensors.size()) {}
    const Tensor4 &tensor(int i) const { return l.program->tensors[(size_t)i]; }

    // A value as it stands in memory of that type.
    template <class T> static void put(char *p, float v) { *(T *)p = T(v); }
    static void store(cudnnDataType_t type, char *p, float v) {
        if (type == CUDNN_DATA_BFLOAT16)
            put<__nv_bfloat16>(p, v);
        else if (type == CUDNN_DATA_HALF)
            put<__half>(p, v);
        else
            put<float>(p, v);
    }
    static float load(cudnnDataType_t type, const char *p) {
        if (type == CUDNN_DATA_BFLOAT16) return (float)*(const __nv_bfloat16 *)p;
        return type == CUDNN_DATA_HALF ? (float)*(const __half *)p : *(const float *)p;
    }
    float read_at(int i, int64_t offset) const {
        const Tensor4 &t = tensor(i);
        if (t.by_value) return l.constants[(size_t)i];
        if (t.is_virtual) return between[(size_t)i][(size_t)offset];
        return load(t.type, l.memory[(size_t)i] + (size_t)offset * t.element());
    }
    float read(int i, int64_t a, int64_t b, int64_t c, int64_t d) const {
        return read_at(i, tensor(i).offset(a, b, c, d));
    }
    void write(int i, int64_t a, int64_t b, int64_t c, int64_t d, float v) {
        const Tensor4 &t = tensor(i);
        const int64_t offset = t.offset(a, b, c, d);
        if (!t.is_virtual) {
            store(t.type, l.memory[(size_t)i] + (size_t)offset * t.element(), v);
            return;
        }
        alignas(4) char rounded[4];
        store(t.type, rounded, v);
        between[(size_t)i][(size_t)offset] = load(t.type, rounded);
    }

    float pointwise(const Step &s, int64_t a, int64_t b, int64_t c, int64_t d) const {
        const int64_t index[4] = {a, b, c, d};
        if (s.mode == CUDNN_POINTWISE_GEN_INDEX) return (float)index[s.axis];
        const float x = read(s.x, a, b, c, d),
                    second = s.b != NO_TENSOR ? read(s.b, a, b, c, d) : 0.0f;
        switch (s.mode) {
        case CUDNN_POINTWISE_ADD:
            return x + second;
        case CUDNN_POINTWISE_SUB:
            return x - second;
        case CUDNN_POINTWISE_MUL:
            return x * second;
        case CUDNN_POINTWISE_DIV:
            return x / second;
        case CUDNN_POINTWISE_EXP:
            return expf(x);
        case CUDNN_POINTWISE_LOG:
            return logf(x);
        case CUDNN_POINTWISE_IDENTITY:
            return x;
        case CUDNN_POINTWISE_CMP_GE:
            return x >= second ? 1.0f : 0.0f;
        case CUDNN_POINTWISE_CMP_GT: // for graphs with a planted fault, as the next
            return x > second ? 1.0f : 0.0f;
        case CUDNN_POINTWISE_CMP_LT:
            return x < second ? 1.0f : 0.0f;
        case CUDNN_POINTWISE_BINARY_SELECT:
            return read(s.t, a, b, c, d) != 0.0f ? x : second;
        default:
            sim::fatal("cuDNN: pointwise mode %d is not simulated", s.mode);
        }
    }

    // Element (a,b,c,d) of the reduction: of each dimension in which x has more than y, the part
    // that belongs to it.
    float reduction(const Step &s, const int64_t (&at)[4]) const {
        const Tensor4 &x = tensor(s.x), &y = tensor(s.y);
        int64_t first[4], end[4];
        for (int i = 0; i < 4; i++) {
            if (x.dims[i] % y.dims[i] != 0)
                sim::fatal("cuDNN: a reduction from %d to %d", (int)x.dims[i], (int)y.dims[i]);
            const int64_t count = x.dims[i] / y.dims[i];
            first[i] = at[i] * count;
            end[i] = first[i] + count;
        }
        float v = s.mode == CUDNN_REDUCE_TENSOR_MAX ? -INFINITY : 0.0f;
        for (int64_t a = first[0]; a < end[0]; a++)
            for (int64_t b = first[1]; b < end[1]; b++)
                for (int64_t c = first[2]; c < end[2]; c++)
                    for (int64_t d = first[3]; d < end[3]; d++) {
                        const float element = read(s.x, a, b, c, d);
                        v = s.mode == CUDNN_REDUCE_TENSOR_MAX ? fmaxf(v, element) : v + element;
                    }
        return v;
    }

    void matmul(const Step &s, int64_t a, int64_t b) {
        const int64_t M = tensor(s.y).dims[2], N = tensor(s.y).dims[3], K = tensor(s.x).dims[3];
        // several may have one right factor
        const int64_t heads = tensor(s.y).dims[1], shared = tensor(s.b).dims[1];
        if (heads % shared != 0) sim::fatal("cuDNN: %d matrices times %d", (int)heads, (int)shared);
        std::vector<float> right((size_t)(K * N)), row((size_t)N);
        for (int64_t k = 0; k < K; k++)
            for (int64_t n = 0; n < N; n++)
                right[(size_t)(k * N + n)] = read(s.b, a, b / (heads / shared), k, n);
        for (int64_t m = 0; m < M; m++) {
            for (float &v : row) v = 0.0f;
            for (int64_t k = 0; k < K; k++) {
                const float left = read(s.x, a, b, m, k);
                for (int64_t n = 0; n < N; n++) row[(size_t)n] += left * right[(size_t)(k * N + n)];
            }
            for (int64_t n = 0; n < N; n++) write(s.y, a, b, m, n, row[(size_t)n]);
        }
    }

    void run(const Step &s) {
        const Tensor4 &y = tensor(s.y);
        if (y.is_virtual) between[(size_t)s.y].assign((size_t)y.extent(), NAN);
        for (int64_t a = 0; a < y.dims[0]; a++)
            for (int64_t b = 0; b < y.dims[1]; b++) {
                if (s.kind == MATMUL) {
                    matmul(s, a, b);
                    continue;
                }
                for (int64_t c = 0; c < y.dims[2]; c++)
                    for (int64_t d = 0; d < y.dims[3]; d++)
                        write(
                            s.y, a, b, c, d,
                            s.kind == POINTWISE ? pointwise(s, a, b, c, d)
                            : s.kind == REDUCTION
                                ? reduction(s, {a, b, c, d})
                                : read_at(s.x, y.offset(a, b, c, d))); // the same memory, seen anew
            }
    }
};
} // namespace

// Nothing may be expected of the workspace, and all of it may be written.
void run(const Launch &l) {
    const long number = ++sim_cudnn_counts.run;
    memset(l.workspace, 0xff, l.workspace_bytes);
    Machine machine(l);
    for (const Step &s : l.program->steps) machine.run(s);
    const size_t last = (size_t)l.program->steps.back().y;
    const Tensor4 &output = l.program->tensors[last];
    if (l.unrepeatable) l.memory[last][(size_t)(number % output.dims[3]) * output.element()] ^= 1;
    clock_advance(LIBRARY_MS + (l.slow ? SLOW_MS : 0.0));
}
} // namespace dnn
} // namespace sim
#endif
