// data/whereis: which bytes did step N of a run read? (`data/whereis --help`)
// Asks the run's log for seed, batch and corpus, the shuffle for the windows and the shards for the places: the very
// functions with which the trainer reads. Changes nothing.
#include "llmc/base/atomic_file.h"
#include "llmc/run/data_tools.h"
#include "llmc/run/format.h"

#include <errno.h>
#include <getopt.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char HELP[] =
    "usage: data/whereis [options] RUN STEP\n"
    "\n"
    "Lists every window of tokens that step STEP (1, 2, ...) of the run in directory RUN read, one a line: "
    "micro-batch,\n"
    "position in the run's stream, epoch, window of the corpus, its first token and byte in the file, the file. A\n"
    "window is T tokens and the target of the last one. Works for steps still to come, too.\n"
    "\n"
    "      --decode            the text of each window below its line\n"
    "      --tokenizer PATH    the tokenizer of the shards (default: that of the run, or what stands beside them)\n"
    "  -i, --train-data GLOB   where the shards are now (default: where the run found them)\n"
    "  -h, --help              this text\n";

typedef struct {
    const char *run, *tokenizer, *train_data;
    int64_t step;
    bool decode, help;
} WhereisOptions;

static bool parse_step(const char *text, int64_t *step, Error *err) {
    char *end;
    errno = 0;
    *step = strtoll(text, &end, 10);
    return (end != text && *end == '\0' && errno == 0 && *step >= 1) ||
           error_set(err, "STEP %s: expected a number from 1 on", text);
}

static bool parse_options(WhereisOptions *o, int argc, char **argv, Error *err) {
    enum { DECODE = 256, TOKENIZER };
    static const struct option table[] = {
        {"decode", no_argument, NULL, DECODE},
        {"tokenizer", required_argument, NULL, TOKENIZER},
        {"train-data", required_argument, NULL, 'i'},
        {"help", no_argument, NULL, 'h'},
        {0},
    };
    *o = (WhereisOptions){0};
    opterr = 0;
    for (int c; (c = getopt_long(argc, argv, ":i:h", table, NULL)) != -1;) {
        if (c == 'h') return o->help = true;
        if (c == ':')
            return error_set(err, "%s needs a value; data/whereis --help lists the options", argv[optind - 1]);
        if (c == '?') return error_set(err, "unknown option %s; data/whereis --help lists them", argv[optind - 1]);
        if (c == DECODE) o->decode = true;
        if (c == TOKENIZER) o->tokenizer = optarg;
        if (c == 'i') o->train_data = optarg;
    }
    if (argc - optind != 2) return error_set(err, "expected RUN and STEP; data/whereis --help shows the usage");
    o->run = argv[optind];
    return parse_step(argv[optind + 1], &o->step, err);
}

// ------------------------------------------------------------------------------------------------------------ output

// room: for T + 1 tokens of 4 bytes.
static bool print_text(const ShardSet *set, int64_t window, const Tokenizer *t, void *room, Error *err) {
    char *text = NULL;
    size_t bytes = 0;
    if (!shards_read_window(set, window, (int64_t)UINT32_MAX + 1, room, err)) return false;
    FILE *out = text_open(&text, &bytes);
    for (int64_t i = 0; i <= set->T; i++) {
        const uint32_t token = set->token_bytes == 2 ? ((const uint16_t *)room)[i] : ((const uint32_t *)room)[i];
        size_t length;
        const char *piece = tokenizer_decode(t, token <= INT32_MAX ? (int32_t)token : -1, &length);
        fwrite(piece, 1, length, out);
    }
    fclose(out);
    format_visible(stdout, text, bytes, "    "), putchar('\n');
    free(text);
    return true;
}

static bool print_windows(const RunSegment *s, const ShardSet *set, int64_t position, const Tokenizer *t, Error *err) {
    printf("%11s %10s %6s %10s %12s %12s  %s\n", "micro-batch", "position", "epoch", "window", "token", "byte", "file");
    void *room = calloc((size_t)set->T + 1, sizeof(uint32_t));
    bool ok = room || error_set(err, "out of memory for a window of %" PRId64 " tokens", set->T);
    for (int64_t i = 0; ok && i < s->step_windows; i++) {
        const char *path;
        int64_t token, p = position + i;
        const int64_t window = run_order_window(s, p, set->num_windows);
        shards_locate(set, window, &path, &token);
        if (s->repeat_first_step) p %= s->step_windows;
        printf("%11" PRId64 " %10" PRId64 " %6" PRId64 " %10" PRId64 " %12" PRId64 " %12" PRId64 "  %s\n", i / s->B + 1,
               p, p / set->num_windows + 1, window, token, SHARD_HEADER_BYTES + token * set->token_bytes, path);
        ok = !t || print_text(set, window, t, room, err);
    }
    free(room);
    return ok;
}

// Other shards under the same names would give wrong answers in silence.
static bool check_corpus(const RunSegment *s, const ShardSet *set, const char *pattern, Error *err) {
    if (s->num_windows < 0 || (s->num_windows == set->num_windows && s->num_tokens == set->num_tokens)) return true;
    return error_set(err,
                     "%s: %" PRId64 " tokens in %" PRId64 " windows of %" PRId64 ", the run found %" PRId64
                     " in %" PRId64 ": it is another corpus now; -i GLOB names the one of then",
                     pattern, set->num_tokens, set->num_windows, s->T, s->num_tokens, s->num_windows);
}

static bool print_step(const WhereisOptions *o, const RunOrder *order, Error *err) {
    int64_t position;
    const RunSegment *s = run_order_find(order, o->step, &position, err);
    if (!s) return error_prefix(err, "%s", o->run);
    const char *pattern = o->train_data ? o->train_data : s->train_data;
    ShardSet set;
    if (!shards_open(&set, pattern, s->T, err))
        return o->train_data ? false
                             : error_set(err, "%s; -i GLOB says where the shards of the run are now", err->text);
    Tokenizer *t = NULL;
    bool ok = check_corpus(s, &set, pattern, err);
    if (ok && o->decode) {
        t = shard_tokenizer(o->tokenizer ? o->tokenizer : s->tokenizer, pattern, &set, err);
        ok = t != NULL;
    }
    if (ok)
        printf("step %" PRId64 "%s: %" PRId64 " windows of %" PRId64 " tokens, %" PRId64 " at a time, from %" PRId64
               " windows of %s, seed %" PRIu64 "\n",
               o->step, o->step > order->last_step ? " (not done yet)" : "", s->step_windows, s->T, s->B,
               set.num_windows, pattern, s->seed);
    ok = ok && print_windows(s, &set, position, t, err);
    tokenizer_free(t);
    shards_close(&set);
    return ok;
}

int main(int argc, char **argv) {
    WhereisOptions options;
    RunOrder order = {0};
    Error err;
    standard_files_open();
    bool ok = parse_options(&options, argc, argv, &err);
    if (ok && options.help) return fputs(HELP, stdout), EXIT_OK;
    ok = ok && run_order_read(&order, options.run, &err) && print_step(&options, &order, &err);
    run_order_free(&order);
    if (!ok) fflush(stdout), fprintf(stderr, "whereis: %s\n", err.text);
    return ok ? EXIT_OK : EXIT_BAD_INPUT;
}
