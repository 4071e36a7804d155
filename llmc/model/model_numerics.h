// --numerics-every: statistics of the tensors of a step, a row for each class of tensors. Of each
// of the four linear layers: input, output, output gradient; of each kind of parameter: weight,
// gradient, update.
#pragma once
#include "llmc/model/model_options.h"

typedef struct {
    char name[48]; // "qkv.in", "fc.gradient", "qkvw.weight", "wte.gradient", "wte.update"
    TensorStats stats;
    double weight_sumsq; // of an update: of the weights before it; 0 for the others
    bool of_process; // others have counted other elements: of a linear layer, or where the state is
                     // divided
} NumericsRow;
// Returns the norm of an update over the norm of its weight; 0 for other rows.
double model_numerics_ratio(const NumericsRow *row);

enum { NUMERICS_MAX_ROWS = 4 * 3 + NUM_PARAMETER_SPECS * 3 };

// While this is on, the statistics of each input, output and output gradient of a linear layer are
// counted, in micro-steps that run op by op. Needs ModelOptions.numerics. Counts begin at 0 when it
// is switched on.
void model_observe(Model *model, bool on);
typedef enum { ROLE_IN, ROLE_OUT, ROLE_GRADIENT, NUM_ROLES } Role;
// for the passes: counts t
void model_observe_tensor(const Model *model, LinearLayer layer, Role role, Tensor t);

// Counts the current weights and gradients; call after the last micro-step of a step, before its
// update. Queued.
void model_numerics_gradients(Model *model);
// Counts the change that the update of parameter `index` makes: call begin before the update is
// queued, end after. Queued. The change is measured on the master if there is one on the device,
// else on the weight: with --offload or Kahan's compensation it is the change of the rounded
// weight. Keeps a copy in model_optimizer_scratch.
void model_numerics_update_begin(Model *model, int index);
void model_numerics_update_end(Model *model, int index);
// Reads everything counted since model_observe(model, true); returns the number of rows. Classes
// without counts have no row. Synchronises.
int model_numerics_read(Model *model, NumericsRow rows[NUMERICS_MAX_ROWS]);
