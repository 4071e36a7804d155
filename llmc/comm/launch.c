#include "llmc/comm/channel.h"
#include <stdlib.h>
bool comm_find_place(Place *place, const CommOptions *options, Error *err) {
    (void)options, (void)err;
    if (!getenv("OMPI_COMM_WORLD_SIZE")) return true;
    place->launcher = "mpirun", place->mpi = true;
    place->size = atoi(getenv("OMPI_COMM_WORLD_SIZE"));
    place->rank = atoi(getenv("OMPI_COMM_WORLD_RANK"));
    return true;
}
int comm_launch(int count, char **argv) {
    (void)count, (void)argv;
    return 1;
}
const Channel *channel_tcp_open(Place *place, Error *err) {
    (void)place, (void)err;
    return NULL;
}
