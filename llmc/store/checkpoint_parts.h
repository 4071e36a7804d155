// The files of a checkpoint directory, one by one. Private to checkpoint*.c and trainer_json.c: checkpoint.c decides
// when a checkpoint exists, the functions here write and read what stands in it.
#pragma once
#include "llmc/store/checkpoint.h"

// The files that the manifest vouches for, in the order in which they are written; trainer.json, which holds the
// manifest, is written after them.
enum { CHECKPOINT_MODEL, CHECKPOINT_CONFIG, CHECKPOINT_OPTIMIZER, CHECKPOINT_FILES };
extern const char *const checkpoint_file_names[CHECKPOINT_FILES];

typedef struct {
    int64_t bytes;
    uint64_t checksum; // XXH3, 64 bits
} FileFacts;

// model.safetensors: fp32 values under Hugging Face's names and layouts. optimizer.safetensors: both moments, fp32,
// "exp_avg.NAME" and "exp_avg_sq.NAME", in our (out, in) layout. In both wte has V rows.
bool checkpoint_write_model(const char *path, const Gpt2 *model, FileFacts *facts, Error *err);
bool checkpoint_write_optimizer(const char *path, const Gpt2 *model, FileFacts *facts, Error *err);

bool trainer_json_write(const char *path, const TrainerState *state, const ModelConfig *config,
                        const FileFacts facts[CHECKPOINT_FILES], Error *err);
// False leaves nothing to free. The caller frees *state with trainer_state_free.
bool trainer_json_read(const char *path, TrainerState *state, FileFacts facts[CHECKPOINT_FILES], Error *err);
