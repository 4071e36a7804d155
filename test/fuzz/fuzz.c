// The driver of the fuzz tests, see fuzz.h. Compiled with -DLIBFUZZER it is a libFuzzer target
// whose mutations know the files of an input; READER=name in the environment chooses the reader,
// SEEDS=DIR writes its seeds there and ends. Otherwise it is a test program: for each reader the
// seeds must be accepted, the damage that its row names must be refused wherever it is, and ROUNDS
// (2000) inputs with other damage each are refused or read, the same every time. FUZZ_READER and
// FUZZ_ROUND repeat one.
#include "test/fuzz/fuzz.h"

#include "llmc/base/arithmetic.h"
#include "llmc/base/random.h"
#include "llmc/base/utf8.h"
#include <ctype.h>
#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <signal.h>
#include <sys/stat.h>

Error fuzz_error;
static const FuzzReader *reader;
static TmpDir scratch;

const char *fuzz_path(const char *name) {
    static char paths[8][PATH_MAX];
    static unsigned next;
    char *path = paths[next++ % 8];
    snprintf(path, PATH_MAX, "%s%s%s", scratch.path, *name ? "/" : "", name);
    return path;
}

void fuzz_replace(Piece *p, const void *bytes, size_t n) {
    unsigned char *copy = malloc(n + FILE_ROOM);
    REQUIRE_MEMORY(copy, "a file");
    if (n > 0) memcpy(copy, bytes, n);
    memset(copy + n, 0, FILE_ROOM);
    free(p->bytes);
    *p = (Piece){copy, n, false};
}

bool fuzz_is_line(const Error *message) {
    Error visible;
    utf8_make_visible(message->text, visible.text, sizeof visible.text);
    return strcmp(message->text, visible.text) == 0;
}

static int pieces_of(const FuzzReader *r) {
    int n = 1; // at least
    while (r->files[n]) n++;
    return n;
}

static void clear(FuzzInput *in) {
    for (int i = 0; i < MAX_PIECES; i++) free(in->pieces[i].bytes);
    *in = (FuzzInput){0};
}

// ----------------------------------------------------------------------------------------- reading

// These pieces are what the scratch directory holds, so that only what differs is written.
static Piece on_disk[MAX_PIECES];

static void write_file(int i, const Piece *p) {
    Piece *d = &on_disk[i];
    if (!reader->changes_files && d->bytes && p->bytes && d->absent == p->absent && d->n == p->n &&
        memcmp(d->bytes, p->bytes, p->n) == 0)
        return;

    const char *path = fuzz_path(reader->files[i]);
    if (p->absent) {
        unlink(path);
    } else {
        const int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
        if (fd < 0 || write(fd, p->bytes, p->n) != (ssize_t)p->n || close(fd) != 0)
            perror(path), abort();
    }

    const bool absent = p->absent;
    fuzz_replace(d, p->bytes, p->n);
    d->absent = absent;
}

// The output of tools is shown with FUZZ_ROUND only, and so is the reason of an abort.
static bool read_input(FuzzInput *in) {
    static FILE *nowhere;
    if (!nowhere) nowhere = getenv("FUZZ_ROUND") ? stderr : fopen("/dev/null", "w");
    if (in->repaired && reader->repair) reader->repair(in);
    for (int i = 0; !reader->in_memory && reader->files[i]; i++) write_file(i, &in->pieces[i]);

    FILE *const out = stdout, *const err = stderr;
    stdout = stderr = nowhere;
    fuzz_error.text[0] = '\0';
    const bool accepted = reader->read(in);
    REQUIRE(accepted || fuzz_is_line(&fuzz_error),
            "refused by a message that is not one line of UTF-8");

    fflush(nowhere);
    stdout = out, stderr = err;
    return accepted;
}

// The valid files number i.
static void load_seed(int i, FuzzInput *in) {
    *in = (FuzzInput){.variant = (uint8_t)i};
    for (int k = 0; reader->files[k]; k++) unlink(fuzz_path(reader->files[k]));
    reader->seed(i);

    for (int k = 0; reader->files[k]; k++) {
        const char *path = fuzz_path(reader->files[k]);
        size_t n = 0;
        in->pieces[k].absent = access(path, F_OK) != 0;
        if (!in->pieces[k].absent) in->pieces[k].bytes = read_bytes(path, &n);
        in->pieces[k].n = n;
        if (in->pieces[k].absent) fuzz_replace(&in->pieces[k], "", 0), in->pieces[k].absent = true;

        free(on_disk[k].bytes), on_disk[k] = (Piece){0};
    }
}

static void make_scratch(void) {
    // in memory
    if (!getenv("TMPDIR") && access("/dev/shm", W_OK) == 0) setenv("TMPDIR", "/dev/shm", 1);
    scratch = tmpdir_make();
}

static void remove_scratch(void) { tmpdir_remove(&scratch); }

static void choose(const FuzzReader *r) {
    reader = r;
    for (int i = 0; i < MAX_PIECES; i++) free(on_disk[i].bytes), on_disk[i] = (Piece){0};
    for (int i = 0; r->files[i]; i++) { // directories of their names
        char path[PATH_MAX];
        snprintf(path, sizeof path, "%s", fuzz_path(r->files[i]));
        for (char *slash = path + strlen(scratch.path) + 1; (slash = strchr(slash, '/'));
             *slash++ = '/')
            *slash = '\0', (void)mkdir(path, 0700);
    }
}

// --------------------------------------------------------------------------------------- mutations

// Bytes of one file changed; seldom the flags, or whether a file is there. `change` changes n bytes
// of room `most`.
static void mutate_input(FuzzInput *in, size_t most, uint32_t random,
                         size_t (*change)(uint8_t *, size_t, size_t)) {
    const int count = pieces_of(reader), i = (int)(random % (uint32_t)count);
    Piece *p = &in->pieces[i];
    random /= (uint32_t)count;
    if (reader->repair && random % 16 == 0) in->repaired = !in->repaired;
    if (random / 16 % 64 == 0) in->variant = (uint8_t)(random / 1024 % 16);
    if (random / 16 % 64 == 1 && !reader->in_memory) p->absent = !p->absent;
    if (p->absent) return;
    size_t others = 1;
    for (int k = 0; k < count; k++) others += 4 + (k == i ? 0 : in->pieces[k].n);
    const size_t room = most > others ? most - others : 0;
    if (p->n > room) p->n = room;
    unsigned char *bytes = realloc(p->bytes, room + MUTATE_MAX_GROWTH + 1);
    REQUIRE_MEMORY(bytes, "an input");
    p->bytes = bytes;
    p->n = change(bytes, p->n, room);
}

#ifdef LIBFUZZER
// --------------------------------------------------------------------------------------- libFuzzer

int LLVMFuzzerInitialize(int *argc, char ***argv);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
size_t LLVMFuzzerCustomMutator(uint8_t *data, size_t size, size_t max_size, unsigned seed);
size_t LLVMFuzzerCustomCrossOver(const uint8_t *a, size_t a_size, const uint8_t *b, size_t b_size,
                                 uint8_t *out, size_t out_size, unsigned seed);
size_t LLVMFuzzerMutate(uint8_t *data, size_t size, size_t max_size);

// ---------------------------------------------------------------------------- an input as a buffer

// A byte of flags (1: repaired, the upper four bits: variant), then for each file of the reader its
// length in 4 bytes (0xFFFFFFFF: absent) and its bytes. A buffer that ends early has shorter files;
// any buffer is an input.
enum { ABSENT = 0xFFFFFFFFu };

static void unpack(const uint8_t *data, size_t size, FuzzInput *in) {
    const int count = pieces_of(reader);
    *in = (FuzzInput){0};
    if (size > 0) in->repaired = data[0] & 1, in->variant = data[0] >> 4;
    size_t at = size > 0;

    for (int i = 0; i < count; i++) {
        uint32_t n = 0;
        if (size - at >= sizeof n) { memcpy(&n, data + at, sizeof n), at += sizeof n; }
        const bool absent = n == ABSENT;
        if (absent) n = 0;
        if (n > size - at) n = (uint32_t)(size - at);
        fuzz_replace(&in->pieces[i], data + at, n);
        in->pieces[i].absent = absent;
        at += n;
    }
}

// 0: it does not fit.
static size_t pack(const FuzzInput *in, uint8_t *data, size_t most) {
    const int count = pieces_of(reader);
    size_t at = 0;
    if (most < 1) return 0;
    data[at++] = (uint8_t)(in->variant << 4 | in->repaired);

    for (int i = 0; i < count; i++) {
        const Piece *p = &in->pieces[i];
        const uint32_t n = p->absent ? ABSENT : (uint32_t)p->n;
        const size_t bytes = p->absent ? 0 : p->n;
        if (most - at < sizeof n + bytes) return 0;
        memcpy(data + at, &n, sizeof n), at += sizeof n;
        if (bytes > 0) memcpy(data + at, p->bytes, bytes), at += bytes;
    }
    return at;
}

static void write_seeds(const char *directory) {
    for (int i = 0; i < reader->seeds; i++)
        for (int repaired = 0; repaired <= (reader->repair != NULL); repaired++) {
            FuzzInput in;
            load_seed(i, &in);
            in.repaired = repaired;

            uint8_t *data = malloc(FUZZ_MOST_BYTES);
            char path[PATH_MAX];
            const size_t n = pack(&in, data, FUZZ_MOST_BYTES);
            REQUIRE(n > 0, "%s: seed %d is larger than an input", reader->name, i);
            snprintf(path, sizeof path, "%s/%s-%d%s", directory, reader->name, i,
                     repaired ? "-repaired" : "");

            write_bytes(path, data, n);
            free(data);
            clear(&in);
        }
}

int LLVMFuzzerInitialize(int *argc, char ***argv) {
    (void)argc, (void)argv;
    const char *name = getenv("READER"), *seeds = getenv("SEEDS");
    const FuzzReader *r = fuzz_readers;
    while (r->name && (!name || strcmp(r->name, name) != 0)) r++;

    if (!r->name) {
        for (r = fuzz_readers; r->name; r++) printf("%s\n", r->name); // the list, for scripts
        exit(name ? 2 : 0);
    }

    make_scratch();
    atexit(remove_scratch);
    fuzz_set_up();
    choose(r);
    if (seeds) write_seeds(seeds), exit(0);
    return 0;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    FuzzInput in;
    unpack(data, size, &in);
    read_input(&in);
    clear(&in);
    return 0;
}

// for the choice between libFuzzer's mutations and those that know tokens
static uint32_t random_word;

static size_t change_bytes(uint8_t *data, size_t n, size_t most) {
    if (random_word % 4 != 0) return LLVMFuzzerMutate(data, n, most);
    const size_t changed = n > 0 ? mutate(data, n, 4096, random_word) : 0;
    return changed < most ? changed : most;
}

size_t LLVMFuzzerCustomMutator(uint8_t *data, size_t size, size_t max_size, unsigned seed) {
    FuzzInput in;
    const Philox random = philox(1, 2, seed);
    random_word = random.v[1];
    unpack(data, size, &in);
    mutate_input(&in, max_size, random.v[0], change_bytes);
    const size_t n = pack(&in, data, max_size);
    clear(&in);
    return n > 0 ? n : size;
}

// Some files of one, the others of the other.
size_t LLVMFuzzerCustomCrossOver(const uint8_t *a, size_t a_size, const uint8_t *b, size_t b_size,
                                 uint8_t *out, size_t out_size, unsigned seed) {
    FuzzInput x, y;
    unpack(a, a_size, &x), unpack(b, b_size, &y);
    for (int i = 0; i < pieces_of(reader); i++)
        if (seed >> i & 1) {
            const Piece taken = y.pieces[i];
            y.pieces[i] = x.pieces[i], x.pieces[i] = taken;
        }
    const size_t n = pack(&x, out, out_size);
    clear(&x), clear(&y);
    return n;
}

#else
// ------------------------------------------------------------------------------------ test program

enum { ROUNDS = 2000, HANG_SECONDS = 300 }; // a reader takes a second for all of them

static int64_t round_now;
static char again[PATH_MAX]; // the command for this round alone

static void begin_round(int64_t round) {
    round_now = round;
    snprintf(again, sizeof again, "%s: again: FUZZ_READER=%s FUZZ_ROUND=%lld %s\n", reader->name,
             reader->name, (long long)round, program_invocation_name);
}

// The damage that is at work when a reader crashes or hangs, before cmocka or the shell name the
// signal.
static void report(int signal_number) {
    if (write(STDERR_FILENO, again, strlen(again)) < 0) _exit(1);
    signal(signal_number, SIG_DFL);
    raise(signal_number);
}

static size_t change_bytes(uint8_t *data, size_t n, size_t most) {
    if (n == 0) return 0;
    const size_t changed = mutate(data, n, 4096, (uint64_t)round_now);
    return changed < most ? changed : most;
}

// One to three changes of a seed.
static void damaged_input(const FuzzInput seeds[], FuzzInput *in) {
    const Philox random = philox(20240520, 7, (uint64_t)round_now);
    const FuzzInput *seed = &seeds[random.v[0] % (uint32_t)reader->seeds];
    *in = (FuzzInput){.repaired = reader->repair && random.v[1] % 2, .variant = seed->variant};
    for (int i = 0; i < pieces_of(reader); i++) {
        fuzz_replace(&in->pieces[i], seed->pieces[i].bytes, seed->pieces[i].n);
        in->pieces[i].absent = seed->pieces[i].absent;
    }
    for (uint32_t k = 0; k <= random.v[2] % 3; k++)
        mutate_input(in, FUZZ_MOST_BYTES, philox(20240520, 8 + k, (uint64_t)round_now).v[0],
                     change_bytes);
}

static void copy_input(const FuzzInput *seed, FuzzInput *in) {
    *in = (FuzzInput){.variant = seed->variant};
    for (int k = 0; k < pieces_of(reader); k++) {
        fuzz_replace(&in->pieces[k], seed->pieces[k].bytes, seed->pieces[k].n);
        in->pieces[k].absent = seed->pieces[k].absent;
    }
}

static const char *file_name(int k) {
    const char *slash = strrchr(reader->files[k], '/');
    return slash ? slash + 1 : reader->files[k];
}

static void must_refuse(FuzzInput *in, int k, const char *damage, size_t at) {
    const char *name = file_name(k);
    if (read_input(in)) fail_msg("%s: accepted: %s %s at byte %zu", reader->name, name, damage, at);
    if (reader->names_file && !strstr(fuzz_error.text, name))
        fail_msg("%s: %s %s at byte %zu is not named: '%s'", reader->name, name, damage, at,
                 fuzz_error.text);
}

// Every place of a small file, some hundred of a large one, and all of its last bytes.
static size_t next_place(size_t at, size_t n) {
    enum { EVERY = 2048, PLACES = 500, LAST = 40 };
    if (n <= EVERY || at + n / PLACES + LAST >= n) return at + 1;
    return at + n / PLACES;
}

static bool is_blank(const unsigned char *bytes, size_t n) {
    for (size_t i = 0; i < n; i++)
        if (!isspace(bytes[i])) return false;
    return true;
}

// File k of a seed, ended early. Only white space may be missing at the end of a text.
static void cut_anywhere(const FuzzInput *seed, int k) {
    FuzzInput in;
    copy_input(seed, &in);
    const size_t n = seed->pieces[k].n;
    for (size_t at = 0; at < n; at = next_place(at, n)) {
        if (is_blank(seed->pieces[k].bytes + at, n - at)) break;
        in.pieces[k].n = at;
        must_refuse(&in, k, "cut off", at);
    }
    clear(&in);
}

static void flip_anywhere(const FuzzInput *seed, int k) {
    FuzzInput in;
    copy_input(seed, &in);
    Piece *p = &in.pieces[k];
    for (size_t at = 0; at < p->n; at = next_place(at, p->n)) {
        const unsigned char bit = (unsigned char)(1u << at * 3 % 8);
        p->bytes[at] ^= bit;
        must_refuse(&in, k, "with a flipped bit", at);
        p->bytes[at] ^= bit;
    }
    clear(&in);
}

// A foreign file stands where the file should be, and the message has a word for it.
// test/unit/test_foreign_file.c has all kinds.
static void put_foreign_files(const FuzzInput *seed, int k) {
    static const char *const files[][2] = {
        {"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 485200\n",
         "Git LFS pointer"},
        {"<!DOCTYPE html><html><title>Not found</title></html>", "web page"},
        {"PK\3\4                          archive/data.pkl", "PyTorch checkpoint"},
    };

    for (size_t i = 0; i < sizeof files / sizeof *files; i++) {
        FuzzInput in;
        copy_input(seed, &in);
        fuzz_replace(&in.pieces[k], files[i][0], strlen(files[i][0]));
        must_refuse(&in, k, files[i][1], 0);
        if (!strstr(fuzz_error.text, files[i][1]))
            fail_msg("%s: %s is a %s: %s", reader->name, reader->files[k], files[i][1],
                     fuzz_error.text);
        clear(&in);
    }
}

static const struct {
    const char *reader; // whose file the next rows change
    int seed, file;
    const char *from, *to; // a text
    size_t at, bytes;      // or a number
    int64_t value;
    const char *words;
} edits[] = {
#define SEED(name, number, index) {.reader = name, .seed = number, .file = index},
#define TEXT(old, new, said)      {.from = old, .to = new, .words = said},
#define WORD(type, byte, word, said)                                                               \
    {.at = byte, .bytes = sizeof(type), .value = word, .words = said},
#include "test/fuzz/edits.def"
};

// The rows of edits.def for a seed of this reader.
static void certain_edits(const FuzzInput *seed, int number) {
    int file = -1; // of another seed
    for (size_t i = 0; i < sizeof edits / sizeof *edits; i++) {
        const char *from = edits[i].from, *to = edits[i].to;
        if (edits[i].reader) {
            const bool is_it =
                strcmp(edits[i].reader, reader->name) == 0 && edits[i].seed == number;
            file = is_it ? edits[i].file : -1;
        }
        if (edits[i].reader || file < 0) continue;

        FuzzInput in;
        copy_input(seed, &in);
        Piece *p = &in.pieces[file];
        const char *name = file_name(file);

        if (!from) {
            REQUIRE(edits[i].at + edits[i].bytes <= p->n, "edits.def: no byte %zu", edits[i].at);
            memcpy(p->bytes + edits[i].at, &edits[i].value, edits[i].bytes); // little-endian
        } else if (!*from) {
            fuzz_replace(p, to, strlen(to));
        } else {
            const char *found = memmem(p->bytes, p->n, from, strlen(from));
            REQUIRE(found, "edits.def: %s has no %s", reader->name, from);
            const size_t before = (size_t)(found - (const char *)p->bytes),
                         rest = p->n - before - strlen(from);
            char *text = malloc(p->n + strlen(to));
            memcpy(text, p->bytes, before);
            memcpy(text + before, to, strlen(to));
            memcpy(text + before + strlen(to), found + strlen(from), rest);
            fuzz_replace(p, text, before + strlen(to) + rest);
            free(text);
        }

        in.repaired = reader->repair != NULL;
        const bool accepted = read_input(&in),
                   is_named = !reader->names_file || strstr(fuzz_error.text, name);
        if (accepted || !is_named || !strstr(fuzz_error.text, edits[i].words))
            fail_msg("%s, seed %d, edit for '%s': %s", reader->name, number, edits[i].words,
                     accepted ? "accepted" : fuzz_error.text);
        clear(&in);
    }
}

static void certain_damage(const FuzzInput *seed) {
    for (int k = 0; k < pieces_of(reader); k++) {
        if (seed->pieces[k].absent) continue;
        if (reader->cut >> k & 1) cut_anywhere(seed, k);
        if (reader->flipped >> k & 1) flip_anywhere(seed, k);
        if (reader->foreign >> k & 1) put_foreign_files(seed, k);
    }
}

static void seeds_are_read_and_damage_is_survived(void **state) {
    const FuzzReader *r = *state;
    const char *only = getenv("FUZZ_READER"), *round = getenv("FUZZ_ROUND");
    FuzzInput seeds[16];

    if (only && strcmp(only, r->name) != 0) skip();
    signal(SIGALRM, report), signal(SIGSEGV, report), signal(SIGABRT, report),
        signal(SIGFPE, report);
    alarm(HANG_SECONDS);
    choose(r);

    for (int i = 0; i < r->seeds; i++) {
        load_seed(i, &seeds[i]);
        begin_round(-1 - i);
        FuzzInput in;
        copy_input(&seeds[i], &in);
        if (!read_input(&in)) fail_msg("%s: seed %d is refused: %s", r->name, i, fuzz_error.text);

        in.repaired = r->repair != NULL;
        if (!read_input(&in))
            fail_msg("%s: seed %d is refused when its checksums are made again", r->name, i);
        clear(&in);
        if (!round) {
            certain_damage(&seeds[i]);
            certain_edits(&seeds[i], i);
        }
    }

    int accepted = 0;
    const int64_t first = round ? atoll(round) : 0, last = round ? first + 1 : ROUNDS;
    for (int64_t i = first; i < last; i++) {
        FuzzInput in;
        begin_round(i);
        damaged_input(seeds, &in);
        accepted += read_input(&in);
        clear(&in);
    }

    alarm(0);
    print_message("%s: %d of %lld damaged inputs accepted\n", r->name, accepted,
                  (long long)(last - first));
    if (r->cut && !round) assert_in_range(accepted, 1, ROUNDS - 1); // both were tried
    for (int i = 0; i < r->seeds; i++) clear(&seeds[i]);
}

static int set_up_group(void **state) {
    (void)state;
    make_scratch();
    fuzz_set_up();
    return 0;
}

static int tear_down_group(void **state) {
    (void)state;
    remove_scratch();
    return 0;
}
TestFixture test_all = {set_up_group, tear_down_group};

__attribute__((constructor)) static void add_tests(void) {
    int line = 0;
    for (const FuzzReader *r = fuzz_readers; r->name; r++)
        test_add(++line, (struct CMUnitTest){r->name, seeds_are_read_and_damage_is_survived, NULL,
                                             NULL, (void *)r});
}
#endif
