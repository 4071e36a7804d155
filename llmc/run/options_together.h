// The meaning of options together: the rates of each group of parameters, options that contradict
// each other, and options that change nothing in a run because others turn them off.
#pragma once
#include "llmc/run/options.h"

// The learning rate of a run and what each group of parameters is updated with: the optimizer's
// table (llmc/model/optimizer_state.h), changed by -l, --lr-embedding, --lr-head, --lr-vectors,
// --beta1, --beta2, --eps, -c and --by-group.
double options_learning_rate(const Options *options); // the peak; of -l, or the optimizer's default
// Without --lr-head a head has the learning rate of the embeddings. False and a message if
// --by-group is not of its form, or a learning rate is 0 where another one is a multiple of it.
bool options_rates(const Options *options, GroupRates rates[NUM_GROUPS], Error *err);

// Refuses options that contradict each other, as far as no file is needed to know.
bool options_check_together(const Options *options, Error *err);

// The options of the command line that change nothing in this run, as one line, "-m (-v 0),
// --samples (-s 0)", malloced; NULL: there is none. on_gpu: whether the device is one.
char *options_without_effect(const Options *options, bool on_gpu);

// The options that were given twice with two values, and the parts of --by-group that are there
// twice, as one line, malloced; NULL: there is none.
char *options_repeated(const Options *options);
