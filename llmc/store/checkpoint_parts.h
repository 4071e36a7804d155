// The files of a checkpoint directory, one by one. Private to checkpoint*.c and trainer_json.c: checkpoint.c decides
// when a checkpoint exists, the functions here write and read what stands in it.
#pragma once
#include "llmc/store/checkpoint.h"
#include "llmc/store/huggingface.h"

// The files that the manifest vouches for: those of a Hugging Face directory, and the moments. trainer.json, which
// holds the manifest, is written after them. A file whose bytes are -1 is not part of the checkpoint: those of a
// tokenizer that is not known, as in all checkpoints that are older than they are.
enum { CHECKPOINT_OPTIMIZER = HF_FILES, CHECKPOINT_FILES };
const char *checkpoint_file_name(int file);

// optimizer.safetensors: both moments, fp32, "exp_avg.NAME" and "exp_avg_sq.NAME", in our (out, in) layout; wte has V
// rows.
bool checkpoint_write_optimizer(const char *path, const Gpt2 *model, FileFacts *facts, Error *err);

bool trainer_json_write(const char *path, const TrainerState *state, const ModelConfig *config,
                        const FileFacts facts[CHECKPOINT_FILES], Error *err);
// False leaves nothing to free. The caller frees *state with trainer_state_free.
bool trainer_json_read(const char *path, TrainerState *state, FileFacts facts[CHECKPOINT_FILES], Error *err);
