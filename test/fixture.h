// Tests share these functions: an empty directory, whole files, the output of a stream or a child
// process, numbers in JSON, errors. Every program includes the header for itself.
#pragma once
#include "test/test.h"

#include <cjson/cJSON.h>
#include <dirent.h>
#include <ftw.h>
#include <limits.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

// ------------------------------------------------------------------------------------- a directory

typedef struct {
    char path[PATH_MAX / 2];
} TmpDir;

// That of the test, or of all tests: TestFixture test_each = {tmp_setup, tmp_teardown};
static TmpDir tmp;

// By mkdtemp under $TMPDIR, or in the system's place.
static inline TmpDir tmpdir_make(void) {
    TmpDir dir;
    const char *base = getenv("TMPDIR");
    snprintf(dir.path, sizeof dir.path, "%s/llmc-test-XXXXXX", base && *base ? base : P_tmpdir);
    if (!mkdtemp(dir.path)) perror(dir.path), abort();
    return dir;
}

static inline int tmpdir_unlink(const char *path, const struct stat *st, int type,
                                struct FTW *walk) {
    (void)st, (void)type, (void)walk;
    return remove(path);
}

static inline void tmpdir_remove(const TmpDir *dir) {
    nftw(dir->path, tmpdir_unlink, 16, FTW_DEPTH | FTW_PHYS);
}

static inline int tmp_setup(void **state) {
    (void)state;
    tmp = tmpdir_make();
    return 0;
}

static inline int tmp_teardown(void **state) {
    (void)state;
    tmpdir_remove(&tmp);
    return 0;
}

// The path of a file in tmp, in one of a few static buffers: good until eight calls later.
static inline const char *tmp_file(const char *name) {
    static char paths[8][PATH_MAX];
    static unsigned next;
    if (!tmp.path[0]) fail_msg("no directory: tmp_setup did not run");
    char *path = paths[next++ % 8];
    snprintf(path, PATH_MAX, "%s/%s", tmp.path, name);
    return path;
}

// Files and directories in a directory, hidden ones too.
static inline int entries_of(const char *directory) {
    int n = 0;
    DIR *d = opendir(directory);
    assert_non_null(d);
    for (struct dirent *e; (e = readdir(d));)
        n += strcmp(e->d_name, ".") != 0 && strcmp(e->d_name, "..") != 0;
    closedir(d);
    return n;
}

// ------------------------------------------------------------------------------------------- files

enum { FILE_ROOM = 64 }; // behind the bytes of read_bytes, zeros

static inline void write_bytes(const char *path, const void *data, size_t n) {
    unlink(path); // some file systems flush a file to disk that is cut to nothing and written again
    FILE *f = fopen(path, "wb");
    if (!f || fwrite(data, 1, n, f) != n || fclose(f) != 0) perror(path), abort();
}

static inline void write_text(const char *path, const char *text) {
    write_bytes(path, text, strlen(text));
}

static inline unsigned char *read_stream(FILE *f, size_t *n) {
    if (fseek(f, 0, SEEK_END) != 0) perror("fseek"), abort();
    *n = (size_t)ftell(f);
    rewind(f);
    unsigned char *data = calloc(1, *n + FILE_ROOM);
    if (!data || fread(data, 1, *n, f) != *n) perror("fread"), abort();
    fclose(f);
    return data;
}

// The whole file, malloced.
static inline unsigned char *read_bytes(const char *path, size_t *n) {
    FILE *f = fopen(path, "rb");
    if (!f) perror(path), abort();
    return read_stream(f, n);
}

// The soft limit of this process, such as RLIMIT_NOFILE; RLIM_INFINITY: what may be had.
static inline void limit_resource(int which, rlim_t most) {
    struct rlimit limit;
    getrlimit(which, &limit);
    limit.rlim_cur = most < limit.rlim_max ? most : limit.rlim_max;
    setrlimit(which, &limit);
}

// Writes fail beyond this size with EFBIG, as they do at some byte of a full disk.
static inline void limit_file_size(rlim_t bytes) {
    signal(SIGXFSZ, SIG_IGN);
    limit_resource(RLIMIT_FSIZE, bytes);
}

// The first `from` of the file becomes `to`.
static inline void replace_in_file(const char *path, const char *from, const char *to) {
    size_t n;
    char *bytes = (char *)read_bytes(path, &n), *place = memmem(bytes, n, from, strlen(from));
    if (!place) fail_msg("%s does not hold %s", path, from);
    const size_t before = (size_t)(place - bytes), removed = strlen(from), added = strlen(to);
    char *edited = malloc(n + added);
    memcpy(edited, bytes, before);
    memcpy(edited + before, to, added);
    memcpy(edited + before + added, place + removed, n - before - removed);
    write_bytes(path, edited, n - removed + added);
    free(edited), free(bytes);
}

static inline char *read_text(const char *path) { return (char *)read_bytes(path, &(size_t){0}); }

// ----------------------------------------------------------------------------------- what was said

// stdout or stderr goes into a file between capture_start and capture_end, which gives the text
// (malloced).
typedef struct {
    FILE *file, *stream;
    int saved;
} Capture;

static inline Capture capture_start(FILE *stream) {
    fflush(stream);
    Capture c = {.file = tmpfile(), .stream = stream, .saved = dup(fileno(stream))};
    if (!c.file || c.saved < 0) perror("capture"), abort();
    dup2(fileno(c.file), fileno(stream));
    return c;
}

static inline char *capture_end(Capture *c) {
    fflush(c->stream);
    dup2(c->saved, fileno(c->stream));
    close(c->saved);
    return (char *)read_stream(c->file, &(size_t){0});
}

// The wait status of a child process that runs `body` and, if that returns, exits with its result.
// stderr goes into said, cut to `size`.
static inline int status_of_child(int (*body)(void *), void *context, char *said, size_t size) {
    Capture c = capture_start(stderr);
    fflush(stdout);
    const pid_t child = fork();
    if (child == 0) {
        signal(SIGABRT, SIG_DFL); // cmocka's handler would report a failed test
        _exit(body(context));
    }

    int status = -1;
    const pid_t ended = child < 0 ? child : waitpid(child, &status, 0);
    char *text = capture_end(&c);
    snprintf(said, size, "%s", text);
    free(text);

    assert_true(child > 0 && ended == child);
    return status;
}

// -------------------------------------------------------------------------------------------- JSON

static inline double json_number(const cJSON *object, const char *key) {
    const cJSON *item = cJSON_GetObjectItemCaseSensitive(object, key);
    if (!cJSON_IsNumber(item)) fail_msg("%s is no number", key);
    return item->valuedouble;
}

static inline const char *json_string(const cJSON *object, const char *key) {
    const char *text = cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(object, key));
    if (!text) fail_msg("%s is no string", key);
    return text;
}

// ------------------------------------------------------------------------------------------ errors

// The macro prints what a call that takes an Error said into `err`, which is the program's own or
// the test's.
#define assert_ok(condition)                                                                       \
    do {                                                                                           \
        if (!(condition)) fail_msg("%s", err.text);                                                \
    } while (0)

#define assert_message(part)                                                                       \
    do {                                                                                           \
        if (!strstr(err.text, part)) fail_msg("\"%s\" does not say \"%s\"", err.text, part);       \
    } while (0)

// A call that must fail, and a part of what it says.
#define assert_error(call, part)                                                                   \
    do {                                                                                           \
        err.text[0] = '\0';                                                                        \
        if (call) fail_msg("no error: %s", #call);                                                 \
        assert_message(part);                                                                      \
    } while (0)
