// The end of the collectives of device.h on the CPU, for device_shutdown.
#pragma once

void cpu_comm_shutdown(void); // no request is in flight
