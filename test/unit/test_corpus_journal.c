// The journal of data/prepare: comes back as it was saved, is refused for another request, and never believed when it
// does not hold together.

#include "llmc/text/corpus_internal.h"
#include "test/unit/mutate.h"

static Tokenizer *tokenizer;

static int set_up(void **state) {
    tmp_setup(state);
    return (tokenizer = tokenizer_bytes(NULL)) ? 0 : -1;
}

static int tear_down(void **state) {
    tokenizer_free(tokenizer);
    return tmp_teardown(state);
}
TestFixture test_each = {set_up, tear_down};

static cJSON *make_request(double val_fraction, uint64_t fingerprint) {
    static char *const arguments[] = {"a.txt", "b"};
    const InputOptions inputs = {.arguments = arguments, .count = 2};
    const InputSummary summaries[] = {{.files = 1, .bytes = 700, .fingerprint = fingerprint}, {.files = 5, .bytes = 9}};
    const CorpusRequest request = {.inputs = &inputs,
                                   .summaries = summaries,
                                   .tokenizer = tokenizer,
                                   .field = "text",
                                   .val_fraction = val_fraction,
                                   .shard_tokens = 1000};
    return corpus_request_json(&request);
}

static const char *save(const cJSON *request) {
    static CorpusShard shards[] = {{.tokens = 1000, .bytes = 3024, .xxh3 = 0xfedcba9876543210u}, {1000, 3024, 7}};
    CorpusJournal j = {
        .phase = PHASE_ENCODE,
        .cut_all = true,
        .position = {.file = 3, .offset = 5000000000, .line = 17, .size = 6000000000, .cut = 4, .bytes_read = 9},
        .counts = {.documents = 12, .side = {{8, 2000, 2500}, {4, 3, 30}}, .binary = 1, .empty = 2},
        .shards = {{shards, 2, 500}, {NULL, 0, 30}}};
    bad_report_add(&j.counts.bad, BAD_UTF8, "a.jsonl: line 3: \"quoted\"");
    bad_report_add(&j.counts.bad, BAD_JSON, "a.jsonl: line 4");
    bad_report_add(&j.counts.bad, BAD_UTF8, "a.jsonl: line 5");
    Error err;
    const char *path = tmp_file("journal.json");
    if (!corpus_journal_save(path, request, &j, &err)) fail_msg("%s", err.text);
    bad_report_clear(&j.counts.bad);
    return path;
}

TEST(a_journal_comes_back_as_it_was_saved) {
    cJSON *request = make_request(0.1, 5);
    const char *path = save(request);
    CorpusJournal j;
    Error why;
    if (!corpus_journal_load(path, request, &j, &why)) fail_msg("%s", why.text);
    assert_int_equal(j.phase, PHASE_ENCODE);
    assert_true(j.cut_all);
    assert_true(j.position.offset == 5000000000 && j.position.size == 6000000000 && j.position.line == 17);
    assert_int_equal(j.counts.side[CORPUS_TRAIN].tokens, 2500);
    assert_int_equal(j.counts.side[CORPUS_VAL].documents, 4);
    assert_int_equal(j.shards[CORPUS_TRAIN].num_shards, 2);
    assert_true(j.shards[CORPUS_TRAIN].shards[0].xxh3 == 0xfedcba9876543210u);
    assert_int_equal(j.shards[CORPUS_TRAIN].open_tokens, 500);
    assert_int_equal(j.counts.bad.count[BAD_UTF8], 2);
    assert_string_equal(j.counts.bad.first[BAD_UTF8], "a.jsonl: line 3: \"quoted\"");
    assert_int_equal(j.counts.bad.earliest, BAD_UTF8);
    corpus_journal_clear(&j);
    cJSON_Delete(request);
}

static void assert_another(cJSON *then, cJSON *now, const char *words) {
    CorpusJournal j;
    Error why;
    assert_false(corpus_journal_load(save(then), now, &j, &why));
    if (!strstr(why.text, words)) fail_msg("\"%s\" instead of \"%s\"", why.text, words);
    cJSON_Delete(then), cJSON_Delete(now);
}

TEST(what_differs_from_the_request_is_named) {
    assert_another(make_request(0.1, 5), make_request(0.2, 5), "the options are others");
    assert_another(make_request(0.1, 5), make_request(0.1, 6), "a.txt has changed");
    cJSON *other = make_request(0.1, 5);
    cJSON_DeleteItemFromArray(cJSON_GetObjectItem(other, "inputs"), 1);
    assert_another(other, make_request(0.1, 5), "the inputs are others");
    other = make_request(0.1, 5);
    cJSON_DeleteItemFromArray(cJSON_GetObjectItem(other, "inputs"), 1);
    assert_another(make_request(0.1, 5), other, "the inputs are others");
    other = make_request(0.1, 5);
    cJSON_ReplaceItemInObject(cJSON_GetObjectItem(other, "tokenizer"), "fingerprint", cJSON_CreateString("0"));
    assert_another(other, make_request(0.1, 5), "the tokenizer is another one");
    assert_another(cJSON_CreateArray(), make_request(0.1, 5), "the tokenizer is another one");
}

TEST(a_damaged_journal_is_refused_or_holds_together) {
    cJSON *request = make_request(0.1, 5);
    size_t n;
    const char *path = save(request);
    unsigned char *whole = read_bytes(path, &n), *damaged = malloc(n + 3 * MUTATE_MAX_GROWTH);
    int refused = 0;
    for (uint64_t round = 0; round < 3000; round++) {
        memcpy(damaged, whole, n);
        write_bytes(path, damaged, mutate(damaged, n, n, round));
        CorpusJournal j;
        Error why = {""};
        if (!corpus_journal_load(path, request, &j, &why)) {
            assert_true(why.text[0] != '\0');
            refused++;
            continue;
        }
        for (int side = 0; side < CORPUS_SIDES; side++) {
            int64_t tokens = j.shards[side].open_tokens;
            for (int64_t i = 0; i < j.shards[side].num_shards; i++) tokens += j.shards[side].shards[i].tokens;
            assert_true(tokens == j.counts.side[side].tokens);
        }
        corpus_journal_clear(&j);
    }
    assert_true(refused > 1000);
    free(whole), free(damaged);
    cJSON_Delete(request);
}
