# SPDX-License-Identifier: Apache-2.0
# The accelerator `cuda`, a module of its own, where nvcc is; and, for tests, its kernels as C over the host
# layer (ds_cuda_host), a stand-in of libcuda.so.1 that runs them, and the module for it (both in standin/).
set(DS_CUDA_ARCHS "80;90a;100" CACHE STRING "Architectures that kernels of the accelerator cuda are compiled for")
file(GLOB DS_CUDA_KERNELS CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/src/accel/cuda/kernels/*.cu)
file(GLOB DS_CUDA_GLUE CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/src/accel/cuda/*.c)
file(GLOB DS_CUDA_DRIVER CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/src/accel/cuda/driver/*.c)
file(GLOB DS_CUDA_STANDIN CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/test/accel/standin/*.c)
set(DS_CUDA_HOST ${PROJECT_SOURCE_DIR}/src/accel/cuda/host)
set_source_files_properties(${DS_CUDA_KERNELS} PROPERTIES LANGUAGE C)
add_library(ds_cuda_kernels OBJECT ${DS_CUDA_KERNELS} ${DS_CUDA_HOST}/host_layer.c ${DS_CUDA_HOST}/kernel_table.c)
target_link_libraries(ds_cuda_kernels PUBLIC ds_flags)
add_library(ds_cuda_host OBJECT ${DS_CUDA_GLUE} ${DS_CUDA_HOST}/launch_host.c)
target_link_libraries(ds_cuda_host PUBLIC ds_flags)
# Blocks have several items in the small cases of the operator harness, too.
target_compile_definitions(ds_cuda_host PRIVATE DSC_MOST_BLOCKS=3)
# The sanitizers are told of fibers; the layer itself stands outside of what the thread sanitizer watches.
if(DS_SANITIZE MATCHES "thread")
  target_compile_definitions(ds_cuda_kernels PRIVATE DSC_TSAN=1)
  set_source_files_properties(${DS_CUDA_HOST}/host_layer.c PROPERTIES COMPILE_OPTIONS -fno-sanitize=thread)
elseif(DS_SANITIZE MATCHES "address")
  target_compile_definitions(ds_cuda_kernels PRIVATE DSC_ASAN=1)
endif()

# What custom operators' sources include, as text.
set(DS_CUDA_DEVICE ${PROJECT_SOURCE_DIR}/src/accel/cuda/custom_device.cuh)
set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${DS_CUDA_DEVICE})
file(READ ${DS_CUDA_DEVICE} bytes HEX)
string(REGEX REPLACE "(..)" "0x\\1," bytes "${bytes}") # ASCII alone
string(REGEX REPLACE "0x0a," "0x0a,\n" bytes "${bytes}")
file(CONFIGURE OUTPUT ${PROJECT_BINARY_DIR}/cuda/device_header.c @ONLY CONTENT [[/* Made by cmake/cuda.cmake. */
#include "accel/cuda/driver/nvrtc.h"
const char dsc_device_header[] = {@bytes@0};
]])

# A module is linked against nothing of the library; what it needs of shapes it has itself.
function(ds_cuda_module target)
  add_library(${target} MODULE ${DS_CUDA_GLUE} ${DS_CUDA_DRIVER} ${ARGN} ${PROJECT_BINARY_DIR}/cuda/device_header.c
    ${PROJECT_SOURCE_DIR}/src/base/tensor.c
    ${PROJECT_SOURCE_DIR}/src/base/library_open.c
    ${PROJECT_SOURCE_DIR}/src/base/dynamic_map.c
    ${PROJECT_SOURCE_DIR}/src/base/blocks.c
    ${PROJECT_SOURCE_DIR}/src/base/blocks_k.c)
  set_target_properties(${target} PROPERTIES OUTPUT_NAME deepspeed_cuda)
  target_link_libraries(${target} PRIVATE ds_flags Threads::Threads ${CMAKE_DL_LIBS} m)
  if(NOT DS_SANITIZE)
    target_link_options(${target} PRIVATE -Wl,-z,defs)
  endif()
endfunction()
function(ds_cuda_table path archs cuda names)
  set(rows "")
  set(externs "")
  foreach(name ${names})
    string(APPEND externs "extern const char dsc_image_${name}[];\n")
    string(APPEND rows "    {\"${name}\", dsc_image_${name}},\n")
  endforeach()
  list(LENGTH names n)
  file(CONFIGURE OUTPUT ${path} @ONLY CONTENT [[/* Made by cmake/cuda.cmake. */
#include "accel/cuda/driver/driver_device.h"
@externs@const dsc_image dsc_images[] = {
@rows@};
const uint32_t dsc_n_images = @n@;
const char dsc_image_archs[] = "@archs@";
const int dsc_image_cuda = @cuda@;
]])
endfunction()

find_program(DS_NVCC nvcc HINTS /usr/local/cuda/bin)
if(DS_NVCC)
  enable_language(ASM)
  file(WRITE ${PROJECT_BINARY_DIR}/cuda/nvcc.path ${DS_NVCC})
  set(DS_CUDA_FLAGS -std=c++17 -fmad=false -fatbin -I ${PROJECT_SOURCE_DIR}/include -I ${PROJECT_SOURCE_DIR}/src)
  foreach(arch ${DS_CUDA_ARCHS})
    list(APPEND DS_CUDA_FLAGS -gencode arch=compute_${arch},code=sm_${arch})
  endforeach()
  # The newest one's PTX too, which a driver compiles for devices that are newer than all of them. One with
  # a letter runs on its own device alone.
  list(GET DS_CUDA_ARCHS -1 newest)
  if(newest MATCHES "^[0-9]+$")
    list(APPEND DS_CUDA_FLAGS -gencode arch=compute_${newest},code=compute_${newest})
  endif()
  execute_process(COMMAND ${DS_NVCC} --version OUTPUT_VARIABLE version)
  if(NOT version MATCHES "release ([0-9]+)\\.([0-9]+)")
    message(FATAL_ERROR "${DS_NVCC} --version does not say a release: ${version}")
  endif()
  math(EXPR DS_CUDA_VERSION "1000 * ${CMAKE_MATCH_1} + 10 * ${CMAKE_MATCH_2}")
  list(TRANSFORM DS_CUDA_ARCHS PREPEND sm_ OUTPUT_VARIABLE DS_CUDA_NAMES)
  if(newest MATCHES "^[0-9]+$")
    list(APPEND DS_CUDA_NAMES "compute_${newest}")
  endif()
  list(JOIN DS_CUDA_NAMES ", " DS_CUDA_NAMES)
  file(GLOB DS_CUDA_HEADERS CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/src/accel/cuda/kernels/*.h)
  set(images)
  set(names)
  set(assembler ".section .rodata\n")
  foreach(source ${DS_CUDA_KERNELS})
    get_filename_component(name ${source} NAME_WE)
    set(image ${PROJECT_BINARY_DIR}/cuda/${name}.fatbin)
    set(says ${PROJECT_BINARY_DIR}/cuda/${name}.ptxas)
    # What ptxas says of registers and memory is kept for scripts/cuda_resources.py.
    add_custom_command(OUTPUT ${image} ${says} COMMAND ${DS_NVCC} ${DS_CUDA_FLAGS} -Xptxas -v -o ${image} ${source}
        2> ${says} || (cat ${says} && false)
      DEPENDS ${source} ${DS_CUDA_HEADERS} ${PROJECT_SOURCE_DIR}/src/accel/cuda/cuda_device.h
        ${PROJECT_SOURCE_DIR}/src/accel/cuda/device_cuda.h
      COMMENT "nvcc ${name}.cu")
    list(APPEND images ${image})
    list(APPEND names ${name})
    string(APPEND assembler ".balign 64\n.hidden dsc_image_${name}\n.global dsc_image_${name}\n"
      "dsc_image_${name}: .incbin \"${image}\"\n")
  endforeach()
  file(CONFIGURE OUTPUT ${PROJECT_BINARY_DIR}/cuda/images.S @ONLY
    CONTENT "@assembler@.section .note.GNU-stack,\"\",@progbits\n")
  set_source_files_properties(${PROJECT_BINARY_DIR}/cuda/images.S PROPERTIES OBJECT_DEPENDS "${images}")
  ds_cuda_table(${PROJECT_BINARY_DIR}/cuda/images.c "${DS_CUDA_NAMES}" ${DS_CUDA_VERSION} "${names}")
  ds_cuda_module(deepspeed_cuda ${PROJECT_BINARY_DIR}/cuda/images.c ${PROJECT_BINARY_DIR}/cuda/images.S)
  include(GNUInstallDirs)
  install(TARGETS deepspeed_cuda LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR} COMPONENT cuda)
else()
  message(STATUS "accelerator cuda: not built, there is no nvcc (package nvidia-cuda-toolkit)")
endif()

add_library(ds_cuda_standin SHARED ${DS_CUDA_STANDIN} $<TARGET_OBJECTS:ds_cuda_kernels>)
target_link_libraries(ds_cuda_standin PRIVATE ds_flags Threads::Threads ${CMAKE_DL_LIBS} m)
target_include_directories(ds_cuda_standin PRIVATE ${PROJECT_SOURCE_DIR}/test)
set_target_properties(ds_cuda_standin PROPERTIES OUTPUT_NAME cuda SOVERSION 1
  LIBRARY_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/standin)
ds_cuda_table(${PROJECT_BINARY_DIR}/standin/images.c "the host layer" 13000 host)
file(WRITE ${PROJECT_BINARY_DIR}/standin/host_image.c "extern const char dsc_image_host[];\nconst char dsc_image_host[] = \"host layer\";\n")
ds_cuda_module(ds_cuda_test_module ${PROJECT_BINARY_DIR}/standin/images.c ${PROJECT_BINARY_DIR}/standin/host_image.c)
set_target_properties(ds_cuda_test_module PROPERTIES LIBRARY_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/standin)

# Stand-ins of libraries over that of the driver: test/accel/standin_NAME is LIBRARY.so.VERSION.
function(ds_cuda_library name library version)
  file(GLOB sources CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/test/accel/standin_${name}/*.c)
  add_library(ds_cuda_standin_${name} SHARED ${sources})
  target_link_libraries(ds_cuda_standin_${name} PRIVATE ds_flags ds_cuda_standin)
  target_include_directories(ds_cuda_standin_${name} PRIVATE ${PROJECT_SOURCE_DIR}/test)
  set_target_properties(ds_cuda_standin_${name} PROPERTIES OUTPUT_NAME ${library} SOVERSION ${version}
    LIBRARY_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/standin)
  add_dependencies(ds_cuda_test_module ds_cuda_standin_${name})
endfunction()
ds_cuda_library(lt cublasLt 13)
ds_cuda_library(nccl nccl 2)
ds_cuda_library(nvml nvidia-ml 1)
ds_cuda_library(cufile cufile 0)
ds_cuda_library(nvrtc nvrtc 13)
target_compile_definitions(ds_cuda_standin_nvrtc PRIVATE DS_SOURCE_DIR="${PROJECT_SOURCE_DIR}")
