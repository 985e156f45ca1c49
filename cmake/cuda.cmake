# SPDX-License-Identifier: Apache-2.0
# The kernels of src/accel/cuda as C, over its host layer: for tests, no part of the library.
file(GLOB DS_CUDA_KERNELS CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/src/accel/cuda/kernels/*.cu)
file(GLOB DS_CUDA_GLUE CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/src/accel/cuda/*.c
  ${PROJECT_SOURCE_DIR}/src/accel/cuda/host/*.c)
set_source_files_properties(${DS_CUDA_KERNELS} PROPERTIES LANGUAGE C)
add_library(ds_cuda_host OBJECT ${DS_CUDA_GLUE} ${DS_CUDA_KERNELS})
target_link_libraries(ds_cuda_host PUBLIC ds_flags)
# The sanitizers are told of fibers; the layer itself stands outside of what the thread sanitizer watches.
if(DS_SANITIZE MATCHES "thread")
  target_compile_definitions(ds_cuda_host PRIVATE DSC_TSAN=1)
  set_source_files_properties(${PROJECT_SOURCE_DIR}/src/accel/cuda/host/host_layer.c
    PROPERTIES COMPILE_OPTIONS -fno-sanitize=thread)
elseif(DS_SANITIZE MATCHES "address")
  target_compile_definitions(ds_cuda_host PRIVATE DSC_ASAN=1)
endif()
