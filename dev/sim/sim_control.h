// A test may ask the simulator for these things, which a GPU would not do. C and C++. The functions
// are weak: in a program that is not linked with dev/sim their addresses are null, so that a test
// may ask where it runs.
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif
#pragma weak sim_set_schedule
#pragma weak sim_set_lazy_streams
#pragma weak sim_step_mark
#pragma weak sim_step_unmark
#pragma weak sim_step_violations
#pragma weak sim_kernel
#pragma weak sim_forbid
#pragma weak sim_allow
#pragma weak sim_set_clock
#pragma weak sim_set_launch_latency
#pragma weak sim_early_launches
#pragma weak sim_last_graph_nodes

// The order in which the blocks of a grid and the threads of a block run from now on. Correct
// kernels give the same bits in all of them. Blocks then run on one OS thread: the same order gives
// the same run. SIM_SCHED=fwd|rev|rand:N does the same from outside. SIM_ANY_ORDER, the default:
// forward, blocks on several OS threads.
typedef enum { SIM_ANY_ORDER, SIM_FORWARD, SIM_REVERSE, SIM_RANDOM } SimOrder;
void sim_set_schedule(SimOrder order, uint64_t seed); // seed counts for SIM_RANDOM

// Work of streams as late as the API allows (true), or at once. SIM_STREAMS=lazy does the same from
// outside.
void sim_set_lazy_streams(bool lazy);

// The trainer's promise: no host synchronisation inside a step. Between mark and unmark, each call
// that waits for work enqueued after the mark, allocates, frees, or copies pageable memory is
// printed and counted. A second mark moves the line. sim_step_violations: how many there were since
// the program began.
void sim_step_mark(void);
void sim_step_unmark(void);
int sim_step_violations(void);

// The function returns what cudaLaunchKernel takes for the kernel of this (mangled) name; null when
// the program has none.
const void *sim_kernel(const char *name);

// From now on nothing may touch these bytes of an allocation, until that is freed, or these bytes
// are allowed again.
void sim_forbid(void *begin, uint64_t bytes);
void sim_allow(void *begin, uint64_t bytes); // all that was forbidden in them

// From now on events take the time from this clock, which stands still but for the work of streams:
// a kernel takes 1 ms, a call of a library 0.03 ms, and 50 ms more where it was asked to be slow.
// The choice of a measurement then does not depend on the machine. A negative number: from the
// clock of the machine, on which no call is slow.
void sim_set_clock(double milliseconds);

// The host takes this long to enqueue work, in milliseconds. An event that is recorded in a stream
// that has nothing to do is stamped so long before the work that follows it.
void sim_set_launch_latency(double milliseconds);

// Launches so far with programmatic stream serialisation.
uint64_t sim_early_launches(void);

// Nodes of the graph that was instantiated last.
size_t sim_last_graph_nodes(void);

#ifdef __cplusplus
}
#endif
