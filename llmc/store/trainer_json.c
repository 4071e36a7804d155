// trainer.json: everything besides tensors that a run needs to resume with the same bits, and the manifest: size and
// checksum of the other files. Its fields are described in doc/file_formats.md.
#include "llmc/base/arithmetic.h"
#include "llmc/base/atomic_file.h"
#include "llmc/base/file.h"
#include "llmc/base/json.h"
#include "llmc/store/checkpoint.h"
#include <ctype.h>
#include <errno.h>
#include <float.h>
#include <math.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

enum {
    FORMAT_VERSION = 2,
    UNSEALED_FORMAT = 1,          // the previous format: without a checksum of the file itself
    MAX_TRAINER_BYTES = 16 << 20, // the options may hold a long prompt
    SEAL_BYTES = 33,
};

// The end of a file: the checksum of all bytes before it. So every byte of the file is either covered or fixed.
static void make_seal(char seal[SEAL_BYTES + 1], const char *text, size_t bytes) {
    const int n =
        snprintf(seal, SEAL_BYTES + 1, ",\n  \"xxh3\": \"%016llx\"\n}\n", (unsigned long long)XXH3_64bits(text, bytes));
    REQUIRE(n == SEAL_BYTES, "the seal has %d bytes", n);
}

// The scalar fields of StepControl.
static const struct {
    const char *name;
    size_t offset;
} control_floats[] = {
    {"loss", offsetof(StepControl, loss)},
    {"norm", offsetof(StepControl, norm)},
    {"grad_factor", offsetof(StepControl, grad_factor)},
    {"loss_z", offsetof(StepControl, loss_z)},
    {"norm_z", offsetof(StepControl, norm_z)},
    {"loss_scale", offsetof(StepControl, loss_scale)},
};
static const struct {
    const char *name;
    size_t offset;
    int32_t min, max;
} control_ints[] = {
    {"skip", offsetof(StepControl, skip), SKIP_NONE, SKIP_NORM_OUTLIER},
    {"bad_tensor", offsetof(StepControl, bad_tensor), -1, INT32_MAX},
    {"skipped", offsetof(StepControl, skipped), 0, INT32_MAX},
    {"good_steps", offsetof(StepControl, good_steps), 0, INT32_MAX},
};
enum {
    NUM_FLOATS = sizeof control_floats / sizeof control_floats[0],
    NUM_INTS = sizeof control_ints / sizeof control_ints[0],
};

// ----------------------------------------------------------------------------------------------------------- writing

static void print_window(FILE *out, const char *name, const OutlierWindow *w) {
    char text[40];
    fprintf(out, ",\n    \"%s\": {\"count\": %d, \"next\": %d, \"values\": [", name, (int)w->count, (int)w->next);
    for (int i = 0; i < OUTLIER_WINDOW; i++)
        fprintf(out, "%s%s", i ? ", " : "", json_format_double((double)w->values[i], 9, text, sizeof text));
    fputs("]}", out);
}

static void print_control(FILE *out, const StepControl *control) {
    char text[40];
    fputs("  \"control\": {", out);
    for (int i = 0; i < NUM_FLOATS; i++) {
        float value = *(const float *)((const char *)control + control_floats[i].offset);
        fprintf(out, "%s\n    \"%s\": %s", i ? "," : "", control_floats[i].name,
                json_format_double((double)value, 9, text, sizeof text));
    }
    for (int i = 0; i < NUM_INTS; i++)
        fprintf(out, ",\n    \"%s\": %d", control_ints[i].name,
                (int)*(const int32_t *)((const char *)control + control_ints[i].offset));
    fprintf(out, ",\n    \"micro_steps\": %u,\n    \"updates\": %d", (unsigned)control->micro_steps,
            (int)control->updates);
    print_window(out, "loss_window", &control->loss_window);
    print_window(out, "norm_window", &control->norm_window);
    fputs("\n  },\n", out);
}

static void print_data(FILE *out, const TrainerState *state) {
    const struct {
        const char *name;
        DataFacts facts;
    } sets[] = {{"train", state->train}, {"val", state->val}};
    const char *comma = "";
    fputs("  \"data\": {", out);
    for (int i = 0; i < 2; i++) {
        if (sets[i].facts.tokens == 0) continue;
        fprintf(out, "%s\"%s\": {\"tokens\": %lld, \"xxh3\": \"%016llx\"}", comma, sets[i].name,
                (long long)sets[i].facts.tokens, (unsigned long long)sets[i].facts.fingerprint);
        comma = ", ";
    }
    fputs("},\n", out);
}

static void print_state(FILE *out, const TrainerState *state, const ModelOptions *model) {
    const ModelConfig *config = &model->config;
    char loss[40] = "null";
    if (!isinf(state->best_val_loss)) json_format_double(state->best_val_loss, 17, loss, sizeof loss);
    fprintf(out, "  \"format\": %d,\n  \"step\": %lld,\n  \"position\": %lld,\n  \"T\": %lld,\n", FORMAT_VERSION,
            (long long)state->step, (long long)state->position, (long long)state->T);
    fprintf(out, "  \"seed\": \"%llu\",\n  \"best_val_loss\": %s,\n  \"eot\": %lld,\n", (unsigned long long)state->seed,
            loss, (long long)state->eot);
    fprintf(out, "  \"model\": {\"max_T\": %lld, \"V\": %lld, \"L\": %lld, \"NH\": %lld, \"C\": %lld",
            (long long)config->max_T, (long long)config->V, (long long)config->L, (long long)config->NH,
            (long long)config->C);
    if (config->d_ff) fprintf(out, ", \"d_ff\": %lld", (long long)config->d_ff); // 4 C otherwise
    fputs("},\n", out);
    fprintf(out, "  \"optimizer\": \"%s\",\n", optimizer_name(model->optimizer));
    print_data(out, state);
    print_control(out, &state->control);
    fprintf(out, "  \"options\": %s,\n", state->options_json ? state->options_json : "{}");
    cJSON *tuning = cJSON_CreateString(state->tuning ? state->tuning : "");
    char *text = tuning ? cJSON_PrintUnformatted(tuning) : NULL;
    REQUIRE_MEMORY(text != NULL, "trainer.json");
    fprintf(out, "  \"tuning\": %s,\n", text);
    cJSON_Delete(tuning);
    free(text);
}

static void print_manifest(FILE *out, const FileFacts *facts) {
    const char *comma = "";
    fputs("  \"files\": {", out);
    for (int i = 0; i < CHECKPOINT_FILES; i++) {
        if (facts[i].bytes < 0) continue;
        fprintf(out, "%s\n    \"%s\": {\"bytes\": %lld, \"xxh3\": \"%016llx\"}", comma, checkpoint_file_name(i),
                (long long)facts[i].bytes, (unsigned long long)facts[i].checksum);
        comma = ",";
    }
    fputs("\n  }", out);
}

bool trainer_json_write(const char *path, const TrainerState *state, const ModelOptions *model,
                        const FileFacts facts[CHECKPOINT_FILES], Error *err) {
    if (state->options_json) { // text from outside must not make an unreadable checkpoint
        cJSON *options = json_parse(state->options_json, strlen(state->options_json), err);
        if (!options) return error_prefix(err, "%s: the options", path);
        cJSON_Delete(options);
    }
    char *text = NULL;
    size_t bytes = 0;
    FILE *out = text_open(&text, &bytes);
    fputs("{\n", out);
    print_state(out, state, model);
    print_manifest(out, facts);
    fflush(out); // updates text and bytes
    char seal[SEAL_BYTES + 1];
    make_seal(seal, text, bytes);
    fputs(seal, out);
    fclose(out);
    const bool ok = file_write_atomic(path, text, bytes, err);
    free(text);
    return ok;
}

// ----------------------------------------------------------------------------------------------------------- reading

static bool read_float(const cJSON *item, float *value) {
    double d;
    if (!json_double_value(item, &d) || (isfinite(d) && fabs(d) > (double)FLT_MAX)) return false;
    *value = (float)d;
    return true;
}

// A ring: until it is full, the next value is appended to the existing ones. Only finite values are ever stored.
static bool read_window(const cJSON *control, const char *name, OutlierWindow *w, Error *err) {
    static const char *const keys[] = {"count", "next", "values", NULL};
    const cJSON *window, *values;
    int64_t count, next;
    if (!json_get_object(control, name, &window, err)) return false;
    if (!json_check_keys(window, keys, err) || !json_get_int(window, "count", 0, OUTLIER_WINDOW, &count, err) ||
        !json_get_int(window, "next", count < OUTLIER_WINDOW ? count : 0,
                      count < OUTLIER_WINDOW ? count : OUTLIER_WINDOW - 1, &next, err) ||
        !json_get_array(window, "values", OUTLIER_WINDOW, &values, err))
        return error_prefix(err, "\"%s\"", name);
    w->count = (int32_t)count, w->next = (int32_t)next;
    const cJSON *item = values->child;
    for (int i = 0; i < OUTLIER_WINDOW; i++, item = item->next)
        if (!read_float(item, &w->values[i]) || !isfinite(w->values[i]))
            return error_set(err, "\"%s\": value %d is not a finite float", name, i);
    return true;
}

// For fields that older checkpoints lack: *value is unchanged if the field is absent.
static bool read_later_int(const cJSON *object, const char *key, int64_t min, int64_t max, int64_t *value, Error *err) {
    const cJSON *item;
    if (!json_find(object, key, &item, err)) return false;
    return !item || json_get_int(object, key, min, max, value, err);
}

static bool read_optimizer(const cJSON *root, TrainerState *state, Error *err) {
    const cJSON *item;
    char found[64];
    state->optimizer = OPTIMIZER_ADAMW;
    if (!json_find(root, "optimizer", &item, err)) return false;
    return !item || (cJSON_IsString(item) && optimizer_parse(&state->optimizer, item->valuestring, NULL)) ||
           error_set(err, "\"optimizer\" is %s, which this version does not know",
                     json_describe(item, found, sizeof found));
}

// Checkpoints of older versions have none.
static bool read_tuning(const cJSON *root, TrainerState *state, Error *err) {
    const cJSON *item;
    const char *text = "";
    if (!json_find(root, "tuning", &item, err) || (item && !json_get_string(root, "tuning", &text, err))) return false;
    state->tuning = strdup(text);
    REQUIRE_MEMORY(state->tuning != NULL, "the tuning");
    return true;
}

static bool check_control_keys(const cJSON *control, Error *err) {
    const char *keys[NUM_FLOATS + NUM_INTS + 5] = {"micro_steps", "updates", "loss_window",
                                                   "norm_window"}; // and a NULL
    for (int i = 0; i < NUM_FLOATS; i++) keys[4 + i] = control_floats[i].name;
    for (int i = 0; i < NUM_INTS; i++) keys[4 + NUM_FLOATS + i] = control_ints[i].name;
    return json_check_keys(control, keys, err) || error_prefix(err, "\"control\"");
}

// Values that persist from step to step must be values that step_control_decide can produce.
static bool check_control(const StepControl *c, int64_t step, Error *err) {
    const struct {
        const char *name;
        double value, max;
    } most[] = {{"loss_scale", (double)c->loss_scale, 0x1p24},
                {"skipped", (double)c->skipped, (double)step},
                {"good_steps", (double)c->good_steps, (double)step}};
    for (size_t i = 0; i < sizeof most / sizeof *most; i++)
        if (!(most[i].value <= most[i].max))
            return error_set(err, "\"%s\" is %.17g, expected at most %.17g", most[i].name, most[i].value, most[i].max);
    return c->loss_scale > 0.0f ||
           error_set(err, "\"loss_scale\" is %g, expected a positive number", (double)c->loss_scale);
}

// Older checkpoints state in `root` at which step the optimizer's state began, or nothing if at 0. The updates made
// since then include skipped steps, as they did when those checkpoints were written.
static bool read_updates(const cJSON *root, const cJSON *control, int64_t step, int32_t *updates, Error *err) {
    int64_t start = 0;
    if (!read_later_int(root, "optimizer_start", 0, step, &start, err)) return false;
    int64_t value = min_i64(step - start, INT32_MAX);
    if (!read_later_int(control, "updates", 0, min_i64(step, INT32_MAX), &value, err)) return false;
    *updates = (int32_t)value;
    return true;
}

static bool read_control(const cJSON *root, int64_t step, StepControl *c, Error *err) {
    const cJSON *control, *item;
    if (!json_get_object(root, "control", &control, err) || !check_control_keys(control, err)) return false;
    for (int i = 0; i < NUM_FLOATS; i++) {
        const char *name = control_floats[i].name;
        if (!json_find(control, name, &item, err)) return false;
        if (!read_float(item, (float *)((char *)c + control_floats[i].offset)))
            return error_set(err, "\"%s\" of \"control\" is missing or not a float", name);
    }
    for (int i = 0; i < NUM_INTS; i++) {
        int64_t value;
        if (!json_get_int(control, control_ints[i].name, control_ints[i].min, control_ints[i].max, &value, err))
            return false;
        *(int32_t *)((char *)c + control_ints[i].offset) = (int32_t)value;
    }
    int64_t micro_steps = 0;
    if (!read_later_int(control, "micro_steps", 0, UINT32_MAX, &micro_steps, err)) return false;
    c->micro_steps = (uint32_t)micro_steps;
    return read_updates(root, control, step, &c->updates, err) && check_control(c, step, err) &&
           read_window(control, "loss_window", &c->loss_window, err) &&
           read_window(control, "norm_window", &c->norm_window, err);
}

// Digits of a 64-bit number in a string, because JSON numbers are doubles.
static bool read_u64(const cJSON *object, const char *key, int base, uint64_t *value, Error *err) {
    const char *text;
    if (!json_get_string(object, key, &text, err)) return false;
    char *end;
    errno = 0;
    *value = strtoull(text, &end, base);
    if (isxdigit((unsigned char)*text) && *end == '\0' && errno == 0) return true;
    const cJSON *item;
    char found[64];
    json_find(object, key, &item, NULL);
    return error_set(err, "\"%s\" is %s, expected a 64-bit number in base %d", key,
                     json_describe(item, found, sizeof found), base);
}

static bool read_best_val_loss(const cJSON *root, double *value, Error *err) {
    const cJSON *item;
    if (!json_find(root, "best_val_loss", &item, err)) return false;
    *value = (double)INFINITY;
    if (cJSON_IsNull(item)) return true;
    return json_get_double(root, "best_val_loss", value, err) &&
           ((isfinite(*value) && *value >= 0.0) ||
            error_set(err, "\"best_val_loss\" is %g, expected a finite number of at least 0", *value));
}

// The shape, which config.json states too. It is for display only, but must still be sensible.
static bool check_model(const cJSON *root, Error *err) {
    static const char *const keys[] = {"max_T", "V", "L", "NH", "C", "d_ff", NULL};
    const cJSON *model, *d_ff;
    int64_t ignored;
    if (!json_get_object(root, "model", &model, err)) return false;
    bool ok = json_check_keys(model, keys, err) && json_find(model, "d_ff", &d_ff, err);
    for (int i = 0; ok && keys[i] && (d_ff || strcmp(keys[i], "d_ff") != 0); i++)
        ok = json_get_int(model, keys[i], 1, INT32_MAX, &ignored, err);
    return ok || error_prefix(err, "\"model\"");
}

// Older checkpoints do not state this, and checkpoints of runs without validation do not state val.
static bool read_data(const cJSON *root, TrainerState *state, Error *err) {
    static const char *const names[] = {"train", "val", NULL}, *const keys[] = {"tokens", "xxh3", NULL};
    DataFacts *facts[] = {&state->train, &state->val};
    const cJSON *data, *set;
    if (!json_find(root, "data", &data, err)) return false;
    if (!data) return true;
    bool ok = json_get_object(root, "data", &data, err) && json_check_keys(data, names, err);
    for (int i = 0; ok && names[i]; i++) {
        ok = json_find(data, names[i], &set, err);
        if (!ok || !set) continue;
        ok = json_get_object(data, names[i], &set, err) && json_check_keys(set, keys, err) &&
             json_get_int(set, "tokens", 1, JSON_MAX_INT, &facts[i]->tokens, err) &&
             read_u64(set, "xxh3", 16, &facts[i]->fingerprint, err);
    }
    return ok || error_prefix(err, "\"data\"");
}

static bool read_facts(const cJSON *files, int i, FileFacts *facts, Error *err) {
    static const char *const keys[] = {"bytes", "xxh3", NULL};
    const cJSON *file;
    const bool optional = i == HF_TOKENIZER || i == HF_TOKENIZER_CONFIG;
    *facts = (FileFacts){.bytes = -1};
    if (!json_find(files, checkpoint_file_name(i), &file, err)) return false;
    if (!file && optional) return true;
    return json_get_object(files, checkpoint_file_name(i), &file, err) && json_check_keys(file, keys, err) &&
           json_get_int(file, "bytes", 0, JSON_MAX_INT, &facts->bytes, err) &&
           read_u64(file, "xxh3", 16, &facts->checksum, err);
}

static bool read_manifest(const cJSON *root, FileFacts *facts, Error *err) {
    const cJSON *files;
    const char *names[CHECKPOINT_FILES + 1] = {NULL};
    if (!json_get_object(root, "files", &files, err)) return false;
    for (int i = 0; i < CHECKPOINT_FILES; i++) names[i] = checkpoint_file_name(i);
    if (!json_check_keys(files, names, err)) return error_prefix(err, "\"files\"");
    for (int i = 0; i < CHECKPOINT_FILES; i++)
        if (!read_facts(files, i, &facts[i], err)) return error_prefix(err, "\"files\"");
    return true;
}

static bool read_state(const cJSON *root, TrainerState *state, FileFacts *facts, Error *err) {
    static const char *const keys[] = {
        "format",          "step",    "position", "T",      "seed",  "best_val_loss", "eot",  "model", "optimizer",
        "optimizer_start", "control", "options",  "tuning", "files", "data",          "xxh3", NULL};
    const cJSON *options;
    bool ok = json_check_keys(root, keys, err) && json_get_int(root, "step", 0, JSON_MAX_INT, &state->step, err) &&
              json_get_int(root, "position", state->step, JSON_MAX_INT, &state->position, err) &&
              json_get_int(root, "T", 1, INT32_MAX, &state->T, err) && read_u64(root, "seed", 10, &state->seed, err) &&
              read_best_val_loss(root, &state->best_val_loss, err) &&
              json_get_int(root, "eot", -1, INT32_MAX, &state->eot, err) && check_model(root, err) &&
              read_optimizer(root, state, err) && read_control(root, state->step, &state->control, err) &&
              read_data(root, state, err) && read_manifest(root, facts, err) &&
              json_get_object(root, "options", &options, err);
    if (!ok) return false;
    state->options_json = cJSON_PrintUnformatted(options);
    REQUIRE_MEMORY(state->options_json != NULL, "the options");
    return read_tuning(root, state, err);
}

// A file of the unsealed format with a seal is a current file whose format field was damaged.
static bool check_seal(const cJSON *root, const char *text, size_t bytes, Error *err) {
    const size_t body = bytes > SEAL_BYTES ? bytes - SEAL_BYTES : 0;
    char seal[SEAL_BYTES + 1];
    int64_t format;
    if (!json_get_int(root, "format", UNSEALED_FORMAT, FORMAT_VERSION, &format, err)) return false;
    if (format == UNSEALED_FORMAT)
        return !cJSON_GetObjectItemCaseSensitive(root, "xxh3") ||
               error_set(err, "\"xxh3\" is stated, but format %d has none", UNSEALED_FORMAT);
    make_seal(seal, text, body);
    return memcmp(text + body, seal, bytes - body) == 0 ||
           error_set(err, "damaged: its bytes have the checksum %016llx, but it ends with another",
                     (unsigned long long)XXH3_64bits(text, body));
}

bool trainer_json_read(const char *path, TrainerState *state, FileFacts facts[CHECKPOINT_FILES], Error *err) {
    *state = (TrainerState){0};
    size_t bytes = 0;
    char *text = file_read_all(path, MAX_TRAINER_BYTES, &bytes, err);
    if (!text) return false;
    cJSON *root = json_parse_content(path, text, bytes, err);
    const bool ok = root && ((check_seal(root, text, bytes, err) && read_state(root, state, facts, err)) ||
                             error_prefix(err, "%s", path));
    cJSON_Delete(root);
    free(text);
    return ok;
}

void trainer_state_free(TrainerState *state) {
    free(state->options_json);
    free(state->tuning);
    state->options_json = state->tuning = NULL;
}
