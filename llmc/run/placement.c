// See placement.h. hwloc is found at run time (one dlopen, one table of functions, as for NCCL), with the headers of
// the build; everything after describe() is arithmetic on sets of processors.
#include "llmc/run/placement.h"

#include "llmc/base/limits.h"
#include "llmc/comm/comm.h"

#include <ctype.h>
#include <dlfcn.h>
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#if !defined(WITHOUT_HWLOC) && defined(__has_include)
#if __has_include(<hwloc.h>)
#include <hwloc.h>
#if HWLOC_API_VERSION >= 0x20000 && HWLOC_API_VERSION < 0x30000
#define HAVE_HWLOC
#endif
#endif
#endif

// ----------------------------------------------------------------------------------------------------- the machine

enum { MOST_CPUS = CPU_SETSIZE, MOST_NODES = 64 };

static bool has(const cpu_set_t *set, int cpu) { return CPU_ISSET((size_t)cpu, set); }
static void put(cpu_set_t *set, int cpu) { CPU_SET((size_t)cpu, set); }

// A machine as far as the choice needs it. Processors (hardware threads) in hwloc's order, in which those of a core, of
// a node and of a socket are neighbours, whatever the operating system numbers them.
typedef struct {
    bool is_here;
    int count, num_nodes;
    int cpus[MOST_CPUS], cores[MOST_CPUS]; // its number; the core that it belongs to
    int nodes[MOST_NODES];                 // the number of a node
    cpu_set_t node_cpus[MOST_NODES], all;
} Machine;

#ifdef HAVE_HWLOC
#define HWLOC_FUNCTIONS(F)                                                                                             \
    F(hwloc_topology_init)                                                                                             \
    F(hwloc_topology_set_type_filter)                                                                                  \
    F(hwloc_topology_load)                                                                                             \
    F(hwloc_topology_destroy)                                                                                          \
    F(hwloc_topology_is_thissystem)                                                                                    \
    F(hwloc_get_type_depth)                                                                                            \
    F(hwloc_get_nbobjs_by_depth)                                                                                       \
    F(hwloc_get_obj_by_depth)                                                                                          \
    F(hwloc_bitmap_next)
static struct {
#define HWLOC_FUNCTION(name) __typeof__(name) *name;
    HWLOC_FUNCTIONS(HWLOC_FUNCTION)
#undef HWLOC_FUNCTION
} hwloc;

static bool load_hwloc(Error *err) {
    const char *chosen = getenv("HWLOC_LIBRARY"), *file = chosen && *chosen ? chosen : "libhwloc.so.15";
    void *handle = dlopen(file, RTLD_NOW | RTLD_LOCAL); // never closed: another library may use it too
    if (!handle) return error_set(err, "hwloc is not installed (Debian: libhwloc15)");
#define LOAD_FUNCTION(name)                                                                                            \
    *(void **)&hwloc.name = dlsym(handle, #name);                                                                      \
    if (!hwloc.name) return error_set(err, "%s has no function %s", file, #name);
    HWLOC_FUNCTIONS(LOAD_FUNCTION)
#undef LOAD_FUNCTION
    return true;
}

static cpu_set_t to_set(hwloc_const_cpuset_t bitmap) {
    cpu_set_t set;
    CPU_ZERO(&set);
    for (int cpu = -1; (cpu = hwloc.hwloc_bitmap_next(bitmap, cpu)) >= 0 && cpu < MOST_CPUS;) put(&set, cpu);
    return set;
}

static void describe(Machine *m, hwloc_topology_t t) {
    const int depth = hwloc.hwloc_get_type_depth(t, HWLOC_OBJ_PU), nodes = HWLOC_TYPE_DEPTH_NUMANODE;
    m->is_here = hwloc.hwloc_topology_is_thissystem(t);
    for (unsigned i = 0; i < hwloc.hwloc_get_nbobjs_by_depth(t, depth); i++) {
        hwloc_obj_t pu = hwloc.hwloc_get_obj_by_depth(t, depth, i), core = pu;
        if (!pu || pu->os_index >= MOST_CPUS) continue;
        while (core && core->type != HWLOC_OBJ_CORE) core = core->parent;
        m->cpus[m->count] = (int)pu->os_index;
        m->cores[m->count++] = core ? (int)core->logical_index : -1 - (int)i; // of its own
        put(&m->all, (int)pu->os_index);
    }
    for (unsigned i = 0; i < hwloc.hwloc_get_nbobjs_by_depth(t, nodes) && m->num_nodes < MOST_NODES; i++) {
        hwloc_obj_t node = hwloc.hwloc_get_obj_by_depth(t, nodes, i);
        m->node_cpus[m->num_nodes] = to_set(node->cpuset);
        if (CPU_COUNT(&m->node_cpus[m->num_nodes]) == 0) continue; // memory alone
        m->nodes[m->num_nodes++] = (int)node->os_index;
    }
}

// The processors beside a PCI device: those of the smallest object that it is connected to. False: it is not there.
static bool beside(hwloc_topology_t t, const char *address, cpu_set_t *cpus) {
    unsigned domain, bus, device, function;
    if (sscanf(address, "%x:%x:%x.%x", &domain, &bus, &device, &function) != 4) return false;
    for (unsigned i = 0; i < hwloc.hwloc_get_nbobjs_by_depth(t, HWLOC_TYPE_DEPTH_PCI_DEVICE); i++) {
        hwloc_obj_t o = hwloc.hwloc_get_obj_by_depth(t, HWLOC_TYPE_DEPTH_PCI_DEVICE, i);
        const struct hwloc_pcidev_attr_s *at = &o->attr->pcidev;
        if (at->domain != domain || at->bus != bus || at->dev != device || at->func != function) continue;
        while (!o->cpuset) o = o->parent;
        *cpus = to_set(o->cpuset);
        return true;
    }
    return false;
}

// Also sets beside_gpu[i] to the processors beside the GPU of process i, none where hwloc does not find it.
static bool read_machine(Machine *m, const PlacedProcess *all, int count, cpu_set_t *beside_gpu, Error *err) {
    hwloc_topology_t t;
    memset(m, 0, sizeof *m);
    if (!load_hwloc(err)) return false;
    setenv("HWLOC_HIDE_ERRORS", "2", 0); // what is strange about a machine is of no use here
    if (hwloc.hwloc_topology_init(&t) != 0) return error_set(err, "hwloc does not start");
    // Not all of I/O: hwloc's plugins for CUDA and OpenCL would start these.
    hwloc.hwloc_topology_set_type_filter(t, HWLOC_OBJ_PCI_DEVICE, HWLOC_TYPE_FILTER_KEEP_IMPORTANT);
    const bool ok = hwloc.hwloc_topology_load(t) == 0;
    if (ok) describe(m, t);
    for (int i = 0; ok && i < count; i++)
        if (!beside(t, all[i].gpu, &beside_gpu[i])) CPU_ZERO(&beside_gpu[i]);
    hwloc.hwloc_topology_destroy(t);
    return ok || error_set(err, "hwloc cannot read this machine");
}
#else
static bool read_machine(Machine *m, const PlacedProcess *all, int count, cpu_set_t *beside_gpu, Error *err) {
    (void)all, (void)count, (void)beside_gpu;
    memset(m, 0, sizeof *m);
    return error_set(err, "built without hwloc (no header hwloc.h of version 2: libhwloc-dev)");
}
#endif

// ------------------------------------------------------------------------------------------------------ sets in words

// "0-3,8", as taskset -c takes it.
typedef struct {
    char text[80];
} Listed;

static Listed list(const cpu_set_t *set) {
    Listed l = {""};
    size_t n = 0;
    for (int first = 0; first < MOST_CPUS; first++) {
        int last = first;
        if (!has(set, first)) continue;
        while (last + 1 < MOST_CPUS && has(set, last + 1)) last++;
        if (n + 12 > sizeof l.text) return memcpy(l.text + n, "...", 4), l;
        n += (size_t)snprintf(l.text + n, sizeof l.text - n, last > first ? "%s%d-%d" : "%s%d", n ? "," : "", first,
                              last);
        first = last;
    }
    return l;
}

// "CPUs 0-3 of node 0"
typedef struct {
    char text[128];
} Described;

static Described in_words(const Machine *m, const cpu_set_t *cpus) {
    Described d;
    cpu_set_t nodes, common;
    CPU_ZERO(&nodes);
    for (int i = 0; i < m->num_nodes; i++) {
        CPU_AND(&common, cpus, &m->node_cpus[i]);
        if (CPU_COUNT(&common) > 0 && m->nodes[i] < MOST_CPUS) put(&nodes, m->nodes[i]);
    }
    snprintf(d.text, sizeof d.text, "CPU%s %s of node%s %.30s", CPU_COUNT(cpus) > 1 ? "s" : "", list(cpus).text,
             CPU_COUNT(&nodes) > 1 ? "s" : "", list(&nodes).text);
    return d;
}

// --------------------------------------------------------------------------------------------------------- the choice

bool placement_check(const char *numa, Error *err) {
    const size_t digits = strspn(numa, "0123456789");
    if (strcmp(numa, "auto") == 0 || strcmp(numa, "off") == 0 || (digits > 0 && digits < 5 && !numa[digits]))
        return true;
    return error_set(err, "--numa %.40s: must be auto, off, or the number of a NUMA node (lscpu lists them)", numa);
}

static bool is_node(const char *numa) { return isdigit((unsigned char)*numa); }

// A GPU's process has threads besides the main one that must not wait for each other: the loader's reader, the
// driver's, NCCL's. With fewer processors than these each, processes share all of them instead.
enum { LEAST_FOR_GPU = 4 };

// Part `index` of `parts` of the cores in *cpus; whole cores, so that hyper-threads stay together. False: too few.
static bool divide(const Machine *m, cpu_set_t *cpus, int index, int parts, bool for_gpu) {
    cpu_set_t part;
    int cores = 0, core = -1;
    for (int i = 0, last = INT_MAX; i < m->count; i++)
        if (has(cpus, m->cpus[i]) && m->cores[i] != last) last = m->cores[i], cores++;
    if (cores < parts) return false;
    CPU_ZERO(&part);
    const int begin = (int)((int64_t)cores * index / parts), end = (int)((int64_t)cores * (index + 1) / parts);
    for (int i = 0, last = INT_MAX; i < m->count; i++) {
        if (!has(cpus, m->cpus[i])) continue;
        if (m->cores[i] != last) last = m->cores[i], core++;
        if (core >= begin && core < end) put(&part, m->cpus[i]);
    }
    if (for_gpu && CPU_COUNT(cpus) / parts < LEAST_FOR_GPU) return false;
    *cpus = part;
    return true;
}

// Of *cpus those of the nodes that the share touches. Processes on the CPU are not bound to single cores: they compute
// with all their threads and wait for each other, so the system must be able to move a thread away from a core that
// another program takes.
static void keep_nodes_of(const Machine *m, cpu_set_t *cpus, const cpu_set_t *share) {
    cpu_set_t nodes, common;
    CPU_ZERO(&nodes);
    for (int i = 0; i < m->num_nodes; i++) {
        CPU_AND(&common, share, &m->node_cpus[i]);
        if (CPU_COUNT(&common) > 0) CPU_OR(&nodes, &nodes, &m->node_cpus[i]);
    }
    if (CPU_COUNT(&nodes) > 0) CPU_AND(cpus, cpus, &nodes);
}

// What a process may use of what it should: *mask is replaced by it. False: nothing is left.
static bool narrow(cpu_set_t *mask, const Machine *m, const cpu_set_t *beside_gpu, const cpu_set_t *node) {
    CPU_AND(mask, mask, &m->all);
    if (node)
        CPU_AND(mask, mask, node);
    else if (CPU_COUNT(beside_gpu) > 0)
        CPU_AND(mask, mask, beside_gpu);
    return CPU_COUNT(mask) > 0;
}

// "0, 1 and 2"
static void list_nodes(const Machine *m, char *text, size_t size) {
    size_t n = 0;
    for (int i = 0; i < m->num_nodes && n < size; i++)
        n += (size_t)snprintf(text + n, size - n, "%s%d",
                              i == 0                 ? ""
                              : i + 1 < m->num_nodes ? ", "
                                                     : " and ",
                              m->nodes[i]);
}

static bool find_node(const Machine *m, const char *numa, const cpu_set_t **node, Error *err) {
    char nodes[128] = "none";
    *node = NULL;
    for (int i = 0; i < m->num_nodes && is_node(numa); i++)
        if (m->nodes[i] == atoi(numa)) *node = &m->node_cpus[i];
    list_nodes(m, nodes, sizeof nodes);
    return *node || !is_node(numa) ||
           error_set(err, "--numa %s: no such NUMA node with processors; there %s %s", numa,
                     m->num_nodes == 1 ? "is only" : "are", nodes);
}

// Fills c->text: why the process keeps what it has.
static void explain(PlacementChoice *c, const Machine *m, const PlacedProcess *me, bool gpu_found, bool asked,
                    int sharing) {
    const Described here = in_words(m, &c->cpus);
    if (*me->gpu && !gpu_found)
        snprintf(c->text, sizeof c->text, "not bound: hwloc does not find GPU %s", me->gpu);
    else if (!CPU_EQUAL(&c->cpus, &m->all))
        snprintf(c->text, sizeof c->text, "%s, as it was started", here.text);
    else if (sharing > 1)
        snprintf(c->text, sizeof c->text, "not bound: %d processes share %s", sharing, here.text);
    else if (asked)
        snprintf(c->text, sizeof c->text, "%s, all there are", here.text);
}

// The processes whose processors are *cpus too; a launcher, or PCI, has separated the others. Sets *index to the number
// of those before this one.
static int sharers(const Machine *m, const cpu_set_t *cpus, const cpu_set_t *beside_gpu, const cpu_set_t *node,
                   const PlacedProcess *all, int count, int rank, int *index) {
    int sharing = 0;
    *index = 0;
    for (int i = 0; i < count; i++) {
        cpu_set_t other = all[i].mask;
        if (strcmp(all[i].host, all[rank].host) != 0 || !narrow(&other, m, &beside_gpu[i], node)) continue;
        if (!CPU_EQUAL(&other, cpus)) continue;
        *index += i < rank, sharing++;
    }
    return sharing;
}

static bool choose(PlacementChoice *c, const Machine *m, const cpu_set_t *beside_gpu, const char *numa,
                   const PlacedProcess *all, int count, int rank, Error *err) {
    const PlacedProcess *me = &all[rank];
    const bool on_cpu = !*me->gpu, gpu_found = CPU_COUNT(&beside_gpu[rank]) > 0;
    const cpu_set_t *node;
    cpu_set_t mask, cpus = me->mask;
    if (!find_node(m, numa, &node, err)) return false;
    CPU_AND(&mask, &me->mask, &m->all);
    c->cpus = mask;
    if (!narrow(&cpus, m, &beside_gpu[rank], node)) {
        if (node) return error_set(err, "--numa %s: this process may only use %s", numa, in_words(m, &mask).text);
        snprintf(c->text, sizeof c->text, "not bound: GPU %s is beside %.70s; this process may use %.60s", me->gpu,
                 in_words(m, &beside_gpu[rank]).text, in_words(m, &mask).text);
        return true;
    }
    int index;
    const int sharing = sharers(m, &cpus, beside_gpu, node, all, count, rank, &index);
    cpu_set_t share = cpus;
    const bool divided = sharing > 1 && divide(m, &share, index, sharing, !on_cpu);
    c->threads = divided ? CPU_COUNT(&share) : CPU_COUNT(&cpus) > sharing ? CPU_COUNT(&cpus) / sharing : 1;
    if (divided && on_cpu)
        keep_nodes_of(m, &cpus, &share);
    else if (divided)
        cpus = share;
    const int processors = CPU_COUNT(&cpus);
    if (on_cpu && me->threads > processors) { // they would wait for each other
        snprintf(c->text, sizeof c->text, "not bound: --threads %d on %d processor%s", me->threads, processors,
                 processors == 1 ? "" : "s");
        c->threads = 0;
        return !node || error_set(err, "--numa %s: %s", numa, c->text);
    }
    if (CPU_EQUAL(&cpus, &mask)) return c->threads = 0, explain(c, m, me, gpu_found, node != NULL, sharing), true;
    c->binds = true;
    c->cpus = cpus;
    snprintf(c->text, sizeof c->text, "%s%s%s%s", in_words(m, &cpus).text, gpu_found && !node ? ", beside GPU " : "",
             gpu_found && !node ? me->gpu : "", processors > c->threads ? ", shared with other processes" : "");
    return true;
}

bool placement_choose(PlacementChoice *c, const char *numa, const PlacedProcess *all, int count, int rank, Error *err) {
    Error why;
    Machine *m = malloc(sizeof *m);
    cpu_set_t *beside_gpu = calloc((size_t)count, sizeof *beside_gpu);
    REQUIRE_MEMORY(m && beside_gpu, "the description of the machine");
    *c = (PlacementChoice){.cpus = all[rank].mask};
    const bool known = read_machine(m, all, count, beside_gpu, &why);
    bool ok = true;
    c->is_here = known && m->is_here;
    if (known)
        ok = choose(c, m, beside_gpu, numa, all, count, rank, err);
    else if (is_node(numa))
        ok = error_set(err, "--numa %s: %.150s", numa, why.text);
    else
        snprintf(c->text, sizeof c->text, "not bound: %.150s", why.text);
    free(beside_gpu);
    free(m);
    return ok;
}

// ------------------------------------------------------------------------------------------------------- this process

// OpenMP's own variables place its threads.
static const char *openmp_places(void) {
    static const char *const NAMES[][2] = {{"OMP_PROC_BIND", "OMP_PROC_BIND is set"},
                                           {"OMP_PLACES", "OMP_PLACES is set"},
                                           {"GOMP_CPU_AFFINITY", "GOMP_CPU_AFFINITY is set"}};
    for (size_t i = 0; i < sizeof NAMES / sizeof *NAMES; i++) {
        const char *value = getenv(NAMES[i][0]);
        if (value && *value && strcasecmp(value, "false") != 0) return NAMES[i][1];
    }
    return NULL;
}

static bool bind_here(PlacementChoice *c, const char *numa, const PlacedProcess *all, Error *err) {
    if (!placement_choose(c, numa, all, comm_size(), comm_rank(), err)) return false;
    if (!c->binds || (c->is_here && sched_setaffinity(0, sizeof c->cpus, &c->cpus) == 0)) return true;
    snprintf(c->text, sizeof c->text, "not bound: %s",
             c->is_here ? strerror(errno) : "hwloc describes another machine (HWLOC_XMLFILE?)");
    c->threads = 0;
    return !is_node(numa) || error_set(err, "--numa %s: %s", numa, c->text);
}

// What each process of this machine did, if there are several.
static bool gather_text(Placement *p, const PlacementChoice *mine, const PlacedProcess *all, Error *err) {
    char(*texts)[PLACEMENT_TEXT] = comm_gather_new(mine->text, PLACEMENT_TEXT, err);
    size_t n = 0;
    if (!texts) return false;
    for (int i = 0; i < comm_size() && n + PLACEMENT_TEXT + 20 < sizeof p->text; i++) {
        if (!*texts[i] || strcmp(all[i].host, all[comm_rank()].host) != 0) continue;
        if (comm_size() > 1) n += (size_t)snprintf(p->text + n, 20, "%sprocess %d: ", n ? "\n" : "", i);
        n += (size_t)snprintf(p->text + n, PLACEMENT_TEXT, "%s", texts[i]);
    }
    free(texts);
    return true;
}

bool placement_bind(Placement *p, const char *numa, const char *gpu, int threads, Error *err) {
    PlacedProcess me;
    PlacementChoice c = {.text = ""};
    *p = (Placement){0, ""};
    // Nothing to choose, so that hwloc (40 ms) is not asked.
    if (strcmp(numa, "off") == 0 || (comm_size() == 1 && !*gpu && !is_node(numa))) return true;
    memset(&me, 0, sizeof me); // padding is sent, too
    me.threads = threads;
    snprintf(me.gpu, sizeof me.gpu, "%s", gpu);
    gethostname(me.host, sizeof me.host - 1);
    const char *placed = openmp_places();
    if (!placed && sched_getaffinity(0, sizeof me.mask, &me.mask) != 0) placed = strerror(errno); // over 1024 of them
    PlacedProcess *all = comm_gather_new(&me, sizeof me, err);
    if (!all) return false;
    bool ok = true;
    if (!placed) {
        ok = bind_here(&c, numa, all, err);
    } else {
        snprintf(c.text, sizeof c.text, "not bound: %s", placed);
        if (is_node(numa)) ok = error_set(err, "--numa %s: %s", numa, c.text);
    }
    const int most = comm_cores() > 0 ? comm_cores() : limits_processors(); // a quota may leave fewer
    if (comm_size() > 1 || !getenv("OMP_NUM_THREADS")) p->threads = c.threads < most ? c.threads : most;
    ok = comm_all_ok(ok, err) && gather_text(p, &c, all, err);
    free(all);
    return ok;
}
