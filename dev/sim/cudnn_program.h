// A graph of the simulated cuDNN and its interpretation: each operation as it is defined, one after
// the other, in fp32 with the roundings that the types of the tensors between them ask for.
// Internal to dev/sim.
#pragma once
#include <cudnn.h>
#include <memory>
#include <stdint.h>
#include <vector>

namespace sim {
namespace dnn {
struct Tensor4 {
    int64_t id, alignment, dims[4], strides[4];
    cudnnDataType_t type;
    bool is_virtual, by_value;

    // a dimension of size 1 is repeated
    int64_t offset(int64_t a, int64_t b, int64_t c, int64_t d) const {
        return (dims[0] > 1 ? a * strides[0] : 0) + (dims[1] > 1 ? b * strides[1] : 0) +
               (dims[2] > 1 ? c * strides[2] : 0) + (dims[3] > 1 ? d * strides[3] : 0);
    }
    int64_t extent() const { // elements from the first to behind the last
        return offset(dims[0] - 1, dims[1] - 1, dims[2] - 1, dims[3] - 1) + 1;
    }
    size_t element() const {
        return type == CUDNN_DATA_HALF || type == CUDNN_DATA_BFLOAT16 ? 2 : 4;
    }
};

enum Kind { POINTWISE, MATMUL, REDUCTION, RESHAPE };
enum { NO_TENSOR = -1 };

struct Step {
    Kind kind;
    int mode; // of a pointwise operation or a reduction
    int64_t axis;
    int x, b, t, y; // tensors, by their place in the program
};

struct Program {
    std::vector<Tensor4> tensors;
    std::vector<Step> steps;
    int64_t workspace = 256;

    // The form of attention: where a matmul writes dQ the scores are stored, else dQ is collected.
    const char *form() const {
        return steps.size() == 14 ? "forward" : steps.back().kind == MATMUL ? "stored" : "ordered";
    }
};

// One launch works on these. A tensor is in memory that the caller gave, in an array of its own, or
// a constant.
struct Launch {
    std::shared_ptr<const Program> program;
    std::vector<char *> memory;
    std::vector<float> constants;
    char *workspace;
    size_t workspace_bytes;
    bool slow;         // by the clock of sim_set_clock
    bool unrepeatable; // one bit of the last output is wrong, in every run another one
};

void run(const Launch &launch);
} // namespace dnn
} // namespace sim
