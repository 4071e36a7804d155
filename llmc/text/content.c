// See content.h.
#include "llmc/text/content.h"
#include "llmc/base/arithmetic.h"
#include "llmc/base/foreign_file.h"
#include "llmc/base/typed_path.h"
#include "llmc/base/utf8.h"

#include <fnmatch.h>
#include <stdlib.h>
#include <string.h>

// ------------------------------------------------------------------------------------- whole files

// Filters that turn a file of a kind into text or lines. The table of kinds has the advice for
// others.
static const struct {
    const char *kind, *filter, *format; // format NULL: by the name
} filters[] = {
    {"compressed by gzip", "gzip -dc", NULL},
    {"compressed by zstd", "zstd -dc", NULL},
    {"compressed by bzip2", "bzip2 -dc", NULL},
    {"compressed by xz", "xz -dc", NULL},
    {"compressed by lz4", "lz4 -dc", NULL},
    {"UTF-16 text", "iconv -f UTF-16 -t UTF-8", "txt"},
    {"UTF-32 text", "iconv -f UTF-32 -t UTF-8", "txt"},
};

// "data/prepare --format txt -o DIR -": reads what a command before it writes.
static const char *reader_command(const CorpusOptions *o, const char *format, Error *text) {
    error_set(text, "%s --format %s %s -", path_of_tool(o->tool).text, format, o->tool_options);
    return text->text;
}

// "zstd -dc a.zst | FILTER | data/prepare --format FORMAT -o DIR -"
static void advise_filter(const CorpusOptions *o, const InputFile *file, const char *filter,
                          const char *format, Error *advice) {
    const QuotedPath path = path_quoted(file->path);
    Error text;
    const char *read = reader_command(o, format, &text), *unpack = "zstd";
    if (file->packing == PACKED_GZIP) unpack = "gzip";
    if (file->is_stdin)
        error_set(advice, "pipe it through %s first", filter);
    else if (file->packing == PACKED_NOT)
        error_set(advice, "%s %s | %s", filter, path.text, read);
    else
        error_set(advice, "%s -dc %s | %s | %s", unpack, path.text, filter, read);
}

static void advise_foreign(const CorpusOptions *o, const InputFile *file, const ForeignFile *f,
                           Error *advice) {
    const QuotedPath path = path_quoted(file->path);
    Error text;
    const bool is_plain = file->packing == PACKED_NOT && !file->is_stdin;

    for (size_t i = 0; i < sizeof filters / sizeof *filters; i++) {
        const char *format = filters[i].format;
        if (strcmp(f->kind, filters[i].kind) != 0) continue;
        if (!format) {
            const bool is_lines =
                fnmatch("*.@(jsonl|ndjson)?(.*)", file->path, FNM_CASEFOLD | FNM_EXTMATCH) == 0;
            format = "txt";
            if (is_lines) format = "jsonl";
        }
        advise_filter(o, file, filters[i].filter, format, advice);
        return;
    }

    if (strcmp(f->kind, "Parquet") == 0 && is_plain)
        error_set(advice, "%s %s | %s", path_of_tool("data/read_parquet.py").text, path.text,
                  reader_command(o, "jsonl", &text));
    else if (strcmp(f->kind, "a zip archive") == 0 && is_plain)
        error_set(advice, "unzip -d NEW %s, then give the directory NEW", path.text);
    else if (strcmp(f->kind, "a tar archive") == 0 && !file->is_stdin) // tar detects the packing
        error_set(advice, "mkdir NEW; tar -x -C NEW -f %s, then give the directory NEW", path.text);
    else
        error_set(advice, "%s", f->advice);
}

// Returns the kind of JSON that is not lines, or of lines without the field in a file whose name
// does not announce them; else NULL.
static const char *judge_json(const CorpusOptions *o, const InputFile *file, char *text, int64_t n,
                              bool is_all, CorpusFormat *format, KindCounts *notes, Error *advice) {
    const JsonShape shape = json_shape(text, n, is_all);
    const bool is_named = *format == FORMAT_LINES; // by its name, or because it is asked for
    if (shape == JSON_NOT || (is_named && shape != JSON_DOCUMENT)) return NULL;
    if (shape != JSON_OBJECTS) {
        const char *filter = text[strspn(text, " \t\r\n")] == '[' ? "jq -c '.[]'" : "jq -c .";
        advise_filter(o, file, filter, "jsonl", advice);
        if (!is_named)
            error_set(advice, "--format txt trains on it as text; for lines: %s", advice->text);
        return "JSON that is not JSON Lines";
    }
    const char *newline = memchr(text, '\n', (size_t)n);
    const size_t length = newline ? (size_t)(newline - text) : (size_t)n;
    char *line = malloc(length + 1), *value;
    REQUIRE_MEMORY(line, "a line of JSON");
    memcpy(line, text, length); // it may hold NULs
    line[length] = '\n';
    int64_t bytes;
    const JsonLine status = json_line_text(line, (int64_t)length, o->field, &value, &bytes, NULL);
    free(line);
    if (status == JSON_LINE_NO_FIELD) {
        error_set(advice,
                  "--field NAME names another than \"%s\", --format txt trains on it as text",
                  o->field);
        return "JSON without the field";
    }
    *format = FORMAT_LINES;
    kind_counts_add(notes, "JSON Lines by its content", 1, "%s; --format txt trains on it as text",
                    file->path);
    return NULL;
}

const char *corpus_content(const CorpusOptions *o, const InputFile *file, char *text, int64_t n,
                           bool is_all, CorpusFormat *format, KindCounts *notes, Error *advice) {
    const ForeignFile *foreign = n > 0 ? foreign_file_find(file->path, text, (size_t)n) : NULL;
    *format = file->format;
    advice->text[0] = '\0';
    text[n] = '\n';
    if (n <= 0) return "empty";
    if (foreign && (!foreign->is_text || (*format == FORMAT_LINES && text[0] == '<'))) {
        advise_foreign(o, file, foreign, advice);
        return foreign->kind;
    }
    if (*format != FORMAT_TEXT) {
        const char *kind = judge_json(o, file, text, n, is_all, format, notes, advice);
        if (kind || *format == FORMAT_LINES) return kind;
    }
    if (memchr(text, '\0', (size_t)min_i64(n, SHORT_DOCUMENT))) return "binary";
    if (foreign) kind_counts_add(notes, foreign->kind, 1, "%s; read as text", file->path);
    *format = FORMAT_TEXT;
    if (o->split_at) *format = FORMAT_DIVIDED;
    return NULL;
}

// ----------------------------------------------------------------------------------- inside a text

static const char *const markers[] = {"<|endoftext|>", "<|end_of_text|>", "<|startoftext|>",
                                      "<|im_end|>",    "<|eot_id|>",      "</s>",
                                      "<eos>"};

void corpus_note_markers(const char *path, const char *text, int64_t n, KindCounts *notes) {
    const char *const end = text + n;
    for (const char *p = text; (p = memchr(p, '<', (size_t)(end - p))) != NULL; p++) {
        // almost all, in a web page
        if (end - p < 4 || (p[1] != '|' && p[1] != '/' && p[1] != 'e')) continue;
        for (size_t i = 0; i < sizeof markers / sizeof *markers; i++) {
            const size_t length = strlen(markers[i]);
            if ((size_t)(end - p) < length || memcmp(p, markers[i], length) != 0) continue;
            char kind[32];
            snprintf(kind, sizeof kind, "%s as text", markers[i]);
            kind_counts_add(notes, kind, 1, "%s; --split-at '%s' ends documents there", path,
                            markers[i]);
        }
    }
}

void corpus_note_bytes(const CorpusOptions *o, const char *path, const char *text, int64_t n,
                       KindCounts *notes) {
    const unsigned char *end = (const unsigned char *)text + n,
                        *p = utf8_error((const unsigned char *)text, end);
    int64_t bytes = 0;
    for (; p < end; p = utf8_error(p + 1, end)) bytes++;
    if (bytes == 0) return;
    Error read;
    kind_counts_add(notes, "byte that is not UTF-8", bytes,
                    "%s; they stay as they are; if it is Latin-1: iconv -f LATIN1 -t UTF-8 %s | %s",
                    path, path_quoted(path).text, reader_command(o, "txt", &read));
}
