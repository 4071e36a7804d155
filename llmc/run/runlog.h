// What a run says: lines and a progress bar on the terminal, one JSON object a line in DIR/main.log.
// The step line:
//   step   12/5000 | loss 9.1234 | norm 1.2345 | lr 6.00e-05 | 98.31 ms | 666.6K tok/s | mfu 54.1% hfu 54.1% | eta
//   8m11s
// On a terminal a one-line progress bar follows below it; in a file plain lines. Errors go to stderr, all else to
// stdout.
#pragma once
#include "llmc/base/error.h"
#include "llmc/step_control.h"
#include <stdbool.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct RunLog RunLog;

// directory NULL: no file. append: continue main.log of a resumed run, cutting off lines of steps > first_step (they
// will be run again) and a last line that was not finished. progress: -1 = when stdout is a terminal, 0, 1.
RunLog *runlog_open(const char *directory, bool append, int64_t first_step, int progress, Error *err);
void runlog_close(RunLog *log);

// A line for the reader (stdout only), above the progress bar.
void runlog_text(RunLog *log, const char *format, ...) __attribute__((format(printf, 2, 3)));
// One JSON object for the file: {"event": event, "time": unix seconds, ...}; json is the inner part, such as
// "\"step\":3", or a whole object text when it starts with '{' (merged).
void runlog_event(RunLog *log, const char *event, const char *json);

typedef struct {
    int64_t step;           // 1 .. total
    int64_t total;          // steps of the run
    StepControl control;    // loss, norm, skip, z-scores, loss scale
    const char *bad_tensor; // name, when control.bad_tensor >= 0
    double lr;
    double seconds;     // of this step
    double tokens;      // of this step
    double mfu, hfu;    // fractions; 0 = not known
    double eta_seconds; // < 0 = not known
} StepReport;
// The step line, the JSON line, the progress bar.
void runlog_step(RunLog *log, const StepReport *report);
// A validation line: loss (nats per token), perplexity, tokens.
void runlog_validation(RunLog *log, int64_t step, double loss, double tokens, double seconds);
// A text sample, indented, control characters made visible.
void runlog_sample(RunLog *log, int64_t step, const char *text, int64_t bytes);

// Human forms into buf; each returns buf.  1.50 GiB   666.6K   8m11s
const char *format_bytes(double bytes, char *buf, int size);
const char *format_count(double n, char *buf, int size);
const char *format_duration(double seconds, char *buf, int size);
double now_seconds(void); // monotonic

#ifdef __cplusplus
}
#endif
