// The channel of MPI, see channel_mpi.h.
#include "llmc/comm/channel_mpi.h"

#include "llmc/comm/mpi_library.h"

#ifdef HAVE_MPI
#include <limits.h>

static bool mpi_exchange(ExchangeKind kind, const void *mine, void *all, size_t bytes, Error *err) {
    const int n = (int)bytes;
    MPI_Request request;
    REQUIRE(bytes <= INT_MAX, "a message of %zu bytes", bytes);
    if (kind == EXCHANGE_GATHER) {
        const int status = mpi.MPI_Iallgather(mine, n, mpi.byte, all, n, mpi.byte, mpi.world, &request);
        return mpi_await("MPI_Iallgather", status, &request, err);
    }
    const int status = mpi.MPI_Ibcast(all, n, mpi.byte, 0, mpi.world, &request);
    return mpi_await("MPI_Ibcast", status, &request, err);
}

static void mpi_close(int exit_code) {
    if (exit_code) mpi.MPI_Abort(mpi.world, exit_code);
    mpi.MPI_Finalize();
    *mpi.name = '\0';
}

static const Channel *mpi_connect(Place *place, Error *err) {
    static const Channel CHANNEL = {"MPI", mpi_exchange, mpi_close};
    if (!mpi_open(err)) return NULL;
    place->rank = mpi.rank;
    if (mpi.size == place->size) return &CHANNEL;
    error_set(err, "%s knows %d processes, %s says %d; was another MPI used to start them?", mpi.name, mpi.size,
              place->launcher, place->size);
    return NULL;
}

const Channel *(*const channel_mpi_open)(Place *place, Error *err) = mpi_connect;

#else

const Channel *(*const channel_mpi_open)(Place *place, Error *err) = NULL;

#endif
