// Preloaded into a program under test: lets one system call or one allocation fail, counts them,
// and records what the program does to the files below a directory.
//
//   FAULT_COUNTS=FILE    a file of `struct Shared`, kept up to date also when the program is killed
//   FAULT_CLASS=read     one of class_names; FAULT_AT=N: its N-th call fails, with FAULT_ON=1 also
//                        all that follow
//   FAULT_ERROR=28       the errno that it fails with; 0: it does only half of what it was asked
//                        for (read, write)
//   FAULT_SIGNAL=15      it does not fail, but the signal comes to the process just before it
//   FAULT_ABOVE=BYTES    every allocation of more bytes fails
//   FAULT_NO_EXCHANGE=1  two names cannot be exchanged, as on NFS
//   FAULT_UNDER=DIR      counts only calls on files below this directory
//   TRACE=FILE           records those of them that change something
//   FAULT_CLOCK=N        the monotonic clock is N times as fast: the trainer measures the machine
//                        for a shorter time
//
// System calls are caught by a seccomp filter, which turns them into SIGSYS unless they come from
// raw_call below: so the calls that the C library makes inside fopen, fwrite, readdir or glob fail
// as well. x86-64 only.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <time.h>
#include <ucontext.h>
#include <unistd.h>

enum Class {
    OPEN,
    READ,
    WRITE,
    FSYNC,
    RENAME,
    READDIR,
    MKDIR,
    CLOSE,
    UNLINK,
    TRUNCATE,
    STAT,
    LOCK,
    MALLOC,
    CLASSES
};
static const char *const class_names[CLASSES] = {"open",    "read",  "write", "fsync",  "rename",
                                                 "readdir", "mkdir", "close", "unlink", "truncate",
                                                 "stat",    "lock",  "malloc"};

// The system calls that are caught.
static const struct {
    int number;
    enum Class class;
} calls[] = {{SYS_open, OPEN},          {SYS_openat, OPEN},       {SYS_creat, OPEN},
             {SYS_read, READ},          {SYS_pread64, READ},      {SYS_readv, READ},
             {SYS_write, WRITE},        {SYS_pwrite64, WRITE},    {SYS_writev, WRITE},
             {SYS_fsync, FSYNC},        {SYS_fdatasync, FSYNC},   {SYS_rename, RENAME},
             {SYS_renameat, RENAME},    {SYS_renameat2, RENAME},  {SYS_getdents64, READDIR},
             {SYS_mkdir, MKDIR},        {SYS_mkdirat, MKDIR},     {SYS_close, CLOSE},
             {SYS_unlink, UNLINK},      {SYS_unlinkat, UNLINK},   {SYS_rmdir, UNLINK},
             {SYS_ftruncate, TRUNCATE}, {SYS_truncate, TRUNCATE}, {SYS_newfstatat, STAT},
             {SYS_stat, STAT},          {SYS_fstat, STAT},        {SYS_lstat, STAT},
             {SYS_access, STAT},        {SYS_flock, LOCK}};
enum { CALLS = sizeof calls / sizeof calls[0] };

struct Shared {
    atomic_long count[CLASSES];
    atomic_long failed; // calls that were made to fail
    char where[512];    // the file of the first
};

// NOLINTBEGIN(performance-no-int-to-ptr): the arguments of a system call are numbers
static struct Shared nowhere, *shared = &nowhere;
static long fail_at, fail_above, speed = 1;
static int fail_class = -1, fail_error, fail_signal, trace = -1;
static bool fail_on, no_exchange;
static char under[1024];
static size_t under_length;
enum { MAX_FILES = 4096 };
static bool is_ours[MAX_FILES];     // the descriptors of files below `under`
static long output = STDOUT_FILENO; // the descriptor through which the program writes to stdout
static atomic_flag tracing = ATOMIC_FLAG_INIT;

// A system call that the filter lets through: by the address after its instruction.
long raw_call(long number, long a, long b, long c, long d, long e, long f);
extern const char raw_call_end[];
__asm__(".text\n.globl raw_call\n.type raw_call,@function\nraw_call:\n"
        "mov %rdi,%rax\nmov %rsi,%rdi\nmov %rdx,%rsi\nmov %rcx,%rdx\nmov %r8,%r10\nmov "
        "%r9,%r8\nmov 8(%rsp),%r9\n"
        "syscall\n.globl raw_call_end\n.hidden raw_call_end\nraw_call_end:\nret\n");

static long raw(long number, long a, long b, long c, long d) {
    return raw_call(number, a, b, c, d, 0, 0);
}

// ------------------------------------------------------------------------------------------ faults

// Counts a call; true: it is the one that fails.
static bool fails(enum Class class, const char *where) {
    const long n = atomic_fetch_add(&shared->count[class], 1) + 1;
    if ((int)class != fail_class || fail_at == 0 || (fail_on ? n < fail_at : n != fail_at))
        return false;
    if (atomic_fetch_add(&shared->failed, 1) == 0)
        for (size_t i = 0; i + 1 < sizeof shared->where && (shared->where[i] = where[i]) != '\0';
             i++) {}
    return true;
}

static bool is_below(const char *path) {
    return under_length == 0 || (path && strncmp(path, under, under_length) == 0 &&
                                 (path[under_length] == '/' || path[under_length] == '\0'));
}

// ----------------------------------------------------------------------------------------- records

// A record of the trace: this, then `text` bytes of a path, then `more` bytes of another path or of
// data.
struct Record {
    int32_t number, file, flags; // of the system call; of the descriptor
    uint32_t text, more;
    int32_t unused;
    int64_t offset; // -1: at the end
};

static void record(int number, int file, int flags, int64_t offset, const char *text,
                   const void *more, size_t bytes) {
    const size_t length = text ? strlen(text) : 0;
    struct Record r = {number, file, flags, (uint32_t)length, (uint32_t)bytes, 0, offset};
    raw(SYS_write, trace, (long)&r, sizeof r, 0);
    if (length) raw(SYS_write, trace, (long)text, (long)length, 0);
    if (bytes) raw(SYS_write, trace, (long)more, (long)bytes, 0);
}

static bool is_our_file(long file) { return file >= 0 && file < MAX_FILES && is_ours[file]; }

// Records what a call did, in the order in which calls happen; `tracing` is held.
static void record_call(int n, const long *a, long result, int64_t offset) {
    const char *one = (const char *)a[0], *two = (const char *)a[1];

    switch (n) {
    case SYS_write:
    case SYS_pwrite64:
        if (result > 0 && (is_our_file(a[0]) || a[0] == output))
            record(n, a[0] == output ? STDOUT_FILENO : (int)a[0], 0, offset, NULL, two,
                   (size_t)result);
        break;
    case SYS_fsync:
    case SYS_fdatasync:
        if (result == 0 && is_our_file(a[0])) record(SYS_fsync, (int)a[0], 0, 0, NULL, NULL, 0);
        break;
    case SYS_ftruncate:
        if (result == 0 && is_our_file(a[0])) record(n, (int)a[0], 0, a[1], NULL, NULL, 0);
        break;
    case SYS_rename:
        if (result == 0 && is_below(one)) record(SYS_rename, 0, 0, 0, one, two, strlen(two));
        break;
    case SYS_renameat2:
        two = (const char *)a[3];
        if (result == 0 && is_below((char *)a[1]))
            record(SYS_rename, 0, (int)a[4], 0, (char *)a[1], two, strlen(two));
        break;
    case SYS_mkdir:
    case SYS_unlink:
    case SYS_rmdir:
        if (result == 0 && is_below(one)) record(n, 0, 0, 0, one, NULL, 0);
        break;
    case SYS_unlinkat:
        if (result == 0 && is_below(two)) record(SYS_unlink, 0, 0, 0, two, NULL, 0);
        break;
    }
}

static enum Class class_of(int number) {
    for (int i = 0; i < CALLS; i++)
        if (calls[i].number == number) return calls[i].class;
    return CLASSES;
}

static bool has_path(int n) {
    return n == SYS_open || n == SYS_creat || n == SYS_rename || n == SYS_mkdir ||
           n == SYS_unlink || n == SYS_rmdir || n == SYS_truncate || n == SYS_stat ||
           n == SYS_lstat || n == SYS_access;
}

static bool has_path_second(int n) {
    return n == SYS_openat || n == SYS_renameat || n == SYS_renameat2 || n == SYS_mkdirat ||
           n == SYS_unlinkat || n == SYS_newfstatat;
}

static long do_call(int n, const long *a) {
    const enum Class class = class_of(n);
    const char *path = has_path(n)          ? (const char *)a[0]
                       : has_path_second(n) ? (const char *)a[1]
                                            : NULL;
    const bool of_file = !path || (n == SYS_newfstatat && *path == '\0');
    const bool ours = of_file ? is_our_file(a[0]) : is_below(path);
    const bool opens = class == OPEN;

    if ((under_length == 0 || ours) && fails(class, of_file ? "(descriptor)" : path)) {
        if (fail_signal > 0) {
            raw(SYS_kill, raw(SYS_getpid, 0, 0, 0, 0), fail_signal, 0, 0);
        } else if (fail_error > 0) {
            // as Linux does: the descriptor is free whatever it reports
            if (class == CLOSE) raw(n, a[0], 0, 0, 0);
            if (class == CLOSE && a[0] < MAX_FILES) is_ours[a[0]] = false;
            return -fail_error;
        } else if ((class == READ || class == WRITE) && a[2] > 1 && n != SYS_readv &&
                   n != SYS_writev)
            return raw(n, a[0], a[1], a[2] / 2, a[3]);
    }

    if (no_exchange && n == SYS_renameat2 && a[4] & RENAME_EXCHANGE) return -EINVAL;
    if (trace < 0 && !(opens && under_length))
        return raw_call(n, a[0], a[1], a[2], a[3], a[4], a[5]);

    while (atomic_flag_test_and_set(&tracing)) {}
    int64_t offset = n == SYS_pwrite64 ? a[3] : 0;
    if (n == SYS_write && is_our_file(a[0]))
        offset = raw(SYS_fcntl, a[0], F_GETFL, 0, 0) & O_APPEND
                     ? -1
                     : raw(SYS_lseek, a[0], 0, SEEK_CUR, 0);
    const long result = raw_call(n, a[0], a[1], a[2], a[3], a[4], a[5]);

    if (opens && result >= 0 && result < MAX_FILES && (is_ours[result] = is_below(path)) &&
        trace >= 0)
        record(SYS_open, (int)result, (int)(n == SYS_openat ? a[2] : a[1]), 0, path, NULL, 0);
    if (opens && result >= 0 && path && strcmp(path, "/proc/self/fd/1") == 0) output = result;
    if (n == SYS_close && a[0] >= 0 && a[0] < MAX_FILES) is_ours[a[0]] = false;
    if (trace >= 0) record_call(n, a, result, offset);

    atomic_flag_clear(&tracing);
    return result;
}

static void on_call(int signal_number, siginfo_t *info, void *context) {
    greg_t *r = ((ucontext_t *)context)->uc_mcontext.gregs;
    const int saved = errno;
    const long arguments[6] = {r[REG_RDI], r[REG_RSI], r[REG_RDX],
                               r[REG_R10], r[REG_R8],  r[REG_R9]};
    (void)signal_number;
    r[REG_RAX] = do_call(info->si_syscall, arguments);
    errno = saved;
}

// ------------------------------------------------------------------------------------------- start

static void catch_calls(void) {
    struct sock_filter filter[8 + CALLS];
    int n = 0;
    const uint64_t end = (uint64_t)raw_call_end;

    filter[n++] =
        (struct sock_filter)BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr));
    for (int i = 0; i < CALLS; i++)
        filter[n++] = (struct sock_filter)BPF_JUMP(
            BPF_JMP | BPF_JEQ | BPF_K, (uint32_t)calls[i].number, (uint8_t)(CALLS - i), 0);
    filter[n++] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW);

    filter[n++] = (struct sock_filter)BPF_STMT(BPF_LD | BPF_W | BPF_ABS,
                                               offsetof(struct seccomp_data, instruction_pointer));
    filter[n++] = (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, (uint32_t)end, 0, 3);
    filter[n++] = (struct sock_filter)BPF_STMT(
        BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, instruction_pointer) + 4);
    filter[n++] =
        (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, (uint32_t)(end >> 32), 0, 1);
    filter[n++] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW);
    filter[n++] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_TRAP);

    const struct sock_fprog program = {.len = (unsigned short)n, .filter = filter};
    struct sigaction action = {.sa_sigaction = on_call,
                               .sa_flags = SA_SIGINFO | SA_RESTART | SA_NODEFER};
    sigaction(SIGSYS, &action, NULL);
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0 ||
        prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) != 0)
        _exit(77);
}

static long number_of(const char *name) {
    const char *text = getenv(name);
    return text ? atol(text) : 0;
}

__attribute__((constructor)) static void start(void) {
    const char *counts = getenv("FAULT_COUNTS"), *class = getenv("FAULT_CLASS"),
               *path = getenv("TRACE");
    const char *directory = getenv("FAULT_UNDER");
    if (number_of("FAULT_CLOCK") > 0) speed = number_of("FAULT_CLOCK");
    if (directory) under_length = (size_t)snprintf(under, sizeof under, "%s", directory);

    const int file = counts ? open(counts, O_RDWR | O_CREAT | O_CLOEXEC, 0666) : -1;
    if (file >= 0 && ftruncate(file, sizeof *shared) == 0)
        shared = (void *)syscall(SYS_mmap, NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED,
                                 file, 0);

    if (path) {
        const int low = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
        trace = fcntl(low, F_DUPFD_CLOEXEC, 900); // out of the way of the program's own descriptors
        close(low);
    }

    if (file >= 0) close(file);
    // what the loader of programs did is not the program's
    memset(shared->count, 0, sizeof shared->count);
    catch_calls();

    fail_error = (int)number_of("FAULT_ERROR"), fail_signal = (int)number_of("FAULT_SIGNAL");
    no_exchange = number_of("FAULT_NO_EXCHANGE") != 0;
    fail_at = number_of("FAULT_AT"), fail_on = number_of("FAULT_ON"),
    fail_above = number_of("FAULT_ABOVE");
    for (int i = 0; class && i < CLASSES; i++)
        if (strcmp(class, class_names[i]) == 0) fail_class = i;
}

// A thread that blocks all signals would be ended by a SIGSYS.
static int change_mask(int how, const sigset_t *set, sigset_t *old) {
    sigset_t other;
    if (set) other = *set, sigdelset(&other, SIGSYS);
    const long result = syscall(SYS_rt_sigprocmask, how, set ? &other : NULL, old, 8);
    return result == 0 ? 0 : errno;
}

int pthread_sigmask(int how, const sigset_t *set, sigset_t *old) {
    return change_mask(how, set, old);
}
int sigprocmask(int how, const sigset_t *set, sigset_t *old) {
    return change_mask(how, set, old) == 0 ? 0 : -1;
}

int clock_gettime(clockid_t clock, struct timespec *now) {
    static long first; // seconds
    const long result = syscall(SYS_clock_gettime, clock, now);
    if (result != 0 || clock != CLOCK_MONOTONIC || speed == 1) return (int)result;
    if (first == 0) first = now->tv_sec;
    const long long passed = ((now->tv_sec - first) * 1000000000LL + now->tv_nsec) * speed;
    now->tv_sec = first + passed / 1000000000, now->tv_nsec = passed % 1000000000;
    return 0;
}

// ------------------------------------------------------------------------------------- allocations

void *__libc_malloc(size_t), *__libc_calloc(size_t, size_t), *__libc_realloc(void *, size_t);
void *__libc_memalign(size_t, size_t);

static bool no_memory(size_t bytes) {
    const bool failed = fails(MALLOC, "memory") || (fail_above > 0 && bytes > (size_t)fail_above);
    if (failed) errno = ENOMEM;
    return failed;
}

void *malloc(size_t bytes) { return no_memory(bytes) ? NULL : __libc_malloc(bytes); }
void *calloc(size_t n, size_t bytes) {
    return no_memory(n * bytes) ? NULL : __libc_calloc(n, bytes);
}
void *realloc(void *p, size_t bytes) {
    return bytes > 0 && no_memory(bytes) ? NULL : __libc_realloc(p, bytes);
}
void *memalign(size_t alignment, size_t bytes) {
    return no_memory(bytes) ? NULL : __libc_memalign(alignment, bytes);
}
void *aligned_alloc(size_t alignment, size_t bytes) { return memalign(alignment, bytes); }

// oneDNN crashes where these two fail; llmc/cpu/onednn.c calls it with memory to spare.
static bool is_from_onednn(void *caller) {
    Dl_info info;
    return dladdr(caller, &info) && info.dli_fname && strstr(info.dli_fname, "libdnnl");
}

int posix_memalign(void **p, size_t alignment, size_t bytes) {
    const bool spared = is_from_onednn(__builtin_return_address(0));
    void *memory = spared ? __libc_memalign(alignment, bytes) : memalign(alignment, bytes);
    if (memory) *p = memory;
    return memory ? 0 : ENOMEM;
}

void *mmap(void *at, size_t bytes, int protection, int flags, int fd, off_t offset) {
    if (!is_from_onednn(__builtin_return_address(0)) && no_memory(bytes)) return MAP_FAILED;
    return (void *)syscall(SYS_mmap, at, bytes, protection, flags, fd, offset);
}
// NOLINTEND(performance-no-int-to-ptr)
