// data/prepare: text files -> token shards for training and validation (`data/prepare --help`).
// Reads every file once, block by block, in constant memory; writes into a hidden directory next to the result and
// moves the shards into place when all are whole. Owns its output directory while it runs (a lock) and what an earlier
// run left there unfinished. Never changes an input and never mixes shards of two runs.
#include "llmc/base/error.h"
#include "llmc/run/format.h"
#include "llmc/run/progress.h"
#include "llmc/store/atomic_file.h"
#include "llmc/tokens/corpus_writer.h"
#include "llmc/tokens/tokenizer.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <fnmatch.h>
#include <fts.h>
#include <getopt.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

static const int64_t MIN_SHARD_TOKENS = 1024, DEFAULT_SHARD_TOKENS = 100000000, MAX_SHARD_TOKENS = 1000000000000;
static const double DEFAULT_VAL_FRACTION = 0.1;
static const char STAGING[] = ".tmp-prepare";

static const char HELP[] =
    "usage: data/prepare -o DIR [options] FILE|DIR...\n"
    "\n"
    "Turns text files into the token shards DIR/train_000000.bin... and DIR/val_000000.bin...\n"
    "Tokens are bytes (vocabulary 257); every file is a document and begins with the end-of-text token, 256.\n"
    "\n"
    "  -o, --output DIR        where the shards go; made if needed\n"
    "      --val-fraction F    share of the text that is kept for validation, 0 < F < 1 (default 0.1)\n"
    "      --shard-tokens N    tokens in a shard, at least 1024; K, M, G are understood (default 100M)\n"
    "      --force             replace the shards of an earlier run in DIR\n"
    "  -h, --help              this text\n"
    "\n"
    "Directories are read recursively, in the order of names. In them, hidden names and symbolic links are left out.\n"
    "Files that are empty or have a NUL byte in their first 64 KiB (binary files) are skipped and counted.\n"
    "\n"
    "Which part is for validation depends on a document alone, so that adding files moves none of the others:\n"
    "a document of up to 64 KiB goes to validation as a whole if the hash of its bytes falls below F (equal documents\n"
    "stay together); a longer one gives its last part, a share of F, cut at a line. If this leaves training or\n"
    "validation less than a quarter of its share (a few short documents), every document is cut instead.\n";

// ----------------------------------------------------------------------------------------------------------- options

typedef struct {
    const char *output;
    double val_fraction;
    int64_t shard_tokens;
    bool force, help;
    char **inputs;
    int num_inputs;
} PrepareOptions;

static bool parse_val_fraction(const char *text, double *out, Error *err) {
    char *end;
    *out = strtod(text, &end);
    if (end != text && *end == '\0' && *out > 0 && *out < 1) return true;
    return error_set(err, "--val-fraction %s: expected a number above 0 and below 1", text);
}

static bool parse_shard_tokens(const char *text, int64_t *out, Error *err) {
    char *end;
    errno = 0;
    long long n = strtoll(text, &end, 10);
    const char *suffixes = "KMG", *suffix = *end ? strchr(suffixes, *end) : NULL;
    int64_t unit = 1;
    for (const char *s = suffixes; suffix && s <= suffix; s++) unit *= 1000;
    bool is_number = end != text && errno == 0 && end[suffix ? 1 : 0] == '\0';
    if (is_number && n > 0 && n <= MAX_SHARD_TOKENS / unit && n * unit >= MIN_SHARD_TOKENS) {
        *out = n * unit;
        return true;
    }
    return error_set(err, "--shard-tokens %s: expected a number from %" PRId64 " to %" PRId64 ", such as 100M", text,
                     MIN_SHARD_TOKENS, MAX_SHARD_TOKENS);
}

static bool parse_options(PrepareOptions *o, int argc, char **argv, Error *err) {
    enum { VAL_FRACTION = 256, SHARD_TOKENS, FORCE };
    static const struct option table[] = {
        {"output", required_argument, NULL, 'o'},
        {"val-fraction", required_argument, NULL, VAL_FRACTION},
        {"shard-tokens", required_argument, NULL, SHARD_TOKENS},
        {"force", no_argument, NULL, FORCE},
        {"help", no_argument, NULL, 'h'},
        {0},
    };
    *o = (PrepareOptions){.output = "", .val_fraction = DEFAULT_VAL_FRACTION, .shard_tokens = DEFAULT_SHARD_TOKENS};
    opterr = 0;
    for (int c; (c = getopt_long(argc, argv, ":o:h", table, NULL)) != -1;) {
        switch (c) {
        case 'o':
            o->output = optarg;
            break;
        case 'h':
            o->help = true;
            return true;
        case FORCE:
            o->force = true;
            break;
        case VAL_FRACTION:
            if (!parse_val_fraction(optarg, &o->val_fraction, err)) return false;
            break;
        case SHARD_TOKENS:
            if (!parse_shard_tokens(optarg, &o->shard_tokens, err)) return false;
            break;
        case ':':
            return error_set(err, "%s needs a value; data/prepare --help lists the options", argv[optind - 1]);
        default:
            return error_set(err, "unknown option %s; data/prepare --help lists them", argv[optind - 1]);
        }
    }
    o->inputs = argv + optind, o->num_inputs = argc - optind;
    if (!*o->output) return error_set(err, "-o DIR is missing: where the shards go");
    if (o->num_inputs == 0) return error_set(err, "no FILE or DIR to read; data/prepare --help shows the usage");
    return true;
}

// ------------------------------------------------------------------------------------------------------------- state

typedef struct {
    const PrepareOptions *options;
    Tokenizer *tokenizer;
    char *staging;        // options->output/.tmp-prepare
    int lock;             // descriptor of options->output, -1 while it is not ours
    int64_t total_bytes;  // of all files, found by the first walk
    CorpusWriter *corpus; // NULL between passes
    CorpusTotals totals;
    bool cut_all;                      // the second pass over few, short documents
    int64_t binary, empty, unreadable; // files skipped
    int64_t bytes_seen;                // for the progress bar
    double start, last_drawn;
} Prepare;

static double seconds_now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static void draw_progress(Prepare *p) {
    double now = seconds_now(), passed = now - p->start;
    if (now - p->last_drawn < 0.1 || passed < 0.1 || !isatty(STDERR_FILENO)) return;
    p->last_drawn = now;
    double fraction = p->total_bytes > 0 ? (double)p->bytes_seen / (double)p->total_bytes : 1;
    double rate = (double)p->bytes_seen / passed;
    int64_t left = p->total_bytes > p->bytes_seen ? p->total_bytes - p->bytes_seen : 0; // files may have grown
    char a[32], b[32], c[32], right[128], line[512];
    snprintf(right, sizeof right, "%s, %s/s, eta %s", format_bytes((double)p->bytes_seen, a, sizeof a),
             format_bytes(rate, b, sizeof b), format_duration((double)left / rate, c, sizeof c));
    fprintf(stderr, "\r%s\033[K",
            progress_render(fraction, "prepare", right, terminal_width(), terminal_is_utf8(), line, sizeof line));
}

static void clear_progress(const Prepare *p) {
    if (p->last_drawn > 0) fprintf(stderr, "\r\033[K");
}

// ------------------------------------------------------------------------------------------------------------- input

typedef bool VisitFile(Prepare *p, const FTSENT *file, Error *err);

static int by_name(const FTSENT **a, const FTSENT **b) { return strcmp((*a)->fts_name, (*b)->fts_name); }

// One entry of the walk. What stands on the command line must be readable; what lies in a directory may be skipped.
static bool visit_entry(Prepare *p, FTS *walk, FTSENT *entry, VisitFile *visit, Error *err) {
    bool is_argument = entry->fts_level == FTS_ROOTLEVEL;
    bool is_hidden = !is_argument && entry->fts_name[0] == '.';
    switch (entry->fts_info) {
    case FTS_D:
        if (is_hidden) fts_set(walk, entry, FTS_SKIP);
        return true;
    case FTS_F:
        return is_hidden || visit(p, entry, err);
    case FTS_DNR:
    case FTS_ERR:
    case FTS_NS:
    case FTS_SLNONE:
        if (is_argument) return error_set(err, "%s: cannot read: %s", entry->fts_path, strerror(entry->fts_errno));
        p->unreadable++;
        return true;
    case FTS_DEFAULT:
        if (is_argument) return error_set(err, "%s: is neither a file nor a directory", entry->fts_path);
        return true;
    default:
        return true;
    }
}

static bool walk_inputs(Prepare *p, VisitFile *visit, Error *err) {
    p->unreadable = 0;
    bool ok = true;
    for (int i = 0; ok && i < p->options->num_inputs; i++) {
        char *const roots[] = {p->options->inputs[i], NULL};
        FTS *walk = fts_open(roots, FTS_PHYSICAL | FTS_COMFOLLOW | FTS_NOCHDIR, by_name);
        if (!walk) return error_set(err, "%s: cannot read: %s", roots[0], strerror(errno));
        for (FTSENT *entry; ok && (errno = 0, entry = fts_read(walk));) ok = visit_entry(p, walk, entry, visit, err);
        if (ok && errno != 0) ok = error_set(err, "%s: cannot read: %s", roots[0], strerror(errno));
        fts_close(walk);
    }
    return ok;
}

static bool count_file(Prepare *p, const FTSENT *file, Error *err) {
    (void)err;
    p->total_bytes += (int64_t)file->fts_statp->st_size;
    return true;
}

// --------------------------------------------------------------------------------------------------------- documents

// Reads until n bytes or the end; returns how many, -1 on error.
static int64_t read_block(int fd, char *block, int64_t n) {
    int64_t done = 0;
    while (done < n) {
        ssize_t got = read(fd, block + done, (size_t)(n - done));
        if (got < 0 && errno == EINTR) continue;
        if (got < 0) return -1;
        if (got == 0) break;
        done += got;
    }
    return done;
}

// A file of `size` bytes when it was found. One that grows meanwhile is read up to there, one that shrinks to its end.
static bool add_document(Prepare *p, int fd, int64_t size, Error *err) {
    static char block[CORPUS_BLOCK];
    int64_t n = read_block(fd, block, CORPUS_BLOCK);
    if (n == 0 || (n > 0 && memchr(block, '\0', (size_t)n))) {
        *(n == 0 ? &p->empty : &p->binary) += 1;
        p->bytes_seen += size;
        return true;
    }
    if (n < CORPUS_BLOCK) size = n;
    if (n > 0 && !corpus_writer_begin_document(p->corpus, block, n, size, err)) return false;
    for (int64_t left = size; n > 0;) {
        if (!corpus_writer_add_text(p->corpus, block, n, err)) return false;
        p->bytes_seen += n;
        draw_progress(p);
        left -= n;
        n = read_block(fd, block, left < CORPUS_BLOCK ? left : CORPUS_BLOCK);
    }
    return n == 0 || error_set(err, "cannot read: %s", strerror(errno));
}

static bool add_file(Prepare *p, const FTSENT *file, Error *err) {
    int fd = open(file->fts_accpath, O_RDONLY | O_CLOEXEC);
    if (fd < 0) {
        if (file->fts_level == FTS_ROOTLEVEL)
            return error_set(err, "%s: cannot read: %s", file->fts_path, strerror(errno));
        p->unreadable++;
        return true;
    }
    bool ok = add_document(p, fd, (int64_t)file->fts_statp->st_size, err);
    close(fd);
    return ok || error_prefix(err, "%s", file->fts_path);
}

// ---------------------------------------------------------------------------------------------------------- the result

static int is_shard(const struct dirent *entry) {
    return fnmatch("train_[0-9][0-9][0-9][0-9][0-9][0-9].bin", entry->d_name, 0) == 0 ||
           fnmatch("val_[0-9][0-9][0-9][0-9][0-9][0-9].bin", entry->d_name, 0) == 0;
}

static bool refuse_old_shards(const char *output, Error *err) {
    struct dirent **old;
    int n = scandir(output, &old, is_shard, alphasort);
    if (n < 0) return error_set(err, "%s: cannot list the directory: %s", output, strerror(errno));
    if (n > 0) {
        error_set(err, "%s: has %d shard%s of an earlier run (%s...); --force replaces them", output, n,
                  n == 1 ? "" : "s", old[0]->d_name);
    }
    for (int i = 0; i < n; i++) free(old[i]);
    free(old);
    return n == 0;
}

// An empty staging directory; what a killed run left in it is removed.
static bool clear_staging(Prepare *p, Error *err) {
    if (file_exists(p->staging) && !directory_remove(p->staging, err)) return false;
    return directory_make(p->staging, err);
}

// Makes and locks the output directory, refuses one whose shards may not be replaced, and shows that it is writable.
static bool claim_output(Prepare *p, Error *err) {
    const char *output = p->options->output;
    if (!directory_make(output, err)) return false;
    p->lock = open(output, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (p->lock < 0) return error_set(err, "%s: cannot open the directory: %s", output, strerror(errno));
    if (flock(p->lock, LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK) { // other errors: no locks on this file system
        close(p->lock);
        p->lock = -1;
        return error_set(err, "%s: another data/prepare is writing there", output);
    }
    return (p->options->force || refuse_old_shards(output, err)) && clear_staging(p, err);
}

// Calls rename or unlink for all shards of a directory, by name (training first) or the other way round.
static bool move_shards(const char *from, const char *to, bool backwards, Error *err) {
    struct dirent **list;
    int n = scandir(from, &list, is_shard, alphasort);
    if (n < 0) return error_set(err, "%s: cannot list the directory: %s", from, strerror(errno));
    bool ok = true;
    for (int i = 0; i < n; i++) {
        char *source = path_join(from, list[backwards ? n - 1 - i : i]->d_name);
        char *target = to ? path_join(to, list[backwards ? n - 1 - i : i]->d_name) : NULL;
        if (ok && (target ? rename(source, target) : unlink(source)) != 0) {
            ok = error_set(err, "%s: cannot %s: %s", source, target ? "move into place" : "remove", strerror(errno));
        }
        free(source), free(target);
    }
    while (n > 0) free(list[--n]);
    free(list);
    return ok;
}

// The old shards go, validation first; the new ones come, validation last. Should the machine stop in between, no
// complete-looking set of two halves stands there: validation is missing.
static bool publish(Prepare *p, Error *err) {
    const char *output = p->options->output;
    if (!move_shards(output, NULL, true, err) || !move_shards(p->staging, output, false, err)) return false;
    fsync(p->lock);
    return directory_remove(p->staging, err);
}

// --------------------------------------------------------------------------------------------------------------- main

static bool convert_once(Prepare *p, Error *err) {
    const CorpusOptions options = {.directory = p->staging,
                                   .tokenizer = p->tokenizer,
                                   .val_fraction = p->options->val_fraction,
                                   .shard_tokens = p->options->shard_tokens,
                                   .cut_all = p->cut_all};
    p->binary = p->empty = p->bytes_seen = 0;
    if (!clear_staging(p, err) || !(p->corpus = corpus_writer_create(&options, err))) return false;
    bool ok = walk_inputs(p, add_file, err);
    if (ok)
        ok = corpus_writer_commit(p->corpus, &p->totals, err);
    else
        corpus_writer_abandon(p->corpus);
    p->corpus = NULL;
    return ok;
}

// Has a side less than a quarter of its share? Only chance can do that, with few documents to draw from.
static bool is_lopsided(const Prepare *p) {
    double train = (double)p->totals.train_tokens, val = (double)p->totals.val_tokens, f = p->options->val_fraction;
    return val < (train + val) * f / 4 || train < (train + val) * (1 - f) / 4;
}

static bool convert(Prepare *p, Error *err) {
    p->start = seconds_now();
    bool ok = convert_once(p, err);
    if (ok && is_lopsided(p)) {
        p->cut_all = true;
        ok = convert_once(p, err);
    }
    clear_progress(p);
    return ok;
}

static void print_side(const Prepare *p, const char *name, int64_t tokens, int64_t shards) {
    double all = (double)(p->totals.train_tokens + p->totals.val_tokens);
    printf("  %-5s %13" PRId64 " tokens (%4.1f%%) in %" PRId64 " shard%s: %s/%s_*.bin\n", name, tokens,
           100.0 * (double)tokens / all, shards, shards == 1 ? "" : "s", p->options->output, name);
}

static void print_summary(const Prepare *p) {
    const CorpusTotals *t = &p->totals;
    char size[32], duration[32];
    printf("prepare: %" PRId64 " document%s, %" PRId64 " bytes (%s) in %s\n", t->documents,
           t->documents == 1 ? "" : "s", t->bytes, format_bytes((double)t->bytes, size, sizeof size),
           format_duration(seconds_now() - p->start, duration, sizeof duration));
    if (p->binary + p->empty + p->unreadable > 0) {
        printf("  skipped %" PRId64 " binary, %" PRId64 " empty, %" PRId64 " unreadable files\n", p->binary, p->empty,
               p->unreadable);
    }
    if (p->cut_all) printf("  few, short documents: each was cut into a part for training and one for validation\n");
    print_side(p, "train", t->train_tokens, t->train_shards);
    print_side(p, "val", t->val_tokens, t->val_shards);
}

// Returns the exit code; errors are left to main.
static int run(Prepare *p, Error *err) {
    if (!walk_inputs(p, count_file, err) || !claim_output(p, err)) return EXIT_BAD_INPUT;
    if (!convert(p, err)) return EXIT_RUN_FAILED;
    if (p->totals.documents == 0) {
        error_set(err, "no text to read: %" PRId64 " binary, %" PRId64 " empty, %" PRId64 " unreadable files",
                  p->binary, p->empty, p->unreadable);
        return EXIT_BAD_INPUT;
    }
    if (p->totals.train_tokens == 0 || p->totals.val_tokens == 0) {
        error_set(err, "%" PRId64 " bytes of text cannot be divided into training and validation; give more",
                  p->totals.bytes);
        return EXIT_BAD_INPUT;
    }
    if (!publish(p, err)) return EXIT_RUN_FAILED;
    print_summary(p);
    return EXIT_OK;
}

int main(int argc, char **argv) {
    PrepareOptions options;
    Error err;
    if (!parse_options(&options, argc, argv, &err)) {
        fprintf(stderr, "prepare: %s\n", err.text);
        return EXIT_BAD_INPUT;
    }
    if (options.help) {
        fputs(HELP, stdout);
        return EXIT_OK;
    }
    Prepare p = {.options = &options, .lock = -1, .staging = path_join(options.output, STAGING)};
    p.tokenizer = tokenizer_bytes(&err);
    int status = p.tokenizer ? run(&p, &err) : EXIT_RUN_FAILED;
    if (status != EXIT_OK) {
        fprintf(stderr, "prepare: %s\n", err.text);
        if (p.lock >= 0 && file_exists(p.staging)) directory_remove(p.staging, NULL);
    }
    if (p.lock >= 0) close(p.lock);
    tokenizer_free(p.tokenizer);
    free(p.staging);
    return status;
}
