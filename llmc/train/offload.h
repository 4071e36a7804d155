// Optimizer state in host memory (--offload optimizer). It passes through the device in chunks:
// each parameter is cut into slices, and the slices that fit into one part of the device's buffer
// are a chunk. While one chunk is updated, the next ones are copied in and the previous one is
// copied back. The host never waits. After Ren et al., "ZeRO-Offload: Democratizing Billion-Scale
// Model Training", 2021, but the update itself stays on the device.
#pragma once
#include "llmc/model/model_state.h"

typedef struct Offload Offload;
// tensors (count): those that this process updates, with state in host memory; the array is not
// kept.
Offload *offload_create(const Model *model, const UpdateTensor *tensors, int count, Error *err);
void offload_destroy(Offload *offload);

// All slices of all parameters, in order, with their state in the buffer.
UpdateList *offload_slices(Offload *offload);
int offload_chunks(const Offload *offload);

// Queues the copies of the first chunks, which do not wait for computation: if called before the
// gradient norm, they run during the backward pass.
void offload_begin(Offload *offload);
// Chunks in order: the compute stream waits for chunk c, slices [first, first + count) ...
void offload_take(Offload *offload, int c, int *first, int *count);
// ... and has updated it: it is copied back, and the next chunk of its part of the buffer is copied
// in.
void offload_return(Offload *offload, int c);
