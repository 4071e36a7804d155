// Text generation, see generate.h: the generation loop on tokens, samples as texts, and
// conversations.
#include "llmc/train/generate.h"

#include "llmc/base/arithmetic.h"
#include "llmc/base/clock.h"
#include "llmc/base/error.h"
#include "llmc/base/format.h"
#include "llmc/base/signals.h"
#include "llmc/base/utf8.h"
#include "llmc/comm/watch.h"
#include "llmc/model/model_decode.h"
#include "llmc/text/encoder.h"

#include <errno.h>
#include <math.h>
#include <poll.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

// ---------------------------------------------------------------------------------------- the loop

// The state of a generation. It owns the window: for every sample the tokens that the decoder sees,
// at most the context. When the window is full its last half becomes a new prompt, so that a text
// of any length costs one prompt pass every T/2 tokens.
typedef struct {
    Model *model;
    const GenerateOptions *options;
    int64_t T, V;     // V: of the model, the row length of logits
    int64_t drawable; // this and higher tokens are never drawn
    int64_t eot;      // the tokenizer's, ends a sample as options->ends do; -1: none
    int32_t *window;  // (samples, T)
    int32_t *prompts; // (samples, n), the decoder's input
    int32_t *next;    // (samples)
    bool *ended;      // (samples)
    float *logits;    // (samples, V)
    int64_t length;   // tokens in the window
    int64_t running;  // samples that have not ended
    Utf8Stream held;  // incomplete character of sample 0, for the sink
    bool refused;     // the sink returned false
} Decoding;

typedef struct {
    int32_t *tokens; // (samples, options->tokens): sample i is at tokens + i * options->tokens
    // (samples): the number of tokens, without an end-of-text that ended the sample
    int64_t *counts;
    Generated facts; // all of it but the texts and the number of tokens
} Drawn;

// ------------------------------------------------------------------------------------------ tokens

// The text of one token: its bytes or, without a tokenizer, its number and a space, in `number`.
// It is not terminated.
enum { TOKEN_NUMBER = 16 };
static const char *token_text(const Tokenizer *tokenizer, int32_t token, char number[TOKEN_NUMBER],
                              int64_t *bytes) {
    if (!tokenizer) {
        *bytes = snprintf(number, TOKEN_NUMBER, "%d ", token);
        return number;
    }
    size_t length;
    const char *text = tokenizer_decode(tokenizer, token, &length);
    *bytes = (int64_t)length;
    return text;
}

// The token before every text: the tokenizer's, or the substitute described at generate(); -1:
// none.
static int32_t text_begin(const Tokenizer *tokenizer, int64_t V) {
    if (!tokenizer) return (int32_t)(V - 1);
    const int32_t begin = tokenizer_begin(tokenizer);
    if (begin >= V) return -1;
    return begin;
}

// Appends the tokens of prompt to the *n tokens in out (end-of-text, for example); out is grown.
// False if the model does not have a token.
static bool encode_prompt(const Tokenizer *tokenizer, const char *prompt, int64_t bytes, int64_t V,
                          int32_t **out, int64_t *n, Error *err) {
    int32_t *grown = realloc(*out, (size_t)(*n + bytes + 1) * sizeof *grown);
    REQUIRE_MEMORY(grown, "a prompt of %lld bytes", (long long)bytes);
    *out = grown;
    Encoder *encoder = encoder_create(tokenizer);
    const int64_t first = *n;
    *n += encoder_encode_special(encoder, prompt, bytes, grown + first);
    encoder_free(encoder);

    for (int64_t i = first; i < *n; i++)
        if (grown[i] < 0 || grown[i] >= V)
            return error_set(err,
                             "the prompt has token %d, but the model's vocabulary ends at %lld: "
                             "name the model's "
                             "tokenizer with --tokenizer",
                             grown[i], (long long)V - 1);
    return true;
}

bool generate_prompt_ends_in_space(const Tokenizer *t, const char *prompt) {
    const size_t n = strlen(prompt);
    return t && tokenizer_vocab(t) > BYTE_VOCAB && n > 0 && prompt[n - 1] == ' ';
}

// ------------------------------------------------------------------------------------------ window

// Restarts the decoder with the tokens in the window.
static void restart_decoding(Decoding *d) {
    const int64_t samples = d->options->samples, n = d->length;
    for (int64_t s = 0; s < samples; s++)
        memcpy(d->prompts + s * n, d->window + s * d->T, (size_t)n * sizeof *d->prompts);
    model_decode_start(d->model, d->prompts, n, samples, d->logits);
}

// ----------------------------------------------------------------------------------------- drawing

static bool ends_sample(const Decoding *d, int32_t token) {
    const GenerateOptions *o = d->options;
    bool ends = o->stop_at_eot && token == d->eot;
    for (int i = 0; o->stop_at_eot && i < o->num_ends; i++) ends |= token == o->ends[i];
    return ends;
}

// Draws a token for every sample that has not ended. number: index of this token in its text, for
// the random generator.
static void draw_tokens(Decoding *d, int64_t number, Drawn *drawn) {
    const GenerateOptions *o = d->options;
    // A draw takes about a millisecond, as long as a token of 124M on a fast GPU.
#pragma omp parallel for schedule(dynamic) if (o->samples > 1)
    for (int64_t s = 0; s < o->samples; s++) {
        // the decoder gets its last token again, and the logits are ignored
        if (d->ended[s]) continue;
        const uint64_t index = ((uint64_t)s << 40) + (uint64_t)number;
        d->next[s] = sample_from_logits(d->logits + s * d->V, d->drawable, &o->sampler, index);
    }

    for (int64_t s = 0; s < o->samples; s++) {
        if (d->ended[s]) continue;
        if (ends_sample(d, d->next[s])) {
            d->ended[s] = true;
            d->running--;
            continue;
        }

        drawn->tokens[s * o->tokens + drawn->counts[s]++] = d->next[s];
        if (s == 0 && o->sink) {
            char digits[TOKEN_NUMBER];
            int64_t bytes;
            const char *text = token_text(o->tokenizer, d->next[s], digits, &bytes);
            // In portions that fit on the stack: a special token of a foreign tokenizer may be
            // long.
            char out[256 + UTF8_MOST_HELD];
            for (int64_t done = 0, portion; done < bytes && !d->refused; done += portion) {
                portion = min_i64(bytes - done, 256);
                const int64_t whole = utf8_stream_push(&d->held, text + done, portion, out);
                if (whole > 0 && !o->sink(o->context, out, whole)) d->refused = true;
            }
        }
    }
}

static void run_decoding(Decoding *d, const int32_t *prompt, int64_t n, int64_t first,
                         Drawn *drawn) {
    const double began = now_seconds();
    const int64_t samples = d->options->samples;
    // the last ones of the prompt, so that a token fits after them
    d->length = min_i64(n, max_i64(d->T - 1, 1));
    for (int64_t s = 0; s < samples; s++)
        memcpy(d->window + s * d->T, prompt + n - d->length, (size_t)d->length * sizeof *prompt);
    restart_decoding(d);
    drawn->facts.prompt_cut = n - d->length;
    drawn->facts.prompt_tokens = d->length;
    for (int64_t i = 0; i < d->options->tokens; i++) {
        watch_progress();
        if (i > 0) { // the last tokens are appended, in a full window to its last half
            const bool full = d->length == d->T;
            int64_t kept = d->length;
            if (full) kept = max_i64((d->T + 1) / 2 - 1, 0); // with the new one T/2, rounded up
            for (int64_t s = 0; s < samples; s++) {
                int32_t *window = d->window + s * d->T;
                memmove(window, window + d->length - kept, (size_t)kept * sizeof *window);
                window[kept] = d->next[s];
            }
            d->length = kept + 1;
            drawn->facts.slides += full;
            if (full)
                restart_decoding(d);
            else
                model_decode_step(d->model, d->next, d->logits);
        }
        draw_tokens(d, first + i, drawn);
        if (i == 0) drawn->facts.prompt_seconds = now_seconds() - began;
        if (d->running == 0 || d->refused) break;
        drawn->facts.cut = i + 1 < d->options->tokens && signals_pending();
        if (drawn->facts.cut) break;
    }
    drawn->facts.decode_seconds = now_seconds() - began - drawn->facts.prompt_seconds;
    if (d->options->sink) {
        char out[UTF8_MOST_HELD];
        const int64_t held = utf8_stream_end(&d->held, out);
        if (held > 0 && !d->refused) d->options->sink(d->options->context, out, held);
    }
}

// Continues n >= 1 tokens of prompt as described at generate(); options->prompt is ignored. first:
// number of the first token for the random generator, so that the answers of a conversation differ.
static bool decode_tokens(Model *model, const GenerateOptions *o, const int32_t *prompt, int64_t n,
                          int64_t first, Drawn *drawn, Error *err) {
    const ModelOptions *planned = model_options(model);
    memset(drawn, 0, sizeof *drawn);
    if (o->samples < 1 || o->samples > planned->sequences)
        return error_set(err, "--samples %lld: the model was built for %lld in parallel",
                         (long long)o->samples, (long long)planned->sequences);
    Decoding d = {.model = model,
                  .options = o,
                  .T = planned->T,
                  .V = planned->config.V,
                  .eot = -1,
                  .running = o->samples};
    d.drawable = d.V;
    if (o->tokenizer) d.drawable = min_i64(tokenizer_vocab(o->tokenizer), d.V);
    if (o->tokenizer) d.eot = tokenizer_eot(o->tokenizer);
    const size_t samples = (size_t)o->samples, T = (size_t)d.T;
    d.window = malloc(samples * T * sizeof *d.window);
    d.prompts = malloc(samples * T * sizeof *d.prompts);
    d.next = calloc(samples, sizeof *d.next);
    d.ended = calloc(samples, sizeof *d.ended);
    d.logits = malloc(samples * (size_t)d.V * sizeof *d.logits);
    drawn->tokens = malloc(samples * (size_t)o->tokens * sizeof *drawn->tokens);
    drawn->counts = calloc(samples, sizeof *drawn->counts);
    const bool ok =
        d.window && d.prompts && d.next && d.ended && d.logits && drawn->tokens && drawn->counts;
    if (ok)
        run_decoding(&d, prompt, n, first, drawn);
    else
        error_set(err, "%lld samples of %lld tokens: out of memory; fewer --samples or -g",
                  (long long)o->samples, (long long)o->tokens);
    free(d.window);
    free(d.prompts);
    free(d.next);
    free(d.ended);
    free(d.logits);
    return ok;
}

// Valid after a failure too.
static void drawn_free(Drawn *drawn) {
    free(drawn->tokens);
    free(drawn->counts);
    memset(drawn, 0, sizeof *drawn);
}

// ------------------------------------------------------------------------------------------- texts

// The tokens at the beginning of a text, malloced.
static bool encode_beginning(const GenerateOptions *o, int64_t V, int32_t **tokens, int64_t *n,
                             Error *err) {
    const char *prompt = o->prompt ? o->prompt : "";
    const int32_t begin = text_begin(o->tokenizer, V);
    if (!o->tokenizer && *prompt)
        return error_set(
            err, "--prompt: there is no tokenizer to read it with; name one with --tokenizer");
    *tokens = malloc(sizeof **tokens);
    REQUIRE_MEMORY(*tokens, "a prompt");
    *n = 0;
    if (begin >= 0)
        (*tokens)[(*n)++] = begin;
    else if (!*prompt)
        prompt = "\n";
    return !*prompt ||
           encode_prompt(o->tokenizer, prompt, (int64_t)strlen(prompt), V, tokens, n, err);
}

// The prompt and the text of n tokens, malloced.
static char *text_of(const GenerateOptions *o, const int32_t *tokens, int64_t n, int64_t *bytes) {
    const char *prompt = o->prompt ? o->prompt : "";
    size_t total = strlen(prompt);
    char number[TOKEN_NUMBER];
    int64_t length;
    for (int64_t i = 0; i < n; i++) {
        token_text(o->tokenizer, tokens[i], number, &length);
        total += (size_t)length;
    }

    char *text = malloc(total + 1);
    REQUIRE_MEMORY(text, "a text");
    char *end = stpcpy(text, prompt);
    for (int64_t i = 0; i < n; i++) {
        const char *piece = token_text(o->tokenizer, tokens[i], number, &length);
        memcpy(end, piece, (size_t)length);
        end += length;
    }
    *end = '\0';
    *bytes = (int64_t)total;
    return text;
}

bool generate(Model *model, const GenerateOptions *options, Generated *result, Error *err) {
    int32_t *prompt = NULL;
    int64_t n = 0;
    Drawn drawn = {0};
    memset(result, 0, sizeof *result);
    const bool ok = encode_beginning(options, model_options(model)->config.V, &prompt, &n, err) &&
                    decode_tokens(model, options, prompt, n, 0, &drawn, err);

    if (ok) {
        *result = drawn.facts;
        result->samples = options->samples;
        result->texts = calloc((size_t)options->samples, sizeof *result->texts);
        result->bytes = calloc((size_t)options->samples, sizeof *result->bytes);
        REQUIRE_MEMORY(result->texts && result->bytes, "the texts of samples");
        for (int64_t s = 0; s < options->samples; s++) {
            const int32_t *tokens = drawn.tokens + s * options->tokens;
            result->texts[s] = text_of(options, tokens, drawn.counts[s], &result->bytes[s]);
            result->new_tokens += drawn.counts[s];
        }
    }

    drawn_free(&drawn);
    free(prompt);
    return ok;
}

void generated_free(Generated *result) {
    for (int64_t s = 0; result->texts && s < result->samples; s++) free(result->texts[s]);
    free(result->texts);
    free(result->bytes);
    memset(result, 0, sizeof *result);
}

// ------------------------------------------------------------------------------------ conversation

// A GenerateSink. The output of a model must not move the cursor of a terminal. In a pipe its
// control characters are its own, but a byte that is part of no character (-g may end inside one)
// is shown as \xE8, so that the reader gets UTF-8.
static bool write_to_stdout(void *is_terminal, const char *bytes, int64_t n) {
    if (*(bool *)is_terminal) {
        format_visible(stdout, bytes, (size_t)n, NULL);
        n = 0;
    }
    for (int length; n > 0; n -= length) {
        length = utf8_length(bytes, (size_t)n);
        if (length > 0)
            fwrite(bytes, 1, (size_t)length, stdout);
        else
            length = printf("\\x%02X", (unsigned char)*bytes) > 0; // it is one byte
        bytes += length;
    }
    return fflush(stdout) == 0 && !ferror(stdout);
}

// Reads the next line into *line, which is grown, without its newline; *n = -1: the input has
// ended, or a signal came. It reads byte by byte after poll, because a signal ends the wait of
// poll. read would be restarted (error.h), and Ctrl-C would have no effect until more input
// arrives.
static bool read_input_line(char **line, int64_t *n, Error *err) {
    enum { POLL_MILLISECONDS = 100 }; // a signal received by another thread does not end our poll
    struct pollfd input = {.fd = STDIN_FILENO, .events = POLLIN};
    for (*n = 0; !signals_pending();) {
        char byte = '\n';
        if (poll(&input, 1, POLL_MILLISECONDS) <= 0) continue;
        const ssize_t got = read(STDIN_FILENO, &byte, 1);
        if (got < 0 && (errno == EINTR || errno == EAGAIN)) continue;
        if (got < 0 && errno != EIO)
            return error_set(err, "stdin: cannot be read: %s", strerror(errno));
        if (got <= 0 && *n == 0) break; // EIO: the terminal was closed

        if ((*n & (*n - 1)) == 0) { // full at every power of two
            *line = realloc(*line, 2 * (size_t)*n + 2);
            REQUIRE_MEMORY(*line, "a line of stdin");
        }
        if (byte == '\n') {
            *n -= *n > 0 && (*line)[*n - 1] == '\r';
            (*line)[*n] = '\0';
            return true;
        }
        (*line)[(*n)++] = byte;
    }
    *n = -1;
    return true;
}

// Appends a line to the *n tokens of the conversation, and continues it; line and answer become
// part of the conversation.
static bool answer_line(Model *model, const GenerateOptions *o, const char *line, int64_t bytes,
                        int32_t **said, int64_t *n, int64_t *drawn, Error *err) {
    const int64_t T = model_options(model)->T, V = model_options(model)->config.V,
                  most = max_i64(T - 1, 1);
    const int32_t begin = text_begin(o->tokenizer, V);
    if (!encode_prompt(o->tokenizer, "\n", *n > 0, V, said, n, err)) return false;
    if (*n == 0 && begin >= 0) (*said)[(*n)++] = begin;
    const int64_t before = *n;

    if (generate_prompt_ends_in_space(o->tokenizer, line))
        fputs(
            "the line ends in a space, which is part of the next word's token; better without it\n",
            stderr);
    if (!encode_prompt(o->tokenizer, line, bytes, V, said, n, err)) return false;
    if (*n - before > most)
        fprintf(stderr, "the line has %lld tokens, the context %lld; only the last %lld are used\n",
                (long long)(*n - before), (long long)T, (long long)most);
    if (*n > most) { // the oldest tokens are dropped
        memmove(*said, *said + *n - most, (size_t)most * sizeof **said);
        *n = most;
    }

    int32_t *grown = realloc(*said, (size_t)(*n + o->tokens + 1) * sizeof *grown);
    REQUIRE_MEMORY(grown, "a conversation of %lld tokens", (long long)*n);
    *said = grown;
    Drawn new;
    const bool ok = decode_tokens(model, o, grown, *n, *drawn, &new, err);
    const int64_t count = new.counts ? new.counts[0] : 0;
    if (count > 0) memcpy(grown + *n, new.tokens, (size_t)count * sizeof *grown);
    *n += count;
    *drawn += count;

    if (ok) putchar('\n');
    if (ok && *(bool *)o->context) {
        printf("[%lld tokens after %lld", (long long)count, (long long)new.facts.prompt_tokens);
        if (count > 1 && new.facts.decode_seconds > 0)
            printf(", %.1f tokens/s", (double)(count - 1) / new.facts.decode_seconds);
        puts("]");
    }

    drawn_free(&new);
    if (!ok) return false;
    if (fflush(stdout) != 0 || ferror(stdout))
        return error_set(err, "stdout: cannot be written: %s", strerror(errno));
    return true;
}

bool generate_interactive(Model *model, const GenerateOptions *options, Error *err) {
    if (!options->tokenizer)
        return error_set(
            err,
            "--interactive: there is no tokenizer to read lines with; name one with --tokenizer");

    bool terminal = isatty(STDIN_FILENO) && isatty(STDOUT_FILENO);
    GenerateOptions own = *options;
    own.samples = 1;
    own.sink = write_to_stdout;
    own.context = &terminal;
    char *line = strdup(own.prompt ? own.prompt : ""); // the first line
    int32_t *said = malloc(sizeof *said);
    REQUIRE_MEMORY(line && said, "a conversation");

    bool ok = true;
    int64_t length = (int64_t)strlen(line), n = 0, drawn = 0;
    if (terminal)
        puts("The model continues each line. /new clears the conversation, /quit or Ctrl-D exits.");
    if (terminal && length > 0) printf("> %s\n", line);

    while (ok && length >= 0 && strcmp(line, "/quit") != 0) {
        const bool is_command =
            line[0] == '/' && line[1 + strspn(line + 1, "abcdefghijklmnopqrstuvwxyz")] == '\0';
        if (strcmp(line, "/new") == 0)
            n = 0;
        else if (is_command && length > 1)
            fprintf(stderr, "%s: not a command; there are /new and /quit\n", line);
        else if (length > 0)
            ok = answer_line(model, &own, line, length, &said, &n, &drawn, err);
        if (!ok || signals_pending()) break;
        if (terminal) fputs("> ", stdout);
        if (terminal) fflush(stdout);
        ok = read_input_line(&line, &length, err);
    }

    if (terminal && length < 0) putchar('\n'); // the shell's prompt belongs on a line of its own
    free(line);
    free(said);
    return ok;
}
