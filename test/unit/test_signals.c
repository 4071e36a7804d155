// Signals, each case in a child process: what it asks for, and what it says. That each of them ends
// a run, and how: test/e2e/test_resume.py; a pipe that nobody reads: test/e2e/test_generation.py.
#include "llmc/base/error.h"
#include "llmc/base/signals.h"
#include "test/fixture.h"

#include <errno.h>
#include <pthread.h>
#include <ucontext.h>

// A read that SIGUSR1 interrupts must go on and get the byte that is written after the signal.
static bool read_across_a_signal(void) {
    int ends[2];
    if (pipe(ends) != 0) return false;

    pid_t parent = getpid(), child = fork();
    if (child == 0) {
        usleep(50000); // lets the parent enter read; when it did not, the test passes without its
                       // point
        kill(parent, SIGUSR1);
        usleep(20000);
        _exit(write(ends[1], "x", 1) == 1 ? 0 : 1);
    }

    char byte;
    ssize_t n = read(ends[0], &byte, 1);
    waitpid(child, NULL, 0);
    return n == 1;
}

typedef struct {
    const char *what;
    int raised[7], pending; // 0 ends them
    const char *said;
    bool (*body)(void);
} Case;

static int run(void *context) {
    const Case *c = context;
    signals_install();
    errno = 77;
    for (const int *number = c->raised; *number; number++) raise(*number);
    return errno == 77 && (!c->body || c->body()) && signals_pending() == c->pending ? 0 : 1;
}

TEST(the_first_signal_is_pending_and_ends_nothing) {
    static Case cases[] = {
        {"no signal", {0}, 0, "", NULL},
        {"SIGTERM, however often",
         {SIGTERM, SIGTERM, SIGTERM, SIGTERM, SIGTERM, SIGUSR1},
         SIGTERM,
         "",
         NULL},
        {"a SIGINT", {SIGINT}, SIGINT, "SIGINT: stopping; Ctrl-C again ends at once", NULL},
        {"a SIGINT after SIGTERM, which is no second one", {SIGTERM, SIGINT}, SIGTERM, "", NULL},
        {"a system call, which is restarted", {0}, SIGUSR1, "", read_across_a_signal},
    };

    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        char said[512];
        const int status = status_of_child(run, &cases[i], said, sizeof said);
        if (!WIFEXITED(status) || WEXITSTATUS(status) != 0 || !strstr(said, cases[i].said))
            fail_msg("%s: status %d, %s", cases[i].what, status, said);
    }
}

// The bytes of a stack of 64 KiB that a call which raises the signal leaves as they were, from its
// far end.
static char small_stack[64 << 10];
static int raised_there;
static ucontext_t outside, inside;
static void raise_there(void) { raise(raised_there); }
static size_t untouched_by(int number) {
    raised_there = number;
    memset(small_stack, 0x5A, sizeof small_stack);
    getcontext(&inside);
    inside.uc_stack.ss_sp = small_stack;
    inside.uc_stack.ss_size = sizeof small_stack;
    inside.uc_link = &outside;
    makecontext(&inside, raise_there, 0);
    swapcontext(&outside, &inside);
    size_t n = 0;
    while (n < sizeof small_stack && small_stack[n] == 0x5A) n++;
    return n;
}

// An ignored signal leaves on the stack what raise itself needs. A handler on the same stack would
// write at least the registers that the kernel saves for it, more than 500 bytes.
static int handle_elsewhere(void *unused) {
    (void)unused;
    signals_install();
    untouched_by(SIGPIPE); // binds raise
    const size_t ignored = untouched_by(SIGPIPE), handled = untouched_by(SIGTERM);
    return signals_pending() == SIGTERM && handled + 256 >= ignored ? 0 : 1;
}

TEST(a_handler_does_not_write_to_the_stack_that_it_interrupts) {
    char said[512];
    const int status = status_of_child(handle_elsewhere, NULL, said, sizeof said);
    assert_true(WIFEXITED(status));
    assert_int_equal(WEXITSTATUS(status), 0);
}

static void *raise_blocked(void *unused) {
    (void)unused;
    signals_block();
    pthread_kill(pthread_self(), SIGTERM); // stays pending for this thread
    return NULL;
}

static int block_in_a_thread(void *unused) {
    pthread_t thread;
    signals_install();
    if (pthread_create(&thread, NULL, raise_blocked, unused) != 0) return 2;
    pthread_join(thread, NULL);
    return signals_pending();
}

TEST(a_thread_that_blocks_them_receives_none) {
    char said[512];
    assert_int_equal(status_of_child(block_in_a_thread, NULL, said, sizeof said), 0);
}

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
