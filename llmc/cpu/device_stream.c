// device.h on a CPU, second half: streams run at once, so an event is a time and a graph is nothing.
#include "llmc/base/error.h"
#include "llmc/device.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

void device_copy_to_device(void *device_dst, const void *host_src, size_t bytes, Stream stream) {
    (void)stream;
    memcpy(device_dst, host_src, bytes);
}

void device_copy_to_host(void *host_dst, const void *device_src, size_t bytes, Stream stream) {
    (void)stream;
    memcpy(host_dst, device_src, bytes);
}

void device_sync(void) {}

// ------------------------------------------------------------------------------------------------------------- events

struct DeviceEvent {
    struct timespec time; // when it was recorded
};

DeviceEvent *device_event_create(Error *err) {
    DeviceEvent *event = calloc(1, sizeof *event);
    if (!event) error_set(err, "out of memory for an event");
    return event;
}

void device_event_destroy(DeviceEvent *event) { free(event); }

void device_event_record(DeviceEvent *event, Stream stream) {
    (void)stream;
    clock_gettime(CLOCK_MONOTONIC, &event->time);
}

void device_event_wait(DeviceEvent *event) { (void)event; }

bool device_event_done(DeviceEvent *event) {
    (void)event;
    return true;
}

void device_stream_wait(Stream stream, DeviceEvent *event) { (void)stream, (void)event; }

double device_event_seconds(DeviceEvent *start, DeviceEvent *stop) {
    return (double)(stop->time.tv_sec - start->time.tv_sec) + (double)(stop->time.tv_nsec - start->time.tv_nsec) * 1e-9;
}

// ------------------------------------------------------------------------------------------------------------- graphs

struct DeviceGraph {
    char nothing; // C has no empty structs
};

DeviceGraph *device_graph_create(Error *err) {
    DeviceGraph *graph = calloc(1, sizeof *graph);
    if (!graph) error_set(err, "out of memory for a graph");
    return graph;
}

void device_graph_destroy(DeviceGraph *graph) { free(graph); }

bool device_graph_replay(DeviceGraph *graph) {
    (void)graph;
    return false;
}

void device_graph_begin(DeviceGraph *graph) { (void)graph; }
void device_graph_end(DeviceGraph *graph) { (void)graph; }

// ------------------------------------------------------------------------------------------------- tuning and sensors

// oneDNN's choices depend on the processor alone.
char *device_tuning(void) { return calloc(1, 1); }
char *device_choices(void) {
    char *none = calloc(1, 1);
    REQUIRE_MEMORY(none, "the choices of this device");
    return none;
}
bool device_restore_tuning(const char *lines) { return *lines == '\0'; }

bool device_sensors(DeviceSensors *sensors) {
    memset(sensors, 0, sizeof *sensors);
    return false;
}
