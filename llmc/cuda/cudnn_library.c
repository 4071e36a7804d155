// Loading cuDNN: see cudnn_library.h.
#include "llmc/cuda/cudnn_library.h"

#ifdef HAVE_CUDNN
#include "llmc/base/format.h"
#include "llmc/cuda/library_loader.h"
#include <dlfcn.h>
#include <stdio.h>

enum { OLDEST_VERSION = 91501 };

CudnnFunctions cudnn;

static LibraryState state;
static int version;
static char version_text[32];

bool cudnn_failed(Error *err, const char *what, cudnnStatus_t status) {
    char last[300] = "";
    cudnn.cudnnGetLastErrorString(last, sizeof last);
    library_message_one_line(last);
    const bool said = last[0] != '\0';
    return error_set(err, "%s: %s%s%s%s", what, cudnn.cudnnGetErrorString(status), said ? " (" : "",
                     last, said ? ")" : "");
}

static bool load_cudnn(Error *err) {
#define FUNCTION(name) {#name, &cudnn.name},
    static const LibraryFunction functions[] = {CUDNN_FUNCTIONS(FUNCTION)};
#undef FUNCTION
    const char *file;
    void *handle = library_find("CUDNN_LIBRARY", "libcudnn.so.9", &file);
    if (!handle) return error_set(err, "cuDNN not found: %s", dlerror());
    if (!library_functions(handle, file, functions, sizeof functions / sizeof *functions, err))
        return false;
    version = (int)cudnn.cudnnGetVersion();
    snprintf(version_text, sizeof version_text, "%d.%d.%d", version / 10000, version / 100 % 100,
             version % 100);
    if (version < OLDEST_VERSION)
        return error_set(err, "%s is cuDNN %s, 9.15.1 or newer is needed", file, version_text);
    return true;
}

bool cudnn_library_open(Error *err) { return library_open_once(&state, load_cudnn, err); }
int cudnn_library_version(void) {
    if (state.usable) return version;
    return 0;
}
const char *cudnn_library_version_text(void) { return version_text; }

#else

bool cudnn_library_open(Error *err) {
    return error_set(err, "built without cuDNN (headers of 9.8 or newer)");
}
int cudnn_library_version(void) { return 0; }
const char *cudnn_library_version_text(void) { return ""; }

#endif
