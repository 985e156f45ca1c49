/* SPDX-License-Identifier: Apache-2.0 */
/* What NVML knows of a device: for lists, and behind an error of the driver, which names a call and
 * not its cause. Called by driver_load.c and driver_entry.c. Without the library nothing is said.
 */
#ifndef DSC_HEALTH_H
#define DSC_HEALTH_H

#include "accel/cuda/driver/driver_api.h"

#include <stdbool.h>

typedef struct dsc_health dsc_health;

/* "driver 580.65.06" or why NVML is not there. */
void dsc_health_say_driver(char *text_out, size_t n);
/* ", 78.9 of 80.0 GiB free, SM 1980 MHz, memory 2619 MHz, 35 °C, ECC errors 0 corrected, 0 not" of
 * what the device has; "" without NVML. */
void dsc_health_say(const dsc_driver *cu, dsc_cu_device device, char *text_out, size_t n);

/* From now on critical events of the device are kept. NULL: no NVML, or no events. */
dsc_health *dsc_health_watch(const dsc_driver *cu, dsc_cu_device device);
void dsc_health_end(dsc_health **health);
/* What has happened since to devices that are watched: "; device 0: Xid 48 (…)" or "". result: of
 * the call that failed; where a device may have broken it is waited for shortly. */
void dsc_health_diagnose(dsc_cu_result result, char *text_out, size_t n);

#endif
