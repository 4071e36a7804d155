// See documents.h. Files are read block by block: lines up to the last complete one, text up to a
// place where the tokenizer may be interrupted. Bytes read beyond the end of a block are kept in
// `rest` and begin the next one. Where a block ends depends only on the text and on the block
// before it.
#include "llmc/text/documents.h"
#include "llmc/base/arithmetic.h"
#include "llmc/base/file.h"
#include "llmc/base/foreign_file.h"
#include "llmc/base/format.h"
#include "llmc/base/memory.h"
#include "llmc/base/path_reason.h"
#include "llmc/text/content.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

// Everything before it in the file has been handed out.
typedef struct {
    int64_t offset; // in the unpacked bytes
    int64_t line;   // lines before offset
    int64_t size;   // of the text document that continues at offset; 0: none does
    int64_t cut;    // where its last part, for validation, begins; 0: not decided yet
} FilePosition;

struct DocumentReader {
    const CorpusOptions *options;
    const Tokenizer *cuts;
    bool cut_all;
    InputWalk *walk;
    InputFile file;
    CorpusFormat format;   // of file, by its content
    const char *separator; // ends a line of JSON, or a document in text that is divided
    ByteSource *source;    // of file; NULL: the next file is to be opened
    FilePosition at;
    int64_t bytes_before; // sizes of the files before this one
    int64_t bytes_read;   // of all files, packed as they are, up to `at`
    char *rest;           // read but not handed out yet
    int64_t rest_n;
    bool is_first;   // the next block of file is its first one
    bool ended;      // nothing follows rest
    bool is_damaged; // because the file is damaged there
    bool is_done;    // with all inputs
    int status;      // not EXIT_OK: error says why
    Error error;
    CorpusCounts pending; // what was skipped since the last block
};

void corpus_block_clear(CorpusBlock *b) {
    for (int side = 0; side < CORPUS_SIDES; side++) free(b->tokens[side]);
    free(b->text);
    corpus_counts_clear(&b->counts);
    *b = (CorpusBlock){0};
}

DocumentReader *document_reader_open(const CorpusOptions *options, const Tokenizer *cuts,
                                     bool cut_all) {
    DocumentReader *r = memory_zeroed(1, sizeof *r);
    r->options = options;
    r->cuts = cuts;
    r->cut_all = cut_all;
    r->walk = inputs_open(&options->inputs);
    return r;
}

void document_reader_close(DocumentReader *r) {
    if (!r) return;
    byte_source_close(r->source);
    inputs_close(r->walk);
    corpus_counts_clear(&r->pending);
    free(r->rest);
    free(r);
}

static bool reader_fail(DocumentReader *r, int status) {
    r->status = status;
    return false;
}

// ------------------------------------------------------------------------------------------- files

static bool pass_unreadable(DocumentReader *r, int reason) {
    kind_counts_add(&r->pending.left_out, "unreadable", 1, "%s: %s", r->file.path,
                    strerror(reason));
    return false;
}

// Leaves a file out. One that is named in the arguments and could be read another way ends the run
// instead.
static bool leave_out(DocumentReader *r, const char *kind, const char *advice) {
    const char *path = r->file.path;
    if (r->file.is_argument && *advice && !r->options->skip_bad) {
        error_set(&r->error, "%s: is %s; %s", path, kind, advice);
        return reader_fail(r, EXIT_BAD_INPUT);
    }
    kind_counts_add(&r->pending.left_out, kind, 1, "%s%s%s", path, *advice ? "; " : "", advice);
    return false;
}

static bool open_source(DocumentReader *r) {
    const InputOptions *inputs = &r->options->inputs;
    int fd = input_open(inputs, &r->file), then_fd = -1, failed = EXIT_RUN_FAILED;
    if (r->file.is_stdin && inputs->stdin_goes_on) then_fd = STDIN_FILENO;
    if (r->file.is_argument) failed = EXIT_BAD_INPUT;
    if (fd < 0 && !r->file.is_argument && input_may_be_skipped(errno))
        return pass_unreadable(r, errno);

    if (fd < 0) {
        error_set(&r->error, "%s: cannot read: %s", r->file.path,
                  path_reason(r->file.path, errno).text);
        return reader_fail(r, failed);
    }

    // The packing is what the first bytes say. A file that has only the name of a packed one may be
    // of a known kind, such as a pointer or a web page in place of the data; other ones are
    // damaged.
    unsigned char head[FOREIGN_FILE_HEAD];
    const ssize_t n = r->file.is_stdin ? 0 : pread(fd, head, sizeof head, 0);

    const Packing found = n > 0 ? packing_of_bytes(head, (size_t)n) : r->file.packing;
    if (found == PACKED_NOT && r->file.packing != PACKED_NOT) {
        const ForeignFile *foreign = foreign_file_find(r->file.path, head, (size_t)n);
        if (foreign && !leave_out(r, foreign->kind, foreign->advice)) {
            close(fd);
            return false;
        }
    } else {
        r->file.packing = found;
    }

    r->source = byte_source_open(fd, then_fd, r->file.packing);
    return true;
}

// Opens the next file. False: there is none, or reading failed.
static bool next_file(DocumentReader *r) {
    while (!r->source && r->status == EXIT_OK) {
        const int found = inputs_next(r->walk, &r->file, &r->error);
        if (found < 0) return reader_fail(r, EXIT_BAD_INPUT);
        if (found == 0) return false;
        r->at = (FilePosition){0};
        r->ended = r->is_damaged = false;
        if (r->file.unreadable)
            pass_unreadable(r, r->file.unreadable);
        else
            open_source(r);
        if (!r->source) r->bytes_before += r->file.size;
    }
    return r->status == EXIT_OK;
}

static void close_file(DocumentReader *r) {
    byte_source_close(r->source);
    r->source = NULL;
    r->rest_n = 0;
    r->bytes_before += r->file.size;
    r->bytes_read = r->bytes_before;
}

// Ends this file if the source is damaged, and reading if it failed otherwise.
static bool source_failed(DocumentReader *r, const ByteSource *source) {
    if (!byte_source_is_damaged(source)) {
        error_prefix(&r->error, "%s", r->file.path);
        return reader_fail(r, EXIT_RUN_FAILED);
    }
    r->ended = r->is_damaged = true;
    return true;
}

static void report_damage(DocumentReader *r) {
    kind_counts_add(&r->pending.bad, bad_kinds[BAD_FILE].phrase, 1, "%s: %s", r->file.path,
                    r->error.text);
}

// ------------------------------------------------------------------------------------------ blocks

// Appends text of the file to b, until it has n bytes or the file ends.
static bool fill_block(DocumentReader *r, CorpusBlock *b, int64_t n) {
    b->text = memory_grow(b->text, &b->capacity, n + 1, 1); // with the newline after the text
    int64_t from_rest = min_i64(r->rest_n, n - b->n);
    if (from_rest > 0) {
        memcpy(b->text + b->n, r->rest, (size_t)from_rest);
        memmove(r->rest, r->rest + from_rest, (size_t)(r->rest_n - from_rest));
        r->rest_n -= from_rest;
        b->n += from_rest;
    }
    while (b->n < n && !r->ended) {
        int64_t got = byte_source_read(r->source, b->text + b->n, n - b->n, &r->error);
        if (got < 0 && !source_failed(r, r->source)) return false;
        if (got > 0) b->n += got;
        if (got == 0) r->ended = true;
    }
    return true;
}

// Hands out the first n bytes of the block and keeps the remainder for the next one.
static void hand_out(DocumentReader *r, CorpusBlock *b, int64_t n) {
    const int64_t left = b->n - n;
    if (left > 0) {
        r->rest = realloc(r->rest, (size_t)(left + r->rest_n));
        REQUIRE_MEMORY(r->rest, "%s", r->file.path);
        memmove(r->rest + left, r->rest, (size_t)r->rest_n);
        memcpy(r->rest, b->text + n, (size_t)left);
        r->rest_n += left;
    }
    b->n = n;
    b->text[n] = '\n';
    r->at.offset += n;
    r->bytes_read = r->bytes_before + byte_source_consumed(r->source);
}

// Reads the first block of a file and decides what it is. A byte order mark is dropped. False:
// nothing to read.
static bool begin_file(DocumentReader *r, CorpusBlock *b) {
    static const char mark[] = {'\xEF', '\xBB', '\xBF'};
    Error advice;
    if (!fill_block(r, b, BLOCK_BYTES)) return false;
    if (b->n >= (int64_t)sizeof mark && memcmp(b->text, mark, sizeof mark) == 0) {
        b->n -= (int64_t)sizeof mark;
        r->at.offset = sizeof mark;
        memmove(b->text, b->text + sizeof mark, (size_t)b->n);
    }
    const char *kind =
        corpus_content(r->options, &r->file, b->text, b->n, r->ended && r->rest_n == 0, &r->format,
                       &r->pending.notes, &advice);
    r->separator = "\n";
    if (r->format == FORMAT_DIVIDED) r->separator = r->options->split_at;
    if (!kind) return true;
    if (r->is_damaged) report_damage(r);
    if (!r->is_damaged || b->n > 0) leave_out(r, kind, advice.text);
    if (r->status == EXIT_OK) close_file(r);
    return false;
}

// ------------------------------------------------------------------------------------------- lines

// Skips the line or document that b begins with.
static bool skip_line(DocumentReader *r, CorpusBlock *b) {
    const char *mark = r->separator, *end = NULL;
    const int64_t length = (int64_t)strlen(mark);
    const char *phrase = bad_kinds[BAD_TOO_LONG].phrase;
    if (r->format == FORMAT_LINES)
        kind_counts_add(&r->pending.bad, phrase, 1,
                        "%s: line %" PRId64 ": the line is longer than 32 MiB", r->file.path,
                        ++r->at.line);
    else
        kind_counts_add(&r->pending.bad, phrase, 1,
                        "%s: a document before the next --split-at is longer than 32 MiB",
                        r->file.path);

    for (bool has_more = true; !end && has_more;) {
        const int64_t kept = min_i64(b->n, length - 1); // may be a part of the mark
        r->at.offset += b->n - kept;
        memmove(b->text, b->text + b->n - kept, (size_t)kept);
        b->n = kept;
        if (!fill_block(r, b, BLOCK_BYTES)) return false;
        has_more = b->n > kept;
        end = memmem(b->text, (size_t)b->n, mark, (size_t)length);
    }

    // The end of the line is handed out like an empty block: it advances the position and gives no
    // text.
    int64_t n = b->n;
    if (end) n = end + length - b->text;
    hand_out(r, b, n);
    b->n = 0;
    return true;
}

// Reads the complete lines or documents that fit in a block, at least one. False: none this time.
static bool next_lines(DocumentReader *r, CorpusBlock *b) {
    const char *mark = r->separator;
    const int64_t length = (int64_t)strlen(mark);
    int64_t last = 0, searched = 0;
    for (int64_t want = BLOCK_BYTES; last == 0 && want <= LINE_MAX_BYTES; want *= 2) {
        if (!fill_block(r, b, want)) return false;
        const char *from = b->text + searched, *end = b->text + b->n, *p;
        for (; last == 0 && (p = memrchr(from, mark[length - 1], (size_t)(end - from))) != NULL;
             end = p)
            if (p + 1 - from >= length && memcmp(p + 1 - length, mark, (size_t)length) == 0)
                last = p + 1 - b->text;
        searched = 0;
        if (b->n >= length) searched = b->n + 1 - length;
        if (r->ended) break;
    }
    if (last == 0 && !r->ended) return skip_line(r, b) && false;

    const bool is_all = r->ended && r->rest_n == 0;
    int64_t n = last; // the end of the last one
    if (is_all && !r->is_damaged) n = b->n;
    b->format = r->format;
    b->begins = r->is_first;
    b->first_line = r->at.line + 1;
    for (const char *p = b->text;
         r->format == FORMAT_LINES && (p = memchr(p, '\n', (size_t)(b->text + n - p))); p++)
        r->at.line++;
    if (is_all && r->is_damaged) report_damage(r);
    hand_out(r, b, n);
    if (is_all) close_file(r);
    return n > 0;
}

// -------------------------------------------------------------------------------------------- text

// Finds the unpacked size of the compressed file, up to its end or to damage. Reports damage.
static bool measure(DocumentReader *r, int64_t *size) {
    const int fd = input_open(&r->options->inputs, &r->file);
    if (fd < 0) {
        error_set(&r->error, "%s: cannot read: %s", r->file.path,
                  path_reason(r->file.path, errno).text);
        return reader_fail(r, EXIT_RUN_FAILED);
    }
    ByteSource *s = byte_source_open(fd, -1, r->file.packing);
    char *buffer = memory_new(BLOCK_BYTES, 1);
    int64_t got;
    for (*size = 0; (got = byte_source_read(s, buffer, BLOCK_BYTES, &r->error)) > 0;) *size += got;
    const bool ok = got == 0 || source_failed(r, s);
    if (got < 0 && ok) report_damage(r);
    r->ended = r->is_damaged = false; // they were about the other source
    byte_source_close(s);
    free(buffer);
    return ok;
}

// Chooses the part of the block's text for the next piece. The cut for validation needs enough text
// after it to look for the end of a line; a piece that would have the cut too near its end ends
// before.
static int64_t choose_end(DocumentReader *r, const CorpusBlock *b, bool is_all) {
    const Tokenizer *t = r->cuts;
    int64_t whole = b->n;
    if (!is_all) { // a safe place, or between two characters if a whole block has none
        whole = tokenizer_safe_cut(t, b->text, b->n);
        if (whole == 0) whole = corpus_character_end(b->text, b->n);
    }
    int64_t from = corpus_cut_target(r->at.size, r->options->val_fraction) - r->at.offset;
    if (r->at.cut > 0 || from >= b->n || corpus_is_one_sided(r->options->val_fraction))
        return whole;
    if (from < 1) from = 1; // the piece before had no safe place and ran past it
    int64_t head = 0;
    if (!is_all && b->n - from < CUT_SEARCH) head = tokenizer_safe_cut(t, b->text, from - 1);
    if (head > 0) return head;
    if (b->n < 2) return whole;
    int64_t cut = corpus_cut(t, b->text, b->n, from);
    r->at.cut = r->at.offset + cut;
    return cut;
}

// Reads the next piece of a document. False: none this time.
static bool next_piece(DocumentReader *r, CorpusBlock *b) {
    const int64_t left = r->at.size > 0 ? r->at.size - r->at.offset : BLOCK_BYTES;

    if (!fill_block(r, b, min_i64(left, BLOCK_BYTES))) return false;
    if (r->is_first) {                             // the size of the document
        const int64_t known = r->at.offset + b->n; // with the byte order mark
        if (r->ended && r->is_damaged) report_damage(r);
        r->at.size = r->file.size;
        if (r->ended || known > r->file.size) r->at.size = known;
        if (!r->ended && r->file.packing != PACKED_NOT && !measure(r, &r->at.size)) return false;
    }

    if (b->n == 0) { // shorter than it was
        close_file(r);
        return false;
    }

    if (b->n > r->at.size - r->at.offset) b->n = r->at.size - r->at.offset; // longer than it was
    bool is_all = b->n == r->at.size - r->at.offset;
    b->format = FORMAT_TEXT;

    b->is_document = r->is_first;
    b->begins = b->is_document || r->at.offset == r->at.cut;
    b->side = CORPUS_TRAIN;
    if (r->at.cut > 0 || r->options->val_fraction >= 1) b->side = CORPUS_VAL;
    b->is_short = b->is_document && is_all && r->at.size <= SHORT_DOCUMENT && !r->cut_all;

    int64_t n = b->n;
    if (!b->is_short) n = choose_end(r, b, is_all);
    hand_out(r, b, n);
    if (r->at.offset == r->at.size) close_file(r);
    return true;
}

// --------------------------------------------------------------------------------------- interface

bool document_reader_next(DocumentReader *r, CorpusBlock *b) {
    if (r->is_done) return false;
    corpus_block_clear(b);
    bool has_text = false;

    while (!has_text && next_file(r)) {
        b->n = 0;
        r->is_first = r->at.offset == 0;
        const bool begun = !r->is_first || begin_file(r, b);
        if (begun && r->format == FORMAT_TEXT) has_text = next_piece(r, b);
        if (begun && r->format != FORMAT_TEXT) has_text = next_lines(r, b);
        if (r->status != EXIT_OK) break;
    }

    r->is_done = r->status != EXIT_OK || !has_text;
    if (!has_text) b->n = 0;
    b->status = r->status;
    if (r->status != EXIT_OK) b->error = r->error;

    memcpy(b->path, r->file.path, strlen(r->file.path) + 1);
    b->counts = r->pending;
    r->pending = (CorpusCounts){0};
    b->bytes_read = r->bytes_read;
    return true;
}
