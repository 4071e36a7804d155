// The decisions of a run before anything is built: model, data, length, types, memory. All
// of it follows from the options, from the checkpoint that the run resumes from, and from the
// contents of the files. Owns everything it opens; takes no device memory.
#pragma once
#include "llmc/data/dataloader.h"
#include "llmc/model/model.h"
#include "llmc/run/options.h"
#include "llmc/run/placement.h"
#include "llmc/run/run_data.h"
#include "llmc/store/export.h"
#include "llmc/store/trainer_json.h"
#include "llmc/train/choices.h"
#include "llmc/train/data_parallel.h"
#include "llmc/train/generate.h"
#include "llmc/train/optimizer.h"
#include "llmc/train/recipe.h"
#include "llmc/train/schedule.h"

typedef struct {
    Options options;
    TrainerState state; // step, position, control: what a checkpoint holds besides weights
    char *resume_path;  // the checkpoint that this run resumes from, or NULL
    char source[512];   // where the weights come from, for the header
    ModelConfig config;
    RunData data;
    int64_t T, step_windows, total_steps;
    StepShare share;       // of this process in a step
    int64_t first_step;    // where this process begins
    int64_t first_skipped; // steps that were skipped before
    Schedule schedule;
    GroupRates rates[NUM_GROUPS]; // of the optimizer
    double recipe[RECIPE_COUNT];  // the numbers that auto stands for in this run, which its options
                                  // have too; 0: given
    DType dtype;
    Recompute recompute;
    Tokenizer *tokenizer; // NULL: samples are shown as token numbers
    ModelExtras extras;   // of the directory that the weights come from
    // the tokens that end a sample: all that the model or the data state
    int32_t ends[MAX_END_TOKENS];
    int num_ends;
    ChoiceSets choices;
    int64_t choice_examples; // of each set; 0: all
    char *export_path;       // NULL: nothing is exported
    ExportType export_type;
    Placement placement;
    int lock;        // of the directory of -o, until the end; 0: none
    size_t existing; // bytes of the longest beginning of -o that was there before: a refused start
                     // leaves no directory
    bool is_locked;  // run_resume_lock failed because another process runs there
} RunSetup;

// Decides everything, in order of dependency. After run_resume_lock and device_init.
bool run_setup_resolve(RunSetup *setup, Error *err);

// --plan instead: no data is opened, the answer goes to stdout.
bool run_setup_plan(RunSetup *setup, Error *err);

// The checkpoint, directory or file that the weights are read from; NULL: they are new.
const char *run_setup_weights(const RunSetup *setup);

// The options of the objects that the trainer creates. Loader and generation keep pointers into
// setup.
ModelOptions run_setup_model(const RunSetup *setup);
OptimizerOptions run_setup_optimizer(const RunSetup *setup);
DataLoaderOptions run_setup_loader(const RunSetup *setup); // from where the run is now
// for a sample of the step where it is now
GenerateOptions run_setup_generate(const RunSetup *setup);

void run_setup_close(RunSetup *setup);
