// See directory_role.h.
#include "llmc/text/directory_role.h"

#include "llmc/base/directory.h"
#include "llmc/base/own_file.h"
#include "llmc/base/path.h"
#include "llmc/text/inputs.h"

#include <fnmatch.h>
#include <stdlib.h>
#include <string.h>

// Weights, in Hugging Face's forms.
static const char weights[] =
    "@(*.safetensors|*.safetensors.index.json|pytorch_model*.bin|trainer.json)";
static const char of_model[] =
    "@(config.json|generation_config.json|tokenizer.json|tokenizer_config.json|tokenizer.model|"
    "special_tokens_map.json|"
    "added_tokens.json|chat_template.*|vocab.json|merges.txt|encoder.json|vocab.bpe)";
static const char of_corpus[] = "@(manifest.json|tokenizer.json)";

static bool is_named(const char *pattern, const char *name) {
    return fnmatch(pattern, name, FNM_EXTMATCH) == 0;
}

static bool is_model_file(const char *directory, const char *name) {
    if (strcmp(name, "config.json") != 0) return is_named(weights, name);
    char *path = path_join(directory, name); // other programs have files of this name, too
    const bool is_model = own_file_is(path, "\"model_type\"") || own_file_is(path, "\"n_embd\"");
    free(path);
    return is_model;
}

static bool is_corpus_file(const char *directory, const char *name) {
    (void)directory;
    return is_corpus_shard(name);
}

// The first file for which `is` is true, malloced; NULL: there is none.
static char *find_file(const char *directory, bool (*is)(const char *directory, const char *name)) {
    char **names, *found = NULL;
    int count;
    if (!directory_list(directory, &names, &count, NULL)) return NULL;
    for (int i = 0; i < count && !found; i++) {
        if (!is(directory, names[i])) continue;
        found = strdup(names[i]);
        REQUIRE_MEMORY(found, "a path");
    }
    directory_list_free(names, count);
    return found;
}

char *directory_model_file(const char *directory) { return find_file(directory, is_model_file); }

bool directory_check_role(const char *path, Error *err) {
    const char *name = path_name(path), *what = "model";
    char *directory = path_parent(path), *found = NULL;
    if (is_named(weights, name) || is_named(of_model, name))
        found = directory_model_file(directory);
    if (!found && (is_named(of_corpus, name) || is_corpus_shard(name))) {
        what = "corpus";
        found = find_file(directory, is_corpus_file);
    }
    const bool is_free =
        !found || error_set(err, "%s belongs to the %s in %s, which has %s; name another file",
                            name, what, directory, found);
    free(found);
    free(directory);
    return is_free;
}
