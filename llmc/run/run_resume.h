// The directory of a run, -o, and what a resume, -y, finds there: the newest checkpoint that
// verifies, or the options of a run that has none yet.
#pragma once
#include "llmc/run/run_setup.h"

// -o and -y: the directory is locked for this process before anything in it is read. A fresh
// directory, or the newest checkpoint in it that verifies, whose options then hold where none was
// given. Without a checkpoint those of DIR/options.json do. First, because the device is opened
// with these options.
bool run_resume_lock(RunSetup *setup, Error *err);

// Keeps the options in force in DIR/options.json, for a resume before there is a checkpoint. After
// run_setup_resolve.
bool run_resume_save_options(const RunSetup *setup, Error *err);
