# SPDX-License-Identifier: Apache-2.0
# cmake -DPROGRAM=... -DEXPECTED=file -P RunAndCompare.cmake: run it; its output must be the file's text.
execute_process(COMMAND ${PROGRAM} OUTPUT_VARIABLE output RESULT_VARIABLE status TIMEOUT 50)
if(NOT status STREQUAL "0")
  message(FATAL_ERROR "${PROGRAM} ended with ${status}; it printed:\n${output}")
endif()
file(READ ${EXPECTED} expected)
if(NOT output STREQUAL expected)
  message(FATAL_ERROR "expected:\n${expected}\nprinted:\n${output}")
endif()
