// The files of a checkpoint directory, one by one. Private to checkpoint*.c and trainer_json.c: checkpoint.c decides
// when a checkpoint exists, the functions here write and read what stands in it.
#pragma once
#include "llmc/store/checkpoint.h"
#include "llmc/store/huggingface.h"

// The files that the manifest vouches for: those of a Hugging Face directory, and the optimizer's state. trainer.json,
// which holds the manifest, is written after them. A file whose bytes are -1 is not part of the checkpoint: those of a
// tokenizer that is not known, as in all checkpoints that are older than they are.
enum { CHECKPOINT_OPTIMIZER = HF_FILES, CHECKPOINT_FILES };
const char *checkpoint_file_name(int file);

// optimizer.safetensors: every tensor of the optimizer's state that has a prefix, as PREFIX NAME in its own dtype, in
// our (out, in) layout; wte has V rows, but for 8-bit states; the scales of fp8 as fp8.slots. The metadata names the
// optimizer.
bool checkpoint_write_optimizer(const char *path, const Gpt2 *model, FileFacts *facts, Error *err);

bool trainer_json_write(const char *path, const TrainerState *state, const Gpt2Options *model,
                        const FileFacts facts[CHECKPOINT_FILES], Error *err);
// False leaves nothing to free. The caller frees *state with trainer_state_free.
bool trainer_json_read(const char *path, TrainerState *state, FileFacts facts[CHECKPOINT_FILES], Error *err);
