// See model_extras.h.
#include "llmc/store/model_extras.h"

#include "llmc/base/directory.h"
#include "llmc/base/file.h"
#include "llmc/base/format.h"
#include "llmc/base/json.h"
#include "llmc/base/own_file.h"
#include "llmc/base/path.h"
#include "llmc/text/tokenizer_open.h"

#include <fnmatch.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const size_t MAX_EXTRA_BYTES = (size_t)16 << 20;

const char *const extra_file_names[EXTRA_FILES] = {
    [EXTRA_TOKENIZER_CONFIG] = "tokenizer_config.json",
    [EXTRA_SPECIAL_TOKENS] = "special_tokens_map.json",
    [EXTRA_ADDED_TOKENS] = "added_tokens.json",
    [EXTRA_CHAT_TEMPLATE] = "chat_template.jinja",
    [EXTRA_GENERATION_CONFIG] = "generation_config.json"};

// ----------------------------------------------------------------------------------------- reading

void model_extras_add_end(ModelExtras *e, int64_t token) {
    for (int i = 0; i < e->num_ends; i++)
        if (e->ends[i] == token) return;
    if (token >= 0 && e->num_ends < MAX_END_TOKENS) e->ends[e->num_ends++] = (int32_t)token;
}

// The items of a list, or the value itself. json_int_value tells whether one is a token.
static const cJSON *first_token(const cJSON *stated) {
    if (cJSON_IsArray(stated)) return stated->child;
    return stated;
}
static const cJSON *next_token(const cJSON *item, const cJSON *stated) {
    if (item == stated) return NULL; // other keys follow it
    return item->next;
}

// "eos_token_id" of an object: a token or a list of them.
static void add_ends(ModelExtras *e, const cJSON *object, int64_t V) {
    const cJSON *stated = cJSON_GetObjectItemCaseSensitive(object, "eos_token_id");
    int64_t token;
    for (const cJSON *item = first_token(stated); item; item = next_token(item, stated))
        if (json_int_value(item, 0, V - 1, &token)) model_extras_add_end(e, token);
}

// Whether the tokenizer is the one of this directory.
static bool is_tokenizer_of(const Tokenizer *tokenizer, const char *directory) {
    char *file = tokenizer_file_in(directory);
    bool is_same = file && tokenizer && path_is_same(tokenizer_path(tokenizer), file);
    Tokenizer *own = file && tokenizer && !is_same ? tokenizer_open(file, NULL) : NULL;
    if (own) is_same = tokenizer_fingerprint(own) == tokenizer_fingerprint(tokenizer);
    tokenizer_free(own);
    free(file);
    return is_same;
}

static bool is_one_of(const char *name, const char *const *patterns) {
    for (; *patterns; patterns++)
        if (fnmatch(*patterns, name, FNM_PERIOD) == 0) return true;
    return false;
}

static bool list_left_out(ModelExtras *e, const char *directory, bool has_tokenizer, Error *err) {
    // Weights, in this form or another; our own; hidden ones.
    static const char *const weights[] = {
        "config.json", "*.safetensors",    "*.safetensors.index.json",
        "*.bin",       "*.bin.index.json", "*.gguf",
        "*.h5",        "*.msgpack",        "*.ot",
        "*.pth",       "trainer.json",     ".*",
        NULL};
    static const char *const vocabulary[] = {"tokenizer.json", "vocab.json", "merges.txt",
                                             "encoder.json",   "vocab.bpe",  NULL};

    char **names;
    int count;
    size_t bytes = 0;
    if (!directory_list(directory, &names, &count, err)) return false;

    FILE *out = text_open(&e->left_out, &bytes);
    const char *comma = "";
    for (int i = 0; i < count; i++) {
        bool is_known =
            is_one_of(names[i], weights) || (has_tokenizer && is_one_of(names[i], vocabulary));
        for (int k = 0; k < EXTRA_FILES; k++)
            if ((e->files[k].text || (has_tokenizer && k == EXTRA_TOKENIZER_CONFIG)) &&
                strcmp(names[i], extra_file_names[k]) == 0)
                is_known = true;
        if (is_known) continue;
        format_print(out, "%s%s", comma, names[i]);
        comma = ", ";
    }

    fclose(out);
    directory_list_free(names, count);
    if (*e->left_out) return true;
    free(e->left_out);
    e->left_out = NULL;
    return true;
}

bool model_extras_read(ModelExtras *e, const char *directory, const Tokenizer *tokenizer, int64_t V,
                       Error *err) {
    const bool has_tokenizer = is_tokenizer_of(tokenizer, directory);
    char *config = path_join(directory, "config.json");
    size_t bytes;
    *e = (ModelExtras){.config_text = file_read_all(config, MAX_EXTRA_BYTES, &bytes, err)};
    if (e->config_text && strlen(e->config_text) < bytes)
        error_set(err, "%s: it has a NUL character", config);
    else if (e->config_text)
        e->config = json_parse_content(config, e->config_text, bytes, err);
    free(config);
    if (!e->config) {
        model_extras_free(e);
        return false;
    }
    add_ends(e, e->config, V);

    bool ok = true;
    for (int i = 0; ok && i < EXTRA_FILES; i++) {
        char *path = path_join(directory, extra_file_names[i]);
        const bool is_made =
            i == EXTRA_TOKENIZER_CONFIG && own_file_is(path, TOKENIZER_CONFIG_MARK);
        const bool is_wanted =
            (has_tokenizer || i == EXTRA_GENERATION_CONFIG) && file_exists(path) && !is_made;
        if (is_wanted)
            e->files[i].text = file_read_all(path, MAX_EXTRA_BYTES, &e->files[i].bytes, err);
        ok = !is_wanted || e->files[i].text;
        if (ok && is_wanted && i == EXTRA_GENERATION_CONFIG) {
            cJSON *root = json_parse_content(path, e->files[i].text, e->files[i].bytes, err);
            ok = root != NULL;
            add_ends(e, root, V);
            cJSON_Delete(root);
        }
        free(path);
    }
    if (ok) ok = list_left_out(e, directory, has_tokenizer, err);
    if (!ok) model_extras_free(e);
    return ok;
}

void model_extras_free(ModelExtras *e) {
    cJSON_Delete(e->config);
    free(e->config_text);
    for (int i = 0; i < EXTRA_FILES; i++) free(e->files[i].text);
    free(e->left_out);
    *e = (ModelExtras){0};
}

// ------------------------------------------------------------------------------------ single facts

static int64_t token_of(const ModelExtras *e, const char *key, int64_t otherwise, int64_t V) {
    int64_t token;
    if (json_int_value(cJSON_GetObjectItemCaseSensitive(e->config, key), 0, V - 1, &token))
        return token;
    return otherwise;
}

int64_t model_extras_begin(const ModelExtras *e, int64_t otherwise, int64_t V) {
    return token_of(e, "bos_token_id", otherwise, V);
}

int64_t model_extras_padding(const ModelExtras *e, int64_t V) {
    return token_of(e, "pad_token_id", -1, V);
}

char *model_extras_chat_template(const ModelExtras *e) {
    char *text = NULL;
    if (e->files[EXTRA_CHAT_TEMPLATE].text) {
        text = strdup(e->files[EXTRA_CHAT_TEMPLATE].text);
        REQUIRE_MEMORY(text, "a chat template");
        return text;
    }
    if (!e->files[EXTRA_TOKENIZER_CONFIG].text) return NULL;

    cJSON *root = cJSON_Parse(e->files[EXTRA_TOKENIZER_CONFIG].text);
    const cJSON *item = cJSON_GetObjectItemCaseSensitive(root, "chat_template"), *entry,
                *found = item;
    if (cJSON_IsArray(item)) { // of {"name": ..., "template": ...}
        found = NULL;
        cJSON_ArrayForEach(entry, item) {
            const char *name =
                cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(entry, "name"));
            if (name && strcmp(name, "default") == 0)
                found = cJSON_GetObjectItemCaseSensitive(entry, "template");
        }
    }

    if (cJSON_IsString(found)) {
        text = strdup(found->valuestring);
        REQUIRE_MEMORY(text, "a chat template");
    }
    cJSON_Delete(root);
    return text;
}

// ------------------------------------------------------------------------------------- config.json

static void put_value(FILE *out, const cJSON *item) {
    char *text = cJSON_PrintUnformatted(item);
    REQUIRE_MEMORY(text, "a config.json");
    fputs(text, out);
    cJSON_free(text);
}

// Skips space as cJSON does: every control character is space.
static const char *after_space(const char *text) {
    while (*text && (unsigned char)*text <= ' ') text++;
    return text;
}

// Writes a value of the directory's config.json as it is spelled there: 0.0 is a float for Python,
// 0 is not.
static void put_stated(FILE *out, const ModelExtras *e, const cJSON *stated) {
    const char *at = strchr(e->config_text, '{') + 1, *end = at;
    const cJSON *item = e->config->child;
    for (;; item = item->next) {
        cJSON *key = cJSON_ParseWithOpts(after_space(at), &end, false);
        at = after_space(after_space(end) + strlen(":"));
        cJSON *value = cJSON_ParseWithOpts(at, &end, false);
        REQUIRE(key && value, "config.json: parsed, and cannot be parsed again");
        cJSON_Delete(key);
        cJSON_Delete(value);
        if (item == stated) break;
        at = after_space(end) + strlen(",");
    }
    fwrite(at, 1, (size_t)(end - at), out);
}

// The value of "eos_token_id": the directory's, and the token that ends the texts of the data after
// it. False: it has none.
static bool put_ends(FILE *out, const ModelExtras *e, const cJSON *stated, int64_t eot, int64_t V) {
    bool has_token = false, has_eot = eot < 0;
    int64_t token;
    for (const cJSON *item = first_token(stated); item; item = next_token(item, stated)) {
        const bool is_token = json_int_value(item, 0, V - 1, &token);
        has_token |= is_token;
        has_eot |= is_token && token == eot;
    }

    if (!has_token) return false;
    if (has_eot) {
        put_stated(out, e, stated);
        return true;
    }

    cJSON *list = cJSON_CreateArray();
    for (const cJSON *item = first_token(stated); item; item = next_token(item, stated))
        if (json_int_value(item, 0, V - 1, &token))
            cJSON_AddItemToArray(list, cJSON_CreateNumber((double)token));
    cJSON_AddItemToArray(list, cJSON_CreateNumber((double)eot));
    put_value(out, list);
    cJSON_Delete(list);
    return true;
}

// One key of ours: with our value, or the directory's, or not at all.
static void put_own(FILE *out, const ModelExtras *e, const cJSON *own, const char *line, int length,
                    int64_t eot, bool has_tokenizer, int64_t V) {
    static const char *const taken[] = {
        "pad_token_id",      "attn_pdrop",        "embd_pdrop",
        "resid_pdrop",       "attention_dropout", "residual_dropout",
        "embedding_dropout", "initializer_range", NULL};
    const cJSON *stated = cJSON_GetObjectItemCaseSensitive(e->config, own->string);
    const bool is_begin = strcmp(own->string, "bos_token_id") == 0;
    int64_t token;
    if (is_begin && !stated && !has_tokenizer) return; // the default of its class
    // One beyond the vocabulary, which is none, gives way to the tokenizer's.
    const bool keeps =
        is_begin && stated &&
        (!has_tokenizer || cJSON_IsNull(stated) || json_int_value(stated, 0, V - 1, &token));
    if (strcmp(own->string, "eos_token_id") == 0 && stated) {
        fprintf(out, "  \"%s\": ", own->string);
        if (!put_ends(out, e, stated, eot, V)) put_value(out, own);
        fputs(",\n", out);
    } else if (keeps || (stated && is_one_of(own->string, taken))) {
        fprintf(out, "  \"%s\": ", own->string);
        put_stated(out, e, stated);
        fputs(",\n", out);
    } else {
        fprintf(out, "%.*s\n", length, line);
    }
}

// A line of our text has one key.
char *model_extras_config(const ModelExtras *e, char *own, int64_t eot, bool has_tokenizer,
                          int64_t V) {
    // They would contradict ours, or name code that is not taken over.
    static const char *const dropped[] = {"dtype", "rope_scaling", "auto_map",
                                          "quantization_config", NULL};
    if (!e->config) return own;
    cJSON *ours = cJSON_Parse(own);
    REQUIRE_MEMORY(ours, "a config.json");
    const cJSON *item = ours->child, *extra;
    char *text = NULL;
    size_t bytes;
    FILE *out = text_open(&text, &bytes);
    for (const char *line = own, *end; (end = strchr(line, '\n')); line = end + 1) {
        const bool is_key = strncmp(line, "  \"", 3) == 0;
        if (is_key && !item->next) { // the last of ours ends the object
            cJSON_ArrayForEach(extra, e->config) {
                if (cJSON_GetObjectItemCaseSensitive(e->config, extra->string) != extra ||
                    cJSON_GetObjectItemCaseSensitive(ours, extra->string) ||
                    is_one_of(extra->string, dropped))
                    continue;
                fputs("  ", out);
                format_json_string(out, extra->string, strlen(extra->string));
                fputs(": ", out);
                put_stated(out, e, extra);
                fputs(",\n", out);
            }
        }
        if (is_key && item->next)
            put_own(out, e, item, line, (int)(end - line), eot, has_tokenizer, V);
        else
            fprintf(out, "%.*s\n", (int)(end - line), line);
        if (is_key) item = item->next;
    }
    fclose(out);
    cJSON_Delete(ours);
    free(own);
    return text;
}
