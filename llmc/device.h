// The device interface next to ops.h: memory, streams, events, graphs and facts. A backend
// (llmc/cpu, llmc/cuda) implements this header and ops.h, and keeps its state in one private
// handle. There is one device per process. On the CPU, work on streams runs at once, events are
// done when recorded, and graphs are not captured.
#pragma once
#include "llmc/base/error.h"
#include "llmc/tensor.h"

#ifdef __cplusplus
extern "C" {
#endif

// ---------------------------------------------------------------------------------- life and facts

// ATTENTION_FAST: cuDNN with the backward form that adds dQ in the order in which blocks finish, as
// llm.c and PyTorch run it. Its bits differ from run to run, so nothing but this option chooses it.
typedef enum { ATTENTION_AUTO, ATTENTION_CUDNN, ATTENTION_OWN, ATTENTION_FAST } AttentionChoice;
typedef enum {
    GELU_FUSION_AUTO,
    GELU_FUSION_NONE,
    GELU_FUSION_FORWARD,
    GELU_FUSION_BOTH
} GeluFusion;

// The vector code of the CPU backend, best first. The environment's PRETRAIN_CPU chooses, and
// limits the instructions of the CPU's library too; auto: the first one that the processor and the
// operating system support.
typedef enum {
    CPU_AUTO,
    CPU_AMX,
    CPU_AVX512BF16,
    CPU_AVX512,
    CPU_AVX2,
    CPU_BASELINE,
    CPU_CODES
} CpuCodeChoice;

// All zeros is a good choice on every machine.
typedef struct {
    int threads; // CPU: worker threads, 0 = OMP_NUM_THREADS, or the processors and their quota.
                 // Ignored by GPU backends
    int number;  // of this process among those of this machine: chooses the GPU. 0: the first
    // The CPU ignores the following fields.
    bool tf32; // fp32 matmuls on TF32 tensor cores
    // auto: the faster of cuDNN and our kernels, by measurement on first use
    AttentionChoice attention;
    // GELU in the epilogue of matmuls; auto: both on sm_90 and sm_100, but not forward where GELU
    // is recomputed, which could not give the same bits
    GeluFusion gelu_fusion;
    bool no_tuning;       // choices without measurement: the library's favourites
    bool no_early_launch; // no kernel may be set up before the one before it has ended (sm_90+)
    bool no_graphs;       // graphs record nothing: ops run as they are called
} DeviceOptions;

typedef struct {
    const char *backend; // "cpu" or "cuda"
    char name[128];      // "AMD EPYC, 2 threads" or "NVIDIA H200"
    char id[64]; // tells two devices of one machine apart: the GPU's PCI bus id; "" on the CPU
    char libraries[256]; // "vector code avx512bf16, oneDNN 2.6.3, OpenMP"
    char attention[256]; // implementation of attention, once a model is planned; "" on the CPU: no
                         // choice
    int units;           // threads or SMs in use
    size_t memory_total; // bytes of device memory
    size_t memory_free;  // bytes free when device_init returned
    bool memory_spills; // a full GPU takes host memory without an error, and becomes slow (Windows)
    size_t cache_bytes; // of the caches before device memory; 0 = not known
    double peak_flops[DTYPE_COUNT]; // datasheet FLOP/s by dtype, derived from units x clock x
                                    // FLOP/clock; 0 = not known
    double peak_bandwidth;          // datasheet bytes/s of device memory; 0 = not known
    DType default_dtype;            // the fastest training dtype of this device
    bool widens_bf16; // it has no instructions for bf16, which then saves memory, not time
    bool supports[DTYPE_COUNT]; // dtypes that ops accept for weights and activations
} DeviceFacts;

// Call first in main. Some libraries read their settings from the environment when the process
// starts, before main. This sets the variables that the backend needs and, if one was missing,
// executes the program again (same process, same arguments). CPU: GOMP_SPINCOUNT, how long an idle
// OpenMP thread spins, unless the user set it or OMP_WAIT_POLICY; and not OMP_STACKSIZE
// (limits_start sets the stacks of threads).
void device_prepare_process(char **argv);

// The PCI address of the GPU that device_init would take for this process, "0000:3b:00.0"; "" on
// the CPU, or if it would take none. Creates nothing on the GPU.
void device_address(int number, char address[64]);

bool device_init(const DeviceOptions *options, Error *err);
void device_shutdown(void);
const DeviceFacts *device_facts(void);

// The conditions on which the bits of this process depend besides its options. A GPU: the choices
// made by timing or restored, algorithms and epilogues of matmuls and the implementation of
// attention, one line each. The CPU: one line, its vector code, its library and its number of
// threads. malloced.
char *device_tuning(void);
// Restores earlier choices without timing; call before the first op. False: they were made for
// another device, driver or library and are ignored: bits may differ. "" is unknown, and true.
bool device_restore_tuning(const char *lines);

// The current state of the device as it reports it. Fields that it does not report are 0.
typedef struct {
    double sm_clock_mhz, memory_clock_mhz;
    // energy: since the driver was loaded; only differences are meaningful
    double power_watts, energy_joules;
    double temperature_c;
    char throttle[128]; // "" or the reason for throttling: "power cap", "thermal", ...
} DeviceSensors;
// false if there are none (the CPU; a GPU without NVML)
bool device_sensors(DeviceSensors *sensors);

// ------------------------------------------------------------------------------------------ memory

// Device memory, 256-byte aligned, zeroed (and so touched: the first step pays no page faults).
// NULL and a message with the bytes requested and free when it does not fit.
void *device_alloc(size_t bytes, Error *err);
void device_free(void *p);
// Bytes free now, for all programs of the device.
size_t device_memory_free(void);
// The peak of device bytes used by this process so far. CPU: resident set high-water mark since
// device_init. GPU: bytes allocated by this process.
size_t device_memory_peak(void);
// Returns to an earlier peak: memory allocated and freed since then does not count.
void device_memory_peak_restore(size_t peak);

// Host memory the device can copy from without staging (pinned on a GPU). Aligned to 64 bytes.
void *host_alloc(size_t bytes, Error *err);
void host_free(void *p);

// ------------------------------------------------------------------------------ streams and copies

// Copies run in both directions at once: copies to the device on STREAM_COPY, copies back to the
// host during a step on STREAM_COPY_BACK. Collectives run on STREAM_COMM.
typedef enum { STREAM_COMPUTE, STREAM_COPY, STREAM_COPY_BACK, STREAM_COMM, STREAM_COUNT } Stream;

// Asynchronous copies in stream order. Host memory must come from host_alloc and stay untouched
// until an event after the copy is done.
void copy_h2d(void *device_dst, const void *host_src, size_t bytes, Stream stream);
void copy_d2h(void *host_dst, const void *device_src, size_t bytes, Stream stream);
void device_copy(void *device_dst, const void *device_src, size_t bytes); // on STREAM_COMPUTE
// waits for all streams: at checkpoints, validation, the end. Never inside a step
void device_sync(void);

typedef struct DeviceEvent DeviceEvent;
DeviceEvent *device_event_create(Error *err);
void device_event_destroy(DeviceEvent *event);
void device_event_record(DeviceEvent *event, Stream stream);
void device_event_wait(DeviceEvent *event);                         // host waits
bool device_event_done(DeviceEvent *event);                         // without waiting
void device_stream_wait(Stream stream, DeviceEvent *event);         // stream waits, host does not
double device_event_seconds(DeviceEvent *start, DeviceEvent *stop); // both must be done

// ------------------------------------------------------------------------------------------ graphs

// A recorded sequence of launches that is replayed with one call: one per distinct micro-step. Use:
//   if (!device_graph_replay(g)) { device_graph_begin(g); ...ops...; device_graph_end(g); }
// replay returns false when nothing was captured yet, and always where there are no graphs (CPU,
// no_graphs); then begin and end do nothing and the ops run as they are called. On a GPU the first
// pass also runs the ops as they are called (plans are made then), the second is captured, and end
// launches it. The ops after a replay that returned false must be the same work as in the previous
// pass. begin without a preceding replay declares that they are other work, and the graph starts
// over.
typedef struct DeviceGraph DeviceGraph;
DeviceGraph *device_graph_create(Error *err);
void device_graph_destroy(DeviceGraph *graph);
bool device_graph_replay(DeviceGraph *graph);
void device_graph_begin(DeviceGraph *graph);
void device_graph_end(DeviceGraph *graph);

// ------------------------------------------------------------------------------------- collectives

// Exchange of device memory between the processes of a run (llmc/comm.h), one device each: NCCL on
// GPUs, loaded when it is first asked for; MPI on the CPU. All processes make the same calls in the
// same order. Data are moved only: no engine adds anything, so neither its algorithm nor the
// network changes a bit.
enum { DEVICE_COMM_ID_BYTES = 128 };

// Process 0 makes the id under which all of them meet; the others get it from process 0. False: no
// engine here; the message says what to install.
bool device_comm_id(char id[DEVICE_COMM_ID_BYTES], Error *err);
// After device_init, on all processes. Returns when all have joined, or with an error after this
// number of seconds. device_shutdown leaves.
bool device_comm_start(const char id[DEVICE_COMM_ID_BYTES], int rank, int size, double seconds,
                       Error *err);
// "NCCL 2.28.9" or "Open MPI 4.1.4"; "" before device_comm_start.
const char *device_comm_library(void);

// Requests are numbered, and any number of them may be in flight. A request follows everything
// queued on the compute stream so far, and is queued on STREAM_COMM; the host does not wait.
// device_comm_wait makes the compute stream wait for it (on the CPU: completes it), and must be
// called before the memory is used again and before the next request of that number. `parts` has a
// part of the buffer for each process, in bytes: multiples of 4, {0, 0} if it is empty.
enum { DEVICE_COMM_REQUESTS = 1024 };
// Part r of send goes to process r. recv gets this process's part from every process, one after the
// other in the order of ranks.
bool device_all_to_all(void *recv, const void *send, const Range *parts, int request, Error *err);
// Part `rank` of data goes to the same place on all others, in place.
bool device_all_gather(void *data, const Range *parts, int request, Error *err);
// Lets requests go on where the engine moves data only while it is called (MPI); nothing on a GPU.
void device_comm_progress(void);
bool device_comm_wait(int request, Error *err);

// Watches the exchange (--profile). An event that `request` records on STREAM_COMM is done when the
// request begins, or when it has ended (on the CPU: was found ended). One that `wait` records on
// STREAM_COMPUTE is done when the compute stream begins or ends to wait for a request or, on the
// CPU, to move data.
typedef struct {
    void (*request)(int request, bool begins);
    void (*wait)(bool begins);
} CommObserver;
void device_comm_observe(const CommObserver *observer); // NULL: nobody
// True with a message if a request has failed, which otherwise only device_comm_wait tells. Does
// not wait.
bool device_comm_failed(Error *err);
// Ends requests in flight without completing them, so that this process can exit. The others must
// do the same.
void device_comm_abort(void);

#ifdef __cplusplus
}
#endif
