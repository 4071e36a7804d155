// One or several safetensors files as one set of tensors, see weight_shards.h. The index of several
// files is as untrusted as any outside file: it may name only files of its own directory.
#include "llmc/store/weight_shards.h"

#include "llmc/base/arithmetic.h"
#include "llmc/base/directory.h"
#include "llmc/base/file.h"
#include "llmc/base/foreign_file.h"
#include "llmc/base/format.h"
#include "llmc/base/json.h"
#include "llmc/base/path.h"

#include <cjson/cJSON.h>
#include <fnmatch.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum {
    MAX_INDEX_BYTES = 16 << 20,
    MAX_FILES = 1000, // all stay open; the largest published models have fewer
};

struct WeightShards {
    char *list; // path of the one file or of the index
    char **paths;
    SafetensorsFile **files;
    int *first; // tensors in the files before this one; files + 1 entries
    int num_files;
};

// --------------------------------------------------------------------------------------- the index

// Takes the names of the files from the index: a member may only name a file in this directory,
// with no path in it.
static bool parse_index(WeightShards *s, const char *directory, const cJSON *index, Error *err) {
    const cJSON *map, *item;
    if (!json_get_object(index, "weight_map", &map, err)) return false;
    cJSON_ArrayForEach(item, map) {
        const char *name = cJSON_IsString(item) ? item->valuestring : "";
        bool is_name = strlen(name) < 256 && fnmatch("?*.safetensors", name, 0) == 0;
        for (const char *p = name; *p; p++)
            is_name &= (unsigned char)*p >= 0x20 && *p != 0x7f && *p != '/';
        char found[64];
        if (!is_name)
            return error_set(
                err, "\"weight_map\" names %s, expected a .safetensors file in the same directory",
                json_describe(item, found, sizeof found));

        int file = 0;
        while (file < s->num_files && strcmp(strrchr(s->paths[file], '/') + 1, name) != 0) file++;
        if (file == MAX_FILES)
            return error_set(err, "\"weight_map\" names more than %d files", MAX_FILES);
        if (file == s->num_files) s->paths[s->num_files++] = path_join(directory, name);
    }
    if (s->num_files <= 0) return error_set(err, "\"weight_map\" is empty");
    return true;
}

// ---------------------------------------------------------------------------------- open and close

bool weight_shards_explain(const char *directory, Error *err) {
    // Other files of the directory (pictures, archives, logs) say nothing of its weights.
    static const char names_of_weights[] =
        "*.@(safetensors|bin|pt|pth|ckpt|gguf|ggml|h5|msgpack|onnx|data-*-of-*|index|meta)";
    char **names, head[FOREIGN_FILE_HEAD];
    int count;
    if (!directory_list(directory, &names, &count, NULL)) return false;

    for (int i = 0; i < count; i++) {
        if (fnmatch(names_of_weights, names[i], FNM_EXTMATCH | FNM_CASEFOLD) != 0) continue;
        char *path = path_join(directory, names[i]);
        int64_t size = 0;
        const int fd = file_open(path, &size, NULL);
        const size_t n = (size_t)min_i64(size, sizeof head);
        const bool is_read = fd >= 0 && n > 0 && file_read_at(fd, path, 0, head, n, NULL);
        const ForeignFile *found = is_read ? foreign_file_find(path, head, n) : NULL;
        if (fd >= 0) close(fd);
        free(path);
        if (!found) continue;
        error_set(err, "%s; %.100s is %s: %s", err->text, names[i], found->kind, found->advice);
        break;
    }

    directory_list_free(names, count);
    return false;
}

static bool open_files(WeightShards *s, Error *err) {
    s->first = calloc((size_t)s->num_files + 1, sizeof *s->first);
    REQUIRE_MEMORY(s->first != NULL, "the files of a model");
    for (int i = 0; i < s->num_files; i++) {
        if (!file_exists(s->paths[i]))
            return error_set(err,
                             "%s: this file is missing; the weights are in %d files, listed in %s",
                             s->paths[i], s->num_files, s->list);
        s->files[i] = safetensors_open(s->paths[i], err);
        if (!s->files[i]) return false;
        s->first[i + 1] = s->first[i] + safetensors_count(s->files[i]);
    }

    for (int i = 0; i < weight_shards_count(s); i++) {
        const char *name = weight_shards_entry(s, i)->name;
        const int first = weight_shards_find(s, name);
        if (first != i)
            return error_set(err, "%s: tensor %s is in %s too; download the directory again",
                             weight_shards_path(s, i), name, weight_shards_path(s, first));
    }
    return true;
}

// Each tensor must be in the file that the index names: else one of the two is from another
// download.
static bool check_index(const WeightShards *s, const cJSON *index, Error *err) {
    const cJSON *item, *map = cJSON_GetObjectItemCaseSensitive(index, "weight_map");
    cJSON_ArrayForEach(item, map) {
        const int i = weight_shards_find(s, item->string);
        const char *found = i >= 0 ? weight_shards_path(s, i) : "no file has it";
        if (i >= 0 && strcmp(strrchr(found, '/') + 1, item->valuestring) == 0) continue;
        return error_set(
            err, "%s: states that tensor %.200s is in %s, but %s%s; download the directory again",
            s->list, item->string, item->valuestring, i >= 0 ? "it is in " : "", found);
    }
    return true;
}

WeightShards *weight_shards_open(const char *directory, Error *err) {
    WeightShards *s = calloc(1, sizeof *s);
    REQUIRE_MEMORY(s != NULL, "the files of a model");
    s->paths = calloc(MAX_FILES, sizeof *s->paths);
    s->files = calloc(MAX_FILES, sizeof(SafetensorsFile *));
    REQUIRE_MEMORY(s->paths && s->files, "the files of a model");

    s->list = path_join(directory, "model.safetensors");
    if (file_exists(s->list)) {
        s->paths[s->num_files++] = path_join(directory, "model.safetensors");
        if (open_files(s, err)) return s;
    } else {
        free(s->list);
        s->list = path_join(directory, "model.safetensors.index.json");
        cJSON *index = NULL;
        if (file_exists(s->list)) {
            index = json_parse_file(s->list, MAX_INDEX_BYTES, err);
        } else {
            error_set(err,
                      "%s: no model.safetensors next to its config.json; load other weights in "
                      "Python and save them "
                      "with save_pretrained(DIR, safe_serialization=True)",
                      directory);
            weight_shards_explain(directory, err);
        }

        const bool is_read =
            index && (parse_index(s, directory, index, err) || error_prefix(err, "%s", s->list));
        const bool is_open = is_read && open_files(s, err) && check_index(s, index, err);
        cJSON_Delete(index);
        if (is_open) return s;
    }

    weight_shards_close(s);
    return NULL;
}

void weight_shards_close(WeightShards *s) {
    if (!s) return;
    for (int i = 0; i < s->num_files; i++) {
        if (s->files[i]) safetensors_close(s->files[i]);
        free(s->paths[i]);
    }
    free(s->first);
    free(s->files);
    free(s->paths);
    free(s->list);
    free(s);
}

// ----------------------------------------------------------------------------------------- tensors

static int file_of(const WeightShards *s, int i) {
    int file = 0;
    while (i >= s->first[file + 1]) file++;
    return file;
}

int weight_shards_count(const WeightShards *s) { return s->first[s->num_files]; }

const SafetensorsEntry *weight_shards_entry(const WeightShards *s, int i) {
    const int file = file_of(s, i);
    return safetensors_entry(s->files[file], i - s->first[file]);
}

int weight_shards_find(const WeightShards *s, const char *name) {
    for (int file = 0; file < s->num_files; file++) {
        const SafetensorsEntry *e = safetensors_find(s->files[file], name);
        if (e) return s->first[file] + (int)(e - safetensors_entry(s->files[file], 0));
    }
    return -1;
}

const char *weight_shards_path(const WeightShards *s, int i) { return s->paths[file_of(s, i)]; }

const char *weight_shards_list(const WeightShards *s) { return s->list; }

bool weight_shards_read_fp32(WeightShards *s, int i, int64_t first, int64_t n, float *out,
                             Error *err) {
    return safetensors_read_fp32(s->files[file_of(s, i)], weight_shards_entry(s, i), first, n, out,
                                 err);
}
