// NCCL between processes of one machine: takes the place of llmc/cuda/nccl_library.c, so that
// everything above it is the real code. What NCCL checks or suffers from is an error here: memory
// that is not the device's, calls that differ between processes, a call while another one is in
// progress, a blocking communicator. Sums are not provided.
//
// A collective is two operations of its stream: the first writes this process's messages, the
// second waits for those of the others and copies them to the device. Messages are files in a
// directory named after NCCL's id, under /dev/shm:
//   rank.R        process R has joined. It holds a lock on the file for as long as it lives
//   N.S-D         collective N, from process S to D: a header, and the data. D removes it as soon
//                 as it has opened it
// The process that leaves last removes the directory. What remains when all are killed: the
// directory, with the messages that nobody had opened.
//
// While the messages of the others are missing, the host waits at most PATIENCE for them; then
// the stream stays where it is, and host calls that do not wait return. One difference to a GPU
// remains: a collective proceeds only while its process calls the runtime. A process that waits
// for another one in its own way (a socket) should first have waited for its streams, or the
// other may wait for the message that this one has not written yet.
//
// Settings:
//   SIM_NCCL=none            no library is found
//   SIM_NCCL=WORD,WORD,...   of: inprogress   calls return ncclInProgress, and do their work when
//                                             ncclCommGetAsyncError is asked for the third time
//                                delay:SEED   each message is late by a random time, 3 ms at most
//                                fail:N       collective N of this process (from 1) fails with
//                                             ncclSystemError
//                                silent:N     collective N of this process never ends
//   SIM_NCCL_DIR=DIR         instead of /dev/shm
//   SIM_NCCL_TIMEOUT=N       seconds until a process that does not come is a ncclRemoteError
//                            (default 60)
// A collective that failed or never ends keeps its stream busy until ncclCommAbort, as with NCCL.
// A host call that waits for it ends the program after SIM_NCCL_TIMEOUT.
#include "dev/sim/runtime.h"
#include "dev/sim/sanitizers.h"
#include "llmc/cuda/nccl_library.h"

#include <algorithm>
#include <atomic>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <functional>
#include <random>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <string>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>
#include <vector>

// llmc's error_set; the simulator links with nothing of llmc.
static bool refuse(Error *err, const char *text) {
    if (err) snprintf(err->text, sizeof err->text, "%s", text);
    return false;
}

#ifndef HAVE_NCCL
extern "C" {
bool nccl_library_open(Error *err) { return refuse(err, "built without NCCL (header nccl.h)"); }
const char *nccl_library_version_text(void) { return ""; }
}
#else

namespace {
using sim::fatal;

const double PATIENCE = 10.0;             // seconds
enum { POLLS = 3, MOST_DELAY_US = 3000 }; // of inprogress, of delay

double now() {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

struct Settings {
    bool in_progress = false, delay = false;
    uint64_t seed = 0, fail = 0, silent = 0;
    double timeout = sim::setting_number("SIM_NCCL_TIMEOUT", 60);
};

bool is_none() {
    const char *list = sim::setting("SIM_NCCL");
    return list && strcmp(list, "none") == 0;
}

Settings read_settings() {
    Settings s;
    const std::string list = sim::setting("SIM_NCCL") ? sim::setting("SIM_NCCL") : "";

    for (size_t begin = 0, end; begin < list.size(); begin = end + 1) {
        end = std::min(list.find(',', begin), list.size());
        const std::string item = list.substr(begin, end - begin),
                          word = item.substr(0, item.find(':'));
        const uint64_t number =
            item == word ? 0 : strtoull(item.c_str() + word.size() + 1, nullptr, 10);
        if (item == "inprogress")
            s.in_progress = true;
        else if (word == "delay")
            s.delay = true, s.seed = number;
        else if (word == "fail" && number)
            s.fail = number;
        else if (word == "silent" && number)
            s.silent = number;
        else
            fatal("SIM_NCCL=%s: there are none, inprogress, delay:SEED, fail:N, silent:N",
                  list.c_str());
    }
    return s;
}

const struct {
    ncclDataType_t type;
    const char *name;
    size_t bytes;
} types[] = {
    {ncclInt8, "int8", 1},         {ncclUint8, "uint8", 1},     {ncclInt32, "int32", 4},
    {ncclUint32, "uint32", 4},     {ncclInt64, "int64", 8},     {ncclUint64, "uint64", 8},
    {ncclFloat16, "float16", 2},   {ncclFloat32, "float32", 4}, {ncclFloat64, "float64", 8},
    {ncclBfloat16, "bfloat16", 2},
};
const auto &type_of(int type) {
    for (const auto &t : types)
        if ((int)t.type == type) return t;
    fatal("NCCL: type %d is not simulated", type);
}

// -------------------------------------------------------------------------------- the communicator
} // namespace

struct ncclComm {
    int rank, size;
    Settings settings;
    std::string directory;
    pid_t process = getpid();
    int lock = -1; // the file rank.R
    std::atomic<bool> aborted{false};
    ncclResult_t error = ncclSuccess;
    char said[256] = "";           // of the error
    uint64_t number = 0;           // of the last collective
    cudaStream_t stream = nullptr; // of all collectives
    bool has_stream = false, finalized = false;
    bool has_buffers = false; // allocated at the first collective
    // of its kernels, each on a multiprocessor: NCCL's own choice, or config.maxCTAs
    int blocks = 32;
    // A call in progress: does its work, or more of it; true when that is done.
    std::function<bool()> proceed;
    int polls = 0; // before it is asked for the first time

    std::string file(const std::string &name) const { return directory + "/" + name; }
    std::string message(uint64_t n, int from, int to) const {
        return file(std::to_string(n) + "." + std::to_string(from) + "-" + std::to_string(to));
    }
    std::string rank_file(int r) const { return file("rank." + std::to_string(r)); }
    void fail(ncclResult_t result, const std::string &text) {
        if (error != ncclSuccess) return;
        error = result;
        sim::quiet_copy(said, text.c_str(), std::min(text.size(), sizeof said - 1));
    }
    bool gone(int r) const;
    void join();
    void fall_silent();
    void leave();
};

// A lock of POSIX: a child process does not inherit it, and it ends with the process.
static struct flock whole_file(short type) {
    struct flock lock = {};
    lock.l_type = type;
    lock.l_whence = SEEK_SET;
    return lock;
}

void ncclComm::join() {
    if (mkdir(directory.c_str(), 0700) != 0 && errno != EEXIST)
        fatal("%s: %s", directory.c_str(), strerror(errno));
    const std::string early = file("joins." + std::to_string(rank)); // renamed once it is locked
    struct flock all = whole_file(F_WRLCK);
    lock = open(early.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    if (lock < 0 || fcntl(lock, F_SETLK, &all) != 0 ||
        rename(early.c_str(), rank_file(rank).c_str()) != 0)
        fatal("%s: %s", early.c_str(), strerror(errno));
}

// Whether the process has ended, or will send nothing any more.
bool ncclComm::gone(int r) const {
    const int f = open(rank_file(r).c_str(), O_RDWR | O_CLOEXEC);
    if (f < 0) return true;
    struct flock all = whole_file(F_WRLCK);
    const bool locked = fcntl(f, F_GETLK, &all) == 0 && all.l_type != F_UNLCK;
    close(f);
    return !locked;
}

void ncclComm::fall_silent() {
    if (lock >= 0) close(lock);
    lock = -1;
}

// Removes the messages to this process; everything if the others are gone. Its own file stays until
// then: another process may not yet have seen that all have joined.
void ncclComm::leave() {
    fall_silent();
    bool last = true;
    for (int r = 0; r < size; r++) last = last && (r == rank || gone(r));

    DIR *files = opendir(directory.c_str());
    if (!files) return;
    const std::string to_me = "-" + std::to_string(rank);
    while (const dirent *entry = readdir(files)) {
        const std::string name = entry->d_name;
        const bool mine = name.size() > to_me.size() &&
                          name.compare(name.size() - to_me.size(), name.npos, to_me) == 0;
        if (name[0] != '.' && (last || mine)) unlink(file(name).c_str());
    }

    closedir(files);
    if (last) rmdir(directory.c_str());
}

namespace {
typedef ncclComm *Comm;

// The one of this process. A program that ends without leaving still removes its files.
// Communicators are never freed: operations of streams may refer to them.
struct Live {
    Comm comm = nullptr;
    ~Live() {
        if (comm && comm->process == getpid()) comm->leave();
    }
} live;

// The communicator that a call names; no other call of it may be in progress.
Comm known(ncclComm_t handle, const char *call) {
    if (!handle || handle != live.comm) fatal("%s: not a communicator", call);
    return live.comm;
}
Comm idle(ncclComm_t handle, const char *call) {
    const Comm comm = known(handle, call);
    if (comm->proceed)
        fatal("%s while another call is in progress: ncclCommGetAsyncError tells when it is done",
              call);
    return comm;
}

// A call that proceeds when it is asked for.
ncclResult_t later(Comm comm, std::function<bool()> proceed) {
    comm->proceed = std::move(proceed);
    comm->polls = comm->settings.in_progress ? POLLS : 1;
    return ncclInProgress;
}

// ---------------------------------------------------------------------------------- one collective

enum Call { ALL_GATHER, GROUP, FINALIZE };

// Before the data of a message. Counts are elements; -1: none is sent to this receiver, or expected
// from it.
struct Header {
    uint64_t number;
    int32_t call, type;
    int64_t sends, receives;
};

std::string describe(const Header &h) {
    const std::string type = type_of(h.type).name;
    const auto of = [&](int64_t count) { return " of " + std::to_string(count) + " x " + type; };
    if (h.call == FINALIZE) return "ncclCommFinalize";
    if (h.call == ALL_GATHER) return "ncclAllGather" + of(h.sends);
    return (h.sends < 0 ? "no ncclSend" : "ncclSend" + of(h.sends)) + " and " +
           (h.receives < 0 ? "no ncclRecv" : "ncclRecv" + of(h.receives));
}

// A part goes to one process and comes from it.
struct Part {
    const char *send = nullptr;
    char *receive = nullptr;
    int64_t sends = -1, receives = -1;
};

// A message that has arrived: its file, mapped.
struct Message {
    char *data = nullptr;
    size_t bytes = 0;
    void drop() {
        if (data) munmap(data, bytes);
        data = nullptr;
    }
};

struct Collective {
    Comm comm;
    Call call;
    int type;
    std::vector<Part> parts; // by rank
    std::vector<Message> messages{parts.size()};
    uint64_t number = 0;
    bool silent = false;
    double waits_since = 0; // 0: nobody has looked for messages yet
    bool released = false;  // by the stream or graph that ran it

    Collective(Comm c, Call which, int t, std::vector<Part> p)
        : comm(c), call(which), type(t), parts(std::move(p)) {}
    ~Collective() {
        for (Message &m : messages) m.drop();
    }
    size_t bytes(int64_t count) const {
        return count < 0 ? 0 : (size_t)count * type_of(type).bytes;
    }
    Header header(int r) const {
        return {number, call, type, parts[(size_t)r].sends, parts[(size_t)r].receives};
    }

    void check_memory() const;
    void send();
    void write_message(int to) const;
    bool take_message(int from);
    bool look(bool gone_is_fine);
    bool ready();
    void receive();
};

const char *name_of(Call call) {
    return call == ALL_GATHER ? "ncclAllGather" : "ncclSend, ncclRecv";
}

void Collective::check_memory() const {
    for (const Part &p : parts) {
        const size_t sent = bytes(p.sends), received = bytes(p.receives);
        if ((sent && sim::memory_kind(p.send, sent) != sim::DEVICE) ||
            (received && sim::memory_kind(p.receive, received) != sim::DEVICE))
            fatal("%s: a buffer is not within one allocation of the device", name_of(call));
    }

    for (size_t r = 0; r < parts.size(); r++)
        for (const Part &out : parts) {
            const char *to = parts[r].receive;
            const bool in_place = call == ALL_GATHER && (int)r == comm->rank && to == out.send;
            if (to < out.send + bytes(out.sends) && out.send < to + bytes(parts[r].receives) &&
                !in_place)
                fatal("%s: a process receives where it sends from", name_of(call));
        }
}

void write_all(int f, const void *data, size_t bytes, const std::string &path) {
    for (size_t done = 0; done < bytes;) {
        const ssize_t n = write(f, (const char *)data + done, bytes - done);
        if (n <= 0)
            fatal("%s: %s (SIM_NCCL_DIR names another directory)", path.c_str(), strerror(errno));
        done += (size_t)n;
    }
}

void Collective::write_message(int to) const {
    const Header h = header(to);
    const Part &p = parts[(size_t)to];
    const std::string path = comm->message(number, comm->rank, to), early = path + ".part";
    const int f = open(early.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    if (f < 0 && errno == ENOENT) return; // the others have left
    if (f < 0) fatal("%s: %s", early.c_str(), strerror(errno));
    write_all(f, &h, sizeof h, early);
    sim::tsan_reads(p.send, bytes(p.sends));
    write_all(f, p.send, bytes(p.sends), early);
    close(f);
    rename(early.c_str(), path.c_str());
}

// The first half of a collective: everything that goes out.
void Collective::send() {
    number = ++comm->number;
    waits_since = 0;
    silent = call != FINALIZE && number == comm->settings.silent;
    for (Message &m : messages) m.drop();

    if (comm->aborted || comm->error != ncclSuccess) return;
    if (call != FINALIZE && number == comm->settings.fail)
        comm->fail(ncclSystemError, "SIM_NCCL: collective " + std::to_string(number) + " fails");
    if (silent || comm->error != ncclSuccess) return comm->fall_silent();
    check_memory();

    std::vector<int> order;
    for (int i = 1; i < comm->size; i++) order.push_back((comm->rank + i) % comm->size);
    std::mt19937_64 random(comm->settings.seed * 1000003 + number * 1009 + (uint64_t)comm->rank);
    if (comm->settings.delay) std::shuffle(order.begin(), order.end(), random);
    for (int to : order) {
        if (comm->settings.delay) usleep((useconds_t)(random() % MOST_DELAY_US));
        write_message(to);
    }
}

// False: it has not come yet. Ends the program when the two processes do not mean the same
// collective.
bool Collective::take_message(int from) {
    const std::string path = comm->message(number, from, comm->rank);
    const int f = open(path.c_str(), O_RDONLY | O_CLOEXEC);
    if (f < 0) return false;
    unlink(path.c_str());

    struct stat st;
    Message m;
    if (fstat(f, &st) == 0) m.bytes = (size_t)st.st_size;
    if (m.bytes >= sizeof(Header))
        m.data = (char *)mmap(nullptr, m.bytes, PROT_READ, MAP_PRIVATE, f, 0);
    close(f);
    if (!m.data || m.data == MAP_FAILED) fatal("%s: not a message", path.c_str());

    Header theirs;
    memcpy(&theirs, m.data, sizeof theirs);
    const Header mine = header(from);
    if (theirs.call != mine.call || theirs.type != mine.type || theirs.sends != mine.receives ||
        theirs.receives != mine.sends) {
        comm->leave();
        const bool lower = comm->rank < from; // both processes print the same line
        fatal("collective %llu: rank %d calls %s, rank %d calls %s", (unsigned long long)number,
              std::min(comm->rank, from), describe(lower ? mine : theirs).c_str(),
              std::max(comm->rank, from), describe(lower ? theirs : mine).c_str());
    }

    messages[(size_t)from] = m;
    return true;
}

// Whether all messages are there. gone_is_fine: or will never come, because the process has left.
bool Collective::look(bool gone_is_fine) {
    bool all = true;
    for (int r = 0; r < comm->size; r++) {
        if (r == comm->rank || messages[(size_t)r].data) continue;
        const bool gone =
            gone_is_fine &&
            comm->gone(r); // asked before: its message may be the last thing that it did
        all = (take_message(r) || gone) && all;
    }
    return all;
}

// Whether the second half can run.
bool Collective::ready() {
    if (comm->aborted) return true;
    if (silent || comm->error != ncclSuccess) return false;

    const bool first = waits_since == 0;
    if (first) waits_since = now();

    for (;;) {
        if (look(false)) return true;
        const double waited = now() - waits_since;
        int missing = -1;
        bool gone = false;
        for (int r = comm->size - 1; r >= 0; r--)
            if (r != comm->rank && !messages[(size_t)r].data)
                missing = r, gone = gone || comm->gone(r);
        if (waited >= comm->settings.timeout)
            comm->fail(ncclRemoteError, "collective " + std::to_string(number) +
                                            ": nothing from rank " + std::to_string(missing) +
                                            " for " + std::to_string((int)comm->settings.timeout) +
                                            " s");
        if (!first || gone || waited >= std::min(PATIENCE, comm->settings.timeout)) return false;
        usleep(200);
    }
}

// The second half: everything that comes in.
void Collective::receive() {
    const double deadline = now() + comm->settings.timeout;
    while (!ready()) {
        if (now() > deadline)
            fatal("the host waits for collective %llu, which only ncclCommAbort ends: %s",
                  (unsigned long long)number,
                  comm->error != ncclSuccess ? comm->said
                                             : "SIM_NCCL=silent, or a process that does not come");
        usleep(200);
    }

    for (int r = 0; r < comm->size && !comm->aborted; r++) {
        const Part &p = parts[(size_t)r];
        const bool own = r == comm->rank;
        const char *from = own ? p.send : messages[(size_t)r].data + sizeof(Header);
        const size_t n = bytes(p.receives);
        if (n == 0 || from == p.receive) continue;
        if (own) sim::tsan_reads(from, n);
        sim::tsan_writes(p.receive, n);
        sim::quiet_copy(p.receive, from, n);
        sim::msan_initialised(p.receive, n);
    }

    for (Message &m : messages) m.drop();
}

// Streams and graphs refer to these. They are freed here, not by them: for ThreadSanitizer a stream
// is another thread.
std::vector<Collective *> &collectives = *new std::vector<Collective *>;

Collective *new_collective(Comm comm, Call call, int type, const std::vector<Part> &parts) {
    const auto end = std::partition(collectives.begin(), collectives.end(),
                                    [](Collective *c) { return !c->released; });
    std::for_each(end, collectives.end(), [](Collective *c) { delete c; });
    collectives.erase(end, collectives.end());
    collectives.push_back(new Collective(comm, call, type, parts));
    return collectives.back();
}

// Both halves into the stream.
ncclResult_t enqueue(Collective *work, cudaStream_t stream) {
    const Comm comm = work->comm;
    if (comm->has_stream && comm->stream != stream)
        fatal("%s: one stream is simulated", name_of(work->call));
    comm->stream = stream;
    comm->has_stream = true;

    work->check_memory();
    if (!comm->has_buffers && !sim::take_memory("SIM_NCCL_MB", 20)) {
        comm->fail(ncclUnhandledCudaError, "Cuda failure 2 'out of memory'");
        return comm->error;
    }
    comm->has_buffers = true;

    const auto proceed = [=] {
        const auto receive = [](void *p) { ((Collective *)p)->receive(); };
        const auto release = [](void *p) { ((Collective *)p)->released = true; };
        const auto ready = [](void *p) { return ((Collective *)p)->ready(); };
        if (sim::stream_enqueue(stream, name_of(work->call), [work] { work->send(); }) !=
                cudaSuccess ||
            sim::stream_enqueue(stream, {name_of(work->call), receive, work, release, ready}) !=
                cudaSuccess)
            comm->fail(ncclUnhandledCudaError, "the stream takes no work");
        sim::stream_is_collective(stream, comm->size > 1 ? comm->blocks : 0);
        return true;
    };

    if (comm->settings.in_progress) return later(comm, proceed);
    proceed();
    return comm->error == ncclUnhandledCudaError ? comm->error : ncclSuccess;
}

// ------------------------------------------------------------------------------------------ groups

struct Transfer {
    Comm comm;
    bool is_send;
    char *buffer;
    int64_t count;
    int type, peer;
    cudaStream_t stream;
};
int group_depth;
std::vector<Transfer> group;

ncclResult_t run_group() {
    if (group.empty()) return ncclSuccess;
    const std::vector<Transfer> transfers = std::move(group);
    group.clear();

    const Transfer &first = transfers[0];
    std::vector<Part> parts((size_t)first.comm->size);
    for (const Transfer &t : transfers) {
        Part &p = parts[(size_t)t.peer];
        if (t.type != first.type || t.stream != first.stream)
            fatal("a group of one type and stream is simulated");
        if ((t.is_send ? p.sends : p.receives) >= 0)
            fatal("a group with one message to each process is simulated");
        if (t.is_send)
            p.send = t.buffer, p.sends = t.count;
        else
            p.receive = t.buffer, p.receives = t.count;
    }

    const Part &own = parts[(size_t)first.comm->rank];
    if (own.sends != own.receives)
        fatal("a process sends itself %lld elements and receives %lld", (long long)own.sends,
              (long long)own.receives);
    return enqueue(new_collective(first.comm, GROUP, first.type, parts), first.stream);
}

ncclResult_t transfer(const char *call, bool is_send, void *buffer, size_t count,
                      ncclDataType_t type, int peer, ncclComm_t handle, cudaStream_t stream) {
    const Comm comm = idle(handle, call);
    type_of(type);
    if (comm->error != ncclSuccess) return comm->error;
    if (peer < 0 || peer >= comm->size) fatal("%s: rank %d of %d", call, peer, comm->size);
    group.push_back({comm, is_send, (char *)buffer, (int64_t)count, type, peer, stream});
    if (group_depth == 0) return run_group();
    return comm->settings.in_progress ? ncclInProgress : ncclSuccess;
}

// ----------------------------------------------------------------------------------------- the API

ncclResult_t get_version(int *version) {
    *version = NCCL_VERSION_CODE;
    return ncclSuccess;
}

const char *error_string(ncclResult_t result) {
    static const char *const texts[] = {"no error",
                                        "unhandled cuda error",
                                        "unhandled system error",
                                        "internal error",
                                        "invalid argument",
                                        "invalid usage",
                                        "remote process exited or there was a network error",
                                        "NCCL operation in progress"};
    return (size_t)result < sizeof texts / sizeof *texts ? texts[result] : "unknown result code";
}

const char *last_error(ncclComm_t handle) {
    return handle ? known(handle, "ncclGetLastError")->said : "";
}

const char ID_PREFIX[] = "sim-nccl-";

ncclResult_t get_unique_id(ncclUniqueId *id) {
    unsigned char random[16];
    if (getrandom(random, sizeof random, 0) != (ssize_t)sizeof random) return ncclSystemError;
    memset(id, 0, sizeof *id);
    size_t n = (size_t)snprintf(id->internal, sizeof id->internal, "%s", ID_PREFIX);
    for (unsigned char byte : random)
        n += (size_t)snprintf(id->internal + n, sizeof id->internal - n, "%02x", byte);
    return ncclSuccess;
}

ncclResult_t init_rank(ncclComm_t *handle, int size, ncclUniqueId id, int rank,
                       ncclConfig_t *config) {
    const char *base = sim::setting("SIM_NCCL_DIR");
    if (live.comm) fatal("ncclCommInitRankConfig: one communicator is simulated");
    if (!config || config->size != sizeof *config || config->magic != 0xcafebeef)
        fatal("ncclCommInitRankConfig: the configuration does not start from "
              "NCCL_CONFIG_INITIALIZER");
    if (config->blocking != 0)
        fatal("ncclCommInitRankConfig: a communicator that blocks is not simulated");
    if (rank < 0 || rank >= size) return ncclInvalidArgument;
    if (!memchr(id.internal, 0, sizeof id.internal) ||
        strncmp(id.internal, ID_PREFIX, strlen(ID_PREFIX)) != 0 || strchr(id.internal, '/'))
        fatal("ncclCommInitRankConfig: the id is not from ncclGetUniqueId");
    const Comm comm = new ncclComm;
    comm->rank = rank, comm->size = size;
    if (config->maxCTAs != NCCL_CONFIG_UNDEF_INT) comm->blocks = config->maxCTAs;
    if (comm->blocks < 1 || comm->blocks > 64) return ncclInvalidArgument;
    comm->settings = read_settings();
    comm->directory = std::string(base ? base : "/dev/shm") + "/" + id.internal;
    comm->join();
    live.comm = comm;
    *handle = comm;
    const double deadline = now() + comm->settings.timeout;
    return later(comm, [=] {
        int missing = -1;
        for (int r = size - 1; r >= 0; r--)
            if (access(comm->rank_file(r).c_str(), F_OK) != 0) missing = r;
        if (missing >= 0 && now() < deadline) return false;
        if (missing >= 0)
            comm->fail(ncclRemoteError, "rank " + std::to_string(missing) + " has not come");
        return true;
    });
}

ncclResult_t get_async_error(ncclComm_t handle, ncclResult_t *result) {
    const Comm comm = known(handle, "ncclCommGetAsyncError");
    if (group_depth) fatal("ncclCommGetAsyncError inside a group");
    if (comm->proceed && comm->error == ncclSuccess) {
        if (--comm->polls > 0 || !comm->proceed()) {
            *result = ncclInProgress;
            return ncclSuccess;
        }
    }
    comm->proceed = nullptr;
    *result = comm->error;
    return ncclSuccess;
}

// All processes meet once more, so that none removes what another one still looks for.
ncclResult_t finalize(ncclComm_t handle) {
    const Comm comm = idle(handle, "ncclCommFinalize");
    if (comm->error != ncclSuccess) return comm->error;
    Collective *last =
        new_collective(comm, FINALIZE, ncclInt8, std::vector<Part>((size_t)comm->size));
    return later(comm, [=, sent = false]() mutable {
        if (comm->has_stream && !sim::stream_advance(comm->stream)) return false;
        if (!sent) last->send();
        sent = true;
        comm->finalized = last->look(true);
        return comm->finalized;
    });
}

ncclResult_t destroy(ncclComm_t handle) {
    const Comm comm = idle(handle, "ncclCommDestroy");
    if (!comm->finalized) fatal("ncclCommDestroy before ncclCommFinalize is done");
    comm->leave();
    live.comm = nullptr;
    return ncclSuccess;
}

ncclResult_t abort_comm(ncclComm_t handle) {
    const Comm comm = known(handle, "ncclCommAbort");
    comm->aborted = true;
    comm->proceed = nullptr;
    comm->leave();
    group.clear();
    live.comm = nullptr;
    return ncclSuccess;
}

ncclResult_t group_start() {
    group_depth++;
    return ncclSuccess;
}
ncclResult_t group_end() {
    if (group_depth == 0) fatal("ncclGroupEnd without ncclGroupStart");
    return --group_depth ? ncclSuccess : run_group();
}

ncclResult_t send(const void *buffer, size_t count, ncclDataType_t type, int peer, ncclComm_t comm,
                  cudaStream_t s) {
    return transfer("ncclSend", true, const_cast<void *>(buffer), count, type, peer, comm, s);
}
ncclResult_t recv(void *buffer, size_t count, ncclDataType_t type, int peer, ncclComm_t comm,
                  cudaStream_t s) {
    return transfer("ncclRecv", false, buffer, count, type, peer, comm, s);
}

ncclResult_t all_gather(const void *mine, void *all, size_t count, ncclDataType_t type,
                        ncclComm_t handle, cudaStream_t stream) {
    const Comm comm = idle(handle, "ncclAllGather");
    if (group_depth) fatal("ncclAllGather in a group is not simulated");
    if (comm->error != ncclSuccess) return comm->error;
    const size_t bytes = count * type_of(type).bytes;
    std::vector<Part> parts;
    for (int r = 0; r < comm->size; r++)
        parts.push_back(
            {(const char *)mine, (char *)all + (size_t)r * bytes, (int64_t)count, (int64_t)count});
    return enqueue(new_collective(comm, ALL_GATHER, type, parts), stream);
}
} // namespace

extern "C" {
NcclFunctions nccl = {get_version,     error_string, last_error, get_unique_id, init_rank,
                      get_async_error, finalize,     destroy,    abort_comm,    group_start,
                      group_end,       send,         recv,       all_gather};

static char version_text[32]; // as with the library itself, "" until it is open

bool nccl_library_open(Error *err) {
    if (is_none()) return refuse(err, "NCCL not found: the simulator has one unless SIM_NCCL=none");
    snprintf(version_text, sizeof version_text, "%d.%d.%d", NCCL_MAJOR, NCCL_MINOR, NCCL_PATCH);
    return true;
}
const char *nccl_library_version_text(void) { return version_text; }
}
#endif
