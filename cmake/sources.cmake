# The library and its tools. Sources are found by folder: a new file needs no entry here.
file(GLOB_RECURSE DS_SOURCES CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/src/*.c ${PROJECT_SOURCE_DIR}/models/*.c)
list(FILTER DS_SOURCES EXCLUDE REGEX "src/(accel/cpu/(simd|bf16|avx2|avx512|amx)|comm/(simd|mpi|ucx))/")
list(FILTER DS_SOURCES EXCLUDE REGEX "src/(launch|tune)/")

add_library(ds_objects OBJECT ${DS_SOURCES})
target_link_libraries(ds_objects PUBLIC ds_flags PkgConfig::JANSSON PkgConfig::PCRE2 PkgConfig::XXHASH PkgConfig::UTF8PROC PkgConfig::NETTLE
  Threads::Threads m)

# io_uring, where liburing is installed; else asynchronous file I/O uses threads.
pkg_check_modules(URING IMPORTED_TARGET liburing)
set(DS_URING)
set(DS_URING_PRIVATE)
if(URING_FOUND)
  set(DS_URING PkgConfig::URING)
  set(DS_URING_PRIVATE " -luring")
  target_link_libraries(ds_objects PUBLIC ${DS_URING})
  target_compile_definitions(ds_objects PRIVATE DSI_HAVE_URING=1)
else()
  message(STATUS "io_uring: not built, liburing-dev is not installed")
endif()

# Kernels by instruction set. Files in simd/ are templates, compiled once for each set of vectors, and
# for avx512_bf16 those whose products differ there; files in bf16/ once for each set with products of bf16.
set(DS_ISA_OBJECTS)
function(ds_isa name)
  file(GLOB own CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/src/accel/cpu/${name}/*.c)
  if(name STREQUAL "avx512_bf16")
    set(shared ${PROJECT_SOURCE_DIR}/src/accel/cpu/simd/gemm_simd.c ${PROJECT_SOURCE_DIR}/src/accel/cpu/simd/gemm_vector.c)
    file(GLOB paired CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/src/accel/cpu/bf16/*.c)
  elseif(name STREQUAL "amx")
    file(GLOB paired CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/src/accel/cpu/bf16/*.c)
  else()
    file(GLOB shared CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/src/accel/cpu/simd/*.c
      ${PROJECT_SOURCE_DIR}/src/comm/simd/*.c)
  endif()
  if(own OR shared OR paired)
    add_library(ds_${name} OBJECT ${own} ${shared} ${paired})
    target_link_libraries(ds_${name} PUBLIC ds_flags)
    target_compile_options(ds_${name} PRIVATE ${ARGN})
    target_compile_definitions(ds_${name} PRIVATE DSI_ISA=${name} DSI_ISA_${name}=1)
    set(DS_ISA_OBJECTS ${DS_ISA_OBJECTS} $<TARGET_OBJECTS:ds_${name}> PARENT_SCOPE)
    target_compile_definitions(ds_objects PRIVATE DSI_HAVE_${name}=1)
  endif()
endfunction()
if(CMAKE_SYSTEM_PROCESSOR STREQUAL "x86_64")
  ds_isa(avx2 -mavx2 -mfma -mf16c)
  set(DS_AVX512 -mavx512f -mavx512bw -mavx512dq -mavx512vl -mavx2 -mfma -mf16c -mprefer-vector-width=512)
  ds_isa(avx512 ${DS_AVX512})
  ds_isa(avx512_bf16 ${DS_AVX512} -mavx512bf16)
  ds_isa(amx ${DS_AVX512} -mavx512bf16 -mamx-tile -mamx-bf16)
endif()

add_library(deepspeed_static STATIC $<TARGET_OBJECTS:ds_objects> ${DS_ISA_OBJECTS})
set_target_properties(deepspeed_static PROPERTIES OUTPUT_NAME deepspeed)
target_link_libraries(deepspeed_static PUBLIC ds_flags PkgConfig::JANSSON PkgConfig::PCRE2 PkgConfig::XXHASH PkgConfig::UTF8PROC PkgConfig::NETTLE
  ${DS_URING} Threads::Threads m)
add_library(deepspeed SHARED $<TARGET_OBJECTS:ds_objects> ${DS_ISA_OBJECTS})
set_target_properties(deepspeed PROPERTIES SOVERSION 0 VERSION ${PROJECT_VERSION})
target_link_libraries(deepspeed PRIVATE ds_flags PkgConfig::JANSSON PkgConfig::PCRE2 PkgConfig::XXHASH PkgConfig::UTF8PROC PkgConfig::NETTLE
  ${DS_URING} Threads::Threads m)

target_compile_definitions(ds_flags INTERFACE DS_VERSION="${PROJECT_VERSION}")

# The launcher and its autotuner: no part of the library, so that programs which use it need no hwloc.
file(GLOB DS_LAUNCH CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/src/launch/*.c ${PROJECT_SOURCE_DIR}/src/tune/*.c)
pkg_check_modules(HWLOC IMPORTED_TARGET hwloc)
add_library(ds_launch STATIC ${DS_LAUNCH})
target_link_libraries(ds_launch PUBLIC deepspeed_static)
if(HWLOC_FOUND)
  target_link_libraries(ds_launch PUBLIC PkgConfig::HWLOC)
  target_compile_definitions(ds_launch PRIVATE DSI_HAVE_HWLOC=1)
else()
  message(STATUS "hwloc (libhwloc-dev) not found: deepspeed --bind_cores_to_rank will refuse")
endif()

# A tool is tools/NAME.c, linked with tools/common/*.c and the static library.
file(GLOB DS_TOOLS CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/tools/*.c)
file(GLOB DS_TOOL_COMMON CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/tools/common/*.c)
add_library(ds_tool_common STATIC ${DS_TOOL_COMMON})
target_link_libraries(ds_tool_common PUBLIC deepspeed_static)
target_include_directories(ds_tool_common PRIVATE ${PROJECT_SOURCE_DIR}/tools)
foreach(source ${DS_TOOLS})
  get_filename_component(name ${source} NAME_WE)
  if(name STREQUAL "ds_launcher") # its program is `deepspeed`, which as a target is the library
    add_executable(${name} ${source})
    target_link_libraries(${name} PRIVATE ds_launch)
    set_target_properties(${name} PROPERTIES OUTPUT_NAME deepspeed)
    add_custom_command(TARGET ${name} POST_BUILD
      COMMAND ${CMAKE_COMMAND} -E create_symlink deepspeed ${PROJECT_BINARY_DIR}/ds)
  else()
    add_executable(${name} ${source})
  endif()
  if(name STREQUAL "ds_ssh")
    target_link_libraries(${name} PRIVATE ds_launch)
  endif()
  target_link_libraries(${name} PRIVATE ds_tool_common)
  target_include_directories(${name} PRIVATE ${PROJECT_SOURCE_DIR}/tools)
endforeach()
