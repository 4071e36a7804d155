// data/shard: what stands in token shards? Lists them, verifies them, shows their tokens, writes their text
// (`data/shard --help`). Reads llm.c's and modded-nanogpt's shards as well as ours. Changes nothing.
#include "llmc/base/atomic_file.h"
#include "llmc/base/json.h"
#include "llmc/run/data_tools.h"
#include "llmc/run/format.h"

#include <errno.h>
#include <getopt.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char HELP[] =
    "usage: data/shard list GLOB...               a table: version, tokens, vocabulary, documents\n"
    "       data/shard verify GLOB...             header, size, every token, checksum by manifest.json\n"
    "       data/shard show FILE                  tokens as numbers with their text\n"
    "       data/shard decode FILE                the text itself, on stdout\n"
    "\n"
    "      --at TOKEN          show, decode: the first token (default 0)\n"
    "      --count N           show, decode: how many (default 32 for show, all for decode)\n"
    "      --tokenizer PATH    the tokenizer of the shards (default: what stands beside them)\n"
    "      --vocab N           verify: tokens must be below N (default: the vocabulary that the file states)\n"
    "      --eot N             list: end-of-text token of files that do not state it (50256 for GPT-2's)\n"
    "  -h, --help              this text\n"
    "\n"
    "Exit code 2: a file is damaged or is no shard; all others are looked at nevertheless.\n";

typedef struct {
    const char *command, *tokenizer;
    int64_t at, count, vocab, eot; // -1: not given
    char **patterns;
    int num_patterns;
    bool help;
} ShardOptions;

// ----------------------------------------------------------------------------------------------------------- options

static bool parse_number(const char *option, const char *text, int64_t *out, Error *err) {
    char *end;
    errno = 0;
    *out = strtoll(text, &end, 10);
    return (end != text && *end == '\0' && errno == 0 && *out >= 0) ||
           error_set(err, "%s %s: expected a number from 0 on", option, text);
}

static bool parse_options(ShardOptions *o, int argc, char **argv, Error *err) {
    enum { AT = 256, COUNT, TOKENIZER, VOCAB, EOT };
    static const struct option table[] = {
        {"at", required_argument, NULL, AT},
        {"count", required_argument, NULL, COUNT},
        {"tokenizer", required_argument, NULL, TOKENIZER},
        {"vocab", required_argument, NULL, VOCAB},
        {"eot", required_argument, NULL, EOT},
        {"help", no_argument, NULL, 'h'},
        {0},
    };
    *o = (ShardOptions){.command = "", .tokenizer = "", .count = -1, .vocab = -1, .eot = -1, .patterns = argv};
    opterr = 0;
    for (int c; (c = getopt_long(argc, argv, ":h", table, NULL)) != -1;) {
        bool ok = true;
        if (c == 'h') return o->help = true;
        if (c == ':') return error_set(err, "%s needs a value; data/shard --help lists the options", argv[optind - 1]);
        if (c == AT) ok = parse_number("--at", optarg, &o->at, err);
        if (c == COUNT) ok = parse_number("--count", optarg, &o->count, err);
        if (c == VOCAB) ok = parse_number("--vocab", optarg, &o->vocab, err);
        if (c == EOT) ok = parse_number("--eot", optarg, &o->eot, err);
        if (c == TOKENIZER) o->tokenizer = optarg;
        if (c == '?') ok = error_set(err, "unknown option %s; data/shard --help lists them", argv[optind - 1]);
        if (!ok) return false;
    }
    if (optind >= argc) return error_set(err, "list, verify, show or decode? data/shard --help shows the usage");
    o->command = argv[optind];
    o->patterns = argv + optind + 1, o->num_patterns = argc - optind - 1;
    return o->num_patterns > 0 || error_set(err, "%s: no file is named; data/shard --help shows the usage", o->command);
}

// ------------------------------------------------------------------------------------------------------------- files

// What is gathered over all files, and the manifest of the directory that the last file stands in.
typedef struct {
    const ShardOptions *options;
    int64_t files, bad, tokens, documents;
    char *manifest_path; // NULL before the first
    cJSON *manifest;     // NULL: there is none, or it cannot be read
} Look;

typedef bool VisitShard(Look *look, const ShardSet *set, Error *err);

// One file as a set of its own: files are judged one by one, whatever their neighbours are.
static bool visit_file(Look *look, const char *path, VisitShard *visit, Error *err) {
    ShardSet set;
    if (!shards_open(&set, path, 1, err)) return false;
    const bool ok = visit(look, &set, err);
    shards_close(&set);
    return ok;
}

// Every file of every pattern, in the order of their names; a problem is printed and counted, and the next file comes.
static void visit_all(Look *look, VisitShard *visit) {
    for (int i = 0; i < look->options->num_patterns; i++) {
        char **names;
        int count;
        // What matches nothing, or cannot be looked for, is a name too: opening it says why not.
        files_match(look->options->patterns[i], &names, &count, NULL);
        for (int k = 0; k < (count > 0 ? count : 1); k++) {
            Error err;
            look->files++;
            if (visit_file(look, count > 0 ? names[k] : look->options->patterns[i], visit, &err)) continue;
            fflush(stdout);
            fprintf(stderr, "shard: %s\n", err.text);
            look->bad++;
        }
        directory_list_free(names, count);
    }
}

// -------------------------------------------------------------------------------------------------------------- list

static const char *number_or_dash(int64_t value, bool known, char *buf, size_t size) {
    snprintf(buf, size, known ? "%" PRId64 : "-", value);
    return buf;
}

static bool list_file(Look *look, const ShardSet *set, Error *err) {
    const Shard *shard = &set->shards[0];
    const int64_t eot = set->eot >= 0 ? set->eot : look->options->eot;
    ShardScan scan;
    if (!shard_scan(shard, 0, eot, &scan, err)) return false;
    char vocab[24], stated_eot[24], documents[24];
    printf("%7d %13" PRId64 " %11d %7s %6s %10s  %s\n", scan.version, shard->num_tokens, shard->token_bytes,
           number_or_dash(set->vocab, set->vocab > 0, vocab, sizeof vocab),
           number_or_dash(set->eot, set->eot >= 0, stated_eot, sizeof stated_eot),
           number_or_dash(scan.documents, eot >= 0, documents, sizeof documents), shard->path);
    look->tokens += shard->num_tokens, look->documents += scan.documents;
    return true;
}

static int list_all(Look *look) {
    printf("%7s %13s %11s %7s %6s %10s  %s\n", "version", "tokens", "bytes/token", "vocab", "eot", "documents", "file");
    visit_all(look, list_file);
    if (look->files - look->bad > 1)
        printf("%7s %13" PRId64 " %11s %7s %6s %10" PRId64 "  %" PRId64 " files\n", "total", look->tokens, "", "", "",
               look->documents, look->files - look->bad);
    return look->bad ? EXIT_BAD_INPUT : EXIT_OK;
}

// ------------------------------------------------------------------------------------------------------------ verify

enum { MAX_MANIFEST_BYTES = 64 << 20 };

// A manifest lists the shards of both sides: {"train": {"shards": [{"file", "tokens", "bytes", "xxh3"}]}, "val": ...}.
static const char *const sides[] = {"train", "val"};
enum { SIDES = 2 };

static const cJSON *shards_of(const cJSON *manifest, int side) {
    return cJSON_GetObjectItemCaseSensitive(cJSON_GetObjectItemCaseSensitive(manifest, sides[side]), "shards");
}

// Every entry must name a file, and the file must be there.
static bool check_entries(const char *directory, const cJSON *manifest, Error *err) {
    for (int side = 0; side < SIDES; side++) {
        const cJSON *item, *shards = shards_of(manifest, side);
        if (!cJSON_IsArray(shards)) return error_set(err, "\"%s\" has no array \"shards\"", sides[side]);
        cJSON_ArrayForEach(item, shards) {
            const char *file;
            if (!cJSON_IsObject(item)) return error_set(err, "an entry of \"shards\" is no object");
            if (!json_get_string(item, "file", &file, err)) return false;
            char *path = path_join(directory, file);
            const bool there = file_exists(path);
            free(path);
            if (!there) return error_set(err, "states %s, which is not there: copy it or prepare again", file);
        }
    }
    return true;
}

static const cJSON *find_entry(const cJSON *manifest, const char *name) {
    for (int side = 0; manifest && side < SIDES; side++) {
        const cJSON *item;
        cJSON_ArrayForEach(item, shards_of(manifest, side)) {
            const cJSON *file = cJSON_GetObjectItemCaseSensitive(item, "file");
            if (cJSON_IsString(file) && strcmp(file->valuestring, name) == 0) return item;
        }
    }
    return NULL;
}

// The manifest.json that data/prepare wrote beside the file, read once a directory. No file: true.
static bool open_manifest(Look *look, const char *directory, Error *err) {
    char *path = path_join(directory, "manifest.json");
    if (look->manifest_path && strcmp(path, look->manifest_path) == 0) {
        free(path);
        return true;
    }
    cJSON_Delete(look->manifest);
    free(look->manifest_path);
    look->manifest = NULL, look->manifest_path = path;
    if (!file_exists(path)) return true;
    look->manifest = json_parse_file(path, MAX_MANIFEST_BYTES, err);
    if (look->manifest && check_entries(directory, look->manifest, err)) return true;
    if (look->manifest) error_prefix(err, "%s", path);
    return false;
}

static bool compare(const cJSON *entry, const Shard *shard, const ShardScan *scan, Error *err) {
    int64_t tokens, bytes;
    const char *xxh3;
    char found[20];
    if (!json_get_int(entry, "tokens", 0, JSON_MAX_INT, &tokens, err) ||
        !json_get_int(entry, "bytes", 0, JSON_MAX_INT, &bytes, err) || !json_get_string(entry, "xxh3", &xxh3, err))
        return false;
    if (tokens != shard->num_tokens || bytes != scan->bytes)
        return error_set(err, "states %" PRId64 " tokens, %" PRId64 " bytes; the file has %" PRId64 " and %" PRId64,
                         tokens, bytes, shard->num_tokens, scan->bytes);
    snprintf(found, sizeof found, "%016" PRIx64, scan->xxh3);
    return strcmp(found, xxh3) == 0 ||
           error_set(err, "states checksum %.16s, the file has %s: it was damaged or changed; copy or prepare it again",
                     xxh3, found);
}

// *how: what the manifest said of this file.
static bool check_manifest(Look *look, const Shard *shard, const ShardScan *scan, const char **how, Error *err) {
    const char *slash = strrchr(shard->path, '/'), *name = slash ? slash + 1 : shard->path;
    char *directory =
        !slash ? strdup(".") : strndup(shard->path, (size_t)(slash - shard->path) + (slash == shard->path));
    REQUIRE_MEMORY(directory, "a path");
    bool ok = open_manifest(look, directory, err);
    free(directory);
    if (!ok) return false;
    const cJSON *entry = find_entry(look->manifest, name);
    *how = entry ? "as in manifest.json" : look->manifest ? "not in manifest.json" : "no manifest.json beside it";
    return !entry || compare(entry, shard, scan, err) || error_prefix(err, "%s: %s", shard->path, look->manifest_path);
}

static bool verify_file(Look *look, const ShardSet *set, Error *err) {
    const Shard *shard = &set->shards[0];
    const int64_t vocab = look->options->vocab > 0 ? look->options->vocab : set->vocab;
    ShardScan scan;
    const char *how;
    if (!shard_scan(shard, vocab, set->eot, &scan, err)) return false;
    if (scan.first_bad >= 0)
        return error_set(err,
                         "%s: token %" PRId64 " (byte %" PRId64 ") is %" PRIu32
                         ", expected below the vocabulary, %" PRId64 "; the file is damaged or of another tokenizer",
                         shard->path, scan.first_bad, SHARD_HEADER_BYTES + scan.first_bad * shard->token_bytes,
                         scan.bad_value, vocab);
    if (!check_manifest(look, shard, &scan, &how, err)) return false;
    printf("%s: %" PRId64 " tokens, the largest is %" PRIu32 "%s, xxh3 %016" PRIx64 ": %s\n", shard->path,
           shard->num_tokens, scan.largest, vocab > 0 ? "" : " (no vocabulary stated: --vocab N checks it)", scan.xxh3,
           how);
    return true;
}

static int verify_all(Look *look) {
    visit_all(look, verify_file);
    printf("%" PRId64 " file%s: ", look->files, look->files == 1 ? "" : "s");
    look->bad ? printf("%" PRId64 " bad\n", look->bad) : puts("whole");
    cJSON_Delete(look->manifest);
    free(look->manifest_path);
    return look->bad ? EXIT_BAD_INPUT : EXIT_OK;
}

// --------------------------------------------------------------------------------------------------- show and decode

// The text of a token between quotes, on one line, whatever bytes it has.
static void print_quoted(const char *text, size_t n) {
    putchar('"');
    for (size_t i = 0; i < n;) {
        const unsigned char c = (unsigned char)text[i];
        const int length = utf8_length(text + i, n - i);
        if (c == '\n')
            fputs("\\n", stdout);
        else if (c == '\t')
            fputs("\\t", stdout);
        else if (c == '"' || c == '\\')
            printf("\\%c", c);
        else if (length == 0 || c < 0x20 || c == 0x7f)
            printf("\\x%02X", c);
        else
            fwrite(text + i, 1, (size_t)length, stdout);
        i += (size_t)(length > 0 ? length : 1);
    }
    putchar('"');
}

static bool print_tokens(const ShardOptions *o, const Shard *shard, const Tokenizer *t, int64_t count, Error *err) {
    enum { BLOCK = 4096 };
    static uint32_t tokens[BLOCK];
    const bool show = strcmp(o->command, "show") == 0;
    for (int64_t at = o->at, end = o->at + count; at < end;) {
        const int64_t n = end - at < BLOCK ? end - at : BLOCK;
        if (!shard_read(shard, at, n, tokens, err)) return false;
        for (int64_t i = 0; i < n; i++) {
            size_t length;
            const char *text = tokenizer_decode(t, tokens[i] <= INT32_MAX ? (int32_t)tokens[i] : -1, &length);
            if (!show) {
                fwrite(text, 1, length, stdout);
                continue;
            }
            printf("%10" PRId64 " %6" PRIu32 "  ", at + i, tokens[i]);
            print_quoted(text, length);
            puts(length == 0 ? " (no token of this tokenizer)" : "");
        }
        at += n;
    }
    return fflush(stdout) == 0 || error_set(err, "cannot write: %s", strerror(errno));
}

static bool print_file(Look *look, const ShardSet *set, Error *err) {
    const ShardOptions *o = look->options;
    const Shard *shard = &set->shards[0];
    if (o->at >= shard->num_tokens)
        return error_set(err, "--at %" PRId64 ": %s has %" PRId64 " tokens", o->at, shard->path, shard->num_tokens);
    const int64_t left = shard->num_tokens - o->at;
    int64_t count = o->count >= 0 ? o->count : strcmp(o->command, "show") == 0 ? 32 : left;
    if (count > left) count = left;
    Tokenizer *t = shard_tokenizer(o->tokenizer, shard->path, set, err);
    const bool ok = t && print_tokens(o, shard, t, count, err);
    tokenizer_free(t);
    return ok;
}

// -------------------------------------------------------------------------------------------------------------- main

int main(int argc, char **argv) {
    ShardOptions options;
    Error err;
    standard_files_open();
    bool ok = parse_options(&options, argc, argv, &err);
    if (ok && options.help) {
        fputs(HELP, stdout);
        return EXIT_OK;
    }
    Look look = {.options = &options};
    if (ok && strcmp(options.command, "list") == 0) return list_all(&look);
    if (ok && strcmp(options.command, "verify") == 0) return verify_all(&look);
    if (ok && strcmp(options.command, "show") != 0 && strcmp(options.command, "decode") != 0)
        ok = error_set(&err, "%s: expected list, verify, show or decode", options.command);
    if (ok && options.num_patterns > 1) ok = error_set(&err, "%s: name one file", options.command);
    if (ok) ok = visit_file(&look, options.patterns[0], print_file, &err);
    if (!ok) fprintf(stderr, "shard: %s\n", err.text);
    return ok ? EXIT_OK : EXIT_BAD_INPUT;
}
