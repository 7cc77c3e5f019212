# SPDX-License-Identifier: Apache-2.0
# What a wheel links: libstdc++ inside, functions of glibc by versions that glibc 2.28 has (portable/glibc_2_28.cpp), and
# libgcc_s, which is wherever glibc is: the unwinder in libgcc.a wants glibc 2.35.
add_library(onecopy_portable OBJECT ${CMAKE_CURRENT_LIST_DIR}/portable/glibc_2_28.cpp)
add_library(onecopy_portable_start OBJECT ${CMAKE_CURRENT_LIST_DIR}/portable/start_2_28.cpp)
foreach(target IN ITEMS onecopy_portable onecopy_portable_start)
  target_compile_features(${target} PRIVATE cxx_std_20)
  # The linker wraps names after the optimiser has seen the program, which would drop functions that nothing calls yet.
  set_target_properties(${target} PROPERTIES POSITION_INDEPENDENT_CODE ON INTERPROCEDURAL_OPTIMIZATION OFF)
endforeach()

file(STRINGS ${CMAKE_CURRENT_LIST_DIR}/portable/glibc_2_28.cpp ONECOPY_WRAPPED REGEX "^(ONECOPY_OLDER\\(|[a-z:0-9_]+ __wrap_)[a-z]")
list(TRANSFORM ONECOPY_WRAPPED REPLACE "^(ONECOPY_OLDER|[a-z:0-9_]+ __wrap_)\\(?([a-z0-9_]+).*" "LINKER:--wrap=\\2")

# onecopy_portable(<target>): a program or module of the wheel. Before glibc 2.34 threads and dlopen() are libraries.
function(onecopy_portable target)
  target_sources(${target} PRIVATE $<TARGET_OBJECTS:onecopy_portable>)
  target_link_libraries(${target} PRIVATE m)
  target_link_options(${target} PRIVATE -static-libstdc++ ${ONECOPY_WRAPPED}
    LINKER:--no-as-needed,-l:libpthread.so.0,-l:libdl.so.2,--as-needed)
  get_target_property(type ${target} TYPE)
  if(type STREQUAL "EXECUTABLE")
    target_sources(${target} PRIVATE $<TARGET_OBJECTS:onecopy_portable_start>)
    target_link_options(${target} PRIVATE LINKER:--wrap=__libc_start_main)
  endif()
endfunction()
