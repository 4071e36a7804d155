// Checkpoints: DIR/step_00001000/ is both a Hugging Face GPT-2 directory (model.safetensors +
// config.json) and the point to resume from (optimizer.safetensors, trainer.json). It is built
// under .tmp-step_00001000, checksummed, fsynced and renamed. A directory without a valid
// trainer.json is not a checkpoint. Nothing older is removed before the new one is in place.
#pragma once
#include "llmc/store/trainer_json.h"

// Writes DIR/step_XXXXXXXX, and verifies it as it was written before it gets that name. A failure
// (disk full) leaves the previous checkpoints unchanged and removes its own files.
bool checkpoint_save(const char *dir, const Model *model, const TrainerState *state, Error *err);

// Bytes of the newest checkpoint of DIR, which checkpoint_find_latest reads; 0 if there is none.
double checkpoint_newest_bytes(const char *dir);

// Finds the newest checkpoint of DIR that verifies (manifest, sizes, checksums); each one that does
// not is named in *skipped (malloced lines, or NULL). False with an empty message: there is none;
// with a message: DIR, or a checkpoint in it that may be whole, cannot be read.
bool checkpoint_find_latest(const char *dir, char **path, char **skipped, Error *err);
// Whether there is any step_* directory with a trainer.json. False: dir cannot be read.
bool checkpoint_exists(const char *dir, bool *exists, Error *err);

// Loads the state alone (path is a step directory), which the trainer needs before it builds the
// model.
bool checkpoint_load_state(const char *path, TrainerState *state, Error *err);

// Stores the best loss of a checkpoint whose validation was made up for after it was saved: its
// trainer.json is replaced in one step, and all else in it stays.
bool checkpoint_set_best_loss(const char *path, const Model *model, double best_val_loss,
                              Error *err);

// Completes or removes directories that a killed run left half written or half removed. Call only
// while holding dir alone; saving does it too.
void checkpoint_clean(const char *dir);
// Writes the empty file DIR/DONE_00001000 when the run has made all of its steps, as llm.c does,
// for scripts that start it until then. Removing deletes those of all steps.
bool checkpoint_mark_done(const char *dir, int64_t step, Error *err);
void checkpoint_unmark_done(const char *dir);

// Keeps the newest `keep` checkpoints (0 = all) up to step `last`, and every one whose step is a
// multiple of `major` (0 = none). `last` is the one that this process has saved, or found by
// checkpoint_find_latest: its content was verified, and it stays. Those of higher steps, which that
// search has skipped, are neither counted nor removed, nor are directories whose manifest or sizes
// do not verify; one that contains foreign files is not removed. False: a checkpoint could not be
// removed, with the reason; the others were.
bool checkpoint_rotate(const char *dir, int keep, int64_t major, int64_t last, Error *err);
