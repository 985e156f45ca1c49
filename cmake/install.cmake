# SPDX-License-Identifier: Apache-2.0
# cmake --install: headers, libraries, pkg-config file, CMake package, man pages, completion; CPack's .deb.
include(GNUInstallDirs)
include(CMakePackageConfigHelpers)

install(DIRECTORY include/deepspeed DESTINATION ${CMAKE_INSTALL_INCLUDEDIR} FILES_MATCHING PATTERN "*.h")
target_include_directories(deepspeed PUBLIC
  $<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}/include> $<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}>)
set_target_properties(deepspeed PROPERTIES EXPORT_NAME deepspeed)
install(TARGETS deepspeed EXPORT deepspeedTargets
  LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR})
install(FILES $<TARGET_FILE:deepspeed_static> DESTINATION ${CMAKE_INSTALL_LIBDIR})
install(EXPORT deepspeedTargets NAMESPACE deepspeed:: DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/deepspeed)
# What the static library needs, for the CMake package and for `pkg-config --static`.
set(DS_STATIC_LIBS jansson pcre2-8 utf8proc xxhash nettle z zstd snappy ${DS_URING_NAME} m pthread)
list(TRANSFORM DS_STATIC_LIBS PREPEND -l OUTPUT_VARIABLE DS_STATIC_FLAGS)
list(JOIN DS_STATIC_FLAGS " " DS_STATIC_FLAGS)
configure_file(cmake/deepspeedConfig.cmake.in ${PROJECT_BINARY_DIR}/deepspeedConfig.cmake @ONLY)
write_basic_package_version_file(${PROJECT_BINARY_DIR}/deepspeedConfigVersion.cmake
  COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_BINARY_DIR}/deepspeedConfig.cmake ${PROJECT_BINARY_DIR}/deepspeedConfigVersion.cmake
  DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/deepspeed)
# From the folder of the .pc file back to the prefix, so that the tree may be moved.
file(RELATIVE_PATH DS_PC_TO_PREFIX /p/${CMAKE_INSTALL_LIBDIR}/pkgconfig /p)
configure_file(cmake/deepspeed.pc.in ${PROJECT_BINARY_DIR}/deepspeed.pc @ONLY)
install(FILES ${PROJECT_BINARY_DIR}/deepspeed.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig)
foreach(source ${DS_TOOLS})
  get_filename_component(name ${source} NAME_WE)
  install(TARGETS ${name} DESTINATION ${CMAKE_INSTALL_BINDIR})
endforeach()
install(FILES ${PROJECT_BINARY_DIR}/ds DESTINATION ${CMAKE_INSTALL_BINDIR}) # a link to deepspeed
file(GLOB pages CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/man/*.1)
install(FILES ${pages} DESTINATION ${CMAKE_INSTALL_MANDIR}/man1)
install(FILES man/deepspeed.1 DESTINATION ${CMAKE_INSTALL_MANDIR}/man1 RENAME ds.1)
install(FILES LICENSE NOTICE DESTINATION ${CMAKE_INSTALL_DOCDIR})
install(FILES completion/deepspeed.bash DESTINATION ${CMAKE_INSTALL_DATADIR}/bash-completion/completions
  RENAME ds_train)
foreach(name deepspeed ds ds_accel_test ds_ssh ds_elastic ds_generate ds_serve ds_config ds_data ds_checkpoint zero_to_fp32 ds_quantize ds_encode ds_report ds_bench ds_plan ds_io ds_nvme_tune)
  install(FILES completion/deepspeed.bash DESTINATION ${CMAKE_INSTALL_DATADIR}/bash-completion/completions
    RENAME ${name})
endforeach()

set(CPACK_PACKAGE_NAME deepspeed-native)
set(CPACK_PACKAGE_CONTACT "the deepspeed-native maintainers <maintainers@example.invalid>")
set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS ON)
set(CPACK_STRIP_FILES ON)
set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
set(CPACK_GENERATOR DEB)
# The module of CUDA, where it is built, is a package of its own: who has no GPU does without.
set(CPACK_DEB_COMPONENT_INSTALL ON)
set(CPACK_COMPONENTS_GROUPING IGNORE)
set(CPACK_DEBIAN_UNSPECIFIED_PACKAGE_NAME deepspeed-native)
set(CPACK_DEBIAN_UNSPECIFIED_PACKAGE_SUGGESTS libdeepspeed-cuda)
set(CPACK_COMPONENT_UNSPECIFIED_DESCRIPTION "DeepSpeed in C: the library, its tools and their pages")
set(CPACK_DEBIAN_CUDA_PACKAGE_NAME libdeepspeed-cuda)
set(CPACK_DEBIAN_CUDA_PACKAGE_DEPENDS "deepspeed-native (= ${PROJECT_VERSION})")
set(CPACK_DEBIAN_CUDA_PACKAGE_SUGGESTS "libcublas-13-0, libnccl2, cuda-nvrtc-13-0, libcufile-13-0")
set(CPACK_COMPONENT_CUDA_DESCRIPTION "the accelerator cuda of deepspeed-native
 Needs NVIDIA's driver (libcuda.so.1), which ds_report looks for.")
# Where Debian looks for a package's licence.
foreach(package deepspeed-native libdeepspeed-cuda)
  set(component Unspecified)
  if(package MATCHES "cuda")
    set(component cuda)
  endif()
  if(component STREQUAL "Unspecified" OR DS_NVCC)
    install(FILES LICENSE DESTINATION ${CMAKE_INSTALL_DATAROOTDIR}/doc/${package} COMPONENT ${component} RENAME copyright)
  endif()
endforeach()
include(CPack)
