// Running cuDNN's attention: the handle, the pointers of a call, the launch. cudnn_graph.h makes what is launched. The
// simulator runs this code with a replacement of cuDNN itself (dev/sim/cudnn_sim.cpp).
#include "llmc/cuda/cudnn_attention.h"

#include "llmc/cuda/cudnn_graph.h"

#ifdef HAVE_CUDNN
#include <math.h>
#include <stdlib.h>

static struct {
    cudnnHandle_t handle;            // NULL until the first pass is created
    cudnnBackendDescriptor_t device; // properties of the GPU
} gpu;

struct CudnnAttention {
    CudnnPass *pass;
    // Constants of the graphs. cuDNN reads them from here at every launch.
    float scale, minus_infinity, one;
};

bool cudnn_attention_open(Error *why) {
    if (cuda_backend.compute_capability < 80)
        return error_set(why, "cuDNN has no fused attention for sm_%d, only for sm_80 and newer",
                         cuda_backend.compute_capability);
    return cudnn_library_open(why);
}

static bool start_cudnn(Error *why) {
    if (gpu.handle) return true;
    int device = 0;
    CUDA_CHECK(cudaGetDevice(&device));
    cudnnStatus_t status = cudnn.cudnnCreate(&gpu.handle);
    if (status != CUDNN_STATUS_SUCCESS) {
        gpu.handle = NULL;
        return cudnn_failed(why, "cuDNN does not start", status);
    }
    status = cudnn.cudnnSetStream(gpu.handle, cuda_compute_stream());
    if (status == CUDNN_STATUS_SUCCESS) {
        gpu.device = cudnn_device_of_gpu(device, why);
        if (gpu.device) return true;
    } else {
        cudnn_failed(why, "cuDNN does not accept the stream", status);
    }
    cudnn_attention_close();
    return false;
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
    CudnnAttention *a = (CudnnAttention *)calloc(1, sizeof *a);
    if (!a) {
        error_set(why, "out of memory for cuDNN's attention");
        return NULL;
    }
    a->scale = 1.0f / sqrtf((float)shape.HS);
    a->minus_infinity = -INFINITY;
    a->one = 1.0f;
    a->pass = cudnn_pass_create(pass, shape, gpu.device, cuda_backend.compute_capability, way, max_workspace, why);
    if (a->pass) return a;
    free(a);
    return NULL;
}

void cudnn_attention_destroy(CudnnAttention *a) {
    if (!a) return;
    cudnn_pass_destroy(a->pass);
    free(a);
}

int64_t cudnn_attention_workspace(const CudnnAttention *a) { return a->pass->workspace.bytes; }
bool cudnn_attention_compile(CudnnAttention *a, Error *why) { return cudnn_plan_compile(a->pass->plan, why); }

// ---------------------------------------------------------------------------------------------------------------- runs

// The pointers of one call, in the order of CudnnTensor. NULL: not in this graph.
typedef struct {
    void *of[CUDNN_NUM_TENSORS];
} Pointers;

// q, k or v (part 0, 1, 2) in a packed (B,T,NH + 2 NKV,HS).
static void *packed_part(Tensor packed, AttentionShape s, int part) {
    int64_t heads = 0;
    if (part != 0) heads = s.NH + (part - 1) * s.NKV;
    return (char *)packed.data + (size_t)(heads * s.HS) * dtype_size(s.dtype);
}

static Pointers pointers_of(CudnnAttention *a, Tensor qkv, Tensor out, Tensor lse, void *workspace) {
    const AttentionShape s = a->pass->shape;
    Pointers p = {{0}};
    for (int part = 0; part < 3; part++) p.of[CUDNN_Q + part] = packed_part(qkv, s, part);
    p.of[CUDNN_OUT] = out.data;
    p.of[CUDNN_LSE] = lse.data;
    p.of[CUDNN_DSUM] = (char *)workspace + a->pass->workspace.dsum;
    p.of[CUDNN_DQ_SUMS] = (char *)workspace + a->pass->workspace.dq_sums;
    p.of[CUDNN_SCALE] = &a->scale;
    p.of[CUDNN_MINUS_INFINITY] = &a->minus_infinity;
    p.of[CUDNN_ONE] = &a->one;
    return p;
}

static bool cudnn_attention_launch(const CudnnAttention *a, const Pointers *p, void *workspace, Error *why) {
    static const char what[] = "cuDNN launch of attention";
    int64_t ids[CUDNN_NUM_TENSORS], count = 0;
    void *pointers[CUDNN_NUM_TENSORS];
    for (int id = CUDNN_Q; id < CUDNN_NUM_TENSORS; id++) {
        if (!cudnn_graph_has(a->pass->graph, (CudnnTensor)id)) continue;
        ids[count] = id;
        pointers[count++] = p->of[id];
    }
    cudnnBackendDescriptor_t pack = cudnn_make(CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR, what, why);
    bool ok = pack && cudnn_set(pack, CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS, CUDNN_TYPE_INT64, count, ids, what, why) &&
              cudnn_set(pack, CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS, CUDNN_TYPE_VOID_PTR, count, pointers, what, why) &&
              cudnn_set(pack, CUDNN_ATTR_VARIANT_PACK_WORKSPACE, CUDNN_TYPE_VOID_PTR, 1, &workspace, what, why) &&
              cudnn_finalize(pack, what, why);
    if (ok) {
        const cudnnStatus_t status = cudnn.cudnnBackendExecute(gpu.handle, cudnn_plan_descriptor(a->pass->plan), pack);
        ok = status == CUDNN_STATUS_SUCCESS || cudnn_failed(why, what, status);
    }
    cudnn_destroy(pack);
    return ok;
}

bool cudnn_attention_forward(CudnnAttention *a, Tensor out, Tensor lse, Tensor qkv, void *workspace, Error *why) {
    const Pointers p = pointers_of(a, qkv, out, lse, workspace);
    return cudnn_attention_launch(a, &p, workspace, why);
}

bool cudnn_attention_backward(CudnnAttention *a, Tensor dqkv, Tensor dout, Tensor out, Tensor lse, Tensor qkv,
                              void *workspace, Error *why) {
    Pointers p = pointers_of(a, qkv, out, lse, workspace);
    for (int part = 0; part < 3; part++) p.of[CUDNN_DQ + part] = packed_part(dqkv, a->pass->shape, part);
    p.of[CUDNN_DOUT] = dout.data;
    return cudnn_attention_launch(a, &p, workspace, why);
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

bool cudnn_attention_forward(CudnnAttention *a, Tensor out, Tensor lse, Tensor qkv, void *workspace, Error *why) {
    return cudnn_attention_open(why);
}
bool cudnn_attention_backward(CudnnAttention *a, Tensor dqkv, Tensor dout, Tensor out, Tensor lse, Tensor qkv,
                              void *workspace, Error *why) {
    return cudnn_attention_open(why);
}

#endif
