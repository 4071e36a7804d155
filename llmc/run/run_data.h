// The data of a run: -i and -j, or the validation data next to -i. Training and validation share no
// text, fit the model, and are the data of the checkpoint.
#pragma once
#include "llmc/data/sources.h"
#include "llmc/model/model.h"
#include "llmc/run/options.h"
#include "llmc/store/trainer_json.h"

typedef struct {
    Sources train, val;
    bool has_train, has_val;
    char *val_pattern; // the text that names the validation data: -j, or made from -i; NULL: none
    char *changes;     // lines: what a resume has changed in the mixture; NULL: nothing
    char no_validation[1024]; // why there is none
    bool val_is_train;        // -i and -j are the same files
} RunData;

// Opens train and val, which decide the vocabulary of a new model (config->V 0), also of one that
// is not trained (-x 0). Compares them with those of the checkpoint in state, which then has these.
bool run_data_open(RunData *data, const Options *options, int64_t T, ModelConfig *config,
                   TrainerState *state, Error *err);
void run_data_close(RunData *data);
