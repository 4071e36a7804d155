// stdout and stderr of a program whose reader may not read: a stopped pager, a terminal after
// Ctrl-S, a hung collector of logs. Neither waits longer for one than a limit, and only a second
// once a signal has asked the run to stop. Output that finds no reader is left out, and a line says
// so when the reader is back. Never changes a pipe or a terminal that other programs share: the two
// are opened once more, without blocking, where the system permits that.
#pragma once

#ifdef __cplusplus
extern "C" {
#endif

// Makes stdout and stderr such streams; limits_start calls it. Until output_limit_wait they wait
// without a limit, as a program whose output goes through a pager must.
void output_start(void);
// From here on a stream waits at most so long for its reader, and not again until the reader is
// back. For runs whose output is only their news.
void output_limit_wait(double seconds);

// The two below are for signal handlers.
void output_hurry(void);              // from here on a stream waits for a second at most
void output_report(const char *text); // to stderr, as much of it as that takes at once

#ifdef __cplusplus
}
#endif
