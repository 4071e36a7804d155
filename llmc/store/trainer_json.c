// See trainer_json.h. Tables of fields, by which objects are both written and read.
#include "llmc/store/trainer_json.h"

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
    return huggingface_file_name(file);
}

// ---------------------------------------------------------------------------- the tables of fields

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
    int64_t min, max; // of integers; min of FIELD_HEX: NEWER or 0
} TrainerField;

enum { NEWER = 1 }; // missing in older checkpoints, and 0 then

#define FIELD(of, name, type, ...)                                                                 \
    { #name, type, offsetof(of, name), __VA_ARGS__ }
#define NAMED_FIELD(of, name, member, type, ...)                                                   \
    { name, type, offsetof(of, member), __VA_ARGS__ }

static const TrainerField state_fields[] = {
    FIELD(TrainerState, step, FIELD_INT64, 0, JSON_MAX_INT),
    FIELD(TrainerState, position, FIELD_INT64, 0, JSON_MAX_INT),
    FIELD(TrainerState, T, FIELD_INT64, 1, INT32_MAX),
    FIELD(TrainerState, seed, FIELD_DECIMAL, 0, 0),
    FIELD(TrainerState, best_val_loss, FIELD_LOSS, 0, 0),
    FIELD(TrainerState, eot, FIELD_INT64, -1, INT32_MAX),
    FIELD(TrainerState, learning_rate, FIELD_LOSS, 0, 0), // the last: earlier versions have none
};
// For display only: config.json counts. From d_ff on: where they are not 0, the default.
enum { MODEL_ALWAYS = 5 };
static const TrainerField model_fields[] = {
    FIELD(ModelConfig, max_T, FIELD_INT64, 1, INT32_MAX),
    FIELD(ModelConfig, V, FIELD_INT64, 1, INT32_MAX),
    FIELD(ModelConfig, L, FIELD_INT64, 1, INT32_MAX),
    FIELD(ModelConfig, NH, FIELD_INT64, 1, INT32_MAX),
    FIELD(ModelConfig, C, FIELD_INT64, 1, INT32_MAX),
    FIELD(ModelConfig, d_ff, FIELD_INT64, 1, INT32_MAX),
    FIELD(ModelConfig, NKV, FIELD_INT64, 1, INT32_MAX),
    FIELD(ModelConfig, HS, FIELD_INT64, 1, INT32_MAX),
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
    FIELD(DataFacts, contents, FIELD_HEX, NEWER, 0),
};
static const TrainerField source_fields[] = {
    FIELD(SourceState, weight, FIELD_INT64, 0, JSON_MAX_INT),
    FIELD(SourceState, drawn, FIELD_INT64, 0, JSON_MAX_INT),
    NAMED_FIELD(SourceState, "tokens", facts.tokens, FIELD_INT64, 1, JSON_MAX_INT),
    NAMED_FIELD(SourceState, "xxh3", facts.fingerprint, FIELD_HEX, 0, 0),
    NAMED_FIELD(SourceState, "contents", facts.contents, FIELD_HEX, NEWER, 0),
};
static const TrainerField file_fields[] = {
    FIELD(FileFacts, bytes, FIELD_INT64, 0, JSON_MAX_INT),
    NAMED_FIELD(FileFacts, "xxh3", checksum, FIELD_HEX, 0, 0),
};
#define COUNT(array) ((int)(sizeof array / sizeof *array))

// ----------------------------------------------------------------------------------------- writing

// noinline: gcc would see that a FileFacts is too small for the window that none of its fields
// is.
__attribute__((noinline)) static void print_fields(FILE *out, const TrainerField *fields, int count,
                                                   const char *separator, const void *object) {
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
            if (isinf(*(const double *)at))
                fputs("null", out);
            else
                fputs(json_format_double(*(const double *)at, 17, text, sizeof text), out);
            break;
        case FIELD_DECIMAL:
            fprintf(out, "\"%llu\"", (unsigned long long)*(const uint64_t *)at);
            break;
        case FIELD_HEX:
            fprintf(out, "\"%016llx\"", (unsigned long long)*(const uint64_t *)at);
            break;
        default: // FIELD_WINDOW
            fprintf(out, "{\"count\": %d, \"next\": %d, \"values\": [", (int)window->count,
                    (int)window->next);
            for (int i = 0; i < OUTLIER_WINDOW; i++)
                fprintf(out, "%s%s", i ? ", " : "",
                        json_format_double((double)window->values[i], 9, text, sizeof text));
            fputs("]}", out);
        }
    }
}

static void print_mixture(FILE *out, const TrainerState *state, const char *comma) {
    fprintf(out, "%s\"mixture\": {\"start\": %lld, \"sources\": [", comma,
            (long long)state->mixture_start);
    for (int i = 0; i < state->source_count; i++) {
        const SourceState *source = &state->sources[i];
        fprintf(out, "%s\n    {\"pattern\": ", i > 0 ? "," : "");
        format_json_string(out, source->pattern, strlen(source->pattern));
        fputs(", ", out);
        print_fields(out, source_fields, COUNT(source_fields), ", ", source);
        fputs("}", out);
    }
    fputs("]}", out);
}

bool trainer_json_write(const char *path, const TrainerState *state, const ModelOptions *model,
                        const FileFacts facts[CHECKPOINT_FILES], Error *err) {
    const struct {
        const char *name;
        const DataFacts *facts;
    } sets[] = {{"train", &state->train}, {"val", &state->val}};
    const char *comma = "";
    char *text = NULL, *tuning = NULL;
    size_t bytes = 0;
    FILE *out = text_open(&text, &bytes);

    fprintf(out, "{\n  \"format\": %d,\n  ", FORMAT_VERSION);
    print_fields(out, state_fields, COUNT(state_fields), ",\n  ", state);
    fputs(",\n  \"model\": {", out);
    print_fields(out, model_fields, MODEL_ALWAYS, ", ", &model->config);
    for (const TrainerField *f = model_fields + MODEL_ALWAYS;
         f < model_fields + COUNT(model_fields); f++) {
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

    if (state->source_count > 0) print_mixture(out, state, comma);

    fputs("},\n  \"control\": {\n    ", out);
    print_fields(out, control_fields, COUNT(control_fields), ",\n    ", &state->control);
    fprintf(out, "\n  },\n  \"options\": %s,\n", state->options_json ? state->options_json : "{}");

    cJSON *item = cJSON_CreateString(state->tuning ? state->tuning : "");
    if (item) tuning = cJSON_PrintUnformatted(item);
    REQUIRE_MEMORY(tuning != NULL, "trainer.json");
    fprintf(out, "  \"tuning\": %s,\n  \"files\": {", tuning);
    cJSON_Delete(item);
    free(tuning);

    comma = "";
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

// ----------------------------------------------------------------------------------------- reading

static bool float_value(const cJSON *item, float *value) {
    double d;
    if (!json_double_value(item, &d) || (isfinite(d) && fabs(d) > (double)FLT_MAX)) return false;
    *value = (float)d;
    return true;
}

static bool read_digits(const cJSON *object, const char *key, int base, uint64_t *value,
                        Error *err) {
    const char *text;
    char *end;
    if (!json_get_string(object, key, &text, err)) return false;
    errno = 0;
    *value = strtoull(text, &end, base);
    if (!(isxdigit((unsigned char)*text) && *end == '\0' && errno == 0))
        return error_set(err, "\"%s\" is \"%.40s\", expected a 64-bit number in base %d", key, text,
                         base);
    return true;
}

// A ring: until it is full, the next value is appended to the existing ones. Only finite values are
// ever stored.
static bool read_window(const cJSON *parent, const char *name, OutlierWindow *w, Error *err) {
    static const char *const keys[] = {"count", "next", "values", NULL};
    const cJSON *window, *values;
    int64_t count, next;
    if (!json_get_object(parent, name, &window, err)) return false;
    if (!json_check_keys(window, keys, err) ||
        !json_get_int(window, "count", 0, OUTLIER_WINDOW, &count, err))
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

static bool read_field(const cJSON *object, const TrainerField *f, void *out, Error *err) {
    void *at = (char *)out + f->offset;
    double *loss = at;
    const cJSON *item;
    int64_t n;
    if (!json_find(object, f->name, &item, err)) return false;

    switch (f->type) {
    case FIELD_INT64:
        return json_get_int(object, f->name, f->min, f->max, at, err);
    case FIELD_INT32:
    case FIELD_UINT32:
        if (!json_get_int(object, f->name, f->min, f->max, &n, err)) return false;
        *(uint32_t *)at = (uint32_t)n;
        return true;
    case FIELD_FLOAT:
        if (!float_value(item, at))
            return error_set(err, "\"%s\" is missing or not a float", f->name);
        return true;
    case FIELD_LOSS:
        *loss = (double)INFINITY;
        if (cJSON_IsNull(item)) return true;
        return json_get_double(object, f->name, loss, err) &&
               ((isfinite(*loss) && *loss >= 0.0) ||
                error_set(err, "\"%s\" is %g, expected a finite number of at least 0", f->name,
                          *loss));
    case FIELD_DECIMAL:
        return read_digits(object, f->name, 10, at, err);
    case FIELD_HEX:
        if (!item && f->min == NEWER) return true; // as the object began: 0
        return read_digits(object, f->name, 16, at, err);
    default:
        return read_window(object, f->name, at, err);
    }
}

static bool read_fields(const cJSON *object, const TrainerField *fields, int count, void *out,
                        Error *err) {
    for (int i = 0; i < count; i++)
        if (!read_field(object, &fields[i], out, err)) return false;
    return true;
}

// An object that has these fields and no others. Optional: it may be missing, and then *out stays
// as it is.
static bool read_trainer_object(const cJSON *parent, const char *name, bool optional,
                                const TrainerField *fields, int count, void *out, Error *err) {
    const cJSON *object;
    const char *keys[COUNT(control_fields) + 1] = {NULL}; // the longest table
    if (!json_find(parent, name, &object, err)) return false;
    if (optional && !object) return true;
    if (!json_get_object(parent, name, &object, err)) return false;
    for (int i = 0; i < count; i++) keys[i] = fields[i].name;
    if (!(json_check_keys(object, keys, err) && read_fields(object, fields, count, out, err)))
        return error_prefix(err, "\"%s\"", name);
    return true;
}

// Weights must be those of a mixture: a few, in the first places, small numbers.
static bool read_mixture(const cJSON *data, TrainerState *s, Error *err) {
    static const char *const keys[] = {"start", "sources", NULL};
    const char *source_keys[COUNT(source_fields) + 2] = {"pattern"};
    for (int i = 0; i < COUNT(source_fields); i++) source_keys[i + 1] = source_fields[i].name;
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
        const char *pattern;
        if (!cJSON_IsObject(item) || !json_check_keys(item, source_keys, err) ||
            !read_fields(item, source_fields, COUNT(source_fields), &s->sources[i], err) ||
            !json_get_string(item, "pattern", &pattern, err))
            return error_prefix(err, "source %d", i + 1);
        s->sources[i].pattern = strdup(pattern);
        REQUIRE_MEMORY(s->sources[i].pattern, "trainer.json");
        const int64_t weight = s->sources[i].weight;
        total += weight;
        if (weight > 0 && (ends || i >= MIXTURE_MAX || total > MIXTURE_WHOLE + MIXTURE_MAX))
            return error_set(err, "source %d: \"weight\" is %lld, which is none of a mixture",
                             i + 1, (long long)weight);
    }

    if (total <= 0) return error_set(err, "\"sources\" have no \"weight\" above 0");
    return true;
}

static bool read_manifest(const cJSON *root, FileFacts *facts, Error *err) {
    const cJSON *files;
    const char *names[CHECKPOINT_FILES + 1] = {NULL};
    if (!json_get_object(root, "files", &files, err)) return false;
    for (int i = 0; i < CHECKPOINT_FILES; i++) names[i] = checkpoint_file_name(i);
    bool ok = json_check_keys(files, names, err);
    for (int i = 0; ok && i < CHECKPOINT_FILES; i++) {
        const bool optional = i > HF_CONFIG && i < HF_FILES;
        facts[i] = (FileFacts){.bytes = -1};
        ok = read_trainer_object(files, names[i], optional, file_fields, COUNT(file_fields),
                                 &facts[i], err);
    }
    if (!ok) return error_prefix(err, "\"files\"");
    return true;
}

// Checks the fields of the model, whose values the state does not take.
static bool check_model_fields(const cJSON *root, const cJSON *model, Error *err) {
    ModelConfig shown;
    TrainerField fields[COUNT(model_fields)];
    int count = 0;
    for (int i = 0; i < COUNT(model_fields); i++)
        if (i < MODEL_ALWAYS || cJSON_HasObjectItem(model, model_fields[i].name))
            fields[count++] = model_fields[i];
    return read_trainer_object(root, "model", false, fields, count, &shown, err);
}

static bool read_data(const cJSON *root, TrainerState *state, Error *err) {
    static const char *const keys[] = {"train", "val", "mixture", NULL};
    const cJSON *data;
    if (!json_get_object(root, "data", &data, err)) return false;
    if (!json_check_keys(data, keys, err) ||
        !read_trainer_object(data, "train", true, data_fields, COUNT(data_fields), &state->train,
                             err) ||
        !read_trainer_object(data, "val", true, data_fields, COUNT(data_fields), &state->val,
                             err) ||
        !(read_mixture(data, state, err) || error_prefix(err, "\"mixture\"")))
        return error_prefix(err, "\"data\"");
    return true;
}

// Values that persist from step to step must be values that the run can have after `step` steps.
static bool check_ranges(const TrainerState *state, Error *err) {
    const StepControl *c = &state->control;
    const double step = (double)state->step;
    const struct {
        const char *name;
        double value, min, max;
    } ranges[] = {{"position", (double)state->position, step, (double)JSON_MAX_INT},
                  {"loss_scale", (double)c->loss_scale, (double)FLT_TRUE_MIN, 0x1p24},
                  {"skipped", (double)c->skipped, 0, step},
                  {"good_steps", (double)c->good_steps, 0, step},
                  {"updates", (double)c->updates, 0, step}};
    for (int i = 0; i < COUNT(ranges); i++)
        if (!(ranges[i].value >= ranges[i].min && ranges[i].value <= ranges[i].max))
            return error_set(err, "\"%s\" is %.17g, expected %.17g to %.17g after %.17g steps",
                             ranges[i].name, ranges[i].value, ranges[i].min, ranges[i].max, step);
    return true;
}

static bool read_state(const cJSON *root, TrainerState *state, FileFacts *facts, Error *err) {
    static const char *const keys[] = {
        "format",  "step",          "position", "T",         "seed", "best_val_loss",
        "eot",     "learning_rate", "model",    "optimizer", "data", "control",
        "options", "tuning",        "files",    "xxh3",      NULL};
    const cJSON *options, *model;
    const char *optimizer, *tuning;
    int facts_count = COUNT(state_fields);
    state->learning_rate = (double)INFINITY;
    if (!cJSON_HasObjectItem(root, "learning_rate")) facts_count--;
    if (!json_check_keys(root, keys, err) ||
        !read_fields(root, state_fields, facts_count, state, err) ||
        !json_get_object(root, "model", &model, err))
        return false;

    if (!check_model_fields(root, model, err) ||
        !json_get_string(root, "optimizer", &optimizer, err))
        return false;
    if (!optimizer_parse(&state->optimizer, optimizer, NULL))
        return error_set(err, "\"optimizer\" is \"%.40s\", which this version does not know",
                         optimizer);

    if (!read_data(root, state, err)) return false;
    if (!read_trainer_object(root, "control", false, control_fields, COUNT(control_fields),
                             &state->control, err))
        return false;
    if (!check_ranges(state, err)) return false;

    if (!read_manifest(root, facts, err) || !json_get_object(root, "options", &options, err) ||
        !json_get_string(root, "tuning", &tuning, err))
        return false;
    state->options_json = cJSON_PrintUnformatted(options);
    state->tuning = strdup(tuning);
    REQUIRE_MEMORY(state->options_json && state->tuning, "trainer.json");
    return true;
}

bool trainer_json_read(const char *path, TrainerState *state, FileFacts facts[CHECKPOINT_FILES],
                       Error *err) {
    *state = (TrainerState){0};
    size_t bytes = 0;
    char *text = file_read_all(path, MAX_TRAINER_BYTES, &bytes, err);
    if (!text) return false;
    cJSON *root = json_parse_content(path, text, bytes, err);
    int64_t format;
    const bool ok =
        root && ((json_get_int(root, "format", FORMAT_VERSION, FORMAT_VERSION, &format, err) &&
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
