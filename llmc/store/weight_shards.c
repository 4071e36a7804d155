// One or several safetensors files as one set of tensors, see weight_shards.h. The index of several files is as
// untrusted as any outside file: it may name only files of its own directory.
#include "llmc/store/weight_shards.h"

#include "llmc/base/arithmetic.h"
#include "llmc/base/directory.h"
#include "llmc/base/file.h"
#include "llmc/base/foreign_file.h"
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

typedef struct {
    const char *name; // of a tensor, in the parsed index
    int file;         // the file that the index states
} IndexEntry;

struct WeightShards {
    char *list; // path of the one file or of the index
    char **paths;
    SafetensorsFile **files;
    int *first; // tensors in the files before this one; files + 1 entries
    int num_files;
    cJSON *index; // the following fields belong to the index; NULL without one
    IndexEntry *entries;
    int num_entries;
};

// ----------------------------------------------------------------------------------------------------------- the index

static int compare_index_entry(const void *a, const void *b) {
    return strcmp(((const IndexEntry *)a)->name, ((const IndexEntry *)b)->name);
}

static bool is_printable(const char *text, size_t less_than) {
    for (const char *p = text; *p; p++)
        if ((unsigned char)*p < 0x20 || *p == 0x7f) return false;
    return *text && strlen(text) < less_than;
}

static bool parse_index(WeightShards *s, const char *directory, Error *err) {
    const cJSON *map;
    if (!json_get_object(s->index, "weight_map", &map, err)) return false;
    const int count = cJSON_GetArraySize(map);
    s->entries = calloc((size_t)count + 1, sizeof *s->entries);
    if (!s->entries) return error_set(err, "no memory for its %d tensors", count);
    for (const cJSON *item = map->child; item; item = item->next) {
        if (!is_printable(item->string, sizeof((SafetensorsEntry *)0)->name))
            return error_set(err, "\"weight_map\" has an invalid tensor name");
        // A member may only name a file in this directory, with no path in it.
        const char *name = "";
        if (cJSON_IsString(item)) name = item->valuestring;
        const size_t n = strlen(name), suffix = strlen(".safetensors");
        if (n <= suffix || strcmp(name + n - suffix, ".safetensors") != 0 || strchr(name, '/') ||
            !is_printable(name, 256)) {
            char found[64];
            return error_set(err,
                             "\"weight_map\" puts tensor %s into %s, expected the name of a .safetensors file in the "
                             "same directory",
                             item->string, json_describe(item, found, sizeof found));
        }
        int file = 0;
        while (file < s->num_files && strcmp(strrchr(s->paths[file], '/') + 1, name) != 0) file++;
        if (file == MAX_FILES) return error_set(err, "\"weight_map\" names more than %d files", MAX_FILES);
        if (file == s->num_files) s->paths[s->num_files++] = path_join(directory, name);
        s->entries[s->num_entries++] = (IndexEntry){.name = item->string, .file = file};
    }
    qsort(s->entries, (size_t)count, sizeof *s->entries, compare_index_entry);
    for (int i = 1; i < count; i++)
        if (strcmp(s->entries[i - 1].name, s->entries[i].name) == 0)
            return error_set(err, "\"weight_map\" lists tensor %s twice", s->entries[i].name);
    return count > 0 || error_set(err, "\"weight_map\" is empty");
}

// Each tensor is in the file that the index states, and no file has one that the index does not put there.
static bool check_index(const WeightShards *s, Error *err) {
    for (int i = 0; i < s->num_entries; i++) {
        const IndexEntry *listed = &s->entries[i];
        if (safetensors_find(s->files[listed->file], listed->name)) continue;
        const int elsewhere = weight_shards_find(s, listed->name);
        if (elsewhere >= 0)
            return error_set(err,
                             "%s: tensor %s is in %s, but the index puts it in this file; download the "
                             "directory again",
                             s->paths[listed->file], listed->name, weight_shards_path(s, elsewhere));
        return error_set(err, "%s: tensor %s is missing, but the index puts it here; download the directory again",
                         s->paths[listed->file], listed->name);
    }
    for (int i = 0; i < weight_shards_count(s); i++) {
        const SafetensorsEntry *e = weight_shards_entry(s, i);
        const IndexEntry key = {.name = e->name};
        const IndexEntry *listed =
            bsearch(&key, s->entries, (size_t)s->num_entries, sizeof *s->entries, compare_index_entry);
        if (!listed) return error_set(err, "%s: tensor %s is not in the index", weight_shards_path(s, i), e->name);
        if (s->paths[listed->file] != weight_shards_path(s, i))
            return error_set(err, "%s: has tensor %s, but the index puts it in %s", weight_shards_path(s, i), e->name,
                             s->paths[listed->file]);
    }
    return true;
}

// ------------------------------------------------------------------------------------------------------ open and close

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
        const ForeignFile *found = NULL;
        if (is_read) found = foreign_file_find(path, head, n);
        if (fd >= 0) close(fd);
        free(path);
        if (!found) continue;
        error_append(err, "%.100s is %s: %s", names[i], found->kind, found->advice);
        break;
    }
    directory_list_free(names, count);
    return false;
}

// There are no readable weights; the advice depends on the files that exist.
static bool explain_missing(const char *directory, Error *err) {
    static const char *const others[][2] = {
        {"pytorch_model.bin", "save pytorch_model.bin again with save_pretrained(..., safe_serialization=True)"},
        {"pytorch_model.bin.index.json", "save pytorch_model.bin again with save_pretrained(..., "
                                         "safe_serialization=True)"},
        {"adapter_config.json", "it is a LoRA adapter: merge it into its model with merge_and_unload() and save that"},
    };
    error_set(err, "%s: no model.safetensors next to its config.json", directory);
    for (size_t i = 0; i < sizeof others / sizeof *others; i++) {
        char *path = path_join(directory, others[i][0]);
        const bool exists = file_exists(path);
        free(path);
        if (exists) return error_append(err, "%s", others[i][1]);
    }
    return weight_shards_explain(directory, err);
}

static bool open_files(WeightShards *s, Error *err) {
    s->first = calloc((size_t)s->num_files + 1, sizeof *s->first);
    REQUIRE_MEMORY(s->first != NULL, "the files of a model");
    for (int i = 0; i < s->num_files; i++) {
        if (s->index && !file_exists(s->paths[i]))
            return error_set(err, "%s: this file is missing; the weights are in %d files, listed in %s", s->paths[i],
                             s->num_files, s->list);
        s->files[i] = safetensors_open(s->paths[i], err);
        if (!s->files[i]) return false;
        s->first[i + 1] = s->first[i] + safetensors_count(s->files[i]);
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
        if (file_exists(s->list))
            s->index = json_parse_file(s->list, MAX_INDEX_BYTES, err);
        else
            explain_missing(directory, err);
        if (s->index && (parse_index(s, directory, err) || error_prefix(err, "%s", s->list)) && open_files(s, err) &&
            check_index(s, err))
            return s;
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
    cJSON_Delete(s->index);
    free(s->entries);
    free(s->first);
    free(s->files);
    free(s->paths);
    free(s->list);
    free(s);
}

// ------------------------------------------------------------------------------------------------------------- tensors

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

bool weight_shards_read_bytes(WeightShards *s, int i, int64_t first, int64_t n, void *out, Error *err) {
    return safetensors_read_bytes(s->files[file_of(s, i)], weight_shards_entry(s, i), first, n, out, err);
}

bool weight_shards_read_fp32(WeightShards *s, int i, int64_t first, int64_t n, float *out, Error *err) {
    return safetensors_read_fp32(s->files[file_of(s, i)], weight_shards_entry(s, i), first, n, out, err);
}
