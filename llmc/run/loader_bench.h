// --bench-loader: how fast this run's own data come from its files, and whether its model would wait for them. One
// table, by what is in the file cache, by order, and by the depth of the loader's ring; then the copies to a GPU.
#pragma once
#include "llmc/model/gpt2.h"
#include "llmc/run/run_setup.h"

// Prints it. The model must have been built for training; its gradients are overwritten.
bool loader_bench(const RunSetup *setup, Gpt2 *model, Error *err);

// The share of its time that a model whose micro-steps take `step` seconds waits for a loader with this ring that needs
// fill[k] seconds to read batch k: 0 .. 1. The batches that fill the ring at the start are not counted.
double loader_wait_share(const double *fill, int count, int ring, double step);
