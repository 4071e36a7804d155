// Binds a process to processors, see placement.h: the choice comes from /sys and from what the
// other processes may use.
#include "llmc/run/placement.h"

#include "llmc/base/arithmetic.h"
#include "llmc/base/format.h"
#include "llmc/comm/comm.h"

#include <ctype.h>
#include <errno.h>
#include <limits.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

// The threads of a process with a GPU must not wait for each other: the main one, the loader's, the
// driver's, NCCL's. With fewer processors than these each, processes share all of them instead.
enum { MIN_FOR_GPU = 4 };

// Reads a list such as "0-3,8". False: there is no such file.
static bool placement_read(cpu_set_t *set, const char *sys, const char *format, ...) {
    char path[PATH_MAX], text[4096] = "", *at = text;
    va_list args;
    va_start(args, format);
    const size_t n = (size_t)snprintf(path, sizeof path, "%s/", sys);
    if (n < sizeof path) vsnprintf(path + n, sizeof path - n, format, args);
    va_end(args);

    CPU_ZERO(set);
    FILE *f = fopen(path, "re");
    if (!f) return false;
    if (!fgets(text, sizeof text, f)) *text = '\0';
    fclose(f);

    while (isdigit((unsigned char)*at)) {
        const size_t first = strtoul(at, &at, 10);
        const size_t last = *at == '-' ? strtoul(at + 1, &at, 10) : first;
        for (size_t i = first; i <= last && i < CPU_SETSIZE; i++) CPU_SET(i, set);
        if (*at == ',') at++;
    }
    return true;
}

// "CPUs 0-3,8", as taskset -c takes it.
static const char *placement_list(const cpu_set_t *set, char text[80]) {
    size_t n = (size_t)snprintf(text, 80, "CPU%s ", CPU_COUNT(set) > 1 ? "s" : "");
    const char *comma = "";
    for (size_t first = 0, last; first < CPU_SETSIZE; first = last + 1) {
        for (last = first;
             last + 1 < CPU_SETSIZE && CPU_ISSET(first, set) && CPU_ISSET(last + 1, set);)
            last++;
        if (!CPU_ISSET(first, set)) continue;
        if (n + 16 > 80) {
            snprintf(text + n, 80 - n, "...");
            break;
        }
        n += (size_t)snprintf(text + n, 80 - n, "%s%zu", comma, first);
        if (last > first) n += (size_t)snprintf(text + n, 80 - n, "-%zu", last);
        comma = ",";
    }
    return text;
}

// Sets *cpus to what the process may use, of the processors beside its GPU if it has one. False:
// the GPU is unknown.
static bool placement_reach(cpu_set_t *cpus, const char *sys, const PlacedProcess *p) {
    *cpus = p->mask;
    if (!*p->gpu) return true;
    const bool known = placement_read(cpus, sys, "bus/pci/devices/%s/local_cpulist", p->gpu);
    CPU_AND(cpus, cpus, &p->mask);
    return known;
}

// Part `index` of `parts` of the cores in `cpus`; whole cores, so that hyper-threads stay together.
static cpu_set_t placement_part(const char *sys, const cpu_set_t *cpus, int index, int parts) {
    cpu_set_t part;
    int cores = 0;
    CPU_ZERO(&part);
    for (int pass = 0; pass < 2; pass++) { // the first counts
        const int begin = cores * index / parts, end = cores * (index + 1) / parts;
        cpu_set_t left = *cpus, core;
        cores = 0;
        for (size_t cpu = 0; cpu < CPU_SETSIZE; cpu++) {
            if (!CPU_ISSET(cpu, &left)) continue;
            placement_read(&core, sys, "devices/system/cpu/cpu%zu/topology/thread_siblings_list",
                           cpu);
            CPU_SET(cpu, &core);
            CPU_AND(&core, &core, &left);
            CPU_XOR(&left, &left, &core);
            if (cores >= begin && cores < end) CPU_OR(&part, &part, &core);
            cores++;
        }
    }
    return part;
}

// The nodes of process `index` of several on the CPU; all of them where they cannot be divided
// equally. It may use all processors of a node: its threads wait for each other, so the system must
// be able to move one away from a processor that another program takes.
static cpu_set_t placement_nodes(const char *sys, const cpu_set_t *cpus, int index, int processes) {
    cpu_set_t online, nodes[64], chosen;
    int count = 0;
    placement_read(&online, sys, "devices/system/node/online");
    for (size_t i = 0; i < CPU_SETSIZE && count < 64; i++) {
        if (!CPU_ISSET(i, &online)) continue;
        placement_read(&nodes[count], sys, "devices/system/node/node%zu/cpulist", i);
        CPU_AND(&nodes[count], &nodes[count], cpus);
        if (CPU_COUNT(&nodes[count]) > 0) count++;
    }

    if (count == 0 || (processes % count != 0 && count % processes != 0)) return *cpus;
    CPU_ZERO(&chosen);
    const int first = index * count / processes;
    for (int i = first; i < first + max_i64(count / processes, 1); i++)
        CPU_OR(&chosen, &chosen, &nodes[i]);
    return chosen;
}

cpu_set_t placement_choose(const char *sys, const PlacedProcess *all, int count, int rank,
                           char text[PLACEMENT_TEXT]) {
    const PlacedProcess *me = &all[rank];
    char here[80], there[80];
    cpu_set_t cpus, other;
    int index = 0, sharing = 1; // this process

    *text = '\0';
    placement_list(&me->mask, here);
    if (!placement_reach(&cpus, sys, me)) {
        snprintf(text, PLACEMENT_TEXT, "not bound: GPU %s is not in %s", me->gpu, sys);
        return me->mask;
    }

    if (CPU_COUNT(&cpus) == 0) {
        placement_read(&cpus, sys, "bus/pci/devices/%s/local_cpulist", me->gpu);
        snprintf(text, PLACEMENT_TEXT, "not bound: GPU %s is beside %s; this process may use %s",
                 me->gpu, placement_list(&cpus, there), here);
        return me->mask;
    }

    for (int i = 0; i < count; i++) {
        const bool same_host = strcmp(all[i].host, me->host) == 0;
        if (i == rank || !same_host || !placement_reach(&other, sys, &all[i]) ||
            !CPU_EQUAL(&other, &cpus))
            continue;
        index += i < rank;
        sharing++;
    }

    if (*me->gpu && CPU_COUNT(&cpus) / sharing >= MIN_FOR_GPU)
        cpus = placement_part(sys, &cpus, index, sharing);
    if (!*me->gpu && sharing > 1) cpus = placement_nodes(sys, &cpus, index, sharing);
    if (!*me->gpu && me->threads > CPU_COUNT(&cpus)) { // they would wait for each other
        snprintf(text, PLACEMENT_TEXT, "not bound: %d threads on %s", me->threads,
                 placement_list(&cpus, there));
        return me->mask;
    }

    if (!CPU_EQUAL(&cpus, &me->mask))
        snprintf(text, PLACEMENT_TEXT, "%s%s%s", placement_list(&cpus, there),
                 *me->gpu ? ", beside GPU " : "", me->gpu);
    else if (placement_read(&other, sys, "devices/system/cpu/online") && !CPU_EQUAL(&cpus, &other))
        snprintf(text, PLACEMENT_TEXT, "%s, as it was started", here);
    else if (sharing > 1)
        snprintf(text, PLACEMENT_TEXT, "not bound: %d processes share %s", sharing, here);

    return cpus;
}

bool placement_bind(Placement *p, const char *gpu, int threads, Error *err) {
    // place its threads
    static const char *const OPENMP[] = {"OMP_PROC_BIND", "OMP_PLACES", "GOMP_CPU_AFFINITY"};
    *p = (Placement){""};
    if (comm_size() == 1 && !*gpu) return true;

    PlacedProcess me;
    char mine[PLACEMENT_TEXT] = "";
    memset(&me, 0, sizeof me); // padding is sent, too
    me.threads = threads;
    if (threads <= 0) me.threads = comm_cores();

    snprintf(me.gpu, sizeof me.gpu, "%s", gpu);
    gethostname(me.host, sizeof me.host - 1);
    for (char *c = me.gpu; *c; c++) *c = (char)tolower((unsigned char)*c);

    for (size_t i = 0; i < sizeof OPENMP / sizeof *OPENMP; i++) {
        const char *value = getenv(OPENMP[i]);
        if (value && *value && strcasecmp(value, "false") != 0)
            snprintf(mine, sizeof mine, "not bound: %s is set", OPENMP[i]);
    }

    if (sched_getaffinity(0, sizeof me.mask, &me.mask) != 0) // over 1024 processors
        snprintf(mine, sizeof mine, "not bound: %s", strerror(errno));
    PlacedProcess *all = comm_gather_new(&me, sizeof me, err);
    if (!all) return false;

    if (!*mine) {
        const cpu_set_t cpus = placement_choose("/sys", all, comm_size(), comm_rank(), mine);
        if (!CPU_EQUAL(&cpus, &me.mask) && sched_setaffinity(0, sizeof cpus, &cpus) != 0)
            snprintf(mine, sizeof mine, "not bound: %s", strerror(errno));
    }

    char(*texts)[PLACEMENT_TEXT] = comm_gather_new(mine, PLACEMENT_TEXT, err);
    size_t n = 0;
    for (int i = 0; texts && i < comm_size() && n + PLACEMENT_TEXT + 20 < sizeof p->text; i++) {
        if (!*texts[i] || strcmp(all[i].host, me.host) != 0) continue;
        if (comm_size() > 1)
            n += (size_t)snprintf(p->text + n, 20, "%sprocess %d: ", n ? "\n" : "", i);
        n += (size_t)snprintf(p->text + n, PLACEMENT_TEXT, "%s", texts[i]);
    }

    free(all);
    free(texts);
    return texts != NULL;
}
