// Checkpoints: DIR/step_00001000/ is both a Hugging Face GPT-2 directory (model.safetensors + config.json) and the
// point to resume from (optimizer.safetensors, trainer.json). It is built under .tmp-step_00001000, checksummed,
// fsynced and renamed. A directory without a valid trainer.json is not a checkpoint. Nothing older is removed before
// the new one is in place.
#pragma once
#include "llmc/base/error.h"
#include "llmc/model/model.h"
#include "llmc/step_control.h"
#include "llmc/store/huggingface.h"
#include "llmc/text/tokenizer.h"

// Identifies the shards of a run, so that a resume on others can report it. tokens 0: not known.
typedef struct {
    int64_t tokens;
    uint64_t fingerprint; // ShardSet's
} DataFacts;

// Everything besides weights and moments that a run needs to resume with the same bits.
typedef struct {
    int64_t step;     // steps done, skipped ones included
    int64_t position; // data windows consumed, in windows of T tokens
    int64_t T;        // context of those windows
    uint64_t seed;
    double best_val_loss; // infinity before the first validation
    int64_t eot;          // end-of-text token of the data, -1 if not known
    DataFacts train, val;
    StepControl control;        // windows of the outlier detector, loss scale, updates made
    OptimizerKind optimizer;    // the optimizer whose state is saved; set by load, save uses the model's
    char *options_json;         // the options in force, one JSON object; malloced by load, given by save
    char *tuning;               // device_tuning; malloced by load, given by save, NULL: none
    const Tokenizer *tokenizer; // given by save: written with the weights; NULL: not known. load leaves NULL
} TrainerState;

// Writes DIR/step_XXXXXXXX. A failure (disk full) leaves the previous checkpoints unchanged and removes its own files.
bool checkpoint_save(const char *dir, const Model *model, const TrainerState *state, Error *err);

// Writes the best validation loss into the trainer.json of an existing checkpoint, for a validation that was made up
// for after a resume. model: the model that resumes from it.
bool checkpoint_set_best_val_loss(const char *path, const Model *model, double best, Error *err);
// Bytes of the newest checkpoint of DIR, which checkpoint_find_latest reads; 0 if there is none.
double checkpoint_newest_bytes(const char *dir);

// Finds the newest checkpoint of DIR that verifies (manifest, sizes, checksums); each one that does not is named in
// *skipped (malloced lines, or NULL). False with an empty message: there is none; with a message: DIR cannot be read.
bool checkpoint_find_latest(const char *dir, char **path, char **skipped, Error *err);
// Whether there is any step_* directory with a trainer.json. False: dir cannot be read.
bool checkpoint_exists(const char *dir, bool *exists, Error *err);

// Loads the state alone (path is a step directory), which the trainer needs before it builds the model.
bool checkpoint_load_state(const char *path, TrainerState *state, Error *err);
void trainer_state_free(TrainerState *state);
// Load weights into the model, from any weights file, then the optimizer's state, from a checkpoint. Without the second
// call the state is new: all zero.
bool checkpoint_load_weights(Model *model, const char *path, Error *err);
bool checkpoint_load_moments(Model *model, const char *path, Error *err);
// False, and a message that names both, unless the saved state belongs to the wanted optimizer.
bool checkpoint_check_optimizer(OptimizerKind saved, OptimizerKind wanted, Error *err);

// Removes directories that a killed run left half written or half removed. Call only while holding dir alone; saving
// does it too.
void checkpoint_clean(const char *dir);
// An empty file DIR/DONE_00001000: the run has made all of its steps, for scripts that start it until then, as llm.c's
// do. Removing takes away those of all steps.
bool checkpoint_mark_done(const char *dir, int64_t step, Error *err);
void checkpoint_unmark_done(const char *dir);

// Keeps the newest `keep` checkpoints (0 = all) and every one whose step is a multiple of `major` (0 = none).
// Directories whose manifest or sizes do not verify are neither counted nor removed; the one written last is never
// removed, nor is one that contains foreign files. False: a checkpoint could not be removed, with the reason; the
// others were.
bool checkpoint_rotate(const char *dir, int keep, int64_t major, Error *err);

// ----------------------------------------------------------------------------- between checkpoint.c and trainer_json.c

// The files that the manifest lists: the files of a Hugging Face directory, and the optimizer's state. trainer.json,
// which contains the manifest, is written after them. A file whose bytes are -1 is not part of the checkpoint; this is
// so for the files of an unknown tokenizer, and in checkpoints older than these files.
enum { CHECKPOINT_OPTIMIZER = HF_FILES, CHECKPOINT_FILES };
const char *checkpoint_file_name(int file);

// optimizer.safetensors: every tensor of the optimizer's state that has a prefix, as PREFIX NAME in its own dtype, in
// our (out, in) layout; wte has V rows, except in 8-bit states; the scales of fp8 are fp8.slots. The metadata names the
// optimizer.
bool checkpoint_write_optimizer(const char *path, const Model *model, FileFacts *facts, Error *err);

bool trainer_json_write(const char *path, const TrainerState *state, const ModelOptions *model,
                        const FileFacts facts[CHECKPOINT_FILES], Error *err);
// False leaves nothing to free. The caller frees *state with trainer_state_free.
bool trainer_json_read(const char *path, TrainerState *state, FileFacts facts[CHECKPOINT_FILES], Error *err);
