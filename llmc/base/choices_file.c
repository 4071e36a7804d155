// See choices_file.h. The entries are a list, newest first, which is also their order in the file; entries beyond the
// limit when the file is written are the oldest measurements.
#include "llmc/base/choices_file.h"

#include "llmc/base/arithmetic.h"
#include "llmc/base/format.h"
#include "llmc/base/own_file.h"

#include <fcntl.h>
#include <limits.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

// A run has some twenty entries of at most 500 bytes. More than this comes from many models and machines, or was not
// written by us.
enum { MAX_ENTRIES = 2000, MAX_FILE_BYTES = 4 << 20 };

typedef struct ChoiceEntry {
    struct ChoiceEntry *next;
    size_t size;
    bool used;
    unsigned char value[CHOICES_VALUE_MAX];
    char key[CHOICES_KEY_MAX];
} ChoiceEntry;

static struct {
    ChoiceEntry *newest;
    bool loaded;
    bool foreign; // the file is not a cache: no line in it is whole
    bool warned;  // of damaged lines, once
} cache;

// The link that points to the entry of this key, or to the NULL at the end.
static ChoiceEntry **find_entry(const char *key) {
    ChoiceEntry **link = &cache.newest;
    while (*link && strcmp((*link)->key, key) != 0) link = &(*link)->next;
    return link;
}

static bool key_is_valid(const char *key, size_t length) {
    for (size_t i = 0; i < length; i++)
        if (key[i] < ' ' || key[i] > '~') return false;
    return length > 0 && length < CHOICES_KEY_MAX;
}

// A new entry in front of *link. NULL without memory: then it is not remembered.
static ChoiceEntry *insert_entry(ChoiceEntry **link, const char *key, size_t length, const void *value, size_t size) {
    ChoiceEntry *e = malloc(sizeof *e);
    if (!e) return NULL;
    memcpy(e->key, key, length);
    e->key[length] = 0;
    memcpy(e->value, value, size);
    e->size = size;
    e->used = false;
    e->next = *link;
    return *link = e;
}

// --------------------------------------------------------------------------------------------------------------- lines

// -1: none.
static int hex_digit(char c) {
    static const char digits[] = "0123456789abcdef";
    const char *found = memchr(digits, c, 16);
    return found ? (int)(found - digits) : -1;
}

// key TAB value. Appends the entry at *end, unless the text is damaged or the key is known: entries measured by this
// process, or further up in the file, are newer. False if it is damaged.
static bool parse_entry(ChoiceEntry **end, const char *text, size_t length) {
    const char *tab = memchr(text, '\t', length);
    if (!tab) return false;
    const size_t key_length = (size_t)(tab - text), digits = length - key_length - 1;
    unsigned char value[CHOICES_VALUE_MAX];
    if (!key_is_valid(text, key_length) || digits % 2 != 0 || digits > 2 * CHOICES_VALUE_MAX) return false;
    for (size_t i = 0; i < digits / 2; i++) {
        const int high = hex_digit(tab[1 + 2 * i]), low = hex_digit(tab[2 + 2 * i]);
        if (high < 0 || low < 0) return false;
        value[i] = (unsigned char)(high * 16 + low);
    }
    char key[CHOICES_KEY_MAX];
    memcpy(key, text, key_length);
    key[key_length] = 0;
    if (!*find_entry(key)) insert_entry(end, text, key_length, value, digits / 2);
    return true;
}

enum { ENTRY_TEXT = CHOICES_KEY_MAX + 2 * CHOICES_VALUE_MAX + 1 };
static size_t print_entry(char text[ENTRY_TEXT], const ChoiceEntry *e) {
    int n = snprintf(text, ENTRY_TEXT, "%s\t", e->key);
    for (size_t i = 0; i < e->size; i++) n += snprintf(text + n, (size_t)(ENTRY_TEXT - n), "%02x", e->value[i]);
    return (size_t)n;
}

// ------------------------------------------------------------------------------------------------------------ the file

// The path of the file, or "" when there is to be none; ours: in the default place, whose directories we may make.
static void cache_path(char *path, size_t size, bool *ours) {
    const char *chosen = getenv("PRETRAIN_CACHE"), *xdg = getenv("XDG_CACHE_HOME"), *home = getenv("HOME");
    int length = 0;
    path[0] = 0;
    *ours = false;
    if (chosen && *chosen) {
        if (strcmp(chosen, "off") != 0) length = snprintf(path, size, "%s", chosen);
    } else if (xdg && *xdg == '/') { // a relative one is to be ignored (XDG Base Directory Specification)
        length = snprintf(path, size, "%s/pretrain.cu/tuning", xdg);
        *ours = true;
    } else if (home && *home == '/') {
        length = snprintf(path, size, "%s/.cache/pretrain.cu/tuning", home);
        *ours = true;
    }
    if (length < 0 || (size_t)length >= size) path[0] = 0;
}

// The directories above the file: pretrain.cu and its parent.
static void make_directories(const char *path) {
    char directory[PATH_MAX];
    snprintf(directory, sizeof directory, "%s", path);
    char *last = strrchr(directory, '/');
    *last = 0;
    char *above = strrchr(directory, '/');
    *above = 0;
    if (*directory) (void)mkdir(directory, 0700);
    *above = '/';
    (void)mkdir(directory, 0700);
}

// The first MAX_FILE_BYTES of a regular file, malloced; NULL when there is none or it cannot be read.
static char *read_choices(const char *path, size_t *size) {
    const int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK); // a pipe of this name must not hold us up
    struct stat st;
    if (fd < 0) return NULL;
    const bool regular = fstat(fd, &st) == 0 && S_ISREG(st.st_mode);
    const size_t wanted = regular ? (size_t)min_i64(st.st_size, MAX_FILE_BYTES) : 0;
    char *text = wanted > 0 ? malloc(wanted) : NULL;
    *size = 0;
    while (text && *size < wanted) {
        const ssize_t n = read(fd, text + *size, wanted - *size);
        if (n <= 0) break;
        *size += (size_t)n;
    }
    close(fd);
    return text;
}

// Adds the entries of the file that are not known yet.
static void load_choices(void) {
    char path[PATH_MAX];
    bool ours;
    size_t size = 0;
    cache.loaded = true;
    cache_path(path, sizeof path, &ours);
    char *text = *path ? read_choices(path, &size) : NULL;
    if (!text) return;
    ChoiceEntry **end = &cache.newest;
    const char *line = text, *stop = text + size;
    int damaged = 0, lines = 0;
    for (; line < stop && lines < MAX_ENTRIES; lines++) {
        const char *newline = memchr(line, '\n', (size_t)(stop - line));
        while (*end) end = &(*end)->next;
        damaged += !parse_entry(end, line, (size_t)((newline ? newline : stop) - line));
        line = newline ? newline + 1 : stop;
    }
    free(text);
    cache.foreign = damaged > 0 && damaged == lines;
    if (damaged > 0 && !cache.warned)
        format_print(stderr, "%s: %d damaged line%s, edited or cut off; measured again where needed\n", path, damaged,
                     damaged == 1 ? "" : "s");
    cache.warned |= damaged > 0;
}

// Writes a new file next to the old one and renames it. On any failure the old file is unchanged.
static void save_choices(void) {
    char path[PATH_MAX], temporary[PATH_MAX + 8];
    bool ours;
    struct stat st;
    cache_path(path, sizeof path, &ours);
    if (!*path) return;
    if (ours) make_directories(path);
    if (stat(path, &st) == 0 && !S_ISREG(st.st_mode)) return; // PRETRAIN_CACHE=/dev/null must not replace the device
    snprintf(temporary, sizeof temporary, "%s.XXXXXX", path);
    const int fd = mkstemp(temporary);
    if (fd < 0) return;
    FILE *file = fdopen(fd, "w");
    bool ok = file != NULL;
    int written = 0;
    for (const ChoiceEntry *e = cache.newest; ok && e && written < MAX_ENTRIES; e = e->next, written++) {
        char text[ENTRY_TEXT];
        print_entry(text, e);
        fprintf(file, "%s\n", text);
    }
    if (file) {
        const bool complete = fflush(file) == 0 && !ferror(file);
        ok = fclose(file) == 0 && complete;
    } else
        close(fd);
    ok = ok && (!cache.foreign || own_file_move_aside(path, "holds no choices of this program", 0, NULL));
    if (!ok || rename(temporary, path) != 0) (void)unlink(temporary);
}

// ----------------------------------------------------------------------------------------------------------- the calls

bool choices_file_get(const char *key, void *value, size_t size) {
    if (!cache.loaded) load_choices();
    ChoiceEntry *e = *find_entry(key);
    if (!e || e->size != size) return false;
    memcpy(value, e->value, size);
    e->used = true;
    return true;
}

void choices_file_put(const char *key, const void *value, size_t size) {
    if (!key_is_valid(key, strlen(key)) || size > CHOICES_VALUE_MAX) return;
    load_choices(); // what other processes found meanwhile
    ChoiceEntry **link = find_entry(key), *old = *link;
    if (old) {
        *link = old->next;
        free(old);
    }
    ChoiceEntry *e = insert_entry(&cache.newest, key, strlen(key), value, size);
    if (!e) return;
    e->used = true;
    save_choices();
}

char *choices_file_used(void) {
    size_t size = 1, length = 0;
    for (const ChoiceEntry *e = cache.newest; e; e = e->next) size += e->used ? ENTRY_TEXT : 0;
    char *text = malloc(size);
    for (const ChoiceEntry *e = cache.newest; text && e; e = e->next) {
        if (!e->used) continue;
        length += print_entry(text + length, e);
        text[length++] = '\n';
    }
    if (text) text[length] = 0;
    return text;
}

void choices_file_restore(const char *lines) {
    choices_file_close();
    ChoiceEntry **end = &cache.newest;
    for (size_t length; *lines; lines += length + (lines[length] == '\n')) {
        length = strcspn(lines, "\n");
        parse_entry(end, lines, length);
        while (*end) end = &(*end)->next;
    }
}

void choices_file_close(void) {
    while (cache.newest) {
        ChoiceEntry *e = cache.newest;
        cache.newest = e->next;
        free(e);
    }
    cache.loaded = false;
}
