// Numbers, durations, text and the progress bar formatted for readers. See format.h.
#include "llmc/base/format.h"

#include "llmc/base/arithmetic.h"
#include "llmc/base/error.h"
#include "llmc/base/utf8.h"

#include <math.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/ioctl.h>
#include <unistd.h>

// ----------------------------------------------------------------------------------------- numbers

const char *format_fixed(double x, int width, int decimals, char *buf, int size) {
    if (!isfinite(x)) {
        const char *text = "nan";
        if (isinf(x)) text = "inf";
        if (isinf(x) && x < 0) text = "-inf";
        snprintf(buf, (size_t)size, "%*s", width, text);
        return buf;
    }
    // Rounding can add a digit (9.99996 -> 10.0000), so print, and remove a decimal while the text
    // is too wide.
    while (snprintf(buf, (size_t)size, "%*.*f", width, decimals, x) > width && decimals > 0)
        decimals--;
    return buf;
}

// Divides x by `base` while it is at least `largest` (which would be printed as base); returns the
// number of divisions.
static int scale_down(double *x, double base, double largest, int units) {
    int unit = 0;
    while (fabs(*x) >= largest && unit < units - 1) {
        *x /= base;
        unit++;
    }
    return unit;
}

// Decimals of a number: one less for each of the bounds that it reaches, from the smallest on.
static int decimals_below(double x, int decimals, const double *bounds) {
    for (int i = 0; decimals > 0 && fabs(x) >= bounds[i]; i++) decimals--;
    return decimals;
}

bool text_is(const char *text, size_t length, const char *word) {
    return word && strlen(word) == length && memcmp(text, word, length) == 0;
}
const char *format_plural(int64_t n) { return n == 1 ? "" : "s"; }

const char *format_bytes(double bytes, char *buf, int size) {
    static const char *const UNITS[] = {"B", "KiB", "MiB", "GiB", "TiB", "PiB"};
    int unit = scale_down(&bytes, 1024.0, 1023.5, 6);
    static const double three_digits[] = {9.995, 99.95};
    const int decimals = unit != 0 ? decimals_below(bytes, 2, three_digits) : 0;
    snprintf(buf, (size_t)size, "%.*f %s", decimals, bytes, UNITS[unit]);
    return buf;
}

const char *format_count(double n, char *buf, int size) {
    static const char *const UNITS[] = {"", "K", "M", "B", "T"};
    if (fabs(n) < 1000.0 && n == floor(n)) { // a plain count has no decimals
        snprintf(buf, (size_t)size, "%.0f", n);
        return buf;
    }
    int unit = scale_down(&n, 1000.0, 999.95, 5);
    static const double four_digits[] = {9.9995, 99.995, 999.95};
    snprintf(buf, (size_t)size, "%.*f%s", decimals_below(n, 3, four_digits), n, UNITS[unit]);
    return buf;
}

const char *format_duration(double seconds, char *buf, int size) {
    size_t room = (size_t)size;
    if (!(seconds >= 0.0) || seconds > 1e12) {
        snprintf(buf, room, "?");
        return buf;
    }

    long long s = llround(seconds);
    if (seconds < 9.95) {
        snprintf(buf, room, "%.1fs", seconds);
    } else if (s < 60) {
        snprintf(buf, room, "%llds", s);
    } else if (s < 3600) {
        snprintf(buf, room, "%lldm%02llds", s / 60, s % 60);
    } else if (s < 86400) {
        snprintf(buf, room, "%lldh%02lldm", s / 3600, s / 60 % 60);
    } else {
        snprintf(buf, room, "%lldd%02lldh", s / 86400, s / 3600 % 24);
    }
    return buf;
}

const char *format_exact(double x, char *buf, int size) {
    if (!isfinite(x)) {
        snprintf(buf, (size_t)size, "null");
        return buf;
    }
    if (x == floor(x) && fabs(x) < 0x1p53) { // integers as such: 1000, not 1e+03
        snprintf(buf, (size_t)size, "%.0f", x);
        return buf;
    }
    // 17 digits are always enough; often fewer are, and they read better (0.1 instead of
    // 0.10000000000000001).
    for (int digits = 1; digits <= 17; digits++) {
        snprintf(buf, (size_t)size, "%.*g", digits, x);
        if (strtod(buf, NULL) == x) break;
    }
    return buf;
}

// -------------------------------------------------------------------------------------------- text

void format_json_string(FILE *out, const char *text, size_t n) {
    fputc('"', out);
    for (size_t i = 0; i < n;) {
        unsigned char c = (unsigned char)text[i];
        int length = utf8_length(text + i, n - i);
        if (length == 0) {
            fputs("\\ufffd", out);
        } else if (c == '"' || c == '\\') {
            fprintf(out, "\\%c", c);
        } else if (c == '\n') {
            fputs("\\n", out);
        } else if (c < 0x20 || c == 0x7F) {
            fprintf(out, "\\u%04x", c);
        } else {
            fwrite(text + i, 1, (size_t)length, out);
        }
        i += (size_t)max_i64(length, 1);
    }
    fputc('"', out);
}

void format_visible(FILE *out, const char *text, size_t n, const char *indent) {
    char shown[UTF8_VISIBLE];
    if (indent) fputs(indent, out);
    if (indent && n > 0 && text[n - 1] == '\n') n--;
    for (size_t i = 0; i < n;) {
        const char c = text[i];
        if (c == '\n' || c == '\t') {
            fputc(c, out);
            i++;
        } else {
            i += utf8_visible(text + i, n - i, shown);
            fputs(shown, out);
        }
        if (c == '\n' && indent) fputs(indent, out);
    }
}

void format_vprint(FILE *out, const char *format, va_list args) {
    char *text = NULL;
    const int length = vasprintf(&text, format, args);
    REQUIRE_MEMORY(length >= 0, "a line of text");
    const bool ends_line = format[strlen(format) - 1] == '\n';
    const size_t n = (size_t)length - ends_line;
    char shown[UTF8_VISIBLE];
    for (size_t i = 0; i < n;) {
        i += utf8_visible(text + i, n - i, shown);
        fputs(shown, out);
    }
    if (ends_line) fputc('\n', out);
    free(text);
}

void format_print(FILE *out, const char *format, ...) {
    va_list args;
    va_start(args, format);
    format_vprint(out, format, args);
    va_end(args);
}

// ------------------------------------------------------------------------------------ progress bar

enum {
    DEFAULT_COLUMNS = 80,
    SHORTEST_BAR = 6, // below this a bar shows less than the percentage
    LONGEST_BAR = 40, // beyond this a longer bar shows nothing more
    EIGHTHS = 8,
};

bool terminal_redraws(int fd) {
    const char *term = getenv("TERM"), *ci = getenv("CI");
    return isatty(fd) == 1 && !(term && strcmp(term, "dumb") == 0) && !(ci && *ci) &&
           !getenv("JPY_PARENT_PID");
}

int terminal_width(void) {
    struct winsize w;
    if (ioctl(STDOUT_FILENO, TIOCGWINSZ, &w) == 0 && w.ws_col > 0) return w.ws_col;
    const char *columns = getenv("COLUMNS");
    const long n = columns ? strtol(columns, NULL, 10) : 0;
    if (n >= 20 && n <= 1000) return (int)n;
    return DEFAULT_COLUMNS;
}

bool terminal_is_utf8(void) {
    static const char *const VARIABLES[] = {"LC_ALL", "LC_CTYPE", "LANG"};
    for (int i = 0; i < 3; i++) {
        const char *locale = getenv(VARIABLES[i]);
        if (locale && *locale) return strcasestr(locale, "utf-8") || strcasestr(locale, "utf8");
    }
    return false;
}

const char *progress_render(double fraction, const char *left, const char *right, int width,
                            bool utf8, char *buf, int size) {
    static const char *const BLOCKS[EIGHTHS + 1] = {" ", "▏", "▎", "▍", "▌", "▋", "▊", "▉", "█"};
    fraction = fmin(fmax(fraction, 0.0), 1.0); // nan becomes 0
    char percent[16];
    // Rounded down: 100% is only shown when everything is done.
    snprintf(percent, sizeof percent, "%5.1f%%", floor(fraction * 1000.0) / 10.0);

    int room = width - 1 - (int)strlen(left) - (int)strlen(percent) - 4; // " [" bar "] " percent
    bool with_right = *right && room - (int)strlen(right) - 3 >= SHORTEST_BAR;
    if (with_right) room -= (int)strlen(right) + 3; // " | "
    if (room < SHORTEST_BAR) {
        snprintf(buf, (size_t)size, "%s %s", left, percent);
        if (width > 0 && width - 1 < (int)strlen(buf)) buf[width - 1] = '\0';
        return buf;
    }
    char bar[3 * LONGEST_BAR + 1], *p = bar; // a block is 3 bytes
    const int cells = (int)min_i64(room, LONGEST_BAR),
              filled = (int)floor(fraction * cells * EIGHTHS);
    for (int i = 0; i < cells; i++) {
        const int eighths = (int)min_i64(max_i64(filled - i * EIGHTHS, 0), EIGHTHS);
        const char *cell = BLOCKS[eighths];
        if (!utf8) cell = ".";
        if (!utf8 && eighths == EIGHTHS) cell = "#";
        p = stpcpy(p, cell);
    }
    snprintf(buf, (size_t)size, "%s [%s] %s%s%s", left, bar, percent, with_right ? " | " : "",
             with_right ? right : "");
    return buf;
}
