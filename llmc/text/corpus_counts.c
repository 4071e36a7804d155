// See corpus_counts.h.
#include "llmc/text/corpus_counts.h"

#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

static KindCount *find_kind(const KindCounts *k, const char *kind) {
    for (int i = 0; i < k->num; i++)
        if (strcmp(k->kinds[i].kind, kind) == 0) return &k->kinds[i];
    return NULL;
}

int64_t kind_counts_get(const KindCounts *k, const char *kind) {
    const KindCount *found = find_kind(k, kind);
    if (found) return found->count;
    return 0;
}

static void append_kind(KindCounts *k, KindCount added) {
    k->kinds = realloc(k->kinds, (size_t)(k->num + 1) * sizeof *k->kinds);
    REQUIRE_MEMORY(k->kinds && added.kind && added.first, "the kinds of files");
    k->kinds[k->num++] = added;
}

void kind_counts_add(KindCounts *k, const char *kind, int64_t count, const char *format, ...) {
    KindCount *found = find_kind(k, kind);
    char text[sizeof(Error)];
    Error first;
    va_list args;
    if (found) {
        found->count += count;
        return;
    }
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    error_set(&first, "%s", text); // so that it is UTF-8
    append_kind(k, (KindCount){strdup(kind), count, strdup(first.text)});
}

void kind_counts_move(KindCounts *to, KindCounts *from) {
    for (int i = 0; i < from->num; i++) {
        KindCount *found = find_kind(to, from->kinds[i].kind);
        if (!found) {
            append_kind(to, from->kinds[i]);
            continue;
        }
        found->count += from->kinds[i].count;
        free(from->kinds[i].kind);
        free(from->kinds[i].first);
    }
    free(from->kinds);
    *from = (KindCounts){0};
}

void kind_counts_clear(KindCounts *k) {
    for (int i = 0; i < k->num; i++) {
        free(k->kinds[i].kind);
        free(k->kinds[i].first);
    }
    free(k->kinds);
    *k = (KindCounts){0};
}

const struct BadKind bad_kinds[BAD_KINDS] = {
    [JSON_LINE_NOT_JSON] = {"not_json", "not valid JSON"},
    [JSON_LINE_NOT_UTF8] = {"not_utf8", "not UTF-8"},
    [JSON_LINE_SURROGATE] = {"half_surrogate", "half a surrogate pair"},
    [JSON_LINE_NO_FIELD] = {"no_field", "without the field"},
    [JSON_LINE_NO_STRING] = {"no_string", "field is not a string"},
    [BAD_TOO_LONG] = {"too_long", "line too long"},
    [BAD_FILE] = {"damaged_file", "compressed file damaged"},
};

void corpus_counts_clear(CorpusCounts *c) {
    kind_counts_clear(&c->bad);
    kind_counts_clear(&c->left_out);
    kind_counts_clear(&c->notes);
    *c = (CorpusCounts){0};
}

void corpus_counts_add(CorpusCounts *sum, CorpusCounts *more) {
    sum->documents += more->documents;
    for (CorpusSide side = 0; side < CORPUS_SIDES; side++) {
        sum->side[side].documents += more->side[side].documents;
        sum->side[side].bytes += more->side[side].bytes;
        sum->side[side].tokens += more->side[side].tokens;
    }
    kind_counts_move(&sum->left_out, &more->left_out);
    kind_counts_move(&sum->notes, &more->notes);
    kind_counts_move(&sum->bad, &more->bad);
}

bool corpus_is_lopsided(const CorpusCounts *c, double val_fraction) {
    double train = (double)c->side[CORPUS_TRAIN].tokens, val = (double)c->side[CORPUS_VAL].tokens,
           f = val_fraction;
    return !corpus_is_one_sided(f) &&
           (val < (train + val) * f / 4 || train < (train + val) * (1 - f) / 4);
}
