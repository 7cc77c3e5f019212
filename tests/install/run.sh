#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# run.sh find_package|pkg_config|add_subdirectory|command|preset BUILD_DIR: uses onecopy the way a stranger would, in a
# directory that knows nothing of this checkout.
set -euo pipefail
kind=$1
build=$(cd "$2" && pwd)
here=$(cd "$(dirname "$0")" && pwd)
cmake=$(sed -n 's/^CMAKE_COMMAND:INTERNAL=//p' "$build/CMakeCache.txt")
place=$(mktemp -d)
trap 'rm -rf "$place"' EXIT
cp -r "$here/stranger" "$place/stranger"

install_to() {
  "$cmake" --install "$build" --prefix "$1" >/dev/null
}

expect_42() {  # expect_42 <program>
  local said
  said=$("$1")
  echo "$said"
  [ "$said" = "the child read 42" ]
}

build_and_run() {  # build_and_run <cmake argument>...
  "$cmake" -S "$place/stranger" -B "$place/build" -G Ninja -DCMAKE_BUILD_TYPE=Release "$@"
  "$cmake" --build "$place/build"
  expect_42 "$place/build/stranger"
}

case $kind in
  find_package)
    install_to "$place/first"
    mv "$place/first" "$place/moved"  # an installed package may be moved
    build_and_run -DCMAKE_PREFIX_PATH="$place/moved"
    if grep -rl "$build" "$place/moved/lib"*/cmake; then
      echo "the installed package names the build directory"
      exit 1
    fi
    ;;
  pkg_config)
    install_to "$place/first"
    mv "$place/first" "$place/moved"
    PKG_CONFIG_PATH=$(dirname "$(find "$place/moved" -name onecopy.pc)")
    export PKG_CONFIG_PATH
    cd "$place/stranger"
    # shellcheck disable=SC2046  # many words
    ${CXX:-g++} -std=c++20 main.cpp -o stranger $(pkg-config --cflags --libs onecopy)
    expect_42 ./stranger
    ;;
  add_subdirectory)
    # All of the library is compiled once more: many sources at a time, and not optimised, it takes half as long. With
    # ONECOPY_ALONE=1 each source alone, as a stranger's are: merged ones do not miss what they forgot to include.
    build_and_run -DONECOPY_SOURCE="$(cd "$here/../.." && pwd)" -DONECOPY_WERROR=ON \
      $([ -n "${ONECOPY_ALONE:-}" ] && echo -DONECOPY_PRECOMPILE=ON || echo -DONECOPY_MERGE_SOURCES=ON) \
      -DCMAKE_CXX_FLAGS_RELEASE=-O0
    ;;
  command)
    install_to "$place/prefix"
    cd /
    "$place/prefix/bin/onecopy" --version
    "$place/prefix/bin/onecopy" --help >/dev/null
    "$place/prefix/bin/onecopy" doctor
    ;;
  preset)  # what README installs with builds what is installed and nothing else
    cd "$here/../.."
    "$cmake" --preset install -B "$place/build" -G Ninja
    "$cmake" --build "$place/build" --target help >"$place/targets"
    grep -q '^libonecopy_channel.a:' "$place/targets"
    grep -q '^onecopy_command:' "$place/targets"
    if grep -E '^[a-z_]*(tests?|example|bench|simulator)[a-z_]*:' "$place/targets" | grep -v '^test:'; then
      echo "the preset install builds what is not installed"
      exit 1
    fi
    ;;
  *)
    echo "usage: $0 find_package|pkg_config|add_subdirectory|command|preset BUILD_DIR" >&2
    exit 2
    ;;
esac
