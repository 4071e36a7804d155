// Work beside the ops that follow (OpsShape.overlap), on a second stream: graph_overlap.c says which and how it is
// ordered.
#pragma once
#include "llmc/cuda/backend.h"

#ifdef __cplusplus
extern "C" {
#endif

// Makes the second stream where workspace_bytes, its scratch memory at the end of the workspace, is not 0.
void graph_overlap_prepare(int64_t workspace_bytes);
void graph_overlap_close(void); // called by device_shutdown

// Between these two calls the running op launches on the second stream, after everything launched so far, and has the
// second stream's scratch memory. Ops that touch its operands wait for it (backend_order); device_graph_end and choices
// by time wait for all of it. They do nothing outside device_graph_begin and end, or where overlap was not prepared.
void graph_overlap_begin(void);
void graph_overlap_end(void);
void graph_overlap_join(void); // the compute stream waits for all of it

// Whether the next kernel may be set up before the work before it in its stream has ended.
bool cuda_launches_early(void);

#ifdef __cplusplus
}
#endif
