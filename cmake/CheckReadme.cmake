# SPDX-License-Identifier: Apache-2.0
# cmake -DSOURCE_DIR=... -P CheckReadme.cmake: README's program and its output are those of the example,
# which the tests compile and run; every path that the front pages name exists.
set(example ${SOURCE_DIR}/examples/cpp/two_processes)
file(READ ${SOURCE_DIR}/README.md readme)
file(READ ${example}.cpp program)
file(READ ${example}.expected output)
string(REGEX REPLACE "^// SPDX[^\n]*\n" "" program "${program}")

foreach(part IN ITEMS program output)
  string(FIND "${readme}" "${${part}}" place)
  if(place EQUAL -1)
    message(FATAL_ERROR "README.md does not contain the ${part} of examples/cpp/two_processes:\n${${part}}")
  endif()
endforeach()

foreach(page IN ITEMS README.md ARCHITECTURE.md CONTRIBUTING.md)
  file(READ ${SOURCE_DIR}/${page} text)
  string(REGEX MATCHALL "`(include|src|tests|docs|examples|bench|fuzz|cmake)/[A-Za-z0-9_./-]*`" paths "${text}")
  string(REPLACE "](" " link:" text "${text}")  # a lone bracket would spoil the list
  string(REGEX MATCHALL "link:[A-Za-z0-9_./-]+" links "${text}")
  foreach(path IN LISTS paths links)
    string(REGEX REPLACE "^`|`$|^link:" "" path "${path}")
    if(NOT EXISTS ${SOURCE_DIR}/${path})
      message(SEND_ERROR "${page} names ${path}, which does not exist")
    endif()
  endforeach()
endforeach()
