// See arguments.h.
#include "llmc/base/arguments.h"

#include "llmc/base/arithmetic.h"
#include "llmc/base/edit_distance.h"
#include "llmc/base/format.h"

#include <ctype.h>
#include <limits.h>
#include <string.h>

ShownArgument argument_shown(const char *text, size_t length) {
    ShownArgument s;
    size_t n = length;
    if (length >= sizeof s.text) n = sizeof s.text - 4;
    for (size_t i = 0; i < n; i++) {
        s.text[i] = text[i];
        if (iscntrl((unsigned char)text[i])) s.text[i] = '?';
    }
    snprintf(s.text + n, sizeof s.text - n, "%s", text_if(n < length, "..."));
    return s;
}

Argument argument_split(const char *word) {
    Argument a = {.name = word + 1 + (word[1] == '-')};
    a.length = strcspn(a.name, "=");
    if (a.name[a.length] == '=') a.value = a.name + a.length + 1;
    return a;
}

NearestName argument_nearest(const char *typo, size_t length) {
    NearestName nearest = {.distance = INT_MAX};
    snprintf(nearest.typo, sizeof nearest.typo, "%.32s", argument_shown(typo, length).text);
    return nearest;
}

void argument_nearest_try(NearestName *nearest, const char *dashes, const char *name) {
    const char *typo = nearest->typo;
    if (!name) return;
    // A piece of a name ("batch", "steps") is a better guess than a word of similar letters; among equals, the one with
    // the same first letter ("--lr": -l, not -r). Half of their letters must agree.
    int edits = 1;
    if (strlen(typo) < 3 || !strcasestr(name, typo)) edits = edit_distance(typo, name);
    const size_t longer = max_size(strlen(typo), strlen(name));
    const int distance = 2 * edits + (tolower((unsigned char)typo[0]) != tolower((unsigned char)name[0]));
    if (2 * edits > (int)longer || distance >= nearest->distance) return;
    nearest->distance = distance;
    snprintf(nearest->text, sizeof nearest->text, "%s%s", dashes, name);
}

bool argument_unknown(const char *word, const NearestName *nearest, const char *command, Error *err) {
    if (!*nearest->text) return error_set(err, "unknown option %s; %s lists them", word, command);
    return error_set(err, "unknown option %s; did you mean %s?", word, nearest->text);
}
