// Weights from Hugging Face directories and llm.c .bin files: the same values in our layout, and clear words about
// everything that is not one of the two.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "llmc/store/atomic_file.h"
#include "llmc/store/safetensors.h"
#include "llmc/store/weights_file.h"
#include "test/unit/mutate.h"
#include "test/unit/store_fixture.h"

#include <stdlib.h>
#include <string.h>

// C = 80 and max_T = 70 are no multiples of the transposition's tiles and strips.
static const ModelConfig config = {.max_T = 70, .V = 130, .Vp = 256, .L = 2, .NH = 4, .C = 80};

// The weight of tensor i at (row, col): 7 bits and a sign, so that bf16 and fp16 hold it exactly.
static float value(int i, int64_t row, int64_t col) {
    return (float)((i * 37 + row * 11 + col * 5) % 251 - 125) / 64.0f;
}

// ------------------------------------------------------------------------------------------------- making such files

typedef struct {
    DType dtype;
    bool prefix;      // "transformer." before the names
    bool extras;      // lm_head.weight and mask buffers beside the weights
    const char *omit; // a tensor that is left out
    const char *add;  // a tensor that does not belong there
} Variant;

static void append(SafetensorsWriter *w, DType dtype, float x) {
    uint16_t half = dtype == DTYPE_BF16 ? float_to_bf16(x) : float_to_fp16(x);
    assert_true(
        safetensors_writer_append(w, dtype == DTYPE_FP32 ? (void *)&x : (void *)&half, dtype_size(dtype), &err));
}

static SafetensorsEntry entry(const char *name, DType dtype, int64_t d0, int64_t d1) {
    SafetensorsEntry e = {.dtype = dtype, .rank = d1 ? 2 : 1, .shape = {d0, d1}};
    snprintf(e.name, sizeof e.name, "%s", name);
    return e;
}

static int declare(SafetensorsEntry *entries, const Parameter *table, Variant v) {
    int n = 0;
    for (int i = 0; i < parameter_count(&config); i++) {
        const Parameter *p = &table[i];
        int64_t rows = p->file_rows, cols = p->rank == 2 ? p->cols : 0;
        const char *name = v.prefix ? p->name : p->name + strlen("transformer.");
        if (v.omit && strcmp(p->name, v.omit) == 0) continue;
        entries[n++] = p->spec->transposed ? entry(name, v.dtype, cols, rows) : entry(name, v.dtype, rows, cols);
    }
    if (v.extras) {
        entries[n++] = entry("lm_head.weight", v.dtype, config.V, config.C);
        entries[n++] = entry("h.0.attn.bias", v.dtype, 3, 3);
        entries[n++] = entry("transformer.h.1.attn.masked_bias", v.dtype, 1, 0);
    }
    if (v.add) entries[n++] = entry(v.add, v.dtype, 2, 0);
    return n;
}

static void write_safetensors(const char *path, Variant v) {
    Parameter *table = parameter_table(&config);
    SafetensorsEntry entries[64];
    int count = declare(entries, table, v);
    SafetensorsWriter *w = safetensors_writer_open(path, entries, count, NULL, &err);
    assert_non_null(w);
    int n = 0;
    for (int i = 0; i < parameter_count(&config); i++) {
        if (v.omit && strcmp(table[i].name, v.omit) == 0) continue;
        bool swap = table[i].spec->transposed;
        for (int64_t a = 0; a < entries[n].shape[0]; a++)
            for (int64_t b = 0; b < (entries[n].rank == 2 ? entries[n].shape[1] : 1); b++)
                append(w, v.dtype, swap ? value(i, b, a) : value(i, a, b));
        n++;
    }
    for (; n < count; n++)
        for (int64_t k = 0; k < entries[n].bytes / (int64_t)dtype_size(v.dtype); k++) append(w, v.dtype, -7.0f);
    assert_true(safetensors_writer_commit(w, NULL, NULL, &err));
    free(table);
}

static const char *write_huggingface(Variant v) {
    char *text = huggingface_config_json(&config, -1);
    write_bytes(tmpdir_file(&tmp, "config.json"), text, strlen(text));
    free(text);
    write_safetensors(tmpdir_file(&tmp, "model.safetensors"), v);
    return tmp.path;
}

// An llm.c model; rows of padding hold 9, which no reader may hand out. Returns its path.
static const char *write_llmc(int version) {
    const char *path = tmpdir_file(&tmp, "model.bin");
    int32_t header[256] = {20240326, version, 70, 130, 2, 4, 80, 256};
    Parameter *table = parameter_table(&config);
    FILE *f = fopen(path, "wb");
    fwrite(header, sizeof header, 1, f);
    for (int i = 0; i < parameter_count(&config); i++)
        for (int64_t r = 0; r < table[i].rows; r++)
            for (int64_t c = 0; c < table[i].cols; c++) {
                float x = r < table[i].file_rows ? value(i, r, c) : 9.0f;
                uint16_t half = float_to_bf16(x);
                fwrite(version == 3 ? (void *)&x : (void *)&half, version == 3 ? 4 : 2, 1, f);
            }
    fclose(f);
    free(table);
    return path;
}

// Every value of every tensor, read in pieces of `step` rows.
static void assert_reads_the_model(const char *path, int64_t step) {
    WeightsFile *f = weights_file_open(path, &err);
    if (!f) fail_msg("%s", err.text);
    assert_memory_equal(weights_file_config(f), &config, sizeof config);
    Parameter *table = parameter_table(&config);
    for (int i = 0; i < parameter_count(&config); i++) {
        const Parameter *p = &table[i];
        float *rows = malloc((size_t)(step * p->cols) * sizeof *rows);
        for (int64_t first = 0; first < p->rows; first += step) {
            int64_t n = p->rows - first < step ? p->rows - first : step;
            assert_true(weights_file_read(f, p, first, n, rows, &err));
            for (int64_t k = 0; k < n * p->cols; k++) {
                int64_t row = first + k / p->cols, col = k % p->cols;
                float expected = row < p->file_rows ? value(i, row, col) : 0.0f;
                if (rows[k] != expected) fail_msg("%s[%d][%d]", p->name, (int)row, (int)col);
            }
        }
        free(rows);
    }
    free(table);
    weights_file_close(f);
}

// ------------------------------------------------------------------------------------------------------ what is read

static void hugging_face_directories_are_read_in_every_dtype(void **state) {
    (void)state;
    const DType dtypes[] = {DTYPE_FP32, DTYPE_FP16, DTYPE_BF16};
    for (int i = 0; i < 3; i++)
        assert_reads_the_model(write_huggingface((Variant){.dtype = dtypes[i], .prefix = true}), 1000);
}

static void names_without_prefix_tied_heads_and_mask_buffers_are_fine(void **state) {
    (void)state;
    assert_reads_the_model(write_huggingface((Variant){.dtype = DTYPE_FP32, .extras = true}), 1000);
}

static void rows_may_be_read_in_any_pieces(void **state) {
    (void)state;
    assert_reads_the_model(write_huggingface((Variant){.dtype = DTYPE_FP32, .prefix = true}), 7);
    assert_reads_the_model(write_llmc(5), 7);
}

static void llmc_models_of_versions_3_and_5_are_read(void **state) {
    (void)state;
    assert_reads_the_model(write_llmc(3), 1000);
    assert_reads_the_model(write_llmc(5), 1000);
}

// --------------------------------------------------------------------------------------------------- what is refused

#define REFUSED(path, message)                                                                                         \
    do {                                                                                                               \
        assert_null(weights_file_open(path, &err));                                                                    \
        assert_message(message);                                                                                       \
    } while (0)

static void a_path_that_is_no_model_is_named_with_what_it_is(void **state) {
    (void)state;
    const char *file = tmpdir_file(&tmp, "file");
    REFUSED(tmpdir_file(&tmp, "none"), "none: cannot open the model: No such file");
    REFUSED(tmp.path, "no config.json in it");
    int32_t shard[512] = {20240520, 1, 512};
    write_bytes(file, shard, sizeof shard);
    REFUSED(file, "not a model but a token shard");
    write_bytes(file, "", 0);
    REFUSED(file, "its first word is 0, expected 20240326");
    const char *weights = tmpdir_file(&tmp, "w.safetensors");
    write_safetensors(weights, (Variant){.dtype = DTYPE_FP32});
    REFUSED(weights, "give the directory that holds this file");
}

static void a_tensor_too_few_or_too_many_is_named(void **state) {
    (void)state;
    REFUSED(write_huggingface((Variant){.dtype = DTYPE_FP32, .prefix = true, .omit = "transformer.h.1.ln_2.bias"}),
            "model.safetensors: tensor transformer.h.1.ln_2.bias is missing");
    REFUSED(write_huggingface((Variant){.dtype = DTYPE_FP32, .prefix = true, .add = "transformer.h.2.ln_2.bias"}),
            "tensor transformer.h.2.ln_2.bias is not part of a GPT-2 of 2 blocks");
    REFUSED(write_huggingface((Variant){.dtype = DTYPE_FP32, .prefix = true, .add = "ln_f.bias"}),
            "tensor ln_f.bias is not part");
    REFUSED(write_huggingface((Variant){.dtype = DTYPE_FP32, .prefix = true, .add = "lm_head.weight"}),
            "tensor lm_head.weight is (2) fp32, expected (130, 80) fp32");
}

static void a_directory_without_safetensors_says_what_to_do(void **state) {
    (void)state;
    write_huggingface((Variant){.dtype = DTYPE_FP32});
    unlink(tmpdir_file(&tmp, "model.safetensors"));
    REFUSED(tmp.path, "no model.safetensors beside its config.json");
    write_bytes(tmpdir_file(&tmp, "pytorch_model.bin"), "", 0);
    REFUSED(tmp.path, "safe_serialization=True");
    write_bytes(tmpdir_file(&tmp, "model.safetensors.index.json"), "", 0);
    REFUSED(tmp.path, "weights in several files are not read");
}

// The config.json of the model with one piece of text replaced.
static void edit_config(const char *from, const char *to) {
    char *text = huggingface_config_json(&config, 0), edited[4096];
    char *at = strstr(text, from);
    assert_non_null(at);
    int n = snprintf(edited, sizeof edited, "%.*s%s%s", (int)(at - text), text, to, at + strlen(from));
    write_bytes(tmpdir_file(&tmp, "config.json"), edited, (size_t)n);
    free(text);
}

static void configurations_that_compute_something_else_are_refused(void **state) {
    (void)state;
    static const struct {
        const char *from, *to, *message;
    } edits[] = {
        {"\"model_type\": \"gpt2\"", "\"model_type\": \"llama\"", "\"model_type\" is \"llama\", expected \"gpt2\""},
        {"\"model_type\": \"gpt2\",", "", "\"model_type\" is missing"},
        {"gelu_new", "relu", "\"activation_function\" is \"relu\""},
        {"\"n_embd\": 80", "\"n_embd\": \"80\"", "\"n_embd\" is \"80\", expected an integer"},
        {"\"n_embd\": 80", "\"n_embd\": 80.5", "\"n_embd\" is 80.5"},
        {"\"n_embd\": 80", "\"n_embd\": 1e300", "\"n_embd\" is 1"},
        {"\"n_embd\": 80", "\"n_embd\": 81", "multiple of the heads"},
        {"\"n_embd\": 80", "\"n_embd\": 80, \"n_embd\": 80", "\"n_embd\" is stated twice"},
        {"\"n_layer\": 2", "\"n_layer\": 0", "\"n_layer\" is 0"},
        {"\"n_layer\": 2", "\"n_layer\": 2000000000", "2000000000"},
        {"\"n_layer\": 2", "\"n_layer\": 1", "is not part of a GPT-2 of 1 blocks"},
        {"\"n_layer\": 2", "\"n_layer\": 3", "h.2.ln_1.weight is missing"},
        {"\"vocab_size\": 130", "\"vocab_size\": 131", "wte.weight is (130, 80) fp32, expected (131, 80) fp32"},
        {"\"n_positions\": 70", "\"n_positions\": 71", "wpe.weight is (70, 80) fp32, expected (71, 80) fp32"},
        {"\"n_inner\": null", "\"n_inner\": 160", "\"n_inner\" is 160, expected an integer from 320 to 320"},
        {"1e-05", "1e-06", "\"layer_norm_epsilon\" is 1e-06"},
        {"embeddings\": true", "embeddings\": false", "\"tie_word_embeddings\" is false"},
        {"{", "{\"scale_attn_by_inverse_layer_idx\": true,", "only false is supported"},
        {"{", "[", "not valid JSON"},
    };
    write_huggingface((Variant){.dtype = DTYPE_FP32, .prefix = true});
    for (size_t i = 0; i < sizeof edits / sizeof edits[0]; i++) {
        edit_config(edits[i].from, edits[i].to);
        REFUSED(tmp.path, edits[i].message);
    }
    edit_config("\"n_inner\": null", "\"n_inner\": 320"); // which is what null means
    assert_reads_the_model(tmp.path, 1000);
}

static void llmc_headers_that_do_not_fit_are_refused(void **state) {
    (void)state;
    static const struct {
        int word;
        int32_t number;
        const char *message;
    } edits[] = {
        {0, 20240527, "llm.c's optimizer state"},
        {1, 1, "llm.c model version 1, expected 3 (fp32) or 5 (bf16)"},
        {1, 5, "bytes behind the last tensor"},
        {2, 71, "truncated"},
        {3, 0, "vocabulary of 0 tokens"},
        {3, -130, "vocabulary of -130 tokens"},
        {4, INT32_MAX, "blocks"},
        {4, -1, "blocks"},
        {5, 3, "multiple of the heads"},
        {6, 0, "channels"},
        {7, 130, "padded vocabulary 130, expected 256 (130 rounded up to a multiple of 128)"},
    };
    const char *path = write_llmc(3), *edited = tmpdir_file(&tmp, "edited.bin");
    size_t n;
    unsigned char *good = read_bytes(path, &n), saved[4];
    for (size_t i = 0; i < sizeof edits / sizeof edits[0]; i++) {
        memcpy(saved, good + 4 * edits[i].word, 4);
        memcpy(good + 4 * edits[i].word, &edits[i].number, 4);
        write_bytes(edited, good, n);
        memcpy(good + 4 * edits[i].word, saved, 4);
        REFUSED(edited, edits[i].message);
    }
    write_bytes(edited, good, n - 1);
    REFUSED(edited, "truncated");
    write_bytes(edited, good, 1023);
    REFUSED(edited, "1023 bytes, expected a header of 1024: truncated");
    free(good);
}

// --------------------------------------------------------------------------------------------------------- any bytes

// Opens and reads everything; a refusal must say something.
static bool survive(const char *path) {
    err.text[0] = '\0';
    WeightsFile *f = weights_file_open(path, &err);
    if (!f) {
        assert_true(err.text[0] != '\0');
        return false;
    }
    Parameter *table = parameter_table(weights_file_config(f));
    for (int i = 0; i < parameter_count(weights_file_config(f)); i++) {
        float *out = malloc((size_t)parameter_numel(&table[i]) * sizeof *out);
        assert_true(weights_file_read(f, &table[i], 0, table[i].rows, out, &err));
        free(out);
    }
    free(table);
    weights_file_close(f);
    return true;
}

// `rounds` times the file at path, damaged within its first `header` bytes (mostly), is put at `where` and `model` is
// opened.
static void damage(const char *path, const char *where, const char *model, size_t header, int rounds) {
    size_t n;
    unsigned char *good = read_bytes(path, &n), *bytes = malloc(n + MUTATE_MAX_GROWTH);
    int accepted = 0;
    for (int round = 0; round < rounds; round++) {
        memcpy(bytes, good, n);
        write_bytes(where, bytes, mutate(bytes, n, header, (uint64_t)round));
        accepted += survive(model);
    }
    assert_in_range(accepted, 1, rounds / 2); // both kinds happened
    free(bytes);
    free(good);
}

static void damaged_llmc_models_are_read_or_refused_with_a_message(void **state) {
    (void)state;
    const char *edited = tmpdir_file(&tmp, "edited.bin");
    damage(write_llmc(5), edited, edited, 32, 300);
}

static void damaged_configurations_are_read_or_refused_with_a_message(void **state) {
    (void)state;
    write_huggingface((Variant){.dtype = DTYPE_BF16, .prefix = true});
    const char *path = tmpdir_file(&tmp, "config.json");
    damage(path, path, tmp.path, SIZE_MAX, 3000);
}

static void damaged_weights_are_read_or_refused_with_a_message(void **state) {
    (void)state;
    write_huggingface((Variant){.dtype = DTYPE_BF16, .prefix = true, .extras = true});
    const char *path = tmpdir_file(&tmp, "model.safetensors");
    damage(path, path, tmp.path, 2500, 300);
}

#define TEST(f) cmocka_unit_test_setup_teardown(f, setup, teardown)

int main(void) {
    const struct CMUnitTest tests[] = {
        TEST(hugging_face_directories_are_read_in_every_dtype),
        TEST(names_without_prefix_tied_heads_and_mask_buffers_are_fine),
        TEST(rows_may_be_read_in_any_pieces),
        TEST(llmc_models_of_versions_3_and_5_are_read),
        TEST(a_path_that_is_no_model_is_named_with_what_it_is),
        TEST(a_tensor_too_few_or_too_many_is_named),
        TEST(a_directory_without_safetensors_says_what_to_do),
        TEST(configurations_that_compute_something_else_are_refused),
        TEST(llmc_headers_that_do_not_fit_are_refused),
        TEST(damaged_llmc_models_are_read_or_refused_with_a_message),
        TEST(damaged_configurations_are_read_or_refused_with_a_message),
        TEST(damaged_weights_are_read_or_refused_with_a_message),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
