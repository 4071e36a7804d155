// CUDA graphs: capture records the operations of one or more streams as nodes with their
// dependencies; an instantiated graph runs them again, with the arguments that they had. What CUDA
// forbids during a capture fails as in CUDA: the call returns an error, the capture becomes
// invalid, and a line says which call it was. Stricter than CUDA: any work in the legacy stream and
// any pageable copy during a capture is an error.
#include "dev/sim/sim_control.h"
#include "dev/sim/stream.h"

#include <algorithm>
#include <stdio.h>
#include <string>

struct CUgraph_st {
    sim::Nodes nodes;
};

// order: indices of nodes as they run.
struct CUgraphExec_st {
    std::shared_ptr<const sim::Nodes> nodes;
    std::vector<size_t> order;
};

namespace sim {
// ------------------------------------------------------------------------------------ the captures

static std::vector<std::shared_ptr<Capture>> &captures() { // in progress
    static auto *active = new std::vector<std::shared_ptr<Capture>>;
    return *active;
}

cudaError_t capture_break(Capture *capture, cudaError_t error, const char *what) {
    if (!capture->ended) capture->invalid = true;
    return set_error(error, "%s: forbidden during a capture, which is invalid now", what);
}

// A call that CUDA counts as unsafe concerns captures in global mode and those of the same thread,
// unless relaxed.
static bool concerns_this_thread(const Capture &capture) {
    if (capture.mode == cudaStreamCaptureModeRelaxed) return false;
    return capture.mode == cudaStreamCaptureModeGlobal ||
           capture.thread == std::this_thread::get_id();
}
cudaError_t capture_forbids(const char *call) {
    cudaError_t error = sticky_error();
    for (auto &capture : captures())
        if (concerns_this_thread(*capture))
            error = capture_break(capture.get(), cudaErrorStreamCaptureUnsupported, call);
    return error;
}
cudaError_t capture_forbids_legacy(const char *call) {
    cudaError_t error = cudaSuccess;
    const std::string what = std::string(call) + " in the legacy stream";
    for (auto &capture : captures())
        error = capture_break(capture.get(), cudaErrorStreamCaptureImplicit, what.c_str());
    return error;
}

cudaError_t capture_add(CUstream_st *stream, const Operation &operation) {
    Capture *capture = stream->capture.get();
    if (capture->invalid) {
        operation.destroy(operation.argument);
        return set_error(cudaErrorStreamCaptureInvalidated);
    }
    capture->nodes.push_back(std::make_shared<CUgraphNode_st>(operation, stream->last));
    stream->last = {capture->nodes.size() - 1};
    return cudaSuccess;
}

cudaError_t capture_wait(CUstream_st *stream, const CUevent_st *event) {
    Capture *capture = event->capture.get();
    if (capture->invalid) return set_error(cudaErrorStreamCaptureInvalidated);
    if (stream == stream_of(nullptr)) return capture_forbids_legacy("cudaStreamWaitEvent");
    if (stream->capture && stream->capture != event->capture)
        return capture_break(capture, cudaErrorStreamCaptureMerge,
                             "cudaStreamWaitEvent that joins two captures");

    if (!stream->capture) {
        stream->capture = event->capture;
        stream->last.clear();
        capture->streams.push_back(stream);
    }

    for (size_t node : event->last)
        if (std::find(stream->last.begin(), stream->last.end(), node) == stream->last.end())
            stream->last.push_back(node);
    return cudaSuccess;
}

// Whether everything that was captured in side streams comes before the end of the origin.
static bool is_joined(const Capture &capture) {
    std::vector<bool> reached(capture.nodes.size());
    std::vector<size_t> open = capture.origin->last;

    while (!open.empty()) {
        const size_t node = open.back();
        open.pop_back();
        if (reached[node]) continue;
        reached[node] = true;
        open.insert(open.end(), capture.nodes[node]->after.begin(),
                    capture.nodes[node]->after.end());
    }

    for (const CUstream_st *stream : capture.streams)
        for (size_t node : stream->last)
            if (!reached[node]) return false;
    return true;
}

static cudaError_t end_capture(CUstream_st *origin, cudaGraph_t *graph) {
    *graph = nullptr;
    const std::shared_ptr<Capture> capture = origin->capture;
    if (!capture)
        return set_error(cudaErrorIllegalState,
                         "cudaStreamEndCapture: the stream is not being captured");
    if (capture->origin != origin)
        return capture_break(capture.get(), cudaErrorStreamCaptureUnmatched,
                             "cudaStreamEndCapture of another stream than began it");
    if (capture->mode != cudaStreamCaptureModeRelaxed &&
        capture->thread != std::this_thread::get_id())
        return set_error(cudaErrorStreamCaptureWrongThread,
                         "cudaStreamEndCapture: on another thread than the begin");

    const bool joined = is_joined(*capture);
    capture->ended = true;
    for (CUstream_st *stream : capture->streams) stream->capture = nullptr;
    captures().erase(std::find(captures().begin(), captures().end(), capture));

    // as by a driver with a defect
    if (setting_is("SIM_CAPTURE", "refused")) capture->invalid = true;
    if (capture->invalid) return set_error(cudaErrorStreamCaptureInvalidated);
    if (!joined)
        return set_error(cudaErrorStreamCaptureUnjoined,
                         "cudaStreamEndCapture: work of another stream was not joined to the "
                         "origin by an event");

    *graph = new CUgraph_st{capture->nodes};
    return cudaSuccess;
}

// -------------------------------------------------------------------------------------- the graphs

// The function returns, of all orders that respect the dependencies, the one furthest from the
// order of the recording: of the nodes that may run, it takes the last. A missing dependency so
// shows at every replay. Work of one stream keeps its order.
static std::vector<size_t> run_order(const Nodes &nodes) {
    std::vector<size_t> order, missing(nodes.size());
    std::vector<std::vector<size_t>> before(nodes.size());
    for (size_t i = 0; i < nodes.size(); i++) {
        missing[i] = nodes[i]->after.size();
        for (size_t earlier : nodes[i]->after) before[earlier].push_back(i);
    }

    std::vector<size_t> ready;              // a heap, the largest index on top
    for (size_t i = nodes.size(); i-- > 0;) // from the largest: a heap already
        if (missing[i] == 0) ready.push_back(i);

    while (!ready.empty()) {
        std::pop_heap(ready.begin(), ready.end());
        const size_t node = ready.back();
        ready.pop_back();
        order.push_back(node);
        for (size_t next : before[node])
            if (--missing[next] == 0) {
                ready.push_back(next);
                std::push_heap(ready.begin(), ready.end());
            }
    }
    return order;
}
} // namespace sim

using namespace sim;

extern "C" {
cudaError_t cudaStreamBeginCapture(cudaStream_t handle, cudaStreamCaptureMode mode) {
    CUstream_st *stream = stream_of(handle);
    if (stream == stream_of(nullptr))
        return set_error(cudaErrorStreamCaptureUnsupported,
                         "cudaStreamBeginCapture: the legacy stream cannot be captured");
    if (stream->capture)
        return set_error(cudaErrorIllegalState,
                         "cudaStreamBeginCapture: the stream is captured already");

    auto capture = std::make_shared<Capture>();
    capture->origin = stream;
    capture->mode = mode;
    capture->thread = std::this_thread::get_id();
    capture->streams = {stream};
    stream->capture = capture;
    stream->last.clear();
    captures().push_back(capture);
    return cudaSuccess;
}
cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t *graph) {
    return end_capture(stream_of(stream), graph);
}
cudaError_t cudaStreamIsCapturing(cudaStream_t stream, cudaStreamCaptureStatus *status) {
    const Capture *capture = stream_of(stream)->capture.get();
    *status = !capture           ? cudaStreamCaptureStatusNone
              : capture->invalid ? cudaStreamCaptureStatusInvalidated
                                 : cudaStreamCaptureStatusActive;
    return cudaSuccess;
}

// nodes may be null: then only the count.
cudaError_t cudaGraphGetNodes(cudaGraph_t graph, cudaGraphNode_t *nodes, size_t *count) {
    const size_t room = nodes ? *count : 0;
    for (size_t i = 0; i < room; i++)
        nodes[i] = i < graph->nodes.size() ? graph->nodes[i].get() : nullptr;
    if (!nodes || *count > graph->nodes.size()) *count = graph->nodes.size();
    return cudaSuccess;
}
static size_t last_nodes;
size_t sim_last_graph_nodes(void) { return last_nodes; }

cudaError_t cudaGraphInstantiate(cudaGraphExec_t *exec, cudaGraph_t graph, unsigned long long) {
    if (cudaError_t error = capture_forbids("cudaGraphInstantiate")) return error;
    last_nodes = graph->nodes.size();
    *exec =
        new CUgraphExec_st{std::make_shared<const Nodes>(graph->nodes), run_order(graph->nodes)};
    return cudaSuccess;
}
cudaError_t cudaGraphDestroy(cudaGraph_t graph) {
    delete graph;
    return cudaSuccess;
}
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t exec) {
    delete exec;
    return cudaSuccess;
}
cudaError_t cudaGraphUpload(cudaGraphExec_t, cudaStream_t) { return cudaSuccess; }

// The launch holds the nodes: the executable graph may be destroyed before it has run.
cudaError_t cudaGraphLaunch(cudaGraphExec_t exec, cudaStream_t stream) {
    if (stream_is_captured(stream)) return capture_forbids("cudaGraphLaunch");
    for (const auto &node : *exec->nodes)
        if (node->event) event_follows(node->event, stream_of(stream));
    for (const auto &node : *exec->nodes)
        if (node->operation.launched) node->operation.launched(node->operation.argument, stream);
    return stream_enqueue(stream, "cudaGraphLaunch", [nodes = exec->nodes, order = exec->order] {
        for (size_t i : order) (*nodes)[i]->operation.run((*nodes)[i]->operation.argument);
    });
}
}
