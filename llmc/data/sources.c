// See sources.h. Owns the sets and the mixture.
#include "llmc/data/sources.h"

#include "llmc/base/directory.h"
#include "llmc/base/files_match.h"
#include "llmc/base/typed_path.h"

#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

// Adds the hash of set i; the first set's stays as it is.
static uint64_t add_hash(uint64_t before, uint64_t hash, int i) {
    if (i == 0) return hash;
    return XXH3_64bits_withSeed(&hash, sizeof hash, before);
}

static bool refuse_twice(const Mixture *m, int first, int second, const ShardsInBoth *both,
                         Error *err) {
    if (strcmp(both->first, both->twin) == 0)
        return error_set(err, "%s: belongs to two corpora of the mixture, %s and %s", both->first,
                         path_quoted(m->patterns[first]).text,
                         path_quoted(m->patterns[second]).text);
    return error_set(err,
                     "%s: is the same data as %s, and two corpora of the mixture have it; name it "
                     "in one, with a "
                     "larger weight",
                     both->first, both->twin);
}

// Whether the text is a mixture in which each pattern matches files.
static bool finds_files(const char *text) {
    Mixture m;
    bool finds_all = mixture_parse(&m, text, NULL);
    for (int i = 0; finds_all && i < m.count; i++) {
        char **names;
        int count = 0;
        if (!files_match(m.patterns[i], &names, &count, NULL)) continue;
        directory_list_free(names, count);
        finds_all = count > 0;
    }
    mixture_free(&m);
    return finds_all;
}

// Replaces the error of a text that is no mixture here, but one as other programs write it.
static void explain_form(const char *text, Error *err) {
    char *guess = mixture_guess(text);
    if (guess && !finds_files(text) && finds_files(guess))
        error_set(err, "%s: no corpus of this name; a mixture is written %s",
                  path_quoted(text).text, path_quoted(guess).text);
    free(guess);
}

bool sources_open(Sources *s, const char *text, int64_t T, Error *err) {
    *s = (Sources){.T = T, .eot = -1};
    const Mixture *m = &s->mixture;
    const char *files[3] = {NULL}; // those that state a fact first
    int64_t token_bytes = 0;
    bool ok = mixture_parse(&s->mixture, text, err);

    for (int i = 0; ok && i < m->count; i++) {
        const ShardSet *set = &s->sets[i];
        ok = shards_open(&s->sets[i], m->patterns[i], T, err);
        for (int k = 0; ok && k < i; k++) {
            const ShardsInBoth both = shards_in_both(set, &s->sets[k]);
            if (both.count > 0) ok = refuse_twice(m, k, i, &both, err);
        }
        if (!ok) break;

        const char *path = set->shards[0].path;
        ok = shards_agree("bytes per token", set->token_bytes, 0, path, &token_bytes, &files[0],
                          err) &&
             shards_agree("vocabulary", set->vocab, 0, path, &s->vocab, &files[1], err) &&
             shards_agree("end-of-text token", set->eot, -1, path, &s->eot, &files[2], err);
        s->token_bytes = set->token_bytes;
        s->num_windows += set->num_windows;
        s->num_tokens += set->num_tokens;
        s->num_shards += set->count;
        s->fingerprint = add_hash(s->fingerprint, set->fingerprint, i);
        s->contents = add_hash(s->contents, set->contents, i);
    }

    if (!ok) {
        sources_close(s);
        explain_form(text, err);
    }
    return ok;
}

void sources_close(Sources *s) {
    for (int i = 0; i < s->mixture.count; i++) shards_close(&s->sets[i]);
    mixture_free(&s->mixture);
    *s = (Sources){.eot = -1};
}

ShardsInBoth sources_in_both(const Sources *a, const Sources *b) {
    ShardsInBoth all = {0};
    for (int i = 0; i < a->mixture.count; i++) {
        for (int k = 0; k < b->mixture.count; k++) {
            ShardsInBoth both = shards_in_both(&a->sets[i], &b->sets[k]);
            if (a->mixture.count > 1 || b->mixture.count > 1) both.other = NULL;
            if (all.count == 0) {
                all = both;
                continue;
            }
            all.count += both.count;
        }
    }
    return all;
}
