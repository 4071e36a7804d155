// TensorBoard event files: DIR/events.out.tfevents.SECONDS.HOST.PID.N, TFRecords of Event protocol
// buffers (https://github.com/tensorflow/tensorboard, tensorflow/core/util/event.proto), written
// without a library. A record is one write(2) and holds all numbers of one step; a file that cannot
// be written never stops the run. One file per process. TensorBoard reads the files of a directory
// in the order of their names, which is the order of the runs: SECONDS is the time, or one more
// than the newest file's if the clock is behind it.
#pragma once
#include "llmc/base/error.h"

#include <stdint.h>

typedef struct TensorBoard TensorBoard;
// first_step: events of steps beyond it that an interrupted run left in DIR are void from here on
// (SessionLog START). -1: all of them; INT64_MAX: none. NULL on error; DIR must be there.
TensorBoard *tensorboard_open(const char *directory, int64_t first_step, Error *err);
void tensorboard_close(TensorBoard *tb); // NULL is fine

// Scalars and texts of one step. Call begin, then scalar or text for each, then end: one record.
// NULL tb: nothing happens. A value keeps the precision of a float; nan and inf are shown as such.
void tensorboard_begin(TensorBoard *tb, int64_t step);
void tensorboard_scalar(TensorBoard *tb, const char *tag, double value);
// Shown in the Text tab, letter by letter in one width: control characters and invalid UTF-8 as
// \x1B.
void tensorboard_text(TensorBoard *tb, const char *tag, const char *text, int64_t bytes);
bool tensorboard_end(TensorBoard *tb, Error *err); // false: this record was lost
