// The progress bar: one line of text that fits the terminal. This module only makes the text and knows the terminal;
// runlog draws it, clears it before lines and draws it again below them.
#pragma once
#include <stdbool.h>

int terminal_width(void);    // columns of stdout's terminal; else $COLUMNS, else 80
bool terminal_is_utf8(void); // by $LC_ALL, $LC_CTYPE, $LANG, in their order of precedence

// "left [####......]  41.7% | right" in at most width - 1 columns: the last one stays free, where some terminals wrap.
// Where there is little room, right goes first, then the bar. fraction is clamped to [0, 1]. utf8: block characters in
// eighths; else '#'. left and right are plain ASCII.
const char *progress_render(double fraction, const char *left, const char *right, int width, bool utf8, char *buf,
                            int size);

// The mean time of a step over about the last 30 s: each step counts e times less when 30 s have passed, so that one
// that is slow (a busy disk, a neighbour) moves it by little. The first step, which pays for starting, counts only
// while it is the only one. Zero before it.
typedef struct {
    double steps, seconds, mean;
    bool after_first;
} StepTime;
void step_time_add(StepTime *t, double seconds);
