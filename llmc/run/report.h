// The report of a run, on the terminal and in main.log (runlog.h has the formats): a line per step,
// lines of evaluation, samples and checkpoints, the end. The header is report_header.h's, the
// summary run_summary.h's. Owns the data that only reports need: the mean time of a step, the peak
// that mfu is a fraction of, the last loss scale, the summary. Never changes the run.
#pragma once
#include "llmc/log/runlog.h"
#include "llmc/model/model.h"
#include "llmc/run/run_setup.h"
#include "llmc/speed.h"
#include "llmc/train/generate.h"

// The decisions and times of a step, which the host reads one step late.
typedef struct {
    StepControl *control; // host memory the device writes to
    DeviceEvent *start, *stop;
    double lr;
    int64_t step; // 1 .. total; 0: nothing to report
} StepRecord;

// True with --interactive into a pipe or a file: only the answers are written.
bool report_is_silent(const RunSetup *setup);
// Before the model is built: announces it, if that takes more than a second. bytes: of its memory.
void report_starting(const RunSetup *setup, int64_t bytes, bool measures_speed);

typedef struct Report Report;
// Writes the header. The arguments must outlive the report. started: when the process began
// (now_seconds).
Report *report_open(const RunSetup *setup, const Model *model, RunLog *log, DeviceSpeed speed,
                    double started);
void report_close(Report *r); // NULL is fine

// Before the first step: logs its min time, if that is a second or more.
void report_first_step(const Report *r);
// Waits for the device to finish this step, prints it, and clears the record.
void report_step(Report *r, StepRecord *record);

// Before the first validation of this process: logs its min time.
void report_validating(const Report *r);
// each: the scores of the sources of -j.
void report_validation(Report *r, const ValidationScore *score, const ValidationScore *each,
                       double seconds);
// shown: the text was streamed already. A sample cut short by a signal is not logged; the resumed
// run draws it again in full.
void report_generated(Report *r, const Generated *drawn, bool shown);
// Logs the choices made by timing, unless the last checkpoint has the same.
void report_tuning(Report *r, const char *tuning);
// Writes the last lines and the "end" event. wait_seconds: how long steps waited for data.
void report_end(Report *r, double wait_seconds);
