# SPDX-License-Identifier: Apache-2.0
# An example is examples/NN_name.c: only public headers, linked with the static library, and a test
# example_NN that runs it; files it writes lie in the build folder.
file(GLOB DS_EXAMPLES CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/examples/*.c)
set(DS_EXAMPLE_03_ARGS ${PROJECT_SOURCE_DIR}/test/golden/parity/llama3
  ${PROJECT_SOURCE_DIR}/examples/fine_tune/sentences.jsonl ${PROJECT_BINARY_DIR}/example_03_out bytes)
set(DS_EXAMPLE_05_ARGS ${PROJECT_SOURCE_DIR}/examples/shakespeare/model.json ${PROJECT_BINARY_DIR}/example_05_trace.json)
set(DS_EXAMPLE_07_ARGS ${PROJECT_SOURCE_DIR}/examples/shakespeare/model.json ${PROJECT_SOURCE_DIR}/examples/preference/pairs.jsonl)
set(DS_EXAMPLE_09_ARGS ${PROJECT_BINARY_DIR}/example_03_out) # what example 03 has tuned
if(TARGET ds_serve)
  list(APPEND DS_EXAMPLE_09_ARGS $<TARGET_FILE:ds_serve>)
endif()
foreach(source ${DS_EXAMPLES})
  get_filename_component(name ${source} NAME_WE)
  string(SUBSTRING ${name} 0 2 number)
  add_executable(example_${name} ${source})
  set_target_properties(example_${name} PROPERTIES OUTPUT_NAME ${name})
  target_link_libraries(example_${name} PRIVATE deepspeed_static)
  add_test(NAME example_${number} COMMAND example_${name} ${DS_EXAMPLE_${number}_ARGS})
  set_tests_properties(example_${number} PROPERTIES TIMEOUT ${DS_TEST_TIMEOUT})
endforeach()
set_tests_properties(example_03 PROPERTIES FIXTURES_SETUP tuned_folder)
set_tests_properties(example_07 PROPERTIES LABELS slow) # its products take minutes under sanitizers
set_tests_properties(example_09 PROPERTIES FIXTURES_REQUIRED tuned_folder)
