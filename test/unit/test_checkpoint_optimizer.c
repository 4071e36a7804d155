// The optimizer's state in a checkpoint: whatever an optimizer keeps, in whatever dtype and
// wherever it lives, comes back to the same bits; another optimizer's state, and a file that is not
// what it should be, is refused with a word about why.

#include "llmc/base/random.h"
#include "llmc/model/model_state.h"
#include "llmc/store/checkpoint.h"
#include "llmc/store/optimizer_file.h"
#include "llmc/store/safetensors.h"
#include "llmc/store/trainer_json.h"
#include "llmc/store/weights_file.h"
#include "test/fixture.h"
#include "test/unit/device_fixture.h"
#include "test/unit/same_model.h"
#include "test/unit/store_fixture.h"
#include "test/unit/tiny_model.h"

static int teardown(void **state) {
    models_destroy(state);
    return tmp_teardown(state);
}
TestFixture test_each = {setup, teardown}, test_all = {start_device, stop_device};

// V = 130 leaves rows of padding; C = 40 makes tensors that are no whole blocks of 8-bit states.
static ModelOptions small_model_options(OptimizerKind optimizer, DType dtype) {
    return (ModelOptions){.config = {.max_T = 16, .V = 130, .Vp = 256, .L = 2, .NH = 4, .C = 40},
                          .dtype = dtype,
                          .master = true,
                          .train = true,
                          .B = 1,
                          .T = 16,
                          .optimizer = optimizer};
}

static uint32_t random_word(uint64_t seed, int index, int slot, int64_t e) {
    return philox(seed, (uint64_t)(100 * index + slot), (uint64_t)e).v[0];
}

// Elements of a tensor of p that are not padding.
static int64_t elements_in_use(const Parameter *p, Tensor t) {
    const bool by_row = t.rank == p->rank && t.shape[0] == p->rows && t.dtype != DTYPE_U8;
    return by_row ? p->file_rows * p->cols : tensor_numel(t);
}

// Every code of 8 bits; numbers of either sign in the others.
static void fill_slot(Model *model, int index, int slot, Tensor t, uint64_t seed) {
    const int64_t n = tensor_numel(t), used = elements_in_use(&model_parameters(model)[index], t);
    AUTO_FREE unsigned char *bytes = calloc((size_t)n, dtype_size(t.dtype));

    for (int64_t e = 0; e < used; e++) {
        const uint32_t word = random_word(seed, index, slot, e);
        const float value = philox_uniform(word) - 0.25f;
        if (t.dtype == DTYPE_U8)
            bytes[e] = (unsigned char)word;
        else
            convert_elements(bytes + (size_t)e * dtype_size(t.dtype), t.dtype, &value, DTYPE_FP32,
                             1);
    }

    model_write_bytes(model, t, 0, (int64_t)tensor_bytes(t), bytes);
}

// A weight and what rounding took from it, as Kahan's update leaves them: every third time just
// half a step, where the value lies between two weights.
static void fill_compensation(Model *model, int index, uint64_t seed) {
    const UpdateTensor *t = &model_tensors(model)[index];
    const int64_t n = elements_in_use(&model_parameters(model)[index], t->weight);
    uint16_t *weight = calloc((size_t)tensor_numel(t->weight), 2),
             *compensation = calloc((size_t)tensor_numel(t->weight), 2);

    for (int64_t e = 0; e < n; e++) {
        const uint32_t word = random_word(seed, index, SLOT_COMPENSATION, e);
        weight[e] = float_to_bf16(philox_uniform(word) - 0.5f);
        const float value = bf16_to_float(weight[e]),
                    step = bf16_to_float((uint16_t)(weight[e] + 1)) - value;
        const float fraction = word % 3 == 0 ? 0.5f : philox_uniform(word * 2654435761u) - 0.5f;
        // below 2^k steps are smaller
        compensation[e] = float_to_bf16((weight[e] & 0x7F ? fraction : 0.25f * fraction) * step);
    }

    model_write_bytes(model, t->weight, 0, (int64_t)tensor_bytes(t->weight), weight);
    model_write_bytes(model, t->compensation, 0, (int64_t)tensor_bytes(t->compensation),
                      compensation);

    free(weight);
    free(compensation);
}

static void fill_model(Model *model, uint64_t seed) {
    model_init_weights(model, seed);
    for (int i = 0; i < model_num_tensors(model); i++)
        for (int slot = 0; slot < NUM_STATE_SLOTS; slot++) {
            UpdateTensor t = model_tensors(model)[i];
            const Tensor s = *state_slot_tensor(&t, (StateSlot)slot);
            if (!s.data || !state_slot_prefix((StateSlot)slot)) continue;
            if (slot == SLOT_COMPENSATION)
                fill_compensation(model, i, seed);
            else
                fill_slot(model, i, slot, s, seed);
        }
}

#define OPTIMIZER_FILE tmp_file("step_00000001/optimizer.safetensors")

static const char *save(Model *model) {
    const TrainerState s = {
        .step = 1, .position = 1, .T = 16, .eot = -1, .control = step_control_initial(1.0f)};
    assert_ok(checkpoint_save(tmp.path, model, &s, &err));
    return tmp_file("step_00000001");
}

// ---------------------------------------------------------------------------------------- the same

// Saved by the one model, loaded by the other: where the state lives is no business of the file's.
static void check_round_trip(ModelOptions from, ModelOptions to) {
    Model *saved = model_of(from), *loaded = model_of(to);
    fill_model(saved, 1);
    fill_model(loaded, 2); // must all be overwritten
    const char *path = save(saved);
    TrainerState state;
    assert_ok(weights_file_load(loaded, path, &err) && optimizer_file_load(loaded, path, &err));
    assert_same_model(saved, loaded);
    assert_ok(checkpoint_load_state(path, &state, &err));
    assert_int_equal(state.optimizer, from.optimizer);
    trainer_state_free(&state);
    models_destroy(NULL);
}

TEST(every_optimizers_state_comes_back_to_the_same_bits_on_the_device_and_in_host_memory) {
    for (int kind = 0; kind < OPTIMIZER_COUNT; kind++) {
        const ModelOptions fp32 = small_model_options((OptimizerKind)kind, DTYPE_FP32);
        const ModelOptions bf16 = small_model_options((OptimizerKind)kind, DTYPE_BF16);

        ModelOptions in_host = bf16;
        in_host.offload = true;

        check_round_trip(fp32, fp32);
        check_round_trip(bf16, bf16);
        if (!model_check_options(&in_host, &err)) continue;
        check_round_trip(in_host, in_host);
        check_round_trip(bf16, in_host);
    }

    ModelOptions without_master = small_model_options(OPTIMIZER_ADAMW, DTYPE_BF16);
    without_master.master = false;
    check_round_trip(without_master, without_master);
}

// The trap of Kahan's pair: the file's value, weight + compensation, may round to the other
// neighbour.
TEST(a_value_half_way_between_two_weights_keeps_its_weight) {
    int halfway = 0;
    Model *model = model_of(small_model_options(OPTIMIZER_ADAMW_KAHAN, DTYPE_BF16));
    fill_model(model, 1);

    const UpdateTensor *t = &model_tensors(model)[PARAM_WTE];
    const int64_t n = 130 * 40;
    uint16_t *weight = malloc((size_t)n * 2), *compensation = malloc((size_t)n * 2);
    model_read_bytes(model, t->weight, 0, n * 2, weight);
    model_read_bytes(model, t->compensation, 0, n * 2, compensation);

    for (int64_t e = 0; e < n; e++)
        halfway +=
            float_to_bf16(bf16_to_float(weight[e]) + bf16_to_float(compensation[e])) != weight[e];
    assert_true(halfway > n / 20); // the round trips above met it often

    free(weight);
    free(compensation);
}

TEST(a_new_state_is_all_zero) {
    for (int offload = 0; offload < 2; offload++) {
        ModelOptions options = small_model_options(OPTIMIZER_ADAMW_8BIT, DTYPE_BF16);
        options.offload = offload;
        Model *model = model_of(options);
        UpdateTensor t = model_tensors(model)[PARAM_WTE];

        for (int slot = 0; slot < NUM_STATE_SLOTS; slot++) {
            const Tensor s = *state_slot_tensor(&t, (StateSlot)slot);
            if (!s.data) continue;
            AUTO_FREE unsigned char *bytes = malloc(tensor_bytes(s));
            model_read_bytes(model, s, 0, (int64_t)tensor_bytes(s), bytes);
            for (size_t i = 0; i < tensor_bytes(s); i++) assert_int_equal(bytes[i], 0);
        }
    }
}

// ---------------------------------------------------------------------------------------- the file

TEST(codes_stand_there_whole_and_numbers_without_the_padding) {
    Model *model = model_of(small_model_options(OPTIMIZER_ADAMW_8BIT, DTYPE_BF16));
    save(model);
    SafetensorsFile *f = safetensors_open(OPTIMIZER_FILE, &err);
    assert_non_null(f);
    assert_string_equal(safetensors_metadata(f, "optimizer"), "adamw8bit");

    const SafetensorsEntry *codes = safetensors_find(f, "exp_avg.transformer.wte.weight");
    const SafetensorsEntry *scales = safetensors_find(f, "exp_avg_scale.transformer.wte.weight");
    const SafetensorsEntry *bias =
        safetensors_find(f, "exp_avg_sq.transformer.h.1.attn.c_attn.bias");

    assert_true(codes && scales && bias);
    assert_int_equal(codes->dtype, DTYPE_U8);
    assert_int_equal(codes->shape[0], 256);
    assert_int_equal(scales->dtype, DTYPE_FP32);
    assert_int_equal(scales->shape[0], 256 * 40 / STATE_BLOCK);
    assert_int_equal(bias->dtype, DTYPE_FP32);
    safetensors_close(f);

    model = model_of(small_model_options(OPTIMIZER_ADAMW_BF16, DTYPE_BF16));
    save(model);
    f = safetensors_open(OPTIMIZER_FILE, &err);

    const SafetensorsEntry *moment = safetensors_find(f, "exp_avg.transformer.wte.weight");
    assert_int_equal(moment->dtype, DTYPE_BF16);
    assert_int_equal(moment->shape[0], 130);
    safetensors_close(f);
}

TEST(a_checkpoint_that_names_no_optimizer_or_another_one_is_refused) {
    Model *adamw = model_of(small_model_options(OPTIMIZER_ADAMW, DTYPE_BF16));
    Model *lion = model_of(small_model_options(OPTIMIZER_LION, DTYPE_BF16));
    const char *path = save(adamw);
    assert_error(optimizer_file_load(lion, path, &err),
                 "has the state of --optimizer adamw, but this run uses lion");
    replace_in_file(OPTIMIZER_FILE, "\"optimizer\"", "\"something\"");
    assert_error(optimizer_file_load(adamw, path, &err),
                 "names no optimizer that this version knows");
}

// test_checkpoint.c has what trainer.json cannot say.
TEST(an_unknown_optimizer_and_tensors_of_another_name_dtype_or_shape_are_refused) {
    static const char *const edits[][3] = {
        {"\"adamw8bit\"", "\"adamw7bit\"", "names no optimizer that this version knows"},
        {"\"U8\"", "\"I8\"", "tensor exp_avg.transformer.wte.weight is not the u8 tensor"},
        {"[256,40]", "[40,256]", "tensor exp_avg.transformer.wte.weight is not the u8 tensor"},
        {"exp_avg.transformer.wte", "exp_avg.transformer.etw",
         "tensor exp_avg.transformer.wte.weight is missing"},
    };
    Model *model = model_of(small_model_options(OPTIMIZER_ADAMW_8BIT, DTYPE_BF16));

    for (int i = 0; i < 4; i++) {
        const char *path = save(model);
        replace_in_file(OPTIMIZER_FILE, edits[i][0], edits[i][1]);
        assert_error(optimizer_file_load(model, path, &err), edits[i][2]);
    }
}
