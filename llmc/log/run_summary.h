// The summary of a run: tokens, time, speed, the spread of step times, best validation, energy. The
// last lines on the terminal, and fields of the "end" event. For a resumed run it counts only this
// process.
#pragma once
#include "llmc/log/runlog.h"

#include <stddef.h>

typedef struct {
    // seconds of each step, in order: 4 bytes per step is less than its line in main.log
    float *times;
    size_t steps, capacity;
    double seconds, tokens;
    // of the last step: tokens, mfu x seconds (FLOP of a step / peak)
    double step_tokens, step_mfu_seconds;
    bool has_best;
    double best_loss;
    int64_t best_step;
    double first_joules, last_joules; // 0: not known
} RunSummary;                         // all zero: no step yet

void run_summary_free(RunSummary *s);

// p50 and p99 are exact order statistics (nearest rank): every step time is kept, as a float. The
// first step is left out of them and of the speed: it pays for page faults, caches and the choice
// of kernels. mfu: 0 = not known.
void run_summary_step(RunSummary *s, double seconds, double tokens, double mfu);
void run_summary_validation(RunSummary *s, int64_t step, double loss);
// joules: a counter that only grows (DeviceSensors.energy_joules); the summary takes the difference
// between the first call and the last: call it before the first step and at the end. 0 = not known.
// May never come.
void run_summary_energy(RunSummary *s, double joules);

// Lines for the reader; none if no step was made. Energy is the energy of the whole device
// between the two calls.
//   summary     5000 steps, 2.621B tokens, 59m50s in steps | median 730.1K tok/s, mfu 58.9%
//                   | step p50 718.0 ms, p99 731.2 ms
//               best validation loss 3.2811 at step 4750 | 0.7123 kWh, 0.978 J/1K tokens
void run_summary_print(const RunSummary *s, RunLog *log);
// The same as fields of the "end" event, each after a comma (",\"steps\":5000,..."), malloced; ""
// if there is nothing. Unknown values are left out.
char *run_summary_json(const RunSummary *s);

// The mean time of a step over about the last 30 s: each step counts e times less when 30 s have
// passed, so that one slow step (a busy disk, another process) changes it only a little. The first
// step, which pays for starting, counts only while it is the only one. Zero before it.
typedef struct {
    double steps, seconds, mean;
    bool after_first;
} StepTime;
void step_time_add(StepTime *t, double seconds);
