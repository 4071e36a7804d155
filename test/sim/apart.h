// Tests that run each in a process of its own, with settings that the simulator reads when it starts, and a tuning
// cache of its own. main is `return apart_main(tests, count, argc, argv)`; a test runs in this program, started again
// with its name.
#pragma once
#include "llmc/cuda/cudnn_library.h"
#include "test/ops/op_test.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

typedef struct {
    const char *name;
    void (*body)(void **state);
    const char *cudnn;      // SIM_CUDNN; NULL: unset
    const char *capability; // SIM_CC
} ApartTest;
#define APART(body, cudnn, capability)                                                                                 \
    { #body, body, cudnn, capability }

// The report goes to the output of the program that started this one.
static inline int apart_body(const ApartTest *tests, int count, const char *name) {
    for (int i = 0; i < count; i++)
        if (strcmp(tests[i].name, name) == 0) {
            const struct CMUnitTest body[] = {{name, tests[i].body, NULL, op_teardown, NULL}};
            return cmocka_run_group_tests(body, NULL, NULL);
        }
    return 1;
}

static inline void apart_run(void **state) {
    const ApartTest *t = (const ApartTest *)*state;
#ifndef HAVE_CUDNN
    if (t->cudnn) {
        print_message("built without the headers of cuDNN 9.8 or newer: there is no simulated cuDNN\n");
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
        execl(program, program, t->name, (char *)NULL);
        _exit(127);
    }
    int status = 0;
    assert_int_equal(waitpid(child, &status, 0), child);
    unlink(cache);
    assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

enum { APART_MAX_TESTS = 64 };

static inline int apart_main(ApartTest *tests, int count, int argc, char **argv) {
    if (argc > 1) return apart_body(tests, count, argv[1]);
    struct CMUnitTest all[APART_MAX_TESTS] = {{0}};
    for (int i = 0; i < count; i++) all[i] = (struct CMUnitTest){tests[i].name, apart_run, NULL, NULL, &tests[i]};
    return _cmocka_run_group_tests("apart", all, (size_t)count, NULL, NULL);
}
