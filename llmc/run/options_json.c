// Options as JSON, for checkpoints and logs, and what differs when a run goes on with others.
#include "llmc/run/format.h"
#include "llmc/run/option_table.h"

#include <cjson/cJSON.h>
#include <stdlib.h>
#include <string.h>

char *options_to_json(const Options *options) {
    char *json = NULL;
    size_t bytes = 0;
    FILE *f = text_open(&json, &bytes);
    int count;
    const OptionRow *rows = option_table(&count);
    for (int i = 0; i < count; i++) {
        fprintf(f, "%s\"%s\":", i == 0 ? "{" : ",", rows[i].long_name);
        if (rows[i].type == OPTION_STRING) {
            const char *text = option_string(&rows[i], options);
            format_json_string(f, text, strlen(text));
        } else { // written here and not by cJSON, whose doubles may be off by the last bit
            char number[40];
            fputs(format_exact(option_number(&rows[i], options), number, sizeof number), f);
        }
    }
    fputc('}', f);
    fclose(f);
    return json;
}

// They say how this process is started, limited and watched, not what the run computes.
static bool is_compared(const OptionRow *row) {
    const char *const others[] = {"resume", "progress", "max-minutes", "profile",        "plan",
                                  "gpu",    "price",    "interactive", "reset-optimizer"};
    for (size_t i = 0; i < sizeof others / sizeof others[0]; i++)
        if (strcmp(row->long_name, others[i]) == 0) return false;
    return true;
}

static bool adopt(const OptionRow *row, Options *options, const cJSON *then, Error *err) {
    char number[40];
    if (row->type == OPTION_STRING && cJSON_IsString(then))
        return option_set(row, options, row->long_name, then->valuestring, err);
    if (cJSON_IsNumber(then) && option_may_be_auto(row) && then->valuedouble == row->min)
        return option_set(row, options, row->long_name, "auto", err);
    // What is a text now was a number in older checkpoints: -r.
    if (cJSON_IsNumber(then) && (row->type != OPTION_STRING || strcmp(row->long_name, "recompute") == 0))
        return option_set(row, options, row->long_name, format_exact(then->valuedouble, number, sizeof number), err);
    return error_set(err, "%s: no %s", row->long_name, row->type == OPTION_STRING ? "text" : "number");
}

// An option under a name that nobody knows would be silently the default.
static bool check_names(const cJSON *then, Error *err) {
    char nearest[64];
    for (const cJSON *item = then->child; item; item = item->next) {
        if (option_find(item->string, strlen(item->string))) continue;
        const bool is_alike = option_nearest(item->string, nearest, sizeof nearest);
        return error_set(err, "there is no option \"%.64s\"%s%s%s", item->string, is_alike ? "; is it " : "",
                         is_alike ? nearest : "", is_alike ? "?" : "");
    }
    return true;
}

bool options_adopt_json(Options *options, const char *json, Error *err) {
    cJSON *then = cJSON_Parse(json);
    bool ok = (cJSON_IsObject(then) || error_set(err, "no JSON object")) && check_names(then, err);
    int count;
    const OptionRow *rows = option_table(&count);
    for (int i = 0; ok && i < count; i++) {
        const cJSON *value = cJSON_GetObjectItemCaseSensitive(then, rows[i].long_name);
        const bool is_output = strcmp(rows[i].long_name, "output") == 0;
        if (value && !is_output && is_compared(&rows[i]) && !options_given(options, rows[i].long_name))
            ok = adopt(&rows[i], options, value, err);
    }
    cJSON_Delete(then);
    return ok || error_prefix(err, "the options of the earlier run");
}

static bool differs(const OptionRow *row, const Options *options, const cJSON *then) {
    char number[40];
    if (row->type == OPTION_STRING && cJSON_IsNumber(then))
        return strcmp(format_exact(then->valuedouble, number, sizeof number), option_string(row, options)) != 0;
    if (row->type == OPTION_STRING) {
        return !cJSON_IsString(then) || strcmp(then->valuestring, option_string(row, options)) != 0;
    }
    return !cJSON_IsNumber(then) || then->valuedouble != option_number(row, options);
}

// "--batch-size 8 (was 4)\n"
static void print_difference(FILE *f, const OptionRow *row, const Options *options, const cJSON *then) {
    char *now = option_text(row, options);
    fprintf(f, "--%s %s (was ", row->long_name, now && *now ? now : "\"\"");
    free(now);
    char number[40];
    if (cJSON_IsString(then)) {
        format_visible(f, then->valuestring, strlen(then->valuestring), "");
    } else if (cJSON_IsNumber(then)) {
        fputs(format_exact(then->valuedouble, number, sizeof number), f);
    } else {
        fputs("no text or number", f);
    }
    fputs(")\n", f);
}

char *options_diff_json(const Options *options, const char *json) {
    cJSON *then = cJSON_Parse(json);
    if (!cJSON_IsObject(then)) {
        cJSON_Delete(then);
        return strdup("the options of the earlier run cannot be read: no JSON object\n");
    }
    char *lines = NULL;
    size_t bytes = 0;
    FILE *f = text_open(&lines, &bytes);
    int count;
    const OptionRow *rows = option_table(&count);
    for (int i = 0; i < count; i++) { // an option that did not exist then is no difference
        const cJSON *value = cJSON_GetObjectItemCaseSensitive(then, rows[i].long_name);
        if (value && is_compared(&rows[i]) && differs(&rows[i], options, value)) {
            print_difference(f, &rows[i], options, value);
        }
    }
    fclose(f);
    cJSON_Delete(then);
    if (bytes > 0) return lines;
    free(lines);
    return NULL;
}
