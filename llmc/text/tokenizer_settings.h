// The files that transformers reads next to a tokenizer.json or vocab.json: tokenizer_config.json,
// special_tokens_map.json, added_tokens.json. What they say must be what the tokenizer does: a token that it does not
// have, and a setting that would give other tokens, are refused by name. Nothing is taken from them.
#pragma once
#include "llmc/text/vocabulary.h"

// Compares the tokenizer with what transformers reads next to its file at path.
bool tokenizer_check_settings(const Tokenizer *t, const char *path, Error *err);
