# SPDX-License-Identifier: Apache-2.0
# Benchmarks: bench/bench_*.c, one program each, linked with bench/common/*.c. Built, never run, by ninja.
# One that compares with a peer library is left out, with a line that says so, when the peer is not
# installed.
file(GLOB DS_BENCHES CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/bench/bench_*.c)
file(GLOB DS_BENCH_COMMON CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/bench/common/*.c)
find_library(DS_DNNL dnnl)
find_package(OpenMP COMPONENTS C QUIET)
add_custom_target(bench)
foreach(source ${DS_BENCHES})
  get_filename_component(name ${source} NAME_WE)
  if(name STREQUAL "bench_gemm" AND NOT (DS_DNNL AND OpenMP_C_FOUND))
    message(STATUS "bench_gemm: not built, oneDNN (libdnnl-dev) with OpenMP is not installed")
    continue()
  endif()
  add_executable(${name} ${source} ${DS_BENCH_COMMON})
  target_link_libraries(${name} PRIVATE deepspeed_static)
  target_include_directories(${name} PRIVATE ${PROJECT_SOURCE_DIR}/bench)
  add_dependencies(bench ${name})
endforeach()
if(TARGET bench_op) # shares the operator harness, and random schemas, with the tests
  target_link_libraries(bench_op PRIVATE ds_test_common)
  target_link_libraries(bench_guide PRIVATE ds_test_common)
endif()
if(TARGET bench_gemm) # replaces a function of its peer, see there
  target_link_libraries(bench_gemm PRIVATE ${DS_DNNL} OpenMP::OpenMP_C)
  set_target_properties(bench_gemm PROPERTIES ENABLE_EXPORTS ON)
endif()
