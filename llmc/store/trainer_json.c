// See trainer_json.h. Tables of fields, by which objects are both written and read.
#include "llmc/store/trainer_json.h"

#include "llmc/base/arithmetic.h"
#include "llmc/base/atomic_file.h"
#include "llmc/base/file.h"
#include "llmc/base/format.h"
#include "llmc/base/json.h"
#include "llmc/store/optimizer_file.h"

#include <ctype.h>
#include <errno.h>
#include <float.h>
#include <math.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    FORMAT_VERSION = 2,
    MAX_TRAINER_BYTES = 16 << 20, // the options may hold a long prompt
    MAX_SOURCES = 1024,           // with those that a run has left out
};

const char *checkpoint_file_name(int file) {
    if (file == CHECKPOINT_OPTIMIZER) return OPTIMIZER_FILE_NAME;
    return huggingface_files[file].name;
}

// ------------------------------------------------------------------------------------------------ the tables of fields

typedef enum {
    FIELD_INT64,
    FIELD_INT32,
    FIELD_UINT32,
    FIELD_FLOAT,   // 9 digits, or "nan", "inf", "-inf"
    FIELD_LOSS,    // a double of at least 0; null: infinity
    FIELD_DECIMAL, // a 64-bit number as a string, because JSON numbers are doubles
    FIELD_HEX,     // the same in 16 hexadecimal digits
    FIELD_WINDOW,  // OutlierWindow
} FieldType;

typedef struct {
    const char *name;
    FieldType type;
    size_t offset;    // in the struct that the object is read into
    int64_t min, max; // of integers
} TrainerField;

#define FIELD(of, name, type, ...)                                                                                     \
    { #name, type, offsetof(of, name), __VA_ARGS__ }
#define NAMED_FIELD(of, name, member, type, ...)                                                                       \
    { name, type, offsetof(of, member), __VA_ARGS__ }

static const TrainerField state_fields[] = {
    FIELD(TrainerState, step, FIELD_INT64, 0, JSON_MAX_INT),
    FIELD(TrainerState, position, FIELD_INT64, 0, JSON_MAX_INT),
    FIELD(TrainerState, T, FIELD_INT64, 1, INT32_MAX),
    FIELD(TrainerState, seed, FIELD_DECIMAL, 0, 0),
    FIELD(TrainerState, best_val_loss, FIELD_LOSS, 0, 0),
    FIELD(TrainerState, eot, FIELD_INT64, -1, INT32_MAX),
};
// For display only: config.json counts. From d_ff on: where they are not 0, the default.
enum { MODEL_ALWAYS = 5 };
static const TrainerField model_fields[] = {
    FIELD(ModelConfig, max_T, FIELD_INT64, 1, INT32_MAX),     FIELD(ModelConfig, V, FIELD_INT64, 1, INT32_MAX),
    FIELD(ModelConfig, L, FIELD_INT64, 1, INT32_MAX),         FIELD(ModelConfig, NH, FIELD_INT64, 1, INT32_MAX),
    FIELD(ModelConfig, C, FIELD_INT64, 1, INT32_MAX),         FIELD(ModelConfig, d_ff, FIELD_INT64, 1, INT32_MAX),
    FIELD(ModelConfig, NKV, FIELD_INT64, 1, INT32_MAX),       FIELD(ModelConfig, HS, FIELD_INT64, 1, INT32_MAX),
    FIELD(ModelConfig, rope_base, FIELD_INT64, 1, INT32_MAX),
};
static const TrainerField control_fields[] = {
    FIELD(StepControl, loss, FIELD_FLOAT, 0, 0),
    FIELD(StepControl, norm, FIELD_FLOAT, 0, 0),
    FIELD(StepControl, grad_factor, FIELD_FLOAT, 0, 0),
    FIELD(StepControl, loss_z, FIELD_FLOAT, 0, 0),
    FIELD(StepControl, norm_z, FIELD_FLOAT, 0, 0),
    FIELD(StepControl, loss_scale, FIELD_FLOAT, 0, 0),
    FIELD(StepControl, skip, FIELD_INT32, SKIP_NONE, SKIP_NORM_OUTLIER),
    FIELD(StepControl, bad_tensor, FIELD_INT32, -1, INT32_MAX),
    FIELD(StepControl, skipped, FIELD_INT32, 0, INT32_MAX),
    FIELD(StepControl, good_steps, FIELD_INT32, 0, INT32_MAX),
    FIELD(StepControl, micro_steps, FIELD_UINT32, 0, UINT32_MAX),
    FIELD(StepControl, updates, FIELD_INT32, 0, INT32_MAX),
    FIELD(StepControl, loss_window, FIELD_WINDOW, 0, 0),
    FIELD(StepControl, norm_window, FIELD_WINDOW, 0, 0),
};
static const TrainerField data_fields[] = {
    FIELD(DataFacts, tokens, FIELD_INT64, 1, JSON_MAX_INT),
    NAMED_FIELD(DataFacts, "xxh3", fingerprint, FIELD_HEX, 0, 0),
};
static const TrainerField source_fields[] = {
    FIELD(SourceState, weight, FIELD_INT64, 0, JSON_MAX_INT),
    FIELD(SourceState, drawn, FIELD_INT64, 0, JSON_MAX_INT),
    NAMED_FIELD(SourceState, "tokens", facts.tokens, FIELD_INT64, 1, JSON_MAX_INT),
    NAMED_FIELD(SourceState, "xxh3", facts.fingerprint, FIELD_HEX, 0, 0),
};
static const TrainerField file_fields[] = {
    FIELD(FileFacts, bytes, FIELD_INT64, 0, JSON_MAX_INT),
    NAMED_FIELD(FileFacts, "xxh3", checksum, FIELD_HEX, 0, 0),
};
#define COUNT(array) ((int)(sizeof array / sizeof *array))

// ----------------------------------------------------------------------------------------------------------- writing

static void print_fields(FILE *out, const TrainerField *fields, int count, const char *separator, const void *object) {
    for (const TrainerField *f = fields; f < fields + count; f++) {
        const void *at = (const char *)object + f->offset;
        const OutlierWindow *window = at;
        char text[40];
        fprintf(out, "%s\"%s\": ", f > fields ? separator : "", f->name);
        switch (f->type) {
        case FIELD_INT64:
            fprintf(out, "%lld", (long long)*(const int64_t *)at);
            break;
        case FIELD_INT32:
            fprintf(out, "%d", (int)*(const int32_t *)at);
            break;
        case FIELD_UINT32:
            fprintf(out, "%u", (unsigned)*(const uint32_t *)at);
            break;
        case FIELD_FLOAT:
            fputs(json_format_double((double)*(const float *)at, 9, text, sizeof text), out);
            break;
        case FIELD_LOSS:
            fputs(isinf(*(const double *)at) ? "null" : json_format_double(*(const double *)at, 17, text, sizeof text),
                  out);
            break;
        case FIELD_DECIMAL:
            fprintf(out, "\"%llu\"", (unsigned long long)*(const uint64_t *)at);
            break;
        case FIELD_HEX:
            fprintf(out, "\"%016llx\"", (unsigned long long)*(const uint64_t *)at);
            break;
        default: // FIELD_WINDOW
            fprintf(out, "{\"count\": %d, \"next\": %d, \"values\": [", (int)window->count, (int)window->next);
            for (int i = 0; i < OUTLIER_WINDOW; i++)
                fprintf(out, "%s%s", text_if(i, ", "),
                        json_format_double((double)window->values[i], 9, text, sizeof text));
            fputs("]}", out);
        }
    }
}

static void print_mixture(FILE *out, const TrainerState *state) {
    fprintf(out, "{\"start\": %lld, \"sources\": [", (long long)state->mixture_start);
    for (int i = 0; i < state->source_count; i++) {
        fprintf(out, "%s\n    {\"pattern\": ", i > 0 ? "," : "");
        format_json_string(out, state->sources[i].pattern, strlen(state->sources[i].pattern));
        fputs(", ", out);
        print_fields(out, source_fields, COUNT(source_fields), ", ", &state->sources[i]);
        fputs("}", out);
    }
    fputs("]}", out);
}

static void print_state(FILE *out, const TrainerState *state, const ModelOptions *model) {
    const struct {
        const char *name;
        const DataFacts *facts;
    } sets[] = {{"train", &state->train}, {"val", &state->val}};
    const char *comma = "";
    fprintf(out, "{\n  \"format\": %d,\n  ", FORMAT_VERSION);
    print_fields(out, state_fields, COUNT(state_fields), ",\n  ", state);
    fputs(",\n  \"model\": {", out);
    print_fields(out, model_fields, MODEL_ALWAYS, ", ", &model->config);
    for (const TrainerField *f = model_fields + MODEL_ALWAYS; f < model_fields + COUNT(model_fields); f++) {
        if (*(const int64_t *)((const char *)&model->config + f->offset) == 0) continue;
        fputs(", ", out);
        print_fields(out, f, 1, "", &model->config);
    }
    fprintf(out, "},\n  \"optimizer\": \"%s\",\n  \"data\": {", optimizer_name(model->optimizer));
    for (int i = 0; i < COUNT(sets); i++) {
        if (sets[i].facts->tokens == 0) continue;
        fprintf(out, "%s\"%s\": {", comma, sets[i].name);
        print_fields(out, data_fields, COUNT(data_fields), ", ", sets[i].facts);
        fputs("}", out);
        comma = ", ";
    }
    if (state->source_count > 0) {
        fprintf(out, "%s\"mixture\": ", comma);
        print_mixture(out, state);
    }
    fputs("},\n  \"control\": {\n    ", out);
    print_fields(out, control_fields, COUNT(control_fields), ",\n    ", &state->control);
    fprintf(out, "\n  },\n  \"options\": %s,\n", text_or(state->options_json, "{}"));
    cJSON *tuning = cJSON_CreateString(text_or(state->tuning, ""));
    char *text = NULL;
    if (tuning) text = cJSON_PrintUnformatted(tuning);
    REQUIRE_MEMORY(text != NULL, "trainer.json");
    fprintf(out, "  \"tuning\": %s,\n", text);
    cJSON_Delete(tuning);
    free(text);
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
    print_state(out, state, model);
    const char *comma = "";
    fputs("  \"files\": {", out);
    for (int i = 0; i < CHECKPOINT_FILES; i++) {
        if (facts[i].bytes < 0) continue;
        fprintf(out, "%s\n    \"%s\": {", comma, checkpoint_file_name(i));
        print_fields(out, file_fields, COUNT(file_fields), ", ", &facts[i]);
        fputs("}", out);
        comma = ",";
    }
    fputs("\n  }", out);
    fflush(out); // updates text and bytes
    char seal[JSON_SEAL_BYTES + 1];
    json_make_seal(seal, text, bytes);
    fputs(seal, out);
    fclose(out);
    const bool ok = file_write_atomic(path, text, bytes, err);
    free(text);
    return ok;
}

// ----------------------------------------------------------------------------------------------------------- reading

static bool float_value(const cJSON *item, float *value) {
    double d;
    if (!json_double_value(item, &d) || (isfinite(d) && fabs(d) > (double)FLT_MAX)) return false;
    *value = (float)d;
    return true;
}

static bool read_digits(const cJSON *object, const char *key, int base, uint64_t *value, Error *err) {
    const char *text;
    char *end;
    if (!json_get_string(object, key, &text, err)) return false;
    errno = 0;
    *value = strtoull(text, &end, base);
    return (isxdigit((unsigned char)*text) && *end == '\0' && errno == 0) ||
           error_set(err, "\"%s\" is \"%.40s\", expected a 64-bit number in base %d", key, text, base);
}

// A ring: until it is full, the next value is appended to the existing ones. Only finite values are ever stored.
static bool read_window(const cJSON *parent, const char *name, OutlierWindow *w, Error *err) {
    static const char *const keys[] = {"count", "next", "values", NULL};
    const cJSON *window, *values;
    int64_t count, next;
    if (!json_get_object(parent, name, &window, err)) return false;
    if (!json_check_keys(window, keys, err) || !json_get_int(window, "count", 0, OUTLIER_WINDOW, &count, err))
        return error_prefix(err, "\"%s\"", name);
    int64_t first = count, last = count;
    if (count == OUTLIER_WINDOW) {
        first = 0;
        last = OUTLIER_WINDOW - 1;
    }
    if (!json_get_int(window, "next", first, last, &next, err) ||
        !json_get_array(window, "values", OUTLIER_WINDOW, &values, err))
        return error_prefix(err, "\"%s\"", name);
    w->count = (int32_t)count;
    w->next = (int32_t)next;
    const cJSON *item = values->child;
    for (int i = 0; i < OUTLIER_WINDOW; i++, item = item->next)
        if (!float_value(item, &w->values[i]) || !isfinite(w->values[i]))
            return error_set(err, "\"%s\": value %d is not a finite float", name, i);
    return true;
}

static bool read_loss(const cJSON *object, const char *key, double *value, Error *err) {
    const cJSON *item;
    if (!json_find(object, key, &item, err)) return false;
    *value = (double)INFINITY;
    if (cJSON_IsNull(item)) return true;
    return json_get_double(object, key, value, err) &&
           ((isfinite(*value) && *value >= 0.0) ||
            error_set(err, "\"%s\" is %g, expected a finite number of at least 0", key, *value));
}

static bool read_field(const cJSON *object, const TrainerField *f, void *out, Error *err) {
    void *at = (char *)out + f->offset;
    const cJSON *item;
    int64_t n;
    switch (f->type) {
    case FIELD_INT64:
        return json_get_int(object, f->name, f->min, f->max, at, err);
    case FIELD_INT32:
    case FIELD_UINT32:
        if (!json_get_int(object, f->name, f->min, f->max, &n, err)) return false;
        *(uint32_t *)at = (uint32_t)n;
        return true;
    case FIELD_FLOAT:
        return json_find(object, f->name, &item, err) &&
               (float_value(item, at) || error_set(err, "\"%s\" is missing or not a float", f->name));
    case FIELD_LOSS:
        return read_loss(object, f->name, at, err);
    case FIELD_DECIMAL:
        return read_digits(object, f->name, 10, at, err);
    case FIELD_HEX:
        return read_digits(object, f->name, 16, at, err);
    default:
        return read_window(object, f->name, at, err);
    }
}

static bool read_fields(const cJSON *object, const TrainerField *fields, int count, void *out, Error *err) {
    for (int i = 0; i < count; i++)
        if (!read_field(object, &fields[i], out, err)) return false;
    return true;
}

// An object that has these fields and no others.
static bool read_trainer_object(const cJSON *parent, const char *name, const TrainerField *fields, int count, void *out,
                                Error *err) {
    const cJSON *object;
    const char *keys[COUNT(control_fields) + 1] = {NULL}; // the longest table
    if (!json_get_object(parent, name, &object, err)) return false;
    for (int i = 0; i < count; i++) keys[i] = fields[i].name;
    return (json_check_keys(object, keys, err) && read_fields(object, fields, count, out, err)) ||
           error_prefix(err, "\"%s\"", name);
}

// An object that may be missing: then *out stays as it is.
static bool read_trainer_object_if_there(const cJSON *parent, const char *name, const TrainerField *fields, int count,
                                         void *out, Error *err) {
    const cJSON *object;
    if (!json_find(parent, name, &object, err)) return false;
    return !object || read_trainer_object(parent, name, fields, count, out, err);
}

// Values that persist from step to step must be values that the run can have after `step` steps.
static bool check_ranges(const TrainerState *s, Error *err) {
    const StepControl *c = &s->control;
    const double step = (double)s->step;
    const struct {
        const char *name;
        double value, min, max;
    } ranges[] = {{"position", (double)s->position, step, (double)JSON_MAX_INT},
                  {"loss_scale", (double)c->loss_scale, (double)FLT_TRUE_MIN, 0x1p24},
                  {"skipped", (double)c->skipped, 0, step},
                  {"good_steps", (double)c->good_steps, 0, step},
                  {"updates", (double)c->updates, 0, step}};
    for (int i = 0; i < COUNT(ranges); i++)
        if (!(ranges[i].value >= ranges[i].min && ranges[i].value <= ranges[i].max))
            return error_set(err, "\"%s\" is %.17g, expected %.17g to %.17g after %.17g steps", ranges[i].name,
                             ranges[i].value, ranges[i].min, ranges[i].max, step);
    return true;
}

static bool read_source(const cJSON *item, SourceState *source, Error *err) {
    const char *keys[COUNT(source_fields) + 2] = {"pattern"}, *pattern;
    for (int i = 0; i < COUNT(source_fields); i++) keys[i + 1] = source_fields[i].name;
    if (!json_check_keys(item, keys, err) || !read_fields(item, source_fields, COUNT(source_fields), source, err) ||
        !json_get_string(item, "pattern", &pattern, err))
        return false;
    source->pattern = strdup(pattern);
    REQUIRE_MEMORY(source->pattern, "trainer.json");
    return true;
}

// Weights must be those of a mixture: a few, in the first places, small numbers.
static bool read_mixture(const cJSON *data, TrainerState *s, Error *err) {
    static const char *const keys[] = {"start", "sources", NULL};
    const cJSON *mixture, *sources, *item;
    int64_t total = 0;
    if (!json_find(data, "mixture", &mixture, err)) return false;
    if (!mixture) return true;
    if (!json_get_object(data, "mixture", &mixture, err) || !json_check_keys(mixture, keys, err) ||
        !json_get_int(mixture, "start", 0, s->position, &s->mixture_start, err) ||
        !json_find(mixture, "sources", &sources, err))
        return false;
    const int count = cJSON_GetArraySize(sources);
    if (!cJSON_IsArray(sources) || count < 1 || count > MAX_SOURCES)
        return error_set(err, "\"sources\" is no list of 1 to %d sources", MAX_SOURCES);
    s->sources = calloc((size_t)count, sizeof *s->sources);
    REQUIRE_MEMORY(s->sources, "trainer.json");
    cJSON_ArrayForEach(item, sources) {
        const int i = s->source_count++;
        const bool ends = i > 0 && s->sources[i - 1].weight == 0;
        if (!cJSON_IsObject(item) || !read_source(item, &s->sources[i], err))
            return error_prefix(err, "source %d", i + 1);
        const int64_t weight = s->sources[i].weight;
        total += weight;
        if (weight > 0 && (ends || i >= MIXTURE_MAX || total > MIXTURE_WHOLE + MIXTURE_MAX))
            return error_set(err, "source %d: \"weight\" is %lld, which is none of a mixture", i + 1,
                             (long long)weight);
    }
    return total > 0 || error_set(err, "\"sources\" have no \"weight\" above 0");
}

static bool read_data(const cJSON *root, TrainerState *state, Error *err) {
    static const char *const names[] = {"train", "val", "mixture", NULL};
    const cJSON *data;
    if (!json_get_object(root, "data", &data, err)) return false;
    return (json_check_keys(data, names, err) &&
            read_trainer_object_if_there(data, "train", data_fields, COUNT(data_fields), &state->train, err) &&
            read_trainer_object_if_there(data, "val", data_fields, COUNT(data_fields), &state->val, err) &&
            (read_mixture(data, state, err) || error_prefix(err, "\"mixture\""))) ||
           error_prefix(err, "\"data\"");
}

static bool read_manifest(const cJSON *root, FileFacts *facts, Error *err) {
    const cJSON *files;
    const char *names[CHECKPOINT_FILES + 1] = {NULL};
    if (!json_get_object(root, "files", &files, err)) return false;
    for (int i = 0; i < CHECKPOINT_FILES; i++) names[i] = checkpoint_file_name(i);
    bool ok = json_check_keys(files, names, err);
    for (int i = 0; ok && i < CHECKPOINT_FILES; i++) {
        const bool optional = i == HF_TOKENIZER || i == HF_TOKENIZER_CONFIG;
        facts[i] = (FileFacts){.bytes = -1};
        ok = (optional ? read_trainer_object_if_there : read_trainer_object)(files, names[i], file_fields,
                                                                             COUNT(file_fields), &facts[i], err);
    }
    return ok || error_prefix(err, "\"files\"");
}

static bool read_state(const cJSON *root, TrainerState *state, FileFacts *facts, Error *err) {
    static const char *const keys[] = {"format", "step",  "position",  "T",    "seed",    "best_val_loss",
                                       "eot",    "model", "optimizer", "data", "control", "options",
                                       "tuning", "files", "xxh3",      NULL};
    const cJSON *options, *model;
    const char *optimizer, *tuning;
    ModelConfig shown;
    if (!json_check_keys(root, keys, err) || !read_fields(root, state_fields, COUNT(state_fields), state, err) ||
        !json_get_object(root, "model", &model, err))
        return false;
    TrainerField fields[COUNT(model_fields)];
    int count = 0;
    for (int i = 0; i < COUNT(model_fields); i++)
        if (i < MODEL_ALWAYS || cJSON_HasObjectItem(model, model_fields[i].name)) fields[count++] = model_fields[i];
    if (!read_trainer_object(root, "model", fields, count, &shown, err) ||
        !json_get_string(root, "optimizer", &optimizer, err))
        return false;
    if (!optimizer_parse(&state->optimizer, optimizer, NULL))
        return error_set(err, "\"optimizer\" is \"%.40s\", which this version does not know", optimizer);
    if (!read_data(root, state, err) ||
        !read_trainer_object(root, "control", control_fields, COUNT(control_fields), &state->control, err) ||
        !check_ranges(state, err) || !read_manifest(root, facts, err) ||
        !json_get_object(root, "options", &options, err) || !json_get_string(root, "tuning", &tuning, err))
        return false;
    state->options_json = cJSON_PrintUnformatted(options);
    state->tuning = strdup(tuning);
    REQUIRE_MEMORY(state->options_json && state->tuning, "trainer.json");
    return true;
}

bool trainer_json_read(const char *path, TrainerState *state, FileFacts facts[CHECKPOINT_FILES], Error *err) {
    *state = (TrainerState){0};
    size_t bytes = 0;
    char *text = file_read_all(path, MAX_TRAINER_BYTES, &bytes, err);
    if (!text) return false;
    cJSON *root = json_parse_content(path, text, bytes, err);
    int64_t format;
    const bool ok = root && ((json_get_int(root, "format", FORMAT_VERSION, FORMAT_VERSION, &format, err) &&
                              json_check_seal(text, bytes, err) && read_state(root, state, facts, err)) ||
                             error_prefix(err, "%s", path));
    cJSON_Delete(root);
    free(text);
    if (!ok) trainer_state_free(state);
    return ok;
}

void trainer_state_free_sources(TrainerState *state) {
    for (int i = 0; i < state->source_count; i++) free(state->sources[i].pattern);
    free(state->sources);
    state->sources = NULL;
    state->source_count = 0;
}

void trainer_state_free(TrainerState *state) {
    trainer_state_free_sources(state);
    free(state->options_json);
    free(state->tuning);
    state->options_json = NULL;
    state->tuning = NULL;
}
