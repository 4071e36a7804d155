// Every test program includes this: cmocka, and tests that register themselves.
//
//     TEST(one_and_one_are_two) { assert_int_equal(1 + 1, 2); }
//
// The main of test/test.c runs them in the order of their lines. TEST_FILTER=PATTERN chooses among
// their names. A program that is more than its tests has a main of its own, which calls test_run.
#pragma once
// cmocka needs these four before its own header.
// clang-format off
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
// clang-format on
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define TEST(name) TEST_WITH(name, NULL, NULL)

// With a setup and a teardown of its own. `state` is theirs.
#define TEST_WITH(name, setup, teardown)                                                           \
    static void name(void **state);                                                                \
    __attribute__((constructor)) static void name##_registers(void) {                              \
        test_add(__LINE__, (struct CMUnitTest){#name, name, setup, teardown, NULL});               \
    }                                                                                              \
    static void name(__attribute__((unused)) void **state)

// Before a variable: destroy(&variable) at the end of its block, but where the test fails in it.
#define AUTO(destroy) __attribute__((cleanup(destroy)))
#define AUTO_FREE     AUTO(auto_free) // of a pointer

static inline void auto_free(void *variable) {
    void *memory;
    memcpy(&memory, variable, sizeof memory);
    free(memory);
}

// A program may define these: what stands around each of its tests that has no setup and no
// teardown of its own, and what stands around all of them together.
typedef struct {
    CMFixtureFunction setup, teardown;
} TestFixture;
extern TestFixture test_each, test_all;

// one more, after those of earlier lines and of this one
void test_add(int line, struct CMUnitTest test);
int test_run(void); // the exit status: how many failed
