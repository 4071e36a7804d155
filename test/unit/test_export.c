// Models as others read them: what comes in goes out with the same bits, nothing is overwritten
// that is no model, and an export that fails leaves nothing.

#include "llmc/base/directory.h"
#include "llmc/base/random.h"
#include "llmc/model/model_state.h"
#include "llmc/store/checkpoint.h"
#include "llmc/store/export.h"
#include "llmc/store/llmc_bin.h"
#include "llmc/store/safetensors.h"
#include "llmc/store/trainer_json.h"
#include "llmc/store/weights_file.h"
#include "llmc/text/tokenizer_open.h"
#include "test/unit/device_fixture.h"
#include "test/unit/store_fixture.h"
#include "test/unit/tiny_model.h"

#include <fcntl.h>
#include <math.h>
#include <sys/file.h>
#include <unistd.h>

static int teardown(void **state) {
    models_destroy(state);
    return tmp_teardown(state);
}
TestFixture test_each = {setup, teardown}, test_all = {start_device, stop_device};

static const DType file_dtypes[] = {DTYPE_FP32, DTYPE_FP16, DTYPE_BF16};

// V = 130 leaves rows of padding, C = 80 is no multiple of the transposition's strips.
static ModelConfig config = {.max_T = 16, .V = 130, .Vp = 256, .L = 2, .NH = 4, .C = 80};

static Model *make_model(DType dtype, bool train) {
    return model_of((ModelOptions){
        .config = config, .dtype = dtype, .master = true, .train = train, .B = 1, .T = 16});
}

// Any finite number of the type, by its bits: -0 and subnormal ones too.
static uint32_t random_bits(DType dtype, int tensor, int64_t element) {
    const uint32_t r = philox(3, (uint64_t)tensor, (uint64_t)element).v[0];
    const uint32_t exponent = dtype == DTYPE_FP16   ? 0x7C00
                              : dtype == DTYPE_BF16 ? 0x7F80
                                                    : 0x7F800000;
    const uint32_t bits = dtype == DTYPE_FP32 ? r : r & 0xFFFF;
    return (bits & exponent) == exponent ? bits & ~exponent : bits;
}

static float value_of(DType dtype, uint32_t bits) {
    float x;
    memcpy(&x, &bits, sizeof x);
    return dtype == DTYPE_FP16   ? fp16_to_float((uint16_t)bits)
           : dtype == DTYPE_BF16 ? bf16_to_float((uint16_t)bits)
                                 : x;
}

static void fill_model(Model *m, DType dtype) {
    for (int i = 0; i < model_num_tensors(m); i++) {
        const Parameter *p = &model_parameters(m)[i];
        AUTO_FREE float *values = calloc((size_t)parameter_numel(p), sizeof *values);
        for (int64_t e = 0; e < p->file_rows * p->cols; e++)
            values[e] = value_of(dtype, random_bits(dtype, i, e));
        model_set_weight(m, i, 0, p->rows, values);
    }
}

static void assert_same_files(const char *a, const char *b) {
    size_t n, m;
    unsigned char *x = read_bytes(a, &n), *y = read_bytes(b, &m);
    if (n != m || memcmp(x, y, n) != 0) fail_msg("%s and %s differ", a, b);
    free(x);
    free(y);
}

static const TrainerState first_step = {
    .step = 1, .position = 1, .T = 16, .eot = -1, .control = {.loss_scale = 1.0f}};

static void export_to(const char *path, const Model *m, DType dtype) {
    const ExportType type = dtype == DTYPE_FP32   ? EXPORT_FP32
                            : dtype == DTYPE_FP16 ? EXPORT_FP16
                                                  : EXPORT_BF16;
    assert_ok(export_model(path, &(HuggingFaceModel){.model = m, .eot = -1}, type, &err));
}

// ----------------------------------------------------------------------------------- the same bits

// Element (r, c) of tensor i in the safetensors file, against the bits that the model was filled
// with.
static void assert_tensor(SafetensorsFile *f, const unsigned char *bytes, const Parameter *p, int i,
                          DType dtype) {
    const SafetensorsEntry *e = safetensors_find(f, p->name);
    assert_non_null(e);
    assert_int_equal(e->dtype, dtype);
    const bool swap = p->transposed;
    assert_int_equal(e->shape[0], swap ? p->cols : p->file_rows);
    for (int64_t r = 0; r < p->file_rows; r++)
        for (int64_t c = 0; c < p->cols; c++) {
            uint32_t bits = 0;
            const int64_t at = swap ? c * p->rows + r : r * p->cols + c,
                          size = (int64_t)dtype_size(dtype);
            memcpy(&bits, bytes + e->offset + at * size, (size_t)size);
            if (bits != random_bits(dtype, i, (r * p->cols + c)))
                fail_msg("%s[%d][%d] in %s", p->name, (int)r, (int)c, dtype_name(dtype));
        }
}

TEST(every_tensor_stands_in_the_directory_with_its_bits) {
    Model *m = make_model(DTYPE_FP32, false);
    for (int d = 0; d < 3; d++) {
        fill_model(m, file_dtypes[d]);
        export_to(tmp_file("model"), m, file_dtypes[d]);

        const char *path = tmp_file("model/model.safetensors");
        SafetensorsFile *f = safetensors_open(path, &err);
        assert_ok(f);
        assert_int_equal(safetensors_count(f), model_num_tensors(m));

        size_t n;
        AUTO_FREE unsigned char *bytes = read_bytes(path, &n);
        for (int i = 0; i < model_num_tensors(m); i++)
            assert_tensor(f, bytes, &model_parameters(m)[i], i, file_dtypes[d]);

        safetensors_close(f);
    }
}

// A model that trains in bf16 keeps fp32 beside it; a checkpoint between changes no bit either.
static void check_directories(void) {
    const DType runs[] = {DTYPE_FP32, DTYPE_BF16};
    Model *source = make_model(DTYPE_FP32, false);

    for (int d = 0; d < 3; d++) {
        fill_model(source, file_dtypes[d]);
        export_to(tmp_file("given"), source, file_dtypes[d]);
        for (int r = 0; r < 2; r++) {
            if (!device_facts()->supports[runs[r]]) continue;

            Model *m = make_model(runs[r], true), *resumed = make_model(runs[r], true);
            assert_ok(weights_file_load(m, tmp_file("given"), &err));
            export_to(tmp_file("made"), m, file_dtypes[d]);
            assert_same_files(tmp_file("given/model.safetensors"),
                              tmp_file("made/model.safetensors"));

            assert_ok(checkpoint_save(tmp.path, m, &first_step, &err));
            assert_ok(weights_file_load(resumed, tmp_file("step_00000001"), &err));
            export_to(tmp_file("made"), resumed, file_dtypes[d]);
            assert_same_files(tmp_file("given/model.safetensors"),
                              tmp_file("made/model.safetensors"));
        }
    }
}

TEST(directories_come_in_and_go_out_with_the_same_bytes) { check_directories(); }

TEST(so_do_those_of_another_d_ff_which_they_state) {
    config.d_ff = 72;
    check_directories();
    AUTO_FREE char *text = read_text(tmp_file("made/config.json"));
    config.d_ff = 0;
    assert_non_null(strstr(text, "\"n_inner\": 72,"));
}

TEST(a_model_of_others_is_moved_aside) {
    static const char *const files[] = {"model/model.safetensors", "model/config.json",
                                        "model.gguf"};
    static const char *const kept[] = {"model.1/model.safetensors", "model.1/config.json",
                                       "model.gguf.1"};
    static const char *const content[] = {"mine", "mine", "GGUF of another"};

    Model *m = make_model(DTYPE_FP32, false);
    assert_ok(directory_make(tmp_file("model"), &err));
    for (int i = 0; i < 3; i++) write_text(tmp_file(files[i]), content[i]);
    write_llmc(tmp_file("model.bin"), &config, DTYPE_FP32, 0, random_bits); // of llm.c itself
    write_llmc(tmp_file("twin.bin"), &config, DTYPE_FP32, 0, random_bits);

    for (int round = 0; round < 2; round++) { // the second export replaces the first
        export_to(tmp_file("model"), m, DTYPE_FP32);
        export_to(tmp_file("model.bin"), m, DTYPE_FP32);
        export_to(tmp_file("model.gguf"), m, DTYPE_FP32);
        assert_int_equal(entries_of(tmp.path), 7);
    }

    for (int i = 0; i < 3; i++) {
        AUTO_FREE char *text = read_text(tmp_file(kept[i]));
        assert_string_equal(text, content[i]);
    }

    assert_same_files(tmp_file("model.bin.1"), tmp_file("twin.bin"));
}

// The file's mark is ours alone.
static void remove_mark(const char *path) {
    size_t n;
    AUTO_FREE unsigned char *bytes = read_bytes(path, &n);
    assert_string_equal((char *)bytes + 1024 - 12, OWN_FILE_HEADER_MARK);
    memset(bytes + 1024 - 12, 0, 12);
    write_bytes(path, bytes, n);
}

TEST(llmc_models_come_in_and_go_out_byte_by_byte) {
    const DType dtypes[] = {DTYPE_FP32, DTYPE_BF16};
    const char *given = tmp_file("given.bin"), *made = tmp_file("made.bin");
    Model *m = make_model(DTYPE_BF16, true), *through = make_model(DTYPE_FP32, true);
    for (int d = 0; d < 2; d++) {
        write_llmc(given, &config, dtypes[d], 0, random_bits);
        assert_ok(weights_file_load(m, given, &err));
        export_to(made, m, dtypes[d]);
        remove_mark(made);
        assert_same_files(given, made);

        export_to(tmp_file("directory"), m, dtypes[d]); // and by way of Hugging Face
        assert_ok(weights_file_load(through, tmp_file("directory"), &err));
        export_to(made, through, dtypes[d]);
        remove_mark(made);
        assert_same_files(given, made);
    }
}

TEST(rounding_is_to_nearest_even) {
    Model *m = make_model(DTYPE_FP32, false);
    // Halfway between two neighbours of bf16 (8 bits) and of fp16 (11 bits): to the even one.
    const float values[4] = {1.0f + 0x1p-8f, 1.0f + 0x3p-8f, 1.0f + 0x1p-11f, 1.0f + 0x3p-11f};
    const float expected[2][4] = {{1.0f, 1.0f + 0x1p-6f, 1.0f, 1.0f},
                                  {1.0f + 0x1p-8f, 1.0f + 0x3p-8f, 1.0f, 1.0f + 0x1p-9f}};

    const int index = parameter_index(&config, PARAM_WPE, 0);
    float row[80] = {0}, out[4];
    memcpy(row, values, sizeof values);
    model_set_weight(m, index, 0, 1, row);

    for (int d = 0; d < 2; d++) {
        export_to(tmp_file("model"), m, d ? DTYPE_FP16 : DTYPE_BF16);
        SafetensorsFile *f = safetensors_open(tmp_file("model/model.safetensors"), &err);
        assert_ok(safetensors_read_fp32(f, safetensors_find(f, "transformer.wpe.weight"), 0, 4, out,
                                        &err));
        assert_memory_equal(out, expected[d], sizeof out);
        safetensors_close(f);
    }
}

TEST(values_beyond_a_type_are_an_error_that_names_the_tensor) {
    Model *m = make_model(DTYPE_FP32, false);
    const int index = parameter_index(&config, PARAM_FCW, 1);

    float row[80] = {0};
    row[79] = 65519.9f; // rounds down to the largest fp16, 65504
    model_set_weight(m, index, 319, 1, row);
    export_to(tmp_file("model"), m, DTYPE_FP16);

    row[79] = -65520.0f;
    model_set_weight(m, index, 319, 1, row);
    assert_false(export_model(tmp_file("other"), &(HuggingFaceModel){.model = m, .eot = -1},
                              EXPORT_FP16, &err));
    assert_message("tensor transformer.h.1.mlp.c_fc.weight has the value -65520, which fp16 cannot "
                   "represent; write "
                   "the model in bf16");

    row[79] = 3.4e38f;
    model_set_weight(m, index, 319, 1, row);
    assert_error(export_model(tmp_file("other.bin"), &(HuggingFaceModel){.model = m, .eot = -1},
                              EXPORT_BF16, &err),
                 "transformer.h.1.mlp.c_fc.weight has the value 3.4e+38, which bf16 cannot "
                 "represent; write the model in fp32");

    assert_int_equal(entries_of(tmp.path), 1); // nothing of the failed ones
}

// ------------------------------------------------------------------------------ what else is there

TEST(configuration_and_tokenizer_are_written_beside_the_weights) {
    static const char *const types[] = {"\"float32\"", "\"float16\"", "\"bfloat16\""};
    Model *m = make_model(DTYPE_FP32, false);

    for (int d = 0; d < 3; d++) {
        assert_ok(export_model(tmp_file("model"), &(HuggingFaceModel){.model = m, .eot = 129},
                               (ExportType)d, &err));
        AUTO_FREE char *text = read_text(tmp_file("model/config.json"));
        assert_true(strstr(text, types[d]) && strstr(text, "\"eos_token_id\": 129") &&
                    strstr(text, "\"vocab_size\": 130"));
        // no tokenizer is known, none is written
        assert_int_equal(entries_of(tmp_file("model")), 2);
    }

    Tokenizer *bytes = tokenizer_bytes(&err);
    assert_ok(export_model(tmp_file("model"),
                           &(HuggingFaceModel){.model = m, .eot = BYTE_EOT, .tokenizer = bytes},
                           EXPORT_FP32, &err));

    Tokenizer *back = tokenizer_open(tmp_file("model"), &err);
    assert_ok(back);
    assert_true(tokenizer_fingerprint(back) == tokenizer_fingerprint(bytes));
    AUTO_FREE char *text = read_text(tmp_file("model/tokenizer_config.json"));
    assert_true(strstr(text, "<|endoftext|>") && strstr(text, "\"model_max_length\":\t16"));

    tokenizer_free(back), tokenizer_free(bytes);
}

// ----------------------------------------------------------------------------------- where it goes

// test/refusals.txt has what is refused.
TEST(a_check_before_the_training_leaves_nothing_behind) {
    assert_ok(export_check(tmp_file("model"), EXPORT_FP16, &config, NULL, &err));
    assert_ok(export_check(tmp_file("model.bin"), EXPORT_BF16, &config, NULL, &err));
    assert_ok(export_check(tmp_file("model.gguf"), EXPORT_Q8_0, &config, NULL, &err));
    // parents are made by the export
    assert_ok(export_check(tmp_file("a/b/model"), EXPORT_FP16, &config, NULL, &err));
    assert_int_equal(entries_of(tmp.path), 0);
}

TEST(an_earlier_export_is_replaced_as_a_whole) {
    Model *m = make_model(DTYPE_FP32, false);
    const char *slashes = tmp_file("model//"), *bin = tmp_file("model.bin");

    for (int round = 0; round < 2; round++) { // with a tokenizer, then without one
        fill_model(m, round ? DTYPE_BF16 : DTYPE_FP16);
        Tokenizer *t = round ? NULL : tokenizer_bytes(&err);
        assert_ok(export_check(slashes, EXPORT_FP32, &config, NULL, &err));
        assert_ok(export_model(slashes, &(HuggingFaceModel){.model = m, .eot = -1, .tokenizer = t},
                               EXPORT_FP32, &err));
        assert_ok(export_check(bin, EXPORT_FP32, &config, NULL, &err));
        export_to(bin, m, DTYPE_FP32);

        assert_int_equal(entries_of(tmp_file("model")), round ? 2 : 4);
        assert_int_equal(entries_of(tmp.path), 2);
        tokenizer_free(t);
    }

    Model *back = make_model(DTYPE_FP32, false);
    assert_ok(weights_file_load(back, slashes, &err));
    export_to(tmp_file("other.bin"), back, DTYPE_FP32);
    assert_same_files(bin, tmp_file("other.bin"));
}

TEST(a_checkpoint_is_never_replaced) {
    Model *m = make_model(DTYPE_FP32, true);
    assert_ok(checkpoint_save(tmp.path, m, &first_step, &err));
    assert_error(export_model(tmp_file("step_00000001"), &(HuggingFaceModel){.model = m, .eot = -1},
                              EXPORT_FP32, &err),
                 "in it was not written by this program; name another directory");
}

TEST(what_a_killed_export_left_is_no_obstacle) {
    Model *m = make_model(DTYPE_FP32, false);
    assert_ok(directory_make(tmp_file(".tmp-model"), &err));
    write_text(tmp_file(".tmp-model/model.safetensors"),
               "half: {\"__metadata__\":{" SAFETENSORS_MARK);
    export_to(tmp_file("model"), m, DTYPE_FP32);
    assert_int_equal(entries_of(tmp.path), 1);

    assert_ok(directory_make(tmp_file(".tmp-other-123"), &err)); // whatever its target was
    write_text(tmp_file(".tmp-other-123/model.safetensors"),
               "half: {\"__metadata__\":{" SAFETENSORS_MARK);
    write_text(tmp_file("a.gguf.tmp-77"), "GGUF");
    write_text(tmp_file("b.bin.tmp-77"), LLMC_BIN_MAGIC);
    export_to(tmp_file("model"), m, DTYPE_FP32);
    assert_int_equal(entries_of(tmp.path), 1);

    assert_ok(directory_make(tmp_file(".tmp-model"), &err));
    write_text(tmp_file(".tmp-model/model.safetensors"), "mine");
    write_text(tmp_file("c.gguf.tmp-77"), "mine");
    write_text(tmp_file("d.bin.tmp-77x"), LLMC_BIN_MAGIC);
    export_to(tmp_file("model"), m, DTYPE_FP32);
    assert_int_equal(entries_of(tmp.path), 4);
}

// A process that writes holds what it writes locked.
TEST(an_export_leaves_alone_what_another_process_writes) {
    Model *m = make_model(DTYPE_FP32, false);
    assert_ok(directory_make(tmp_file(".tmp-model-123"), &err));
    write_text(tmp_file("a.gguf.tmp-77"), "GGUF");
    const int directory = open(tmp_file(".tmp-model-123"), O_RDONLY),
              file = open(tmp_file("a.gguf.tmp-77"), O_RDWR);

    assert_int_equal(flock(directory, LOCK_EX), 0);
    assert_int_equal(flock(file, LOCK_EX), 0);

    export_to(tmp_file("model"), m, DTYPE_FP32);
    assert_int_equal(entries_of(tmp.path), 3);

    close(directory);
    close(file);
    export_to(tmp_file("model"), m, DTYPE_FP32);
    assert_int_equal(entries_of(tmp.path), 1);
}

// RLIMIT_FSIZE makes writes fail at some byte as a full disk does.
TEST(an_export_that_fails_leaves_nothing_and_keeps_the_one_before) {
    Model *m = make_model(DTYPE_FP32, false);
    fill_model(m, DTYPE_BF16);
    export_to(tmp_file("model"), m, DTYPE_FP32);
    export_to(tmp_file("model.bin"), m, DTYPE_FP32);
    export_to(tmp_file("twin.bin"), m, DTYPE_FP32);
    export_to(tmp_file("model.gguf"), m, DTYPE_FP32);
    export_to(tmp_file("twin.gguf"), m, DTYPE_FP32);

    const rlim_t limits[] = {100, 300000};
    const char *const targets[] = {"model", "model.bin", "model.gguf",
                                   "new",   "new.bin",   "new.gguf"};

    for (int i = 0; i < 12; i++) {
        limit_file_size(limits[i / 6]);
        const bool ok = export_model(tmp_file(targets[i % 6]),
                                     &(HuggingFaceModel){.model = m, .eot = -1}, EXPORT_FP32, &err);
        limit_file_size(RLIM_INFINITY);

        assert_false(ok);
        assert_message("cannot write: File too large");
        assert_int_equal(entries_of(tmp.path), 5);
        assert_same_files(tmp_file("model.bin"), tmp_file("twin.bin"));
        assert_same_files(tmp_file("model.gguf"), tmp_file("twin.gguf"));
    }
}
