// The output of a run: lines and a progress bar on the terminal, one JSON object per line in
// DIR/main.log, and the same numbers for TensorBoard (tensorboard.h) in the same directory. The
// step line:
//   step   12/5000 | loss 9.1234 | norm 1.2345 | lr 6.00e-05 | 98.31 ms | 666.6K tok/s
//       | mfu 54.1% hfu 54.1% | eta 12s
// On a terminal a one-line progress bar follows below it; in a file plain lines. No colours,
// anywhere. Errors go to stderr, all else to stdout, flushed after each line, so that `| tee` and
// a notebook show it at once.
//
// main.log: each line is {"event": ..., "time": unix seconds, ...}, written with one write(2), so
// that a kill leaves at most one unfinished line; inf, nan and unknown values are null.
// doc/file_formats.md lists the events, their fields, and the tags that TensorBoard shows of
// them. A log that cannot be written (disk full) is reported once on stderr and never stops the
// run.
#pragma once
#include "llmc/base/error.h"
#include "llmc/base/format.h"
#include "llmc/device.h"
#include "llmc/model/model.h"
#include "llmc/model/model_numerics.h"
#include "llmc/step_control.h"
#include "llmc/train/choices.h"
#include "llmc/train/validation.h"

#include <math.h>
#include <stdbool.h>
#include <stdint.h>

typedef struct RunLog RunLog;

// directory NULL or "": no file; it is made if it is missing. append and first_step: as of
// main_log_open. progress: -1 = when stdout is a terminal that redraws (terminal_redraws); 0, 1.
// The same numbers also go to an event file in directory, those of a run that only evaluates to one
// in directory/evaluation, a curve of its own. NULL on error.
RunLog *runlog_open(const char *directory, bool append, int64_t first_step, int progress,
                    Error *err);
// Removes validations, choices and samples of this step from main.log: a resumed run makes them
// again.
void runlog_drop_evaluations(RunLog *log, int64_t step);
// false: the directory is no longer the one that was opened, and what is written goes nowhere.
bool runlog_is_there(const RunLog *log, Error *err);
// main.log is on the disk, with its name: before a checkpoint that counts on it
void runlog_sync(RunLog *log);
void runlog_close(RunLog *log); // clears the bar; NULL is fine

// A line for the reader (stdout only), above the progress bar; the newline is added. name: the
// subject, in the first 12 columns; "": blanks there, the line continues the one above; NULL: no
// such column.
//   memory      weights 1.50 MiB, ...
void runlog_field(RunLog *log, const char *name, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
#define runlog_text(log, ...) runlog_field(log, NULL, __VA_ARGS__)
// One JSON object for the file: {"event": event, "time": unix seconds, ...}; the format prints the
// other fields, such as "\"step\":3". TensorBoard gets the numbers of an object with a step as
// event/KEY (of "end" as whole_run/KEY), one without a step as a text.
void runlog_event(RunLog *log, const char *event, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

typedef struct {
    int64_t step;           // 1 .. total
    int64_t total;          // steps of the run
    StepControl control;    // loss, norm, skip, z-scores, loss scale
    float last_loss_scale;  // of the step before: the line shows a change. 0 = not known
    const char *bad_tensor; // name, when control.bad_tensor >= 0
    double lr;
    double seconds;     // of this step
    double tokens;      // of this step
    double mfu, hfu;    // fractions; 0 = not known
    double eta_seconds; // < 0 = not known
} StepReport;
// The step line, the JSON line, the progress bar.
void runlog_step(RunLog *log, const StepReport *report);
// A validation line, with perplexity; bits per byte where they are known.
//   validation at step 250 | loss 3.4321 | perplexity 30.94 | 0.9812 bits/byte
//       | 65.54K tokens in 1.2s
// With a mixture a line for each source follows; each[] has its scores:
//   web at step 250 | loss 3.4021 | perplexity 30.03 | 0.9712 bits/byte | share 70%
void runlog_validation(RunLog *log, int64_t step, const ValidationScore *score,
                       const Mixture *mixture, const ValidationScore *each, double seconds);
// A line for one multiple-choice file: how many are right by mean and by sum of the losses.
//   hellaswag_val at step 250 | accuracy 29.55% (normalised), 28.10% | 2968/10042 | 12.3 s
void runlog_choices(RunLog *log, int64_t step, const char *name, const ChoiceScore *score,
                    double seconds);
// The readings of the device's sensors after this step.
void runlog_sensors(RunLog *log, int64_t step, const DeviceSensors *sensors);
// A text sample, indented, control characters made visible. The samples of one step are numbered in
// order. shown: it went through runlog_stream; only the files are left. cut: a signal ended it,
// which the file records.
void runlog_sample(RunLog *log, int64_t step, const char *text, int64_t bytes, bool shown,
                   bool cut);
// Text as it is drawn, control characters but newline and tab made visible; a GenerateSink whose
// context is the RunLog.
bool runlog_stream(void *log, const char *bytes, int64_t n);

// --numerics-every: the rows of model_numerics_read to main.log and TensorBoard, and a line with
// the worst of them:
//   numerics at step 100 | underflow up to 0.31% (fc.gradient) | no overflow
//       | update/weight 2.1e-04 (lnfw) to 1.8e-02 (wpe)
void runlog_numerics(RunLog *log, int64_t step, const NumericsRow *rows, int count);
