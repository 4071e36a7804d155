// The promise of a training step on a GPU: the host hands over work and never waits for it. Whole
// steps of a tiny GPT-2 run under the simulator's mark, where every call that waits for work of the
// running micro-step, allocates, or copies pageable memory is counted; recorded micro-steps give
// the bits of those that run op by op; an fp16 run that overflows goes on from a checkpoint with
// the same bits. A decoded token is one recording, too.
#include "dev/sim/sim_control.h"
#include "llmc/base/random.h"
#include "llmc/cuda/backend.h"
#include "llmc/model/model_decode.h"
#include "llmc/model/model_object.h"
#include "llmc/model/model_state.h"
#include "llmc/store/checkpoint.h"
#include "llmc/store/optimizer_file.h"
#include "llmc/store/trainer_json.h"
#include "llmc/store/weights_file.h"
#include "llmc/train/optimizer.h"
#include "test/fixture.h"
#include "test/unit/device_fixture.h"
#include "test/unit/tiny_model.h"

#include <math.h>

// 7 windows a step in micro-batches of 3: the third is short, so a step has all three kinds of
// micro-steps.
enum {
    T = 13,
    B = 3,
    STEP_WINDOWS = 7,
    TOKENS = STEP_WINDOWS * T,
    WINDOW = T + 1,
    VOCABULARY = 61,
    SEQUENCES = 2
};

// A trainer holds the model, two buffers that batches come in, and two records that are read one
// step late.
typedef struct {
    Model *model;
    Optimizer *optimizer;
    uint16_t *batches[2];
    StepControl *records[2];
    DeviceEvent *done[2];
    int64_t step, batch; // how many there were
    int64_t tokens;      // of a step, by which its losses are divided
    bool marked;         // waits are counted
} Trainer;

typedef struct {
    DType dtype;
    const char *recompute; // -r
    float loss_scale;
    int32_t scale_growth_interval;
    bool gradients_in_dtype;
} Setup;
// These hold for models made from now on: recordings as of several processes, --optimizer muon.
static bool in_parts, with_muon;
static void no_exchange(void *context, int unit) { (void)context, (void)unit; }

static Trainer trainer_make(Setup setup) {
    Trainer t = {.tokens = TOKENS};
    Error err;
    ModelOptions options = {.dtype = setup.dtype,
                            .master = true,
                            .train = true,
                            .B = B,
                            .T = T,
                            .sequences = SEQUENCES};

    options.gradients_in_dtype = setup.gradients_in_dtype;
    if (with_muon) options.optimizer = OPTIMIZER_MUON;
    if (in_parts) options.processes = 2;

    assert_true(model_config_parse(&options.config, "L=2,C=48,NH=3,V=61,T=13", &err));
    assert_true(recompute_parse(&options.recompute, setup.recompute, options.config.L, &err));
    OptimizerOptions adamw = {
        .seed = 3, .limits = {.clip = 1.0f, .scale_growth_interval = setup.scale_growth_interval}};
    optimizer_default_rates(OPTIMIZER_ADAMW, 0.1, adamw.rates);

    t.model = model_create(&options, &err);
    assert_non_null(t.model);
    static const UnitHooks hooks = {no_exchange, no_exchange, NULL};
    if (in_parts) model_set_hooks(t.model, &hooks);

    model_init_weights(t.model, 3);
    const StepControl control = step_control_initial(setup.loss_scale);
    model_set_control(t.model, &control);
    t.optimizer = optimizer_create(t.model, &adamw, &err);

    for (int i = 0; i < 2; i++) {
        t.batches[i] = host_alloc(B * WINDOW * sizeof *t.batches[i], &err);
        t.records[i] = host_alloc(sizeof *t.records[i], &err);
        t.done[i] = device_event_create(&err);
        assert_true(t.batches[i] && t.records[i] && t.done[i]);
    }
    return t;
}

static void trainer_destroy(Trainer *t) {
    device_sync();
    for (int i = 0; i < 2; i++) {
        host_free(t->batches[i]), host_free(t->records[i]);
        device_event_destroy(t->done[i]);
    }
    optimizer_destroy(t->optimizer);
    model_destroy(t->model);
}

// Faults to be caught, and the way to run op by op.
typedef enum { AS_IT_IS, WITHOUT_GRAPHS, WITH_A_SYNC, WITH_A_WAIT, WITH_AN_ALLOCATION } Manner;

// The work that a wrong trainer would do after a micro-step.
static void do_what_is_forbidden(Manner manner) {
    Error err;
    if (manner == WITH_A_SYNC) device_sync();
    if (manner == WITH_AN_ALLOCATION) device_free(device_alloc(1, &err));
    if (manner == WITH_A_WAIT) {
        DeviceEvent *event = device_event_create(&err);
        device_event_record(event, STREAM_COMPUTE);
        device_event_wait(event);
        device_event_destroy(event);
    }
}

// A batch as the loader hands it over: two buffers in turn, each overwritten as soon as the call
// after next is made.
static const uint16_t *next_batch(Trainer *t) {
    uint16_t *batch = t->batches[t->batch % 2];
    for (int i = 0; i < B * WINDOW; i++)
        batch[i] = (uint16_t)(philox(7, STREAM_SAMPLE, (uint64_t)(t->batch * B * WINDOW + i)).v[0] %
                              VOCABULARY);
    t->batch++;
    return batch;
}

// One step, as train_gpt2.cu makes it. The mark is set anew before each micro-step: the host may
// wait for earlier ones.
static void train_step(Trainer *t, Manner manner) {
    for (int64_t first = 0; first < STEP_WINDOWS; first += B) {
        const int64_t count = STEP_WINDOWS - first < B ? STEP_WINDOWS - first : B;
        const uint16_t *batch = next_batch(t);
        if (manner == WITHOUT_GRAPHS) // as if each micro-step were of another kind than the last
            for (int i = 0; i < 4; i++) t->model->graphs[i].B = 0;

        if (t->marked) sim_step_mark();
        model_load_batch(t->model, batch, count, WINDOW - 1, sizeof *batch);
        model_forward_backward(t->model, t->tokens, first == 0);
        do_what_is_forbidden(manner);
    }

    optimizer_norm(t->optimizer);
    optimizer_step(t->optimizer, 1e-2, t->tokens, false);
    copy_d2h(t->records[t->step % 2], model_control(t->model).data, sizeof(StepControl),
             STREAM_COMPUTE);
    device_event_record(t->done[t->step % 2], STREAM_COMPUTE);
    t->step++;
}

// The record of the step before the last one, as the trainer reads it while the last one computes.
static const StepControl *last_record(Trainer *t) {
    assert_true(t->step >= 2);
    device_event_wait(t->done[t->step % 2]);
    return t->records[t->step % 2];
}

// Everything that a step changes, as one text of bits.
typedef struct {
    float *values;
    size_t count;
    StepControl control;
} State;

static State state_of(const Trainer *t) {
    State s = {NULL, 0, model_get_control(t->model)};
    for (int i = 0; i < model_num_tensors(t->model); i++) {
        const Parameter *p = &model_parameters(t->model)[i];
        const size_t n = (size_t)parameter_numel(p);
        s.values = realloc(s.values, (s.count + 3 * n) * sizeof(float));

        const UpdateTensor *u = &model_tensors(t->model)[i];
        model_get_weight(t->model, i, 0, p->rows, s.values + s.count, NULL);
        model_read_bytes(t->model, u->m, 0, (int64_t)tensor_bytes(u->m), s.values + s.count + n);
        model_read_bytes(t->model, u->v, 0, (int64_t)tensor_bytes(u->v),
                         s.values + s.count + 2 * n);

        s.count += 3 * n;
    }
    return s;
}

static void assert_same_bits(State a, State b) {
    assert_int_equal(a.count, b.count);
    assert_memory_equal(a.values, b.values, a.count * sizeof(float));
    assert_memory_equal(&a.control, &b.control, sizeof a.control);
}

static State trained(Setup setup, int steps, Manner manner) {
    Trainer t = trainer_make(setup);
    for (int i = 0; i < steps; i++) train_step(&t, manner);
    const State s = state_of(&t);
    trainer_destroy(&t);
    return s;
}

static const Setup bf16 = {DTYPE_BF16, "0", 1.0f, 0, false},
                   fp32 = {DTYPE_FP32, "0", 1.0f, 0, false};
// -r and --grad-dtype add to a recording: ops that run again, and gradients that are rounded by
// random bits.
static const Setup rounded = {DTYPE_BF16, "fcx1,layernorm+qkv", 1.0f, 0, true};

static int leave_the_mark(void **state) {
    sim_step_unmark();
    sim_set_lazy_streams(false);
    in_parts = with_muon = false;
    return tmp_teardown(state);
}

// --------------------------------------------------------------------------------------- the tests

TEST(a_step_makes_no_synchronising_call) {
    const Setup setups[] = {bf16,
                            fp32,
                            {DTYPE_FP16, "1", 65536.0f, 2000, false},
                            {DTYPE_BF16, "3", 1.0f, 0, false},
                            rounded};
#ifdef __SANITIZE_THREAD__ // slow, and streams do the same in all
    const size_t count = 1;
#else
    const size_t count = sizeof setups / sizeof *setups;
#endif

    for (size_t i = 0; i < count; i++) {
        sim_set_lazy_streams(true);
        Trainer t = trainer_make(setups[i]);
        // plans are made; the kernels are measured: waits are allowed here
        train_step(&t, AS_IT_IS);

        const int before = sim_step_violations();
        t.marked = true;
        for (int step = 1; step < 4; step++) { // the second step is recorded, the others replay it
            train_step(&t, AS_IT_IS);
            const float loss = last_record(&t)->loss;
            assert_true(loss > 1.0f && loss < 10.0f); // ln(61) is 4.1
        }

        sim_step_unmark();
        assert_int_equal(sim_step_violations(), before);
        for (int kind = 1; kind < 4; kind++) // 2 * first + whole: first and whole, whole, short
            assert_true(cuda_graph_nodes(t.model->graphs[kind == 2 ? 0 : kind].graph) > 20);
        trainer_destroy(&t);
    }
}

TEST(a_planted_wait_or_allocation_is_caught) {
    const Manner wrong[] = {WITH_A_SYNC, WITH_A_WAIT, WITH_AN_ALLOCATION};
    for (int i = 0; i < 3; i++) {
        Trainer t = trainer_make(bf16);
        for (int step = 0; step < 3; step++) train_step(&t, AS_IT_IS);
        const int before = sim_step_violations();
        t.marked = true;
        train_step(&t, wrong[i]);
        sim_step_unmark();
        assert_true(sim_step_violations() >= before + 3); // one a micro-step
        trainer_destroy(&t);
    }
}

TEST(a_model_begins_with_its_initial_values_rounded_to_any_dtype) {
    const DType dtypes[] = {DTYPE_FP32, DTYPE_FP16, DTYPE_BF16};
    for (int i = 0; i < 3; i++) {
        if (!device_facts()->supports[dtypes[i]]) continue;
        Trainer t = trainer_make((Setup){.dtype = dtypes[i], .recompute = "0", .loss_scale = 1.0f});
        check_initial_weights(t.model, 3);
        trainer_destroy(&t);
    }
}

TEST(recorded_steps_give_the_bits_of_those_run_op_by_op) {
    const Setup setups[] = {fp32, bf16, {DTYPE_FP16, "0", 1024.0f, 0, false}, rounded};
    for (int i = 0; i < 4; i++) {
        State recorded = trained(setups[i], 4, AS_IT_IS),
              eager = trained(setups[i], 4, WITHOUT_GRAPHS);
        assert_same_bits(recorded, eager);
        assert_int_equal(recorded.control.micro_steps, setups[i].gradients_in_dtype ? 12 : 0);

        // an event that is missing between the streams shows in the bits
        sim_set_lazy_streams(true);
        State late = trained(setups[i], 4, AS_IT_IS);
        sim_set_lazy_streams(false);
        assert_same_bits(recorded, late);

        free(recorded.values), free(eager.values), free(late.values);
    }
}

// Several processes record it this way: between the parts gradients leave for the others.
TEST(a_micro_step_recorded_in_parts_has_the_same_bits) {
    State whole = trained(bf16, 4, AS_IT_IS);
    in_parts = true;
    State parts = trained(bf16, 4, AS_IT_IS);
    assert_same_bits(whole, parts);
    free(whole.values), free(parts.values);
}

// The mean is over more tokens from the fourth step on: what was recorded divides by another
// number.
TEST(a_step_of_other_tokens_is_recorded_anew) {
    State states[2];
    for (int manner = AS_IT_IS; manner <= WITHOUT_GRAPHS; manner++) {
        Trainer t = trainer_make(fp32);
        for (int i = 0; i < 6; i++) {
            if (i == 3) t.tokens = 2 * TOKENS;
            train_step(&t, (Manner)manner);
        }
        states[manner] = state_of(&t);
        trainer_destroy(&t);
    }

    assert_same_bits(states[AS_IT_IS], states[WITHOUT_GRAPHS]);
    free(states[0].values), free(states[1].values);
}

// Whole steps with their updates, and without GELU in the epilogue of a matmul, which is not
// repeated.
TEST(recomputation_changes_no_bit) {
    const char *const sets[] = {"1", "2", "3", "3/2", "fc+attentionx1,layernorm+qkv+attproj"};
    Error err;
    device_shutdown();
    assert_true(device_init(&(DeviceOptions){.gelu_fusion = GELU_FUSION_NONE}, &err));

    State kept = trained(bf16, 3, AS_IT_IS);
    for (size_t i = 0; i < sizeof sets / sizeof *sets; i++) {
        const Setup setup = {DTYPE_BF16, sets[i], 1.0f, 0, false};
        State again = trained(setup, 3, AS_IT_IS);
        assert_same_bits(kept, again);
        free(again.values);
    }

    free(kept.values);
}

// On sm_90, and not where it is switched off; no bit depends on it.
TEST(kernels_are_launched_early_where_they_may_be) {
    State states[2];
    setenv("PRETRAIN_CACHE", tmp_file("tuning"), 1); // the same choices twice

    for (int off = 0; off <= 1; off++) {
        Error err;
        device_shutdown();
        assert_true(device_init(
            &(DeviceOptions){.gelu_fusion = GELU_FUSION_NONE, .no_early_launch = off}, &err));
        const uint64_t before = sim_early_launches();
        states[off] = trained(bf16, 3, AS_IT_IS);
        assert_int_equal(sim_early_launches() > before,
                         !off && cuda_backend.compute_capability >= 90);
    }

    setenv("PRETRAIN_CACHE", "off", 1);
    assert_same_bits(states[0], states[1]);
    free(states[0].values), free(states[1].values);
}

// 2^24 overflows in the first backward pass, is halved until it does not, and grows after each 3
// good steps: the scale moves all the time, and so does the number of skipped steps.
static const Setup overflowing = {DTYPE_FP16, "0", 0x1p24f, 3, false};

TEST(an_overflow_is_skipped_and_the_run_goes_on) {
    Trainer t = trainer_make(overflowing);
    train_step(&t, AS_IT_IS);
    State first = state_of(&t);
    assert_int_equal(first.control.skip, SKIP_NONFINITE);
    assert_true(first.control.loss_scale == 0x1p23f && first.control.loss < 10.0f);

    for (int step = 1; step < 20; step++) train_step(&t, AS_IT_IS);
    State last = state_of(&t);
    assert_true(last.control.skipped >= 2 && last.control.skipped <= 15 &&
                isfinite(last.control.loss));
    for (size_t i = 0; i < last.count; i++) assert_true(isfinite(last.values[i]));

    trainer_destroy(&t);
    free(first.values), free(last.values);
}

TEST(an_fp16_run_goes_on_from_a_checkpoint_with_its_loss_scale) {
    enum { AT = 7, ALL = 14 };
    Error err = {""};
    Trainer t = trainer_make(overflowing);
    char options[] = "{}";
    for (int step = 0; step < AT; step++) train_step(&t, AS_IT_IS);
    const TrainerState saved = {.step = t.step,
                                .position = t.batch,
                                .T = T,
                                .eot = -1,
                                .control = model_get_control(t.model),
                                .options_json = options};
    assert_true(checkpoint_save(tmp.path, t.model, &saved, &err));
    for (int step = AT; step < ALL; step++) train_step(&t, AS_IT_IS);
    State whole = state_of(&t);
    trainer_destroy(&t);

    TrainerState loaded = {0};
    const char *path = tmp_file("step_00000007");
    t = trainer_make(overflowing);
    assert_true(checkpoint_load_state(path, &loaded, &err));
    assert_true(loaded.control.loss_scale != overflowing.loss_scale && loaded.control.skipped > 0);
    assert_true(weights_file_load(t.model, path, &err) && optimizer_file_load(t.model, path, &err));
    model_set_control(t.model, &loaded.control);
    t.step = loaded.step, t.batch = loaded.position;
    for (int step = AT; step < ALL; step++) train_step(&t, AS_IT_IS);
    State resumed = state_of(&t);
    assert_same_bits(whole, resumed);
    trainer_destroy(&t);
    trainer_state_free(&loaded);
    free(whole.values), free(resumed.values);
}

// -------------------------------------------------------------------------------------- generation

// Three stacks of one shape each (8 matrices of q, k, v and the projection, 2 and 2 of the MLP): a
// launch gathers a stack, five iterations have three products, a launch scatters it; first of all
// two launches for the sums of squares. The last recording of a second step.
TEST(muons_products_are_recorded) {
    with_muon = true;
    Trainer t = trainer_make(fp32);
    for (int step = 0; step < 2; step++) train_step(&t, AS_IT_IS);
    assert_int_equal(sim_last_graph_nodes(), 3 * (1 + 5 * 3 + 1) + 2);
    trainer_destroy(&t);
}

typedef struct {
    float logits[T][SEQUENCES * VOCABULARY];
} Sample;

// A prompt of 4 tokens for each of `sequences`, then tokens up to the end of the context.
static Sample decoded(Trainer *t, int sequences, Manner manner) {
    enum { PROMPT = 4 };
    static Sample sample;
    memset(&sample, 0, sizeof sample);

    int32_t tokens[SEQUENCES * PROMPT];
    for (int i = 0; i < SEQUENCES * PROMPT; i++)
        tokens[i] = (int32_t)(philox(9, STREAM_SAMPLE, (uint64_t)i).v[0] % VOCABULARY);

    t->model->decoder.recorded = 0;
    model_decode_start(t->model, tokens, PROMPT, sequences, sample.logits[PROMPT - 1]);
    for (int n = PROMPT; n < T; n++) {
        // as if other sequences had grown before
        if (manner == WITHOUT_GRAPHS) t->model->decoder.recorded = 0;
        model_decode_step(t->model, tokens + n % PROMPT, sample.logits[n]);
    }
    return sample;
}

TEST(recorded_tokens_give_the_bits_of_those_run_op_by_op) {
    const DType dtypes[] = {DTYPE_FP32, DTYPE_BF16, DTYPE_FP16};
    for (int i = 0; i < 3; i++) {
        Trainer t = trainer_make((Setup){dtypes[i], "0", 1.0f, 0, false});
        const Sample eager = decoded(&t, SEQUENCES, WITHOUT_GRAPHS),
                     recorded = decoded(&t, SEQUENCES, AS_IT_IS);

        // 2 blocks of 8 launches or more, and the head
        assert_true(cuda_graph_nodes(t.model->decoder.graph) > 15);
        assert_memory_equal(&eager, &recorded, sizeof eager);

        sim_set_lazy_streams(true); // a copy that nobody waits for shows in the bits
        const Sample late = decoded(&t, SEQUENCES, AS_IT_IS);
        sim_set_lazy_streams(false);
        assert_memory_equal(&eager, &late, sizeof eager);

        decoded(&t, 1, AS_IT_IS); // fewer of them are another recording
        const Sample again = decoded(&t, SEQUENCES, AS_IT_IS);
        assert_memory_equal(&eager, &again, sizeof eager);
        trainer_destroy(&t);
    }
}

TEST(decoding_between_steps_changes_no_bit_of_the_run) {
    State alone = trained(bf16, 4, AS_IT_IS);
    Trainer t = trainer_make(bf16);
    for (int i = 0; i < 4; i++) {
        train_step(&t, AS_IT_IS);
        decoded(&t, 1 + i % SEQUENCES, AS_IT_IS);
    }
    State sampled = state_of(&t);
    assert_same_bits(alone, sampled);
    trainer_destroy(&t);
    free(alone.values), free(sampled.values);
}

static int start(void **state) {
    setenv("PRETRAIN_CACHE", "off", 1); // what is measured here is of no use to anybody else
    return start_device(state);
}
TestFixture test_each = {tmp_setup, leave_the_mark}, test_all = {start, stop_device};

int main(void) {
    cmocka_set_test_filter(NULL); // under ThreadSanitizer, too: these names end in no dtype
    return test_run();
}
