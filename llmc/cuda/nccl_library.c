// Loading NCCL: see nccl_library.h.
#include "llmc/cuda/nccl_library.h"

#ifdef HAVE_NCCL
#include "llmc/base/format.h"
#include "llmc/cuda/library_loader.h"
#include <cuda_runtime_api.h>
#include <dlfcn.h>
#include <stdio.h>

enum { OLDEST_VERSION = 21800 };

NcclFunctions nccl;

static LibraryState state;
static char version_text[32];

// The version first: an old library lacks functions. From 2.9 on its code is 10000, 100 and 1 times
// the three parts.
static bool load_nccl(Error *err) {
#define FUNCTION(name) {#name, &nccl.name},
    static const LibraryFunction functions[] = {NCCL_FUNCTIONS(FUNCTION)};
#undef FUNCTION

    const char *file;
    int code = 0;
    void *handle = library_find("NCCL_LIBRARY", "libnccl.so.2", &file);
    if (!handle)
        return error_set(err,
                         "NCCL not found: %s; install libnccl2 (or: pip install nvidia-nccl-cu%d), "
                         "or set NCCL_LIBRARY "
                         "to its file",
                         dlerror(), CUDART_VERSION / 1000);

    if (!library_functions(handle, file, functions, 1, err) ||
        nccl.ncclGetVersion(&code) != ncclSuccess)
        return error_set(err, "%s is no NCCL", file);

    snprintf(version_text, sizeof version_text, "%d.%d.%d", code / 10000, code / 100 % 100,
             code % 100);
    if (code < OLDEST_VERSION)
        return error_set(err, "%s is too old (version code %d): NCCL 2.18 or newer is needed", file,
                         code);
    return library_functions(handle, file, functions, sizeof functions / sizeof *functions, err);
}

bool nccl_library_open(Error *err) { return library_open_once(&state, load_nccl, err); }
const char *nccl_library_version_text(void) { return state.usable ? version_text : ""; }

#else

bool nccl_library_open(Error *err) {
    return error_set(err, "built without NCCL (no header nccl.h of 2.18 or newer): install "
                          "libnccl-dev and build again");
}
const char *nccl_library_version_text(void) { return ""; }

#endif
