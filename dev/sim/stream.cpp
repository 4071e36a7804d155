// Streams and events. An operation runs at once, or with SIM_STREAMS=lazy as late as the API
// allows: when the host waits for it, or when something that is waited for needs it. What an eager
// run hides (a missing event between two streams, a result read too early) shows in a lazy one. For
// ThreadSanitizer each stream is a thread. It is ordered with others by nothing but what CUDA
// promises: an operation comes after what the host did before it was enqueued; events, legacy
// stream and synchronisation do the rest.
#include "dev/sim/stream.h"
#include "dev/sim/sanitizers.h"
#include "dev/sim/sim_control.h"

#include <algorithm>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>

namespace sim {
static CUstream_st legacy_stream;

// never freed; destroyed ones stay, because events may name them
static std::vector<CUstream_st *> &streams() {
    static auto *all = new std::vector<CUstream_st *>{&legacy_stream};
    return *all;
}
CUstream_st *stream_of(cudaStream_t handle) {
    return handle && handle != cudaStreamLegacy && handle != cudaStreamPerThread ? handle
                                                                                 : &legacy_stream;
}

static bool lazy = setting("SIM_STREAMS") && strcmp(setting("SIM_STREAMS"), "lazy") == 0;

static void run_operation(const Operation &operation) {
    if (!sticky_error()) {
        memory_open();
        // may run other streams, up to events that this one waits for
        operation.run(operation.argument);
        memory_close();
    }
    operation.destroy(operation.argument);
}

#ifdef SIM_TSAN
static CUstream_st *entered; // the one that begins to run on its stack
static void run_on_own_stack() {
    CUstream_st *stream = entered;
    for (;;) {
        tsan_acquire(stream->tsan_before.front().get());
        stream->tsan_before.pop_front();
        run_operation(*stream->running);
        tsan_release(&stream->tsan_after);
        tsan_switch(stream->tsan_caller);
        fiber_switch(&stream->stack, &stream->caller);
    }
}
static void *fiber_of(CUstream_st *stream) {
    if (stream->tsan_fiber) return stream->tsan_fiber;
    stream->stack.stack_bytes = 1 << 20;
    stream->stack.stack = (char *)mmap(nullptr, stream->stack.stack_bytes, PROT_READ | PROT_WRITE,
                                       MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (stream->stack.stack == MAP_FAILED) fatal("no memory for the stack of a stream");
    fiber_prepare(&stream->stack, run_on_own_stack, 0);
    return stream->tsan_fiber = tsan_new_fiber();
}
static void run_as_thread(CUstream_st *stream, const Operation &operation) {
    void *fiber = fiber_of(stream);
    entered = stream;
    stream->running = &operation;
    stream->tsan_caller = tsan_current_fiber();
    tsan_switch(fiber);
    fiber_switch(&stream->caller, &stream->stack);
}
// The next work of the stream comes after what `sync` stands for.
static void comes_after(CUstream_st *stream, char *sync) {
    void *caller = tsan_current_fiber();
    tsan_switch(fiber_of(stream));
    tsan_acquire(sync);
    tsan_switch(caller);
}
#else
static void run_as_thread(CUstream_st *stream, const Operation &operation) {
    stream->tsan_before.pop_front();
    run_operation(operation);
}
static void comes_after(CUstream_st *, char *) {}
#endif

static void run_next(CUstream_st *stream) {
    const Operation operation = stream->waiting.front();
    stream->waiting.pop_front();
    run_as_thread(stream, operation);
    stream->done++;
}
static void drain(CUstream_st *stream, uint64_t position) {
    while (stream->done < position && !stream->waiting.empty()) run_next(stream);
}
static bool next_is_ready(CUstream_st *stream) {
    const Operation next = stream->waiting.front();
    return !next.ready || sticky_error() || next.ready(next.argument);
}
// The stream runs as far as it can without waiting for another process.
static bool advance(CUstream_st *stream, uint64_t position) {
    while (stream->done < position && !stream->waiting.empty() && next_is_ready(stream))
        run_next(stream);
    return stream->done >= position;
}
bool stream_advance(cudaStream_t handle) {
    return advance(stream_of(handle), stream_of(handle)->queued);
}
static void drain(CUstream_st *stream) { drain(stream, stream->queued); }
void streams_drain_all() {
    for (CUstream_st *stream : streams()) {
        drain(stream);
        tsan_acquire(&stream->tsan_after);
    }
}

// The legacy stream and blocking streams wait for each other.
static void respect_legacy(CUstream_st *stream) {
    for (CUstream_st *other : streams()) {
        if (other == stream || !other->blocking || !stream->blocking) continue;
        if (other != &legacy_stream && stream != &legacy_stream) continue;
        drain(other);
        comes_after(stream, &other->tsan_after);
    }
}

bool stream_is_captured(cudaStream_t stream) { return stream_of(stream)->capture != nullptr; }

bool stream_runs_at_once(cudaStream_t stream) {
    const CUstream_st *s = stream_of(stream);
#ifdef SIM_TSAN
    return false; // what the host has on its stack it may change
#endif
    return !lazy && !s->capture && s->waiting.empty();
}

cudaError_t stream_enqueue(cudaStream_t handle, const Operation &operation) {
    CUstream_st *stream = stream_of(handle);
    if (cudaError_t error = sticky_error()) {
        operation.destroy(operation.argument);
        return error;
    }

    if (stream->capture) return capture_add(stream, operation);
    if (stream == &legacy_stream)
        if (cudaError_t error = capture_forbids_legacy(operation.name)) {
            operation.destroy(operation.argument);
            return error;
        }

    respect_legacy(stream);
    if (operation.launched) operation.launched(operation.argument, handle);
    stream->waiting.push_back(operation);
    stream->queued++;
    stream->tsan_before.push_back(std::make_unique<char>());
    tsan_release(stream->tsan_before.back().get());

    if (!lazy) advance(stream, stream->queued);
    return cudaSuccess;
}

void stream_enqueue(cudaStream_t stream, void (*run)(void *), void *argument,
                    void (*destroy)(void *)) {
    stream_enqueue(stream, {"library call", run, argument, destroy});
}

// ----------------------------------------------------------------------------- beside a collective

static struct {
    CUstream_st *stream;
    uint64_t position;
    int multiprocessors;
} last_collective;

void stream_is_collective(cudaStream_t handle, int multiprocessors) {
    last_collective = {stream_of(handle), stream_of(handle)->queued, multiprocessors};
}
int multiprocessors_taken(cudaStream_t handle) {
    const auto &c = last_collective;
    if (!c.stream || c.stream->waited >= c.position ||
        stream_of(handle)->follows[c.stream] >= c.position)
        return 0;
    return c.multiprocessors;
}

// --------------------------------------------------------------------------- the promise of a step

static bool marked;
static int violations;

void step_forbids(const char *call, const char *why) {
    if (!marked) return;
    fprintf(stderr, "sim: step violation %d: %s %s\n", ++violations, call, why);
}
// The host waits for the first `position` operations of the stream.
static void step_waits(const char *call, const CUstream_st *stream, uint64_t position) {
    if (marked && position > stream->marked)
        step_forbids(call, "waits for work of the running step");
}

// ------------------------------------------------------------------------------------------ events

static cudaError_t captured_event(const char *call, const CUevent_st *event) {
    return capture_break(event->capture.get(), cudaErrorCapturedEvent, call);
}
void event_follows(CUevent_st *event, CUstream_st *stream) {
    event->stream = stream;
    event->position = stream->queued + 1;
    event->recorded = true;
    event->capture = nullptr;
}

static double clock_set = -1.0; // sim_set_clock
static double clock_milliseconds() {
    const auto now = std::chrono::steady_clock::now().time_since_epoch();
    return clock_set < 0.0 ? std::chrono::duration<double, std::milli>(now).count() : clock_set;
}
void clock_advance(double milliseconds) {
    if (clock_set >= 0.0) clock_set += milliseconds;
}

static double launch_latency = 0.0; // sim_set_launch_latency

static cudaError_t record_event(cudaEvent_t event, cudaStream_t handle, unsigned flags) {
    CUstream_st *stream = stream_of(handle);
    const bool external = flags == cudaEventRecordExternal;
    if (stream->capture && stream->capture->invalid)
        return set_error(cudaErrorStreamCaptureInvalidated);
    if (stream->capture && !external) {
        event->capture = stream->capture;
        event->last = stream->last;
        return cudaSuccess;
    }

    respect_legacy(stream);
    if (!stream->capture) event_follows(event, stream);
    // One that is recorded at every replay speaks for the last one.
    const std::shared_ptr<char> sync = event->tsan_sync = std::make_shared<char>();
    const double early = stream->waited == stream->queued ? launch_latency : 0.0;
    const cudaError_t error = stream_enqueue(handle, "cudaEventRecord", [=] {
        event->milliseconds = clock_milliseconds() - early;
        tsan_release((external ? event->tsan_sync : sync).get());
    });

    if (stream->capture) stream->capture->nodes.back()->event = event;
    return error;
}

static cudaError_t wait_event(cudaStream_t handle, cudaEvent_t event, unsigned flags) {
    CUstream_st *stream = stream_of(handle);
    if (event->capture && !event->capture->ended) return capture_wait(stream, event);
    if (event->capture)
        return set_error(cudaErrorCapturedEvent,
                         "cudaStreamWaitEvent: the event was recorded in a capture that ended");
    if (!event->recorded) return cudaSuccess;
    if (stream->capture && flags != cudaEventWaitExternal)
        return capture_break(stream->capture.get(), cudaErrorStreamCaptureIsolation,
                             "cudaStreamWaitEvent for an event recorded outside");

    struct Wait {
        CUstream_st *source;
        uint64_t position;
        std::shared_ptr<char> sync;
    };
    const auto run = [](void *argument) {
        const Wait *wait = (const Wait *)argument;
        drain(wait->source, wait->position);
        tsan_acquire(wait->sync.get());
    };
    const auto ready = [](void *argument) {
        const Wait *wait = (const Wait *)argument;
        return advance(wait->source, wait->position);
    };
    Wait *wait = new Wait{event->stream, event->position, event->tsan_sync};

    for (const auto &[before, position] : event->stream->follows)
        stream->follows[before] = std::max(stream->follows[before], position);
    stream->follows[event->stream] = std::max(stream->follows[event->stream], event->position);

    return stream_enqueue(handle, {"cudaStreamWaitEvent", run, wait,
                                   [](void *argument) { delete (Wait *)argument; }, ready});
}
} // namespace sim

using namespace sim;

extern "C" {
// ------------------------------------------------------------------------------ what tests control

void sim_set_lazy_streams(bool on) {
    streams_drain_all();
    lazy = on;
}
void sim_step_mark(void) {
    marked = true;
    for (CUstream_st *stream : streams()) stream->marked = stream->queued;
}
void sim_step_unmark(void) { marked = false; }
int sim_step_violations(void) { return violations; }
void sim_set_clock(double milliseconds) { clock_set = milliseconds; }
void sim_set_launch_latency(double milliseconds) { launch_latency = milliseconds; }

// ----------------------------------------------------------------------------------------- streams

cudaError_t cudaDeviceGetStreamPriorityRange(int *lowest, int *highest) {
    *lowest = 0;
    *highest = -5;
    return cudaSuccess;
}
cudaError_t cudaStreamCreateWithPriority(cudaStream_t *stream, unsigned flags, int priority) {
    const cudaError_t error = cudaStreamCreateWithFlags(stream, flags);
    (*stream)->priority = priority;
    return error;
}
cudaError_t cudaStreamGetPriority(cudaStream_t stream, int *priority) {
    *priority = stream_of(stream)->priority;
    return cudaSuccess;
}
cudaError_t cudaStreamCreateWithFlags(cudaStream_t *stream, unsigned flags) {
    *stream = new CUstream_st;
    (*stream)->blocking = !(flags & cudaStreamNonBlocking);
    streams().push_back(*stream);
    return cudaSuccess;
}
cudaError_t cudaStreamDestroy(cudaStream_t stream) {
    if (!stream || stream->destroyed) return set_error(cudaErrorInvalidResourceHandle);
    if (stream->capture)
        return capture_break(stream->capture.get(), cudaErrorStreamCaptureUnsupported,
                             "cudaStreamDestroy of a captured stream");
    drain(stream);
    stream->destroyed = true;
    return cudaSuccess;
}
cudaError_t cudaStreamSynchronize(cudaStream_t handle) {
    CUstream_st *stream = stream_of(handle);
    if (stream->capture)
        return capture_break(stream->capture.get(), cudaErrorStreamCaptureUnsupported,
                             "cudaStreamSynchronize of a captured stream");
    expect_refusal_seen("cudaStreamSynchronize");
    step_waits("cudaStreamSynchronize", stream, stream->queued);
    respect_legacy(stream);
    drain(stream);
    stream->waited = stream->queued;
    tsan_acquire(&stream->tsan_after);
    return sticky_error();
}
// cudaErrorNotReady means that one more operation has run meanwhile, unless that needs another
// process. So who polls gets there.
cudaError_t cudaStreamQuery(cudaStream_t handle) {
    CUstream_st *stream = stream_of(handle);
    if (stream->capture)
        return capture_break(stream->capture.get(), cudaErrorStreamCaptureUnsupported,
                             "cudaStreamQuery of a captured stream");
    if (stream->done == stream->queued) tsan_acquire(&stream->tsan_after);
    if (stream->done == stream->queued || sticky_error()) return sticky_error();
    if (next_is_ready(stream)) run_next(stream);
    return set_error(cudaErrorNotReady);
}
cudaError_t cudaDeviceSynchronize(void) {
    if (cudaError_t error = capture_forbids("cudaDeviceSynchronize")) return error;
    expect_refusal_seen("cudaDeviceSynchronize");
    for (CUstream_st *stream : streams())
        step_waits("cudaDeviceSynchronize", stream, stream->queued);
    streams_drain_all();
    return sticky_error();
}

// ------------------------------------------------------------------------------------------ events

cudaError_t cudaEventCreateWithFlags(cudaEvent_t *event, unsigned flags) {
    *event = new CUevent_st;
    (*event)->keeps_time = !(flags & cudaEventDisableTiming);
    return cudaSuccess;
}
cudaError_t cudaEventCreate(cudaEvent_t *event) { return cudaEventCreateWithFlags(event, 0); }
cudaError_t cudaEventDestroy(cudaEvent_t event) {
    if (!event) return set_error(cudaErrorInvalidResourceHandle);
    if (event->stream) drain(event->stream, event->position);
    delete event;
    return cudaSuccess;
}
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
    return record_event(event, stream, cudaEventRecordDefault);
}
cudaError_t cudaEventRecordWithFlags(cudaEvent_t event, cudaStream_t stream, unsigned flags) {
    return record_event(event, stream, flags);
}
cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned flags) {
    return wait_event(stream, event, flags);
}
cudaError_t cudaEventSynchronize(cudaEvent_t event) {
    if (event->capture) return captured_event("cudaEventSynchronize of a captured event", event);
    if (!event->recorded) return cudaSuccess;
    expect_refusal_seen("cudaEventSynchronize");
    step_waits("cudaEventSynchronize", event->stream, event->position);
    drain(event->stream, event->position);
    tsan_acquire(event->tsan_sync.get());
    return sticky_error();
}
cudaError_t cudaEventQuery(cudaEvent_t event) {
    if (event->capture) return captured_event("cudaEventQuery of a captured event", event);
    if (event->recorded && event->stream->done >= event->position)
        tsan_acquire(event->tsan_sync.get());
    if (!event->recorded || event->stream->done >= event->position || sticky_error())
        return sticky_error();
    if (next_is_ready(event->stream)) run_next(event->stream);
    return set_error(cudaErrorNotReady);
}
cudaError_t cudaEventElapsedTime(float *milliseconds, cudaEvent_t start, cudaEvent_t stop) {
    if (cudaError_t error = sticky_error()) return error;
    for (const CUevent_st *event : {start, stop}) {
        if (event->capture)
            return captured_event("cudaEventElapsedTime of a captured event", event);
        if (!event->recorded || !event->keeps_time)
            return set_error(cudaErrorInvalidResourceHandle);
        if (event->stream->done < event->position) return set_error(cudaErrorNotReady);
    }
    *milliseconds = (float)(stop->milliseconds - start->milliseconds);
    return cudaSuccess;
}
}
