#include "llmc/cpu/host_memory.h"

#include <errno.h>
#include <inttypes.h>
#include <limits.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

// The number after `key` at the start of a line of a file; with an empty key, the number that the file begins with.
// false when the file, the line or the number ("max") is not there.
static bool read_number(const char *path, const char *key, uint64_t *value) {
    FILE *f = fopen(path, "r");
    if (!f) return false;
    char line[512];
    bool found = false;
    size_t length = strlen(key);
    while (!found && fgets(line, sizeof line, f))
        if (strncmp(line, key, length) == 0) found = sscanf(line + length, "%" SCNu64, value) == 1;
    fclose(f);
    return found;
}

// ------------------------------------------------------------------------------------------------------ control groups

// Where the two versions keep the same three numbers.
typedef struct {
    const char *mount, *limit, *usage, *cache_key;
} GroupFiles;

static const GroupFiles group_v1 = {"/sys/fs/cgroup/memory", "memory.limit_in_bytes", "memory.usage_in_bytes",
                                    "total_inactive_file "};
static const GroupFiles group_v2 = {"/sys/fs/cgroup", "memory.max", "memory.current", "inactive_file "};

static bool read_group_number(const char *root, const GroupFiles *files, const char *group, const char *name,
                              const char *key, uint64_t *value) {
    char path[PATH_MAX];
    int n = snprintf(path, sizeof path, "%s%s%s/%s", root, files->mount, group, name);
    return n > 0 && (size_t)n < sizeof path && read_number(path, key, value);
}

// Lowers *memory to the limit of one group, if it has one ("max" or a number beyond the RAM says it has not).
static void apply_group(const char *root, const GroupFiles *files, const char *group, HostMemory *memory) {
    uint64_t limit, usage = 0, cache = 0;
    if (!read_group_number(root, files, group, files->limit, "", &limit)) return;
    read_group_number(root, files, group, files->usage, "", &usage);
    read_group_number(root, files, group, "memory.stat", files->cache_key, &cache);
    uint64_t held = usage > cache ? usage - cache : 0; // the kernel drops inactive file pages before it kills
    uint64_t left = limit > held ? limit - held : 0;
    if (limit < memory->total) memory->total = limit;
    if (left < memory->available) memory->available = left;
}

// The group and all above it: each limits. A container often sees its own group mounted as the root: the deeper paths
// are then missing and are passed over.
static void apply_groups(const char *root, const GroupFiles *files, char *group, HostMemory *memory) {
    for (;;) {
        char *slash = strrchr(group, '/');
        bool top = !slash || slash[1] == '\0';
        if (top) *group = '\0';
        apply_group(root, files, group, memory);
        if (top) return;
        *slash = '\0';
    }
}

// Lines of /proc/self/cgroup: "0::/path" (version 2), "4:memory:/path" or "4:cpu,memory:/path" (version 1).
static void apply_control_groups(const char *root, HostMemory *memory) {
    char path[PATH_MAX], line[PATH_MAX];
    snprintf(path, sizeof path, "%s/proc/self/cgroup", root);
    FILE *f = fopen(path, "r");
    if (!f) return;
    while (fgets(line, sizeof line, f)) {
        line[strcspn(line, "\n")] = '\0';
        char *controllers = strchr(line, ':');
        char *group = controllers ? strchr(controllers + 1, ':') : NULL;
        if (!group) continue;
        *group++ = '\0';
        controllers++;
        if (*controllers == '\0')
            apply_groups(root, &group_v2, group, memory);
        else if (strstr(controllers, "memory"))
            apply_groups(root, &group_v1, group, memory);
    }
    fclose(f);
}

bool host_memory_read(const char *root, HostMemory *memory, Error *err) {
    char path[PATH_MAX];
    uint64_t total, available;
    errno = 0;
    snprintf(path, sizeof path, "%s/proc/meminfo", root);
    if (!read_number(path, "MemTotal:", &total) || !read_number(path, "MemAvailable:", &available))
        return error_set(
            err, errno == ENOMEM ? "%s: out of memory" : "%s: no MemTotal and MemAvailable; is /proc mounted?", path);
    *memory = (HostMemory){.total = total * 1024, .available = available * 1024};
    apply_control_groups(root, memory);
    return true;
}

// -------------------------------------------------------------------------------------------------------- this process

static size_t read_status(const char *key) {
    uint64_t kib;
    return read_number("/proc/self/status", key, &kib) ? (size_t)kib * 1024 : 0;
}

size_t host_memory_resident(void) { return read_status("VmRSS:"); }
size_t host_memory_resident_peak(void) { return read_status("VmHWM:"); }

void host_memory_reset_peak(void) {
    FILE *f = fopen("/proc/self/clear_refs", "w");
    if (!f) return;
    fputs("5", f); // proc(5): resets the peak resident set size
    fclose(f);
}
