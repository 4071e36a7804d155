// Numbers, durations and text formatted for people and JSON parsers, and the text of the progress
// bar, one line that fits the terminal (runlog draws it). The functions are pure except for the
// width of the terminal: nothing is printed, and nothing depends on the locale. Functions that fill
// a buffer return it.
#pragma once
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

// `length` bytes of text are the word; NULL is none
bool text_is(const char *text, size_t length, const char *word);
const char *format_plural(int64_t n);                        // "" for 1, else "s"
const char *format_bytes(double bytes, char *buf, int size); // 512 B   1.50 GiB   12.5 MiB
const char *format_count(double n, char *buf, int size); // 950   1.017K   666.6K   124.5M   10.00B
// 8.2s   12s   8m11s   2h03m   1d04h   "?" below 0
const char *format_duration(double seconds, char *buf, int size);
// Exactly `width` characters for most values, with as many decimals as fit, at most
// `decimals`. 9.1234  10.825  1234.5
const char *format_fixed(double x, int width, int decimals, char *buf, int size);
// The shortest decimal text that reads back as the same double; "null" for inf and nan, which JSON
// does not have.
const char *format_exact(double x, char *buf, int size);

// text as a JSON string, with quotes. Always valid JSON: bytes that are not UTF-8 become U+FFFD.
void format_json_string(FILE *out, const char *text, size_t n);
// text for a terminal, every line after `indent`. Control characters and bytes that are not UTF-8
// are shown as \x1B, because text from a model must not move the cursor. No newline at the end.
// indent NULL: a piece of a longer text, whose final newline is kept.
void format_visible(FILE *out, const char *text, size_t n, const char *indent);
// fprintf for a line with text from outside in it, such as file names: only a newline at the end of
// the format ends the line, any other is shown as \x0A.
void format_print(FILE *out, const char *format, ...) __attribute__((format(printf, 2, 3)));
void format_vprint(FILE *out, const char *format, va_list args);

// Whether a line on this descriptor may be drawn again and again: a terminal that can, of somebody
// who looks. Not that of a notebook or a CI job, which keep all that was drawn over.
bool terminal_redraws(int fd);
int terminal_width(void);    // columns of stdout's terminal; else $COLUMNS, else 80
bool terminal_is_utf8(void); // by $LC_ALL, $LC_CTYPE, $LANG, in their order of precedence

// "left [####......]  41.7% | right" in at most width - 1 columns; the last column stays free
// because some terminals wrap there. If space is short, `right` is dropped first, then the bar.
// fraction is clamped to [0, 1]. utf8: block characters in eighths; else '#'. left and right are
// plain ASCII.
const char *progress_render(double fraction, const char *left, const char *right, int width,
                            bool utf8, char *buf, int size);
