// Validation: the mean over the right windows, the same for every micro-batch, and the bytes of
// what was scored.
#include "llmc/base/random.h"
#include "llmc/base/signals.h"
#include "llmc/train/validation.h"
#include "test/fixture.h"
#include "test/unit/tiny_model.h"

#include <math.h>

enum { T = 24, WINDOWS = 21, TOKENS = WINDOWS * T + 1 };

static Error err;
static Tokenizer *bytes;
static uint32_t tokens[TOKENS]; // bytes, and end-of-text now and then
static ShardSet set;            // of these

static ShardSet shard_of(int token_bytes) {
    const char *path = tmp_file(token_bytes == 2 ? "narrow.bin" : "wide.bin");
    uint16_t narrow[TOKENS];
    for (int i = 0; i < TOKENS; i++) narrow[i] = (uint16_t)tokens[i];
    ShardWriter *w = shard_writer_open(path, token_bytes, BYTE_VOCAB, BYTE_EOT, &err);
    assert_true(w && shard_writer_append(w, token_bytes == 2 ? (void *)narrow : (void *)tokens,
                                         TOKENS, &err));
    assert_true(shard_writer_commit(w, &err));
    ShardSet shard;
    assert_ok(shards_open(&shard, path, T, &err));
    return shard;
}

static int setup(void **state) {
    (void)state;
    if (!device_init(&(DeviceOptions){.threads = 1}, &err)) return -1;
    tmp = tmpdir_make();
    bytes = tokenizer_bytes(&err);
    for (uint64_t i = 0; i < TOKENS; i++) {
        const uint32_t random = philox(7, 1, i).v[0];
        tokens[i] = random % 10 == 0 ? BYTE_EOT : random / 10 % 256;
    }
    set = shard_of(2);
    return bytes ? 0 : -1;
}

static int teardown(void **state) {
    (void)state;
    shards_close(&set);
    tokenizer_free(bytes);
    tmpdir_remove(&tmp);
    device_shutdown();
    return 0;
}
TestFixture test_each = {.teardown = models_destroy}, test_all = {setup, teardown};

// Window by window, token by token.
static void expected_score(Model *model, int64_t windows, double *sum, int64_t *text_bytes) {
    uint16_t *window = host_alloc((T + 1) * sizeof *window, &err);
    float *losses = host_alloc(T * sizeof *losses, &err);
    *sum = 0.0, *text_bytes = 0;

    for (int64_t i = 0; i < windows; i++) {
        const int64_t first = i * WINDOWS / windows * T;
        for (int64_t t = 0; t <= T; t++) window[t] = (uint16_t)tokens[first + t];
        model_load_batch(model, window, 1, T, 2);
        model_forward(model);
        copy_d2h(losses, model_token_losses(model).data, T * sizeof *losses, STREAM_COMPUTE);
        device_sync();

        for (int64_t t = 0; t < T; t++) {
            *sum += losses[t];
            *text_bytes += tokens[first + t + 1] != BYTE_EOT;
        }
    }

    host_free(window);
    host_free(losses);
}

// Sums of T floats of up to 10 nats in fp32, in another order: each addition rounds by at most
// 2^-24 of a sum below 10 T, so a window by 10 T^2 2^-24, and its mean by 10 T 2^-24 = 1.4e-5.
static const double ROUNDING = 10.0 * T * 0x1p-24;

TEST(the_loss_is_the_mean_over_evenly_spread_windows) {
    Model *model = tiny_random(BYTE_VOCAB, 1, T, 0);
    const int64_t asked[] = {0, 1, 4, 20, WINDOWS, 1000};

    for (int i = 0; i < 6; i++) {
        const int64_t windows = asked[i] > 0 && asked[i] < WINDOWS ? asked[i] : WINDOWS;
        double sum;
        int64_t text_bytes;
        ValidationScore score;

        expected_score(model, windows, &sum, &text_bytes);
        assert_true(evaluate_loss(model, &set, asked[i], bytes, &score, &err));
        assert_int_equal(score.tokens, windows * T);
        assert_int_equal(score.bytes, text_bytes);
        assert_true(text_bytes < windows * T); // end-of-text is among them
        assert_true(fabs(score.loss - sum / (double)(windows * T)) < ROUNDING);

        const double bits = score.loss * (double)score.tokens / log(2.0) / (double)text_bytes;
        assert_true(fabs(score.bits_per_byte / bits - 1.0) < 1e-12);

        ValidationScore without; // a tokenizer: bits per byte are not known
        assert_true(evaluate_loss(model, &set, asked[i], NULL, &without, &err));
        assert_true(without.loss == score.loss && without.bits_per_byte == 0.0 &&
                    without.bytes == 0);
    }
}

TEST(the_score_does_not_depend_on_the_micro_batch_or_the_width_of_the_file) {
    ValidationScore first = {0}, score;
    for (int64_t B = 1; B <= 5; B++)
        for (int width = 2; width <= 4; width += 2) {
            Model *model = tiny_random(BYTE_VOCAB, B, T, 0);
            ShardSet shard = shard_of(width);
            assert_true(evaluate_loss(model, &shard, 0, bytes, &score, &err));
            if (B == 1 && width == 2) first = score;
            assert_true(fabs(score.loss - first.loss) < ROUNDING);
            assert_int_equal(score.bytes, first.bytes);
            shards_close(&shard);
        }
}

// Uniform predictions cost ln V a token whatever they are, so the text log2(V) * tokens / bytes a
// byte.
TEST(a_model_that_knows_nothing_needs_log2_of_the_vocabulary_for_every_token) {
    Model *model = tiny_create(BYTE_VOCAB, 2, T, 0); // weights of zero: equal logits
    ValidationScore score;
    assert_true(evaluate_loss(model, &set, 0, bytes, &score, &err));
    assert_true(fabs(score.loss - log(BYTE_VOCAB)) < ROUNDING);
    const double bits = log2(BYTE_VOCAB) * (double)score.tokens / (double)score.bytes;
    assert_true(fabs(score.bits_per_byte - bits) < 2 * ROUNDING);
}

TEST(the_score_of_a_mixture_is_the_mean_by_share_of_those_of_its_sources) {
    Model *model = tiny_random(BYTE_VOCAB, 2, T, 0);
    ValidationScore one, other, each[MIXTURE_MAX], total;
    AUTO_FREE char *text = NULL;

    // other text, few windows
    ShardWriter *w = shard_writer_open(tmp_file("half.bin"), 2, BYTE_VOCAB, BYTE_EOT, &err);
    for (int i = 0; i <= 5 * T; i++)
        assert_true(shard_writer_append(w, &(uint16_t){(uint16_t)(i % 9 * 28)}, 1, &err));
    assert_true(shard_writer_commit(w, &err));
    assert_true(asprintf(&text, "%s/narrow.bin:3,%s/half.bin:1", tmp.path, tmp.path) > 0);

    Sources sources;
    assert_ok(sources_open(&sources, text, T, &err));

    for (int64_t windows = 0; windows <= 7; windows += 7) {
        assert_true(evaluate_sources(model, &sources, windows, bytes, each, &total, &err));
        assert_true(evaluate_loss(model, &sources.sets[0], windows, bytes, &one, &err));
        assert_true(evaluate_loss(model, &sources.sets[1], windows, bytes, &other, &err));
        assert_true(each[0].loss == one.loss && each[1].loss == other.loss &&
                    one.loss != other.loss);
        assert_int_equal(total.tokens, one.tokens + other.tokens);
        assert_int_equal(total.bytes, one.bytes + other.bytes);

        const double loss = 0.75 * one.loss + 0.25 * other.loss;
        assert_true(fabs(total.loss / loss - 1.0) < 1e-14);
        const double per_token = 0.75 * (double)one.bytes / (double)one.tokens +
                                 0.25 * (double)other.bytes / (double)other.tokens;
        assert_true(fabs(total.bits_per_byte * per_token * log(2.0) / loss - 1.0) < 1e-14);
    }

    sources_close(&sources);
    assert_ok(sources_open(&sources, tmp_file("narrow.bin"), T, &err));
    assert_true(evaluate_sources(model, &sources, 0, bytes, each, &total, &err));
    assert_true(evaluate_loss(model, &set, 0, bytes, &one, &err));
    assert_memory_equal(&total, &one, sizeof one);
    sources_close(&sources);
}

TEST(after_a_signal_there_is_no_score) {
    Model *model = tiny_random(BYTE_VOCAB, 2, T, 0);
    ValidationScore score;
    Capture line = capture_start(stderr); // of the handler
    signals_install();
    raise(SIGTERM);
    const bool ok = evaluate_loss(model, &set, 0, bytes, &score, &err);
    signals_install(); // forgets it
    free(capture_end(&line));
    assert_true(ok && isnan(score.loss));
    assert_int_equal(score.tokens, 0);
}

TEST(a_token_beyond_the_vocabulary_is_refused) {
    Model *model = tiny_random(100, 2, T, 0);
    ValidationScore score;
    assert_error(evaluate_loss(model, &set, 0, bytes, &score, &err), "narrow.bin");
}
