// device.h on a GPU, second half: copies, events, graphs. Streams belong to device.c; events and graphs to whoever
// created them.
#include "llmc/cuda/backend.h"

#include <stdlib.h>

// ------------------------------------------------------------------------------------------------- copies and waiting

void device_copy_to_device(void *device_dst, const void *host_src, size_t bytes, Stream stream) {
    CUDA_CHECK(cudaMemcpyAsync(device_dst, host_src, bytes, cudaMemcpyHostToDevice, cuda_backend.streams[stream]));
}

void device_copy_to_host(void *host_dst, const void *device_src, size_t bytes, Stream stream) {
    CUDA_CHECK(cudaMemcpyAsync(host_dst, device_src, bytes, cudaMemcpyDeviceToHost, cuda_backend.streams[stream]));
}

void cuda_copy(void *device_dst, const void *device_src, size_t bytes) {
    CUDA_CHECK(cudaMemcpyAsync(device_dst, device_src, bytes, cudaMemcpyDeviceToDevice, cuda_compute_stream()));
}

void device_sync(void) { CUDA_CHECK(cudaDeviceSynchronize()); }

// ------------------------------------------------------------------------------------------------------------- events

struct DeviceEvent {
    cudaEvent_t event;
};

DeviceEvent *device_event_create(Error *err) {
    DeviceEvent *e = (DeviceEvent *)calloc(1, sizeof *e);
    if (!e) {
        error_set(err, "out of memory for an event");
        return NULL;
    }
    // With a time stamp. Blocking: a host that waits for a step sleeps, and leaves its core to the data reader.
    CUDA_CHECK(cudaEventCreateWithFlags(&e->event, cudaEventBlockingSync));
    return e;
}

void device_event_destroy(DeviceEvent *e) {
    CUDA_CHECK(cudaEventDestroy(e->event));
    free(e);
}

void device_event_record(DeviceEvent *e, Stream stream) {
    CUDA_CHECK(cudaEventRecord(e->event, cuda_backend.streams[stream]));
}

void device_event_wait(DeviceEvent *e) { CUDA_CHECK(cudaEventSynchronize(e->event)); }

bool device_event_done(DeviceEvent *e) {
    const cudaError_t status = cudaEventQuery(e->event);
    if (status != cudaErrorNotReady) CUDA_CHECK(status);
    (void)cudaGetLastError(); // "not ready" is an answer; the next launch must not find it
    return status == cudaSuccess;
}

void device_stream_wait(Stream stream, DeviceEvent *e) {
    CUDA_CHECK(cudaStreamWaitEvent(cuda_backend.streams[stream], e->event, 0));
}

double device_event_seconds(DeviceEvent *start, DeviceEvent *stop) {
    float ms = 0;
    CUDA_CHECK(cudaEventElapsedTime(&ms, start->event, stop->event));
    return (double)ms * 1e-3;
}

// ------------------------------------------------------------------------------------------------------------- graphs
// A micro-step of 12 layers is some 250 launches; one by one they cost the host 2 to 5 us each, as long as the kernels
// of a small batch run. Recorded once, they cost one launch. A graph goes through three states, each pass through
// `if (!replay) { begin; ops; end; }` moving it on by one:
//
//   UNSEEN   The ops run as they are called. Whatever they do only when they meet a shape for the first time happens
//            here, because nothing of it is allowed in a capture: matmul plans are made and candidates timed, attention
//            is chosen, cuDNN builds its plans, the driver loads the machine code of each kernel.
//   WARM     The ops are captured instead of run: the same calls now only leave nodes in a graph, which is made
//            executable, sent to the device and launched once. Pointers, sizes and numbers are frozen in it.
//   RECORDED Replayed: one launch.
//
// Replay that returns false promises the caller's next pass is the same work as the one before. begin without it means
// other work (another batch size): whatever was recorded is dropped, and the graph is UNSEEN again.
//
// The capture is ThreadLocal: it forbids unsafe calls (allocation, synchronisation) to this thread alone, and the data
// reader's thread may go on as it likes.

typedef enum { GRAPH_UNSEEN, GRAPH_WARM, GRAPH_RECORDED } GraphState;

struct DeviceGraph {
    GraphState state;
    bool same_work; // replay was asked for and refused: the pass that follows repeats the last one
    cudaGraphExec_t exec;
    size_t nodes;
};

DeviceGraph *device_graph_create(Error *err) {
    DeviceGraph *g = (DeviceGraph *)calloc(1, sizeof *g);
    if (!g) error_set(err, "out of memory for a graph");
    return g;
}

static void drop_recording(DeviceGraph *g) {
    if (g->state == GRAPH_RECORDED) {
        CUDA_CHECK(cudaStreamSynchronize(cuda_compute_stream())); // it may still be running
        CUDA_CHECK(cudaGraphExecDestroy(g->exec));
    }
    g->state = GRAPH_UNSEEN;
    g->nodes = 0;
}

void device_graph_destroy(DeviceGraph *g) {
    drop_recording(g);
    free(g);
}

bool device_graph_replay(DeviceGraph *g) {
    g->same_work = g->state != GRAPH_RECORDED;
    if (g->same_work) return false;
    CUDA_CHECK(cudaGraphLaunch(g->exec, cuda_compute_stream()));
    return true;
}

void device_graph_begin(DeviceGraph *g) {
    REQUIRE(!cuda_backend.capturing, "device_graph_begin inside another recording");
    if (!g->same_work) drop_recording(g);
    g->same_work = false;
    if (g->state == GRAPH_UNSEEN) return;
    CUDA_CHECK(cudaStreamBeginCapture(cuda_compute_stream(), cudaStreamCaptureModeThreadLocal));
    cuda_backend.capturing = true;
}

void device_graph_end(DeviceGraph *g) {
    if (g->state == GRAPH_UNSEEN) {
        g->state = GRAPH_WARM;
        return;
    }
    cudaGraph_t graph;
    CUDA_CHECK(cudaStreamEndCapture(cuda_compute_stream(), &graph));
    cuda_backend.capturing = false;
    CUDA_CHECK(cudaGraphGetNodes(graph, NULL, &g->nodes));
    CUDA_CHECK(cudaGraphInstantiate(&g->exec, graph, 0));
    CUDA_CHECK(cudaGraphDestroy(graph));
    CUDA_CHECK(cudaGraphUpload(g->exec, cuda_compute_stream())); // or the first launch would pay for it
    g->state = GRAPH_RECORDED;
    CUDA_CHECK(cudaGraphLaunch(g->exec, cuda_compute_stream()));
}

size_t cuda_graph_nodes(const DeviceGraph *g) { return g->nodes; }
