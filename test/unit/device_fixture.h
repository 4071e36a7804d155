// A device for the tests of a group, as cmocka's group setup and teardown. Included once.
#pragma once
#include "llmc/device.h"
#include "test/test.h"

static inline int start_device(void **state) {
    (void)state;
    Error err;
    if (device_init(&(DeviceOptions){.threads = 2}, &err)) return 0;
    fprintf(stderr, "%s\n", err.text);
    return -1;
}

static inline int stop_device(void **state) {
    (void)state;
    device_shutdown();
    return 0;
}
