# SPDX-License-Identifier: Apache-2.0
# Fuzzers: test/fuzz/fuzz_*.c, one program each, all built by the target `fuzzers` (scripts/check-long.sh).
# They need clang. Libraries are linked statically, so that the programs run on another machine.
file(GLOB DS_FUZZERS CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/test/fuzz/fuzz_*.c)
add_custom_target(fuzzers)
foreach(source ${DS_FUZZERS})
  get_filename_component(name ${source} NAME_WE)
  if(name STREQUAL "fuzz_body" AND NOT MICROHTTPD_FOUND)
    continue()
  endif()
  add_executable(${name} EXCLUDE_FROM_ALL ${source})
  if(name STREQUAL "fuzz_body") # what ds_serve reads; libmicrohttpd, whose archive needs GnuTLS, is linked shared and not called
    target_sources(${name} PRIVATE ${DS_SERVE_FRONT} ${PROJECT_SOURCE_DIR}/tools/load/load_http.c
      ${PROJECT_SOURCE_DIR}/tools/load/load_target.c)
    target_link_libraries(${name} PRIVATE ds_launch -lmicrohttpd PkgConfig::JANSSON)
    target_include_directories(${name} SYSTEM PRIVATE ${MICROHTTPD_INCLUDE_DIRS})
  endif()
  if(name STREQUAL "fuzz_hostfile") # reads what the launcher reads; needs no hwloc
    target_link_libraries(${name} PRIVATE -Wl,--as-needed ds_launch)
  endif()
  target_link_libraries(${name} PRIVATE ds_tool_common deepspeed_static)
  target_include_directories(${name} PRIVATE ${PROJECT_SOURCE_DIR}/test ${PROJECT_SOURCE_DIR}/tools)
  target_compile_options(${name} PRIVATE -fsanitize=fuzzer)
  target_link_options(${name} PRIVATE -fsanitize=fuzzer -nostdlib++ -static-libgcc -Wl,--gc-sections)
  target_link_libraries(${name} PRIVATE -Wl,-Bstatic stdc++ -Wl,-Bdynamic)
  add_dependencies(fuzzers ${name})
endforeach()
