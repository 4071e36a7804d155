// Where processes run, on machines that a tree of files like /sys describes: the choice that a
// person would make.
#include "llmc/run/placement.h"
#include "test/fixture.h"

#include <sys/stat.h>

#pragma GCC diagnostic ignored "-Wmissing-field-initializers" // of the cases below

TestFixture test_each = {tmp_setup, tmp_teardown};

static void put(const char *text, const char *format, ...) {
    char path[256];
    va_list args;
    va_start(args, format);
    vsnprintf(path, sizeof path, format, args);
    va_end(args);

    for (char *slash = path; (slash = strchr(slash, '/')); *slash++ = '/') {
        *slash = '\0';
        mkdir(tmp_file(path), 0755);
    }

    FILE *f = fopen(tmp_file(path), "w");
    fprintf(f, "%s\n", text);
    fclose(f);
}

// The machine: its processors, those of each node, and the core of each processor: cpu and cpu +
// siblings are one.
static void use(int cpus, int siblings, const char *const *nodes, int count) {
    char text[64];
    snprintf(text, sizeof text, "0-%d", cpus - 1);
    put(text, "devices/system/cpu/online");
    for (int cpu = 0; cpu < cpus; cpu++) {
        snprintf(text, sizeof text, siblings ? "%d,%d" : "%d", cpu % (siblings ? siblings : cpus),
                 cpu % (siblings ? siblings : cpus) + siblings);
        put(text, "devices/system/cpu/cpu%d/topology/thread_siblings_list", cpu);
    }
    snprintf(text, sizeof text, count > 1 ? "0-%d" : "0", count - 1);
    put(text, "devices/system/node/online");
    for (int i = 0; i < count; i++) put(nodes[i], "devices/system/node/node%d/cpulist", i);
}

#define GPU(i) "0000:0" #i ":00.0"

// GPU 1 to 8, half of them beside each list.
static void put_gpus(const char *first, const char *second) {
    for (int i = 1; i <= 8; i++)
        put(i <= 4 ? first : second, "bus/pci/devices/0000:0%d:00.0/local_cpulist", i);
}

// "0-3,8"
static cpu_set_t cpus_of(const char *text) {
    cpu_set_t set;
    CPU_ZERO(&set);
    while (*text) {
        char *end;
        const long first = strtol(text, &end, 10),
                   last = *end == '-' ? strtol(end + 1, &end, 10) : first;
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
    int threads;
} Case;

static void check(const Case *cases) {
    PlacedProcess all[MOST];
    int count = 0;
    memset(all, 0, sizeof all);

    for (; count < MOST && cases[count].mask; count++) {
        strcpy(all[count].host, "here");
        if (cases[count].gpu)
            snprintf(all[count].gpu, sizeof all[count].gpu, "%s", cases[count].gpu);
        all[count].mask = cpus_of(cases[count].mask);
        all[count].threads = cases[count].threads;
    }

    for (int r = 0; r < count; r++) {
        char text[PLACEMENT_TEXT];
        const cpu_set_t expected = cpus_of(cases[r].expected ? cases[r].expected : cases[r].mask);
        const cpu_set_t cpus = placement_choose(tmp_file("."), all, count, r, text);
        if (!CPU_EQUAL(&cpus, &expected) || !strstr(text, cases[r].text))
            fail_msg("process %d of %d on %s: %d processors, \"%s\"; expected %s and \"%s\"", r,
                     count, cases[r].mask, CPU_COUNT(&cpus), text,
                     cases[r].expected ? cases[r].expected : "its mask", cases[r].text);
    }
}

// 2 sockets of 16 cores of 2 threads, numbered as Linux does on most machines: second threads after
// all cores.
static void use_two_sockets(void) {
    use(64, 32, (const char *[]){"0-15,32-47", "16-31,48-63"}, 2);
    put_gpus("0-15,32-47", "16-31,48-63");
}

TEST(a_gpu_takes_its_process_to_its_socket) {
    use_two_sockets();
    check((Case[]){{"0-63", GPU(1), "0-15,32-47", "CPUs 0-15,32-47, beside GPU " GPU(1)}, {NULL}});
    check(
        (Case[]){{"0-63", GPU(6), "16-31,48-63", "CPUs 16-31,48-63, beside GPU " GPU(6)}, {NULL}});
}

TEST(eight_processes_divide_the_cores_of_two_sockets_with_four_gpus_each) {
    use_two_sockets();
    check((Case[]){{"0-63", GPU(1), "0-3,32-35", ""},
                   {"0-63", GPU(2), "4-7,36-39", ""},
                   {"0-63", GPU(3), "8-11,40-43", ""},
                   {"0-63", GPU(4), "12-15,44-47", ""},
                   {"0-63", GPU(5), "16-19,48-51", ""},
                   {"0-63", GPU(6), "20-23,52-55", ""},
                   {"0-63", GPU(7), "24-27,56-59", ""},
                   {"0-63", GPU(8), "28-31,60-63", ""}});
    // Three of them, with other GPUs first: two on the second socket, one on the first.
    check((Case[]){{"0-63", GPU(7), "16-23,48-55", ""},
                   {"0-63", GPU(2), "0-15,32-47", ""},
                   {"0-63", GPU(5), "24-31,56-63", ""},
                   {NULL}});
}

// Two processors are too few for the threads of a process with a GPU.
TEST(processes_with_gpus_share_a_socket_of_few_cores) {
    use(8, 0, (const char *[]){"0-7"}, 1);
    put_gpus("0-7", "0-7");
    check((Case[]){{"0-7", GPU(1), NULL, "not bound: 3 processes share CPUs 0-7"},
                   {"0-7", GPU(2), NULL, ""},
                   {"0-7", GPU(3), NULL, ""},
                   {NULL}});
    check((Case[]){{"0-7", GPU(1), "0-3", ""}, {"0-7", GPU(2), "4-7", ""}, {NULL}});
    put_gpus("0-3", "4-7");
    check((Case[]){{"0-7", GPU(5), "4-7", "CPUs 4-7, beside GPU " GPU(5)},
                   {"0-7", GPU(6), "4-7", ""},
                   {NULL}});
}

TEST(masks_are_respected) {
    use_two_sockets();
    // Slurm gave the job half of each socket.
    check((Case[]){{"0-7,16-23", GPU(5), "16-23", "CPUs 16-23, beside"}, {NULL}});
    check((Case[]){{"0-7,16-23", GPU(1), "0-3", ""}, {"0-7,16-23", GPU(2), "4-7", ""}, {NULL}});
    // It bound each task: nothing is left to choose.
    check((Case[]){{"0-3", GPU(1), NULL, "CPUs 0-3, as it was started"},
                   {"4-7", GPU(2), NULL, "CPUs 4-7, as it was started"},
                   {NULL}});
    // A process on the wrong socket is told so, and left alone.
    check((Case[]){
        {"0-3", GPU(5), NULL,
         "not bound: GPU " GPU(5) " is beside CPUs 16-31,48-63; this process may use CPUs 0-3"},
        {NULL}});
    check((Case[]){{"5", NULL, NULL, "CPU 5, as it was started"}, {NULL}});
}

TEST(a_gpu_that_is_not_in_sys_changes_nothing) {
    use_two_sockets();
    check(
        (Case[]){{"0-63", "0000:f0:00.0", NULL, "not bound: GPU 0000:f0:00.0 is not in "}, {NULL}});
}

TEST(processes_on_the_cpu_take_a_node_and_one_keeps_all) {
    use(32, 0, (const char *[]){"0-15", "16-31"}, 2);
    check((Case[]){{"0-31", NULL, NULL, "", 32}, {NULL}});

    check((Case[]){{"0-31", NULL, "0-15", "CPUs 0-15", 16},
                   {"0-31", NULL, "16-31", "CPUs 16-31", 16},
                   {NULL}});

    // Within a node the system may move threads.
    check((Case[]){{"0-31", NULL, "0-15", "CPUs 0-15", 8},
                   {"0-31", NULL, "0-15", "", 8},
                   {"0-31", NULL, "16-31", "", 8},
                   {"0-31", NULL, "16-31", "", 8},
                   {NULL}});
    check((Case[]){{"0-31", NULL, NULL, "not bound: 3 processes share CPUs 0-31", 10},
                   {"0-31", NULL, NULL, "", 10},
                   {"0-31", NULL, NULL, "", 10},
                   {NULL}});
    check((Case[]){{"0-7,16-23", NULL, "0-7", "", 8}, {"0-7,16-23", NULL, "16-23", "", 8}, {NULL}});

    use(32, 0, (const char *[]){"0-7", "8-15", "16-23", "24-31"}, 4);
    check((Case[]){{"0-31", NULL, "0-15", "", 16}, {"0-31", NULL, "16-31", "", 16}, {NULL}});

    use(2, 0, (const char *[]){"0-1"}, 1);
    check((Case[]){{"0-1", NULL, NULL, "not bound: 2 processes share CPUs 0-1"},
                   {"0-1", NULL, NULL, ""},
                   {NULL}});
    check((Case[]){{"0", NULL, NULL, "as it was started"}, {"1", NULL, NULL, ""}, {NULL}});
}

// Two threads on one processor would wait for each other; a GPU's process does not compute with
// them.
TEST(threads_that_were_asked_for_have_processors) {
    use(4, 0, (const char *[]){"0-1", "2-3"}, 2);
    check((Case[]){{"0-3", NULL, NULL, "not bound: 3 threads on CPUs 0-1", 3},
                   {"0-3", NULL, NULL, "", 3},
                   {NULL}});
    check((Case[]){{"0-3", NULL, "0-1", "", 2},
                   {"0-3", NULL, "2-3", "", 2},
                   {NULL}}); // as many as the node has

    PlacedProcess all[2] = {{.host = "here", .mask = cpus_of("0-3")},
                            {.host = "another", .mask = cpus_of("0-3")}};
    char text[PLACEMENT_TEXT];
    const cpu_set_t cpus = placement_choose(tmp_file("."), all, 2, 0, text);
    assert_true(CPU_EQUAL(&cpus, &all[0].mask)); // the other's processors are its own
}

TEST(without_sys_nothing_happens) {
    check((Case[]){{"0-3", NULL, NULL, ""},
                   {"0-3", NULL, NULL, "not bound: 2 processes share CPUs 0-3"},
                   {NULL}});
    check((Case[]){{"0-3", GPU(1), NULL, "not bound: GPU " GPU(1) " is not in "}, {NULL}});
}
