// Several processes of one run, see processes.h.
#include "llmc/run/processes.h"

#include "llmc/base/arithmetic.h"
#include "llmc/base/file.h"
#include "llmc/base/limits.h"
#include "llmc/base/signals.h"
#include "llmc/comm/watch.h"
#include "llmc/device.h"
#include "llmc/model/model_state.h"
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

// ----------------------------------------------------------------------------------------- meeting

bool processes_meet(const Options *o, Error *err) {
    enum { MOST = 8 * sizeof o->given }; // rows of the table
    char names[MOST][64], values[MOST][OPTION_VALUE], build[32];
    CommFact facts[MOST];
    int n = 0;

    CommOptions comm = {.rank = o->process_rank,
                        .per_node = o->gpus_per_node,
                        .method = o->init_method,
                        .server = o->server_ip,
                        .gpus = o->gpus,
                        .timeout = options_environment("PRETRAIN_COMM_TIMEOUT")};

    if (options_given(o, "num-processes")) comm.size = o->num_processes;
    if (!comm_start(&comm, err)) return false;
    if (comm_size() == 1) return true;

    if (comm_rank() > 0) {
        FILE *nowhere = fopen("/dev/null", "we");
        if (!nowhere) return error_set(err, "/dev/null cannot be opened");
        stdout = nowhere;
    }

    int64_t bytes;
    uint64_t sum = 0; // of the program: others may compute other bits
    file_checksum("/proc/self/exe", &bytes, &sum, NULL);
    snprintf(build, sizeof build, "%016llx", (unsigned long long)sum);
    // first: another one may have other options
    const CommFact program = {"the program file with checksum", build};
    if (!comm_agree(&program, 1, err)) return false;

    for (const OptionRow *row = option_table; row->long_name; row++) {
        // These say which process it is.
        if (strcmp(row->long_name, "process-rank") == 0 || strcmp(row->long_name, "server-ip") == 0)
            continue;
        snprintf(names[n], sizeof names[n], "--%s", row->long_name);
        facts[n] = (CommFact){names[n], option_value(row, o, values[n])};
        n++;
    }

    static const char *const variables[] = {"PRETRAIN_COMM_TIMEOUT", "PRETRAIN_GRAPHS",
                                            "PRETRAIN_TUNE"};
    for (size_t i = 0; i < sizeof variables / sizeof *variables; i++, n++) {
        snprintf(values[n], sizeof values[n], "%d", options_environment(variables[i]));
        facts[n] = (CommFact){variables[i], values[n]};
    }

    return comm_agree(facts, n, err);
}

// ----------------------------------------------------------------------------------------- devices

// Two processes on one GPU would wait for each other.
static bool check_distinct(Error *err) {
    enum { ID = sizeof device_facts()->id };
    char(*all)[ID] = comm_gather_new(device_facts()->id, ID, err);
    bool ok = all != NULL;
    for (int i = 0; ok && i < comm_size(); i++)
        for (int k = 0; ok && k < i; k++)
            if (*all[i] && strcmp(all[i], all[k]) == 0 && strcmp(comm_host(i), comm_host(k)) == 0)
                ok = error_set(err,
                               "processes %d and %d on %s have the same GPU (%s); start one "
                               "process for each GPU",
                               k, i, comm_host(i), all[i]);
    free(all);
    return ok;
}

bool processes_min(double *value, Error *err) {
    double *all = comm_gather_new(value, sizeof *value, err);
    const bool ok = all != NULL;
    for (int i = 0; ok && i < comm_size(); i++) *value = fmin(*value, all[i]);
    free(all);
    return ok;
}

bool processes_share_text(char **text, Error *err) {
    int64_t bytes = *text ? (int64_t)strlen(*text) + 1 : 0;
    if (!comm_broadcast(&bytes, sizeof bytes, err)) return false;
    if (comm_rank() > 0) {
        free(*text);
        *text = NULL;
        if (bytes > 0) *text = malloc((size_t)bytes);
        REQUIRE_MEMORY(*text || bytes == 0, "a text of process 0");
    }
    if (bytes == 0) return true;
    return comm_broadcast(*text, (size_t)bytes, err);
}

bool processes_share_threads(const Options *options, int *threads, Error *err) {
    if (comm_size() == 1 || options->threads > 0) return true;
    double least = (double)positive_or(*threads, limits_processors());
    const bool ok = processes_min(&least, err);
    *threads = (int)least;
    return ok;
}

// NCCL allocates when a process first sends to another: without this within the first step, where a
// plan that fills the GPU has left nothing.
static bool connect_all(Error *err) {
    enum { LARGEST = 1 << 20, MOST = 64 << 20, REQUEST = 0 }; // bytes: for each process, for all
    const int size = comm_size();
    const int64_t part = min_i64(LARGEST, MOST / size / 4 * 4);
    const size_t peak = device_memory_peak();
    Range *parts = calloc((size_t)size, sizeof *parts);
    REQUIRE_MEMORY(parts, "the parts of a request");

    for (int r = 0; r < size; r++) parts[r] = (Range){r * part, (r + 1) * part};
    char *send = device_alloc((size_t)(2 * size * part), err);
    bool ok = comm_all_ok(send != NULL, err);

    if (ok) {
        watch_collective("first exchange");
        ok = (device_all_to_all(send + size * part, send, parts, REQUEST, err) &&
              device_comm_wait(REQUEST, err) && device_all_gather(send, parts, REQUEST, err) &&
              device_comm_wait(REQUEST, err)) ||
             comm_lost(err);
    }

    free(parts);
    if (!ok) return false; // freeing would wait for a request that may never end

    device_sync();
    device_free(send);
    device_memory_peak_restore(peak);
    return true;
}

bool processes_connect_devices(Error *err) {
    if (comm_size() == 1) return true;
    char id[DEVICE_COMM_ID_BYTES] = {0};

    // All processes must compute on the same kind of device.
    const DeviceFacts *d = device_facts();
    const bool on_cpu = strcmp(d->backend, "cpu") == 0; // its name has the number of threads
    char threads[16];
    snprintf(threads, sizeof threads, "%d", d->units);
    CommFact facts[3] = {{"the device", d->name}, {"the libraries", d->libraries}};
    int count = 2;
    if (on_cpu) {
        facts[0].value = d->backend;
        facts[count++] = (CommFact){"--threads", threads};
    }
    if (!comm_agree(facts, count, err)) return false;
    if (!comm_all_ok(check_distinct(err), err)) return false;

    // Process 0 names the connection, and all join it.
    if (!comm_all_ok(comm_rank() > 0 || device_comm_id(id, err), err)) return false;
    if (!comm_broadcast(id, sizeof id, err)) return false;
    const bool joined = device_comm_start(id, comm_rank(), comm_size(),
                                          options_environment("PRETRAIN_COMM_TIMEOUT"), err);
    if (!comm_all_ok(joined, err)) return false;
    watch_device(device_comm_failed);
    if (on_cpu) return true;
    return connect_all(err);
}

// ------------------------------------------------------------------------------------------ tuning

// A micro-step of B empty sequences.
static bool try_micro_step(Model *model, int64_t B, int64_t tokens, Error *err) {
    const int64_t bytes = B * (model_options(model)->T + 1) * 2;
    void *windows = host_alloc((size_t)bytes, err);
    if (!windows) return false;
    memset(windows, 0, (size_t)bytes);
    model_load_batch(model, windows, B, model_options(model)->T, 2);
    model_forward_backward(model, tokens, true);
    device_sync();
    host_free(windows);
    return true;
}

// Runs each shape of a step once, and an update that is skipped because its loss is not a number.
static bool try_step(Model *model, Optimizer *optimizer, const StepShare *share, Error *err) {
    const StepControl control = model_get_control(model);
    const int64_t tokens = share->step_windows * model_options(model)->T;
    const int64_t smaller = share->step_windows / share->groups,
                  larger = ceil_div(share->step_windows, share->groups);
    bool ok = true;

    for (int64_t windows = smaller; ok && windows <= larger;
         windows++) { // the two sizes of a group
        if (windows >= share->B) ok = try_micro_step(model, share->B, tokens, err);
        if (ok && windows % share->B > 0)
            ok = try_micro_step(model, windows % share->B, tokens, err);
    }

    tensor_fill(model_step_losses(model), NAN);
    optimizer_norm(optimizer);
    optimizer_step(optimizer, 0.0, tokens, false);
    model_set_control(model, &control);
    return ok;
}

bool processes_share_tuning(Model *model, Optimizer *optimizer, const StepShare *share,
                            Error *err) {
    // the CPU chooses nothing
    if (comm_size() == 1 || strcmp(device_facts()->backend, "cpu") == 0) return true;
    if (!comm_all_ok(comm_rank() > 0 || try_step(model, optimizer, share, err), err)) return false;
    char *lines = device_tuning();
    const bool ok = processes_share_text(&lines, err) &&
                    (comm_rank() == 0 || device_restore_tuning(lines) ||
                     error_set(err, "the choices of process 0 do not fit this GPU"));
    free(lines);
    return comm_all_ok(ok, err);
}

// ---------------------------------------------------------------------------------------- numerics

bool processes_sum_numerics(NumericsRow *rows, int count, Error *err) {
    if (comm_size() == 1) return true;
    NumericsRow *all = comm_gather_new(rows, (size_t)count * sizeof *rows, err);
    const bool ok = all != NULL;
    for (int r = 0; ok && r < count; r++) {
        if (!rows[r].of_process) continue; // all processes have the same
        TensorStats *sum = &rows[r].stats;
        memset(sum, 0, sizeof *sum);
        for (int i = 0; i < comm_size(); i++) {
            const TensorStats *s = &all[i * count + r].stats;
            sum->count += s->count;
            sum->sumsq += s->sumsq;
            sum->zero += s->zero;
            sum->underflow += s->underflow;
            sum->overflow += s->overflow;
            sum->amax = fmaxf(sum->amax, s->amax);
        }
    }
    free(all);
    return ok;
}

// ----------------------------------------------------------------------------------- between steps

bool processes_compare_weights(const Model *model, int64_t step, Error *err) {
    enum { PIECE = 4 << 20 };
    if (comm_size() == 1) return true;
    void *bytes = host_alloc(PIECE, err);
    if (!comm_all_ok(bytes != NULL, err)) return false;

    uint64_t sum = 0;
    for (int i = 0; i < model_num_tensors(model); i++) {
        const Tensor weight = model_tensors(model)[i].weight;
        const int64_t size = (int64_t)tensor_bytes(weight);
        for (int64_t first = 0; first < size; first += PIECE) {
            const int64_t n = min_i64(PIECE, size - first);
            model_read_bytes(model, weight, first, n, bytes);
            sum = XXH3_64bits_withSeed(bytes, (size_t)n, sum);
        }
    }
    host_free(bytes);

    char name[64], value[32];
    snprintf(name, sizeof name, "after step %lld weights with checksum", (long long)step);
    snprintf(value, sizeof value, "%016llx", (unsigned long long)sum);
    return comm_agree(&(CommFact){name, value}, 1, err);
}

bool processes_decide(BetweenSteps *now, Error *err) {
    if (comm_size() == 1) return true;
    BetweenSteps *all = comm_gather_new(now, sizeof *now, err);
    const bool ok = all != NULL;
    if (ok) *now = all[0];
    for (int i = 1; ok && i < comm_size() && now->signal == 0; i++) now->signal = all[i].signal;
    if (ok) signals_agree(now->signal);
    free(all);
    return ok;
}
