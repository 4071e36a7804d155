// The readers of the library that fuzz.c feeds, and what must hold for what they accept. Each row
// of the table at the end is one reader; texts.c and inside.c have the functions of some. Seeds are
// written by the project's own writers.
#include "test/fuzz/fuzz.h"

#include "llmc/base/arithmetic.h"
#include "llmc/base/choices_file.h"
#include "llmc/base/directory.h"
#include "llmc/base/file.h"
#include "llmc/base/json.h"
#include "llmc/data/mixture.h"
#include "llmc/data/shards.h"
#include "llmc/device.h"
#include "llmc/log/runlog.h"
#include "llmc/model/model_state.h"
#include "llmc/run/options.h"
#include "llmc/store/checkpoint.h"
#include "llmc/store/export.h"
#include "llmc/store/huggingface_config.h"
#include "llmc/store/optimizer_file.h"
#include "llmc/store/trainer_json.h"
#include "llmc/store/weights_file.h"
#include "llmc/train/choices.h"
#include "test/unit/tokenizer_fixture.h"

#include <math.h>
#include <xxhash.h>

static Model *model; // with AdamW's state in fp32

// Small, with rows of padding, and C no multiple of the strips of transposition.
static const ModelConfig config = {.max_T = 8, .V = 20, .Vp = 128, .L = 1, .NH = 2, .C = 8};

static void must(bool ok) { REQUIRE(ok, "a seed cannot be written: %s", fuzz_error.text); }

static Model *make_model(OptimizerKind optimizer, DType dtype) {
    const ModelOptions options = {
        .config = config, .dtype = dtype, .train = true, .B = 1, .T = 8, .optimizer = optimizer};
    Model *made = model_create(&options, &fuzz_error);
    must(made != NULL);
    model_init_weights(made, 1);
    return made;
}

void fuzz_set_up(void) {
    must(device_init(&(DeviceOptions){.threads = 1}, &fuzz_error));
    model = make_model(OPTIMIZER_ADAMW, DTYPE_FP32);
    toy_write_json(fuzz_path("toy.json"), false);
    fuzz_toy = tokenizer_open(fuzz_path("toy.json"), &fuzz_error);
    must(fuzz_toy != NULL);
    setenv("PRETRAIN_CACHE", fuzz_path("tuning"), 1);
}

// --------------------------------------------------------------------------- checkpoints and state

enum { STATE, WEIGHTS, CONFIG, OPTIMIZER, TOKENIZER, TOKENIZER_CONFIG };
enum { SEAL = 33 }; // the last line of trainer.json and its closing brace, see doc/file_formats.md
#define STEP "step_00000001/"

static TrainerState state_of(int i) {
    TrainerState s = {
        .step = 1, .position = 3, .T = 8, .seed = 1337, .best_val_loss = 3.25, .eot = 19};
    s.control = step_control_initial(1.0f);
    s.options_json = (char *)"{\"batch-size\":4,\"output\":\"out\"}";
    s.tuning = (char *)"x86-64 avx2, oneDNN 2.7";
    if (i == 0) return s;

    s.train = (DataFacts){1 << 20, 0x123456789abcdef0, 5}, s.val = (DataFacts){4096, 1, 0};
    static SourceState sources[] = {{(char *)"web/*.bin", 7, 0, {1000, 1, 4}},
                                    {(char *)"code", 3, 2, {24, 2, 5}},
                                    {(char *)"old", 0, 1, {9, 3, 0}}};

    s.sources = sources, s.source_count = 3, s.mixture_start = 1;
    s.best_val_loss = (double)INFINITY, s.control.loss = (float)NAN,
    s.control.norm = (float)INFINITY;
    for (int k = 0; k < 200; k++) outlier_window_push(&s.control.loss_window, (float)k);

    s.tokenizer = fuzz_toy;
    return s;
}

// The models have the state of each optimizer: floats, codes of 8 bits, pairs, factors.
static Model *model_of(OptimizerKind optimizer) {
    static Model *models[OPTIMIZER_COUNT];
    if (optimizer == OPTIMIZER_ADAMW) return model;
    if (!models[optimizer]) models[optimizer] = make_model(optimizer, DTYPE_FP32);
    return models[optimizer];
}

static void checkpoint_seed(int i) {
    const TrainerState s = state_of(i);
    must(checkpoint_save(fuzz_path(""), model_of(i < 2 ? OPTIMIZER_ADAMW : (OptimizerKind)(i - 1)),
                         &s, &fuzz_error));
}

// Bytes and checksum of a file in the manifest's text, if it is listed: printed again.
static void repair_entry(char *text, size_t room, const char *name, const Piece *file) {
    char key[80], entry[80];
    snprintf(key, sizeof key, "\"%s\": {", name);
    char *from = strstr(text, key), *to = from ? strchr(from, '}') : NULL;
    if (!to || file->absent) return;
    from += strlen(key);
    const int n = snprintf(entry, sizeof entry, "\"bytes\": %zu, \"xxh3\": \"%016llx\"", file->n,
                           (unsigned long long)XXH3_64bits(file->bytes, file->n));
    const size_t after = strlen(to) + 1;
    if ((size_t)(from - text) + (size_t)n + after > room) return;
    memmove(from + n, to, after);
    memcpy(from, entry, (size_t)n);
}

static void seal(char *text, size_t room) {
    char end[SEAL + 1];
    const size_t n = strlen(text), body = n > SEAL ? n - SEAL : 0;
    snprintf(end, sizeof end, ",\n  \"xxh3\": \"%016llx\"\n}\n",
             (unsigned long long)XXH3_64bits(text, body));
    if (body > 0 && n < room && strstr(text + body, "\"xxh3\"")) memcpy(text + body, end, SEAL);
}

static void checkpoint_repair(FuzzInput *in) {
    Piece *state = &in->pieces[STATE];
    if (state->absent || memchr(state->bytes, '\0', state->n)) return;

    const size_t room = state->n + 1024;
    char *text = calloc(1, room + 1);
    REQUIRE_MEMORY(text, "trainer.json");
    memcpy(text, state->bytes, state->n);

    static const char *const names[] = {NULL,
                                        "model.safetensors",
                                        "config.json",
                                        "optimizer.safetensors",
                                        "tokenizer.json",
                                        "tokenizer_config.json"};
    for (int i = WEIGHTS; i <= TOKENIZER_CONFIG && in->pieces[WEIGHTS].bytes; i++)
        repair_entry(text, room, names[i], &in->pieces[i]);

    seal(text, room);
    fuzz_replace(state, text, strlen(text));
    free(text);
}

// An independent look at the bytes shows that what the file says of itself is true.
static void check_sums(const FuzzInput *in) {
    const Piece *p = &in->pieces[STATE];
    char end[SEAL + 1];
    REQUIRE(p->n > SEAL, "accepted: a trainer.json of %zu bytes", p->n);

    const size_t body = p->n - SEAL;
    snprintf(end, sizeof end, ",\n  \"xxh3\": \"%016llx\"\n}\n",
             (unsigned long long)XXH3_64bits(p->bytes, body));
    REQUIRE(memcmp(p->bytes + body, end, SEAL) == 0,
            "accepted: trainer.json ends with a wrong checksum");

    for (int i = WEIGHTS; i <= TOKENIZER_CONFIG && in->pieces[WEIGHTS].bytes; i++) {
        const Piece *f = &in->pieces[i];
        char hex[17];
        snprintf(hex, sizeof hex, "%016llx", (unsigned long long)XXH3_64bits(f->bytes, f->n));
        const bool listed = i < TOKENIZER || memmem(p->bytes, p->n,
                                                    i == TOKENIZER ? "\"tokenizer.json\""
                                                                   : "\"tokenizer_config.json\"",
                                                    i == TOKENIZER ? 16 : 23);
        REQUIRE(!listed || (!f->absent && (memmem(p->bytes, p->n, hex, 16) || in->repaired)),
                "accepted: file %d is not the one that trainer.json lists", i);
    }
}

static bool same_control(const StepControl *a, const StepControl *b) {
    return XXH3_64bits(a, sizeof *a) == XXH3_64bits(b, sizeof *b);
}

// A state that was accepted, written and read again is the same.
static void check_round_trip(const TrainerState *s, const FileFacts facts[CHECKPOINT_FILES]) {
    TrainerState back;
    FileFacts facts_back[CHECKPOINT_FILES];

    ModelOptions options = *model_options(model);
    options.optimizer = s->optimizer;
    const char *path = fuzz_path("again.json");

    REQUIRE(trainer_json_write(path, s, &options, facts, &fuzz_error) &&
                trainer_json_read(path, &back, facts_back, &fuzz_error),
            "accepted, but not when written again: %s", fuzz_error.text);

    REQUIRE(back.step == s->step && back.position == s->position && back.T == s->T &&
                back.seed == s->seed && back.best_val_loss == s->best_val_loss &&
                back.eot == s->eot && back.optimizer == s->optimizer &&
                back.train.tokens == s->train.tokens &&
                back.train.fingerprint == s->train.fingerprint &&
                back.train.contents == s->train.contents && back.val.tokens == s->val.tokens &&
                same_control(&back.control, &s->control) && strcmp(back.tuning, s->tuning) == 0,
            "accepted, but another state when written again");
    REQUIRE(strcmp(back.options_json, s->options_json) == 0,
            "accepted, but other options when written again: %s and %s", s->options_json,
            back.options_json);

    for (int i = 0; i < CHECKPOINT_FILES; i++)
        REQUIRE(facts[i].bytes == facts_back[i].bytes &&
                    (facts[i].bytes < 0 || facts[i].checksum == facts_back[i].checksum),
                "accepted, but another manifest when written again");

    trainer_state_free(&back);
}

static void trainer_json_seed(int i) {
    const TrainerState s = state_of(i);
    FileFacts facts[CHECKPOINT_FILES];
    for (int k = 0; k < CHECKPOINT_FILES; k++)
        facts[k] = (FileFacts){
            i == 0 && (k == HF_TOKENIZER || k == HF_TOKENIZER_CONFIG) ? -1 : 1000 * k, (uint64_t)k};
    must(trainer_json_write(fuzz_path(STEP "trainer.json"), &s, model_options(model), facts,
                            &fuzz_error));
}

static bool trainer_json_reads(const FuzzInput *in) {
    TrainerState s;
    FileFacts facts[CHECKPOINT_FILES];
    const bool ok = trainer_json_read(fuzz_path(STEP "trainer.json"), &s, facts, &fuzz_error);
    if (ok) check_sums(in), check_round_trip(&s, facts);
    trainer_state_free(&s);
    return ok;
}

// The checkpoint is read as a resume reads it.
static bool checkpoint_reads(const FuzzInput *in) {
    char *path, *skipped;
    bool exists;

    const bool found = checkpoint_find_latest(fuzz_path(""), &path, &skipped, &fuzz_error);
    REQUIRE(found || (skipped && *skipped) || in->pieces[STATE].absent, "refused without a word");
    REQUIRE(checkpoint_exists(fuzz_path(""), &exists, &fuzz_error) && (exists || !found),
            "found, but there is none");

    bool ok = found;
    if (found) {
        TrainerState s;
        check_sums(in);
        REQUIRE(checkpoint_load_state(path, &s, &fuzz_error), "verified, but: %s", fuzz_error.text);
        REQUIRE(s.step == 1, "accepted: step %lld as step 1", (long long)s.step);
        Model *of = model_of(s.optimizer);
        ok = weights_file_load(of, path, &fuzz_error) && optimizer_file_load(of, path, &fuzz_error);
        trainer_state_free(&s);
    }

    if (!found && !fuzz_error.text[0])
        error_set(&fuzz_error, "%s", skipped ? skipped : "there is none");
    free(path), free(skipped);
    return ok;
}

// -------------------------------------------------------------------------------- models of others

static void safetensors_seed(int i) {
    SafetensorsEntry e[] = {{.name = "a", .dtype = DTYPE_FP32, .rank = 2, .shape = {3, 5}},
                            {.name = "b.weight", .dtype = DTYPE_BF16, .rank = 1, .shape = {7}},
                            {.name = "c", .dtype = DTYPE_FP16, .rank = 3, .shape = {2, 1, 2}},
                            {.name = "empty", .dtype = DTYPE_U8, .rank = 1, .shape = {0}},
                            {.name = "scalar", .dtype = DTYPE_FP32, .rank = 0}};
    const char *metadata[] = {"format", "pt", "optimizer", "adamw", NULL};

    const int count = i == 0 ? 5 : 1;
    SafetensorsWriter *w = safetensors_writer_open(fuzz_path("model.safetensors"), e, count,
                                                   i ? NULL : metadata, &fuzz_error);
    must(w != NULL);

    for (int k = 0; k < count; k++) {
        const unsigned char bytes[64] = {1, 2, 3, 4, 5, 6, 7, 8};
        must(safetensors_writer_append(w, bytes, (size_t)e[k].bytes, &fuzz_error));
    }

    int64_t bytes;
    uint64_t checksum;
    must(safetensors_writer_commit(w, &bytes, &checksum, &fuzz_error));
}

// Names are unique and found, the data is covered once, and every element can be read.
static void check_safetensors(SafetensorsFile *f, size_t file_bytes) {
    int64_t sum = 0, data = INT64_MAX;
    for (int i = 0; i < safetensors_count(f); i++) {
        const SafetensorsEntry *e = safetensors_entry(f, i);
        REQUIRE(safetensors_find(f, e->name) == e, "tensor %s is not found by its name", e->name);
        REQUIRE(e->offset >= 8 && e->bytes >= 0 && (size_t)(e->offset + e->bytes) <= file_bytes,
                "%s is outside", e->name);
        sum += e->bytes, data = min_i64(data, e->offset);
        void *bytes = malloc((size_t)e->bytes + 1);
        REQUIRE(safetensors_read_bytes(f, e, 0, e->bytes, bytes, &fuzz_error), "%s",
                fuzz_error.text);
        if (e->dtype == DTYPE_FP32 || e->dtype == DTYPE_FP16 || e->dtype == DTYPE_BF16) {
            const int64_t n = e->bytes / (int64_t)dtype_size(e->dtype);
            float *values = malloc((size_t)n * sizeof *values + 1);
            REQUIRE(safetensors_read_fp32(f, e, 0, n, values, &fuzz_error), "%s", fuzz_error.text);
            free(values);
        }
        free(bytes);
    }

    REQUIRE(safetensors_count(f) == 0 || data + sum == (int64_t)file_bytes,
            "%lld bytes of data from %lld on in a file of %zu", (long long)sum, (long long)data,
            file_bytes);
    (void)safetensors_metadata(f, "format"), (void)safetensors_metadata(f, "optimizer");
    REQUIRE(!safetensors_find(f, "no such tensor"), "found: a tensor that is not there");
}

static bool safetensors_reads(const FuzzInput *in) {
    SafetensorsFile *f = safetensors_open(fuzz_path("model.safetensors"), &fuzz_error);
    if (f) check_safetensors(f, in->pieces[0].n);
    safetensors_close(f);
    return f != NULL;
}

// The tensors [first, last) of the model as a file of their own.
static void write_part(const char *name, int first, int last) {
    const Parameter *table = model_parameters(model);
    SafetensorsEntry e[32] = {0};
    for (int i = first; i < last; i++) {
        SafetensorsEntry *t = &e[i - first];
        *t = (SafetensorsEntry){.dtype = DTYPE_FP32,
                                .rank = table[i].rank,
                                .shape = {table[i].file_rows, table[i].cols}};
        if (table[i].rank == 1) t->shape[1] = 0;
        if (table[i].transposed) t->shape[0] = table[i].cols, t->shape[1] = table[i].file_rows;
        snprintf(t->name, sizeof t->name, "%s", table[i].name + strlen("transformer."));
    }

    SafetensorsWriter *w =
        safetensors_writer_open(fuzz_path(name), e, last - first, NULL, &fuzz_error);
    must(w != NULL);

    for (int i = 0; i < last - first; i++) {
        void *zeros = calloc(1, (size_t)e[i].bytes);
        must(safetensors_writer_append(w, zeros, (size_t)e[i].bytes, &fuzz_error));
        free(zeros);
    }

    must(safetensors_writer_commit(w, &(int64_t){0}, &(uint64_t){0}, &fuzz_error));
}

static const char *const other_blocks[] = {
    "starcoder2:NKV=1",    "llama:HS=2",  "qwen3:tied=0", "arcee:NKV=1",
    "base=0,NKV=1,bias=2", "qwen2:NKV=1", "llama:bias=4"};
enum { GPT2_SEEDS = 3, BLOCK_SEEDS = sizeof other_blocks / sizeof *other_blocks };

static void huggingface_seed(int i) {
    FileFacts facts[HF_FILES];
    if (i >= GPT2_SEEDS) {
        char descriptor[64];
        ModelOptions options = {.dtype = DTYPE_FP32, .train = true, .B = 1, .T = 8};
        snprintf(descriptor, sizeof descriptor, "%s,L=1,C=8,NH=2,T=8,V=20",
                 other_blocks[i - GPT2_SEEDS]);
        must(model_config_parse(&options.config, descriptor, &fuzz_error));

        Model *other = model_create(&options, &fuzz_error);
        must(other != NULL);
        model_init_weights(other, 1);
        must(huggingface_write(fuzz_path("hf"),
                               &(HuggingFaceModel){other, DTYPE_BF16, 19, NULL, NULL}, facts,
                               &fuzz_error));
        model_destroy(other);
        return;
    }

    const HuggingFaceModel m = {model, i == 1 ? DTYPE_BF16 : DTYPE_FP32, i == 1 ? -1 : 19, NULL,
                                NULL};
    must(huggingface_write(fuzz_path("hf"), &m, facts, &fuzz_error));
    if (i < 2) return;

    const int count = model_num_tensors(model);
    unlink(fuzz_path("hf/model.safetensors"));
    write_part("hf/one.safetensors", 0, count / 2);
    write_part("hf/two.safetensors", count / 2, count);

    FILE *f = fopen(fuzz_path("hf/model.safetensors.index.json"), "w");
    fprintf(f, "{\"metadata\": {\"total_size\": 1}, \"weight_map\": {");
    for (int k = 0; k < count; k++)
        fprintf(f, "%s\"%s\": \"%s.safetensors\"", k ? ",\n" : "\n",
                model_parameters(model)[k].name + strlen("transformer."),
                k < count / 2 ? "one" : "two");
    fprintf(f, "}}\n");
    fclose(f);
}

// Every tensor of its shape can be read; all of it is memory that the file pays for, in 16 or 32
// bits.
static bool read_weights(const char *path, const FuzzInput *in) {
    WeightsFile *f = weights_file_open(path, &fuzz_error);
    if (!f) return false;

    const ModelConfig *c = weights_file_config(f);
    int64_t bytes = 0;
    for (int i = 0; i < MAX_PIECES; i++) bytes += (int64_t)in->pieces[i].n;
    REQUIRE(model_config_check(c, &fuzz_error), "accepted: %s", fuzz_error.text);
    REQUIRE(weights_file_eot(f) >= -1 && weights_file_eot(f) < c->V,
            "accepted: an end-of-text outside the vocabulary");

    Parameter *table = parameter_table(c);
    int64_t numel = 0;
    for (int i = 0; i < parameter_count(c); i++) numel += table[i].file_rows * table[i].cols;
    REQUIRE(2 * numel <= bytes, "accepted: %lld numbers in %lld bytes", (long long)numel,
            (long long)bytes);

    bool ok = weights_file_check_rest(f, &fuzz_error); // its tensors may have any size and value
    const bool rest = ok;
    for (int i = 0; ok && i < parameter_count(c); i++)
        for (int64_t row = 0, n; ok && row < table[i].rows; row += n) {
            n = min_i64(table[i].rows - row, 4096 / table[i].cols + 1);
            float *rows = malloc((size_t)(n * table[i].cols) * sizeof *rows);
            ok = weights_file_read(f, &table[i], row, n, rows, &fuzz_error);
            free(rows);
        }

    REQUIRE(ok || !rest || strstr(fuzz_error.text, "not finite"), "opened, but not read: %s",
            fuzz_error.text);

    free(table);
    weights_file_close(f);
    return true;
}

static bool huggingface_reads(const FuzzInput *in) { return read_weights(fuzz_path("hf"), in); }

static void config_seed(int i) {
    static const char *const texts[] = {
        "{\"model_type\": \"gpt2\", \"n_layer\": 1, \"n_head\": 2, \"hidden_size\": 8, "
        "\"n_positions\": 8, "
        "\"vocab_size\": 20, \"n_inner\": null, \"layer_norm_epsilon\": 1e-5, "
        "\"scale_attn_weights\": true}",
        "{\"architectures\": [\"LlamaForCausalLM\"], \"model_type\": \"llama\", \"vocab_size\": "
        "20, "
        "\"hidden_size\": 8, \"intermediate_size\": 16, \"num_hidden_layers\": 1, "
        "\"num_attention_heads\": 2, "
        "\"num_key_value_heads\": 1, \"head_dim\": 6, \"max_position_embeddings\": 8, "
        "\"hidden_act\": \"silu\", "
        "\"rms_norm_eps\": 1e-6, \"rope_theta\": 500000.0, \"rope_scaling\": {\"type\": "
        "\"default\"}, "
        "\"attention_bias\": true, \"mlp_bias\": false, \"logits_scaling\": 1, "
        "\"tie_word_embeddings\": true}",
        "{\"architectures\": [\"Qwen3ForCausalLM\"], \"model_type\": \"qwen3\", \"vocab_size\": "
        "20, "
        "\"hidden_size\": 8, \"intermediate_size\": 16, \"num_hidden_layers\": 1, "
        "\"num_attention_heads\": 2, "
        "\"num_key_value_heads\": 1, \"head_dim\": 6, \"max_position_embeddings\": 8, "
        "\"rope_parameters\": "
        "{\"rope_type\": \"default\", \"rope_theta\": 1e6, \"partial_rotary_factor\": 1.0}, "
        "\"use_sliding_window\": false, \"sliding_window\": null, \"layer_types\": "
        "[\"full_attention\"]}",
        "{\"model_type\": \"starcoder2\", \"vocab_size\": 20, \"hidden_size\": 8, "
        "\"intermediate_size\": 32, "
        "\"num_hidden_layers\": 1, \"num_attention_heads\": 2, \"num_key_value_heads\": 1, "
        "\"max_position_embeddings\": 8, \"rope_theta\": 999999.4420358813, \"sliding_window\": 8, "
        "\"use_bias\": true, \"norm_epsilon\": 1e-5, \"hidden_act\": \"gelu_new\", "
        "\"tie_word_embeddings\": false, "
        "\"embed_norm\": true}",
        "{\"model_type\": \"pretrain_cu\", \"vocab_size\": 20, \"hidden_size\": 8, "
        "\"intermediate_size\": 32, "
        "\"num_hidden_layers\": 1, \"num_attention_heads\": 2, \"max_position_embeddings\": 8, "
        "\"norm\": "
        "\"rmsnorm\", \"hidden_act\": \"relu2\", \"qk_norm\": true, \"use_bias\": false, "
        "\"qkv_bias\": true, "
        "\"rope_theta\": 100}",
    };

    write_text(fuzz_path("config.json"), texts[i]);
}

// An accepted configuration is possible, and it is the same when it is written and read again.
static bool config_reads(const FuzzInput *in) {
    ModelConfig c, again;
    char a[MODEL_DESCRIPTOR], b[MODEL_DESCRIPTOR];

    fuzz_error.text[0] = '\0';
    cJSON *root = json_parse((const char *)in->pieces[0].bytes, in->pieces[0].n, &fuzz_error);
    const bool ok = root && huggingface_parse_config(root, &c, &fuzz_error);
    cJSON_Delete(root);
    REQUIRE(ok || fuzz_is_line(&fuzz_error), "a message that is not one line of UTF-8");
    if (!ok) return false;

    REQUIRE(model_config_check(&c, &fuzz_error), "accepted: %s", fuzz_error.text);
    char *text = huggingface_config_json(&c, DTYPE_BF16, -1, -1);
    root = json_parse(text, strlen(text), &fuzz_error);
    REQUIRE(root && huggingface_parse_config(root, &again, &fuzz_error),
            "accepted, but not when written again: %s", fuzz_error.text);
    REQUIRE(strcmp(model_config_descriptor(&c, a), model_config_descriptor(&again, b)) == 0 &&
                c.d_ff == again.d_ff &&
                fabsf(again.eps - c.eps) <= 1e-5f * c.eps, // six digits are written
            "accepted, but another model when written again: %s and %s", a, b);

    cJSON_Delete(root);
    free(text);
    return true;
}

static void llmc_seed(int i) {
    unlink(fuzz_path("model.bin"));
    must(export_model(fuzz_path("model.bin"), &(HuggingFaceModel){.model = model, .eot = -1},
                      i == 0 ? EXPORT_FP32 : EXPORT_BF16, &fuzz_error));
}

static bool llmc_reads(const FuzzInput *in) { return read_weights(fuzz_path("model.bin"), in); }

// ------------------------------------------------------------------------------------------ tokens

static void shards_seed(int i) {
    const int token_bytes = i == 1 ? 4 : 2;
    for (int k = 0; k < (i == 2 ? 1 : 2); k++) {
        uint32_t wide[40];
        uint16_t narrow[40];
        for (int t = 0; t < 40; t++) narrow[t] = (uint16_t)(wide[t] = (uint32_t)(t * 7 % 257));
        ShardWriter *w = shard_writer_open(fuzz_path(k ? "s/b.bin" : "s/a.bin"), token_bytes,
                                           i == 2 ? 0 : 257, i == 2 ? -1 : 256, &fuzz_error);
        must(w && shard_writer_append(w, i == 1 ? (void *)wide : (void *)narrow, 40, &fuzz_error) &&
             shard_writer_commit(w, &fuzz_error));
    }
}

static bool shards_read(const FuzzInput *in) {
    enum { MOST = 33, V = 257 };
    const int64_t T = 3 + 2 * in->variant; // 16 of them
    ShardSet set;
    if (!shards_open(&set, fuzz_path("s/*.bin"), T, &fuzz_error)) return false;

    int64_t windows = 0, tokens = 0;
    for (int i = 0; i < 2; i++) {
        const Piece *p = &in->pieces[i];
        if (p->absent) continue;
        int32_t header[256];
        memcpy(header, p->bytes, sizeof header);
        const int64_t bytes = header[1] == 1 ? 2 : header[2], n = ((int64_t)p->n - 1024) / bytes;
        tokens += n, windows += n > 0 ? (n - 1) / T : 0;
    }

    REQUIRE(set.num_tokens == tokens && set.num_windows == windows,
            "%lld tokens, %lld windows; the files have %lld and %lld", (long long)set.num_tokens,
            (long long)set.num_windows, (long long)tokens, (long long)windows);

    for (int64_t w = 0; w < set.num_windows; w++) {
        uint32_t window[MOST + 1];
        const char *path;
        int64_t offset;
        shards_locate(&set, w, &path, &offset);
        if (!shards_read_window(&set, w, V, window, &fuzz_error)) continue;
        for (int t = 0; t <= T; t++) {
            const uint32_t token = set.token_bytes == 2 ? ((uint16_t *)window)[t] : window[t];
            REQUIRE(token < V, "accepted: token %u", token);
        }
    }

    shards_close(&set);
    return true;
}

static void choices_seed(int i) {
    (void)i;
    // Four examples: 2 completions, and 3 each.
    static const uint16_t first[] = {65535, 26, 0, 1, 2, 2, 5, 6, 1, 7, 2, 8, 9};
    uint16_t other[] = {65535, 28, 1, 0, 3, 1, 4, 1, 7, 1, 8, 2, 9, 10};
    int32_t header[256] = {CHOICES_MAGIC, CHOICES_VERSION, 4, 28};
    FILE *f = fopen(fuzz_path("choices.bin"), "wb");
    fwrite(header, sizeof header, 1, f);
    fwrite(first, sizeof first, 1, f);
    for (; other[2] < 4; other[2]++) fwrite(other, sizeof other, 1, f);
    fclose(f);
}

// The views show the file, word by word.
static bool choices_read(const FuzzInput *in) {
    enum { V = 300 };
    ChoiceSets sets;
    bool ok = choices_open(&sets, fuzz_path("choices.bin"), V, &fuzz_error);

    if (ok) {
        const ChoiceSet *set = sets.sets[0];
        const Piece *p = &in->pieces[0];
        size_t at = 1024;
        for (int64_t i = 0; i < choices_count(set); i++) {
            const ChoiceExample e = choices_example(set, i);
            uint16_t words[1 << 15];
            size_t n = 0;
            words[n++] = CHOICES_BEGIN, n++, words[n++] = (uint16_t)i,
            words[n++] = (uint16_t)e.label;
            words[n++] = (uint16_t)e.completions;

            for (int k = -1; k < e.completions; k++) {
                const int64_t count = k < 0 ? e.context_tokens : e.completion_tokens[k];
                const uint16_t *tokens = k < 0 ? e.context : e.completion[k];
                words[n++] = (uint16_t)count;
                for (int64_t t = 0; t < count; t++)
                    REQUIRE(tokens[t] < V, "accepted: token %d", tokens[t]);
                memcpy(words + n, tokens, (size_t)count * 2), n += (size_t)count;
            }

            words[1] = (uint16_t)(2 * n);
            REQUIRE(at + 2 * n <= p->n && memcmp(p->bytes + at, words, 2 * n) == 0,
                    "example %lld is not the file's", (long long)i);
            REQUIRE(e.label < e.completions, "accepted: label %d of %d", e.label, e.completions);
            at += 2 * n;
        }
        REQUIRE(at == p->n, "%zu bytes that belong to no example", p->n - at);
        (void)choices_fit(&sets, 4, &fuzz_error);
    }

    choices_close(&sets);
    return ok;
}

// ---------------------------------------------------------------------- options, log, tuning cache

static void mixture_seed(int i) {
    static const char *const texts[] = {"web/train_*.bin:0.7,code/train_*.bin:0.3",
                                        "a\\,b:3.25,c:d:1e-3,e:7"};
    write_text(fuzz_path("mixture"), texts[i]);
}

static char *same_pattern(const void *context, const char *pattern) {
    (void)context;
    return strdup(pattern);
}

// A mixture that was taken has shares, and the same ones when its text is put together again.
static bool mixture_reads(const FuzzInput *in) {
    (void)in;
    char *text = file_read_all(fuzz_path("mixture"), 1 << 16, NULL, &fuzz_error);
    if (!text) return false;

    Mixture m, again;
    const bool ok = mixture_parse(&m, text, &fuzz_error);
    if (ok) {
        char *same = mixture_map(text, same_pattern, NULL);
        int64_t total = 0, drawn[MIXTURE_MAX];

        REQUIRE(same && mixture_parse(&again, same, &fuzz_error), "taken, but not again: %s",
                fuzz_error.text);
        REQUIRE(m.count >= 1 && m.count == again.count, "%d sources, again %d", m.count,
                again.count);

        mixture_count(&m, m.total, drawn);
        for (int k = 0; k < m.count; k++) {
            REQUIRE(m.weights[k] >= 1 && m.weights[k] == again.weights[k] &&
                        (*m.names[k] || m.count == 1),
                    "source %d", k + 1);
            REQUIRE(drawn[k] == m.weights[k], "source %d: %lld drawn", k + 1, (long long)drawn[k]);
            total += m.weights[k];
        }
        REQUIRE(total == m.total && total <= MIXTURE_WHOLE + MIXTURE_MAX, "a sum of %lld",
                (long long)m.total);
        mixture_free(&again);
        free(same);
    }

    mixture_free(&m);
    free(text);
    return ok;
}

static Options default_options(void) {
    Options o;
    char *argv[] = {(char *)"train_gpt2", NULL};
    REQUIRE(options_parse(&o, 1, argv, &fuzz_error) == OPTIONS_RUN, "%s", fuzz_error.text);
    return o;
}

static void options_seed(int i) {
    Options o = default_options();
    if (i == 1) o.B = 7, options_set_string(&o.output, "a \"name\"");
    char *json = options_to_json(&o, i == 1);
    write_text(fuzz_path("options.json"), json);
    free(json);
    options_free(&o);
}

// Options that were taken are, as JSON, taken again and the same.
static bool options_read(const FuzzInput *in) {
    (void)in;
    char *text = file_read_all(fuzz_path("options.json"), 16 << 20, NULL, &fuzz_error);
    if (!text) return false;

    Options o = default_options(), again = default_options();
    const bool ok = options_adopt_json(&o, text, false, &fuzz_error);
    free(options_diff_json(&o, text));

    if (ok) {
        char *json = options_to_json(&o, true);
        REQUIRE(options_adopt_json(&again, json, false, &fuzz_error), "taken, but not again: %s",
                fuzz_error.text);
        // JSON has no bytes that are not UTF-8: they have become U+FFFD.
        for (const OptionRow *row = option_table; row->long_name && !strstr(json, "\\ufffd");
             row++) {
            char a[OPTION_VALUE], b[OPTION_VALUE];
            REQUIRE(row->scope == OPTION_OF_PLACE || row->scope == OPTION_OF_PROCESS ||
                        strcmp(option_value(row, &o, a), option_value(row, &again, b)) == 0,
                    "--%s is taken as %s, and then as %s", row->long_name, option_value(row, &o, a),
                    option_value(row, &again, b));
        }
        free(json);
    }

    options_free(&o), options_free(&again);
    free(text);
    return ok;
}

static void log_seed(int i) {
    static const char *const logs[] = {"{\"event\":\"run\",\"time\":1.5,\"options\":{},\"start_"
                                       "step\":0}\n{\"event\":\"step\",\"step\":1,\"loss\":3.5}"
                                       "\n"
                                       "{\"event\":\"validation\",\"step\":1,\"loss\":3.5}\n{"
                                       "\"event\":\"step\",\"step\":2,\"loss\":null}\n",
                                       "{\"event\":\"step\",\"step\":3,\"loss\":3.5}\n{\"event\":"
                                       "\"choices\",\"step\":3,\"name\":\"a\"}\n"
                                       "{\"event\":\"step\",\"step\":4,\"lo"};
    write_text(fuzz_path("run/main.log"), logs[i]);
}

// Removes what the input before has left: logs moved aside, and TensorBoard's files.
static void remove_besides_log(void) {
    char **names, path[300];
    int count;
    must(directory_list(fuzz_path("run"), &names, &count, &fuzz_error));
    for (int i = 0; i < count; i++) {
        snprintf(path, sizeof path, "run/%s", names[i]);
        if (strcmp(names[i], "main.log") != 0) unlink(fuzz_path(path));
    }
    directory_list_free(names, count);
}

// A resume after some step keeps whole lines and adds to them, or moves the log aside.
static bool log_reads(const FuzzInput *in) {
    const Piece *p = &in->pieces[0];
    const int64_t step = in->variant;
    remove_besides_log();

    RunLog *log = runlog_open(fuzz_path("run"), true, step, 0, &fuzz_error);
    if (!log) return false;
    runlog_event(log, "sample", "\"step\":%lld", (long long)step);
    runlog_close(log);

    size_t n;
    unsigned char *after = read_bytes(fuzz_path("run/main.log"), &n);

    static const char added[] = "{\"event\":\"sample\",";
    unsigned char *line = memmem(after, n, added, sizeof added - 1);
    size_t kept = 0;
    for (; line; line = memmem(line + 1, n - (size_t)(line + 1 - after), added, sizeof added - 1))
        kept = (size_t)(line - after);

    // A log of another kind was moved aside as a whole.
    const bool is_other = file_exists(fuzz_path("run/main.log.1"));
    for (const unsigned char *at = after, *end; at < after + kept; at = end) {
        end = (unsigned char *)memchr(at, '\n', (size_t)(after + kept - at)) + 1;
        REQUIRE(!is_other && memmem(p->bytes, p->n, at, (size_t)(end - at)),
                "a kept line is another");
    }

    REQUIRE(kept == 0 || after[kept - 1] == '\n', "an unfinished line is kept");
    REQUIRE(n > 0 && after[n - 1] == '\n', "the last line is not finished");
    free(after);

    // Nothing is left of the evaluations of that step, this one among them.
    log = runlog_open(fuzz_path("run"), true, step, 0, &fuzz_error);
    REQUIRE(log, "refused at the second time");
    runlog_drop_evaluations(log, step);
    runlog_close(log);

    size_t left;
    after = read_bytes(fuzz_path("run/main.log"), &left);
    REQUIRE(left + sizeof added - 1 < n && (left == 0 || after[left - 1] == '\n'),
            "the evaluation is still there");
    free(after);
    return true;
}

static const char *const keys[] = {"NVIDIA H200, cc 90, matmul 1", "another key"};

static void tuning_seed(int i) {
    (void)i;
    choices_file_close();
    for (int k = 0; k < 2; k++) choices_file_put(keys[k], &k, sizeof k);
    choices_file_close();
    write_text(fuzz_path("lines"), "a key\t01020304\nanother key\tff\n");
}

static bool tuning_reads(const FuzzInput *in) {
    const Piece *p = &in->pieces[1];
    char *lines = strndup((const char *)p->bytes, p->n);
    int found = 0;

    choices_file_close();
    for (int k = 0; k < 2; k++) {
        int value;
        found += choices_file_get(keys[k], &value, sizeof value);
    }
    free(choices_file_used());
    choices_file_restore(lines);

    unsigned char bytes[4];
    (void)choices_file_get("a key", bytes, sizeof bytes);
    free(choices_file_used());
    choices_file_close();

    free(lines);
    return found > 0;
}

// --------------------------------------------------------------------------------------- the table

const FuzzReader fuzz_readers[] = {
    {"trainer_json",
     {STEP "trainer.json"},
     2,
     trainer_json_seed,
     checkpoint_repair,
     .read = trainer_json_reads,
     .cut = 1,
     .flipped = 1,
     .names_file = true},
    {"checkpoint",
     {STEP "trainer.json", STEP "model.safetensors", STEP "config.json",
      STEP "optimizer.safetensors", STEP "tokenizer.json", STEP "tokenizer_config.json"},
     1 + OPTIMIZER_COUNT,
     checkpoint_seed,
     checkpoint_repair,
     .read = checkpoint_reads,
     .cut = 0x3f,
     .flipped = 0x3f},
    {"safetensors",
     {"model.safetensors"},
     2,
     safetensors_seed,
     .read = safetensors_reads,
     .cut = 1,
     .foreign = 1,
     .names_file = true},
    {"huggingface",
     {"hf/config.json", "hf/model.safetensors", "hf/model.safetensors.index.json",
      "hf/one.safetensors", "hf/two.safetensors"},
     GPT2_SEEDS + BLOCK_SEEDS,
     huggingface_seed,
     .read = huggingface_reads,
     .cut = 0x1f,
     .foreign = 0x1b},
    {"model_config",
     {"config.json"},
     5,
     config_seed,
     .read = config_reads,
     .in_memory = true,
     .cut = 1},
    {"llmc_model",
     {"model.bin"},
     2,
     llmc_seed,
     .read = llmc_reads,
     .cut = 1,
     .foreign = 1,
     .names_file = true},
    {"shards",
     {"s/a.bin", "s/b.bin"},
     3,
     shards_seed,
     .read = shards_read,
     .cut = 3,
     .foreign = 3,
     .names_file = true},
    {"shard_tool",
     {"d/train_000000.bin", "d/manifest.json", "d/tokenizer.json"},
     3,
     fuzz_shard_tool_seed,
     fuzz_shard_tool_repair,
     .read = fuzz_shard_tool_read,
     .cut = 1},
    {"choices",
     {"choices.bin"},
     1,
     choices_seed,
     .read = choices_read,
     .cut = 1,
     .foreign = 1,
     .names_file = true},
    {"choice_lines", {"choices.jsonl"}, 2, fuzz_choice_lines_seed, .read = fuzz_choice_lines_read},
    {"tokenizer_json",
     {"t/tokenizer.json"},
     5,
     fuzz_tokenizer_json_seed,
     .read = fuzz_tokenizer_json_read,
     .cut = 1,
     .foreign = 1,
     .names_file = true},
    {"vocab_merges",
     {"v/vocab.json", "v/merges.txt"},
     1,
     fuzz_vocab_seed,
     .read = fuzz_vocab_read,
     .cut = 3,
     .foreign = 1,
     .names_file = true},
    {"tiktoken_ranks",
     {"toy.tiktoken"},
     1,
     fuzz_ranks_seed,
     .read = fuzz_ranks_read,
     .foreign = 1,
     .names_file = true},
    {"llmc_tokenizer",
     {"gpt2_tokenizer.bin"},
     1,
     fuzz_llmc_tokenizer_seed,
     .read = fuzz_llmc_tokenizer_read,
     .cut = 1,
     .foreign = 1,
     .names_file = true},
    {"pieces", {"text"}, 2, fuzz_pieces_seed, .read = fuzz_pieces_read},
    {"json_line", {"line.json"}, 2, fuzz_json_line_seed, .read = fuzz_json_line_read},
    {"packed", {"packed"}, 3, fuzz_packed_seed, .read = fuzz_packed_read},
    {"documents",
     {"docs/a.jsonl", "docs/b.txt", "docs/c.jsonl.gz"},
     3,
     fuzz_documents_seed,
     .read = fuzz_documents_read},
    {"options", {"options.json"}, 2, options_seed, .read = options_read, .cut = 1},
    {"mixture", {"mixture"}, 2, mixture_seed, .read = mixture_reads},
    {"log", {"run/main.log"}, 2, log_seed, .read = log_reads, .changes_files = true},
    {"whereis", {"w/main.log", "w/a.bin"}, 2, fuzz_whereis_seed, .read = fuzz_whereis_read},
    {"choices_file", {"tuning", "lines"}, 1, tuning_seed, .read = tuning_reads},
    {"tcp_server",
     {"one", "two", "three"},
     2,
     fuzz_tcp_server_seed,
     .read = fuzz_tcp_server_read,
     .in_memory = true},
    {"tcp_client",
     {"server"},
     3,
     fuzz_tcp_client_seed,
     .read = fuzz_tcp_client_read,
     .in_memory = true},
    {"watch", {"one", "two"}, 3, fuzz_watch_seed, .read = fuzz_watch_read, .in_memory = true},
    {0},
};
