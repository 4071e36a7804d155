// What a run says of itself before it begins: machine, model, precision, batch, memory, data, schedule, speed of light.
// The same facts go to the terminal as a table and to main.log as the "run" event. Decides nothing, measures nothing.
#pragma once
#include "llmc/data/shards.h"
#include "llmc/model/gpt2.h"
#include "llmc/run/options.h"
#include "llmc/run/runlog.h"
#include "llmc/train/schedule.h"

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
