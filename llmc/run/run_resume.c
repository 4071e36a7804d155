// See run_resume.h.
#include "llmc/run/run_resume.h"

#include "llmc/base/atomic_file.h"
#include "llmc/base/directory.h"
#include "llmc/base/directory_lock.h"
#include "llmc/base/file.h"
#include "llmc/base/format.h"
#include "llmc/base/json.h"
#include "llmc/base/own_file.h"
#include "llmc/base/path.h"
#include "llmc/base/path_reason.h"
#include "llmc/run/advice.h"
#include "llmc/run/processes.h"
#include "llmc/store/checkpoint.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

static const char OPTIONS_FILE[] = "options.json"; // in the directory of -o
enum { MAX_OPTIONS_BYTES = 16 << 20 };             // it may hold a long prompt
static const char OPTIONS_MARK[] = "\"train-data\":\"", OPTIONS_SEAL_MARK[] = ",\n  \"xxh3\": \"";

// The object in an options.json, malloced; its checksum is verified and left out.
static char *read_remembered(const char *path, Error *err) {
    size_t bytes;
    char *text = file_read_all(path, MAX_OPTIONS_BYTES, &bytes, err);
    if (!text) return NULL;
    if (!json_check_seal(text, bytes, err)) {
        error_prefix(err, "%s", path);
        free(text);
        return NULL;
    }
    memcpy(text + bytes - JSON_SEAL_BYTES, "}", 2);
    return text;
}

// Adopts the directory in which the run was begun from its options.json, if it has one. Returns the
// text of that file, malloced; NULL: there is none that is whole.
static char *take_begun_directory(Options *o, const char *run) {
    char *path = path_join(run, OPTIONS_FILE), *json = NULL;
    Error unread;
    if (file_exists(path)) {
        json = read_remembered(path, &unread);
        cJSON *then = json ? json_parse(json, strlen(json), &unread) : NULL;
        if (then) {
            options_adopt_directory(o, then);
        } else {
            advice_print("%s; where the run was begun is not known", unread.text);
            free(json);
            json = NULL;
        }
        cJSON_Delete(then);
    }
    free(path);
    return json;
}

// The options in force: those of the newest checkpoint, or those that options.json remembers of a
// later command, which began at that checkpoint and ended before the next.
static bool adopt_latest(RunSetup *s, Error *err) {
    char *remembered = take_begun_directory(&s->options, s->options.output);
    // a network file system may show an older one elsewhere
    if (!processes_share_text(&remembered, err)) return false;
    cJSON *later = remembered ? cJSON_Parse(remembered) : NULL;
    const cJSON *start = cJSON_GetObjectItemCaseSensitive(later, OPTIONS_START);
    const bool is_later = cJSON_IsNumber(start) && start->valuedouble >= (double)s->state.step;
    const char *json = is_later ? remembered : s->state.options_json;
    const bool ok = options_adopt_json(&s->options, json, false, err);

    Options *o = &s->options;
    cJSON *then = cJSON_Parse(json);
    const cJSON *rate = cJSON_GetObjectItemCaseSensitive(then, "learning-rate");
    // Earlier versions kept -l auto, which was the optimizer's rate at 124M.
    if (cJSON_IsNumber(rate) && rate->valuedouble < 0 && o->lr < 0 &&
        !options_given(o, "learning-rate"))
        o->lr = optimizer_default_learning_rate(o->optimizer);

    cJSON_Delete(then);
    cJSON_Delete(later);
    free(remembered);
    return ok;
}

// -y weights begins the optimizer's state anew, once: a checkpoint that the same command, started
// again, has saved has that state already. -y repeats one that ended before it saved a checkpoint.
static void choose_state(RunSetup *s) {
    Options *o = &s->options;
    char *command = options_command(o), *saved = NULL;
    if (s->resume_path) saved = options_state_command(s->state.options_json);
    const bool has_state = s->resume_path && s->state.optimizer == o->optimizer;

    if (o->resume == RESUME_WEIGHTS && has_state && saved && strcmp(saved, command) == 0) {
        o->resume = RESUME_ALL;
        advice_print("-y weights: step %lld already has the state that this command began; the run "
                     "continues with it",
                     (long long)s->state.step);
    } else if (o->resume == RESUME_WEIGHTS) {
        options_set_string(&o->state_command, command);
    } else if (s->resume_path && o->state_command &&
               strcmp(o->state_command, saved ? saved : "") != 0) {
        const bool goes_back = options_given(o, "optimizer") && s->state.optimizer == o->optimizer;
        if (!goes_back) o->resume = RESUME_WEIGHTS;
    }

    free(saved);
    free(command);
}

// A run that ended before its first checkpoint restarts from its beginning with its original
// options.
static bool adopt_remembered(RunSetup *s, Error *err) {
    char *path = path_join(s->options.output, OPTIONS_FILE);
    // A file in which one mark is damaged is still ours.
    const bool known = own_file_is(path, OPTIONS_MARK) || own_file_is(path, OPTIONS_SEAL_MARK);
    const int reason = errno;

    char *json = NULL;
    bool ok = true;
    if (known) {
        json = read_remembered(path, err);
        ok = json != NULL;
        if (json) ok = options_adopt_json(&s->options, json, false, err);
        if (json && !ok) error_prefix(err, "%s", path);
        if (!json) error_set(err, "%.700s; remove it, and give the options again", err->text);
    } else if (reason != 0) {
        ok = error_set(err, "%s: cannot be read: %s", path, path_reason(path, reason).text);
    }

    if (ok)
        advice_print("-y 1: no checkpoint in %s yet; starting from the beginning%s%s",
                     s->options.output, known ? " with the options in " : "", known ? path : "");
    s->state.seed = (uint64_t)s->options.seed;
    free(json);
    free(path);
    return ok;
}

bool run_resume_save_options(const RunSetup *s, Error *err) {
    const Options *o = &s->options;
    // nothing to save there
    if (!*o->output || o->max_steps == 0 || o->profile > 0 || comm_rank() > 0) return true;

    // A mark of a shorter run.
    if (s->first_step < s->total_steps) checkpoint_unmark_done(o->output);
    char *path = path_join(o->output, OPTIONS_FILE), *json = options_to_json(o, true),
         *sealed = NULL;
    // The seal takes the place of the brace.
    REQUIRE_MEMORY(asprintf(&sealed, "%.*s,\"%s\":%lld%*s", (int)strlen(json) - 1, json,
                            OPTIONS_START, (long long)s->first_step, JSON_SEAL_BYTES, "") >= 0,
                   "the options");
    const size_t body = strlen(sealed) - JSON_SEAL_BYTES;
    json_make_seal(sealed + body, sealed, body);
    const bool ok = own_file_write(path, OPTIONS_MARK, sealed, body + JSON_SEAL_BYTES, err);

    free(sealed);
    free(json);
    free(path);
    return ok;
}

// Locks the directory for this process and sets resume_path to the newest checkpoint in it that
// verifies, if this is a resume.
static bool find_checkpoint(RunSetup *s, Error *err) {
    const Options *o = &s->options;
    if (!directory_check_writable(o->output, err)) return error_prefix(err, "-o");
    if (!o->plan) { // a plan changes nothing there
        s->existing = directory_existing(o->output);
        if (!directory_make(o->output, err)) return error_prefix(err, "-o");
        s->is_locked = !directory_hold(o->output, &s->lock, err);
        if (s->is_locked) return error_prefix(err, "-o %s", o->output);
        checkpoint_clean(o->output);
        char *path = path_join(o->output, OPTIONS_FILE);
        atomic_file_clean(path);
        free(path);
    }

    bool exists;
    if (!o->resume) {
        if (!checkpoint_exists(o->output, &exists, err)) return false;
        if (exists && o->max_steps != 0)
            return error_set(err,
                             "-o %s: contains checkpoints of an earlier run; resume with -y 1, or "
                             "name another directory",
                             o->output);
        return true;
    }

    char *skipped = NULL, size[64];
    const double bytes = checkpoint_newest_bytes(o->output);
    if (bytes >= 0x1p30) // more than a second
        advice_print("-y 1: checking the newest checkpoint in %s, %s", o->output,
                     format_bytes(bytes, size, 64));
    err->text[0] = '\0';
    const bool found = checkpoint_find_latest(o->output, &s->resume_path, &skipped, err);
    const bool damaged = skipped != NULL;
    if (damaged) advice_print_lines(skipped);
    free(skipped);

    if (found) return true;
    if (err->text[0]) return false;
    if (damaged)
        return error_set(
            err,
            "-y 1: no checkpoint in %s is intact; repair them, or move them away to start over",
            o->output);
    return true;
}

// -o and -y: a fresh directory, or the newest checkpoint in it that verifies.
bool run_resume_lock(RunSetup *s, Error *err) {
    const Options *o = &s->options;
    s->state.seed = (uint64_t)o->seed;
    s->state.best_val_loss = s->state.learning_rate = INFINITY;
    s->state.eot = -1;
    s->state.control = step_control_initial(1.0f);

    // -e CHECKPOINT -x 0: the checkpoint is evaluated at its step, on the data of its run unless -j
    // names others. Imported weights have no step and no data of their own.
    TrainerState state;
    Error none;
    if (o->max_steps == 0 && !o->resume && checkpoint_load_state(o->model, &state, &none)) {
        s->state.step = state.step;
        char *run = path_parent(o->model);
        free(take_begun_directory(&s->options, run));
        free(run);
        options_adopt_json(&s->options, state.options_json, true, &none);
        trainer_state_free(&state);
    }

    if (!*o->output) return true;
    // process 0 has the directory
    if (!comm_all_ok(comm_rank() > 0 || find_checkpoint(s, err), err)) return false;
    if (!processes_share_text(&s->resume_path, err)) return false;
    if (!s->resume_path && o->resume && !adopt_remembered(s, err)) return false;
    if (s->resume_path && !checkpoint_load_state(s->resume_path, &s->state, err)) return false;
    if (s->resume_path && !adopt_latest(s, err)) return false;

    choose_state(s);
    if (s->state.seed != (uint64_t)o->seed)
        return error_set(
            err, "--seed %lld: the run in %s was started with --seed %lld and resumes only with it",
            (long long)o->seed, o->output, (long long)s->state.seed);
    return true;
}
