// host_memory: what is read from /proc and from control groups, on made-up machines, and on this one.
#include "llmc/cpu/cpu.h"
#include "test/fixture.h"

#include <errno.h>

// Writes text to root/path, making its directories.
static void put(const char *path, const char *text) {
    char full[PATH_MAX];
    snprintf(full, sizeof full, "%s/%s", tmp.path, path);
    for (char *slash = strchr(full + strlen(tmp.path) + 1, '/'); slash; slash = strchr(slash + 1, '/')) {
        *slash = '\0';
        assert_true(mkdir(full, 0700) == 0 || errno == EEXIST);
        *slash = '/';
    }
    write_text(full, text);
}

// A machine of 64 GiB with 60 GiB available.
static int make_machine(void **state) {
    tmp_setup(state);
    put("proc/meminfo", "MemTotal:       67108864 kB\nMemFree:         1000000 kB\nMemAvailable:   62914560 kB\n");
    return 0;
}

TestFixture test_each = {make_machine, tmp_teardown};

static const size_t GiB = (size_t)1 << 30;

static HostMemory read_memory(void) {
    HostMemory memory;
    Error err = {""};
    if (!host_memory_read(tmp.path, &memory, &err)) fail_msg("%s", err.text);
    return memory;
}

TEST(without_control_groups_the_machine_counts) {
    HostMemory m = read_memory();
    assert_int_equal(m.total, 64 * GiB);
    assert_int_equal(m.available, 60 * GiB);
}

TEST(a_version_2_limit_counts_and_page_cache_is_free) {
    put("proc/self/cgroup", "0::/user/job\n");
    put("sys/fs/cgroup/user/job/memory.max", "8589934592\n");
    put("sys/fs/cgroup/user/job/memory.current", "5368709120\n");
    put("sys/fs/cgroup/user/job/memory.stat", "anon 1\ninactive_file 1073741824\n");
    HostMemory m = read_memory();
    assert_int_equal(m.total, 8 * GiB);
    assert_int_equal(m.available, 4 * GiB); // 8 - (5 - 1)
}

TEST(a_limit_of_a_group_above_counts_too) {
    put("proc/self/cgroup", "0::/user/job\n");
    put("sys/fs/cgroup/user/job/memory.max", "max\n");
    put("sys/fs/cgroup/user/memory.max", "4294967296\n");
    assert_int_equal(read_memory().total, 4 * GiB);
    assert_int_equal(read_memory().available, 4 * GiB);
}

TEST(a_version_1_limit_is_found_where_the_container_mounts_it) {
    put("proc/self/cgroup", "5:devices:/docker/1234\n4:cpu,memory:/docker/1234\n0::/\n");
    put("sys/fs/cgroup/memory/memory.limit_in_bytes", "2147483648\n"); // the container's own group, seen as the root
    put("sys/fs/cgroup/memory/memory.usage_in_bytes", "1073741824\n");
    HostMemory m = read_memory();
    assert_int_equal(m.total, 2 * GiB);
    assert_int_equal(m.available, 1 * GiB);
}

TEST(an_unlimited_group_changes_nothing) {
    put("proc/self/cgroup", "4:memory:/\n");
    put("sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n");
    put("sys/fs/cgroup/memory/memory.usage_in_bytes", "1073741824\n");
    assert_int_equal(read_memory().total, 64 * GiB);
    assert_int_equal(read_memory().available, 60 * GiB);
}

TEST(a_group_over_its_limit_has_nothing_left) {
    put("proc/self/cgroup", "0::/\n");
    put("sys/fs/cgroup/memory.max", "1073741824\n");
    put("sys/fs/cgroup/memory.current", "2147483648\n");
    assert_int_equal(read_memory().available, 0);
}

TEST(a_machine_without_meminfo_is_reported) {
    HostMemory memory;
    Error err;
    put("proc/meminfo", "MemTotal: many kB\n");
    assert_error(host_memory_read(tmp.path, &memory, &err), "meminfo");
}

TEST(this_process_holds_memory) {
    size_t now = host_memory_resident();
    assert_true(now > 0);
    assert_true(host_memory_resident_peak() >= now); // in this order: the process may grow between the two
}
