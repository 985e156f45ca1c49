/* SPDX-License-Identifier: Apache-2.0 */
/* See health.h. Xid numbers: "Xid Errors" of NVIDIA's GPU deployment documentation. */
#include "accel/cuda/driver/health.h"
#include "accel/cuda/driver/library_load.h"
#include "accel/cuda/driver/nvml_api.h"

#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MOST_WATCHED = 16, BUS_BYTES = 32 };

struct dsc_health {
    dsc_cu_device device;
    dsc_nvml_device handle;
    dsc_nvml_events events;
    unsigned long long uncorrected; /* when the watch began */
};

static struct {
    pthread_once_t once;
    dsc_nvml_api nvml;
    bool loaded;
    char why[512];
} library = {.once = PTHREAD_ONCE_INIT};

static struct {
    pthread_mutex_t lock;
    dsc_health *all[MOST_WATCHED];
} watched = {.lock = PTHREAD_MUTEX_INITIALIZER};

static void load(void)
{
    static const char *const files[] = {"libnvidia-ml.so.1", NULL};
    static const dsc_symbol symbols[] = {
#define X(type, member, symbol, params) {#symbol, offsetof(dsc_nvml_api, member)},
        DSC_NVML_LIST(X)
#undef X
    };
    static const dsc_library_row row = {.what = "NVML",
                                        .files = files,
                                        .package = "NVIDIA's driver package has libnvidia-ml.so.1",
                                        .old = "a driver of CUDA 12.0 or newer",
                                        .symbols = symbols,
                                        .n_symbols = sizeof symbols / sizeof symbols[0]};
    library.loaded = dsc_library_load(&row, &library.nvml, library.why, sizeof library.why);
    const dsc_nvml_result result = library.loaded ? library.nvml.init() : DSC_NVML_SUCCESS;
    if (result != DSC_NVML_SUCCESS) {
        (void)snprintf(library.why, sizeof library.why, "nvmlInit: %s (%d)",
                       library.nvml.text(result), result);
        library.loaded = false;
    }
}

static const dsc_nvml_api *nvml_of(void)
{
    (void)pthread_once(&library.once, load);
    return library.loaded ? &library.nvml : NULL;
}

/* Appends. */
static void add(char *text, size_t n, const char *format, ...)
{
    const size_t used = strlen(text);
    va_list args;
    va_start(args, format);
    (void)vsnprintf(text + used, n - used, format, args);
    va_end(args);
}

static bool find(const dsc_nvml_api *nvml, const dsc_driver *cu, dsc_cu_device device,
                 dsc_nvml_device *handle_out)
{
    char bus[BUS_BYTES] = "";
    return cu->bus_id(bus, (int)sizeof bus, device) == DSC_CU_SUCCESS &&
           nvml->device(bus, handle_out) == DSC_NVML_SUCCESS;
}

/* ---- lists --------------------------------------------------------------------------------- */

void dsc_health_say_driver(char *text_out, size_t n)
{
    const dsc_nvml_api *nvml = nvml_of();
    char version[96] = "";
    text_out[0] = '\0';
    if (nvml != NULL && nvml->driver(version, sizeof version) == DSC_NVML_SUCCESS) {
        (void)snprintf(text_out, n, "driver %s", version);
    } else if (nvml == NULL) {
        (void)snprintf(text_out, n, "no clocks, temperatures and error counts: %s", library.why);
    }
}

static void say_ecc(const dsc_nvml_api *nvml, dsc_nvml_device device, char *text, size_t n)
{
    unsigned long long corrected = 0;
    unsigned long long uncorrected = 0;
    if (nvml->ecc(device, DSC_NVML_CORRECTED, DSC_NVML_VOLATILE, &corrected) == DSC_NVML_SUCCESS &&
        nvml->ecc(device, DSC_NVML_UNCORRECTED, DSC_NVML_VOLATILE, &uncorrected) ==
            DSC_NVML_SUCCESS) {
        add(text, n, ", ECC errors %llu corrected, %llu not", corrected, uncorrected);
    }
}

void dsc_health_say(const dsc_driver *cu, dsc_cu_device device, char *text_out, size_t n)
{
    const double gib = 1073741824.0;
    const dsc_nvml_api *nvml = nvml_of();
    dsc_nvml_device handle = NULL;
    dsc_nvml_memory memory;
    unsigned value = 0;
    text_out[0] = '\0';
    if (nvml == NULL || !find(nvml, cu, device, &handle)) {
        return;
    }
    if (nvml->memory(handle, &memory) == DSC_NVML_SUCCESS) {
        add(text_out, n, ", %.1f GiB free", (double)memory.free / gib);
    }
    if (nvml->clock(handle, DSC_NVML_CLOCK_SM, &value) == DSC_NVML_SUCCESS) {
        add(text_out, n, ", SM %u MHz", value);
    }
    if (nvml->clock(handle, DSC_NVML_CLOCK_MEMORY, &value) == DSC_NVML_SUCCESS) {
        add(text_out, n, ", memory %u MHz", value);
    }
    if (nvml->temperature(handle, DSC_NVML_TEMPERATURE_GPU, &value) == DSC_NVML_SUCCESS) {
        add(text_out, n, ", %u °C", value);
    }
    say_ecc(nvml, handle, text_out, n);
}

/* ---- failures ------------------------------------------------------------------------------ */

/* A device without ECC has no events of it, and a call that asks for them too registers none. One
 * that has no events at all still has its counts. */
static void watch_events(const dsc_nvml_api *nvml, const dsc_health *h)
{
    if (nvml->events_register(h->handle, DSC_NVML_EVENT_XID | DSC_NVML_EVENT_DOUBLE_BIT,
                              h->events) == DSC_NVML_NOT_SUPPORTED) {
        (void)nvml->events_register(h->handle, DSC_NVML_EVENT_XID, h->events);
    }
}

dsc_health *dsc_health_watch(const dsc_driver *cu, dsc_cu_device device)
{
    const dsc_nvml_api *nvml = nvml_of();
    dsc_health *h = nvml != NULL ? calloc(1, sizeof *h) : NULL;
    if (h == NULL) {
        return NULL;
    }
    h->device = device;
    if (!find(nvml, cu, device, &h->handle) ||
        nvml->events_create(&h->events) != DSC_NVML_SUCCESS) {
        free(h);
        return NULL;
    }
    watch_events(nvml, h);
    (void)nvml->ecc(h->handle, DSC_NVML_UNCORRECTED, DSC_NVML_VOLATILE, &h->uncorrected);
    (void)pthread_mutex_lock(&watched.lock);
    bool kept = false;
    for (int i = 0; i < MOST_WATCHED && !kept; ++i) {
        kept = watched.all[i] == NULL;
        watched.all[i] = kept ? h : watched.all[i];
    }
    (void)pthread_mutex_unlock(&watched.lock);
    return h;
}

void dsc_health_end(dsc_health **health)
{
    dsc_health *h = health != NULL ? *health : NULL;
    if (h == NULL) {
        return;
    }
    (void)pthread_mutex_lock(&watched.lock);
    for (int i = 0; i < MOST_WATCHED; ++i) {
        watched.all[i] = watched.all[i] == h ? NULL : watched.all[i];
    }
    (void)pthread_mutex_unlock(&watched.lock);
    (void)library.nvml.events_free(h->events);
    free(h);
    *health = NULL;
}

static const char *xid_text(unsigned long long xid)
{
    static const struct {
        unsigned xid;
        const char *text;
    } rows[] = {{13, "a kernel's illegal access or instruction"},
                {31, "a page fault: an address that is not mapped"},
                {43, "a kernel was stopped"},
                {45, "work was preempted, by an error before it"},
                {48, "an ECC error of two bits: run the device's diagnostics"},
                {61, "a fault of the device's firmware: reset it"},
                {62, "a fault of the device's firmware: reset it"},
                {63, "a row of memory was remapped: reset the device"},
                {64, "a row of memory cannot be remapped: replace the device"},
                {74, "an error of an NVLink: look at the bridge or the switch"},
                {79, "the device has fallen off the bus: power, seat or temperature"},
                {92, "many ECC errors that were corrected"},
                {94, "an ECC error that this process alone has"},
                {95, "an ECC error that other processes have too: reset the device"},
                {119, "the device's system processor does not answer: reset it"}};
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; ++i) {
        if (rows[i].xid == xid) {
            return rows[i].text;
        }
    }
    return "see NVIDIA's list of Xid errors";
}

/* patience: milliseconds for the first event. */
static void diagnose(const dsc_nvml_api *nvml, const dsc_health *h, unsigned patience, char *text,
                     size_t n)
{
    enum { MOST_EVENTS = 4 };
    unsigned long long uncorrected = 0;
    dsc_nvml_event event;
    for (int i = 0; i < MOST_EVENTS &&
                    nvml->events_wait(h->events, &event, i == 0 ? patience : 0) == DSC_NVML_SUCCESS;
         ++i) {
        if (event.type == DSC_NVML_EVENT_XID) {
            add(text, n, "; device %d: Xid %llu, %s", h->device, event.data, xid_text(event.data));
        } else if (event.type == DSC_NVML_EVENT_DOUBLE_BIT) {
            add(text, n, "; device %d: an ECC error of two bits", h->device);
        }
    }
    if (nvml->ecc(h->handle, DSC_NVML_UNCORRECTED, DSC_NVML_VOLATILE, &uncorrected) ==
            DSC_NVML_SUCCESS &&
        uncorrected > h->uncorrected) {
        add(text, n, "; device %d: %llu ECC errors that were not corrected since the start",
            h->device, uncorrected - h->uncorrected);
    }
}

void dsc_health_diagnose(dsc_cu_result result, char *text_out, size_t n)
{
    enum { PATIENCE = 200 }; /* the event comes some time behind the call that failed */
    const bool broke = result == DSC_CU_ECC_UNCORRECTABLE ||
                       result == DSC_CU_NVLINK_UNCORRECTABLE || result == DSC_CU_UNKNOWN ||
                       (result >= DSC_CU_ILLEGAL_ADDRESS && result < DSC_CU_NOT_SUPPORTED);
    text_out[0] = '\0';
    (void)pthread_mutex_lock(&watched.lock);
    for (int i = 0; i < MOST_WATCHED; ++i) {
        if (watched.all[i] != NULL) {
            diagnose(&library.nvml, watched.all[i], broke ? PATIENCE : 0, text_out, n);
        }
    }
    (void)pthread_mutex_unlock(&watched.lock);
}
