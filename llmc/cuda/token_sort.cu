// token_sort.h: a counting sort in which no block needs the result of another, and so one launch is enough.
//
// Token t belongs to block t mod BLOCKS: frequent tokens have small numbers, neighbours in number go to different
// blocks. Every block reads all tokens, twice, and writes the positions of its own tokens only; the tokens of the
// blocks before it, which it counts on the way, tell it where. Reads are many but cheap: 67 MB from the L2 cache for
// 65,536 positions, in one launch, against six launches on 2 MB for a radix sort of 16-bit keys.
#include "llmc/cuda/token_sort.h"

#include "llmc/cuda/kernel.cuh"

// 16 warps: each counts for itself in shared memory, up to 512 tokens a block, 32 KB.
enum { SORT_THREADS = 512, SORT_WARPS = SORT_THREADS / WARP, MAX_OWN = SORT_THREADS };
// About one block a multiprocessor, fewer for few positions, more only where a block would own more than MAX_OWN
// tokens.
enum { ENOUGH_BLOCKS = 128, POSITIONS_OF_A_BLOCK = 512 };

// Tokens whose loads a lane issues before it looks at the first: few warps run here, and the L2 cache is far.
enum { AHEAD = 8 };

// token[j] of position p + 32 j, -1 from `end` on.
static __device__ __forceinline__ void load_ahead(int (&token)[AHEAD], const int32_t *tokens, int p, int end) {
    for (int j = 0; j < AHEAD; j++) token[j] = p + j * WARP < end ? tokens[p + j * WARP] : -1;
}

// Exclusive sum over the threads of the block.
static __device__ int block_exclusive_sum(int v) {
    __shared__ int total[SORT_WARPS];
    const int lane = (int)threadIdx.x % WARP, warp = (int)threadIdx.x / WARP;
    int inclusive = v;
    for (int offset = 1; offset < WARP; offset *= 2) {
        const int below = __shfl_up_sync(ALL_LANES, inclusive, offset);
        if (lane >= offset) inclusive += below;
    }
    if (lane == WARP - 1) total[warp] = inclusive;
    __syncthreads();
    int before = 0;
    for (int w = 0; w < warp; w++) before += total[w];
    return before + inclusive - v;
}

// The warp reads the positions [begin, end) in order, 32 at a time. Launch: BLOCKS blocks (a power of two, 1 << shift)
// of SORT_THREADS. Position p is looked at by lane p % 32 of the warp that owns its section, in every block.
static __global__ void __launch_bounds__(SORT_THREADS)
    token_sort_kernel(int32_t *order, const int32_t *tokens, int N, int shift) {
    __shared__ int next[SORT_WARPS][MAX_OWN]; // occurrences of an own token in a section, then where its next one goes
    __shared__ int before_block[1];           // positions whose tokens belong to the blocks before this one
    const int lane = (int)threadIdx.x % WARP, warp = (int)threadIdx.x / WARP, own = (int)blockIdx.x;
    const int section = ((N + SORT_THREADS - 1) / SORT_THREADS) * WARP; // positions of a warp, a multiple of 32
    const int begin = min(N, warp * section), end = min(N, begin + section), mask = (1 << shift) - 1;

    for (int w = 0; w < SORT_WARPS; w++) next[w][threadIdx.x] = 0;
    if (threadIdx.x == 0) before_block[0] = 0;
    __syncthreads();

    int before = 0, token[AHEAD];
    for (int at = begin; at < end; at += AHEAD * WARP) {
        load_ahead(token, tokens, at + lane, end);
        for (int j = 0; j < AHEAD; j++) {
            if (token[j] < 0) continue;
            before += (token[j] & mask) < own;
            if ((token[j] & mask) == own) atomicAdd(&next[warp][token[j] >> shift], 1);
        }
    }
    atomicAdd(before_block, before);
    __syncthreads();

    // Thread i turns the counts of own token i into places: tokens in order, the sections of a token in order.
    int count = 0;
    for (int w = 0; w < SORT_WARPS; w++) count += next[w][threadIdx.x];
    int place = before_block[0] + block_exclusive_sum(count);
    for (int w = 0; w < SORT_WARPS; w++) {
        const int occurrences = next[w][threadIdx.x];
        next[w][threadIdx.x] = place;
        place += occurrences;
    }
    __syncthreads();

    for (int at = begin; at < end; at += AHEAD * WARP) { // all lanes stay: they meet in the votes
        load_ahead(token, tokens, at + lane, end);
        for (int j = 0; j < AHEAD; j++) {
            const bool mine = token[j] >= 0 && (token[j] & mask) == own;
            if (__ballot_sync(ALL_LANES, mine) == 0) continue;
            // Lanes with the same token: the lowest takes their places from the counter, each goes behind those below.
            const unsigned same = __match_any_sync(ALL_LANES, mine ? token[j] : -1);
            const int leader = __ffs((int)same) - 1;
            int first = 0;
            if (mine && lane == leader) first = atomicAdd(&next[warp][token[j] >> shift], __popc(same));
            first = __shfl_sync(ALL_LANES, first, leader);
            if (mine) order[first + __popc(same & ((1u << lane) - 1))] = at + j * WARP + lane;
        }
    }
}

void token_sort(int32_t *order, const int32_t *tokens, int64_t N, int64_t Vp) {
    REQUIRE(N < (int64_t)1 << 30, "token_sort: %lld positions", (long long)N);
    const int64_t useful = ceil_div(N, POSITIONS_OF_A_BLOCK);
    int shift = 0;
    while ((1 << shift < ENOUGH_BLOCKS && 1 << shift < useful) || ceil_div(Vp, 1 << shift) > MAX_OWN) shift++;
    LAUNCH(token_sort_kernel, 1 << shift, SORT_THREADS, 0, cuda_compute_stream())(order, tokens, (int)N, shift);
}
