#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# run.sh find_package|pkg_config|plugins|add_subdirectory|headers|command|preset|missing BUILD_DIR: uses onecopy the way a
# stranger would, in a directory that knows nothing of this checkout.
set -euo pipefail
kind=$1
build=$(cd "$2" && pwd)
here=$(cd "$(dirname "$0")" && pwd)
cmake=$(sed -n 's/^CMAKE_COMMAND:INTERNAL=//p' "$build/CMakeCache.txt")
place=$(mktemp -d)
objects=$place/build
trap 'rm -rf "$place" "$objects"' EXIT
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

expect_line() {  # expect_line <file> <text> <command that fails>...: it says so in one line
  local file=$1 text=$2
  shift 2
  if "$@" >"$file" 2>&1; then
    echo "this should have failed: $*"
    exit 1
  fi
  [ "$(grep -cF -- "$text" "$file")" -ge 1 ] || { cat "$file"; exit 1; }
}

needs_no_fmt() {  # needs_no_fmt <prefix> <program>: neither to be compiled nor to run
  if grep -rlE 'fmt|spdlog|nlohmann' "$1/lib"*/cmake "$1/lib"*/pkgconfig; then
    echo "the installed package wants libraries of its users that only its own sources include"
    exit 1
  fi
  if readelf -d "$2" | grep -E 'NEEDED.*(fmt|spdlog)'; then
    echo "programs that link onecopy want a library to run"
    exit 1
  fi
}

build_and_run() {  # build_and_run <cmake argument>...
  "$cmake" -S "$place/stranger" -B "$objects" -G Ninja -DCMAKE_BUILD_TYPE=Release "$@"
  "$cmake" --build "$objects"
  expect_42 "$objects/stranger"
}

exports() {  # exports <library>: the demangled names of what it defines for others
  nm -DC --defined-only "$1" | cut -d ' ' -f 3-
}

only_its_own() {  # only_its_own <plug-in> <beginning of names>: it exports nothing of onecopy nor of the libraries within
  if exports "$1" | grep -E "$2(onecopy|fmt|nlohmann|CLI)::"; then
    echo "$(basename "$1") exports these names, which another plug-in of its process may bind to"
    exit 1
  fi
  exports "$1" | grep -qx plugin_share
}

public_alone() {  # public_alone <shared library>: it exports the names of public headers
  if exports "$1" | grep -vE '^(typeinfo (name )?for |vtable for )?onecopy::'; then
    echo "$(basename "$1") exports these names, which are not onecopy's"
    exit 1
  fi
  for name in onecopy::open 'onecopy::Tensor::slice' 'onecopy::store::Store::connect' 'onecopy::rpc::Agent::Agent'; do
    exports "$1" | grep -F "$name(" >/dev/null || { echo "$name is missing from $(basename "$1")"; exit 1; }
  done
  if exports "$1" | grep -E 'onecopy::(Runtime|Session|Ledger|Channel|Ring|Broker|Importer|BundleReader|store::Client|rpc::Node)\b.*\('; then
    echo "$(basename "$1") exports these names, which no public header declares"
    exit 1
  fi
}

case $kind in
  find_package)
    install_to "$place/first"
    mv "$place/first" "$place/moved"  # an installed package may be moved
    build_and_run -DCMAKE_PREFIX_PATH="$place/moved" -DCMAKE_DISABLE_FIND_PACKAGE_fmt=ON
    needs_no_fmt "$place/moved" "$place/build/stranger"
    if grep -rl "$build" "$place/moved/lib"*/cmake; then
      echo "the installed package names the build directory"
      exit 1
    fi
    [ -s "$place/moved/share/doc/onecopy/LICENSE" ]
    for header in onecopy/onecopy.h onecopy/rpc/agent.h; do
      echo "#include \"$header\"" >"$place/old.cpp"
      expect_line "$place/said" 'onecopy needs C++20: compile with -std=c++20' \
        "${CXX:-g++}" -std=c++17 -fsyntax-only -I "$place/moved/include" "$place/old.cpp"
      grep -m 1 error "$place/said" | grep -q 'onecopy needs C++20'  # before all that follows from it
    done
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
    # shellcheck disable=SC2046
    ${CXX:-g++} -std=c++20 -shared -fPIC plugin.cpp -o plugin.so $(pkg-config --cflags --libs onecopy)
    only_its_own plugin.so '^([a-z -]+ for )?'
    # shellcheck disable=SC2046
    ${CXX:-g++} -std=c++20 main.cpp -o with_shared $(pkg-config --cflags --libs onecopy-shared)
    LD_LIBRARY_PATH=$(dirname "$(find "$place/moved" -name libonecopy.so)") expect_42 ./with_shared
    ;;
  plugins)
    install_to "$place/prefix"
    build_and_run -DCMAKE_PREFIX_PATH="$place/prefix" -DSTRANGER_PLUGINS=ON
    only_its_own "$objects/libfirst.so" ''  # compiled with -fvisibility=hidden
    only_its_own "$objects/libsecond.so" '^([a-z -]+ for )?'  # without it, templates of others for its types as well
    public_alone "$(find "$place/prefix" -name libonecopy.so)"
    said=$("$objects/host" "$objects"/lib{first,second,shared}.so)
    echo "$said"
    [ "$said" = "3 plug-ins, 9 pairs share memory" ]
    ;;
  add_subdirectory)
    # With ONECOPY_ALONE=1 each source alone, as a stranger's are: merged ones do not miss what they forgot to include.
    # Otherwise with the flags of release, so that ccache has most of it; without ccache not optimised, in half the time.
    root=$(cd "$here/../.." && pwd)
    if [ -n "${ONECOPY_ALONE:-}" ]; then
      options=(-DONECOPY_PRECOMPILE=ON -DCMAKE_CXX_FLAGS_RELEASE=-O0)
    elif command -v ccache >/dev/null; then
      objects=$build-stranger  # paths to the sources are as long as those of release
      rm -rf "$objects"
      export CCACHE_BASEDIR=$root CCACHE_SLOPPINESS=pch_defines,time_macros
      options=(-DONECOPY_MERGE_SOURCES=ON -DCMAKE_CXX_COMPILER_LAUNCHER="$here/sources_of_release.sh")
    else
      options=(-DONECOPY_MERGE_SOURCES=ON -DCMAKE_CXX_FLAGS_RELEASE=-O0)
    fi
    build_and_run -DONECOPY_SOURCE="$root" -DONECOPY_WERROR=ON "${options[@]}"
    ;;
  headers)  # all that a program includes, and no private ones
    install_to "$place/prefix"
    cd "$place/prefix/include"
    "${CXX:-g++}" -std=c++20 -MM -I. onecopy/onecopy.h onecopy/rpc/agent.h | tr -s ' \\' '\n' | grep '^onecopy/' | sort -u >"$place/reached"
    find onecopy -name '*.h' | sort >"$place/installed"
    if ! diff "$place/installed" "$place/reached"; then
      echo "the headers marked < are installed, and neither onecopy.h nor rpc/agent.h reaches them: they belong in src"
      exit 1
    fi
    ;;
  command)
    install_to "$place/prefix"
    cd /
    "$place/prefix/bin/onecopy" --version
    grep -qx "ExecStart=$place/prefix/bin/onecopy store serve --replace" "$place/prefix/share/systemd/user/onecopy-store.service"
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
  missing)  # headers that are not there are named with what to install
    expect_line "$place/said" 'apt-get install libfmt-dev libcli11-dev (Fedora: dnf install fmt-devel cli11-devel)' \
      "$cmake" -S "$here/../.." -B "$place/build" -G Ninja \
      -DCMAKE_DISABLE_FIND_PACKAGE_fmt=ON -DCMAKE_DISABLE_FIND_PACKAGE_CLI11=ON
    expect_line "$place/said" 'apt-get install python3-dev (Fedora: dnf install python3-devel)' \
      "$cmake" -S "$here/../.." -B "$place/python" -G Ninja -DONECOPY_PYTHON=ON \
      -DPython_INCLUDE_DIR="$place/none" -DPython_FIND_VIRTUALENV=STANDARD
    ;;
  *)
    echo "usage: $0 find_package|pkg_config|plugins|add_subdirectory|headers|command|preset|missing BUILD_DIR" >&2
    exit 2
    ;;
esac
