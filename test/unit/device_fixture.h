// A device for the tests of a group, as cmocka's group setup and teardown. Included once; with one
// thread where there is too little work for two, which would only wait for each other.
#pragma once
#include "llmc/device.h"
#include "test/test.h"

#ifndef DEVICE_THREADS
#define DEVICE_THREADS 2
#endif

static inline int start_device(void **state) {
    (void)state;
    Error err;
    if (device_init(&(DeviceOptions){.threads = DEVICE_THREADS}, &err)) return 0;
    fprintf(stderr, "%s\n", err.text);
    return -1;
}

static inline int stop_device(void **state) {
    (void)state;
    device_shutdown();
    return 0;
}
