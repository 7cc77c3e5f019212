#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# sources_of_release.sh COMPILER ARGUMENT...: compiles through ccache; a merged source that the build of release has, too,
# where it is there. ccache knows an object again by its flags and the path of its source from the working directory.
set -euo pipefail
command=() before='' release=$PWD
for argument; do
  [[ $before != -o && $before != -MF ]] || argument=$PWD/$argument
  twin=${argument/-stranger\/onecopy\//\/}
  if [[ $before == -c && $twin != "$argument" ]] && cmp -s "$argument" "$twin"; then
    argument=$twin release=${PWD%-stranger}
  fi
  command+=("$argument")
  before=$argument
done
cd "$release"
exec ccache "${command[@]}"
