// The progress bar: one line of text that fits the terminal. This module only makes the text and knows the terminal;
// runlog draws it, clears it before lines and draws it again below them.
#pragma once
#include <stdbool.h>

#ifdef __cplusplus
extern "C" {
#endif

int terminal_width(void);    // columns of stdout's terminal; else $COLUMNS, else 80
bool terminal_is_utf8(void); // by $LC_ALL, $LC_CTYPE, $LANG, in their order of precedence

// "left [####......]  41.7% | right" in at most width - 1 columns: the last one stays free, where some terminals wrap.
// Where there is little room, right goes first, then the bar. fraction is clamped to [0, 1]. utf8: block characters in
// eighths; else '#'. left and right are plain ASCII.
const char *progress_render(double fraction, const char *left, const char *right, int width, bool utf8, char *buf,
                            int size);

#ifdef __cplusplus
}
#endif
