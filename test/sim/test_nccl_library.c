// Loading NCCL: the file that the simulator leaves out. Its own library is opened where the toolkit
// has one, without a GPU: it must have every function of the table.
#include "llmc/cuda/nccl_library.h"
#include "test/fixture.h"

// That of the toolkit, or "" (dev/sim/sim.mk).
#ifndef NCCL_REAL
#define NCCL_REAL ""
#endif

#ifdef HAVE_NCCL

// In a child process, because the library is looked for once: exit status 0 if it is usable, stderr
// says why not.
static int open_library(void *context) {
    const char *file = *(const char **)context;
    Error err;
    setenv("NCCL_LIBRARY", file, 1);
    const bool usable = nccl_library_open(&err);
    if (usable == (*nccl_library_version_text() == '\0')) return 2;
    if (!usable) {
        Error again;
        if (nccl_library_open(&again) || strcmp(err.text, again.text) != 0) return 3;
        fprintf(stderr, "%s", err.text);
        return 1;
    }

#define CHECK_FUNCTION(name)                                                                       \
    if (!nccl.name) return 4;
    NCCL_FUNCTIONS(CHECK_FUNCTION)
#undef CHECK_FUNCTION

    fprintf(stderr, "%s", nccl_library_version_text());
    return 0;
}

static void assert_refused(const char *file, const char *reason) {
    char said[2048];
    const int status = status_of_child(open_library, &file, said, sizeof said);
    if (!WIFEXITED(status) || WEXITSTATUS(status) != 1 || !strstr(said, reason))
        fail_msg("status %d for %s: %s", status, file, said);
}

TEST(a_library_that_is_missing_or_too_old_is_named_with_a_remedy) {
    char old[PATH_MAX];
    const ssize_t length = readlink("/proc/self/exe", old, sizeof old - 64);
    assert_true(length > 0);
    old[length] = '\0';
    snprintf(strrchr(old, '/'), 64, "/fake_nccl.so");
    assert_refused("/nowhere/libnccl.so.2", "NCCL not found: /nowhere/libnccl.so.2");
    assert_refused("/nowhere/libnccl.so.2", "set NCCL_LIBRARY to its file");
    assert_refused("libm.so.6", "libm.so.6 is no NCCL");
    assert_refused(old,
                   "fake_nccl.so is too old (version code 21705): NCCL 2.18 or newer is needed");
}

TEST(the_library_of_the_toolkit_has_every_function) {
    const char *real = NCCL_REAL;
    if (!*real) {
        print_message("skipped: the CUDA toolkit has no libnccl.so.2\n");
        skip();
    }
    char said[2048];
    const int status = status_of_child(open_library, &real, said, sizeof said);
    if (!WIFEXITED(status) || WEXITSTATUS(status) != 0) fail_msg("status %d: %s", status, said);
    if (strncmp(said, "2.", 2) != 0) fail_msg("version %s", said);
}

#else

TEST(without_the_header_the_message_says_what_to_install) {
    Error err;
    assert_error(nccl_library_open(&err), "install libnccl-dev and build again");
}

#endif
