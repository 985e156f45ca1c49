/* SPDX-License-Identifier: Apache-2.0 */
/* driver_api.h, lt_api.h, nccl_api.h, cufile_api.h, nvml_api.h and nvrtc_api.h against NVIDIA's own
 * headers and its library of stubs, where a toolkit is installed: names, numbers and sizes. */
#ifdef DS_CUDA_HEADER

#include "accel/cuda/driver/driver_api.h"
#include "common/check.h"

#include <cuda.h>
#if __has_include(<cublasLt.h>)
#include "accel/cuda/driver/lt_api.h"
#include <cublasLt.h>
#define HAS_LT 1
#endif
#if __has_include(<cufile.h>)
#include "accel/cuda/driver/cufile_api.h"
#include <cufile.h>
#define HAS_CUFILE 1
#endif
#include <dlfcn.h>
#include <string.h>

#define SAME(own, theirs) _Static_assert((int)(own) == (int)(theirs), #theirs)
SAME(DSC_CU_SUCCESS, CUDA_SUCCESS);
SAME(DSC_CU_INVALID_VALUE, CUDA_ERROR_INVALID_VALUE);
SAME(DSC_CU_OUT_OF_MEMORY, CUDA_ERROR_OUT_OF_MEMORY);
SAME(DSC_CU_NOT_INITIALIZED, CUDA_ERROR_NOT_INITIALIZED);
SAME(DSC_CU_NO_DEVICE, CUDA_ERROR_NO_DEVICE);
SAME(DSC_CU_INVALID_DEVICE, CUDA_ERROR_INVALID_DEVICE);
SAME(DSC_CU_INVALID_IMAGE, CUDA_ERROR_INVALID_IMAGE);
SAME(DSC_CU_INVALID_CONTEXT, CUDA_ERROR_INVALID_CONTEXT);
SAME(DSC_CU_NO_BINARY_FOR_GPU, CUDA_ERROR_NO_BINARY_FOR_GPU);
SAME(DSC_CU_INVALID_HANDLE, CUDA_ERROR_INVALID_HANDLE);
SAME(DSC_CU_ECC_UNCORRECTABLE, CUDA_ERROR_ECC_UNCORRECTABLE);
SAME(DSC_CU_NOT_FOUND, CUDA_ERROR_NOT_FOUND);
SAME(DSC_CU_UNSUPPORTED_PTX_VERSION, CUDA_ERROR_UNSUPPORTED_PTX_VERSION);
SAME(DSC_CU_SYSTEM_NOT_READY, CUDA_ERROR_SYSTEM_NOT_READY);
SAME(DSC_CU_SYSTEM_DRIVER_MISMATCH, CUDA_ERROR_SYSTEM_DRIVER_MISMATCH);
SAME(DSC_CU_NOT_READY, CUDA_ERROR_NOT_READY);
SAME(DSC_CU_ILLEGAL_ADDRESS, CUDA_ERROR_ILLEGAL_ADDRESS);
SAME(DSC_CU_HOST_MEMORY_ALREADY_REGISTERED, CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED);
SAME(DSC_CU_HOST_MEMORY_NOT_REGISTERED, CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED);
SAME(DSC_CU_LAUNCH_FAILED, CUDA_ERROR_LAUNCH_FAILED);
SAME(DSC_CU_NOT_SUPPORTED, CUDA_ERROR_NOT_SUPPORTED);
SAME(DSC_CU_STREAM_CAPTURE_UNSUPPORTED, CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
SAME(DSC_CU_STREAM_CAPTURE_INVALIDATED, CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
SAME(DSC_CU_STREAM_CAPTURE_MERGE, CUDA_ERROR_STREAM_CAPTURE_MERGE);
SAME(DSC_CU_STREAM_CAPTURE_UNMATCHED, CUDA_ERROR_STREAM_CAPTURE_UNMATCHED);
SAME(DSC_CU_STREAM_CAPTURE_UNJOINED, CUDA_ERROR_STREAM_CAPTURE_UNJOINED);
SAME(DSC_CU_STREAM_CAPTURE_ISOLATION, CUDA_ERROR_STREAM_CAPTURE_ISOLATION);
SAME(DSC_CU_CAPTURED_EVENT, CUDA_ERROR_CAPTURED_EVENT);
SAME(DSC_CU_NVLINK_UNCORRECTABLE, CUDA_ERROR_NVLINK_UNCORRECTABLE);
SAME(DSC_CU_UNKNOWN, CUDA_ERROR_UNKNOWN);
SAME(DSC_CU_ATTRIBUTE_MULTIPROCESSORS, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT);
SAME(DSC_CU_ATTRIBUTE_UNIFIED_ADDRESSING, CU_DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING);
SAME(DSC_CU_ATTRIBUTE_MAJOR, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR);
SAME(DSC_CU_ATTRIBUTE_MINOR, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR);
SAME(DSC_CU_STREAM_NON_BLOCKING, CU_STREAM_NON_BLOCKING);
SAME(DSC_CU_EVENT_DISABLE_TIMING, CU_EVENT_DISABLE_TIMING);
SAME(DSC_CU_MEMHOSTREGISTER_PORTABLE, CU_MEMHOSTREGISTER_PORTABLE);
SAME(DSC_CU_MEMHOSTALLOC_PORTABLE, CU_MEMHOSTALLOC_PORTABLE);
SAME(DSC_CU_CAPTURE_THREAD_LOCAL, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL);
SAME(DSC_CU_CAPTURE_RELAXED, CU_STREAM_CAPTURE_MODE_RELAXED);
_Static_assert(sizeof(dsc_cu_result) == sizeof(CUresult), "CUresult");
_Static_assert(sizeof(dsc_cu_ptr) == sizeof(CUdeviceptr), "CUdeviceptr");
_Static_assert(sizeof(dsc_cu_device) == sizeof(CUdevice), "CUdevice");

#ifdef HAS_CUFILE
SAME(DSC_CUFILE_SUCCESS, CU_FILE_SUCCESS);
SAME(DSC_CUFILE_DRIVER_NOT_INITIALIZED, CU_FILE_DRIVER_NOT_INITIALIZED);
SAME(DSC_CUFILE_DRIVER_VERSION_MISMATCH, CU_FILE_DRIVER_VERSION_MISMATCH);
SAME(DSC_CUFILE_PLATFORM_NOT_SUPPORTED, CU_FILE_PLATFORM_NOT_SUPPORTED);
SAME(DSC_CUFILE_IO_NOT_SUPPORTED, CU_FILE_IO_NOT_SUPPORTED);
SAME(DSC_CUFILE_DEVICE_NOT_SUPPORTED, CU_FILE_DEVICE_NOT_SUPPORTED);
SAME(DSC_CUFILE_NVFS_DRIVER_ERROR, CU_FILE_NVFS_DRIVER_ERROR);
SAME(DSC_CUFILE_CUDA_DRIVER_ERROR, CU_FILE_CUDA_DRIVER_ERROR);
SAME(DSC_CUFILE_CUDA_POINTER_INVALID, CU_FILE_CUDA_POINTER_INVALID);
SAME(DSC_CUFILE_CUDA_MEMORY_TYPE_INVALID, CU_FILE_CUDA_MEMORY_TYPE_INVALID);
SAME(DSC_CUFILE_CUDA_POINTER_RANGE_ERROR, CU_FILE_CUDA_POINTER_RANGE_ERROR);
SAME(DSC_CUFILE_CUDA_CONTEXT_MISMATCH, CU_FILE_CUDA_CONTEXT_MISMATCH);
SAME(DSC_CUFILE_INVALID_MAPPING_SIZE, CU_FILE_INVALID_MAPPING_SIZE);
SAME(DSC_CUFILE_INVALID_MAPPING_RANGE, CU_FILE_INVALID_MAPPING_RANGE);
SAME(DSC_CUFILE_INVALID_FILE_TYPE, CU_FILE_INVALID_FILE_TYPE);
SAME(DSC_CUFILE_INVALID_FILE_OPEN_FLAG, CU_FILE_INVALID_FILE_OPEN_FLAG);
SAME(DSC_CUFILE_DIO_NOT_SET, CU_FILE_DIO_NOT_SET);
SAME(DSC_CUFILE_INVALID_VALUE, CU_FILE_INVALID_VALUE);
SAME(DSC_CUFILE_MEMORY_ALREADY_REGISTERED, CU_FILE_MEMORY_ALREADY_REGISTERED);
SAME(DSC_CUFILE_MEMORY_NOT_REGISTERED, CU_FILE_MEMORY_NOT_REGISTERED);
SAME(DSC_CUFILE_PERMISSION_DENIED, CU_FILE_PERMISSION_DENIED);
SAME(DSC_CUFILE_HANDLE_NOT_REGISTERED, CU_FILE_HANDLE_NOT_REGISTERED);
SAME(DSC_CUFILE_HANDLE_ALREADY_REGISTERED, CU_FILE_HANDLE_ALREADY_REGISTERED);
SAME(DSC_CUFILE_INTERNAL_ERROR, CU_FILE_INTERNAL_ERROR);
SAME(DSC_CUFILE_NVFS_SETUP_ERROR, CU_FILE_NVFS_SETUP_ERROR);
SAME(DSC_CUFILE_IO_DISABLED, CU_FILE_IO_DISABLED);
SAME(DSC_CUFILE_GPU_MEMORY_PINNING_FAILED, CU_FILE_GPU_MEMORY_PINNING_FAILED);
SAME(DSC_CUFILE_HANDLE_TYPE_OPAQUE_FD, CU_FILE_HANDLE_TYPE_OPAQUE_FD);
_Static_assert(sizeof(dsc_cufile_error) == sizeof(CUfileError_t), "CUfileError_t");
_Static_assert(sizeof(dsc_cufile_descr) == sizeof(CUfileDescr_t), "CUfileDescr_t");
_Static_assert(offsetof(dsc_cufile_descr, handle) == offsetof(CUfileDescr_t, handle), "handle");
_Static_assert(sizeof(dsc_cufile_handle) == sizeof(CUfileHandle_t), "CUfileHandle_t");
#endif

#ifdef HAS_LT
SAME(DSC_LT_SUCCESS, CUBLAS_STATUS_SUCCESS);
SAME(DSC_LT_NOT_INITIALIZED, CUBLAS_STATUS_NOT_INITIALIZED);
SAME(DSC_LT_ALLOC_FAILED, CUBLAS_STATUS_ALLOC_FAILED);
SAME(DSC_LT_INVALID_VALUE, CUBLAS_STATUS_INVALID_VALUE);
SAME(DSC_LT_EXECUTION_FAILED, CUBLAS_STATUS_EXECUTION_FAILED);
SAME(DSC_LT_NOT_SUPPORTED, CUBLAS_STATUS_NOT_SUPPORTED);
SAME(DSC_LT_COMPUTE_32F, CUBLAS_COMPUTE_32F);
SAME(DSC_LT_R_32F, CUDA_R_32F);
SAME(DSC_LT_R_16F, CUDA_R_16F);
SAME(DSC_LT_R_16BF, CUDA_R_16BF);
SAME(DSC_LT_OP_N, CUBLAS_OP_N);
SAME(DSC_LT_OP_T, CUBLAS_OP_T);
SAME(DSC_LT_EPILOGUE_DEFAULT, CUBLASLT_EPILOGUE_DEFAULT);
SAME(DSC_LT_EPILOGUE_BIAS, CUBLASLT_EPILOGUE_BIAS);
SAME(DSC_LT_DESC_TRANSA, CUBLASLT_MATMUL_DESC_TRANSA);
SAME(DSC_LT_DESC_TRANSB, CUBLASLT_MATMUL_DESC_TRANSB);
SAME(DSC_LT_DESC_EPILOGUE, CUBLASLT_MATMUL_DESC_EPILOGUE);
SAME(DSC_LT_DESC_BIAS_POINTER, CUBLASLT_MATMUL_DESC_BIAS_POINTER);
SAME(DSC_LT_PREF_WORKSPACE, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES);
SAME(DSC_LT_PREF_REDUCTIONS, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK);
SAME(DSC_LT_PREF_ALIGN_A, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES);
SAME(DSC_LT_PREF_ALIGN_B, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES);
SAME(DSC_LT_PREF_ALIGN_C, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES);
SAME(DSC_LT_PREF_ALIGN_D, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES);
SAME(DSC_LT_REDUCE_COMPUTE_TYPE, CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE);
SAME(DSC_LT_ALGO_ID, CUBLASLT_ALGO_CONFIG_ID);
SAME(DSC_LT_ALGO_TILE, CUBLASLT_ALGO_CONFIG_TILE_ID);
SAME(DSC_LT_ALGO_SPLIT_K, CUBLASLT_ALGO_CONFIG_SPLITK_NUM);
SAME(DSC_LT_ALGO_STAGES, CUBLASLT_ALGO_CONFIG_STAGES_ID);
SAME(sizeof(dsc_lt_algo), sizeof(cublasLtMatmulAlgo_t));
SAME(sizeof(dsc_lt_result), sizeof(cublasLtMatmulHeuristicResult_t));
SAME(offsetof(dsc_lt_result, work_bytes), offsetof(cublasLtMatmulHeuristicResult_t, workspaceSize));
SAME(offsetof(dsc_lt_result, state), offsetof(cublasLtMatmulHeuristicResult_t, state));
#endif

#if __has_include(<nvrtc.h>)
#include "accel/cuda/driver/nvrtc_api.h"
#include <nvrtc.h>
SAME(DSC_NVRTC_SUCCESS, NVRTC_SUCCESS);
SAME(DSC_NVRTC_OUT_OF_MEMORY, NVRTC_ERROR_OUT_OF_MEMORY);
SAME(DSC_NVRTC_PROGRAM_CREATION_FAILURE, NVRTC_ERROR_PROGRAM_CREATION_FAILURE);
SAME(DSC_NVRTC_INVALID_INPUT, NVRTC_ERROR_INVALID_INPUT);
SAME(DSC_NVRTC_INVALID_PROGRAM, NVRTC_ERROR_INVALID_PROGRAM);
SAME(DSC_NVRTC_INVALID_OPTION, NVRTC_ERROR_INVALID_OPTION);
SAME(DSC_NVRTC_COMPILATION, NVRTC_ERROR_COMPILATION);
SAME(DSC_NVRTC_BUILTIN_OPERATION_FAILURE, NVRTC_ERROR_BUILTIN_OPERATION_FAILURE);
SAME(DSC_NVRTC_INTERNAL_ERROR, NVRTC_ERROR_INTERNAL_ERROR);
SAME(sizeof(dsc_nvrtc_program), sizeof(nvrtcProgram));
/* Parameters, of which ours have the same types but for the result. */
_Static_assert(_Generic(&nvrtcCreateProgram,
                        nvrtcResult (*)(nvrtcProgram *, const char *, const char *, int,
                                        const char *const *, const char *const *) : 1),
               "nvrtcCreateProgram");
_Static_assert(_Generic(&nvrtcCompileProgram,
                        nvrtcResult (*)(nvrtcProgram, int, const char *const *) : 1),
               "nvrtcCompileProgram");
_Static_assert(_Generic(&nvrtcGetCUBINSize, nvrtcResult (*)(nvrtcProgram, size_t *) : 1),
               "nvrtcGetCUBINSize");
_Static_assert(_Generic(&nvrtcGetCUBIN, nvrtcResult (*)(nvrtcProgram, char *) : 1),
               "nvrtcGetCUBIN");
_Static_assert(_Generic(&nvrtcGetProgramLogSize, nvrtcResult (*)(nvrtcProgram, size_t *) : 1),
               "nvrtcGetProgramLogSize");
_Static_assert(_Generic(&nvrtcGetProgramLog, nvrtcResult (*)(nvrtcProgram, char *) : 1),
               "nvrtcGetProgramLog");
_Static_assert(_Generic(&nvrtcDestroyProgram, nvrtcResult (*)(nvrtcProgram *) : 1),
               "nvrtcDestroyProgram");
_Static_assert(_Generic(&nvrtcGetSupportedArchs, nvrtcResult (*)(int *) : 1),
               "nvrtcGetSupportedArchs");
#endif

#if __has_include(<nccl.h>)
#include "accel/cuda/driver/nccl_api.h"
#include <nccl.h>
SAME(DSC_NCCL_SUCCESS, ncclSuccess);
SAME(DSC_NCCL_UNHANDLED_CUDA_ERROR, ncclUnhandledCudaError);
SAME(DSC_NCCL_INTERNAL_ERROR, ncclInternalError);
SAME(DSC_NCCL_INVALID_ARGUMENT, ncclInvalidArgument);
SAME(DSC_NCCL_INVALID_USAGE, ncclInvalidUsage);
SAME(DSC_NCCL_REMOTE_ERROR, ncclRemoteError);
SAME(DSC_NCCL_IN_PROGRESS, ncclInProgress);
SAME(DSC_NCCL_UINT8, ncclUint8);
SAME(DSC_NCCL_UNDEFINED, NCCL_CONFIG_UNDEF_INT);
SAME(DSC_NCCL_CONFIG_VERSION, NCCL_VERSION(2, 17, 0));
SAME(sizeof(dsc_nccl_id), sizeof(ncclUniqueId));
SAME(offsetof(dsc_nccl_config, version), offsetof(ncclConfig_t, version));
SAME(offsetof(dsc_nccl_config, blocking), offsetof(ncclConfig_t, blocking));
SAME(offsetof(dsc_nccl_config, max_ctas), offsetof(ncclConfig_t, maxCTAs));
SAME(offsetof(dsc_nccl_config, net_name), offsetof(ncclConfig_t, netName));
#endif

#if __has_include(<nvml.h>)
#include "accel/cuda/driver/nvml_api.h"
#include <nvml.h>
#define HAS_NVML 1
SAME(DSC_NVML_SUCCESS, NVML_SUCCESS);
SAME(DSC_NVML_UNINITIALIZED, NVML_ERROR_UNINITIALIZED);
SAME(DSC_NVML_INVALID_ARGUMENT, NVML_ERROR_INVALID_ARGUMENT);
SAME(DSC_NVML_NOT_SUPPORTED, NVML_ERROR_NOT_SUPPORTED);
SAME(DSC_NVML_NOT_FOUND, NVML_ERROR_NOT_FOUND);
SAME(DSC_NVML_TIMEOUT, NVML_ERROR_TIMEOUT);
SAME(DSC_NVML_CLOCK_SM, NVML_CLOCK_SM);
SAME(DSC_NVML_CLOCK_MEMORY, NVML_CLOCK_MEM);
SAME(DSC_NVML_TEMPERATURE_GPU, NVML_TEMPERATURE_GPU);
SAME(DSC_NVML_CORRECTED, NVML_MEMORY_ERROR_TYPE_CORRECTED);
SAME(DSC_NVML_UNCORRECTED, NVML_MEMORY_ERROR_TYPE_UNCORRECTED);
SAME(DSC_NVML_VOLATILE, NVML_VOLATILE_ECC);
SAME(DSC_NVML_EVENT_DOUBLE_BIT, nvmlEventTypeDoubleBitEccError);
SAME(DSC_NVML_EVENT_XID, nvmlEventTypeXidCriticalError);
SAME(sizeof(dsc_nvml_memory), sizeof(nvmlMemory_t));
SAME(offsetof(dsc_nvml_memory, free), offsetof(nvmlMemory_t, free));
SAME(sizeof(dsc_nvml_event), sizeof(nvmlEventData_t));
SAME(offsetof(dsc_nvml_event, type), offsetof(nvmlEventData_t, eventType));
SAME(offsetof(dsc_nvml_event, data), offsetof(nvmlEventData_t, eventData));
#endif

#define STRING_OF(x) #x
#define STRING(x)    STRING_OF(x)

static void names_are_those_of_the_header(void **state)
{
    static const char *const pairs[][2] = {
        {"cuDeviceTotalMem_v2", STRING(cuDeviceTotalMem)},
        {"cuDevicePrimaryCtxRelease_v2", STRING(cuDevicePrimaryCtxRelease)},
        {"cuMemGetInfo_v2", STRING(cuMemGetInfo)},
        {"cuMemAlloc_v2", STRING(cuMemAlloc)},
        {"cuMemFree_v2", STRING(cuMemFree)},
        {"cuMemHostRegister_v2", STRING(cuMemHostRegister)},
        {"cuStreamDestroy_v2", STRING(cuStreamDestroy)},
        {"cuEventDestroy_v2", STRING(cuEventDestroy)},
        {"cuStreamBeginCapture_v2", STRING(cuStreamBeginCapture)},
        {"cuGraphInstantiateWithFlags", STRING(cuGraphInstantiate)},
        {"cuMemcpyAsync", STRING(cuMemcpyAsync)},
        {"cuLaunchKernel", STRING(cuLaunchKernel)},
#ifdef HAS_CUFILE
        {"cuFileDriverClose_v2", STRING(cuFileDriverClose)},
#endif
#ifdef HAS_NVML
        {"nvmlInit_v2", STRING(nvmlInit)},
        {"nvmlDeviceGetHandleByPciBusId_v2", STRING(nvmlDeviceGetHandleByPciBusId)},
        {"nvmlEventSetWait_v2", STRING(nvmlEventSetWait)},
#endif
    };
    (void)state;
    for (size_t i = 0; i < sizeof pairs / sizeof pairs[0]; ++i) {
        assert_string_equal(pairs[i][0], pairs[i][1]);
    }
    assert_ptr_equal(DSC_CU_PARAM_END, CU_LAUNCH_PARAM_END);
    assert_ptr_equal(DSC_CU_PARAM_POINTER, CU_LAUNCH_PARAM_BUFFER_POINTER);
    assert_ptr_equal(DSC_CU_PARAM_SIZE, CU_LAUNCH_PARAM_BUFFER_SIZE);
}

static void the_stub_library_has_every_function(void **state)
{
    static const char *const symbols[] = {
#define X(member, symbol, params) #symbol,
        DSC_CU_LIST(X)
#undef X
    };
    (void)state;
    void *stub = dlopen(DS_CUDA_STUB, RTLD_LAZY | RTLD_LOCAL);
    if (stub == NULL) {
        skip();
    }
    for (size_t i = 0; i < sizeof symbols / sizeof symbols[0]; ++i) {
        if (dlsym(stub, symbols[i]) == NULL) {
            fail_msg("the driver has no %s", symbols[i]);
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(names_are_those_of_the_header),
        cmocka_unit_test(the_stub_library_has_every_function),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

#else

#include <stdio.h>

int main(void)
{
    (void)printf("no cuda.h here\n");
    return 77;
}

#endif
