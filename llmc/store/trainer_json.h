// trainer.json of a checkpoint: everything besides tensors that a run needs to resume with the same
// bits, and the manifest, which has the size and checksum of the other files. doc/file_formats.md
// describes its fields.
#pragma once
#include "llmc/data/sources.h"
#include "llmc/model/model.h"
#include "llmc/step_control.h"
#include "llmc/store/huggingface.h"
#include "llmc/text/tokenizer.h"

// Identifies the shards of a run, so that a resume on others can report it. tokens 0: not known.
typedef struct {
    int64_t tokens;
    uint64_t fingerprint, contents; // ShardSet's; contents 0: not known
} DataFacts;

// A source of a mixture (llmc/data/mixture.h).
typedef struct {
    char *pattern;  // as it was named, malloced
    int64_t weight; // 0: the run has left it out since
    int64_t drawn;  // windows drawn from it before mixture_start
    DataFacts facts;
} SourceState;

typedef struct {
    int64_t step;     // steps done, skipped ones included
    int64_t position; // data windows consumed, in windows of T tokens
    int64_t T;        // context of those windows
    uint64_t seed;
    double best_val_loss; // infinity before the first validation
    int64_t eot;          // end-of-text token of the data, -1 if not known
    double learning_rate; // of the last step; infinity: not known, of an earlier version
    DataFacts train, val;
    int64_t mixture_start; // position since which the weights of the sources hold
    int source_count;      // 0: the run has read one corpus, and its position says how much
    // malloced: those of the mixture in their order, then those that were left out
    SourceState *sources;
    StepControl control; // windows of the outlier detector, loss scale, updates made
    // the optimizer whose state is saved; set by read, write uses the model's
    OptimizerKind optimizer;
    char *options_json; // the options in force, one JSON object; malloced by read, given by write
    char *tuning;       // device_tuning; malloced by read, given by write, NULL: none
    // given by save: written with the weights; NULL: not known. read leaves NULL
    const Tokenizer *tokenizer;
    const ModelExtras *extras; // the same
} TrainerState;

// The files that the manifest lists: the files of a Hugging Face directory, and the optimizer's
// state. trainer.json is written after them. A file whose bytes are -1 is not part of the
// checkpoint: those of an unknown tokenizer.
enum { CHECKPOINT_OPTIMIZER = HF_FILES, CHECKPOINT_FILES };
const char *checkpoint_file_name(int file);

bool trainer_json_write(const char *path, const TrainerState *state, const ModelOptions *model,
                        const FileFacts facts[CHECKPOINT_FILES], Error *err);
// False leaves nothing to free. The caller frees *state with trainer_state_free.
bool trainer_json_read(const char *path, TrainerState *state, FileFacts facts[CHECKPOINT_FILES],
                       Error *err);
void trainer_state_free(TrainerState *state);
void trainer_state_free_sources(TrainerState *state); // only these: there are none then
