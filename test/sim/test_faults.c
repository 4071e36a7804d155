// The simulator proven by planted faults: every mistake of faults.cu is caught by the tool that
// this table names, with the message that it names, and the correct twin passes under the same
// tool. A fault runs in a process of its own, built in the mode that catches it (`make
// sim-test-programs` builds all of them).

#include "test/test.h"

#include <stdbool.h>
#include <sys/wait.h>
#include <unistd.h>

typedef enum { ON_HOST, IN_KERNEL } Place; // the message of a kernel names kernel, block and thread

typedef struct {
    const char *fault;
    const char *mode; // build/MODE-sim/test/sim/faults
    // of the environment; SIM_CC, which makes the fault, is for the wrong twin alone
    const char *setting;
    const char *message; // that the wrong twin must print
    Place place;
} Case;

static const Case cases[] = {
    // the simulator itself, in any build
    {"global_read", "release", "", "outside of the device's memory: 4 bytes at 0x", IN_KERNEL},
    {"global_write", "release", "", "outside of the device's memory: 4 bytes at 0x", IN_KERNEL},
    {"forbidden_gap", "release", "", "outside of the device's memory: 4 bytes at 0x", IN_KERNEL},
    {"use_after_free", "release", "", "outside of the device's memory: 4 bytes at 0x", IN_KERNEL},
    {"host_pointer", "release", "", "outside of the device's memory: 4 bytes at 0x", IN_KERNEL},
    {"pointer_in_struct", "release", "", "outside of the device's memory: 4 bytes at 0x",
     IN_KERNEL},
    {"pointer_in_table", "release", "", "outside of the device's memory: 4 bytes at 0x", IN_KERNEL},
    {"static_shared", "release", "",
     "out of bounds: 4 bytes of shared memory at 260, which has 260", IN_KERNEL},
    {"dynamic_shared", "release", "",
     "out of bounds: 4 bytes of shared memory at 272, which has 272", IN_KERNEL},
    {"local_memory", "release", "", "out of bounds: 4 bytes of local memory", IN_KERNEL},
    {"misaligned", "release", "", "misaligned: 16 bytes at 0x", IN_KERNEL},
    {"misaligned_shared", "release", "", "misaligned: 8 bytes of shared memory at ", IN_KERNEL},
    {"shared_alignment", "release", "", "misaligned: 16 bytes of shared memory at 1012", IN_KERNEL},
    {"dynamic_alignment", "release", "", "wrong result: 16 instead of 0", ON_HOST},
    {"copy_direction", "release", "", "direction or range does not fit the pointers", ON_HOST},
    {"divergent_barrier", "release", "",
     "divergent __syncthreads: some threads wait at test/sim/faults.cu:", IN_KERNEL},
    {"early_exit", "release", "",
     "divergent __syncthreads: some threads wait at test/sim/faults.cu:", IN_KERNEL},
    {"early_exit", "release", "SIM_SCHED=rev", "divergent __syncthreads: 24 threads have ended",
     IN_KERNEL},
    {"early_read", "release", "", "and does not begin with griddepcontrol.wait", ON_HOST},
    {"deadlock", "release", "",
     "lanes 0000ffff of mask ffffffff (alive: ffffffff) wait in a warp operation", IN_KERNEL},
    {"endless_loop", "release", "SIM_TIMEOUT=1", "ran for longer than SIM_TIMEOUT = 1 seconds",
     IN_KERNEL},
    {"shuffle_mask", "release", "",
     "lane 16 calls a warp operation with mask 0000ffff, which leaves it out", IN_KERNEL},
    {"inactive_source", "release", "",
     "lane 0 reads lane 20, which does not take part (lanes 0000ffff)", IN_KERNEL},
    {"missing_lanes", "release", "", "ldmatrix takes all lanes of a warp, here are 7fffffff",
     IN_KERNEL},
    {"different_operations", "release", "", "lanes of a warp meet in different warp operations",
     IN_KERNEL},
    {"trap", "release", "", "trap at test/sim/faults.cu:", IN_KERNEL},
    {"division_by_zero", "release", "",
     "integer division by zero at test/sim/faults.cu:", IN_KERNEL},
    {"host_touches_device", "release", "SIM_PROTECT=1", "host code touches device memory", ON_HOST},
    // launches that a GPU refuses
    {"shared_without_asking", "release", "",
     "512 static + 49152 dynamic bytes of shared memory, the dynamic ones may be 48640", ON_HOST},
    {"shared_asked_too_little", "release", "",
     "512 static + 66560 dynamic bytes of shared memory, the dynamic ones may be 65536", ON_HOST},
    {"too_much_shared", "release", "",
     "232448 bytes of dynamic shared memory asked for beside 512 static ones, a block may have "
     "232448",
     ON_HOST},
    {"too_many_threads", "release", "", "cudaErrorInvalidConfiguration", ON_HOST},
    {"refused_launch", "release", "", "launch of fill_kernel: invalid configuration argument",
     ON_HOST},
    {"unseen_refusal", "release", "",
     "fill_kernel was refused and nobody looked at it before the next launch", ON_HOST},
    {"launch_bounds", "release", "", "128 threads, __launch_bounds__ says 64", ON_HOST},
    {"first_use_in_capture", "release", "",
     "loading the kernel fill_kernel: forbidden during a capture", ON_HOST},
    {"no_code_for_gpu", "release", "SIM_CC=80", "cudaErrorNoKernelImageForDevice", ON_HOST},
    // another order of things
    {"missing_barrier", "release", "SIM_SCHED=fwd", "wrong result: -nan instead of 63", ON_HOST},
    {"missing_barrier", "release", "SIM_SCHED=rev", "wrong result: -nan instead of 0", ON_HOST},
    {"missing_barrier", "release", "SIM_SCHED=rand:1", "wrong result", ON_HOST},
    {"float_atomics", "release", "SIM_SCHED=rev", "wrong result: 1 instead of 0", ON_HOST},
    {"missing_copy_wait", "release", "", "wrong result: -nan instead of 0", ON_HOST},
    {"copy_groups", "release", "", "wrong result: -nan instead of 0", ON_HOST},
    {"missing_event", "release", "SIM_STREAMS=lazy", "wrong result: 0 instead of 5", ON_HOST},
    {"missing_wait", "release", "SIM_STREAMS=lazy", "wrong result: 0 instead of 5", ON_HOST},
    {"copy_beside_stream", "release", "SIM_STREAMS=lazy", "wrong result: 0 instead of 5", ON_HOST},
    // other numbers
    {"exact_quotient", "release", "SIM_NUMERICS=hardware", "wrong result", ON_HOST},
    {"exact_sum", "release", "SIM_NUMERICS=hardware", "wrong result: 1 instead of 1", ON_HOST},
    // fresh memory is NaN
    {"uninitialised_shared", "release", "", "wrong result: 0 instead of 1", ON_HOST},
    {"uninitialised_global", "release", "", "wrong result: 0 instead of 1", ON_HOST},
    // ThreadSanitizer
    {"missing_barrier", "tsan", "", "data race", IN_KERNEL},
    {"missing_event", "tsan", "", "data race", ON_HOST},
    {"kernels_of_two_streams", "tsan", "", "data race", IN_KERNEL},
    {"copy_beside_stream", "tsan", "", "data race", ON_HOST},
    {"source_changed", "tsan", "", "data race", ON_HOST},
    {"missing_fence", "tsan", "", "data race", IN_KERNEL},
    {"late_fence", "tsan", "", "data race", IN_KERNEL},
    {"shuffle_as_barrier", "tsan", "", "data race", IN_KERNEL},
    {"ldmatrix_as_barrier", "tsan", "", "data race", IN_KERNEL},
    {"block_race", "tsan", "", "data race", IN_KERNEL},
    // MemorySanitizer, which speaks where the value first decides something
    {"uninitialised_index", "msan", "", "use-of-uninitialized-value", IN_KERNEL},
};
enum { NUM_CASES = sizeof cases / sizeof *cases };

// Runs a twin; what it printed goes to output. Returns whether it ended well.
static bool run(const Case *c, const char *twin, char *output, size_t size) {
    char command[512];
    snprintf(command, sizeof command,
             "%s ASAN_OPTIONS=detect_leaks=0 TSAN_OPTIONS=atexit_sleep_ms=0 exec "
             "build/%s-sim/test/sim/faults %s %s 2>&1",
             strcmp(twin, "right") == 0 && strncmp(c->setting, "SIM_CC", 6) == 0 ? "" : c->setting,
             c->mode, c->fault, twin);

    FILE *pipe = popen(command, "r");
    assert_non_null(pipe);
    size_t n = fread(output, 1, size - 1, pipe);
    output[n] = '\0';
    while (fgetc(pipe) != EOF) {}

    int status = pclose(pipe);
    return WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

static void skip_unless_built(const Case *c) {
    char path[256];
    snprintf(path, sizeof path, "build/%s-sim/test/sim/faults", c->mode);
    if (access(path, X_OK) == 0) return;
    print_message("no %s: MODE=%s was not built\n", path, c->mode);
    skip();
}

static void fault_is_caught(void **state) {
    const Case *c = *state;
    static char output[1 << 16];
    skip_unless_built(c);
    bool ended_well = run(c, "wrong", output, sizeof output);
    if (ended_well || !strstr(output, c->message) ||
        (c->place == IN_KERNEL && !strstr(output, "sim: in kernel ")))
        fail_msg("%s under %s %s should end with '%s'%s; it %s and printed:\n%s", c->fault, c->mode,
                 c->setting, c->message, c->place == IN_KERNEL ? " and name the kernel" : "",
                 ended_well ? "ended well" : "failed", output);
}

static void correct_twin_passes(void **state) {
    const Case *c = *state;
    static char output[1 << 16];
    skip_unless_built(c);
    if (!run(c, "right", output, sizeof output) || strcmp(output, "finished\n") != 0)
        fail_msg("the correct twin of %s under %s %s printed:\n%s", c->fault, c->mode, c->setting,
                 output);
}

int main(void) {
    static char names[2 * NUM_CASES][128];
    for (int i = 0; i < 2 * NUM_CASES; i++) {
        const Case *c = &cases[i / 2];
        snprintf(names[i], sizeof names[i], "%s_%s_%s_%d", c->mode, c->fault,
                 i % 2 ? "right" : "wrong", i / 2);
        test_add(i, (struct CMUnitTest){names[i], i % 2 ? correct_twin_passes : fault_is_caught,
                                        NULL, NULL, (void *)c});
    }
    return test_run();
}
