// The OS threads that blocks run on. Internal to the simulator.
#pragma once
#include <stdint.h>

namespace sim {
// SIM_THREADS, default: the processors this process may use. One under ThreadSanitizer and
// MemorySanitizer.
int worker_count();
// Runs f(argument) on `threads` OS threads at once, this one among them; returns when all have
// returned.
void run_on_workers(int threads, void (*f)(void *argument), void *argument);
} // namespace sim
