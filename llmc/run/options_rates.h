// The learning rate of a run and what each group of parameters is updated with: the optimizer's table
// (llmc/model/optimizer_state.h), changed by -l, --lr-embedding, --lr-head, --lr-vectors, --beta1, --beta2, --eps, -c
// and --by-group.
#pragma once
#include "llmc/run/options.h"

double options_learning_rate(const Options *options); // the peak; of -l, or the optimizer's default
// Without --lr-head a head has the learning rate of the embeddings. False and a message if --by-group is not of its
// form, or a learning rate is 0 where another one is a multiple of it.
bool options_rates(const Options *options, GroupRates rates[NUM_GROUPS], Error *err);
