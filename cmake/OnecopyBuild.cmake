# SPDX-License-Identifier: Apache-2.0
# How every target of this project is compiled.

if(ONECOPY_IS_TOP_LEVEL)
  find_program(ONECOPY_CCACHE ccache)
  mark_as_advanced(ONECOPY_CCACHE)
  if(ONECOPY_CCACHE AND (NOT CMAKE_CXX_COMPILER_LAUNCHER OR CMAKE_CXX_COMPILER_LAUNCHER STREQUAL "ccache"))
    # Without the first, ccache gives up on whatever uses a precompiled header; with the second, what one preset
    # has compiled with the same flags the others need not: the Python package's library is that of release.
    set(CMAKE_CXX_COMPILER_LAUNCHER
        ${CMAKE_COMMAND} -E env CCACHE_SLOPPINESS=pch_defines,time_macros
        CCACHE_BASEDIR=${PROJECT_SOURCE_DIR} ${ONECOPY_CCACHE})
  endif()
endif()

if(ONECOPY_IS_TOP_LEVEL)
  set(CMAKE_EXPORT_COMPILE_COMMANDS ON)
endif()

# onecopy_look_for(<package> <Debian package> <Fedora package> [argument of find_package()...]): what is not found goes
# into ONECOPY_MISSING and ONECOPY_MISSING_FEDORA, to be said in one line.
macro(onecopy_look_for package debian fedora)
  find_package(${package} ${ARGN} QUIET)
  if(NOT ${package}_FOUND)
    list(APPEND ONECOPY_MISSING ${debian})
    list(APPEND ONECOPY_MISSING_FEDORA ${fedora})
  endif()
endmacro()

# ONECOPY_COMMIT: what is checked out here, by git; "unknown" where these sources are no checkout of their own. A
# commit, or another branch, configures anew.
set(ONECOPY_COMMIT unknown)
find_program(ONECOPY_GIT git)
mark_as_advanced(ONECOPY_GIT)
if(ONECOPY_GIT AND EXISTS ${PROJECT_SOURCE_DIR}/.git)
  execute_process(COMMAND ${ONECOPY_GIT} rev-parse --short=12 HEAD WORKING_DIRECTORY ${PROJECT_SOURCE_DIR}
    OUTPUT_VARIABLE commit OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET RESULT_VARIABLE failed)
  execute_process(COMMAND ${ONECOPY_GIT} rev-parse --git-path logs/HEAD WORKING_DIRECTORY ${PROJECT_SOURCE_DIR}
    OUTPUT_VARIABLE log OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
  get_filename_component(log "${log}" ABSOLUTE BASE_DIR ${PROJECT_SOURCE_DIR})
  if(NOT failed)
    set(ONECOPY_COMMIT ${commit})
  endif()
  if(EXISTS ${log} AND ONECOPY_IS_TOP_LEVEL)
    set_property(DIRECTORY ${PROJECT_SOURCE_DIR} APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${log})
  endif()
endif()

# An sdist is no checkout, and its version says what it was made from.
if(ONECOPY_COMMIT STREQUAL "unknown" AND "${SKBUILD_PROJECT_VERSION_FULL}" MATCHES "\\+g([0-9a-f]+)$")
  set(ONECOPY_COMMIT ${CMAKE_MATCH_1})
endif()

# ONECOPY_VERSION_FULL: as cmake/onecopy_version.py has it, which knows of tags when it builds the Python package.
set(ONECOPY_VERSION_FULL ${PROJECT_VERSION})
if(SKBUILD_PROJECT_VERSION_FULL)
  set(ONECOPY_VERSION_FULL ${SKBUILD_PROJECT_VERSION_FULL})
elseif(NOT ONECOPY_COMMIT STREQUAL "unknown")
  string(APPEND ONECOPY_VERSION_FULL "+g${ONECOPY_COMMIT}")
endif()

# Archives of such objects link with this very compiler only, so they are not installed.
if(ONECOPY_LTO)
  if(ONECOPY_INSTALL OR ONECOPY_SANITIZE)
    message(FATAL_ERROR " ONECOPY_LTO goes with neither ONECOPY_INSTALL nor ONECOPY_SANITIZE")
  endif()
  include(CheckIPOSupported)
  check_ipo_supported(RESULT ONECOPY_HAS_LTO LANGUAGES CXX)
  set(CMAKE_INTERPROCEDURAL_OPTIMIZATION ${ONECOPY_HAS_LTO})
endif()

# Settings shared by all targets; never exported to consumers.
add_library(onecopy_build_flags INTERFACE)
target_compile_options(onecopy_build_flags INTERFACE
  -Wall -Wextra -Wpedantic -Wshadow -Wconversion -Wno-sign-conversion
  $<$<BOOL:${ONECOPY_WERROR}>:-Werror>)
if(CMAKE_CXX_COMPILER_ID MATCHES "Clang")  # the annotations of os/mutex.h
  target_compile_options(onecopy_build_flags INTERFACE -Wthread-safety)
endif()
if(ONECOPY_WERROR AND CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
  # These follow the optimiser through the standard library and see what cannot happen (g++ 12 and 13).
  target_compile_options(onecopy_build_flags INTERFACE -Wno-error=array-bounds -Wno-error=maybe-uninitialized
    -Wno-error=restrict -Wno-error=stringop-overflow -Wno-error=stringop-overread)
endif()
if(ONECOPY_SANITIZE)
  target_compile_options(onecopy_build_flags INTERFACE
    -fsanitize=${ONECOPY_SANITIZE} -fno-sanitize-recover=all -fno-omit-frame-pointer -g1)
  # g++ warns that ThreadSanitizer does not model fences; the library uses none, its dependencies may.
  if(ONECOPY_SANITIZE MATCHES "thread" AND CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
    target_compile_options(onecopy_build_flags INTERFACE -Wno-tsan)
  endif()
  # Its check of objects opens a pipe, and takes having no descriptors left for a broken object.
  if(ONECOPY_SANITIZE MATCHES "undefined")
    target_compile_options(onecopy_build_flags INTERFACE -fno-sanitize=vptr)
  endif()
  # g++ says so by itself; clang only through __has_feature.
  if(CMAKE_CXX_COMPILER_ID MATCHES "Clang")
    foreach(sanitizer IN ITEMS ADDRESS THREAD)
      string(TOLOWER ${sanitizer} lower)
      if(ONECOPY_SANITIZE MATCHES ${lower})
        target_compile_definitions(onecopy_build_flags INTERFACE __SANITIZE_${sanitizer}__=1)
      endif()
    endforeach()
  endif()
  target_link_options(onecopy_build_flags INTERFACE -fsanitize=${ONECOPY_SANITIZE})
  if(ONECOPY_SANITIZE MATCHES "address")  # relocating itself is a fifth of what a test takes to start
    target_link_options(onecopy_build_flags INTERFACE
      $<$<STREQUAL:$<TARGET_PROPERTY:TYPE>,EXECUTABLE>:-no-pie>)
  endif()
else()  # what others define is found when the program starts, and not in the middle of its first open
  target_compile_options(onecopy_build_flags INTERFACE -fno-plt)
endif()

# onecopy_target(<target>): language level and flags that every target has.
function(onecopy_target target)
  target_compile_features(${target} PUBLIC cxx_std_20)
  set_target_properties(${target} PROPERTIES CXX_EXTENSIONS OFF POSITION_INDEPENDENT_CODE ON)
  target_link_libraries(${target} PRIVATE $<BUILD_INTERFACE:onecopy_build_flags>)
endfunction()

# onecopy_precompile(<target> <header>...): headers that cost more than the sources that include them.
function(onecopy_precompile target)
  if(NOT ONECOPY_PRECOMPILE)
    return()
  endif()
  target_precompile_headers(${target} PRIVATE ${ARGN})
  if(CMAKE_CXX_COMPILER_ID MATCHES "Clang")
    target_compile_options(${target} PRIVATE "SHELL:-Xclang -fno-pch-timestamp")
  else()
    target_compile_options(${target} PRIVATE -fpch-preprocess)
  endif()
endfunction()

# onecopy_sources(<variable> <glob>...): the sources there are now; a new file reconfigures.
function(onecopy_sources variable)
  set(patterns)
  foreach(pattern IN LISTS ARGN)
    list(APPEND patterns ${CMAKE_CURRENT_SOURCE_DIR}/${pattern})
  endforeach()
  file(GLOB found CONFIGURE_DEPENDS ${patterns})
  set(${variable} ${found} PARENT_SCOPE)
endfunction()

# onecopy_install_completion(<data folder> [argument of install()...]): where the shells look for completions of commands.
function(onecopy_install_completion data)
  set(scripts ${PROJECT_SOURCE_DIR}/src/cli/completion)
  install(FILES ${scripts}/onecopy.bash DESTINATION ${data}/bash-completion/completions RENAME onecopy ${ARGN})
  install(FILES ${scripts}/_onecopy DESTINATION ${data}/zsh/site-functions ${ARGN})
  install(FILES ${scripts}/onecopy.fish DESTINATION ${data}/fish/vendor_completions.d ${ARGN})
endfunction()

# onecopy_install_service(<data folder> <path of the command, below the prefix of the install or absolute> [argument of
# install()...]): a unit for systemd --user. The prefix is known when the unit is installed.
function(onecopy_install_service data command)
  install(CODE "
    set(ONECOPY_COMMAND_PATH \"${command}\")
    cmake_path(ABSOLUTE_PATH ONECOPY_COMMAND_PATH BASE_DIRECTORY \"\${CMAKE_INSTALL_PREFIX}\")
    configure_file(\"${PROJECT_SOURCE_DIR}/src/cli/onecopy-store.service.in\" \"${PROJECT_BINARY_DIR}/onecopy-store.service\" @ONLY)"
    ${ARGN})
  install(FILES ${PROJECT_BINARY_DIR}/onecopy-store.service DESTINATION ${data}/systemd/user ${ARGN})
endfunction()
