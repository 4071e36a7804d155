// What Adafactor needs beside adafactor_statistics (llmc/ops.h): its direction of an update, for optimizer_update, and
// its share of the workspace. Shared by the files llmc/cpu/optimizer*.c.
#pragma once
#include "llmc/cpu/optimizer_block.h"

// For tensors of so many elements altogether.
int64_t adafactor_scratch_bytes(int64_t factored);

// The mean of the rows' second moments; 0 of a vector.
double adafactor_mean_row(const UpdateTensor *t);

// u = g / sqrt(row_i col_j / mean_row), of a vector g / sqrt(v).
void adafactor_direction(V *u, const V *g, const UpdateTensor *t, double mean_row, Span at);
