// The report of a run, on the terminal and in main.log (runlog.h has the formats): the header before its first step, a
// line per step, lines of evaluation, samples and checkpoints, and the summary after its last step.
//   header    machine, model, precision, batch, memory, data, schedule, speed of light: a table on the terminal, the
//             "run" event in main.log
//   summary   tokens, time, speed, the spread of step times, best validation, energy: the last lines, and fields of the
//             "end" event. For a resumed run it counts only this process
// Owns the data that only reports need: the mean time of a step, the peak that mfu is a fraction of, the last loss
// scale, the summary. Never changes the run.
#pragma once
#include "llmc/model/model.h"
#include "llmc/run/run_setup.h"
#include "llmc/run/runlog.h"
#include "llmc/train/generate.h"

// What the host learns about a step, one step late: the decisions and the times.
typedef struct {
    StepControl *control; // host memory the device writes to
    DeviceEvent *start, *stop;
    double lr;
    int64_t step; // 1 .. total; 0: nothing to report
} StepRecord;

// --interactive into a pipe or a file: only the answers are written.
bool report_is_silent(const RunSetup *setup);
// Before the model is built: that it will be, where it takes more than a second. bytes: of its memory.
void report_starting(const RunSetup *setup, int64_t bytes);

typedef struct Report Report;
// Writes the header. What it is given must outlive the report. started: when the process began (now_seconds).
Report *report_open(const RunSetup *setup, const Model *model, RunLog *log, DeviceSpeed speed, double started);
void report_close(Report *r); // NULL is fine

// Before the first step: its min time, if that is a second or more.
void report_first_step(const Report *r);
// What became of the step in this record, once the device has got there: waits for it. The record is empty then.
void report_step(Report *r, StepRecord *record);

// Before the first validation of this process: its min time.
void report_validating(const Report *r);
void report_validation(Report *r, const ValidationScore *score, double seconds);
// The texts that the log does not have yet: from number `first` on. shown: the first one was streamed already. What is
// cut goes unsaid while the run trains: the resume draws it again, and whole.
void report_generated(Report *r, const Generated *drawn, int64_t first, bool shown);
// What was chosen by timing, unless it is what the last checkpoint had.
void report_tuning(Report *r, const char *tuning);
// Why an old checkpoint was not removed, unless that was the last thing said of it. It only takes up space.
void report_kept_checkpoint(Report *r, const Error *why);
// The last lines and the "end" event. wait_seconds: how long steps waited for data.
void report_end(Report *r, double wait_seconds);

// ------------------------------------------------------------------------------------------------------------- summary

typedef struct {
    float *times; // seconds of each step, in order: 4 bytes per step is less than its line in main.log
    size_t steps, room;
    bool times_lost; // out of memory: the order statistics are left out
    double seconds, tokens;
    double step_tokens, step_mfu_seconds; // of the last step: tokens, mfu x seconds (FLOP of a step / peak)
    bool has_best;
    double best_loss;
    int64_t best_step;
    double first_joules, last_joules; // 0: not known
} RunSummary;                         // all zero: no step yet

void run_summary_free(RunSummary *s);

// p50 and p99 are exact order statistics (nearest rank): every step time is kept, as a float. The first step is left
// out of them and of the speed: it pays for page faults, caches and the choice of kernels. mfu: 0 = not known.
void run_summary_step(RunSummary *s, double seconds, double tokens, double mfu);
void run_summary_validation(RunSummary *s, int64_t step, double loss);
// joules: a counter that only grows (DeviceSensors.energy_joules); the summary takes the difference between the first
// call and the last: call it before the first step and at the end. 0 = not known. May never come.
void run_summary_energy(RunSummary *s, double joules);

// Lines for the reader; none if no step was made. Energy is the energy of the whole device between the two calls.
//   summary     5000 steps, 2.621B tokens, 59m50s in steps | median 730.1K tok/s, mfu 58.9% | step p50 718.0 ms, p99
//               731.2 ms
//               best validation loss 3.2811 at step 4750 | 0.7123 kWh, 0.978 J/1K tokens
void run_summary_print(const RunSummary *s, RunLog *log);
// The same as fields of the "end" event, each after a comma (",\"steps\":5000,..."), malloced; "" if there is
// nothing. Unknown values are left out.
char *run_summary_json(const RunSummary *s);

// The mean time of a step over about the last 30 s: each step counts e times less when 30 s have passed, so that one
// slow step (a busy disk, another process) changes it only a little. The first step, which pays for starting, counts
// only while it is the only one. Zero before it.
typedef struct {
    double steps, seconds, mean;
    bool after_first;
} StepTime;
void step_time_add(StepTime *t, double seconds);
