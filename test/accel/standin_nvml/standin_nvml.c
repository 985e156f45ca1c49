/* SPDX-License-Identifier: Apache-2.0 */
/* A stand-in for NVIDIA's libnvidia-ml.so.1: what NVML's reference says of the functions that
 * nvml_api.h lists, of the one device of the driver's stand-in.
 *
 * DS_NVML_STANDIN="xid=48,ecc=2" or standin_nvml_set: an Xid that the next question for events
 * reports, once; errors that were not corrected so far. Without ecc= it has no ECC, as some
 * devices.
 */
#include "accel/cuda/driver/nvml_api.h"

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define STANDIN_API __attribute__((visibility("default")))

STANDIN_API void standin_nvml_set(const char *options);
#define X(type, member, symbol, params) STANDIN_API type symbol params;
DSC_NVML_LIST(X)
#undef X

struct nvmlDevice_st {
    int unused;
};
struct nvmlEventSet_st {
    unsigned long long types;
};

static struct {
    bool initialized, has_ecc;
    unsigned long long xid, ecc;
} all;
static struct nvmlDevice_st device;

void standin_nvml_set(const char *options)
{
    const char *xid = options != NULL ? strstr(options, "xid=") : NULL;
    const char *ecc = options != NULL ? strstr(options, "ecc=") : NULL;
    all.xid = xid != NULL ? strtoull(xid + 4, NULL, 10) : 0;
    all.has_ecc = ecc != NULL;
    all.ecc = ecc != NULL ? strtoull(ecc + 4, NULL, 10) : 0;
}

dsc_nvml_result nvmlInit_v2(void)
{
    standin_nvml_set(getenv("DS_NVML_STANDIN"));
    all.initialized = true;
    return DSC_NVML_SUCCESS;
}

const char *nvmlErrorString(dsc_nvml_result result)
{
    return result == DSC_NVML_SUCCESS ? "Success" : "an error";
}

static dsc_nvml_result check(dsc_nvml_device which)
{
    return !all.initialized   ? DSC_NVML_UNINITIALIZED
           : which != &device ? DSC_NVML_INVALID_ARGUMENT
                              : DSC_NVML_SUCCESS;
}

dsc_nvml_result nvmlSystemGetDriverVersion(char *text_out, unsigned n)
{
    (void)snprintf(text_out, n, "580.65.06");
    return check(&device);
}

dsc_nvml_result nvmlDeviceGetHandleByPciBusId_v2(const char *bus, dsc_nvml_device *device_out)
{
    *device_out = &device;
    return strcmp(bus, "0000:3B:00.0") == 0 ? check(&device) : DSC_NVML_NOT_FOUND;
}

dsc_nvml_result nvmlDeviceGetMemoryInfo(dsc_nvml_device which, dsc_nvml_memory *memory_out)
{
    *memory_out = (dsc_nvml_memory){1ull << 30, 3ull << 28, 1ull << 28};
    return check(which);
}

dsc_nvml_result nvmlDeviceGetClockInfo(dsc_nvml_device which, int clock, unsigned *mhz_out)
{
    *mhz_out = clock == DSC_NVML_CLOCK_SM ? 1980 : 2619;
    return check(which);
}

dsc_nvml_result nvmlDeviceGetTemperature(dsc_nvml_device which, int sensor, unsigned *celsius_out)
{
    *celsius_out = 35;
    return sensor == DSC_NVML_TEMPERATURE_GPU ? check(which) : DSC_NVML_INVALID_ARGUMENT;
}

dsc_nvml_result nvmlDeviceGetTotalEccErrors(dsc_nvml_device which, int kind, int counter,
                                            unsigned long long *n_out)
{
    (void)counter;
    *n_out = kind == DSC_NVML_UNCORRECTED ? all.ecc : 0;
    return all.has_ecc ? check(which) : DSC_NVML_NOT_SUPPORTED;
}

dsc_nvml_result nvmlEventSetCreate(dsc_nvml_events *events_out)
{
    *events_out = calloc(1, sizeof **events_out);
    return *events_out != NULL ? check(&device) : DSC_NVML_INVALID_ARGUMENT;
}

dsc_nvml_result nvmlDeviceRegisterEvents(dsc_nvml_device which, unsigned long long types,
                                         dsc_nvml_events events)
{
    if ((types & DSC_NVML_EVENT_DOUBLE_BIT) != 0 && !all.has_ecc) {
        return DSC_NVML_NOT_SUPPORTED; /* and none of the others is registered either */
    }
    events->types |= types;
    return check(which);
}

dsc_nvml_result nvmlEventSetWait_v2(dsc_nvml_events events, dsc_nvml_event *event_out,
                                    unsigned milliseconds)
{
    enum { LATE = 10 }; /* an event comes some time behind the call that failed */
    if (all.xid == 0 || milliseconds < LATE || (events->types & DSC_NVML_EVENT_XID) == 0) {
        return DSC_NVML_TIMEOUT;
    }
    *event_out = (dsc_nvml_event){.device = &device, .type = DSC_NVML_EVENT_XID, .data = all.xid};
    all.xid = 0;
    return check(&device);
}

dsc_nvml_result nvmlEventSetFree(dsc_nvml_events events)
{
    free(events);
    return check(&device);
}
