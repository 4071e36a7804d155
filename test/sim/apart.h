// Tests that run each in a process of its own, with settings that the simulator reads when it
// starts, and a tuning cache of its own. It is this program, started again with an argument, which
// runs the test there. Included once by a program.
#pragma once
#include "llmc/cuda/cudnn_graph.h"
#include "test/ops/op_test.h"
#include <sys/wait.h>
#include <unistd.h>

typedef struct {
    const char *name;
    void (*body)(void **state);
    const char *cudnn;      // SIM_CUDNN; NULL: unset
    const char *capability; // SIM_CC
} ApartTest;
#define APART_TEST(name, cudnn, capability)                                                        \
    static void name(void **state);                                                                \
    __attribute__((constructor)) static void name##_registers(void) {                              \
        static ApartTest test = {#name, name, cudnn, capability};                                  \
        test_add(__LINE__, (struct CMUnitTest){#name, apart_run, NULL, apart_teardown, &test});    \
    }                                                                                              \
    static void name(__attribute__((unused)) void **state)

static bool apart_here; // in the process of one test

static int apart_teardown(void **state) { return apart_here ? op_teardown(state) : 0; }

// The report goes to the output of the program that started this one.
static void apart_run(void **state) {
    const ApartTest *t = (const ApartTest *)*state;
    if (apart_here) {
        t->body(state);
        return;
    }

#ifndef HAVE_CUDNN
    if (t->cudnn) {
        print_message(
            "built without the headers of cuDNN 9.8 or newer: there is no simulated cuDNN\n");
        skip();
    }
#endif

#ifdef __SANITIZE_ADDRESS__
    if (strcmp(t->capability, "90") != 0) {
        print_message("the sanitizers' builds hold PTX of sm_90 only\n");
        skip();
    }
#endif

    char cache[] = P_tmpdir "/tuning.XXXXXX", program[4096];
    const int file = mkstemp(cache);
    const ssize_t length = readlink("/proc/self/exe", program, sizeof program - 1);
    assert_true(file >= 0 && length > 0);
    close(file);
    program[length] = '\0';
    fflush(stdout);

    const pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        unsetenv("CMOCKA_MESSAGE_OUTPUT"), unsetenv("CMOCKA_XML_FILE");
        setenv("PRETRAIN_CACHE", cache, 1);
        setenv("SIM_CC", t->capability, 1);
        if (t->cudnn)
            setenv("SIM_CUDNN", t->cudnn, 1);
        else
            unsetenv("SIM_CUDNN");
        setenv("TEST_FILTER", t->name, 1);
        execl(program, program, "here", (char *)NULL);
        _exit(127);
    }

    int status = 0;
    assert_int_equal(waitpid(child, &status, 0), child);
    unlink(cache);
    assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

int main(int argc, char **argv) {
    (void)argv;
    apart_here = argc > 1;
    return test_run();
}
