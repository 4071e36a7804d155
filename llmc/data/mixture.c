// See mixture.h. The text of -i and -j, and the order of the draws. Opens no shard.
#include "llmc/data/mixture.h"

#include "llmc/base/directory.h"
#include "llmc/base/files_match.h"
#include "llmc/base/format.h"

#include <ctype.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

// -------------------------------------------------------------------------------------------- text

typedef struct {
    const char *pattern, *weight; // weight NULL: there is no colon
    int pattern_length, weight_length;
} MixturePart;

// The part of the text at *at, up to a comma that no backslash precedes. False: there are no more.
static bool next_part(const char **at, MixturePart *part) {
    const char *p = *at;
    if (!p) return false;
    *part = (MixturePart){.pattern = p};
    for (; *p && *p != ','; p++) {
        if (*p == ':') part->weight = p + 1;
        if (*p == '\\' && p[1]) p++;
    }
    const char *end = p;
    if (part->weight) {
        end = part->weight - 1;
        part->weight_length = (int)(p - part->weight);
    }
    part->pattern_length = (int)(end - part->pattern);
    *at = NULL;
    if (*p) *at = p + 1;
    return true;
}

// The number that the weight of a part is as a whole; "inf" and "nan" are numbers too. False: it is
// none.
static bool part_weight(const MixturePart *part, double *weight) {
    char text[64], *end;
    if (part->weight_length < 1 || part->weight_length >= (int)sizeof text ||
        isspace((unsigned char)*part->weight))
        return false;
    snprintf(text, sizeof text, "%.*s", part->weight_length, part->weight);
    *weight = strtod(text, &end);
    return *end == '\0';
}

static bool is_mixture(const char *text) {
    MixturePart part;
    double weight;
    char **names;
    int count = 0;
    bool has_weight = false;
    for (const char *at = text; next_part(&at, &part);) has_weight |= part_weight(&part, &weight);
    if (!has_weight || !files_match(text, &names, &count, NULL)) return has_weight;
    directory_list_free(names, count);
    return count == 0;
}

// In millionths.
static bool read_weight(const MixturePart *part, int64_t *weight, Error *err) {
    static const double MIN = 1e-6, MAX = 1e6;
    double x = NAN;
    if (!part->weight)
        return error_set(err,
                         "%.*s: has no weight; each corpus of a mixture has one: 'A:0.7,B:0.3' (a "
                         "comma in a path is "
                         "written \\,)",
                         part->pattern_length, part->pattern);
    if (part->pattern_length == 0)
        return error_set(err, "no corpus before the weight '%.*s'", part->weight_length,
                         part->weight);
    if (!part_weight(part, &x) || !(x >= MIN && x <= MAX))
        return error_set(err, "%.*s: its weight is '%.*s', expected a number from %g to %g",
                         part->pattern_length, part->pattern, part->weight_length, part->weight,
                         MIN, MAX);
    *weight = (int64_t)llround(x * MIXTURE_WHOLE);
    return true;
}

// Divides the weights by their common divisor; scales them to millionths of their sum if that is
// still larger.
static bool reduce_weights(Mixture *m, Error *err) {
    int64_t sum = m->weights[0], divisor = sum;
    for (int i = 1; i < m->count; i++) {
        sum += m->weights[i];
        for (int64_t a = m->weights[i]; a != 0;) {
            const int64_t rest = divisor % a;
            divisor = a;
            a = rest;
        }
    }

    m->total = 0;
    for (int i = 0; i < m->count; i++) {
        int64_t *w = &m->weights[i];
        if (sum <= MIXTURE_WHOLE * divisor)
            *w /= divisor;
        else
            *w = (*w * MIXTURE_WHOLE + sum / 2) / sum;
        if (*w == 0)
            return error_set(err, "%s: its weight is less than a millionth of the sum of all",
                             m->patterns[i]);
        m->total += *w;
    }
    return true;
}

// The bytes at the beginning (step 1) or the end (-1) of all patterns that are the same, in whole
// parts of paths.
static size_t common_part(const Mixture *m, int step) {
    int64_t length[MIXTURE_MAX] = {0}, from[MIXTURE_MAX] = {0}, common = 0;
    for (int i = 0; i < m->count; i++) {
        length[i] = (int64_t)strlen(m->patterns[i]);
        if (step < 0) from[i] = length[i] - 1;
    }
    for (int64_t n = 0; n < length[0]; n++) {
        const char byte = m->patterns[0][from[0] + step * n];
        for (int i = 0; i < m->count; i++)
            if (n >= length[i] || m->patterns[i][from[i] + step * n] != byte) return (size_t)common;
        if (byte == '/') common = n + 1;
    }
    return (size_t)common;
}

bool mixture_parse(Mixture *m, const char *text, Error *err) {
    *m = (Mixture){0};
    const bool single = !is_mixture(text);
    MixturePart part = {.pattern = text, .pattern_length = (int)strlen(text)};
    const char *at = NULL; // a single corpus is the whole text
    if (!single) {
        at = text;
        next_part(&at, &part);
    }
    do {
        int64_t weight = 1;
        if (m->count == MIXTURE_MAX)
            return error_set(err, "more than %d corpora in one mixture", MIXTURE_MAX);
        if (!single && !read_weight(&part, &weight, err)) return false;
        const int i = m->count++;
        m->patterns[i] = strndup(part.pattern, (size_t)part.pattern_length);
        REQUIRE_MEMORY(m->patterns[i], "a pattern");
        m->weights[i] = weight;
        for (int k = 0; k < i; k++)
            if (strcmp(m->patterns[k], m->patterns[i]) == 0)
                return error_set(err, "%s: is named twice; give it one weight", m->patterns[i]);
    } while (next_part(&at, &part));

    // The names: what differs between the patterns, unless nothing is left of one.
    size_t before = 0, after = 0;
    if (m->count > 1) {
        before = common_part(m, 1);
        after = common_part(m, -1);
    }
    for (int i = 0; i < m->count; i++)
        if (strlen(m->patterns[i]) <= before + after) before = after = 0;
    for (int i = 0; i < m->count; i++) {
        m->names[i] = strndup(m->patterns[i] + before, strlen(m->patterns[i]) - before - after);
        REQUIRE_MEMORY(m->names[i], "a name");
    }
    return reduce_weights(m, err);
}

void mixture_free(Mixture *m) {
    for (int i = 0; i < m->count; i++) {
        free(m->patterns[i]);
        free(m->names[i]);
    }
    *m = (Mixture){0};
}

char *mixture_map(const char *text, MixtureMap *map, const void *context) {
    if (!is_mixture(text)) return map(context, text);

    char *result = NULL;
    size_t bytes;
    bool ok = true;
    FILE *f = text_open(&result, &bytes);
    MixturePart part;

    for (const char *at = text; ok && next_part(&at, &part);) {
        char *pattern = strndup(part.pattern, (size_t)part.pattern_length);
        REQUIRE_MEMORY(pattern, "a pattern");
        char *mapped = map(context, pattern);
        ok = mapped != NULL;
        for (const char *p = mapped; ok && *p; p++) { // a directory may have brought new commas
            if (*p == ',') fputc('\\', f);
            fputc(*p, f);
            if (*p == '\\' && p[1]) fputc(*++p, f);
        }
        if (ok && part.weight) fprintf(f, ":%.*s", part.weight_length, part.weight);
        if (at) fputc(',', f);
        free(pattern);
        free(mapped);
    }

    fclose(f);
    if (ok) return result;
    free(result);
    return NULL;
}

// ------------------------------------------------------------------------------------------- order

// Makes the draw after `done` ones of this period. A source is behind by w n - x W (in units of 1/W
// window, with n = done + 1, x drawn), and exceeds the bound at n = (2k - 3 + (2k - 2) x) W / ((2k
// - 2) w).
static int next_draw(const Mixture *m, MixtureCursor *c) {
    const int64_t bound = 2 * m->count - 2, n = ++c->done;
    int first = -1;
    for (int i = 0; i < m->count; i++) {
        if (bound * (m->weights[i] * n - c->drawn[i] * m->total) < m->total) continue;
        if (first >= 0 && (bound - 1 + bound * c->drawn[i]) * m->weights[first] >=
                              (bound - 1 + bound * c->drawn[first]) * m->weights[i])
            continue;
        first = i;
    }
    c->drawn[first]++;
    return first;
}

// Moves the cursor to where `at` draws are made since the start.
static void move_cursor(const Mixture *m, MixtureCursor *c, int64_t at) {
    const int64_t round = at / m->total, done = at % m->total;
    if (round != c->round || done < c->done) *c = (MixtureCursor){.round = round};
    while (c->done < done) next_draw(m, c);
}

MixtureDraw mixture_draw(const Mixture *m, MixtureCursor *c, int64_t position) {
    REQUIRE(position >= m->start, "mixture_draw: position %lld before %lld", (long long)position,
            (long long)m->start);
    const int64_t at = position - m->start;
    if (m->count == 1) return (MixtureDraw){0, m->drawn[0] + at};
    move_cursor(m, c, at);
    const int source = next_draw(m, c);
    return (MixtureDraw){source,
                         m->drawn[source] + c->round * m->weights[source] + c->drawn[source] - 1};
}

void mixture_count(const Mixture *m, int64_t position, int64_t drawn[MIXTURE_MAX]) {
    MixtureCursor c = {0};
    const int64_t at = position - m->start;
    REQUIRE(at >= 0, "mixture_count: position %lld before %lld", (long long)position,
            (long long)m->start);
    if (m->count == 1) drawn[0] = m->drawn[0] + at;
    if (m->count <= 1) return;
    move_cursor(m, &c, at);
    for (int i = 0; i < m->count; i++)
        drawn[i] = m->drawn[i] + c.round * m->weights[i] + c.drawn[i];
}

// ------------------------------------------------------------------------------------------- guess

static bool matches_files(const char *pattern) {
    char **names;
    int count = 0;
    if (!files_match(pattern, &names, &count, NULL)) return false;
    directory_list_free(names, count);
    return count > 0;
}

char *mixture_guess(const char *text) {
    static const char separators[] = " \t\n,;+|{}[]()\"'@=:";
    char *words = strdup(text), *guess = NULL, *left = words;
    char *patterns[MIXTURE_MAX];
    double weights[MIXTURE_MAX];
    int count = 0, numbers = 0;
    bool number_first = false, understood = words != NULL;

    for (char *word; understood && (word = strsep(&left, separators));) {
        char *end;
        double number = strtod(word, &end);
        const bool has_number = end > word;
        if (!*word) continue;
        if (has_number && (!*end || strcmp(end, "%") == 0 || *end == '*')) {
            const int of = numbers++;
            number_first |= count == 0;
            if (of < MIXTURE_MAX) weights[of] = number;
            understood = of < MIXTURE_MAX && (number_first || *end != '*');
            if (*end != '*') continue;
            word = end + 1; // 0.7*A
        }
        understood = understood && count < MIXTURE_MAX && matches_files(word);
        if (understood) patterns[count++] = word;
    }
    understood = understood && (count > 1 || (count == 1 && numbers > 0)) &&
                 (numbers == 0 || numbers == count);

    size_t bytes;
    FILE *out = understood ? text_open(&guess, &bytes) : NULL;
    for (int i = 0; out && i < count; i++) {
        const double weight = numbers > 0 ? weights[i] : 1;
        fprintf(out, "%s%s:%g", i > 0 ? "," : "", patterns[i], weight);
    }

    if (out) fclose(out);
    free(words);
    return guess;
}
