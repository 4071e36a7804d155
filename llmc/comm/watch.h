// Private to llmc/comm: the watch, a thread in each process that notices when another process is lost.
//
// Process 0 and each of the others send each other a heartbeat of fixed size over a connection of their own, ten in a
// limit of time or one a second. A process is lost when
//   - its connection is closed: it has ended
//   - it sends no heartbeat within the limit: it is stopped, its machine is swapping, or the network is gone
// and the run hangs when no process has made progress within the limit, although all send heartbeats. A heartbeat tells
// the collective that its process has reached, so process 0 knows for which ones the others wait.
//
// Process 0 tells all. Then every wait of llmc/comm and of the devices fails, and the main thread ends the process. If
// it cannot, because it waits in a library or for a GPU, the thread ends the process after GRACE_SECONDS.
#pragma once
#include "llmc/comm/channel.h"

typedef struct {
    int rank, size;
    const char (*hosts)[64]; // of all processes; stays with the caller
    double seconds;          // the limit
} WatchOptions;

// Starts the thread. Takes over the sockets, see channel_tcp_meet_again.
bool watch_start(const WatchOptions *options, int *sockets, Error *err);
// Ends the thread. Tells the others that this process ends as it should, unless `lost`. Without watch_start it does
// nothing.
void watch_stop(bool lost);
bool watch_is_running(void);

// What the heartbeats tell. May be called without a watch.
void watch_collective(const char *name); // a literal; the process enters its next collective
const char *watch_collective_name(void);
void watch_progress(void);
void watch_step(int64_t step);

// True with a message when a process was lost. It has been printed. Cheap, for any thread.
bool watch_has_failed(Error *err);
// After a failure that a lost process may have caused: waits two seconds for the watch to find it, and then gives its
// message instead.
void watch_explain(Error *err);
