// The place of a process in its run, see place.h: one row for each launcher.
#include "llmc/comm/place.h"

#include "llmc/base/arithmetic.h"
#include "llmc/base/format.h"

#include <ctype.h>
#include <stdlib.h>
#include <string.h>

enum {
    DEFAULT_PORT = 29400, // of -ps without a port
    MAX_PROCESSES = 65536,
    LAST_PORT = 65535,
    SLURM_PORTS = 20000,
    SLURM_PORT_COUNT = 10000, // below the ports that Linux gives to clients, 32768 and more
};

static const char *place_variable(const char *name) {
    const char *value = getenv(name);
    if (value && *value) return value;
    return NULL;
}

static bool place_number(const char *name, const char *text, int64_t min, int64_t max,
                         int64_t *value, Error *err) {
    const size_t digits = text ? strspn(text, "0123456789") : 0;
    if (!text) return error_set(err, "the environment variable %s is missing", name);
    // too large: INT64_MAX
    *value = digits > 0 && text[digits] == '\0' ? strtoll(text, NULL, 10) : -1;
    if (!(*value >= min && *value <= max))
        return error_set(err, "%s is '%.64s'; expected a whole number from %lld to %lld", name,
                         text, (long long)min, (long long)max);
    return true;
}

static bool place_number_variable(const char *name, int min, int max, int *value, Error *err) {
    int64_t number = 0;
    if (!place_number(name, place_variable(name), min, max, &number, err)) return false;
    *value = (int)number;
    return true;
}

bool place_read_seconds(const char *name, double normal, double *seconds, Error *err) {
    const char *text = place_variable(name);
    char *end = NULL;
    *seconds = text ? strtod(text, &end) : normal;
    if (!(*seconds > 0 && *seconds <= 86400 && (!text || !*end)))
        return error_set(err, "%s is '%.40s'; expected seconds, at most a day", name, text);
    return true;
}

static bool place_set_host(Place *place, const char *name, const char *host, size_t length,
                           Error *err) {
    if (length == 0 || length >= sizeof place->host)
        return error_set(err, "%s is '%.64s'; expected the name or address of a machine", name,
                         host);
    memcpy(place->host, host, length);
    place->host[length] = '\0';
    return true;
}

// --------------------------------------------------------------------------------------- launchers

// https://docs.pytorch.org/docs/stable/elastic/run.html, "Environment Variables"
static bool meet_by_torchrun(Place *place, Error *err) {
    const char *host = place_variable("MASTER_ADDR"),
               *run_id = place_variable("TORCHELASTIC_RUN_ID");
    const char *agent = place_variable("TORCHELASTIC_USE_AGENT_STORE");
    // the agent of torchrun listens on MASTER_PORT itself
    const int shift = agent && strcmp(agent, "True") == 0;
    if (!host) return error_set(err, "the environment variable MASTER_ADDR is missing");
    if (!place_number_variable("MASTER_PORT", 1, LAST_PORT - shift, &place->port, err))
        return false;
    place->port += shift;
    snprintf(place->run_id, sizeof place->run_id, "%s", run_id ? run_id : "");
    return place_set_host(place, "MASTER_ADDR", host, strlen(host), err);
}

// https://slurm.schedmd.com/srun.html, "OUTPUT ENVIRONMENT VARIABLES"
static bool meet_by_srun(Place *place, Error *err) {
    int64_t job = 0, step = 0;
    if (!place_number("SLURM_JOB_ID", place_variable("SLURM_JOB_ID"), 0, UINT32_MAX, &job, err) ||
        !place_number("SLURM_STEP_ID", place_variable("SLURM_STEP_ID"), 0, UINT32_MAX, &step, err))
        return false;
    // Jobs that share a machine should not share a port.
    place->port = SLURM_PORTS + (int)((job * 31 + step) % SLURM_PORT_COUNT);
    snprintf(place->run_id, sizeof place->run_id, "%lld.%lld", (long long)job, (long long)step);
    // srun --mpi=pmix, or pmi2
    place->mpi = place_variable("PMIX_RANK") || place_variable("PMI_RANK");

    // Process 0 is on the first node of a list such as "n[01-04,7],x": n01.
    const char *list = place_variable("SLURM_STEP_NODELIST"), *c = list ? list : "";
    size_t n = 0;
    bool in_brackets = false, skips = false; // skips: what follows the first number in brackets
    for (; *c && (in_brackets || *c != ',') && n + 1 < sizeof place->host; c++) {
        if (*c == (in_brackets ? ']' : '[')) {
            in_brackets = !in_brackets;
            skips = false;
        } else if (in_brackets && strchr("-,", *c)) {
            skips = true;
        } else if (!isalnum((unsigned char)*c) && !strchr("-._", *c)) {
            break;
        } else if (!skips) {
            place->host[n++] = *c;
        }
    }
    place->host[n] = '\0';
    if (!(n > 0 && !in_brackets && (*c == '\0' || *c == ',')))
        return error_set(
            err, "SLURM_STEP_NODELIST is '%.64s'; expected names such as n1,n2 or n[01-04,7]",
            list ? list : "");
    return true;
}

static bool meet_by_mpi(Place *place, Error *err) {
    (void)err;
    return place->mpi = true;
}

static const struct Launcher {
    const char *name, *size, *rank, *local_size, *local_rank; // the last four: variables
    bool (*meet)(Place *place, Error *err);
} launchers[] = {
    // One may have started the other: srun starts a torchrun on each machine. The innermost is
    // first.
    {"torchrun", "WORLD_SIZE", "RANK", "LOCAL_WORLD_SIZE", "LOCAL_RANK", meet_by_torchrun},
    // Open MPI; MPICH and those built on it, whose launcher is hydra
    {"mpirun", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE",
     "OMPI_COMM_WORLD_LOCAL_RANK", meet_by_mpi},
    {"mpirun", "PMI_SIZE", "PMI_RANK", "MPI_LOCALNRANKS", "MPI_LOCALRANKID", meet_by_mpi},
    // The script of a batch job has SLURM_NTASKS, but is only one process: srun alone sets this
    // variable.
    {"srun", "SLURM_STEP_NUM_TASKS", "SLURM_PROCID", "", "SLURM_LOCALID", meet_by_srun},
};

// The first launcher that started several processes. A launcher that started a single process is
// ignored, and so are the variables that many containers and Slurm's interactive shells set: --gpus
// N works there.
static bool place_from_environment(Place *place, Error *err) {
    for (size_t i = 0; i < sizeof launchers / sizeof launchers[0]; i++) {
        const struct Launcher *l = &launchers[i];
        Place found = *place;
        if (!place_variable(l->size) || !place_variable(l->rank)) continue;

        // srun also sets PMI_SIZE, and starts hydra's helpers: what srun does not set tells them
        // apart.
        const bool by_slurm =
            place_variable("SLURM_STEP_NUM_TASKS") && !place_variable(l->local_size);
        if (strcmp(l->size, "PMI_SIZE") == 0 && by_slurm) continue;
        if (!place_number_variable(l->size, 1, MAX_PROCESSES, &found.size, err) ||
            !place_number_variable(l->rank, 0, found.size - 1, &found.rank, err))
            return false;

        if (found.size == 1) continue;
        if (place_variable(l->local_size) &&
            !place_number_variable(l->local_size, 1, found.size, &found.local_size, err))
            return false;

        const int local = (int)positive_or(found.local_size, found.size);
        if (place_variable(l->local_rank) &&
            !place_number_variable(l->local_rank, 0, local - 1, &found.local_rank, err))
            return false;

        found.launcher = "--gpus";
        if (!place_variable(COMM_LAUNCHER)) found.launcher = l->name;
        if (!l->meet(&found, err)) return error_prefix(err, "%s", l->name);
        *place = found;
        return true;
    }
    return true;
}

// ----------------------------------------------------------------------------------------- options

// HOST, HOST:PORT, [IPV6]:PORT, or an IPv6 address alone.
static bool place_read_server(Place *place, const char *server, Error *err) {
    const char *host = server, *end = server + strlen(server), *port = NULL,
               *colon = strchr(server, ':');
    if (*server == '[') {
        host++;
        end = strchr(host, ']');
        if (!end || (end[1] && end[1] != ':'))
            return error_set(err, "-ps is '%.64s'; expected [ADDRESS]:PORT", server);
        if (end[1]) port = end + 2;
    } else if (colon && !strchr(colon + 1, ':')) {
        end = colon;
        port = colon + 1;
    }

    int64_t number = place->port;
    if (port && !place_number("the port of -ps", port, 1, LAST_PORT, &number, err)) return false;
    place->port = (int)number;
    return place_set_host(place, "-ps", host, (size_t)(end - host), err);
}

bool place_find(Place *place, const CommOptions *o, bool has_mpi, Error *err) {
    const char *method = o->method ? o->method : "", *server = o->server ? o->server : "";
    const bool wants_mpi = strcmp(method, "mpi") == 0, by_options = o->size > 1;
    *place = (Place){
        .launcher = "", .size = 1, .local_rank = -1, .local_size = -1, .port = DEFAULT_PORT};
    if (*method && !wants_mpi && strcmp(method, "tcp") != 0)
        return error_set(
            err, "-pi %.64s is not supported; use -pi tcp with -ps HOST:PORT, or -pi mpi", method);

    // -pn with -ps takes precedence over the environment; -pn with -pi mpi is for an MPI whose
    // variables are not above.
    if ((!by_options || !*server || wants_mpi) && !place_from_environment(place, err)) return false;
    const char *run_id = place_variable(COMM_RUN_ID);
    if (place->size == 1 && by_options) {
        if (!*server && !*method)
            return error_set(err,
                             "-pn %d: no launcher has started these processes; start them by "
                             "mpirun, torchrun, srun or "
                             "--gpus %d, or add -pi tcp -pr RANK -ps HOST:PORT",
                             o->size, o->size);
        if (o->rank >= o->size)
            return error_set(err, "-pr is %d; expected 0 to %d, as -pn is %d", o->rank, o->size - 1,
                             o->size);
        place->launcher = "-pn";
        place->size = o->size;
        place->rank = o->rank;
    }
    if (run_id) snprintf(place->run_id, sizeof place->run_id, "%s", run_id);
    if (by_options && o->size != place->size)
        return error_set(err, "-pn is %d, but %s has started %d; leave -pn out", o->size,
                         place->launcher, place->size);
    if (place->size == 1) {
        *place = (Place){.launcher = "", .size = 1, .local_size = 1};
        return true;
    }
    if (o->gpus > 0 && o->gpus != place->size)
        return error_set(err, "--gpus is %d, but %s has started %d; leave --gpus out", o->gpus,
                         place->launcher, place->size);

    if (*method) place->mpi = wants_mpi;
    if (!has_mpi && !wants_mpi && *place->host) place->mpi = false; // srun says where process 0 is
    if (place->mpi && !has_mpi)
        return error_set(err,
                         "%s: this program was built without MPI; install libopenmpi-dev and "
                         "openmpi-bin and run make "
                         "again; on GPUs --gpus N, torchrun and srun do without it",
                         place->launcher);
    if (!place->mpi && *server && !place_read_server(place, server, err)) return false;
    if (!place->mpi && !*place->host)
        return error_set(
            err, "-pi tcp: where process 0 runs is not said; give -ps HOST or -ps HOST:PORT");
    if (o->per_node > 0 && place->local_rank < 0) {
        // the last machine may have fewer
        const int before = place->rank / o->per_node * o->per_node;
        place->local_rank = place->rank - before;
        place->local_size = (int)min_i64(o->per_node, place->size - before);
    }
    return true;
}
