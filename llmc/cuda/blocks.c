// The ops of blocks after GPT-2, which run on the CPU only so far: each stops the program. A model
// with such blocks is refused before it comes here.
#include "llmc/base/error.h"
#include "llmc/cuda/backend.h"

#define NOT_YET(op, ...)                                                                                               \
    void backend_##op(__VA_ARGS__) { REQUIRE(false, #op ": not on a GPU yet"); }

#define UNUSED __attribute__((unused))
NOT_YET(rmsnorm_forward, UNUSED Tensor out, UNUSED Tensor rstd, UNUSED Tensor in, UNUSED Tensor weight,
        UNUSED float eps)
NOT_YET(rmsnorm_backward, UNUSED Tensor din, UNUSED Tensor dweight, UNUSED Tensor din_sum, UNUSED Tensor dout,
        UNUSED Tensor in, UNUSED Tensor rstd, UNUSED Tensor weight, UNUSED bool add_residual, UNUSED bool accumulate,
        UNUSED bool accumulate_sum)
NOT_YET(swiglu_forward, UNUSED Tensor out, UNUSED Tensor gate_up)
NOT_YET(swiglu_backward, UNUSED Tensor dgate_up, UNUSED Tensor dbias, UNUSED Tensor dout, UNUSED Tensor gate_up,
        UNUSED bool accumulate)
NOT_YET(relu2_forward, UNUSED Tensor out, UNUSED Tensor pre)
NOT_YET(relu2_backward, UNUSED Tensor dpre, UNUSED Tensor dbias, UNUSED Tensor dout, UNUSED Tensor pre,
        UNUSED bool accumulate)
NOT_YET(rope_table, UNUSED Tensor table, UNUSED float base)
NOT_YET(qk_norm_rope_forward, UNUSED Tensor out, UNUSED Tensor rstd, UNUSED Tensor qkv, UNUSED Tensor q_weight,
        UNUSED Tensor k_weight, UNUSED Tensor table, UNUSED int num_heads, UNUSED int num_kv_heads, UNUSED float eps,
        UNUSED int64_t first, UNUSED Tensor position)
NOT_YET(qk_norm_rope_backward, UNUSED Tensor dqkv, UNUSED Tensor dq_weight, UNUSED Tensor dk_weight, UNUSED Tensor qkv,
        UNUSED Tensor rstd, UNUSED Tensor q_weight, UNUSED Tensor k_weight, UNUSED Tensor table, UNUSED int num_heads,
        UNUSED int num_kv_heads, UNUSED bool accumulate)
