// A conversation with the model: generate_interactive of generate.h.
// Owns the lines of stdin and the tokens said so far. Waits for input with poll, whose wait a signal ends: read would
// be started again after it (error.h), and Ctrl-C at the prompt would do nothing until the next line.
#include "llmc/run/format.h"
#include "llmc/train/generate.h"

#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

// How long a signal may go unnoticed that another thread received: that one's handler does not end our poll.
enum { POLL_MILLISECONDS = 100, READ_BYTES = 65536 };

typedef struct {
    char *bytes;
    int64_t room, begin, end; // what was read and not yet taken: bytes[begin .. end)
    bool over;
} Input;

typedef struct {
    Gpt2 *model;
    const GenerateOptions *options;
    Input input;
    bool terminal;
    int32_t *said; // tokens of the conversation, at most those that still count, and the line that comes
    int64_t count; // 0: it begins
    int64_t drawn; // tokens of all answers: each has its own random numbers
} Talk;

// -------------------------------------------------------------------------------------------------------------- input

// More bytes into the buffer. On a signal none, and no error.
static bool fill(Input *in, Error *err) {
    if (in->begin > 0) memmove(in->bytes, in->bytes + in->begin, (size_t)(in->end - in->begin));
    in->end -= in->begin, in->begin = 0;
    if (in->room - in->end < READ_BYTES) {
        char *grown = realloc(in->bytes, (size_t)(in->end + 2 * READ_BYTES + in->end / 2));
        if (!grown) return error_set(err, "stdin: a line of more than %lld bytes: out of memory", (long long)in->end);
        in->bytes = grown, in->room = in->end + 2 * READ_BYTES + in->end / 2;
    }
    struct pollfd readable = {.fd = STDIN_FILENO, .events = POLLIN};
    while (!signals_pending()) {
        if (poll(&readable, 1, POLL_MILLISECONDS) <= 0) continue; // time is up, or a signal
        const ssize_t n = read(STDIN_FILENO, in->bytes + in->end, READ_BYTES);
        if (n < 0 && (errno == EINTR || errno == EAGAIN)) continue;
        if (n < 0 && errno != EIO) return error_set(err, "stdin: cannot be read: %s", strerror(errno));
        in->over = n <= 0; // EIO: the terminal was closed
        if (n > 0) in->end += n;
        break;
    }
    return true;
}

// The next line without its end; NULL and true: there is none, or a signal came.
static bool next_line(Input *in, const char **line, int64_t *n, Error *err) {
    int64_t searched = 0;
    *line = NULL;
    for (;;) {
        const int64_t held = in->end - in->begin;
        const char *end =
            held > searched ? memchr(in->bytes + in->begin + searched, '\n', (size_t)(held - searched)) : NULL;
        if (end || (in->over && held > 0)) {
            *line = in->bytes + in->begin;
            *n = end ? end - *line : held;
            in->begin += *n + (end != NULL);
            if (*n > 0 && (*line)[*n - 1] == '\r') --*n;
            return true;
        }
        if (in->over || signals_pending()) return true;
        searched = held;
        if (!fill(in, err)) return false;
    }
}

// ------------------------------------------------------------------------------------------------------------ output

// A GenerateSink. What a model writes must not move the cursor of a terminal; in a pipe it is somebody else's.
static bool show(void *context, const char *bytes, int64_t n) {
    const Talk *talk = context;
    if (talk->terminal)
        format_visible_stream(stdout, bytes, (size_t)n);
    else
        fwrite(bytes, 1, (size_t)n, stdout);
    return fflush(stdout) == 0;
}

static void show_speed(const Drawn *drawn) {
    const int64_t n = drawn->counts[0];
    printf("[%lld tokens after %lld", (long long)n, (long long)drawn->prompt_tokens);
    if (n > 1 && drawn->decode_seconds > 0) printf(", %.1f tokens/s", (double)(n - 1) / drawn->decode_seconds);
    printf("]\n");
}

// -------------------------------------------------------------------------------------------------------- conversation

// The line behind what was said; what no longer counts leaves at the front.
static bool hear(Talk *talk, const char *line, int64_t bytes, Error *err) {
    const Tokenizer *tokenizer = talk->options->tokenizer;
    const Gpt2Options *model = gpt2_options(talk->model);
    const int64_t most = model->T > 1 ? model->T - 1 : 1;
    const int32_t begin = text_begin(tokenizer, model->config.V);
    REQUIRE(talk->said, "a conversation without memory");
    if (talk->count == 0 && begin >= 0)
        talk->said[talk->count++] = begin;
    else if (talk->count > 0 && !encode_prompt(tokenizer, "\n", 1, model->config.V, &talk->said, &talk->count, err))
        return false;
    const int64_t before = talk->count;
    if (!encode_prompt(tokenizer, line, bytes, model->config.V, &talk->said, &talk->count, err)) return false;
    if (talk->count - before > most)
        fprintf(stderr, "the line has %lld tokens, the context %lld: its last %lld count\n",
                (long long)(talk->count - before), (long long)model->T, (long long)most);
    if (talk->count > most) {
        memmove(talk->said, talk->said + talk->count - most, (size_t)most * sizeof *talk->said);
        talk->count = most;
    }
    return true;
}

static bool answer(Talk *talk, const char *line, int64_t bytes, Error *err) {
    Drawn drawn = {0};
    int32_t *grown = NULL;
    if (!hear(talk, line, bytes, err)) return false;
    bool ok = decode(talk->model, talk->options, talk->said, talk->count, talk->drawn, &drawn, err);
    const int64_t n = ok ? drawn.counts[0] : 0;
    if (ok) {
        grown = realloc(talk->said, (size_t)(talk->count + n + 1) * sizeof *grown);
        ok = grown != NULL || error_set(err, "a conversation of %lld tokens: out of memory", (long long)talk->count);
    }
    if (grown) {
        talk->said = grown;
        memcpy(grown + talk->count, drawn.tokens, (size_t)n * sizeof *grown);
        talk->count += n, talk->drawn += n;
        putchar('\n');
        if (talk->terminal) show_speed(&drawn);
        ok = (fflush(stdout) == 0 && !ferror(stdout)) ||
             error_set(err, "stdout: cannot be written: %s", strerror(errno));
    }
    drawn_free(&drawn);
    return ok;
}

static bool line_is(const char *line, int64_t n, const char *word) {
    return n == (int64_t)strlen(word) && memcmp(line, word, (size_t)n) == 0;
}

static bool talk_on(Talk *talk, Error *err) {
    const char *line = talk->options->prompt;
    int64_t n = line ? (int64_t)strlen(line) : 0;
    if (n > 0 && talk->terminal) printf("> %s\n", line);
    if (n > 0 && !answer(talk, line, n, err)) return false;
    while (!signals_pending()) {
        if (talk->terminal) fputs("> ", stdout), fflush(stdout);
        if (!next_line(&talk->input, &line, &n, err)) return false;
        if (!line || line_is(line, n, "/quit")) break;
        if (line_is(line, n, "/new"))
            talk->count = 0;
        else if (n > 0 && !answer(talk, line, n, err))
            return false;
    }
    if (talk->terminal && !line) putchar('\n'); // the shell's prompt belongs on a line of its own
    return true;
}

bool generate_interactive(Gpt2 *model, const GenerateOptions *options, Error *err) {
    if (!options->tokenizer)
        return error_set(err, "--interactive: there is no tokenizer to read lines with; name one with --tokenizer");
    GenerateOptions own = *options;
    Talk talk = {.model = model, .options = &own, .terminal = isatty(STDIN_FILENO) && isatty(STDOUT_FILENO)};
    own.samples = 1, own.sink = show, own.context = &talk;
    talk.said = malloc(sizeof *talk.said);
    if (talk.terminal) puts("Each line is gone on with. /new forgets what was said, /quit or Ctrl-D ends.");
    const bool ok = (talk.said || error_set(err, "out of memory")) && talk_on(&talk, err);
    free(talk.said);
    free(talk.input.bytes);
    return ok;
}
