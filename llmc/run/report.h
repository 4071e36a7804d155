// What a run says before its first step and after its last one.
//   run_header   machine, model, precision, batch, memory, data, schedule, speed of light: a table on the terminal, the
//                "run" event in main.log
//   run_summary  tokens, time, speed, the spread of step times, best validation, energy: the last lines, and fields of
//                the "end" event. Of a resumed run it counts what this process did
// Decides nothing, measures nothing.
#pragma once
#include "llmc/data/shards.h"
#include "llmc/model/gpt2.h"
#include "llmc/run/options.h"
#include "llmc/run/runlog.h"
#include "llmc/train/optimizer.h"

typedef struct {
    const Options *options;
    const Gpt2Options *model;
    const MemoryPlan *plan;
    const char *source;    // where the weights come from, a sentence
    const ShardSet *train; // NULL: not used by this run
    const ShardSet *val;
    int64_t T, step_windows;
    int64_t start_step, total_steps;
    const Schedule *schedule;
    DeviceSpeed speed;
    double peak_flops;     // what mfu is a fraction of
    bool peak_is_measured; // it is the measured matmul rate, not a datasheet's
    float loss_scale;      // that the first step will use; 1 = none
} RunFacts;

void run_header(RunLog *log, const RunFacts *facts);

typedef struct RunSummary RunSummary;
RunSummary *run_summary_create(void); // NULL: out of memory; every function takes it and does nothing
void run_summary_free(RunSummary *s);

// p50 and p99 are exact order statistics (nearest rank): every step time is kept, as a float. The first step is left
// out of them and of the speed: it pays for page faults, caches and the choice of kernels. mfu: 0 = not known.
void run_summary_step(RunSummary *s, double seconds, double tokens, double mfu);
void run_summary_validation(RunSummary *s, int64_t step, double loss);
// joules: a counter that only grows (DeviceSensors.energy_joules); the summary takes the difference between the first
// call and the last: call it before the first step and at the end. 0 = not known. May never come.
void run_summary_energy(RunSummary *s, double joules);

// Lines for the reader; nothing where no step was made. Energy is that of the whole device between the two calls.
//   summary     5000 steps, 2.621B tokens, 59m50s in steps | median 730.1K tok/s, mfu 58.9% | step p50 718.0 ms, p99
//               731.2 ms
//               best validation loss 3.2811 at step 4750 | 0.7123 kWh, 0.978 J/1K tokens
void run_summary_print(const RunSummary *s, RunLog *log);
// The same as JSON fields ("\"steps\":5000,..."), malloced; "" where there is nothing:
//   steps, tokens, step_seconds (sum), tokens_per_second_p50, mfu_p50, ms_p50, ms_p99, best_val_loss, best_val_step,
//   energy_joules. What is not known is left out.
char *run_summary_json(const RunSummary *s);
