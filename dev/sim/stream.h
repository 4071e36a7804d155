// Streams, events and captures: what stream.cpp and graph.cpp share. Internal to the simulator.
#pragma once
#include "dev/sim/fiber.h"
#include "dev/sim/runtime.h"
#include <chrono>
#include <deque>
#include <map>
#include <memory>
#include <thread>
#include <vector>

// A node of a graph: an operation and the nodes (by index) that must have run before it.
struct CUgraphNode_st {
    sim::Operation operation;
    std::vector<size_t> after;
    cudaEvent_t event = nullptr; // of a record that outlives the capture (cudaEventRecordExternal)
    CUgraphNode_st(const sim::Operation &op, std::vector<size_t> dependencies)
        : operation(op), after(std::move(dependencies)) {}
    CUgraphNode_st(const CUgraphNode_st &) = delete;
    CUgraphNode_st &operator=(const CUgraphNode_st &) = delete;
    ~CUgraphNode_st() { operation.destroy(operation.argument); }
};

namespace sim {
// in the order of recording, which respects dependencies
typedef std::vector<std::shared_ptr<CUgraphNode_st>> Nodes;

// A capture in progress, shared by the streams that take part and the events recorded in them.
struct Capture {
    CUstream_st *origin;
    cudaStreamCaptureMode mode;
    std::thread::id thread;
    std::vector<CUstream_st *> streams;
    Nodes nodes;
    bool invalid = false, ended = false;
};
} // namespace sim

// Operations are numbered from 1 in the order in which they were enqueued: `queued` were, `done`
// have run.
struct CUstream_st {
    std::deque<sim::Operation> waiting;
    uint64_t queued = 0, done = 0;
    uint64_t marked = 0; // `queued` when sim_step_mark was called
    uint64_t waited = 0; // `queued` when the host waited for the stream
    // the operation of another stream that what comes next comes after
    std::map<CUstream_st *, uint64_t> follows;
    bool blocking = true; // ordered with the legacy stream
    bool destroyed = false;
    int priority = 0;                      // kept, and without effect
    std::shared_ptr<sim::Capture> capture; // null unless it is being captured
    std::vector<size_t> last;              // then: the nodes that the next one comes after

    // ThreadSanitizer takes a stream for a thread, with a stack of its own. Addresses stand for
    // what the host did before it enqueued an operation, one for each that waits, and for what the
    // operations did.
    void *tsan_fiber = nullptr, *tsan_caller = nullptr;
    sim::Fiber stack, caller;
    const sim::Operation *running = nullptr;
    std::deque<std::unique_ptr<char>> tsan_before;
    char tsan_after = 0;
};

struct CUevent_st {
    CUstream_st *stream = nullptr; // of the last record outside captures
    uint64_t position = 0;         // the number of that record in its stream
    bool keeps_time = true, recorded = false;
    double milliseconds = 0.0;             // of the clock
    std::shared_ptr<sim::Capture> capture; // when the last record was captured
    std::vector<size_t> last;              // then: the nodes it stands behind
    std::shared_ptr<char> tsan_sync; // its address stands for what came before the last record
};

namespace sim {
CUstream_st *stream_of(cudaStream_t handle); // the legacy stream for null
// is recorded by what will be enqueued there next
void event_follows(CUevent_st *event, CUstream_st *stream);

// graph.cpp. In a captured stream: adds a node behind what the stream holds; destroys the operation
// when the capture has become invalid.
cudaError_t capture_add(CUstream_st *stream, const Operation &operation);
// An event of another stream that is waited for: draws the stream into the event's capture.
cudaError_t capture_wait(CUstream_st *stream, const CUevent_st *event);
// Prints what was forbidden, invalidates, returns the error.
cudaError_t capture_break(Capture *capture, cudaError_t error, const char *what);
// For work in the legacy stream while any stream is being captured.
cudaError_t capture_forbids_legacy(const char *call);
} // namespace sim
