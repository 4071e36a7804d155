// --gpus N: this program as the launcher of the processes of a run on this machine.
#pragma once

// Starts N copies of this program, waits for them, passes signals on, and ends all when one fails.
// Returns the exit code of the first that failed, or 0. Only where no launcher has started this
// process. The others get SIGTERM and, COMM_STOP_SECONDS of the environment later (30), SIGKILL.
int launch_processes(int count, char **argv);
