// The driver's support of features that this backend would use, see driver_probe.cu.
#pragma once
#include "llmc/cuda/backend.h"

#ifdef __cplusplus
extern "C" {
#endif

// Part of device_init: tries graphs and early launches, where options and GPU allow them, in some milliseconds. What
// the driver refuses is switched off in cuda_backend, with one line on stderr. False: a kernel does not run at all.
bool cuda_probe_driver(Error *err);

#ifdef __cplusplus
}
#endif
