// Loading cuDNN: one dlopen, one table of functions, one check of the version. See cudnn_graph.h.
#include "llmc/cuda/cudnn_graph.h"

#ifdef HAVE_CUDNN
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { OLDEST_VERSION = 91501 };

CudnnFunctions cudnn;

static struct {
    bool tried, usable;
    int version;
    char version_text[32];
    Error why; // that it is not usable
} library;

// cuDNN's text may have many lines; the first ones say what matters.
static void make_one_line(char *text) {
    size_t end = strlen(text);
    while (end > 0 && text[end - 1] == '\n') text[--end] = '\0';
    for (char *c = text; *c; c++)
        if (*c == '\n') *c = ' ';
}

bool cudnn_failed(Error *err, const char *what, cudnnStatus_t status) {
    char last[300] = "";
    cudnn.cudnnGetLastErrorString(last, sizeof last);
    make_one_line(last);
    const bool said = last[0] != '\0';
    return error_set(err, "%s: %s%s%s%s", what, cudnn.cudnnGetErrorString(status), said ? " (" : "", last,
                     said ? ")" : "");
}

static bool load_functions(void *handle, const char *file, Error *err) {
#define LOAD_FUNCTION(name)                                                                                            \
    *(void **)&cudnn.name = dlsym(handle, #name);                                                                      \
    if (!cudnn.name) return error_set(err, "%s has no function %s", file, #name);
    CUDNN_FUNCTIONS(LOAD_FUNCTION)
#undef LOAD_FUNCTION
    return true;
}

static bool load(Error *err) {
    const char *chosen = getenv("CUDNN_LIBRARY"), *file = chosen && chosen[0] ? chosen : "libcudnn.so.9";
    // Never closed: cuDNN loads six more libraries by itself, which do not leave with it.
    void *handle = dlopen(file, RTLD_NOW | RTLD_LOCAL);
    if (!handle) return error_set(err, "cuDNN not found: %s", dlerror());
    if (!load_functions(handle, file, err)) return false;
    library.version = (int)cudnn.cudnnGetVersion();
    const int major = library.version / 10000, minor = library.version / 100 % 100, patch = library.version % 100;
    snprintf(library.version_text, sizeof library.version_text, "%d.%d.%d", major, minor, patch);
    if (library.version < OLDEST_VERSION)
        return error_set(err, "%s is cuDNN %s, 9.15.1 or newer is needed", file, library.version_text);
    return true;
}

bool cudnn_library_open(Error *err) {
    if (!library.tried) {
        library.usable = load(&library.why);
        library.tried = true;
    }
    return library.usable || error_set(err, "%s", library.why.text);
}

int cudnn_library_version(void) { return library.usable ? library.version : 0; }
const char *cudnn_library_version_text(void) { return library.version_text; }

#else

bool cudnn_library_open(Error *err) { return error_set(err, "built without cuDNN (headers of 9.8 or newer)"); }
int cudnn_library_version(void) { return 0; }
const char *cudnn_library_version_text(void) { return ""; }

#endif
