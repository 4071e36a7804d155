// Generation: the decoder's loop against one that computes every token anew, samples side by side,
// end-of-text, texts and prompts longer than the context, streaming. generate_interactive is tested
// as users run it (test/e2e).
#include "llmc/base/signals.h"
#include "llmc/model/model_decode.h"
#include "llmc/train/generate.h"
#include "test/fixture.h"
#define DEVICE_THREADS 1
#include "test/unit/device_fixture.h"
#include "test/unit/tiny_model.h"

enum { T = 32, SEQUENCES = 6, MOST = 400 };

static Tokenizer *bytes;
static Model *model; // random weights
static Error err;

static int setup(void **state) {
    (void)state;
    bytes = tokenizer_bytes(&err);
    model = tiny_random(BYTE_VOCAB, 1, T, SEQUENCES);
    return bytes ? 0 : -1;
}

static int teardown(void **state) {
    tokenizer_free(bytes);
    return models_destroy(state);
}
TestFixture test_each = {setup, teardown}, test_all = {start_device, stop_device};

static GenerateOptions some_options(const char *prompt, int64_t tokens) {
    GenerateOptions o = {.tokenizer = bytes, .prompt = prompt, .samples = 1, .tokens = tokens};
    o.sampler =
        (SamplerOptions){.temperature = 0.9, .top_k = 40, .top_p = 0.95, .seed = 11, .stream = 3};
    return o;
}

static Generated generated_by(Model *some_model, const GenerateOptions *o) {
    Generated g;
    assert_ok(generate(some_model, o, &g, &err));
    return g;
}

static Generated generated(const GenerateOptions *o) { return generated_by(model, o); }

// Makes the text that the header describes, with a forward pass over the whole context for every
// token. A token of bytes is its spelling.
static int64_t expected_text(const GenerateOptions *o, uint64_t sample, char *text) {
    const char *begin = text;
    static float logits[BYTE_VOCAB];
    int32_t window[MOST];
    const int64_t prompt = (int64_t)strlen(o->prompt),
                  cut = prompt + 1 > T - 1 ? prompt + 1 - (T - 1) : 0;

    int64_t n = 0;
    if (cut == 0) window[n++] = BYTE_EOT;
    for (int64_t i = cut > 0 ? cut - 1 : 0; i < prompt; i++)
        window[n++] = (unsigned char)o->prompt[i];

    memcpy(text, o->prompt, (size_t)prompt), text += prompt;

    for (int64_t i = 0; i < o->tokens; i++) {
        model_decode_start(model, window, n, 1, logits);
        const int32_t token =
            sample_from_logits(logits, BYTE_VOCAB, &o->sampler, (sample << 40) + (uint64_t)i);
        size_t length;
        const char *spelling = tokenizer_decode(bytes, token, &length);
        memcpy(text, spelling, length), text += length;
        if (n == T) { // full: its last half goes on, the new token included
            memmove(window, window + T / 2 + 1, (T / 2 - 1) * sizeof *window);
            n = T / 2 - 1;
        }
        window[n++] = token;
    }

    return text - begin;
}

static void assert_texts(const GenerateOptions *o, const Generated *g) {
    char expected[2 * MOST];
    assert_int_equal(g->samples, o->samples);
    for (int64_t s = 0; s < g->samples; s++) {
        assert_int_equal(g->bytes[s], expected_text(o, (uint64_t)s, expected));
        assert_memory_equal(g->texts[s], expected, (size_t)g->bytes[s]);
        assert_int_equal(g->texts[s][g->bytes[s]], '\0');
    }
}

TEST(texts_are_those_of_a_pass_over_everything_for_each_token) {
    static const struct {
        const char *prompt;
        int64_t tokens, samples;
        double temperature;
        int64_t prompt_tokens, slides;
    } cases[] = {
        {"Once upon", 20, 1, 0.9, 10, 0},
        {"", 10, 1, 0.9, 1, 0}, // end-of-text alone
        {"ab", 25, 1, 0.0, 3, 0},
        // The window is full after 13 tokens more, and 17 tokens later each time: 1 + (149 - 14)
        // / 17.
        {"It was a long way ", 150, 2, 0.9, 19, 8},
    };

    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        GenerateOptions o = some_options(cases[i].prompt, cases[i].tokens);
        o.samples = cases[i].samples, o.sampler.temperature = cases[i].temperature;
        AUTO(generated_free) Generated g = generated(&o);
        assert_texts(&o, &g);

        assert_int_equal(g.prompt_tokens, cases[i].prompt_tokens);
        assert_int_equal(g.new_tokens, cases[i].tokens * cases[i].samples);
        assert_int_equal(g.prompt_cut, 0);
        assert_int_equal(g.slides, cases[i].slides);
        assert_true(g.prompt_seconds > 0 && g.decode_seconds > 0);
    }
}

TEST(a_sample_is_the_same_whatever_their_number_is) {
    GenerateOptions all = some_options("side by side ", 30);
    all.samples = SEQUENCES;
    AUTO(generated_free) Generated many = generated(&all);
    assert_texts(&all, &many);

    int different = 0;
    for (int64_t n = 1; n < SEQUENCES; n++) {
        GenerateOptions o = all;
        o.samples = n;
        AUTO(generated_free) Generated g = generated(&o);
        for (int64_t s = 0; s < n; s++)
            assert_memory_equal(g.texts[s], many.texts[s], (size_t)many.bytes[s] + 1);
        different += strcmp(many.texts[n], many.texts[0]) != 0;
    }

    assert_int_equal(different, SEQUENCES - 1);
}

TEST(of_a_prompt_longer_than_the_context_the_last_tokens_count) {
    char prompt[101];
    for (int i = 0; i < 100; i++) prompt[i] = (char)('a' + i % 26);
    for (int length = T - 3; length <= 100; length += length < T + 2 ? 1 : 30) {
        prompt[length] = '\0';
        GenerateOptions o = some_options(prompt, 12);
        AUTO(generated_free) Generated g = generated(&o);
        assert_texts(&o, &g);
        assert_int_equal(g.prompt_tokens, length + 1 < T - 1 ? length + 1 : T - 1);
        assert_int_equal(g.prompt_cut, length + 1 - g.prompt_tokens);
        prompt[length] = (char)('a' + length % 26);
    }
}

TEST(contexts_of_one_and_two_tokens_work) {
    for (int64_t tiny_T = 1; tiny_T <= 3; tiny_T++) {
        Model *tiny = tiny_random(BYTE_VOCAB, 1, tiny_T, 2);
        GenerateOptions o = some_options("abc", 9);
        o.samples = 2;
        AUTO(generated_free) Generated g = generated_by(tiny, &o);
        assert_int_equal(g.new_tokens, 18);
        assert_int_equal(g.prompt_tokens, tiny_T > 1 ? tiny_T - 1 : 1);
    }
}

// Among equally likely tokens end-of-text comes once in 257 draws; this seed has samples that end
// and one that does not.
TEST(a_sample_ends_at_end_of_text_where_asked_and_the_others_go_on) {
    enum { TOKENS = 150 };
    GenerateOptions o = some_options("x", TOKENS);
    o.samples = SEQUENCES, o.sampler = (SamplerOptions){.temperature = 1e6, .seed = 5};

    AUTO(generated_free) Generated whole = generated(&o);
    o.stop_at_eot = true;
    AUTO(generated_free) Generated g = generated(&o);

    int ended = 0;
    int64_t tokens = 0;
    for (int64_t s = 0; s < SEQUENCES; s++) {
        const char *end = memmem(whole.texts[s], (size_t)whole.bytes[s], "<|endoftext|>", 13);
        const int64_t expected = end ? end - whole.texts[s] : TOKENS + 1;
        assert_int_equal(g.bytes[s], expected);
        assert_memory_equal(g.texts[s], whole.texts[s], (size_t)expected);
        ended += end != NULL;
        tokens += g.bytes[s] - 1;
    }

    assert_true(ended > 0 && ended < SEQUENCES);
    assert_int_equal(g.new_tokens, tokens);
    assert_int_equal(whole.new_tokens, SEQUENCES * TOKENS);
}

TEST(generation_ends_when_every_sample_has_ended) {
    const int32_t script[] = {'o', 'k', BYTE_EOT};
    Model *scripted = tiny_scripted(BYTE_VOCAB, T, script, 3);
    GenerateOptions o = some_options("", 1000000);
    o.stop_at_eot = true;
    AUTO(generated_free) Generated g = generated_by(scripted, &o);
    assert_string_equal(g.texts[0], "ok");
    assert_int_equal(g.new_tokens, 2);
}

TEST(a_sample_ends_at_the_eos_token_of_the_model_too) {
    const int32_t script[] = {'o', 'k', '!', BYTE_EOT};
    Model *scripted = tiny_scripted(BYTE_VOCAB, T, script, 4);
    GenerateOptions o = some_options("", 1000000);
    o.stop_at_eot = true;
    o.ends = (int32_t[]){'?', '!'};
    o.num_ends = 2;
    AUTO(generated_free) Generated g = generated_by(scripted, &o);
    assert_string_equal(g.texts[0], "ok");
}

// --------------------------------------------------------------------------------------- streaming

typedef struct {
    char text[MOST], pieces[MOST]; // pieces: a '|' behind each call
    size_t n, m;
    int calls, calls_allowed;
} Seen;

static bool see(void *context, const char *piece, int64_t n) {
    Seen *seen = context;
    assert_in_range(n, 1, MOST - (int64_t)seen->n - 1);
    memcpy(seen->text + seen->n, piece, (size_t)n), seen->n += (size_t)n;
    memcpy(seen->pieces + seen->m, piece, (size_t)n), seen->m += (size_t)n;
    seen->pieces[seen->m++] = '|';
    return ++seen->calls != seen->calls_allowed;
}

TEST(the_sink_gets_the_text_behind_the_prompt) {
    Seen seen = {.calls = 0};
    GenerateOptions o = some_options("The prompt", 120);
    o.samples = 3, o.sink = see, o.context = &seen;
    AUTO(generated_free) Generated g = generated(&o);
    assert_int_equal(seen.n, g.bytes[0] - 10);
    assert_memory_equal(seen.text, g.texts[0] + 10, seen.n);
}

// Every token is a byte here, so every character of more than one is split over tokens.
TEST(the_sink_gets_whole_characters) {
    static const char text[] = "a\xC3\xA9\xE6\xBC\xA2\xF0\x9F\x92\xA9z\xE2\x82(\xFF.\xF0\x9F\x98";

    int32_t script[T];
    const int64_t n = (int64_t)strlen(text);
    for (int64_t i = 0; i < n; i++) script[i] = (unsigned char)text[i];

    Model *scripted = tiny_scripted(BYTE_VOCAB, T, script, n);
    Seen seen = {.calls = 0};
    GenerateOptions o = some_options("", n);
    o.sink = see, o.context = &seen;

    AUTO(generated_free) Generated g = generated_by(scripted, &o);
    assert_string_equal(g.texts[0], text);

    seen.pieces[seen.m] = '\0';
    assert_string_equal(
        seen.pieces, "a|\xC3\xA9|\xE6\xBC\xA2|\xF0\x9F\x92\xA9|z|\xE2\x82(|\xFF|.|\xF0\x9F\x98|");
}

TEST(a_sink_that_refuses_ends_the_text) {
    Seen seen = {.calls_allowed = 7};
    const int32_t script[] = {'0', '1', '2', '3', '4', '5', '6', '7', '8', '9'};
    Model *scripted = tiny_scripted(BYTE_VOCAB, T, script, 10);
    GenerateOptions o = some_options("", 10);
    o.sink = see, o.context = &seen;
    AUTO(generated_free) Generated g = generated_by(scripted, &o);
    assert_string_equal(g.texts[0], "0123456");
    assert_int_equal(seen.calls, 7);
}

TEST(a_signal_ends_the_text_at_the_token_it_has_reached) {
    Capture line = capture_start(stderr); // of the handler
    signals_install();
    raise(SIGTERM);
    GenerateOptions o = some_options("ab", 100);
    AUTO(generated_free) Generated g = generated(&o);
    signals_install(); // forgets it
    free(capture_end(&line));
    assert_int_equal(g.new_tokens, 1);
    assert_int_equal(signals_pending(), 0);
}

// ----------------------------------------------------------------------------------- special cases

TEST(without_a_tokenizer_texts_are_token_numbers) {
    const int32_t script[] = {7, 0, 256, 99};
    Model *scripted = tiny_scripted(BYTE_VOCAB, T, script, 4);
    Seen seen = {.calls = 0};
    GenerateOptions o = some_options("", 4);
    o.tokenizer = NULL, o.sink = see, o.context = &seen;
    AUTO(generated_free) Generated g = generated_by(scripted, &o);
    assert_string_equal(g.texts[0], "7 0 256 99 ");
    assert_memory_equal(seen.text, g.texts[0], 11);
}

TEST(tokens_that_the_tokenizer_does_not_have_are_never_drawn) {
    Model *larger = tiny_random(2 * BYTE_VOCAB, 1, T, 1);
    GenerateOptions o = some_options("x", 300);
    o.sampler = (SamplerOptions){.temperature = 1e6, .seed = 2};
    AUTO(generated_free) Generated g = generated_by(larger, &o);
    int64_t expected = 1;
    for (int64_t i = 1; i < g.bytes[0];
         i++) { // 13 bytes for end-of-text, 1 for every other token, 0 for unknown ones
        if (g.bytes[0] - i >= 13 && memcmp(g.texts[0] + i, "<|endoftext|>", 13) == 0) i += 12;
        expected++;
    }
    assert_int_equal(expected, 301);
}

TEST(a_prompt_with_tokens_beyond_the_vocabulary_is_refused) {
    Model *smaller = tiny_random(100, 1, T, 1);
    GenerateOptions o = some_options("az", 5);
    Generated g;
    assert_error(generate(smaller, &o, &g, &err), "token 122");
    assert_message("vocabulary ends at 99");
    assert_null(g.texts);
}

TEST(more_samples_than_were_planned_are_refused) {
    GenerateOptions o = some_options("", 5);
    Generated g;
    o.samples = SEQUENCES + 1;
    assert_error(generate(model, &o, &g, &err), "--samples 7");
    assert_null(g.texts);
}
