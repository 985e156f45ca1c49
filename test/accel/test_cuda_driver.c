/* SPDX-License-Identifier: Apache-2.0 */
/* driver_api.h against NVIDIA's own header and its library of stubs, where a toolkit is installed:
 * names, numbers and sizes. */
#ifdef DS_CUDA_HEADER

#include "accel/cuda/driver/driver_api.h"
#include "common/check.h"

#include <cuda.h>
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
SAME(DSC_CU_NOT_FOUND, CUDA_ERROR_NOT_FOUND);
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
SAME(DSC_CU_ATTRIBUTE_MULTIPROCESSORS, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT);
SAME(DSC_CU_ATTRIBUTE_UNIFIED_ADDRESSING, CU_DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING);
SAME(DSC_CU_ATTRIBUTE_MAJOR, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR);
SAME(DSC_CU_ATTRIBUTE_MINOR, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR);
SAME(DSC_CU_STREAM_NON_BLOCKING, CU_STREAM_NON_BLOCKING);
SAME(DSC_CU_EVENT_DISABLE_TIMING, CU_EVENT_DISABLE_TIMING);
SAME(DSC_CU_MEMHOSTREGISTER_PORTABLE, CU_MEMHOSTREGISTER_PORTABLE);
SAME(DSC_CU_MEMHOSTALLOC_PORTABLE, CU_MEMHOSTALLOC_PORTABLE);
SAME(DSC_CU_CAPTURE_THREAD_LOCAL, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL);
_Static_assert(sizeof(dsc_cu_result) == sizeof(CUresult), "CUresult");
_Static_assert(sizeof(dsc_cu_ptr) == sizeof(CUdeviceptr), "CUdeviceptr");
_Static_assert(sizeof(dsc_cu_device) == sizeof(CUdevice), "CUdevice");

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
