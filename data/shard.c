// data/shard: what is in token shards? Lists them, verifies them, shows their tokens (`data/shard
// --help`). Reads llm.c's and modded-nanogpt's shards as well as ours. Changes nothing.
#include "data/tool.h"
#include "llmc/base/arithmetic.h"
#include "llmc/base/directory.h"
#include "llmc/base/file.h"
#include "llmc/base/files_match.h"
#include "llmc/base/format.h"
#include "llmc/base/json.h"
#include "llmc/base/limits.h"
#include "llmc/base/path.h"
#include "llmc/base/utf8.h"
#include "llmc/data/shards.h"
#include "llmc/text/corpus_manifest.h"
#include "llmc/text/tokenizer_find.h"
#include "llmc/text/tokenizer_open.h"

#include <errno.h>
#include <getopt.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

static const char HELP[] =
    "usage: data/shard list GLOB...               a table: version, tokens, vocabulary, documents\n"
    "       data/shard verify GLOB...             header, size, every token, checksum by "
    "manifest.json\n"
    "       data/shard show GLOB...               tokens as numbers with their text\n"
    "\n"
    "      --at TOKEN          show: the first token (default 0)\n"
    "      --count N           show: how many (default 32)\n"
    "      --tokenizer PATH    show: the tokenizer of the shards (default: the one next to them)\n"
    "      --vocab N           verify: tokens must be below N (default: the vocabulary that the "
    "file states)\n"
    "      --eot N             list: end-of-text token of files that do not state it (50256 for "
    "GPT-2's)\n"
    "  -h, --help              show this help\n"
    "\n"
    "Exit code 2: a file is damaged or not a shard; all others are still checked.\n";

enum { BLOCK = 1 << 18, GPT2_TOKENS = 50257, MAX_MANIFEST_BYTES = 64 << 20 };

typedef struct {
    const char *command, *tokenizer;
    bool help;
    int64_t at, count, vocab, eot;
    int64_t files, bad, tokens, documents;
    uint32_t block[BLOCK];
    // The last scan has counted the tokens that are end-of-text, and found the largest one.
    int64_t num_eot;
    uint32_t largest;
} Look;

static bool read_options(Look *l, int argc, char **argv, Error *err) {
    const ToolOption table[] = {{"at", .number = &l->at, .max = INT64_MAX},
                                {"count", .number = &l->count, .max = INT64_MAX},
                                {"vocab", .number = &l->vocab, .max = INT64_MAX},
                                {"eot", .number = &l->eot, .max = INT64_MAX},
                                {"tokenizer", .text = &l->tokenizer, .is_path = true},
                                {"help", 'h', .flag = &l->help},
                                {0}};

    if (!tool_read_options("shard", table, argc, argv, err)) return false;
    if (l->help) return true;
    if (optind < argc) l->command = argv[optind];
    if (strcmp(l->command, "list") != 0 && strcmp(l->command, "verify") != 0 &&
        strcmp(l->command, "show") != 0)
        return error_set(err, "%s%sexpected list, verify or show; %s --help shows the usage",
                         l->command, *l->command ? ": " : "", tool_path("shard").text);
    if (optind + 1 >= argc)
        return error_set(err, "%s: no files given; %s --help shows the usage", l->command,
                         tool_path("shard").text);
    return true;
}

// n tokens from token `first` on into the block, each in 4 bytes.
static bool read_block(Look *l, const Shard *s, int64_t first, int64_t n, Error *err) {
    const int64_t offset = SHARD_HEADER_BYTES + first * s->token_bytes;
    if (!file_read_at(s->fd, s->path, offset, l->block, (size_t)(n * s->token_bytes), err))
        return false;
    for (int64_t i = n - 1; i >= 0 && s->token_bytes == 2;
         i--) { // from the end on: nothing unread is overwritten
        uint16_t token;
        memcpy(&token, (const char *)l->block + 2 * i, sizeof token);
        l->block[i] = token;
    }
    return true;
}

// Every token; one that is not below vocab (0: no limit) is an error.
static bool scan_shard(Look *l, const Shard *s, int64_t vocab, int64_t eot, Error *err) {
    l->num_eot = l->largest = 0;
    for (int64_t at = 0; at < s->num_tokens; at += BLOCK) {
        const int64_t n = min_i64(BLOCK, s->num_tokens - at);
        if (!read_block(l, s, at, n, err)) return false;
        for (int64_t i = 0; i < n; i++) { // without an exit, so that it becomes vectors
            if (l->block[i] > l->largest) l->largest = l->block[i];
            l->num_eot += l->block[i] == eot;
        }

        if (vocab == 0 || l->largest < vocab) continue;
        int64_t i = 0;
        while (l->block[i] < vocab) i++;
        return error_set(err,
                         "%s: token %" PRId64 " (byte %" PRId64 ") is %" PRIu32
                         ", expected below the vocabulary, %" PRId64
                         "; the file is damaged or from another tokenizer",
                         s->path, at + i, SHARD_HEADER_BYTES + (at + i) * s->token_bytes,
                         l->block[i], vocab);
    }
    return true;
}

static const char *number_or_dash(int64_t value, bool known, char buf[24]) {
    snprintf(buf, 24, "%" PRId64, value);
    if (known) return buf;
    return "-";
}

static bool list_file(Look *l, const ShardSet *set, Error *err) {
    const Shard *s = &set->shards[0];
    int64_t eot = set->eot;
    if (eot < 0) eot = l->eot;
    int32_t header[2];
    char vocab[24], stated[24], documents[24];

    if (!file_read_at(s->fd, s->path, 0, header, sizeof header, err)) return false;
    if (!scan_shard(l, s, 0, eot, err)) return false;

    format_print(stdout, "%7d %13" PRId64 " %11d %7s %6s %10s  %s\n", header[SHARD_FIELD_VERSION],
                 s->num_tokens, s->token_bytes, number_or_dash(set->vocab, set->vocab > 0, vocab),
                 number_or_dash(set->eot, set->eot >= 0, stated),
                 number_or_dash(l->num_eot, eot >= 0, documents), s->path);

    l->tokens += s->num_tokens;
    l->documents += l->num_eot;
    return true;
}

// Looks for the entry of a file, and for every file that is listed.
static bool find_entry(const cJSON *manifest, const char *directory, const char *name,
                       const cJSON **entry, Error *err) {
    for (CorpusSide i = 0; i < CORPUS_SIDES; i++) {
        const cJSON *side, *shards, *item;
        if (!json_get_object(manifest, corpus_side_names[i], &side, err)) return false;
        if (!json_find(side, "shards", &shards, err)) return false;
        if (!cJSON_IsArray(shards))
            return error_set(err, "\"%s\" has no array \"shards\"", corpus_side_names[i]);
        cJSON_ArrayForEach(item, shards) {
            const char *file;
            if (!cJSON_IsObject(item))
                return error_set(err, "an entry of \"shards\" is not an object");
            if (!json_get_string(item, "file", &file, err)) return false;
            char *path = path_join(directory, file);
            const bool there = file_exists(path);
            free(path);
            if (!there)
                return error_set(err, "states %s, which is missing; copy it or prepare again",
                                 file);
            if (strcmp(file, name) == 0) *entry = item;
        }
    }
    return true;
}

// Checks every token of the file, and the file against its entry in the manifest next to it, if
// there is one.
static bool verify_file(Look *l, const ShardSet *set, Error *err) {
    const Shard *s = &set->shards[0];
    int64_t vocab = l->vocab;
    if (vocab == 0) vocab = set->vocab;
    CorpusShard found = {.tokens = s->num_tokens}, stated;
    if (!scan_shard(l, s, vocab, -1, err)) return false;
    if (!file_checksum(s->path, &found.bytes, &found.xxh3, err)) return false;

    char *directory = path_parent(s->path), *path = path_join(directory, "manifest.json");
    const char *compared = "no manifest.json next to it";
    const cJSON *entry = NULL;
    cJSON *manifest = NULL;
    bool ok = true;
    if (file_exists(path)) {
        manifest = json_parse_file(path, MAX_MANIFEST_BYTES, err);
        ok = manifest != NULL;
        if (ok && !find_entry(manifest, directory, path_name(s->path), &entry, err))
            ok = error_prefix(err, "%s", path);
        compared = "not in manifest.json";
    }

    if (ok && entry) {
        compared = "as in manifest.json";
        ok = corpus_manifest_read_shard(entry, &stated, err);
        if (ok && (stated.tokens != found.tokens || stated.bytes != found.bytes))
            ok = error_set(err,
                           "states %" PRId64 " tokens, %" PRId64 " bytes; the file has %" PRId64
                           " and %" PRId64,
                           stated.tokens, stated.bytes, found.tokens, found.bytes);
        if (ok && stated.xxh3 != found.xxh3)
            ok = error_set(err,
                           "states checksum %016" PRIx64 ", the file has %016" PRIx64
                           ": damaged or changed; copy or prepare it again",
                           stated.xxh3, found.xxh3);
        if (!ok) error_prefix(err, "%s: %s", s->path, path);
    }

    cJSON_Delete(manifest);
    free(path);
    free(directory);
    if (!ok) return false;
    format_print(
        stdout, "%s: %" PRId64 " tokens, the largest is %" PRIu32 "%s, xxh3 %016" PRIx64 ": %s\n",
        s->path, s->num_tokens, l->largest,
        vocab <= 0 ? " (no vocabulary stated: --vocab N checks it)" : "", found.xxh3, compared);
    return true;
}

static bool show_file(Look *l, const ShardSet *set, Error *err) {
    const Shard *s = &set->shards[0];
    int64_t V = set->vocab;
    if (V <= 0) V = GPT2_TOKENS;
    if (*l->tokenizer) V = INT32_MAX;
    Tokenizer *t = NULL;
    if (l->at >= s->num_tokens)
        return error_set(err, "--at %" PRId64 ": %s has %" PRId64 " tokens", l->at, s->path,
                         s->num_tokens);

    // A given tokenizer needs no limit of a model, and no shards that state their vocabulary.
    if (*l->tokenizer && set->vocab == 0) {
        t = tokenizer_open(l->tokenizer, err);
        if (!t) return false;
    } else if (!tokenizer_find(&t, l->tokenizer, NULL, s->path, set->vocab, V, err)) {
        return false;
    }
    bool ok = true;
    if (!t)
        ok = error_set(err,
                       "%s: no tokenizer next to the shards; name one with --tokenizer, such as "
                       "data/gpt2-tokenizer (%s gpt2-tokenizer)",
                       s->path, path_of_tool("data/get.py").text);

    const int64_t end = l->at + min_i64(l->count, s->num_tokens - l->at);
    for (int64_t at = l->at; ok && at < end; at++) {
        size_t length;
        ok = read_block(l, s, at, 1, err);
        if (!ok) break;

        const char *text = tokenizer_decode(t, (int32_t)min_i64(l->block[0], INT32_MAX), &length);
        printf("%10" PRId64 " %6" PRIu32 "  \"", at, l->block[0]);
        for (size_t i = 0; i < length;) { // on one line, whatever bytes it has
            static const char special[] = "\n\t\"\\", escapes[] = "nt\"\\";
            char shown[UTF8_VISIBLE];
            const char *found = memchr(special, text[i], sizeof special - 1);
            if (found) {
                printf("\\%c", escapes[found - special]);
                i++;
            } else {
                i += utf8_visible(text + i, length - i, shown);
                fputs(shown, stdout);
            }
        }
        printf("\"%s\n", length == 0 ? " (not a token of this tokenizer)" : "");
    }

    tokenizer_free(t);
    if (!ok) return false;
    if (fflush(stdout) != 0) return error_set(err, "cannot write: %s", strerror(errno));
    return true;
}

// Every file of a pattern as a set of its own: a problem is printed and counted, and the next file
// follows.
static void visit_pattern(Look *l, const char *pattern) {
    char **names;
    int count;
    files_match(pattern, &names, &count, NULL);
    for (int i = 0; i == 0 || i < count; i++) {
        Error err;
        ShardSet set;
        const char *path = pattern; // without matches it is opened as a name, for its error
        if (count > 0) path = names[i];

        bool ok = shards_open(&set, path, 1, &err);
        if (ok) {
            if (*l->command == 'l')
                ok = list_file(l, &set, &err);
            else if (*l->command == 'v')
                ok = verify_file(l, &set, &err);
            else
                ok = show_file(l, &set, &err);
            shards_close(&set);
        }

        l->files++;
        l->bad += !ok;
        if (!ok) {
            fflush(stdout);
            fprintf(stderr, "shard: %s\n", err.text);
        }
    }
    directory_list_free(names, count);
}

int main(int argc, char **argv) {
    static Look l = {.command = "", .tokenizer = "", .count = 32, .eot = -1};
    Error err;
    limits_start();
    if (!read_options(&l, argc, argv, &err)) {
        fprintf(stderr, "shard: %s\n", err.text);
        return EXIT_BAD_INPUT;
    }
    if (l.help) {
        fputs(HELP, stdout);
        return EXIT_OK;
    }

    if (*l.command == 'l')
        printf("%7s %13s %11s %7s %6s %10s  %s\n", "version", "tokens", "bytes/token", "vocab",
               "eot", "documents", "file");
    for (int i = optind + 1; i < argc; i++) visit_pattern(&l, argv[i]);

    if (*l.command == 'l' && l.files - l.bad > 1)
        printf("%7s %13" PRId64 " %11s %7s %6s %10" PRId64 "  %" PRId64 " files\n", "total",
               l.tokens, "", "", "", l.documents, l.files - l.bad);
    if (*l.command == 'v') {
        printf("%" PRId64 " file%s: ", l.files, format_plural(l.files));
        if (l.bad > 0)
            printf("%" PRId64 " bad\n", l.bad);
        else
            puts("intact");
    }

    if (l.bad) return EXIT_BAD_INPUT;
    return EXIT_OK;
}
