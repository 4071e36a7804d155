// Sorts the positions of a batch by the token that stands there, on the device, in one launch: the order in which the
// gradient of the token embedding is summed. Stable, and the same from run to run.
#pragma once
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

// tokens (N) i32 in [0, Vp). order (N) i32: all positions; equal tokens stand together, in order of position. Which
// token comes first is not specified.
void token_sort(int32_t *order, const int32_t *tokens, int64_t N, int64_t Vp);

#ifdef __cplusplus
}
#endif
