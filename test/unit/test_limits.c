// limits.h: processors and their quota on made-up machines, and the limits of this process.
#include "llmc/base/limits.h"
#include "test/fixture.h"

#include <errno.h>
#include <limits.h>
#include <math.h>
#include <sched.h>
#include <sys/resource.h>
#include <sys/stat.h>

TestFixture test_each = {tmp_setup, tmp_teardown};

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

#define SELF   "proc/self/cgroup"
#define GROUPS "sys/fs/cgroup/"

TEST(the_least_quota_of_the_control_groups_counts) {
    static const struct {
        const char *what;
        double quota;            // 0: none
        const char *files[4][2]; // paths below the root, and what is in them
    } machines[] = {
        {"no control groups", 0, {{NULL}}},
        {"half a processor, version 2",
         0.5,
         {{SELF, "0::/job\n"}, {GROUPS "job/cpu.max", "50000 100000\n"}}},
        {"no limit, version 2", 0, {{SELF, "0::/job\n"}, {GROUPS "job/cpu.max", "max 100000\n"}}},
        {"a limit of a group above",
         0.25,
         {{SELF, "0::/user/job\n"},
          {GROUPS "user/job/cpu.max", "max 100000\n"},
          {GROUPS "user/cpu.max", "5000 20000\n"}}},
        {"the root of a container", 0.9, {{SELF, "0::/\n"}, {GROUPS "cpu.max", "90000 100000\n"}}},
        {"version 1 where the container mounts it",
         0.5,
         {{SELF, "5:cpuset:/docker/12\n4:cpu,cpuacct:/docker/12\n0::/\n"},
          {GROUPS "cpu/cpu.cfs_quota_us", "50000\n"},
          {GROUPS "cpu/cpu.cfs_period_us", "100000\n"}}},
        {"no limit, version 1",
         0,
         {{SELF, "1:cpu:/job\n"},
          {GROUPS "cpu/job/cpu.cfs_quota_us", "-1\n"},
          {GROUPS "cpu/job/cpu.cfs_period_us", "100000\n"}}},
        {"of another controller",
         0,
         {{SELF, "3:cpuset:/\n"}, {GROUPS "cpu/cpu.cfs_quota_us", "50000\n"}}},
        {"nonsense", 0, {{SELF, "0::/\n"}, {GROUPS "cpu.max", "50000 0\n"}}},
    };

    for (size_t i = 0; i < sizeof machines / sizeof machines[0]; i++) {
        tmp_teardown(NULL), tmp_setup(NULL);
        for (int k = 0; k < 4 && machines[i].files[k][0]; k++)
            put(machines[i].files[k][0], machines[i].files[k][1]);

        const double quota = limits_quota(tmp.path);
        if (quota != (machines[i].quota > 0 ? machines[i].quota : (double)INFINITY))
            fail_msg("%s: a quota of %g", machines[i].what, quota);
    }
}

TEST(there_are_no_more_processors_than_the_affinity_mask_has) {
    cpu_set_t mask;
    assert_int_equal(sched_getaffinity(0, sizeof mask, &mask), 0);
    assert_in_range(limits_processors(), 1, CPU_COUNT(&mask));
}

TEST(a_limit_that_was_reached_is_named) {
    struct rlimit before;
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &before), 0);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &(struct rlimit){102400, before.rlim_max}), 0);
    assert_string_equal(limits_reason(EFBIG),
                        "File too large (limit of this process: 102400 bytes, ulimit -f)");
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &before), 0);
    assert_non_null(strstr(limits_reason(EMFILE), "ulimit -n"));
    assert_string_equal(limits_reason(ENOENT), strerror(ENOENT));
}

TEST(threads_that_cannot_be_started_are_an_error_with_the_limits) {
    struct rlimit before;
    Error err = {""};
    assert_ok(limits_check_threads(2, &err));
    assert_int_equal(getrlimit(RLIMIT_AS, &before), 0);
    // 64 stacks do not fit
    assert_int_equal(setrlimit(RLIMIT_AS, &(struct rlimit){1, before.rlim_max}), 0);
    const bool started = limits_check_threads(64, &err);
    assert_int_equal(setrlimit(RLIMIT_AS, &before), 0);
    assert_false(started);
    assert_message("1 bytes of address space (ulimit -v)");
}
