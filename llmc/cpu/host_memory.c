// Linux's figures of memory and caches: /proc, /sys, control groups (version 1 and 2) and limits of
// this process.
#include "llmc/cpu/host_memory.h"
#include "llmc/base/arithmetic.h"
#include "llmc/base/limits.h"

#include <errno.h>
#include <limits.h>
#include <sched.h>
#include <stdint.h>
#include <stdio.h>
#include <sys/resource.h>

// The files of control groups in which the two versions keep the same three numbers.
static const struct {
    const char *limit, *usage, *cache_key;
} group_files[] = {[1] = {"memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file "},
                   [2] = {"memory.max", "memory.current", "inactive_file "}};

static bool read_group_number(const char *directory, const char *name, const char *key,
                              uint64_t *value) {
    char path[PATH_MAX + 32];
    snprintf(path, sizeof path, "%s/%s", directory, name);
    return limits_read_number(path, key, value);
}

// Lowers *context to the limit of one group, if it has one ("max" or a number beyond the RAM says
// it has not).
static void apply_group(void *context, const char *directory, int version) {
    HostMemory *memory = context;
    uint64_t limit, usage = 0, cache = 0;
    if (!read_group_number(directory, group_files[version].limit, "", &limit)) return;
    read_group_number(directory, group_files[version].usage, "", &usage);
    read_group_number(directory, "memory.stat", group_files[version].cache_key, &cache);
    // the kernel drops inactive file pages before it kills
    const uint64_t held = usage - min_size(usage, cache);
    memory->total = min_size(memory->total, limit);
    memory->available = min_size(memory->available, limit - min_size(limit, held));
}

size_t host_memory_status(const char *key) {
    uint64_t kib;
    if (limits_read_number("/proc/self/status", key, &kib)) return (size_t)kib * 1024;
    return 0;
}

// Lowers *memory to what a limit of this process leaves; `key`: what counts in it.
static void apply_limit(unsigned resource, const char *key, HostMemory *memory) {
    struct rlimit limit;
    if (getrlimit(resource, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) return;
    const size_t allowed = limit.rlim_cur, held = host_memory_status(key);
    memory->total = min_size(memory->total, allowed);
    memory->available = min_size(memory->available, allowed - min_size(allowed, held));
}

bool host_memory_read(const char *root, HostMemory *memory, Error *err) {
    char path[PATH_MAX];
    uint64_t total, available;
    errno = 0;
    snprintf(path, sizeof path, "%s/proc/meminfo", root);
    if (!limits_read_number(path, "MemTotal:", &total) ||
        !limits_read_number(path, "MemAvailable:", &available)) {
        if (errno == ENOMEM) return error_set(err, "%s: out of memory", path);
        return error_set(err, "%s: no MemTotal and MemAvailable; is /proc mounted?", path);
    }
    *memory = (HostMemory){.total = total * 1024, .available = available * 1024};
    limits_visit_groups(root, "memory", apply_group, memory);
    apply_limit(RLIMIT_AS, "VmSize:", memory);
    apply_limit(RLIMIT_DATA, "VmData:", memory);
    return true;
}

size_t host_cache_bytes(const char *root) {
    enum { MOST_CACHES = 1024 };
    bool seen[MOST_CACHES] = {false};
    cpu_set_t allowed;
    size_t bytes = 0;
    if (sched_getaffinity(0, sizeof allowed, &allowed) != 0) return 0;
    for (size_t cpu = 0; cpu < CPU_SETSIZE; cpu++) {
        char id_path[PATH_MAX], size_path[PATH_MAX];
        uint64_t id, kib;
        if (!CPU_ISSET(cpu, &allowed)) continue;
        snprintf(id_path, sizeof id_path, "%s/sys/devices/system/cpu/cpu%zu/cache/index3/id", root,
                 cpu);
        snprintf(size_path, sizeof size_path, "%s/sys/devices/system/cpu/cpu%zu/cache/index3/size",
                 root, cpu);
        if (!limits_read_number(id_path, "", &id) || id >= MOST_CACHES || seen[id]) continue;
        seen[id] = true;
        if (limits_read_number(size_path, "", &kib)) bytes += (size_t)kib * 1024; // "32768K"
    }
    return bytes;
}
