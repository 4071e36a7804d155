// See sources.h. Owns the sets and the mixture.
#include "llmc/data/sources.h"

#include "llmc/base/typed_path.h"

#include <xxhash.h>

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
            const char *shared, *other;
            if (shards_in_both(set, &s->sets[k], &shared, &other) > 0)
                ok = error_set(err, "%s: belongs to two corpora of the mixture, %s and %s", shared,
                               path_quoted(m->patterns[k]).text, path_quoted(m->patterns[i]).text);
        }
        if (!ok) break;
        const char *path = set->shards[0].path;
        ok = shards_agree("bytes per token", set->token_bytes, 0, path, &token_bytes, &files[0], err) &&
             shards_agree("vocabulary", set->vocab, 0, path, &s->vocab, &files[1], err) &&
             shards_agree("end-of-text token", set->eot, -1, path, &s->eot, &files[2], err);
        s->token_bytes = set->token_bytes;
        s->num_windows += set->num_windows;
        s->num_tokens += set->num_tokens;
        s->num_shards += set->count;
        if (i == 0)
            s->fingerprint = set->fingerprint;
        else
            s->fingerprint = XXH3_64bits_withSeed(&set->fingerprint, sizeof set->fingerprint, s->fingerprint);
    }
    if (!ok) sources_close(s);
    return ok;
}

void sources_close(Sources *s) {
    for (int i = 0; i < s->mixture.count; i++) shards_close(&s->sets[i]);
    mixture_free(&s->mixture);
    *s = (Sources){.eot = -1};
}

int sources_in_both(const Sources *a, const Sources *b, const char **first, const char **other) {
    int both = 0;
    *first = *other = NULL;
    for (int i = 0; i < a->mixture.count; i++) {
        for (int k = 0; k < b->mixture.count; k++) {
            const char *shared, *unshared;
            const int count = shards_in_both(&a->sets[i], &b->sets[k], &shared, &unshared);
            if (both == 0 && count > 0) *first = shared;
            if (a->mixture.count == 1 && b->mixture.count == 1) *other = unshared;
            both += count;
        }
    }
    return both;
}
