// Weights from Hugging Face directories, of one file or several, and llm.c .bin files: the same
// values in our layout, and clear words about everything that is not one of them.

#include "llmc/store/huggingface.h"
#include "llmc/store/huggingface_config.h"
#include "llmc/store/safetensors.h"
#include "llmc/store/weights_file.h"
#include "test/fixture.h"
#include "test/unit/store_fixture.h"

TestFixture test_each = {setup, tmp_teardown};

// C = 80 and max_T = 70 are no multiples of the transposition's tiles and strips.
static const ModelConfig config = {.max_T = 70, .V = 130, .Vp = 256, .L = 2, .NH = 4, .C = 80};

// Element e of tensor i: 7 bits and a sign, so that bf16 and fp16 hold it exactly.
static float value(int i, int64_t e) {
    return (float)((i * 37 + e * 11 + e / 77) % 251 - 125) / 64.0f;
}

static uint32_t bits_of(DType dtype, float x) {
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    return dtype == DTYPE_FP32 ? bits : dtype == DTYPE_BF16 ? float_to_bf16(x) : float_to_fp16(x);
}

static uint32_t value_bits(DType dtype, int i, int64_t e) { return bits_of(dtype, value(i, e)); }

// ------------------------------------------------------------------------------- making such files

typedef struct {
    DType dtype;
    bool prefix;       // "transformer." before the names
    bool extras;       // lm_head.weight and mask buffers beside the weights
    const char *omit;  // a tensor that is left out
    const char *add;   // a tensor that does not belong there
    const char *wrap;  // what stands before all names
    bool head_only;    // lm_head.weight in place of wte
    const char *wrong; // a tensor whose second value is one
    float value;       // this one
    int shards; // above 1: tensor i of the table stands in file i % shards; what is added in the
                // last
} Variant;

static void append(SafetensorsWriter *w, DType dtype, float x) {
    const uint32_t bits = bits_of(dtype, x); // little-endian
    assert_ok(safetensors_writer_append(w, &bits, dtype_size(dtype), &err));
}

static SafetensorsEntry entry(const char *name, DType dtype, int64_t d0, int64_t d1) {
    SafetensorsEntry e = {.dtype = dtype, .rank = d1 ? 2 : 1, .shape = {d0, d1}};
    snprintf(e.name, sizeof e.name, "%s", name);
    return e;
}

static bool stands_in(Variant v, int i, const Parameter *table, int shard) {
    if (i >= parameter_count(&config)) return v.shards <= 1 || shard == v.shards - 1;
    return !(v.omit && strcmp(table[i].name, v.omit) == 0) &&
           (v.shards <= 1 || i % v.shards == shard);
}

static int declare(SafetensorsEntry *entries, const Parameter *table, Variant v, int shard) {
    int n = 0;

    for (int i = 0; i < parameter_count(&config); i++) {
        const Parameter *p = &table[i];
        int64_t rows = p->file_rows, cols = p->rank == 2 ? p->cols : 0;
        const char *name = v.prefix ? p->name : p->name + strlen("transformer.");
        char wrapped[128];
        snprintf(wrapped, sizeof wrapped, "%s%s", v.wrap ? v.wrap : "",
                 i == 0 && v.head_only ? "lm_head.weight" : name);
        if (!stands_in(v, i, table, shard)) continue;
        entries[n++] = p->transposed ? entry(wrapped, v.dtype, cols, rows)
                                     : entry(wrapped, v.dtype, rows, cols);
    }

    if (!stands_in(v, parameter_count(&config), table, shard)) return n;
    if (v.extras) {
        entries[n++] = entry("lm_head.weight", v.dtype, config.V, config.C);
        entries[n++] = entry("h.0.attn.bias", v.dtype, 3, 3);
        entries[n++] = entry("transformer.h.1.attn.masked_bias", v.dtype, 1, 0);
    }

    if (v.add) entries[n++] = entry(v.add, v.dtype, 2, 0);
    return n;
}

// A file has more than the weights: the head, a mask of 3 x 3, and what masked scores become.
static float extra_value(const char *name, int64_t k) {
    if (strstr(name, "lm_head")) return value(0, k);
    if (strstr(name, "masked_bias")) return -10000.0f;
    return k % 3 <= k / 3 ? 1.0f : 0.0f;
}

static void append_value(SafetensorsWriter *w, Variant v, const char *name, bool is_second,
                         float x) {
    append(w, v.dtype, is_second && v.wrong && strstr(name, v.wrong) ? v.value : x);
}

static void write_shard(const char *path, Variant v, int shard) {
    AUTO_FREE Parameter *table = parameter_table(&config);
    SafetensorsEntry entries[64];
    int count = declare(entries, table, v, shard);

    SafetensorsWriter *w = safetensors_writer_open(path, entries, count, NULL, &err);
    assert_non_null(w);

    int n = 0;
    for (int i = 0; i < parameter_count(&config); i++) {
        if (!stands_in(v, i, table, shard)) continue;
        const bool swap = table[i].transposed;
        const int64_t cols = table[i].cols;
        for (int64_t a = 0; a < entries[n].shape[0]; a++)
            for (int64_t b = 0; b < (entries[n].rank == 2 ? entries[n].shape[1] : 1); b++)
                append_value(w, v, entries[n].name, a + b == 1 && b == (entries[n].rank == 2),
                             value(i, swap ? b * cols + a : a * cols + b));
        n++;
    }

    for (; n < count; n++)
        for (int64_t k = 0; k < entries[n].bytes / (int64_t)dtype_size(v.dtype); k++)
            append_value(w, v, entries[n].name, k == 1 || entries[n].bytes < 5,
                         extra_value(entries[n].name, k));

    assert_true(safetensors_writer_commit(w, NULL, NULL, &err));
}

static const char *shard_path(int shard, int shards) {
    char name[64];
    snprintf(name, sizeof name, "model-%05d-of-%05d.safetensors", shard + 1, shards);
    return tmp_file(name);
}

static void write_index(Variant v) {
    AUTO_FREE Parameter *table = parameter_table(&config);
    FILE *f = fopen(tmp_file("model.safetensors.index.json"), "w");
    assert_non_null(f);

    fputs("{\"metadata\": {\"total_size\": 0}, \"weight_map\": {", f);
    const char *comma = "";

    for (int shard = 0; shard < v.shards; shard++) {
        SafetensorsEntry entries[64];
        const int count = declare(entries, table, v, shard);
        for (int n = 0; n < count; n++, comma = ", ")
            fprintf(f, "%s\"%s\": \"%s\"", comma, entries[n].name,
                    strrchr(shard_path(shard, v.shards), '/') + 1);
    }

    fputs("}}\n", f);
    fclose(f);
}

static const char *write_huggingface(Variant v) {
    AUTO_FREE char *text = huggingface_config_json(&config, v.dtype, -1, -1);
    write_text(tmp_file("config.json"), text);
    for (int shard = 0; shard < v.shards; shard++)
        write_shard(shard_path(shard, v.shards), v, shard);
    if (v.shards)
        write_index(v);
    else
        write_shard(tmp_file("model.safetensors"), v, 0);
    return tmp.path;
}

// Rows of padding hold 9, which no reader may hand out.
static const char *write_llmc_model(DType dtype) {
    write_llmc(tmp_file("model.bin"), &config, dtype, bits_of(dtype, 9.0f), value_bits);
    return tmp_file("model.bin");
}

// Every value of every tensor, read in pieces of `step` rows.
static void assert_reads_the_model(const char *path, int64_t step) {
    WeightsFile *f = weights_file_open(path, &err);
    assert_ok(f);

    assert_memory_equal(weights_file_config(f), &config, sizeof config);

    AUTO_FREE Parameter *table = parameter_table(&config);
    for (int i = 0; i < parameter_count(&config); i++) {
        const Parameter *p = &table[i];
        AUTO_FREE float *rows = malloc((size_t)(step * p->cols) * sizeof *rows);
        for (int64_t first = 0; first < p->rows; first += step) {
            int64_t n = p->rows - first < step ? p->rows - first : step;
            assert_true(weights_file_read(f, p, first, n, rows, &err));
            for (int64_t k = 0; k < n * p->cols; k++) {
                const int64_t e = first * p->cols + k;
                const float expected = e < p->file_rows * p->cols ? value(i, e) : 0.0f;
                if (rows[k] != expected) fail_msg("%s, element %d", p->name, (int)e);
            }
        }
    }

    weights_file_close(f);
}

// ------------------------------------------------------------------------------------ what is read

#define INDEX "model.safetensors.index.json"
static const Variant in_three = {.dtype = DTYPE_BF16, .prefix = true, .shards = 3};

TEST(models_of_every_form_are_read_in_any_pieces) {
    const Variant variants[] = {
        {.dtype = DTYPE_FP32, .prefix = true},
        {.dtype = DTYPE_FP16, .prefix = true},
        {.dtype = DTYPE_BF16, .prefix = true},
        {.dtype = DTYPE_FP32, .extras = true}, // names without prefix, a tied head, mask buffers
        in_three,                              // in several files, by their index
        {.dtype = DTYPE_FP16, .extras = true, .shards = 2},
        {.dtype = DTYPE_FP32, .shards = 1},
    };

    for (size_t i = 0; i < sizeof variants / sizeof variants[0]; i++) {
        tmp_teardown(NULL), tmp_setup(NULL);
        assert_reads_the_model(write_huggingface(variants[i]), i % 2 ? 1000 : 7);
    }

    // One file stands beside the index: transformers takes that one.
    write_huggingface((Variant){.dtype = DTYPE_FP32});
    write_text(tmp_file(INDEX), "rubbish");
    assert_reads_the_model(tmp.path, 1000);

    assert_reads_the_model(write_llmc_model(DTYPE_FP32), 1000);
    assert_reads_the_model(write_llmc_model(DTYPE_BF16), 7);
}

// --------------------------------------------------------------------------------- what is refused

#define REFUSED(path, message) assert_error(weights_file_open(path, &err), message)

TEST(a_path_that_is_no_model_is_named_with_what_it_is) {
    const char *file = tmp_file("file");
    REFUSED(tmp_file("none"), "none: cannot open the model: No such file");
    REFUSED(tmp.path, "has no config.json");

    int32_t shard[512] = {20240520, 1, 512};
    write_bytes(file, shard, sizeof shard);
    REFUSED(file, "not a model but a token shard");
    write_bytes(file, "", 0);
    REFUSED(file, "not a model but an empty file");
    write_bytes(file, "\1\2\3", 3);
    REFUSED(file, "its first word is 197121, expected 20240326");
    write_bytes(file, "PK\3\4      archive/data.pkl", 26);
    REFUSED(file, "not a model but a PyTorch checkpoint: ");

    const char *weights = tmp_file("w.safetensors");
    write_shard(weights, (Variant){.dtype = DTYPE_FP32}, 0);
    REFUSED(weights, "give -e the directory that holds it");
    write_huggingface((Variant){.dtype = DTYPE_FP32});
    unlink(tmp_file("model.safetensors"));
    REFUSED(tmp.path,
            "no model.safetensors next to its config.json; load other weights in Python and save");

    write_bytes(tmp_file("a.png"), "\x89PNG\r\n\x1A\n", 8); // says nothing of the weights
    REFUSED(tmp.path, "no model.safetensors next to its config.json");
    assert_null(strstr(err.text, "a.png"));
    write_bytes(tmp_file("empty.bin"), "", 0); // nor do these
    write_bytes(tmp_file("unknown.bin"), "1", 1);
    assert_int_equal(mkdir(tmp_file("directory.bin"), 0777), 0);
    REFUSED(tmp.path, "no model.safetensors next to its config.json");

    write_bytes(tmp_file("b.gguf"), "GGUF", 4);
    REFUSED(tmp.path, "b.gguf is GGUF weights: give the Hugging Face directory of the model");
    unlink(tmp_file("b.gguf"));
    write_bytes(tmp_file("pytorch_model.bin"), "PK\x03\x04", 4);
    REFUSED(tmp.path, "safe_serialization=True");

    assert_int_equal(mkfifo(tmp_file("pipe"), 0600), 0);
    REFUSED(tmp_file("pipe"), "not a plain file but a pipe");
    REFUSED("/proc/self/mem/none", "cannot open the model");
}

TEST(what_wrappers_put_before_the_names_and_a_head_in_place_of_wte_are_read) {
    const char *const wraps[] = {"_orig_mod.", "module.", "_orig_mod.module.", "model."};
    for (size_t i = 0; i < sizeof wraps / sizeof *wraps; i++)
        assert_reads_the_model(
            write_huggingface((Variant){.dtype = DTYPE_FP32, .prefix = true, .wrap = wraps[i]}),
            1000);
    assert_reads_the_model(
        write_huggingface((Variant){.dtype = DTYPE_FP16, .prefix = true, .head_only = true}), 1000);
}

// The message of loading what can be opened.
static const char *why_not_loaded(Variant v) {
    WeightsFile *f = weights_file_open(write_huggingface(v), &err);
    assert_non_null(f);
    AUTO_FREE Parameter *table = parameter_table(&config);
    AUTO_FREE float *values = malloc((size_t)(256 * 80 * 4) * sizeof *values);
    bool ok = weights_file_check_rest(f, &err);
    for (int i = 0; ok && i < parameter_count(&config); i++)
        ok = weights_file_read(f, &table[i], 0, table[i].rows, values, &err);
    weights_file_close(f);
    return ok ? "" : err.text;
}

#define NOT_LOADED(message, ...)                                                                   \
    assert_non_null(strstr(why_not_loaded((Variant){.dtype = DTYPE_FP32, __VA_ARGS__}), message))

TEST(a_head_that_is_not_tied_and_foreign_tensors_are_refused) {
    assert_string_equal(why_not_loaded((Variant){.dtype = DTYPE_FP32, .extras = true}), "");
    NOT_LOADED("lm_head.weight differs from wte.weight, at [0, 1] 0.5 and ", .extras = true,
               .wrong = "lm_head", .value = 0.5f);
    REFUSED(write_huggingface((Variant){.dtype = DTYPE_FP32, .add = "h.2.attn.bias"}),
            "tensor h.2.attn.bias is not part");
    REFUSED(
        write_huggingface((Variant){.dtype = DTYPE_FP32, .add = "h.0.attn.c_attn.lora_A.weight"}),
        "merge it into the model with merge_and_unload()");
}

TEST(a_value_that_is_not_finite_is_named_with_tensor_and_place) {
    NOT_LOADED(
        "tensor transformer.h.1.mlp.c_fc.weight has a value that is not finite, inf at [0, 1]",
        .wrong = "h.1.mlp.c_fc.weight", .value = (float)INFINITY);
    NOT_LOADED("tensor transformer.wte.weight has a value that is not finite, nan at [0, 1]",
               .wrong = "wte.weight", .value = (float)NAN);
    NOT_LOADED("tensor transformer.ln_f.bias has a value that is not finite, -inf at [1]",
               .wrong = "ln_f.bias", .value = -(float)INFINITY);
}

TEST(a_tensor_too_few_or_too_many_is_named) {
    REFUSED(write_huggingface((Variant){
                .dtype = DTYPE_FP32, .prefix = true, .omit = "transformer.h.1.ln_2.bias"}),
            "model.safetensors: tensor transformer.h.1.ln_2.bias is missing");
    REFUSED(write_huggingface(
                (Variant){.dtype = DTYPE_FP32, .prefix = true, .add = "transformer.h.2.ln_2.bias"}),
            "tensor transformer.h.2.ln_2.bias is not part of a GPT-2 of 2 blocks");
    REFUSED(write_huggingface((Variant){.dtype = DTYPE_FP32, .prefix = true, .add = "ln_f.bias"}),
            "tensor ln_f.bias is not part");
    REFUSED(
        write_huggingface((Variant){.dtype = DTYPE_FP32, .prefix = true, .add = "lm_head.weight"}),
        "tensor lm_head.weight is (2) fp32, expected (130, 80) fp32");
}

// A directory of that shape whose weights take no room on the disk: a header, and a hole for the
// data.
static void write_hole(const ModelConfig *shape) {
    AUTO_FREE char *text = huggingface_config_json(shape, DTYPE_FP32, 50256, 50256);
    write_text(tmp_file("config.json"), text);

    AUTO_FREE Parameter *table = parameter_table(shape);
    FILE *f = fopen(tmp_file("model.safetensors"), "w");
    long long end = 0;

    fprintf(f, "LENGTH__{");
    for (int i = 0; i < parameter_count(shape); i++) {
        const Parameter *p = &table[i];
        const long long begin = end, rows = p->transposed ? p->cols : p->file_rows;
        end += p->file_rows * p->cols * 4;
        fprintf(f, "%s\"%s\":{\"dtype\":\"F32\",\"shape\":[%lld", i ? "," : "", p->name, rows);
        if (p->rank == 2) fprintf(f, ",%lld", (long long)(p->transposed ? p->file_rows : p->cols));
        fprintf(f, "],\"data_offsets\":[%lld,%lld]}", begin, end);
    }

    fputc('}', f);
    const uint64_t length = (uint64_t)ftell(f) - 8;
    rewind(f);
    fwrite(&length, 8, 1, f);
    fflush(f);

    assert_int_equal(ftruncate(fileno(f), (off_t)(8 + length) + end), 0);
    fclose(f);
}

TEST(all_sizes_of_gpt2_are_read) {
    static const struct {
        const char *name;
        int64_t millions;
    } sizes[] = {{"d12", 124}, {"d24", 354}, {"d36", 774}, {"d48", 1557}};

    for (int i = 0; i < 4; i++) {
        ModelConfig shape;
        assert_true(model_config_parse(&shape, sizes[i].name, &err));
        model_config_set_vocab(&shape, GPT2_VOCAB);
        write_hole(&shape);

        WeightsFile *f = weights_file_open(tmp.path, &err);
        assert_ok(f);
        assert_memory_equal(weights_file_config(f), &shape, sizeof shape);
        assert_int_equal(parameter_total(weights_file_config(f)) / 1000000, sizes[i].millions);

        Parameter *table = parameter_table(&shape), *last = &table[parameter_count(&shape) - 1];
        float values[1600];
        assert_true(weights_file_read(f, last, 0, last->rows, values, &err));
        free(table);
        weights_file_close(f);
    }
}

TEST(index_and_files_must_fit_each_other) {
    Variant cut = in_three;
    cut.omit = "transformer.h.0.ln_1.bias";
    REFUSED(write_huggingface(cut), INDEX ": tensor transformer.h.0.ln_1.bias is missing");

    write_huggingface(in_three);
    write_shard(shard_path(2, 3), in_three, 1); // the same tensors twice, others not at all
    REFUSED(tmp.path, "model-00003-of-00003.safetensors: tensor ");
    assert_message("model-00002-of-00003.safetensors too");

    write_huggingface(in_three);
    Variant also = in_three;
    also.add = "transformer.wte.weight";
    write_shard(shard_path(2, 3), also, 2);
    REFUSED(tmp.path, "model-00003-of-00003.safetensors: tensor transformer.wte.weight is in ");

    unlink(shard_path(1, 3));
    REFUSED(tmp.path,
            "model-00002-of-00003.safetensors: this file is missing; the weights are in 3 files");
    assert_message(INDEX);
}

TEST(an_index_that_contradicts_its_files_is_named) {
    static const char first[] = "model-00001-of-00003.safetensors",
                      last[] = "model-00003-of-00003.safetensors";
    char message[200];

    write_huggingface(in_three);
    replace_in_file(tmp_file(INDEX), first, last); // of the first tensor
    snprintf(message, sizeof message, "is in %s, but it is in ", last);
    REFUSED(tmp.path, INDEX ": states that tensor transformer.");
    assert_message(message);
    assert_message(first);

    write_huggingface(in_three);
    replace_in_file(tmp_file(INDEX), "\"weight_map\": {",
                    "\"weight_map\": {\"new\": \"model-00001-of-00003.safetensors\", ");
    REFUSED(tmp.path, INDEX
            ": states that tensor new is in model-00001-of-00003.safetensors, but no file has it");
}

TEST(an_index_names_at_most_1000_files) {
    write_huggingface(in_three);
    FILE *f = fopen(tmp_file(INDEX), "w");
    fputs("{\"weight_map\": {\"a\": \"a.safetensors\"", f);
    for (int i = 0; i < 1001; i++) fprintf(f, ", \"t%d\": \"%d.safetensors\"", i, i);
    fputs("}}", f);
    fclose(f);
    REFUSED(tmp.path, "names more than 1000 files");
}

TEST(tensors_of_another_type_are_refused_by_name_and_type) {
    static const char wpe[] = "\"transformer.wpe.weight\":{\"dtype\":";
    char from[64], to[64];
    // as many bytes
    snprintf(from, sizeof from, "%s\"F16\"", wpe), snprintf(to, sizeof to, "%s\"I16\"", wpe);
    write_huggingface((Variant){.dtype = DTYPE_FP16, .prefix = true});
    replace_in_file(tmp_file("model.safetensors"), from, to);
    REFUSED(
        tmp.path,
        "model.safetensors: tensor transformer.wpe.weight is I16, only F32, F16 and BF16 are read");
}

// The config.json of the model with one piece of text replaced.
static void edit_config(const char *from, const char *to) {
    AUTO_FREE char *text = huggingface_config_json(&config, DTYPE_FP32, 0, 0);
    write_text(tmp_file("config.json"), text);
    replace_in_file(tmp_file("config.json"), from, to);
}

TEST(the_end_of_text_token_is_that_of_the_configuration) {
    static const struct {
        const char *text;
        int64_t eot;
    } edits[] = {{"7", 7},   {"[9, 11]", 9}, {"null", -1}, {"130", -1},
                 {"-1", -1}, {"\"7\"", -1},  {"[]", -1}};

    write_huggingface((Variant){.dtype = DTYPE_FP32, .prefix = true});
    for (size_t i = 0; i < sizeof edits / sizeof edits[0]; i++) {
        char to[64];
        snprintf(to, sizeof to, "\"eos_token_id\": %s", edits[i].text);
        edit_config("\"eos_token_id\": 0", to);

        WeightsFile *f = weights_file_open(tmp.path, &err);
        assert_ok(f);
        assert_int_equal(weights_file_eot(f), edits[i].eot);
        weights_file_close(f);
    }
}

// test/fuzz/edits.def has what is refused.
TEST(configurations_under_other_names_are_the_same_model) {
    write_huggingface((Variant){.dtype = DTYPE_FP32, .prefix = true});
    edit_config("\"n_inner\": null", "\"n_inner\": 320"); // which is what null means
    assert_reads_the_model(tmp.path, 1000);
    const char *const names[][2] = {{"\"n_embd\"", "\"hidden_size\""},
                                    {"\"n_layer\"", "\"num_hidden_layers\""},
                                    {"\"n_head\"", "\"num_attention_heads\""},
                                    {"\"n_positions\"", "\"max_position_embeddings\""},
                                    {"GPT2LMHeadModel", "GPT2Model"}};

    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        edit_config(names[i][0], names[i][1]);
        assert_reads_the_model(tmp.path, 1000);
    }
    edit_config("gelu_new", "gelu_pytorch_tanh"); // another name of it
    assert_reads_the_model(tmp.path, 1000);
    edit_config("\"activation_function\": \"gelu_new\",", ""); // it is what transformers takes then
    assert_reads_the_model(tmp.path, 1000);
}

// The field must be there; the others have a value that is taken when they are missing, or are not
// looked at.
static void config_refuses(FieldChange change, const char *name) {
    static const char *const needed[] = {"model_type", "n_positions", "vocab_size",
                                         "n_layer",    "n_head",      "n_embd"},
                             *const read[] = {
                                 "activation_function", "tie_word_embeddings",
                                 "scale_attn_weights",  "scale_attn_by_inverse_layer_idx",
                                 "add_cross_attention", "n_inner",
                                 "layer_norm_epsilon",  "architectures"};

    bool is_needed = false, is_read = false;
    for (size_t i = 0; i < sizeof needed / sizeof *needed; i++)
        is_needed |= strcmp(name, needed[i]) == 0;
    for (size_t i = 0; i < sizeof read / sizeof *read; i++) is_read |= strcmp(name, read[i]) == 0;

    WeightsFile *f = weights_file_open(tmp.path, &err);
    const bool may_be_empty = strcmp(name, "architectures") == 0 && change == FIELD_ARRAY;

    if ((f == NULL) != (is_needed || (is_read && change != FIELD_MISSING && !may_be_empty)))
        fail_msg("\"%s\", change %d: %s", name, (int)change, f ? "taken" : err.text);
    if (!f && change == FIELD_TWICE) assert_message("is stated twice");
    weights_file_close(f);
}

TEST(every_field_of_a_configuration_that_counts_is_there_once_and_of_its_kind) {
    write_huggingface((Variant){.dtype = DTYPE_FP32, .prefix = true});
    edit_config("\"n_inner\"",
                "\"scale_attn_weights\": true, \"scale_attn_by_inverse_layer_idx\": false, "
                "\"add_cross_attention\": false, \"n_inner\"");
    change_every_field(tmp_file("config.json"), "", config_refuses);
}
