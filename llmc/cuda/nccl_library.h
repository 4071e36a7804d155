// NCCL, found at run time: the library and a table of the functions that nccl.c calls. The program
// neither links with it nor needs it unless it runs as several processes. It is looked for as
// $NCCL_LIBRARY if that is set, else as libnccl.so.2 where the dynamic linker looks (directories of
// LD_LIBRARY_PATH and ldconfig; Python's wheels put it into site-packages/nvidia/nccl/lib). It
// stays open until the process ends. In the simulator dev/sim/nccl_sim.cpp takes the place of
// nccl_library.c, which loads it.
//
// Where <nccl.h> is missing or -DWITHOUT_NCCL is given, nccl.c compiles to the one answer that
// there is no NCCL.
#pragma once
#include "llmc/base/error.h"

#if !defined(WITHOUT_NCCL) && defined(__has_include)
#if __has_include(<nccl.h>)
#include <nccl.h>
#if NCCL_VERSION_CODE >= 21800
#define HAVE_NCCL
#endif
#endif
#endif

#ifdef __cplusplus
extern "C" {
#endif

// Loads the library at the first call; later calls give the same answer. False, with the reason,
// when there is none or it is older than 2.18.
bool nccl_library_open(Error *err);
const char *nccl_library_version_text(void); // "2.28.9"; "" while it is not open

#ifdef HAVE_NCCL
// There is no reduction among them, and there must not be: NCCL adds in an order of its own choice.
#define NCCL_FUNCTIONS(F)                                                                          \
    F(ncclGetVersion)                                                                              \
    F(ncclGetErrorString)                                                                          \
    F(ncclGetLastError)                                                                            \
    F(ncclGetUniqueId)                                                                             \
    F(ncclCommInitRankConfig)                                                                      \
    F(ncclCommGetAsyncError)                                                                       \
    F(ncclCommFinalize)                                                                            \
    F(ncclCommDestroy)                                                                             \
    F(ncclCommAbort)                                                                               \
    F(ncclGroupStart)                                                                              \
    F(ncclGroupEnd)                                                                                \
    F(ncclSend)                                                                                    \
    F(ncclRecv)                                                                                    \
    F(ncclAllGather)

// nccl.ncclSend(...) is ncclSend(...). All NULL until nccl_library_open has returned true.
typedef struct {
#define NCCL_FUNCTION(name) __typeof__(name) *name;
    NCCL_FUNCTIONS(NCCL_FUNCTION)
#undef NCCL_FUNCTION
} NcclFunctions;
extern NcclFunctions nccl;
#endif

#ifdef __cplusplus
}
#endif
