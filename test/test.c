// The main of every test program, and the list of its tests. See test.h.
#include "test/test.h"

#include <errno.h>

__attribute__((weak)) TestFixture test_each, test_all;

static struct CMUnitTest *tests;
static int *lines; // ascending
static size_t count;

// Constructors come in an order of the compiler's choice.
void test_add(int line, struct CMUnitTest test) {
    tests = realloc(tests, (count + 1) * sizeof *tests);
    lines = realloc(lines, (count + 1) * sizeof *lines);
    if (!tests || !lines) perror("test_add"), abort();
    size_t i = count++;
    for (; i > 0 && lines[i - 1] > line; i--) tests[i] = tests[i - 1], lines[i] = lines[i - 1];
    tests[i] = test, lines[i] = line;
}

int test_run(void) {
    const char *filter = getenv("TEST_FILTER");
    if (filter) cmocka_set_test_filter(filter);
    for (size_t i = 0; i < count; i++)
        if (!tests[i].setup_func && !tests[i].teardown_func)
            tests[i].setup_func = test_each.setup, tests[i].teardown_func = test_each.teardown;
    // cmocka's macro wants an array; this is the function below it.
    return _cmocka_run_group_tests(program_invocation_short_name, tests, count, test_all.setup,
                                   test_all.teardown);
}

__attribute__((weak)) int main(void) { return test_run(); }
