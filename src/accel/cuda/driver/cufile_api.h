/* SPDX-License-Identifier: Apache-2.0 */
/* What is used of cuFile (libcufile), as tables of names and types, as driver_api.h has them.
 * Source: "cuFile API Reference Guide" of GPUDirect Storage, 1.14; the functions are there since
 * 1.4. test_cuda_driver compares these declarations with NVIDIA's, where its header is installed.
 *
 * Called by driver/disk_cufile.c, and by the stand-in of the tests (test/accel/standin_cufile),
 * which implements it.
 */
#ifndef DSC_CUFILE_API_H
#define DSC_CUFILE_API_H

#include "accel/cuda/driver/driver_api.h"

#include <sys/types.h>

typedef void *dsc_cufile_handle; /* CUfileHandle_t */

typedef struct dsc_cufile_error { /* CUfileError_t */
    int code;                     /* CUfileOpError */
    dsc_cu_result cuda;           /* of CUDA_DRIVER_ERROR */
} dsc_cufile_error;

typedef struct dsc_cufile_descr { /* CUfileDescr_t */
    int type;
    union {
        int fd;
        void *handle;
    } handle;
    const void *fs_ops; /* of file systems in user space */
} dsc_cufile_descr;

enum {
    DSC_CUFILE_SUCCESS = 0,
    DSC_CUFILE_LEAST_ERROR = 5001,
    DSC_CUFILE_DRIVER_NOT_INITIALIZED = 5001,
    DSC_CUFILE_DRIVER_VERSION_MISMATCH = 5004,
    DSC_CUFILE_PLATFORM_NOT_SUPPORTED = 5007,
    DSC_CUFILE_IO_NOT_SUPPORTED = 5008,
    DSC_CUFILE_DEVICE_NOT_SUPPORTED = 5009,
    DSC_CUFILE_NVFS_DRIVER_ERROR = 5010,
    DSC_CUFILE_CUDA_DRIVER_ERROR = 5011,
    DSC_CUFILE_CUDA_POINTER_INVALID = 5012,
    DSC_CUFILE_CUDA_MEMORY_TYPE_INVALID = 5013,
    DSC_CUFILE_CUDA_POINTER_RANGE_ERROR = 5014,
    DSC_CUFILE_CUDA_CONTEXT_MISMATCH = 5015,
    DSC_CUFILE_INVALID_MAPPING_SIZE = 5016,
    DSC_CUFILE_INVALID_MAPPING_RANGE = 5017,
    DSC_CUFILE_INVALID_FILE_TYPE = 5018,
    DSC_CUFILE_INVALID_FILE_OPEN_FLAG = 5019,
    DSC_CUFILE_DIO_NOT_SET = 5020,
    DSC_CUFILE_INVALID_VALUE = 5022,
    DSC_CUFILE_MEMORY_ALREADY_REGISTERED = 5023,
    DSC_CUFILE_MEMORY_NOT_REGISTERED = 5024,
    DSC_CUFILE_PERMISSION_DENIED = 5025,
    DSC_CUFILE_HANDLE_NOT_REGISTERED = 5027,
    DSC_CUFILE_HANDLE_ALREADY_REGISTERED = 5028,
    DSC_CUFILE_INTERNAL_ERROR = 5030,
    DSC_CUFILE_NVFS_SETUP_ERROR = 5033,
    DSC_CUFILE_IO_DISABLED = 5034,
    DSC_CUFILE_GPU_MEMORY_PINNING_FAILED = 5036,
    DSC_CUFILE_HANDLE_TYPE_OPAQUE_FD = 1
};

/* X(type, member, symbol, parameters) */
#define DSC_CUFILE_LIST(X)                                                                         \
    X(dsc_cufile_error, version, cuFileGetVersion, (int *version_out))                             \
    X(dsc_cufile_error, driver_open, cuFileDriverOpen, (void))                                     \
    X(dsc_cufile_error, driver_close, cuFileDriverClose_v2, (void))                                \
    X(dsc_cufile_error, handle_register, cuFileHandleRegister,                                     \
      (dsc_cufile_handle * handle_out, dsc_cufile_descr * descr))                                  \
    X(void, handle_deregister, cuFileHandleDeregister, (dsc_cufile_handle handle))                 \
    X(dsc_cufile_error, buf_register, cuFileBufRegister,                                           \
      (const void *base, size_t bytes, int flags))                                                 \
    X(dsc_cufile_error, buf_deregister, cuFileBufDeregister, (const void *base))                   \
    X(ssize_t, read, cuFileRead,                                                                   \
      (dsc_cufile_handle handle, void *base, size_t bytes, off_t file_offset, off_t base_offset))  \
    X(ssize_t, write, cuFileWrite,                                                                 \
      (dsc_cufile_handle handle, const void *base, size_t bytes, off_t file_offset,                \
       off_t base_offset))

/* The library, loaded. */
typedef struct dsc_cufile_api {
#define X(type, member, symbol, params) type(*member) params;
    DSC_CUFILE_LIST(X)
#undef X
} dsc_cufile_api;

#endif
