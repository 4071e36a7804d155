// Optimizer state in host memory (--offload optimizer), on its way through the device: each parameter is cut into
// slices, slices that fit into one part of the device's buffer are a chunk, and while one chunk is updated the next
// ones are copied in and the last one is copied back. Owns the slices and the events that order the copies; the state
// and the buffer are the model's. Never waits on the host. After Ren et al., "ZeRO-Offload: Democratizing Billion-Scale
// Model Training", 2021; the update itself stays on the device.
//   offload_begin(o);
//   for (int c = 0; c < offload_chunks(o); c++) {
//       offload_take(o, c, &first, &count);  ... optimizer_update(slices, n, first, count, ...);  offload_return(o, c);
//   }
#pragma once
#include "llmc/model/gpt2.h"

typedef struct Offload Offload;
// tensors: those of the model, in its order, with state in host memory; not kept.
Offload *offload_create(const Gpt2 *model, const UpdateTensor *tensors, Error *err);
void offload_destroy(Offload *offload);

// All slices of all parameters, in order, with their state in the buffer: the same array for the whole run.
const UpdateTensor *offload_slices(const Offload *offload, int *count);
int offload_chunks(const Offload *offload);

// Queues the copies of the first chunks, which wait for nothing that computes: called before the gradient norm, they
// run beside the backward pass.
void offload_begin(Offload *offload);
// Chunks in order: the compute stream waits for chunk c, slices [first, first + count) ...
void offload_take(Offload *offload, int c, int *first, int *count);
// ... and has updated it: it is copied back, and the next chunk of its part of the buffer is copied in.
void offload_return(Offload *offload, int c);
