# SPDX-License-Identifier: Apache-2.0
include(CMakePackageConfigHelpers)

set(ONECOPY_CONFIG_DIR ${CMAKE_INSTALL_LIBDIR}/cmake/onecopy)
install(TARGETS onecopy onecopy_core onecopy_os onecopy_peer onecopy_device onecopy_memory onecopy_share onecopy_channel onecopy_transport onecopy_rpc onecopy_store onecopy_graph
        EXPORT onecopy_targets ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR})
if(TARGET onecopy_shared)
  install(TARGETS onecopy_shared EXPORT onecopy_targets LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR})
endif()
if(TARGET onecopy_command)
  install(TARGETS onecopy_command RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})
  onecopy_install_completion(${CMAKE_INSTALL_DATAROOTDIR})
  onecopy_install_service(${CMAKE_INSTALL_DATAROOTDIR} ${CMAKE_INSTALL_BINDIR}/onecopy)
endif()
install(DIRECTORY include/onecopy DESTINATION ${CMAKE_INSTALL_INCLUDEDIR} FILES_MATCHING PATTERN "*.h")
install(FILES LICENSE DESTINATION ${CMAKE_INSTALL_DOCDIR})
install(EXPORT onecopy_targets FILE onecopy_targets.cmake NAMESPACE onecopy:: DESTINATION ${ONECOPY_CONFIG_DIR})
configure_package_config_file(cmake/onecopy-config.cmake.in ${PROJECT_BINARY_DIR}/onecopy-config.cmake
                              INSTALL_DESTINATION ${ONECOPY_CONFIG_DIR})
write_basic_package_version_file(${PROJECT_BINARY_DIR}/onecopy-config-version.cmake
                                 COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_BINARY_DIR}/onecopy-config.cmake ${PROJECT_BINARY_DIR}/onecopy-config-version.cmake
        DESTINATION ${ONECOPY_CONFIG_DIR})

# For those who build without CMake. The libraries are archives, so whoever links them links what they call as well;
# the file finds its prefix by where it lies, as an installed package may be moved.
set(ONECOPY_PC_DIR ${CMAKE_INSTALL_LIBDIR}/pkgconfig)
file(RELATIVE_PATH ONECOPY_PREFIX_FROM_PC /prefix/${ONECOPY_PC_DIR} /prefix)
foreach(name IN ITEMS onecopy onecopy-shared)
  configure_file(cmake/${name}.pc.in ${PROJECT_BINARY_DIR}/${name}.pc @ONLY)
  install(FILES ${PROJECT_BINARY_DIR}/${name}.pc DESTINATION ${ONECOPY_PC_DIR})
endforeach()
