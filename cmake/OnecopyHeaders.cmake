# SPDX-License-Identifier: Apache-2.0
# The dependencies as headers alone, from a folder that was brought along (ONECOPY_HEADERS).
function(onecopy_header_target name)
  add_library(${name} INTERFACE IMPORTED GLOBAL)
  target_include_directories(${name} SYSTEM INTERFACE ${ONECOPY_HEADERS})
  target_compile_definitions(${name} INTERFACE ${ARGN})
endfunction()

onecopy_header_target(fmt::fmt FMT_HEADER_ONLY=1)
onecopy_header_target(nlohmann_json::nlohmann_json)
onecopy_header_target(CLI11::CLI11)
