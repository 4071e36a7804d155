// SIGINT, SIGTERM, SIGUSR1 and SIGHUP (unless it is ignored, as under nohup) ask the run to save its last whole step
// and exit with EXIT_INTERRUPTED; a second SIGINT ends the process at once, as it would have without us. The first one
// is answered with a line on stderr, so that nobody presses Ctrl-C again because saving takes long. SIGPIPE is ignored:
// a reader such as `| head` that goes away must not take the run with it.
#pragma once
void signals_install(void);
int signals_pending(void);            // the signal that asked to stop, or 0
const char *signals_name(int signal); // "SIGTERM"
