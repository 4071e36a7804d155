// Each of the ways in which cross_entropy.cu keeps a row of logits on the chip, for GPUs with
// little shared memory and with much, against softmax in fp64.
#include "llmc/cuda/backend.h"
#include "test/ops/op_test.h"
#include <math.h>

TestFixture test_all = {op_group_setup, op_group_teardown};

enum { ROWS = 3 };
static const float SCALE = 0.25f, LOSS_SCALE = 8.0f;

// One pack a thread; four; 13; in 16 bits the longest row of 13 packs; longer; rows that are no
// multiple of 16 bytes; rows without padding that leave threads of the last warp idle.
static const struct Case {
    int64_t V, Vp;
} cases[] = {{7, 128},       {4090, 4096}, {9000, 9088}, {20000, 20096}, {50257, 50304},
             {60000, 60032}, {61, 61},     {200, 200},   {9000, 9000}};
enum { NUM_CASES = sizeof cases / sizeof *cases };

// The loss of row r of logits; its gradient over them.
static double row_reference(double *logits, int32_t target, int64_t V, int64_t Vp) {
    double highest = -INFINITY, sum = 0.0;
    for (int64_t v = 0; v < V; v++) highest = fmax(highest, logits[v]);
    for (int64_t v = 0; v < V; v++) sum += exp(logits[v] - highest);
    const double lse = highest + log(sum), loss = lse - logits[target];
    for (int64_t v = 0; v < Vp; v++) {
        const double probability = v < V ? exp(logits[v] - lse) : 0.0;
        logits[v] = (double)(SCALE * LOSS_SCALE) * (probability - (v == target ? 1.0 : 0.0));
    }
    return loss;
}

static void case_matches(const struct Case *c, DType dtype, int shared_per_block) {
    op_begin(
        (OpsShape){
            .B = 1, .T = ROWS, .C = 8, .NH = 1, .Vp = c->Vp, .num_tensors = 1, .dtype = dtype},
        "V=%d Vp=%d, %d bytes of shared memory", (int)c->V, (int)c->Vp, shared_per_block);
    OpTensor logits = op_inout(dtype, "logits", DIMS(ROWS, c->Vp), 3.0);
    OpTensor targets = op_tokens("targets", DIMS(ROWS), c->V);
    OpTensor forward = op_output(DTYPE_FP32, "losses", DIMS(ROWS));
    OpTensor backward = op_output(DTYPE_FP32, "losses of backward", DIMS(ROWS));

    // The padding is larger than anything else, and must not count: as a maximum it would leave no
    // exponential above 0.
    for (int64_t r = 0; r < ROWS; r++)
        for (int64_t v = c->V; v < c->Vp; v++) logits.v[r * c->Vp + v] = 1000.0;
    targets.tokens[0] = 0, targets.tokens[ROWS - 1] = (int32_t)c->V - 1;
    op_upload(&logits), op_upload(&targets);

    const int32_t *device_targets = targets.t.data;
    cross_entropy(forward.t.data, logits.t, device_targets, c->V, false, 1.0f, tensor_none());
    cross_entropy(backward.t.data, logits.t, device_targets, c->V, true, SCALE,
                  op_control(step_control_initial(LOSS_SCALE)));

    for (int64_t r = 0; r < ROWS; r++)
        forward.v[r] = row_reference(logits.v + r * c->Vp, targets.tokens[r], c->V, c->Vp);
    op_check_same_bits(forward, backward);
    op_check_logarithms(forward, DTYPE_FP32, 1.0);
    op_check(logits, dtype);

    const double *gradient = op_download(logits);
    for (int64_t r = 0; r < ROWS; r++)
        for (int64_t v = c->V; v < c->Vp; v++) assert_true(gradient[r * c->Vp + v] == 0.0);
    op_end();
}

OP_TEST(cross_entropy_matches) {
    const int available = cuda_backend.shared_per_block;
    for (int i = 0; i < NUM_CASES; i++) {
        case_matches(&cases[i], dtype, available);
        cuda_backend.shared_per_block = 48 * 1024;
        case_matches(&cases[i], dtype, cuda_backend.shared_per_block);
        cuda_backend.shared_per_block = available;
        op_begin_tensors_at(8);
        case_matches(&cases[i], dtype, available);
    }
}
