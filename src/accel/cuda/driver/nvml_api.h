/* SPDX-License-Identifier: Apache-2.0 */
/* What is used of NVML (libnvidia-ml), as tables of names and types, as driver_api.h has them.
 * Source: NVML API reference, 13.0. test_cuda_driver compares these declarations with NVIDIA's,
 * where its header is installed.
 *
 * Called by driver/health.c, and by the stand-in of the tests (test/accel/standin_nvml), which
 * implements it.
 */
#ifndef DSC_NVML_API_H
#define DSC_NVML_API_H

#include <stddef.h>
#include <stdint.h>

typedef int dsc_nvml_result; /* nvmlReturn_t */
typedef struct nvmlDevice_st *dsc_nvml_device;
typedef struct nvmlEventSet_st *dsc_nvml_events;

typedef struct dsc_nvml_memory { /* nvmlMemory_t */
    unsigned long long total, free, used;
} dsc_nvml_memory;

typedef struct dsc_nvml_event { /* nvmlEventData_t */
    dsc_nvml_device device;
    unsigned long long type, data; /* data: of an Xid its number */
    unsigned gpu_instance, compute_instance;
} dsc_nvml_event;

enum {
    DSC_NVML_SUCCESS = 0,
    DSC_NVML_UNINITIALIZED = 1,
    DSC_NVML_INVALID_ARGUMENT = 2,
    DSC_NVML_NOT_SUPPORTED = 3,
    DSC_NVML_NOT_FOUND = 6,
    DSC_NVML_TIMEOUT = 10,
    DSC_NVML_CLOCK_SM = 1,
    DSC_NVML_CLOCK_MEMORY = 2,
    DSC_NVML_TEMPERATURE_GPU = 0,
    DSC_NVML_CORRECTED = 0,
    DSC_NVML_UNCORRECTED = 1,
    DSC_NVML_VOLATILE = 0, /* since the driver was loaded */
    DSC_NVML_EVENT_DOUBLE_BIT = 2,
    DSC_NVML_EVENT_XID = 8
};

/* X(type, member, symbol, parameters) */
#define DSC_NVML_LIST(X)                                                                           \
    X(dsc_nvml_result, init, nvmlInit_v2, (void))                                                  \
    X(const char *, text, nvmlErrorString, (dsc_nvml_result result))                               \
    X(dsc_nvml_result, driver, nvmlSystemGetDriverVersion, (char *text_out, unsigned n))           \
    X(dsc_nvml_result, device, nvmlDeviceGetHandleByPciBusId_v2,                                   \
      (const char *bus, dsc_nvml_device *device_out))                                              \
    X(dsc_nvml_result, memory, nvmlDeviceGetMemoryInfo,                                            \
      (dsc_nvml_device device, dsc_nvml_memory * memory_out))                                      \
    X(dsc_nvml_result, clock, nvmlDeviceGetClockInfo,                                              \
      (dsc_nvml_device device, int which, unsigned *mhz_out))                                      \
    X(dsc_nvml_result, temperature, nvmlDeviceGetTemperature,                                      \
      (dsc_nvml_device device, int sensor, unsigned *celsius_out))                                 \
    X(dsc_nvml_result, ecc, nvmlDeviceGetTotalEccErrors,                                           \
      (dsc_nvml_device device, int kind, int counter, unsigned long long *n_out))                  \
    X(dsc_nvml_result, events_create, nvmlEventSetCreate, (dsc_nvml_events * events_out))          \
    X(dsc_nvml_result, events_register, nvmlDeviceRegisterEvents,                                  \
      (dsc_nvml_device device, unsigned long long types, dsc_nvml_events events))                  \
    X(dsc_nvml_result, events_wait, nvmlEventSetWait_v2,                                           \
      (dsc_nvml_events events, dsc_nvml_event * event_out, unsigned milliseconds))                 \
    X(dsc_nvml_result, events_free, nvmlEventSetFree, (dsc_nvml_events events))

/* The library, loaded. */
typedef struct dsc_nvml_api {
#define X(type, member, symbol, params) type(*member) params;
    DSC_NVML_LIST(X)
#undef X
} dsc_nvml_api;

#endif
