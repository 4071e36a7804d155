// data/choices: multiple-choice questions as JSON lines -> the file that `-h 1` and `--choices`
// read
// (`data/choices --help`). One example a line, kept in memory until all are read; the file is
// written atomically. The format is llm.c's for HellaSwag (llmc/train/choices.h).
#include "llmc/train/choices.h"
#include "data/tool.h"
#include "llmc/base/atomic_file.h"
#include "llmc/base/file.h"
#include "llmc/base/foreign_file.h"
#include "llmc/base/format.h"
#include "llmc/base/json.h"
#include "llmc/base/limits.h"
#include "llmc/base/memory.h"
#include "llmc/base/own_file.h"
#include "llmc/base/path.h"
#include "llmc/base/path_reason.h"
#include "llmc/text/directory_role.h"
#include "llmc/text/encoder.h"
#include "llmc/text/tokenizer_open.h"

#include <errno.h>
#include <fcntl.h>
#include <getopt.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const char HELP[] =
    "usage: data/choices --tokenizer PATH [options] FILE.jsonl -o OUT.bin\n"
    "\n"
    "Turns questions with several endings into the file that ./train_gpt2 --choices OUT.bin reads. "
    "A line is\n"
    "  {\"ctx\": \"A man sits\", \"endings\": [\"down.\", \"up.\", ...], \"label\": 1}     as "
    "HellaSwag has it, or\n"
    "  {\"context\": ..., \"choices\": [...], \"label\": 1}\n"
    "label counts from 0; 2 to 16 endings. Each ending is encoded with a space before it.\n"
    "\n"
    "  -o, --output FILE       the file to write\n"
    "      --tokenizer PATH    the tokenizer of the model (data/get.py gpt2-tokenizer), or bytes\n"
    "      --skip-bad          skip and count bad lines, instead of stopping at the first\n"
    "  -h, --help              show this help\n";

enum {
    MAX_EXAMPLES = 65535,     // the index is 16 bits wide
    MAX_RECORD_BYTES = 65534, // and so is the length of a record
    MAX_LINE = 1 << 20,
    SHOWN_BAD = 3, // of the lines that --skip-bad leaves out
};

typedef struct {
    const char *input, *output, *tokenizer;
    bool skip_bad, help;
} ChoiceOptions;

typedef struct {
    const ChoiceOptions *options;
    Tokenizer *tokenizer;
    Encoder *encoder;
    uint16_t record[MAX_RECORD_BYTES / 2]; // of the current line
    size_t length;                         // of it, in uint16
    char *line, *text;                     // the line; " " and an ending
    int32_t *tokens;                       // of one text
    FILE *stream;                          // of all records, into data
    char *data;
    size_t bytes;
    int64_t examples, bad, longest;
} Choices;

// ----------------------------------------------------------------------------------------- options

static bool read_options(ChoiceOptions *o, int argc, char **argv, Error *err) {
    *o = (ChoiceOptions){.input = "", .output = "", .tokenizer = ""};
    const ToolOption table[] = {{"output", 'o', .text = &o->output, .is_path = true},
                                {"tokenizer", .text = &o->tokenizer, .is_path = true},
                                {"skip-bad", .flag = &o->skip_bad},
                                {"help", 'h', .flag = &o->help},
                                {0}};

    if (!tool_read_options("choices", table, argc, argv, err)) return false;
    if (o->help) return true;
    if (argc - optind != 1)
        return error_set(err, "name one FILE.jsonl; %s --help shows the usage",
                         tool_path("choices").text);
    o->input = argv[optind];
    if (!*o->output) return error_set(err, "-o FILE is missing: the file to write");
    if (path_is_same(o->input, o->output))
        return error_set(err, "-o %s: this is the input; name another file", o->output);
    if (!directory_check_role(o->output, err)) return error_prefix(err, "-o %s", o->output);
    if (!*o->tokenizer)
        return error_set(err,
                         "--tokenizer PATH is missing: the model's tokenizer (%s gpt2-tokenizer)",
                         path_of_tool("data/get.py").text);
    return true;
}

// ----------------------------------------------------------------------------------------- records

static bool put_number(Choices *c, int64_t value, Error *err) {
    if (c->length == sizeof c->record / sizeof *c->record)
        return error_set(
            err, "the example has more than %d bytes of tokens, the most that the format allows",
            MAX_RECORD_BYTES);
    c->record[c->length++] = (uint16_t)value;
    return true;
}

// Puts n and n tokens.
static bool put_text(Choices *c, const char *text, Error *err) {
    const int64_t n = encoder_encode(c->encoder, text, (int64_t)strlen(text), c->tokens);
    // A number that does not fit into 16 bits is refused below, token by token.
    bool ok = put_number(c, n, err);
    for (int64_t i = 0; ok && i < n; i++) ok = put_number(c, c->tokens[i], err);
    return ok;
}

// The endings of an empty context follow the token that begins a text, as in lm-evaluation-harness.
static bool put_context(Choices *c, const char *text, Error *err) {
    if (*text) return put_text(c, text, err);
    const int32_t begin = tokenizer_begin(c->tokenizer);
    if (begin < 0)
        return error_set(err, "the context is empty, and %s has no token that begins a text",
                         tokenizer_name(c->tokenizer));
    if (!put_number(c, 1, err)) return false;
    return put_number(c, begin, err);
}

// Finds the first of two names that the example has.
static bool find_either(const cJSON *example, const char *name, const char *other,
                        const cJSON **item, Error *err) {
    if (!json_find(example, name, item, err)) return false;
    if (!*item && !json_find(example, other, item, err)) return false;
    if (*item) return true;
    char fields[200];
    return error_set(err, "neither \"%s\" nor \"%s\"; %s", name, other,
                     json_list_keys(example, fields, sizeof fields));
}

static bool make_record(Choices *c, const cJSON *example, Error *err) {
    const cJSON *context, *endings, *ending, *item;
    char found[64];
    int64_t label = 0;

    if (!find_either(example, "ctx", "context", &context, err)) return false;
    if (!find_either(example, "endings", "choices", &endings, err)) return false;
    if (!cJSON_IsString(context))
        return error_set(err, "the context is not text but %s",
                         json_describe(context, found, sizeof found));
    const int count = cJSON_IsArray(endings) ? cJSON_GetArraySize(endings) : 0;
    if (count < CHOICES_MIN || count > CHOICES_MAX)
        return error_set(err, "%d endings, expected %d to %d", count, CHOICES_MIN, CHOICES_MAX);

    if (!json_find(example, "label", &item, err)) return false;
    bool is_label = item && json_int_value(item, 0, count - 1, &label);
    // Some copies of HellaSwag have its digits in a string.
    if (!is_label && item && cJSON_IsString(item) && strlen(item->valuestring) <= 2 &&
        *item->valuestring) {
        char *end;
        label = strtol(item->valuestring, &end, 10);
        is_label = *end == '\0' && label >= 0 && label < count;
    }
    if (!is_label)
        return error_set(err, "\"label\" is %s, expected 0 to %d",
                         json_describe(item, found, sizeof found), count - 1);

    c->length = 0;
    const int64_t head[] = {CHOICES_BEGIN, 0, c->examples, label, count};
    for (size_t i = 0; i < sizeof head / sizeof *head; i++) put_number(c, head[i], err);
    if (!put_context(c, context->valuestring, err)) return false;
    cJSON_ArrayForEach(ending, endings) {
        if (!cJSON_IsString(ending))
            return error_set(err, "an ending is not text but %s",
                             json_describe(ending, found, sizeof found));
        // shorter than the line that it was a part of
        snprintf(c->text, MAX_LINE + 2, " %s", ending->valuestring);
        if (!put_text(c, c->text, err)) return false;
    }
    c->record[1] = (uint16_t)(2 * c->length);
    return true;
}

static bool add_line(Choices *c, const char *line, size_t length, Error *err) {
    if (length > MAX_LINE) return error_set(err, "the line is longer than %d bytes", MAX_LINE);
    if (memchr(line, '\0', length) || strstr(line, "\\u0000"))
        return error_set(err, "it has a NUL character");
    if (c->examples == MAX_EXAMPLES)
        return error_set(err, "more than %d examples; divide the file", MAX_EXAMPLES);

    cJSON *example = json_parse(line, length, err);
    if (!example) return false;
    const bool ok = make_record(c, example, err);
    cJSON_Delete(example);
    if (!ok) return false;

    const int64_t bytes = c->record[1];
    if (bytes > c->longest) c->longest = bytes;
    c->examples++;
    fwrite(c->record, 2, c->length, c->stream);
    return true;
}

// ------------------------------------------------------------------------------------------- files

static bool read_input(Choices *c, Error *err) {
    const char *path = c->options->input;
    FILE *file = fopen(path, "re");
    if (!file) return error_set(err, "%s: cannot be read: %s", path, path_reason(path, errno).text);
    bool ok = true;
    int ch = 0;
    for (int64_t number = 1; ok && ch != EOF; number++) {
        // The line without its newline, terminated; of a longer one the first MAX_LINE + 1 bytes.
        size_t length = 0;
        while (length <= MAX_LINE && (ch = getc_unlocked(file)) != EOF && ch != '\n')
            c->line[length++] = (char)ch;
        c->line[length] = '\0';
        if (strspn(c->line, " \t\r") == length) continue;
        if (add_line(c, c->line, length, err)) continue;
        error_prefix(err, "%s: line %" PRId64, path, number);
        ok = c->options->skip_bad;
        if (!ok && number == 1)
            foreign_file_check_open("JSON lines", path, fileno(file), true, err);
        if (!ok) break;
        if (c->bad++ < SHOWN_BAD) fprintf(stderr, "choices: skipped: %s\n", err->text);
        // the remainder of it
        while (length > MAX_LINE && ch != EOF && ch != '\n') ch = getc_unlocked(file);
    }

    if (ok && ferror(file)) ok = error_set(err, "%s: cannot be read: %s", path, strerror(errno));
    if (ok && c->examples == 0) ok = error_set(err, "%s: has no examples", path);
    fclose(file);
    return ok;
}

// A file of ours that holds something else, such as a model, is as good as anybody's.
static bool make_way(const char *path, Error *err) {
    int32_t magic = CHOICES_MAGIC;
    const int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0) return true; // what is in the way is the writer's to find
    const bool is_whole = file_size(fd) >= (int64_t)sizeof magic &&
                          file_read_at(fd, path, 0, &magic, sizeof magic, NULL);
    close(fd);
    if (is_whole && magic != CHOICES_MAGIC)
        return own_file_move_aside(path, "does not hold multiple-choice examples", 0, err);
    return true;
}

static bool write_output(Choices *c, Error *err) {
    int32_t header[CHOICES_HEADER_INTS] = {CHOICES_MAGIC, CHOICES_VERSION, (int32_t)c->examples,
                                           (int32_t)c->longest};
    own_file_mark_header(header);

    fflush(c->stream); // brings data and bytes up to date
    AtomicFile *out = atomic_file_create(c->options->output, err);
    if (!out) return false;

    atomic_file_write(out, header, sizeof header, err); // commit reports a failure
    atomic_file_write(out, c->data, c->bytes, err);
    if (make_way(c->options->output, err))
        return own_file_commit(out, c->options->output, OWN_FILE_HEADER_MARK, err);
    atomic_file_abandon(out);
    return false;
}

// -------------------------------------------------------------------------------------------- main

static int run(Choices *c, Error *err) {
    const char *path = c->options->tokenizer;
    c->tokenizer = tokenizer_named(path, err);
    if (!c->tokenizer) return EXIT_BAD_INPUT;
    if (tokenizer_vocab(c->tokenizer) > CHOICES_BEGIN) {
        error_set(err, "%s: %" PRId64 " tokens, but the format only has tokens below %d", path,
                  tokenizer_vocab(c->tokenizer), CHOICES_BEGIN);
        return EXIT_BAD_INPUT;
    }

    c->encoder = encoder_create(c->tokenizer);
    c->line = memory_new(MAX_LINE + 2, 1);
    c->text = memory_new(MAX_LINE + 2, 1);
    c->tokens = memory_new(MAX_LINE + 2, sizeof *c->tokens);
    c->stream = text_open(&c->data, &c->bytes);
    if (!read_input(c, err)) return EXIT_BAD_INPUT;
    if (!write_output(c, err)) return EXIT_RUN_FAILED;
    format_print(stdout, "choices: %" PRId64 " example%s, the longest of %" PRId64 " bytes: %s\n",
                 c->examples, format_plural(c->examples), c->longest, c->options->output);
    if (c->bad > 0) printf("  skipped %" PRId64 " bad line%s\n", c->bad, format_plural(c->bad));
    return EXIT_OK;
}

int main(int argc, char **argv) {
    static ChoiceOptions options;
    static Choices c;
    Error err;
    int code = EXIT_BAD_INPUT;
    limits_start();
    if (read_options(&options, argc, argv, &err)) {
        if (options.help) {
            fputs(HELP, stdout);
            return EXIT_OK;
        }
        c.options = &options;
        code = run(&c, &err);
    }

    if (c.stream) fclose(c.stream);
    free(c.data);
    free(c.line);
    free(c.text);
    free(c.tokens);
    encoder_free(c.encoder);
    tokenizer_free(c.tokenizer);
    if (code != EXIT_OK) fprintf(stderr, "choices: %s\n", err.text);
    return code;
}
