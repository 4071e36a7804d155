// A run of several processes: how the trainer starts them, brings them together and makes sure that
// they are about to do the same. Without a launcher and --gpus these functions do nothing.
#pragma once
#include "llmc/base/error.h"
#include "llmc/model/model.h"
#include "llmc/model/model_numerics.h"
#include "llmc/run/options.h"
#include "llmc/train/data_parallel.h"
#include "llmc/train/optimizer.h"

// Finds the other processes; all but process 0 stop writing to stdout. False also if they were
// started with other options or are another build: the message names the option.
bool processes_meet(const Options *options, Error *err);

// The least value of all processes, on every process.
bool processes_min(double *value, Error *err);
// A malloced text of process 0, or NULL, in place of that of every process.
bool processes_share_text(char **text, Error *err);

// On a CPU bits depend on the number of threads (--threads): where it is not given, every process
// takes the least that one of them would take. *threads: of this process; 0: all processors.
bool processes_share_threads(const Options *options, int *threads, Error *err);

// After device_init: joins the devices, and connects each GPU with all others, for which NCCL takes
// memory: what is free afterwards is there for the run. False if two of them are one GPU, or differ
// in kind or libraries.
bool processes_connect_devices(Error *err);

// On a GPU choices are made by timing, and other choices give other bits. So process 0 makes all
// that a step needs, with micro-steps and an update that change nothing, and the others take them
// over.
bool processes_share_tuning(Model *model, Optimizer *optimizer, const StepShare *share, Error *err);

// Adds the statistics of linear layers, which each process counts for its own micro-batches, of all
// processes.
bool processes_sum_numerics(NumericsRow *rows, int count, Error *err);

// Compares the weights of all processes, which are the same unless memory or a GPU computes
// wrongly. On every process false if one differs from process 0's; the message names it. Reads all
// weights: every WEIGHTS_CHECK_STEPS steps and before a checkpoint. A step reads and writes them
// many times, so that is less than 1% of the time.
enum { WEIGHTS_CHECK_STEPS = 100 };
bool processes_compare_weights(const Model *model, int64_t step, Error *err);

// The decisions between two steps. Takes over the first signal that came to a process, which
// signals_pending gives from then on, and otherwise what process 0 found: only it knows the log,
// and clocks differ.
typedef struct {
    int signal; // 0: none
    bool timed_out, log_exists;
} BetweenSteps;
bool processes_decide(BetweenSteps *now, Error *err);
