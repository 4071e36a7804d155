// Model shapes and the descriptors that name them. Only arithmetic and text: no file is opened here.
#include "llmc/model/model_config.h"

#include "llmc/base/checked.h"
#include <ctype.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

// GPT-2's and GPT-3's published shapes, and llm.c's names for them.
static const struct {
    const char *name;
    int64_t L, C, NH, max_T;
} presets[] = {
    {"d6", 6, 384, 6, 1024},
    {"d12", 12, 768, 12, 1024},  // GPT-2 small, 124M
    {"d24", 24, 1024, 16, 1024}, // medium, 350M
    {"d36", 36, 1280, 20, 1024}, // large, 774M
    {"d48", 48, 1600, 25, 1024}, // XL, 1558M
    {"d60", 60, 1920, 30, 1024},
    {"gpt3:c384", 6, 384, 6, 2048},
    {"gpt3:c768", 12, 768, 12, 2048},
    {"gpt3:c1024", 24, 1024, 16, 2048},
    {"gpt3:c1536", 24, 1536, 16, 2048},
    {"gpt3:c2048", 24, 2048, 16, 2048},
    {"gpt3:c2560", 32, 2560, 32, 2048},
    {"gpt3:c4096", 32, 4096, 32, 2048},
    {"gpt3:c5120", 40, 5120, 40, 2048},
    {"gpt3:c12288", 96, 12288, 96, 2048},
};
enum { NUM_PRESETS = sizeof presets / sizeof presets[0] };

static const char forms[] = "expected d6 d12 d24 d36 d48 d60, gpt3:c768 (384 .. 12288), a shape such as "
                            "L=6,C=384,NH=6,V=257,T=256, a directory with config.json, or an llm.c .bin file";

void model_config_set_vocab(ModelConfig *config, int64_t V) {
    config->V = V;
    config->Vp = round_up(V, VOCAB_PADDING);
}

static bool apply_preset(ModelConfig *config, const char *name) {
    for (int i = 0; i < NUM_PRESETS; i++) {
        if (strcmp(presets[i].name, name) != 0) continue;
        config->L = presets[i].L, config->C = presets[i].C;
        config->NH = presets[i].NH, config->max_T = presets[i].max_T;
        return true;
    }
    return false;
}

// "KEY=NUMBER" into the field it names, which must not be one of those given before (a bit each).
static bool apply_field(ModelConfig *config, const char *part, unsigned *given, Error *err) {
    const char *equals = strchr(part, '=');
    if (!equals) return error_set(err, "'%.200s' is no model: %s", part, forms);
    size_t key_length = (size_t)(equals - part);
    const struct {
        const char *key;
        int64_t *field;
    } fields[] = {{"L", &config->L}, {"C", &config->C}, {"NH", &config->NH}, {"V", &config->V}, {"T", &config->max_T}};
    for (size_t i = 0; i < sizeof fields / sizeof fields[0]; i++) {
        if (strlen(fields[i].key) != key_length || strncmp(fields[i].key, part, key_length) != 0) continue;
        char *end;
        errno = 0;
        long long value = strtoll(equals + 1, &end, 10);
        if (!isdigit((unsigned char)equals[1]) || *end || errno || value < 1)
            return error_set(err, "'%s': expected a whole number from 1 after %s=", part, fields[i].key);
        if (*given >> i & 1) return error_set(err, "'%s': %s was given before; leave one out", part, fields[i].key);
        *given |= 1U << i;
        *fields[i].field = value;
        return true;
    }
    return error_set(err, "'%s': the parts of a shape are L, C, NH, V and T", part);
}

bool model_config_parse(ModelConfig *config, const char *descriptor, Error *err) {
    *config = (ModelConfig){0};
    apply_preset(config, "d12");
    config->NH = 0; // unless a preset or the shape says so: C / 64
    if (!*descriptor) return error_set(err, "the model is empty: %s", forms);
    char *copy = strdup(descriptor);
    REQUIRE_MEMORY(copy, "a model description");
    bool ok = true, first = true;
    unsigned given = 0;
    char *rest = copy;
    for (char *part; ok && (part = strsep(&rest, ",")) != NULL; first = false)
        ok = (first && apply_preset(config, part)) || apply_field(config, part, &given, err);
    free(copy);
    if (!ok) return false;
    if (config->NH == 0) config->NH = config->C % 64 == 0 ? config->C / 64 : 1;
    if (config->V > 0) model_config_set_vocab(config, config->V);
    return model_config_check(config, err);
}

bool model_config_is_descriptor(const char *text) {
    char first[32];
    size_t length = strcspn(text, ",");
    if (strchr(text, '/') || length >= sizeof first) return false;
    memcpy(first, text, length);
    first[length] = '\0';
    ModelConfig config;
    return strchr(first, '=') != NULL || apply_preset(&config, first);
}

bool model_config_check(const ModelConfig *config, Error *err) {
    const struct {
        const char *name;
        int64_t value, low, high;
    } ranges[] = {
        {"the number of blocks (L)", config->L, 1, 1024}, {"the channels (C)", config->C, 1, 65536},
        {"the heads (NH)", config->NH, 1, 1024},          {"the context (T)", config->max_T, 1, 1 << 20},
        {"the vocabulary (V)", config->V, 0, 1 << 24},
    };
    for (size_t i = 0; i < sizeof ranges / sizeof ranges[0]; i++)
        if (ranges[i].value < ranges[i].low || ranges[i].value > ranges[i].high)
            return error_set(err, "%s: found %lld, allowed %lld .. %lld", ranges[i].name, (long long)ranges[i].value,
                             (long long)ranges[i].low, (long long)ranges[i].high);
    if (config->C % config->NH != 0)
        return error_set(err, "the channels (C = %lld) must be a multiple of the heads (NH = %lld)",
                         (long long)config->C, (long long)config->NH);
    return true;
}
