// See report.h. In the order of a run: start, steps, evaluation and saving, end.
#include "llmc/run/report.h"

#include "llmc/base/clock.h"
#include "llmc/base/signals.h"
#include "llmc/comm/comm.h"
#include "llmc/log/run_summary.h"
#include "llmc/model/model_state.h"
#include "llmc/run/report_header.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct Report {
    const RunSetup *setup;
    const Options *options;
    const Model *model;
    RunLog *log;
    RunSummary summary;
    DeviceSpeed speed;
    double started;        // launch
    double peak_flops;     // the denominator of mfu
    bool peak_is_measured; // no datasheet peak is known
    float loss_scale;      // after the last step that was reported
    StepTime step_time;
    char attention[256]; // the implementation of attention that the header names
};

enum { TEXT = 64 };

static bool on_gpu(void) { return strcmp(device_facts()->backend, "cpu") != 0; }

// Logs the min time of these tokens, if that is a second or more. flops: of a token.
static void log_min_time(const Report *r, const char *what, double tokens, double flops) {
    const double rate = r->speed.matmul_flops; // 0: unknown
    const double seconds = tokens / comm_size() * flops / rate;
    if (rate > 0 && seconds >= 1)
        runlog_field(r->log, what, "takes at least %.3g s at the measured matmul rate", seconds);
}

// ------------------------------------------------------------------------------------------- start

bool report_is_silent(const RunSetup *setup) {
    return setup->options.interactive && !isatty(STDOUT_FILENO);
}

// Anything that takes more than a second is announced: on a GPU always, on a CPU from 1 GiB on,
// whose first touch takes that long.
void report_starting(const RunSetup *setup, int64_t bytes, bool measures_speed) {
    char memory[TEXT];
    const char *making = "initialising", *measuring = "";
    if (setup->resume_path || !model_config_is_descriptor(setup->options.model)) making = "reading";
    if (measures_speed) measuring = "measuring its speed, then ";
    if (report_is_silent(setup) || (!on_gpu() && bytes < 1 << 30)) return;
    printf("starting    %s: %sallocating %s and %s the weights\n", device_facts()->name, measuring,
           format_bytes((double)bytes, memory, TEXT), making);
    fflush(stdout);
}

Report *report_open(const RunSetup *setup, const Model *model, RunLog *log, DeviceSpeed speed,
                    double started) {
    Report *r = calloc(1, sizeof *r);
    REQUIRE_MEMORY(r, "the log");
    const double datasheet = device_facts()->peak_flops[setup->dtype];
    *r = (Report){
        .setup = setup,
        .options = &setup->options,
        .model = model,
        .log = log,
        .speed = speed,
        .started = started,
        .peak_flops = speed.matmul_flops,
        .peak_is_measured = datasheet <= 0,
        .loss_scale = setup->state.control.loss_scale,
    };
    if (datasheet > 0) r->peak_flops = datasheet;
    DeviceSensors sensors; // where the energy of the run is counted from
    if (device_sensors(&sensors)) run_summary_energy(&r->summary, sensors.energy_joules);
    const ReportFacts facts = {setup, model, log, speed, r->peak_flops, datasheet};
    if (!report_is_silent(setup)) report_header(&facts);
    snprintf(r->attention, sizeof r->attention, "%s", device_facts()->attention);
    if (setup->resume_path) report_differences(&facts);
    return r;
}

void report_close(Report *r) {
    if (r) run_summary_free(&r->summary);
    free(r);
}

// ------------------------------------------------------------------------------------------- steps

void report_first_step(const Report *r) {
    const RunSetup *s = r->setup;
    if (on_gpu())
        runlog_field(r->log, "first step",
                     "loads kernels and measures which to use; it takes longer than the others");
    else
        log_min_time(r, "first step", (double)(s->step_windows * s->T),
                     flops_per_token_hardware(&s->config, s->T, &s->recompute));
}

static void after_first_step(Report *r, const StepControl *control) {
    char measured[TEXT], planned[TEXT], left[TEXT];
    const long long peak = (long long)device_memory_peak(),
                    arena = (long long)memory_plan_total(model_memory(r->model));
    const double expected = log((double)r->setup->config.V);

    if (!r->setup->resume_path && model_config_is_descriptor(r->options->model) &&
        fabs(control->loss - expected) > 0.5)
        runlog_field(r->log, "warning",
                     "the first loss is %.3f; with new weights it should be near ln(V) = %.3f",
                     control->loss, expected);

    runlog_field(r->log, "memory", "measured %s, planned %s; first step done %.2f s after launch",
                 format_bytes((double)peak, measured, TEXT),
                 format_bytes((double)arena, planned, TEXT), now_seconds() - r->started);
    const size_t rest = device_memory_free(); // a GPU's libraries have taken theirs by now
    if (on_gpu())
        runlog_field(r->log, "", "%s of the GPU still free",
                     format_bytes((double)rest, left, TEXT));
    runlog_event(r->log, "memory", "\"measured\":%lld,\"planned\":%lld,\"free\":%zu", peak, arena,
                 rest);
    if (strcmp(r->attention, device_facts()->attention) !=
        0) // the first step has measured which is faster
        runlog_field(r->log, "attention", "%s", device_facts()->attention);
}

void report_step(Report *r, StepRecord *record) {
    const RunSetup *s = r->setup;
    const StepControl *control = record->control;
    const Partition *partition = model_partition(r->model);
    if (record->step == 0) return;
    device_event_wait(record->stop);

    const char *bad_tensor = NULL; // a part of the gradient norm belongs to a parameter
    if (control->bad_tensor >= 0 && control->bad_tensor < partition->num_norm_parts)
        bad_tensor =
            model_parameters(r->model)[partition->norm_parts[control->bad_tensor].parameter].name;
    StepReport line = {
        .step = record->step,
        .total = s->total_steps,
        .control = *control,
        .last_loss_scale = r->loss_scale,
        .bad_tensor = bad_tensor,
        .lr = record->lr,
        .seconds = device_event_seconds(record->start, record->stop),
        .tokens = (double)(s->step_windows * s->T),
    };

    r->loss_scale = control->loss_scale;
    const double tokens_per_second = line.tokens / line.seconds;
    // of all processes: the tokens of this device
    const double each = tokens_per_second / comm_size();
    const double model_flops = each * flops_per_token_llmc(&s->config, s->T);
    const double all_flops = each * flops_per_token_hardware(&s->config, s->T, &s->recompute);
    const double step_flops = fmax(model_flops, all_flops);

    // Nothing is faster than its limit: a step that seems to be shows that the machine was busy
    // when that was measured.
    if (r->peak_is_measured && r->peak_flops > 0 && step_flops > r->peak_flops) {
        DeviceSpeed now;
        Error ignored;
        r->peak_flops = step_flops;
        if (speed_measure(s->dtype, 0, &now, &ignored))
            r->peak_flops = fmax(step_flops, now.matmul_flops);
        runlog_field(r->log, "limits", "matmul now %.4g TFLOP/s: the machine was busy before",
                     r->peak_flops / 1e12);
    }

    if (r->peak_flops > 0) { // of each device; 0: unknown
        line.mfu = model_flops / r->peak_flops;
        line.hfu = all_flops / r->peak_flops;
    }
    step_time_add(&r->step_time, line.seconds);
    line.eta_seconds = r->step_time.mean * (double)(s->total_steps - record->step);

    runlog_step(r->log, &line);
    run_summary_step(&r->summary, line.seconds, line.tokens, line.mfu);
    if (record->step == s->first_step + 1) after_first_step(r, control);
    DeviceSensors sensors;
    const int64_t every = r->options->log_gpu_every;
    if (every > 0 && record->step % every == 0 && device_sensors(&sensors))
        runlog_sensors(r->log, record->step, &sensors);
    record->step = 0;
}

// --------------------------------------------------------------------------- evaluation and saving

void report_validating(const Report *r) {
    const RunSetup *s = r->setup;
    int64_t windows = 0;
    for (int i = 0; i < s->data.val.mixture.count; i++) {
        const int64_t all = s->data.val.sets[i].num_windows;
        windows += min_i64(all, positive_or(r->options->val_sequences, all));
    }
    if (s->state.step == s->first_step)
        log_min_time(r, "validating", (double)(windows * s->T),
                     flops_per_token_llmc(&s->config, s->T) / 3);
}

void report_validation(Report *r, const ValidationScore *score, const ValidationScore *each,
                       double seconds) {
    const int64_t step = r->setup->state.step;
    run_summary_validation(&r->summary, step, score->loss);
    runlog_validation(r->log, step, score, &r->setup->data.val.mixture, each, seconds);
}

void report_generated(Report *r, const Generated *drawn, bool shown) {
    const bool alone = r->options->max_steps == 0;
    const bool again = drawn->cut && !alone; // a resumed run draws it again, in full
    for (int64_t i = 0; i < drawn->samples && !again; i++)
        runlog_sample(r->log, r->setup->state.step, drawn->texts[i], drawn->bytes[i], shown,
                      drawn->cut);

    if (drawn->prompt_cut > 0)
        runlog_field(r->log, "prompt",
                     "longer than the context: the last %lld tokens are used, %lld are dropped",
                     (long long)drawn->prompt_tokens, (long long)drawn->prompt_cut);
    if (drawn->slides > 0)
        runlog_field(r->log, "context",
                     "filled %lld time%s; each time the text continued from its last half",
                     (long long)drawn->slides, format_plural(drawn->slides));

    double rate = 0;
    if (drawn->decode_seconds > 0 && drawn->new_tokens > drawn->samples)
        rate = (double)(drawn->new_tokens - drawn->samples) / drawn->decode_seconds;
    if (alone)
        runlog_field(r->log, "generated",
                     "%lld tokens after a prompt of %lld; prompt %.0f ms, then %.1f tokens/s",
                     (long long)drawn->new_tokens, (long long)drawn->prompt_tokens,
                     drawn->prompt_seconds * 1e3, rate);
}

void report_tuning(Report *r, const char *tuning) {
    const char *old = r->setup->state.tuning;
    char *quoted = NULL;
    size_t bytes;
    if (!tuning || !*tuning || (old && strcmp(old, tuning) == 0)) return;
    FILE *out = text_open(&quoted, &bytes);
    format_json_string(out, tuning, strlen(tuning));
    fclose(out);
    runlog_event(r->log, "tuning", "\"tuning\":%s", quoted);
    free(quoted);
}

// --------------------------------------------------------------------------------------------- end

void report_end(Report *r, double wait_seconds) {
    const RunSetup *s = r->setup;
    const long long step = (long long)s->state.step, total = (long long)s->total_steps,
                    steps = step - s->first_step;
    DeviceSensors sensors;
    char tokens[TEXT], time[TEXT];
    if (report_is_silent(s)) return;
    if (device_sensors(&sensors)) run_summary_energy(&r->summary, sensors.energy_joules);

    const char *next = *r->options->output ? "resume with -o and -y" : "nothing was saved (no -o)";
    if (signals_pending())
        runlog_text(r->log, "stopped by %s after step %lld; %s", signals_name(signals_pending()),
                    step, next);
    else if (r->options->max_steps != 0 && steps == 0 && r->options->profile == 0)
        runlog_field(r->log, "done",
                     "nothing to do: the run is at step %lld of %lld; a larger -x continues it, "
                     "such as -x %lld",
                     step, total, 2 * step);
    else if (r->options->max_steps != 0)
        runlog_field(r->log, "done", "%lld steps, %s tokens in %s%s", steps,
                     format_count((double)(steps * s->step_windows * s->T), tokens, TEXT),
                     format_duration(now_seconds() - r->started, time, TEXT),
                     step < total ? " (time limit; resume with -o and -y)" : "");
    run_summary_print(&r->summary, r->log);

    // The tokens that the whole run has read from each source of a mixture.
    const Mixture *m = &s->data.train.mixture;
    int64_t drawn[MIXTURE_MAX];
    char *sources = NULL, *summary = run_summary_json(&r->summary);
    size_t bytes;
    FILE *out = text_open(&sources, &bytes);
    const bool mixes = s->data.has_train && m->count > 1;
    const char *before = ",\"sources\":[";

    if (mixes) mixture_count(m, s->state.position, drawn);
    for (int i = 0; mixes && i < m->count; i++) {
        const double read = (double)(drawn[i] * s->T),
                     epochs = (double)drawn[i] / (double)s->data.train.sets[i].num_windows;
        runlog_field(r->log, "", "%s: %s tokens, %.2f epochs of the whole run", m->names[i],
                     format_count(read, tokens, TEXT), epochs);
        fprintf(out, "%s{\"name\":", before);
        before = ",";
        format_json_string(out, m->names[i], strlen(m->names[i]));
        fprintf(out, ",\"windows\":%lld,\"tokens\":%.17g,\"epochs\":%.6g}", (long long)drawn[i],
                read, epochs);
    }
    if (mixes) fputc(']', out);
    fclose(out);

    runlog_event(r->log, "end",
                 "\"step\":%lld,\"seconds\":%.3f,\"memory_peak\":%lld,\"memory_planned\":%lld,"
                 "\"wait_seconds\":%.4f%s%s",
                 step, now_seconds() - r->started, (long long)device_memory_peak(),
                 (long long)memory_plan_total(model_memory(r->model)), wait_seconds, summary,
                 sources);
    free(summary);
    free(sources);
}
