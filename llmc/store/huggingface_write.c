// See huggingface.h: writing. Each file is written atomically and checksummed on the way; the directory as a whole is
// its caller's to commit.
#include "llmc/base/atomic_file.h"
#include "llmc/store/huggingface.h"
#include "llmc/store/safetensors.h"
#include "llmc/store/state_writer.h"
#include <cjson/cJSON.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

const char *const huggingface_file_names[HF_FILES] = {
    [HF_WEIGHTS] = "model.safetensors",
    [HF_CONFIG] = "config.json",
    [HF_TOKENIZER] = "tokenizer.json",
    [HF_TOKENIZER_CONFIG] = "tokenizer_config.json",
};

// ------------------------------------------------------------------------------------------------------------- weights

static SafetensorsEntry describe(const Parameter *p, DType dtype) {
    SafetensorsEntry e = {.dtype = dtype, .rank = p->rank, .shape = {p->file_rows, p->rank == 2 ? p->cols : 0}};
    if (p->spec->transposed) e.shape[0] = p->cols, e.shape[1] = p->file_rows;
    snprintf(e.name, sizeof e.name, "%s", p->name);
    return e;
}

static bool append(void *writer, const void *data, size_t bytes, Error *err) {
    return safetensors_writer_append(writer, data, bytes, err);
}

static bool write_weights(const char *path, const HuggingFaceModel *m, FileFacts *facts, Error *err) {
    static const char *const metadata[] = {"format", "pt", NULL}; // transformers refuses files without it
    const Parameter *table = gpt2_parameters(m->model);
    const int count = gpt2_num_tensors(m->model);
    SafetensorsEntry *entries = calloc((size_t)count, sizeof *entries);
    REQUIRE_MEMORY(entries != NULL, "the files of a model");
    for (int i = 0; i < count; i++) entries[i] = describe(&table[i], m->dtype);
    SafetensorsWriter *w = safetensors_writer_open(path, entries, count, metadata, err);
    free(entries);
    bool ok = w != NULL;
    for (int i = 0; ok && i < count; i++) {
        const StateForm form = {m->dtype, table[i].spec->transposed};
        ok = state_write(m->model, i, form, append, w, err);
    }
    if (ok) return safetensors_writer_commit(w, &facts->bytes, &facts->checksum, err);
    safetensors_writer_abandon(w);
    return false;
}

// ----------------------------------------------------------------------------------------------------- the small files

static bool write_text(const char *path, const char *text, size_t bytes, FileFacts *facts, Error *err) {
    AtomicFile *f = atomic_file_create(path, err);
    if (!f) return false;
    atomic_file_write(f, text, bytes, err); // commit reports a failure
    return atomic_file_commit(f, &facts->bytes, &facts->checksum, err);
}

char *huggingface_config_json(const ModelConfig *config, DType dtype, int64_t eot) {
    const char *torch_dtype = dtype == DTYPE_BF16 ? "bfloat16" : dtype == DTYPE_FP16 ? "float16" : "float32";
    char token[32] = "null", *text = NULL;
    if (eot >= 0) snprintf(token, sizeof token, "%lld", (long long)eot);
    int length = asprintf(&text,
                          "{\n"
                          "  \"architectures\": [\"GPT2LMHeadModel\"],\n"
                          "  \"model_type\": \"gpt2\",\n"
                          "  \"activation_function\": \"gelu_new\",\n"
                          "  \"n_positions\": %lld,\n"
                          "  \"n_ctx\": %lld,\n"
                          "  \"vocab_size\": %lld,\n"
                          "  \"n_layer\": %lld,\n"
                          "  \"n_head\": %lld,\n"
                          "  \"n_embd\": %lld,\n"
                          "  \"n_inner\": null,\n"
                          "  \"layer_norm_epsilon\": 1e-05,\n"
                          "  \"initializer_range\": 0.02,\n"
                          "  \"attn_pdrop\": 0.0,\n"
                          "  \"embd_pdrop\": 0.0,\n"
                          "  \"resid_pdrop\": 0.0,\n"
                          "  \"tie_word_embeddings\": true,\n"
                          "  \"bos_token_id\": %s,\n"
                          "  \"eos_token_id\": %s,\n"
                          "  \"torch_dtype\": \"%s\"\n"
                          "}\n",
                          (long long)config->max_T, (long long)config->max_T, (long long)config->V,
                          (long long)config->L, (long long)config->NH, (long long)config->C, token, token, torch_dtype);
    REQUIRE_MEMORY(length >= 0, "the files of a model");
    return text;
}

static bool write_config(const char *path, const HuggingFaceModel *m, FileFacts *facts, Error *err) {
    char *text = huggingface_config_json(&gpt2_options(m->model)->config, m->dtype, m->eot);
    const bool ok = write_text(path, text, strlen(text), facts, err);
    free(text);
    return ok;
}

static bool write_tokenizer(const char *path, const Tokenizer *t, FileFacts *facts, Error *err) {
    size_t bytes;
    char *text = tokenizer_to_json(t, &bytes, err);
    if (!text) return error_prefix(err, "%s", path);
    const bool ok = write_text(path, text, bytes, facts, err);
    free(text);
    return ok;
}

// What transformers wants to know besides tokenizer.json. The general class takes everything from that file; without
// the last line, decode would take spaces out of the text ("a ." -> "a.").
static bool write_tokenizer_config(const char *path, const HuggingFaceModel *m, FileFacts *facts, Error *err) {
    cJSON *root = cJSON_CreateObject();
    const int32_t eot = tokenizer_eot(m->tokenizer);
    size_t length = 0;
    const char *spelling = eot >= 0 ? tokenizer_decode(m->tokenizer, eot, &length) : "";
    char *token = strndup(spelling, length);
    bool made = root && token && cJSON_AddStringToObject(root, "tokenizer_class", "PreTrainedTokenizerFast") &&
                cJSON_AddNumberToObject(root, "model_max_length", (double)gpt2_options(m->model)->config.max_T);
    if (made && eot >= 0)
        made = cJSON_AddStringToObject(root, "bos_token", token) && cJSON_AddStringToObject(root, "eos_token", token);
    made = made && cJSON_AddFalseToObject(root, "clean_up_tokenization_spaces");
    char *text = made ? cJSON_Print(root) : NULL;
    REQUIRE_MEMORY(text != NULL, "the files of a model");
    const bool ok = write_text(path, text, strlen(text), facts, err);
    free(text);
    free(token);
    cJSON_Delete(root);
    return ok;
}

bool huggingface_write(const char *directory, const HuggingFaceModel *m, FileFacts facts[HF_FILES], Error *err) {
    bool ok = true;
    for (int file = 0; ok && file < HF_FILES; file++) {
        facts[file] = (FileFacts){.bytes = -1};
        const bool of_tokenizer = file == HF_TOKENIZER || file == HF_TOKENIZER_CONFIG;
        if (of_tokenizer && !m->tokenizer) continue;
        char *path = path_join(directory, huggingface_file_names[file]);
        ok = file == HF_WEIGHTS     ? write_weights(path, m, &facts[file], err)
             : file == HF_CONFIG    ? write_config(path, m, &facts[file], err)
             : file == HF_TOKENIZER ? write_tokenizer(path, m->tokenizer, &facts[file], err)
                                    : write_tokenizer_config(path, m, &facts[file], err);
        free(path);
    }
    return ok;
}
