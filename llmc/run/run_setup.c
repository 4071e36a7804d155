// See run_setup.h. In the order in which things are decided: each function reads what those before
// it have set, and names the option that is wrong.
#include "llmc/run/run_setup.h"

#include "llmc/base/arithmetic.h"
#include "llmc/base/directory_lock.h"
#include "llmc/base/file.h"
#include "llmc/base/format.h"
#include "llmc/base/path.h"
#include "llmc/base/typed_path.h"
#include "llmc/log/profile.h"
#include "llmc/plan/advise.h"
#include "llmc/plan/plan_fit.h"
#include "llmc/plan/plan_memory.h"
#include "llmc/plan/plan_print.h"
#include "llmc/run/advice.h"
#include "llmc/run/largest.h"
#include "llmc/run/options_together.h"
#include "llmc/run/processes.h"
#include "llmc/store/optimizer_file.h"
#include "llmc/store/trainer_json.h"
#include "llmc/store/weights_file.h"
#include "llmc/text/tokenizer_find.h"
#include "llmc/train/generate.h"
#include <ctype.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

// Where llm.c's script and data/get.py put it.
static const char HELLASWAG[] = "data/hellaswag/hellaswag_val.bin";

// -e: the shape of the model; V stays 0 where a descriptor leaves it to the data.
static bool choose_model(RunSetup *s, Error *err) {
    const Options *o = &s->options;
    const char *path = s->resume_path ? s->resume_path : o->model;
    // A word that is neither: the message of the descriptors lists all that -e may be.
    const bool descriptor = model_config_is_descriptor(o->model) ||
                            (!s->resume_path && !strchr(o->model, '/') && !file_exists(o->model));
    ModelConfig asked = {0};
    if (descriptor && !model_config_parse(&asked, o->model, err)) return error_prefix(err, "-e");

    // The words that the run was begun with fit it, whatever they said then.
    const bool is_other = s->resume_path && options_given(o, "model") &&
                          options_differ(o, s->state.options_json, "model");
    if (is_other && !descriptor)
        return error_set(err,
                         "-e %s: the run in %s has weights of its own and continues with them; "
                         "leave out -e, or name "
                         "another -o",
                         o->model, o->output);

    if (descriptor && !s->resume_path) {
        s->config = asked;
        model_config_set_d_ff(&s->config, o->d_ff);
        if (!model_config_check(&s->config, err))
            return error_prefix(err, "--d-ff %lld", (long long)o->d_ff);
        snprintf(s->source, sizeof s->source, "%s, new weights from seed %lld", o->model,
                 (long long)o->seed);
        return true;
    }

    WeightsFile *file = weights_file_open(path, err);
    if (!file && !s->resume_path) error_prefix(err, "-e");
    if (!file) return false;
    s->config = *weights_file_config(file);
    if (s->state.eot < 0) s->state.eot = weights_file_eot(file);
    const bool is_whole = weights_file_check_rest(file, err); // now, before the data are looked for
    weights_file_close(file);
    if (!is_whole && !s->resume_path) error_prefix(err, "-e");
    if (!is_whole) return false;
    snprintf(s->source, sizeof s->source, "weights from %s", path);

    const ModelConfig *c = &s->config;
    char shape[MODEL_DESCRIPTOR];
    asked.eps = c->eps; // no descriptor states it
    if (is_other &&
        (asked.L != c->L || asked.C != c->C || asked.NH != c->NH || asked.max_T != c->max_T ||
         (asked.V && asked.V != c->V) || !model_same_block(&asked, c)))
        return error_set(err, "-e %s: the run in %s has a different shape (%s)", o->model,
                         o->output, model_config_descriptor(c, shape));
    // The run stays what it was begun with.
    if (is_other && !options_take_back(&s->options, s->state.options_json, "model", err))
        return false;

    const int64_t d_ff = model_size(c, DIM_FF),
                  wanted = positive_or(o->d_ff, model_default_d_ff(c));
    if (options_given(o, "d-ff") && wanted != d_ff)
        return error_set(err, "--d-ff %lld: the weights in %s have d_ff = %lld; leave it out",
                         (long long)o->d_ff, path, (long long)d_ff);
    return true;
}

static bool choose_context(RunSetup *s, Error *err) {
    const int64_t longest = s->config.max_T;
    s->T = positive_or(s->options.T, min_i64(longest, 1024));
    if (s->T > longest)
        return error_set(err, "-t %lld: longer than the model's context of %lld tokens",
                         (long long)s->T, (long long)longest);

    if (s->resume_path && s->T != s->state.T)
        return error_set(
            err, "-t %lld: the run in %s reads windows of %lld tokens and resumes only with them",
            (long long)s->T, s->options.output, (long long)s->state.T);
    return true;
}

// --dtype: what this device trains fastest in, or what was asked for.
static bool choose_dtype(RunSetup *s, Error *err) {
    s->dtype = s->options.dtype;
    if (s->dtype == DTYPE_COUNT) s->dtype = device_facts()->default_dtype;
    if (!device_facts()->supports[s->dtype])
        return error_set(err, "--dtype %s: not available on %s; use %s", dtype_name(s->dtype),
                         device_facts()->name, dtype_name(device_facts()->default_dtype));
    return true;
}

// A plan may be for more processes than there are.
static int process_count(const Options *o) {
    if (o->plan && o->gpus > 1) return o->gpus;
    return comm_size();
}

const char *run_setup_weights(const RunSetup *s) {
    if (s->resume_path) return s->resume_path;
    if (model_config_is_descriptor(s->options.model)) return NULL;
    return s->options.model;
}

ModelOptions run_setup_model(const RunSetup *s) {
    const Options *o = &s->options;
    int64_t group_windows = 0, sequences = 0;
    if (o->total_batch > 0)
        group_windows = ceil_div(o->total_batch / s->T, max_i64(o->reduce_groups, 1));
    if (o->sample_every > 0 || o->interactive) sequences = o->samples;

    return (ModelOptions){
        .config = s->config,
        .dtype = s->dtype,
        .master = o->master != 0,
        .train = o->max_steps != 0,
        .B = o->B,
        .T = s->T,
        .recompute = s->recompute,
        .optimizer = o->optimizer,
        .gradients_in_dtype = o->grad_dtype == GRADIENTS_COMPUTE && s->dtype != DTYPE_FP32,
        .seed = s->state.seed,
        .offload = o->offload == OFFLOAD_OPTIMIZER,
        .fp8 = o->fp8 != 0,
        .numerics = o->numerics_every > 0,
        .groups = o->reduce_groups,
        .group_count = o->reduce_groups / process_count(o),
        .processes = process_count(o),
        .rank = comm_rank(),
        .divided = o->zero_stage > 0,
        .group_windows = group_windows,
        .sequences = sequences,
    };
}

// --optimizer: as in the checkpoint, unless -y weights starts a new state.
static bool choose_optimizer(RunSetup *s, Error *err) {
    const Options *o = &s->options;
    const char *of_head = NULL;
    if (strstr(o->by_group, parameter_group_name(GROUP_HEAD))) of_head = "--by-group";
    if (options_given(o, "lr-head")) of_head = "--lr-head";
    if (of_head && !s->config.untied)
        return error_set(err,
                         "%s: the head of this model is its embedding; use --lr-embedding, or "
                         "embedding in --by-group",
                         of_head);

    if (!s->resume_path || o->max_steps == 0) return true;
    const bool starts_new = o->resume == RESUME_WEIGHTS;
    if (starts_new) s->state.control.updates = 0;
    if (!starts_new && !optimizer_file_check(s->state.optimizer, o->optimizer, err))
        return error_prefix(err, "%s", s->resume_path);
    return true;
}

static bool check_processes(const Options *o, Error *err) {
    const char *launcher = o->plan ? "--gpus" : comm_launcher();
    if (process_count(o) != 1 && o->interactive)
        return error_set(err, "--interactive: answers prompts in one process; %s started %d",
                         launcher, process_count(o));
    return true;
}

// --tokens auto or --ratio, and -d auto: from the size of the model. What is chosen is a number in
// the options, which a checkpoint keeps; only a --ratio changes it afterwards.
static void choose_tokens(RunSetup *s) {
    Options *o = &s->options;
    double ratio = recipe_ratio(o->optimizer);
    if (o->ratio > 0) ratio = o->ratio;
    const bool by_ratio = o->ratio > 0 && o->tokens == 0;
    const double of_model = ceil(ratio * recipe_parameters(&s->config));
    if (o->max_steps == 0) return;
    if (o->tokens < 0 && options_given(o, "max-steps")) o->tokens = 0;
    if (o->tokens < 0 || by_ratio) {
        o->tokens = s->recipe[RECIPE_TOKENS] = of_model;
        options_mark_chosen(o, "tokens");
    }

    if (o->total_batch >= 0) return;
    double tokens = of_model;
    if (o->tokens > 0) tokens = o->tokens;
    const double batch = recipe_batch(&s->config, o->optimizer, tokens, ratio);
    o->total_batch = recipe_step_windows(batch, s->T, o->reduce_groups, o->B) * s->T;
    s->recipe[RECIPE_BATCH] = (double)o->total_batch;
    options_mark_chosen(o, "total-batch");
}

// -l auto, and with Muon --lr-embedding and --lr-vectors, and -c auto. steps 0: not known, for a
// plan.
static void choose_rates(RunSetup *s, double step_tokens, double steps) {
    Options *o = &s->options;
    const bool is_muon = o->optimizer == OPTIMIZER_MUON;
    if (o->max_steps == 0) return;
    if (o->lr < 0) {
        o->lr = s->recipe[RECIPE_RATE] =
            recipe_learning_rate(&s->config, o->optimizer, step_tokens);
        options_mark_chosen(o, "learning-rate");
    }

    const bool follows_size = is_muon && options_chosen(o, "learning-rate");
    if (follows_size && o->lr_embedding < 0) {
        o->lr_embedding = s->recipe[RECIPE_EMBEDDING] =
            recipe_embedding_rate(&s->config, step_tokens);
        options_mark_chosen(o, "lr-embedding");
    }
    if (follows_size && o->lr_vectors < 0) {
        o->lr_vectors = s->recipe[RECIPE_VECTORS] = recipe_vector_rate(step_tokens);
        options_mark_chosen(o, "lr-vectors");
    }

    if (o->weight_decay >= 0) return;
    const double rate = options_learning_rate(o);
    o->weight_decay = s->recipe[RECIPE_DECAY] = recipe_weight_decay(o->optimizer, rate, steps);
    options_mark_chosen(o, "weight-decay");

    if (!is_muon || *o->by_group) return;
    s->recipe[RECIPE_EMBEDDING_DECAY] = RECIPE_DECAY_OF_EMBEDDINGS;
    const char *decays = "embedding.decay=0.01";
    if (s->config.untied) decays = "embedding.decay=0.01,head.decay=0.01";
    options_set_string(&o->by_group, decays);
    options_mark_chosen(o, "by-group");
}

// -b and -r: divides the memory of the device between batch and activations.
static bool choose_memory(RunSetup *s, Error *err) {
    Options *o = &s->options;
    char text[RECOMPUTE_TEXT];
    if (o->reduce_groups == 0) o->reduce_groups = process_count(o);
    choose_tokens(s);

    ModelOptions model = run_setup_model(s);
    const int64_t most = model.group_windows;
    const bool divides = o->B == 0 && s->recipe[RECIPE_BATCH] > 0;
    const bool automatic = o->B == 0 || strcmp(o->recompute, "auto") == 0;
    double room = plan_room(automatic);
    // the processes of a machine share it
    if (strcmp(device_facts()->backend, "cpu") == 0) room /= comm_local_size();

    if (!comm_all_ok(model_check_options(&model, err) && check_processes(o, err), err) ||
        !processes_min(&room, err) || !plan_fit(&model, o->B == 0, o->recompute, room, most, err) ||
        (divides && !plan_fit_divisor(&model, o->recompute, room, err)))
        return false;

    o->B = model.B; // a checkpoint states the choice
    s->recompute = model.recompute;
    recompute_text(&s->recompute, s->config.L, text, sizeof text);
    if (o->gelu_fusion > 0 && recompute_gelu_alone(&s->recompute, s->config.L))
        return error_set(
            err,
            "-ge %d and -r %s: GELU fused into a matmul cannot be recomputed with the same "
            "bits; leave out -ge, or use fc or block in -r instead of gelu",
            o->gelu_fusion, text);
    options_set_string(&o->recompute, text);
    return true;
}

// -b, -d, -x and -u: how much is read a step, and how many steps there are.
static bool choose_lengths(RunSetup *s, Error *err) {
    const Options *o = &s->options;
    const int64_t total_batch = positive_or(o->total_batch, o->B * s->T * o->reduce_groups);
    if (!options_check_total_batch(total_batch, s->T, err)) return false;
    s->step_windows = total_batch / s->T;
    if (o->max_steps != 0 && !step_share_make(&s->share, s->step_windows, o->B, o->reduce_groups,
                                              comm_rank(), comm_size(), err))
        return false;

    s->total_steps = o->max_steps;
    if (o->max_steps < 0) s->total_steps = s->data.train.num_windows / s->step_windows;
    if (o->tokens > 0) s->total_steps = (int64_t)ceil(o->tokens / (double)(s->step_windows * s->T));
    if (s->total_steps < 1 && o->max_steps != 0) s->total_steps = 1;
    if (o->profile > 0 && o->max_steps == 0)
        return error_set(err, "--profile: -x 0 runs no step; leave out -x 0");
    if (o->profile > 0) s->total_steps = s->state.step + profile_total_steps(o->profile);

    choose_rates(s, (double)(s->step_windows * s->T), (double)s->total_steps);
    if (!options_rates(o, s->rates, err)) return false;
    int64_t warmup = o->warmup;
    if (warmup < 0) warmup = optimizer_default_warmup(o->optimizer, s->total_steps);
    s->schedule = (Schedule){.kind = o->schedule,
                             .max_lr = options_learning_rate(o),
                             .final_fraction = o->final_fraction,
                             .warmup = warmup,
                             .total = s->total_steps};
    return true;
}

static bool choose_tokenizer(RunSetup *s, Error *err) {
    const Options *o = &s->options;
    const char *weights = run_setup_weights(s);
    const Sources none = {.eot = -1}, *data = &none;
    if (s->data.has_val) data = &s->data.val;
    if (s->data.train.num_shards > 0) data = &s->data.train;

    char *const *patterns = data->mixture.patterns;
    if (!tokenizer_find(&s->tokenizer, o->tokenizer, weights, patterns[0], data->vocab, s->config.V,
                        err)) {
        if (*o->tokenizer) advice_add_directories(o, "tokenizer", err);
        return false;
    }

    for (int i = 1; i < data->mixture.count;
         i++) { // the one next to another source of a mixture must be the same
        Tokenizer *other;
        if (!tokenizer_find(&other, o->tokenizer, weights, patterns[i], data->vocab, s->config.V,
                            err))
            return false;
        const bool same = !other || !s->tokenizer ||
                          tokenizer_fingerprint(other) == tokenizer_fingerprint(s->tokenizer);
        tokenizer_free(other);
        if (!same)
            return error_set(err,
                             "%s: the tokenizer next to it differs from that of %s; make them with "
                             "one tokenizer",
                             path_quoted(patterns[i]).text, path_quoted(patterns[0]).text);
    }

    if (s->tokenizer && s->state.eot < 0) s->state.eot = tokenizer_eot(s->tokenizer);
    if (s->tokenizer && tokenizer_vocab(s->tokenizer) + VOCAB_PADDING < s->config.V)
        advice_print("%s has %lld tokens, but the model has a vocabulary of %lld; if it is not the "
                     "model's tokenizer, name "
                     "that with --tokenizer",
                     tokenizer_name(s->tokenizer), (long long)tokenizer_vocab(s->tokenizer),
                     (long long)s->config.V);
    if (generate_prompt_ends_in_space(s->tokenizer, o->prompt))
        advice_print("--prompt: it ends in a space, which is part of the next word's token; better "
                     "without it");

    const char *needs_it = NULL;
    if (*o->prompt) needs_it = "--prompt";
    if (o->interactive) needs_it = "--interactive";
    if (!s->tokenizer && needs_it)
        return error_set(err,
                         "%s: no tokenizer for the model's vocabulary of %lld tokens was found; "
                         "name one with --tokenizer",
                         needs_it, (long long)s->config.V);
    return true;
}

// Reads the other files of the weights' directory.
static bool choose_extras(RunSetup *s, Error *err) {
    const char *weights = run_setup_weights(s);
    struct stat st;
    if (weights && stat(weights, &st) == 0 && S_ISDIR(st.st_mode) &&
        !model_extras_read(&s->extras, weights, s->tokenizer, s->config.V, err))
        return false;
    const HuggingFaceModel m = {.eot = s->state.eot, .extras = &s->extras};
    s->num_ends = huggingface_ends(&m, s->ends);
    return true;
}

// --choices 1 or GLOB, and :N.
static bool open_choices(RunSetup *s, Error *err) {
    const Options *o = &s->options;
    const char *colon = strrchr(o->choices, ':');
    const bool has_limit =
        colon && isdigit((unsigned char)colon[1]) && !colon[1 + strspn(colon + 1, "0123456789")];
    char *files = strdup(o->choices);
    const char *name = "--choices";
    REQUIRE_MEMORY(files, "a path");

    if (has_limit) {
        files[colon - o->choices] = '\0';
        s->choice_examples = strtoll(colon + 1, NULL, 10);
    }
    if (strcmp(files, "1") == 0) {
        free(files);
        files = path_typed_in(o->directory, HELLASWAG);
        name = "-h 1";
    }

    const bool is_none = !*files || strcmp(files, "0") == 0;
    bool ok = true;
    if (!is_none) {
        ok = choices_open(&s->choices, files, s->config.V, err);
        if (!ok) advice_add_directories(o, "choices", err);
        if (ok) ok = choices_fit(&s->choices, s->T, err);
    }
    free(files);
    if (!ok) return error_prefix(err, "%s", name);
    return true;
}

// --export PATH[:DTYPE].
static bool choose_export(RunSetup *s, Error *err) {
    const Options *o = &s->options;
    const char *colon = strrchr(o->export, ':');
    if (!*o->export) return true;

    const bool has_dtype = colon && !strchr(colon, '/');
    const char *dtype = "fp32";
    s->export_path = strdup(o->export);
    REQUIRE_MEMORY(s->export_path, "a path");
    if (has_dtype) {
        s->export_path[colon - o->export] = '\0';
        dtype = colon + 1;
    }

    s->export_type = export_type_of(dtype);
    if (s->export_type == EXPORT_TYPES)
        return error_set(err, "--export %s: %s is not fp32, bf16, fp16 or q8_0", o->export, dtype);
    if (*s->export_path && strcmp(s->export_path, o->output) == 0)
        return error_set(err,
                         "--export %s: checkpoints are saved there (-o); name another directory",
                         o->output);
    if (path_is_same(s->export_path, o->model))
        return error_set(
            err, "--export %s: the model is read from there (-e); name another file or directory",
            s->export_path);
    return export_check(s->export_path, s->export_type, &s->config, s->tokenizer, err);
}

// Restores the choices that bits depend on, or reports that they differ here.
static void restore_tuning(const char *tuning) {
    if (device_restore_tuning(tuning)) return;
    if (strcmp(device_facts()->backend, "cpu") != 0) {
        advice_print("-y 1: this run chose its matmuls and attention for another GPU, driver or "
                     "library; they are "
                     "chosen again here, and bits may differ from the original run");
        return;
    }
    char *here = device_tuning();
    const int length = (int)strcspn(tuning, "\n"); // a GPU has more lines
    advice_print("-y 1: this run was computed by %.*s, here it is %s: bits will differ from the "
                 "original run; to repeat "
                 "them, resume with the processor, oneDNN, PRETRAIN_CPU and --threads that it had",
                 length, tuning, here);
    free(here);
}

bool run_setup_resolve(RunSetup *s, Error *err) {
    s->first_step = s->state.step;
    s->first_skipped = s->state.control.skipped;
    if (s->resume_path) restore_tuning(s->state.tuning);

    // A file may be missing on one machine only: the processes agree after each part.
    if (!comm_all_ok(choose_model(s, err) && choose_context(s, err) &&
                         run_data_open(&s->data, &s->options, s->T, &s->config, &s->state, err) &&
                         choose_dtype(s, err) && choose_optimizer(s, err),
                     err) ||
        !comm_all_ok(choose_memory(s, err), err) ||
        !comm_all_ok(choose_lengths(s, err) && choose_tokenizer(s, err) && choose_extras(s, err) &&
                         open_choices(s, err) && (comm_rank() > 0 || choose_export(s, err)),
                     err))
        return false;

    // Processes that read other data would train another model each.
    const Sources *const data[] = {&s->data.train, &s->data.val};
    char texts[2][64], sizes[128];
    for (int i = 0; i < 2; i++)
        snprintf(texts[i], sizeof texts[i], "%lld tokens (checksum %016llx)",
                 (long long)data[i]->num_tokens, (unsigned long long)data[i]->fingerprint);
    snprintf(sizes, sizeof sizes, "B=%lld T=%lld, %lld sequences a step, %lld steps from %lld",
             (long long)s->options.B, (long long)s->T, (long long)s->step_windows,
             (long long)s->total_steps, (long long)s->first_step);
    const CommFact facts[] = {
        {"-i", texts[0]}, {"-j", texts[1]}, {"-e", s->source}, {"sizes", sizes}};
    return comm_agree(facts, sizeof facts / sizeof *facts, err);
}

// For a plan that was asked what auto stands for.
static void print_recipe(RunSetup *s, double step_tokens) {
    const Options *o = &s->options;
    const bool asks = s->recipe[RECIPE_TOKENS] > 0 || s->recipe[RECIPE_BATCH] > 0 ||
                      o->weight_decay < 0 || (o->lr < 0 && options_given(o, "learning-rate"));
    double tokens = fmax(0, (double)o->max_steps) * step_tokens;
    char line[RECIPE_TEXT];
    if (!asks) return;
    if (o->tokens > 0) tokens = o->tokens;
    choose_rates(s, step_tokens, ceil(tokens / step_tokens));
    for (int i = 0; i < RECIPE_COUNT; i++)
        if (s->recipe[i] > 0)
            printf("recipe      %s\n",
                   recipe_line((RecipeNumber)i, s->recipe[i], &s->config, o->optimizer, line));
}

// Prints the kind of plan that was asked for. The sources of -i are named in it, but not opened.
static bool print_plan(RunSetup *s, PlanRequest *request, double step_tokens, Error *err) {
    Options *o = &s->options;
    Mixture train = {0}, val = {0};
    request->data = &train;
    bool ok = mixture_parse(&train, o->train_data, err);
    if (!ok) error_prefix(err, "-i");
    if (ok) {
        ok = mixture_parse(&val, o->val_data, err);
        if (!ok) error_prefix(err, "-j");
    }

    if (ok && o->plan == PLAN_TEXT && o->hours == 0) print_recipe(s, step_tokens);
    if (ok && o->hours > 0)
        ok = largest_print(o, request, err);
    else if (ok && (o->plan == PLAN_SIZES || o->plan == PLAN_D_FF))
        ok = advise_print(stdout, request, o->plan == PLAN_D_FF, err);
    else if (ok)
        ok = plan_print(stdout, request, o->plan == PLAN_JSON, err);

    mixture_free(&train);
    mixture_free(&val);
    return ok;
}

// --plan: no data is opened, and no memory taken.
bool run_setup_plan(RunSetup *s, Error *err) {
    Options *o = &s->options;
    if (o->hours > 0 && !largest_take(o, err)) return false;
    const bool elsewhere = *o->gpu != '\0'; // what this machine lacks is no matter
    s->dtype = o->dtype;
    if (!choose_model(s, err) || !choose_context(s, err)) return false;
    if (elsewhere && !gpu_check_types(o->gpu, o->dtype, o->fp8, err)) return false;
    if (!elsewhere && !choose_dtype(s, err)) return false;
    // the dtype for GPUs; this machine may prefer another
    if (o->dtype == DTYPE_COUNT) s->dtype = DTYPE_BF16;

    if (s->config.V == 0) model_config_set_vocab(&s->config, GPT2_VOCAB);
    if (o->reduce_groups == 0) o->reduce_groups = process_count(o);
    if (o->hours == 0) choose_tokens(s);
    if (o->total_batch > 0 && !options_check_total_batch(o->total_batch, s->T, err)) return false;

    // 0: a micro-batch of each group
    const int64_t step_windows = max_i64(o->total_batch, 0) / s->T;
    PlanRequest request = {.model = run_setup_model(s),
                           .step_windows = step_windows,
                           .recompute = o->recompute,
                           .tokens = fmax(0, o->tokens),
                           .divides = s->recipe[RECIPE_BATCH] > 0,
                           .max_steps = o->max_steps,
                           .gpus = o->gpu,
                           .attention = o->attention,
                           .gelu_fusion = o->gelu_fusion,
                           .comm_overlap = options_environment("PRETRAIN_COMM_OVERLAP") != 0};

    const PlannedSizes of_gpu = {0};
    ModelOptions checked = request.model;
    if (elsewhere) checked.sizes = &of_gpu;
    const int64_t B = max_i64(o->B, 1), windows = positive_or(step_windows, B * o->reduce_groups);
    StepShare share; // only a check that the processes could share a step
    if (!check_processes(o, err) ||
        (o->max_steps != 0 &&
         !step_share_make(&share, windows, B, o->reduce_groups, 0, process_count(o), err)) ||
        !model_check_options(&checked, err))
        return false;

    char *repeated = options_repeated(o);
    if (repeated) advice_print("given twice, the last counts: %s", repeated);
    free(repeated);
    return print_plan(s, &request, (double)(windows * s->T), err);
}

OptimizerOptions run_setup_optimizer(const RunSetup *s) {
    const Options *o = &s->options;
    OptimizerOptions optimizer = {
        .momentum = (float)o->momentum,
        .seed = s->state.seed,
        .limits = {.clip = (float)o->grad_clip,
                   .loss_z_limit = (float)o->loss_outlier,
                   .norm_z_limit = (float)o->norm_outlier,
                   .scale_growth_interval = optimizer_scale_growth_interval(s->dtype)},
    };
    memcpy(optimizer.rates, s->rates, sizeof s->rates);
    return optimizer;
}

DataLoaderOptions run_setup_loader(const RunSetup *s) {
    return (DataLoaderOptions){
        .sources = &s->data.train,
        .vocab = s->config.V,
        .batch_windows = s->options.B,
        .step_windows = s->step_windows,
        .groups = s->share.groups,
        .first_group = s->share.first,
        .group_count = s->share.count,
        .position = s->state.position,
        .seed = s->state.seed,
        .shuffle = true,
        .repeat_first_step = s->options.overfit != 0,
    };
}

GenerateOptions run_setup_generate(const RunSetup *s) {
    const Options *o = &s->options;
    return (GenerateOptions){
        .tokenizer = s->tokenizer,
        .prompt = o->prompt,
        .samples = o->samples,
        .tokens = o->sample_tokens,
        .stop_at_eot = o->max_steps == 0 || o->interactive,
        .ends = s->ends,
        .num_ends = s->num_ends,
        .sampler = {.temperature = o->temperature,
                    .top_k = o->top_k,
                    .top_p = o->top_p,
                    .seed = s->state.seed,
                    .stream = (uint64_t)s->state.step},
    };
}

void run_setup_close(RunSetup *s) {
    tokenizer_free(s->tokenizer);
    model_extras_free(&s->extras);
    choices_close(&s->choices);
    free(s->export_path);
    run_data_close(&s->data);
    trainer_state_free(&s->state);
    free(s->resume_path);
    if (s->lock > 0) directory_release(s->options.output, s->lock, s->existing);
    options_free(&s->options);
}
