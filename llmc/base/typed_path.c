// See typed_path.h.
#include "llmc/base/typed_path.h"

#include "llmc/base/arithmetic.h"
#include "llmc/base/directory.h"
#include "llmc/base/file.h"
#include "llmc/base/files_match.h"
#include "llmc/base/format.h"
#include "llmc/base/path.h"
#include "llmc/base/utf8.h"

#include <ctype.h>
#include <limits.h>
#include <pwd.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

// ----------------------------------------------------------------------------------------- quoting

QuotedPath path_quoted(const char *path) {
    static char texts[QUOTED_PATHS][4 * PATH_MAX + 8];
    static atomic_uint made;
    char *const text = texts[atomic_fetch_add(&made, 1) % QUOTED_PATHS], *out = text;
    const char *const end = text + sizeof *texts;

    bool ansi = false;
    const char *c = path;
    while (*c && !ansi) {
        const int length = utf8_visible_length(c, strlen(c));
        ansi = length == 0;
        c += length;
    }

    // Bytes that no shell changes, wherever they are in a word.
    c = path;
    while (isalnum((unsigned char)*c) || (*c && strchr("_@%+:,./-=", *c))) c++;
    const bool plain = *path && !*c;
    out = stpcpy(out, ansi ? "$" : "");
    out = stpcpy(out, plain ? "" : "'");
    if (*path == '-') out = stpcpy(out, "./");

    // The characters between the quotes of '...', or of $'...', which has escapes for all bytes.
    for (c = path; *c && end - out > 8;) {
        const int length = utf8_visible_length(c, strlen(c));
        if (ansi && (length == 0 || *c == '\'' || *c == '\\'))
            out += sprintf(out, length ? "\\%c" : "\\x%02X", (unsigned char)*c);
        else if (*c == '\'')
            out = stpcpy(out, "'\\''");
        else
            out = mempcpy(out, c, (size_t)max_i64(length, 1));
        c += max_i64(length, 1);
    }
    stpcpy(out, plain ? "" : "'");
    return (QuotedPath){text};
}

// ---------------------------------------------------------------------------------------- patterns

static const char WILDCARDS[] = "*?[\\";

static char *escape(char *out, const char *text, size_t n) {
    for (size_t i = 0; i < n; i++) {
        if (strchr(WILDCARDS, text[i])) *out++ = '\\';
        *out++ = text[i];
    }
    *out = '\0';
    return out;
}

static char *new_pattern(size_t path_bytes) {
    char *pattern = malloc(2 * path_bytes + 2);
    REQUIRE_MEMORY(pattern, "a pattern");
    return pattern;
}

char *path_escaped(const char *path) {
    char *pattern = new_pattern(strlen(path));
    escape(pattern, path, strlen(path));
    return pattern;
}

char *path_numbered(const char *path) {
    const char *name = path_name(path), *dot = strrchr(name, '.');
    const char *end = dot ? dot : name + strlen(name);
    const char *digits = end;
    while (digits > name && isdigit((unsigned char)digits[-1])) digits--;
    if (digits == end || digits == name || !strchr("_-.", digits[-1])) return path_escaped(path);
    char *pattern = new_pattern(strlen(path)),
         *out = escape(pattern, path, (size_t)(digits - path));
    *out++ = '*';
    escape(out, end, strlen(end));
    return pattern;
}

// ------------------------------------------------------------------------------------- directories

char *path_from_home(const char *path) {
    const size_t name = strcspn(path, "/");
    char *user = strndup(path, name), *whole = NULL;
    REQUIRE_MEMORY(user, "a path");
    const char *home = name == 1 ? getenv("HOME") : NULL;
    if (*path == '~' && (!home || !*home)) {
        const struct passwd *entry = NULL;
        if (name == 1)
            entry = getpwuid(getuid());
        else
            entry = getpwnam(user + 1);
        home = NULL;
        if (entry) home = entry->pw_dir;
    }
    if (*path != '~') home = NULL;
    REQUIRE_MEMORY(asprintf(&whole, "%s%s", home ? home : user, path + name) >= 0, "a path");
    free(user);
    return whole;
}

char *path_in(const char *directory, const char *path) {
    if (*path != '/') return path_join(directory, path);
    char *copy = strdup(path);
    REQUIRE_MEMORY(copy, "a path");
    return copy;
}

char *path_working_directory(void) {
    char *directory = getcwd(NULL, 0);
    if (!directory) directory = strdup("");
    REQUIRE_MEMORY(directory, "a path");
    return directory;
}

char *path_typed_in(const char *directory, const char *pattern) {
    char *here = path_working_directory();
    const bool is_here = strcmp(directory, here) == 0;
    char *there = is_here ? strdup(pattern) : path_in(directory, pattern); // a file by its name
    REQUIRE_MEMORY(there, "a path");
    free(here);

    if (!is_here && !file_exists(there)) {
        char **names, *escaped = path_escaped(directory);
        int count;
        free(there);
        there = path_in(escaped, pattern);
        if (!files_match(there, &names, &count, NULL)) count = 0;
        if (count > 0) directory_list_free(names, count);
        if (count == 0) {
            free(there);
            there = strdup(pattern);
        }
        free(escaped);
    }
    REQUIRE_MEMORY(there, "a path");
    return there;
}

// ------------------------------------------------------------------------------------------- tools

QuotedPath path_of_tool(const char *name) {
    char path[PATH_MAX], program[PATH_MAX / 2];
    if (access(name, X_OK) == 0) return path_quoted(name);
    const ssize_t length = readlink("/proc/self/exe", program, sizeof program - 1);
    if (length > 0) program[length] = '\0';
    // Searches the checkout that this program is in: above it, or above build/MODE/DIR.
    for (int up = 0; length > 0 && up < 6; up++) {
        char *slash = strrchr(program, '/');
        if (!slash) break;
        *slash = '\0';
        snprintf(path, sizeof path, "%s/%s", program, name);
        if (access(path, X_OK) == 0) return path_quoted(path);
    }
    return path_quoted(name);
}
