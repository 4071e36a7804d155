// See sources.h. Owns the sets and the mixture.
#include "llmc/data/sources.h"

#include "llmc/base/typed_path.h"

#include <inttypes.h>
#include <xxhash.h>

// Opens a source and adds it to what is known of all.
static bool open_source_set(Sources *s, int source, Error *err) {
    const Mixture *m = &s->mixture;
    const ShardSet *set = &s->sets[source], *first = &s->sets[0];
    if (!shards_open(&s->sets[source], m->patterns[source], s->T, err)) return false;
    for (int i = 0; i < source; i++) {
        const char *shared, *other;
        if (shards_in_both(set, &s->sets[i], &shared, &other) == 0) continue;
        return error_set(err, "%s: belongs to two corpora of the mixture, %s and %s", shared,
                         path_quoted(m->patterns[i]).text, path_quoted(m->patterns[source]).text);
    }
    const struct {
        const char *what;
        int64_t value, *common, unstated;
    } facts[] = {{"vocabulary", set->vocab, &s->vocab, 0}, {"end-of-text token", set->eot, &s->eot, -1}};
    if (source > 0 && set->token_bytes != s->token_bytes)
        return error_set(err,
                         "%s: bytes per token is %d, but %s states %d; shards of one run must come from one tokenizer",
                         set->shards[0].path, set->token_bytes, first->shards[0].path, s->token_bytes);
    for (int i = 0; i < 2; i++) {
        if (facts[i].value == facts[i].unstated) continue;
        if (*facts[i].common != facts[i].unstated && *facts[i].common != facts[i].value)
            return error_set(err,
                             "%s: %s is %" PRId64 ", but others state %" PRId64
                             "; shards of one run must come from one tokenizer",
                             set->shards[0].path, facts[i].what, facts[i].value, *facts[i].common);
        *facts[i].common = facts[i].value;
    }
    s->token_bytes = set->token_bytes;
    s->num_windows += set->num_windows;
    s->num_tokens += set->num_tokens;
    s->num_shards += set->count;
    if (source == 0)
        s->fingerprint = set->fingerprint;
    else
        s->fingerprint = XXH3_64bits_withSeed(&set->fingerprint, sizeof set->fingerprint, s->fingerprint);
    return true;
}

bool sources_open(Sources *s, const char *text, int64_t T, Error *err) {
    *s = (Sources){.T = T, .eot = -1};
    bool ok = mixture_parse(&s->mixture, text, err);
    for (int i = 0; ok && i < s->mixture.count; i++) ok = open_source_set(s, i, err);
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
