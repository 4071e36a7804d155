// The trainer. Read it from top to bottom: the model is built -> the loop -> one step; what is trained on which data is
// decided in llmc/run/run_setup.c. Everything it calls explains itself in the header of that name under llmc/.
//
// One text, three builds: nvcc makes train_gpt2cu of it, the C compiler (-x c) train_gpt2, the simulator's build
// train_gpt2sim; so it keeps to what C and C++ share. Which backend stands behind device.h and ops.h it does not know.
#include "llmc/base/atomic_file.h"
#include "llmc/model/flops.h"
#include "llmc/model/gpt2_numerics.h"
#include "llmc/run/profile.h"
#include "llmc/run/progress.h"
#include "llmc/run/run_header.h"
#include "llmc/run/run_setup.h"
#include "llmc/run/runlog.h"
#include "llmc/run/signals.h"
#include "llmc/run/summary.h"
#include "llmc/store/export.h"
#include "llmc/train/evals.h"
#include "llmc/train/generate.h"
#include "llmc/train/optimizer.h"
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

typedef struct {
    RunSetup setup;
    DeviceSpeed speed;
    double peak_flops;     // what mfu is a fraction of
    bool peak_is_measured; // no datasheet peak is known: it is the matmul rate
    Gpt2 *model;
    Optimizer *optimizer;
    DataLoader *loader;
    RunLog *log;
    RunSummary *summary;
    StepRecord records[2];
    double started; // launch
    StepTime step_time;
    float loss_scale;    // after the last step that was reported
    char attention[256]; // who computes it, as the header said
    int64_t first_step;  // where this process began
    char kept[1024];     // what was said of an old checkpoint that could not be removed
} Run;

// ---------------------------------------------------------------------------------------------------- memory and model

static bool build_model(Run *run, Error *err) {
    const Options *o = &run->setup.options;
    const Gpt2Options model = run_setup_model(&run->setup);
    run->model = gpt2_create(&model, err);
    if (!run->model)
        return error_prefix(err, "the model was planned to fit, and does not: another process may have taken memory");
    StepControl *control = &run->setup.state.control; // of a checkpoint, or new
    // An fp16 run brings its loss scale along. 1 is that of a new run, or of one that had another dtype.
    if (run->setup.dtype != DTYPE_FP16 || control->loss_scale == 1.0f)
        control->loss_scale = optimizer_first_loss_scale(run->setup.dtype);
    run->loss_scale = control->loss_scale;
    gpt2_set_control(run->model, control);
    if (run->setup.resume_path) {
        const bool state = model.train && !o->reset_optimizer;
        return checkpoint_load_weights(run->model, run->setup.resume_path, err) &&
               (!state || checkpoint_load_moments(run->model, run->setup.resume_path, err));
    }
    if (!model_config_is_descriptor(o->model)) return checkpoint_load_weights(run->model, o->model, err);
    gpt2_init_weights(run->model, (uint64_t)o->seed);
    return true;
}

static bool build_training(Run *run, Error *err) {
    const Options *o = &run->setup.options;
    OptimizerOptions optimizer;
    optimizer.beta1 = (float)o->beta1, optimizer.beta2 = (float)o->beta2, optimizer.eps = (float)o->eps;
    optimizer.momentum = (float)o->momentum;
    optimizer.weight_decay = (float)o->weight_decay;
    optimizer.seed = run->setup.state.seed;
    optimizer.limits.clip = (float)o->grad_clip;
    optimizer.limits.loss_z_limit = (float)o->loss_outlier;
    optimizer.limits.norm_z_limit = (float)o->norm_outlier;
    optimizer.limits.scale_growth_interval = optimizer_scale_growth_interval(run->setup.dtype);
    run->optimizer = optimizer_create(run->model, &optimizer, err);
    DataLoaderOptions loader;
    memset(&loader, 0, sizeof loader);
    loader.shards = &run->setup.train;
    loader.vocab = run->setup.config.V;
    loader.batch_windows = o->B;
    loader.step_windows = run->setup.step_windows;
    loader.position = run->setup.state.position;
    loader.seed = run->setup.state.seed;
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

// --interactive into a pipe or a file: nothing but the answers goes there.
static bool answers_only(const Run *run) { return run->setup.options.interactive && !isatty(STDOUT_FILENO); }

static bool on_gpu(void) { return strcmp(device_facts()->backend, "cpu") != 0; }

// What takes more than a second is said before: on a GPU always, on a CPU from a GiB on, whose first touch takes that.
static void say_what_is_started(const Run *run, int64_t bytes) {
    char memory[64];
    if (answers_only(run) || (!on_gpu() && bytes < 1 << 30)) return;
    printf("starting    %s: measuring its speed, then taking %s of memory and %s the weights\n", device_facts()->name,
           format_bytes((double)bytes, memory, 64),
           run->setup.resume_path || !model_config_is_descriptor(run->setup.options.model) ? "reading"
                                                                                           : "initialising");
    fflush(stdout);
}

// Before the model, so that what is taken for it is there again.
static void measure_speed(Run *run) {
    Error unmeasured;
    const Gpt2Options model = run_setup_model(&run->setup);
    MemoryPlan *plan = gpt2_plan(&model);
    say_what_is_started(run, memory_plan_total(plan));
    if (!device_measure_speed(run->setup.dtype, (size_t)memory_plan_total(plan), &run->speed, &unmeasured)) {
        fprintf(stderr, "the speed of this machine was not measured: %s\n", unmeasured.text);
        memset(&run->speed, 0, sizeof run->speed);
    }
    memory_plan_destroy(plan);
}

static bool build(Run *run, Error *err) {
    measure_speed(run);
    if (!build_model(run, err)) return false;
    const double datasheet = device_facts()->peak_flops[run->setup.dtype];
    run->peak_is_measured = datasheet <= 0;
    run->peak_flops = run->peak_is_measured ? run->speed.matmul_flops : datasheet;
    return run->setup.options.max_steps == 0 || build_training(run, err);
}

static bool open_log(Run *run, Error *err) {
    const Options *o = &run->setup.options;
    const bool only_evaluates = o->max_steps == 0; // it adds to the log of a run, and takes nothing away
    run->log = runlog_open(*o->output ? o->output : NULL, run->setup.resume_path != NULL || only_evaluates,
                           only_evaluates ? INT64_MAX : run->setup.state.step, o->progress, o->tensorboard != 0, err);
    if (!run->log) return false;
    run->summary = run_summary_create();
    DeviceSensors sensors; // where the energy of the run is counted from
    if (device_sensors(&sensors)) run_summary_energy(run->summary, sensors.energy_joules);
    RunFacts facts;
    memset(&facts, 0, sizeof facts);
    facts.options = o;
    facts.model = gpt2_options(run->model);
    facts.plan = gpt2_memory(run->model);
    facts.source = run->setup.source;
    facts.train = run->setup.has_train ? &run->setup.train : NULL;
    facts.val = run->setup.has_val ? &run->setup.val : NULL;
    facts.T = run->setup.T, facts.step_windows = run->setup.step_windows;
    facts.start_step = run->setup.state.step, facts.total_steps = run->setup.total_steps;
    facts.schedule = &run->setup.schedule;
    facts.speed = run->speed;
    facts.peak_flops = run->peak_flops, facts.peak_is_measured = run->peak_is_measured;
    facts.loss_scale = run->loss_scale;
    if (!answers_only(run)) run_header(run->log, &facts);
    snprintf(run->attention, sizeof run->attention, "%s", device_facts()->attention);
    if (!run->setup.resume_path) return true;
    if (o->reset_optimizer && o->max_steps != 0)
        runlog_text(run->log, "optimizer   --reset-optimizer: %s begins with a new state after step %lld",
                    optimizer_name(run->setup.optimizer), (long long)run->setup.state.step);
    char *changed = options_diff_json(o, run->setup.state.options_json);
    if (changed) runlog_text(run->log, "changed since the checkpoint:\n%.*s", (int)strlen(changed) - 1, changed);
    free(changed);
    return true;
}

// ----------------------------------------------------------------------------------------------- evaluation and saving

// How often the log of a resumed run has it for the step that the run goes on from. What a signal kept it from is made
// up for there.
static int64_t logged(const Run *run, const char *event, const char *name) {
    const bool goes_on = run->setup.options.max_steps != 0 && run->setup.state.step == run->first_step;
    return goes_on ? runlog_count(run->log, event, name) : 0;
}

static bool new_best(Run *run, double loss, Error *err) {
    if (!(loss < run->setup.state.best_val_loss)) return true;
    run->setup.state.best_val_loss = loss;
    const bool is_saved =
        run->setup.resume_path && run->setup.options.max_steps != 0 && run->setup.state.step == run->first_step;
    return !is_saved || checkpoint_set_best_val_loss(run->setup.resume_path, run->model, loss, err);
}

// Seconds that these tokens take at the measured rate, forward or forward and backward; 0: not known.
static double least_seconds(const Run *run, double tokens, bool train) {
    const double flops = train ? flops_per_token_hardware(&run->setup.config, run->setup.T, &run->setup.recompute)
                               : flops_per_token_llmc(&run->setup.config, run->setup.T) / 3;
    return run->speed.matmul_flops > 0 ? tokens * flops / run->speed.matmul_flops : 0;
}

static void say_what_the_first_step_takes(const Run *run) {
    const double seconds = least_seconds(run, (double)(run->setup.step_windows * run->setup.T), true);
    if (on_gpu())
        runlog_text(run->log,
                    "first step  loads kernels and chooses them by measuring: it takes longer than the others");
    else if (seconds >= 1)
        runlog_text(run->log, "first step  takes at least %.3g s at the measured matmul rate", seconds);
}

static bool validate(Run *run, Error *err) {
    const double began = now_seconds();
    ValidationScore score;
    if (!run->setup.has_val || logged(run, "validation", NULL) > 0) return true;
    const int64_t most = run->setup.options.val_sequences, all = run->setup.val.num_windows;
    const double seconds = least_seconds(run, (double)((most > 0 && most < all ? most : all) * run->setup.T), false);
    if (run->setup.state.step == run->first_step && seconds >= 1)
        runlog_text(run->log, "validating  takes at least %.3g s at the measured matmul rate", seconds);
    if (!evaluate_loss(run->model, &run->setup.val, run->setup.options.val_sequences, run->setup.tokenizer, &score,
                       err))
        return false;
    if (score.tokens == 0) return true; // a signal came
    if (!new_best(run, score.loss, err)) return false;
    run_summary_validation(run->summary, run->setup.state.step, score.loss);
    runlog_validation(run->log, run->setup.state.step, score.loss, score.bits_per_byte, (double)score.tokens,
                      now_seconds() - began);
    return true;
}

static bool answer_choices(Run *run, Error *err) {
    for (int i = 0; i < run->setup.choices.count; i++) {
        const double began = now_seconds();
        const ChoiceSet *set = run->setup.choices.sets[i];
        ChoiceScore score;
        if (logged(run, "choices", choices_name(set)) > 0) continue;
        if (!evaluate_choices(run->model, set, run->setup.options.choice_examples, &score, err)) return false;
        if (score.examples == 0) return true; // a signal came
        runlog_choices(run->log, run->setup.state.step, choices_name(set), score.examples, score.correct,
                       score.correct_normalised, now_seconds() - began);
    }
    return true;
}

static GenerateOptions generate_options(Run *run) {
    const Options *o = &run->setup.options;
    GenerateOptions g;
    memset(&g, 0, sizeof g);
    g.tokenizer = run->setup.tokenizer;
    g.prompt = o->prompt;
    g.samples = o->samples, g.tokens = o->sample_tokens;
    g.sampler.temperature = o->temperature, g.sampler.top_k = o->top_k, g.sampler.top_p = o->top_p;
    g.sampler.seed = run->setup.state.seed, g.sampler.stream = (uint64_t)run->setup.state.step;
    return g;
}

// Between steps a text is shown when it is whole; with -x 0 as it is drawn, with its speed.
static bool sample(Run *run, Error *err) {
    const bool alone = run->setup.options.max_steps == 0, streamed = alone && run->setup.options.samples == 1;
    GenerateOptions options = generate_options(run);
    const int64_t begun = logged(run, "sample", NULL);
    Generated drawn;
    if (begun >= options.samples) return true;
    if (streamed) {
        options.sink = runlog_stream, options.context = run->log;
        runlog_stream(run->log, options.prompt, (int64_t)strlen(options.prompt));
    }
    if (!generate(run->model, &options, &drawn, err)) return false;
    if (streamed) runlog_stream(run->log, "\n", 1);
    const bool again = drawn.cut && !alone; // by the run that goes on, and whole
    for (int64_t i = begun; i < drawn.samples && !again; i++)
        runlog_sample(run->log, run->setup.state.step, drawn.texts[i], drawn.bytes[i], streamed, drawn.cut);
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

// What was chosen by timing stands in the log, and in every checkpoint: a resume takes the same.
static void log_tuning(Run *run) {
    char *tuning = device_tuning(), *old = run->setup.state.tuning, *event = NULL;
    size_t bytes;
    const bool is_new = tuning && *tuning && (!old || strcmp(old, tuning) != 0);
    if (is_new) {
        FILE *out = text_open(&event, &bytes);
        fputs("\"tuning\":", out);
        format_json_string(out, tuning, strlen(tuning));
        fclose(out);
        runlog_event(run->log, "tuning", event);
        free(event);
    }
    run->setup.state.tuning = tuning;
    free(old);
}

static bool save(Run *run, Error *err) {
    const Options *o = &run->setup.options;
    if (!*o->output) return true;
    const double began = now_seconds();
    run->setup.state.control = gpt2_get_control(run->model);
    run->setup.state.T = run->setup.T;
    free(run->setup.state.options_json);
    run->setup.state.options_json = options_to_json(o);
    run->setup.state.tokenizer = run->setup.tokenizer;
    log_tuning(run);
    if (!checkpoint_save(o->output, run->model, &run->setup.state, err)) return false;
    runlog_text(run->log, "saved       %s/step_%08lld in %.1f s", o->output, (long long)run->setup.state.step,
                now_seconds() - began);
    Error kept; // what is old and stays takes space, and nothing else
    if (checkpoint_rotate(o->output, (int)o->keep, o->major, &kept)) return true;
    if (strcmp(kept.text, run->kept) != 0) runlog_text(run->log, "warning     %s", kept.text);
    snprintf(run->kept, sizeof run->kept, "%s", kept.text);
    return true;
}

// ------------------------------------------------------------------------------------------------------------ one step

static bool due(int64_t step, int64_t every) { return every > 0 && step % every == 0; }

static void first_step_report(Run *run, const StepControl *control) {
    char measured[64], planned[64], event[128];
    const long long peak = (long long)device_memory_peak(),
                    arena = (long long)memory_plan_total(gpt2_memory(run->model));
    const double expected = log((double)run->setup.config.V);
    if (!run->setup.resume_path && model_config_is_descriptor(run->setup.options.model) &&
        fabs(control->loss - expected) > 0.5)
        runlog_text(run->log, "warning     the first loss is %.3f; of new weights it should be near ln(V) = %.3f",
                    control->loss, expected);
    runlog_text(run->log, "memory      measured %s, planned %s; first step done %.2f s after launch",
                format_bytes((double)peak, measured, 64), format_bytes((double)arena, planned, 64),
                now_seconds() - run->started);
    snprintf(event, sizeof event, "\"measured\":%lld,\"planned\":%lld", peak, arena);
    runlog_event(run->log, "memory", event);
    char *choices = device_choices(), *chosen = NULL;
    if (*choices) {
        REQUIRE_MEMORY(asprintf(&chosen, "\"candidates\":[%s]", choices) >= 0, "the log");
        runlog_event(run->log, "candidates", chosen);
    }
    free(choices);
    free(chosen);
    if (strcmp(run->attention, device_facts()->attention) != 0) // it was chosen by measurement
        runlog_text(run->log, "attention   %s", device_facts()->attention);
}

// Nothing is faster than its limit: a step that seems to be shows that the machine was busy when the limit was
// measured.
static void raise_measured_peak(Run *run, double step_flops) {
    DeviceSpeed again;
    Error ignored;
    if (!run->peak_is_measured || run->peak_flops <= 0 || step_flops <= run->peak_flops) return;
    if (device_measure_speed(run->setup.dtype, 0, &again, &ignored) && again.matmul_flops > run->peak_flops)
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
    line.step = r->step, line.total = run->setup.total_steps;
    line.control = *r->control;
    line.last_loss_scale = run->loss_scale;
    run->loss_scale = r->control->loss_scale;
    line.bad_tensor = r->control->bad_tensor >= 0 ? gpt2_parameters(run->model)[r->control->bad_tensor].name : NULL;
    line.lr = r->lr;
    line.seconds = device_event_seconds(r->start, r->stop);
    line.tokens = (double)(run->setup.step_windows * run->setup.T);
    const double tokens_per_second = line.tokens / line.seconds;
    const double model_flops = tokens_per_second * flops_per_token_llmc(&run->setup.config, run->setup.T);
    const double all_flops =
        tokens_per_second * flops_per_token_hardware(&run->setup.config, run->setup.T, &run->setup.recompute);
    raise_measured_peak(run, fmax(model_flops, all_flops));
    line.mfu = run->peak_flops > 0 ? model_flops / run->peak_flops : 0;
    line.hfu = run->peak_flops > 0 ? all_flops / run->peak_flops : 0;
    step_time_add(&run->step_time, line.seconds);
    line.eta_seconds = run->step_time.mean * (double)(run->setup.total_steps - r->step);
    runlog_step(run->log, &line);
    run_summary_step(run->summary, line.seconds, line.tokens, line.mfu);
    if (r->step == run->first_step + 1) first_step_report(run, r->control);
    DeviceSensors sensors;
    if (due(r->step, run->setup.options.log_gpu_every) && device_sensors(&sensors))
        runlog_sensors(run->log, r->step, &sensors);
    r->step = 0;
}

static void report_all(Run *run) {
    report(run, &run->records[(run->setup.state.step + 1) % 2]);
    report(run, &run->records[run->setup.state.step % 2]);
}

// --numerics-every: waits for the device, in these steps only.
static void report_numerics(Run *run) {
    static NumericsRow rows[NUMERICS_MAX_ROWS];
    const int count = gpt2_numerics_read(run->model, rows);
    gpt2_observe(run->model, false);
    report_all(run);
    runlog_numerics(run->log, run->setup.state.step, rows, count);
}

// A signal came between two micro-steps. Weights and moments are still those of the last whole step; with the rest of
// its state a resume reads this step's windows again and computes the same bits.
static void abandon_step(Run *run) {
    const int64_t step = run->setup.state.step;
    report_all(run);
    if (step > run->first_step) gpt2_abandon_step(run->model, run->records[step % 2].control);
}

// loader -> [forward -> backward] x accumulation -> norm -> decision -> update. Nothing here waits for the device; the
// step before is reported while this one computes.
static bool train_step(Run *run, Error *err) {
    const int64_t step = run->setup.state.step, tokens = run->setup.step_windows * run->setup.T;
    const bool watched = due(step + 1, run->setup.options.numerics_every);
    StepRecord *record = &run->records[(step + 1) % 2];
    if (watched) gpt2_observe(run->model, true);
    device_event_record(record->start, STREAM_COMPUTE);
    for (int64_t done = 0, count = 0; done < run->setup.step_windows; done += count) {
        const void *windows;
        if (signals_pending()) return abandon_step(run), true;
        if (!dataloader_next(run->loader, &windows, &count, err)) return false;
        gpt2_load_batch(run->model, windows, count, run->setup.train.token_bytes);
        gpt2_forward_backward(run->model, tokens, done == 0);
    }
    record->lr = schedule_lr(&run->setup.schedule, step);
    optimizer_step(run->optimizer, step + 1 - run->setup.state.optimizer_start, record->lr, tokens, watched);
    device_copy_to_host(record->control, gpt2_control(run->model).data, sizeof *record->control, STREAM_COMPUTE);
    device_event_record(record->stop, STREAM_COMPUTE);
    record->step = step + 1;
    run->setup.state.step = step + 1;
    run->setup.state.position =
        dataloader_position(run->loader); // of whole steps: a step that fails midway is read again
    report(run, &run->records[step % 2]);
    if (device_event_done(record->stop)) report(run, record);
    if (watched) report_numerics(run);
    return true;
}

// ------------------------------------------------------------------------------------------------------------ the loop

// What is due after this step: each looks whether the log of a resumed run has it already.
static bool evaluate(Run *run, bool last, Error *err) {
    const Options *o = &run->setup.options;
    const int64_t step = run->setup.state.step;
    if ((due(step, o->val_every) || (last && (o->val_every > 0 || o->max_steps == 0))) &&
        !(validate(run, err) && answer_choices(run, err)))
        return false;
    return !((step > 0 && due(step, o->sample_every)) || (last && o->sample_every > 0)) || sample(run, err);
}

// Steps with evaluation, samples and checkpoints between them, until the last one, the time limit or a signal.
static bool loop(Run *run, Error *err) {
    const Options *o = &run->setup.options;
    if (run->first_step < run->setup.total_steps) say_what_the_first_step_takes(run);
    for (;;) {
        const int64_t step = run->setup.state.step;
        const bool timed_out =
            o->max_minutes > 0 && now_seconds() - run->started > o->max_minutes * 60 && step > run->first_step;
        const bool there = runlog_is_there(run->log, err);
        const bool last = step >= run->setup.total_steps || timed_out;
        if (!signals_pending() && !o->interactive && !evaluate(run, last, err)) return false;
        const bool interrupted = signals_pending() != 0; // also while it was evaluated: the resume does the rest
        if (step > run->first_step && (last || interrupted || due(step, o->checkpoint_every)) && !save(run, err))
            return false;
        if (last || interrupted) return there;
        if (!there || !train_step(run, err)) {
            Error unsaved; // the directory or the data failed, not the model: what was trained is kept
            report_all(run);
            if (step > run->first_step && !save(run, &unsaved)) runlog_text(run->log, "%s", unsaved.text);
            return false;
        }
        if (due(step + 1, o->val_every) || due(step + 1, o->sample_every) || due(step + 1, o->checkpoint_every) ||
            step + 1 == run->setup.total_steps || signals_pending())
            report_all(run);
    }
}

// --profile: steps and nothing else; nothing is saved.
static bool profile_loop(Run *run, Error *err) {
    profile_start(run->setup.options.profile);
    say_what_the_first_step_takes(run);
    while (profile_next_step()) {
        if (signals_pending()) return true;
        if (!train_step(run, err)) return false;
    }
    report_all(run);
    return profile_report(run->log, *run->setup.options.output ? run->setup.options.output : NULL, run->setup.dtype,
                          run->speed, err);
}

// --export and --interactive: what is done with the weights when training is over.
static bool use_weights(Run *run, Error *err) {
    const Options *o = &run->setup.options;
    if (*o->export_path) {
        const DType dtype = run_setup_export_dtype(&run->setup);
        if (!export_model(o->export_path, run->model, dtype, run->setup.state.eot, run->setup.tokenizer, err))
            return false;
        runlog_text(run->log, "exported    %s in %s", o->export_path, dtype_name(dtype));
    }
    if (!o->interactive) return true;
    GenerateOptions options = generate_options(run);
    options.samples = 1, options.stop_at_eot = true;
    return generate_interactive(run->model, &options, err);
}

static void end_lines(Run *run) {
    char tokens[64], time[64];
    const int64_t steps = run->setup.state.step - run->first_step;
    DeviceSensors sensors;
    if (device_sensors(&sensors)) run_summary_energy(run->summary, sensors.energy_joules);
    format_count((double)(steps * run->setup.step_windows * run->setup.T), tokens, 64);
    format_duration(now_seconds() - run->started, time, 64);
    if (signals_pending())
        runlog_text(run->log, "stopped by %s after step %lld; %s", signals_name(signals_pending()),
                    (long long)run->setup.state.step,
                    *run->setup.options.output ? "-o and -y go on from there" : "nothing was saved (no -o)");
    else if (run->setup.options.max_steps != 0 && steps == 0 && run->setup.options.profile == 0)
        runlog_text(
            run->log,
            "done        nothing is left: the run is at step %lld of %lld; a larger -x goes on, such as -x %lld",
            (long long)run->setup.state.step, (long long)run->setup.total_steps,
            (long long)(2 * run->setup.state.step));
    else if (run->setup.options.max_steps != 0)
        runlog_text(run->log, "done        %lld steps, %s tokens in %s%s", (long long)steps, tokens, time,
                    run->setup.state.step < run->setup.total_steps ? " (time limit; -o and -y go on)" : "");
    run_summary_print(run->summary, run->log);
    char *summary = run_summary_json(run->summary), *event = NULL;
    if (asprintf(
            &event,
            "\"step\":%lld,\"seconds\":%.3f,\"memory_peak\":%lld,\"memory_planned\":%lld,\"wait_seconds\":%.4f%s%s",
            (long long)run->setup.state.step, now_seconds() - run->started, (long long)device_memory_peak(),
            (long long)memory_plan_total(gpt2_memory(run->model)),
            run->loader ? dataloader_wait_seconds(run->loader) : 0.0, *summary ? "," : "", summary) >= 0)
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
    run_summary_free(run->summary);
    runlog_close(run->log);
    run_setup_close(&run->setup);
    device_shutdown();
}

static int run_all(Run *run, Error *err) {
    if (!run_setup_start(&run->setup, err))
        return run->setup.is_locked ? EXIT_RUN_FAILED
                                    : EXIT_BAD_INPUT; // the options of a resumed run come from its checkpoint
    run->first_step = run->setup.state.step;
    const DeviceOptions device = options_device(&run->setup.options);
    if (!device_init(&device, err)) return EXIT_RUN_FAILED; // before any data: without a GPU they are of no use
    if (*run->setup.options.plan) return run_setup_plan(&run->setup, err) ? EXIT_OK : EXIT_BAD_INPUT;
    if (!run_setup_choose(&run->setup, err)) return EXIT_BAD_INPUT;
    if (!run_setup_remember(&run->setup, err) || !build(run, err)) return EXIT_RUN_FAILED;
    signals_install(); // from here on there is a log that shall be whole
    if (!open_log(run, err)) return EXIT_RUN_FAILED;
    if (!(run->setup.options.profile > 0 ? profile_loop(run, err) : loop(run, err))) return EXIT_RUN_FAILED;
    report_all(run);
    if (!signals_pending() && !use_weights(run, err)) return EXIT_RUN_FAILED;
    if (!answers_only(run)) end_lines(run);
    return signals_pending() ? EXIT_INTERRUPTED : EXIT_OK;
}

int main(int argc, char **argv) {
    Run run;
    Error err;
    standard_files_open();
    device_prepare_process(argv);
    memset(&run, 0, sizeof run);
    run.started = now_seconds();
    const OptionsResult parsed = options_parse(&run.setup.options, argc, argv, &err);
    int code = EXIT_OK;
    if (parsed == OPTIONS_ERROR) code = EXIT_BAD_INPUT;
    if (parsed == OPTIONS_RUN) code = run_all(&run, &err);
    if (run.log) runlog_close(run.log), run.log = NULL;
    if (code == EXIT_RUN_FAILED || code == EXIT_BAD_INPUT) fprintf(stderr, "%s: %s\n", argv[0], err.text);
    close_run(&run);
    return code;
}
