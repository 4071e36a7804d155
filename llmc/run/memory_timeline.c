// --memory-timeline: the arena of a plan as one JSON object, a rectangle for each tensor: its ticks and its addresses.
// Pictures of it are drawn by scripts/plot_memory.py, which is run here for a .png or .html, and by hand to lay two
// plans side by side. Nothing is taken from anywhere but the plan.
#include "llmc/base/format.h"
#include "llmc/base/json.h"
#include "llmc/base/own_file.h"
#include "llmc/base/typed_path.h"
#include "llmc/model/parameters.h"
#include "llmc/run/planner.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <spawn.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

extern char **environ;

static bool ends_in(const char *path, const char *end) {
    const size_t n = strlen(path), k = strlen(end);
    return n > k && strcmp(path + n - k, end) == 0;
}

bool timeline_check(const Options *o, Error *err) {
    const char *path = o->memory_timeline;
    if (!*path) return true;
    if (strchr(o->gpu, ','))
        return error_set(err, "--memory-timeline: a picture is of one GPU, but --gpu %.80s names several", o->gpu);
    return ends_in(path, ".png") || ends_in(path, ".html") || ends_in(path, ".json") ||
           error_set(err, "--memory-timeline %.200s: the name must end in .png, .html or .json", path);
}

// --------------------------------------------------------------------------------------------------------- the object

static int last_tick(const MemoryPlan *plan) {
    int last = 0;
    for (int i = 0; i < memory_plan_count(plan); i++)
        last = memory_plan_tensor(plan, i).last_use > last ? memory_plan_tensor(plan, i).last_use : last;
    return last;
}

static void add_tensors(cJSON *timeline, const MemoryPlan *plan) {
    cJSON *tensors = cJSON_AddArrayToObject(timeline, "tensors");
    for (int i = 0; i < memory_plan_count(plan); i++) {
        const PlannedTensor t = memory_plan_tensor(plan, i);
        const bool always = t.first_use == PLAN_ALWAYS;
        if (t.bytes == 0) continue;
        cJSON *tensor = cJSON_CreateObject();
        cJSON_AddItemToArray(tensors, tensor);
        JSON_ADD(tensor, JSON_TEXT("name", t.name),
                 JSON_TEXT("kind",
                           always ? memory_class_name(t.memory_class) : activation_kind_name(activation_kind(t.name))),
                 JSON_NUMBER("offset", memory_plan_offset(plan, i)), JSON_NUMBER("bytes", t.bytes),
                 JSON_NUMBER("first", always ? 0 : t.first_use),
                 JSON_NUMBER("last", always ? last_tick(plan) : t.last_use), JSON_BOOL("always", always));
    }
}

static char *timeline_json(const DevicePlan *p) {
    const Gpt2Options *m = &p->model;
    char shape[128], set[RECOMPUTE_TEXT], parameters[32], tick[TICK_NAME];
    MemoryPlan *plan = gpt2_plan(m);
    cJSON *timeline = cJSON_CreateObject();
    JSON_ADD(timeline, JSON_TEXT("memory_timeline", "pretrain.cu 1"),
             JSON_TEXT("device", p->gpu.spec.name ? p->gpu.spec.name : device_facts()->name),
             JSON_TEXT("model", model_config_text(&m->config, m->T, shape, sizeof shape)),
             JSON_TEXT("parameters", format_count((double)parameter_total(&m->config), parameters, sizeof parameters)),
             JSON_NUMBER("B", m->B), JSON_NUMBER("T", m->T),
             JSON_TEXT("recompute", recompute_text(&m->recompute, m->config.L, set, sizeof set)),
             JSON_TEXT("dtype", dtype_name(m->dtype)), JSON_NUMBER("gpus", p->gpus),
             JSON_TEXT("optimizer", m->train ? optimizer_name(m->optimizer) : ""),
             JSON_BOOL("master", optimizer_keeps_master(m->optimizer, m->master, m->dtype)),
             JSON_TEXT("gradients", m->gradients_in_dtype ? dtype_name(m->dtype) : "fp32"), JSON_BOOL("fits", p->fits),
             JSON_NUMBER("room", p->room), JSON_NUMBER("total", memory_plan_total(plan)),
             JSON_NUMBER("peak", memory_plan_live_peak(plan)), JSON_NUMBER("peak_tick", memory_plan_peak_tick(plan)));
    cJSON *ticks = cJSON_AddArrayToObject(timeline, "ticks");
    for (int t = 0; t <= last_tick(plan); t++)
        cJSON_AddItemToArray(ticks, cJSON_CreateString(gpt2_tick_name(&m->config, t, tick)));
    add_tensors(timeline, plan);
    memory_plan_destroy(plan);
    char *text = cJSON_PrintUnformatted(timeline);
    REQUIRE_MEMORY(text, "the timeline");
    cJSON_Delete(timeline);
    return text;
}

// -------------------------------------------------------------------------------------------------------- the picture

// Runs the script, whose error is one line on stderr.
static bool run_script(const char *script, const char *json, const char *path, Error *err) {
    char *const arguments[] = {(char *)script, (char *)json, "-o", (char *)path, NULL};
    char said[300] = "";
    int fds[2], status = -1;
    pid_t child;
    posix_spawn_file_actions_t actions;
    if (pipe(fds) != 0) return error_set(err, "%s: %s", script, strerror(errno));
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_adddup2(&actions, fds[1], STDERR_FILENO);
    posix_spawn_file_actions_addopen(&actions, STDOUT_FILENO, "/dev/null", O_WRONLY, 0);
    posix_spawn_file_actions_addclose(&actions, fds[0]);
    fflush(stdout);
    const int failed = posix_spawn(&child, script, &actions, NULL, arguments, environ);
    posix_spawn_file_actions_destroy(&actions);
    close(fds[1]);
    FILE *f = fdopen(fds[0], "r");
    while (f && !failed && fgets(said, sizeof said, f)) // the last line: of a traceback it is the reason
        said[strcspn(said, "\n")] = '\0';
    if (f) fclose(f);
    if (failed) return error_set(err, "%s: %s", script, strerror(failed));
    if (waitpid(child, &status, 0) == child && status == 0) {
        if (*said) format_print(stderr, "%s\n", said); // a file was moved aside
        return true;
    }
    return error_set(err, "%s", *said ? said : "scripts/plot_memory.py failed");
}

bool timeline_write(const PlanRequest *r, Error *err) {
    const char *path = r->options->memory_timeline;
    char script[PATH_MAX], json[PATH_MAX];
    GpuChoice gpu = {0};
    DevicePlan *plan = calloc(1, sizeof *plan);
    REQUIRE_MEMORY(plan, "a plan");
    const bool is_json = ends_in(path, ".json");
    snprintf(json, sizeof json, is_json ? "%s" : "%s.tmp-%d.json", path, (int)getpid());
    bool ok = (is_json || path_find_tool("scripts/plot_memory.py", script) ||
               error_set(err, "scripts/plot_memory.py, which draws it, is not above this program; write a .json")) &&
              (!*r->options->gpu || gpu_find(&gpu, r->options->gpu, strlen(r->options->gpu), err));
    if (ok) {
        planner_device(plan, r, *r->options->gpu ? &gpu : NULL);
        char *text = timeline_json(plan);
        ok = own_file_write(json, "pretrain.cu 1", text, strlen(text), err) &&
             (is_json || run_script(script, json, path, err));
        if (!is_json) unlink(json);
        free(text);
    }
    free(plan);
    if (ok && r->options->plan == PLAN_TEXT)
        format_print(stdout, "plan        drawn: %s\n", path); // after JSON nothing may follow
    return ok || error_prefix(err, "--memory-timeline %s", path);
}
