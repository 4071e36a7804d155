// The choice among the forms in which cuDNN computes a pass. See cudnn_pass.h.
//
// Forward there is one form, and it repeats. Backward, the question is in which order the contributions of the blocks
// of keys to dQ are added. No engine of cuDNN 9.19 carries the note NONDETERMINISTIC, so the notes do not answer it;
// NVIDIA's own front end (cudnn-frontend 1.2x) takes the forms below when it is asked for a deterministic backward
// pass.
#include "llmc/cuda/cudnn_pass.h"

#ifdef HAVE_CUDNN
#include <stdlib.h>

// An architecture and a range of versions, and what to take there. The first entry that cuDNN accepts is taken.
typedef struct {
    AttentionPass pass;
    int first_capability, last_capability;
    int first_version, last_version;
    CudnnGraphKind kind;
    bool collected; // taken where it is asked for, and not otherwise
    bool pinned;    // to this engine; otherwise by the heuristics
    CudnnEngine engine;
} Form;

enum { ANY_CAPABILITY = 9999, ANY_VERSION = 999999 };

static const Form forms[] = {
    {.pass = ATTENTION_FORWARD,
     .first_capability = 80,
     .last_capability = ANY_CAPABILITY,
     .last_version = ANY_VERSION,
     .kind = CUDNN_FORWARD},
    // Blackwell's engine has stages = 2, "several kernels", for the form in which the matmul writes dQ. It needs no
    // workspace. The heuristics do not know it and would fall back to the kernel for sm_80.
    {.pass = ATTENTION_BACKWARD,
     .first_capability = 100,
     .last_capability = 103,
     .first_version = 91801,
     .last_version = 92299,
     .kind = CUDNN_BACKWARD,
     .pinned = true,
     .engine = {.number = 5, .num_knobs = 2, .knobs = {{CUDNN_KNOB_TYPE_KERNEL_CFG, 31}, {CUDNN_KNOB_TYPE_STAGES, 2}}}},
    // The same from 9.23 on, where the kernel's configuration is spelled in other knobs: tiles of 128 x 128.
    {.pass = ATTENTION_BACKWARD,
     .first_capability = 100,
     .last_capability = 103,
     .first_version = 92300,
     .last_version = ANY_VERSION,
     .kind = CUDNN_BACKWARD,
     .pinned = true,
     .engine = {.number = 5,
                .num_knobs = 6,
                .knobs = {{CUDNN_KNOB_TYPE_TILE_M, 3},
                          {CUDNN_KNOB_TYPE_TILE_N, 2},
                          {CUDNN_KNOB_TYPE_KERNEL_CFG, 2},
                          {CUDNN_KNOB_TYPE_STREAM_K, 0},
                          {CUDNN_KNOB_TYPE_TILE_CGA_M, 0},
                          {CUDNN_KNOB_TYPE_STAGES, 2}}}},
    {.pass = ATTENTION_BACKWARD,
     .first_capability = 80,
     .last_capability = ANY_CAPABILITY,
     .last_version = ANY_VERSION,
     .kind = CUDNN_BACKWARD},
    // Where the workspace of the form above, B * NH * T * T * 2 bytes, is too large: Hopper's engine has stages = 4
    // from 9.25 on, in which the blocks wait for each other to add in order. Slower, but linear in T.
    {.pass = ATTENTION_BACKWARD,
     .first_capability = 90,
     .last_capability = 90,
     .first_version = 92500,
     .last_version = ANY_VERSION,
     .kind = CUDNN_BACKWARD_COLLECTED,
     .pinned = true,
     .engine = {.number = 6,
                .num_knobs = 6,
                .knobs = {{CUDNN_KNOB_TYPE_TILE_M, 2},
                          {CUDNN_KNOB_TYPE_TILE_N, 1},
                          {CUDNN_KNOB_TYPE_KERNEL_CFG, 2},
                          {CUDNN_KNOB_TYPE_STREAM_K, 0},
                          {CUDNN_KNOB_TYPE_TILE_CGA_M, 0},
                          {CUDNN_KNOB_TYPE_STAGES, 4}}}},
    // What llm.c and PyTorch run: blocks add to dQ in the order in which they get there.
    {.pass = ATTENTION_BACKWARD,
     .first_capability = 80,
     .last_capability = ANY_CAPABILITY,
     .last_version = ANY_VERSION,
     .kind = CUDNN_BACKWARD_COLLECTED,
     .collected = true},
};

static int64_t padded(int64_t bytes) { return (bytes + 255) / 256 * 256; }

// What the caller keeps beside the plan's own workspace.
static CudnnWorkspace lay_out(const CudnnPass *p, int64_t kernel_bytes) {
    const AttentionShape s = p->shape;
    const int64_t rows = s.B * s.NH * s.T * (int64_t)sizeof(float);
    CudnnWorkspace w = {0};
    w.dsum = padded(kernel_bytes);
    w.dq_sums = w.dsum + (cudnn_graph_has(p->graph, CUDNN_DSUM) ? padded(rows) : 0);
    w.bytes = w.dq_sums + (cudnn_graph_has(p->graph, CUDNN_DQ_SUMS) ? padded(rows * s.HS) : 0);
    return w;
}

static CudnnPass *create(const Form *form, AttentionShape shape, cudnnBackendDescriptor_t device, int64_t max_workspace,
                         Error *err) {
    CudnnPass *p = (CudnnPass *)calloc(1, sizeof *p);
    if (!p) {
        error_set(err, "out of memory for cuDNN's attention");
        return NULL;
    }
    p->shape = shape;
    p->kind = form->kind;
    p->graph = cudnn_graph_create(form->kind, shape, err);
    if (p->graph) {
        const int64_t callers = lay_out(p, 0).bytes;
        p->plan =
            cudnn_plan_create(p->graph, device, form->pinned ? &form->engine : NULL, max_workspace - callers, err);
    }
    if (p->plan) {
        p->workspace = lay_out(p, cudnn_plan_workspace(p->plan));
        return p;
    }
    cudnn_pass_destroy(p);
    return NULL;
}

CudnnPass *cudnn_pass_create(AttentionPass pass, AttentionShape shape, cudnnBackendDescriptor_t device,
                             int compute_capability, bool collected, int64_t max_workspace, Error *err) {
    const int version = cudnn_library_version();
    if (compute_capability < 80)
        error_set(err, "cuDNN has no fused attention for sm_%d, only for sm_80 and newer", compute_capability);
    else if (shape.dtype != DTYPE_BF16 && shape.dtype != DTYPE_FP16)
        error_set(err, "cuDNN has no fused attention for %s", dtype_name(shape.dtype));
    else if (shape.HS % 8 != 0) // 16-byte rows, which the graphs promise
        error_set(err, "cuDNN has no fused attention for head size %lld", (long long)shape.HS);
    else
        for (size_t i = 0; i < sizeof forms / sizeof *forms; i++) {
            const Form *f = &forms[i];
            if (f->pass != pass || (pass == ATTENTION_BACKWARD && f->collected != collected) ||
                compute_capability < f->first_capability || compute_capability > f->last_capability ||
                version < f->first_version || version > f->last_version)
                continue;
            CudnnPass *p = create(f, shape, device, max_workspace, err);
            if (p) return p;
        }
    return NULL;
}

void cudnn_pass_destroy(CudnnPass *pass) {
    if (!pass) return;
    cudnn_plan_destroy(pass->plan);
    cudnn_graph_destroy(pass->graph);
    free(pass);
}

#endif
