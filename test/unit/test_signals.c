// Signals, each case in a child process: what it asks for, and what it says. That each of them ends a run, and how:
// test/e2e/test_resume.py; a pipe that nobody reads: test/e2e/test_generation.py.
#include "llmc/base/error.h"
#include "test/fixture.h"

#include <errno.h>

static int nothing_happens(void) {
    signals_install();
    return signals_pending();
}

static int sigterm_many_times(void) {
    signals_install();
    for (int i = 0; i < 5; i++) raise(SIGTERM);
    raise(SIGUSR1);
    return signals_pending() == SIGTERM ? 0 : 1;
}

static int sigint_once(void) {
    signals_install();
    errno = 77;
    raise(SIGINT);
    return signals_pending() == SIGINT && errno == 77 ? 0 : 1;
}

static int sigterm_then_sigint(void) {
    signals_install();
    raise(SIGTERM);
    raise(SIGINT);
    return signals_pending() == SIGTERM ? 0 : 1;
}

// A read that SIGUSR1 interrupts must go on and get the byte that is written after the signal.
static int read_across_a_signal(void) {
    signals_install();
    int ends[2];
    if (pipe(ends) != 0) return 1;
    pid_t parent = getpid(), child = fork();
    if (child == 0) {
        usleep(50000); // lets the parent enter read; when it did not, the test passes without its point
        kill(parent, SIGUSR1);
        usleep(20000);
        _exit(write(ends[1], "x", 1) == 1 ? 0 : 1);
    }
    char byte;
    ssize_t n = read(ends[0], &byte, 1);
    waitpid(child, NULL, 0);
    return n == 1 && signals_pending() == SIGUSR1 ? 0 : 1;
}

typedef int Body(void);

static int run(void *body) { return (*(Body **)body)(); }

static void assert_exits_well(Body *body, const char *words) {
    char said[512];
    const int status = status_of_child(run, &body, said, sizeof said);
    assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    if (!strstr(said, words)) fail_msg("\"%s\" is not in: %s", words, said);
}

TEST(without_a_signal_nothing_is_pending) { assert_exits_well(nothing_happens, ""); }

TEST(sigterm_stays_graceful_however_often_it_comes) { assert_exits_well(sigterm_many_times, ""); }

TEST(the_first_sigint_asks_to_stop_and_says_so) {
    assert_exits_well(sigint_once, "SIGINT: stopping; Ctrl-C again ends at once");
}

TEST(the_first_sigint_after_sigterm_is_not_a_second_one) { assert_exits_well(sigterm_then_sigint, ""); }

TEST(system_calls_are_restarted) { assert_exits_well(read_across_a_signal, ""); }

TEST(signals_have_their_names) {
    assert_string_equal(signals_name(SIGINT), "SIGINT");
    assert_string_equal(signals_name(SIGTERM), "SIGTERM");
    assert_string_equal(signals_name(SIGUSR1), "SIGUSR1");
    assert_string_equal(signals_name(SIGHUP), "SIGHUP");
    assert_string_equal(signals_name(0), "no signal");
}

int main(void) {
    signal(SIGHUP, SIG_DFL); // ignored where these tests run under nohup
    return test_run();
}
