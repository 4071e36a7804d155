// The trainer. Read it from top to bottom: one step -> the loop -> evaluation and saving -> setup
// -> main. llmc/run/run_setup.c chooses the model and the data, and llmc/run/report.c reports on
// the run. The functions called here are documented in the headers of their modules under llmc/.
//
// This is a C file in spite of its name (-x c), compiled once and linked into train_gpt2cu,
// train_gpt2 and train_gpt2sim. It never knows which backend implements device.h and ops.h.
#include "llmc/base/clock.h"
#include "llmc/base/format.h"
#include "llmc/base/limits.h"
#include "llmc/base/output.h"
#include "llmc/base/signals.h"
#include "llmc/comm/launch.h"
#include "llmc/comm/watch.h"
#include "llmc/log/profile.h"
#include "llmc/log/runlog.h"
#include "llmc/model/model.h"
#include "llmc/model/model_numerics.h"
#include "llmc/model/model_state.h"
#include "llmc/run/options_together.h"
#include "llmc/run/processes.h"
#include "llmc/run/report.h"
#include "llmc/run/run_resume.h"
#include "llmc/run/run_setup.h"
#include "llmc/store/checkpoint.h"
#include "llmc/store/export.h"
#include "llmc/store/optimizer_file.h"
#include "llmc/store/trainer_json.h"
#include "llmc/store/weights_file.h"
#include "llmc/train/choices.h"
#include "llmc/train/generate.h"
#include "llmc/train/optimizer.h"
#include "llmc/train/validation.h"
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct {
    RunSetup setup; // the model, the data, and the progress so far (setup.state)
    Model *model;
    Optimizer *optimizer;
    DataLoader *loader;
    DataParallel *shared;  // how the processes share a step
    StepRecord records[2]; // of this step, and of the step before, which is reported while this one
                           // computes
    RunLog *log;
    Report *report;
    DeviceSpeed speed;
    bool measures_speed; // PRETRAIN_SPEED
    Error kept;          // the last warning about an old checkpoint that stays
    double started;      // launch
    char **argv;
} Run;

// ---------------------------------------------------------------------------------------- one step

static void report_all(Run *run);
static bool report_numerics(Run *run, Error *err);
static bool due(int64_t step, int64_t every) { return every > 0 && step % every == 0; }

// loader -> [forward -> backward] x accumulation -> sum over processes -> norm -> decision ->
// update -> weights to all processes. The host never waits for this step: it is reported while the
// next one computes. A signal between two micro-steps ends it early, also with true: state->step
// and the content of a checkpoint are then unchanged.
static bool train_step(Run *run, Error *err) {
    const RunSetup *setup = &run->setup;
    const StepShare *share = &run->setup.share;
    TrainerState *state = &run->setup.state;
    const int64_t step = state->step, tokens = setup->step_windows * setup->T;
    const bool watched = due(step + 1, setup->options.numerics_every);
    StepRecord *before = &run->records[step % 2], *record = &run->records[(step + 1) % 2];

    // The device notes when the step begins.
    if (watched) model_observe(run->model, true);
    device_event_record(record->start, STREAM_COMPUTE);
    data_parallel_begin(run->shared);

    // This process adds up the gradients of its groups, micro-step by micro-step; it has one group
    // unless --reduce-groups asks for more.
    for (int group = 0; group < share->count; group++) {
        for (int64_t done = 0, count = 0; done < step_share_windows(share, group); done += count) {
            const void *windows;
            if (signals_pending()) return true;
            if (watch_has_failed(err)) return false;
            watch_progress();
            if (!dataloader_next(run->loader, &windows, &count, err)) return false;
            const bool last =
                group + 1 == share->count && done + count == step_share_windows(share, group);
            data_parallel_micro_step(run->shared, last);
            model_load_batch(run->model, windows, count, setup->T, setup->data.train.token_bytes);
            model_forward_backward(run->model, tokens, done == 0);
        }
        data_parallel_end_group(run->shared, group);
    }

    // The gradients are summed over all groups and processes, and the weights updated.
    if (!data_parallel_end(run->shared, err)) return false;
    optimizer_norm(run->optimizer);
    if (!data_parallel_share_norm(run->shared, err)) return false;
    record->lr = schedule_lr(&setup->schedule, step);
    optimizer_step(run->optimizer, record->lr, tokens, watched);
    if (!data_parallel_share_weights(run->shared, err)) return false;

    // The device copies the figures of the step to the record when it gets there.
    copy_d2h(record->control, model_control(run->model).data, sizeof *record->control,
             STREAM_COMPUTE);
    device_event_record(record->stop, STREAM_COMPUTE);
    record->step = state->step = step + 1;
    // in windows: a step that fails midway is read again
    state->position = dataloader_position(run->loader);

    // The step before is done by now, or the host waits for it here.
    report_step(run->report, before);
    // on the CPU always; once per record
    if (device_event_done(record->stop)) report_step(run->report, record);
    if (watched && !report_numerics(run, err)) return false;
    return true;
}

static void report_all(Run *run) {
    report_step(run->report, &run->records[(run->setup.state.step + 1) % 2]);
    report_step(run->report, &run->records[run->setup.state.step % 2]);
}

// --numerics-every: waits for the device, in these steps only.
static bool report_numerics(Run *run, Error *err) {
    static NumericsRow rows[NUMERICS_MAX_ROWS];
    const int count = model_numerics_read(run->model, rows);
    model_observe(run->model, false);
    report_all(run);
    if (!processes_sum_numerics(rows, count, err)) return false;
    runlog_numerics(run->log, run->setup.state.step, rows, count);
    return true;
}

// ---------------------------------------------------------------------------------------- the loop

static bool evaluate(Run *run, bool last, Error *err);
static void store_best_loss(Run *run);
static bool write_checkpoint(Run *run, Error *err);
static bool write_files(void *context, Error *err);
static void rotate(Run *run);

// Runs steps, with evaluation, samples and checkpoints between them, until the last step, the time
// limit or a signal.
static bool loop(Run *run, Error *err) {
    const Options *o = &run->setup.options;
    if (run->setup.first_step < run->setup.total_steps) report_first_step(run->report);
    if (run->setup.resume_path && o->max_steps != 0 && comm_rank() == 0) rotate(run);

    for (;;) {
        const int64_t step = run->setup.state.step;
        const bool has_trained = step > run->setup.first_step;
        watch_step(step);

        const double limit = o->max_minutes * 60;
        BetweenSteps now = {.signal = signals_received(),
                            .timed_out = limit > 0 && now_seconds() - run->started > limit,
                            .log_exists = runlog_is_there(run->log, err)};
        if (!processes_decide(&now, err)) return false;

        const bool last = step >= run->setup.total_steps || (now.timed_out && has_trained);
        if (!signals_pending() && !o->interactive && !evaluate(run, last, err)) return false;

        // a signal during evaluation too: the resume completes it
        const bool ends = last || signals_pending();
        const bool saves = has_trained && (ends || due(step, o->checkpoint_every));
        if (saves) report_all(run);
        if ((saves || (has_trained && due(step, WEIGHTS_CHECK_STEPS))) &&
            !(data_parallel_await_weights(run->shared, err) &&
              processes_compare_weights(run->model, step, err)))
            return false;
        if (saves && !comm_all_ok(write_checkpoint(run, err), err)) return false;

        if (ends) return now.log_exists;
        if (now.log_exists && train_step(run, err)) continue;

        // The directory is gone, or the step failed, maybe in one process alone: saves what was
        // trained, if this process has all of the optimizer's state. After half a sum the weights
        // may be wrong: the last checkpoint counts.
        if (comm_is_lost()) return false;
        report_all(run);
        const bool has_all = !now.log_exists || comm_size() == 1 || o->zero_stage == 0;
        Error unsaved;
        if (run->setup.state.step > run->setup.first_step && has_all &&
            !write_checkpoint(run, &unsaved))
            runlog_text(run->log, "%s", unsaved.text);
        return false;
    }
}

// --profile: runs steps only and saves nothing.
static bool profile_loop(Run *run, Error *err) {
    report_first_step(run->report);
    while (profile_next_step(run->setup.options.profile)) {
        if (signals_pending()) return true;
        if (!train_step(run, err)) return false;
    }
    report_all(run);

    // The machine may have been busy when its limits were measured, and nothing is faster than its
    // limit.
    DeviceSpeed again, *speed = &run->speed;
    const char *directory = NULL;
    Error unmeasured;
    const size_t bytes = (size_t)memory_plan_total(model_memory(run->model));
    if (speed->matmul_flops > 0 && speed_measure(run->setup.dtype, bytes, &again, &unmeasured)) {
        speed->matmul_flops = fmax(speed->matmul_flops, again.matmul_flops);
        speed->copy_bandwidth = fmax(speed->copy_bandwidth, again.copy_bandwidth);
    }

    if (*run->setup.options.output) directory = run->setup.options.output;
    return profile_report(run->log, directory, run->setup.dtype, run->speed, err);
}

// --------------------------------------------------------------------------- evaluation and saving

// Validates, and answers the multiple-choice files of -h.
static bool score(Run *run, Error *err) {
    const RunSetup *s = &run->setup;
    const double began = now_seconds();
    if (s->data.has_val) {
        ValidationScore each[MIXTURE_MAX], all; // of each source of -j, and of the mixture
        report_validating(run->report);
        if (!evaluate_sources(run->model, &s->data.val, s->options.val_sequences, s->tokenizer,
                              each, &all, err))
            return false;
        if (all.tokens == 0) return true; // a signal came
        run->setup.state.best_val_loss = fmin(run->setup.state.best_val_loss, all.loss);
        report_validation(run->report, &all, each, now_seconds() - began);
    }

    for (int i = 0; i < s->choices.count; i++) {
        const double start = now_seconds();
        const ChoiceSet *set = s->choices.sets[i];
        ChoiceScore right;
        if (!evaluate_choices(run->model, set, s->choice_examples, &right, NULL, NULL, err))
            return false;
        if (right.examples == 0) return true; // a signal came
        runlog_choices(run->log, s->state.step, choices_name(set), &right, now_seconds() - start);
    }
    return true;
}

// Between steps a text is shown when it is complete; with -x 0 as it is drawn, with its speed.
// Process 0 draws it.
static bool sample(Run *run, Error *err) {
    const bool streamed = run->setup.options.max_steps == 0 && run->setup.options.samples == 1;
    GenerateOptions options = run_setup_generate(&run->setup);
    Generated drawn;
    if (comm_rank() > 0) return true;

    if (streamed) {
        options.sink = runlog_stream;
        options.context = run->log;
        runlog_stream(run->log, options.prompt, (int64_t)strlen(options.prompt));
    }

    if (!generate(run->model, &options, &drawn, err)) return false;
    if (streamed) runlog_stream(run->log, "\n", 1);
    report_generated(run->report, &drawn, streamed);
    generated_free(&drawn);
    return true;
}

// Runs everything due after this step. A resumed run repeats the evaluation at its checkpoint,
// which a signal may have cut short; its log keeps the new one.
static bool evaluate(Run *run, bool last, Error *err) {
    const Options *o = &run->setup.options;
    const int64_t step = run->setup.state.step;
    const bool scores =
        due(step, o->val_every) || (last && (o->val_every > 0 || o->max_steps == 0));
    const bool samples = (step > 0 && due(step, o->sample_every)) || (last && o->sample_every > 0);
    if (!scores && !samples) return true;

    report_all(run);
    if (o->max_steps != 0 && step == run->setup.first_step) runlog_drop_evaluations(run->log, step);
    if (!data_parallel_await_weights(run->shared, err)) return false;

    if (scores && !score(run, err)) return false;
    if (scores && step == run->setup.first_step) store_best_loss(run);
    if (samples && !sample(run, err)) return false;
    return true;
}

// The validation of the checkpoint that the run resumes from, made up for: a run that is done saves
// no other.
static void store_best_loss(Run *run) {
    const RunSetup *s = &run->setup;
    Error unstored;
    if (!s->resume_path || s->options.max_steps == 0 || comm_rank() > 0 ||
        isinf(s->state.best_val_loss))
        return;
    if (!checkpoint_set_best_loss(s->resume_path, run->model, s->state.best_val_loss, &unstored))
        runlog_field(run->log, "warning", "%s; the checkpoint lacks its best loss", unstored.text);
}

// Whether all steps of this run were skipped, so that its weights are unchanged.
static bool updated_nothing(const Run *run) {
    const int64_t skipped = model_get_control(run->model).skipped - run->setup.first_skipped;
    return skipped == run->setup.state.step - run->setup.first_step;
}

// Process 0 writes the weights and the state of all. A run that has updated nothing writes nothing:
// with --keep its copies would replace older weights that are as good, and claim progress.
static bool write_checkpoint(Run *run, Error *err) {
    if (!*run->setup.options.output) return true;
    if (!updated_nothing(run)) return data_parallel_write(run->shared, write_files, run, err);
    runlog_field(run->log, "not saved",
                 "no step of this run has updated the weights yet: all of them were skipped");
    return true;
}

static bool write_files(void *context, Error *err) {
    Run *run = context;
    const Options *o = &run->setup.options;
    TrainerState *state = &run->setup.state;
    const double began = now_seconds();

    // The control after the last whole step. Micro-steps of the next step, which a signal or
    // missing data ended, have advanced the count of random bits in the model's control, and
    // changed nothing else that is saved.
    const StepRecord *record = &run->records[state->step % 2];
    device_event_wait(record->stop);
    state->control = *record->control;

    state->T = run->setup.T;
    state->learning_rate = record->lr;
    free(state->options_json);
    state->options_json = options_to_json(o, false);
    state->tokenizer = run->setup.tokenizer;
    state->extras = &run->setup.extras;

    char *tuning = device_tuning(); // a resume makes the same choices
    report_tuning(run->report, tuning);
    free(state->tuning);
    state->tuning = tuning;

    runlog_sync(run->log);
    if (!checkpoint_save(o->output, run->model, state, err)) return false;
    runlog_field(run->log, "saved", "%s/step_%08lld in %.1f s", o->output, (long long)state->step,
                 now_seconds() - began);
    rotate(run);
    return true;
}

// Removes the checkpoints beyond --keep: after a save, and before the first step, in case a kill
// cut a removal short.
static void rotate(Run *run) {
    const Options *o = &run->setup.options;
    Error kept;
    if (checkpoint_rotate(o->output, (int)o->keep, o->major, run->setup.state.step, &kept)) return;
    // An old one only takes up space: not twice in a row.
    if (strcmp(kept.text, run->kept.text) != 0) runlog_field(run->log, "warning", "%s", kept.text);
    run->kept = kept;
}

static bool export_weights(void *context, Error *err) {
    const Run *run = context;
    const RunSetup *s = &run->setup;

    const char *use = "";
    if (export_is_directory(s->export_path) && model_class_refuses(&s->config))
        use = ", for this program: transformers refuses heads that do not divide C";
    if (!model_class(&s->config))
        use = ", for this program: no class of transformers has these blocks";
    const HuggingFaceModel m = {
        .model = run->model, .eot = s->state.eot, .tokenizer = s->tokenizer, .extras = &s->extras};

    // Nothing was computed: the file has every bit, the model those of its type.
    WeightsOrigin *origin = NULL;
    const bool is_unchanged = s->state.step == s->first_step;
    if (is_unchanged)
        origin = weights_origin_begin(run->model, run_setup_weights(s), s->state.seed, err);
    const bool ok =
        (origin || !is_unchanged) && export_model(s->export_path, &m, s->export_type, err);
    weights_origin_end(origin);
    if (!ok) return false;

    char *warnings = export_warnings(s->export_path, &m), *rest = warnings;
    for (const char *line; (line = strsep(&rest, "\n"));)
        if (*line) runlog_field(run->log, "warning", "%s", line);
    free(warnings);
    runlog_field(run->log, "exported", "%s in %s%s", s->export_path,
                 export_type_name(s->export_type), use);
    return true;
}

// After the last step: exports, answers prompts, marks the run as done.
static bool finish(Run *run, Error *err) {
    const Options *o = &run->setup.options;
    const int64_t step = run->setup.state.step, steps = step - run->setup.first_step;
    const bool trains = o->max_steps != 0 && o->profile == 0;

    if (trains && steps > 0 && updated_nothing(run)) { // all were skipped: the run is not done
        const char *next = "lower -l, or check the weights and the data";
        if (run->setup.dtype == DTYPE_FP16)
            next = "more steps lower the loss scale, and --dtype bf16 needs none";
        if (model_get_control(run->model).skip != SKIP_NONFINITE)
            next = "raise -sl and -sg, or set them to 0";
        return error_set(err,
                         "none of %lld steps has updated the weights: all were skipped, and "
                         "nothing was saved; %s",
                         (long long)steps, next);
    }

    if (*o->export && !data_parallel_write(run->shared, export_weights, run, err)) return false;
    if (o->interactive) {
        GenerateOptions options = run_setup_generate(&run->setup);
        options.samples = 1;
        if (!generate_interactive(run->model, &options, err)) return false;
    }

    const bool done = trains && *o->output && step >= run->setup.total_steps;
    if (!done) return true;
    bool is_marked = true;
    if (comm_rank() == 0) is_marked = checkpoint_mark_done(o->output, step, err);
    return comm_all_ok(is_marked, err);
}

// ------------------------------------------------------------------------------------------- setup

// Measures before the model is built, so that the memory of the measurement is free again.
static void measure_speed(Run *run) {
    Error unmeasured;
    const ModelOptions model = run_setup_model(&run->setup);
    MemoryPlan *plan = model_plan(&model);
    const int64_t bytes = memory_plan_total(plan);
    memory_plan_destroy(plan);
    report_starting(&run->setup, bytes, run->measures_speed);

    if (!run->measures_speed) return;
    if (speed_measure(run->setup.dtype, (size_t)bytes, &run->speed, &unmeasured)) return;
    if (comm_rank() == 0)
        fprintf(stderr, "the speed of this machine was not measured: %s\n", unmeasured.text);
    run->speed = (DeviceSpeed){0};
}

static bool build_model(Run *run, Error *err) {
    const ModelOptions model = run_setup_model(&run->setup);
    run->model = model_create(&model, err);
    if (!run->model)
        return error_prefix(
            err,
            "the model was planned to fit but does not; another process may have taken memory");

    StepControl *control = &run->setup.state.control; // from a checkpoint, or new
    // An fp16 run resumes with its loss scale. A scale of 1 belongs to a new run, or to a run in
    // another dtype.
    if (run->setup.dtype != DTYPE_FP16)
        control->loss_scale = 1.0f;
    else if (control->loss_scale == 1.0f)
        control->loss_scale = FIRST_LOSS_SCALE;
    model_set_control(run->model, control);
    return true;
}

static bool load_model(Run *run, Error *err) {
    const Options *o = &run->setup.options;
    const char *path = run_setup_weights(&run->setup);
    const bool with_moments =
        run->setup.resume_path && o->max_steps != 0 && o->resume == RESUME_ALL;

    if (!path) model_init_weights(run->model, (uint64_t)o->seed);
    if (path && !weights_file_load(run->model, path, err)) return false;
    if (with_moments && !optimizer_file_load(run->model, path, err)) return false;
    return true;
}

static bool build_training(Run *run, Error *err) {
    const OptimizerOptions optimizer = run_setup_optimizer(&run->setup);
    const DataLoaderOptions loader = run_setup_loader(&run->setup);
    const bool overlap = options_environment("PRETRAIN_COMM_OVERLAP");
    if (!(run->optimizer = optimizer_create(run->model, &optimizer, err)) ||
        !(run->shared = data_parallel_create(&run->setup.share, run->model, overlap, err)) ||
        !(run->loader = dataloader_create(&loader, err)))
        return false;

    for (int i = 0; i < 2; i++) {
        StepRecord *r = &run->records[i];
        r->control = host_alloc(sizeof *r->control, err);
        r->start = device_event_create(err);
        r->stop = device_event_create(err);
        if (!r->control || !r->start || !r->stop) return false;
    }
    return true;
}

static bool open_log(Run *run, Error *err) {
    const Options *o = &run->setup.options;
    // appends to the log of a run and removes nothing
    const bool only_evaluates = o->max_steps == 0;
    const bool appends = run->setup.resume_path != NULL || only_evaluates;
    const char *directory = NULL;
    const int64_t first_step = only_evaluates ? INT64_MAX : run->setup.state.step;
    if (comm_rank() == 0) directory = o->output;

    run->log =
        runlog_open(directory, appends, first_step, options_environment("PRETRAIN_PROGRESS"), err);
    if (!run->log) return false;
    run->report = report_open(&run->setup, run->model, run->log, run->speed, run->started);
    return true;
}

// Builds everything that the run needs, in the order in which it takes memory. Returns the exit
// code of a failure, or EXIT_OK.
static int build_all(Run *run, Error *err) {
    const Options *o = &run->setup.options;
    const bool resumes = run->setup.resume_path != NULL;

    measure_speed(run);
    if (!comm_all_ok(build_model(run, err), err)) return EXIT_RUN_FAILED;
    if (!comm_all_ok(load_model(run, err), err)) return EXIT_BAD_INPUT; // values that are wrong

    if (o->max_steps != 0) {
        if (!comm_all_ok(build_training(run, err), err)) return EXIT_RUN_FAILED;
        if (!processes_share_tuning(run->model, run->optimizer, &run->setup.share, err))
            return EXIT_RUN_FAILED;
        // A checkpoint may give each process only its part of the weights (model_set_compensation).
        if (run->setup.resume_path && !(data_parallel_share_weights(run->shared, err) &&
                                        data_parallel_await_weights(run->shared, err)))
            return EXIT_RUN_FAILED;
    }

    // From here on there is a log that must stay complete.
    signals_install();
    // seconds that a stopped pager may delay the run, once
    if (o->max_steps != 0) output_limit_wait(5);
    if (resumes && !comm_all_ok(run_resume_save_options(&run->setup, err), err))
        return EXIT_RUN_FAILED;
    if (!comm_all_ok(open_log(run, err), err)) return EXIT_RUN_FAILED;
    return EXIT_OK;
}

static void close_run(Run *run) {
    dataloader_destroy(run->loader);
    for (int i = 0; i < 2; i++) {
        StepRecord *r = &run->records[i];
        if (r->start) device_event_destroy(r->start);
        if (r->stop) device_event_destroy(r->stop);
        if (r->control) host_free(r->control);
    }
    data_parallel_destroy(run->shared);
    optimizer_destroy(run->optimizer);
    model_destroy(run->model);
    report_close(run->report);
    runlog_close(run->log);
    run_setup_close(&run->setup);
    device_shutdown();
    comm_end();
}

// -------------------------------------------------------------------------------------------- main

// Runs from the options to the end. Returns the exit code, with the reason of a failure in *err.
static int run_all(Run *run, Error *err) {
    const Options *o = &run->setup.options;
    const bool asks = o->plan != PLAN_NONE;

    if (!options_measures_speed(o, &run->measures_speed, err)) return EXIT_BAD_INPUT;
    if (!asks && !processes_meet(o, err)) return EXIT_BAD_INPUT;
    // and waits for them
    if (!asks && o->gpus > 1 && comm_size() == 1) return launch_processes(o->gpus, run->argv);

    if (!comm_all_ok(run_resume_lock(&run->setup, err), err)) // the options of a resumed run
        return run->setup.is_locked ? EXIT_RUN_FAILED : EXIT_BAD_INPUT;
    if (!options_check_together(o, err)) return EXIT_BAD_INPUT; // those given now and the run's

    // The process is bound before the device is opened, so that threads and memory are in the right
    // place.
    if (!asks) {
        char gpu[64];
        device_address(comm_local_rank(), gpu);
        if (options_environment("PRETRAIN_NUMA") &&
            !placement_bind(&run->setup.placement, gpu, o->threads, err))
            return EXIT_BAD_INPUT;
    }

    DeviceOptions device = options_device(o);
    if (!processes_share_threads(o, &device.threads, err)) return EXIT_BAD_INPUT;
    if (!comm_all_ok(device_init(&device, err), err)) return EXIT_RUN_FAILED; // before any data

    // A plan ends here: it opens no data and takes no memory.
    if (asks && run_setup_plan(&run->setup, err)) return EXIT_OK;
    if (asks) return EXIT_BAD_INPUT;

    // The options are resolved against the model, the data and the memory that there are.
    if (!processes_connect_devices(err) || !run_setup_resolve(&run->setup, err))
        return EXIT_BAD_INPUT;
    // A resume remembers its command once it is known to work; a new run has no other to go back
    // to.
    const bool resumes = run->setup.resume_path != NULL;
    if (!resumes && !comm_all_ok(run_resume_save_options(&run->setup, err), err))
        return EXIT_RUN_FAILED;

    const int built = build_all(run, err);
    if (built != EXIT_OK) return built;

    // The run trains, evaluates and saves, or only measures its steps.
    if (o->profile > 0 && !profile_loop(run, err)) return EXIT_RUN_FAILED;
    if (o->profile == 0 && !loop(run, err)) return EXIT_RUN_FAILED;
    if (!data_parallel_await_weights(run->shared, err)) return EXIT_RUN_FAILED;
    report_all(run);
    if (!signals_pending() && !finish(run, err)) return EXIT_RUN_FAILED;

    const double waited = run->loader ? dataloader_wait_seconds(run->loader) : 0;
    report_end(run->report, waited);
    if (signals_pending()) return EXIT_INTERRUPTED;
    return EXIT_OK;
}

typedef enum {
    ENDED, // all steps are done, or a signal came and the run is saved; with --gpus the processes
           // report
    FAILED_TOGETHER,  // all processes know: process 0 reports it
    FAILED_HERE,      // the other processes do not know, and may be waiting for this one
    FAILED_ELSEWHERE, // another process was lost; watch.h has printed it
} Outcome;

int main(int argc, char **argv) {
    Run run = {.started = now_seconds(), .argv = argv};
    Error err = {""};
    limits_start();
    device_prepare_process(argv);

    const OptionsResult parsed = options_parse(&run.setup.options, argc, argv, &err);
    int code = EXIT_BAD_INPUT;
    if (parsed == OPTIONS_HELP_SHOWN)
        code = EXIT_OK;
    else if (parsed == OPTIONS_RUN && options_check_together(&run.setup.options, &err))
        code = run_all(&run, &err);
    runlog_close(run.log);
    run.log = NULL;

    Outcome outcome = ENDED;
    // The code decides, not the text: a forgiven error may have left a text.
    if (code != EXIT_OK && code != EXIT_INTERRUPTED && *err.text) {
        outcome = FAILED_HERE;
        if (comm_failed_together()) outcome = FAILED_TOGETHER;
    }
    if (watch_has_failed(&err)) outcome = FAILED_ELSEWHERE;
    if (outcome == FAILED_ELSEWHERE) code = EXIT_RUN_FAILED;

    if (outcome == FAILED_HERE || (outcome == FAILED_TOGETHER && comm_rank() == 0))
        format_print(stderr, "%s: %s\n", argv[0], err.text);
    if (outcome == FAILED_HERE || outcome == FAILED_ELSEWHERE) {
        device_comm_abort();
        comm_abort(code);
    }

    close_run(&run);
    return code;
}
