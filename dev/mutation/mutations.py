"""The mistakes that mutate.py plants, and the test program that is to catch each of them.

Ptx: `pattern` becomes `replacement` (as in re.sub) in the PTX of the kernel whose name contains `kernel`, at match number
`at` or at ALL of them. Source: `old`, which occurs once in the file, becomes `new`, and the module is compiled again. Host:
the same in a C file, or in the simulator, where a rule of the device is left out; `fault` is then the planted fault of
test/sim/faults.cu that nobody refuses any more.
Patterns name no registers, since every release of nvcc numbers them differently.
"""
from dataclasses import dataclass

ALL = -1


@dataclass(frozen=True)
class Mutation:
    name: str
    what: str
    module: str = ""          # llmc/cuda/MODULE.cu
    test: str = ""            # below test/
    mode: str = "release"     # MODE of the Makefile: release, tsan, msan
    env: str = ""             # settings of the simulator and of the test
    arch: int = 90            # the GPU it is compiled for
    refused_by: str = ""      # the tool that does not build it; everything else has to be legal
    unseen: str = ""          # why no test can catch it


@dataclass(frozen=True)
class Ptx(Mutation):
    kernel: str = ""
    pattern: str = ""
    replacement: str = ""
    at: int = 0


@dataclass(frozen=True)
class Source(Mutation):
    file: str = ""            # below llmc/cuda/
    old: str = ""
    new: str = ""
    gencode: str = ""         # instead of the GPU's own


@dataclass(frozen=True)
class Host(Mutation):
    file: str = ""            # from the root
    unit: str = ""            # what is compiled, where the file is a header
    old: str = ""
    new: str = ""
    fault: str = ""           # of test/sim/faults.cu


# Kernels, as the compiler writes their names.
FORWARD = "flash_forward_kernelI6Ampere13__nv_bfloat16Li64E"
FORWARD_128 = "flash_forward_kernelI6Ampere13__nv_bfloat16Li128E"
QUERIES = "flash_backward_queries_kernelI6Ampere13__nv_bfloat16Li64E"
KEYS = "flash_backward_keys_kernelI6Ampere13__nv_bfloat16Li64E"
DECODE = "attention_decode_kernelI13__nv_bfloat16Li8ELi8E"
LARGEST = "largest_kernelI13__nv_bfloat16E"
QUANTIZE = "quantize_kernelI13__nv_bfloat164E4M3Lb1E"

# Operands of mma: D, A, B, and C as the rest of the line. Of shfl: the result, then value, lane, clamp, mask.
R, F = r"(%r\d+)", r"(%f\d+)"
MMA = (r"(mma\.sync\S+) \{" + ",".join([F] * 4) + r"\}, \{" + ",".join([R] * 4) + r"\}, \{" + ",".join([R] * 2) + r"\}")
SHFL = r"(shfl\.sync\.\S+\s+%r\d+\|%p\d+, %r\d+, %r\d+), (%r\d+), (%r\d+);"

FLASH = dict(module="flash_forward", test="ops/test_attention")
BACK = dict(module="flash_backward", test="ops/test_attention")
FP8 = dict(module="fp8_quantize", test="ops/test_fp8")
DECODING = dict(module="decode_attention", test="ops/test_decode")
TSAN = dict(mode="tsan")
FAULTS = dict(test="sim/faults")
KERNELS = dict(**FAULTS, file="dev/sim/kernels.cpp")
MEMORY = dict(file="dev/sim/memory.cpp")
IN_FAULTS = dict(**FAULTS, unit="build/nvcc-90/test/sim/faults.cpp")
GEMM = dict(test="sim/test_gemm_plan", file="llmc/cuda/gemm_plan.c")
ATTENTION = dict(test="sim/test_attention_choice", file="llmc/cuda/attention.c")
STEP = dict(**TSAN, test="sim/test_step", file="llmc/model/gpt2.c",
            env="OMP_NUM_THREADS=1 TEST_FILTER=a_step_makes_no_synchronising_call")
OFFLOAD = dict(**TSAN, test="ops/test_offload", file="llmc/train/offload.c")

MUTATIONS = [
    # ------------------------------------------------------------------------------------ fragments of matrix products
    Ptx("mma_a_swapped", "two A registers of one mma swapped", **FLASH, kernel=FORWARD,
        pattern=MMA, replacement=r"\1 {\2,\3,\4,\5}, {\6,\8,\7,\9}, {\10,\11}"),
    Ptx("mma_b_swapped", "the B registers of one mma swapped", **BACK, kernel=KEYS,
        pattern=MMA, replacement=r"\1 {\2,\3,\4,\5}, {\6,\7,\8,\9}, {\11,\10}", at=40),
    Ptx("mma_d_swapped", "two elements of the result of one mma swapped", **BACK, kernel=QUERIES,
        pattern=MMA, replacement=r"\1 {\2,\4,\3,\5}, {\6,\7,\8,\9}, {\10,\11}", at=20),
    Ptx("mma_f16", "one mma takes bf16 factors for f16", **BACK, kernel=QUERIES,
        pattern=r"(mma\.sync\S+\.f32)\.bf16\.bf16\.f32", replacement=r"\1.f16.f16.f32", at=5),
    Ptx("ldmatrix_trans_dropped", "one ldmatrix.trans without .trans", **FLASH, kernel=FORWARD,
        pattern=r"\.x4\.trans\.shared", replacement=".x4.shared", at=3),
    Ptx("ldmatrix_trans_added", "one ldmatrix with .trans", **BACK, kernel=KEYS,
        pattern=r"\.x4\.shared", replacement=".x4.trans.shared", at=9),
    Source("ldmatrix_lanes_b", "lanes give the rows of B in the order of A", **FLASH, file="flash_tile.cuh",
           old="at((lane & 7) + (lane >> 4 << 3), lane >> 3 & 1)", new="at(lane & 15, lane >> 4)"),
    Source("ldmatrix_lanes_a", "lanes 16 to 31 give the chunk of lanes 0 to 15", **BACK, file="flash_tile.cuh",
           old="TilePlace<HEAD>::at(first + (lane & 15), lane >> 4)",
           new="TilePlace<HEAD>::at(first + (lane & 15), lane >> 5)"),
    # ----------------------------------------------------------------------------------------- asynchronous copies
    Ptx("copy_wait_early", "cp.async.wait_group 1 for 0: the newest tile is read before it is there", **FLASH,
        kernel=FORWARD, pattern=r"cp\.async\.wait_group 0;", replacement="cp.async.wait_group 1;", at=1),
    Ptx("copy_no_commit", "a cp.async.commit_group is missing", **BACK, kernel=KEYS,
        pattern=r"cp\.async\.commit_group;", replacement="", at=2),
    Source("copy_before_barrier", "the next tile is fetched before everybody is through with the last one", **FLASH,
           env="SIM_SCHED=rev", file="flash_forward.cu",
           old="            keys.end(i);\n            if (i + 1 < tiles) keys.begin(i + 1);\n",
           new="            if (i + 1 < tiles) keys.begin(i + 1);\n            keys.end(i);\n"),
    Source("copy_before_barrier_race", "the same, seen by ThreadSanitizer", **FLASH, **TSAN, file="flash_forward.cu",
           old="            keys.end(i);\n            if (i + 1 < tiles) keys.begin(i + 1);\n",
           new="            if (i + 1 < tiles) keys.begin(i + 1);\n            keys.end(i);\n"),
    Source("copy_wrong_stage", "tiles arrive in one stage and are read from two", **BACK, file="flash_tile.cuh",
           old="copy_a.fetch(a(i), rows_left, columns_left)", new="copy_a.fetch(a(0), rows_left, columns_left)"),
    Ptx("copy_valid_inverted", "cp.async reads where it should write zeros, and the other way round", **FLASH,
        kernel=FORWARD, pattern=r"(selp\.b32\s+%r\d+), 0, 16,", replacement=r"\1, 16, 0,"),
    # --------------------------------------------------------------------------------------------------- launches
    Source("attribute_missing", "nobody asks for more than 48 KB of shared memory", **FLASH, file="kernel.cuh",
           old="        if (shared_bytes > 0) allow_shared_memory();\n", new=""),
    Source("attribute_static", "the limit of 48 KB without the static shared memory, as it once was", **BACK,
           file="kernel.cuh", old="if (facts.sharedSizeBytes + shared_bytes <= 48 * 1024) return;",
           new="if (shared_bytes <= 48 * 1024) return;"),
    Source("parameters_swapped", "lse and delta change places in a launch", **BACK, file="flash_backward.cu",
           old="(const float *)lse.data, (const float *)delta,", new="(const float *)delta, (const float *)lse.data,"),
    Ptx("parameter_offset", "the kernel reads the scale where the scale times log2(e) is", **FLASH, kernel=FORWARD,
        pattern=r"(ld\.param\.f32\s+%f\d+, \[\w+_param_3)\+24\]", replacement=r"\1+20]"),
    Ptx("parameter_number", "the kernel takes its first parameter for its second", **FP8, kernel=QUANTIZE,
        pattern=r"(ld\.param\.u64\s+%rd\d+, \[\w+)_param_1\]", replacement=r"\1_param_0]"),
    Source("launch_bounds", "__launch_bounds__ of half a block", **FLASH, file="flash_forward.cu",
           old="__launch_bounds__(FLASH_THREADS, 2)", new="__launch_bounds__(FLASH_THREADS / 2, 2)"),
    Ptx("kernel_missing", "the code for sm_90 lacks a kernel", **FLASH, kernel=FORWARD,
        pattern=r"(?s)\A.*\Z", replacement=""),
    Source("gpu_missing", "the program holds machine code of sm_80 alone", **FLASH, arch=80, file="flash_forward.cu",
           old="", new="", gencode="-gencode arch=compute_80,code=sm_80", env="SIM_CC=90"),
    Source("guard_ampere", "HAS_AMPERE from sm_90 on", **FLASH, arch=80, env="SIM_CC=80", file="intrinsics.cuh",
           old="(__CUDA_ARCH__ >= 800)", new="(__CUDA_ARCH__ >= 900)"),
    Source("guard_fp8", "HAS_FP8 from sm_80 on", **FP8, arch=80, env="SIM_CC=80", refused_by="nvcc",
           file="intrinsics.cuh",
           old="(__CUDA_ARCH__ >= 890)", new="(__CUDA_ARCH__ >= 800)"),
    # ----------------------------------------------------------------------------------------- barriers and fences
    Ptx("barrier_tile", "no bar.sync between the copy of a tile and its use", **FLASH, **TSAN, kernel=FORWARD,
        pattern=r"bar\.sync\s+0;", replacement="", at=1),
    Ptx("barrier_scores", "no bar.sync between scores and softmax", **DECODING, kernel=DECODE,
        pattern=r"bar\.sync\s+0;", replacement=""),
    Ptx("barrier_codes", "no bar.sync between the codes of a tile and their transpose", **FP8, kernel=QUANTIZE,
        pattern=r"bar\.sync\s+0;", replacement="", at=1),
    Source("barrier_reduce", "block_reduce without the barrier at its end", module="layernorm",
           test="ops/test_layernorm", **TSAN, file="kernel.cuh",
           old="    __syncthreads();\n    return v;\n}\nstatic __device__ inline float block_sum",
           new="    return v;\n}\nstatic __device__ inline float block_sum"),
    Source("barrier_divergent", "three of four warps reach a __syncthreads", **DECODING, file="decode_attention.cu",
           old="-INFINITY;\n    }\n    __syncthreads();\n",
           new="-INFINITY;\n    }\n    if (threadIdx.x < 96) __syncthreads();\n"),
    Ptx("warp_barrier_row", "no bar.warp.sync between a row's stores and the loads of other lanes", **FLASH, **TSAN,
        kernel=FORWARD, pattern=r"bar\.warp\.sync\s+-1;", replacement="", at=1),
    Ptx("warp_barrier_tile", "no bar.warp.sync between ldmatrix of Q and what overwrites Q", **FLASH, **TSAN,
        kernel=FORWARD_128, pattern=r"bar\.warp\.sync\s+-1;", replacement=""),
    Ptx("fence_parts", "no membar.gl between the parts of a block and its ticket", **DECODING, **TSAN, kernel=DECODE,
        pattern=r"membar\.gl;", replacement=""),
    Ptx("fence_atomics", "no membar.gl between two atomic operations", **FP8, **TSAN, kernel=LARGEST,
        pattern=r"membar\.gl;", replacement="",
        unseen="the simulator keeps atomic operations in order, and for ThreadSanitizer they are no race"),
    Ptx("ticket_inc", "a ticket that is not set back: atom.add 1 for atom.inc", **DECODING, kernel=DECODE,
        pattern=r"atom\.global\.inc\.u32(\s+%r\d+, \[%rd\d+\]), %r\d+;", replacement=r"atom.global.add.u32\1, 1;"),
    # ---------------------------------------------------------------------------------------------------- shuffles
    Ptx("shuffle_clamp", "a shuffle that stays in half a warp: c = 0x101f for 0x1f", **FP8, kernel=LARGEST,
        pattern=SHFL, replacement=r"\1, 4127, \3;"),
    Ptx("shuffle_mask", "a shuffle of all lanes with the mask of 16", **DECODING, kernel=DECODE,
        pattern=SHFL, replacement=r"\1, \2, 65535;"),
    Source("warp_sum_short", "warp_sum without its first offset", module="layernorm", test="ops/test_layernorm",
           file="kernel.cuh",
           old="for (int offset = WARP / 2; offset > 0; offset /= 2) v += __shfl_xor_sync(ALL_LANES, v, offset);",
           new="for (int offset = WARP / 4; offset > 0; offset /= 2) v += __shfl_xor_sync(ALL_LANES, v, offset);"),
    # -------------------------------------------------------------------------------------------------- arithmetic
    Ptx("exp_base", "ex2.approx of x for exp: without log2(e)", module="gelu", test="ops/test_small",
        kernel="gelu_forward_kernelI13__nv_bfloat16E", pattern="0f3FB8AA3B", replacement="0f3F800000", at=3),
    Ptx("cvt_swapped", "cvt.rn.bf16x2 with its halves swapped", **FLASH, kernel=FORWARD,
        pattern=r"(cvt\.rn\.bf16x2\.f32 %r\d+), (%f\d+), (%f\d+);", replacement=r"\1, \3, \2;", at=2),
    Ptx("cvt_truncates", "one cast in five truncates", module="elementwise", test="ops/test_small",
        kernel="cast_kernelI13__nv_bfloat16fE", pattern=r"cvt\.rn\.bf16\.f32 (%rs\d+), (%f\d+);",
        replacement=r".reg .b16 low; mov.b32 {low, \1}, \2;", at=1),
    Ptx("cvt_truncates_all", "P and the output of attention are truncated, not rounded", **FLASH, kernel=FORWARD,
        pattern=r"cvt\.rn\.bf16x2\.f32 (%r\d+), (%f\d+), (%f\d+);", at=ALL,
        replacement=r".reg .b32 a, b; mov.b32 a, \2; mov.b32 b, \3; prmt.b32 \1, b, a, 0x7632;"),
    Ptx("cvt_unknown", "cvt with .rz, which the translator does not know", **FLASH, kernel=FORWARD,
        refused_by="translate.py", pattern=r"cvt\.rn\.bf16x2\.f32", replacement="cvt.rz.bf16x2.f32"),
    Ptx("cvt_fp8_format", "cvt to e5m2 for e4m3", **FP8, kernel=QUANTIZE,
        pattern=r"satfinite\.e4m3x2", replacement="satfinite.e5m2x2", at=7),
    Ptx("cvt_fp8_swapped", "cvt to two codes with its operands swapped", **FP8, kernel=QUANTIZE,
        pattern=r"(cvt\.rn\.satfinite\.e4m3x2\.f32 %rs\d+), (%f\d+), (%f\d+);", replacement=r"\1, \3, \2;", at=30),
    Ptx("prmt_selector", "another selector in the transpose", **FP8, kernel=QUANTIZE,
        pattern=r"(prmt\.b32\s+%r\d+, %r\d+, %r\d+), %r\d+;", replacement=r"\1, 0x5401;", at=20),
    Ptx("prmt_operands", "the operands of prmt swapped", **FP8, kernel=QUANTIZE,
        pattern=r"(prmt\.b32\s+%r\d+), (%r\d+), (%r\d+),", replacement=r"\1, \3, \2,", at=4),
    Ptx("mask_diagonal", "setp.ge for setp.gt: a query does not see its own key", **FLASH, kernel=FORWARD,
        pattern=r"setp\.gt\.s32(\s+%p\d+, %r\d+, %r\d+;)", replacement=r"setp.ge.s32\1"),
    # ------------------------------------------------------------------------------------------------------ memory
    Ptx("bound_of_rows", "setp.gt for setp.ge: one row too many", module="embedding", test="ops/test_embedding",
        kernel="embedding_forward_kernelI13__nv_bfloat16Li8E", pattern=r"setp\.ge\.u32", replacement="setp.gt.u32"),
    Ptx("shared_halved", "half of the shared memory that a tile needs", **FP8, kernel=QUANTIZE,
        pattern=r"(\.shared \.align 16 \.b8 \w+6shared)\[8192\]", replacement=r"\1[4096]"),
    Ptx("vector_misaligned", "16 bytes from an address that is a multiple of 8", **DECODING, kernel=DECODE,
        pattern=r"(ld\.global\.v4\.u32\s+\{[^}]*\}, \[%rd\d+)\]", replacement=r"\1+8]"),
    Ptx("store_lost", "one of the stores that fill a tile of shared memory is missing", **FP8, kernel=QUANTIZE,
        pattern=r"st\.shared\.v2\.u32[^;]*;", replacement="", at=6),
    Source("counts_not_cleared", "a sort counts in shared memory that nobody cleared", module="token_sort",
           test="ops/test_embedding", mode="msan", file="token_sort.cu",
           old="    for (int w = 0; w < SORT_WARPS; w++) next[w][threadIdx.x] = 0;\n", new=""),
    # ------------------------------------------------------------------------------------------- rules of the device
    Host("rule_static_shared", "static shared memory does not count in the 48 KB", **KERNELS, fault="shared_without_asking",
         old="(int)WITHOUT_ASKING - (int)k->static_shared", new="(int)WITHOUT_ASKING"),
    Host("rule_opt_in", "a launch may take more than its kernel was allowed", **KERNELS, fault="shared_asked_too_little",
         old="if ((int64_t)shared > max_dynamic(k)) {", new="if ((int)shared > device_model().shared_per_block) {"),
    Host("rule_opt_in_limit", "a kernel may be allowed more than a block has", **KERNELS, fault="too_much_shared",
         old="value + (int)stub->kernel->static_shared >", new="value >"),
    Host("rule_launch_bounds", "__launch_bounds__ bounds nothing", **KERNELS, fault="launch_bounds",
         old="if (threads > k->max_threads) {", new="if (threads > MAX_THREADS) {"),
    Host("rule_threads", "a block of any size", **KERNELS, fault="too_many_threads",
         old="threads == 0 || threads > MAX_THREADS ||", new="threads == 0 ||"),
    Host("rule_refusal_seen", "the next launch forgets a refused one", **KERNELS, fault="unseen_refusal",
         old='    expect_refusal_seen("the next launch");\n', new=""),
    Host("rule_no_code", "code for a newer GPU runs", **KERNELS, fault="no_code_for_gpu", env="SIM_CC=80",
         old="if (a <= gpu && a > best", new="if (a > best"),
    Host("rule_first_use", "the first launch of a kernel may be under capture", **KERNELS, fault="first_use_in_capture",
         old="    if (cudaError_t error = capture_forbids(call)) return error;\n    stub->loaded", new="    stub->loaded"),
    Host("rule_synchronous_copy", "cudaMemcpy waits for all streams", **MEMORY, **FAULTS, fault="copy_beside_stream",
         env="SIM_STREAMS=lazy", old="if (cudaError_t error = cudaStreamSynchronize(nullptr)) return error;",
         new="if (cudaError_t error = cudaDeviceSynchronize()) return error;"),
    Host("rule_gap", "tensors of one allocation may be overrun", **MEMORY, **FAULTS, fault="forbidden_gap",
         old="    *begin = (uint64_t)(uintptr_t)low;\n    *bytes = (uint64_t)(high - low);\n",
         new="    *begin = (uint64_t)(uintptr_t)a->begin + 0 * (low != high);\n    *bytes = a->bytes;\n"),
    Host("rule_pointer", "a pointer in a struct may lead to the host", **MEMORY, **FAULTS, fault="pointer_in_struct",
         old="    if (!a) return false;\n", new="    if (!a) return *begin = 0, *bytes = ~0ull, true;\n"),
    Host("rule_piece", "allocations are not rounded to 512 bytes", **MEMORY, test="sim/test_sim_runtime",
         old="return (bytes + 511) / 512 * 512;", new="return bytes;"),
    Host("rule_context", "the context takes no memory", **MEMORY, test="sim/test_sim_runtime",
         old="device_model().memory_bytes - device_model().context_bytes -", new="device_model().memory_bytes -"),
    Host("rule_collective", "shuffles and mma order memory between lanes", **FAULTS, **TSAN, fault="shuffle_as_barrier",
         file="dev/sim/block.cpp", old="    char *sync = &b->sync->meeting[w][key][m->round & 1];\n",
         new="    char *sync = &b->sync->meeting[w][key][m->round & 1];\n    orders_memory = true;\n"),
    Host("rule_copy_groups", "cp.async.wait_group n waits for everything", **IN_FAULTS, fault="copy_groups",
         file="dev/sim/ptx.h", old="count && (pending_groups < 0 ||", new="count && (true || pending_groups < 0 ||"),
    Host("choice_untried", "an algorithm that does not run is a candidate", **GEMM,
         old="        if (!run_candidate(t, i)) drop(t, i);\n", new="        (void)drop;\n"),
    Host("choice_wrong", "algorithms are not compared", **GEMM, old="if (differences[i] <= limit) continue;",
         new="if (differences[i] <= limit || limit > 0.0) continue;"),
    Host("choice_epilogue", "epilogues are not compared with a plain product", **GEMM,
         old="const bool right = worst <= UNFUSED_FACTOR * tolerance(&p->key);",
         new="const bool right = worst <= 1e30 * UNFUSED_FACTOR * tolerance(&p->key);"),
    Host("choice_cudnn", "cuDNN is not compared with the own kernels", **ATTENTION,
         old="(worst <= TOLERANCE ||", new="(worst <= 1e30 * TOLERANCE ||"),
    Host("tf32_turing", "the speed of fp32 is measured in TF32 on Turing", test="sim/test_fp8_matmul",
         file="llmc/cuda/device_speed.c", old=" && cuda_backend.compute_capability >= 80;", new=";"),
    # -------------------------------------------------------------------------------- waits between streams, seen by TSan
    Host("wait_uploaded", "the host overwrites a batch that may not be copied yet", **STEP,
         old="    if (model->copy_in_flight) device_event_wait(model->copied);\n", new=""),
    Host("wait_unpacked", "a batch is copied over one that may not be unpacked yet", **STEP,
         old="    device_stream_wait(STREAM_COPY, model->unpacked);\n", new=""),
    Host("wait_copied", "a batch is unpacked before it is copied", **STEP,
         old="    device_stream_wait(STREAM_COMPUTE, model->copied);\n", new=""),
    Host("wait_back", "states come in over those that may not be back on the host", **OFFLOAD,
         old="    device_stream_wait(STREAM_COPY, part->back);\n", new=""),
    Host("wait_in", "states are updated before they have come in", **OFFLOAD,
         old="    device_stream_wait(STREAM_COMPUTE, o->parts[c % OFFLOAD_PARTS].in);\n", new=""),
    Host("wait_updated", "states go back before they are updated", **OFFLOAD,
         old="    device_stream_wait(STREAM_COPY_BACK, part->updated);\n", new=""),
    Host("rule_streams", "the kernels of all streams share threads", **FAULTS, **TSAN, fault="kernels_of_two_streams",
         file="dev/sim/block.cpp", old="        if (threads.stream == stream) b->tsan", new="        b->tsan"),
]
