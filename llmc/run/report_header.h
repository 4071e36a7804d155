// The header of a run, before its first step: machine, model, precision, batch, memory, data,
// schedule. A table on the terminal, the "run" event in main.log.
#pragma once
#include "llmc/log/runlog.h"
#include "llmc/model/model.h"
#include "llmc/run/run_setup.h"
#include "llmc/speed.h"

// The facts of a run that its reports show.
typedef struct {
    const RunSetup *setup;
    const Model *model;
    RunLog *log;
    DeviceSpeed speed; // measured at the start
    double peak_flops; // the denominator of mfu
    // the peak of the datasheet; 0: not known, mfu counts against the measured rate
    double datasheet;
} ReportFacts;

void report_header(const ReportFacts *facts);
// The differences between a resumed run and the run that it continues.
void report_differences(const ReportFacts *facts);
