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
    if (!nccl.name) return error_set(err, "%s has no function %s", file, #name);
    NCCL_FUNCTIONS(LOAD_FUNCTION)
#undef LOAD_FUNCTION
    return true;
}

// From 2.9 on the version code is 10000, 100 and 1 times the three parts of the version.
static bool check_version(void *handle, const char *file, Error *err) {
    int code = 0;
    *(void **)&nccl.ncclGetVersion = dlsym(handle, "ncclGetVersion");
    if (!nccl.ncclGetVersion || nccl.ncclGetVersion(&code) != ncclSuccess) return error_set(err, "%s is no NCCL", file);
    snprintf(library.version_text, sizeof library.version_text, "%d.%d.%d", code / 10000, code / 100 % 100, code % 100);
    return code >= OLDEST_VERSION ||
           error_set(err, "%s is too old (version code %d): NCCL 2.18 or newer is needed", file, code);
}

static bool load(Error *err) {
    const char *chosen = getenv("NCCL_LIBRARY"), *file = chosen && chosen[0] ? chosen : "libnccl.so.2";
    void *handle = dlopen(file, RTLD_NOW | RTLD_LOCAL); // never closed: NCCL has threads of its own
    if (!handle)
        return error_set(err,
                         "NCCL not found: %s; install libnccl2 (or: pip install nvidia-nccl-cu%d), or set NCCL_LIBRARY "
                         "to its file",
                         dlerror(), CUDART_VERSION / 1000);
    return check_version(handle, file, err) && load_functions(handle, file, err);
}

bool nccl_library_open(Error *err) {
    if (!library.tried) {
        library.usable = load(&library.why);
        library.tried = true;
    }
    return library.usable || error_set(err, "%s", library.why.text);
}

const char *nccl_library_version_text(void) { return library.usable ? library.version_text : ""; }

#else

bool nccl_library_open(Error *err) {
    return error_set(err,
                     "built without NCCL (no header nccl.h of 2.18 or newer): install libnccl-dev and build again");
}
const char *nccl_library_version_text(void) { return ""; }

#endif
