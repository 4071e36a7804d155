// A trial of the driver before anything depends on it. A capture, or a launch with programmatic
// stream serialisation inside one, may fail where the documentation allows both: a driver older
// than the toolkit, one with a defect, a program between this one and the driver. A run computes
// the same bits without them.
#include "llmc/cuda/intrinsics.cuh"
#include <stdio.h>

// Graphs have edges for early launches since CUDA 12.3.
enum { OLDEST_EARLY_DRIVER = 12030, NUM_LAUNCHES = 2 };

static __global__ void count_kernel(int *count) {
    wait_for_the_grid_before();
    *count += 1;
}

// NUM_LAUNCHES kernels, each after the one before it.
static cudaError_t launch_counts(int *count, bool early) {
    cudaError_t status = cudaSuccess;
    cudaLaunchAttribute attribute = {};
    attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attribute.val.programmaticStreamSerializationAllowed = 1;
    cudaLaunchConfig_t config = {};
    config.gridDim = config.blockDim = dim3(1);
    config.stream = cuda_compute_stream();
    config.attrs = &attribute;
    config.numAttrs = early;
    for (int i = 0; i < NUM_LAUNCHES && status == cudaSuccess; i++)
        status = cudaLaunchKernelEx(&config, count_kernel, count);
    return status;
}

// The same in a graph. The capture is ended in any case, or the stream could not be used any more.
static cudaError_t launch_graph_of_counts(int *count, bool early) {
    cudaGraph_t graph = NULL;
    cudaGraphExec_t exec = NULL;
    cudaError_t status =
        cudaStreamBeginCapture(cuda_compute_stream(), cudaStreamCaptureModeThreadLocal);
    if (status != cudaSuccess) return status;
    status = launch_counts(count, early);
    const cudaError_t ended = cudaStreamEndCapture(cuda_compute_stream(), &graph);
    if (status == cudaSuccess) status = ended;
    if (status == cudaSuccess) status = cudaGraphInstantiate(&exec, graph, 0);
    if (status == cudaSuccess) status = cudaGraphLaunch(exec, cuda_compute_stream());
    if (status == cudaSuccess) status = cudaStreamSynchronize(cuda_compute_stream());
    if (exec) (void)cudaGraphExecDestroy(exec);
    if (graph) (void)cudaGraphDestroy(graph);
    return status;
}

// Whether as many kernels ran as were launched.
static cudaError_t try_counts(int *count, bool in_graph, bool early) {
    int counted = 0;
    const cudaStream_t stream = cuda_compute_stream();
    cudaError_t status = cudaMemsetAsync(count, 0, sizeof *count, stream);
    if (status == cudaSuccess && in_graph) status = launch_graph_of_counts(count, early);
    if (status == cudaSuccess && !in_graph) status = launch_counts(count, early);
    if (status == cudaSuccess)
        status = cudaMemcpyAsync(&counted, count, sizeof counted, cudaMemcpyDeviceToHost, stream);
    if (status == cudaSuccess) status = cudaStreamSynchronize(stream);
    if (status == cudaSuccess && counted != NUM_LAUNCHES) status = cudaErrorUnknown;
    (void)cudaGetLastError(); // the next launch must not find it
    return status;
}

// One process of a machine speaks for all: they have the same GPU and driver.
static void say_refused(const char *what, const char *reason, const char *instead) {
    if (cuda_backend.options.number == 0)
        fprintf(stderr, "%s: refused by the driver (%s); %s\n", what, reason, instead);
}

bool cuda_probe_driver(Error *err) {
    const size_t peak = device_memory_peak();
    int *count = (int *)device_alloc(sizeof *count, err);
    if (!count) return false;

    // loads the kernel, which a capture could not
    const cudaError_t plain = try_counts(count, false, false);
    cudaError_t graph = cudaSuccess, early = cudaSuccess;
    if (plain == cudaSuccess && cuda_backend.graphs) graph = try_counts(count, true, false);
    if (graph != cudaSuccess) {
        cuda_backend.graphs = false;
        say_refused("CUDA graphs", cudaGetErrorName(graph),
                    "kernels are launched one by one, as with PRETRAIN_GRAPHS=0");
    }

    int driver = 0;
    CUDA_CHECK(cudaDriverGetVersion(&driver));
    const bool too_old = driver < OLDEST_EARLY_DRIVER;
    if (plain == cudaSuccess && cuda_backend.early_launch && !too_old)
        early = try_counts(count, cuda_backend.graphs, true);
    if (cuda_backend.early_launch && (too_old || early != cudaSuccess)) {
        cuda_backend.early_launch = false;
        const char *reason = too_old ? "older than CUDA 12.3" : cudaGetErrorName(early);
        say_refused(
            "early launches", reason,
            "a kernel is set up when the one before it has ended, as with PRETRAIN_EARLY_LAUNCH=0");
    }

    device_free(count);
    device_memory_peak_restore(peak);
    if (plain != cudaSuccess)
        return error_set(err, "a kernel does not run on this GPU: %s (%s)",
                         cudaGetErrorString(plain), cudaGetErrorName(plain));
    return true;
}
