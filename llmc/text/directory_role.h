// The role of a directory by the files in it: a model's, or a corpus's. A tool that writes a
// tokenizer or a corpus must not replace files that belong to another, whoever wrote them.
#pragma once
#include "llmc/base/error.h"

// The file that makes the directory a model's, malloced: config.json, weights, trainer.json; NULL:
// it is none.
char *directory_model_file(const char *directory);
// False with a message if the path is that of a file that belongs to a model or a corpus in its
// directory: its tokenizer, configuration, manifest, weights or shards, there or not.
bool directory_check_role(const char *path, Error *err);
