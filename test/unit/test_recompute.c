// -r: what it is made of, its text and back, what it costs; and that no text, however wrong, does
// harm.
#include "llmc/base/random.h"
#include "llmc/model/recompute.h"
#include "test/fixture.h"
#include <math.h>

static Error err;

enum { L = 12 };

static Recompute parsed(const char *text, int64_t blocks) {
    Recompute r;
    if (!recompute_parse(&r, text, blocks, &err)) fail_msg("%s: %s", text, err.text);
    return r;
}

static void assert_blocks(const char *text, const int expected[L]) {
    const Recompute r = parsed(text, L);
    for (int l = 0; l < L; l++)
        if (r.blocks[l] != expected[l]) fail_msg("%s: block %d has %d", text, l, r.blocks[l]);
}

// ----------------------------------------------------------------------------------------- reading

TEST(one_set_goes_for_all_blocks) {
    const struct {
        const char *text;
        int set;
    } cases[] = {{"0", 0},
                 {"1", 1},
                 {"2", 3},
                 {"3", 63},
                 {"block", 63},
                 {"gelu", 1},
                 {"layernorm", 2},
                 {"qkv", 8},
                 {"attention", 16},
                 {"attproj", 32},
                 {"gelu+qkv", 9},
                 {"attention+gelu+layernorm", 19},
                 {"gelu+layernorm+fc+qkv+attention+attproj", 63},
                 {"gelu+fc", 5},
                 {"fc", 5}}; // gelu comes with it

    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        const Recompute r = parsed(cases[i].text, L);
        for (int l = 0; l < L; l++) assert_int_equal(r.blocks[l], cases[i].set);
    }
}

TEST(every_nth_block_begins_with_the_first) {
    assert_blocks("3/2", (const int[L]){63, 0, 63, 0, 63, 0, 63, 0, 63, 0, 63, 0});
    assert_blocks("qkv+fc/5", (const int[L]){13, 0, 0, 0, 0, 13, 0, 0, 0, 0, 13, 0});
    assert_blocks("1/12", (const int[L]){1});
    assert_blocks("2/1", (const int[L]){3, 3, 3, 3, 3, 3, 3, 3, 3, 3, 3, 3});
}

TEST(a_count_of_blocks_is_followed_by_the_set_of_the_others) {
    assert_blocks("3x4,0", (const int[L]){63, 63, 63, 63});
    assert_blocks("gelux2,attention+qkv",
                  (const int[L]){1, 1, 24, 24, 24, 24, 24, 24, 24, 24, 24, 24});
    assert_blocks("1x11,fc", (const int[L]){1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 5});
}

// ----------------------------------------------------------------------------------------- writing

TEST(the_text_is_the_shortest_one) {
    const struct {
        const char *text, *shortest;
        int64_t blocks;
    } cases[] = {{"0", "0", L},
                 {"gelu", "1", L},
                 {"layernorm+gelu", "2", L},
                 {"block", "3", L},
                 {"gelu+fc", "fc", L},
                 {"qkv+gelu", "gelu+qkv", L},
                 {"attention+fc+layernorm+qkv", "layernorm+fc+qkv+attention", L},
                 {"3x1,0", "3/12", L},
                 {"3/1", "3", L},
                 {"3x2,0", "3x2,0", 3},
                 {"0x4,block", "0x4,3", L},
                 {"3x4,3", "3", L}};

    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        char buf[RECOMPUTE_TEXT];
        const Recompute r = parsed(cases[i].text, cases[i].blocks);
        assert_string_equal(recompute_text(&r, cases[i].blocks, buf, sizeof buf),
                            cases[i].shortest);
    }
}

TEST(a_set_without_what_it_implies_reads_as_with_it) {
    char buf[RECOMPUTE_TEXT];
    Recompute r = recompute_all(0);
    assert_int_equal(recompute_all(RECOMPUTE_FC).blocks[0], RECOMPUTE_FC | RECOMPUTE_GELU);
    r.blocks[0] = RECOMPUTE_FC, r.blocks[1] = RECOMPUTE_FC | RECOMPUTE_GELU;
    assert_string_equal(recompute_text(&r, 3, buf, sizeof buf), "fcx2,0");
    r.blocks[3] = RECOMPUTE_QKV;
    assert_string_equal(recompute_text(&r, 4, buf, sizeof buf), "mixed");
    assert_error(recompute_parse(&r, "mixed", L, &err), "is not understood");
}

TEST(every_pattern_survives_its_text) {
    char buf[RECOMPUTE_TEXT];
    for (uint64_t round = 0; round < 3000; round++) {
        const Philox draw = philox(round, 1, 0);
        const int64_t blocks = round % 50 == 0 ? MAX_BLOCKS : 1 + draw.v[0] % 40;
        const Philox sets = philox(round, 2, 0);
        const int64_t first = 1 + draw.v[2] % blocks; // or a period

        Recompute r = recompute_all((int)(sets.v[0] % 64));
        for (int64_t l = 1; l < blocks; l++) {
            const int set = (int)(sets.v[draw.v[1] % 3] % 64),
                      kept = draw.v[3] % 2 ? l < first : l % first == 0;
            if (!kept) r.blocks[l] = recompute_all(draw.v[3] % 2 ? set : 0).blocks[0];
        }

        const Recompute again = parsed(recompute_text(&r, blocks, buf, sizeof buf), blocks);
        assert_memory_equal(r.blocks, again.blocks, (size_t)blocks);
    }
}

TEST(a_text_that_does_not_fit_ends_in_dots) {
    Recompute r = parsed("gelu+qkvx4,layernorm+attention", L), other;
    const char *whole = "gelu+qkvx4,layernorm+attention";
    for (size_t size = 4; size <= strlen(whole) + 1; size++) {
        char *buf = malloc(size); // where a sanitizer sees a byte too many
        recompute_text(&r, L, buf, size);

        const size_t length = strlen(buf);
        assert_true(length < size);
        assert_true((strcmp(buf, whole) == 0) == (size == strlen(whole) + 1));

        if (size <= strlen(whole)) {
            assert_string_equal(buf + length - 3, "...");
            assert_false(recompute_parse(&other, buf, L, &err));
        }
        free(buf);
    }
}

// ------------------------------------------------------------------------------------------- costs

// The forward pass of a block, op by op, as doc/memory.md has it: what each costs, and the sets in
// which it runs again.
TEST(flops_and_elements_are_those_of_the_ops_that_run_again) {
    const ModelConfig c = {.L = L, .C = 96, .NH = 3, .V = 100, .Vp = 128, .max_T = 64};
    enum { CONTEXT = 50 };

    for (int set = 0; set < 64; set++) {
        const int kinds[2] = {set, 63 - set};
        Recompute r = recompute_all(0);
        double flops = 0.0, elements = 0.0;

        for (int l = 0; l < L; l++) {
            const int s = kinds[l % 3 == 1];
            r.blocks[l] = (uint8_t)s;
            if (s & RECOMPUTE_QKV) flops += 2.0 * 96 * 288;    // (1,C) x (C,3C)
            if (s & RECOMPUTE_FC) flops += 2.0 * 96 * 384;     // (1,C) x (C,4C)
            if (s & RECOMPUTE_ATTPROJ) flops += 2.0 * 96 * 96; // (1,C) x (C,C)
            // QK^T and PV over half of the context
            if (s & RECOMPUTE_ATTENTION) flops += 4.0 * 96 * (CONTEXT + 1) / 2;
            if (s & RECOMPUTE_GELU && !(s & RECOMPUTE_FC)) elements += 2 * 384;
            if (s & RECOMPUTE_LAYERNORM) elements += 2 * 2 * 96; // ln1, ln2
        }

        assert_true(recompute_flops_per_token(&r, &c, CONTEXT) == flops);
        assert_true(recompute_elements_per_token(&r, &c) == elements);
    }

    const Recompute all = recompute_all(RECOMPUTE_BLOCK);
    assert_true(recompute_flops_per_token(&all, &c, CONTEXT) ==
                L * (16.0 * 96 * 96 + 2.0 * 96 * (CONTEXT + 1)));
}

TEST(gelu_is_alone_where_the_matmul_before_it_does_not_run_again) {
    const struct {
        const char *text;
        bool alone;
    } cases[] = {
        {"0", false},   {"1", true},     {"2", true},      {"3", false},   {"fc", false},
        {"qkv", false}, {"3x4,1", true}, {"3x4,0", false}, {"1/12", true}, {"fc+layernorm", false}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        const Recompute r = parsed(cases[i].text, L);
        if (recompute_gelu_alone(&r, L) != cases[i].alone) fail_msg("%s", cases[i].text);
    }
}

// -------------------------------------------------------------------------------------------- fuzz

// Pieces of the grammar and any bytes, in any order: what is taken must survive its own text, what
// is not has a message, and nothing beyond the text is read (the buffer ends with it).
TEST(no_text_does_harm) {
    static const char *const pieces[] = {
        "0", "1", "2", "3", "gelu", "layernorm", "fc", "qkv", "attention",  "attproj", "block",
        "+", "x", "/", ",", "x1",   "x4",        ",0", "12",  "4294967297", " "};
    enum { NUM_PIECES = sizeof pieces / sizeof pieces[0] };

    char buf[RECOMPUTE_TEXT];
    int taken = 0;
    for (uint64_t round = 0; round < 200000; round++) {
        const Philox draw = philox(round, 7, 0);
        char text[256] = "";

        for (uint32_t i = 0; i < draw.v[0] % 8; i++) {
            const Philox d = philox(round, 8, i);
            char byte[2] = {(char)(1 + d.v[1] % 255), '\0'};
            const size_t used = strlen(text);
            snprintf(text + used, sizeof text - used, "%s",
                     d.v[0] % 16 == 0 ? byte : pieces[d.v[0] / 16 % NUM_PIECES]);
        }

        AUTO_FREE char *copy = strdup(text);
        const int64_t blocks = 1 + draw.v[1] % 16;
        Recompute r, again;
        err.text[0] = '\0';
        if (recompute_parse(&r, copy, blocks, &err)) {
            taken++;
            again = parsed(recompute_text(&r, blocks, buf, sizeof buf), blocks);
            assert_memory_equal(r.blocks, again.blocks, (size_t)blocks);
            assert_true(strlen(buf) <= strlen(copy));
        } else {
            assert_true(strlen(err.text) > 10);
        }
    }

    assert_true(taken > 1000);
}
