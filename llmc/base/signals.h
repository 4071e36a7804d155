// The signals that ask a run to stop: it saves its last whole step and ends.
#pragma once

#ifdef __cplusplus
extern "C" {
#endif

// SIGINT, SIGTERM, SIGUSR1, SIGUSR2, SIGXCPU (the soft limit of processor time) and SIGHUP (unless
// it is ignored, as under nohup) ask the run to save its last whole step and exit with
// EXIT_INTERRUPTED; a second SIGINT ends the process at once, as it would have without us. The
// first one is acknowledged on stderr, so that a user does not press Ctrl-C again because saving
// takes long. From then on output waits a second at most for its reader (output.h). SIGPIPE is
// ignored: a reader such as `| head` that exits must not end the run.
//
// The handler has a stack of its own, for the thread that calls this. oneDNN's generated matmuls
// move the stack pointer into a buffer of 16 KiB: a handler that ran there would write over their
// data and the heap below.
void signals_install(void);
// Leaves these signals to other threads: for threads that also run generated code.
void signals_block(void);
int signals_pending(void); // the signal that asked to stop, or 0
// With several processes a signal counts when all know it: from the first call on, signals_pending
// is the signal that was agreed, 0 if none, and signals_received is the one that came to this
// process.
void signals_agree(int signal_number);
int signals_received(void);
const char *signals_name(int signal_number); // "SIGTERM"

#ifdef __cplusplus
}
#endif
