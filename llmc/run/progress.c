// The text of the progress bar. See progress.h.
#include "llmc/run/progress.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/ioctl.h>
#include <unistd.h>

enum {
    DEFAULT_COLUMNS = 80,
    SHORTEST_BAR = 6, // below this a bar says less than its percentage
    LONGEST_BAR = 40, // beyond this the eye has to travel for nothing
    EIGHTHS = 8,
};

int terminal_width(void) {
    struct winsize w;
    if (ioctl(STDOUT_FILENO, TIOCGWINSZ, &w) == 0 && w.ws_col > 0) return w.ws_col;
    const char *columns = getenv("COLUMNS");
    long n = columns ? strtol(columns, NULL, 10) : 0;
    return n >= 20 && n <= 1000 ? (int)n : DEFAULT_COLUMNS;
}

bool terminal_is_utf8(void) {
    static const char *const VARIABLES[] = {"LC_ALL", "LC_CTYPE", "LANG"};
    for (int i = 0; i < 3; i++) {
        const char *locale = getenv(VARIABLES[i]);
        if (locale && *locale) return strcasestr(locale, "utf-8") || strcasestr(locale, "utf8");
    }
    return false;
}

// `cells` columns of bar into buf (room for 3 bytes a column).
static void render_bar(double fraction, int cells, bool utf8, char *buf) {
    static const char *const BLOCKS[EIGHTHS] = {" ", "▏", "▎", "▍", "▌", "▋", "▊", "▉"};
    int filled = (int)floor(fraction * cells * EIGHTHS);
    char *p = buf;
    for (int i = 0; i < cells; i++) {
        int eighths = filled - i * EIGHTHS;
        const char *cell =
            utf8 ? (eighths >= EIGHTHS ? "█" : BLOCKS[eighths > 0 ? eighths : 0]) : (eighths >= EIGHTHS ? "#" : ".");
        p = stpcpy(p, cell);
    }
}

const char *progress_render(double fraction, const char *left, const char *right, int width, bool utf8, char *buf,
                            int size) {
    fraction = fraction > 0.0 ? fmin(fraction, 1.0) : 0.0; // nan becomes 0
    char percent[16];
    // Rounded down: 100% is only said when everything is done.
    snprintf(percent, sizeof percent, "%5.1f%%", floor(fraction * 1000.0) / 10.0);

    int room = width - 1 - (int)strlen(left) - (int)strlen(percent) - 4; // " [" bar "] " percent
    bool with_right = *right && room - (int)strlen(right) - 3 >= SHORTEST_BAR;
    if (with_right) room -= (int)strlen(right) + 3; // " | "
    if (room < SHORTEST_BAR) {
        snprintf(buf, (size_t)size, "%s %s", left, percent);
        if (width > 0 && width - 1 < (int)strlen(buf)) buf[width - 1] = '\0';
        return buf;
    }
    char bar[3 * LONGEST_BAR + 1];
    render_bar(fraction, room < LONGEST_BAR ? room : LONGEST_BAR, utf8, bar);
    snprintf(buf, (size_t)size, "%s [%s] %s%s%s", left, bar, percent, with_right ? " | " : "", with_right ? right : "");
    return buf;
}

void step_time_add(StepTime *t, double seconds) {
    static const double WINDOW = 30.0;
    const double kept = t->after_first ? exp(-seconds / WINDOW) : 0.0;
    t->after_first = t->mean > 0.0;
    t->steps = kept * t->steps + 1;
    t->seconds = kept * t->seconds + seconds;
    t->mean = t->seconds / t->steps;
}
