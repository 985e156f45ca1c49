/* SPDX-License-Identifier: Apache-2.0 */
/* Inside of the accelerator `cuda`, a shared object of its own. Shared by driver_*.c alone:
 *
 *     driver_api.h      the driver's functions, by name
 *     driver_load.c     loads libcuda, says what is there
 *     driver_entry.c    open, close, the tables
 *     driver_memory.c   device memory, pinned memory
 *     driver_stream.c   streams, events, launches
 *     driver_graph.c    captured work
 *     health.c          what NVML knows of a device
 *     library_load.c    libraries by name
 *     lt_*.c            products by cuBLASLt (lt.h)
 *     group_*.c         collectives by NCCL (group.h)
 *     disk_cufile.c     files by cuFile (disk.h)
 *     custom*.c         custom operators, compiled at first use (custom_kernel.h)
 *     nvrtc.c           by NVRTC (nvrtc.h)
 *     image_cache.c     and kept in a folder (image_cache.h)
 *
 * Invariants:
 *  1. every call from outside makes the device's context current on its thread (dsc_enter);
 *  2. no stream is the driver's default one, and none is ordered with it (NON_BLOCKING);
 *  3. what returns to the host as done has been waited for, on a stream of its own.
 */
#ifndef DSC_DRIVER_DEVICE_H
#define DSC_DRIVER_DEVICE_H

#include "accel/cuda/cuda_launch.h"
#include "accel/cuda/driver/driver_api.h"
#include "accel/cuda/kernels/fault.h"

#include <deepspeed/accel.h>
#include <stdbool.h>

enum { DSC_MOST_MAPPED = 4 };

struct ds_accel_device {
    const dsc_driver *cu;
    ds_ctx *ctx; /* that it was opened with: for calls that have none */
    dsc_cu_device ordinal;
    dsc_cu_ctx context;
    dsc_cu_stream own; /* of what the host waits for at once */
    dsc_cu_function functions[DSC_FN_COUNT];
    dsc_cu_module *modules; /* of dsc_images */
    bool has_graphs;
    struct dsc_health *health;  /* NULL: nobody watches it */
    struct cublasLtContext *lt; /* NULL: cuBLASLt is not there, or has nothing for this device */
    bool has_disks;             /* cuFile's driver is open */
    struct dsc_custom *customs; /* kernels of custom operators */
    struct {
        void *base; /* NULL: free */
        size_t bytes;
    } mapped[DSC_MOST_MAPPED]; /* memory that cuFile has registered */
};

struct ds_accel_stream {
    ds_accel_device *device;
    ds_ctx *ctx;
    dsc_cu_stream queue;
    dsc_fault *fault; /* of its kernels; in host memory that the device reaches */
};

struct ds_accel_event {
    ds_accel_device *device;
    dsc_cu_event event;
};

/* What nvcc made of each file of kernels/ for the architectures of the build. */
typedef struct dsc_image {
    const char *name;
    const void *bytes;
} dsc_image;
extern const dsc_image dsc_images[];
extern const uint32_t dsc_n_images;
extern const char dsc_image_archs[];   /* "sm_80, sm_90a" */
extern const char dsc_image_toolkit[]; /* " by CUDA 13.0's nvcc" */

extern const ds_accel_library *dsc_library;

/* driver_load.c: NULL with a reason when the driver is not there. */
const dsc_driver *dsc_driver_load(const char **why_out);
/* ds_accel.probe */
ds_status dsc_probe(ds_ctx *ctx, char *text_out, size_t n);
/* Whether a device can be used; the message of ctx says why not. */
ds_status dsc_check_device(ds_ctx *ctx, const dsc_driver *cu, int ordinal);

/* The device of a rank that names none: by its number on the node (LOCAL_RANK), or the only one. */
ds_status dsc_own_device(ds_ctx *ctx, const dsc_driver *cu, long *ordinal_out);

/* A message as ds_fail has, and of a result that is no success: "cuMemAlloc_v2: … (CUDA_ERROR…)".
 */
ds_status dsc_fail(ds_ctx *ctx, ds_status status, const char *format, ...) DS_PRINTF(3, 4);
ds_status dsc_fail_cu(ds_ctx *ctx, const dsc_driver *cu, dsc_cu_result result, const char *what);
/* Returns from a function with the failure of a call of the driver. */
#define DSC_CU(ctx, cu, call, what)                                                                \
    do {                                                                                           \
        const dsc_cu_result dsc_result_ = (call);                                                  \
        if (dsc_result_ != DSC_CU_SUCCESS) {                                                       \
            return dsc_fail_cu((ctx), (cu), dsc_result_, (what));                                  \
        }                                                                                          \
    } while (0)

/* Queues a kernel; what: for the message. */
ds_status dsc_launch_on(const ds_accel_device *device, ds_ctx *ctx, dsc_cu_stream queue, dsc_fn fn,
                        const dsc_shape *shape, const void *args, size_t args_bytes,
                        const char *what);
/* What the kernel that runs on this thread goes to; NULL: none runs. */
const ds_accel_stream *dsc_current_stream(void);

ds_status dsc_enter(const ds_accel_device *device, ds_ctx *ctx);

extern const ds_accel_memory dsc_memory;
extern const ds_accel_streams dsc_streams;
extern const ds_accel_graphs dsc_graphs;

#endif
