/* SPDX-License-Identifier: Apache-2.0 */
/* What is used of the CUDA driver's interface (libcuda), as tables of names and types, so that
 * neither NVIDIA's headers nor its library are needed to build. Source: CUDA Driver API reference,
 * CUDA 13.0; names with _v2 are what its header makes of those without. test_cuda_driver compares
 * these declarations with NVIDIA's, where its header is installed.
 *
 * Called by driver_*.c, and by the stand-in of the tests (test/accel/standin), which implements it.
 */
#ifndef DSC_DRIVER_API_H
#define DSC_DRIVER_API_H

#include <stddef.h>
#include <stdint.h>

typedef int dsc_cu_result; /* CUresult */
typedef int dsc_cu_device;
typedef uint64_t
    dsc_cu_ptr; /* CUdeviceptr: also an address of the host, under unified addressing */
typedef struct CUctx_st *dsc_cu_ctx;
typedef struct CUstream_st *dsc_cu_stream;
typedef struct CUevent_st *dsc_cu_event;
typedef struct CUmod_st *dsc_cu_module;
typedef struct CUfunc_st *dsc_cu_function;
typedef struct CUgraph_st *dsc_cu_graph;
typedef struct CUgraphExec_st *dsc_cu_graph_exec;

enum {
    DSC_CU_SUCCESS = 0,
    DSC_CU_INVALID_VALUE = 1,
    DSC_CU_OUT_OF_MEMORY = 2,
    DSC_CU_NOT_INITIALIZED = 3,
    DSC_CU_NO_DEVICE = 100,
    DSC_CU_INVALID_DEVICE = 101,
    DSC_CU_INVALID_IMAGE = 200,
    DSC_CU_INVALID_CONTEXT = 201,
    DSC_CU_NO_BINARY_FOR_GPU = 209,
    DSC_CU_ECC_UNCORRECTABLE = 214,
    DSC_CU_NVLINK_UNCORRECTABLE = 220,
    DSC_CU_UNSUPPORTED_PTX_VERSION = 222,
    DSC_CU_INVALID_HANDLE = 400,
    DSC_CU_NOT_FOUND = 500,
    DSC_CU_NOT_READY = 600,
    DSC_CU_ILLEGAL_ADDRESS = 700,
    DSC_CU_HOST_MEMORY_ALREADY_REGISTERED = 712,
    DSC_CU_HOST_MEMORY_NOT_REGISTERED = 713,
    DSC_CU_LAUNCH_FAILED = 719,
    DSC_CU_NOT_SUPPORTED = 801,
    DSC_CU_SYSTEM_NOT_READY = 802,
    DSC_CU_SYSTEM_DRIVER_MISMATCH = 803,
    DSC_CU_STREAM_CAPTURE_UNSUPPORTED = 900,
    DSC_CU_STREAM_CAPTURE_INVALIDATED = 901,
    DSC_CU_STREAM_CAPTURE_MERGE = 902,
    DSC_CU_STREAM_CAPTURE_UNMATCHED = 903,
    DSC_CU_STREAM_CAPTURE_UNJOINED = 904,
    DSC_CU_STREAM_CAPTURE_ISOLATION = 905,
    DSC_CU_CAPTURED_EVENT = 907,
    DSC_CU_UNKNOWN = 999
};

enum {
    DSC_CU_ATTRIBUTE_MULTIPROCESSORS = 16,
    DSC_CU_ATTRIBUTE_UNIFIED_ADDRESSING = 41,
    DSC_CU_ATTRIBUTE_MAJOR = 75,
    DSC_CU_ATTRIBUTE_MINOR = 76,
    DSC_CU_STREAM_NON_BLOCKING = 1,
    DSC_CU_EVENT_DISABLE_TIMING = 2,
    DSC_CU_MEMHOSTREGISTER_PORTABLE = 1,
    DSC_CU_MEMHOSTALLOC_PORTABLE = 1,
    DSC_CU_CAPTURE_THREAD_LOCAL = 1,
    DSC_CU_CAPTURE_RELAXED = 2
};

/* Of cuLaunchKernel's `extra`: pairs of a key and a value, then END. */
#define DSC_CU_PARAM_END     ((void *)0)
#define DSC_CU_PARAM_POINTER ((void *)1)
#define DSC_CU_PARAM_SIZE    ((void *)2)

/* X(member, symbol, parameters): all return a result. */
#define DSC_CU_LIST(X)                                                                             \
    X(init, cuInit, (unsigned flags))                                                              \
    X(version, cuDriverGetVersion, (int *version_out))                                             \
    X(error_name, cuGetErrorName, (dsc_cu_result result, const char **text_out))                   \
    X(error_text, cuGetErrorString, (dsc_cu_result result, const char **text_out))                 \
    X(n_devices, cuDeviceGetCount, (int *n_out))                                                   \
    X(device, cuDeviceGet, (dsc_cu_device * device_out, int ordinal))                              \
    X(device_name, cuDeviceGetName, (char *name_out, int n, dsc_cu_device device))                 \
    X(bus_id, cuDeviceGetPCIBusId, (char *text_out, int n, dsc_cu_device device))                  \
    X(device_bytes, cuDeviceTotalMem_v2, (size_t * bytes_out, dsc_cu_device device))               \
    X(attribute, cuDeviceGetAttribute, (int *value_out, int which, dsc_cu_device device))          \
    X(retain, cuDevicePrimaryCtxRetain, (dsc_cu_ctx * ctx_out, dsc_cu_device device))              \
    X(release, cuDevicePrimaryCtxRelease_v2, (dsc_cu_device device))                               \
    X(set_current, cuCtxSetCurrent, (dsc_cu_ctx ctx))                                              \
    X(mem_info, cuMemGetInfo_v2, (size_t * free_out, size_t * total_out))                          \
    X(alloc, cuMemAlloc_v2, (dsc_cu_ptr * memory_out, size_t bytes))                               \
    X(free, cuMemFree_v2, (dsc_cu_ptr memory))                                                     \
    X(host_alloc, cuMemHostAlloc, (void **memory_out, size_t bytes, unsigned flags))               \
    X(host_free, cuMemFreeHost, (void *memory))                                                    \
    X(host_register, cuMemHostRegister_v2, (void *memory, size_t bytes, unsigned flags))           \
    X(host_unregister, cuMemHostUnregister, (void *memory))                                        \
    X(copy, cuMemcpyAsync, (dsc_cu_ptr to, dsc_cu_ptr from, size_t bytes, dsc_cu_stream stream))   \
    X(fill, cuMemsetD8Async,                                                                       \
      (dsc_cu_ptr to, unsigned char byte, size_t bytes, dsc_cu_stream stream))                     \
    X(stream_create, cuStreamCreate, (dsc_cu_stream * stream_out, unsigned flags))                 \
    X(stream_destroy, cuStreamDestroy_v2, (dsc_cu_stream stream))                                  \
    X(synchronize, cuStreamSynchronize, (dsc_cu_stream stream))                                    \
    X(event_create, cuEventCreate, (dsc_cu_event * event_out, unsigned flags))                     \
    X(event_destroy, cuEventDestroy_v2, (dsc_cu_event event))                                      \
    X(record, cuEventRecord, (dsc_cu_event event, dsc_cu_stream stream))                           \
    X(event_query, cuEventQuery, (dsc_cu_event event))                                             \
    X(wait, cuStreamWaitEvent, (dsc_cu_stream stream, dsc_cu_event event, unsigned flags))         \
    X(module_load, cuModuleLoadData, (dsc_cu_module * module_out, const void *image))              \
    X(module_unload, cuModuleUnload, (dsc_cu_module module))                                       \
    X(function, cuModuleGetFunction,                                                               \
      (dsc_cu_function * function_out, dsc_cu_module module, const char *name))                    \
    X(launch, cuLaunchKernel,                                                                      \
      (dsc_cu_function function, unsigned grid_x, unsigned grid_y, unsigned grid_z,                \
       unsigned block_x, unsigned block_y, unsigned block_z, unsigned shared_bytes,                \
       dsc_cu_stream stream, void **params, void **extra))                                         \
    X(launch_host, cuLaunchHostFunc, (dsc_cu_stream stream, void (*fn)(void *arg), void *arg))     \
    X(capture_begin, cuStreamBeginCapture_v2, (dsc_cu_stream stream, int mode))                    \
    X(capture_end, cuStreamEndCapture, (dsc_cu_stream stream, dsc_cu_graph * graph_out))           \
    X(instantiate, cuGraphInstantiateWithFlags,                                                    \
      (dsc_cu_graph_exec * exec_out, dsc_cu_graph graph, unsigned long long flags))                \
    X(graph_launch, cuGraphLaunch, (dsc_cu_graph_exec exec, dsc_cu_stream stream))                 \
    X(graph_destroy, cuGraphDestroy, (dsc_cu_graph graph))                                         \
    X(exec_destroy, cuGraphExecDestroy, (dsc_cu_graph_exec exec))

/* The driver, loaded. */
typedef struct dsc_driver {
#define X(member, symbol, params) dsc_cu_result(*member) params;
    DSC_CU_LIST(X)
#undef X
} dsc_driver;

#endif
