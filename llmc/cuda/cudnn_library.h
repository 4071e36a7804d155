// cuDNN, found at run time: the library and a table of the functions that cudnn_graph.h and its
// files call. The program neither links with it nor needs it. It is looked for as $CUDNN_LIBRARY if
// that is set, else as libcudnn.so.9 where the dynamic linker looks (directories of LD_LIBRARY_PATH
// and ldconfig; where Python's wheels put it: site-packages/nvidia/cudnn/lib). It stays open until
// the process ends. In the simulator dev/sim/cudnn_sim.cpp takes the place of cudnn_library.c,
// which loads it.
//
// Where <cudnn.h> is missing, too old, or -DWITHOUT_CUDNN is given, the cudnn_ files compile to the
// one answer that there is no cuDNN.
#pragma once
#include "llmc/base/error.h"

#if !defined(WITHOUT_CUDNN) && defined(__has_include)
#if __has_include(<cudnn.h>)
#include <cudnn.h>
#if CUDNN_VERSION >=                                                                               \
    90800 // the first with device properties of its own, CUDNN_BACKEND_DEVICEPROP_DESCRIPTOR
#define HAVE_CUDNN
#endif
#endif
#endif

#ifdef __cplusplus
extern "C" {
#endif

// Loads the library at the first call; later calls give the same answer. False, with the reason,
// when there is none or it is older than 9.15.1: before that, backward plans of contexts that are
// not a multiple of 128 give wrong gradients unless a padding mask is added (and
// before 9.10.2, 9.10 and 9.6 other ways of writing the graph were needed).
bool cudnn_library_open(Error *err);

int cudnn_library_version(void);              // 91900 for 9.19.0; 0 while it is not open
const char *cudnn_library_version_text(void); // "9.19.0"

#ifdef HAVE_CUDNN
#define CUDNN_FUNCTIONS(F)                                                                         \
    F(cudnnGetVersion)                                                                             \
    F(cudnnGetErrorString)                                                                         \
    F(cudnnGetLastErrorString)                                                                     \
    F(cudnnCreate)                                                                                 \
    F(cudnnDestroy)                                                                                \
    F(cudnnSetStream)                                                                              \
    F(cudnnBackendCreateDescriptor)                                                                \
    F(cudnnBackendDestroyDescriptor)                                                               \
    F(cudnnBackendSetAttribute)                                                                    \
    F(cudnnBackendGetAttribute)                                                                    \
    F(cudnnBackendFinalize)                                                                        \
    F(cudnnBackendExecute)

// cudnn.cudnnCreate(...) is cudnnCreate(...). All NULL until cudnn_library_open has returned true.
typedef struct {
#define CUDNN_FUNCTION(name) __typeof__(name) *name;
    CUDNN_FUNCTIONS(CUDNN_FUNCTION)
#undef CUDNN_FUNCTION
} CudnnFunctions;
extern CudnnFunctions cudnn;

// Puts "what: cuDNN's name of the status (what cuDNN says of its last error)" into err; returns
// false.
bool cudnn_failed(Error *err, const char *what, cudnnStatus_t status);
#endif

#ifdef __cplusplus
}
#endif
