// The trainer. Read it from top to bottom: options -> what to train, on which data, for how long -> memory and model ->
// the loop -> one step. Everything it calls explains itself in the header of that name under llmc/.
//
// One text, three builds: nvcc makes train_gpt2cu of it, the C compiler (-x c) train_gpt2, the simulator's build
// train_gpt2sim; so it keeps to what C and C++ share. Which backend stands behind device.h and ops.h it does not know.
#include "llmc/base/atomic_file.h"
#include "llmc/model/flops.h"
#include "llmc/model/gpt2.h"
#include "llmc/run/options.h"
#include "llmc/run/planner.h"
#include "llmc/run/profile.h"
#include "llmc/run/run_header.h"
#include "llmc/run/runlog.h"
#include "llmc/run/signals.h"
#include "llmc/run/summary.h"
#include "llmc/store/checkpoint.h"
#include "llmc/store/export.h"
#include "llmc/store/weights_file.h"
#include "llmc/tokens/dataloader.h"
#include "llmc/tokens/find_tokenizer.h"
#include "llmc/train/choices.h"
#include "llmc/train/evals.h"
#include "llmc/train/generate.h"
#include "llmc/train/optimizer.h"
#include "llmc/train/schedule.h"
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

// What the host learns of a step, one step late: the decisions and the times.
typedef struct {
    StepControl *control; // host memory the device writes to
    DeviceEvent *start, *stop;
    double lr;
    int64_t step; // 1 .. total; 0: nothing to report
} StepRecord;

// Where llm.c's script and data/get.py put it.
static const char HELLASWAG[] = "data/hellaswag/hellaswag_val.bin";

typedef struct {
    Options options;
    TrainerState state; // step, position, control: what a checkpoint holds besides weights
    char *resume_path;  // the checkpoint that this run goes on from, or NULL
    char source[512];   // where the weights come from, for the header
    ModelConfig config;
    ShardSet train, val;
    bool has_train, has_val;
    int64_t T, step_windows, total_steps;
    Schedule schedule;

    DType dtype;
    DeviceSpeed speed;
    double peak_flops;     // what mfu is a fraction of
    bool peak_is_measured; // no datasheet peak is known: it is the matmul rate
    Gpt2 *model;
    Optimizer *optimizer;
    DataLoader *loader;
    Tokenizer *tokenizer; // NULL: samples are shown as token numbers
    ChoiceSets choices;
    RunLog *log;
    RunSummary *summary;
    StepRecord records[2];
    double started, step_seconds; // launch; smoothed time of a step
    float loss_scale;             // after the last step that was reported
    char attention[256];          // who computes it, as the header said
    int64_t first_step;           // where this process began
} Run;

static DType dtype_named(const char *name, DType otherwise) {
    const DType named[] = {DTYPE_FP32, DTYPE_FP16, DTYPE_BF16};
    for (int i = 0; i < 3; i++)
        if (strcmp(name, dtype_name(named[i])) == 0) return named[i];
    return otherwise;
}

// ---------------------------------------------------------------------------------------- what to train, on which data

// -o and -y: a fresh directory, or the newest checkpoint in it that verifies.
static bool choose_start(Run *run, Error *err) {
    const Options *o = &run->options;
    run->state.seed = (uint64_t)o->seed;
    run->state.best_val_loss = INFINITY;
    run->state.eot = -1;
    run->state.control = step_control_initial(1.0f);
    if (!*o->output) return true;
    if (!directory_check_writable(o->output, err)) return error_prefix(err, "-o %s", o->output);
    if (!o->resume)
        return !checkpoint_exists(o->output) || o->max_steps == 0 ||
               error_set(err,
                         "-o %s: checkpoints of an earlier run are there: go on with -y 1, or name another directory",
                         o->output);
    char *skipped = NULL;
    err->text[0] = '\0';
    const bool found = checkpoint_find_latest(o->output, &run->resume_path, &skipped, err);
    const bool damaged = skipped != NULL;
    if (damaged) fprintf(stderr, "%s\n", skipped);
    free(skipped);
    if (!found) {
        if (err->text[0]) return false;
        if (damaged)
            return error_set(err, "-y 1: no checkpoint in %s is whole: repair them, or move them away to start over",
                             o->output);
        fprintf(stderr, "-y 1: no checkpoint in %s yet: starting from the beginning\n", o->output);
        return true;
    }
    if (!checkpoint_load_state(run->resume_path, &run->state, err) ||
        !options_adopt_json(&run->options, run->state.options_json, err))
        return false;
    if (run->state.seed != (uint64_t)o->seed)
        return error_set(err, "--seed %lld: the run in %s was started with --seed %lld and goes on with it only",
                         (long long)o->seed, o->output, (long long)run->state.seed);
    return true;
}

// -e: the shape of the model; V stays 0 where a descriptor leaves it to the data.
static bool choose_model(Run *run, Error *err) {
    const Options *o = &run->options;
    const char *path = run->resume_path ? run->resume_path : o->model;
    const bool descriptor = model_config_is_descriptor(o->model);
    ModelConfig asked = {0, 0, 0, 0, 0, 0};
    if (descriptor && !model_config_parse(&asked, o->model, err)) return error_prefix(err, "-e %s", o->model);
    if (descriptor && !run->resume_path) {
        run->config = asked;
        snprintf(run->source, sizeof run->source, "%s, new weights from seed %lld", o->model, (long long)o->seed);
        return true;
    }
    WeightsFile *file = weights_file_open(path, err);
    if (!file) return run->resume_path ? false : error_prefix(err, "-e");
    run->config = *weights_file_config(file);
    if (run->state.eot < 0) run->state.eot = weights_file_eot(file);
    weights_file_close(file);
    snprintf(run->source, sizeof run->source, "weights from %s", path);
    const ModelConfig *c = &run->config;
    if (run->resume_path && descriptor && options_given(o, "model") &&
        (asked.L != c->L || asked.C != c->C || asked.NH != c->NH || asked.max_T != c->max_T ||
         (asked.V && asked.V != c->V)))
        return error_set(err, "-e %s: the run in %s has another shape (L=%lld,C=%lld,NH=%lld,V=%lld,T=%lld)", o->model,
                         o->output, (long long)c->L, (long long)c->C, (long long)c->NH, (long long)c->V,
                         (long long)c->max_T);
    return true;
}

static bool choose_context(Run *run, Error *err) {
    const int64_t longest = run->config.max_T;
    run->T = run->options.T > 0 ? run->options.T : longest < 1024 ? longest : 1024;
    if (run->T > longest)
        return error_set(err, "-t %lld: longer than the model's context of %lld tokens", (long long)run->T,
                         (long long)longest);
    if (run->resume_path && run->T != run->state.T)
        return error_set(err, "-t %lld: the run in %s reads windows of %lld tokens and goes on with them only",
                         (long long)run->T, run->options.output, (long long)run->state.T);
    return true;
}

// -i and -j, and with them the vocabulary.
static bool open_data(Run *run, Error *err) {
    const Options *o = &run->options;
    if (o->max_steps != 0) {
        if (!shards_open(&run->train, o->train_data, run->T, err)) return error_prefix(err, "-i");
        run->has_train = true;
    }
    if (o->val_every > 0 && !o->interactive) {
        run->has_val = shards_open(&run->val, o->val_data, run->T, err);
        if (!run->has_val && (options_given(o, "val-data") || o->max_steps == 0)) return error_prefix(err, "-j");
    }
    const ShardSet *stated = run->has_train ? &run->train : run->has_val ? &run->val : NULL;
    const int64_t vocab = stated ? stated->vocab : 0;
    if (run->config.V == 0) model_config_set_vocab(&run->config, vocab > 0 ? vocab : (int64_t)GPT2_VOCAB);
    if (stated && vocab > run->config.V)
        return error_set(err,
                         "%s holds tokens of a vocabulary of %lld, the model has %lld: make the shards with the "
                         "model's tokenizer (data/prepare --tokenizer PATH)",
                         stated->shards[0].path, (long long)vocab, (long long)run->config.V);
    if (run->has_train && run->has_val && run->val.vocab > 0 && vocab > 0 && run->val.vocab != vocab)
        return error_set(err, "-i and -j were made with different vocabularies: %lld and %lld tokens", (long long)vocab,
                         (long long)run->val.vocab);
    if (stated && stated->eot >= 0) run->state.eot = stated->eot;
    // One window of each is read now, so that tokens of another vocabulary show before anything is started.
    void *window = malloc((size_t)(run->T + 1) * 4);
    if (!window) return error_set(err, "out of memory");
    const bool ok = (!run->has_train || shards_read_window(&run->train, 0, run->config.V, window, err)) &&
                    (!run->has_val || shards_read_window(&run->val, 0, run->config.V, window, err));
    free(window);
    return ok;
}

// -b and -d: how much is read a step.
static bool choose_step_windows(Run *run, Error *err) {
    const Options *o = &run->options;
    const int64_t total_batch = o->total_batch > 0 ? o->total_batch : o->B * run->T;
    run->step_windows = total_batch / run->T;
    return options_check_total_batch(total_batch, run->T, err);
}

// -x and -u: how many steps there are.
static bool choose_lengths(Run *run, Error *err) {
    Options *o = &run->options;
    if (!choose_step_windows(run, err)) return false;
    run->total_steps = o->max_steps;
    if (o->max_steps < 0) {
        run->total_steps = run->train.num_windows / run->step_windows;
        if (run->total_steps < 1) run->total_steps = 1;
    }
    if (o->profile > 0 && o->max_steps == 0) return error_set(err, "--profile: with -x 0 no step is made");
    if (o->profile > 0) run->total_steps = run->state.step + profile_total_steps(o->profile);
    int64_t warmup = o->warmup;
    if (warmup < 0) warmup = run->total_steps / 50 < 700 ? run->total_steps / 50 : 700;
    run->schedule.max_lr = o->lr;
    run->schedule.final_fraction = o->final_fraction;
    run->schedule.warmup = warmup;
    run->schedule.total = run->total_steps;
    return schedule_parse(&run->schedule.kind, o->schedule, err);
}

static bool choose_tokenizer(Run *run, Error *err) {
    const Options *o = &run->options;
    const char *weights = run->resume_path ? run->resume_path : model_config_is_descriptor(o->model) ? NULL : o->model;
    const ShardSet *data = run->has_train ? &run->train : run->has_val ? &run->val : NULL;
    const char *shards = run->has_train ? o->train_data : run->has_val ? o->val_data : NULL;
    if (!tokenizer_find(&run->tokenizer, o->tokenizer, weights, shards, data ? data->vocab : 0, run->config.V, err))
        return false;
    if (run->tokenizer && run->state.eot < 0) run->state.eot = tokenizer_eot(run->tokenizer);
    return run->tokenizer || (!*o->prompt && !o->interactive) ||
           error_set(err,
                     "%s: no tokenizer for the model's vocabulary of %lld tokens is at hand; name one with --tokenizer",
                     o->interactive ? "--interactive" : "--prompt", (long long)run->config.V);
}

// -h and --choices.
static bool open_choices(Run *run, Error *err) {
    const Options *o = &run->options;
    const char *pattern = *o->choices ? o->choices : o->hellaswag ? HELLASWAG : "";
    return !*pattern ||
           (choices_open(&run->choices, pattern, run->config.V, err) && choices_fit(&run->choices, run->T, err)) ||
           error_prefix(err, *o->choices ? "--choices" : "-h 1");
}

static bool check_export(const Run *run, Error *err) {
    const Options *o = &run->options;
    if (!*o->export_path) return true;
    if (strcmp(o->export_path, o->output) == 0)
        return error_set(err, "--export %s: checkpoints go there (-o): name another directory", o->output);
    return export_check(o->export_path, dtype_named(o->export_dtype, DTYPE_FP32), err);
}

static bool choose(Run *run, Error *err) {
    return choose_model(run, err) && choose_context(run, err) && open_data(run, err) && choose_lengths(run, err) &&
           choose_tokenizer(run, err) && open_choices(run, err) && check_export(run, err);
}

// ---------------------------------------------------------------------------------------------------- memory and model

// --dtype: what this device trains fastest in, or what was asked for. Without training there is no master copy of the
// weights: fp32 then keeps every bit of what is exported.
static bool choose_dtype(Run *run, Error *err) {
    const bool converts = *run->options.export_path && run->options.max_steps == 0;
    run->dtype = dtype_named(run->options.dtype, converts ? DTYPE_FP32 : device_facts()->default_dtype);
    return device_facts()->supports[run->dtype] ||
           error_set(err, "--dtype %s: not available on %s; use %s", run->options.dtype, device_facts()->name,
                     dtype_name(device_facts()->default_dtype));
}

static Gpt2Options model_options(const Run *run) {
    const Options *o = &run->options;
    Gpt2Options model;
    memset(&model, 0, sizeof model);
    model.config = run->config;
    model.dtype = run->dtype;
    model.master = o->master != 0;
    model.train = o->max_steps != 0;
    model.B = o->B, model.T = run->T;
    model.recompute = o->recompute;
    model.sequences = o->sample_every > 0 || o->interactive ? o->samples : 0;
    return model;
}

// --plan: no data is opened and no memory taken.
static bool plan(Run *run, Error *err) {
    const Options *o = &run->options;
    if (!choose_model(run, err) || !choose_context(run, err) || !choose_dtype(run, err)) return false;
    if (strcmp(o->dtype, "auto") == 0) run->dtype = DTYPE_BF16; // what GPUs train in, whatever this machine prefers
    if (run->config.V == 0) model_config_set_vocab(&run->config, GPT2_VOCAB);
    if (!choose_step_windows(run, err)) return false;
    const Gpt2Options model = model_options(run);
    planner_print(stdout, &model, run->step_windows, o->max_steps > 0 ? o->max_steps : 0);
    return true;
}

static bool build_model(Run *run, Error *err) {
    const Options *o = &run->options;
    const Gpt2Options model = model_options(run);
    run->model = gpt2_create(&model, err);
    if (!run->model)
        return error_prefix(err, "the model does not fit (try a smaller -b, %sor -r 3)",
                            model.sequences > 1 ? "fewer --samples, " : "");
    StepControl *control = &run->state.control; // of a checkpoint, or new
    // An fp16 run brings its loss scale along. 1 is that of a new run, or of one that had another dtype.
    if (run->dtype != DTYPE_FP16 || control->loss_scale == 1.0f)
        control->loss_scale = optimizer_first_loss_scale(run->dtype);
    run->loss_scale = control->loss_scale;
    gpt2_set_control(run->model, control);
    if (run->resume_path) {
        return checkpoint_load_weights(run->model, run->resume_path, err) &&
               (!model.train || checkpoint_load_moments(run->model, run->resume_path, err));
    }
    if (!model_config_is_descriptor(o->model)) return checkpoint_load_weights(run->model, o->model, err);
    gpt2_init_weights(run->model, (uint64_t)o->seed);
    return true;
}

static bool build_training(Run *run, Error *err) {
    const Options *o = &run->options;
    OptimizerOptions optimizer;
    optimizer.beta1 = (float)o->beta1, optimizer.beta2 = (float)o->beta2, optimizer.eps = (float)o->eps;
    optimizer.weight_decay = (float)o->weight_decay;
    optimizer.seed = run->state.seed;
    optimizer.limits.clip = (float)o->grad_clip;
    optimizer.limits.loss_z_limit = (float)o->loss_outlier;
    optimizer.limits.norm_z_limit = (float)o->norm_outlier;
    optimizer.limits.scale_growth_interval = optimizer_scale_growth_interval(run->dtype);
    run->optimizer = optimizer_create(run->model, &optimizer, err);
    DataLoaderOptions loader;
    memset(&loader, 0, sizeof loader);
    loader.shards = &run->train;
    loader.vocab = run->config.V;
    loader.batch_windows = o->B;
    loader.step_windows = run->step_windows;
    loader.position = run->state.position;
    loader.seed = run->state.seed;
    loader.shuffle = true;
    loader.repeat_first_step = o->overfit != 0;
    run->loader = run->optimizer ? dataloader_create(&loader, err) : NULL;
    for (int i = 0; run->loader && i < 2; i++) {
        StepRecord *r = &run->records[i];
        r->control = (StepControl *)host_alloc(sizeof *r->control, err);
        r->start = device_event_create(err);
        r->stop = device_event_create(err);
        if (!r->control || !r->start || !r->stop) return false;
    }
    return run->loader != NULL;
}

static bool build(Run *run, Error *err) {
    if (!build_model(run, err) || !device_measure_speed(run->dtype, &run->speed, err)) return false;
    const double datasheet = device_facts()->peak_flops[run->dtype];
    run->peak_is_measured = datasheet <= 0;
    run->peak_flops = run->peak_is_measured ? run->speed.matmul_flops : datasheet;
    return run->options.max_steps == 0 || build_training(run, err);
}

// --interactive into a pipe or a file: nothing but the answers goes there.
static bool answers_only(const Run *run) { return run->options.interactive && !isatty(STDOUT_FILENO); }

static bool open_log(Run *run, Error *err) {
    const Options *o = &run->options;
    const bool only_evaluates = o->max_steps == 0; // it adds to the log of a run, and takes nothing away
    run->log = runlog_open(*o->output ? o->output : NULL, run->resume_path != NULL || only_evaluates,
                           only_evaluates ? INT64_MAX : run->state.step, o->progress, o->tensorboard != 0, err);
    if (!run->log) return false;
    run->summary = run_summary_create();
    DeviceSensors sensors; // where the energy of the run is counted from
    if (device_sensors(&sensors)) run_summary_energy(run->summary, sensors.energy_joules);
    RunFacts facts;
    memset(&facts, 0, sizeof facts);
    facts.options = o;
    facts.model = gpt2_options(run->model);
    facts.plan = gpt2_memory(run->model);
    facts.source = run->source;
    facts.train = run->has_train ? &run->train : NULL;
    facts.val = run->has_val ? &run->val : NULL;
    facts.T = run->T, facts.step_windows = run->step_windows;
    facts.start_step = run->state.step, facts.total_steps = run->total_steps;
    facts.schedule = &run->schedule;
    facts.speed = run->speed;
    facts.peak_flops = run->peak_flops, facts.peak_is_measured = run->peak_is_measured;
    facts.loss_scale = run->loss_scale;
    if (!answers_only(run)) run_header(run->log, &facts);
    snprintf(run->attention, sizeof run->attention, "%s", device_facts()->attention);
    if (!run->resume_path) return true;
    char *changed = options_diff_json(o, run->state.options_json);
    if (changed) runlog_text(run->log, "changed since the checkpoint:\n%.*s", (int)strlen(changed) - 1, changed);
    free(changed);
    return true;
}

// ----------------------------------------------------------------------------------------------- evaluation and saving

static bool validate(Run *run, Error *err) {
    const double began = now_seconds();
    ValidationScore score;
    if (!run->has_val) return true;
    if (!evaluate_loss(run->model, &run->val, run->options.val_sequences, run->tokenizer, &score, err)) return false;
    if (score.tokens == 0) return true; // a signal came
    if (score.loss < run->state.best_val_loss) run->state.best_val_loss = score.loss;
    run_summary_validation(run->summary, run->state.step, score.loss);
    runlog_validation(run->log, run->state.step, score.loss, score.bits_per_byte, (double)score.tokens,
                      now_seconds() - began);
    return true;
}

static bool answer_choices(Run *run, Error *err) {
    for (int i = 0; i < run->choices.count; i++) {
        const double began = now_seconds();
        const ChoiceSet *set = run->choices.sets[i];
        ChoiceScore score;
        if (!evaluate_choices(run->model, set, run->options.choice_examples, &score, err)) return false;
        if (score.examples == 0) return true; // a signal came
        runlog_choices(run->log, run->state.step, choices_name(set), score.examples, score.correct,
                       score.correct_normalised, now_seconds() - began);
    }
    return true;
}

static GenerateOptions generate_options(Run *run) {
    const Options *o = &run->options;
    GenerateOptions g;
    memset(&g, 0, sizeof g);
    g.tokenizer = run->tokenizer;
    g.prompt = o->prompt;
    g.samples = o->samples, g.tokens = o->sample_tokens;
    g.sampler.temperature = o->temperature, g.sampler.top_k = o->top_k, g.sampler.top_p = o->top_p;
    g.sampler.seed = run->state.seed, g.sampler.stream = (uint64_t)run->state.step;
    return g;
}

// Between steps a text is shown when it is whole; with -x 0 as it is drawn, with its speed.
static bool sample(Run *run, Error *err) {
    const bool alone = run->options.max_steps == 0, streamed = alone && run->options.samples == 1;
    GenerateOptions options = generate_options(run);
    Generated drawn;
    if (streamed) {
        options.sink = runlog_stream, options.context = run->log;
        runlog_stream(run->log, options.prompt, (int64_t)strlen(options.prompt));
    }
    if (!generate(run->model, &options, &drawn, err)) return false;
    if (streamed) runlog_stream(run->log, "\n", 1);
    for (int64_t i = 0; i < drawn.samples; i++)
        runlog_sample(run->log, run->state.step, drawn.texts[i], drawn.bytes[i], streamed);
    if (drawn.prompt_cut > 0)
        runlog_text(run->log, "prompt      longer than the context: its last %lld tokens count, %lld do not",
                    (long long)drawn.prompt_tokens, (long long)drawn.prompt_cut);
    if (drawn.slides > 0)
        runlog_text(run->log, "context     filled %lld time%s: each time the text went on from its last half",
                    (long long)drawn.slides, drawn.slides == 1 ? "" : "s");
    if (alone)
        runlog_text(run->log, "generated   %lld tokens after a prompt of %lld; prompt %.0f ms, then %.1f tokens/s",
                    (long long)drawn.new_tokens, (long long)drawn.prompt_tokens, drawn.prompt_seconds * 1e3,
                    drawn.decode_seconds > 0 ? (double)(drawn.new_tokens - drawn.samples) / drawn.decode_seconds : 0.0);
    generated_free(&drawn);
    return true;
}

static bool save(Run *run, Error *err) {
    const Options *o = &run->options;
    if (!*o->output) return true;
    const double began = now_seconds();
    run->state.control = gpt2_get_control(run->model);
    run->state.T = run->T;
    free(run->state.options_json);
    run->state.options_json = options_to_json(o);
    run->state.tokenizer = run->tokenizer;
    if (!checkpoint_save(o->output, run->model, &run->state, err)) return false;
    runlog_text(run->log, "saved       %s/step_%08lld in %.1f s", o->output, (long long)run->state.step,
                now_seconds() - began);
    return checkpoint_rotate(o->output, (int)o->keep, o->major, err);
}

// ------------------------------------------------------------------------------------------------------------ one step

static bool due(int64_t step, int64_t every) { return every > 0 && step % every == 0; }

static void first_step_report(Run *run, const StepControl *control) {
    char measured[64], planned[64];
    const double expected = log((double)run->config.V);
    if (!run->resume_path && model_config_is_descriptor(run->options.model) && fabs(control->loss - expected) > 0.5)
        runlog_text(run->log, "warning     the first loss is %.3f; of new weights it should be near ln(V) = %.3f",
                    control->loss, expected);
    runlog_text(run->log, "memory      measured %s, planned %s; first step done %.2f s after launch",
                format_bytes((double)device_memory_peak(), measured, 64),
                format_bytes((double)memory_plan_total(gpt2_memory(run->model)), planned, 64),
                now_seconds() - run->started);
    if (strcmp(run->attention, device_facts()->attention) != 0) // it was chosen by measurement
        runlog_text(run->log, "attention   %s", device_facts()->attention);
}

// Nothing is faster than its limit: a step that seems to be shows that the machine was busy when the limit was
// measured.
static void raise_measured_peak(Run *run, double step_flops) {
    DeviceSpeed again;
    Error ignored;
    if (!run->peak_is_measured || step_flops <= run->peak_flops) return;
    if (device_measure_speed(run->dtype, &again, &ignored) && again.matmul_flops > run->peak_flops)
        run->peak_flops = again.matmul_flops;
    if (step_flops > run->peak_flops) run->peak_flops = step_flops;
    runlog_text(run->log, "limits      matmul now %.4g TFLOP/s: the machine was busy before", run->peak_flops / 1e12);
}

// Says what became of the step in this record, once the device has got there.
static void report(Run *run, StepRecord *r) {
    if (r->step == 0) return;
    device_event_wait(r->stop);
    StepReport line;
    memset(&line, 0, sizeof line);
    line.step = r->step, line.total = run->total_steps;
    line.control = *r->control;
    line.last_loss_scale = run->loss_scale;
    run->loss_scale = r->control->loss_scale;
    line.bad_tensor = r->control->bad_tensor >= 0 ? gpt2_parameters(run->model)[r->control->bad_tensor].name : NULL;
    line.lr = r->lr;
    line.seconds = device_event_seconds(r->start, r->stop);
    line.tokens = (double)(run->step_windows * run->T);
    const double tokens_per_second = line.tokens / line.seconds;
    const double model_flops = tokens_per_second * flops_per_token_llmc(&run->config, run->T);
    const double all_flops = tokens_per_second * flops_per_token_hardware(&run->config, run->T, run->options.recompute);
    raise_measured_peak(run, fmax(model_flops, all_flops));
    line.mfu = model_flops / run->peak_flops;
    line.hfu = all_flops / run->peak_flops;
    run->step_seconds = run->step_seconds > 0 ? 0.9 * run->step_seconds + 0.1 * line.seconds : line.seconds;
    line.eta_seconds = run->step_seconds * (double)(run->total_steps - r->step);
    runlog_step(run->log, &line);
    run_summary_step(run->summary, line.seconds, line.tokens, line.mfu);
    if (r->step == run->first_step + 1) first_step_report(run, r->control);
    DeviceSensors sensors;
    if (due(r->step, run->options.log_gpu_every) && device_sensors(&sensors))
        runlog_sensors(run->log, r->step, &sensors);
    r->step = 0;
}

static void report_all(Run *run) {
    report(run, &run->records[(run->state.step + 1) % 2]);
    report(run, &run->records[run->state.step % 2]);
}

// loader -> [forward -> backward] x accumulation -> norm -> decision -> update. Nothing here waits for the device; the
// step before is reported while this one computes.
static bool train_step(Run *run, Error *err) {
    const int64_t step = run->state.step, tokens = run->step_windows * run->T;
    StepRecord *record = &run->records[(step + 1) % 2];
    device_event_record(record->start, STREAM_COMPUTE);
    for (int64_t done = 0, count = 0; done < run->step_windows; done += count) {
        const void *windows;
        if (!dataloader_next(run->loader, &windows, &count, err)) return false;
        gpt2_load_batch(run->model, windows, count, run->train.token_bytes);
        gpt2_forward_backward(run->model, tokens, done == 0);
    }
    record->lr = schedule_lr(&run->schedule, step);
    optimizer_step(run->optimizer, step + 1, record->lr, tokens);
    device_copy_to_host(record->control, gpt2_control(run->model).data, sizeof *record->control, STREAM_COMPUTE);
    device_event_record(record->stop, STREAM_COMPUTE);
    record->step = step + 1;
    run->state.step = step + 1;
    run->state.position = dataloader_position(run->loader); // of whole steps: a step that fails midway is read again
    report(run, &run->records[step % 2]);
    if (device_event_done(record->stop)) report(run, record);
    return true;
}

// ------------------------------------------------------------------------------------------------------------ the loop

// Steps with evaluation, samples and checkpoints between them, until the last one, the time limit or a signal.
static bool loop(Run *run, Error *err) {
    const Options *o = &run->options;
    for (;;) {
        const int64_t step = run->state.step;
        const bool timed_out =
            o->max_minutes > 0 && now_seconds() - run->started > o->max_minutes * 60 && step > run->first_step;
        const bool interrupted = signals_pending() != 0;
        const bool last = step >= run->total_steps || timed_out;
        const bool here = step > run->first_step || step == 0 || o->max_steps == 0; // not again right after a resume
        if (here && !interrupted && !o->interactive) {
            if ((due(step, o->val_every) || (last && (o->val_every > 0 || o->max_steps == 0))) &&
                !(validate(run, err) && answer_choices(run, err)))
                return false;
            if (((step > 0 && due(step, o->sample_every)) || (last && o->sample_every > 0)) && !sample(run, err))
                return false;
        }
        if (step > run->first_step && (last || interrupted || due(step, o->checkpoint_every)) && !save(run, err))
            return false;
        if (last || interrupted) return true;
        if (!train_step(run, err)) {
            Error unsaved; // the data failed, not the model: what was trained is kept
            report_all(run);
            if (step > run->first_step && !save(run, &unsaved)) runlog_text(run->log, "%s", unsaved.text);
            return false;
        }
        if (due(step + 1, o->val_every) || due(step + 1, o->sample_every) || due(step + 1, o->checkpoint_every) ||
            step + 1 == run->total_steps || signals_pending())
            report_all(run);
    }
}

// --profile: steps and nothing else; nothing is saved.
static bool profile_loop(Run *run, Error *err) {
    profile_start(run->options.profile);
    while (profile_next_step()) {
        if (signals_pending()) return true;
        if (!train_step(run, err)) return false;
    }
    report_all(run);
    return profile_report(run->log, *run->options.output ? run->options.output : NULL, run->dtype, run->speed, err);
}

// --export and --interactive: what is done with the weights when training is over.
static bool use_weights(Run *run, Error *err) {
    const Options *o = &run->options;
    if (*o->export_path) {
        const DType dtype = dtype_named(o->export_dtype, DTYPE_FP32);
        if (!export_model(o->export_path, run->model, dtype, run->state.eot, run->tokenizer, err)) return false;
        runlog_text(run->log, "exported    %s in %s", o->export_path, dtype_name(dtype));
    }
    if (!o->interactive) return true;
    GenerateOptions options = generate_options(run);
    options.samples = 1, options.stop_at_eot = true;
    return generate_interactive(run->model, &options, err);
}

static void end_lines(Run *run) {
    char tokens[64], time[64];
    const int64_t steps = run->state.step - run->first_step;
    DeviceSensors sensors;
    if (device_sensors(&sensors)) run_summary_energy(run->summary, sensors.energy_joules);
    format_count((double)(steps * run->step_windows * run->T), tokens, 64);
    format_duration(now_seconds() - run->started, time, 64);
    if (signals_pending())
        runlog_text(run->log, "stopped by %s after step %lld; %s", signals_name(signals_pending()),
                    (long long)run->state.step,
                    *run->options.output ? "-o and -y go on from there" : "nothing was saved (no -o)");
    else if (run->options.max_steps != 0)
        runlog_text(run->log, "done        %lld steps, %s tokens in %s%s", (long long)steps, tokens, time,
                    run->state.step < run->total_steps ? " (time limit; -o and -y go on)" : "");
    run_summary_print(run->summary, run->log);
    char *summary = run_summary_json(run->summary), *event = NULL;
    if (asprintf(
            &event,
            "\"step\":%lld,\"seconds\":%.3f,\"memory_peak\":%lld,\"memory_planned\":%lld,\"wait_seconds\":%.4f%s%s",
            (long long)run->state.step, now_seconds() - run->started, (long long)device_memory_peak(),
            (long long)memory_plan_total(gpt2_memory(run->model)),
            run->loader ? dataloader_wait_seconds(run->loader) : 0.0, summary && *summary ? "," : "",
            summary ? summary : "") >= 0)
        runlog_event(run->log, "end", event);
    free(event);
    free(summary);
}

static void close_run(Run *run) {
    dataloader_destroy(run->loader);
    for (int i = 0; i < 2; i++) {
        StepRecord *r = &run->records[i];
        if (r->start) device_event_destroy(r->start);
        if (r->stop) device_event_destroy(r->stop);
        if (r->control) host_free(r->control);
    }
    optimizer_destroy(run->optimizer);
    gpt2_destroy(run->model);
    tokenizer_free(run->tokenizer);
    choices_close(&run->choices);
    run_summary_free(run->summary);
    runlog_close(run->log);
    shards_close(&run->train);
    shards_close(&run->val);
    trainer_state_free(&run->state);
    free(run->resume_path);
    options_free(&run->options);
    device_shutdown();
}

static int run_all(Run *run, Error *err) {
    if (!choose_start(run, err)) return EXIT_BAD_INPUT; // the options of a resumed run come from its checkpoint
    run->first_step = run->state.step;
    const DeviceOptions device = options_device(&run->options);
    if (!device_init(&device, err)) return EXIT_RUN_FAILED; // before any data: without a GPU they are of no use
    if (run->options.plan) return plan(run, err) ? EXIT_OK : EXIT_BAD_INPUT;
    if (!choose(run, err) || !choose_dtype(run, err)) return EXIT_BAD_INPUT;
    if (!build(run, err) || !open_log(run, err)) return EXIT_RUN_FAILED;
    signals_install();
    if (!(run->options.profile > 0 ? profile_loop(run, err) : loop(run, err))) return EXIT_RUN_FAILED;
    report_all(run);
    if (!signals_pending() && !use_weights(run, err)) return EXIT_RUN_FAILED;
    if (!answers_only(run)) end_lines(run);
    return signals_pending() ? EXIT_INTERRUPTED : EXIT_OK;
}

int main(int argc, char **argv) {
    Run run;
    Error err;
    device_prepare_process(argv);
    memset(&run, 0, sizeof run);
    run.started = now_seconds();
    const OptionsResult parsed = options_parse(&run.options, argc, argv, &err);
    int code = EXIT_OK;
    if (parsed == OPTIONS_ERROR) code = EXIT_BAD_INPUT;
    if (parsed == OPTIONS_RUN) code = run_all(&run, &err);
    if (run.log) runlog_close(run.log), run.log = NULL;
    if (code == EXIT_RUN_FAILED || code == EXIT_BAD_INPUT) fprintf(stderr, "%s: %s\n", argv[0], err.text);
    close_run(&run);
    return code;
}
