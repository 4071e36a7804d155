// Arrays that grow keep what they have; memory that is asked for is all zero; where there is none,
// the program ends.
#include "llmc/base/error.h"
#include "llmc/base/memory.h"
#include "test/fixture.h"

#include <sys/wait.h>
#include <unistd.h>

TEST(an_array_keeps_its_elements_while_it_grows_in_few_steps) {
    int64_t capacity = 0, steps = 0;
    int32_t *array = NULL;
    for (int32_t n = 0; n < 100000; n++) {
        const int64_t before = capacity;
        array = memory_grow(array, &capacity, n + 1, sizeof *array);
        assert_true(capacity > n);
        steps += capacity != before;
        array[n] = n;
    }

    for (int32_t n = 0; n < 100000; n++) assert_int_equal(array[n], n);
    assert_in_range(steps, 1, 30); // log(100000 / 16) / log(1.5) = 22

    array = memory_grow(array, &capacity, 1 << 20, sizeof *array);
    assert_true(capacity >= 1 << 20);
    free(array);
}

TEST(new_memory_is_zero_and_never_null) {
    int64_t *numbers = memory_zeroed(1000, sizeof *numbers), *none = memory_zeroed(0, sizeof *none);
    for (int i = 0; i < 1000; i++) assert_int_equal(numbers[i], 0);
    memset(numbers, 1, 1000 * sizeof *numbers);
    free(numbers);

    numbers = memory_new(1000, sizeof *numbers);
    memset(numbers, 2, 1000 * sizeof *numbers); // all of it is there
    int64_t *unset = memory_new(0, sizeof *unset);

    assert_non_null(none);
    assert_non_null(unset);

    free(numbers);
    free(unset);
    free(none);
}

TEST(without_memory_the_program_ends_as_a_run_that_failed) {
    for (int is_new = 0; is_new <= 1; is_new++) {
        const pid_t child = fork();
        if (child == 0) {
            freopen("/dev/null", "w", stderr);
            // more bytes than size_t counts
            if (is_new)
                memory_new(INT64_MAX / 4, 8);
            else
                memory_zeroed(INT64_MAX / 8, 8);
            _exit(EXIT_OK);
        }

        int status;
        assert_int_equal(waitpid(child, &status, 0), child);
        assert_true(WIFEXITED(status) && WEXITSTATUS(status) == EXIT_RUN_FAILED);
    }
}
