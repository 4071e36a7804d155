// Loading NCCL: one dlopen, one table of functions, one check of the version. See nccl.h.
#include "llmc/cuda/nccl.h"

#ifdef HAVE_NCCL
#include <dlfcn.h>
#include <stdlib.h>

enum { OLDEST_VERSION = 21800 };

NcclFunctions nccl;

static struct {
    bool tried, usable;
    char version_text[32];
    Error why; // that it is not usable
} library;

static bool load_functions(void *handle, const char *file, Error *err) {
#define LOAD_FUNCTION(name)                                                                                            \
    *(void **)&nccl.name = dlsym(handle, #name);                                                                       \
    if (!nccl.name) return error_set(err, "%s has no function %s: NCCL 2.18 or newer is needed", file, #name);
    NCCL_FUNCTIONS(LOAD_FUNCTION)
#undef LOAD_FUNCTION
    return true;
}

static bool load(Error *err) {
    const char *chosen = getenv("NCCL_LIBRARY"), *file = chosen && chosen[0] ? chosen : "libnccl.so.2";
    int version = 0;
    // Never closed: NCCL has threads of its own.
    void *handle = dlopen(file, RTLD_NOW | RTLD_LOCAL);
    if (!handle)
        return error_set(err,
                         "NCCL not found: %s; install libnccl2 (or: pip install nvidia-nccl-cu%d), or set NCCL_LIBRARY "
                         "to its file",
                         dlerror(), CUDART_VERSION / 1000);
    if (!load_functions(handle, file, err)) return false;
    if (nccl.ncclGetVersion(&version) != ncclSuccess) return error_set(err, "%s does not tell its version", file);
    const int major = version / 10000, minor = version / 100 % 100, patch = version % 100; // from 2.9 on
    if (version < OLDEST_VERSION)
        return error_set(err, "%s is too old (version code %d): NCCL 2.18 or newer is needed", file, version);
    snprintf(library.version_text, sizeof library.version_text, "%d.%d.%d", major, minor, patch);
    return true;
}

bool nccl_library_open(Error *err) {
    if (!library.tried) {
        library.usable = load(&library.why);
        library.tried = true;
    }
    return library.usable || error_set(err, "%s", library.why.text);
}

const char *nccl_library_version_text(void) { return library.version_text; }

#else

bool nccl_library_open(Error *err) {
    return error_set(err,
                     "built without NCCL (no header nccl.h of 2.18 or newer): install libnccl-dev and build again");
}
const char *nccl_library_version_text(void) { return ""; }

#endif
