// In op tests on the simulator: an op may touch what it asked of the workspace, and nothing of what
// lies behind that, though the workspace of a case holds what the greediest of all ops needs. Takes
// the place of cuda_scratch (the linker's --wrap).
#include "dev/sim/sim_control.h"
#include "llmc/cuda/backend.h"

void *__real_cuda_scratch(const char *op, int64_t bytes);
void *__wrap_cuda_scratch(const char *op, int64_t bytes);

void *__wrap_cuda_scratch(const char *op, int64_t bytes) {
    void *scratch = __real_cuda_scratch(op, bytes);
    char *workspace = cuda_backend.workspace;
    const int64_t all = cuda_backend.workspace_bytes;
    if (cuda_backend.capturing || !workspace) return scratch;
    sim_allow(workspace, (uint64_t)all);
    if (bytes < all) sim_forbid(workspace + bytes, (uint64_t)(all - bytes));
    return scratch;
}
