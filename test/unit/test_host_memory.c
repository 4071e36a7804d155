// host_memory: what is read from /proc and from control groups, on made-up machines, and on this
// one.
#include "llmc/cpu/host_memory.h"
#include "test/fixture.h"

#include <errno.h>
#include <sched.h>

// Writes text to root/path, making its directories.
static void put(const char *path, const char *text) {
    char full[PATH_MAX];
    snprintf(full, sizeof full, "%s/%s", tmp.path, path);
    for (char *slash = strchr(full + strlen(tmp.path) + 1, '/'); slash;
         slash = strchr(slash + 1, '/')) {
        *slash = '\0';
        assert_true(mkdir(full, 0700) == 0 || errno == EEXIST);
        *slash = '/';
    }
    write_text(full, text);
}

// A machine of 64 GiB with 60 GiB available.
static int make_machine(void **state) {
    tmp_setup(state);
    put("proc/meminfo",
        "MemTotal:       67108864 kB\nMemFree:         1000000 kB\nMemAvailable:   62914560 kB\n");
    return 0;
}

TestFixture test_each = {make_machine, tmp_teardown};

static const size_t GiB = (size_t)1 << 30;

#define SELF   "proc/self/cgroup"
#define GROUPS "sys/fs/cgroup/"

TEST(the_least_of_the_machine_and_its_control_groups_counts) {
    static const struct {
        const char *what;
        double gib[2];           // in all, available
        const char *files[4][2]; // paths below the root, and what is in them
    } machines[] = {
        {"no control groups", {64, 60}, {{NULL}}},
        {"a version 2 limit",
         {8, 4}, // 8 - (5 - 1): page cache is free
         {{SELF, "0::/job\n"},
          {GROUPS "job/memory.max", "8589934592\n"},
          {GROUPS "job/memory.current", "5368709120\n"},
          {GROUPS "job/memory.stat", "anon 1\ninactive_file 1073741824\n"}}},
        {"a limit of a group above",
         {4, 4},
         {{SELF, "0::/user/job\n"},
          {GROUPS "user/job/memory.max", "max\n"},
          {GROUPS "user/memory.max", "4294967296\n"}}},
        {"a version 1 limit where the container mounts it",
         {2, 1}, // its own group, seen as the root
         {{SELF, "5:devices:/docker/1234\n4:cpu,memory:/docker/1234\n0::/\n"},
          {GROUPS "memory/memory.limit_in_bytes", "2147483648\n"},
          {GROUPS "memory/memory.usage_in_bytes", "1073741824\n"}}},
        {"an unlimited group",
         {64, 60},
         {{SELF, "4:memory:/\n"},
          {GROUPS "memory/memory.limit_in_bytes", "9223372036854771712\n"},
          {GROUPS "memory/memory.usage_in_bytes", "1073741824\n"}}},
        {"a group over its limit",
         {1, 0},
         {{SELF, "0::/\n"},
          {GROUPS "memory.max", "1073741824\n"},
          {GROUPS "memory.current", "2147483648\n"}}},
    };

    for (size_t i = 0; i < sizeof machines / sizeof machines[0]; i++) {
        HostMemory m;
        Error err = {""};
        tmp_teardown(NULL), make_machine(NULL);
        for (int k = 0; k < 4 && machines[i].files[k][0]; k++)
            put(machines[i].files[k][0], machines[i].files[k][1]);
        assert_ok(host_memory_read(tmp.path, &m, &err));

        if ((double)m.total != machines[i].gib[0] * (double)GiB ||
            (double)m.available != machines[i].gib[1] * (double)GiB)
            fail_msg("%s: %zu of %zu bytes", machines[i].what, m.available, m.total);
    }
}

TEST(a_machine_without_meminfo_is_reported) {
    HostMemory memory;
    Error err;
    put("proc/meminfo", "MemTotal: many kB\n");
    assert_error(host_memory_read(tmp.path, &memory, &err), "meminfo");
}

TEST(this_process_holds_memory) {
    size_t now = host_memory_status("VmRSS:");
    assert_true(now > 0);
    // The order matters: the process may grow between the two.
    assert_true(host_memory_status("VmHWM:") >= now);
}

// Processors of this process share caches 0 and 5; others do not count, and one that is not there
// is not waited for.
TEST(a_cache_that_processors_share_counts_once) {
    cpu_set_t allowed;
    char path[200], id[8];
    int count = 0;

    assert_int_equal(host_cache_bytes(tmp.path), 0);
    assert_int_equal(sched_getaffinity(0, sizeof allowed, &allowed), 0);

    for (size_t cpu = 0; cpu < CPU_SETSIZE; cpu++) {
        const bool mine = CPU_ISSET(cpu, &allowed);
        if (!mine && cpu > 16) continue;
        snprintf(id, sizeof id, "%d\n", !mine ? 7 : count % 2 == 0 ? 0 : 5);
        snprintf(path, sizeof path, "sys/devices/system/cpu/cpu%zu/cache/index3/id", cpu);
        put(path, id);
        snprintf(path, sizeof path, "sys/devices/system/cpu/cpu%zu/cache/index3/size", cpu);
        put(path, "32768K\n");
        count += mine;
    }

    assert_int_equal(host_cache_bytes(tmp.path), (count > 1 ? 64 : 32) << 20);
}
