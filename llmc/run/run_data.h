// The data of a run: -i and -j, or the validation data beside -i; that training and validation share no text, fit the
// model, and are those of the checkpoint. Part of run_setup.h, which closes what is opened here.
#pragma once
#include "llmc/run/run_setup.h"

// Opens train and val of the setup, and with them decides on the vocabulary of a new model.
bool run_data_open(RunSetup *setup, Error *err);

// Adds to the error of an input of a resumed run where its path was looked for; always false.
bool run_path_error(const Options *options, const char *long_name, Error *err);
