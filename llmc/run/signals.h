// SIGINT, SIGTERM and SIGUSR1 ask the run to finish its step, save and exit with EXIT_INTERRUPTED; a second SIGINT ends
// the process at once, as it would have without us.
#pragma once
#ifdef __cplusplus
extern "C" {
#endif

void signals_install(void);
int signals_pending(void);            // the signal that asked to stop, or 0
const char *signals_name(int signal); // "SIGTERM"

#ifdef __cplusplus
}
#endif
