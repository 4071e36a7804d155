// --plan --hours: which size of a family a GPU trains in so many hours.
#pragma once
#include "llmc/plan/plan.h"

#include <stdio.h>

// Tries 4 to 48 blocks of 64 channels each, with heads of 64 channels (nanochat's dial; 6 and 12
// are d6 and d12) and the block, vocabulary and context of request, and prints the largest model
// whose run takes at most `hours` on the GPU that request names, and its neighbours. The run:
// request's tokens or steps, or `ratio` tokens a parameter (0: the recipe's), and request's tokens
// a step or the recipe's (recipe.h). Its time: the predicted rate, or, where no rates are assumed
// for the GPU, half the limit of its datasheet. *tokens: of that run; name: as -e takes it. False
// and a message when there is no such size, or the block is not one of a family's.
bool plan_largest(FILE *out, const PlanRequest *request, double hours, double ratio,
                  char name[MODEL_DESCRIPTOR], double *tokens, Error *err);
