// The content of a model's directory besides weights, shape and vocabulary: the tokens that begin,
// end and pad a text, generation_config.json, the chat template and other settings of the
// tokenizer, and the keys of config.json that our blocks have no use for. Checkpoints and exports
// take it over as it is; what they do not is listed by name.
#pragma once
#include "llmc/base/error.h"
#include "llmc/text/tokenizer.h"

#include <cjson/cJSON.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

// The files that are taken over byte for byte; all but the last only with their tokenizer.
enum {
    EXTRA_TOKENIZER_CONFIG,
    EXTRA_SPECIAL_TOKENS,
    EXTRA_ADDED_TOKENS,
    EXTRA_CHAT_TEMPLATE,
    EXTRA_GENERATION_CONFIG,
    EXTRA_FILES
};
extern const char *const extra_file_names[EXTRA_FILES];
// Our own tokenizer_config.json (own_file.h), which is made anew and not taken over.
#define TOKENIZER_CONFIG_MARK "\"tokenizer_class\":\t\""

enum { MAX_END_TOKENS = 64 };

// All zero: there is no such directory.
typedef struct {
    cJSON *config; // config.json, and its text
    char *config_text;
    struct {
        char *text; // NULL: there is none
        size_t bytes;
    } files[EXTRA_FILES];
    int32_t ends[MAX_END_TOKENS]; // the "eos_token_id" of config.json and of
                                  // generation_config.json, one or a list
    int num_ends;
    char *left_out; // the names of other files, "README.md, vision/"; NULL: there are none
} ModelExtras;

// Reads the directory of a model of V tokens. tokenizer: the model's here, NULL: none; if it is not
// the directory's, the files of that are left out.
bool model_extras_read(ModelExtras *e, const char *directory, const Tokenizer *tokenizer, int64_t V,
                       Error *err);
void model_extras_free(ModelExtras *e);

// Adds a token to the ends, if it is new; -1 is none.
void model_extras_add_end(ModelExtras *e, int64_t token);

// The token before a text, as config.json has it; otherwise if it has none.
int64_t model_extras_begin(const ModelExtras *e, int64_t otherwise, int64_t V);
// The token that fills up a batch; -1: none.
int64_t model_extras_padding(const ModelExtras *e, int64_t V);
// The chat template (Jinja), malloced; NULL: none.
char *model_extras_chat_template(const ModelExtras *e);

// The text of huggingface_config_json, which it frees, with all keys that the directory's
// config.json has and this does not, and with its tokens and rates of dropout. eot: ends a text
// too. Malloced.
char *model_extras_config(const ModelExtras *e, char *own, int64_t eot, bool has_tokenizer,
                          int64_t V);
