# Benchmarks: bench/bench_*.c, one program each, linked with bench/common/*.c. Built, never run, by ninja.
file(GLOB DS_BENCHES CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/bench/bench_*.c)
file(GLOB DS_BENCH_COMMON CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/bench/common/*.c)
foreach(source ${DS_BENCHES})
  get_filename_component(name ${source} NAME_WE)
  add_executable(${name} ${source} ${DS_BENCH_COMMON})
  target_link_libraries(${name} PRIVATE deepspeed_static)
  target_include_directories(${name} PRIVATE ${PROJECT_SOURCE_DIR}/bench)
endforeach()
if(TARGET bench_op) # shares the operator harness with the tests
  target_link_libraries(bench_op PRIVATE ds_test_common)
endif()
