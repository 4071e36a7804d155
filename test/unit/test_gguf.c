// GGUF files byte by byte, read here by the description of the format: keys, tensors, their places
// and their values. That llama.cpp computes the same with them is test/e2e/test_gguf.py's.

#include "llmc/model/model_state.h"
#include "llmc/store/gguf.h"
#include "llmc/text/tokenizer_json.h"
#include "llmc/text/tokenizer_open.h"
#include "test/unit/device_fixture.h"
#include "test/unit/store_fixture.h"
#include "test/unit/tiny_model.h"
#include <math.h>

typedef struct {
    char name[64];
    uint64_t shape[2], offset;
    uint32_t rank, type;
} Entry;

static struct {
    unsigned char *bytes;
    size_t size, at, data;
    uint64_t keys, tensors;
    struct {
        char name[64];
        uint32_t type;
        size_t at; // of the value
    } key[64];
    Entry tensor[64];
} file;

static int teardown(void **state) {
    free(file.bytes);
    memset(&file, 0, sizeof file);
    models_destroy(state);
    return tmp_teardown(state);
}
TestFixture test_each = {setup, teardown}, test_all = {start_device, stop_device};

static uint64_t number(size_t bytes) {
    uint64_t value = 0;
    assert_true(file.at + bytes <= file.size);
    memcpy(&value, file.bytes + file.at, bytes);
    file.at += bytes;
    return value;
}

static void string(char *text, size_t capacity) {
    const uint64_t n = number(8);
    assert_true(n < capacity && file.at + n <= file.size);
    memcpy(text, file.bytes + file.at, n);
    text[n] = '\0';
    file.at += n;
}

enum { U32 = 4, I32 = 5, F32 = 6, BOOL = 7, STRING = 8, ARRAY = 9 };

static void skip_value(uint32_t type) {
    char text[1024];
    if (type == STRING) string(text, sizeof text);
    if (type == BOOL) number(1);
    if (type == U32 || type == I32 || type == F32) number(4);
    if (type != ARRAY) return;
    const uint32_t of = (uint32_t)number(4);
    for (uint64_t n = number(8); n > 0; n--) skip_value(of);
}

// Every key is there once; the tensors follow one another at multiples of 32, without a gap, to the
// end of the file.
static void read_gguf(const char *path) {
    static const uint64_t block_bytes[31][2] = {
        [0] = {1, 4}, [1] = {1, 2}, [8] = {32, 34}, [30] = {1, 2}};

    free(file.bytes);
    file.bytes = read_bytes(path, &file.size);
    file.at = 0;

    assert_int_equal(number(4), 0x46554747);
    assert_int_equal(number(4), 3);
    file.tensors = number(8);
    file.keys = number(8);
    assert_true(file.tensors <= 64 && file.keys <= 64);

    for (uint64_t i = 0; i < file.keys; i++) {
        string(file.key[i].name, sizeof file.key[i].name);
        for (uint64_t j = 0; j < i; j++)
            assert_string_not_equal(file.key[i].name, file.key[j].name);
        file.key[i].type = (uint32_t)number(4);
        file.key[i].at = file.at;
        skip_value(file.key[i].type);
    }

    uint64_t offset = 0;
    for (uint64_t i = 0; i < file.tensors; i++) {
        Entry *t = &file.tensor[i];
        string(t->name, sizeof t->name);
        t->rank = (uint32_t)number(4);
        t->shape[1] = 1;
        for (uint32_t d = 0; d < t->rank; d++) t->shape[d] = number(8);
        t->type = (uint32_t)number(4);
        t->offset = number(8);
        assert_int_equal(t->offset, offset);
        assert_int_equal(t->shape[0] % block_bytes[t->type][0], 0);
        offset += t->shape[0] / block_bytes[t->type][0] * block_bytes[t->type][1] * t->shape[1];
        offset = (offset + 31) / 32 * 32;
    }

    file.data = (file.at + 31) / 32 * 32;
    while (file.at < file.data) assert_int_equal(number(1), 0);
    assert_int_equal(file.data + offset, file.size);
}

// Leaves file.at at the value.
static bool find_key(const char *name, uint32_t type) {
    for (uint64_t i = 0; i < file.keys; i++) {
        if (strcmp(file.key[i].name, name) != 0) continue;
        assert_int_equal(file.key[i].type, type);
        file.at = file.key[i].at;
        return true;
    }
    return false;
}

static void assert_u32(const char *key, uint32_t value) {
    assert_true(find_key(key, U32));
    assert_int_equal(number(4), value);
}

static void assert_f32(const char *key, float value) {
    assert_true(find_key(key, F32));
    assert_memory_equal(file.bytes + file.at, &value, sizeof value);
}

static void assert_text(const char *key, const char *value) {
    char text[256];
    assert_true(find_key(key, STRING));
    string(text, sizeof text);
    assert_string_equal(text, value);
}

static const Entry *find_entry(const char *name, uint32_t type, uint64_t rows, uint64_t cols) {
    for (uint64_t i = 0; i < file.tensors; i++) {
        const Entry *t = &file.tensor[i];
        if (strcmp(t->name, name) != 0) continue;
        assert_int_equal(t->type, type);
        assert_int_equal(t->rank, cols ? 2 : 1);
        assert_int_equal(t->shape[0], cols ? cols : rows);
        assert_int_equal(t->shape[1], cols ? rows : 1);
        return t;
    }
    fail_msg("no tensor %s", name);
    return NULL;
}

static float value_at(const Entry *t, uint64_t row, uint64_t col) {
    const unsigned char *at = file.bytes + file.data + t->offset;
    const uint64_t i = row * (t->rank == 2 ? t->shape[0] : 1) + col;
    uint16_t bits;
    float value;
    if (t->type == GGUF_F32) {
        memcpy(&value, at + 4 * i, sizeof value);
        return value;
    }
    memcpy(&bits, at + 2 * i, sizeof bits);
    return t->type == GGUF_F16 ? fp16_to_float(bits) : bf16_to_float(bits);
}

// A number that says where it stands: exact in fp16 and bf16 for the first 8 bits.
static float value_of(int index, int64_t row, int64_t col) {
    return (float)((index * 7 + row * 13 + col * 3) % 251);
}

static Model *numbered(const char *descriptor) {
    ModelConfig config;
    assert_ok(model_config_parse(&config, descriptor, &err));
    Model *m =
        model_of((ModelOptions){.config = config, .dtype = DTYPE_FP32, .B = 1, .T = config.max_T});

    for (int i = 0; i < model_num_tensors(m); i++) {
        const Parameter *p = &model_parameters(m)[i];
        AUTO_FREE float *values = calloc((size_t)parameter_numel(p), sizeof *values);
        for (int64_t k = 0; k < p->file_rows * p->cols; k++)
            values[k] = value_of(i, k / p->cols, k % p->cols);
        model_set_weight(m, i, 0, p->rows, values);
    }
    return m;
}

static void write_and_read(const Model *m, GgufType type) {
    assert_ok(
        gguf_write(tmp_file("m.gguf"), &(HuggingFaceModel){.model = m, .eot = -1}, type, &err));
    read_gguf(tmp_file("m.gguf"));
}

// Rows [first, first + rows) of our tensor are the rows of the file's. head > 0: a head's halves
// alternate there.
static void assert_rows(const Model *m, int spec, const char *name, GgufType type, int64_t first,
                        int64_t rows, int64_t head) {
    const int index = parameter_index(&model_options(m)->config, spec, 1);
    const Parameter *p = &model_parameters(m)[index];
    const Entry *t = find_entry(name, type, (uint64_t)rows, p->rank == 2 ? (uint64_t)p->cols : 0);
    for (int64_t r = 0; r < rows; r++) {
        const int64_t half = head / 2, in_head = head ? r % head : 0;
        const int64_t to =
            head ? r - in_head + (in_head < half ? 2 * in_head : 2 * (in_head - half) + 1) : r;
        for (int64_t c = 0; c < p->cols; c++)
            if (value_at(t, (uint64_t)to, (uint64_t)c) != value_of(index, first + r, c))
                fail_msg("%s: our [%d][%d] is not its [%d]", name, (int)(first + r), (int)c,
                         (int)to);
    }
}

// -------------------------------------------------------------------------------------------- keys

TEST(the_keys_are_the_model) {
    write_and_read(numbered("llama:L=2,C=64,NH=4,NKV=2,HS=8,V=130,T=24,base=5000"), GGUF_F16);
    assert_text("general.architecture", "llama");
    assert_text("general.type", "model");
    assert_u32("general.file_type", 1);
    assert_u32("general.quantization_version", 2);

    assert_u32("llama.context_length", 24);
    assert_u32("llama.embedding_length", 64);
    assert_u32("llama.block_count", 2);
    assert_u32("llama.feed_forward_length", 256);
    assert_u32("llama.attention.head_count", 4);
    assert_u32("llama.attention.head_count_kv", 2);
    assert_u32("llama.attention.key_length", 8);
    assert_u32("llama.attention.value_length", 8);
    assert_u32("llama.rope.dimension_count", 8);
    assert_u32("llama.vocab_size", 130);
    assert_f32("llama.rope.freq_base", 5000.0f);
    assert_f32("llama.attention.layer_norm_rms_epsilon", 1e-6f);

    assert_text("tokenizer.ggml.model", "none"); // no tokenizer is known
    assert_false(find_key("tokenizer.ggml.eos_token_id", U32));

    write_and_read(numbered("L=2,C=64,NH=4,V=130,T=24"), GGUF_Q8_0);
    assert_text("general.architecture", "gpt2");
    assert_u32("general.file_type", 7);
    assert_f32("gpt2.attention.layer_norm_epsilon", 1e-5f);
    assert_false(find_key("gpt2.rope.freq_base", F32)); // positions are learned
}

TEST(the_tokenizer_is_in_it_and_rows_without_a_token_are_filled) {
    Model *m = numbered("starcoder2:L=2,C=64,NH=4,V=260,T=24");
    Tokenizer *bytes = tokenizer_bytes(&err);

    assert_ok(gguf_check(&model_options(m)->config, bytes, &err));
    assert_ok(gguf_write(tmp_file("m.gguf"),
                         &(HuggingFaceModel){.model = m, .eot = BYTE_EOT, .tokenizer = bytes},
                         GGUF_F32, &err));
    tokenizer_free(bytes);

    read_gguf(tmp_file("m.gguf"));
    assert_text("tokenizer.ggml.model", "gpt2");
    assert_text("tokenizer.ggml.pre", "gpt-2");
    assert_u32("tokenizer.ggml.bos_token_id", BYTE_EOT);
    assert_u32("tokenizer.ggml.eos_token_id", BYTE_EOT);
    assert_true(find_key("tokenizer.ggml.add_bos_token", BOOL) && number(1) == 0);
    assert_true(find_key("tokenizer.ggml.merges", ARRAY) && number(4) == STRING && number(8) == 0);

    assert_true(find_key("tokenizer.ggml.tokens", ARRAY) && number(4) == STRING &&
                number(8) == 260);
    for (int i = 0; i < 260; i++) {
        char text[64];
        string(text, sizeof text);
        if (i == ' ') assert_string_equal(text, "\xC4\xA0"); // GPT-2's spelling
        if (i == 'a') assert_string_equal(text, "a");
        if (i == BYTE_EOT) assert_string_equal(text, "<|endoftext|>");
        if (i == 257) assert_string_equal(text, "[PAD257]");
    }

    assert_true(find_key("tokenizer.ggml.token_type", ARRAY) && number(4) == I32 &&
                number(8) == 260);
    for (int i = 0; i < 260; i++) assert_int_equal(number(4), i < 256 ? 1 : i == 256 ? 3 : 5);
}

static void assert_string(const char *value) {
    char text[64];
    string(text, sizeof text);
    assert_string_equal(text, value);
}

TEST(merges_added_tokens_and_the_beginning_of_a_text_are_in_it) {
    Model *m = numbered("L=2,C=64,NH=4,V=260,T=24");
    Tokenizer *bytes = tokenizer_bytes(&err);

    size_t n;
    AUTO_FREE char *json = tokenizer_to_json(bytes, &n);
    tokenizer_free(bytes);
    write_text(tmp_file("tokenizer.json"), json);
    replace_in_file(tmp_file("tokenizer.json"), "\"merges\": [", "\"merges\": [\"t h\"");
    replace_in_file(tmp_file("tokenizer.json"), "\"vocab\": {", "\"vocab\": {\"th\": 257,");
    replace_in_file(tmp_file("tokenizer.json"), "\"added_tokens\": [",
                    "\"added_tokens\": [{\"id\": 258, \"content\": \"user\", \"special\": false}, "
                    "{\"id\": 259, \"content\": \"<begin>\", \"special\": true},");

    Tokenizer *t = tokenizer_open(tmp_file("tokenizer.json"), &err);
    assert_ok(t);
    t->begin = 259;
    assert_ok(gguf_write(tmp_file("m.gguf"),
                         &(HuggingFaceModel){.model = m, .eot = BYTE_EOT, .tokenizer = t}, GGUF_F32,
                         &err));

    read_gguf(tmp_file("m.gguf"));
    assert_u32("tokenizer.ggml.bos_token_id", 259);
    assert_u32("tokenizer.ggml.eos_token_id", BYTE_EOT);
    assert_true(find_key("tokenizer.ggml.add_bos_token", BOOL) && number(1) == 1);
    assert_true(find_key("tokenizer.ggml.merges", ARRAY) && number(4) == STRING && number(8) == 1);
    assert_string("t h");
    assert_true(find_key("tokenizer.ggml.tokens", ARRAY) && number(4) == STRING &&
                number(8) == 260);

    static const char *const last[] = {"<|endoftext|>", "th", "user", "<begin>"};
    static const int types[] = {3, 1, 4, 3};
    for (int i = 0; i < 260; i++) i < 256 ? skip_value(STRING) : assert_string(last[i - 256]);
    assert_true(find_key("tokenizer.ggml.token_type", ARRAY) && number(4) == I32 &&
                number(8) == 260);
    for (int i = 0; i < 260; i++) assert_int_equal(number(4), i < 256 ? 1 : types[i - 256]);

    const ModelConfig *config = &model_options(m)->config;
    t->whole_pieces = true; // llama.cpp has that for Llama 3's pattern
    assert_error(gguf_check(config, t, &err),
                 "llama.cpp would split texts into other tokens than byte-level BPE of ");
    assert_false(gguf_write(tmp_file("m.gguf"),
                            &(HuggingFaceModel){.model = m, .eot = BYTE_EOT, .tokenizer = t},
                            GGUF_F32, &err));

    t->pattern = PATTERN_LLAMA3;
    assert_ok(gguf_check(config, t, &err));
    t->pattern = PATTERN_O200K;
    assert_error(gguf_check(config, t, &err), "llama.cpp would split texts into other tokens");
    tokenizer_free(t);
}

// ----------------------------------------------------------------------------------------- tensors

TEST(tensors_have_their_names_shapes_and_values_in_every_type) {
    const GgufType types[] = {GGUF_F32, GGUF_F16, GGUF_BF16};
    Model *m = numbered("L=2,C=80,NH=4,V=130,T=24");

    for (int i = 0; i < 3; i++) {
        write_and_read(m, types[i]);
        assert_int_equal(file.tensors, 28);
        assert_rows(m, PARAM_WTE, "token_embd.weight", types[i], 0, 130, 0); // no row of padding
        assert_rows(m, PARAM_WPE, "position_embd.weight", GGUF_F32, 0, 24, 0);
        assert_rows(m, PARAM_LN1W, "blk.1.attn_norm.weight", GGUF_F32, 0, 80, 0);
        assert_rows(m, PARAM_LN1B, "blk.1.attn_norm.bias", GGUF_F32, 0, 80, 0);
        assert_rows(m, PARAM_QKVW, "blk.1.attn_qkv.weight", types[i], 0, 240, 0);
        assert_rows(m, PARAM_QKVB, "blk.1.attn_qkv.bias", GGUF_F32, 0, 240, 0);
        assert_rows(m, PARAM_ATTPROJW, "blk.1.attn_output.weight", types[i], 0, 80, 0);
        assert_rows(m, PARAM_ATTPROJB, "blk.1.attn_output.bias", GGUF_F32, 0, 80, 0);
        assert_rows(m, PARAM_LN2W, "blk.1.ffn_norm.weight", GGUF_F32, 0, 80, 0);
        assert_rows(m, PARAM_LN2B, "blk.1.ffn_norm.bias", GGUF_F32, 0, 80, 0);
        assert_rows(m, PARAM_FCW, "blk.1.ffn_up.weight", types[i], 0, 320, 0);
        assert_rows(m, PARAM_FCB, "blk.1.ffn_up.bias", GGUF_F32, 0, 320, 0);
        assert_rows(m, PARAM_FCPROJW, "blk.1.ffn_down.weight", types[i], 0, 80, 0);
        assert_rows(m, PARAM_FCPROJB, "blk.1.ffn_down.bias", GGUF_F32, 0, 80, 0);
        assert_rows(m, PARAM_LNFW, "output_norm.weight", GGUF_F32, 0, 80, 0);
        assert_rows(m, PARAM_LNFB, "output_norm.bias", GGUF_F32, 0, 80, 0);
    }
}

TEST(the_halves_of_heads_alternate_in_q_and_k_of_llama_and_arcee_alone) {
    static const char *const families[] = {"llama", "arcee", "qwen3", "starcoder2"};

    for (int i = 0; i < 4; i++) {
        char descriptor[64];
        snprintf(descriptor, sizeof descriptor, "%s:L=2,C=32,NH=4,NKV=2,HS=12,V=130,T=24%s",
                 families[i], i == 0 ? ",bias=3" : "");

        Model *m = numbered(descriptor);
        write_and_read(m, GGUF_F32);
        const int64_t head = i < 2 ? 12 : 0;

        assert_rows(m, PARAM_QKVW, "blk.1.attn_q.weight", GGUF_F32, 0, 48, head);
        assert_rows(m, PARAM_QKVW, "blk.1.attn_k.weight", GGUF_F32, 48, 24, head);
        assert_rows(m, PARAM_QKVW, "blk.1.attn_v.weight", GGUF_F32, 72, 24, 0);
        if (i == 0) assert_rows(m, PARAM_QKVB, "blk.1.attn_q.bias", GGUF_F32, 0, 48, head);
        if (i == 0) assert_rows(m, PARAM_QKVB, "blk.1.attn_k.bias", GGUF_F32, 48, 24, head);
        if (i == 0) assert_rows(m, PARAM_FCW, "blk.1.ffn_gate.weight", GGUF_F32, 0, 128, 0);
        assert_rows(m, PARAM_FCW, "blk.1.ffn_up.weight", GGUF_F32, i == 0 || i == 2 ? 128 : 0, 128,
                    0);
        if (i < 2) assert_rows(m, PARAM_HEADW, "output.weight", GGUF_F32, 0, 130, 0);
        if (i == 2) assert_rows(m, PARAM_QNORMW, "blk.1.attn_q_norm.weight", GGUF_F32, 0, 12, 0);
        if (i == 2) assert_rows(m, PARAM_KNORMW, "blk.1.attn_k_norm.weight", GGUF_F32, 0, 12, 0);
        if (i == 3) assert_rows(m, PARAM_QKVB, "blk.1.attn_k.bias", GGUF_F32, 48, 24, 0);
    }
}

// -------------------------------------------------------------------------------------------- q8_0

TEST(q8_0_has_blocks_of_a_scale_and_32_bytes_and_other_rows_are_fp16) {
    Model *m = numbered("L=2,C=64,NH=4,V=130,T=24");
    const int index = parameter_index(&model_options(m)->config, PARAM_FCW, 1);
    // the other block is zeros
    float row[64] = {127.0f, 0.5f, -0.5f, 1.5f, -1.5f, 2.5f, 0.49999997f, -126.7f};
    static const signed char expected[] = {127, 1, -1, 2, -2, 3, 0, -127, 0};

    model_set_weight(m, index, 0, 1, row);
    row[0] = 0.0f, row[32] = -3e-3f, row[33] = 1e-3f;
    model_set_weight(m, index, 255, 1, row);
    write_and_read(m, GGUF_Q8_0);

    const Entry *t = find_entry("blk.1.ffn_up.weight", GGUF_Q8_0, 256, 64);
    const unsigned char *at = file.bytes + file.data + t->offset, *last = at + 511 * 34;
    const unsigned char one[] = {0x00, 0x3C}, zeros[34] = {0};
    assert_memory_equal(at, one, 2); // 1.0
    assert_memory_equal(at + 2, expected, sizeof expected);
    assert_memory_equal(at + 34, zeros, 34);

    const uint16_t scale = float_to_fp16(3e-3f / 127.0f);
    assert_memory_equal(last, &scale, 2);
    assert_int_equal((signed char)last[2], -127);
    assert_int_equal((signed char)last[3], 42);
    find_entry("position_embd.weight", GGUF_F32, 24, 64);

    Model *odd = numbered("L=2,C=72,NH=4,V=130,T=24");
    write_and_read(odd, GGUF_Q8_0);
    assert_rows(odd, PARAM_FCW, "blk.1.ffn_up.weight", GGUF_F16, 0, 288, 0);
    find_entry("blk.1.ffn_down.weight", GGUF_Q8_0, 72, 288);
}

TEST(what_a_type_cannot_hold_is_an_error_that_names_the_tensor_and_nothing_is_left) {
    Model *m = numbered("L=2,C=64,NH=4,V=130,T=24");
    const int index = parameter_index(&model_options(m)->config, PARAM_FCW, 1);
    const float values[] = {1e7f, INFINITY, NAN, 65520.0f};
    float row[64] = {0};

    for (int i = 0; i < 4; i++) {
        row[63] = values[i];
        model_set_weight(m, index, 255, 1, row);
        assert_false(gguf_write(tmp_file("m.gguf"), &(HuggingFaceModel){.model = m, .eot = -1},
                                i == 3 ? GGUF_F16 : GGUF_Q8_0, &err));
        assert_message("tensor transformer.h.1.mlp.c_fc.weight has the value ");
        assert_message("cannot represent; write the model in ");
        assert_int_equal(entries_of(tmp.path), 0);
    }
}

TEST(blocks_that_llama_cpp_does_not_have_are_refused) {
    static const char *const blocks[] = {"L=2,C=64,NH=4,NKV=2",
                                         "qwen3:L=2,C=64,NH=4,bias=1",
                                         "qwen3:L=2,C=64,NH=4,bias=3",
                                         "arcee:L=2,C=64,NH=4,bias=1",
                                         "starcoder2:L=2,C=64,NH=4,bias=0",
                                         "starcoder2:L=2,C=64,base=0,tied=0"};

    for (int i = 0; i < 6; i++) {
        ModelConfig config;
        assert_ok(model_config_parse(&config, blocks[i], &err));
        assert_error(gguf_check(&config, NULL, &err), "llama.cpp has no such blocks");
    }

    ModelConfig config;
    assert_ok(model_config_parse(&config, "llama:L=2,C=64,NH=4,bias=3", &err));
    assert_ok(gguf_check(&config, NULL, &err));

    assert_false(
        gguf_write("/proc/m.gguf",
                   &(HuggingFaceModel){.model = numbered("L=2,C=64,NH=4,V=130,T=24"), .eot = -1},
                   GGUF_F32, &err));
    assert_message("/proc/m.gguf: cannot create");
}
