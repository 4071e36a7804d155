// Limits of this process, its processors and control groups. See limits.h.
#include "llmc/base/limits.h"

#include "llmc/base/arithmetic.h"
#include "llmc/base/format.h"
#include "llmc/base/output.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <math.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

// ------------------------------------------------------------------------------------ this process

// THREAD_STACK is what Linux usually gives. The main thread of a run needs 80 KiB; only the system
// can enlarge its stack.
enum { THREAD_STACK = 8 << 20, SMALLEST_STACK = 192 << 10 };

// Raises a soft limit to `wanted` (RLIM_INFINITY: as far as possible), beyond the hard one if that
// is permitted.
static rlim_t raise_limit(unsigned resource, rlim_t wanted) {
    struct rlimit limit;
    if (getrlimit(resource, &limit) != 0) return RLIM_INFINITY;
    if (limit.rlim_cur >= wanted) return limit.rlim_cur;
    if (wanted != RLIM_INFINITY && wanted > limit.rlim_max &&
        setrlimit(resource, &(struct rlimit){wanted, wanted}) == 0)
        return wanted;
    limit.rlim_cur = min_size(limit.rlim_max, wanted);
    setrlimit(resource, &limit);
    getrlimit(resource, &limit);
    return limit.rlim_cur;
}

void limits_start(void) {
    // Opens /dev/null in place of any of stdin, stdout and stderr that is closed. Otherwise the
    // next file to be opened would get its number, and the lines meant for the terminal.
    int fd;
    do fd = open("/dev/null", O_RDWR); // the lowest free number
    while (fd >= 0 && fd <= STDERR_FILENO);
    if (fd >= 0) close(fd);
    output_start();

    signal(SIGXFSZ, SIG_IGN);
    raise_limit(RLIMIT_NOFILE, RLIM_INFINITY); // each shard is an open file
    pthread_attr_t attributes;
    if (pthread_attr_init(&attributes) == 0) {
        if (pthread_attr_setstacksize(&attributes, THREAD_STACK) == 0)
            pthread_setattr_default_np(&attributes);
        pthread_attr_destroy(&attributes);
    }
    const rlim_t stack = raise_limit(RLIMIT_STACK, THREAD_STACK);
    if (stack >= SMALLEST_STACK) return;
    fprintf(stderr,
            "%s: the stack is limited to %ju bytes, expected at least %d; ulimit -s %d in this "
            "shell, or in one "
            "without the limit, sets more\n",
            program_invocation_name, (uintmax_t)stack, SMALLEST_STACK, THREAD_STACK >> 10);
    exit(EXIT_RUN_FAILED);
}

// "102400 bytes", "unlimited"
static const char *limit_text(unsigned resource, const char *unit, char *text, size_t size) {
    struct rlimit limit;
    if (getrlimit(resource, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY)
        snprintf(text, size, "unlimited");
    else
        snprintf(text, size, "%ju%s", (uintmax_t)limit.rlim_cur, unit);
    return text;
}

const char *limits_reason(int error) {
    static _Thread_local char text[160];
    char limit[40];
    if (error != EFBIG && error != EMFILE) return strerror(error);
    if (error == EFBIG)
        snprintf(text, sizeof text, "%s (limit of this process: %s, ulimit -f)", strerror(error),
                 limit_text(RLIMIT_FSIZE, " bytes", limit, sizeof limit));
    else
        snprintf(text, sizeof text, "%s (limit of this process: %s, ulimit -n)", strerror(error),
                 limit_text(RLIMIT_NOFILE, " files", limit, sizeof limit));
    return text;
}

const char *limits_of_memory(void) {
    static _Thread_local char text[100];
    char space[40];
    struct rlimit limit;
    text[0] = '\0';
    if (getrlimit(RLIMIT_AS, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY)
        snprintf(text, sizeof text, " (limit of this process: %s, ulimit -v)",
                 limit_text(RLIMIT_AS, " bytes", space, sizeof space));
    return text;
}

// ----------------------------------------------------------------------------------------- threads

bool limits_thread_failed(const char *what, int error, Error *err) {
    char processes[40], space[40];
    return error_set(err,
                     "cannot start %s: %s; limits of this process: %s processes and threads "
                     "(ulimit -u), %s of address "
                     "space (ulimit -v); raise them, or use fewer --threads",
                     what, strerror(error),
                     limit_text(RLIMIT_NPROC, "", processes, sizeof processes),
                     limit_text(RLIMIT_AS, " bytes", space, sizeof space));
}

static void *wait_at_gate(void *gate) {
    pthread_mutex_lock(gate);
    pthread_mutex_unlock(gate);
    return NULL;
}

bool limits_check_threads(int count, Error *err) {
    pthread_mutex_t gate = PTHREAD_MUTEX_INITIALIZER;
    pthread_t *threads = calloc((size_t)count + 1, sizeof *threads);
    REQUIRE_MEMORY(threads, "%d threads", count);
    int started = 0, status = 0;
    pthread_mutex_lock(&gate);
    while (started < count &&
           (status = pthread_create(&threads[started], NULL, wait_at_gate, &gate)) == 0)
        started++;
    pthread_mutex_unlock(&gate);
    for (int i = 0; i < started; i++) pthread_join(threads[i], NULL);
    free(threads);
    char what[40];
    snprintf(what, sizeof what, "thread %d of %d", started + 2, count + 1); // the first is this one
    if (status != 0) return limits_thread_failed(what, status, err);
    return true;
}

// ---------------------------------------------------------------------------------- control groups

bool limits_read_number(const char *path, const char *key, uint64_t *value) {
    FILE *f = fopen(path, "re");
    if (!f) return false;
    char line[512];
    bool found = false;
    size_t length = strlen(key);
    while (!found && fgets(line, sizeof line, f))
        if (strncmp(line, key, length) == 0) found = sscanf(line + length, "%" SCNu64, value) == 1;
    fclose(f);
    return found;
}

// Lines of /proc/self/cgroup: "0::/path" (version 2), "4:memory:/path" or "4:cpu,memory:/path"
// (version 1).
void limits_visit_groups(const char *root, const char *controller, GroupVisitor *visit,
                         void *context) {
    char path[PATH_MAX], mount[PATH_MAX], line[PATH_MAX];
    snprintf(path, sizeof path, "%s/proc/self/cgroup", root);
    FILE *f = fopen(path, "re");
    if (!f) return;

    while (fgets(line, sizeof line, f)) {
        line[strcspn(line, "\n")] = '\0';
        char *controllers = strchr(line, ':'), *group = NULL, *rest = NULL;
        if (controllers) group = strchr(controllers + 1, ':');
        if (!group) continue;
        *group++ = '\0';

        const bool is_second = *++controllers == '\0';
        bool has_it = is_second;
        for (char *name = strtok_r(controllers, ",", &rest); name;
             name = strtok_r(NULL, ",", &rest))
            has_it |= strcmp(name, controller) == 0;
        if (!has_it) continue;

        snprintf(mount, sizeof mount, "%s/sys/fs/cgroup%s%s", root, is_second ? "" : "/",
                 is_second ? "" : controller);
        for (bool is_top = false;
             !is_top;) { // the group and all its ancestors, from "/a/b" up to ""
            char directory[PATH_MAX], *slash = strrchr(group, '/');
            is_top = !slash || slash[1] == '\0';
            if (is_top) *group = '\0';
            const int n = snprintf(directory, sizeof directory, "%s%s", mount, group);
            if (n > 0 && (size_t)n < sizeof directory) visit(context, directory, 1 + is_second);
            if (!is_top) *slash = '\0';
        }
    }
    fclose(f);
}

// -------------------------------------------------------------------------------------- processors

// Lowers *context, a quota in processors, to that of one group. Version 2: "50000 100000" or "max
// 100000" in one file; version 1: quota (-1: none) and period in two.
static void apply_quota(void *context, const char *directory, int version) {
    double *least = context;
    char path[PATH_MAX + 32];
    long long quota = -1, period = 0;
    const char *name = version == 1 ? "cpu.cfs_quota_us" : "cpu.max";
    snprintf(path, sizeof path, "%s/%s", directory, name);
    FILE *f = fopen(path, "re");
    if (!f) return;
    const int read = fscanf(f, "%lld %lld", &quota, &period);
    fclose(f);
    uint64_t us = 0;
    snprintf(path, sizeof path, "%s/cpu.cfs_period_us", directory);
    if (version == 1 && limits_read_number(path, "", &us)) period = (long long)us;
    if (read >= 1 && quota > 0 && period > 0) *least = fmin(*least, (double)quota / (double)period);
}

double limits_quota(const char *root) {
    double least = INFINITY;
    limits_visit_groups(root, "cpu", apply_quota, &least);
    return least;
}

int limits_processors(void) {
    cpu_set_t mask;
    // where there are more than a mask can name
    const int online = (int)sysconf(_SC_NPROCESSORS_ONLN);
    const int allowed = sched_getaffinity(0, sizeof mask, &mask) == 0 ? CPU_COUNT(&mask) : online;
    return (int)fmax(1.0, fmin(allowed, ceil(limits_quota(""))));
}
