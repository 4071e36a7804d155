// Choices by measurement: which of several ways to do the same work is fastest on this GPU, and whether they do the
// same work at all. Used at the first use of a shape only, never under capture: it waits for the GPU.
#pragma once
#include "llmc/tensor.h"
#include <stdbool.h>

#ifdef __cplusplus
extern "C" {
#endif

enum { TIMING_MAX_CHOICES = 16 };

// Runs work(context, i), which launches on the compute stream, for i in [0, count), round after round in turn, so that
// a clock that rises or a neighbour that comes meets all of them; and returns the i with the smallest median time. What
// is not at least 2 % faster does not take the place of a lower i: noise is no reason to choose. A work that returns
// false cannot be done here and is left out; -1 when none can.
// ms (count; may be NULL): the median times, negative for what cannot be done.
int cuda_fastest(int count, bool (*work)(void *context, int i), void *context, float *ms);

// For the log (device_choices): what was chosen, its ways, their times (NULL: none was measured) and the one taken.
// Names are plain ASCII without quotes.
void cuda_note_choice(const char *what, int count, const char *const *ways, const float *ms, int taken);
void cuda_forget_choices(void); // the device goes

// Fills t with NaN, as bytes 0xFF: what is not written after it shows in cuda_difference.
void cuda_poison(Tensor t);

// ||t - expected|| / ||expected|| over the finite elements; t is lost. Infinite when t and expected do not have equally
// many elements that are not finite: fp16 may overflow, the same elements by any way. Both are on the device. Uses the
// start of the workspace.
double cuda_difference(Tensor t, Tensor expected);

#ifdef __cplusplus
}
#endif
