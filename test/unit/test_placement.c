// Where processes run, on machines that hwloc makes up: the choice that a person would make.
#include "llmc/run/placement.h"
#include "test/fixture.h"

#pragma GCC diagnostic ignored "-Wmissing-field-initializers" // of the cases below

#if defined(__has_include) && !defined(WITHOUT_HWLOC)
#if __has_include(<hwloc.h>)
#include <dlfcn.h>
#include <hwloc.h>
#define HAVE_HWLOC
#endif
#endif

static Error err;

static int setup(void **state) {
    unsetenv("HWLOC_SYNTHETIC"), unsetenv("HWLOC_XMLFILE"), unsetenv("HWLOC_LIBRARY"), unsetenv("HWLOC_THISSYSTEM");
    return tmp_setup(state);
}

TestFixture test_each = {setup, tmp_teardown};

// "0-3,8"
static cpu_set_t cpus_of(const char *text) {
    cpu_set_t set;
    CPU_ZERO(&set);
    while (*text) {
        char *end;
        const long first = strtol(text, &end, 10), last = *end == '-' ? strtol(end + 1, &end, 10) : first;
        for (long i = first; i <= last; i++) CPU_SET((size_t)i, &set);
        text = end + (*end == ',');
    }
    return set;
}

enum { MOST = 8 };
typedef struct {
    const char *mask, *gpu; // of a process
    const char *expected;   // its processors; NULL: those of its mask
    const char *text;       // part of what the header says
    int threads;            // on the CPU; not compared with a GPU's
} Case;

static void check(const char *numa, const Case *cases) {
    PlacedProcess all[MOST];
    int count = 0;
    memset(all, 0, sizeof all);
    for (; count < MOST && cases[count].mask; count++) {
        strcpy(all[count].host, "here");
        if (cases[count].gpu) snprintf(all[count].gpu, sizeof all[count].gpu, "%s", cases[count].gpu);
        all[count].mask = cpus_of(cases[count].mask);
    }
    for (int r = 0; r < count; r++) {
        PlacementChoice c;
        const cpu_set_t expected = cpus_of(cases[r].expected ? cases[r].expected : cases[r].mask);
        assert_ok(placement_choose(&c, numa, all, count, r, &err));
        if (!CPU_EQUAL(&c.cpus, &expected) || c.binds != !CPU_EQUAL(&expected, &all[r].mask) ||
            !strstr(c.text, cases[r].text))
            fail_msg("process %d of %d on %s, --numa %s: %d processors, \"%s\"; expected %s and \"%s\"", r, count,
                     cases[r].mask, numa, CPU_COUNT(&c.cpus), c.text,
                     cases[r].expected ? cases[r].expected : "its mask", cases[r].text);
        if (!*all[r].gpu) assert_int_equal(c.threads, cases[r].threads);
        assert_false(c.is_here);
    }
}

#ifdef HAVE_HWLOC
// Writes hwloc's description of a synthetic machine, with GPUs added to its objects of this type, `each` to an object:
// GPU i of all is 0000:01+i:00.0. Linked with nothing: the trainer loads the same library in the same way.
static bool put_gpus(const char *machine, const char *type, int each) {
    void *library = dlopen("libhwloc.so.15", RTLD_NOW | RTLD_LOCAL);
    if (!library) return false;
#define LOAD(name) __typeof__(name) *name##_ = (__typeof__(name) *)dlsym(library, #name)
    LOAD(hwloc_topology_init);
    LOAD(hwloc_topology_set_synthetic);
    LOAD(hwloc_topology_load);
    LOAD(hwloc_topology_export_xmlbuffer);
    LOAD(hwloc_free_xmlbuffer);
    LOAD(hwloc_topology_destroy);
    hwloc_topology_t t;
    char *xml, begin[64];
    int length, gpus = 0, id = 100000;
    assert_int_equal(hwloc_topology_init_(&t), 0);
    assert_int_equal(hwloc_topology_set_synthetic_(t, machine), 0);
    assert_int_equal(hwloc_topology_load_(t), 0);
    assert_int_equal(hwloc_topology_export_xmlbuffer_(t, &xml, &length, 0), 0);
    FILE *f = fopen(tmp_file("machine.xml"), "w");
    int open = -1; // columns before the object that gets the GPUs
    snprintf(begin, sizeof begin, "<object type=\"%s\"", type);
    for (char *line = strtok(xml, "\n"); line; line = strtok(NULL, "\n")) {
        const int columns = (int)strspn(line, " ");
        if (strncmp(line + columns, begin, strlen(begin)) == 0) open = columns;
        if (columns == open && strcmp(line + columns, "</object>") == 0) {
            for (int i = 0; i < each; i++, id++, gpus++)
                fprintf(f,
                        "<object type=\"PCIDev\" gp_index=\"%d\" pci_busid=\"0000:%02x:00.0\" "
                        "pci_type=\"0302 [10de:2330] [10de:16c1] a1\" pci_link_speed=\"0.000000\"/>\n",
                        id, gpus + 1);
            open = -1;
        }
        fprintf(f, "%s\n", line);
    }
    fclose(f);
    assert_true(gpus > 0);
    hwloc_free_xmlbuffer_(t, xml);
    hwloc_topology_destroy_(t);
    setenv("HWLOC_XMLFILE", tmp_file("machine.xml"), 1);
    return true;
}
#define NEED(machine, type, each)                                                                                      \
    if (!put_gpus(machine, type, each)) skip()

#define GPU(i) "0000:0" #i ":00.0"

// 2 sockets, 16 cores of 2 threads each.
static const char TWO_SOCKETS[] = "pack:2 [numa] core:16 pu:2";

TEST(a_gpu_takes_its_process_to_its_socket) {
    NEED(TWO_SOCKETS, "Package", 4);
    check("auto", (Case[]){{"0-63", GPU(1), "0-31", "CPUs 0-31 of node 0, beside GPU " GPU(1)}, {NULL}});
    check("auto", (Case[]){{"0-63", GPU(6), "32-63", "CPUs 32-63 of node 1, beside GPU " GPU(6)}, {NULL}});
}

TEST(eight_processes_divide_the_cores_of_two_sockets_with_four_gpus_each) {
    NEED(TWO_SOCKETS, "Package", 4);
    check("auto", (Case[]){{"0-63", GPU(1), "0-7", "CPUs 0-7 of node 0"},
                           {"0-63", GPU(2), "8-15", ""},
                           {"0-63", GPU(3), "16-23", ""},
                           {"0-63", GPU(4), "24-31", ""},
                           {"0-63", GPU(5), "32-39", "CPUs 32-39 of node 1"},
                           {"0-63", GPU(6), "40-47", ""},
                           {"0-63", GPU(7), "48-55", ""},
                           {"0-63", GPU(8), "56-63", ""}});
    // Three of them, with other GPUs first: two on the second socket, one on the first.
    check("auto",
          (Case[]){{"0-63", GPU(7), "32-47", ""}, {"0-63", GPU(2), "0-31", ""}, {"0-63", GPU(5), "48-63", ""}, {NULL}});
}

// Two processors are too few for the threads of a process with a GPU.
TEST(processes_with_gpus_share_a_socket_of_few_cores) {
    NEED("pack:1 [numa] core:8 pu:1", "Package", 4);
    check("auto", (Case[]){{"0-7", GPU(1), NULL, "not bound: 3 processes share CPUs 0-7 of node 0"},
                           {"0-7", GPU(2), NULL, ""},
                           {"0-7", GPU(3), NULL, ""},
                           {NULL}});
    check("auto", (Case[]){{"0-7", GPU(1), "0-3", ""}, {"0-7", GPU(2), "4-7", ""}, {NULL}});
    NEED("pack:2 [numa] core:4 pu:1", "Package", 2);
    check("auto", (Case[]){{"0-7", GPU(3), "4-7", "CPUs 4-7 of node 1, beside GPU " GPU(3) ", shared with other"},
                           {"0-7", GPU(4), "4-7", ""},
                           {NULL}});
}

// Two nodes in a socket. Where PCI belongs to the socket, its processes divide it so that each has one node.
TEST(a_socket_of_several_nodes_is_divided_along_them) {
    NEED("pack:2 group:2 [numa] core:8 pu:1", "Package", 2);
    check("auto", (Case[]){{"0-31", GPU(3), "16-31", "CPUs 16-31 of nodes 2-3"}, {NULL}});
    check("auto", (Case[]){{"0-31", GPU(1), "0-7", "of node 0,"},
                           {"0-31", GPU(2), "8-15", "of node 1,"},
                           {"0-31", GPU(3), "16-23", "of node 2,"},
                           {"0-31", GPU(4), "24-31", "of node 3,"},
                           {NULL}});
    NEED("pack:2 group:2 [numa] core:8 pu:1", "Group", 1); // where it belongs to a node
    check("auto", (Case[]){{"0-31", GPU(2), "8-15", "CPUs 8-15 of node 1, beside"}, {NULL}});
}

TEST(masks_are_respected) {
    NEED(TWO_SOCKETS, "Package", 4);
    // Slurm gave the job half of each socket.
    check("auto", (Case[]){{"0-15,32-47", GPU(5), "32-47", "CPUs 32-47 of node 1"}, {NULL}});
    check("auto", (Case[]){{"0-15,32-47", GPU(1), "0-7", ""}, {"0-15,32-47", GPU(2), "8-15", ""}, {NULL}});
    // It bound each task: nothing is left to choose.
    check("auto", (Case[]){{"0-3", GPU(1), NULL, "CPUs 0-3 of node 0, as it was started"},
                           {"4-7", GPU(2), NULL, "CPUs 4-7 of node 0, as it was started"},
                           {NULL}});
    // On the wrong socket: said, and left alone.
    check("auto", (Case[]){{"0-3", GPU(5), NULL,
                            "not bound: GPU " GPU(5) " is beside CPUs 32-63 of node 1; this "
                                                     "process may use CPUs 0-3 of node 0"},
                           {NULL}});
    check("auto", (Case[]){{"5", NULL, NULL, "CPU 5 of node 0, as it was started"}, {NULL}});
}

TEST(a_gpu_that_hwloc_does_not_find_changes_nothing) {
    NEED(TWO_SOCKETS, "Package", 4);
    check("auto", (Case[]){{"0-63", "0000:f0:00.0", NULL, "not bound: hwloc does not find GPU 0000:f0:00.0"}, {NULL}});
    check("auto", (Case[]){{"0-63", "00000000:06:00.0", "32-63", ""}, {NULL}}); // a longer domain is the same one
}
#endif

static void use(const char *machine) { setenv("HWLOC_SYNTHETIC", machine, 1); }

TEST(processes_on_the_cpu_take_a_node_and_one_keeps_all) {
#ifndef HAVE_HWLOC
    skip();
#endif
    use("pack:2 [numa] core:8 pu:2");
    check("auto", (Case[]){{"0-31", NULL, NULL, "", 0}, {NULL}});
    check("auto",
          (Case[]){{"0-31", NULL, "0-15", "CPUs 0-15 of node 0", 16}, {"0-31", NULL, "16-31", "node 1", 16}, {NULL}});
    // Within a node the system may move threads.
    check("auto", (Case[]){{"0-31", NULL, "0-15", "CPUs 0-15 of node 0, shared with other processes", 8},
                           {"0-31", NULL, "0-15", "", 8},
                           {"0-31", NULL, "16-31", "", 8},
                           {"0-31", NULL, "16-31", "", 8},
                           {NULL}});
    check("auto", (Case[]){{"0-31", NULL, "0-15", "", 10},
                           {"0-31", NULL, NULL, "not bound: 3 processes share CPUs 0-31 of nodes 0-1", 0},
                           {"0-31", NULL, "16-31", "", 12},
                           {NULL}});
    check("auto", (Case[]){{"0-7,16-23", NULL, "0-7", "", 8}, {"0-7,16-23", NULL, "16-23", "", 8}, {NULL}});
    use("numa:1 core:2 pu:1");
    check("auto", (Case[]){{"0-1", NULL, NULL, "not bound: 2 processes share CPUs 0-1 of node 0", 0},
                           {"0-1", NULL, NULL, "", 0},
                           {NULL}});
    check("auto", (Case[]){{"0", NULL, NULL, "as it was started", 0}, {"1", NULL, NULL, "", 0}, {NULL}});
}

TEST(processors_are_numbered_as_the_system_likes) {
#ifdef HAVE_HWLOC
    // As most Intel machines number them: even ones on the first socket, hyper-threads after all cores.
    static const char ALTERNATING[] = "pack:2 [numa] core:4 pu:2(indexes=0,8,2,10,4,12,6,14,1,9,3,11,5,13,7,15)";
    use(ALTERNATING);
    check("auto", (Case[]){{"0-15", NULL, "0,2,4,6,8,10,12,14", "CPUs 0,2,4,6,8,10,12,14 of node 0", 8},
                           {"0-15", NULL, "1,3,5,7,9,11,13,15", "", 8},
                           {NULL}});
    unsetenv("HWLOC_SYNTHETIC");
    NEED(ALTERNATING, "Package", 2);
    check("auto", (Case[]){{"0-15", GPU(1), "0,2,8,10", "", 4}, // both threads of a core
                           {"0-15", GPU(2), "4,6,12,14", "", 4},
                           {"0-15", GPU(3), "1,3,9,11", "", 4},
                           {"0-15", GPU(4), "5,7,13,15", "of node 1, beside", 4},
                           {NULL}});
#else
    skip();
#endif
}

TEST(a_node_can_be_asked_for) {
#ifndef HAVE_HWLOC
    skip();
#endif
    use("pack:2 [numa] core:4 pu:1");
    check("1", (Case[]){{"0-7", NULL, "4-7", "CPUs 4-7 of node 1", 4}, {NULL}});
    check("1", (Case[]){{"0-7", NULL, "4-7", "shared", 2}, {"0-7", NULL, "4-7", "", 2}, {NULL}});
    use("pack:1 [numa] core:4 pu:1");
    check("0", (Case[]){{"0-3", NULL, NULL, "CPUs 0-3 of node 0, all there are", 0}, {NULL}});
    use("pack:2 [numa] core:4 pu:1");
    check("0", (Case[]){{"2-6", NULL, "2-3", "", 2}, {NULL}});
    PlacedProcess me = {.host = "here", .mask = cpus_of("0-3")};
    PlacementChoice c;
    assert_error(placement_choose(&c, "2", &me, 1, 0, &err),
                 "--numa 2: no such NUMA node with processors; there are 0 and 1");
    assert_error(placement_choose(&c, "1", &me, 1, 0, &err), "--numa 1: this process may only use CPUs 0-3 of node 0");
    me.threads = 5;
    assert_error(placement_choose(&c, "0", &me, 1, 0, &err), "--numa 0: not bound: --threads 5 on 4 processors");
}

// Two threads on one processor would wait for each other; a GPU's process does not compute with them.
TEST(threads_that_were_asked_for_have_processors) {
#ifndef HAVE_HWLOC
    skip();
#endif
    use("numa:2 core:2 pu:1");
    PlacedProcess all[2] = {{.host = "here", .mask = cpus_of("0-3"), .threads = 3}};
    PlacementChoice c;
    all[1] = all[0];
    assert_ok(placement_choose(&c, "auto", all, 2, 0, &err));
    assert_false(c.binds);
    assert_string_equal(c.text, "not bound: --threads 3 on 2 processors");
    all[0].threads = all[1].threads = 2; // as many as the node has
    assert_ok(placement_choose(&c, "auto", all, 2, 0, &err));
    assert_true(c.binds);
    strcpy(all[1].host, "another"); // its processors are its own
    assert_ok(placement_choose(&c, "auto", all, 2, 0, &err));
    assert_false(c.binds);
}

TEST(without_hwloc_nothing_happens) {
    PlacedProcess me = {.host = "here", .mask = cpus_of("0-3")};
    PlacementChoice c;
    setenv("HWLOC_LIBRARY", "/nowhere/libhwloc.so", 1);
    assert_ok(placement_choose(&c, "auto", &me, 1, 0, &err));
    assert_false(c.binds);
    assert_non_null(strstr(c.text, "not bound: "));
    assert_non_null(strstr(c.text, "hwloc"));
    assert_error(placement_choose(&c, "0", &me, 1, 0, &err), "--numa 0: ");
}

TEST(what_is_typed_after_numa) {
    static const char *const good[] = {"auto", "off", "0", "12"}, *const bad[] = {"",   "on",  "-1",
                                                                                  "1x", "0,1", "100000"};
    for (size_t i = 0; i < sizeof good / sizeof *good; i++) assert_ok(placement_check(good[i], &err));
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) assert_false(placement_check(bad[i], &err));
    assert_string_equal(err.text, "--numa 100000: must be auto, off, or the number of a NUMA node (lscpu lists them)");
}
