// Running cuDNN's attention: the handle, the pointers of a call, the launch. cudnn_graph.h makes
// what is launched. The simulator runs this code with a replacement of cuDNN itself
// (dev/sim/cudnn_sim.cpp).
#include "llmc/cuda/cudnn_attention.h"

#include "llmc/cuda/cudnn_graph.h"

#ifdef HAVE_CUDNN
#include <math.h>

static struct {
    cudnnHandle_t handle;            // NULL until the first pass is created
    cudnnBackendDescriptor_t device; // properties of the GPU
} gpu;

bool cudnn_attention_open(Error *why) {
    if (cuda_backend.compute_capability < 80)
        return error_set(why, "cuDNN has no fused attention for sm_%d, only for sm_80 and newer",
                         cuda_backend.compute_capability);
    return cudnn_library_open(why);
}

static bool start_cudnn(Error *why) {
    if (gpu.device) return true;
    CudnnBuild b = {.what = "cuDNN does not start", .err = why};
    cudnn_check(&b, cudnn.cudnnCreate(&gpu.handle));
    if (b.failed) {
        gpu.handle = NULL;
        return false;
    }
    cudnn_check(&b, cudnn.cudnnSetStream(gpu.handle, cuda_compute_stream()));
    if (!b.failed) gpu.device = cudnn_device_of_gpu(cuda_backend.device, why);
    if (!gpu.device) cudnn_attention_close();
    return gpu.device != NULL;
}

void cudnn_attention_close(void) {
    cudnn_destroy(gpu.device);
    if (gpu.handle) cudnn.cudnnDestroy(gpu.handle);
    gpu.device = NULL;
    gpu.handle = NULL;
}

CudnnAttention *cudnn_attention_create(AttentionPass pass, AttentionShape shape, AttentionWay way,
                                       int64_t max_workspace, Error *why) {
    if (!start_cudnn(why)) return NULL;
    return cudnn_pass_create(pass, shape, gpu.device, cuda_backend.compute_capability, way,
                             max_workspace, why);
}

void cudnn_attention_destroy(CudnnAttention *a) { cudnn_pass_destroy(a); }
int64_t cudnn_attention_workspace(const CudnnAttention *a) { return a->workspace.bytes; }
bool cudnn_attention_compile(CudnnAttention *a, Error *why) {
    return cudnn_plan_compile(a->plan, why);
}

// -------------------------------------------------------------------------------------------- runs

// q, k or v (part 0, 1, 2) in a packed (B,T,NH + 2 NKV,HS).
static void *packed_part(Tensor packed, AttentionShape s, int part) {
    const int64_t heads = part != 0 ? s.NH + (part - 1) * s.NKV : 0;
    return (char *)packed.data + (size_t)(heads * s.HS) * dtype_size(s.dtype);
}

bool cudnn_attention_run(CudnnAttention *a, Tensor out, Tensor lse, Tensor qkv, Tensor dqkv,
                         Tensor dout, void *workspace, Error *why) {
    // cuDNN reads the constants of a graph at every launch
    static float minus_infinity = -INFINITY, one = 1.0f;
    void *all[CUDNN_NUM_TENSORS] = {
        [CUDNN_OUT] = out.data,
        [CUDNN_LSE] = lse.data,
        [CUDNN_DOUT] = dout.data,
        [CUDNN_DSUM] = (char *)workspace + a->workspace.dsum,
        [CUDNN_DQ_SUMS] = (char *)workspace + a->workspace.dq_sums,
        [CUDNN_SCALE] = &a->scale,
        [CUDNN_MINUS_INFINITY] = &minus_infinity,
        [CUDNN_ONE] = &one,
    };
    for (int part = 0; part < 3; part++) {
        all[CUDNN_Q + part] = packed_part(qkv, a->shape, part);
        if (dqkv.data) all[CUDNN_DQ + part] = packed_part(dqkv, a->shape, part);
    }
    int64_t ids[CUDNN_NUM_TENSORS], count = 0;
    void *pointers[CUDNN_NUM_TENSORS];
    for (int id = CUDNN_Q; id < CUDNN_NUM_TENSORS; id++) {
        if (!cudnn_graph_has(a->graph, (CudnnTensor)id)) continue;
        ids[count] = id;
        pointers[count++] = all[id];
    }
    CudnnBuild b = {.what = "cuDNN launch of attention", .err = why};
    cudnnBackendDescriptor_t pack = cudnn_make(&b, CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR);
    cudnn_set(&b, pack, CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS, CUDNN_TYPE_INT64, count, ids);
    cudnn_set(&b, pack, CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS, CUDNN_TYPE_VOID_PTR, count,
              pointers);
    cudnn_set(&b, pack, CUDNN_ATTR_VARIANT_PACK_WORKSPACE, CUDNN_TYPE_VOID_PTR, 1, &workspace);
    cudnn_finalize(&b, pack);
    if (!b.failed) cudnn_check(&b, cudnn.cudnnBackendExecute(gpu.handle, a->plan->compiled, pack));
    cudnn_destroy(pack);
    return !b.failed;
}

#else // cudnn_attention_open is never true, so nothing below is ever reached with an attention
#pragma GCC diagnostic ignored "-Wunused-parameter"

bool cudnn_attention_open(Error *why) { return cudnn_library_open(why); }
void cudnn_attention_close(void) {}

CudnnAttention *cudnn_attention_create(AttentionPass pass, AttentionShape shape, AttentionWay way,
                                       int64_t max_workspace, Error *why) {
    cudnn_attention_open(why);
    return NULL;
}
void cudnn_attention_destroy(CudnnAttention *a) {}
int64_t cudnn_attention_workspace(const CudnnAttention *a) { return 0; }
bool cudnn_attention_compile(CudnnAttention *a, Error *why) { return cudnn_attention_open(why); }

bool cudnn_attention_run(CudnnAttention *a, Tensor out, Tensor lse, Tensor qkv, Tensor dqkv,
                         Tensor dout, void *workspace, Error *why) {
    return cudnn_attention_open(why);
}

#endif
