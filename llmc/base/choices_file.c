// See choices_file.h. The entries are a list, newest first, which is also their order in the file;
// entries beyond the limit when the file is written are the oldest measurements.
#include "llmc/base/choices_file.h"

#include "llmc/base/directory.h"
#include "llmc/base/file.h"
#include "llmc/base/format.h"
#include "llmc/base/own_file.h"
#include "llmc/base/path.h"

#include <ctype.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>

// A run has some twenty entries of at most 500 bytes. More than this comes from many models and
// machines, or was not written by us.
enum { MAX_ENTRIES = 2000, MAX_FILE_BYTES = 4 << 20 };
// SUM_DIGITS is the length of the checksum, XXH3 of the line before its last tab: a line that was
// edited or cut off has another.
enum { SUM_DIGITS = 8, MAX_LINE = CHOICES_KEY_MAX + 2 * CHOICES_VALUE_MAX + 1 + SUM_DIGITS };

typedef struct ChoiceEntry {
    struct ChoiceEntry *next;
    bool used;
    bool summed; // the line had a checksum
    size_t key_length, value_digits;
    char line[MAX_LINE + 1]; // key TAB value in hexadecimal TAB checksum
} ChoiceEntry;

static struct {
    ChoiceEntry *newest;
    bool loaded;
    bool unread;  // what is there cannot be read, or is too large: it stays as it is
    bool foreign; // the file is not a cache: no line in it is whole
    bool warned;  // of damaged lines, once
} cache;

// The link that points to the entry of this key, or to the NULL at the end.
static ChoiceEntry **find_entry(const char *key, size_t length) {
    ChoiceEntry **link = &cache.newest;
    while (*link && ((*link)->key_length != length || memcmp((*link)->line, key, length) != 0))
        link = &(*link)->next;
    return link;
}

static void make_sum(char sum[SUM_DIGITS + 1], const char *line, size_t length) {
    snprintf(sum, SUM_DIGITS + 1, "%08x", (unsigned)(XXH3_64bits(line, length) & UINT32_MAX));
}

// A new entry in front of *link; NULL if the line is damaged.
static ChoiceEntry *insert_line(ChoiceEntry **link, const char *line, size_t length) {
    const char *tab = memchr(line, '\t', length), *end = line + length, *sum = NULL;
    char expected[SUM_DIGITS + 1];
    if (!tab) return NULL;
    sum = memchr(tab + 1, '\t', (size_t)(end - tab - 1));
    if (sum) length = (size_t)(sum - line);
    make_sum(expected, line, length);
    if (sum && (end - sum - 1 != SUM_DIGITS || memcmp(sum + 1, expected, SUM_DIGITS) != 0))
        return NULL;

    const size_t key_length = (size_t)(tab - line), digits = length - key_length - 1;
    if (key_length == 0 || key_length >= CHOICES_KEY_MAX || digits % 2 != 0 ||
        digits > 2 * CHOICES_VALUE_MAX)
        return NULL;
    for (size_t i = 0; i < key_length; i++)
        if (line[i] < ' ' || line[i] > '~') return NULL;
    for (size_t i = key_length + 1; i < length; i++)
        if (!isxdigit((unsigned char)line[i]) || isupper((unsigned char)line[i])) return NULL;

    ChoiceEntry *e = calloc(1, sizeof *e);
    REQUIRE_MEMORY(e, "a measured choice");
    memcpy(e->line, line, length);
    snprintf(e->line + length, sizeof e->line - length, "\t%s", expected);
    e->key_length = key_length;
    e->value_digits = digits;
    e->summed = sum != NULL;
    e->next = *link;
    return *link = e;
}

static void remove_entry(ChoiceEntry **link) {
    ChoiceEntry *e = *link;
    *link = e->next;
    free(e);
}

// Appends the lines whose keys are not known: entries measured by this process, or further up in
// the file, are newer. Returns how many lines there are, *damaged of them. Lines without a checksum
// are from before there was one: a checkpoint, which has a checksum of its own, may have them;
// those of the file are measured again.
static int take_lines(const char *text, size_t size, bool is_file, int *damaged) {
    ChoiceEntry **end = &cache.newest;
    int lines = 0;
    *damaged = 0;
    for (size_t at = 0, length; at < size && lines < MAX_ENTRIES; at += length + 1, lines++) {
        const char *newline = memchr(text + at, '\n', size - at);
        length = size - at;
        if (newline) length = (size_t)(newline - text) - at;
        while (*end) end = &(*end)->next;
        ChoiceEntry *e = insert_line(end, text + at, length);
        *damaged += e == NULL;
        if (!e) continue;
        if ((is_file && !e->summed) || find_entry(e->line, e->key_length) != end) remove_entry(end);
    }
    return lines;
}

// ---------------------------------------------------------------------------------------- the file

// The path of the file, "": there is to be none. Returns whether it is the default place, whose
// directories we may make.
static bool cache_path(char *path, size_t size) {
    const char *chosen = getenv("PRETRAIN_CACHE"), *xdg = getenv("XDG_CACHE_HOME"),
               *home = getenv("HOME");
    const bool ours = !chosen || !*chosen;
    int length = 0;
    path[0] = 0;
    if (!ours && strcmp(chosen, "off") != 0)
        length = snprintf(path, size, "%s", chosen);
    else if (ours && xdg &&
             *xdg == '/') // a relative one is to be ignored (XDG Base Directory Specification)
        length = snprintf(path, size, "%s/pretrain.cu/tuning", xdg);
    else if (ours && home && *home == '/')
        length = snprintf(path, size, "%s/.cache/pretrain.cu/tuning", home);
    if (length < 0 || (size_t)length >= size) path[0] = 0;
    return ours;
}

// Adds the entries of the file that are not known yet.
static void load_choices(void) {
    char path[PATH_MAX];
    size_t size = 0;
    int damaged = 0;
    cache.loaded = true;
    (void)cache_path(path, sizeof path);
    char *text = file_read_all(path, MAX_FILE_BYTES, &size, NULL);
    const int lines = take_lines(text, size, true, &damaged);
    cache.unread = !text && file_exists(path);
    cache.foreign = damaged > 0 && damaged == lines;
    free(text);
    if (damaged > 0 && !cache.warned)
        format_print(stderr,
                     "%s: %d damaged line%s, edited or cut off; measured again where needed\n",
                     path, damaged, format_plural(damaged));
    cache.warned |= damaged > 0;
}

// Lines of the newest entries; malloced.
static char *list_lines(bool used_only) {
    char *text;
    size_t bytes;
    int count = 0;
    FILE *file = text_open(&text, &bytes);
    for (const ChoiceEntry *e = cache.newest; e && count < MAX_ENTRIES; e = e->next)
        if (e->used || !used_only) count += fprintf(file, "%s\n", e->line) > 0;
    fclose(file);
    return text;
}

// --------------------------------------------------------------------------------------- the calls

bool choices_file_get(const char *key, void *value, size_t size) {
    if (!cache.loaded) load_choices();
    ChoiceEntry *e = *find_entry(key, strlen(key));
    if (!e) return false;
    const char *digits = e->line + e->key_length + 1;
    if (e->value_digits != 2 * size) return false;
    for (size_t i = 0; i < size; i++)
        (void)sscanf(digits + 2 * i, "%2hhx", (unsigned char *)value + i);
    e->used = true;
    return true;
}

void choices_file_put(const char *key, const void *value, size_t size) {
    char line[MAX_LINE + 1];
    if (strlen(key) >= CHOICES_KEY_MAX || size > CHOICES_VALUE_MAX) return;
    int n = snprintf(line, sizeof line, "%s\t", key);
    for (size_t i = 0; i < size; i++)
        n += snprintf(line + n, sizeof line - (size_t)n, "%02x", ((const unsigned char *)value)[i]);
    load_choices(); // what other processes found meanwhile
    ChoiceEntry **known = find_entry(key, strlen(key));
    if (*known) remove_entry(known);
    ChoiceEntry *e = insert_line(&cache.newest, line, (size_t)n);
    if (!e) return;
    e->used = true;

    // Writes a new file next to the old one and renames it. On any failure the old file is
    // unchanged.
    char path[PATH_MAX], temporary[PATH_MAX + 8];
    const bool ours = cache_path(path, sizeof path);
    struct stat st;
    if (!*path || cache.unread) return;
    // PRETRAIN_CACHE=/dev/null must not replace the device
    if (stat(path, &st) == 0 && !S_ISREG(st.st_mode)) return;
    char *directory = path_parent(path), *text = list_lines(false);
    if (ours) (void)directory_make(directory, NULL);
    snprintf(temporary, sizeof temporary, "%s.XXXXXX", path);
    const int fd = mkstemp(temporary);
    bool ok = fd >= 0 && file_write_all(fd, path, text, strlen(text), NULL);
    if (fd >= 0) ok = close(fd) == 0 && ok;
    if (ok && cache.foreign)
        ok = own_file_move_aside(path, "holds no choices of this program", 0, NULL);
    if (fd >= 0 && (!ok || rename(temporary, path) != 0)) (void)unlink(temporary);
    free(directory);
    free(text);
}

char *choices_file_used(void) { return list_lines(true); }

void choices_file_restore(const char *lines) {
    int damaged;
    choices_file_close();
    (void)take_lines(lines, strlen(lines), false, &damaged);
}

void choices_file_close(void) {
    while (cache.newest) remove_entry(&cache.newest);
    cache.loaded = false;
}
