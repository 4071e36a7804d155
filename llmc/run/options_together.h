// Options that do not go together: those that contradict each other, and those that change nothing in a run because
// others turn them off.
#pragma once
#include "llmc/run/options.h"

// Refuses options that contradict each other, as far as no file is needed to know.
bool options_check_together(const Options *options, Error *err);

// The options of the command line that change nothing in this run, as one line, "-m (-v 0), --samples (-s 0)",
// malloced; NULL: there is none. on_gpu: whether the device is one.
char *options_without_effect(const Options *options, bool on_gpu);
