// The simulator's side of the CUDA runtime, shared by its files and by the emulated libraries
// (cublaslt.cpp): errors, memory of the device, streams that take operations, captures, and the
// model of the device. Internal to dev/sim. One host thread calls the runtime, as the trainer does;
// blocks of a kernel run on several.
#pragma once
#include <cuda_runtime.h>
#include <stdint.h>

namespace sim {
// ------------------------------------------------------------------------------------------ errors

// Remembers the error for cudaGetLastError and returns it. With a format: prints "sim: ..." as
// well.
cudaError_t set_error(cudaError_t error);
cudaError_t set_error(cudaError_t error, const char *format, ...)
    __attribute__((format(printf, 2, 3)));
// Every call returns this error once a kernel has failed: errors of kernels come late and stay.
// SIM_STICKY=n: launch n fails.
cudaError_t sticky_error();
void launch_fails();
// A launch that is refused tells only who asks for the error. Who launches or waits before that
// ends the program.
void note_refused_launch(const char *kernel);
void expect_refusal_seen(const char *call);
[[noreturn]] void fatal(const char *format, ...) __attribute__((format(printf, 1, 2)));
void print_place(); // "in kernel K launched at F:L, block B, thread T", when a kernel runs
const char *setting(const char *name); // an environment variable, null when unset or empty
int setting_number(const char *name, int otherwise); // one that is a positive number
// the only value that it may have; false: unset
bool setting_is(const char *name, const char *word);

// ------------------------------------------------------------------------------------------ memory

enum MemoryKind { PAGEABLE, PINNED, DEVICE };
// The function says which kind of memory the bytes p..p+bytes-1 belong to; PAGEABLE for what the
// runtime did not hand out.
MemoryKind memory_kind(const void *p, size_t bytes);
// The function finds what a kernel may touch: the allocation, of the device or pinned, that holds
// these bytes. Changes of the table of allocations are counted.
bool find_device_memory(uint64_t address, uint64_t size, uint64_t *begin, uint64_t *bytes);
extern uint64_t memory_changes;
void add_device_variable(char *address, uint64_t bytes); // a __device__ variable
// A library or the driver takes this memory for itself and never gives it back:
// setting_number(setting) << shift bytes, none if that is unset. False: it does not fit.
bool take_memory(const char *setting, int shift);
// With SIM_PROTECT=1 device memory is accessible only between open and close (calls may nest).
void memory_open();
void memory_close();

// ----------------------------------------------------------------------------------------- streams

// Something that happens in stream order. run(argument) does it, every time a graph is replayed;
// destroy(argument) frees the argument when nobody will run it any more. An operation that depends
// on another process has ready(argument): while that is false, run would wait, and a call that does
// not wait leaves the stream as it is. launched(argument, stream) is called by what enqueues it to
// run: not by a capture, but by each launch of its graph.
struct Operation {
    const char *name;
    void (*run)(void *argument);
    void *argument;
    void (*destroy)(void *argument);
    bool (*ready)(void *argument) = nullptr;
    void (*launched)(void *argument, cudaStream_t stream) = nullptr;
};

// Runs the operation when its turn comes: at once (the default), as late as the API allows
// (SIM_STREAMS=lazy), or at every replay (the stream is captured). Takes the argument over, also
// when it fails: then nothing runs, the error is what the API call must return.
cudaError_t stream_enqueue(cudaStream_t stream, const Operation &operation);
// The same for a function object.
template <class F> cudaError_t stream_enqueue(cudaStream_t stream, const char *name, F f) {
    return stream_enqueue(stream, {name, [](void *p) { (*static_cast<F *>(p))(); }, new F(f),
                                   [](void *p) { delete static_cast<F *>(p); }});
}
// A library call, as of cuBLASLt: one kernel node when captured.
void stream_enqueue(cudaStream_t stream, void (*run)(void *), void *argument,
                    void (*destroy)(void *));
// Whether an operation in the stream would run at once: then it may be run without stream_enqueue.
bool stream_runs_at_once(cudaStream_t stream);
void streams_drain_all(); // runs everything that waits
// These are the times of work by the clock of sim_set_clock.
const double KERNEL_MS = 1.0, LIBRARY_MS = 0.03, SLOW_MS = 50.0;
void clock_advance(double milliseconds);
// Runs what the stream holds up to the first operation that is not ready. True: nothing is left.
bool stream_advance(cudaStream_t stream);
// The first function says that the last work enqueued is a collective that takes so many
// multiprocessors. The second returns what a collective takes beside work that is enqueued now,
// because the stream does not wait for its end: 0 if there is none.
void stream_is_collective(cudaStream_t stream, int multiprocessors);
int multiprocessors_taken(cudaStream_t stream);

// ---------------------------------------------------------------------------------------- captures

// For calls that CUDA forbids while any stream is being captured (allocation, synchronous copies,
// ...). Says so, invalidates the captures and returns cudaErrorStreamCaptureUnsupported;
// cudaSuccess when there is no capture.
cudaError_t capture_forbids(const char *call);
bool stream_is_captured(cudaStream_t stream);

// Counts and prints a violation of the promise between sim_step_mark and sim_step_unmark
// (sim_control.h).
void step_forbids(const char *call, const char *why);

// ------------------------------------------------------------------------------------------- model

// The GPU that is simulated: facts of a real one of the same compute capability (SIM_CC), few
// multiprocessors.
struct DeviceModel {
    int compute_capability; // 90
    int num_sms;            // SIM_SMS
    int clock_khz, memory_clock_khz, bus_bits;
    int shared_per_unit, shared_per_block, threads_per_unit, blocks_per_unit;
    int reserved_shared; // bytes of shared memory that the system takes of every block
    // SIM_MEMORY_MB; what of it is gone before anything is allocated
    size_t memory_bytes, context_bytes;
};
const DeviceModel &device_model();
int driver_version(); // SIM_DRIVER: 12020 for CUDA 12.2
// SIM_NUMERICS=hardware: arithmetic as inexact as a GPU's may be, where it is else exact or rounded
// to nearest.
bool hardware_numbers();
} // namespace sim
