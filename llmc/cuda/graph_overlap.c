// Work beside the ops that follow, on a second stream (PRETRAIN_OVERLAP). Nothing reads a weight gradient before the
// end of the backward pass, so its product can run on a second stream while memory-bound kernels run on the first.
// Events order the two: the second stream waits for everything launched before the product (the fork), and the compute
// stream waits for a product (the join) when an op touches what the product still reads or writes: a gradient's buffer,
// an activation's memory that the plan gives to another tensor, the weight gradient itself. Products of the second
// stream run in order, so a join with one is a join with all before it. Events become edges of a graph under capture.
// Outside graphs nothing runs there: what the rest of a step does with gradients (exchange, norm, update, copies) and
// an observer that times ops meet no such work. Nor does it run within an op that did not state its operands, such as
// the head.
#include "llmc/cuda/graph_overlap.h"

#include <string.h>

enum { MAX_OPERANDS = 8, MAX_BESIDE = 8 };

typedef struct {
    const char *begin, *end;
} ByteRange;
typedef struct {
    ByteRange written[MAX_OPERANDS], read[MAX_OPERANDS];
    int num_written, num_read;
} Touched;
typedef struct {
    Touched touched;
    cudaEvent_t done;
} OverlapWork;

static struct {
    cudaStream_t stream; // NULL: never asked for
    cudaEvent_t fork;
    bool op_is_known; // the running op stated its operands:
    Touched op;
    OverlapWork products[MAX_BESIDE];
    int first, count; // products[first % MAX_BESIDE] .. that the compute stream has not waited for
    bool joined;      // it has, since the last launch
} overlap;

void graph_overlap_prepare(int64_t workspace_bytes) {
    cuda_backend.overlap_bytes = workspace_bytes;
    if (workspace_bytes == 0 || overlap.stream) return;
    CUDA_CHECK(cudaStreamCreateWithFlags(&overlap.stream, cudaStreamNonBlocking));
    CUDA_CHECK(cudaEventCreateWithFlags(&overlap.fork, cudaEventDisableTiming));
    for (int i = 0; i < MAX_BESIDE; i++)
        CUDA_CHECK(cudaEventCreateWithFlags(&overlap.products[i].done, cudaEventDisableTiming));
}

void graph_overlap_close(void) {
    if (overlap.stream) {
        CUDA_CHECK(cudaEventDestroy(overlap.fork));
        for (int i = 0; i < MAX_BESIDE; i++) CUDA_CHECK(cudaEventDestroy(overlap.products[i].done));
        CUDA_CHECK(cudaStreamDestroy(overlap.stream));
    }
    memset(&overlap, 0, sizeof overlap);
}

// The compute stream waits for the first n products.
static void overlap_wait(int n) {
    if (n == 0) return;
    const OverlapWork *last = &overlap.products[(overlap.first + n - 1) % MAX_BESIDE];
    CUDA_CHECK(cudaStreamWaitEvent(cuda_backend.streams[STREAM_COMPUTE], last->done, 0));
    overlap.first = (overlap.first + n) % MAX_BESIDE;
    overlap.count -= n;
    overlap.joined = true;
}

void graph_overlap_join(void) { overlap_wait(overlap.count); }

static int note_bytes(ByteRange list[MAX_OPERANDS], const Tensor *tensors, int n) {
    REQUIRE(n <= MAX_OPERANDS, "an op of %d operands", n);
    for (int i = 0; i < n; i++) {
        const char *data = (const char *)tensors[i].data;
        list[i] = (ByteRange){data, data};
        if (data) list[i].end += tensor_bytes(tensors[i]);
    }
    return n;
}

static bool ranges_overlap(const ByteRange *a, int num_a, const ByteRange *b, int num_b) {
    for (int i = 0; i < num_a; i++)
        for (int k = 0; k < num_b; k++)
            if (a[i].begin < b[k].end && b[k].begin < a[i].end) return true;
    return false;
}

void backend_order(const OpOperands *operands) {
    if (cuda_backend.overlap_bytes == 0) return;
    overlap.op_is_known = operands != NULL;
    if (!operands) {
        graph_overlap_join();
        return;
    }
    Touched *op = &overlap.op;
    op->num_written = note_bytes(op->written, operands->written, operands->num_written);
    op->num_read = note_bytes(op->read, operands->read, operands->num_read);
    // Waits for the last product whose operands the op touches.
    for (int n = overlap.count; n > 0; n--) {
        const Touched *product = &overlap.products[(overlap.first + n - 1) % MAX_BESIDE].touched;
        if (ranges_overlap(op->written, op->num_written, product->read, product->num_read) ||
            ranges_overlap(op->written, op->num_written, product->written, product->num_written) ||
            ranges_overlap(op->read, op->num_read, product->written, product->num_written)) {
            overlap_wait(n);
            return;
        }
    }
}

void graph_overlap_begin(void) {
    if (cuda_backend.overlap_bytes == 0 || !cuda_backend.in_graph || !overlap.op_is_known) return;
    if (overlap.count == MAX_BESIDE) overlap_wait(1);
    CUDA_CHECK(cudaEventRecord(overlap.fork, cuda_backend.streams[STREAM_COMPUTE]));
    CUDA_CHECK(cudaStreamWaitEvent(overlap.stream, overlap.fork, 0));
    cuda_backend.beside = overlap.stream;
}

void graph_overlap_end(void) {
    if (!cuda_backend.beside) return;
    cuda_backend.beside = NULL;
    OverlapWork *p = &overlap.products[(overlap.first + overlap.count++) % MAX_BESIDE];
    p->touched = overlap.op;
    CUDA_CHECK(cudaEventRecord(p->done, overlap.stream));
}

// Programmatic serialisation speaks of one kernel before this one. Where a launch follows two, or follows another
// stream, it waits for them in the ordinary way.
bool cuda_launches_early(void) {
    const bool alone = !overlap.joined && !cuda_backend.beside;
    overlap.joined = false;
    return cuda_backend.early_launch && alone;
}
