# SPDX-License-Identifier: Apache-2.0
include(CMakePackageConfigHelpers)

set(ONECOPY_CONFIG_DIR ${CMAKE_INSTALL_LIBDIR}/cmake/onecopy)
install(TARGETS onecopy onecopy_core onecopy_os onecopy_device onecopy_memory onecopy_share onecopy_channel
        EXPORT onecopy_targets ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR})
if(TARGET onecopy_command)
  install(TARGETS onecopy_command RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})
endif()
install(DIRECTORY include/onecopy DESTINATION ${CMAKE_INSTALL_INCLUDEDIR} FILES_MATCHING PATTERN "*.h")
install(EXPORT onecopy_targets FILE onecopy_targets.cmake NAMESPACE onecopy:: DESTINATION ${ONECOPY_CONFIG_DIR})
configure_package_config_file(cmake/onecopy-config.cmake.in ${PROJECT_BINARY_DIR}/onecopy-config.cmake
                              INSTALL_DESTINATION ${ONECOPY_CONFIG_DIR})
write_basic_package_version_file(${PROJECT_BINARY_DIR}/onecopy-config-version.cmake
                                 COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_BINARY_DIR}/onecopy-config.cmake ${PROJECT_BINARY_DIR}/onecopy-config-version.cmake
        DESTINATION ${ONECOPY_CONFIG_DIR})
